//! A program that knows nothing of far memory sorts numbers, once with all and once with a quarter of its
//! memory local. Where this machine has swap for it, swap is measured beside both.

use super::{ActOutcome, times, to_f64};
use crate::bench::beside_swap;
use crate::outcome::Failure;
use crate::output;
use farmem::RackConfig;
use farmem_bench::run::WORK;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

/// Bytes that the program sorts.
const BYTES: u64 = 32 << 20;
/// Bytes of them that are local under `farmem run`.
const LOCAL: u64 = BYTES / 4;

pub(super) fn play(_: &RackConfig) -> Result<ActOutcome, Failure> {
    let (native, expected) = sort(None)?;
    let (far, found) = sort(Some(LOCAL))?;
    let (native, far) = (to_f64(native), to_f64(far));
    let swap = match beside_swap()? {
        Ok((kind, swap)) => format!("; under {kind}: {} as long as with farmem", times(swap, 1.0)),
        Err(why) => format!("; swap was not measured: {why}"),
    };
    Ok(ActOutcome {
        figures: format!(
            "{} MiB sorted, all local: {}; {} MiB local: {}{swap}",
            BYTES >> 20,
            output::time(native),
            LOCAL >> 20,
            output::time(far)
        ),
        sentence: format!(
            "The program ran unmodified with three quarters of its memory on other machines, and took {} as long.",
            times(far, native)
        ),
        wrong_answers: u64::from(found != expected),
    })
}

/// Returns the nanoseconds of the sort and a sum of its results.
fn sort(local: Option<u64>) -> Result<(u64, u64), Failure> {
    let failed =
        |what: String| Failure::environment(format!("the sorting program: {what}"), "see docs/run.md");
    let itself = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(&itself);
    if let Some(local) = local {
        let (local, far) = (local.to_string(), (4 * BYTES).to_string());
        command.args(["run", "--local", &local, "--far", &far, "--"]).arg(&itself);
    }
    command.args([WORK, "sort", &BYTES.to_string()]);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().map_err(|error| failed(error.to_string()))?;
    // A program that has ended cannot read the command and prints no result.
    let _ended = writeln!(child.stdin.take().expect("a pipe"), "begin");
    let mut line = String::new();
    let _none = BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line);
    let ended = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    let mut numbers = line.split_whitespace().map_while(|word| word.parse().ok());
    match (ended.status.success(), numbers.next(), numbers.next()) {
        (true, Some(nanos), Some(sum)) => Ok((nanos, sum)),
        _ => {
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            Err(failed(format!("{}: {}", ended.status, said.trim())))
        }
    }
}
