//! The connection table: reliable connections whose packets the switch sends on (PROTOCOL 15.1 to 15.3).
//!
//! An entry says where each end is and what it must be called there. There is nothing in it of a packet or a request: what PSN is expected, what is under way
//! and what was lost the two ends know.

use crate::tables::NODES_MAX;
use crate::{TableError, Usage};
use alloc::collections::BTreeMap;
use farmem_index::NODE_ALIGN;
use farmem_machine::Port;
use farmem_wire::message::Relayed;
use farmem_wire::{Domain, Qpn, Rkey};

/// The connections that go through the switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Connections {
    /// By the queue pair that the host sends to.
    entries: BTreeMap<Qpn, Relayed>,
    /// By the queue pair that the node sends to, the other one.
    back: BTreeMap<Qpn, Qpn>,
    budget: usize,
}

/// Where a packet goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Onward {
    /// From the host to the node.
    ToNode(Relayed),
    /// From the node to the host.
    ToHost(Relayed),
}

impl Connections {
    pub(crate) const fn new(budget: usize) -> Self {
        Self { entries: BTreeMap::new(), back: BTreeMap::new(), budget }
    }

    /// The connection that has this virtual queue pair; none that has not.
    pub(crate) fn find(&self, qpn: Qpn) -> Option<Onward> {
        let to_host = || self.back.get(&qpn).and_then(|to_node| self.entries.get(to_node));
        let to_node = self.entries.get(&qpn).map(|&entry| Onward::ToNode(entry));
        to_node.or_else(|| to_host().map(|&entry| Onward::ToHost(entry)))
    }

    /// Puts a connection in, or in the place of the one with the same `to_node`. Which queue pairs of the switch are taken otherwise says `taken`.
    pub(crate) fn insert(&mut self, entry: Relayed, taken: impl Fn(Qpn) -> bool) -> Result<(), TableError> {
        let Relayed { to_node, to_host, node, rkey, domain, root, .. } = entry;
        let free = |qpn: Qpn| qpn.get() >= Qpn::FIRST_FREE && !taken(qpn);
        // Of the entry that it replaces it may have both numbers, each in its place.
        let its_own = self.back.get(&to_host).is_none_or(|of| *of == to_node)
            && !self.entries.contains_key(&to_host)
            && !self.back.contains_key(&to_node);
        let ends = node.0 < NODES_MAX && rkey != Rkey(0) && domain != Domain(0);
        let numbers = to_node != to_host && free(to_node) && free(to_host) && its_own;
        if !ends || !numbers || !root.0.is_multiple_of(NODE_ALIGN) {
            return Err(TableError::Malformed);
        }
        if !self.entries.contains_key(&to_node) && self.entries.len() >= self.budget {
            return Err(TableError::Full);
        }
        self.remove(to_node);
        self.back.insert(to_host, to_node);
        self.entries.insert(to_node, entry);
        Ok(())
    }

    pub(crate) fn remove(&mut self, to_node: Qpn) {
        if let Some(entry) = self.entries.remove(&to_node) {
            self.back.remove(&entry.to_host);
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage { used: self.entries.len(), budget: self.budget }
    }

    pub(crate) fn assert_invariants(&self, taken: impl Fn(Qpn) -> bool) {
        assert!(self.entries.len() <= self.budget, "connections within their budget");
        assert_eq!(self.entries.len(), self.back.len(), "a connection has two virtual queue pairs");
        for (&to_node, entry) in &self.entries {
            assert_eq!(entry.to_node, to_node, "an entry is found by its own number");
            assert_eq!(self.back.get(&entry.to_host), Some(&to_node), "and from its other end");
            for qpn in [to_node, entry.to_host] {
                assert!(qpn.get() >= Qpn::FIRST_FREE && !taken(qpn), "{qpn:?} is a connection's alone");
            }
            assert!(!self.entries.contains_key(&entry.to_host), "a virtual queue pair leads one way");
            assert!(entry.node.0 < NODES_MAX && entry.rkey != Rkey(0), "{entry:?} has its ends");
        }
    }
}

impl Onward {
    /// The port that sends to the virtual queue pair, and the one that gets what it sends, under which queue pair.
    pub(crate) fn ports(&self) -> (Port, Port, Qpn) {
        let (Self::ToNode(entry) | Self::ToHost(entry)) = self;
        let (host, node) = (Port::host(entry.host.0), Port::node(entry.node.0));
        match self {
            Self::ToNode(_) => (host, node, entry.node_qpn),
            Self::ToHost(_) => (node, host, entry.host_qpn),
        }
    }
}
