//! Preventive prefetching on a whole rack: clients send RESP requests, records lie in a table, and a driver
//! fetches the records before the program looks.

use farmem::heap::HeapOptions;
use farmem::prefetch::parse::records::{Header, Records, Request};
use farmem::prefetch::parse::resp::Resp;
use farmem::prefetch::tap::{Tap, TapConnection, tap};
use farmem::prefetch::{
    ANSWERS_BYTES_MAX, Change, Config, Copy, Driver, FLOORS, HostKeys, HostView, KeySet, KeyShards,
    KeysConfig, Position, Reporter, SharedZone, Taker, ZoneSize,
};
use farmem::table::TableLookUp;
use farmem::{
    Client, FarMemory, FlatMap, HashTable, Heap, LookUp, LookedUp, PageStore, Rack, Rng, Table,
    forward_far_memory, hash_table,
};
use std::collections::BTreeMap;
use std::num::NonZero;

use crate::map_program::{MapProgram, SECRET, map_of};

/// A program with a table in far memory and no local copies.
struct Program {
    client: Client,
    heap: Heap,
    table: Table,
    beside: Reporter,
    taker: Taker,
    tap: Tap,
    connection: TapConnection,
    position: Position,
}

type Beside1 = Driver<KeySet, TableLookUp, SharedZone>;

fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    words.iter().for_each(|word| bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes()));
    bytes
}

impl Program {
    /// Starts a program and its DPU on a rack.
    fn start(rack: &Rack, items: usize) -> (Self, Beside1) {
        Self::start_with(rack, items, FLOORS)
    }

    fn start_with(rack: &Rack, items: usize, floors: NonZero<u32>) -> (Self, Beside1) {
        let mut client = rack.client("kv").unwrap();
        let mut heap = Heap::create(&mut client, "kv", HeapOptions::default()).unwrap();
        let table = Table::create(&mut client, &mut heap, "items", 1000).unwrap();
        let (tap, watch) = tap(1 << 16, SECRET);
        let beside = Reporter::new(tap.clone(), SECRET, floors, Change(0));
        let connection = tap.connection(Box::new(Resp::new())).unwrap();
        let (zone, reader) = SharedZone::make(ZoneSize { items, data: 1 << 16 }).unwrap();
        let taker = Taker::new(&reader, &beside);
        let mut of_dpu = rack.client("kv").unwrap();
        let mut its_heap = Heap::open(&mut of_dpu, "kv", HeapOptions::default()).unwrap();
        let its_table = Table::open(&mut of_dpu, &mut its_heap, "items").unwrap();
        let (parts, ahead) = ((watch, &beside, Change(0)), TableLookUp::new(its_table, its_heap));
        let view = KeySet::new(10_000);
        let driver = Driver::new(Config::DEFAULT, view, parts, of_dpu, ahead, zone).unwrap();
        let position = Position::UNKNOWN;
        (Self { client, heap, table, beside, taker, tap, connection, position }, driver)
    }

    /// Writes an item to far memory and drops the local copy.
    fn flush(&mut self, key: &str, item: &[u8]) {
        let change = self.beside.change(key.as_bytes(), Copy::Dropped);
        self.table.insert(&mut self.client, &mut self.heap, key.as_bytes(), &change.onto(item)).unwrap();
        self.beside.acknowledged(change);
    }

    fn receives(&mut self, words: &[&str]) {
        self.position = self.connection.received(&request(words));
    }

    /// Executes a GET from the zone or by a look-up. Returns whether the zone had the item, and the item.
    fn get(&mut self, key: &str) -> (bool, Option<Vec<u8>>) {
        let key = key.as_bytes();
        let mut item = Vec::new();
        let answer = match self.taker.take(key, &mut item) {
            Some(_) => (true, Some(item)),
            None => {
                self.beside.asks(key);
                let value = self.table.get(&mut self.client, &mut self.heap, key).unwrap();
                self.beside.reads(key, value.is_some());
                (false, value.map(|value| Change::of(&value).unwrap().1.to_vec()))
            }
        };
        self.tap.executed(self.position);
        answer
    }
}

