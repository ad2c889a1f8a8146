//! Many traversals at once: each ends as it would alone, none waits for a long one, and their number is
//! bounded.

use super::traversals::{FIND, find, list, node, pad, request};
use super::*;
use crate::{ITERATIONS_PER_TURN, ITERATIONS_PER_VISIT_MAX, PROGRAMS_MAX, WAITING_MAX, WORKSPACES};
use alloc::collections::BTreeMap;
use alloc::format;
use farmem_transport::Access;
use farmem_traversal::{Behind, Program, State, Step};
use farmem_wire::message::Traverse;
use proptest::prelude::*;

impl Bench {
    /// Delivers a traversal of Alice's without waking the node.
    fn bring(&mut self, counter: u32, traverse: &Traverse<'_>) {
        let message = Message { header: header(ALICE, counter), body: Body::Traverse(*traverse) };
        let frame = datagram(&message);
        self.node.handle(Instant::ZERO, Event::Frame { port: Port::SWITCH, bytes: &frame }, &mut self.out);
        self.node.check();
    }

    /// Wakes the node once; returns the answered requests in order, with their status.
    fn turn(&mut self) -> Vec<(u32, Status)> {
        assert!(self.node.next_wake().is_some(), "a turn is due");
        self.node.handle(Instant::ZERO, Event::Wake, &mut self.out);
        self.node.check();
        self.drain();
        self.sent.iter().map(|(_, frame)| counter_and_status(frame)).collect()
    }
}

fn number(message: &Message<'_>) -> u32 {
    u32::try_from(message.header.request.0 & 0xffff_ffff).unwrap()
}

fn counter_and_status(frame: &[u8]) -> (u32, Status) {
    let message = Message::parse(Packet::parse(frame).unwrap().payload).unwrap();
    (number(&message), message.header.status)
}

/// Returns a request that circles in the ring until its visit is over.
fn endless<'a>(program: &'a Program, scratch: &'a [u8]) -> Traverse<'a> {
    Traverse { limit: u32::MAX, ..request(program, scratch) }
}

/// A long traversal arrives before short ones, in one batch. The events that bring them run nothing. In the
/// turn the short ones are answered first (PROTOCOL 7.31, 7.32).
#[test]
fn short_traversals_overtake_a_long_one() {
    let mut bench = Bench::ready();
    list(&mut bench, addr(0));
    let program = find();
    let (nowhere, third, first) = (pad(9, 0), pad(3, 0), pad(1, 0));
    bench.bring(0, &Traverse { limit: 1000, ..request(&program, &nowhere) });
    bench.bring(1, &request(&program, &third));
    bench.bring(2, &request(&program, &first));
    assert_eq!(bench.out.len(), 1, "the program was learned, and nothing was answered");
    assert_eq!(bench.turn(), [(2, Status::Ok), (1, Status::Ok), (0, Status::IterationLimit)]);
    assert_eq!(bench.node.next_wake(), None);
    assert_eq!(bench.node.stats().iterations, 1000 + 3 + 1);
}

/// More traversals than take part in a turn circle at a node that grants the first 64 bytes of a window of
/// 256. Between two turns more is granted, and all of them find the byte they look for: none uses the earlier
/// check.
#[test]
fn what_is_there_of_a_window_is_asked_for_each_turn() {
    let text = ".window 256\n .scratch 8\n ld8 r2, scratch[0]\n sub r2, 1\n st8 scratch[0], r2\n jeq r2, 0, last\n ld1 r3, window[0]\n next r1\n\
                last: ld1 r3, window[100]\n st8 scratch[0], r3\n ret";
    let program = Program::assemble(text).unwrap();
    let mut bench = Bench::ready();
    bench.put(addr(0x2000), &[7; 256]);
    let grant =
        |len| Update::Protect { domain: ALICE, base: addr(0x2000), len, perm: Perm::Read, vma_log2: 64 };
    bench.update(&[grant(64)]);
    // The last iteration is the first one of a turn.
    let scratch = (ITERATIONS_PER_TURN as u64 + 1).to_le_bytes();
    let asked = Traverse { cur_ptr: addr(0x2000), limit: 1000, ..request(&program, &scratch) };
    let count = u32::try_from(WORKSPACES).unwrap() + 1;
    (0..count).for_each(|n| bench.bring(n, &asked));
    assert_eq!(bench.turn(), [], "none is through");
    bench.seq += 1;
    let frame = batch(bench.seq, &[grant(256)]);
    bench.node.handle(Instant::ZERO, Event::Frame { port: Port::CONTROL, bytes: &frame }, &mut bench.out);
    bench.drain();
    assert_eq!(bench.response(), (Status::Ok, 0));
    let mut ended = BTreeMap::new();
    while bench.node.next_wake().is_some() {
        ended.extend(bench.turn());
    }
    assert_eq!(ended.len(), count as usize);
    assert!(ended.values().all(|&status| status == Status::Ok), "{ended:?}");
}

