//! Joins and leaves: names, addresses, numbers and ranges (PROTOCOL 8.2 to 8.9).

use crate::addresses::{PAGE, VA_END, first_fit};
use crate::api::{ApiError, ErrorCode, JoinHost, JoinNode, JoinSwitch, Leave};
use crate::bounds::NAME_LEN_MAX;
use crate::decision::{Decided, Decision};
use crate::errors::{LISTED, bad, bound, error, not_found};
use crate::member_address::parse_gid;
use crate::rack::Rack;
use crate::record::{Cache, ChangeKind, HostRow, NodeRow};
use crate::requests::card_numbers::card_endpoint;
use crate::state::claims::Claim;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use farmem_machine::Port;
use farmem_wire::message::CACHING_HOSTS_MAX;

impl Rack {
    pub(crate) fn join_switch(&mut self, gid: &str) -> Decided<JoinSwitch> {
        let gid = self.free_gid(gid, Port::SWITCH)?;
        Ok(Decision::Begin(ChangeKind::JoinSwitch { gid, home: self.draw_key() }))
    }

    pub(crate) fn join_node(&mut self, call: &JoinNode) -> Decided<JoinNode> {
        let JoinNode { name, gid, capacity, qpn, qkey, card } = call;
        let capacity = *capacity;
        self.name_free(MemberKind::Node, name)?;
        let own = card_endpoint(*qpn, *qkey)?;
        if capacity == 0 || !capacity.is_multiple_of(PAGE) {
            return Err(bad(
                format!("capacity is {capacity} bytes"),
                format!("give a multiple of {PAGE} bytes, at least {PAGE}"),
            ));
        }
        let known = self
            .state
            .nodes
            .iter()
            .find(|(_, row)| row.name == *name)
            .map(|(&node, row)| (node, row.clone()));
        let again = known.is_some();
        let at = card.as_ref().map(|card| self.card_range(card, capacity, own, name)).transpose()?;
        let (node, base, size_log2) = match known {
            Some((node, row)) => {
                self.same_kind(node, &row, card.as_ref())?;
                self.capacity_fits(node, &row, capacity)?;
                (node, row.base, row.size_log2)
            }
            None => self.new_node(name, capacity, at)?,
        };
        let gid = self.free_gid(gid, Port::node(node))?;
        let home = own.unwrap_or_else(|| self.draw_key());
        let (name, card) = (name.clone(), card.clone());
        Ok(Decision::Begin(ChangeKind::JoinNode {
            node,
            name,
            gid,
            home,
            base,
            size_log2,
            capacity,
            again,
            card,
        }))
    }

    pub(crate) fn join_host(&mut self, call: &JoinHost) -> Decided<JoinHost> {
        let JoinHost { name, gid, qpn, qkey, caches } = call;
        self.name_free(MemberKind::Host, name)?;
        let own = card_endpoint(*qpn, *qkey)?;
        let numbers = self.host_numbers(*caches);
        let (host, replaces) = self.host_of_name(name, &numbers)?;
        let gid = self.free_gid(gid, Port::host(replaces.unwrap_or(host)))?;
        let home = own.unwrap_or_else(|| self.draw_key());
        Ok(Decision::Begin(ChangeKind::JoinHost { host, name: name.clone(), gid, home, replaces }))
    }

    pub(crate) fn leave(&self, port: u32, generation: Option<u16>) -> Decided<Leave> {
        if port <= Port::SWITCH.0 {
            let message = format!("port {port} is the control plane's or the switch's, which do not leave");
            return Err(bad(message, "stop the process; a switch that is started again joins again"));
        }
        let unknown = || {
            not_found(
                format!("no member has port {port}"),
                "GET /v1/overview lists the hosts and nodes there are",
            )
        };
        if let Some(host) = Port(port).as_host() {
            let row = self.state.hosts.get(&host).filter(|row| row.present).ok_or_else(unknown)?;
            if let Some(meant) = generation.filter(|&meant| meant != row.generation) {
                let message =
                    format!("host {host} ({}) is in generation {}, not {meant}", row.name, row.generation);
                let remedy = "that generation has left or rejoined, so it needs no removal";
                return Err(not_found(message, remedy));
            }
            return Ok(Decision::Begin(ChangeKind::LeaveHost { host }));
        }
        if generation.is_some() {
            let message = format!("port {port} is not a host's, so it has no generation");
            return Err(bad(
                message,
                "leave `generation` out: nodes and index switches have one incarnation at a time",
            ));
        }
        if let Some(index) = Port(port).as_index() {
            let row = self.state.index.get(&index);
            return row.map(|_| Decision::Begin(ChangeKind::LeaveIndex { index })).ok_or_else(unknown);
        }
        let node = Port(port).as_node().ok_or_else(unknown)?;
        let row = self.state.nodes.get(&node).ok_or_else(unknown)?;
        let vmas = self.state.vmas.values().filter(|vma| vma.node == node).count();
        let pieces = self.state.pieces.values().filter(|piece| piece.node == node).count();
        if vmas == 0 && pieces > 0 {
            let message = format!("{pieces} parts of vmas were moved to node {node} ({})", row.name);
            return Err(error(
                ErrorCode::Conflict,
                message,
                "move them elsewhere with `migrate`, or free their vmas",
            ));
        }
        if vmas > 0 {
            let message = format!("node {node} ({}) has {vmas} vmas allocated", row.name);
            return Err(error(ErrorCode::Conflict, message, format!("free them first; {LISTED}")));
        }
        Ok(Decision::Begin(ChangeKind::LeaveNode { node, base: row.base, size_log2: row.size_log2 }))
    }

