//! The page cache under programs that load and store, beside a memory that answers late, in any order, not at all, or has lost pages.
//!
//! Every load is compared with the last store, or its thread got an error. Evicted pages must be in far memory, and the limit of
//! resident pages must hold. The cache is that of windows ([`farmem_paging::Cache`]) with a simulated environment. There are no
//! packets: a plan's network faults are operations without an answer, executed or not; its crashes are lost pages; its outages are a
//! memory that stops answering. The seed chooses the shape of the cache.
//!
//! Key type: `World`.

mod coherent;
mod other_hosts;
mod private;

use crate::Plan;
use crate::campaign::{self, Campaign, Outcome as Ended, Report, Verdict};
use crate::digest::Digest;
use farmem_machine::Rng;
use farmem_paging::{Action, Ahead, Cache, Cause, Config, Key, Layout, Op, Outcome, Source};
use farmem_wire::message::Access;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const SPACES: u32 = 2;
/// Pages of a space.
const PAGES_U32: u32 = 40;
const PAGES: u64 = PAGES_U32 as u64;
/// First page of the last group of each space, whose pages are copies of others at their first touch.
const NEAR_FROM: u64 = 36;

/// Runs the page cache of one program, of programs that fork, or of pages shared with other hosts, beside a faulty memory.
pub fn campaign(campaign: &Campaign, progress: &mut dyn FnMut(u64)) -> Report {
    campaign::run("paging", campaign, world, progress)
}

/// Runs one world: of every three, one has a window, one has programs that fork, and one has pages shared with other hosts.
fn world(seed: u64, operations: u64, plan: Plan, trace: bool) -> Ended {
    // The three kinds alternate by seed.
    let (seed, kind) = (seed / 3, seed % 3);
    match kind {
        1 => return private::world(seed, operations, &plan, trace),
        2 => return coherent::world(seed, operations, plan, trace),
        _ => {}
    }
    let mut world = World::new(seed, plan, operations, trace);
    let mut walk = 0;
    let mut steps = 0_u64;
    while world.accesses < operations {
        world.step(&mut walk);
        steps += 1;
        if steps.is_multiple_of(CHECK_EVERY) {
            world.cache.check();
        }
        if world.wrong.is_some() {
            break;
        }
    }
    let mut ended = Ended { operations: world.accesses, ..Ended::default() };
    if world.wrong.is_none() {
        world.settle();
    }
    let stats = world.cache.stats();
    let counts = [
        ("fetches", stats.fetches),
        ("write_backs", stats.write_backs),
        ("rested", stats.reactivated),
        ("evictions", stats.evictions),
        ("ahead.wanted", stats.ahead.wanted),
        ("ahead.used", stats.ahead.used),
        ("ahead.late", stats.ahead.late),
        ("ahead.wasted", stats.ahead.wasted),
        ("told.lost", world.told_lost),
        ("told.failed", world.told_failed),
    ];
    ended.notes = counts.into_iter().map(|(name, count)| (format!("paging.{name}"), count)).collect();
    ended.retransmissions = world.tried_again;
    ended.digest = world.digest.get();
    ended.trace = world.trace.unwrap_or_default().into();
    if let Some((verdict, why)) = world.wrong {
        (ended.verdict, ended.why) = (verdict, why);
    }
    ended
}

/// Steps between two checks of every invariant of the cache; the limit is checked after each.
const CHECK_EVERY: u64 = 32;
/// Maximum number of accesses to resident pages in one step.
const BURST_MAX: u32 = 16;
/// Maximum number of trace events, the latest.
const TRACE_MAX: usize = 60;

/// The fault rates, per 256 steps or operations.
#[derive(Clone, Copy, Debug)]
struct Faults {
    /// An operation ends without an answer, executed or not.
    unanswered: u32,
    /// Number of accesses after which the memory stops answering.
    dead_after: Option<u64>,
    /// A page of far memory loses its bytes.
    lost: u32,
    /// Operations end in any order.
    any_order: bool,
    /// The program unmaps pages.
    unmapped: u32,
    /// Pages are pinned for a while.
    pinned: u32,
}

