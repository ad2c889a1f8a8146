//! A hash table of records: keys and values of 1 byte to 64 KiB, opened by name from any host, with many
//! concurrent writers and no locks.
//!
//! Key type: [`Table`], which lies in a [`Heap`]. A bucket is a word: the address of a chain of immutable
//! nodes (`table/node.rs`). A change creates new nodes in place of those up to the changed one and swaps the
//! bucket's word, so the change is atomic. Therefore
//!
//! - [`Table::get`] is one traversal. The memory node compares 128 bits of hash and copies the node, or its
//!   body as far as a datagram has room; the host compares the key. A longer value takes one more READ;
//! - every operation on a key is linearizable, even beside operations of other hosts;
//! - a writer that dies at any point leaves a whole table, and at most its unfinished records as lost room.
//!
//! The heap keeps a replaced record readable while a reader may have its address. [`crate::HashTable`] stores
//! values of 40 bytes in place and has one writer.

use crate::form::Form;
use crate::heap::{Fresh, Heap, LINE_LEN, RECORD_LEN_MAX, Record, lines_in, node_of, room_from, write_all};
use farmem_client::{Error, FarMemory, NodeId, Policy, TraversalStop};
use farmem_traversal::Program;
use farmem_wire::VirtAddr;
use node::{BODY, Contents, Node, body_len, pad, pair, unpair};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher as _;

mod iter;
mod look_up;
mod node;

pub use iter::{Iter, Pair};
pub use look_up::TableLookUp;
pub use node::{WHOLE_MAX, find_program};

/// Bytes of the longest key, and of the longest value.
pub const BYTES_MAX: usize = 64 << 10;
const _: () = assert!(body_len(BYTES_MAX, BYTES_MAX) <= RECORD_LEN_MAX);

/// The structure kind in the root of a table.
const ROOT_KIND: [u8; 8] = *b"farmemTB";
/// The kind of the record that describes a table.
const KIND: u8 = 5;
/// Buckets per load.
const GROUP: u64 = (LINE_LEN / 8) as u64;
/// Bound on the memory nodes of a table's buckets.
const SHARDS_MAX: usize = 1024;
/// Bound on the nodes of a chain: a longer one is a cycle.
const CHAIN_MAX: u32 = 1 << 16;
/// Attempts to change a bucket that other programs change.
const CHANGE_TRIES: u32 = 1000;

/// A program's handle of a table.
#[derive(Debug)]
pub struct Table {
    name: String,
    /// The record that describes the table.
    at: Record,
    buckets: u64,
    /// The start of each memory node's buckets.
    shards: Vec<(NodeId, VirtAddr)>,
    program: Program,
    policy: Policy,
}

/// The result of a look-up.
struct Seen {
    bucket: VirtAddr,
    /// The bucket's word.
    head: u64,
    /// The number of nodes before the found one.
    before: u64,
    found: Option<FoundNode>,
}

struct FoundNode {
    at: VirtAddr,
    node: Node,
    /// The key and the value, encoded by [`pair`].
    content: Vec<u8>,
}

impl FoundNode {
    fn key_value(&self) -> Result<(&[u8], &[u8]), Error> {
        unpair(&self.content, self.at)
    }
}

impl Table {
    /// Creates a table called `name` in a heap, with about `buckets` buckets (rounded up to a power of two)
    /// over all memory nodes. Choose about as many buckets as keys; the number is fixed.
    ///
    /// # Errors
    /// [`Error::Exists`] when the heap has another root of this name; [`Error::Full`], [`Error::Refused`]
    /// when there is no room.
    pub fn create(
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        name: &str,
        buckets: u64,
    ) -> Result<Self, Error> {
        let nodes: Vec<NodeId> =
            memory.nodes().iter().map(|node| NodeId(node.node)).take(SHARDS_MAX).collect();
        if nodes.is_empty() {
            return Err(Error::Full { what: "a rack without memory nodes".into() });
        }
        let count = nodes.len() as u64;
        let buckets = buckets.max(GROUP * count).checked_next_power_of_two().unwrap_or(1 << 63);
        let bytes = in_shard(buckets, count).saturating_mul(8);
        let mut shards: Vec<(NodeId, VirtAddr)> = Vec::with_capacity(nodes.len());
        let made = nodes.iter().try_for_each(|&node| {
            shards.push((node, memory.allocate_on(bytes, node)?.base));
            Ok(())
        });
        let made = made.and_then(|()| {
            let bases = shards.iter().flat_map(|(_, base)| base.0.to_le_bytes());
            let content: Vec<u8> = buckets.to_le_bytes().into_iter().chain(bases).collect();
            let at = heap.put(memory, KIND, &content)?;
            match heap.set_root(memory, name, ROOT_KIND, at.at) {
                Ok(()) => Ok(at),
                Err(error) => heap.free(memory, at).and(Err(error)),
            }
        });
        match made {
            Ok(at) => Ok(Self::new(memory, name, at, buckets, shards)),
            Err(error) => {
                shards.iter().try_for_each(|(_, base)| memory.free(*base))?;
                Err(error)
            }
        }
    }

