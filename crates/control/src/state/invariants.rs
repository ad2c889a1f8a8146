//! The invariants of the state: asserted while it lives, and checked before a log is accepted.

use crate::addresses::{PAGE, VA_END};
use crate::bounds::{INDEX_MAX, NAME_LEN_MAX, NODE_END};
use crate::record::{Cache, ChangeKind, HostRow, MigrationStep, PieceRow, Remap, Role, VmaRow};
use crate::state::claims::claim;
use crate::state::{LogError, State, grants};
use crate::syscalls::Edit;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use farmem_machine::Port;
use farmem_wire::message::CACHING_HOSTS_MAX;

/// The first violated statement, for debugging.
type Verdict = Result<(), &'static str>;

fn must(holds: bool, statement: &'static str) -> Verdict {
    if holds { Ok(()) } else { Err(statement) }
}

impl State {
    /// Checks every invariant: first the numbers of nodes and switches, which the others turn into ports.
    pub(crate) fn sound(&self) -> Result<(), LogError> {
        self.nodes_sound()
            .and_then(|()| self.index_fault().map_or(Ok(()), Err))
            .and_then(|()| self.vmas_sound())
            .and_then(|()| self.pieces_fault().map_or(Ok(()), Err))
            .and_then(|()| self.lost_fault().map_or(Ok(()), Err))
            .and_then(|()| self.spaces_sound())
            .and_then(|()| self.names_sound())
            .and_then(|()| self.objects_fault().map_or(Ok(()), Err))
            .and_then(|()| self.files_fault().map_or(Ok(()), Err))
            .map_err(LogError)?;
        self.endpoints_sound().and_then(|()| self.changes_sound()).map_err(LogError)
    }

    /// Checks that a change in a log refers to existing things and respects their limits.
    pub(crate) fn fits(&self, what: &ChangeKind) -> Result<(), LogError> {
        let holds = match what {
            ChangeKind::JoinSwitch { .. } | ChangeKind::OpenDirectory { .. } => true,
            ChangeKind::Live { host, .. } | ChangeKind::Fence { host, .. } => {
                *host < CACHING_HOSTS_MAX && self.hosts.contains_key(host)
            }
            ChangeKind::AcceptLost { vma, base, len } => self.vmas.get(vma).is_some_and(|row| {
                *len > 0 && base >= vma && base.checked_add(*len).is_some_and(|end| end <= vma + row.size)
            }),
            ChangeKind::JoinHost { host, replaces, .. } => {
                let there =
                    |other: &u16| other != host && self.hosts.get(other).is_some_and(|row| row.present);
                replaces.as_ref().is_none_or(there)
                    && self.hosts.get(host).is_none_or(|row| {
                        row.generation < u16::MAX || !row.present && row.cache == Cache::Empty
                    })
            }
            ChangeKind::JoinNode { node, again, .. } => {
                *node < NODE_END && self.nodes.contains_key(node) == *again
            }
            ChangeKind::LeaveNode { node, base, size_log2 } => {
                self.nodes.get(node).is_some_and(|row| (row.base, row.size_log2) == (*base, *size_log2))
            }
            ChangeKind::JoinIndex { index, row } => {
                *index > 0 && *index <= INDEX_MAX && row.name.len() <= NAME_LEN_MAX
            }
            ChangeKind::LeaveIndex { index } => self.index.contains_key(index),
            ChangeKind::LeaveHost { host } => self.hosts.contains_key(host),
            ChangeKind::OpenSession(row) => {
                self.hosts.contains_key(&row.host) && self.domains.contains_key(&row.domain)
            }
            ChangeKind::Connect(row) | ChangeKind::Disconnect(row) => {
                self.hosts.contains_key(&row.host) && self.nodes.contains_key(&row.node)
            }
            ChangeKind::Allocate { base, size, node, pieces, .. } => {
                let inside = |(at, piece): &(u64, PieceRow)| {
                    *at >= *base
                        && at.checked_add(piece.size).is_some_and(|end| end <= base.saturating_add(*size))
                        && self.vma_fits(piece.place, piece.size, piece.node)
                };
                self.vma_fits(*base, *size, *node) && pieces.iter().all(inside)
            }
            ChangeKind::Free { base } => self.vmas.contains_key(base),
            ChangeKind::TurnFile { object, base, .. } => self.can_turn(*object, *base),
            ChangeKind::Migrate(migration) => {
                migration.step == MigrationStep::Draining && self.migration_fits(migration)
            }
            ChangeKind::Remap(remap) => self.remap_fits(remap),
            ChangeKind::Grant { vma, base, len, .. } => self.vmas.get(vma).is_some_and(|row| {
                *len > 0 && base >= vma && base.checked_add(*len).is_some_and(|end| end <= vma + row.size)
            }),
        };
        if holds { Ok(()) } else { Err(LogError("a change to something that is not there")) }
    }

