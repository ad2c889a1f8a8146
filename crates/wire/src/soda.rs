//! Records between a process and the DPU beside its host, about pages of far memory (SODA IV-B, table I).
//!
//! Key types: [`Request`], [`Answer`]. A record of a ring is four bytes of *immediate data*, which give its
//! kind, and a body, like an RDMA SEND with immediate data in the paper. The bodies of requests are the
//! paper's: 24 bytes for a read; 12 bytes and the data for a write. Numbers are big-endian, as everywhere on
//! the wire; the paper does not specify this.
//!
//! ```text
//!   immediate 4 |                                                             SODA, table I
//!   1 read      | region 2 | offset 6 | dest_addr 8 | size 4 | dest_rkey 4      (a)
//!   2 write     | region 2 | offset 6 | size 4 | data                           (b)
//!   4 write from | region 2 | offset 6 | src_addr 8 | size 4 | src_rkey 4        as (a)
//!   3 answer    | region 2 | offset 6 | size 4 | status 1 | of 1 | reserved 2 | data, when a read is answered by SEND
//! ```
//!
//! A read whose `dest_rkey` is 0 is answered by SEND, with the bytes. All other reads are answered by WRITE:
//! when the answer arrives, the bytes are at `dest_addr` of the process's registered memory. A write carries
//! its data, or names registered memory from which the DPU reads them, as in the paper's one-sided protocol
//! (IV-A). The paper's answers have no format of their own. An answer here names its request, so that
//! requests may complete in any order.

use crate::reader::{Put as _, Reader};
use crate::{Rkey, WireError};
use alloc::vec::Vec;

/// Addressable bytes of a region: offsets have 48 bits.
pub const REGION_MAX: u64 = 1 << 48;
/// Bytes of a page at most: the size of one request.
pub const SIZE_MAX: u32 = 1 << 20;

/// A range of a region. A region is an object of far memory, as one process knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// The process's number of the region.
    pub region: u16,
    /// Offset of the first byte, below [`REGION_MAX`].
    pub offset: u64,
    /// Length in bytes, 1 to [`SIZE_MAX`].
    pub size: u32,
}

/// The destination of a read's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dest {
    /// Behind the answer.
    Send,
    /// An address of the process's registered memory.
    Write {
        /// Offset of the first byte in the registered memory.
        addr: u64,
        /// Key of the registered memory; not 0.
        rkey: Rkey,
    },
}

/// A request of a process to the DPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// Reads a range.
    Read {
        /// The range.
        span: Span,
        /// Destination of the bytes.
        dest: Dest,
    },
    /// Writes the bytes behind the request to far memory.
    Write {
        /// The range; as long as `data`.
        span: Span,
        /// The bytes.
        data: &'a [u8],
    },
    /// Writes bytes of registered memory to far memory.
    WriteFrom {
        /// The range.
        span: Span,
        /// Offset of the first byte in the registered memory.
        addr: u64,
        /// Key of the registered memory; not 0.
        rkey: Rkey,
    },
}

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Ended {
    /// The request was carried out.
    Done = 0,
    /// Far memory did not answer. A write may or may not have been carried out.
    Failed = 1,
    /// The bytes are lost.
    Lost = 2,
    /// The request was refused: the process has no such access to the region, or the range exceeds the
    /// region.
    Refused = 3,
}

impl Ended {
    /// Returns the code on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    pub(crate) const fn from_code(code: u8) -> Result<Self, WireError> {
        Ok(match code {
            0 => Self::Done,
            1 => Self::Failed,
            2 => Self::Lost,
            3 => Self::Refused,
            value => return Err(WireError::Unknown { what: "the status of an answer", value: value as u64 }),
        })
    }
}

/// The DPU's answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer<'a> {
    /// Range of the request.
    pub span: Span,
    /// True if the request was a write.
    pub write: bool,
    /// Outcome of the request.
    pub ended: Ended,
    /// The bytes of a successful read that is answered by SEND; otherwise empty.
    pub data: &'a [u8],
}

const READ: u32 = 1;
const WRITE: u32 = 2;
const ANSWER: u32 = 3;
const WRITE_FROM: u32 = 4;
/// Bytes of immediate data.
const IMMEDIATE: usize = 4;

/// Bytes of the longest record.
pub const RECORD_MAX: usize = Answer::record_len(SIZE_MAX as usize);

impl Span {
    fn read(r: &mut Reader<'_>) -> Result<(u16, u64), WireError> {
        let word = r.u64()?;
        let region = (word >> 48) as u16;
        Ok((region, word & (REGION_MAX - 1)))
    }

