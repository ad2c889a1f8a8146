//! Private memory of programs that fork ([`Private`]), under programs that load, store, fork, exit, move and
//! unmap their pages, beside a memory like that of [`super`].
//!
//! A child must find the state of its parent at the fork; no process sees later stores of another; nothing is
//! stored in a process while it forks. Programs may have another mapping in place of their pages, and may
//! reject pages for a while. Far memory may be too small.
//!
//! Key type: `World`.

mod machine;

use super::{BURST_MAX, CHECK_EVERY, Faults, SETTLE_MAX, count_of};
use crate::Plan;
use crate::campaign::{Outcome as Ended, Verdict};
use crate::digest::Digest;
use farmem_machine::Rng;
use farmem_paging::private::{Private, Table};
use farmem_paging::{Ahead, Config, Key, Outcome};
use farmem_wire::message::PAGE_LEN;
use machine::{Machine, UnderWay, keys};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// Pages of a process.
const PAGES_U32: u32 = 48;
const PAGES: u64 = PAGES_U32 as u64;
/// Pages of a part; only pages of one part are fetched together.
const PART: u64 = 16;
/// Maximum number of processes.
const PROCESSES_MAX: usize = 5;
/// Length in bytes of one group of slots, the smallest allocation.
const GROUP: u64 = 64 * PAGE_LEN as u64;

/// Runs one world.
pub(super) fn world(seed: u64, operations: u64, plan: &Plan, trace: bool) -> Ended {
    let mut world = World::new(seed, plan, operations, trace);
    let mut walk = 0;
    let mut steps = 0_u64;
    while world.machine.accesses < operations && world.machine.wrong.is_none() {
        world.step(&mut walk);
        steps += 1;
        if steps.is_multiple_of(CHECK_EVERY) {
            world.private.check();
        }
    }
    if world.machine.wrong.is_none() {
        world.settle();
    }
    let (stats, machine) = (world.private.stats(), world.machine);
    let counts = [
        ("fetches", stats.fetches),
        ("write_backs", stats.write_backs),
        ("rested", stats.reactivated),
        ("evictions", world.private.evictions()),
        ("near", stats.near),
        ("forks", world.forks),
        ("renamed", world.renamed),
        ("pinned", world.pinned),
        ("plain", world.private.plain().handed_over),
        ("plain.unseen", machine.unseen),
        ("plain.taken_over", world.private.plain().taken_over),
        ("refaults", world.private.refaults().count()),
        ("zeros", machine.zeros),
        ("kept", machine.kept),
        ("refused", machine.refusals),
        ("told.lost", machine.told[0]),
        ("told.failed", machine.told[1]),
        ("told.full", machine.told[2]),
    ];
    let (verdict, why) = machine.wrong.unwrap_or_default();
    Ended {
        operations: machine.accesses,
        notes: counts.into_iter().map(|(name, count)| (format!("private.{name}"), count)).collect(),
        retransmissions: world.tried_again,
        digest: machine.digest.get(),
        trace: machine.trace.unwrap_or_default().into(),
        verdict,
        why,
        ..Ended::default()
    }
}

struct World {
    private: Private,
    config: Config,
    faults: Faults,
    rng: Rng,
    machine: Machine,
    /// The process that forks, and its threads that wait for the end of the fork.
    forking: Option<u32>,
    deferred: Vec<(Key, bool)>,
    /// The future state of children.
    snapshots: Vec<(Table, Process)>,
    next: u32,
    forks: u64,
    renamed: u64,
    pinned: u64,
    tried_again: u64,
}

/// A process, or one that does not exist yet.
#[derive(Clone, Default)]
struct Process {
    /// The true contents of its pages.
    truth: BTreeMap<u64, u64>,
    /// Pages with another mapping than far memory.
    elsewhere: BTreeSet<u64>,
}

impl World {
    fn new(seed: u64, plan: &Plan, operations: u64, trace: bool) -> Self {
        let configs = configs();
        let count = configs.len() as u64;
        let config = configs[usize::try_from(seed % count).expect("a few")];
        let faults = Faults::of(plan, seed / count, operations);
        let calm = plan.name == Plan::CALM.name;
        let machine = Machine {
            rng: Rng::from_number(!seed),
            processes: BTreeMap::new(),
            view: BTreeMap::new(),
            pool: vec![0; config.inactive_max],
            here_max: config.frames - config.inactive_max,
            far: BTreeMap::new(),
            lost: BTreeSet::new(),
            pins: BTreeSet::new(),
            plain: BTreeSet::new(),
            unseen: 0,
            under_way: Vec::new(),
            arrived: BTreeMap::new(),
            blocked: Vec::new(),
            woken: Vec::new(),
            still: None,
            refuses: if calm { 0 } else { 8 },
            refusals: 0,
            again: None,
            budget: if !calm && seed / count % 3 == 2 { 2 * GROUP } else { 64 * GROUP },
            allocated: 0,
            refused: false,
            failed: false,
            zeros: 0,
            kept: 0,
            told: [0; 3],
            stores: 0,
            accesses: 0,
            wrong: None,
            digest: Digest::default(),
            trace: trace.then(VecDeque::new),
        };
        let mut private = Private::new(config);
        private.allow_plain(2);
        let mut world = Self {
            private,
            config,
            faults,
            rng: Rng::from_number(seed),
            machine,
            forking: None,
            deferred: Vec::new(),
            snapshots: Vec::new(),
            next: 1,
            forks: 0,
            renamed: 0,
            pinned: 0,
            tried_again: 0,
        };
        world.comes_in(Table::new(PAGES), Process::default());
        world
    }

