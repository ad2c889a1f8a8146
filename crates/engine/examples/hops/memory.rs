//! Huge pages, prefetch hints, ways to give a window, and the clock.

use farmem_engine::Memory;
use std::io;
use std::ptr::{self, NonNull};
use std::time::Duration;

const HUGE: usize = 2 << 20;
pub(crate) const LINE: usize = 64;

/// Words in huge pages, zero at first.
pub(crate) struct Table {
    whole: NonNull<u8>,
    whole_len: usize,
    start: NonNull<u64>,
    words: usize,
}

impl Table {
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let whole_len = len.next_multiple_of(HUGE) + HUGE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let whole = unsafe { libc::mmap(ptr::null_mut(), whole_len, protection, flags, -1, 0) };
        if whole == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let whole = NonNull::new(whole.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let slack = whole.as_ptr().align_offset(HUGE);
        // SAFETY: the slack is less than HUGE, by which the mapping is longer than the table.
        let start = unsafe { whole.add(slack) };
        // SAFETY: the range lies inside the mapping. A kernel without huge pages refuses; the report says how many there are.
        let _advice = unsafe { libc::madvise(start.as_ptr().cast(), whole_len - HUGE, libc::MADV_HUGEPAGE) };
        Ok(Self { whole, whole_len, start: start.cast(), words: len / 8 })
    }

    pub(crate) fn words(&self) -> &[u64] {
        // SAFETY: mapped as long as `self`, aligned, zeroed by the kernel.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as above, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: what mmap gave; nobody borrows from it any more.
        let result = unsafe { libc::munmap(self.whole.as_ptr().cast(), self.whole_len) };
        assert_eq!(result, 0, "a mapping of our own is unmapped");
    }
}

/// Prefetch hints: to all caches, to all but the nearest, past them.
pub(crate) const T0: u8 = 0;
pub(crate) const T2: u8 = 2;
pub(crate) const NTA: u8 = 3;

#[inline(always)]
pub(crate) fn prefetch<const HINT: u8>(at: *const u64) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_NTA, _MM_HINT_T0, _MM_HINT_T2, _mm_prefetch};
        match HINT {
            // SAFETY: a prefetch reads nothing, wherever it points.
            T0 => unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) },
            // SAFETY: as above.
            T2 => unsafe { _mm_prefetch::<_MM_HINT_T2>(at.cast()) },
            // SAFETY: as above.
            _ => unsafe { _mm_prefetch::<_MM_HINT_NTA>(at.cast()) },
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _no_hint_here = at;
}

/// The table as a memory, with a hint of choice.
pub(crate) struct Hinted<'t, const HINT: u8>(pub(crate) &'t Table);

impl<const HINT: u8> Memory for Hinted<'_, HINT> {
    #[inline(always)]
    fn window(&self, offset: u64, len: usize) -> &[u8] {
        let words = &self.0.words()[offset as usize / 8..][..len / 8];
        // SAFETY: the bytes of words that are borrowed.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
    }

    #[inline(always)]
    fn prefetch(&self, window: &[u8]) {
        for line in (0..window.len()).step_by(LINE) {
            prefetch::<HINT>(window.as_ptr().wrapping_add(line).cast());
        }
    }
}

/// The table as a memory, asked for as the engine does it.
impl Memory for &Table {
    #[inline(always)]
    fn window(&self, offset: u64, len: usize) -> &[u8] {
        let words = &self.words()[offset as usize / 8..][..len / 8];
        // SAFETY: the bytes of words that are borrowed.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
    }
}

/// CPU time of this thread: what others of this machine take does not count.
pub(crate) fn cpu_time() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec of our own.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    assert_eq!(result, 0, "Linux has this clock");
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// A line of /proc/meminfo or /proc/self/smaps_rollup, in bytes.
pub(crate) fn kernel_says(file: &str, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}
