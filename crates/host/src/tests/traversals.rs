//! Traversals: sent, continued, sent again with the code, ended (PULSE 3, 4.1).

use super::*;
use crate::{HOP_RETRIES_MAX, REGION_WRITES_MAX, TRAVERSALS_CONTINUED_MAX, Traversed};
use farmem_traversal::Program;

const PROGRAM: &str = include_str!("../../../../testdata/programs/list_sum.pulse");

fn program() -> Program {
    Program::assemble(PROGRAM).unwrap()
}

/// Sums up the list that starts at `start`, in at most `limit` iterations.
pub(super) fn list_sum(start: u64, limit: u32) -> Op {
    Op::Traverse { program: program(), cur_ptr: VirtAddr(start), scratch: vec![0; 16], limit }
}

/// A state that is `done` iterations further, at `at`, with this scratch pad.
fn further<'a>(state: Traverse<'a>, done: u32, at: u64, scratch: &'a [u8]) -> Traverse<'a> {
    Traverse { iterations: state.iterations + done, cur_ptr: VirtAddr(at), scratch, ..state }
}

fn traversed(done: &Done) -> Traversed {
    match done.result {
        Ok(Answer::Traversed(traversed)) => traversed,
        ref other => panic!("a traversal that ended, not {other:?}"),
    }
}

/// The request names the program and carries the state; the caller gets the answer's state.
#[test]
fn a_traversal_returns_its_scratch_pad() {
    let mut bench = Bench::with_sessions();
    let ticket = bench.submit(list_sum(BASE_1, 9));
    let request = bench.request();
    let state = Traverse {
        program: program().hash(),
        cur_ptr: VirtAddr(BASE_1),
        iterations: 0,
        limit: 9,
        scratch: &[0; 16],
        code: &[],
    };
    assert_eq!(request.traverse(), state);
    bench.hear(Port::node(2), &request.state(Status::Ok, |s| further(s, 3, BASE_2, &[7; 16])));
    let done = bench.ended();
    assert_eq!((done.ticket, &done.buf[..]), (ticket, &[7; 16][..]));
    let expected = Traversed { returned: true, cur_ptr: VirtAddr(BASE_2), iterations: 3, requests: 1 };
    assert_eq!(traversed(&done), expected);
}

/// A node does not know the program: the host sends the current state with the code, once. A node that then
/// still does not know the program ends the traversal (PROTOCOL 7.22).
#[test]
fn code_is_sent_when_a_node_asks_for_it() {
    let mut bench = Bench::with_sessions();
    bench.submit(list_sum(BASE_1, 9));
    let request = bench.request();
    // The traversal ran at one node before it reached the node that does not know the program.
    bench.hear(Port::node(2), &request.state(Status::UnknownProgram, |s| further(s, 2, BASE_2, &[1; 16])));
    assert_eq!(bench.took_notes(), [Note::SentCode]);
    let again = bench.request();
    assert_ne!(again.id(), request.id());
    let state = Traverse { code: &[], ..again.traverse() };
    assert_eq!(state, further(request.traverse(), 2, BASE_2, &[1; 16]));
    assert_eq!(Program::decode(again.traverse().code).unwrap(), program());

    bench.hear(Port::node(2), &again.answer(Status::UnknownProgram, &[]));
    let done = bench.ended();
    let refused = Failure::Refused { status: Status::UnknownProgram, addr: VirtAddr(BASE_2) };
    assert_eq!((done.result, &done.buf[..]), (Err(refused), &[1; 16][..]), "the last state comes back");
    assert_eq!((bench.host.outstanding(), bench.sent.len()), (0, 0));
}

