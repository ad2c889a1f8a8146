//! Requests without the fields that only some callers fill in: members with cards (PROTOCOL 14.1), hosts that cache without a directory (8.53), and whoever takes
//! others out of the rack (8.9).

use super::{Allocate, Connect, HoldObject, JoinHost, JoinNode, Leave, LoadObject, OpenMode, OpenObject};
use alloc::string::String;

impl JoinNode {
    /// A memory node of farmem.
    #[must_use]
    pub const fn new(name: String, gid: String, capacity: u64) -> Self {
        Self { name, gid, capacity, qpn: None, qkey: None, card: None }
    }
}

impl JoinHost {
    /// A host of farmem, whose endpoint the control plane draws.
    #[must_use]
    pub const fn new(name: String, gid: String) -> Self {
        Self { name, gid, qpn: None, qkey: None, caches: None }
    }
}

impl Leave {
    /// Whoever has this port leaves.
    #[must_use]
    pub const fn new(port: u32) -> Self {
        Self { port, generation: None }
    }
}

impl Allocate {
    /// On the node that has the least allocated, until the domain has no user.
    #[must_use]
    pub const fn new(domain: u32, size: u64) -> Self {
        Self { domain, size, node: None, durable: false }
    }
}

impl OpenObject {
    /// Finds the object of this name, to share it.
    #[must_use]
    pub const fn new(host: u16, domain: u32, name: String) -> Self {
        Self { host, domain, name, create: false, exclusive: false, mode: OpenMode::Shared }
    }
}

impl HoldObject {
    /// Opens the object, to share it.
    #[must_use]
    pub const fn new(host: u16, object: u64) -> Self {
        Self { host, object, mode: OpenMode::Shared }
    }
}

impl LoadObject {
    /// Gives an object a file of a node, or has it loaded again after that failed.
    #[must_use]
    pub const fn new(host: u16, object: u64, node: u16, file: String, length: u64) -> Self {
        Self { host, object, node, file, length, accept: false }
    }
}

impl Connect {
    /// A connection whose numbers the control plane draws.
    #[must_use]
    pub const fn new(host: u16, node: u16, domain: u32) -> Self {
        Self { host, node, domain, qpn: None, first_psn: None, through: false, root: None }
    }
}
