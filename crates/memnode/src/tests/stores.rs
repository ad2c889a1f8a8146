//! Traversals of storing programs: their effect on memory, and that it happens once (PROTOCOL 7.35, 7.36).

use super::traversals::{ask, request};
use super::*;
use crate::DEDUP_DEPTH;
use farmem_traversal::Program;
use farmem_wire::message::Traverse;

/// Adds to the first word of each node of a chain of {value, next}, and counts the nodes.
const LIST_ADD: &str = include_str!("../../../../testdata/programs/list_add.pulse");
/// Scratch pad of the program: add one, no nodes counted yet.
const ADD_ONE: [u8; 16] = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn count() -> Program {
    Program::assemble(LIST_ADD).unwrap()
}

/// Writes nodes of {0, next} at these offsets. Each leads to the next one, and the last one to `end`.
fn chain(bench: &mut Bench, places: &[u64], end: VirtAddr) {
    for (number, at) in places.iter().enumerate() {
        let next = places.get(number + 1).map_or(end, |next| addr(*next));
        bench.put(addr(*at), &[0_u64.to_le_bytes(), next.0.to_le_bytes()].concat());
    }
}

fn counts(bench: &Bench, places: &[u64]) -> Vec<u8> {
    places.iter().map(|at| bench.bytes(addr(*at), 1)[0]).collect()
}

fn visit(header: Header, state: Traverse<'_>) -> Vec<u8> {
    datagram(&Message { header, body: Body::Traverse(state) })
}

const PLACES: [u64; 3] = [0, 0x800, 0x7c0];

/// A traversal increments every node of a chain, once. Its copies are answered and increment nothing, even
/// much later and with code. A new request increments again. The second time the node knows the program.
#[test]
fn a_storing_traversal_runs_once() {
    let mut bench = Bench::ready();
    chain(&mut bench, &PLACES, VirtAddr::NULL);
    let (program, pad) = (count(), ADD_ONE);
    let with_code = request(&program, &pad);
    for copy in 0..3 {
        let (status, answer) = ask(&mut bench, header(ALICE, 1), &with_code);
        assert_eq!((status, answer.iterations, answer.scratch[8]), (Status::Ok, 3, 3), "copy {copy}");
        assert_eq!((answer.cur_ptr, counts(&bench, &PLACES)), (addr(0x7c0), vec![1; 3]), "copy {copy}");
    }
    let by_name = Traverse { code: &[], ..with_code };
    assert_eq!(ask(&mut bench, header(ALICE, 2), &by_name).0, Status::Ok);
    assert_eq!(ask(&mut bench, header(ALICE, 1), &by_name).0, Status::Ok);
    assert_eq!(counts(&bench, &PLACES), [2; 3]);
    let copies = bench.notes.iter().filter(|note| **note == Note::DuplicateTraversal).count();
    assert_eq!((copies, bench.node.stats().visits, bench.node.stats().iterations), (3, 2, 6));
}

/// The changes of an iteration happen completely or not at all: a fault reverts its stores, and not those of
/// earlier iterations.
#[test]
fn a_fault_stores_nothing() {
    let text = ".stores\n.scratch 8\n st8 window[0], 7\n ld8 r2, window[8]\n jne r2, 0, on\n mov r3, 99\n\
                ld8 r4, scratch[r3]\n on: next r2";
    let mut bench = Bench::ready();
    chain(&mut bench, &PLACES, VirtAddr::NULL);
    let (program, pad) = (Program::assemble(text).unwrap(), [0; 8]);
    let (status, answer) = ask(&mut bench, header(ALICE, 1), &request(&program, &pad));
    assert_eq!((status, answer.cur_ptr, answer.iterations), (Status::ProgramFault, addr(0x7c0), 3));
    assert_eq!(counts(&bench, &PLACES), [7, 7, 0]);
}

/// Only bytes of the window that the program stored to change, whatever the window's alignment.
#[test]
fn other_bytes_stay() {
    let text = ".stores\n.window 16\n st1 window[3], 1\n st2 window[9], 0x0202\n ret";
    let program = Program::assemble(text).unwrap();
    let mut bench = Bench::ready();
    bench.put(addr(0), &[0xaa; 64]);
    let asked = Traverse { cur_ptr: addr(5), ..request(&program, &[]) };
    assert_eq!(ask(&mut bench, header(ALICE, 1), &asked).0, Status::Ok);
    let mut expected = vec![0xaa; 64];
    (expected[8], expected[14], expected[15]) = (1, 2, 2);
    assert_eq!(bench.bytes(addr(0), 64), expected);
}

