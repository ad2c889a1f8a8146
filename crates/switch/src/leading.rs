//! Traversals through a FatTree of switches, each with a part of the index (PROTOCOL 16.5 to 16.9; Fat-B+Tree
//! IV-A, III-D).
//!
//! ```text
//!             core            fat root: the child of a range, and its server
//!            /    \
//!     aggregation  ...        two node sets each
//!        /    \
//!      edge   edge
//!       |
//!   memory node               starts from the deepest node that was found
//! ```
//!
//! The first hop is the rack's switch. It keeps no state per request, so it cannot know whether the switches
//! above are alive. It watches one request at a time that it sent up ([`Fabric`]). Lookups that share a
//! datagram go up together, and split at the core by server ([`Parts`]).

use crate::note::Outbox;
use crate::{Note, Reason, Switch};
use alloc::vec::Vec;
use farmem_index::Descent;
use farmem_machine::{Duration, Instant, Port};
use farmem_transport::ud::Peer;
use farmem_wire::message::{Batch, Lead, LeadBody, Pair, PairBuf, SWITCHES_MAX};
use farmem_wire::{Body, Header, Message, NodeId, Pmtu, RequestId, VirtAddr};

/// Time after which a traversal that was sent up and not repeated has arrived: longer than a host's timeout.
const WATCH_TIME: Duration = Duration::from_millis(200);
/// Time after which a keyed READ has arrived: longer than a requester's timeout, which may be four times the one
/// that the control plane advised (PROTOCOL 14.6; IBA 9.9.2.1.1).
const WATCH_TIME_KEYED: Duration = Duration::from_millis(300);
/// The most trust.
const TRUST_MAX: u8 = 8;
/// Trust below which only watched requests go up.
const TRUST_OPEN: u8 = 4;
/// Loss of trust for a repeated request; a request that was not repeated adds one.
const TRUST_LOST: u8 = 3;

/// The first hop's estimate whether the switches above are alive (PROTOCOL 16.8, 16.12).
///
/// A lost request is repeated. The estimate remembers the id of one request at a time: if the host repeats
/// it, it was lost.
#[derive(Clone, Debug)]
pub(crate) struct Fabric<Id> {
    trust: u8,
    is_open: bool,
    /// Time for which a request is watched.
    time: Duration,
    /// The watched request, and the end of its watch.
    watched: Option<(Id, Instant)>,
}

impl Fabric<RequestId> {
    /// Creates the estimate for traversals.
    pub(crate) const fn of_traversals() -> Self {
        Self::watching_for(WATCH_TIME)
    }
}

impl<Id: Copy + PartialEq> Fabric<Id> {
    const fn watching_for(time: Duration) -> Self {
        Self { trust: TRUST_MAX, is_open: true, time, watched: None }
    }

    /// Creates the estimate for keyed READs.
    pub(crate) const fn of_keyed_reads() -> Self {
        Self::watching_for(WATCH_TIME_KEYED)
    }

    /// Returns true if a request that arrives for the first time goes up.
    pub(crate) fn goes_up(&mut self, now: Instant, request: Id) -> bool {
        if self.watched.is_some_and(|(_, until)| until <= now) {
            self.watched = None;
            self.trust = (self.trust + 1).min(TRUST_MAX);
            self.is_open |= self.trust >= TRUST_OPEN;
        }
        let watches = self.watched.is_none();
        if watches {
            self.watched = Some((request, now + self.time));
        }
        self.is_open || watches
    }

    /// Returns true for the watched request.
    pub(crate) fn watches(&self, now: Instant, request: Id) -> bool {
        self.watched.is_some_and(|(watched, until)| watched == request && now < until)
    }

    /// Records that a request that could have gone up was repeated.
    pub(crate) fn repeated(&mut self, request: Id) {
        if self.watched.is_some_and(|(watched, _)| watched == request) {
            self.watched = None;
            self.trust = self.trust.saturating_sub(TRUST_LOST);
            self.is_open &= self.trust > 0;
        }
    }

    pub(crate) fn assert_invariants(&self) {
        assert!(self.trust <= TRUST_MAX, "trust has a bound");
        assert!(self.is_open || self.trust < TRUST_OPEN, "what is trusted is used");
    }
}

/// The pairs of a batch that go to one server, or that cannot be led from here.
#[derive(Debug, Default)]
struct Part {
    server: Option<NodeId>,
    /// Counter of the first pair.
    first: u32,
    pairs: PairBuf,
    descents: Vec<Descent>,
}

/// The parts of a batch, with buffers that are reused for each batch.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    all: Vec<Part>,
    used: usize,
    descents: Vec<Descent>,
}