    fn comes_in(&mut self, table: Table, process: Process) {
        self.private.open(self.next, table);
        self.machine.processes.insert(self.next, process);
        self.next += 1;
    }

    fn some_process(&mut self) -> u32 {
        let at = self.rng.below(count_of(self.machine.processes.len())) as usize;
        *self.machine.processes.keys().nth(at).expect("there is one")
    }

    fn key(&mut self) -> Key {
        Key { space: self.some_process(), page: u64::from(self.rng.below(PAGES_U32)) }
    }

    fn pages(&mut self) -> (u32, Range<u64>) {
        let Key { space, page } = self.key();
        (space, page..(page + 1 + u64::from(self.rng.below(6))).min(PAGES))
    }

    fn step(&mut self, walk: &mut u64) {
        match self.rng.below(10) {
            0 if !self.machine.under_way.is_empty() => self.end_one(),
            1 if self.rng.chance(self.faults.unmapped, 256) => self.unmap(),
            2 if self.rng.chance(self.faults.pinned, 256) => self.pin(),
            3 if self.rng.chance(self.faults.lost, 256) => {
                let count = count_of(self.machine.far.len());
                let at = if count > 0 { self.rng.below(count) } else { 0 } as usize;
                let some = self.machine.far.keys().nth(at).copied();
                self.machine.lost.extend(some);
            }
            4 | 5 => {
                *walk += 1;
                let space = *self.machine.processes.keys().next().expect("there is one");
                let write = (*walk / (2 * PAGES)).is_multiple_of(2);
                self.access(Key { space, page: *walk / 2 % PAGES }, write);
            }
            6 => {
                for _ in 0..self.rng.below(BURST_MAX) {
                    let (key, write) = (self.key(), self.rng.chance(1, 3));
                    self.machine.accesses += u64::from(self.machine.try_access(key, write));
                }
            }
            7 => match self.rng.below(12) {
                0 | 1 if self.forking.is_none() => self.fork(),
                2 if self.snapshots.len() + 1 < PROCESSES_MAX => self.child(),
                3 if self.machine.processes.len() > 1 => self.exit(),
                4 => self.rename(),
                5 | 6 => self.anew(),
                _ => self.forked(),
            },
            _ => {
                let (key, write) = (self.key(), self.rng.chance(1, 2));
                self.access(key, write);
            }
        }
        self.machine.hold_limit();
    }

    fn access(&mut self, key: Key, write: bool) {
        self.machine.accesses += 1;
        let waits = self.machine.blocked.iter().filter(|(of, _)| *of == key).count();
        if self.machine.is_elsewhere(key) || self.machine.try_access(key, write) || waits > 2 {
            return;
        }
        self.fault(key, write);
        self.turn();
    }

    fn fault(&mut self, key: Key, write: bool) {
        if self.forking == Some(key.space) {
            return self.deferred.push((key, write));
        }
        self.machine.blocked.push((key, write));
        self.private.fault(key, write, &mut self.machine);
        self.go_on_woken();
    }

    /// Runs turns as the pager does: while room is short and no faulting thread interrupts.
    fn turn(&mut self) {
        loop {
            self.private.turn(&mut self.machine);
            self.go_on_woken();
            if !self.private.cache().is_short() || self.rng.chance(1, 4) {
                return;
            }
        }
    }

    /// Retries woken threads; they fault again if they must.
    fn go_on_woken(&mut self) {
        while let Some(key) = self.machine.woken.pop() {
            let waiting: Vec<(Key, bool)> =
                self.machine.blocked.extract_if(.., |(of, _)| *of == key).collect();
            for (key, write) in waiting {
                if !self.machine.is_elsewhere(key) && !self.machine.try_access(key, write) {
                    self.fault(key, write);
                }
            }
        }
    }

