//! Lookups that share a datagram: they go up together, and split at the core by server (PROTOCOL 16.6, 16.7).

use super::*;
use farmem_wire::Status;
use farmem_wire::message::{Batch, Pair, PairBuf};

/// Passes on a batch of lookups of these keys, the first under counter 20, which begin at `from`.
pub(super) fn look_ups<'a>(keys: &[u64], from: VirtAddr, again: bool, pairs: &'a mut PairBuf) -> Message<'a> {
    pairs.clear();
    for (counter, key) in (20..).zip(keys) {
        let (status, scratch) = (Status::Ok, &key.to_le_bytes()[..]);
        pairs.push(&Pair { counter, status, cur_ptr: from, iterations: 0, limit: 64, scratch });
    }
    let header = Header { again, ..Header::request(id(1, 20), 3) };
    Message { header, body: Body::Batch(Batch::of(&header, PROGRAM, b"code", pairs)) }
}

/// Returns counters, pointers and keys of a message.
fn pairs_of(body: &Body<'_>) -> Vec<(u32, u64, u64)> {
    let Body::Batch(batch) = body else { panic!("a batch, not {body:?}") };
    assert_eq!((batch.program(), batch.code()), (PROGRAM, &b"code"[..]));
    let key = |pad: &[u8]| u64::from_le_bytes(pad.try_into().expect("eight bytes"));
    batch.pairs().map(|pair| (pair.counter, pair.cur_ptr.0, key(pair.scratch))).collect()
}

impl Scene {
    /// Delivers a frame that must be split; returns the receiver and payload of each part.
    fn led_apart(&mut self, port: Port, payload: &[u8]) -> Vec<(Port, Vec<u8>)> {
        let mut out = self.deliver(port, &datagram(HOME, payload));
        let note = out.pop();
        assert_eq!(note, Some(Out::Note(Note::BatchSplit { parts: u16::try_from(out.len()).unwrap() })));
        let payload_of = |out| match out {
            Out::Send(port, frame) => (port, Packet::parse(&frame).expect("a frame").payload.to_vec()),
            other => panic!("frames: {other:?}"),
        };
        out.into_iter().map(payload_of).collect()
    }
}

/// Three keys of one server with one of another between them: two messages leave the core; the second is a
/// single traversal.
#[test]
fn a_batch_parts_at_the_core_and_comes_to_each_server_as_one() {
    let (mut rack, mut core, mut pod, mut edge) = (rack_of(Some(CORE.port.0)), core(), pod(), edge());
    let mut room = PairBuf::default();
    let message = look_ups(&[55, 5_000, 60, 20], ROOT, false, &mut room);
    let (up, note) = rack.relayed(HOST_1.port, &frame(SESSION_1_10, &message), CORE);
    assert_eq!(note, Note::RoutedUp { index: 1 });
    let lead = Lead::parse(&up).expect("led");
    assert_eq!((lead.root, lead.server, lead.switches), (ROOT, None, SWITCHES_MAX));
    assert_eq!(lead.message(), Message { header: led_header(&message), ..message });

    let parts = core.led_apart(RACK.port, &up);
    assert_eq!(parts.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [POD.port, EDGE.port]);
    let (first, second) = (Lead::parse(&parts[0].1).unwrap(), Lead::parse(&parts[1].1).unwrap());
    assert_eq!((first.server, first.header.request), (Some(NodeId(1)), id(1, 20)));
    let child = BASE_1 + 0x300;
    assert_eq!(pairs_of(&first.message().body), [(20, child, 55), (22, child, 60), (23, child, 20)]);
    assert_eq!((second.server, second.header.request), (Some(NodeId(2)), id(1, 21)));
    let LeadBody::One(alone) = second.led else { panic!("one traversal needs no batch: {second:?}") };
    assert_eq!(
        (alone.cur_ptr.0, alone.code, alone.scratch),
        (BASE_2 + 0x300, &b"code"[..], &5_000_u64.to_le_bytes()[..])
    );

    // 20 leaves the path of the others at the second set.
    let (down, note) = pod.relayed(CORE.port, &datagram(HOME, &parts[0].1), EDGE);
    assert_eq!(note, Note::RoutedDown { index: 3 });
    let (deep, left) = (BASE_1 + 0x700, BASE_1 + 0x600);
    let led = Lead::parse(&down).unwrap();
    assert_eq!(pairs_of(&led.message().body), [(20, deep, 55), (22, deep, 60), (23, left, 20)]);
    let (out, note) = edge.relayed(POD.port, &datagram(HOME, &down), NODE_1);
    assert_eq!(note, Note::RoutedOut { node: NodeId(1) });
    let out = Message::parse(&out).expect("a batch, as from the rack's switch");
    assert_eq!(out.header, stamped(&message, 10, 1).header, "one hop poorer");
    let leaves = [(20, BASE_1 + 0xa00, 55), (22, BASE_1 + 0xb00, 60), (23, left, 20)];
    assert_eq!(pairs_of(&out.body), leaves);
    let counted = |scene: &Scene| {
        let tables = scene.switch.soft().index().tables(Domain(10), ROOT).expect("the image is active");
        tables.counters(0).collect::<Vec<u32>>()
    };
    assert_eq!(counted(&core), [3, 1], "each look-up once");
    assert_eq!(counted(&pod), [0, 3, 0, 1, 2]);
    assert_eq!(counted(&edge), [0, 2, 0, 1, 1]);
}

