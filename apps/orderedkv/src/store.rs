//! An ordered store in far memory: keys of one kind, values of up to 64 KiB, under a name, from any host of
//! the rack.
//!
//! Key type: [`Store`]. A store is a [`RecordTree`] over the first eight bytes of a key ([`KeyKind`]), its
//! first *slice*. If two texts share a slice, its record leads to a tree of their next slices, a *layer*, and
//! so on (as in Masstree: Mao, Kohler and Morris, EuroSys 2012). A text with a unique slice is stored there,
//! with the rest of its key beside its value. Layers stay when keys are removed. A program remembers the
//! layers, so a look-up begins at the deepest one.
//!
//! A number is one slice: each operation is the tree's own, in one round trip, and any number of programs may
//! write. A store of texts has one writer at a time, which holds a lock of the control plane, because
//! creating a layer takes several steps. Readers find every stable text meanwhile. A program that takes over
//! from a seemingly dead writer first removes the writer's host from the rack ([`Access::TakeOver`]). If the
//! old writer only hangs, its later writes do not count.

use crate::keys::{KeyError, KeyKind, SLICE, behind, slice};
use farmem::api::ErrorCode;
use farmem::blink_tree::Cursor;
use farmem::heap::{Heap, HeapOptions};
use farmem::{Client, Error, FarMemory, Layout, NamedLock, RecordTree, VirtAddr};
use farmem_index::prefix;
use std::collections::BTreeMap;

mod dropping;
mod record;

pub use dropping::Dropped;

pub(crate) use record::emit;
use record::{Entry, LAYER, parse};

/// Bound on the bytes of a value.
pub const VALUE_LEN_MAX: usize = 64 << 10;
/// Bound on the layers that a program remembers; beyond it, look-ups begin at the first slice again.
const LAYERS_KNOWN_MAX: usize = 4_096;
/// Keys of a range read together.
const PIECE: usize = 128;

/// "farmemOK": marks a complete store.
const MAGIC: u64 = u64::from_le_bytes(*b"farmemOK");
/// The store's named memory, in words of eight bytes: the address of its first tree (by which index agents
/// find it), magic, kind of keys, an unused word, and the file and row count of a load in progress.
const WORDS: usize = 8;
const MAGIC_AT: u64 = 8;
const LOAD_AT: u64 = 32;

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The key is invalid.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The value is invalid.
    #[error("a value of {0} bytes exceeds {VALUE_LEN_MAX}")]
    Value(usize),
    /// The existing store has other keys.
    #[error("the keys of this store are {0}")]
    Kind(&'static str),
    /// Another program writes; with the control plane's message.
    #[error("another program writes to this store of texts, or ended while it did: {0}")]
    Locked(String),
    /// Other programs have the store open.
    #[error("the store is open at {}", .0.join(", "))]
    InUse(Vec<String>),
    /// A store of texts was opened for reading.
    #[error("this program has opened the store of texts for reading only")]
    ReadOnly,
    /// This program's host was removed from the rack.
    #[error(
        "this program's host was fenced, possibly because another program took over the store; requests of this program have no effect any more"
    )]
    Fenced,
    /// Far memory failed.
    #[error(transparent)]
    Far(#[from] Error),
}

impl StoreError {
    /// Returns the remedy.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Far(error) => error.remedy(),
            Self::Locked(_) => "wait until the writer ends; if it died or hangs, use --take-over, which fences its host".into(),
            Self::InUse(_) => "end these programs first (`farmem status` lists hosts); if a program died, wait for three leases".into(),
            Self::ReadOnly => "open it for writing".into(),
            Self::Fenced => "end this program; to write to the store again, start it with --take-over".into(),
            Self::Kind(_) => "name another store, or use keys of this kind".into(),
            Self::Key(_) | Self::Value(_) => String::new(),
        }
    }
}

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// The access of a program to a store of texts. Stores of numbers are writable by all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Look-ups only.
    Read,
    /// Writing, exclusively.
    Write,
    /// Writing, in place of a dead or hanging writer. The writer's host is first removed from the rack, with
    /// all its other work there.
    TakeOver,
}