    fn sized(region: u16, offset: u64, size: u32) -> Result<Self, WireError> {
        if size == 0 || size > SIZE_MAX {
            return Err(WireError::Unknown { what: "the size of a request", value: size.into() });
        }
        Ok(Self { region, offset, size })
    }

    fn emit(self, out: &mut Vec<u8>) {
        assert!(self.offset < REGION_MAX, "offsets have 48 bits");
        assert!((1..=SIZE_MAX).contains(&self.size), "a request has 1 byte to 1 MiB");
        out.put_u64(u64::from(self.region) << 48 | self.offset);
    }
}

impl<'a> Request<'a> {
    /// Bytes of a read's body (SODA, table I a).
    pub const READ_LEN: usize = 24;
    /// Bytes of a write's body before the data (SODA, table I b).
    pub const WRITE_LEN: usize = 12;

    /// Reads a record.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn parse(record: &'a [u8]) -> Result<Self, WireError> {
        let mut r = Reader::new("a request to the DPU", record);
        let kind = r.u32()?;
        let (region, offset) = match kind {
            READ | WRITE | WRITE_FROM => Span::read(&mut r)?,
            value => return Err(WireError::Unknown { what: "the immediate data", value: value.into() }),
        };
        if kind == WRITE {
            let span = Span::sized(region, offset, r.u32()?)?;
            let data = r.take(span.size as usize)?;
            r.end()?;
            return Ok(Self::Write { span, data });
        }
        let addr = r.u64()?;
        let span = Span::sized(region, offset, r.u32()?)?;
        let rkey = Rkey(r.u32()?);
        r.end()?;
        if kind == WRITE_FROM {
            let none = WireError::Unknown { what: "the key of registered memory", value: 0 };
            return if rkey.0 == 0 { Err(none) } else { Ok(Self::WriteFrom { span, addr, rkey }) };
        }
        let dest = if rkey.0 == 0 { Dest::Send } else { Dest::Write { addr, rkey } };
        Ok(Self::Read { span, dest })
    }

    /// Appends the record.
    ///
    /// # Panics
    /// If the span is invalid, the data of a write differ from its size, or the key of registered memory is
    /// 0.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Read { span, dest } => {
                let (addr, rkey) = match dest {
                    Dest::Send => (0, 0),
                    Dest::Write { addr, rkey } => (addr, rkey.0),
                };
                assert!(dest == Dest::Send || rkey != 0, "key 0 asks for a SEND");
                emit_at(READ, span, addr, rkey, out);
            }
            Self::WriteFrom { span, addr, rkey } => {
                assert!(rkey.0 != 0, "key 0 is none");
                emit_at(WRITE_FROM, span, addr, rkey.0, out);
            }
            Self::Write { span, data } => {
                assert_eq!(data.len(), span.size as usize, "a write has the bytes that it says");
                out.put_u32(WRITE);
                span.emit(out);
                out.put_u32(span.size);
                out.extend_from_slice(data);
            }
        }
    }
}

/// Appends a record about bytes at an address of registered memory.
fn emit_at(kind: u32, span: Span, addr: u64, rkey: u32, out: &mut Vec<u8>) {
    out.put_u32(kind);
    span.emit(out);
    out.put_u64(addr);
    out.put_u32(span.size);
    out.put_u32(rkey);
}

impl<'a> Answer<'a> {
    /// Bytes of an answer's body before the data.
    pub const LEN: usize = 16;

