//! How the tree changes: insertions, removals, splits and merges.

use super::{Fault, Node, Nodes, State, TRIES_MAX, Tree, VISITS_MAX};
use alloc::vec;
use farmem_wire::VirtAddr;

/// A node where it was read.
type Found = (VirtAddr, Node);

impl Tree {
    /// Puts `value` under `key`; answers the value that it had.
    ///
    /// # Errors
    /// The error of `nodes`: whether the key is in the tree is open then, the tree is whole; [`Fault`].
    pub fn insert<N: Nodes>(&self, nodes: &mut N, key: u64, value: u64) -> Result<Option<u64>, N::Error> {
        for _ in 0..TRIES_MAX {
            let (at, leaf) = self.writable(nodes, 0, key)?;
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

    /// Takes `key` out; answers the value that it had.
    ///
    /// # Errors
    /// The error of `nodes`: whether the key is in the tree is open then, the tree is whole; [`Fault`].
    pub fn remove<N: Nodes>(&self, nodes: &mut N, key: u64) -> Result<Option<u64>, N::Error> {
        for _ in 0..TRIES_MAX {
            let (at, leaf) = self.writable(nodes, 0, key)?;
            let Ok(place) = leaf.entries.binary_search_by_key(&key, |&(key, _)| key) else { return Ok(None) };
            let mut new = leaf.clone();
            let (_, old) = new.entries.remove(place);
            let sparse = self.is_sparse(new.entries.len());
            if self.replace(nodes, &(at, leaf), new)? {
                if sparse {
                    self.shrink(nodes, 0, key)?;
                }
                return Ok(Some(old));
            }
        }
        Err(Fault::Busy.into())
    }

    /// Splits the full node at `at`, if it still is one. A writer begins here when a memory node has told it that a leaf is full.
    ///
    /// # Errors
    /// The error of `nodes`; [`Fault`].
    pub fn make_room<N: Nodes>(&self, nodes: &mut N, at: VirtAddr) -> Result<(), N::Error> {
        let node = nodes.read(at)?;
        match node.state {
            _ if node.tag != self.tag => Ok(()),
            State::Live if node.entries.len() >= self.entries => self.split(nodes, (at, node)),
            State::Closing => self.merge(nodes, (at, node)),
            State::Live | State::Dead => Ok(()),
        }
    }

    /// The live node of this level that has `key`, when what was begun there is carried on.
    fn writable<N: Nodes>(&self, nodes: &mut N, level: u8, key: u64) -> Result<Found, N::Error> {
        for _ in 0..TRIES_MAX {
            let (at, node) = self.descend(nodes, self.root, level, key)?;
            match node.state {
                State::Closing => self.merge(nodes, (at, node))?,
                State::Live | State::Dead => return Ok((at, node)),
            }
        }
        Err(Fault::Busy.into())
    }

    fn replace<N: Nodes>(&self, nodes: &mut N, (at, old): &Found, mut new: Node) -> Result<bool, N::Error> {
        new.version = old.head().next();
        nodes.replace(*at, old.head(), &new)
    }

    /// Cuts a node in two, if it is still as it was read.
    fn split<N: Nodes>(&self, nodes: &mut N, (at, node): Found) -> Result<(), N::Error> {
        let (mut left, mut right) = (node.clone(), node.clone());
        right.entries = left.entries.split_off(node.entries.len() / 2);
        let Some(&(middle, _)) = right.entries.first().filter(|_| !left.entries.is_empty()) else {
            return Err(Fault::Broken { at, what: "a neighbour that has no room for a sparse node" }.into());
        };
        (left.last, right.first, right.version) = (middle - 1, middle, 0);
        let right_at = nodes.create(&right, at)?;
        if at == self.root {
            (left.right, left.version) = (right_at, 0);
            let left_at = nodes.create(&left, at)?;
            let entries = vec![(node.first, left_at.0), (middle, right_at.0)];
            let root = Node { level: node.level + 1, entries, ..node.clone() };
            if !self.replace(nodes, &(at, node), root)? {
                nodes.discard(left_at);
                nodes.discard(right_at);
            }
            return Ok(());
        }
        left.right = right_at;
        let level = node.level;
        if self.replace(nodes, &(at, node), left)? {
            self.post(nodes, level + 1, middle, right_at)
        } else {
            nodes.discard(right_at);
            Ok(())
        }
    }

    /// Has the parent know that the keys from `first` on are at `child`.
    fn post<N: Nodes>(&self, nodes: &mut N, level: u8, first: u64, child: VirtAddr) -> Result<(), N::Error> {
        for _ in 0..TRIES_MAX {
            let (at, parent) = self.writable(nodes, level, first)?;
            let place = parent.child_of(first);
            let child_node = nodes.read(child)?;
            // It died, or took its left neighbour's keys: the parent's way to that one leads to it.
            if parent.entries[place].0 == first || child_node.state == State::Dead || child_node.first < first
            {
                return Ok(());
            }
            if parent.entries.len() == self.entries {
                self.split(nodes, (at, parent))?;
                continue;
            }
            let mut new = parent.clone();
            // A second way to the node on the left leads to what this one has now.
            if new.entries.get(place + 1).is_some_and(|next| next.1 == new.entries[place].1) {
                new.entries.remove(place + 1);
            }
            new.entries.insert(place + 1, (first, child.0));
            if self.replace(nodes, &(at, parent), new)? {
                // The child may have died before the parent knew of it: then its `forget` found no entry in the parent.
                let child_node = nodes.read(child)?;
                return match child_node.state {
                    State::Dead => self.forget(nodes, (child, &child_node), level),
                    State::Live | State::Closing => Ok(()),
                };
            }
        }
        Err(Fault::Busy.into())
    }

    /// Merges the node of this level that has `key` into its right neighbour, if there is one and they have few entries together.
    fn shrink<N: Nodes>(&self, nodes: &mut N, level: u8, key: u64) -> Result<(), N::Error> {
        let (at, node) = self.writable(nodes, level, key)?;
        if at == self.root || !self.is_sparse(node.entries.len()) || node.right.is_null() {
            return Ok(());
        }
        let right = nodes.read(node.right)?;
        if right.state != State::Live || 4 * (node.entries.len() + right.entries.len()) > 3 * self.entries {
            return Ok(());
        }
        let closing = Node { state: State::Closing, ..node.clone() };
        if self.replace(nodes, &(at, node), closing)? {
            // The search for a node to write there completes what was begun.
            self.writable(nodes, level, key)?;
        }
        Ok(())
    }

    /// True when it is worth looking whether a node with so many entries fits into its neighbour.
    #[must_use]
    pub const fn is_sparse(&self, entries: usize) -> bool {
        entries <= self.entries / 4
    }

    /// Merges the leaf of `key` into its right neighbour, if they have few entries together. A writer goes on here when a memory node has told it that a
    /// leaf has few left.
    ///
    /// # Errors
    /// The error of `nodes`; [`Fault`].
    pub fn merge_sparse<N: Nodes>(&self, nodes: &mut N, key: u64) -> Result<(), N::Error> {
        self.shrink(nodes, 0, key)
    }

    /// Carries on what was begun with a closing node: its right neighbour takes its entries, and it dies. When the neighbour is closing too, that one
    /// comes first, and the caller asks again.
    fn merge<N: Nodes>(&self, nodes: &mut N, closing: Found) -> Result<(), N::Error> {
        let ((at, node), (right_at, right)) = self.last_closing(nodes, closing)?;
        if right.first > node.first {
            if right.entries.len() + node.entries.len() > self.entries {
                return self.split(nodes, (right_at, right));
            }
            let entries = [node.entries.as_slice(), right.entries.as_slice()].concat();
            let both = Node { first: node.first, entries, ..right.clone() };
            if !self.replace(nodes, &(right_at, right), both)? {
                return Ok(());
            }
        }
        let dead = Node { state: State::Dead, right: right_at, entries: vec![], ..node.clone() };
        let (level, first) = (node.level, node.first);
        if !self.replace(nodes, &(at, node), dead.clone())? {
            return Ok(());
        }
        self.forget(nodes, (at, &dead), level + 1)?;
        self.unlink(nodes, (at, &dead))?;
        nodes.retire(at);
        self.shrink(nodes, level + 1, first)
    }

    /// The last of the closing nodes that follow one another from this one on, and the live node behind it.
    fn last_closing<N: Nodes>(&self, nodes: &mut N, closing: Found) -> Result<(Found, Found), N::Error> {
        let mut last = closing;
        let mut at = last.1.right;
        for _ in 0..VISITS_MAX {
            if at.is_null() {
                return Err(
                    Fault::Broken { at: last.0, what: "a node that closes and has no neighbour" }.into()
                );
            }
            let right = nodes.read(at)?;
            let next = right.right;
            match right.state {
                State::Live => return Ok((last, (at, right))),
                State::Closing => last = (at, right),
                State::Dead => {}
            }
            at = next;
        }
        Err(Fault::Broken { at, what: "neighbours in a circle" }.into())
    }

    /// The node that has the keys of a dead one.
    fn heir<N: Nodes>(&self, nodes: &mut N, dead: &Node) -> Result<VirtAddr, N::Error> {
        let mut at = dead.right;
        for _ in 0..VISITS_MAX {
            let node = nodes.read(at)?;
            if node.state != State::Dead {
                return Ok(at);
            }
            at = node.right;
        }
        Err(Fault::Broken { at, what: "dead nodes lead in a circle" }.into())
    }

    /// Makes the nodes of this level lead to the node that has a dead node's keys, in place of the dead one.
    fn forget<N: Nodes>(
        &self,
        nodes: &mut N,
        (at, dead): (VirtAddr, &Node),
        level: u8,
    ) -> Result<(), N::Error> {
        let mut all = vec![(at, dead.clone(), dead.first)];
        for _ in 0..TRIES_MAX {
            let Some((at, dead, key)) = all.last_mut() else { return Ok(()) };
            let (parent_at, parent) = self.writable(nodes, level, *key)?;
            let last = parent.last;
            let mut died = None;
            if parent.entries.iter().any(|(_, child)| *child == at.0) {
                let heir = self.heir(nodes, dead)?;
                let mut new = parent.clone();
                let its = new.entries.iter_mut().filter(|(_, child)| *child == at.0);
                its.for_each(|(_, child)| *child = heir.0);
                new.entries.dedup_by_key(|(_, child)| *child);
                if !self.replace(nodes, &(parent_at, parent), new)? {
                    continue;
                }
                // The heir may have died before the parent knew of it: then its `forget` found no entry in the parent.
                let now = nodes.read(heir)?;
                died = (now.state == State::Dead).then(|| (heir, now.clone(), now.first));
            }
            if last >= dead.last {
                all.pop();
            } else {
                *key = last + 1;
            }
            all.extend(died);
        }
        Err(Fault::Busy.into())
    }

    /// Makes the left neighbour of a dead node lead to the node that has its keys.
    fn unlink<N: Nodes>(&self, nodes: &mut N, (at, dead): (VirtAddr, &Node)) -> Result<(), N::Error> {
        let (mut at, mut dead) = (at, dead.clone());
        for _ in 0..TRIES_MAX {
            let Some(before) = dead.first.checked_sub(1) else { return Ok(()) };
            let left = self.descend(nodes, self.root, dead.level, before)?;
            if left.1.right != at {
                return Ok(());
            }
            let heir = self.heir(nodes, &dead)?;
            let new = Node { right: heir, ..left.1.clone() };
            if self.replace(nodes, &left, new)? {
                let now = nodes.read(heir)?;
                if now.state != State::Dead {
                    return Ok(());
                }
                (at, dead) = (heir, now);
            }
        }
        Err(Fault::Busy.into())
    }
}
