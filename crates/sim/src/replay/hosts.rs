//! A blade: its cached pages, and their order of use.

use farmem_host::agent::{Agent, Bounds};
use farmem_wire::message::{Access, FetchId, Page};
use std::collections::BTreeMap;

/// No page.
pub(super) const NO_FRAME: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Frame {
    access: Option<Access>,
    dirty: bool,
    newer: u32,
    older: u32,
}

/// The pages in a blade's memory, by index in the workload's list, in the order of use.
#[derive(Debug)]
pub(super) struct Resident {
    frames: Vec<Frame>,
    newest: u32,
    oldest: u32,
    len: usize,
}

impl Resident {
    pub(super) fn new(pages: usize) -> Self {
        let frame = Frame { access: None, dirty: false, newer: NO_FRAME, older: NO_FRAME };
        Self { frames: vec![frame; pages], newest: NO_FRAME, oldest: NO_FRAME, len: 0 }
    }

    pub(super) fn access(&self, page: u32) -> Option<Access> {
        self.frames[page as usize].access
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn oldest(&self) -> u32 {
        self.oldest
    }

    pub(super) fn newer(&self, page: u32) -> u32 {
        self.frames[page as usize].newer
    }

    pub(super) fn is_dirty(&self, page: u32) -> bool {
        self.frames[page as usize].dirty
    }

    pub(super) fn put(&mut self, page: u32, access: Access) {
        if self.access(page).is_some() {
            self.unlink(page);
        }
        self.frames[page as usize].access = Some(access);
        self.link(page);
    }

    /// Takes the write access from a page.
    pub(super) fn write_protect(&mut self, page: u32) {
        self.frames[page as usize].access = Some(Access::Shared);
    }

    pub(super) fn take(&mut self, page: u32) {
        if self.access(page).is_some() {
            self.unlink(page);
            self.frames[page as usize].access = None;
            self.frames[page as usize].dirty = false;
        }
    }

    pub(super) fn touch(&mut self, page: u32, write: bool) {
        self.frames[page as usize].dirty |= write;
        if self.newest != page {
            self.unlink(page);
            self.link(page);
        }
    }

    fn link(&mut self, page: u32) {
        let newest = self.newest;
        let frame = &mut self.frames[page as usize];
        (frame.newer, frame.older) = (NO_FRAME, newest);
        match self.frames.get_mut(newest as usize) {
            Some(frame) => frame.newer = page,
            None => self.oldest = page,
        }
        self.newest = page;
        self.len += 1;
    }

    fn unlink(&mut self, page: u32) {
        let Frame { newer, older, .. } = self.frames[page as usize];
        match self.frames.get_mut(newer as usize) {
            Some(frame) => frame.older = older,
            None => self.newest = older,
        }
        match self.frames.get_mut(older as usize) {
            Some(frame) => frame.newer = newer,
            None => self.oldest = newer,
        }
        self.len -= 1;
    }
}

/// The retry state of a request.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct RetryTimer {
    /// Number of `Busy` answers.
    pub(super) tries: u32,
    /// Time of the next retransmission.
    pub(super) due: u64,
}

/// A blade.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) agent: Agent,
    pub(super) resident: Resident,
    /// The timers of open requests.
    pub(super) retry_timers: BTreeMap<Page, RetryTimer>,
    /// The blade's cores, by index in the rack's list.
    pub(super) cores: std::ops::Range<usize>,
    /// Time until which the library's lock is held.
    pub(super) lock_free: u64,
}

impl Host {
    /// Returns a blade whose agent has no limits: the rack enforces the limit of its memory.
    pub(super) fn new(pages: usize, cores: std::ops::Range<usize>) -> Self {
        let many = usize::MAX / 2;
        let bounds = Bounds { pages: many, requests: many, evictions: many, pending_acks: many };
        let agent = Agent::new(bounds, FetchId(1));
        Self { agent, resident: Resident::new(pages), retry_timers: BTreeMap::new(), cores, lock_free: 0 }
    }
}