/// With one workspace, each traversal runs to its end before the next begins: answers are in order of
/// arrival. A turn has as many iterations as one traversal's share of a turn of many.
#[test]
fn with_one_workspace_they_run_one_after_the_other() {
    let mut bench = Bench::ready_with(Budget { workspaces: 1, ..Budget::default() });
    list(&mut bench, addr(0));
    let program = find();
    let (nowhere, third, first) = (pad(9, 0), pad(3, 0), pad(1, 0));
    bench.bring(0, &request(&program, &third));
    bench.bring(1, &request(&program, &first));
    bench.bring(2, &endless(&program, &nowhere));
    assert_eq!(bench.turn(), [(0, Status::Ok), (1, Status::Ok)]);
    assert_eq!(bench.node.stats().iterations, ITERATIONS_PER_TURN as u64);
    assert!(bench.node.next_wake().is_some(), "the endless one goes on");
}

/// Long traversals occupy all workspaces when a short one arrives. It waits for one turn of theirs, not for
/// their end (PROTOCOL 7.33).
#[test]
fn one_that_waits_gets_its_turn_before_the_others_end() {
    let mut bench = Bench::ready();
    list(&mut bench, addr(0));
    let program = find();
    let (nowhere, third) = (pad(9, 0), pad(3, 0));
    let long = u32::try_from(WORKSPACES).unwrap();
    (0..long).for_each(|n| bench.bring(n, &endless(&program, &nowhere)));
    bench.bring(long, &request(&program, &third));
    assert_eq!(bench.turn(), []);
    assert_eq!(bench.node.stats().iterations, (WORKSPACES * ITERATIONS_PER_TURN) as u64);
    assert_eq!(bench.turn(), [(long, Status::Ok)]);
    let mut ended = vec![];
    while bench.node.next_wake().is_some() {
        ended.extend(bench.turn());
    }
    let all: Vec<_> = (0..long).map(|n| (n, Status::IterationLimit)).collect();
    ended.sort_unstable_by_key(|&(n, _)| n);
    assert_eq!(ended, all);
}

/// A host sends more than the node has room for. Surplus requests are answered with `Busy` and their state at
/// once; all others as usual (PROTOCOL 7.33).
#[test]
fn the_queue_has_a_bound() {
    let mut bench = Bench::ready();
    list(&mut bench, addr(0));
    let (program, scratch) = (find(), pad(3, 0));
    let places = u32::try_from(WORKSPACES + WAITING_MAX).unwrap();
    let asked = request(&program, &scratch);
    (0..places).for_each(|n| bench.bring(n, &asked));
    bench.drain();
    assert_eq!(bench.sent, [], "they wait");

    bench.bring(places, &Traverse { iterations: 5, ..asked });
    bench.drain();
    let [(_, frame)] = &bench.sent[..] else { panic!("one answer, not {:?}", bench.sent) };
    let message = parse(frame, endpoint(3));
    assert_eq!(message.header.status, Status::Busy);
    assert_eq!(message.body, Body::Traverse(Traverse { iterations: 5, code: &[], ..asked }), "as it came");

    let mut answered = 0;
    while bench.node.next_wake().is_some() {
        let turn = bench.turn();
        assert!(turn.iter().all(|&(_, status)| status == Status::Ok));
        answered += turn.len();
    }
    assert_eq!(answered, WORKSPACES + WAITING_MAX);
    assert_eq!(bench.node.stats().iterations, 3 * u64::from(places));
    bench.bring(places + 1, &asked);
    assert_eq!(bench.turn(), [(places + 1, Status::Ok)], "there is room again");
}

