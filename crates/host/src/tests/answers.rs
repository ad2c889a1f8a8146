//! Invalid answers: late, repeated, forged, misshapen, or from a port that may not answer hosts. None ends an
//! operation, and the valid answer still does.

use super::*;
use farmem_wire::{ProgramHash, WireError};

/// Three requests in flight: one of each kind.
struct Waiting {
    bench: Bench,
    read: Request,
    write: Request,
    traversal: Request,
}

impl Waiting {
    fn new() -> Self {
        let mut bench = Bench::with_sessions();
        bench.submit(region_read(BASE_1, 4));
        let read = bench.request();
        bench.submit(region_write(BASE_1, b"1234"));
        let write = bench.request();
        bench.submit(traversals::list_sum(BASE_1, 9));
        let traversal = bench.request();
        Self { bench, read, write, traversal }
    }

    /// Asserts that the host drops the frame with this note, and that all three requests still wait.
    fn drops(&mut self, port: Port, frame: &[u8], note: Note) {
        self.bench.hear(port, frame);
        assert_eq!(self.bench.took_notes(), [note], "{frame:02x?}");
        assert_eq!((self.bench.done.len(), self.bench.sent.len(), self.bench.host.outstanding()), (0, 0, 3));
    }

    /// Asserts that the valid answers still end the requests.
    fn end_well(mut self) {
        self.bench.hear(Port::node(1), &self.read.answer(Status::Ok, b"data"));
        self.bench.hear(Port::node(1), &self.write.answer(Status::Ok, &[]));
        self.bench
            .hear(Port::node(1), &self.traversal.state(Status::Ok, |s| Traverse { iterations: 1, ..s }));
        assert!(take(&mut self.bench.done).iter().map(|done| done.ticket).eq(1..=3));
        assert_eq!((self.bench.took_notes(), self.bench.host.outstanding()), (vec![], 0));
    }
}

/// A network may deliver an answer twice: the second copy is late. An answer to a request that the host never
/// made is late too.
#[test]
fn a_repeated_answer_is_late() {
    let Waiting { mut bench, read, .. } = Waiting::new();
    let answer = read.answer(Status::Ok, b"data");
    bench.hear(Port::node(1), &answer);
    assert_eq!(bench.ended().buf, b"data");
    bench.hear(Port::node(1), &answer);
    bench.hear(Port::node(2), &read.answer(Status::Ok, b"fake"));
    assert_eq!(bench.took_notes(), [Note::LateAnswer; 2]);
    assert_eq!((bench.done.len(), bench.host.outstanding()), (0, 2));
}

/// The host ignores a sender that does not know the keys of its endpoint.
#[test]
fn without_the_keys_nothing_is_answered() {
    let mut waiting = Waiting::new();
    let header = waiting.read.message().header.answer(Status::Ok);
    let body = Body::RegionRead { addr: VirtAddr(BASE_1), len: 4, data: b"fake" };
    let to = |qpn: u32, qkey: u32| {
        datagram(ud::Endpoint { qpn: Qpn::new(qpn), qkey: Qkey(qkey) }, &Message { header, body })
    };
    let (qpn, qkey) = (HOME.qpn.get(), HOME.qkey.0);
    for port in [Port::node(1), Port::SWITCH, Port::UNKNOWN] {
        waiting.drops(port, &to(qpn, qkey ^ 1), Note::NotForUs);
        waiting.drops(port, &to(qpn, 0), Note::NotForUs);
        waiting.drops(port, &to(qpn ^ 1, qkey), Note::NotForUs);
        waiting.drops(port, &to(ALICES.qpn.get(), ALICES.qkey.0), Note::NotForUs);
    }
    waiting.end_well();
}

/// Ids are not secret from peers: answers under ids of other hosts, generations or counters match no request
/// of this host.
#[test]
fn an_answer_to_another_request_is_late() {
    let mut waiting = Waiting::new();
    let header = waiting.read.message().header.answer(Status::Ok);
    let body = Body::RegionRead { addr: VirtAddr(BASE_1), len: 4, data: b"fake" };
    let ids = [
        RequestId::new(HostId(4), GENERATION, 1),
        RequestId::new(HOST, GENERATION - 1, 1),
        RequestId::new(HOST, GENERATION, 0),
        RequestId::new(HOST, GENERATION, 4),
        RequestId(u64::MAX),
    ];
    for request in ids {
        let header = farmem_wire::Header { request, ..header };
        waiting.drops(Port::node(1), &datagram(HOME, &Message { header, body }), Note::LateAnswer);
    }
    waiting.end_well();
}

