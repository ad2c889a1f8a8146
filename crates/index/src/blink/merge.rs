//! Merges: a sparse node goes into its right neighbour, and a root with one child takes the child's entries.

use super::node::TAKING_MAX;
use super::{Fault, Found, Node, Nodes, State, TRIES_MAX, Tree, VISITS_MAX};
use alloc::vec;
use alloc::vec::Vec;
use farmem_wire::VirtAddr;

impl Tree {
    /// Merges the leaf of `key` into its right neighbour, or its left neighbour into it, if together they
    /// have few entries. A writer calls this after a memory node reported a sparse leaf.
    ///
    /// # Errors
    /// The error of `nodes`; [`Fault`].
    pub fn merge_sparse<N: Nodes>(&self, nodes: &mut N, key: u64) -> Result<(), N::Error> {
        self.shrink(nodes, 0, key)
    }

    /// Merges on any level until the node of the key is not sparse or fits no neighbour; lowers a root with
    /// one child.
    pub(super) fn shrink<N: Nodes>(&self, nodes: &mut N, level: u8, key: u64) -> Result<(), N::Error> {
        for _ in 0..TRIES_MAX {
            let Some((at, node)) = self.writable(nodes, level, key)? else { return Ok(()) };
            let (first, entries) = (node.first, node.entries.len());
            let is_alone = (first, node.last) == (0, u64::MAX);
            match () {
                () if at == self.root && level == 0 => return Ok(()),
                () if at == self.root => return self.lower(nodes),
                () if !self.is_sparse(entries) => return Ok(()),
                () if is_alone => return self.lower(nodes),
                () if self.close(nodes, (at, node))? => continue,
                () => {}
            }
            // Leaves lose one key at a time: the left neighbour is checked at two sizes only.
            let is_time = level > 0 || entries == 0 || entries == self.entries / 4;
            let Some(before) = first.checked_sub(1).filter(|_| is_time) else { return Ok(()) };
            match self.writable(nodes, level, before)? {
                Some(left) if left.1.right == at && self.is_sparse(left.1.entries.len()) => {
                    if !self.close(nodes, left)? {
                        return Ok(());
                    }
                }
                _ => return Ok(()),
            }
        }
        Err(Fault::Busy.into())
    }

    /// Starts to merge a live node into its right neighbour if that is live and both together have few
    /// entries; returns whether it started.
    fn close<N: Nodes>(&self, nodes: &mut N, (at, node): Found) -> Result<bool, N::Error> {
        if at == self.root || node.right.is_null() {
            return Ok(false);
        }
        let right = nodes.read(node.right)?;
        let entries = node.entries.len() + right.entries.len();
        if right.state != State::Live || 4 * entries > 3 * self.entries {
            return Ok(false);
        }
        let (level, first) = (node.level, node.first);
        let closing = Node { state: State::Closing, ..node.clone() };
        let closes = self.replace(nodes, &(at, node), closing)?;
        if closes {
            // The search for a writable node there completes the merge.
            self.writable(nodes, level, first)?;
        }
        Ok(closes)
    }

    /// Continues the merge of a closing node: its right neighbour takes its entries. A neighbour that is
    /// closing too comes first, and the caller tries again.
    pub(super) fn merge<N: Nodes>(&self, nodes: &mut N, closing: Found) -> Result<(), N::Error> {
        let mut left = closing;
        for _ in 0..VISITS_MAX {
            let (right_at, next) = (left.1.right, left.1.last.wrapping_add(1));
            if right_at.is_null() {
                return self.lower(nodes);
            }
            let right = nodes.read(right_at)?;
            let is_next = right.tag == self.tag && right.level == left.1.level && right.first == next;
            match right.state {
                State::Closing if is_next => left = (right_at, right),
                State::Live if is_next => return self.take(nodes, left, (right_at, right)),
                State::Young | State::Taking => return self.carry_on(nodes, (right_at, right)),
                // The neighbour was merged, and the node that has its keys still takes them.
                State::Dead if is_next => return self.finish(nodes, right.right),
                // The closing node has changed.
                _ => return Ok(()),
            }
        }
        Err(Fault::Broken { at: left.0, what: "neighbours in a circle" }.into())
    }

    /// Makes a live node take the entries of the closing node on its left, which is then dead.
    fn take<N: Nodes>(&self, nodes: &mut N, left: Found, (at, right): Found) -> Result<(), N::Error> {
        // Both may be other nodes by now, which are neighbours as these were. While the left one is closing,
        // the right one is its target.
        if nodes.read(left.0)?.head() != left.1.head() {
            return Ok(());
        }
        if left.1.entries.len() + right.entries.len() > self.entries.min(TAKING_MAX) {
            return self.split(nodes, (at, right));
        }
        let mut entries = [left.1.entries.as_slice(), right.entries.as_slice()].concat();
        if right.level > 0 {
            entries.dedup_by_key(|(_, child)| *child);
        }
        let both =
            Node { first: left.1.first, entries, state: State::Taking, taken: left.0, ..right.clone() };
        if self.replace(nodes, &(at, right), both)? {
            self.mark_dead(nodes, left, at)?;
            self.finish(nodes, at)?;
        }
        Ok(())
    }

