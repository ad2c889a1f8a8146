//! Replies, in the form that a client has asked for by `HELLO`.

use crate::number::double;
use alloc::string::String;
use alloc::vec::Vec;

/// The form of replies.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Protocol {
    /// Simple strings, errors, numbers, bulk strings, arrays.
    #[default]
    Resp2,
    /// These, and maps, sets, nulls, doubles, booleans, big numbers, texts with a form, pushes.
    Resp3,
}

/// Bytes of a reply beside its text at most: kind, length, form, line ends.
const HEAD_LEN_MAX: usize = 32;

/// Appends replies to the bytes that a client is sent. What RESP2 has no form for it writes as Redis does: a map as an array of keys and values in turn, a set as an array,
/// a double, a big number and a text as bulk strings, a boolean as 1 or 0.
///
/// A bounded one ([`Writer::bounded`]) takes no more than so many bytes: a client that asks for the same large value a million times gets an error, and no memory. What
/// does not fit is left out, and [`Writer::is_over`] says so: what was written is then no reply, and is to be taken back.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
    /// Bytes that `out` may have.
    len_max: usize,
    is_over: bool,
}

impl<'a> Writer<'a> {
    /// Appends to `out`.
    #[must_use]
    pub const fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Self {
        Self::bounded(out, protocol, usize::MAX)
    }

    /// The same, with at most `len_max` bytes in `out`, those that are there included.
    #[must_use]
    pub const fn bounded(out: &'a mut Vec<u8>, protocol: Protocol, len_max: usize) -> Self {
        Self { out, protocol, len_max, is_over: false }
    }

    /// True when something was left out because of the bound.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether so many bytes more are within the bound; if so there is room for them. Room grows to the double, but not beyond the bound.
    fn takes(&mut self, len: usize) -> bool {
        let (had, capacity) = (self.out.len(), self.out.capacity());
        self.is_over |= len > self.len_max.saturating_sub(had);
        if !self.is_over && had + len > capacity {
            let to = (2 * capacity).min(self.len_max).max(had + len);
            self.out.reserve_exact(to - had);
        }
        !self.is_over
    }

    /// The form that it writes.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The form from here on: a client has asked for another.
    pub const fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Bytes that are there.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.out.len()
    }

    /// Takes back what was written from `position` on, and with it what the bound left out.
    pub fn take_back(&mut self, position: usize) {
        self.out.truncate(position);
        self.is_over = false;
    }

    /// A word of the server's own. Line breaks in it would end it early, and become spaces.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// What went wrong; its first word says of which kind.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text);
    }

    /// A number.
    pub fn integer(&mut self, number: i64) {
        self.head(b':', number);
    }

    /// Bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        if !self.takes(bytes.len() + HEAD_LEN_MAX) {
            return;
        }
        self.sized(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A text that people read, in a form of three letters (`txt`, `mkd`).
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

    /// There is none.
    pub fn null(&mut self) {
        if !self.takes(HEAD_LEN_MAX) {
            return;
        }
        self.out.extend_from_slice(if self.protocol == Protocol::Resp2 { b"$-1\r\n" } else { b"_\r\n" });
    }

    /// There is none, where several were asked for.
    pub fn null_array(&mut self) {
        if !self.takes(HEAD_LEN_MAX) {
            return;
        }
        self.out.extend_from_slice(if self.protocol == Protocol::Resp2 { b"*-1\r\n" } else { b"_\r\n" });
    }

    /// So many follow.
    pub fn array(&mut self, len: usize) {
        self.sized(b'*', len);
    }

    /// So many pairs follow.
    pub fn map(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.sized(b'*', 2 * len),
            Protocol::Resp3 => self.sized(b'%', len),
        }
    }

    /// So many follow, in no order, none twice.
    pub fn set(&mut self, len: usize) {
        self.sized(if self.protocol == Protocol::Resp2 { b'*' } else { b'~' }, len);
    }

    /// So many follow, which the client did not ask for.
    pub fn push(&mut self, len: usize) {
        self.sized(if self.protocol == Protocol::Resp2 { b'*' } else { b'>' }, len);
    }

    /// A number with a fraction.
    pub fn double(&mut self, number: f64) {
        let text = double(number);
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => self.line(b',', &text),
        }
    }

    /// Yes or no.
    pub fn boolean(&mut self, is: bool) {
        match self.protocol {
            Protocol::Resp2 => self.integer(i64::from(is)),
            Protocol::Resp3 => self.line(b'#', if is { "t" } else { "f" }),
        }
    }

    /// A number of any length, by its digits.
    pub fn big(&mut self, digits: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(digits.as_bytes()),
            Protocol::Resp3 => self.line(b'(', digits),
        }
    }

    fn line(&mut self, kind: u8, text: &str) {
        // An error says what was left out, and is short.
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

/// A reply as a value, for servers whose replies are few and short.
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

    /// Each reply in both forms, to the byte.
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
