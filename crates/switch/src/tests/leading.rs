//! Switches of a FatTree: a traversal goes up to the core, down to an edge, and out to its node. At each
//! switch it descends a step or two.

use super::*;
use crate::Reason;
use farmem_index::{
    Child, ROUTES_KIND, Range, RouteSection, RoutedTree, SECTION_KIND, ServerRoute, SetNode, TreeSection,
};
use farmem_machine::Duration;
use farmem_transport::image::{Image, SectionKey};
use farmem_wire::message::{Lead, LeadBody, SWITCHES_MAX};

mod batches;
mod hostile;
mod keyed;

const ROOT: VirtAddr = VirtAddr(BASE_1 + 0x200);
const PROGRAM: ProgramHash = ProgramHash([0xa0; 16]);
const RACK: Peer = peer(Port::SWITCH, 0x5317c, 0x5e5e_5e5e);
const CORE: Peer = peer(Port::index(1), 0x5317c, 0x5e5e_5e5e);
const POD: Peer = peer(Port::index(2), 0x5317c, 0x5e5e_5e5e);
const EDGE: Peer = peer(Port::index(3), 0x5317c, 0x5e5e_5e5e);

fn child(addr: u64, level: u8) -> Child {
    Child { addr: VirtAddr(addr), level }
}

fn way(n: u16, base: u64, next: Peer) -> ServerRoute {
    ServerRoute { base: VirtAddr(base), size_log2: 40, server: NodeId(n), port: next.port.0 }
}

/// Returns an image of next hops, and of domain 10's part of the tree.
fn image(ways: &RouteSection, tree: Option<&TreeSection>) -> Image {
    let (ways, tree) = (ways.emit(), tree.map(TreeSection::emit));
    let key = |domain, kind, id| SectionKey { domain: Domain(domain), kind, id };
    let mut sections = Vec::from([(key(0, ROUTES_KIND, 0), &ways[..])]);
    sections.extend(tree.as_ref().map(|tree| (key(10, SECTION_KIND, ROOT.0), &tree[..])));
    Image::of(&sections).expect("a short image")
}

fn tree(ranges: &[(u64, Child)], sets: &[SetNode]) -> TreeSection {
    let ends = ranges.iter().skip(1).map(|(first, _)| first - 1).chain([u64::MAX]);
    let ranges = ranges.iter().zip(ends).map(|(&(first, child), last)| Range { first, last, child });
    // One set for each node: all are on the path to one leaf.
    let sets = sets.iter().map(|node| Vec::from([node.clone()])).collect();
    TreeSection { root: ROOT, programs: Vec::from([PROGRAM]), ranges: ranges.collect(), sets }
}

fn node(addr: u64, pivot: u64, children: [Child; 2]) -> SetNode {
    SetNode { addr: VirtAddr(addr), pivots: Vec::from([pivot]), children: Vec::from(children) }
}

/// Creates a switch that knows all others, and both nodes.
fn index_switch(image: &Image) -> Scene {
    let mut scene = Scene::new(Budgets::default());
    scene.update(&[RACK, CORE, POD, EDGE, NODE_1, NODE_2].map(add));
    scene.activate(5, image);
    scene
}

fn core() -> Scene {
    let ways = RouteSection {
        servers: Vec::from([way(1, BASE_1, POD), way(2, BASE_2, EDGE)]),
        ..RouteSection::default()
    };
    let ranges = [(0, child(BASE_1 + 0x300, 4)), (1000, child(BASE_2 + 0x300, 4))];
    index_switch(&image(&ways, Some(&tree(&ranges, &[]))))
}

fn pod() -> Scene {
    let ways = RouteSection { servers: Vec::from([way(1, BASE_1, EDGE)]), ..RouteSection::default() };
    let first = node(BASE_1 + 0x300, 100, [child(BASE_1 + 0x400, 3), child(BASE_1 + 0x500, 3)]);
    let second = node(BASE_1 + 0x400, 50, [child(BASE_1 + 0x600, 2), child(BASE_1 + 0x700, 2)]);
    index_switch(&image(&ways, Some(&tree(&[(0, child(ROOT.0, 5))], &[first, second]))))
}

