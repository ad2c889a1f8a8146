//! Invariants.

use super::slots::Home;
use super::table::{Entry, Here};
use super::{Private, orphan};
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
                    Here::No => assert!(!has, "{key:?} is nowhere"),
                    Here::Program => assert!(mapped.is_some(), "{key:?} is in its program"),
                    Here::Pool(place) => {
                        inactive += 1;
                        assert_eq!(self.book.pool.at(place), key, "{key:?} is in its place");
                        assert!(has && mapped.is_none(), "{key:?} rests");
                    }
                }
                let Some(slot) = slot else { continue };
                let is_home = self.book.is_home(key, slot);
                let is_newest = self.cache.is_dirty(key) && mapped != Some(Access::Modified);
                assert_eq!(is_home, is_newest, "{key:?}: who has a slot's newest bytes is its home");
                let alone = self.book.slots.owners(slot) == 1;
                assert!(alone || mapped != Some(Access::Modified), "{key:?}: who writes has its slot alone");
            }
        }
        for slot in self.book.slots.all() {
            if let Home::Page(of) = self.book.slots.home(slot) {
                assert_eq!(
                    self.book.entry(of),
                    Entry { slot: Some(slot), here: Here::Program },
                    "{of:?} is a home"
                );
            }
        }
        let orphans = self.book.slots.all().filter(|&slot| self.book.orphan(slot).is_some());
        let orphans =
            orphans.inspect(|&slot| assert!(self.cache.is_dirty(orphan(slot)), "{slot:?} is needed"));
        assert_eq!(inactive + orphans.count(), self.book.pool.used(), "the pool has no other pages");
    }
}