    /// Returns true if the things that a begun change refers to still exist.
    fn can_go_on(&self, what: &ChangeKind) -> bool {
        let domain = |domain: &u32| self.domains.contains_key(domain);
        let vma = |base: &u64| self.vmas.get(base).filter(|row| row.pending.is_none());
        match what {
            ChangeKind::OpenSession(row) => self.has_joined(row.host) && domain(&row.domain),
            ChangeKind::Connect(row) => {
                self.has_joined(row.host) && self.node_joined(row.node) && domain(&row.domain)
            }
            ChangeKind::Disconnect(row) => row.node < NODE_END,
            ChangeKind::Free { base } => vma(base).is_some(),
            ChangeKind::TurnFile { object, base, .. } => self.can_turn(*object, *base),
            ChangeKind::Grant { vma: first, base, len, to, .. } => vma(first).is_some_and(|row| {
                let end = base.checked_add(*len).filter(|_| *len > 0 && base >= first);
                end.is_some_and(|end| end <= first + row.size) && domain(to) && *to != row.domain
            }),
            ChangeKind::Allocate { base, node, pieces, .. } => {
                self.vmas.get(base).is_some_and(|row| row.node == *node)
                    && pieces.iter().all(|(_, piece)| self.nodes.contains_key(&piece.node))
            }
            ChangeKind::Remap(remap) => self.remap_goes_on(remap),
            ChangeKind::JoinSwitch { .. } => self.switch.is_some(),
            ChangeKind::JoinNode { node, .. } => self.nodes.contains_key(node),
            ChangeKind::JoinIndex { index, .. } => self.index.contains_key(index),
            ChangeKind::JoinHost { host, .. } => self.hosts.get(host).is_some_and(|row| row.present),
            ChangeKind::AcceptLost { vma: first, .. } => vma(first).is_some(),
            ChangeKind::Migrate(migration) => self.migration_fits(migration),
            ChangeKind::Live { host, .. } => self.has_joined(*host),
            ChangeKind::LeaveNode { .. }
            | ChangeKind::LeaveIndex { .. }
            | ChangeKind::LeaveHost { .. }
            | ChangeKind::OpenDirectory { .. }
            | ChangeKind::Fence { .. } => true,
        }
    }

    fn can_turn(&self, object: u64, base: u64) -> bool {
        self.files.get(&object).is_some_and(|row| row.base == base)
    }

    fn remap_fits(&self, remap: &Remap) -> bool {
        let known = self.domains.contains_key(&remap.domain);
        let starts = remap.starts.is_none_or(|process| process >= self.next_process);
        let ends = remap.ends.is_none_or(|process| self.processes.get(&process) == Some(&remap.domain));
        let space = self.spaces.get(&remap.domain).cloned();
        let begun = space.is_some() || remap.starts.is_some();
        let mut space = space.unwrap_or_default();
        let placed =
            |base: u64, size: u64| self.node_at(base).is_some_and(|node| self.vma_fits(base, size, node));
        let edits = remap.edits.iter().all(|edit| {
            let fits = match *edit {
                Edit::Reserve { base, size } => placed(base, size),
                Edit::Release { base } => space.vma(base).is_some(),
                _ => true,
            };
            if fits {
                space.apply(edit);
            }
            fits && space.fault().is_none()
        });
        known && starts && ends && begun && edits
    }

    fn remap_goes_on(&self, remap: &Remap) -> bool {
        let space = self.spaces.get(&remap.domain);
        remap.edits.iter().all(|edit| match edit {
            Edit::Reserve { base, .. } => self.vmas.contains_key(base),
            Edit::Release { base } => space.is_some_and(|space| space.vma(*base).is_some()),
            _ => true,
        })
    }

