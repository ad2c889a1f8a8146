//! What a request parser says of a client's bytes (PD3 5.1).
//!
//! Key types: [`Parser`], one for each connection; [`Access`], a key and what the request will do to it. Parsers see a copy of the bytes: whatever they say or
//! fail to say costs speed, never a wrong value.
//!
//! Parsers here: [`resp::Resp`] (Redis's clients), [`memcached::Memcached`], [`http::Http`], [`records::Records`] (the hash map and the page server). [`guard`] is around each
//! of them, [`kit`] is what every parser is held against; docs/prefetching.md says how to write one.
//!
//! What it does not do: fetch anything, or answer the client. [`HostView`](crate::view::HostView) says what a read will miss.

pub mod guard;
pub mod http;
pub mod kit;
mod line;
pub mod memcached;
pub mod records;
pub mod resp;

use alloc::boxed::Box;

/// What a request does to a key (PD3 5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Needs the item: a read, a read-modify-write.
    Read,
    /// Puts a new item in its place without needing the old one: a blind write.
    Write,
    /// Takes the item away, and needs it for that.
    Delete,
}

/// One access of a request, in the order of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access<'a> {
    /// The item's key.
    pub key: &'a [u8],
    /// What is done to it.
    pub op: Op,
}

/// Why a parser can read no more of this connection. Its bytes are passed over from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken {
    /// What was wrong, in a sentence without a full stop.
    pub reason: &'static str,
}

/// Turns a client's bytes into the accesses that they stand for (PD3 5.1, `Parse(PktBuf, PktLen) -> List<Key, Op>`), over partial packets: it keeps what it needs
/// of a request that is not whole, within a bound of its own.
pub trait Parser {
    /// The next bytes of the connection, in order. Calls `each` for each access as soon as its key is whole.
    ///
    /// # Errors
    /// When they are no requests of this protocol.
    fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<(), Broken>;

    /// Bytes of the connection were not seen. False when the parser cannot find the beginning of a request behind them: then the rest of the connection is not seen
    /// either.
    fn lost(&mut self, bytes: u64) -> bool;

    /// Bytes of memory that it keeps for this connection beside itself, also those that are kept for the next request. [`Guard`](guard::Guard) asks behind each piece: what all parsers of a program keep is
    /// bounded (PROTOCOL 19.12).
    fn kept(&self) -> usize;
}

impl<P: Parser + ?Sized> Parser for Box<P> {
    fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<(), Broken> {
        (**self).feed(bytes, each)
    }

    fn lost(&mut self, bytes: u64) -> bool {
        (**self).lost(bytes)
    }

    fn kept(&self) -> usize {
        (**self).kept()
    }
}
