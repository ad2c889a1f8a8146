//! Batches: several traversals in one datagram, with the results of separate ones (PROTOCOL 7.46 to 7.48).

use super::traversals::{find, list, node, pad};
use super::*;
use alloc::format;
use alloc::string::String;
use farmem_traversal::Program;
use farmem_wire::message::{Batch, PAIRS_MAX, Pair, Traverse};

/// A lookup: its counter, its first pointer, its scratch pad.
type LookUp = (u32, VirtAddr, Vec<u8>);

fn message(
    bench_header: Header,
    program: &Program,
    with_code: bool,
    look_ups: &[LookUp],
    each: impl FnOnce(&Message<'_>) -> Vec<u8>,
) -> Vec<u8> {
    let header = Header { request: bench_header.request.with_counter(look_ups[0].0), ..bench_header };
    let mut pairs = vec![];
    for &(counter, cur_ptr, ref scratch) in look_ups {
        let (status, iterations, limit) = (Status::Ok, 0, 100);
        Pair { counter, status, cur_ptr, iterations, limit, scratch }.emit(&mut pairs);
    }
    let code = if with_code { program.encoded() } else { &[] };
    let count = u16::try_from(look_ups.len()).unwrap();
    let batch = Batch::new(&header, program.hash(), code, count, &pairs).unwrap();
    each(&Message { header, body: Body::Batch(batch) })
}

/// Returns a batch as the switch forwards it.
fn frame(header: Header, program: &Program, with_code: bool, look_ups: &[LookUp]) -> Vec<u8> {
    message(header, program, with_code, look_ups, datagram)
}

/// The answer to a traversal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Report {
    counter: u32,
    status: Status,
    cur_ptr: VirtAddr,
    iterations: u32,
    scratch: Vec<u8>,
}

/// Returns all answers by counter, and the number of datagrams.
fn told(bench: &Bench) -> (Vec<Report>, usize) {
    let mut told = vec![];
    let mut datagrams = 0;
    for (port, frame) in &bench.sent {
        if *port != Port::host(HOST.0) {
            continue;
        }
        datagrams += 1;
        let message = parse(frame, endpoint(u32::from(HOST.0)));
        assert!(message.header.response);
        let request = message.header.request;
        let mut tell = |counter, status, state: Traverse<'_>| {
            let Traverse { cur_ptr, iterations, scratch, .. } = state;
            told.push(Report { counter, status, cur_ptr, iterations, scratch: scratch.to_vec() });
        };
        match message.body {
            Body::Traverse(state) => tell(request.counter(), message.header.status, state),
            Body::Batch(batch) => {
                assert_eq!((message.header.status, batch.code()), (Status::Ok, &[][..]));
                batch.pairs().for_each(|pair| tell(pair.counter, pair.status, batch.traverse(&pair)));
            }
            other => panic!("an answer to traversals, not {other:?}"),
        }
    }
    told.sort();
    (told, datagrams)
}

/// Lookups with every outcome: found at each depth, a null pointer, another domain's bytes, beyond the range,
/// the same twice.
fn look_ups() -> Vec<LookUp> {
    vec![
        (10, addr(0), pad(1, 0)),
        (11, addr(0), pad(2, 0)),
        (12, addr(0), pad(3, 0)),
        (13, addr(0x2000), pad(1, 0)),
        (14, addr(0x1ff8), pad(1, 0)),
        (15, addr(0), pad(2, 0)),
        (16, addr(0x800), pad(3, 0)),
        (17, addr(0), vec![9; 17]),
    ]
}

/// Batched and separate requests get the same answers to the byte: one datagram instead of eight.
#[test]
fn a_batch_is_as_many_traversals() {
    let (mut alone, mut together) = (Bench::ready(), Bench::ready());
    let program = find();
    for bench in [&mut alone, &mut together] {
        list(bench, addr(0x4000));
    }
    let mut expected = vec![];
    for (counter, cur_ptr, scratch) in &look_ups() {
        let (limit, code) = (100, program.encoded());
        let (program, cur_ptr) = (program.hash(), *cur_ptr);
        let state = Traverse { program, cur_ptr, iterations: 0, limit, scratch, code };
        let message = Message { header: header(ALICE, *counter), body: Body::Traverse(state) };
        alone.hear(Port::SWITCH, &datagram(&message));
        let (told, datagrams) = told(&alone);
        assert_eq!(datagrams, 1, "{told:?}");
        expected.extend(told);
    }
    together.hear(Port::SWITCH, &frame(header(ALICE, 0), &program, true, &look_ups()));
    let (told, datagrams) = told(&together);
    assert_eq!(told, expected);
    // The oversized pad is refused before the turn; the traversals that run are answered after it.
    assert_eq!(datagrams, 2);
    assert_eq!(together.node.stats().visits, alone.node.stats().visits);
}

/// A pair whose pointer is elsewhere returns to the switch alone, as a traversal of its own id; the others
/// are answered (7.47).
#[test]
fn what_is_elsewhere_goes_on_alone() {
    let mut bench = Bench::ready();
    let far = VirtAddr(0x2000_0000);
    list(&mut bench, far);
    let program = find();
    let asked = [(20, addr(0), pad(1, 0)), (21, addr(0), pad(4, 0)), (22, far, pad(5, 0))];
    bench.hear(Port::SWITCH, &frame(header(ALICE, 0), &program, true, &asked));
    let (answered, datagrams) = told(&bench);
    assert_eq!((answered.len(), answered[0].counter, datagrams), (1, 20, 1));
    let on: Vec<_> = bench.sent.iter().filter(|(port, _)| *port == Port::SWITCH).collect();
    let went: Vec<_> = on.iter().map(|(_, frame)| parse(frame, endpoint(1))).collect();
    for (message, (counter, done)) in went.iter().zip([(22, 0), (21, 3)]) {
        let Body::Traverse(state) = message.body else { panic!("a traversal, not {message:?}") };
        assert_eq!(message.header, header(ALICE, counter));
        assert_eq!((state.cur_ptr, state.iterations, state.code), (far, done, program.encoded()));
    }
    assert_eq!(went.len(), 2);
}

