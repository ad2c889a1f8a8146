//! Preventive prefetching (PD3) in a simulated world: clients, a mirror of their bytes, a DPU, a host that
//! caches, and a memory node.
//!
//! Every item that the host reads is compared with the last one written. The decisions are the real ones:
//! [`farmem_dpu`]'s guarded parsers, its prefetcher, and the host's changes with their floors; only their
//! environment is simulated. There are no packets: a plan's losses are pieces of connections that the mirror
//! misses and messages that fail; its reordering is that of answers, and late copies; its crashes are those
//! of DPU, host and node in turn. The seed chooses the protocol, whether the mirror numbers pieces, the
//! policy of a full zone, and whether the host reports drops.
//!
//! No stale item may be read, nothing may be fetched twice at once, and each useless fetch and each miss must
//! have a cause.
//!
//! Key type: `World`.

mod clients;
mod dpu;
mod host;
mod node;

use crate::Plan;
use crate::campaign::{self, Campaign, Outcome as Ended, Report, Verdict};
use crate::digest::Digest;
use clients::{Connection, Piece, Protocol};
use dpu::DpuState;
use farmem_machine::{Duration, Rng};
use host::Host;
use node::Node;
use std::collections::{BTreeMap, VecDeque};

/// Number of items.
const KEYS: u32 = 24;
const CONNECTIONS: usize = 3;
/// Number of pieces that the mirror buffers before it loses new ones.
const MIRROR_MAX: usize = 12;
/// Steps between two checks of every invariant of the prefetcher.
const CHECK_EVERY: u64 = 16;
/// Maximum number of steps until a world with silent clients is at rest.
const SETTLE_MAX: u32 = 20_000;
/// Maximum number of trace events, the latest.
const TRACE_MAX: usize = 80;

/// The key of an item.
type Key = u32;
/// The value of an item: unique to its write.
type Value = u64;

/// Runs preventive prefetching beside a host.
pub fn campaign(campaign: &Campaign, progress: &mut dyn FnMut(u64)) -> Report {
    campaign::run("pd3", campaign, world, progress)
}

fn world(seed: u64, operations: u64, plan: Plan, trace: bool) -> Ended {
    let mut world = World::new(seed, &plan, trace);
    let mut steps = 0_u64;
    while world.host.operations < operations && world.wrong.is_none() {
        world.step();
        steps += 1;
        if steps.is_multiple_of(CHECK_EVERY) {
            world.check();
        }
    }
    let mut ended = Ended { operations: world.host.operations, crashes: world.crashes, ..Ended::default() };
    if world.wrong.is_none() {
        world.settle();
    }
    world.bury_dpu();
    ended.notes = world.notes.iter().map(|(name, count)| (format!("pd3.{name}"), *count)).collect();
    ended.digest = world.digest.get();
    ended.trace = world.trace.unwrap_or_default().into();
    if let Some((verdict, why)) = world.wrong {
        (ended.verdict, ended.why) = (verdict, why);
    }
    ended
}

/// The fault rates, in parts of 1,024.
#[derive(Clone, Copy, Debug)]
struct Faults {
    /// A piece that the mirror loses.
    unseen: u32,
    /// A message that fails, executed or not.
    failed: u32,
    /// True if answers and messages are reordered, and the mirror is late.
    any_order: bool,
    /// Steps in which a machine crashes.
    crash: u32,
}

impl Faults {
    fn of(plan: &Plan) -> Self {
        let lossy = plan.loss_ppm + plan.flip_ppm + plan.duplicate_ppm;
        Self {
            unseen: (lossy / 1_000).min(300),
            failed: ((lossy / 1_000) + u32::from(plan.partition_every > Duration::ZERO) * 100).min(400),
            any_order: plan.reorder_ppm > 0,
            crash: u32::from(plan.crash_every > Duration::ZERO) * 2,
        }
    }
}

/// The parameters that the seed chooses beside the faults.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// True if the mirror numbers its pieces.
    numbered: bool,
    /// True if the DPU empties the host's ring before any other input.
    ring_first: bool,
    /// True if the host reports unchanged drops.
    says_drops: bool,
    /// True if the host keeps items taken from the zone.
    keeps: bool,
    /// True if a full zone replaces its oldest item (PD3 8.5); otherwise it accepts no more (7.2).
    replaces: bool,
    /// Capacity of the zone in items.
    zone: usize,
    /// Capacity of the host's cache in items.
    cache: usize,
    /// Number of the host's floors: one, shared by all keys, or many.
    floors: u32,
}

impl Shape {
    fn of(rng: &mut Rng) -> Self {
        let mut coin = || rng.chance(1, 2);
        Self {
            numbered: coin() || coin(),
            ring_first: coin() || coin(),
            says_drops: coin(),
            keeps: coin() || coin(),
            replaces: coin(),
            zone: if coin() { 3 } else { 10 },
            cache: if coin() { 4 } else { 12 },
            floors: if coin() { 4 } else { 1 << 12 },
        }
    }
}

