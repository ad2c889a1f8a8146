//! The host's half of the coherence protocol: which pages it caches, with which access, and what it owes the others.
//!
//! Key type: [`Agent`], one step per event; it knows neither time nor bytes. What it has done to the pages, and what it sends, comes
//! out as [`Action`]s, which are to be carried out in their order: a page is write-protected before its bytes are sent, and taken from the
//! program before the switch is told that it is gone. The role around it owns the timers, the buffer of each request, and the
//! memory itself ([`Pages`]).
//!
//! Three numbers order everything here (PROTOCOL 12.4). A page's *grant* is the number it was handed out under: a recall with a
//! larger one is about it, one with a smaller one is late. A request's *min_seq* is the largest number it saw a recall with: what
//! was sent before that is void. A write-back carries the grant, so that the memory node can tell it from a later one.
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

/// How much an agent keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Pages cached.
    pub pages: usize,
    /// Page requests open at once.
    pub requests: usize,
    /// Write-backs under way at once that were begun to make room; those that a recall asks for are bounded by the pages.
    pub evictions: usize,
    /// Recalls that wait for write-backs.
    pub owed: usize,
}

impl Default for Bounds {
    /// A quarter of a million pages (1 GiB), 256 requests, 1,024 evictions, 256 recalls.
    fn default() -> Self {
        Self { pages: 1 << 18, requests: 256, evictions: 1024, owed: 256 }
    }
}

/// What happens to an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A thread of the program waits for the page.
    Fault(Page, Access),
    /// The page is to make room.
    Evict(Page),
    /// A part of a page came; its bytes are at hand for [`Action::Keep`].
    Data(Data),
    /// The switch grants what a request waits for.
    Grant(Grant),
    /// The switch wants pages back.
    Recall(Recall),
    /// The memory node has a write-back.
    WriteBackAck(WriteBackAck),
    /// The switch will not serve a request now, or not at all.
    Refusal(Refusal),
    /// The timer of a page's request.
    Retry(Page),
    /// The timer of a page's write-back.
    RetryWriteBack(Page),
    /// Everything from before this number is to be given up, and what comes of it is void: the switch started anew (PROTOCOL 12.36).
    Flush(Seq),
    /// The lease ended: everything is to be given up at once, and no request is open any more (PROTOCOL 12.35).
    LeaseEnded,
}

/// What is to be done, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Copy the bytes at hand to their part of the buffer of the page's request.
    Keep(Page, Part),
    /// [`Pages::install`], from the buffer of the page's request, which ended.
    Install(Page, Access),
    /// [`Pages::poison`]; the page's request ended without the page, whose bytes are lost.
    Poison(Page),
    /// [`Pages::refuse`]; the page's request ended without the page, which the domain may not use so.
    Refuse(Page),
    /// [`Pages::wake`].
    Wake(Page),
    /// [`Pages::write_protect`].
    WriteProtect(Page),
    /// [`Pages::unmap`].
    Unmap(Page),
    /// [`Pages::release`].
    Release(Page),
    /// [`Pages::discard`].
    Discard(Page),
    /// [`Pages::clean`].
    Clean(Page),
    /// To the switch.
    Get(Get),
    /// To the switch.
    Done(Done),
    /// To the switch.
    RecallAck(RecallAck),
    /// To the page's memory node, with the page's bytes.
    WriteBack(WriteBack),
}

/// What came of an event that led to nothing else, or to something that is worth counting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    /// It did what it is for.
    Done,
    /// It is late or repeated, and was not needed.
    Stale,
    /// What came is older than a recall, and void: the request may be sent again at once.
    Void,
    /// Another host has its turn: the request is to be sent again soon.
    Busy,
    /// The page is the program's already, or will be: nothing to do.
    Present,
    /// The page's bytes are on their way to the memory node; it is asked for when they are there.
    Waits,
    /// A bound is reached: the fault is to be raised again, the eviction to be tried again, the recall counts as lost.
    Full,
    /// The host has no request ids left, and must join again.
    IdsUsedUp,
}

