//! A program with prefetching, for tests of every kind. The DPU is a thread of the program, a process that a
//! test starts, or the command that a user starts.

use farmem::form::Form;
use farmem::heap::HeapOptions;
use farmem::prefetch::parse::records::{Header, Request};
use farmem::prefetch::tap::{ParserKind, Tap, TapConnection};
use farmem::prefetch::{
    AtDpu, AtDpuOptions, Change, Copy, KeySecret, Position, Prefetched, Reporter, Taker, ZoneSize,
};
use farmem::{Client, FlatMap, Heap, Rng, Table};
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const SECRET: KeySecret = KeySecret([17, 4791]);
pub(crate) const ZONE: ZoneSize = ZoneSize { items: 256, data: 1 << 20 };
/// Number of keys, and the bound on the items that a program holds locally.
pub(crate) const KEYS: u32 = 400;
const HERE_MAX: usize = 20;

/// The options by which a test uses a DPU process for prefetching.
pub(crate) fn options() -> AtDpuOptions {
    AtDpuOptions { zone: ZONE, ..AtDpuOptions::new(1000) }
}

/// Creates a map in which each key of the first half has itself plus one as its value.
pub(crate) fn map_of(client: &mut Client, secret: [u64; 2]) -> FlatMap {
    let map = FlatMap::create(client, KEYS.into(), 8, secret).unwrap();
    let first: Vec<_> = first().map(|(key, value)| (key.to_le_bytes(), value.to_le_bytes())).collect();
    map.load(client, 1, first.iter().map(|(key, value)| (*key, &value[..]))).unwrap();
    map
}

/// Creates a table with the same contents in a heap; both have this name.
pub(crate) fn table_of(client: &mut Client, name: &str) -> InHeap {
    let mut heap = Heap::create(client, name, HeapOptions::default()).unwrap();
    let table = Table::create(client, &mut heap, name, KEYS.into()).unwrap();
    let mut table = InHeap { heap, table };
    first().for_each(|(key, value)| table.put(client, &key.to_le_bytes(), Change(1), &value.to_le_bytes()));
    table
}

/// The far-memory structure of a program's items.
pub(crate) trait Items {
    /// Returns the form that a DPU receives.
    fn form(&self) -> Form;

    /// Appends a key's item to `into`. Returns false when there is none.
    fn get(&mut self, client: &mut Client, key: &[u8; 8], into: &mut Vec<u8>) -> bool;

    /// Writes an item with this change.
    fn put(&mut self, client: &mut Client, key: &[u8; 8], change: Change, item: &[u8]);

    /// Removes an item if it exists.
    fn remove(&mut self, client: &mut Client, key: &[u8; 8]);
}

impl Items for FlatMap {
    fn form(&self) -> Form {
        self.form()
    }

    fn get(&mut self, client: &mut Client, key: &[u8; 8], into: &mut Vec<u8>) -> bool {
        Self::get(self, client, key, into).unwrap().is_some()
    }

    fn put(&mut self, client: &mut Client, key: &[u8; 8], change: Change, item: &[u8]) {
        self.insert(client, key, change.0, item).unwrap();
    }

    fn remove(&mut self, client: &mut Client, key: &[u8; 8]) {
        Self::remove(self, client, key).unwrap();
    }
}

/// A table and its heap.
pub(crate) struct InHeap {
    pub(crate) heap: Heap,
    pub(crate) table: Table,
}

impl Items for InHeap {
    fn form(&self) -> Form {
        self.table.form(&self.heap)
    }

    fn get(&mut self, client: &mut Client, key: &[u8; 8], into: &mut Vec<u8>) -> bool {
        let value = self.table.get(client, &mut self.heap, key).unwrap();
        into.clear();
        into.extend(value.iter().flat_map(|value| Change::of(value).unwrap().1));
        value.is_some()
    }

