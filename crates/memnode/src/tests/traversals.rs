//! Traversals at one node: where they end, where they leave, and their answers.

use super::*;
use crate::{ITERATIONS_PER_VISIT_MAX, PROGRAMS_MAX};
use alloc::format;
use farmem_traversal::Program;
use farmem_wire::ProgramHash;
use farmem_wire::message::Traverse;

/// `find` in a list of nodes {key, value, next}: the scratch pad holds the key, and gets the value.
pub(super) const FIND: &str = "
    .scratch 16
        ld8 r2, window[0]
        ld8 r3, scratch[0]
        ld8 r4, window[8]
        ld8 r5, window[16]
        jeq r2, r3, found
        next r5
    found:
        st8 scratch[8], r4
        ret
";

pub(super) fn find() -> Program {
    Program::assemble(FIND).unwrap()
}

/// Writes a list node at `at`; `next` is an address.
pub(super) fn node(bench: &mut Bench, at: u64, key: u64, value: u64, next: VirtAddr) {
    for (i, word) in (0..).zip([key, value, next.0]) {
        bench.put(addr(at + i * 8), &word.to_le_bytes());
    }
}

/// Writes three nodes of Alice's: keys 1, 2, 3 with values 10, 20, 30. The last one's next pointer is `end`.
pub(super) fn list(bench: &mut Bench, end: VirtAddr) {
    node(bench, 0x000, 1, 10, addr(0x800));
    node(bench, 0x800, 2, 20, addr(0x400));
    node(bench, 0x400, 3, 30, end);
}

pub(super) fn pad(key: u64, value: u64) -> Vec<u8> {
    [key.to_le_bytes(), value.to_le_bytes()].concat()
}

/// Returns a request to find `scratch`'s key from the list's head on, with the code.
pub(super) fn request<'a>(program: &'a Program, scratch: &'a [u8]) -> Traverse<'a> {
    let cur_ptr = addr(0);
    let (program, code) = (program.hash(), program.encoded());
    Traverse { program, cur_ptr, iterations: 0, limit: 100, scratch, code }
}

/// Sends a request; returns status and traversal of the response, which must have the one valid form
/// (PROTOCOL 7.29).
pub(super) fn ask<'a>(
    bench: &'a mut Bench,
    header: Header,
    request: &Traverse<'_>,
) -> (Status, Traverse<'a>) {
    let message = bench.ask(header, Body::Traverse(*request));
    let Body::Traverse(traverse) = message.body else { panic!("a traversal's answer") };
    assert_eq!((traverse.program, traverse.limit), (request.program, request.limit));
    assert!(traverse.code.is_empty(), "no code in a response");
    (message.header.status, traverse)
}

/// The host looks a key up: the traversal visits three nodes, the answer is in the scratch pad, and memory is
/// unchanged (PROTOCOL 7.28, 7.30). The second time the node knows the program.
#[test]
fn a_traversal_finds_its_key() {
    let mut bench = Bench::ready();
    list(&mut bench, VirtAddr::NULL);
    let before = bench.node.store().clone();
    let (program, scratch) = (find(), pad(3, 0));
    let with_code = request(&program, &scratch);
    let (status, answer) = ask(&mut bench, header(ALICE, 1), &with_code);
    assert_eq!(status, Status::Ok);
    assert_eq!((answer.scratch, answer.iterations, answer.cur_ptr), (&pad(3, 30)[..], 3, addr(0x400)));
    assert!(bench.notes.contains(&Note::ProgramLearned));

    let by_name = Traverse { code: &[], ..with_code };
    let (status, answer) = ask(&mut bench, header(ALICE, 2), &by_name);
    assert_eq!((status, answer.scratch), (Status::Ok, &pad(3, 30)[..]));
    let (status, answer) = ask(&mut bench, header(ALICE, 2), &by_name);
    assert_eq!((status, answer.scratch), (Status::Ok, &pad(3, 30)[..]), "a repeated request runs again");
    assert_eq!(bench.notes.iter().filter(|n| **n == Note::ProgramLearned).count(), 1);
    assert_eq!(*bench.node.store(), before);
    assert_eq!((bench.node.stats().visits, bench.node.stats().iterations), (3, 9));
}

