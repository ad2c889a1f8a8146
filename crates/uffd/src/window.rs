//! A window: addresses of far memory that a program reaches by plain loads and stores.
//!
//! Key type: [`Window`]. A memfd holds the cached pages. The program has it mapped at the addresses of far memory,
//! and a touch of an absent page waits for the thread that serves the window. This module reads and writes the file,
//! and sees the program's stores. File offsets are window offsets. Punching a hole frees a page, so the file takes
//! exactly the memory of the cached pages, and the limit is exact (docs/decisions, "page cache").
//!
//! ```text
//!   Gone --install--> ReadOnly --install--> Writable        a page's frame and the program's mapping; the caller decides
//!    ^  ^                |  ^---write_protect--'  |         which host may hold which page
//!    |  '----discard-----+-------------+----------'
//!    |                 unmap         unmap
//!    '---release--- Unmapped <---------'                    Unmapped: the bytes are there, the program's next touch waits
//! ```
//!
//! A window has no policy: it fetches nothing, evicts nothing and keeps no protocol state.

mod placed;
mod runs;

use super::doorbell::Doorbell;
use super::lease::{Lease, Watcher, WatcherProcess};
use super::signal::{Registered, Signals, Touch};
use super::state::{State, States, mapping};
use super::views::{Addressing, Views};
use super::{Cause, Fault, Memory};
use farmem_host::agent::{Mapped, Pages};
use farmem_link::OpenError;
use farmem_preload_abi::userfaultfd::{Faulting, Features, Mapping, Reach, Stopped, Userfaultfd};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The way in which page faults are reported and served.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum FaultMode {
    /// The kernel reports a fault to the thread that serves the window, and the faulting thread sleeps. Loads, stores
    /// and system calls may touch the window.
    #[default]
    Handler,
    /// The faulting thread gets a SIGBUS and serves itself in the handler, which saves thread switches
    /// (docs/decisions, "signal mode"). System calls on the window fail with EFAULT.
    ///
    /// - A SIGBUS handler of the program that is installed later must call the handler that it replaces.
    /// - A thread that blocks SIGBUS dies of its first fault.
    /// - A thread that blocks another signal is served by the thread that serves the window.
    /// - The handler needs 64 KiB of the faulting thread's stack.
    Signal,
}

/// Configuration of a window.
#[derive(Clone, Copy, Debug)]
pub struct WindowConfig {
    /// Address of the first byte in far memory; a multiple of the page length.
    pub base: VirtAddr,
    /// Length in bytes; a multiple of the page length.
    pub len: u64,
    /// Maximum number of cached pages, at least 1.
    pub frames_max: u64,
    /// The addresses of the window in the program.
    pub place: Addressing,
    /// The kind of faults that are served. Use [`Reach::Full`] unless the program never passes the window's addresses
    /// to the kernel. [`FaultMode::Signal`] serves at most [`Reach::UserMode`].
    pub reach: Reach,
    /// The way in which faults are served.
    pub faults: FaultMode,
}

/// Far memory as addresses of this process. Any thread may call the methods, but only one thread at a time acts on a
/// page.
#[derive(Debug)]
pub struct Window {
    base: VirtAddr,
    frames_max: u64,
    // Drop order: an unregistered address would read as zeros, so the mapping must go before the userfaultfd.
    signals: Option<Registered>,
    views: Views,
    doorbell: Doorbell,
    uffd: Userfaultfd,
    states: Arc<States>,
    frames: AtomicU64,
    lease: Option<Leased>,
}

/// The lease under which a window's pages may be used.
#[derive(Debug)]
struct Leased {
    lease: Arc<Lease>,
    /// Number of revocations by the watcher that this window has processed.
    takes: AtomicU64,
}

