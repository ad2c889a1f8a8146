//! Constructors of requests without the fields that only special callers set: members with cards (PROTOCOL
//! 14.1), hosts that cache without a directory (8.53), and callers that remove others from the rack (8.9).

use super::{Allocate, Connect, HoldObject, JoinHost, JoinNode, Leave, LoadObject, OpenMode, OpenObject};
use alloc::string::String;

impl JoinNode {
    /// Returns the join of a memory node of farmem.
    #[must_use]
    pub const fn new(name: String, gid: String, capacity: u64) -> Self {
        Self { name, gid, capacity, qpn: None, qkey: None, card: None }
    }
}

impl JoinHost {
    /// Returns the join of a host of farmem, whose endpoint the control plane assigns.
    #[must_use]
    pub const fn new(name: String, gid: String) -> Self {
        Self { name, gid, qpn: None, qkey: None, caches: None }
    }
}

impl Leave {
    /// Returns the removal of the member at this port.
    #[must_use]
    pub const fn new(port: u32) -> Self {
        Self { port, generation: None }
    }
}

impl Allocate {
    /// Returns an allocation on the node with the least allocated bytes, for as long as the domain has users.
    #[must_use]
    pub const fn new(domain: u32, size: u64) -> Self {
        Self { domain, size, node: None, durable: false }
    }
}

impl OpenObject {
    /// Returns the request to open the object with this name, shared.
    #[must_use]
    pub const fn new(host: u16, domain: u32, name: String) -> Self {
        Self { host, domain, name, create: false, exclusive: false, mode: OpenMode::Shared }
    }
}

impl HoldObject {
    /// Returns the request to open the object, shared.
    #[must_use]
    pub const fn new(host: u16, object: u64) -> Self {
        Self { host, object, mode: OpenMode::Shared }
    }
}

impl LoadObject {
    /// Returns the request to give an object a file of a node, or to repeat a failed load.
    #[must_use]
    pub const fn new(host: u16, object: u64, node: u16, file: String, length: u64) -> Self {
        Self { host, object, node, file, length, accept: false }
    }
}

impl Connect {
    /// Returns the request for a connection whose numbers the control plane assigns.
    #[must_use]
    pub const fn new(host: u16, node: u16, domain: u32) -> Self {
        Self { host, node, domain, qpn: None, first_psn: None, through: false, root: None }
    }
}
