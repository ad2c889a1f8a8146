//! memcached's text and meta protocols on a port of their own, over the keys of database 0 (memcached's
//! `doc/protocol.txt`; replies are those of 1.6.18).
//!
//! Key function: [`execute::execute`], one request. A change runs as a command of the table
//! ([`crate::command::execute::run`]), so room, eviction, append log and transactions are the same for both protocols.
//! The binary protocol is refused with a message; memcached itself deprecates it.
//!
//! `docs/decisions/2026-11-25-memcached.md` says why no library does this.

pub(crate) mod counts;
pub(crate) mod execute;
mod flags;
mod meta;
pub(crate) mod reply;
mod stats;
mod stored;
mod text;
