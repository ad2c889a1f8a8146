//! farmem's messages: the payload of a UD SEND (PROTOCOL 3.1).
//!
//! Every message is a 24-byte [`Header`] and a [`Body`]. A request and its response have the same kind; a
//! response has [`Header::response`] set and a [`Status`]. A traversal's request and response have the same
//! format, so any node can continue any traversal (PULSE 4.2, 5).

use crate::reader::{Put, Reader, be16, be32, be64};
use crate::{Domain, HostId, RequestId, VirtAddr, WireError};
use alloc::vec::Vec;

mod batch;
mod coherence;
mod cookie_message;
mod directory_message;
mod file_message;
mod lead;
mod move_message;
mod page;
mod page_message;
mod soft_message;
mod traverse;
mod update;

/// Reads a header that has only version, kind and a number: messages about the directory, moves, images,
/// files and addresses have one (PROTOCOL 7.40, 8.74, 12.41, 13.2, 20.6).
fn read_numbered<'a>(what: &'static str, payload: &'a [u8]) -> Result<(u8, u64, Reader<'a>), WireError> {
    let mut r = Reader::new(what, payload);
    let [version, kind] = r.array()?;
    if version != VERSION {
        return Err(WireError::Unknown { what: "message.version", value: version.into() });
    }
    r.zero::<6>("message.reserved")?;
    let number = r.u64()?;
    r.zero::<8>("message.reserved")?;
    Ok((kind, number, r))
}

/// Appends the header that [`read_numbered`] reads.
fn put_numbered(out: &mut Vec<u8>, kind: u8, number: u64) {
    out.extend_from_slice(&[VERSION, kind, 0, 0, 0, 0, 0, 0]);
    out.put_u64(number);
    out.put_u64(0);
}

pub use batch::{Batch, PAIRS_MAX, Pair, PairBuf, Pairs};
pub use coherence::{
    Data, Done, Get, Grant, Part, Read, Recall, RecallAck, Refusal, WriteBack, WriteBackAck,
};
pub use cookie_message::{Cookie, CookieError, CookieMessage, GSI_QKEY, GSI_QPN};
pub use directory_message::{
    DirectoryBody, DirectoryMessage, Listing, ROWS_MAX, RegionRow, RegionRowKind, RegionRows, Sweep,
    UNKNOWN_MOVE,
};
pub use file_message::{
    FILE_NAME_MAX, FileBody, FileCause, FileFault, FileMessage, FileState, FileTask, is_file_name,
};
pub use lead::{Lead, LeadBody, SWITCHES_MAX};
pub use move_message::{MoveBody, MoveMessage, PageState};
pub use page::{
    Access, CACHING_HOSTS_MAX, FetchId, HostSet, PAGE_LEN, PAGE_SHIFT, Page, REGION_ORDER_FIRST,
    REGION_ORDER_MAX, Region, Seq,
};
pub use page_message::{PageBody, PageMessage};
pub use soft_message::{
    Count, Counts, ImageDigest, ImageFault, ImageId, ImageRule, ImageStatus, Load, Loading,
    SOFT_COUNTERS_MAX, SOFT_COUNTS_MAX, SOFT_IMAGE_MAX, SOFT_PART_MAX, SoftBody, SoftMessage, Verdict,
};
pub use traverse::{CODE_LEN_MAX, SCRATCH_LEN_MAX, Traverse};
pub use update::{Relayed, Update, Updates};

/// The message version of this crate. A request in another version is answered with [`Status::Version`]
/// (PROTOCOL 3.11).
pub const VERSION: u8 = 1;

/// Bytes of BTH, DETH and [`Header`] in front of every body.
pub const OVERHEAD: usize = crate::bth::LEN + crate::Deth::LEN + Header::LEN;

/// Bytes before the data of a region read or write: address and length.
pub const REGION_LEN: usize = 12;

