//! The line-read limit: the random lines of 64 bytes that this core reads per second, and variants with work
//! in between.

use super::Subject;
use crate::rates::{Chance, Measured, Rates, Variant, cpu_time};
use farmem_link::MappedStore;
use farmem_memnode::{Compile as _, Logic as _, Store};
use farmem_traversal::{Program, Step};
use farmem_wire::VirtAddr;
use std::hint::black_box;

pub(super) const LINE: u64 = 64;
/// Lines per measurement.
const READS: usize = 2_000_000;
/// Lines prefetched together.
const GROUP: usize = 16;

fn line(store: &impl Store, chance: &mut Chance) -> u64 {
    chance.below(store.len() / LINE) * LINE
}

fn word(store: &impl Store, offset: u64) -> u64 {
    u64::from_le_bytes(*store.window(offset, 8).first_chunk().expect("eight bytes"))
}

/// Returns the variants of reading lines without computation, on the subject's store.
pub(crate) fn limits<S: 'static>(store: fn(&S) -> &MappedStore) -> Vec<Variant<'static, S>> {
    type MeasureFn = fn(&MappedStore, &mut Chance) -> Measured;
    let ways: [MeasureFn; LIMITS.len()] =
        [loads, prefetched::<16>, prefetched::<32>, prefetched::<64>, prefetched::<128>, in_groups];
    let named = LIMITS.into_iter().zip(ways);
    named
        .map(|(name, way)| Variant::new(name, move |subject: &mut S, chance| way(store(subject), chance)))
        .collect()
}

/// Returns the line-read limit: the fastest of [`limits`], under this name.
pub(crate) fn limit(rates: &[Rates], name: &'static str) -> Rates {
    let limits = rates.iter().filter(|rates| LIMITS.contains(&rates.name));
    let limit = limits.max_by(|a, b| a.p50().total_cmp(&b.p50())).expect("there are several");
    Rates { name, ..limit.clone() }
}

const LIMITS: [&str; 6] = ["loads", "prefetch.16", "prefetch.32", "prefetch.64", "prefetch.128", "groups"];

/// Runs `read` and counts the units that it reports.
fn timed(read: impl FnOnce() -> (usize, u64)) -> Measured {
    let start = cpu_time();
    let (units, sum) = read();
    let time = cpu_time() - start;
    black_box(sum);
    Measured { units: units as u64, time }
}

/// Measures independent loads.
fn loads(store: &MappedStore, chance: &mut Chance) -> Measured {
    timed(|| {
        let sum = (0..READS).fold(0_u64, |sum, _| sum.wrapping_add(word(store, line(store, chance))));
        (READS, sum)
    })
}

/// Measures loads of lines prefetched `DISTANCE` reads before.
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

/// Measures loads of lines prefetched a group at a time, while the previous group is read; `between` runs
/// after each.
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

/// Measures groups without computation.
fn in_groups(store: &MappedStore, chance: &mut Chance) -> Measured {
    grouped(store, chance, || ())
}

/// Measures groups with a hop's instructions after each line: the program passes a node in the nearest cache.
pub(super) fn with_hops(subject: &mut Subject, chance: &mut Chance) -> Measured {
    let program = Program::assemble(super::lookups::HASH_FIND).expect("assembles");
    let logic = farmem_link::Compiler::jit_at_once().compile(&program);
    let (mut node, mut scratch) = ([0; 64], vec![0; program.scratch_len()]);
    (node[0], node[16]) = (1, 1);
    grouped(subject.store(), chance, || {
        let step = logic.step(black_box(&node), &mut VirtAddr(1), &mut scratch);
        assert_eq!(step, Step::Next, "another node's key");
    })
}

/// Measures reads of `LINES` adjacent lines, each dependent on the previous read: the address comes from the
/// last of these lines, whose words the structure's layout determines.
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
