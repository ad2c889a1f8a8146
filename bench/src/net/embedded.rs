//! Measurement of a rack in one process. Without a link, the baseline of a READ or WRITE is a copy of the
//! same bytes in memory.

use super::Budget;
use super::operations::{ALL, Fixture, Operation};
use crate::{Row, Samples};
use farmem::{Error, Rack};
use std::convert::Infallible;
use std::hint::black_box;

/// Number of operations timed together, because one operation is too short for the clock.
const BATCH: u32 = 100;

pub(super) fn measure(effort: Budget) -> Result<Vec<Row>, Error> {
    let mut client = Rack::embedded()?.client("bench")?;
    let mut bed = Fixture::new(&mut client)?;
    let mut rows = Vec::new();
    for operation in ALL {
        let (mut samples, mut baseline) = (Samples::new(), Samples::new());
        let copied = copied_bytes(operation);
        for _ in 0..effort.rounds * effort.per_round / BATCH {
            if let Some(len) = copied {
                baseline.time_batch(BATCH, || copy(len))?;
            }
            samples.time_batch(BATCH, || (0..BATCH).try_for_each(|_| bed.once(&mut client, operation)))?;
        }
        let id = format!("net.embedded.{}", operation.name());
        rows.push(samples.row(&id, copied.map(|_| &baseline)));
    }
    Ok(rows)
}

const fn copied_bytes(operation: Operation) -> Option<usize> {
    match operation {
        Operation::Read64 | Operation::Write64 => Some(64),
        Operation::Read4k | Operation::Write4k => Some(4096),
        Operation::CompareSwap | Operation::FetchAdd | Operation::Traverse1 => None,
    }
}

fn copy(len: usize) -> Result<(), Error> {
    let from = black_box(vec![1_u8; len]);
    let mut to = vec![0_u8; len];
    for _ in 0..BATCH {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
    }
    Ok::<(), Infallible>(()).map_err(|never| match never {})
}
