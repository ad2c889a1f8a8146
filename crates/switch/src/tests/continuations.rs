//! Traversals that left their node: routed by their next pointer, or answered to their host (PULSE 5).

use super::*;
use crate::Reason;
use crate::answer::refusal;
use farmem_wire::Status;

/// Returns a traversal of host 1 in domain 10, as a node returns it.
fn left(cur_ptr: u64, hops: u8) -> Message<'static> {
    let mut message = traverse(1, cur_ptr, hops);
    message.header.domain = Domain(10);
    message.header.origin = HostId(1);
    message
}

/// A list leads from node 1 to node 2 and back and ends at a null pointer: three frames through the switch,
/// each with one hop less, then the state at the host.
#[test]
fn a_traversal_is_routed_on_until_its_pointer_leads_nowhere() {
    let mut scene = Scene::rack();
    let start = traverse(1, BASE_1, 8);
    scene.relayed(HOST_1.port, &frame(SESSION_1_10, &start), NODE_1);

    let on = left(BASE_2 + 0x40, 7);
    let (continued, note) = scene.relayed(NODE_1.port, &frame(HOME, &on), NODE_2);
    assert_eq!(note, Note::Continued { node: NodeId(2) });
    assert_eq!(Message::parse(&continued), Ok(stamped(&on, 10, 1)));

    let back = left(BASE_1 + 0x80, 6);
    let (continued, note) = scene.relayed(NODE_2.port, &frame(HOME, &back), NODE_1);
    assert_eq!(note, Note::Continued { node: NodeId(1) });
    assert_eq!(Message::parse(&continued), Ok(stamped(&back, 10, 1)));

    let nowhere = left(0xdead_beef, 5);
    let (answer, note) = scene.relayed(NODE_1.port, &frame(HOME, &nowhere), HOST_1);
    assert_eq!(note, Note::Refused(Status::NotMapped));
    let Body::Traverse(state) = nowhere.body else { panic!("a traversal") };
    let body = Body::Traverse(Traverse { code: &[], ..state });
    assert_eq!(
        Message::parse(&answer),
        Ok(Message { header: nowhere.header.answer(Status::NotMapped), body })
    );
}

/// PROTOCOL 6.10: the checks are the same as for a host: hops, protection in the traversal's domain,
/// translation. The refusal goes to the origin.
#[test]
fn a_continuation_is_checked_like_a_request() {
    let mut scene = Scene::rack();
    let mut other_domain = left(BASE_2, 5);
    other_domain.header.domain = Domain(20);
    let mut no_domain = left(BASE_2, 5);
    no_domain.header.domain = Domain(0);
    for (message, status) in [
        (left(BASE_2, 0), Status::HopLimit),
        (left(BASE_2 + VMA_LEN, 5), Status::NotMapped),
        (other_domain, Status::NotMapped),
        (no_domain, Status::NotMapped),
    ] {
        let (answer, note) = scene.relayed(NODE_1.port, &frame(HOME, &message), HOST_1);
        assert_eq!(note, Note::Refused(status));
        let answer = Message::parse(&answer).expect("an answer that parses");
        assert_eq!(answer.header, message.header.answer(status));
    }
}

/// PROTOCOL 6.10: node 1 returned a traversal that the table maps to node 1: the page moved there since. It
/// returns, with one hop less.
#[test]
fn a_pointer_that_moved_to_where_it_was_looked_for_goes_back() {
    let mut scene = Scene::rack();
    let (_, note) = scene.relayed(NODE_1.port, &frame(HOME, &left(BASE_1, 5)), NODE_1);
    assert_eq!(note, Note::Continued { node: NodeId(1) });
    let (_, note) = scene.relayed(NODE_1.port, &frame(HOME, &left(BASE_1, 0)), HOST_1);
    assert_eq!(note, Note::Refused(Status::HopLimit), "not for ever");
    let (_, note) = scene.relayed(NODE_2.port, &frame(HOME, &left(BASE_1, 5)), NODE_1);
    assert_eq!(note, Note::Continued { node: NodeId(1) });
}

/// PROTOCOL 6.2, 6.10: a node sends only to the switch's own endpoint, with its key. It has no session, and
/// may send nothing but continuations.
#[test]
fn a_node_can_only_continue_traversals() {
    let mut scene = Scene::rack();
    let wrong_key = endpoint(HOME.qpn.get(), HOME.qkey.0 + 1);
    let answer = refusal(&left(BASE_2, 5), Status::Ok);
    let mut bytes = Vec::new();
    protect(66, BASE_1, VMA_LEN, Perm::ReadWrite).emit(&mut bytes);
    let updates = Updates::request(2, 1, &bytes).expect("a batch that fits");
    let update = Message { header: Header::request(id(1, 5), 4), body: Body::Update(updates) };
    let cases = [
        (frame(SESSION_1_10, &left(BASE_2, 5)), Reason::WrongPort),
        (frame(wrong_key, &left(BASE_2, 5)), Reason::WrongKey),
        (frame(HOME, &answer), Reason::Response),
        (frame(HOME, &read(1, BASE_2, 8)), Reason::NotContinuation),
        (frame(HOME, &update), Reason::NotContinuation),
        (datagram(HOME, &payload(&left(BASE_2, 5))[..50]), Reason::Message),
    ];
    for (frame, reason) in cases {
        assert_eq!(scene.silent(NODE_1.port, &frame), Note::Dropped(reason));
    }
    assert_eq!(scene.switch.protection().check(Domain(66), VirtAddr(BASE_1), 1, Perm::Read).ok(), None);
}

/// PROTOCOL 6.12: the host left while its traversal was in progress.
#[test]
fn a_refusal_to_an_unknown_origin_is_dropped() {
    let mut scene = Scene::rack();
    let mut message = left(0, 5);
    message.header.origin = HostId(77);
    let note = scene.silent(NODE_1.port, &frame(HOME, &message));
    assert_eq!(note, Note::Dropped(Reason::UnknownOrigin));
}
