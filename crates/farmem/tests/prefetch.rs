//! Preventive prefetching on a whole rack: a program's clients ask in RESP, records lie in a table, a driver fetches them before the program looks.

use farmem::heap::HeapOptions;
use farmem::prefetch::parse::resp::Resp;
use farmem::prefetch::tap::{Tap, TapConnection, tap};
use farmem::prefetch::{
    Beside, Change, Config, Copy, Driver, FLOORS, KeySecret, KeySet, LocalZone, Position,
};
use farmem::table::Ahead;
use farmem::{Client, HashTable, Heap, LookUp, Rack, Table, hash_table};

const SECRET: KeySecret = KeySecret([17, 4791]);

/// A program with a table in far memory; it holds nothing of it.
struct Program {
    client: Client,
    heap: Heap,
    table: Table,
    beside: Beside,
    zone: LocalZone,
    tap: Tap,
    connection: TapConnection,
    position: Position,
}

type Beside1 = Driver<KeySet, Ahead, LocalZone>;

fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    words.iter().for_each(|word| bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes()));
    bytes
}

impl Program {
    /// A program and its DPU on a rack.
    fn start(rack: &Rack, zone: usize) -> (Self, Beside1) {
        let mut client = rack.client("kv").unwrap();
        let mut heap = Heap::create(&mut client, "kv", HeapOptions::default()).unwrap();
        let table = Table::create(&mut client, &mut heap, "items", 1000).unwrap();
        let (tap, watch) = tap(1 << 16, SECRET);
        let beside = Beside::new(tap.clone(), SECRET, FLOORS, Change(0));
        let connection = tap.connection(Box::new(Resp::new())).unwrap();
        let zone = LocalZone::new(zone);
        let mut of_dpu = rack.client("kv").unwrap();
        let mut its_heap = Heap::open(&mut of_dpu, "kv", HeapOptions::default()).unwrap();
        let its_table = Table::open(&mut of_dpu, &mut its_heap, "items").unwrap();
        let driver = Driver::new(
            Config::DEFAULT,
            KeySet::new(10_000),
            (watch, &beside, Change(0)),
            of_dpu,
            Ahead::new(its_table, its_heap),
            zone.clone(),
        );
        let position = Position::UNKNOWN;
        (Self { client, heap, table, beside, zone, tap, connection, position }, driver)
    }

    /// Writes an item to far memory and gives its own copy up.
    fn flush(&mut self, key: &str, item: &[u8]) {
        let change = self.beside.change(key.as_bytes(), Copy::Gone);
        self.table.insert(&mut self.client, &mut self.heap, key.as_bytes(), &change.onto(item)).unwrap();
        self.beside.acknowledged(change);
    }

    fn receives(&mut self, words: &[&str]) {
        self.position = self.connection.received(&request(words));
    }

    /// Carries a GET out: from the zone, or by its own look-up; whether it was in the zone, and the item.
    fn get(&mut self, key: &str) -> (bool, Option<Vec<u8>>) {
        let key = key.as_bytes();
        let ahead = self.zone.take(key, |stamp| self.beside.good(key, stamp));
        let answer = match ahead {
            Some(item) => (true, Some(item.into_vec())),
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

/// Requests come in; before the program looks, what they need is in the zone: small items, ones of many lines, none of a key that is not there. What the program took it
/// holds: nothing is fetched a second time. Then it flushes, and gets the new item.
#[test]
fn items_are_there_before_the_program_looks() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let (mut program, mut driver) = Program::start(&rack, 100);
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

/// An item is in the zone, and the program flushes a newer one: the old item is not taken, whatever the DPU knows of it.
#[test]
fn an_item_from_before_a_flush_is_not_taken() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let (mut program, mut driver) = Program::start(&rack, 100);
    program.flush("k", b"old");
    driver.settle().unwrap();
    program.receives(&["GET", "k"]);
    driver.settle().unwrap();
    program.flush("k", b"new");
    // The DPU has not heard of it.
    assert_eq!(program.get("k"), (false, Some(b"new".to_vec())));
    driver.settle().unwrap();
}

/// Many keys of one request go in a few messages, and each is there.
#[test]
fn many_keys_go_in_a_few_messages() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let (mut program, mut driver) = Program::start(&rack, 1000);
    let keys: Vec<String> = (0..64).map(|n| format!("key{n}")).collect();
    keys.iter().for_each(|key| program.flush(key, b"value"));
    driver.settle().unwrap();
    let words: Vec<&str> = ["MGET"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    program.receives(&words);
    driver.settle().unwrap();
    assert_eq!(driver.prefetcher().stats().messages, 2);
    assert!(keys.iter().all(|key| program.get(key) == (true, Some(b"value".to_vec()))));
}

/// A zone that is too small, and a parser that is cut off: the program reads by itself, and each time has a cause.
#[test]
fn what_is_not_there_in_time_is_read() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let (mut program, mut driver) = Program::start(&rack, 1);
    program.flush("a", b"1");
    program.flush("b", b"2");
    driver.settle().unwrap();
    program.receives(&["MGET", "a", "b"]);
    driver.settle().unwrap();
    assert_eq!(program.get("a"), (false, Some(b"1".to_vec())));
    assert_eq!(program.get("b"), (true, Some(b"2".to_vec())));
    program.connection.received(b"*nonsense\r\n");
    program.receives(&["GET", "a"]);
    driver.settle().unwrap();
    assert_eq!(driver.seen().broken, 1);
    assert!(driver.seen().passed_over > 0);
    let account = driver.prefetcher().account();
    assert_eq!((account.used, account.wasted, account.missed()), (1, 1, 1), "{account:?}");
}

/// The same over the hash table of PULSE, whose values have 40 bytes.
#[test]
fn the_hash_table_is_looked_up_too() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let mut client = rack.client("map").unwrap();
    let mut map = HashTable::create(&mut client, 100, 64, hash_table::Spread::Partitioned).unwrap();
    let mut value: hash_table::Value = [0; hash_table::VALUE_LEN];
    value[..12].copy_from_slice(&Change(9).onto(b"item"));
    map.insert(&mut client, hash_table::Key::of(b"k"), &value).unwrap();
    let (tap, watch) = tap(1 << 16, SECRET);
    let beside = Beside::new(tap.clone(), SECRET, FLOORS, Change(9));
    let connection = tap.connection(Box::new(Resp::new())).unwrap();
    let zone = LocalZone::new(10);
    map.begin(&mut client).unwrap();
    let view = KeySet::new(10);
    let mut driver =
        Driver::new(Config::DEFAULT, view, (watch, &beside, Change(9)), client, map, zone.clone());
    connection.received(&request(&["GET", "k"]));
    connection.received(&request(&["GET", "none"]));
    driver.settle().unwrap();
    let item = zone.take(b"k", |stamp| beside.good(b"k", stamp)).unwrap();
    assert_eq!(item[..4], *b"item");
    assert_eq!(zone.take(b"none", |_| true), None);
}
