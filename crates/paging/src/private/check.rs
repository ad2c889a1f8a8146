//! Invariants.

use super::slots::Location;
use super::table::{Entry, LocalCopy};
use super::{Private, kept_key};
use crate::Key;
use farmem_wire::message::Access;

impl Private {
    /// Asserts every invariant.
    ///
    /// # Panics
    ///
    /// If an invariant is broken.
    pub fn check(&self) {
        self.cache.check();
        let mut inactive = 0;
        for (&space, table) in &self.book.tables {
            for (page, Entry { slot, here }) in table.all(0..table.pages()) {
                let key = Key { space, page };
                assert!(!self.book.plain.has(key), "{key:?} is plain, and the cache has it");
                let (mapped, has) = (self.cache.access(key), self.cache.has(key));
                match here {
                    LocalCopy::No => assert!(!has, "{key:?} is nowhere"),
                    LocalCopy::Program => assert!(mapped.is_some(), "{key:?} is in its program"),
                    LocalCopy::Pool(place) => {
                        inactive += 1;
                        assert_eq!(self.book.pool.at(place), key, "{key:?} is in its place");
                        assert!(has && mapped.is_none(), "{key:?} rests");
                    }
                }
                let Some(slot) = slot else { continue };
                let is_latest = self.book.is_latest(key, slot);
                let is_newest = self.cache.is_dirty(key) && mapped != Some(Access::Modified);
                assert_eq!(
                    is_latest, is_newest,
                    "{key:?}: the recorded location of a slot has its newest bytes"
                );
                let alone = self.book.slots.owners(slot) == 1;
                assert!(
                    alone || mapped != Some(Access::Modified),
                    "{key:?}: a writable page has its slot alone"
                );
            }
        }
        for slot in self.book.slots.all() {
            if let Location::Page(of) = self.book.slots.location(slot) {
                assert_eq!(
                    self.book.entry(of),
                    Entry { slot: Some(slot), here: LocalCopy::Program },
                    "{of:?} is a home"
                );
            }
        }
        let kept = self.book.slots.all().filter(|&slot| self.book.kept_place(slot).is_some());
        let kept = kept.inspect(|&slot| assert!(self.cache.is_dirty(kept_key(slot)), "{slot:?} is needed"));
        assert_eq!(inactive + kept.count(), self.book.pool.used(), "the pool has no other pages");
    }
}
