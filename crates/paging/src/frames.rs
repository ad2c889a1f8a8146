//! Frames, and what is in them.
//!
//! Key type: [`Frames`]. Whatever changes in a frame goes through [`Frames::change`], which keeps the order and the counts.

use crate::recency::{Frame, ListId, Recency};
use crate::{Key, Op};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use farmem_wire::message::Access;

/// What is under way for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Busy {
    /// Nothing.
    No,
    /// A fetch brings it.
    Fetching {
        op: Op,
        /// A thread waits to write it.
        write: bool,
        /// A thread waits for it.
        waited: bool,
    },
    /// A write-back carries its bytes.
    Writing {
        op: Op,
        /// It was written to since.
        again: bool,
    },
    /// The right to write it is asked for; it may be read meanwhile.
    Upgrading { op: Op },
    /// The right to write it was taken, and its bytes are on their way; it may be read meanwhile.
    Settling {
        op: Op,
        /// A thread waits to write it.
        wanted: bool,
    },
    /// It is given up, and its bytes are on their way; no program may use it any more.
    Leaving {
        op: Op,
        /// A thread waits for it, to write it or not.
        wanted: Option<bool>,
    },
}

/// A page that has a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Page {
    pub(crate) key: Key,
    /// How programs may use it; as they like where no other host does.
    pub(crate) right: Access,
    /// How programs have it mapped; not at all while it is inactive, or on its way.
    pub(crate) mapped: Option<Access>,
    /// Far memory is behind.
    pub(crate) dirty: bool,
    /// It stays where it is.
    pub(crate) pins: u32,
    /// It came beside another, and no thread is known to have used it.
    pub(crate) ahead: bool,
    pub(crate) busy: Busy,
}

impl Page {
    /// Its bytes are here and no program has it.
    pub(crate) const fn is_inactive(&self) -> bool {
        self.mapped.is_none() && !self.is_coming_or_going()
    }

    /// It is to be written back: it is inactive, far memory does not have it, and nothing holds or carries it.
    pub(crate) fn is_to_send(&self) -> bool {
        self.is_inactive() && self.dirty && self.busy == Busy::No && self.pins == 0
    }

    /// Its bytes are not here, or no program may use them.
    pub(crate) const fn is_coming_or_going(&self) -> bool {
        matches!(self.busy, Busy::Fetching { .. } | Busy::Leaving { .. })
    }

    const fn leaves(&self) -> bool {
        matches!(self.busy, Busy::Leaving { .. })
    }

    /// Programs have it, and far memory is behind.
    pub(crate) const fn is_written(&self) -> bool {
        self.mapped.is_some() && self.dirty
    }

    /// Where it stands when pages go. Where rights are asked for (`coherent`), what was written is written back as it goes.
    const fn place(&self, coherent: bool) -> ListId {
        match (self.busy, self.mapped) {
            (
                Busy::Fetching { .. } | Busy::Upgrading { .. } | Busy::Settling { .. } | Busy::Leaving { .. },
                _,
            ) => ListId::Out,
            _ if self.pins > 0 => ListId::Out,
            (_, Some(_)) => ListId::Active,
            (Busy::No, None) if coherent || !self.dirty => ListId::Inactive,
            _ => ListId::Out,
        }
    }
}

/// Pages of a leaf.
const LEAF: u64 = 64;
/// All frames, free or not.
#[derive(Debug)]
pub(crate) struct Frames {
    pages: Vec<Option<Page>>,
    free: Vec<Frame>,
    order: Recency,
    inactive: usize,
    leaving: usize,
    /// Pages that programs have, and that far memory does not.
    written: usize,
    /// Frames for pages that are here and that the cache does not see.
    aside: usize,
    coherent: bool,
    /// By space and number of the leaf.
    leaves: BTreeMap<(u32, u64), Leaf>,
}

#[derive(Debug)]
struct Leaf {
    /// Of each page its frame and one, or 0: such memory the system has at hand.
    frames: Box<[Frame]>,
    used: u32,
}