impl Faults {
    const CALM: Self =
        Self { unanswered: 0, dead_after: None, lost: 0, any_order: false, unmapped: 0, pinned: 0 };

    fn of(plan: &Plan, seed: u64, operations: u64) -> Self {
        let some = |of: farmem_machine::Duration| of > farmem_machine::Duration::ZERO;
        let wrong = u64::from(plan.loss_ppm + plan.flip_ppm + plan.duplicate_ppm);
        Self {
            unanswered: u32::try_from((wrong * 256 / 100_000).min(200)).expect("a small number"),
            dead_after: (some(plan.partition_every) && seed % 4 == 3).then_some(operations / 2),
            lost: if some(plan.crash_every) { 20 } else { 0 },
            any_order: plan.reorder_ppm > 0,
            unmapped: if plan.name == Plan::CALM.name { 0 } else { 60 },
            pinned: if plan.name == Plan::CALM.name { 0 } else { 100 },
        }
    }
}

struct World {
    cache: Cache,
    config: Config,
    faults: Faults,
    rng: Rng,
    memory: Memory,
    /// The programs' view: bytes and access.
    view: BTreeMap<Key, (u64, Option<Access>)>,
    /// The true contents of each page.
    truth: BTreeMap<Key, u64>,
    under_way: Vec<UnderWay>,
    /// Waiting threads: the page, and whether they write.
    blocked: Vec<(Key, bool)>,
    /// Number of errors to threads: page lost, and memory failed.
    told_lost: u64,
    told_failed: u64,
    tried_again: u64,
    /// The violation, if any.
    wrong: Option<(Verdict, String)>,
    digest: Digest,
    trace: Option<VecDeque<String>>,
    pinned: Vec<Key>,
    tries: BTreeMap<Key, u32>,
    stores: u64,
    accesses: u64,
    failed: bool,
}

/// Far memory and its layout.
#[derive(Default)]
struct Memory {
    far: BTreeMap<u64, u64>,
    /// Pages whose bytes are lost.
    lost: BTreeSet<u64>,
    /// Pages that were touched: no longer copies.
    touched: BTreeSet<Key>,
}

#[derive(Debug)]
struct UnderWay {
    op: Op,
    pages: Vec<Key>,
    /// The bytes to be written.
    bytes: Option<Vec<u64>>,
}

fn home(key: Key) -> u64 {
    u64::from(key.space) * 1000 + key.page
}

impl Layout for Memory {
    fn source(&self, key: Key) -> Source {
        match key.page {
            page if page >= PAGES => Source::Elsewhere,
            _ if self.far.contains_key(&home(key)) => Source::Far(home(key)),
            NEAR_FROM.. if !self.touched.contains(&key) => Source::Near,
            _ => Source::Zeros,
        }
    }

    fn home(&self, key: Key) -> Option<u64> {
        Some(home(key))
    }
}

impl World {
    fn new(seed: u64, plan: Plan, operations: u64, trace: bool) -> Self {
        let configs = configs();
        let config = configs[usize::try_from(seed % configs.len() as u64).expect("a few")];
        Self {
            cache: Cache::new(config),
            config,
            faults: Faults::of(&plan, seed / configs.len() as u64, operations),
            rng: Rng::from_number(seed),
            memory: Memory::default(),
            view: BTreeMap::new(),
            truth: BTreeMap::new(),
            under_way: Vec::new(),
            blocked: Vec::new(),
            told_lost: 0,
            told_failed: 0,
            tried_again: 0,
            wrong: None,
            digest: Digest::default(),
            trace: trace.then(VecDeque::new),
            pinned: Vec::new(),
            tries: BTreeMap::new(),
            stores: 0,
            accesses: 0,
            failed: false,
        }
    }

