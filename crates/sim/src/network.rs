//! The simulated network: packets with their ICRC, on links that lose, duplicate, delay and damage them as a
//! [`Plan`] says.
//!
//! A packet is the payload of a UDP datagram to port 4791: BTH to ICRC. The sending half seals it for its
//! route, faults happen to the sealed bytes, and the receiving half checks the ICRC as a driver does: damaged
//! packets are counted and dropped. The network knows addresses, not ports: each machine's driver maps
//! addresses to ports.

use crate::Plan;
use farmem_machine::{Duration, Instant, Rng};
use farmem_wire::message::PageMessage;
use farmem_wire::{Gid, Opcode, UDP_PORT, bth, icrc};
use pace::Paced;
use std::collections::{BTreeMap, BTreeSet};

mod pace;

pub use pace::Pace;

/// Packet counters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Frames that a role handed to the network.
    pub sent: u64,
    /// Packets lost in flight.
    pub lost: u64,
    /// Packets lost on a cut link.
    pub cut: u64,
    /// Duplicates made.
    pub duplicated: u64,
    /// Packets delivered after a later packet of the same link.
    pub reordered: u64,
    /// Packets with flipped bits.
    pub flipped: u64,
    /// Packets dropped by the receiver for their ICRC.
    pub icrc_dropped: u64,
    /// Packets flipped only in bits that the ICRC does not cover (FECN, BECN and the bits beside them), and
    /// so delivered.
    pub flipped_unseen: u64,
    /// Packets flipped elsewhere and still accepted. A violation.
    pub undetected: u64,
    /// Packets delivered to a role.
    pub delivered: u64,
}

impl Counters {
    /// Adds the counters of another network.
    pub const fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.cut += other.cut;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.flipped += other.flipped;
        self.icrc_dropped += other.icrc_dropped;
        self.flipped_unseen += other.flipped_unseen;
        self.undetected += other.undetected;
        self.delivered += other.delivered;
    }
}

/// A packet in flight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InFlight {
    /// The sender's address.
    pub from: Gid,
    /// The receiver's address.
    pub to: Gid,
    /// BTH to ICRC.
    pub packet: Vec<u8>,
    serial: u64,
    /// The flipped bits.
    flips: BTreeSet<usize>,
}

impl InFlight {
    /// Returns the frame as it stands, without the ICRC and unchecked.
    #[must_use]
    pub fn frame(&self) -> &[u8] {
        &self.packet[..self.packet.len() - icrc::LEN]
    }

    /// Flips a bit; 0 is the most significant bit of the first byte. A second flip restores it.
    fn flip(&mut self, bit: usize) {
        let bit = bit % (self.packet.len() * 8);
        self.packet[bit / 8] ^= 0x80 >> (bit % 8);
        if !self.flips.remove(&bit) {
            self.flips.insert(bit);
        }
    }

    /// Returns true if the ICRC covers one of the flipped bits: all but FECN, BECN and the six bits beside
    /// them (PROTOCOL 9.3).
    pub(crate) fn is_damaged(&self) -> bool {
        const UNSEEN_BYTE: usize = 4;
        self.flips.iter().any(|bit| bit / 8 != UNSEEN_BYTE)
    }
}

/// The id of a packet in flight: its due time, then the order of sending.
pub type Ticket = (Instant, u64);

/// All links of the rack.
#[derive(Debug)]
pub struct Network {
    plan: Plan,
    rng: Rng,
    ways: BTreeMap<Ticket, InFlight>,
    serial: u64,
    latest: BTreeMap<(Gid, Gid), u64>,
    /// The cut links, each with the end of the cut.
    cuts: BTreeMap<(Gid, Gid), Instant>,
    /// The time from which on the plan cuts the next used link.
    next_cut: Instant,
    slow: Option<Gid>,
    rogue: Option<Gid>,
    /// Words whose atomics leave their host four bytes off: no host role sends such an address itself.
    skewed: BTreeSet<u64>,
    spare: Vec<Vec<u8>>,
    counters: Counters,
    /// The timing model, if any.
    paced: Option<Paced>,
}

