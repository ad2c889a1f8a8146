//! Pages of zeros: they need no fetch, so more of them are mapped at once.

use crate::cache::Cache;
use crate::frames::Busy;
use crate::{Action, Key, Layout, Source};
use alloc::vec::Vec;
use core::ops::Range;
use farmem_wire::message::Access;

/// Maximum number of zero pages mapped at once.
pub const ZEROS_MAX: u64 = 64;
/// Factor: a stream at its maximum fetch length has runs of zeros this many times longer, because a zero page
/// costs less than a fault for each run.
const ZEROS_TIMES: u64 = 4;

impl Cache {
    /// Serves a fault at a page that was never written.
    pub(crate) fn zeros(&mut self, key: Key, layout: &impl Layout, out: &mut Vec<Action>) -> bool {
        let proposed = self.proposal(key, layout);
        let goes_up = self.is_longest(key, &proposed);
        let proposed = self.further(key, proposed, layout);
        let nowhere = |page: u64| layout.source(key.with(page)) == Source::Zeros;
        let Some(run) = self.run(key, proposed, nowhere, layout, out) else { return false };
        self.stats.zeros += 1;
        self.give_zeros(key, run, out);
        if goes_up {
            self.zeros_behind(key, layout, out);
        }
        true
    }

    /// Maps a run of zero pages. A thread waits for `key`, if the run contains it.
    fn give_zeros(&mut self, key: Key, run: Range<u64>, out: &mut Vec<Action>) {
        for page in run.clone() {
            self.insert(key.with(page), Some(Access::Modified), page != key.page, Busy::No);
        }
        let count = u32::try_from(run.end - run.start).expect("at most run_max, or ZEROS_MAX");
        out.push(Action::Zeros { first: key.with(run.start), count });
    }

    /// Returns the maximum length of a run of zeros.
    fn zeros_max(&self) -> u64 {
        self.config.run_max.saturating_mul(ZEROS_TIMES).min(ZEROS_MAX)
    }

    /// Extends the proposal in its direction, if no page must be evicted for it.
    fn further(&self, key: Key, proposed: Range<u64>, layout: &impl Layout) -> Range<u64> {
        let (run_max, count) = (self.config.run_max, self.zeros_max());
        let is_longest = run_max > 1 && proposed.end - proposed.start >= run_max;
        if !is_longest || (self.free() as u64) < count {
            return proposed;
        }
        let around = layout.around(key);
        if proposed.end > key.page + 1 {
            proposed.start..proposed.end.max(around.end.min(proposed.start.saturating_add(count)))
        } else {
            proposed.start.min(around.start.max(proposed.end.saturating_sub(count)))..proposed.end
        }
    }

    /// Maps the next run of zeros except for its first page, while the thread works on the current run. The
    /// fault at the first page begins the following run. No page is evicted for this.
    fn zeros_behind(&mut self, key: Key, layout: &impl Layout, out: &mut Vec<Action>) {
        let (count, left_out) = (self.zeros_max(), self.frames.first_without(key));
        let is_near = left_out - key.page <= count;
        if !is_near || (self.free() as u64) < count {
            return;
        }
        let end = layout.around(key).end.min(left_out.saturating_add(count));
        let comes = |page: &u64| {
            layout.source(key.with(*page)) == Source::Zeros && self.frames.find(key.with(*page)).is_none()
        };
        // If the stream cannot continue at the first page, it never reaches the others.
        let pages = (left_out..end).take_while(comes).count() as u64;
        if pages > 1 {
            self.stats.ahead.wanted += pages - 1;
            let run = left_out + 1..left_out + pages;
            self.record_early(key, &run);
            self.give_zeros(key, run, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    struct Nothing;

    impl Layout for Nothing {
        fn source(&self, _: Key) -> Source {
            Source::Zeros
        }

        fn home(&self, key: Key) -> Option<u64> {
            Some(key.page)
        }
    }

    fn cache(frames: usize) -> Cache {
        Cache::new(Config::of_streams(frames, 16))
    }

    /// Touches the pages in order. Returns the lengths of the mapped runs.
    fn fill(cache: &mut Cache, pages: impl Iterator<Item = u64>) -> Vec<u32> {
        let mut out = Vec::new();
        for page in pages {
            let key = Key { space: 1, page };
            if !cache.has(key) {
                cache.fault(key, true, &Nothing, &mut out);
            }
        }
        let count = |action| match action {
            Action::Zeros { count, .. } => Some(count),
            _ => None,
        };
        out.into_iter().filter_map(count).collect()
    }

    /// A fill doubles its runs like a stream of fetches, and continues with runs four times as long. Upwards,
    /// each run but its first page is mapped early.
    #[test]
    fn a_fill_comes_in_long_runs() {
        let up = fill(&mut cache(600), 0..351);
        assert_eq!(up, [1, 2, 4, 8, 64, 63, 1, 63, 1, 63, 1, 63, 1, 63, 1, 63]);
        let down = fill(&mut cache(600), (650..=1000).rev());
        assert_eq!(down, [1, 2, 4, 8, 64, 64, 64, 64, 64, 64]);
    }

    /// No page is evicted for pages that no thread asked for yet: with little room, runs are as long as those
    /// of fetches.
    #[test]
    fn long_runs_take_free_frames_only() {
        let mut cache = cache(128);
        assert_eq!(fill(&mut cache, 0..111), [1, 2, 4, 8, 64, 16, 16]);
        assert_eq!(cache.stats().evictions, 0);
    }
}
