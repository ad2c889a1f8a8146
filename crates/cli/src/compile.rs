//! `farmem compile`: compiles an iterator in C or C++ to a traversal program, and reports its cost.

use crate::args::Compile;
use crate::outcome::{End, Failure};
use crate::output::{self, Report};
use farmem_compiler::clang::{self, ClangError};
use farmem_compiler::{Accelerator, Compiled, CostliestLine, Explanation, explain};
use serde::Serialize;
use std::fs;
use std::path::Path;

/// Program and its cost.
#[derive(Serialize)]
struct Account {
    #[serde(flatten)]
    explanation: Explanation,
    /// Text form of the program.
    text: String,
    /// Encoded form of the program, in hexadecimal.
    code: String,
}

impl Report for Account {
    fn text(&self) -> String {
        let Explanation { name, hash, logic_ps, load_ps, ratio, offload, .. } = &self.explanation;
        let row = |name: &str, value: String| vec![name.to_owned(), value];
        let count = |n: usize| output::count(u64::try_from(n).unwrap_or(u64::MAX));
        let e = &self.explanation;
        let rows = [
            row("load window", format!("{} B", e.window_bytes)),
            row("lines of 64 B", count(e.window_lines)),
            row("scratch pad", format!("{} B", e.scratch_bytes)),
            row("instructions", count(e.instructions)),
            row("on the longest path (N)", count(e.longest_path)),
            row(
                "dearest line of it",
                e.dearest_line.as_ref().map_or_else(|| "no lines: compile with -g".to_owned(), dearest),
            ),
            row("loads and stores of spills", count(e.spills)),
            row("slots left", count(e.slots_left)),
            row("checked when they run", count(e.indexed_accesses)),
            row("stores to the node", e.stores.map_or_else(|| "none: read-only".to_owned(), count)),
            row("RANK and MATCH", count(e.searches)),
            row("code size", format!("{} B", count(e.code_bytes))),
            row("logic, t_c", picoseconds(*logic_ps)),
            row("load, t_d", picoseconds(*load_ps)),
            row("t_c / t_d", format!("{ratio:.2}")),
            row("offload", if *offload { "yes" } else { "no: run it at the host" }.to_owned()),
        ];
        output::table(&[name, ""], &rows) + &format!("program {hash}\n")
    }
}

/// Compiles the iterator. A rejected iterator ends the command with 1 and the reason.
pub(crate) fn run(args: &Compile) -> Result<End, Failure> {
    if let Some(output) = &args.output
        && let (Ok(from), Ok(to)) = (fs::canonicalize(&args.file), fs::canonicalize(output))
        && from == to
    {
        let what = format!("{}: the program would be written over its source", output.display());
        return Err(Failure::environment(what, "name another file with -o"));
    }
    let compiled = match translate(args)? {
        Ok(compiled) => compiled,
        Err(why) => {
            output::note(why.trim_end());
            return Ok(End::Violation);
        }
    };
    if let Some(warning) = reaches_behind(&compiled) {
        output::note(&warning);
    }
    if let Some(file) = &args.output {
        write(file, &compiled)?;
    }
    let accelerator =
        Accelerator { instruction_ps: args.instruction_ps, load_ps: args.load_ps, line_ps: args.line_ps };
    let account = Account {
        explanation: explain(&compiled, &accelerator, args.eta),
        text: compiled.text(),
        code: compiled.program.encoded().iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    if args.json || args.explain {
        output::print(&account, args.json);
    } else if args.output.is_none() {
        output::write_out(&account.text);
    }
    Ok(End::Fine)
}

/// Returns the compiled iterator, or the message for its author.
fn translate(args: &Compile) -> Result<Result<Compiled, String>, Failure> {
    let object = if args.file.extension().is_some_and(|ending| ending == "o") {
        fs::read(&args.file).map_err(|why| unreadable(&args.file, &why))?
    } else {
        // clang reports the same problem, with a longer message.
        let about = fs::metadata(&args.file).map_err(|why| unreadable(&args.file, &why))?;
        if about.is_dir() {
            return Err(unreadable(&args.file, &std::io::ErrorKind::IsADirectory.into()));
        }
        let options = clang::Options { include: args.include.clone(), define: args.define.clone() };
        match clang::compile(&args.file, &options) {
            Ok(object) => {
                if !object.warnings.is_empty() {
                    output::note(object.warnings.trim_end());
                }
                object.bytes
            }
            Err(ClangError::Refused(said)) => return Ok(Err(said)),
            Err(error @ ClangError::Absent(_)) => {
                return Err(Failure::environment(
                    error.to_string(),
                    "a BPF object (.o) is taken without clang",
                ));
            }
            Err(error @ (ClangError::Language(_) | ClangError::Temporary(_))) => {
                return Err(Failure::environment(error.to_string(), ""));
            }
        }
    };
    let compiled = farmem_compiler::compile(&object, args.iterator.as_deref());
    Ok(compiled.map_err(|error| error.to_string()))
}

/// Returns a warning for an iterator that reads more than its node's bytes. An intended longer read needs an
/// array without a length at the node's end.
fn reaches_behind(compiled: &Compiled) -> Option<String> {
    let (node, window) = (compiled.node_bytes?, compiled.program.window_len());
    let name = &compiled.name;
    (window > node).then(|| {
        format!(
            "farmem: warning: {name} loads {window} bytes of a node that is declared with {node}: right for an array without a length at \
             its end, else an index too large"
        )
    })
}

fn unreadable(file: &Path, why: &std::io::Error) -> Failure {
    Failure::environment(format!("{}: {why}", file.display()), "")
}

fn write(file: &Path, compiled: &Compiled) -> Result<(), Failure> {
    let text = file.extension().is_some_and(|ending| ending == "pulse");
    let bytes = if text { compiled.text().into_bytes() } else { compiled.program.encoded().to_owned() };
    fs::write(file, bytes).map_err(|why| unreadable(file, &why))
}

/// Returns a line of the source, and its part of the longest path.
fn dearest(line: &CostliestLine) -> String {
    format!("{}:{}: {}", line.file, line.line, output::count(line.instructions))
}

fn picoseconds(ps: u64) -> String {
    format!("{}.{} ns", ps / 1000, ps % 1000 / 100)
}
