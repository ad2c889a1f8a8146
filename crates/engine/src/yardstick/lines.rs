//! The line-read limit: how many random lines of 64 bytes this core reads in a second, with nothing to compute.

use super::table::{LINE, Table, cpu_time, prefetch};
use super::{Chance, Measured};
use std::hint::black_box;

/// Lines per measurement.
const READS: usize = 2_000_000;

/// Independent loads.
pub(super) fn loads(table: &Table, chance: &mut Chance) -> Measured {
    let words = table.words();
    let lines = words.len() / (LINE / 8);
    let mut sum = 0_u64;
    let start = cpu_time();
    for _ in 0..READS {
        sum = sum.wrapping_add(words[chance.below(lines) * (LINE / 8)]);
    }
    let time = cpu_time() - start;
    black_box(sum);
    Measured { units: READS as u64, time }
}

/// Loads of lines that were asked for `distance` reads before.
pub(super) fn prefetched<const HINT: u8>(table: &Table, chance: &mut Chance, distance: usize) -> Measured {
    let words = table.words();
    let lines = words.len() / (LINE / 8);
    let mut ring = [0_usize; 64];
    assert!(distance <= ring.len() && distance.is_power_of_two());
    let mut sum = 0_u64;
    let start = cpu_time();
    for n in 0..READS {
        let next = chance.below(lines) * (LINE / 8);
        prefetch::<HINT>(&raw const words[next]);
        let place = &mut ring[n % distance % 64];
        sum = sum.wrapping_add(words[*place]);
        *place = next;
    }
    let time = cpu_time() - start;
    black_box(sum);
    Measured { units: READS as u64, time }
}

/// Reads of `LINES` lines side by side, of which each waits for the one before: its address is made of the last of these lines, whose
/// words the table's layout decides.
pub(super) fn dependent<const LINES: usize>(table: &Table, chance: &mut Chance) -> Measured {
    const CHASED: usize = 200_000;
    let words = table.words();
    let blocks = words.len() / (LINE / 8) / LINES;
    let mut next = Chance(chance.0);
    let start = cpu_time();
    for _ in 0..CHASED {
        let first = next.below(blocks) * LINES * (LINE / 8);
        for line in 0..LINES {
            next.0 ^= words[first + line * (LINE / 8)];
        }
    }
    let time = cpu_time() - start;
    black_box(next.0);
    chance.below(blocks);
    Measured { units: CHASED as u64, time }
}
