//! Memory shared by real processes on a rack of real processes, over rings and over UDP.

mod ahead;
mod ahead_hostile;
mod api;
mod dpu;
mod dpu_departures;
mod dpu_hostile;
mod forwarding;
mod leases;
#[path = "../map_program/mod.rs"]
mod map_program;
mod mirror;
mod moves;
mod packets;
mod prefetch;
mod processes;
mod programs;
mod rig;

use farmem::window::FaultMode;
use farmem::{ShareOptions, SharedSpace, VirtAddr, Vma};
use programs::{PROGRAMS, look};
use rig::{PAGE, TestRack, Worker};
use std::sync::atomic::Ordering;

const LIMIT: u64 = 4 << 20;
/// Programs see the same memory with every transport and every fault mode.
const WAYS: [(&str, FaultMode); 4] = [
    ("shm", FaultMode::Handler),
    ("udp", FaultMode::Handler),
    ("shm", FaultMode::Signal),
    ("udp", FaultMode::Signal),
];

/// Runs a program in another process, as a test's helper.
#[test]
fn in_a_process_of_its_own() {
    rig::be(PROGRAMS);
}

/// Creates a space with room for all that a test touches; returns from the test where this process may share
/// none.
macro_rules! space_or_skip {
    ($rack:expr) => {
        match $rack.space(ShareOptions::new(LIMIT)) {
            Some(space) => space,
            None => return,
        }
    };
}

fn word(space: &SharedSpace, vma: &Vma, offset: u64) -> u64 {
    space.word(VirtAddr(vma.base.0 + offset)).load(Ordering::Acquire)
}

fn answers(workers: &mut [Worker]) -> Vec<u64> {
    workers.iter_mut().map(Worker::answer).collect()
}

/// Three processes add to one word by the CPU's own atomics. No addition is lost.
#[test]
fn a_counter_is_exact() {
    const ROUNDS: u64 = 2000;
    for way in WAYS {
        let rack = TestRack::start_by(way, 2);
        let space = space_or_skip!(rack);
        let vma = space.allocate(4 * PAGE).unwrap();
        let mut workers: Vec<_> =
            (0..3).map(|_| rack.run("count", &[LIMIT, vma.base.0, ROUNDS, 3])).collect();
        assert_eq!(answers(&mut workers), [ROUNDS; 3]);
        assert_eq!(word(&space, &vma, 2 * PAGE), 3 * ROUNDS);
        workers.into_iter().for_each(Worker::end);
        assert_eq!(space.failure(), None);
    }
}

/// Messages of many lengths go to another process and come back reversed: a reader that sees the flag sees
/// everything written before it.
#[test]
fn messages_arrive_whole() {
    for way in WAYS {
        let rack = TestRack::start_by(way, 1);
        let space = space_or_skip!(rack);
        let vma = space.allocate(8 * PAGE).unwrap();
        let (out, back) = (vma.base.0, vma.base.0 + 4 * PAGE);
        let mut echo = rack.run("echo", &[LIMIT, out, back]);
        let at = |base: u64, n: u64| space.word(VirtAddr(base + 8 * n));
        let letters: Vec<u64> = (1..80).map(|n| n * 19 % 1500).collect();
        for (round, len) in letters.iter().copied().chain([0]).enumerate() {
            for n in 0..len {
                at(out, 1 + n).store(round as u64 * 10_000 + n, Ordering::Relaxed);
            }
            at(out, 0).store(len + 1, Ordering::Release);
            while at(back, 0).load(Ordering::Acquire) != len + 1 {
                std::thread::yield_now();
            }
            for n in 0..len {
                let turned = at(back, len - n).load(Ordering::Relaxed);
                assert_eq!(turned, round as u64 * 10_000 + n, "word {n} of {len}");
            }
            at(back, 0).store(0, Ordering::Release);
        }
        assert_eq!(echo.answer(), letters.len() as u64);
        echo.end();
    }
}

