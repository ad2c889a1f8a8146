//! Programs across hosts: a part of a program that runs as another process, on another host, in the same
//! address space.
//!
//! Key calls: [`SharedSpace::spawn`], which starts the running program again as a worker, and [`begin`], by
//! which a program becomes a worker. A worker gets everything by its command line, so any method to start a
//! command on a machine works ([`SharedSpace::spawn_by`], for example with ssh). Addresses in the arguments
//! have the same meaning for the worker. The command line contains only bytes that no shell changes, because
//! ssh passes it to a shell.

use super::{ShareOptions, SharedSpace};
use farmem_client::{Error, Rack};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc::channel;
use std::thread::scope;

/// The first argument of a worker.
const WORKER: &str = "farmem-worker";
/// Prefix of a worker's result on its standard output.
const ANSWER: &str = "farmem-worker answers ";

/// The function of a worker: it gets the worker's space and numbers, and returns a number.
pub type Entry = fn(&SharedSpace, &[u64]) -> Result<u64, Error>;

/// A worker process. After a drop without [`Worker::join`], the process continues by itself.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    entry: String,
}

impl Worker {
    /// Waits until the worker has ended and left the rack. Returns the result of its entry.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the worker ended without a result, with its exit status. The worker prints
    /// the reason on standard error, which is this program's own. A command that starts the worker elsewhere,
    /// such as ssh, may end so too.
    pub fn join(mut self) -> Result<u64, Error> {
        let answer = listen(self.child.stdout.take());
        self.ended(answer)
    }

    /// Waits for all workers as [`Worker::join`] does. Workers may wait for each other: if one of them ends
    /// without a result, this function kills the others at once.
    ///
    /// # Errors
    /// The error of [`Worker::join`] for the first worker that ended without a result.
    pub fn join_all(workers: impl IntoIterator<Item = Self>) -> Result<Vec<u64>, Error> {
        let mut workers: Vec<Self> = workers.into_iter().collect();
        let outputs: Vec<_> = workers.iter_mut().map(|worker| worker.child.stdout.take()).collect();
        let mut answers = vec![None; workers.len()];
        let mut first = None;
        scope(|scope| {
            let (say, said) = channel();
            for (n, output) in outputs.into_iter().enumerate() {
                let say = say.clone();
                scope.spawn(move || say.send((n, listen(output))));
            }
            drop(say);
            for (n, answer) in said {
                answers[n] = answer;
                if answer.is_none() && first.is_none() {
                    first = Some(n);
                    // A signal to an ended worker has no effect.
                    workers.iter_mut().for_each(|worker| drop(worker.kill()));
                }
            }
        });
        let mut ended: Vec<_> =
            workers.into_iter().zip(answers).map(|(worker, answer)| worker.ended(answer)).collect();
        if let Some(first) = first {
            return Err(ended.swap_remove(first).expect_err("it gave no answer"));
        }
        ended.into_iter().collect()
    }

    fn ended(mut self, answer: Option<u64>) -> Result<u64, Error> {
        let ended = self.child.wait();
        answer.ok_or_else(|| {
            let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            Error::Unreachable { what: format!("worker {:?}, which ended without one: {how}", self.entry) }
        })
    }

    /// Kills the worker. Its changed pages that are not written back are lost.
    ///
    /// # Errors
    /// The system's error.
    pub fn kill(&mut self) -> std::io::Result<()> {
        self.child.kill()
    }
}

impl SharedSpace {
    /// Starts the running program again as a worker that runs `entry`, at another of the rack's addresses of
    /// this machine.
    ///
    /// # Errors
    /// [`Error::System`] if the process cannot be started.
    pub fn spawn(&self, entry: &str, args: &[u64]) -> Result<Worker, Error> {
        let itself = std::env::current_exe()
            .map_err(|source| Error::System { what: "cannot find this program itself".into(), source })?;
        self.spawn_by(Command::new(itself), entry, args)
    }

    /// Starts a worker as [`SharedSpace::spawn`] does, by another command, to which the worker's arguments
    /// are appended: for example `ssh HOST PROGRAM`. The rack's description must have the same path there and
    /// list addresses of that machine. The command gets no standard input, because ssh would take this
    /// program's.
    ///
    /// # Errors
    /// The errors of [`SharedSpace::spawn`]. [`Worker::join`] reports a command that starts and then fails.
    pub fn spawn_by(&self, mut command: Command, entry: &str, args: &[u64]) -> Result<Worker, Error> {
        command.args(self.worker_arguments(entry, args)).stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.spawn().map_err(|source| {
            let program = command.get_program();
            Error::System { what: format!("cannot start worker {entry:?} by {program:?}"), source }
        })?;
        Ok(Worker { child, entry: entry.to_owned() })
    }