/// A page that the program may use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cached {
    /// For what.
    pub access: Access,
    /// Under which number it was handed out.
    pub grant: Seq,
}

/// A request that is not answered yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// What for.
    pub access: Access,
    /// Its name.
    pub id: FetchId,
    /// What was sent under a smaller number is void.
    pub min_seq: Seq,
    /// What the buffer holds, whole or not.
    pub partial: Option<PartialPage>,
    /// The number that the switch granted.
    pub granted: Option<Seq>,
}

/// The parts of a page in a request's buffer, all sent under one number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PartialPage {
    /// The number.
    pub seq: Seq,
    /// No grant is needed beside the bytes.
    pub granted: bool,
    /// The switch waits to hear that the page is in use.
    pub done_due: bool,
    /// The parts that are there, as bits.
    parts: u16,
    count: u8,
}

impl PartialPage {
    /// True when all parts are there.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.parts.count_ones() == self.count as u32
    }
}

/// A page whose bytes are on their way to the memory node. They stay as they are until the node has them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Writing {
    /// The number the page was handed out under.
    pub grant: Seq,
    /// What a thread wants of the page when that is over.
    pub wanted: Option<Access>,
}

/// The agent.
#[derive(Clone, Debug)]
pub struct Agent {
    bounds: Bounds,
    cached: BTreeMap<Page, Cached>,
    requests: BTreeMap<Page, Request>,
    writing: BTreeMap<Page, Writing>,
    /// Recalls that are answered when no write-back in their region is under way any more. No two of one region.
    owed: Vec<RecallAck>,
    /// The id of the next request; none when they are used up.
    next_id: Option<FetchId>,
    /// Pages that have bytes here, or will: cached, being written back, or asked for.
    frames: usize,
    /// The `min_seq` that requests begin with.
    min_seq: Seq,
}

impl Agent {
    /// An agent that caches nothing. `first` is the first id of the host's generation.
    #[must_use]
    pub const fn new(bounds: Bounds, first: FetchId) -> Self {
        Self {
            bounds,
            cached: BTreeMap::new(),
            requests: BTreeMap::new(),
            writing: BTreeMap::new(),
            owed: Vec::new(),
            next_id: Some(first),
            frames: 0,
            min_seq: Seq(0),
        }
    }

    /// Takes one event and writes what follows from it to `out`, in order.
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

    /// The pages that the program may use, by number.
    pub fn cached(&self) -> impl Iterator<Item = (Page, &Cached)> {
        self.cached.iter().map(|(&page, cached)| (page, cached))
    }

    /// What the program may do with the page, if anything.
    #[must_use]
    pub fn access(&self, page: Page) -> Option<Access> {
        self.cached.get(&page).map(|cached| cached.access)
    }

    /// The requests that are not answered yet.
    pub fn requests(&self) -> impl Iterator<Item = (Page, &Request)> {
        self.requests.iter().map(|(&page, request)| (page, request))
    }

    /// The write-backs under way.
    pub fn writing(&self) -> impl Iterator<Item = (Page, &Writing)> {
        self.writing.iter().map(|(&page, writing)| (page, writing))
    }

    /// The recalls that are not answered yet.
    #[must_use]
    pub fn owed(&self) -> &[RecallAck] {
        &self.owed
    }

    /// How much it may hold and have under way.
    #[must_use]
    pub const fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Pages that have bytes here, or will: what the local limit bounds.
    #[must_use]
    pub const fn frames(&self) -> usize {
        self.frames
    }

