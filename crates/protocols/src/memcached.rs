//! memcached's text and meta protocols (memcached's `doc/protocol.txt`): a line, and a block of data after that
//! of a storage command.
//!
//! Key types: [`Requests`], a parser that waits for whole requests; [`Command`], the keys of a line. The parser
//! knows which commands have a block, and its length ([`block_len`]); their execution parses the rest of a
//! line. Bytes that wait are bounded, and a block that is too long is skipped as it arrives.

mod number;

pub use number::{short, signed, unsigned};

use crate::commands::{
    Access, OW_INSERT, OW_UPDATE, RM_DELETE, RO_ACCESS, RW_ACCESS_UPDATE, RW_INSERT, RW_UPDATE,
};
use crate::queue::WordQueue;
use smallvec::SmallVec;

/// Bytes of a key at most.
pub const KEY_LEN_MAX: usize = 250;
/// Bytes of a line at most: one `get` of a few hundred keys.
pub const LINE_LEN_MAX: usize = 64 << 10;
/// Bytes of any other line, as in memcached.
const COMMAND_LEN_MAX: usize = 2048;
/// Bytes of a binary request in front of its key.
const BINARY_HEAD_LEN: usize = 24;
/// The first byte of a binary request.
pub const BINARY: u8 = 0x80;

/// Words of a line.
pub type Words<'a> = SmallVec<[&'a [u8]; 12]>;

/// The data after a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Block<'a> {
    /// Nothing that belongs to the request.
    None,
    /// A block with its line end.
    Is(&'a [u8]),
    /// A block with something else at its end.
    NoLineEnd,
    /// A block that is too long and is skipped.
    TooLong,
}

/// The first item of a connection's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// Not a whole request.
    More {
        /// The least length of the request.
        least: usize,
    },
    /// Bytes of a block that is skipped.
    Passed {
        /// Their number.
        len: usize,
    },
    /// A request; [`Requests::words`] returns its words.
    Whole {
        /// The length of the request in bytes.
        len: usize,
    },
    /// Not a request. The bytes after it cannot be parsed. The text is the reply.
    Broken(&'static str),
    /// A binary request.
    Binary {
        /// The operation.
        operation: u8,
        /// The word by which the client finds the reply.
        opaque: [u8; 4],
    },
}

/// The form of a request's block: its position without the line end.
#[derive(Clone, Copy, Default, Debug)]
enum BlockForm {
    #[default]
    None,
    Is {
        from: usize,
        to: usize,
    },
    NoLineEnd,
    TooLong,
}

/// An incremental parser of requests.
#[derive(Clone, Default, Debug)]
pub struct Requests {
    queue: WordQueue<BlockForm>,
    /// The longest block of the requests that were parsed ahead.
    value_len_max: usize,
    /// Bytes of the current line that have no line end in them.
    seen: usize,
    /// Bytes that are to be skipped.
    passes: u64,
}

impl Requests {
    /// Parses the start of `bytes`, or takes the request if it was parsed ahead; the longest block has
    /// `value_len_max` bytes. After [`Parsed::More`] the caller passes the same bytes again, with more behind
    /// them.
    pub fn parse(&mut self, bytes: &[u8], value_len_max: usize) -> Parsed {
        if self.queue.has_ahead() {
            if self.value_len_max == value_len_max {
                return Parsed::Whole { len: self.queue.take().unwrap_or_default() };
            }
            // A request before this one changed the limit.
            (self.seen, self.passes) = (0, 0);
        }
        if self.passes > 0 && !bytes.is_empty() {
            let len = usize::try_from(self.passes).map_or(bytes.len(), |passes| passes.min(bytes.len()));
            self.passes -= len as u64;
            return Parsed::Passed { len };
        }
        self.queue.clear();
        self.parse_next(bytes, value_len_max)
    }

    /// Parses the first request of `bytes` that was not parsed yet, and has it wait for [`Requests::parse`].
    /// `bytes` begin as for that function. [`Requests::words`] returns the words of the request, given the
    /// bytes from the returned position on.
    pub fn parse_ahead(&mut self, bytes: &[u8], value_len_max: usize) -> Option<usize> {
        let differs = self.queue.has_ahead() && self.value_len_max != value_len_max;
        if differs || self.passes > 0 || self.queue.is_full() {
            return None;
        }
        if !self.queue.has_ahead() {
            self.queue.clear();
        }
        let from = self.queue.ahead_len();
        let Parsed::Whole { .. } = self.parse_next(&bytes[from..], value_len_max) else { return None };
        self.value_len_max = value_len_max;
        self.queue.keep();
        Some(from)
    }