/// A program's handle of a store.
pub struct Store {
    name: String,
    at: VirtAddr,
    kind: KeyKind,
    pub(crate) heap: Heap,
    /// The known trees, keyed by the slices that lead to them; the first tree has no slices.
    trees: BTreeMap<Vec<u8>, RecordTree>,
    /// The writer's lock of a store of texts, while this program may write.
    lock: Option<NamedLock>,
}

impl core::fmt::Debug for Store {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { name, kind, .. } = self;
        f.debug_struct("Store").field("name", name).field("kind", kind).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store called `name` in the client's domain, creating it if necessary.
    ///
    /// # Errors
    /// [`StoreError::Kind`] when the store has keys of another kind; [`StoreError::Locked`];
    /// [`StoreError::Far`].
    pub fn create(
        client: &mut Client,
        name: &str,
        kind: KeyKind,
        access: Access,
    ) -> Result<Self, StoreError> {
        let at = client.create_named(name, 8 * WORDS as u64)?.base;
        let heap_name = heap_name(name);
        let (mut heap, tree);
        if word(client, at.0 + MAGIC_AT)? == MAGIC {
            return Self::open(client, name, Some(kind), access);
        }
        heap = match Heap::create(client, &heap_name, HeapOptions::default()) {
            Err(Error::Exists { .. }) => Heap::open(client, &heap_name, HeapOptions::default())?,
            made => made?,
        };
        tree = match RecordTree::create(client, &mut heap, TREE, LAYOUT) {
            Err(Error::Exists { .. }) => RecordTree::open(client, &mut heap, TREE, LAYOUT)?,
            made => made?,
        };
        client.write(at, &tree.tree().address().0.to_le_bytes())?;
        client.write(VirtAddr(at.0 + 16), &kind.number().to_le_bytes())?;
        // The magic word is written last: it marks a complete store.
        client.write(VirtAddr(at.0 + MAGIC_AT), &MAGIC.to_le_bytes())?;
        heap.close(client)?;
        Self::open(client, name, Some(kind), access)
    }

    /// Opens the store called `name`, with keys of this kind if given.
    ///
    /// # Errors
    /// As [`Store::create`]; [`Error::Missing`] when there is no such store.
    pub fn open(
        client: &mut Client,
        name: &str,
        kind: Option<KeyKind>,
        access: Access,
    ) -> Result<Self, StoreError> {
        let at = client.open_named(name)?.base;
        let broken = || Error::Broken { addr: at, what: "an ordered store" };
        if word(client, at.0 + MAGIC_AT)? != MAGIC {
            return Err(broken().into());
        }
        let found = KeyKind::numbered(word(client, at.0 + 16)?).ok_or_else(broken)?;
        if kind.is_some_and(|kind| kind != found) {
            return Err(StoreError::Kind(found.name()));
        }
        // The lock comes before any read of data that the previous writer may have changed. A later failure
        // releases it.
        let lock = match found {
            KeyKind::Text => locked(client, &lock_name(name), access)?,
            KeyKind::U64 | KeyKind::I64 => None,
        };
        let mut heap = Heap::open(client, &heap_name(name), HeapOptions::default())?;
        match RecordTree::open(client, &mut heap, TREE, LAYOUT) {
            Ok(tree) => {
                let trees = BTreeMap::from([(Vec::new(), tree)]);
                Ok(Self { name: name.into(), at, kind: found, heap, trees, lock })
            }
            Err(error) => {
                heap.close(client)?;
                Err(error.into())
            }
        }
    }

    /// Returns the kind of the store's keys.
    #[must_use]
    pub const fn kind(&self) -> KeyKind {
        self.kind
    }

    /// Returns the first tree, which an index agent follows.
    #[must_use]
    pub fn first(&self) -> &RecordTree {
        &self.trees[&[][..]]
    }

    /// Returns the first tree and the heap, for a bulk load.
    pub(crate) fn first_mut(&mut self) -> (&mut RecordTree, &mut Heap) {
        (self.trees.get_mut(&[][..]).expect("the first tree is always known"), &mut self.heap)
    }

