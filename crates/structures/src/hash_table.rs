//! A chained hash table in far memory: what PULSE's `unordered_map::find` walks (PULSE 3, listings 2 and 3).
//!
//! Buckets and chain nodes are 64-byte nodes spread over the rack's memory nodes. [`HashTable::find`] is one traversal, run where
//! [`HashTable::set_policy`] says; [`HashTable::find_by_reads`] follows the same pointers with one-sided READs, one round trip each. Both
//! forms also come in pieces ([`HashTable::find_op`], [`HashTable::step`]) for programs that keep many look-ups under way.
//!
//! # Beside a writer
//!
//! PULSE leaves synchronisation to the host (PULSE 2.3): one writer at a time, by agreement or with [`HashTable::lock`]. Each change that a
//! reader can see is one WRITE of at most 64 bytes, one packet, which a memory node carries out between two loads: a value that is
//! replaced; a key that appears behind its value; the word that links a complete node; the word that passes a removed one by; the bucket
//! that takes in the node behind it. A removed node stays as it was until [`HashTable::reclaim`]. So a reader beside a writer
//!
//! - never meets a broken pointer, half a node or half a value, and never sees a value that was not its key's;
//! - finds each key that stands still while it looks;
//! - finds a key that is inserted or removed meanwhile, or does not; once it was found after an insert had been answered, and until its
//!   remove begins, every later look-up finds it;
//! - sees of several changes any part: two look-ups one after the other may see a later change of another key, and not an earlier one.
//!
//! A reader that cannot bear the last looks between two equal even [`LockWord::version`]s, when all writers take the lock.

use crate::assembled;
use farmem_client::{Answer, Completed, Error, FarMemory, LockWord, Op, Policy, TraversalStop, Vma};
use farmem_traversal::Program;
use farmem_wire::{NodeId, VirtAddr};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher as _;

mod ahead;

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
/// WRITEs of a bulk load that go together.
const BULK_WRITES_MAX: usize = 32;

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
    /// The first byte not used yet; chain nodes follow the buckets and one node that is none: the lock word's, on the first shard.
    next: u64,
}

/// Where a look-up by READs ended.
struct Found {
    addr: VirtAddr,
    node: [u8; NODE_LEN],
    /// The node that links to it; none of a bucket.
    before: Option<VirtAddr>,
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
    policy: Policy,
    lock: LockWord,
    /// Nodes that nothing links to any more, where a reader may still stand.
    retired: Vec<VirtAddr>,
    /// Nodes to be used again, by shard.
    free: Vec<Vec<VirtAddr>>,
    /// Nodes that have a key: a table is loaded when there are none.
    entries: u64,
}

impl HashTable {
    /// A table with room for `entries`, in about `buckets` buckets (rounded up to a power of two), over all memory nodes.
    ///
    /// # Errors
    /// [`Error`] when the rack has no room for it.
    pub fn create(
        memory: &mut (impl FarMemory + ?Sized),
        entries: u64,
        buckets: u64,
        spread: Spread,
    ) -> Result<Self, Error> {
        let nodes: Vec<NodeId> = memory.nodes().iter().map(|n| NodeId(n.node)).collect();
        let count = nodes.len() as u64;
        if count == 0 {
            return Err(Error::Full { what: "a rack without memory nodes".into() });
        }
        // A table too large for these numbers is far too large for any node, which then says so.
        let buckets = buckets.max(count).checked_next_power_of_two().unwrap_or(1 << 63);
        let per_shard = buckets.div_ceil(count);
        // Partitioned chains fill shards unevenly: room for a quarter more, and for small tables.
        let share = entries.div_ceil(count);
        let chain_nodes = share.saturating_add(share / 4).saturating_add(1024);
        let bytes = per_shard.saturating_add(1).saturating_add(chain_nodes).saturating_mul(NODE_LEN as u64);
        let mut shards = Vec::with_capacity(nodes.len());
        for node in nodes {
            match memory.allocate_on(bytes, node) {
                Ok(vma) => {
                    shards.push(Shard { node, vma, next: vma.base.0 + (per_shard + 1) * NODE_LEN as u64 })
                }
                Err(error) => {
                    let given_back = shards.iter().try_for_each(|shard: &Shard| memory.free(shard.vma.base));
                    return Err(given_back.err().unwrap_or(error));
                }
            }
        }
        let program = assembled(FIND_PROGRAM);
        let lock = LockWord::new(at(shards[0].vma.base, offset(per_shard) * NODE_LEN));
        let (policy, free) = (Policy::default(), vec![Vec::new(); shards.len()]);
        Ok(Self {
            program,
            shards,
            buckets,
            spread,
            turn: 0,
            policy,
            lock,
            retired: Vec::new(),
            free,
            entries: 0,
        })
    }

