//! Facts about another process that serves the faults, with only the userfaultfd and the memfd of the program.

use crate::rig::{Ended, PAGE, Rig, alone, fork, or_skip};
use farmem_uffd::{Cause, Features, Mapping};
use rustix::mm::Advice;

/// The process with the descriptors fills, maps, protects and removes pages of the faulting process.
#[test]
fn another_process_serves_all_faults() {
    let _alone = alone();
    let rig = or_skip!(Rig::open(Features::WINDOW));
    rig.copy(1, 3, Mapping::Writable).unwrap();
    rig.copy(2, 3, Mapping::Writable).unwrap();
    assert_eq!((rig.app.read(1), rig.app.read(2)), (3, 3));
    // The child inherits both descriptors, as it would receive them over a socket; the addresses are the parent's.
    let child = fork(|| {
        let fault = rig.fault();
        assert_eq!((fault.cause, fault.addr), (Cause::Missing, rig.app.at(0)));
        rig.own.write(0, 7);
        rig.map(0, Mapping::Writable).unwrap();
        rig.protect(1, Mapping::ReadOnly);
        rig.punch(2);
        0
    });
    assert_eq!(rig.reader(0).join().unwrap(), 7);
    assert_eq!(child.wait(), Ended::Exit(0));

    let writer = rig.writer(1, 4);
    assert_eq!(rig.fault().cause, Cause::WriteProtected, "protected by the other process");
    rig.protect(1, Mapping::Writable);
    writer.join().unwrap();
    let reader = rig.reader(2);
    assert_eq!(rig.fault().cause, Cause::Missing, "taken away by the other process");
    rig.copy(2, 5, Mapping::Writable).unwrap();
    assert_eq!(reader.join().unwrap(), 5);
}

/// Another process cannot unmap a page of this one by advice: it must punch the file.
#[test]
fn another_process_cannot_unmap_by_advice() {
    let _alone = alone();
    let rig = or_skip!(Rig::open(Features::WINDOW));
    rig.copy(0, 7, Mapping::Writable).unwrap();
    let (at, parent) = (rig.app.at(0), std::process::id());
    let child = fork(|| {
        // SAFETY: opens a descriptor; touches no memory.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, parent, 0) };
        assert!(pidfd >= 0);
        let page = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(at), iov_len: PAGE };
        let advice = Advice::LinuxDontNeed as i32;
        // SAFETY: advice on a page of the parent, which expects it.
        let done = unsafe { libc::syscall(libc::SYS_process_madvise, pidfd, &raw const page, 1, advice, 0) };
        assert_eq!(done, -1);
        std::io::Error::last_os_error().raw_os_error().unwrap()
    });
    assert_eq!(child.wait(), Ended::Exit(libc::EINVAL));
    assert_eq!(rig.app.read(0), 7);
}
