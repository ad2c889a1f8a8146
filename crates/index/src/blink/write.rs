//! Insertions, removals and splits. Merges are in `merge.rs`.

use super::{Fault, Found, Head, LEVELS_MAX, Node, Nodes, State, TRIES_MAX, Tree};
use alloc::vec;
use alloc::vec::Vec;
use farmem_wire::VirtAddr;

/// Most checks of a young node that is written to all the time. It then stays young, and the next writer
/// continues.
const LOOKS_MAX: u32 = 64;

impl Tree {
    /// Inserts `value` under `key`; returns the old value.
    ///
    /// # Errors
    /// The error of `nodes`: the tree is valid, and may or may not have the key; [`Fault`].
    pub fn insert<N: Nodes>(&self, nodes: &mut N, key: u64, value: u64) -> Result<Option<u64>, N::Error> {
        for _ in 0..TRIES_MAX {
            let (at, leaf) = self.writable_leaf(nodes, key)?;
            let mut new = leaf.clone();
            let old = match new.entries.binary_search_by_key(&key, |&(key, _)| key) {
                Ok(place) => Some(core::mem::replace(&mut new.entries[place].1, value)),
                Err(_) if leaf.entries.len() == self.entries => {
                    self.split(nodes, (at, leaf))?;
                    continue;
                }
                Err(place) => {
                    new.entries.insert(place, (key, value));
                    None
                }
            };
            if self.replace(nodes, &(at, leaf), new)? {
                return Ok(old);
            }
        }
        Err(Fault::Busy.into())
    }

    /// Removes `key`; returns its value.
    ///
    /// # Errors
    /// The error of `nodes`: the tree is valid, and may or may not have the key; [`Fault`].
    pub fn remove<N: Nodes>(&self, nodes: &mut N, key: u64) -> Result<Option<u64>, N::Error> {
        let Some((old, is_sparse)) = self.take_out(nodes, key)? else { return Ok(None) };
        if is_sparse {
            self.shrink(nodes, 0, key)?;
        }
        Ok(Some(old))
    }

    /// Removes `key` without merging; also returns whether the leaf is now sparse, for
    /// [`Tree::merge_sparse`].
    ///
    /// # Errors
    /// As [`Tree::remove`].
    pub fn take_out<N: Nodes>(&self, nodes: &mut N, key: u64) -> Result<Option<(u64, bool)>, N::Error> {
        for _ in 0..TRIES_MAX {
            let (at, leaf) = self.writable_leaf(nodes, key)?;
            let Ok(place) = leaf.entries.binary_search_by_key(&key, |&(key, _)| key) else { return Ok(None) };
            let mut new = leaf.clone();
            let (_, old) = new.entries.remove(place);
            let is_sparse = self.is_sparse(new.entries.len());
            if self.replace(nodes, &(at, leaf), new)? {
                return Ok(Some((old, is_sparse)));
            }
        }
        Err(Fault::Busy.into())
    }

    /// Splits the node at `at` if it is full, or completes an operation in progress there. A writer calls
    /// this after a memory node reported a full or an unwritable leaf.
    ///
    /// # Errors
    /// The error of `nodes`; [`Fault`].
    pub fn make_room<N: Nodes>(&self, nodes: &mut N, at: VirtAddr) -> Result<(), N::Error> {
        let node = nodes.read(at)?;
        match node.state {
            _ if node.tag != self.tag => Ok(()),
            State::Live if node.entries.len() >= self.entries => self.split(nodes, (at, node)),
            // Whether a node leads there is unknown here.
            State::Live | State::Dead | State::New | State::Free => Ok(()),
            State::Young | State::Taking | State::Closing => self.carry_on(nodes, (at, node)),
        }
    }

    /// Returns the live node of this level for `key`, after completing operations in progress there. None if
    /// the tree is lower.
    pub(super) fn writable<N: Nodes>(
        &self,
        nodes: &mut N,
        level: u8,
        key: u64,
    ) -> Result<Option<Found>, N::Error> {
        for _ in 0..TRIES_MAX {
            match self.descend(nodes, self.root, level, key)? {
                Some(found) if found.1.state != State::Live => self.carry_on(nodes, found)?,
                found => return Ok(found),
            }
        }
        Err(Fault::Busy.into())
    }

    /// Returns the leaf for `key` once it is writable.
    fn writable_leaf<N: Nodes>(&self, nodes: &mut N, key: u64) -> Result<Found, N::Error> {
        for _ in 0..TRIES_MAX {
            match self.descend(nodes, self.root, 0, key)? {
                Some(found) if !found.1.state.is_writable() || found.1.entries.len() == self.entries => {
                    if found.1.state == State::Live {
                        return Ok(found);
                    }
                    self.carry_on(nodes, found)?;
                }
                Some(found) => return Ok(found),
                None => break,
            }
        }
        Err(Fault::Busy.into())
    }

    /// Completes the operation in progress at a node that the tree leads to.
    pub(super) fn carry_on<N: Nodes>(&self, nodes: &mut N, (at, node): Found) -> Result<(), N::Error> {
        match node.state {
            State::Live | State::Dead | State::Free => Ok(()),
            State::New => self.link(nodes, (at, node)),
            State::Young => self.link_parent(nodes, at),
            State::Taking => self.finish(nodes, at),
            State::Closing => self.merge(nodes, (at, node)),
        }
    }

    /// Replaces a node if it is unchanged; returns whether it was.
    pub(super) fn replace<N: Nodes>(
        &self,
        nodes: &mut N,
        (at, old): &Found,
        mut new: Node,
    ) -> Result<bool, N::Error> {
        new.version = old.head().next();
        nodes.replace(*at, old.head(), &new)
    }

