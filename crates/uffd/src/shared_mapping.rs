//! Pages that several processes of a program, not including this one, have mapped at the same addresses.
//!
//! Key type: [`SharedMapping`], the counterpart of a [`Window`](super::Window) for other processes. There is one
//! memfd. Each member has mapped all of it, and has sent its userfaultfd. A page's bytes are written to the file, and
//! mapped for a member (CONTINUE) when one of its threads waits for the page. So a page has one frame, however many
//! members use it.
//!
//! ```text
//!            install               install
//!   Gone ------------> ReadOnly -------------> Writable       rights of members with the page mapped; the others wait
//!    ^  ^               |   ^---write_protect----'  |         when they touch it, and are served from here
//!    |  '---discard-----+--------------+------------'
//!    |                unmap          unmap
//!    '--release---- Unmapped <---------'                      Unmapped: the pager keeps the bytes, not the file
//! ```
//!
//! A mapping cannot be removed from outside without the page. So if a page is unmapped while its bytes are still
//! necessary, the pager reads the bytes and punches the page out of the file. The copy is its frame from then on.
//! When the lease ends, a [`Watcher`] in another process does the same to all pages ([`Lease`]). Each of them is
//! Unmapped then, whatever operation was in progress.

use super::Fault;
use super::lease::{Lease, Watcher};
use super::remote::Remote;
use super::state::{State, mapping};
use farmem_host::agent::{Mapped, Pages};
use farmem_link::OpenError;
use farmem_preload_abi::userfaultfd::{Mapping, Stopped, TRIES_MAX, Userfaultfd};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Far memory as addresses of other processes. Any thread may call the methods, but only one thread at a time acts on
/// a page.
#[derive(Debug)]
pub struct SharedMapping {
    base: VirtAddr,
    frames_max: u64,
    file: OwnedFd,
    lease: Arc<Lease>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    members: BTreeMap<u32, Userfaultfd>,
    states: Vec<State>,
    /// Bytes of pages that are [`State::Unmapped`].
    kept: BTreeMap<usize, Box<[u8; PAGE_LEN]>>,
    /// Members whose threads wait for a page, or find it poisoned; at most one entry per such thread.
    waiting: BTreeMap<usize, Vec<u32>>,
    poisoned: BTreeMap<usize, Vec<u32>>,
    frames: u64,
    /// Number of revocations by the lease's watcher that are processed here.
    takes: u64,
}

impl SharedMapping {
    /// Creates a shared mapping without members and pages; at most `frames_max` pages are cached. While a page is
    /// unmapped, one more is in use for a moment.
    ///
    /// # Errors
    /// [`OpenError::System`] if the system has no memory for the file, [`OpenError::Setting`] for partial pages.
    pub fn open(base: VirtAddr, len: u64, frames_max: u64) -> Result<Self, OpenError> {
        let pages = usize::try_from(len).ok().filter(|len| *len > 0 && len.is_multiple_of(PAGE_LEN));
        let Some(pages) = pages.filter(|_| base.0.is_multiple_of(PAGE_LEN as u64)) else {
            let value = format!("{len} bytes at {base}");
            return Err(OpenError::Setting {
                setting: "shared memory",
                value,
                remedy: "use whole pages".into(),
            });
        };
        let system = |e: Errno| OpenError::System { doing: format!("share {len} bytes"), source: e.into() };
        let file =
            memfd_create(FILE_NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(system)?;
        ftruncate(&file, len).map_err(system)?;
        // Each member gets the file; none may shrink it.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(system)?;
        let inner = Inner {
            members: BTreeMap::new(),
            states: vec![State::Gone; pages / PAGE_LEN],
            kept: BTreeMap::new(),
            waiting: BTreeMap::new(),
            poisoned: BTreeMap::new(),
            frames: 0,
            takes: 0,
        };
        let lease = Arc::new(Lease::open(len)?);
        Ok(Self { base, frames_max, file, lease, inner: Mutex::new(inner) })
    }

    /// Returns the first address and the length in bytes.
    #[must_use]
    pub fn span(&self) -> (VirtAddr, u64) {
        (self.base, self.inner().states.len() as u64 * PAGE_LEN as u64)
    }

    /// Returns the file that a process maps.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the lease on the pages.
    #[must_use]
    pub const fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Creates a watcher, which revokes the pages when the lease ends.
    ///
    /// # Errors
    /// The system's error if no descriptors are left.
    pub fn watcher(&self) -> io::Result<Watcher> {
        Watcher::of(&self.lease, self.file())
    }

    /// Adds a process, which is about to map the file at [`SharedMapping::span`] and to register the mapping with its
    /// userfaultfd.
    ///
    /// # Errors
    /// The system's error if no descriptors are left.
    pub fn join(&self, member: u32, process: &Remote) -> io::Result<()> {
        let uffd = process.userfaultfd()?;
        self.inner().members.insert(member, uffd);
        Ok(())
    }

    /// Removes a process that has ended.
    pub fn leave(&self, member: u32) {
        let mut inner = self.inner();
        inner.members.remove(&member);
        let Inner { waiting, poisoned, .. } = &mut *inner;
        for lists in [waiting, poisoned] {
            lists.retain(|_, members| {
                members.retain(|&its| its != member);
                !members.is_empty()
            });
        }
    }

    /// Handles a fault of a member. If the page is cached with sufficient rights, the thread is served at once.
    /// Otherwise returns the page that must be requested.
    pub fn fault(&self, member: u32, fault: &Fault) -> Option<Page> {
        let offset = (fault.addr as u64).checked_sub(self.base.0)?;
        let index = usize::try_from(offset).ok()? / PAGE_LEN;
        let mut inner = self.inner();
        self.is_settled(&mut inner);
        let state = *inner.states.get(index)?;
        let waiting = inner.waiting.entry(index).or_default();
        if !waiting.contains(&member) {
            waiting.push(member);
        }
        match state {
            State::Writable => self.show(&mut inner, index, Access::Modified),
            State::ReadOnly if !fault.write => self.show(&mut inner, index, Access::Shared),
            _ => return Some(self.page(index)),
        }
        None
    }

    /// Returns the memory of the pages in bytes: in the file, as the kernel counts it, and outside.
    #[must_use]
    pub fn bytes_taken(&self) -> u64 {
        const BLOCK: u64 = 512;
        let in_file = fstat(&self.file).map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK);
        in_file + self.lease.bytes_kept() + (self.inner().kept.len() * PAGE_LEN) as u64
    }

