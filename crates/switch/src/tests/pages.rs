//! Page messages: which requests are allowed, which reach the directory, and where its actions go.

use super::*;
use crate::Reason;
use crate::directory::{Outcome, Phase, Trigger};
use farmem_wire::Status;
use farmem_wire::message::{
    Access, Done, FetchId, Get, HostSet, PAGE_LEN, Page, PageBody, PageMessage, Part, REGION_ORDER_FIRST,
    Read, Recall, RecallAck, Refusal, Region, Seq, WriteBack, WriteBackAck,
};

fn page(addr: u64) -> Page {
    Page::of(VirtAddr(addr))
}

fn from_host(session: Endpoint, body: PageBody<'_>) -> Vec<u8> {
    datagram(session, &page_payload(Domain(0), HostId(0), body))
}

fn page_payload(domain: Domain, origin: HostId, body: PageBody<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    PageMessage { domain, origin, body }.emit(&mut bytes);
    bytes
}

fn get(addr: u64, access: Access) -> PageBody<'static> {
    PageBody::Get(Get { page: page(addr), access, id: FetchId(5) })
}

/// Creates a rack with an open directory.
fn open() -> Scene {
    let mut scene = Scene::rack();
    let live = |host| Update::Live { host: HostId(host), generation: 1 };
    let out = scene.update(&[live(1), live(2), Update::Directory { newest: Seq(10) }]);
    assert_eq!(out.last(), Some(&Out::Note(Note::Updated { seq: 2 })));
    scene
}

impl Scene {
    /// Delivers a page message; returns all resulting frames with their receivers, and the note.
    fn page(&mut self, port: Port, frame: &[u8]) -> (Vec<(Port, PageMessage<'static>)>, Note) {
        let mut frames = Vec::new();
        let mut last = None;
        for out in self.deliver(port, frame) {
            match out {
                Out::Send(port, bytes) => {
                    let packet = Packet::parse(&bytes).expect("the switch emits frames that parse");
                    let payload = alloc::boxed::Box::leak(packet.payload.to_vec().into_boxed_slice());
                    frames.push((port, PageMessage::parse(payload).expect("page messages that parse")));
                }
                Out::Note(note) => last = Some(note),
                Out::Peer(_) => {}
            }
        }
        (frames, last.expect("every frame ends in a note"))
    }
}

fn refusal(addr: u64, status: Status) -> PageBody<'static> {
    PageBody::Refusal(Refusal { page: page(addr), id: FetchId(5), status })
}

/// A read goes to the page's node, for the host of the session; the region has got a slot.
#[test]
fn a_get_goes_through_the_directory_to_the_node() {
    let mut scene = open();
    let at = BASE_1 + 3 * PAGE_LEN as u64;
    let (frames, note) = scene.page(Port::host(1), &from_host(SESSION_1_10, get(at, Access::Shared)));
    let read = Read {
        page: page(at),
        access: Access::Shared,
        host: HostId(1),
        id: FetchId(5),
        seq: Seq(10),
        clean: true,
        behind: false,
        granted: true,
        done_due: false,
    };
    let message = PageMessage { domain: Domain(0), origin: HostId(1), body: PageBody::Read(read) };
    assert_eq!(frames, [(Port::node(1), message)]);
    assert_eq!(note, Note::Page(Outcome::Stepped(Phase::Invalid, Trigger::ToRead)));
    let slots = scene.switch.directory().expect("open");
    assert_eq!((slots.used(), slots.budget()), (1, crate::directory::SLOTS_DEFAULT));
    let (region, _) = slots.iter().next().expect("one region");
    assert_eq!(region, Region::around(page(at), REGION_ORDER_FIRST));
}

/// A host without access gets a final refusal; its request does not reach the directory.
#[test]
fn a_get_is_refused_as_any_other_request() {
    let mut scene = open();
    let cases = [
        (SESSION_1_10, BASE_1 + VMA_LEN / 2, Access::Modified, Status::NoPermission),
        (SESSION_1_20, BASE_1, Access::Shared, Status::NotMapped),
        (SESSION_1_10, BASE_1 + VMA_LEN, Access::Shared, Status::NotMapped),
    ];
    for (session, at, access, status) in cases {
        let (frames, note) = scene.page(Port::host(1), &from_host(session, get(at, access)));
        let message = PageMessage { domain: Domain(0), origin: HostId(1), body: refusal(at, status) };
        assert_eq!((frames, note), (Vec::from([(Port::host(1), message)]), Note::PageRefused(status)));
    }
    assert_eq!(scene.switch.directory().map(|slots| slots.used()), Some(0));
    let mut closed = Scene::rack();
    let frame = from_host(SESSION_1_10, get(BASE_1, Access::Shared));
    let (_, note) = closed.page(Port::host(1), &frame);
    assert_eq!(note, Note::PageRefused(Status::Unsupported), "the host has no lease");
    closed.update(&[Update::Live { host: HostId(1), generation: 1 }]);
    let (_, note) = closed.page(Port::host(1), &frame);
    assert_eq!(note, Note::PageRefused(Status::Busy), "the directory is closed, and will be opened");
}

