//! Rows of index switches: joins, leaves, tables and routes (PROTOCOL 16.1 to 16.4).

use crate::bounds::INDEX_MAX;
use crate::record::{IndexRow, Role, RollbackReason};
use crate::state::tables::peer;
use crate::state::{Effect, LogError, State};
use crate::updates::Reach;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use farmem_index::ServerRoute;
use farmem_machine::Port;
use farmem_transport::PeerChange;
use farmem_wire::message::Update;
use farmem_wire::{Gid, NodeId, VirtAddr};

impl State {
    /// Returns true if an index switch has joined and answers.
    pub(crate) fn leads(&self, index: u16) -> bool {
        let joined = self.index.get(&index).is_some_and(|row| row.joining.is_none());
        joined && self.reach(Role::Index(index)) == Some(Reach::Ready)
    }

    /// Returns the memory nodes that a switch leads to, each with the port of its next hop. Members below
    /// have a lower tier, so the recursion ends.
    pub(crate) fn routes_below(&self, row: &IndexRow) -> BTreeMap<u16, Port> {
        let mut ways = BTreeMap::new();
        for name in &row.below {
            let node = self.farmem_nodes().find(|(_, node)| node.name == *name && node.joining.is_none());
            ways.extend(node.map(|(&node, _)| (node, Port::node(node))));
            let lower = self.index.iter().find(|(_, lower)| lower.name == *name && lower.tier > row.tier);
            if let Some((&index, lower)) = lower.filter(|(index, _)| self.leads(**index)) {
                ways.extend(self.routes_below(lower).into_keys().map(|node| (node, Port::index(index))));
            }
        }
        ways
    }

    pub(crate) fn servers(&self, row: &IndexRow) -> Vec<ServerRoute> {
        let way = |(node, port): (u16, Port)| {
            let row = self.nodes.get(&node)?;
            let (base, size_log2) = (VirtAddr(row.base), row.size_log2);
            Some(ServerRoute { base, size_log2, server: NodeId(node), port: port.0 })
        };
        let mut servers: Vec<ServerRoute> = self.routes_below(row).into_iter().filter_map(way).collect();
        servers.sort_unstable_by_key(|way| way.base);
        servers
    }

    /// Returns the incarnation of each joined switch.
    pub(crate) fn switch_lives(&self) -> BTreeMap<Role, u16> {
        let rack = self.switch.iter().map(|_| Role::Switch);
        rack.chain(self.index_roles()).map(|role| (role, self.generation(role))).collect()
    }

    pub(crate) fn index_roles(&self) -> impl Iterator<Item = Role> + '_ {
        self.index.keys().map(|&index| Role::Index(index))
    }

    /// Returns the updates about index switches for roles that exchange traversals with them, without those
    /// that are gone.
    pub(crate) fn index_peers(&self) -> impl Iterator<Item = Update> + '_ {
        let there = |index: u16| self.queues.contains_key(&Role::Index(index));
        let joined = self.index.iter().filter(move |(index, row)| row.joining.is_none() && there(**index));
        joined.map(|(&index, row)| peer(Port::index(index), row.gid, row.home))
    }

    /// Returns the tables of an index switch: the nodes, the other index switches and, last, the rack's
    /// switch.
    pub(crate) fn index_tables(&self, index: u16) -> Vec<Update> {
        let nodes = self.farmem_nodes().filter(|(_, row)| row.joining.is_none());
        let mut updates: Vec<Update> =
            nodes.map(|(&node, row)| peer(Port::node(node), row.gid, row.home)).collect();
        let own = Port::index(index).0;
        updates.extend(
            self.index_peers().filter(|told| !matches!(told, Update::Peer { port, .. } if *port == own)),
        );
        updates.extend(self.switch_peer());
        updates
    }

    pub(crate) fn begin_join_index(
        &mut self,
        id: u64,
        index: u16,
        row: &IndexRow,
        effects: &mut Vec<Effect>,
    ) {
        let role = Role::Index(index);
        self.reset(role, RollbackReason::Joined { role }, |_| false, effects);
        if self.index.contains_key(&index) {
            self.forget(Port::index(index), effects);
        }
        let generation = self.generation(role).wrapping_add(1);
        let since = self.index.get(&index).map_or(id, |row| row.since);
        self.index.insert(index, IndexRow { generation, since, joining: Some(id), ..row.clone() });
        effects.push(Effect::Peer(PeerChange { port: Port::index(index), gid: Some(Gid(row.gid)) }));
        self.fill(role, effects);
    }

    pub(crate) fn begin_leave_index(
        &mut self,
        index: u16,
        effects: &mut Vec<Effect>,
    ) -> Result<(), LogError> {
        if !self.index.contains_key(&index) {
            return Err(LogError("an unknown switch of the index leaves"));
        }
        self.end_index(index, effects);
        Ok(())
    }

    /// Rolls back a join. A switch that existed before keeps its row, as a node does: it gets no updates
    /// until it rejoins.
    pub(crate) fn end_join_index(&mut self, id: u64, index: u16, effects: &mut Vec<Effect>) {
        match self.index.get_mut(&index) {
            Some(row) if row.since != id => {
                row.joining = None;
                let role = Role::Index(index);
                self.reset(role, RollbackReason::Joined { role }, |_| false, effects);
            }
            _ => self.end_index(index, effects),
        }
    }

    /// Removes an index switch that left or failed to join.
    pub(crate) fn end_index(&mut self, index: u16, effects: &mut Vec<Effect>) {
        let (role, port) = (Role::Index(index), Port::index(index));
        self.reset(role, RollbackReason::Left { port: port.0 }, |_| false, effects);
        self.index.remove(&index);
        effects.push(Effect::Peer(PeerChange { port, gid: None }));
    }

    /// Returns the first violated invariant of index switches, if any.
    pub(crate) fn index_fault(&self) -> Option<&'static str> {
        if !self.index.keys().all(|index| (1..=INDEX_MAX).contains(index)) {
            return Some("switches of the index are numbered from 1");
        }
        let below: Vec<&String> = self.index.values().flat_map(|row| &row.below).collect();
        let apart: BTreeSet<&String> = below.iter().copied().collect();
        (below.len() != apart.len()).then_some("each name is below one switch of the index")
    }
}
