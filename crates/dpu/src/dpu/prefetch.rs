//! Prefetch decisions, and whether prefetching pays.

use super::{Dpu, Loading, Transfer};
use crate::break_even::break_even;
use crate::policy::PageAccess;
use crate::requests::{Action, Caching, Read};
use crate::table::{Found, Table};
use crate::{EntryId, PageId};
use alloc::vec::Vec;
use core::ops::Range;

impl Dpu {
    pub(super) fn prefetch(&mut self, read: Read, found: Found, out: &mut Vec<Action>) {
        let known = self.objects.get_mut(&read.page.object).expect("it was found");
        let entry_pages = u64::from(self.config.table.entry_pages);
        let hit = matches!(found, Found::Cached(_) | Found::Loading);
        let access = PageAccess { page: read.page, entry_pages, hit, recent: &self.recent };
        let wanted = known.policy(read.page.page).propose(&access);
        let end = wanted.end.min(self.pages(&self.objects[&read.page.object].object));
        let entries = wanted.start / entry_pages..end.div_ceil(entry_pages);
        if self.config.caching == Caching::Adaptive {
            self.decide(read.page, matches!(found, Found::Cached(_)), entries.clone());
        }
        if !self.switched.is_on() {
            return;
        }
        for entry in entries {
            if self.loads >= self.config.prefetches_max {
                break;
            }
            self.load(read, EntryId { object: read.page.object, entry }, out);
        }
    }

    /// Counts a hit or a miss, of the cache or of the hypothetical one, and decides after each epoch whether
    /// to prefetch.
    fn decide(&mut self, page: PageId, hit: bool, entries: Range<u64>) {
        let was_on = self.switched.is_on();
        let would_hit = match &self.shadow {
            Some(shadow) if !was_on => matches!(shadow.find(page), Found::Cached(_)),
            _ => hit,
        };
        let bytes = self.config.page_len.get();
        self.switched.request(would_hit, break_even(&self.network, &self.intra, bytes));
        match (self.switched.is_on(), &mut self.shadow) {
            (true, shadow) => *shadow = None,
            (false, None) => self.shadow = Some(Table::new(self.config.table)),
            (false, Some(shadow)) => {
                for entry in entries {
                    let entry = EntryId { object: page.object, entry };
                    if shadow.has(entry) {
                        continue;
                    }
                    let all = u64::MAX >> (64 - self.config.table.entry_pages);
                    if let Some((slot, _)) = shadow.begin(entry, all, &mut self.rng) {
                        shadow.loaded(slot);
                    }
                }
            }
        }
    }

    /// Begins to load an entry for the asker. Skips pages that do not exist, that are being written, and that
    /// were requested lately (the asking process has them).
    fn load(&mut self, read: Read, entry: EntryId, out: &mut Vec<Action>) {
        if self.table.has(entry) {
            return;
        }
        let entry_pages = u64::from(self.config.table.entry_pages);
        let first = entry.entry * entry_pages;
        let all = first..(first + entry_pages).min(self.pages(&self.objects[&entry.object].object));
        let mut mask = 0_u64;
        for page in all {
            let id = PageId { object: entry.object, page };
            if id != read.page && !self.writing.contains_key(&id) {
                mask |= 1 << (page - first);
            }
        }
        for page in self.recent.latest().filter(|page| self.table.entry_of(*page).0 == entry) {
            mask &= !(1 << (page.page - first));
        }
        let runs: Vec<_> = runs(mask).collect();
        let bytes = |run: &Range<u32>| {
            self.bytes(entry.object, &(first + u64::from(run.start)..first + u64::from(run.end)))
        };
        let runs: Vec<_> = runs.into_iter().map(|run| (bytes(&run), run)).collect();
        let bytes = runs.iter().map(|(bytes, _)| bytes).sum();
        if mask == 0 || !self.budget.take(bytes) {
            return;
        }
        let Some((slot, left)) = self.table.begin(entry, mask, &mut self.rng) else { return };
        self.left(left);
        self.stats.background += bytes;
        self.stats.ahead.wanted += u64::from(mask.count_ones());
        let count = u32::try_from(runs.len()).expect("at most one for each page");
        self.loads += count;
        self.loading.insert(entry, Loading { slot, runs: count, waiting: Vec::new() });
        for (bytes, run) in runs {
            let first = PageId { object: entry.object, page: first + u64::from(run.start) };
            let count = run.end - run.start;
            let op = self.begin(Transfer::Load { entry, first, count, bytes });
            out.push(Action::Load { op, asker: read.asker, first, count, slot, within: run.start });
        }
    }
}

/// Returns the runs of set bits, the lowest first.
fn runs(mut mask: u64) -> impl Iterator<Item = Range<u32>> {
    let mut from = 0;
    core::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let skip = mask.trailing_zeros();
        let len = (mask >> skip).trailing_ones();
        let run = from + skip..from + skip + len;
        mask = mask.checked_shr(skip + len).unwrap_or(0);
        from = run.end;
        Some(run)
    })
}
