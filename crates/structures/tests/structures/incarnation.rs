//! A restarted memory node has lost its contents. Every kind of access to the lost bytes fails with an error
//! until the owner accepts the loss (PROTOCOL 7.43, 9.8, 9.19). No access crosses from one allocation into
//! the next (PROTOCOL 7.45).

use farmem_client::{Client, Error, NodeId, Op, Policy, Program, Rack, VirtAddr, Vma};
use farmem_structures::Layout;
use farmem_structures::btree::BTree;
use farmem_structures::hash_table::{HashTable, Key, Spread, VALUE_LEN};
use farmem_structures::list::List;
use farmem_structures::series::{Point, Series};

const PAGE: u64 = 4096;
const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);

/// Adds to the first word of each node of a chain of {value, next}, and counts the nodes.
const LIST_ADD: &str = include_str!("../../../../testdata/programs/list_add.pulse");

fn at(base: VirtAddr, offset: u64) -> VirtAddr {
    VirtAddr(base.0 + offset)
}

/// Returns the lost range that an operation's error names: first address and bytes.
fn lost<T: std::fmt::Debug>(result: Result<T, Error>) -> (VirtAddr, u64) {
    match result {
        Err(error @ Error::MemoryLost { base, len }) => {
            assert!(error.to_string().contains(&base.to_string()), "{error} names the address");
            assert!(error.remedy().contains("accept_lost"), "{}", error.remedy());
            (base, len)
        }
        other => panic!("{other:?} is no lost memory"),
    }
}

/// Creates a rack of two nodes, a client, and an allocation of eight pages on each, full of ones.
fn written() -> (Rack, Client, Vma, Vma) {
    let rack = Rack::embedded_with(2, 1 << 20).unwrap();
    let mut client = rack.client("d").unwrap();
    let (one, two) = (client.allocate_on(8 * PAGE, ONE).unwrap(), client.allocate_on(8 * PAGE, TWO).unwrap());
    for vma in [one, two] {
        client.write(vma.base, &vec![1; 8 * 4096]).unwrap();
    }
    (rack, client, one, two)
}

/// Every access to bytes of the restarted node fails with the accessed addresses, even if only its end lies
/// there, for all earlier connections. The other node's bytes are intact.
#[test]
fn every_access_to_lost_memory_is_told() {
    let (rack, mut client, one, two) = written();
    let mut other = rack.client("d").unwrap();
    rack.restart_node(ONE).unwrap();
    let base = one.base;
    for client in [&mut client, &mut other] {
        let mut bytes = [7; 100];
        assert_eq!(lost(client.read(at(base, 50), &mut bytes)), (at(base, 50), 100));
        assert_eq!(bytes, [7; 100], "nothing was read");
        assert_eq!(lost(client.write(at(base, 9), &[2; 30])), (at(base, 9), 30));
        assert_eq!(lost(client.fetch_add(at(base, 16), 1)), (at(base, 16), 8));
        assert_eq!(lost(client.compare_swap(at(base, 16), 0, 1)), (at(base, 16), 8));
        assert_eq!(lost(client.region_read(at(base, 8), &mut bytes)), (at(base, 8), 100));
        assert_eq!(lost(client.region_write(at(base, 8), &[3; 20])), (at(base, 8), 20));
        client.read(two.base, &mut bytes).unwrap();
        assert_eq!(bytes, [1; 100]);
    }
    let program = Program::assemble(LIST_ADD).unwrap();
    assert_eq!(lost(client.traverse(&program, base, vec![0; program.scratch_len()], 9)), (base, 16));
    let mut chain = [0; 16];
    chain[8..].copy_from_slice(&at(base, 32).0.to_le_bytes());
    client.write(two.base, &chain).unwrap();
    let walked = client.traverse(&program, two.base, vec![0; program.scratch_len()], 9);
    assert_eq!(lost(walked), (at(base, 32), 16), "where it came to");

    // One page is accepted: it reads as zeros for all clients. Accesses that continue after it still fail.
    other.accept_lost(at(base, PAGE), PAGE).unwrap();
    let mut page = vec![9; 4096];
    client.read(at(base, PAGE), &mut page).unwrap();
    assert!(page.iter().all(|&byte| byte == 0));
    client.write(at(base, PAGE), &[5; 4096]).unwrap();
    assert_eq!(lost(client.read(at(base, PAGE + 4000), &mut page)), (at(base, 2 * PAGE), 4000));
    assert_eq!(lost(client.read(at(base, 4000), &mut page)), (at(base, 4000), 96));
    client.accept_lost(base, 8 * PAGE).unwrap();
    let mut all = vec![9; 8 * 4096];
    client.read(base, &mut all).unwrap();
    assert!(all[4096..8192].iter().all(|&byte| byte == 5), "what was written since is there");
    assert!(all[..4096].iter().chain(&all[8192..]).all(|&byte| byte == 0));
    assert_eq!(client.fetch_add(base, 1).unwrap(), 0);
}

