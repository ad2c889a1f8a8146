//! A chained hash table in far memory, the structure of PULSE's `unordered_map::find` (PULSE 3, listings 2
//! and 3).
//!
//! Buckets and chain nodes are 64-byte nodes spread over the rack's memory nodes. [`HashTable::find`] is one
//! traversal and runs where [`HashTable::set_policy`] says. [`HashTable::find_by_reads`] follows the same
//! pointers with one-sided READs, one round trip each. Both also come as single operations
//! ([`HashTable::find_op`], [`HashTable::step`]) for programs with many look-ups in flight.
//!
//! # Concurrent readers
//!
//! PULSE leaves synchronisation to the host (PULSE 2.3): one writer at a time, by agreement or with
//! [`HashTable::lock`]. Each change that a reader can see is one WRITE of at most 64 bytes in one packet, and
//! a memory node executes the WRITE between two loads. These changes are: a replaced value; a key that
//! appears after its value; the word that links a complete node; the word that bypasses a removed node; the
//! bucket that absorbs its next node. A removed node stays unchanged until [`HashTable::reclaim`]. A reader
//! beside a writer therefore
//!
//! - never meets a broken pointer, half a node or half a value, and never sees a value that was not its key's;
//! - finds each key that is stable during the look-up;
//! - may or may not find a key that is inserted or removed meanwhile. Once an insert has returned and until
//!   its remove begins, every look-up finds the key;
//! - may see any subset of several changes: two successive look-ups may see a later change of another key,
//!   and miss an earlier one.
//!
//! A reader that cannot tolerate the last case reads between two equal even [`LockWord::version`]s. All
//! writers must then take the lock.

use crate::assembled;
use farmem_client::{Completed, Error, FarMemory, LockWord, Op, Policy, TraversalStop, Vma};
use farmem_traversal::Program;
use farmem_wire::{NodeId, VirtAddr};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher as _;

mod look_up;

/// Bytes of a value.
pub const VALUE_LEN: usize = 40;
/// Bytes of a bucket or chain node.
pub const NODE_LEN: usize = 64;

/// The offsets in a node. The program `hash_find.pulse` uses the same ones.
mod field {
    use core::ops::Range;
    pub(super) const KEY_LO: Range<usize> = 0..8;
    pub(super) const KEY_HI: Range<usize> = 8..16;
    pub(super) const NEXT: Range<usize> = 16..24;
    pub(super) const VALUE: Range<usize> = 24..64;
}

/// The offsets in the scratch pad of `hash_find.pulse`.
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

/// Bound on the iterations of a look-up: longer chains mean a table far too small, or a cycle.
const CHAIN_MAX: u32 = 1 << 16;
/// Bytes of one WRITE of a bulk load.
const BULK_WRITE_LEN: usize = 64 << 10;
/// Bound on the WRITEs of a bulk load sent together.
const BULK_WRITES_MAX: usize = 32;

/// A key: a 128-bit hash of the original bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    lo: u64,
    hi: u64,
}

impl Key {
    /// Returns the key of some bytes: their SipHash-1-3-128. Among a billion different inputs, two collide
    /// with probability 2^-68.
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

/// The placement of a chain's nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    /// On the memory node of their bucket: no look-up crosses nodes (PULSE 6: "partitioned based on primary keys").
    Partitioned,
    /// On all memory nodes in turn: nearly every hop crosses memory nodes, the hardest case for a distributed
    /// traversal.
    Scattered,
}

/// The result of one node visit of a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The key is in this node.
    Found(Value),
    /// The look-up continues at this node.
    Next(VirtAddr),
    /// The key is not in the table.
    Missing,
}

/// One memory node's share of the table.
#[derive(Clone, Copy, Debug)]
struct Shard {
    node: NodeId,
    vma: Vma,
    /// The first unused byte. The buckets come first, then a node for the lock word (used on the first
    /// shard), then chain nodes.
    next: u64,
}

/// The node where a look-up by READs ended.
struct Found {
    addr: VirtAddr,
    node: [u8; NODE_LEN],
    /// The node that links to this one; `None` for a bucket.
    before: Option<VirtAddr>,
}

