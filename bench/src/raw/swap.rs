//! Pages of plain memory that the kernel swaps out: the baseline for far memory on the same machine.

use farmem_link::OpenError;
use farmem_wire::message::PAGE_LEN;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::time::Duration;

/// Private memory whose pages can be swapped out and in.
#[derive(Debug)]
pub struct Swapped {
    start: NonNull<u8>,
    pages: usize,
}

impl Swapped {
    /// Allocates `pages` pages with distinct content. Half of the words are pseudo-random and half are zero, so the
    /// pages compress to about half.
    ///
    /// # Errors
    /// [`OpenError::System`] if there is no memory.
    ///
    /// # Panics
    /// Panics if `pages` is 0.
    pub fn open(pages: usize) -> Result<Self, OpenError> {
        assert!(pages > 0, "some pages");
        let (read_write, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), pages * PAGE_LEN, read_write, private) };
        let start = start.map_err(|e| OpenError::System { doing: "map pages".into(), source: e.into() })?;
        let start = NonNull::new(start.cast::<u8>()).expect("mmap gives no null");
        let swapped = Self { start, pages };
        // SAFETY: the mapping made above; the advice changes no bytes, and a refusal only allows huge pages.
        let _ = unsafe { madvise(swapped.start.as_ptr().cast(), pages * PAGE_LEN, Advice::LinuxNoHugepage) };
        for page in 0..pages {
            for at in (0..PAGE_LEN).step_by(size_of::<u64>()) {
                let by_chance = ((page * PAGE_LEN + at) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let word = if at % 16 == 0 { by_chance.rotate_left(32) } else { 0 };
                let to = swapped.at(page).cast::<u64>().wrapping_byte_add(at);
                // SAFETY: an aligned word of the mapping, which no other code has.
                unsafe { to.write_volatile(word) };
            }
        }
        Ok(swapped)
    }

    /// Asks the kernel to swap all pages out, as far as there is swap space.
    ///
    /// # Errors
    /// The system's error if it does not know this advice.
    pub fn put_out(&mut self) -> io::Result<()> {
        // SAFETY: the whole mapping; the advice changes no bytes.
        unsafe { madvise(self.start.as_ptr().cast(), self.pages * PAGE_LEN, Advice::LinuxPageOut) }
            .map_err(Into::into)
    }

    /// Returns a byte of a page, which is swapped in if necessary.
    ///
    /// # Panics
    /// Panics if there is no such page.
    #[must_use]
    pub fn read(&self, page: usize) -> u8 {
        // SAFETY: a byte of the mapping.
        unsafe { self.at(page).read_volatile() }
    }

    fn at(&self, page: usize) -> *mut u8 {
        assert!(page < self.pages, "a page of these");
        self.start.as_ptr().wrapping_add(page * PAGE_LEN)
    }
}

impl Drop for Swapped {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping of `open`, and its one owner goes.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.pages * PAGE_LEN) };
    }
}

/// Faults of this thread so far whose pages were neither in memory nor on their way: each waited for swap, or for a file.
#[must_use]
pub fn major_faults() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the system writes one rusage, for which there is room.
    let done = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    assert_eq!(done, 0, "a thread may always ask for its own usage");
    // SAFETY: written by the call, which did not fail.
    let usage = unsafe { usage.assume_init() };
    u64::try_from(usage.ru_majflt).expect("a count")
}

/// Returns the CPU time of this process's children that have ended and were waited for, and of their children.
#[must_use]
pub fn cpu_time_of_children() -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the system writes one rusage, for which there is room.
    let done = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    assert_eq!(done, 0, "a process may always ask for its children's usage");
    // SAFETY: written by the call, which did not fail.
    let usage = unsafe { usage.assume_init() };
    let span = |time: libc::timeval| {
        let (seconds, micros) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec));
        Duration::from_secs(seconds.expect("a time")) + Duration::from_micros(micros.expect("a time"))
    };
    span(usage.ru_utime) + span(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether or not there is swap, pages keep their bytes.
    #[test]
    fn pages_keep_their_bytes() {
        let mut pages = Swapped::open(16).unwrap();
        let before: Vec<u8> = (0..16).map(|page| pages.read(page)).collect();
        assert!(before.iter().any(|&byte| byte != before[0]), "each page has its own: {before:?}");
        pages.put_out().unwrap();
        assert_eq!((0..16).map(|page| pages.read(page)).collect::<Vec<u8>>(), before);
    }
}
