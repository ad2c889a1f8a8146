//! The host's half of the coherence protocol.
//!
//! The agent knows which pages the host caches, with which access, and which messages the host owes to the
//! switch and the memory nodes. Key type: [`Agent`], one step per event; the agent knows neither time nor
//! bytes. Each step emits [`Action`]s, which the caller carries out in order: a page is write-protected
//! before its bytes are sent, and unmapped before the switch is told that the page is gone. The role around
//! the agent owns the timers, the buffer of each request, and the memory itself ([`Pages`]).
//!
//! Three sequence numbers order all messages (PROTOCOL 12.4).
//!
//! - A page's *grant* is the number under which the page was handed out. A recall with a larger number
//!   applies to the page; a recall with a smaller number is late.
//! - A request's *min_seq* is the largest number of any recall the request has seen. Messages sent before
//!   that number are void.
//! - A write-back carries the grant, so that the memory node can tell the write-back from a later one.
//!
//! Rules: PROTOCOL 12.17 to 12.25.

mod pages;
mod recall;
#[cfg(test)]
mod tests;

pub use pages::{Mapped, Pages};

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farmem_wire::Status;
use farmem_wire::message::{
    Access, Data, Done, FetchId, Get, Grant, Page, Part, Recall, RecallAck, Refusal, Seq, WriteBack,
    WriteBackAck,
};

/// Limits of an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Maximum number of cached pages.
    pub pages: usize,
    /// Maximum number of open page requests.
    pub requests: usize,
    /// Maximum number of concurrent write-backs for evictions. Write-backs for recalls are bounded by
    /// `pages`.
    pub evictions: usize,
    /// Maximum number of recalls that wait for write-backs.
    pub pending_acks: usize,
}

impl Default for Bounds {
    /// Returns limits of 262,144 pages (1 GiB), 256 requests, 1,024 evictions and 256 recalls.
    fn default() -> Self {
        Self { pages: 1 << 18, requests: 256, evictions: 1024, pending_acks: 256 }
    }
}

/// An input of the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A thread of the program waits for the page.
    Fault(Page, Access),
    /// The cache evicts the page.
    Evict(Page),
    /// A part of a page arrived. The caller holds its bytes for [`Action::Keep`].
    Data(Data),
    /// The switch grants the access that a request waits for.
    Grant(Grant),
    /// The switch recalls pages of a region.
    Recall(Recall),
    /// The memory node acknowledges a write-back.
    WriteBackAck(WriteBackAck),
    /// The switch refuses a request; the refusal says whether a retry can succeed.
    Refusal(Refusal),
    /// The timer of a page's request expired.
    Retry(Page),
    /// The timer of a page's write-back expired.
    RetryWriteBack(Page),
    /// The switch restarted: the host gives up every page handed out before this number (PROTOCOL 12.36).
    Flush(Seq),
    /// The lease ended: the host gives up all pages at once and drops all requests (PROTOCOL 12.35).
    LeaseEnded,
}

/// An effect that the caller carries out, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Copies the arrived bytes into their part of the buffer of the page's request.
    Keep(Page, Part),
    /// Calls [`Pages::install`] with the buffer of the page's request. The request has ended.
    Install(Page, Access),
    /// Calls [`Pages::poison`]. The page's request has ended because the page's bytes are lost.
    Poison(Page),
    /// Calls [`Pages::refuse`]. The page's request has ended because the domain may not access the page this
    /// way.
    Refuse(Page),
    /// Calls [`Pages::wake`].
    Wake(Page),
    /// Calls [`Pages::write_protect`].
    WriteProtect(Page),
    /// Calls [`Pages::unmap`].
    Unmap(Page),
    /// Calls [`Pages::release`].
    Release(Page),
    /// Calls [`Pages::discard`].
    Discard(Page),
    /// Calls [`Pages::clean`].
    Clean(Page),
    /// Sends a page request to the switch.
    Get(Get),
    /// Sends a completion notice to the switch.
    Done(Done),
    /// Sends a recall acknowledgement to the switch.
    RecallAck(RecallAck),
    /// Sends the page's bytes to the page's memory node.
    WriteBack(WriteBack),
}

/// The result of a step. Callers count it; some results lead to nothing else.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    /// The event took effect.
    Done,
    /// The event is late or a duplicate and had no effect.
    Stale,
    /// The message is older than a recall and void. The request may be sent again at once.
    Void,
    /// Another host is being served. The request should be sent again soon.
    Busy,
    /// The program has the page already, or a request for it is open.
    Present,
    /// A write-back of the page is in flight. The agent requests the page when the write-back ends.
    Waits,
    /// A limit is reached. The caller raises the fault again or retries the eviction; a recall counts as
    /// lost.
    Full,
    /// The host has no request ids left and must rejoin the rack.
    IdsUsedUp,
}

