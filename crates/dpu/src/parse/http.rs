//! HTTP/1.1 requests for items by their path: GET and HEAD read, PUT writes, DELETE deletes, POST and PATCH
//! change.
//!
//! Key type: [`Http`]. The key is the path as sent, without a query. `httparse` parses heads; bodies are
//! skipped by their length or chunk by chunk (RFC 9112 6 and 7). HTTP/2, and connections that switch to
//! another protocol, are not parsed.

use super::line::{Line, decimal};
use super::{Access, Broken, Op, Parser};
use alloc::vec::Vec;
use httparse::Status;

/// Maximum length in bytes of a request's head.
pub const HEAD_LEN_MAX: usize = 16 << 10;
/// Maximum number of header lines of a request.
pub const HEADERS_MAX: usize = 100;
/// Maximum length in bytes of a body or a chunk.
pub const BODY_LEN_MAX: u64 = 1 << 40;
/// Maximum length in bytes of a chunk-size line or a trailer line.
const CHUNK_LINE_LEN_MAX: usize = 4 << 10;
/// Maximum head buffer in bytes that is kept for the next request.
const KEPT_MAX: usize = 4 << 10;

/// The parser's position in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Head,
    /// In a body, with this many bytes left.
    Body(u64),
    /// Before a chunk.
    Size,
    /// In a chunk, with this many bytes left, including its line end.
    Chunk(u64),
    /// After the last chunk.
    Trailer,
}

/// The parser of HTTP requests.
#[derive(Debug)]
pub struct Http {
    state: State,
    head: Vec<u8>,
    line: Line,
}

impl Default for Http {
    fn default() -> Self {
        Self::new()
    }
}

impl Http {
    /// Returns a parser at the beginning of a connection.
    #[must_use]
    pub fn new() -> Self {
        Self { state: State::Head, head: Vec::new(), line: Line::default() }
    }

