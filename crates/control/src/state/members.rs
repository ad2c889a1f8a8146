//! Rows of members: joins, leaves, and what ends with an incarnation (PROTOCOL 8.2 to 8.9).

use crate::record::{
    Cache, ChangeKind, ConnectionRow, FileTurn, HostRow, Key, NodeRow, Role, RollbackReason, SwitchRow,
};
use crate::state::tables::{connection_gone, session_gone};
use crate::state::{Effect, LogError, State};
use crate::updates::{LoggedUpdate, Queue, Reach};
use alloc::vec::Vec;
use farmem_machine::Port;
use farmem_transport::PeerChange;
use farmem_wire::message::Update;
use farmem_wire::{Gid, HostId};

/// A member of the rack other than the control plane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub(crate) port: Port,
    pub(crate) gid: [u8; 16],
    /// Queue pair of the member's endpoint.
    pub(crate) qpn: u32,
    /// Name of the member. The switch has none.
    pub(crate) name: Option<&'a str>,
}

impl State {
    /// Restores the row of the switch.
    pub(crate) fn put_switch(&mut self, row: &SwitchRow) {
        // Logs of earlier versions record it in no other way.
        self.switch_joined |= row.joining.is_none();
        self.switch = Some(row.clone());
    }

    /// Records the build of the member at a port, or that it named none.
    pub(crate) fn put_build(&mut self, port: Port, build: Option<&str>) {
        match build {
            Some(build) => drop(self.builds.insert(port, build.into())),
            None => drop(self.builds.remove(&port)),
        }
    }

    /// Records that nothing of the host's earlier incarnation is left anywhere.
    pub(crate) fn forget_cache(&mut self, host: u16) -> Result<(), LogError> {
        let row = self.hosts.get_mut(&host).filter(|row| row.cache == Cache::Fenced);
        row.ok_or(LogError("a host is forgotten that was not fenced"))?.cache = Cache::Empty;
        self.close_shared(host);
        Ok(())
    }

    pub(crate) fn reach(&self, role: Role) -> Option<Reach> {
        self.queues.get(&role).map(|queue| queue.reach)
    }

    pub(crate) fn generation(&self, role: Role) -> u16 {
        match role {
            Role::Switch => self.switch_generation,
            Role::Node(node) => self.nodes.get(&node).map_or(0, |row| row.generation),
            Role::Index(index) => self.index.get(&index).map_or(0, |row| row.generation),
        }
    }

    /// Returns the endpoint of a role.
    pub(crate) fn home_of(&self, role: Role) -> Option<Key> {
        match role {
            Role::Switch => self.switch.as_ref().map(|row| row.home),
            Role::Node(node) => self.nodes.get(&node).map(|row| row.home),
            Role::Index(index) => self.index.get(&index).map(|row| row.home),
        }
    }

    /// Returns true if an endpoint or a connection has this queue pair number.
    pub(crate) fn uses_qpn(&self, qpn: u32) -> bool {
        let connection = |row: &ConnectionRow| row.qpns().any(|its| its == qpn);
        self.home.is_some_and(|key| key.qpn == qpn)
            || self.switch.as_ref().is_some_and(|row| row.home.qpn == qpn)
            || self.nodes.values().any(|row| row.home.qpn == qpn)
            || self.index.values().any(|row| row.home.qpn == qpn)
            || self.hosts.values().any(|row| row.home.qpn == qpn)
            || self.sessions.contains_key(&qpn)
            || self.connections.values().any(connection)
            || self.changes.values().any(|change| match &change.what {
                ChangeKind::OpenSession(row) => row.key.qpn == qpn,
                ChangeKind::Connect(row) | ChangeKind::Disconnect(row) => connection(row),
                _ => false,
            })
    }

