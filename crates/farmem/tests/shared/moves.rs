//! Memory shared by hosts, by loads and stores, while it migrates from node to node.

use crate::rig::{DOMAIN, PAGE, TestRack, Worker};
use farmem::{Client, NodeId, Rack, ShareOptions, SharedSpace, VirtAddr, Vma};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, yield_now};

const LIMIT: u64 = 4 << 20;
const HOME: NodeId = NodeId(1);
const AWAY: NodeId = NodeId(2);
/// Pages that all threads count on.
const PAGES: u64 = 4;
/// Each move: first page, pages, target. One page alone, one with another, and all of them home again.
const MOVES: [(u64, u64, NodeId); 5] =
    [(0, 1, AWAY), (2, 2, AWAY), (0, 1, HOME), (1, 1, AWAY), (0, PAGES, HOME)];
/// Repetitions of the moves.
const TURNS: usize = 6;

fn mover(rack: &TestRack) -> Client {
    Rack::running(rack.config.clone()).client(DOMAIN).unwrap()
}

/// Migrates pages and checks their new location.
fn move_to(mover: &mut Client, vma: &Vma, (first, pages, to): (u64, u64, NodeId)) {
    let range = vma.base.0 + first * PAGE..vma.base.0 + (first + pages) * PAGE;
    mover.migrate(VirtAddr(range.start), pages * PAGE, to).unwrap();
    let parts = mover.locate(vma.base).unwrap();
    let there: u64 = parts
        .iter()
        .filter(|part| part.node == to)
        .map(|part| {
            let end = range.end.min(part.base.0 + part.size);
            end.saturating_sub(range.start.max(part.base.0))
        })
        .sum();
    assert_eq!(there, pages * PAGE, "{range:x?} is at {to:?}: {parts:?}");
}

/// Stops the counting threads, also when the test fails: a scope waits for its threads.
struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two threads on each of two hosts add to the same words, and a process on a third host adds to one of them.
/// Meanwhile the pages move back and forth between two nodes: alone, in pairs, together. Each thread adds
/// between any two moves. No addition is lost or done twice, and no page is reported lost.
#[test]
fn a_count_is_exact_while_its_pages_move() {
    for transport in ["shm", "udp"] {
        let rack = TestRack::start(transport, 2);
        let Some((one, other)) =
            rack.space(ShareOptions::new(LIMIT)).zip(rack.space(ShareOptions::new(LIMIT)))
        else {
            return;
        };
        let mut mover = mover(&rack);
        let vma = mover.allocate_on(PAGES * PAGE, HOME).unwrap();
        let stop_word = one.allocate(PAGE).unwrap().base;
        let beside = VirtAddr(vma.base.0 + PAGE + 512);
        let mut process = rack.run("count until", &[LIMIT, beside.0, stop_word.0]);
        let words: Vec<_> = (0..PAGES).map(|page| VirtAddr(vma.base.0 + page * PAGE + 8 * page)).collect();
        let stop = AtomicBool::new(false);
        let counts: [AtomicU64; 4] = Default::default();
        scope(|threads| {
            let ends = StopGuard(&stop);
            for (n, count) in counts.iter().enumerate() {
                let (space, words, stop) = ([&one, &other][n % 2], &words, &stop);
                threads.spawn(move || count_on(space, words, n / 2, stop, count));
            }
            for _ in 0..TURNS {
                for to_move in MOVES {
                    everybody_counts(&counts, one.word(beside));
                    move_to(&mut mover, &vma, to_move);
                }
            }
            everybody_counts(&counts, one.word(beside));
            drop(ends);
        });
        one.word(stop_word).store(1, Ordering::Relaxed);
        let sum: u64 = counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        let beside_sum = process.answer();
        process.end();
        for space in [&one, &other] {
            for &word in &words {
                assert_eq!(space.word(word).load(Ordering::Acquire), sum, "{word} over {transport}");
            }
            assert_eq!(space.word(beside).load(Ordering::Acquire), beside_sum, "over {transport}");
        }
        for space in [&one, &other] {
            space.write_back().unwrap();
            assert_eq!((space.stats().lost, space.failure()), (0, None), "over {transport}");
        }
        for (addr, expected) in words.iter().map(|&word| (word, sum)).chain([(beside, beside_sum)]) {
            let mut bytes = [0; 8];
            mover.read(addr, &mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), expected, "{addr} in far memory, over {transport}");
        }
    }
}

/// Adds one to each word, again and again, in ascending or descending order.
fn count_on(space: &SharedSpace, words: &[VirtAddr], way: usize, stop: &AtomicBool, count: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        for n in 0..words.len() {
            let word = words[if way == 0 { n } else { words.len() - 1 - n }];
            space.word(word).fetch_add(1, Ordering::Relaxed);
        }
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until each thread has added at least once more.
fn everybody_counts(counts: &[AtomicU64; 4], beside: &AtomicU64) {
    let now = || {
        let mut all = [beside.load(Ordering::Relaxed); 5];
        counts.iter().zip(&mut all).for_each(|(count, one)| *one = count.load(Ordering::Relaxed));
        all
    };
    let before = now();
    while now().iter().zip(&before).any(|(now, before)| now <= before) {
        yield_now();
    }
}

/// Two processes with room for an eighth of the data keep evicting and writing back while parts of it move:
/// every fetched page is the latest.
#[test]
fn versions_never_go_back_while_their_pages_move() {
    const LEN: u64 = 1 << 20;
    const PART: u64 = 16;
    for transport in ["shm", "udp"] {
        let rack = TestRack::start(transport, 2);
        if rack.space(ShareOptions::new(LIMIT)).is_none() {
            return;
        }
        let mut mover = mover(&rack);
        let vma = mover.allocate_on(2 * LEN, HOME).unwrap();
        let args = |own| [LEN / 8, vma.base.0, LEN, own, 2, 3000];
        let mut processes: Vec<_> = (0..2).map(|own| rack.run("versions", &args(own))).collect();
        let stop = AtomicBool::new(false);
        let mut moves = 0;
        let wrong = scope(|threads| {
            let answers = threads.spawn(|| {
                let _ends = StopGuard(&stop);
                processes.iter_mut().map(Worker::answer).collect::<Vec<_>>()
            });
            let parts = LEN / (PART * PAGE);
            while !stop.load(Ordering::Relaxed) {
                let to = if (moves / parts).is_multiple_of(2) { AWAY } else { HOME };
                move_to(&mut mover, &vma, (moves * 5 % parts * PART, PART, to));
                moves += 1;
            }
            answers.join().unwrap()
        });
        assert_eq!(wrong, [0, 0], "over {transport}");
        assert!(moves >= 8, "{moves} moves over {transport}");
        processes.into_iter().for_each(Worker::end);
    }
}
