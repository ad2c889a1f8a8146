//! Reliable connections (docs/protocol/04-reliable-connections.md): one [`Requester`] or [`Responder`] is one half of a queue pair.

mod job;
mod landing;
mod origin;
mod part;
mod requester;
mod responder;
mod rnr;

pub use landing::{Arrivals, Landing, Spot};
pub use origin::{Origin, Stretch};
pub use part::Part;
pub use requester::Requester;
pub use responder::Responder;

use alloc::vec::Vec;
use farmem_machine::{Duration, Port};
use farmem_wire::{Domain, Pmtu, Psn, Qpn, Rkey, VirtAddr};

/// The requester half of a queue pair, as the control plane set it up.
#[derive(Clone, Copy, Debug)]
pub struct RequesterConfig {
    /// Our queue pair number.
    pub qpn: Qpn,
    /// The responder's.
    pub peer_qpn: Qpn,
    /// Where the responder is.
    pub port: Port,
    /// The PSN of our first request.
    pub first_psn: Psn,
    /// The key our requests show.
    pub rkey: Rkey,
    /// Path MTU, the same at both ends.
    pub pmtu: Pmtu,
    /// Most unacknowledged PSNs; 1 to [`WINDOW_MAX`] (PROTOCOL 4.7).
    pub window_psns: u32,
    /// Most READ requests and atomics outstanding; 1 to what the responder remembers ([`RESPONDER_DEPTH`]).
    pub depth: u32,
    /// Requests that may wait for the window.
    pub queue_max: usize,
    /// Time without progress after which everything unacknowledged is sent again; more than zero.
    pub timeout: Duration,
    /// Times it is sent again before the connection is given up.
    pub retries_max: u32,
    /// RNR NAKs in a row before the connection is given up.
    pub rnr_retries_max: u32,
}

/// READs and atomics that a responder remembers for duplicates (PROTOCOL 4.21, 4.22).
pub const RESPONDER_DEPTH: u32 = 16;

/// Most unacknowledged PSNs of a connection (PROTOCOL 4.7).
pub const WINDOW_MAX: u32 = 128;

/// Packets of one WRITE after which one asks for an acknowledgement at the latest (PROTOCOL 4.6).
pub const ACK_REQ_EVERY: u32 = 64;

/// Bytes that one READ request packet asks for at most. A longer READ is several of them (PROTOCOL 4.8).
pub const READ_SEGMENT_MAX: u32 = 64 * 1024;

/// Bytes that a responder answers one READ request packet with at most: the bound on the burst that 28 bytes can set
/// off. More than [`READ_SEGMENT_MAX`], because other requesters do not split their READs (PROTOCOL 4.24).
pub const READ_LEN_MAX: u32 = 1024 * 1024;

// The PSNs of a split READ are those of the whole only when every part but the last fills its packets.
const _: () =
    assert!(READ_SEGMENT_MAX.is_multiple_of(Pmtu::B4096 as u32) && READ_SEGMENT_MAX <= READ_LEN_MAX);

/// The responder half of a queue pair, as the control plane set it up.
#[derive(Clone, Copy, Debug)]
pub struct ResponderConfig {
    /// Our queue pair number.
    pub qpn: Qpn,
    /// The requester's.
    pub peer_qpn: Qpn,
    /// Where the requester is.
    pub port: Port,
    /// The PSN of its first request.
    pub expected_psn: Psn,
    /// The key its requests must show.
    pub rkey: Rkey,
    /// The domain its requests are in.
    pub domain: Domain,
    /// Path MTU, the same at both ends.
    pub pmtu: Pmtu,
}