    fn parse_next(&mut self, bytes: &[u8], value_len_max: usize) -> Parsed {
        if bytes.first() == Some(&BINARY) {
            return binary(bytes);
        }
        let window = bytes.len().min(LINE_LEN_MAX);
        let from = self.seen.min(window);
        let Some(end) = bytes[from..window].iter().position(|&byte| byte == b'\n').map(|at| from + at) else {
            self.seen = bytes.len();
            if bytes.len() >= LINE_LEN_MAX || (bytes.len() > COMMAND_LEN_MAX && !asks(bytes)) {
                return Parsed::Broken("CLIENT_ERROR line too long");
            }
            return Parsed::More { least: bytes.len() + 1 };
        };
        // As in C, a line ends at a zero byte.
        let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
        let line = line.split(|&byte| byte == 0).next().unwrap_or(line);
        let words = words(line);
        let (mut len, mut form) = (end + 1, BlockForm::None);
        if let Some(wanted) = block_len(&words) {
            if wanted > value_len_max {
                self.passes = wanted as u64 + 2;
                form = BlockForm::TooLong;
            } else {
                len += wanted + 2;
                if bytes.len() < len {
                    self.seen = end;
                    return Parsed::More { least: len };
                }
                let to = len - 2;
                let is_whole = bytes[to..len] == *b"\r\n";
                form = if is_whole { BlockForm::Is { from: end + 1, to } } else { BlockForm::NoLineEnd };
            }
        }
        self.seen = 0;
        for word in words {
            let from = word.as_ptr().addr() - bytes.as_ptr().addr();
            self.queue.push(from, from + word.len());
        }
        self.queue.end(len, form);
        Parsed::Whole { len }
    }

    /// Returns the words of the last request, given the request's `bytes`.
    #[must_use]
    pub fn words<'a>(&self, bytes: &'a [u8]) -> Words<'a> {
        self.queue.words().iter().map(|word| &bytes[word.from..word.to]).collect()
    }

    /// Returns the block of the last request, given the request's `bytes`.
    #[must_use]
    pub fn block<'a>(&self, bytes: &'a [u8]) -> Block<'a> {
        match self.queue.current().form {
            BlockForm::None => Block::None,
            BlockForm::Is { from, to } => Block::Is(&bytes[from..to]),
            BlockForm::NoLineEnd => Block::NoLineEnd,
            BlockForm::TooLong => Block::TooLong,
        }
    }

    /// Returns the parser's memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.queue.bytes()
    }
}

/// Returns whether a line may be long.
fn asks(bytes: &[u8]) -> bool {
    let from = bytes.iter().take(100).position(|&byte| byte != b' ').unwrap_or(0);
    [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|name| bytes[from..].starts_with(name))
}

fn binary(bytes: &[u8]) -> Parsed {
    match bytes.get(12..16).and_then(|opaque| opaque.try_into().ok()) {
        Some(opaque) if bytes.len() >= BINARY_HEAD_LEN => Parsed::Binary { operation: bytes[1], opaque },
        _ => Parsed::More { least: BINARY_HEAD_LEN },
    }
}

/// Returns the words of a line.
#[must_use]
pub fn words(line: &[u8]) -> Words<'_> {
    line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect()
}

/// Returns whether a line of this command has a block behind it.
#[must_use]
pub fn stores(name: &[u8]) -> bool {
    matches!(name, b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" | b"ms")
}

/// Returns the length of the block after a line, without its line end. `None` if there is no block, or the
/// line is refused without it.
#[must_use]
pub fn block_len(words: &[&[u8]]) -> Option<usize> {
    let name = *words.first().filter(|name| stores(name))?;
    let (at, least, most) = match name {
        b"cas" => (4, 6, 7),
        b"ms" => (2, 3, 19),
        _ => (4, 5, 6),
    };
    if !(least..=most).contains(&words.len()) || words[1].len() > KEY_LEN_MAX {
        return None;
    }
    if at == 4 {
        let has_numbers = short(words[2]).is_some() && signed(words[3]).is_some();
        let has_cas = name != b"cas" || unsigned(words[5]).is_some();
        if !has_numbers || !has_cas {
            return None;
        }
    }
    usize::try_from(signed(words[at])?).ok().filter(|&len| len <= i32::MAX as usize - 2)
}

/// The keys of a command, and how it uses them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// The position of the first key.
    at: usize,
    /// All words from there on are keys.
    all: bool,
    /// The use of the keys.
    pub access: Access,
    /// The command needs no values of its keys.
    pub is_blind: bool,
}

