//! Files opened with O_DIRECT. A device would write to the program's pages while the pager removes them, and
//! the written bytes would be lost silently. So a process with far memory opens files without the flag. The
//! bytes are the same; they pass through the page cache.
//!
//! Two cases are not covered: descriptors from elsewhere, and buffers that were registered with a device
//! (docs/run.md).

use crate::area;
use crate::maps::{failed, of_syscall};
use libc::mode_t;
use std::ffi::{c_char, c_int, c_long};

unsafe extern "C" {
    fn __open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
}

/// `open(2)`. The last argument is present only when the flags require it.
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { __open(path, allowed(flags), mode) }
}

/// `open64(2)`, an alias of `open(2)`.
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { open(path, flags, mode) }
}

/// `open(2)` without a mode, for programs compiled with fortified sources.
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { open(path, flags, 0) }
}

/// `open64(2)` without a mode, for programs compiled with fortified sources.
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { open(path, flags, 0) }
}

/// `openat(2)`. The last argument is present only when the flags require it.
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn openat(fd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: guaranteed by the caller; this library does not interpose libc's `syscall`.
    let result = unsafe { libc::syscall(libc::SYS_openat, fd, path, allowed(flags), mode) };
    match of_syscall(result) {
        Ok(opened) => c_int::try_from(opened).expect("a descriptor"),
        Err(errno) => failed(errno, -1),
    }
}

/// `openat64(2)`, an alias of `openat(2)`.
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn openat64(
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { openat(fd, path, flags, mode) }
}

/// `openat(2)` without a mode, for programs compiled with fortified sources.
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __openat_2(fd: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { openat(fd, path, flags, 0) }
}

/// `openat64(2)` without a mode, for programs compiled with fortified sources.
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __openat64_2(fd: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { openat(fd, path, flags, 0) }
}

/// `fcntl(2)`. The last argument is present only when the command requires it.
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let argument = match c_int::try_from(argument) {
        Ok(flags) if command == libc::F_SETFL => c_long::from(allowed(flags)),
        _ => argument,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { __fcntl(fd, command, argument) }
}

/// `fcntl64(2)`, an alias of `fcntl(2)`.
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { fcntl(fd, command, argument) }
}

/// Returns the flags without O_DIRECT when this process has far memory.
fn allowed(flags: c_int) -> c_int {
    if flags & libc::O_DIRECT != 0 && area::is_ready() { flags & !libc::O_DIRECT } else { flags }
}
