//! Random calls of two address spaces on one rack, beside a plain model of Linux: an array of pages for each
//! space. A second model applies the edits as nodes would. It must arrive at the same pages, and no process
//! may ever see what another left behind.

use super::calls::{FIXED, FIXED_NOREPLACE};
use super::*;
use crate::addresses::first_fit;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

/// First byte and pages of the memory of two nodes, side by side. The first has no whole power of two of
/// pages.
const NODES: [(u64, u64); 2] = [(64 * PAGE, 23), (96 * PAGE, 32)];
const SPACES: usize = 2;
/// Pages of the address space that the model covers.
const PAGES: usize = 160;

fn index(addr: u64) -> usize {
    usize::try_from(addr / PAGE).unwrap()
}

fn pages(base: u64, len: u64) -> core::ops::Range<usize> {
    index(base)..index(base + len)
}

/// The rack's memory, as edits make it.
struct Rack {
    /// Vmas of all spaces: first byte, size and owner.
    vmas: BTreeMap<u64, (u64, usize)>,
    /// Permission of each space for a page.
    perms: Vec<Vec<Option<Prot>>>,
    /// The space that wrote to a page since it was cleared.
    written: Vec<Option<usize>>,
}

impl Allocator for Rack {
    fn fit(&self, size: u64) -> Option<u64> {
        NODES.into_iter().find_map(|(base, count)| {
            let end = base + count * PAGE;
            let taken = self.vmas.range(base..end).map(|(&at, &(size, _))| (at, size));
            first_fit(taken, base, end, size)
        })
    }

    fn is_free(&self, base: u64, size: u64) -> bool {
        let on_a_node =
            NODES.iter().any(|&(first, count)| base >= first && base + size <= first + count * PAGE);
        on_a_node && self.vmas.iter().all(|(&at, &(len, _))| base + size <= at || at + len <= base)
    }
}

impl Rack {
    fn new() -> Self {
        Self { vmas: BTreeMap::new(), perms: vec![vec![None; PAGES]; SPACES], written: vec![None; PAGES] }
    }

    fn make(&mut self, space: usize, edit: Edit) {
        let owned = |vmas: &BTreeMap<u64, (u64, usize)>, base: u64, len: u64| {
            let (at, (size, owner)) = vmas.range(..=base).next_back().expect("an edit is in a vma");
            assert!(*owner == space && base + len <= at + size, "{edit:?} leaves its vma");
        };
        match edit {
            Edit::Reserve { base, size } => {
                assert!(self.is_free(base, size), "{edit:?} overlaps another vma");
                self.vmas.insert(base, (size, space));
                self.written[pages(base, size)].fill(None);
            }
            Edit::Clear { base, len } => {
                owned(&self.vmas, base, len);
                self.written[pages(base, len)].fill(None);
            }
            Edit::Map { base, len, prot } => {
                owned(&self.vmas, base, len);
                self.perms[space][pages(base, len)].fill(Some(prot));
            }
            Edit::Unmap { base, len } => {
                owned(&self.vmas, base, len);
                self.perms[space][pages(base, len)].fill(None);
            }
            Edit::Release { base } => {
                let (size, owner) = self.vmas.remove(&base).expect("a vma is released once");
                assert_eq!(owner, space);
                self.perms[space][pages(base, size)].fill(None);
            }
            Edit::Heap { .. } | Edit::Break { .. } => {}
        }
    }

    /// Writes every page that may be written.
    fn write_everywhere(&mut self) {
        for (space, perms) in self.perms.iter().enumerate() {
            for (page, perm) in perms.iter().enumerate().filter(|(_, perm)| **perm == Some(Prot::ReadWrite)) {
                assert!(perm.is_some());
                self.written[page] = Some(space);
            }
        }
    }
}

/// A model of what Linux returns for one space.
struct Linux {
    pages: Vec<Option<Prot>>,
    heap: Option<(u64, u64, u64)>,
}