    /// A thread waits (PROTOCOL 12.17). A page on its way to the node is not asked for: what the node has is older.
    fn fault(&mut self, page: Page, access: Access, out: &mut Vec<Action>) -> Outcome {
        if self.access(page) >= Some(access) {
            out.push(Action::Wake(page));
            return Outcome::Present;
        }
        // One that was asked for to be read is asked for again when it is there: the thread that writes faults anew.
        if self.requests.contains_key(&page) {
            return Outcome::Present;
        }
        if let Some(writing) = self.writing.get_mut(&page) {
            writing.wanted = writing.wanted.max(Some(access));
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

    /// A page makes room (PROTOCOL 12.22): at once when the node has its bytes, which the switch need not know; else by a write-back.
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
            self.writing.insert(page, Writing { grant, wanted: None });
            out.extend([Action::WriteProtect(page), Action::Unmap(page)]);
            out.push(self.write_back(page, grant));
        } else {
            self.cached.remove(&page);
            self.frames -= give_up_shared(&self.writing, page, out);
        }
        Outcome::Done
    }

    /// Bytes came (PROTOCOL 12.18, 12.19).
    fn data(&mut self, data: &Data, out: &mut Vec<Action>) -> Outcome {
        let Data { page, seq, granted, done_due, part, .. } = *data;
        let Some(request) = self.requests.get_mut(&page).filter(|request| request.id == data.id) else {
            // No request waits for it, but the switch may wait for this host. Not so when it has not granted it yet: others may still
            // use the page then, and a done would end the wait for them.
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
            // Copies of one number have the same bytes, or the later one is void: parts of both fit together.
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

    /// The latest bytes of the page died with a host: the program learns it (PROTOCOL 12.25).
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

    /// The switch said no. Not now is only a reason to ask again soon; never is the program's to know.
    fn refused(&mut self, refusal: &Refusal, out: &mut Vec<Action>) -> Outcome {
        let Refusal { page, id, status } = *refusal;
        if self.requests.get(&page).is_none_or(|request| request.id != id) {
            return Outcome::Stale;
        }
        if status == Status::Busy {
            return Outcome::Busy;
        }
        self.requests.remove(&page);
        // The thread that waits is to be told, also when it may read the page: there is no error for writing alone.
        if self.cached.remove(&page).is_some() {
            out.push(Action::Discard(page));
        }
        self.frames -= 1;
        out.push(Action::Refuse(page));
        Outcome::Done
    }

    /// The sharers are gone (PROTOCOL 12.18). A grant that no request waits for is answered too: its done was lost.
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

    /// Installs the page when its bytes are whole and granted, under one number.
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

    /// The node has the bytes (PROTOCOL 12.23): they may go, and what waited for them goes on.
    fn written(&mut self, ack: &WriteBackAck, out: &mut Vec<Action>) -> Outcome {
        let page = ack.page;
        let Some(writing) = self.writing.get(&page).filter(|writing| writing.grant == ack.grant) else {
            return Outcome::Stale;
        };
        let wanted = writing.wanted;
        self.writing.remove(&page);
        if self.cached.contains_key(&page) {
            out.push(Action::Clean(page));
        } else {
            self.frames -= 1;
            out.push(Action::Release(page));
        }
        self.settle_owed(ack, out);
        if let Some(access) = wanted
            && self.fault(page, access, out) == Outcome::Full
        {
            // The thread faults again, when there may be room.
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

    /// Asserts what holds between any two steps.
    ///
    /// # Panics
    /// When it does not.
    pub fn assert_invariants(&self) {
        assert!(self.frames <= self.bounds.pages, "the local limit holds");
        assert!(self.requests.len() <= self.bounds.requests, "requests within their bound");
        assert!(self.owed.len() <= self.bounds.owed, "recalls within their bound");
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
        for (index, owed) in self.owed.iter().enumerate() {
            assert!(self.is_writing_in(owed), "{owed:?} waits for something");
            assert!(
                self.owed[..index].iter().all(|other| other.region != owed.region),
                "{owed:?} is there once"
            );
        }
    }
}

/// Takes a Shared page from the program; answers the frames that are free then.
fn give_up_shared(writing: &BTreeMap<Page, Writing>, page: Page, out: &mut Vec<Action>) -> usize {
    if writing.contains_key(&page) {
        // It was Modified, and its bytes are still on their way.
        out.push(Action::Unmap(page));
        0
    } else {
        out.push(Action::Discard(page));
        1
    }
}
