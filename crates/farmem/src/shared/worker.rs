//! Programs across hosts: a part of a program that runs as another process, on another host, in the same address space.
//!
//! Key calls: [`SharedSpace::spawn`], which starts this very program again as a worker, and [`begin`], with which a program becomes one. All that
//! a worker needs is in its command line, so any way of starting a command on a machine will do ([`SharedSpace::spawn_by`]: ssh, say).
//! What it is to work on it is told by addresses, which mean the same to it.

use super::{ShareOptions, SharedSpace};
use crate::{Error, Rack};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, ExitCode, Stdio};

/// The first argument of a worker.
const WORKER: &str = "farmem-worker";
/// What stands before a worker's answer, on its standard output.
const ANSWER: &str = "farmem-worker answers ";

/// A part of a program that runs as a worker: it gets its space and its numbers, and answers one.
pub type Entry = fn(&SharedSpace, &[u64]) -> Result<u64, Error>;

/// A worker that was started. Dropped without [`Worker::join`], it goes on by itself.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    entry: String,
}

impl Worker {
    /// Waits until it has ended, and left the rack; answers what its entry answered.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when it ended without an answer.
    pub fn join(mut self) -> Result<u64, Error> {
        let mut answer = None;
        if let Some(output) = self.child.stdout.take() {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                answer = line.strip_prefix(ANSWER).and_then(|number| number.parse().ok()).or(answer);
            }
        }
        let ended = self.child.wait();
        answer.ok_or_else(|| {
            let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            Error::Unreachable { what: format!("worker {:?}, which ended without one: {how}", self.entry) }
        })
    }

    /// The process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it at once. What it has written and not given up is lost.
    ///
    /// # Errors
    /// What the system says.
    pub fn kill(&mut self) -> std::io::Result<()> {
        self.child.kill()
    }
}

impl SharedSpace {
    /// Starts this program again as a worker that runs `entry`, at another of the rack's addresses of this machine.
    ///
    /// # Errors
    /// [`Error::System`] when the process cannot be started.
    pub fn spawn(&self, entry: &str, args: &[u64]) -> Result<Worker, Error> {
        let itself = std::env::current_exe()
            .map_err(|source| Error::System { what: "cannot find this program itself".into(), source })?;
        self.spawn_by(Command::new(itself), entry, args)
    }

    /// As [`SharedSpace::spawn`], by another command, to which the worker's arguments are appended: `ssh HOST PROGRAM`, where the rack's
    /// description is found by the same path and lists addresses of that machine.
    ///
    /// # Errors
    /// As [`SharedSpace::spawn`].
    pub fn spawn_by(&self, mut command: Command, entry: &str, args: &[u64]) -> Result<Worker, Error> {
        command.args(self.worker_arguments(entry, args)).stdout(Stdio::piped());
        let child = command
            .spawn()
            .map_err(|source| Error::System { what: format!("cannot start worker {entry:?}"), source })?;
        Ok(Worker { child, entry: entry.to_owned() })
    }

    /// What a worker is told.
    #[must_use]
    pub fn worker_arguments(&self, entry: &str, args: &[u64]) -> Vec<OsString> {
        let limit = self.options.window.local_limit.to_string();
        let mut all: Vec<OsString> = vec![WORKER.into(), self.file.clone().into()];
        all.extend([self.domain(), limit.as_str(), entry].map(OsString::from));
        all.extend(args.iter().map(|arg| OsString::from(arg.to_string())));
        all
    }
}

/// At the start of a program: when its arguments are a worker's, runs the entry they name and answers with what the process is to exit with. `None`
/// when the program is not a worker.
///
/// A worker has the usual options, with its parent's local limit.
#[must_use]
pub fn begin(entries: &[(&str, Entry)]) -> Option<ExitCode> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if args.first().is_none_or(|first| first != WORKER) {
        return None;
    }
    let answer = run(&args[1..], entries);
    Some(match answer {
        Ok(answer) => {
            // Who started it may be gone.
            let _gone = writeln!(std::io::stdout(), "{ANSWER}{answer}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            let _gone = writeln!(std::io::stderr(), "farmem: a worker: {why}");
            ExitCode::from(2)
        }
    })
}

fn run(args: &[OsString], entries: &[(&str, Entry)]) -> Result<u64, String> {
    let [file, domain, limit, entry, numbers @ ..] = args else {
        return Err(format!("expected {WORKER} RACK.TOML DOMAIN BYTES ENTRY NUMBER..."));
    };
    let number = |text: &OsStr| {
        let number = text.to_str().and_then(|text| text.parse::<u64>().ok());
        number.ok_or_else(|| format!("{text:?} is no number"))
    };
    let numbers = numbers.iter().map(|text| number(text)).collect::<Result<Vec<u64>, String>>()?;
    let run = entries.iter().find(|(name, _)| *entry == **name);
    let (_, run) = run.ok_or_else(|| format!("this program has no entry {entry:?}"))?;
    let (domain, limit) = (domain.to_str().ok_or("a domain's name is UTF-8")?, number(limit)?);
    let shown = |error: Error| error.to_string();
    let space =
        Rack::open(file).and_then(|rack| rack.share(domain, ShareOptions::new(limit))).map_err(shown)?;
    run(&space, &numbers).and_then(|answer| space.write_back().map(|()| answer)).map_err(shown)
}
