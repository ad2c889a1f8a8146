//! The site of traversals and its cost: PULSE, PULSE-ACC (back to the host at every crossing) and the host
//! itself.

use farmem_client::dispatch::Tally;
use farmem_client::{
    Client, ClientOptions, Error, NodeId, Policy, Profile, Program, Rack, Site, TraversalStop, VirtAddr, api,
};
use farmem_traversal::SCRATCH_LEN_MAX;
use std::num::NonZero;

const LIST_SUM: &str = include_str!("../../../../testdata/programs/list_sum.pulse");
const LIMIT: u32 = 10_000;

/// Returns a program with a long computation over one word: 60 instructions, worth offloading to a core but
/// not to the board.
fn heavy() -> Program {
    let text =
        format!(".scratch 8\n ld8 r2, window[0]\n{} st8 scratch[0], r2\n ret\n", " add r2, 1\n".repeat(57));
    Program::assemble(&text).unwrap()
}

/// Builds a list in which node n lies on memory node `homes[n]`; its values are 1, 2, 3...
fn list(client: &mut Client, homes: &[u16]) -> VirtAddr {
    let room: Vec<u64> = (1..=4).map(|node| client.allocate_on(4096, NodeId(node)).unwrap().base.0).collect();
    let at = |n: usize| room[usize::from(homes[n] - 1)] + 16 * n as u64;
    for n in 0..homes.len() {
        let next = if n + 1 < homes.len() { at(n + 1) } else { 0 };
        client.write(VirtAddr(at(n)), &[(n as u64 + 1).to_le_bytes(), next.to_le_bytes()].concat()).unwrap();
    }
    VirtAddr(at(0))
}

/// Returns the homes of a list of eight that crosses memory nodes `crossings` times.
fn crossing(crossings: usize) -> Vec<u16> {
    (0..8).map(|n: usize| u16::try_from(n.min(crossings) % 4 + 1).unwrap()).collect()
}

/// The golden table: requests of the host for a list of eight that crosses memory nodes k times. The nodes
/// know the programs.
///
/// PULSE takes one request for any k, since the switch forwards the traversal. PULSE-ACC takes one more per
/// crossing. The host takes a READ per element.
#[test]
fn requests_of_each_way() {
    let rack = Rack::embedded_with(4, 16 << 20).unwrap();
    let program = Program::assemble(LIST_SUM).unwrap();
    let mut pulse = rack.client("way").unwrap();
    let mut acc = rack
        .client_with("way", ClientOptions { hops_max: NonZero::new(1).unwrap(), ..ClientOptions::default() })
        .unwrap();
    let mut host = rack.client("way").unwrap();
    let warm = list(&mut pulse, &[1, 2, 3, 4]);
    for _ in 0..4 {
        acc.dispatch(&program, warm, vec![0; 16], LIMIT, &Policy::Offload).unwrap();
    }
    let mut table = String::from("crossings  PULSE  PULSE-ACC  host\n");
    for crossings in 0..8 {
        let start = list(&mut pulse, &crossing(crossings));
        let requests = |client: &mut Client, policy| {
            let done = client.dispatch(&program, start, vec![0; 16], LIMIT, &policy).unwrap();
            assert!(done.end.returned);
            assert_eq!((done.end.iterations, words(&done.scratch)), (8, vec![36, 8]), "the same result");
            done.end.requests
        };
        let row = [
            requests(&mut pulse, Policy::Offload),
            requests(&mut acc, Policy::Offload),
            requests(&mut host, Policy::Host),
        ];
        table += &format!("{crossings:9}  {:5}  {:9}  {:4}\n", row[0], row[1], row[2]);
    }
    let golden = "\
crossings  PULSE  PULSE-ACC  host
        0      1          1     8
        1      1          2     8
        2      1          3     8
        3      1          4     8
        4      1          5     8
        5      1          6     8
        6      1          7     8
        7      1          8     8
";
    assert_eq!(table, golden);
    let tally = Tally { offloaded: 0, at_host: 8, requests: 64, iterations: 64 };
    assert_eq!(host.tally(), tally);
    assert_eq!((pulse.tally().offloaded, pulse.tally().requests), (8, 8));
}

/// A memory node that does not know the program costs one more request, wherever the traversal meets it.
#[test]
fn unknown_programs_cost_a_request_each() {
    let rack = Rack::embedded_with(4, 16 << 20).unwrap();
    let program = Program::assemble(LIST_SUM).unwrap();
    let mut client = rack.client("cold").unwrap();
    let start = list(&mut client, &[1, 1, 2, 2, 3, 3, 4, 4]);
    let mut requests = || {
        let done = client.dispatch(&program, start, vec![0; 16], LIMIT, &Policy::Offload).unwrap();
        assert_eq!(words(&done.scratch), [36, 8]);
        done.end.requests
    };
    // The code that the first node lacked travels on with the traversal (PROTOCOL 7.26).
    assert_eq!((requests(), requests()), (2, 1));
}

