//! Migration of pages from one node to another (PROTOCOL 7.37 to 7.40).
//!
//! ```text
//!   control -- Arrive --> new node: accepts pushed pages under the number of the move; no access uses them yet
//!   control -- Leave ---> old node: ends all access to the addresses, and pushes
//!       the state of each page, and its bytes
//!       the outcomes of writing requests that began there: copies go to the new node from now on
//! ```
//!
//! The nodes decide nothing. The control plane learns when everything is pushed, and then assigns the
//! addresses. Unanswered messages are retransmitted, and duplicates have no effect.

use crate::files::Out;
use crate::node::{MemNode, Outbox};
use crate::note::{DropReason, Note};
use crate::pages::PAGE_BYTES;
use crate::programs::Compile;
use crate::store::Store;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use farmem_machine::{Backoff, Duration, Instant, Port};
use farmem_transport::PeerChange;
use farmem_transport::ud::{self, RequestState};
use farmem_wire::message::{
    DirectoryBody, DirectoryMessage, MoveBody, MoveMessage, PAGE_LEN, PAGE_SHIFT, Page, PageState, Part,
    UNKNOWN_MOVE,
};
use farmem_wire::{Gid, RequestId, Status, VirtAddr};

/// Most pages and records of one move that are pushed and not answered.
pub const PUSHED_MAX: usize = 32;
/// Most moves of a node at once, in each direction.
pub const MOVES_MAX: usize = 64;
/// Most bytes of one move.
pub const MOVE_LEN_MAX: u64 = 1 << 30;

/// Time after which unanswered messages are retransmitted for the first time.
const PUSH_TIMEOUT: Duration = Duration::from_millis(5);
/// Times between retransmissions: up to 8 timeouts.
const PUSH_WAITS: Backoff = Backoff::new(PUSH_TIMEOUT, 3);

/// An item to push.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum PushItem {
    Page(Page),
    /// The outcome of this visit.
    Answer(RequestId, u8),
    /// The last forgotten request of a host.
    Forgotten(RequestId),
}

/// The retransmission timer of an item.
#[derive(Clone, Copy, Debug)]
struct PushTimer {
    due: Instant,
    resent: u32,
}

/// A move from this node.
#[derive(Debug)]
struct OutgoingMove {
    base: u64,
    len: u64,
    /// Offset of the bytes in the store.
    offset: u64,
    to: ud::Peer,
    /// Number of pages that were pushed or are being pushed.
    pages_begun: u64,
    /// Visits whose outcomes are still to be pushed.
    answers: VecDeque<(RequestId, u8)>,
    /// Forgotten requests, pushed after all outcomes.
    forgotten: Option<VecDeque<RequestId>>,
    pushed: BTreeMap<PushItem, PushTimer>,
    /// When to check again whether a visit in progress has finished.
    waits: Option<Instant>,
    /// True if the control plane was told that everything is pushed.
    told: bool,
}

impl OutgoingMove {
    const fn pages(&self) -> u64 {
        self.len >> PAGE_SHIFT
    }

    fn left(&self) -> u64 {
        let forgotten = self.forgotten.as_ref().map_or(1, |left| left.len() as u64);
        self.pages() - self.pages_begun + self.answers.len() as u64 + forgotten + self.pushed.len() as u64
    }

    fn due(&self) -> Option<Instant> {
        self.pushed.values().map(|flight| flight.due).chain(self.waits).min()
    }
}

/// A move to this node.
#[derive(Debug)]
struct IncomingMove {
    base: u64,
    len: u64,
    offset: u64,
    from: ud::Peer,
    /// For each page, the parts that arrived: one bit each, all set when the page is complete.
    parts: Vec<u16>,
}

const ALL_PARTS: u16 = u16::MAX;

/// The moves of a node, by number.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    leaving: BTreeMap<u64, OutgoingMove>,
    arriving: BTreeMap<u64, IncomingMove>,
}

