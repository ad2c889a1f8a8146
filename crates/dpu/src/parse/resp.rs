//! Requests of Redis clients, RESP2 and RESP3 (redis.io/docs/reference/protocol-spec): a request has the same form in
//! both.
//!
//! Key type: [`Resp`]. A server buffers whole requests; this parser streams. The parser buffers a word only if the
//! word is the command, a key, or an option that decides the operation on a key; a value of 512 MiB is skipped. The
//! grammar of numbers and inline commands, the limits and the table of commands are the server's
//! ([`farmem_protocols`]). The parser does not know databases (`SELECT`), scripts, or which requests a server
//! refuses. The commands of a transaction are reported on arrival, and its `EXEC` has no keys.

use super::{Access, Broken, Op, Parser};
use crate::accesses::KEY_LEN_MAX;
use alloc::vec::Vec;
use farmem_protocols::commands::{self, CONTAINER, Command, Find, INTERNAL, KeyRange, NAME_LEN_MAX};
use farmem_protocols::resp::{Limits, Parsed, Requests, integer};

/// The limits of a request: the server's.
const LIMITS: Limits = Limits::REDIS;
/// Maximum length in bytes of a line with a number, including its end.
const NUMBER_LEN_MAX: usize = 32;
/// Maximum length in bytes of an option of SET that matters.
const OPTION_LEN_MAX: usize = 8;

/// The parser's position in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Before a request.
    Begin,
    /// In an inline command.
    Typed,
    /// In the number of words.
    Count,
    /// Before a word.
    Bulk,
    /// In a word's length.
    Len,
    /// In a word, with this many bytes left.
    Word(usize),
    /// After a word, with this many bytes of the line end seen.
    End(usize),
}

/// The parser of Redis requests.
#[derive(Debug)]
pub struct Resp {
    state: State,
    /// The needed part of the current number, word or line.
    kept: Vec<u8>,
    keeps: bool,
    request: Request,
}

impl Default for Resp {
    fn default() -> Self {
        Self::new()
    }
}

impl Resp {
    /// Returns a parser at the beginning of a connection.
    #[must_use]
    pub fn new() -> Self {
        Self { state: State::Begin, kept: Vec::new(), keeps: false, request: Request::default() }
    }

    /// Continues a number with its line end. Returns the number of bytes consumed, and the number once it is
    /// complete.
    fn number(&mut self, bytes: &[u8], wrong: &'static str) -> Result<(usize, Option<i64>), Broken> {
        for (at, &byte) in bytes.iter().enumerate() {
            if self.kept.last() == Some(&b'\r') {
                self.kept.pop();
                let number = integer(&self.kept).filter(|_| byte == b'\n');
                self.kept.clear();
                return Ok((at + 1, Some(number.ok_or(Broken { reason: wrong })?)));
            }
            if self.kept.len() >= NUMBER_LEN_MAX - 1 {
                return Err(Broken { reason: wrong });
            }
            self.kept.push(byte);
        }
        Ok((bytes.len(), None))
    }

