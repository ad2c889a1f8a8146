//! Which addresses are at another node than the one whose range they are in (PROTOCOL 11.10).

use alloc::collections::BTreeMap;
use farmem_wire::NodeId;

/// Routes that a host keeps at most: one for each part of a vma that moved, of the vmas it uses.
pub const ROUTES_MAX: usize = 65_536;

/// By first address: how many, and where. No two share one.
#[derive(Debug, Default)]
pub(crate) struct Routes(BTreeMap<u64, (u64, NodeId)>);

impl Routes {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Says of `len` addresses where they are; what was said of any of them before is forgotten, with all it was said of. False when there
    /// are too many already.
    pub(crate) fn set(&mut self, base: u64, len: u64, node: Option<NodeId>) -> bool {
        let end = base.saturating_add(len);
        let before = self.0.range(..base).next_back().filter(|&(&at, &(len, _))| at + len > base);
        let first = before.map_or(base, |(&at, _)| at);
        while let Some((&at, _)) = self.0.range(first..end).next() {
            self.0.remove(&at);
        }
        let Some(node) = node.filter(|_| len > 0 && base.checked_add(len).is_some()) else { return true };
        if self.0.len() >= ROUTES_MAX {
            return false;
        }
        self.0.insert(base, (len, node));
        true
    }

    /// Where an address is that is not where its range says, and how many behind it are there too.
    pub(crate) fn find(&self, addr: u64) -> Option<(NodeId, u64)> {
        let (&base, &(len, node)) = self.0.range(..=addr).next_back()?;
        (addr - base < len).then(|| (node, len - (addr - base)))
    }

    /// The next address behind this one that is not where its range says.
    pub(crate) fn next(&self, addr: u64) -> u64 {
        self.0.range(addr..).next().map_or(u64::MAX, |(&next, _)| next)
    }

    pub(crate) fn check(&self) {
        assert!(self.0.len() <= ROUTES_MAX, "more routes than the bound");
        let mut end = 0;
        for (&base, &(len, _)) in &self.0 {
            assert!(base >= end && len > 0, "no two routes share an address");
            end = base + len;
        }
    }
}
