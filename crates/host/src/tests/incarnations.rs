//! The host's reaction to a restart of the switch (PROTOCOL 6.27, 11.17).

use super::*;
use farmem_traversal::Program;
use farmem_wire::Header;

const LIFE: Domain = Domain(0x51fe_0002);

/// The switch's answer to a request with another incarnation number than the present one, which the answer
/// carries.
fn of_other_life(request: &Request, life: Domain) -> Vec<u8> {
    let Message { header, body } = request.message();
    let header = Header { domain: life, ..header.answer(Status::OtherLife) };
    let body = match body {
        Body::RegionWrite { addr, len, .. } => Body::RegionWrite { addr, len, data: &[] },
        Body::Traverse(state) => Body::Traverse(Traverse { code: &[], ..state }),
        Body::Batch(batch) => Body::Batch(batch.without_code()),
        other => other,
    };
    datagram(HOME, &Message { header, body })
}

/// Returns the retransmission of the request with this incarnation number.
fn in_life(request: &Request, life: Domain) -> Request {
    let again = request.again();
    let Message { header, body } = again.message();
    let packet = Packet::parse(&again.frame).unwrap();
    let mut payload = vec![];
    Message { header: Header { domain: life, ..header }, body }.emit(&mut payload);
    let mut frame = vec![];
    Packet { payload: &payload, ..packet }.emit(&mut frame);
    Request { frame }
}

fn storing() -> Op {
    let program = Program::assemble(".stores\n.window 8\n st8 window[0], 1\n ret").unwrap();
    Op::Traverse { program, cur_ptr: VirtAddr(BASE_1), scratch: vec![], limit: 1 }
}

/// The switch refuses a write that carries no incarnation number or an old one, and states the present one.
/// The host sends the same request again at once under the same id: if it was executed before the restart,
/// its node remembers it. A late copy of the refusal changes nothing. All later requests, and retransmissions
/// by the timer, carry the number.
#[test]
fn what_writes_goes_again_under_its_id_with_the_present_life() {
    for op in [region_write(BASE_1, b"1234"), storing()] {
        let mut bench = Bench::with_sessions();
        bench.submit(op.clone());
        let first = bench.request();
        assert_eq!(first.message().header.domain, Domain(0), "it knows of none");
        bench.hear(Port::SWITCH, &of_other_life(&first, LIFE));
        assert_eq!(bench.request(), in_life(&first, LIFE));
        assert_eq!((bench.host.outstanding(), bench.done.len()), (1, 0));
        bench.wake();
        assert_eq!(bench.request(), in_life(&first, LIFE), "its timer goes on");

        bench.submit(op);
        let second = bench.request();
        assert_eq!(second.message().header.domain, LIFE);
        let next = Domain(LIFE.0 + 1);
        bench.hear(Port::SWITCH, &of_other_life(&second, next));
        assert_eq!(bench.request(), in_life(&second, next), "and once more, with the life after that");

        for request in [&first, &second] {
            bench.hear(Port::node(1), &request.answer(Status::Ok, &[]));
            assert!(bench.ended().result.is_ok());
        }
        bench.took_notes();
        bench.hear(Port::SWITCH, &of_other_life(&first, LIFE));
        assert_eq!((bench.took_notes(), bench.sent.len()), (vec![Note::LateAnswer], 0));
        bench.submit(region_read(BASE_1, 4));
        assert_eq!(bench.request().message().header.domain, next, "what is late says nothing of the present");
    }
}

/// The refusal arrives after the last retransmission, shortly before the request expires. The request is sent
/// again, and expires a whole timeout later, so a request that ended without an answer is no longer in flight
/// (PROTOCOL 9.6).
#[test]
fn what_went_again_is_waited_for() {
    let mut bench = Bench::with_sessions();
    bench.submit(region_write(BASE_1, b"1234"));
    let first = bench.request();
    let retries = bench.host.config().request_retries_max;
    for _ in 0..retries {
        bench.wake();
        assert_eq!(bench.request(), first.again());
    }
    let due = bench.host.next_wake().expect("it is waited for");
    let wait = due.since(bench.now);
    bench.now += Duration::from_nanos(wait.as_nanos() - 1);
    bench.hear(Port::SWITCH, &of_other_life(&first, LIFE));
    assert_eq!(bench.request(), in_life(&first, LIFE));
    assert_eq!(bench.host.next_wake(), Some(bench.now + wait));
    bench.wake();
    assert!(bench.ended().result.is_err());
}

/// The switch never refuses a read this way, so such an answer to a read is wrong.
#[test]
fn what_reads_needs_no_life() {
    let mut bench = Bench::with_sessions();
    bench.submit(region_read(BASE_1, 4));
    let request = bench.request();
    bench.hear(Port::SWITCH, &of_other_life(&request, LIFE));
    assert_eq!((bench.took_notes(), bench.sent.len()), (vec![Note::WrongAnswer], 0));
    bench.hear(Port::node(1), &request.answer(Status::Ok, b"data"));
    assert_eq!(bench.ended().buf, b"data");
}

/// Storing traversals that share a datagram are sent again one by one, each under its own id, except for
/// answered ones.
#[test]
fn a_batch_goes_again_one_by_one() {
    let mut bench = Bench::new(Config { pairs_max: 64, ..config() });
    bench.open(ALICE, ALICES);
    bench.ask(HostRequest::Connect(connection(ALICE, 1, 1)));
    (0..3).for_each(|_| _ = bench.submit(storing()));
    bench.wake();
    let batch = bench.request();
    let Body::Batch(pairs) = batch.message().body else { panic!("a batch") };
    let ids: Vec<RequestId> = pairs.pairs().map(|pair| batch.id().with_counter(pair.counter)).collect();
    assert_eq!(ids.len(), 3);
    bench.hear(Port::SWITCH, &of_other_life(&batch, LIFE));
    let again: Vec<Request> = take(&mut bench.sent).into_iter().map(|(_, frame)| Request { frame }).collect();
    assert_eq!(again.iter().map(Request::id).collect::<Vec<_>>(), ids);
    for request in &again {
        let Message { header, .. } = request.message();
        assert!(header.again && header.domain == LIFE && request.traverse().program.stores());
    }
    bench.hear(Port::node(1), &again[1].answer(Status::Ok, &[]));
    assert!(bench.ended().result.is_ok());
    bench.hear(Port::SWITCH, &of_other_life(&batch, LIFE));
    let left = take(&mut bench.sent).into_iter().map(|(_, frame)| Request { frame }.id());
    assert_eq!(left.collect::<Vec<_>>(), [ids[0], ids[2]]);
}