/// A node stops a traversal after its share of iterations, the switch after the hop limit. The host continues
/// from the state as often as needed, without the code: the nodes know it by now, and another node asks if it
/// does not.
#[test]
fn limits_of_others_are_continued() {
    let mut bench = Bench::with_sessions();
    bench.submit(list_sum(BASE_1, 10_000));
    let mut request = bench.request();
    bench.hear(Port::node(1), &request.answer(Status::UnknownProgram, &[]));
    request = bench.request();
    assert!(!request.traverse().code.is_empty());
    bench.took_notes();
    for (round, status) in (1..).zip([Status::IterationLimit, Status::HopLimit, Status::IterationLimit]) {
        let scratch = [round; 16];
        let at = BASE_1 + 16 * u64::from(round);
        bench.hear(Port::node(1), &request.state(status, |s| further(s, 2_000, at, &scratch)));
        assert_eq!(bench.took_notes(), [Note::Continued(status)]);
        request = bench.request();
        let state = request.traverse();
        assert_eq!((state.iterations, state.limit), (2_000 * u32::from(round), 10_000));
        assert_eq!((state.cur_ptr, state.scratch), (VirtAddr(at), &scratch[..]));
        assert_eq!((state.code, request.message().header.hops), (&[][..], config().hops_max), "hops anew");
    }
    bench.hear(Port::node(1), &request.state(Status::Ok, |s| further(s, 1, BASE_1, &[9; 16])));
    let expected = Traversed { returned: true, cur_ptr: VirtAddr(BASE_1), iterations: 6_001, requests: 5 };
    assert_eq!(traversed(&bench.ended()), expected);
}

/// The caller's own limit ends a traversal without failure: the caller can continue from the state.
#[test]
fn the_callers_limit_ends_it() {
    let mut bench = Bench::with_sessions();
    for (limit, done) in [(3, 3), (0, 0)] {
        bench.submit(list_sum(BASE_1, limit));
        let request = bench.request();
        bench.hear(
            Port::node(1),
            &request.state(Status::IterationLimit, |s| further(s, done, BASE_2, &[4; 16])),
        );
        let ended = bench.ended();
        let expected =
            Traversed { returned: false, cur_ptr: VirtAddr(BASE_2), iterations: done, requests: 1 };
        assert_eq!((traversed(&ended), &ended.buf[..]), (expected, &[4; 16][..]));
    }
}

/// A node that stops a traversal before its first iteration would do so for ever, so the host does not ask
/// again. A traversal that reached a node which its address had just left is the exception: it is sent again
/// later, a limited number of times.
#[test]
pub(super) fn a_traversal_that_gets_nowhere_is_stalled() {
    let mut bench = Bench::with_sessions();
    for (status, again) in [(Status::IterationLimit, 0), (Status::HopLimit, HOP_RETRIES_MAX)] {
        bench.submit(list_sum(BASE_1, 9));
        let request = bench.request();
        bench.hear(Port::SWITCH, &request.state(status, |s| further(s, 1, BASE_2, &[2; 16])));
        let mut next = bench.request();
        for _ in 0..again {
            next = misdirected(&mut bench, &next);
        }
        // Another pointer and another scratch pad are no progress: only iterations count.
        bench.hear(Port::SWITCH, &next.state(status, |s| further(s, 0, BASE_1, &[3; 16])));
        let done = bench.ended();
        assert_eq!(done.result, Err(Failure::Stalled { addr: VirtAddr(BASE_1) }));
        assert_eq!(done.buf, [3; 16], "with the state as it stands");
    }
}

/// Returns the request that follows after a traversal reached a node that no longer has the address, with no
/// hop left: a new id, and not at once.
fn misdirected(bench: &mut Bench, request: &Request) -> Request {
    bench.took_notes();
    bench.hear(Port::SWITCH, &request.state(Status::HopLimit, |s| further(s, 0, BASE_1, &[3; 16])));
    assert_eq!(bench.took_notes(), [Note::Deferred]);
    bench.wake();
    let again = bench.request();
    assert_ne!(again.id(), request.id());
    again
}

