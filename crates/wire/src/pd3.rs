//! Requests and responses between a program and its DPU, about far memory and prefetched items (PD3 6.1, 6.2;
//! PROTOCOL 18).
//!
//! Key types: [`Request`], [`Response`]. Both follow one another in a batch, so each has its own length.
//! Fields are the paper's, in big-endian order, as everywhere on the wire; the paper does not specify the
//! order. Two things differ from the paper: keys have lengths of their own (the paper's have one for all),
//! and a prefetched item has the version of its record.
//!
//! ```text
//!   0 read      | op 2b id 14b | region 2 | offset 4 | size 4               answer | op 2b id 14b | size 4 | data
//!   1 write     | op 2b id 14b | region 2 | offset 4 | size 4 | data        answer | op 2b id 14b | size 4
//!   2 prefetch  | op 2b id 14b | key length 2 | key                         answer | op 2b id 14b | size 31b state 1b | version 8 | key length 2 | key | data
//!   3                                                                       failed | op 2b id 14b | status 4
//! ```
//!
//! Not here: the list of regions, which the DPU's socket transfers, and the layout of batches in a ring.

use crate::WireError;
use crate::reader::{Put as _, Reader};
use crate::soda::Ended;
use alloc::vec::Vec;

/// Request ids of one program: 14 bits, so this is also the most requests in flight.
pub const IDS: u16 = 1 << 14;
/// Bytes that one request reads or writes at most.
pub const SIZE_MAX: u32 = 1 << 30;
/// Bytes of a prefetched value at most: its size has 31 bits.
pub const VALUE_MAX: u32 = (1 << 31) - 1;
/// Bytes of a key at most.
pub const KEY_MAX: usize = 0xffff;

const READ: u8 = 0;
const WRITE: u8 = 1;
const PREFETCH: u8 = 2;
const FAILED: u8 = 3;
/// Bytes of a prefetch before its key.
const KEY_AT: usize = 4;

/// The id of a request, below [`IDS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id(u16);

impl Id {
    /// Creates the id `n`.
    ///
    /// # Panics
    /// If `n` is [`IDS`] or more.
    #[must_use]
    pub const fn new(n: u16) -> Self {
        assert!(n < IDS, "numbers of requests have 14 bits");
        Self(n)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    fn emit(self, op: u8, out: &mut Vec<u8>) {
        out.put_u16(u16::from(op) << 14 | self.0);
    }

    fn read(r: &mut Reader<'_>) -> Result<(u8, Self), WireError> {
        let word = r.u16()?;
        Ok(((word >> 14) as u8, Self(word & (IDS - 1))))
    }
}

/// A range of a region of far memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RegionRange {
    /// The program's number of the region.
    pub region: u16,
    /// Offset of the first byte.
    pub offset: u32,
    /// Length in bytes, 1 to [`SIZE_MAX`]; with `offset` at most 2^32.
    pub size: u32,
}

impl RegionRange {
    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let place = Self { region: r.u16()?, offset: r.u32()?, size: r.u32()? };
        if place.is_right() {
            return Ok(place);
        }
        Err(WireError::Unknown { what: "the size of a request", value: place.size.into() })
    }

    const fn is_right(self) -> bool {
        self.size > 0 && self.size <= SIZE_MAX && self.offset as u64 + self.size as u64 <= 1 << 32
    }

    fn emit(self, out: &mut Vec<u8>) {
        assert!(self.is_right(), "a request has 1 byte to 1 GiB of a region");
        out.put_u16(self.region);
        out.put_u32(self.offset);
        out.put_u32(self.size);
    }
}

/// A request of a program to its DPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// Reads a range.
    Read {
        /// Id of the request.
        id: Id,
        /// The range.
        place: RegionRange,
    },
    /// Writes a range.
    Write {
        /// Id of the request.
        id: Id,
        /// The range; as long as `data`.
        place: RegionRange,
        /// The bytes.
        data: &'a [u8],
    },
    /// Prefetches the item of a key into the loading zone.
    Prefetch {
        /// Id of the request.
        id: Id,
        /// The key, 1 to [`KEY_MAX`] bytes.
        key: &'a [u8],
    },
}

/// The header of a request whose data or key is read separately (PROTOCOL 18.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front {
    /// Header of [`Request::Read`].
    Read {
        /// Id of the request.
        id: Id,
        /// The range.
        place: RegionRange,
    },
    /// Header of [`Request::Write`].
    Write {
        /// Id of the request.
        id: Id,
        /// The range; the data has its length.
        place: RegionRange,
    },
    /// Header of [`Request::Prefetch`].
    Prefetch {
        /// Id of the request.
        id: Id,
        /// Bytes of the key that follows, 1 to [`KEY_MAX`].
        key_len: u16,
    },
}

