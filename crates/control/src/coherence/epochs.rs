//! Epochs: the directory is listed, and regions are split and merged (PROTOCOL 12.45, MIND 5).
//!
//! The switch creates regions by itself at the first request of a page; a listing reports them here. A
//! listing goes part by part, each requested when the one before has arrived. It has three purposes:
//! [`Splitting`] learns of false invalidations; resets that the switch began without a report are found; and
//! a listing without resets shows that nothing is left of fenced hosts.

use crate::coherence::Coherence;
use crate::coherence::waits::{RESETS_MAX, Round};
use crate::messages::Actions;
use crate::note::Note;
use crate::rack::Rack;
use crate::record::{Cache, Line, Role};
use crate::splitting::{Order, REGION_INITIAL, Region as Sized, Splitting};
use alloc::vec::Vec;
use farmem_wire::RequestId;
use farmem_wire::message::{
    DirectoryBody, Listing, PAGE_SHIFT, Page, ROWS_MAX, Region, RegionRow, RegionRowKind, RegionRows,
};

impl Coherence {
    /// Begins a listing when it is due, and repeats the request for a missing part.
    pub(super) fn send_rounds(&mut self, rack: &mut Rack, out: &mut Actions) {
        let now = rack.now;
        if !rack.state.directory {
            (self.round, self.next_round) = (None, None);
            return;
        }
        if let Some(round) = self.round.as_mut().filter(|round| round.due <= now) {
            round.due = now + rack.config.timeout;
            let from = round.from;
            self.ask_for_part(rack, from, out);
            return;
        }
        if self.round.is_none() && self.is_listing_due(rack) {
            self.rounds += 1;
            let (number, due) = (self.rounds, now + rack.config.timeout);
            let (from, rows) = (Page::FIRST, Vec::new());
            let round = Round { number, began: now, from, token: RequestId(0), due, rows };
            self.round = Some(round);
            self.ask_for_part(rack, from, out);
        }
    }

    /// Returns true if regions must be listed: while a host caches pages, or pages of a host are left.
    fn is_listing_due(&mut self, rack: &mut Rack) -> bool {
        // No fenced host can be forgotten before all nodes are swept.
        let fenced = self.unswept(rack).next().is_none();
        let counts = |cache: Cache| match cache {
            Cache::Empty => false,
            Cache::Live { .. } | Cache::Orphaned => true,
            Cache::Fenced => fenced,
        };
        let caches = rack.state.hosts.values().any(|row| counts(row.cache));
        let coherence = self;
        if !caches && coherence.wanted.is_empty() && coherence.resets.is_empty() {
            coherence.next_round = None;
            return false;
        }
        *coherence.next_round.get_or_insert(rack.now) <= rack.now
    }

    fn ask_for_part(&mut self, rack: &mut Rack, from: Page, out: &mut Actions) {
        let token = self.tell(rack, Role::Switch, DirectoryBody::List(from), out);
        if let Some(round) = &mut self.round {
            round.token = token;
        }
    }

    /// Handles a part of the directory.
    pub(super) fn listed(
        &mut self,
        rack: &mut Rack,
        token: RequestId,
        listing: &Listing<'_>,
        out: &mut Actions,
    ) {
        let asked = self.round.as_mut().filter(|round| (round.token, round.from) == (token, listing.from));
        let Some(round) = asked else { return };
        round.rows.extend(listing.rows.iter());
        if let Some(next) = listing.next.filter(|&next| next > round.from) {
            round.from = next;
            round.due = rack.now + rack.config.timeout;
            return self.ask_for_part(rack, next, out);
        }
        if let Some(round) = self.round.take() {
            out.note(Note::Listed);
            self.next_round = Some(rack.now.max(round.began + rack.config.epoch));
            self.counts.used = listing.used;
            self.counts.slots = listing.slots;
            self.find_resets(rack, &round, out);
            self.split_and_merge(rack, &round, listing.slots, out);
        }
    }

    /// Pursues resets without a report; if there is none, forgets hosts that were fenced before.
    fn find_resets(&mut self, rack: &mut Rack, round: &Round, out: &mut Actions) {
        let resetting = || round.rows.iter().filter(|row| row.kind == RegionRowKind::Resetting);
        for row in resetting().take(RESETS_MAX) {
            if !self.resets.contains_key(&row.region.base()) {
                self.want_reset(rack, row.region.base());
            }
        }
        if resetting().next().is_some() || self.unswept(rack).next().is_some() {
            return;
        }
        let settled = self.fences.iter().filter(|(_, first)| **first <= round.number);
        let settled: Vec<u16> = settled.map(|(&host, _)| host).collect();
        for host in settled {
            if rack.keep(Line::Forgotten { host }, out).is_err() {
                return; // a later listing shows it too
            }
            self.fences.remove(&host);
        }
    }

    fn split_and_merge(&mut self, rack: &mut Rack, round: &Round, slots: u32, out: &mut Actions) {
        let slots = slots as usize;
        if slots == 0 {
            return;
        }
        let fresh = || (slots, Splitting::new(slots, REGION_INITIAL));
        let known = self.splitting.get_or_insert_with(fresh);
        if known.0 != slots {
            *known = fresh();
        }
        let splitting = &mut known.1;
        let (splits, merges) = splitting.sync(round.rows.iter().map(|row| sized(row.region)));
        let false_invalidations = |row: &&RegionRow| row.false_invalidations > 0;
        let counts = round.rows.iter().filter(false_invalidations);
        let vmas = &rack.state.vmas;
        let in_one_vma = |region: Sized| {
            let before = vmas.range(..=region.base).next_back();
            before.is_some_and(|(base, vma)| base + vma.size >= region.base + region.size)
        };
        let counted = counts.clone().map(|row| (row.region.base().addr().0, row.false_invalidations.into()));
        let orders = splitting.epoch(counted, in_one_vma);
        let counted = &mut self.counts;
        counted.splits += splits;
        counted.merges += merges;
        counted.false_invalidations += counts.map(|row| u64::from(row.false_invalidations)).sum::<u64>();
        let mut bytes = Vec::new();
        for part in orders.chunks(ROWS_MAX) {
            bytes.clear();
            part.iter().filter_map(row_of).for_each(|row| row.emit(&mut bytes));
            let rows = RegionRows::new(&bytes).expect("as many rows as a list has room for");
            self.tell(rack, Role::Switch, DirectoryBody::Resize(rows), out);
        }
    }

    /// Resets the quietest region, because the switch has no slot left.
    pub(super) fn make_room(&mut self, rack: &mut Rack) {
        let quietest = self.splitting.as_mut().and_then(|(_, splitting)| splitting.take_quietest());
        match quietest {
            Some(region) => {
                self.counts.evictions += 1;
                self.want_reset(rack, super::waits::page_at(region.base));
            }
            // The regions are not known yet.
            None => self.next_round = Some(rack.now),
        }
    }
}

const fn sized(region: Region) -> Sized {
    Sized { base: region.base().addr().0, size: region.len() << PAGE_SHIFT }
}

fn row_of(order: &Order) -> Option<RegionRow> {
    let (region, kind) = match order {
        Order::Split(region) => (region, RegionRowKind::Split),
        Order::Merge(region) => (region, RegionRowKind::Merge),
    };
    let order = u8::try_from((region.size >> PAGE_SHIFT).ilog2()).ok()?;
    let region = Region::new(super::waits::page_at(region.base), order)?;
    Some(RegionRow { region, kind, false_invalidations: 0 })
}
