//! The completion of a change that revokes rights: no host holds pages any more that it got by them (PROTOCOL
//! 12.47).
//!
//! The switch began to recall them before it answered (PROTOCOL 12.43), so a later listing shows the resets
//! in progress. If the switch has restarted meanwhile, every host gives everything up before its directory
//! opens. The log only records that the change is complete.

use super::pending::page_at;
use crate::record::{Cache, Role};
use crate::state::State;
use crate::{Actions, Control};
use alloc::vec::Vec;
use farmem_machine::Instant;
use farmem_wire::message::{DirectoryBody, Listing, Page, REGION_ORDER_MAX, Region, RegionRowKind, Update};
use farmem_wire::{Perm, RequestId};

/// A change that completes when no host holds its pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draining {
    due: Instant,
    look: Option<DirectoryScan>,
    over: bool,
}

/// A listing of a part of the directory, to see whether any of its regions is being reset.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectoryScan {
    pub(super) token: RequestId,
    /// The first page of the next part.
    from: Page,
    resetting: bool,
}

impl Draining {
    pub(super) const fn due(&self) -> Instant {
        self.due
    }
}

impl State {
    /// Makes a change that revokes rights wait: the switch recalls the pages from all hosts (PROTOCOL 12.43),
    /// and the change completes when they are given up (PROTOCOL 12.47). Until then a program could still use
    /// its pages.
    pub(crate) fn drain<'a>(&mut self, id: u64, updates: impl Iterator<Item = &'a Update>) {
        if self.hosts.values().all(|row| row.cache == Cache::Empty) {
            return;
        }
        let less = updates.filter_map(|update| match *update {
            Update::Protect { base, len, perm, .. } if perm != Perm::ReadWrite => {
                Some((base.0, base.0.saturating_add(len - 1)))
            }
            _ => None,
        });
        let all = less.reduce(|(first, last), (base, end)| (first.min(base), last.max(end)));
        if let Some(change) = self.changes.get_mut(&id) {
            change.drains = all;
        }
    }
}

impl Control {
    /// Advances every change that revoked rights and whose roles have answered.
    pub(super) fn update_draining(&mut self, out: &mut Actions) {
        let held = self.state.changes.iter().filter_map(|(&id, change)| {
            let ready = change.failed.is_none() && change.waits.is_empty();
            Some((id, change.drains?)).filter(|_| ready)
        });
        let held: Vec<(u64, (u64, u64))> = held.collect();
        self.coherence.draining.retain(|id, _| held.iter().any(|(other, _)| other == id));
        let none_caches = self.state.hosts.values().all(|row| row.cache == Cache::Empty);
        for (id, (first, _)) in held {
            let fresh = Draining { due: self.now, look: None, over: false };
            let draining = *self.coherence.draining.entry(id).or_insert(fresh);
            if draining.over || none_caches {
                if self.advance(id, out).is_ok() {
                    return self.update_draining(out);
                }
            } else if draining.due <= self.now {
                let due = self.now + self.config.timeout;
                // While the directory is closed, hosts give up earlier pages: no listing is meaningful yet.
                let look = self.state.directory.then(|| self.look(first, out));
                self.coherence.draining.insert(id, Draining { due, look, over: false });
            }
        }
    }

    /// Handles a part of the directory. Returns true if it was requested here.
    pub(super) fn listed_for_draining(
        &mut self,
        token: RequestId,
        listing: &Listing<'_>,
        out: &mut Actions,
    ) -> bool {
        let asked = |(_, one): &(&u64, &Draining)| one.look.is_some_and(|look| look.token == token);
        let Some((&id, &draining)) = self.coherence.draining.iter().find(asked) else { return false };
        let range = self.state.changes.get(&id).and_then(|change| change.drains);
        if let (Some(look), Some(range)) = (draining.look, range) {
            let (look, over) = self.look_on(look, listing, range, out);
            self.coherence.draining.insert(id, Draining { look, over, ..draining });
        }
        true
    }

    /// Begins a listing at the region of this address.
    pub(super) fn look(&mut self, first: u64, out: &mut Actions) -> DirectoryScan {
        let from = Region::around(page_at(first), REGION_ORDER_MAX).base();
        DirectoryScan {
            token: self.tell(Role::Switch, DirectoryBody::List(from), out),
            from,
            resetting: false,
        }
    }

    /// Handles a requested part of a listing. Returns the listing of the next part, if any, and whether it
    /// has shown that no region from the first to the last of these addresses is being reset. Resets found
    /// are pursued.
    pub(super) fn look_on(
        &mut self,
        look: DirectoryScan,
        listing: &Listing<'_>,
        (first, last): (u64, u64),
        out: &mut Actions,
    ) -> (Option<DirectoryScan>, bool) {
        if look.from != listing.from {
            return (Some(look), false);
        }
        let (first, last) = (page_at(first), page_at(last));
        let meets = |region: Region| region.base() <= last && region.last() >= first;
        let mut resetting = look.resetting;
        for row in listing.rows.iter().filter(|row| row.kind == RegionRowKind::Resetting && meets(row.region))
        {
            resetting = true;
            if !self.coherence.resets.contains_key(&row.region.base()) {
                self.want_reset(row.region.base());
            }
        }
        match listing.next.filter(|&next| next > look.from && next <= last) {
            Some(from) => {
                let token = self.tell(Role::Switch, DirectoryBody::List(from), out);
                (Some(DirectoryScan { token, from, resetting }), false)
            }
            None => (None, !resetting),
        }
    }

    /// Checks the waiting changes again after the end of a reset, which may have been the last one.
    pub(super) fn look_at_draining(&mut self) {
        let now = self.now;
        self.coherence.draining.values_mut().for_each(|draining| draining.due = now);
    }
}
