//! A child process that works on command and reports its time and result.
//!
//! Key functions: [`run_child`] for the parent; [`await_begin`] and [`send_report`] for the child. The child waits for a
//! command before it allocates memory, so that all of its memory counts for its cgroup.

use crate::CpuMeter;
use crate::swap::Group;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The command to begin.
const BEGIN: &str = "begin";

/// A child's report.
pub(crate) struct ChildReport {
    pub(crate) nanos: u64,
    pub(crate) sum: u64,
    /// Major page faults, where the child counts them.
    pub(crate) major_faults: Option<u64>,
    /// CPU time of the process, and of the processes that served its far memory, from start to end.
    pub(crate) cpu: Option<Duration>,
    /// The last line on standard error.
    pub(crate) last_line: String,
}

/// Waits for the command. Returns false when the parent is gone.
pub(crate) fn await_begin() -> io::Result<bool> {
    let mut word = String::new();
    io::stdin().lock().read_line(&mut word)?;
    Ok(word.trim_end() == BEGIN)
}

/// Reports the time and the result, and the major faults if they were counted.
pub(crate) fn send_report(took: Duration, sum: u64, major_faults: Option<u64>) -> io::Result<()> {
    let faults = major_faults.map_or_else(String::new, |faults| format!(" {faults}"));
    writeln!(io::stdout(), "{} {sum}{faults}", took.as_nanos())
}

/// Starts a program, in a cgroup if there is one, commands it to work, and waits for its end.
pub(crate) fn run_child(mut command: Command, group: Option<&Group>) -> Result<ChildReport, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let children = CpuMeter::children();
    let cpu = children.begin();
    let mut child =
        command.spawn().map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
    if let Some(group) = group
        && let Err(why) = group.take_in(child.id())
    {
        let _gone = child.kill();
        let _gone = child.wait();
        return Err(why);
    }
    let works = || {
        // A child that has ended cannot read the command and prints no report.
        let _gone = writeln!(child.stdin.take().expect("it was asked for"), "{BEGIN}");
        let mut line = String::new();
        let _none = BufReader::new(child.stdout.take().expect("it was asked for")).read_line(&mut line);
        (line, child.wait_with_output())
    };
    let (line, ended) = if let Some(group) = group { group.add_up(works) } else { works() };
    let ended = ended.map_err(|error| error.to_string())?;
    let cpu = cpu.end();
    let mut numbers = line.split_whitespace().map_while(|word| word.parse().ok());
    let said = String::from_utf8_lossy(&ended.stderr);
    let last_line = said.lines().last().unwrap_or_default().to_owned();
    match (ended.status.success(), numbers.next(), numbers.next()) {
        (true, Some(nanos), Some(sum)) => {
            Ok(ChildReport { nanos, sum, major_faults: numbers.next(), cpu, last_line })
        }
        _ => {
            let last = if last_line.is_empty() { "it said nothing" } else { &last_line };
            Err(format!("{command:?}: {}: {last}", ended.status))
        }
    }
}
