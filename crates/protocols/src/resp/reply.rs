//! Replies, in the protocol version that a client selected with `HELLO`.

use super::number::double;
use alloc::string::String;
use alloc::vec::Vec;

/// The protocol version of replies.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Protocol {
    /// Simple strings, errors, numbers, bulk strings, arrays.
    #[default]
    Resp2,
    /// The kinds of RESP2, and maps, sets, nulls, doubles, booleans, big numbers, verbatim strings, pushes.
    Resp3,
}

/// Most bytes of a reply in addition to its text: kind, length, form, line ends.
const HEAD_LEN_MAX: usize = 32;

/// Appends replies to a client's output buffer. Kinds that RESP2 lacks are written as Redis does. A map is an
/// array of alternating keys and values, and a set an array. A double, a big number and a verbatim string are
/// bulk strings, and a boolean is 1 or 0.
///
/// A bounded writer ([`Writer::bounded`]) limits the buffer: a client that requests the same large value a
/// million times gets an error, and takes no memory. Output beyond the limit is dropped, and
/// [`Writer::is_over`] returns true: the output is then incomplete, and must be taken back.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
    /// Most bytes of `out`.
    len_max: usize,
    is_over: bool,
}

impl<'a> Writer<'a> {
    /// Creates a writer that appends to `out`.
    #[must_use]
    pub const fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Self {
        Self::bounded(out, protocol, usize::MAX)
    }

    /// Creates a writer that lets `out` grow to at most `len_max` bytes, including its present ones.
    #[must_use]
    pub const fn bounded(out: &'a mut Vec<u8>, protocol: Protocol, len_max: usize) -> Self {
        Self { out, protocol, len_max, is_over: false }
    }

    /// Returns true if output was dropped because of the bound.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns whether `len` more bytes are within the bound, and reserves space for them. The space doubles,
    /// but not beyond the bound.
    fn takes(&mut self, len: usize) -> bool {
        let (had, capacity) = (self.out.len(), self.out.capacity());
        self.is_over |= len > self.len_max.saturating_sub(had);
        if !self.is_over && had + len > capacity {
            let to = (2 * capacity).min(self.len_max).max(had + len);
            self.out.reserve_exact(to - had);
        }
        !self.is_over
    }

    /// Returns the protocol version.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Changes the protocol version from here on.
    pub const fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Returns the length of the output.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.out.len()
    }

    /// Removes the output from `position` on, and clears [`Writer::is_over`].
    pub fn take_back(&mut self, position: usize) {
        self.out.truncate(position);
        self.is_over = false;
    }

    /// Writes a simple string. Line breaks, which would end it early, become spaces.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// Writes an error; its first word is the kind.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text);
    }

    /// Writes an integer.
    pub fn integer(&mut self, number: i64) {
        self.head(b':', number);
    }

    /// Writes a bulk string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        if !self.takes(bytes.len() + HEAD_LEN_MAX) {
            return;
        }
        self.sized(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes a verbatim string, in a form of three letters (`txt`, `mkd`).
    pub fn verbatim(&mut self, form: [u8; 3], text: &[u8]) {
        if self.protocol == Protocol::Resp2 {
            return self.bulk(text);
        }
        if !self.takes(text.len() + HEAD_LEN_MAX) {
            return;
        }
        self.sized(b'=', text.len() + 4);
        self.out.extend_from_slice(&form);
        self.out.push(b':');
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes a null.
    pub fn null(&mut self) {
        if !self.takes(HEAD_LEN_MAX) {
            return;
        }
        self.out.extend_from_slice(if self.protocol == Protocol::Resp2 { b"$-1\r\n" } else { b"_\r\n" });
    }

    /// Writes a null array.
    pub fn null_array(&mut self) {
        if !self.takes(HEAD_LEN_MAX) {
            return;
        }
        self.out.extend_from_slice(if self.protocol == Protocol::Resp2 { b"*-1\r\n" } else { b"_\r\n" });
    }

    /// Writes the head of an array of `len` elements, which follow.
    pub fn array(&mut self, len: usize) {
        self.sized(b'*', len);
    }

    /// Writes the head of a map of `len` pairs, which follow.
    pub fn map(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.sized(b'*', 2 * len),
            Protocol::Resp3 => self.sized(b'%', len),
        }
    }

    /// Writes the head of a set of `len` elements, which follow.
    pub fn set(&mut self, len: usize) {
        self.sized(if self.protocol == Protocol::Resp2 { b'*' } else { b'~' }, len);
    }

    /// Writes the head of a push of `len` elements, which follow.
    pub fn push(&mut self, len: usize) {
        self.sized(if self.protocol == Protocol::Resp2 { b'*' } else { b'>' }, len);
    }

    /// Writes the reply to `HELLO`, in the writer's protocol version, for connection `id` of a server of this
    /// name and version.
    pub fn hello(&mut self, server: &str, version: &str, id: u64) {
        self.map(7);
        let text = |writer: &mut Self, field: &str, text: &str| {
            writer.bulk(field.as_bytes());
            writer.bulk(text.as_bytes());
        };
        text(self, "server", server);
        text(self, "version", version);
        self.bulk(b"proto");
        self.integer(if self.protocol == Protocol::Resp2 { 2 } else { 3 });
        self.bulk(b"id");
        self.integer(i64::try_from(id).unwrap_or(i64::MAX));
        text(self, "mode", "standalone");
        text(self, "role", "master");
        self.bulk(b"modules");
        self.array(0);
    }

    /// Writes a double.
    pub fn double(&mut self, number: f64) {
        let text = double(number);
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => self.line(b',', &text),
        }
    }

    /// Writes a boolean.
    pub fn boolean(&mut self, is: bool) {
        match self.protocol {
            Protocol::Resp2 => self.integer(i64::from(is)),
            Protocol::Resp3 => self.line(b'#', if is { "t" } else { "f" }),
        }
    }

    /// Writes a big number, given its digits.
    pub fn big(&mut self, digits: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(digits.as_bytes()),
            Protocol::Resp3 => self.line(b'(', digits),
        }
    }

    fn line(&mut self, kind: u8, text: &str) {
        // An error reports the dropped output, and is short.
        if kind != b'-' && !self.takes(text.len() + HEAD_LEN_MAX) {
            return;
        }
        self.out.push(kind);
        self.out.extend(text.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
        self.out.extend_from_slice(b"\r\n");
    }

    fn sized(&mut self, kind: u8, len: usize) {
        self.head(kind, i64::try_from(len).expect("no reply is longer than memory"));
    }

    fn head(&mut self, kind: u8, number: i64) {
        if !self.takes(HEAD_LEN_MAX) {
            return;
        }
        // Sign, nineteen digits, line end.
        let mut text = [0; 22];
        let mut at = text.len() - 2;
        text[at..].copy_from_slice(b"\r\n");
        let mut left = number.unsigned_abs();
        loop {
            at -= 1;
            text[at] = b'0' + u8::try_from(left % 10).expect("a digit");
            left /= 10;
            if left == 0 {
                break;
            }
        }
        if number < 0 {
            at -= 1;
            text[at] = b'-';
        }
        self.out.push(kind);
        self.out.extend_from_slice(&text[at..]);
    }
}

