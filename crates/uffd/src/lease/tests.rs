//! Tests of a pager that is stopped at any of its instructions, and a watcher that runs. The tests check what the
//! program reads, never times (PROTOCOL 12.49).

use super::*;
use crate::{
    Addressing, FaultMode, Faulting, Features, Mapped as _, Reach, SharedMapping, Userfaultfd, Window,
    WindowConfig,
};
use farmem_host::agent::Pages;
use farmem_machine::Duration;
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, Page};
use std::sync::atomic::AtomicBool;
use std::thread::{scope, yield_now};

const PAGES: u64 = 64;

fn page(base: VirtAddr, index: u64) -> Page {
    Page::of(VirtAddr(base.0 + index * PAGE_LEN as u64))
}

const fn filled(byte: u8) -> [u8; PAGE_LEN] {
    [byte; PAGE_LEN]
}

/// Returns the contents of the page with this number.
fn of(index: u64) -> [u8; PAGE_LEN] {
    filled(u8::try_from(index + 1).unwrap())
}

/// Reads a page of a file.
fn bytes_of(file: BorrowedFd<'_>, index: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE_LEN];
    read_at(file, usize::try_from(index).unwrap() * PAGE_LEN, &mut bytes).unwrap();
    bytes
}

/// Ends a lease now.
fn ended(lease: &Lease, clock: &Clock) {
    assert!(lease.begin(clock, clock.now()));
}

/// Revoked pages are in the second file, with their bytes, and nowhere else; a hole stays one.
#[test]
fn all_pages_are_revoked_with_their_bytes() {
    let len = PAGES * PAGE_LEN as u64;
    let file = sealed("farmem-test", len).unwrap();
    let lease = Lease::open(len).unwrap();
    let has = |index: u64| !index.is_multiple_of(3);
    for index in (0..PAGES).filter(|&index| has(index)) {
        write_at(file.as_fd(), usize::try_from(index).unwrap() * PAGE_LEN, &of(index)).unwrap();
    }
    let clock = Clock::start();
    ended(&lease, &clock);
    let mut watcher = Watcher::of(&lease, file.as_fd()).unwrap();
    watcher.look().unwrap();
    assert!(lease.is_over());
    assert_eq!(fstat(&file).unwrap().st_blocks, 0, "none is left in the file");
    let mut given = Vec::new();
    lease.give_back(|start, bytes| {
        for (at, bytes) in (start / PAGE_LEN..).zip(bytes.as_chunks::<PAGE_LEN>().0) {
            assert_eq!(*bytes, of(at as u64));
            given.push(at as u64);
        }
    });
    assert_eq!(given, (0..PAGES).filter(|&index| has(index)).collect::<Vec<_>>());
    assert_eq!(lease.bytes_kept(), 0, "they are given back once");
}

/// An extended lease is not revoked, and an expired one cannot be extended: exactly one of the two happens first.
#[test]
fn a_lease_expires_or_is_extended() {
    let file = sealed("farmem-test", PAGE_LEN as u64).unwrap();
    let lease = Lease::open(PAGE_LEN as u64).unwrap();
    let clock = Clock::start();
    assert!(!lease.extend(&clock, clock.after(Duration::from_secs(3600))), "there is none to be moved on");
    let mut watcher = Watcher::of(&lease, file.as_fd()).unwrap();
    watcher.look().unwrap();
    assert!(!lease.is_over(), "none has ended");
    ended(&lease, &clock);
    assert!(lease.extend(&clock, clock.after(Duration::from_secs(3600))));
    watcher.look().unwrap();
    assert!((!lease.is_over()) && lease.takes() == 0);
    assert!(lease.extend(&clock, clock.now()));
    watcher.look().unwrap();
    assert!(lease.is_over());
    assert!(!lease.extend(&clock, clock.after(Duration::from_secs(3600))), "it has passed");
    assert!(lease.begin(&clock, clock.after(Duration::from_secs(3600))));
    assert!(!lease.is_over());
    assert_eq!(lease.takes(), 1);
}

