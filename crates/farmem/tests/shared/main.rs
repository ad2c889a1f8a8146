//! Memory shared by real processes on a rack of real processes, over rings and over UDP.

mod rig;

use farmem::{ShareOptions, VirtAddr};
use rig::{Program, TestRack, Worker};
use std::sync::atomic::Ordering;

const LIMIT: u64 = 4 << 20;
const PROGRAMS: &[(&str, Program)] = &[("count", |space, args, _| {
    let [at, rounds] = *args else { panic!("an address and rounds") };
    let word = space.word(VirtAddr(at));
    (0..rounds).for_each(|_| _ = word.fetch_add(1, Ordering::Relaxed));
    rounds
})];

/// Only does something in another process.
#[test]
fn in_a_process_of_its_own() {
    rig::be(PROGRAMS);
}

/// Three processes add to one word by the CPU's own atomics. Not one addition is lost.
#[test]
fn a_counter_is_exact() {
    const ROUNDS: u64 = 20_000;
    for transport in ["shm", "udp"] {
        let rack = TestRack::start(transport, 2);
        let Some(space) = rack.space(ShareOptions::new(LIMIT)) else { return };
        let vma = space.allocate(4096).unwrap();
        let mut workers: Vec<_> =
            (0..3).map(|_| rack.run("count", &[LIMIT, vma.base.0 + 8, ROUNDS])).collect();
        for worker in &mut workers {
            assert_eq!(worker.answer(), ROUNDS);
        }
        assert_eq!(space.word(VirtAddr(vma.base.0 + 8)).load(Ordering::Relaxed), 3 * ROUNDS);
        workers.into_iter().for_each(Worker::end);
    }
}