impl Moves {
    /// Returns the time of the next retransmission.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.leaving.values().filter_map(OutgoingMove::due).min()
    }

    pub(crate) fn check(&self) {
        assert!(
            self.leaving.len() <= MOVES_MAX && self.arriving.len() <= MOVES_MAX,
            "moves within their bound"
        );
        for leaving in self.leaving.values() {
            assert!(leaving.pushed.len() <= PUSHED_MAX, "what is pushed at once within its bound");
            assert!(leaving.pages_begun <= leaving.pages(), "no page beyond the last one");
        }
    }

    /// Returns true if the port is the other end of a move in progress.
    fn has_peer(&self, port: Port) -> bool {
        let to = self.leaving.values().any(|leaving| leaving.to.port == port);
        to || self.arriving.values().any(|arriving| arriving.from.port == port)
    }
}

/// The other end of a move, as the control plane names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MovePeer {
    pub(crate) peer: ud::Peer,
    pub(crate) gid: Gid,
}

impl<S: Store, C: Compile> MemNode<S, C> {
    /// Starts a move to this node.
    pub(crate) fn arrive(
        &mut self,
        number: u64,
        base: VirtAddr,
        len: u64,
        offset: u64,
        end: MovePeer,
        out: &mut Outbox,
    ) -> Result<(), Status> {
        if self.moves.arriving.contains_key(&number) {
            return Ok(());
        }
        if self.moves.arriving.len() >= MOVES_MAX {
            return Err(Status::TableFull);
        }
        let pages = usize::try_from(len.min(MOVE_LEN_MAX + 1) >> PAGE_SHIFT).unwrap_or(usize::MAX);
        if len > MOVE_LEN_MAX || end.peer.port.as_node().is_none() {
            return Err(Status::Malformed);
        }
        self.regions.arrive(base, len, offset)?;
        let parts = vec![0; pages];
        let arriving = IncomingMove { base: base.0, len, offset, from: end.peer, parts };
        self.moves.arriving.insert(number, arriving);
        out.local(Out::Peer(PeerChange { port: end.peer.port, gid: Some(end.gid) }));
        Ok(())
    }

    /// Starts a move from this node; ends all access to the addresses here.
    pub(crate) fn leave(
        &mut self,
        now: Instant,
        number: u64,
        base: VirtAddr,
        len: u64,
        end: MovePeer,
        out: &mut Outbox,
    ) -> Result<(), Status> {
        if self.moves.leaving.contains_key(&number) {
            return Ok(());
        }
        if self.moves.leaving.len() >= MOVES_MAX {
            return Err(Status::TableFull);
        }
        if len > MOVE_LEN_MAX || end.peer.port.as_node().is_none() {
            return Err(Status::Malformed);
        }
        let offset = self.regions.leave(base, len)?;
        let leaving = OutgoingMove {
            base: base.0,
            len,
            offset,
            to: end.peer,
            pages_begun: 0,
            answers: self.dedup.begun_in(base.0, base.0 + (len - 1)).collect(),
            forgotten: None,
            pushed: BTreeMap::new(),
            waits: None,
            told: false,
        };
        self.moves.leaving.insert(number, leaving);
        out.local(Out::Peer(PeerChange { port: end.peer.port, gid: Some(end.gid) }));
        self.push(now, number, out);
        Ok(())
    }

    /// Ends the moves of these addresses, because the control plane has assigned them.
    pub(crate) fn end_moves(&mut self, base: VirtAddr, len: u64, out: &mut Outbox) {
        let mut ends = Vec::new();
        self.moves.leaving.retain(|_, leaving| {
            let over = (leaving.base, leaving.len) == (base.0, len);
            ends.extend(over.then_some(leaving.to.port));
            !over
        });
        self.moves.arriving.retain(|_, arriving| {
            let over = (arriving.base, arriving.len) == (base.0, len);
            ends.extend(over.then_some(arriving.from.port));
            !over
        });
        for port in ends {
            if !self.moves.has_peer(port) && self.peers.get(port).is_none() {
                out.local(Out::Peer(PeerChange { port, gid: None }));
            }
        }
    }

    /// Pushes items as the window allows; reports when nothing is left.
    fn push(&mut self, now: Instant, number: u64, out: &mut Outbox) {
        while let Some(item) = self.next_item(now, number) {
            self.push_item(number, item, out);
            let due = now + PUSH_TIMEOUT;
            if let Some(leaving) = self.moves.leaving.get_mut(&number) {
                leaving.pushed.insert(item, PushTimer { due, resent: 0 });
            }
        }
        let Some(leaving) = self.moves.leaving.get_mut(&number) else { return };
        if leaving.left() == 0 && !core::mem::replace(&mut leaving.told, true) {
            out.note(Note::Pushed);
            self.report_move(number, RequestId(0), out);
        }
    }

