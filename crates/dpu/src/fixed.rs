//! Static caching (SODA III-A): ranges that an application named, which are in the DPU's memory as long as it likes.

use alloc::collections::BTreeMap;
use core::ops::Range;

/// Pages of objects that stay. They are read alone, so they need no upkeep.
#[derive(Debug, Default)]
pub(crate) struct Fixed {
    /// By object: the pages that are here, as disjoint ranges by their first page.
    ranges: BTreeMap<u32, rangemap::RangeSet<u64>>,
    /// Pages that are here or on their way.
    taken: u64,
}

impl Fixed {
    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    /// So many pages are on their way.
    pub(crate) const fn take(&mut self, pages: u64) {
        self.taken += pages;
    }

    /// They did not come.
    pub(crate) const fn give_back(&mut self, pages: u64) {
        self.taken -= pages;
    }

    pub(crate) fn came(&mut self, object: u32, pages: Range<u64>) {
        self.ranges.entry(object).or_default().insert(pages);
    }

    pub(crate) fn has(&self, object: u32, page: u64) -> bool {
        self.ranges.get(&object).is_some_and(|ranges| ranges.contains(&page))
    }

    /// True when a page of the range is here.
    pub(crate) fn overlaps(&self, object: u32, pages: &Range<u64>) -> bool {
        self.ranges.get(&object).is_some_and(|ranges| ranges.overlaps(pages))
    }

    /// Pages that are here.
    pub(crate) fn here(&self) -> u64 {
        self.ranges.values().flat_map(|ranges| ranges.iter()).map(|range| range.end - range.start).sum()
    }

    pub(crate) fn forget(&mut self, object: u32) {
        let Some(ranges) = self.ranges.remove(&object) else { return };
        self.taken -= ranges.iter().map(|range| range.end - range.start).sum::<u64>();
    }
}
