//! The page cache over the coherence agent: decides which of the agent's pages stay in local memory.
//!
//! Key type: [`Paged`], which stands between the agent and the memory. To the agent, `Paged` is the memory ([`Pages`]): each
//! call of the agent takes effect at once and informs the cache, so that both always agree. To the cache, `Paged` is the
//! backing: [`Paged::next_request`] hands the cache's requests to the agent's driver, in order, between the agent's steps.
//!
//! ```text
//!    faults        requests        events
//!   ------> cache ------> driver --------> agent
//!             |  ^                           |
//! deactivate, |  |  granted, taken, settled  |  install, write_protect, unmap, ...
//!     map     v  '------------------.        v
//!           memory <------------------ Paged as Pages
//! ```
//!
//! The agent is the authority: a request that comes late, because the page was recalled meanwhile, has no effect or is dropped.

use crate::agent::{Agent, Mapped, Pages};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use core::ops::Range;
use farmem_paging::{Action, Cache, Cause, Key, Layout, Op, Outcome, Revocation, Source};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};

/// A request of the cache to the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageRequest {
    /// [`Event::Fault`](crate::agent::Event::Fault).
    Fetch(Page, Access),
    /// [`Event::Evict`](crate::agent::Event::Evict).
    GiveUp(Page),
}

/// An event of a page that a thread may wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The page was installed or became writable, or its request must be repeated.
    Trigger(Page),
    /// The page is not available.
    Refused(Page, Cause),
    /// The memory node has acknowledged the write-back of the page.
    Settled(Page),
}

/// The pages of one window. Each page lies in far memory at the same offset.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: u64,
    pages: u64,
}

impl Span {
    fn key(self, page: Page) -> Key {
        Key { space: 0, page: page.number() - self.first }
    }

    fn page(self, key: Key) -> Page {
        Page::of(VirtAddr((self.first + key.page) * PAGE_LEN as u64))
    }
}

impl Layout for Span {
    fn source(&self, key: Key) -> Source {
        if key.page < self.pages { Source::Far(key.page) } else { Source::Elsewhere }
    }

    fn home(&self, key: Key) -> Option<u64> {
        Some(key.page)
    }
}

/// A cache of pages that hosts share, over their memory.
#[derive(Debug)]
pub struct Paged<M> {
    memory: M,
    cache: Cache,
    span: Span,
    requests: VecDeque<PageRequest>,
    notices: Vec<Notice>,
    actions: Vec<Action>,
}