    /// Opens the table called `name` of a heap.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is no such table; [`Error::Broken`] when the name belongs to another
    /// kind of structure, or the last buckets lie outside the domain's memory; [`Error::Count`] when its
    /// record states too many shards, or more buckets than the memory nodes have room for.
    pub fn open(memory: &mut (impl FarMemory + ?Sized), heap: &mut Heap, name: &str) -> Result<Self, Error> {
        let at = heap.root(memory, name, ROOT_KIND)?;
        let len = 8 + 8 * u32::try_from(memory.nodes().len()).unwrap_or(u32::MAX);
        let (kind, content) = heap.read(memory, Record { at, len })?;
        let words = crate::words(&content);
        let buckets = words.first().copied().unwrap_or(0);
        let bases = words.into_iter().skip(1);
        within("shards of a table of records", bases.len() as u64, SHARDS_MAX as u64)?;
        let shards: Option<Vec<(NodeId, VirtAddr)>> =
            bases.map(|base| Some((node_of(memory, base)?, VirtAddr(base)))).collect();
        let shards = shards.filter(|shards| !shards.is_empty() && kind == KIND && buckets.is_power_of_two());
        let shards = shards.ok_or(Error::Broken { addr: at, what: "a table of records" })?;
        check(memory, buckets, &shards)?;
        let len = u32::try_from(content.len()).expect("a record's length");
        Ok(Self::new(memory, name, Record { at, len }, buckets, shards))
    }

    fn new(
        memory: &(impl FarMemory + ?Sized),
        name: &str,
        at: Record,
        buckets: u64,
        shards: Vec<(NodeId, VirtAddr)>,
    ) -> Self {
        let lines = lines_in(memory.scratch_len_max(), pad::LINES);
        let program = crate::assembled(&find_program(lines));
        Self { name: name.into(), at, buckets, shards, program, policy: Policy::default() }
    }

    /// Returns the form from which another process opens this table ([`crate::form`]). The process opens heap
    /// and table by their names, in its own domain, like any program; its look-ups are [`TableLookUp`].
    #[must_use]
    pub fn form(&self, heap: &Heap) -> Form {
        Form::Table { heap: heap.name().to_owned(), table: self.name.clone() }
    }

