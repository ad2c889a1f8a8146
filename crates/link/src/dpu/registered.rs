//! Memory of a process that its DPU reaches by offset: it reads what is written back there, and writes what was asked for to where it is used.
//!
//! Registered memory is a memory file that the DPU reads and writes by system calls: none of its pages is mapped here, so nothing that the process does to the file
//! meanwhile can end the DPU.

use crate::OpenError;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::{Errno, preadv, pwritev, retry_on_intr};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A memory file that a process registered.
#[derive(Debug)]
pub struct Registered {
    file: OwnedFd,
    len: u64,
    /// Bytes of it that may be there at once, for this end to write.
    most: u64,
    /// Several threads write there.
    room: Mutex<Room>,
    /// Calls of the system that moved bytes of it.
    calls: AtomicU64,
}

/// Pieces that one call moves, at most.
const PIECES_MAX: usize = 32;

/// Room in a memory file, as far as it is known.
#[derive(Clone, Copy, Default, Debug)]
struct Room {
    /// Bytes that may be written before it is looked again how many are there.
    left: u64,
    /// Bytes that are being written: the process may not see them yet.
    coming: u64,
}

impl Registered {
    /// A file of which `most` bytes are to be there at once: where more are, nothing is written.
    ///
    /// # Errors
    /// [`OpenError::Foreign`] for a file that is no memory file, or one that can be cut or grow.
    pub fn of(file: OwnedFd, most: u64) -> Result<Self, OpenError> {
        const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
        let foreign = |why: &str| OpenError::Foreign { path: "registered memory".into(), why: why.into() };
        if !fcntl_get_seals(&file).map_err(|_| foreign("is no memory file"))?.contains(SEALS) {
            return Err(foreign("is not sealed"));
        }
        let about = fstat(&file)
            .map_err(|e| OpenError::System { doing: "look at registered memory".into(), source: e.into() })?;
        let len = u64::try_from(about.st_size).map_err(|_| foreign("has no size"))?;
        Ok(Self { file, len, most, room: Mutex::default(), calls: AtomicU64::new(0) })
    }

    /// Copies bytes to `addr` on, which are in so many pieces, one behind the other: by one call of the system, as a rule. False when they would leave it, when more would be there than may, or when the process
    /// does not let them be written.
    #[must_use]
    pub fn put(&self, addr: u64, pieces: &[&[u8]]) -> bool {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        if !self.holds(addr, len) || !self.take_room(len as u64) {
            return false;
        }
        let mut at = addr;
        let is_put = pieces.chunks(PIECES_MAX).all(|pieces| self.write(&mut at, pieces));
        self.room().coming -= len as u64;
        is_put
    }

    fn write(&self, at: &mut u64, pieces: &[&[u8]]) -> bool {
        let mut slices = [IoSlice::new(&[]); PIECES_MAX];
        slices.iter_mut().zip(pieces).for_each(|(slice, piece)| *slice = IoSlice::new(piece));
        let mut left = &mut slices[..pieces.len()];
        IoSlice::advance_slices(&mut left, 0); // those that are empty
        while !left.is_empty() {
            match self.call(|| pwritev(&self.file, left, *at)) {
                Ok(moved) if moved > 0 => {
                    *at += moved as u64;
                    IoSlice::advance_slices(&mut left, moved);
                }
                _ => return false,
            }
        }
        true
    }

    /// Calls of the system that have moved bytes of it so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn call(&self, mut step: impl FnMut() -> Result<usize, Errno>) -> Result<usize, Errno> {
        retry_on_intr(|| {
            self.calls.fetch_add(1, Ordering::Relaxed);
            step()
        })
    }

    /// Copies bytes from `addr` on into so many pieces, one behind the other: by one call of the system, as a rule. False when they would leave it. What the process does to them meanwhile may be seen or not.
    #[must_use]
    pub fn take(&self, addr: u64, pieces: &mut [&mut [u8]]) -> bool {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let mut at = addr;
        self.holds(addr, len) && pieces.chunks_mut(PIECES_MAX).all(|pieces| self.read(&mut at, pieces))
    }

    fn read(&self, at: &mut u64, pieces: &mut [&mut [u8]]) -> bool {
        let count = pieces.len();
        let mut slices: [IoSliceMut<'_>; PIECES_MAX] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        slices.iter_mut().zip(pieces).for_each(|(slice, piece)| *slice = IoSliceMut::new(piece));
        let mut left = &mut slices[..count];
        IoSliceMut::advance_slices(&mut left, 0); // those that are empty
        while !left.is_empty() {
            match self.call(|| preadv(&self.file, left, *at)) {
                Ok(moved) if moved > 0 => {
                    *at += moved as u64;
                    IoSliceMut::advance_slices(&mut left, moved);
                }
                _ => return false,
            }
        }
        true
    }

    /// Takes room for so many bytes more, which come now; false when there is none. What the process took away since is not known until it is looked at.
    fn take_room(&self, len: u64) -> bool {
        let mut room = self.room();
        if room.left < len {
            room.left = self.most.saturating_sub(self.there()).saturating_sub(room.coming);
        }
        let fits = room.left >= len;
        if fits {
            room.left -= len;
            room.coming += len;
        }
        fits
    }

    /// Locks the counts. A thread that panicked with the lock left them consistent.
    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are there, in whole pages.
    fn there(&self) -> u64 {
        /// Unit of `st_blocks` (stat(2)).
        const BLOCK: u64 = 512;
        let blocks = fstat(&self.file).ok().and_then(|about| u64::try_from(about.st_blocks).ok());
        blocks.map_or(u64::MAX, |blocks| blocks.saturating_mul(BLOCK))
    }

    /// True when it has `len` bytes at `addr`.
    #[must_use]
    pub fn holds(&self, addr: u64, len: usize) -> bool {
        addr.checked_add(len as u64).is_some_and(|end| end <= self.len)
    }
}
