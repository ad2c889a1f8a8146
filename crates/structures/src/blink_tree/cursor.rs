//! A scan in pieces.

use super::{BLinkTree, ends};
use crate::RecordTree;
use crate::heap::Heap;
use farmem_client::{Error, FarMemory};
use std::ops::{RangeBounds, RangeInclusive};

/// A scan that the caller requests in pieces. The cursor is a key, not a place in the tree. Splits and merges
/// between two pieces therefore do no harm: each stable key is found once. The cursor works over any handle
/// of the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The keys still to scan; `None` at the end.
    left: Option<RangeInclusive<u64>>,
}

impl Cursor {
    /// Creates a scan of `range`, in ascending order.
    #[must_use]
    pub fn new(range: impl RangeBounds<u64>) -> Self {
        Self { left: ends(&range).map(|(first, last)| first..=last) }
    }

    /// Returns true when no keys are left.
    #[must_use]
    pub const fn is_at_end(&self) -> bool {
        self.left.is_none()
    }

    /// Returns the next `most` pairs of a tree, fewer at its end.
    ///
    /// # Errors
    /// As [`BLinkTree::scan`]. The cursor then keeps its position.
    pub fn next(
        &mut self,
        tree: &BLinkTree,
        memory: &mut (impl FarMemory + ?Sized),
        most: usize,
    ) -> Result<Vec<(u64, u64)>, Error> {
        let Some(left) = self.left.clone() else { return Ok(Vec::new()) };
        let pairs = tree.scan(memory, left, most)?;
        self.pass(&pairs, most);
        Ok(pairs)
    }

    /// Returns the next `most` keys of a tree of records with their values, fewer at its end.
    ///
    /// # Errors
    /// As [`RecordTree::scan`]. The cursor then keeps its position.
    pub fn next_records(
        &mut self,
        tree: &RecordTree,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        most: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let Some(left) = self.left.clone() else { return Ok(Vec::new()) };
        let pairs = tree.scan(memory, heap, left, most)?;
        self.pass(&pairs, most);
        Ok(pairs)
    }

    /// Advances the cursor past `pairs`, the result of a request for `most`.
    fn pass<V>(&mut self, pairs: &[(u64, V)], most: usize) {
        let Some(end) = self.left.as_ref().map(|left| *left.end()) else { return };
        self.left = match pairs.last() {
            Some((key, _)) if pairs.len() == most => {
                key.checked_add(1).filter(|next| *next <= end).map(|next| next..=end)
            }
            None if most == 0 => return,
            _ => None,
        };
    }
}
