//! The page cache over the coherence agent: which of the pages that the agent may hold are here.
//!
//! Key type: [`Paged`], which stands between the agent and the memory. To the agent it is the memory ([`Pages`]): what the agent does to a page
//! happens to it at once, and the cache is told in the same call, so that both always know the same of it. To the cache it is the backing: what the
//! cache wants of the agent is handed out by [`Paged::next_want`], in order, to the driver of the agent, when the agent is not in the midst of a step.
//!
//! ```text
//!    faults        wants           events
//!   ------> cache ------> driver --------> agent
//!             |  ^                           |
//! deactivate, |  |  granted, taken, settled  |  install, write_protect, unmap, ...
//!     map     v  '------------------.        v
//!           memory <------------------ Paged as Pages
//! ```
//!
//! The agent is the authority: a want that comes late, since the page was taken meanwhile, comes to nothing or is dropped.

use crate::agent::{Agent, Mapped, Pages};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use core::ops::Range;
use farmem_paging::{Action, Cache, Cause, Key, Layout, Op, Outcome, Source, Taken};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};

/// What the cache wants of the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// [`Event::Fault`](crate::agent::Event::Fault).
    Fetch(Page, Access),
    /// [`Event::Evict`](crate::agent::Event::Evict).
    GiveUp(Page),
}

/// What happened to pages that a thread may wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// It came, or may be written now, or is to be asked for again.
    Trigger(Page),
    /// It cannot be had.
    Refused(Page, Cause),
    /// The memory node has what was written to it, up to when it was given up.
    Settled(Page),
}

/// The pages of one window, all of them in far memory, at the same place.
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
    wants: VecDeque<Want>,
    told: Vec<Notice>,
    actions: Vec<Action>,
}

