//! The parser of memcached's text and meta protocols: a line, and a block of data after that of a storage
//! command.
//!
//! Key type: [`Reader`]. The parser knows which commands have a block, and its length; their execution parses
//! the rest of a line. Bytes that wait are bounded by [`Limits`], and a block that is too long is skipped as
//! it arrives.

use super::number::signed;
use smallvec::SmallVec;

/// Bytes of a key at most.
pub(super) const KEY_LEN_MAX: usize = 250;
/// Bytes of a line at most: one `get` of a few hundred keys.
const LINE_LEN_MAX: usize = 64 << 10;
/// Bytes of any other line, as in memcached.
const COMMAND_LEN_MAX: usize = 2048;
/// Bytes of a binary request in front of its key.
const BINARY_HEAD_LEN: usize = 24;
/// The first byte of a binary request.
const BINARY: u8 = 0x80;

/// Words of a line.
pub(super) type Words<'a> = SmallVec<[&'a [u8]; 12]>;

/// The data after a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Block<'a> {
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
pub(crate) enum Next<'a> {
    /// Not a whole request; the request has at least `least` bytes.
    More { least: usize },
    /// Bytes of a block that is skipped.
    Passed { len: usize },
    /// A request.
    Whole { line: &'a [u8], block: Block<'a>, len: usize },
    /// Not a request. The bytes after it cannot be parsed.
    Broken(&'static str),
    /// A binary request: its operation, and the word by which the client finds the reply.
    Binary { operation: u8, opaque: [u8; 4] },
}

/// A parser of consecutive requests.
#[derive(Clone, Default, Debug)]
pub(crate) struct Reader {
    /// Bytes of the current line that have no line end in them.
    seen: usize,
    /// Bytes that are to be skipped.
    passes: u64,
}

impl Reader {
    /// Parses the start of `bytes`; the longest block has `value_len_max` bytes. After [`Next::More`] the
    /// caller passes the same bytes again, with more behind them.
    pub(crate) fn next<'a>(&mut self, bytes: &'a [u8], value_len_max: usize) -> Next<'a> {
        if self.passes > 0 && !bytes.is_empty() {
            let len = usize::try_from(self.passes).map_or(bytes.len(), |passes| passes.min(bytes.len()));
            self.passes -= len as u64;
            return Next::Passed { len };
        }
        if bytes.first() == Some(&BINARY) {
            return binary(bytes);
        }
        let window = bytes.len().min(LINE_LEN_MAX);
        let from = self.seen.min(window);
        let Some(end) = bytes[from..window].iter().position(|&byte| byte == b'\n').map(|at| from + at) else {
            self.seen = bytes.len();
            if bytes.len() >= LINE_LEN_MAX || (bytes.len() > COMMAND_LEN_MAX && !asks(bytes)) {
                return Next::Broken("CLIENT_ERROR line too long");
            }
            return Next::More { least: bytes.len() + 1 };
        };
        // As in C, a line ends at a zero byte.
        let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
        let line = line.split(|&byte| byte == 0).next().unwrap_or(line);
        let Some(wanted) = block_len(line) else {
            self.seen = 0;
            return Next::Whole { line, block: Block::None, len: end + 1 };
        };
        if wanted > value_len_max {
            (self.seen, self.passes) = (0, wanted as u64 + 2);
            return Next::Whole { line, block: Block::TooLong, len: end + 1 };
        }
        let whole = end + 1 + wanted + 2;
        if bytes.len() < whole {
            self.seen = end;
            return Next::More { least: whole };
        }
        self.seen = 0;
        let (data, rest) = bytes[end + 1..whole].split_at(wanted);
        let block = if rest == b"\r\n" { Block::Is(data) } else { Block::NoLineEnd };
        Next::Whole { line, block, len: whole }
    }
}

/// Returns whether a line may be long.
fn asks(bytes: &[u8]) -> bool {
    let from = bytes.iter().take(100).position(|&byte| byte != b' ').unwrap_or(0);
    [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|name| bytes[from..].starts_with(name))
}

fn binary(bytes: &[u8]) -> Next<'_> {
    match bytes.get(12..16).and_then(|opaque| opaque.try_into().ok()) {
        Some(opaque) if bytes.len() >= BINARY_HEAD_LEN => Next::Binary { operation: bytes[1], opaque },
        _ => Next::More { least: BINARY_HEAD_LEN },
    }
}

/// Returns the words of a line.
pub(super) fn words(line: &[u8]) -> Words<'_> {
    line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect()
}

/// Returns the length of the block after a line, without its line end. `None` if there is no block, or the
/// line is refused without it.
fn block_len(line: &[u8]) -> Option<usize> {
    let words = words(line);
    let (at, least, most) = match *words.first()? {
        b"set" | b"add" | b"replace" | b"append" | b"prepend" => (4, 5, 6),
        b"cas" => (4, 6, 7),
        b"ms" => (2, 3, 19),
        _ => return None,
    };
    if !(least..=most).contains(&words.len()) || words[1].len() > KEY_LEN_MAX {
        return None;
    }
    if at == 4 {
        let has_numbers = super::number::short(words[2]).is_some() && signed(words[3]).is_some();
        let has_cas = words[0] != b"cas" || super::number::unsigned(words[5]).is_some();
        if !has_numbers || !has_cas {
            return None;
        }
    }
    usize::try_from(signed(words[at])?).ok().filter(|&len| len <= i32::MAX as usize - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes arrive one by one, blocks have another length than their lines say, and lines never end: the
    /// parser finds the same requests, or refuses them.
    #[test]
    fn requests_in_pieces() {
        let bytes = b"set k 1 0 3\r\na\r\n\r\nget k\n";
        let mut reader = Reader::default();
        for end in 1..18 {
            assert!(
                matches!(reader.next(&bytes[..end], 10), Next::More { least } if least > end && least <= 18),
                "{end}"
            );
        }
        assert_eq!(
            reader.next(bytes, 10),
            Next::Whole { line: b"set k 1 0 3", block: Block::Is(b"a\r\n"), len: 18 }
        );
        assert_eq!(reader.next(&bytes[18..], 10), Next::Whole { line: b"get k", block: Block::None, len: 6 });
        let wrong = b"set k 1 0 1\r\nabcd";
        assert_eq!(
            reader.next(wrong, 10),
            Next::Whole { line: b"set k 1 0 1", block: Block::NoLineEnd, len: 16 }
        );
        let long = b"set k 1 0 2000000000\r\nabcd";
        assert_eq!(
            reader.next(long, 10),
            Next::Whole { line: b"set k 1 0 2000000000", block: Block::TooLong, len: 22 }
        );
        assert_eq!(reader.next(&long[22..], 10), Next::Passed { len: 4 });
        let mut reader = Reader::default();
        assert!(matches!(reader.next(&[b'x'; COMMAND_LEN_MAX + 1], 10), Next::Broken(_)));
        let mut keys = b"get ".to_vec();
        keys.resize(LINE_LEN_MAX - 1, b'k');
        assert!(matches!(Reader::default().next(&keys, 10), Next::More { .. }));
        keys.push(b'k');
        assert!(matches!(Reader::default().next(&keys, 10), Next::Broken(_)));
        assert!(matches!(Reader::default().next(&[BINARY; 24], 10), Next::Binary { operation: BINARY, .. }));
    }
}
