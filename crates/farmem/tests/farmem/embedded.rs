//! A rack in one process from a user's view: verbs, errors, traversals, the hash table.

use farmem::hash_table::{HashTable, Key, Spread, VALUE_LEN};
use farmem::{Error, NodeId, Op, Program, Rack, TraversalStop, VirtAddr, api};

fn rack() -> Rack {
    Rack::embedded_with(4, 16 << 20).unwrap()
}

/// Written bytes are read back, on every node, at any offset, across packets.
#[test]
fn bytes_come_back() {
    let mut client = rack().client("bytes").unwrap();
    for node in 1..=4 {
        let vma = client.allocate_on(1 << 20, NodeId(node)).unwrap();
        assert_eq!((vma.size, vma.node), (1 << 20, NodeId(node)));
        let data: Vec<u8> = (0..200_001_u32).map(|n| (n * 7 % 251) as u8).collect();
        let at = VirtAddr(vma.base.0 + 13);
        client.write(at, &data).unwrap();
        let mut back = vec![0; data.len()];
        client.read(at, &mut back).unwrap();
        assert!(back == data);
        let mut fresh = [1; 64];
        client.read(VirtAddr(vma.base.0 + (1 << 20) - 64), &mut fresh).unwrap();
        assert_eq!(fresh, [0; 64], "an allocation is zeroed");
    }
}

/// Atomics return the previous value and execute once.
#[test]
fn atomics_count() {
    let mut client = rack().client("atomics").unwrap();
    let word = client.allocate(4096).unwrap().base;
    for n in 0..100 {
        assert_eq!(client.fetch_add(word, 3).unwrap(), 3 * n);
    }
    assert_eq!(client.compare_swap(word, 1, 9).unwrap(), 300, "no match, no change");
    assert_eq!(client.compare_swap(word, 300, 9).unwrap(), 300);
    assert_eq!(client.fetch_add(word, 0).unwrap(), 9);
}

/// Each wrong access fails with a specific error, and the client keeps working.
#[test]
fn wrong_accesses_are_named() {
    let rack = rack();
    let mut client = rack.client("owner").unwrap();
    let vma = client.allocate(4096).unwrap();
    let mut bytes = [0; 16];
    let check = |client: &mut farmem::Client, expected: &str, result: Result<(), Error>| {
        let error = result.unwrap_err();
        assert!(error.to_string().contains(expected), "{error} does not say {expected:?}");
        assert!(!error.remedy().is_empty(), "{error}");
        client.write(vma.base, b"still here").unwrap();
    };
    let result = client.read(VirtAddr(0x10), &mut bytes);
    check(&mut client, "not mapped", result);
    let result = client.read(VirtAddr(vma.base.0 + (8 << 20)), &mut bytes);
    check(&mut client, "not mapped", result);
    let result = client.read(VirtAddr(vma.base.0 + 4090), &mut bytes);
    check(&mut client, "leave the allocation", result);
    let result = client.fetch_add(VirtAddr(vma.base.0 + 4), 1).map(drop);
    check(&mut client, "multiple of 8", result);
    let result = client.region_read(VirtAddr(vma.base.0 + (8 << 20)), &mut bytes);
    check(&mut client, "not mapped", result);
    let result = client.region_write(vma.base, &[0; 5000]);
    check(&mut client, "5000 bytes are more than", result);
    let result = client.free(VirtAddr(vma.base.0 + 64));
    check(&mut client, "", result);
    let result = client.allocate(1 << 40).map(drop);
    check(&mut client, "", result);

    let mut stranger = rack.client("stranger").unwrap();
    assert!(stranger.read(vma.base, &mut bytes).is_err());
    assert!(matches!(stranger.free(vma.base).unwrap_err().code(), Some(api::ErrorCode::NotOwner)));
    client.grant(vma.base, 4096, "stranger", api::PermName::Read).unwrap();
    stranger.read(vma.base, &mut bytes).unwrap();
    assert!(matches!(stranger.write(vma.base, &bytes), Err(Error::NoPermission { .. })));
    client.free(vma.base).unwrap();
    assert!(matches!(stranger.read(vma.base, &mut bytes), Err(Error::NotMapped { .. })), "freed");
    assert!(matches!(client.read(vma.base, &mut bytes), Err(Error::NotMapped { .. })), "freed");
}

/// Many operations are in flight at once; each completes once, under its own ticket.
#[test]
fn operations_overlap() {
    let mut client = rack().client("overlap").unwrap();
    let vma = client.allocate(1 << 16).unwrap();
    let mut open = std::collections::BTreeSet::new();
    for n in 0..1000_u64 {
        let addr = VirtAddr(vma.base.0 + n % 512 * 64);
        let op = if n % 2 == 0 { Op::FetchAdd { addr, add: 1 } } else { Op::Read { addr, buf: vec![0; 64] } };
        open.insert(client.submit(op).unwrap());
    }
    while let Some(completed) = client.next_completed().unwrap() {
        assert!(open.remove(&completed.ticket), "ended twice");
        completed.result.unwrap();
    }
    assert!(open.is_empty());
}

