//! Slow model of the switch's reaction to a frame. The tables are lists of the control plane's updates.

use super::relay::{self, RelayExpectation};
use super::soft::{self, SoftModel};
use super::{CONTROL, HOME, Outcome, only};
use crate::frames::heard;
use farmem_machine::Port;
use farmem_switch::{Note, Protection, REGION_BYTES_MAX, Switch, Translation};
use farmem_transport::PeerChange;
use farmem_transport::ud::{Endpoint, Peer};
use farmem_wire::message::{Relayed, Update, Updates};
use farmem_wire::{
    Body, Domain, Header, HostId, Message, NodeId, Perm, Qkey, Qpn, RequestId, Status, VirtAddr,
};
use std::collections::BTreeMap;

/// Required reaction to a frame.
#[derive(Debug)]
pub(super) enum Expected {
    /// The switch forwards these bytes to the node.
    Forwarded(NodeId, Peer, Vec<u8>),
    /// The frame is the next batch of updates. The tables change as the answer states.
    Updates(u64, Vec<Update>),
    /// The frame holds a message of the control plane about images.
    Soft(Vec<u8>),
    /// The frame is a packet of a reliable connection.
    Relayed(RelayExpectation),
    /// Nothing changes, and only the sender may receive an answer.
    Nothing,
}

struct Session {
    qkey: Qkey,
    host: HostId,
    generation: u16,
    domain: Domain,
}

struct Grant {
    domain: Domain,
    base: u64,
    end: u64,
    perm: Perm,
}

impl Grant {
    fn holds(&self, domain: Domain, addr: u64) -> bool {
        self.domain == domain && (self.base..self.end).contains(&addr)
    }
}

/// Model, and the switch's tables after its last change.
pub(super) struct Model {
    pub(super) next_seq: u64,
    peers: BTreeMap<Port, Endpoint>,
    control: Endpoint,
    sessions: BTreeMap<Qpn, Session>,
    connections: Vec<Relayed>,
    prefixes: BTreeMap<(u8, u64), NodeId>,
    /// Grants in order. For each byte, the last grant that covers it counts.
    grants: Vec<Grant>,
    /// Ids of the write requests that the switch forwarded to a node, as hosts sent them.
    sent: Vec<RequestId>,
    /// Ids of the write requests that the switch forwarded before a node joined, by the node's port.
    before: BTreeMap<Port, Vec<RequestId>>,
    translation: Translation,
    protection: Protection,
    pub(super) soft: SoftModel,
}

impl Model {
    pub(super) fn new() -> Self {
        Self {
            next_seq: 1,
            peers: BTreeMap::new(),
            control: CONTROL.endpoint,
            sessions: BTreeMap::new(),
            connections: Vec::new(),
            prefixes: BTreeMap::new(),
            grants: Vec::new(),
            sent: Vec::new(),
            before: BTreeMap::new(),
            translation: Translation::new(super::BUDGETS.translation_entries),
            protection: Protection::new(super::BUDGETS.protection_entries),
            soft: SoftModel::default(),
        }
    }

    /// Returns the required reaction to this frame from this port.
    pub(super) fn expect(&self, port: Port, frame: &[u8]) -> Expected {
        if let Some(payload) = soft::heard(port, frame) {
            return Expected::Soft(payload);
        }
        let is_peer = |port: Port| self.peers.contains_key(&port);
        let may = |domain, addr, len: u32| self.may(domain, addr, len.into(), Perm::Read);
        let owner = |addr| self.owner(addr);
        if let Some(onward) = relay::expect(&self.connections, port, frame, &is_peer, &may, &owner) {
            return Expected::Relayed(onward);
        }
        let Some((to, message)) = heard(frame) else { return Expected::Nothing };
        if message.header.response {
            return Expected::Nothing;
        }
        let routed = match (to == HOME, port.as_node(), &message.body) {
            (true, None, Body::Update(updates)) if port == Port::CONTROL && updates.seq == self.next_seq => {
                return Expected::Updates(updates.seq, updates.iter().collect());
            }
            (true, Some(_), Body::Traverse(_)) => self.route(message),
            (true, ..) => None,
            (false, ..) => self.sessions.get(&to.qpn).and_then(|session| {
                let known = session.qkey == to.qkey && port == Port::host(session.host.0);
                let request = message.header.request;
                let own = (request.host(), request.generation()) == (session.host, session.generation);
                let header = Header { domain: session.domain, origin: session.host, ..message.header };
                (known && own).then(|| self.route(Message { header, ..message })).flatten()
            }),
        };
        routed.map_or(Expected::Nothing, |(node, peer, bytes)| Expected::Forwarded(node, peer, bytes))
    }

