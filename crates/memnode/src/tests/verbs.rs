//! One-sided verbs, with the requester of the transport at the other end.

use super::*;
use farmem_machine::Duration;
use farmem_transport::rc::{self, Completion, Failure, Requester, RequesterConfig, Work};
use farmem_transport::{AccessError, ud::Endpoint};

/// A host's half of a connection to the bench's node.
pub(super) struct Client {
    requester: Requester,
    port: Port,
    out: Outbox<(), rc::Note>,
}

impl Client {
    /// Creates the other half of [`queue_pair`].
    pub(super) fn new(qpn: u32, first_psn: u32, rkey: Rkey) -> Self {
        let config = RequesterConfig {
            qpn: Qpn::new(0x900),
            peer_qpn: Qpn::new(qpn),
            port: Port::node(1),
            first_psn: Psn::new(first_psn),
            rkey,
            pmtu: Pmtu::B1024,
            window_psns: 64,
            depth: 8,
            queue_max: 8,
            timeout: Duration::from_millis(1),
            retries_max: 3,
            rnr_retries_max: 3,
        };
        Self { requester: Requester::new(config), port: Port::host(HOST.0), out: Outbox::new() }
    }

    /// Posts a request and carries packets in both directions until none is in flight.
    pub(super) fn finish(&mut self, bench: &mut Bench, work: Work) -> Completion {
        self.requester.post(1, work).unwrap();
        self.requester.pump(Instant::ZERO, &mut self.out);
        loop {
            let mut frames = vec![];
            self.out.drain(|action| {
                if let Action::Send { frame, .. } = action {
                    frames.push(frame.to_vec());
                }
            });
            if frames.is_empty() {
                break;
            }
            for frame in frames {
                bench.hear(self.port, &frame);
                for (port, answer) in &bench.sent {
                    assert_eq!(*port, Port::host(HOST.0), "a connection answers its own peer");
                    let packet = Packet::parse(answer).unwrap();
                    self.requester.on_packet(Instant::ZERO, Port::node(1), &packet, &mut self.out);
                }
            }
        }
        self.requester.pop_completion().expect("the request ended")
    }

    pub(super) fn read(&mut self, bench: &mut Bench, at: u64, len: usize) -> Result<Vec<u8>, Failure> {
        let done = self.finish(bench, Work::Read { addr: addr(at), buf: vec![0xee; len] });
        done.result.map(|_| done.work.into_buf())
    }

    pub(super) fn write(&mut self, bench: &mut Bench, at: u64, data: &[u8]) -> Result<u64, Failure> {
        self.finish(bench, Work::Write { addr: addr(at), buf: data.to_vec() }).result
    }
}

fn connected() -> (Bench, Client) {
    let mut bench = Bench::ready();
    assert_eq!(bench.update(&[queue_pair(0x100, 0xff_fffe)]), (Status::Ok, 0));
    (bench, Client::new(0x100, 0xff_fffe, RKEY))
}

/// A READ of a page that a host has is deferred until the page is written back (PROTOCOL 4.29, 12.28); a
/// WRITE of it is refused (12.46).
#[test]
fn a_read_waits_for_what_a_host_has() {
    use farmem_wire::message::{Access, FetchId, Page, PageBody, PageMessage, Part, Read, Seq, WriteBack};
    let (mut bench, mut client) = connected();
    let page = Page::of(addr(0));
    let (id, seq, clean) = (FetchId(9), Seq(4), true);
    let (granted, done_due, access) = (true, true, Access::Modified);
    let told = |body: PageBody<'_>| {
        let message = PageMessage { domain: ALICE, origin: OTHER_HOST, body };
        let bth = Bth::new(Opcode::UdSendOnly, HOME.endpoint.qpn, Psn::new(0));
        let ext = Extension::Deth(Deth { qkey: HOME.endpoint.qkey, src_qp: Qpn::new(0x77) });
        let mut frame = vec![];
        Packet::emit_with(&bth, &ext, message.len(), &mut frame, |bytes| message.emit(bytes));
        frame
    };
    let read = Read { page, access, host: OTHER_HOST, id, seq, clean, behind: false, granted, done_due };
    bench.hear(Port::SWITCH, &told(PageBody::Read(read)));
    let work = Work::Read { addr: addr(16), buf: vec![0; 8] };
    client.requester.post(1, work).unwrap();
    client.requester.pump(Instant::ZERO, &mut client.out);
    let mut now = Instant::ZERO;
    for turn in 0..3 {
        let mut frames = vec![];
        client.out.drain(|action| {
            if let Action::Send { frame, .. } = action {
                frames.push(frame.to_vec());
            }
        });
        assert_eq!(frames.len(), 1, "turn {turn}");
        bench.hear(client.port, &frames[0]);
        let ports: Vec<Port> = bench.sent.iter().map(|(port, _)| *port).collect();
        let answer = &bench.sent[0].1;
        client.requester.on_packet(now, Port::node(1), &Packet::parse(answer).unwrap(), &mut client.out);
        if turn == 2 {
            assert_eq!(ports, [Port::host(HOST.0)]);
            break;
        }
        assert_eq!(ports, [Port::host(HOST.0), Port::SWITCH], "the switch learns that a READ waits");
        assert!(client.requester.pop_completion().is_none());
        if turn == 1 {
            let bytes = [5; 4096];
            let write_back = WriteBack { page, grant: seq, ack: None };
            bench.hear(Port::SWITCH, &told(PageBody::WriteBack(write_back, Part::WHOLE, &bytes)));
        }
        now = client.requester.next_wake().expect("it comes again");
        client.requester.on_wake(now, &mut client.out);
    }
    let done = client.requester.pop_completion().expect("it was read");
    assert_eq!((done.result, done.work.into_buf()), (Ok(0), vec![5; 8]));
    let refused = client.write(&mut bench, 0, &[1]);
    assert_eq!(refused, Err(Failure::RemoteAccess));
    assert_eq!(bench.notes.last(), Some(&Note::Connection(rc::Note::Refused(AccessError::Coherent))));
}

