//! Plain memory: a region that fits locally and is touched at random. The kernel serves it alone, and all its
//! pages count as resident.
//!
//! Key types: [`Plain`], the set of these pages; the part of [`Private`] that changes it. A page of zeros from the pager costs less
//! than one from the kernel if pages come in runs, and several times as much if each takes a fault of its own. So memory is watched
//! at first. When threads have touched zero pages at random for a while, the memory around becomes *plain*, if all of it fits into
//! the free frames. When a page needs frames, all plain pages are *taken over*: first they are watched, so no page appears unseen;
//! then the populated ones become the cache's, as dirty pages. The other order would lose pages that a thread touches in between.
//!
//! ```text
//!                  touched here and there, fits           frames are wanted, a fork, a move
//!   new: watched ------------------------------> plain ------------------------------------> watched
//!                                         (all counted)                             (what is here is counted)
//! ```

use super::table::{Entry, LocalCopy};
use super::{Private, Programs};
use crate::Key;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use farmem_wire::message::Access;

/// Divisor: this part of the frames for mapped pages stays free for the first faults beside plain memory.
const SLACK_SHARE: usize = 8;
/// Divisor: once plain memory had to give frames up, more becomes plain only if all resident pages fit into
/// this part of the frames. Otherwise they would come and go.
const CALM_SHARE: usize = 2;

/// Maximum factor of zero pages until memory that did not fit is examined again.
const PATIENCE_MAX: u32 = 64;

/// Zero pages of a process that came alone since the last ones that came together.
#[derive(Debug)]
struct SinglePages {
    count: u32,
    /// Factor of the initial threshold.
    patience: u32,
}

/// The set of plain pages.
#[derive(Default, Debug)]
pub(super) struct Plain {
    /// By space.
    single_pages: BTreeMap<u32, SinglePages>,
    /// End page by space and first page.
    spans: BTreeMap<(u32, u64), u64>,
    pages: u64,
}

impl Plain {
    pub(super) fn has(&self, key: Key) -> bool {
        self.within(key.space, key.page..key.page + 1).next().is_some()
    }

    /// Returns the plain parts of `pages`.
    pub(super) fn within(&self, space: u32, pages: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let before = self.spans.range((space, 0)..=(space, pages.start)).next_back();
        let first = before.map_or(pages.start, |(&(_, start), _)| start);
        let end = if pages.is_empty() { first } else { pages.end.max(first) };
        self.spans
            .range((space, first)..(space, end))
            .map(move |(&(_, start), &end)| start.max(pages.start)..end.min(pages.end))
            .filter(|part| !part.is_empty())
    }

    /// Returns the part of `around` that surrounds a page, up to the nearest plain pages.
    pub(super) fn cut(&self, Key { space, page }: Key, around: Range<u64>) -> Range<u64> {
        let start = self.within(space, around.start..page).last().map_or(around.start, |part| part.end);
        let end = self.within(space, page + 1..around.end).next().map_or(around.end, |part| part.start);
        start..end
    }

    /// Adds pages, none of which is plain yet.
    fn insert(&mut self, space: u32, pages: Range<u64>) {
        self.pages += pages.end - pages.start;
        self.spans.insert((space, pages.start), pages.end);
    }

    /// Removes a part that [`Plain::within`] returned.
    fn remove(&mut self, space: u32, part: &Range<u64>) {
        let (&(_, start), &end) = self
            .spans
            .range((space, 0)..=(space, part.start))
            .next_back()
            .expect("a plain part is in a span");
        assert!(part.end <= end, "a plain part is in one span");
        self.spans.remove(&(space, start));
        for rest in [start..part.start, part.end..end] {
            if !rest.is_empty() {
                self.spans.insert((space, rest.start), rest.end);
            }
        }
        self.pages -= part.end - part.start;
    }

    fn all(&self) -> Vec<(u32, Range<u64>)> {
        self.spans.iter().map(|(&(space, start), &end)| (space, start..end)).collect()
    }

    pub(super) const fn pages(&self) -> u64 {
        self.pages
    }
}

impl Private {
    /// Enables plain memory, after this many consecutive zero pages that came alone. Without this call no
    /// memory becomes plain.
    pub const fn allow_plain(&mut self, single_pages: u32) {
        self.single_pages = Some(single_pages);
    }

    /// Handles a touch of a zero page, which came `alone` or with others. After enough lone ones the memory
    /// around becomes plain.
    pub(super) fn touched_zeros(&mut self, key: Key, alone: bool, programs: &mut impl Programs) {
        let Some(enough) = self.single_pages else { return };
        let of =
            self.book.plain.single_pages.entry(key.space).or_insert(SinglePages { count: 0, patience: 1 });
        of.count = if alone { of.count + 1 } else { 0 };
        if of.count < enough * of.patience {
            return;
        }
        // The search for memory that fits must not cost much more than it gains.
        *of = SinglePages { count: 0, patience: (2 * of.patience).min(PATIENCE_MAX) };
        if self.hand_over(key, programs)
            && let Some(of) = self.book.plain.single_pages.get_mut(&key.space)
        {
            of.patience = 1;
        }
    }

