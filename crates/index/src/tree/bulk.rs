//! The tree that a bulk load of keys would create, for an index without a tree.

use super::{TreeError, TreeNode, TreeView};
use crate::BRANCHES;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farmem_wire::VirtAddr;

/// Bytes from one node to the next, as in `crates/structures`.
const NODE_LEN: u64 = 256;

/// A node that will get a parent.
struct ChildEntry {
    /// The smallest key.
    first: u64,
    addr: VirtAddr,
    accesses: u64,
}

/// Allocates addresses; none is null.
#[derive(Default)]
struct Addresses(u64);

impl Addresses {
    const fn take(&mut self) -> VirtAddr {
        self.0 += NODE_LEN;
        VirtAddr(self.0)
    }
}

impl TreeView {
    /// Returns the tree that a bulk load of `keys`, each with its accesses, creates (`BTree::load`): `fill`
    /// keys per leaf (at least 1), 16 children per inner node as long as there are. Addresses are invented.
    /// Leaves are omitted, except for a root.
    ///
    /// # Errors
    /// [`TreeError::Unsorted`] for the first key that is not greater than those before it.
    pub fn bulk_loaded(keys: impl IntoIterator<Item = (u64, u64)>, fill: usize) -> Result<Self, TreeError> {
        let mut addresses = Addresses::default();
        let mut level = leaves(keys, fill.max(1), &mut addresses)?;
        let mut nodes = BTreeMap::new();
        let mut height = 0;
        while level.len() > 1 {
            height += 1;
            level = level
                .chunks(BRANCHES)
                .map(|below| above(below, height, &mut addresses, &mut nodes))
                .collect();
        }
        let root =
            level.pop().unwrap_or_else(|| ChildEntry { first: 0, addr: addresses.take(), accesses: 0 });
        nodes.entry(root.addr).or_insert_with(|| TreeNode {
            level: 0,
            pivots: Vec::new(),
            children: Vec::new(),
            accesses: root.accesses,
        });
        Self::new(root.addr, nodes)
    }
}

fn leaves(
    keys: impl IntoIterator<Item = (u64, u64)>,
    fill: usize,
    addresses: &mut Addresses,
) -> Result<Vec<ChildEntry>, TreeError> {
    let mut leaves: Vec<ChildEntry> = Vec::new();
    // Number of keys in the last leaf.
    let mut have = fill;
    let mut last = None;
    for (key, accesses) in keys {
        if last.is_some_and(|last| last >= key) {
            return Err(TreeError::Unsorted { key });
        }
        last = Some(key);
        match leaves.last_mut() {
            Some(leaf) if have < fill => {
                leaf.accesses = leaf.accesses.saturating_add(accesses);
                have += 1;
            }
            _ => {
                leaves.push(ChildEntry { first: key, addr: addresses.take(), accesses });
                have = 1;
            }
        }
    }
    Ok(leaves)
}

/// Builds the level above `below`.
fn above(
    below: &[ChildEntry],
    level: u8,
    addresses: &mut Addresses,
    nodes: &mut BTreeMap<VirtAddr, TreeNode>,
) -> ChildEntry {
    let (addr, first) = (addresses.take(), below[0].first);
    let accesses = below.iter().fold(0, |sum: u64, child| sum.saturating_add(child.accesses));
    let pivots = below[1..].iter().map(|child| child.first).collect();
    let children = below.iter().map(|child| child.addr).collect();
    nodes.insert(addr, TreeNode { level, pivots, children, accesses });
    ChildEntry { first, addr, accesses }
}