impl Window {
    /// Opens a window without cached pages.
    ///
    /// A forked child does not inherit the mapping: a touch there is a SIGSEGV instead of wrong bytes.
    ///
    /// # Errors
    /// - [`OpenError::NotPermitted`] if this process may not serve faults of the requested kind.
    /// - [`OpenError::Setting`] if the addresses are invalid or in use.
    /// - [`OpenError::System`] if the kernel lacks a feature.
    pub fn open(config: &WindowConfig) -> Result<Self, OpenError> {
        let WindowConfig { base, len, frames_max, place, reach, faults } = *config;
        let len = usize::try_from(len).ok().filter(|&len| len > 0 && len.is_multiple_of(PAGE_LEN));
        let Some(len) = len.filter(|_| base.0.is_multiple_of(PAGE_LEN as u64)) else {
            return Err(setting("window", format!("{} bytes at {base}", config.len), "use whole pages"));
        };
        if frames_max == 0 {
            return Err(setting("local limit", "0".into(), "use a limit of at least one page"));
        }
        let uffd = match faults {
            FaultMode::Handler => Userfaultfd::open(reach, Features::WINDOW)?,
            FaultMode::Signal => Userfaultfd::open(Reach::UserMode, Features::WINDOW.and(Features::SIGBUS))?,
        };
        let views = Views::open(base, len, place)?;
        let faulting = Faulting::MISSING.and(Faulting::MINOR).and(Faulting::WRITE_PROTECTED);
        // SAFETY: the program's view is ours and new; the caller knows that the window must be served.
        unsafe { uffd.register(views.program(), len, faulting) }.map_err(|e| OpenError::System {
            doing: "serve faults of the window".into(),
            source: e.into(),
        })?;
        let doorbell = Doorbell::open()?;
        let states = Box::<[AtomicU8]>::new_zeroed_slice(len / PAGE_LEN);
        // SAFETY: an AtomicU8 of zero bits has the value 0.
        let states = Arc::new(unsafe { states.assume_init() });
        let addrs = views.program()..views.program() + len;
        let register = || Registered::new(addrs, Arc::clone(&states));
        let signals = (faults == FaultMode::Signal).then(register).transpose()?;
        let frames = AtomicU64::new(0);
        Ok(Self { base, frames_max, signals, views, doorbell, uffd, states, frames, lease: None })
    }

    /// Puts the window under a lease. Each installed page then costs one more system call, because a page must be in
    /// the file before it is mapped.
    ///
    /// # Errors
    /// [`OpenError`] if the system has no memory or descriptors left, or uses huge pages for the file.
    pub fn under_lease(mut self) -> Result<Self, OpenError> {
        let lease = Arc::new(Lease::open(self.len())?);
        self.lease = Some(Leased { lease, takes: AtomicU64::new(0) });
        Ok(self)
    }

    /// Returns the lease on the pages; `None` if they may be used without one.
    #[must_use]
    pub fn lease(&self) -> Option<&Arc<Lease>> {
        self.lease.as_ref().map(|leased| &leased.lease)
    }

    /// Starts a process that revokes the pages when the lease ends, as long as the returned value lives. The process
    /// runs on while this one is stopped.
    ///
    /// # Errors
    /// The system's error if it allows no such process, or the window has no lease. [`Window::watcher`] works in a
    /// thread.
    pub fn watch_apart(&self) -> io::Result<WatcherProcess> {
        let apart = WatcherProcess::start(self.watcher()?)?;
        if let Some(lease) = self.lease() {
            lease.watched_by(apart.ended().try_clone_to_owned()?);
        }
        Ok(apart)
    }

    /// Creates a watcher, which revokes the pages when the lease ends.
    ///
    /// # Errors
    /// The system's error if no descriptors are left, or the window has no lease.
    pub fn watcher(&self) -> io::Result<Watcher> {
        let lease = self.lease().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Watcher::of(lease, self.views.file())
    }

    /// Returns the address of the first byte in far memory.
    #[must_use]
    pub const fn base(&self) -> VirtAddr {
        self.base
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.views.len() as u64
    }

    /// Returns false: a window has at least one page.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Returns the maximum number of cached pages.
    #[must_use]
    pub const fn frames_max(&self) -> u64 {
        self.frames_max
    }