/// Two words on distant pages change together under a lock that is itself in far memory: no process ever sees
/// one without the other.
#[test]
fn a_lock_excludes() {
    const ROUNDS: u64 = 60;
    for way in WAYS {
        let rack = TestRack::start_by(way, 2);
        let space = space_or_skip!(rack);
        let (vma, far) = (space.allocate(4 * PAGE).unwrap(), space.allocate(4 * PAGE).unwrap());
        let args = [LIMIT, vma.base.0, vma.base.0 + PAGE, far.base.0, ROUNDS];
        let mut workers: Vec<_> = (0..3).map(|_| rack.run("lock", &args)).collect();
        assert_eq!(answers(&mut workers), [0; 3]);
        assert_eq!((word(&space, &vma, PAGE), word(&space, &far, 0)), (3 * ROUNDS, 3 * ROUNDS));
        workers.into_iter().for_each(Worker::end);
    }
}

/// Adjacent words, each with its own writer, on pages of one region: pages move by false sharing, and no word
/// is lost.
#[test]
fn false_sharing_costs_no_word() {
    let rack = TestRack::start("shm", 1);
    let space = space_or_skip!(rack);
    let vma = space.allocate(8 * PAGE).unwrap();
    let mut workers: Vec<_> =
        (0..3).map(|own| rack.run("own words", &[LIMIT, vma.base.0, 4 * PAGE, own, 3, 6])).collect();
    assert_eq!(answers(&mut workers), [0; 3]);
    workers.into_iter().for_each(Worker::end);
}

/// Three processes, each with room for an eighth of the data: every fetched page, from memory nodes or other
/// hosts, is the latest.
#[test]
fn an_eighth_of_the_data_is_room_enough() {
    const LEN: u64 = 1 << 20;
    for way in WAYS {
        let rack = TestRack::start_by(way, 2);
        let space = space_or_skip!(rack);
        let vma = space.allocate(2 * LEN).unwrap();
        let args = |own| [LEN / 8, vma.base.0, LEN, own, 3, 3000];
        let mut workers: Vec<_> = (0..3).map(|own| rack.run("versions", &args(own))).collect();
        assert_eq!(answers(&mut workers), [0; 3]);
        workers.into_iter().for_each(Worker::end);
    }
}

/// A process is killed with written pages. The pages are lost, and every access reports it each time. Pages
/// that it had written back are intact. Once the owner accepts the loss, the earlier bytes are there.
#[test]
fn what_a_killed_process_had_is_lost_and_not_silently() {
    for faults in [FaultMode::Handler, FaultMode::Signal] {
        let mut rack = TestRack::start("shm", 1);
        // The test examines the pages by system calls, which raise no signals.
        let space = space_or_skip!(rack);
        rack.faults = faults;
        what_a_killed_process_had_is_lost(&rack, &space);
    }
}

fn what_a_killed_process_had_is_lost(rack: &TestRack, space: &SharedSpace) {
    let vma = space.allocate(64 * PAGE).unwrap();
    let (given_back, kept) = (vma.base.0, vma.base.0 + 32 * PAGE);
    let mut holder = rack.run("hold", &[LIMIT, given_back, kept]);
    holder.await_word("holds");
    holder.kill();
    let memory = space.memory(&vma);
    let kept_at = usize::try_from(kept - vma.base.0).unwrap();
    assert_eq!(look(memory, 0), Some(11), "given back before");
    assert_eq!(look(memory, kept_at), None, "lost");
    assert_eq!(rack.run("read", &[LIMIT, kept]).signal(), Some(libc::SIGBUS));
    assert!(space.stats().lost > 0);
    space.accept_lost(VirtAddr(kept), PAGE).unwrap();
    let old = std::iter::repeat_with(|| look(memory, kept_at)).find_map(|word| word);
    assert_eq!(old, Some(21), "what the memory node had");
}