impl Front {
    /// Reads the header at the front of `bytes`, which has the first [`Request::LEN`] bytes of a request, or
    /// a whole shorter one.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        Self::read(&mut Reader::new("the front of a request to the DPU", bytes))
    }

    /// Returns the length of the whole request.
    #[must_use]
    pub const fn request_len(&self) -> usize {
        match *self {
            Self::Read { .. } => Request::LEN,
            Self::Write { place, .. } => Request::LEN + place.size as usize,
            Self::Prefetch { key_len, .. } => KEY_AT + key_len as usize,
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (op, id) = Id::read(r)?;
        Ok(match op {
            READ => Self::Read { id, place: RegionRange::read(r)? },
            WRITE => Self::Write { id, place: RegionRange::read(r)? },
            PREFETCH => Self::Prefetch { id, key_len: key_len(r)? },
            value => {
                return Err(WireError::Unknown { what: "the operation of a request", value: value.into() });
            }
        })
    }
}

impl<'a> Request<'a> {
    /// Bytes of a read, and of a write before its data (PD3 6.1).
    pub const LEN: usize = 12;

    /// Takes the request at the front of a batch; also returns the bytes behind it.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn take(batch: &'a [u8]) -> Result<(Self, &'a [u8]), WireError> {
        let mut r = Reader::new("a request to the DPU", batch);
        let request = match Front::read(&mut r)? {
            Front::Read { id, place } => Self::Read { id, place },
            Front::Write { id, place } => Self::Write { id, place, data: r.take(place.size as usize)? },
            Front::Prefetch { id, key_len } => Self::Prefetch { id, key: r.take(key_len.into())? },
        };
        Ok((request, r.rest()))
    }

    /// Returns the id of the request.
    #[must_use]
    pub const fn id(&self) -> Id {
        match *self {
            Self::Read { id, .. } | Self::Write { id, .. } | Self::Prefetch { id, .. } => id,
        }
    }

    /// Returns the bytes that the sender must reserve for the answer: six, and the bytes of a read (PD3 6.1).
    /// A prefetched item goes into the loading zone, so it is not counted.
    #[must_use]
    pub const fn answer_len(&self) -> usize {
        match *self {
            Self::Read { place, .. } => Response::LEN + place.size as usize,
            Self::Write { .. } | Self::Prefetch { .. } => Response::LEN,
        }
    }

    /// Appends the request.
    ///
    /// # Panics
    /// If the range is invalid, the data of a write differ from its size, or a key is empty or too long.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Read { id, place } => {
                id.emit(READ, out);
                place.emit(out);
            }
            Self::Write { id, place, data } => {
                assert_eq!(data.len(), place.size as usize, "a write has the bytes that it says");
                id.emit(WRITE, out);
                place.emit(out);
                out.extend_from_slice(data);
            }
            Self::Prefetch { id, key } => {
                id.emit(PREFETCH, out);
                emit_key(key, out);
            }
        }
    }
}

/// The header of a response whose data is separate (PROTOCOL 18.25).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Head {
    /// The requested bytes are available.
    Read {
        /// Id of the request.
        id: Id,
        /// Length, 1 to [`SIZE_MAX`].
        size: u32,
    },
    /// The bytes are in far memory.
    Written {
        /// Id of the request.
        id: Id,
        /// Length, 1 to [`SIZE_MAX`].
        size: u32,
    },
    /// The request failed.
    Failed {
        /// Id of the request.
        id: Id,
        /// Cause of the failure; never [`Ended::Done`].
        why: Ended,
    },
}

impl Head {
    /// Reads the header.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn parse(bytes: [u8; Response::LEN]) -> Result<Self, WireError> {
        let mut r = Reader::new("the front of an answer of the DPU", &bytes);
        let (op, id) = Id::read(&mut r)?;
        let size = r.u32()?;
        match op {
            READ | WRITE if size == 0 || size > SIZE_MAX => {
                Err(WireError::Unknown { what: "the size of an answer", value: size.into() })
            }
            READ => Ok(Self::Read { id, size }),
            WRITE => Ok(Self::Written { id, size }),
            FAILED => match Response::take(&bytes)? {
                (Response::Failed { id, why }, _) => Ok(Self::Failed { id, why }),
                _ => Err(WireError::Unknown { what: "the status of an answer", value: size.into() }),
            },
            value => Err(WireError::Unknown { what: "the operation of an answer", value: value.into() }),
        }
    }

    /// Returns the bytes of the header.
    ///
    /// # Panics
    /// If a size is invalid, or the cause of a failure is [`Ended::Done`].
    #[must_use]
    pub fn emit(self) -> [u8; Response::LEN] {
        let mut out = Vec::with_capacity(Response::LEN);
        match self {
            Self::Read { id, size } => {
                assert!((1..=SIZE_MAX).contains(&size), "a read has 1 byte to 1 GiB");
                id.emit(READ, &mut out);
                out.put_u32(size);
            }
            Self::Written { id, size } => Response::Written { id, size }.emit(&mut out),
            Self::Failed { id, why } => Response::Failed { id, why }.emit(&mut out),
        }
        out.try_into().expect("the front of an answer has six bytes")
    }
}

