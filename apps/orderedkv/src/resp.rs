//! Requests and replies of RESP2, the protocol of Redis clients (redis.io/docs/reference/protocol-spec): what a server reads and writes.
//!
//! Key types: [`parse`], [`Parsed`]; [`Reply`]. A request is an array of bulk strings, or a line of words. Everything that it says of lengths is held against a bound
//! before a byte is waited for; what is no request ends the connection with a reply that says what was wrong.
//!
//! Own code, of some 80 lines, because what there is reads any RESP value by recursion: `redis-protocol` 6.0 and `resp-rs` 0.1.8 both overflow the stack, and end
//! the process, on a million times `*1\r\n`. It imports nothing, so that the fuzzer has it as it is.

/// Words of a request at most.
pub const ARGS_MAX: usize = 1_024;
/// Bytes of a word at most: a value, and a little.
pub const ARG_LEN_MAX: usize = (64 << 10) + 512;
/// Bytes of a request at most.
pub const REQUEST_LEN_MAX: usize = 1 << 20;
/// Bytes of a line at most: a length, or a request in one line.
const LINE_LEN_MAX: usize = 4 << 10;

/// What the bytes of a connection begin with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Parsed<'a> {
    /// Nothing whole yet.
    More,
    /// A request.
    Request {
        /// Its words, the command first; none of an empty line.
        args: Vec<&'a [u8]>,
        /// Bytes that it has.
        len: usize,
    },
    /// No request: what is wrong. What follows cannot be read.
    Broken(&'static str),
}

/// Reads the first request.
#[must_use]
pub fn parse(bytes: &[u8]) -> Parsed<'_> {
    match bytes.first() {
        None => Parsed::More,
        Some(b'*') => array(bytes).unwrap_or_else(|parsed| parsed),
        Some(_) => words(bytes),
    }
}

/// An array of bulk strings. What stops it early is an error here.
fn array(bytes: &[u8]) -> Result<Parsed<'_>, Parsed<'_>> {
    let (count, mut at) = number(bytes, 1)?;
    if count > ARGS_MAX {
        return Err(Parsed::Broken("a request has at most 1024 words"));
    }
    let mut args = Vec::with_capacity(count);
    for _ in 0..count {
        match bytes.get(at) {
            None => return Err(Parsed::More),
            Some(b'$') => {}
            Some(_) => return Err(Parsed::Broken("expected '$': the words of a request are bulk strings")),
        }
        let (len, begin) = number(bytes, at + 1)?;
        if len > ARG_LEN_MAX {
            return Err(Parsed::Broken("a word has at most 66048 bytes"));
        }
        at = begin + len + 2;
        if at > REQUEST_LEN_MAX {
            return Err(Parsed::Broken("a request has at most 1 MiB"));
        }
        match bytes.get(begin..at) {
            None => return Err(Parsed::More),
            Some(word) if word.ends_with(b"\r\n") => args.push(&word[..len]),
            Some(_) => return Err(Parsed::Broken("a bulk string is longer than it says")),
        }
    }
    Ok(Parsed::Request { args, len: at })
}

/// The number of a line that begins at `from`, and where the next one does.
fn number(bytes: &[u8], from: usize) -> Result<(usize, usize), Parsed<'_>> {
    // No length that is allowed has more digits.
    const DIGITS: usize = 9;
    let rest = &bytes[from..bytes.len().min(from + DIGITS + 2)];
    let Some(end) = rest.iter().position(|&byte| byte == b'\r') else {
        let digits = rest.len() <= DIGITS && rest.iter().all(u8::is_ascii_digit);
        return Err(if digits {
            Parsed::More
        } else {
            Parsed::Broken("expected a length of up to nine digits")
        });
    };
    let text = std::str::from_utf8(&rest[..end]).unwrap_or_default();
    // Not "+5", which Rust would take.
    let is_number = text.len() <= DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number);
    let number = number.ok_or(Parsed::Broken("expected a length of up to nine digits"))?;
    match rest.get(end + 1) {
        None => Err(Parsed::More),
        Some(b'\n') => Ok((number, from + end + 2)),
        Some(_) => Err(Parsed::Broken("a line ends with \\r\\n")),
    }
}

/// A line of words, as people type them.
fn words(bytes: &[u8]) -> Parsed<'_> {
    let line = &bytes[..bytes.len().min(LINE_LEN_MAX)];
    let Some(end) = line.iter().position(|&byte| byte == b'\n') else {
        return if line.len() < LINE_LEN_MAX {
            Parsed::More
        } else {
            Parsed::Broken("a line has at most 4 KiB")
        };
    };
    let words = line[..end].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let args: Vec<&[u8]> = words.take(ARGS_MAX + 1).collect();
    if args.len() > ARGS_MAX {
        return Parsed::Broken("a request has at most 1024 words");
    }
    Parsed::Request { args, len: end + 1 }
}

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// A word of the server's own.
    Simple(&'static str),
    /// What went wrong; its first word says of which kind.
    Error(String),
    /// A number.
    Integer(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// There is none.
    Nil,
    /// Several, one after the other.
    Array(Vec<Self>),
}

impl Reply {
    /// Appends the reply as it is sent.
    pub fn emit(&self, into: &mut Vec<u8>) {
        match self {
            Self::Simple(text) => into.extend(format!("+{text}\r\n").bytes()),
            // A line break would end the reply early.
            Self::Error(text) => into.extend(format!("-{}\r\n", text.replace(['\r', '\n'], " ")).bytes()),
            Self::Integer(number) => into.extend(format!(":{number}\r\n").bytes()),
            Self::Bulk(bytes) => {
                into.extend(format!("${}\r\n", bytes.len()).bytes());
                into.extend(bytes);
                into.extend(b"\r\n");
            }
            Self::Nil => into.extend(b"$-1\r\n"),
            Self::Array(replies) => {
                into.extend(format!("*{}\r\n", replies.len()).bytes());
                replies.iter().for_each(|reply| reply.emit(into));
            }
        }
    }
}
