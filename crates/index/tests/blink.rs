//! Every order in which a few operations on a small tree can touch its nodes.
//!
//! An operation is run anew from its beginning for each of its steps, with the answers that it had: so the code that is explored is the code that runs.
//! In every state the tree is looked through from the root and from every address that ever was a node's: each key that no operation is about is
//! found with its value, and no other is. Where all operations are over, the tree is sound to the last link.

#![expect(clippy::disallowed_types, reason = "sets of states are asked, and never gone through")]
#![expect(clippy::print_stdout, reason = "how much was explored")]

use farmem_index::blink::{Fault, Head, Node, Nodes, State, Tag, Tree};
use farmem_wire::VirtAddr;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher as _};

const ROOT: VirtAddr = VirtAddr(0x100);
const KEYS: u64 = 9;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Op {
    Insert(u64, u64),
    Remove(u64),
    /// Looks for a key from any node that had it when the look-up began.
    Get(u64),
}

impl Op {
    fn key(self) -> u64 {
        match self {
            Self::Insert(key, _) | Self::Remove(key) | Self::Get(key) => key,
        }
    }
}

/// What far memory answered.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Answer {
    Read(Node),
    Replaced(bool),
    Created(VirtAddr),
}

#[derive(Debug, PartialEq)]
enum Stop {
    /// The operation waits for its next step.
    Suspended,
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Far memory.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
struct Memory {
    nodes: BTreeMap<u64, Node>,
    /// Nodes that others led to since they were created: a pointer to one may be as old as that.
    known: BTreeSet<u64>,
    /// Dead nodes, and the operations that have begun before.
    retired: Vec<(u64, BTreeSet<usize>)>,
}

impl Memory {
    /// Puts a node where there was none, or where one was retired before every operation of now began.
    fn create(&mut self, node: &Node) -> VirtAddr {
        let at = match self.retired.iter().position(|(_, users)| users.is_empty()) {
            Some(index) => self.retired.remove(index).0,
            None => self.nodes.keys().next_back().map_or(ROOT.0, |last| last + 0x100),
        };
        let version = self.nodes.get(&at).map_or(0, |old| old.version + 1);
        self.nodes.insert(at, Node { version, ..node.clone() });
        self.known.remove(&at);
        VirtAddr(at)
    }

    /// Replaces the node if it has this head.
    fn replace(&mut self, at: VirtAddr, head: Head, node: &Node) -> bool {
        let there = self.nodes.get_mut(&at.0).expect("it was read");
        let same = there.head() == head;
        if same {
            there.clone_from(node);
            let children = node.entries.iter().filter(|_| node.level > 0).map(|(_, child)| *child);
            let led_to = children.chain((!node.right.is_null()).then_some(node.right.0));
            self.known.extend(led_to);
        }
        same
    }

    /// The operation is over, or gone for good.
    fn ends(&mut self, user: usize) {
        self.retired.iter_mut().for_each(|(_, users)| _ = users.remove(&user));
    }
}

/// One operation's way to far memory: the answers it had, one step more, and then no further.
struct Replay<'a> {
    memory: &'a mut Memory,
    users: &'a BTreeSet<usize>,
    answers: &'a mut Vec<Answer>,
    next: usize,
    stepped: bool,
}

impl Replay<'_> {
    fn step(&mut self, does: impl FnOnce(&mut Memory) -> Answer) -> Result<Answer, Stop> {
        if self.next == self.answers.len() {
            if self.stepped {
                return Err(Stop::Suspended);
            }
            self.stepped = true;
            self.answers.push(does(self.memory));
        }
        self.next += 1;
        Ok(self.answers[self.next - 1].clone())
    }
}