impl Network {
    /// Returns empty links that follow `plan`, with random numbers of `rng`.
    #[must_use]
    pub fn new(plan: Plan, rng: Rng) -> Self {
        Self {
            plan,
            rng,
            ways: BTreeMap::new(),
            serial: 0,
            latest: BTreeMap::new(),
            cuts: BTreeMap::new(),
            next_cut: Instant::ZERO + plan.partition_every,
            slow: None,
            rogue: None,
            skewed: BTreeSet::new(),
            spare: Vec::new(),
            counters: Counters::default(),
            paced: None,
        }
    }

    /// Sets the timing model.
    pub fn set_pace(&mut self, pace: Pace) {
        self.paced = Some(Paced::new(pace));
    }

    /// Records that a machine has handled an event with this many frames and visits. Packets sent in the
    /// event leave when its work is done.
    pub(crate) fn worked(&mut self, now: Instant, machine: Gid, frames: u64, visits: u64) {
        let Some(paced) = &mut self.paced else { return };
        for (due, in_flight) in paced.worked(now, machine, frames, visits) {
            self.ways.insert((due, in_flight.serial), in_flight);
        }
    }

    /// Sends a frame from the machine at `from`.
    ///
    /// # Panics
    ///
    /// If the frame exceeds [`PageMessage::FRAME_LEN_MAX`]: no link carries it.
    pub fn send(&mut self, now: Instant, from: Gid, to: Gid, frame: &[u8]) {
        assert!(frame.len() <= PageMessage::FRAME_LEN_MAX, "a frame of {} bytes fits no link", frame.len());
        self.counters.sent += 1;
        if self.is_cut(now, from, to) {
            self.counters.cut += 1;
            return;
        }
        if self.chance(self.plan.loss_ppm) {
            self.counters.lost += 1;
            return;
        }
        let mut packet = self.spare.pop().unwrap_or_default();
        packet.clear();
        packet.extend_from_slice(frame);
        if self.rogue == Some(from) && self.chance(self.plan.rogue_ppm) {
            self.spoil(&mut packet);
        }
        if let Some(addr) = atomic_address(&packet).filter(|addr| self.skewed.contains(addr)) {
            claim_address(&mut packet, addr + 4);
        }
        icrc::seal(&route(from, to), &mut packet, 0);
        if self.chance(self.plan.duplicate_ppm) {
            self.counters.duplicated += 1;
            let copy = packet.clone();
            self.launch(now, from, to, copy);
        }
        self.launch(now, from, to, packet);
    }

