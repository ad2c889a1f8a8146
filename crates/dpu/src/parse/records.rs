//! Records of an operation, a key and a value: the requests of the hash map and the page server.
//!
//! Key type: [`Records`]. PD3 has "in-house formats" for these two (8.1) and does not show them; this is farmem's,
//! big-endian (PROTOCOL 19.14):
//!
//! ```text
//!   0    1         2               4              8
//!   | op | 0       | key length    | value length | key ... | value ... |
//! ```
//!
//! `op` is 1 read, 2 write, 3 delete, 4 read, change and write. A read and a delete have no value. The parser does
//! not keep values.

use super::{Access, Broken, Op, Parser};
use crate::accesses::KEY_LEN_MAX;
use alloc::vec::Vec;

/// Length in bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Maximum length in bytes of a value.
pub const VALUE_LEN_MAX: u32 = 16 << 20;
/// Page length in bytes of the page server.
pub const PAGE_LEN: u32 = 4096;
/// Length in bytes of a page number.
pub const PAGE_KEY_LEN: u16 = 8;

/// The operation of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Reads the item.
    Read,
    /// Replaces the item.
    Write,
    /// Removes the item.
    Delete,
    /// Changes the item as the value specifies.
    Change,
}

impl Request {
    /// All operations.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Delete, Self::Change];

    const fn code(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::Delete => 3,
            Self::Change => 4,
        }
    }

    const fn has_value(self) -> bool {
        matches!(self, Self::Write | Self::Change)
    }

    const fn op(self) -> Op {
        match self {
            Self::Read | Self::Change => Op::Read,
            Self::Write => Op::Write,
            Self::Delete => Op::Delete,
        }
    }
}

/// A record's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The operation.
    pub request: Request,
    /// Length in bytes of the key.
    pub key_len: u16,
    /// Length in bytes of the value.
    pub value_len: u32,
}

impl Header {
    /// Encodes the header.
    #[must_use]
    pub const fn emit(self) -> [u8; HEADER_LEN] {
        let (key, value) = (self.key_len.to_be_bytes(), self.value_len.to_be_bytes());
        [self.request.code(), 0, key[0], key[1], value[0], value[1], value[2], value[3]]
    }

    /// Decodes a header.
    ///
    /// # Errors
    ///
    /// If the bytes are no valid header.
    pub fn parse(bytes: [u8; HEADER_LEN]) -> Result<Self, Broken> {
        let [code, zero, k0, k1, v0, v1, v2, v3] = bytes;
        let request = Request::ALL.into_iter().find(|request| request.code() == code);
        let request = request.ok_or(Broken { reason: "a record's operation is 1, 2, 3 or 4" })?;
        let (key_len, value_len) = (u16::from_be_bytes([k0, k1]), u32::from_be_bytes([v0, v1, v2, v3]));
        let broken = |reason| Err(Broken { reason });
        match () {
            () if zero != 0 => broken("a record's second byte is 0"),
            () if key_len == 0 => broken("a record has a key"),
            () if usize::from(key_len) > KEY_LEN_MAX => broken("a record's key has at most 1,024 bytes"),
            () if value_len > VALUE_LEN_MAX => broken("a record's value has at most 16 MiB"),
            () if value_len > 0 && !request.has_value() => broken("a read and a delete have no value"),
            () => Ok(Self { request, key_len, value_len }),
        }
    }
}

/// The parser of records.
#[derive(Debug)]
pub struct Records {
    /// True if only keys of [`PAGE_KEY_LEN`] bytes and values of [`PAGE_LEN`] are valid.
    pages: bool,
    /// The buffered part of header and key.
    kept: Vec<u8>,
    /// Bytes left of a value.
    value: u32,
}

impl Records {
    /// Returns a parser for the hash map: any key, any value.
    #[must_use]
    pub const fn hash_map() -> Self {
        Self { pages: false, kept: Vec::new(), value: 0 }
    }

    /// Returns a parser for the page server: a page number, and a page in a write.
    #[must_use]
    pub const fn pages() -> Self {
        Self { pages: true, kept: Vec::new(), value: 0 }
    }

    fn header(&self, header: &[u8]) -> Result<Header, Broken> {
        let header = Header::parse(header.try_into().expect("a header's length"))?;
        if self.pages && header.key_len != PAGE_KEY_LEN {
            return Err(Broken { reason: "a page's number has 8 bytes" });
        }
        if self.pages && header.request.has_value() && header.value_len != PAGE_LEN {
            return Err(Broken { reason: "a page has 4,096 bytes" });
        }
        Ok(header)
    }
}