    /// Adds an event to the digest and the trace.
    fn event(&mut self, what: &'static str, key: Key, number: u64) {
        self.digest.number(u64::from(key.space) << 32 ^ key.page << 8 ^ number ^ what.len() as u64);
        let Some(trace) = &mut self.trace else { return };
        if trace.len() == TRACE_MAX {
            trace.pop_front();
        }
        trace.push_back(format!("{what} {}.{} {number}", key.space, key.page));
    }

    /// Records a safety violation unless `holds`.
    fn hold(&mut self, holds: bool, why: impl FnOnce() -> String) {
        if !holds {
            self.wrong.get_or_insert_with(|| (Verdict::Unsafe, why()));
        }
    }

    fn key(&mut self) -> Key {
        Key { space: self.rng.below(SPACES), page: u64::from(self.rng.below(PAGES_U32)) }
    }

    /// Runs a random event.
    fn step(&mut self, walk: &mut u64) {
        match self.rng.below(8) {
            0 if !self.under_way.is_empty() => self.end_one(),
            1 if self.rng.chance(self.faults.unmapped, 256) => self.unmap(),
            2 if self.rng.chance(self.faults.pinned, 256) => self.pin(),
            3 if self.rng.chance(self.faults.lost, 256) => {
                let key = self.key();
                // A resident page is not lost with the node.
                if self.memory.far.contains_key(&home(key)) {
                    self.memory.lost.insert(home(key));
                }
            }
            // A walk, for streams.
            4 | 5 => {
                *walk += 1;
                let key = Key { space: 0, page: *walk / 2 % PAGES };
                let write = self.rng.chance(1, 4);
                self.access(key, write);
            }
            6 => self.burst(),
            _ => {
                let key = self.key();
                let write = self.rng.chance(1, 2);
                self.access(key, write);
            }
        }
        self.check_limits();
    }

    fn check_limits(&mut self) {
        let (here, config) = (self.view.len(), self.config);
        self.hold(here <= config.frames, || format!("{here} pages are here, and {} may be", config.frames));
        if config.inactive_apart {
            let mapped = self.view.values().filter(|(_, access)| access.is_some()).count();
            let fits = mapped <= config.frames - config.inactive_max && here - mapped <= config.inactive_max;
            self.hold(fits, || format!("{mapped} pages are mapped and {} rest", here - mapped));
        }
    }

    /// Lets programs access resident pages.
    fn burst(&mut self) {
        for _ in 0..self.rng.below(BURST_MAX) {
            let key = self.key();
            let write = self.rng.chance(1, 3);
            self.accesses += u64::from(self.try_access(key, write));
        }
    }

    /// Lets a thread load or store.
    fn access(&mut self, key: Key, write: bool) {
        self.accesses += 1;
        if self.try_access(key, write) || self.blocked.iter().filter(|(of, _)| *of == key).count() > 2 {
            return;
        }
        self.blocked.push((key, write));
        let mut out = Vec::new();
        self.cache.fault(key, write, &self.memory, &mut out);
        self.carry_out(out, &BTreeMap::new());
        let mut out = Vec::new();
        self.cache.turn(&self.memory, &mut out);
        self.carry_out(out, &BTreeMap::new());
    }

    fn try_access(&mut self, key: Key, write: bool) -> bool {
        match self.view.get_mut(&key) {
            Some((bytes, Some(access))) if !write || *access == Access::Modified => {
                let truth = self.truth.entry(key).or_insert(0);
                let (read, stored) = (*bytes, *truth);
                if write {
                    self.stores += 1;
                    (*bytes, *truth) = (self.stores, self.stores);
                }
                self.hold(read == stored, || format!("{key:?} reads {read}, and {stored} was stored last"));
                true
            }
            _ => false,
        }
    }

