use super::*;
use crate::heap::HeapOptions;
use farmem_client::Rack;

/// Two keys with one hash are two keys: the memory node takes them for equal, and the host tells them apart.
/// No such pair is known, so the test forges a node.
#[test]
fn keys_of_one_hash_are_told_apart() {
    let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("hash").unwrap();
    let mut heap = Heap::create(&mut client, "heap", HeapOptions::default()).unwrap();
    let table = Table::create(&mut client, &mut heap, "table", 32).unwrap();
    assert_eq!(table.insert(&mut client, &mut heap, b"key", b"old").unwrap(), None);
    let seen = table.look_up(&mut client, &mut heap, &Key::new(b"key").unwrap()).unwrap();
    // Adds other keys with the same hash in front: one in its node, one in a body.
    let body = heap.put(&mut client, BODY, &pair(b"other", &[7; 500])).unwrap();
    let mut head = seen.head;
    for held in [Contents::Whole(pair(b"another", b"value")), Contents::Far(body.at)] {
        let (kind, content) = Node { next: head, hash: hash_of(b"key"), held }.content();
        head = heap.put(&mut client, kind, &content).unwrap().at.0;
    }
    assert_eq!(client.compare_swap(seen.bucket, seen.head, head).unwrap(), seen.head);
    assert_eq!(table.get(&mut client, &mut heap, b"key").unwrap(), Some(b"old".to_vec()));
    assert_eq!(table.insert(&mut client, &mut heap, b"key", b"new").unwrap(), Some(b"old".to_vec()));
    assert_eq!(table.get(&mut client, &mut heap, b"key").unwrap(), Some(b"new".to_vec()));
    let mut all = Vec::new();
    let mut iter = table.iter();
    while let Some(pairs) = iter.next(&mut client, &mut heap).unwrap() {
        all.extend(pairs);
    }
    all.sort();
    let expected: [(&[u8], &[u8]); 3] = [(b"another", b"value"), (b"key", b"new"), (b"other", &[7; 500])];
    let expected: Vec<(Vec<u8>, Vec<u8>)> = expected.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
    assert_eq!(all, expected);
    assert_eq!(table.remove(&mut client, &mut heap, b"key").unwrap(), Some(b"new".to_vec()));
    assert_eq!(table.get(&mut client, &mut heap, b"key").unwrap(), None);
}

/// A table's own record is checked against the memory: the bucket count fits the shards, the last bucket lies
/// in the domain's memory, and the shard count is in bounds. Previously any power of two passed as a bucket
/// count, and a look-up went astray or panicked.
#[test]
fn a_record_that_cannot_be_a_tables_is_refused() {
    let mut client = Rack::embedded_with(2, 16 << 20).unwrap().client("record").unwrap();
    let mut heap = Heap::create(&mut client, "heap", HeapOptions::default()).unwrap();
    let mut open = |buckets: u64, shards: &dyn Fn(&Table) -> Vec<u64>| {
        let table = Table::create(&mut client, &mut heap, "table", 512).unwrap();
        let content: Vec<u8> =
            [buckets].into_iter().chain(shards(&table)).flat_map(u64::to_le_bytes).collect();
        let said = heap.put(&mut client, KIND, &content).unwrap();
        heap.remove_root(&mut client, "table").unwrap();
        heap.set_root(&mut client, "table", ROOT_KIND, said.at).unwrap();
        let opened = Table::open(&mut client, &mut heap, "table").map(|table| table.buckets());
        heap.remove_root(&mut client, "table").unwrap();
        opened
    };
    let bases = |table: &Table| table.shards.iter().map(|(_, base)| base.0).collect::<Vec<_>>();
    assert_eq!(open(512, &bases).unwrap(), 512);
    for buckets in [1 << 63, 1 << 40, 1 << 23] {
        match open(buckets, &bases) {
            Err(Error::Count { what: "buckets of a table of records", have, .. }) => {
                assert_eq!(have as u64, buckets);
            }
            went => panic!("{buckets}: {went:?}"),
        }
    }
    // The memory nodes have this much memory, but the domain does not.
    let broken = open(1 << 21, &bases).unwrap_err();
    assert!(
        matches!(broken, Error::Broken { what: "the last buckets of a table of records", .. }),
        "{broken}"
    );
    let many = open(512, &|table| bases(table).repeat(SHARDS_MAX)).unwrap_err();
    assert!(matches!(many, Error::Count { what: "shards of a table of records", have: 2048, .. }), "{many}");
}
