//! The cache table of dynamic caching (SODA IV-C): which entries of far memory the DPU has, and which pages of them are good.
//!
//! An *entry* is a run of pages that comes in one READ, larger than a page so that neighbours come before they are asked for (SODA III-A). It lies in
//! a *slot* of the DPU's memory. What is evicted is random; a slot that an answer is copied from, or that written bytes are put into, is *pinned* by a count and
//! stays.
//!
//! ```text
//!   free --begin--> loading --loaded, a page is good--> ready --random victim, no pin--> loading (another entry)
//!                      '------loaded, none is-------------------------------------------> free
//! ```
//!
//! A page is *good* when the slot has the bytes that far memory has. A write on its way makes its page bad in whatever entry has it, and in one that is
//! loading: its READ may meet far memory before the write or behind it.

use crate::{EntryId, PageId};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use farmem_machine::Rng;

/// Pages of an entry, at most: each has one bit of a word.
pub const ENTRY_PAGES_MAX: u32 = 64;

/// Slots that are looked at by chance before the others are looked at in turn.
const CHANCES: u32 = 8;

/// How large a cache table is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableConfig {
    /// Slots, at least 1.
    pub slots: NonZeroU32,
    /// Pages of an entry, 1 to [`ENTRY_PAGES_MAX`]: the tunable ratio of entry to page.
    pub entry_pages: u32,
}

impl TableConfig {
    /// True when an entry has 1 to [`ENTRY_PAGES_MAX`] pages.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.entry_pages >= 1 && self.entry_pages <= ENTRY_PAGES_MAX
    }
}

/// A slot of the DPU's memory, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(pub u32);

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Here, and good.
    Here(Slot),
    /// On its way here.
    Loading,
    /// Its entry is here and the page is not good: far memory has newer bytes, or has none there.
    Bad,
    /// Not here.
    Absent,
}

/// What a slot lost when another entry took it, or it was emptied.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Left {
    /// Pages that were asked for while they were there.
    pub used: u32,
    /// Pages that came and were never asked for.
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
struct Place {
    state: State,
    /// Pages that came, by bits.
    came: u64,
    /// Of those, pages that are good. While the entry is loading: pages that will be.
    good: u64,
    /// Pages that were asked for.
    used: u64,
    /// Answers that are copied from here, and writes whose bytes are put here.
    pins: u32,
}

impl Place {
    const fn left(&self) -> Left {
        Left { used: (self.came & self.used).count_ones(), wasted: (self.came & !self.used).count_ones() }
    }
}

/// The cache table: the decisions; the bytes are its driver's.
#[derive(Debug)]
pub struct Table {
    config: TableConfig,
    places: Vec<Place>,
    free: Vec<Slot>,
    entries: BTreeMap<EntryId, Slot>,
}

impl Table {
    /// An empty table.
    ///
    /// # Panics
    /// When the configuration is not [`TableConfig::is_valid`]: the reader of the configuration says so before.
    #[must_use]
    pub fn new(config: TableConfig) -> Self {
        assert!(config.is_valid(), "an entry has 1 to 64 pages");
        Self {
            config,
            places: alloc::vec![Place::default(); config.slots.get() as usize],
            free: (0..config.slots.get()).rev().map(Slot).collect(),
            entries: BTreeMap::new(),
        }
    }

    /// The entry that has a page, and the page's number in it.
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

    /// Where a page is. Nothing changes.
    #[must_use]
    pub fn find(&self, page: PageId) -> Found {
        let (entry, within) = self.entry_of(page);
        let Some(&slot) = self.entries.get(&entry) else { return Found::Absent };
        let place = &self.places[slot.0 as usize];
        match place.state {
            State::Loading(_) if place.good & bit(within) != 0 => Found::Loading,
            State::Ready(_) if place.good & bit(within) != 0 => Found::Here(slot),
            _ => Found::Bad,
        }
    }

    /// True when the entry is here or on its way.
    #[must_use]
    pub fn has(&self, entry: EntryId) -> bool {
        self.entries.contains_key(&entry)
    }

    /// A page is asked for, and is here: it counts as used, and stays until [`Table::unpin`].
    ///
    /// # Panics
    /// When it is not [`Found::Here`].
    pub fn pin(&mut self, page: PageId) -> Slot {
        let Found::Here(slot) = self.find(page) else { panic!("{page:?} is pinned where it is not") };
        let (_, within) = self.entry_of(page);
        let place = &mut self.places[slot.0 as usize];
        place.used |= bit(within);
        place.pins += 1;
        slot
    }