/// The watcher sleeps until the end, wherever it is moved, and revokes the pages by itself. A stop ends the watcher.
#[test]
fn a_watcher_revokes_the_pages_by_itself() {
    let file = sealed("farmem-test", PAGE_LEN as u64).unwrap();
    write_at(file.as_fd(), 0, &filled(7)).unwrap();
    let lease = Lease::open(PAGE_LEN as u64).unwrap();
    let clock = Clock::start();
    let mut watcher = Watcher::of(&lease, file.as_fd()).unwrap();
    scope(|scope| {
        let watching = scope.spawn(move || watcher.watch(None).unwrap());
        assert!(lease.begin(&clock, clock.after(Duration::from_millis(5))));
        while !lease.is_over() || lease.takes() == 0 {
            yield_now();
        }
        assert_eq!(bytes_of(lease.kept.as_fd(), 0), filled(7));
        lease.stop();
        assert_eq!(watching.join().unwrap(), Woken::Stopped);
    });
}

/// A program stores to a page all the time. The revoked page has all its stores, up to the last one that reached the
/// page.
#[test]
fn no_store_is_lost_between_the_copy_and_the_hole() {
    for _ in 0..200 {
        let Some(window) = window() else { return };
        let window = &window;
        let mut pages = window;
        let clock = Clock::start();
        let base = window.base();
        pages.install(page(base, 0), &filled(0), Access::Modified);
        let mut watcher = window.watcher().unwrap();
        let lease = window.lease().unwrap();
        ended(lease, &clock);
        let is_done = AtomicBool::new(false);
        let stored = scope(|scope| {
            let storing = scope.spawn(|| {
                let word = window.memory().word(0);
                let mut last = 0;
                while !is_done.load(Ordering::SeqCst) {
                    last += 1;
                    word.store(last, Ordering::Relaxed);
                }
                last
            });
            watcher.look().unwrap();
            pages.absorb();
            let mut out = Vec::new();
            pages.read(page(base, 0), 0..8, &mut out);
            is_done.store(true, Ordering::SeqCst);
            // The next lease: the page returns unchanged, and a store that waited for it, if any, is the last one.
            assert!(lease.begin(&clock, clock.after(Duration::from_secs(3600))));
            window.remap(page(base, 0), Access::Modified);
            (u64::from_le_bytes(out[..].try_into().unwrap()), storing.join().unwrap())
        });
        let (taken, last) = stored;
        // The thread may have had no CPU when the page was revoked: then no store waited. A store that went elsewhere
        // would be missing in the page.
        assert!(taken == last || taken + 1 == last, "{taken} of {last} stores: all but one that waited");
        assert_eq!(window.memory().word(0).load(Ordering::Relaxed), last);
    }
}

fn window() -> Option<Window> {
    let config = WindowConfig {
        base: VirtAddr(1 << 40),
        len: PAGES * PAGE_LEN as u64,
        frames_max: PAGES,
        place: Addressing::Anywhere,
        reach: Reach::UserMode,
        faults: FaultMode::Handler,
    };
    let opened = Window::open(&config).and_then(Window::under_lease);
    opened.inspect_err(|refused| eprintln!("skipped: {refused}")).ok()
}