/// The list continues at another node: the traversal goes back to the switch as a request, with its state. At
/// a node with that memory it ends (PROTOCOL 7.26; PULSE 5).
#[test]
fn a_pointer_elsewhere_goes_back_to_the_switch() {
    let (mut here, mut there) = (Bench::ready(), Bench::empty(Budget::default()));
    let far = VirtAddr(0x2000_0000);
    list(&mut here, far);
    there.update(&[
        peer(Port::SWITCH, 1),
        peer(Port::host(HOST.0), 3),
        Update::Range { base: far, len: 0x1000, offset: 0 },
        Update::Protect { domain: ALICE, base: far, len: 0x1000, perm: Perm::Read, vma_log2: 64 },
    ]);
    there.node.store.write(0, &[4_u64.to_le_bytes(), 40_u64.to_le_bytes()].concat());

    let (program, scratch) = (find(), pad(4, 0));
    let request = request(&program, &scratch);
    let asked = Header { hops: 1, ..header(ALICE, 1) };
    here.hear(Port::SWITCH, &datagram(&Message { header: asked, body: Body::Traverse(request) }));
    let [(Port::SWITCH, frame)] = &here.sent[..] else { panic!("to the switch, not {:?}", here.sent) };
    let message = parse(frame, endpoint(1));
    assert_eq!(message.header, asked, "the request's own header: id, domain, origin, hops");
    assert_eq!(message.body, Body::Traverse(Traverse { cur_ptr: far, iterations: 3, ..request }));
    assert_eq!(here.notes.last(), Some(&Note::Continued));

    // The switch counts the hop and routes by the pointer. The code is forwarded, so the next node can learn
    // the program.
    let Body::Traverse(moved) = message.body else { unreachable!() };
    let (status, answer) = ask(&mut there, Header { hops: 0, ..asked }, &moved);
    assert_eq!(status, Status::Ok);
    assert_eq!((answer.scratch, answer.iterations, answer.cur_ptr), (&pad(4, 40)[..], 4, far));
}

/// The last hop of a FatTree forwards traversals, and nothing else. A traversal that leaves goes to the
/// rack's switch nevertheless (PROTOCOL 7.3, 16.2, 16.7).
#[test]
fn an_index_switch_sends_traversals() {
    let mut bench = Bench::ready();
    bench.update(&[peer(Port::index(5), 9)]);
    list(&mut bench, VirtAddr::NULL);
    let (program, scratch, further) = (find(), pad(3, 0), pad(4, 0));
    let of = |counter, body| datagram(&Message { header: header(ALICE, counter), body });
    let request = request(&program, &scratch);
    bench.hear(Port::index(5), &of(1, Body::Traverse(request)));
    let [(to, frame)] = &bench.sent[..] else { panic!("one answer, not {:?}", bench.sent) };
    let answer = parse(frame, endpoint(u32::from(HOST.0)));
    assert_eq!((*to, answer.header.status), (Port::host(HOST.0), Status::Ok));
    let Body::Traverse(found) = answer.body else { panic!("a traversal's answer") };
    assert_eq!(found.scratch, pad(3, 30));

    bench.hear_nothing(Port::index(6), &of(5, Body::Traverse(request)), DropReason::WrongPort);
    list(&mut bench, VirtAddr(0x2000_0000));
    bench.hear(Port::index(5), &of(2, Body::Traverse(Traverse { scratch: &further, ..request })));
    assert!(
        matches!(&bench.sent[..], [(Port::SWITCH, _)]),
        "on, by way of the rack's switch: {:?}",
        bench.sent
    );

    let read = Body::RegionRead { addr: addr(0), len: 8, data: &[] };
    bench.hear_nothing(Port::index(5), &of(3, read), DropReason::WrongPort);
    let write = Body::RegionWrite { addr: addr(0), len: 8, data: &[7; 8] };
    bench.hear_nothing(Port::index(5), &of(4, write), DropReason::WrongPort);
}