    /// Returns the next item to push, if the window has room.
    fn next_item(&mut self, now: Instant, number: u64) -> Option<PushItem> {
        let dedup = &self.dedup;
        let leaving =
            self.moves.leaving.get_mut(&number).filter(|leaving| leaving.pushed.len() < PUSHED_MAX)?;
        if leaving.pages_begun < leaving.pages() {
            let addr = leaving.base + (leaving.pages_begun << PAGE_SHIFT);
            leaving.pages_begun += 1;
            return Some(PushItem::Page(Page::of(VirtAddr(addr))));
        }
        leaving.waits = None;
        for _ in 0..leaving.answers.len() {
            let (request, hops) = leaving.answers.pop_front()?;
            if dedup.lookup_visit(request, hops) != RequestState::UnderWay {
                return Some(PushItem::Answer(request, hops));
            }
            leaving.answers.push_back((request, hops));
        }
        if !leaving.answers.is_empty() {
            leaving.waits = Some(now + PUSH_TIMEOUT);
            return None;
        }
        if leaving.pushed.keys().any(|item| matches!(item, PushItem::Answer(..))) {
            return None;
        }
        let forgotten = leaving.forgotten.get_or_insert_with(|| dedup.forgotten().collect());
        forgotten.pop_front().map(PushItem::Forgotten)
    }

