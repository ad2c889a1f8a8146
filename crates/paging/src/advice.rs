//! Advice of a program about ranges of its pages, as by madvise(2) (SODA III).
//!
//! Advice changes which pages are cached, never their contents: a dirty page that is not needed is written
//! back.

use crate::cache::Cache;
use crate::frames::Busy;
use crate::{Action, Key, Layout, Source};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use rangemap::RangeMap;

/// Advice about a range of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// No special pattern: [`Config::ahead`](crate::Config::ahead) chooses the prefetches.
    Normal,
    /// Random access: no page is prefetched.
    Random,
    /// Sequential access: runs of the maximum length are prefetched, and pages behind the scan are evicted
    /// first.
    Sequential,
    /// Access soon: the pages are fetched now, up to half of all frames.
    WillNeed,
    /// No access soon: the pages are evicted before others.
    Cold,
    /// No need of the pages: clean pages are evicted now; dirty pages are written back now and evicted before
    /// others.
    DontNeed,
}

/// The access pattern of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pattern {
    Random,
    Sequential,
}

/// Maximum number of advised ranges of a cache.
pub const ADVISED_MAX: usize = 1024;

/// The error for advice beyond [`ADVISED_MAX`] ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyRanges;

impl fmt::Display for TooManyRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ADVISED_MAX} ranges are advised of already")
    }
}

impl core::error::Error for TooManyRanges {}

/// The access patterns of a cache's pages.
#[derive(Debug, Default)]
pub(crate) struct Advised {
    patterns: RangeMap<Key, Pattern>,
}

impl Advised {
    /// Returns true if advice decides the prefetches for this page.
    pub(crate) fn has(&self, key: Key) -> bool {
        self.patterns.contains_key(&key)
    }
}

impl Cache {
    /// Records how a program uses the pages of a space. The latest advice for each page counts.
    ///
    /// # Errors
    ///
    /// [`TooManyRanges`] if the limit is exceeded; nothing changes then.
    ///
    /// # Panics
    ///
    /// If inactive pages have separate memory, or the cache is coherent: programs give no advice there.
    pub fn advise(
        &mut self,
        space: u32,
        pages: Range<u64>,
        advice: Advice,
        layout: &impl Layout,
        out: &mut Vec<Action>,
    ) -> Result<(), TooManyRanges> {
        assert!(!self.config.inactive_apart && !self.frames.is_coherent(), "a window's pages");
        if pages.is_empty() {
            return Ok(());
        }
        match advice {
            Advice::Normal => self.pattern(space, &pages, None)?,
            Advice::Random => self.pattern(space, &pages, Some(Pattern::Random))?,
            Advice::Sequential => self.pattern(space, &pages, Some(Pattern::Sequential))?,
            Advice::WillNeed => self.will_need(space, &pages, layout, out),
            Advice::Cold => self.here(space, &pages).into_iter().for_each(|key| self.frames.retire(key)),
            Advice::DontNeed => self.do_not_need(space, &pages, layout, out),
        }
        Ok(())
    }

    fn pattern(
        &mut self,
        space: u32,
        pages: &Range<u64>,
        pattern: Option<Pattern>,
    ) -> Result<(), TooManyRanges> {
        let range = Key { space, page: pages.start }..Key { space, page: pages.end };
        let patterns = &mut self.advised.patterns;
        // A range that is cut in the middle becomes two.
        if patterns.iter().count() + 2 > ADVISED_MAX && pattern.is_some() {
            return Err(TooManyRanges);
        }
        match pattern {
            Some(pattern) => patterns.insert(range, pattern),
            None => patterns.remove(range),
        }
        Ok(())
    }

    /// Returns the proposal for a page that advice covers; `None` for all others.
    pub(crate) fn advised(&mut self, key: Key) -> Option<Range<u64>> {
        let (range, &pattern) = self.advised.patterns.get_key_value(&key)?;
        let most = self.config.run_max;
        match pattern {
            Pattern::Random => Some(key.page..key.page + 1),
            Pattern::Sequential => {
                let (start, end) = (range.start.page, range.end.page.min(key.page.saturating_add(most)));
                // The previous run is used up.
                let behind = key.page.saturating_sub(most).max(start)..key.page;
                behind.for_each(|page| self.frames.retire(key.with(page)));
                Some(key.page..end)
            }
        }
    }