/// Operations in flight together with a refused one are valid and execute.
#[test]
fn what_was_asked_beside_goes_on() {
    let (rack, mut client, one, _) = written();
    rack.restart_node(ONE).unwrap();
    lost(client.read(one.base, &mut [0]));
    client.accept_lost(at(one.base, PAGE), 7 * PAGE).unwrap();
    let tickets: Vec<_> = (0..8)
        .map(|page| {
            let buf = vec![page; 64];
            client.submit(Op::Write { addr: at(one.base, u64::from(page) * PAGE), buf }).unwrap()
        })
        .collect();
    for (page, ticket) in (0..).zip(tickets) {
        let result = client.wait(ticket).unwrap().result;
        if page == 0 {
            assert_eq!(lost(result), (one.base, 64));
        } else {
            result.unwrap_or_else(|error| panic!("page {page}: {error}"));
        }
    }
    for page in 1..8 {
        let mut bytes = [0; 64];
        client.read(at(one.base, u64::from(page) * PAGE), &mut bytes).unwrap();
        assert_eq!(bytes, [page; 64]);
    }
}

/// The location of the bytes decides. Pages that had moved away are intact; pages that had moved to the node
/// are lost. Lost pages may move and stay lost.
#[test]
fn pieces_are_lost_where_they_were() {
    let (rack, mut client, one, two) = written();
    client.migrate(at(one.base, 2 * PAGE), 2 * PAGE, TWO).unwrap();
    client.migrate(two.base, PAGE, ONE).unwrap();
    let mut bytes = [0; 64];
    for addr in [at(one.base, 2 * PAGE), two.base] {
        client.read(addr, &mut bytes).unwrap(); // it knows where they are now
    }
    rack.restart_node(ONE).unwrap();
    client.read(at(one.base, 3 * PAGE), &mut bytes).unwrap();
    assert_eq!(bytes, [1; 64]);
    assert_eq!(lost(client.read(two.base, &mut bytes)), (two.base, 64));
    let mut whole = vec![0; 8 * 4096];
    assert_eq!(lost(client.read(one.base, &mut whole)), (one.base, 2 * PAGE));

    client.migrate(one.base, 2 * PAGE, TWO).unwrap();
    client.migrate(two.base, PAGE, TWO).unwrap();
    assert_eq!(lost(client.read(at(one.base, 8), &mut bytes)), (at(one.base, 8), 64));
    assert_eq!(lost(client.write(two.base, &[4; 8])), (two.base, 8));
    client.accept_lost(one.base, PAGE).unwrap();
    client.read(at(one.base, 8), &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64]);
    assert_eq!(lost(client.read(at(one.base, PAGE), &mut bytes)), (at(one.base, PAGE), 64));
}

