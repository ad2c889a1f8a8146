//! Linked lists over several nodes, and the program that looks a key up.

use super::Rack;
use super::tasks::{Found, NOWHERE, Operation, Task};
use crate::checker::SlotId;
use farmem_host::Op;
use farmem_machine::Rng;
use farmem_traversal::Program;
use farmem_wire::VirtAddr;
use std::ops::Range;

/// Minimum and maximum number of nodes of a list.
const LEN_MIN: u32 = 2;
const LEN_MAX: u32 = 10;
/// Maximum number of lists of all programs.
const LISTS_MAX: usize = 6;

/// A node is a key, a value and the address of the next node. The scratch pad is the wanted key, 1 if found,
/// and the value.
const FIND: &str = "
.window 24
.scratch 24
    ld8 r2, window[0]
    ld8 r3, scratch[0]
    jne r2, r3, other
    ld8 r4, window[8]
    st8 scratch[16], r4
    st8 scratch[8], 1
    ret
other:
    ld8 r5, window[16]
    jne r5, 0, on
    ret
on:
    next r5
";

/// Variants of one program with different hashes, so that nodes learn and forget programs.
#[derive(Debug)]
pub(super) struct Programs(Vec<Program>);

impl Programs {
    pub(super) fn new(count: u32) -> Self {
        let variant = |n| {
            Program::assemble(&FIND.replace("st8 scratch[8], 1", &format!("mov r6, {n}\n st8 scratch[8], 1")))
        };
        Self((0..count).map(|n| variant(n).expect("a program")).collect())
    }

    /// Returns a random one.
    pub(super) fn any(&self, rng: &mut Rng) -> Program {
        self.0[rng.below(u32::try_from(self.0.len()).expect("few")) as usize].clone()
    }
}

/// A list, complete or being built.
#[derive(Debug)]
pub(super) struct List {
    pub(super) owner: usize,
    domain: usize,
    nodes: Vec<Node>,
    /// Number of writes that have not ended.
    open: usize,
    /// True if a node was never written, or its loss was accepted: its contents are unknown.
    dead: bool,
    /// True if a node was lost with its memory: an operation that reaches it is refused.
    lost: bool,
    /// Number of lookups in progress.
    pub(super) readers: usize,
    /// True if the last node has a dangling pointer.
    dangling: bool,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    place: SlotId,
    addr: u64,
    key: u64,
    value: u64,
}

impl Rack {
    /// Writes a new list over the free short slots of a program, or retires an old one.
    pub(super) fn build_list(&mut self, index: usize) {
        if self.lists.iter().any(|list| list.owner == index && !list.dead && !list.lost)
            || self.lists.len() >= LISTS_MAX
        {
            return self.retire_list(index);
        }
        let len = (LEN_MIN + self.rng.below(LEN_MAX - LEN_MIN)) as usize;
        let Some(places) = self.places_for(index, len) else { return };
        let dangling = self.rng.chance(1, 5);
        let nodes: Vec<Node> = places
            .into_iter()
            .map(|place| {
                let addr = self.model.span(place).0;
                Node { place, addr, key: self.rng.next_u64() | 1, value: self.rng.next_u64() }
            })
            .collect();
        let list = self.lists.len();
        let domain = self.clients[index].domain;
        self.lists.push(List {
            owner: index,
            domain,
            nodes: nodes.clone(),
            open: len,
            dead: false,
            lost: false,
            readers: 0,
            dangling,
        });
        for (i, node) in nodes.iter().enumerate() {
            let last = if dangling { NOWHERE } else { 0 };
            let next = nodes.get(i + 1).map_or(last, |next| next.addr);
            let version = self.model.fresh_special(vec![node.key, node.value, next]);
            self.model.pin(node.place, true);
            self.start_write(index, node.place, version, false, Some(list));
        }
    }

