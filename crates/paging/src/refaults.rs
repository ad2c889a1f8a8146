//! Refault statistics: pages fetched again soon after their eviction, and the number of frames that would
//! have kept them. Pure.
//!
//! Key type: [`Refaults`]. An evicted page leaves a ghost entry behind, like a shadow entry in Linux
//! (`mm/workingset.c`). When the page comes again, its stack distance (Mattson et al., 1970) is the number of
//! frames plus the number of pages that were evicted after it and have not come again. That many frames would
//! have kept it under LRU. Many evicted pages are sampled by a hash of their key, at a rate that falls as
//! they grow more, and each sample stands for the inverse of the rate (SHARDS, Waldspurger et al., FAST
//! 2015). So memory is bounded, and a page costs a hash.
//!
//! The statistics do not measure time: a long computation between two faults does not matter.

use crate::Key;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// Maximum number of ghost entries. Beyond it half of them are dropped and the rate is halved.
const GHOSTS_MAX: usize = 4096;
/// Maximum distance that counts, as a multiple of the frames.
const MULTIPLE_MAX: u64 = 16;
/// Resolution of distances: steps per multiple of the frames.
const STEPS: u64 = 8;
/// Number of consecutive windows after which the program thrashes, if at least half of the pages fetched in
/// each are refaults. A window is as many fetched pages as there are frames.
const WINDOWS: u32 = 4;
/// The part of all refaults that the recommended number of frames avoids: three of four.
const KEPT: [u64; 2] = [3, 4];

/// Refault counts and distances.
#[derive(Debug)]
pub struct Refaults {
    frames: u64,
    ghosts: Ghosts,
    /// Pages fetched, and those that are refaults.
    fetched: u64,
    again: u64,
    /// Both counts of the current window.
    window: [u64; 2],
    in_a_row: u32,
    thrashes: bool,
    /// Refaults by distance in steps.
    distances: Vec<u64>,
}

impl Refaults {
    /// Returns empty statistics for a cache of `frames` frames.
    #[must_use]
    pub fn new(frames: usize) -> Self {
        let steps = usize::try_from(MULTIPLE_MAX * STEPS + 1).expect("a small number");
        Self {
            frames: frames as u64,
            ghosts: Ghosts::default(),
            fetched: 0,
            again: 0,
            window: [0; 2],
            in_a_row: 0,
            thrashes: false,
            distances: vec![0; steps],
        }
    }

    /// Records an eviction.
    pub fn evicted(&mut self, key: Key) {
        self.ghosts.put(key);
        while self.ghosts.stand_for() > (MULTIPLE_MAX - 1) * self.frames {
            self.ghosts.remove_oldest();
        }
    }

    /// Records the fetch of pages.
    pub fn fetched(&mut self, space: u32, pages: Range<u64>) {
        for page in pages {
            self.fetched += 1;
            self.window[0] += 1;
            let Some(behind) = self.ghosts.take(Key { space, page }) else { continue };
            let weight = self.ghosts.weight();
            self.again += weight;
            self.window[1] += weight;
            let step = ((self.frames + behind) * STEPS).div_ceil(self.frames);
            let last = self.distances.len() - 1;
            self.distances[usize::try_from(step).map_or(last, |step| step.min(last))] += weight;
        }
        if self.window[0] >= self.frames {
            let [fetched, again] = core::mem::take(&mut self.window);
            self.in_a_row = if 2 * again >= fetched { self.in_a_row + 1 } else { 0 };
            self.thrashes |= self.in_a_row >= WINDOWS;
        }
    }

    /// Forgets pages that were unmapped; later pages with these keys are others.
    pub fn forget(&mut self, space: u32, pages: Range<u64>) {
        self.ghosts.forget(space, pages);
    }

    /// Records that a page changed its key.
    pub fn rename(&mut self, key: Key, to: Key) {
        self.ghosts.rename(key, to);
    }

    /// Returns the number of refaults. An estimate when many pages are evicted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.again.min(self.fetched)
    }

    /// Returns true while the program thrashes: at the end of the latest window, and since enough windows.
    #[must_use]
    pub const fn is_thrashing(&self) -> bool {
        self.in_a_row >= WINDOWS
    }

    /// Returns the number of frames that would have avoided three of four refaults, if the program thrashes
    /// or did.
    #[must_use]
    pub fn frames_wanted(&self) -> Option<u64> {
        let all: u64 = self.distances.iter().sum();
        let mut kept = 0;
        let enough = |of_step: &u64| {
            kept += of_step;
            kept * KEPT[1] >= all * KEPT[0]
        };
        let step = self.distances.iter().position(enough).filter(|_| self.thrashes)?;
        Some((self.frames * step as u64).div_ceil(STEPS))
    }
}