/// No hop is left: the host gets the state and may continue from there (PROTOCOL 7.26).
#[test]
fn a_traversal_without_hops_ends_where_it_would_leave() {
    let mut bench = Bench::ready();
    let far = VirtAddr(0x2000_0000);
    list(&mut bench, far);
    let (program, scratch) = (find(), pad(4, 0));
    let no_hops = Header { hops: 0, ..header(ALICE, 1) };
    let (status, answer) = ask(&mut bench, no_hops, &request(&program, &scratch));
    assert_eq!(status, Status::HopLimit);
    assert_eq!((answer.cur_ptr, answer.iterations, answer.scratch), (far, 3, &scratch[..]));
}

/// A list ends with the null pointer, which is at no node: the traversal goes to the switch, which answers
/// (PROTOCOL 7.26).
#[test]
fn a_null_pointer_goes_to_the_switch() {
    let mut bench = Bench::ready();
    list(&mut bench, VirtAddr::NULL);
    let (program, scratch) = (find(), pad(9, 0));
    let body = Body::Traverse(request(&program, &scratch));
    bench.hear(Port::SWITCH, &datagram(&Message { header: header(ALICE, 1), body }));
    let [(Port::SWITCH, frame)] = &bench.sent[..] else { panic!("to the switch, not {:?}", bench.sent) };
    let Body::Traverse(moved) = parse(frame, endpoint(1)).body else { panic!("a traversal") };
    assert_eq!((moved.cur_ptr, moved.iterations), (VirtAddr::NULL, 3));
}

/// A node without a switch cannot send anything back to it.
#[test]
fn without_a_switch_a_traversal_cannot_leave() {
    let mut bench = Bench::ready();
    list(&mut bench, VirtAddr::NULL);
    bench.update(&[Update::PeerGone { port: Port::SWITCH.0 }]);
    let (program, scratch) = (find(), pad(9, 0));
    let body = Body::Traverse(request(&program, &scratch));
    let frame = datagram(&Message { header: header(ALICE, 1), body });
    bench.hear_nothing(Port::SWITCH, &frame, DropReason::UnknownPeer);
}

/// Code that fits the datagram exactly is forwarded; code that arrived over a path with longer datagrams is
/// not (PROTOCOL 7.26).
#[test]
fn code_that_does_not_fit_stays_behind() {
    let mut bench = Bench::ready();
    list(&mut bench, VirtAddr::NULL);
    let scratch = pad(9, 0);
    let room = 1024 - Header::LEN - Traverse::FIXED_LEN - scratch.len();
    let fillers = (room - find().encoded().len()) / 8;
    for (count, fits) in [(fillers, true), (fillers + 1, false)] {
        let filler = "st8 spill[0], 1\n".repeat(count);
        let long = Program::assemble(&FIND.replace("found:", &format!("found:\n{filler}"))).unwrap();
        assert_eq!(long.encoded().len() <= room, fits);
        let body = Body::Traverse(request(&long, &scratch));
        bench.hear(Port::SWITCH, &datagram(&Message { header: header(ALICE, 1), body }));
        let [(Port::SWITCH, frame)] = &bench.sent[..] else { panic!("to the switch") };
        let Body::Traverse(moved) = parse(frame, endpoint(1)).body else { panic!("a traversal") };
        assert_eq!(moved.code == long.encoded(), fits);
        assert_eq!(moved.code.is_empty(), !fits);
        assert_eq!((moved.cur_ptr, moved.iterations), (VirtAddr::NULL, 3), "the state goes in any case");
    }
}

