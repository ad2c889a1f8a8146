//! Pages of zeros: nothing is fetched for them, so more of them come at once.

use crate::cache::Cache;
use crate::frames::Busy;
use crate::{Action, Key, Layout, Source};
use alloc::vec::Vec;
use core::ops::Range;
use farmem_wire::message::Access;

/// Pages of zeros that come at once at most.
pub const ZEROS_MAX: u64 = 64;
/// A stream that has come to the longest run of a fetch has runs of zeros so many times as long: a page of them costs less than a thread that
/// waits for each run.
const ZEROS_TIMES: u64 = 4;

impl Cache {
    /// Pages that nobody has written to.
    pub(crate) fn zeros(&mut self, key: Key, layout: &impl Layout, out: &mut Vec<Action>) -> bool {
        let proposed = self.proposal(key, layout);
        let proposed = self.further(key, proposed, layout);
        let nowhere = |page: u64| layout.source(key.with(page)) == Source::Zeros;
        let Some(run) = self.run(key, proposed, nowhere, layout, out) else { return false };
        self.stats.zeros += 1;
        for page in run.clone() {
            self.insert(key.with(page), Some(Access::Modified), page != key.page, Busy::No);
        }
        let count = u32::try_from(run.end - run.start).expect("at most run_max, or ZEROS_MAX");
        out.push(Action::Zeros { first: key.with(run.start), count });
        true
    }

    /// What is proposed, and more in the same direction where a stream is at its longest and nothing has to go for it.
    fn further(&self, key: Key, proposed: Range<u64>, layout: &impl Layout) -> Range<u64> {
        let run_max = self.config.run_max;
        let count = run_max.saturating_mul(ZEROS_TIMES).min(ZEROS_MAX);
        let is_longest = run_max > 1 && proposed.end - proposed.start >= run_max && count > run_max;
        if !is_longest || (self.free() as u64) < count + self.reserve() as u64 {
            return proposed;
        }
        let around = layout.around(key);
        if proposed.end > key.page + 1 {
            proposed.start..proposed.end.max(around.end.min(proposed.start.saturating_add(count)))
        } else {
            proposed.start.min(around.start.max(proposed.end.saturating_sub(count)))..proposed.end
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ahead, Config};

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
        Cache::new(Config {
            frames,
            inactive_max: frames / 8,
            inactive_apart: true,
            run_max: 16,
            batch_max: 16,
            writing_max: 4,
            tries_max: 1,
            ahead: Ahead::Stream(16),
            stream_writes: true,
        })
    }

    /// Goes through the pages; answers the runs that came.
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

    /// A fill doubles its runs as a stream of fetches does, and goes on with four times as many, upwards and downwards.
    #[test]
    fn a_fill_comes_in_long_runs() {
        for down in [false, true] {
            let pages = (0..351).map(|n| if down { 1000 - n } else { n });
            assert_eq!(fill(&mut cache(600), pages), [1, 2, 4, 8, 64, 64, 64, 64, 64, 64], "{down}");
        }
    }

    /// Nothing goes for pages that nobody asked for yet: with little room, runs are as those of fetches.
    #[test]
    fn long_runs_take_free_frames_only() {
        let mut cache = cache(128);
        assert_eq!(fill(&mut cache, 0..111), [1, 2, 4, 8, 64, 16, 16]);
        assert_eq!(cache.stats().evictions, 0);
    }
}
