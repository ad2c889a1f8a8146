//! Reliable connections (docs/protocol/04-reliable-connections.md): a [`Requester`] or [`Responder`] is one
//! half of a queue pair.

mod job;
mod part;
mod requester;
mod responder;
mod rnr;
mod sink;
mod source;

pub use part::Part;
pub use requester::Requester;
pub use responder::Responder;
pub use sink::{Arrivals, PayloadSink, SinkPart};
pub use source::{PayloadSource, SourcePart};

use alloc::vec::Vec;
use farmem_machine::{Duration, Port};
use farmem_wire::{Domain, Pmtu, Psn, Qpn, Rkey, VirtAddr};

/// The configuration of a requester half. The control plane sets it.
#[derive(Clone, Copy, Debug)]
pub struct RequesterConfig {
    /// Queue pair number of the requester.
    pub qpn: Qpn,
    /// Queue pair number of the responder.
    pub peer_qpn: Qpn,
    /// Port of the responder.
    pub port: Port,
    /// PSN of the first request.
    pub first_psn: Psn,
    /// Key that the requests show.
    pub rkey: Rkey,
    /// Path MTU, the same at both ends.
    pub pmtu: Pmtu,
    /// Most unacknowledged PSNs; 1 to [`WINDOW_MAX`] (PROTOCOL 4.7).
    pub window_psns: u32,
    /// Most outstanding READ requests and atomics; 1 to [`RESPONDER_DEPTH`], the responder's memory of
    /// duplicates.
    pub depth: u32,
    /// Requests that may wait for the window.
    pub queue_max: usize,
    /// Time without progress after which all unacknowledged packets are retransmitted; more than zero.
    pub timeout: Duration,
    /// Retransmissions before the connection fails.
    pub retries_max: u32,
    /// Consecutive RNR NAKs before the connection fails.
    pub rnr_retries_max: u32,
}

/// READs and atomics that a responder remembers for duplicates (PROTOCOL 4.21, 4.22).
pub const RESPONDER_DEPTH: u32 = 16;

/// Most unacknowledged PSNs of a connection (PROTOCOL 4.7).
pub const WINDOW_MAX: u32 = 128;

/// Most packets of one WRITE between acknowledgement requests (PROTOCOL 4.6).
pub const ACK_REQ_EVERY: u32 = 64;

/// Bytes that one READ request packet asks for at most. A longer READ is split into several requests
/// (PROTOCOL 4.8).
pub const READ_SEGMENT_MAX: u32 = 64 * 1024;

/// Most bytes with which a responder answers one READ request packet: bounds the burst that 28 bytes can
/// cause. More than [`READ_SEGMENT_MAX`], because other requesters do not split their READs (PROTOCOL 4.24).
pub const READ_LEN_MAX: u32 = 1024 * 1024;

// The PSNs of a split READ are those of the whole READ only if every segment but the last fills its packets.
const _: () =
    assert!(READ_SEGMENT_MAX.is_multiple_of(Pmtu::B4096 as u32) && READ_SEGMENT_MAX <= READ_LEN_MAX);

/// The configuration of a responder half. The control plane sets it.
#[derive(Clone, Copy, Debug)]
pub struct ResponderConfig {
    /// Queue pair number of the responder.
    pub qpn: Qpn,
    /// Queue pair number of the requester.
    pub peer_qpn: Qpn,
    /// Port of the requester.
    pub port: Port,
    /// PSN of the first request.
    pub expected_psn: Psn,
    /// Key that the requests must show.
    pub rkey: Rkey,
    /// Domain of the requests.
    pub domain: Domain,
    /// Path MTU, the same at both ends.
    pub pmtu: Pmtu,
}

/// One request on a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Reads `buf.len()` bytes at `addr` into `buf`. At most 2^31 bytes.
    Read {
        /// Address of the first byte.
        addr: VirtAddr,
        /// Buffer for the bytes; its length is the length of the READ.
        buf: Vec<u8>,
    },
    /// Reads `to.len()` bytes at `addr` into `to` as they arrive. At most 2^31 bytes.
    ReadTo {
        /// Address of the first byte.
        addr: VirtAddr,
        /// Destination of the bytes.
        to: SinkPart,
    },
    /// Reads `buf.len()` bytes of the node that a switch on the path finds for `key`: 1 byte to one path MTU
    /// (PROTOCOL 15.9).
    KeyedRead {
        /// The key.
        key: u64,
        /// Buffer for the bytes; its length is the length of the READ.
        buf: Vec<u8>,
    },
    /// Reads pieces of equal length at several addresses into `buf`, one behind the other. The number of
    /// pieces is 1 to [`PIECES_MAX`](farmem_wire::gather::PIECES_MAX), and their addresses must fit one
    /// packet. Only farmem memory nodes support this (PROTOCOL 4.30).
    Gather {
        /// Addresses of the pieces.
        addrs: Vec<VirtAddr>,
        /// Buffer for the bytes; its length is the total length of the pieces.
        buf: Vec<u8>,
    },
    /// Writes `buf` at `addr`. At most 2^31 bytes.
    Write {
        /// Address of the first byte.
        addr: VirtAddr,
        /// The bytes.
        buf: Vec<u8>,
    },
    /// Writes `from.len()` bytes at `addr`, and reads them from `from` as packets are sent. At most 2^31
    /// bytes.
    WriteFrom {
        /// Address of the first byte.
        addr: VirtAddr,
        /// Source of the bytes; must stay valid until the request completes.
        from: SourcePart,
    },
    /// Compares and swaps the word at `addr`.
    CmpSwap {
        /// Address of the word; a multiple of 8.
        addr: VirtAddr,
        /// Value that must be there.
        compare: u64,
        /// Value that replaces it.
        swap: u64,
    },
    /// Adds to the word at `addr`, wrapping.
    FetchAdd {
        /// Address of the word; a multiple of 8.
        addr: VirtAddr,
        /// Value to add.
        add: u64,
    },
}