/// Between two turns the control plane takes away the memory, the switch or the host. The traversals in
/// progress stop where they are; no further window is read (PROTOCOL 7.15, 7.34).
#[test]
fn what_is_taken_back_between_turns_is_gone() {
    let cases = [
        (
            Update::Protect { domain: ALICE, base: addr(0), len: 0x1000, perm: Perm::None, vma_log2: 64 },
            Some(Status::NotMapped),
        ),
        (
            Update::Protect { domain: ALICE, base: addr(0x800), len: 1, perm: Perm::None, vma_log2: 64 },
            Some(Status::NotMapped),
        ),
        (
            Update::Protect { domain: ALICE, base: addr(0x817), len: 1, perm: Perm::None, vma_log2: 64 },
            Some(Status::OutOfBounds),
        ),
        (Update::RangeGone { base: BASE, len: LEN }, None),
        (Update::PeerGone { port: Port::host(HOST.0).0 }, None),
    ];
    for (update, expected) in cases {
        let mut bench = Bench::ready();
        list(&mut bench, addr(0));
        let (program, nowhere) = (find(), pad(9, 0));
        let long = u32::try_from(WORKSPACES).unwrap();
        (0..=long).for_each(|n| bench.bring(n, &endless(&program, &nowhere)));
        assert_eq!(bench.turn(), []);
        let before = bench.node.stats();
        bench.seq += 1;
        let frame = batch(bench.seq, &[update]);
        bench.node.handle(Instant::ZERO, Event::Frame { port: Port::CONTROL, bytes: &frame }, &mut bench.out);
        bench.drain();
        assert_eq!(bench.response(), (Status::Ok, 0));
        let mut ended = vec![];
        while bench.node.next_wake().is_some() {
            ended.extend(bench.turn());
        }
        let after = bench.node.stats();
        match (update, expected) {
            (Update::PeerGone { .. }, _) => {
                assert_eq!((ended.len(), after.dropped - before.dropped), (0, u64::from(long) + 1));
            }
            (Update::RangeGone { .. }, _) => {
                assert_eq!((ended.len() as u64, after.continued), (u64::from(long) + 1, u64::from(long) + 1));
                assert_eq!(after.iterations, before.iterations);
            }
            (_, Some(status)) => {
                assert_eq!(ended.len() as u64, u64::from(long) + 1);
                assert!(ended.iter().all(|end| end.1 == status), "{update:?}: {ended:?}");
                // The iteration that reaches the gap in its window counts (PROTOCOL 10.14).
                assert!(
                    after.iterations <= before.iterations + 3 * (u64::from(long) + 1),
                    "to the gap at most"
                );
            }
            other => panic!("no expectation for {other:?}"),
        }
    }
}

/// A program is evicted while traversals of it are in progress: they continue.
#[test]
fn a_program_that_is_forgotten_still_ends_what_it_began() {
    let mut bench = Bench::ready();
    list(&mut bench, addr(0));
    let (program, third) = (find(), pad(3, 0));
    bench.bring(0, &request(&program, &third));
    for window in 1..=PROGRAMS_MAX {
        let other = Program::assemble(&format!(".window {window}\n ret")).unwrap();
        bench.bring(u32::try_from(window).unwrap(), &request(&other, &[]));
    }
    bench.bring(99, &Traverse { code: &[], ..request(&program, &third) });
    bench.drain();
    assert_eq!(
        bench.sent.iter().map(|(_, f)| counter_and_status(f)).collect::<Vec<_>>(),
        [(99, Status::UnknownProgram)]
    );
    let mut ended = vec![];
    while bench.node.next_wake().is_some() {
        ended.extend(bench.turn());
    }
    ended.sort_unstable_by_key(|&(n, _)| n);
    assert_eq!(ended, (0..=64).map(|n| (n, Status::Ok)).collect::<Vec<_>>());
}

/// Slots of list nodes: three quarters are readable for Alice, some are Bob's, and some of no domain.
const PLACES: u64 = 0x2800 / 0x40;

/// A request of the property test: first pointer, program, limit, and whether it may leave the node.
#[derive(Clone, Debug)]
struct TraversalRequest {
    place: u64,
    program: usize,
    key: u64,
    limit: u32,
    hops: u8,
    bob: bool,
}

fn traversal_requests() -> impl Strategy<Value = TraversalRequest> {
    let limit = prop_oneof![0..8_u32, 8..200_u32, Just(u32::MAX)];
    (0..PLACES + 2, 0..3_usize, 0..PLACES * 2, limit, 0..2_u8, prop::bool::weighted(0.2)).prop_map(
        |(place, program, key, limit, hops, bob)| TraversalRequest { place, program, key, limit, hops, bob },
    )
}

/// Generates next pointers: to a slot, near one, or away.
fn pointers() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let skip = prop_oneof![20 => Just(0_u64), 1 => 0..0x40_u64];
    prop::collection::vec((0..PLACES + 1, skip), usize::try_from(PLACES).unwrap())
}

