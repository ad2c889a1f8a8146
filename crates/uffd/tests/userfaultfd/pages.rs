//! Facts about the faults of one process, and their resolution.

use crate::rig::{Ended, PAGE, Range, Rig, alone, exit_with_code_of_sigbus, fork, load, or_skip};
use farmem_uffd::{Cause, Faulting, Features, Mapping, Message, Reach, Userfaultfd};
use rustix::io::Errno;

const NONE: Features = Features::WINDOW;

/// Missing, minor and write-protect faults report their kind, whether they write, the thread, and the exact address.
#[test]
fn a_fault_reports_its_kind() {
    let rig = or_skip!(Rig::open(NONE));
    let at = rig.app.at(0) + 123;
    let reader = Rig::spawn(move || (load(at), rustix::thread::gettid()));
    let fault = rig.fault();
    assert_eq!((fault.cause, fault.write, fault.addr), (Cause::Missing, false, at));
    rig.copy(0, 7, Mapping::ReadOnly).unwrap();
    let (value, thread) = reader.join().unwrap();
    assert_eq!((value, i64::from(fault.thread)), (7, i64::from(thread.as_raw_nonzero().get())));

    let writer = rig.writer(1, 9);
    let fault = rig.fault();
    assert_eq!((fault.cause, fault.write), (Cause::Missing, true));
    rig.copy(1, 7, Mapping::Writable).unwrap();
    writer.join().unwrap();

    for (page, write) in [(2, false), (3, true)] {
        rig.own.write(page, 5);
        let at = rig.app.at(page);
        let toucher = if write { rig.writer(page, 6) } else { Rig::spawn(move || assert_eq!(load(at), 5)) };
        let fault = rig.fault();
        assert_eq!((fault.cause, fault.write), (Cause::Minor, write));
        rig.map(page, Mapping::Writable).unwrap();
        toucher.join().unwrap();
    }

    let writer = rig.writer(0, 8);
    let fault = rig.fault();
    assert_eq!((fault.cause, fault.write), (Cause::WriteProtected, true));
    rig.protect(0, Mapping::Writable);
    writer.join().unwrap();
    assert_eq!(rig.own.read(0), 8);
}

/// A page can be installed read-only in one step: at no moment is it writable.
#[test]
fn a_page_is_installed_read_only_in_one_step() {
    let rig = or_skip!(Rig::open(NONE));
    rig.copy(0, 7, Mapping::ReadOnly).unwrap();
    rig.own.write(1, 7);
    rig.map(1, Mapping::ReadOnly).unwrap();
    for page in [0, 1] {
        assert_eq!(rig.app.read(page), 7);
        let writer = rig.writer(page, 8);
        assert_eq!(rig.fault().cause, Cause::WriteProtected);
        rig.protect(page, Mapping::Writable);
        writer.join().unwrap();
    }
}

/// Write protection is not a permanent property of a page: the server must set it again when it maps the page again.
#[test]
fn a_remapped_page_has_its_new_protection() {
    let rig = or_skip!(Rig::open(NONE));
    for page in [0, 1] {
        rig.copy(page, 7, Mapping::ReadOnly).unwrap();
        rig.protect(page, Mapping::ReadOnly);
    }
    rig.unmap(0);
    rig.map(0, Mapping::Writable).unwrap();
    rig.punch(1);
    rig.copy(1, 7, Mapping::Writable).unwrap();
    for page in [0, 1] {
        rig.app.write(page, 8); // on this thread: a fault would never be served
        assert_eq!(rig.own.read(page), 8);
    }
}

/// A protected page loses its mapping: the next write is a minor fault, not a write-protect fault.
#[test]
fn a_protected_page_that_is_unmapped_faults_as_minor() {
    let rig = or_skip!(Rig::open(NONE));
    rig.copy(0, 7, Mapping::ReadOnly).unwrap();
    rig.unmap(0);
    let writer = rig.writer(0, 8);
    let fault = rig.fault();
    assert_eq!((fault.cause, fault.write), (Cause::Minor, true));
    rig.map(0, Mapping::Writable).unwrap();
    writer.join().unwrap();
    assert_eq!(rig.own.read(0), 8);
}

