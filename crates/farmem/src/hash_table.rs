//! A chained hash table in far memory: what PULSE's `unordered_map::find` walks (PULSE 3, listings 2 and 3).
//!
//! Buckets and chain nodes are 64-byte nodes spread over the rack's memory nodes. [`HashTable::find`] is one traversal;
//! [`HashTable::find_by_reads`] follows the same pointers with one-sided READs, one round trip each. Both forms also come in
//! pieces ([`HashTable::find_op`], [`HashTable::step`]) for programs that keep many look-ups under way.
//!
//! One writer at a time, as PULSE leaves synchronisation to the host. A reader beside the writer sees each chain with or
//! without a new node, never a broken pointer: a node is complete before the one 8-byte word that links it is written.

use crate::{Answer, Client, Completed, Error, Op, TraversalStop, Traversed, Vma};
use farmem_traversal::Program;
use farmem_wire::{NodeId, VirtAddr};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher as _;

/// Bytes of a value.
pub const VALUE_LEN: usize = 40;
/// Bytes of a bucket or chain node.
pub const NODE_LEN: usize = 64;

/// Offsets in a node; the program `hash_find.pulse` names the same ones.
mod field {
    use core::ops::Range;
    pub(super) const KEY_LO: Range<usize> = 0..8;
    pub(super) const KEY_HI: Range<usize> = 8..16;
    pub(super) const NEXT: Range<usize> = 16..24;
    pub(super) const VALUE: Range<usize> = 24..64;
}

/// Offsets in the scratch pad of `hash_find.pulse`.
mod scratch {
    use core::ops::Range;
    /// In: the key's low half. Out: 1 when found, 0 when not.
    pub(super) const KEY_LO_OR_FOUND: Range<usize> = 0..8;
    pub(super) const KEY_HI: Range<usize> = 8..16;
    pub(super) const VALUE: Range<usize> = 16..56;
    pub(super) const LEN: usize = 56;
}

/// The program of [`HashTable::find`], in its text form.
pub const FIND_PROGRAM: &str = include_str!("../../../testdata/programs/hash_find.pulse");

/// Iterations after which a look-up gives up: longer chains mean a table far too small, or a cycle.
const CHAIN_MAX: u32 = 1 << 16;
/// Bytes of one WRITE of a bulk load.
const BULK_WRITE_LEN: usize = 64 << 10;
/// WRITEs of a bulk load under way at once.
const BULK_WRITES_MAX: usize = 8;

/// A key: 128 bits that stand for the bytes they were made from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    lo: u64,
    hi: u64,
}

impl Key {
    /// The key of some bytes: their SipHash-1-3-128. Two different ones in a billion agree with probability 2^-68.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = SipHasher13::new();
        hasher.write(bytes);
        let hash = hasher.finish128();
        // (0, 0) marks a node without a key.
        Self { lo: hash.h1 | 1, hi: hash.h2 }
    }
}

/// A value: [`VALUE_LEN`] bytes.
pub type Value = [u8; VALUE_LEN];

/// Where a chain's nodes lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    /// On the memory node of their bucket: no look-up crosses nodes (PULSE 6: "partitioned based on primary keys").
    Partitioned,
    /// On all memory nodes in turn: nearly every hop crosses nodes, the hardest case for a distributed traversal.
    Scattered,
}

/// What one node says to a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The key is here.
    Found(Value),
    /// Look at this node next.
    Next(VirtAddr),
    /// The key is not in the table.
    Missing,
}

/// One memory node's share of the table.
#[derive(Clone, Copy, Debug)]
struct Shard {
    node: NodeId,
    vma: Vma,
    /// The first byte not used yet; chain nodes follow the buckets.
    next: u64,
}

/// The table. Its description lives with the program that made it; its bytes in far memory.
#[derive(Debug)]
pub struct HashTable {
    program: Program,
    shards: Vec<Shard>,
    buckets: u64,
    spread: Spread,
    /// Whose turn it is to take a scattered node.
    turn: usize,
}