impl Parser for Records {
    fn feed(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<(), Broken> {
        loop {
            let skipped = bytes.len().min(self.value as usize);
            self.value -= u32::try_from(skipped).expect("at most a value");
            bytes = &bytes[skipped..];
            // The buffered and the new bytes together.
            let here = self.kept.len() + bytes.len();
            if here < HEADER_LEN {
                self.kept.extend_from_slice(bytes);
                return Ok(());
            }
            let mut header = [0; HEADER_LEN];
            let known = self.kept.len().min(HEADER_LEN);
            header[..known].copy_from_slice(&self.kept[..known]);
            header[known..].copy_from_slice(&bytes[..HEADER_LEN - known]);
            let header = self.header(&header)?;
            let end = HEADER_LEN + usize::from(header.key_len);
            if here < end {
                self.kept.extend_from_slice(bytes);
                return Ok(());
            }
            let op = header.request.op();
            let (rest, key);
            if self.kept.is_empty() {
                (key, rest) = (&bytes[HEADER_LEN..end], &bytes[end..]);
                each(Access { key, op });
            } else {
                let (more, behind) = bytes.split_at(end - self.kept.len());
                self.kept.extend_from_slice(more);
                each(Access { key: &self.kept[HEADER_LEN..], op });
                self.kept.clear();
                rest = behind;
            }
            (bytes, self.value) = (rest, header.value_len);
        }
    }

    fn lost(&mut self, bytes: u64) -> bool {
        match u32::try_from(bytes) {
            Ok(bytes) if bytes <= self.value => {
                self.value -= bytes;
                true
            }
            _ => false,
        }
    }

    fn kept(&self) -> usize {
        self.kept.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::kit::{Example, conforms};
    use alloc::vec;

    fn record(request: Request, key: &[u8], value: &[u8]) -> Vec<u8> {
        let key_len = u16::try_from(key.len()).unwrap();
        let header = Header { request, key_len, value_len: u32::try_from(value.len()).unwrap() };
        [&header.emit()[..], key, value].concat()
    }

    #[test]
    fn the_hash_map_keeps_what_the_kit_asks_for() {
        let example = |request: Request, key: &[u8], value: &[u8]| {
            Example::of(&record(request, key, value), &[(key, request.op())])
        };
        let examples = [
            example(Request::Read, b"k", b""),
            example(Request::Write, b"key", &[7; 100]),
            example(Request::Delete, &[9; 40], b""),
            example(Request::Change, b"n", b"+1"),
            example(Request::Write, b"empty", b""),
        ];
        conforms(Records::hash_map, &examples);
    }

    #[test]
    fn the_page_server_keeps_what_the_kit_asks_for() {
        let page = 77_u64.to_be_bytes();
        let examples = [
            Example::of(&record(Request::Read, &page, b""), &[(&page, Op::Read)]),
            Example::of(&record(Request::Write, &page, &[1; 4096]), &[(&page, Op::Write)]),
        ];
        conforms(Records::pages, &examples);
    }

    /// Bytes that are no record end the connection, with a reason.
    #[test]
    fn invalid_records_are_refused() {
        let wrong = |bytes: &[u8], mut parser: Records| {
            parser.feed(bytes, &mut |access| panic!("{access:?}")).expect_err("it is none").reason
        };
        assert!(wrong(&[9, 0, 0, 1, 0, 0, 0, 0, 1], Records::hash_map()).contains("operation"));
        assert!(wrong(&[1, 1, 0, 1, 0, 0, 0, 0, 1], Records::hash_map()).contains("second byte"));
        assert!(wrong(&[1, 0, 0, 0, 0, 0, 0, 0, 1], Records::hash_map()).contains("has a key"));
        assert!(wrong(&[1, 0, 255, 0, 0, 0, 0, 0, 1], Records::hash_map()).contains("1,024"));
        assert!(wrong(&[2, 0, 0, 1, 255, 0, 0, 0, 1], Records::hash_map()).contains("16 MiB"));
        assert!(wrong(&[1, 0, 0, 1, 0, 0, 0, 1, 1], Records::hash_map()).contains("no value"));
        assert!(wrong(&record(Request::Read, b"short", b""), Records::pages()).contains("8 bytes"));
        assert!(wrong(&record(Request::Write, &[0; 8], b"x"), Records::pages()).contains("4,096"));
    }

    /// Losing bytes of a value is tolerated, of anything else not.
    #[test]
    fn a_loss_within_a_value_is_borne() {
        let mut parser = Records::hash_map();
        let written = record(Request::Write, b"k", &[1; 10]);
        let mut seen = vec![];
        parser.feed(&written[..HEADER_LEN + 1 + 3], &mut |access| seen.push(access.op)).unwrap();
        assert!(parser.lost(7));
        parser.feed(&record(Request::Read, b"k", b""), &mut |access| seen.push(access.op)).unwrap();
        assert_eq!(seen, [Op::Write, Op::Read]);
        assert!(!parser.lost(1));
    }
}
