//! Tests of a shared mapping with one member: this process, whose faults a thread of the test reads. Tests with many
//! members: the system tests of `farmem run`.

use super::*;
use crate::{Faulting, Features, Message, Messages, Patience, Reach};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex as Lock};
use std::thread::{self, JoinHandle};

const PAGES: usize = 8;
const LEN: usize = PAGES * PAGE_LEN;
/// The process's number in the shared mapping.
const MEMBER: u32 = 7;
/// Two shared mappings cannot have the same addresses.
static ALONE: Lock<()> = Lock::new(());
/// Far from the kernel's usual mappings.
const BASE: usize = 0x2a00_0000_0000;

struct Rig {
    shared_mapping: Arc<SharedMapping>,
    /// Requested pages.
    asked: Receiver<(Page, bool)>,
    _uffd: Userfaultfd,
    _alone: MutexGuard<'static, ()>,
}

impl Rig {
    /// Opens the shared mapping; prints a line and returns `None` if the system denies a userfaultfd.
    fn open(frames_max: u64) -> Option<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = Userfaultfd::open(Reach::UserMode, Features::WINDOW);
        let uffd = opened.inspect_err(|refused| eprintln!("skipped: {refused}")).ok()?;
        let shared_mapping =
            Arc::new(SharedMapping::open(VirtAddr(BASE as u64), LEN as u64, frames_max).unwrap());
        let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let place = ptr::with_exposed_provenance_mut(BASE);
        // SAFETY: a new mapping, which replaces nothing.
        unsafe { mmap(place, LEN, rights, flags, shared_mapping.file(), 0) }.unwrap();
        let faulting = Faulting::MISSING.and(Faulting::MINOR).and(Faulting::WRITE_PROTECTED);
        // SAFETY: the mapping made above, which this test serves.
        unsafe { uffd.register(BASE, LEN, faulting) }.unwrap();
        shared_mapping.inner().members.insert(MEMBER, uffd.again().unwrap());
        let (ask, asked) = channel();
        let (reading, of) = (uffd.again().unwrap(), Arc::clone(&shared_mapping));
        // The thread sleeps in the read when the test ends, and ends with the process.
        drop(thread::spawn(move || {
            let mut messages = Messages::new(&reading);
            while messages
                .read(Patience::Endless, &mut |message| {
                    let Message::Fault(fault) = message else { unreachable!("nothing else was asked for") };
                    if let Some(page) = of.fault(MEMBER, &fault) {
                        let _ended = ask.send((page, fault.write));
                    }
                })
                .is_ok()
            {}
        }));
        Some(Self { shared_mapping, asked, _uffd: uffd, _alone: alone })
    }

    fn page(index: usize) -> Page {
        Page::of(VirtAddr((BASE + index * PAGE_LEN) as u64))
    }

    /// Returns the page that a thread waits for, and true for a write.
    fn asked(&self) -> (Page, bool) {
        self.asked.recv().expect("the reader reads on")
    }

    /// Asserts the kernel's count of pages.
    fn assert_here(&self, pages: u64) {
        assert_eq!(self.shared_mapping.bytes_taken(), pages * PAGE_LEN as u64);
        assert_eq!(self.shared_mapping.inner().frames, pages);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // SAFETY: what `open` mapped, and no thread uses it any more.
        let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(BASE), LEN) };
    }
}

fn word(index: usize) -> &'static AtomicU64 {
    let place = ptr::with_exposed_provenance_mut(BASE + index * PAGE_LEN);
    // SAFETY: mapped while a test uses it; all use it as an atomic.
    unsafe { AtomicU64::from_ptr(place) }
}

fn read(index: usize) -> JoinHandle<u64> {
    thread::spawn(move || word(index).load(Ordering::SeqCst))
}

fn add(index: usize, n: u64) -> JoinHandle<u64> {
    thread::spawn(move || word(index).fetch_add(n, Ordering::SeqCst))
}