impl<M: Mapped> Paged<M> {
    /// Returns an empty cache of `pages` pages from `first` on. `cache` is a [coherent](Cache::coherent) one.
    #[must_use]
    pub const fn new(memory: M, cache: Cache, first: Page, pages: u64) -> Self {
        Self {
            memory,
            cache,
            span: Span { first: first.number(), pages },
            requests: VecDeque::new(),
            notices: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// Returns the cache that decides.
    pub const fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Returns the memory under the cache.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the memory under the cache, for changes other than to its pages.
    pub const fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Removes the next request to the agent.
    pub fn next_request(&mut self) -> Option<PageRequest> {
        self.requests.pop_front()
    }

    /// Takes the notices since the last call. The caller returns the vector with [`Paged::recycle_notices`].
    pub fn take_notices(&mut self) -> Vec<Notice> {
        mem::take(&mut self.notices)
    }

    /// Takes the vector of [`Paged::take_notices`] back for reuse.
    pub fn recycle_notices(&mut self, mut notices: Vec<Notice>) {
        notices.clear();
        self.notices = notices;
    }

    /// Handles a fault of a thread.
    pub fn fault(&mut self, page: Page, access: Access) {
        let key = self.span.key(page);
        self.cache.fault(key, access == Access::Modified, &self.span, &mut self.actions);
        self.act(None);
    }

    /// Does background work ([`Cache::turn`]).
    pub fn turn(&mut self) {
        self.cache.turn(&self.span, &mut self.actions);
        self.act(None);
    }

    /// Gives up all dirty pages ([`Cache::flush`]).
    pub fn flush(&mut self) {
        self.cache.flush(&self.span, &mut self.actions);
        self.act(None);
    }

    /// Returns the pages whose write-back is pending.
    pub fn behind(&self) -> impl Iterator<Item = Page> {
        self.cache.behind().map(|key| self.span.page(key))
    }

    /// Returns true if a thread waits for the agent's answer for this page.
    pub fn is_awaited(&self, page: Page) -> bool {
        self.cache.is_awaited_at(self.span.key(page))
    }

    /// Records that the agent had no room for the request. A later turn repeats it.
    pub fn fault_rejected(&mut self, page: Page) {
        self.end_fetch(page, Outcome::Later, None);
    }

    /// Records that the agent did not evict the page now. A later turn repeats the request.
    pub fn eviction_rejected(&mut self, page: Page) {
        if let Some(op) = self.cache.write_back_of(self.span.key(page)) {
            self.cache.written_back(op, Outcome::Later, &self.span, &mut self.actions);
            self.act(None);
        }
    }

    /// Gives up all pages because the rack is gone: no page may be used, and bytes not written back are lost.
    /// The agent must not run any more.
    pub fn abandon(&mut self) {
        let requests = mem::take(&mut self.requests);
        for request in requests {
            // A page that is being evicted has no frame in the cache any more.
            if let PageRequest::GiveUp(page) = request
                && self.cache.write_back_of(self.span.key(page)).is_none()
            {
                self.drop_page(page);
            }
        }
        self.cache.discard_all(&mut self.actions);
        for action in mem::take(&mut self.actions) {
            match action {
                Action::Discard { key } => self.drop_page(self.span.page(key)),
                Action::Poison { key, .. } => self.memory.poison(self.span.page(key)),
                _ => {}
            }
        }
    }

    /// Discards a page and wakes the threads that wait for it.
    fn drop_page(&mut self, page: Page) {
        self.memory.discard(page);
        self.memory.wake(page);
    }

    /// Asserts every invariant, and that cache and agent agree. No request may be pending.
    ///
    /// # Panics
    ///
    /// If an invariant is broken.
    pub fn check(&self, agent: &Agent) {
        self.cache.check();
        assert!(self.requests.is_empty(), "the agent was told what is wanted: {:?}", self.requests);
        for (page, cached) in agent.cached() {
            let right = self.cache.right(self.span.key(page));
            assert_eq!(right, Some(cached.access), "{page:?} is cached");
        }
        for (page, request) in agent.requests() {
            assert!(self.cache.fetch_of(self.span.key(page)).is_some(), "{page:?} is asked for: {request:?}");
        }
        for (page, _) in agent.writing() {
            assert!(self.cache.write_back_of(self.span.key(page)).is_some(), "{page:?} is written back");
        }
        assert_eq!(self.cache.pages().count(), agent.frames(), "both have as many pages");
        for key in self.cache.pages() {
            let page = self.span.page(key);
            assert_eq!(self.cache.right(key), agent.access(page), "{page:?}: both know what is right");
        }
    }

    fn end_fetch(&mut self, page: Page, outcome: Outcome, bytes: Option<&[u8; PAGE_LEN]>) {
        if let Some(op) = self.cache.fetch_of(self.span.key(page)) {
            self.cache.fetched(op, outcome, &self.span, &mut self.actions);
            self.act(bytes);
        }
    }

    fn end_write_back(&mut self, page: Page) {
        self.notices.push(Notice::Settled(page));
        if let Some(op) = self.cache.write_back_of(self.span.key(page)) {
            self.cache.written_back(op, Outcome::Done, &self.span, &mut self.actions);
            self.act(None);
        }
    }

    /// Carries out the cache's actions; actions for the agent are queued. `bytes` holds the page that just
    /// arrived.
    fn act(&mut self, bytes: Option<&[u8; PAGE_LEN]>) {
        let mut actions = mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Fetch { first, access, .. } => {
                    self.requests.push_back(PageRequest::Fetch(self.span.page(first), access));
                }
                Action::WriteBack { op } => self.request_eviction(op),
                Action::Discard { key } => self.requests.push_back(PageRequest::GiveUp(self.span.page(key))),
                Action::Install { first, access, .. } => {
                    let page = self.span.page(first);
                    self.memory.install(page, bytes.expect("a page that came has bytes"), access);
                    self.notices.push(Notice::Trigger(page));
                }
                Action::Map { key, access } => {
                    let page = self.span.page(key);
                    self.memory.remap(page, access);
                    self.notices.push(Notice::Trigger(page));
                }
                Action::Deactivate { first, count } => {
                    for page in first.page..first.page + u64::from(count) {
                        self.memory.unmap(self.span.page(Key { page, ..first }));
                    }
                }
                Action::Wake { key } => {
                    let page = self.span.page(key);
                    self.memory.wake(page);
                    self.notices.push(Notice::Trigger(page));
                }
                Action::Poison { key, cause } => {
                    let page = self.span.page(key);
                    self.memory.poison(page);
                    self.notices.push(Notice::Refused(page, cause));
                }
                Action::Zeros { .. } | Action::Copy { .. } => {
                    unreachable!("all of a window is in far memory")
                }
                Action::Allow { first, .. } => {
                    unreachable!("{first:?}: the right to write is asked for, a page at a time")
                }
                Action::Keep { key, .. } => {
                    unreachable!("{key:?} has no heir: no process forks what hosts share")
                }
            }
        }
        self.actions = actions;
    }

