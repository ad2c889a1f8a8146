//! Which pages of a window are here, in which frame, and in which state. Pure.

use crate::client::Ticket;
use farmem_io::pages::{Frame, Recency};

/// A frame's place in the cache.
pub(super) type Slot = Frame;

/// What a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Held {
    /// Nothing yet: the page is on its way. `write` when a thread waits to write it.
    Fetching { write: bool },
    /// What far memory has.
    Clean,
    /// What the program wrote; far memory is behind.
    Dirty,
    /// What the operation carries to far memory.
    Writing(Ticket),
}

/// The frames of a window, as many as the local limit allows.
#[derive(Debug)]
pub(super) struct Cache {
    /// Per page of the window: its slot and one, or 0. The system gives memory for the parts that are used.
    table: Vec<u32>,
    frames: Vec<Option<(u64, Held)>>,
    free: Vec<Slot>,
    /// Frames that may go: clean and dirty ones.
    recency: Recency,
}

impl Cache {
    pub(super) fn new(pages: usize, frames: usize) -> Self {
        let count = Slot::try_from(frames).expect("a local limit below 16 TiB");
        Self {
            table: vec![0; pages],
            frames: vec![None; frames],
            free: (0..count).rev().collect(),
            recency: Recency::new(frames),
        }
    }

    /// The slot of a page that is here, or on its way.
    pub(super) fn find(&self, page: u64) -> Option<Slot> {
        self.table[place(page)].checked_sub(1)
    }

    /// The page in a slot, and its state.
    pub(super) fn at(&self, slot: Slot) -> (u64, Held) {
        self.occupied(slot).expect("a slot that was found holds a page")
    }

    pub(super) fn occupied(&self, slot: Slot) -> Option<(u64, Held)> {
        self.frames[slot as usize]
    }

    pub(super) fn slots(&self) -> std::ops::Range<Slot> {
        0..Slot::try_from(self.frames.len()).expect("checked when it was made")
    }

    /// Gives a page a frame; one is free.
    pub(super) fn insert(&mut self, page: u64, held: Held) -> Slot {
        assert!(self.find(page).is_none(), "page {page} has a frame");
        let slot = self.free.pop().expect("room was made");
        self.table[place(page)] = slot + 1;
        self.frames[slot as usize] = Some((page, held));
        self.order(slot, held);
        slot
    }

    /// The page's state is another, because it was used just now.
    pub(super) fn set(&mut self, slot: Slot, held: Held) {
        let (page, _) = self.at(slot);
        self.frames[slot as usize] = Some((page, held));
        self.order(slot, held);
    }

    /// The page is far again.
    pub(super) fn remove(&mut self, slot: Slot) {
        let (page, _) = self.at(slot);
        self.table[place(page)] = 0;
        self.frames[slot as usize] = None;
        self.recency.remove(slot);
        self.free.push(slot);
    }

    fn order(&mut self, slot: Slot, held: Held) {
        match held {
            Held::Clean | Held::Dirty => self.recency.touch(slot),
            Held::Fetching { .. } | Held::Writing(_) => self.recency.remove(slot),
        }
    }

    /// The page to go first.
    pub(super) fn victim(&self) -> Option<Slot> {
        self.recency.victim()
    }

    /// Frames without a page.
    pub(super) fn free(&self) -> u64 {
        self.free.len() as u64
    }

    /// Frames to keep free for faults to come: a sixteenth, and not so many that a burst would flush the cache.
    pub(super) fn reserve(&self) -> u64 {
        const RESERVE_MAX: usize = 64;
        (self.frames.len() / 16).min(RESERVE_MAX) as u64
    }

    /// Lays the page that was used longest ago to rest, and names it.
    pub(super) fn rest(&mut self) -> Option<u64> {
        self.recency.rest().map(|slot| self.at(slot).0)
    }

    pub(super) fn rests(&self, slot: Slot) -> bool {
        self.recency.rests(slot)
    }

    pub(super) fn resting(&self) -> usize {
        self.recency.resting()
    }

    /// Pages that are here and may go.
    pub(super) fn len(&self) -> usize {
        self.recency.len()
    }
}

fn place(page: u64) -> usize {
    usize::try_from(page).expect("a page of the window")
}
