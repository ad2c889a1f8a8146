//! The tables that the control plane fills, and the effect of each update (PROTOCOL 6.17 to 6.23).
//!
//! [`farmem_transport::ud::Inbox`] keeps the order of batches.

use crate::connections::Connections;
use crate::vmas::Vmas;
use crate::{Budgets, Occupancy, Protection, Soft, TableError, Translation, Usage};
use alloc::collections::BTreeMap;
use farmem_index::{TABLE_BYTES_PER_BYTE, TREE_BYTES, TREES_MAX};
use farmem_machine::Port;
use farmem_transport::PeerChange;
use farmem_transport::ud::{Endpoint, Peer, RoleEndpoints};
use farmem_wire::message::Update;
use farmem_wire::{Domain, HostId, NodeId, Perm, Qkey, Qpn};

/// The key, host and domain of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Session {
    pub(crate) qkey: Qkey,
    pub(crate) host: HostId,
    pub(crate) generation: u16,
    pub(crate) domain: Domain,
}

/// The switch's tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tables {
    pub(crate) translation: Translation,
    pub(crate) protection: Protection,
    pub(crate) vmas: Vmas,
    sessions: Exact<Qpn, Session>,
    /// Relayed connections.
    pub(crate) connections: Connections,
    /// Nodes, hosts and other switches.
    peers: Exact<Port, Endpoint>,
    /// The receiver of responses to updates. It can move but not leave, because responses need a receiver.
    pub(crate) control: Endpoint,
    /// The switch's own queue pair, which no session may have.
    home: Qpn,
}

impl Tables {
    pub(crate) const fn new(home: &RoleEndpoints, budgets: &Budgets) -> Self {
        Self {
            translation: Translation::new(budgets.translation_entries),
            protection: Protection::new(budgets.protection_entries),
            vmas: Vmas::new(budgets.vmas),
            sessions: Exact::new(budgets.sessions),
            connections: Connections::new(budgets.connections),
            peers: Exact::new(budgets.peers),
            control: home.control.endpoint,
            home: home.endpoint.qpn,
        }
    }

    pub(crate) fn session(&self, qpn: Qpn) -> Option<Session> {
        self.sessions.entries.get(&qpn).copied()
    }

    pub(crate) fn node(&self, node: NodeId) -> Option<Peer> {
        // Every node in the translation table has a port, so this cannot panic.
        self.peer(Port::node(node.0))
    }

    pub(crate) fn has_peer(&self, port: Port) -> bool {
        self.peers.entries.contains_key(&port)
    }

    pub(crate) fn host(&self, host: HostId) -> Option<Peer> {
        self.peer(Port::host(host.0))
    }

    /// Applies one change completely or not at all; returns the change of the peer list for the driver.
    pub(crate) fn apply(&mut self, update: Update) -> Result<Option<PeerChange>, TableError> {
        match update {
            Update::Peer { port, gid, qpn, qkey } => {
                let (port, endpoint) = (Port(port), Endpoint { qpn, qkey });
                if port == Port::CONTROL {
                    self.control = endpoint;
                } else {
                    self.peers.insert(member(port)?, endpoint)?;
                }
                return Ok(Some(PeerChange { port, gid: Some(gid) }));
            }
            Update::PeerGone { port } => {
                let port = member(Port(port))?;
                return Ok(self.peers.entries.remove(&port).map(|_| PeerChange { port, gid: None }));
            }
            Update::Translate { node, .. } if !Port::is_node(node.0) => return Err(TableError::Malformed),
            Update::Translate { base, size_log2, node } => self.translation.insert(base, size_log2, node)?,
            Update::Untranslate { base, size_log2 } => self.translation.remove(base, size_log2)?,
            Update::Protect { domain, base, len, perm, vma_log2 } => {
                self.vmas.has_room(base, vma_log2, perm)?;
                let before = self.protection.granted(domain, base, len);
                self.protection.set(domain, base, len, perm)?;
                self.vmas.count(base, vma_log2, before, if perm == Perm::None { 0 } else { len });
            }
            Update::Session { qpn, qkey, host, generation, domain } => {
                let taken = qpn == self.home || self.connections.find(qpn).is_some();
                if taken || qpn.get() < Qpn::FIRST_FREE || domain == Domain(0) {
                    return Err(TableError::Malformed);
                }
                self.sessions.insert(qpn, Session { qkey, host, generation, domain })?;
            }
            Update::SessionGone { qpn } => {
                self.sessions.entries.remove(&qpn);
            }
            Update::Connection(entry) => {
                let (home, sessions) = (self.home, &self.sessions.entries);
                let taken = |qpn| qpn == home || sessions.contains_key(&qpn);
                self.connections.insert(entry, taken)?;
            }
            Update::ConnectionGone { to_node } => self.connections.remove(to_node),
            // Updates of the directory, which is separate from the tables.
            Update::Directory { .. } | Update::Live { .. } | Update::Fence { .. } => {}
            Update::Drain { base, size_log2 } => self.translation.drain(base, size_log2)?,
            Update::AcceptLost { .. }
            | Update::Anew { .. }
            | Update::Lose { .. }
            | Update::Arrive { .. }
            | Update::Leave { .. }
            | Update::Place { .. }
            | Update::Away { .. }
            | Update::Unplace { .. }
            | Update::Range { .. }
            | Update::RangeGone { .. }
            | Update::Clear { .. }
            | Update::QueuePair { .. }
            | Update::QueuePairGone { .. } => return Err(TableError::Unsupported),
        }
        Ok(None)
    }

