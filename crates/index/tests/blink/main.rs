//! Exploration of the interleavings of a few operations on a small tree: all orders with a bounded number of
//! interruptions.
//!
//! An operation runs until it is interrupted, at any of its steps, or ends; a crash does not count as an
//! interruption. (Musuvathi and Qadeer, 2007: few interruptions find most errors, and few interruptions mean
//! few orders.) For each step the operation is replayed from its beginning with its earlier answers. So the
//! explored code is the production code. A freed place is reused by the next new node.
//!
//! Every state is searched from the root and from every address that ever had a node. This covers every
//! pointer of a switch's table, however old, and every hint of a reader. Each key that no operation concerns
//! is found with its value, and no other key is found. When all operations are over, all links of the tree
//! are sound, and every place is a node's or free.

#![expect(clippy::disallowed_types, reason = "sets of states are asked, and never gone through")]
#![expect(clippy::print_stdout, reason = "how much was explored")]

mod memory;
mod search;

use farmem_index::blink::{Node, Tag, Tree};
use farmem_wire::VirtAddr;
use memory::{Alone, Memory, Op};
use search::{World, explore, explore_beside, sound};
use std::collections::BTreeMap;

const ROOT: VirtAddr = VirtAddr(0x100);
const KEYS: u64 = 9;

/// Returns a tree after inserting and removing these keys one after the other, and inserting some again.
fn built(tree: Tree, inserted: &[u64], removed: &[u64], again: &[u64]) -> World {
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
    for &key in again {
        assert_eq!(tree.insert(&mut Alone(&mut memory), key, 100 + key), Ok(None));
        content.insert(key, 100 + key);
    }
    sound(&memory, tree, false);
    World { memory, threads: Vec::new(), content, unsure: BTreeMap::new() }
}

/// Returns a tree of leaves with these keys below its root, and free places.
fn of_leaves(tree: Tree, leaves: &[&[u64]], free: u64) -> (Tree, World) {
    let at = |n: usize| ROOT.0 + 0x100 * (n as u64 + 1);
    let first = |n: usize| if n == 0 { 0 } else { leaves[n][0] };
    let entries = (0..leaves.len()).map(|n| (first(n), at(n))).collect();
    let mut memory = Memory::default();
    memory.nodes.insert(ROOT.0, Node { level: 1, entries, ..Node::root(tree.tag) });
    let mut content = BTreeMap::new();
    for (n, keys) in leaves.iter().enumerate() {
        let entries: Vec<(u64, u64)> = keys.iter().map(|key| (*key, 100 + key)).collect();
        content.extend(entries.iter().copied());
        let is_last = n + 1 == leaves.len();
        let (right, last) = if is_last { (0, u64::MAX) } else { (at(n + 1), first(n + 1) - 1) };
        let right = VirtAddr(right);
        memory.nodes.insert(at(n), Node { right, first: first(n), last, entries, ..Node::root(tree.tag) });
    }
    memory.known.extend(memory.nodes.keys());
    for n in 0..free {
        let at = at(leaves.len()) + 0x100 * n;
        memory.nodes.insert(at, Node::free(tree.tag, 9, VirtAddr(0)));
        memory.known.insert(at);
        memory.free.push(at);
    }
    sound(&memory, tree, false);
    (tree, World { memory, threads: Vec::new(), content, unsure: BTreeMap::new() })
}

fn tree(entries: usize) -> Tree {
    Tree { root: ROOT, tag: Tag::new(7), entries }
}