    /// Chooses slots for the nodes, spread over vmas and so over memory nodes.
    fn places_for(&mut self, index: usize, len: usize) -> Option<Vec<SlotId>> {
        let mut places = Vec::new();
        for _ in 0..4 * len {
            let place = self.place_of(index, |vma| vma.slot_len == 64)?;
            let addr = self.model.span(place).0;
            if self.has_line(index, addr) && self.is_writable(place) && !places.contains(&place) {
                places.push(place);
            }
            if places.len() == len {
                return Some(places);
            }
        }
        None
    }

    fn retire_list(&mut self, index: usize) {
        let list =
            self.lists.iter().position(|list| list.owner == index && list.open == 0 && list.readers == 0);
        if let Some(list) = list
            && self.rng.chance(1, 4)
        {
            self.remove_list(list);
        }
    }

    /// Removes a list; its slots can be written again.
    fn remove_list(&mut self, list: usize) {
        // Tasks refer to lists by index, so the last one must not be in use when it moves.
        let last = self.lists.len() - 1;
        if self.lists[last].open > 0 || self.lists[last].readers > 0 {
            return;
        }
        let list = self.lists.swap_remove(list);
        list.nodes.iter().for_each(|node| self.model.pin(node.place, false));
    }

    /// Records the end of a write of the list.
    pub(super) fn list_written(&mut self, list: usize, well: bool) {
        let list = &mut self.lists[list];
        list.open -= 1;
        list.dead |= !well;
    }

    /// Records that a memory node lost its memory: traversals that reach it on a list are refused.
    pub(super) fn lists_lost(&mut self, node: u16) {
        for list in &mut self.lists {
            list.lost |= list.nodes.iter().any(|part| self.model.home(part.place).may_be_at(node));
        }
    }

    /// Records that these addresses may be zeros from now on: lists over them are dead.
    pub(super) fn lists_accepted(&mut self, addrs: Range<u64>) {
        for list in &mut self.lists {
            list.dead |= list.nodes.iter().any(|node| addrs.contains(&node.addr));
        }
    }

    pub(super) fn is_lost(&self, list: usize) -> bool {
        self.lists[list].lost
    }

    pub(super) fn is_dead(&self, list: usize) -> bool {
        self.lists[list].dead
    }

    /// Looks a key up in a list of the program's domain.
    pub(super) fn start_find(&mut self, index: usize) {
        if !self.clients[index].has_session() {
            return;
        }
        let domain = self.clients[index].domain;
        let whole = |list: &&(usize, &List)| list.1.domain == domain && list.1.open == 0 && !list.1.dead;
        let lists: Vec<usize> =
            self.lists.iter().enumerate().collect::<Vec<_>>().iter().filter(whole).map(|l| l.0).collect();
        let Some(&list) = lists.get(self.rng.below(u32::try_from(lists.len().max(1)).expect("few")) as usize)
        else {
            return self.build_list(index);
        };
        let nodes = &self.lists[list].nodes;
        let len = u32::try_from(nodes.len()).expect("few");
        // One position beyond the end stands for an absent key.
        let position = self.rng.below(len + 1);
        let wanted = nodes.get(position as usize).map_or(2, |node| node.key);
        let limit = if self.rng.chance(1, 4) { 1 + self.rng.below(len) } else { 1000 };
        let needed = (position + 1).min(len);
        let expected = match nodes.get(position as usize) {
            _ if limit < needed => Found::Limit(nodes[limit as usize].addr),
            Some(node) => Found::Value(node.value, needed),
            // At the limit the traversal does not follow the pointer any more.
            None if self.lists[list].dangling && limit == needed => Found::Limit(NOWHERE),
            None if self.lists[list].dangling => Found::Dangling,
            None => Found::Nothing(needed),
        };
        let program = self.programs.0
            [self.rng.below(u32::try_from(self.programs.0.len()).expect("few")) as usize]
            .clone();
        let mut scratch = vec![0; program.scratch_len()];
        scratch[..8].copy_from_slice(&wanted.to_le_bytes());
        let cur_ptr = VirtAddr(nodes[0].addr);
        self.lists[list].readers += 1;
        let task = Task::new(index, self.world.now(), Operation::Find { list, expected });
        self.submit(task, Op::Traverse { program, cur_ptr, scratch, limit });
    }
}
