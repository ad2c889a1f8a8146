//! Migration: a part of a vma moves to another node while in use (PROTOCOL 8.38 to 8.42).
//!
//! ```text
//!   Draining   new node: Arrive, grants.  switch: Drain.  hosts give up what they cache of it
//!   Pushing    old node: Leave. No host uses it there from now on; all that is there goes to the new node
//!   Turning    new node: serves.  switch: sends there.     From here on it is not taken back
//!   Leaving    old node: forgets
//! ```
//!
//! A migration is one change with updates in steps. A step ends when all roles have answered and its condition holds: no host holds
//! pages, all bytes are pushed, the switch is updated ([`crate::coherence`] checks these). Before the third step the old state is in
//! force and can be restored.

use crate::Control;
use crate::allocate::PAGE;
use crate::api::{ApiError, ErrorCode, Locate, LocatedVma, Migrate, PermName};
use crate::errors::{LISTED, bad, bound, error, not_found};
use crate::pieces::{log2, translate};
use crate::record::{
    Change, ChangeKind, LoggedUpdate, Migration, MigrationStep, PieceRow, Role, RollbackReason,
};
use crate::requests::{Decided, Decision};
use crate::state::{Effect, LogError, State};
use crate::tables::{Step, protect, step, whole};
use alloc::format;
use alloc::vec::Vec;
use farmem_machine::Port;
use farmem_wire::message::Update;
use farmem_wire::{Gid, Qkey, Qpn, VirtAddr};

/// Maximum number of bytes that move at once: while they are pushed no host can use them, and retrying hosts
/// must not give up before the end.
pub const MIGRATE_LEN_MAX: u64 = 64 << 20;

impl Migration {
    /// Returns true if it cannot be rolled back any more.
    pub(crate) fn is_decided(&self) -> bool {
        self.step >= MigrationStep::Turning
    }
}

impl ChangeKind {
    /// Returns true if the change will complete in any case.
    pub(crate) fn is_decided(&self) -> bool {
        self.migration().is_some_and(Migration::is_decided)
    }
}

impl Change {
    /// Returns true if the change continues with a further step, by [`State::advance`].
    pub(crate) fn is_held(&self) -> bool {
        let last = |migration: &Migration| migration.step == MigrationStep::Leaving;
        let moves = self.what.migration().is_some_and(|migration| !last(migration));
        self.failed.is_none() && (moves || self.drains.is_some())
    }
}

impl Control {
    /// Decides a request to move a part of a vma to another node.
    pub(crate) fn migrate(&self, domain: Option<u32>, base: u64, len: u64, node: u16) -> Decided<Migrate> {
        let (vma, row) = match domain {
            Some(domain) => self.domain_known(domain).and_then(|()| self.owned(domain, base))?,
            None => self.vma_with(base)?,
        };
        let end = vma + row.size;
        if !len.is_power_of_two() || len < PAGE || !base.is_multiple_of(len) || base + len > end {
            let message = format!(
                "{len} bytes from {base:#x} are no aligned power of two of the vma {vma:#x}..{end:#x}"
            );
            let remedy = format!(
                "give a power of two of {PAGE} to {} bytes, and a multiple of it as the first",
                row.size
            );
            return Err(bad(message, remedy));
        }
        if len > MIGRATE_LEN_MAX {
            let remedy = format!("move it in parts of at most {MIGRATE_LEN_MAX} bytes");
            return Err(bad(format!("{len} bytes are too many to be moved at once"), remedy));
        }
        self.no_card(node, "migrated")?;
        self.no_card(row.node, "migrated")?;
        self.no_file(vma, "migrated")?;
        self.node_answers(node)?;
        let Some((from, from_place)) = self.state.whereabouts(base, len) else {
            return Err(self.moved_otherwise(base, len));
        };
        if from == node {
            return Ok(Decision::Reply(()));
        }
        self.node_answers(from)?;
        self.switch_joined()?;
        if !self.state.pieces.contains_key(&base) {
            self.room_for_pieces(1)?;
        }
        let Some(place) = self.state.place_for(node, base, len) else {
            let message = format!("node {node} has no {len} aligned bytes free in one piece");
            return Err(error(ErrorCode::OutOfMemory, message, "move less, or free vmas on that node"));
        };
        let (number, size, step) = (self.state.next_change, len, MigrationStep::Draining);
        let migration = Migration { number, vma, base, size, from, from_place, to: node, place, step };
        Ok(Decision::Begin(ChangeKind::Migrate(migration)))
    }

