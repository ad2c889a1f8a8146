//! What a program and its DPU say to each other about far memory and about what was prefetched of it (PD3 6.1, 6.2; PROTOCOL 18).
//!
//! Key types: [`Request`], [`Response`]. Both stand one behind the other in a batch, so each says its own length. Fields are the paper's, big-endian, as everywhere on the wire; the
//! paper does not say. Keys have a length of their own (the paper's have one for all), and a prefetched item names its record's version.
//!
//! ```text
//!   0 read      | op 2b id 14b | region 2 | offset 4 | size 4               answer | op 2b id 14b | size 4 | data
//!   1 write     | op 2b id 14b | region 2 | offset 4 | size 4 | data        answer | op 2b id 14b | size 4
//!   2 prefetch  | op 2b id 14b | key length 2 | key                         answer | op 2b id 14b | size 31b state 1b | version 8 | key length 2 | key | data
//!   3                                                                       failed | op 2b id 14b | status 4
//! ```
//!
//! What it does not do: say which regions there are (that goes over the socket), or how batches lie in a ring.

use crate::WireError;
use crate::reader::{Put as _, Reader};
use crate::soda::Ended;
use alloc::vec::Vec;

/// Requests that one program has under way at most: numbers have 14 bits.
pub const IDS: u16 = 1 << 14;
/// Bytes that one request reads or writes, at most.
pub const SIZE_MAX: u32 = 1 << 30;
/// Bytes of a prefetched value, at most: its size has 31 bits.
pub const VALUE_MAX: u32 = (1 << 31) - 1;
/// Bytes of a key, at most.
pub const KEY_MAX: usize = 0xffff;

const READ: u8 = 0;
const WRITE: u8 = 1;
const PREFETCH: u8 = 2;
const FAILED: u8 = 3;
/// Bytes of a prefetch before its key.
const KEY_AT: usize = 4;

/// A request's number, below [`IDS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id(u16);

impl Id {
    /// The number `n`.
    ///
    /// # Panics
    /// When it is [`IDS`] or more.
    #[must_use]
    pub const fn new(n: u16) -> Self {
        assert!(n < IDS, "numbers of requests have 14 bits");
        Self(n)
    }

    /// The number.
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

/// Bytes of a region of far memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The region, by the program's number.
    pub region: u16,
    /// The first byte.
    pub offset: u32,
    /// Bytes, 1 to [`SIZE_MAX`]; with `offset` at most 2^32.
    pub size: u32,
}

impl Place {
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

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// Bring these bytes.
    Read {
        /// Its number.
        id: Id,
        /// Which bytes.
        place: Place,
    },
    /// These bytes are to be in far memory.
    Write {
        /// Its number.
        id: Id,
        /// Where; as many as `data` has.
        place: Place,
        /// The bytes.
        data: &'a [u8],
    },
    /// Bring the item of this key into the loading zone.
    Prefetch {
        /// Its number.
        id: Id,
        /// The key, 1 to [`KEY_MAX`] bytes.
        key: &'a [u8],
    },
}

/// The front of a request whose data or key lies behind it, where they are not looked at (PROTOCOL 18.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front {
    /// Of [`Request::Read`].
    Read {
        /// Its number.
        id: Id,
        /// Which bytes.
        place: Place,
    },
    /// Of [`Request::Write`].
    Write {
        /// Its number.
        id: Id,
        /// Where, and how many bytes follow.
        place: Place,
    },
    /// Of [`Request::Prefetch`].
    Prefetch {
        /// Its number.
        id: Id,
        /// Bytes of the key that follows, 1 to [`KEY_MAX`].
        key_len: u16,
    },
}

impl Front {
    /// Takes the front at the beginning of these bytes: the first [`Request::LEN`] of a request have it, or all of a shorter one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        Self::read(&mut Reader::new("the front of a request to the DPU", bytes))
    }

    /// Bytes of the whole request.
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
            READ => Self::Read { id, place: Place::read(r)? },
            WRITE => Self::Write { id, place: Place::read(r)? },
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

    /// Takes the request at the front of a batch, and says what is behind it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn take(batch: &'a [u8]) -> Result<(Self, &'a [u8]), WireError> {
        let mut r = Reader::new("a request to the DPU", batch);
        let request = match Front::read(&mut r)? {
            Front::Read { id, place } => Self::Read { id, place },
            Front::Write { id, place } => Self::Write { id, place, data: r.take(place.size as usize)? },
            Front::Prefetch { id, key_len } => Self::Prefetch { id, key: r.take(key_len.into())? },
        };
        Ok((request, r.rest()))
    }

    /// Its number.
    #[must_use]
    pub const fn id(&self) -> Id {
        match *self {
            Self::Read { id, .. } | Self::Write { id, .. } | Self::Prefetch { id, .. } => id,
        }
    }

    /// Bytes that must be kept for its answer before it is sent on: six, and what it reads (PD3 6.1). An item that is prefetched has no place there.
    #[must_use]
    pub const fn answer_len(&self) -> usize {
        match *self {
            Self::Read { place, .. } => Response::LEN + place.size as usize,
            Self::Write { .. } | Self::Prefetch { .. } => Response::LEN,
        }
    }

    /// Appends it.
    ///
    /// # Panics
    /// When its place is none, a write has another number of bytes than it says, or a key has no byte or too many.
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

/// The front of an answer whose data lies apart (PROTOCOL 18.25).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Head {
    /// The bytes that were asked for are there.
    Read {
        /// The request's number.
        id: Id,
        /// How many, 1 to [`SIZE_MAX`].
        size: u32,
    },
    /// The bytes are in far memory.
    Written {
        /// The request's number.
        id: Id,
        /// How many, 1 to [`SIZE_MAX`].
        size: u32,
    },
    /// Nothing came of it.
    Failed {
        /// The request's number.
        id: Id,
        /// Why; never [`Ended::Done`].
        why: Ended,
    },
}

impl Head {
    /// The front of these bytes.
    ///
    /// # Errors
    /// What is wrong with it.
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

    /// Its bytes.
    ///
    /// # Panics
    /// When a size is none, or a request failed because it was done.
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

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Response<'a> {
    /// The bytes that were asked for.
    Read {
        /// The request's number.
        id: Id,
        /// All of them, 1 to [`SIZE_MAX`].
        data: &'a [u8],
    },
    /// The bytes are in far memory.
    Written {
        /// The request's number.
        id: Id,
        /// How many.
        size: u32,
    },
    /// An item for the loading zone.
    Item {
        /// The request's number.
        id: Id,
        /// The version of its record.
        version: u64,
        /// Its key, 1 to [`KEY_MAX`] bytes.
        key: &'a [u8],
        /// Its value, at most [`VALUE_MAX`] bytes.
        data: &'a [u8],
    },
    /// Nothing came of it.
    Failed {
        /// The request's number.
        id: Id,
        /// Why; never [`Ended::Done`].
        why: Ended,
    },
}

impl<'a> Response<'a> {
    /// Bytes of an answer before its data (PD3 6.1).
    pub const LEN: usize = 6;

    /// Takes the answer at the front of a batch, and says what is behind it.
    ///
    /// # Errors
    /// What is wrong with it.
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
                // The state of an item on its way is always the same: PRODUCED.
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

    /// The number of its request.
    #[must_use]
    pub const fn id(&self) -> Id {
        match *self {
            Self::Read { id, .. }
            | Self::Written { id, .. }
            | Self::Item { id, .. }
            | Self::Failed { id, .. } => id,
        }
    }

    /// Appends it.
    ///
    /// # Panics
    /// When a size is none, a key has no byte or too many, or a request failed because it was done.
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
