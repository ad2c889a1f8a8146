//! Traces of known shape under plain LRU: which of them thrash, and the number of frames recommended for
//! each.

use super::*;
use alloc::collections::VecDeque;
use proptest::prelude::*;

/// LRU with `frames` frames under a trace. All pages exist before, as if the program had written them.
struct Lru {
    here: VecDeque<u64>,
    frames: usize,
    refaults: Refaults,
    fetched: u64,
}

impl Lru {
    fn new(frames: usize) -> Self {
        Self { here: VecDeque::new(), frames, refaults: Refaults::new(frames), fetched: 0 }
    }

    fn touch(&mut self, page: u64) {
        match self.here.iter().position(|&at| at == page) {
            Some(at) => {
                self.here.remove(at);
            }
            None => {
                self.fetched += 1;
                self.refaults.fetched(1, page..page + 1);
                if self.here.len() == self.frames
                    && let Some(page) = self.here.pop_front()
                {
                    self.refaults.evicted(Key { space: 1, page });
                }
            }
        }
        self.here.push_back(page);
    }

    /// Returns the recommended frames in per cent of the present ones.
    fn wanted(&self) -> Option<u64> {
        self.refaults.frames_wanted().map(|frames| frames * 100 / self.frames as u64)
    }
}

/// A fixed random sequence of pages below `count`.
fn random(count: u64) -> impl Iterator<Item = u64> {
    let next = |&state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    core::iter::successors(Some(1_u64), next).map(move |state| (state >> 33) % count)
}

/// A cyclic scan over four times the frames: each page comes again, and four times the frames keep all of
/// them.
#[test]
fn a_cyclic_scan_wants_all_of_it() {
    for frames in [64, 500, 6000] {
        let mut lru = Lru::new(frames);
        for _ in 0..6 {
            (0..4 * frames as u64).for_each(|page| lru.touch(page));
        }
        let wanted = lru.wanted().expect("it thrashes");
        assert!((390..=425).contains(&wanted), "{frames} frames: {wanted} %");
        let all = 5 * 4 * frames as u64;
        assert!(lru.refaults.count().abs_diff(all) < all / 20, "{} of {all}", lru.refaults.count());
    }
}

/// The state follows the program: it thrashes from the fourth window of a cyclic scan on, and no longer after a
/// window of new pages. The recommendation stays.
#[test]
fn thrashing_begins_and_ends() {
    let mut lru = Lru::new(100);
    (0..400).for_each(|page| lru.touch(page));
    let mut states = Vec::new();
    for page in 0..400 {
        lru.touch(page);
        if page % 100 == 99 {
            states.push(lru.refaults.is_thrashing());
        }
    }
    assert_eq!(states, [false, false, false, true]);
    (1000..1100).for_each(|page| lru.touch(page));
    assert_eq!((lru.refaults.is_thrashing(), lru.wanted().is_some()), (false, true));
}

/// Uniform random touches over four times the frames: three of four refaults lie within three quarters of the
/// way from one to four times.
#[test]
fn random_touches_want_three_quarters_of_the_rest() {
    for frames in [64, 500, 6000] {
        let mut lru = Lru::new(frames);
        random(4 * frames as u64).take(40 * frames).for_each(|page| lru.touch(page));
        let wanted = lru.wanted().expect("it thrashes");
        assert!((300..=350).contains(&wanted), "{frames} frames: {wanted} %");
    }
}

/// Nine of ten touches go to twice the frames, the others far away: the recommendation is about the hot set,
/// not everything.
#[test]
fn a_hot_set_is_found_among_cold_pages() {
    let frames = 500;
    let mut lru = Lru::new(frames);
    let (hot, cold) = (2 * frames as u64, 40 * frames as u64);
    for (n, page) in random(hot * cold).take(60 * frames).enumerate() {
        lru.touch(if n % 10 == 0 { hot + page / hot } else { page % hot });
    }
    let wanted = lru.wanted().expect("it thrashes");
    assert!((180..=320).contains(&wanted), "{wanted} %");
}

/// One-time reads, sets that fit, and refaults after a long time do not thrash.
#[test]
fn what_more_frames_would_not_help_does_not_thrash() {
    let mut once = Lru::new(100);
    (0..10_000).for_each(|page| once.touch(page));
    assert_eq!((once.wanted(), once.refaults.count()), (None, 0));
    let mut fits = Lru::new(100);
    random(100).take(10_000).for_each(|page| fits.touch(page));
    assert_eq!((fits.wanted(), fits.fetched), (None, 100));
    let mut ages = Lru::new(100);
    for _ in 0..5 {
        (0..5_000).for_each(|page| ages.touch(page));
    }
    assert_eq!((ages.wanted(), ages.refaults.count()), (None, 0));
}

/// A burst is not thrashing: three consecutive windows are not four.
#[test]
fn a_burst_does_not_thrash() {
    let mut lru = Lru::new(100);
    for round in 0..8 {
        (0..200).for_each(|page| lru.touch(page));
        (0..400).for_each(|page| lru.touch(1000 * (round + 1) + page));
    }
    assert_eq!(lru.wanted(), None);
    assert!(lru.refaults.count() > 0);
}

/// Pages that are unmapped or renamed are not mistaken for others.
#[test]
fn names_that_end_do_not_come_again() {
    let key = |page| Key { space: 1, page };
    let mut refaults = Refaults::new(4);
    (0..8).for_each(|page| refaults.evicted(key(page)));
    refaults.forget(1, 2..4);
    refaults.forget(1, 6..6);
    refaults.rename(key(7), key(20));
    refaults.fetched(1, 2..4);
    refaults.fetched(1, 7..8);
    refaults.fetched(2, 0..8);
    assert_eq!(refaults.count(), 0);
    refaults.fetched(1, 20..21);
    refaults.fetched(1, 0..1);
    assert_eq!(refaults.count(), 2);
}

proptest! {
    /// While all pages are sampled, the distance is the number of later evictions that have not come again,
    /// as in a plain list.
    #[test]
    fn as_a_plain_list(steps in proptest::collection::vec((any::<bool>(), 0_u64..30), 1..300)) {
        let mut ghosts = Ghosts::default();
        let mut plain: Vec<u64> = Vec::new();
        for (goes, page) in steps {
            let key = Key { space: 3, page };
            let at = plain.iter().position(|&of| of == page);
            if goes {
                at.map(|at| plain.remove(at));
                plain.push(page);
                ghosts.put(key);
            } else {
                let behind = at.map(|at| (plain.len() - 1 - at) as u64);
                at.map(|at| plain.remove(at));
                prop_assert_eq!(ghosts.take(key), behind);
            }
            prop_assert_eq!(ghosts.stand_for(), plain.len() as u64);
        }
    }
}

/// Places are used up and compacted; entries outgrow the limit and are sampled.
#[test]
fn what_is_kept_has_a_bound() {
    let mut ghosts = Ghosts::default();
    for page in 0..20 * GHOSTS_MAX as u64 {
        ghosts.put(Key { space: 1, page });
        assert!(ghosts.places.len() <= GHOSTS_MAX && ghosts.order.len() <= 2 * GHOSTS_MAX);
    }
    let (all, told) = (20 * GHOSTS_MAX as u64, ghosts.stand_for());
    assert!(told.abs_diff(all) < all / 10, "{told} of {all}");
    ghosts.remove_oldest();
    assert!(ghosts.stand_for() < told);
}
