//! The cache under programs that load and store, beside memory that answers late, in any order, not at all, or has lost what it had.
//!
//! Every load is held against the last store; what goes must be in far memory; no more is here than may be.

use farmem_machine::Rng;
use farmem_paging::{Account, Action, Ahead, Cache, Config, Key, Layout, Op, Outcome, Source, Why};
use farmem_wire::message::Access;
use std::collections::{BTreeMap, BTreeSet};

const SPACES: u32 = 2;
const PAGES: u64 = 40;
/// Pages of the last group of each space are copies of others when they are first touched.
const NEAR_FROM: u64 = 36;

/// How often what goes wrong, of 256.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// An operation ends with no answer, done or not.
    unanswered: u8,
    /// Of those, so many more times in a row that the cache must give up: 0 for never.
    dead_after: Option<u32>,
    /// A page of far memory loses its bytes.
    lost: u8,
    /// Pages are unmapped by the program.
    unmapped: u8,
    /// Pages are pinned for a while.
    pinned: u8,
}

const CALM: Plan = Plan { unanswered: 0, dead_after: None, lost: 0, unmapped: 0, pinned: 0 };

struct World {
    cache: Cache,
    config: Config,
    plan: Plan,
    rng: Rng,
    memory: Memory,
    /// What programs see: bytes, and how.
    view: BTreeMap<Key, (u64, Option<Access>)>,
    /// What a page has, as the program knows.
    truth: BTreeMap<Key, u64>,
    under_way: Vec<UnderWay>,
    /// Threads that wait: what they want.
    blocked: Vec<(Key, bool)>,
    /// Pages whose threads were told that they cannot be had.
    told: BTreeSet<Key>,
    pinned: Vec<Key>,
    tries: BTreeMap<Key, u32>,
    stores: u64,
    accesses: u64,
    failed: bool,
}

/// Far memory, and what lies where.
#[derive(Default)]
struct Memory {
    far: BTreeMap<u64, u64>,
    /// Pages whose bytes are lost.
    lost: BTreeSet<u64>,
    /// Pages that were touched: they are copies no more.
    touched: BTreeSet<Key>,
}