/// The verdict follows t_c <= eta * t_d, and the outcome states the chosen site.
#[test]
fn cost_decides() {
    let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("cost").unwrap();
    let word = client.allocate(4096).unwrap().base;
    client.write(word, &5_u64.to_le_bytes()).unwrap();
    let light = Program::assemble(LIST_SUM).unwrap();
    for (program, profile, site) in [
        (&light, Profile::CORE, Site::MemoryNodes),
        (&light, Profile::PULSE_BOARD, Site::MemoryNodes),
        (&heavy(), Profile::CORE, Site::MemoryNodes),
        (&heavy(), Profile::PULSE_BOARD, Site::Host),
    ] {
        let scratch = vec![0; program.scratch_len()];
        let done = client.dispatch(program, word, scratch, LIMIT, &Policy::Auto(profile)).unwrap();
        assert_eq!(done.site, site, "{program:?} on {}", profile.name);
        let expected = if program == &light { 5 } else { 62 };
        assert_eq!(words(&done.scratch)[0], expected);
    }
}

/// If a program and its pad exceed a datagram, the cost decision runs the program at the host. An explicit
/// offload fails.
#[test]
fn a_program_too_large_for_a_datagram_runs_at_the_host() {
    let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("long").unwrap();
    let word = client.allocate(4096).unwrap().base;
    let text = format!(
        ".scratch 256\n ld8 r2, window[0]\n{} st8 scratch[0], r2\n ret\n",
        " add r2, 1\n".repeat(509)
    );
    let long = Program::assemble(&text).unwrap();
    let done = client.dispatch(&long, word, vec![0; 256], LIMIT, &Policy::default()).unwrap();
    assert_eq!((done.site, done.end.requests, words(&done.scratch)[0]), (Site::Host, 1, 509));
    let refused = client.dispatch(&long, word, vec![0; 256], LIMIT, &Policy::Offload).unwrap_err();
    assert!(matches!(refused, Error::Traversal { reason: TraversalStop::TooLarge, .. }), "{refused}");
}

/// A pad that fills the datagram leaves no room for code. The first time the code goes ahead in a message of
/// its own; later the traversal is one request. One nonzero byte at the pad's end is enough for that; without
/// it the code travels along.
#[test]
fn a_full_pad_and_its_code_take_turns() {
    let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("pads").unwrap();
    let word = client.allocate(4096).unwrap().base;
    client.write(word, &41_u64.to_le_bytes()).unwrap();
    assert_eq!(client.scratch_len_max(), SCRATCH_LEN_MAX);
    let mut full = vec![0; SCRATCH_LEN_MAX];
    full[SCRATCH_LEN_MAX - 1] = 7;
    for (add, pad, first) in [(1, &full, 3), (2, &vec![0; SCRATCH_LEN_MAX], 2)] {
        let text = format!(
            ".scratch {SCRATCH_LEN_MAX}\n ld8 r2, window[0]\n add r2, {add}\n st8 scratch[0], r2\n ret\n"
        );
        let program = Program::assemble(&text).unwrap();
        for requests in [first, 1] {
            let done = client.dispatch(&program, word, pad.clone(), LIMIT, &Policy::Offload).unwrap();
            assert_eq!((done.site, done.end.requests), (Site::MemoryNodes, requests));
            assert_eq!(words(&done.scratch)[0], 41 + add);
            assert_eq!(done.scratch[8..], pad[8..]);
        }
    }
}

