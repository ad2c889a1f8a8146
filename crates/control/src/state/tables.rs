//! Tables of the roles: the updates of a change for each role, and everything that a joining role must be
//! told (PROTOCOL 8.3, 8.14).

use crate::api::PermName;
use crate::record::{
    Cache, ChangeKind, ConnectionRow, HostRow, Key, Migration, NodeRow, PieceRow, Role, SessionRow, Span,
    ThroughRow, VmaRow, node_id, perm,
};
use crate::state::{State, grants, pieces};
use crate::syscalls::Edit;
use crate::updates::{Entry, LoggedUpdate};
use alloc::vec::Vec;
use farmem_machine::Port;
use farmem_wire::message::{Relayed, Seq, Update};
use farmem_wire::{Domain, Gid, HostId, Pmtu, Psn, Qkey, Qpn, Rkey, VirtAddr};

/// An update and what rolls it back. `None` means that it must not be refused.
pub(crate) type Step = (Update, Option<Vec<LoggedUpdate>>);

impl State {
    /// Returns the roles that a change concerns, told or not.
    pub(crate) fn concerned(&self, what: &ChangeKind) -> Vec<Role> {
        let of_vma = |base: &u64| self.nodes_of_vma(*base).into_iter().map(Role::Node);
        match what {
            ChangeKind::JoinSwitch { .. } => {
                let nodes = self.farmem_nodes().map(|(&node, _)| Role::Node(node));
                nodes.chain(self.index_roles()).collect()
            }
            ChangeKind::JoinNode { .. } | ChangeKind::LeaveNode { .. } => {
                core::iter::once(Role::Switch).chain(self.index_roles()).collect()
            }
            ChangeKind::JoinIndex { index, .. } | ChangeKind::LeaveIndex { index } => {
                let others = self.index_roles().filter(|&role| role != Role::Index(*index));
                let nodes = self.farmem_nodes().map(|(&node, _)| Role::Node(node));
                core::iter::once(Role::Switch).chain(nodes).chain(others).collect()
            }
            ChangeKind::OpenSession(_)
            | ChangeKind::OpenDirectory { .. }
            | ChangeKind::Live { .. }
            | ChangeKind::Fence { .. } => Vec::from([Role::Switch]),
            ChangeKind::JoinHost { .. } | ChangeKind::LeaveHost { .. } => core::iter::once(Role::Switch)
                .chain(self.nodes.keys().map(|&node| Role::Node(node)))
                .collect(),
            ChangeKind::Connect(row) | ChangeKind::Disconnect(row) => {
                let switch = row.through.map(|_| Role::Switch);
                [Role::Node(row.node)].into_iter().chain(switch).collect()
            }
            ChangeKind::Allocate { node, pieces, .. } => {
                let mut nodes: Vec<u16> = pieces.iter().map(|(_, piece)| piece.node).chain([*node]).collect();
                nodes.sort_unstable();
                nodes.dedup();
                nodes.into_iter().map(Role::Node).chain([Role::Switch]).collect()
            }
            ChangeKind::Remap(remap) => {
                let nodes = remap.edits.iter().flat_map(|edit| self.nodes_of_edit(edit));
                let mut roles: Vec<Role> = nodes.map(Role::Node).collect();
                roles.sort_unstable();
                roles.dedup();
                let told = !roles.is_empty();
                roles.extend(told.then_some(Role::Switch));
                roles
            }
            ChangeKind::AcceptLost { vma, .. } => of_vma(vma).collect(),
            ChangeKind::Free { base }
            | ChangeKind::Grant { vma: base, .. }
            | ChangeKind::TurnFile { base, .. } => of_vma(base).chain([Role::Switch]).collect(),
            ChangeKind::Migrate(Migration { from, to, .. }) => {
                Vec::from([Role::Node(*to), Role::Switch, Role::Node(*from)])
            }
        }
    }

    /// Builds the update of a session with its host's present generation: sessions end with it (PROTOCOL
    /// 8.8).
    fn session_update(&self, row: &SessionRow) -> Update {
        let (qpn, qkey) = (Qpn::new(row.key.qpn), Qkey(row.key.qkey));
        let generation = self.hosts.get(&row.host).map_or(0, |host| host.generation);
        Update::Session { qpn, qkey, host: HostId(row.host), generation, domain: Domain(row.domain) }
    }

