//! What a migration waits for and no update says: that no host holds pages any more, and that all is pushed (PROTOCOL 8.39 to 8.41).
//!
//! None of this is in the log. After a restart a migration that was not decided is taken back, and one that was needs nothing of this.

use super::draining::Look;
use crate::log::Stalled;
use crate::record::{Line, Migration, MigrationStep, Role, Why};
use crate::{Actions, Control, Note};
use alloc::vec::Vec;
use farmem_machine::{Duration, Instant};
use farmem_wire::RequestId;
use farmem_wire::message::{DirectoryBody, Listing, UNKNOWN_MOVE};

/// Leases that may end before hosts are given up that hold pages: one ends, and what it held is reset after that.
const LEASES_MAX: u64 = 4;

/// The present step of a migration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moving {
    step: MigrationStep,
    due: Instant,
    /// When it is given up.
    end: Instant,
    /// While it drains: whether its regions are being reset.
    look: Option<Look>,
    /// Pushing: times the old node was asked without anything new, and what was left.
    asked: u32,
    left: u32,
    /// What is waited for is so.
    over: bool,
}

impl Moving {
    pub(super) const fn due(&self) -> Instant {
        self.due
    }
}

impl Control {
    /// Sees to every migration whose roles have answered.
    pub(super) fn see_to_moves(&mut self, out: &mut Actions) {
        let held: Vec<(u64, Migration)> = self
            .state
            .changes
            .iter()
            .filter_map(|(&id, change)| {
                let ready = change.is_held() && change.waits.is_empty();
                Some((id, *change.what.migration()?)).filter(|_| ready)
            })
            .collect();
        self.coherence.moves.retain(|id, moving| {
            held.iter().any(|(other, migration)| other == id && migration.step == moving.step)
        });
        for (id, migration) in held {
            let (now, patience) = (self.now, self.config.lease.times(LEASES_MAX));
            let fresh = Moving {
                step: migration.step,
                due: now,
                end: now + patience,
                look: None,
                asked: 0,
                left: UNKNOWN_MOVE,
                over: false,
            };
            let moving = *self.coherence.moves.entry(id).or_insert(fresh);
            if moving.over || migration.step == MigrationStep::Turning && self.state.has_turned(&migration) {
                if self.advance(id, out).is_ok() {
                    // It has seen to the others, which may be further by now.
                    return;
                }
            } else if moving.due <= now {
                self.ask_of_move(id, &migration, moving, out);
            }
        }
    }

    /// What is not kept is as it was: it goes on when the log takes lines again.
    pub(super) fn advance(&mut self, id: u64, out: &mut Actions) -> Result<(), Stalled> {
        self.keep(Line::Advanced { change: id }, out)?;
        self.coherence.moves.remove(&id);
        self.coherence.draining.remove(&id);
        out.note(Note::Advanced);
        // The next step may have nothing to wait for.
        self.see_to_moves(out);
        Ok(())
    }

    fn give_up(&mut self, id: u64, why: Why, out: &mut Actions) {
        if self.keep(Line::GivenUp { change: id, why }, out).is_ok() {
            self.coherence.moves.remove(&id);
            out.note(Note::GivenUp);
        }
    }

    /// Asks (again) for what the step waits for.
    fn ask_of_move(&mut self, id: u64, migration: &Migration, moving: Moving, out: &mut Actions) {
        let due = self.now + self.config.timeout;
        let mut next = Moving { due, ..moving };
        match migration.step {
            MigrationStep::Draining if self.now >= moving.end => return self.give_up(id, Why::Held, out),
            MigrationStep::Draining => {
                // A page that is pushed before its node is swept, to one that was, would be taken for the latest, though that died with its host.
                if self.state.directory && self.unswept().all(|node| node != migration.from) {
                    next.look = Some(self.look(migration.base, out));
                }
            }
            MigrationStep::Pushing if moving.asked > self.config.retries_max => {
                // What is left is known when the old node answers: then it is the new one that does not.
                let node = if moving.left == UNKNOWN_MOVE { migration.from } else { migration.to };
                return self.give_up(id, Why::Silent { role: Role::Node(node) }, out);
            }
            MigrationStep::Pushing => {
                next.asked += 1;
                self.tell(Role::Node(migration.from), DirectoryBody::Moving(migration.number), out);
            }
            // The switch is silent, or gone: it is waited for.
            MigrationStep::Turning | MigrationStep::Leaving => next.due = self.now + Duration::from_secs(1),
        }
        self.coherence.moves.insert(id, next);
    }

    /// A part of the directory, if it was asked for here: true then. When no region of what is drained is being reset, no host has its pages.
    pub(super) fn drained(&mut self, token: RequestId, listing: &Listing<'_>, out: &mut Actions) -> bool {
        let asked = |(_, moving): &(&u64, &Moving)| moving.look.is_some_and(|look| look.token == token);
        let Some((&id, &moving)) = self.coherence.moves.iter().find(asked) else { return false };
        let migration = self.state.changes.get(&id).and_then(|change| change.what.migration().copied());
        if let (Some(look), Some(Migration { base, size, .. })) = (moving.look, migration) {
            let (look, over) = self.look_on(look, listing, (base, base + (size - 1)), out);
            self.coherence.moves.insert(id, Moving { look, over, ..moving });
        }
        true
    }

    /// A reset ended: perhaps the last one that a migration waits for.
    pub(super) fn look_at_drained(&mut self) {
        let now = self.now;
        let draining = |moving: &&mut Moving| moving.step == MigrationStep::Draining && !moving.over;
        self.coherence.moves.values_mut().filter(draining).for_each(|moving| moving.due = now);
    }

    /// The old node says how much is left to push.
    pub(super) fn pushed(&mut self, node: u16, number: u64, left: u32) {
        let its = |migration: &Migration| (migration.from, migration.number) == (node, number);
        let change = self.state.changes.iter().find(|(_, change)| change.what.migration().is_some_and(its));
        let Some(id) = change.map(|(&id, _)| id) else { return };
        let Some(moving) = self.coherence.moves.get_mut(&id).filter(|m| m.step == MigrationStep::Pushing)
        else {
            return;
        };
        if left != moving.left && left != UNKNOWN_MOVE {
            (moving.left, moving.asked) = (left, 0);
        }
        moving.over = left == 0;
    }
}
