//! The swap-in of a page from compressed memory of this machine (zram): what a program pays for memory that is not here without any rack.
//!
//! Needs the right to make a zram device and to swap to it, and memory that is accounted for. The pages are put out one by one on request, not
//! by a limit: what comes back takes the same way, and nobody else's pages are pushed out.

use super::Samples;
use super::fault::scattered;
use crate::Row;
use farmem::raw::Swapped;
use std::fs::{read_to_string, write};
use std::process::Command;
use std::time::Instant;

const ID: &str = "mind.fault.zram";
const PAGES: usize = 4096;
/// Bytes of the device: room for all pages.
const DEVICE_LEN: &str = "64M";

/// The row, with a figure where this machine allows it.
pub(super) fn row(rounds: usize) -> Row {
    match measure(rounds) {
        Ok(times) => {
            let row = times.row(ID, None);
            Row {
                why: Some("a page put out on request comes back from zram; no rack has a part in it".into()),
                ..row
            }
        }
        Err(why) => Row::absent(ID, "ns", why),
    }
}

fn measure(rounds: usize) -> Result<Samples, String> {
    let _device = Device::begin()?;
    let mut pages = Swapped::open(PAGES).map_err(|error| error.to_string())?;
    let mut times = Samples::new();
    for _ in 0..rounds {
        let before = swapped_kib()?;
        pages.put_out().map_err(|error| format!("pages cannot be put out: {error}"))?;
        if swapped_kib()?.saturating_sub(before) < (PAGES * 4 / 2) as u64 {
            return Err("the system kept pages that were to be put out".into());
        }
        for n in 0..PAGES {
            let page = scattered(n, PAGES);
            let begin = Instant::now();
            let _byte = std::hint::black_box(pages.read(page));
            times.record(begin.elapsed());
        }
    }
    Ok(times)
}

/// What of this process is in swap.
fn swapped_kib() -> Result<u64, String> {
    let status = read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSwap:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| "the system does not say what is in swap".into())
}

/// A zram device that is swapped to, as long as this lives.
struct Device {
    number: String,
    swaps: bool,
}

impl Device {
    fn begin() -> Result<Self, String> {
        let add = "/sys/class/zram-control/hot_add";
        let number = read_to_string(add)
            .map_err(|error| format!("no zram device ({add}: {error}); needs the module zram, and root"))?;
        let mut device = Self { number: number.trim().to_owned(), swaps: false };
        let size = format!("/sys/block/zram{}/disksize", device.number);
        write(&size, DEVICE_LEN).map_err(|error| format!("{size}: {error}"))?;
        let path = device.path();
        command("mkswap", &[&path])?;
        command("swapon", &[&path])?;
        device.swaps = true;
        Ok(device)
    }

    fn path(&self) -> String {
        format!("/dev/zram{}", self.number)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // What is refused here stays as it is: a device in use is not taken away.
        if self.swaps {
            let _stays = command("swapoff", &[&self.path()]);
        }
        let _stays = write(format!("/sys/block/zram{}/reset", self.number), "1");
        let _stays = write("/sys/class/zram-control/hot_remove", &self.number);
    }
}

fn command(program: &str, arguments: &[&str]) -> Result<(), String> {
    let ended =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if ended.status.success() {
        return Ok(());
    }
    Err(format!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&ended.stderr).trim()))
}
