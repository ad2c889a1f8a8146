//! A node that does not answer: operations wait for it as long as the host has patience, and a node that started
//! again is found out before that.

use super::{ALICE, BASE_1, Bench, RETRIES_MAX, TIMEOUT, config, connection, read, write};
use crate::connections::DOUBT_RETRIES;
use crate::{Config, Connection, ControlRequestKind, Failure, HostRequest, Reply};
use core::mem::take;
use farmem_machine::Duration;
use farmem_transport::rc;
use farmem_wire::{NodeId, VirtAddr};

const PATIENCE: Duration = Duration::from_secs(60);

fn patient() -> Bench {
    Bench::new(Config { patience: PATIENCE, ..config() })
}

/// A connection to node 1 that bears as many retries as a minute has.
fn connected(bench: &mut Bench) -> Connection {
    let mut patient = connection(ALICE, 1, 1);
    patient.rc.retries_max = 10 * DOUBT_RETRIES;
    bench.ask(HostRequest::Connect(patient));
    patient
}

/// No connection can be set up for a minute. The operation waits, a connection is asked for twice a second, and
/// the operation fails when patience is over. The next one asks once, and fails at once.
#[test]
fn operations_wait_for_a_connection() {
    let mut bench = patient();
    let (node, base) = (NodeId(1), VirtAddr(BASE_1));
    bench.ask(HostRequest::Node { domain: ALICE, node, base, len: 4096 });
    let unreachable = Err(Failure::Unreachable { addr: base });
    let kind = ControlRequestKind::Connect { domain: ALICE, node };
    bench.submit(write(BASE_1, b"x"));
    let mut asked = 0;
    while bench.done.is_empty() {
        bench.reply(kind, Reply::Unavailable);
        asked += 1;
        if bench.done.is_empty() {
            bench.wake();
        }
    }
    assert_eq!(asked, 121, "once at first, and then twice a second");
    assert_eq!(bench.ended().result, unreachable);
    bench.submit(read(BASE_1, 1));
    bench.reply(kind, Reply::Unavailable);
    assert_eq!(bench.ended().result, unreachable);
    // The node is there again: what is wanted then is done.
    bench.submit(read(BASE_1, 1));
    assert_eq!(bench.kind(), kind);
    take(&mut bench.control_requests);
    bench.ask(HostRequest::Connect(connection(ALICE, 1, 1)));
    assert_eq!((bench.done.len(), bench.sent.is_empty()), (0, false), "it is sent");
}

/// There is no such node, or the control plane has no room: waiting would not help.
#[test]
fn a_refusal_ends_the_wait() {
    let mut bench = patient();
    let (node, base) = (NodeId(1), VirtAddr(BASE_1));
    bench.ask(HostRequest::Node { domain: ALICE, node, base, len: 4096 });
    bench.submit(read(BASE_1, 1));
    bench.reply(ControlRequestKind::Connect { domain: ALICE, node }, Reply::NotFound);
    assert_eq!(bench.ended().result, Err(Failure::Unreachable { addr: base }));
}

/// A node is silent. After each so many retries the host asks how often the node has joined, and goes on while
/// that is as before, or nobody knows. When the node has joined again, the connection ends as after its last retry.
#[test]
fn a_node_that_started_again_is_found_out() {
    let mut bench = patient();
    let to = connected(&mut bench);
    bench.submit(write(BASE_1, b"x"));
    let kind = ControlRequestKind::NodeGeneration { node: NodeId(1) };
    for reply in [Reply::NodeGeneration(to.generation), Reply::Unavailable] {
        let begun = bench.now;
        while bench.control_requests.is_empty() {
            bench.wake();
        }
        assert_eq!(bench.now.since(begun), TIMEOUT.times(DOUBT_RETRIES.into()));
        bench.reply(kind, reply);
        assert_eq!(bench.done.len(), 0, "it goes on");
    }
    while bench.control_requests.is_empty() {
        bench.wake();
    }
    bench.reply(kind, Reply::NodeGeneration(to.generation + 1));
    bench.reply(ControlRequestKind::Locate { addr: VirtAddr(BASE_1) }, Reply::NotFound);
    let failed = Err(Failure::Connection(rc::Failure::RetriesExceeded));
    assert_eq!(bench.ended().result, failed);
}

/// Without patience a silent node is asked about by nobody, and its connection breaks after its retries.
#[test]
fn a_host_without_patience_asks_nothing() {
    let mut bench = Bench::new(config());
    connected(&mut bench);
    bench.submit(write(BASE_1, b"x"));
    while bench.control_requests.is_empty() {
        bench.wake();
    }
    assert_eq!(bench.kind(), ControlRequestKind::Locate { addr: VirtAddr(BASE_1) });
    assert!(bench.now.since(farmem_machine::Instant::ZERO) > TIMEOUT.times(RETRIES_MAX.into()));
}