fn edge() -> Scene {
    let ways = RouteSection {
        servers: Vec::from([way(1, BASE_1, NODE_1), way(2, BASE_2, NODE_2)]),
        ..RouteSection::default()
    };
    let third = node(BASE_1 + 0x700, 70, [child(BASE_1 + 0x800, 1), child(BASE_1 + 0x900, 1)]);
    let fourth = node(BASE_1 + 0x800, 60, [child(BASE_1 + 0xa00, 0), child(BASE_1 + 0xb00, 0)]);
    index_switch(&image(&ways, Some(&tree(&[(0, child(ROOT.0, 5))], &[third, fourth]))))
}

fn rack_of(up: Option<u32>) -> Scene {
    let mut scene = Scene::rack();
    scene.update(&[add(CORE)]);
    let trees = Vec::from([RoutedTree { domain: Domain(10), root: ROOT, programs: Vec::from([PROGRAM]) }]);
    scene.activate(5, &image(&RouteSection { up, trees, ..RouteSection::default() }, None));
    scene
}

fn request(counter: u32, pad: &[u8], again: bool) -> Message<'_> {
    let message = traverse(1, ROOT.0, 3);
    let Body::Traverse(body) = message.body else { panic!("a traversal") };
    let header = Header { again, request: id(1, counter), ..message.header };
    Message { header, body: Body::Traverse(Traverse { program: PROGRAM, scratch: pad, ..body }) }
}

/// Returns the header that the first hop writes: stamped, with the same number of hops.
fn led_header(message: &Message<'_>) -> Header {
    Header { hops: message.header.hops, ..stamped(message, 10, 1).header }
}

/// PROTOCOL 16.5 to 16.7: at each switch the pointer descends a step or two; the node gets the request with
/// another pointer.
#[test]
fn a_traversal_is_led_from_the_core_to_its_node() {
    let (mut rack, mut core, mut pod, mut edge) = (rack_of(Some(CORE.port.0)), core(), pod(), edge());
    let pad = [&55_u64.to_le_bytes()[..], &[7; 9]].concat();
    let message = request(4, &pad, false);
    let (up, note) = rack.relayed(HOST_1.port, &frame(SESSION_1_10, &message), CORE);
    assert_eq!(note, Note::RoutedUp { index: 1 });
    let led = |payload: &[u8], server: Option<u16>, at: u64, passed: u8| {
        let lead = Lead::parse(payload).expect("a traversal between switches");
        let Body::Traverse(traverse) = message.body else { panic!("a traversal") };
        let expected = Lead {
            header: led_header(&message),
            root: ROOT,
            server: server.map(NodeId),
            switches: SWITCHES_MAX - passed,
            led: LeadBody::One(Traverse { cur_ptr: VirtAddr(at), ..traverse }),
        };
        assert_eq!(lead, expected);
    };
    led(&up, None, ROOT.0, 0);
    let (down, note) = core.relayed(RACK.port, &datagram(HOME, &up), POD);
    assert_eq!(note, Note::RoutedDown { index: 2 });
    led(&down, Some(1), BASE_1 + 0x300, 1);
    let (down, note) = pod.relayed(CORE.port, &datagram(HOME, &down), EDGE);
    assert_eq!(note, Note::RoutedDown { index: 3 });
    led(&down, Some(1), BASE_1 + 0x700, 2);
    let (out, note) = edge.relayed(POD.port, &datagram(HOME, &down), NODE_1);
    assert_eq!(note, Note::RoutedOut { node: NodeId(1) });
    let at = |at| {
        let Body::Traverse(traverse) = message.body else { panic!("a traversal") };
        let moved =
            Message { body: Body::Traverse(Traverse { cur_ptr: VirtAddr(at), ..traverse }), ..message };
        payload(&stamped(&moved, 10, 1))
    };
    assert_eq!(out, at(BASE_1 + 0xa00), "four steps below the fat root, and one hop");
    // The counters of this key: a range of the core, and a branch of each set.
    let counted = |scene: &Scene| {
        let tables = scene.switch.soft().index().tables(Domain(10), ROOT).expect("the image is active");
        tables.counters(0).collect::<Vec<u32>>()
    };
    assert_eq!(counted(&core), [1, 0]);
    assert_eq!(counted(&pod), [0, 1, 0, 0, 1]);
    assert_eq!(counted(&edge), [0, 1, 0, 1, 0]);
    // A key in no set, of another server, goes on unchanged.
    let pad = 5_000_u64.to_le_bytes();
    let (up, _) = rack.relayed(HOST_1.port, &frame(SESSION_1_10, &request(5, &pad, false)), CORE);
    let (down, _) = core.relayed(RACK.port, &datagram(HOME, &up), EDGE);
    let (out, note) = edge.relayed(CORE.port, &datagram(HOME, &down), NODE_2);
    assert_eq!(note, Note::RoutedOut { node: NodeId(2) });
    let Ok(Message { body: Body::Traverse(out), .. }) = Message::parse(&out) else { panic!("a traversal") };
    assert_eq!(out.cur_ptr, VirtAddr(BASE_2 + 0x300));
}

