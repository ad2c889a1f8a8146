//! The program's side of a window.
//!
//! Key type: [`Memory`]. Its methods copy bytes and words atomically, so they are sound whatever other threads and
//! hosts do to the same bytes. C code, and Rust code that needs more, uses the address.

use super::numbers::{Number, Numbers};
use super::views::Views;
use farmem_wire::message::PAGE_LEN;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of far memory, reached by loads and stores. A touch of an uncached page waits for the page.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'w> {
    views: &'w Views,
    /// Offset of the first byte in the window.
    start: usize,
    len: usize,
    /// True if system calls may access the window.
    system_calls: bool,
}

/// Maximum number of bytes that one call moves if system calls may not access far memory.
const MOVE_MAX: usize = 64 << 10;

const WORD: usize = 8;

impl<'w> Memory<'w> {
    pub(super) const fn new(views: &'w Views, system_calls: bool) -> Self {
        Self { views, start: 0, len: views.len(), system_calls }
    }

    /// Returns the part of `len` bytes at `offset`.
    ///
    /// # Panics
    /// Panics if `len` is 0 or the part exceeds the memory.
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Self {
        assert!(len > 0, "a part has bytes");
        self.check(offset, len);
        Self { start: self.start + offset, len, ..self }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns false: a memory is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Returns the memory of the whole window's cached pages in bytes, as the kernel counts it.
    #[must_use]
    pub fn bytes_here(&self) -> u64 {
        self.views.bytes_taken()
    }

    /// Returns a pointer to the first byte, for C and system calls. The pointer is valid as long as the window.
    #[must_use]
    pub const fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: a part lies inside the view.
        unsafe { self.views.program_start().add(self.start) }
    }

    /// Returns the memory as a slice.
    ///
    /// # Safety
    /// While the slice is in use, no other slice, [`Memory`] or host writes to the window's bytes. The thread that
    /// serves the window may evict and reinstall pages meanwhile; a reinstalled page has the bytes written last.
    pub unsafe fn as_mut_slice(&self) -> &'w mut [u8] {
        // SAFETY: mapped as long as 'w; the caller promises the rest.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().as_ptr(), self.len()) }
    }

    /// Copies bytes from `offset` on.
    ///
    /// # Panics
    /// Panics if they leave the window.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        let (edge, rest) = into.split_at_mut(head_len(offset, into.len()));
        let first = offset + edge.len();
        let (words, tail) = rest.as_chunks_mut::<WORD>();
        let last = first + words.len() * WORD;
        for (at, byte) in (offset..).zip(edge) {
            *byte = self.byte(at).load(Ordering::Relaxed);
        }
        for (at, word) in (first..).step_by(WORD).zip(words) {
            *word = self.word(at).load(Ordering::Relaxed).to_le_bytes();
        }
        for (at, byte) in (last..).zip(tail) {
            *byte = self.byte(at).load(Ordering::Relaxed);
        }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// Panics if they leave the window.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        let (edge, rest) = bytes.split_at(head_len(offset, bytes.len()));
        let first = offset + edge.len();
        let (words, tail) = rest.as_chunks::<WORD>();
        let last = first + words.len() * WORD;
        for (at, byte) in (offset..).zip(edge) {
            self.byte(at).store(*byte, Ordering::Relaxed);
        }
        for (at, word) in (first..).step_by(WORD).zip(words) {
            self.word(at).store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
        for (at, byte) in (last..).zip(tail) {
            self.byte(at).store(*byte, Ordering::Relaxed);
        }
    }

    /// Returns the aligned little-endian word at `offset` as an atomic.
    ///
    /// # Panics
    /// Panics if it leaves the window or is not aligned.
    #[must_use]
    pub fn word(&self, offset: usize) -> &'w AtomicU64 {
        const { assert!(cfg!(target_endian = "little")) };
        self.check(offset, WORD);
        assert!(offset.is_multiple_of(WORD), "an aligned word");
        // SAFETY: inside the view, by the check.
        let place = unsafe { self.as_ptr().add(offset) };
        // SAFETY: aligned, mapped as long as 'w; all safe accesses are atomic.
        unsafe { AtomicU64::from_ptr(place.as_ptr().cast()) }
    }

    /// Returns little-endian numbers from `offset` on, for reading as a slice.
    ///
    /// # Panics
    /// Panics if they leave the window or are not aligned.
    #[must_use]
    pub fn numbers<T: Number>(&self, offset: usize, count: usize) -> Numbers<'w, T> {
        const { assert!(cfg!(target_endian = "little")) };
        let len = count.checked_mul(size_of::<T>()).expect("numbers of this machine's memory");
        self.check(offset, len);
        // SAFETY: inside the view, or its end, by the check.
        let place = unsafe { self.as_ptr().add(offset) }.cast::<T::Atomic>();
        assert!(place.is_aligned(), "aligned numbers");
        // SAFETY: aligned, mapped as long as 'w; all safe accesses are atomic, and every bit pattern is a number.
        Numbers { all: unsafe { std::slice::from_raw_parts(place.as_ptr(), count) } }
    }

    /// Reads from `file`, at the file's position, into the window, like `read(2)`. With
    /// [`FaultMode::Signal`](super::FaultMode::Signal) the bytes pass through a buffer, at most 64 KiB per call.
    ///
    /// # Errors
    /// The system's error; EFAULT if only faults of user code are served (see `farmem doctor`).
    ///
    /// # Panics
    /// Panics if the bytes leave the window.
    pub fn read_from(&self, file: impl AsFd, offset: usize, len: usize) -> io::Result<usize> {
        self.check(offset, len);
        if !self.system_calls {
            let mut bytes = vec![0; len.min(MOVE_MAX)];
            let count = rustix::io::read(file, &mut bytes)?;
            self.write(offset, &bytes[..count]);
            return Ok(count);
        }
        // SAFETY: inside the view, by the check.
        let place = unsafe { self.as_ptr().add(offset) };
        // SAFETY: the system writes `len` bytes of a mapping that lives as long as 'w.
        let count = unsafe { libc::read(file.as_fd().as_raw_fd(), place.as_ptr().cast(), len) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Writes to `file` from the window, like `write(2)`, with the buffer of [`Memory::read_from`].
    ///
    /// # Errors
    /// As [`Memory::read_from`].
    ///
    /// # Panics
    /// Panics if the bytes leave the window.
    pub fn write_to(&self, file: impl AsFd, offset: usize, len: usize) -> io::Result<usize> {
        self.check(offset, len);
        if !self.system_calls {
            let mut bytes = vec![0; len.min(MOVE_MAX)];
            self.read(offset, &mut bytes);
            return Ok(rustix::io::write(file, &bytes)?);
        }
        // SAFETY: inside the view, by the check.
        let place = unsafe { self.as_ptr().add(offset) };
        // SAFETY: the system reads `len` bytes of a mapping that lives as long as 'w.
        let count = unsafe { libc::write(file.as_fd().as_raw_fd(), place.as_ptr().cast(), len) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    fn byte(&self, offset: usize) -> &'w AtomicU8 {
        self.check(offset, 1);
        // SAFETY: inside the view, by the check.
        let place = unsafe { self.as_ptr().add(offset) };
        // SAFETY: mapped as long as 'w; all safe accesses are atomic.
        unsafe { AtomicU8::from_ptr(place.as_ptr()) }
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len()), "inside the window");
    }
}

/// Returns the number of bytes before the first aligned word.
fn head_len(offset: usize, len: usize) -> usize {
    const { assert!(PAGE_LEN.is_multiple_of(WORD)) };
    (offset.next_multiple_of(WORD) - offset).min(len)
}
