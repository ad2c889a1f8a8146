//! Index lookups at the switch: traversals of a known tree begin at a deeper node than requested (PROTOCOL
//! 13.14; Fat-B+Tree III).

use alloc::vec::Vec;
use farmem_index::{Descent, IndexTables};
use farmem_wire::message::{Batch, PairBuf};
use farmem_wire::{Body, Message};

/// Rewritten pointers of a request. The buffers are reused for each request.
#[derive(Debug, Default)]
pub(crate) struct IndexStart {
    /// The pairs of a batch with their new pointers.
    pairs: PairBuf,
    descents: Vec<Descent>,
}

impl IndexStart {
    /// Moves the start of a traversal, or of each traversal of a batch, to the deepest known node on the path
    /// to its key. Protection is checked there as for any other address.
    pub(crate) fn start_at_index<'a>(&'a mut self, index: &IndexTables, message: &mut Message<'a>) {
        self.descents.clear();
        if index.is_empty() {
            return;
        }
        let domain = message.header.domain;
        match &mut message.body {
            Body::Traverse(traverse) => {
                let begins = index.start(domain, traverse.cur_ptr, traverse.program, traverse.scratch);
                traverse.cur_ptr = begins.map_or(traverse.cur_ptr, |descent| descent.at);
                self.descents.extend(begins);
            }
            Body::Batch(batch) => {
                self.pairs.clear();
                // Consecutive pairs mostly begin at one root: they descend together.
                let mut pairs = batch.pairs();
                let mut next = batch.pairs().peekable();
                while let Some(first) = next.next() {
                    let tree = index.tree(domain, first.cur_ptr, batch.program());
                    let mut alike = 1;
                    while next.next_if(|pair| pair.cur_ptr == first.cur_ptr).is_some() {
                        alike += 1;
                    }
                    let begun = self.descents.len();
                    if let Some(tree) = tree {
                        let pads = pairs.clone().take(alike).map(|pair| pair.scratch);
                        index.descend(tree, pads, &mut self.descents);
                    }
                    for (n, mut pair) in pairs.by_ref().take(alike).enumerate() {
                        pair.cur_ptr =
                            self.descents.get(begun + n).map_or(pair.cur_ptr, |descent| descent.at);
                        self.pairs.push(&pair);
                    }
                }
                if !self.descents.is_empty() {
                    *batch = Batch::of(&message.header, batch.program(), batch.code(), &self.pairs);
                }
            }
            Body::RegionRead { .. } | Body::RegionWrite { .. } | Body::Update(_) => {}
        }
    }

    /// Returns the descents of the last request.
    pub(crate) fn descents(&self) -> &[Descent] {
        &self.descents
    }
}
