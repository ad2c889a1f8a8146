//! Iteration over a table: a page of buckets at a time, its chains in parallel.
//!
//! Key type: [`Iter`]. Each bucket is seen as of one moment. A stable key therefore appears once, a key
//! inserted or removed meanwhile at most once.

use super::node::{Contents, Node, unpair};
use super::{GROUP, Table, in_shard};
use crate::heap::{HEADER_LEN, Heap, LINE_LEN, Record};
use farmem_client::{Error, FarMemory};
use farmem_wire::VirtAddr;

/// Buckets read together: a page of them.
const BUCKETS: u64 = 512;
/// Content bytes in the first line of a record.
const FIRST_LINE: u32 = 224;
const _: () = assert!(FIRST_LINE as usize == LINE_LEN - HEADER_LEN);
const _: () = assert!(BUCKETS.is_multiple_of(GROUP));

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// An iterator over all keys of a table, in no order.
#[derive(Debug)]
pub struct Iter<'a> {
    chains: Chains<'a>,
}

impl Table {
    /// Returns an iterator over all keys and values, in batches.
    #[must_use]
    pub const fn iter(&self) -> Iter<'_> {
        Iter { chains: self.chains() }
    }

    pub(super) const fn chains(&self) -> Chains<'_> {
        Chains { table: self, shard: 0, bucket: 0 }
    }
}

impl Iter<'_> {
    /// Returns the next keys and values, of one page of buckets; `None` at the end. The cost is a READ for
    /// the buckets, then rounds of parallel READs: one per node of the longest chain, and two for bodies.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or holds no table; [`Error::LeaseExpired`]. The next call repeats
    /// the same page.
    pub fn next(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
    ) -> Result<Option<Vec<Pair>>, Error> {
        let place = (self.chains.shard, self.chains.bucket);
        heap.pin(memory)?;
        let pairs = self.pairs(memory, heap);
        heap.unpin();
        if pairs.is_err() {
            (self.chains.shard, self.chains.bucket) = place;
        }
        pairs
    }

    fn pairs(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
    ) -> Result<Option<Vec<Pair>>, Error> {
        let Some(nodes) = self.chains.next(memory, heap)? else { return Ok(None) };
        let (mut whole, mut bodies) = (Vec::with_capacity(nodes.len()), Vec::new());
        for (at, node) in nodes {
            match node.held {
                Contents::Whole(content) => whole.push((at, content)),
                // The node does not state the body's length: the first line is read first, then the rest.
                Contents::Far(body) => bodies.push(Record { at: body, len: FIRST_LINE }),
            }
        }
        let read = heap.read_all(memory, &bodies)?;
        let far = bodies.iter().zip(read).map(|(body, (_, content))| (body.at, content));
        let mut pairs = Vec::with_capacity(whole.len() + bodies.len());
        for (at, content) in whole.into_iter().chain(far) {
            let (key, value) = unpair(&content, at)?;
            pairs.push((key.to_vec(), value.to_vec()));
        }
        Ok(Some(pairs))
    }
}

/// An iterator over all nodes.
#[derive(Debug)]
pub(super) struct Chains<'a> {
    table: &'a Table,
    shard: usize,
    /// The next bucket in the shard.
    bucket: u64,
}

impl Chains<'_> {
    /// Returns the nodes of the next page of buckets.
    pub(super) fn next(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
    ) -> Result<Option<Vec<(VirtAddr, Node)>>, Error> {
        let Some(&(_, base)) = self.table.shards.get(self.shard) else { return Ok(None) };
        let count = self.table.shards.len() as u64;
        let in_shard = in_shard(self.table.buckets, count);
        let here = BUCKETS.min(in_shard - self.bucket);
        let mut bytes = vec![0; usize::try_from(here * 8).expect("a page")];
        memory.read(VirtAddr(base.0 + self.bucket * 8), &mut bytes)?;
        self.bucket += here;
        if self.bucket == in_shard {
            (self.shard, self.bucket) = (self.shard + 1, 0);
        }
        let heads = crate::words(&bytes).into_iter().filter(|&head| head != 0);
        let mut ends: Vec<VirtAddr> = heads.map(VirtAddr).collect();
        let mut nodes = Vec::new();
        while !ends.is_empty() {
            let read = nodes_at(memory, &ends)?;
            ends =
                read.iter().filter(|(_, node)| node.next != 0).map(|(_, node)| VirtAddr(node.next)).collect();
            nodes.extend(read);
        }
        heap.confirm_membership(memory)?;
        Ok(Some(nodes))
    }
}

/// Reads the nodes at these addresses.
fn nodes_at(memory: &mut (impl FarMemory + ?Sized), at: &[VirtAddr]) -> Result<Vec<(VirtAddr, Node)>, Error> {
    let mut lines = vec![[0; LINE_LEN]; at.len()];
    let mut reads: Vec<(VirtAddr, &mut [u8])> =
        at.iter().zip(&mut lines).map(|(at, line)| (*at, line.as_mut_slice())).collect();
    memory.read_many(&mut reads)?;
    at.iter().zip(&lines).map(|(at, line)| Ok((*at, Node::parse(line, *at)?))).collect()
}