    /// Parses an address and checks that no member but `port` has it.
    pub(crate) fn free_gid(&self, text: &str, port: Port) -> Result<[u8; 16], ApiError> {
        let gid = parse_gid(text)?;
        let own = (Port::CONTROL, self.config.gid.0);
        let members = self.state.members().map(|member| (member.port, member.gid));
        let mut all = core::iter::once(own).chain(members);
        match all.find(|&(other, taken)| taken == gid && other != port) {
            None => Ok(gid),
            Some((other, _)) => {
                let remedy = format!("give another address, or have port {} leave first", other.0);
                Err(error(
                    ErrorCode::Conflict,
                    format!("address {text} is in use by port {}", other.0),
                    remedy,
                ))
            }
        }
    }

    /// Refuses an invalid name, and the name of a member of another kind. A member of this kind with the name
    /// rejoins.
    pub(crate) fn name_free(&self, kind: MemberKind, name: &str) -> Result<(), ApiError> {
        name_allowed(kind.text(), name)?;
        let mut named = self.state.members().filter(|member| member.name == Some(name));
        match named.find_map(|member| MemberKind::of(member.port).filter(|&other| other != kind)) {
            None => Ok(()),
            Some(other) => {
                let message = format!("the name {name} is taken by a {}", other.text());
                Err(error(ErrorCode::Conflict, message, "join with another name"))
            }
        }
    }

    /// Returns the numbers that a host may have: 1 to 255 are for hosts that cache pages (PROTOCOL 8.8,
    /// 12.3).
    fn host_numbers(&self, caches: Option<bool>) -> RangeInclusive<u16> {
        let most = self.config.bounds.hosts_max;
        match caches {
            Some(true) => 1..=most.min(CACHING_HOSTS_MAX - 1),
            Some(false) if most >= CACHING_HOSTS_MAX => CACHING_HOSTS_MAX..=most,
            Some(false) | None => 1..=most,
        }
    }

    /// Returns the number for the joining host of this name, and the number that it gives up, if its present
    /// one is not permitted now. A known host continues with its generations; a number without further
    /// generations is given up too.
    fn host_of_name(
        &self,
        name: &str,
        numbers: &RangeInclusive<u16>,
    ) -> Result<(u16, Option<u16>), ApiError> {
        let named = || self.state.hosts.iter().filter(|(_, row)| row.name == name);
        let fits =
            |&(host, row): &(&u16, &HostRow)| numbers.contains(host) && self.has_generations(*host, row);
        let there = named().find(|(_, row)| row.present);
        // Pages cached by its earlier incarnation may still be read (PROTOCOL 12.35): the number stays until
        // that is over.
        if let Some((&host, row)) = there.filter(|(_, row)| row.cache != Cache::Empty) {
            if row.generation < u16::MAX {
                return Ok((host, None));
            }
            let message =
                format!("host {host} ({name}) has started {} times, the last generation there is", u16::MAX);
            return Err(error(
                ErrorCode::Conflict,
                message,
                "ask again when its lease has ended, or join with another name",
            ));
        }
        let before = there.filter(fits).or_else(|| named().find(fits)).map(|(&host, _)| host);
        let host = before.map_or_else(|| self.new_host(numbers), Ok)?;
        Ok((host, there.map(|(&other, _)| other).filter(|&other| other != host)))
    }

    /// Returns the lowest number that no host has, or of a host that left: its generation continues (PROTOCOL
    /// 8.8). Only hosts with low numbers may cache pages, so numbers must not climb with every host that
    /// comes and goes.
    fn new_host(&self, numbers: &RangeInclusive<u16>) -> Result<u16, ApiError> {
        let leaving = self.state.claims();
        let idle = |host: u16, row: &HostRow| {
            let settled = !leaving.contains(&Claim::Member(Port::host(host).0));
            !row.present && self.has_generations(host, row) && settled
        };
        // A new host would have to wait for cached pages that are still being recalled.
        let at_once = |host: u16| {
            self.state.hosts.get(&host).is_none_or(|row| idle(host, row) && row.cache == Cache::Empty)
        };
        let left = || {
            let mut rows = self.state.hosts.range(numbers.clone());
            rows.find(|&(&host, row)| idle(host, row)).map(|(&host, _)| host)
        };
        let found = numbers.clone().find(|&host| at_once(host)).or_else(left);
        found.ok_or_else(|| {
            let (first, last) = (numbers.start(), numbers.end());
            let what = if *last == CACHING_HOSTS_MAX - 1 { "hosts that cache pages" } else { "hosts" };
            bound(what, last - first + 1)
        })
    }