    /// Maps a page with these rights for the members whose threads wait for it, and wakes them.
    fn show(&self, inner: &mut Inner, index: usize, access: Access) {
        let start = self.place(index);
        for uffd in inner.take_waiting(index) {
            show_at(uffd, start, access);
        }
    }

    /// Returns false if pages were revoked: then all are Unmapped, and none is mapped before the next lease. Call
    /// this after each change of the file.
    fn is_settled(&self, inner: &mut Inner) -> bool {
        if !self.lease.is_over() && self.lease.takes() == inner.takes {
            return true;
        }
        self.lease.wait_taken(self.file());
        let takes = self.lease.takes();
        if takes != inner.takes {
            inner.takes = takes;
            let Inner { states, kept, .. } = inner;
            self.lease.give_back(|start, bytes| {
                for (index, bytes) in (start / PAGE_LEN..).zip(bytes.as_chunks::<PAGE_LEN>().0) {
                    // In other states the bytes are kept here, or gone.
                    if matches!(states[index], State::ReadOnly | State::Writable) {
                        states[index] = State::Unmapped;
                        kept.insert(index, Box::new(*bytes));
                    }
                }
            });
        }
        !self.lease.is_over()
    }

    /// Maps a page whose bytes were just written to the file, or keeps the bytes if the lease is over.
    fn show_filled(&self, inner: &mut Inner, index: usize, bytes: &[u8; PAGE_LEN], access: Access) {
        if self.is_settled(inner) {
            return self.show(inner, index, access);
        }
        // Again: the watcher may have revoked the page during the write.
        inner.kept.insert(index, Box::new(*bytes));
        inner.set(index, State::Unmapped);
        self.punch(index);
        let start = self.place(index);
        inner.take_waiting(index).for_each(|uffd| wake(uffd, start));
    }

    /// Maps a cached page for waiting threads according to its state; otherwise wakes them.
    fn show_again(&self, inner: &mut Inner, index: usize) {
        match inner.states[index] {
            State::ReadOnly => self.show(inner, index, Access::Shared),
            State::Writable => self.show(inner, index, Access::Modified),
            State::Gone | State::Unmapped | State::Poisoned => {
                let start = self.place(index);
                inner.take_waiting(index).for_each(|uffd| wake(uffd, start));
            }
        }
    }