    /// Makes the memory around a page plain, if each page is mapped by its program alone or nowhere. Returns
    /// false if it does not fit.
    fn hand_over(&mut self, key: Key, programs: &mut impl Programs) -> bool {
        let Some(around) = programs.around(key) else { return false };
        let Range { mut start, mut end } = self.book.plain.cut(key, around);
        let most = self.frames_of_programs() as u64;
        if end - start > most {
            return false;
        }
        let mut here = Vec::new();
        for (page, entry) in self.book.tables[&key.space].all(start..end) {
            let of = Key { page, ..key };
            let is_simple = entry == Entry { slot: None, here: LocalCopy::Program }
                && self.cache.access(of) == Some(Access::Modified)
                && !programs.stays(of);
            if is_simple {
                here.push(page);
            } else if page < key.page {
                start = page + 1;
                here.clear();
            } else {
                end = page;
                break;
            }
        }
        let more = (end.saturating_sub(start)).saturating_sub(here.len() as u64);
        if more == 0 || !self.fits(more) || !programs.unwatch(key.space, start..end) {
            return false;
        }
        self.cache.remove(key.space, start..end);
        here.into_iter().for_each(|page| self.book.set(Key { page, ..key }, Entry::NOWHERE));
        self.book.plain.insert(key.space, start..end);
        self.stats_plain.handed_over += end - start;
        self.count_plain();
        // Threads that wait there for room have it now.
        programs.wake(key.space, start..end);
        true
    }

    /// Handles the unmapping of forgotten pages. Plain ones are watched again, unless another mapping is
    /// there by now.
    pub fn unmap(&mut self, space: u32, pages: Range<u64>, is_ours: bool, programs: &mut impl Programs) {
        let parts: Vec<Range<u64>> = self.book.plain.within(space, pages).collect();
        for part in parts {
            if !is_ours || programs.watch(space, part.clone()) {
                self.book.plain.remove(space, &part);
            }
        }
        self.count_plain();
    }

    /// Takes over the plain pages of a range. Returns false if the kernel refused; the rest still counts as
    /// plain.
    pub fn take_over(&mut self, space: u32, pages: Range<u64>, programs: &mut impl Programs) -> bool {
        let parts: Vec<Range<u64>> = self.book.plain.within(space, pages).collect();
        for part in parts {
            // Watch first: from here on every page comes through the pager.
            if !programs.watch(space, part.clone()) {
                return false;
            }
            self.book.plain.remove(space, &part);
            self.count_plain();
            for run in programs.populated(space, part.clone()) {
                assert!(part.start <= run.start && run.end <= part.end, "{run:?} lies in {part:?}");
                for page in run {
                    let key = Key { space, page };
                    self.cache.adopt(key);
                    self.book.set(key, Entry { slot: None, here: LocalCopy::Program });
                    self.stats_plain.taken_over += 1;
                }
            }
        }
        true
    }

    /// Returns the counters of plain memory.
    #[must_use]
    pub const fn plain(&self) -> PlainStats {
        self.stats_plain
    }

    pub(super) fn take_over_all(&mut self, programs: &mut impl Programs) {
        for (space, pages) in self.book.plain.all() {
            self.was_pressed = true;
            self.take_over(space, pages, programs);
        }
    }

    /// Takes plain memory over if a page that comes may need its frames.
    pub(super) fn press(&mut self, programs: &mut impl Programs) {
        if self.book.plain.pages() > 0 && self.cache.room() < self.slack() {
            self.take_over_all(programs);
        }
    }

    pub(super) fn forget_plain(&mut self, space: u32) {
        let parts: Vec<Range<u64>> = self.book.plain.within(space, 0..u64::MAX).collect();
        parts.iter().for_each(|part| self.book.plain.remove(space, part));
        self.book.plain.single_pages.remove(&space);
        self.count_plain();
    }

    fn fits(&self, count: u64) -> bool {
        let (most, room) = (self.frames_of_programs(), self.cache.room());
        let kept = if self.was_pressed { most - most / CALM_SHARE } else { 0 };
        usize::try_from(count).is_ok_and(|count| count + self.slack().max(kept) <= room)
    }

    fn slack(&self) -> usize {
        let run = usize::try_from(self.cache.config().run_max).unwrap_or(usize::MAX);
        run.min(self.frames_of_programs() / SLACK_SHARE).max(1)
    }

    const fn frames_of_programs(&self) -> usize {
        let config = self.cache.config();
        config.frames - config.inactive_max
    }

    fn count_plain(&mut self) {
        let pages = usize::try_from(self.book.plain.pages()).expect("no more than there are frames");
        self.cache.set_aside(pages);
    }
}

/// Counters of plain memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PlainStats {
    /// Pages that became plain, touched or not.
    pub handed_over: u64,
    /// Pages that were resident when they were taken over.
    pub taken_over: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// The set behaves like a plain list of pages.
        #[test]
        fn as_a_list_of_pages(steps in proptest::collection::vec((any::<bool>(), 0_u64..40, 1_u64..12, 1_u32..3), 1..60)) {
            let mut plain = Plain::default();
            let mut list: BTreeSet<(u32, u64)> = BTreeSet::new();
            for (comes, start, count, space) in steps {
                let pages = start..start + count;
                let parts: Vec<Range<u64>> = plain.within(space, pages.clone()).collect();
                let listed: Vec<u64> = pages.clone().filter(|&page| list.contains(&(space, page))).collect();
                prop_assert_eq!(parts.iter().cloned().flatten().collect::<Vec<_>>(), listed);
                parts.iter().for_each(|part| plain.remove(space, part));
                list.retain(|&(of, page)| of != space || !pages.contains(&page));
                if comes {
                    plain.insert(space, pages.clone());
                    list.extend(pages.map(|page| (space, page)));
                }
                prop_assert_eq!(plain.pages(), list.len() as u64);
                for page in 0..52 {
                    let key = Key { space, page };
                    prop_assert_eq!(plain.has(key), list.contains(&(space, page)));
                    if !plain.has(key) {
                        let free = |page: &u64| !list.contains(&(space, *page));
                        let end = (page..50.max(page + 1)).take_while(free).last().expect("itself") + 1;
                        let start = (2.min(page)..=page).rev().take_while(free).last().expect("itself");
                        prop_assert_eq!(plain.cut(key, 2.min(page)..50.max(page + 1)), start..end);
                    }
                }
            }
        }
    }
}