fn programs() -> [Program; 3] {
    // The second sums keys and faults on one that is no valid index; the third reads the whole 256 bytes.
    let sum = ".window 24\n .scratch 16\n ld8 r2, window[0]\n ld8 r3, window[16]\n ld8 r4, scratch[0]\n add r4, r2\n \
               st8 scratch[0], r4\n and r2, 31\n ld8 r5, window[r2]\n next r3";
    let wide = FIND.replace(".scratch", ".window 256\n    .scratch");
    [find(), Program::assemble(sum).unwrap(), Program::assemble(&wide).unwrap()]
}

/// Computes a traversal's outcome in isolation, by the reference interpreter and by the tables' own check of
/// each window.
fn alone(
    bench: &Bench,
    header: &Header,
    asked: &Traverse<'_>,
    program: &Program,
) -> (Port, Status, State, u32) {
    let mut state = State { cur_ptr: asked.cur_ptr, scratch: asked.scratch.to_vec() };
    let to_host = |status| (Port::host(HOST.0), status);
    let mut iterations = 0;
    let (port, status) = loop {
        if iterations == asked.limit.min(ITERATIONS_PER_VISIT_MAX) {
            break to_host(Status::IterationLimit);
        }
        let addr = state.cur_ptr;
        let check = |len: usize| {
            let len = u32::try_from(len).unwrap();
            bench.node.regions.check_access(&Access { domain: header.domain, addr, len, perm: Perm::Read })
        };
        let there = match check(1) {
            // The accessible length (PROTOCOL 7.50).
            Ok(()) => (1..=program.window_len()).rev().find(|&len| check(len).is_ok()).unwrap(),
            Err(_) if bench.node.regions.is_local(addr) => break to_host(Status::NotMapped),
            Err(_) if header.hops > 0 => break (Port::SWITCH, Status::Ok),
            Err(_) => break to_host(Status::HopLimit),
        };
        let window = bench.bytes(addr, u32::try_from(there).unwrap());
        iterations += 1;
        match program.step_cut(&window, &mut state.cur_ptr, &mut state.scratch) {
            Ok(Step::Next) => {}
            Ok(Step::Return) => break to_host(Status::Ok),
            Ok(Step::Fault) => break to_host(Status::ProgramFault),
            Err(Behind) => break to_host(Status::OutOfBounds),
        }
    };
    (port, status, state, iterations)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Random lists, random batches: interleaved traversals end as in isolation, and each is answered once.
    #[test]
    fn interleaved_is_one_at_a_time(
        pointers in pointers(),
        batches in prop::collection::vec(prop::collection::vec(traversal_requests(), 1..90), 1..4),
    ) {
        let mut bench = Bench::ready();
        let grant = Update::Protect { domain: BOB, base: addr(0x1c00), len: 0x400, perm: Perm::Read, vma_log2: 64 };
        prop_assert_eq!(bench.update(&[grant]), (Status::Ok, 0));
        for (at, &(to, skip)) in (0..).zip(&pointers) {
            node(&mut bench, at * 0x40, at + 1, at * 10, VirtAddr(addr(to * 0x40).0 + skip));
        }
        let programs = programs();
        let mut counter = 0;
        for batch in &batches {
            let mut expected = BTreeMap::new();
            for one in batch {
                counter += 1;
                let (program, scratch) = (&programs[one.program], pad(one.key, 0));
                let request = Traverse { cur_ptr: addr(one.place * 0x40), limit: one.limit, ..request(program, &scratch) };
                let domain = if one.bob { BOB } else { ALICE };
                let header = Header { hops: one.hops, ..header(domain, counter) };
                expected.insert(counter, alone(&bench, &header, &request, program));
                let frame = datagram(&Message { header, body: Body::Traverse(request) });
                bench.node.handle(Instant::ZERO, Event::Frame { port: Port::SWITCH, bytes: &frame }, &mut bench.out);
            }
            bench.collect();
            prop_assert_eq!(bench.sent.len(), expected.len(), "each is answered once");
            for (port, frame) in &bench.sent {
                let message = Message::parse(Packet::parse(frame).unwrap().payload).unwrap();
                let Body::Traverse(got) = message.body else { panic!("a traversal") };
                let (to, status, state, iterations) = expected.remove(&number(&message)).unwrap();
                prop_assert_eq!((*port, message.header.status, got.cur_ptr), (to, status, state.cur_ptr));
                prop_assert_eq!((got.iterations, got.scratch), (iterations, &state.scratch[..]));
                prop_assert_eq!(message.header.response, to != Port::SWITCH);
            }
        }
    }
}
