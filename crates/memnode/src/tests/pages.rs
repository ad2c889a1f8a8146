//! Pages out to hosts and back, as the switch forwards them.

use super::*;
use crate::WriteBackEffect;
use farmem_wire::message::{
    Access, Data, DirectoryBody, DirectoryMessage, FetchId, HostSet, PAGE_LEN, Page, PageBody, PageMessage,
    Part, Read, RecallAck, Region, Seq, Sweep, WriteBack, WriteBackAck,
};

fn page() -> Page {
    Page::of(addr(0x1000))
}

pub(super) fn frame(body: PageBody<'_>) -> Vec<u8> {
    let message = PageMessage { domain: ALICE, origin: HOST, body };
    let bth = Bth::new(Opcode::UdSendOnly, HOME.endpoint.qpn, Psn::new(0));
    let ext = Extension::Deth(Deth { qkey: HOME.endpoint.qkey, src_qp: Qpn::new(0x77) });
    let mut frame = vec![];
    Packet::emit_with(&bth, &ext, message.len(), &mut frame, |bytes| message.emit(bytes));
    frame
}

pub(super) fn read(seq: u64) -> Read {
    Read {
        page: page(),
        access: Access::Modified,
        host: HOST,
        id: FetchId(9),
        seq: Seq(seq),
        clean: true,
        behind: false,
        granted: false,
        done_due: true,
    }
}

/// Returns the page messages that the node sent last.
pub(super) fn sent(bench: &Bench) -> Vec<(Port, PageMessage<'_>)> {
    let message = |frame| PageMessage::parse(Packet::parse(frame).unwrap().payload).unwrap();
    bench.sent.iter().map(|(port, frame)| (*port, message(frame))).collect()
}

/// A page leaves in parts as long as the path MTU, with the switch's number, and is lent from then on.
#[test]
fn a_page_goes_out_in_parts() {
    let mut bench = Bench::ready();
    let bytes: Vec<u8> = (0..=250).cycle().take(PAGE_LEN).collect();
    bench.put(addr(0x1000), &bytes);
    bench.hear(Port::SWITCH, &frame(PageBody::Read(read(4))));
    assert_eq!(bench.notes.last(), Some(&Note::PageServed));
    let parts = sent(&bench);
    assert_eq!(parts.len(), 4, "1024 bytes in each");
    for (index, (port, message)) in (0..).zip(&parts) {
        let Read { page, access, id, seq, granted, done_due, .. } = read(4);
        let part = Part { index, count: 4 };
        let data = Data { page, access, id, seq, granted, done_due, lost: false, part };
        assert_eq!(*port, Port::host(HOST.0));
        assert_eq!(message.body, PageBody::Data(data, &bytes[part.range()]));
    }
    assert_eq!(bench.node.page_states().record(page()).lent(), Some((Seq(4), HOST)));
}

/// A write-back counts once, when all its parts are here. Only then is its acknowledgement forwarded to the
/// switch.
#[test]
fn a_write_back_comes_in_parts() {
    let mut bench = Bench::ready();
    bench.hear(Port::SWITCH, &frame(PageBody::Read(read(4))));
    let ack = RecallAck { region: Region::around(page(), 2), seq: Seq(5), false_invalidations: 1 };
    let write_back = WriteBack { page: page(), grant: Seq(4), ack: Some(ack) };
    let bytes = [0xab; PAGE_LEN];
    let part = |index| {
        let part = Part { index, count: 2 };
        frame(PageBody::WriteBack(write_back, part, &bytes[part.range()]))
    };
    for _ in 0..2 {
        bench.hear(Port::SWITCH, &part(1));
        assert_eq!(
            (bench.notes.last(), bench.sent.len()),
            (Some(&Note::PageWritten(WriteBackEffect::NotYet)), 0)
        );
    }
    assert_eq!(bench.bytes(addr(0x1000), 1), [0]);
    bench.hear(Port::SWITCH, &part(0));
    assert_eq!(bench.notes.last(), Some(&Note::PageWritten(WriteBackEffect::Yes)));
    assert_eq!(bench.bytes(addr(0x1000), 4096), bytes);
    let answer = WriteBackAck { page: page(), grant: Seq(4), ack: Some(ack) };
    let bodies: Vec<_> = sent(&bench).into_iter().map(|(port, message)| (port, message.body)).collect();
    assert_eq!(
        bodies,
        [(Port::SWITCH, PageBody::RecallAck(ack)), (Port::host(HOST.0), PageBody::WriteBackAck(answer))]
    );
    bench.hear(Port::SWITCH, &frame(PageBody::WriteBack(write_back, Part::WHOLE, &[1; PAGE_LEN])));
    assert_eq!((bench.notes.last(), bench.sent.len()), (Some(&Note::PageWritten(WriteBackEffect::No)), 2));
    assert_eq!(bench.bytes(addr(0x1000), 4096), bytes, "written once, and acknowledged each time");
}

