//! The items of the applications: keys, values, and their far-memory structures.

use farmem::form::Form;
use farmem::{Client, Completed, Error, FlatMap, Lines, LookUp, LookedUp, Op, PageStore, flat_map, pages};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a key.
pub(super) const KEY: usize = 8;
/// The number of the change that wrote all items.
pub(super) const FIRST: u64 = 1;

/// An application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Kind {
    /// The hash map: values of eight bytes.
    Hash,
    /// The page server.
    Pages,
    /// A key-value server: the hash map's items, requested in RESP.
    Kv,
}

/// Returns the first word of an item's value; the other words follow from it.
const fn word(item: u64) -> u64 {
    (item ^ 0x5044_3300).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Hash, Self::Pages, Self::Kv];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Pages => "pages",
            Self::Kv => "kv",
        }
    }

    /// Returns the bytes of a value.
    pub(super) const fn value_len(self) -> usize {
        match self {
            Self::Hash | Self::Kv => 8,
            Self::Pages => pages::PAGE,
        }
    }

    pub(super) const fn key(self, item: u64) -> [u8; KEY] {
        match self {
            Self::Hash | Self::Kv => item.to_le_bytes(),
            Self::Pages => item.to_be_bytes(),
        }
    }

    pub(super) fn item(self, key: &[u8]) -> u64 {
        let key = key.try_into().expect("a key's length");
        match self {
            Self::Hash | Self::Kv => u64::from_le_bytes(key),
            Self::Pages => u64::from_be_bytes(key),
        }
    }

    /// Writes an item's value.
    pub(super) fn fill(item: u64, value: &mut [u8]) {
        for (at, part) in (0_u64..).zip(value.chunks_exact_mut(8)) {
            part.copy_from_slice(&word(item).wrapping_add(at).to_le_bytes());
        }
    }

    /// Checks an item's value by its length, its first word and its last.
    pub(super) fn is_right(self, key: &[u8], value: &[u8]) -> bool {
        let len = self.value_len();
        let first = word(self.item(key));
        let last = first.wrapping_add(len as u64 / 8 - 1);
        value.len() == len
            && value.first_chunk() == Some(&first.to_le_bytes())
            && value.last_chunk() == Some(&last.to_le_bytes())
    }

    /// Returns the bytes of a memory node for this many items.
    pub(super) const fn memory(self, items: u64) -> u64 {
        let bytes = match self {
            // Slots of 32 bytes, and two per record.
            Self::Hash | Self::Kv => items * 64 + (1 << 20),
            Self::Pages => items * pages::RECORD_LEN as u64 + (1 << 20),
        };
        // Allocations are powers of two.
        2 * bytes.next_power_of_two()
    }
}

/// The local index of all items, which the LRU variant has besides its items.
#[derive(Clone, Debug)]
pub(super) enum Index {
    /// The slot of each item.
    Slots(Vec<u32>),
    /// A page's number is its position.
    Places,
}

impl Index {
    /// Returns the bytes of the index.
    pub(super) const fn bytes(&self) -> usize {
        match self {
            Self::Slots(slots) => size_of::<u32>() * slots.len(),
            Self::Places => 0,
        }
    }
}

/// Slots per READ when all are read.
const SLOTS_READ: usize = 8192;

/// All items, in far memory.
#[derive(Clone, Debug)]
pub(super) enum Far {
    Map(FlatMap),
    Pages(PageStore),
}

impl Far {
    /// Creates the structure and writes all items.
    pub(super) fn load(client: &mut Client, kind: Kind, items: u64) -> Result<Self, Error> {
        match kind {
            Kind::Hash | Kind::Kv => {
                let map = FlatMap::create(client, items, kind.value_len(), [0x5044, 0x3303])?;
                let mut values = vec![0; kind.value_len() * usize::try_from(items).expect("they fit memory")];
                let parts = values.chunks_exact_mut(kind.value_len());
                (0..).zip(parts).for_each(|(item, value)| Kind::fill(item, value));
                let parts = values.chunks_exact(kind.value_len());
                map.load(client, FIRST, (0..).zip(parts).map(|(item, value)| (kind.key(item), value)))?;
                Ok(Self::Map(map))
            }
            Kind::Pages => {
                let store = PageStore::create(client, items)?;
                store.load(client, FIRST, Kind::fill)?;
                Ok(Self::Pages(store))
            }
        }
    }

    /// Returns the form from which another process opens the structure.
    pub(super) fn form(&self) -> Form {
        match self {
            Self::Map(map) => map.form(),
            Self::Pages(store) => store.form(),
        }
    }

    /// Returns the READ of an item.
    pub(super) fn read_op(&self, key: &[u8], buf: Vec<u8>) -> Op {
        match self {
            Self::Map(map) => map.read_op(key.try_into().expect("a key's length"), buf),
            Self::Pages(store) => store.read_op(Kind::Pages.item(key), buf).expect("a page of the store"),
        }
    }

    /// Takes the result of a READ.
    pub(super) fn answer(&self, key: &[u8], completed: &Completed, into: &mut Vec<u8>) -> Result<(), Error> {
        into.clear();
        if let Err(error) = &completed.result {
            return Err(Error::Missing { what: format!("answer to a READ of a key: {error}") });
        }
        match self {
            Self::Map(map) => {
                let key: &flat_map::Key = key.try_into().expect("a key's length");
                into.extend_from_slice(map.found(key, &completed.buf).map_or(&[], |found| found.value));
            }
            Self::Pages(_) => pages::content(&completed.buf, into),
        }
        Ok(())
    }