    fn request_eviction(&mut self, op: Op) {
        let pages = self.cache.pages_of(op).map(|key| PageRequest::GiveUp(self.span.page(key)));
        self.requests.extend(pages);
    }

    /// Records that the page's bytes are not here any more.
    fn is_gone(&mut self, page: Page) {
        // A pending request to give the page up is void.
        self.requests.retain(|request| *request != PageRequest::GiveUp(page));
    }

    fn revoke(&mut self, page: Page, revocation: Revocation) {
        self.cache.revoke(self.span.key(page), revocation);
    }
}

/// The memory as the agent sees it.
impl<M: Mapped> Pages for Paged<M> {
    fn install(&mut self, page: Page, bytes: &[u8; PAGE_LEN], access: Access) {
        self.end_fetch(page, Outcome::Granted(access), Some(bytes));
    }

    fn write_protect(&mut self, page: Page) {
        self.memory.write_protect(page);
        self.revoke(page, Revocation::Write);
    }

    fn read(&self, page: Page, range: Range<usize>, out: &mut Vec<u8>) {
        self.memory.read(page, range, out);
    }

    fn unmap(&mut self, page: Page) {
        self.memory.unmap(page);
        self.revoke(page, Revocation::AllDirty);
    }

    fn write_protect_and_unmap(&mut self, page: Page) {
        self.memory.write_protect_and_unmap(page);
        self.revoke(page, Revocation::AllDirty);
    }

    fn release(&mut self, page: Page) {
        self.memory.release(page);
        self.is_gone(page);
        self.end_write_back(page);
    }

    fn discard(&mut self, page: Page) {
        self.memory.discard(page);
        self.is_gone(page);
        self.revoke(page, Revocation::AllClean);
    }

    fn wake(&mut self, page: Page) {
        match self.cache.fetch_of(self.span.key(page)) {
            Some(_) => self.end_fetch(page, Outcome::Void, None),
            None => self.memory.wake(page),
        }
    }

    fn poison(&mut self, page: Page) {
        self.end_fetch(page, Outcome::Lost, None);
    }

    fn refuse(&mut self, page: Page) {
        self.end_fetch(page, Outcome::Refused, None);
    }

    fn clean(&mut self, page: Page) {
        self.end_write_back(page);
    }
}