struct World {
    faults: Faults,
    shape: Shape,
    protocol: Protocol,
    rng: Rng,
    connections: Vec<Connection>,
    to_host: VecDeque<Piece>,
    mirror: VecDeque<Piece>,
    pieces: u64,
    host: Host,
    dpu: Option<DpuState>,
    node: Node,
    /// The last item written of each key.
    truth: BTreeMap<Key, Value>,
    /// Items that the node lost.
    lost: BTreeMap<Key, Value>,
    values: Value,
    crashes: u64,
    silent: bool,
    notes: BTreeMap<&'static str, u64>,
    wrong: Option<(Verdict, String)>,
    digest: Digest,
    trace: Option<VecDeque<String>>,
}

impl World {
    fn new(seed: u64, plan: &Plan, trace: bool) -> Self {
        let mut rng = Rng::from_number(seed);
        let shape = Shape::of(&mut rng);
        let protocol = Protocol::any(&mut rng);
        let connections = (0..CONNECTIONS).map(|_| Connection::new(protocol)).collect();
        let mut world = Self {
            faults: Faults::of(plan),
            shape,
            protocol,
            rng,
            connections,
            to_host: VecDeque::new(),
            mirror: VecDeque::new(),
            pieces: 0,
            host: Host::new(&shape, 0),
            dpu: None,
            node: Node::default(),
            truth: BTreeMap::new(),
            lost: BTreeMap::new(),
            values: 0,
            crashes: 0,
            silent: false,
            notes: BTreeMap::new(),
            wrong: None,
            digest: Digest::default(),
            trace: trace.then(VecDeque::new),
        };
        world.start_dpu();
        world
    }

    /// Adds an event to the digest and the trace.
    fn event(&mut self, what: &'static str, key: Key, number: u64) {
        self.digest.number(u64::from(key) << 40 ^ number << 8 ^ what.len() as u64);
        let Some(trace) = &mut self.trace else { return };
        if trace.len() == TRACE_MAX {
            trace.pop_front();
        }
        trace.push_back(format!("{what} {key} {number}"));
    }

    fn note(&mut self, what: &'static str) {
        self.notes_add(what, 1);
    }

    fn notes_add(&mut self, what: &'static str, count: u64) {
        *self.notes.entry(what).or_insert(0) += count;
    }

    /// Records a safety violation unless `holds`.
    fn hold(&mut self, holds: bool, why: impl FnOnce() -> String) {
        if !holds {
            self.wrong.get_or_insert_with(|| (Verdict::Unsafe, why()));
        }
    }

    /// Runs a random event.
    fn step(&mut self) {
        if self.faults.crash > 0 && !self.silent && self.rng.chance(self.faults.crash, 1024) {
            self.crash();
        }
        match self.rng.below(16) {
            0..=2 => self.client_sends(),
            3..=5 => self.mirror_gives(),
            6..=8 => self.host_goes_on(),
            9 | 10 => self.ring(),
            11 | 12 => self.node_works(),
            13 | 14 => self.answer(),
            _ => self.seldom(),
        }
    }

    fn seldom(&mut self) {
        match self.rng.below(8) {
            0 => self.host_generates(),
            1 | 2 => self.host_writes_back(),
            3 if self.dpu.is_none() => self.start_dpu(),
            4 => {
                let which = self.rng.below(u32::try_from(CONNECTIONS).expect("a few")) as usize;
                if self.connections[which].blind {
                    self.connections[which].reconnect();
                }
            }
            _ => self.clean(),
        }
    }

    /// Sends a client's bytes to the host, with a copy to the mirror.
    fn client_sends(&mut self) {
        if self.silent || self.to_host.len() >= MIRROR_MAX {
            return;
        }
        let which = self.rng.below(u32::try_from(CONNECTIONS).expect("a few")) as usize;
        let Some(mut piece) = self.connections[which].send(which, self.pieces + 1, &mut self.rng) else {
            return;
        };
        self.pieces += 1;
        let lost = self.dpu.is_none()
            || self.mirror.len() >= MIRROR_MAX
            || self.rng.chance(self.faults.unseen, 1024);
        if lost {
            self.connections[which].blind = true;
            self.note("pieces.unseen");
        }
        // Later bytes may be skipped.
        piece.unseen = self.connections[which].blind;
        piece.lost = lost;
        let unseen = piece.unseen;
        piece.requests.iter_mut().for_each(|request| request.unseen = unseen);
        self.mirror.push_back(piece.clone());
        self.to_host.push_back(piece);
    }

    /// Passes a copy to the DPU. Without faults, the copy arrives before the host executes the request.
    fn mirror_gives(&mut self) {
        let Some(piece) = self.mirror.pop_front() else { return };
        let late = piece.position <= self.host.executed;
        self.note(if late { "pieces.late" } else { "pieces.early" });
        self.see(&piece);
    }