/// Requests arrive. Before the program looks, the zone holds the items they need: small ones, ones of many
/// lines, none for missing keys. The program keeps the items it took, and nothing is fetched twice. Then the
/// program flushes an item and gets the new one.
#[test]
fn items_are_there_before_the_program_looks() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let (mut program, mut driver) = Program::start(&rack, 128);
    let long = [7; 700];
    program.flush("short", b"1");
    program.flush("long", &long);
    driver.settle().unwrap();
    program.receives(&["MGET", "short", "long", "none"]);
    driver.settle().unwrap();
    assert_eq!(program.get("short"), (true, Some(b"1".to_vec())));
    assert_eq!(program.get("long"), (true, Some(long.to_vec())));
    assert_eq!(program.get("none"), (false, None));
    driver.settle().unwrap();
    program.receives(&["GET", "short"]);
    driver.settle().unwrap();
    let account = *driver.prefetcher().account();
    assert_eq!((account.wanted, account.used, account.wasted, account.late), (3, 2, 1, 0), "{account:?}");
    program.flush("short", b"2");
    program.receives(&["GET", "short"]);
    driver.settle().unwrap();
    assert_eq!(program.get("short"), (true, Some(b"2".to_vec())));
    driver.prefetcher().check();
}

/// The zone holds an item, and the program flushes a newer one: the old item is not taken, whatever the DPU
/// knows of it.
#[test]
fn an_item_from_before_a_flush_is_not_taken() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let (mut program, mut driver) = Program::start(&rack, 128);
    program.flush("k", b"old");
    driver.settle().unwrap();
    program.receives(&["GET", "k"]);
    driver.settle().unwrap();
    program.flush("k", b"new");
    // The DPU has not received the report yet.
    assert_eq!(program.get("k"), (false, Some(b"new".to_vec())));
    driver.settle().unwrap();
}

/// A program sends more reports than its DPU can buffer, and changes two records with a common floor
/// meanwhile. Excess reports are lost, but not the acknowledgements of changes: the item of the record
/// changed first is taken. Previously the second change was missing for ever, and so was the item below the
/// floor.
#[test]
fn no_acknowledgement_is_lost_where_much_is_said() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let (mut program, mut driver) = Program::start_with(&rack, 128, NonZero::<u32>::MIN);
    (0..1 << 16).for_each(|_| program.beside.asks(b"other"));
    program.flush("first", b"1");
    program.flush("second", b"2");
    driver.settle().unwrap();
    assert!(driver.unheard() > 0);
    program.receives(&["GET", "first"]);
    driver.settle().unwrap();
    assert_eq!(program.get("first"), (true, Some(b"1".to_vec())));
}

/// Many keys of one request go in a few messages, and all of them arrive.
#[test]
fn many_keys_go_in_a_few_messages() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let (mut program, mut driver) = Program::start(&rack, 1024);
    let keys: Vec<String> = (0..64).map(|n| format!("key{n}")).collect();
    keys.iter().for_each(|key| program.flush(key, b"value"));
    driver.settle().unwrap();
    let words: Vec<&str> = ["MGET"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    program.receives(&words);
    driver.settle().unwrap();
    assert_eq!(driver.prefetcher().stats().messages, 2);
    assert!(keys.iter().all(|key| program.get(key) == (true, Some(b"value".to_vec()))));
}

/// A zone that is too small, and a parser that is cut off: the program reads by itself, and the account names
/// the cause each time.
#[test]
fn what_is_not_there_in_time_is_read() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let (mut program, mut driver) = Program::start(&rack, 2);
    for (key, item) in [("a", b"1"), ("b", b"2"), ("c", b"3")] {
        program.flush(key, item);
    }
    driver.settle().unwrap();
    program.receives(&["MGET", "a", "b", "c"]);
    driver.settle().unwrap();
    let found = ["a", "b", "c"].map(|key| program.get(key));
    assert_eq!(found.iter().filter(|(ahead, _)| *ahead).count(), 2, "the zone has room for two: {found:?}");
    let values = found.map(|(_, item)| item.expect("every item is read"));
    assert_eq!(values, [b"1", b"2", b"3"].map(|item| item.to_vec()));
    program.connection.received(b"*nonsense\r\n");
    program.receives(&["GET", "a"]);
    driver.settle().unwrap();
    assert_eq!(driver.seen().broken, 1);
    assert!(driver.seen().passed_over > 0);
    let account = driver.prefetcher().account();
    assert_eq!((account.used, account.wasted, account.missed()), (2, 1, 1), "{account:?}");
}