    pub(crate) fn occupancy(&self, soft: &Soft) -> Occupancy {
        // An active and a loading one.
        let images = 2 * soft.budget() as usize;
        Occupancy {
            translation: self.translation.usage(),
            protection: self.protection.usage(),
            vmas: self.vmas.usage(),
            sessions: self.sessions.usage(),
            connections: self.connections.usage(),
            peers: self.peers.usage(),
            soft: soft.shown(),
            soft_bytes: Usage { used: soft.memory().images, budget: images },
            soft_tables: Usage {
                used: soft.memory().tables,
                budget: TABLE_BYTES_PER_BYTE * images + 2 * TREES_MAX * TREE_BYTES,
            },
        }
    }

    pub(crate) fn assert_invariants(&self) {
        self.translation.assert_invariants();
        self.protection.assert_invariants();
        self.vmas.assert_invariants();
        assert!(self.sessions.entries.len() <= self.sessions.budget, "sessions within their budget");
        assert!(self.peers.entries.len() <= self.peers.budget, "peers within their budget");
        let taken = |qpn| qpn == self.home || self.sessions.entries.contains_key(&qpn);
        self.connections.assert_invariants(taken);
        for (_, _, node) in self.translation.iter() {
            assert!(Port::is_node(node.0), "{node:?} has a port");
        }
        for (&qpn, session) in &self.sessions.entries {
            assert!(qpn != self.home && qpn.get() >= Qpn::FIRST_FREE, "{qpn:?} is free for sessions");
            assert!(session.domain != Domain(0), "a session has a domain");
        }
        for &port in self.peers.entries.keys() {
            assert_eq!(member(port), Ok(port), "a peer is a node, a host or a switch");
        }
    }

    /// Returns the peer at this port.
    pub(crate) fn peer(&self, port: Port) -> Option<Peer> {
        self.peers.entries.get(&port).map(|&endpoint| Peer { port, endpoint })
    }
}

/// Returns the port if it can be a node's, a host's or another switch's.
fn member(port: Port) -> Result<Port, TableError> {
    let member = port.as_node().is_some() || port.as_host().is_some() || port.is_switch();
    if member { Ok(port) } else { Err(TableError::Malformed) }
}

/// An exact-match table with a budget.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Exact<K, V> {
    entries: BTreeMap<K, V>,
    budget: usize,
}

impl<K: Ord, V> Exact<K, V> {
    const fn new(budget: usize) -> Self {
        Self { entries: BTreeMap::new(), budget }
    }

    /// Adds or replaces an entry.
    fn insert(&mut self, key: K, value: V) -> Result<(), TableError> {
        if !self.entries.contains_key(&key) && self.entries.len() >= self.budget {
            return Err(TableError::Full);
        }
        self.entries.insert(key, value);
        Ok(())
    }

    fn usage(&self) -> Usage {
        Usage { used: self.entries.len(), budget: self.budget }
    }
}