/// Alice may read the next 0x1000 bytes, and not write them: a storing program ends there, before the
/// iteration, with the pointer. A program that only reads continues. A window that crosses into the read-only
/// bytes is refused as well.
#[test]
fn storing_needs_leave_to_write() {
    let mut bench = Bench::ready();
    chain(&mut bench, &[0, 0x800, 0x1100], VirtAddr::NULL);
    let (program, pad) = (count(), ADD_ONE);
    let (status, answer) = ask(&mut bench, header(ALICE, 1), &request(&program, &pad));
    assert_eq!((status, answer.cur_ptr, answer.iterations), (Status::NoPermission, addr(0x1100), 2));
    assert_eq!(counts(&bench, &[0, 0x800, 0x1100]), [1, 1, 0]);
    let across = Traverse { cur_ptr: addr(0xff8), ..request(&program, &pad) };
    let (status, answer) = ask(&mut bench, header(ALICE, 2), &across);
    assert_eq!((status, answer.cur_ptr, answer.iterations), (Status::NoPermission, addr(0xff8), 0));

    let read_only =
        Program::assemble(&LIST_ADD.replace(".stores", "").replace("st8 window", "st8 spill")).unwrap();
    let (status, answer) = ask(&mut bench, header(ALICE, 3), &request(&read_only, &pad));
    assert_eq!((status, answer.iterations), (Status::Ok, 3));
}

/// A window crosses the end of Alice's writable memory, at every distance. A store to the last accessible
/// byte succeeds. An iteration that stores to the first byte behind changes nothing. The bytes behind never
/// change (PROTOCOL 7.50).
#[test]
fn stores_behind_the_end_are_refused() {
    let text =
        ".stores\n .window 64\n .scratch 8\n st1 window[0], 9\n ld8 r2, scratch[0]\n st1 window[r2], 7\n ret";
    let program = Program::assemble(text).unwrap();
    let mut bench = Bench::ready();
    bench.update(&[Update::Protect {
        domain: ALICE,
        base: addr(0x1000),
        len: 0x1000,
        perm: Perm::None,
        vma_log2: 64,
    }]);
    let mut counter = 0;
    for there in 1..=64_u64 {
        for (at, ends) in [(there - 1, Status::Ok), (there, Status::OutOfBounds), (63, Status::OutOfBounds)] {
            if (at < there) != (ends == Status::Ok) {
                continue; // the window is whole, or this is its last byte
            }
            counter += 1;
            bench.put(addr(0xf00), &[0xaa; 0x200]);
            let pad = at.to_le_bytes();
            let asked = Traverse { cur_ptr: addr(0x1000 - there), ..request(&program, &pad) };
            let expected = if at < 64 { ends } else { Status::ProgramFault };
            let (status, answer) = ask(&mut bench, header(ALICE, counter), &asked);
            assert_eq!((status, answer.iterations), (expected, 1), "{at} of {there}");
            let mut bytes = vec![0xaa; 0x200];
            if ends == Status::Ok {
                let first = usize::try_from(0x100 - there).unwrap();
                bytes[first] = 9;
                bytes[first + usize::try_from(at).unwrap()] = 7;
            }
            assert_eq!(bench.bytes(addr(0xf00), 0x200), bytes, "{at} of {there}");
        }
    }
}