/// A hash table of PULSE with values of 40 bytes is looked up as well.
#[test]
fn the_hash_table_is_looked_up_too() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let mut client = rack.client("map").unwrap();
    let mut map = HashTable::create(&mut client, 100, 64, hash_table::Spread::Partitioned).unwrap();
    let mut value: hash_table::Value = [0; hash_table::VALUE_LEN];
    value[..12].copy_from_slice(&Change(9).onto(b"item"));
    map.insert(&mut client, hash_table::Key::of(b"k"), &value).unwrap();
    let (tap, watch) = tap(1 << 16, SECRET);
    let beside = Reporter::new(tap.clone(), SECRET, FLOORS, Change(9));
    let connection = tap.connection(Box::new(Resp::new())).unwrap();
    let (zone, reader) = SharedZone::make(ZoneSize { items: 16, data: 4096 }).unwrap();
    let mut taker = Taker::new(&reader, &beside);
    map.begin(&mut client).unwrap();
    let view = KeySet::new(10);
    let mut driver =
        Driver::new(Config::DEFAULT, view, (watch, &beside, Change(9)), client, map, zone).unwrap();
    connection.received(&request(&["GET", "k"]));
    connection.received(&request(&["GET", "none"]));
    driver.settle().unwrap();
    let mut item = Vec::new();
    taker.take(b"k", &mut item).unwrap();
    assert_eq!(item[..4], *b"item");
    assert_eq!(taker.take(b"none", &mut item), None);
}

/// Forty pages of two memory nodes, some never written, some nonexistent: a few requests fetch them, and each
/// page goes straight from its arrival buffer into the zone. All ways to look up a page return the same.
#[test]
fn pages_come_by_a_few_requests() {
    const PAGES: u64 = 100;
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let mut client = rack.client("pages").unwrap();
    let store = PageStore::create(&mut client, PAGES).unwrap();
    let page_of = |page: u64| (page..page + 512).flat_map(u64::to_le_bytes).collect::<Vec<u8>>();
    for page in (0..PAGES).filter(|page| page % 10 != 0) {
        store.write(&mut client, page, 1 + page, &page_of(page)).unwrap();
    }
    let (tap, watch) = tap(1 << 16, SECRET);
    let beside = Reporter::new(tap.clone(), SECRET, FLOORS, Change(1 + PAGES));
    let connection = tap.connection(Box::new(Records::pages())).unwrap();
    let (zone, reader) = SharedZone::make(ZoneSize { items: 64, data: 1 << 20 }).unwrap();
    let mut taker = Taker::new(&reader, &beside);
    let before = client.packets();
    let parts = (watch, &beside, Change(1 + PAGES));
    let mut driver =
        Driver::new(Config::DEFAULT, KeySet::new(1000), parts, client, store.clone(), zone).unwrap();
    let wanted: Vec<u64> = (70..PAGES + 10).collect();
    for page in &wanted {
        let header = Header { request: Request::Read, key_len: 8, value_len: 0 }.emit();
        connection.received(&[&header[..], &page.to_be_bytes()].concat());
    }
    driver.settle().unwrap();
    let mut bytes = Vec::new();
    for page in wanted {
        let is_there = page < PAGES && page % 10 != 0;
        let taken = taker.take(&page.to_be_bytes(), &mut bytes);
        assert_eq!(taken, is_there.then_some(4096), "{page}");
        assert!(!is_there || bytes == page_of(page), "{page}");
    }
    driver.settle().unwrap();
    let account = *driver.prefetcher().account();
    assert_eq!((account.wanted, account.used, account.wasted), (40, 27, 13), "{account:?}");
    assert_eq!((driver.prefetcher().stats().messages, driver.copied()), (2, 0));
    let (mut client, mut store, _) = driver.into_parts();
    let sent = client.packets().0 - before.0;
    // At 64 KiB each, two requests fetch the pages of a node.
    assert!((1..=4).contains(&sent), "{sent} packets for 30 pages");

    store.begin(&mut client).unwrap();
    let keys: Vec<[u8; 8]> = [91, 93, 80, 97].map(u64::to_be_bytes).into();
    assert_eq!(
        keys.iter().map(|key| store.place(key)).collect::<Vec<_>>(),
        [Some(1), Some(1), Some(0), Some(1)]
    );
    let op = store.op_for(&mut keys.iter().map(|key| &key[..]), vec![1; 3]).unwrap();
    let ticket = client.submit(op).unwrap();
    let together = client.wait(ticket).unwrap();
    for (at, key) in keys.iter().enumerate() {
        let op = store.op(key, Vec::new()).unwrap();
        let ticket = client.submit(op).unwrap();
        let alone = client.wait(ticket).unwrap();
        let mut values = [Vec::new(), Vec::new()];
        let found = [
            store.looked_up(0, key, &alone, &mut values[0]),
            store.looked_up(at, key, &together, &mut values[1]),
        ];
        let is_there = u64::from_be_bytes(*key) % 10 != 0;
        assert_eq!(found, [if is_there { LookedUp::Value } else { LookedUp::Absent }; 2]);
        assert_eq!(values[0], values[1]);
        assert_eq!(store.in_place(at, key, &together).is_some(), is_there);
    }
    assert_eq!(store.looked_up(4, &keys[0], &together, &mut bytes), LookedUp::Elsewhere);
}