    /// Returns the pages of the range that have a frame.
    fn here(&self, space: u32, pages: &Range<u64>) -> Vec<Key> {
        let mut here = Vec::new();
        let mut from = Key { space, page: pages.start };
        while let Some((_, key)) = self.frames.next(from, pages.end) {
            here.push(key);
            from = key.with(key.page + 1);
        }
        here
    }

    fn will_need(&mut self, space: u32, pages: &Range<u64>, layout: &impl Layout, out: &mut Vec<Action>) {
        let mut left = (self.frames.len() / 2) as u64;
        let mut page = pages.start;
        while page < pages.end && left > 0 && !self.failed && !self.one_by_one {
            let key = Key { space, page };
            let around = layout.around(key);
            let end = pages.end.min(around.end).min(page + self.config.run_max.min(left));
            let Source::Far(at) = layout.source(key) else { return };
            let lies = |&page: &u64| {
                let there = at.checked_add(page - key.page).map_or(Source::Elsewhere, Source::Far);
                self.frames.find(key.with(page)).is_none() && layout.source(key.with(page)) == there
            };
            let count = (page..end).take_while(lies).count();
            if count == 0 {
                page += 1;
                continue;
            }
            let room = self.make_room(count, layout, out).min(self.fetches_left()) as u64;
            if room == 0 {
                return;
            }
            self.stats.ahead.wanted += room;
            self.fetch_ahead(key, page..page + room, out);
            page += room;
            left -= room;
        }
    }

    fn do_not_need(&mut self, space: u32, pages: &Range<u64>, layout: &impl Layout, out: &mut Vec<Action>) {
        let mut victims = core::mem::take(&mut self.victims);
        victims.clear();
        for key in self.here(space, pages) {
            let Some(frame) = self.frames.find(key) else { continue };
            let page = self.frames.at(frame);
            let is_under_way = !matches!(page.busy, Busy::No | Busy::Writing { .. });
            if !is_under_way && page.mapped.is_some() && page.pins == 0 && !layout.stays(key) {
                victims.push((key, frame));
            }
        }
        self.victims = victims;
        self.deactivate(out);
        self.send(layout, out);
        for key in self.here(space, pages) {
            let Some(frame) = self.frames.find(key) else { continue };
            let page = self.frames.at(frame);
            if page.is_inactive() && !page.dirty && page.busy == Busy::No && page.pins == 0 {
                self.drop_page(frame, out);
            }
        }
    }