/// The response to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Response<'a> {
    /// The requested bytes.
    Read {
        /// Id of the request.
        id: Id,
        /// The bytes, 1 to [`SIZE_MAX`].
        data: &'a [u8],
    },
    /// The bytes are in far memory.
    Written {
        /// Id of the request.
        id: Id,
        /// Length of the write.
        size: u32,
    },
    /// An item for the loading zone.
    Item {
        /// Id of the request.
        id: Id,
        /// Version of the item's record.
        version: u64,
        /// Key of the item, 1 to [`KEY_MAX`] bytes.
        key: &'a [u8],
        /// Value of the item, at most [`VALUE_MAX`] bytes.
        data: &'a [u8],
    },
    /// The request failed.
    Failed {
        /// Id of the request.
        id: Id,
        /// Cause of the failure; never [`Ended::Done`].
        why: Ended,
    },
}

impl<'a> Response<'a> {
    /// Bytes of an answer before its data (PD3 6.1).
    pub const LEN: usize = 6;

    /// Takes the response at the front of a batch; also returns the bytes behind it.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn take(batch: &'a [u8]) -> Result<(Self, &'a [u8]), WireError> {
        let mut r = Reader::new("an answer of the DPU", batch);
        let (op, id) = Id::read(&mut r)?;
        let word = r.u32()?;
        let unknown = |what| WireError::Unknown { what, value: word.into() };
        let response = match op {
            READ | WRITE if word == 0 || word > SIZE_MAX => return Err(unknown("the size of an answer")),
            READ => Self::Read { id, data: r.take(word as usize)? },
            WRITE => Self::Written { id, size: word },
            PREFETCH => {
                // The state of an item on the wire is always PRODUCED.
                if word & 1 != 0 {
                    return Err(WireError::Reserved { what: "the state of an item" });
                }
                let (version, key) = (r.u64()?, key(&mut r)?);
                Self::Item { id, version, key, data: r.take((word >> 1) as usize)? }
            }
            _ => match u8::try_from(word).map(Ended::from_code) {
                Ok(Ok(why)) if why != Ended::Done => Self::Failed { id, why },
                _ => return Err(unknown("the status of an answer")),
            },
        };
        Ok((response, r.rest()))
    }

    /// Returns the id of the request.
    #[must_use]
    pub const fn id(&self) -> Id {
        match *self {
            Self::Read { id, .. }
            | Self::Written { id, .. }
            | Self::Item { id, .. }
            | Self::Failed { id, .. } => id,
        }
    }

    /// Appends the response.
    ///
    /// # Panics
    /// If a size is invalid, a key is empty or too long, or the cause of a failure is [`Ended::Done`].
    pub fn emit(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Read { id, data } => {
                id.emit(READ, out);
                out.put_u32(size(data.len()));
                out.extend_from_slice(data);
            }
            Self::Written { id, size } => {
                assert!((1..=SIZE_MAX).contains(&size), "a write has 1 byte to 1 GiB");
                id.emit(WRITE, out);
                out.put_u32(size);
            }
            Self::Item { id, version, key, data } => {
                id.emit(PREFETCH, out);
                let len = u32::try_from(data.len()).ok().filter(|&len| len <= VALUE_MAX);
                out.put_u32(len.expect("a value has less than 2 GiB") << 1);
                out.put_u64(version);
                emit_key(key, out);
                out.extend_from_slice(data);
            }
            Self::Failed { id, why } => {
                assert!(why != Ended::Done, "what is done has not failed");
                id.emit(FAILED, out);
                out.put_u32(why.code().into());
            }
        }
    }
}

fn size(len: usize) -> u32 {
    let size = u32::try_from(len).ok().filter(|size| (1..=SIZE_MAX).contains(size));
    size.expect("an answer has 1 byte to 1 GiB")
}

fn key_len(r: &mut Reader<'_>) -> Result<u16, WireError> {
    match r.u16()? {
        0 => Err(WireError::Unknown { what: "the length of a key", value: 0 }),
        len => Ok(len),
    }
}

fn key<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], WireError> {
    let len = key_len(r)?;
    r.take(len.into())
}

fn emit_key(key: &[u8], out: &mut Vec<u8>) {
    let len = u16::try_from(key.len()).ok().filter(|&len| len > 0);
    out.put_u16(len.expect("a key has 1 to 65,535 bytes"));
    out.extend_from_slice(key);
}

#[cfg(test)]
mod tests;
