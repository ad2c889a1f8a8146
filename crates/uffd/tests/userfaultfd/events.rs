//! Events of a program's mappings, as the userfaultfd reports them.

use crate::rig::{Ended, PAGE, PAGES, Range, Rig, all_faults, alone, fork, load, next, or_skip};
use farmem_uffd::{Faulting, Features, Mapping, Message, Messages, Patience, Reach, Userfaultfd};
use rustix::mm::{Advice, MremapFlags, mremap, munmap};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A fork is reported with a descriptor that serves the child's copy; the parent waits until the event is read.
#[test]
fn a_fork_reports_a_descriptor_for_the_child() {
    let _alone = alone();
    let rig = or_skip!(Rig::open(Features::FORK));
    let at = rig.app.at(0);
    // A fork holds the allocator's locks until its event is read: the code from here to there must not allocate.
    let (mut messages, mut report) = (Messages::new(&rig.uffd), None);
    let reads = Arc::new(AtomicBool::new(false));
    let may_fork = Arc::clone(&reads);
    let forker = Rig::spawn(move || {
        while !may_fork.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        fork(|| i32::from(load(at)))
    });
    reads.store(true, Ordering::Release);
    while report.is_none() {
        messages.read(Patience::Endless, &mut |message| report = Some(message)).unwrap();
    }
    let Some(Message::Forked(child_uffd)) = report else { panic!("the fork") };
    let Message::Fault(fault) = next(&child_uffd) else { panic!("the child's fault") };
    assert_eq!(fault.addr, at);
    // SAFETY: the child's page, which expects any bytes.
    unsafe { child_uffd.copy(at, &[7; PAGE], Mapping::Writable) }.unwrap();
    assert_eq!(forker.join().unwrap().wait(), Ended::Exit(7));
    assert_eq!(rig.own.read(0), 7, "the file is one for both");
}

/// Without the event the child has the addresses and no server: missing pages read as zeros, without a report.
#[test]
fn a_fork_without_the_event_reads_zeros_silently() {
    let _alone = alone();
    let rig = or_skip!(Rig::open(Features::WINDOW));
    let at = rig.app.at(0);
    assert_eq!(fork(|| i32::from(load(at)) + 40).wait(), Ended::Exit(40));

    let range = Range::anonymous();
    let uffd = Userfaultfd::open(Reach::Full, Features::WINDOW).unwrap();
    // SAFETY: a range of ours, which this process does not touch.
    unsafe { uffd.register(range.start, range.len(), Faulting::MISSING) }.unwrap();
    let at = range.at(0);
    assert_eq!(fork(|| i32::from(load(at)) + 40).wait(), Ended::Exit(40));
}

/// A mapping excluded from forks does not exist in the child: the child's touch is a SIGSEGV, which is better than
/// zeros.
#[test]
fn a_fork_without_the_mapping_is_stopped() {
    let _alone = alone();
    let rig = or_skip!(Rig::open(Features::WINDOW));
    rig.app.advise(0, PAGES, Advice::LinuxDontFork).unwrap();
    let at = rig.app.at(0);
    assert_eq!(fork(|| i32::from(load(at)) + 40).wait(), Ended::Signal(libc::SIGSEGV));
}

/// Freed, moved and unmapped pages are reported with their addresses; the program waits until each event is read.
#[test]
fn changes_of_a_range_are_reported() {
    let _alone = alone();
    let rig = or_skip!(Rig::open(Features::RANGES));
    rig.copy(0, 7, Mapping::Writable).unwrap();
    let at = rig.app.at(0);
    let giver = Rig::spawn(move || {
        // SAFETY: a page of the test's range.
        let result =
            unsafe { rustix::mm::madvise(ptr::with_exposed_provenance_mut(at), PAGE, Advice::LinuxDontNeed) };
        result.unwrap();
    });
    let Message::Removed(range) = next(&rig.uffd) else { panic!("the removal") };
    assert_eq!(range, at..at + PAGE);
    giver.join().unwrap();

    let range = Range::of_file(&rig.file);
    // SAFETY: a range of ours, which no code touches.
    unsafe { rig.uffd.register(range.start, range.len(), all_faults()) }.unwrap();
    let (from, len) = (range.start, range.len());
    std::mem::forget(range); // moved and unmapped below
    let mover = Rig::spawn(move || {
        let (old, flags) = (ptr::with_exposed_provenance_mut(from), MremapFlags::MAYMOVE);
        // SAFETY: the whole of a mapping that no other code uses; larger, so that it may have to move.
        unsafe { mremap(old, len, 64 * len, flags) }.unwrap().expose_provenance()
    });
    let (mut moved, mut unmapped) = (None, 0);
    while !mover.is_finished() {
        let mut note = |message| match message {
            Message::Moved { from, to, len } => moved = Some((from, to, len)),
            Message::Unmapped(_) => unmapped += 1,
            other => panic!("{other:?} was not asked for"),
        };
        Messages::new(&rig.uffd).read(Patience::None, &mut note).unwrap();
        std::thread::yield_now();
    }
    let to = mover.join().unwrap();
    assert!(to == from || moved == Some((from, to, len)), "{moved:?}");

    let unmapper = Rig::spawn(move || {
        // SAFETY: the whole of the mapping that was moved.
        unsafe { munmap(ptr::with_exposed_provenance_mut(to), 64 * len) }.unwrap();
    });
    let Message::Unmapped(range) = next(&rig.uffd) else { panic!("the unmapping") };
    assert_eq!(range.start, to);
    unmapper.join().unwrap();
}