/// PROTOCOL 16.6: unnamed traversals, repeated ones, and those without an answerable host are routed as
/// without a fabric.
#[test]
fn what_goes_up_is_for_the_first_time_and_named() {
    let mut rack = rack_of(Some(CORE.port.0));
    let pad = 55_u64.to_le_bytes();
    let forwarded = |rack: &mut Scene, message: &Message<'_>| {
        let (_, note) = rack.relayed(HOST_1.port, &frame(SESSION_1_10, message), NODE_1);
        assert_eq!(note, Note::Forwarded { node: NodeId(1) });
    };
    forwarded(&mut rack, &request(4, &pad, true));
    let Body::Traverse(body) = request(5, &pad, false).body else { panic!("a traversal") };
    for (program, cur_ptr) in [(ProgramHash([0xb0; 16]), ROOT), (PROGRAM, VirtAddr(ROOT.0 + 0x100))] {
        let body = Body::Traverse(Traverse { program, cur_ptr, ..body });
        forwarded(&mut rack, &Message { body, ..request(6, &pad, false) });
    }
    // A request that the temporary header would make too long for its PMTU.
    let fixed = Header::LEN + Traverse::FIXED_LEN + body.code.len();
    let room = |pmtu: usize| alloc::vec![7; pmtu - fixed];
    forwarded(&mut rack, &request(7, &room(1024), false));
    let (up, _) = rack.relayed(HOST_1.port, &frame(SESSION_1_10, &request(8, &room(1024 - 16), false)), CORE);
    assert_eq!(up.len(), 1024);
    // Another domain's traversal is refused here, as its root is.
    let refused = frame(SESSION_1_20, &request(9, &pad, false));
    let (_, note) = rack.relayed(HOST_1.port, &refused, HOST_1);
    assert_eq!(note, Note::Refused(farmem_wire::Status::NotMapped));
    // Without a path up, or with an unknown core, nothing goes up.
    rack.update(&[Update::PeerGone { port: CORE.port.0 }]);
    forwarded(&mut rack, &request(10, &pad, false));
    forwarded(&mut rack_of(None), &request(11, &pad, false));
    // A path up must lead to an index switch's port.
    forwarded(&mut rack_of(Some(NODE_2.port.0)), &request(12, &pad, false));
}

