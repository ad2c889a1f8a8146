//! The two RoCEv2 transport services that farmem uses, as pure state machines.
//!
//! - [`rc`]: reliable connections between fixed endpoints, for READ, WRITE, CMP_SWAP and FETCH_ADD between a
//!   host and a memory node.
//! - [`ud`]: datagrams that the switch routes: request ids, the requester's timers, and de-duplication at the
//!   server.
//! - [`image`]: the switch's soft state, which many datagrams transfer and which takes effect as one.
//!
//! These state machines are parts of roles and not roles themselves: frames go straight into the role's
//! outbox. This crate has no memory, socket or clock.
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

/// A change of the peer list, which a role reports to its driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerChange {
    /// The port.
    pub port: Port,
    /// Network address of the port; `None` if the port left.
    pub gid: Option<Gid>,
}