/// A node that executes one iteration per request cannot keep a host busy beyond the limit.
#[test]
fn continuations_are_bounded_by_the_limit() {
    let mut bench = Bench::with_sessions();
    bench.submit(list_sum(BASE_1, 100));
    let mut requests = 0;
    while bench.host.outstanding() > 0 {
        let request = bench.request();
        requests += 1;
        bench.hear(Port::node(1), &request.state(Status::HopLimit, |s| further(s, 1, BASE_1, &[0; 16])));
        assert!(requests <= 101, "for ever");
        if requests == 100 {
            // All iterations are used up, so no answer can have executed one more.
            let mut last = bench.request();
            bench.hear(Port::node(1), &last.state(Status::HopLimit, |s| further(s, 1, BASE_1, &[0; 16])));
            assert_eq!(bench.took_notes().last(), Some(&Note::WrongAnswer));
            for _ in 0..HOP_RETRIES_MAX {
                last = misdirected(&mut bench, &last);
            }
            bench.hear(Port::node(1), &last.state(Status::HopLimit, |s| further(s, 0, BASE_1, &[0; 16])));
        }
    }
    assert_eq!(bench.ended().result, Err(Failure::Stalled { addr: VirtAddr(BASE_1) }));
}

/// Whatever the limit, the number of continuations is bounded, so the caller gets a result in the end.
#[test]
fn continuations_are_bounded_in_number() {
    let mut bench = Bench::with_sessions();
    bench.submit(list_sum(BASE_1, u32::MAX));
    for _ in 1..TRAVERSALS_CONTINUED_MAX {
        let request = bench.request();
        bench.hear(Port::node(1), &request.state(Status::HopLimit, |s| further(s, 1, BASE_1, &[0; 16])));
        bench.took_notes();
    }
    let last = bench.request();
    assert_eq!(bench.done.len(), 0, "up to the bound it goes on");
    bench.hear(Port::node(1), &last.state(Status::HopLimit, |s| further(s, 1, BASE_1, &[0; 16])));
    assert_eq!(bench.ended().result, Err(Failure::Stalled { addr: VirtAddr(BASE_1) }));
}

/// A node's refusal ends the traversal with the pointer at fault and the state so far.
#[test]
pub(super) fn a_refused_traversal_says_where_it_stands() {
    let mut bench = Bench::with_sessions();
    let statuses = [
        Status::BadProgram,
        Status::NotMapped,
        Status::NoPermission,
        Status::OutOfBounds,
        Status::Malformed,
        Status::Busy,
        Status::ProgramFault,
        Status::Unsupported,
    ];
    for status in statuses {
        bench.submit(list_sum(BASE_1, 9));
        let request = bench.request();
        bench.hear(Port::node(1), &request.state(status, |s| further(s, 5, 0xbad0, &[6; 16])));
        let done = bench.ended();
        assert_eq!(done.result, Err(Failure::Refused { status, addr: VirtAddr(0xbad0) }));
        assert_eq!(done.buf, [6; 16]);
    }
}

/// The scratch pad must have the length that the program declares.
#[test]
pub(super) fn a_scratch_pad_of_another_length_is_refused_at_home() {
    let mut bench = Bench::with_sessions();
    for len in [0, 15, 17] {
        let (program, scratch) = (program(), vec![5; len]);
        bench.submit(Op::Traverse { program, cur_ptr: VirtAddr(BASE_1), scratch, limit: 9 });
        assert_eq!(bench.done[0].buf, vec![5; len], "the scratch pad is back");
        assert_eq!(bench.refused(), Failure::ScratchLen { need: 16 });
    }
}

