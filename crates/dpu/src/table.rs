//! The cache table of dynamic caching (SODA IV-C): which entries of far memory the DPU has, and which of their pages
//! are good.
//!
//! An *entry* is a run of pages fetched in one READ, larger than a page so that neighbours arrive before they are
//! requested (SODA III-A). An entry lies in a *slot* of the DPU's memory. Eviction is random. A slot that is the
//! source of a copy, or that receives written bytes, is *pinned* by a count and stays.
//!
//! ```text
//!   free --begin--> loading --loaded, a page is good--> ready --random victim, no pin--> loading (another entry)
//!                      '------loaded, none is-------------------------------------------> free
//! ```
//!
//! A page is *good* if the slot has the bytes that far memory has. A write in flight makes its page bad in any entry
//! that has it, also in a loading one: the entry's READ may reach far memory before or after the write.

use crate::{EntryId, PageId};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use farmem_machine::Rng;

/// Maximum number of pages of an entry: each has one bit of a word.
pub const ENTRY_PAGES_MAX: u32 = 64;

/// Number of random slots examined before the others are examined in turn.
const CHANCES: u32 = 8;

/// The size of a cache table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableConfig {
    /// Number of slots, at least 1.
    pub slots: NonZeroU32,
    /// Pages of an entry, 1 to [`ENTRY_PAGES_MAX`]: the tunable ratio of entry to page.
    pub entry_pages: u32,
}

impl TableConfig {
    /// Returns true if an entry has 1 to [`ENTRY_PAGES_MAX`] pages.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.entry_pages >= 1 && self.entry_pages <= ENTRY_PAGES_MAX
    }
}

/// A slot of the DPU's memory, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(pub u32);

/// The location of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// In this slot, and good.
    Cached(Slot),
    /// In flight.
    Loading,
    /// Its entry is here and the page is bad: far memory has newer bytes, or no such page.
    Bad,
    /// Not here.
    Absent,
}

/// The pages that a slot lost when it was emptied or reused.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Dropped {
    /// Pages that were requested while in the slot.
    pub used: u32,
    /// Pages that arrived and were never requested.
    pub wasted: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum State {
    #[default]
    Free,
    Loading(EntryId),
    Ready(EntryId),
}

#[derive(Clone, Copy, Default, Debug)]
struct CacheSlot {
    state: State,
    /// Bit set of the pages that arrived.
    came: u64,
    /// Bit set of the good pages; while the entry is loading, of the pages that will be good.
    good: u64,
    /// Bit set of the requested pages.
    used: u64,
    /// Number of copies from here, and of writes whose bytes are put here.
    pins: u32,
}

impl CacheSlot {
    const fn left(&self) -> Dropped {
        Dropped { used: (self.came & self.used).count_ones(), wasted: (self.came & !self.used).count_ones() }
    }
}

/// The cache table. The table only decides; the driver has the bytes.
#[derive(Debug)]
pub struct Table {
    config: TableConfig,
    places: Vec<CacheSlot>,
    free: Vec<Slot>,
    entries: BTreeMap<EntryId, Slot>,
}

impl Table {
    /// Returns an empty table.
    ///
    /// # Panics
    ///
    /// If the configuration is not [`TableConfig::is_valid`]; the reader of the configuration checks that
    /// before.
    #[must_use]
    pub fn new(config: TableConfig) -> Self {
        assert!(config.is_valid(), "an entry has 1 to 64 pages");
        Self {
            config,
            places: alloc::vec![CacheSlot::default(); config.slots.get() as usize],
            free: (0..config.slots.get()).rev().map(Slot).collect(),
            entries: BTreeMap::new(),
        }
    }