    fn put(&mut self, client: &mut Client, key: &[u8; 8], change: Change, item: &[u8]) {
        self.table.insert(client, &mut self.heap, key, &change.onto(item)).unwrap();
    }

    fn remove(&mut self, client: &mut Client, key: &[u8; 8]) {
        self.table.remove(client, &mut self.heap, key).unwrap();
    }
}

/// Returns the initial items.
fn first() -> impl Iterator<Item = (u64, u64)> {
    (0..u64::from(KEYS / 2)).map(|key| (key, key + 1))
}

/// Encodes a request of PROTOCOL 19.14.
pub(crate) fn record(request: Request, key: &[u8], value: &[u8]) -> Vec<u8> {
    let key_len = u16::try_from(key.len()).unwrap();
    let value_len = u32::try_from(value.len()).unwrap();
    [&Header { request, key_len, value_len }.emit()[..], key, value].concat()
}

/// Waits until a condition holds, for at most 30 seconds.
pub(crate) fn await_it(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until the DPU has seen this many pieces, processed all reports, and fetched everything it wants.
pub(crate) fn settle(dpu: &AtDpu, pieces: u64) -> Prefetched {
    let is_done = |prefetched: &Prefetched| prefetched.seen.pieces >= pieces && prefetched.flying == 0;
    await_it("the DPU has seen all", || is_done(&dpu.prefetched().unwrap()));
    // The DPU reads reports between two replies.
    dpu.prefetched().unwrap();
    await_it("and fetched all", || is_done(&dpu.prefetched().unwrap()));
    dpu.prefetched().unwrap()
}

/// Requests that arrived in one piece.
pub(crate) struct Piece {
    requests: Vec<(Request, u64, u64)>,
    position: Option<Position>,
}

/// A program with items in far memory that holds a few of them. The program reads, writes, removes, evicts
/// and drops at random, and checks each answer against its own map.
pub(crate) struct MapProgram<I> {
    pub(crate) client: Client,
    pub(crate) items: I,
    pub(crate) beside: Reporter,
    taker: Taker,
    pub(crate) tap: Tap,
    connection: Option<TapConnection>,
    /// Local items, each with a flag for changes that far memory lacks.
    here: BTreeMap<u64, (u64, bool)>,
    /// The expected contents.
    truth: BTreeMap<u64, u64>,
    pub(crate) rng: Rng,
    /// Requests so far, and pieces of the current tap.
    pub(crate) count: u64,
    pub(crate) pieces: u64,
    /// Look-ups of items, local or not.
    pub(crate) looked: u64,
    /// Items that came from the loading zone.
    pub(crate) taken: u64,
    /// Reads that the program had to do itself.
    pub(crate) asked: u64,
}

impl<I: Items> MapProgram<I> {
    /// Creates a program over the result of [`map_of`] or [`table_of`].
    pub(crate) fn new(
        client: Client,
        items: I,
        seed: u64,
        (tap, beside, taker): (Tap, Reporter, Taker),
    ) -> Self {
        let connection = tap.connection_of(ParserKind::HashMap);
        let (here, truth, rng) = (BTreeMap::new(), first().collect(), Rng::from_number(seed));
        let (count, pieces, looked, taken, asked) = (0, 0, 0, 0, 0);
        Self {
            client,
            items,
            beside,
            taker,
            tap,
            connection,
            here,
            truth,
            rng,
            count,
            pieces,
            looked,
            taken,
            asked,
        }
    }

    /// Creates a program beside a DPU process.
    pub(crate) fn at(dpu: &AtDpu, client: Client, items: I, seed: u64) -> Self {
        Self::new(client, items, seed, (dpu.tap(), dpu.beside(), dpu.taker()))
    }

    /// Switches to another DPU.
    pub(crate) fn goes_to(&mut self, dpu: &AtDpu) {
        (self.tap, self.beside, self.taker) = (dpu.tap(), dpu.beside(), dpu.taker());
        self.connection = self.tap.connection_of(ParserKind::HashMap);
        self.pieces = 0;
    }

    /// Receives requests in one piece, lets the DPU work by `wait`, then executes the requests.
    pub(crate) fn batch(&mut self, many: u64, wait: impl FnOnce(&Self)) {
        let piece = self.receives(many);
        wait(self);
        self.carries_out(piece, |_| ());
    }

    /// Receives this many requests in one piece and hands the piece over.
    pub(crate) fn receives(&mut self, many: u64) -> Piece {
        let requests: Vec<_> = (0..many)
            .map(|_| {
                self.count += 1;
                let key = u64::from(self.rng.below(KEYS));
                let request = match self.rng.below(10) {
                    0 | 1 => Request::Write,
                    2 => Request::Delete,
                    _ => Request::Read,
                };
                (request, key, 1000 + self.count)
            })
            .collect();
        let bytes = requests.iter().flat_map(|&(request, key, value)| {
            let value = value.to_le_bytes();
            let value = if request == Request::Write { &value[..] } else { &[] };
            record(request, &key.to_le_bytes(), value)
        });
        let bytes: Vec<u8> = bytes.collect();
        let position = self.connection.as_ref().map(|connection| connection.received(&bytes));
        self.pieces += 1;
        Piece { requests, position }
    }

    /// Executes received requests, with a call of `between` after each.
    pub(crate) fn carries_out(&mut self, piece: Piece, mut between: impl FnMut(&mut Self)) {
        for (request, key, value) in piece.requests {
            match request {
                Request::Read => assert_eq!(self.look(key), self.truth.get(&key).copied(), "key {key}"),
                Request::Write => {
                    self.keep(key, value, true);
                    self.truth.insert(key, value);
                }
                Request::Delete => {
                    assert_eq!(self.look(key), self.truth.remove(&key), "key {key}");
                    self.here.remove(&key);
                    self.flush(key, None);
                }
                Request::Change => unreachable!("no client asks for it here"),
            }
            between(self);
        }
        if let Some(position) = piece.position {
            self.tap.executed(position);
        }
    }

    /// Returns the item of a key: the local copy, from the zone, or from far memory.
    fn look(&mut self, key: u64) -> Option<u64> {
        self.looked += 1;
        if let Some(&(value, _)) = self.here.get(&key) {
            return Some(value);
        }
        let (bytes, mut into) = (key.to_le_bytes(), Vec::new());
        let mut there = self.taker.take(&bytes, &mut into).is_some();
        self.taken += u64::from(there);
        if !there {
            self.asked += 1;
            self.beside.asks(&bytes);
            there = self.items.get(&mut self.client, &bytes, &mut into);
            self.beside.reads(&bytes, there);
        }
        let value = there.then(|| u64::from_le_bytes(into[..].try_into().unwrap()));
        if let Some(value) = value {
            self.keep(key, value, false);
        }
        value
    }

    fn keep(&mut self, key: u64, value: u64, dirty: bool) {
        if self.here.len() >= HERE_MAX && !self.here.contains_key(&key) {
            let nth = usize::try_from(self.rng.below(u32::try_from(self.here.len()).unwrap())).unwrap();
            let victim = *self.here.keys().nth(nth).unwrap();
            match self.here.remove(&victim).unwrap() {
                (value, true) => self.flush(victim, Some(value)),
                (_, false) => self.beside.drops(&victim.to_le_bytes()),
            }
        }
        self.here.insert(key, (value, dirty));
    }

    fn flush(&mut self, key: u64, value: Option<u64>) {
        let bytes = key.to_le_bytes();
        let change = self.beside.change(&bytes, Copy::Dropped);
        match value {
            Some(value) => self.items.put(&mut self.client, &bytes, change, &value.to_le_bytes()),
            None => self.items.remove(&mut self.client, &bytes),
        }
        self.beside.acknowledged(change);
    }
}