/// A write-back of a grant that no host got: it must not count, nor void the write-backs of real grants.
#[test]
fn a_grant_from_nowhere_does_not_count() {
    let mut bench = Bench::ready();
    let write_back = |grant| WriteBack { page: page(), grant: Seq(grant), ack: None };
    let bytes = [1; PAGE_LEN];
    for grant in [1, u64::MAX] {
        bench.hear(Port::SWITCH, &frame(PageBody::WriteBack(write_back(grant), Part::WHOLE, &bytes)));
        assert_eq!(bench.notes.last(), Some(&Note::PageWritten(WriteBackEffect::No)));
    }
    bench.hear(Port::SWITCH, &frame(PageBody::Read(read(4))));
    bench.hear(Port::SWITCH, &frame(PageBody::WriteBack(write_back(4), Part::WHOLE, &bytes)));
    assert_eq!(bench.notes.last(), Some(&Note::PageWritten(WriteBackEffect::Yes)));
}

/// Incomplete write-backs are bounded: the oldest begins again, as if a part were lost.
#[test]
fn unfinished_write_backs_are_bounded() {
    let mut bench = Bench::ready();
    let part = Part { index: 0, count: 2 };
    let bytes = [0; PAGE_LEN];
    for grant in 0..2 * crate::PARTIAL_MAX as u64 {
        let write_back = WriteBack { page: page(), grant: Seq(grant), ack: None };
        bench.hear(Port::SWITCH, &frame(PageBody::WriteBack(write_back, part, &bytes[part.range()])));
        assert_eq!(bench.notes.last(), Some(&Note::PageWritten(WriteBackEffect::NotYet)));
    }
}

/// Only the switch forwards pages, and only of local addresses, to known hosts.
#[test]
fn pages_from_elsewhere_go_nowhere() {
    let mut bench = Bench::ready();
    let whole = frame(PageBody::Read(read(4)));
    for port in [Port::CONTROL, Port::host(HOST.0), Port::UNKNOWN] {
        bench.hear_nothing(port, &whole, DropReason::WrongPort);
    }
    let elsewhere = Read { page: Page::of(addr(LEN)), ..read(4) };
    bench.hear_nothing(Port::SWITCH, &frame(PageBody::Read(elsewhere)), DropReason::NotHere);
    let write_back = WriteBack { page: Page::of(addr(LEN)), grant: Seq(1), ack: None };
    let bytes = [0; PAGE_LEN];
    let back = frame(PageBody::WriteBack(write_back, Part::WHOLE, &bytes));
    bench.hear_nothing(Port::SWITCH, &back, DropReason::NotHere);
    let answer = WriteBackAck { page: page(), grant: Seq(1), ack: None };
    bench.hear_nothing(Port::SWITCH, &frame(PageBody::WriteBackAck(answer)), DropReason::WrongPort);
}

/// Creates a node with a page of Alice that is lent to a host under number 4.
fn lent() -> Bench {
    let mut bench = Bench::ready();
    let body = PageBody::Read(Read { page: Page::of(addr(0)), ..read(4) });
    bench.hear(Port::SWITCH, &frame(body));
    bench
}

fn visits(bench: &Bench) -> Vec<Page> {
    let payload = |frame| Packet::parse(frame).unwrap().payload;
    let to_switch = bench.sent.iter().filter(|(port, _)| *port == Port::SWITCH);
    let messages = to_switch.map(|(_, frame)| DirectoryMessage::parse(payload(frame)).unwrap().body);
    messages
        .map(|body| {
            let DirectoryBody::Visit(page) = body else { panic!("{body:?}") };
            page
        })
        .collect()
}

fn directory(port: Port, body: DirectoryBody<'_>, bench: &mut Bench) {
    let message = DirectoryMessage { token: RequestId(9), body };
    let bth = Bth::new(Opcode::UdSendOnly, HOME.endpoint.qpn, Psn::new(0));
    let ext = Extension::Deth(Deth { qkey: HOME.endpoint.qkey, src_qp: Qpn::new(0x77) });
    let mut frame = vec![];
    Packet::emit_with(&bth, &ext, message.len(), &mut frame, |bytes| message.emit(bytes));
    bench.hear(port, &frame);
}

