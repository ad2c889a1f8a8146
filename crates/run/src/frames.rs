//! The memory that a run may use here: frames in programs, and the pool. Pure.
//!
//! Key types: [`Frames`], [`Pool`]. Both together are the local limit. A page leaves its program by way of the pool: there it waits to be
//! written to far memory if it was changed, and then rests. A touch brings it back without a fetch; one that nobody touches for
//! longest goes. So the pool is the write buffer, and tells which pages are in use, which frames cannot (their pages are read and
//! written without anybody noticing).

use super::slots::Slot;
use farmem_client::Ticket;
use farmem_paging::Recency;
use farmem_wire::message::PAGE_LEN;

/// A page of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Owner {
    /// The process's key.
    pub(super) process: u32,
    /// The page's number in it.
    pub(super) page: u64,
}

/// What a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Held {
    /// Nothing yet: the READ is under way. `write` when a thread waits to write.
    Fetching { ticket: Ticket, write: bool },
    /// What the page's slot has; read-only in the program.
    Clean,
    /// What the program wrote, and may go on writing.
    Dirty,
    /// What the page's slot is to have and has not; read-only in the program. Owners of the slot besides may want it.
    Owed,
}

/// Frames that programs see.
#[derive(Debug)]
pub(super) struct Frames {
    frames: Vec<Option<(Owner, Held)>>,
    free: Vec<u32>,
    /// Frames that may go.
    order: Recency,
}

impl Frames {
    pub(super) fn new(count: usize) -> Self {
        let numbers = u32::try_from(count).expect("a local limit below 16 TiB");
        Self { frames: vec![None; count], free: (0..numbers).rev().collect(), order: Recency::new(count) }
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn used(&self) -> usize {
        self.frames.len() - self.free.len()
    }

    /// Frames to keep free for faults to come: a sixteenth, and not so many that a burst would flush all.
    pub(super) fn reserve(&self) -> usize {
        const RESERVE_MAX: usize = 64;
        (self.frames.len() / 16).min(RESERVE_MAX)
    }

    /// Gives a page a frame; one is free.
    pub(super) fn insert(&mut self, owner: Owner, held: Held) -> u32 {
        let frame = self.free.pop().expect("room was made");
        self.frames[frame as usize] = Some((owner, held));
        self.order(frame, held);
        frame
    }

    pub(super) fn at(&self, frame: u32) -> (Owner, Held) {
        self.frames[frame as usize].expect("a frame that a page names is in use")
    }

    /// The frame's state is another, because it was used just now.
    pub(super) fn set(&mut self, frame: u32, held: Held) {
        let (owner, _) = self.at(frame);
        self.frames[frame as usize] = Some((owner, held));
        self.order(frame, held);
    }

    /// The page in it has another number now.
    pub(super) fn rename(&mut self, frame: u32, page: u64) {
        let (owner, held) = self.at(frame);
        self.frames[frame as usize] = Some((Owner { page, ..owner }, held));
    }

    pub(super) fn remove(&mut self, frame: u32) {
        assert!(self.frames[frame as usize].take().is_some(), "frame {frame} is in use");
        self.order.remove(frame);
        self.free.push(frame);
    }

    /// Takes the frame that came first out of the order: it is about to go.
    pub(super) fn pop_oldest(&mut self) -> Option<u32> {
        let frame = self.order.victim()?;
        self.order.remove(frame);
        Some(frame)
    }

    /// It stays after all.
    pub(super) fn keep(&mut self, frame: u32) {
        self.order.touch(frame);
    }

    fn order(&mut self, frame: u32, held: Held) {
        match held {
            Held::Fetching { .. } => self.order.remove(frame),
            Held::Clean | Held::Dirty | Held::Owed => self.order.touch(frame),
        }
    }
}

/// What a page of the pool is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pooled {
    /// What its slot has too: it may go at once.
    Clean,
    /// What its slot is to have; not sent yet.
    Unsent,
    /// A WRITE carries it to its slot.
    Sent,
}

/// A page that left its program, or whose program is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Resting {
    pub(super) slot: Slot,
    /// The page that finds its bytes here; `None` when only the slot needs them.
    pub(super) owner: Option<Owner>,
    pub(super) state: Pooled,
}

/// The pool.
#[derive(Debug)]
pub(super) struct Pool {
    pages: Vec<Option<Resting>>,
    free: Vec<u32>,
    /// Clean pages.
    order: Recency,
    bytes: Vec<u8>,
}

impl Pool {
    pub(super) fn new(count: usize) -> Self {
        let numbers = u32::try_from(count).expect("a local limit below 16 TiB");
        Self {
            pages: vec![None; count],
            free: (0..numbers).rev().collect(),
            order: Recency::new(count),
            bytes: vec![0; count * PAGE_LEN],
        }
    }

    pub(super) fn used(&self) -> usize {
        self.pages.len() - self.free.len()
    }

    /// A free place.
    pub(super) fn place(&mut self) -> Option<u32> {
        self.free.last().copied()
    }

    /// The clean page that rests longest.
    pub(super) fn victim(&self) -> Option<u32> {
        self.order.victim()
    }

    /// Puts a page into a free place, whose bytes have been filled.
    pub(super) fn put(&mut self, place: u32, page: Resting) {
        assert_eq!(self.free.pop(), Some(place), "the place that was given");
        self.pages[place as usize] = Some(page);
        self.order(place, page.state);
    }

    pub(super) fn at(&self, place: u32) -> Resting {
        self.find(place).expect("a place that is named is in use")
    }

    pub(super) fn find(&self, place: u32) -> Option<Resting> {
        self.pages[place as usize]
    }

    pub(super) fn set(&mut self, place: u32, page: Resting) {
        assert!(self.pages[place as usize].replace(page).is_some(), "place {place} is in use");
        self.order(place, page.state);
    }

    pub(super) fn remove(&mut self, place: u32) {
        assert!(self.pages[place as usize].take().is_some(), "place {place} is in use");
        self.order.remove(place);
        self.free.push(place);
    }

    pub(super) fn bytes(&self, place: u32) -> &[u8] {
        let start = place as usize * PAGE_LEN;
        &self.bytes[start..start + PAGE_LEN]
    }

    pub(super) fn bytes_mut(&mut self, place: u32) -> &mut [u8] {
        let start = place as usize * PAGE_LEN;
        &mut self.bytes[start..start + PAGE_LEN]
    }

    fn order(&mut self, place: u32, state: Pooled) {
        match state {
            Pooled::Clean => self.order.touch(place),
            Pooled::Unsent | Pooled::Sent => self.order.remove(place),
        }
    }
}
