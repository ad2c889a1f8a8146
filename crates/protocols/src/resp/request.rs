//! Requests: arrays of bulk strings and lines of words, parsed as bytes arrive.

use super::line::{Unbalanced, split};
use super::number::integer;
use crate::queue::{WordQueue, WordRange};
use alloc::vec::Vec;
use core::fmt;

/// The limits of a request. A server may raise them after a client has authenticated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most words.
    pub words_max: usize,
    /// Most bytes of a word.
    pub word_len_max: usize,
    /// Most bytes of a request.
    pub request_len_max: usize,
    /// Most bytes of a request in one line.
    pub line_len_max: usize,
}

impl Limits {
    /// Redis's own limits: words of 512 MiB, lines of 64 KiB, and 1 GiB in all.
    pub const REDIS: Self = Self {
        words_max: WORDS_MAX,
        word_len_max: 512 << 20,
        request_len_max: 1 << 30,
        line_len_max: 64 << 10,
    };

    /// Returns Redis's limits for an unauthenticated client: ten words of 16 KiB.
    #[must_use]
    pub const fn unauthenticated(self) -> Self {
        Self { words_max: 10, word_len_max: 16 << 10, ..self }
    }
}

/// Most words that Redis ever accepts.
const WORDS_MAX: usize = 0x7fff_ffff;
/// Most bytes of a line with a number: sign, digits, and some wrong characters.
const NUMBER_LEN_MAX: usize = 32;

/// First words of HTTP lines that a browser always sends.
const HTTP: [&[u8]; 2] = [b"POST", b"Host:"];

/// The reason why bytes are not a request. Its text is Redis's, if Redis has one, because clients search for
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The number of words is not a number, or too large for any request.
    WordCount,
    /// More words than this client may send.
    Words {
        /// Most words.
        max: usize,
    },
    /// A word begins with another character than `$`.
    NoBulk {
        /// The first character.
        found: u8,
    },
    /// The length of a word is not a number.
    WordLen,
    /// A word is longer than this client may send.
    Word {
        /// Most bytes of a word.
        max: usize,
    },
    /// No line end follows a word: the word is longer than announced.
    NoLineEnd,
    /// The request is too long.
    Request {
        /// Most bytes of a request.
        max: usize,
    },
    /// The line is too long.
    Line {
        /// Most bytes of a line.
        max: usize,
    },
    /// A quote in a line is not closed.
    Quotes,
    /// A line of HTTP: a web page can make a browser send chosen bytes behind it, to a server on the
    /// browser's machine.
    Http,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::WordCount => f.write_str("invalid multibulk length"),
            Self::Words { max } if max == Limits::REDIS.unauthenticated().words_max => {
                f.write_str("unauthenticated multibulk length")
            }
            Self::Words { max } => {
                write!(f, "invalid multibulk length: a request has at most {max} words")
            }
            Self::NoBulk { found } => write!(f, "expected '$', got '{}'", char::from(found).escape_default()),
            Self::WordLen => f.write_str("invalid bulk length"),
            Self::Word { max } if max == Limits::REDIS.unauthenticated().word_len_max => {
                f.write_str("unauthenticated bulk length")
            }
            Self::Word { max } => write!(f, "invalid bulk length: a word has at most {max} bytes"),
            Self::NoLineEnd => f.write_str("expected \\r\\n behind a bulk string: it is longer than it says"),
            Self::Request { max } => write!(f, "too big request: it has at most {max} bytes"),
            Self::Line { .. } => f.write_str("too big inline request"),
            Self::Quotes => f.write_str("unbalanced quotes in request"),
            Self::Http => f.write_str("this is HTTP, and no browser speaks Redis's protocol"),
        }
    }
}

/// The result of parsing a connection's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// The request is incomplete.
    More {
        /// Least bytes of the request, including the present ones.
        least: usize,
    },
    /// A complete request; [`Requests::word`] returns its words. An empty request has no reply.
    Whole {
        /// Length of the request in bytes.
        len: usize,
    },
    /// An invalid request. Later bytes cannot be parsed.
    Broken(Fault),
}