impl HashTable {
    /// A table with room for `entries`, in about `buckets` buckets (rounded up to a power of two), over all memory nodes.
    ///
    /// # Errors
    /// [`Error`] when the rack has no room for it.
    pub fn create(client: &mut Client, entries: u64, buckets: u64, spread: Spread) -> Result<Self, Error> {
        let nodes: Vec<NodeId> = client.nodes().iter().map(|n| NodeId(n.node)).collect();
        let count = nodes.len() as u64;
        if count == 0 {
            return Err(Error::Full { what: "a rack without memory nodes".into() });
        }
        // What is too much for these numbers is far too much for any node, which then says so.
        let buckets = buckets.max(count).checked_next_power_of_two().unwrap_or(1 << 63);
        let per_shard = buckets.div_ceil(count);
        // Partitioned chains fill shards unevenly: room for a quarter more, and for small tables.
        let share = entries.div_ceil(count);
        let chain_nodes = share.saturating_add(share / 4).saturating_add(1024);
        let bytes = per_shard.saturating_add(chain_nodes).saturating_mul(NODE_LEN as u64);
        let mut shards = Vec::with_capacity(nodes.len());
        for node in nodes {
            match client.allocate_on(bytes, node) {
                Ok(vma) => shards.push(Shard { node, vma, next: vma.base.0 + per_shard * NODE_LEN as u64 }),
                Err(error) => {
                    let given_back = shards.iter().try_for_each(|shard: &Shard| client.free(shard.vma.base));
                    return Err(given_back.err().unwrap_or(error));
                }
            }
        }
        let program = Program::assemble(FIND_PROGRAM)
            .expect("the program is part of the crate, and a test assembles it");
        Ok(Self { program, shards, buckets, spread, turn: 0 })
    }

