//! Addresses whose bytes were lost: the node that held them started again without its memory (PROTOCOL 8.44 to 8.46).
//!
//! Kept by address, whatever node they are at: what is lost stays so while it moves, until its owner accepts it, it is cleared, or it is
//! freed. A node that joins is told of those that are at it before it hears a request, and refuses them.

use crate::allocate::PAGE;
use crate::api::LostInfo;
use crate::record::VmaRow;
use crate::state::State;
use alloc::vec::Vec;

impl State {
    /// A node that was there before starts again, with empty memory: all that was written to what is at it is lost.
    ///
    /// Not what is being allocated or mapped: no caller was told of it yet, and it is cleared behind the node's tables.
    pub(crate) fn lose_memory_of(&mut self, node: u16) {
        let vmas = self.vmas.iter().filter(|(_, vma)| vma.pending.is_none());
        let parts: Vec<(u64, u64)> = vmas
            .flat_map(|(&base, vma)| self.in_use(base, vma))
            .flat_map(|(base, len)| self.parts_at(node, base, len))
            .collect();
        self.lost.extend(parts.into_iter().map(|(base, len)| base..base + len));
    }

    /// The parts of a vma that are in use: all of it, or what its address space has mapped.
    fn in_use(&self, base: u64, vma: &VmaRow) -> Vec<(u64, u64)> {
        match self.spaces.get(&vma.domain).filter(|space| space.vma(base).is_some()) {
            Some(space) => {
                space.mapped(base, base + vma.size).map(|(from, to, _)| (from, to - from)).collect()
            }
            None => Vec::from([(base, vma.size)]),
        }
    }

    /// What a node that joins must refuse: first byte and bytes.
    pub(crate) fn lost_at(&self, node: u16) -> Vec<(u64, u64)> {
        // A range may go from one vma into the next.
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

    /// The lost parts of `base..base + len`, ascending.
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

    /// True when lost addresses would be left on both sides of these.
    pub(crate) fn is_amid_lost(&self, base: u64, len: u64) -> bool {
        let end = base.saturating_add(len).next_multiple_of(PAGE);
        self.lost.get(&base).is_some_and(|lost| lost.start < base && end < lost.end)
    }

    /// These pages are lost no more: accepted, cleared, or freed.
    pub(crate) fn forget_lost(&mut self, base: u64, len: u64) {
        let end = base.saturating_add(len).next_multiple_of(PAGE);
        if base < end {
            self.lost.remove(base..end);
        }
    }

    /// The first statement about lost addresses that does not hold, if any.
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