    /// Returns the arguments of a worker, without characters that a shell would interpret.
    #[must_use]
    pub fn worker_arguments(&self, entry: &str, args: &[u64]) -> Vec<OsString> {
        let limit = self.options.window.local_limit.to_string();
        // Another host may start in another directory.
        let file = std::path::absolute(&self.file).unwrap_or_else(|_| self.file.clone());
        let mut all: Vec<OsString> = vec![WORKER.into(), plain(file.as_os_str())];
        all.extend([self.domain(), limit.as_str(), entry].map(|word| plain(OsStr::new(word))));
        all.extend(args.iter().map(|arg| OsString::from(arg.to_string())));
        all
    }
}

/// Runs the entry that the arguments name, if this process was started as a worker. Returns the exit code for
/// the process; `None` if the process is not a worker. A program calls this function at its start.
///
/// A worker has default options, with its parent's local limit.
#[must_use]
pub fn begin(entries: &[(&str, Entry)]) -> Option<ExitCode> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if args.first().is_none_or(|first| first != WORKER) {
        return None;
    }
    let answer = run(&args[1..], entries);
    Some(match answer {
        Ok(answer) => {
            // The process that started the worker may have ended.
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
        number.ok_or_else(|| format!("{text:?} is not a number"))
    };
    let numbers = numbers.iter().map(|text| number(text)).collect::<Result<Vec<u64>, String>>()?;
    let [file, domain, entry] = [file, domain, entry].map(|word| meant(word));
    let run = entries.iter().find(|(name, _)| *entry == **name);
    let (_, run) = run.ok_or_else(|| format!("this program has no entry {entry:?}"))?;
    let (domain, limit) = (domain.to_str().ok_or("a domain's name is UTF-8")?, number(limit)?);
    let shown = |error: Error| error.to_string();
    let space = Rack::open(file)
        .and_then(|rack| SharedSpace::join(&rack, domain, ShareOptions::new(limit)))
        .map_err(shown)?;
    run(&space, &numbers).and_then(|answer| space.write_back().map(|()| answer)).map_err(shown)
}

/// Returns the worker's result, after its output has ended.
fn listen(output: Option<ChildStdout>) -> Option<u64> {
    let mut answer = None;
    // The loop skips other lines of the worker, and a remote host's login messages.
    for line in BufReader::new(output?).split(b'\n').map_while(Result::ok) {
        answer = answered(&line).or(answer);
    }
    answer
}

/// Parses a worker's result, if the line is one.
fn answered(line: &[u8]) -> Option<u64> {
    std::str::from_utf8(line).ok()?.strip_prefix(ANSWER)?.parse().ok()
}

/// The characters that are written as `%` and two digits, so that no shell splits or interprets the text.
const WRITTEN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'_').remove(b'-');

/// Encodes a word so that no shell changes it.
fn plain(word: &OsStr) -> OsString {
    percent_encode(word.as_bytes(), WRITTEN).to_string().into()
}

/// Decodes a word of [`plain`].
fn meant(plain: &OsStr) -> OsString {
    OsString::from_vec(percent_decode(plain.as_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A name or a path of any bytes passes through a shell unchanged.
        #[test]
        fn a_word_is_meant_as_it_was(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let word = OsString::from_vec(bytes);
            let plain = plain(&word);
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-%".contains(c);
            prop_assert!(plain.to_str().expect("ASCII").chars().all(is_plain), "{:?}", plain);
            prop_assert_eq!(meant(&plain), word);
        }
    }

    #[test]
    fn a_common_word_is_readable() {
        assert_eq!(plain(OsStr::new("/etc/rack-1.toml")), "/etc/rack-1.toml");
        assert_eq!(plain(OsStr::new("touch pages; rm *")), "touch%20pages%3B%20rm%20%2A");
    }

    #[test]
    fn only_an_answer_is_one() {
        assert_eq!(answered(b"farmem-worker answers 42"), Some(42));
        for other in [&b"farmem-worker answers"[..], b"farmem-worker answers -1", b"42", b"\xff", b""] {
            assert_eq!(answered(other), None);
        }
    }

    /// A worker with invalid arguments reports the fault, before it opens anything.
    #[test]
    fn wrong_arguments_are_named() {
        let told = |args: &[&str]| {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            run(&args, &[("sum", |_, _| Ok(0))]).unwrap_err()
        };
        assert!(told(&["rack.toml"]).contains("RACK.TOML DOMAIN BYTES ENTRY"));
        assert!(told(&["rack.toml", "d", "4096", "sum", "1", "two"]).contains("\"two\" is not a number"));
        assert!(told(&["rack.toml", "d", "4096", "touch%20pages"]).contains("no entry \"touch pages\""));
        assert!(told(&["rack.toml", "d", "much", "sum"]).contains("\"much\" is not a number"));
        assert!(told(&["/no/such/rack.toml", "d", "4096", "sum"]).contains("/no/such/rack.toml"));
    }
}