/// The host sends no code, but the node does not know the program. The node answers so with the unchanged
/// state, and learns the program from the next request (PROTOCOL 7.22).
#[test]
fn an_unknown_program_is_asked_for() {
    let mut bench = Bench::ready();
    list(&mut bench, VirtAddr::NULL);
    let (program, scratch) = (find(), pad(2, 0));
    let with_code = Traverse { iterations: 7, ..request(&program, &scratch) };
    let by_name = Traverse { code: &[], ..with_code };
    let (status, answer) = ask(&mut bench, header(ALICE, 1), &by_name);
    assert_eq!((status, answer), (Status::UnknownProgram, by_name));
    let (status, answer) = ask(&mut bench, header(ALICE, 2), &with_code);
    assert_eq!((status, answer.iterations), (Status::Ok, 9), "two more than the seven before");
    let (status, _) = ask(&mut bench, header(ALICE, 3), &by_name);
    assert_eq!(status, Status::Ok);
}

/// Code under a wrong name would run for every host that uses the name (PROTOCOL 7.23).
#[test]
fn code_must_be_the_program_it_is_named_for() {
    let mut bench = Bench::ready();
    list(&mut bench, VirtAddr::NULL);
    let (program, scratch) = (find(), pad(2, 0));
    let other = Program::assemble(&FIND.replace("window[8]", "window[16]")).unwrap();
    let good = request(&program, &scratch);
    let misnamed = Traverse { code: other.encoded(), ..good };
    let (status, answer) = ask(&mut bench, header(ALICE, 1), &misnamed);
    assert_eq!((status, answer), (Status::BadProgram, Traverse { code: &[], ..good }));

    assert_eq!(ask(&mut bench, header(ALICE, 2), &good).0, Status::Ok);
    assert_eq!(
        ask(&mut bench, header(ALICE, 3), &misnamed).0,
        Status::BadProgram,
        "also when the name is known"
    );
    assert_eq!(ask(&mut bench, header(ALICE, 4), &good).1.scratch, pad(2, 20), "which stays what it was");

    let mut broken = program.encoded().to_vec();
    for (at, counter) in (0..broken.len()).zip(5..) {
        broken[at] ^= 0x40;
        let name = ProgramHash(core::array::from_fn(|i| u8::try_from(i + at % 8).unwrap()));
        let request = Traverse { program: name, code: &broken, ..good };
        assert_eq!(ask(&mut bench, header(ALICE, counter), &request).0, Status::BadProgram, "byte {at}");
        broken[at] ^= 0x40;
    }
}

/// A scratch pad longer than the program's (PROTOCOL 7.24).
#[test]
fn a_scratch_pad_is_not_longer_than_the_programs() {
    let mut bench = Bench::ready();
    list(&mut bench, VirtAddr::NULL);
    let program = find();
    for len in [17, 256] {
        let scratch = vec![1; len];
        let (status, answer) = ask(&mut bench, header(ALICE, 1), &request(&program, &scratch));
        assert_eq!((status, answer.iterations), (Status::Malformed, 0));
        assert_eq!(answer.scratch, scratch, "as it came");
    }
}

/// A large scratch pad is mostly zeros. Omitted bytes are zeros, whatever the workspace's last pad held, and
/// zeros are not sent back (PROTOCOL 7.24). Code and a full pad do not fit one datagram; code without a pad
/// does.
#[test]
fn zeros_of_a_scratch_pad_are_not_sent() {
    let mut bench = Bench::ready();
    list(&mut bench, VirtAddr::NULL);
    let program = Program::assemble(&FIND.replace(".scratch 16", ".scratch 960")).unwrap();
    let introduction = Traverse { limit: 0, ..request(&program, &[]) };
    let (status, answer) = ask(&mut bench, header(ALICE, 1), &introduction);
    assert_eq!((status, answer.iterations, answer.scratch.len()), (Status::IterationLimit, 0, 0));
    let rest = |byte: u8, len| vec![byte; len];
    let full = [pad(3, 0), rest(7, 944)].concat();
    for (n, (sent, found)) in (2..).zip([
        (&full[..], [pad(3, 30), rest(7, 944)].concat()),
        (&pad(2, 0)[..], [pad(2, 20), rest(0, 48)].concat()),
        (&full[..8], [pad(3, 30), rest(0, 48)].concat()),
    ]) {
        let asked = Traverse { code: &[], ..request(&program, sent) };
        let (status, answer) = ask(&mut bench, header(ALICE, n), &asked);
        assert_eq!((status, answer.scratch), (Status::Ok, &found[..]), "{} bytes were sent", sent.len());
    }
}

