//! Slow model of a memory node's state and permitted answers: lists of the control plane's updates, and the
//! bytes.

mod walks;

use super::{HOME, Outcome, PROGRAMS, only};
use crate::frames::each;
use farmem_machine::Port;
use farmem_memnode::{DropReason, Note, WriteBackEffect, region_read_len_max};
use farmem_transport::{PeerChange, ud};
use farmem_traversal::Program;
use farmem_wire::message::{PAGE_SHIFT, PageMessage, Update, Updates};
use farmem_wire::{
    AtomicEth, Body, Domain, Extension, Gather, Header, Message, Opcode, Packet, Perm, Pmtu, ProgramHash,
    Psn, Qpn, RequestId, Rkey, Status, VirtAddr,
};
use std::collections::{BTreeMap, BTreeSet};
use walks::Walk;

/// Maximum length of a region read in one datagram of the node, in bytes.
const REGION_READ_MAX: usize = region_read_len_max(Pmtu::B1024);

/// Connection as the control plane set it up, and its begun WRITEs.
struct Pair {
    port: Port,
    peer_qpn: Qpn,
    rkey: Rkey,
    domain: Domain,
    pmtu: u64,
    begun: Vec<(u64, u64)>,
}

struct Grant {
    domain: Domain,
    base: u64,
    end: u64,
    perm: Perm,
}

struct Range {
    base: u64,
    len: u64,
    offset: u64,
}

pub(super) struct Model {
    bytes: Vec<u8>,
    pub(super) next_seq: u64,
    pub(super) peers: BTreeMap<Port, ud::Endpoint>,
    ranges: Vec<Range>,
    /// Grants in order. For each byte, the last grant that covers it counts.
    grants: Vec<Grant>,
    /// Lost pages by number, in order: true when an earlier incarnation lost the pages. For each page, the
    /// last entry counts.
    lost: Vec<(bool, std::ops::Range<u64>)>,
    pairs: BTreeMap<Qpn, Pair>,
    /// Next PSN of each connection, as far as its host can know.
    pub(super) psns: BTreeMap<Qpn, Psn>,
    executed: BTreeSet<RequestId>,
    pub(super) programs: BTreeMap<ProgramHash, Program>,
    /// Traversals that arrived and have not ended.
    walks: Vec<Walk>,
}

