//! Static caching (SODA III-A): ranges that an application named, resident in the DPU's memory for as long as
//! it likes.

use alloc::collections::BTreeMap;
use core::ops::Range;

/// Pages of objects in static memory. These pages are read-only, so they need no upkeep.
#[derive(Debug, Default)]
pub(crate) struct Fixed {
    /// The resident pages of each object.
    ranges: BTreeMap<u32, rangemap::RangeSet<u64>>,
    /// Number of pages that are resident or in flight.
    taken: u64,
}

impl Fixed {
    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    /// Reserves room for pages in flight.
    pub(crate) const fn take(&mut self, pages: u64) {
        self.taken += pages;
    }

    /// Releases the room of pages that did not arrive.
    pub(crate) const fn give_back(&mut self, pages: u64) {
        self.taken -= pages;
    }

    pub(crate) fn came(&mut self, object: u32, pages: Range<u64>) {
        self.ranges.entry(object).or_default().insert(pages);
    }

    pub(crate) fn has(&self, object: u32, page: u64) -> bool {
        self.ranges.get(&object).is_some_and(|ranges| ranges.contains(&page))
    }

    /// Returns true if a page of the range is resident.
    pub(crate) fn overlaps(&self, object: u32, pages: &Range<u64>) -> bool {
        self.ranges.get(&object).is_some_and(|ranges| ranges.overlaps(pages))
    }

    /// Returns the number of resident pages.
    pub(crate) fn here(&self) -> u64 {
        self.ranges.values().flat_map(|ranges| ranges.iter()).map(|range| range.end - range.start).sum()
    }

    pub(crate) fn forget(&mut self, object: u32) {
        let Some(ranges) = self.ranges.remove(&object) else { return };
        self.taken -= ranges.iter().map(|range| range.end - range.start).sum::<u64>();
    }
}