    /// Writes a page to the file, in the place of a hole.
    fn fill(&self, index: usize, bytes: &[u8; PAGE_LEN]) {
        let mut done = 0;
        while done < PAGE_LEN {
            let place = (index * PAGE_LEN + done) as u64;
            let count = rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.file, &bytes[done..], place));
            done += count.ok().filter(|&count| count > 0).expect("the system has memory for a page here");
        }
    }

    fn read_file(&self, index: usize, range: Range<usize>, into: &mut [u8]) {
        let mut done = 0;
        while done < range.len() {
            let place = (index * PAGE_LEN + range.start + done) as u64;
            let count = rustix::io::retry_on_intr(|| rustix::io::pread(&self.file, &mut into[done..], place));
            done += count.ok().filter(|&count| count > 0).expect("bytes of a file of our own");
        }
    }

    /// Frees a page's memory, and unmaps it from all processes.
    fn punch(&self, index: usize) {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (start, len) = ((index * PAGE_LEN) as u64, PAGE_LEN as u64);
        rustix::io::retry_on_intr(|| fallocate(&self.file, mode, start, len)).expect("a hole in a memfd");
    }

    /// Write-protects a page for all members. When this returns, no store to the page is in flight.
    fn protect(&self, inner: &Inner, index: usize) {
        for uffd in inner.members.values() {
            // SAFETY: addresses of another process, which sent the descriptor so that they are served.
            match unsafe { uffd.protect(self.place(index), PAGE_LEN, Mapping::ReadOnly) } {
                // A member that has ended, or has not mapped the page yet, stores nothing.
                Ok(()) | Err(Errno::SRCH | Errno::NOENT) => {}
                Err(e) => panic!("a page of shared memory cannot be protected: {e}"),
            }
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the members' address of a page.
    fn place(&self, index: usize) -> usize {
        usize::try_from(self.base.0).expect("an address of this machine") + index * PAGE_LEN
    }

    fn page(&self, index: usize) -> Page {
        Page::of(VirtAddr(self.base.0 + (index * PAGE_LEN) as u64))
    }

    fn index(&self, page: Page) -> usize {
        let offset = page.addr().0.checked_sub(self.base.0).and_then(|n| usize::try_from(n).ok());
        offset.unwrap_or_else(|| panic!("{page:?} is shared")) / PAGE_LEN
    }
}

impl Inner {
    /// Removes and returns the processes that wait for a page, or found it poisoned.
    fn take_waiting(&mut self, index: usize) -> impl Iterator<Item = &Userfaultfd> {
        let mut members = self.waiting.remove(&index).unwrap_or_default();
        members.extend(self.poisoned.remove(&index).unwrap_or_default());
        members.into_iter().filter_map(|member| self.members.get(&member))
    }

    fn set(&mut self, index: usize, state: State) -> State {
        std::mem::replace(&mut self.states[index], state)
    }
}

impl Pages for &SharedMapping {
    fn install(&mut self, page: Page, bytes: &[u8; PAGE_LEN], access: Access) {
        let index = self.index(page);
        let mut inner = self.inner();
        match inner.states[index] {
            State::ReadOnly => {
                assert_eq!(access, Access::Modified, "{page:?} is Shared already");
                inner.set(index, State::Writable);
                self.is_settled(&mut inner);
                self.show_again(&mut inner, index);
            }
            // The lease revoked the page, and the cache that fetched it does not know yet: the bytes kept here are
            // the page.
            State::Unmapped => self.show_again(&mut inner, index),
            State::Writable => panic!("{page:?} is here already"),
            State::Gone | State::Poisoned => {
                inner.set(index, State::shown(access));
                inner.frames += 1;
                assert!(inner.frames <= self.frames_max, "room was made for a page before it came");
                self.fill(index, bytes);
                self.show_filled(&mut inner, index, bytes, access);
            }
        }
    }

    fn write_protect(&mut self, page: Page) {
        let index = self.index(page);
        let mut inner = self.inner();
        match inner.states[index] {
            State::Writable => {
                self.protect(&inner, index);
                inner.set(index, State::ReadOnly);
                self.is_settled(&mut inner);
            }
            State::Unmapped => {} // no thread reaches it
            other => panic!("{page:?} is Modified, not {other:?}"),
        }
    }

    fn read(&self, page: Page, range: Range<usize>, out: &mut Vec<u8>) {
        let index = self.index(page);
        assert!(range.start <= range.end && range.end <= PAGE_LEN, "a range of a page");
        let mut inner = self.inner();
        let start = out.len();
        match inner.states[index] {
            State::Unmapped => {}
            State::ReadOnly => {
                out.resize(start + range.len(), 0);
                self.read_file(index, range.clone(), &mut out[start..]);
                if self.is_settled(&mut inner) && inner.states[index] == State::ReadOnly {
                    return;
                }
                out.truncate(start); // perhaps bytes of a hole
            }
            other => panic!("{page:?} is here, and frozen, not {other:?}"),
        }
        out.extend_from_slice(&inner.kept[&index][range]);
    }

    fn unmap(&mut self, page: Page) {
        let index = self.index(page);
        let mut inner = self.inner();
        let was = inner.states[index];
        assert!(was.has_frame(), "{page:?} is here");
        if was == State::Unmapped {
            return;
        }
        if was == State::Writable {
            self.protect(&inner, index);
        }
        let mut bytes = Box::new([0; PAGE_LEN]);
        self.read_file(index, 0..PAGE_LEN, &mut bytes[..]);
        self.is_settled(&mut inner);
        if inner.set(index, State::Unmapped) != State::Unmapped {
            inner.kept.insert(index, bytes);
            self.punch(index);
        }
    }

    fn release(&mut self, page: Page) {
        let index = self.index(page);
        let mut inner = self.inner();
        assert_eq!(inner.set(index, State::Gone), State::Unmapped, "{page:?} was zapped");
        inner.kept.remove(&index);
        inner.frames -= 1;
    }

    fn discard(&mut self, page: Page) {
        let index = self.index(page);
        let mut inner = self.inner();
        let was = inner.set(index, State::Gone);
        assert!(was.has_frame(), "{page:?} is here");
        inner.frames -= 1;
        if inner.kept.remove(&index).is_none() {
            self.punch(index);
        }
    }

    fn wake(&mut self, page: Page) {
        let index = self.index(page);
        let mut inner = self.inner();
        self.is_settled(&mut inner);
        self.show_again(&mut inner, index);
    }

    fn poison(&mut self, page: Page) {
        let index = self.index(page);
        let mut inner = self.inner();
        let was = inner.set(index, State::Poisoned);
        assert!(!was.has_frame(), "{page:?} is Invalid");
        let members = inner.waiting.remove(&index).unwrap_or_default();
        let start = self.place(index);
        for uffd in members.iter().filter_map(|member| inner.members.get(member)) {
            // SAFETY: addresses of another process, which learns of the loss in this way.
            if unsafe { uffd.poison_page(start) }.is_err() {
                wake(uffd, start);
            }
        }
        let poisoned = inner.poisoned.entry(index).or_default();
        poisoned.extend(members);
        poisoned.sort_unstable();
        poisoned.dedup();
    }
}

impl Mapped for &SharedMapping {
    fn remap(&mut self, page: Page, access: Access) {
        let index = self.index(page);
        let mut inner = self.inner();
        let was = inner.set(index, State::shown(access));
        assert!(was.has_frame(), "{page:?} is here");
        match inner.kept.remove(&index) {
            Some(bytes) => {
                self.fill(index, &bytes);
                self.show_filled(&mut inner, index, &bytes, access);
            }
            None => {
                self.is_settled(&mut inner);
                self.show_again(&mut inner, index);
            }
        }
    }

    fn absorb(&mut self) {
        self.is_settled(&mut self.inner());
    }

    /// Forgets the poison. A member whose thread got a SIGBUS gets it again until the page is installed or mapped
    /// anew: poison cannot be removed from outside.
    fn unpoison(&mut self, page: Page) {
        let index = self.index(page);
        let mut inner = self.inner();
        if inner.states[index] == State::Poisoned {
            inner.set(index, State::Gone);
        }
    }
}

/// The name of the file in the kernel's lists.
const FILE_NAME: &str = "farmem-shared";

/// Maps a page of the file, and wakes waiting threads. If the process's mappings are wrong, its thread faults again.
fn show_at(uffd: &Userfaultfd, start: usize, access: Access) {
    for _ in 0..TRIES_MAX {
        // SAFETY: addresses of another process, which sent the descriptor so that they are served.
        match unsafe { uffd.map(start, PAGE_LEN, mapping(access)) } {
            Ok(()) => return,
            Err(Stopped { errno: Errno::AGAIN, .. }) => std::thread::yield_now(),
            // The page is mapped already, perhaps still with its earlier protection.
            Err(Stopped { errno: Errno::EXIST, .. }) if access == Access::Modified => {
                // SAFETY: as above.
                if unsafe { uffd.protect(start, PAGE_LEN, Mapping::Writable) }.is_ok() {
                    return;
                }
                break;
            }
            Err(_) => break,
        }
    }
    wake(uffd, start);
}

fn wake(uffd: &Userfaultfd, start: usize) {
    // A process that has ended does not wait.
    let _ = uffd.wake(start, PAGE_LEN);
}

#[cfg(test)]
mod tests;