/// Upper bound of all hashes.
const HASHES: u64 = 1 << 32;

/// Ghost entries of evicted pages, sampled, in the order of eviction.
#[derive(Debug)]
struct Ghosts {
    /// Pages with a hash below this are sampled.
    sampled_below: u64,
    places: BTreeMap<Key, usize>,
    order: Vec<Option<Key>>,
    /// The first place that may be occupied.
    first: usize,
    /// A Fenwick tree (1994) of the number of entries up to each place.
    sums: Vec<u32>,
}

impl Default for Ghosts {
    fn default() -> Self {
        Self {
            sampled_below: HASHES,
            places: BTreeMap::new(),
            order: Vec::new(),
            first: 0,
            sums: vec![0; 2 * GHOSTS_MAX + 1],
        }
    }
}

impl Ghosts {
    /// Returns the number of pages that each entry stands for.
    const fn weight(&self) -> u64 {
        HASHES / self.sampled_below
    }

    /// Returns the number of pages that all entries stand for.
    fn stand_for(&self) -> u64 {
        self.places.len() as u64 * self.weight()
    }

    fn put(&mut self, key: Key) {
        if hash(key) >= self.sampled_below {
            return;
        }
        self.remove(key);
        if self.places.len() == GHOSTS_MAX {
            self.sampled_below /= 2;
            let below = self.sampled_below;
            self.places.retain(|key, _| hash(*key) < below);
            self.order.iter_mut().for_each(|at| *at = at.filter(|key| hash(*key) < below));
            self.close_up();
            return self.put(key);
        }
        if self.order.len() == 2 * GHOSTS_MAX {
            self.close_up();
        }
        self.places.insert(key, self.order.len());
        self.order.push(Some(key));
        self.add(self.order.len() - 1, 1);
    }

    /// Removes a page's entry and returns the number of pages that were evicted after it and have not come
    /// again. Returns `None` if there is no entry.
    fn take(&mut self, key: Key) -> Option<u64> {
        let place = *self.places.get(&key)?;
        let behind = self.places.len() as u64 - self.sum(place);
        self.remove(key);
        Some(behind * self.weight())
    }

    fn remove(&mut self, key: Key) {
        if let Some(place) = self.places.remove(&key) {
            self.order[place] = None;
            self.add(place, u32::MAX);
        }
    }

    fn remove_oldest(&mut self) {
        while self.order.get(self.first).is_some_and(Option::is_none) {
            self.first += 1;
        }
        if let Some(&Some(key)) = self.order.get(self.first) {
            self.remove(key);
        }
    }

    fn forget(&mut self, space: u32, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let names = Key { space, page: pages.start }..Key { space, page: pages.end };
        let all: Vec<Key> = self.places.range(names).map(|(&key, _)| key).collect();
        all.into_iter().for_each(|key| self.remove(key));
    }

    fn rename(&mut self, key: Key, to: Key) {
        // Moves between sampled and unsampled keys balance on average.
        if let Some(place) = self.places.remove(&key) {
            self.remove(to);
            self.order[place] = Some(to);
            self.places.insert(to, place);
        }
    }

    /// Closes the gaps between places.
    fn close_up(&mut self) {
        self.order.retain(Option::is_some);
        self.first = 0;
        self.sums.fill(0);
        for place in 0..self.order.len() {
            let key = self.order[place].expect("the others went a moment ago");
            self.places.insert(key, place);
            self.add(place, 1);
        }
    }

    /// Adds to the count of a place; `u32::MAX` subtracts one.
    fn add(&mut self, place: usize, count: u32) {
        let mut at = place + 1;
        while let Some(sum) = self.sums.get_mut(at) {
            *sum = sum.wrapping_add(count);
            at += at & at.wrapping_neg();
        }
    }

    /// Returns the number of entries up to and including a place.
    fn sum(&self, place: usize) -> u64 {
        let (mut at, mut sum) = (place + 1, 0);
        while at > 0 {
            sum += u64::from(self.sums[at]);
            at &= at - 1;
        }
        sum
    }
}

/// Hashes a key by the finalizer of `SplitMix64` (Steele et al., 2014): equal keys give equal numbers below [`HASHES`].
const fn hash(key: Key) -> u64 {
    let mut mixed = key.page ^ (key.space as u64) << 44;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) >> 32
}

#[cfg(test)]
mod tests;