    /// Returns the number of cached pages.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames.load(Ordering::Acquire)
    }

    /// Returns true if the page is cached, mapped by the program or not.
    #[must_use]
    pub fn has_frame(&self, page: Page) -> bool {
        self.state(self.index(page)).has_frame()
    }

    /// Returns the memory of the cached pages in bytes, as the kernel counts it.
    ///
    /// # Panics
    /// Panics if the system cannot inspect the window's file.
    #[must_use]
    pub fn bytes_taken(&self) -> u64 {
        self.views.bytes_taken()
    }

    /// Returns the program's side of the window. Its accesses wait while the window is not served.
    #[must_use]
    pub const fn memory(&self) -> Memory<'_> {
        Memory::new(&self.views, self.signals.is_none())
    }

    /// Returns the page that a thread waits for; `None` for an address outside the window.
    #[must_use]
    pub fn page_of(&self, fault: &Fault) -> Option<Page> {
        let offset = fault.addr.checked_sub(self.views.program())?;
        (offset < self.views.len()).then(|| Page::of(VirtAddr(self.base.0 + offset as u64)))
    }

    /// Returns true if the page's bytes are cached.
    ///
    /// # Panics
    /// Panics if the page is not in the window.
    #[must_use]
    pub fn has(&self, page: Page) -> bool {
        self.state(self.index(page)).has_frame()
    }

    pub(super) const fn uffd(&self) -> &Userfaultfd {
        &self.uffd
    }

    pub(super) const fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// Returns the waiting threads, if faults are signals.
    pub(super) fn signals(&self) -> Option<&Signals> {
        self.signals.as_ref().map(Registered::signals)
    }

    /// Returns a touch in the form of a kernel report. If the machine does not report whether it was a write, a touch
    /// of a read-only page was one.
    pub(super) fn fault_of(&self, Touch { addr, write }: Touch) -> Fault {
        let state = self.state((addr - self.views.program()) / PAGE_LEN);
        let write = write.unwrap_or(state == State::ReadOnly);
        let cause = match state {
            State::Gone | State::Poisoned => Cause::Missing,
            State::ReadOnly | State::Writable if write => Cause::WriteProtected,
            State::ReadOnly | State::Writable | State::Unmapped => Cause::Minor,
        };
        Fault { addr, cause, write, thread: 0 }
    }

    /// Wakes the threads that wait for these pages if faults are signals; the kernel does not know those threads.
    fn woken(&self, pages: Range<usize>) {
        if let Some(signals) = self.signals() {
            signals.wake(&(self.place(pages.start)..self.place(pages.end)));
        }
    }

    /// Installs pages that are not cached, from `first` on, with one system call, and wakes the threads that wait for
    /// them.
    ///
    /// # Panics
    /// Panics if `bytes` are not whole pages of the window, a page is cached, or the limit is exceeded.
    pub fn install_run(&self, first: Page, bytes: &[u8], access: Access) {
        assert!(bytes.len().is_multiple_of(PAGE_LEN), "whole pages");
        let pages = self.take_frames(first, bytes.len() / PAGE_LEN, access);
        if self.lease.is_some() {
            return self.fill_run(pages, bytes, access);
        }
        // SAFETY: pages of the registered view that no thread can see yet; `bytes` was fetched for them.
        let copied = unsafe { self.uffd.copy_all(self.place(pages.start), bytes, mapping(access)) };
        copied.unwrap_or_else(|errno| panic!("a page that was missing: {errno}"));
        self.woken(pages);
    }

    /// Counts pages as cached from now on.
    fn take_frames(&self, first: Page, count: usize, access: Access) -> Range<usize> {
        let pages = self.run(first, count);
        let before = self.frames.fetch_add(count as u64, Ordering::AcqRel);
        assert!(before + count as u64 <= self.frames_max, "room was made for a page before it came");
        for page in pages.clone() {
            let was = self.swap(page, State::shown(access));
            assert!(!was.has_frame(), "{:?} is cached already", self.page(page));
        }
        pages
    }

    /// Writes pages to the file and maps them. If the lease is over, they become Unmapped instead.
    fn fill_run(&self, pages: Range<usize>, bytes: &[u8], access: Access) {
        self.views.write(pages.start * PAGE_LEN, bytes);
        if self.is_settled() {
            // SAFETY: pages of the registered view; the file has their bytes.
            match unsafe { self.uffd.map(self.place(pages.start), bytes.len(), mapping(access)) } {
                Ok(()) => return self.woken(pages),
                // A hole: the pages were just revoked.
                Err(Stopped { errno: Errno::FAULT, .. }) => _ = self.is_settled(),
                Err(Stopped { errno, .. }) => panic!("pages that were missing cannot be mapped: {errno}"),
            }
        }
        // Again: the watcher may have revoked parts during the first write.
        self.views.write(pages.start * PAGE_LEN, bytes);
        for index in pages {
            self.swap(index, State::Unmapped);
            self.try_again(self.page(index));
        }
    }

    /// Returns false if pages were revoked: then all are Unmapped, and none is mapped before the next lease. Call
    /// this after each change of the file.
    fn is_settled(&self) -> bool {
        let Some(Leased { lease, takes }) = &self.lease else { return true };
        let known = takes.load(Ordering::Acquire);
        if !lease.is_over() && lease.takes() == known {
            return true;
        }
        lease.wait_taken(self.views.file());
        if lease.takes() != known {
            takes.store(lease.takes(), Ordering::Release);
            lease.give_back(|start, bytes| {
                for (index, bytes) in (start / PAGE_LEN..).zip(bytes.as_chunks::<PAGE_LEN>().0) {
                    if self.state(index).has_frame() {
                        self.swap(index, State::Unmapped);
                        self.views.write(index * PAGE_LEN, bytes);
                    }
                }
            });
        }
        !lease.is_over()
    }

    /// Serves a fault on a cached page with these rights: maps the page again if necessary, and wakes the thread.
    /// Also for pages that were unmapped and are used again.
    ///
    /// # Panics
    /// Panics if the page is not cached.
    pub fn remap(&self, page: Page, access: Access) {
        let index = self.index(page);
        if !self.is_settled() {
            return self.try_again(page);
        }
        let was = self.swap(index, State::shown(access));
        assert!(was.has_frame(), "{page:?} is cached");
        if was == State::ReadOnly && access == Access::Modified {
            return self.protect(index, Mapping::Writable);
        }
        let start = self.place(index);
        // SAFETY: a page of the registered view; its frame holds its bytes.
        match unsafe { self.uffd.map(start, PAGE_LEN, mapping(access)) } {
            Ok(()) => self.woken(index..index + 1),
            // The page is mapped, perhaps still with its earlier protection.
            Err(Stopped { errno: Errno::EXIST, .. }) => match access {
                Access::Modified => self.protect(index, Mapping::Writable),
                Access::Shared => self.try_again(page),
            },
            // A hole: the page was just revoked.
            Err(Stopped { errno: Errno::FAULT, .. }) if !self.is_settled() => self.try_again(page),
            Err(Stopped { errno, .. }) => panic!("{page:?} cannot be mapped: {errno}"),
        }
    }

    /// Removes the poison of a page: the next touch waits as at first. Other pages stay as they are.
    ///
    /// # Panics
    /// Panics if the page is not in the window.
    pub fn unpoison(&self, page: Page) {
        let index = self.index(page);
        let poisoned = State::Poisoned as u8;
        let changed = self.states[index].compare_exchange(
            poisoned,
            State::Gone as u8,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if changed.is_ok() {
            self.views.unmap_from_program(index * PAGE_LEN, PAGE_LEN);
        }
    }

    /// Makes every touch of an uncached page end in SIGBUS, because the window will not be served any more.
    pub fn abandon(&self) {
        let mut pages = self;
        for index in 0..self.states.len() {
            if self.state(index) == State::Gone {
                pages.poison(self.page(index));
            }
        }
    }

    fn try_again(&self, page: Page) {
        let index = self.index(page);
        self.uffd.wake(self.place(index), PAGE_LEN).expect("a page of our own range");
        self.woken(index..index + 1);
    }

    fn protect(&self, index: usize, mapping: Mapping) {
        // SAFETY: a page of the registered view, changed by its owner.
        let result = unsafe { self.uffd.protect(self.place(index), PAGE_LEN, mapping) };
        result.expect("a page of our own range");
        if mapping == Mapping::Writable {
            self.woken(index..index + 1);
        }
    }

    fn punch(&self, pages: Range<usize>) {
        self.views.punch(pages.start * PAGE_LEN, pages.len() * PAGE_LEN);
        self.frames.fetch_sub(pages.len() as u64, Ordering::AcqRel);
    }

    fn run(&self, first: Page, count: usize) -> Range<usize> {
        let start = self.index(first);
        assert!(count <= self.states.len() - start, "{count} pages from {first:?} leave the window");
        start..start + count
    }

    /// Returns the index of a page in the window.
    fn index(&self, page: Page) -> usize {
        let offset = page.addr().0.checked_sub(self.base.0);
        let index = offset.and_then(|n| usize::try_from(n).ok()).map(|n| n / PAGE_LEN);
        index.filter(|&n| n < self.states.len()).unwrap_or_else(|| panic!("{page:?} is in the window"))
    }

    fn page(&self, index: usize) -> Page {
        Page::of(VirtAddr(self.base.0 + (index * PAGE_LEN) as u64))
    }

    /// Returns the program's address of a page.
    fn place(&self, index: usize) -> usize {
        self.views.program() + index * PAGE_LEN
    }

    fn state(&self, index: usize) -> State {
        State::decode(self.states[index].load(Ordering::Acquire))
    }

    fn swap(&self, index: usize, to: State) -> State {
        State::decode(self.states[index].swap(to as u8, Ordering::AcqRel))
    }
}