impl<M: Mapped> Paged<M> {
    /// No page is here, of `pages` pages from `first` on. `cache` is a [coherent](Cache::coherent) one.
    #[must_use]
    pub const fn new(memory: M, cache: Cache, first: Page, pages: u64) -> Self {
        Self {
            memory,
            cache,
            span: Span { first: first.number(), pages },
            wants: VecDeque::new(),
            told: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// What decides.
    pub const fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The memory under it.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// The memory under it, for what is done to it beside its pages.
    pub const fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// What the agent is to be asked next.
    pub fn next_want(&mut self) -> Option<Want> {
        self.wants.pop_front()
    }

    /// What happened since the last call; to be given back.
    pub fn take_told(&mut self) -> Vec<Notice> {
        mem::take(&mut self.told)
    }

    /// See [`Paged::take_told`].
    pub fn give_back(&mut self, mut told: Vec<Notice>) {
        told.clear();
        self.told = told;
    }

    /// A thread waits for a page.
    pub fn fault(&mut self, page: Page, access: Access) {
        let key = self.span.key(page);
        self.cache.fault(key, access == Access::Modified, &self.span, &mut self.actions);
        self.act(None);
    }

    /// Does what is not urgent ([`Cache::turn`]).
    pub fn turn(&mut self) {
        self.cache.turn(&self.span, &mut self.actions);
        self.act(None);
    }

    /// Gives up all pages that were written ([`Cache::flush`]).
    pub fn flush(&mut self) {
        self.cache.flush(&self.span, &mut self.actions);
        self.act(None);
    }

    /// Pages that the memory nodes are behind of.
    pub fn behind(&self) -> impl Iterator<Item = Page> {
        self.cache.behind().map(|key| self.span.page(key))
    }

    /// A thread waits for the agent's answer for this page.
    pub fn is_awaited(&self, page: Page) -> bool {
        self.cache.is_awaited_at(self.span.key(page))
    }

    /// The agent had no room for a request: it is asked again in a later turn.
    pub fn not_asked(&mut self, page: Page) {
        self.end_fetch(page, Outcome::Later, None);
    }

    /// The agent did not give up a page now: it is asked again in a later turn.
    pub fn not_evicted(&mut self, page: Page) {
        if let Some(op) = self.cache.write_back_of(self.span.key(page)) {
            self.cache.written_back(op, Outcome::Later, &self.span, &mut self.actions);
            self.act(None);
        }
    }

    /// The rack is gone: no page may be used any more, and what was not written back is lost. The agent is not to be run any more.
    pub fn abandon(&mut self) {
        let wants = mem::take(&mut self.wants);
        for want in wants {
            // What makes room has no frame in the cache any more.
            if let Want::GiveUp(page) = want
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

    /// The threads that wait for it look again.
    fn drop_page(&mut self, page: Page) {
        self.memory.discard(page);
        self.memory.wake(page);
    }

    /// Asserts every invariant, and that the agent knows the same; nothing is wanted of it.
    ///
    /// # Panics
    /// When that is not so.
    pub fn check(&self, agent: &Agent) {
        self.cache.check();
        assert!(self.wants.is_empty(), "the agent was told what is wanted: {:?}", self.wants);
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
        self.told.push(Notice::Settled(page));
        if let Some(op) = self.cache.write_back_of(self.span.key(page)) {
            self.cache.written_back(op, Outcome::Done, &self.span, &mut self.actions);
            self.act(None);
        }
    }

    /// Carries out what the cache says; what concerns the agent waits for its turn. `bytes` are those that just came.
    fn act(&mut self, bytes: Option<&[u8; PAGE_LEN]>) {
        let mut actions = mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Fetch { first, access, .. } => {
                    self.wants.push_back(Want::Fetch(self.span.page(first), access));
                }
                Action::WriteBack { op } => self.want_given_up(op),
                Action::Discard { key } => self.wants.push_back(Want::GiveUp(self.span.page(key))),
                Action::Install { first, access, .. } => {
                    let page = self.span.page(first);
                    self.memory.install(page, bytes.expect("a page that came has bytes"), access);
                    self.told.push(Notice::Trigger(page));
                }
                Action::Map { key, access } => {
                    let page = self.span.page(key);
                    self.memory.remap(page, access);
                    self.told.push(Notice::Trigger(page));
                }
                Action::Deactivate { first, count } => {
                    for page in first.page..first.page + u64::from(count) {
                        self.memory.unmap(self.span.page(Key { page, ..first }));
                    }
                }
                Action::Wake { key } => {
                    let page = self.span.page(key);
                    self.memory.wake(page);
                    self.told.push(Notice::Trigger(page));
                }
                Action::Poison { key, why } => {
                    let page = self.span.page(key);
                    self.memory.poison(page);
                    self.told.push(Notice::Refused(page, why));
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

    fn want_given_up(&mut self, op: Op) {
        let pages = self.cache.pages_of(op).map(|key| Want::GiveUp(self.span.page(key)));
        self.wants.extend(pages);
    }

    /// The page's bytes are not here any more.
    fn is_gone(&mut self, page: Page) {
        // Whatever the cache wanted to be given up by then.
        self.wants.retain(|want| *want != Want::GiveUp(page));
    }

    fn took(&mut self, page: Page, taken: Taken) {
        self.cache.taken(self.span.key(page), taken);
    }
}

/// As the agent sees it.
impl<M: Mapped> Pages for Paged<M> {
    fn install(&mut self, page: Page, bytes: &[u8; PAGE_LEN], access: Access) {
        self.end_fetch(page, Outcome::Granted(access), Some(bytes));
    }

    fn write_protect(&mut self, page: Page) {
        self.memory.write_protect(page);
        self.took(page, Taken::Write);
    }

    fn read(&self, page: Page, range: Range<usize>, out: &mut Vec<u8>) {
        self.memory.read(page, range, out);
    }

    fn unmap(&mut self, page: Page) {
        self.memory.unmap(page);
        self.took(page, Taken::Away);
    }

    fn write_protect_and_unmap(&mut self, page: Page) {
        self.memory.write_protect_and_unmap(page);
        self.took(page, Taken::Away);
    }

    fn release(&mut self, page: Page) {
        self.memory.release(page);
        self.is_gone(page);
        self.end_write_back(page);
    }

    fn discard(&mut self, page: Page) {
        self.memory.discard(page);
        self.is_gone(page);
        self.took(page, Taken::Gone);
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
