//! The protocols of Redis and memcached clients, as a server and a DPU on the way to one read them. Pure.
//!
//! [`resp`] parses requests of Redis's protocol and writes replies; [`memcached`] parses requests of memcached's
//! text and meta protocols; [`commands`] is the table of commands: their arity, flags and the positions of
//! their keys. Not here: the execution of commands, and parsing of replies.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod commands;
pub mod memcached;
mod queue;
pub mod resp;