    /// Iterates over all members: the switch, memory nodes, index switches, and hosts that have not left.
    pub(crate) fn members(&self) -> impl Iterator<Item = Member<'_>> {
        fn member<'a>(port: Port, gid: [u8; 16], home: Key, name: Option<&'a str>) -> Member<'a> {
            Member { port, gid, qpn: home.qpn, name }
        }
        let switch = self.switch.iter().map(|row| member(Port::SWITCH, row.gid, row.home, None));
        let nodes = self.nodes.iter();
        let nodes = nodes.map(|(&node, row)| member(Port::node(node), row.gid, row.home, Some(&row.name)));
        let index = self.index.iter();
        let index = index.map(|(&index, row)| member(Port::index(index), row.gid, row.home, Some(&row.name)));
        let hosts = self.hosts.iter().filter(|(_, row)| row.present);
        let hosts = hosts.map(|(&host, row)| member(Port::host(host), row.gid, row.home, Some(&row.name)));
        switch.chain(nodes).chain(index).chain(hosts)
    }

    /// Returns the addresses of all members.
    pub(crate) fn peers(&self) -> Vec<PeerChange> {
        self.members().map(|Member { port, gid, .. }| PeerChange { port, gid: Some(Gid(gid)) }).collect()
    }
}

impl State {
    pub(crate) fn begin_join_node(&mut self, id: u64, what: &ChangeKind, effects: &mut Vec<Effect>) {
        let ChangeKind::JoinNode { node, name, gid, home, base, size_log2, capacity, card, .. } = what else {
            return;
        };
        let role = Role::Node(*node);
        self.lose_memory_of(*node);
        for read in self.lose_files_of(*node) {
            self.enqueue(Role::Switch, None, LoggedUpdate(read), None, effects);
        }
        self.reset(role, RollbackReason::Joined { role }, ChangeKind::is_protection, effects);
        // The node's memory and its halves of the connections are gone; the hosts' halves will notice
        // (PROTOCOL 8.6).
        self.end_connections_to(*node, effects);
        if self.nodes.contains_key(node) {
            self.forget(Port::node(*node), effects);
        }
        let row = NodeRow {
            name: name.clone(),
            gid: *gid,
            home: *home,
            generation: self.generation(role).wrapping_add(1),
            base: *base,
            size_log2: *size_log2,
            capacity: *capacity,
            joining: Some(id),
            card: card.clone(),
            since: self.nodes.get(node).map_or(id, |row| row.since),
        };
        self.nodes.insert(*node, row);
        effects.push(Effect::Peer(PeerChange { port: Port::node(*node), gid: Some(Gid(*gid)) }));
        self.fill(role, effects);
    }

    /// Fills the queue of a role that joins: all its tables, then the protection changes in progress.
    pub(crate) fn fill(&mut self, role: Role, effects: &mut Vec<Effect>) {
        self.queues.insert(role, Queue::held(self.tables(role)));
        for id in self.applying(ChangeKind::is_protection) {
            let Some(what) = self.changes.get(&id).map(|change| change.what.clone()) else { continue };
            if !self.concerned(&what).contains(&role) {
                continue;
            }
            for (update, undo) in self.tell(&what, role) {
                self.enqueue(role, Some(id), LoggedUpdate(update), undo, effects);
            }
        }
    }

    pub(crate) fn begin_leave_host(&mut self, host: u16, effects: &mut Vec<Effect>) -> Result<(), LogError> {
        self.cut_off(host, effects);
        let row = self.hosts.get_mut(&host).ok_or(LogError("an unknown host leaves"))?;
        row.present = false;
        if matches!(row.cache, Cache::Live { .. }) {
            row.cache = Cache::Orphaned;
        }
        effects.push(Effect::Peer(PeerChange { port: Port::host(host), gid: None }));
        Ok(())
    }