/// An incremental parser of requests. It remembers its position in an incomplete request: no byte is parsed
/// twice, however small the pieces, and however far [`Requests::parse_ahead`] looks.
#[derive(Clone, Default, Debug)]
pub struct Requests {
    /// Words, and whether they are in the text of lines.
    queue: WordQueue<bool>,
    /// The words of lines, without quotes and escapes.
    text: Vec<u8>,
    /// The limits of the requests that were parsed ahead.
    limits: Option<Limits>,
    /// Words still to come; `None` before the request's first line.
    left: Option<usize>,
    /// Bytes of the request parsed so far.
    at: usize,
    done: bool,
}

impl Requests {
    /// Creates a parser.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses the request at the front of `bytes`, or takes it if it was parsed ahead. After
    /// [`Parsed::More`], `bytes` must begin with the same bytes and have more; after [`Parsed::Whole`], with
    /// the next request.
    pub fn parse(&mut self, bytes: &[u8], limits: &Limits) -> Parsed {
        if self.queue.has_ahead() {
            if self.limits == Some(*limits) {
                return Parsed::Whole { len: self.queue.take().unwrap_or_default() };
            }
            // A request before this one changed the limits.
            self.forget();
        }
        self.parse_next(bytes, limits)
    }

    /// Parses the first request of `bytes` that was not parsed yet, and has it wait for [`Requests::parse`].
    /// `bytes` begin as for that function. [`Requests::words`] returns the words of the request, given the
    /// bytes from the returned position on.
    pub fn parse_ahead(&mut self, bytes: &[u8], limits: &Limits) -> Option<usize> {
        let differs = self.queue.has_ahead() && self.limits != Some(*limits);
        if differs || self.queue.is_full() {
            return None;
        }
        let from = self.queue.ahead_len();
        let Parsed::Whole { .. } = self.parse_next(&bytes[from..], limits) else { return None };
        self.limits = Some(*limits);
        self.queue.keep();
        Some(from)
    }

    fn parse_next(&mut self, bytes: &[u8], limits: &Limits) -> Parsed {
        if core::mem::take(&mut self.done) {
            (self.left, self.at) = (None, 0);
            if self.queue.has_ahead() {
                self.queue.begin();
            } else {
                self.forget();
            }
        } else if !self.queue.has_ahead() {
            self.queue.drop_done();
            self.text.clear();
        }
        let parsed = match (bytes.first(), self.left) {
            (None, _) => Ok(Parsed::More { least: 1 }),
            (Some(b'*'), _) | (_, Some(_)) => self.array(bytes, limits),
            (Some(_), None) => self.in_line(bytes, limits),
        };
        let parsed = parsed.unwrap_or_else(Parsed::Broken);
        self.done = !matches!(parsed, Parsed::More { .. });
        parsed
    }