/// A page that the program may access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cached {
    /// The access that the program has.
    pub access: Access,
    /// The number under which the page was handed out.
    pub grant: Seq,
}

/// An open page request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// The requested access.
    pub access: Access,
    /// The request id.
    pub id: FetchId,
    /// The smallest valid number: messages sent under a smaller number are void.
    pub min_seq: Seq,
    /// The parts in the buffer, if any.
    pub partial: Option<PartialPage>,
    /// The number that the switch granted.
    pub granted: Option<Seq>,
}

/// The parts of a page in a request's buffer. All parts carry one number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PartialPage {
    /// The number.
    pub seq: Seq,
    /// True if the bytes need no separate grant.
    pub granted: bool,
    /// True if the switch waits for a done message.
    pub done_due: bool,
    /// Bit set of the parts that have arrived.
    parts: u16,
    count: u8,
}

impl PartialPage {
    /// Returns true if all parts have arrived.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.parts.count_ones() == self.count as u32
    }
}

/// A page whose write-back is in flight. Its bytes do not change until the node acknowledges.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Writing {
    /// The number under which the page was handed out.
    pub grant: Seq,
    /// The access that a thread waits for, if any. The agent requests it after the write-back.
    pub next_access: Option<Access>,
}

/// The coherence agent of a host.
#[derive(Clone, Debug)]
pub struct Agent {
    bounds: Bounds,
    cached: BTreeMap<Page, Cached>,
    requests: BTreeMap<Page, Request>,
    writing: BTreeMap<Page, Writing>,
    /// Recalls to acknowledge once their region has no write-back in flight. At most one per region.
    pending_acks: Vec<RecallAck>,
    /// The id of the next request. `None` if all ids are used up.
    next_id: Option<FetchId>,
    /// Pages that occupy a frame: cached, in write-back, or requested.
    frames: usize,
    /// The `min_seq` of new requests.
    min_seq: Seq,
}

impl Agent {
    /// Returns an agent with an empty cache. `first` is the first id of the host's generation.
    #[must_use]
    pub const fn new(bounds: Bounds, first: FetchId) -> Self {
        Self {
            bounds,
            cached: BTreeMap::new(),
            requests: BTreeMap::new(),
            writing: BTreeMap::new(),
            pending_acks: Vec::new(),
            next_id: Some(first),
            frames: 0,
            min_seq: Seq(0),
        }
    }

    /// Handles one event and appends the resulting actions to `out`, in order.
    pub fn step(&mut self, event: Event, out: &mut Vec<Action>) -> Outcome {
        match event {
            Event::Fault(page, access) => self.fault(page, access, out),
            Event::Evict(page) => self.evict(page, out),
            Event::Data(data) => self.data(&data, out),
            Event::Grant(grant) => self.grant(grant, out),
            Event::Recall(recall) => self.recall(&recall, out),
            Event::WriteBackAck(ack) => self.written(&ack, out),
            Event::Refusal(refusal) => self.refused(&refusal, out),
            Event::Retry(page) => self.retry(page, out),
            Event::RetryWriteBack(page) => self.retry_write_back(page, out),
            Event::Flush(seq) => self.flush(seq, out),
            Event::LeaseEnded => self.lease_ended(out),
        }
    }

    /// Returns the pages that the program may access, by number.
    pub fn cached(&self) -> impl Iterator<Item = (Page, &Cached)> {
        self.cached.iter().map(|(&page, cached)| (page, cached))
    }

    /// Returns the access that the program has to the page, if any.
    #[must_use]
    pub fn access(&self, page: Page) -> Option<Access> {
        self.cached.get(&page).map(|cached| cached.access)
    }

    /// Returns the open requests.
    pub fn requests(&self) -> impl Iterator<Item = (Page, &Request)> {
        self.requests.iter().map(|(&page, request)| (page, request))
    }

    /// Returns the write-backs in flight.
    pub fn writing(&self) -> impl Iterator<Item = (Page, &Writing)> {
        self.writing.iter().map(|(&page, writing)| (page, writing))
    }

    /// Returns the recalls that are not acknowledged yet.
    #[must_use]
    pub fn pending_acks(&self) -> &[RecallAck] {
        &self.pending_acks
    }

    /// Returns the agent's limits.
    #[must_use]
    pub const fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Returns the number of pages that occupy a frame: cached, in write-back, or requested. The local limit
    /// bounds this.
    #[must_use]
    pub const fn frames(&self) -> usize {
        self.frames
    }