/// A lease ends while the pager is stopped before each of its steps: the program reaches no page, and all its stores
/// can still be written back.
#[test]
fn a_late_pager_maps_no_page_of_a_window() {
    let Some(window) = window() else { return };
    let (window, clock) = (&window, Clock::start());
    let (mut pages, base, lease) = (window, window.base(), window.lease().unwrap());
    let mut watcher = window.watcher().unwrap();
    assert!(lease.begin(&clock, clock.after(Duration::from_secs(3600))));
    for (index, access) in
        [(0, Access::Shared), (1, Access::Modified), (2, Access::Modified), (3, Access::Shared)]
    {
        pages.install(page(base, index), &of(index), access);
    }
    window.memory().write(PAGE_LEN, &[77]);
    pages.unmap(page(base, 3));
    assert!(lease.extend(&clock, clock.now()));
    watcher.look().unwrap();
    let out_of_reach = |what: &str| {
        let mut resident = 0;
        for index in 0..PAGES {
            resident += u64::from(is_mapped(window, index));
        }
        assert_eq!(resident, 0, "after {what}");
    };
    out_of_reach("the watcher");
    // The pager continues from where it was stopped.
    pages.install(page(base, 0), &filled(0), Access::Modified);
    out_of_reach("an upgrade");
    pages.install(page(base, 9), &filled(10), Access::Shared);
    out_of_reach("a page that came");
    pages.write_protect(page(base, 1));
    pages.wake(page(base, 1));
    out_of_reach("a thread that was to try again");
    window.remap(page(base, 3), Access::Shared);
    out_of_reach("a page that was at rest");
    pages.write_protect_and_unmap(page(base, 2));
    let bytes = |index: u64| {
        let mut out = Vec::new();
        (&*window).read(page(base, index), 0..PAGE_LEN, &mut out);
        out
    };
    let mut written = filled(2).to_vec();
    written[0] = 77;
    assert_eq!(bytes(1), written, "a written byte is kept");
    assert_eq!(
        (bytes(0), bytes(2), bytes(3), bytes(9)),
        (filled(1).to_vec(), filled(3).to_vec(), filled(4).to_vec(), filled(10).to_vec())
    );
    for index in [0, 1, 3, 9] {
        pages.discard(page(base, index));
    }
    pages.release(page(base, 2));
    pages.absorb();
    assert_eq!((window.bytes_taken(), lease.bytes_kept(), window.frames()), (0, 0, 0));
    // Under the next lease all works as before.
    assert!(lease.begin(&clock, clock.after(Duration::from_secs(3600))));
    pages.install(page(base, 1), &filled(5), Access::Shared);
    assert!(is_mapped(window, 1));
    assert_eq!(window.memory().word(PAGE_LEN).load(Ordering::Relaxed), u64::from_le_bytes([5; 8]));
}

/// Returns true if the program can read a page of a window without a fault: a system call that may not wait would
/// fail with EFAULT.
fn is_mapped(window: &Window, index: u64) -> bool {
    let memory = window.memory().part(usize::try_from(index).unwrap() * PAGE_LEN, PAGE_LEN);
    let sink = memfd_create("farmem-sink", MemfdFlags::CLOEXEC).unwrap();
    memory.write_to(&sink, 0, PAGE_LEN).is_ok_and(|count| count == PAGE_LEN)
}

/// A lease of other processes' pages, as in `farmem run`, has the result of the test above.
#[test]
fn a_late_pager_maps_no_page_of_other_processes() {
    let opened = Userfaultfd::open(Reach::UserMode, Features::WINDOW);
    let Ok(_uffd) = opened.inspect_err(|refused| eprintln!("skipped: {refused}")) else { return };
    let _ = Faulting::MISSING;
    let (base, len) = (VirtAddr(0x2b00_0000_0000), PAGES * PAGE_LEN as u64);
    let (shared_mapping, clock) = (SharedMapping::open(base, len, PAGES).unwrap(), Clock::start());
    let (mut pages, lease) = (&shared_mapping, shared_mapping.lease());
    let mut watcher = shared_mapping.watcher().unwrap();
    assert!(lease.begin(&clock, clock.after(Duration::from_secs(3600))));
    for (index, access) in
        [(0, Access::Shared), (1, Access::Modified), (2, Access::Modified), (3, Access::Shared)]
    {
        pages.install(page(base, index), &of(index), access);
    }
    // A store of a member, which has the file mapped.
    write_at(shared_mapping.file(), PAGE_LEN, &[77]).unwrap();
    pages.unmap(page(base, 3));
    assert!(lease.extend(&clock, clock.now()));
    watcher.look().unwrap();
    // Only pages in the file can be mapped.
    let out_of_reach =
        |what: &str| assert_eq!(fstat(shared_mapping.file()).unwrap().st_blocks, 0, "after {what}");
    out_of_reach("the watcher");
    pages.install(page(base, 0), &filled(0), Access::Modified);
    pages.install(page(base, 9), &filled(10), Access::Shared);
    out_of_reach("pages that came");
    pages.write_protect(page(base, 1));
    pages.wake(page(base, 1));
    pages.remap(page(base, 3), Access::Shared);
    out_of_reach("pages that were here");
    pages.unmap(page(base, 2));
    let bytes = |index: u64| {
        let mut out = Vec::new();
        (&shared_mapping).read(page(base, index), 0..PAGE_LEN, &mut out);
        out
    };
    let mut written = filled(2).to_vec();
    written[0] = 77;
    assert_eq!(bytes(1), written, "a written byte is kept");
    assert_eq!(
        (bytes(0), bytes(2), bytes(3), bytes(9)),
        (filled(1).to_vec(), filled(3).to_vec(), filled(4).to_vec(), filled(10).to_vec())
    );
    for index in [0, 1, 3, 9] {
        pages.discard(page(base, index));
    }
    pages.release(page(base, 2));
    pages.absorb();
    assert_eq!((shared_mapping.bytes_taken(), lease.bytes_kept()), (0, 0));
    assert!(lease.begin(&clock, clock.after(Duration::from_secs(3600))));
    pages.install(page(base, 1), &filled(5), Access::Shared);
    assert_eq!(bytes_of(shared_mapping.file(), 1), filled(5));
}

