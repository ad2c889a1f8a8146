//! Policies that decide which neighbours of a page are prefetched. Applications may replace them by their own
//! (SODA III-A).

use crate::{PageId, Recent};
use core::ops::Range;
use farmem_paging::Prefetch;

/// A request for a page, as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct PageAccess<'a> {
    /// The page.
    pub page: PageId,
    /// Pages of an entry.
    pub entry_pages: u64,
    /// True if the page was resident or in flight.
    pub hit: bool,
    /// The pages requested before, the latest first, without this one.
    pub recent: &'a Recent,
}

impl PageAccess<'_> {
    /// Returns the pages of the entry that has this page, and of the entries behind it, `count` in all.
    #[must_use]
    pub const fn entries(&self, count: u64) -> Range<u64> {
        let first = self.page.page - self.page.page % self.entry_pages;
        first..first.saturating_add(self.entry_pages.saturating_mul(count))
    }
}

/// A policy that proposes pages of the same object after a request. All entries with a proposed page are
/// fetched. The caller omits those that are resident, in flight, or beyond the object's end.
pub trait Policy: for<'a> Prefetch<PageAccess<'a>, Proposal = Range<u64>> {}

impl<P: for<'a> Prefetch<PageAccess<'a>, Proposal = Range<u64>>> Policy for P {}

/// A policy that fetches the entry of each missed page: SODA's prefetcher (IV-C), for programs with spatial
/// locality.
#[derive(Clone, Copy, Default, Debug)]
pub struct Neighbours;

impl Prefetch<PageAccess<'_>> for Neighbours {
    type Proposal = Range<u64>;

    fn propose(&mut self, access: &PageAccess<'_>) -> Range<u64> {
        if access.hit { 0..0 } else { access.entries(1) }
    }
}

/// A policy that fetches nothing, for pages that are used once or at random.
#[derive(Clone, Copy, Default, Debug)]
pub struct Nothing;

impl Prefetch<PageAccess<'_>> for Nothing {
    type Proposal = Range<u64>;

    fn propose(&mut self, _: &PageAccess<'_>) -> Range<u64> {
        0..0
    }
}

/// A policy that fetches an entry if more of it is likely to be used: another page of it was requested lately. The
/// policy fetches the next entry if the pages of this object come in sequence, or at a stride that leads there.
#[derive(Clone, Copy, Default, Debug)]
pub struct Evidence;

/// Number of equal distances that show a stride.
const STRIDES: usize = 3;
/// Number of recent pages examined for a stride.
const LOOKED_AT: usize = 32;

impl Evidence {
    /// Returns the distance between the latest pages of the object, if it is constant.
    fn stride(access: &PageAccess<'_>) -> Option<i64> {
        let mut latest =
            access.recent.latest().take(LOOKED_AT).filter(|page| page.object == access.page.object);
        let (mut page, mut stride) = (access.page.page, None);
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

impl Prefetch<PageAccess<'_>> for Evidence {
    type Proposal = Range<u64>;

    fn propose(&mut self, access: &PageAccess<'_>) -> Range<u64> {
        if let Some(stride) = Self::stride(access) {
            // The page about an entry's length ahead, in whole strides.
            let steps = (access.entry_pages / stride.unsigned_abs()).max(1).cast_signed();
            let far = stride.checked_mul(steps).and_then(|far| access.page.page.checked_add_signed(far));
            return match far {
                Some(far) if stride == 1 => access.page.page..far.saturating_add(1),
                Some(far) => far..far.saturating_add(1),
                None => 0..0,
            };
        }
        let entry = access.entries(1);
        let mut latest = access.recent.latest().filter(|page| page.object == access.page.object);
        let near = latest.any(|page| page.page != access.page.page && entry.contains(&page.page));
        if near && !access.hit { entry } else { 0..0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Requests pages in turn, with entries of 16 pages. Returns the proposals.
    fn proposals(policy: &mut dyn Policy, pages: &[u64]) -> Vec<Range<u64>> {
        let mut recent = Recent::default();
        let mut proposals = Vec::new();
        for &page in pages {
            let page = PageId { object: 1, page };
            proposals.push(policy.propose(&PageAccess {
                page,
                entry_pages: 16,
                hit: false,
                recent: &recent,
            }));
            recent.push(page);
            // Pages of other objects in between do not matter.
            recent.push(PageId { object: 2, page: page.page * 31 });
        }
        proposals
    }

    #[test]
    fn neighbours_are_the_pages_entry() {
        assert_eq!(proposals(&mut Neighbours, &[5, 40]), [0..16, 32..48]);
    }

    /// A lone page fetches nothing; the second page of an entry fetches the entry.
    #[test]
    fn scattered_pages_bring_nothing() {
        assert_eq!(proposals(&mut Evidence, &[5, 400, 90, 7]), [0..0, 0..0, 0..0, 0..16]);
    }

    /// From its fourth page on a sequence fetches the entry ahead, and so does a stride in either direction.
    /// A stride that leaves the object at its beginning fetches nothing.
    #[test]
    fn sequences_and_strides_lead_on() {
        assert_eq!(proposals(&mut Evidence, &[32, 33, 34, 35])[3], 35..52);
        assert_eq!(proposals(&mut Evidence, &[100, 140, 180, 220])[3], 260..261);
        assert_eq!(proposals(&mut Evidence, &[100, 96, 92, 88])[3], 72..73);
        assert_eq!(proposals(&mut Evidence, &[90, 60, 30, 0])[3], 0..0);
    }
}
