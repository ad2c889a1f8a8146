//! Early work ahead of a thread's fault: the next run of a stream while its thread works on the current one,
//! and write access for a stream of writes.
//!
//! An upward stream at its maximum length finds its next run resident, except for the first page. The fault at that page is short,
//! and begins the run after the next.
//!
//! ```text
//!   fault        here already, or on its way        left out      comes while the thread works
//!     |  k  | k+1 ........................ k+n-1 |    k+n     | k+n+1 ................. k+2n-1 |
//! ```

use crate::cache::Cache;
use crate::frames::Busy;
use crate::{Action, Key, Layout, Source};
use alloc::vec::Vec;
use core::ops::Range;
use farmem_wire::message::Access;

impl Cache {
    /// Returns true if the proposal is an upward stream at its maximum length.
    pub(crate) fn is_longest(&self, key: Key, proposed: &Range<u64>) -> bool {
        let run_max = self.config.run_max;
        run_max > 1 && proposed.start == key.page && proposed.end - proposed.start >= run_max
    }

    /// Fetches the next run of an upward stream at its maximum length, except for its first page, after a
    /// fault of the stream. The fault at the first page is short, and begins the following run. No page is
    /// evicted for this.
    pub(crate) fn fetch_early(&mut self, layout: &impl Layout, out: &mut Vec<Action>) {
        let Some((key, write)) = self.early.take() else { return };
        let (count, left_out) = (self.config.run_max, self.frames.first_without(key));
        let is_near = left_out - key.page <= count;
        if !is_near || self.failed || self.one_by_one || (self.free() as u64) < count {
            return;
        }
        let Source::Far(at) = layout.source(key.with(left_out)) else { return };
        let lies = |page: &u64| {
            let there = at.checked_add(page - left_out).map_or(Source::Elsewhere, Source::Far);
            layout.source(key.with(*page)) == there && self.frames.find(key.with(*page)).is_none()
        };
        let end = layout.around(key).end.min(left_out.saturating_add(count));
        let pages = (left_out..end).take_while(lies).count() as u64;
        if pages > 1 {
            let run = left_out + 1..left_out + pages;
            self.stats.ahead.wanted += pages - 1;
            self.record_early(key, &run);
            self.begin_fetch(key, run, write && self.config.stream_writes, out);
        }
    }

    /// Tells the policy about a run that its stream has not asked for yet.
    pub(crate) fn record_early(&mut self, key: Key, run: &Range<u64>) {
        if let Some(policy) = self.ahead.get_mut(&key.space) {
            policy.fetched_early(run);
        }
    }

    /// Handles the first write to a readable page. As many pages behind it become writable as were written
    /// consecutively before it, so that a stream of writes takes one fault per run.
    pub(crate) fn allow_run(&mut self, key: Key, layout: &impl Layout, out: &mut Vec<Action>) {
        self.stats.upgrades += 1;
        let alone = key.page..key.page + 1;
        let streams = self.config.stream_writes;
        let (run, written) = if streams { self.stream_of_writes(key, layout) } else { (alone, 0..0) };
        for page in run.clone() {
            let frame = self.frames.find(key.with(page)).expect("a page of the run is here");
            self.frames.change(frame, page == key.page, |page| {
                (page.mapped, page.dirty) = (Some(Access::Modified), true);
            });
        }
        // Written pages were used, even without a fault of their own.
        for page in written.chain([key.page]) {
            if let Some(frame) = self.frames.find(key.with(page)).filter(|&frame| self.frames.at(frame).ahead)
            {
                self.frames.change(frame, false, |page| page.ahead = false);
                self.stats.ahead.used += 1;
            }
        }
        let count = u32::try_from(run.end - run.start).expect("at most run_max");
        out.push(Action::Allow { first: key.with(run.start), count });
    }