/// Returns trees of two and three levels, some with nearly empty or reused nodes.
fn starts(tree: Tree) -> Vec<World> {
    // Nodes of two entries make high trees.
    let all: Vec<u64> = (0..=if tree.entries == 2 { 5 } else { KEYS }).collect();
    vec![
        built(tree, &[], &[], &[]),
        built(tree, &[2, 5], &[], &[]),
        built(tree, &[1, 3, 5, 7], &[], &[]),
        built(tree, &[1, 2, 3, 4, 5, 6, 7, 8], &[], &[]),
        built(tree, &[1, 2, 3, 4, 5, 6, 7, 8], &[2, 4, 6, 8], &[]),
        built(tree, &[8, 6, 4, 2, 7, 5, 3, 1], &[3, 4, 5], &[]),
        // Nearly all keys are removed, and their places are free.
        built(tree, &all, &[0, 2, 3, 6, 7, 8, 9], &[]),
        // The next removals merge inner nodes, and lower the root.
        built(tree, &all, &[1, 3, 5, 7], &[]),
        // The next split takes a free place.
        built(tree, &all, &all, &[5, 3, 7, 1][..tree.entries]),
        built(tree, &all, &all, &[5, 3, 7, 1, 8, 0, 6][..tree.entries + 3]),
    ]
}

/// Returns insertions and removals of present and absent keys.
fn writes(keys: impl IntoIterator<Item = u64>) -> Vec<Op> {
    keys.into_iter().flat_map(|key| [Op::Insert(key, 200 + key), Op::Remove(key)]).collect()
}

/// Returns trees of nodes with two and with four entries.
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

/// Interruptions of a run in the standard test suite.
const GATE: u32 = 1;

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

/// A reader that enters at any former or present node finds the present value, through splits, merges and
/// reused places.
#[test]
fn a_reader_with_an_old_pointer_misses_nothing() {
    let choices = [vec![Op::Remove(5), Op::Insert(4, 204), Op::Get(5)]];
    explore("two writers and a reader", &trees(), &choices, false, GATE);
}

/// A writer whose change begins at any former or present leaf writes where readers look.
#[test]
fn a_writer_with_an_old_hint_writes_where_all_read() {
    let puts = [Op::Put(5, 305)];
    explore("a writer with a hint", &trees(), &pairs(&[Op::Remove(5)], &puts), false, GATE);
    let few = few_trees();
    explore("a writer with a hint, one that may die", &few, &pairs(&[Op::Remove(5)], &puts), true, GATE);
    let choices = [vec![Op::Remove(4), Op::Put(5, 305), Op::Get(5)]];
    explore("a writer with a hint, another and a reader", &few, &choices, false, GATE);
}

/// A writer that crashes between two of its steps leaves a tree that others can read and complete.
#[test]
fn a_writer_that_dies_leaves_a_tree_to_go_on_with() {
    let choices = pairs(&[Op::Insert(4, 204), Op::Remove(5)], &writes([2, 5]));
    explore("a writer that may die", &trees(), &choices, true, GATE);
}

/// Interruptions of the runs for known hard cases.
const DEEP: u32 = 2;

/// A slow writer is overtaken: another writer completes its change, and a third reuses the freed place. The
/// slow one must detect this.
#[test]
fn who_is_slow_finds_the_place_used_again() {
    let whole = |name, start: (Tree, World), ops: &[Op]| {
        assert!(explore(name, &[start], &[ops.to_vec()], false, DEEP) > 500, "{name}");
    };
    // The new half of a split is emptied and merged before its writer has linked it in the parent.
    let start = of_leaves(tree(2), &[&[3, 5], &[8]], 1);
    whole("a half that is gone before it is known", start, &[Op::Insert(4, 204), Op::Remove(5)]);
    let start = of_leaves(tree(4), &[&[0, 3, 5, 7], &[8, 9]], 1);
    whole("a half that is gone before it is known, of four", start, &[Op::Insert(4, 204), Op::Remove(5)]);
    // The middle leaf merges into the last one; its place becomes that of the right half of the first one,
    // which led there before.
    let start = of_leaves(tree(3), &[&[0, 1, 3], &[5], &[8]], 0);
    let ops = [Op::Remove(5), Op::Insert(7, 207), Op::Insert(2, 202)];
    whole("a neighbour's place with a new neighbour", start, &ops);
    // The middle leaf merges into the last one, which is split with the right half in the middle one's place,
    // and merges into that. The first leaf leads there again, and not to the last one's place.
    let start = of_leaves(tree(4), &[&[0, 1], &[3, 4], &[7, 8]], 0);
    let ops = [Op::Remove(3), Op::Insert(6, 206), Op::Insert(5, 205), Op::Remove(4), Op::Remove(5)];
    let ops = [&ops[..], &[Op::Get(7), Op::Insert(2, 202)]].concat();
    let states = explore_beside("a neighbour's place with the same neighbour", &start, &ops, GATE);
    assert!(states > 100, "{states} states");
    // The first of the three leaves merges at the same time.
    let start = of_leaves(tree(3), &[&[1], &[5], &[8]], 0);
    let ops = [Op::Remove(1), Op::Remove(5), Op::Put(6, 306)];
    explore("neighbours that merge", &[start], &[ops.to_vec()], false, GATE);
}

