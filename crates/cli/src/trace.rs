//! `farmem trace`: memory accesses of a program, recorded under valgrind for replays on simulated racks.

use crate::args::{TraceInfo, TraceRecord};
use crate::outcome::{End, Failure};
use crate::{output, progress};
use farmem_sim::trace::lackey::{self, Accesses, LackeyError};
use farmem_sim::trace::{Compactor, Header, Reader, TraceError, Visit, Writer};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;

/// Report of a trace's contents.
#[derive(Serialize)]
struct Contents {
    file: PathBuf,
    command: Vec<String>,
    bytes: u64,
    visits: u64,
    writes: u64,
    accesses: u64,
    instructions: u64,
    threads: usize,
    pages: usize,
    /// Number of pages that more than one thread accessed.
    shared_pages: usize,
}

impl output::Report for Contents {
    fn text(&self) -> String {
        let row = |what: &str, n: u64| vec![what.to_owned(), output::count(n)];
        let length = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let rows = [
            row("visits of pages", self.visits),
            row("  to write", self.writes),
            row("accesses besides", self.accesses),
            row("instructions", self.instructions),
            row("threads", length(self.threads)),
            row("pages", length(self.pages)),
            row("  of several threads", length(self.shared_pages)),
            row("bytes of the file", self.bytes),
        ];
        format!("{}: {}\n", self.file.display(), self.command.join(" "))
            + &output::table(&["what", "count"], &rows)
    }
}

/// Prints the contents of a trace.
pub(crate) fn info(args: &TraceInfo) -> Result<End, Failure> {
    output::print(&contents(&args.file)?, args.json);
    Ok(End::Fine)
}

/// Runs the program under valgrind. The output is the program's own. When the program fails, the trace is
/// kept and the exit code is 1.
pub(crate) fn record(args: &TraceRecord) -> Result<End, Failure> {
    let directory = tempfile::tempdir().map_err(|error| at(Path::new("a temporary folder"), &error))?;
    let pipe = directory.path().join("accesses");
    mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).map_err(|error| at(&pipe, &error.into()))?;
    let file = File::create(&args.output).map_err(|error| at(&args.output, &error))?;
    let child = Command::new("valgrind").args(lackey::arguments(&pipe)).args(&args.command).spawn().map_err(
        |error| {
            Failure::environment(
                format!("valgrind cannot be started: {error}"),
                "install it: apt-get install valgrind",
            )
        },
    )?;
    let status = write_down(args, file, &pipe, child)?;
    output::print(&contents(&args.output)?, args.json);
    if !status.success() {
        output::note(&format!(
            "farmem: the program ended with {status}; the trace holds what it did until then"
        ));
        return Ok(End::Violation);
    }
    Ok(End::Fine)
}

/// Records the output of valgrind until it ends.
fn write_down(args: &TraceRecord, file: File, pipe: &Path, mut child: Child) -> Result<ExitStatus, Failure> {
    let pid = Pid::from_child(&child);
    thread::scope(|scope| {
        let over = scope.spawn(move || {
            let status = child.wait();
            // The other thread waits for valgrind to open the pipe. This open ends the wait when valgrind
            // never did.
            let opened = OpenOptions::new().write(true).open(pipe);
            drop(opened);
            status
        });
        // The pipe stays open until the other side is done, because an end without a reader would block it.
        let lines = File::open(pipe).map_err(|error| at(pipe, &error));
        lines.and_then(|lines| {
            let copied = copy(args, file, &lines);
            if copied.is_err() {
                // The process may already have ended.
                let _ = kill_process(pid, Signal::KILL);
            }
            let status = over.join().expect("the thread only waits");
            copied.and_then(|()| status.map_err(|error| at(Path::new("valgrind"), &error)))
        })
    })
}

fn copy(args: &TraceRecord, file: File, lines: &File) -> Result<(), Failure> {
    let bar = progress::spinner("visits of pages");
    let header = Header { command: args.command.clone() };
    let mut writer =
        Writer::new(BufWriter::new(file), &header).map_err(|error| in_trace(&args.output, &error))?;
    let mut compactor = Compactor::new();
    for event in Accesses::new(BufReader::with_capacity(1 << 20, lines)) {
        let event = event.map_err(|error| in_lines(&error))?;
        let write = |visit| {
            bar.inc(1);
            writer.visit(visit)
        };
        compactor.take(event, write).map_err(|error| in_trace(&args.output, &error))?;
    }
    writer.finish().map_err(|error| in_trace(&args.output, &error))?;
    bar.finish_and_clear();
    Ok(())
}

fn contents(file: &Path) -> Result<Contents, Failure> {
    let input = File::open(file).map_err(|error| at(file, &error))?;
    let mut reader = Reader::new(BufReader::new(input)).map_err(|error| in_trace(file, &error))?;
    let mut pages: BTreeSet<(u64, u16)> = BTreeSet::new();
    let mut threads = BTreeSet::new();
    let bytes = fs::metadata(file).map_err(|error| at(file, &error))?.len();
    let command = reader.header().command.clone();
    let mut contents = Contents {
        file: file.to_owned(),
        command,
        bytes,
        visits: 0,
        writes: 0,
        accesses: 0,
        instructions: 0,
        threads: 0,
        pages: 0,
        shared_pages: 0,
    };
    for visit in &mut reader {
        let Visit { thread, page, write, instructions, accesses } =
            visit.map_err(|error| in_trace(file, &error))?;
        contents.visits += 1;
        contents.writes += u64::from(write);
        contents.accesses += accesses;
        contents.instructions += instructions;
        threads.insert(thread);
        pages.insert((page, thread));
    }
    contents.threads = threads.len();
    let pages: Vec<u64> = pages.into_iter().map(|(page, _)| page).collect();
    let runs = pages.chunk_by(|a, b| a == b);
    contents.pages = runs.clone().count();
    contents.shared_pages = runs.filter(|run| run.len() > 1).count();
    Ok(contents)
}

pub(crate) fn at(path: &Path, error: &std::io::Error) -> Failure {
    Failure::environment(format!("{}: {error}", path.display()), "see that the file can be read or written")
}

pub(crate) fn in_trace(file: &Path, error: &TraceError) -> Failure {
    let remedy = "farmem trace record --output FILE -- COMMAND records one";
    Failure::environment(format!("{}: {error}", file.display()), remedy)
}

fn in_lines(error: &LackeyError) -> Failure {
    Failure::environment(error.to_string(), "does the program run under `valgrind --tool=lackey`?")
}
