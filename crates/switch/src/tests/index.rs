//! The index: a traversal of a tree begins at the deepest node that the switch knows.

use super::*;
use farmem_index::{Child, Range, SECTION_KIND, SetNode, TreeSection};
use farmem_transport::image::{Image, SectionKey};
use farmem_wire::Status;
use farmem_wire::message::{
    Batch, Count, Counts, ImageFault, ImageRule, Pair, PairBuf, SOFT_COUNTS_MAX, SoftBody, SoftMessage,
};

/// Returns a tree: keys below 1000 are below a node of node 1, others below one of node 2. The latter's
/// children for 1000 and for 2000 on are known too.
pub(super) fn section() -> TreeSection {
    let child = |addr, level| Child { addr: VirtAddr(addr), level };
    let ranges = Vec::from([
        Range { first: 0, last: 999, child: child(BASE_1 + 0x300, 1) },
        Range { first: 1000, last: u64::MAX, child: child(BASE_2 + 0x300, 1) },
    ]);
    let children = Vec::from([child(BASE_2 + 0x400, 0), child(BASE_1 + 0x500, 0)]);
    let node = SetNode { addr: VirtAddr(BASE_2 + 0x300), pivots: Vec::from([2000]), children };
    TreeSection { root: ROOT, programs: Vec::from([PROGRAM]), ranges, sets: Vec::from([Vec::from([node])]) }
}

pub(super) const ROOT: VirtAddr = VirtAddr(BASE_1 + 0x200);
const PROGRAM: ProgramHash = ProgramHash([0xa0; 16]);

pub(super) fn image(sections: &[TreeSection]) -> Image {
    let bytes: Vec<Vec<u8>> = sections.iter().map(TreeSection::emit).collect();
    let key = |id, domain| SectionKey { domain: Domain(domain), kind: SECTION_KIND, id };
    // One section per domain, from 10 on.
    let keyed = (10..)
        .zip(sections)
        .zip(&bytes)
        .map(|((domain, tree), bytes)| (key(tree.root.0, domain), &bytes[..]));
    Image::of(&keyed.collect::<Vec<_>>()).expect("a short image")
}

fn request(at: VirtAddr, program: ProgramHash, pad: &[u8]) -> Message<'_> {
    let message = traverse(1, at.0, 1);
    let Body::Traverse(body) = message.body else { panic!("a traversal") };
    Message { body: Body::Traverse(Traverse { program, scratch: pad, ..body }), ..message }
}

/// PROTOCOL 13.14: checks that the node gets the request with another pointer.
fn begins_at(scene: &mut Scene, key: u64, at: u64, node: Peer) {
    let pad = [&key.to_le_bytes()[..], &[7; 9]].concat();
    let message = request(ROOT, PROGRAM, &pad);
    let (forwarded, note) = scene.relayed(HOST_1.port, &frame(SESSION_1_10, &message), node);
    let number = NodeId(node.port.as_node().expect("a node"));
    assert_eq!(note, Note::Indexed { node: number });
    assert_eq!(Message::parse(&forwarded), Ok(stamped(&request(VirtAddr(at), PROGRAM, &pad), 10, 1)));
}

#[test]
fn a_traversal_begins_at_the_deepest_node_that_is_known() {
    let mut scene = Scene::rack();
    scene.activate(5, &image(&[section()]));
    begins_at(&mut scene, 0, BASE_1 + 0x300, NODE_1);
    begins_at(&mut scene, 999, BASE_1 + 0x300, NODE_1);
    begins_at(&mut scene, 1000, BASE_2 + 0x400, NODE_2);
    begins_at(&mut scene, 1999, BASE_2 + 0x400, NODE_2);
    begins_at(&mut scene, 2000, BASE_1 + 0x500, NODE_1);
    begins_at(&mut scene, u64::MAX, BASE_1 + 0x500, NODE_1);
    // The next image has only the root.
    let ranges = Vec::from([Range { first: 0, last: u64::MAX, child: Child { addr: ROOT, level: 2 } }]);
    scene.activate(6, &image(&[TreeSection { ranges, sets: Vec::new(), ..section() }]));
    begins_at(&mut scene, 2000, ROOT.0, NODE_1);
}