/// Runs the program beside a driver with this view, which polls at random moments. Returns the items used,
/// the reads that the program did itself, and its look-ups.
fn a_map_program<V: HostView>(seed: u64, view: V, operations: u64) -> ((u64, u64), u64) {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let mut client = rack.client("map").unwrap();
    let map = map_of(&mut client, [seed, 1]);
    let (tap, watch) = tap(1 << 16, SECRET);
    let beside = Reporter::new(tap.clone(), SECRET, FLOORS, Change(1));
    let (zone, reader) = SharedZone::make(ZoneSize { items: 32, data: 4096 }).unwrap();
    let taker = Taker::new(&reader, &beside);
    let of_dpu = rack.client("map").unwrap();
    let parts = (watch, &beside, Change(1));
    let mut driver = Driver::new(Config::DEFAULT, view, parts, of_dpu, map.clone(), zone).unwrap();
    let mut program = MapProgram::new(client, map, seed, (tap, beside, taker));
    for _ in 0..operations / 4 {
        // The driver sees a piece of four requests early, in part, or late.
        let piece = program.receives(4);
        match program.rng.below(8) {
            0 => {}
            1 => drop(driver.turn().unwrap()),
            _ => driver.settle().unwrap(),
        }
        program.carries_out(piece, |program| {
            if program.rng.chance(1, 16) {
                driver.turn().unwrap();
            }
        });
    }
    driver.settle().unwrap();
    driver.prefetcher().check();
    assert_eq!(driver.copied(), 0, "values go from where they came in straight into the zone");
    let account = *driver.prefetcher().account();
    ((account.used, account.missed()), program.looked)
}

/// The fast host view, in one piece and in shards, decides like the plain one: the same items are used and
/// missed, and every answer is right.
#[test]
fn a_hash_map_is_never_answered_with_a_stale_item() {
    for seed in 0..6 {
        let plain = a_map_program(seed, KeySet::new(10_000), 8_000);
        let fast = a_map_program(seed, HostKeys::new(KeysConfig::new(10_000)).unwrap(), 8_000);
        let two = NonZero::new(2).unwrap();
        let shards = a_map_program(seed, KeyShards::new(two, KeysConfig::new(10_000)).unwrap(), 8_000);
        assert_eq!((fast, shards), (plain, plain), "seed {seed}");
        let ((used, missed), reads) = plain;
        // Half of the keys do not exist, and nonexistent keys are missed.
        assert!(used * 5 > reads * 2 && missed * 2 < reads, "{used} used and {missed} missed of {reads}");
    }
}

/// A flat map matches a local map: random inserts, replacements, removals and look-ups in a crowded map.
/// Inserts without room fail with an error.
#[test]
fn a_flat_map_is_a_map() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let mut client = rack.client("flat").unwrap();
    let map = FlatMap::create(&mut client, 300, 100, [3, 4]).unwrap();
    let (mut truth, mut rng, mut into) = (BTreeMap::new(), Rng::from_number(5), Vec::new());
    for version in 1..6_000_u64 {
        let key = u64::from(rng.below(300)).to_le_bytes();
        match rng.below(4) {
            0 => {
                let removed = map.remove(&mut client, &key).unwrap();
                assert_eq!(removed, truth.remove(&key).is_some());
            }
            1 => {
                let found = map.get(&mut client, &key, &mut into).unwrap();
                assert_eq!(found.map(|version| (version, into.clone())), truth.get(&key).cloned());
            }
            _ => {
                let value = vec![u8::try_from(version % 251).unwrap(); 100];
                map.insert(&mut client, &key, version, &value).unwrap();
                truth.insert(key, (version, value));
            }
        }
    }
    for (key, (version, value)) in &truth {
        assert_eq!(map.get(&mut client, key, &mut into).unwrap(), Some(*version));
        assert_eq!(into, *value);
    }
    // A full read returns each record once, at most a window from its home.
    let (mut read, mut first) = (BTreeMap::new(), 0);
    while let Some(op) = map.slots_op(first, 100, Vec::new()) {
        let ticket = client.submit(op).unwrap();
        let slots = client.wait(ticket).unwrap().buf;
        for (at, key, found) in map.records(&slots) {
            let distance = (first + at as u64).checked_sub(map.home_slot(&key));
            assert!(
                distance.is_some_and(|distance| distance < farmem::flat_map::WINDOW as u64),
                "{distance:?}"
            );
            assert_eq!(read.insert(key, (found.version, found.value.to_vec())), None);
        }
        first += (slots.len() / map.slot_len()) as u64;
    }
    assert_eq!((first, read), (map.slots(), truth.clone()));
    let full = (0..100_000_u64)
        .find_map(|key| map.insert(&mut client, &(1 << 32 | key).to_le_bytes(), 9_999, &[1; 100]).err());
    assert!(full.is_some_and(|error| error.to_string().contains("is full")));
    for (key, (version, value)) in &truth {
        assert_eq!(map.get(&mut client, key, &mut into).unwrap(), Some(*version));
        assert_eq!(into, *value);
    }
    map.destroy(&mut client).unwrap();
    assert!(FlatMap::create(&mut client, 10, 241, [3, 4]).is_err());
}

