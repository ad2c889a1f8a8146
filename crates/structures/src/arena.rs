//! Room for the nodes of a linked structure: which memory node a tree node or list element lies on.
//!
//! Key type: [`Arena`]. It takes far memory in pieces and hands out nodes of one length; it never gives a piece back before the
//! structure is destroyed. It lives with the program that writes the structure, as a heap's free lists do.

use farmem_client::{Error, FarMemory, Vma};
use farmem_wire::message::PAGE_LEN;
use farmem_wire::{NodeId, VirtAddr};
use std::collections::BTreeMap;

/// How a structure's nodes are laid out over the memory nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Each memory node has one range of the keys (a list: all its elements on one memory node): few hops cross.
    Partitioned,
    /// Pieces of this many bytes on the memory nodes in turn, filled one after the other in the order in which nodes are made:
    /// the allocation granularities of PULSE's figure 2. Rounded up to a power of two of at least 4096.
    Scattered {
        /// Bytes of a piece.
        granularity: u64,
    },
}

/// The first piece of a partitioned structure on a memory node, in bytes; each further one is twice as large.
const PIECE_MIN: u64 = 64 << 10;
/// Its largest piece.
const PIECE_MAX: u64 = 64 << 20;

/// The unused rest of a piece.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    next: u64,
    end: u64,
    /// Bytes of the next piece.
    grow: u64,
}

#[derive(Debug)]
pub(crate) struct Arena {
    layout: Layout,
    node_len: u64,
    nodes: Vec<NodeId>,
    /// Partitioned: of each memory node. Scattered: one.
    rooms: Vec<Room>,
    /// The memory node whose turn it is.
    turn: usize,
    /// Bytes of each piece, by its first one.
    pieces: BTreeMap<VirtAddr, u64>,
    /// Nodes that nothing links to any more, where a reader may still stand.
    retired: Vec<VirtAddr>,
    /// Nodes to be handed out again.
    free: Vec<VirtAddr>,
}

impl Arena {
    /// An arena for nodes of `node_len` bytes, a divisor of 4096, over the memory nodes that there are.
    pub(crate) fn new(memory: &(impl FarMemory + ?Sized), layout: Layout, node_len: usize) -> Self {
        assert!(node_len > 0 && 4096 % node_len == 0, "nodes of {node_len} bytes tile no page");
        let nodes: Vec<NodeId> = memory.nodes().iter().map(|n| NodeId(n.node)).collect();
        assert!(!nodes.is_empty(), "a memory is made of a rack with a memory node");
        let (rooms, grow) = match layout {
            Layout::Partitioned => (nodes.len(), PIECE_MIN),
            Layout::Scattered { granularity } => (1, granularity.max(4096)),
        };
        let rooms = vec![Room { grow, ..Room::default() }; rooms];
        Self {
            layout,
            node_len: node_len as u64,
            nodes,
            rooms,
            turn: 0,
            pieces: BTreeMap::new(),
            retired: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Memory nodes it spreads over.
    pub(crate) fn homes(&self) -> usize {
        self.nodes.len()
    }

    /// A node; of a partitioned structure on the memory node number `home`.
    pub(crate) fn take(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        home: usize,
    ) -> Result<VirtAddr, Error> {
        if let Some(addr) = self.free.pop() {
            return Ok(addr);
        }
        let place = self.place_of(home);
        if !self.has_room(home) {
            self.grow(memory, place)?;
        }
        let room = &mut self.rooms[place];
        let addr = VirtAddr(room.next);
        room.next += self.node_len;
        Ok(addr)
    }

    /// True when the next node there needs no more memory of the rack.
    pub(crate) fn has_room(&self, home: usize) -> bool {
        let place = self.place_of(home);
        self.rooms[place].end - self.rooms[place].next >= self.node_len
    }

    /// The memory node number `home`.
    pub(crate) fn node(&self, home: usize) -> NodeId {
        self.nodes[home]
    }

    const fn place_of(&self, home: usize) -> usize {
        match self.layout {
            Layout::Partitioned => home,
            Layout::Scattered { .. } => 0,
        }
    }

    /// Nodes from elsewhere, to be handed out first, in this order; whose they are frees them.
    pub(crate) fn reserve(&mut self, nodes: Vec<VirtAddr>) {
        self.free.extend(nodes.into_iter().rev());
    }

    /// Nothing links to this node any more; a reader may still stand on it.
    pub(crate) fn retire(&mut self, addr: VirtAddr) {
        self.retired.push(addr);
    }

    /// No reader stands on a retired node any more: they are handed out again.
    pub(crate) fn reclaim(&mut self) {
        self.free.append(&mut self.retired);
    }

    /// The number of the memory node that `addr` is on, as [`Arena::take`] counts them.
    pub(crate) fn home_of(&self, memory: &(impl FarMemory + ?Sized), addr: VirtAddr) -> usize {
        let owner = memory.nodes().iter().find(|n| addr.0.wrapping_sub(n.base) < n.capacity);
        owner.and_then(|owner| self.nodes.iter().position(|node| node.0 == owner.node)).unwrap_or(0)
    }

    /// True when the node at `addr` and the byte before it lie in one allocation, so that one WRITE may go over both (PROTOCOL 7.45).
    pub(crate) fn goes_on_at(&self, addr: VirtAddr) -> bool {
        // An allocation begins at a page.
        !addr.0.is_multiple_of(PAGE_LEN as u64)
            || self.pieces.range(..addr).next_back().is_some_and(|(base, size)| addr.0 - base.0 < *size)
    }

    /// Frees all pieces.
    pub(crate) fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.pieces.keys().try_for_each(|&base| memory.free(base))
    }

    fn grow(&mut self, memory: &mut (impl FarMemory + ?Sized), place: usize) -> Result<(), Error> {
        let grow = self.rooms[place].grow;
        let (vma, next) = match self.layout {
            Layout::Partitioned => {
                let vma = largest(memory, self.nodes[place], grow)?;
                (vma, (vma.size * 2).min(PIECE_MAX))
            }
            Layout::Scattered { .. } => {
                let node = self.nodes[self.turn];
                self.turn = (self.turn + 1) % self.nodes.len();
                (memory.allocate_on(grow, node)?, grow)
            }
        };
        self.rooms[place] = Room { next: vma.base.0, end: vma.base.0 + vma.size, grow: next };
        self.pieces.insert(vma.base, vma.size);
        Ok(())
    }
}

/// A piece of `size` bytes on `node`, or the largest half, quarter... of it that there is room for.
fn largest(memory: &mut (impl FarMemory + ?Sized), node: NodeId, mut size: u64) -> Result<Vma, Error> {
    loop {
        match memory.allocate_on(size, node) {
            Err(Error::Refused(_)) if size > 4096 => size /= 2,
            other => return other,
        }
    }
}