/// The handle of a table. The handle lives in the program that created the table, the bytes in far memory.
#[derive(Debug)]
pub struct HashTable {
    program: Program,
    shards: Vec<Shard>,
    buckets: u64,
    spread: Spread,
    /// Index of the shard that receives the next scattered node.
    turn: usize,
    policy: Policy,
    lock: LockWord,
    /// Unlinked nodes that a reader may still visit.
    retired: Vec<VirtAddr>,
    /// Nodes free for reuse, by shard.
    free: Vec<Vec<VirtAddr>>,
    /// Number of nodes that have a key. Only a table with no entries can be loaded.
    entries: u64,
}

impl HashTable {
    /// Creates a table with room for `entries`, in about `buckets` buckets (rounded up to a power of two),
    /// over all memory nodes.
    ///
    /// # Errors
    /// [`Error`] when the rack has no room for the table.
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
        // A table too large for these numbers is too large for any node, and the allocation then fails.
        let buckets = buckets.max(count).checked_next_power_of_two().unwrap_or(1 << 63);
        let per_shard = buckets.div_ceil(count);
        // Partitioned chains fill shards unevenly: room for a quarter more, plus some for small tables.
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

    /// Sets where [`HashTable::find`] runs.
    pub const fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Returns the lock that every writer takes.
    pub const fn lock(&mut self) -> &mut LockWord {
        &mut self.lock
    }

