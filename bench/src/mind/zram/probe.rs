//! A process with less memory than it uses: it touches its pages, and the system evicts others each time.
//!
//! [`squeezed`] is that process, this program started again; [`ZramProbe`] is the parent's handle. The
//! process waits for a command before it allocates memory, so that all of it counts for its cgroup, and ends
//! with its parent.

use crate::Samples;
use crate::raw::{Swapped, major_faults};
use crate::touch::scattered;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The first argument that makes this program run [`squeezed`]; the pages and the rounds follow.
pub const SQUEEZED: &str = "squeezed";
/// The command to begin.
const BEGIN: &str = "begin";
/// The last line of output, after the times.
const END: &str = "end";

/// Touches each of `pages` pages `rounds` times, and prints the nanoseconds of each touch of an evicted page.
///
/// The process begins on a command on standard input, and keeps its memory until standard input closes.
///
/// # Errors
/// An error when there is no memory, or the parent is gone.
pub fn squeezed(pages: usize, rounds: usize) -> io::Result<()> {
    let mut input = io::stdin().lock();
    let mut word = String::new();
    input.read_line(&mut word)?;
    if word.trim_end() != BEGIN {
        return Ok(());
    }
    if pages == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "some pages are needed"));
    }
    let memory = Swapped::open(pages).map_err(io::Error::other)?;
    // Room for all of them: the timed section allocates nothing.
    let mut times: Vec<Duration> = Vec::with_capacity(pages.saturating_mul(rounds));
    for n in (0..rounds).flat_map(|_| 0..pages) {
        let page = scattered(n, pages);
        let before = major_faults();
        let begin = Instant::now();
        let _byte = std::hint::black_box(memory.read(page));
        let time = begin.elapsed();
        if major_faults() > before {
            times.push(time);
        }
    }
    let mut output = io::BufWriter::new(io::stdout().lock());
    for time in times {
        writeln!(output, "{}", time.as_nanos())?;
    }
    writeln!(output, "{END}")?;
    output.flush()?;
    input.read_to_end(&mut Vec::new()).map(drop)
}

/// Such a process; killed and waited for on drop.
pub(crate) struct ZramProbe {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl ZramProbe {
    /// Starts the process, which allocates no memory yet.
    pub(crate) fn begin(mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{:?}: {error}", command.get_program()))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = BufReader::new(output.expect("it was asked for"));
        Ok(Self { child, input: input.expect("it was asked for"), output })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Commands the process to touch its pages. Returns the times of the evicted ones. The process then still
    /// has its memory.
    pub(crate) fn times(&mut self) -> Result<Samples, String> {
        let mut times = Samples::new();
        // A process that has ended cannot read the command and prints nothing.
        let _gone = writeln!(self.input, "{BEGIN}");
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.output.read_line(&mut line);
            match (read, line.trim_end()) {
                (Ok(1..), END) => return Ok(times),
                (Ok(1..), word) => {
                    let Ok(nanos) = word.parse() else { break };
                    times.record(Duration::from_nanos(nanos));
                }
                _ => break,
            }
        }
        // Whatever the result, the process is of no further use.
        let _gone = self.child.kill();
        let ended = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        Err(format!("the process under the limit did not come to its end: {ended}"))
    }
}

impl Drop for ZramProbe {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> ZramProbe {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        ZramProbe::begin(command).unwrap()
    }

    /// A process that prints times and the end line is believed. A process killed before the end, or with
    /// invalid output, is not.
    #[test]
    fn only_who_comes_to_the_end_is_believed() {
        let times = shell("read word; echo 100; echo 300; echo 200; echo end; read never").times().unwrap();
        assert_eq!((times.len(), times.quantile(0.5)), (3, 200.0));
        let killed = shell("read word; echo 100; kill -9 $$").times().unwrap_err();
        assert!(killed.contains("signal: 9"), "{killed}");
        let ended = shell("echo 100").times().unwrap_err();
        assert!(ended.contains("exit status: 0") || ended.contains("signal: 9"), "{ended}");
        shell("read word; echo 100; echo out of memory; read never").times().unwrap_err();
    }

    #[test]
    fn what_cannot_be_started_is_said() {
        let refused = ZramProbe::begin(Command::new("/no/such/program")).err().unwrap();
        assert!(refused.contains("/no/such/program") && refused.contains("os error 2"), "{refused}");
    }

    /// The command is sent once the process is in its cgroup.
    #[test]
    fn the_word_is_said() {
        let mut squeezed = shell("read word; test $word = begin && echo end; read never");
        assert!(squeezed.times().unwrap().is_empty());
    }
}
