//! The rows of `soda.slice`: loops over numbers of a fully resident window, compared with the same loops over
//! a slice of local memory.

use super::Sizes;
use super::system::System;
use crate::{Plan, Row, Samples, Sheet};
use farmem::window::{Memory, WindowOptions, with_window};
use farmem::{Error, Rack};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Bytes of a number.
const NUMBER: usize = 4;
/// Repetitions of each loop in a round.
const TIMES: usize = 8;
/// An odd number, whose multiples visit all positions of an array with a power-of-two length.
const STEP: usize = 0x9e37_79b1;

/// The summing loops: sequential and random.
const LOOPS: [&str; 2] = ["sum", "gather"];

/// Measures the rows that `plan` selects.
pub(super) fn rows(plan: &Plan, sizes: &Sizes, sheet: &mut Sheet<'_>) -> Result<(), Error> {
    if !plan.wants("soda.slice.") {
        return Ok(());
    }
    sheet.begins("numbers of a window, all here");
    let rack = Rack::embedded_with(1, super::node_memory(sizes.written))?;
    let mut client = rack.client("soda")?;
    let vma = client.allocate(sizes.written)?;
    let plain: Vec<u32> = (0..usize::try_from(sizes.written).expect("a window's bytes have addresses")
        / NUMBER)
        .map(|n| u32::try_from((n * STEP) & 0xffff).expect("16 bits"))
        .collect();
    let bytes: Vec<u8> = plain.iter().flat_map(|number| number.to_le_bytes()).collect();
    client.write(vma.base, &bytes)?;
    let options = System::Server.options(sizes.written, (0, 1), sizes.pages).expect("a window");
    let options = WindowOptions { local_limit: sizes.written, ..options };
    let program = |memory: Memory<'_>| {
        let far = memory.numbers::<u32>(0, plain.len());
        let last = plain.len() - 1;
        // Pages not yet resident are fetched now.
        let mut wrong = u64::from(far.iter().zip(&plain).any(|(far, plain)| far != *plain));
        let mut all = LOOPS.map(|_| [Samples::new(), Samples::new()]);
        for _ in 0..sizes.rounds {
            let sums = [
                timed(&mut all[0][0], || far.iter().map(u64::from).sum()),
                timed(&mut all[0][1], || black_box(&plain[..]).iter().copied().map(u64::from).sum()),
                timed(&mut all[1][0], || places(last).map(|at| u64::from(far.at(at))).sum()),
                timed(&mut all[1][1], || {
                    let plain = black_box(&plain[..]);
                    places(last).map(|at| u64::from(plain[at])).sum()
                }),
            ];
            wrong += u64::from(sums.iter().any(|sum| *sum != sums[0]));
        }
        (all, wrong)
    };
    match with_window(&mut client, &vma, options, program) {
        Ok(((all, wrong), stats)) => {
            let is_here = stats.evictions == 0;
            sheet.add_wrong(wrong + u64::from(!is_here));
            for (name, [far, plain]) in LOOPS.iter().zip(&all) {
                let why =
                    format!("{} numbers of {NUMBER} bytes; beside a slice of local memory", vma.size / 4);
                let row = far.row(&format!("soda.slice.{name}"), Some(plain));
                sheet.add([Row { why: Some(why), ..row }]);
            }
        }
        Err(Error::Open(refused)) => {
            sheet.add(
                LOOPS.map(|name| {
                    Row::absent(format!("soda.slice.{name}"), "ns", format!("skipped: {refused}"))
                }),
            );
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Returns all positions up to the last one of a power of two, in pseudo-random order.
fn places(last: usize) -> impl Iterator<Item = usize> {
    (0..=last).map(move |n| n.wrapping_mul(STEP) & last)
}

/// Returns a loop's result. Records the time of the fastest of several runs.
fn timed(samples: &mut Samples, mut sum: impl FnMut() -> u64) -> u64 {
    let mut fastest = Duration::MAX;
    let mut found = 0;
    for _ in 0..TIMES {
        let begin = Instant::now();
        found = black_box(sum());
        fastest = fastest.min(begin.elapsed());
    }
    samples.record(fastest);
    found
}
