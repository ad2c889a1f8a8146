//! Memory that moves between the nodes of a rack while programs use it, by verbs and by traversals.

use farmem_client::{Answer, Error, NodeId, Op, PayloadSink, Program, Rack, SinkPart, VirtAddr};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const PAGE: u64 = 4096;
const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);

/// Adds to the first word of each node of a chain of {value, next}, and counts the nodes.
const LIST_ADD: &str = include_str!("../../../../testdata/programs/list_add.pulse");

fn at(base: VirtAddr, offset: u64) -> VirtAddr {
    VirtAddr(base.0 + offset)
}

/// A sink that takes bytes straight from packets.
#[derive(Debug)]
struct Array(Mutex<Vec<u8>>);

impl PayloadSink for Array {
    fn put(&self, offset: u64, pieces: &[&[u8]]) {
        let (at, bytes) = (usize::try_from(offset).unwrap(), pieces.concat());
        self.0.lock().unwrap()[at..at + bytes.len()].copy_from_slice(&bytes);
    }
}

/// All operations find their bytes at every location, including reads and writes that cross from one node to
/// another and back. A client that connected before the move learns of it by a refusal and follows.
#[test]
fn bytes_are_found_where_they_moved() {
    let rack = Rack::embedded_with(3, 1 << 20).unwrap();
    let mut client = rack.client("d").unwrap();
    let mut other = rack.client("d").unwrap();
    let vma = client.allocate_on(16 * PAGE, ONE).unwrap();
    let bytes: Vec<u8> = (0..16 * PAGE).map(|i| u8::try_from(i * 7 % 251).unwrap()).collect();
    client.write(vma.base, &bytes).unwrap();
    for (from, pages, to_node) in
        [(4, 4, TWO), (8, 1, NodeId(3)), (0, 16, TWO), (8, 1, ONE), (0, 16, NodeId(3)), (0, 16, ONE)]
    {
        other.migrate(at(vma.base, from * PAGE), pages * PAGE, to_node).unwrap();
        let parts = client.locate(vma.base).unwrap();
        assert_eq!(parts.iter().map(|part| part.size).sum::<u64>(), 16 * PAGE);
        for part in parts
            .iter()
            .filter(|part| (from * PAGE..(from + pages) * PAGE).contains(&(part.base.0 - vma.base.0)))
        {
            assert_eq!(part.node, to_node);
        }
        for user in [&mut client, &mut other] {
            let mut found = vec![0; bytes.len()];
            user.read(vma.base, &mut found).unwrap();
            assert!(found == bytes, "after {from} {pages} {to_node:?}");
            let mut some = vec![0; 9000];
            user.read(at(vma.base, 3 * PAGE + 17), &mut some).unwrap();
            assert!(some == bytes[3 * 4096 + 17..][..9000]);
            user.write(at(vma.base, 3 * PAGE + 17), &some).unwrap();
            // A read that copies from the packets of several nodes straight to its destination works as well.
            let array = Arc::new(Array(Mutex::new(vec![0; bytes.len()])));
            let to = SinkPart::new(Arc::clone(&array) as Arc<dyn PayloadSink>, bytes.len());
            let ticket = user.submit(Op::ReadTo { addr: vma.base, to }).unwrap();
            let ended = user.wait(ticket).unwrap();
            assert!(ended.result.is_ok() && ended.buf.is_empty());
            assert!(*array.0.lock().unwrap() == bytes, "after {from} {pages} {to_node:?}");
            user.region_read(at(vma.base, from * PAGE), &mut some[..100]).unwrap();
            assert!(some[..100] == bytes[usize::try_from(from * PAGE).unwrap()..][..100]);
        }
    }
    let Err(Error::Refused(_)) = client.migrate(vma.base, 100, TWO) else { panic!("no whole pages") };
    client.migrate(at(vma.base, 2 * PAGE), PAGE, TWO).unwrap();
    client.free(vma.base).unwrap();
    let mut byte = [0];
    assert!(matches!(client.read(at(vma.base, 2 * PAGE), &mut byte), Err(Error::NotMapped { .. })));
    assert!(matches!(other.read(vma.base, &mut byte), Err(Error::NotMapped { .. })));
    let vma = client.allocate_on(16 * PAGE, ONE).unwrap();
    for user in [&mut client, &mut other] {
        let mut found = vec![1; bytes.len()];
        user.read(vma.base, &mut found).unwrap();
        assert!(found.iter().all(|&byte| byte == 0), "new memory is zero, wherever the old one was");
    }
}