    /// Returns the known trees, each with the number of slices that lead to it.
    pub fn trees(&self) -> impl Iterator<Item = (usize, &RecordTree)> {
        self.trees.iter().map(|(slices, tree)| (slices.len() / SLICE, tree))
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`StoreError::Key`]; [`StoreError::Far`].
    pub fn get(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let encoded = self.kind.encode(key)?;
        let mut at = self.deepest(&encoded);
        loop {
            match self.entry(memory, &encoded, at)? {
                Some(Entry::Layer(layer)) => {
                    self.know(memory, &encoded, at, layer)?;
                    at += 1;
                }
                Some(Entry::Value { rest, value }) if rest == behind(&encoded, at) => return Ok(Some(value)),
                Some(Entry::Value { .. }) | None => return Ok(None),
            }
        }
    }

    /// Stores `value` under `key`. Returns true when the key existed.
    ///
    /// # Errors
    /// [`StoreError::Key`], [`StoreError::Value`]; [`StoreError::Far`]. Then it is unknown whether the value
    /// was stored.
    pub fn set(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, StoreError> {
        let encoded = self.kind.encode(key)?;
        if value.len() > VALUE_LEN_MAX {
            return Err(StoreError::Value(value.len()));
        }
        self.check_writer()?;
        let mut at = self.deepest(&encoded);
        if self.kind != KeyKind::Text {
            return Ok(self.put(memory, &encoded, at, &emit(&[], value))?);
        }
        loop {
            match self.entry(memory, &encoded, at)? {
                Some(Entry::Layer(layer)) => self.know(memory, &encoded, at, layer)?,
                Some(Entry::Value { rest, value: other }) if rest != behind(&encoded, at) => {
                    self.make_layer(memory, &encoded, at, &rest, &other)?;
                }
                Some(Entry::Value { .. }) | None => {
                    return Ok(self.put(memory, &encoded, at, &emit(behind(&encoded, at), value))?);
                }
            }
            at += 1;
        }
    }

    /// Removes `key`. Returns true when the key existed.
    ///
    /// # Errors
    /// As [`Store::set`].
    pub fn remove(&mut self, memory: &mut (impl FarMemory + ?Sized), key: &[u8]) -> Result<bool, StoreError> {
        let encoded = self.kind.encode(key)?;
        self.check_writer()?;
        if self.kind == KeyKind::Text && self.get(memory, key)?.is_none() {
            return Ok(false);
        }
        // The look-up has found the tree that holds the key.
        let at = self.deepest(&encoded);
        let Self { trees, heap, .. } = self;
        let tree = trees.get_mut(&encoded[..SLICE * at]).expect("the deepest is known");
        Ok(tree.remove(memory, heap, slice(&encoded, at))?)
    }

    /// Returns the first `most` keys from `first` to `last`, both inclusive, with their values, in order. A
    /// missing bound means no bound. A range whose first key exceeds its last is empty.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn range(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        first: Option<&[u8]>,
        last: Option<&[u8]>,
        most: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        let encoded = |key: Option<&[u8]>| key.map(|key| self.kind.encode(key)).transpose();
        let (first, last) = (encoded(first)?, encoded(last)?);
        let mut found = Vec::new();
        if first.as_ref().zip(last.as_ref()).is_none_or(|(first, last)| first <= last) {
            let within = KeyBounds { first: first.as_deref(), last: last.as_deref() };
            self.walk(memory, &mut Vec::new(), &within, most, &mut found)?;
        }
        Ok(found)
    }

