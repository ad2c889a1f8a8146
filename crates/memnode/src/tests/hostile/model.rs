//! The expected store, by a slow model: every frame is judged byte by byte against the lists of the control
//! plane's updates.

use super::super::*;
use alloc::collections::{BTreeMap, BTreeSet};
use farmem_wire::AtomicEth;

/// Counts of each kind of change, so that a run without changes does not pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) updates: u32,
    pub(super) clears: u32,
    pub(super) region_writes: u32,
    pub(super) region_reads: u32,
    pub(super) writes: u32,
    pub(super) write_rests: u32,
    pub(super) atomics: u32,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.updates += other.updates;
        self.clears += other.clears;
        self.region_writes += other.region_writes;
        self.region_reads += other.region_reads;
        self.writes += other.writes;
        self.write_rests += other.write_rests;
        self.atomics += other.atomics;
    }

    pub(super) fn counts(&self) -> [u32; 7] {
        let Self { updates, clears, region_writes, region_reads, writes, write_rests, atomics } = *self;
        [updates, clears, region_writes, region_reads, writes, write_rests, atomics]
    }
}

/// A connection with the destinations of WRITEs in progress.
struct Pair {
    port: Port,
    rkey: Rkey,
    domain: Domain,
    pmtu: u64,
    begun: Vec<(VirtAddr, u64)>,
}

/// The model: the bytes, and all updates of the control plane in order.
pub(super) struct Model {
    bytes: Vec<u8>,
    next_seq: u64,
    ranges: Vec<(VirtAddr, u64, u64)>,
    grants: Vec<(Domain, VirtAddr, u64, Perm)>,
    /// Ranges that were lost with an earlier incarnation, or found again: the last entry of a byte counts.
    /// First byte and end.
    lost: Vec<(bool, u64, u64)>,
    hosts: BTreeSet<Port>,
    pairs: BTreeMap<Qpn, Pair>,
    executed: BTreeSet<RequestId>,
    pub(super) tally: Tally,
}