/// The outcome of a request (PROTOCOL 3.5). Numbers are frozen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Status {
    /// Success. Every request has this status.
    #[default]
    Ok = 0,
    /// The traversal used up its iteration limit; the state in the response continues it (PULSE 3).
    IterationLimit = 1,
    /// The traversal crossed nodes more often than its hop budget allows; the state in the response continues
    /// it.
    HopLimit = 2,
    /// The node does not know the program; the host repeats the request with the code.
    UnknownProgram = 3,
    /// The verifier refused the code, or the code does not match its name.
    BadProgram = 4,
    /// No memory node owns the address, or it lies in no allocation.
    NotMapped = 5,
    /// The domain has no permission for this access.
    NoPermission = 6,
    /// Address and length exceed the region or the address space.
    OutOfBounds = 7,
    /// An atomic's address is not a multiple of 8.
    Misaligned = 8,
    /// The body is malformed; nothing was done.
    Malformed = 9,
    /// A bounded queue is full; nothing was done, and the host retries.
    Busy = 10,
    /// The program faulted: an index was outside its window or scratch pad.
    ProgramFault = 11,
    /// A table is full; nothing was changed.
    TableFull = 12,
    /// The receiver speaks another version of the messages.
    Version = 13,
    /// The receiver does not serve this kind of message.
    Unsupported = 14,
    /// A host may have later bytes of a page that would be read; the host retries in a moment (PROTOCOL
    /// 12.28). The state continues a traversal.
    Lent = 15,
    /// The latest bytes of a page that would be read died with a host (PROTOCOL 12.31).
    Lost = 16,
    /// Hosts cache the page coherently: nothing else may write it (PROTOCOL 12.46).
    Coherent = 17,
    /// The first pair's address does not route the whole batch. Nothing was done; the host sends each pair
    /// alone (PROTOCOL 6.25).
    Apart = 18,
    /// The request writes, and shows another life of the switch than the present one. Nothing was done.
    /// [`Header::domain`] of this response has the present life; the host shows it and retries under the same
    /// id (PROTOCOL 6.27).
    OtherLife = 19,
}

impl Status {
    /// Returns the status with this number.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Ok,
            1 => Self::IterationLimit,
            2 => Self::HopLimit,
            3 => Self::UnknownProgram,
            4 => Self::BadProgram,
            5 => Self::NotMapped,
            6 => Self::NoPermission,
            7 => Self::OutOfBounds,
            8 => Self::Misaligned,
            9 => Self::Malformed,
            10 => Self::Busy,
            11 => Self::ProgramFault,
            12 => Self::TableFull,
            13 => Self::Version,
            14 => Self::Unsupported,
            15 => Self::Lent,
            16 => Self::Lost,
            17 => Self::Coherent,
            18 => Self::Apart,
            19 => Self::OtherLife,
            _ => return None,
        })
    }
}

/// The kind of a message (PROTOCOL 3.4). Numbers are frozen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Reads bytes by address, for diagnosis.
    RegionRead = 0x01,
    /// Writes bytes by address, for diagnosis.
    RegionWrite = 0x02,
    /// Runs a traversal.
    Traverse = 0x10,
    /// Runs several traversals of one program.
    Batch = 0x11,
    /// Changes a role's tables; sent by the control plane.
    Update = 0x20,
}

impl Kind {
    /// Returns the kind with this number.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0x01 => Self::RegionRead,
            0x02 => Self::RegionWrite,
            0x10 => Self::Traverse,
            0x11 => Self::Batch,
            0x20 => Self::Update,
            _ => return None,
        })
    }
}

/// The first 24 bytes of every message (PROTOCOL 3.2); the first 16 stand at the same places in every version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Outcome; [`Status::Ok`] in a request.
    pub status: Status,
    /// True in a response.
    pub response: bool,
    /// True in a retransmitted request (PROTOCOL 5.2).
    pub again: bool,
    /// The protection domain, which the switch writes from the session that the request came over. A host's
    /// request has the life of the switch here instead, or 0 if the host knows none. A response with
    /// [`Status::OtherLife`] has the life too (PROTOCOL 6.27).
    pub domain: Domain,
    /// Id of the request; its response has the same.
    pub request: RequestId,
    /// The host that gets the response. Hosts send 0; the switch writes it from the session.
    pub origin: HostId,
    /// Remaining times that the message may be routed to a memory node.
    pub hops: u8,
}

impl Header {
    /// Bytes of a header.
    pub const LEN: usize = 24;
    const FLAG_RESPONSE: u8 = 1;
    const FLAG_AGAIN: u8 = 2;

    /// Creates a request's header as a host sends it.
    #[must_use]
    pub const fn request(request: RequestId, hops: u8) -> Self {
        Self {
            status: Status::Ok,
            response: false,
            again: false,
            domain: Domain(0),
            request,
            origin: HostId(0),
            hops,
        }
    }

    /// Returns the header of the response to this request.
    #[must_use]
    pub const fn answer(&self, status: Status) -> Self {
        Self { status, response: true, again: false, ..*self }
    }

    #[inline(always)]
    fn read(r: &mut Reader<'_>) -> Result<(Self, Kind), WireError> {
        Self::read_of(r, Kind::from_bits)
    }