    /// Renews the heap's lease. Call this every few seconds when no other operation runs.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn keep(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.heap.keep(memory)
    }

    /// Closes the store.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn close(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        // The lock is released last, also when leaving the heap fails.
        let left = self.heap.close(memory);
        let unlocked = self.lock.map_or(Ok(()), NamedLock::unlock);
        left.and(unlocked)
    }

    /// Frees all of the store's far memory. No other program may use the store during or after this call.
    ///
    /// # Errors
    /// [`StoreError`] when far memory does not answer.
    pub fn destroy(mut self, client: &mut Client) -> Result<(), StoreError> {
        // All layers, parents before children.
        let mut layers = Vec::new();
        self.layers(client, &mut Vec::new(), &mut layers)?;
        for slices in layers.into_iter().rev() {
            let known = self.trees.remove(&slices).expect("they were all opened");
            known.destroy(client, &mut self.heap)?;
        }
        let first = self.trees.remove(&[][..]).expect("the first tree is always known");
        first.destroy(client, &mut self.heap)?;
        self.heap.destroy(client)?;
        client.unlink_named(&self.name)?;
        Ok(())
    }

    /// Returns the progress of a load: the file, and the number of rows written.
    pub(crate) fn load_mark(&self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(u64, u64), Error> {
        Ok((word(memory, self.at.0 + LOAD_AT)?, word(memory, self.at.0 + LOAD_AT + 8)?))
    }

    /// Records the progress of a load.
    pub(crate) fn mark_load(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        (file, rows): (u64, u64),
    ) -> Result<(), Error> {
        let bytes = [file.to_le_bytes(), rows.to_le_bytes()].concat();
        memory.write(VirtAddr(self.at.0 + LOAD_AT), &bytes)
    }

    /// Refuses writes to a store of texts that was opened for reading.
    const fn check_writer(&self) -> Result<(), StoreError> {
        match self.kind {
            KeyKind::Text if self.lock.is_none() => Err(StoreError::ReadOnly),
            _ => Ok(()),
        }
    }

    /// Returns the number of slices that lead to the deepest known tree for a key.
    fn deepest(&self, encoded: &[u8]) -> usize {
        if self.trees.len() == 1 {
            return 0;
        }
        (0..encoded.len().div_ceil(SLICE))
            .rev()
            .find(|at| self.trees.contains_key(&encoded[..SLICE * at]))
            .unwrap_or(0)
    }

    /// Reads the entry of a key in the tree after `at` slices.
    fn entry(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        encoded: &[u8],
        at: usize,
    ) -> Result<Option<Entry>, Error> {
        let Self { trees, heap, .. } = self;
        let tree = &trees[&encoded[..SLICE * at]];
        let content = tree.get(memory, heap, slice(encoded, at))?;
        content.map(|content| parse(tree, content)).transpose()
    }

    fn put(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        encoded: &[u8],
        at: usize,
        content: &[u8],
    ) -> Result<bool, Error> {
        let Self { trees, heap, .. } = self;
        let tree = trees.get_mut(&encoded[..SLICE * at]).expect("what was looked at is known");
        tree.insert(memory, heap, slice(encoded, at), content)
    }

    /// Remembers the layer after `at` + 1 slices.
    fn know(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        encoded: &[u8],
        at: usize,
        layer: VirtAddr,
    ) -> Result<(), Error> {
        let tree = RecordTree::open_unnamed(memory, layer, LAYOUT)?;
        self.remember(encoded[..SLICE * (at + 1)].to_vec(), tree);
        Ok(())
    }

    fn remember(&mut self, slices: Vec<u8>, tree: RecordTree) {
        if self.trees.len() >= LAYERS_KNOWN_MAX {
            self.trees.retain(|slices, _| slices.is_empty());
        }
        self.trees.insert(slices, tree);
    }

    /// Creates a layer for the text of this slice and others. The layer is complete before any pointer leads
    /// to it.
    fn make_layer(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        encoded: &[u8],
        at: usize,
        rest: &[u8],
        value: &[u8],
    ) -> Result<(), Error> {
        let mut layer = RecordTree::create_unnamed(memory, LAYOUT)?;
        layer.insert(
            memory,
            &mut self.heap,
            prefix(rest),
            &emit(rest.get(SLICE..).unwrap_or_default(), value),
        )?;
        let leads = [&[LAYER][..], &layer.tree().address().0.to_le_bytes()].concat();
        self.put(memory, encoded, at, &leads)?;
        self.remember(encoded[..SLICE * (at + 1)].to_vec(), layer);
        Ok(())
    }

    /// Adds the keys within the bounds from the tree after these slices, and from its layers.
    fn walk(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        slices: &mut Vec<u8>,
        within: &KeyBounds<'_>,
        most: usize,
        found: &mut Vec<Pair>,
    ) -> Result<(), Error> {
        let mut cursor = Cursor::new(within.slices(slices));
        while !cursor.is_at_end() && found.len() < most {
            let Self { trees, heap, .. } = &mut *self;
            let tree = &trees[slices.as_slice()];
            let wanted = PIECE.min(most - found.len());
            let piece = cursor.next_records(tree, memory, heap, wanted)?;
            let piece = piece.into_iter().map(|(slice, content)| Ok((slice, parse(tree, content)?)));
            for (slice, entry) in piece.collect::<Result<Vec<_>, Error>>()? {
                let len = slices.len();
                slices.extend(slice.to_be_bytes());
                match entry {
                    Entry::Layer(layer) => {
                        if !self.trees.contains_key(slices.as_slice()) {
                            let tree = RecordTree::open_unnamed(memory, layer, LAYOUT)?;
                            self.trees.insert(slices.clone(), tree);
                        }
                        self.walk(memory, slices, within, most, found)?;
                        if self.trees.len() > LAYERS_KNOWN_MAX {
                            self.trees.remove(slices.as_slice());
                        }
                    }
                    Entry::Value { rest, value } => {
                        slices.extend(rest);
                        if found.len() < most && within.has(slices) {
                            found.push((self.kind.decode(slices), value));
                        }
                    }
                }
                slices.truncate(len);
            }
        }
        Ok(())
    }

    /// Collects the slices of all layers below, parents first, and opens all of them.
    fn layers(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        slices: &mut Vec<u8>,
        found: &mut Vec<Vec<u8>>,
    ) -> Result<(), Error> {
        if self.kind != KeyKind::Text {
            return Ok(());
        }
        let mut cursor = Cursor::new(..);
        while !cursor.is_at_end() {
            let Self { trees, heap, .. } = &mut *self;
            let tree = &trees[slices.as_slice()];
            for (slice, content) in cursor.next_records(tree, memory, heap, PIECE)? {
                let entry = parse(&self.trees[slices.as_slice()], content)?;
                let Entry::Layer(layer) = entry else { continue };
                slices.extend(slice.to_be_bytes());
                let tree = RecordTree::open_unnamed(memory, layer, LAYOUT)?;
                self.trees.entry(slices.clone()).or_insert(tree);
                found.push(slices.clone());
                self.layers(memory, slices, found)?;
                slices.truncate(slices.len() - SLICE);
            }
        }
        Ok(())
    }
}