impl Model {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; STORE_LEN],
            next_seq: 1,
            ranges: vec![],
            grants: vec![],
            lost: vec![],
            hosts: BTreeSet::new(),
            pairs: BTreeMap::new(),
            executed: BTreeSet::new(),
            tally: Tally::default(),
        }
    }

    /// Returns the number of the next batch.
    pub(super) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Judges the node's handling of a frame: its store must be exactly what this frame from this port
    /// allows.
    pub(super) fn judge(&mut self, bench: &Bench, port: Port, frame: &[u8]) {
        let now = bench.node.store().bytes();
        match Packet::parse(frame) {
            Ok(packet) if packet.bth.opcode.is_ud() => self.on_datagram(bench, port, &packet),
            Ok(packet) if self.bytes != now => self.explain(port, &packet, now),
            _ => {}
        }
        assert!(self.bytes == now, "the store changed, and nothing asked for it");
        for (_, frame) in &bench.sent {
            Packet::parse(frame).expect("what the node sends is a frame");
        }
    }

    fn on_datagram(&mut self, bench: &Bench, port: Port, packet: &Packet<'_>) {
        let Extension::Deth(deth) = packet.ext else { return };
        let ud::Endpoint { qpn, qkey } = HOME.endpoint;
        let Ok(message) = Message::parse(packet.payload) else { return };
        if (packet.bth.dest_qp, deth.qkey) != (qpn, qkey) || message.header.response {
            return;
        }
        match (port, message.body) {
            (Port::CONTROL, Body::Update(updates)) if updates.seq == self.next_seq => {
                self.next_seq += 1;
                let (status, refused) = answer(bench, updates.seq);
                let count = if status == Status::Ok { usize::MAX } else { usize::from(refused) };
                updates.iter().take(count).for_each(|update| self.apply(&update));
            }
            (Port::SWITCH, Body::RegionWrite { addr, data, .. }) => {
                let Header { origin, request, domain, .. } = message.header;
                let heard = self.hosts.contains(&Port::host(origin.0)) && request.host() == origin;
                let dropped = |reason| bench.notes.contains(&Note::Dropped(reason));
                let settled = heard && !dropped(DropReason::Forgotten) && !dropped(DropReason::NotHere);
                let executed = settled && self.executed.insert(request);
                if executed && !data.is_empty() && self.may(domain, addr, data.len() as u64, Perm::ReadWrite)
                {
                    self.tally.region_writes += 1;
                    self.write(addr, data);
                }
            }
            (Port::SWITCH, Body::RegionRead { addr, len, .. }) => {
                for (_, frame) in &bench.sent {
                    let answer = Message::parse(Packet::parse(frame).unwrap().payload).unwrap();
                    let Body::RegionRead { data, .. } = answer.body else { panic!("an answer of its kind") };
                    let may = len > 0 && self.may(message.header.domain, addr, u64::from(len), Perm::Read);
                    assert!(may || data.is_empty(), "bytes that were not for this domain");
                    assert!((0..).zip(data).all(|(i, byte)| self.bytes[self.place(addr, i)] == *byte));
                    self.tally.region_reads += u32::from(!data.is_empty());
                }
            }
            _ => {}
        }
    }

    /// Applies an update that the node applied.
    fn apply(&mut self, update: &Update) {
        self.tally.updates += 1;
        match *update {
            Update::Peer { port, .. } => _ = self.hosts.insert(Port(port)),
            Update::PeerGone { port } => _ = self.hosts.remove(&Port(port)),
            Update::Range { base, len, offset } => self.ranges.push((base, len, offset)),
            Update::RangeGone { base, len } => self.ranges.retain(|r| (r.0, r.1) != (base, len)),
            Update::Protect { domain, base, len, perm, .. } => self.grants.push((domain, base, len, perm)),
            Update::Lose { base, len } => self.lost.push((true, base.0, base.0 + len)),
            Update::AcceptLost { base, len } => self.lost.push(found(base, len)),
            Update::Clear { base, len } => {
                self.tally.clears += 1;
                self.lost.push(found(base, len));
                for i in 0..len {
                    let at = self.place(base, i);
                    self.bytes[at] = 0;
                }
            }
            Update::QueuePair { qpn, peer_port, rkey, domain, pmtu, .. } => {
                let pmtu = pmtu.bytes() as u64;
                self.pairs.insert(qpn, Pair { port: Port(peer_port), rkey, domain, pmtu, begun: vec![] });
            }
            Update::QueuePairGone { qpn } => _ = self.pairs.remove(&qpn),
            _ => panic!("a node applies no {update:?}"),
        }
    }

    /// Justifies a change by a packet of a connection: the packet must be allowed, and the change must be all
    /// it asks for.
    fn explain(&mut self, port: Port, packet: &Packet<'_>, now: &[u8]) {
        let pair = self.pairs.get(&packet.bth.dest_qp).expect("a change comes over an open connection");
        assert_eq!(port, pair.port, "a change comes from the connection's peer");
        let domain = pair.domain;
        match (packet.bth.opcode, packet.ext) {
            (opcode @ (Opcode::WriteOnly | Opcode::WriteFirst), Extension::Reth(reth)) => {
                assert_eq!(reth.rkey, pair.rkey);
                assert!(self.may(domain, reth.va, u64::from(reth.dma_len), Perm::ReadWrite));
                self.tally.writes += 1;
                self.write(reth.va, packet.payload);
                if opcode == Opcode::WriteFirst {
                    let pair = self.pairs.get_mut(&packet.bth.dest_qp).unwrap();
                    pair.begun.push((reth.va, u64::from(reth.dma_len)));
                }
            }
            (Opcode::WriteMiddle | Opcode::WriteLast, _) => self.explain_rest(packet, now),
            (opcode @ (Opcode::CmpSwap | Opcode::FetchAdd), Extension::AtomicEth(eth)) => {
                assert_eq!(eth.rkey, pair.rkey);
                assert!(eth.va.0.is_multiple_of(8) && self.may(domain, eth.va, 8, Perm::ReadWrite));
                self.tally.atomics += 1;
                self.atomic(opcode, &eth);
            }
            (opcode, _) => panic!("{opcode:?} changed the store"),
        }
    }

    /// Justifies a change by a packet without an address: a WRITE in progress on its connection must cover
    /// the change.
    fn explain_rest(&mut self, packet: &Packet<'_>, now: &[u8]) {
        let pair = &self.pairs[&packet.bth.dest_qp];
        let (domain, pmtu, len) = (pair.domain, pair.pmtu, packet.payload.len() as u64);
        let places: Vec<VirtAddr> = pair
            .begun
            .iter()
            .flat_map(|&(va, all)| (1..all.div_ceil(pmtu)).map(move |i| (va.0 + i * pmtu, va.0 + all)))
            .filter(|&(at, end)| at + len <= end)
            .map(|(at, _)| VirtAddr(at))
            .collect();
        let fits = places.into_iter().find(|&at| {
            let written = self.may(domain, at, len, Perm::ReadWrite)
                && (0..).zip(packet.payload).all(|(i, byte)| now[self.place(at, i)] == *byte);
            written && {
                let here = self.place(at, 0)..self.place(at, 0) + packet.payload.len();
                (0..now.len()).all(|i| here.contains(&i) || now[i] == self.bytes[i])
            }
        });
        self.tally.write_rests += 1;
        self.write(fits.expect("the rest of a WRITE goes on where it began"), packet.payload);
    }

    fn atomic(&mut self, opcode: Opcode, eth: &AtomicEth) {
        let at = self.place(eth.va, 0);
        let word: [u8; 8] = self.bytes[at..at + 8].try_into().unwrap();
        let old = u64::from_le_bytes(word);
        let new = match opcode {
            Opcode::FetchAdd => old.wrapping_add(eth.swap_or_add),
            _ if old == eth.compare => eth.swap_or_add,
            _ => old,
        };
        self.bytes[at..at + 8].copy_from_slice(&new.to_le_bytes());
    }

    fn write(&mut self, addr: VirtAddr, data: &[u8]) {
        for (i, &byte) in (0..).zip(data) {
            let at = self.place(addr, i);
            self.bytes[at] = byte;
        }
    }

    /// Returns whether the domain has this access to all of these bytes, in one range.
    fn may(&self, domain: Domain, addr: VirtAddr, len: u64, perm: Perm) -> bool {
        let inside = |base: VirtAddr, all: u64, a: u64| a >= base.0 && a - base.0 < all;
        let Some(end) = addr.0.checked_add(len) else { return false };
        let one_range = self
            .ranges
            .iter()
            .any(|&(base, all, _)| len == 0 || inside(base, all, addr.0) && inside(base, all, end - 1));
        one_range
            && (addr.0..end).all(|a| {
                let last = self.lost.iter().rev().find(|(_, first, end)| (*first..*end).contains(&a));
                last.is_none_or(|(lost, ..)| !lost)
            })
            && (addr.0..end).all(|a| {
                let last = self.grants.iter().rev().find(|g| g.0 == domain && inside(g.1, g.2, a));
                last.is_some_and(|g| g.3.allows(perm))
            })
    }

    /// Returns the offset in the store of the byte `skip` behind `addr`.
    fn place(&self, addr: VirtAddr, skip: u64) -> usize {
        let at = addr.0 + skip;
        let (base, _, offset) =
            self.ranges.iter().find(|r| at >= r.0.0 && at - r.0.0 < r.1).expect("a byte that is here");
        usize::try_from(at - base.0 + offset).unwrap()
    }
}

/// Returns the node's answer to a batch.
fn answer(bench: &Bench, seq: u64) -> (Status, u16) {
    let [(Port::CONTROL, frame)] = &bench.sent[..] else {
        panic!("one answer to control, not {:?}", bench.sent)
    };
    let message = Message::parse(Packet::parse(frame).unwrap().payload).unwrap();
    let Body::Update(updates) = message.body else { panic!("an answer to updates") };
    assert_eq!(updates.seq, seq);
    (message.header.status, updates.refused)
}

/// Returns an entry that the whole pages around these bytes are not lost.
fn found(base: VirtAddr, len: u64) -> (bool, u64, u64) {
    (false, base.0 & !0xfff, (base.0 + len).checked_next_multiple_of(0x1000).unwrap_or(u64::MAX))
}
