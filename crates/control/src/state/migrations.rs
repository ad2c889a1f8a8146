//! Migrations: their steps, and the updates of each (PROTOCOL 8.38 to 8.42).

use crate::addresses::PAGE;
use crate::api::PermName;
use crate::record::{Change, ChangeKind, Migration, MigrationStep, PieceRow, Role, RollbackReason};
use crate::state::pieces::{log2, translate};
use crate::state::tables::{Step, protect, step, whole};
use crate::state::{Effect, LogError, State};
use crate::updates::LoggedUpdate;
use alloc::vec::Vec;
use farmem_machine::Port;
use farmem_wire::message::Update;
use farmem_wire::{Gid, Qkey, Qpn, VirtAddr};

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
