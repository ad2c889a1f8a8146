//! Limits on the memory that the C library's allocator keeps after a program has freed it.
//!
//! Key calls: [`give_back_large`], [`give_back_free`]. By itself glibc gives a large block back to the system when it is freed, and then takes the next one of that length from its heap, up to 32 MiB, and keeps as much as
//! twice that free at the heap's end (`M_MMAP_THRESHOLD` is dynamic). That is fast, and no way to hold resident memory to a limit. It does not touch other allocators, nor what C libraries of
//! other names do.

/// Bytes from which on a freed block goes back to the system: what glibc begins with.
#[cfg(target_env = "gnu")]
const LARGE: core::ffi::c_int = 128 << 10;

/// Has this process give large blocks back to the system when they are freed, for good; false where the allocator cannot be told.
pub fn give_back_large() -> bool {
    #[cfg(target_env = "gnu")]
    {
        [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD].into_iter().all(|parameter| {
            // SAFETY: glibc takes any number for these parameters, under its own lock; blocks that are in use are freed the way they came.
            let is_taken = unsafe { libc::mallopt(parameter, LARGE) };
            is_taken == 1
        })
    }
    #[cfg(not(target_env = "gnu"))]
    {
        false
    }
}

/// Gives the free pages of the heap back to the system, also those between blocks in use. Returns false if the allocator has no such call. The
/// time that the call takes grows with the bytes that were freed.
pub fn give_back_free() -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: glibc looks through its own lists, under its own locks, and touches no block that is in use.
        unsafe { libc::malloc_trim(0) };
        true
    }
    #[cfg(not(target_env = "gnu"))]
    {
        false
    }
}