    pub(crate) fn begin_join_host(
        &mut self,
        id: u64,
        what: &ChangeKind,
        effects: &mut Vec<Effect>,
    ) -> Result<(), LogError> {
        let ChangeKind::JoinHost { host, name, gid, home, replaces } = what else { return Ok(()) };
        if let Some(other) = *replaces {
            self.begin_leave_host(other, effects)?;
            self.forget(Port::host(other), effects);
        }
        self.cut_off(*host, effects);
        if self.hosts.get(host).is_some_and(|row| row.present) {
            self.forget(Port::host(*host), effects);
        }
        let last = self.hosts.get(host).map_or(0, |row| row.generation);
        let generation = last.checked_add(1).unwrap_or(1);
        if generation < last {
            self.begin_anew(*host, effects);
        }
        // Pages cached by its earlier incarnation may still be read until that incarnation's lease has ended.
        let cache = match self.hosts.get(host).map(|row| row.cache) {
            Some(Cache::Live { .. }) => Cache::Orphaned,
            cache => cache.unwrap_or_default(),
        };
        let given_up = self.hosts.get(host).filter(|_| generation > last).map_or(0, |row| row.given_up);
        let row = HostRow {
            name: name.clone(),
            gid: *gid,
            home: *home,
            generation,
            present: true,
            cache,
            given_up,
            since: self.hosts.get(host).filter(|row| row.present).map_or(id, |row| row.since),
            joining: Some(id),
            acts_for: Vec::new(),
        };
        self.hosts.insert(*host, row);
        effects.push(Effect::Peer(PeerChange { port: Port::host(*host), gid: Some(Gid(*gid)) }));
        Ok(())
    }

    /// Tells nodes the host's new generation: they remember the last one of each host, and drop requests of
    /// an earlier one. A failure of the join does not roll this back.
    fn begin_anew(&mut self, host: u16, effects: &mut Vec<Effect>) {
        let nodes: Vec<u16> = self.farmem_nodes().map(|(&node, _)| node).collect();
        for node in nodes {
            let told = LoggedUpdate(Update::Anew { host: HostId(host) });
            self.enqueue(Role::Node(node), None, told, None, effects);
        }
    }

    /// Tells roles that the incarnation at this port is gone, whatever the result of the next join. (Nodes do
    /// not know each other.)
    pub(crate) fn forget(&mut self, port: Port, effects: &mut Vec<Effect>) {
        let roles: Vec<Role> = self.queues.keys().copied().collect();
        for role in
            roles.into_iter().filter(|&role| port.as_node().is_none() || !matches!(role, Role::Node(_)))
        {
            self.enqueue(role, None, LoggedUpdate(Update::PeerGone { port: port.0 }), None, effects);
        }
    }

    /// Ends the connections to a node that is gone or restarts, and tells the switch.
    pub(crate) fn end_connections_to(&mut self, node: u16, effects: &mut Vec<Effect>) {
        let ended = self.connections.values().filter(|row| row.node == node).flat_map(connection_gone);
        let ended: Vec<Update> =
            ended.filter(|(role, _)| *role == Role::Switch).map(|(_, update)| update).collect();
        self.connections.retain(|_, row| row.node != node);
        for update in ended {
            self.enqueue(Role::Switch, None, LoggedUpdate(update), None, effects);
        }
    }

    /// Ends everything that belongs to the host's present incarnation.
    fn cut_off(&mut self, host: u16, effects: &mut Vec<Effect>) {
        self.end_objects(host);
        let its = |what: &ChangeKind| match what {
            ChangeKind::OpenSession(row) => row.host == host,
            ChangeKind::Connect(row) => row.host == host,
            ChangeKind::Live { host: its, .. } => *its == host,
            ChangeKind::TurnFile { turn: FileTurn::Write { host: its }, .. } => *its == host,
            _ => false,
        };
        for id in self.applying(its) {
            self.fail(id, RollbackReason::Left { port: Port::host(host).0 }, effects);
        }
        let sessions: Vec<Update> =
            self.sessions.values().filter(|row| row.host == host).map(session_gone).collect();
        self.sessions.retain(|_, row| row.host != host);
        for update in sessions {
            self.enqueue(Role::Switch, None, LoggedUpdate(update), None, effects);
        }
        let ended = self.connections.values().filter(|row| row.host == host);
        let ended: Vec<(Role, Update)> = ended.flat_map(connection_gone).collect();
        self.connections.retain(|_, row| row.host != host);
        for (role, update) in ended {
            self.enqueue(role, None, LoggedUpdate(update), None, effects);
        }
    }
}