    /// Retries the threads that wait for a page; they fault again if they must.
    fn wake(&mut self, key: Key, out: &mut Vec<Action>) {
        let waiting: Vec<(Key, bool)> = self.blocked.extract_if(.., |(of, _)| *of == key).collect();
        for (key, write) in waiting {
            if key.page < PAGES && !self.try_access(key, write) {
                self.blocked.push((key, write));
                self.cache.fault(key, write, &self.memory, out);
            }
        }
    }

    fn carry_out(&mut self, mut actions: Vec<Action>, arrived: &BTreeMap<Key, u64>) {
        while !actions.is_empty() {
            let mut more = Vec::new();
            for action in std::mem::take(&mut actions) {
                self.act(action, arrived, &mut more);
            }
            actions = more;
        }
    }

    fn act(&mut self, action: Action, arrived: &BTreeMap<Key, u64>, more: &mut Vec<Action>) {
        let run = |first: Key, count: u32| {
            (first.page..first.page + u64::from(count)).map(move |page| Key { page, ..first })
        };
        match action {
            Action::Fetch { op, first, count, .. } => {
                self.event("fetch", first, u64::from(count));
                self.under_way.push(UnderWay { op, pages: run(first, count).collect(), bytes: None });
            }
            Action::WriteBack { op } => {
                let pages: Vec<Key> = self.cache.pages_of(op).collect();
                assert!(!pages.is_empty() && pages.len() <= self.config.batch_max);
                assert!(pages.windows(2).all(|two| home(two[0]) + 1 == home(two[1])), "side by side");
                let twice = |key| {
                    self.under_way.iter().any(|other| other.bytes.is_some() && other.pages.contains(key))
                };
                assert!(!pages.iter().any(twice), "one write-back of a page at a time");
                let steady = pages.iter().all(|key| self.view[key].1 != Some(Access::Modified));
                self.hold(steady, || format!("{pages:?} change while they are written back"));
                let bytes = pages.iter().map(|key| self.view[key].0).collect();
                self.event("write back", pages[0], pages.len() as u64);
                self.under_way.push(UnderWay { op, pages, bytes: Some(bytes) });
            }
            Action::Install { first, count, access, .. } => {
                self.event("install", first, u64::from(count));
                for key in run(first, count) {
                    let before = self.view.insert(key, (arrived[&key], Some(access)));
                    assert_eq!(before, None, "{key:?} was not here");
                }
                run(first, count).for_each(|key| self.wake(key, more));
            }
            Action::Zeros { first, count } => {
                for key in run(first, count) {
                    assert_eq!(self.memory.source(key), Source::Zeros);
                    assert_eq!(self.view.insert(key, (0, Some(Access::Modified))), None);
                    self.memory.touched.insert(key);
                }
                run(first, count).for_each(|key| self.wake(key, more));
            }
            Action::Copy { key, access } => {
                let bytes = self.truth.get(&key).copied().unwrap_or(0);
                assert_eq!(self.view.insert(key, (bytes, Some(access))), None);
                if access == Access::Modified {
                    self.memory.touched.insert(key);
                }
                self.wake(key, more);
            }
            Action::Map { key, access } => {
                self.view.get_mut(&key).expect("a page that is here").1 = Some(access);
                if access == Access::Modified {
                    self.memory.touched.insert(key);
                }
                self.wake(key, more);
            }
            Action::Allow { first, count } => {
                for key in run(first, count) {
                    let page = self.view.get_mut(&key).expect("a page that is here");
                    assert_eq!(page.1, Some(Access::Shared), "{key:?} can be read");
                    page.1 = Some(Access::Modified);
                    self.memory.touched.insert(key);
                }
                run(first, count).for_each(|key| self.wake(key, more));
            }
            Action::Deactivate { first, count } => {
                self.event("rest", first, u64::from(count));
                run(first, count)
                    .for_each(|key| self.view.get_mut(&key).expect("a page that is here").1 = None);
            }
            Action::Discard { key } => {
                self.event("discard", key, 0);
                let (bytes, _) = self.view.remove(&key).expect("a page that is here");
                let far = self.memory.far.get(&home(key)).copied();
                let is_copy = far.is_none() && self.memory.source(key) == Source::Near;
                let is_kept = far == Some(bytes) || is_copy;
                self.hold(is_kept, || format!("{key:?} goes with {bytes}, and far memory has {far:?}"));
            }
            Action::Keep { key, .. } => unreachable!("no other page needs {key:?}"),
            Action::Wake { key } => self.wake(key, more),
            Action::Poison { key, cause } => {
                self.event("poison", key, 0);
                let due = match cause {
                    Cause::Lost => self.memory.lost.contains(&home(key)),
                    Cause::Failed => self.failed,
                    Cause::Full | Cause::Refused => false,
                };
                self.hold(due, || format!("{key:?} is refused ({cause:?}), and need not be"));
                *(if cause == Cause::Lost { &mut self.told_lost } else { &mut self.told_failed }) += 1;
                self.blocked.retain(|(of, _)| *of != key);
            }
        }
    }

