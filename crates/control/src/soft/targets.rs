//! Images of several switches: the rack's switch and the index switches (PROTOCOL 16.3). Each has its own
//! soft state, and one at a time is at hand.

use super::{Counting, Soft};
use crate::record::Role;
use crate::{Actions, Control};
use alloc::vec::Vec;
use core::mem;

impl Control {
    /// Runs `act` with the soft state of this switch at hand. Otherwise the state of the rack's switch is at
    /// hand.
    pub(crate) fn on_target<T>(&mut self, role: Role, act: impl FnOnce(&mut Self) -> T) -> T {
        self.at_hand(role, |control| {
            control.soft.touched = true;
            act(control)
        })
    }

    fn at_hand<T>(&mut self, role: Role, act: impl FnOnce(&mut Self) -> T) -> T {
        let Role::Index(index) = role else { return act(self) };
        let fresh = || (Soft::of(role), Counting::default());
        let (mut soft, mut counting) = self.index_soft.remove(&index).unwrap_or_else(fresh);
        mem::swap(&mut self.soft, &mut soft);
        mem::swap(&mut self.counting, &mut counting);
        let result = act(self);
        mem::swap(&mut self.soft, &mut soft);
        mem::swap(&mut self.counting, &mut counting);
        self.index_soft.insert(index, (soft, counting));
        result
    }

    /// Iterates over soft state and counters of all switches.
    pub(crate) fn all_soft(&self) -> impl Iterator<Item = (&Soft, &Counting)> {
        let of_index = self.index_soft.values().map(|(soft, counting)| (soft, counting));
        core::iter::once((&self.soft, &self.counting)).chain(of_index)
    }

    /// Updates the images of all switches after time has passed and members have come or gone. An index
    /// switch is only checked if this event can concern it: nothing but the state, the time and messages
    /// about an image changes what is to be done.
    pub(crate) fn update_images(&mut self, out: &mut Actions) {
        let all = mem::take(&mut self.state_changed);
        if all {
            self.forget_images(out);
        }
        let due = mem::take(&mut self.routes_due);
        let is_meant = |index: u16| all || due || self.is_to_be_seen(index);
        let index = self.state.index.keys().copied().filter(|&index| is_meant(index)).map(Role::Index);
        // The active image at the core changes what the rack's switch is told, so the rack's switch comes
        // last.
        let roles: Vec<Role> = index.chain([Role::Switch]).collect();
        for role in roles {
            self.at_hand(role, |control| {
                control.soft.touched = false;
                if due {
                    control.publish_routes(out);
                }
                control.update_soft(out);
                control.update_counts(out);
            });
        }
        if self.routes_due && !due {
            self.update_images(out);
        }
    }

    /// Returns true if this event reported something about the image of this index switch, or an action for
    /// it is due.
    fn is_to_be_seen(&self, index: u16) -> bool {
        self.index_soft.get(&index).is_some_and(|(soft, counting)| {
            let due = soft.due().into_iter().chain(counting.due()).min();
            soft.touched || due.is_some_and(|due| due <= self.now)
        })
    }

    /// Drops the images of index switches that left, and the requests that wait for them.
    fn forget_images(&mut self, out: &mut Actions) {
        let gone = self.index_soft.keys().filter(|index| !self.state.index.contains_key(index));
        for index in gone.copied().collect::<Vec<_>>() {
            let role = Role::Index(index);
            let why = self.state.unavailable(role, "left");
            self.on_target(role, |control| {
                control.give_up_waiting(&why, out);
                control.give_up_counting("left", out);
            });
            self.index_soft.remove(&index);
            // The next incarnation of this number is counted from 1 again.
            self.restored.remove(&role);
        }
    }
}
