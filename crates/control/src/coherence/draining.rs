//! The completion of a change that revokes rights: no host holds pages any more that it got by them (PROTOCOL
//! 12.47).
//!
//! The switch began to recall them before it answered (PROTOCOL 12.43), so a later listing shows the resets
//! in progress. If the switch has restarted meanwhile, every host gives everything up before its directory
//! opens. The log only records that the change is complete.

use crate::coherence::Coherence;
use crate::coherence::waits::{DirectoryScan, Draining, page_at};
use crate::messages::Actions;
use crate::rack::Rack;
use crate::record::{Cache, Role};
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use farmem_wire::RequestId;
use farmem_wire::message::{DirectoryBody, Listing, REGION_ORDER_MAX, Region, RegionRowKind};

impl Coherence {
    /// Advances every change that revoked rights and whose roles have answered.
    pub(super) fn update_draining(&mut self, rack: &mut Rack, out: &mut Actions) {
        let held = rack.state.changes.iter().filter_map(|(&id, change)| {
            let ready = change.failed.is_none() && change.waits.is_empty();
            Some((id, change.drains?)).filter(|_| ready)
        });
        let held: Vec<(u64, (u64, u64))> = held.collect();
        self.draining.retain(|id, _| held.iter().any(|(other, _)| other == id));
        let none_caches = rack.state.hosts.values().all(|row| row.cache == Cache::Empty);
        for (id, (first, _)) in held {
            let fresh = Draining { due: rack.now, look: None, over: false };
            let draining = *self.draining.entry(id).or_insert(fresh);
            if draining.over || none_caches {
                if self.advance(rack, id, out).is_ok() {
                    return self.update_draining(rack, out);
                }
            } else if draining.due <= rack.now {
                let due = rack.now + rack.config.timeout;
                // While the directory is closed, hosts give up earlier pages: no listing is meaningful yet.
                let look = rack.state.directory.then(|| self.look(rack, first, out));
                self.draining.insert(id, Draining { due, look, over: false });
            }
        }
    }

    /// Handles a part of the directory. Returns true if it was requested here.
    pub(super) fn listed_for_draining(
        &mut self,
        rack: &mut Rack,
        token: RequestId,
        listing: &Listing<'_>,
        out: &mut Actions,
    ) -> bool {
        let asked = |(_, one): &(&u64, &Draining)| one.look.is_some_and(|look| look.token == token);
        let Some((&id, &draining)) = self.draining.iter().find(asked) else { return false };
        let range = rack.state.changes.get(&id).and_then(|change| change.drains);
        if let (Some(look), Some((first, last))) = (draining.look, range) {
            let (look, over) = self.look_on(rack, look, listing, first..=last, out);
            self.draining.insert(id, Draining { look, over, ..draining });
        }
        true
    }

    /// Begins a listing at the region of this address.
    pub(super) fn look(&mut self, rack: &mut Rack, first: u64, out: &mut Actions) -> DirectoryScan {
        let from = Region::around(page_at(first), REGION_ORDER_MAX).base();
        DirectoryScan {
            token: self.tell(rack, Role::Switch, DirectoryBody::List(from), out),
            from,
            resetting: false,
        }
    }

    /// Handles a requested part of a listing. Returns the listing of the next part, if any, and whether it
    /// has shown that no region of these addresses is being reset. Resets found
    /// are pursued.
    pub(super) fn look_on(
        &mut self,
        rack: &mut Rack,
        look: DirectoryScan,
        listing: &Listing<'_>,
        range: RangeInclusive<u64>,
        out: &mut Actions,
    ) -> (Option<DirectoryScan>, bool) {
        if look.from != listing.from {
            return (Some(look), false);
        }
        let (first, last) = (page_at(*range.start()), page_at(*range.end()));
        let meets = |region: Region| region.base() <= last && region.last() >= first;
        let mut resetting = look.resetting;
        for row in listing.rows.iter().filter(|row| row.kind == RegionRowKind::Resetting && meets(row.region))
        {
            resetting = true;
            if !self.resets.contains_key(&row.region.base()) {
                self.want_reset(rack, row.region.base());
            }
        }
        match listing.next.filter(|&next| next > look.from && next <= last) {
            Some(from) => {
                let token = self.tell(rack, Role::Switch, DirectoryBody::List(from), out);
                (Some(DirectoryScan { token, from, resetting }), false)
            }
            None => (None, !resetting),
        }
    }

    /// Checks the waiting changes again after the end of a reset, which may have been the last one.
    pub(super) fn look_at_draining(&mut self, rack: &mut Rack) {
        let now = rack.now;
        self.draining.values_mut().for_each(|draining| draining.due = now);
    }
}
