//! Which neighbours of a page are prefetched: policies, which applications may replace by their own (SODA III-A).

use crate::{PageId, Recent};
use core::ops::Range;
use farmem_paging::Prefetch;

/// A process asked for a page.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The page.
    pub page: PageId,
    /// Pages of an entry.
    pub entry_pages: u64,
    /// It was here, or on its way.
    pub hit: bool,
    /// The pages that were asked for before, the latest first; this one is not among them.
    pub recent: &'a Recent,
}

impl Seen<'_> {
    /// The pages of the entry that has this page, and of so many behind it.
    #[must_use]
    pub const fn entries(&self, count: u64) -> Range<u64> {
        let first = self.page.page - self.page.page % self.entry_pages;
        first..first.saturating_add(self.entry_pages.saturating_mul(count))
    }
}

/// What to prefetch when a page is asked for: pages of the same object; whole entries that have one of them come. Those that are here, on their way, or beyond
/// the object's end are left out by the caller.
pub trait Policy: for<'a> Prefetch<Seen<'a>, Wanted = Range<u64>> {}

impl<P: for<'a> Prefetch<Seen<'a>, Wanted = Range<u64>>> Policy for P {}

/// The entry of each page that was not here: SODA's prefetcher (IV-C), which pays where programs use what lies together.
#[derive(Clone, Copy, Default, Debug)]
pub struct Neighbours;

impl Prefetch<Seen<'_>> for Neighbours {
    type Wanted = Range<u64>;

    fn propose(&mut self, seen: &Seen<'_>) -> Range<u64> {
        if seen.hit { 0..0 } else { seen.entries(1) }
    }
}

/// Nothing: for pages that are used once, or here and there.
#[derive(Clone, Copy, Default, Debug)]
pub struct Nothing;

impl Prefetch<Seen<'_>> for Nothing {
    type Wanted = Range<u64>;

    fn propose(&mut self, _: &Seen<'_>) -> Range<u64> {
        0..0
    }
}

/// An entry when there is evidence that more of it will be used: another page of it was asked for lately; and the next entry when the pages of this object come in
/// sequence, or at a stride that leads there.
#[derive(Clone, Copy, Default, Debug)]
pub struct Evidence;

/// Pages of an object that show a stride.
const STRIDES: usize = 3;
/// Pages of the recent list that are looked at for them.
const LOOKED_AT: usize = 32;

impl Evidence {
    /// The distance between the latest pages of the object, where it is the same each time.
    fn stride(seen: &Seen<'_>) -> Option<i64> {
        let mut latest = seen.recent.latest().take(LOOKED_AT).filter(|page| page.object == seen.page.object);
        let (mut page, mut stride) = (seen.page.page, None);
        for _ in 0..STRIDES {
            let before = latest.next()?.page;
            let step = page.wrapping_sub(before).cast_signed();
            if stride.is_some_and(|stride| stride != step) {
                return None;
            }
            (page, stride) = (before, Some(step));
        }
        stride.filter(|&stride| stride != 0)
    }
}

impl Prefetch<Seen<'_>> for Evidence {
    type Wanted = Range<u64>;

    fn propose(&mut self, seen: &Seen<'_>) -> Range<u64> {
        if let Some(stride) = Self::stride(seen) {
            // Where the stride will be an entry's length from here, in whole steps.
            let steps = (seen.entry_pages / stride.unsigned_abs()).max(1).cast_signed();
            let far = stride.checked_mul(steps).and_then(|far| seen.page.page.checked_add_signed(far));
            return match far {
                Some(far) if stride == 1 => seen.page.page..far.saturating_add(1),
                Some(far) => far..far.saturating_add(1),
                None => 0..0,
            };
        }
        let entry = seen.entries(1);
        let mut latest = seen.recent.latest().filter(|page| page.object == seen.page.object);
        let near = latest.any(|page| page.page != seen.page.page && entry.contains(&page.page));
        if near && !seen.hit { entry } else { 0..0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Asks for pages in turn, with entries of 16 pages; what is proposed for each.
    fn proposals(policy: &mut dyn Policy, pages: &[u64]) -> Vec<Range<u64>> {
        let mut recent = Recent::default();
        let mut proposals = Vec::new();
        for &page in pages {
            let page = PageId { object: 1, page };
            proposals.push(policy.propose(&Seen { page, entry_pages: 16, hit: false, recent: &recent }));
            recent.push(page);
            // Pages of other objects in between say nothing of this one.
            recent.push(PageId { object: 2, page: page.page * 31 });
        }
        proposals
    }

    #[test]
    fn neighbours_are_the_pages_entry() {
        assert_eq!(proposals(&mut Neighbours, &[5, 40]), [0..16, 32..48]);
    }

    /// A page alone brings nothing; the second of an entry brings that entry.
    #[test]
    fn scattered_pages_bring_nothing() {
        assert_eq!(proposals(&mut Evidence, &[5, 400, 90, 7]), [0..0, 0..0, 0..0, 0..16]);
    }

    /// From the fourth page on a sequence is one, and brings the entry ahead; so does a stride, also a descending one, and one that leaves the object at its begin
    /// brings nothing.
    #[test]
    fn sequences_and_strides_lead_on() {
        assert_eq!(proposals(&mut Evidence, &[32, 33, 34, 35])[3], 35..52);
        assert_eq!(proposals(&mut Evidence, &[100, 140, 180, 220])[3], 260..261);
        assert_eq!(proposals(&mut Evidence, &[100, 96, 92, 88])[3], 72..73);
        assert_eq!(proposals(&mut Evidence, &[90, 60, 30, 0])[3], 0..0);
    }
}
