//! An application in its own process under a memory limit: on a mapped file, or in memory swapped to zram.
//!
//! [`alone`] is that process, this program started again; [`Squeezed`] starts it.

use super::system::System;
use super::work::{App, Work};
use crate::child::{ChildReport, await_begin, run_child, send_report};
use crate::raw::{MappedFile, major_faults};
use crate::swap::{Group, Zram};
use crate::{Row, to_f64};
use farmem_graph::far::mapped_graph;
use farmem_graph::load::read;
use farmem_graph::{Graph, Shape, Store};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The first argument that makes this program run an application [`alone`].
pub const ALONE: &str = "soda-alone";

/// The process's memory besides its part of the graph: 1.6 MB of anonymous memory on a mapped graph, and up
/// to 24 bytes per vertex.
const OWN: u64 = 2 << 20;
const VERTEX: u64 = 32;

/// Runs the application `app` on the graph in `file` on a command on standard input. The system `disk` uses a
/// mapped file, `zram` local memory. Prints the nanoseconds and the sum of its results to standard output.
/// `rounds` is for pagerank, `sources` are comma-separated vertices.
///
/// # Errors
/// An error when there is no such application, system or graph, or the parent is gone.
pub fn alone(file: &Path, app: &str, system: &str, rounds: u64, sources: &str) -> io::Result<()> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    let found = App::ALL.into_iter().find(|known| known.name() == app);
    let app = found.ok_or_else(|| wrong(format!("no application is called {app:?}")))?;
    let sources = sources.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>();
    let sources = sources.map_err(|_| wrong("sources are numbers with commas between them".into()))?;
    let work = Work { app, rounds, sources };
    if !await_begin()? {
        return Ok(());
    }
    if system == System::Disk.name() {
        let open = File::open(file)?;
        let mapped = MappedFile::open(&open)?;
        let graph = mapped_graph(
            file,
            &open,
            |at, count| mapped.numbers(at, count),
            |at, count| mapped.numbers(at, count),
        )
        .map_err(|failure| wrong(failure.message))?;
        carry_out(&graph, &work)
    } else if system == System::Zram.name() {
        let csr = read(file, Shape::default(), &mut |_, _| true).map_err(|error| wrong(error.to_string()))?;
        let graph = csr.graph().map_err(|error| wrong(error.to_string()))?;
        carry_out(&graph, &work)
    } else {
        Err(wrong(format!("no system called {system:?} has a process of its own")))
    }
}

fn carry_out<S: Store>(graph: &Graph<S>, work: &Work) -> io::Result<()> {
    let threads = super::one_thread().map_err(io::Error::other)?;
    let begin = Instant::now();
    let (values, faults) = threads.install(|| {
        let before = major_faults();
        let values = work.run(graph);
        (values, major_faults() - before)
    });
    let time = begin.elapsed();
    send_report(time, values.map_err(io::Error::other)?.sum().into(), Some(faults))
}

/// A starter of such processes.
pub(super) struct Squeezed {
    system: System,
    file: PathBuf,
    limit: u64,
    /// The zram device, while this lives.
    zram: Option<Zram>,
    /// The measurement method in words.
    how: String,
}

impl Squeezed {
    /// Prepares runs on the graph in `file`, of which `local` bytes may be resident besides the process's own
    /// memory. Returns the reason when that is impossible here.
    pub(super) fn begin(system: System, file: &Path, vertices: u64, local: u64) -> Result<Self, String> {
        let limit = local + OWN + vertices * VERTEX;
        // Checked first: without a limit, no page would come from the swap device.
        let version = Group::begin(limit)?.version().to_string();
        let zram = match system {
            System::Zram => Some(Zram::begin(4 * limit)?),
            _ => None,
        };
        let how = format!(
            "a memory cgroup ({version}) of {} MiB, {} MiB of it for the graph",
            limit >> 20,
            local >> 20
        );
        Ok(Self { system, file: file.into(), limit, zram, how })
    }

    /// Describes a run that waited for this many pages.
    pub(super) fn how(&self, faults: u64) -> String {
        let far = match &self.zram {
            Some(zram) => zram.path(),
            None => "a mapped file, not in memory at first".into(),
        };
        let nothing = if faults == 0 { ": all of it was in memory, so this is no figure of it" } else { "" };
        format!("{far} under {}; {faults} major faults in the last round{nothing}", self.how)
    }

    /// Runs the application once.
    pub(super) fn run(&self, work: &Work) -> Result<ChildReport, String> {
        let itself = std::env::current_exe().map_err(|error| format!("this program itself: {error}"))?;
        let sources: Vec<String> = work.sources.iter().map(u32::to_string).collect();
        let mut command = Command::new(itself);
        command.arg(ALONE).arg(&self.file).args([work.app.name(), self.system.name()]);
        command.args([work.rounds.to_string(), sources.join(",")]);
        if self.system == System::Disk {
            put_out(&self.file).map_err(|error| format!("{}: {error}", self.file.display()))?;
        }
        let group = Group::begin(self.limit)?;
        run_child(command, Some(&group))
    }
}

/// Drops a file from the page cache: the next reader waits for the disk.
pub(super) fn put_out(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

/// Measures the disk's rate for an uncached file, in megabytes per second.
pub(super) fn disk_rate(path: &Path, rounds: usize) -> Row {
    let id = "soda.disk.rate";
    let mut rates = Vec::new();
    for _ in 0..rounds {
        match read_cold(path) {
            Ok((bytes, time)) => rates.push(to_f64(bytes) / 1e6 / time.as_secs_f64()),
            Err(error) => return Row::absent(id, "MB/s", format!("skipped: {}: {error}", path.display())),
        }
    }
    let rate = crate::samples::median(&mut rates);
    let why = format!(
        "{} read from end to end, none of it in memory; a disk that others cache for may be faster",
        path.display()
    );
    Row { why: Some(why), ..Row::figure(id, "MB/s", rate, rounds as u64) }
}

/// Reads a file from end to end.
pub(super) fn read_cold(path: &Path) -> io::Result<(u64, Duration)> {
    put_out(path)?;
    let mut file = File::open(path)?;
    let (mut block, mut bytes, begin) = (vec![0; 1 << 20], 0, Instant::now());
    loop {
        match file.read(&mut block)? {
            0 => return Ok((bytes, begin.elapsed())),
            count => bytes += count as u64,
        }
    }
}