/// A batch without code for an unknown program: each pair gets this answer, with its state.
#[test]
fn an_unknown_program_is_said_of_each_pair() {
    let mut bench = Bench::ready();
    let program = find();
    bench.hear(Port::SWITCH, &frame(header(ALICE, 0), &program, false, &look_ups()));
    let (told, datagrams) = told(&bench);
    assert_eq!((told.len(), datagrams), (look_ups().len(), 1));
    for (told, (counter, cur_ptr, scratch)) in told.iter().zip(look_ups()) {
        assert_eq!((told.counter, told.status), (counter, Status::UnknownProgram));
        assert_eq!((told.cur_ptr, told.iterations, &told.scratch), (cur_ptr, 0, &scratch));
    }
}

/// A full batch whose answers are longer than its requests, because the requests omitted zeros: as many
/// datagrams as needed, none beyond the PMTU.
#[test]
fn answers_take_as_many_datagrams_as_they_need() {
    let mut bench = Bench::ready();
    // Fills the scratch pad with bytes other than zero.
    let fill: String = (0..16).map(|n| format!(" st8 scratch[{}], r2\n", n * 8)).collect();
    let program = Program::assemble(&format!(".window 8\n.scratch 128\n mov r2, 1\n{fill} ret")).unwrap();
    let asked: Vec<LookUp> = (0..u32::from(PAIRS_MAX) / 2).map(|n| (n, addr(0), vec![])).collect();
    bench.hear(Port::SWITCH, &frame(header(ALICE, 0), &program, true, &asked));
    let (told, datagrams) = told(&bench);
    assert_eq!((told.len(), datagrams), (asked.len(), 6));
    assert!(told.iter().all(|told| told.status == Status::Ok && told.scratch.len() == 128));
    assert!(bench.sent.iter().all(|(_, frame)| frame.len() <= Pmtu::B1024.bytes() + 20));
}

/// Each pair of a storing program is executed once, whether its copies arrive in a batch again or alone
/// (7.36).
#[test]
fn a_pair_that_stores_runs_once() {
    let text = ".stores\n.window 8\n.scratch 8\n ld8 r2, window[0]\n add r2, 1\n st8 window[0], r2\n st8 scratch[0], r2\n ret";
    let program = Program::assemble(text).unwrap();
    let mut bench = Bench::ready();
    let asked = [(30, addr(0), vec![0; 8]), (31, addr(0), vec![0; 8])];
    let batch = frame(header(ALICE, 0), &program, true, &asked);
    bench.hear(Port::SWITCH, &batch);
    let (first, datagrams) = told(&bench);
    assert_eq!((first[0].scratch[0], first[1].scratch[0], datagrams), (1, 2, 1));

    bench.hear(Port::SWITCH, &batch);
    assert_eq!(told(&bench).0, first, "what came of it is said again");
    let (cur_ptr, code) = (addr(0), program.encoded());
    let state =
        Traverse { program: program.hash(), cur_ptr, iterations: 0, limit: 100, scratch: &[0; 8], code };
    let alone = Message { header: header(ALICE, 31), body: Body::Traverse(state) };
    bench.hear(Port::SWITCH, &datagram(&alone));
    assert_eq!(told(&bench).0, first[1..]);
    assert_eq!(bench.bytes(addr(0), 8), 2_u64.to_le_bytes(), "twice, not five times");
}

/// Answers do not mix hosts, domains or programs: each goes to its host, in a separate batch.
#[test]
fn answers_of_different_hosts_do_not_mix() {
    let mut bench = Bench::ready();
    list(&mut bench, VirtAddr::NULL);
    node(&mut bench, 0x2000, 1, 77, VirtAddr::NULL);
    let program = find();
    let other = |counter| Header {
        domain: BOB,
        origin: OTHER_HOST,
        ..Header::request(RequestId::new(OTHER_HOST, 1, counter), 4)
    };
    let mine = frame(header(ALICE, 0), &program, true, &[(1, addr(0), pad(1, 0)), (2, addr(0), pad(2, 0))]);
    let theirs = frame(other(0), &program, true, &[(1, addr(0x2000), pad(1, 0)), (2, addr(0), pad(1, 0))]);
    for bytes in [&mine, &theirs] {
        bench.node.handle(Instant::ZERO, Event::Frame { port: Port::SWITCH, bytes }, &mut bench.out);
    }
    bench.collect();
    let (told, datagrams) = told(&bench);
    assert_eq!((told.len(), datagrams), (2, 1));
    assert_eq!((told[0].scratch[8], told[1].scratch[8]), (10, 20));
    let [frame] =
        &bench.sent.iter().filter(|(port, _)| *port == Port::host(OTHER_HOST.0)).collect::<Vec<_>>()[..]
    else {
        panic!("one datagram to the other host, not {:?}", bench.sent)
    };
    let message = parse(&frame.1, endpoint(u32::from(OTHER_HOST.0)));
    let Body::Batch(batch) = message.body else { panic!("a batch, not {message:?}") };
    let mut pairs: Vec<_> = batch.pairs().map(|pair| (pair.counter, pair.status)).collect();
    pairs.sort();
    assert_eq!((message.header.domain, &pairs[..]), (BOB, &[(1, Status::Ok), (2, Status::NotMapped)][..]));
}
