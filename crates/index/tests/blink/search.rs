//! Explores the interleavings of steps, and checks each state.

use crate::memory::{Alone, Answer, Memory, Op, Replay, Stop};
use crate::{KEYS, ROOT};
use farmem_index::blink::{State, Tree};
use farmem_wire::VirtAddr;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Number of runs between two progress reports.
const MANY: usize = 100;

/// Explores each choice of operations on each tree, on all CPUs; prints and returns the number of states.
pub(crate) fn explore(
    name: &str,
    trees: &[(Tree, World)],
    choices: &[Vec<Op>],
    crashes: bool,
    interrupted_max: u32,
) -> usize {
    let runs: Vec<_> = trees.iter().flat_map(|start| choices.iter().map(move |ops| (start, ops))).collect();
    let sums = Mutex::new((0_usize, 0, 0));
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((start, ops)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (seen, went) = run(start, ops, (crashes, false), interrupted_max);
            let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
            let (done, states, transitions) = *sums;
            *sums = (done + 1, states + seen, transitions + went);
            if sums.0.is_multiple_of(MANY) {
                println!("{name}: {} of {} runs, {} states so far", sums.0, runs.len(), sums.1);
            }
        }
    };
    let cpus = thread::available_parallelism().map_or(1, NonZero::get).min(runs.len());
    thread::scope(|scope| {
        for _ in 0..cpus {
            scope.spawn(work);
        }
    });
    let (runs, states, transitions) = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{name}: {runs} runs, {states} states, {transitions} transitions, {interrupted_max} interruptions"
    );
    states
}

/// Explores the first operation beside all others, which run one after the other.
pub(crate) fn explore_beside(name: &str, start: &(Tree, World), ops: &[Op], interrupted_max: u32) -> usize {
    let (states, transitions) = run(start, ops, (false, true), interrupted_max);
    println!("{name}: {states} states, {transitions} transitions, {interrupted_max} interruptions");
    states
}

fn run(
    (tree, start): &(Tree, World),
    ops: &[Op],
    (crashes, in_order): (bool, bool),
    interrupted_max: u32,
) -> (usize, u64) {
    let mut start = start.clone();
    start.threads = vec![Progress::Waits; ops.len()];
    let (seen, checked) = (HashSet::new(), HashSet::new());
    let tree = *tree;
    let mut explorer =
        Explorer { tree, ops, crashes, in_order, interrupted_max, seen, checked, transitions: 0 };
    explorer.explore(start);
    (explorer.seen.len(), explorer.transitions)
}

/// The progress of an operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Progress {
    Waits,
    /// The start, the answers so far, and the values that the key had meanwhile.
    Runs(VirtAddr, Vec<Answer>, BTreeSet<Option<u64>>),
    Over,
    /// The client of the operation crashed.
    Crashed,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct World {
    pub(crate) memory: Memory,
    pub(crate) threads: Vec<Progress>,
    /// The values of the keys that no running operation concerns.
    pub(crate) content: BTreeMap<u64, u64>,
    /// Keys of operations with an unknown outcome, with their possible values.
    pub(crate) unsure: BTreeMap<u64, BTreeSet<Option<u64>>>,
}

/// Returns two hashes with different seeds.
fn print_of(what: &impl Hash) -> u128 {
    let hash = |beginning: u8| {
        let mut hasher = DefaultHasher::new();
        beginning.hash(&mut hasher);
        what.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    hash(0) << 64 | hash(1)
}

struct Explorer<'a> {
    tree: Tree,
    ops: &'a [Op],
    crashes: bool,
    /// True if each operation after the first two begins when the previous one is over.
    in_order: bool,
    /// Most interruptions of running operations.
    interrupted_max: u32,
    /// Explored states with the last runner and the number of interruptions, and checked memories with the
    /// possible values of each key. Each is two hashes with different keys, which collide with probability
    /// 2^-60 among millions.
    seen: HashSet<u128>,
    checked: HashSet<u128>,
    transitions: u64,
}

