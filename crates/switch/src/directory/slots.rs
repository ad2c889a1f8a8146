//! The memory of the directory: a fixed number of slots, the list of free ones, and the slot of each region
//! (MIND 6.3).
//!
//! Key type: [`Slots`]. Regions are powers of two and share no page, so at most one prefix matches an
//! address. This is the one match-action rule per region of a switch.

use super::Entry;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farmem_wire::message::{Page, Region, Seq};

/// Default number of slots of a switch (MIND 7.2).
pub const SLOTS_DEFAULT: usize = 30_000;

/// The reason why the slots stay unchanged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SlotError {
    /// No slot is free.
    Full,
    /// Another region overlaps this one.
    Overlaps,
    /// No region has exactly these bounds.
    Unknown,
    /// A transaction runs, or the halves cannot be merged.
    NotNow,
    /// The region has no halves, or no whole.
    Bounds,
}

/// All entries by slot, and slots by region.
#[derive(Debug)]
pub struct Slots {
    entries: Vec<Entry>,
    /// Free slots; the last one is used next.
    free: Vec<u32>,
    /// Region and slot by first page.
    used: BTreeMap<Page, (Region, u32)>,
    /// The first number of a new entry. No earlier entry had a larger one.
    newest: Seq,
}

impl Slots {
    /// Creates `count` free slots, for regions whose numbers begin after `newest`.
    ///
    /// # Panics
    /// If there are 2^32 or more.
    #[must_use]
    pub fn new(count: usize, newest: Seq) -> Self {
        let slots = u32::try_from(count).expect("slots have 32-bit numbers");
        Self {
            entries: alloc::vec![Entry::new(newest); count],
            free: (0..slots).rev().collect(),
            used: BTreeMap::new(),
            newest,
        }
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn budget(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of slots in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.len()
    }

    /// Returns the region that holds the page, and its entry.
    #[must_use]
    pub fn lookup(&mut self, page: Page) -> Option<(Region, &mut Entry)> {
        let (_, &(region, slot)) = self.used.range(..=page).next_back()?;
        region.contains(page).then(|| (region, &mut self.entries[slot as usize]))
    }

    /// Returns all regions with their entries, by address.
    pub fn iter(&self) -> impl Iterator<Item = (Region, &Entry)> {
        self.used.values().map(|&(region, slot)| (region, &self.entries[slot as usize]))
    }

    /// Returns the regions with a page from `first` to `last`.
    #[must_use]
    pub fn overlapping(&self, first: Page, last: Page) -> Vec<Region> {
        let before = self.used.range(..first).next_back().filter(|(_, (region, _))| region.last() >= first);
        before.into_iter().chain(self.used.range(first..=last)).map(|(_, &(region, _))| region).collect()
    }

    /// Passes regions and entries to `each` by address, from those that begin at `from` on, until `each`
    /// stops. Returns the start of the first region that `each` did not accept, if any.
    pub fn each_from(
        &mut self,
        from: Page,
        mut each: impl FnMut(Region, &mut Entry) -> bool,
    ) -> Option<Page> {
        self.used.range(from..).map(|(_, place)| place).find_map(|&(region, slot)| {
            let enough = !each(region, &mut self.entries[slot as usize]);
            enough.then(|| region.base())
        })
    }

    /// Takes a free slot for a region without cached pages.
    ///
    /// # Errors
    /// [`SlotError::Full`], [`SlotError::Overlaps`].
    pub fn add(&mut self, region: Region) -> Result<&mut Entry, SlotError> {
        let below = self.used.range(..=region.last()).next_back();
        if below.is_some_and(|(_, (other, _))| other.last() >= region.base()) {
            return Err(SlotError::Overlaps);
        }
        let slot = self.free.pop().ok_or(SlotError::Full)?;
        Ok(self.put(region, slot, Entry::new(self.newest)))
    }

    /// Frees the slot of a region that no host caches.
    ///
    /// # Errors
    /// [`SlotError::Unknown`], [`SlotError::NotNow`].
    pub fn remove(&mut self, region: Region) -> Result<(), SlotError> {
        let slot = self.slot(region)?;
        let entry = self.entries[slot as usize];
        if entry.phase() != super::Phase::Invalid {
            return Err(SlotError::NotNow);
        }
        self.take(region);
        self.free.push(slot);
        Ok(())
    }

    /// Splits a region into its halves.
    ///
    /// # Errors
    /// [`SlotError::Unknown`], [`SlotError::Bounds`] for a single page, [`SlotError::NotNow`],
    /// [`SlotError::Full`].
    pub fn split(&mut self, region: Region) -> Result<[Region; 2], SlotError> {
        let slot = self.slot(region)?;
        let (low, high) = region.halves().ok_or(SlotError::Bounds)?;
        let [first, second] = self.entries[slot as usize].split().ok_or(SlotError::NotNow)?;
        let other = self.free.pop().ok_or(SlotError::Full)?;
        self.take(region);
        self.put(low, slot, first);
        self.put(high, other, second);
        Ok([low, high])
    }

    /// Merges the two halves of `whole`.
    ///
    /// # Errors
    /// [`SlotError::Unknown`] unless both halves are here as such, [`SlotError::Bounds`] for a single page,
    /// [`SlotError::NotNow`].
    pub fn merge(&mut self, whole: Region) -> Result<(), SlotError> {
        let (low, high) = whole.halves().ok_or(SlotError::Bounds)?;
        let (slot, other) = (self.slot(low)?, self.slot(high)?);
        let (first, second) = (self.entries[slot as usize], self.entries[other as usize]);
        let entry = first.merge(&second).ok_or(SlotError::NotNow)?;
        self.take(low);
        self.take(high);
        self.free.push(other);
        self.put(whole, slot, entry);
        Ok(())
    }

    fn slot(&self, region: Region) -> Result<u32, SlotError> {
        let found = self.used.get(&region.base()).filter(|(other, _)| *other == region);
        found.map(|&(_, slot)| slot).ok_or(SlotError::Unknown)
    }

    fn put(&mut self, region: Region, slot: u32, entry: Entry) -> &mut Entry {
        let old = self.used.insert(region.base(), (region, slot));
        assert_eq!(old, None, "a slot is given to one region");
        let place = &mut self.entries[slot as usize];
        *place = entry;
        place
    }

    fn take(&mut self, region: Region) {
        let (_, slot) = self.used.remove(&region.base()).expect("the region was just found");
        self.newest = self.newest.max(self.entries[slot as usize].seq());
    }

    /// Asserts that every slot is free or has one region, and that regions share no page.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn assert_invariants(&self) {
        assert_eq!(self.free.len() + self.used.len(), self.entries.len(), "a slot is free or used");
        let mut next = 0;
        for (region, entry) in self.iter() {
            assert!(region.base().number() >= next, "{region:?} shares a page with the one before");
            next = region.last().number() + 1;
            entry.assert_invariants();
        }
    }
}
