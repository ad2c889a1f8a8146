//! Placement: the addresses of a node, and the addresses and memory of a vma (MIND 4.1).

use crate::addresses::{MIGRATE_LEN_MAX, first_fit};
use crate::api::VmaInfo;
use crate::record::{ChangeKind, PieceRow, Role, VmaRow};
use crate::state::State;
use crate::updates::Reach;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

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
        let others = self.ready_nodes().filter(|node| !nodes.contains(node));
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

    /// Iterates over the memory nodes of farmem that answer.
    pub(crate) fn ready_nodes(&self) -> impl Iterator<Item = u16> + '_ {
        let ready = |node: &u16| self.reach(Role::Node(*node)) == Some(Reach::Ready) && !self.is_card(*node);
        self.nodes.keys().copied().filter(ready)
    }

    /// Returns the lowest addresses of a node that no vma has, regardless of the use of their memory.
    fn free_addresses(&self, node: u16, size: u64) -> Option<u64> {
        let row = self.nodes.get(&node)?;
        let end = row.base + row.capacity;
        let taken = self.vmas.range(row.base..end).map(|(&base, vma)| (base, vma.size));
        first_fit(taken, row.base, end, size)
    }

    /// Returns the pieces of vmas that are being allocated.
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