    /// Continues a head. Returns the number of bytes that belong to it.
    fn head(&mut self, bytes: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<usize, Broken> {
        // The head ends at an empty line, which may begin in the buffer.
        let before = self.head.len();
        let room = HEAD_LEN_MAX - before;
        self.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let end = head_end(&self.head, before.saturating_sub(3));
        let Some(end) = end else {
            if self.head.len() == HEAD_LEN_MAX {
                return Err(Broken { reason: "a request's head has at most 16 KiB" });
            }
            return Ok(bytes.len());
        };
        self.state = request(&self.head[..end], each)?;
        self.head.clear();
        self.head.shrink_to(KEPT_MAX);
        Ok(end - before)
    }

    /// Parses a chunk-size line or a trailer line.
    fn chunk_line(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        let (line, read) = self.line.take(bytes, CHUNK_LINE_LEN_MAX)?;
        if let Some(line) = line {
            self.state = match (self.state, line) {
                (State::Trailer, b"") => State::Head,
                (State::Trailer, _) => State::Trailer,
                (_, line) => match chunk_size(line)? {
                    0 => State::Trailer,
                    size => State::Chunk(size + 2),
                },
            };
        }
        Ok(read)
    }
}

impl Parser for Http {
    fn feed(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<(), Broken> {
        while !bytes.is_empty() {
            let read = match self.state {
                State::Head => self.head(bytes, each)?,
                State::Size | State::Trailer => self.chunk_line(bytes)?,
                State::Body(left) => {
                    let (read, left) = passed_over(bytes, left);
                    self.state = if left == 0 { State::Head } else { State::Body(left) };
                    read
                }
                State::Chunk(left) => {
                    let (read, left) = passed_over(bytes, left);
                    self.state = if left == 0 { State::Size } else { State::Chunk(left) };
                    read
                }
            };
            bytes = &bytes[read..];
        }
        Ok(())
    }

    fn lost(&mut self, bytes: u64) -> bool {
        let after = |left: u64| left.checked_sub(bytes);
        let state = match self.state {
            State::Body(left) => {
                after(left).map(|left| if left == 0 { State::Head } else { State::Body(left) })
            }
            State::Chunk(left) => {
                after(left).map(|left| if left == 0 { State::Size } else { State::Chunk(left) })
            }
            State::Head | State::Size | State::Trailer => None,
        };
        self.state = state.unwrap_or(self.state);
        state.is_some()
    }

    fn kept(&self) -> usize {
        self.head.capacity() + self.line.kept()
    }
}

/// Returns the number of bytes to skip, and how many are left afterwards.
fn passed_over(bytes: &[u8], left: u64) -> (usize, u64) {
    let read = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
    (read, left - read as u64)
}

/// Returns the end of the head whose empty line is at `from` or later. Lines end with `\r\n`, and `httparse`
/// also accepts `\n`.
fn head_end(head: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(end) = head[at..].iter().position(|&byte| byte == b'\n') {
        at += end + 1;
        if head[at..].starts_with(b"\n") {
            return Some(at + 1);
        }
        if head[at..].starts_with(b"\r\n") {
            return Some(at + 2);
        }
    }
    None
}

/// Parses a head, reports the access, and returns the following state.
fn request(head: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<State, Broken> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(Status::Complete(len)) if len == head.len() => {}
        // Empty lines before a request are skipped, as servers do.
        Ok(_) if head.iter().all(|byte| matches!(byte, b'\r' | b'\n')) => return Ok(State::Head),
        Ok(_) => return Err(Broken { reason: "a request's head ends at its first empty line" }),
        Err(_) => return Err(Broken { reason: "this is no HTTP/1.1 request" }),
    }
    let op = match request.method.unwrap_or_default() {
        "GET" | "HEAD" | "POST" | "PATCH" => Some(Op::Read),
        "PUT" => Some(Op::Write),
        "DELETE" => Some(Op::Delete),
        "CONNECT" => return Err(Broken { reason: "what is tunnelled is not read" }),
        _ => None,
    };
    let state = body(request.headers)?;
    if let (Some(op), Some(key)) = (op, path(request.path.unwrap_or_default())) {
        each(Access { key: key.as_bytes(), op });
    }
    Ok(state)
}

/// Returns the state after a head (RFC 9112 6.3). Ambiguous bodies, which two servers might parse
/// differently, are errors.
fn body(headers: &[httparse::Header<'_>]) -> Result<State, Broken> {
    let all = |name: &'static str| {
        headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    };
    if all("upgrade").next().is_some() {
        return Err(Broken { reason: "what a connection is upgraded to is not read" });
    }
    let mut lengths = all("content-length");
    let (length, other) = (lengths.next(), lengths.next());
    let chunked = all("transfer-encoding").next();
    match (length, chunked) {
        (None, None) => Ok(State::Head),
        (Some(_), Some(_)) => Err(Broken { reason: "a body has a length or chunks" }),
        (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => Ok(State::Size),
        (None, Some(_)) => Err(Broken { reason: "chunked is the only coding of bodies that is read" }),
        (Some(_), None) if other.is_some() => Err(Broken { reason: "a body has one length" }),
        (Some(length), None) => match decimal(length, BODY_LEN_MAX) {
            None => Err(Broken { reason: "a body's length is a number up to 1 TiB" }),
            Some(0) => Ok(State::Head),
            Some(length) => Ok(State::Body(length)),
        },
    }
}

/// Returns the path of a request target: `/a?b` and `http://host/a` have one, `*` has none.
fn path(target: &str) -> Option<&str> {
    let path = match target.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => &rest[rest.find('/')?..],
        _ => target,
    };
    let path = path.split(['?', '#']).next().unwrap_or_default();
    path.starts_with('/').then_some(path)
}

/// Returns the chunk length given by a chunk-size line.
fn chunk_size(line: &[u8]) -> Result<u64, Broken> {
    const DIGITS_MAX: usize = 11;
    let digits = line.split(|byte| matches!(byte, b';' | b' ' | b'\t')).next().unwrap_or_default();
    let known = (1..=DIGITS_MAX).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    let size = core::str::from_utf8(digits).ok().filter(|_| known);
    let size = size.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    size.filter(|&size| size <= BODY_LEN_MAX).ok_or(Broken { reason: "a chunk begins with its length" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::kit::{Example, conforms};

    #[test]
    fn http_conforms_to_the_kit() {
        let example = |text: &str, accesses: &[(&str, Op)]| {
            let accesses: Vec<_> = accesses.iter().map(|&(key, op)| (key.as_bytes(), op)).collect();
            Example::of(text.as_bytes(), &accesses)
        };
        let examples = [
            example("GET /a HTTP/1.1\r\nHost: h\r\n\r\n", &[("/a", Op::Read)]),
            example("HEAD /a?x=1 HTTP/1.1\r\n\r\n", &[("/a", Op::Read)]),
            example("PUT /b HTTP/1.1\r\ncontent-LENGTH: 9\r\n\r\nGET / HTT", &[("/b", Op::Write)]),
            example("POST /c HTTP/1.1\r\nContent-Length: 0\r\n\r\n", &[("/c", Op::Read)]),
            example("DELETE http://h:1/d HTTP/1.0\r\n\r\n", &[("/d", Op::Delete)]),
            example("OPTIONS * HTTP/1.1\r\n\r\n", &[]),
            example(
                "PUT /e HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\nwith\r\n0A\r\n0123456789\r\n0\r\nA: b\r\n\r\n",
                &[("/e", Op::Write)],
            ),
            example("GET /f HTTP/1.1\nHost: h\n\n", &[("/f", Op::Read)]),
        ];
        conforms(Http::new, &examples);
    }

    /// Ambiguous requests, and bytes that are no request, are errors.
    #[test]
    fn unreadable_http_is_broken() {
        for wrong in [
            "PUT / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "PUT / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "PUT / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
            "PUT / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "PUT / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
            "GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n",
            "CONNECT h:1 HTTP/1.1\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\n",
            "nonsense\r\n\r\n",
        ] {
            assert!(
                Http::new().feed(wrong.as_bytes(), &mut |access| panic!("{access:?}")).is_err(),
                "{wrong}"
            );
        }
        let mut parser = Http::new();
        parser.feed(b"PUT /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", &mut |_| {}).unwrap();
        assert!(parser.feed(b"FFFFFFFFFFFFFFFF\r\n", &mut |_| {}).is_err());
        let long = alloc::vec![b'x'; HEAD_LEN_MAX + 1];
        assert!(Http::new().feed(&long, &mut |_| {}).is_err());
    }
}