    /// Handles a page fault (PROTOCOL 12.17). During a write-back the agent does not request the page,
    /// because the node still has older bytes.
    fn fault(&mut self, page: Page, access: Access, out: &mut Vec<Action>) -> Outcome {
        if self.access(page) >= Some(access) {
            out.push(Action::Wake(page));
            return Outcome::Present;
        }
        // If the open request is for reading, the thread that writes faults again once the page is installed.
        if self.requests.contains_key(&page) {
            return Outcome::Present;
        }
        if let Some(writing) = self.writing.get_mut(&page) {
            writing.next_access = writing.next_access.max(Some(access));
            return Outcome::Waits;
        }
        let has_frame = self.cached.contains_key(&page);
        if self.requests.len() == self.bounds.requests || !has_frame && self.frames == self.bounds.pages {
            return Outcome::Full;
        }
        let Some(id) = self.next_id else { return Outcome::IdsUsedUp };
        self.next_id = id.next();
        self.frames += usize::from(!has_frame);
        let request = Request { access, id, min_seq: self.min_seq, partial: None, granted: None };
        self.requests.insert(page, request);
        out.push(Action::Get(Get { page, access, id }));
        Outcome::Done
    }

    /// Evicts a page (PROTOCOL 12.22). If the node has the page's bytes, the frame is free at once and the
    /// switch need not know. Otherwise the agent begins a write-back.
    fn evict(&mut self, page: Page, out: &mut Vec<Action>) -> Outcome {
        let Some(&Cached { access, grant }) = self.cached.get(&page) else { return Outcome::Stale };
        if self.requests.contains_key(&page) {
            return Outcome::Waits;
        }
        if access == Access::Modified {
            if self.writing.len() >= self.bounds.evictions {
                return Outcome::Full;
            }
            self.cached.remove(&page);
            self.writing.insert(page, Writing { grant, next_access: None });
            out.extend([Action::WriteProtect(page), Action::Unmap(page)]);
            out.push(self.write_back(page, grant));
        } else {
            self.cached.remove(&page);
            self.frames -= give_up_shared(&self.writing, page, out);
        }
        Outcome::Done
    }

    /// Handles a part of a page (PROTOCOL 12.18, 12.19).
    fn data(&mut self, data: &Data, out: &mut Vec<Action>) -> Outcome {
        let Data { page, seq, granted, done_due, part, .. } = *data;
        let Some(request) = self.requests.get_mut(&page).filter(|request| request.id == data.id) else {
            // No request is open for this part, but the switch may still wait for a done message. An
            // ungranted part gets none: other hosts may still use the page, and a done would end the switch's
            // wait for them.
            if granted && done_due && part.index == 0 {
                out.push(Action::Done(Done { page, seq }));
            }
            return Outcome::Stale;
        };
        if seq < request.min_seq {
            return Outcome::Void;
        }
        if data.access != request.access || part.index >= part.count || part.count > Part::COUNT_MAX {
            return Outcome::Stale;
        }
        if data.lost {
            self.lose(data, out);
            return Outcome::Done;
        }
        let bit = 1 << part.index;
        match &mut request.partial {
            Some(partial) if partial.seq > seq => return Outcome::Stale,
            // Copies under one number have the same bytes, or the later copy is void. Parts of both copies
            // fit together.
            Some(partial) if partial.seq == seq && partial.count == part.count => {
                partial.parts |= bit;
                partial.granted |= granted;
                partial.done_due |= done_due;
            }
            partial => *partial = Some(PartialPage { seq, granted, done_due, parts: bit, count: part.count }),
        }
        out.push(Action::Keep(page, part));
        self.install(page, out);
        Outcome::Done
    }

    /// Handles the loss of the page's latest bytes with a host: the program gets an error (PROTOCOL 12.25).
    fn lose(&mut self, data: &Data, out: &mut Vec<Action>) {
        let Data { page, seq, granted, done_due, .. } = *data;
        self.requests.remove(&page);
        if self.cached.remove(&page).is_some() {
            out.push(Action::Discard(page));
        }
        self.frames -= 1;
        out.push(Action::Poison(page));
        if granted && done_due {
            out.push(Action::Done(Done { page, seq }));
        }
    }

    /// Handles a refusal. After `Busy` the request is sent again soon; any other status ends the request with
    /// an error.
    fn refused(&mut self, refusal: &Refusal, out: &mut Vec<Action>) -> Outcome {
        let Refusal { page, id, status } = *refusal;
        if self.requests.get(&page).is_none_or(|request| request.id != id) {
            return Outcome::Stale;
        }
        if status == Status::Busy {
            return Outcome::Busy;
        }
        self.requests.remove(&page);
        // The waiting thread must get the error, even if the page is readable: there is no error for writes
        // alone.
        if self.cached.remove(&page).is_some() {
            out.push(Action::Discard(page));
        }
        self.frames -= 1;
        out.push(Action::Refuse(page));
        Outcome::Done
    }