impl Explorer<'_> {
    fn explore(&mut self, start: World) {
        let mut open = Vec::from([(start, None, 0)]);
        while let Some((world, last, interrupted)) = open.pop() {
            if !self.seen.insert(print_of(&(&world, last, interrupted))) {
                continue;
            }
            self.check(&world);
            if world.threads.iter().all(|progress| *progress == Progress::Over) {
                sound(&world.memory, self.tree, self.crashes);
            }
            for thread in 0..self.ops.len() {
                if self.in_order && thread > 1 && world.threads[thread - 1] != Progress::Over {
                    continue;
                }
                let runs =
                    |last: &usize| matches!(world.threads[*last], Progress::Runs(..)) && *last != thread;
                let interrupted = interrupted + u32::from(last.as_ref().is_some_and(runs));
                if interrupted <= self.interrupted_max {
                    let next = self.successors(&world, thread);
                    open.extend(next.into_iter().map(|world| (world, Some(thread), interrupted)));
                }
            }
        }
    }

    fn successors(&mut self, world: &World, thread: usize) -> Vec<World> {
        let op = self.ops[thread];
        match &world.threads[thread] {
            Progress::Over | Progress::Crashed => Vec::new(),
            Progress::Waits => {
                let starts: Vec<VirtAddr> = match op {
                    Op::Get(_) | Op::Put(..) => world.memory.known.iter().copied().map(VirtAddr).collect(),
                    Op::Insert(..) | Op::Remove(_) => vec![ROOT],
                };
                self.transitions += starts.len() as u64;
                let begun = |at: VirtAddr| {
                    let mut next = world.clone();
                    next.threads[thread] = Progress::Runs(at, Vec::new(), self.possible(world, op.key()));
                    self.told(&mut next);
                    next
                };
                starts.into_iter().map(begun).collect()
            }
            Progress::Runs(from, answers, values) => {
                let mut next = Vec::from([self.step(world, thread, *from, answers.clone(), values)]);
                if self.crashes && thread == 0 {
                    let mut crashed = world.clone();
                    let possible = self.possible(world, op.key());
                    crashed.unsure.entry(op.key()).or_default().extend(possible);
                    crashed.threads[thread] = Progress::Crashed;
                    next.push(crashed);
                }
                self.transitions += next.len() as u64;
                next
            }
        }
    }

    /// Returns every present possibility for a key: its value, and the effects of running operations.
    fn possible(&self, world: &World, key: u64) -> BTreeSet<Option<u64>> {
        let mut values: BTreeSet<Option<u64>> = match world.unsure.get(&key) {
            Some(unsure) => unsure.clone(),
            None => BTreeSet::from([world.content.get(&key).copied()]),
        };
        for (op, progress) in self.ops.iter().zip(&world.threads) {
            if op.key() == key && matches!(progress, Progress::Runs(..)) {
                values.extend(op.leaves());
            }
        }
        values
    }

    /// Records a change for the operations that run beside it and may see it.
    fn told(&self, world: &mut World) {
        let all: Vec<BTreeSet<Option<u64>>> =
            self.ops.iter().map(|op| self.possible(world, op.key())).collect();
        for (progress, now) in world.threads.iter_mut().zip(all) {
            if let Progress::Runs(_, _, values) = progress {
                values.extend(now);
            }
        }
    }

    fn step(
        &self,
        world: &World,
        thread: usize,
        from: VirtAddr,
        mut answers: Vec<Answer>,
        values: &BTreeSet<Option<u64>>,
    ) -> World {
        let mut next = world.clone();
        let op = self.ops[thread];
        let (memory, stepped) = (&mut next.memory, false);
        let mut replay = Replay { memory, answers: &mut answers, next: 0, stepped };
        let result = match op {
            Op::Insert(key, value) => self.tree.insert(&mut replay, key, value),
            Op::Remove(key) => self.tree.remove(&mut replay, key),
            Op::Get(key) => self.tree.get(&mut replay, from, key),
            Op::Put(key, value) => replay.put(self.tree, from, key, value),
        };
        match result {
            Err(Stop::Suspended) => {
                next.threads[thread] = Progress::Runs(from, answers, values.clone());
                return next;
            }
            Err(Stop::Fault(fault)) => panic!("{op:?} of {:?}: {fault:?}\n{world:#?}", self.ops),
            Ok(old) => {
                assert!(
                    values.contains(&old),
                    "{op:?} of {:?} found {old:?}, not one of {values:?}",
                    self.ops
                );
            }
        }
        next.threads[thread] = Progress::Over;
        let same = |(other, progress): (&Op, &Progress)| {
            other.key() == op.key() && other.leaves().is_some() && matches!(progress, Progress::Runs(..))
        };
        let beside = self.ops.iter().zip(&next.threads).any(same);
        let was_unsure = world.unsure.contains_key(&op.key());
        let Some(new) = op.leaves() else { return next };
        if beside || was_unsure {
            let possible = self.possible(world, op.key());
            next.unsure.entry(op.key()).or_default().extend(possible);
        } else {
            match new {
                Some(value) => _ = next.content.insert(op.key(), value),
                None => _ = next.content.remove(&op.key()),
            }
        }
        next
    }

    /// Checks all invariants of a state.
    fn check(&mut self, world: &World) {
        let all: Vec<BTreeSet<Option<u64>>> = (0..=KEYS).map(|key| self.possible(world, key)).collect();
        let print = print_of(&(&world.memory, &all));
        if !self.checked.insert(print) {
            return;
        }
        let mut memory = world.memory.clone();
        let addresses: Vec<u64> = memory.known.iter().copied().collect();
        for (key, possible) in (0..).zip(all) {
            for &from in &addresses {
                let found = self.tree.get(&mut Alone(&mut memory), VirtAddr(from), key);
                let found =
                    found.unwrap_or_else(|stop| panic!("{stop:?} for {key} from {from:#x} in {world:#?}"));
                assert!(
                    possible.contains(&found),
                    "{:?}: {key} from {from:#x} is {found:?}, not one of {possible:?}, in {world:#?}",
                    self.ops
                );
            }
        }
    }
}

