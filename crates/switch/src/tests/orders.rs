//! Resets, fences, listings, and the effects of table updates on cached pages (PROTOCOL 12.41 to 12.45).

use super::*;
use crate::directory::{Outcome, Phase, Trigger};
use farmem_wire::Status;
use farmem_wire::message::{
    Access, DirectoryBody, DirectoryMessage, Done, FetchId, Get, HostSet, Listing, Page, PageBody,
    PageMessage, RecallAck, Region, RegionRow, RegionRowKind, RegionRows, Seq,
};

const PAGE: u64 = 4096;

fn page(addr: u64) -> Page {
    Page::of(VirtAddr(addr))
}

/// Returns the initial region of a page: four pages.
fn region(addr: u64) -> Region {
    Region::around(page(addr), 2)
}

/// Creates a rack with an open directory and two hosts that hold leases.
fn open(slots: usize) -> Scene {
    let mut scene = Scene::new(Budgets { directory_slots: slots, ..Budgets::default() });
    let live = |host| Update::Live { host: HostId(host), generation: 1 };
    scene.update(&rack());
    scene.update(&[live(1), live(2), Update::Directory { newest: Seq(10) }]);
    scene
}

fn page_frame(to: Endpoint, body: PageBody<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    PageMessage { domain: Domain(0), origin: HostId(0), body }.emit(&mut bytes);
    datagram(to, &bytes)
}

fn told(body: DirectoryBody<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    DirectoryMessage { token: RequestId(7), body }.emit(&mut bytes);
    datagram(HOME, &bytes)
}

impl Scene {
    fn get(&mut self, host: u16, addr: u64, access: Access) -> Vec<Out> {
        let session = if host == 1 { SESSION_1_10 } else { SESSION_2_10 };
        let get = Get { page: page(addr), access, id: FetchId(5) };
        self.deliver(Port::host(host), &page_frame(session, PageBody::Get(get)))
    }

    fn order(&mut self, body: DirectoryBody<'_>) -> Vec<Out> {
        self.deliver(Port::CONTROL, &told(body))
    }

    fn acknowledge(&mut self, host: u16, region: Region, seq: u64) -> Vec<Out> {
        let session = if host == 1 { SESSION_1_10 } else { SESSION_2_10 };
        let ack = PageBody::RecallAck(RecallAck { region, seq: Seq(seq), false_invalidations: 0 });
        self.deliver(Port::host(host), &page_frame(session, ack))
    }

    fn done(&mut self, host: u16, addr: u64, seq: u64) {
        let session = if host == 1 { SESSION_1_10 } else { SESSION_2_10 };
        let done = PageBody::Done(Done { page: page(addr), seq: Seq(seq) });
        self.deliver(Port::host(host), &page_frame(session, done));
    }

    fn phase(&self, addr: u64) -> Option<Phase> {
        let mut all = self.switch.directory().expect("open").iter();
        all.find(|(region, _)| region.contains(page(addr))).map(|(_, entry)| entry.phase())
    }
}

/// Returns the messages about the directory that went to a port.
fn said(out: &[Out], to: Port) -> Vec<DirectoryMessage<'_>> {
    let sent = out.iter().filter_map(|out| match out {
        Out::Send(port, bytes) if *port == to => Some(Packet::parse(bytes).expect("a frame").payload),
        _ => None,
    });
    sent.map(|payload| DirectoryMessage::parse(payload).expect("about the directory")).collect()
}

/// Returns the recalled hosts with the number of the recall.
fn recalled(out: &[Out]) -> Vec<(Port, Seq)> {
    let sent = out.iter().filter_map(|out| match out {
        Out::Send(port, bytes) if port.as_host().is_some() => {
            Some((*port, Packet::parse(bytes).expect("a frame")))
        }
        _ => None,
    });
    sent.filter_map(|(port, packet)| match PageMessage::parse(packet.payload).expect("about pages").body {
        PageBody::Recall(_, recall) => Some((port, recall.seq)),
        _ => None,
    })
    .collect()
}