    /// Returns the time at which the next packet is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.ways.first_key_value().map(|(&(due, _), _)| due)
    }

    /// Takes the next packet due at `now` off its link. [`Network::open`] checks it.
    pub fn take_due(&mut self, now: Instant) -> Option<InFlight> {
        loop {
            let entry = self.ways.first_entry()?;
            if entry.key().0 > now {
                return None;
            }
            let in_flight = entry.remove();
            // A packet for a busy machine waits, behind those that wait already.
            match self.paced.as_ref().map(|paced| paced.free_at(in_flight.to)).filter(|free| *free > now) {
                Some(free) => _ = self.ways.insert((free, in_flight.serial), in_flight),
                None => return Some(in_flight),
            }
        }
    }

    /// Checks the ICRC at the receiver. Returns the frame, or `None` if the packet is damaged.
    pub fn open<'a>(&mut self, in_flight: &'a InFlight) -> Option<&'a [u8]> {
        let latest = self.latest.entry((in_flight.from, in_flight.to)).or_default();
        if *latest > in_flight.serial {
            self.counters.reordered += 1;
        }
        *latest = in_flight.serial.max(*latest);
        let Ok(frame) = icrc::check(&route(in_flight.from, in_flight.to), &in_flight.packet) else {
            self.counters.icrc_dropped += 1;
            return None;
        };
        match (in_flight.flips.is_empty(), in_flight.is_damaged()) {
            (_, true) => self.counters.undetected += 1,
            (false, false) => self.counters.flipped_unseen += 1,
            (true, false) => {}
        }
        self.counters.delivered += 1;
        Some(frame)
    }

    /// Takes a packet's buffer back for reuse.
    pub fn recycle(&mut self, in_flight: InFlight) {
        const SPARE_MAX: usize = 256;
        if self.spare.len() < SPARE_MAX {
            self.spare.push(in_flight.packet);
        }
    }

    /// Returns the packets in flight, next due first.
    pub fn on_the_way(&self) -> impl Iterator<Item = (Ticket, &InFlight)> {
        self.ways.iter().map(|(&ticket, in_flight)| (ticket, in_flight))
    }

    /// Returns the number of packets in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ways.len()
    }

    /// Returns true if nothing is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ways.is_empty()
    }

    /// Takes one packet off its link, due or not, for a script.
    pub fn take(&mut self, ticket: Ticket) -> Option<InFlight> {
        self.ways.remove(&ticket)
    }

    /// Duplicates a packet, for a script. The copy comes right behind it.
    pub fn duplicate(&mut self, ticket: Ticket) {
        if let Some(in_flight) = self.ways.get(&ticket).cloned() {
            self.counters.duplicated += 1;
            self.serial += 1;
            self.ways.insert((ticket.0, self.serial), InFlight { serial: self.serial, ..in_flight });
        }
    }

    /// Flips bit `bit` (0 is the most significant bit of the first byte; modulo the packet's length), for a
    /// script.
    pub fn flip(&mut self, ticket: Ticket, bit: usize) {
        if let Some(in_flight) = self.ways.get_mut(&ticket) {
            self.counters.flipped += 1;
            in_flight.flip(bit);
        }
    }

    /// Changes a packet and seals it again, as its sender could have, for a script.
    pub fn rewrite(&mut self, ticket: Ticket, change: impl FnOnce(&mut [u8])) {
        if let Some(in_flight) = self.ways.get_mut(&ticket) {
            in_flight.packet.truncate(in_flight.packet.len() - icrc::LEN);
            change(&mut in_flight.packet);
            icrc::seal(&route(in_flight.from, in_flight.to), &mut in_flight.packet, 0);
        }
    }

    /// Moves a packet behind all others in flight, for a script.
    pub fn hold(&mut self, ticket: Ticket) {
        let last = self.ways.last_key_value().map(|(&(due, _), _)| due);
        if let Some((in_flight, last)) = self.ways.remove(&ticket).zip(last) {
            self.serial += 1;
            self.ways.insert((last, self.serial), in_flight);
        }
    }

    /// Loses a packet, for a script.
    pub fn lose(&mut self, ticket: Ticket) -> Option<InFlight> {
        let in_flight = self.ways.remove(&ticket)?;
        self.counters.lost += 1;
        Some(in_flight)
    }

    /// Cuts the link from one address to another, in that direction only. Packets in flight still arrive.
    pub fn cut(&mut self, from: Gid, to: Gid) {
        self.cuts.insert((from, to), Instant::from_nanos(u64::MAX));
    }

    /// Restores a cut link.
    pub fn restore(&mut self, from: Gid, to: Gid) {
        self.cuts.remove(&(from, to));
    }

    /// Makes the machine at `gid` the plan's slow node.
    pub fn set_slow(&mut self, gid: Gid) {
        self.slow = Some(gid);
    }

    /// Makes the machine at `gid` the plan's rogue.
    pub fn set_rogue(&mut self, gid: Gid) {
        self.rogue = Some(gid);
    }

    /// Misaligns the address of every atomic on the word at `addr` from now on, retransmissions too.
    pub(crate) fn skew(&mut self, addr: u64) {
        self.skewed.insert(addr);
    }

    /// Ends the effect of [`Network::skew`].
    pub(crate) fn straighten(&mut self, addr: u64) {
        self.skewed.remove(&addr);
    }

    /// Ends all faults. Packets in flight still arrive as they are.
    pub fn heal(&mut self) {
        self.plan = self.plan.healed();
        self.cuts.clear();
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    fn launch(&mut self, now: Instant, from: Gid, to: Gid, packet: Vec<u8>) {
        self.serial += 1;
        let mut in_flight = InFlight { from, to, packet, serial: self.serial, flips: BTreeSet::new() };
        if self.chance(self.plan.flip_ppm) {
            self.counters.flipped += 1;
            // Up to three bits: as many as a CRC-32 always detects in a packet of this length.
            let flips = 1 + self.rng.below(3) as usize;
            let bits = u32::try_from(in_flight.packet.len() * 8).unwrap_or(u32::MAX);
            while in_flight.flips.len() < flips {
                let bit = self.rng.below(bits) as usize;
                if !in_flight.flips.contains(&bit) {
                    in_flight.flip(bit);
                }
            }
        }
        let way = self.delay(from, to);
        match &mut self.paced {
            Some(paced) => paced.send(way, in_flight),
            None => _ = self.ways.insert((now + way, self.serial), in_flight),
        }
    }

    /// Changes a frame as broken software would: some bits, a byte, a word, or its length.
    fn spoil(&mut self, frame: &mut Vec<u8>) {
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        match self.rng.below(6) {
            5 => claim_domain(frame, 1 + self.rng.below(3)),
            0 | 1 => {
                for _ in 0..=self.rng.below(3) {
                    let bit = self.rng.below(len * 8) as usize;
                    frame[bit / 8] ^= 0x80 >> (bit % 8);
                }
            }
            2 => {
                let value = [0, 1, 0x7f, 0xff][self.rng.below(4) as usize];
                frame[self.rng.below(len) as usize] = value;
            }
            3 => {
                let at = self.rng.below(len) as usize & !3;
                let word = self.rng.next_u32().to_be_bytes();
                frame.iter_mut().skip(at).zip(word).for_each(|(byte, new)| *byte = new);
            }
            // Still long enough for a BTH, as every sealed frame is.
            _ if self.rng.chance(1, 2) => frame.truncate(bth::LEN.max(self.rng.below(len) as usize)),
            _ => frame.extend_from_slice(&[0; 8]),
        }
    }

    /// Returns true if the link is cut. Under a plan with partitions this may cut a used link.
    fn is_cut(&mut self, now: Instant, from: Gid, to: Gid) -> bool {
        if self.plan.partition_every > Duration::ZERO && now >= self.next_cut {
            self.cuts.insert((from, to), now + self.plan.partition_for);
            // At least as long again without a cut: a link that is never whole is another fault.
            self.next_cut =
                now + self.plan.partition_for.times(2) + self.up_to(self.plan.partition_every.times(2));
        }
        match self.cuts.get(&(from, to)) {
            Some(&until) if now < until => true,
            Some(_) => {
                self.cuts.remove(&(from, to));
                false
            }
            None => false,
        }
    }

    fn delay(&mut self, from: Gid, to: Gid) -> Duration {
        let mut delay = self.plan.latency + self.up_to(self.plan.jitter);
        if self.chance(self.plan.reorder_ppm) {
            delay = delay + self.up_to(self.plan.held_max);
        }
        if self.slow.is_some_and(|slow| slow == from || slow == to) {
            delay = delay + self.plan.slow_node;
        }
        delay
    }

    fn up_to(&mut self, span: Duration) -> Duration {
        let most = u32::try_from(span.as_nanos()).unwrap_or(u32::MAX);
        if most == 0 { Duration::ZERO } else { Duration::from_nanos(u64::from(self.rng.below(most))) }
    }

    fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.rng.chance(ppm, 1_000_000)
    }
}