/// A traversal leaves for another node, returns, and leaves again: two visits here. Copies of either visit
/// get the outcome of the last one: the state goes to the switch again, and nothing is counted twice. When
/// the traversal ends here, copies get the answer.
#[test]
fn each_visit_runs_once() {
    let mut bench = Bench::ready();
    let far = VirtAddr(0x2000_0000);
    chain(&mut bench, &[0x000, 0x040], far);
    chain(&mut bench, &[0x100, 0x140], far);
    chain(&mut bench, &[0x200], VirtAddr::NULL);
    let all = [0x000, 0x040, 0x100, 0x140, 0x200];
    let (program, pad) = (count(), ADD_ONE);
    let begin = request(&program, &pad);
    let at = |hops, start: u64, iterations| {
        let state = Traverse { cur_ptr: addr(start), iterations, ..begin };
        visit(Header { hops, ..header(ALICE, 1) }, state)
    };
    let went_on = |bench: &mut Bench, frame: &[u8], iterations: u32| {
        bench.hear(Port::SWITCH, frame);
        let [(Port::SWITCH, sent)] = &bench.sent[..] else { panic!("to the switch, not {:?}", bench.sent) };
        let Body::Traverse(state) = parse(sent, endpoint(1)).body else { panic!("a traversal") };
        assert_eq!((state.cur_ptr, state.iterations), (far, iterations));
        state.code.len()
    };
    assert!(went_on(&mut bench, &at(4, 0, 0), 2) > 0, "the code goes along");
    assert!(went_on(&mut bench, &at(4, 0, 0), 2) > 0, "a copy has its own");
    let by_name = visit(header(ALICE, 1), Traverse { code: &[], ..begin });
    assert_eq!(went_on(&mut bench, &by_name, 2), 0, "or none");
    went_on(&mut bench, &at(2, 0x100, 3), 5);
    for (hops, start, iterations) in [(2, 0x100, 3), (4, 0, 0), (3, 0x77, 9)] {
        went_on(&mut bench, &at(hops, start, iterations), 5);
    }
    assert_eq!(counts(&bench, &all), [1, 1, 1, 1, 0]);
    for (hops, start) in [(0, 0x200), (0, 0x200), (2, 0x100), (4, 0)] {
        bench.hear(Port::SWITCH, &at(hops, start, 6));
        let [(port, sent)] = &bench.sent[..] else { panic!("one answer, not {:?}", bench.sent) };
        assert_eq!(*port, Port::host(HOST.0));
        let message = parse(sent, endpoint(3));
        assert_eq!((message.header.status, message.header.hops), (Status::Ok, 0));
    }
    assert_eq!(counts(&bench, &all), [1; 5]);
}

/// A late copy arrives when its bytes are at another node, where the request was executed meanwhile.
/// Forwarded to the switch, it would be a later visit there and be executed again. The node drops it and
/// records nothing, so that it may be executed if the bytes return.
#[test]
fn what_begins_elsewhere_is_dropped() {
    let mut bench = Bench::ready();
    chain(&mut bench, &PLACES, VirtAddr::NULL);
    let (program, pad) = (count(), ADD_ONE);
    let begin = request(&program, &pad);
    let far = visit(header(ALICE, 1), Traverse { cur_ptr: VirtAddr(0x2000_0000), ..begin });
    bench.hear_nothing(Port::SWITCH, &far, DropReason::NotHere);
    assert_eq!(ask(&mut bench, header(ALICE, 1), &begin).0, Status::Ok);
    assert_eq!(counts(&bench, &PLACES), [1; 3]);
}

/// Copies that arrive before or during the first one's turn are dropped: there is one answer.
#[test]
fn a_copy_of_what_is_under_way_is_dropped() {
    let mut bench = Bench::ready();
    chain(&mut bench, &PLACES, VirtAddr::NULL);
    let (program, pad) = (count(), ADD_ONE);
    let frame = visit(header(ALICE, 1), request(&program, &pad));
    for _ in 0..3 {
        bench.node.handle(Instant::ZERO, Event::Frame { port: Port::SWITCH, bytes: &frame }, &mut bench.out);
    }
    bench.collect();
    assert_eq!(bench.sent.len(), 1, "{:?}", bench.sent);
    assert_eq!(counts(&bench, &PLACES), [1; 3]);
    let dropped = Note::Dropped(DropReason::UnderWay);
    assert_eq!(bench.notes.iter().filter(|note| **note == dropped).count(), 2);
}

