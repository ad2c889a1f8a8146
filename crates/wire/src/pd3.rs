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

impl<'a> Request<'a> {
    /// Bytes of a read, and of a write before its data (PD3 6.1).
    pub const LEN: usize = 12;

    /// Takes the request at the front of a batch, and says what is behind it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn take(batch: &'a [u8]) -> Result<(Self, &'a [u8]), WireError> {
        let mut r = Reader::new("a request to the DPU", batch);
        let (op, id) = Id::read(&mut r)?;
        let request = match op {
            READ => Self::Read { id, place: Place::read(&mut r)? },
            WRITE => {
                let place = Place::read(&mut r)?;
                Self::Write { id, place, data: r.take(place.size as usize)? }
            }
            PREFETCH => Self::Prefetch { id, key: key(&mut r)? },
            value => {
                return Err(WireError::Unknown { what: "the operation of a request", value: value.into() });
            }
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

fn key<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], WireError> {
    match r.u16()? {
        0 => Err(WireError::Unknown { what: "the length of a key", value: 0 }),
        len => r.take(len.into()),
    }
}

fn emit_key(key: &[u8], out: &mut Vec<u8>) {
    let len = u16::try_from(key.len()).ok().filter(|&len| len > 0);
    out.put_u16(len.expect("a key has 1 to 65,535 bytes"));
    out.extend_from_slice(key);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The front of an answer is what the whole answer begins with, and is read back; sizes and states that cannot be are refused.
    #[test]
    fn the_front_of_an_answer_stands_alone() {
        let id = Id::new(IDS - 1);
        let heads = [
            Head::Read { id, size: 3 },
            Head::Written { id, size: SIZE_MAX },
            Head::Failed { id, why: Ended::Lost },
        ];
        for head in heads {
            assert_eq!(Head::parse(head.emit()), Ok(head));
        }
        let mut whole = Vec::new();
        Response::Read { id, data: &[7; 3] }.emit(&mut whole);
        assert_eq!(whole[..Response::LEN], heads[0].emit());
        for bytes in [
            [0; 6],
            [0x40, 0, 0, 0, 0, 0],
            [0x80, 0, 0, 0, 0, 1],
            [0xc0, 0, 0, 0, 0, 0],
            [0xc0, 0, 0, 0, 1, 1],
        ] {
            assert!(Head::parse(bytes).is_err(), "{bytes:?}");
        }
    }
    use alloc::format;
    use alloc::string::String;
    use proptest::collection::vec;
    use proptest::prelude::{Strategy, any, prop_assert_eq, prop_oneof, proptest};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn asked_as(request: &Request<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        request.emit(&mut out);
        out
    }

    fn said_as(response: &Response<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        response.emit(&mut out);
        out
    }

    /// The paper's fields at the paper's places: 2 bits, 14 bits, 2, 4 and 4 bytes of a request; 2 bits, 14 bits and 4 bytes of an answer; 31 bits and 1 bit of an item.
    #[test]
    fn the_formats_of_section_six() {
        let id = Id::new(0x2bcd);
        let place = Place { region: 0x1234, offset: 0x5678_9abc, size: 3 };
        let same = |bytes: Vec<u8>, expected: &str| assert_eq!(hex(&bytes), expected.replace(' ', ""));
        same(asked_as(&Request::Read { id, place }), "2bcd 1234 56789abc 00000003");
        same(asked_as(&Request::Write { id, place, data: b"abc" }), "6bcd 1234 56789abc 00000003 616263");
        same(asked_as(&Request::Prefetch { id, key: b"key" }), "abcd 0003 6b6579");
        same(said_as(&Response::Read { id, data: b"abc" }), "2bcd 00000003 616263");
        same(said_as(&Response::Written { id, size: 3 }), "6bcd 00000003");
        let item = Response::Item { id, version: 0x0102_0304_0506_0708, key: b"key", data: b"abc" };
        same(said_as(&item), "abcd 00000006 0102030405060708 0003 6b6579 616263");
        same(said_as(&Response::Failed { id, why: Ended::Lost }), "ebcd 00000002");
    }

    /// Room for the answers of a batch is six bytes for each, and what is read.
    #[test]
    fn room_is_kept_before_it_is_needed() {
        let (id, place) = (Id::new(1), Place { region: 0, offset: 0, size: 64 });
        let data = [0; 64];
        let batch = [
            Request::Read { id, place },
            Request::Write { id, place, data: &data },
            Request::Prefetch { id, key: b"k" },
        ];
        assert_eq!(batch.iter().map(Request::answer_len).sum::<usize>(), 3 * 6 + 64);
    }

    /// Sizes that do not fit a region, numbers of no status, keys of no byte and an item that claims to be consumed are refused, each by name.
    #[test]
    fn what_cannot_be_is_refused() {
        let parsed = |text: &str| {
            let text = text.replace(' ', "");
            let bytes: Vec<u8> = (0..text.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
                .collect();
            let request = Request::take(&bytes).map(|_| ()).map_err(|e| format!("{e}"));
            (request, Response::take(&bytes).map(|_| ()).map_err(|e| format!("{e}")))
        };
        assert!(parsed("0001 0000 00000000 00000000").0.unwrap_err().contains("size of a request"));
        assert!(parsed("0001 0000 ffffffff 00000002").0.unwrap_err().contains("size of a request"));
        assert!(parsed("0001 0000 00000000 40000001").0.unwrap_err().contains("size of a request"));
        assert!(parsed("c001 0000").0.unwrap_err().contains("operation of a request"));
        assert!(parsed("8001 0000").0.unwrap_err().contains("length of a key"));
        assert!(parsed("0001 00000000").1.unwrap_err().contains("size of an answer"));
        assert!(parsed("8001 00000001 0000000000000001 0001 61").1.unwrap_err().contains("state of an item"));
        for code in ["00000000", "00000004", "00000101"] {
            assert!(parsed(&format!("c001 {code}")).1.unwrap_err().contains("status of an answer"), "{code}");
        }
    }

    fn ids() -> impl Strategy<Value = Id> {
        (0..IDS).prop_map(Id::new)
    }

    proptest! {
        /// Batches of requests and answers are read again one by one, as they were written; every shorter one ends in an error or short of the last.
        #[test]
        fn batches_survive_the_ring(
            parts in vec((ids(), 0..4_u8, any::<u16>(), any::<u32>(), vec(any::<u8>(), 1..40), vec(any::<u8>(), 1..60), any::<u64>()), 1..8),
        ) {
            let (mut asked, mut answered) = (Vec::new(), Vec::new());
            for (id, op, region, offset, key, data, version) in &parts {
                let (id, size) = (*id, u32::try_from(data.len()).unwrap());
                let place = Place { region: *region, offset: offset / 2, size };
                let why = Ended::Failed;
                let (request, response) = match op {
                    0 => (Request::Read { id, place }, Response::Read { id, data }),
                    1 => (Request::Write { id, place, data }, Response::Written { id, size }),
                    2 => (Request::Prefetch { id, key }, Response::Item { id, version: *version, key, data }),
                    _ => (Request::Read { id, place }, Response::Failed { id, why }),
                };
                asked.push(request);
                answered.push(response);
            }
            let (mut requests, mut responses) = (Vec::new(), Vec::new());
            asked.iter().for_each(|request| request.emit(&mut requests));
            answered.iter().for_each(|response| response.emit(&mut responses));
            let (mut requests, mut responses) = (&requests[..], &responses[..]);
            for (request, response) in asked.iter().zip(&answered) {
                let one = asked_as(request);
                prop_assert_eq!(Request::take(&one[..one.len() - 1]).is_err(), true);
                let (found, rest) = Request::take(requests).unwrap();
                prop_assert_eq!((found, found.id()), (*request, request.id()));
                requests = rest;
                let one = said_as(response);
                prop_assert_eq!(Response::take(&one[..one.len() - 1]).is_err(), true);
                let (found, rest) = Response::take(responses).unwrap();
                prop_assert_eq!((found, found.id()), (*response, response.id()));
                responses = rest;
            }
            prop_assert_eq!((requests.len(), responses.len()), (0, 0));
        }

        /// Bytes of a hostile end meet bounds: what is taken is written as it came, and is among them.
        #[test]
        fn any_bytes_are_refused_or_mean_themselves(bytes in prop_oneof![vec(any::<u8>(), 0..64), vec(0..4_u8, 0..64)]) {
            if let Ok((request, rest)) = Request::take(&bytes) {
                prop_assert_eq!(&asked_as(&request)[..], &bytes[..bytes.len() - rest.len()]);
            }
            if let Ok((response, rest)) = Response::take(&bytes) {
                prop_assert_eq!(&said_as(&response)[..], &bytes[..bytes.len() - rest.len()]);
            }
        }
    }
}
