//! The output of valgrind with `--tool=lackey --trace-mem=yes --trace-sched=yes`: a line for each instruction
//! and access, and one when a thread begins to run.

use super::Event;
use std::ffi::OsString;
use std::io::{self, BufRead};
use std::path::Path;
use thiserror::Error;

/// Returns the arguments to valgrind for a trace into the file or pipe `log`. The program and its arguments
/// follow them.
#[must_use]
pub fn arguments(log: &Path) -> [OsString; 5] {
    let mut log_file = OsString::from("--log-file=");
    log_file.push(log);
    // A child of fork would interleave its output.
    let silent = "--child-silent-after-fork=yes";
    ["--tool=lackey".into(), "--trace-mem=yes".into(), "--trace-sched=yes".into(), silent.into(), log_file]
}

/// The reason for which the output could not be parsed.
#[derive(Debug, Error)]
pub enum LackeyError {
    /// The stream failed.
    #[error("valgrind's output could not be read: {0}")]
    Io(#[from] io::Error),
    /// A line is not one that lackey prints.
    #[error(
        "line {line} of valgrind's output is not lackey's: {text:?}; is another tool or version at work?"
    )]
    Line {
        /// The line number, from 1.
        line: u64,
        /// The beginning of the line.
        text: String,
    },
    /// valgrind ended without having run the program.
    #[error("valgrind traced nothing; it says: {0}")]
    Nothing(String),
}

/// An iterator of the events in valgrind's output.
#[derive(Debug)]
pub struct Accesses<R> {
    lines: R,
    line: u64,
    buf: Vec<u8>,
    /// valgrind's messages before the first event, for the error if none comes.
    said: String,
    begun: bool,
    ended: bool,
}

/// Maximum number of bytes of valgrind's messages that are kept.
const SAID_MAX: usize = 2048;

impl<R: BufRead> Accesses<R> {
    /// Returns a parser of `lines`.
    pub fn new(lines: R) -> Self {
        Self { lines, line: 0, buf: Vec::new(), said: String::new(), begun: false, ended: false }
    }

    fn read(&mut self) -> Result<Option<Event>, LackeyError> {
        loop {
            self.buf.clear();
            self.line += 1;
            if self.lines.read_until(b'\n', &mut self.buf)? == 0 {
                return if self.begun {
                    Ok(None)
                } else {
                    Err(LackeyError::Nothing(self.said.trim().to_owned()))
                };
            }
            let line = self.buf.trim_ascii_end();
            match classify(line) {
                Line::Event(event) => {
                    self.begun |= matches!(event, Event::Access { .. } | Event::Instruction);
                    return Ok(Some(event));
                }
                Line::Comment => self.note(),
                // A program that is killed leaves half a line behind.
                Line::Strange if !self.buf.ends_with(b"\n") && self.begun => return Ok(None),
                Line::Strange => {
                    let text = String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned();
                    return Err(LackeyError::Line { line: self.line, text });
                }
            }
        }
    }

    fn note(&mut self) {
        if !self.begun && self.said.len() < SAID_MAX {
            self.said += &String::from_utf8_lossy(&self.buf);
        }
    }
}

impl<R: BufRead> Iterator for Accesses<R> {
    type Item = Result<Event, LackeyError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.read().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

enum Line {
    Event(Event),
    Comment,
    Strange,
}

fn classify(line: &[u8]) -> Line {
    let event = match line {
        [b'I', b' ', b' ', rest @ ..] => span(rest).map(|_| Event::Instruction),
        [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] => {
            span(rest).map(|(addr, len)| Event::Access { addr, len, write: *kind != b'L' })
        }
        [b'-', b'-', ..] => match acquired(line) {
            Some(thread) => Some(Event::Thread(thread)),
            None => return Line::Comment,
        },
        [] | [b'=', b'=', ..] | [b'*', b'*', ..] => return Line::Comment,
        _ => None,
    };
    event.map_or(Line::Strange, Line::Event)
}

/// Parses `04025310,8`: an address in hex, and a number of bytes.
fn span(text: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(text).ok()?;
    let (addr, len) = text.split_once(',')?;
    let (addr, len) = (u64::from_str_radix(addr, 16).ok()?, len.parse().ok()?);
    (len > 0).then_some((addr, len))
}

/// Parses `--4711--   SCHED[3]:  acquired lock (...)`: thread 3 runs.
fn acquired(line: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(line).ok()?;
    let (_, rest) = line.split_once("SCHED[")?;
    let (thread, rest) = rest.split_once("]:")?;
    rest.trim_start().starts_with("acquired lock").then(|| thread.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str) -> Result<Vec<Event>, LackeyError> {
        Accesses::new(text.as_bytes()).collect()
    }

    #[test]
    fn lines_become_events() {
        let text = "==7== Lackey, an example Valgrind tool\n\
                    --7--   SCHED[1]:  acquired lock (thread_wrapper(starting new thread))\n\
                    --7--   SCHED[1]: entering VG_(scheduler)\n\
                    I  04013a8b,3\n \
                     L 1fff000a40,8\n \
                     S 1ffeffff,4\n \
                     M 0421c7cc,16\n\
                    --7--   SCHED[12]:  acquired lock (VG_(client_syscall)[async])\n\
                    ==7== \n";
        let access = |addr, len, write| Event::Access { addr, len, write };
        let want = [
            Event::Thread(1),
            Event::Instruction,
            access(0x1f_ff00_0a40, 8, false),
            access(0x1ffe_ffff, 4, true),
            access(0x0421_c7cc, 16, true),
            Event::Thread(12),
        ];
        assert_eq!(events(text).expect("the lines are lackey's"), want);
    }

    #[test]
    fn other_lines_are_named() {
        let error = events("I  04013a8b,3\nI  04013a8b,x\n").expect_err("no number");
        assert!(error.to_string().contains("line 2") && error.to_string().contains("04013a8b,x"), "{error}");
        for strange in [" L 10,0\n", " L ,8\n", " X 10,8\n", "I 10,8\n", "hello\n"] {
            assert!(
                matches!(events(&format!("I  1,1\n{strange}")), Err(LackeyError::Line { line: 2, .. })),
                "{strange:?}"
            );
        }
    }

    #[test]
    fn the_half_line_of_a_killed_program_ends_the_trace() {
        assert_eq!(events("I  1,1\n L 1ff").expect("it was begun"), [Event::Instruction]);
    }

    #[test]
    fn a_valgrind_that_runs_nothing_is_quoted() {
        let error = events("==9== no such program\n").expect_err("nothing ran");
        assert!(error.to_string().contains("no such program"), "{error}");
    }
}