    /// Returns what `role`, one of those concerned, is told of a change.
    pub(crate) fn tell(&self, what: &ChangeKind, role: Role) -> Vec<Step> {
        if let Some(told) = self.tell_of_card(what, role) {
            return told;
        }
        match what {
            ChangeKind::JoinSwitch { gid, home } => Vec::from([join(Port::SWITCH, *gid, *home)]),
            ChangeKind::JoinNode { node, gid, home, base, size_log2, again, .. } => {
                let mut steps = Vec::from([join(Port::node(*node), *gid, *home)]);
                if !again && role == Role::Switch {
                    let (base, size_log2) = (VirtAddr(*base), *size_log2);
                    let back = Update::Untranslate { base, size_log2 };
                    steps.push(step(Update::Translate { base, size_log2, node: node_id(*node) }, [back]));
                }
                steps
            }
            ChangeKind::JoinHost { host, gid, home, .. } => Vec::from([join(Port::host(*host), *gid, *home)]),
            ChangeKind::JoinIndex { index, row } => Vec::from([join(Port::index(*index), row.gid, row.home)]),
            ChangeKind::LeaveIndex { index } => {
                Vec::from([(Update::PeerGone { port: Port::index(*index).0 }, None)])
            }
            ChangeKind::LeaveNode { node, .. } if role != Role::Switch => {
                Vec::from([(Update::PeerGone { port: Port::node(*node).0 }, None)])
            }
            ChangeKind::LeaveNode { node, base, size_log2 } => Vec::from([
                (Update::PeerGone { port: Port::node(*node).0 }, None),
                (Update::Untranslate { base: VirtAddr(*base), size_log2: *size_log2 }, None),
            ]),
            ChangeKind::LeaveHost { host } => {
                Vec::from([(Update::PeerGone { port: Port::host(*host).0 }, None)])
            }
            ChangeKind::OpenSession(row) => Vec::from([step(self.session_update(row), [session_gone(row)])]),
            ChangeKind::Connect(row) if role == Role::Switch => row
                .through
                .iter()
                .map(|through| step(relayed(row, through), [relayed_gone(through)]))
                .collect(),
            ChangeKind::Connect(row) => Vec::from([step(queue_pair(row), [queue_pair_gone(row)])]),
            ChangeKind::Disconnect(row) if role == Role::Switch => {
                row.through.iter().map(|through| (relayed_gone(through), None)).collect()
            }
            ChangeKind::Disconnect(row) => Vec::from([(queue_pair_gone(row), None)]),
            ChangeKind::Allocate { base, size, node, domain, file, pieces, .. } => {
                let mut steps = self.tell_pieces(pieces, role);
                let cleared = match role {
                    Role::Node(of) => parts_at(of, *node, *base, *size, pieces),
                    Role::Switch | Role::Index(_) => Vec::new(),
                };
                steps.extend(allocate(*base, *size, *domain, cleared, file.is_some()));
                steps
            }
            ChangeKind::TurnFile { object, base, turn } => self.tell_turn(*object, *base, *turn),
            ChangeKind::Free { base } => {
                self.vmas.get(base).map_or_else(Vec::new, |vma| self.free(*base, vma))
            }
            ChangeKind::Remap(remap) => {
                let its = |edit: &&Edit| {
                    let nodes = self.nodes_of_edit(edit);
                    nodes.iter().any(|&node| role == Role::Switch || role == Role::Node(node))
                };
                let edits = remap.edits.iter().filter(its);
                edits.flat_map(|edit| self.tell_edit(remap.domain, edit, role)).collect()
            }
            ChangeKind::OpenDirectory { epoch } => {
                Vec::from([step(Update::Directory { newest: newest(*epoch) }, [])])
            }
            ChangeKind::Live { host, generation } => {
                let back = Update::Fence { host: HostId(*host) };
                Vec::from([step(live(*host, *generation), [back])])
            }
            ChangeKind::Fence { host, .. } => Vec::from([(Update::Fence { host: HostId(*host) }, None)]),
            ChangeKind::Migrate(migration) => self.tell_migration(migration, role),
            ChangeKind::AcceptLost { base, len, .. } => {
                Vec::from([step(Update::AcceptLost { base: VirtAddr(*base), len: *len }, [])])
            }
            ChangeKind::Grant { vma, base, len, to, perm } => {
                let Some(size) = self.vmas.get(vma).map(|row| row.size) else { return Vec::new() };
                let back = grants::slice(self.grants_of(*vma, *to), *base, *len);
                let back = back.into_iter().map(|span| protect(*to, span, size));
                Vec::from([step(protect(*to, Span { base: *base, len: *len, perm: *perm }, size), back)])
            }
        }
    }