    /// Returns the position of an item, for prefetchers that use distances: its home slot of the hash map, or
    /// the page number.
    pub(super) fn place_of(&self, key: &[u8]) -> u64 {
        match self {
            Self::Map(map) => map.home_slot(key.try_into().expect("a key's length")),
            Self::Pages(_) => Kind::Pages.item(key),
        }
    }

    /// Returns the READ of a position; `None` when there is no such position.
    pub(super) fn place_op(&self, place: u64, buf: Vec<u8>) -> Option<Op> {
        match self {
            Self::Map(map) => map.slots_op(place, 1, buf),
            Self::Pages(store) => store.read_op(place, buf),
        }
    }

    /// Passes the items in such a READ to `each`.
    pub(super) fn items_of(&self, place: u64, bytes: &[u8], mut each: impl FnMut(u64, &[u8])) {
        match self {
            Self::Map(map) => {
                map.records(bytes).for_each(|(_, key, found)| each(Kind::Hash.item(&key), found.value));
            }
            Self::Pages(_) => {
                let mut page = Vec::with_capacity(pages::PAGE);
                pages::content(bytes, &mut page);
                each(place, &page);
            }
        }
    }

    /// Reads the positions of all items.
    pub(super) fn index(&self, client: &mut Client) -> Result<Index, Error> {
        let Self::Map(map) = self else { return Ok(Index::Places) };
        let mut slots = BTreeMap::new();
        let (mut first, mut buf) = (0, Vec::new());
        while let Some(op) = map.slots_op(first, SLOTS_READ, buf) {
            let ticket = client.submit(op)?;
            let completed = client.wait(ticket)?;
            completed.result?;
            for (at, key, _) in map.records(&completed.buf) {
                slots.insert(Kind::Hash.item(&key), first + at as u64);
            }
            let slot_len = map.slot_len() as u64;
            first += completed.buf.len() as u64 / slot_len;
            buf = completed.buf;
        }
        // Items are numbered from 0, and all exist.
        let slots = slots.into_values().map(|slot| u32::try_from(slot).expect("fewer than 2^32 slots"));
        Ok(Index::Slots(slots.collect()))
    }

    /// Reads an item at its indexed position, and waits.
    pub(super) fn get_at(
        &self,
        index: &Index,
        client: &mut Client,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let (Self::Map(map), Index::Slots(slots)) = (self, index) else {
            return self.get(client, key, into);
        };
        let item = usize::try_from(Kind::Hash.item(key)).expect("an item");
        let buf = client.buffer(0);
        let op = map.slots_op(slots[item].into(), 1, buf).expect("a slot of the map");
        let ticket = client.submit(op)?;
        let completed = client.wait(ticket)?;
        completed.result?;
        into.clear();
        map.records(&completed.buf).for_each(|(_, _, found)| into.extend_from_slice(found.value));
        client.recycle(completed.buf);
        Ok(())
    }

    /// Reads an item, and waits.
    pub(super) fn get(&self, client: &mut Client, key: &[u8], into: &mut Vec<u8>) -> Result<(), Error> {
        let buf = client.buffer(0);
        let ticket = client.submit(self.read_op(key, buf))?;
        let completed = client.wait(ticket)?;
        self.answer(key, &completed, into)?;
        client.recycle(completed.buf);
        Ok(())
    }
}

impl LookUp for Far {
    fn begin(&mut self, client: &mut Client) -> Result<(), Error> {
        match self {
            Self::Map(map) => map.begin(client),
            Self::Pages(store) => store.begin(client),
        }
    }

    fn op(&self, key: &[u8], scratch: Vec<u8>) -> Option<Op> {
        match self {
            Self::Map(map) => map.op(key, scratch),
            Self::Pages(store) => store.op(key, scratch),
        }
    }

    fn together(&self) -> usize {
        match self {
            Self::Map(map) => map.together(),
            Self::Pages(store) => store.together(),
        }
    }

    fn place(&self, key: &[u8]) -> Option<usize> {
        match self {
            Self::Map(map) => map.place(key),
            Self::Pages(store) => store.place(key),
        }
    }

    fn op_for(&self, keys: &mut dyn Iterator<Item = &[u8]>, scratch: Vec<u8>) -> Option<Op> {
        match self {
            Self::Map(map) => map.op_for(keys, scratch),
            Self::Pages(store) => store.op_for(keys, scratch),
        }
    }

    fn in_place(&self, at: usize, key: &[u8], completed: &Completed) -> Option<(u64, Range<usize>)> {
        match self {
            Self::Map(map) => map.in_place(at, key, completed),
            Self::Pages(store) => store.in_place(at, key, completed),
        }
    }

    fn lines(&self) -> Option<Lines> {
        match self {
            Self::Map(map) => map.lines(),
            Self::Pages(store) => store.lines(),
        }
    }

    fn looked_up(&self, at: usize, key: &[u8], completed: &Completed, into: &mut Vec<u8>) -> LookedUp {
        match self {
            Self::Map(map) => map.looked_up(at, key, completed, into),
            Self::Pages(store) => store.looked_up(at, key, completed, into),
        }
    }

    fn end(&mut self, client: &mut Client) -> Result<(), Error> {
        match self {
            Self::Map(map) => map.end(client),
            Self::Pages(store) => store.end(client),
        }
    }
}
