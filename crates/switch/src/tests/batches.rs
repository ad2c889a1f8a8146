//! Batches of traversals at the switch: routed as one, by the first pair (PROTOCOL 6.25).

use super::*;
use crate::Reason;
use farmem_wire::Status;
use farmem_wire::message::{Batch, Kind, Pair};

/// Calls `each` with a batch of `host` whose pairs are at these addresses.
fn with<T>(host: u16, hops: u8, pointers: &[u64], each: impl FnOnce(&Message<'_>) -> T) -> T {
    let header = Header::request(id(host, 7), hops);
    let mut pairs = Vec::new();
    for (counter, &at) in (7..).zip(pointers) {
        let (status, cur_ptr, iterations, limit, scratch) = (Status::Ok, VirtAddr(at), 0, 64, &b"pad"[..]);
        Pair { counter, status, cur_ptr, iterations, limit, scratch }.emit(&mut pairs);
    }
    let count = u16::try_from(pointers.len()).expect("a short batch");
    let batch = Batch::new(&header, ProgramHash([0x5a; 16]), b"code", count, &pairs).expect("a batch");
    each(&Message { header, body: Body::Batch(batch) })
}

/// The batch goes to the owner of the first pair's address, with new domain, origin and hops. The node
/// handles pairs with other owners.
#[test]
fn a_batch_goes_to_the_owner_of_its_first_address() {
    let mut scene = Scene::rack();
    with(1, 4, &[BASE_2, BASE_1, 0, BASE_2 + 8], |message| {
        let (forwarded, note) = scene.relayed(HOST_1.port, &frame(SESSION_1_10, message), NODE_2);
        assert_eq!(note, Note::Forwarded { node: NodeId(2) });
        assert_eq!(Message::parse(&forwarded), Ok(stamped(message, 10, 1)));
    });
}

/// A fault of the first pair's address says nothing about the others: the host must send each alone. A fault
/// of the whole batch applies to all.
#[test]
fn a_batch_that_cannot_be_routed_is_taken_apart() {
    let cases = [
        (SESSION_1_10, 4, BASE_1 + VMA_LEN, Status::Apart),
        (SESSION_1_10, 4, 0, Status::Apart),
        (SESSION_1_20, 4, BASE_1, Status::Apart),
        (SESSION_1_10, 0, BASE_1, Status::HopLimit),
    ];
    for (session, hops, first, status) in cases {
        let mut scene = Scene::rack();
        with(1, hops, &[first, BASE_1 + 8], |message| {
            let (answer, note) = scene.relayed(HOST_1.port, &frame(session, message), HOST_1);
            assert_eq!(note, Note::Refused(status));
            let answer = Message::parse(&answer).expect("a message");
            assert!(answer.header.response);
            assert_eq!((answer.header.status, answer.header.request), (status, message.header.request));
            let (Body::Batch(asked), Body::Batch(told)) = (message.body, answer.body) else {
                panic!("batches, not {answer:?}")
            };
            assert_eq!((told.code(), told.count()), (&[][..], 2));
            assert!(told.pairs().eq(asked.pairs()), "the states as they came");
        });
    }
}

/// A batch under another host's ids is refused as a whole. An unreadable batch is answered as its first pair
/// would be. Memory nodes send no batches.
#[test]
fn hostile_batches_are_refused_or_dropped() {
    let mut scene = Scene::rack();
    with(2, 4, &[BASE_1], |message| {
        let (_, note) = scene.relayed(HOST_1.port, &frame(SESSION_1_10, message), HOST_1);
        assert_eq!(note, Note::Refused(Status::Malformed));
    });
    with(1, 4, &[BASE_1, BASE_1], |message| {
        let bytes = payload(message);
        // The count is one too large.
        let mut count = bytes.clone();
        count[Header::LEN + 19] = 3;
        for bytes in
            [&bytes[..bytes.len() - 1], &[&bytes[..], &[0]].concat(), &count, &bytes[..Header::LEN + 9]]
        {
            let (answer, note) = scene.relayed(HOST_1.port, &datagram(SESSION_1_10, bytes), HOST_1);
            assert_eq!(note, Note::Refused(Status::Malformed));
            let answer = Message::parse(&answer).expect("a message");
            assert_eq!((answer.header.request, answer.body.kind()), (message.header.request, Kind::Traverse));
        }
        let note = scene.silent(NODE_1.port, &frame(HOME, message));
        assert_eq!(note, Note::Dropped(Reason::NotContinuation));
    });
}