/// A protected page loses its memory: the next write is a missing fault.
#[test]
fn a_protected_page_that_is_punched_faults_as_missing() {
    let rig = or_skip!(Rig::open(NONE));
    rig.copy(0, 7, Mapping::ReadOnly).unwrap();
    rig.punch(0);
    let writer = rig.writer(0, 8);
    let fault = rig.fault();
    assert_eq!((fault.cause, fault.write), (Cause::Missing, true));
    rig.copy(0, 1, Mapping::Writable).unwrap();
    writer.join().unwrap();
    assert_eq!(rig.own.read(0), 8);
}

/// Protection of an untouched anonymous page holds only with WP_UNPOPULATED.
#[test]
fn an_untouched_anonymous_page_is_protected_only_with_the_feature() {
    let range = Range::anonymous();
    let uffd = or_skip!(Userfaultfd::open(Reach::Full, NONE));
    // SAFETY: a range of ours, that this test serves.
    unsafe { uffd.register(range.start, range.len(), Faulting::WRITE_PROTECTED) }.unwrap();
    // SAFETY: as above.
    unsafe { uffd.protect(range.at(0), PAGE, Mapping::ReadOnly) }.unwrap();
    let at = range.at(0);
    let writer = Rig::spawn(move || crate::rig::store(at, 8));
    let Message::Fault(fault) = crate::rig::next(&uffd) else { panic!("a fault") };
    assert_eq!(fault.cause, Cause::WriteProtected);
    // SAFETY: as above.
    unsafe { uffd.protect(range.at(0), PAGE, Mapping::Writable) }.unwrap();
    writer.join().unwrap();
    drop((uffd, range));

    let range = Range::anonymous();
    let uffd = Userfaultfd::open(Reach::Full, Features::MOVE).unwrap();
    // SAFETY: a range of ours; nothing will fault.
    unsafe { uffd.register(range.start, range.len(), Faulting::WRITE_PROTECTED) }.unwrap();
    // SAFETY: as above.
    unsafe { uffd.protect(range.at(0), PAGE, Mapping::ReadOnly) }.unwrap();
    range.write(0, 8); // on this thread: a fault would never be served
}

/// The owner's mapping is not the program's: it can be written without rights, and the program sees the bytes at
/// once.
#[test]
fn the_owners_view_has_no_protection() {
    let rig = or_skip!(Rig::open(NONE));
    rig.copy(0, 7, Mapping::ReadOnly).unwrap();
    assert_eq!(rig.app.read(0), 7);
    rig.own.write(0, 9);
    assert_eq!(rig.app.read(0), 9);
}

/// CONTINUE maps a page of the file; it fails for an absent page and for a mapped one.
#[test]
fn continue_needs_a_present_unmapped_page() {
    let rig = or_skip!(Rig::open(NONE));
    assert_eq!(rig.map(0, Mapping::Writable), Err(Errno::FAULT));
    rig.copy(0, 7, Mapping::Writable).unwrap();
    assert_eq!(rig.map(0, Mapping::Writable), Err(Errno::EXIST));
}

/// COPY fills an absent page; it fails for a present one.
#[test]
fn copy_needs_an_absent_page() {
    let rig = or_skip!(Rig::open(NONE));
    rig.copy(0, 7, Mapping::Writable).unwrap();
    assert_eq!(rig.copy(0, 8, Mapping::Writable), Err(Errno::EXIST));
    rig.own.write(1, 7);
    assert_eq!(rig.copy(1, 8, Mapping::Writable), Err(Errno::EXIST));
    assert_eq!((rig.app.read(0), rig.own.read(1)), (7, 7));
}

