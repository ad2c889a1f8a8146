//! The `farmem` command: a rack on this machine, a demo, benchmarks, simulations and a doctor.
//!
//! Module `args` parses the arguments, and each command has a module. Each table and its `--json` form come
//! from one struct (`output`).
//!
//! Exit codes: 0 success, 1 violation found, 2 wrong usage or environment. `sim` also uses 3 for unsafe, 4
//! for stuck and 5 for a crashed role. `run` ends with the code of the program.

mod apps;
mod args;
mod bench;
mod compile;
mod demo;
mod doctor;
mod explore;
mod index;
mod join;
mod logging;
mod manage;
mod manual;
mod migrate;
mod object;
mod outcome;
mod output;
mod progress;
mod rack_file;
mod replay;
mod role;
mod run;
mod sim;
mod supervisor;
mod sweep;
mod tour;
mod trace;
mod up;

use args::{Cli, Command, Index, Trace};
use clap::Parser as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use outcome::{End, Failure};
use std::any::Any;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::{panic, thread};

fn main() -> ExitCode {
    let entries = [farmem_nativekvs::ENTRIES, farmem_bench::mind::ENTRIES].concat();
    if let Some(ended) = farmem::worker::begin(&entries) {
        return ended;
    }
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !is_no_thread(info.payload()) {
            usual(info);
        }
    }));
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_a_command(&error),
    };
    if let Some(patience) = cli.wait_for_rack {
        farmem::config::set_patience(patience);
    }
    match panic::catch_unwind(|| carry_out(cli.command)) {
        Ok(result) => exit_code(result),
        Err(payload) if is_no_thread(&*payload) => no_thread(),
        Err(payload) => panic::resume_unwind(payload),
    }
}

fn carry_out(command: Command) -> Result<End, Failure> {
    if needs_threads(&command) && thread::Builder::new().spawn(|| ()).is_err() {
        return Err(Failure::environment(NO_THREAD, NO_THREAD_REMEDY));
    }
    match command {
        Command::Up(args) => up::run(&args),
        Command::Tour(args) => tour::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Webservice(args) => apps::finish(farmem_webservice::run(&args), args.plan.json),
        Command::Nativekvs(args) => apps::finish(farmem_nativekvs::run(&args), args.json),
        Command::Tablestore(args) => apps::finish(farmem_tablestore::run(&args), args.plan.json),
        Command::Orderedkv(args) => apps::finish(farmem_orderedkv::run(&args), args.plan.json),
        Command::Kv(args) => farmem_kv::run(&args).map(|()| End::Fine).map_err(Failure::from),
        Command::Timeseries(args) => apps::finish(farmem_timeseries::run(&args), args.plan.json),
        Command::Graph(command) => apps::finish(farmem_graph::run(&command), command.json()),
        Command::Bench { bench } => bench::run(&bench),
        Command::Join(args) => join::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Status(args) => manage::status(&args),
        Command::Free(args) => manage::free(&args),
        Command::Leave(args) => manage::leave(&args),
        Command::Object(command) => object::run(&command),
        Command::Compile(args) => compile::run(&args),
        Command::Index(Index::Plan(args)) => index::plan(&args),
        Command::Index(Index::Agent(args)) => index::live::agent(&args),
        Command::Index(Index::Top(args)) => index::live::top(&args),
        Command::Index(Index::Load(args)) => index::service::load_file(&args),
        Command::Index(Index::Serve(args)) => index::service::serve(&args),
        Command::Index(Index::Drop(args)) => index::service::drop_store(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Trace(Trace::Record(args)) => trace::record(&args),
        Command::Trace(Trace::Info(args)) => trace::info(&args),
        Command::Trace(Trace::Replay(args)) => replay::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Guard(args) => run::run_guard(&args),
        Command::Manual { directory } => manual::write_pages(&directory),
        Command::Completions { shell } => Ok(manual::print_completions(shell)),
        Command::Role(args) => role::run(&args),
        Command::NativeRole(args) => bench::native_role(&args),
        Command::Calls => bench::calls(),
        Command::ZramProbe { pages, rounds } => bench::squeezed(pages, rounds),
        Command::Work { name, bytes, cpu } => bench::work(&name, bytes, cpu),
        Command::SodaAlone(args) => bench::soda_alone(&args),
    }
}

fn exit_code(result: Result<End, Failure>) -> ExitCode {
    match result {
        Ok(End::Fine) => written(),
        Ok(End::Violation) => ExitCode::from(1),
        Ok(End::Unsafe) => ExitCode::from(3),
        Ok(End::Stuck) => ExitCode::from(4),
        Ok(End::Crash) => ExitCode::from(5),
        Ok(End::Program(code)) => ExitCode::from(code),
        Err(Failure::Farmem(error)) => complain(&error.to_string(), &error.remedy()),
        Err(Failure::Environment { message, remedy }) => complain(&message, &remedy),
    }
}

/// Returns false for commands that work without another thread.
const fn needs_threads(command: &Command) -> bool {
    !matches!(command, Command::Compile(_) | Command::Index(Index::Plan(_)) | Command::Doctor(_))
}

/// Returns true for the panic of the standard library when it cannot start a thread. Such a panic is no bug,
/// and the user gets a plain message instead.
fn is_no_thread(payload: &(dyn Any + Send)) -> bool {
    let text =
        payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref().copied());
    text.is_some_and(|text| text.starts_with("failed to spawn thread"))
}

fn no_thread() -> ExitCode {
    complain(NO_THREAD, NO_THREAD_REMEDY)
}

const NO_THREAD: &str = "the system starts no more threads for this user";
const NO_THREAD_REMEDY: &str =
    "raise the limit of processes (`ulimit -u`, RLIMIT_NPROC, pids.max of the cgroup), or end some";

/// Returns success, or the failure of a write to standard output.
fn written() -> ExitCode {
    match output::not_written() {
        None => ExitCode::SUCCESS,
        Some(error) => complain(
            &format!("standard output cannot be written to: {error}"),
            "nothing else went wrong: give it room, or write elsewhere",
        ),
    }
}

/// Prints help, the version or a usage error, and returns its exit code.
fn not_a_command(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let text = error.render();
        output::write_out(&if io::stdout().is_terminal() {
            text.ansi().to_string()
        } else {
            text.to_string()
        });
        return written();
    }
    // A failure to write to standard error cannot be reported.
    let _ = error.print();
    if let Some(hint) = behind_two_dashes(error, std::env::args()) {
        output::note(&hint);
    }
    ExitCode::from(2)
}

/// Returns a hint for a `farmem run` command line without `--` before the program. Without it, the program's
/// arguments would be parsed as farmem's.
fn behind_two_dashes(error: &clap::Error, args: impl Iterator<Item = String>) -> Option<String> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    let args: Vec<String> = args.collect();
    let at = args.iter().position(|arg| arg == unknown).filter(|at| *at > 1)?;
    let forgot = error.kind() == ErrorKind::UnknownArgument && args[1] == "run" && !unknown.starts_with('-');
    forgot.then(|| {
        let (ours, theirs) = args.split_at(at);
        format!(
            "\n  tip: the program and its arguments stand behind `--`: farmem {} -- {}",
            ours[1..].join(" "),
            theirs.join(" ")
        )
    })
}

fn complain(message: &str, remedy: &str) -> ExitCode {
    output::note(&format!("farmem: {message}"));
    if !remedy.is_empty() {
        output::note(&format!("        {remedy}"));
    }
    ExitCode::from(2)
}
