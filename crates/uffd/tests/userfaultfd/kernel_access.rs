//! Facts about the kernel's access to far memory for a program: `read(2)` and similar calls.

use crate::rig::{PAGE, Rig, or_skip};
use farmem_uffd::{Features, Mapping, Reach, Userfaultfd};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::ptr;

/// A system call that touches the page at an address, and its result: 0 or more, or an error.
type Call = fn(usize) -> Result<i64, Errno>;

fn answer(result: impl Into<i64>) -> Result<i64, Errno> {
    match result.into() {
        done @ 0.. => Ok(done),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap()),
    }
}

pub(crate) fn read_into(file: impl AsFd, at: usize) -> Result<i64, Errno> {
    // SAFETY: a page of a test's range, which expects any bytes.
    answer(unsafe { libc::read(file.as_fd().as_raw_fd(), ptr::with_exposed_provenance_mut(at), PAGE) } as i64)
}

fn read(at: usize) -> Result<i64, Errno> {
    read_into(File::open("/dev/zero").unwrap(), at)
}

fn write(at: usize) -> Result<i64, Errno> {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    // SAFETY: a page of a test's range.
    answer(unsafe { libc::write(ours.as_raw_fd(), ptr::with_exposed_provenance(at), PAGE) } as i64)
}

fn receive(at: usize) -> Result<i64, Errno> {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(&[5; PAGE]).unwrap();
    // SAFETY: a page of a test's range, which expects any bytes.
    answer(unsafe { libc::recv(ours.as_raw_fd(), ptr::with_exposed_provenance_mut(at), PAGE, 0) } as i64)
}

fn lock(at: usize) -> Result<i64, Errno> {
    // SAFETY: a page of a test's range.
    let done = answer(unsafe { libc::mlock(ptr::with_exposed_provenance(at), PAGE) });
    // SAFETY: as above.
    unsafe { libc::munlock(ptr::with_exposed_provenance(at), PAGE) };
    done
}

fn populate(at: usize) -> Result<i64, Errno> {
    // SAFETY: a page of a test's range.
    answer(unsafe { libc::madvise(ptr::with_exposed_provenance_mut(at), PAGE, libc::MADV_POPULATE_READ) })
}

fn read_as_another_process(at: usize) -> Result<i64, Errno> {
    let mut page = [0_u8; PAGE];
    let ours = libc::iovec { iov_base: page.as_mut_ptr().cast(), iov_len: PAGE };
    let theirs = libc::iovec { iov_base: ptr::with_exposed_provenance_mut(at), iov_len: PAGE };
    let us = libc::pid_t::try_from(std::process::id()).unwrap();
    // SAFETY: one buffer of ours and a page of a test's range in this same process.
    answer(unsafe { libc::process_vm_readv(us, &raw const ours, 1, &raw const theirs, 1, 0) } as i64)
}

/// Wakes no thread of a shared futex, whose page the kernel must access.
fn wake_nobody(at: usize) -> Result<i64, Errno> {
    // SAFETY: an aligned word of a test's range.
    answer(unsafe { libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAKE, 1, ptr::null::<u8>()) })
}

const CALLS: [(&str, Call, Errno); 7] = [
    ("read", read, Errno::FAULT),
    ("write", write, Errno::FAULT),
    ("recv", receive, Errno::FAULT),
    ("mlock", lock, Errno::NOMEM),
    ("madvise(POPULATE_READ)", populate, Errno::FAULT),
    ("process_vm_readv", read_as_another_process, Errno::FAULT),
    ("futex(WAKE)", wake_nobody, Errno::FAULT),
];

/// With a full userfaultfd a system call waits for the page as the program would, also to write a protected page.
#[test]
fn system_calls_wait_for_pages_with_a_full_userfaultfd() {
    let rig = or_skip!(Rig::open(Features::WINDOW));
    for (page, (name, call, _)) in CALLS.into_iter().enumerate() {
        let at = rig.app.at(page);
        let done = rig.serve(Rig::spawn(move || call(at)), 7);
        assert!(done.is_ok(), "{name}: {done:?}");
    }
    rig.copy(20, 1, Mapping::ReadOnly).unwrap();
    let at = rig.app.at(20);
    assert_eq!(rig.serve(Rig::spawn(move || receive(at)), 7), Ok(4096));
    assert_eq!(rig.own.read(20), 5);
}

/// With a userfaultfd for user code, system calls fail; the page is still missing.
#[test]
fn system_calls_fail_with_a_userfaultfd_for_user_code() {
    let rig = Rig::new(or_skip!(Userfaultfd::open(Reach::UserMode, Features::WINDOW)));
    for (page, (name, call, errno)) in CALLS.into_iter().enumerate() {
        assert_eq!(call(rig.app.at(page)), Err(errno), "{name}");
    }
    let reader = rig.reader(0);
    assert_eq!(rig.serve(reader, 7), 7);
    rig.copy(20, 1, Mapping::ReadOnly).unwrap();
    assert_eq!(read(rig.app.at(20)), Err(Errno::FAULT), "into a protected page");
}

/// With faults as signals, system calls fail, with any privilege.
#[test]
fn system_calls_fail_when_faults_are_signals() {
    let rig = or_skip!(Rig::open(Features::SIGBUS));
    assert_eq!(read(rig.app.at(0)), Err(Errno::FAULT));
}