    /// Refuses `more` pieces that the table of pieces has no room for.
    pub(crate) fn room_for_pieces(&self, more: usize) -> Result<(), ApiError> {
        let most = self.config.bounds.pieces_max;
        let moving = self.in_flight(|what| what.migration().is_some());
        let coming = moving + self.state.coming_pieces().count();
        if more > 0 && self.state.pieces.len() + coming + more > most {
            return Err(bound("parts of vmas that were moved", most));
        }
        Ok(())
    }

    /// Returns the error for memory that was moved with other bounds.
    fn moved_otherwise(&self, base: u64, len: u64) -> ApiError {
        let pieces = self.state.pieces.range(..base + len);
        let met = pieces.rev().find(|(at, piece)| *at + piece.size > base);
        let (at, size) = met.map_or((base, len), |(&at, piece)| (at, piece.size));
        let message =
            format!("a part of {base:#x}..{:#x} was moved with {size} bytes from {at:#x}", base + len);
        error(ErrorCode::Conflict, message, format!("move {size} bytes from {at:#x} as a whole"))
    }

    /// Returns the location of a vma.
    pub(crate) fn locate(&self, addr: u64) -> Decided<Locate> {
        let (base, row) = self.vma_with(addr)?;
        let vma = row.info(base);
        let moved = self.state.moved(base, base + (row.size - 1));
        let lost = self.state.lost_in(base, row.size);
        Ok(Decision::Reply(LocatedVma { vma, moved, lost }))
    }

    fn vma_with(&self, addr: u64) -> Result<(u64, &crate::record::VmaRow), ApiError> {
        let found = self.state.vma_at(addr).filter(|(_, vma)| vma.pending.is_none());
        let message = || format!("no vma holds {addr:#x}");
        found.ok_or_else(|| not_found(message(), format!("it may have been freed; {LISTED}")))
    }
}

impl State {
    /// Returns the updates for `role` about the present step of a migration.
    pub(crate) fn tell_migration(&self, migration: &Migration, role: Role) -> Vec<Step> {
        let Migration { base, size, from, from_place, to, place, .. } = *migration;
        match (migration.step, role) {
            (MigrationStep::Draining, Role::Node(node)) if node == to => self.tell_arrival(migration),
            (MigrationStep::Draining, Role::Switch) => {
                let drain = Update::Drain { base: VirtAddr(base), size_log2: log2(size) };
                let now = PieceRow { size, node: from, place: from_place };
                if self.pieces.contains_key(&base) {
                    return Vec::from([step(drain, [translate(base, &now)])]);
                }
                let there = step(translate(base, &now), [self.untranslate(base, size)]);
                Vec::from([there, step(drain, [])])
            }
            (MigrationStep::Pushing, Role::Node(node)) if node == from => {
                let Some(row) = self.nodes.get(&to) else { return Vec::new() };
                let leave = Update::Leave {
                    base: VirtAddr(base),
                    size_log2: log2(size),
                    number: migration.number,
                    port: Port::node(to).0,
                    gid: Gid(row.gid),
                    qpn: Qpn::new(row.home.qpn),
                    qkey: Qkey(row.home.qkey),
                };
                Vec::from([step(leave, [self.here(from, base, size, from_place)])])
            }
            (MigrationStep::Turning, Role::Node(node)) if node == to => {
                Vec::from([(self.here(to, base, size, place), None)])
            }
            (MigrationStep::Turning, Role::Switch) => Vec::from([(self.route_after(migration), None)]),
            (MigrationStep::Leaving, Role::Node(node)) if node == from => self.tell_departure(migration),
            _ => Vec::new(),
        }
    }

    /// Returns the updates that tell the new node the permissions, before any bytes come.
    fn tell_arrival(&self, migration: &Migration) -> Vec<Step> {
        let Migration { base, size, from, to, place, .. } = *migration;
        let (Some(old), Some(new)) = (self.nodes.get(&from), self.nodes.get(&to)) else { return Vec::new() };
        let arrive = Update::Arrive {
            base: VirtAddr(base),
            size_log2: log2(size),
            offset: place - new.base,
            number: migration.number,
            port: Port::node(from).0,
            gid: Gid(old.gid),
            qpn: Qpn::new(old.home.qpn),
            qkey: Qkey(old.home.qkey),
        };
        let mut steps = Vec::from([step(arrive, [self.elsewhere(to, base, size)])]);
        if let Some(vma) = self.vmas.get(&migration.vma)
            && !self.nodes_of_vma(migration.vma).contains(&to)
        {
            for update in self.protections(migration.vma, vma) {
                let back = match update {
                    Update::Protect { domain, base, len, .. } => {
                        Some(protect(domain.0, whole(base.0, len, PermName::None), vma.size))
                    }
                    _ => None,
                };
                steps.push(step(update, back));
            }
        }
        steps
    }

