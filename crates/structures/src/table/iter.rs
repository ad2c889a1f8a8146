//! Going through a table: some buckets at a time, their chains side by side.
//!
//! Key type: [`Iter`]. Each bucket is seen as it was at one moment. So a key that is there all the time comes once, one that is inserted or removed meanwhile
//! once or not at all, and none comes twice.

use super::node::{Contents, Node, unpair};
use super::{GROUP, Table, in_shard};
use crate::heap::{HEADER_LEN, Heap, LINE_LEN, Record};
use farmem_client::{Error, FarMemory};
use farmem_wire::VirtAddr;

/// Buckets that are looked at together: a page of them.
const BUCKETS: u64 = 512;
/// Bytes of content in the first line of a record.
const FIRST_LINE: u32 = 224;
const _: () = assert!(FIRST_LINE as usize == LINE_LEN - HEADER_LEN);
const _: () = assert!(BUCKETS.is_multiple_of(GROUP));

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Goes through all keys of a table, in no order.
#[derive(Debug)]
pub struct Iter<'a> {
    chains: Chains<'a>,
}

impl Table {
    /// All keys and values, some at a time.
    #[must_use]
    pub const fn iter(&self) -> Iter<'_> {
        Iter { chains: self.chains() }
    }

    pub(super) const fn chains(&self) -> Chains<'_> {
        Chains { table: self, shard: 0, bucket: 0 }
    }
}

impl Iter<'_> {
    /// The next keys and values, of one page of buckets: a READ for the buckets, then READs side by side for as many rounds as the longest chain has nodes, and two for
    /// what is not in its node. `None` at the end.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer, or is not a table's; [`Error::Evicted`]. The same page comes with the next call.
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
                // The node does not say how long the body is: one line is read first, and then the rest.
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

/// Goes through all nodes.
#[derive(Debug)]
pub(super) struct Chains<'a> {
    table: &'a Table,
    shard: usize,
    /// In the shard.
    bucket: u64,
}

impl Chains<'_> {
    /// The nodes of the next page of buckets.
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
        heap.still(memory)?;
        Ok(Some(nodes))
    }
}

/// The nodes at these addresses.
fn nodes_at(memory: &mut (impl FarMemory + ?Sized), at: &[VirtAddr]) -> Result<Vec<(VirtAddr, Node)>, Error> {
    let mut lines = vec![[0; LINE_LEN]; at.len()];
    let mut reads: Vec<(VirtAddr, &mut [u8])> =
        at.iter().zip(&mut lines).map(|(at, line)| (*at, line.as_mut_slice())).collect();
    memory.read_many(&mut reads)?;
    at.iter().zip(&lines).map(|(at, line)| Ok((*at, Node::parse(line, *at)?))).collect()
}