    /// Marks a closing node as dead, with a link to the node that took its entries.
    fn mark_dead<N: Nodes>(
        &self,
        nodes: &mut N,
        (at, node): Found,
        heir: VirtAddr,
    ) -> Result<bool, N::Error> {
        let dead = Node { state: State::Dead, right: heir, entries: vec![], ..node.clone() };
        self.replace(nodes, &(at, node), dead)
    }

    /// Completes the merge of a taking node: pointers to the dead node are changed to it, and the dead node's
    /// place is freed. Nodes above that lost entries may be sparse.
    pub(super) fn finish<N: Nodes>(&self, nodes: &mut N, at: VirtAddr) -> Result<(), N::Error> {
        let (mut fewer, mut level) = (Vec::new(), 0);
        for _ in 0..TRIES_MAX {
            let node = nodes.read(at)?;
            if node.state != State::Taking || node.tag != self.tag {
                return fewer.into_iter().try_for_each(|key| self.shrink(nodes, level + 1, key));
            }
            level = node.level;
            let taken = nodes.read(node.taken)?;
            if taken.state == State::Closing {
                // If the taking node is unchanged, the closing node is the one that it takes.
                if nodes.read(at)?.head() == node.head() {
                    self.mark_dead(nodes, (node.taken, taken), at)?;
                }
                continue;
            }
            // The root has no parent and no left neighbour.
            let told = &mut fewer;
            if at != self.root
                && !(self.relink_parents(nodes, (at, &node), told)? && self.unlink(nodes, (at, &node))?)
            {
                continue;
            }
            let live = Node { state: State::Live, taken: VirtAddr::NULL, ..node.clone() };
            let place = node.taken;
            if self.replace(nodes, &(at, node), live)? {
                nodes.retire(place);
                if at == self.root {
                    return self.lower(nodes);
                }
            }
        }
        Err(Fault::Busy.into())
    }

    /// Links the left neighbour of a taking node to it, in place of the dead node. Returns false if the
    /// taking node has changed.
    fn unlink<N: Nodes>(&self, nodes: &mut N, (at, node): (VirtAddr, &Node)) -> Result<bool, N::Error> {
        let Some(before) = node.first.checked_sub(1) else { return Ok(true) };
        for _ in 0..TRIES_MAX {
            let Some(left) = self.descend(nodes, self.root, node.level, before)? else { return Ok(false) };
            if left.1.state == State::New {
                self.carry_on(nodes, left)?;
                continue;
            }
            if left.1.right == at {
                return Ok(true);
            }
            if left.1.right != node.taken || !self.is_still(nodes, (at, node))? {
                return Ok(false);
            }
            let new = Node { right: at, ..left.1.clone() };
            if self.replace(nodes, &left, new)? {
                return Ok(true);
            }
        }
        Err(Fault::Busy.into())
    }

    /// Moves the entries of an only child into the root, repeatedly; also completes a lowering in progress.
    fn lower<N: Nodes>(&self, nodes: &mut N) -> Result<(), N::Error> {
        for _ in 0..TRIES_MAX {
            let root = nodes.read(self.root)?;
            if root.state == State::Taking {
                return self.finish(nodes, self.root);
            }
            let Some(&(_, only)) = root.entries.first().filter(|_| root.level > 0) else { return Ok(()) };
            if root.entries.iter().any(|(_, child)| *child != only) {
                return Ok(());
            }
            let at = VirtAddr(only);
            let child = nodes.read(at)?;
            let is_alone = child.tag == self.tag
                && child.level + 1 == root.level
                && (child.first, child.last) == (0, u64::MAX)
                && child.entries.len() <= TAKING_MAX;
            match child.state {
                State::Live if is_alone => {
                    let closing = Node { state: State::Closing, ..child.clone() };
                    self.replace(nodes, &(at, child), closing)?;
                }
                State::Closing if is_alone => {
                    let (level, entries) = (child.level, child.entries.clone());
                    let lower = Node { level, entries, state: State::Taking, taken: at, ..root.clone() };
                    if self.replace(nodes, &(self.root, root), lower)? {
                        self.mark_dead(nodes, (at, child), self.root)?;
                    }
                }
                State::Young => self.carry_on(nodes, (at, child))?,
                _ => return Ok(()),
            }
        }
        Err(Fault::Busy.into())
    }
}