    fn end_one(&mut self) {
        let count = count_of(self.machine.under_way.len());
        let at = if self.faults.any_order { self.rng.below(count) as usize } else { 0 };
        let UnderWay { op, first, pages, bytes, tries } = self.machine.under_way.remove(at);
        let dies = self.faults.dead_after.is_some_and(|after| self.machine.accesses > after);
        let unanswered =
            dies || (self.rng.chance(self.faults.unanswered, 256) && tries + 2 < self.config.tries_max);
        let asked = first.page..first.page + (pages.end - pages.start);
        self.machine.again = unanswered.then_some((first.space, asked, tries + 1));
        self.tried_again += u64::from(unanswered);
        let is_lost = bytes.is_none() && pages.clone().any(|page| self.machine.lost.contains(&page));
        let (outcome, number) = match () {
            () if unanswered => (Outcome::Failed, 1),
            () if is_lost => (Outcome::Lost, 2),
            () => (Outcome::Done, 0),
        };
        self.machine.event("end", first, number);
        self.machine.failed |= dies;
        let Some(bytes) = bytes else {
            self.machine.arrived = (first.page..)
                .zip(pages)
                .filter_map(|(page, far)| Some((page, *self.machine.far.get(&far)?)))
                .collect();
            self.private.fetched(op, outcome, &mut self.machine);
            self.machine.again = None;
            return self.go_on_woken();
        };
        // An operation without an answer may have been executed.
        if outcome == Outcome::Done || self.rng.chance(1, 2) {
            for (far, bytes) in pages.zip(bytes) {
                self.machine.far.insert(far, bytes);
                self.machine.lost.remove(&far);
            }
        }
        self.private.written_back(op, outcome, &mut self.machine);
        self.machine.again = None;
        self.go_on_woken();
    }

    /// Unmaps pages: they are zeros, or another mapping for a while.
    fn unmap(&mut self) {
        let (space, pages) = self.pages();
        if self.forking == Some(space)
            || keys(space, pages.clone()).any(|key| self.machine.pins.contains(&key))
        {
            return;
        }
        self.drop_pages(space, pages.clone());
        let elsewhere = self.rng.chance(1, 4);
        if elsewhere {
            self.end_plain(space, pages.clone());
        }
        let process = self.machine.processes.get_mut(&space).expect("a process that is there");
        for page in pages {
            if elsewhere {
                process.elsewhere.insert(page)
            } else {
                process.elsewhere.remove(&page)
            };
        }
    }

    /// Replaces many pages by new, zeroed memory.
    fn anew(&mut self) {
        let Key { space, page } = self.key();
        let pages = page..(page + 1 + u64::from(self.rng.below(20))).min(PAGES);
        let busy = |key: Key| self.machine.pins.contains(&key) || self.machine.is_elsewhere(key);
        if self.forking == Some(space) || keys(space, pages.clone()).any(busy) {
            return;
        }
        self.drop_pages(space, pages.clone());
        if self.rng.chance(1, 2) {
            self.end_plain(space, pages);
        }
    }

    /// Ends plain memory. A store of a thread at the last moment is lost with the old contents.
    fn end_plain(&mut self, space: u32, pages: Range<u64>) {
        self.private.unmap(space, pages.clone(), true, &mut self.machine);
        self.drop_pages(space, pages);
    }

    fn drop_pages(&mut self, space: u32, pages: Range<u64>) {
        self.machine.event("forget", Key { space, page: pages.start }, pages.end);
        // No thread may observe a half-finished state.
        let of = |key: &Key| key.space == space && pages.contains(&key.page);
        self.machine.blocked.retain(|(key, _)| !of(key));
        self.deferred.retain(|(key, _)| !of(key));
        while !self.private.forget(space, pages.clone(), &mut self.machine) {
            if self.machine.under_way.is_empty() {
                self.turn();
            }
            if self.machine.under_way.is_empty() {
                self.machine.failed = true;
                self.private.give_up(space, pages.clone(), &mut self.machine);
                break;
            }
            self.end_one();
        }
        for key in keys(space, pages) {
            self.machine.view.remove(&key);
            let process = self.machine.processes.get_mut(&space).expect("a process that is there");
            process.truth.remove(&key.page);
        }
        self.go_on_woken();
    }

    fn pin(&mut self) {
        if self.machine.pins.len() >= self.config.frames / 4 || self.rng.chance(1, 2) {
            self.machine.pins.pop_first();
        } else {
            let key = self.key();
            self.machine.pins.insert(key);
            self.pinned += 1;
        }
    }

    fn fork(&mut self) {
        if self.snapshots.len() == PROCESSES_MAX {
            let (table, _) = self.snapshots.remove(0);
            self.private.release(table);
        }
        let space = self.some_process();
        let (_, not) = self.pages();
        let not: &[Range<u64>] = if self.rng.chance(1, 4) { &[not] } else { &[] };
        self.machine.event("fork", Key { space, page: 0 }, 0);
        let Some(table) = self.private.fork(space, not, &mut self.machine) else {
            let full = self.machine.refused || self.machine.failed;
            return self.machine.hold(full, || format!("{space} cannot fork"));
        };
        let mut process = self.machine.processes[&space].clone();
        process.truth.retain(|page, _| !not.iter().any(|not| not.contains(page)));
        self.snapshots.push((table, process));
        (self.forking, self.machine.still) = (Some(space), Some(space));
        let held = self.private.take_waiting(space);
        self.deferred.extend(held.iter());
        self.machine.blocked.retain(|waiting| !held.iter().any(|(key, _)| *key == waiting.0));
        self.forks += 1;
    }

