//! Region reads and writes through the switch: the request, the answer, and refusals by the host itself.

use super::*;
use crate::{REGION_DATA_MAX, REGION_WRITES_MAX};
use std::collections::BTreeSet;

/// Data and buffer of a region read or write come back as the node answers.
#[test]
fn a_region_is_read_and_written_through_the_switch() {
    let mut bench = Bench::with_sessions();
    let ticket = bench.submit(region_read(BASE_1, 4));
    let request = bench.request();
    let body = Body::RegionRead { addr: VirtAddr(BASE_1), len: 4, data: &[] };
    assert_eq!((request.message().body, request.message().header.hops), (body, config().hops_max));
    assert_eq!(request.id(), RequestId::new(HOST, GENERATION, 1));
    bench.hear(Port::node(1), &request.answer(Status::Ok, b"data"));
    let done = Done { ticket, result: Ok(Answer::Done { old: 0 }), buf: b"data".to_vec() };
    assert_eq!(bench.ended(), done);

    let ticket = bench.submit(region_write(BASE_1, b"new"));
    let request = bench.request();
    assert_eq!(request.message().body, Body::RegionWrite { addr: VirtAddr(BASE_1), len: 3, data: b"new" });
    bench.hear(Port::node(1), &request.answer(Status::Ok, &[]));
    assert_eq!(bench.ended(), Done { ticket, result: Ok(Answer::Done { old: 0 }), buf: b"new".to_vec() });
    assert_eq!((bench.host.outstanding(), bench.host.next_wake()), (0, None));
}

/// A refusal names the request's address and leaves the caller's buffer unchanged.
#[test]
fn a_refusal_comes_with_its_reason() {
    let mut bench = Bench::with_sessions();
    for status in
        [Status::NotMapped, Status::NoPermission, Status::OutOfBounds, Status::Busy, Status::Malformed]
    {
        for op in [region_read(BASE_1, 4), region_write(BASE_1, b"1234")] {
            let (Op::RegionRead { addr, buf } | Op::RegionWrite { addr, buf }) = op.clone() else {
                unreachable!()
            };
            bench.submit(op);
            let request = bench.request();
            bench.hear(Port::SWITCH, &request.answer(status, &[]));
            let done = bench.ended();
            assert_eq!((done.result, done.buf), (Err(Failure::Refused { status, addr }), buf));
        }
    }
}

/// The switch could not parse the request: its answer has an empty body, and perhaps another kind (PROTOCOL
/// 6.15). The host must accept the answer, because no better one will come.
#[test]
fn a_request_that_no_server_could_read_is_refused_too() {
    let region = Body::RegionRead { addr: VirtAddr::NULL, len: 0, data: &[] };
    let empty = Traverse {
        program: Default::default(),
        cur_ptr: VirtAddr::NULL,
        iterations: 0,
        limit: 0,
        scratch: &[],
        code: &[],
    };
    let cases = [
        (region_read(BASE_1, 4), region),
        (region_write(BASE_1, b"1234"), Body::RegionWrite { addr: VirtAddr::NULL, len: 0, data: &[] }),
        (region_write(BASE_1, b"1234"), region),
        (traversals::list_sum(BASE_1, 9), Body::Traverse(empty)),
        (traversals::list_sum(BASE_1, 9), region),
    ];
    for status in [Status::Malformed, Status::Version, Status::Unsupported] {
        for (op, body) in cases.clone() {
            let mut bench = Bench::with_sessions();
            bench.submit(op);
            let request = bench.request();
            bench.hear(Port::SWITCH, &request.answer_with(status, |_| body));
            let addr = VirtAddr(BASE_1);
            assert_eq!(bench.ended().result, Err(Failure::Refused { status, addr }));
        }
    }
    // With another status such an answer fits no request.
    let mut bench = Bench::with_sessions();
    bench.submit(region_read(BASE_1, 4));
    let request = bench.request();
    bench.hear(Port::SWITCH, &request.answer_with(Status::NotMapped, |_| region));
    assert_eq!(bench.took_notes(), [Note::WrongAnswer]);
}

/// The host refuses a region larger than one datagram, and states the maximum.
#[test]
pub(super) fn a_region_beyond_one_datagram_is_refused_at_home() {
    let mut bench = Bench::with_sessions();
    for op in [region_read(BASE_1, REGION_DATA_MAX + 1), region_write(BASE_1, &[0; REGION_DATA_MAX + 1])] {
        bench.submit(op);
        assert_eq!(bench.refused(), Failure::TooLong { max: REGION_DATA_MAX });
    }
    bench.submit(region_write(BASE_1, &[0; REGION_DATA_MAX]));
    let payload = bench.request().message().len();
    assert!(payload <= Pmtu::B1024.bytes());

    let mut bench = Bench::new(Config { pmtu: Pmtu::B256, ..config() });
    bench.open(ALICE, ALICES);
    bench.submit(region_write(BASE_1, &[0; 221]));
    assert_eq!(bench.refused(), Failure::TooLong { max: 220 });
    bench.submit(region_write(BASE_1, &[0; 220]));
    assert_eq!(bench.request().message().len(), 256);
}