impl Frames {
    pub(crate) fn new(count: usize) -> Self {
        let numbers = Frame::try_from(count).expect("a local limit below 16 TiB");
        Self {
            pages: vec![None; count],
            free: (0..numbers).rev().collect(),
            order: Recency::new(count),
            inactive: 0,
            leaving: 0,
            written: 0,
            aside: 0,
            coherent: false,
            leaves: BTreeMap::new(),
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.pages.len()
    }

    pub(crate) const fn free(&self) -> usize {
        self.free.len() - self.aside
    }

    /// Frames that hold a page, and those set aside.
    pub(crate) const fn taken(&self) -> usize {
        self.used() + self.aside
    }

    /// Sets frames aside, or no longer.
    pub(crate) const fn set_aside(&mut self, frames: usize) {
        self.aside = frames;
    }

    pub(crate) const fn used(&self) -> usize {
        self.pages.len() - self.free.len()
    }

    /// Inactive pages, written back or not.
    pub(crate) const fn inactive(&self) -> usize {
        self.inactive
    }

    /// Of the inactive pages those that far memory does not have yet, where no rights are asked for.
    pub(crate) const fn sending(&self) -> usize {
        self.inactive - self.order.inactive()
    }

    /// Pages whose frames are free when their bytes have arrived.
    pub(crate) const fn leaving(&self) -> usize {
        self.leaving
    }

    /// Pages that programs have and that are to be written back before they go.
    pub(crate) const fn written(&self) -> usize {
        self.written
    }

    /// Rights are asked for.
    pub(crate) const fn is_coherent(&self) -> bool {
        self.coherent
    }

    /// From here on rights are asked for; no page is here yet.
    pub(crate) const fn set_coherent(&mut self) {
        self.coherent = true;
    }

    /// Pages that programs have, or may have unseen, or that are on their way.
    pub(crate) const fn active(&self) -> usize {
        self.taken() - self.inactive
    }

    /// Pages that programs have and that may be deactivated.
    pub(crate) const fn mapped(&self) -> usize {
        self.order.len() - self.order.inactive()
    }

    pub(crate) fn find(&self, key: Key) -> Option<Frame> {
        self.leaves.get(&(key.space, key.page / LEAF))?.frames[within(key)].checked_sub(1)
    }

    pub(crate) fn at(&self, frame: Frame) -> Page {
        self.get(frame).expect("a frame that was found holds a page")
    }

    pub(crate) fn get(&self, frame: Frame) -> Option<Page> {
        self.pages[frame as usize]
    }

    /// Gives a page a frame; one is free.
    pub(crate) fn insert(&mut self, page: Page) -> Frame {
        let frame = self.free.pop().expect("room was made");
        self.index(page.key, frame);
        self.pages[frame as usize] = Some(page);
        self.inactive += usize::from(page.is_inactive());
        self.written += usize::from(page.is_written());
        self.order.put(frame, page.place(self.coherent));
        frame
    }

    /// Changes a page; one that is `used` is the youngest of those it is among from now on.
    pub(crate) fn change(&mut self, frame: Frame, used: bool, how: impl FnOnce(&mut Page)) -> Page {
        let before = self.at(frame);
        let mut page = before;
        how(&mut page);
        assert_eq!(page.key, before.key, "a page keeps its name");
        self.inactive = self.inactive + usize::from(page.is_inactive()) - usize::from(before.is_inactive());
        self.leaving = self.leaving + usize::from(page.leaves()) - usize::from(before.leaves());
        self.written = self.written + usize::from(page.is_written()) - usize::from(before.is_written());
        self.pages[frame as usize] = Some(page);
        let place = page.place(self.coherent);
        if used || place != before.place(self.coherent) {
            self.order.put(frame, place);
        }
        page
    }

    /// The page in a frame goes by another name from now on, which no page has.
    pub(crate) fn rename(&mut self, frame: Frame, key: Key) {
        let page = self.pages[frame as usize].as_mut().expect("a frame that was found holds a page");
        let before = core::mem::replace(&mut page.key, key);
        self.unindex(before);
        self.index(key, frame);
    }

    pub(crate) fn remove(&mut self, frame: Frame) -> Page {
        let page = self.pages[frame as usize].take().expect("a frame that was found holds a page");
        self.unindex(page.key);
        self.inactive -= usize::from(page.is_inactive());
        self.leaving -= usize::from(page.leaves());
        self.written -= usize::from(page.is_written());
        self.order.put(frame, ListId::Out);
        self.free.push(frame);
        page
    }

    /// The page that programs have and that was used longest ago.
    pub(crate) fn oldest_mapped(&self) -> Option<Frame> {
        self.order.oldest(ListId::Active)
    }

    /// The pages that programs have, the one that was used longest ago first.
    pub(crate) fn oldest_mapped_first(&self) -> impl Iterator<Item = (Frame, Page)> {
        self.order.oldest_first(ListId::Active).map(|frame| (frame, self.at(frame)))
    }

    /// The page, if programs have it and it may be deactivated, goes before all others that they have.
    pub(crate) fn retire(&mut self, key: Key) {
        if let Some(frame) = self.find(key) {
            self.order.retire(frame);
        }
    }

    /// The oldest inactive page, of those that far memory has too.
    pub(crate) fn oldest_inactive(&self) -> Option<Frame> {
        self.order.oldest(ListId::Inactive)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (Frame, Page)> {
        (0..).zip(&self.pages).filter_map(|(frame, page)| page.map(|page| (frame, page)))
    }

    /// The first page of a space from `from` on, below `end`.
    pub(crate) fn next(&self, from: Key, end: u64) -> Option<(Frame, Key)> {
        let last = end.checked_sub(1).filter(|&last| last >= from.page)? / LEAF;
        for (&(_, number), leaf) in self.leaves.range((from.space, from.page / LEAF)..=(from.space, last)) {
            let start = number * LEAF;
            for page in start.max(from.page)..(start + LEAF).min(end) {
                if let Some(frame) = leaf.frames[within(from.with(page))].checked_sub(1) {
                    return Some((frame, from.with(page)));
                }
            }
        }
        None
    }

    /// The first page from this one on, upwards, that has no frame.
    pub(crate) fn first_without(&self, key: Key) -> u64 {
        let mut page = key.page;
        while let Some(leaf) = self.leaves.get(&(key.space, page / LEAF)) {
            if u64::from(leaf.used) < LEAF {
                let from = within(key.with(page));
                let some = leaf.frames[from..].iter().position(|&frame| frame == 0);
                if let Some(at) = some {
                    return page + at as u64;
                }
            }
            page = (page / LEAF + 1) * LEAF;
        }
        page
    }

    /// The last page up to this one that has no frame; `None` when all have one.
    pub(crate) fn last_without(&self, key: Key) -> Option<u64> {
        let mut page = key.page;
        while let Some(leaf) = self.leaves.get(&(key.space, page / LEAF)) {
            if u64::from(leaf.used) < LEAF {
                let until = within(key.with(page));
                let some = leaf.frames[..=until].iter().rposition(|&frame| frame == 0);
                if let Some(at) = some {
                    return Some(page / LEAF * LEAF + at as u64);
                }
            }
            page = (page / LEAF * LEAF).checked_sub(1)?;
        }
        Some(page)
    }

    fn index(&mut self, key: Key, frame: Frame) {
        let new = || Leaf { frames: vec![0; within(key.with(LEAF - 1)) + 1].into(), used: 0 };
        let leaf = self.leaves.entry((key.space, key.page / LEAF)).or_insert_with(new);
        let place = &mut leaf.frames[within(key)];
        assert_eq!(*place, 0, "{key:?} has one frame");
        *place = frame + 1;
        leaf.used += 1;
    }

    fn unindex(&mut self, key: Key) {
        let at = (key.space, key.page / LEAF);
        let leaf = self.leaves.get_mut(&at).expect("a page that has a frame is in the index");
        leaf.frames[within(key)] = 0;
        leaf.used -= 1;
        if leaf.used == 0 {
            self.leaves.remove(&at);
        }
    }

    /// Asserts that counts, order and index agree with the pages.
    pub(crate) fn check(&self) {
        let (mut inactive, mut leaving, mut written) = (0, 0, 0);
        for (frame, page) in self.all() {
            inactive += usize::from(page.is_inactive());
            leaving += usize::from(page.leaves());
            written += usize::from(page.is_written());
            assert_eq!(self.find(page.key), Some(frame), "{page:?} is in the index");
            assert_eq!(self.order.place(frame), page.place(self.coherent), "{page:?} is in its order");
            assert!(page.mapped <= Some(page.right), "{page:?}: no program may do more than is right");
            let rightful = page.dirty == (page.right == Access::Modified && !page.is_coming_or_going());
            assert!(rightful || !self.coherent, "{page:?}: a program that may write may have written");
            assert!(
                page.mapped != Some(Access::Modified) || page.dirty,
                "{page:?}: a program that may write has written"
            );
        }
        assert_eq!(
            (inactive, leaving, written),
            (self.inactive, self.leaving, self.written),
            "as many are inactive, leave and were written as are counted"
        );
        let indexed: u32 = self.leaves.values().map(|leaf| leaf.used).sum();
        assert_eq!(indexed as usize, self.used(), "the index has no other pages");
    }
}

fn within(key: Key) -> usize {
    usize::try_from(key.page % LEAF).expect("a small number")
}