    /// Returns the number of words of the last request.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.words().len()
    }

    /// Returns true for an empty line, and before the first request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a word of the last request, given the request's `bytes`.
    ///
    /// # Panics
    /// If there are not as many words, or `bytes` are not the parsed ones.
    #[must_use]
    pub fn word<'a>(&'a self, bytes: &'a [u8], number: usize) -> &'a [u8] {
        let WordRange { from, to } = self.queue.words()[number];
        &self.source(bytes)[from..to]
    }

    /// Returns all words of the last request.
    pub fn words<'a>(&'a self, bytes: &'a [u8]) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone {
        let source = self.source(bytes);
        self.queue.words().iter().map(move |word| &source[word.from..word.to])
    }

    fn source<'a>(&'a self, bytes: &'a [u8]) -> &'a [u8] {
        if self.queue.current().form { &self.text } else { bytes }
    }

    /// Returns whether requests were parsed ahead and not taken.
    #[must_use]
    pub fn has_ahead(&self) -> bool {
        self.queue.has_ahead()
    }

    /// Returns the parser's memory in bytes: positions of words, and the words of lines.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.queue.bytes() + self.text.capacity()
    }

    /// Abandons the incomplete request, and those that were parsed ahead.
    pub fn forget(&mut self) {
        // Releases the memory of a long request.
        self.queue.clear();
        self.text.clear();
        self.text.shrink_to(4 << 10);
        (self.left, self.at, self.done) = (None, 0, false);
    }

    fn array(&mut self, bytes: &[u8], limits: &Limits) -> Result<Parsed, Fault> {
        let mut left = match self.left {
            Some(left) => left,
            None => match number(bytes, 1) {
                Number::More => return Ok(Parsed::More { least: bytes.len() + 1 }),
                Number::Is(count, next) => {
                    self.at = next;
                    words_of(count, limits)?
                }
                Number::Wrong => return Err(Fault::WordCount),
            },
        };
        while left > 0 {
            self.left = Some(left);
            match bytes.get(self.at) {
                None => return Ok(Parsed::More { least: bytes.len() + 1 }),
                Some(b'$') => {}
                Some(&found) => return Err(Fault::NoBulk { found }),
            }
            let (len, from) = match number(bytes, self.at + 1) {
                Number::More => return Ok(Parsed::More { least: bytes.len() + 1 }),
                Number::Is(len, from) => (usize::try_from(len).map_err(|_| Fault::WordLen)?, from),
                Number::Wrong => return Err(Fault::WordLen),
            };
            if len > limits.word_len_max {
                return Err(Fault::Word { max: limits.word_len_max });
            }
            let end = from + len + 2;
            if end > limits.request_len_max {
                return Err(Fault::Request { max: limits.request_len_max });
            }
            // Checks the line end as far as it has arrived.
            if bytes.get(from + len..bytes.len().min(end)).is_some_and(|end| !b"\r\n".starts_with(end)) {
                return Err(Fault::NoLineEnd);
            }
            if bytes.len() < end {
                return Ok(Parsed::More { least: end });
            }
            self.queue.push(from, from + len);
            self.at = end;
            left -= 1;
        }
        self.queue.end(self.at, false);
        Ok(Parsed::Whole { len: self.at })
    }

    fn in_line(&mut self, bytes: &[u8], limits: &Limits) -> Result<Parsed, Fault> {
        let seen = self.at.min(bytes.len());
        let window = bytes.len().min(limits.line_len_max);
        let Some(end) = bytes[seen.min(window)..window].iter().position(|&byte| byte == b'\n') else {
            if bytes.len() >= limits.line_len_max {
                return Err(Fault::Line { max: limits.line_len_max });
            }
            self.at = bytes.len();
            return Ok(Parsed::More { least: bytes.len() + 1 });
        };
        let end = seen + end;
        let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
        split(line, &mut self.text, |from, to| self.queue.push(from, to))
            .map_err(|Unbalanced| Fault::Quotes)?;
        let words = self.queue.parsed();
        if words.len() > limits.words_max {
            return Err(Fault::Words { max: limits.words_max });
        }
        let first = words.first().map_or(&[][..], |word| &self.text[word.from..word.to]);
        // As in Redis: for any method, the host line precedes the bytes that the page chose.
        if HTTP.iter().any(|word| first.eq_ignore_ascii_case(word)) {
            return Err(Fault::Http);
        }
        self.queue.end(end + 1, true);
        Ok(Parsed::Whole { len: end + 1 })
    }
}

/// Returns the announced number of words; a negative number is none, as in Redis.
fn words_of(count: i64, limits: &Limits) -> Result<usize, Fault> {
    match usize::try_from(count) {
        Err(_) => Ok(0),
        Ok(count) if count > WORDS_MAX => Err(Fault::WordCount),
        Ok(count) if count > limits.words_max => Err(Fault::Words { max: limits.words_max }),
        Ok(count) => Ok(count),
    }
}

enum Number {
    More,
    /// The number, and the start of the next line.
    Is(i64, usize),
    Wrong,
}