/// One request on a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Reads `buf.len()` bytes at `addr` into `buf`. At most 2^31 bytes.
    Read {
        /// First byte.
        addr: VirtAddr,
        /// Where the bytes go; its length is the read's.
        buf: Vec<u8>,
    },
    /// Reads as many bytes at `addr` as `to` has, and puts them there as they come. At most 2^31 bytes.
    ReadTo {
        /// First byte.
        addr: VirtAddr,
        /// Where the bytes go.
        to: Spot,
    },
    /// Reads as many bytes as `buf` has of the node that a switch on the way finds for `key`: 1 byte to one path MTU (PROTOCOL 15.9).
    KeyedRead {
        /// The key.
        key: u64,
        /// Where the bytes go; its length is the read's.
        buf: Vec<u8>,
    },
    /// Reads pieces of one length, each at an address of its own, into `buf`, one behind the other: 1 to [`PIECES_MAX`](farmem_wire::gather::PIECES_MAX) of them, whose addresses fit one packet.
    /// Only of peers that are memory nodes of farmem (PROTOCOL 4.30).
    Gather {
        /// Where they begin.
        addrs: Vec<VirtAddr>,
        /// Where the bytes go; its length is that of all pieces together.
        buf: Vec<u8>,
    },
    /// Writes `buf` at `addr`. At most 2^31 bytes.
    Write {
        /// First byte.
        addr: VirtAddr,
        /// The bytes.
        buf: Vec<u8>,
    },
    /// Writes as many bytes as `from` has at `addr`, and takes them from there as they leave. At most 2^31 bytes.
    WriteFrom {
        /// First byte.
        addr: VirtAddr,
        /// Where the bytes are until it has ended.
        from: Stretch,
    },
    /// Compares and swaps the word at `addr`.
    CmpSwap {
        /// The word; a multiple of 8.
        addr: VirtAddr,
        /// What must be there.
        compare: u64,
        /// What replaces it.
        swap: u64,
    },
    /// Adds to the word at `addr`, wrapping.
    FetchAdd {
        /// The word; a multiple of 8.
        addr: VirtAddr,
        /// What is added.
        add: u64,
    },
}

impl Work {
    /// The first byte that it is about; of a keyed READ, which knows none, the key; of a gather READ that of its first piece.
    #[must_use]
    pub fn addr(&self) -> VirtAddr {
        match self {
            Self::Read { addr, .. }
            | Self::ReadTo { addr, .. }
            | Self::Write { addr, .. }
            | Self::WriteFrom { addr, .. }
            | Self::CmpSwap { addr, .. }
            | Self::FetchAdd { addr, .. } => *addr,
            Self::KeyedRead { key, .. } => VirtAddr(*key),
            Self::Gather { addrs, .. } => addrs.first().copied().unwrap_or(VirtAddr(0)),
        }
    }

    /// Where it is about bytes: an address and a length for each piece.
    pub fn places(&self) -> impl Iterator<Item = (VirtAddr, u64)> {
        let (one, many, each) = match self {
            Self::Gather { addrs, buf } => (None, &addrs[..], buf.len() / addrs.len().max(1)),
            other => (Some((other.addr(), other.span())), &[][..], 0),
        };
        one.into_iter().chain(many.iter().map(move |addr| (*addr, each as u64)))
    }

    /// Bytes that it is about.
    #[must_use]
    pub const fn span(&self) -> u64 {
        match self {
            Self::Read { buf, .. }
            | Self::KeyedRead { buf, .. }
            | Self::Gather { buf, .. }
            | Self::Write { buf, .. } => buf.len() as u64,
            Self::ReadTo { to, .. } => to.len() as u64,
            Self::WriteFrom { from, .. } => from.len() as u64,
            Self::CmpSwap { .. } | Self::FetchAdd { .. } => 8,
        }
    }

    /// True when it compares and swaps, or adds.
    #[must_use]
    pub const fn is_atomic(&self) -> bool {
        matches!(self, Self::CmpSwap { .. } | Self::FetchAdd { .. })
    }

    /// True for an atomic whose word is no multiple of 8. The node would answer with a NAK, and the connection would be gone with all that is under way on it
    /// (PROTOCOL 11.2).
    #[must_use]
    pub fn is_misaligned(&self) -> bool {
        self.is_atomic() && !self.addr().0.is_multiple_of(8)
    }

