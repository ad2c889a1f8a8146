//! The borders of small vmas: a region of the directory never crosses from one vma into the next (PROTOCOL
//! 12.52).
//!
//! [`Vmas`] has a row for each vma that is smaller than the largest region and of which a domain may use a
//! byte. A larger vma is a multiple of every region and aligned to its size, so no region crosses its border.
//! Rows come and go with `Protect`, which names the vma of its bytes.

use crate::{TableError, Usage};
use alloc::collections::BTreeMap;
use farmem_wire::message::{PAGE_LEN, REGION_ORDER_MAX, Region};
use farmem_wire::{Perm, VirtAddr};

/// The smallest vma.
const PAGE_LOG2: u8 = 12;
const _: () = assert!(1 << PAGE_LOG2 == PAGE_LEN, "a page");
/// Vmas from this size on hold whole regions only.
const LARGE_LOG2: u8 = PAGE_LOG2 + REGION_ORDER_MAX;

/// The vmas smaller than 2 MiB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Vmas {
    /// Vmas by first byte; they do not overlap.
    rows: BTreeMap<u64, VmaEntry>,
    budget: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct VmaEntry {
    size_log2: u8,
    /// Bytes that domains may use, counted once for each domain. The row is removed with the last one.
    granted: u64,
}

impl Vmas {
    /// Creates an empty table with room for `budget` small vmas.
    pub(crate) const fn new(budget: usize) -> Self {
        Self { rows: BTreeMap::new(), budget }
    }

    /// Checks whether a grant of this class in the vma of `size_log2` at `addr` finds room for a row.
    ///
    /// # Errors
    /// [`TableError::Full`] if a further row is needed.
    pub(crate) fn has_room(&self, addr: VirtAddr, size_log2: u8, perm: Perm) -> Result<(), TableError> {
        let needs = perm != Perm::None && size_log2 < LARGE_LOG2;
        let known = self.rows.contains_key(&first(addr, size_log2));
        if needs && !known && self.rows.len() >= self.budget { Err(TableError::Full) } else { Ok(()) }
    }

    /// Records that a domain may use `after` bytes of the vma of `size_log2` at `addr`, instead of `before`.
    pub(crate) fn count(&mut self, addr: VirtAddr, size_log2: u8, before: u64, after: u64) {
        let size_log2 = size_log2.max(PAGE_LOG2);
        let base = first(addr, size_log2);
        if after > 0 {
            // The latest update counts: overlapping vmas no longer exist.
            let last = last(base, size_log2);
            let holds = self.rows.range(..base).next_back();
            let holds = holds.filter(|(other, row)| self::last(**other, row.size_log2) >= base);
            let holds = holds.map(|(&other, _)| other);
            holds.map(|other| self.rows.remove(&other));
            let stale = |at: &u64, row: &mut VmaEntry| *at != base || row.size_log2 != size_log2;
            self.rows.extract_if(base..=last, stale).for_each(drop);
        }
        if size_log2 >= LARGE_LOG2 {
            return;
        }
        let granted = self.rows.get(&base).filter(|row| row.size_log2 == size_log2).map(|row| row.granted);
        match granted.map_or(after, |granted| granted.saturating_sub(before).saturating_add(after)) {
            0 if granted.is_some() => _ = self.rows.remove(&base),
            0 => {}
            granted => _ = self.rows.insert(base, VmaEntry { size_log2, granted }),
        }
    }

    /// Returns true if no vma's border lies within the region.
    pub(crate) fn hold(&self, region: Region) -> bool {
        let (base, region_log2) = (region.base().addr().0, region.order() + PAGE_LOG2);
        let mut inside = self.rows.range(base..=last(base, region_log2));
        inside.all(|(_, row)| row.size_log2 >= region_log2)
    }

    /// Returns the occupancy of the table.
    pub(crate) fn usage(&self) -> Usage {
        Usage { used: self.rows.len(), budget: self.budget }
    }

    /// Asserts that rows are aligned, disjoint, in use, and within the budget.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub(crate) fn assert_invariants(&self) {
        assert!(self.rows.len() <= self.budget, "vmas within their budget");
        let mut next = 0;
        for (&base, row) in &self.rows {
            assert!((PAGE_LOG2..LARGE_LOG2).contains(&row.size_log2), "only small vmas have rows");
            assert!(
                base == first(VirtAddr(base), row.size_log2) && base >= next,
                "vmas are aligned and apart"
            );
            assert!(row.granted > 0, "a vma goes with its last grant");
            next = last(base, row.size_log2);
        }
    }
}

/// Returns the first byte of the vma of this size that holds `addr`.
fn first(addr: VirtAddr, size_log2: u8) -> u64 {
    addr.0 & u64::MAX.checked_shl(size_log2.max(PAGE_LOG2).into()).unwrap_or(0)
}

/// Returns the last byte of the vma of this size from `base` on.
fn last(base: u64, size_log2: u8) -> u64 {
    base | !u64::MAX.checked_shl(size_log2.into()).unwrap_or(0)
}
