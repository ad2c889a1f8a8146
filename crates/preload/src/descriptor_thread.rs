//! Work that needs descriptors, in a process whose limit of descriptors (RLIMIT_NOFILE) is reached.
//!
//! A helper thread does the work. It shares everything with the process except the descriptor table: it gets a
//! copy of the table and closes the descriptors in the copy. The descriptors of the process stay open. The
//! caller waits until the thread has ended, as after `vfork`, so no other code of the caller runs meanwhile.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::{c_int, c_void};
use std::ptr;

/// Size of the helper thread's stack in bytes.
const STACK_LEN: usize = 256 << 10;
/// Number of descriptors that are closed one by one where `close_range` is missing: more than the work needs.
const CLOSED_MAX: c_int = 8;

struct Work<'a> {
    what: &'a mut dyn FnMut() -> Result<(), Errno>,
    result: Result<(), Errno>,
}

/// Runs `what` with a private descriptor table. The calling thread's signals are blocked, and it waits for the
/// result.
///
/// # Errors
/// The error of `what`; MFILE when the kernel cannot create such a thread.
pub(crate) fn with_own_descriptors(what: &mut dyn FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    const FLAGS: c_int =
        libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_FS;
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which replaces nothing.
    let stack = unsafe { mmap_anonymous(ptr::null_mut(), STACK_LEN, rights, MapFlags::PRIVATE) }?;
    let mut work = Work { what, result: Err(Errno::MFILE) };
    // SAFETY: the pointer is to the end of the mapping.
    let top = unsafe { stack.add(STACK_LEN) };
    // SAFETY: the stack and the work exist until the thread has ended, because this call waits for it. The
    // thread uses this thread's control block of libc, as a child of `vfork` does; no other thread uses it
    // meanwhile.
    let _made = unsafe { libc::clone(work_apart, top, FLAGS, (&raw mut work).cast()) };
    let result = work.result;
    // SAFETY: the mapping from above; no thread runs on it any more.
    let _ = unsafe { munmap(stack, STACK_LEN) };
    result
}

extern "C" fn work_apart(work: *mut c_void) -> c_int {
    // SAFETY: `with_own_descriptors` waits, and does not use the work meanwhile.
    let work = unsafe { &mut *work.cast::<Work<'_>>() };
    // SAFETY: the table is private to this thread, and no code relies on a descriptor in it.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 0, c_int::MAX, 0) };
    if closed != 0 {
        for number in 0..CLOSED_MAX {
            // SAFETY: see above.
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

    /// The work sees an empty descriptor table; the descriptors of the process are open afterwards.
    #[test]
    fn the_table_is_its_own() {
        let (reader, writer) = pipe().unwrap();
        let mut lowest = -1;
        let done = with_own_descriptors(&mut || {
            // SAFETY: the call creates a new descriptor.
            lowest = unsafe { libc::memfd_create(c"apart".as_ptr(), 0) };
            Err(Errno::XDEV)
        });
        assert_eq!((done, lowest), (Err(Errno::XDEV), 0));
        for fd in [reader.as_raw_fd(), writer.as_raw_fd()] {
            // SAFETY: the call only queries a descriptor.
            assert!(unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0);
        }
    }
}