    /// Handles a grant: all sharers have given the page up (PROTOCOL 12.18). If no request is open for the
    /// grant, its done message was lost, so the agent sends another.
    fn grant(&mut self, grant: Grant, out: &mut Vec<Action>) -> Outcome {
        let Grant { page, id, seq } = grant;
        let Some(request) = self.requests.get_mut(&page).filter(|request| request.id == id) else {
            out.push(Action::Done(Done { page, seq }));
            return Outcome::Stale;
        };
        if seq < request.min_seq {
            return Outcome::Void;
        }
        request.granted = request.granted.max(Some(seq));
        self.install(page, out);
        Outcome::Done
    }

    /// Installs the page once all its parts have arrived and the grant has the same number.
    fn install(&mut self, page: Page, out: &mut Vec<Action>) {
        let Some(request) = self.requests.get(&page) else { return };
        let access = request.access;
        let Some(partial) = request.partial.filter(PartialPage::is_whole) else { return };
        let by_switch = request.granted == Some(partial.seq);
        if !partial.granted && !by_switch {
            return;
        }
        self.requests.remove(&page);
        self.cached.insert(page, Cached { access, grant: partial.seq });
        out.push(Action::Install(page, access));
        if partial.done_due || by_switch {
            out.push(Action::Done(Done { page, seq: partial.seq }));
        }
    }

    /// Handles the acknowledgement of a write-back (PROTOCOL 12.23). The agent frees the frame and continues
    /// requests and recalls that waited for it.
    fn written(&mut self, ack: &WriteBackAck, out: &mut Vec<Action>) -> Outcome {
        let page = ack.page;
        let Some(writing) = self.writing.get(&page).filter(|writing| writing.grant == ack.grant) else {
            return Outcome::Stale;
        };
        let next_access = writing.next_access;
        self.writing.remove(&page);
        if self.cached.contains_key(&page) {
            out.push(Action::Clean(page));
        } else {
            self.frames -= 1;
            out.push(Action::Release(page));
        }
        self.send_pending_acks(ack, out);
        if let Some(access) = next_access
            && self.fault(page, access, out) == Outcome::Full
        {
            // The thread faults again; there may be room by then.
            out.push(Action::Wake(page));
        }
        Outcome::Done
    }

    fn retry(&self, page: Page, out: &mut Vec<Action>) -> Outcome {
        let Some(&Request { access, id, .. }) = self.requests.get(&page) else { return Outcome::Stale };
        out.push(Action::Get(Get { page, access, id }));
        Outcome::Done
    }

    fn retry_write_back(&self, page: Page, out: &mut Vec<Action>) -> Outcome {
        let Some(&Writing { grant, .. }) = self.writing.get(&page) else { return Outcome::Stale };
        out.push(self.write_back(page, grant));
        Outcome::Done
    }

    /// Asserts the invariants that hold between two steps.
    ///
    /// # Panics
    ///
    /// If an invariant is broken.
    pub fn assert_invariants(&self) {
        assert!(self.frames <= self.bounds.pages, "the local limit holds");
        assert!(self.requests.len() <= self.bounds.requests, "requests within their bound");
        assert!(self.pending_acks.len() <= self.bounds.pending_acks, "recalls within their bound");
        let both = |page: &Page| self.cached.contains_key(page) && self.writing.contains_key(page);
        let asked = self.requests.keys().filter(|page| !self.cached.contains_key(page)).count();
        let twice = self.cached.keys().filter(|page| both(page)).count();
        let frames = self.cached.len() + self.writing.len() + asked - twice;
        assert_eq!(self.frames, frames, "frames are counted right");
        for (page, request) in &self.requests {
            assert!(!self.writing.contains_key(page), "{page:?} is not asked for while it is written back");
            assert!(self.access(*page) < Some(request.access), "{page:?} is asked for what it is not");
        }
        for page in self.writing.keys() {
            assert_ne!(
                self.access(*page),
                Some(Access::Modified),
                "{page:?} does not change while written back"
            );
        }
        for (index, pending_acks) in self.pending_acks.iter().enumerate() {
            assert!(self.is_writing_in(pending_acks), "{pending_acks:?} waits for something");
            assert!(
                self.pending_acks[..index].iter().all(|other| other.region != pending_acks.region),
                "{pending_acks:?} is there once"
            );
        }
    }
}

/// Takes a Shared page from the program. Returns the number of frames freed.
fn give_up_shared(writing: &BTreeMap<Page, Writing>, page: Page, out: &mut Vec<Action>) -> usize {
    if writing.contains_key(&page) {
        // The page was Modified, and its write-back is still in flight.
        out.push(Action::Unmap(page));
        0
    } else {
        out.push(Action::Discard(page));
        1
    }
}
