//! Lost addresses: the node that held their bytes restarted without its memory (PROTOCOL 8.44 to 8.46).
//!
//! Losses are recorded by address, whatever the node: lost memory stays lost while it moves, until its owner
//! accepts the loss, or it is cleared or freed. A node that joins learns its lost ranges before the first
//! request, and refuses them.

use crate::addresses::PAGE;
use crate::api::LostInfo;
use crate::record::VmaRow;
use crate::state::{LogError, State};
use alloc::vec::Vec;

impl State {
    /// Restores a range of lost addresses.
    pub(crate) fn put_lost(&mut self, base: u64, len: u64) -> Result<(), LogError> {
        let end = base.checked_add(len).filter(|_| len > 0);
        self.lost.insert(base..end.ok_or(LogError("what is lost is a range of addresses"))?);
        Ok(())
    }

    /// Records the restart of a known node with empty memory: everything written to it is lost.
    ///
    /// Memory that is being allocated or mapped is exempt: no caller knows of it yet, and it is cleared
    /// behind the node's tables.
    pub(crate) fn lose_memory_of(&mut self, node: u16) {
        let vmas = self.vmas.iter().filter(|(_, vma)| vma.pending.is_none());
        let parts: Vec<(u64, u64)> = vmas
            .flat_map(|(&base, vma)| self.in_use(base, vma))
            .flat_map(|(base, len)| self.parts_at(node, base, len))
            .collect();
        self.lost.extend(parts.into_iter().map(|(base, len)| base..base + len));
    }

    /// Returns the parts of a vma in use: all of it, or the mapped parts of its address space.
    fn in_use(&self, base: u64, vma: &VmaRow) -> Vec<(u64, u64)> {
        match self.spaces.get(&vma.domain).filter(|space| space.vma(base).is_some()) {
            Some(space) => {
                space.mapped(base, base + vma.size).map(|(from, to, _)| (from, to - from)).collect()
            }
            None => Vec::from([(base, vma.size)]),
        }
    }

    /// Returns the ranges that a joining node must refuse: first byte and length.
    pub(crate) fn lost_at(&self, node: u16) -> Vec<(u64, u64)> {
        // A range may extend from one vma into the next.
        let of_vma = |lost: &core::ops::Range<u64>| {
            let first = self.vma_at(lost.start).map_or(lost.start, |(base, _)| base);
            let cut = |(&base, vma): (&u64, &VmaRow)| {
                let (from, to) = (base.max(lost.start), (base + vma.size).min(lost.end));
                (from, to.saturating_sub(from))
            };
            let cuts: Vec<(u64, u64)> = self.vmas.range(first..lost.end).map(cut).collect();
            cuts
        };
        let parts = self.lost.iter().flat_map(of_vma).filter(|&(_, len)| len > 0);
        parts.flat_map(|(base, len)| self.parts_at(node, base, len)).collect()
    }

    /// Returns the lost parts of `base..base + len`, ascending.
    pub(crate) fn lost_in(&self, base: u64, len: u64) -> Vec<LostInfo> {
        let asked = base..base + len;
        let parts = self.lost.overlapping(&asked);
        parts
            .map(|lost| {
                let (from, to) = (lost.start.max(asked.start), lost.end.min(asked.end));
                LostInfo { base: from, len: to - from }
            })
            .collect()
    }

    /// Returns true if lost addresses would be left on both sides of these.
    pub(crate) fn is_amid_lost(&self, base: u64, len: u64) -> bool {
        let end = base.saturating_add(len).next_multiple_of(PAGE);
        self.lost.get(&base).is_some_and(|lost| lost.start < base && end < lost.end)
    }

    /// Removes lost pages: they were accepted, cleared, or freed.
    pub(crate) fn forget_lost(&mut self, base: u64, len: u64) {
        let end = base.saturating_add(len).next_multiple_of(PAGE);
        if base < end {
            self.lost.remove(base..end);
        }
    }

    /// Returns the first violated invariant of lost addresses, if any.
    pub(crate) fn lost_fault(&self) -> Option<&'static str> {
        for lost in self.lost.iter() {
            if !lost.start.is_multiple_of(PAGE) || !lost.end.is_multiple_of(PAGE) {
                return Some("what is lost is whole pages");
            }
            let mut at = lost.start;
            while at < lost.end {
                let Some((base, vma)) = self.vma_at(at).filter(|(_, vma)| vma.pending.is_none()) else {
                    return Some("what is lost was allocated");
                };
                at = base + vma.size;
            }
        }
        None
    }
}
