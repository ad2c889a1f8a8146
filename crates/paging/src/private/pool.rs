//! Places for inactive pages: memory of the pager, for programs whose pages cannot stay in place.

use crate::Key;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// The inactive page in each place.
#[derive(Debug)]
pub(super) struct Pool {
    keys: Vec<Option<Key>>,
    free: Vec<u32>,
}

impl Pool {
    pub(super) fn new(places: usize) -> Self {
        let numbers = u32::try_from(places).expect("a local limit below 16 TiB");
        Self { keys: vec![None; places], free: (0..numbers).rev().collect() }
    }

    /// Assigns a place to a page. The cache has no more inactive pages than there are places.
    pub(super) fn put(&mut self, key: Key) -> u32 {
        let place = self.free.pop().expect("no more pages are inactive than there are places");
        self.keys[place as usize] = Some(key);
        place
    }

    /// Assigns places to adjacent pages, sorted by number: places freed together are assigned together.
    pub(super) fn put_run(&mut self, space: u32, pages: Range<u64>) -> Vec<u32> {
        let mut places: Vec<u32> = pages.clone().map(|page| self.put(Key { space, page })).collect();
        places.sort_unstable();
        for (&place, page) in places.iter().zip(pages) {
            self.keys[place as usize] = Some(Key { space, page });
        }
        places
    }

    pub(super) fn at(&self, place: u32) -> Key {
        self.keys[place as usize].expect("a place that is named is in use")
    }

    pub(super) fn rename(&mut self, place: u32, key: Key) {
        assert!(self.keys[place as usize].replace(key).is_some(), "place {place} is in use");
    }

    pub(super) fn remove(&mut self, place: u32) {
        assert!(self.keys[place as usize].take().is_some(), "place {place} is in use");
        self.free.push(place);
    }

    pub(super) fn used(&self) -> usize {
        self.keys.len() - self.free.len()
    }
}