    fn route(&self, mut message: Message<'_>) -> Option<(NodeId, Peer, Vec<u8>)> {
        let (addr, len, perm) = match message.body {
            Body::RegionRead { addr, len, .. } => (addr.0, len, Perm::Read),
            Body::RegionWrite { addr, len, .. } => (addr.0, len, Perm::ReadWrite),
            Body::Traverse(state) if state.program.stores() => (state.cur_ptr.0, 1, Perm::ReadWrite),
            Body::Traverse(state) => (state.cur_ptr.0, 1, Perm::Read),
            Body::Batch(batch) => {
                let perm = if batch.program().stores() { Perm::ReadWrite } else { Perm::Read };
                (batch.first().cur_ptr.0, 1, perm)
            }
            Body::Update(_) => return None,
        };
        let fits = (1..=REGION_BYTES_MAX).contains(&len);
        if !fits || message.header.hops == 0 || !self.may(message.header.domain, addr, len.into(), perm) {
            return None;
        }
        let node = self.owner(addr)?;
        let port = Port::node(node.0);
        let endpoint = *self.peers.get(&port)?;
        // A write from before the node joined, or an older one, may have been executed by the earlier node.
        let before = self.before.get(&port).into_iter().flatten();
        let is_older = |written: &RequestId| {
            before.clone().any(|sent| sent.host() == written.host() && sent.0 >= written.0)
        };
        if written(&message).iter().max().is_some_and(is_older) {
            return None;
        }
        message.header.hops -= 1;
        let mut bytes = Vec::new();
        message.emit(&mut bytes);
        Some((node, Peer { port, endpoint }, bytes))
    }

    /// Checks the switch's reaction to a frame.
    pub(super) fn judge(&mut self, expected: Expected, switch: &Switch, outcome: &Outcome) {
        let [note] = outcome.notes[..] else { panic!("one note for each frame: {outcome:?}") };
        if matches!(note, Note::Page(_) | Note::PageRefused(_) | Note::PageForwarded { .. }) {
            // The directory is closed in this target. No page message changes a table.
            return self.unchanged(switch, outcome);
        }
        match expected {
            Expected::Forwarded(node, peer, bytes) => {
                let (to, message) = only(outcome);
                assert_eq!(to, peer, "it goes to the owner of its address");
                let mut sent = Vec::new();
                message.emit(&mut sent);
                assert_eq!(sent, bytes, "only domain, origin and hops change");
                assert!(
                    matches!(note, Note::Forwarded { node: n } | Note::Continued { node: n } if n == node)
                );
                if matches!(note, Note::Forwarded { .. }) {
                    self.sent.extend(written(&message));
                }
                self.unchanged(switch, outcome);
            }
            Expected::Soft(payload) => {
                self.soft.judge(&payload, self.control, switch, outcome);
                self.unchanged(switch, outcome);
            }
            Expected::Relayed(onward) => {
                assert!(switch.soft().index().is_empty(), "no tree is published in these stories");
                relay::judge(&onward, note, outcome);
                self.unchanged(switch, outcome);
            }
            Expected::Updates(seq, updates) => self.updated(seq, &updates, switch, outcome),
            Expected::Nothing => {
                assert!(!matches!(note, Note::Forwarded { .. } | Note::Continued { .. }), "{note:?}");
                assert!(!matches!(note, Note::Updated { .. } | Note::UpdateRefused { .. }), "{note:?}");
                assert_eq!(
                    outcome.sent.is_empty(),
                    matches!(note, Note::Dropped(_) | Note::UpdateChanged { .. }),
                    "answered or dropped"
                );
                if !outcome.sent.is_empty() {
                    let (to, message) = only(outcome);
                    assert!(message.header.response, "a refusal asks nothing");
                    let host = to.port.as_host().and_then(|_| self.peers.get(&to.port));
                    let known = if to.port == Port::CONTROL { Some(&self.control) } else { host };
                    assert_eq!(known, Some(&to.endpoint), "refusals go to hosts and the control plane");
                }
                self.unchanged(switch, outcome);
            }
        }
    }