    /// Returns everything that `role` must know once it has empty tables, in the order it needs it: it serves
    /// no request before its tables are whole. Joins in flight are included as part of their change.
    pub(crate) fn tables(&self, role: Role) -> Vec<Entry> {
        let plain = |update| Entry::plain(LoggedUpdate(update));
        let mut entries: Vec<Entry> = match role {
            Role::Switch => self.switch_tables().into_iter().map(plain).collect(),
            Role::Node(node) => self.node_tables(node).into_iter().map(plain).collect(),
            Role::Index(index) => self.index_tables(index).into_iter().map(plain).collect(),
        };
        for (&id, change) in &self.changes {
            let join = matches!(
                change.what,
                ChangeKind::JoinSwitch { .. }
                    | ChangeKind::JoinNode { .. }
                    | ChangeKind::JoinHost { .. }
                    | ChangeKind::JoinIndex { .. }
            );
            if !join || change.failed.is_some() || !self.concerned(&change.what).contains(&role) {
                continue;
            }
            entries.extend(self.tell(&change.what, role).into_iter().map(|(update, undo)| Entry {
                undo,
                change: Some(id),
                ..plain(update)
            }));
        }
        entries
    }

    fn switch_tables(&self) -> Vec<Update> {
        let mut updates = Vec::new();
        for (&node, row) in self.nodes.iter().filter(|(_, row)| row.card.is_none()) {
            if row.joining.is_none() {
                updates.push(peer(Port::node(node), row.gid, row.home));
            }
            if row.joining.is_none() || self.joins_again(row) {
                let base = VirtAddr(row.base);
                updates.push(Update::Translate { base, size_log2: row.size_log2, node: node_id(node) });
            }
        }
        updates.extend(self.pieces.iter().map(|(&base, piece)| pieces::translate(base, piece)));
        updates.extend(self.host_peers());
        updates.extend(self.index_peers());
        for (&base, vma) in self.vmas.iter().filter(|(_, vma)| !self.is_card(vma.node)) {
            updates.extend(self.protections(base, vma));
        }
        // Hosts that cached pages before a switch started still have them, and must be able to write them
        // back.
        let caching = self.hosts.iter().filter(|(_, row)| matches!(row.cache, Cache::Live { .. }));
        updates.extend(caching.map(|(&host, row)| live(host, row.generation)));
        updates.extend(self.sessions.values().map(|row| self.session_update(row)));
        let relayed = |row: &ConnectionRow| row.through.map(|through| relayed(row, &through));
        updates.extend(self.connections.values().filter_map(relayed));
        updates
    }

    /// Peers come last, the switches behind the hosts: a node accepts requests once it knows a switch, and
    /// then its tables are whole.
    fn node_tables(&self, node: u16) -> Vec<Update> {
        let mut updates = Vec::new();
        if self.is_card(node) {
            return self.host_peers().collect();
        }
        if let Some(row) = self.nodes.get(&node) {
            updates.push(Update::Range { base: VirtAddr(row.base), len: row.capacity, offset: 0 });
        }
        updates.extend(self.pieces.iter().filter_map(|(&base, piece)| self.piece_at(base, piece, node)));
        updates.extend(
            self.lost_at(node).into_iter().map(|(base, len)| Update::Lose { base: VirtAddr(base), len }),
        );
        for (&base, vma) in self.vmas.iter().filter(|(base, _)| self.nodes_of_vma(**base).contains(&node)) {
            updates.extend(self.protections(base, vma));
        }
        updates.extend(self.host_peers());
        updates.extend(self.index_peers());
        updates.extend(self.switch_peer());
        updates
    }