#[test]
fn without_a_session_there_is_no_way() {
    let mut bench = Bench::new(config());
    bench.open(BOB, BOBS);
    for op in [region_read(BASE_1, 4), region_write(BASE_1, b"1234"), traversals::list_sum(BASE_1, 9)] {
        bench.submit(op);
        assert_eq!(bench.refused(), Failure::NoSession);
    }
}

/// Requests beyond the limit are refused and use up no id. Each request that ends makes room for one.
#[test]
fn requests_beyond_the_bound_are_given_back() {
    let mut bench = Bench::new(Config { requests_max: 2, ..config() });
    bench.open(ALICE, ALICES);
    let requests: Vec<Request> = (0..2)
        .map(|_| {
            bench.submit(region_read(BASE_1, 1));
            bench.request()
        })
        .collect();
    for op in [region_read(BASE_1, 4), region_write(BASE_1, b"1234"), traversals::list_sum(BASE_1, 9)] {
        bench.submit(op);
        assert_eq!(bench.refused(), Failure::QueueFull);
    }
    bench.hear(Port::node(1), &requests[1].answer(Status::Ok, b"x"));
    assert_eq!(bench.ended().ticket, 2);
    bench.submit(region_write(BASE_1, b"1234"));
    assert_eq!(bench.request().id(), RequestId::new(HOST, GENERATION, 3));
}

/// A write is outstanding, lost in the network, while others come and go. A node that has answered
/// [`REGION_WRITES_MAX`] later ones cannot know whether it executed the lost write, and drops it. So the host
/// lets no write fall that far behind (PROTOCOL 5.6).
#[test]
fn no_write_falls_further_behind_than_nodes_remember() {
    let mut bench = Bench::new(Config { requests_max: 2 * REGION_WRITES_MAX, ..config() });
    bench.open(ALICE, ALICES);
    bench.submit(region_write(BASE_1, b"lost"));
    let lost = bench.request();
    // Reads take no place in the memory of nodes.
    for _ in 0..50 {
        bench.submit(region_read(BASE_1, 1));
        bench.request();
    }
    // A node's memory of answers, as the transport keeps it.
    let mut node = ud::Dedup::new(1, REGION_WRITES_MAX, ud::AnswerBudget::UNBOUNDED);
    for _ in 1..REGION_WRITES_MAX {
        bench.submit(region_write(BASE_1, b"next"));
        let request = bench.request();
        node.remember(request.id(), 0, b"an answer");
        bench.hear(Port::node(1), &request.answer(Status::Ok, &[]));
        bench.ended();
    }
    bench.submit(region_write(BASE_1, b"one too many"));
    assert_eq!(bench.refused(), Failure::QueueFull);
    assert_eq!(node.lookup(lost.id()), ud::RequestState::New, "it can still be executed");
    node.remember(lost.id(), 0, b"an answer");
    assert_eq!(
        node.lookup(lost.id()),
        ud::RequestState::Answered(b"an answer"),
        "and, coming again, be answered"
    );

    bench.hear(Port::node(1), &lost.answer(Status::Ok, &[]));
    assert_eq!(bench.ended().ticket, 1);
    for _ in 0..REGION_WRITES_MAX {
        bench.submit(region_write(BASE_1, b"room again"));
        bench.request();
    }
    bench.submit(region_write(BASE_1, b"one too many"));
    assert_eq!(bench.refused(), Failure::QueueFull);
}

/// A write that expires or is refused makes room like one that was answered.
#[test]
fn however_a_write_ends_it_makes_room() {
    let mut bench = Bench::with_sessions();
    for round in 0..3 {
        let requests: Vec<Request> = (0..REGION_WRITES_MAX)
            .map(|_| {
                bench.submit(region_write(BASE_1, b"x"));
                bench.request()
            })
            .collect();
        match round {
            0 => requests
                .iter()
                .rev()
                .for_each(|r| bench.hear(Port::SWITCH, &r.answer(Status::NotMapped, &[]))),
            1 => requests.iter().for_each(|r| bench.hear(Port::node(1), &r.answer(Status::Ok, &[]))),
            _ => (0..=RETRIES_MAX).for_each(|_| bench.wake()),
        }
        assert_eq!(take(&mut bench.done).len(), REGION_WRITES_MAX, "round {round}");
        bench.sent.clear();
    }
    assert_eq!(bench.host.outstanding(), 0);
}

