//! The program's side of a window.
//!
//! Key type: [`Memory`]. Its calls copy bytes and words atomically, so they are sound whatever other threads, and other hosts, do to
//! the same bytes. C code, or Rust that promises more than the compiler sees, takes the address.

use super::numbers::{Number, Numbers};
use super::views::Views;
use farmem_wire::message::PAGE_LEN;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of far memory, reached by loads and stores. A touch of a page that is not cached waits for it.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'w> {
    views: &'w Views,
    /// Where its first byte is in the window.
    start: usize,
    len: usize,
    /// The system may reach into it.
    system_calls: bool,
}

/// Bytes that one call of the system moves where it may not reach into far memory, at most.
const MOVE_MAX: usize = 64 << 10;

const WORD: usize = 8;

impl<'w> Memory<'w> {
    pub(super) const fn new(views: &'w Views, system_calls: bool) -> Self {
        Self { views, start: 0, len: views.len(), system_calls }
    }

    /// A part of it: `len` bytes from `offset` on.
    ///
    /// # Panics
    /// When they are none, or leave it.
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Self {
        assert!(len > 0, "a part has bytes");
        self.check(offset, len);
        Self { start: self.start + offset, len, ..self }
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// False: there is a byte at least.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Bytes of the whole window that are cached, as the system counts the memory they take.
    #[must_use]
    pub fn bytes_here(&self) -> u64 {
        self.views.bytes_taken()
    }

    /// The first byte: for C, and for system calls. Valid as long as the window.
    #[must_use]
    pub const fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: a part lies inside the view.
        unsafe { self.views.program_start().add(self.start) }
    }

    /// All of it as a slice.
    ///
    /// # Safety
    /// While the slice is used, nothing else writes to the window's bytes: no other slice or [`Memory`], and no other host.
    /// The thread that serves the window answers, always with the bytes last written.
    pub unsafe fn as_mut_slice(&self) -> &'w mut [u8] {
        // SAFETY: mapped as long as 'w; the caller promises the rest.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().as_ptr(), self.len()) }
    }

    /// Copies bytes from `offset` on.
    ///
    /// # Panics
    /// When they leave the window.
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

    /// Copies `bytes` to `offset` and on.
    ///
    /// # Panics
    /// When they leave the window.
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

    /// The little-endian word at `offset`, to be used as an atomic.
    ///
    /// # Panics
    /// When it leaves the window or is not aligned.
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

    /// Little-endian numbers from `offset` on, to be read as a slice is.
    ///
    /// # Panics
    /// When they leave the window or are not aligned.
    #[must_use]
    pub fn numbers<T: Number>(&self, offset: usize, count: usize) -> Numbers<'w, T> {
        const { assert!(cfg!(target_endian = "little")) };
        let len = count.checked_mul(size_of::<T>()).expect("numbers of this machine's memory");
        self.check(offset, len);
        // SAFETY: inside the view, or its end, by the check.
        let place = unsafe { self.as_ptr().add(offset) }.cast::<T::Atomic>();
        assert!(place.is_aligned(), "aligned numbers");
        // SAFETY: aligned, mapped as long as 'w; all safe accesses are atomic, and every pattern of bits is a number.
        Numbers { all: unsafe { std::slice::from_raw_parts(place.as_ptr(), count) } }
    }

    /// The system reads from `file` into the window, at its own position: `read(2)` into far memory. Where faults are signals
    /// ([`FaultMode::Signal`](super::FaultMode::Signal)) it goes through a buffer, by 64 KiB at most.
    ///
    /// # Errors
    /// The system's error; EFAULT when only faults of user code are served (see `farmem doctor`).
    ///
    /// # Panics
    /// When the bytes leave the window.
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

    /// The system writes to `file` from the window: `write(2)` from far memory; as [`Memory::read_from`].
    ///
    /// # Errors
    /// As [`Memory::read_from`].
    ///
    /// # Panics
    /// When the bytes leave the window.
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

/// Bytes before the first aligned word, at most all.
fn head_len(offset: usize, len: usize) -> usize {
    const { assert!(PAGE_LEN.is_multiple_of(WORD)) };
    (offset.next_multiple_of(WORD) - offset).min(len)
}