impl Work {
    /// Returns the address of the first byte; for a keyed READ the key, for a gather READ the address of the
    /// first piece.
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

    /// Returns the accessed ranges: an address and a length for each piece.
    pub fn places(&self) -> impl Iterator<Item = (VirtAddr, u64)> {
        let (one, many, each) = match self {
            Self::Gather { addrs, buf } => (None, &addrs[..], buf.len() / addrs.len().max(1)),
            other => (Some((other.addr(), other.span())), &[][..], 0),
        };
        one.into_iter().chain(many.iter().map(move |addr| (*addr, each as u64)))
    }

    /// Returns the total length in bytes.
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

    /// Returns true for a compare-and-swap or a fetch-and-add.
    #[must_use]
    pub const fn is_atomic(&self) -> bool {
        matches!(self, Self::CmpSwap { .. } | Self::FetchAdd { .. })
    }

    /// Returns true for an atomic whose address is not a multiple of 8. The node would answer with a NAK,
    /// which breaks the connection with all its outstanding requests (PROTOCOL 11.2).
    #[must_use]
    pub fn is_misaligned(&self) -> bool {
        self.is_atomic() && !self.addr().0.is_multiple_of(8)
    }

    /// Returns the buffer of a READ or WRITE; empty if there is none.
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

    /// Returns the buffer for reuse; an empty one if there is none.
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

/// The outcome of a request. Every posted request completes exactly once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Id of the request.
    pub id: u64,
    /// The old value for an atomic, 0 for a READ or WRITE; or the failure.
    pub result: Result<u64, Failure>,
    /// The posted request with its buffer. After a successful READ the buffer is filled.
    pub work: Work,
}

/// The cause of a failed request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// NAK 0x62: wrong key, unknown address, or no permission. Also a request that exceeds the address space;
    /// it was never sent.
    RemoteAccess,
    /// NAK 0x61: the responder does not support this request (a misaligned atomic, say). Also a request of
    /// more than 2^31 bytes; it was never sent.
    InvalidRequest,
    /// NAK 0x63: the responder could not carry out the request.
    RemoteOperational,
    /// No answer after `retries_max` retransmissions: the peer or the path failed.
    RetriesExceeded,
    /// The responder was not ready `rnr_retries_max` times in a row.
    RnrRetriesExceeded,
    /// An earlier request failed and broke the connection. This request may or may not have been executed.
    Flushed,
}

/// An event on a connection: trace line, metric and coverage mark in one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Note {
    /// A packet did not match the state of the connection and was dropped.
    Dropped(DropReason),
    /// Requester: retransmits from the oldest unacknowledged PSN, after a timeout.
    TimedOut,
    /// Requester: went back to this PSN after a NAK 0x60.
    WentBack,
    /// Requester: a later answer overtook a READ response or atomic answer, and the requester repeats the
    /// request.
    ImpliedNak,
    /// Requester: waits because the responder is not ready.
    RnrWait,
    /// Requester: the connection is in error, and all outstanding requests are flushed.
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
    /// Responder: a duplicate atomic was answered with its saved result, not executed.
    DuplicateAtomic,
    /// Responder: a duplicate READ or atomic was too old to answer.
    DuplicateForgotten,
    /// Responder: memory was not ready for a request; RNR NAK sent.
    NotReady,
}

/// The reason why a packet was dropped without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// The packet is not from the connection's peer port.
    WrongPort,
    /// A response that the requester does not expect: old, duplicate or ahead.
    Unexpected,
    /// A response with the wrong opcode or length for its PSN.
    Misshapen,
    /// The connection is in error.
    Broken,
    /// The packet is ahead of a gap for which a NAK was already sent.
    AfterGap,
    /// This half does not handle the opcode.
    Opcode,
}