/// Sooner or later a node asks for the code. A program that no datagram can carry would end there, so it does
/// not start.
#[test]
fn a_program_beyond_one_datagram_is_refused_at_home() {
    // Eight bytes of header, eight for each instruction: the first program fills the datagram to the last
    // byte, so its code goes ahead of its state.
    let program = |adds| {
        let text = std::format!(".scratch 16\n{} ret", "add r3, 1\n".repeat(adds));
        Program::assemble(&text).unwrap()
    };
    let (fits, long) = (program(54), program(55));
    let mut bench = Bench::new(Config { pmtu: Pmtu::B512, ..config() });
    bench.open(ALICE, ALICES);
    for (program, fits) in [(&fits, true), (&long, false)] {
        let (program, scratch) = (program.clone(), vec![0; 16]);
        bench.submit(Op::Traverse { program, cur_ptr: VirtAddr(BASE_1), scratch, limit: 9 });
        if fits {
            let request = bench.request();
            bench.hear(Port::node(1), &request.answer(Status::UnknownProgram, &[]));
            assert_eq!(bench.request().message().len(), Pmtu::B512.bytes());
        } else {
            assert_eq!(bench.refused(), Failure::TooLong { max: 512 - 64 });
        }
    }
}

/// A scratch pad that no datagram can carry is refused too (PROTOCOL 11.4).
#[test]
pub(super) fn a_scratch_pad_beyond_one_datagram_is_refused_at_home() {
    let mut bench = Bench::new(Config { pmtu: Pmtu::B512, ..config() });
    bench.open(ALICE, ALICES);
    for (len, fits) in [(448, true), (449, false)] {
        let program = Program::assemble(&std::format!(".scratch {len}\nret")).unwrap();
        bench.submit(Op::Traverse { program, cur_ptr: VirtAddr(BASE_1), scratch: vec![1; len], limit: 9 });
        if fits {
            assert_eq!(bench.request().message().len(), Pmtu::B512.bytes());
        } else {
            assert_eq!(bench.refused(), Failure::ScratchTooLong { max: 512 - 64 });
        }
    }
}

/// Code and state do not fit one datagram. The code goes ahead, with no iteration to execute, and the state
/// follows. The next node gets the code the same way; the node behind it gets both, because the state became
/// small. A node that asks again for code it received ends the traversal (PROTOCOL 11.4).
#[test]
fn code_that_does_not_fit_beside_the_state_goes_ahead() {
    let program = Program::assemble(&std::format!(".scratch 400\n{}ret", "add r3, 1\n".repeat(20))).unwrap();
    let mut bench = Bench::new(Config { pmtu: Pmtu::B512, ..config() });
    bench.open(ALICE, ALICES);
    let cur_ptr = VirtAddr(BASE_1);
    bench.submit(Op::Traverse { program: program.clone(), cur_ptr, scratch: vec![5; 400], limit: 9 });
    let mut request = bench.request();
    for (done, at, node) in [(0, BASE_1, 1), (3, BASE_2, 2)] {
        bench.hear(
            Port::node(node),
            &request.state(Status::UnknownProgram, |s| further(s, done, at, &[5; 400])),
        );
        let ahead = bench.request();
        let expected = Traverse {
            program: program.hash(),
            cur_ptr: VirtAddr(at),
            iterations: done,
            limit: done,
            scratch: &[],
            code: program.encoded(),
        };
        assert_eq!(ahead.traverse(), expected);
        // The zeros of the pad that do not fill a block of 64.
        bench.hear(Port::node(node), &ahead.state(Status::IterationLimit, |s| further(s, 0, at, &[0; 16])));
        request = bench.request();
        let follows = Traverse { limit: 9, scratch: &[5; 400], code: &[], ..expected };
        assert_eq!(request.traverse(), follows);
    }
    bench.hear(Port::node(1), &request.state(Status::UnknownProgram, |s| further(s, 1, BASE_1, &[6; 16])));
    request = bench.request();
    assert_eq!((request.traverse().code, request.traverse().iterations), (program.encoded(), 4));
    assert_eq!(request.traverse().scratch, [6; 16]);
    bench.hear(Port::node(1), &request.answer(Status::UnknownProgram, &[]));
    let refused = Failure::Refused { status: Status::UnknownProgram, addr: VirtAddr(BASE_1) };
    assert_eq!(bench.ended().result, Err(refused));
}