/// A read of a lent page past the caches is deferred, and the switch is told. Once the switch reports that no
/// host has the page, the read succeeds (PROTOCOL 12.28).
#[test]
fn a_lent_page_is_not_read() {
    use super::traversals::{find, list, pad, request};
    use farmem_wire::message::Traverse;
    let mut bench = lent();
    list(&mut bench, VirtAddr::NULL);
    let program = find();
    let scratch = pad(3, 0);
    let asked = |bench: &mut Bench, counter| {
        let body = Body::Traverse(request(&program, &scratch));
        bench.hear(Port::SWITCH, &datagram(&Message { header: header(ALICE, counter), body }));
        let answers = bench.sent.iter().filter(|(port, _)| *port == Port::host(HOST.0));
        let answer = answers.map(|(_, frame)| parse(frame, endpoint(3))).next().unwrap();
        let Body::Traverse(Traverse { iterations, .. }) = answer.body else { panic!("a traversal") };
        (answer.header.status, iterations)
    };
    assert_eq!(asked(&mut bench, 1), (Status::Lent, 0));
    assert_eq!(visits(&bench), [Page::of(addr(0))]);
    let region = Body::RegionRead { addr: addr(8), len: 8, data: &[] };
    bench.hear(Port::SWITCH, &datagram(&Message { header: header(ALICE, 2), body: region }));
    assert_eq!(visits(&bench), [Page::of(addr(0))]);
    directory(Port::SWITCH, DirectoryBody::Clean(Page::of(addr(0)), Seq(4)), &mut bench);
    assert_eq!(asked(&mut bench, 3), (Status::Lent, 0), "the grant itself may be in use");
    directory(Port::SWITCH, DirectoryBody::Clean(Page::of(addr(0)), Seq(5)), &mut bench);
    assert_eq!(asked(&mut bench, 4), (Status::Ok, 3));
}

/// Only hosts write the pages that they were granted, until the page is cleared (PROTOCOL 12.46).
#[test]
fn a_coherent_page_is_only_written_back() {
    let mut bench = lent();
    let write = |counter, at| {
        let body = Body::RegionWrite { addr: addr(at), len: 1, data: &[9] };
        datagram(&Message { header: header(ALICE, counter), body })
    };
    let status = |bench: &Bench| parse(&bench.sent[0].1, endpoint(3)).header.status;
    bench.hear(Port::SWITCH, &write(1, 8));
    assert_eq!(status(&bench), Status::Coherent);
    directory(Port::SWITCH, DirectoryBody::Clean(Page::of(addr(0)), Seq(5)), &mut bench);
    bench.hear(Port::SWITCH, &write(2, 8));
    assert_eq!(status(&bench), Status::Coherent, "hosts may still read it");
    assert_eq!(bench.update(&[Update::Clear { base: addr(0), len: 0x1000 }]), (Status::Ok, 0));
    bench.hear(Port::SWITCH, &write(3, 8));
    assert_eq!((status(&bench), bench.bytes(addr(8), 1)), (Status::Ok, vec![9]));
}

/// A sweep of all memory marks the pages of fenced hosts as lost and reports their number. Only then are
/// pages of the next epoch served, and those of the last one no more.
#[test]
fn a_sweep_begins_an_epoch() {
    let mut bench = lent();
    let epoch = |epoch| Read { seq: Seq(Seq::of_epoch(epoch).0 + 1), page: Page::of(addr(0)), ..read(4) };
    bench.hear_nothing(Port::SWITCH, &frame(PageBody::Read(epoch(1))), DropReason::Epoch);
    let (first, last, fenced) = (Page::FIRST, Page::LAST, HostSet::only(HOST));
    let sweep = Sweep { first, last, seq: Seq::of_epoch(1), fenced, opens: true };
    for lost in [1, 0] {
        directory(Port::CONTROL, DirectoryBody::Sweep(sweep), &mut bench);
        let payload = Packet::parse(&bench.sent[0].1).unwrap().payload;
        let answer = DirectoryMessage { token: RequestId(9), body: DirectoryBody::Swept(sweep, lost) };
        assert_eq!(DirectoryMessage::parse(payload), Ok(answer));
    }
    bench.hear_nothing(Port::SWITCH, &frame(PageBody::Read(epoch(0))), DropReason::Epoch);
    bench.hear(Port::SWITCH, &frame(PageBody::Read(epoch(1))));
    let [(_, PageMessage { body: PageBody::Data(data, _), .. })] = sent(&bench)[..] else {
        panic!("one part")
    };
    assert!(data.lost);
    assert_eq!(bench.update(&[Update::AcceptLost { base: addr(0), len: 1 }]), (Status::Ok, 0));
    bench.hear(Port::SWITCH, &frame(PageBody::Read(epoch(1))));
    assert_eq!(sent(&bench).len(), 4, "its old bytes");
    directory(Port::host(HOST.0), DirectoryBody::Sweep(sweep), &mut bench);
    assert_eq!(bench.notes.last(), Some(&Note::Dropped(DropReason::WrongPort)));
}
