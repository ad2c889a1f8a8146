//! Memory allocation for the nodes of a linked structure.
//!
//! Key type: [`Arena`]. An arena takes far memory in pieces and hands out nodes of one length. The arena
//! frees no piece before the structure is destroyed. An arena lives in the program that writes the structure.

use farmem_client::{Error, FarMemory, Vma};
use farmem_wire::message::PAGE_LEN;
use farmem_wire::{NodeId, VirtAddr};
use std::collections::BTreeMap;

/// The layout of a structure's nodes over the memory nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Each memory node holds one range of the keys (of a list: all elements on one memory node). Few hops
    /// cross memory nodes.
    Partitioned,
    /// Pieces of this many bytes, on the memory nodes in turn. Pieces fill in the order in which nodes are
    /// created: the allocation granularities of PULSE's figure 2. The size is rounded up to a power of two of
    /// at least 4096.
    Scattered {
        /// Bytes of a piece.
        granularity: u64,
    },
}

/// The first piece of a partitioned structure on a memory node, in bytes. Each further piece is twice as
/// large.
const PIECE_MIN: u64 = 64 << 10;
/// The largest piece, in bytes.
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
    /// Partitioned: one room per memory node. Scattered: a single room.
    rooms: Vec<Room>,
    /// Index of the memory node that receives the next piece.
    turn: usize,
    /// Bytes of each piece, keyed by the piece's first address.
    pieces: BTreeMap<VirtAddr, u64>,
    /// Unlinked nodes that a reader may still visit.
    retired: Vec<VirtAddr>,
    /// Nodes free for reuse.
    free: Vec<VirtAddr>,
}

impl Arena {
    /// Creates an arena for nodes of `node_len` bytes, a divisor of 4096, over all memory nodes of the rack.
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

    /// Returns the number of memory nodes that the arena uses.
    pub(crate) fn homes(&self) -> usize {
        self.nodes.len()
    }

    /// Allocates a node. In a partitioned structure the node lies on memory node number `home`.
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

    /// Returns true when the next node on `home` needs no further allocation from the rack.
    pub(crate) fn has_room(&self, home: usize) -> bool {
        let place = self.place_of(home);
        self.rooms[place].end - self.rooms[place].next >= self.node_len
    }

    /// Returns the id of memory node number `home`.
    pub(crate) fn node(&self, home: usize) -> NodeId {
        self.nodes[home]
    }

    const fn place_of(&self, home: usize) -> usize {
        match self.layout {
            Layout::Partitioned => home,
            Layout::Scattered { .. } => 0,
        }
    }

    /// Adds nodes that another owner allocated. The arena hands them out first, in this order; the other
    /// owner frees them.
    pub(crate) fn reserve(&mut self, nodes: Vec<VirtAddr>) {
        self.free.extend(nodes.into_iter().rev());
    }

    /// Marks a node as unlinked. A reader may still visit the node.
    pub(crate) fn retire(&mut self, addr: VirtAddr) {
        self.retired.push(addr);
    }

    /// Makes all retired nodes free for reuse, because no reader visits them any more.
    pub(crate) fn reclaim(&mut self) {
        self.free.append(&mut self.retired);
    }

    /// Returns the number of the memory node that holds `addr`, as [`Arena::take`] counts memory nodes.
    pub(crate) fn home_of(&self, memory: &(impl FarMemory + ?Sized), addr: VirtAddr) -> usize {
        let owner = memory.nodes().iter().find(|n| addr.0.wrapping_sub(n.base) < n.capacity);
        owner.and_then(|owner| self.nodes.iter().position(|node| node.0 == owner.node)).unwrap_or(0)
    }

    /// Returns true when `addr` and the byte before `addr` lie in one allocation, so that one WRITE may cover
    /// both (PROTOCOL 7.45).
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

/// Allocates a piece of `size` bytes on `node`, or the largest half, quarter and so on that fits.
fn largest(memory: &mut (impl FarMemory + ?Sized), node: NodeId, mut size: u64) -> Result<Vma, Error> {
    loop {
        match memory.allocate_on(size, node) {
            Err(Error::Refused(_)) if size > 4096 => size /= 2,
            other => return other,
        }
    }
}
