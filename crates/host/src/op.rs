//! What programs ask of far memory, one operation at a time.

use alloc::vec::Vec;
use farmem_transport::rc;
use farmem_traversal::Program;
use farmem_wire::{Qpn, VirtAddr};

/// One operation on far memory.
#[derive(Clone, Debug)]
pub enum Op {
    /// Reads `buf.len()` bytes at `addr` over the connection to its node.
    Read {
        /// First byte.
        addr: VirtAddr,
        /// Where the bytes go.
        buf: Vec<u8>,
    },
    /// Reads as many bytes at `addr` as `to` has over the connection to its node, and puts them there as they come: there is no buffer.
    ReadTo {
        /// First byte.
        addr: VirtAddr,
        /// Where the bytes go.
        to: rc::Spot,
    },
    /// Reads pieces of one length, each at an address of its own, into `buf`, one behind the other: 1 to [`PIECES_MAX`](farmem_wire::gather::PIECES_MAX) of them, of a byte or more. What a
    /// READ for each would bring, with fewer packets where they are at one node; they are read in no order that counts.
    Gather {
        /// Where they begin.
        addrs: Vec<VirtAddr>,
        /// Where the bytes go; its length is that of all pieces together.
        buf: Vec<u8>,
    },
    /// Writes `buf` at `addr` over the connection to its node.
    Write {
        /// First byte.
        addr: VirtAddr,
        /// The bytes.
        buf: Vec<u8>,
    },
    /// Writes as many bytes as `from` has at `addr` over the connection to its node, and takes them from there as they leave: there is no buffer. They stay where they are until it has ended.
    WriteFrom {
        /// First byte.
        addr: VirtAddr,
        /// Where the bytes are.
        from: rc::Stretch,
    },
    /// Compares and swaps a word.
    CompareSwap {
        /// The word; a multiple of 8.
        addr: VirtAddr,
        /// What must be there.
        compare: u64,
        /// What replaces it.
        swap: u64,
    },
    /// Adds to a word, wrapping.
    FetchAdd {
        /// The word; a multiple of 8.
        addr: VirtAddr,
        /// What is added.
        add: u64,
    },
    /// Reads `buf.len()` bytes at `addr` through the switch, for diagnosis; at most [`REGION_DATA_MAX`](crate::REGION_DATA_MAX) bytes.
    RegionRead {
        /// First byte.
        addr: VirtAddr,
        /// Where the bytes go.
        buf: Vec<u8>,
    },
    /// Writes `buf` at `addr` through the switch, for diagnosis; at most [`REGION_DATA_MAX`](crate::REGION_DATA_MAX) bytes.
    RegionWrite {
        /// First byte.
        addr: VirtAddr,
        /// The bytes.
        buf: Vec<u8>,
    },
    /// A verb over one connection through the switch (PROTOCOL 15.1). Verbs over one are executed in the order in which they are submitted; between connections there is
    /// no order.
    Through {
        /// The host's queue pair, which names the connection.
        over: Qpn,
        /// What.
        work: rc::Work,
    },
    /// Runs a traversal at the memory nodes.
    Traverse {
        /// The program.
        program: Program,
        /// The first pointer.
        cur_ptr: VirtAddr,
        /// The scratch pad; as long as the program's.
        scratch: Vec<u8>,
        /// Iterations after which it stops, in all.
        limit: u32,
    },
}