    /// Ends an operation.
    fn end_one(&mut self) {
        let at =
            if self.faults.any_order { self.rng.below(count_of(self.under_way.len())) as usize } else { 0 };
        let ended = self.under_way.remove(at);
        let first = ended.pages[0];
        let tries = ended.pages.iter().filter_map(|key| self.tries.get(key)).max().copied().unwrap_or(0);
        let dies = self.faults.dead_after.is_some_and(|after| self.accesses > after);
        let unanswered =
            dies || (self.rng.chance(self.faults.unanswered, 256) && tries + 2 < self.config.tries_max);
        for &key in &ended.pages {
            self.tries.insert(key, if unanswered { tries + 1 } else { 0 });
        }
        self.tried_again += u64::from(unanswered);
        let is_lost = ended.pages.iter().any(|&key| self.memory.lost.contains(&home(key)));
        let outcome = match () {
            () if unanswered => Outcome::Failed,
            () if is_lost && ended.bytes.is_none() => Outcome::Lost,
            () => Outcome::Done,
        };
        self.event("end", first, (outcome == Outcome::Done).into());
        // An operation without an answer may have been executed.
        if let Some(bytes) = &ended.bytes
            && (outcome == Outcome::Done || self.rng.chance(1, 2))
        {
            for (&key, &bytes) in ended.pages.iter().zip(bytes) {
                self.memory.far.insert(home(key), bytes);
                self.memory.lost.remove(&home(key));
            }
        }
        self.failed |= dies;
        let mut out = Vec::new();
        if ended.bytes.is_some() {
            self.cache.written_back(ended.op, outcome, &self.memory, &mut out);
            return self.carry_out(out, &BTreeMap::new());
        }
        let found = |&key: &Key| Some((key, *self.memory.far.get(&home(key))?));
        let arrived = ended.pages.iter().filter_map(found).collect();
        self.cache.fetched(ended.op, outcome, &self.memory, &mut out);
        self.carry_out(out, &arrived);
    }

    /// Lets the program unmap a range, whose pages are zeros when touched again.
    fn unmap(&mut self) {
        let Key { space, page } = self.key();
        let pages = page..(page + 1 + u64::from(self.rng.below(5))).min(PAGES);
        // An address is not reused while bytes are in flight to its place.
        let of = |key: &Key| key.space == space && pages.contains(&key.page);
        if self.under_way.iter().any(|ended| ended.pages.iter().any(of)) || self.pinned.iter().any(of) {
            return;
        }
        self.cache.remove(space, pages.clone());
        self.blocked.retain(|(key, _)| !of(key));
        for page in pages {
            let key = Key { space, page };
            self.view.remove(&key);
            self.truth.remove(&key);
            self.memory.far.remove(&home(key));
            self.memory.lost.remove(&home(key));
            self.memory.touched.insert(key);
        }
    }