/// A refusal is final: the host continues under another id, and a late copy must not run beside that. Unknown
/// programs, bad scratch pads, missing permission.
#[test]
fn a_refusal_is_remembered() {
    let mut bench = Bench::ready();
    chain(&mut bench, &PLACES, VirtAddr::NULL);
    let (program, pad) = (count(), ADD_ONE);
    let with_code = request(&program, &pad);
    let by_name = Traverse { code: &[], ..with_code };
    let long = Traverse { scratch: &[0; 17], ..with_code };
    assert_eq!(ask(&mut bench, header(ALICE, 1), &by_name).0, Status::UnknownProgram);
    assert_eq!(ask(&mut bench, header(ALICE, 2), &long).0, Status::Malformed);
    assert_eq!(ask(&mut bench, header(BOB, 3), &with_code).0, Status::NotMapped);
    bench.update(&[Update::Protect {
        domain: BOB,
        base: addr(0),
        len: 0x1000,
        perm: Perm::ReadWrite,
        vma_log2: 64,
    }]);
    assert_eq!(ask(&mut bench, header(ALICE, 1), &with_code).0, Status::UnknownProgram, "it is known by now");
    assert_eq!(ask(&mut bench, header(ALICE, 2), &with_code).0, Status::Malformed);
    assert_eq!(ask(&mut bench, header(BOB, 3), &with_code).0, Status::NotMapped, "it is allowed by now");
    assert_eq!(counts(&bench, &PLACES), [0; 3]);
    let foreign = Header { request: RequestId::new(OTHER_HOST, 1, 1), ..header(ALICE, 4) };
    assert_eq!(ask(&mut bench, foreign, &with_code).0, Status::Malformed, "another host's id");
    let own = Header { origin: OTHER_HOST, ..foreign };
    assert_eq!(ask(&mut bench, own, &with_code).0, Status::Ok, "which is not used up");
    assert_eq!(counts(&bench, &PLACES), [1; 3]);
}

/// A host has more requests behind one than a node remembers: that one is not executed and not answered,
/// because it may have been executed (PROTOCOL 5.6). Region writes count too.
#[test]
fn what_is_older_than_memory_is_dropped() {
    let mut bench = Bench::ready();
    chain(&mut bench, &PLACES, VirtAddr::NULL);
    let (program, pad) = (count(), ADD_ONE);
    let state = request(&program, &pad);
    assert_eq!(ask(&mut bench, header(ALICE, 1), &state).0, Status::Ok);
    for counter in (2..).take(DEDUP_DEPTH) {
        let status = if counter % 2 == 0 {
            let body = Body::RegionWrite { addr: addr(0x900), len: 1, data: &[1] };
            bench.ask(header(ALICE, counter), body).header.status
        } else {
            let empty = Traverse { cur_ptr: addr(0xa00), ..state };
            ask(&mut bench, header(ALICE, counter), &empty).0
        };
        assert_eq!(status, Status::Ok);
    }
    bench.hear_nothing(Port::SWITCH, &visit(header(ALICE, 1), state), DropReason::Forgotten);
    assert_eq!(counts(&bench, &PLACES), [1; 3]);
}

/// Traversals and atomics that add to one word, concurrently: no update is lost, because an iteration is one
/// step (PROTOCOL 7.35).
#[test]
fn additions_of_traversals_and_atomics_add_up() {
    let mut bench = Bench::ready();
    bench.update(&[queue_pair(0x200, 0)]);
    let (program, pad) = (count(), ADD_ONE);
    // A ring of two nodes: each traversal passes 50 times.
    chain(&mut bench, &[0, 0x40], addr(0));
    for counter in 1..=40 {
        let state = Traverse { limit: 100, ..request(&program, &pad) };
        let frame = visit(header(ALICE, counter), state);
        bench.node.handle(Instant::ZERO, Event::Frame { port: Port::SWITCH, bytes: &frame }, &mut bench.out);
        let add = farmem_wire::AtomicEth { va: addr(0), rkey: RKEY, swap_or_add: 1000, compare: 0 };
        let bth = Bth::new(Opcode::FetchAdd, Qpn::new(0x200), Psn::new(counter - 1));
        let mut frame = vec![];
        Packet { bth, ext: Extension::AtomicEth(add), payload: &[] }.emit(&mut frame);
        let port = Port::host(HOST.0);
        bench.node.handle(Instant::ZERO, Event::Frame { port, bytes: &frame }, &mut bench.out);
        if counter % 7 == 0 {
            bench.node.handle(Instant::ZERO, Event::Wake, &mut bench.out);
        }
    }
    bench.collect();
    let word = |at| u64::from_le_bytes(bench.bytes(addr(at), 8).try_into().unwrap());
    assert_eq!((word(0), word(0x40)), (40 * 50 + 40 * 1000, 40 * 50));
}
