//! Memory in huge pages, prefetch hints, and the clock.

use std::io;
use std::ptr::{self, NonNull};
use std::time::Duration;

const HUGE: usize = 2 << 20;
pub(super) const LINE: usize = 64;

/// Memory to measure in: zero at first, in huge pages where the system has them. Without them a core's own table of translations
/// covers a few megabytes, and every line costs a walk through the system's tables as well.
#[derive(Debug)]
pub struct Table {
    whole: NonNull<u8>,
    whole_len: usize,
    start: NonNull<u64>,
    words: usize,
}

impl Table {
    /// A table of `len` bytes, at least one structure's worth: 16 KiB.
    ///
    /// # Errors
    /// When the system has no memory for it.
    ///
    /// # Panics
    /// When `len` is not a power of two, or less than 16 KiB.
    pub fn new(len: usize) -> io::Result<Self> {
        assert!(len.is_power_of_two() && len >= 1 << 14, "a table has 2^14, 2^15 ... bytes, not {len}");
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
        // Before the first byte is touched, or it would come in small pages.
        // SAFETY: the range lies inside the mapping. A kernel without huge pages refuses; `huge_share` says what came of it.
        let _advice = unsafe { libc::madvise(start.as_ptr().cast(), whole_len - HUGE, libc::MADV_HUGEPAGE) };
        Ok(Self { whole, whole_len, start: start.cast(), words: len / 8 })
    }

    /// The share of this process's memory that lies in huge pages, by what the kernel says; 0 where it says nothing.
    #[must_use]
    pub fn huge_share(&self) -> f64 {
        let says = |field| kernel_says("/proc/self/smaps_rollup", field).unwrap_or(0) as f64;
        says("AnonHugePages:") / says("Anonymous:").max(1.0)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let words = self.words();
        // SAFETY: the bytes of words that are borrowed.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
    }

    pub(super) fn words(&self) -> &[u64] {
        // SAFETY: mapped as long as `self`, aligned, zeroed by the kernel.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    pub(super) fn words_mut(&mut self) -> &mut [u64] {
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
pub(super) const T0: u8 = 0;
pub(super) const T2: u8 = 2;
pub(super) const NTA: u8 = 3;

#[inline(always)]
pub(super) fn prefetch<const HINT: u8>(at: *const u64) {
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

/// CPU time of this thread: what others of this machine take does not count.
///
/// # Panics
/// On a system without this clock, which Linux is not.
#[must_use]
pub fn cpu_time() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec of our own.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    assert_eq!(result, 0, "Linux has this clock");
    Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).expect("less than a second"))
}

/// A line of a file that is written like /proc/meminfo, in bytes.
fn kernel_says(file: &str, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}