/// Nodes remember storing traversals like writes: none falls further behind than that. A continuation is a
/// new write (PROTOCOL 11.7). Traversals that only read take no place.
#[test]
fn a_traversal_that_stores_counts_as_a_write() {
    let text = include_str!("../../../../testdata/programs/list_add.pulse");
    let program = Program::assemble(text).unwrap();
    let add = || Op::Traverse {
        program: program.clone(),
        cur_ptr: VirtAddr(BASE_1),
        scratch: vec![0; 16],
        limit: 9,
    };
    let mut bench = Bench::new(Config { requests_max: 2 * REGION_WRITES_MAX, ..config() });
    bench.open(ALICE, ALICES);
    bench.submit(add());
    let first = bench.request();
    assert!(first.traverse().program.stores());
    for number in 1..REGION_WRITES_MAX {
        bench.submit(if number % 2 == 0 { add() } else { region_write(BASE_1, b"next") });
        bench.request();
    }
    bench.submit(add());
    assert_eq!(bench.refused(), Failure::QueueFull);
    bench.submit(list_sum(BASE_1, 9));
    bench.request();

    bench.hear(Port::SWITCH, &first.state(Status::HopLimit, |s| further(s, 1, BASE_2, &[1; 16])));
    let again = bench.request();
    assert_ne!(again.id(), first.id());
    bench.submit(region_write(BASE_1, b"one too many"));
    assert_eq!(bench.refused(), Failure::QueueFull, "it took the place that it had left");
    bench.hear(Port::node(2), &again.state(Status::Ok, |s| further(s, 1, BASE_2, &[2; 16])));
    assert_eq!(traversed(&bench.ended()).iterations, 2);
}

/// Every request of a storing traversal carries its code, so that no node has to ask and all copies of a
/// request have one id (PROTOCOL 9.8, 11.4). If code and state do not fit one datagram, it begins with the
/// hash alone, as others do.
#[test]
fn a_traversal_that_stores_brings_its_code() {
    let text = include_str!("../../../../testdata/programs/list_add.pulse");
    let program = Program::assemble(text).unwrap();
    let add = |program: &Program| Op::Traverse {
        program: program.clone(),
        cur_ptr: VirtAddr(BASE_1),
        scratch: vec![0; program.scratch_len()],
        limit: 9,
    };
    let mut bench = Bench::with_sessions();
    bench.submit(add(&program));
    let first = bench.request();
    assert_eq!(first.traverse().code, program.encoded());
    bench.hear(Port::SWITCH, &first.state(Status::HopLimit, |s| further(s, 1, BASE_2, &[1; 16])));
    let again = bench.request();
    assert_eq!(again.traverse().code, program.encoded());
    bench.hear(Port::node(2), &again.state(Status::Ok, |s| further(s, 1, BASE_2, &[2; 16])));
    bench.ended();
    let long = Program::assemble(&text.replace(".scratch 16", ".scratch 4000")).unwrap();
    bench.submit(add(&long));
    assert_eq!(bench.request().traverse().code, []);
}

/// The traversal met a page that a host is writing: it is sent again from the state in the answer, under a
/// new id, and not at once (PROTOCOL 12.29).
#[test]
pub(super) fn a_traversal_waits_for_a_page_that_a_host_has() {
    let mut bench = Bench::with_sessions();
    bench.submit(list_sum(BASE_1, 9));
    let request = bench.request();
    bench.hear(Port::node(2), &request.state(Status::Lent, |s| further(s, 2, BASE_2, &[1; 16])));
    assert_eq!(bench.took_notes(), [Note::Deferred]);
    bench.wake();
    let again = bench.request();
    let state = again.traverse();
    assert_eq!((state.cur_ptr, state.iterations), (VirtAddr(BASE_2), 2));
    assert_ne!(again.id(), request.id());
    bench.hear(Port::node(2), &again.state(Status::Ok, |s| further(s, 1, BASE_2, &[3; 16])));
    assert_eq!(traversed(&bench.ended()).requests, 2);
}