impl Command {
    /// Returns the keys of a line.
    #[must_use]
    pub fn keys<'w, 'a>(&self, words: &'w [&'a [u8]]) -> &'w [&'a [u8]] {
        let keys = words.get(self.at..).unwrap_or_default();
        if self.all { keys } else { &keys[..keys.len().min(1)] }
    }
}

/// Finds the keys of a command; `None` if it has none.
#[must_use]
pub fn find(name: &[u8]) -> Option<Command> {
    let (at, all) = match name {
        b"get" | b"gets" => (1, true),
        b"gat" | b"gats" => (2, true),
        _ => (1, false),
    };
    let (access, is_blind) = match name {
        b"get" | b"gets" | b"gat" | b"gats" | b"mg" => (RO_ACCESS, false),
        b"incr" | b"decr" | b"ma" => (RW_ACCESS_UPDATE, false),
        b"append" | b"prepend" => (RW_INSERT, false),
        b"set" | b"ms" => (OW_UPDATE, true),
        b"add" => (OW_INSERT, true),
        b"replace" | b"cas" | b"touch" => (RW_UPDATE, true),
        b"delete" | b"md" => (RM_DELETE, true),
        _ => return None,
    };
    Some(Command { at, all, access, is_blind })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the words and the block of the request at the start of `bytes`, and its length.
    fn whole<'a>(requests: &mut Requests, bytes: &'a [u8]) -> (Words<'a>, Block<'a>, usize) {
        let Parsed::Whole { len } = requests.parse(bytes, 10) else { panic!("{bytes:?}") };
        (requests.words(bytes), requests.block(bytes), len)
    }

    /// Bytes arrive one by one, blocks have another length than their lines say, and lines never end: the
    /// parser finds the same requests, or refuses them.
    #[test]
    fn requests_in_pieces() {
        let bytes = b"set k 1 0 3\r\na\r\n\r\nget k\n";
        let mut requests = Requests::default();
        for end in 1..18 {
            assert!(
                matches!(requests.parse(&bytes[..end], 10), Parsed::More { least } if least > end && least <= 18),
                "{end}"
            );
        }
        assert_eq!(whole(&mut requests, bytes), (words(b"set k 1 0 3"), Block::Is(b"a\r\n"), 18));
        assert_eq!(whole(&mut requests, &bytes[18..]), (words(b"get k"), Block::None, 6));
        let wrong = b"set k 1 0 1\r\nabcd";
        assert_eq!(whole(&mut requests, wrong), (words(b"set k 1 0 1"), Block::NoLineEnd, 16));
        let long = b"set k 1 0 2000000000\r\nabcd";
        assert_eq!(whole(&mut requests, long), (words(b"set k 1 0 2000000000"), Block::TooLong, 22));
        assert_eq!(requests.parse(&long[22..], 10), Parsed::Passed { len: 4 });
        let mut requests = Requests::default();
        assert!(matches!(requests.parse(&[b'x'; COMMAND_LEN_MAX + 1], 10), Parsed::Broken(_)));
        let mut keys = b"get ".to_vec();
        keys.resize(LINE_LEN_MAX - 1, b'k');
        assert!(matches!(Requests::default().parse(&keys, 10), Parsed::More { .. }));
        keys.push(b'k');
        assert!(matches!(Requests::default().parse(&keys, 10), Parsed::Broken(_)));
        let binary = Requests::default().parse(&[BINARY; 24], 10);
        assert!(matches!(binary, Parsed::Binary { operation: BINARY, .. }));
    }

    /// Requests are parsed ahead up to one whose block is too long, and taken in their order. With another
    /// limit they are parsed again.
    #[test]
    fn requests_parsed_ahead_are_taken_in_order() {
        let bytes = b"get a b\r\nset k 0 0 1\r\nx\r\nset k 0 0 12\r\n0123456789ab\r\nget c\r\n";
        for limit in [10, 11] {
            let (mut requests, mut ahead) = (Requests::default(), 0);
            while let Some(from) = requests.parse_ahead(bytes, limit) {
                assert_eq!(requests.words(&bytes[from..])[0], [&b"get"[..], b"set", b"set"][ahead]);
                ahead += 1;
            }
            assert_eq!(ahead, 3);
            assert_eq!(whole(&mut requests, bytes), (words(b"get a b"), Block::None, 9));
            assert_eq!(whole(&mut requests, &bytes[9..]), (words(b"set k 0 0 1"), Block::Is(b"x"), 16));
            assert_eq!(whole(&mut requests, &bytes[25..]), (words(b"set k 0 0 12"), Block::TooLong, 14));
            assert_eq!(requests.parse(&bytes[39..], 10), Parsed::Passed { len: 14 });
            assert_eq!(whole(&mut requests, &bytes[53..]), (words(b"get c"), Block::None, 7));
        }
    }
}