/// Writes a domain into the header of the message in a datagram, if there is one.
pub(crate) fn claim_domain(frame: &mut [u8], domain: u32) {
    const START: usize = bth::LEN + farmem_wire::Deth::LEN + 4;
    if let Some(field) = frame.get_mut(START..START + 4) {
        field.copy_from_slice(&domain.to_be_bytes());
    }
}

/// Writes an address into the RETH or AtomicETH behind a frame's BTH, where both begin with it.
pub(crate) fn claim_address(frame: &mut [u8], addr: u64) {
    if let Some(field) = frame.get_mut(ADDRESS) {
        field.copy_from_slice(&addr.to_be_bytes());
    }
}

const ADDRESS: core::ops::Range<usize> = bth::LEN..bth::LEN + 8;

/// Returns the address of an atomic request; `None` for any other frame.
fn atomic_address(frame: &[u8]) -> Option<u64> {
    let atomic = [Opcode::CmpSwap as u8, Opcode::FetchAdd as u8].contains(frame.first()?);
    let field = frame.get(ADDRESS).filter(|_| atomic)?;
    field.try_into().ok().map(u64::from_be_bytes)
}

/// Returns the fields of the IP and UDP headers that the ICRC covers.
fn route(from: Gid, to: Gid) -> icrc::Route {
    icrc::Route { src: from, dst: to, src_port: UDP_PORT, ip_id: 0 }
}

#[cfg(test)]
mod tests {
    use super::{Counters, Network};
    use crate::Plan;
    use farmem_machine::{Duration, Instant, Rng};
    use farmem_wire::{Bth, Extension, Gid, Opcode, Packet, Psn, Qpn};