    /// Frees the table's memory.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.shards.iter().try_for_each(|shard| memory.free(shard.vma.base))
    }

    /// Says where [`HashTable::find`] runs.
    pub const fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// The lock that every writer takes.
    pub const fn lock(&mut self) -> &mut LockWord {
        &mut self.lock
    }

    /// Puts `value` under `key`, in place of the one there was.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer; [`Error::Full`] when the table has no room for another node.
    pub fn insert(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        key: Key,
        value: &Value,
    ) -> Result<(), Error> {
        if let Some(found) = self.walk(memory, key)? {
            return memory.write(at(found.addr, field::VALUE.start), value);
        }
        let (bucket, mut node) = (self.bucket(key), [0; NODE_LEN]);
        memory.read(bucket, &mut node)?;
        if is_empty(&node) {
            self.entries += 1;
            // The key comes last: until then a reader passes the node by.
            memory.write(at(bucket, field::VALUE.start), value)?;
            return memory.write(bucket, &[key.lo.to_le_bytes(), key.hi.to_le_bytes()].concat());
        }
        let home = self.shard_of(key);
        let fresh = self.take_node(home)?;
        self.entries += 1;
        memory.write(fresh, &encode(key, word(&node, field::NEXT), value))?;
        memory.write(at(bucket, field::NEXT.start), &fresh.0.to_le_bytes())
    }

    /// Replaces the value of `key`; false, and nothing is written, when the key is missing.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn update(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        key: Key,
        value: &Value,
    ) -> Result<bool, Error> {
        let Some(found) = self.walk(memory, key)? else { return Ok(false) };
        memory.write(at(found.addr, field::VALUE.start), value)?;
        Ok(true)
    }

    /// Takes `key` out; answers its value. The node's memory is used again after [`HashTable::reclaim`].
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn remove(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        key: Key,
    ) -> Result<Option<Value>, Error> {
        let Some(Found { addr, node, before }) = self.walk(memory, key)? else { return Ok(None) };
        let next = word(&node, field::NEXT);
        // A remove that was not answered may have been carried out, and is begun again.
        self.entries = self.entries.saturating_sub(1);
        match before {
            Some(before) => {
                memory.write(at(before, field::NEXT.start), &next.to_le_bytes())?;
                self.retired.push(addr);
            }
            None if next == 0 => memory.write(addr, &[0; NODE_LEN])?,
            None => {
                // The bucket stays where it is: it becomes what the node behind it is.
                let mut behind = [0; NODE_LEN];
                memory.read(VirtAddr(next), &mut behind)?;
                memory.write(addr, &behind)?;
                self.retired.push(VirtAddr(next));
            }
        }
        Ok(Some(value_of(&node)))
    }

    /// Lets the nodes of removed keys be used again. For when no look-up that began before the last [`HashTable::remove`] is under way any
    /// more, anywhere: one that stands on such a node would go on in the chain whose node it becomes, and miss its key.
    pub fn reclaim(&mut self) {
        for addr in core::mem::take(&mut self.retired) {
            let place = self.shard_at(addr);
            self.free[place].push(addr);
        }
    }

    /// Looks `key` up with one traversal.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn find(&self, memory: &mut (impl FarMemory + ?Sized), key: Key) -> Result<Option<Value>, Error> {
        let scratch = start_pad(key, memory.buffer(0));
        let done = memory.dispatch(&self.program, self.bucket(key), scratch, CHAIN_MAX, &self.policy)?;
        if !done.end.returned {
            return Err(Error::Traversal { addr: done.end.cur_ptr, reason: TraversalStop::Stalled });
        }
        let found = found_in(&done.scratch);
        memory.recycle(done.scratch);
        Ok(found)
    }

    /// Looks `key` up pointer by pointer, with a one-sided READ for each node.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn find_by_reads(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        key: Key,
    ) -> Result<Option<Value>, Error> {
        Ok(self.walk(memory, key)?.map(|found| value_of(&found.node)))
    }

    /// Follows the chain of `key` by READs, to its node.
    fn walk(&self, memory: &mut (impl FarMemory + ?Sized), key: Key) -> Result<Option<Found>, Error> {
        let mut node = [0; NODE_LEN];
        let (mut addr, mut before) = (self.bucket(key), None);
        for _ in 0..CHAIN_MAX {
            memory.read(addr, &mut node)?;
            match Self::step(key, &node) {
                Step::Found(_) => return Ok(Some(Found { addr, node, before })),
                Step::Next(next) => (addr, before) = (next, Some(addr)),
                Step::Missing => return Ok(None),
            }
        }
        Err(Error::Traversal { addr, reason: TraversalStop::Stalled })
    }

    /// The traversal that looks `key` up; `scratch` is any buffer, its content is replaced.
    #[must_use]
    pub fn find_op(&self, key: Key, scratch: Vec<u8>) -> Op {
        let scratch = start_pad(key, scratch);
        Op::Traverse { program: self.program.clone(), cur_ptr: self.bucket(key), scratch, limit: CHAIN_MAX }
    }

    /// What a finished [`HashTable::find_op`] found; `None` when the key is missing or the operation failed.
    #[must_use]
    pub fn found(completed: &Completed) -> Option<Value> {
        completed.result.as_ref().ok().and_then(|_| found_in(&completed.buf))
    }

    /// The WRITE that replaces the value that a finished [`HashTable::find_op`] found; `None` when it found nothing. `buf` is any buffer.
    ///
    /// A caller that changes values this way is a writer.
    #[must_use]
    pub fn replace_op(completed: &Completed, value: &Value, mut buf: Vec<u8>) -> Option<Op> {
        let Ok(Answer::Traversed(end)) = completed.result else { return None };
        Self::found(completed)?;
        buf.clear();
        buf.extend_from_slice(value);
        // A look-up ends at the node that has the key.
        Some(Op::Write { addr: at(end.cur_ptr, field::VALUE.start), buf })
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
            return Step::Found(value_of(node));
        }
        match word(node, field::NEXT) {
            0 => Step::Missing,
            next => Step::Next(VirtAddr(next)),
        }
    }

    /// Fills an empty table: the image is built here and written in large pieces. `progress` hears bytes written and bytes in all.
    ///
    /// A look-up finds the later one of two entries with one key.
    ///
    /// # Errors
    /// [`Error::Broken`] when the table is not empty; [`Error::Full`] when a memory node has no room for its share: the table is then empty as before. [`Error`] when far memory
    /// does not answer: then it has some of them, and is not empty.
    pub fn load(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        entries: impl Iterator<Item = (Key, Value)>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Error> {
        if self.entries > 0 {
            return Err(Error::Broken { addr: self.shards[0].vma.base, what: "an empty hash table" });
        }
        let before = (self.shards.clone(), self.free.clone(), self.turn);
        let images = match self.images(entries) {
            Ok(images) => images,
            Err(error) => {
                (self.entries, (self.shards, self.free, self.turn)) = (0, before);
                return Err(error);
            }
        };
        let total: u64 = images.iter().map(|image| image.len() as u64).sum();
        let mut written = 0;
        for (shard, image) in self.shards.iter().zip(&images) {
            let pieces = image.chunks(BULK_WRITE_LEN).enumerate();
            let pieces: Vec<(VirtAddr, &[u8])> =
                pieces.map(|(n, piece)| (at(shard.vma.base, n * BULK_WRITE_LEN), piece)).collect();
            for together in pieces.chunks(BULK_WRITES_MAX) {
                memory.write_many(together)?;
                written += together.iter().map(|(_, piece)| piece.len() as u64).sum::<u64>();
                progress(written, total);
            }
        }
        Ok(())
    }

    /// What each memory node is to have of a table with these entries: their places are taken.
    fn images(&mut self, entries: impl Iterator<Item = (Key, Value)>) -> Result<Vec<Vec<u8>>, Error> {
        let mut images: Vec<Vec<u8>> =
            self.shards.iter().map(|s| vec![0; offset(s.next - s.vma.base.0)]).collect();
        for (key, value) in entries {
            self.entries += 1;
            let (shard, start) = self.bucket_place(key);
            let bucket: &mut [u8] = &mut images[shard][start..start + NODE_LEN];
            if is_empty(bucket) {
                bucket.copy_from_slice(&encode(key, 0, &value));
                continue;
            }
            let behind = word(bucket, field::NEXT);
            let fresh = self.take_node(shard)?;
            images[shard][start + field::NEXT.start..start + field::NEXT.end]
                .copy_from_slice(&fresh.0.to_le_bytes());
            // Nodes that were used before lie anywhere, the others follow each other.
            let home = self.shard_at(fresh);
            let start = offset(fresh.0 - self.shards[home].vma.base.0);
            let image = &mut images[home];
            image.resize(image.len().max(start + NODE_LEN), 0);
            image[start..start + NODE_LEN].copy_from_slice(&encode(key, behind, &value));
        }
        Ok(images)
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

    /// The shard of a node.
    fn shard_at(&self, addr: VirtAddr) -> usize {
        let home = self.shards.iter().position(|s| addr.0.wrapping_sub(s.vma.base.0) < s.vma.size);
        home.expect("the node was taken from a shard")
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
        if let Some(addr) = self.free[place].pop() {
            return Ok(addr);
        }
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

/// The scratch pad of a look-up as it begins.
fn start_pad(key: Key, mut scratch: Vec<u8>) -> Vec<u8> {
    scratch.clear();
    scratch.reserve_exact(scratch::LEN);
    scratch.extend_from_slice(&key.lo.to_le_bytes());
    scratch.extend_from_slice(&key.hi.to_le_bytes());
    scratch.resize(scratch::LEN, 0);
    scratch
}

/// What a look-up's scratch pad says at its end.
fn found_in(scratch: &[u8]) -> Option<Value> {
    let scratch = scratch.get(..scratch::LEN)?;
    let found = word(scratch, scratch::KEY_LO_OR_FOUND) == 1;
    debug_assert!(!found || scratch[scratch::KEY_HI].len() == 8, "the pad keeps its layout");
    found.then(|| scratch[scratch::VALUE].try_into().expect("a value's length"))
}

/// True of a bucket that no key is in.
fn is_empty(node: &[u8]) -> bool {
    key_of(node) == Key { lo: 0, hi: 0 }
}

fn value_of(node: &[u8]) -> Value {
    node[field::VALUE].try_into().expect("a value's length")
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
