//! The cost of the filter of `farmem run` on system calls unrelated to memory: each call with and without the
//! filter, in alternating rounds.
//!
//! [`calls`] is the process that makes the calls: this program, started twice, with a filter and without. The
//! filter inspects no arguments of these calls, so the difference is the cost of filtering itself.

use super::Samples;
use crate::{CpuMeter, Row};
use farmem_run::{Started, Watched, spawn};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The first argument that makes this program run [`calls`].
pub const CALLS: &str = "calls";

/// Names of the calls: the parent's process id; 4 KiB of /dev/zero; 4 KiB of a cached file; 64 bytes through
/// a pipe and back.
pub(super) const NAMES: [&str; 4] = ["getppid", "read_zero", "pread", "pipe"];
/// Calls timed together.
const BATCH: u32 = 200;
/// An address range for far memory.
const BASE: usize = 0x4000_0000_0000;

/// Returns the rows, with figures where this machine supports the filter.
pub(super) fn rows(wants: impl Fn(&str) -> bool, rounds: usize) -> Vec<Row> {
    let names = || NAMES.iter().enumerate().map(|(n, name)| (n, format!("mind.filter.{name}")));
    let wanted = names().filter(|(_, id)| wants(id));
    let mut callers = match Caller::start(true).and_then(|under| Ok([under, Caller::start(false)?])) {
        Ok(callers) => callers,
        Err(why) => return wanted.map(|(_, id)| Row::absent(id, "ns", why.to_string())).collect(),
    };
    let rows = wanted.map(|(n, id)| match alternate(&mut callers, n, rounds) {
        Ok([under, without]) => under.row(&id, Some(&without)),
        Err(why) => Row::absent(id, "ns", why.to_string()),
    });
    rows.collect()
}

fn alternate(callers: &mut [Caller; 2], call: usize, rounds: usize) -> io::Result<[Samples; 2]> {
    let mut times = [Samples::new(), Samples::new()];
    for round in 0..rounds {
        for n in [round % 2, 1 - round % 2] {
            let meter = CpuMeter::of(callers[n].started.child.id());
            let cpu = meter.begin();
            times[n].record(callers[n].time(call)?);
            times[n].spent(cpu.end(), BATCH.into());
        }
    }
    Ok(times)
}

/// A process that makes calls on command.
struct Caller {
    started: Started,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Caller {
    fn start(filtered: bool) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(CALLS).stdin(Stdio::piped()).stdout(Stdio::piped());
        let watched = Watched::new(BASE, None);
        let mut started = spawn(command, filtered.then_some(&watched))?;
        let (input, output) =
            started.child.stdin.take().zip(started.child.stdout.take()).expect("both are piped");
        // A closed listener refuses notifications; these calls cause none.
        if let Some(listener) = started.listener.take() {
            drop(listener?);
        }
        Ok(Self { started, input, output: BufReader::new(output) })
    }

    /// Returns the average time of one call.
    fn time(&mut self, call: usize) -> io::Result<Duration> {
        writeln!(self.input, "{call}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let nanos: u64 = line.trim().parse().map_err(|_| io::Error::other("it told no time"))?;
        // Tenths of a nanosecond are lost.
        Ok(Duration::from_nanos(nanos) / BATCH)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.started.child.kill());
        drop(self.started.child.wait());
    }
}

/// Makes a batch of calls for each call number on standard input, and prints the nanoseconds of each batch to
/// standard output.
///
/// # Errors
/// An error when the machine refuses a call, or the parent is gone.
pub fn calls() -> io::Result<()> {
    let (mut zeros, cached) = (File::open("/dev/zero")?, File::open(std::env::current_exe()?)?);
    let (mut reader, mut writer) = io::pipe()?;
    let mut bytes = [0; super::PAGE];
    for line in io::stdin().lock().lines() {
        let call: usize = line?.trim().parse().map_err(|_| io::ErrorKind::InvalidInput)?;
        let name = *NAMES.get(call).ok_or(io::ErrorKind::InvalidInput)?;
        let begin = Instant::now();
        for _ in 0..BATCH {
            match name {
                "getppid" => drop(std::hint::black_box(std::os::unix::process::parent_id())),
                "read_zero" => zeros.read_exact(&mut bytes)?,
                "pread" => cached.read_exact_at(&mut bytes, 0)?,
                _ => {
                    writer.write_all(&bytes[..64])?;
                    reader.read_exact(&mut bytes[..64])?;
                }
            }
        }
        let took = begin.elapsed();
        writeln!(io::stdout(), "{}", took.as_nanos())?;
    }
    Ok(())
}
