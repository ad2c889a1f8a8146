//! The cost of each page-state change in packets, as both hosts count them: exact, in a golden file.

use crate::rig::TestRack;
use farmem::window::Memory;
use farmem::{ShareOptions, ShareStats, SharedSpace};
use farmem_machine::Duration;
use std::fmt::Write as _;

/// The golden table.
const GOLDEN: &str = include_str!("../../../../testdata/golden/mind-transitions.txt");
const HEAD: &str = "\
# Packets of the host that touches a page, and of the other host, for each change of the page's state.
# Those between switch and memory node come to it: a Read for each, and an acknowledgement where a page is written back.
what changes                             asker: out  in   other: out  in
";
/// Bound on the size of a region: pages this far apart never share one, whatever merges.
const APART: usize = 2 << 20;
/// Pages on which each change is tried.
const TRIES: usize = 8;

type Touch = fn(Memory<'_>, usize);
/// A touch by one of the hosts.
type Step = (bool, Touch);
/// A change's name, its preparation, and the measured step.
type Change = (&'static str, &'static [Step], Step);

fn load(memory: Memory<'_>, at: usize) {
    memory.read(at, &mut [0]);
}

fn store(memory: Memory<'_>, at: usize) {
    memory.write(at, &[1]);
}

/// All changes. `true` is the first host.
const CHANGES: [Change; 9] = [
    ("I -> S", &[], (true, load)),
    ("I -> M", &[], (true, store)),
    ("S -> S, at another host", &[(true, load)], (false, load)),
    ("S -> M, shared by no other host", &[(true, load)], (true, store)),
    ("S -> M, shared by one other", &[(true, load), (false, load)], (true, store)),
    ("S -> M, at another host", &[(true, load)], (false, store)),
    ("M -> S", &[(true, store)], (false, load)),
    ("M -> M", &[(true, store)], (false, store)),
    ("M -> S at another, and M again", &[(true, store), (false, load)], (true, store)),
];

/// Packets out and in.
type Packets = (u64, u64);

fn packets(before: &ShareStats, after: &ShareStats) -> Packets {
    (after.packets_out - before.packets_out, after.packets_in - before.packets_in)
}

/// Takes one page through a change. Returns `None` when a packet came late or a host was told to wait,
/// because the count then includes other packets.
fn one(
    spaces: [&SharedSpace; 2],
    memories: [Memory<'_>; 2],
    at: usize,
    change: usize,
) -> Option<[Packets; 2]> {
    let (_, before, (is_first, touch)) = CHANGES[change];
    let place = |first: bool| usize::from(!first);
    for &(first, touch) in before {
        touch(memories[place(first)], at);
        settle(spaces);
    }
    let stats = settle(spaces);
    touch(memories[place(is_first)], at);
    let after = settle(spaces);
    let disturbed = |n: usize| after[n].retries != stats[n].retries || after[n].busy != stats[n].busy;
    if disturbed(0) || disturbed(1) {
        return None;
    }
    let both = [0, 1].map(|n| packets(&stats[n], &after[n]));
    Some(if is_first { both } else { [both[1], both[0]] })
}

/// Returns the statistics of both once nothing is in flight.
fn settle(spaces: [&SharedSpace; 2]) -> [ShareStats; 2] {
    let mut last = spaces.map(SharedSpace::stats);
    let mut same = 0;
    while same < 200 {
        let now = spaces.map(SharedSpace::stats);
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

/// The table, over rings and over UDP.
#[test]
fn each_change_costs_its_packets() {
    for transport in ["shm", "udp"] {
        let rack = TestRack::start(transport, 1);
        // A long timeout: no retransmission because of a busy machine.
        let options = ShareOptions { timeout: Duration::from_secs(2), ..ShareOptions::new(4 << 20) };
        let (Some(one_space), Some(other)) = (rack.space(options), rack.space(options)) else { return };
        let mut table = HEAD.to_owned();
        for (change, (name, ..)) in CHANGES.iter().enumerate() {
            let vma = one_space.allocate((TRIES * APART) as u64).unwrap();
            let memories = [one_space.memory(&vma), other.memory(&vma)];
            let mut tries = (0..TRIES).filter_map(|n| one([&one_space, &other], memories, n * APART, change));
            let [(asker_out, asker_in), (other_out, other_in)] =
                tries.next().unwrap_or_else(|| panic!("{name}: disturbed each time"));
            writeln!(table, "{name:<40} {asker_out:>11} {asker_in:>3} {other_out:>12} {other_in:>3}")
                .unwrap();
        }
        assert_eq!(table, GOLDEN, "over {transport}");
    }
}
