//! Redis's protocol, RESP2 and RESP3 (redis.io/docs/reference/protocol-spec): what a server reads and writes. Pure.
//!
//! Key types: [`Requests`] reads the requests of a connection, as their bytes come; [`Writer`] writes replies; [`Reply`] is one as a value. A request is an array of
//! bulk strings, or a line of words. Everything that it says of lengths is held against [`Limits`] before a byte is waited for; what is no request ends the connection with
//! a reply that says what was wrong ([`Fault`]).
//!
//! Own code, and no library's: why is in `docs/decisions/2026-11-24-resp.md`. What it does not do: know commands, or
//! read replies.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod number;
mod reply;
mod request;
mod words;

pub use number::{double, integer};
pub use reply::{Protocol, Reply, Writer};
pub use request::{Fault, Limits, Parsed, Requests};