/// A writer: the sharers are recalled, each with the list of all. A node's proxy acknowledgement counts for
/// its host.
#[test]
fn a_recall_goes_to_the_sharers_and_only_to_them() {
    let mut scene = open();
    let _ = scene.page(Port::host(1), &from_host(SESSION_1_10, get(BASE_1, Access::Shared)));
    let (frames, _) = scene.page(Port::host(2), &from_host(SESSION_2_10, get(BASE_1, Access::Modified)));
    let region = Region::around(page(BASE_1), REGION_ORDER_FIRST);
    let recall = Recall { region, seq: Seq(11), keep: false, wanted: Some(0) };
    assert_eq!(frames.len(), 2);
    assert_eq!(
        (frames[0].0, frames[0].1.body),
        (Port::host(1), PageBody::Recall(HostSet::only(HostId(1)), recall))
    );
    assert_eq!(frames[1].0, Port::node(1));

    let ack = |seq| PageBody::RecallAck(RecallAck { region, seq: Seq(seq), false_invalidations: 0 });
    let proxy = |seq, origin| datagram(HOME, &page_payload(Domain(0), HostId(origin), ack(seq)));
    for (frame, why) in [(proxy(10, 1), "an earlier one"), (proxy(11, 2), "it was not asked")] {
        assert_eq!(scene.page(Port::node(1), &frame), (Vec::new(), Note::Page(Outcome::Stale)), "{why}");
    }
    let (frames, _) = scene.page(Port::node(1), &proxy(11, 1));
    assert!(
        matches!(frames[..], [(port, PageMessage { body: PageBody::Grant(_), .. })] if port == Port::host(2))
    );
    let done = PageBody::Done(Done { page: page(BASE_1), seq: Seq(11) });
    let (_, note) = scene.page(Port::host(2), &from_host(SESSION_2_10, done));
    assert_eq!(note, Note::Page(Outcome::Stepped(Phase::AwaitDone, Trigger::Done)));
}

/// A write-back is forwarded with domain and host, whatever the domain's present rights; one of an unmapped
/// page is void.
#[test]
fn a_write_back_is_passed_on() {
    let mut scene = open();
    let bytes = [7; PAGE_LEN];
    let write_back = |at| WriteBack { page: page(at), grant: Seq(11), ack: None };
    let body = |at| PageBody::WriteBack(write_back(at), Part::WHOLE, &bytes);
    let (frames, note) = scene.page(Port::host(1), &from_host(SESSION_1_10, body(BASE_2)));
    let message = PageMessage { domain: Domain(10), origin: HostId(1), body: body(BASE_2) };
    assert_eq!(
        (frames, note),
        (Vec::from([(Port::node(2), message)]), Note::PageForwarded { node: NodeId(2) })
    );
    let read_only = BASE_1 + VMA_LEN / 2;
    let (frames, note) = scene.page(Port::host(1), &from_host(SESSION_1_10, body(read_only)));
    assert_eq!((frames[0].0, frames[0].1.body), (Port::node(1), body(read_only)));
    assert_eq!(note, Note::PageForwarded { node: NodeId(1) });
    let nowhere = 1 << 60;
    let (frames, note) = scene.page(Port::host(1), &from_host(SESSION_1_10, body(nowhere)));
    let ack = WriteBackAck { page: page(nowhere), grant: Seq(11), ack: None };
    assert_eq!((frames[0].0, frames[0].1.body), (Port::host(1), PageBody::WriteBackAck(ack)));
    assert_eq!(note, Note::PageRefused(Status::NotMapped));
}

/// Messages that a host or a node may not send are dropped.
#[test]
fn what_is_not_theirs_to_say_is_dropped() {
    let mut scene = open();
    let refusal = refusal(BASE_1, Status::Busy);
    let frame = from_host(SESSION_1_10, refusal);
    assert_eq!(scene.silent(Port::host(1), &frame), Note::Dropped(Reason::Message));
    let frame = datagram(HOME, &page_payload(Domain(0), HostId(1), refusal));
    assert_eq!(scene.silent(Port::node(1), &frame), Note::Dropped(Reason::NotContinuation));
    let mut payload = page_payload(Domain(0), HostId(0), get(BASE_1, Access::Shared));
    payload.push(0);
    let frame = datagram(SESSION_1_10, &payload);
    assert_eq!(scene.silent(Port::host(1), &frame), Note::Dropped(Reason::Message));
}