/// PROTOCOL 13.14, 6.25: each pair of a batch begins at its own node, and all go to the first one's memory
/// node.
#[test]
fn each_pair_of_a_batch_begins_further_down() {
    let mut scene = Scene::rack();
    scene.activate(5, &image(&[section()]));
    let (low, high) = (7_u64.to_le_bytes(), 1500_u64.to_le_bytes());
    let header = request(ROOT, PROGRAM, &[]).header;
    let pair = |counter, cur_ptr, scratch| Pair {
        counter,
        status: Status::Ok,
        cur_ptr,
        iterations: 0,
        limit: 9,
        scratch,
    };
    let batch = |program, starts: [u64; 3]| {
        let mut pairs = PairBuf::default();
        let pads = [&high[..], &low, &high];
        for ((n, start), pad) in (0..).zip(starts).zip(pads) {
            pairs.push(&pair(header.request.counter() + n, VirtAddr(start), pad));
        }
        (program, pairs)
    };
    let of = |(program, pairs): &(ProgramHash, PairBuf)| {
        let body = Body::Batch(Batch::of(&header, *program, &[], pairs));
        let mut bytes = Vec::new();
        Message { header, body }.emit(&mut bytes);
        bytes
    };
    let elsewhere = BASE_1 + 0x900;
    let asked = batch(PROGRAM, [ROOT.0, ROOT.0, elsewhere]);
    let begins = batch(PROGRAM, [BASE_2 + 0x400, BASE_1 + 0x300, elsewhere]);
    let (asked, begins) = (of(&asked), of(&begins));
    let sent = frame(SESSION_1_10, &Message::parse(&asked).expect("a batch"));
    let (forwarded, note) = scene.relayed(HOST_1.port, &sent, NODE_2);
    assert_eq!(note, Note::Indexed { node: NodeId(2) });
    let expected = Message::parse(&begins).expect("a batch");
    assert_eq!(Message::parse(&forwarded), Ok(stamped(&expected, 10, 1)));
    // Another program is unaffected.
    let other = of(&batch(ProgramHash([0xb0; 16]), [ROOT.0, ROOT.0, elsewhere]));
    let other = Message::parse(&other).expect("a batch");
    let (forwarded, note) = scene.relayed(HOST_1.port, &frame(SESSION_1_10, &other), NODE_1);
    assert_eq!(note, Note::Forwarded { node: NodeId(1) });
    assert_eq!(Message::parse(&forwarded), Ok(stamped(&other, 10, 1)));
}

/// The index does not affect other pointers and other programs.
#[test]
fn what_is_not_named_begins_where_it_says() {
    let mut scene = Scene::rack();
    scene.activate(5, &image(&[section()]));
    for (at, program) in [(VirtAddr(ROOT.0 + 0x100), PROGRAM), (ROOT, ProgramHash([0xb0; 16]))] {
        let message = request(at, program, &[1; 8]);
        let (forwarded, note) = scene.relayed(HOST_1.port, &frame(SESSION_1_10, &message), NODE_1);
        assert_eq!(note, Note::Forwarded { node: NodeId(1) });
        assert_eq!(Message::parse(&forwarded), Ok(stamped(&message, 10, 1)));
    }
}

/// PROTOCOL 13.14, 6.6: an index that leads to forbidden addresses gives a domain no access.
#[test]
fn protection_is_checked_where_the_traversal_begins() {
    let mut scene = Scene::rack();
    let outside = Child { addr: VirtAddr(BASE_2 + VMA_LEN), level: 0 };
    let ranges = Vec::from([Range { first: 0, last: u64::MAX, child: outside }]);
    scene.activate(5, &image(&[TreeSection { ranges, sets: Vec::new(), ..section() }]));
    let message = request(ROOT, PROGRAM, &[1; 8]);
    let (answer, note) = scene.relayed(HOST_1.port, &frame(SESSION_1_10, &message), HOST_1);
    assert_eq!(note, Note::Refused(Status::NotMapped));
    let Ok(Message { body: Body::Traverse(body), .. }) = Message::parse(&answer) else {
        panic!("a traversal")
    };
    assert_eq!(body.cur_ptr, outside.addr, "the host sees where it could not go");
}

/// PROTOCOL 13.13: an image with an invalid or duplicate tree is not active; the active one stays.
#[test]
fn an_image_with_a_wrong_tree_is_refused() {
    let mut scene = Scene::rack();
    scene.activate(5, &image(&[section()]));
    let gap = TreeSection { ranges: section().ranges[1..].to_vec(), ..section() };
    let stores = TreeSection { programs: Vec::from([ProgramHash([1; 16])]), ..section() };
    for (epoch, wrong, row) in [(6, [gap].as_slice(), 0), (7, &[section(), stores], 1)] {
        scene.refuses(epoch, &image(wrong), ImageFault { rule: ImageRule::Content, row });
        begins_at(&mut scene, 5, BASE_1 + 0x300, NODE_1);
    }
    let elsewhere = SectionKey { domain: Domain(10), kind: SECTION_KIND, id: ROOT.0 + 1 };
    let elsewhere = Image::of(&[(elsewhere, &section().emit())]).expect("a short image");
    scene.refuses(8, &elsewhere, ImageFault { rule: ImageRule::Content, row: 0 });
    begins_at(&mut scene, 5, BASE_1 + 0x300, NODE_1);
}

/// PROTOCOL 13.14: one domain's tree leads no traversal of another domain, wherever it begins.
#[test]
fn a_tree_leads_only_its_domain() {
    let mut scene = Scene::rack();
    let key = SectionKey { domain: Domain(20), kind: SECTION_KIND, id: ROOT.0 };
    scene.activate(5, &Image::of(&[(key, &section().emit())]).expect("a short image"));
    let message = request(ROOT, PROGRAM, &[1; 8]);
    let (forwarded, note) = scene.relayed(HOST_1.port, &frame(SESSION_1_10, &message), NODE_1);
    assert_eq!(note, Note::Forwarded { node: NodeId(1) });
    assert_eq!(Message::parse(&forwarded), Ok(stamped(&message, 10, 1)));
}

