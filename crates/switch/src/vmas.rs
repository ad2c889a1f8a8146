//! Where small vmas end: a region of the directory never goes from one vma into the next (PROTOCOL 12.52).
//!
//! [`Vmas`] has a row for each vma that is smaller than the largest region and of which a domain may use a byte. A larger one is a multiple
//! of every region and begins at a multiple of its size, so no region leaves it. Rows come and go with `Protect`, which says of which vma its
//! bytes are a part.

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
    /// By first byte; they do not overlap.
    rows: BTreeMap<u64, Row>,
    budget: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Row {
    size_log2: u8,
    /// Bytes that domains may use, counted once for each domain. The row goes with the last one.
    granted: u64,
}

impl Vmas {
    /// No vmas, and room for `budget` small ones.
    pub(crate) const fn new(budget: usize) -> Self {
        Self { rows: BTreeMap::new(), budget }
    }

    /// Whether a grant of this class in the vma of `size_log2` that has `addr` finds a row.
    ///
    /// # Errors
    /// [`TableError::Full`] when it needs a further one.
    pub(crate) fn has_room(&self, addr: VirtAddr, size_log2: u8, perm: Perm) -> Result<(), TableError> {
        let needs = perm != Perm::None && size_log2 < LARGE_LOG2;
        let known = self.rows.contains_key(&first(addr, size_log2));
        if needs && !known && self.rows.len() >= self.budget { Err(TableError::Full) } else { Ok(()) }
    }

    /// Of the vma of `size_log2` that has `addr` a domain may use `after` bytes where it might use `before`.
    pub(crate) fn count(&mut self, addr: VirtAddr, size_log2: u8, before: u64, after: u64) {
        let size_log2 = size_log2.max(PAGE_LOG2);
        let base = first(addr, size_log2);
        if after > 0 {
            // The latest word counts: whatever it overlaps is none any more.
            let last = last(base, size_log2);
            let holds = self.rows.range(..base).next_back();
            let holds = holds.filter(|(other, row)| self::last(**other, row.size_log2) >= base);
            let holds = holds.map(|(&other, _)| other);
            holds.map(|other| self.rows.remove(&other));
            let stale = |at: &u64, row: &mut Row| *at != base || row.size_log2 != size_log2;
            self.rows.extract_if(base..=last, stale).for_each(drop);
        }
        if size_log2 >= LARGE_LOG2 {
            return;
        }
        let granted = self.rows.get(&base).filter(|row| row.size_log2 == size_log2).map(|row| row.granted);
        match granted.map_or(after, |granted| granted.saturating_sub(before).saturating_add(after)) {
            0 if granted.is_some() => _ = self.rows.remove(&base),
            0 => {}
            granted => _ = self.rows.insert(base, Row { size_log2, granted }),
        }
    }

    /// True when the region lies in one vma, as far as it lies in any.
    pub(crate) fn hold(&self, region: Region) -> bool {
        let (base, region_log2) = (region.base().addr().0, region.order() + PAGE_LOG2);
        let mut inside = self.rows.range(base..=last(base, region_log2));
        inside.all(|(_, row)| row.size_log2 >= region_log2)
    }

    /// How full the table is.
    pub(crate) fn usage(&self) -> Usage {
        Usage { used: self.rows.len(), budget: self.budget }
    }

    /// Asserts that rows are aligned, apart from each other, of use, and within the budget.
    ///
    /// # Panics
    /// When it is not so.
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

/// The first byte of the vma of this size that has `addr`.
fn first(addr: VirtAddr, size_log2: u8) -> u64 {
    addr.0 & u64::MAX.checked_shl(size_log2.max(PAGE_LOG2).into()).unwrap_or(0)
}

/// The last byte of the vma of this size from `base` on.
fn last(base: u64, size_log2: u8) -> u64 {
    base | !u64::MAX.checked_shl(size_log2.into()).unwrap_or(0)
}