    pub(crate) fn switch_peer(&self) -> Option<Update> {
        let known = self
            .switch
            .as_ref()
            .filter(|row| row.joining.is_none() && self.queues.contains_key(&Role::Switch));
        known.map(|row| peer(Port::SWITCH, row.gid, row.home))
    }

    fn host_peers(&self) -> impl Iterator<Item = Update> + '_ {
        let told = |row: &HostRow| row.present && row.joining.is_none();
        let rows = self.hosts.iter().filter(move |(_, row)| told(row));
        rows.map(|(&host, row)| peer(Port::host(host), row.gid, row.home))
    }

    /// Returns the updates with all permissions of the owner and the grantees of a vma.
    pub(crate) fn protections(&self, base: u64, vma: &VmaRow) -> Vec<Update> {
        if vma.pending.is_some() {
            return Vec::new();
        }
        let own = self.own_spans(base, vma, base, vma.size).into_iter();
        let own = own.filter(|span| span.perm != PermName::None);
        let own = own.map(|span| protect(vma.domain, span, vma.size));
        let mut updates: Vec<Update> = own.collect();
        for (domain, spans) in &vma.grants {
            updates.extend(spans.iter().map(|&span| protect(*domain, span, vma.size)));
        }
        updates
    }

    /// Returns the updates of a vma that is freed: no domain may use it any more.
    pub(crate) fn free(&self, base: u64, vma: &VmaRow) -> Vec<Step> {
        let none = whole(base, vma.size, PermName::None);
        let own = self.own_spans(base, vma, base, vma.size);
        let told = |domain: u32, span: Span| protect(domain, span, vma.size);
        let mut steps =
            Vec::from([step(told(vma.domain, none), own.into_iter().map(|span| told(vma.domain, span)))]);
        for (domain, spans) in &vma.grants {
            steps.push(step(told(*domain, none), spans.iter().map(|&span| told(*domain, span))));
        }
        steps
    }

    /// Returns what a role is told of the pieces of a new vma, before anything else of the vma.
    fn tell_pieces(&self, pieces: &[(u64, PieceRow)], role: Role) -> Vec<Step> {
        let told = |(base, piece): &(u64, PieceRow)| match role {
            Role::Switch => {
                Some(step(pieces::translate(*base, piece), [self.untranslate(*base, piece.size)]))
            }
            Role::Node(node) => {
                let here = self.piece_at(*base, piece, node)?;
                Some(step(here, [pieces::unplace(*base, piece.size)]))
            }
            Role::Index(_) => None,
        };
        pieces.iter().filter_map(told).collect()
    }

    /// Returns true while a known node rejoins: its translation never went away.
    pub(crate) fn joins_again(&self, row: &NodeRow) -> bool {
        let change = row.joining.and_then(|id| self.changes.get(&id));
        change.is_some_and(|change| matches!(change.what, ChangeKind::JoinNode { again: true, .. }))
    }
}

/// Returns what a role is told of a new vma. That of an object by file is lost before any host may read it
/// (PROTOCOL 20.13).
fn allocate(base: u64, size: u64, domain: u32, cleared: Vec<(u64, u64)>, by_file: bool) -> Vec<Step> {
    let perm = if by_file { PermName::Read } else { PermName::ReadWrite };
    let grant = protect(domain, whole(base, size, perm), size);
    let grant = step(grant, [protect(domain, whole(base, size, PermName::None), size)]);
    let mut steps = Vec::new();
    for (base, len) in cleared {
        let base = VirtAddr(base);
        steps.push(step(Update::Clear { base, len }, []));
        // The next allocation there clears it again.
        steps.extend(by_file.then(|| step(Update::Lose { base, len }, [])));
    }
    steps.push(grant);
    steps
}

