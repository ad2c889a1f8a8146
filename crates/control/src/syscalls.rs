//! The memory system calls, with Linux's rules and error numbers, over the vmas of a rack (MIND 4.1, 4.2).
//!
//! An address space belongs to a protection domain: the processes of the domain, on whatever hosts, see the
//! same memory at the same addresses. A call itself changes nothing: it returns a [`Plan`], which contains
//! the [`Edit`]s to be made and the caller's result. The control plane tells switch and nodes, and then
//! applies the edits with [`Space::apply`]. A plan that was not carried out has changed nothing.
//!
//! Every mapping lies in power-of-two vmas, so that it takes few entries in the switch. The part of a vma
//! beyond the mapping is free: a later call at that address may have it, and an access to it is refused like
//! one to an unmapped page.

mod calls;
mod pages;
mod protection;

use crate::addresses::PAGE;
use crate::syscalls::pages::Pages;
use alloc::collections::BTreeMap;
pub(crate) use calls::{Allocator, Call, Plan};
pub(crate) use protection::{Errno, Prot};
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// Maximum number of areas of different protection in one address space: `vm.max_map_count` of Linux.
pub(crate) const AREAS_MAX: usize = 65_530;

/// One step of a plan. Lengths are whole pages. The addresses of an edit other than `Reserve` lie in one vma
/// of the space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Edit {
    /// Create a vma here: every byte zero, nothing mapped.
    Reserve { base: u64, size: u64 },
    /// Zero these bytes.
    Clear { base: u64, len: u64 },
    /// Map these pages with this protection.
    Map { base: u64, len: u64, prot: Prot },
    /// Unmap these pages.
    Unmap { base: u64, len: u64 },
    /// Give back the vma that begins here, with everything mapped in it.
    Release { base: u64 },
    /// Create a heap of `size` bytes from `start` on, none of it in use.
    Heap { start: u64, size: u64 },
    /// Set the end of the used part of the heap.
    Break { at: u64 },
}

/// Position of the heap and its used part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Heap {
    start: u64,
    end: u64,
    at: u64,
}

/// The address space of a domain.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Space {
    pages: Pages,
    /// Sizes of the vmas, by first byte.
    vmas: BTreeMap<u64, u64>,
    heap: Option<Heap>,
}

impl Space {
    /// Applies an edit of a plan of this space.
    pub(crate) fn apply(&mut self, edit: &Edit) {
        match *edit {
            Edit::Reserve { base, size } => {
                self.vmas.insert(base, size);
            }
            Edit::Clear { .. } => {}
            Edit::Map { base, len, prot } => self.pages.set(base, base + len, Some(prot)),
            Edit::Unmap { base, len } => self.pages.set(base, base + len, None),
            Edit::Release { base } => {
                if let Some(size) = self.vmas.remove(&base) {
                    self.pages.set(base, base + size, None);
                }
            }
            Edit::Heap { start, size } => self.heap = Some(Heap { start, end: start + size, at: start }),
            Edit::Break { at } => {
                if let Some(heap) = &mut self.heap {
                    heap.at = at;
                }
            }
        }
    }

    /// Iterates over the mapped areas in `base..end`: first byte, end, protection; ascending.
    pub(crate) fn mapped(&self, base: u64, end: u64) -> impl Iterator<Item = (u64, u64, Prot)> + '_ {
        self.pages.parts(base, end)
    }

    /// Returns where the heap begins.
    pub(crate) fn heap_start(&self) -> Option<u64> {
        self.heap.map(|heap| heap.start)
    }

    /// Iterates over the vmas: first byte and size, ascending.
    pub(crate) fn vmas(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.vmas.iter().map(|(&base, &size)| (base, size))
    }

    /// Returns the size of the vma that begins here.
    pub(crate) fn vma(&self, base: u64) -> Option<u64> {
        self.vmas.get(&base).copied()
    }

    /// Returns the first invariant about a space that does not hold, if any.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let mut end = 0;
        for (base, size) in self.vmas() {
            if !size.is_power_of_two() || size < PAGE || !base.is_multiple_of(size) || base < end {
                return Some("vmas are aligned powers of two and do not overlap");
            }
            end = base + size;
        }
        if !self.pages.is_sound() {
            return Some("areas are whole pages");
        }
        let held = |(base, end): (u64, u64)| {
            self.pieces(base, end).map(|(from, to)| to - from).sum::<u64>() == end - base
        };
        if !self.mapped(0, u64::MAX).all(|(base, end, _)| held((base, end))) {
            return Some("what is mapped lies in vmas");
        }
        let in_heap = |heap: &Heap| heap.start <= heap.at && heap.at <= heap.end;
        if !self.heap.as_ref().is_none_or(in_heap) {
            return Some("the break is in the heap");
        }
        None
    }

    /// Iterates over the parts of `base..end` that lie in vmas, cut where one vma ends and the next begins.
    fn pieces(&self, base: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let before = self.vmas.range(..=base).next_back().map(|(&at, _)| at);
        let cut = move |(&at, &size): (&u64, &u64)| (at.max(base), (at + size).min(end));
        self.vmas.range(before.unwrap_or(base)..end).map(cut).filter(|(from, to)| from < to)
    }
}
