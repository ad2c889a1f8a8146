//! Redis's protocol, RESP2 and RESP3 (redis.io/docs/reference/protocol-spec), from a server's side.
//!
//! Key types: [`Requests`] parses the requests of a connection as bytes arrive; [`Writer`] writes replies;
//! [`Reply`] is a reply as a value. A request is an array of bulk strings, or a line of words. All its
//! lengths are checked against [`Limits`] before any byte is awaited. An invalid request ends the connection
//! with a reply that states the reason ([`Fault`]).
//!
//! `docs/decisions/2026-11-24-resp.md` explains why this is not a library.

mod line;
mod number;
mod reply;
mod request;

pub use number::{double, integer};
pub use reply::{Protocol, Reply, Writer};
pub use request::{Fault, Limits, Parsed, Requests};