    /// Stores `value` under `key`, replacing the previous value.
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
            // The key is written last: until then a reader skips the node.
            memory.write(at(bucket, field::VALUE.start), value)?;
            return memory.write(bucket, &[key.lo.to_le_bytes(), key.hi.to_le_bytes()].concat());
        }
        let home = self.shard_of(key);
        let fresh = self.take_node(home)?;
        self.entries += 1;
        memory.write(fresh, &encode(key, word(&node, field::NEXT), value))?;
        memory.write(at(bucket, field::NEXT.start), &fresh.0.to_le_bytes())
    }

    /// Replaces the value of `key`. Returns false and writes nothing when the key is missing.
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

    /// Removes `key` and returns its value. The node's memory is reused after [`HashTable::reclaim`].
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
        // A remove without a reply may have been executed, and is then repeated.
        self.entries = self.entries.saturating_sub(1);
        match before {
            Some(before) => {
                memory.write(at(before, field::NEXT.start), &next.to_le_bytes())?;
                self.retired.push(addr);
            }
            None if next == 0 => memory.write(addr, &[0; NODE_LEN])?,
            None => {
                // The bucket keeps its place and becomes a copy of the next node.
                let mut behind = [0; NODE_LEN];
                memory.read(VirtAddr(next), &mut behind)?;
                memory.write(addr, &behind)?;
                self.retired.push(VirtAddr(next));
            }
        }
        Ok(Some(value_of(&node)))
    }

    /// Makes the nodes of removed keys available for reuse. No look-up that began before the last
    /// [`HashTable::remove`] may still run anywhere. Such a look-up could follow a reused node into another
    /// chain and miss its key.
    pub fn reclaim(&mut self) {
        for addr in core::mem::take(&mut self.retired) {
            let place = self.shard_at(addr);
            self.free[place].push(addr);
        }
    }

    /// Looks up `key` with one traversal.
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

    /// Looks up `key` pointer by pointer, with one READ per node.
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

    /// Follows the chain of `key` by READs to the key's node.
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

    /// Returns the traversal that looks up `key`. `scratch` is any buffer; its contents are replaced.
    #[must_use]
    pub fn find_op(&self, key: Key, scratch: Vec<u8>) -> Op {
        let scratch = start_pad(key, scratch);
        Op::Traverse { program: self.program.clone(), cur_ptr: self.bucket(key), scratch, limit: CHAIN_MAX }
    }

    /// Returns the value that a finished [`HashTable::find_op`] found; `None` when the key is missing or the
    /// operation failed.
    #[must_use]
    pub fn found(completed: &Completed) -> Option<Value> {
        completed.result.as_ref().ok().and_then(|_| found_in(&completed.buf))
    }

    /// Returns the READ of the bucket where a look-up of `key` begins. `buf` is any buffer.
    #[must_use]
    pub fn first_read(&self, key: Key, buf: Vec<u8>) -> Op {
        Self::read_of(self.bucket(key), buf)
    }

    /// Returns the READ of one node. `buf` is any buffer.
    #[must_use]
    pub fn read_of(addr: VirtAddr, mut buf: Vec<u8>) -> Op {
        buf.resize(NODE_LEN, 0);
        Op::Read { addr, buf }
    }

    /// Evaluates a node that was read, for a look-up of `key`.
    ///
    /// # Panics
    /// Panics when `node` is shorter than [`NODE_LEN`].
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

    /// Fills an empty table: builds the image locally and writes it in large pieces. Calls `progress` with
    /// the bytes written and the total.
    ///
    /// If two entries have one key, a look-up finds the later one.
    ///
    /// # Errors
    /// [`Error::Broken`] when the table is not empty; [`Error::Full`] when a memory node has no room for its
    /// share, and the table stays empty. [`Error`] when far memory does not answer; the table then holds some
    /// of the entries.
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

    /// Builds the image of each memory node for a table with these entries, and allocates their nodes.
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
            // Reused nodes lie anywhere; fresh ones are adjacent.
            let home = self.shard_at(fresh);
            let start = offset(fresh.0 - self.shards[home].vma.base.0);
            let image = &mut images[home];
            image.resize(image.len().max(start + NODE_LEN), 0);
            image[start..start + NODE_LEN].copy_from_slice(&encode(key, behind, &value));
        }
        Ok(images)
    }

    /// Returns the bucket where a look-up of `key` begins.
    #[must_use]
    pub fn bucket(&self, key: Key) -> VirtAddr {
        let (shard, start) = self.bucket_place(key);
        at(self.shards[shard].vma.base, start)
    }

    /// Returns the total number of buckets.
    #[must_use]
    pub const fn buckets(&self) -> u64 {
        self.buckets
    }

    /// Returns the shard of a node.
    fn shard_at(&self, addr: VirtAddr) -> usize {
        let home = self.shards.iter().position(|s| addr.0.wrapping_sub(s.vma.base.0) < s.vma.size);
        home.expect("the node was taken from a shard")
    }

    fn shard_of(&self, key: Key) -> usize {
        self.bucket_place(key).0
    }

    /// Returns the shard and the byte offset of the key's bucket.
    fn bucket_place(&self, key: Key) -> (usize, usize) {
        let bucket = key.hi & (self.buckets - 1);
        let count = self.shards.len() as u64;
        (offset(bucket % count), offset(bucket / count) * NODE_LEN)
    }

    /// Allocates a chain node for a bucket of shard `home`.
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

/// Returns the initial scratch pad of a look-up.
fn start_pad(key: Key, mut scratch: Vec<u8>) -> Vec<u8> {
    scratch.clear();
    scratch.reserve_exact(scratch::LEN);
    scratch.extend_from_slice(&key.lo.to_le_bytes());
    scratch.extend_from_slice(&key.hi.to_le_bytes());
    scratch.resize(scratch::LEN, 0);
    scratch
}

/// Returns the result in a look-up's final scratch pad.
fn found_in(scratch: &[u8]) -> Option<Value> {
    let scratch = scratch.get(..scratch::LEN)?;
    let found = word(scratch, scratch::KEY_LO_OR_FOUND) == 1;
    debug_assert!(!found || scratch[scratch::KEY_HI].len() == 8, "the pad keeps its layout");
    found.then(|| scratch[scratch::VALUE].try_into().expect("a value's length"))
}

/// Returns true for a bucket without a key.
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

/// Converts an offset inside an allocation; it fits this process's address space.
fn offset(bytes: u64) -> usize {
    usize::try_from(bytes).expect("farmem runs on 64-bit machines")
}