/// The root is lowered and grows again, beside a reader and a writer with old pointers.
#[test]
fn a_root_comes_down_beside_others() {
    for (free, interrupted_max) in [(0, DEEP), (2, DEEP - 1)] {
        let start = of_leaves(tree(2), &[&[2], &[5]], free);
        let ops = [Op::Remove(2), Op::Insert(4, 204), Op::Get(5)];
        explore(
            "a root that comes down, a writer and a reader",
            std::slice::from_ref(&start),
            &[ops.to_vec()],
            false,
            interrupted_max,
        );
        let ops = [Op::Remove(2), Op::Put(3, 303), Op::Insert(6, 206)];
        explore(
            "a root that comes down, two writers",
            std::slice::from_ref(&start),
            &[ops.to_vec()],
            false,
            interrupted_max,
        );
        let ops = [Op::Remove(2), Op::Put(5, 305)];
        explore(
            "a root that comes down, its writer may die",
            &[start],
            &[ops.to_vec()],
            true,
            interrupted_max,
        );
    }
}

/// Interruptions of the ignored tests, where the runs are few enough to end. Two writers of any keys take 12
/// minutes in a release build; three were still at the first of twenty trees after seven. Runs with a crash
/// are explored twice: all of them with [`GATE`], some with this.
const WHOLE: u32 = 2;

/// Returns every third tree: low and high ones, with and without reused places.
fn few_trees() -> Vec<(Tree, World)> {
    trees().into_iter().step_by(3).collect()
}

#[test]
#[ignore = "it takes many minutes: run it by its name"]
fn two_writers_of_any_keys() {
    let all = writes(0..=KEYS);
    // Both orders of the two are explored anyway.
    let choices: Vec<Vec<Op>> = pairs(&all, &all).into_iter().filter(|ops| ops[0] <= ops[1]).collect();
    explore("two writers", &trees(), &choices, false, WHOLE);
}

#[test]
#[ignore = "it takes many minutes: run it by its name"]
fn two_writers_of_any_keys_one_of_which_dies() {
    let (all, some) = (writes(0..=KEYS), writes([1, 4, 5, 8]));
    explore("a writer that may die", &trees(), &pairs(&all, &all), true, GATE);
    explore("a writer that may die, interrupted more often", &few_trees(), &pairs(&some, &some), true, WHOLE);
}

#[test]
#[ignore = "it takes many minutes: run it by its name"]
fn writers_with_hints_and_a_reader() {
    let (puts, gets) = ([1, 4, 5, 8].map(|key| Op::Put(key, 300 + key)), [Op::Get(2), Op::Get(5)]);
    let two = pairs(&writes([1, 2, 5]), &puts);
    let choices: Vec<Vec<Op>> =
        two.iter().flat_map(|ops| gets.map(|get| [&ops[..], &[get]].concat())).collect();
    explore("two writers and a reader", &few_trees(), &choices, false, GATE);
}
