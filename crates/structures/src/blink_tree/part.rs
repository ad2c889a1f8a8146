//! A part of a running scan: the received pairs, the keys still to request, and the start of the next
//! request.

use super::{BLinkTree, VISITS_MAX, programs, start_pad};
use farmem_client::{Error, FarMemory, Op, TraversalStop, Traversed};
use farmem_wire::VirtAddr;
use std::collections::VecDeque;

/// Consecutive keys of a scan. A leaf address is only a starting point: from any leaf that once held the key,
/// a descent goes right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// Received pairs, ascending.
    pub(super) pairs: VecDeque<(u64, u64)>,
    /// The first and the last key still to request; `None` when nothing is left.
    pub(super) left: Option<(u64, u64)>,
    /// The leaf that holds the first of these keys, where known.
    leaf: Option<VirtAddr>,
}

/// The outcome of one request of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PadOutcome {
    /// The request fetched pairs, or the part is at its end.
    Pairs,
    /// The tree led nowhere. The host must read the leaf itself.
    Lost,
}

impl Part {
    pub(super) const fn new(left: Option<(u64, u64)>) -> Self {
        Self { pairs: VecDeque::new(), left, leaf: None }
    }

    /// Creates a finished part with these pairs.
    pub(super) const fn of(pairs: VecDeque<(u64, u64)>) -> Self {
        Self { pairs, left: None, leaf: None }
    }

    /// Returns true while the part has fewer than `most` pairs and keys are left to request.
    pub(super) fn wants(&self, most: usize) -> bool {
        self.left.is_some() && self.pairs.len() < most
    }

    /// Returns the start of the traversal that brings the part to `most` pairs, as far as one traversal can,
    /// and its pad. `scratch` is any buffer.
    pub(super) fn request(&self, tree: &BLinkTree, most: usize, scratch: Vec<u8>) -> (VirtAddr, Vec<u8>) {
        let (first, last) = self.left.expect("a part that asks has keys left");
        let wanted = 16 * most.saturating_sub(self.pairs.len()).min(programs::PAIRS_MAX) as u64;
        let pad = [first, tree.tree.tag.get().into(), 0, last, wanted, 0, tree.tree.root.0];
        (self.leaf.unwrap_or(tree.tree.root), start_pad(&tree.programs.scan, &pad, scratch))
    }

    /// Returns that traversal as an operation.
    pub(super) fn op(&self, tree: &BLinkTree, most: usize, scratch: Vec<u8>) -> Op {
        let (cur_ptr, scratch) = self.request(tree, most, scratch);
        Op::Traverse { program: tree.programs.scan.clone(), cur_ptr, scratch, limit: VISITS_MAX }
    }

    /// Takes the result of a traversal, with its pad.
    pub(super) fn ended(&mut self, end: &Traversed, scratch: &[u8]) -> Result<PadOutcome, Error> {
        if end.returned {
            return Ok(self.take(scratch));
        }
        Err(Error::Traversal { addr: end.cur_ptr, reason: TraversalStop::Stalled })
    }

    fn take(&mut self, scratch: &[u8]) -> PadOutcome {
        let (_, last) = self.left.expect("a part that asked has keys left");
        let words = crate::words(scratch);
        let filled = usize::try_from(words[programs::FILLED / 8] / 16).unwrap_or(usize::MAX);
        let mut fetched: Vec<(u64, u64)> = words[programs::PAIRS / 8..]
            .chunks_exact(2)
            .take(filled)
            .map(|pair| (pair[0], pair[1]))
            .collect();
        fetched.sort_unstable();
        self.pairs.extend(fetched);
        let (next, had_leaf) = (words[programs::KEY / 8], self.leaf.take().is_some());
        self.left = Some((next, last));
        match words[programs::STATUS / 8] {
            programs::MORE => {
                self.leaf = Some(VirtAddr(words[programs::WANTED / 8])).filter(|leaf| !leaf.is_null());
                PadOutcome::Pairs
            }
            programs::MISSING => {
                self.left = None;
                PadOutcome::Pairs
            }
            // The next request starts at the root.
            _ if had_leaf => PadOutcome::Pairs,
            _ => PadOutcome::Lost,
        }
    }

    /// Reads the next leaf at the host and takes its pairs, after [`PadOutcome::Lost`].
    pub(super) fn leaf_at_host(
        &mut self,
        tree: &BLinkTree,
        memory: &mut (impl FarMemory + ?Sized),
    ) -> Result<(), Error> {
        let (first, last) = self.left.expect("a part that is lost has keys left");
        let leaf = tree.tree.leaf(&mut tree.reader(memory), first)?;
        self.pairs.extend(leaf.entries.into_iter().filter(|(key, _)| (first..=last).contains(key)));
        self.left = leaf.last.checked_add(1).filter(|next| *next <= last).map(|next| (next, last));
        Ok(())
    }
}