    fn gids() -> (Gid, Gid) {
        (Gid::from_v4([10, 0, 0, 1]), Gid::from_v4([10, 0, 0, 2]))
    }

    fn frame(psn: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let bth = Bth::new(Opcode::SendOnly, Qpn::new(7), Psn::new(psn));
        Packet { bth, ext: Extension::None, payload: &psn.to_be_bytes() }.emit(&mut bytes);
        bytes
    }

    fn carry(plan: Plan, frames: u32) -> (Vec<u32>, Counters) {
        let (a, b) = gids();
        let mut network = Network::new(plan, Rng::from_number(1));
        let mut arrived = Vec::new();
        for psn in 0..frames {
            network.send(Instant::from_nanos(u64::from(psn) * 1000), a, b, &frame(psn));
        }
        while let Some(due) = network.next_due() {
            let in_flight = network.take_due(due).expect("due");
            if let Some(frame) = network.open(&in_flight) {
                arrived.push(Packet::parse(frame).expect("whole").bth.psn.get());
            }
            network.recycle(in_flight);
        }
        (arrived, *network.counters())
    }

    /// A calm network delivers everything once, in order.
    #[test]
    fn a_calm_network_keeps_order() {
        let (arrived, counters) = carry(Plan::CALM, 1000);
        assert_eq!(arrived, (0..1000).collect::<Vec<_>>());
        assert_eq!(counters, Counters { sent: 1000, delivered: 1000, ..Counters::default() });
    }

    /// In a storm every fault happens at its rate, every packet is accounted for, and no damage goes
    /// undetected.
    #[test]
    fn a_storm_is_accounted_for() {
        let (arrived, c) = carry(Plan::STORM, 100_000);
        assert_eq!(c.sent + c.duplicated, c.lost + c.delivered + c.icrc_dropped);
        assert_eq!(c.flipped, c.icrc_dropped + c.flipped_unseen);
        assert_eq!((c.undetected, arrived.len() as u64), (0, c.delivered));
        let near = |n: u64, percent: u64| n.abs_diff(percent * 1000) < 300;
        assert!(near(c.lost, 5) && near(c.duplicated, 5) && near(c.flipped, 2), "{c:?}");
        assert!(c.reordered > 5_000 && c.flipped_unseen > 0, "{c:?}");
    }

    /// A cut link is cut in one direction only, until it is restored.
    #[test]
    fn a_cut_is_one_way() {
        let (a, b) = gids();
        let mut network = Network::new(Plan::CALM, Rng::from_number(1));
        network.cut(a, b);
        network.send(Instant::ZERO, a, b, &frame(1));
        network.send(Instant::ZERO, b, a, &frame(2));
        assert_eq!((network.len(), network.counters().cut), (1, 1));
        network.restore(a, b);
        network.send(Instant::ZERO, a, b, &frame(3));
        assert_eq!(network.len(), 2);
    }

    /// A script's operations: one packet is duplicated, its copy damaged and repaired, and one is lost.
    #[test]
    fn packets_can_be_handled_one_by_one() {
        let (a, b) = gids();
        let mut network = Network::new(Plan::CALM, Rng::from_number(1));
        network.send(Instant::ZERO, a, b, &frame(1));
        let first = network.on_the_way().next().expect("sent").0;
        network.duplicate(first);
        let second = network.on_the_way().nth(1).expect("doubled").0;
        network.flip(second, 100);
        let damaged = network.take(second).expect("there");
        assert!(network.open(&damaged).is_none());
        network.lose(first).expect("there");
        assert!(network.is_empty());
        let counters = network.counters();
        assert_eq!((counters.lost, counters.duplicated, counters.icrc_dropped), (1, 1, 1));
    }

    /// The slow machine is slow in both directions, also after healing: the links are not the cause.
    #[test]
    fn a_slow_machine_stays_slow() {
        let (a, b) = gids();
        let mut network = Network::new(Plan { loss_ppm: 0, ..Plan::SLOW }, Rng::from_number(1));
        network.set_slow(b);
        network.heal();
        network.send(Instant::ZERO, b, a, &frame(1));
        let due = network.next_due().expect("sent");
        assert_eq!(due.since(Instant::ZERO), Plan::SLOW.latency + Plan::SLOW.slow_node);
        assert!(Plan::SLOW.slow_node > Duration::ZERO);
    }
}
