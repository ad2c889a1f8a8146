//! The connection table: reliable connections whose packets the switch relays (PROTOCOL 15.1 to 15.3).
//!
//! An entry has the addresses and queue pairs of both ends, and no state of packets or requests. PSNs,
//! outstanding requests and losses are the business of the two ends.

use crate::{TableError, Usage};
use alloc::collections::BTreeMap;
use farmem_index::NODE_ALIGN;
use farmem_machine::Port;
use farmem_wire::message::Relayed;
use farmem_wire::{Domain, Qpn, Rkey};

/// The relayed connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Connections {
    /// Entries by both virtual queue pairs: the one that the host sends to, and the one that the node sends
    /// to.
    ends: BTreeMap<Qpn, RelayDirection>,
    budget: usize,
}

/// The forwarding direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RelayDirection {
    /// From the host to the node.
    ToNode(Relayed),
    /// From the node to the host.
    ToHost(Relayed),
}

impl Connections {
    pub(crate) const fn new(budget: usize) -> Self {
        Self { ends: BTreeMap::new(), budget }
    }

    /// Returns the connection with this virtual queue pair.
    pub(crate) fn find(&self, qpn: Qpn) -> Option<RelayDirection> {
        self.ends.get(&qpn).copied()
    }

    fn connections(&self) -> usize {
        self.ends.len() / 2
    }

    /// Inserts a connection, or replaces the one with the same `to_node`. `taken` returns true for queue
    /// pairs of the switch that are used otherwise.
    pub(crate) fn insert(&mut self, entry: Relayed, taken: impl Fn(Qpn) -> bool) -> Result<(), TableError> {
        let Relayed { to_node, to_host, node, rkey, domain, root, .. } = entry;
        // The entry may reuse both numbers of the one that it replaces, each in its direction.
        let is_free = |qpn: Qpn, its_own: fn(&RelayDirection) -> Option<Qpn>| {
            let other = self.ends.get(&qpn).is_some_and(|end| its_own(end) != Some(to_node));
            qpn.get() >= Qpn::FIRST_FREE && !taken(qpn) && !other
        };
        let sends_host =
            |end: &RelayDirection| matches!(end, RelayDirection::ToNode(_)).then_some(end.entry().to_node);
        let sends_node =
            |end: &RelayDirection| matches!(end, RelayDirection::ToHost(_)).then_some(end.entry().to_node);
        let numbers = to_node != to_host && is_free(to_node, sends_host) && is_free(to_host, sends_node);
        let ends = Port::is_node(node.0) && rkey != Rkey(0) && domain != Domain(0);
        if !ends || !numbers || !root.0.is_multiple_of(NODE_ALIGN) {
            return Err(TableError::Malformed);
        }
        if !self.ends.contains_key(&to_node) && self.connections() >= self.budget {
            return Err(TableError::Full);
        }
        self.remove(to_node);
        self.ends.insert(to_host, RelayDirection::ToHost(entry));
        self.ends.insert(to_node, RelayDirection::ToNode(entry));
        Ok(())
    }

    pub(crate) fn remove(&mut self, to_node: Qpn) {
        if let Some(&RelayDirection::ToNode(entry)) = self.ends.get(&to_node) {
            self.ends.remove(&to_node);
            self.ends.remove(&entry.to_host);
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage { used: self.connections(), budget: self.budget }
    }

    pub(crate) fn assert_invariants(&self, taken: impl Fn(Qpn) -> bool) {
        assert!(self.connections() <= self.budget, "connections within their budget");
        for (&qpn, end) in &self.ends {
            let entry = *end.entry();
            let (own, other) = match end {
                RelayDirection::ToNode(_) => (entry.to_node, (entry.to_host, RelayDirection::ToHost(entry))),
                RelayDirection::ToHost(_) => (entry.to_host, (entry.to_node, RelayDirection::ToNode(entry))),
            };
            assert_eq!(own, qpn, "an end is found by its own number");
            assert_eq!(self.ends.get(&other.0), Some(&other.1), "and so is the other end");
            assert!(qpn.get() >= Qpn::FIRST_FREE && !taken(qpn), "{qpn:?} is a connection's alone");
            assert!(Port::is_node(entry.node.0) && entry.rkey != Rkey(0), "{entry:?} has its ends");
        }
    }
}

impl RelayDirection {
    const fn entry(&self) -> &Relayed {
        let (Self::ToNode(entry) | Self::ToHost(entry)) = self;
        entry
    }

    /// Returns the port that sends to the virtual queue pair, and the port and queue pair of the receiver.
    pub(crate) fn ports(&self) -> (Port, Port, Qpn) {
        let entry = self.entry();
        let (host, node) = (Port::host(entry.host.0), Port::node(entry.node.0));
        match self {
            Self::ToNode(_) => (host, node, entry.node_qpn),
            Self::ToHost(_) => (node, host, entry.host_qpn),
        }
    }
}
