//! The line-read limit: how many random lines of 64 bytes this core reads in a second, and what comes between.

use super::Subject;
use crate::rates::{Chance, Measured, Rates, Variant, cpu_time};
use farmem_io::MappedStore;
use farmem_memnode::{Compile as _, Logic as _, Store};
use farmem_traversal::{Program, Step};
use farmem_wire::VirtAddr;
use std::hint::black_box;

pub(super) const LINE: u64 = 64;
/// Lines per measurement.
const READS: usize = 2_000_000;
/// Lines that are asked for together.
const GROUP: usize = 16;

fn line(store: &impl Store, chance: &mut Chance) -> u64 {
    chance.below(store.len() / LINE) * LINE
}

fn word(store: &impl Store, offset: u64) -> u64 {
    u64::from_le_bytes(*store.window(offset, 8).first_chunk().expect("eight bytes"))
}

/// Ways to read lines with nothing to compute, on the store that a subject has.
pub(crate) fn limits<S: 'static>(store: fn(&S) -> &MappedStore) -> Vec<Variant<'static, S>> {
    type Way = fn(&MappedStore, &mut Chance) -> Measured;
    let ways: [Way; LIMITS.len()] =
        [loads, prefetched::<16>, prefetched::<32>, prefetched::<64>, prefetched::<128>, in_groups];
    let named = LIMITS.into_iter().zip(ways);
    named
        .map(|(name, way)| Variant::new(name, move |subject: &mut S, chance| way(store(subject), chance)))
        .collect()
}

/// The line-read limit: the fastest of [`limits`], under this name.
pub(crate) fn limit(rates: &[Rates], name: &'static str) -> Rates {
    let limits = rates.iter().filter(|rates| LIMITS.contains(&rates.name));
    let limit = limits.max_by(|a, b| a.p50().total_cmp(&b.p50())).expect("there are several");
    Rates { name, ..limit.clone() }
}

const LIMITS: [&str; 6] = ["loads", "prefetch.16", "prefetch.32", "prefetch.64", "prefetch.128", "groups"];

/// Runs `read` and counts what it says it read.
fn timed(read: impl FnOnce() -> (usize, u64)) -> Measured {
    let start = cpu_time();
    let (units, sum) = read();
    let time = cpu_time() - start;
    black_box(sum);
    Measured { units: units as u64, time }
}

/// Independent loads.
fn loads(store: &MappedStore, chance: &mut Chance) -> Measured {
    timed(|| {
        let sum = (0..READS).fold(0_u64, |sum, _| sum.wrapping_add(word(store, line(store, chance))));
        (READS, sum)
    })
}

/// Loads of lines that were asked for `DISTANCE` reads before.
fn prefetched<const DISTANCE: usize>(store: &MappedStore, chance: &mut Chance) -> Measured {
    let mut ring = [0; DISTANCE];
    timed(|| {
        let mut sum = 0_u64;
        for n in 0..READS {
            let next = line(store, chance);
            store.prefetch(next, 64);
            let place = &mut ring[n % DISTANCE];
            sum = sum.wrapping_add(word(store, *place));
            *place = next;
        }
        (READS, sum)
    })
}

/// Loads of lines that were asked for a group at a time, while the group before was read; each is followed by `between`.
fn grouped(store: &MappedStore, chance: &mut Chance, mut between: impl FnMut()) -> Measured {
    let mut groups = [[0; GROUP]; 2];
    timed(|| {
        let mut sum = 0_u64;
        for _ in 0..READS / GROUP {
            let [current, next] = &mut groups;
            for place in &mut *next {
                *place = line(store, chance);
                store.prefetch(*place, 64);
            }
            for place in current {
                sum = sum.wrapping_add(word(store, *place));
                between();
            }
            groups.swap(0, 1);
        }
        (READS / GROUP * GROUP, sum)
    })
}

/// With nothing to compute.
fn in_groups(store: &MappedStore, chance: &mut Chance) -> Measured {
    grouped(store, chance, || ())
}

/// With a hop's instructions behind each: the program's on a node that stays in the nearest cache, and that it passes by.
pub(super) fn with_hops(subject: &mut Subject, chance: &mut Chance) -> Measured {
    let program = Program::assemble(super::lookups::HASH_FIND).expect("assembles");
    let logic = farmem_io::Compiler::jit_at_once().compile(&program);
    let (mut node, mut scratch) = ([0; 64], vec![0; program.scratch_len()]);
    (node[0], node[16]) = (1, 1);
    grouped(subject.store(), chance, || {
        let step = logic.step(black_box(&node), &mut VirtAddr(1), &mut scratch);
        assert_eq!(step, Step::Next, "another node's key");
    })
}

/// Reads of `LINES` lines side by side, of which each waits for the one before: its address is made of the last of these lines, whose
/// words the structure's layout decides.
pub(super) fn dependent<const LINES: u64>(subject: &mut Subject, chance: &mut Chance) -> Measured {
    const CHASED: usize = 200_000;
    let store = subject.store();
    let blocks = store.len() / LINE / LINES;
    let mut next = Chance(chance.below(u64::MAX));
    timed(|| {
        for _ in 0..CHASED {
            let first = next.below(blocks) * LINES * LINE;
            for n in 0..LINES {
                next.0 ^= word(store, first + n * LINE);
            }
        }
        (CHASED, next.0)
    })
}
