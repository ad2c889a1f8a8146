//! Traversals that share a datagram: which ones do, when they leave, and how each ends (PROTOCOL 11.13).

use super::traversals::list_sum;
use super::*;
use crate::BATCHES_OPEN_MAX;
use farmem_traversal::Program;
use farmem_wire::Header;
use farmem_wire::message::{Batch, Pair};

/// A host with sessions and connections to both nodes, whose batches have up to `pairs_max` traversals.
fn with_batches_of(pairs_max: u16) -> Bench {
    let mut bench = Bench::new(Config { pairs_max, ..config() });
    bench.open(ALICE, ALICES);
    bench.open(BOB, BOBS);
    for (number, node) in [(1, 1), (2, 2)] {
        bench.ask(HostRequest::Connect(connection(ALICE, node, number)));
    }
    bench
}

/// Returns the requests sent since the last call.
fn sent(bench: &mut Bench) -> Vec<Request> {
    take(&mut bench.sent).into_iter().map(|(_, frame)| Request { frame }).collect()
}

/// Returns the pointers of a batch's pairs, or the pointer of a single traversal.
fn pointers(request: &Request) -> Vec<u64> {
    match request.message().body {
        Body::Batch(batch) => batch.pairs().map(|pair| pair.cur_ptr.0).collect(),
        Body::Traverse(state) => vec![state.cur_ptr.0],
        other => panic!("traversals, not {other:?}"),
    }
}

/// Returns a batch of `count` traversals from node 1's first address on, 16 bytes apart.
fn batch_of(bench: &mut Bench, count: u64) -> Request {
    for n in 0..count {
        bench.submit(list_sum(BASE_1 + 16 * n, 9));
    }
    bench.wake();
    bench.request()
}

/// Returns the answer to a batch, with each pair as `change` returns it; `None` omits the pair.
fn answer<'a>(
    request: &'a Request,
    status: Status,
    mut change: impl FnMut(Pair<'a>) -> Option<Pair<'a>>,
) -> Vec<u8> {
    let message = request.message();
    let Body::Batch(batch) = message.body else { panic!("a batch") };
    let pairs: Vec<_> = batch.pairs().filter_map(&mut change).collect();
    let mut bytes = vec![];
    pairs.iter().for_each(|pair| pair.emit(&mut bytes));
    let header = message.header.answer(status);
    let header = Header { request: header.request.with_counter(pairs[0].counter), ..header };
    let count = u16::try_from(pairs.len()).unwrap();
    let batch = Batch::new(&header, batch.program(), &[], count, &bytes).unwrap();
    datagram(HOME, &Message { header, body: Body::Batch(batch) })
}