/// The watcher is killed while it revokes pages: the pager notices its end, and revokes the rest itself.
#[test]
fn a_pager_finishes_the_work_of_a_dead_watcher() {
    let (base, len) = (VirtAddr(0x2c00_0000_0000), PAGES * PAGE_LEN as u64);
    let (shared_mapping, clock) = (SharedMapping::open(base, len, PAGES).unwrap(), Clock::start());
    let (mut pages, lease) = (&shared_mapping, shared_mapping.lease());
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    lease.watched_by(ours);
    assert!(lease.begin(&clock, clock.after(Duration::from_secs(3600))));
    for index in 0..4 {
        pages.install(page(base, index), &of(index), Access::Modified);
    }
    // The watcher has set the word, has revoked the first page, and has ended.
    lease.word().store(TAKING, Ordering::SeqCst);
    let mut taker = Taker::open().unwrap();
    assert_eq!(taker.take(shared_mapping.file(), lease.kept.as_fd(), 0..PAGE_LEN).unwrap(), PAGE_LEN);
    drop(theirs);
    pages.absorb();
    assert!(lease.is_over() && lease.takes() == 1);
    for index in 0..4 {
        let mut out = Vec::new();
        pages.write_protect(page(base, index));
        pages.read(page(base, index), 0..PAGE_LEN, &mut out);
        assert_eq!(out, of(index));
    }
    assert_eq!(fstat(shared_mapping.file()).unwrap().st_blocks, 0);
}

/// A separate process revokes the pages of a window whose own process does nothing. The watcher ends when this
/// process drops it.
#[test]
fn a_watcher_process_revokes_the_pages() {
    let Some(window) = window() else { return };
    let (window, clock) = (&window, Clock::start());
    let (mut pages, base, lease) = (window, window.base(), window.lease().unwrap());
    let apart = window.watch_apart().unwrap();
    assert!(lease.begin(&clock, clock.after(Duration::from_secs(3600))));
    pages.install(page(base, 1), &filled(2), Access::Modified);
    window.memory().write(PAGE_LEN, &[77]);
    assert!(lease.begin(&clock, clock.now()));
    while lease.takes() == 0 {
        yield_now();
    }
    assert!(!is_mapped(window, 1));
    pages.absorb();
    pages.write_protect(page(base, 1));
    let mut out = Vec::new();
    pages.read(page(base, 1), 0..2, &mut out);
    assert_eq!(out, [77, 2]);
    let is_running = || {
        let mut ends = [in_of(apart.ended())];
        poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 0
    };
    assert!(is_running());
    lease.stop();
    let mut ends = [in_of(apart.ended())];
    retry_on_intr(|| poll(&mut ends, None)).unwrap();
    drop(apart);
}
