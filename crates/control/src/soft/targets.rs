//! Images of several switches: the rack's, and those of the index (PROTOCOL 16.3). Each has its own soft state, and one at a time is at hand.

use super::{Counting, Soft};
use crate::record::Role;
use crate::{Actions, Control};
use alloc::vec::Vec;
use core::mem;

impl Control {
    /// Has `act` see the soft state of this switch as the one at hand: outside of it that is the rack's.
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

    /// Soft state and counters of all switches.
    pub(crate) fn all_soft(&self) -> impl Iterator<Item = (&Soft, &Counting)> {
        let of_index = self.index_soft.values().map(|(soft, counting)| (soft, counting));
        core::iter::once((&self.soft, &self.counting)).chain(of_index)
    }

    /// What time, and members that came or went, mean for the images of all switches. Of those of the index only the ones that this event may mean
    /// something for are looked at: nothing but the state, the time and what is said of an image changes what is to be done.
    pub(crate) fn see_to_images(&mut self, out: &mut Actions) {
        let all = mem::take(&mut self.state_changed);
        if all {
            self.forget_images(out);
        }
        let due = mem::take(&mut self.ways_due);
        let is_meant = |index: u16| all || due || self.is_to_be_seen(index);
        let index = self.state.index.keys().copied().filter(|&index| is_meant(index)).map(Role::Index);
        // What stands at the core changes what the rack's switch is told, so that one is last.
        let roles: Vec<Role> = index.chain([Role::Switch]).collect();
        for role in roles {
            self.at_hand(role, |control| {
                control.soft.touched = false;
                if due {
                    control.publish_ways(out);
                }
                control.see_to_soft(out);
                control.see_to_counts(out);
            });
        }
        if self.ways_due && !due {
            self.see_to_images(out);
        }
    }

    /// Of the image of this switch of the index something was said in this event, or is to be done by now.
    fn is_to_be_seen(&self, index: u16) -> bool {
        self.index_soft.get(&index).is_some_and(|(soft, counting)| {
            let due = soft.due().into_iter().chain(counting.due()).min();
            soft.touched || due.is_some_and(|due| due <= self.now)
        })
    }

    /// A switch of the index that left has no image, and nobody waits for one.
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
            // Its number's next life is counted from 1 again.
            self.restored.remove(&role);
        }
    }
}
