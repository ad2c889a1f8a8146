//! Requests of memcached's text and meta protocols (memcached's `doc/protocol.txt`).
//!
//! Key type: [`Memcached`]. A request is a line of words; a storage command has a data block behind its line,
//! which is skipped. The binary protocol, which memcached itself deprecates, is not parsed.

use super::line::{Line, decimal};
use super::{Access, Broken, Op, Parser};

/// Maximum length in bytes of a line: one `get` of a few hundred keys.
pub const LINE_LEN_MAX: usize = 64 << 10;
/// Maximum length in bytes of a key.
pub const KEY_LEN_MAX: usize = 250;
/// Maximum length in bytes of a value: the maximum of memcached's option `-I`.
pub const VALUE_LEN_MAX: u64 = 1 << 30;
/// Maximum length in bytes of a key in base64 (the meta flag `b`).
const BASE64_LEN_MAX: usize = 340;

/// The parser of memcached requests.
#[derive(Debug, Default)]
pub struct Memcached {
    line: Line,
    /// Bytes left of a data block and its line end.
    data: u64,
}

impl Memcached {
    /// Returns a parser at the beginning of a connection.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Parser for Memcached {
    fn feed(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<(), Broken> {
        loop {
            let skipped = usize::try_from(self.data).map_or(bytes.len(), |data| data.min(bytes.len()));
            self.data -= skipped as u64;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return Ok(());
            }
            let (line, read) = self.line.take(bytes, LINE_LEN_MAX)?;
            if let Some(line) = line {
                self.data = command(line, each)?;
            }
            bytes = &bytes[read..];
        }
    }

    fn lost(&mut self, bytes: u64) -> bool {
        let within = bytes <= self.data;
        if within {
            self.data -= bytes;
        }
        within
    }

    fn kept(&self) -> usize {
        self.line.kept()
    }
}