    /// Returns the updates by which the old node forgets the piece and, unless it has more of the vma, the
    /// permissions.
    fn tell_departure(&self, migration: &Migration) -> Vec<Step> {
        let Migration { vma, base, size, from, .. } = *migration;
        let mut steps = Vec::from([(self.elsewhere(from, base, size), None)]);
        if let Some(row) = self.vmas.get(&vma)
            && !self.nodes_of_vma(vma).contains(&from)
        {
            let domains = row.grants.iter().map(|(domain, _)| *domain).chain([row.domain]);
            let none = domains.map(|domain| protect(domain, whole(vma, row.size, PermName::None), row.size));
            steps.extend(none.map(|update| (update, None)));
        }
        steps
    }

    /// Advances a change to its next step, because the condition of the previous one holds. A change that
    /// revoked rights has no next step and completes.
    pub(crate) fn advance(&mut self, id: u64, effects: &mut Vec<Effect>) -> Result<(), LogError> {
        let error = LogError("no change goes on");
        let change = self.changes.get_mut(&id).filter(|change| change.is_held() && change.waits.is_empty());
        let change = change.ok_or(error)?;
        if change.drains.take().is_some() {
            return Ok(());
        }
        let ChangeKind::Migrate(migration) = &mut change.what else { return Err(error) };
        migration.step = match migration.step {
            MigrationStep::Draining => MigrationStep::Pushing,
            MigrationStep::Pushing => MigrationStep::Turning,
            MigrationStep::Turning | MigrationStep::Leaving => MigrationStep::Leaving,
        };
        let migration = *migration;
        if migration.step == MigrationStep::Turning {
            change.undo.clear();
            let Migration { base, size, to, place, .. } = migration;
            self.pieces.remove(&base);
            if place != base {
                self.pieces.insert(base, PieceRow { size, node: to, place });
            }
        }
        self.tell_all(id, &ChangeKind::Migrate(migration), effects);
        Ok(())
    }

    /// Gives up a change that made no progress for too long.
    pub(crate) fn give_up(
        &mut self,
        id: u64,
        why: RollbackReason,
        effects: &mut Vec<Effect>,
    ) -> Result<(), LogError> {
        let held = self.changes.get(&id).is_some_and(|change| change.is_held() && !change.what.is_decided());
        if !held {
            return Err(LogError("what is given up is a migration that is not decided"));
        }
        self.fail(id, why, effects);
        Ok(())
    }

    /// Returns true if the piece of a migration exists, and is where the migration says.
    pub(crate) fn migration_fits(&self, migration: &Migration) -> bool {
        let Migration { vma, base, size, from, from_place, to, place, .. } = *migration;
        let shaped = size.is_power_of_two() && size >= PAGE && base.is_multiple_of(size);
        let inside = |row: &crate::record::VmaRow| {
            row.pending.is_none()
                && base >= vma
                && base.checked_add(size).is_some_and(|end| end <= vma + row.size)
        };
        let has = |node: u16, place: u64| {
            let row = self.nodes.get(&node);
            row.is_some_and(|row| place >= row.base && place + size <= row.base + row.capacity)
        };
        let there = if migration.is_decided() { (to, place) } else { (from, from_place) };
        shaped
            && from != to
            && self.vmas.get(&vma).is_some_and(inside)
            && has(to, place)
            && (migration.is_decided() || has(from, from_place))
            && self.whereabouts(base, size) == Some(there)
    }

    /// Returns true if the switch has confirmed that it routes to the new node, and so does not need the old
    /// one.
    pub(crate) fn has_turned(&self, migration: &Migration) -> bool {
        let told = LoggedUpdate(self.route_after(migration));
        let queue = self.queues.get(&Role::Switch);
        queue.is_some_and(|queue| !queue.entries().any(|entry| entry.told == told))
    }

    /// Returns the switch's update when the addresses are at the new node.
    fn route_after(&self, migration: &Migration) -> Update {
        let Migration { base, size, to, place, .. } = *migration;
        if place == base {
            self.untranslate(base, size)
        } else {
            translate(base, &PieceRow { size, node: to, place })
        }
    }
}
