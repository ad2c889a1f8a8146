//! Leap's prefetcher: the majority among the latest distances between pages, and a window that grows with its
//! hits (Leap, ATC'20, algorithms 1 and 2; PD3's fall-back, 4).
//!
//! Key type: [`Leap`], a [`Policy`](crate::Policy). The policy needs only the requested pages, so it serves requests
//! whose keys no parser can name. Isolated distances do not end a trend: fewer than half of all distances may be
//! arbitrary. Leap does not follow two trends of one object at once.

use crate::policy::PageAccess;
use core::ops::Range;
use farmem_paging::Prefetch;

/// Number of remembered distances (Leap: `Hsize`).
const HISTORY_LEN: usize = 32;
/// Length of the first part that is searched for a majority (Leap: `Nsplit` is 2 and doubles the other way
/// round).
const FIRST_LEN: usize = HISTORY_LEN / 2;
/// Maximum number of pages of the window (Leap: `PWsize_max`).
const WINDOW_MAX: u64 = 8;

/// The prefetch policy of one object.
#[derive(Clone, Debug)]
pub struct Leap {
    /// The latest page.
    page: Option<u64>,
    /// A ring of distances; `next` is the oldest once it is full.
    distances: [i64; HISTORY_LEN],
    known: usize,
    next: usize,
    /// The window proposed last, and hits since.
    window: u64,
    hits: u64,
    /// The last trend.
    trend: Option<i64>,
}

impl Default for Leap {
    fn default() -> Self {
        Self { page: None, distances: [0; HISTORY_LEN], known: 0, next: 0, window: 0, hits: 0, trend: None }
    }
}

impl Leap {
    /// Records a page.
    fn see(&mut self, page: u64) {
        if let Some(before) = self.page.replace(page) {
            self.distances[self.next] = page.wrapping_sub(before).cast_signed();
            self.next = (self.next + 1) % HISTORY_LEN;
            self.known = (self.known + 1).min(HISTORY_LEN);
        }
    }

    /// Returns the latest distances, the latest first.
    fn latest(&self, count: usize) -> impl Iterator<Item = i64> {
        (1..=count.min(self.known)).map(|back| self.distances[(self.next + HISTORY_LEN - back) % HISTORY_LEN])
    }

    /// Returns the distance that more than half of the latest ones have: among few, or else among more (Leap,
    /// algorithm 1).
    fn find_trend(&self) -> Option<i64> {
        let mut len = FIRST_LEN;
        while len <= HISTORY_LEN {
            let (mut candidate, mut votes) = (0, 0_usize);
            // Boyer and Moore: each differing distance cancels a vote.
            for distance in self.latest(len) {
                if votes == 0 {
                    candidate = distance;
                }
                if distance == candidate {
                    votes += 1;
                } else {
                    votes -= 1;
                }
            }
            let count = self.latest(len).filter(|&distance| distance == candidate).count();
            if count > len.min(self.known) / 2 && count > 1 && candidate != 0 {
                return Some(candidate);
            }
            len *= 2;
        }
        None
    }

    /// Returns the number of pages to fetch (Leap, algorithm 2): none without hits, unless the page follows
    /// the trend; otherwise about twice the number of hits.
    fn size_window(&mut self, follows: bool) -> u64 {
        let size = match self.hits {
            0 => u64::from(follows),
            hits => (hits + 1).next_power_of_two().min(WINDOW_MAX),
        };
        // The window shrinks step by step.
        self.window = size.max(self.window / 2);
        self.hits = 0;
        self.window
    }
}

impl Prefetch<PageAccess<'_>> for Leap {
    type Proposal = Range<u64>;

    fn propose(&mut self, access: &PageAccess<'_>) -> Range<u64> {
        let page = access.page.page;
        self.see(page);
        if access.hit {
            self.hits += 1;
            return 0..0;
        }
        let latest = self.latest(1).next();
        let trend = self.find_trend();
        let follows = trend.is_some() && trend == latest;
        let window = self.size_window(follows);
        // Without a majority the last trend is tried, as long as there are hits.
        self.trend = trend.or(self.trend);
        let Some(step) = self.trend.filter(|_| window > 0) else { return 0..0 };
        // Pages of one entry are fetched together anyway.
        let within = (access.entry_pages / step.unsigned_abs()).clamp(1, window);
        let far = step.checked_mul(within.cast_signed()).and_then(|far| page.checked_add_signed(far));
        let near = page.checked_add_signed(step);
        match (near, far) {
            (Some(near), Some(far)) => near.min(far)..near.max(far).saturating_add(1),
            (Some(near), None) => near..near.saturating_add(1),
            _ => 0..0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PageId, Recent};
    use std::vec::Vec;

    /// Requests pages in turn; those proposed before are hits.
    fn proposals(leap: &mut Leap, pages: &[u64]) -> Vec<Range<u64>> {
        let (recent, mut here) = (Recent::default(), Vec::new());
        let propose = |&page: &u64| {
            let hit = here.iter().any(|range: &Range<u64>| range.contains(&page));
            let page = PageId { object: 1, page };
            let proposal = leap.propose(&PageAccess { page, entry_pages: 16, hit, recent: &recent });
            here.push(proposal.clone());
            proposal
        };
        pages.iter().map(propose).collect()
    }

    /// A sequence: from its third page on the next page is fetched, and the window grows with its use, up to
    /// the maximum.
    #[test]
    fn a_sequence_gets_longer_windows() {
        let all = proposals(&mut Leap::default(), &(10..40).collect::<Vec<_>>());
        assert_eq!(all[..3], [0..0, 0..0, 13..14]);
        let lens: Vec<u64> = all.iter().map(|range| range.end - range.start).filter(|&len| len > 0).collect();
        assert_eq!(lens, [1, 2, 4, 8, 8]);
    }

    /// A stride in either direction is found although every third page is arbitrary.
    #[test]
    fn a_trend_outlives_what_is_no_part_of_it() {
        for step in [3_i64, -3] {
            let mut pages = Vec::new();
            for n in 0..30_u64 {
                pages.push(1_000_u64.checked_add_signed(step * n.cast_signed()).unwrap());
            }
            let mut leap = Leap::default();
            proposals(&mut leap, &pages);
            assert_eq!(leap.find_trend(), Some(step));
            for (n, noise) in [5_u64, 99_999, 12].into_iter().enumerate() {
                leap.see(noise);
                leap.see(2_000 + n as u64);
                assert_eq!(leap.find_trend(), Some(step), "{n} jumps");
            }
        }
    }

    /// Random pages have no trend: nothing is fetched for them (PD3 8.2: "does not prefetch at all to prevent
    /// cache pollution").
    #[test]
    fn pages_here_and_there_bring_nothing() {
        let mut rng = farmem_machine::Rng::from_number(7);
        let pages: Vec<u64> = (0..500).map(|_| rng.next_u64() >> 20).collect();
        assert!(proposals(&mut Leap::default(), &pages).iter().all(Range::is_empty));
    }

    /// The first and the last possible pages do not overflow.
    #[test]
    fn the_ends_of_an_object_are_borne() {
        for pages in [&[9, 6, 3, 0][..], &[u64::MAX - 2, u64::MAX - 1, u64::MAX], &[0, u64::MAX, 0, u64::MAX]]
        {
            proposals(&mut Leap::default(), pages);
        }
    }
}