    /// Reads the header of a message whose kind `known` accepts.
    #[inline(always)]
    fn read_of<K>(r: &mut Reader<'_>, known: impl FnOnce(u8) -> Option<K>) -> Result<(Self, K), WireError> {
        let bytes = r.fixed::<{ Self::LEN }>()?;
        let [version, kind, status, flags, ..] = *bytes;
        if version != VERSION {
            return Err(WireError::Unknown { what: "message.version", value: u64::from(version) });
        }
        let Some(kind) = known(kind) else {
            return Err(WireError::Unknown { what: "message.kind", value: u64::from(kind) });
        };
        let Some(status) = Status::from_bits(status) else {
            return Err(WireError::Unknown { what: "message.status", value: u64::from(status) });
        };
        let (response, again) = (flags & Self::FLAG_RESPONSE != 0, flags & Self::FLAG_AGAIN != 0);
        if flags & !(Self::FLAG_RESPONSE | Self::FLAG_AGAIN) != 0 || response && again {
            return Err(WireError::Reserved { what: "message.flags" });
        }
        if !response && status != Status::Ok {
            return Err(WireError::Unknown { what: "message.status of a request", value: status as u64 });
        }
        if be64(bytes, 16) & 0xff_ffff_ffff != 0 {
            return Err(WireError::Reserved { what: "message.reserved" });
        }
        let header = Self {
            status,
            response,
            again,
            domain: Domain(be32(bytes, 4)),
            request: RequestId(be64(bytes, 8)),
            origin: HostId(be16(bytes, 16)),
            hops: bytes[18],
        };
        Ok((header, kind))
    }

    #[inline(always)]
    fn bytes(&self, kind: Kind) -> [u8; Self::LEN] {
        self.bytes_of(kind as u8)
    }

    #[inline(always)]
    fn bytes_of(&self, kind: u8) -> [u8; Self::LEN] {
        assert!(self.response || self.status == Status::Ok, "a request has not ended yet");
        assert!(!(self.response && self.again), "a response is not sent again by a host");
        let flags = if self.response { Self::FLAG_RESPONSE } else { 0 };
        let flags = if self.again { Self::FLAG_AGAIN } else { flags };
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&[VERSION, kind, self.status as u8, flags]);
        bytes[4..8].copy_from_slice(&self.domain.0.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.request.0.to_be_bytes());
        bytes[16..18].copy_from_slice(&self.origin.0.to_be_bytes());
        bytes[18] = self.hops;
        bytes
    }

    /// Returns true for a successful response.
    const fn is_good_response(&self) -> bool {
        self.response && matches!(self.status, Status::Ok)
    }
}

/// The part of a message behind the header (PROTOCOL 3.6 to 3.10, 3.13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body<'a> {
    /// Reads `len` bytes at `addr`. A response with status `Ok` carries these bytes.
    RegionRead {
        /// Address of the first byte.
        addr: VirtAddr,
        /// Length in bytes; the response must fit one datagram.
        len: u32,
        /// The `len` bytes in a successful response; otherwise empty.
        data: &'a [u8],
    },
    /// Writes `data` at `addr`. In a response, `data` is empty and `len` is the number of bytes written.
    RegionWrite {
        /// Address of the first byte.
        addr: VirtAddr,
        /// Length in bytes.
        len: u32,
        /// The `len` bytes in a request; empty in a response.
        data: &'a [u8],
    },
    /// A traversal's program and state.
    Traverse(Traverse<'a>),
    /// A program and the states of several traversals.
    Batch(Batch<'a>),
    /// Table updates; see [`Updates`].
    Update(Updates<'a>),
}

impl Body<'_> {
    /// Returns the kind on the wire.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::RegionRead { .. } => Kind::RegionRead,
            Self::RegionWrite { .. } => Kind::RegionWrite,
            Self::Traverse(_) => Kind::Traverse,
            Self::Batch(_) => Kind::Batch,
            Self::Update(_) => Kind::Update,
        }
    }
}

/// A whole message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// The fixed part.
    pub header: Header,
    /// The part behind the header.
    pub body: Body<'a>,
}

impl<'a> Message<'a> {
    /// Reads a message. Checks every length, number and reserved field.
    ///
    /// # Errors
    /// [`WireError`] naming the field. Version and kind are checked first, so that a receiver can answer
    /// both.
    #[inline]
    pub fn parse(payload: &'a [u8]) -> Result<Self, WireError> {
        let raw = RawMessage::parse(payload)?;
        Ok(Self { header: raw.header, body: raw.body()? })
    }