    /// Returns true if the number has another generation: one after the last, or all of them anew when the
    /// old ones are long over (PROTOCOL 8.8). Moves between nodes carry the nodes' memory of hosts, so none
    /// may be in flight then.
    fn has_generations(&self, host: u16, row: &HostRow) -> bool {
        let rested = || self.has_rested(host) && row.cache == Cache::Empty;
        row.generation < u16::MAX
            || rested() && self.in_flight(|what| matches!(what, ChangeKind::Migrate(_))) == 0
    }

    /// Returns a number and a range for a new node (PROTOCOL 8.4).
    fn new_node(&self, name: &str, capacity: u64, at: Option<u64>) -> Result<(u16, u64, u8), ApiError> {
        let most = self.config.bounds.nodes_max;
        let leaving = self.state.claims();
        let taken = |node: u16| {
            self.state.nodes.contains_key(&node) || leaving.contains(&Claim::Member(Port::node(node).0))
        };
        let names = &self.config.node_names;
        let listed = names.iter().position(|listed| listed == name);
        let listed = listed.and_then(|place| u16::try_from(place + 1).ok());
        let is_listed = |node: &u16| usize::from(*node) <= names.len();
        let mut free = (1..=most).filter(|&node| !taken(node));
        let own = listed.filter(|&node| node <= most && !taken(node));
        // The numbers of nodes that are still to come are left to them, as long as there are others.
        let node = own.or_else(|| free.clone().find(|node| !is_listed(node))).or_else(|| free.next());
        let node = node.ok_or_else(|| bound("nodes", most))?;
        let mut ranges: Vec<(u64, u64)> =
            self.state.nodes.values().map(|row| (row.base, 1 << row.size_log2)).collect();
        ranges.sort_unstable();
        let size = capacity.checked_next_power_of_two().filter(|&size| size < VA_END);
        let placed = size.and_then(|size| {
            let free = || first_fit(ranges.into_iter(), self.config.va_base, VA_END, size);
            let base = at.or_else(free)?;
            Some((base, u8::try_from(size.ilog2()).ok()?))
        });
        let (base, size_log2) = placed.ok_or_else(|| {
            let message = format!(
                "no free range of {capacity} bytes between {:#x} and {VA_END:#x}",
                self.config.va_base
            );
            error(
                ErrorCode::OutOfMemory,
                message,
                "join with less memory, or have nodes leave that are no longer used",
            )
        })?;
        Ok((node, base, size_log2))
    }

    /// Checks that a rejoining node, which keeps its range, still has room for its vmas (PROTOCOL 8.6).
    fn capacity_fits(&self, node: u16, row: &NodeRow, capacity: u64) -> Result<(), ApiError> {
        let on_node = self.state.vmas.iter().filter(|(_, vma)| vma.node == node);
        let used = on_node.map(|(base, vma)| base + vma.size - row.base).max().unwrap_or(0);
        let moved_here = self.state.pieces.values().filter(|piece| piece.node == node);
        let used = moved_here.map(|piece| piece.place + piece.size - row.base).max().unwrap_or(0).max(used);
        let size = 1u64 << row.size_log2;
        if capacity <= size && capacity >= used {
            return Ok(());
        }
        let message = format!(
            "node {node} ({}) joins again with {capacity} bytes; its range has {size}, its vmas need {used}",
            row.name
        );
        let remedy = format!("join with {used} to {size} bytes, or under another name");
        Err(error(ErrorCode::Conflict, message, remedy))
    }
}

/// Members with names, each of which belongs to one member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemberKind {
    Node,
    Index,
    Host,
}

impl MemberKind {
    /// Returns the kind of the member at a port; `None` for the switch.
    fn of(port: Port) -> Option<Self> {
        let node = port.as_node().map(|_| Self::Node);
        node.or_else(|| port.as_index().map(|_| Self::Index)).or_else(|| port.as_host().map(|_| Self::Host))
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Node => "memory node",
            Self::Index => "switch of the index",
            Self::Host => "host",
        }
    }
}

/// Refuses an invalid name.
pub(crate) fn name_allowed(of: &str, name: &str) -> Result<(), ApiError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=NAME_LEN_MAX).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    let shown: String = name.chars().take(NAME_LEN_MAX).collect();
    let message = format!("{shown:?} is no name for a {of}");
    Err(bad(message, format!("use 1 to {NAME_LEN_MAX} of the characters A-Z a-z 0-9 . _ -")))
}