    fn unchanged(&self, switch: &Switch, outcome: &Outcome) {
        self.soft.unchanged(switch);
        assert!(outcome.peers.is_empty(), "no peer moved");
        assert!(*switch.translation() == self.translation, "the translation changed by itself");
        assert!(*switch.protection() == self.protection, "the protection changed by itself");
        self.counts(switch);
    }

    fn counts(&self, switch: &Switch) {
        let occupancy = switch.occupancy();
        assert_eq!(occupancy.sessions.used, self.sessions.len());
        assert_eq!(occupancy.connections.used, self.connections.len());
        assert_eq!(occupancy.peers.used, self.peers.len());
        assert_eq!(occupancy.translation.used, self.prefixes.len());
    }

    /// Adopts the updates that the answer confirms, and compares the tables.
    fn updated(&mut self, seq: u64, updates: &[Update], switch: &Switch, outcome: &Outcome) {
        let (to, message) = only(outcome);
        assert_eq!(to.port, Port::CONTROL);
        let Body::Update(answer) = message.body else { panic!("an answer to updates") };
        assert_eq!(Updates::response(seq, answer.refused), answer);
        let well = message.header.status == Status::Ok;
        let applied = if well { updates.len() } else { usize::from(answer.refused) };
        assert!(well || applied < updates.len(), "one of them is refused");
        let mut moved = outcome.peers.iter();
        for update in &updates[..applied] {
            self.apply(update, &mut moved);
        }
        assert_eq!(moved.next(), None, "the driver hears of those that moved, and of no others");
        assert_eq!(to.endpoint, self.control, "where control says it is now");
        self.next_seq += 1;
        let prefixes: BTreeMap<_, _> =
            switch.translation().iter().map(|(base, size, node)| ((size, base.0), node)).collect();
        assert_eq!(prefixes, self.prefixes);
        self.compare_protection(switch.protection());
        self.counts(switch);
        self.translation.clone_from(switch.translation());
        self.protection.clone_from(switch.protection());
    }

    /// Compares the table with the list at the start and the end of every grant.
    fn compare_protection(&self, table: &Protection) {
        for grant in &self.grants {
            for addr in [grant.base.wrapping_sub(1), grant.base, grant.end - 1, grant.end] {
                for len in [1, 0x1000] {
                    for perm in [Perm::Read, Perm::ReadWrite] {
                        let allowed = table.check(grant.domain, VirtAddr(addr), len, perm).is_ok();
                        assert_eq!(
                            allowed,
                            self.may(grant.domain, addr, len.into(), perm),
                            "{addr:#x}+{len}"
                        );
                    }
                }
            }
        }
    }

