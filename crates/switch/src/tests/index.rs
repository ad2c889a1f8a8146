//! The index: a traversal of a tree begins at the deepest node that the switch knows.

use super::*;
use farmem_index::{Child, Range, SECTION_KIND, SetNode, TreeSection};
use farmem_transport::image::{Image, SectionKey};
use farmem_wire::Status;
use farmem_wire::message::{Batch, ImageFault, ImageRule, Pair, PairBuf};

/// Keys below 1000 are below a node of node 1, others below one of node 2; the latter's children for 1000 and for 2000 on are known too.
fn section() -> TreeSection {
    let child = |addr, level| Child { addr: VirtAddr(addr), level };
    let ranges = Vec::from([
        Range { first: 0, last: 999, child: child(BASE_1 + 0x300, 1) },
        Range { first: 1000, last: u64::MAX, child: child(BASE_2 + 0x300, 1) },
    ]);
    let children = Vec::from([child(BASE_2 + 0x400, 0), child(BASE_1 + 0x500, 0)]);
    let node = SetNode { addr: VirtAddr(BASE_2 + 0x300), pivots: Vec::from([2000]), children };
    TreeSection { root: ROOT, programs: Vec::from([PROGRAM]), ranges, sets: Vec::from([Vec::from([node])]) }
}

const ROOT: VirtAddr = VirtAddr(BASE_1 + 0x200);
const PROGRAM: ProgramHash = ProgramHash([0xa0; 16]);

fn image(sections: &[TreeSection]) -> Image {
    let bytes: Vec<Vec<u8>> = sections.iter().map(TreeSection::emit).collect();
    let keyed = (0..).zip(&bytes).map(|(id, bytes)| (SectionKey { kind: SECTION_KIND, id }, &bytes[..]));
    Image::of(&keyed.collect::<Vec<_>>()).expect("a short image")
}

fn request(at: VirtAddr, program: ProgramHash, pad: &[u8]) -> Message<'_> {
    let message = traverse(1, at.0, 1);
    let Body::Traverse(body) = message.body else { panic!("a traversal") };
    Message { body: Body::Traverse(Traverse { program, scratch: pad, ..body }), ..message }
}

/// PROTOCOL 13.14: what is sent to the node is the request, with another pointer.
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
    scene.stand(5, &image(&[section()]));
    begins_at(&mut scene, 0, BASE_1 + 0x300, NODE_1);
    begins_at(&mut scene, 999, BASE_1 + 0x300, NODE_1);
    begins_at(&mut scene, 1000, BASE_2 + 0x400, NODE_2);
    begins_at(&mut scene, 1999, BASE_2 + 0x400, NODE_2);
    begins_at(&mut scene, 2000, BASE_1 + 0x500, NODE_1);
    begins_at(&mut scene, u64::MAX, BASE_1 + 0x500, NODE_1);
    // The next image has the root alone.
    let ranges = Vec::from([Range { first: 0, last: u64::MAX, child: Child { addr: ROOT, level: 2 } }]);
    scene.stand(6, &image(&[TreeSection { ranges, sets: Vec::new(), ..section() }]));
    begins_at(&mut scene, 2000, ROOT.0, NODE_1);
}

/// PROTOCOL 13.14, 6.25: each pair of a batch begins at its own node, and all go where the first one is.
#[test]
fn each_pair_of_a_batch_begins_further_down() {
    let mut scene = Scene::rack();
    scene.stand(5, &image(&[section()]));
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
    // Of another program nothing changes.
    let other = of(&batch(ProgramHash([0xb0; 16]), [ROOT.0, ROOT.0, elsewhere]));
    let other = Message::parse(&other).expect("a batch");
    let (forwarded, note) = scene.relayed(HOST_1.port, &frame(SESSION_1_10, &other), NODE_1);
    assert_eq!(note, Note::Forwarded { node: NodeId(1) });
    assert_eq!(Message::parse(&forwarded), Ok(stamped(&other, 10, 1)));
}

/// Other pointers and other programs are none of the index's.
#[test]
fn what_is_not_named_begins_where_it_says() {
    let mut scene = Scene::rack();
    scene.stand(5, &image(&[section()]));
    for (at, program) in [(VirtAddr(ROOT.0 + 0x100), PROGRAM), (ROOT, ProgramHash([0xb0; 16]))] {
        let message = request(at, program, &[1; 8]);
        let (forwarded, note) = scene.relayed(HOST_1.port, &frame(SESSION_1_10, &message), NODE_1);
        assert_eq!(note, Note::Forwarded { node: NodeId(1) });
        assert_eq!(Message::parse(&forwarded), Ok(stamped(&message, 10, 1)));
    }
}

/// PROTOCOL 13.14, 6.6: an index that leads where a domain may not go gives it nothing.
#[test]
fn protection_is_checked_where_the_traversal_begins() {
    let mut scene = Scene::rack();
    let outside = Child { addr: VirtAddr(BASE_2 + VMA_LEN), level: 0 };
    let ranges = Vec::from([Range { first: 0, last: u64::MAX, child: outside }]);
    scene.stand(5, &image(&[TreeSection { ranges, sets: Vec::new(), ..section() }]));
    let message = request(ROOT, PROGRAM, &[1; 8]);
    let (answer, note) = scene.relayed(HOST_1.port, &frame(SESSION_1_10, &message), HOST_1);
    assert_eq!(note, Note::Refused(Status::NotMapped));
    let Ok(Message { body: Body::Traverse(body), .. }) = Message::parse(&answer) else {
        panic!("a traversal")
    };
    assert_eq!(body.cur_ptr, outside.addr, "the host sees where it could not go");
}

/// PROTOCOL 13.13: an image with a tree that is none, or comes twice, does not stand; what stood stays.
#[test]
fn an_image_with_a_wrong_tree_is_refused() {
    let mut scene = Scene::rack();
    scene.stand(5, &image(&[section()]));
    let gap = TreeSection { ranges: section().ranges[1..].to_vec(), ..section() };
    let stores = TreeSection { programs: Vec::from([ProgramHash([1; 16])]), ..section() };
    for (epoch, wrong, row) in [(6, [gap].as_slice(), 0), (7, &[stores], 0), (8, &[section(), section()], 1)]
    {
        scene.refuses(epoch, &image(wrong), ImageFault { rule: ImageRule::Content, row });
        begins_at(&mut scene, 5, BASE_1 + 0x300, NODE_1);
    }
}