    fn push_item(&mut self, number: u64, item: PushItem, out: &mut Outbox) {
        let Some(leaving) = self.moves.leaving.get(&number) else { return };
        let (to, base, offset) = (leaving.to, leaving.base, leaving.offset);
        let mut send = |body: MoveBody<'_>| {
            let message = MoveMessage { number, body };
            self.peers.emit(to, message.len(), out, |bytes| message.emit(bytes));
        };
        match item {
            PushItem::Page(page) => {
                self.buffer.clear();
                let at = offset + (page.addr().0 - base);
                self.store.read(at, PAGE_BYTES, &mut self.buffer);
                let state = self.regions.page_states().state(page);
                if self.buffer.iter().all(|&byte| byte == 0) {
                    return send(MoveBody::Page(page, state, None));
                }
                for part in Part::all(self.config.pmtu.bytes()) {
                    let bytes = self.buffer.get(part.range()).unwrap_or_default();
                    send(MoveBody::Page(page, state, Some((part, bytes))));
                }
            }
            PushItem::Answer(request, hops) => match self.dedup.lookup_visit(request, hops) {
                RequestState::Answered(kept) => send(MoveBody::Record(request, hops, Some(kept))),
                // Later requests have overtaken this one: it is forgotten.
                _ => send(MoveBody::Record(request, hops, None)),
            },
            PushItem::Forgotten(request) => send(MoveBody::Record(request, 0, None)),
        }
    }

    /// Retransmits items whose timers have expired.
    pub(crate) fn push_again(&mut self, now: Instant, out: &mut Outbox) {
        let numbers: Vec<u64> = self.moves.leaving.keys().copied().collect();
        for number in numbers {
            let Some(leaving) = self.moves.leaving.get_mut(&number) else { continue };
            if leaving.due().is_none_or(|due| due > now) {
                continue;
            }
            let mut late = Vec::new();
            for (&item, flight) in leaving.pushed.iter_mut().filter(|(_, flight)| flight.due <= now) {
                flight.resent = flight.resent.saturating_add(1);
                flight.due = now + PUSH_WAITS.after(flight.resent);
                late.push(item);
            }
            for item in late {
                out.note(Note::PushedAgain);
                self.push_item(number, item, out);
            }
            self.push(now, number, out);
        }
    }

    /// Handles a message of another node; accepts it only from the other end of the move that it names.
    pub(crate) fn on_move_message(&mut self, now: Instant, port: Port, payload: &[u8], out: &mut Outbox) {
        let Ok(MoveMessage { number, body }) = MoveMessage::parse(payload) else {
            return self.drop_frame(DropReason::Malformed, out);
        };
        match body {
            MoveBody::Page(page, state, part) => self.on_moved_page(number, port, page, state, part, out),
            MoveBody::Record(request, hops, kept) => self.on_record(number, port, request, hops, kept, out),
            MoveBody::PageAck(page) => self.on_answer(now, number, port, &[PushItem::Page(page)], out),
            MoveBody::RecordAck(request, hops) => {
                let items = [PushItem::Answer(request, hops), PushItem::Forgotten(request)];
                let count = if hops == 0 { 2 } else { 1 };
                self.on_answer(now, number, port, &items[..count], out);
            }
        }
    }

    /// Handles the acknowledgement of pushed items.
    fn on_answer(&mut self, now: Instant, number: u64, port: Port, items: &[PushItem], out: &mut Outbox) {
        let leaving = self.moves.leaving.get_mut(&number).filter(|leaving| leaving.to.port == port);
        let Some(leaving) = leaving else { return self.drop_frame(DropReason::NoMove, out) };
        for item in items {
            leaving.pushed.remove(item);
        }
        self.push(now, number, out);
    }

    fn on_moved_page(
        &mut self,
        number: u64,
        port: Port,
        page: Page,
        state: PageState,
        part: Option<(Part, &[u8])>,
        out: &mut Outbox,
    ) {
        let arriving = self.moves.arriving.get_mut(&number).filter(|arriving| arriving.from.port == port);
        let of_move = arriving.and_then(|arriving| {
            let skip = page.addr().0.checked_sub(arriving.base).filter(|&skip| skip < arriving.len)?;
            Some((arriving, skip))
        });
        let Some((arriving, skip)) = of_move else { return self.drop_frame(DropReason::NoMove, out) };
        let index = usize::try_from(skip >> PAGE_SHIFT).expect("a move has few pages");
        let at = arriving.offset + skip;
        let known = &mut arriving.parts[index];
        if *known != ALL_PARTS {
            match part {
                None => {
                    self.store.discard(at, PAGE_LEN as u64);
                    *known = ALL_PARTS;
                }
                Some((part, bytes)) => {
                    self.store.write(at + part.range().start as u64, bytes);
                    // Each part covers as many bits as its share of the page.
                    let span = Part::COUNT_MAX / part.count;
                    let bits = u16::MAX >> (Part::COUNT_MAX - span) << (span * part.index);
                    *known |= bits;
                }
            }
            if *known != ALL_PARTS {
                return;
            }
            self.regions.page_states_mut().put(page, state);
            out.note(Note::PageArrived);
        }
        let (from, message) = (arriving.from, MoveMessage { number, body: MoveBody::PageAck(page) });
        self.peers.emit(from, message.len(), out, |bytes| message.emit(bytes));
    }

    fn on_record(
        &mut self,
        number: u64,
        port: Port,
        request: RequestId,
        hops: u8,
        kept: Option<&[u8]>,
        out: &mut Outbox,
    ) {
        let arriving = self.moves.arriving.get(&number).filter(|arriving| arriving.from.port == port);
        let Some(IncomingMove { base, from, .. }) = arriving else {
            return self.drop_frame(DropReason::NoMove, out);
        };
        let (base, from) = (*base, *from);
        match kept {
            // The outcome must be a message, because copies get it. The other node is trusted with its
            // contents.
            Some(kept) if farmem_wire::Message::parse(kept).is_ok() => {
                self.dedup.import(request, hops, base, kept);
            }
            Some(_) => return self.drop_frame(DropReason::Malformed, out),
            None => self.dedup.import_forgotten(request),
        }
        let message = MoveMessage { number, body: MoveBody::RecordAck(request, hops) };
        self.peers.emit(from, message.len(), out, |bytes| message.emit(bytes));
    }

    /// Reports the remainder of a move to the control plane.
    pub(crate) fn report_move(&mut self, number: u64, token: RequestId, out: &mut Outbox) {
        let left = self.moves.leaving.get(&number).map(OutgoingMove::left);
        let left = left.map_or(UNKNOWN_MOVE, |left| u32::try_from(left).unwrap_or(UNKNOWN_MOVE - 1));
        if let Some(control) = self.peers.get(Port::CONTROL) {
            let message = DirectoryMessage { token, body: DirectoryBody::Moved(number, left) };
            self.peers.emit(control, message.len(), out, |bytes| message.emit(bytes));
        }
    }
}