/// Assembles a program for nodes of 16 bytes with a window of 256. The first word is the length, the second
/// the next pointer.
fn measuring() -> Program {
    let text =
        ".window 256\n .scratch 16\n ld8 r2, scratch[0]\n ld1 r3, window[r2]\n st8 scratch[8], r3\n ret";
    Program::assemble(text).unwrap()
}

/// A window crosses the end of accessible memory: of a grant before another domain's bytes; of a grant before
/// another vma of the same domain; of the node's range. At every distance, the program reads the last
/// accessible byte. A read of the next byte ends it with `OutOfBounds` and the pointer (PROTOCOL 7.50,
/// 10.23). The program sees none of the bytes behind: neither the 0xff there, nor zeros.
#[test]
fn a_window_ends_where_the_memory_ends() {
    let program = measuring();
    let mut bench = Bench::ready();
    let base = addr(0x2000);
    let vma = |domain, base| Update::Protect { domain, base, len: 0x1000, perm: Perm::Read, vma_log2: 12 };
    bench.update(&[Update::Protect { domain: BOB, base, len: 0x2000, perm: Perm::None, vma_log2: 64 }]);
    bench.update(&[vma(BOB, addr(0x2000)), vma(BOB, addr(0x3000))]);
    bench.put(addr(0), &[0xff; 0x4000]);
    bench.node.store.write(OFFSET + LEN, &[0xff; 0x100]);
    let ends =
        [(ALICE, 0x2000, "another domain's"), (BOB, 0x3000, "another vma"), (BOB, 0x4000, "the range's end")];
    let mut counter = 0;
    for (domain, end, behind) in ends {
        bench.put(addr(end - 0x100), &[7; 0x100]);
        for there in 1..=256_u64 {
            let mut read = |at: u64| {
                counter += 1;
                let scratch = pad(at, 0);
                let asked = Traverse { cur_ptr: addr(end - there), ..request(&program, &scratch) };
                let (status, answer) = ask(&mut bench, header(domain, counter), &asked);
                assert_eq!((answer.cur_ptr, answer.iterations), (addr(end - there), 1), "{behind}, {there}");
                (status, Vec::from(answer.scratch))
            };
            assert_eq!(read(there - 1), (Status::Ok, pad(there - 1, 7)), "{behind}: {there} bytes are there");
            if there < 256 {
                for at in [there, 255] {
                    assert_eq!(read(at), (Status::OutOfBounds, pad(at, 0)), "{behind}, {there}: byte {at}");
                }
            }
            assert_eq!(read(256).0, Status::ProgramFault, "behind the window itself");
        }
        bench.put(addr(end - 0x100), &[0xff; 0x100]);
    }
}