/// With the right keys and id, an answer must still fit its request: kind, address, lengths, program,
/// progress.
#[test]
pub(super) fn an_answer_must_fit_its_request() {
    let mut waiting = Waiting::new();
    let Waiting { read, write, traversal, .. } = &waiting;
    let region = |addr: u64, data: &'static [u8]| {
        let len = u32::try_from(data.len()).unwrap();
        move |_: Body<'_>| Body::RegionRead { addr: VirtAddr(addr), len, data }
    };
    let written =
        |addr: u64, len| move |_: Body<'_>| Body::RegionWrite { addr: VirtAddr(addr), len, data: &[] };
    let state = |change: fn(Traverse<'_>) -> Traverse<'_>| traversal.state(Status::IterationLimit, change);
    let batch = |_: Body<'_>| Body::Update(Updates::response(1, 0));
    let wrong = [
        datagram(HOME, &read.message()),
        datagram(HOME, &write.message()),
        datagram(HOME, &traversal.message()),
        read.answer_with(Status::Ok, written(BASE_1, 4)),
        read.answer_with(Status::Ok, batch),
        read.answer_with(Status::Ok, region(BASE_1, b"four+")),
        read.answer_with(Status::Ok, region(BASE_1, b"thr")),
        read.answer_with(Status::Ok, region(BASE_1, b"")),
        read.answer_with(Status::Ok, region(BASE_1 + 1, b"four")),
        read.answer_with(Status::NotMapped, |_| Body::RegionRead {
            addr: VirtAddr(BASE_2),
            len: 4,
            data: &[],
        }),
        write.answer_with(Status::Ok, region(BASE_1, b"four")),
        write.answer_with(Status::Ok, written(BASE_1, 3)),
        write.answer_with(Status::Ok, written(BASE_2, 4)),
        traversal.answer_with(Status::Ok, region(BASE_1, b"four")),
        traversal.answer_with(Status::Ok, batch),
        state(|s| Traverse { program: ProgramHash([1; 16]), iterations: 1, ..s }),
        state(|s| Traverse { scratch: &[0; 17], iterations: 1, ..s }),
        state(|s| Traverse { limit: 10, iterations: 1, ..s }),
        state(|s| Traverse { iterations: 10, ..s }),
    ];
    for frame in wrong {
        waiting.drops(Port::node(1), &frame, Note::WrongAnswer);
    }
    waiting.end_well();
}

/// A traversal does not go back: an answer with fewer iterations than already executed does not fit the
/// request.
#[test]
fn an_answer_does_not_take_iterations_back() {
    let mut waiting = Waiting::new();
    waiting
        .bench
        .hear(Port::node(1), &waiting.traversal.state(Status::HopLimit, |s| Traverse { iterations: 5, ..s }));
    waiting.traversal = waiting.bench.request();
    assert_eq!(waiting.bench.took_notes(), [Note::Continued(Status::HopLimit)]);
    let back = waiting.traversal.state(Status::HopLimit, |s| Traverse { iterations: 4, ..s });
    waiting.drops(Port::node(1), &back, Note::WrongAnswer);
}

/// Nodes answer hosts directly, and the host may not know the node's address yet: then keys and id must
/// suffice. The control plane and other hosts may not answer.
#[test]
fn only_who_serves_requests_answers() {
    for port in [Port::SWITCH, Port::node(0), Port::node(77), Port::UNKNOWN] {
        let Waiting { mut bench, read, .. } = Waiting::new();
        bench.hear(port, &read.answer(Status::Ok, b"data"));
        assert_eq!((bench.ended().buf, bench.took_notes()), (b"data".to_vec(), vec![]), "{port:?}");
    }
    let mut waiting = Waiting::new();
    let answer = waiting.read.answer(Status::Ok, b"fake");
    for port in [Port::CONTROL, Port::host(HOST.0), Port::host(4), Port(0x500), Port(0x2_0000)] {
        waiting.drops(port, &answer, Note::NotForUs);
    }
    waiting.end_well();
}

/// Bytes that are no frame, frames that are no datagram, and datagrams that are no message are counted.
#[test]
pub(super) fn what_is_no_answer_at_all_is_counted() {
    let mut waiting = Waiting::new();
    let whole = waiting.read.answer(Status::Ok, b"data");
    for cut in [0, 11, 19, whole.len() - 1] {
        waiting.bench.hear(Port::node(1), &whole[..cut]);
        let [Note::Malformed(_)] = waiting.bench.took_notes()[..] else { panic!("cut at {cut}") };
    }
    waiting.drops(
        Port::node(1),
        &sealed(HOME, &[]),
        Note::Malformed(WireError::Short { what: "message", need: 24, have: 0 }),
    );
    let mut payload = Packet::parse(&whole).unwrap().payload.to_vec();
    payload[0] = 2;
    let version = WireError::Unknown { what: "message.version", value: 2 };
    waiting.drops(Port::node(1), &sealed(HOME, &payload), Note::Malformed(version));

    payload[0] = 1;
    let bth = Bth::new(Opcode::UdSendOnlyImm, HOME.qpn, Psn::new(0));
    let ext = Extension::DethImm(Deth { qkey: HOME.qkey, src_qp: Qpn::new(1) }, 5);
    let mut frame = vec![];
    Packet { bth, ext, payload: &payload }.emit(&mut frame);
    waiting.drops(Port::node(1), &frame, Note::NotForUs);
    let mut frame = vec![];
    let bth = Bth::new(Opcode::SendOnly, HOME.qpn, Psn::new(0));
    Packet { bth, ext: Extension::None, payload: &payload }.emit(&mut frame);
    waiting.drops(Port::node(1), &frame, Note::NotForUs);
    waiting.end_well();
}

/// An answer for one session's request says nothing about another session: ids belong to the host, not to the
/// session.
#[test]
fn sessions_do_not_share_requests() {
    let mut bench = Bench::with_sessions();
    bench.submit_as(BOB, region_read(BASE_1, 4));
    bench.sent.clear();
    bench.submit(region_read(BASE_1, 4));
    let request = bench.request();
    bench.hear(Port::node(1), &request.answer(Status::Ok, b"mine"));
    assert_eq!((bench.ended().ticket, bench.host.outstanding()), (2, 1));
}