    /// Frees the table's memory.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    pub fn destroy(self, client: &mut Client) -> Result<(), Error> {
        self.shards.iter().try_for_each(|shard| client.free(shard.vma.base))
    }

    /// Puts `value` under `key`, in place of the one there was.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer; [`Error::Full`] when the table has no room for another node.
    pub fn insert(&mut self, client: &mut Client, key: Key, value: &Value) -> Result<(), Error> {
        if let Some((addr, _)) = self.walk(client, key)? {
            return client.write(at(addr, field::VALUE.start), value);
        }
        let (bucket, mut node) = (self.bucket(key), [0; NODE_LEN]);
        client.read(bucket, &mut node)?;
        if key_of(&node) == (Key { lo: 0, hi: 0 }) {
            // The key comes last: until then a reader passes the node by.
            client.write(at(bucket, field::VALUE.start), value)?;
            return client.write(bucket, &[key.lo.to_le_bytes(), key.hi.to_le_bytes()].concat());
        }
        let home = self.shard_of(key);
        let fresh = self.take_node(home)?;
        client.write(fresh, &encode(key, word(&node, field::NEXT), value))?;
        client.write(at(bucket, field::NEXT.start), &fresh.0.to_le_bytes())
    }

    /// Looks `key` up with one traversal.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn find(&self, client: &mut Client, key: Key) -> Result<Option<Value>, Error> {
        let scratch = client.buffer(scratch::LEN);
        let ticket = client.submit(self.find_op(key, scratch))?;
        let completed = client.wait(ticket)?;
        let found = Self::found(&completed);
        if let Answer::Traversed(Traversed { returned: false, cur_ptr: addr, .. }) = completed.result? {
            return Err(Error::Traversal { addr, reason: TraversalStop::Stalled });
        }
        client.recycle(completed.buf);
        Ok(found)
    }

    /// Looks `key` up pointer by pointer, with a one-sided READ for each node.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn find_by_reads(&self, client: &mut Client, key: Key) -> Result<Option<Value>, Error> {
        Ok(self.walk(client, key)?.map(|(_, value)| value))
    }

    /// Follows the chain of `key` by READs, to its node and value.
    fn walk(&self, client: &mut Client, key: Key) -> Result<Option<(VirtAddr, Value)>, Error> {
        let mut node = [0; NODE_LEN];
        let mut addr = self.bucket(key);
        for _ in 0..CHAIN_MAX {
            client.read(addr, &mut node)?;
            match Self::step(key, &node) {
                Step::Found(value) => return Ok(Some((addr, value))),
                Step::Next(next) => addr = next,
                Step::Missing => return Ok(None),
            }
        }
        Err(Error::Traversal { addr, reason: TraversalStop::Stalled })
    }

    /// The traversal that looks `key` up; `scratch` is any buffer, its content is replaced.
    #[must_use]
    pub fn find_op(&self, key: Key, mut scratch: Vec<u8>) -> Op {
        scratch.clear();
        scratch.extend_from_slice(&key.lo.to_le_bytes());
        scratch.extend_from_slice(&key.hi.to_le_bytes());
        scratch.resize(scratch::LEN, 0);
        Op::Traverse { program: self.program.clone(), cur_ptr: self.bucket(key), scratch, limit: CHAIN_MAX }
    }

    /// What a finished [`HashTable::find_op`] found; `None` when the key is missing or the operation failed.
    #[must_use]
    pub fn found(completed: &Completed) -> Option<Value> {
        let scratch = completed.buf.get(..scratch::LEN)?;
        let found = completed.result.is_ok() && word(scratch, scratch::KEY_LO_OR_FOUND) == 1;
        debug_assert!(!found || scratch[scratch::KEY_HI].len() == 8, "the pad keeps its layout");
        found.then(|| scratch[scratch::VALUE].try_into().expect("a value's length"))
    }

    /// The READ of the bucket where a look-up of `key` begins; `buf` is any buffer.
    #[must_use]
    pub fn first_read(&self, key: Key, buf: Vec<u8>) -> Op {
        Self::read_of(self.bucket(key), buf)
    }

    /// The READ of one node; `buf` is any buffer.
    #[must_use]
    pub fn read_of(addr: VirtAddr, mut buf: Vec<u8>) -> Op {
        buf.resize(NODE_LEN, 0);
        Op::Read { addr, buf }
    }

    /// What a node that was read says to a look-up of `key`.
    ///
    /// # Panics
    /// When `node` is shorter than [`NODE_LEN`].
    #[must_use]
    pub fn step(key: Key, node: &[u8]) -> Step {
        if key_of(node) == key {
            return Step::Found(node[field::VALUE].try_into().expect("a value's length"));
        }
        match word(node, field::NEXT) {
            0 => Step::Missing,
            next => Step::Next(VirtAddr(next)),
        }
    }

    /// Fills an empty table: the image is built here and written in large pieces. `progress` hears bytes written and bytes in all.
    ///
    /// Of two entries with one key the later one is found.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer; [`Error::Full`] when a memory node has no room for its share.
    pub fn load(
        &mut self,
        client: &mut Client,
        entries: impl Iterator<Item = (Key, Value)>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Error> {
        let mut images: Vec<Vec<u8>> =
            self.shards.iter().map(|s| vec![0; offset(s.next - s.vma.base.0)]).collect();
        for (key, value) in entries {
            let (shard, start) = self.bucket_place(key);
            let bucket: &mut [u8] = &mut images[shard][start..start + NODE_LEN];
            if key_of(bucket) == (Key { lo: 0, hi: 0 }) {
                bucket.copy_from_slice(&encode(key, 0, &value));
                continue;
            }
            let behind = word(bucket, field::NEXT);
            let fresh = self.take_node(shard)?;
            images[shard][start + field::NEXT.start..start + field::NEXT.end]
                .copy_from_slice(&fresh.0.to_le_bytes());
            let home = self.shards.iter().position(|s| fresh.0.wrapping_sub(s.vma.base.0) < s.vma.size);
            let image = &mut images[home.expect("the node was taken from a shard")];
            image.extend_from_slice(&encode(key, behind, &value));
        }
        let total: u64 = images.iter().map(|image| image.len() as u64).sum();
        let mut written = 0;
        let mut under_way = 0;
        for (shard, image) in self.shards.iter().zip(&images) {
            for (n, piece) in image.chunks(BULK_WRITE_LEN).enumerate() {
                let mut buf = client.buffer(0);
                buf.extend_from_slice(piece);
                client.submit(Op::Write { addr: at(shard.vma.base, n * BULK_WRITE_LEN), buf })?;
                under_way += 1;
                while under_way == BULK_WRITES_MAX {
                    under_way -= bulk_written(client, &mut written)?;
                    progress(written, total);
                }
            }
        }
        while under_way > 0 {
            under_way -= bulk_written(client, &mut written)?;
            progress(written, total);
        }
        Ok(())
    }

    /// Where a look-up of `key` begins.
    #[must_use]
    pub fn bucket(&self, key: Key) -> VirtAddr {
        let (shard, start) = self.bucket_place(key);
        at(self.shards[shard].vma.base, start)
    }

    /// Buckets in all.
    #[must_use]
    pub const fn buckets(&self) -> u64 {
        self.buckets
    }

    fn shard_of(&self, key: Key) -> usize {
        self.bucket_place(key).0
    }

    /// Shard and byte offset of the key's bucket.
    fn bucket_place(&self, key: Key) -> (usize, usize) {
        let bucket = key.hi & (self.buckets - 1);
        let count = self.shards.len() as u64;
        (offset(bucket % count), offset(bucket / count) * NODE_LEN)
    }

    /// A fresh chain node for a bucket of shard `home`.
    fn take_node(&mut self, home: usize) -> Result<VirtAddr, Error> {
        let place = match self.spread {
            Spread::Partitioned => home,
            Spread::Scattered => {
                self.turn = (self.turn + 1) % self.shards.len();
                self.turn
            }
        };
        let shard = &mut self.shards[place];
        if shard.next + NODE_LEN as u64 > shard.vma.base.0 + shard.vma.size {
            return Err(Error::Full {
                what: format!("the hash table's share of memory node {}", shard.node.0),
            });
        }
        let addr = VirtAddr(shard.next);
        shard.next += NODE_LEN as u64;
        Ok(addr)
    }
}

