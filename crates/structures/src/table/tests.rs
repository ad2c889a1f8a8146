use super::*;
use crate::heap::HeapOptions;
use farmem_client::Rack;

/// Two keys of one hash are two keys: what the memory node takes for equal is told apart here. No two such keys are known, so a node is forged.
#[test]
fn keys_of_one_hash_are_told_apart() {
    let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("hash").unwrap();
    let mut heap = Heap::create(&mut client, "heap", HeapOptions::default()).unwrap();
    let table = Table::create(&mut client, &mut heap, "table", 32).unwrap();
    assert_eq!(table.insert(&mut client, &mut heap, b"key", b"old").unwrap(), None);
    let seen = table.look_up(&mut client, &mut heap, &Key::new(b"key").unwrap()).unwrap();
    // Another key in front of it, with its hash: in its node, and in a body.
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
