//! A program that works when it is told to, and says how long that took and what came of it.
//!
//! Key calls: [`said`], its parent's side; [`is_told`] and [`say`], its own. It waits for a word before it takes memory, so that all of it counts for the cgroup
//! it is put into.

use crate::CpuMeter;
use crate::swap::Group;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

/// What is said to it when it may begin.
const BEGIN: &str = "begin";

/// What a program says of its work.
pub(crate) struct Said {
    pub(crate) nanos: u64,
    pub(crate) sum: u64,
    /// Pages that it waited for from outside of memory, where it counts them.
    pub(crate) major_faults: Option<u64>,
    /// Of its process, and of those that made far memory for it, from start to end.
    pub(crate) cpu: Option<Duration>,
}

/// Waits for the word; false when the parent is gone.
pub(crate) fn is_told() -> io::Result<bool> {
    let mut word = String::new();
    io::stdin().lock().read_line(&mut word)?;
    Ok(word.trim_end() == BEGIN)
}

/// Says how long the work took, and what came of it; and how many pages it waited for, if that was counted.
pub(crate) fn say(took: Duration, sum: u64, major_faults: Option<u64>) -> io::Result<()> {
    let faults = major_faults.map_or_else(String::new, |faults| format!(" {faults}"));
    writeln!(io::stdout(), "{} {sum}{faults}", took.as_nanos())
}

/// Starts a program, in a cgroup if there is one, has it work, and waits for its end.
pub(crate) fn said(mut command: Command, group: Option<&Group>) -> Result<Said, String> {
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
        // When it has ended it cannot hear, and says nothing either.
        let _gone = writeln!(child.stdin.take().expect("it was asked for"), "{BEGIN}");
        let mut line = String::new();
        let _none = BufReader::new(child.stdout.take().expect("it was asked for")).read_line(&mut line);
        (line, child.wait_with_output())
    };
    let (line, ended) = if let Some(group) = group { group.add_up(works) } else { works() };
    let ended = ended.map_err(|error| error.to_string())?;
    let cpu = cpu.end();
    let mut numbers = line.split_whitespace().map_while(|word| word.parse().ok());
    match (ended.status.success(), numbers.next(), numbers.next()) {
        (true, Some(nanos), Some(sum)) => Ok(Said { nanos, sum, major_faults: numbers.next(), cpu }),
        _ => {
            let said = String::from_utf8_lossy(&ended.stderr);
            let last = said.lines().last().unwrap_or("it said nothing");
            Err(format!("{command:?}: {}: {last}", ended.status))
        }
    }
}