    /// Returns the record length of an answer with `data` bytes of data.
    #[must_use]
    pub const fn record_len(data: usize) -> usize {
        IMMEDIATE + Self::LEN + data
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn parse(record: &'a [u8]) -> Result<Self, WireError> {
        let mut r = Reader::new("an answer of the DPU", record);
        match r.u32()? {
            ANSWER => {}
            value => return Err(WireError::Unknown { what: "the immediate data", value: value.into() }),
        }
        let (region, offset) = Span::read(&mut r)?;
        let span = Span::sized(region, offset, r.u32()?)?;
        let ended = Ended::from_code(r.u8()?)?;
        let write = match r.u8()? {
            0 => false,
            1 => true,
            value => return Err(WireError::Unknown { what: "what an answer is of", value: value.into() }),
        };
        r.zero::<2>("the last field of an answer")?;
        let data = r.rest();
        let size = if !write && ended == Ended::Done { span.size as usize } else { 0 };
        if !data.is_empty() && data.len() != size {
            let most = Self::record_len(size);
            return Err(WireError::Long { what: "an answer of the DPU", most, have: record.len() });
        }
        Ok(Self { span, write, ended, data })
    }

    /// Appends the record.
    ///
    /// # Panics
    /// If the span is invalid, or the data are not the bytes of a successful read.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let whole = !self.write && self.ended == Ended::Done && self.data.len() == self.span.size as usize;
        assert!(self.data.is_empty() || whole, "an answer has the bytes that were asked for, or none");
        out.put_u32(ANSWER);
        self.span.emit(out);
        out.put_u32(self.span.size);
        out.put_u8(self.ended.code());
        out.put_u8(self.write.into());
        out.put_u16(0);
        out.extend_from_slice(self.data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};

    /// The fields have the offsets and sizes of the paper: region 16 bits, offset 48, address 64, size 32,
    /// key 32 (table I).
    #[test]
    fn the_formats_of_table_one() {
        let span = Span { region: 0xabcd, offset: 0x1234_5678_9abc, size: 0x0001_0000 };
        let mut read = Vec::new();
        let dest = Dest::Write { addr: 0x0102_0304_0506_0708, rkey: Rkey(0x0a0b_0c0d) };
        Request::Read { span, dest }.emit(&mut read);
        assert_eq!(read.len(), IMMEDIATE + 24);
        let expected = "00000001 abcd 123456789abc 0102030405060708 00010000 0a0b0c0d".replace(' ', "");
        assert_eq!(hex(&read), expected);
        let mut write = Vec::new();
        Request::Write { span: Span { size: 3, ..span }, data: b"abc" }.emit(&mut write);
        assert_eq!(write.len(), IMMEDIATE + 12 + 3);
        assert_eq!(hex(&write), "00000002 abcd 123456789abc 00000003 616263".replace(' ', ""));
    }

    fn hex(bytes: &[u8]) -> alloc::string::String {
        bytes.iter().map(|byte| alloc::format!("{byte:02x}")).collect()
    }

    fn spans() -> impl Strategy<Value = Span> {
        (any::<u16>(), 0..REGION_MAX, 1..=64_u32).prop_map(|(region, offset, size)| Span {
            region,
            offset,
            size,
        })
    }

    proptest! {
        /// Every emitted record parses to the same value, and every shorter or longer record is refused.
        #[test]
        fn records_survive_the_ring(
            span in spans(),
            dest in prop_oneof![
                Just(Dest::Send),
                (any::<u64>(), 1..=u32::MAX).prop_map(|(addr, rkey)| Dest::Write { addr, rkey: Rkey(rkey) }),
            ],
            fill: u8,
            write: bool,
            code in 0..4_u8,
            inline: bool,
        ) {
            let data = vec![fill; span.size as usize];
            let from = Request::WriteFrom { span, addr: fill.into(), rkey: Rkey(u32::from(fill) + 1) };
            for request in [Request::Read { span, dest }, Request::Write { span, data: &data }, from] {
                let mut record = Vec::new();
                request.emit(&mut record);
                prop_assert_eq!(Request::parse(&record), Ok(request));
                prop_assert_eq!(Request::parse(&record[..record.len() - 1]).is_err(), true);
                record.push(0);
                prop_assert_eq!(Request::parse(&record).is_err(), true);
            }
            let ended = Ended::from_code(code).expect("one of four");
            let data = if inline && !write && ended == Ended::Done { &data[..] } else { &[] };
            let answer = Answer { span, write, ended, data };
            let mut record = Vec::new();
            answer.emit(&mut record);
            prop_assert_eq!(Answer::parse(&record), Ok(answer));
            record.push(0);
            prop_assert_eq!(Answer::parse(&record).is_err(), span.size != 1 || !data.is_empty() || write || ended != Ended::Done);
        }

        /// Parsing arbitrary bytes of a hostile process is bounded. A record that parses has a valid span and
        /// emits the same bytes.
        #[test]
        fn any_bytes_are_refused_or_mean_themselves(record in proptest::collection::vec(any::<u8>(), 0..64), kind in 0..6_u32) {
            let mut record = record;
            if let Some(immediate) = record.first_chunk_mut() {
                *immediate = kind.to_be_bytes();
            }
            if let Ok(request) = Request::parse(&record) {
                let mut again = Vec::new();
                request.emit(&mut again);
                // A read that is answered by SEND has an address without meaning.
                let meant = matches!(request, Request::Read { dest: Dest::Send, .. }) || again == record;
                prop_assert_eq!(meant, true);
            }
            if let Ok(answer) = Answer::parse(&record) {
                let mut again = Vec::new();
                answer.emit(&mut again);
                prop_assert_eq!(again, record);
            }
        }
    }
}