    /// Returns the entry that has a page, and the page's index in it.
    #[must_use]
    pub const fn entry_of(&self, page: PageId) -> (EntryId, u32) {
        let pages = self.config.entry_pages as u64;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "less than the pages of an entry, which are 64 at most"
        )]
        let within = (page.page % pages) as u32;
        (EntryId { object: page.object, entry: page.page / pages }, within)
    }

    /// Returns the location of a page, without effect on the table.
    #[must_use]
    pub fn find(&self, page: PageId) -> Found {
        let (entry, within) = self.entry_of(page);
        let Some(&slot) = self.entries.get(&entry) else { return Found::Absent };
        let place = &self.places[slot.0 as usize];
        match place.state {
            State::Loading(_) if place.good & bit(within) != 0 => Found::Loading,
            State::Ready(_) if place.good & bit(within) != 0 => Found::Cached(slot),
            _ => Found::Bad,
        }
    }

    /// Returns true if the entry is resident or in flight.
    #[must_use]
    pub fn has(&self, entry: EntryId) -> bool {
        self.entries.contains_key(&entry)
    }

    /// Pins the slot of a requested page until [`Table::unpin`]; the page counts as used.
    ///
    /// # Panics
    ///
    /// If the page is not [`Found::Cached`].
    pub fn pin(&mut self, page: PageId) -> Slot {
        let Found::Cached(slot) = self.find(page) else { panic!("{page:?} is pinned where it is not") };
        let (_, within) = self.entry_of(page);
        let place = &mut self.places[slot.0 as usize];
        place.used |= bit(within);
        place.pins += 1;
        slot
    }

    /// Pins the slot of [`Table::room_for`] until [`Table::unpin`], because bytes are about to be put into
    /// it. The page does not count as used: no process requested it.
    pub fn keep(&mut self, slot: Slot) {
        self.places[slot.0 as usize].pins += 1;
    }

    /// Returns the number of pins of all slots.
    #[must_use]
    pub fn pins(&self) -> u64 {
        self.places.iter().map(|place| u64::from(place.pins)).sum()
    }

    /// Unpins a slot, after the copy from or to it.
    ///
    /// # Panics
    ///
    /// If the slot has no pin.
    pub fn unpin(&mut self, slot: Slot) {
        let place = &mut self.places[slot.0 as usize];
        place.pins = place.pins.checked_sub(1).expect("a slot is unpinned as often as it was pinned");
    }

    /// Assigns a slot to an entry that is about to load, with `pages` to be good. Takes a free slot, or that
    /// of a random entry that is neither pinned nor loading; returns `None` if there is none. Also returns
    /// the pages that the previous entry lost.
    ///
    /// # Panics
    ///
    /// If the table has the entry already.
    pub fn begin(&mut self, entry: EntryId, pages: u64, rng: &mut Rng) -> Option<(Slot, Dropped)> {
        assert!(!self.has(entry), "{entry:?} is begun twice");
        let slot = self.free.pop().or_else(|| self.victim(rng))?;
        let place = &mut self.places[slot.0 as usize];
        let left = place.left();
        if let State::Ready(old) = place.state {
            self.entries.remove(&old);
        }
        *place = CacheSlot { state: State::Loading(entry), good: pages, ..CacheSlot::default() };
        self.entries.insert(entry, slot);
        Some((slot, left))
    }

    fn victim(&self, rng: &mut Rng) -> Option<Slot> {
        let may_go = |slot: &Slot| {
            let place = &self.places[slot.0 as usize];
            matches!(place.state, State::Ready(_)) && place.pins == 0
        };
        let slots = self.config.slots.get();
        let first = (0..CHANCES).map(|_| Slot(rng.below(slots))).find(may_go);
        first.or_else(|| {
            let from = rng.below(slots);
            (from..slots).chain(0..from).map(Slot).find(may_go)
        })
    }

    /// Handles the end of the loads of a slot's entry. Pages whose load failed, or that were written
    /// meanwhile, are bad ([`Table::spoil`]). A slot without a good page is free again.
    ///
    /// # Panics
    ///
    /// If the slot's entry is not loading.
    pub fn loaded(&mut self, slot: Slot) {
        let place = &mut self.places[slot.0 as usize];
        let State::Loading(entry) = place.state else { panic!("{slot:?} was not loading") };
        if place.good == 0 {
            self.empty(entry, slot);
            return;
        }
        place.state = State::Ready(entry);
        place.came = place.good;
    }

    /// Marks a page as bad: it is being written, may have been written, or did not arrive.
    pub fn spoil(&mut self, page: PageId) {
        let (entry, within) = self.entry_of(page);
        if let Some(&slot) = self.entries.get(&entry) {
            self.places[slot.0 as usize].good &= !bit(within);
        }
    }

    /// Returns the slot for the new bytes of a page, if the page's entry is resident. A loading entry has
    /// none, because the arriving bytes would overwrite the new ones; a pinned one has none either.
    #[must_use]
    pub fn room_for(&self, page: PageId) -> Option<Slot> {
        let (entry, _) = self.entry_of(page);
        let &slot = self.entries.get(&entry)?;
        let place = &self.places[slot.0 as usize];
        (matches!(place.state, State::Ready(_)) && place.pins == 0).then_some(slot)
    }

    /// Marks a page as good: far memory and the slot of [`Table::room_for`] have the same bytes.
    ///
    /// # Panics
    ///
    /// If the page's entry is not resident.
    pub fn renewed(&mut self, page: PageId) {
        let (entry, within) = self.entry_of(page);
        let slot = self.entries[&entry];
        let place = &mut self.places[slot.0 as usize];
        assert!(matches!(place.state, State::Ready(_)), "{entry:?} is here");
        if place.came & bit(within) == 0 {
            // A written page cost no prefetch traffic that could be wasted.
            place.used |= bit(within);
        }
        place.good |= bit(within);
        place.came |= bit(within);
    }

    /// Removes every entry of an object. Loading and pinned entries only lose their pages; later entries take
    /// their slots. Returns the pages that the others lost.
    pub fn forget(&mut self, object: u32) -> Dropped {
        let first = EntryId { object, entry: 0 };
        let last = EntryId { object, entry: u64::MAX };
        let entries: Vec<_> = self.entries.range(first..=last).map(|(&entry, &slot)| (entry, slot)).collect();
        let mut left = Dropped::default();
        for (entry, slot) in entries {
            let place = &mut self.places[slot.0 as usize];
            if matches!(place.state, State::Loading(_)) || place.pins > 0 {
                place.good = 0;
                continue;
            }
            let one = self.empty(entry, slot);
            left = Dropped { used: left.used + one.used, wasted: left.wasted + one.wasted };
        }
        left
    }

    fn empty(&mut self, entry: EntryId, slot: Slot) -> Dropped {
        let left = self.places[slot.0 as usize].left();
        self.places[slot.0 as usize] = CacheSlot::default();
        self.entries.remove(&entry);
        self.free.push(slot);
        left
    }

    /// Asserts every invariant; O(slots).
    ///
    /// # Panics
    ///
    /// If an invariant is broken.
    pub fn check(&self) {
        let full = if self.config.entry_pages == 64 { u64::MAX } else { bit(self.config.entry_pages) - 1 };
        let mut free = 0;
        for (number, place) in (0..).zip(&self.places) {
            assert_eq!(place.good & !full, 0, "slot {number} has good pages that no entry has");
            match place.state {
                State::Free => {
                    free += 1;
                    assert!(self.free.contains(&Slot(number)), "slot {number} is free and unknown");
                    assert_eq!((place.pins, place.good), (0, 0), "slot {number} is free");
                }
                State::Loading(entry) => {
                    assert_eq!(
                        place.pins, 0,
                        "slot {number} is loading, and nothing is copied from or to it"
                    );
                    assert_eq!(self.entries.get(&entry), Some(&Slot(number)));
                }
                State::Ready(entry) => {
                    assert_eq!(place.good & !place.came, 0, "slot {number}: what is good came");
                    assert_eq!(self.entries.get(&entry), Some(&Slot(number)));
                }
            }
        }
        assert_eq!(free, self.free.len(), "each free slot is named once");
        assert_eq!(self.entries.len() + free, self.places.len(), "each slot is free or has one entry");
    }
}

const fn bit(within: u32) -> u64 {
    1 << within
}

#[cfg(test)]
#[path = "table/tests.rs"]
mod tests;
