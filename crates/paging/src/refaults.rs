//! Pages that are fetched again soon after they were evicted, and how many frames would have kept them. Pure.
//!
//! Key type: [`Refaults`]. An evicted page leaves its name behind, as a shadow entry does in Linux (`mm/workingset.c`). When the page comes again,
//! the names of pages that were evicted after it and have not come again yet, with the frames that there are, are the frames that would have kept it
//! under LRU: its stack distance (Mattson et al., 1970). Many evicted pages are sampled by a hash of their name, at a rate that falls as they grow
//! more, and each stands for as many as the rate says (SHARDS, Waldspurger et al., FAST 2015). So the memory that this takes is bounded, and a
//! page costs a hash.
//!
//! What it does not do: measure time. A program that computes for long between two pages counts as one that does not.

use crate::Key;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// Names of evicted pages at most; with more, half of them go, and the rate is halved.
const GHOSTS_MAX: usize = 4096;
/// A page that comes again counts where so many times the frames would have kept it, and no more.
const MULTIPLE_MAX: u64 = 16;
/// Distances are told apart by this part of the frames.
const STEPS: u64 = 8;
/// The program thrashes when, in so many windows one after the other, at least half of the pages fetched are pages that came again. A window is as many
/// pages as there are frames.
const WINDOWS: u32 = 4;
/// The frames that would serve keep this part of the pages that came again: three of four.
const KEPT: [u64; 2] = [3, 4];

/// Which pages came again, and how far they had gone.
#[derive(Debug)]
pub struct Refaults {
    frames: u64,
    ghosts: Ghosts,
    /// Pages fetched, and those of them that came again.
    fetched: u64,
    again: u64,
    /// The same of the window that is not over yet.
    window: [u64; 2],
    in_a_row: u32,
    thrashes: bool,
    /// Pages that came again, by the part of the frames, in steps, that would have kept them.
    distances: Vec<u64>,
}

impl Refaults {
    /// Of a cache of so many frames.
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

    /// A page was evicted: to have it again means to fetch it.
    pub fn evicted(&mut self, key: Key) {
        self.ghosts.put(key);
        while self.ghosts.stand_for() > (MULTIPLE_MAX - 1) * self.frames {
            self.ghosts.remove_oldest();
        }
    }

    /// Pages are fetched.
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

    /// Pages are nothing any more; those that come by these names are others.
    pub fn forget(&mut self, space: u32, pages: Range<u64>) {
        self.ghosts.forget(space, pages);
    }

    /// A page goes by another name.
    pub fn rename(&mut self, key: Key, to: Key) {
        self.ghosts.rename(key, to);
    }

    /// Pages that came again, of those fetched; an estimate when many are gone.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.again.min(self.fetched)
    }

    /// The program thrashes, or did: so many frames would have kept three of four of the pages that came again.
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

/// All hashes are below this.
const HASHES: u64 = 1 << 32;

/// The names of evicted pages, sampled, in the order in which the pages went.
#[derive(Debug)]
struct Ghosts {
    /// Pages are sampled whose hash is below this.
    sampled_below: u64,
    places: BTreeMap<Key, usize>,
    order: Vec<Option<Key>>,
    /// Before this place there is none.
    first: usize,
    /// A Fenwick tree (1994): how many there are up to a place.
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
    /// Pages that each one stands for.
    const fn weight(&self) -> u64 {
        HASHES / self.sampled_below
    }

    /// Pages that all stand for.
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

    /// Takes a page's name out; answers how many pages went after it and have not come again. `None` when it is not there.
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
        // Where one is sampled and the other is not, there are as many of the one kind as of the other.
        if let Some(place) = self.places.remove(&key) {
            self.remove(to);
            self.order[place] = Some(to);
            self.places.insert(to, place);
        }
    }

    /// Has the places follow each other again.
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

    /// Adds to the count of a place; `u32::MAX` is one less.
    fn add(&mut self, place: usize, count: u32) {
        let mut at = place + 1;
        while let Some(sum) = self.sums.get_mut(at) {
            *sum = sum.wrapping_add(count);
            at += at & at.wrapping_neg();
        }
    }

    /// How many there are up to a place, with it.
    fn sum(&self, place: usize) -> u64 {
        let (mut at, mut sum) = (place + 1, 0);
        while at > 0 {
            sum += u64::from(self.sums[at]);
            at &= at - 1;
        }
        sum
    }
}

/// The end of `SplitMix64` (Steele et al., 2014): equal names, equal numbers below [`HASHES`].
const fn hash(key: Key) -> u64 {
    let mut mixed = key.page ^ (key.space as u64) << 44;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) >> 32
}

#[cfg(test)]
mod tests;
