//! Tests of far records with concurrent writers on racks of processes. A memory node reads the packets of one
//! READ at different moments. A record that a reader accepts is nevertheless complete.

use crate::rack::Description;
use farmem::heap::{Heap, HeapOptions};
use farmem::table::Table;
use farmem::{Client, NodeId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Number of writes of each writer.
const WRITES: u32 = 150;
const KEYS: u32 = 8;

#[test]
fn torn_reads_are_noticed_over_udp() {
    torn_reads_are_noticed("udp");
}

#[test]
fn torn_reads_are_noticed_over_shared_memory() {
    torn_reads_are_noticed("shm");
}

/// One program overwrites a record of 64 KiB and the values of a table, each with copies of one number. Two
/// other programs read both, and replace their own value. Each content has one number, no older number
/// follows a newer one, and the last number is found.
fn torn_reads_are_noticed(transport: &'static str) {
    let description = Description::new("records", transport);
    let mut up = description.up();
    let mut client = description.client("records");
    let mut heap = Heap::create(&mut client, "heap", HeapOptions::default()).unwrap();
    let table = Table::create(&mut client, &mut heap, "table", 1).unwrap();
    let len = 64 << 10;
    let record = heap.put_on(&mut client, NodeId(1), 9, &content(0, len)).unwrap();
    let ended = AtomicBool::new(false);
    let (description, ended) = (&description, &ended);
    let reader = |own: u32| {
        let (mut client, mut heap, table) = opened(description);
        let own = (KEYS + own).to_le_bytes();
        let (mut last, mut seen, mut reads) = (0, [0; KEYS as usize], 0);
        while reads == 0 || !ended.load(Ordering::Acquire) {
            let (_, bytes) = heap.read(&mut client, record).unwrap();
            assert_eq!(bytes.len(), len);
            last = number_of(&bytes, last);
            for key in 0..KEYS {
                let value = table.get(&mut client, &mut heap, &key.to_le_bytes()).unwrap();
                if let Some(value) = value {
                    let number = number_of(&value, seen[key as usize]);
                    assert_eq!(value.len(), value_len(key, number));
                    seen[key as usize] = number;
                }
            }
            // The reader also writes in the same buckets.
            let before = table.insert(&mut client, &mut heap, &own, &content(reads + 1, 700)).unwrap();
            assert_eq!(before, (reads > 0).then(|| content(reads, 700)));
            reads += 1;
        }
        assert_eq!(table.get(&mut client, &mut heap, &own).unwrap(), Some(content(reads, 700)));
        let (_, bytes) = heap.read(&mut client, record).unwrap();
        assert_eq!(number_of(&bytes, last), WRITES);
        for key in 0..KEYS {
            let value = table.get(&mut client, &mut heap, &key.to_le_bytes()).unwrap();
            assert_eq!(value, Some(content(WRITES, value_len(key, WRITES))));
        }
        heap.close(&mut client).unwrap();
        reads
    };
    thread::scope(|scope| {
        let readers = [0, 1].map(|own| scope.spawn(move || reader(own)));
        for number in 1..=WRITES {
            heap.write(&mut client, record, 9, &content(number, len)).unwrap();
            for key in 0..KEYS {
                let value = content(number, value_len(key, number));
                table.insert(&mut client, &mut heap, &key.to_le_bytes(), &value).unwrap();
            }
        }
        ended.store(true, Ordering::Release);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
    table.destroy(&mut client, &mut heap).unwrap();
    heap.destroy(&mut client).unwrap();
    drop(client);
    assert!(up.is_whole(), "all roles are alive");
    up.stop();
}

fn opened(description: &Description) -> (Client, Heap, Table) {
    let mut client = description.client("records");
    let mut heap = Heap::open(&mut client, "heap", HeapOptions::default()).unwrap();
    let table = Table::open(&mut client, &mut heap, "table").unwrap();
    (client, heap, table)
}

fn content(number: u32, len: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// Returns the length of a value: some values lie in their nodes, some arrive with the node, some take their
/// own READ.
fn value_len(key: u32, number: u32) -> usize {
    4 + (key * 1009 + number * 37) as usize % [100, 3000, 20_000][key as usize % 3]
}

/// Returns the number of a content. The content must consist of one number, not older than `seen`.
fn number_of(bytes: &[u8], seen: u32) -> u32 {
    let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
    assert!(bytes == content(number, bytes.len()), "half of one write, half of another");
    assert!(number >= seen, "{number} after {seen}");
    number
}
