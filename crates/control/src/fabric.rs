//! The index switches: their joins and leaves, which of them know each other, and their routes (PROTOCOL 16.1
//! to 16.4; Fat-B+Tree IV-A).
//!
//! An index switch names the members below it; from that follow the servers it leads to, and the port of
//! each. Routes are soft state: each switch's image has a section of them, rebuilt when a member joins or
//! leaves. The log only records the joins.

use crate::Control;
use crate::api::{ErrorCode, IndexInfo, JoinIndex, Tier};
use crate::claims::Claim;
use crate::errors::{bad, bound, error};
use crate::members::{MemberKind, name_allowed};
use crate::record::{ChangeKind, IndexRow, Role, RollbackReason, gid_text};
use crate::requests::{Decided, Decision};
use crate::state::{Effect, LogError, State};
use crate::tables::peer;
use crate::updates::Reach;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use farmem_index::{RouteSection, ServerRoute};
use farmem_machine::Port;
use farmem_transport::PeerChange;
use farmem_wire::message::Update;
use farmem_wire::{Gid, NodeId, VirtAddr};

/// Maximum number of index switches in a rack: a FatTree of k = 4 uses 13 (Fat-B+Tree IV-A: a core switch, 4
/// pods of an aggregation switch and 2 edges).
pub const INDEX_MAX: u16 = 256;
/// Maximum number of names below an index switch.
pub const BELOW_MAX: usize = 1024;

impl Control {
    pub(crate) fn join_index(&mut self, call: &JoinIndex) -> Decided<JoinIndex> {
        let JoinIndex { name, gid, tier, below } = call;
        self.name_free(MemberKind::Index, name)?;
        if below.is_empty() || below.len() > BELOW_MAX {
            let message = format!("{name} names {} others below it", below.len());
            return Err(bad(
                message,
                format!("name 1 to {BELOW_MAX}: switches of the index, or memory nodes"),
            ));
        }
        let mut names = BTreeSet::new();
        for other in below {
            name_allowed("switch or node below", other)?;
            if other == name || !names.insert(other) {
                let message = format!("{name} names {other} below it twice, or is {other} itself");
                return Err(bad(message, "name each once"));
            }
        }
        let rows = || self.state.index.iter();
        let known = rows().find(|(_, row)| row.name == *name).map(|(&index, _)| index);
        let mut others = rows().filter(|(index, _)| Some(**index) != known);
        if let Some((_, row)) = others.find(|(_, row)| row.below.iter().any(|taken| names.contains(taken))) {
            let message = format!("a member below {name} is already below {}", row.name);
            let remedy = "have each name below one switch: look at the `below` of both in rack.toml";
            return Err(error(ErrorCode::Conflict, message, remedy));
        }
        // A leaving switch keeps its number until all roles know of it.
        let leaving = self.state.claims();
        let is_free = |index: &u16| {
            !self.state.index.contains_key(index) && !leaving.contains(&Claim::Member(Port::index(*index).0))
        };
        let free = || (1..=INDEX_MAX).find(is_free);
        let index = known.or_else(free).ok_or_else(|| bound("switches of the index", INDEX_MAX))?;
        let gid = self.free_gid(gid, Port::index(index))?;
        let (name, below, home) = (name.clone(), below.clone(), self.draw_key());
        let row = IndexRow { name, gid, home, generation: 0, tier: *tier, below, since: 0, joining: None };
        Ok(Decision::Begin(ChangeKind::JoinIndex { index, row }))
    }

    pub(crate) fn index_infos(&self) -> Vec<IndexInfo> {
        let info = |(&index, row): (&u16, &IndexRow)| IndexInfo {
            index,
            name: row.name.clone(),
            gid: gid_text(row.gid),
            tier: row.tier,
            below: row.below.clone(),
            servers: self.state.routes_below(row).keys().copied().collect(),
            answers: self.state.leads(index),
            epoch: self.index_soft.get(&index).map_or(0, |(soft, _)| soft.standing_epoch()),
        };
        self.state.index.iter().map(info).collect()
    }

    /// Returns the routes section for a switch; `None` if it has no routes.
    pub(crate) fn routes_of(&self, role: Role) -> Option<Vec<u8>> {
        let section = match role {
            Role::Index(index) => {
                let row = self.state.index.get(&index)?;
                RouteSection { servers: self.state.servers(row), ..RouteSection::default() }
            }
            Role::Switch => {
                let is_core =
                    |(index, row): &(&u16, &IndexRow)| row.tier == Tier::Core && self.state.leads(**index);
                let (&core, _) = self.state.index.iter().find(is_core)?;
                let trees = self.index_soft.get(&core).map_or_else(Vec::new, |(soft, _)| soft.led_trees());
                RouteSection { up: Some(Port::index(core).0), trees, ..RouteSection::default() }
            }
            Role::Node(_) => return None,
        };
        Some(section.emit())
    }
}

impl State {
    /// Returns true if an index switch has joined and answers.
    fn leads(&self, index: u16) -> bool {
        let joined = self.index.get(&index).is_some_and(|row| row.joining.is_none());
        joined && self.reach(Role::Index(index)) == Some(Reach::Ready)
    }

    /// Returns the memory nodes that a switch leads to, each with the port of its next hop. Members below
    /// have a lower tier, so the recursion ends.
    fn routes_below(&self, row: &IndexRow) -> BTreeMap<u16, Port> {
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

    fn servers(&self, row: &IndexRow) -> Vec<ServerRoute> {
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