/// PROTOCOL 16.7, 6.2, 6.10: frames that an index switch drops, and frames that it returns.
#[test]
fn what_cannot_be_led_on_goes_back() {
    let lead = Lead {
        header: led_header(&request(4, &[], false)),
        root: ROOT,
        server: None,
        switches: 2,
        led: match request(4, &[], false).body {
            Body::Traverse(traverse) => LeadBody::One(traverse),
            _ => panic!("a traversal"),
        },
    };
    let of = |lead: &Lead<'_>| {
        let mut bytes = Vec::new();
        lead.emit(&mut bytes);
        datagram(HOME, &bytes)
    };
    let mut core = core();
    let reason = |scene: &mut Scene, port: Port, lead: &Lead<'_>| match scene.silent(port, &of(lead)) {
        Note::Dropped(reason) => reason,
        other => panic!("it is dropped: {other:?}"),
    };
    let back = |scene: &mut Scene, lead: &Lead<'_>| {
        let (back, note) = scene.relayed(RACK.port, &of(lead), RACK);
        assert_eq!((back, note), (payload(&lead.message()), Note::RoutedBack));
    };
    assert_eq!(reason(&mut core, RACK.port, &Lead { switches: 0, ..lead }), Reason::TooManySwitches);
    assert_eq!(
        reason(&mut core, RACK.port, &Lead { header: Header { hops: 0, ..lead.header }, ..lead }),
        Reason::Message
    );
    // From an unknown switch.
    assert_eq!(reason(&mut core, Port::index(9), &lead), Reason::WrongPort);
    assert_eq!(reason(&mut core, HOST_1.port, &lead), Reason::WrongPort);
    assert_eq!(reason(&mut core, NODE_1.port, &lead), Reason::Message);
    assert_eq!(core.silent(RACK.port, &datagram(HOME, b"\x01\x12 no lead")), Note::Dropped(Reason::Message));
    // An unknown tree, domain or server.
    back(&mut core, &Lead { root: VirtAddr(0x300), ..lead });
    let other = Header { domain: Domain(20), ..lead.header };
    back(&mut core, &Lead { header: other, ..lead });
    back(&mut core, &Lead { server: Some(NodeId(3)), ..lead });
    back(&mut core, &Lead { server: Some(NodeId(0xffff)), ..lead });
    // The next switch left: the traversal returns from here, with its progress.
    core.update(&[Update::PeerGone { port: POD.port.0 }]);
    let (given, note) = core.relayed(RACK.port, &of(&lead), RACK);
    let LeadBody::One(traverse) = lead.led else { panic!("a traversal") };
    let further = LeadBody::One(Traverse { cur_ptr: VirtAddr(BASE_1 + 0x300), ..traverse });
    assert_eq!((given, note), (payload(&Lead { led: further, ..lead }.message()), Note::RoutedBack));
    core.update(&[Update::PeerGone { port: RACK.port.0 }]);
    assert_eq!(reason(&mut core, EDGE.port, &lead), Reason::NoRoute);
    // A restarted switch knows nothing but the rack's switch.
    let mut empty = Scene::new(Budgets::default());
    assert_eq!(reason(&mut empty, RACK.port, &lead), Reason::WrongPort);
    empty.update(&[add(RACK)]);
    back(&mut empty, &lead);
    // An edge sends to the server that the core found, and to no other node.
    let ways = RouteSection { servers: Vec::from([way(1, BASE_1, NODE_2)]), ..RouteSection::default() };
    back(&mut index_switch(&image(&ways, None)), &Lead { server: Some(NodeId(1)), ..lead });
    // The rack's switch handles it as a continuation from a node.
    let mut rack = rack_of(Some(CORE.port.0));
    let (out, note) = rack.relayed(CORE.port, &frame(HOME, &lead.message()), NODE_1);
    assert_eq!(note, Note::Continued { node: NodeId(1) });
    assert_eq!(out, payload(&stamped(&lead.message(), 10, 1)));
    // A host cannot lead: over its session this is a message of an unknown kind.
    let mut bytes = Vec::new();
    Lead { header: request(4, &[], false).header, ..lead }.emit(&mut bytes);
    let (_, note) = rack.relayed(HOST_1.port, &datagram(SESSION_1_10, &bytes), HOST_1);
    assert_eq!(note, Note::Refused(farmem_wire::Status::Unsupported));
}

/// PROTOCOL 16.8: a fabric that loses requests is bypassed; one traversal at a time is still tried.
#[test]
fn a_dead_fabric_is_left() {
    let mut rack = rack_of(Some(CORE.port.0));
    let pad = 55_u64.to_le_bytes();
    let mut at = Instant::ZERO;
    let mut send = |counter: u32, again: bool| {
        at += Duration::from_millis(1);
        rack.switch.handle(
            at,
            Event::Frame { port: HOST_1.port, bytes: &frame(SESSION_1_10, &request(counter, &pad, again)) },
            &mut rack.outbox,
        );
        let mut notes = Vec::new();
        rack.outbox.drain(|action| {
            if let Action::Note(note) = action {
                notes.push(note)
            }
        });
        matches!(notes[..], [Note::RoutedUp { .. }])
    };
    let lost: Vec<bool> = (1..=3).flat_map(|counter| [send(counter, false), send(counter, true)]).collect();
    assert_eq!(lost, [true, false, true, false, true, false], "what comes again goes without the fabric");
    assert!(send(10, false), "one is watched");
    assert!((11..60).all(|counter| !send(counter, false)), "and no other goes up");
}

/// PROTOCOL 16.4: an invalid section of next hops is refused with the image.
#[test]
fn a_broken_section_of_ways_is_refused() {
    use farmem_wire::message::{ImageFault, ImageRule};
    for (domain, id, bytes) in [
        (0, 0, &b"no words"[..]),
        (10, 0, &RouteSection::default().emit()),
        (0, 1, &RouteSection::default().emit()),
    ] {
        let key = SectionKey { domain: Domain(domain), kind: ROUTES_KIND, id };
        let image = Image::of(&[(key, bytes)]).expect("a short image");
        let fault = ImageFault { rule: ImageRule::Content, row: 0 };
        Scene::rack().refuses(5, &image, fault);
    }
}