impl Nodes for Replay<'_> {
    type Error = Stop;

    fn read(&mut self, at: VirtAddr) -> Result<Node, Stop> {
        let read = |memory: &mut Memory| {
            let node = memory.nodes.get(&at.0).unwrap_or_else(|| panic!("nothing was ever at {at:?}"));
            // What is written is what is read.
            Answer::Read(Node::parse(&node.emit()).unwrap_or_else(|error| panic!("{error}: {node:?}")))
        };
        match self.step(read)? {
            Answer::Read(node) => Ok(node),
            other => panic!("{other:?} for a read"),
        }
    }

    fn replace(&mut self, at: VirtAddr, head: Head, node: &Node) -> Result<bool, Stop> {
        let replace = |memory: &mut Memory| Answer::Replaced(memory.replace(at, head, node));
        match self.step(replace)? {
            Answer::Replaced(done) => Ok(done),
            other => panic!("{other:?} for a replacement"),
        }
    }

    /// No other operation sees the new node, so this is no step of its own.
    fn create(&mut self, node: &Node, _: VirtAddr) -> Result<VirtAddr, Stop> {
        if self.next == self.answers.len() {
            let at = self.memory.create(node);
            self.answers.push(Answer::Created(at));
        }
        self.next += 1;
        match self.answers[self.next - 1] {
            Answer::Created(at) => Ok(at),
            ref other => panic!("{other:?} for a new node"),
        }
    }

    fn discard(&mut self, at: VirtAddr) {
        self.retire(at);
    }

    fn retire(&mut self, at: VirtAddr) {
        // Once, directly behind the step that made it so.
        if self.stepped && self.next == self.answers.len() {
            self.memory.retired.push((at.0, self.users.clone()));
        }
    }
}

/// Far memory as an operation that runs alone sees it.
struct Alone<'a>(&'a mut Memory);

impl Nodes for Alone<'_> {
    type Error = Stop;

    fn read(&mut self, at: VirtAddr) -> Result<Node, Stop> {
        Ok(self.0.nodes[&at.0].clone())
    }

    fn replace(&mut self, at: VirtAddr, head: Head, node: &Node) -> Result<bool, Stop> {
        assert!(self.0.replace(at, head, node), "nobody else writes");
        Ok(true)
    }

    fn create(&mut self, node: &Node, _: VirtAddr) -> Result<VirtAddr, Stop> {
        Ok(self.0.create(node))
    }

    fn discard(&mut self, at: VirtAddr) {
        self.retire(at);
    }

    fn retire(&mut self, at: VirtAddr) {
        self.0.retired.push((at.0, BTreeSet::new()));
    }
}

/// How far an operation is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Progress {
    Waits,
    /// Where it began, what it was answered, the values that its key had meanwhile.
    Runs(VirtAddr, Vec<Answer>, BTreeSet<Option<u64>>),
    Over,
    /// The client that ran it died.
    Crashed,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    memory: Memory,
    threads: Vec<Progress>,
    /// The values of the keys that no running operation concerns.
    content: BTreeMap<u64, u64>,
    /// Keys of operations whose outcome is unknown, with the values that they may have.
    unsure: BTreeMap<u64, BTreeSet<Option<u64>>>,
}

/// Two hashes of different beginnings.
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
    /// What is farther from the beginning than so many states is not looked at.
    states_max: usize,
    cut: bool,
    /// Of states, and of memories that were looked through with what each key might have: two hashes of different keys, which tell any two apart but for a chance of
    /// one in 2^60 among millions.
    seen: HashSet<u128>,
    checked: HashSet<u128>,
    transitions: u64,
}