    /// Bytes of a page are about to be put into the slot of [`Table::room_for`], which stays until [`Table::unpin`]. They are the DPU's to move: nobody asked for the page.
    pub fn keep(&mut self, slot: Slot) {
        self.places[slot.0 as usize].pins += 1;
    }

    /// Pins of all slots.
    #[must_use]
    pub fn pins(&self) -> u64 {
        self.places.iter().map(|place| u64::from(place.pins)).sum()
    }

    /// What was copied from the slot, or put there, is where it goes.
    ///
    /// # Panics
    /// When the slot has no pin.
    pub fn unpin(&mut self, slot: Slot) {
        let place = &mut self.places[slot.0 as usize];
        place.pins = place.pins.checked_sub(1).expect("a slot is unpinned as often as it was pinned");
    }

    /// A slot for an entry that is to come, of which `pages` will be good. Takes a free one, or that of a random entry that has no pin and is not on its
    /// way; `None` when there is none. What the entry before left is told.
    ///
    /// # Panics
    /// When the entry is here already.
    pub fn begin(&mut self, entry: EntryId, pages: u64, rng: &mut Rng) -> Option<(Slot, Left)> {
        assert!(!self.has(entry), "{entry:?} is begun twice");
        let slot = self.free.pop().or_else(|| self.victim(rng))?;
        let place = &mut self.places[slot.0 as usize];
        let left = place.left();
        if let State::Ready(old) = place.state {
            self.entries.remove(&old);
        }
        *place = Place { state: State::Loading(entry), good: pages, ..Place::default() };
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

    /// The loads of a slot's entry ended. Pages whose load failed, and those that were written meanwhile, are not good ([`Table::spoil`]). A slot without a
    /// good page is free again: perhaps no byte ever came into it.
    ///
    /// # Panics
    /// When the slot's entry is not on its way.
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

    /// A page is being written, or may have been, or did not come: what is here of it, or on its way, is not good.
    pub fn spoil(&mut self, page: PageId) {
        let (entry, within) = self.entry_of(page);
        if let Some(&slot) = self.entries.get(&entry) {
            self.places[slot.0 as usize].good &= !bit(within);
        }
    }

    /// The slot that the new bytes of a page may be put into, so that it is good again: its entry is here. An entry on its way has none, as what comes would go
    /// over the bytes; nor has one that is pinned.
    #[must_use]
    pub fn room_for(&self, page: PageId) -> Option<Slot> {
        let (entry, _) = self.entry_of(page);
        let &slot = self.entries.get(&entry)?;
        let place = &self.places[slot.0 as usize];
        (matches!(place.state, State::Ready(_)) && place.pins == 0).then_some(slot)
    }

    /// Far memory has the bytes of a page, and the slot of [`Table::room_for`] has them too.
    ///
    /// # Panics
    /// When the page's entry is not here.
    pub fn renewed(&mut self, page: PageId) {
        let (entry, within) = self.entry_of(page);
        let slot = self.entries[&entry];
        let place = &mut self.places[slot.0 as usize];
        assert!(matches!(place.state, State::Ready(_)), "{entry:?} is here");
        if place.came & bit(within) == 0 {
            // It came because it was written: it cost no traffic that could be wasted.
            place.used |= bit(within);
        }
        place.good |= bit(within);
        place.came |= bit(within);
    }

    /// Takes every entry of an object out. Those on their way and those that are pinned only lose their pages: they are taken by later entries.
    /// What the others left is told.
    pub fn forget(&mut self, object: u32) -> Left {
        let first = EntryId { object, entry: 0 };
        let last = EntryId { object, entry: u64::MAX };
        let entries: Vec<_> = self.entries.range(first..=last).map(|(&entry, &slot)| (entry, slot)).collect();
        let mut left = Left::default();
        for (entry, slot) in entries {
            let place = &mut self.places[slot.0 as usize];
            if matches!(place.state, State::Loading(_)) || place.pins > 0 {
                place.good = 0;
                continue;
            }
            let one = self.empty(entry, slot);
            left = Left { used: left.used + one.used, wasted: left.wasted + one.wasted };
        }
        left
    }

    fn empty(&mut self, entry: EntryId, slot: Slot) -> Left {
        let left = self.places[slot.0 as usize].left();
        self.places[slot.0 as usize] = Place::default();
        self.entries.remove(&entry);
        self.free.push(slot);
        left
    }

    /// Every invariant; O(slots).
    ///
    /// # Panics
    /// When one is broken.
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