    fn spaces_sound(&self) -> Verdict {
        for (domain, space) in &self.spaces {
            space.fault().map_or(Ok(()), Err)?;
            must(self.processes.values().any(|of| of == domain), "an address space has a process")?;
            for (base, size) in space.vmas() {
                let its = |vma: &VmaRow| (vma.size, vma.domain, vma.pending) == (size, *domain, None);
                must(self.vmas.get(&base).is_some_and(its), "the vmas of a space are its domain's")?;
            }
        }
        let known = |(process, domain): (&u32, &u32)| {
            *process < self.next_process
                && self.spaces.contains_key(domain)
                && self.domains.contains_key(domain)
        };
        must(self.processes.iter().all(known), "a process has an address space")
    }

    fn has_joined(&self, host: u16) -> bool {
        self.hosts.get(&host).is_some_and(|row| row.present && row.joining.is_none())
    }

    fn node_joined(&self, node: u16) -> bool {
        self.nodes.get(&node).is_some_and(|row| row.joining.is_none() || self.joins_again(row))
    }

    fn vma_fits(&self, base: u64, size: u64, node: u16) -> bool {
        let Some(row) = self.nodes.get(&node) else { return false };
        let Some(end) = base.checked_add(size) else { return false };
        let shaped = size.is_power_of_two() && size >= PAGE && base.is_multiple_of(size);
        shaped && base >= row.base && end <= row.base.saturating_add(row.capacity)
    }

    fn nodes_sound(&self) -> Verdict {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (&node, row) in &self.nodes {
            must(node > 0 && node < NODE_END, "nodes are numbered from 1 to the last port")?;
            must(row.size_log2 < 48, "a range is smaller than the address space")?;
            let size = 1 << row.size_log2;
            must(
                row.base > 0 && row.base.is_multiple_of(size),
                "a range is aligned to its size and not null",
            )?;
            must(row.base < VA_END && row.base + size <= VA_END, "a range is inside the address space")?;
            must(row.capacity > 0 && row.capacity <= size, "a range has room for the node's memory")?;
            must(row.capacity.is_multiple_of(PAGE), "memory is whole pages")?;
            let known = row.card.as_ref().is_none_or(|card| self.domains.contains_key(&card.domain));
            must(known, "a card's domain exists")?;
            ranges.push((row.base, row.base + size));
        }
        ranges.sort_unstable();
        must(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "ranges of nodes do not overlap")
    }

    fn vmas_sound(&self) -> Verdict {
        let mut end = 0;
        for (&base, vma) in &self.vmas {
            must(self.vma_fits(base, vma.size, vma.node), "a vma is aligned and inside its node")?;
            must(self.node_joined(vma.node), "a vma's node has joined")?;
            must(base >= end, "vmas do not overlap")?;
            must(self.domains.contains_key(&vma.domain), "a vma's owner is a domain")?;
            let card = self.card_of(vma.node);
            must(
                card.is_none_or(|card| card.domain == vma.domain && vma.grants.is_empty()),
                "a card has one domain's memory",
            )?;
            end = base + vma.size;
            self.grants_sound(base, vma)?;
            if let Some(id) = vma.pending {
                let change = self.changes.get(&id).map(|change| &change.what);
                let its = match change {
                    Some(ChangeKind::Allocate { base: its, .. }) => *its == base,
                    Some(ChangeKind::Remap(remap)) => remap.reserved().any(|(its, _)| its == base),
                    _ => false,
                };
                must(its, "a pending vma has its change")?;
            }
        }
        Ok(())
    }

    fn grants_sound(&self, base: u64, vma: &VmaRow) -> Verdict {
        must(
            vma.grants.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "a domain has one list of grants in a vma",
        )?;
        for (domain, spans) in &vma.grants {
            must(*domain != vma.domain, "an owner needs no grant")?;
            must(self.domains.contains_key(domain), "a grantee is a domain")?;
            must(grants::sound(spans, base, vma.size), "grants are disjoint and inside the vma")?;
        }
        Ok(())
    }