impl Model {
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            next_seq: 1,
            peers: BTreeMap::from([(Port::CONTROL, HOME.control.endpoint)]),
            ranges: Vec::new(),
            grants: Vec::new(),
            lost: Vec::new(),
            pairs: BTreeMap::new(),
            psns: BTreeMap::new(),
            executed: BTreeSet::new(),
            programs: PROGRAMS.iter().map(|program| (program.hash(), program.clone())).collect(),
            walks: Vec::new(),
        }
    }

    /// Returns false for a batch that moves memory to another node, because the model has no other node. A
    /// batch with changed bytes may hold such an update.
    pub(super) fn plays(port: Port, frame: &[u8]) -> bool {
        let packet =
            Packet::parse(frame).ok().filter(|packet| port == Port::CONTROL && packet.bth.opcode.is_ud());
        let Some(Ok(Message { body: Body::Update(updates), .. })) =
            packet.map(|packet| Message::parse(packet.payload))
        else {
            return true;
        };
        !updates.iter().any(|update| {
            matches!(
                update,
                Update::Arrive { .. }
                    | Update::Leave { .. }
                    | Update::Place { .. }
                    | Update::Away { .. }
                    | Update::Unplace { .. }
            )
        })
    }

    /// Checks the node's reaction to a frame. The store must hold what this frame from this port allows, and
    /// nothing else. Answers must go to the sender of the request and hold only bytes that it may read.
    pub(super) fn judge(&mut self, port: Port, frame: &[u8], outcome: &Outcome, now: &[u8]) {
        let moved = match Packet::parse(frame) {
            Ok(packet) if packet.bth.opcode.is_ud() => self.on_datagram(port, &packet, outcome, now),
            Ok(packet) => {
                self.on_verb(port, &packet, outcome, now);
                false
            }
            Err(_) => {
                assert!(outcome.sent.is_empty(), "what is no frame is not answered");
                false
            }
        };
        assert!(moved || outcome.peers.is_empty(), "only the control plane moves peers");
        self.unchanged(now);
    }

    pub(super) fn unchanged(&self, now: &[u8]) {
        assert!(self.bytes == now, "the store changed, and nothing asked for it");
    }

    /// Checks the reaction to a datagram. Returns true when the datagram was the next batch of updates.
    fn on_datagram(&mut self, port: Port, packet: &Packet<'_>, outcome: &Outcome, now: &[u8]) -> bool {
        let message = Message::parse(packet.payload).ok().filter(|message| !message.header.response);
        let ours = matches!(packet.ext, Extension::Deth(deth)
            if (packet.bth.dest_qp, deth.qkey) == (HOME.endpoint.qpn, HOME.endpoint.qkey));
        if ours && port == Port::SWITCH && PageMessage::is(packet.payload) {
            // A lent page may come back. Every other page message leaves the store unchanged.
            if outcome.notes.contains(&Note::PageWritten(WriteBackEffect::Yes)) {
                self.bytes = now.to_vec();
            }
            return false;
        }
        let Some(message) = message.filter(|_| ours) else {
            assert!(outcome.sent.is_empty(), "what is not for the node is not answered");
            return false;
        };
        let header = &message.header;
        match (port, message.body) {
            (Port::CONTROL, Body::Update(updates)) => return self.on_updates(&updates, outcome),
            (Port::SWITCH, body) if !matches!(body, Body::Update(_)) => {
                if self.peers.contains_key(&Port::host(header.origin.0)) {
                    self.on_request(header, &body, outcome);
                } else {
                    assert!(outcome.sent.is_empty(), "no peer to answer");
                }
            }
            _ => assert!(outcome.sent.is_empty(), "not from this port"),
        }
        false
    }

    fn on_request(&mut self, header: &Header, body: &Body<'_>, outcome: &Outcome) {
        let begins_at = match *body {
            Body::RegionWrite { addr, .. } | Body::RegionRead { addr, .. } => Some(addr),
            Body::Traverse(state) if state.program.stores() => Some(state.cur_ptr),
            _ => None,
        };
        if let Some(addr) = begins_at
            && outcome.notes.contains(&Note::Dropped(DropReason::NotHere))
        {
            assert!(
                outcome.sent.is_empty() && !self.is_local(addr),
                "only what is nowhere here is not answered"
            );
            return;
        }
        match *body {
            Body::RegionWrite { addr, data, .. } => self.on_region_write(header, addr, data, outcome),
            Body::RegionRead { addr, len, .. } => {
                let answer = self.answer(header, outcome);
                let Body::RegionRead { data, .. } = answer.body else { panic!("an answer of its kind") };
                let may = (1..=REGION_READ_MAX).contains(&(len as usize))
                    && self.may(header.domain, addr, len.into(), Perm::Read);
                assert_eq!(answer.header.status == Status::Ok, may, "read what one may, and only that");
                assert!(data.is_empty() || data == self.slice(addr, len.into()));
            }
            Body::Traverse(state) => {
                assert!(outcome.sent.is_empty(), "its end is told apart from others");
                self.begin_walk(header, &state);
            }
            Body::Batch(_) => {
                assert!(outcome.sent.is_empty(), "the ends of its traversals are told apart from others");
                for message in each(&Message { header: *header, body: *body }) {
                    let Body::Traverse(state) = message.body else { unreachable!("a batch has traversals") };
                    self.begin_walk(&message.header, &state);
                }
            }
            Body::Update(_) => {}
        }
    }

    fn on_region_write(&mut self, header: &Header, addr: VirtAddr, data: &[u8], outcome: &Outcome) {
        if outcome.notes.contains(&Note::Dropped(DropReason::Forgotten)) {
            return assert!(outcome.sent.is_empty());
        }
        let answer = self.answer(header, outcome);
        let own = header.request.host() == header.origin;
        let first = own && self.executed.insert(header.request);
        assert_eq!(own && !first, outcome.notes.contains(&Note::DuplicateWrite), "once for each id");
        if !first {
            return;
        }
        let may = !data.is_empty() && self.may(header.domain, addr, data.len() as u64, Perm::ReadWrite);
        assert_eq!(answer.header.status == Status::Ok, may, "write where one may, and only there");
        if may {
            self.write(addr, data);
        }
    }

    /// Returns the only answer to a request, after a check of its receiver. The answer to a repeated write
    /// goes to the endpoint that the host had at the time of the write.
    fn answer<'a>(&self, header: &Header, outcome: &'a Outcome) -> Message<'a> {
        let (peer, message) = only(outcome);
        let again = outcome.notes.contains(&Note::DuplicateWrite);
        assert_eq!(peer.port, Port::host(header.origin.0));
        assert!(again || Some(&peer.endpoint) == self.peers.get(&peer.port));
        assert!(message.header.response && message.header.request == header.request);
        message
    }

    /// Checks the reaction to a batch. Returns true when the batch was the next one.
    fn on_updates(&mut self, updates: &Updates<'_>, outcome: &Outcome) -> bool {
        if updates.seq != self.next_seq {
            return false;
        }
        let (to, message) = only(outcome);
        let Body::Update(answer) = message.body else { panic!("an answer to updates") };
        assert_eq!((to.port, answer), (Port::CONTROL, Updates::response(updates.seq, answer.refused)));
        let well = message.header.status == Status::Ok;
        let count = if well { usize::MAX } else { usize::from(answer.refused) };
        let mut moved = outcome.peers.iter();
        for update in updates.iter().take(count) {
            self.apply(&update, &mut moved);
        }
        assert_eq!(moved.next(), None, "the driver hears of those that moved, and of no others");
        self.next_seq += 1;
        true
    }

    fn apply<'a>(&mut self, update: &Update, moved: &mut impl Iterator<Item = &'a PeerChange>) {
        match *update {
            Update::Peer { port, gid, qpn, qkey } => {
                let port = Port(port);
                assert_eq!(moved.next(), Some(&PeerChange { port, gid: Some(gid) }));
                self.peers.insert(port, ud::Endpoint { qpn, qkey });
            }
            Update::PeerGone { port } => {
                let port = Port(port);
                assert_eq!(moved.next(), Some(&PeerChange { port, gid: None }));
                self.peers.remove(&port);
            }
            Update::Range { base, len, offset } => self.add_range(base.0, len, offset),
            Update::RangeGone { base, len } => self.ranges.retain(|r| (r.base, r.len) != (base.0, len)),
            Update::Protect { domain, base, len, perm, .. } => {
                assert!(domain != Domain(0), "domain 0 is granted nothing");
                let end = base.0 + len;
                self.grants.retain(|g| g.domain != domain || g.base < base.0 || g.end > end);
                self.grants.push(Grant { domain, base: base.0, end, perm });
            }
            Update::Clear { base, len } => {
                for skip in 0..len {
                    let at = self.place(base.0 + skip);
                    self.bytes[at] = 0;
                }
                self.lost.push((false, pages(base, len)));
            }
            Update::QueuePair { qpn, peer_qpn, peer_port, expected_psn, rkey, domain, pmtu } => {
                self.psns.insert(qpn, expected_psn);
                assert!(domain != Domain(0) && qpn != HOME.endpoint.qpn);
                let (port, pmtu) = (Port(peer_port), pmtu.bytes() as u64);
                self.pairs.insert(qpn, Pair { port, peer_qpn, rkey, domain, pmtu, begun: Vec::new() });
            }
            Update::QueuePairGone { qpn } => {
                self.pairs.remove(&qpn);
            }
            Update::Anew { host } => {
                assert!(!self.peers.contains_key(&Port::host(host.0)), "{host:?} is there")
            }
            Update::AcceptLost { base, len } => self.lost.push((false, pages(base, len))),
            Update::Lose { base, len } => self.lost.push((true, pages(base, len))),
            // The target sends none of these updates: no memory moves.
            Update::Arrive { .. }
            | Update::Leave { .. }
            | Update::Place { .. }
            | Update::Away { .. }
            | Update::Unplace { .. }
            | Update::Drain { .. }
            | Update::Connection(_)
            | Update::ConnectionGone { .. }
            | Update::Directory { .. }
            | Update::Live { .. }
            | Update::Fence { .. }
            | Update::Translate { .. }
            | Update::Untranslate { .. }
            | Update::Session { .. }
            | Update::SessionGone { .. } => {
                panic!("a node applies no {update:?}")
            }
        }
    }

    fn add_range(&mut self, base: u64, len: u64, offset: u64) {
        let same = |r: &Range| (r.base, r.len, r.offset) == (base, len, offset);
        if self.ranges.iter().any(same) {
            return;
        }
        assert!(offset + len <= self.bytes.len() as u64, "a range is in the store");
        let apart = |a: u64, b: u64, b_len: u64| a + len <= b || b + b_len <= a;
        let meets = |r: &Range| !(apart(base, r.base, r.len) && apart(offset, r.offset, r.len));
        assert!(!self.ranges.iter().any(meets), "one address, one byte");
        self.ranges.push(Range { base, len, offset });
    }

    /// Checks the reaction to a packet of a connection. A change must match the request, and an answer must
    /// hold only readable bytes.
    fn on_verb(&mut self, port: Port, packet: &Packet<'_>, outcome: &Outcome, now: &[u8]) {
        let pair = self.pairs.get(&packet.bth.dest_qp).filter(|pair| pair.port == port);
        let Some(pair) = pair else {
            return assert!(outcome.sent.is_empty(), "no connection with this peer");
        };
        let domain = pair.domain;
        let answers: Vec<Packet<'_>> = outcome
            .sent
            .iter()
            .map(|(_, frame)| Packet::parse(frame).expect("a node sends frames"))
            .collect();
        for ((to, _), answer) in outcome.sent.iter().zip(&answers) {
            assert_eq!((*to, answer.bth.dest_qp), (port, pair.peer_qpn), "a connection has one other end");
            assert!(answer.bth.opcode.is_rc_response());
        }
        let told: Vec<u8> = answers.iter().flat_map(|answer| answer.payload).copied().collect();
        if !told.is_empty() {
            let Extension::Reth(reth) = packet.ext else { panic!("bytes for a peer that did not ask") };
            assert_eq!(reth.rkey, pair.rkey);
            let places: Vec<(VirtAddr, u32)> = match packet.bth.opcode {
                Opcode::GatherRequest => {
                    let gather = Gather::parse(&reth, packet.payload).expect("what is executed makes sense");
                    gather.places(0, reth.dma_len).collect()
                }
                opcode => {
                    assert_eq!(opcode, Opcode::ReadRequest);
                    vec![(reth.va, reth.dma_len)]
                }
            };
            let may = |(addr, len): &(VirtAddr, u32)| self.may(domain, *addr, u64::from(*len), Perm::Read);
            assert!(places.iter().all(may), "bytes for a peer that may not read them");
            let there = places.iter().flat_map(|(addr, len)| self.slice(*addr, u64::from(*len)));
            assert!(told.iter().eq(there), "other bytes than are there");
        }
        self.begin(packet);
        if self.bytes != now {
            self.explain(packet, now);
        }
    }

    fn explain(&mut self, packet: &Packet<'_>, now: &[u8]) {
        let pair = &self.pairs[&packet.bth.dest_qp];
        let (domain, rkey) = (pair.domain, pair.rkey);
        match (packet.bth.opcode, packet.ext) {
            (Opcode::WriteOnly | Opcode::WriteFirst, Extension::Reth(reth)) => {
                assert_eq!(reth.rkey, rkey);
                let len = u64::from(reth.dma_len);
                assert!(self.may(domain, reth.va, len, Perm::ReadWrite));
                self.write(reth.va, packet.payload);
            }
            (Opcode::WriteMiddle | Opcode::WriteLast, _) => self.explain_rest(packet, now),
            (opcode @ (Opcode::CmpSwap | Opcode::FetchAdd), Extension::AtomicEth(eth)) => {
                assert_eq!(eth.rkey, rkey);
                assert!(eth.va.0.is_multiple_of(8) && self.may(domain, eth.va, 8, Perm::ReadWrite));
                self.atomic(opcode, &eth);
            }
            (opcode, _) => panic!("{opcode:?} changed the store"),
        }
    }

    /// Records a permitted WRITE that may have begun, also one that changes no byte at first.
    fn begin(&mut self, packet: &Packet<'_>) {
        let Extension::Reth(reth) = packet.ext else { return };
        let (qpn, len) = (packet.bth.dest_qp, u64::from(reth.dma_len));
        let pair = &self.pairs[&qpn];
        let may = reth.rkey == pair.rkey && self.may(pair.domain, reth.va, len, Perm::ReadWrite);
        if may && packet.bth.opcode == Opcode::WriteFirst {
            let place = (reth.va.0, len);
            self.pairs.entry(qpn).and_modify(|pair| pair.begun.push(place));
        }
    }

    /// Checks a packet without an address: the changed bytes must belong to one of the connection's begun
    /// WRITEs.
    fn explain_rest(&mut self, packet: &Packet<'_>, now: &[u8]) {
        let pair = &self.pairs[&packet.bth.dest_qp];
        let (domain, pmtu, len) = (pair.domain, pair.pmtu, packet.payload.len() as u64);
        let places = pair.begun.iter().flat_map(|&(va, all)| {
            (1..all.div_ceil(pmtu)).map(move |index| va + index * pmtu).filter(move |at| at + len <= va + all)
        });
        let here = places.map(VirtAddr).find(|&at| {
            self.may(domain, at, len, Perm::ReadWrite) && {
                let place = self.place(at.0);
                let end = place + packet.payload.len();
                now[place..end] == *packet.payload
                    && now[..place] == self.bytes[..place]
                    && now[end..] == self.bytes[end..]
            }
        });
        self.write(here.expect("the rest of a WRITE goes on where it began"), packet.payload);
    }

    fn atomic(&mut self, opcode: Opcode, eth: &AtomicEth) {
        let at = self.place(eth.va.0);
        let word = &mut self.bytes[at..at + 8];
        let old = u64::from_le_bytes((&*word).try_into().expect("8 bytes"));
        let new = match opcode {
            Opcode::FetchAdd => old.wrapping_add(eth.swap_or_add),
            _ if old == eth.compare => eth.swap_or_add,
            _ => old,
        };
        word.copy_from_slice(&new.to_le_bytes());
    }

    fn write(&mut self, addr: VirtAddr, data: &[u8]) {
        let at = self.place(addr.0);
        self.bytes[at..at + data.len()].copy_from_slice(data);
    }

    /// Returns true when the domain may access every one of these bytes, all in one range. The check covers
    /// the start and the end of each grant.
    pub(super) fn may(&self, domain: Domain, addr: VirtAddr, len: u64, perm: Perm) -> bool {
        self.is_granted(domain, addr, len, perm)
            && (len == 0 || pages(addr, len).all(|page| !self.is_lost(page)))
    }

    /// Returns true when the bytes lie in one range of this node and are granted, lost or not.
    pub(super) fn is_granted(&self, domain: Domain, addr: VirtAddr, len: u64, perm: Perm) -> bool {
        let addr = addr.0;
        let Some(end) = addr.checked_add(len) else { return false };
        let range = self.range_of(addr).filter(|r| end - r.base <= r.len);
        let own = || self.grants.iter().filter(|g| g.domain == domain);
        let mut seams =
            own().flat_map(|g| [g.base, g.end]).filter(|seam| (addr..end).contains(seam)).chain([addr]);
        range.is_some()
            && seams.all(|at| {
                let last =
                    self.grants.iter().rev().find(|g| g.domain == domain && (g.base..g.end).contains(&at));
                last.is_some_and(|g| g.perm.allows(perm))
            })
    }

    pub(super) fn is_lost(&self, page: u64) -> bool {
        self.lost.iter().rev().find(|(_, pages)| pages.contains(&page)).is_some_and(|(lost, _)| *lost)
    }

    pub(super) fn is_local(&self, addr: VirtAddr) -> bool {
        self.range_of(addr.0).is_some()
    }

    fn range_of(&self, addr: u64) -> Option<&Range> {
        self.ranges.iter().find(|r| addr >= r.base && addr - r.base < r.len)
    }

    /// Returns the place of an address in the store.
    fn place(&self, addr: u64) -> usize {
        let range = self.range_of(addr).expect("a byte that is here");
        usize::try_from(addr - range.base + range.offset).expect("a small store")
    }

    pub(super) fn slice(&self, addr: VirtAddr, len: u64) -> &[u8] {
        let at = self.place(addr.0);
        &self.bytes[at..at + usize::try_from(len).expect("a small store")]
    }
}

/// Returns the numbers of the pages that hold at least one of these bytes.
pub(super) fn pages(base: VirtAddr, len: u64) -> std::ops::Range<u64> {
    base.0 >> PAGE_SHIFT..((base.0 + (len - 1)) >> PAGE_SHIFT) + 1
}
