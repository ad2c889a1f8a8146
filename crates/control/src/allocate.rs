//! Placement: the addresses of a node, and the addresses and memory of a vma (MIND 4.1).

use crate::api::VmaInfo;
use crate::migrate::MIGRATE_LEN_MAX;
use crate::record::{ChangeKind, PieceRow, Role, VmaRow};
use crate::state::State;
use crate::updates::Reach;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farmem_wire::message::PAGE_LEN;

/// The smallest vma, and the granularity of a node's memory.
pub const PAGE: u64 = PAGE_LEN as u64;
/// The end of a rack's address space: the limit of a user process on x86-64 and arm64.
pub const VA_END: u64 = 1 << 47;

/// Returns the first fit: the lowest multiple of `size` from `start` on where `size` bytes are free and end
/// by `end`.
///
/// `taken` are the ranges in use, ascending by first byte, as (first byte, length); they may overlap. `size`
/// is a power of two. Free neighbours need no coalescing, because everything between the taken ranges is
/// free.
pub(crate) fn first_fit(
    taken: impl Iterator<Item = (u64, u64)>,
    start: u64,
    end: u64,
    size: u64,
) -> Option<u64> {
    let mut candidate = start.checked_next_multiple_of(size)?;
    for (base, len) in taken {
        if candidate.checked_add(size)? <= base {
            break;
        }
        candidate = candidate.max(base.checked_add(len)?.checked_next_multiple_of(size)?);
    }
    (candidate.checked_add(size)? <= end).then_some(candidate)
}

/// Returns the size of the vma for `size` bytes: a power of two, at least a page. `None` if there is no such
/// power of two.
pub(crate) fn vma_size(size: u64) -> Option<u64> {
    size.max(PAGE).checked_next_power_of_two()
}

/// Where a vma goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Placement {
    /// First byte.
    pub(crate) base: u64,
    /// The node whose addresses these are.
    pub(crate) node: u16,
    /// The parts whose memory is not behind their addresses, by first byte; ascending.
    pub(crate) pieces: Vec<(u64, PieceRow)>,
}

impl State {
    /// Finds addresses and memory for a vma of `size` bytes on `nodes`, which are tried in order. Memory behind free addresses is taken first.
    /// Where only memory is free, because its addresses moved to another node, the vma gets free addresses of any node and begins in pieces.
    pub(crate) fn place_vma(&self, nodes: &[u16], size: u64) -> Option<Placement> {
        let whole = |&node: &u16| Some(Placement { base: self.place(node, size)?, node, pieces: Vec::new() });
        nodes.iter().find_map(whole).or_else(|| self.place_in_pieces(nodes, size))
    }

    fn place_in_pieces(&self, nodes: &[u16], size: u64) -> Option<Placement> {
        if nodes.iter().any(|&node| self.is_card(node)) {
            return None;
        }
        let ready = |node: &u16| self.reach(Role::Node(*node)) == Some(Reach::Ready) && !self.is_card(*node);
        let others = self.nodes.keys().copied().filter(|node| ready(node) && !nodes.contains(node));
        let mut homes = nodes.iter().copied().chain(others);
        let (node, base) = homes.find_map(|node| Some((node, self.free_addresses(node, size)?)))?;
        let mut used: BTreeMap<u16, Vec<(u64, u64)>> =
            nodes.iter().map(|&node| (node, self.used(node))).collect();
        // No longer than what moves at once, so that a piece can move on.
        let len = size.min(MIGRATE_LEN_MAX);
        let (mut pieces, mut at) = (Vec::new(), base);
        while at < base + size {
            let (to, place) = nodes.iter().find_map(|&to| {
                let (row, used) = (self.nodes.get(&to)?, used.get(&to)?);
                let is_free = |&(first, len_used): &(u64, u64)| first + len_used <= at || at + len <= first;
                if to == node && used.iter().all(is_free) {
                    return Some((to, at));
                }
                let taken = used.iter().copied();
                Some((to, first_fit(taken, row.base, row.base + row.capacity, len)?))
            })?;
            if place != at {
                pieces.push((at, PieceRow { size: len, node: to, place }));
            }
            used.entry(to).and_modify(|used| {
                let behind = used.partition_point(|&(first, _)| first < place);
                used.insert(behind, (place, len));
            });
            at += len;
        }
        Some(Placement { base, node, pieces })
    }