    /// Splits a live node if it is unchanged.
    pub(super) fn split<N: Nodes>(&self, nodes: &mut N, (at, node): Found) -> Result<(), N::Error> {
        if !node.right.is_null() && matches!(nodes.read(node.right)?.state, State::New | State::Young) {
            // Parents may lead here for keys of the right neighbour, but not for the new node between: they
            // get their pointer to the neighbour first.
            return self.writable(nodes, node.level, node.last + 1).map(|_| ());
        }
        if at == self.root && node.level == LEVELS_MAX {
            return Err(Fault::Broken {
                at,
                what: "a tree as high as nodes can tell: give nodes more entries",
            }
            .into());
        }
        let (mut left, mut right) = (node.clone(), node.clone());
        right.entries = left.entries.split_off(node.entries.len() / 2);
        let Some(&(middle, _)) = right.entries.first().filter(|_| !left.entries.is_empty()) else {
            return Err(Fault::Broken { at, what: "a neighbour that has no room for a sparse node" }.into());
        };
        (left.last, right.first, right.state) = (middle - 1, middle, State::New);
        let right = self.created(nodes, right, at)?;
        if at == self.root {
            (left.right, left.state) = (right.0, State::New);
            let left = self.created(nodes, left, at)?;
            let entries = vec![(node.first, left.0.0), (middle, right.0.0)];
            let root = Node { level: node.level + 1, entries, ..node.clone() };
            if self.replace(nodes, &(at, node), root)? {
                self.link(nodes, left)?;
                return self.link(nodes, right);
            }
            nodes.retire(left.0);
            nodes.retire(right.0);
            return Ok(());
        }
        left.right = right.0;
        if self.replace(nodes, &(at, node), left)? {
            self.link(nodes, right)
        } else {
            nodes.retire(right.0);
            Ok(())
        }
    }

    /// Writes a new node into a place, and returns it as it is there.
    fn created<N: Nodes>(&self, nodes: &mut N, mut node: Node, near: VirtAddr) -> Result<Found, N::Error> {
        let (at, Head { version, .. }) = nodes.create(&node, near)?;
        node.version = version;
        Ok((at, node))
    }

    /// Makes a new node that the tree leads to readable, and links it on the level above.
    fn link<N: Nodes>(&self, nodes: &mut N, (at, node): Found) -> Result<(), N::Error> {
        let young = Node { state: State::Young, ..node.clone() };
        // A faster writer completes this as well.
        self.replace(nodes, &(at, node), young)?;
        self.link_parent(nodes, at)
    }

    /// Links a young node on the level above, and makes it live.
    fn link_parent<N: Nodes>(&self, nodes: &mut N, at: VirtAddr) -> Result<(), N::Error> {
        for _ in 0..LOOKS_MAX {
            let node = nodes.read(at)?;
            if node.state != State::Young || node.tag != self.tag {
                return Ok(());
            }
            if self.relink_parents(nodes, (at, &node), &mut Vec::new())? {
                let live = Node { state: State::Live, ..node.clone() };
                if self.replace(nodes, &(at, node), live)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Changes all parents with keys of this node to lead to it; adds a key of each parent that loses entries
    /// to `fewer`. Returns false if the node has changed.
    pub(super) fn relink_parents<N: Nodes>(
        &self,
        nodes: &mut N,
        (at, node): (VirtAddr, &Node),
        fewer: &mut Vec<u64>,
    ) -> Result<bool, N::Error> {
        let mut key = node.first;
        for _ in 0..TRIES_MAX {
            let Some((parent_at, parent)) = self.writable(nodes, node.level + 1, key)? else {
                return Ok(false);
            };
            let last = parent.last;
            if let Some(entries) = entries_to(&parent, (at, node)) {
                if entries.len() > self.entries {
                    self.split(nodes, (parent_at, parent))?;
                    continue;
                }
                if !self.is_still(nodes, (at, node))? {
                    return Ok(false);
                }
                let (first, is_fewer) = (parent.first, entries.len() < parent.entries.len());
                let new = Node { entries, ..parent.clone() };
                if !self.replace(nodes, &(parent_at, parent), new)? {
                    continue;
                }
                fewer.extend(is_fewer.then_some(first));
            }
            if last >= node.last {
                return Ok(true);
            }
            key = last + 1;
        }
        Err(Fault::Busy.into())
    }

    /// Returns true if a young or taking node for the same keys is there. It stays so as long as an earlier
    /// read parent that is to lead there is unchanged.
    pub(super) fn is_still<N: Nodes>(
        &self,
        nodes: &mut N,
        (at, node): (VirtAddr, &Node),
    ) -> Result<bool, N::Error> {
        let now = nodes.read(at)?;
        let what = |node: &Node| (node.tag, node.level, node.state, node.taken, node.first, node.last);
        Ok(what(&now) == what(node))
    }

    /// Returns true if a node with this many entries may fit into its neighbour.
    #[must_use]
    pub const fn is_sparse(&self, entries: usize) -> bool {
        entries <= self.entries / 4
    }
}

/// Returns the entries of a parent that leads to a node for all common keys; none if it does already.
fn entries_to(parent: &Node, (at, node): (VirtAddr, &Node)) -> Option<Vec<(u64, u64)>> {
    let (first, last) = (parent.first.max(node.first), parent.last.min(node.last));
    let start = parent.entries.partition_point(|&(key, _)| key < first);
    let end = parent.entries.partition_point(|&(key, _)| key <= last);
    let ways = &parent.entries[start..end];
    if ways.first().is_some_and(|way| way.0 == first) && ways.iter().all(|way| way.1 == at.0) {
        return None;
    }
    Some([&parent.entries[..start], &[(first, at.0)], &parent.entries[end..]].concat())
}