/// Every request has a unique id, however earlier ones ended, and retransmissions have the id of their
/// request (PROTOCOL 5.1).
#[test]
fn no_id_is_used_twice() {
    let mut bench = Bench::with_sessions();
    let mut ids = BTreeSet::new();
    for round in 0..200_u32 {
        match round % 3 {
            0 => bench.submit(region_read(BASE_1, 4)),
            1 => bench.submit(region_write(BASE_1, b"1234")),
            _ => bench.submit(traversals::list_sum(BASE_1, 9)),
        };
        let request = bench.request();
        assert!(ids.insert(request.id()), "round {round}");
        let status = [Status::Ok, Status::NotMapped, Status::UnknownProgram][round as usize / 3 % 3];
        bench.hear(Port::node(1), &request.answer(status, b"data"));
        // A traversal continues under a new id; other operations end.
        for (_, frame) in take(&mut bench.sent) {
            assert!(ids.insert(Request { frame }.id()), "round {round}");
        }
    }
    while bench.host.outstanding() > 0 {
        bench.wake();
        assert!(take(&mut bench.sent).into_iter().all(|(_, frame)| ids.contains(&Request { frame }.id())));
    }
}

/// After the last id of its generation a host sends no new request: it must rejoin.
#[test]
pub(super) fn ids_run_out_and_are_not_used_again() {
    let mut bench = Bench::with_sessions();
    bench.host.requests.skip_ids_to(u32::MAX - 1);
    bench.submit(traversals::list_sum(BASE_1, 9));
    let request = bench.request();
    assert_eq!(request.id(), RequestId::new(HOST, GENERATION, u32::MAX));
    // A running traversal is not continued either.
    bench.hear(Port::node(1), &request.answer(Status::UnknownProgram, &[]));
    assert_eq!(bench.refused(), Failure::IdsUsedUp);
    assert_eq!(bench.took_notes(), [Note::SentCode]);
    for op in [region_read(BASE_1, 4), region_write(BASE_1, b"1234"), traversals::list_sum(BASE_1, 9)] {
        bench.submit(op);
        assert_eq!(bench.refused(), Failure::IdsUsedUp);
    }
}

/// The host rejoined: operations in flight end once. Ids start over in the next generation, and an answer to
/// an old id is late (PROTOCOL 8.8).
#[test]
fn a_host_that_joins_again_begins_anew() {
    let mut bench = Bench::with_sessions();
    bench.ask(HostRequest::Connect(connection(ALICE, 1, 1)));
    bench.submit(region_write(BASE_1, b"1234"));
    let old = bench.request();
    bench.submit(Op::Read { addr: VirtAddr(BASE_1), buf: vec![0; 8] });
    bench.sent.clear();
    let left = bench.host.ids_left();
    bench.ask(HostRequest::Joined { generation: GENERATION + 1, home: HOME });
    let ended: Vec<_> = take(&mut bench.done).into_iter().map(|done| done.result).collect();
    let flushed = Failure::Connection(rc::Failure::Flushed);
    assert_eq!(ended, [Err(flushed), Err(Failure::NoAnswer)]);
    assert_eq!((bench.host.outstanding(), bench.host.ids_left()), (0, left + 1));
    bench.took_notes();
    bench.hear(Port::node(1), &old.answer(Status::Ok, b""));
    assert_eq!(bench.took_notes(), [Note::LateAnswer]);
    // Sessions and connections are gone. The driver sets a session again, and the host requests a connection
    // on demand; the control plane has taken the old connection down.
    bench.submit(region_read(BASE_1, 4));
    assert_eq!(bench.refused(), Failure::NoSession);
    bench.submit(Op::Read { addr: VirtAddr(BASE_1), buf: vec![0; 8] });
    bench.reply(ControlRequestKind::Connect { domain: ALICE, node: NodeId(1) }, Reply::Unavailable);
    assert_eq!(bench.refused(), Failure::Unreachable { addr: VirtAddr(BASE_1) });
    bench.open(ALICE, ALICES);
    bench.submit(region_read(BASE_1, 4));
    assert_eq!(bench.request().id(), RequestId::new(HOST, GENERATION + 1, 1));
}

/// The switch restarted: new requests go over the new session.
#[test]
fn a_new_session_takes_the_place_of_the_old() {
    let mut bench = Bench::with_sessions();
    bench.open(ALICE, BOBS);
    bench.submit(region_read(BASE_1, 4));
    let [(_, frame)] = &bench.sent[..] else { panic!("one request") };
    assert_eq!(Packet::parse(frame).unwrap().bth.dest_qp, BOBS.qpn);
}