/// The four verbs, over several packets and over the wrap of the PSN (PROTOCOL 7.16, 7.17).
#[test]
fn a_connection_reads_writes_and_does_atomics() {
    let (mut bench, mut client) = connected();
    let data: Vec<u8> = (0..3000_u32).map(|i| i.to_le_bytes()[0] ^ 0x55).collect();
    assert_eq!(client.write(&mut bench, 0x123, &data), Ok(0));
    assert_eq!(bench.bytes(addr(0x123), 3000), data);
    assert_eq!(client.read(&mut bench, 0x123, 3000), Ok(data));
    assert_eq!(bench.bytes(addr(0x122), 1), [0], "not a byte before it");

    let word = addr(0xff8);
    assert_eq!(client.finish(&mut bench, Work::FetchAdd { addr: word, add: 0x0102 }).result, Ok(0));
    assert_eq!(bench.bytes(word, 8), [2, 1, 0, 0, 0, 0, 0, 0], "little-endian in memory");
    let swap = |compare, swap| Work::CmpSwap { addr: word, compare, swap };
    assert_eq!(client.finish(&mut bench, swap(5, 6)).result, Ok(0x0102));
    assert_eq!(client.finish(&mut bench, swap(0x0102, 6)).result, Ok(0x0102));
    assert_eq!(bench.bytes(word, 8), 6_u64.to_le_bytes());
    bench.node.check();
    assert_eq!(bench.node.stats().verbs, 3 + 1 + 3, "packets: WRITE, READ, atomics");
}

/// Each forbidden access breaks the connection with a refusal, and no byte changes (PROTOCOL 7.14, 7.17).
#[test]
fn a_connection_is_held_to_its_domain_and_key() {
    let word = |at| Work::FetchAdd { addr: addr(at), add: 1 };
    let read = |at, len| Work::Read { addr: addr(at), buf: vec![0; len] };
    let write = |at, len| Work::Write { addr: addr(at), buf: vec![1; len] };
    let wrong = Rkey(RKEY.0 ^ 1);
    let cases = [
        (wrong, read(0, 8), AccessError::WrongKey(wrong), "the wrong key"),
        (wrong, write(0, 8), AccessError::WrongKey(wrong), "the wrong key"),
        (RKEY, read(0x2000, 8), AccessError::NotMapped, "the memory of another domain"),
        (RKEY, write(0x2000, 8), AccessError::NotMapped, "the memory of another domain"),
        (RKEY, write(0x1000, 8), AccessError::NoPermission, "read only"),
        (RKEY, word(0x1000), AccessError::NoPermission, "read only"),
        (RKEY, read(0x1ff0, 17), AccessError::OutOfBounds, "past the end of the grant"),
        (RKEY, write(0xff0, 17), AccessError::NoPermission, "from writable to read only"),
        (RKEY, read(LEN, 1), AccessError::NotMapped, "an address that is not here"),
        (RKEY, word(4), AccessError::Misaligned, "not on a word"),
    ];
    for (rkey, work, refusal, why) in cases {
        let (mut bench, _) = connected();
        let mut client = Client::new(0x100, 0xff_fffe, rkey);
        let before = bench.node.store().clone();
        let failure = client.finish(&mut bench, work).result.unwrap_err();
        let expected =
            if refusal == AccessError::Misaligned { Failure::InvalidRequest } else { Failure::RemoteAccess };
        assert_eq!(failure, expected, "{why}");
        assert!(
            bench.notes.contains(&Note::Connection(rc::Note::Refused(refusal))),
            "{why}: {:?}",
            bench.notes
        );
        assert_eq!(*bench.node.store(), before, "{why}");
    }
}

