//! Writing requests from before their node joined (PROTOCOL 6.26).

use super::*;
use crate::Reason;
use core::num::NonZero;
use farmem_wire::Status;
use farmem_wire::message::{Batch, Pair, PairBuf};

/// Node 1 as it joins again: another endpoint, as at every join.
const NODE_1_AGAIN: Peer = peer(Port::node(1), 0x1011, 0x1111_2222);

fn with_counter<'a>(message: &Message<'a>, counter: u32) -> Message<'a> {
    let header = Header { request: id(1, counter), ..message.header };
    Message { header, ..*message }
}

fn storing(cur_ptr: u64) -> Message<'static> {
    let mut message = traverse(1, cur_ptr, 9);
    if let Body::Traverse(state) = &mut message.body {
        state.program = STORING;
    }
    message
}

/// A name of a storing program (PROTOCOL 10.17).
const STORING: ProgramHash = ProgramHash([0x5b; 16]);

fn forwarded(scene: &mut Scene, message: &Message<'_>, to: Peer) {
    let (_, note) = scene.relayed(HOST_1.port, &frame(SESSION_1_10, message), to);
    let node = to.port.as_node().expect("a node");
    assert_eq!(note, Note::Forwarded { node: NodeId(node) });
}

fn outdated(scene: &mut Scene, message: &Message<'_>) {
    let note = scene.silent(HOST_1.port, &frame(SESSION_1_10, message));
    assert_eq!(note, Note::Dropped(Reason::Outdated), "{message:?}");
}

/// An attacker keeps a copy of a region write. The node restarts, and the owner accepts the lost bytes and
/// writes others. The attacker sends the copy: the node has forgotten the first execution and would overwrite
/// the new bytes. The switch has not forgotten. Later requests of the host, earlier reads, and requests to
/// the other node pass.
#[test]
fn a_captured_region_write_is_not_executed_after_the_node_s_restart() {
    let mut scene = Scene::rack();
    let captured = with_counter(&write(1, BASE_1, b"old"), 7);
    forwarded(&mut scene, &captured, NODE_1);
    forwarded(&mut scene, &captured, NODE_1);
    scene.update(&[add(NODE_1_AGAIN)]);
    outdated(&mut scene, &captured);
    outdated(&mut scene, &with_counter(&write(1, BASE_1, b"older"), 6));
    forwarded(&mut scene, &with_counter(&write(1, BASE_1, b"new"), 8), NODE_1_AGAIN);
    forwarded(&mut scene, &with_counter(&read(1, BASE_1, 8), 3), NODE_1_AGAIN);
    forwarded(&mut scene, &with_counter(&write(1, BASE_2, b"old"), 5), NODE_2);
    // A repeated endpoint is no other incarnation.
    scene.update(&[add(NODE_1_AGAIN)]);
    forwarded(&mut scene, &with_counter(&write(1, BASE_1, b"new"), 8), NODE_1_AGAIN);
}

/// The check covers storing traversals: those of the host, and those that another node continues.
#[test]
fn a_captured_traversal_that_stores_is_not_executed_after_the_node_s_restart() {
    let mut scene = Scene::rack();
    let captured = with_counter(&storing(BASE_2), 7);
    forwarded(&mut scene, &captured, NODE_2);
    scene.update(&[add(NODE_1_AGAIN)]);
    // Node 2 has remembered the outcome, and sends the continuation once more.
    let mut onward = stamped(&with_counter(&storing(BASE_1), 7), 10, 1);
    onward.header.hops = 5;
    let note = scene.silent(NODE_2.port, &frame(HOME, &onward));
    assert_eq!(note, Note::Dropped(Reason::Outdated));
    onward.header.request = id(1, 8);
    let (_, note) = scene.relayed(NODE_2.port, &frame(HOME, &onward), NODE_1_AGAIN);
    assert_eq!(note, Note::Continued { node: NodeId(1) });
    outdated(&mut scene, &with_counter(&storing(BASE_1), 7));
    let plain = with_counter(&traverse(1, BASE_1, 9), 7);
    forwarded(&mut scene, &plain, NODE_1_AGAIN);
}

/// The check covers batches, by all of their pairs.
#[test]
fn a_captured_batch_that_stores_is_not_executed_after_the_node_s_restart() {
    let mut scene = Scene::rack();
    let batch = |pairs: &PairBuf, first| {
        let header = Header::request(id(1, first), 4);
        let body = Body::Batch(Batch::of(&header, STORING, &[], pairs));
        payload(&Message { header, body })
    };
    let pair = |counter| Pair {
        counter,
        iterations: 0,
        cur_ptr: VirtAddr(BASE_1),
        limit: 64,
        status: Status::Ok,
        scratch: b"pad",
    };
    let mut pairs = PairBuf::default();
    [20, 22, 21].iter().for_each(|&counter| pairs.push(&pair(counter)));
    let captured = datagram(SESSION_1_10, &batch(&pairs, 20));
    let (_, note) = scene.relayed(HOST_1.port, &captured, NODE_1);
    assert_eq!(note, Note::Forwarded { node: NodeId(1) });
    scene.update(&[add(NODE_1_AGAIN)]);
    assert_eq!(scene.silent(HOST_1.port, &captured), Note::Dropped(Reason::Outdated));
    outdated(&mut scene, &with_counter(&storing(BASE_1), 22));
    forwarded(&mut scene, &with_counter(&storing(BASE_1), 23), NODE_1_AGAIN);
}

/// The switch itself restarts and forgets all earlier requests. A writing request is forwarded if it shows
/// the number of the present life, and otherwise answered with this number. So an old copy goes nowhere,
/// whatever happened to the nodes. Reading requests show no number (PROTOCOL 6.27).
#[test]
fn a_captured_request_that_writes_shows_an_earlier_life() {
    const LIFE: NonZero<u32> = NonZero::new(0x51fe_0002).unwrap();
    let mut scene = Scene::rack();
    scene.switch = scene.switch.in_life(LIFE);
    let shows = |message: &Message<'static>, life: u32| {
        let header = Header { domain: Domain(life), ..message.header };
        Message { header, ..*message }
    };
    for message in [write(1, BASE_1, b"old"), storing(BASE_1)] {
        for life in [0, 1, LIFE.get() - 1, u32::MAX] {
            let frame = frame(SESSION_1_10, &shows(&message, life));
            let (payload, note) = scene.relayed(HOST_1.port, &frame, HOST_1);
            assert_eq!(note, Note::Refused(Status::OtherLife));
            let Message { header, body } = Message::parse(&payload).expect("an answer");
            assert!(header.response && header.request == message.header.request);
            assert_eq!((header.status, header.domain), (Status::OtherLife, Domain(LIFE.get())));
            assert_eq!(body.kind(), message.body.kind());
        }
        let frame = frame(SESSION_1_10, &shows(&message, LIFE.get()));
        let (payload, note) = scene.relayed(HOST_1.port, &frame, NODE_1);
        assert_eq!(note, Note::Forwarded { node: NodeId(1) });
        assert_eq!(Message::parse(&payload).expect("a request").header.domain, Domain(10), "the session's");
    }
    for message in [read(1, BASE_1, 8), traverse(1, BASE_1, 9)] {
        forwarded(&mut scene, &message, NODE_1);
    }
}