/// One traversal looks up several keys, on two nodes, with values of all kinds of length, in a map so full
/// that records lie far from home. Each key gets the result of its own look-up, including removed, unwritten
/// and all-zero keys. A key of another length has no record.
#[test]
fn keys_that_are_looked_up_together_find_what_each_finds_alone() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let mut client = rack.client("flat").unwrap();
    for value_len in [1, 8, 9, 40, 100, 240] {
        let mut map = FlatMap::create(&mut client, 200, value_len, [3, value_len as u64]).unwrap();
        assert!(map.together() > 8, "{value_len}: {}", map.together());
        for n in 0..300_u64 {
            let value = vec![u8::try_from(n % 251).unwrap(); value_len];
            map.insert(&mut client, &n.to_le_bytes(), 1000 + n, &value).unwrap();
        }
        for n in (0..300_u64).step_by(7) {
            assert!(map.remove(&mut client, &n.to_le_bytes()).unwrap());
        }
        assert!(map.place(b"short").is_none());
        let mut keys: Vec<[u8; 8]> = (0..350_u64).map(u64::to_le_bytes).collect();
        keys.sort_by_key(|key| map.place(key));
        map.begin(&mut client).unwrap();
        let (mut operations, mut alone) = (0, Vec::new());
        for of_place in keys.chunk_by(|one, other| map.place(one) == map.place(other)) {
            for (group, some) in
                of_place.chunks(map.together()).flat_map(|all| [(all, all), (all, &all[..1])])
            {
                let op = map.op_for(&mut some.iter().map(|key| &key[..]), vec![9; 3]).unwrap();
                let ticket = client.submit(op).unwrap();
                let completed = client.wait(ticket).unwrap();
                assert!(completed.result.is_ok(), "{:?}", completed.result);
                operations += 1;
                for (at, key) in some.iter().enumerate() {
                    let mut together = vec![7];
                    let looked_up = map.looked_up(at, key, &completed, &mut together);
                    let found = map.get(&mut client, key, &mut alone).unwrap();
                    let expected = found.map(|version| [&[7], &version.to_le_bytes()[..], &alone].concat());
                    assert_eq!(
                        looked_up == LookedUp::Value,
                        expected.is_some(),
                        "{key:?} of {}",
                        group.len()
                    );
                    assert_eq!(together, expected.unwrap_or_else(|| vec![7]));
                }
            }
        }
        map.end(&mut client).unwrap();
        assert!(operations <= 2 * (2 + keys.len().div_ceil(map.together())), "{operations}");
        map.destroy(&mut client).unwrap();
    }
}