/// A packet for an unknown connection, or from another port than its peer's, gets no answer (PROTOCOL 7.17).
#[test]
fn a_stranger_gets_no_answer() {
    let (mut bench, mut client) = connected();
    client.requester.post(1, Work::Write { addr: addr(0), buf: vec![1; 8] }).unwrap();
    client.requester.pump(Instant::ZERO, &mut client.out);
    let mut frame = vec![];
    client.out.drain(|action| {
        if let Action::Send { frame: bytes, .. } = action {
            frame = bytes.to_vec();
        }
    });
    let drop = |reason| Note::Connection(rc::Note::Dropped(reason));
    for port in [Port::host(OTHER_HOST.0), Port::SWITCH, Port::UNKNOWN] {
        bench.hear(port, &frame);
        assert_eq!(bench.notes.last(), Some(&drop(rc::DropReason::WrongPort)));
        assert_eq!(bench.sent, []);
    }
    let mut elsewhere = frame.clone();
    elsewhere[7] ^= 1;
    bench.hear_nothing(Port::host(HOST.0), &elsewhere, DropReason::NoQueuePair);
    assert_eq!(bench.bytes(addr(0), 8), [0; 8]);

    bench.update(&[Update::QueuePairGone { qpn: Qpn::new(0x100) }]);
    bench.hear_nothing(Port::host(HOST.0), &frame, DropReason::NoQueuePair);
}

/// A host returns after a crash and gets the same queue pair again. The new connection starts from its own
/// PSN and key, and packets of the old one no longer write (PROTOCOL 7.7).
#[test]
fn a_connection_is_replaced_by_a_new_one() {
    let (mut bench, mut old) = connected();
    assert_eq!(old.write(&mut bench, 0, b"old"), Ok(0));
    bench.update(&[queue_pair(0x100, 0x500)]);
    let mut new = Client::new(0x100, 0x500, RKEY);
    assert_eq!(new.write(&mut bench, 0, b"new"), Ok(0));
    old.requester.post(2, Work::Write { addr: addr(0), buf: b"late".to_vec() }).unwrap();
    old.requester.pump(Instant::ZERO, &mut old.out);
    old.out.drain(|action| {
        if let Action::Send { frame, .. } = action {
            bench.hear(Port::host(HOST.0), frame);
        }
    });
    assert_eq!(bench.bytes(addr(0), 4), b"new\0");
}

/// A WRITE of three packets is in progress when its vma is freed and given to another domain. Packets that
/// arrived stay; the rest must not be written (PROTOCOL 7.15).
#[test]
fn a_grant_taken_back_stops_a_write_in_the_middle() {
    let (mut bench, mut client) = connected();
    client.requester.post(1, Work::Write { addr: addr(0), buf: vec![1; 3 * 1024] }).unwrap();
    client.requester.pump(Instant::ZERO, &mut client.out);
    let mut frames = vec![];
    client.out.drain(|action| {
        if let Action::Send { frame, .. } = action {
            frames.push(frame.to_vec());
        }
    });
    assert_eq!(frames.len(), 3);
    bench.hear(client.port, &frames[0]);
    bench.update(&[
        Update::Protect { domain: ALICE, base: BASE, len: 0x1000, perm: Perm::None, vma_log2: 64 },
        Update::Clear { base: BASE, len: 0x1000 },
    ]);
    for frame in &frames[1..] {
        bench.hear(client.port, frame);
    }
    assert!(bench.notes.contains(&Note::Connection(rc::Note::Refused(AccessError::NotMapped))));
    assert_eq!(bench.bytes(addr(0), 3 * 1024), vec![0; 3 * 1024]);
}

/// The datagrams' endpoint is no connection, and a connection hears no datagrams.
#[test]
fn datagrams_and_connections_do_not_mix() {
    let (mut bench, mut client) = connected();
    let message =
        Message { header: header(ALICE, 1), body: Body::RegionRead { addr: BASE, len: 8, data: &[] } };
    let to_connection = datagram_to(Endpoint { qpn: Qpn::new(0x100), qkey: HOME.endpoint.qkey }, &message);
    bench.hear_nothing(Port::SWITCH, &to_connection, DropReason::NoQueuePair);

    client.requester.post(1, Work::Read { addr: BASE, buf: vec![0; 8] }).unwrap();
    client.requester.pump(Instant::ZERO, &mut client.out);
    client.out.drain(|action| {
        if let Action::Send { frame, .. } = action {
            let mut frame = frame.to_vec();
            frame[5..8].copy_from_slice(&HOME.endpoint.qpn.get().to_be_bytes()[1..]);
            bench.hear_nothing(Port::host(HOST.0), &frame, DropReason::NoQueuePair);
        }
    });
}