    fn forked(&mut self) {
        (self.forking, self.machine.still) = (None, None);
        for (key, write) in std::mem::take(&mut self.deferred) {
            if !self.machine.is_elsewhere(key) && !self.machine.try_access(key, write) {
                self.fault(key, write);
            }
        }
    }

    /// Starts a child, or drops its snapshot.
    fn child(&mut self) {
        let Some((table, process)) = self.snapshots.pop() else { return };
        if self.machine.processes.len() < PROCESSES_MAX && self.rng.chance(7, 8) {
            self.machine.event("child", Key { space: self.next, page: 0 }, 0);
            return self.comes_in(table, process);
        }
        self.private.release(table);
    }

    fn exit(&mut self) {
        let space = self.some_process();
        if self.forking == Some(space) {
            self.forked();
        }
        self.machine.event("exit", Key { space, page: 0 }, 0);
        self.machine.pins.retain(|key| key.space != space);
        self.drop_pages(space, 0..PAGES);
        self.private.close(space);
        self.machine.processes.remove(&space);
        self.machine.blocked.retain(|(key, _)| key.space != space);
        self.machine.woken.retain(|key| key.space != space);
    }

    fn rename(&mut self) {
        let (space, from) = self.pages();
        let count = from.end - from.start;
        let to = u64::from(self.rng.below(PAGES_U32));
        self.machine.event("rename", Key { space, page: from.start }, to);
        let meets = to < from.end && from.start < to + count || to + count > PAGES;
        let all: Vec<Key> = keys(space, from.clone()).chain(keys(space, to..to + count)).collect();
        let busy = |key: &Key| self.machine.pins.contains(key) || self.machine.is_elsewhere(*key);
        if meets || self.forking == Some(space) || all.iter().any(busy) {
            return;
        }
        self.private.take_over(space, from.clone(), &mut self.machine);
        self.private.take_over(space, to..to + count, &mut self.machine);
        self.drop_pages(space, to..to + count);
        self.private.write_protect(space, from.clone(), &mut self.machine);
        self.private.rename(space, from.clone(), to, &mut self.machine);
        let process = self.machine.processes.get_mut(&space).expect("a process that is there");
        for (old, new) in from.clone().zip(to..) {
            if let Some(truth) = process.truth.remove(&old) {
                process.truth.insert(new, truth);
            }
        }
        self.drop_pages(space, from);
        self.renamed += 1;
    }

    /// Ends everything; then every process reads all of its memory.
    fn settle(&mut self) {
        self.faults = Faults { dead_after: self.faults.dead_after, ..Faults::CALM };
        self.machine.refuses = 0;
        self.machine.pins.clear();
        self.forked();
        while !self.snapshots.is_empty() {
            self.child();
        }
        for space in self.machine.processes.keys().copied().collect::<Vec<_>>() {
            for key in keys(space, 0..PAGES) {
                self.access(key, false);
                self.rest_of_it();
            }
        }
        self.private.check();
        if !self.machine.blocked.is_empty() {
            let why = format!("threads wait for ever: {:?}", self.machine.blocked);
            self.machine.wrong.get_or_insert((Verdict::Stuck, why));
        }
        while self.machine.processes.len() > 1 {
            self.exit();
        }
        self.rest_of_it();
        let quiet = self.private.cache().is_quiet() || self.machine.refused;
        self.machine.hold(quiet, || "something is not written back".to_owned());
        self.private.check();
    }

    fn rest_of_it(&mut self) {
        for _ in 0..SETTLE_MAX {
            if self.machine.under_way.is_empty() {
                self.turn();
            }
            if !self.machine.under_way.is_empty() {
                self.end_one();
            } else if self.machine.blocked.is_empty() {
                break;
            }
        }
    }
}

/// Returns the shapes of a cache.
fn configs() -> [Config; 4] {
    let usual = Config {
        frames: 40,
        inactive_max: 8,
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
        Config { frames: 64, inactive_max: 24, batch_max: 8, ..usual },
        Config { frames: 6, inactive_max: 2, batch_max: 1, writing_max: 1, ahead: Ahead::None, ..usual },
        // Runs of zeros that come while the thread works, and streams longer than all frames.
        Config { frames: 32, inactive_max: 6, run_max: 2, ahead: Ahead::Stream(2), ..usual },
    ]
}
