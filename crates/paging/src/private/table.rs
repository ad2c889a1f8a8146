//! The page table of a process: each page's slot in far memory, and its local copy. Pure.
//!
//! Key type: [`Table`], a radix tree of two levels: directories of leaves, and leaves of [`LEAF`] pages, which exist
//! while one of their pages is anywhere. A process with few pages in its large address range needs little memory.

use super::slots::Slot;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;
use core::ops::Range;

/// The location of a page. A page that is nowhere is all zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// The page's slot in far memory, whose bytes may be out of date.
    pub(super) slot: Option<Slot>,
    /// The local copy.
    pub(super) here: LocalCopy,
}

/// The location of a page's local copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LocalCopy {
    /// No local copy.
    No,
    /// In the program.
    Program,
    /// In this place of the pool.
    Pool(u32),
}

impl Entry {
    pub(super) const NOWHERE: Self = Self { slot: None, here: LocalCopy::No };
}

/// An entry in two words. The highest value means none, the one below means the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Packed {
    slot: u32,
    here: u32,
}

const NONE: u32 = u32::MAX;
const PROGRAM: u32 = u32::MAX - 1;

impl Packed {
    const NOWHERE: Self = Self { slot: NONE, here: NONE };

    fn of(entry: Entry) -> Self {
        let here = match entry.here {
            LocalCopy::No => NONE,
            LocalCopy::Program => PROGRAM,
            LocalCopy::Pool(place) => place,
        };
        Self { slot: entry.slot.map_or(NONE, |slot| slot.0), here }
    }

    fn entry(self) -> Entry {
        let here = match self.here {
            NONE => LocalCopy::No,
            PROGRAM => LocalCopy::Program,
            place => LocalCopy::Pool(place),
        };
        Entry { slot: (self.slot != NONE).then_some(Slot(self.slot)), here }
    }
}

/// Pages of a leaf.
const LEAF: usize = 512;
/// Leaves of a directory.
const DIRECTORY: usize = 512;

type Directory = [Option<Box<Leaf>>; DIRECTORY];

/// The pages of a process, or of one that does not exist yet.
#[derive(Debug)]
pub struct Table {
    pages: u64,
    directories: Vec<Option<Box<Directory>>>,
}

#[derive(Clone, Debug)]
struct Leaf {
    entries: [Packed; LEAF],
    /// Number of pages that are anywhere.
    used: u32,
}

impl Table {
    /// Returns a table of `pages` pages, all nowhere.
    #[must_use]
    pub fn new(pages: u64) -> Self {
        let directories = place(pages).div_ceil(LEAF * DIRECTORY);
        Self { pages, directories: (0..directories).map(|_| None).collect() }
    }

    /// Returns the number of pages.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the entry of a page. A page beyond the end is nowhere: callers also look up the last page's
    /// neighbour.
    pub(super) fn get(&self, page: u64) -> Entry {
        let page = place(page);
        let directory = self.directories.get(page / LEAF / DIRECTORY).and_then(Option::as_ref);
        let leaf = directory.and_then(|directory| directory[page / LEAF % DIRECTORY].as_ref());
        leaf.map_or(Entry::NOWHERE, |leaf| leaf.entries[page % LEAF].entry())
    }

    pub(super) fn set(&mut self, page: u64, entry: Entry) {
        let page = place(page);
        let directory = &mut self.directories[page / LEAF / DIRECTORY];
        let packed = Packed::of(entry);
        if directory.is_none() && packed == Packed::NOWHERE {
            return;
        }
        let directory = directory.get_or_insert_with(|| Box::new([const { None }; DIRECTORY]));
        let leaf = &mut directory[page / LEAF % DIRECTORY];
        if leaf.is_none() && packed == Packed::NOWHERE {
            return;
        }
        let inner = leaf.get_or_insert_with(|| Box::new(Leaf { entries: [Packed::NOWHERE; LEAF], used: 0 }));
        let was = mem::replace(&mut inner.entries[page % LEAF], packed);
        inner.used += u32::from(packed != Packed::NOWHERE);
        inner.used -= u32::from(was != Packed::NOWHERE);
        if inner.used == 0 {
            *leaf = None;
        }
    }