fn answer(body: DirectoryBody<'_>) -> DirectoryMessage<'_> {
    DirectoryMessage { token: RequestId(7), body }
}

/// A reset: both hosts are recalled, and recalled again. When both have given up, the control plane is told
/// until it ends the reset. Then the slot is free.
#[test]
fn a_reset_frees_the_slot() {
    let mut scene = open(8);
    scene.get(1, BASE_1, Access::Shared);
    let awaiting = |hosts: &[u16]| {
        let hosts = hosts.iter().fold(HostSet::EMPTY, |set, &host| set.with(HostId(host)));
        [answer(DirectoryBody::Awaiting(region(BASE_1), Seq(11), hosts))]
    };
    let out = scene.order(DirectoryBody::Reset(page(BASE_1 + PAGE)));
    assert_eq!(recalled(&out), [(Port::host(1), Seq(11)), (Port::host(2), Seq(11))]);
    assert_eq!(said(&out, Port::CONTROL), awaiting(&[1, 2]));
    assert!(scene.acknowledge(1, region(BASE_1), 10).len() == 1, "an earlier one's changes nothing");
    scene.acknowledge(1, region(BASE_1), 11);
    let out = scene.order(DirectoryBody::Reset(page(BASE_1)));
    assert_eq!(recalled(&out), [(Port::host(2), Seq(11))], "only the silent host is asked again");
    assert_eq!(said(&out, Port::CONTROL), awaiting(&[2]));
    let collected =
        DirectoryMessage { token: RequestId(0), body: DirectoryBody::Collected(region(BASE_1), Seq(11)) };
    assert_eq!(said(&scene.acknowledge(2, region(BASE_1), 11), Port::CONTROL), [collected]);
    assert_eq!(
        said(&scene.order(DirectoryBody::Reset(page(BASE_1))), Port::CONTROL),
        [collected],
        "told again"
    );
    for (seq, phase) in [(10, Some(Phase::Collected)), (11, None), (11, None)] {
        let end = DirectoryBody::End(region(BASE_1), Seq(seq));
        let ended = answer(DirectoryBody::Ended(region(BASE_1), Seq(seq)));
        assert_eq!(said(&scene.order(end), Port::CONTROL), [ended]);
        assert_eq!(scene.phase(BASE_1), phase, "end under {seq}");
    }
    let unknown = answer(DirectoryBody::Unknown(page(BASE_1)));
    assert_eq!(said(&scene.order(DirectoryBody::Reset(page(BASE_1))), Port::CONTROL), [unknown]);
}

/// A fence: the owner's region is reset without it, and its page messages are dropped.
#[test]
fn a_fenced_host_is_not_waited_for() {
    let mut scene = open(8);
    scene.get(1, BASE_1, Access::Modified);
    scene.get(2, BASE_2, Access::Shared);
    let out = scene.update(&[Update::Fence { host: HostId(1) }]);
    assert_eq!(recalled(&out), [(Port::host(2), Seq(12))]);
    assert_eq!((scene.phase(BASE_1), scene.phase(BASE_2)), (Some(Phase::Resetting), Some(Phase::Shared)));
    let out = scene.acknowledge(1, region(BASE_1), 12);
    assert_eq!(out, [Out::Note(Note::Dropped(crate::Reason::NoLease))]);
    assert_eq!(said(&scene.acknowledge(2, region(BASE_1), 12), Port::CONTROL).len(), 1);
    let out = scene.get(1, BASE_2, Access::Shared);
    assert_eq!(out.last(), Some(&Out::Note(Note::PageRefused(Status::Unsupported))));
}

/// A host that joined again is not accepted under its old lease, and not forgotten: its earlier life may
/// still read.
#[test]
fn a_host_that_is_gone_is_waited_for() {
    let mut scene = open(8);
    scene.get(1, BASE_1, Access::Modified);
    scene.done(1, BASE_1, 11);
    scene.update(&[Update::PeerGone { port: Port::host(1).0 }, add(HOST_1), session(SESSION_1_10, 1, 10)]);
    let out = scene.get(2, BASE_1, Access::Shared);
    assert_eq!(recalled(&out), [(Port::host(1), Seq(12))]);
    let out = scene.acknowledge(1, region(BASE_1), 12);
    assert_eq!(out, [Out::Note(Note::Dropped(crate::Reason::NoLease))], "its next life knows nothing of it");
}

/// A node leaves: hosts' copies of its pages are recalled at once. The same holds for pages that a domain may
/// no longer write.
#[test]
fn what_is_taken_away_is_recalled() {
    let mut scene = open(8);
    scene.get(1, BASE_1, Access::Shared);
    scene.get(1, BASE_2, Access::Shared);
    scene.update(&[Update::PeerGone { port: Port::node(2).0 }]);
    assert_eq!((scene.phase(BASE_1), scene.phase(BASE_2)), (Some(Phase::Shared), Some(Phase::Resetting)));
    scene.update(&[protect(10, BASE_1, PAGE, Perm::ReadWrite)]);
    assert_eq!(scene.phase(BASE_1), Some(Phase::Shared), "more than before takes nothing back");
    scene.update(&[protect(20, BASE_1 + 3 * PAGE, PAGE, Perm::None)]);
    assert_eq!(scene.phase(BASE_1), Some(Phase::Resetting));
}

/// No slot is left: the control plane is told once until it answers.
#[test]
fn a_full_directory_says_so_once() {
    let mut scene = open(1);
    scene.get(1, BASE_1, Access::Shared);
    let full = DirectoryMessage { token: RequestId(0), body: DirectoryBody::Full(page(BASE_2)) };
    let busy = Some(&Out::Note(Note::PageRefused(Status::Busy))).cloned();
    let out = scene.get(1, BASE_2, Access::Shared);
    assert_eq!((said(&out, Port::CONTROL), out.last().cloned()), (Vec::from([full]), busy.clone()));
    let out = scene.get(1, BASE_2, Access::Shared);
    assert_eq!((said(&out, Port::CONTROL), out.last().cloned()), (Vec::new(), busy));
    scene.order(DirectoryBody::List(Page::FIRST));
    assert_eq!(said(&scene.get(1, BASE_2, Access::Shared), Port::CONTROL), [full]);
}

/// A listing continues where the last part ended, and shows each region once. Splits and merges are applied
/// to idle regions.
#[test]
fn regions_are_listed_and_resized() {
    let mut scene = open(300);
    scene.get(1, BASE_1, Access::Shared);
    scene.order(DirectoryBody::Reset(page(BASE_1)));
    scene.get(1, BASE_2, Access::Shared);
    let row = |region, kind| RegionRow { region, kind, false_invalidations: 0 };
    let rows = |scene: &mut Scene, from| {
        let out = scene.order(DirectoryBody::List(from));
        let [DirectoryMessage { body: DirectoryBody::Listing(listing), .. }] = said(&out, Port::CONTROL)[..]
        else {
            panic!("a listing")
        };
        let Listing { next, used, slots, rows, .. } = listing;
        (next, used, slots, rows.iter().collect::<Vec<_>>())
    };
    let both = Vec::from([
        row(region(BASE_1), RegionRowKind::Resetting),
        row(region(BASE_2), RegionRowKind::Listed),
    ]);
    assert_eq!(rows(&mut scene, Page::FIRST), (None, 2, 300, both.clone()));
    assert_eq!(rows(&mut scene, page(BASE_1 + PAGE)).3, both[1..]);

    let mut orders = Vec::new();
    for order in [row(region(BASE_1), RegionRowKind::Split), row(region(BASE_2), RegionRowKind::Split)] {
        order.emit(&mut orders);
    }
    let out = scene.order(DirectoryBody::Resize(RegionRows::new(&orders).expect("two rows")));
    assert_eq!(out, [Out::Note(Note::Resized { done: 1, refused: 1 })], "one is being reset");
    assert_eq!(rows(&mut scene, page(BASE_2)).3.len(), 2);
    orders.clear();
    row(region(BASE_2), RegionRowKind::Merge).emit(&mut orders);
    scene.order(DirectoryBody::Resize(RegionRows::new(&orders).expect("a row")));
    assert_eq!(rows(&mut scene, page(BASE_2)).3, both[1..]);
}

/// A long directory is listed in parts.
#[test]
fn a_listing_comes_in_parts() {
    let mut scene = open(300);
    let most = farmem_wire::message::ROWS_MAX;
    scene.update(&[protect(10, BASE_2, 1 << 30, Perm::ReadWrite)]);
    (0..most as u64 + 5).for_each(|index| drop(scene.get(1, BASE_2 + index * 4 * PAGE, Access::Shared)));
    let (mut from, mut seen) = (Some(Page::FIRST), Vec::new());
    while let Some(at) = from {
        let out = scene.order(DirectoryBody::List(at));
        let [DirectoryMessage { body: DirectoryBody::Listing(listing), .. }] = said(&out, Port::CONTROL)[..]
        else {
            panic!("a listing")
        };
        seen.push(listing.rows.iter().count());
        from = listing.next;
    }
    assert_eq!(seen, [most, 5]);
}

/// A page is to be read at its node: an owner is recalled and keeps it Shared; without an owner, the node
/// learns that the page is clean.
#[test]
fn a_visit_recalls_the_owner() {
    let mut scene = open(8);
    scene.get(1, BASE_1, Access::Shared);
    let visit = |scene: &mut Scene| {
        let mut bytes = Vec::new();
        DirectoryMessage { token: RequestId(0), body: DirectoryBody::Visit(page(BASE_1)) }.emit(&mut bytes);
        scene.deliver(Port::node(1), &datagram(HOME, &bytes))
    };
    let clean = DirectoryMessage { token: RequestId(0), body: DirectoryBody::Clean(page(BASE_1), Seq(10)) };
    assert_eq!(said(&visit(&mut scene), Port::node(1)), [clean]);
    scene.get(1, BASE_1, Access::Modified);
    scene.done(1, BASE_1, 11);
    let out = visit(&mut scene);
    assert_eq!(recalled(&out), [(Port::host(1), Seq(12))]);
    let stepped = Note::Page(Outcome::Stepped(Phase::Modified, Trigger::Refused));
    assert_eq!(out.last(), Some(&Out::Note(stepped)));
    scene.acknowledge(1, region(BASE_1), 12);
    assert_eq!(scene.phase(BASE_1), Some(Phase::Shared));
}

/// Messages from ports that may not send them are dropped.
#[test]
fn not_everybody_orders() {
    let mut scene = open(8);
    scene.get(1, BASE_1, Access::Shared);
    let reset = told(DirectoryBody::Reset(page(BASE_1)));
    assert_eq!(scene.silent(Port::node(1), &reset), Note::Dropped(crate::Reason::Message));
    let mut bytes = Vec::new();
    answer(DirectoryBody::Reset(page(BASE_1))).emit(&mut bytes);
    scene.deliver(Port::host(1), &datagram(SESSION_1_10, &bytes));
    assert_eq!(scene.phase(BASE_1), Some(Phase::Shared));
    let answered = told(DirectoryBody::Unknown(page(BASE_1)));
    assert_eq!(scene.silent(Port::CONTROL, &answered), Note::Dropped(crate::Reason::Message));
}

/// Pages that are about to move are recalled from all hosts, and no host gets one until the move ends; other
/// pages are unaffected. Only a prefix in the table can be vacated (PROTOCOL 6.24).
#[test]
fn what_is_vacated_is_handed_out_again_where_it_came_to() {
    let mut scene = open(8);
    let base = VirtAddr(BASE_1 + 4 * PAGE);
    let (drain, size_log2) = (Update::Drain { base, size_log2: 14 }, 14);
    let out = scene.update(&[drain]);
    assert_eq!(out.last(), Some(&Out::Note(Note::UpdateRefused { seq: 3, status: Status::Malformed })));
    scene.get(1, base.0, Access::Shared);
    let out = scene.update(&[Update::Translate { base, size_log2, node: NodeId(1) }, drain]);
    assert_eq!(recalled(&out), [(Port::host(1), Seq(11)), (Port::host(2), Seq(11))]);
    scene.acknowledge(1, region(base.0), 11);
    scene.acknowledge(2, region(base.0), 11);
    scene.order(DirectoryBody::End(region(base.0), Seq(11)));
    for _ in 0..2 {
        let refused = scene.get(2, base.0 + PAGE, Access::Modified);
        assert_eq!(refused.last(), Some(&Out::Note(Note::PageRefused(Status::Busy))));
    }
    assert_eq!(scene.phase(base.0), None);
    scene.get(2, BASE_1, Access::Modified);
    assert_eq!(scene.phase(BASE_1), Some(Phase::AwaitDone));
    scene.update(&[Update::Translate { base, size_log2, node: NodeId(2) }]);
    let out = scene.get(2, base.0 + PAGE, Access::Modified);
    assert!(out.iter().any(|out| matches!(out, Out::Send(port, _) if *port == Port::node(2))), "{out:?}");
}