/// Returns the counters of a domain's tree: epoch, number, and the counters from `from` on.
fn counted(scene: &mut Scene, epoch: u64, domain: u32, from: u32) -> (u64, u32, Vec<u32>) {
    let count = Count { epoch, domain: Domain(domain), kind: SECTION_KIND, id: ROOT.0, from };
    let (payload, note) = scene.relayed(Port::CONTROL, &soft::said(SoftBody::Count(count)), CONTROL);
    assert_eq!(note, Note::SoftCounted);
    let SoftMessage { body, .. } = SoftMessage::parse(&payload).expect("the switch sends messages");
    let SoftBody::Counts(Counts { epoch, total, from: first, counters, .. }) = body else {
        panic!("{body:?}")
    };
    assert!(total == 0 || first == from.min(total));
    let words = counters.as_chunks().0.iter().map(|word| u32::from_be_bytes(*word));
    (epoch, total, words.collect())
}

/// PROTOCOL 13.17: each branch counts the traversals that it led and that were forwarded, also repeated ones.
/// Refused traversals, and those that begin as requested, are not counted.
#[test]
fn branches_count_what_is_forwarded() {
    let mut scene = Scene::rack();
    assert_eq!(counted(&mut scene, 0, 10, 0), (0, 0, Vec::new()), "no image is active");
    scene.activate(5, &image(&[section()]));
    // Two ranges, and the two children of the node.
    assert_eq!(counted(&mut scene, 5, 10, 0), (5, 4, Vec::from([0; 4])));
    for (key, at, node) in [
        (0, 0x300, 1),
        (999, 0x300, 1),
        (1000, 0x400, 2),
        (2000, 0x500, 1),
        (2000, 0x500, 1),
        (3000, 0x500, 1),
    ] {
        let (base, peer) = if node == 1 { (BASE_1, NODE_1) } else { (BASE_2, NODE_2) };
        begins_at(&mut scene, key, base + at, peer);
    }
    let other = request(ROOT, ProgramHash([0xb0; 16]), &[1; 8]);
    scene.relayed(HOST_1.port, &frame(SESSION_1_10, &other), NODE_1);
    assert_eq!(counted(&mut scene, 5, 10, 0), (5, 4, Vec::from([2, 4, 1, 3])));
    assert_eq!(
        counted(&mut scene, 0, 10, 2),
        (5, 4, Vec::from([1, 3])),
        "from the third on, of whichever image is active"
    );
    assert_eq!(counted(&mut scene, 5, 10, 9), (5, 4, Vec::new()), "behind the last");
    // For another image, or a missing section, the response has only the active epoch.
    for (epoch, domain) in [(4, 10), (6, 10), (5, 20)] {
        assert_eq!(counted(&mut scene, epoch, domain, 0), (5, 0, Vec::new()));
    }
    // The next image starts with zero counters, though it is the same.
    scene.activate(6, &image(&[section()]));
    assert_eq!(counted(&mut scene, 5, 10, 0), (6, 0, Vec::new()));
    assert_eq!(counted(&mut scene, 6, 10, 0), (6, 4, Vec::from([0; 4])));
    // A traversal to a forbidden address is not counted.
    let outside = Child { addr: VirtAddr(BASE_2 + VMA_LEN), level: 0 };
    let ranges = Vec::from([Range { first: 0, last: u64::MAX, child: outside }]);
    scene.activate(7, &image(&[TreeSection { ranges, sets: Vec::new(), ..section() }]));
    let message = request(ROOT, PROGRAM, &[1; 8]);
    scene.relayed(HOST_1.port, &frame(SESSION_1_10, &message), HOST_1);
    assert_eq!(counted(&mut scene, 7, 10, 0), (7, 1, Vec::from([0])));
}

/// A datagram has as many counters as fit.
#[test]
fn counters_come_in_parts() {
    let mut scene = Scene::rack();
    let leaf = Child { addr: VirtAddr(BASE_1 + 0x300), level: 0 };
    let last = |n: u64| if n == 999 { u64::MAX } else { n };
    let ranges = (0..1000).map(|n| Range { first: n, last: last(n), child: leaf }).collect();
    scene.activate(5, &image(&[TreeSection { ranges, sets: Vec::new(), ..section() }]));
    (0..7).for_each(|_| begins_at(&mut scene, 800, leaf.addr.0, NODE_1));
    let mut all = Vec::new();
    while let (5, 1000, part) = counted(&mut scene, 5, 10, u32::try_from(all.len()).unwrap())
        && !part.is_empty()
    {
        assert!(part.len() == SOFT_COUNTS_MAX || all.len() + part.len() == 1000);
        all.extend(part);
    }
    assert_eq!(all.iter().enumerate().filter(|(_, n)| **n > 0).collect::<Vec<_>>(), [(800, &7)]);
}