#[derive(Debug)]
struct UnderWay {
    op: Op,
    pages: Vec<Key>,
    /// What is to be written.
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
    fn new(seed: u64, config: Config, plan: Plan) -> Self {
        Self {
            cache: Cache::new(config),
            config,
            plan,
            rng: Rng::from_number(seed),
            memory: Memory::default(),
            view: BTreeMap::new(),
            truth: BTreeMap::new(),
            under_way: Vec::new(),
            blocked: Vec::new(),
            told: BTreeSet::new(),
            pinned: Vec::new(),
            tries: BTreeMap::new(),
            stores: 0,
            accesses: 0,
            failed: false,
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        u64::from(self.rng.next_u32()) % n
    }

    fn chance(&mut self, of_256: u8) -> bool {
        self.below(256) < u64::from(of_256)
    }

    fn key(&mut self) -> Key {
        let space = u32::try_from(self.below(SPACES.into())).unwrap();
        Key { space, page: self.below(PAGES) }
    }

    /// Something happens.
    fn step(&mut self, walk: &mut u64) {
        match self.below(8) {
            0 if !self.under_way.is_empty() => self.end_one(),
            1 if self.chance(self.plan.unmapped) => self.unmap(),
            2 if self.chance(self.plan.pinned) => self.pin(),
            3 if self.chance(self.plan.lost) => {
                let key = self.key();
                // What is here is not lost with the node.
                if self.memory.far.contains_key(&home(key)) {
                    self.memory.lost.insert(home(key));
                }
            }
            // A walk, for streams.
            4 | 5 => {
                *walk += 1;
                let key = Key { space: 0, page: *walk / 2 % PAGES };
                let write = self.below(4) == 0;
                self.access(key, write);
            }
            _ => {
                let key = self.key();
                let write = self.below(2) == 0;
                self.access(key, write);
            }
        }
        self.cache.check();
        self.check_limits();
    }

    fn check_limits(&self) {
        assert!(self.view.len() <= self.config.frames, "no more is here than may be");
        if self.config.rest_apart {
            let mapped = self.view.values().filter(|(_, access)| access.is_some()).count();
            assert!(mapped <= self.config.frames - self.config.resting_max);
            assert!(self.view.len() - mapped <= self.config.resting_max);
        }
    }

    /// A thread loads or stores.
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
                assert_eq!(*bytes, *truth, "{key:?} has what was stored last");
                if write {
                    self.stores += 1;
                    (*bytes, *truth) = (self.stores, self.stores);
                }
                true
            }
            _ => false,
        }
    }

    /// Threads that wait for a page try again, and wait on when they must.
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
                let bytes = pages.iter().map(|key| {
                    let (bytes, access) = self.view[key];
                    assert_ne!(access, Some(Access::Modified), "{key:?} cannot change under it");
                    bytes
                });
                let bytes = bytes.collect();
                self.under_way.push(UnderWay { op, pages, bytes: Some(bytes) });
            }
            Action::Install { first, count, access, .. } => {
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
            Action::Rest { first, count } => {
                run(first, count)
                    .for_each(|key| self.view.get_mut(&key).expect("a page that is here").1 = None);
            }
            Action::Discard { key } => {
                let (bytes, _) = self.view.remove(&key).expect("a page that is here");
                let far = self.memory.far.get(&home(key)).copied();
                let is_copy = far.is_none() && self.memory.source(key) == Source::Near;
                assert!(far == Some(bytes) || is_copy, "{key:?} is in far memory before it goes");
            }
            Action::Wake { key } => self.wake(key, more),
            Action::Poison { key, why } => {
                match why {
                    Why::Lost => assert!(self.memory.lost.contains(&home(key)), "{key:?} is lost"),
                    Why::Failed => assert!(self.failed, "far memory does not answer"),
                    Why::Full => panic!("there is always room"),
                }
                self.told.insert(key);
                self.blocked.retain(|(of, _)| *of != key);
            }
        }
    }

    /// An operation ends, any of them.
    fn end_one(&mut self) {
        let at = usize::try_from(self.below(self.under_way.len() as u64)).unwrap();
        let ended = self.under_way.swap_remove(at);
        let first = ended.pages[0];
        let tries = self.tries.get(&first).copied().unwrap_or(0);
        let dies = self.plan.dead_after.is_some_and(|after| self.accesses > u64::from(after));
        let unanswered = dies || (self.chance(self.plan.unanswered) && tries + 2 < self.config.tries_max);
        self.tries.insert(first, if unanswered { tries + 1 } else { 0 });
        let is_lost = ended.pages.iter().any(|&key| self.memory.lost.contains(&home(key)));
        let outcome = match () {
            () if unanswered => Outcome::Failed,
            () if is_lost && ended.bytes.is_none() => Outcome::Lost,
            () => Outcome::Done,
        };
        // One that was not answered may have been done all the same.
        if let Some(bytes) = &ended.bytes
            && (outcome == Outcome::Done || self.below(2) == 0)
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
        let arrived =
            ended.pages.iter().filter_map(|&key| Some((key, *self.memory.far.get(&home(key))?))).collect();
        self.cache.fetched(ended.op, outcome, &self.memory, &mut out);
        self.carry_out(out, &arrived);
    }

    /// The program gives up a range: its pages are zeros when they are touched again.
    fn unmap(&mut self) {
        let Key { space, page } = self.key();
        let pages = page..(page + 1 + self.below(5)).min(PAGES);
        // An address is not used again while bytes are on their way to its place.
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
        if !self.pinned.is_empty() && self.below(2) == 0 {
            self.cache.unpin(self.pinned.remove(0));
        } else if self.pinned.len() < self.config.frames / 8 {
            let key = self.key();
            if self.cache.has(key) && self.cache.pin(key) {
                self.pinned.push(key);
            }
        }
    }

    /// Everything ends, and is written back: far memory has what was stored last.
    fn settle(mut self) -> farmem_paging::Stats {
        self.plan = Plan { dead_after: self.plan.dead_after, ..CALM };
        std::mem::take(&mut self.pinned).into_iter().for_each(|key| self.cache.unpin(key));
        for _ in 0..10_000 {
            if self.under_way.is_empty() && self.blocked.is_empty() && self.cache.is_quiet() {
                break;
            }
            if self.under_way.is_empty() {
                let mut out = Vec::new();
                self.cache.turn(&self.memory, &mut out);
                self.carry_out(out, &BTreeMap::new());
            } else {
                self.end_one();
            }
        }
        assert!(self.blocked.is_empty(), "every thread goes on, or is told why not: {:?}", self.blocked);
        let mut out = Vec::new();
        self.cache.flush(&self.memory, &mut out);
        self.carry_out(out, &BTreeMap::new());
        while !self.under_way.is_empty() {
            self.end_one();
        }
        assert!(self.cache.is_quiet());
        for (&key, &truth) in self.truth.iter().filter(|_| !self.failed) {
            let lost = self.memory.lost.contains(&home(key));
            let far = self.memory.far.get(&home(key)).copied().unwrap_or(0);
            assert!(lost || far == truth, "{key:?} is in far memory: {far}, not {truth}");
        }
        self.cache.stats()
    }
}

fn configs() -> [Config; 4] {
    let usual = Config {
        frames: 20,
        resting_max: 4,
        rest_apart: true,
        run_max: 8,
        batch_max: 4,
        writing_max: 3,
        tries_max: 4,
        ahead: Ahead::Stream(8),
    };
    [
        usual,
        Config { rest_apart: false, ..usual },
        Config { rest_apart: false, ahead: Ahead::Group(4), frames: 16, resting_max: 1, ..usual },
        Config { frames: 4, resting_max: 2, ahead: Ahead::None, batch_max: 1, writing_max: 1, ..usual },
    ]
}

fn plans() -> [Plan; 5] {
    let hostile = Plan { unanswered: 80, unmapped: 100, pinned: 200, ..CALM };
    [
        CALM,
        Plan { unanswered: 100, ..CALM },
        hostile,
        Plan { lost: 60, ..hostile },
        Plan { dead_after: Some(1500), ..hostile },
    ]
}

/// Under every plan of faults and every shape of a cache: each load finds the last store, or its thread was told why not; nothing goes that far
/// memory does not have; the limit holds.
#[test]
fn loads_find_the_last_store_whatever_fails() {
    let mut sum = (0, 0, 0, 0);
    for (shape, config) in configs().into_iter().enumerate() {
        for plan in plans() {
            for seed in 0..12 {
                println!("config {shape}, {plan:?}, seed {seed}");
                let mut world = World::new(seed, config, plan);
                let mut walk = 0;
                for _ in 0..4000 {
                    world.step(&mut walk);
                }
                let stats = world.settle();
                let Account { wanted, used, late, wasted } = stats.ahead;
                assert!(used + late + wasted <= wanted, "each page counts once: {:?}", stats.ahead);
                sum = (
                    sum.0 + stats.fetches,
                    sum.1 + stats.write_backs,
                    sum.2 + stats.rested,
                    sum.3 + stats.ahead.used,
                );
            }
        }
    }
    assert!(sum.0 > 10_000 && sum.1 > 10_000 && sum.2 > 1000 && sum.3 > 500, "it was put to use: {sum:?}");
}