    fn apply<'a>(&mut self, update: &Update, moved: &mut impl Iterator<Item = &'a PeerChange>) {
        match *update {
            Update::Peer { port, gid, qpn, qkey } => {
                let (port, endpoint) = (Port(port), Endpoint { qpn, qkey });
                assert_eq!(moved.next(), Some(&PeerChange { port, gid: Some(gid) }));
                if port == Port::CONTROL {
                    self.control = endpoint;
                } else if self.peers.insert(port, endpoint) != Some(endpoint) && port.as_node().is_some() {
                    self.before.insert(port, self.sent.clone());
                }
            }
            Update::PeerGone { port } => {
                let port = Port(port);
                self.before.remove(&port);
                if let Some(host) = port.as_host() {
                    let stays = |sent: &RequestId| sent.host().0 != host;
                    self.sent.retain(stays);
                    self.before.values_mut().for_each(|sent| sent.retain(stays));
                }
                if self.peers.remove(&port).is_some() {
                    assert_eq!(moved.next(), Some(&PeerChange { port, gid: None }));
                }
            }
            Update::Translate { base, size_log2, node } => {
                self.prefixes.insert((size_log2, base.0), node);
            }
            Update::Untranslate { base, size_log2 } => {
                self.prefixes.remove(&(size_log2, base.0));
            }
            Update::Session { qpn, qkey, host, generation, domain } => {
                assert!(domain != Domain(0) && qpn != HOME.qpn && qpn.get() >= Qpn::FIRST_FREE);
                self.sessions.insert(qpn, Session { qkey, host, generation, domain });
            }
            Update::SessionGone { qpn } => {
                self.sessions.remove(&qpn);
            }
            Update::Connection(of) => {
                let own = |qpn: Qpn| {
                    qpn == HOME.qpn || qpn.get() < Qpn::FIRST_FREE || self.sessions.contains_key(&qpn)
                };
                assert!(!own(of.to_node) && !own(of.to_host) && of.to_node != of.to_host);
                assert!(of.node.0 < 0xf000 && of.rkey.0 != 0 && of.domain != Domain(0));
                assert!(of.root.0.is_multiple_of(256));
                self.connections.retain(|other| other.to_node != of.to_node);
                let others = self.connections.iter().flat_map(|other| [other.to_node, other.to_host]);
                assert!(others.into_iter().all(|qpn| qpn != of.to_node && qpn != of.to_host));
                self.connections.push(of);
            }
            Update::ConnectionGone { to_node } => {
                self.connections.retain(|other| other.to_node != to_node);
            }
            Update::Protect { domain, base, len, perm, .. } => {
                assert!(domain != Domain(0), "domain 0 is granted nothing");
                let end = base.0 + len;
                // A grant that lies entirely under the new one no longer counts.
                self.grants.retain(|g| g.domain != domain || g.base < base.0 || g.end > end);
                self.grants.push(Grant { domain, base: base.0, end, perm });
            }
            Update::Directory { .. } | Update::Live { .. } | Update::Fence { .. } | Update::Drain { .. } => {}
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
            | Update::QueuePairGone { .. } => panic!("a switch applies no {update:?}"),
        }
    }

    /// Returns true when the domain may access every one of these bytes. The check covers the start and the
    /// end of each grant.
    fn may(&self, domain: Domain, addr: u64, len: u64, perm: Perm) -> bool {
        let Some(end) = addr.checked_add(len) else { return false };
        let seams =
            self.grants.iter().flat_map(|g| [g.base, g.end]).filter(|seam| (addr..end).contains(seam));
        seams.chain([addr]).all(|at| {
            let last = self.grants.iter().rev().find(|g| g.holds(domain, at));
            last.is_some_and(|g| g.perm.allows(perm))
        })
    }

    /// Returns the node with the longest matching prefix.
    fn owner(&self, addr: u64) -> Option<NodeId> {
        self.prefixes.iter().find(|((size, base), _)| addr >> size == base >> size).map(|(_, node)| *node)
    }
}

/// Returns the ids under which a message writes.
fn written(message: &Message<'_>) -> Vec<RequestId> {
    let request = message.header.request;
    match &message.body {
        Body::RegionWrite { .. } => vec![request],
        Body::Traverse(state) if state.program.stores() => vec![request],
        Body::Batch(batch) if batch.program().stores() => {
            batch.pairs().map(|pair| request.with_counter(pair.counter)).collect()
        }
        _ => Vec::new(),
    }
}
