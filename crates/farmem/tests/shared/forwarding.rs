//! How a DPU that is a process of its own forwards (SODA IV-B): what is counted over real sockets.

use super::dpu::{check, client, rack, reading, run, written};
use super::rig::TestRack;
use farmem::window::{CHUNK, WindowOptions};
use farmem::{ClientOptions, Op, Rack, VirtAddr};
use std::num::NonZero;

/// Pages of 64 KiB, each of which is sixteen packets, and nothing cached.
const CHUNKS: &str = "[dpu]\npage = \"64 KiB\"\nentry = \"256 KiB\"\ncache = \"1 MiB\"\ncaching = \"off\"\n";
/// Calls for a chunk at most: its packets come in three datagrams, since the first and the last are longer than those between, and a receive may end between any two.
const CALLS_MAX: u64 = 3;

/// A window reads chunks of sixteen packets each. Their bytes land in its file by three calls for each chunk at most, and not by sixteen, and they are copied nowhere.
#[test]
fn chunks_land_by_few_calls() {
    let rack = rack("udp", CHUNKS);
    let mut client = client(&rack, "calls");
    let vma = written(&mut client, 5);
    let options = WindowOptions { chunk: CHUNK, local_limit: 1 << 20, ..reading() };
    let Some(((), stats)) = run(&mut client, &vma, options, |memory| check(&memory, 5)) else { return };
    let carried = stats.carried.expect("a DPU says what it did");
    assert_eq!(carried.requests, 2 << 20 >> 16, "{carried:?}");
    assert_eq!((carried.moves, carried.copies), (carried.requests, 0), "{carried:?}");
    assert!(carried.calls <= CALLS_MAX * carried.requests, "{carried:?}");
    eprintln!("{} chunks of 16 packets landed by {} calls", carried.requests, carried.calls);
}

/// READs of a connection that a node answers at once, at most.
const DEPTH: u64 = 16;
const READS: u64 = 4 * DEPTH;
const LEN: u64 = 4096;

/// The most READs that a client had under way at once, of many that it asked for together, over a link on which each takes 10 ms to the node.
fn most_under_way(rack: &TestRack, connections: u16) -> u64 {
    let mut config = rack.config.clone();
    config.link = "delay=10ms".parse().unwrap();
    let connections = NonZero::new(connections).unwrap();
    let options = ClientOptions { connections, ..ClientOptions::default() };
    let mut client = Rack::running(config).client_with("far", options).unwrap();
    let vma = client.allocate(READS * LEN).unwrap();
    let numbered: Vec<u8> = (0..READS * LEN).map(|at| (at / LEN).to_le_bytes()[0]).collect();
    client.write(vma.base, &numbered).unwrap();
    let mut most = 0;
    // The first round has connections set up that are wanted.
    for _ in 0..2 {
        let (before, _) = client.packets();
        for at in 0..READS {
            let buf = client.buffer(usize::try_from(LEN).unwrap());
            client.submit(Op::Read { addr: VirtAddr(vma.base.0 + at * LEN), buf }).unwrap();
        }
        let mut read = 0;
        while let Some(done) = client.next_completed().unwrap() {
            // A request is a packet; one that ended is not under way any more.
            most = most.max(client.packets().0 - before - read);
            done.result.unwrap();
            assert!(done.buf.iter().all(|byte| *byte == done.buf[0]) && u64::from(done.buf[0]) < READS);
            read += 1;
            client.recycle(done.buf);
        }
        assert_eq!(read, READS);
    }
    most
}

/// PROTOCOL 11.16: one connection has sixteen READs under way, however long the way is; four have more.
#[test]
fn several_connections_have_more_under_way_where_the_way_is_long() {
    let rack = TestRack::start_with("udp", 1, "");
    let [one, four] = [1, 4].map(|connections| most_under_way(&rack, connections));
    assert_eq!(one, DEPTH);
    assert!(four > one, "{four} by four connections");
    eprintln!("READs under way at once: {one} by one connection, {four} by four");
}