fn returned(pair: Pair<'_>) -> Option<Pair<'_>> {
    Some(Pair { iterations: pair.iterations + 1, scratch: &[7; 16], ..pair })
}

/// Traversals submitted back to back leave at the host's next wake, which the host requests at once: one
/// datagram for each node. A lone traversal goes as a plain request. Each ends as if it had gone alone.
#[test]
pub(super) fn traversals_to_one_node_share_a_datagram() {
    let mut bench = with_batches_of(64);
    let at = [BASE_1, BASE_2, BASE_1 + 16, BASE_1 + 32];
    let tickets = at.map(|at| bench.submit(list_sum(at, 9)));
    assert_eq!((bench.sent.len(), bench.host.outstanding()), (0, 4));
    assert_eq!(bench.host.next_wake(), Some(bench.now), "at once");
    bench.wake();
    assert_eq!(bench.took_notes(), [Note::Batch(3)]);
    let [first, second] = &sent(&mut bench)[..] else { panic!("two datagrams") };
    assert_eq!(pointers(first), [BASE_1, BASE_1 + 16, BASE_1 + 32]);
    assert_eq!((pointers(second), second.message().body.kind() as u8), (vec![BASE_2], 0x10));
    assert!(second.id().counter() > first.id().counter());

    bench.hear(Port::node(1), &answer(first, Status::Ok, returned));
    bench.hear(Port::node(2), &second.state(Status::Ok, |s| Traverse { iterations: 1, ..s }));
    let mut ended: Vec<_> = take(&mut bench.done);
    ended.sort_by_key(|done| done.ticket);
    assert_eq!(ended.iter().map(|done| done.ticket).collect::<Vec<_>>(), tickets);
    assert!(ended.iter().all(|done| matches!(done.result, Ok(Answer::Traversed(t)) if t.requests == 1)));
    assert_eq!((&ended[0].buf[..], &ended[1].buf[..]), (&[7; 16][..], &[0; 16][..]));
    assert_eq!(bench.host.outstanding(), 0);
}

/// Some answers are lost: a traversal without an answer is sent again, alone, under its id; answered ones are
/// not (5.12).
#[test]
fn only_what_has_no_answer_is_asked_again() {
    let mut bench = with_batches_of(64);
    let batch = &batch_of(&mut bench, 3);
    let lost = batch.id().counter() + 1;
    bench.hear(Port::node(1), &answer(batch, Status::Ok, |p| returned(p).filter(|p| p.counter != lost)));
    assert_eq!(bench.done.len(), 2);
    bench.wake();
    let again = bench.request();
    assert_eq!((again.id().counter(), pointers(&again)), (lost, vec![BASE_1 + 16]));
    // The node's answer to the batch was only late.
    bench.hear(Port::node(1), &answer(batch, Status::Ok, returned));
    assert_eq!((bench.done.len(), bench.host.outstanding()), (3, 0));
    assert_eq!(bench.took_notes(), [Note::Batch(3), Note::LateAnswer, Note::LateAnswer]);
}

/// Retransmissions have the same bytes, except for the retransmission flag, even if the domain has a newer
/// session (PROTOCOL 5.2). The cases are a region write, and a traversal that went in a batch.
#[test]
fn what_is_sent_again_is_unchanged() {
    let mut bench = with_batches_of(64);
    bench.submit(Op::RegionWrite { addr: VirtAddr(BASE_1), buf: vec![7; 100] });
    let write = bench.request().again().frame;
    bench.submit(list_sum(BASE_1, 9));
    bench.submit(list_sum(BASE_1 + 16, 9));
    bench.wake();
    assert_eq!(sent(&mut bench).len(), 1, "a batch");
    bench.wake();
    let first: Vec<_> = sent(&mut bench).into_iter().map(|request| request.frame).collect();
    assert_eq!((first.len(), &first[0]), (3, &write));
    bench.open(ALICE, BOBS);
    bench.wake();
    let again: Vec<_> = sent(&mut bench).into_iter().map(|request| request.frame).collect();
    assert_eq!(again, first);
}

/// The switch splits a batch: each traversal goes alone under a new id, once (6.25). For a lone traversal,
/// `Apart` is an error.
#[test]
fn a_batch_that_was_taken_apart_goes_on_one_by_one() {
    let mut bench = with_batches_of(64);
    let batch = &batch_of(&mut bench, 3);
    bench.hear(Port::SWITCH, &answer(batch, Status::Apart, Some));
    let alone = sent(&mut bench);
    assert_eq!(alone.iter().flat_map(pointers).collect::<Vec<_>>(), [0, 16, 32].map(|n| BASE_1 + n));
    assert!(alone.iter().all(|request| request.id() > batch.id() && !request.traverse().program.stores()));
    bench.hear(Port::SWITCH, &alone[0].answer(Status::Apart, &[]));
    let refused = Failure::Refused { status: Status::Apart, addr: VirtAddr(BASE_1) };
    assert_eq!(bench.ended().result, Err(refused));
}

/// Limits: a full batch leaves when one more arrives, a batch fits the PMTU, and if too many programs have
/// open batches the oldest leaves. A traversal whose node is unknown goes alone at once.
#[test]
fn batches_have_bounds() {
    let mut bench = with_batches_of(4);
    for n in 0..9 {
        bench.submit(list_sum(BASE_1 + 16 * n, 9));
    }
    bench.wake();
    let batches = sent(&mut bench);
    assert_eq!(batches.iter().map(|batch| pointers(batch).len()).collect::<Vec<_>>(), [4, 4, 1]);

    bench.submit(list_sum(1, 9));
    assert_eq!(pointers(&bench.request()), [1]);

    let mut bench = with_batches_of(64);
    let long = Program::assemble(".scratch 200\n ret").unwrap();
    let op = |program: &Program, n: u64| Op::Traverse {
        program: program.clone(),
        cur_ptr: VirtAddr(BASE_1 + n),
        scratch: vec![1; program.scratch_len()],
        limit: 9,
    };
    for n in 0..30 {
        bench.submit(op(&long, n));
    }
    bench.wake();
    let batches = sent(&mut bench);
    assert_eq!(batches.iter().map(|batch| pointers(batch).len()).collect::<Vec<_>>(), [18, 12]);
    assert!(batches.iter().all(|batch| batch.message().len() <= Pmtu::B4096.bytes()));

    for n in 0..=BATCHES_OPEN_MAX {
        let program = Program::assemble(&alloc::format!(".window {}\n ret", n + 1)).unwrap();
        bench.submit(op(&program, n as u64));
    }
    assert_eq!(sent(&mut bench).iter().flat_map(pointers).collect::<Vec<_>>(), [BASE_1]);
    bench.wake();
    assert_eq!(sent(&mut bench).len(), BATCHES_OPEN_MAX);
}

/// A batch carries the code of a program that stores once (11.4), and each of its pairs is a write of its
/// own.
#[test]
fn traversals_that_store_bring_their_code_once() {
    let mut bench = with_batches_of(64);
    let program = Program::assemble(".stores\n.window 8\n st8 window[0], 1\n ret").unwrap();
    for n in 0..2 {
        let cur_ptr = VirtAddr(BASE_1 + 8 * n);
        bench.submit(Op::Traverse { program: program.clone(), cur_ptr, scratch: vec![], limit: 9 });
    }
    bench.wake();
    let [batch] = &sent(&mut bench)[..] else { panic!("one datagram") };
    let Body::Batch(pairs) = batch.message().body else { panic!("a batch") };
    assert_eq!((pairs.count(), pairs.code()), (2, program.encoded()));
    bench.wake();
    let again = sent(&mut bench);
    assert!(again.iter().all(|request| request.traverse().code == program.encoded()));
    assert_eq!(again.len(), 2, "each alone, with the code");
}

/// Answers that fit no request change nothing: other ids, other limits, a pad that is too long, a batch that
/// is no answer.
#[test]
fn hostile_answers_end_nothing() {
    let mut bench = with_batches_of(64);
    let batch = &batch_of(&mut bench, 2);
    bench.took_notes();
    bench.hear(Port::node(1), &answer(batch, Status::Ok, |p| Some(Pair { counter: p.counter + 9, ..p })));
    bench.hear(Port::node(1), &answer(batch, Status::Ok, |p| Some(Pair { limit: 8, ..p })));
    bench.hear(Port::node(1), &answer(batch, Status::Ok, |p| Some(Pair { scratch: &[1; 17], ..p })));
    let asked = batch.message();
    bench.hear(Port::node(1), &datagram(HOME, &asked));
    assert_eq!((bench.done.len(), bench.host.outstanding()), (0, 2));
    let wrong = [Note::LateAnswer, Note::LateAnswer].into_iter().chain([Note::WrongAnswer; 6]);
    assert_eq!(bench.took_notes(), wrong.collect::<Vec<_>>());
}
