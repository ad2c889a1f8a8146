//! Memory of a process that its DPU reaches by offset: it reads what is written back there, and writes what was asked for to where it is used.
//!
//! It is a memory file, and the DPU reads and writes it by calls of the system: none of its pages is mapped here, so nothing that the process does to the file
//! meanwhile can end the DPU.

use crate::OpenError;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use std::os::fd::OwnedFd;

/// A memory file that a process registered.
#[derive(Debug)]
pub struct Registered {
    file: OwnedFd,
    len: u64,
}

impl Registered {
    /// # Errors
    /// [`OpenError::Foreign`] for a file that is no memory file, or one that can be cut or grow.
    pub fn of(file: OwnedFd) -> Result<Self, OpenError> {
        const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
        let foreign = |why: &str| OpenError::Foreign { path: "registered memory".into(), why: why.into() };
        if !fcntl_get_seals(&file).map_err(|_| foreign("is no memory file"))?.contains(SEALS) {
            return Err(foreign("is not sealed"));
        }
        let about = fstat(&file)
            .map_err(|e| OpenError::System { doing: "look at registered memory".into(), source: e.into() })?;
        let len = u64::try_from(about.st_size).map_err(|_| foreign("has no size"))?;
        Ok(Self { file, len })
    }

    /// Copies bytes to `addr` on; false when they would leave it, or the process does not let them be written.
    #[must_use]
    pub fn put(&self, addr: u64, bytes: &[u8]) -> bool {
        self.is_inside(addr, bytes.len())
            && whole(bytes.len(), |done| pwrite(&self.file, &bytes[done..], addr + done as u64))
    }

    /// Copies bytes from `addr` on; false, and `into` has nothing of it, when they would leave it. What the process does to them meanwhile may be seen or not.
    #[must_use]
    pub fn take(&self, addr: u64, into: &mut [u8]) -> bool {
        self.is_inside(addr, into.len())
            && whole(into.len(), |done| pread(&self.file, &mut into[done..], addr + done as u64))
    }

    fn is_inside(&self, addr: u64, len: usize) -> bool {
        addr.checked_add(len as u64).is_some_and(|end| end <= self.len)
    }
}

/// Moves `len` bytes by calls that each move some; false when one moves none.
fn whole(len: usize, mut step: impl FnMut(usize) -> Result<usize, Errno>) -> bool {
    let mut done = 0;
    while done < len {
        match retry_on_intr(|| step(done)) {
            Ok(moved) if moved > 0 => done += moved,
            _ => return false,
        }
    }
    true
}