/// One traversal sums a list of three nodes on three memory nodes. A broken pointer is reported with its
/// address.
#[test]
fn a_traversal_crosses_nodes() {
    let mut client = rack().client("list").unwrap();
    let program = Program::assemble(include_str!("../../../../testdata/programs/list_sum.pulse")).unwrap();
    let nodes: Vec<VirtAddr> = (1..=3).map(|n| client.allocate_on(4096, NodeId(n)).unwrap().base).collect();
    let put = |client: &mut farmem::Client, at: VirtAddr, value: u64, next: u64| {
        client.write(at, &[value.to_le_bytes(), next.to_le_bytes()].concat()).unwrap();
    };
    put(&mut client, nodes[0], 100, nodes[1].0);
    put(&mut client, nodes[1], 20, nodes[2].0);
    put(&mut client, nodes[2], 3, 0);
    let scratch = vec![0; program.scratch_len()];
    let traversal = client.traverse(&program, nodes[0], scratch.clone(), 1000).unwrap();
    assert!(traversal.end.returned);
    assert_eq!(traversal.end.iterations, 3);
    let words: Vec<u64> =
        traversal.scratch.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
    assert!(words.contains(&123), "{words:?}");

    let cut = client.traverse(&program, nodes[0], scratch.clone(), 2).unwrap();
    assert!(!cut.end.returned, "the limit stops it");
    assert_eq!((cut.end.iterations, cut.end.cur_ptr), (2, nodes[2]));
    let rest = client.traverse(&program, cut.end.cur_ptr, cut.scratch, 1000).unwrap();
    assert_eq!(rest.scratch, traversal.scratch, "and its state continues it");

    put(&mut client, nodes[2], 3, 0xdead_0000);
    let broken = client.traverse(&program, nodes[0], scratch, 1000).unwrap_err();
    let Error::Traversal { addr, reason: TraversalStop::NotMapped } = broken else { panic!("{broken}") };
    assert_eq!(addr, VirtAddr(0xdead_0000));
}

/// The hash table against a plain map: loaded and inserted, by READs and by traversals, chains on one node
/// and on all.
#[test]
fn the_hash_table_is_a_map() {
    for spread in [Spread::Partitioned, Spread::Scattered] {
        let mut client = rack().client("table").unwrap();
        let mut table = HashTable::create(&mut client, 3000, 256, spread).unwrap();
        let value = |n: u64| {
            let mut value = [0; VALUE_LEN];
            value[..8].copy_from_slice(&n.to_le_bytes());
            value
        };
        let key = |n: u64| Key::of(&n.to_be_bytes());
        table.load(&mut client, (0..2000).map(|n| (key(n), value(n))), &mut |_, _| {}).unwrap();
        for n in 1500..2500 {
            table.insert(&mut client, key(n), &value(n + 1_000_000)).unwrap();
        }
        for n in 0..3000 {
            let expected = match n {
                0..1500 => Some(value(n)),
                1500..2500 => Some(value(n + 1_000_000)),
                _ => None,
            };
            assert_eq!(table.find(&mut client, key(n)).unwrap(), expected, "{spread:?} {n}");
            assert_eq!(table.find_by_reads(&mut client, key(n)).unwrap(), expected, "{spread:?} {n}");
        }
        table.destroy(&mut client).unwrap();
    }
}

/// If a later memory node has no room for a table, the memory of the earlier ones is freed. Impossible sizes
/// are refused, too.
#[test]
fn a_table_without_room_keeps_nothing() {
    let mut client = rack().client("table").unwrap();
    let fill = client.allocate_on(16 << 20, NodeId(3)).unwrap();
    for (entries, buckets) in [(10, 10), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)] {
        let error = HashTable::create(&mut client, entries, buckets, Spread::Partitioned).unwrap_err();
        assert_eq!(error.code(), Some(api::ErrorCode::OutOfMemory), "{error}");
        let vmas = client.overview().unwrap().vmas;
        assert_eq!(vmas.len(), 1, "{vmas:?}");
    }
    client.free(fill.base).unwrap();
    HashTable::create(&mut client, 10, 10, Spread::Partitioned).unwrap();
    let mut empty = Rack::embedded_with(0, 4096).unwrap().client("empty").unwrap();
    let error = HashTable::create(&mut empty, 10, 10, Spread::Partitioned).unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert_eq!(empty.allocate(1).unwrap_err().code(), Some(api::ErrorCode::Unavailable));
}

/// A corrupt chain that forms a circle ends every look-up and every insert with an error.
#[test]
fn a_circle_in_a_chain_is_noticed() {
    let mut client = rack().client("circle").unwrap();
    let mut table = HashTable::create(&mut client, 10, 1, Spread::Partitioned).unwrap();
    let key = |n: u8| Key::of(&[n]);
    table.insert(&mut client, key(0), &[0; VALUE_LEN]).unwrap();
    let bucket = table.bucket(key(0));
    client.write(VirtAddr(bucket.0 + 16), &bucket.0.to_le_bytes()).unwrap();
    let other = (1..=255).find(|&n| table.bucket(key(n)) == bucket).unwrap();
    let stalled = |error: Error| matches!(error, Error::Traversal { reason: TraversalStop::Stalled, .. });
    assert!(stalled(table.find_by_reads(&mut client, key(other)).unwrap_err()));
    assert!(stalled(table.insert(&mut client, key(other), &[1; VALUE_LEN]).unwrap_err()));
    assert!(stalled(table.find(&mut client, key(other)).unwrap_err()), "not as a key that is missing");
    assert_eq!(table.find(&mut client, key(0)).unwrap(), Some([0; VALUE_LEN]), "what comes before is found");
}