/// A run stops at a present page: EAGAIN reports the pages before it, and the page itself gives EEXIST.
#[test]
fn a_run_stops_at_the_first_present_page() {
    let rig = or_skip!(Rig::open(NONE));
    rig.copy(4, 1, Mapping::Writable).unwrap();
    let run = vec![7; 16 * PAGE];
    // SAFETY: pages of the rig's range, which expects any bytes.
    let stopped = unsafe { rig.uffd.copy(rig.app.at(0), &run, Mapping::Writable) }.unwrap_err();
    assert_eq!((stopped.done, stopped.errno), (4 * PAGE, Errno::AGAIN));
    // SAFETY: as above.
    let stopped = unsafe { rig.uffd.copy(rig.app.at(4), &run[4 * PAGE..], Mapping::Writable) }.unwrap_err();
    assert_eq!((stopped.done, stopped.errno), (0, Errno::EXIST));
    // SAFETY: as above.
    unsafe { rig.uffd.copy(rig.app.at(5), &run[5 * PAGE..], Mapping::Writable) }.unwrap();
    assert_eq!([3, 4, 5, 15].map(|page| rig.app.read(page)), [7, 1, 7, 7]);
}

/// A poisoned page gives SIGBUS for a touch and EFAULT for a system call, until COPY replaces it. The page may be in
/// the file, unmapped.
#[test]
fn a_poisoned_page_is_an_error_until_it_is_copied_over() {
    let _alone = alone();
    let rig = or_skip!(Rig::open(NONE));
    // SAFETY: a page of the rig's range.
    unsafe { rig.uffd.poison(rig.app.at(0), PAGE) }.unwrap();
    let zeros = std::fs::File::open("/dev/zero").unwrap();
    assert_eq!(crate::kernel_access::read_into(&zeros, rig.app.at(0)), Err(Errno::FAULT));
    rig.copy(0, 7, Mapping::Writable).unwrap();
    assert_eq!(rig.app.read(0), 7);
    rig.own.write(1, 7);
    // SAFETY: as above.
    unsafe { rig.uffd.poison(rig.app.at(1), PAGE) }.unwrap();
    assert_eq!(crate::kernel_access::read_into(&zeros, rig.app.at(1)), Err(Errno::FAULT));

    let child = fork(|| {
        let rig = Rig::open(NONE).unwrap();
        // SAFETY: as above.
        unsafe { rig.uffd.poison(rig.app.at(0), PAGE) }.unwrap();
        exit_with_code_of_sigbus();
        rig.app.read(0);
        100
    });
    assert_eq!(child.wait(), Ended::Exit(libc::BUS_ADRERR));
}

/// MOVE moves a page of anonymous memory into a range of the same userfaultfd, unless a child shares the page.
#[test]
fn move_needs_a_registered_range_and_an_unshared_page() {
    let _alone = alone();
    let uffd = or_skip!(Userfaultfd::open(Reach::Full, Features::MOVE));
    let (to, from, unknown) = (Range::anonymous(), Range::anonymous(), Range::anonymous());
    // SAFETY: a range of ours; what faults is resolved before.
    unsafe { uffd.register(to.start, to.len(), Faulting::MISSING) }.unwrap();
    from.write(0, 7);
    from.write(1, 8);
    // SAFETY: no code relies on what is at `from`.
    let refused = unsafe { uffd.take(unknown.at(0), from.at(0), PAGE) }.unwrap_err();
    assert_eq!(refused.errno, Errno::INVAL);
    // SAFETY: as above.
    unsafe { uffd.take(to.at(0), from.at(0), PAGE) }.unwrap();
    assert_eq!((to.read(0), from.read(0)), (7, 0));

    let child = fork(|| {
        // SAFETY: waits for a signal; touches no memory.
        unsafe { libc::pause() };
        0
    });
    // SAFETY: as above.
    let refused = unsafe { uffd.take(to.at(1), from.at(1), PAGE) }.unwrap_err();
    assert_eq!(refused.errno, Errno::BUSY);
    // SAFETY: a child of ours.
    unsafe { libc::kill(child.id(), libc::SIGKILL) };
    assert_eq!(child.wait(), Ended::Signal(libc::SIGKILL));
}