/// Reports the accesses of a line. Returns the length of the data block behind it.
fn command(line: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<u64, Broken> {
    if line.first().is_some_and(|&byte| byte == 0x80) {
        return Err(Broken { reason: "the binary protocol is not read" });
    }
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let name = words.next().unwrap_or_default();
    let op = match name {
        b"get" | b"gets" => {
            words.for_each(|key| say(key, Op::Read, each));
            return Ok(0);
        }
        b"gat" | b"gats" => {
            words.skip(1).for_each(|key| say(key, Op::Read, each));
            return Ok(0);
        }
        b"set" => Op::Write,
        // The result depends on the item's presence or value.
        b"add" | b"replace" | b"append" | b"prepend" | b"cas" => Op::Read,
        b"delete" => {
            words.take(1).for_each(|key| say(key, Op::Delete, each));
            return Ok(0);
        }
        b"incr" | b"decr" | b"touch" => {
            words.take(1).for_each(|key| say(key, Op::Read, each));
            return Ok(0);
        }
        b"mg" | b"ma" | b"md" | b"ms" => return meta(name, words, each),
        // Commands without keys, and commands that memcached answers with an error.
        _ => return Ok(0),
    };
    let key = words.next();
    let len = words.nth(2).ok_or(Broken { reason: "a storage command says how much data it has" })?;
    say(key.unwrap_or_default(), op, each);
    data(len)
}

/// Parses a meta command: `<name> <key> [<data length>] <flags>*`.
fn meta<'a>(
    name: &[u8],
    mut words: impl Iterator<Item = &'a [u8]> + Clone,
    each: &mut dyn FnMut(Access<'_>),
) -> Result<u64, Broken> {
    let key = words.next().unwrap_or_default();
    let stores = name == b"ms";
    let len = if stores { words.next() } else { Some(&b"0"[..]) };
    let len = len.ok_or(Broken { reason: "a storage command says how much data it has" })?;
    let flag = |letter: u8| words.clone().find(|word| word.first() == Some(&letter));
    // Mode "set" stores blindly. With a compare value the store reads the item.
    let blind = flag(b'M').is_none_or(|mode| matches!(mode, b"MS" | b"Ms" | b"MSET" | b"Mset"));
    let op = match name {
        b"md" => Op::Delete,
        b"ms" if blind && flag(b'C').is_none() && flag(b'I').is_none() => Op::Write,
        _ => Op::Read,
    };
    if flag(b'b').is_some_and(|flag| flag == b"b") {
        let mut decoded = [0; KEY_LEN_MAX + 5];
        if let Some(len) = base64(key, &mut decoded) {
            say(&decoded[..len], op, each);
        }
    } else {
        say(key, op, each);
    }
    if stores { data(len) } else { Ok(0) }
}

/// Reports an access, if the key is valid.
fn say(key: &[u8], op: Op, each: &mut dyn FnMut(Access<'_>)) {
    if (1..=KEY_LEN_MAX).contains(&key.len()) {
        each(Access { key, op });
    }
}

/// Returns the length of a data block including its line end.
fn data(len: &[u8]) -> Result<u64, Broken> {
    let len = decimal(len, VALUE_LEN_MAX).ok_or(Broken { reason: "a value has at most 1 GiB" })?;
    Ok(len + 2)
}

/// Decodes base64 with padding. Returns the number of bytes.
fn base64(text: &[u8], into: &mut [u8; KEY_LEN_MAX + 5]) -> Option<usize> {
    if text.is_empty() || text.len() > BASE64_LEN_MAX || !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take_while(|&&byte| byte == b'=').count();
    let digits = &text[..text.len() - padding];
    let (mut bits, mut held, mut len) = (0_u32, 0, 0);
    for &byte in digits {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, held) = ((bits << 6) | u32::from(digit), held + 6);
        if held >= 8 {
            held -= 8;
            *into.get_mut(len)? = (bits >> held).to_le_bytes()[0];
            len += 1;
        }
    }
    (padding <= 2 && len <= KEY_LEN_MAX).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::kit::{Example, conforms};

    #[test]
    fn it_keeps_what_the_kit_asks_for() {
        use Op::{Delete, Read, Write};
        let example = |text: &str, accesses: &[(&str, Op)]| {
            let accesses: alloc::vec::Vec<_> =
                accesses.iter().map(|&(key, op)| (key.as_bytes(), op)).collect();
            Example::of(text.as_bytes(), &accesses)
        };
        let examples = [
            example("get a\r\n", &[("a", Read)]),
            example("gets a bb  ccc\r\n", &[("a", Read), ("bb", Read), ("ccc", Read)]),
            example("gat 100 a b\r\n", &[("a", Read), ("b", Read)]),
            example("set k 0 0 5\r\nget x\r\n", &[("k", Write)]),
            example("set k 0 0 0 noreply\r\n\r\n", &[("k", Write)]),
            example("add k 1 2 3\r\nabc\r\n", &[("k", Read)]),
            example("cas k 0 0 2 77\r\nab\r\n", &[("k", Read)]),
            example("append k 0 0 1\r\nx\r\n", &[("k", Read)]),
            example("delete k\r\n", &[("k", Delete)]),
            example("incr n 1\r\n", &[("n", Read)]),
            example("touch k 60 noreply\r\n", &[("k", Read)]),
            example("mg k v t\r\n", &[("k", Read)]),
            example("ms k 2 T0\r\nhi\r\n", &[("k", Write)]),
            example("ms k 2 MA\r\nhi\r\n", &[("k", Read)]),
            example("ms k 2 C5 MS\r\nhi\r\n", &[("k", Read)]),
            example("ms aGk= 2 b\r\nyo\r\n", &[("hi", Write)]),
            example("md k q\r\n", &[("k", Delete)]),
            example("ma n N0 J1\r\n", &[("n", Read)]),
            example("mn\r\n", &[]),
            example("flush_all\r\nversion\n", &[]),
        ];
        conforms(Memcached::new, &examples);
    }

    /// Errors: data of unknown length, the binary protocol, and a line without an end.
    #[test]
    fn what_cannot_be_read_on_is_broken() {
        for wrong in [
            &b"set k 0 0\r\n"[..],
            b"set k 0 0 x\r\n",
            b"set k 0 0 9999999999999\r\n",
            b"ms k\r\n",
            b"\x80\x01\x00\x00\n",
        ] {
            assert!(Memcached::new().feed(wrong, &mut |access| assert_eq!(access.key, b"k")).is_err());
        }
        let long = alloc::vec![b'x'; LINE_LEN_MAX + 1];
        assert!(Memcached::new().feed(&long, &mut |_| {}).is_err());
    }

    /// A key that memcached refuses is skipped.
    #[test]
    fn long_keys_are_passed_over() {
        let line = [&b"get "[..], &[b'k'; KEY_LEN_MAX + 1], b" b\r\n"].concat();
        let mut seen = 0;
        Memcached::new()
            .feed(&line, &mut |access| {
                assert_eq!(access.key, b"b");
                seen += 1;
            })
            .unwrap();
        assert_eq!(seen, 1);
    }

    #[test]
    fn base64_is_decoded_or_refused() {
        let decode = |text: &[u8]| {
            let mut into = [0; KEY_LEN_MAX + 5];
            base64(text, &mut into).map(|len| into[..len].to_vec())
        };
        assert_eq!(decode(b"aGVsbG8="), Some(b"hello".to_vec()));
        assert_eq!(decode(b"/+8A"), Some(alloc::vec![0xff, 0xef, 0]));
        for wrong in [&b""[..], b"aGk", b"aG!=", b"a===", &[b'A'; 344]] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