/// Parses the number of the line that begins at `from`.
fn number(bytes: &[u8], from: usize) -> Number {
    let rest = &bytes[from..bytes.len().min(from + NUMBER_LEN_MAX)];
    let Some(end) = rest.iter().position(|&byte| byte == b'\r') else {
        let may_be =
            rest.iter().enumerate().all(|(at, byte)| byte.is_ascii_digit() || (at == 0 && *byte == b'-'));
        return if may_be && rest.len() < NUMBER_LEN_MAX { Number::More } else { Number::Wrong };
    };
    match (integer(&rest[..end]), rest.get(end + 1)) {
        (None, _) => Number::Wrong,
        (Some(_), None) if end + 1 < NUMBER_LEN_MAX => Number::More,
        (Some(value), Some(b'\n')) => Number::Is(value, from + end + 2),
        (Some(_), _) => Number::Wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString as _};
    use alloc::vec;

    fn all(mut bytes: &[u8], limits: &Limits) -> Result<Vec<Vec<String>>, Fault> {
        let (mut requests, mut found) = (Requests::new(), Vec::new());
        loop {
            match requests.parse(bytes, limits) {
                Parsed::More { .. } => return Ok(found),
                Parsed::Broken(fault) => return Err(fault),
                Parsed::Whole { len } => {
                    found.push(
                        requests.words(bytes).map(|word| String::from_utf8(word.to_vec()).unwrap()).collect(),
                    );
                    bytes = &bytes[len..];
                }
            }
        }
    }

    #[test]
    fn arrays_and_lines_one_after_the_other() {
        let bytes = b"*2\r\n$4\r\nECHO\r\n$4\r\na\r\nb\r\nset  \"a b\\x41\\n\" 'it\\'s'\r\n\r\n*0\r\n*-1\r\nPING\n*1\r\n$4\r\nPI";
        let words = all(bytes, &Limits::REDIS).unwrap();
        assert_eq!(
            words,
            [vec!["ECHO", "a\r\nb"], vec!["set", "a bA\n", "it's"], vec![], vec![], vec![], vec!["PING"]]
        );
    }

    /// A request that arrives byte by byte parses as one that arrives at once, and reports its missing bytes.
    #[test]
    fn pieces() {
        let bytes = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10\r\n0123456789\r\n";
        let mut requests = Requests::new();
        for end in 0..bytes.len() {
            let Parsed::More { least } = requests.parse(&bytes[..end], &Limits::REDIS) else {
                panic!("{end}")
            };
            assert!(least > end && least <= bytes.len());
        }
        assert_eq!(requests.parse(bytes, &Limits::REDIS), Parsed::Whole { len: bytes.len() });
        assert_eq!(requests.word(bytes, 2), b"0123456789");
        let Parsed::More { least } = requests.parse(&bytes[..26], &Limits::REDIS) else { panic!() };
        assert_eq!(least, bytes.len(), "the length of the word is known");
    }

    /// Requests are parsed ahead while another one waits, and each is taken in its order with its words: of
    /// arrays, of lines, and of one that arrives in two pieces. After a change of the limits the rest is parsed
    /// again.
    #[test]
    fn requests_parsed_ahead_are_taken_in_order() {
        let bytes = b"*1\r\n$1\r\na\r\nset 'b c' d\r\n\r\n*2\r\n$1\r\ne\r\n$2\r\nff\r\n";
        let mut requests = Requests::new();
        let mut ahead = Vec::new();
        let part = bytes.len() - 4;
        for end in [part, bytes.len()] {
            while let Some(from) = requests.parse_ahead(&bytes[..end], &Limits::REDIS) {
                ahead.extend(requests.words(&bytes[from..]).map(<[u8]>::to_vec));
            }
        }
        assert_eq!(ahead, [&b"a"[..], b"set", b"b c", b"d", b"e", b"ff"]);
        let (mut taken, mut at) = (Vec::new(), 0);
        for _ in 0..2 {
            let Parsed::Whole { len } = requests.parse(&bytes[at..], &Limits::REDIS) else { panic!() };
            taken.extend(requests.words(&bytes[at..]).map(<[u8]>::to_vec));
            at += len;
        }
        assert_eq!(taken, ahead[..4]);
        let stranger = Limits::REDIS.unauthenticated();
        assert_eq!(requests.parse(&bytes[at..], &stranger), Parsed::Whole { len: 2 });
        assert!(requests.is_empty());
        let tiny = Limits { word_len_max: 1, ..stranger };
        assert_eq!(requests.parse(&bytes[at + 2..], &tiny), Parsed::Broken(Fault::Word { max: 1 }));
    }

    /// A pipeline whose pieces always end within a request, of arrays and of lines, keeps no words of executed requests.
    #[test]
    fn executed_requests_leave_no_words() {
        let one = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10\r\n0123456789\r\nset 'a b' c\r\n";
        let stream = one.repeat(20_000);
        let (mut requests, mut input, mut taken) = (Requests::new(), Vec::new(), 0);
        for piece in stream.chunks(1000) {
            input.extend_from_slice(piece);
            while requests.parse_ahead(&input, &Limits::REDIS).is_some() {}
            while let Parsed::Whole { len } = requests.parse(&input, &Limits::REDIS) {
                let words: Vec<&[u8]> = requests.words(&input).collect();
                let expected = [[&b"SET"[..], b"k", b"0123456789"], [&b"set"[..], b"a b", b"c"]][taken % 2];
                assert_eq!(words, expected);
                input.drain(..len);
                taken += 1;
            }
            assert!(requests.bytes() < 64 << 10, "{} bytes after {taken} requests", requests.bytes());
        }
        assert_eq!((taken, input.len()), (40_000, 0));
    }

    /// A web page makes its browser send a form to a Redis-protocol server on the same machine. The HTTP
    /// lines before the body would be unknown commands, and the body, which the page chose, would be
    /// executed. Nothing behind such a line is parsed.
    #[test]
    fn http_of_a_web_page_is_refused() {
        for bytes in [
            &b"POST / HTTP/1.1\r\nHost: localhost:6379\r\n\r\nSET 5 pwned\r\n"[..],
            b"PUT / HTTP/1.1\r\nhost: localhost:6379\r\n\r\nSET 5 pwned\r\n",
        ] {
            assert_eq!(all(bytes, &Limits::REDIS), Err(Fault::Http));
        }
        assert_eq!(all(b"SET POST Host:\r\n", &Limits::REDIS).unwrap(), [["SET", "POST", "Host:"]]);
    }

    /// Faults have Redis's texts.
    #[test]
    fn faults() {
        for (bytes, text) in [
            (&b"*x\r\n"[..], "invalid multibulk length"),
            (b"*+1\r\n", "invalid multibulk length"),
            (b"*01\r\n", "invalid multibulk length"),
            (b"*3000000000\r\n", "invalid multibulk length"),
            (b"*99999999999999999999999999999999999", "invalid multibulk length"),
            (b"*1\rx", "invalid multibulk length"),
            (b"*1\r\n*1\r\n", "expected '$', got '*'"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$600000000\r\n", "invalid bulk length: a word has at most 536870912 bytes"),
            (b"*1\r\n$1\r\nabc", "expected \\r\\n behind a bulk string: it is longer than it says"),
            (b"get 'a\r\n", "unbalanced quotes in request"),
            (b"get 'a'b\r\n", "unbalanced quotes in request"),
        ] {
            assert_eq!(all(bytes, &Limits::REDIS).unwrap_err().to_string(), text, "{bytes:?}");
        }
        assert_eq!(
            all(&vec![b'x'; 65_536], &Limits::REDIS).unwrap_err().to_string(),
            "too big inline request"
        );
        let stranger = Limits::REDIS.unauthenticated();
        assert_eq!(all(b"*11\r\n", &stranger).unwrap_err().to_string(), "unauthenticated multibulk length");
        assert_eq!(
            all(b"*1\r\n$16385\r\n", &stranger).unwrap_err().to_string(),
            "unauthenticated bulk length"
        );
    }
}
