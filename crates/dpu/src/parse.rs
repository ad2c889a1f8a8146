//! Request parsers: turn a client's bytes into accesses (PD3 5.1).
//!
//! Key types: [`Parser`], one for each connection; [`Access`], a key and the operation on it. Parsers see a
//! copy of the bytes: a wrong or missing access costs time, never a wrong value.
//!
//! Parsers: [`resp::Resp`] (Redis clients), [`memcached::Memcached`], [`http::Http`], [`records::Records`]
//! (the hash map and the page server). [`guard`] wraps each of them, and [`kit`] tests every parser;
//! docs/prefetching.md explains how to write one. Parsers fetch nothing and do not answer the client.
//! [`HostView`](crate::view::HostView) predicts which reads will miss.

pub mod guard;
pub mod http;
pub mod kit;
mod line;
pub mod memcached;
pub mod records;
pub mod resp;

use alloc::boxed::Box;
use farmem_protocols::commands;

/// The operation of a request on a key (PD3 5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Needs the item: a read, or a read-modify-write.
    Read,
    /// Replaces the item without reading it: a blind write.
    Write,
    /// Removes the item, and reads it for that.
    Delete,
}

impl Op {
    /// Returns the operation that a command's use of a key means for the item (PD3 5.1: "Read-Modify-Write should be
    /// parsed as Read").
    #[must_use]
    pub fn of(access: commands::Access) -> Self {
        match access {
            commands::RM_DELETE => Self::Delete,
            commands::OW_UPDATE => Self::Write,
            _ => Self::Read,
        }
    }
}

/// One access of a request, in the order of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access<'a> {
    /// The item's key.
    pub key: &'a [u8],
    /// The operation on it.
    pub op: Op,
}

/// The error of a parser that cannot read this connection any further. Its bytes are skipped from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken {
    /// The reason, in a sentence without a full stop.
    pub reason: &'static str,
}

/// A parser that turns a client's bytes into accesses (PD3 5.1, `Parse(PktBuf, PktLen) -> List<Key, Op>`). A parser
/// accepts partial packets: it buffers the needed part of an incomplete request, within its own limit.
pub trait Parser {
    /// Parses the next bytes of the connection, in order. Calls `each` for each access as soon as its key is
    /// complete.
    ///
    /// # Errors
    ///
    /// If the bytes are no requests of this protocol.
    fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<(), Broken>;

    /// Reports that bytes of the connection were lost. Returns false if the parser cannot find the beginning
    /// of the next request: then the rest of the connection is not parsed.
    fn lost(&mut self, bytes: u64) -> bool;

    /// Returns the heap memory in bytes that the parser keeps for this connection, including reusable
    /// buffers. [`Guard`](guard::Guard) asks after each piece: the memory of all parsers of a program is
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
