//! Translation: the memory node that owns an address, by longest prefix (MIND 4.1, PULSE 5).
//!
//! [`Translation`] holds one prefix per memory node plus *outliers*: longer prefixes for migrated addresses
//! or addresses at a fixed place. Vmas and permissions are separate ([`crate::Protection`]). A *vacated*
//! entry is about to move to another node.

use crate::{TableError, Usage};
use alloc::collections::BTreeMap;
use farmem_wire::{NodeId, VirtAddr};

/// The largest prefix covers `2^63` bytes; `Update::Translate` carries no larger one.
pub const SIZE_LOG2_MAX: u8 = 63;

const SIZES: usize = SIZE_LOG2_MAX as usize + 1;

/// The longest-prefix-match table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Translation {
    entries: BTreeMap<Prefix, Entry>,
    /// Number of entries of each size.
    per_size: [usize; SIZES],
    /// Bit `n` is set if some entry covers `2^n` bytes: the prefix lengths that a lookup must try.
    sizes: u64,
    budget: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Prefix {
    size_log2: u8,
    base: u64,
}

/// The node of a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    node: NodeId,
    /// True if the prefix is about to move.
    vacated: bool,
}

impl Translation {
    /// Creates an empty table for at most `budget` entries.
    #[must_use]
    pub const fn new(budget: usize) -> Self {
        Self { entries: BTreeMap::new(), per_size: [0; SIZES], sizes: 0, budget }
    }

    /// Returns the node that owns `addr`: the one with the longest prefix. Tries each prefix length in use
    /// once.
    #[must_use]
    pub fn lookup(&self, addr: VirtAddr) -> Option<NodeId> {
        self.entry(addr).map(|entry| entry.node)
    }

    /// Returns true if `addr` is about to move to another node.
    #[must_use]
    pub fn is_vacated(&self, addr: VirtAddr) -> bool {
        self.entry(addr).is_some_and(|entry| entry.vacated)
    }

    fn entry(&self, addr: VirtAddr) -> Option<Entry> {
        let mut sizes = self.sizes;
        while let Some(size_log2) = smallest(sizes) {
            let prefix = Prefix { size_log2, base: addr.0 >> size_log2 << size_log2 };
            if let Some(&entry) = self.entries.get(&prefix) {
                return Some(entry);
            }
            sizes &= sizes - 1;
        }
        None
    }

    /// Maps `2^size_log2` bytes from `base` to `node`, not vacated; replaces an earlier entry of the same
    /// prefix.
    ///
    /// # Errors
    /// [`TableError::Malformed`] for a base that is not a multiple of the size, [`TableError::Full`] over
    /// budget.
    pub fn insert(&mut self, base: VirtAddr, size_log2: u8, node: NodeId) -> Result<(), TableError> {
        let prefix = Prefix::new(base, size_log2)?;
        if !self.entries.contains_key(&prefix) && self.entries.len() >= self.budget {
            return Err(TableError::Full);
        }
        if self.entries.insert(prefix, Entry { node, vacated: false }).is_none() {
            self.per_size[usize::from(size_log2)] += 1;
            self.sizes |= 1 << size_log2;
        }
        Ok(())
    }

    /// Marks an existing prefix as vacated.
    ///
    /// # Errors
    /// [`TableError::Malformed`] if the prefix does not exist.
    pub fn drain(&mut self, base: VirtAddr, size_log2: u8) -> Result<(), TableError> {
        let entry = self.entries.get_mut(&Prefix::new(base, size_log2)?);
        entry.ok_or(TableError::Malformed)?.vacated = true;
        Ok(())
    }

    /// Removes a prefix. Removing a missing one is no error.
    ///
    /// # Errors
    /// [`TableError::Malformed`] for a base that is not a multiple of the size.
    pub fn remove(&mut self, base: VirtAddr, size_log2: u8) -> Result<(), TableError> {
        let prefix = Prefix::new(base, size_log2)?;
        if self.entries.remove(&prefix).is_some() {
            let left = &mut self.per_size[usize::from(size_log2)];
            *left -= 1;
            if *left == 0 {
                self.sizes &= !(1 << size_log2);
            }
        }
        Ok(())
    }

    /// Returns every entry as (first address, log2 of its bytes, node): shortest first, then by address.
    pub fn iter(&self) -> impl Iterator<Item = (VirtAddr, u8, NodeId)> {
        self.entries.iter().map(|(prefix, entry)| (VirtAddr(prefix.base), prefix.size_log2, entry.node))
    }

    /// Returns the occupancy of the table.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage { used: self.entries.len(), budget: self.budget }
    }

    /// Asserts every invariant.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn assert_invariants(&self) {
        assert!(self.entries.len() <= self.budget, "translation within its budget");
        let mut per_size = [0; SIZES];
        for prefix in self.entries.keys() {
            assert!(Prefix::new(VirtAddr(prefix.base), prefix.size_log2).is_ok(), "{prefix:?} is aligned");
            per_size[usize::from(prefix.size_log2)] += 1;
        }
        assert_eq!(per_size, self.per_size, "entries are counted by size");
        for (size_log2, &count) in self.per_size.iter().enumerate() {
            assert_eq!(
                self.sizes >> size_log2 & 1 == 1,
                count > 0,
                "size 2^{size_log2} is tried when in use"
            );
        }
    }
}

impl Prefix {
    fn new(base: VirtAddr, size_log2: u8) -> Result<Self, TableError> {
        if size_log2 > SIZE_LOG2_MAX || base.0 & ((1 << size_log2) - 1) != 0 {
            return Err(TableError::Malformed);
        }
        Ok(Self { size_log2, base: base.0 })
    }
}

/// Returns the position of the lowest set bit.
fn smallest(sizes: u64) -> Option<u8> {
    if sizes == 0 {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "a bit number is below 64")]
    let bit = sizes.trailing_zeros() as u8;
    Some(bit)
}

#[cfg(test)]
mod tests;