/// Called by the owner of the window's pages: threads may share the window, and one of them is the agent.
impl Pages for &Window {
    fn install(&mut self, page: Page, bytes: &[u8; PAGE_LEN], access: Access) {
        let index = self.index(page);
        match self.state(index) {
            State::ReadOnly => {
                assert_eq!(access, Access::Modified, "{page:?} is Shared already");
                self.swap(index, State::Writable);
                self.protect(index, Mapping::Writable);
                self.is_settled();
            }
            // The lease revoked the page, and the cache that fetched it does not know yet: the file has its bytes.
            State::Unmapped if self.lease.is_some() => self.try_again(page),
            _ => self.install_run(page, bytes, access),
        }
    }

    fn write_protect(&mut self, page: Page) {
        let index = self.index(page);
        match self.state(index) {
            State::Writable => {
                self.protect(index, Mapping::ReadOnly);
                self.swap(index, State::ReadOnly);
                self.is_settled();
            }
            State::Unmapped => {} // no thread reaches it
            other => panic!("{page:?} is Modified, not {other:?}"),
        }
    }

    fn read(&self, page: Page, range: Range<usize>, out: &mut Vec<u8>) {
        let index = self.index(page);
        assert!(range.start <= range.end && range.end <= PAGE_LEN, "a range of a page");
        assert!(
            matches!(self.state(index), State::ReadOnly | State::Unmapped),
            "{page:?} is here, and frozen"
        );
        let (start, offset, len) = (out.len(), index * PAGE_LEN + range.start, range.len());
        self.views.read(offset, len, out);
        if self.lease.is_some() && !self.is_settled() {
            out.truncate(start); // perhaps bytes of a hole
            self.views.read(offset, len, out);
        }
    }

