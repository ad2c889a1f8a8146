//! Rows of vmas: the one at an address, its permissions, and the bytes allocated at each node.

use crate::record::{Span, VmaRow};
use crate::state::State;

impl State {
    /// Returns the permissions of `domain` in the vma at `base`, which it does not own.
    pub(crate) fn grants_of(&self, base: u64, domain: u32) -> &[Span] {
        let vma = self.vmas.get(&base);
        let found = vma.and_then(|vma| vma.grants.iter().find(|(to, _)| *to == domain));
        found.map_or(&[], |(_, spans)| spans)
    }

    /// Returns the vma that holds `addr`.
    pub(crate) fn vma_at(&self, addr: u64) -> Option<(u64, &VmaRow)> {
        let (&base, vma) = self.vmas.range(..=addr).next_back()?;
        (addr - base < vma.size).then_some((base, vma))
    }

    /// Returns the bytes allocated on `node`, counted where they are. With `pending`, allocations in flight
    /// are included.
    pub(crate) fn allocated(&self, node: u16, pending: bool) -> u64 {
        let Some(row) = self.nodes.get(&node) else { return 0 };
        let range = row.base..row.base.saturating_add(row.capacity);
        let homes = self.vmas.range(range.clone()).map(|(_, vma)| vma);
        let homes: u64 = homes.filter(|vma| pending || vma.pending.is_none()).map(|vma| vma.size).sum();
        let coming = || self.coming_pieces().filter(|_| pending);
        let pieces = || self.pieces.iter().map(|(&base, &piece)| (base, piece)).chain(coming());
        let away: u64 = pieces().filter(|(base, _)| range.contains(base)).map(|(_, piece)| piece.size).sum();
        let here = pieces().filter(|(_, piece)| piece.node == node);
        homes - away + here.map(|(_, piece)| piece.size).sum::<u64>()
    }
}