impl Explorer<'_> {
    fn explore(&mut self, start: World) {
        let mut open = VecDeque::from([start]);
        while let Some(world) = open.pop_front() {
            let print = print_of(&world);
            if !self.seen.insert(print) {
                continue;
            }
            if self.seen.len() > self.states_max {
                self.cut = true;
                return;
            }
            self.check(&world);
            if world.threads.iter().all(|progress| *progress == Progress::Over) {
                sound(&world.memory, self.tree);
            }
            for thread in 0..self.ops.len() {
                open.extend(self.successors(&world, thread));
            }
        }
    }

    fn successors(&mut self, world: &World, thread: usize) -> Vec<World> {
        let op = self.ops[thread];
        match &world.threads[thread] {
            Progress::Over | Progress::Crashed => Vec::new(),
            Progress::Waits => {
                let starts: Vec<VirtAddr> = match op {
                    Op::Get(key) => {
                        let has = |(&at, node): (&u64, &Node)| {
                            let ours = node.state != State::Dead && (node.first..=node.last).contains(&key);
                            (ours && world.memory.known.contains(&at)).then_some(VirtAddr(at))
                        };
                        world.memory.nodes.iter().filter_map(has).collect()
                    }
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
                    crashed.memory.ends(thread);
                    next.push(crashed);
                }
                self.transitions += next.len() as u64;
                next
            }
        }
    }

    /// Everything that a key may have just now: what it has, and what running operations make of it.
    fn possible(&self, world: &World, key: u64) -> BTreeSet<Option<u64>> {
        let mut values: BTreeSet<Option<u64>> = match world.unsure.get(&key) {
            Some(unsure) => unsure.clone(),
            None => BTreeSet::from([world.content.get(&key).copied()]),
        };
        for (op, progress) in self.ops.iter().zip(&world.threads) {
            if op.key() == key && matches!(progress, Progress::Runs(..)) {
                match op {
                    Op::Insert(_, value) => _ = values.insert(Some(*value)),
                    Op::Remove(_) => _ = values.insert(None),
                    Op::Get(_) => {}
                }
            }
        }
        values
    }

    /// What runs beside a change may see it.
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
        let runs = |(i, progress): (usize, &Progress)| matches!(progress, Progress::Runs(..)).then_some(i);
        let users = world.threads.iter().enumerate().filter_map(runs).collect();
        let (memory, stepped) = (&mut next.memory, false);
        let mut replay = Replay { memory, users: &users, answers: &mut answers, next: 0, stepped };
        let result = match op {
            Op::Insert(key, value) => self.tree.insert(&mut replay, key, value),
            Op::Remove(key) => self.tree.remove(&mut replay, key),
            Op::Get(key) => self.tree.get(&mut replay, from, key),
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
        next.memory.ends(thread);
        let same = |(other, progress): (&Op, &Progress)| {
            other.key() == op.key() && !matches!(other, Op::Get(_)) && matches!(progress, Progress::Runs(..))
        };
        let beside = self.ops.iter().zip(&next.threads).any(same);
        let was_unsure = world.unsure.contains_key(&op.key());
        let new = match op {
            Op::Insert(_, value) => Some(value),
            Op::Remove(_) => None,
            Op::Get(_) => return next,
        };
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

    /// Everything that must be so in every state.
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

/// Asserts that a tree at rest is one: on each level every key has one node, and parents and neighbours lead to live nodes.
fn sound(memory: &Memory, tree: Tree) {
    let mut leftmost = Some(ROOT);
    while let Some(mut at) = leftmost.take() {
        let mut first = 0;
        loop {
            let node = &memory.nodes[&at.0];
            assert_eq!((node.state, node.first, node.tag), (State::Live, first, tree.tag), "{memory:#?}");
            if node.level > 0 {
                leftmost = leftmost.or(Some(VirtAddr(node.entries[0].1)));
                for (i, (key, child)) in node.entries.iter().enumerate() {
                    let below = &memory.nodes[child];
                    assert_eq!((below.state, below.level), (State::Live, node.level - 1), "{memory:#?}");
                    assert!(below.first <= *key && *key <= below.last, "{key} leads to {below:?}");
                    assert!(i == 0 || node.entries[i - 1].1 != *child, "two ways to one child: {node:?}");
                }
            }
            if node.last == u64::MAX {
                break;
            }
            (first, at) = (node.last + 1, node.right);
        }
    }
}

/// A tree with these keys, which were put in and taken out one after the other.
fn built(tree: Tree, inserted: &[u64], removed: &[u64]) -> World {
    let mut memory = Memory::default();
    memory.nodes.insert(ROOT.0, Node::root(tree.tag));
    memory.known.insert(ROOT.0);
    let mut content = BTreeMap::new();
    for &key in inserted {
        assert_eq!(tree.insert(&mut Alone(&mut memory), key, 100 + key), Ok(None));
        content.insert(key, 100 + key);
    }
    for &key in removed {
        assert_eq!(tree.remove(&mut Alone(&mut memory), key), Ok(content.remove(&key)));
    }
    sound(&memory, tree);
    World { memory, threads: Vec::new(), content, unsure: BTreeMap::new() }
}

fn tree(entries: usize) -> Tree {
    Tree { root: ROOT, tag: Tag::new(7), entries }
}

/// Trees of two and three levels, some with nodes that are nearly empty, or that were used before.
fn starts(tree: Tree) -> Vec<World> {
    vec![
        built(tree, &[], &[]),
        built(tree, &[2, 5], &[]),
        built(tree, &[1, 3, 5, 7], &[]),
        built(tree, &[1, 2, 3, 4, 5, 6, 7, 8], &[]),
        built(tree, &[1, 2, 3, 4, 5, 6, 7, 8], &[2, 4, 6, 8]),
        built(tree, &[8, 6, 4, 2, 7, 5, 3, 1], &[3, 4, 5]),
    ]
}

/// Insertions and removals of keys that are there, and of some that are not.
fn writes(keys: impl IntoIterator<Item = u64>) -> Vec<Op> {
    keys.into_iter().flat_map(|key| [Op::Insert(key, 200 + key), Op::Remove(key)]).collect()
}

/// Explores each choice of operations on each tree, up to so many states each; prints and answers how many there were.
fn explore(
    name: &str,
    trees: &[(Tree, World)],
    choices: &[Vec<Op>],
    crashes: bool,
    states_max: usize,
) -> usize {
    let (mut states, mut transitions, mut cut) = (0, 0, 0);
    for (tree, start) in trees {
        for ops in choices {
            let mut start = start.clone();
            start.threads = vec![Progress::Waits; ops.len()];
            let (seen, checked) = (HashSet::new(), HashSet::new());
            let mut explorer =
                Explorer { tree: *tree, ops, crashes, states_max, cut: false, seen, checked, transitions: 0 };
            explorer.explore(start);
            (states, transitions) = (states + explorer.seen.len(), transitions + explorer.transitions);
            cut += u32::from(explorer.cut);
        }
    }
    let runs = trees.len() * choices.len();
    println!(
        "{name}: {runs} runs, {states} states, {transitions} transitions; {cut} runs cut at {states_max} states"
    );
    states
}

/// Trees of nodes with two and with four entries.
fn trees() -> Vec<(Tree, World)> {
    [2, 4]
        .map(tree)
        .into_iter()
        .flat_map(|tree| starts(tree).into_iter().map(move |start| (tree, start)))
        .collect()
}

fn pairs(one: &[Op], other: &[Op]) -> Vec<Vec<Op>> {
    one.iter().flat_map(|&a| other.iter().map(move |&b| vec![a, b])).collect()
}

/// States of a run that the gate looks at.
const GATE: usize = 1_500;

#[test]
fn two_writers_in_any_order_leave_a_sound_tree() {
    let choices = pairs(&writes([1, 4, 8]), &writes([2, 5]));
    let states = explore("two writers", &trees(), &choices, false, GATE);
    assert!(states > 10_000, "{states} states");
}

#[test]
fn two_writers_of_one_key_take_turns() {
    let choices = pairs(&writes([4, 5]), &writes([4, 5]));
    explore("two writers of one key", &trees(), &choices, false, GATE);
}

/// A reader that follows a pointer as old as its look-up finds what is there, through splits, merges and nodes that are used again.
#[test]
fn a_reader_with_an_old_pointer_misses_nothing() {
    let gets = [Op::Get(2), Op::Get(5)];
    let mut choices = pairs(&writes([1, 4, 8]), &gets);
    choices.iter_mut().for_each(|ops| ops.insert(0, Op::Remove(5)));
    explore("two writers and a reader", &trees(), &choices, false, GATE);
}

/// A writer that dies between two of its steps leaves a tree that others read, and carry on with.
#[test]
fn a_writer_that_dies_leaves_a_tree_to_go_on_with() {
    let choices = pairs(&writes([4, 5]), &writes([2, 5]));
    explore("a writer that may die", &trees(), &choices, true, GATE);
}

/// States of a run of [`every_state_of_two_writers`]; a run that has more is cut there, and says so.
const WHOLE: usize = 400_000;

#[test]
#[ignore = "it takes many minutes: run it by its name"]
fn every_state_of_two_writers() {
    let all = writes(0..=KEYS);
    // Which of the two comes first is explored anyway.
    let choices: Vec<Vec<Op>> = pairs(&all, &all).into_iter().filter(|ops| ops[0] <= ops[1]).collect();
    explore("two writers", &trees(), &choices, false, WHOLE);
}

#[test]
#[ignore = "it takes many minutes: run it by its name"]
fn every_state_of_two_writers_one_of_which_dies() {
    let all = writes(0..=KEYS);
    explore("a writer that may die", &trees(), &pairs(&all, &all), true, WHOLE);
}
