//! Forwarding by a DPU process (SODA IV-B): counts over real sockets.

use super::dpu::{check, client, rack, reading, run, written};
use super::rig::TestRack;
use farmem::window::{Ahead, CHUNK, WindowOptions};
use farmem::{Client, ClientOptions, Op, Rack, VirtAddr};
use std::num::NonZero;
use std::time::{Duration, Instant};

/// Pages of 64 KiB, each of which is sixteen packets, and no cache.
const CHUNKS: &str = "[dpu]\npage = \"64 KiB\"\nentry = \"256 KiB\"\ncache = \"1 MiB\"\ncaching = \"off\"\n";
/// Bound on the calls per chunk. Its packets come in three datagrams, since the first and the last are longer
/// than those between, and a receive may end between any two.
const CALLS_MAX: u64 = 3;

/// A window reads chunks of sixteen packets each. At most three calls per chunk, not sixteen, put the bytes
/// into the window's file, without a copy.
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

/// A window requests four chunks together through a DPU with two threads. One thread receives, and the other
/// puts the link's slots into the window's file: both at once, without a copy.
#[test]
fn threads_complete_without_a_copy() {
    let rack = rack("udp", &format!("{CHUNKS}threads = 2\n"));
    let mut client = client(&rack, "lent");
    let vma = written(&mut client, 5);
    let ahead = Ahead::Group(4);
    let options = WindowOptions { chunk: CHUNK, local_limit: 1 << 20, ahead, ..reading() };
    let Some(((), stats)) = run(&mut client, &vma, options, |memory| check(&memory, 5)) else { return };
    let carried = stats.carried.expect("a DPU says what it did");
    assert_eq!(carried.requests, 2 << 20 >> 16, "{carried:?}");
    assert_eq!((carried.moves, carried.copies), (carried.requests, 0), "{carried:?}");
    assert!(carried.passed > 0 && carried.calls <= CALLS_MAX * carried.requests, "{carried:?}");
    eprintln!(
        "of {} chunks another thread put {}, all by {} calls",
        carried.requests, carried.passed, carried.calls
    );
}

/// READs that a program submits together: four times as many as a node answers on one connection.
const READS: u64 = 64;
const LEN: u64 = 4096;
/// Connections of a domain to a node.
const CONNECTIONS: u16 = 4;
/// Bound on the rounds until the program has all its connections.
const ROUNDS: usize = 200;

/// A program far from its memory: each frame takes 10 ms to the node.
struct Far {
    client: Client,
    base: VirtAddr,
}

impl Far {
    fn new(rack: &TestRack, connections: u16) -> Self {
        let mut config = rack.config.clone();
        config.link = "delay=10ms".parse().unwrap();
        let connections = NonZero::new(connections).unwrap();
        let options = ClientOptions { connections, ..ClientOptions::default() };
        let mut client = Rack::running(config).client_with("far", options).unwrap();
        let base = client.allocate(READS * LEN).unwrap().base;
        let numbered: Vec<u8> = (0..READS * LEN).map(|at| (at / LEN).to_le_bytes()[0]).collect();
        client.write(base, &numbered).unwrap();
        Self { client, base }
    }

    /// Reads everything by READs submitted together.
    fn read_all(&mut self) {
        for at in 0..READS {
            let buf = self.client.buffer(usize::try_from(LEN).unwrap());
            self.client.submit(Op::Read { addr: VirtAddr(self.base.0 + at * LEN), buf }).unwrap();
        }
        let mut read = 0;
        while let Some(done) = self.client.next_completed().unwrap() {
            done.result.unwrap();
            assert!(done.buf.iter().all(|byte| *byte == done.buf[0]) && u64::from(done.buf[0]) < READS);
            read += 1;
            self.client.recycle(done.buf);
        }
        assert_eq!(read, READS);
    }
}

/// PROTOCOL 11.16: a program with more in flight than one connection carries gets as many as it may; a
/// program limited to one gets one. The host role's own tests count the load of each connection, in virtual
/// time.
#[test]
fn several_connections_are_set_up_where_one_is_full() {
    let rack = TestRack::start_with("udp", 1, "");
    for connections in [1, CONNECTIONS] {
        let mut far = Far::new(&rack, connections);
        let wanted = usize::from(connections) - 1;
        for _ in 0..ROUNDS {
            far.read_all();
            if far.client.extra_connections() == wanted {
                break;
            }
        }
        assert_eq!(far.client.extra_connections(), wanted);
        far.read_all();
    }
}

/// PROTOCOL 9.12 and 11.16: the control plane hangs when the first connection is full. READs continue, since
/// none waits for another connection. The request for one stays open after all READs have ended, and is
/// answered when the control plane continues.
#[test]
fn no_operation_waits_for_another_connection() {
    let rack = TestRack::start_with("udp", 1, "");
    let mut far = Far::new(&rack, CONNECTIONS);
    rack.send("control", "STOP");
    for _ in 0..3 {
        far.read_all();
    }
    assert_eq!(far.client.extra_connections(), 0);
    rack.send("control", "CONT");
    // No new request is sent, so this is the reply to the earlier one.
    let patience = Instant::now() + Duration::from_secs(30);
    while far.client.extra_connections() == 0 && Instant::now() < patience {
        assert!(far.client.poll().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(far.client.extra_connections(), 1);
    far.read_all();
}