/// Asserts that a tree without running operations is sound. On each level every key has one node, parents and
/// neighbours lead to live nodes, and every place is a node's or free. After a crash a node may not be live,
/// or a place may be lost.
pub(crate) fn sound(memory: &Memory, tree: Tree, crashes: bool) {
    let mut used = BTreeSet::new();
    let mut leftmost = Some(ROOT);
    while let Some(mut at) = leftmost.take() {
        let mut first = 0;
        loop {
            let node = &memory.nodes[&at.0];
            assert!(node.state == State::Live || crashes && node.state.is_readable(), "{memory:#?}");
            assert_eq!((node.first, node.tag), (first, tree.tag), "{memory:#?}");
            assert!(used.insert(at.0), "{at:?} is two nodes: {memory:#?}");
            if node.level > 0 {
                leftmost = leftmost.or(Some(VirtAddr(node.entries[0].1)));
                for (key, child) in &node.entries {
                    let below = &memory.nodes[child];
                    assert_eq!(below.level, node.level - 1, "{memory:#?}");
                    assert!(
                        below.state == State::Live || crashes && below.state.is_readable(),
                        "{memory:#?}"
                    );
                    assert!(crashes || below.first <= *key && *key <= below.last, "{key} leads to {below:?}");
                }
            }
            let is_high = at == ROOT && node.level > 0;
            let is_wide = node.entries.iter().any(|entry| entry.1 != node.entries[0].1);
            assert!(crashes || !is_high || is_wide, "a root of one child: {memory:#?}");
            if node.last == u64::MAX {
                break;
            }
            (first, at) = (node.last + 1, node.right);
        }
    }
    let places: BTreeSet<u64> = memory.nodes.keys().copied().collect();
    let free: BTreeSet<u64> = memory.free.iter().copied().collect();
    assert!(used.is_disjoint(&free), "{memory:#?}");
    assert!(crashes || places.len() == used.len() + free.len(), "a place was lost: {memory:#?}");
}
