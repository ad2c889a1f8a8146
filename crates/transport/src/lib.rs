//! The two RoCEv2 transport services farmem uses, as pure state machines.
//!
//! [`rc`]: reliable connections, where the endpoint is known: READ, WRITE, CMP_SWAP, FETCH_ADD between a host and a memory
//! node. [`ud`]: datagrams, where the network decides: requests with ids, the requester's timers, and de-duplication at the server.
//! [`image`]: what travels in many datagrams and stands as one, the switch's soft state.
//!
//! These are parts that roles own, not roles: frames go straight into the role's outbox. No memory, socket or clock is here.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod image;
mod memory;
pub mod rc;
pub mod ud;

pub use memory::{Access, AccessError, Memory};

use farmem_machine::Port;
use farmem_wire::Gid;

/// What every role tells its driver: where a port is, or that it is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerChange {
    /// The port.
    pub port: Port,
    /// Its address; `None` when it left.
    pub gid: Option<Gid>,
}