    /// Frees the table: its keys, its buckets and its name. No other handle may use the table during or after
    /// this call.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer. The rest then belongs to the heap until the heap is
    /// destroyed.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized), heap: &mut Heap) -> Result<(), Error> {
        heap.remove_root(memory, &self.name)?;
        let mut chains = self.chains();
        while let Some(nodes) = chains.next(memory, heap)? {
            for (at, node) in nodes {
                heap.retire_record(memory, at, node.len())?;
                if let Contents::Far(body) = node.held {
                    heap.free(memory, Record { at: body, len: 1 })?;
                }
            }
        }
        self.shards.iter().try_for_each(|(_, base)| memory.free(*base))?;
        heap.free(memory, self.at)
    }

    /// Sets where this handle's look-ups run.
    pub const fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Returns the total number of buckets.
    #[must_use]
    pub const fn buckets(&self) -> u64 {
        self.buckets
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::TooLong`] for an invalid key; [`Error`] when far memory does not answer or
    /// holds no table.
    pub fn get(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, Error> {
        let key = Key::new(key)?;
        heap.pin(memory)?;
        let seen = self.look_up(memory, heap, &key);
        heap.unpin();
        let Some(found) = seen?.found else { return Ok(None) };
        let (_, value) = found.key_value()?;
        Ok(Some(value.to_vec()))
    }

    /// Stores `value` under `key` and returns the previous value.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::TooLong`] for an invalid key or value; [`Error::Full`];
    /// [`Error::Contended`] when other programs keep changing the same bucket; [`Error::LeaseExpired`]; [`Error`]
    /// when far memory does not answer. Then it is unknown whether the value was stored.
    pub fn insert(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        key: &[u8],
        value: &[u8],
    ) -> Result<Option<Vec<u8>>, Error> {
        let key = Key::new(key)?;
        allowed("a value", value)?;
        self.change(memory, heap, &key, Some(value))
    }

    /// Removes `key` and returns its value.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub fn remove(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, Error> {
        self.change(memory, heap, &Key::new(key)?, None)
    }

    fn change(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        key: &Key<'_>,
        value: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>, Error> {
        if let Some(value) = value {
            let (home, whole) = (self.home(key), key.is_whole_with(value));
            let held =
                if whole { Contents::Whole(pair(key.bytes, value)) } else { Contents::Far(VirtAddr::NULL) };
            heap.reserve(memory, home, Node { next: 0, hash: key.hash, held }.len())?;
            if !whole {
                heap.reserve(memory, home, body_len(key.bytes.len(), value.len()))?;
            }
        }
        heap.pin(memory)?;
        let changed = self.change_pinned(memory, heap, key, value);
        heap.unpin();
        changed
    }

    fn change_pinned(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        key: &Key<'_>,
        value: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>, Error> {
        // The body is written once, however often the bucket is tried.
        let mut body = Vec::new();
        let held = match value {
            Some(value) if key.is_whole_with(value) => Some(Contents::Whole(pair(key.bytes, value))),
            Some(value) => {
                body.push(heap.prepare(memory, self.home(key), BODY, &pair(key.bytes, value))?);
                Some(Contents::Far(body[0].record.at))
            }
            None => None,
        };
        for attempt in 0..CHANGE_TRIES {
            let seen = self.look_up(memory, heap, key)?;
            if held.is_none() && seen.found.is_none() {
                return Ok(None);
            }
            let old = self.before(memory, &seen)?;
            let fresh = self.rebuilt(memory, heap, key, &seen, &old, held.clone())?;
            let head = fresh
                .last()
                .map_or_else(|| seen.found.as_ref().map_or(0, |f| f.node.next), |f| f.record.at.0);
            let writes: Vec<Fresh> =
                if attempt == 0 { body.iter().chain(&fresh).cloned().collect() } else { fresh.clone() };
            write_all(memory, &writes)?;
            heap.confirm_membership(memory)?;
            if memory.compare_swap(seen.bucket, seen.head, head)? == seen.head {
                return self.changed(memory, heap, seen, old);
            }
            heap.confirm_membership(memory)?;
            heap.drop_fresh(&fresh);
        }
        heap.drop_fresh(&body);
        Err(Error::Contended { what: format!("a bucket of table {:?}", self.name), tries: CHANGE_TRIES })
    }

    /// Frees the nodes that a change replaced. Returns the previous value.
    fn changed(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        seen: Seen,
        old: Vec<(VirtAddr, Node)>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let Some(found) = seen.found else { return Ok(None) };
        for (at, node) in &old {
            heap.retire_record(memory, *at, node.len())?;
        }
        heap.retire_record(memory, found.at, found.node.len())?;
        if let Contents::Far(body) = found.node.held {
            heap.retire_record(memory, body, found.content.len())?;
        }
        let (_, value) = found.key_value()?;
        Ok(Some(value.to_vec()))
    }

    /// Returns the nodes before the found one; empty when the key was not found.
    fn before(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        seen: &Seen,
    ) -> Result<Vec<(VirtAddr, Node)>, Error> {
        let mut at = VirtAddr(seen.head);
        let mut nodes = Vec::new();
        for _ in 0..if seen.found.is_some() { seen.before } else { 0 } {
            let node = read_node(memory, at)?;
            let next = VirtAddr(node.next);
            nodes.push((at, node));
            at = next;
        }
        Ok(nodes)
    }

    /// Builds the nodes that replace those up to the found one. The last of them is the head of the chain.
    fn rebuilt(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        key: &Key<'_>,
        seen: &Seen,
        old: &[(VirtAddr, Node)],
        held: Option<Contents>,
    ) -> Result<Vec<Fresh>, Error> {
        // The chain after the key's node stays.
        let mut next = seen.found.as_ref().map_or(seen.head, |found| found.node.next);
        let mut fresh = Vec::with_capacity(old.len() + 1);
        let new = held.map(|held| Node { next: 0, hash: key.hash, held });
        for node in new.into_iter().chain(old.iter().rev().map(|(_, node)| node.clone())) {
            let (kind, content) = Node { next, ..node }.content();
            fresh.push(heap.prepare(memory, self.home(key), kind, &content)?);
            next = fresh.last().expect("pushed just now").record.at.0;
        }
        Ok(fresh)
    }

    /// Looks up `key` with one traversal.
    fn look_up(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        key: &Key<'_>,
    ) -> Result<Seen, Error> {
        let (start, within, scratch) = self.start(key, memory.buffer(0));
        let done = memory.dispatch(&self.program, start, scratch, CHAIN_MAX, &self.policy)?;
        heap.confirm_membership(memory)?;
        if !done.end.returned {
            return Err(Error::Traversal { addr: done.end.cur_ptr, reason: TraversalStop::Stalled });
        }
        let word = |at: usize| u64::from_le_bytes(done.scratch[at..at + 8].try_into().expect("8 bytes"));
        let (head, before) = (word(pad::HEAD), word(pad::BEFORE));
        let mut seen = Seen { bucket: VirtAddr(start.0 + within), head, before, found: None };
        if word(pad::FOUND) == 1 {
            let at = VirtAddr(word(pad::AT));
            let node = Node::parse(&done.scratch[pad::NODE..pad::LINES], at)?;
            let content = self.content(memory, heap, &node, &done.scratch[pad::LINES..])?;
            seen.found = Some(FoundNode { at, node, content });
        }
        memory.recycle(done.scratch);
        match &seen.found {
            // Two keys have one hash: the key comparison tells them apart.
            Some(found) if found.key_value()?.0 != key.bytes => self.look_further(memory, heap, seen, key),
            _ => Ok(seen),
        }
    }

    /// Returns the start of a look-up: the bucket's group, the bucket's position in it, and the pad in
    /// `scratch`.
    fn start(&self, key: &Key<'_>, mut scratch: Vec<u8>) -> (VirtAddr, u64, Vec<u8>) {
        let (shard, bucket) = self.place(key);
        let start = VirtAddr(self.shards[shard].1.0 + bucket / GROUP * LINE_LEN as u64);
        let within = bucket % GROUP * 8;
        scratch.clear();
        scratch.resize(self.program.scratch_len(), 0);
        scratch[pad::HASH..pad::HASH + 16].copy_from_slice(&key.hash);
        scratch[pad::BUCKET..pad::BUCKET + 8].copy_from_slice(&within.to_le_bytes());
        (start, within, scratch)
    }

    /// Continues after a node with the same hash and another key.
    fn look_further(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        seen: Seen,
        key: &Key<'_>,
    ) -> Result<Seen, Error> {
        let mut before = seen.before;
        let mut next = seen.found.as_ref().map_or(0, |found| found.node.next);
        while next != 0 && before < u64::from(CHAIN_MAX) {
            before += 1;
            let at = VirtAddr(next);
            let node = read_node(memory, at)?;
            next = node.next;
            if node.hash == key.hash {
                let content = self.content(memory, heap, &node, &[])?;
                if unpair(&content, at)?.0 == key.bytes {
                    return Ok(Seen { before, found: Some(FoundNode { at, node, content }), ..seen });
                }
            }
        }
        Ok(Seen { before, found: None, ..seen })
    }

    /// Returns key and value of a node. `lines` holds the body's lines that the traversal copied.
    fn content(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        node: &Node,
        lines: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let body = match &node.held {
            Contents::Whole(content) => return Ok(content.clone()),
            Contents::Far(body) => *body,
        };
        let (kind, content) = heap.fetched(memory, body, lines)?;
        if kind == BODY { Ok(content) } else { Err(Error::Broken { addr: body, what: "a key and a value" }) }
    }

    /// Returns the memory node on which a key's nodes are created.
    fn home(&self, key: &Key<'_>) -> NodeId {
        self.shards[self.place(key).0].0
    }

    /// Returns the shard of a key's bucket and the bucket's number there.
    fn place(&self, key: &Key<'_>) -> (usize, u64) {
        let half = u64::from_le_bytes(key.hash[8..].try_into().expect("8 bytes"));
        let bucket = half & (self.buckets - 1);
        let count = self.shards.len() as u64;
        (usize::try_from(bucket % count).expect("fewer than there are shards"), bucket / count)
    }
}

/// A key of valid length, and its hash.
struct Key<'a> {
    bytes: &'a [u8],
    hash: [u8; 16],
}