/// A program wants twice as many bytes of pages as the reply buffers may have, with the largest records. The
/// buffers stay within their bound, excess requests wait, and everything arrives.
#[test]
fn answers_have_so_many_bytes_and_no_more() {
    const PAGES: u64 = 8000;
    const TURN: usize = 4096;
    // A page and its version.
    const { assert!(TURN * (4096 + 8) > ANSWERS_BYTES_MAX) };
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let mut client = rack.client("pages").unwrap();
    let store = PageStore::create(&mut client, PAGES).unwrap();
    assert!(store.bytes() > 2 * ANSWERS_BYTES_MAX as u64);
    store.load(&mut client, 1, |page, bytes| bytes.fill(u8::try_from(page % 251).unwrap())).unwrap();
    let (tap, watch) = tap(1 << 20, SECRET);
    let beside = Reporter::new(tap.clone(), SECRET, FLOORS, Change(1));
    let connection = tap.connection(Box::new(Records::pages())).unwrap();
    let pages = usize::try_from(PAGES).unwrap();
    let (zone, reader) = SharedZone::make(ZoneSize { items: 1 << 14, data: 1 << 26 }).unwrap();
    let mut taker = Taker::new(&reader, &beside);
    let (view, parts) = (KeySet::new(pages), (watch, &beside, Change(1)));
    let config = Config { flying_keys_max: 1 << 16, ..Config::DEFAULT };
    let mut driver = Driver::new(config, view, parts, client, store, zone).unwrap();
    let header = Header { request: Request::Read, key_len: 8, value_len: 0 }.emit();
    // A turn takes 64 KiB: as many requests as exceed the byte bound.
    let all: Vec<u64> = (0..PAGES).collect();
    for some in all.chunks(TURN) {
        let piece = some.iter().flat_map(|page| [&header[..], &page.to_be_bytes()].concat());
        connection.received(&piece.collect::<Vec<u8>>());
    }
    driver.turn().unwrap();
    assert_eq!(driver.prefetcher().stats().reads, TURN as u64, "so many are wanted in one turn");
    driver.settle().unwrap();
    let (under_way, most) = driver.answers();
    assert_eq!(under_way, 0);
    assert!((ANSWERS_BYTES_MAX / 2..=ANSWERS_BYTES_MAX).contains(&most), "{most} bytes at once");
    let (account, stats) = (*driver.prefetcher().account(), *driver.prefetcher().stats());
    assert_eq!((account.wanted, account.wasted, stats.bounded), (PAGES, 0, 0), "{account:?}, {stats:?}");
    for page in [0, 1, 4000, PAGES - 1] {
        let mut item = Vec::new();
        taker.take(&page.to_be_bytes(), &mut item).unwrap();
        assert!(item.len() == 4096 && item.iter().all(|byte| u64::from(*byte) == page % 251), "{page}");
    }
    driver.prefetcher().check();
}

/// A client on a rack whose datagrams hold only short pads.
struct Narrow<'a> {
    client: &'a mut Client,
}

impl FarMemory for Narrow<'_> {
    forward_far_memory!(client: read, write, compare_swap, fetch_add, dispatch, allocate, allocate_on, free, nodes);

    fn scratch_len_max(&self) -> usize {
        200
    }
}

/// No datagram can carry the multi-key program: each key is looked up alone. Previously none was found.
#[test]
fn keys_are_found_where_datagrams_are_too_small_for_several() {
    let rack = Rack::embedded_with(1, 1 << 20).unwrap();
    let mut client = rack.client("flat").unwrap();
    let map = FlatMap::create(&mut Narrow { client: &mut client }, 10, 240, [3, 4]).unwrap();
    assert_eq!(map.together(), 1);
    map.load(&mut client, 5, [(7_u64.to_le_bytes(), &[9; 240][..])].into_iter()).unwrap();
    for (key, expected) in [(7_u64, LookedUp::Value), (8, LookedUp::Absent)] {
        let key = key.to_le_bytes();
        let op = map.op_for(&mut [&key[..]].into_iter(), Vec::new()).expect("a way to find one key");
        let ticket = client.submit(op).unwrap();
        let completed = client.wait(ticket).unwrap();
        let mut found = Vec::new();
        assert_eq!(map.looked_up(0, &key, &completed, &mut found), expected);
        assert_eq!(found.is_empty(), expected == LookedUp::Absent);
    }
}

/// A million records find room at the flat map's standard density.
#[test]
fn a_flat_map_has_room_for_what_it_is_made_for() {
    let rack = Rack::embedded_with(1, 256 << 20).unwrap();
    let mut client = rack.client("flat").unwrap();
    let map = FlatMap::create(&mut client, 1_000_000, 8, [3, 4]).unwrap();
    map.load(&mut client, 1, (0..1_000_000_u64).map(|key| (key.to_le_bytes(), &[7; 8][..]))).unwrap();
    let mut into = Vec::new();
    for key in (0..1_000_000_u64).step_by(997) {
        assert_eq!(map.get(&mut client, &key.to_le_bytes(), &mut into).unwrap(), Some(1), "key {key}");
    }
    assert_eq!(map.get(&mut client, &1_000_000_u64.to_le_bytes(), &mut into).unwrap(), None);
}
