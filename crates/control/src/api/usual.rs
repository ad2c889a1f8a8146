//! Requests without the fields that only members with cards fill in (PROTOCOL 14.1).

use super::{Connect, JoinHost, JoinNode};
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
        Self { name, gid, qpn: None, qkey: None }
    }
}

impl Connect {
    /// A connection whose numbers the control plane draws.
    #[must_use]
    pub const fn new(host: u16, node: u16, domain: u32) -> Self {
        Self { host, node, domain, qpn: None, first_psn: None, through: false, root: None }
    }
}