/// The first tree's name in the store's heap.
const TREE: &str = "tree";
const LAYOUT: Layout = Layout::Partitioned;

/// Bounds of encoded keys, both inclusive.
struct KeyBounds<'a> {
    first: Option<&'a [u8]>,
    last: Option<&'a [u8]>,
}

impl KeyBounds<'_> {
    /// Returns the range of next slices for keys that begin with these slices.
    fn slices(&self, slices: &[u8]) -> core::ops::RangeInclusive<u64> {
        let of = |bound: Option<&[u8]>, otherwise: u64| {
            let rest = bound.and_then(|bound| bound.strip_prefix(slices));
            rest.map_or(otherwise, prefix)
        };
        of(self.first, 0)..=of(self.last, u64::MAX)
    }

    /// Returns true when a key is within the bounds; zeros may follow its bytes.
    fn has(&self, encoded: &[u8]) -> bool {
        // With equal padding, encoded keys compare like keys.
        let padded = |bytes: &[u8]| {
            let mut padded = bytes.to_vec();
            padded.resize(bytes.len().next_multiple_of(SLICE), 0);
            padded
        };
        let key = padded(encoded);
        self.first.is_none_or(|first| padded(first) <= key)
            && self.last.is_none_or(|last| key <= padded(last))
    }
}

fn heap_name(store: &str) -> String {
    format!("{store}.heap")
}

fn lock_name(store: &str) -> String {
    format!("{store}.writer")
}

/// Takes the writer's lock if the access needs it.
fn locked(client: &mut Client, name: &str, access: Access) -> Result<Option<NamedLock>, StoreError> {
    let taken = match access {
        Access::Read => return Ok(None),
        Access::Write => client.lock_named(name),
        Access::TakeOver => client.take_over_named(name),
    };
    taken.map(Some).map_err(|error| match error {
        Error::Refused(refused) if refused.code == ErrorCode::Conflict => StoreError::Locked(refused.message),
        other => other.into(),
    })
}

fn word(memory: &mut (impl FarMemory + ?Sized), at: u64) -> Result<u64, Error> {
    let mut bytes = [0; 8];
    memory.read(VirtAddr(at), &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
