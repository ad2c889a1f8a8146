//! Frames and their contents.
//!
//! Key type: [`Frames`]. Every change of a frame goes through [`Frames::change`], which keeps the order and
//! the counts.

use crate::recency::{Frame, ListId, Recency};
use crate::{Key, Op};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use farmem_wire::message::Access;

/// The operation in flight for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Busy {
    /// None.
    No,
    /// A fetch.
    Fetching {
        op: Op,
        /// A thread waits to write the page.
        write: bool,
        /// A thread waits for the page.
        waited: bool,
    },
    /// A write-back.
    Writing {
        op: Op,
        /// The page was written since the write-back began.
        again: bool,
    },
    /// A request for the right to write. The page stays readable.
    Upgrading { op: Op },
    /// A write-back after the right to write was revoked. The page stays readable.
    Settling {
        op: Op,
        /// A thread waits to write the page.
        awaited: bool,
    },
    /// A write-back at eviction. No program may access the page.
    Leaving {
        op: Op,
        /// A thread waits for the page; true if it writes.
        awaited: Option<bool>,
    },
}

/// A page that has a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Page {
    pub(crate) key: Key,
    /// The access that programs may have. Always `Modified` if no other host shares the page.
    pub(crate) right: Access,
    /// The access with which programs have the page mapped. `None` while the page is inactive or in flight.
    pub(crate) mapped: Option<Access>,
    /// The bytes in far memory are out of date.
    pub(crate) dirty: bool,
    /// Number of pins.
    pub(crate) pins: u32,
    /// True if the page was prefetched and no use was seen.
    pub(crate) ahead: bool,
    pub(crate) busy: Busy,
}

impl Page {
    /// Returns true if the page's bytes are here and no program has it mapped.
    pub(crate) const fn is_inactive(&self) -> bool {
        self.mapped.is_none() && !self.is_coming_or_going()
    }

    /// Returns true if the page should be written back: it is inactive, dirty, not pinned, and in no
    /// operation.
    pub(crate) fn is_to_send(&self) -> bool {
        self.is_inactive() && self.dirty && self.busy == Busy::No && self.pins == 0
    }

    /// Returns true if the page's bytes are not here, or no program may access them.
    pub(crate) const fn is_coming_or_going(&self) -> bool {
        matches!(self.busy, Busy::Fetching { .. } | Busy::Leaving { .. })
    }

    const fn leaves(&self) -> bool {
        matches!(self.busy, Busy::Leaving { .. })
    }

    /// Returns true if programs have the page mapped and it is dirty.
    pub(crate) const fn is_written(&self) -> bool {
        self.mapped.is_some() && self.dirty
    }

    /// Returns the list of the page in the eviction order. With `coherent`, dirty pages are written back at
    /// eviction.
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
    /// Number of pages that are mapped and dirty.
    written: usize,
    /// Number of frames set aside for pages outside the cache's control.
    aside: usize,
    coherent: bool,
    /// Leaves by space and leaf number.
    leaves: BTreeMap<(u32, u64), Leaf>,
}

#[derive(Debug)]
struct Leaf {
    /// For each page its frame plus one, or 0: zeroed memory is cheap to allocate.
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

    /// Returns the number of frames that hold a page or are set aside.
    pub(crate) const fn taken(&self) -> usize {
        self.used() + self.aside
    }

    /// Changes the number of frames set aside.
    pub(crate) const fn set_aside(&mut self, frames: usize) {
        self.aside = frames;
    }

    pub(crate) const fn used(&self) -> usize {
        self.pages.len() - self.free.len()
    }

    /// Returns the number of inactive pages, clean or dirty.
    pub(crate) const fn inactive(&self) -> usize {
        self.inactive
    }

    /// Returns the number of inactive pages that far memory does not have yet, in a cache that is not
    /// coherent.
    pub(crate) const fn sending(&self) -> usize {
        self.inactive - self.order.inactive()
    }

    /// Returns the number of pages whose frames are free once their write-back ends.
    pub(crate) const fn leaving(&self) -> usize {
        self.leaving
    }

    /// Returns the number of mapped pages that must be written back before eviction.
    pub(crate) const fn written(&self) -> usize {
        self.written
    }

    /// Returns true if the cache is coherent.
    pub(crate) const fn is_coherent(&self) -> bool {
        self.coherent
    }

    /// Makes the cache coherent. No page may be resident yet.
    pub(crate) const fn set_coherent(&mut self) {
        self.coherent = true;
    }

    /// Returns the number of frames of mapped pages, pages set aside, and pages in flight.
    pub(crate) const fn active(&self) -> usize {
        self.taken() - self.inactive
    }

    /// Returns the number of mapped pages that may be deactivated.
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

    /// Gives a page a frame. A frame must be free.
    pub(crate) fn insert(&mut self, page: Page) -> Frame {
        let frame = self.free.pop().expect("room was made");
        self.index(page.key, frame);
        self.pages[frame as usize] = Some(page);
        self.inactive += usize::from(page.is_inactive());
        self.written += usize::from(page.is_written());
        self.order.put(frame, page.place(self.coherent));
        frame
    }

    /// Changes a page. If `used`, the page becomes the youngest of its list.
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

    /// Changes the key of the page in a frame. No other page has the new key.
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

    /// Returns the least recently used mapped page.
    pub(crate) fn oldest_mapped(&self) -> Option<Frame> {
        self.order.oldest(ListId::Active)
    }

    /// Returns the mapped pages, least recently used first.
    pub(crate) fn oldest_mapped_first(&self) -> impl Iterator<Item = (Frame, Page)> {
        self.order.oldest_first(ListId::Active).map(|frame| (frame, self.at(frame)))
    }

    /// Makes a mapped page the next one to be deactivated.
    pub(crate) fn retire(&mut self, key: Key) {
        if let Some(frame) = self.find(key) {
            self.order.retire(frame);
        }
    }

    /// Returns the oldest inactive page, of those that can be dropped.
    pub(crate) fn oldest_inactive(&self) -> Option<Frame> {
        self.order.oldest(ListId::Inactive)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (Frame, Page)> {
        (0..).zip(&self.pages).filter_map(|(frame, page)| page.map(|page| (frame, page)))
    }

    /// Returns the first page of a space from `from` on, below `end`.
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

    /// Returns the first page from this one upwards that has no frame.
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

    /// Returns the last page up to this one that has no frame; `None` if all have one.
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