impl Parts {
    /// Adds a traversal that goes to this server.
    fn add(&mut self, server: Option<NodeId>, pair: &Pair<'_>, descent: Option<Descent>) {
        let at = self.all[..self.used].iter().position(|part| part.server == server);
        let at = at.unwrap_or_else(|| {
            if self.used == self.all.len() {
                self.all.push(Part::default());
            }
            let part = &mut self.all[self.used];
            (part.server, part.first) = (server, pair.counter);
            part.pairs.clear();
            part.descents.clear();
            self.used += 1;
            self.used - 1
        });
        self.all[at].pairs.push(pair);
        self.all[at].descents.extend(descent);
    }
}

impl Switch {
    /// Sends a host's traversals up, if the fabric leads them (PROTOCOL 16.6). None: the caller routes them
    /// as any others.
    pub(crate) fn lead_up(&mut self, now: Instant, message: &Message<'_>, out: &mut Outbox) -> Option<Note> {
        let (led, root) = match message.body {
            Body::Traverse(traverse) => (LeadBody::One(traverse), traverse.cur_ptr),
            Body::Batch(batch) => (LeadBody::Batch(batch), batch.first().cur_ptr),
            Body::RegionRead { .. } | Body::RegionWrite { .. } | Body::Update(_) => return None,
        };
        let header = message.header;
        let port = Port(self.soft.routes().up(header.domain, root, led.program())?);
        let index = port.as_index()?;
        let core = self.tables.peer(port)?;
        // Pairs of a batch that begin elsewhere could not be led.
        if let LeadBody::Batch(batch) = led
            && batch.pairs().any(|pair| pair.cur_ptr != root)
        {
            return None;
        }
        if header.again {
            self.fabric.repeated(header.request);
            return None;
        }
        let fits = Pmtu::fitting(message.len()).is_some_and(|pmtu| message.len() + Lead::LEN <= pmtu.bytes());
        // A request that would be refused, or has no reachable node, is refused here.
        if !fits || !matches!(self.route(message), Ok(Some(_))) {
            return None;
        }
        if !self.fabric.goes_up(now, header.request) {
            return None;
        }
        let lead = Lead { header, root, server: None, switches: SWITCHES_MAX, led };
        self.send_bytes(core, lead.len(), |bytes| lead.emit(bytes), out);
        Some(Note::RoutedUp { index })
    }

    /// Handles traversals from another switch (PROTOCOL 16.7). Those that cannot be led on return to the
    /// rack's switch, which routes them as any others.
    pub(crate) fn lead(&mut self, payload: &[u8], out: &mut Outbox) -> Note {
        let Ok(mut lead) = Lead::parse(payload) else { return Note::Dropped(Reason::Message) };
        if lead.header.hops == 0 {
            return Note::Dropped(Reason::Message);
        }
        let Some(switches) = lead.switches.checked_sub(1) else {
            return Note::Dropped(Reason::TooManySwitches);
        };
        lead.switches = switches;
        if let LeadBody::Batch(batch) = lead.led {
            return self.lead_batch(&lead, &batch, out);
        }
        let found = self.find(&mut lead);
        self.go_on(&lead, found.as_slice(), out)
    }

    /// Descends one traversal as far as this switch knows its tree; also finds its server if no earlier
    /// switch did.
    fn find(&self, lead: &mut Lead<'_>) -> Option<Descent> {
        let Lead {
            header: Header { domain, .. },
            root,
            ref mut server,
            led: LeadBody::One(ref mut traverse),
            ..
        } = *lead
        else {
            return None;
        };
        let index = self.soft.index();
        let descent = match server {
            Some(_) => index.below(domain, root, traverse.cur_ptr, traverse.scratch)?,
            None => {
                let descent = index.start(domain, root, traverse.program, traverse.scratch)?;
                *server = Some(self.server_of(descent.at)?);
                descent
            }
        };
        traverse.cur_ptr = descent.at;
        Some(descent)
    }

    /// Descends a batch; pairs for one server stay together.
    fn lead_batch(&mut self, lead: &Lead<'_>, batch: &Batch<'_>, out: &mut Outbox) -> Note {
        let mut parts = core::mem::take(&mut self.parts);
        self.divide(lead, batch, &mut parts);
        let mut last = Note::RoutedBack;
        for Part { server, first, pairs, descents } in &parts.all[..parts.used] {
            let header = Header { request: lead.header.request.with_counter(*first), ..lead.header };
            let batch = Batch::of(&header, batch.program(), batch.code(), pairs);
            let led = match pairs.count() {
                1 => LeadBody::One(batch.traverse(&batch.first())),
                _ => LeadBody::Batch(batch),
            };
            last = self.go_on(&Lead { header, server: *server, led, ..*lead }, descents, out);
        }
        let count = u16::try_from(parts.used).expect("no more than pairs");
        self.parts = parts;
        if count == 1 { last } else { Note::BatchSplit { parts: count } }
    }

