//! The reasons for memory of the program to stay local, which the process counts for its pager.

use crate::area;
use farmem_preload_abi::NOT_FAR;
use farmem_preload_abi::call::LocalReason;
use rustix::fd::BorrowedFd;
use rustix::fs::fcntl_get_seals;
use std::ffi::c_int;

/// Counts a mapping of memory that stays local. Mappings of files on a disk do not count. `code` is true for a
/// mapping that is executable and not writable, `far` where far memory was requested.
pub(crate) fn count(len: usize, flags: c_int, fd: c_int, code: bool, far: bool) {
    if is_memory(flags, fd) {
        area::stays_local(len, reason(len, flags, code, far));
    }
}

fn reason(len: usize, flags: c_int, code: bool, far: bool) -> LocalReason {
    if flags & libc::MAP_TYPE != libc::MAP_PRIVATE {
        LocalReason::Shared
    } else if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 {
        LocalReason::Fixed
    } else if code {
        LocalReason::Executable
    } else if flags & NOT_FAR != 0 {
        LocalReason::Kind
    } else if len < area::threshold() {
        LocalReason::Small
    } else if far {
        LocalReason::NoRoom
    } else {
        LocalReason::Address
    }
}

/// Returns true for anonymous memory, and for a shared mapping of a file in memory: only those have seals.
fn is_memory(flags: c_int, fd: c_int) -> bool {
    if flags & libc::MAP_ANONYMOUS != 0 {
        return true;
    }
    if flags & libc::MAP_TYPE == libc::MAP_PRIVATE || fd < 0 {
        return false;
    }
    // SAFETY: the caller of `mmap` passes an open descriptor; the kernel refuses another number.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl_get_seals(file).is_ok()
}