fn filled(value: u64) -> [u8; PAGE_LEN] {
    let mut bytes = [0; PAGE_LEN];
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn bytes_of(shared_mapping: &SharedMapping, page: Page) -> u64 {
    let mut bytes = Vec::new();
    Pages::read(&shared_mapping, page, 0..8, &mut bytes);
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// A page is read, written, write-protected, written again, and released; each touch without sufficient rights
/// requests the page once.
#[test]
fn a_shared_page_goes_through_its_states() {
    let Some(rig) = Rig::open(4) else { return };
    let (mut shared_mapping, page) = (&*rig.shared_mapping, Rig::page(3));
    let reader = read(3);
    assert_eq!(rig.asked(), (page, false));
    shared_mapping.install(page, &filled(5), Access::Shared);
    assert_eq!(reader.join().unwrap(), 5);
    rig.assert_here(1);
    let writer = add(3, 1);
    assert_eq!(rig.asked(), (page, true));
    shared_mapping.install(page, &filled(0), Access::Modified);
    assert_eq!(writer.join().unwrap(), 5, "the bytes were here: they are not written again");
    assert_eq!(add(3, 1).join().unwrap(), 6);
    shared_mapping.write_protect(page);
    assert_eq!(bytes_of(shared_mapping, page), 7);
    let writer = add(3, 1);
    assert_eq!(rig.asked(), (page, true));
    assert_eq!(read(3).join().unwrap(), 7, "readable while it is frozen");
    shared_mapping.unmap(page);
    assert_eq!(bytes_of(shared_mapping, page), 7);
    rig.assert_here(1);
    shared_mapping.release(page);
    rig.assert_here(0);
    shared_mapping.install(page, &filled(20), Access::Modified);
    assert_eq!(writer.join().unwrap(), 20, "the waiting thread is served");
    shared_mapping.discard(page);
    rig.assert_here(0);
}

/// A page is unmapped while it is written: no store is lost, and the page is mapped again without a fetch.
#[test]
fn an_unmapped_page_loses_no_store() {
    const ADDS: u64 = 20_000;
    let Some(rig) = Rig::open(2) else { return };
    let (mut shared_mapping, page) = (&*rig.shared_mapping, Rig::page(0));
    shared_mapping.install(page, &filled(0), Access::Modified);
    let adding = thread::spawn(|| (0..ADDS).for_each(|_| _ = word(0).fetch_add(1, Ordering::SeqCst)));
    while !adding.is_finished() {
        shared_mapping.unmap(page);
        rig.assert_here(1);
        shared_mapping.remap(page, Access::Modified);
        while rig.asked.try_recv().is_ok() {
            shared_mapping.wake(page);
        }
    }
    adding.join().unwrap();
    shared_mapping.write_protect(page);
    assert_eq!(bytes_of(shared_mapping, page), ADDS);
}

/// A member without a mapping of a cached page, because it has remapped the page or not touched it, gets the page
/// without a request.
#[test]
fn a_cached_page_needs_no_request() {
    let Some(rig) = Rig::open(2) else { return };
    let (mut shared_mapping, page) = (&*rig.shared_mapping, Rig::page(1));
    shared_mapping.install(page, &filled(9), Access::Shared);
    assert_eq!(read(1).join().unwrap(), 9);
    // SAFETY: the bytes are in the file.
    unsafe { madvise(ptr::with_exposed_provenance_mut(BASE + PAGE_LEN), PAGE_LEN, Advice::LinuxDontNeed) }
        .unwrap();
    assert_eq!(read(1).join().unwrap(), 9);
    assert!(rig.asked.try_recv().is_err());
    rig.assert_here(1);
}

/// A process that has ended is not waited for, and a poisoned page becomes usable when it is installed.
#[test]
fn members_leave_and_poison_ends() {
    let Some(rig) = Rig::open(2) else { return };
    let (mut shared_mapping, page) = (&*rig.shared_mapping, Rig::page(2));
    shared_mapping.poison(page); // no thread waits
    shared_mapping.unpoison(page);
    let reader = read(2);
    assert_eq!(rig.asked(), (page, false));
    shared_mapping.install(page, &filled(3), Access::Modified);
    assert_eq!(reader.join().unwrap(), 3);
    rig.shared_mapping.leave(MEMBER);
    shared_mapping.write_protect(page);
    shared_mapping.discard(page);
    rig.assert_here(0);
}