/// The accessible part of a window is checked like any access. With a pointer to another domain's bytes, or a
/// forbidden byte before the end, the traversal ends before the iteration (PROTOCOL 7.25).
#[test]
fn what_is_there_of_a_window_is_checked() {
    let mut bench = Bench::ready();
    bench.put(addr(0), &[0xff; 0x4000]);
    let (program, scratch) = (find(), pad(u64::MAX, 0));
    let cases = [
        (addr(0x1fe8), Status::Ok, 1, "the last window of the grant: 24 bytes"),
        (addr(0x1fe9), Status::OutOfBounds, 1, "one byte over the grant"),
        (addr(0x1fff), Status::OutOfBounds, 1, "all but one byte over the grant"),
        (addr(0x2000), Status::NotMapped, 0, "another domain's"),
        (addr(0x3ff0), Status::NotMapped, 0, "of no domain"),
    ];
    for (cur_ptr, status, iterations, why) in cases {
        let asked = Traverse { cur_ptr, ..request(&program, &scratch) };
        let (got, answer) = ask(&mut bench, header(ALICE, 1), &asked);
        assert_eq!((got, answer.cur_ptr, answer.iterations), (status, cur_ptr, iterations), "{why}");
        if status != Status::Ok {
            assert_eq!(answer.scratch, &scratch[..], "{why}");
        }
    }
    // The window crosses the end of the grant, and the page before the end is lost.
    bench.update(&[Update::Lose { base: addr(0x1000), len: 0x1000 }]);
    let asked = Traverse { cur_ptr: addr(0x1fe9), ..request(&program, &scratch) };
    let (got, answer) = ask(&mut bench, header(ALICE, 2), &asked);
    assert_eq!((got, answer.iterations), (Status::Lost, 0));
}

/// The grant ends within the window, is extended, and ends again: a traversal sees the present grant.
#[test]
fn what_is_there_is_asked_for_each_hop() {
    let mut bench = Bench::ready();
    let program = measuring();
    let scratch = pad(100, 0);
    let grant = |perm| Update::Protect { domain: ALICE, base: addr(0x2000), len: 0x100, perm, vma_log2: 64 };
    bench.put(addr(0x1f00), &[7; 0x200]);
    let asked = Traverse { cur_ptr: addr(0x1fc0), ..request(&program, &scratch) };
    let steps =
        [(Perm::None, Status::OutOfBounds), (Perm::Read, Status::Ok), (Perm::None, Status::OutOfBounds)];
    for (n, (perm, status)) in (1..).zip(steps) {
        assert_eq!(bench.update(&[grant(perm)]), (Status::Ok, 0));
        assert_eq!(ask(&mut bench, header(ALICE, n), &asked).0, status, "{perm:?}");
    }
}

/// A list leads from Alice's memory into Bob's. The traversal stops at the border, with the pointer across
/// it.
#[test]
fn a_traversal_does_not_follow_a_pointer_into_another_domain() {
    let mut bench = Bench::ready();
    list(&mut bench, addr(0x2000));
    node(&mut bench, 0x2000, 4, 40, VirtAddr::NULL);
    let (program, scratch) = (find(), pad(4, 0));
    let (status, answer) = ask(&mut bench, header(ALICE, 1), &request(&program, &scratch));
    assert_eq!((status, answer.cur_ptr, answer.iterations), (Status::NotMapped, addr(0x2000), 3));
    assert_eq!(answer.scratch, scratch, "no value of Bob's");
}

/// A circular list never ends. The host's limit stops the traversal, and the response's state continues it
/// (PROTOCOL 7.27).
#[test]
fn the_iteration_limit_stops_and_the_state_goes_on() {
    let mut bench = Bench::ready();
    list(&mut bench, addr(0));
    let (program, scratch) = (find(), pad(9, 0));
    let asked = Traverse { limit: 4, ..request(&program, &scratch) };
    let (status, answer) = ask(&mut bench, header(ALICE, 1), &asked);
    assert_eq!((status, answer.iterations, answer.cur_ptr), (Status::IterationLimit, 4, addr(0x800)));

    let (cur_ptr, scratch) = (answer.cur_ptr, pad(1, 0));
    let go_on = Traverse { cur_ptr, iterations: 4, limit: 10, scratch: &scratch, ..asked };
    let (status, answer) = ask(&mut bench, header(ALICE, 2), &go_on);
    assert_eq!((status, answer.iterations, answer.scratch), (Status::Ok, 7, &pad(1, 10)[..]));

    for (iterations, limit) in [(0, 0), (4, 4), (u32::MAX, 4), (u32::MAX, u32::MAX)] {
        let used_up = Traverse { iterations, limit, ..asked };
        let (status, answer) = ask(&mut bench, header(ALICE, 3), &used_up);
        assert_eq!(
            (status, answer.iterations),
            (Status::IterationLimit, iterations),
            "nothing is left to do"
        );
    }
}