/// The switch dies and another takes its place while processes write the same word: they wait and continue,
/// and no addition is lost.
#[test]
fn the_switch_is_started_again() {
    for way in WAYS {
        let mut rack = TestRack::start_by(way, 1);
        let space = space_or_skip!(rack);
        let (counter, stop) = (space.allocate(PAGE).unwrap(), space.allocate(PAGE).unwrap());
        let mut workers: Vec<_> =
            (0..2).map(|_| rack.run("count until", &[LIMIT, counter.base.0, stop.base.0])).collect();
        let more = |than: u64| {
            while word(&space, &counter, 0) <= than {
                std::thread::yield_now();
            }
            word(&space, &counter, 0)
        };
        let before = more(0);
        rack.kill("switch");
        rack.begin("switch");
        more(before + 1_000_000);
        space.word(stop.base).store(1, Ordering::Relaxed);
        let sum: u64 = answers(&mut workers).iter().sum();
        assert_eq!(word(&space, &counter, 0), sum);
        workers.into_iter().for_each(Worker::end);
    }
}

/// Access outside all allocations is an error, until any host allocates the address.
#[test]
fn what_is_allocated_later_is_there_from_then_on() {
    let rack = TestRack::start("shm", 1);
    let (space, other) = (space_or_skip!(rack), space_or_skip!(rack));
    let first = space.allocate(PAGE).unwrap();
    let next = Vma { base: VirtAddr(first.base.0 + PAGE), ..first };
    let memory = space.memory(&next);
    assert_eq!(look(memory, 0), None);
    assert!(matches!(space.attach(next.base), Err(farmem::Error::NotMapped { .. })));
    assert_eq!(other.allocate(PAGE).unwrap(), next);
    other.memory(&next).word(0).store(5, Ordering::Relaxed);
    let there = std::iter::repeat_with(|| look(memory, 0)).find_map(|word| word);
    assert_eq!(there, Some(5));
    assert_eq!(space.attach(next.base).unwrap(), next);
}

/// A faulting thread serves itself on its own stack: 64 KiB suffice for a page that comes, one that goes and
/// one that is first written.
#[test]
fn a_small_stack_is_enough_to_serve_oneself() {
    for transport in ["shm", "udp"] {
        let rack = TestRack::start_by((transport, FaultMode::Signal), 1);
        let Some(space) = rack.space(ShareOptions::new(64 << 10)) else { return };
        let vma = space.allocate(64 * PAGE).unwrap();
        let sum = std::thread::scope(|scope| {
            let program = || {
                (0..64).for_each(|n| {
                    _ = space.word(VirtAddr(vma.base.0 + n * PAGE)).fetch_add(n, Ordering::Relaxed);
                });
                (0..64).map(|n| word(&space, &vma, n * PAGE)).sum::<u64>()
            };
            let thread = std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, program);
            thread.unwrap().join().unwrap()
        });
        assert_eq!(sum, 63 * 64 / 2);
        assert!(space.stats().evictions >= 48, "{:?}", space.stats());
    }
}

/// Written-back bytes are visible to uncached readers, and a dropped space leaves all of its bytes behind.
#[test]
fn what_is_written_back_is_in_far_memory() {
    let rack = TestRack::start("udp", 2);
    let space = space_or_skip!(rack);
    let vma = space.allocate(16 * PAGE).unwrap();
    let bytes: Vec<u8> = (0..16 * PAGE).map(|n| u8::try_from(n % 251).unwrap()).collect();
    space.memory(&vma).write(0, &bytes);
    space.write_back().unwrap();
    let mut client = farmem::Rack::running(rack.config.clone()).client(rig::DOMAIN).unwrap();
    let mut found = vec![0; bytes.len()];
    client.read(vma.base, &mut found).unwrap();
    assert!(found == bytes);
    assert!(space.memory(&vma).len() == bytes.len());
    space.memory(&vma).write(5, b"later");
    drop(space);
    let later = space_or_skip!(rack);
    let mut text = [0; 5];
    later.memory(&vma).read(5, &mut text);
    assert_eq!(&text, b"later");
}

/// A rack inside this process has no other process to share with.
#[test]
fn an_embedded_rack_shares_nothing() {
    let rack = farmem::Rack::embedded_with(1, 1 << 20).unwrap();
    let said = SharedSpace::join(&rack, "stranger", ShareOptions::new(LIMIT)).unwrap_err().to_string();
    assert!(said.contains("farmem up"), "{said}");
}
