//! Files opened with O_DIRECT: a device would write to pages of the program while the pager takes them away, and what it wrote would be lost without
//! a word. So a process that has far memory opens files without it. The bytes are the same; they go by way of the system's cache.
//!
//! What stays: descriptors that came with it from elsewhere, and buffers that were registered with a device (docs/run.md).

use crate::area;
use crate::maps::{failed, of_syscall};
use libc::mode_t;
use std::ffi::{c_char, c_int, c_long};

unsafe extern "C" {
    fn __open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
}

/// `open(2)`. The last argument is there when the flags say so.
///
/// # Safety
/// As the system's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { __open(path, allowed(flags), mode) }
}

/// `open64(2)`, which is the same.
///
/// # Safety
/// As the system's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open(path, flags, mode) }
}

/// `open(2)` of programs that have its arguments checked, without a mode.
///
/// # Safety
/// As the system's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open(path, flags, 0) }
}

/// `open64(2)` of such programs.
///
/// # Safety
/// As the system's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open(path, flags, 0) }
}

/// `openat(2)`. The last argument is there when the flags say so.
///
/// # Safety
/// As the system's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn openat(fd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise; libc's `syscall` is none that this library stands before.
    let result = unsafe { libc::syscall(libc::SYS_openat, fd, path, allowed(flags), mode) };
    match of_syscall(result) {
        Ok(opened) => c_int::try_from(opened).expect("a descriptor"),
        Err(errno) => failed(errno, -1),
    }
}

/// `openat64(2)`, which is the same.
///
/// # Safety
/// As the system's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn openat64(
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { openat(fd, path, flags, mode) }
}

/// `openat(2)` of programs that have its arguments checked, without a mode.
///
/// # Safety
/// As the system's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __openat_2(fd: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { openat(fd, path, flags, 0) }
}

/// `openat64(2)` of such programs.
///
/// # Safety
/// As the system's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __openat64_2(fd: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { openat(fd, path, flags, 0) }
}

/// `fcntl(2)`. The last argument is there when the command says so.
///
/// # Safety
/// As the system's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let argument = match c_int::try_from(argument) {
        Ok(flags) if command == libc::F_SETFL => c_long::from(allowed(flags)),
        _ => argument,
    };
    // SAFETY: the caller's promise.
    unsafe { __fcntl(fd, command, argument) }
}

/// `fcntl64(2)`, which is the same.
///
/// # Safety
/// As the system's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { fcntl(fd, command, argument) }
}

/// A file's flags as this process may have them.
fn allowed(flags: c_int) -> c_int {
    if flags & libc::O_DIRECT != 0 && area::is_ready() { flags & !libc::O_DIRECT } else { flags }
}