    fn divide(&self, lead: &Lead<'_>, batch: &Batch<'_>, parts: &mut Parts) {
        let (index, domain, root) = (self.soft.index(), lead.header.domain, lead.root);
        parts.used = 0;
        if lead.server.is_some() {
            for mut pair in batch.pairs() {
                let descent = index.below(domain, root, pair.cur_ptr, pair.scratch);
                pair.cur_ptr = descent.map_or(pair.cur_ptr, |descent| descent.at);
                parts.add(lead.server, &pair, descent);
            }
            return;
        }
        let mut descents = core::mem::take(&mut parts.descents);
        descents.clear();
        if let Some(tree) = index.tree(domain, root, batch.program()) {
            index.descend(tree, batch.pairs().map(|pair| pair.scratch), &mut descents);
        }
        for (n, mut pair) in batch.pairs().enumerate() {
            let found = descents.get(n).and_then(|descent| Some((*descent, self.server_of(descent.at)?)));
            if let Some((descent, _)) = found {
                pair.cur_ptr = descent.at;
            }
            parts.add(found.map(|(_, server)| server), &pair, found.map(|(descent, _)| descent));
        }
        parts.descents = descents;
    }

    fn server_of(&self, at: VirtAddr) -> Option<NodeId> {
        self.soft.routes().server_of(at).filter(|server| Port::is_node(server.0))
    }

    /// Returns the next hop on the path to a server, if it is among the peers.
    pub(crate) fn next_hop(&self, server: NodeId) -> Option<Peer> {
        self.soft.routes().next_hop(server).and_then(|port| self.tables.peer(Port(port)))
    }

    /// Sends traversals to the next switch, or to their server; without a next hop, back to the rack's
    /// switch.
    fn go_on(&mut self, lead: &Lead<'_>, descents: &[Descent], out: &mut Outbox) -> Note {
        let next = lead.server.and_then(|server| self.next_hop(server));
        let note = match (next, lead.server) {
            (Some(next), Some(server)) => match next.port.as_index() {
                Some(index) => {
                    self.send_bytes(next, lead.len(), |bytes| lead.emit(bytes), out);
                    Note::RoutedDown { index }
                }
                None if next.port == Port::node(server.0) => {
                    self.forward(next, lead.message(), out);
                    Note::RoutedOut { node: server }
                }
                None => return self.give_back(lead, out),
            },
            _ => return self.give_back(lead, out),
        };
        descents.iter().for_each(|descent| self.soft.count(descent));
        note
    }

    fn give_back(&mut self, lead: &Lead<'_>, out: &mut Outbox) -> Note {
        let Some(rack) = self.tables.peer(Port::SWITCH) else { return Note::Dropped(Reason::NoRoute) };
        self.send(rack, &lead.message(), out);
        Note::RoutedBack
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_wire::HostId;

    /// A sequence of requests: each goes up or not, and is lost there or not.
    struct Playback {
        fabric: Fabric<RequestId>,
        now: Instant,
        counter: u32,
    }

    impl Playback {
        fn new() -> Self {
            Self { fabric: Fabric::of_traversals(), now: Instant::ZERO, counter: 0 }
        }

        /// Plays requests a microsecond apart; those that go up are lost. Returns the number that went up.
        fn lost(&mut self, requests: u32) -> u32 {
            let mut up = 0;
            for _ in 0..requests {
                self.now += Duration::from_micros(1);
                self.counter += 1;
                let request = RequestId::new(HostId(1), 1, self.counter);
                if self.fabric.goes_up(self.now, request) {
                    up += 1;
                    self.fabric.repeated(request);
                }
                self.fabric.assert_invariants();
            }
            up
        }

        /// Plays requests so far apart that the watched one is known to have arrived.
        fn arrive(&mut self, requests: u32) -> u32 {
            let mut up = 0;
            for _ in 0..requests {
                self.now += WATCH_TIME;
                self.counter += 1;
                up += u32::from(self.fabric.goes_up(self.now, RequestId::new(HostId(1), 1, self.counter)));
                self.fabric.assert_invariants();
            }
            up
        }
    }

    #[test]
    fn a_fabric_that_loses_everything_is_left_after_three() {
        let mut story = Playback::new();
        assert_eq!(story.lost(3), 3);
        // One at a time is still tried; here each is known to be lost at once.
        story.fabric.watched = Some((RequestId::new(HostId(9), 1, 1), story.now + WATCH_TIME));
        assert_eq!(story.lost(1_000), 0);
        assert_eq!(story.arrive(100), 100, "and when they arrive, it is used again");
        story.fabric.watched = Some((RequestId::new(HostId(9), 1, 1), story.now + WATCH_TIME));
        assert_eq!(story.lost(10), 10, "what is not watched is not asked for");
    }

    #[test]
    fn one_that_is_lost_now_and_then_changes_nothing() {
        let mut story = Playback::new();
        for _ in 0..50 {
            assert_eq!((story.lost(1), story.arrive(5)), (1, 5));
        }
    }

    #[test]
    fn what_recovers_is_used_after_four() {
        let mut story = Playback::new();
        story.lost(3);
        assert!(!story.fabric.is_open);
        story.arrive(4);
        assert!(!story.fabric.is_open, "of four the last is not known");
        story.arrive(1);
        assert!(story.fabric.is_open);
    }
}
