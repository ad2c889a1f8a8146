//! The swap-in of a page from compressed local memory (zram): the cost of evicted memory without any rack.
//!
//! This needs the right to create a zram device and to swap to it. If a memory cgroup can be created too, a
//! process in it has less memory than it uses, and the system evicts its pages (`squeezed`). The limit
//! applies to that process alone, so no other process's pages are evicted for it. Otherwise pages of this
//! process are evicted on request. A system that evicts long-unused pages may use the device too while it
//! exists; all of them return when the device is removed.

mod probe;

pub(crate) use probe::ZramProbe;
pub use probe::{SQUEEZED, squeezed};

use super::Samples;
use crate::raw::Swapped;
use crate::swap::{Group, Zram};
use crate::touch::scattered;
use crate::{Row, to_f64};
use procfs_core::FromRead as _;
use procfs_core::process::Status;
use std::process::Command;
use std::time::Instant;

const ID: &str = "mind.fault.zram";
const PAGES: usize = 4096;
/// Memory limit of the process: half of its pages.
const LIMIT: u64 = (PAGES * super::PAGE / 2) as u64;
/// Bytes of the device: room for all pages.
const DEVICE_LEN: u64 = 64 << 20;

/// Returns the row, with a figure where this machine permits it.
pub(super) fn row(rounds: usize) -> Row {
    match Zram::begin(DEVICE_LEN).and_then(|device| measure(&device, rounds)) {
        Ok(Measured { times, how }) => {
            let why = format!("{how}; no rack has a part in it");
            Row { why: Some(why), ..times.row(ID, None) }
        }
        Err(why) => Row::absent(ID, "ns", why),
    }
}

/// Times of touches of evicted pages, and the eviction method in words.
struct Measured {
    times: Samples,
    how: String,
}

/// Measures under a limit, or else by eviction on request.
fn measure(device: &Zram, rounds: usize) -> Result<Measured, String> {
    under_a_limit(device, rounds).or_else(|no_limit| {
        let Measured { times, how } = on_request(device, rounds)?;
        Ok(Measured { times, how: format!("{how} (under no limit: {no_limit})") })
    })
}

fn under_a_limit(device: &Zram, rounds: usize) -> Result<Measured, String> {
    let group = Group::begin(LIMIT)?;
    let itself = std::env::current_exe().map_err(|error| format!("this program itself: {error}"))?;
    let mut command = Command::new(itself);
    command.args([SQUEEZED, &PAGES.to_string(), &rounds.to_string()]);
    let touches = to_f64((PAGES * rounds) as u64);
    let mut squeezed = ZramProbe::begin(command)?;
    group.take_in(squeezed.id())?;
    let times = squeezed.times()?;
    let out = to_f64(times.len()) / touches;
    if out < 0.5 {
        return Err(format!("only {:.0} % of the touched pages were out", out * 100.0));
    }
    // Pages that are not resident are on the device.
    let compressed = device.compressed(LIMIT / 2)?;
    let how = format!(
        "pages come back from zram that the limit of a memory cgroup put out ({}, {} MiB of {} MiB): {:.0} % of those touched were out, {compressed}",
        group.version(),
        LIMIT >> 20,
        (PAGES * super::PAGE) >> 20,
        out * 100.0,
    );
    Ok(Measured { times, how })
}

fn on_request(device: &Zram, rounds: usize) -> Result<Measured, String> {
    let mut pages = Swapped::open(PAGES).map_err(|error| error.to_string())?;
    let mut times = Samples::new();
    let mut compressed = String::new();
    for _ in 0..rounds {
        let before = swapped_kib()?;
        pages.put_out().map_err(|error| format!("pages cannot be put out: {error}"))?;
        if swapped_kib()?.saturating_sub(before) < (PAGES * 4 / 2) as u64 {
            return Err("the system kept pages that were to be put out".into());
        }
        compressed = device.compressed((PAGES * super::PAGE / 2) as u64)?;
        for n in 0..PAGES {
            let page = scattered(n, PAGES);
            let begin = Instant::now();
            let _byte = std::hint::black_box(pages.read(page));
            times.record(begin.elapsed());
        }
    }
    Ok(Measured {
        times,
        how: format!("pages come back from zram that were put out on request, {compressed}"),
    })
}

/// Returns the swapped size of this process.
fn swapped_kib() -> Result<u64, String> {
    let status = Status::from_file("/proc/self/status").map_err(|error| error.to_string())?;
    status.vmswap.ok_or_else(|| "the system does not say what is in swap".into())
}
