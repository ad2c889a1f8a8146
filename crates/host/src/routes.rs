//! Addresses that are at another node than the node of their range (PROTOCOL 11.10).

use crate::control::Located;
use alloc::collections::BTreeMap;
use farmem_wire::{NodeId, VirtAddr};

/// Maximum number of routes of a host: one for each moved part of a vma that the host uses.
pub const ROUTES_MAX: usize = 65_536;

/// Memory that moved, as far as this host knows.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// Length and node by first address. Routes do not overlap.
    routes: BTreeMap<u64, (u64, NodeId)>,
    /// Allocations that have moved parts: length by first address.
    allocations: BTreeMap<u64, u64>,
}

impl Routes {
    pub(crate) fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// Sets the location of `len` addresses. Replaces every route that overlaps, as a whole. Returns false if
    /// the limit is reached.
    pub(crate) fn set(&mut self, base: u64, len: u64, node: Option<NodeId>) -> bool {
        let end = base.saturating_add(len);
        let before = self.routes.range(..base).next_back().filter(|&(&at, &(len, _))| at + len > base);
        let first = before.map_or(base, |(&at, _)| at);
        while let Some((&at, _)) = self.routes.range(first..end).next() {
            self.routes.remove(&at);
        }
        let Some(node) = node.filter(|_| len > 0 && base.checked_add(len).is_some()) else {
            self.forget_allocations(base, end);
            return true;
        };
        if self.routes.len() >= ROUTES_MAX {
            return false;
        }
        self.routes.insert(base, (len, node));
        true
    }

    /// Records the location of an allocation. Returns true if its parts are not where the host expected, and
    /// `None` at the limit.
    pub(crate) fn learn(&mut self, found: &Located) -> Option<bool> {
        let (base, end) = (found.base.0, found.base.0.saturating_add(found.len));
        let known = self.routes.range(base..end).map(|(&base, &(len, node))| (base, len, node));
        // A route of a former, larger allocation may reach into this one.
        let stale = self.routes.range(..base).next_back().is_some_and(|(&at, &(len, _))| at + len > base);
        let learned =
            stale || !known.eq(found.pieces.iter().map(|piece| (piece.base.0, piece.len, piece.node)));
        let mut all = true;
        if learned {
            self.set(base, found.len, None);
            for piece in &found.pieces {
                all &= self.set(piece.base.0, piece.len, Some(piece.node));
            }
        }
        self.forget_allocations(base, end);
        let ends = base.checked_add(found.len).is_some();
        if ends && !found.pieces.is_empty() && self.allocations.len() < ROUTES_MAX {
            self.allocations.insert(base, found.len);
        }
        all.then_some(learned)
    }

    /// Returns true if these bytes are known to lie in one allocation.
    pub(crate) fn is_of_one(&self, addr: VirtAddr, len: u64) -> bool {
        let before = self.allocations.range(..=addr.0).next_back();
        before.is_some_and(|(&base, &size)| addr.0 - base < size && len <= size - (addr.0 - base))
    }

    /// Returns true if all these bytes are believed to be at this node. `home` is true if the node has their
    /// range.
    pub(crate) fn are_at(&self, addr: VirtAddr, len: u64, node: NodeId, home: bool) -> bool {
        let end = addr.0.saturating_add(len.max(1));
        let mut at = addr.0;
        while at < end {
            let (there, next) = match self.find(at) {
                Some((found, room)) => (found == node, at.saturating_add(room)),
                None => (home, self.next(at)),
            };
            if !there {
                return false;
            }
            at = next;
        }
        true
    }

    fn forget_allocations(&mut self, base: u64, end: u64) {
        let before = self.allocations.range(..base).next_back().filter(|&(&at, &len)| at + len > base);
        let first = before.map_or(base, |(&at, _)| at);
        while let Some((&at, _)) = self.allocations.range(first..end).next() {
            self.allocations.remove(&at);
        }
    }

    /// Returns the node of a moved address, and the number of bytes from there on that are at the node too.
    pub(crate) fn find(&self, addr: u64) -> Option<(NodeId, u64)> {
        let (&base, &(len, node)) = self.routes.range(..=addr).next_back()?;
        (addr - base < len).then(|| (node, len - (addr - base)))
    }

    /// Returns the next moved address behind this one.
    pub(crate) fn next(&self, addr: u64) -> u64 {
        self.routes.range(addr..).next().map_or(u64::MAX, |(&next, _)| next)
    }

    pub(crate) fn check(&self) {
        assert!(self.routes.len() <= ROUTES_MAX, "more routes than the bound");
        assert!(self.allocations.len() <= ROUTES_MAX, "more allocations than the bound");
        let mut end = 0;
        for (&base, &(len, _)) in &self.routes {
            assert!(base >= end && len > 0, "no two routes share an address");
            end = base + len;
        }
    }
}