/// A page moves away and back before the client hears of a refusal. The page's old location then proves
/// nothing, and the client repeats the operation. A second refusal is believed.
#[test]
fn a_page_that_is_back_is_found() {
    let rack = Rack::embedded_with(2, 1 << 20).unwrap();
    let mut client = rack.client("d").unwrap();
    let mut mover = rack.client("d").unwrap();
    let vma = client.allocate_on(PAGE, ONE).unwrap();
    client.write(vma.base, &5u64.to_le_bytes()).unwrap();
    let mut tickets = Vec::new();
    mover.migrate(vma.base, PAGE, TWO).unwrap();
    for _ in 0..3 {
        tickets.push(client.submit(Op::FetchAdd { addr: vma.base, add: 1 }).unwrap());
    }
    mover.migrate(vma.base, PAGE, ONE).unwrap();
    for (ticket, old) in tickets.into_iter().zip(5..) {
        assert_eq!(client.wait(ticket).unwrap().result.unwrap(), Answer::Done { old });
    }
    let ticket = client.submit(Op::FetchAdd { addr: vma.base, add: 1 }).unwrap();
    mover.free(vma.base).unwrap();
    assert_eq!(client.wait(ticket).unwrap().result.unwrap(), Answer::Done { old: 8 }, "it was there in time");
    assert!(matches!(client.fetch_add(vma.base, 1), Err(Error::NotMapped { .. })));
}

/// Atomics, writes and storing traversals are in flight, many at once, while their pages move back and forth
/// between two nodes. Each executes exactly once: operations flushed with a connection continue where their
/// bytes are.
#[test]
fn an_operation_during_a_migration_is_executed_once() {
    let rack = Rack::embedded_with(2, 1 << 20).unwrap();
    let mut client = rack.client("d").unwrap();
    let mut mover = rack.client("d").unwrap();
    let vma = client.allocate_on(4 * PAGE, ONE).unwrap();
    let program = Program::assemble(LIST_ADD).unwrap();
    // A chain over all four pages, far from the counters.
    let node = |page: u64| at(vma.base, page * PAGE + 2048);
    for page in 0..4 {
        let next = if page == 3 { VirtAddr(0) } else { node(page + 1) };
        client.write(node(page), &[0u64.to_le_bytes(), next.0.to_le_bytes()].concat()).unwrap();
    }
    let (mut added, mut walks) = (BTreeMap::new(), 0u64);
    for round in 0..60u64 {
        let mut tickets = Vec::new();
        for i in 0..40u64 {
            let place = at(vma.base, (i % 4) * PAGE + 8 * (i % 3));
            *added.entry(place).or_insert(0) += 1 + i;
            tickets.push(client.submit(Op::FetchAdd { addr: place, add: 1 + i }).unwrap());
            let mark = at(vma.base, (i % 4) * PAGE + 1024 + 8 * i);
            tickets.push(client.submit(Op::Write { addr: mark, buf: round.to_le_bytes().to_vec() }).unwrap());
            tickets.push(client.submit(Op::Read { addr: mark, buf: vec![0; 8] }).unwrap());
        }
        let (cur_ptr, scratch) = (node(0), [1u64, 0].map(u64::to_le_bytes).concat());
        tickets.push(
            client.submit(Op::Traverse { program: program.clone(), cur_ptr, scratch, limit: 100 }).unwrap(),
        );
        walks += 1;
        let page = round % 4;
        let to = if round / 4 % 2 == 0 { TWO } else { ONE };
        mover.migrate(at(vma.base, page * PAGE), PAGE, to).unwrap();
        for (count, ticket) in tickets.into_iter().enumerate() {
            let done = client.wait(ticket).unwrap();
            done.result.unwrap_or_else(|error| panic!("round {round}, operation {count}: {error}"));
            if count < 120 && count % 3 == 2 {
                assert_eq!(done.buf, round.to_le_bytes(), "round {round}, operation {count}");
            }
        }
    }
    for (place, sum) in added {
        let mut word = [0; 8];
        client.read(place, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), sum, "{place:?}");
    }
    for page in 0..4 {
        let mut word = [0; 8];
        client.read(node(page), &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), walks, "each walk counted each node once");
    }
}