impl Linux {
    /// Returns the expected answer, or `None` if only a place must be found, which the model does not choose.
    fn call(
        &mut self,
        call: &Call,
        room: &Rack,
        space: usize,
        got: Result<u64, Errno>,
    ) -> Result<u64, Errno> {
        match *call {
            Call::Mmap { addr, len, prot, flags } => {
                let Some(len) = len.checked_next_multiple_of(PAGE) else { return Err(Errno::NoMemory) };
                if len == 0 {
                    return Err(Errno::Invalid);
                }
                let prot = Prot::from_bits(prot)?;
                let base = if flags & (FIXED | FIXED_NOREPLACE) != 0 {
                    if addr % PAGE != 0 || addr == 0 {
                        return Err(Errno::Invalid);
                    }
                    let range = self.range(addr, len).ok_or(Errno::NoMemory)?;
                    if flags & FIXED_NOREPLACE != 0 && self.pages[range.clone()].iter().any(Option::is_some) {
                        return Err(Errno::Exists);
                    }
                    if !range.clone().all(|page| available(room, space, page)) {
                        return Err(Errno::NoMemory);
                    }
                    addr
                } else {
                    let wish = addr.next_multiple_of(PAGE);
                    let wished = self.range(wish, len).filter(|_| wish > 0);
                    let free = |page: usize| self.pages[page].is_none() && available(room, space, page);
                    if wished.is_some_and(|mut range| range.all(free)) {
                        wish
                    } else if room.fit(len.next_power_of_two()).is_none() {
                        return Err(Errno::NoMemory);
                    } else {
                        let base = got?;
                        assert!(base % len.next_power_of_two() == 0 && base > 0);
                        assert!(self.pages[pages(base, len)].iter().all(Option::is_none), "it is not free");
                        base
                    }
                };
                self.pages[pages(base, len)].fill(Some(prot));
                Ok(base)
            }
            Call::Munmap { addr, len } => {
                let len = len.next_multiple_of(PAGE);
                if addr % PAGE != 0 || len == 0 {
                    return Err(Errno::Invalid);
                }
                let range = self.range(addr, len).ok_or(Errno::Invalid)?;
                self.pages[range].fill(None);
                Ok(0)
            }
            Call::Mprotect { addr, len, prot } => {
                if addr % PAGE != 0 {
                    return Err(Errno::Invalid);
                }
                if len == 0 {
                    return Ok(0);
                }
                let prot = Prot::from_bits(prot)?;
                for page in index(addr)..index(addr) + index(len.next_multiple_of(PAGE)) {
                    match self.pages.get_mut(page) {
                        Some(Some(at)) => *at = prot,
                        _ => return Err(Errno::NoMemory),
                    }
                }
                Ok(0)
            }
            Call::Brk { addr } => {
                let Some((start, size, at)) = self.heap else { return Ok(0) };
                if addr < start || addr > start + size {
                    return Ok(at);
                }
                let page = |addr: u64| index(addr.next_multiple_of(PAGE));
                if page(addr) > page(at) && self.pages[page(at)..page(addr)].iter().any(Option::is_some) {
                    return Ok(at);
                }
                if page(addr) > page(at) {
                    self.pages[page(at)..page(addr)].fill(Some(Prot::ReadWrite));
                } else {
                    self.pages[page(addr)..page(at)].fill(None);
                }
                self.heap = Some((start, size, addr));
                Ok(addr)
            }
        }
    }

    /// Returns the pages of a range if the model has them all.
    fn range(&self, base: u64, len: u64) -> Option<core::ops::Range<usize>> {
        base.checked_add(len).filter(|&end| index(end) <= self.pages.len()).map(|_| pages(base, len))
    }
}

/// Returns true if the page is the space's own, or free with memory behind it.
fn available(room: &Rack, space: usize, page: usize) -> bool {
    let at = page as u64 * PAGE;
    let own = room.vmas.range(..=at).next_back().filter(|(base, (size, _))| at < **base + size);
    own.map_or_else(|| room.is_free(at, PAGE), |(_, (_, owner))| *owner == space)
}

/// Generates an address near the nodes' memory, mostly at a page.
fn address() -> impl Strategy<Value = u64> {
    let odd = prop_oneof![9 => Just(0u64), 1 => 1..PAGE];
    prop_oneof![1 => Just(0u64), 12 => (60u64..132, odd).prop_map(|(page, odd)| page * PAGE + odd)]
}

/// Generates a length of up to twelve pages, sometimes none, sometimes no whole number of them.
fn length() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0u64), 9 => (0u64..12, 1..=PAGE).prop_map(|(pages, odd)| pages * PAGE + odd)]
}