/// Freed memory has no owner. The next owner of the addresses has lost nothing, even if the node restarts in
/// between.
#[test]
fn new_memory_is_zeros() {
    let (rack, mut client, one, _) = written();
    rack.restart_node(ONE).unwrap();
    lost(client.read(one.base, &mut [0]));
    client.free(one.base).unwrap();
    let again = client.allocate_on(8 * PAGE, ONE).unwrap();
    assert_eq!(again.base, one.base);
    let mut bytes = vec![1; 8 * 4096];
    client.read(again.base, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
    rack.restart_node(ONE).unwrap();
    lost(client.read(again.base, &mut [0]));
    client.free(again.base).unwrap();
    let third = client.allocate_on(PAGE, ONE).unwrap();
    client.read(third.base, &mut bytes[..4096]).unwrap();
}

/// No structure mistakes lost bytes for an end, a missing key, or other data.
#[test]
fn structures_say_that_their_memory_is_lost() {
    for policy in [Policy::Offload, Policy::Host] {
        let rack = Rack::embedded_with(1, 16 << 20).unwrap();
        let mut client = rack.client("d").unwrap();
        let key = |n: u64| Key::of(&n.to_le_bytes());
        let mut table = HashTable::create(&mut client, 200, 64, Spread::Partitioned).unwrap();
        let mut tree = BTree::create(&mut client, Layout::Partitioned).unwrap();
        let mut list = List::create(&mut client, Layout::Partitioned).unwrap();
        let mut series = Series::create(&mut client, Layout::Partitioned).unwrap();
        table.set_policy(policy);
        tree.set_policy(policy);
        list.set_policy(policy);
        series.set_policy(policy);
        for n in 1..100 {
            table.insert(&mut client, key(n), &[1; VALUE_LEN]).unwrap();
            tree.insert(&mut client, n, n).unwrap();
            list.push_front(&mut client, n).unwrap();
            series.append(&mut client, Point { time: n, value: 1 }).unwrap();
        }
        rack.restart_node(ONE).unwrap();
        lost(table.find(&mut client, key(1)));
        lost(table.insert(&mut client, key(1), &[2; VALUE_LEN]));
        lost(tree.find(&mut client, 1));
        lost(tree.insert(&mut client, 200, 1));
        lost(list.find(&mut client, 1));
        lost(list.sum(&mut client));
        lost(series.window(&mut client, ..));
    }
}

/// Two adjacent allocations of one domain: an access that begins in the first and ends in the second fails,
/// for every kind of access (PROTOCOL 7.45). Accesses inside one allocation work.
#[test]
fn no_access_goes_from_one_allocation_into_the_next() {
    let rack = Rack::embedded_with(2, 1 << 20).unwrap();
    let mut client = rack.client("d").unwrap();
    let (first, second) = (client.allocate_on(PAGE, ONE).unwrap(), client.allocate_on(PAGE, ONE).unwrap());
    assert_eq!(second.base, at(first.base, PAGE), "they touch");
    let edge = at(first.base, PAGE - 8);
    client.write(edge, &[1; 8]).unwrap();
    client.write(second.base, &[2; 8]).unwrap();
    let mut bytes = [0; 16];
    let out = |result: Result<(), Error>| match result {
        Err(Error::OutOfBounds { addr, len }) => assert_eq!((addr, len), (edge, 16)),
        other => panic!("{other:?} leaves its allocation"),
    };
    out(client.read(edge, &mut bytes));
    out(client.write(edge, &[9; 16]));
    out(client.region_read(edge, &mut bytes));
    out(client.region_write(edge, &[9; 16]));
    let program = Program::assemble(".stores\nst8 window[8], 9\nret\n").unwrap();
    let reading = Program::assemble("ld8 r2, window[8]\nret\n").unwrap();
    for program in [program, reading] {
        let stop = client.traverse(&program, edge, vec![], 1);
        let Err(Error::Traversal { addr, reason: farmem_client::TraversalStop::OutOfBounds }) = stop else {
            panic!("{stop:?} leaves its allocation")
        };
        assert_eq!(addr, edge);
    }
    client.read(edge, &mut bytes[..8]).unwrap();
    client.read(second.base, &mut bytes[8..]).unwrap();
    assert_eq!(bytes, [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2], "nothing was written");

    // The end of the first allocation is on another node: neither node sees more than its part.
    let wide = client.allocate_on(2 * PAGE, ONE).unwrap();
    let behind = client.allocate_on(2 * PAGE, ONE).unwrap();
    assert_eq!(behind.base, at(wide.base, 2 * PAGE));
    client.migrate(at(wide.base, PAGE), PAGE, TWO).unwrap();
    let mut page = vec![0; 4096];
    client.read(at(wide.base, 2048), &mut page).unwrap();
    let crossed = client.read(at(wide.base, PAGE + 2048), &mut page);
    assert!(matches!(crossed, Err(Error::OutOfBounds { .. })), "{crossed:?}");
    let mut three = vec![0; 3 * 4096];
    let crossed = client.read(wide.base, &mut three);
    assert!(matches!(crossed, Err(Error::OutOfBounds { .. })), "{crossed:?}");
}