    fn pin(&mut self) {
        if !self.pinned.is_empty() && self.rng.chance(1, 2) {
            self.cache.unpin(self.pinned.remove(0));
        } else if self.pinned.len() < self.config.frames / 8 {
            let key = self.key();
            if self.cache.has(key) && self.cache.pin(key) {
                self.pinned.push(key);
            }
        }
    }

    /// Ends and writes back everything: far memory must hold the last stores.
    fn settle(&mut self) {
        self.faults = Faults { dead_after: self.faults.dead_after, ..Faults::CALM };
        std::mem::take(&mut self.pinned).into_iter().for_each(|key| self.cache.unpin(key));
        for _ in 0..SETTLE_MAX {
            if self.under_way.is_empty() && self.blocked.is_empty() && self.cache.is_quiet() {
                break;
            }
            self.go_on();
        }
        self.cache.check();
        if !self.blocked.is_empty() {
            let why = format!("threads wait for ever: {:?}", self.blocked);
            self.wrong.get_or_insert((Verdict::Stuck, why));
            return;
        }
        let mut out = Vec::new();
        self.cache.flush(&self.memory, &mut out);
        self.carry_out(out, &BTreeMap::new());
        while !self.under_way.is_empty() {
            self.end_one();
        }
        let quiet = self.cache.is_quiet();
        self.hold(quiet, || "something is not written back".to_owned());
        if self.failed {
            return;
        }
        for (key, truth) in std::mem::take(&mut self.truth) {
            let lost = self.memory.lost.contains(&home(key));
            let far = self.memory.far.get(&home(key)).copied().unwrap_or(0);
            self.hold(lost || far == truth, || {
                format!("{key:?}: far memory has {far}, and {truth} was stored")
            });
        }
    }

    fn go_on(&mut self) {
        if !self.under_way.is_empty() {
            return self.end_one();
        }
        let mut out = Vec::new();
        self.cache.turn(&self.memory, &mut out);
        self.carry_out(out, &BTreeMap::new());
    }
}

fn count_of(len: usize) -> u32 {
    u32::try_from(len).expect("few operations are under way")
}

/// Maximum number of ends of operations until everything is at rest.
const SETTLE_MAX: u32 = 10_000;

/// Returns the shapes of a cache: inactive pages separate and not, groups and streams, and the smallest.
fn configs() -> [Config; 4] {
    let usual = Config {
        frames: 20,
        inactive_max: 4,
        inactive_apart: true,
        run_max: 8,
        batch_max: 4,
        writing_max: 3,
        tries_max: 4,
        ahead: Ahead::Stream(8),
        stream_writes: true,
    };
    [
        usual,
        Config { inactive_apart: false, stream_writes: false, ..usual },
        Config { inactive_apart: false, ahead: Ahead::Group(4), frames: 16, inactive_max: 1, ..usual },
        Config { frames: 4, inactive_max: 2, ahead: Ahead::None, batch_max: 1, writing_max: 1, ..usual },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under every plan and in every shape each load finds the last store, or its thread gets an error. No page is evicted that far
    /// memory does not have, the limit holds, and every feature of the cache is exercised.
    #[test]
    fn loads_find_the_last_store_whatever_fails() {
        let mut notes = BTreeMap::new();
        for plan in Plan::ALL.into_iter().chain([Plan::HAVOC]) {
            let report =
                campaign(&Campaign { operations: 300_000, seeds: 96, first_seed: 0, plan }, &mut |_| {});
            assert_eq!(report.verdict, Verdict::Fine, "{report}");
            for (note, count) in report.total.notes {
                *notes.entry(note).or_insert(0) += count;
            }
        }
        let never: Vec<_> = notes.iter().filter(|(_, count)| **count < 100).collect();
        assert!(never.is_empty(), "{never:?} of {notes:?}");
    }
}
