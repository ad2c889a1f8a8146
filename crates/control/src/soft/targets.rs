//! Images of several switches: the rack's switch and the index switches (PROTOCOL 16.3). Each has its own
//! soft state, and one at a time is at hand.

use crate::api::{IndexInfo, Tier};
use crate::messages::Actions;
use crate::rack::Rack;
use crate::record::{IndexRow, Role, gid_text};
use crate::soft::counting::Counting;
use crate::soft::{Images, Soft};
use alloc::vec::Vec;
use core::mem;
use farmem_index::RouteSection;
use farmem_machine::Port;

impl Images {
    /// Runs `act` with the soft state of this switch at hand. Otherwise the state of the rack's switch is at
    /// hand.
    pub(crate) fn on_target<T>(&mut self, role: Role, act: impl FnOnce(&mut Self) -> T) -> T {
        self.at_hand(role, |images| {
            images.soft.touched = true;
            act(images)
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
    pub(crate) fn update_images(&mut self, rack: &mut Rack, out: &mut Actions) {
        let all = mem::take(&mut rack.state_changed);
        if all {
            self.forget_images(rack, out);
        }
        let due = mem::take(&mut rack.routes_due);
        let is_meant = |index: u16| all || due || self.is_to_be_seen(rack, index);
        let index = rack.state.index.keys().copied().filter(|&index| is_meant(index)).map(Role::Index);
        // The active image at the core changes what the rack's switch is told, so the rack's switch comes
        // last.
        let roles: Vec<Role> = index.chain([Role::Switch]).collect();
        for role in roles {
            self.at_hand(role, |images| {
                images.soft.touched = false;
                if due {
                    images.publish_routes(rack, out);
                }
                images.update_soft(rack, out);
                images.update_counts(rack, out);
            });
        }
        if rack.routes_due && !due {
            self.update_images(rack, out);
        }
    }

    /// Returns true if this event reported something about the image of this index switch, or an action for
    /// it is due.
    fn is_to_be_seen(&self, rack: &Rack, index: u16) -> bool {
        self.index_soft.get(&index).is_some_and(|(soft, counting)| {
            let due = soft.due().into_iter().chain(counting.due()).min();
            soft.touched || due.is_some_and(|due| due <= rack.now)
        })
    }

    /// Drops the images of index switches that left, and the requests that wait for them.
    fn forget_images(&mut self, rack: &mut Rack, out: &mut Actions) {
        let gone = self.index_soft.keys().filter(|index| !rack.state.index.contains_key(index));
        for index in gone.copied().collect::<Vec<_>>() {
            let role = Role::Index(index);
            let why = rack.state.unavailable(role, "left");
            self.on_target(role, |images| {
                images.give_up_waiting(&why, out);
                images.give_up_counting(rack, "left", out);
            });
            self.index_soft.remove(&index);
            // The next incarnation of this number is counted from 1 again.
            self.restored.remove(&role);
        }
    }
}

impl Images {
    pub(crate) fn index_infos(&self, rack: &Rack) -> Vec<IndexInfo> {
        let info = |(&index, row): (&u16, &IndexRow)| IndexInfo {
            index,
            name: row.name.clone(),
            gid: gid_text(row.gid),
            tier: row.tier,
            below: row.below.clone(),
            servers: rack.state.routes_below(row).keys().copied().collect(),
            answers: rack.state.leads(index),
            epoch: self.index_soft.get(&index).map_or(0, |(soft, _)| soft.standing_epoch()),
        };
        rack.state.index.iter().map(info).collect()
    }

    /// Returns the routes section for a switch; `None` if it has no routes.
    pub(crate) fn routes_of(&self, rack: &Rack, role: Role) -> Option<Vec<u8>> {
        let section = match role {
            Role::Index(index) => {
                let row = rack.state.index.get(&index)?;
                RouteSection { servers: rack.state.servers(row), ..RouteSection::default() }
            }
            Role::Switch => {
                let is_core =
                    |(index, row): &(&u16, &IndexRow)| row.tier == Tier::Core && rack.state.leads(**index);
                let (&core, _) = rack.state.index.iter().find(is_core)?;
                let trees = self.index_soft.get(&core).map_or_else(Vec::new, |(soft, _)| soft.led_trees());
                RouteSection { up: Some(Port::index(core).0), trees, ..RouteSection::default() }
            }
            Role::Node(_) => return None,
        };
        Some(section.emit())
    }
}
