//! The operations that programs submit.

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
        /// The buffer for the bytes.
        buf: Vec<u8>,
    },
    /// Reads as many bytes at `addr` as `to` has over the connection to its node, and stores them directly on
    /// arrival. There is no buffer.
    ReadTo {
        /// First byte.
        addr: VirtAddr,
        /// The destination.
        to: rc::SinkPart,
    },
    /// Reads pieces of one length, each at its own address, into `buf`, one behind the other: 1 to
    /// [`PIECES_MAX`](farmem_wire::gather::PIECES_MAX) pieces of at least one byte. The result equals one
    /// READ for each piece, with fewer packets if one node has all pieces. The order in which the pieces are
    /// read is unspecified.
    Gather {
        /// First byte of each piece.
        addrs: Vec<VirtAddr>,
        /// The buffer for the bytes, as long as all pieces together.
        buf: Vec<u8>,
    },
    /// Writes `buf` at `addr` over the connection to its node.
    Write {
        /// First byte.
        addr: VirtAddr,
        /// The bytes.
        buf: Vec<u8>,
    },
    /// Writes as many bytes as `from` has at `addr` over the connection to its node, directly from their
    /// place. There is no buffer. The bytes must not change until the operation ends.
    WriteFrom {
        /// First byte.
        addr: VirtAddr,
        /// The source.
        from: rc::SourcePart,
    },
    /// Compares and swaps a word.
    CompareSwap {
        /// The word's address, a multiple of 8.
        addr: VirtAddr,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds to a word, wrapping.
    FetchAdd {
        /// The word's address, a multiple of 8.
        addr: VirtAddr,
        /// The addend.
        add: u64,
    },
    /// Reads `buf.len()` bytes at `addr` through the switch, for diagnosis; at most [`REGION_DATA_MAX`](crate::REGION_DATA_MAX) bytes.
    RegionRead {
        /// First byte.
        addr: VirtAddr,
        /// The buffer for the bytes.
        buf: Vec<u8>,
    },
    /// Writes `buf` at `addr` through the switch, for diagnosis; at most [`REGION_DATA_MAX`](crate::REGION_DATA_MAX) bytes.
    RegionWrite {
        /// First byte.
        addr: VirtAddr,
        /// The bytes.
        buf: Vec<u8>,
    },
    /// A verb over one connection through the switch (PROTOCOL 15.1). Verbs over one connection execute in
    /// the order of submission; between connections there is no order.
    Through {
        /// The host's queue pair, which names the connection.
        over: Qpn,
        /// The verb.
        work: rc::Work,
    },
    /// Runs a traversal at the memory nodes.
    Traverse {
        /// The program.
        program: Program,
        /// The first pointer.
        cur_ptr: VirtAddr,
        /// The scratch pad, as long as the program's.
        scratch: Vec<u8>,
        /// Maximum number of iterations in all.
        limit: u32,
    },
}