/// A reply as a value, for servers with few and short replies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// A simple string.
    Simple(&'static str),
    /// An error; its first word is the kind.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A bulk string.
    Bulk(Vec<u8>),
    /// A null.
    Nil,
    /// An array.
    Array(Vec<Self>),
}

impl Reply {
    /// Appends the encoded reply.
    pub fn emit(&self, into: &mut Writer<'_>) {
        match self {
            Self::Simple(text) => into.simple(text),
            Self::Error(text) => into.error(text),
            Self::Integer(number) => into.integer(*number),
            Self::Bulk(bytes) => into.bulk(bytes),
            Self::Nil => into.null(),
            Self::Array(replies) => {
                into.array(replies.len());
                replies.iter().for_each(|reply| reply.emit(into));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, write: impl FnOnce(&mut Writer<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out, protocol));
        String::from_utf8(out).unwrap()
    }

    /// Each reply in both versions, to the byte.
    #[test]
    fn replies_in_both_forms() {
        type Write = fn(&mut Writer<'_>);
        let cases: [(Write, &str, &str); 14] = [
            (|w| w.simple("O\rK"), "+O K\r\n", "+O K\r\n"),
            (|w| w.error("ERR a\nb"), "-ERR a b\r\n", "-ERR a b\r\n"),
            (|w| w.integer(i64::MIN), ":-9223372036854775808\r\n", ":-9223372036854775808\r\n"),
            (|w| w.integer(0), ":0\r\n", ":0\r\n"),
            (|w| w.bulk(b"a\r\nb"), "$4\r\na\r\nb\r\n", "$4\r\na\r\nb\r\n"),
            (|w| w.verbatim(*b"txt", b"hi"), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n"),
            (|w| w.null(), "$-1\r\n", "_\r\n"),
            (|w| w.null_array(), "*-1\r\n", "_\r\n"),
            (|w| w.map(2), "*4\r\n", "%2\r\n"),
            (|w| w.set(2), "*2\r\n", "~2\r\n"),
            (|w| w.push(3), "*3\r\n", ">3\r\n"),
            (|w| w.double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n"),
            (|w| w.boolean(true), ":1\r\n", "#t\r\n"),
            (
                |w| w.big("-12345678901234567890"),
                "$21\r\n-12345678901234567890\r\n",
                "(-12345678901234567890\r\n",
            ),
        ];
        for (write, two, three) in cases {
            assert_eq!(written(Protocol::Resp2, write), two);
            assert_eq!(written(Protocol::Resp3, write), three);
        }
        let mut out = b"+here\r\n".to_vec();
        let mut bounded = Writer::bounded(&mut out, Protocol::Resp2, 200);
        bounded.array(3);
        bounded.bulk(&[b'a'; 100]);
        bounded.bulk(&[b'b'; 100]);
        bounded.null();
        assert!(bounded.is_over() && bounded.position() <= 200, "{}", bounded.position());
        bounded.take_back(7);
        bounded.error("ERR too long");
        assert!(!bounded.is_over());
        assert_eq!(out, b"+here\r\n-ERR too long\r\n");
        let reply = Reply::Array([Reply::Nil, Reply::Integer(-7), Reply::Simple("OK")].into());
        assert_eq!(written(Protocol::Resp2, |w| reply.emit(w)), "*3\r\n$-1\r\n:-7\r\n+OK\r\n");
    }
}
