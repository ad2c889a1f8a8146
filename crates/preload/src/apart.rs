//! Work that needs descriptors, for a process that has no number left for one (RLIMIT_NOFILE).
//!
//! A thread does it that shares everything with its process but the table of descriptors: it has a copy, and closes what is in that. What the
//! process has open stays as it is. The caller waits until the thread has ended, as after `vfork`, so no other code runs beside it.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::{c_int, c_void};
use std::ptr;

/// Bytes of the thread's stack.
const STACK_LEN: usize = 256 << 10;
/// Numbers that are closed one by one where the system cannot close all: more than the work needs.
const CLOSED_MAX: c_int = 8;

struct Work<'a> {
    what: &'a mut dyn FnMut() -> Result<(), Errno>,
    result: Result<(), Errno>,
}

/// Does `what` with a table of descriptors of its own. The calling thread's signals are blocked, and it runs alone.
///
/// # Errors
/// What `what` says; MFILE when the system makes no such thread.
pub(crate) fn with_own_descriptors(what: &mut dyn FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    const FLAGS: c_int =
        libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_FS;
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which replaces nothing.
    let stack = unsafe { mmap_anonymous(ptr::null_mut(), STACK_LEN, rights, MapFlags::PRIVATE) }?;
    let mut work = Work { what, result: Err(Errno::MFILE) };
    // SAFETY: the end of the mapping.
    let top = unsafe { stack.add(STACK_LEN) };
    // SAFETY: the stack and the work are there until the thread has ended, which this call waits for. It has this thread's record of libc's, as a
    // child of `vfork` has, which no other thread uses meanwhile.
    let _made = unsafe { libc::clone(work_apart, top, FLAGS, (&raw mut work).cast()) };
    let result = work.result;
    // SAFETY: the mapping of above, on which nothing runs any more.
    let _ = unsafe { munmap(stack, STACK_LEN) };
    result
}

extern "C" fn work_apart(work: *mut c_void) -> c_int {
    // SAFETY: `with_own_descriptors` waits, and does not use it meanwhile.
    let work = unsafe { &mut *work.cast::<Work<'_>>() };
    // SAFETY: a table of this thread's own, in which nothing relies on any number.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 0, c_int::MAX, 0) };
    if closed != 0 {
        for number in 0..CLOSED_MAX {
            // SAFETY: as above.
            let _ = unsafe { libc::close(number) };
        }
    }
    work.result = (work.what)();
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::pipe;
    use std::os::fd::AsRawFd as _;

    /// The work has all numbers from 0 on; what the process has open is open afterwards.
    #[test]
    fn the_table_is_its_own() {
        let (reader, writer) = pipe().unwrap();
        let mut lowest = -1;
        let done = with_own_descriptors(&mut || {
            // SAFETY: a new descriptor.
            lowest = unsafe { libc::memfd_create(c"apart".as_ptr(), 0) };
            Err(Errno::XDEV)
        });
        assert_eq!((done, lowest), (Err(Errno::XDEV), 0));
        for fd in [reader.as_raw_fd(), writer.as_raw_fd()] {
            // SAFETY: asks about a number.
            assert!(unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0);
        }
    }
}
