//! A far memory of a few nodes, and the replay of an operation step by step.

use crate::ROOT;
use farmem_index::blink::{Fault, Head, Node, Nodes, State, Tree};
use farmem_wire::VirtAddr;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Op {
    Insert(u64, u64),
    Remove(u64),
    /// Looks up a key from any former or present node.
    Get(u64),
    /// Changes a key in one step at its leaf, as a memory node does, from any former or present node: a
    /// writer's hint.
    Put(u64, u64),
}

impl Op {
    pub(crate) fn key(self) -> u64 {
        match self {
            Self::Insert(key, _) | Self::Remove(key) | Self::Get(key) | Self::Put(key, _) => key,
        }
    }

    /// Returns the value of the key after the operation; none for a lookup.
    pub(crate) fn leaves(self) -> Option<Option<u64>> {
        match self {
            Self::Insert(_, value) | Self::Put(_, value) => Some(Some(value)),
            Self::Remove(_) => Some(None),
            Self::Get(_) => None,
        }
    }
}

/// An answer of far memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Answer {
    Read(Node),
    Replaced(bool),
    Created(VirtAddr, Head),
    Visited(Visit),
}

/// The result of one node visit of a program that puts a value under a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Visit {
    Goes(VirtAddr),
    Done(Option<u64>),
    /// The key cannot be here, or cannot be written here.
    Lost,
    Full,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Stop {
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
pub(crate) struct Memory {
    pub(crate) nodes: BTreeMap<u64, Node>,
    /// Places that others led to once: old pointers there may exist.
    pub(crate) known: BTreeSet<u64>,
    /// Places without a node. The last one is used next.
    pub(crate) free: Vec<u64>,
}

impl Memory {
    /// Writes a node into an empty place; returns true if the place had a node before.
    fn create(&mut self, node: &Node) -> (VirtAddr, Head, bool) {
        let free = self.free.pop();
        let at = free.unwrap_or_else(|| self.nodes.keys().next_back().map_or(ROOT.0, |last| last + 0x100));
        let version = self.nodes.get(&at).map_or(0, |old| old.head().next());
        let node = Node { version, ..node.clone() };
        let head = node.head();
        self.nodes.insert(at, node);
        (VirtAddr(at), head, free.is_some())
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

    /// Runs one visit of the program that puts a value under a key.
    fn visit(&mut self, tree: Tree, at: VirtAddr, key: u64, value: u64) -> Visit {
        let node = self.nodes.get_mut(&at.0).expect("something was at every place");
        match node.state {
            _ if node.tag != tree.tag => return Visit::Lost,
            State::Dead => return Visit::Goes(node.right),
            State::New | State::Free => return Visit::Lost,
            State::Live | State::Young | State::Taking | State::Closing => {}
        }
        if key < node.first {
            return Visit::Lost;
        }
        if key > node.last {
            return Visit::Goes(node.right);
        }
        if node.level > 0 {
            let child = node.entries.iter().rev().find(|(first, _)| *first <= key).expect("a first child");
            return Visit::Goes(VirtAddr(child.1));
        }
        if !matches!(node.state, State::Live | State::Young) {
            return Visit::Full;
        }
        let version = node.head().next();
        let old = match node.entries.binary_search_by_key(&key, |entry| entry.0) {
            Ok(place) => Some(std::mem::replace(&mut node.entries[place].1, value)),
            Err(_) if node.entries.len() == tree.entries => return Visit::Full,
            Err(place) => {
                node.entries.insert(place, (key, value));
                None
            }
        };
        node.version = version;
        Visit::Done(old)
    }

    /// Frees the place.
    fn retire(&mut self, at: VirtAddr) {
        assert!(!self.free.contains(&at.0), "{at:?} is free twice: {self:#?}");
        self.free.push(at.0);
    }
}

/// The replay of an operation: its earlier answers, one more step, and then a stop.
pub(crate) struct Replay<'a> {
    pub(crate) memory: &'a mut Memory,
    pub(crate) answers: &'a mut Vec<Answer>,
    pub(crate) next: usize,
    pub(crate) stepped: bool,
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
            // Written nodes must parse.
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

    /// Returns a separate step if an old pointer leads there; otherwise no other operation can see the new
    /// node.
    fn create(&mut self, node: &Node, _: VirtAddr) -> Result<(VirtAddr, Head), Stop> {
        if self.next == self.answers.len() {
            if self.stepped && !self.memory.free.is_empty() {
                return Err(Stop::Suspended);
            }
            let (at, head, again) = self.memory.create(node);
            self.stepped |= again;
            self.answers.push(Answer::Created(at, head));
        }
        self.next += 1;
        match self.answers[self.next - 1] {
            Answer::Created(at, head) => Ok((at, head)),
            ref other => panic!("{other:?} for a new node"),
        }
    }

    fn retire(&mut self, at: VirtAddr) {
        // Once, directly after the step that freed it.
        if self.stepped && self.next == self.answers.len() {
            self.memory.retire(at);
        }
    }
}

impl Replay<'_> {
    /// Puts a value under a key from any place on, as programs at the memory nodes do, or a host where they
    /// cannot.
    pub(crate) fn put(
        &mut self,
        tree: Tree,
        from: VirtAddr,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, Stop> {
        let mut at = from;
        loop {
            match self.step(|memory| Answer::Visited(memory.visit(tree, at, key, value)))? {
                Answer::Visited(Visit::Goes(to)) => at = to,
                Answer::Visited(Visit::Done(old)) => return Ok(old),
                Answer::Visited(Visit::Full) => {
                    tree.make_room(self, at)?;
                    at = ROOT;
                }
                Answer::Visited(Visit::Lost) if at == ROOT || from == ROOT => {
                    return tree.insert(self, key, value);
                }
                Answer::Visited(Visit::Lost) => return self.put(tree, ROOT, key, value),
                other => panic!("{other:?} for a visit"),
            }
        }
    }
}

/// Far memory for an operation that runs alone.
pub(crate) struct Alone<'a>(pub(crate) &'a mut Memory);

impl Nodes for Alone<'_> {
    type Error = Stop;

    fn read(&mut self, at: VirtAddr) -> Result<Node, Stop> {
        Ok(self.0.nodes[&at.0].clone())
    }

    fn replace(&mut self, at: VirtAddr, head: Head, node: &Node) -> Result<bool, Stop> {
        assert!(self.0.replace(at, head, node), "there is no other writer");
        Ok(true)
    }

    fn create(&mut self, node: &Node, _: VirtAddr) -> Result<(VirtAddr, Head), Stop> {
        let (at, head, _) = self.0.create(node);
        Ok((at, head))
    }

    fn retire(&mut self, at: VirtAddr) {
        self.0.retire(at);
    }
}
