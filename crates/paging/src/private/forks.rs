//! Requests of processes: forks, changed addresses, and pages that are not needed any more.

use super::slots::Location;
use super::table::{Entry, LocalCopy, Table};
use super::{Private, Programs, View};
use crate::Key;
use alloc::vec::Vec;
use core::ops::Range;
use farmem_wire::message::Access;

impl Private {
    /// Forks a process: the child gets its present pages, except for those in `not`, in order. Returns `None`
    /// if far memory has no room, or plain pages cannot be taken over. The caller opens or releases the
    /// table.
    pub fn fork(&mut self, space: u32, not: &[Range<u64>], programs: &mut impl Programs) -> Option<Table> {
        let pages = self.book.tables[&space].pages();
        if !self.take_over(space, 0..pages, programs) {
            return None;
        }
        // From here on no store changes written pages.
        self.write_protect(space, 0..pages, programs);
        let slotless: Vec<u64> = self.book.tables[&space]
            .all(0..pages)
            .filter(|(_, at)| at.slot.is_none())
            .map(|(page, _)| page)
            .collect();
        for page in slotless {
            let key = Key { space, page };
            let slot = Some(self.take_slot(key, programs)?);
            let Entry { here, .. } = self.book.entry(key);
            self.book.set(key, Entry { slot, here });
        }
        let (mut table, mut excluded) = (Table::new(pages), not.iter().peekable());
        let slots = &mut self.book.slots;
        for (page, entry) in self.book.tables[&space].all(0..pages) {
            let (key, slot) = (Key { space, page }, entry.slot.expect("each has one since a moment ago"));
            match entry.here {
                LocalCopy::No => {}
                LocalCopy::Program => {
                    if self.cache.protect(key) {
                        slots.set_location(slot, Location::Page(key));
                    }
                }
                LocalCopy::Pool(place) => {
                    if self.cache.is_dirty(key) {
                        slots.set_location(slot, Location::Pool(place));
                        self.to_send = true;
                    }
                }
            }
            while excluded.next_if(|span| span.end <= page).is_some() {}
            if !excluded.peek().is_some_and(|span| span.contains(&page)) {
                slots.share(slot);
                table.set(page, Entry { slot: Some(slot), here: LocalCopy::No });
            }
        }
        Some(table)
    }

    /// Drops the table of a fork that gets no child.
    pub fn release(&mut self, table: Table) {
        for (_, entry) in table.all(0..table.pages()) {
            if let Some(slot) = entry.slot {
                self.leave(slot);
            }
        }
    }

    /// Returns true if some of the pages are, or may be, other than zeros.
    #[must_use]
    pub fn is_anywhere(&self, space: u32, pages: Range<u64>) -> bool {
        let plain = self.book.plain.within(space, pages.clone()).next().is_some();
        plain || self.book.tables.get(&space).is_some_and(|table| table.next(pages).is_some())
    }

    /// Write-protects written pages: a store to one of them faults.
    pub fn write_protect(&mut self, space: u32, pages: Range<u64>, programs: &mut impl Programs) {
        let written = |page: u64| self.cache.access(Key { space, page }) == Some(Access::Modified);
        let here = self.book.tables[&space].all(pages).filter(|(_, at)| at.here == LocalCopy::Program);
        let protected: Vec<u64> = here.map(|(page, _)| page).filter(|&page| written(page)).collect();
        for run in protected.chunk_by(|a, b| a + 1 == *b) {
            programs.write_protect(space, run[0]..run[0] + run.len() as u64);
        }
    }

    /// Removes waiting faults of a process that must not be served now; see
    /// [`Cache::take_waiting`](crate::Cache::take_waiting).
    pub fn take_waiting(&mut self, space: u32) -> Vec<(Key, bool)> {
        self.cache.take_waiting(space)
    }

    /// Moves pages to numbers from `to` on, where there are none. The pages are write-protected, and no page
    /// of either range is plain.
    pub fn rename(&mut self, space: u32, pages: Range<u64>, to: u64, programs: &mut impl Programs) {
        let mut at = pages.start;
        while let Some((page, entry)) = self.book.tables[&space].next(at..pages.end) {
            at = page + 1;
            let (old, new) = (Key { space, page }, Key { space, page: page - pages.start + to });
            match (entry.here, self.cache.access(old)) {
                (LocalCopy::Program, Some(access)) => programs.relocate(old, new, access),
                (LocalCopy::Pool(place), _) => self.book.pool.rename(place, new),
                (LocalCopy::No | LocalCopy::Program, _) => {}
            }
            self.cache.rename(old, new);
            self.refaults.rename(old, new);
            if let Some(slot) = entry.slot
                && self.book.slots.location(slot) == Location::Page(old)
            {
                self.book.slots.set_location(slot, Location::Page(new));
            }
            self.book.set(old, Entry::NOWHERE);
            self.book.set(new, entry);
            self.without_slot
                .extend((entry.slot.is_none() && entry.here != LocalCopy::Program).then_some(new));
        }
    }

    /// Makes the pages zeros, wherever they were; the caller unmaps them from the program. Returns false if
    /// needed bytes have no place in the pool until a write-back ends: then the caller repeats the call with
    /// all pages.
    pub fn forget(&mut self, space: u32, pages: Range<u64>, programs: &mut impl Programs) -> bool {
        let Some(whole) = self.book.tables.get(&space).map(Table::pages) else { return true };
        let end = pages.end.min(whole);
        let mut at = pages.start;
        while let Some((page, entry)) = self.book.tables[&space].next(at..end) {
            let key = Key { space, page };
            at = page + 1;
            if entry.here == LocalCopy::No {
                self.book.set(key, Entry::NOWHERE);
                entry.slot.inspect(|&slot| self.leave(slot));
                continue;
            }
            let view = View { book: &self.book, programs };
            if !self.cache.leave(key, &view, &mut self.actions) {
                // The pages before this one may be touched meanwhile, and are zeros then.
                self.cache.remove(space, pages.start..page);
                programs.discard(space, pages.start..page);
                return false;
            }
            self.carry_out(programs);
            self.forget_page(key);
        }
        self.refaults.forget(space, pages.clone());
        self.cache.remove(space, pages);
        true
    }

    /// Forgets pages like [`Private::forget`] when nothing will ever make room: bytes that others need are
    /// lost, and no process gets anything from far memory any more.
    pub fn give_up(&mut self, space: u32, pages: Range<u64>, programs: &mut impl Programs) {
        self.abandon(programs);
        while !self.forget(space, pages.clone(), programs) {
            let table = &self.book.tables[&space];
            let (page, _) = table.next(pages.clone()).expect("a page that did not go");
            self.cache.remove(space, page..page + 1);
            self.forget_page(Key { space, page });
        }
    }

    /// Forgets a page that the cache no longer has.
    fn forget_page(&mut self, key: Key) {
        let entry = self.book.entry(key);
        if let Some(slot) = entry.slot
            && self.book.is_latest(key, slot)
        {
            self.book.slots.set_location(slot, Location::Far);
        }
        if let LocalCopy::Pool(place) = entry.here {
            self.book.pool.remove(place);
        }
        self.forget_slot(key);
    }

    /// Removes a process whose pages were all forgotten.
    pub fn close(&mut self, space: u32) {
        self.cache.remove_space(space);
        self.refaults.forget(space, 0..u64::MAX);
        self.forget_plain(space);
        self.book.tables.remove(&space);
    }
}
