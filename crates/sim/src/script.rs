//! Scripts: a protocol played by hand, one packet at a time, with the expected trace.
//!
//! A file is a story in `#` lines, then blocks: commands, a line `----`, and the lines that the commands must print, up to
//! an empty line. A command's indented lines belong to it. Time advances only with `tick`, and packets between hosts, switch
//! and nodes move only with `deliver`; the control plane's own packets arrive by themselves.
//!
//! | command | effect |
//! |---|---|
//! | `nodes N hosts M [table T]` | builds a rack and brings it up; T protection entries at the switch |
//! | `host H joins DOMAIN` | opens a session and a connection to each node; old ones are taken down first |
//! | `host H alloc DOMAIN BYTES [on N] as NAME` | allocates; NAME is the address from here on |
//! | `host H free DOMAIN NAME` | frees |
//! | `host H grant DOMAIN NAME BYTES to DOMAIN none, read or read_write` | grants access |
//! | `host H read DOMAIN ADDR BYTES`, `region-read` | begins a READ, a region read through the switch |
//! | `host H write DOMAIN ADDR VALUE..`, `region-write` | begins a WRITE of text and words |
//! | `host H add DOMAIN ADDR N`, `host H swap DOMAIN ADDR OLD NEW` | begins a FETCH_ADD, a CMP_SWAP |
//! | `program NAME` and its text | assembles a program |
//! | `host H traverse DOMAIN PROGRAM ADDR LIMIT WORD..` | begins a traversal with these words of scratch pad |
//! | `deliver [TO]`, `deliver all` | delivers the next packet (to a machine), or all until none is in flight |
//! | `drop [TO]`, `dup [TO]`, `flip BIT [TO]`, `hold [TO]` | loses, duplicates, damages or delays the next packet |
//! | `forge domain N [TO]`, `forge address A [TO]`, `forge key [TO]` | changes the next packet's domain, address or key; reseals it |
//! | `tick 3ms` | lets time pass, and timers with it |
//! | `crash ROLE`, `start ROLE` | crashes or starts a machine |
//! | `show` | lists the packets in flight |
//! | `memory NODE ADDR BYTES` | shows bytes of a memory node |
//! | `explore without GUARD` | finds the shortest trace that breaks the coherence protocol without one of its guards |
//!
//! An address is a number, or a name with `+N`. ROLE and TO are `control`, `switch`, `node N` or `host H`.

mod commands;
mod tokens;

use crate::World;
use commands::Stage;
use std::fmt;

/// The error for a script that cannot be played.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScriptError {
    /// The line number, from 1.
    pub line: usize,
    /// The expected input there.
    pub reason: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl std::error::Error for ScriptError {}

/// The line between commands and their trace.
const RULE: &str = "----";
/// Maximum number of trace lines of one block.
const LINES_MAX: usize = 10_000;

/// Plays a script. Returns the script with the actual trace in place of the expected one.
///
/// # Errors
///
/// [`ScriptError`] at the first invalid command. A refusal of the rack is no error but part of the trace.
pub fn play(text: &str) -> Result<String, ScriptError> {
    let mut stage = Stage::default();
    let mut out = String::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        if line.starts_with('#') || line.trim().is_empty() {
            out.push_str(line);
            out.push('\n');
            continue;
        }
        let mut commands = vec![(number, line.to_owned())];
        loop {
            let Some((number, line)) = lines.next() else {
                return Err(ScriptError {
                    line: number + 1,
                    reason: format!("no {RULE} behind these commands"),
                });
            };
            match commands.last_mut() {
                _ if line == RULE => break,
                Some((_, command)) if line.starts_with(' ') => {
                    command.push('\n');
                    command.push_str(line);
                }
                _ => commands.push((number, line.to_owned())),
            }
        }
        while lines.next_if(|(_, line)| !line.trim().is_empty()).is_some() {}
        for (number, command) in commands {
            out.push_str(&command);
            out.push('\n');
            stage.command(&command).map_err(|reason| ScriptError { line: number + 1, reason })?;
        }
        out.push_str(RULE);
        out.push('\n');
        for line in stage.take_lines() {
            out.push_str(&line);
            out.push('\n');
        }
    }
    stage.world.as_ref().map(World::check);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::play;

    /// Errors of a script name the line.
    #[test]
    fn mistakes_are_told_with_their_line() {
        let wrong = |text| play(text).expect_err("wrong").to_string();
        assert_eq!(wrong("# a story\n\ndance\n----\n"), "line 3: no command `dance`");
        assert_eq!(wrong("deliver\n----\n"), "line 1: build a rack first: nodes N hosts M");
        assert_eq!(wrong("nodes 1 hosts 1\n"), "line 1: no ---- behind these commands");
        assert_eq!(wrong("nodes 1 hosts\n----\n"), "line 1: expected a number, found nothing");
        assert_eq!(wrong("nodes 1 hosts 1\nhost 1 read blue nowhere 8\n----\n"), "line 2: no domain `blue`");
    }

    /// Playing a played script again changes nothing.
    #[test]
    fn a_trace_is_stable() {
        let once = play("# Two packets.\nnodes 1 hosts 1\n----\n\nhost 1 joins blue\nhost 1 alloc blue 1 as v\nhost 1 add blue v 7\ndeliver all\n----\n").expect("plays");
        assert!(once.contains("old value 0"), "{once}");
        assert_eq!(play(&once).as_ref(), Ok(&once));
    }
}