    /// Returns the pages likely to be written with the faulting one, in one direction, and the written pages
    /// before it.
    fn stream_of_writes(&self, key: Key, layout: &impl Layout) -> (Range<u64>, Range<u64>) {
        let at = |page: u64| self.frames.find(key.with(page)).map(|frame| self.frames.at(frame));
        let written = |page: &u64| at(*page).is_some_and(|page| page.mapped == Some(Access::Modified));
        let clean = |page: &u64| {
            at(*page).is_some_and(|page| {
                page.mapped == Some(Access::Shared) && !page.dirty && page.busy == Busy::No
            })
        };
        let (around, most) = (layout.around(key), self.config.run_max);
        let below = (around.start.max(key.page.saturating_sub(most))..key.page).rev();
        let above = key.page + 1..around.end.min(key.page.saturating_add(most));
        let before = below.clone().take_while(written).count();
        if before > 0 {
            let count = above.take(before).take_while(clean).count() as u64;
            return (key.page..key.page + 1 + count, key.page - before as u64..key.page);
        }
        let before = above.clone().take_while(written).count();
        let count = below.take(before).take_while(clean).count() as u64;
        (key.page - count..key.page + 1, key.page + 1..key.page + 1 + before as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::far::ALL_FAR;
    use crate::{Config, Outcome};

    fn cache(frames: usize) -> Cache {
        Cache::new(Config::of_streams(frames, 8))
    }

    fn key(page: u64) -> Key {
        Key { space: 1, page }
    }

    /// Touches a page. Returns the fetched runs and the runs that became writable.
    fn touch(cache: &mut Cache, page: u64, write: bool) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
        let is_there = |cache: &Cache| {
            let access = cache.access(key(page));
            access == Some(Access::Modified) || access.is_some() && !write
        };
        let (mut fetched, mut allowed) = (Vec::new(), Vec::new());
        let mut out = Vec::new();
        if !is_there(cache) {
            cache.fault(key(page), write, &ALL_FAR, &mut out);
            cache.turn(&ALL_FAR, &mut out);
        }
        while !out.is_empty() {
            for action in core::mem::take(&mut out) {
                let run = |first: Key, count: u32| first.page..first.page + u64::from(count);
                match action {
                    Action::Fetch { op, first, count, .. } => {
                        fetched.push(run(first, count));
                        cache.fetched(op, Outcome::Done, &ALL_FAR, &mut out);
                    }
                    Action::Allow { first, count } => allowed.push(run(first, count)),
                    Action::WriteBack { op } => cache.written_back(op, Outcome::Done, &ALL_FAR, &mut out),
                    _ => {}
                }
            }
            cache.check();
        }
        assert!(is_there(cache), "page {page} came");
        (fetched, allowed)
    }

    /// A stream of reads fetches one page while its thread waits, and seven while the thread works.
    #[test]
    fn a_stream_has_its_next_run_fetched_early() {
        let mut cache = cache(200);
        let fetched: Vec<_> = (0..40).flat_map(|page| touch(&mut cache, page, false).0).collect();
        let expected =
            [0..1, 1..3, 3..7, 7..15, 16..23, 15..16, 24..31, 23..24, 32..39, 31..32, 40..47, 39..40, 48..55];
        assert_eq!(fetched, expected);
        assert_eq!(cache.stats().ahead.late, 0);
    }

    /// No page is fetched early if an eviction were needed: four frames are kept free here.
    #[test]
    fn what_comes_early_makes_nothing_go() {
        let mut cache = cache(64);
        (0..200).for_each(|page| drop(touch(&mut cache, page, false)));
        let (fetched, _) = touch(&mut cache, 200, false);
        assert!(fetched.len() <= 1, "{fetched:?}");
    }

    /// A write makes as many readable neighbours writable as were written before it.
    #[test]
    fn a_stream_of_writes_goes_on_as_one() {
        for down in [false, true] {
            let at = |page: u64| if down { 99 - page } else { page };
            let mut cache = cache(400);
            (0..100).for_each(|page| drop(touch(&mut cache, page, false)));
            let read = cache.stats().ahead.used;
            let faults = (0..40).map(|page| touch(&mut cache, at(page), true).1);
            let counts: Vec<u64> = faults.flatten().map(|run| run.end - run.start).collect();
            assert_eq!(counts, [1, 2, 4, 8, 8, 8, 8, 8], "{down}");
            // The last run that was read counts as used only when it is written.
            assert_eq!(cache.stats().ahead.used > read, down);
        }
    }

    /// A scan longer than all frames leaves the pages used before it, and its own first pages.
    #[test]
    fn a_long_scan_goes_through_few_frames() {
        let mut cache = cache(160);
        let others = || (0..20).map(|n| 10_000 + 3 * n);
        others().for_each(|page| drop(touch(&mut cache, page, false)));
        (0..150).for_each(|page| drop(touch(&mut cache, page, false)));
        others().for_each(|page| drop(touch(&mut cache, page, false)));
        (150..1000).for_each(|page| drop(touch(&mut cache, page, false)));
        let here = others().filter(|&page| cache.access(key(page)).is_some()).count();
        assert_eq!(here, 20);
    }
}
