//! The conditions of migrations that no update reports: that no host holds pages any more, and that all bytes
//! are pushed (PROTOCOL 8.39 to 8.41).
//!
//! None of this is in the log. After a restart an undecided migration is rolled back, and a decided one needs
//! nothing of this.

use crate::coherence::Coherence;
use crate::coherence::waits::Moving;
use crate::log::Stalled;
use crate::messages::Actions;
use crate::note::Note;
use crate::rack::Rack;
use crate::record::{Line, Migration, MigrationStep, Role, RollbackReason};
use alloc::vec::Vec;
use farmem_machine::Duration;
use farmem_wire::RequestId;
use farmem_wire::message::{DirectoryBody, Listing, UNKNOWN_MOVE};

/// Number of leases to wait for hosts that hold pages: one ends, and its pages are reset after that.
const LEASES_MAX: u64 = 4;

impl Coherence {
    /// Advances every migration whose roles have answered.
    pub(super) fn update_moves(&mut self, rack: &mut Rack, out: &mut Actions) {
        let held: Vec<(u64, Migration)> = rack
            .state
            .changes
            .iter()
            .filter_map(|(&id, change)| {
                let ready = change.is_held() && change.waits.is_empty();
                Some((id, *change.what.migration()?)).filter(|_| ready)
            })
            .collect();
        self.moves.retain(|id, moving| {
            held.iter().any(|(other, migration)| other == id && migration.step == moving.step)
        });
        for (id, migration) in held {
            let (now, patience) = (rack.now, rack.config.lease.times(LEASES_MAX));
            let fresh = Moving {
                step: migration.step,
                due: now,
                end: now + patience,
                look: None,
                asked: 0,
                left: UNKNOWN_MOVE,
                over: false,
            };
            let moving = *self.moves.entry(id).or_insert(fresh);
            if moving.over || migration.step == MigrationStep::Turning && rack.state.has_turned(&migration) {
                if self.advance(rack, id, out).is_ok() {
                    // The recursive call has handled the others, which may have advanced by now.
                    return;
                }
            } else if moving.due <= now {
                self.ask_of_move(rack, id, &migration, moving, out);
            }
        }
    }

    /// Advances a migration. If the log accepts no line, nothing changes, and it advances when the log
    /// recovers.
    pub(super) fn advance(&mut self, rack: &mut Rack, id: u64, out: &mut Actions) -> Result<(), Stalled> {
        rack.keep(Line::Advanced { change: id }, out)?;
        self.moves.remove(&id);
        self.draining.remove(&id);
        out.note(Note::Advanced);
        // The next step may have nothing to wait for.
        self.update_moves(rack, out);
        Ok(())
    }

    fn give_up(&mut self, rack: &mut Rack, id: u64, why: RollbackReason, out: &mut Actions) {
        if rack.keep(Line::GivenUp { change: id, why }, out).is_ok() {
            self.moves.remove(&id);
            out.note(Note::GivenUp);
        }
    }

    /// Sends (again) the question of the current step.
    fn ask_of_move(
        &mut self,
        rack: &mut Rack,
        id: u64,
        migration: &Migration,
        moving: Moving,
        out: &mut Actions,
    ) {
        let due = rack.now + rack.config.timeout;
        let mut next = Moving { due, ..moving };
        match migration.step {
            MigrationStep::Draining if rack.now >= moving.end => {
                return self.give_up(rack, id, RollbackReason::Held, out);
            }
            MigrationStep::Draining => {
                // A page that is pushed from an unswept node to a swept one would count as the latest,
                // although its latest bytes died with a host.
                if rack.state.directory && self.unswept(rack).all(|node| node != migration.from) {
                    next.look = Some(self.look(rack, migration.base, out));
                }
            }
            MigrationStep::Pushing if moving.asked > rack.config.retries_max => {
                // The remaining count is known once the old node has answered: then the new one is silent.
                let node = if moving.left == UNKNOWN_MOVE { migration.from } else { migration.to };
                return self.give_up(rack, id, RollbackReason::Silent { role: Role::Node(node) }, out);
            }
            MigrationStep::Pushing => {
                next.asked += 1;
                self.tell(rack, Role::Node(migration.from), DirectoryBody::Moving(migration.number), out);
            }
            // The switch is silent, or gone: the step waits for it.
            MigrationStep::Turning | MigrationStep::Leaving => next.due = rack.now + Duration::from_secs(1),
        }
        self.moves.insert(id, next);
    }

    /// Handles a part of the directory. Returns true if it was requested here. When no drained region is
    /// being reset, no host holds its pages.
    pub(super) fn drained(
        &mut self,
        rack: &mut Rack,
        token: RequestId,
        listing: &Listing<'_>,
        out: &mut Actions,
    ) -> bool {
        let asked = |(_, moving): &(&u64, &Moving)| moving.look.is_some_and(|look| look.token == token);
        let Some((&id, &moving)) = self.moves.iter().find(asked) else { return false };
        let migration = rack.state.changes.get(&id).and_then(|change| change.what.migration().copied());
        if let (Some(look), Some(Migration { base, size, .. })) = (moving.look, migration) {
            let (look, over) = self.look_on(rack, look, listing, base..=base + (size - 1), out);
            self.moves.insert(id, Moving { look, over, ..moving });
        }
        true
    }

    /// Checks the draining migrations again after the end of a reset, which may have been the last one.
    pub(super) fn look_at_drained(&mut self, rack: &mut Rack) {
        let now = rack.now;
        let draining = |moving: &&mut Moving| moving.step == MigrationStep::Draining && !moving.over;
        self.moves.values_mut().filter(draining).for_each(|moving| moving.due = now);
    }

    /// Handles the old node's report of the remaining bytes.
    pub(super) fn pushed(&mut self, rack: &mut Rack, node: u16, number: u64, left: u32) {
        let its = |migration: &Migration| (migration.from, migration.number) == (node, number);
        let change = rack.state.changes.iter().find(|(_, change)| change.what.migration().is_some_and(its));
        let Some(id) = change.map(|(&id, _)| id) else { return };
        let Some(moving) = self.moves.get_mut(&id).filter(|m| m.step == MigrationStep::Pushing) else {
            return;
        };
        if left != moving.left && left != UNKNOWN_MOVE {
            (moving.left, moving.asked) = (left, 0);
        }
        moving.over = left == 0;
    }
}
