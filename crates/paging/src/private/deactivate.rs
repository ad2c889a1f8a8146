//! Deactivation: pages move from programs to the pool.

use super::slots::Location;
use super::table::{Entry, LocalCopy};
use super::{Private, Programs};
use crate::Key;
use alloc::vec::Vec;
use core::ops::Range;

impl Private {
    /// Unmaps pages: those that are mapped move to the pool, run by run.
    pub(super) fn deactivate(&mut self, space: u32, pages: Range<u64>, programs: &mut impl Programs) {
        let key = |page| Key { space, page };
        // From here on no store reaches the pages.
        if pages.clone().any(|page| self.cache.is_dirty(key(page))) {
            programs.write_protect(space, pages.clone());
        }
        // Some pages may not be mapped.
        let is_there = |page: &u64| self.book.entry(key(*page)).here == LocalCopy::Program;
        let there: Vec<u64> = pages.clone().filter(is_there).collect();
        for run in there.chunk_by(|a, b| a + 1 == *b) {
            self.save(space, run[0]..run[0] + run.len() as u64, programs);
        }
        programs.discard(space, pages);
        self.assign_slots(programs);
    }

    /// Saves adjacent pages from their program to the pool; pages of zeros go nowhere.
    fn save(&mut self, space: u32, pages: Range<u64>, programs: &mut impl Programs) {
        self.evictions += pages.end - pages.start;
        let places = self.book.pool.put_run(space, pages.clone());
        let mut from = pages.start;
        for together in places.chunk_by(|a, b| a + 1 == *b) {
            let until = from + together.len() as u64;
            programs.save(space, from..until, together[0]);
            from = until;
        }
        for (page, place) in pages.zip(places) {
            let key = Key { space, page };
            let slot = self.book.entry(key).slot;
            let alone = slot.is_none_or(|slot| self.book.slots.owners(slot) == 1);
            let dirty = self.cache.is_dirty(key);
            if dirty && alone && programs.is_zero(place) {
                self.book.pool.remove(place);
                self.cache.vanish(key);
                self.forget_slot(key);
                continue;
            }
            self.book.set(key, Entry { slot, here: LocalCopy::Pool(place) });
            if dirty {
                self.without_slot.extend(slot.is_none().then_some(key));
                slot.inspect(|&slot| self.book.slots.set_location(slot, Location::Pool(place)));
            }
        }
    }
}