    fn unmap(&mut self, page: Page) {
        self.unmap_run(page, 1);
    }

    /// Unmaps only: no thread writes an unmapped page, and the kernel ends all stores before the call returns.
    fn write_protect_and_unmap(&mut self, page: Page) {
        self.unmap(page);
    }

    fn release(&mut self, page: Page) {
        let index = self.index(page);
        assert_eq!(self.swap(index, State::Gone), State::Unmapped, "{page:?} was zapped");
        self.punch(index..index + 1);
    }

    fn discard(&mut self, page: Page) {
        self.discard_run(page, 1);
    }

    fn wake(&mut self, page: Page) {
        match self.state(self.index(page)) {
            // Maps again, because the kernel may have unmapped a page that it moves or swaps, and would report the
            // same fault again.
            State::ReadOnly => self.remap(page, Access::Shared),
            State::Writable => self.remap(page, Access::Modified),
            State::Gone | State::Unmapped | State::Poisoned => self.try_again(page),
        }
    }

    fn poison(&mut self, page: Page) {
        let index = self.index(page);
        let was = self.swap(index, State::Poisoned);
        assert!(!was.has_frame(), "{page:?} is Invalid");
        // SAFETY: a page of the registered view that has no frame.
        match unsafe { self.uffd.poison_page(self.place(index)) } {
            Ok(()) => {}
            Err(Errno::EXIST) if was == State::Poisoned => {} // waiting threads were woken
            Err(errno) => panic!("{page:?} cannot be poisoned: {errno}"),
        }
        self.woken(index..index + 1);
    }
}

impl Mapped for &Window {
    fn remap(&mut self, page: Page, access: Access) {
        Window::remap(self, page, access);
    }

    fn unpoison(&mut self, page: Page) {
        Window::unpoison(self, page);
    }

    fn absorb(&mut self) {
        self.is_settled();
    }
}

fn setting(setting: &'static str, value: String, remedy: &str) -> OpenError {
    OpenError::Setting { setting, value, remedy: remedy.into() }
}
