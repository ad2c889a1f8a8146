//! Access rates of a tree's nodes, from the counters of its tables, epoch by epoch; and the quality of a
//! selection.
//!
//! Key type: [`Rates`]. The counters cover every node that the tables lead to: children of ranges, and
//! children of nodes in sets. A node above them has the rate of the ranges below it. Further down, a known
//! rate is divided evenly among the children. So the next selection has a rate for each candidate (Fat-B+Tree
//! III-C), and the one after that reaches a layer further: counts affect the tables one layer an epoch.
//!
//! Rates are exponential averages with weight one half for the newest epoch: old accesses fade in a few
//! epochs, and noise has little effect.

mod stale;

pub use stale::stale_steps;

use crate::{Range, TreeSection, TreeView};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use farmem_wire::VirtAddr;

/// The weight of one descent of an epoch: large enough to be divided down a tree.
pub const RATE_ONE: u64 = 1 << 20;

/// The access rates of nodes that tables led to.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Rates {
    /// Rates of inner nodes, in fractions of a descent per epoch ([`RATE_ONE`]).
    nodes: BTreeMap<VirtAddr, u64>,
    /// The last counted ranges, ascending.
    ranges: Vec<Range>,
}

impl Rates {
    /// Adds the counts of an epoch from the tables of `section`, in the order of [`TreeSection::branches`].
    /// An epoch without a descent is ignored.
    pub fn take(&mut self, section: &TreeSection, counts: &[u32]) {
        self.take_parts(&[(section, counts)]);
    }

    /// Adds the counts of a tree that is divided among several switches. The last part has the fat root; of
    /// the others only the sets count.
    pub fn take_parts(&mut self, parts: &[(&TreeSection, &[u32])]) {
        let Some(((top, _), _)) = parts.split_last() else { return };
        if parts.iter().all(|(_, counts)| counts.iter().all(|&count| count == 0)) {
            return;
        }
        let mut counted: BTreeMap<VirtAddr, u64> = BTreeMap::new();
        for (n, (section, counts)) in parts.iter().enumerate() {
            let is_top = n + 1 == parts.len();
            for (branch, &count) in section.branches().zip(*counts) {
                let is_candidate = branch.child.level > 0;
                if (branch.set.is_none() && is_top) || (branch.set.is_some() && is_candidate) {
                    let rate = counted.entry(branch.child.addr).or_default();
                    *rate = rate.saturating_add(u64::from(count).saturating_mul(RATE_ONE));
                }
            }
        }
        for (addr, rate) in &mut counted {
            // A node that was not counted before has no average yet.
            if let Some(&before) = self.nodes.get(addr) {
                *rate = (*rate >> 1) + (before >> 1);
            }
        }
        (self.nodes, self.ranges) = (counted, top.ranges.clone());
    }

    /// Returns true if nothing was counted yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the rate of the whole tree: 2^32 descents if nothing was counted.
    #[must_use]
    pub fn whole(&self) -> u64 {
        if self.is_empty() { RATE_ONE << 32 } else { self.of_ranges(0, u64::MAX) }
    }

    /// Returns the rates of a node's children, given its own rate, and address, first and last key of each
    /// child.
    #[must_use]
    pub fn of_children(&self, own: u64, children: &[(VirtAddr, u64, u64)]) -> Vec<u64> {
        let known: Vec<Option<u64>> =
            children.iter().map(|&(addr, first, last)| self.known(addr, first, last)).collect();
        let unknown = known.iter().filter(|rate| rate.is_none()).count() as u64;
        let counted = known.iter().flatten().fold(0, |sum: u64, rate| sum.saturating_add(*rate));
        let each = own.saturating_sub(counted) / unknown.max(1);
        known.into_iter().map(|rate| rate.unwrap_or(each)).collect()
    }

    /// Returns the rate of a node that tables led to, or that lies above such nodes.
    fn known(&self, addr: VirtAddr, first: u64, last: u64) -> Option<u64> {
        let own = self.nodes.get(&addr).copied();
        own.or_else(|| self.ranges_in(first, last).next().map(|_| self.of_ranges(first, last)))
    }

    fn of_ranges(&self, first: u64, last: u64) -> u64 {
        let rates = self.ranges_in(first, last).filter_map(|range| self.nodes.get(&range.child.addr));
        rates.fold(0, |sum, rate| sum.saturating_add(*rate))
    }

    /// Returns the ranges that lie completely in `first..=last`.
    fn ranges_in(&self, first: u64, last: u64) -> impl Iterator<Item = &Range> {
        let begin = self.ranges.partition_point(|range| range.first < first);
        self.ranges[begin..].iter().take_while(move |range| range.last <= last)
    }
}

/// The effect of a section's tables in an epoch.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Hits {
    /// Descents that were led.
    pub queries: u64,
    /// For each set, the descents that it led a step further.
    pub sets: Vec<u64>,
}

impl Hits {
    /// Computes the hits from an epoch's counts, in the order of [`TreeSection::branches`].
    #[must_use]
    pub fn of(section: &TreeSection, counts: &[u32]) -> Self {
        let mut hits = Self { queries: 0, sets: alloc::vec![0; section.sets.len()] };
        for (branch, &count) in section.branches().zip(counts) {
            match branch.set {
                None => hits.queries += u64::from(count),
                Some(set) => hits.sets[set] += u64::from(count),
            }
        }
        hits
    }
}

/// Returns the visits of inner nodes that a section saves, of the nodes in `tree`, and the visits without a
/// section. Both use the accesses of `tree`, which may have changed since the section was made. A node is
/// visited unless it is in a set that a descent passes, or merged into the fat root.
#[must_use]
pub fn visits_saved(tree: &TreeView, section: &TreeSection) -> (u64, u64) {
    let mut reached: BTreeSet<VirtAddr> = section.ranges.iter().map(|range| range.child.addr).collect();
    let mut held = BTreeSet::new();
    for node in section.sets.iter().flatten() {
        if reached.contains(&node.addr) {
            held.insert(node.addr);
            reached.extend(node.children.iter().map(|child| child.addr));
        }
    }
    let (mut saved, mut all) = (0_u64, 0_u64);
    for (addr, node) in tree.nodes().filter(|(_, node)| node.level > 0) {
        all = all.saturating_add(node.accesses);
        if held.contains(&addr) || tree.range_of(addr).is_some_and(|keys| is_merged(&section.ranges, &keys)) {
            saved = saved.saturating_add(node.accesses);
        }
    }
    (saved, all)
}

/// Returns true if the fat root leads past the node with these keys: a range lies completely among them and
/// leads further down.
fn is_merged(ranges: &[Range], node: &Range) -> bool {
    let inside = ranges.get(ranges.partition_point(|range| range.first < node.first));
    inside.is_some_and(|range| range.last <= node.last && range.child.level < node.child.level)
}

#[cfg(test)]
mod tests;