/// A node of 16 bytes lies at every distance from the end of an allocation, and its window has 256 bytes.
/// Both sites read the node, and both stop at the byte after the allocation. Another allocation of the same
/// client follows. The same holds where a grant ends within a page (PROTOCOL 10.23).
#[test]
fn windows_at_every_distance_from_the_end() {
    let rack = Rack::embedded_with(1, 16 << 20).unwrap();
    let mut client = rack.client("ends").unwrap();
    let text =
        ".window 256\n .scratch 16\n ld8 r2, scratch[0]\n ld1 r3, window[r2]\n st8 scratch[8], r3\n ret\n";
    let program = Program::assemble(text).unwrap();
    let first = client.allocate(4096).unwrap().base;
    client.write(first, &[7; 4096]).unwrap();
    let second = client.allocate(4096).unwrap().base;
    client.write(second, &[9; 4096]).unwrap();
    assert_eq!(second.0, first.0 + 4096, "side by side");
    let mut owner = rack.client("granting").unwrap();
    let part = owner.allocate(4096).unwrap().base;
    owner.write(part, &[7; 4096]).unwrap();
    owner.grant(part, 1000, "ends", api::PermName::Read).unwrap();
    let mut read = |end: u64, there: u64, at: u64, policy: &Policy| {
        let scratch = [at.to_le_bytes(), [0; 8]].concat();
        let done = client.dispatch(&program, VirtAddr(end - there), scratch, LIMIT, policy);
        done.map(|done| words(&done.scratch)[1]).map_err(|error| match error {
            Error::Traversal { addr, reason } => {
                assert_eq!(addr, VirtAddr(end - there));
                reason
            }
            other => panic!("{other}"),
        })
    };
    let near: Vec<u64> = vec![1, 2, 7, 8, 16, 63, 64, 65, 128, 250, 255];
    for policy in [Policy::Offload, Policy::Host] {
        let ends = if policy == Policy::Offload { (1..256).collect() } else { near.clone() };
        for there in ends {
            assert_eq!(read(second.0, there, there - 1, &policy), Ok(7), "{policy:?}, {there}");
            assert_eq!(
                read(second.0, there, there, &policy),
                Err(TraversalStop::OutOfBounds),
                "{policy:?}, {there}"
            );
        }
        for there in [1, 16, 200] {
            assert_eq!(read(part.0 + 1000, there, there - 1, &policy), Ok(7), "{policy:?}, {there}");
            let behind = read(part.0 + 1000, there, there, &policy);
            assert_eq!(behind, Err(TraversalStop::OutOfBounds), "{policy:?}, {there}");
        }
    }
}

/// Both sites stop at the same place for the same reason, and an iteration limit leaves a state that
/// continues the traversal.
#[test]
fn both_ways_end_alike() {
    let rack = Rack::embedded_with(4, 16 << 20).unwrap();
    let mut client = rack.client("alike").unwrap();
    let program = Program::assemble(LIST_SUM).unwrap();
    let start = list(&mut client, &[1, 2, 3]);
    let edge = client.allocate_on(4096, NodeId(2)).unwrap();
    let foreign = rack.client("other").unwrap().allocate_on(4096, NodeId(3)).unwrap();
    let mut owner = rack.client("lender").unwrap();
    let unreadable = owner.allocate_on(4096, NodeId(4)).unwrap();
    owner.grant(unreadable.base, 4096, "alike", api::PermName::Read).unwrap();
    let fault =
        Program::assemble(".window 8\n.scratch 16\n mov r2, 100\n ld8 r3, window[r2]\n ret\n").unwrap();
    for policy in [Policy::Offload, Policy::Host] {
        let mut stop = |program: &Program, at: u64| match client
            .dispatch(program, VirtAddr(at), vec![0; 16], LIMIT, &policy)
            .unwrap_err()
        {
            Error::Traversal { addr, reason } => {
                assert_eq!(addr, VirtAddr(at), "{policy:?}");
                reason
            }
            other => panic!("{policy:?}: {other}"),
        };
        assert_eq!(stop(&program, 0), TraversalStop::NotMapped);
        assert_eq!(stop(&program, 0xdead_0000), TraversalStop::NotMapped);
        assert_eq!(stop(&program, foreign.base.0), TraversalStop::NotMapped);
        assert_eq!(stop(&program, edge.base.0 + 4096 - 8), TraversalStop::OutOfBounds);
        assert_eq!(stop(&fault, edge.base.0), TraversalStop::ProgramFault);
        let short = client.dispatch(&program, start, vec![0; 15], LIMIT, &policy).unwrap_err();
        assert!(matches!(short, Error::ScratchLen { have: 15, need: 16 }), "{short}");

        let cut = client.dispatch(&program, start, vec![0; 16], 2, &policy).unwrap();
        assert_eq!((cut.end.returned, cut.end.iterations), (false, 2));
        let rest = client.dispatch(&program, cut.end.cur_ptr, cut.scratch, LIMIT, &policy).unwrap();
        assert_eq!((rest.end.returned, rest.end.iterations, words(&rest.scratch)), (true, 1, vec![6, 3]));
        let none = client.dispatch(&program, start, vec![0; 16], 0, &policy).unwrap();
        assert_eq!((none.end.returned, none.end.iterations, none.end.cur_ptr), (false, 0, start));
    }
}

fn words(scratch: &[u8]) -> Vec<u64> {
    scratch.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}
