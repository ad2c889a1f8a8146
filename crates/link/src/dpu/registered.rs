//! Memory of a process that its DPU accesses by offset: the DPU reads written-back bytes there, and writes
//! requested bytes directly to their destination.
//!
//! Registered memory is a memory file that the DPU reads and writes by system calls. The DPU maps none of its
//! pages, so no action of the process on the file can crash the DPU.

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
    /// Maximum number of bytes of the file that may be allocated while this end writes.
    most: u64,
    /// Space for writes, shared by several threads.
    room: Mutex<Room>,
    /// Number of system calls that moved bytes.
    calls: AtomicU64,
}

/// Maximum number of buffers per system call.
const PIECES_MAX: usize = 32;

/// The known free space in a memory file.
#[derive(Clone, Copy, Default, Debug)]
struct Room {
    /// Number of bytes that may be written before the next check of the allocated bytes.
    left: u64,
    /// Number of bytes of writes in progress, which the process may not see yet.
    coming: u64,
}

impl Registered {
    /// Opens a file of which at most `most` bytes may be allocated. Beyond that, nothing is written.
    ///
    /// # Errors
    /// [`OpenError::Foreign`] if the file is not a memory file, or may shrink or grow.
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

    /// Copies consecutive buffers to `addr`, usually by one system call. Returns false if the range is not
    /// within the file, if too many bytes would be allocated, or if the write fails.
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
        IoSlice::advance_slices(&mut left, 0); // skips empty buffers
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

    /// Returns the number of system calls that moved bytes so far.
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

    /// Copies bytes at `addr` into consecutive buffers, usually by one system call. Returns false if the
    /// range is not within the file. Concurrent writes of the process may or may not be visible.
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
        IoSliceMut::advance_slices(&mut left, 0); // skips empty buffers
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

    /// Reserves space for `len` more bytes; returns false if there is none. The process may have freed bytes
    /// meanwhile, which only a check of the file shows.
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

    /// Locks the counts. A panic leaves them consistent.
    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of allocated bytes, in whole pages.
    fn there(&self) -> u64 {
        /// Unit of `st_blocks` (stat(2)).
        const BLOCK: u64 = 512;
        let blocks = fstat(&self.file).ok().and_then(|about| u64::try_from(about.st_blocks).ok());
        blocks.map_or(u64::MAX, |blocks| blocks.saturating_mul(BLOCK))
    }

    /// Returns true if the file contains `len` bytes at `addr`.
    #[must_use]
    pub fn holds(&self, addr: u64, len: usize) -> bool {
        addr.checked_add(len as u64).is_some_and(|end| end <= self.len)
    }
}