/// A host asks for four billion iterations in a ring. One visit executes a bounded number (PROTOCOL 7.27).
#[test]
fn one_visit_is_bounded_whatever_the_limit() {
    let mut bench = Bench::ready();
    list(&mut bench, addr(0));
    let (program, scratch) = (find(), pad(9, 0));
    let endless = Traverse { limit: u32::MAX, ..request(&program, &scratch) };
    let (status, answer) = ask(&mut bench, header(ALICE, 1), &endless);
    assert_eq!((status, answer.iterations), (Status::IterationLimit, ITERATIONS_PER_VISIT_MAX));
    let nearly = Traverse { iterations: u32::MAX - 2, ..endless };
    let (status, answer) = ask(&mut bench, header(ALICE, 2), &nearly);
    assert_eq!((status, answer.iterations), (Status::IterationLimit, u32::MAX), "the count does not wrap");
}

/// A program computes an index from data in memory and leaves its window (PROTOCOL 7.28).
#[test]
fn a_program_fault_is_told() {
    let text = "
        .window 16
        .scratch 8
            ld8 r2, window[0]
            ld8 r3, window[r2]
            st8 scratch[0], r3
            ret
    ";
    let mut bench = Bench::ready();
    bench.put(addr(0), &8_u64.to_le_bytes());
    bench.put(addr(8), &99_u64.to_le_bytes());
    let (program, scratch) = (Program::assemble(text).unwrap(), [0; 8]);
    let (status, answer) = ask(&mut bench, header(ALICE, 1), &request(&program, &scratch));
    assert_eq!((status, answer.scratch), (Status::Ok, &99_u64.to_le_bytes()[..]));

    bench.put(addr(0), &9_u64.to_le_bytes());
    let (status, answer) = ask(&mut bench, header(ALICE, 2), &request(&program, &scratch));
    assert_eq!((status, answer.cur_ptr, answer.iterations), (Status::ProgramFault, addr(0), 1));
}

/// One more program than the node keeps: the least recently used one is evicted (PROTOCOL 7.1, 7.22).
#[test]
fn the_program_not_used_for_longest_is_forgotten() {
    let mut bench = Bench::ready();
    let programs: Vec<_> = (1..=PROGRAMS_MAX + 1)
        .map(|window| Program::assemble(&format!(".window {window}\n ret")).unwrap())
        .collect();
    let (last, first) = programs.split_last().unwrap();
    for program in first {
        assert_eq!(ask(&mut bench, header(ALICE, 1), &request(program, &[])).0, Status::Ok);
    }
    let by_name = |program| Traverse { code: &[], ..request(program, &[]) };
    assert_eq!(ask(&mut bench, header(ALICE, 1), &by_name(&first[0])).0, Status::Ok, "used again");
    assert!(!bench.notes.contains(&Note::ProgramForgotten));
    assert_eq!(ask(&mut bench, header(ALICE, 1), &request(last, &[])).0, Status::Ok);
    assert_eq!(bench.notes.iter().filter(|n| **n == Note::ProgramForgotten).count(), 1);
    assert_eq!(ask(&mut bench, header(ALICE, 1), &by_name(&first[1])).0, Status::UnknownProgram);
    for program in [&first[0], &first[2], last] {
        assert_eq!(ask(&mut bench, header(ALICE, 1), &by_name(program)).0, Status::Ok);
    }
}
