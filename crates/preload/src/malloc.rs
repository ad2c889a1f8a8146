//! The interposed functions of the `malloc` family. Each call goes to another allocator library that the
//! program uses (`other`), or to the heap in far memory (`heap`).
//!
//! `malloc`, `calloc` and `realloc` pass on their return address, because libc's own small blocks stay with
//! libc.

use crate::heap::{self, aligned, or_no_memory};
use crate::maps::failed;
use crate::other;
use farmem_wire::message::PAGE_LEN;
use libc::size_t;
use rustix::io::Errno;
use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;

/// The type of `malloc`, `valloc` and `pvalloc`.
type OfSize = unsafe extern "C" fn(size_t) -> *mut c_void;
/// The type of `calloc`, `memalign` and `aligned_alloc`.
type OfTwoSizes = unsafe extern "C" fn(size_t, size_t) -> *mut c_void;

/// `malloc(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn malloc(size: size_t) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rsi, [rsp]", "jmp {}", sym malloc_from);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x1, x30", "b {}", sym malloc_from);
}

/// `calloc(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn calloc(count: size_t, size: size_t) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rdx, [rsp]", "jmp {}", sym calloc_from);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x2, x30", "b {}", sym calloc_from);
}

/// `realloc(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn realloc(block: *mut c_void, size: size_t) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rdx, [rsp]", "jmp {}", sym realloc_from);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x2, x30", "b {}", sym realloc_from);
}

/// `free(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn free(block: *mut c_void) {
    if let Some(function) = other::function(&other::FREE) {
        // SAFETY: the other library's function of this name, which has this type.
        let function: unsafe extern "C" fn(*mut c_void) = unsafe { transmute(function) };
        // SAFETY: guaranteed by the caller.
        return unsafe { function(block) };
    }
    // SAFETY: guaranteed by the caller.
    unsafe { heap::free(block) };
}

/// `reallocarray(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn reallocarray(block: *mut c_void, count: size_t, size: size_t) -> *mut c_void {
    if let Some(function) = other::function(&other::REALLOCARRAY) {
        // SAFETY: the other library's function of this name, which has this type.
        let function: unsafe extern "C" fn(*mut c_void, size_t, size_t) -> *mut c_void =
            unsafe { transmute(function) };
        // SAFETY: guaranteed by the caller.
        return unsafe { function(block, count, size) };
    }
    match count.checked_mul(size) {
        // SAFETY: guaranteed by the caller.
        Some(bytes) => unsafe { heap::realloc(block, bytes, 0) },
        None => failed(Errno::NOMEM, ptr::null_mut()),
    }
}

/// `memalign(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memalign(alignment: size_t, size: size_t) -> *mut c_void {
    if let Some(function) = other::function(&other::MEMALIGN) {
        // SAFETY: the other library's function of this name, which has this type.
        let function: OfTwoSizes = unsafe { transmute(function) };
        // SAFETY: guaranteed by the caller.
        return unsafe { function(alignment, size) };
    }
    let Some(alignment) = alignment.checked_next_power_of_two() else {
        return failed(Errno::INVAL, ptr::null_mut());
    };
    or_no_memory(aligned(alignment, size))
}

/// `aligned_alloc(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aligned_alloc(alignment: size_t, size: size_t) -> *mut c_void {
    if let Some(function) = other::function(&other::ALIGNED_ALLOC) {
        // SAFETY: the other library's function of this name, which has this type.
        let function: OfTwoSizes = unsafe { transmute(function) };
        // SAFETY: guaranteed by the caller.
        return unsafe { function(alignment, size) };
    }
    // SAFETY: guaranteed by the caller.
    unsafe { memalign(alignment, size) }
}

/// `posix_memalign(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_memalign(
    block: *mut *mut c_void,
    alignment: size_t,
    size: size_t,
) -> c_int {
    if let Some(function) = other::function(&other::POSIX_MEMALIGN) {
        type Function = unsafe extern "C" fn(*mut *mut c_void, size_t, size_t) -> c_int;
        // SAFETY: the other library's function of this name, which has this type.
        let function: Function = unsafe { transmute(function) };
        // SAFETY: guaranteed by the caller.
        return unsafe { function(block, alignment, size) };
    }
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let found = aligned(alignment, size);
    if found.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { *block = found };
    0
}

/// `valloc(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn valloc(size: size_t) -> *mut c_void {
    if let Some(function) = other::function(&other::VALLOC) {
        // SAFETY: the other library's function of this name, which has this type.
        let function: OfSize = unsafe { transmute(function) };
        // SAFETY: guaranteed by the caller.
        return unsafe { function(size) };
    }
    or_no_memory(aligned(PAGE_LEN, size))
}

/// `pvalloc(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pvalloc(size: size_t) -> *mut c_void {
    if let Some(function) = other::function(&other::PVALLOC) {
        // SAFETY: the other library's function of this name, which has this type.
        let function: OfSize = unsafe { transmute(function) };
        // SAFETY: guaranteed by the caller.
        return unsafe { function(size) };
    }
    let whole = size.checked_next_multiple_of(PAGE_LEN).unwrap_or(usize::MAX);
    or_no_memory(aligned(PAGE_LEN, whole))
}

/// `malloc_usable_size(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> size_t {
    if let Some(function) = other::function(&other::MALLOC_USABLE_SIZE) {
        // SAFETY: the other library's function of this name, which has this type.
        let function: unsafe extern "C" fn(*mut c_void) -> size_t = unsafe { transmute(function) };
        // SAFETY: guaranteed by the caller.
        return unsafe { function(block) };
    }
    if block.is_null() {
        return 0;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { heap::usable(block) }
}

/// Allocates a block for `caller`.
///
/// # Safety
/// The contract of `malloc(3)` applies.
unsafe extern "C" fn malloc_from(size: usize, caller: usize) -> *mut c_void {
    if let Some(function) = other::function(&other::MALLOC) {
        // SAFETY: the other library's function of this name, which has this type.
        let function: OfSize = unsafe { transmute(function) };
        // SAFETY: guaranteed by the caller.
        return unsafe { function(size) };
    }
    // SAFETY: guaranteed by the caller.
    unsafe { heap::malloc(size, caller) }
}

/// Allocates a block of zeros for `caller`.
///
/// # Safety
/// The contract of `calloc(3)` applies.
unsafe extern "C" fn calloc_from(count: usize, size: usize, caller: usize) -> *mut c_void {
    if let Some(function) = other::function(&other::CALLOC) {
        // SAFETY: the other library's function of this name, which has this type.
        let function: OfTwoSizes = unsafe { transmute(function) };
        // SAFETY: guaranteed by the caller.
        return unsafe { function(count, size) };
    }
    // SAFETY: guaranteed by the caller.
    unsafe { heap::calloc(count, size, caller) }
}

/// Resizes a block for `caller`.
///
/// # Safety
/// The contract of `realloc(3)` applies.
unsafe extern "C" fn realloc_from(block: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    if let Some(function) = other::function(&other::REALLOC) {
        // SAFETY: the other library's function of this name, which has this type.
        let function: unsafe extern "C" fn(*mut c_void, size_t) -> *mut c_void =
            unsafe { transmute(function) };
        // SAFETY: guaranteed by the caller.
        return unsafe { function(block, size) };
    }
    // SAFETY: guaranteed by the caller.
    unsafe { heap::realloc(block, size, caller) }
}