impl<'a> Key<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        allowed("a key", bytes)?;
        Ok(Self { bytes, hash: hash_of(bytes) })
    }

    /// Returns true when key and value fit into the key's node.
    const fn is_whole_with(&self, value: &[u8]) -> bool {
        self.bytes.len() + value.len() <= WHOLE_MAX
    }
}

/// Returns the SipHash-1-3-128 of a key's bytes.
fn hash_of(key: &[u8]) -> [u8; 16] {
    let mut hasher = SipHasher13::new();
    hasher.write(key);
    let hash = hasher.finish128();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&hash.h1.to_le_bytes());
    bytes[8..].copy_from_slice(&hash.h2.to_le_bytes());
    bytes
}

fn allowed(what: &'static str, bytes: &[u8]) -> Result<(), Error> {
    match bytes.len() {
        0 => Err(Error::Empty { what }),
        len if len > BYTES_MAX => Err(Error::TooLong { len, max: BYTES_MAX }),
        _ => Ok(()),
    }
}

/// Checks a bucket count from far memory against the shards, because any program of the domain may have
/// written it. The addresses of all buckets then stay inside their memory nodes.
fn check(
    memory: &mut (impl FarMemory + ?Sized),
    buckets: u64,
    shards: &[(NodeId, VirtAddr)],
) -> Result<(), Error> {
    let count = shards.len() as u64;
    let rooms = shards.iter().map(|(_, base)| room_from(memory, base.0) / LINE_LEN as u64 * GROUP);
    let most = rooms.min().unwrap_or(0).saturating_mul(count);
    within("buckets of a table of records", buckets, most)?;
    let last = (in_shard(buckets, count) - GROUP) * 8;
    let mut lines = vec![[0; LINE_LEN]; shards.len()];
    let mut reads: Vec<(VirtAddr, &mut [u8])> = shards
        .iter()
        .zip(&mut lines)
        .map(|((_, base), line)| (VirtAddr(base.0 + last), line.as_mut_slice()))
        .collect();
    let read = memory.read_many(&mut reads);
    read.map_err(|error| match error {
        Error::NotMapped { addr } | Error::NoPermission { addr } | Error::OutOfBounds { addr, .. } => {
            Error::Broken { addr, what: "the last buckets of a table of records" }
        }
        other => other,
    })
}

/// Returns the bucket capacity of each of `shards` shards.
const fn in_shard(buckets: u64, shards: u64) -> u64 {
    buckets.div_ceil(shards).next_multiple_of(GROUP)
}

fn within(what: &'static str, have: u64, most: u64) -> Result<(), Error> {
    if (1..=most).contains(&have) {
        return Ok(());
    }
    let number = |value| usize::try_from(value).unwrap_or(usize::MAX);
    Err(Error::Count { what, have: number(have), least: 1, most: number(most) })
}

fn read_node(memory: &mut (impl FarMemory + ?Sized), at: VirtAddr) -> Result<Node, Error> {
    let mut line = [0; LINE_LEN];
    memory.read(at, &mut line)?;
    Node::parse(&line, at)
}

#[cfg(test)]
mod tests;