/// Returns the parts of a new vma that are at `node`, if the vma's addresses are those of `home`: first byte and
/// length, ascending.
fn parts_at(node: u16, home: u16, base: u64, size: u64, pieces: &[(u64, PieceRow)]) -> Vec<(u64, u64)> {
    let (mut parts, mut at) = (Vec::new(), base);
    for &(first, piece) in pieces {
        parts.push((home, at, first - at));
        parts.push((piece.node, first, piece.size));
        at = first + piece.size;
    }
    parts.push((home, at, base + size - at));
    parts.retain(|&(of, _, len)| of == node && len > 0);
    parts.into_iter().map(|(_, base, len)| (base, len)).collect()
}

pub(crate) fn step(update: Update, undo: impl IntoIterator<Item = Update>) -> Step {
    (update, Some(undo.into_iter().map(LoggedUpdate).collect()))
}

fn join(port: Port, gid: [u8; 16], home: Key) -> Step {
    step(peer(port, gid, home), [Update::PeerGone { port: port.0 }])
}

pub(crate) fn peer(port: Port, gid: [u8; 16], home: Key) -> Update {
    Update::Peer { port: port.0, gid: Gid(gid), qpn: Qpn::new(home.qpn), qkey: Qkey(home.qkey) }
}

pub(crate) const fn whole(base: u64, len: u64, perm: PermName) -> Span {
    Span { base, len, perm }
}

/// Builds the update for `span`, a part of a vma of this many bytes.
pub(crate) fn protect(domain: u32, span: Span, vma_size: u64) -> Update {
    Update::Protect {
        domain: Domain(domain),
        base: VirtAddr(span.base),
        len: span.len,
        perm: perm(span.perm),
        vma_log2: pieces::log2(vma_size),
    }
}

const fn live(host: u16, generation: u16) -> Update {
    Update::Live { host: HostId(host), generation }
}

/// Returns the number with which the numbers of regions begin in an epoch: above all that a switch can have
/// reached before (PROTOCOL 12.36).
pub(crate) const fn newest(epoch: u64) -> Seq {
    Seq::of_epoch(epoch)
}

pub(crate) fn session_gone(row: &SessionRow) -> Update {
    Update::SessionGone { qpn: Qpn::new(row.key.qpn) }
}

fn queue_pair(row: &ConnectionRow) -> Update {
    // The switch is the peer of both ends of a connection through it (PROTOCOL 15.12).
    let (peer_qpn, peer) = match row.through {
        Some(through) => (through.to_host, Port::SWITCH),
        None => (row.qpn, Port::host(row.host)),
    };
    Update::QueuePair {
        qpn: Qpn::new(row.peer_qpn),
        peer_qpn: Qpn::new(peer_qpn),
        peer_port: peer.0,
        expected_psn: Psn::new(row.first_psn),
        rkey: Rkey(row.rkey),
        domain: Domain(row.domain),
        pmtu: pmtu(row),
    }
}

fn pmtu(row: &ConnectionRow) -> Pmtu {
    Pmtu::from_bytes(usize::from(row.pmtu)).unwrap_or(Pmtu::B1024)
}

fn relayed(row: &ConnectionRow, through: &ThroughRow) -> Update {
    Update::Connection(Relayed {
        to_node: Qpn::new(through.to_node),
        to_host: Qpn::new(through.to_host),
        host: HostId(row.host),
        host_qpn: Qpn::new(row.qpn),
        node: node_id(row.node),
        node_qpn: Qpn::new(row.peer_qpn),
        rkey: Rkey(row.rkey),
        domain: Domain(row.domain),
        pmtu: pmtu(row),
        root: VirtAddr(through.root),
    })
}

fn relayed_gone(through: &ThroughRow) -> Update {
    Update::ConnectionGone { to_node: Qpn::new(through.to_node) }
}

/// Returns what node and switch are told when a connection ends.
pub(crate) fn connection_gone(row: &ConnectionRow) -> impl Iterator<Item = (Role, Update)> + use<> {
    let switch = row.through.map(|through| (Role::Switch, relayed_gone(&through)));
    [(Role::Node(row.node), queue_pair_gone(row))].into_iter().chain(switch)
}

fn queue_pair_gone(row: &ConnectionRow) -> Update {
    Update::QueuePairGone { qpn: Qpn::new(row.peer_qpn) }
}
