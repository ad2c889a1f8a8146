//! Clients: requests as bytes of a protocol, in pieces that end anywhere.

use super::{KEYS, Key};
use farmem_dpu::parse::guard::Guard;
use farmem_dpu::parse::http::Http;
use farmem_dpu::parse::memcached::Memcached;
use farmem_dpu::parse::records::{Header, Records, Request as RecordRequest};
use farmem_dpu::parse::resp::Resp;
use farmem_dpu::parse::{Access, Broken, Parser};
use farmem_machine::Rng;
use std::collections::VecDeque;

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    Read,
    Write,
    Delete,
    Change,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) ask: Ask,
    pub(super) key: Key,
    /// True if its bytes lie in more than one piece.
    pub(super) torn: bool,
    /// True if the mirror may not have seen it.
    pub(super) unseen: bool,
}

/// Bytes of a connection, and the requests that end in them.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) position: u64,
    pub(super) connection: usize,
    pub(super) bytes: Vec<u8>,
    pub(super) requests: Vec<Request>,
    /// True for the first piece of its connection.
    pub(super) first: bool,
    /// True if the mirror does not have its bytes.
    pub(super) lost: bool,
    /// True if the mirror missed earlier bytes of the connection.
    pub(super) unseen: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Protocol {
    Resp,
    Memcached,
    Http,
    HashMap,
    Pages,
}

impl Protocol {
    pub(super) fn any(rng: &mut Rng) -> Self {
        [Self::Resp, Self::Memcached, Self::Http, Self::HashMap, Self::Pages][rng.below(5) as usize]
    }

    /// Returns a guarded parser at the beginning of a connection.
    pub(super) fn guard(self) -> Guard<AnyParser> {
        let parser = match self {
            Self::Resp => AnyParser::Resp(Resp::new()),
            Self::Memcached => AnyParser::Memcached(Memcached::new()),
            Self::Http => AnyParser::Http(Http::new()),
            Self::HashMap => AnyParser::Records(Records::hash_map()),
            Self::Pages => AnyParser::Records(Records::pages()),
        };
        Guard::new(parser, || {})
    }
}

/// A parser of any protocol.
#[derive(Debug)]
pub(super) enum AnyParser {
    Resp(Resp),
    Memcached(Memcached),
    Http(Http),
    Records(Records),
}

impl Parser for AnyParser {
    fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<(), Broken> {
        match self {
            Self::Resp(parser) => parser.feed(bytes, each),
            Self::Memcached(parser) => parser.feed(bytes, each),
            Self::Http(parser) => parser.feed(bytes, each),
            Self::Records(parser) => parser.feed(bytes, each),
        }
    }

    fn lost(&mut self, bytes: u64) -> bool {
        match self {
            Self::Resp(parser) => parser.lost(bytes),
            Self::Memcached(parser) => parser.lost(bytes),
            Self::Http(parser) => parser.lost(bytes),
            Self::Records(parser) => parser.lost(bytes),
        }
    }

    fn kept(&self) -> usize {
        match self {
            Self::Resp(parser) => parser.kept(),
            Self::Memcached(parser) => parser.kept(),
            Self::Http(parser) => parser.kept(),
            Self::Records(parser) => parser.kept(),
        }
    }
}

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    protocol: Protocol,
    /// Unsent bytes, and the ends of requests in them.
    bytes: Vec<u8>,
    ends: VecDeque<(usize, Request)>,
    /// True if the mirror lost some of its bytes.
    pub(super) blind: bool,
    /// True until the first piece is sent.
    fresh: bool,
}

/// Maximum length in bytes of a piece.
const PIECE_LEN_MAX: u32 = 160;

impl Connection {
    pub(super) const fn new(protocol: Protocol) -> Self {
        Self { protocol, bytes: Vec::new(), ends: VecDeque::new(), blind: false, fresh: true }
    }

    /// Replaces the connection by a new one; unsent bytes are dropped.
    pub(super) fn reconnect(&mut self) {
        *self = Self::new(self.protocol);
    }