    fn names_sound(&self) -> Verdict {
        let mut names = BTreeSet::new();
        let mut gids = BTreeSet::new();
        for member in self.members() {
            must(member.name.is_none_or(|name| names.insert(name)), "names are unique in the rack")?;
            must(gids.insert(member.gid), "addresses are unique in the rack")?;
        }
        must(self.hosts.keys().all(|&host| host > 0), "hosts are numbered from 1")?;
        let mut acting = self.hosts.iter().filter(|(_, row)| !row.acts_for.is_empty());
        let right = |(host, row): (&u16, &HostRow)| {
            row.present
                && row.acts_for.is_sorted_by(|a, b| a < b)
                && row.acts_for.iter().all(|of| of.host != *host && self.hosts.contains_key(&of.host))
        };
        must(acting.all(right), "a host that is there acts for others, once for each life")?;
        let domains: BTreeSet<_> = self.domains.values().collect();
        must(domains.len() == self.domains.len(), "names of domains are unique")?;
        must(self.domains.keys().all(|&domain| domain > 0), "domains are numbered from 1")
    }

    fn endpoints_sound(&self) -> Verdict {
        // Queue pairs belong to a port: numbers assigned by cards are unique only there (PROTOCOL 14.1).
        let mut qpns = BTreeSet::new();
        let own = self.home.iter().map(|home| (Port::CONTROL, home.qpn));
        let mut all = own.chain(self.members().map(|member| (member.port, member.qpn)));
        must(all.all(|qpn| qpns.insert(qpn)), "each endpoint has its own queue pair")?;
        let mut pairs = BTreeSet::new();
        for (qpn, row) in &self.sessions {
            let its = *qpn == row.key.qpn && qpns.insert((Port::SWITCH, *qpn));
            must(its, "each session has its own queue pair")?;
            must(
                self.has_joined(row.host) && self.domains.contains_key(&row.domain),
                "a session's host and domain exist",
            )?;
            must(pairs.insert((row.host, row.domain)), "a host has one session in a domain")?;
        }
        for (key, row) in &self.connections {
            // Checked first: a number that no node has gives no port.
            must(self.has_joined(row.host) && self.node_joined(row.node), "a connection's ends exist")?;
            let its = *key == row.key() && qpns.insert((Port::host(row.host), row.qpn));
            must(its, "each connection has its own queue pair at the host")?;
            let its = qpns.insert((Port::node(row.node), row.peer_qpn));
            must(its, "each connection has its own queue pair at the node")?;
            for virtual_qpn in row.through.iter().flat_map(|through| [through.to_node, through.to_host]) {
                must(
                    qpns.insert((Port::SWITCH, virtual_qpn)),
                    "each connection has its own queue pairs at the switch",
                )?;
            }
            must(self.domains.contains_key(&row.domain), "a connection's domain exists")?;
        }
        Ok(())
    }

    fn changes_sound(&self) -> Verdict {
        for (&role, queue) in &self.queues {
            queue.fault().map_or(Ok(()), Err)?;
            must(self.home_of(role).is_some(), "a queue's role has joined")?;
            for (id, change) in &self.changes {
                let waited =
                    queue.entries().filter(|entry| entry.waited && entry.change == Some(*id)).count();
                let said = change.waits.iter().find(|(on, _)| *on == role).map_or(0, |(_, count)| *count);
                must(usize::try_from(said) == Ok(waited), "a change waits for exactly its updates")?;
            }
        }
        let mut claims = BTreeSet::new();
        let mut made =
            self.changes.values().filter(|change| change.failed.is_none()).filter_map(|c| claim(&c.what));
        must(made.all(|claim| claims.insert(claim)), "changes in flight are about different things")?;
        for (&id, change) in &self.changes {
            let goes_on = change.failed.is_some() || self.can_go_on(&change.what);
            must(goes_on, "what a change is about is there while it is made")?;
            must(id < self.next_change, "changes are numbered in order")?;
            must(!change.waits.is_empty() || change.is_held(), "a change waits for something")?;
            must(
                change.waits.iter().all(|(on, _)| self.queues.contains_key(on)),
                "it waits for roles that are there",
            )?;
        }
        let joins =
            self.nodes.values().map(|row| row.joining).chain(self.hosts.values().map(|row| row.joining));
        let joins = joins.chain(self.index.values().map(|row| row.joining));
        let joins = joins.chain(self.switch.iter().map(|row| row.joining)).flatten();
        must(joins.into_iter().all(|id| self.changes.contains_key(&id)), "a joining member has its change")?;
        must(self.queues.keys().all(|&role| role != Role::Node(0)), "no role is node 0")
    }
}