/// PROTOCOL 16.6: a pair that begins elsewhere, and a repetition, keep the whole batch from going up.
#[test]
fn a_batch_goes_up_as_a_whole_or_not() {
    let mut rack = rack_of(Some(CORE.port.0));
    let mut room = PairBuf::default();
    let forwarded = |rack: &mut Scene, message: &Message<'_>| {
        let (_, note) = rack.relayed(HOST_1.port, &frame(SESSION_1_10, message), NODE_1);
        assert_eq!(note, Note::Forwarded { node: NodeId(1) });
    };
    forwarded(&mut rack, &look_ups(&[1, 2], ROOT, true, &mut room));
    forwarded(&mut rack, &look_ups(&[1, 2], VirtAddr(BASE_1 + 0x300), false, &mut room));
    look_ups(&[1], ROOT, false, &mut room);
    let scratch = &[0; 8][..];
    let stray = VirtAddr(BASE_1 + 0x300);
    room.push(&Pair { counter: 21, status: Status::Ok, cur_ptr: stray, iterations: 0, limit: 9, scratch });
    let header = Header::request(id(1, 20), 3);
    forwarded(&mut rack, &Message { header, body: Body::Batch(Batch::of(&header, PROGRAM, b"code", &room)) });
}

/// PROTOCOL 16.7: the part without a next hop returns, as a batch that the rack's switch routes; the others
/// go on.
#[test]
fn a_part_that_cannot_be_led_on_goes_back() {
    let mut room = PairBuf::default();
    let message = look_ups(&[55, 5_000, 60, 6_000], ROOT, false, &mut room);
    let (up, _) = rack_of(Some(CORE.port.0)).relayed(HOST_1.port, &frame(SESSION_1_10, &message), CORE);
    let mut core = core();
    core.update(&[Update::PeerGone { port: EDGE.port.0 }]);
    let parts = core.led_apart(RACK.port, &up);
    assert_eq!(parts.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [POD.port, RACK.port]);
    let mut back = Message::parse(&parts[1].1).expect("a request as from a node");
    assert_eq!(back.header.request, id(1, 21));
    let child = BASE_2 + 0x300;
    assert_eq!(pairs_of(&back.body), [(21, child, 5_000), (23, child, 6_000)], "from where they got to");
    let mut rack = rack_of(Some(CORE.port.0));
    let (_, note) = rack.relayed(CORE.port, &frame(HOME, &back), NODE_2);
    assert_eq!(note, Note::Continued { node: NodeId(2) });
    assert_eq!(
        rack.silent(NODE_1.port, &frame(HOME, &back)),
        Note::Dropped(Reason::NotContinuation),
        "a node sends no batches"
    );
    // For an unmapped address, each pair must be sent alone (PROTOCOL 6.25).
    back.header.domain = Domain(20);
    let (refusal, note) = rack.relayed(CORE.port, &frame(HOME, &back), HOST_1);
    assert_eq!(note, Note::Refused(Status::Apart));
    assert!(Message::parse(&refusal).unwrap().header.response);
    // A switch without tables returns the whole batch unchanged.
    let mut empty = Scene::new(Budgets::default());
    empty.update(&[add(RACK)]);
    let (all, note) = empty.relayed(RACK.port, &datagram(HOME, &up), RACK);
    assert_eq!((note, Message::parse(&all).unwrap().body), (Note::RoutedBack, message.body));
}
