//! Limits on the memory that the C library's allocator keeps after a program has freed it.
//!
//! Key calls: [`return_large_blocks`], [`return_free_blocks`]. By default glibc returns a large block to the system
//! when it is freed. From then on glibc allocates blocks of that length, up to 32 MiB, on its heap
//! (`M_MMAP_THRESHOLD` is dynamic). The heap keeps twice as much free memory. This policy is fast, but
//! prevents a limit of resident memory. The calls here affect only this allocator.

/// Length in bytes from which freed blocks return to the system: glibc's initial value.
#[cfg(target_env = "gnu")]
const LARGE: core::ffi::c_int = 128 << 10;

/// Makes the allocator return large blocks to the system when they are freed, from now on. Returns false if
/// the allocator does not support this.
pub fn return_large_blocks() -> bool {
    #[cfg(target_env = "gnu")]
    {
        [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD].into_iter().all(|parameter| {
            // SAFETY: glibc accepts any number for these parameters, under its own lock. Existing blocks are
            // freed by the method of their allocation.
            let is_taken = unsafe { libc::mallopt(parameter, LARGE) };
            is_taken == 1
        })
    }
    #[cfg(not(target_env = "gnu"))]
    {
        false
    }
}

/// Returns the free pages of the heap to the system, including those between used blocks. Returns false if
/// the allocator has no such call. The duration of the call grows with the number of freed bytes.
pub fn return_free_blocks() -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: glibc searches its own lists, under its own locks, and does not access used blocks.
        unsafe { libc::malloc_trim(0) };
        true
    }
    #[cfg(not(target_env = "gnu"))]
    {
        false
    }
}