    /// Fetches pages that no thread waits for.
    fn fetch_ahead(&mut self, key: Key, run: Range<u64>, out: &mut Vec<Action>) {
        // `key` lies outside the run, so no page counts as waited for.
        self.begin_fetch(key.with(run.end), run, false, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::far::Far;
    use crate::{Ahead, Config, Outcome};
    use alloc::vec;

    const PAGES: u64 = 400;
    const FAR: Far = Far(PAGES);

    struct Window {
        cache: Cache,
        out: Vec<Action>,
    }

    impl Window {
        /// Creates a window of 64 frames and groups of four pages.
        fn new() -> Self {
            let usual = Config::of_streams(64, 8);
            let ahead = Ahead::Group(4);
            let cache = Cache::new(Config { inactive_apart: false, ahead, stream_writes: false, ..usual });
            Self { cache, out: Vec::new() }
        }

        fn advise(&mut self, pages: Range<u64>, advice: Advice) -> Vec<(u64, u64)> {
            self.cache.advise(0, pages, advice, &FAR, &mut self.out).unwrap();
            self.carry_out()
        }

        fn touch(&mut self, page: u64, write: bool) -> Vec<(u64, u64)> {
            self.cache.fault(Key { space: 0, page }, write, &FAR, &mut self.out);
            let mut fetched = self.carry_out();
            self.cache.turn(&FAR, &mut self.out);
            fetched.extend(self.carry_out());
            fetched
        }

        /// Carries all actions out at once. Returns the fetched runs, as first page and end.
        fn carry_out(&mut self) -> Vec<(u64, u64)> {
            let mut fetched = Vec::new();
            while !self.out.is_empty() {
                for action in core::mem::take(&mut self.out) {
                    match action {
                        Action::Fetch { op, first, count, .. } => {
                            fetched.push((first.page, first.page + u64::from(count)));
                            self.cache.fetched(op, Outcome::Done, &FAR, &mut self.out);
                        }
                        Action::WriteBack { op } => {
                            self.cache.written_back(op, Outcome::Done, &FAR, &mut self.out);
                        }
                        _ => {}
                    }
                }
            }
            self.cache.check();
            fetched
        }

        fn here(&self, pages: Range<u64>) -> usize {
            self.cache.here(0, &pages).len()
        }
    }

    /// The cache fetches groups where no advice was given, single pages of random ranges, and the longest
    /// runs of sequential ranges, up to the end of the range. Groups return when the advice is withdrawn.
    #[test]
    fn a_range_is_fetched_as_it_is_used() {
        let mut window = Window::new();
        assert_eq!(window.touch(5, false), [(4, 8)]);
        window.advise(100..200, Advice::Random);
        window.advise(200..220, Advice::Sequential);
        let [random, first, last] = [150, 200, 216].map(|page| window.touch(page, false));
        assert_eq!((random, first, last), (vec![(150, 151)], vec![(200, 208)], vec![(216, 220)]));
        window.advise(140..160, Advice::Normal);
        assert_eq!(window.touch(156, false), [(156, 160)]);
        assert_eq!(window.touch(130, false), [(130, 131)], "before the part that was taken back");
        assert_eq!(window.touch(170, false), [(170, 171)], "and behind it");
    }

    /// A scan of a sequential range evicts its own pages and no others.
    #[test]
    fn a_sequential_scan_keeps_what_others_use() {
        let mut window = Window::new();
        (0..20).for_each(|page| drop(window.touch(page, false)));
        window.advise(100..400, Advice::Sequential);
        (100..400).for_each(|page| drop(window.touch(page, false)));
        assert_eq!(window.here(0..20), 20);
    }

    /// Pages of `WillNeed` come in runs, once. Cached pages are not fetched again, and at most half of the
    /// frames are used. No thread waits.
    #[test]
    fn what_will_be_needed_comes_before_a_thread_waits() {
        let mut window = Window::new();
        window.touch(105, false);
        let fetched = window.advise(100..120, Advice::WillNeed);
        assert_eq!(fetched, [(100, 104), (108, 116), (116, 120)]);
        assert_eq!((window.here(100..120), window.cache.stats().missing), (20, 1));
        assert_eq!(window.advise(100..120, Advice::WillNeed), []);
        window.advise(200..400, Advice::WillNeed);
        assert_eq!(window.here(200..400), 32);
    }

    /// Cold pages are evicted before pages that came earlier. `DontNeed` pages are evicted at once, and dirty
    /// ones are written back.
    #[test]
    fn cold_pages_go_first_and_unneeded_ones_now() {
        let mut window = Window::new();
        (0..48).for_each(|page| drop(window.touch(page, false)));
        window.advise(40..48, Advice::Cold);
        (100..124).for_each(|page| drop(window.touch(page, false)));
        assert_eq!((window.here(0..40), window.here(40..48)), (40, 0), "{:?}", window.cache.stats());
        window.touch(3, true);
        let sent = window.cache.stats().pages_written_back;
        window.advise(0..40, Advice::DontNeed);
        assert_eq!(window.cache.stats().pages_written_back, sent + 1);
        window.advise(0..40, Advice::DontNeed);
        assert_eq!(window.here(0..40), 0);
    }

    /// Ranges beyond the limit are refused and change nothing; others are still accepted.
    #[test]
    fn ranges_have_a_bound() {
        let mut cache = Window::new().cache;
        let advise = |cache: &mut Cache, at: u64, advice| {
            cache.advise(0, 2 * at..2 * at + 1, advice, &FAR, &mut Vec::new())
        };
        let taken =
            (0..2 * ADVISED_MAX as u64).take_while(|&at| advise(&mut cache, at, Advice::Random).is_ok());
        let taken = taken.count();
        assert_eq!(taken, ADVISED_MAX - 1);
        assert_eq!(advise(&mut cache, 0, Advice::Sequential), Err(TooManyRanges));
        assert_eq!(advise(&mut cache, 0, Advice::Normal), Ok(()));
        assert_eq!(advise(&mut cache, 5000, Advice::Sequential), Ok(()));
    }
}