fn call() -> impl Strategy<Value = Call> {
    let prot = || prop_oneof![20 => 0u32..4, 1 => 4u32..9];
    let flags = prop_oneof![4 => Just(0x22), 3 => Just(0x22 | FIXED), 2 => Just(0x22 | FIXED_NOREPLACE)];
    prop_oneof![
        5 => (address(), length(), prot(), flags).prop_map(|(addr, len, prot, flags)| Call::Mmap { addr, len, prot, flags }),
        4 => (address(), length()).prop_map(|(addr, len)| Call::Munmap { addr, len }),
        3 => (address(), length(), prot()).prop_map(|(addr, len, prot)| Call::Mprotect { addr, len, prot }),
        2 => address().prop_map(|addr| Call::Brk { addr }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Any calls of two spaces: answers and pages equal Linux's, and no page shows its earlier content.
    #[test]
    fn calls_do_what_linux_does(
        heaps in [0u64..6, 0u64..6],
        calls in prop::collection::vec((0..SPACES, call()), 1..120),
    ) {
        let mut rack = Rack::new();
        let mut spaces: Vec<Space> = Vec::new();
        let mut linux: Vec<Linux> = Vec::new();
        for (number, pages) in heaps.into_iter().enumerate() {
            let (mut space, plan) = (Space::default(), Space::begin(pages * PAGE, &rack));
            for edit in plan.edits {
                space.apply(&edit);
                rack.make(number, edit);
            }
            let heap = space.heap.map(|heap| (heap.start, heap.end - heap.start, heap.start));
            prop_assert_eq!(heap.is_some(), pages > 0);
            spaces.push(space);
            linux.push(Linux { pages: vec![None; PAGES], heap });
        }
        for (number, call) in calls {
            let before = linux[number].pages.clone();
            let plan = spaces[number].call(&call, &rack);
            let expected = linux[number].call(&call, &rack, number, plan.answer);
            prop_assert_eq!(plan.answer, expected, "{:?}", call);
            for edit in plan.edits {
                spaces[number].apply(&edit);
                rack.make(number, edit);
                prop_assert_eq!(spaces[number].fault(), None, "{:?} of {:?}", edit, call);
            }
            prop_assert_eq!(&rack.perms[number], &linux[number].pages, "{:?}", call);
            for (page, perm) in linux[number].pages.iter().enumerate() {
                let at = page as u64 * PAGE;
                let mapped = spaces[number].mapped(at, at + PAGE).next().map(|(_, _, prot)| prot);
                prop_assert_eq!(mapped, *perm);
                let replaced = matches!(call, Call::Mmap { .. }) && plan.answer.is_ok_and(|base| {
                    let Call::Mmap { len, .. } = call else { return false };
                    at >= base && at < base + len
                });
                let fresh = perm.is_some() && (before[page].is_none() || replaced);
                prop_assert!(!fresh || rack.written[page].is_none(), "page {} shows old bytes", page);
            }
            rack.write_everywhere();
        }
        for (number, space) in spaces.iter_mut().enumerate() {
            for edit in space.end().edits {
                space.apply(&edit);
                rack.make(number, edit);
            }
        }
        prop_assert!(rack.vmas.is_empty(), "all is given back");
    }
}

/// A mapping takes one vma, a power of two, and one protection for exactly its pages (MIND 4.1).
#[test]
fn a_mapping_is_one_power_of_two() {
    let rack = Rack::new();
    let plan = Space::default().call(&Call::Mmap { addr: 0, len: 5 * PAGE, prot: 3, flags: 0x22 }, &rack);
    let base = 64 * PAGE;
    assert_eq!(plan.answer, Ok(base));
    let map = Edit::Map { base, len: 5 * PAGE, prot: Prot::ReadWrite };
    assert_eq!(plan.edits, [Edit::Reserve { base, size: 8 * PAGE }, map]);
}

/// `mprotect` over a hole changes the pages before it and fails, as Linux does. The expected number of areas
/// is Linux's.
#[test]
fn a_hole_ends_mprotect() {
    let rack = Rack::new();
    let mut space = Space::default();
    let mut made = |call: Call| {
        let plan = space.call(&call, &rack);
        plan.edits.iter().for_each(|edit| space.apply(edit));
        (plan.answer, space.pages.len())
    };
    let (base, _) = made(Call::Mmap { addr: 0, len: 8 * PAGE, prot: 3, flags: 0x22 });
    let base = base.unwrap();
    assert_eq!(made(Call::Munmap { addr: base + 4 * PAGE, len: PAGE }), (Ok(0), 2));
    let protect = Call::Mprotect { addr: base + PAGE, len: 6 * PAGE, prot: 1 };
    assert_eq!(made(protect), (Err(Errno::NoMemory), 3));
}

/// Numbers at the very end of the address space: no call overflows.
#[test]
fn the_end_of_the_address_space_is_not_wrapped_around() {
    let (rack, space) = (Rack::new(), Space::default());
    let last = u64::MAX - PAGE + 1;
    for flags in [0, FIXED, FIXED_NOREPLACE] {
        for (addr, len) in
            [(last, PAGE), (last, u64::MAX), (PAGE, u64::MAX), (0, u64::MAX - 1), (u64::MAX, 1)]
        {
            let answer = space.call(&Call::Mmap { addr, len, prot: 0, flags }, &rack).answer;
            assert!(answer == Ok(64 * PAGE) || answer.is_err(), "{answer:?}");
        }
    }
    assert_eq!(space.call(&Call::Munmap { addr: last, len: u64::MAX }, &rack).answer, Err(Errno::Invalid));
    assert_eq!(
        space.call(&Call::Mprotect { addr: last, len: PAGE, prot: 0 }, &rack).answer,
        Err(Errno::NoMemory)
    );
    assert_eq!(space.call(&Call::Brk { addr: u64::MAX }, &rack).answer, Ok(0));
}
