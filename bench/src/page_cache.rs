//! An LRU cache of far-memory pages at the host, 4 KiB each (PULSE 6: the cache-based system).
//!
//! Key type: [`Pages`], which holds bytes and an order within a byte limit. The cache's owner fetches and
//! writes back.

pub use farmem::PAGE_LEN;
use farmem::VirtAddr;
use std::collections::BTreeMap;

/// The number of a page: its address divided by its length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Page(pub u64);

impl Page {
    /// Returns the page of `addr`, and the offset in it.
    #[must_use]
    pub const fn of(addr: VirtAddr) -> (Self, usize) {
        let len = PAGE_LEN as u64;
        #[expect(clippy::cast_possible_truncation, reason = "less than a page")]
        let offset = (addr.0 % len) as usize;
        (Self(addr.0 / len), offset)
    }

    /// Returns the address of the page's first byte.
    #[must_use]
    pub const fn addr(self) -> VirtAddr {
        VirtAddr(self.0 * PAGE_LEN as u64)
    }
}

/// The index that means no slot.
const NONE: u32 = u32::MAX;
/// Pages per table of the index.
const TABLE: usize = 512;

/// A cached page and its neighbours in LRU order.
#[derive(Clone, Copy, Debug)]
struct Slot {
    page: Page,
    dirty: bool,
    newer: u32,
    older: u32,
}

/// An evicted page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Evicted<'a> {
    /// The page.
    pub page: Page,
    /// The page's bytes if they were modified and must be written back.
    pub dirty: Option<&'a [u8]>,
}

/// The cached pages.
#[derive(Debug)]
pub struct Pages {
    bytes: Vec<u8>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    /// Slots by page, in tables like a processor's page table, because every access pays for this look-up.
    index: BTreeMap<u64, Box<[u32; TABLE]>>,
    /// The table used last.
    near: Option<(u64, Box<[u32; TABLE]>)>,
}

impl Pages {
    /// Creates a cache for as many whole pages as `bytes` holds.
    ///
    /// # Panics
    /// Panics when that is less than one page, or 16 TiB or more.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let capacity = bytes / PAGE_LEN as u64;
        assert!(capacity > 0, "{bytes} bytes hold no page");
        let capacity =
            u32::try_from(capacity).ok().filter(|&n| n < NONE).expect("a cache of less than 16 TiB");
        let slot = Slot { page: Page(0), dirty: false, newer: NONE, older: NONE };
        Self {
            bytes: vec![0; capacity as usize * PAGE_LEN],
            slots: vec![slot; capacity as usize],
            free: (0..capacity).rev().collect(),
            newest: NONE,
            oldest: NONE,
            index: BTreeMap::new(),
            near: None,
        }
    }

    /// Returns the capacity in pages.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of cached pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns true when no page is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the page's bytes if it is cached, and makes it the most recently used.
    pub fn get(&mut self, page: Page) -> Option<&[u8]> {
        let slot = self.touch(page)?;
        Some(&self.bytes[place(slot)..][..PAGE_LEN])
    }

    /// Returns the page's bytes for modification if it is cached, and makes it dirty and the most recently
    /// used.
    pub fn get_mut(&mut self, page: Page) -> Option<&mut [u8]> {
        let slot = self.touch(page)?;
        self.slots[slot as usize].dirty = true;
        Some(&mut self.bytes[place(slot)..][..PAGE_LEN])
    }

    /// Inserts a clean page as the most recently used.
    ///
    /// # Panics
    /// Panics when there is no room, the page is cached already, or `bytes` is not a page.
    pub fn fill(&mut self, page: Page, bytes: &[u8]) {
        assert!(self.slot_of(page).is_none(), "{page:?} is here already");
        let slot = self.free.pop().expect("room was made for it");
        self.bytes[place(slot)..][..PAGE_LEN].copy_from_slice(bytes);
        self.slots[slot as usize] = Slot { page, dirty: false, newer: NONE, older: NONE };
        self.set(page, slot);
        self.link_newest(slot);
    }

    /// Evicts the least recently used page; `None` when the cache is empty.
    pub fn evict(&mut self) -> Option<Evicted<'_>> {
        let slot = self.oldest;
        if slot == NONE {
            return None;
        }
        let Slot { page, dirty, .. } = self.slots[slot as usize];
        self.unlink(slot);
        self.set(page, NONE);
        self.free.push(slot);
        Some(Evicted { page, dirty: dirty.then(|| &self.bytes[place(slot)..][..PAGE_LEN]) })
    }

    /// Passes the dirty pages among the `most` least recently used ones to `write`. The pages stay and become
    /// clean.
    pub fn clean_oldest(&mut self, most: usize, mut write: impl FnMut(Page, &[u8])) {
        let mut slot = self.oldest;
        for _ in 0..most {
            let Some(this) = self.slots.get_mut(slot as usize) else { return };
            if core::mem::take(&mut this.dirty) {
                write(this.page, &self.bytes[place(slot)..][..PAGE_LEN]);
            }
            slot = this.newer;
        }
    }

    fn touch(&mut self, page: Page) -> Option<u32> {
        let slot = self.slot_of(page)?;
        if slot != self.newest {
            self.unlink(slot);
            self.link_newest(slot);
        }
        Some(slot)
    }

    fn slot_of(&mut self, page: Page) -> Option<u32> {
        let (number, entry) = split(page);
        self.table(number, false).map(|table| table[entry]).filter(|&slot| slot != NONE)
    }

    fn set(&mut self, page: Page, slot: u32) {
        let (number, entry) = split(page);
        self.table(number, true).expect("a table is made where there is none")[entry] = slot;
    }

    /// Returns the table with this number and makes it the near one.
    fn table(&mut self, number: u64, make: bool) -> Option<&mut [u32; TABLE]> {
        if self.near.as_ref().is_none_or(|(near, _)| *near != number) {
            let found = self.index.remove(&number);
            let table = found.or_else(|| make.then(|| Box::new([NONE; TABLE])))?;
            if let Some((number, table)) = self.near.replace((number, table)) {
                self.index.insert(number, table);
            }
        }
        self.near.as_mut().map(|(_, table)| &mut **table)
    }

    fn link_newest(&mut self, slot: u32) {
        let behind = self.newest;
        let this = &mut self.slots[slot as usize];
        (this.newer, this.older) = (NONE, behind);
        match self.slots.get_mut(behind as usize) {
            Some(behind) => behind.newer = slot,
            None => self.oldest = slot,
        }
        self.newest = slot;
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { newer, older, .. } = self.slots[slot as usize];
        match self.slots.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        match self.slots.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
    }
}

/// Returns the offset of a slot's bytes.
const fn place(slot: u32) -> usize {
    slot as usize * PAGE_LEN
}

/// Returns the number of a page's table, and its entry there.
const fn split(page: Page) -> (u64, usize) {
    let tables = TABLE as u64;
    #[expect(clippy::cast_possible_truncation, reason = "less than a table")]
    let entry = (page.0 % tables) as usize;
    (page.0 / tables, entry)
}

#[cfg(test)]
mod tests;