    /// Returns the next piece: some requests and the beginning of another, or all unsent bytes.
    pub(super) fn send(&mut self, which: usize, position: u64, rng: &mut Rng) -> Option<Piece> {
        while self.ends.len() < 3 {
            let ask = match rng.below(12) {
                0..=6 => Ask::Read,
                7 | 8 => Ask::Write,
                9 => Ask::Delete,
                _ => Ask::Change,
            };
            // Some keys are requested more often than others.
            let key = if rng.chance(1, 2) { rng.below(KEYS / 4) } else { rng.below(KEYS) };
            emit(self.protocol, ask, key, &mut self.bytes);
            self.ends.push_back((self.bytes.len(), Request { ask, key, torn: false, unseen: false }));
        }
        let whole = self.ends[rng.below(3) as usize].0;
        let len = if rng.chance(1, 3) { 1 + rng.below(PIECE_LEN_MAX) as usize } else { whole };
        let len = len.min(self.bytes.len());
        let bytes: Vec<u8> = self.bytes.drain(..len).collect();
        let mut requests = Vec::new();
        while let Some((_, request)) = self.ends.pop_front_if(|(end, _)| *end <= len) {
            requests.push(request);
        }
        self.ends.iter_mut().for_each(|(end, _)| *end -= len);
        // True if the next request began in this piece, right behind the last one.
        let begun = self.ends.front().is_some() && !self.bytes.is_empty() && !self.begins();
        if let Some((_, request)) = self.ends.front_mut() {
            request.torn |= begun;
        }
        let first = std::mem::take(&mut self.fresh);
        Some(Piece { position, connection: which, bytes, requests, first, lost: false, unseen: false })
    }

    /// Returns true if the unsent bytes begin with a request.
    fn begins(&self) -> bool {
        let Some(&(end, Request { ask, key, .. })) = self.ends.front() else { return true };
        let mut bytes = Vec::new();
        emit(self.protocol, ask, key, &mut bytes);
        bytes.len() == end
    }
}

/// Returns the key of an item in a protocol.
pub(super) fn key_bytes(protocol: Protocol, key: Key) -> Vec<u8> {
    match protocol {
        Protocol::Http => format!("/item{key:02}").into_bytes(),
        Protocol::Pages => u64::from(key).to_be_bytes().to_vec(),
        _ => format!("item{key:02}").into_bytes(),
    }
}

/// Returns the item that a key names.
pub(super) fn item_of(key: &[u8]) -> Key {
    let text = key.strip_prefix(b"/item").or_else(|| key.strip_prefix(b"item"));
    match text.and_then(|digits| std::str::from_utf8(digits).ok()) {
        Some(digits) => digits.parse().expect("a key of this world"),
        None => u32::try_from(u64::from_be_bytes(key.try_into().expect("a page"))).expect("a key"),
    }
}

/// Appends a request.
fn emit(protocol: Protocol, ask: Ask, key: Key, into: &mut Vec<u8>) {
    let name = key_bytes(protocol, key);
    let text = String::from_utf8_lossy(&name);
    match protocol {
        Protocol::Resp => {
            let words: &[&str] = match ask {
                Ask::Read => &["GET", &text],
                Ask::Write => &["SET", &text, "a value\r\n"],
                Ask::Delete => &["GETDEL", &text],
                Ask::Change => &["APPEND", &text, "more"],
            };
            into.extend(format!("*{}\r\n", words.len()).bytes());
            for word in words {
                into.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
            }
        }
        Protocol::Memcached => into.extend(
            match ask {
                Ask::Read => format!("get {text}\r\n"),
                Ask::Write => format!("set {text} 0 0 7\r\na value\r\n"),
                Ask::Delete => format!("delete {text}\r\n"),
                Ask::Change => format!("append {text} 0 0 4\r\nmore\r\n"),
            }
            .bytes(),
        ),
        Protocol::Http => into.extend(
            match ask {
                Ask::Read => format!("GET {text} HTTP/1.1\r\n\r\n"),
                Ask::Write => format!("PUT {text} HTTP/1.1\r\nContent-Length: 7\r\n\r\na value"),
                Ask::Delete => format!("DELETE {text} HTTP/1.1\r\n\r\n"),
                Ask::Change => format!("POST {text} HTTP/1.1\r\nContent-Length: 4\r\n\r\nmore"),
            }
            .bytes(),
        ),
        Protocol::HashMap | Protocol::Pages => {
            let (request, len) = match ask {
                Ask::Read => (RecordRequest::Read, 0),
                Ask::Write => (RecordRequest::Write, 4096),
                Ask::Delete => (RecordRequest::Delete, 0),
                Ask::Change => (RecordRequest::Change, 4096),
            };
            // A page is long and spans many pieces.
            let len = if matches!(protocol, Protocol::Pages) { len } else { len / 512 };
            let key_len = u16::try_from(name.len()).expect("a short key");
            into.extend(Header { request, key_len, value_len: len }.emit());
            into.extend(&name);
            into.resize(into.len() + len as usize, 7);
        }
    }
}