    /// Returns the first page of `pages` that is anywhere, and its entry.
    pub(super) fn next(&self, pages: Range<u64>) -> Option<(u64, Entry)> {
        self.all(pages).next()
    }

    /// Returns the pages among these that are anywhere, and their entries.
    pub(super) fn all(&self, pages: Range<u64>) -> impl Iterator<Item = (u64, Entry)> {
        let (start, end) = (place(pages.start), place(pages.end));
        self.leaves(start / LEAF..end.div_ceil(LEAF)).flat_map(move |(number, leaf)| {
            let of = number * LEAF;
            let within = start.max(of)..end.min(of + LEAF);
            let entries = within.map(move |at| (at as u64, leaf.entries[at - of]));
            entries.filter(|(_, at)| *at != Packed::NOWHERE).map(|(page, at)| (page, at.entry()))
        })
    }

    /// Returns the leaves among these that exist, and their numbers.
    fn leaves(&self, numbers: Range<usize>) -> impl Iterator<Item = (usize, &Leaf)> {
        let first = numbers.start / DIRECTORY;
        let end = numbers.end.div_ceil(DIRECTORY).min(self.directories.len());
        let some = self.directories.get(first..end).unwrap_or_default().iter().enumerate();
        some.filter_map(move |(n, directory)| Some(((first + n) * DIRECTORY, directory.as_deref()?)))
            .flat_map(move |(of, directory)| {
                let within = numbers.start.max(of)..numbers.end.min(of + DIRECTORY);
                within.filter_map(move |at| Some((at, directory[at - of].as_deref()?)))
            })
    }
}

fn place(page: u64) -> usize {
    usize::try_from(page).expect("pages of one address space")
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = Entry> {
        let here =
            prop_oneof![Just(LocalCopy::No), Just(LocalCopy::Program), (0_u32..9).prop_map(LocalCopy::Pool)];
        (proptest::option::of((0_u32..9).prop_map(Slot)), here).prop_map(|(slot, here)| Entry { slot, here })
    }

    /// The last page of an address space is written back, and its neighbours are looked up: there is none
    /// behind it.
    #[test]
    fn behind_the_last_page_is_nothing() {
        let pages = 2 * LEAF as u64;
        let mut table = Table::new(pages);
        let there = Entry { slot: None, here: LocalCopy::Program };
        table.set(pages - 1, there);
        assert_eq!([table.get(pages - 1), table.get(pages)], [there, Entry::NOWHERE]);
    }

    proptest! {
        #[test]
        fn as_a_map(sets in proptest::collection::vec((0_u64..2000, entry()), 0..60), from in 0_u64..2000) {
            // The pages are on both sides of the border of two directories.
            let first = (LEAF * DIRECTORY) as u64 - 1000;
            let (sets, from) = (sets.into_iter().map(|(page, entry)| (first + page, entry)), first + from);
            let mut table = Table::new(first + 2000);
            let mut plain = BTreeMap::new();
            for (page, entry) in sets {
                table.set(page, entry);
                plain.insert(page, entry);
                plain.retain(|_, entry| *entry != Entry::NOWHERE);
            }
            for page in first..first + 2000 {
                prop_assert_eq!(table.get(page), plain.get(&page).copied().unwrap_or(Entry::NOWHERE));
            }
            let plain_next = plain.range(from..).next().map(|(&page, &entry)| (page, entry));
            prop_assert_eq!(table.next(from..first + 2000), plain_next);
            prop_assert!(table.all(from..first + 1500).eq(plain.range(from..from.max(first + 1500)).map(|(&page, &entry)| (page, entry))));
            let leaves = plain.keys().map(|page| page / 512).collect::<alloc::collections::BTreeSet<_>>();
            prop_assert!(table.leaves(0..2 * DIRECTORY).map(|(number, _)| number as u64).eq(leaves));
        }
    }
}