fn bulk_written(client: &mut Client, written: &mut u64) -> Result<usize, Error> {
    let Some(completed) = client.next_completed()? else { return Ok(0) };
    completed.result?;
    *written += completed.buf.len() as u64;
    client.recycle(completed.buf);
    Ok(1)
}

fn encode(key: Key, next: u64, value: &Value) -> [u8; NODE_LEN] {
    let mut node = [0; NODE_LEN];
    node[field::KEY_LO].copy_from_slice(&key.lo.to_le_bytes());
    node[field::KEY_HI].copy_from_slice(&key.hi.to_le_bytes());
    node[field::NEXT].copy_from_slice(&next.to_le_bytes());
    node[field::VALUE].copy_from_slice(value);
    node
}

fn key_of(node: &[u8]) -> Key {
    Key { lo: word(node, field::KEY_LO), hi: word(node, field::KEY_HI) }
}

fn word(bytes: &[u8], range: core::ops::Range<usize>) -> u64 {
    u64::from_le_bytes(bytes[range].try_into().expect("the range has 8 bytes"))
}

fn at(base: VirtAddr, bytes: usize) -> VirtAddr {
    base.checked_add(bytes as u64).expect("an allocation does not wrap the address space")
}

/// Offsets inside an allocation fit the address space of this process.
fn offset(bytes: u64) -> usize {
    usize::try_from(bytes).expect("farmem runs on 64-bit machines")
}