    /// Lets the host execute the next request.
    fn host_goes_on(&mut self) {
        if self.host.is_waiting() {
            return;
        }
        if let Some(request) = self.host.at_hand.pop_front() {
            return self.carry_out(request);
        }
        if let Some(piece) = self.host.current.take() {
            self.host.executed = piece;
        }
        if !self.faults.any_order {
            while self
                .mirror
                .front()
                .is_some_and(|copy| self.to_host.front().is_some_and(|next| copy.position <= next.position))
            {
                self.mirror_gives();
            }
        }
        if let Some(piece) = self.to_host.pop_front() {
            self.host.current = Some(piece.position);
            self.host.at_hand = piece.requests.into();
        }
    }

    /// Crashes and restarts one of the three machines; the DPU restarts a while later.
    fn crash(&mut self) {
        self.crashes += 1;
        match self.rng.below(3) {
            0 if self.dpu.is_some() => self.dpu_dies(),
            1 => self.host_dies(),
            _ => self.node_dies(),
        }
    }

    fn check(&mut self) {
        if let Some(dpu) = &self.dpu {
            dpu.prefetcher.check();
        }
        let (here, may) = (self.host.cache.len(), self.shape.cache);
        self.hold(here <= may, || format!("the host holds {here} items, and may {may}"));
    }

    /// Silences the clients and ends everything: the node must have the host's flushes.
    fn settle(&mut self) {
        self.silent = true;
        for _ in 0..SETTLE_MAX {
            if self.is_quiet() || self.wrong.is_some() {
                break;
            }
            self.step();
        }
        let quiet = self.is_quiet();
        if !quiet {
            let why = format!("{} pieces, {} in the ring", self.to_host.len(), self.host.ring.len());
            self.wrong.get_or_insert((Verdict::Stuck, why));
        }
        self.check();
    }

    fn is_quiet(&self) -> bool {
        self.to_host.is_empty()
            && self.mirror.is_empty()
            && self.host.is_quiet()
            && self.node.is_quiet()
            && self.dpu.as_ref().is_none_or(|dpu| dpu.fetches.is_empty() && dpu.answers.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(plan: Plan, operations: u64, seeds: u64) -> Report {
        let report = campaign(&Campaign { operations, seeds, first_seed: 0, plan }, &mut |_| {});
        assert_eq!(report.verdict, Verdict::Fine, "{report}");
        report
    }

    /// Under every plan and in every shape: no stale item, no double fetch, and a cause for every deviation;
    /// and each cause occurs.
    #[test]
    fn no_stale_item_is_read_whatever_fails() {
        let mut notes = BTreeMap::new();
        for plan in Plan::ALL.into_iter().chain([Plan::HAVOC]) {
            for (note, count) in play(plan, 60_000, 48).total.notes {
                *notes.entry(note).or_insert(0) += count;
            }
        }
        let never: Vec<_> = notes.iter().filter(|(_, count)| **count < 10).collect();
        assert!(never.is_empty(), "{never:?} of {notes:?}");
        for cause in farmem_paging::Miss::ALL {
            assert!(notes.contains_key(&format!("pd3.miss.{}", cause.name())), "{cause:?} of {notes:?}");
        }
        for cause in farmem_paging::Waste::ALL {
            assert!(notes.contains_key(&format!("pd3.waste.{}", cause.name())), "{cause:?} of {notes:?}");
        }
    }

    /// Without faults, and with a mirror that numbers its pieces, no fetch is useless, and no item is missed
    /// because its request was not seen.
    #[test]
    fn without_faults_nothing_is_false() {
        let notes = play(Plan::CALM, 100_000, 64).total.notes;
        let count = |name: &str| notes.get(&format!("pd3.{name}")).copied().unwrap_or(0);
        assert_eq!(
            (count("miss.unseen"), count("pieces.late"), count("pieces.unseen")),
            (0, 0, 0),
            "{notes:?}"
        );
        assert!(count("used") > 4_000, "{notes:?}");
    }

    /// A restarted DPU fetches an item that the host holds. The host drops its own copy and takes the fetched
    /// one. The DPU mistakes the drop for one of the fetched item and fetches it again, as it cannot know
    /// better; also while the fetched one is still in the zone.
    #[test]
    fn what_comes_of_a_drop_beside_an_item_is_excused() {
        for (first_seed, operations, plan) in [(500_026, 3785, Plan::HAVOC), (1_052_206, 235, Plan::HAVOC)] {
            let report = campaign(&Campaign { operations, seeds: 1, first_seed, plan }, &mut |_| {});
            assert_eq!(report.verdict, Verdict::Fine, "{report}");
            assert!(report.total.notes["pd3.false_positives.excused"] > 0, "{report}");
        }
    }

    /// A seed always gives the same world.
    #[test]
    fn a_seed_is_a_world() {
        let digest = || play(Plan::HAVOC, 5_000, 4).total.digest;
        assert_eq!(digest(), digest());
    }
}