    /// The lowest addresses of a node that no vma has, whatever their memory is used for.
    fn free_addresses(&self, node: u16, size: u64) -> Option<u64> {
        let row = self.nodes.get(&node)?;
        let end = row.base + row.capacity;
        let taken = self.vmas.range(row.base..end).map(|(&base, vma)| (base, vma.size));
        first_fit(taken, row.base, end, size)
    }

    /// The pieces of vmas that are being allocated.
    pub(crate) fn coming_pieces(&self) -> impl Iterator<Item = (u64, PieceRow)> + '_ {
        let going = self.changes.values().filter(|change| change.failed.is_none());
        going
            .flat_map(|change| match &change.what {
                ChangeKind::Allocate { pieces, .. } => pieces.as_slice(),
                _ => &[],
            })
            .copied()
    }
}

impl VmaRow {
    /// Returns a vma that the change with this number allocates. Changes are numbered from 0 and unique; so
    /// are allocations, from 1.
    pub(crate) const fn new(change: u64, size: u64, node: u16, domain: u32) -> Self {
        let (id, pending) = (change.saturating_add(1), Some(change));
        Self { id, size, node, domain, durable: false, pending, grants: Vec::new() }
    }

    /// Returns the vma as reported to users.
    pub(crate) const fn info(&self, base: u64) -> VmaInfo {
        VmaInfo { id: self.id, base, size: self.size, node: self.node, domain: self.domain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_gap_that_is_big_enough_once_aligned_is_taken() {
        let taken = [(0, 1), (3, 1), (8, 4)];
        let fit = |size, end| first_fit(taken.iter().copied(), 0, end, size);
        assert_eq!(fit(1, 64), Some(1));
        assert_eq!(fit(2, 64), Some(4), "2..4 is aligned, but 3 is taken");
        assert_eq!(fit(4, 64), Some(4));
        assert_eq!(fit(8, 64), Some(16));
        assert_eq!(fit(8, 23), None);
    }

    #[test]
    fn the_end_of_the_address_space_is_not_wrapped_around() {
        assert_eq!(first_fit([(0, u64::MAX)].into_iter(), 0, u64::MAX, 2), None);
        assert_eq!(first_fit(core::iter::empty(), u64::MAX, u64::MAX, 4), None);
        assert_eq!(vma_size(u64::MAX), None);
        assert_eq!(vma_size(1), Some(PAGE));
        assert_eq!(vma_size(4097), Some(8192));
    }

    proptest! {
        /// First fit finds the same place as a search of a plain bitmap, through any sequence of allocations
        /// and frees.
        #[test]
        fn first_fit_is_what_a_bitmap_finds(end in 1u64..200, steps in prop::collection::vec((0u32..6, any::<prop::sample::Index>(), any::<bool>()), 1..80)) {
            let mut bitmap = alloc::vec![false; usize::try_from(end).unwrap()];
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (log2, which, free) in steps {
                if free && !taken.is_empty() {
                    let (base, len) = taken.remove(which.index(taken.len()));
                    (base..base + len).for_each(|i| bitmap[usize::try_from(i).unwrap()] = false);
                    continue;
                }
                let size = 1u64 << log2;
                let block = |base: u64| usize::try_from(base).unwrap()..usize::try_from(base + size).unwrap();
                let model = (0..end).step_by(1 << log2).find(|&base| base + size <= end && !bitmap[block(base)].contains(&true));
                prop_assert_eq!(first_fit(taken.iter().copied(), 0, end, size), model);
                if let Some(base) = model {
                    bitmap[block(base)].fill(true);
                    taken.push((base, size));
                    taken.sort_unstable();
                }
            }
        }
    }
}
