//! The memory of the directory: a fixed number of slots, the list of free ones, and which region is in which (MIND 6.3).
//!
//! Key type: [`Slots`]. Regions are powers of two and share no page, so that at most one prefix matches an address; that is the one
//! match-action rule per region of a switch.

use super::Entry;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farmem_wire::message::{Page, Region, Seq};

/// Slots of a switch, unless it is told otherwise (MIND 7.2).
pub const SLOTS_DEFAULT: usize = 30_000;

/// Why the slots stay as they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SlotError {
    /// No slot is free.
    Full,
    /// Another region has a page of this one.
    Overlaps,
    /// No region is exactly this one.
    Unknown,
    /// A transaction runs, or the halves cannot be one.
    NotNow,
    /// A region has no such halves or no such whole.
    Bounds,
}

/// All entries, by slot, and the slots, by region.
#[derive(Debug)]
pub struct Slots {
    entries: Vec<Entry>,
    /// Slots without a region; the last one is used next.
    free: Vec<u32>,
    /// By first page: the region and its slot.
    used: BTreeMap<Page, (Region, u32)>,
    /// No entry that was ever here had a larger number: what a new one begins with.
    newest: Seq,
}

impl Slots {
    /// `count` free slots, for regions whose numbers begin behind `newest`.
    ///
    /// # Panics
    /// When there are 2^32 or more.
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

    /// How many slots there are.
    #[must_use]
    pub fn budget(&self) -> usize {
        self.entries.len()
    }

    /// How many have a region.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.len()
    }

    /// The region that has the page, and its entry.
    #[must_use]
    pub fn lookup(&mut self, page: Page) -> Option<(Region, &mut Entry)> {
        let (_, &(region, slot)) = self.used.range(..=page).next_back()?;
        region.contains(page).then(|| (region, &mut self.entries[slot as usize]))
    }

    /// All regions and their entries, by address.
    pub fn iter(&self) -> impl Iterator<Item = (Region, &Entry)> {
        self.used.values().map(|&(region, slot)| (region, &self.entries[slot as usize]))
    }

    /// The regions with a page from `first` to `last`.
    #[must_use]
    pub fn overlapping(&self, first: Page, last: Page) -> Vec<Region> {
        let before = self.used.range(..first).next_back().filter(|(_, (region, _))| region.last() >= first);
        before.into_iter().chain(self.used.range(first..=last)).map(|(_, &(region, _))| region).collect()
    }

    /// Shows regions and entries by address, from those that begin at `from` on, until `each` says that it is enough; answers where the one
    /// begins that it did not want, if any.
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

    /// Takes a free slot for a region that nobody caches.
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

    /// Frees the slot of a region that nobody caches any more; not while anybody may.
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

    /// Makes two regions of one.
    ///
    /// # Errors
    /// [`SlotError::Unknown`], [`SlotError::Bounds`] for a single page, [`SlotError::NotNow`], [`SlotError::Full`].
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

    /// Makes one region of the two halves of `whole`.
    ///
    /// # Errors
    /// [`SlotError::Unknown`] when they are not both here as such, [`SlotError::Bounds`] for a single page, [`SlotError::NotNow`].
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
    /// When it is not so.
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