    /// Moves to the next word, or ends the request.
    fn next_word(&mut self, each: &mut dyn FnMut(Access<'_>)) {
        self.state = State::Bulk;
        if self.request.is_whole() {
            self.request.end(each);
            self.state = State::Begin;
        }
    }

    fn word(&mut self, bytes: &[u8], left: usize, each: &mut dyn FnMut(Access<'_>)) -> usize {
        let read = left.min(bytes.len());
        if self.keeps && read == left && self.kept.is_empty() {
            self.request.word(Some(&bytes[..read]), each);
        } else {
            if self.keeps {
                self.kept.extend_from_slice(&bytes[..read]);
            }
            if read == left {
                self.request.word(self.keeps.then_some(&self.kept), each);
                self.kept.clear();
            }
        }
        self.state = if read == left { State::End(0) } else { State::Word(left - read) };
        read
    }

    /// Continues an inline command; the server's reader splits it into words.
    fn typed(&mut self, bytes: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<usize, Broken> {
        let end = bytes.iter().position(|&byte| byte == b'\n').map(|end| end + 1);
        let read = end.unwrap_or(bytes.len());
        if self.kept.len() + read > LIMITS.line_len_max {
            return Err(Broken { reason: "a line has at most 64 KiB" });
        }
        self.kept.extend_from_slice(&bytes[..read]);
        if end.is_some() {
            let mut line = Requests::new();
            let Parsed::Whole { .. } = line.parse(&self.kept, &LIMITS) else {
                return Err(Broken { reason: "a line whose quotes have no end" });
            };
            let words = line.words(&self.kept);
            self.request = Request::of(words.len());
            words.for_each(|word| {
                let keeps = self.request.keeps(word.len());
                self.request.word(keeps.then_some(word), each);
            });
            self.request.end(each);
            self.kept.clear();
            self.kept.shrink_to(KEY_LEN_MAX);
            self.state = State::Begin;
        }
        Ok(read)
    }

    fn step(&mut self, bytes: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<usize, Broken> {
        match self.state {
            State::Begin if bytes[0] == b'*' => self.state = State::Count,
            State::Begin => {
                self.state = State::Typed;
                return Ok(0);
            }
            State::Typed => return self.typed(bytes, each),
            State::Count => {
                let (read, count) = self.number(bytes, "invalid multibulk length")?;
                if let Some(count) = count {
                    // Redis treats a count of 0 or less as an empty request.
                    let count = usize::try_from(count).unwrap_or(0);
                    if count > LIMITS.words_max {
                        return Err(Broken { reason: "invalid multibulk length" });
                    }
                    self.request = Request::of(count);
                    self.next_word(each);
                }
                return Ok(read);
            }
            State::Bulk if bytes[0] == b'$' => self.state = State::Len,
            State::Bulk => return Err(Broken { reason: "expected '$': a word is a bulk string" }),
            State::Len => {
                let (read, len) = self.number(bytes, "invalid bulk length")?;
                if let Some(len) = len {
                    let len = usize::try_from(len).ok().filter(|&len| len <= LIMITS.word_len_max);
                    let len = len.ok_or(Broken { reason: "invalid bulk length" })?;
                    self.keeps = self.request.keeps(len);
                    self.state = State::Word(len);
                    // An empty word is complete.
                    self.word(&[], len, each);
                }
                return Ok(read);
            }
            State::Word(left) => return Ok(self.word(bytes, left, each)),
            State::End(at) => {
                if bytes[0] != b"\r\n"[at] {
                    return Err(Broken { reason: "a word is longer than it says" });
                }
                self.state = State::End(at + 1);
                if at == 1 {
                    self.next_word(each);
                }
            }
        }
        Ok(1)
    }
}

impl Parser for Resp {
    fn feed(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<(), Broken> {
        while !bytes.is_empty() {
            let read = self.step(bytes, each)?;
            bytes = &bytes[read..];
        }
        Ok(())
    }

    fn lost(&mut self, bytes: u64) -> bool {
        let State::Word(left) = self.state else { return false };
        // Bytes of an unneeded word may be lost, but not its end.
        let left = usize::try_from(bytes).ok().and_then(|bytes| left.checked_sub(bytes));
        match left.filter(|_| !self.keeps) {
            Some(left) => {
                self.word(&[], left, &mut |_| {});
                true
            }
            None => false,
        }
    }

    fn kept(&self) -> usize {
        self.kept.capacity() + self.request.held.capacity()
    }
}

/// The state of the current request.
#[derive(Debug, Default)]
struct Request {
    /// Number of its words.
    words: usize,
    /// Number of words read.
    read: usize,
    command: Option<&'static Command>,
    /// The positions of its keys, by the command's specifications.
    keys: [KeyRange; 2],
    /// A key whose operation depends on later words.
    held: Vec<u8>,
    holds: bool,
    reads: bool,
}

impl Request {
    fn of(words: usize) -> Self {
        Self { words, ..Self::default() }
    }

    const fn is_whole(&self) -> bool {
        self.read == self.words
    }

    fn is_key(&self, word: usize) -> bool {
        self.keys.iter().any(|range| range.has(word))
    }

    /// Returns true if the word at a position is the name of a subcommand.
    fn is_subcommand(&self, word: usize) -> bool {
        word == 1 && self.command.is_some_and(|command| command.has(CONTAINER))
    }

    /// Returns the specification whose number of keys is at a position.
    fn counted(&self, word: usize) -> Option<usize> {
        let is_it = |spec: &commands::KeySpec| spec.find == Find::Counted && usize::from(spec.at) == word;
        self.command?.specs.iter().position(|spec| spec.as_ref().is_some_and(is_it))
    }

    /// Returns true if the next word, of `len` bytes, must be buffered.
    fn keeps(&self, len: usize) -> bool {
        if self.command.is_none() {
            return self.read == 0 && len <= NAME_LEN_MAX;
        }
        let key = self.is_key(self.read) && len <= KEY_LEN_MAX;
        let option = self.holds && len <= OPTION_LEN_MAX;
        let name = self.is_subcommand(self.read) && len <= NAME_LEN_MAX;
        key || option || name || self.counted(self.read).is_some() && len <= NUMBER_LEN_MAX
    }

    /// Sets the command, and finds its keys as far as they do not follow their number.
    fn begin(&mut self, command: Option<&'static Command>) {
        self.command = command.filter(|command| !command.has(INTERNAL));
        let specs = self.command.map_or(commands::NO_KEYS, |command| command.specs);
        self.keys = specs.map(|spec| spec.map(|spec| spec.range(self.words, None)).unwrap_or_default());
    }

    /// Handles the next word; `None` if it is not needed.
    fn word(&mut self, word: Option<&[u8]>, each: &mut dyn FnMut(Access<'_>)) {
        let at = self.read;
        self.read += 1;
        let Some(word) = word else { return };
        let Some(command) = self.command else {
            return self.begin(commands::find_known(word).filter(|command| !command.is_subcommand()));
        };
        if self.is_subcommand(at) {
            return self.begin(commands::find_subcommand(command, word));
        }
        if let Some(number) = self.counted(at) {
            let spec = command.specs[number].as_ref();
            self.keys[number] = spec.map(|spec| spec.range(self.words, Some(word))).unwrap_or_default();
            return;
        }
        if self.holds {
            self.reads |= needs_the_item(word);
            return;
        }
        let Some(number) = self.keys.iter().position(|range| range.has(at)) else { return };
        if command.name == "set" && self.words > 3 {
            self.held.extend_from_slice(word);
            self.holds = true;
            return;
        }
        let access = command.specs[number].map_or(commands::RO, |spec| spec.access);
        each(Access { key: word, op: op_of(command, at, access) });
    }

    /// Handles the end of the request.
    fn end(&mut self, each: &mut dyn FnMut(Access<'_>)) {
        if self.holds {
            let op = if self.reads { Op::Read } else { Op::Write };
            each(Access { key: &self.held, op });
        }
        *self = Self { held: core::mem::take(&mut self.held), ..Self::default() };
        self.held.clear();
    }
}

/// Returns the operation of a command on the key at a position.
fn op_of(command: &Command, at: usize, access: commands::Access) -> Op {
    match (command.name, at) {
        ("set" | "sinterstore", 1) => Op::Write,
        ("getdel" | "rename" | "renamenx", 1) => Op::Delete,
        // The destination is replaced only if the client asks for it.
        ("copy", 2) => Op::Read,
        _ => Op::of(access),
    }
}

/// Returns true if SET with this option reads the present item.
fn needs_the_item(option: &[u8]) -> bool {
    ["NX", "XX", "GET", "KEEPTTL", "IFEQ", "IFNE", "IFDEQ", "IFDNE"]
        .iter()
        .any(|name| option.eq_ignore_ascii_case(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::kit::{Example, conforms};
    use alloc::format;
    use alloc::string::String;

    fn request(words: &str) -> Vec<u8> {
        let words: Vec<&str> = words.split(' ').collect();
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
        }
        bytes
    }

    fn said(bytes: &[u8]) -> Result<Vec<(String, Op)>, Broken> {
        let mut all = Vec::new();
        let each = &mut |access: Access<'_>| {
            all.push((String::from_utf8(access.key.to_vec()).unwrap(), access.op));
        };
        Resp::new().feed(bytes, each)?;
        Ok(all)
    }

    use Op::{Delete, Read, Write};

    #[test]
    fn resp_conforms_to_the_kit() {
        let example = |words: &str, accesses: &[(&str, Op)]| {
            let accesses: Vec<_> = accesses.iter().map(|&(key, op)| (key.as_bytes(), op)).collect();
            Example::of(&request(words), &accesses)
        };
        let examples = [
            example("GET k", &[("k", Read)]),
            example("set k v", &[("k", Write)]),
            example("SET k v EX 10", &[("k", Write)]),
            example("SET k v NX GET", &[("k", Read)]),
            example("MGET a b c", &[("a", Read), ("b", Read), ("c", Read)]),
            example("MSET a 1 b 2", &[("a", Write), ("b", Write)]),
            example("DEL a b", &[("a", Delete), ("b", Delete)]),
            example("GETDEL a", &[("a", Delete)]),
            example("INCR n", &[("n", Read)]),
            example("RENAME a b", &[("a", Delete), ("b", Write)]),
            example("ZUNIONSTORE d 2 a b WEIGHTS 1 2", &[("d", Write), ("a", Read), ("b", Read)]),
            example("SINTERCARD 2 a b LIMIT 1", &[("a", Read), ("b", Read)]),
            example("OBJECT ENCODING k", &[("k", Read)]),
            example("PING", &[]),
            example("HELLO 3", &[]),
            example("UNKNOWN a b c", &[]),
            Example::of(b"*0\r\n*-1\r\n\r\n", &[]),
            Example::of(b"get \"a\\x41\"\r\n", &[(b"aA", Read)]),
        ];
        conforms(Resp::new, &examples);
    }

    /// Each command of the table reports its keys. A request that is too short for them reports nothing.
    #[test]
    fn keys_are_where_the_table_says() {
        for (words, keys) in [
            ("MSETNX a 1 b 2", "a b"),
            ("MEMORY USAGE k", "k"),
            ("XINFO STREAM k", "k"),
            ("XADD k * f v", "k"),
            ("COPY a b", "a b"),
            ("SMOVE a b m", "a b"),
            ("BITOP AND d a b", "d a b"),
            ("HSET h f v f v", "h"),
            ("LMPOP 2 a b LEFT", "a b"),
            ("BLMPOP 0 1 a LEFT", "a"),
            ("ZDIFF 1 a WITHSCORES", "a"),
            ("BLPOP a b 0", "a b"),
            ("EXPIRE k 5", "k"),
            ("GETEX k EX 5", "k"),
            ("WATCH a b", "a b"),
            ("ZRANGESTORE d s 0 1", "d s"),
            ("MSET a", "a"),
            ("LMPOP x a", ""),
            ("LMPOP 9 a", "a"),
            ("GET", ""),
            ("SCAN 0", ""),
        ] {
            let said: Vec<String> = said(&request(words)).unwrap().into_iter().map(|(key, _)| key).collect();
            assert_eq!(said.join(" "), keys, "{words}");
        }
    }

    /// A value of 512 MiB is skipped without being buffered; a longer one is refused, as by the server.
    #[test]
    fn values_are_not_kept() {
        let mut parser = Resp::new();
        let mut keys = 0;
        parser.feed(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n", &mut |_| keys += 1).unwrap();
        parser.feed(&[b'x'; 1000], &mut |_| keys += 1).unwrap();
        assert_eq!((keys, parser.kept.capacity() < 100), (1, true));
        assert!(parser.lost((512 << 20) - 1000));
        parser.feed(b"\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", &mut |_| keys += 1).unwrap();
        assert_eq!(keys, 2);
        assert!(!parser.lost(1));
        assert!(said(b"*2\r\n$3\r\nGET\r\n$536870913\r\n").is_err());
    }

    /// Requests that the server refuses are errors.
    #[test]
    fn invalid_requests_are_refused() {
        for wrong in [
            &b"*x\r\n"[..],
            b"*+1\r\n",
            b"*01\r\n",
            b"*3000000000\r\n",
            b"*99999999999999999999999999999999999",
            b"*1\rx",
            b"*1\r\n*1\r\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n$1\r\nabc",
            b"get 'a\r\n",
        ] {
            assert!(said(wrong).is_err(), "{wrong:?}");
        }
        assert!(said(&alloc::vec![b'x'; LIMITS.line_len_max + 1]).is_err());
        // A key too long for the prefetcher is skipped, and the next key is reported.
        let long = format!("MGET {} b", "k".repeat(KEY_LEN_MAX + 1));
        assert_eq!(said(&request(&long)).unwrap(), [("b".into(), Read)]);
    }
}
