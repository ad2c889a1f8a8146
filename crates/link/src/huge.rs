//! Anonymous memory in huge pages where the system provides them, and prefetches of its cache lines.
//!
//! Key type: [`HugeMemory`]: zero bytes, aligned to 2 MiB. The type owns the mapping; its owner is
//! responsible for content and access.

use procfs_core::FromRead as _;
use procfs_core::process::{MemoryMap, MemoryMaps};
use std::io;
use std::ptr::{self, NonNull};

/// Length of a huge page in bytes; the memory is aligned to it.
pub const HUGE: usize = 2 << 20;

/// The size of pages that is requested from the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageSize {
    /// Huge pages; small pages if the kernel has none.
    Huge,
    /// Small pages, for comparisons.
    Small,
}

/// A mapping of zero bytes, unmapped by its drop. The system allocates memory at the first access.
#[derive(Debug)]
pub struct HugeMemory {
    /// The mapping as mmap returned it, with slack for alignment.
    whole: NonNull<u8>,
    whole_len: usize,
    start: NonNull<u8>,
}

// SAFETY: only an address and a length; code that accesses the bytes has its own safety argument.
unsafe impl Send for HugeMemory {}
// SAFETY: as above.
unsafe impl Sync for HugeMemory {}

impl HugeMemory {
    /// Maps at least `len` zero bytes.
    ///
    /// # Errors
    /// The system's error if it has too little address space.
    pub fn new(len: usize, pages: PageSize) -> io::Result<Self> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let whole_len =
            len.checked_next_multiple_of(HUGE).and_then(|n| n.checked_add(HUGE)).ok_or_else(too_large)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let whole = unsafe { libc::mmap(ptr::null_mut(), whole_len, protection, flags, -1, 0) };
        if whole == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let whole = NonNull::new(whole.cast::<u8>()).ok_or_else(too_large)?;
        let slack = whole.as_ptr().align_offset(HUGE);
        // SAFETY: the slack is less than HUGE, by which the mapping is longer than its rounded length.
        let start = unsafe { whole.add(slack) };
        let memory = Self { whole, whole_len, start };
        let advice = match pages {
            PageSize::Huge => libc::MADV_HUGEPAGE,
            PageSize::Small => libc::MADV_NOHUGEPAGE,
        };
        // The advice must precede the first access, because small pages stay small. A kernel without huge
        // pages refuses the advice, and small pages work too.
        // SAFETY: whole pages of the mapping.
        let _small_pages_serve_too = unsafe { libc::madvise(start.as_ptr().cast(), memory.bytes(), advice) };
        Ok(memory)
    }

    /// Returns a pointer to the first byte.
    #[inline]
    #[must_use]
    pub const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the length in bytes, in whole huge pages.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.whole_len - HUGE
    }

    /// Returns the number of bytes in huge pages, in the kernel's mapping that contains the first byte;
    /// `None` if unknown.
    #[must_use]
    pub fn huge_bytes(&self) -> Option<u64> {
        let mappings = MemoryMaps::from_file("/proc/self/smaps").ok()?;
        let first = self.start.as_ptr().addr() as u64;
        let holds = |mapping: &&MemoryMap| (mapping.address.0..mapping.address.1).contains(&first);
        mappings.iter().find(holds)?.extension.map.get("AnonHugePages").copied()
    }
}

impl Drop for HugeMemory {
    fn drop(&mut self) {
        // SAFETY: the range is the one that mmap returned, and no reference into it is left, because the last
        // owner is being dropped.
        let result = unsafe { libc::munmap(self.whole.as_ptr().cast(), self.whole_len) };
        assert_eq!(result, 0, "a mapping of our own is unmapped");
    }
}

/// Prefetches the cache line at `line`, which may be any address, because a hint may be wrong.
#[inline]
pub fn prefetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction changes nothing but the caches and never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{line}]", line = in(reg) line, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}

/// Prefetches a line as [`prefetch`] does, for a write: the line arrives in exclusive state, in one step
/// instead of two.
#[inline]
pub fn prefetch_to_write(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction changes only the caches and never faults, whatever the address; processors
    // without it ignore it.
    unsafe {
        std::arch::asm!("prefetchw [{line}]", line = in(reg) line, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{line}]", line = in(reg) line, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}
