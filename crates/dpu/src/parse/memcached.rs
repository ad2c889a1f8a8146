//! Requests of memcached's text and meta protocols (memcached's `doc/protocol.txt`).
//!
//! Key type: [`Memcached`]. A request is a line of words; a storage command has a data block behind its line,
//! which is skipped. Lines, lengths of blocks and keys are those of the server's parser
//! ([`farmem_protocols::memcached`]). The binary protocol, which memcached itself deprecates, is not parsed.

use super::line::Line;
use super::{Access, Broken, Op, Parser};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use farmem_protocols::memcached::{BINARY, KEY_LEN_MAX, LINE_LEN_MAX, block_len, find, stores, words};

/// Maximum length in bytes of a value: the maximum of memcached's option `-I`.
const VALUE_LEN_MAX: usize = 1 << 30;
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

/// Reports the accesses of a line. Returns the length of the data block behind it, with its line end.
fn command(line: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<u64, Broken> {
    if line.first() == Some(&BINARY) {
        return Err(Broken { reason: "the binary protocol is not read" });
    }
    let words = words(line);
    let Some((name, rest)) = words.split_first() else { return Ok(0) };
    // Commands without keys, and commands that memcached answers with an error.
    let Some(command) = find(name) else { return Ok(0) };
    let data = if stores(name) {
        let len = block_len(&words).filter(|&len| len <= VALUE_LEN_MAX);
        let len =
            len.ok_or(Broken { reason: "a storage command says how much data it has, at most 1 GiB" })?;
        len as u64 + 2
    } else {
        0
    };
    let flags = rest.get(if *name == b"ms" { 2.. } else { 1.. }).unwrap_or_default();
    let flag = |letter: u8| flags.iter().find(|word| word.first() == Some(&letter));
    let op = match *name {
        b"ms" => {
            // Mode "set" stores blindly. With a compare value the store reads the item.
            let blind = flag(b'M').is_none_or(|mode| matches!(*mode, b"MS" | b"Ms" | b"MSET" | b"Mset"));
            let is_write = blind && flag(b'C').is_none() && flag(b'I').is_none();
            if is_write { Op::Write } else { Op::Read }
        }
        _ => Op::of(command.access),
    };
    let is_meta = name.len() == 2;
    for key in command.keys(&words) {
        if is_meta && flag(b'b').is_some_and(|flag| *flag == b"b") {
            let mut decoded = [0; KEY_LEN_MAX + 5];
            let text = Some(key).filter(|key| key.len() <= BASE64_LEN_MAX);
            if let Some(len) = text.and_then(|key| STANDARD.decode_slice(key, &mut decoded).ok()) {
                say(&decoded[..len], op, each);
            }
        } else {
            say(key, op, each);
        }
    }
    Ok(data)
}

/// Reports an access, if the key is valid.
fn say(key: &[u8], op: Op, each: &mut dyn FnMut(Access<'_>)) {
    if (1..=KEY_LEN_MAX).contains(&key.len()) {
        each(Access { key, op });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::kit::{Example, conforms};

    #[test]
    fn memcached_conforms_to_the_kit() {
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
    fn unreadable_lines_are_broken() {
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

    /// A key in base64 is decoded. A key that is no base64, or too long, is skipped.
    #[test]
    fn base64_is_decoded_or_refused() {
        let decode = |text: &[u8]| {
            let mut keys = alloc::vec::Vec::new();
            let line = [&b"mg "[..], text, b" b\r\n"].concat();
            Memcached::new().feed(&line, &mut |access| keys.push(access.key.to_vec())).unwrap();
            keys
        };
        assert_eq!(decode(b"aGVsbG8="), [b"hello".to_vec()]);
        assert_eq!(decode(b"/+8A"), [[0xff, 0xef, 0].to_vec()]);
        for wrong in [&b"aGk"[..], b"aG!=", b"a===", &[b'A'; 344]] {
            assert_eq!(decode(wrong), [[0; 0]; 0], "{wrong:?}");
        }
    }
}