    /// Appends the message.
    ///
    /// # Panics
    /// If header or body break a rule that their types document: a request with a status, a region's data of
    /// another length than `len`, code in a response, lengths above their bounds.
    #[inline]
    pub fn emit(&self, out: &mut Vec<u8>) {
        let header = &self.header;
        if let Body::Traverse(traverse) = &self.body {
            return traverse.emit(header, out);
        }
        out.extend_from_slice(&header.bytes(self.body.kind()));
        match &self.body {
            Body::RegionRead { addr, len, data } => {
                put_region(*addr, *len, data, header.is_good_response(), out);
            }
            Body::RegionWrite { addr, len, data } => put_region(*addr, *len, data, !header.response, out),
            Body::Traverse(_) => unreachable!("it was emitted above"),
            Body::Batch(batch) => batch.emit(header, out),
            Body::Update(updates) => updates.emit(header, out),
        }
    }

    /// Returns the number of bytes that [`Message::emit`] appends.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        Header::LEN
            + match &self.body {
                Body::RegionRead { data, .. } | Body::RegionWrite { data, .. } => REGION_LEN + data.len(),
                Body::Traverse(traverse) => traverse.len(),
                Body::Batch(batch) => batch.len(),
                Body::Update(updates) => updates.len(),
            }
    }

    /// Returns false: a message is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// A message whose header was parsed and whose body was not. For receivers that mostly get one kind, and
/// parse this kind directly.
#[derive(Clone, Copy, Debug)]
pub struct RawMessage<'a> {
    /// The fixed part.
    pub header: Header,
    /// Kind of the body.
    pub kind: Kind,
    payload: &'a [u8],
    body: &'a [u8],
}

impl<'a> RawMessage<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// As [`Message::parse`].
    #[inline(always)]
    pub fn parse(payload: &'a [u8]) -> Result<Self, WireError> {
        let mut r = Reader::new("message", payload);
        let (header, kind) = Header::read(&mut r)?;
        Ok(Self { header, kind, payload, body: r.rest() })
    }

    /// Reads the body.
    ///
    /// # Errors
    /// As [`Message::parse`].
    pub fn body(&self) -> Result<Body<'a>, WireError> {
        let header = &self.header;
        if self.kind == Kind::Traverse {
            return self.traverse().map(Body::Traverse);
        }
        let mut r = self.reader();
        let body = match self.kind {
            Kind::RegionRead => {
                let (addr, len, data) = region(&mut r, header.is_good_response())?;
                Body::RegionRead { addr, len, data }
            }
            Kind::RegionWrite => {
                let (addr, len, data) = region(&mut r, !header.response)?;
                Body::RegionWrite { addr, len, data }
            }
            Kind::Traverse => unreachable!("it was read above"),
            Kind::Batch => Body::Batch(Batch::read(&mut r, header)?),
            Kind::Update => Body::Update(Updates::read(&mut r, header)?),
        };
        r.end()?;
        Ok(body)
    }

    /// Reads the body of a message whose kind is [`Kind::Traverse`].
    ///
    /// # Errors
    /// The errors of [`Message::parse`].
    ///
    /// # Panics
    /// If the kind is another one.
    #[inline(always)]
    pub fn traverse(&self) -> Result<Traverse<'a>, WireError> {
        assert!(self.kind == Kind::Traverse, "a traversal is read of a traversal's message");
        let mut r = self.reader();
        let traverse = Traverse::read(&mut r, self.header.response)?;
        r.end()?;
        Ok(traverse)
    }

    #[inline(always)]
    fn reader(&self) -> Reader<'a> {
        Reader::behind("message", self.payload, self.body)
    }
}

/// Reads address, length and, if `with_data`, exactly that many bytes.
fn region<'a>(r: &mut Reader<'a>, with_data: bool) -> Result<(VirtAddr, u32, &'a [u8]), WireError> {
    let addr = VirtAddr(r.u64()?);
    let len = r.u32()?;
    let data = if with_data { r.take(len as usize)? } else { &[][..] };
    Ok((addr, len, data))
}

fn put_region(addr: VirtAddr, len: u32, data: &[u8], with_data: bool, out: &mut Vec<u8>) {
    let need = if with_data { len as usize } else { 0 };
    assert_eq!(data.len(), need, "a region's data are there exactly when they are due");
    out.put_u64(addr.0);
    out.put_u32(len);
    out.extend_from_slice(data);
}

#[cfg(test)]
mod tests;