    /// The buffer of a READ or WRITE; empty where there is none.
    #[must_use]
    pub fn buf(&self) -> &[u8] {
        match self {
            Self::Read { buf, .. }
            | Self::KeyedRead { buf, .. }
            | Self::Gather { buf, .. }
            | Self::Write { buf, .. } => buf,
            Self::ReadTo { .. } | Self::WriteFrom { .. } | Self::CmpSwap { .. } | Self::FetchAdd { .. } => {
                &[]
            }
        }
    }

    /// The buffer, back for reuse; an empty one where there is none.
    #[inline]
    #[must_use]
    pub fn into_buf(self) -> Vec<u8> {
        match self {
            Self::Read { buf, .. }
            | Self::KeyedRead { buf, .. }
            | Self::Gather { buf, .. }
            | Self::Write { buf, .. } => buf,
            Self::ReadTo { .. } | Self::WriteFrom { .. } | Self::CmpSwap { .. } | Self::FetchAdd { .. } => {
                Vec::new()
            }
        }
    }
}

/// How a request ended. Every posted request ends exactly once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The id it was posted with.
    pub id: u64,
    /// The old value for an atomic, 0 for a READ or WRITE; or why it failed.
    pub result: Result<u64, Failure>,
    /// What was posted, with its buffer: a READ's is filled when it succeeded.
    pub work: Work,
}

/// Why a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// NAK 0x62: wrong key, unknown address, or no permission; or it leaves the address space and was never sent.
    RemoteAccess,
    /// NAK 0x61: the responder does not take this request (a misaligned atomic, say), or it is longer than 2^31 bytes and was never sent.
    InvalidRequest,
    /// NAK 0x63: the responder could not do it.
    RemoteOperational,
    /// No answer after `retries_max` tries: the peer or the path is gone.
    RetriesExceeded,
    /// The responder was not ready `rnr_retries_max` times in a row.
    RnrRetriesExceeded,
    /// An earlier request failed and took the connection with it; this one may or may not have been executed.
    Flushed,
}

/// What happened on a connection: trace line, metric and coverage mark in one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Note {
    /// A packet was not for this state of the connection and was dropped.
    Dropped(DropReason),
    /// Requester: sent again from the oldest unacknowledged PSN, after a timeout.
    TimedOut,
    /// Requester: went back to this PSN after a NAK 0x60.
    WentBack,
    /// Requester: a READ response or atomic answer was overtaken; asked again.
    ImpliedNak,
    /// Requester: waits because the responder is not ready.
    RnrWait,
    /// Requester: the connection is in error, with everything outstanding flushed.
    Broken(Failure),
    /// Responder: a gap; NAK 0x60 sent.
    NakSequence,
    /// Responder: refused a request; NAK 0x61 or 0x62 sent.
    Refused(crate::AccessError),
    /// Responder: opcode order or length was wrong; NAK 0x61 sent.
    InvalidRequest,
    /// Responder: a duplicate WRITE was acknowledged again, not executed.
    DuplicateWrite,
    /// Responder: a duplicate READ was executed again.
    DuplicateRead,
    /// Responder: a duplicate READ was executed on other addresses than the first time (PROTOCOL 15.8), or a duplicate gather READ.
    DuplicateElsewhere,
    /// Responder: a duplicate atomic was answered from memory, not executed.
    DuplicateAtomic,
    /// Responder: a duplicate READ or atomic too old to answer.
    DuplicateForgotten,
    /// Memory was not ready for a READ: it comes again later.
    NotReady,
}

/// Why a packet was dropped without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// Not from the port the connection is with.
    WrongPort,
    /// A response the requester does not wait for: old, repeated or ahead.
    Unexpected,
    /// A response with the wrong opcode or length for its place.
    Misshapen,
    /// The connection is in error.
    Broken,
    /// Ahead of the gap that a NAK was already sent for.
    AfterGap,
    /// An opcode this half does not handle.
    Opcode,
}
