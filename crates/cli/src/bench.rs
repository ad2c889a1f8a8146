//! `farmem bench`: the racks of the benchmarks, and their output while they run. The format of results is in
//! farmem-bench.

mod racks;

use crate::args::{Bench as Args, BenchRows, NativeRole, SodaAlone};
use crate::outcome::{End, Failure};
use crate::{output, progress, role};
use farmem::serve::{Runner, node_running};
use farmem::{LinkProfile, Transport};
use farmem_bench::pd3::KEYS_MIN;
use farmem_bench::{Bench, Machine, Native, Outcome, Plan, Progress, Results, Row, link_late, run_bench};
use indicatif::ProgressBar;
use racks::OwnRacks;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Runs a benchmark.
pub(crate) fn run(args: &Args) -> Result<End, Failure> {
    let own = LinkProfile::NONE;
    let (bench, rows, link, plots) = match args {
        Args::Net(args) => (Bench::Net, &args.rows, args.links.link, None),
        Args::Mind(args) => (Bench::Mind, &args.rows, args.links.link, None),
        Args::Pulse(args) => (Bench::Pulse, &args.rows, args.links.link, args.plots.as_ref()),
        Args::Fat(args) => (Bench::Fat, &args.rows, args.links.link, args.plots.as_ref()),
        Args::Soda(args) => (Bench::Soda, &args.rows, args.links.link, args.plots.as_ref()),
        // These have links of their own, or none: the racks of programs run in the pager's process.
        Args::Kv(args) => (Bench::Kv, &args.rows, own, args.plots.as_ref()),
        Args::Pd3(args) => (Bench::Pd3, &args.rows, own, args.plots.as_ref()),
        Args::Run(rows) => (Bench::Run, rows, own, None),
    };
    let keys = if let Args::Pd3(args) = args { args.keys } else { None };
    if keys.is_some_and(|keys| keys < KEYS_MIN) {
        let remedy = format!("choose {KEYS_MIN} or more");
        return Err(Failure::environment("--keys is too small to measure anything", remedy));
    }
    if let Some(directory) = plots {
        check_writable(directory)?;
    }
    let BenchRows { json, quick, only } = rows;
    let only = only.clone().unwrap_or_default();
    let plan = Plan { quick: *quick, only, plots: plots.cloned(), keys };
    let transport = if bench == Bench::Pd3 { Transport::Shm } else { Transport::Udp };
    let screen = Screen::begin(bench.name(), *json, link);
    let outcome = run_bench(bench, &plan, &mut OwnRacks { transport, link }, |told| screen.hear(told))?;
    screen.end(&plan.only, outcome)
}

/// Measures a program with a quarter of its memory local under swap, beside the same program under `farmem
/// run`. Returns the kind of swap and how many times as long the program took under swap, or the reason why
/// this machine measures neither swap file nor zram.
pub(crate) fn beside_swap() -> Result<Result<(&'static str, f64), String>, Failure> {
    let plan = Plan { quick: true, only: "run.over4.sort".into(), ..Plan::default() };
    let mut racks = OwnRacks { transport: Transport::Udp, link: LinkProfile::NONE };
    let rows = run_bench(Bench::Run, &plan, &mut racks, |_| {})?.rows;
    let kind = |row: &Row| if row.id.ends_with(".zram") { "zram" } else { "a swap file" };
    let measured = rows.iter().find_map(|row| Some((kind(row), 1.0 / row.ratio?)));
    let why = || rows.first().and_then(|row| row.why.clone()).unwrap_or_default();
    Ok(measured.ok_or_else(why))
}

/// Checks that figures can be written to the directory. Figures are drawn after all measurements, so the
/// check comes first.
fn check_writable(directory: &Path) -> Result<(), Failure> {
    let drawable = std::fs::create_dir_all(directory).and_then(|()| tempfile::tempfile_in(directory));
    drawable.map(drop).map_err(|error| {
        let what = format!("cannot draw into {}: {error}", directory.display());
        Failure::environment(what, "name a directory that can be written to with --plots")
    })
}

/// Runs `farmem native-role`, a memory node with native code in place of known programs.
pub(crate) fn native_role(args: &NativeRole) -> Result<End, Failure> {
    let compile = Native::stretched(Duration::from_nanos(args.stretch_ns));
    let runner = Runner { compile, workspaces: args.workspaces.max(1) };
    role::run_with(&args.role, |config, node, serving| node_running(config, node, runner, serving))
}

/// Runs `farmem squeezed`, the benchmark process under a memory limit.
pub(crate) fn squeezed(pages: usize, rounds: usize) -> Result<End, Failure> {
    ended("benchmark process under a memory limit", farmem_bench::mind::squeezed(pages, rounds))
}

/// Runs `farmem calls`, the benchmark process that makes system calls.
pub(crate) fn calls() -> Result<End, Failure> {
    ended("benchmark process that makes system calls", farmem_bench::mind::calls())
}

/// Runs `farmem work`, the program of the benchmark `run`.
pub(crate) fn work(name: &str, bytes: usize, cpu: Option<usize>) -> Result<End, Failure> {
    ended("benchmark's program", farmem_bench::run::work(name, bytes, cpu))
}

/// Runs `farmem soda-alone`, the graph application under a memory limit.
pub(crate) fn soda_alone(args: &SodaAlone) -> Result<End, Failure> {
    let SodaAlone { file, app, system, rounds, sources } = args;
    let run = farmem_bench::soda::alone(file, app, system, *rounds, sources);
    ended("benchmark process under a memory limit", run)
}

fn ended(what: &str, result: io::Result<()>) -> Result<End, Failure> {
    let failed = |error| Failure::environment(format!("the {what} failed: {error}"), "");
    result.map(|()| End::Fine).map_err(failed)
}

/// Output of a benchmark: a table that grows row by row, or one JSON object at the end. The current
/// measurement is shown on stderr.
struct Screen {
    bench: &'static str,
    machine: Machine,
    link: LinkProfile,
    json: bool,
    bar: ProgressBar,
}

impl Screen {
    fn begin(bench: &'static str, json: bool, link: LinkProfile) -> Self {
        let screen = Self { bench, machine: Machine::begin(), link, json, bar: progress::stages(bench) };
        let (on, heading) = (&screen.machine, line(&HEADING) + &line(&RULE));
        screen.write(&format!("bench {bench}: {on}, link {link}\n{heading}"));
        screen
    }

    fn hear(&self, told: Progress<'_>) {
        match told {
            Progress::Begins(what) => {
                self.bar.set_message(format!("bench {}: {what}", self.bench));
                self.bar.tick();
            }
            Progress::Measured(row) => self.write(&line(&cells(row))),
        }
    }

    /// Prints the notes below the rows, or all rows as JSON. Wrong answers in `wrong` make the end a
    /// violation. Without rows, the error names `only`, which is mistyped or excluded by `--quick`.
    fn end(mut self, only: &str, Outcome { rows, wrong }: Outcome) -> Result<End, Failure> {
        if rows.is_empty() {
            self.bar.finish_and_clear();
            let what = format!("nothing was measured: no row's id begins with {only:?}");
            let remedy =
                "docs/results/ lists the ids, such as pulse.node.hash.hops; with --quick there are fewer";
            return Err(Failure::environment(what, remedy));
        }
        let load = self.machine.end();
        let mut text = format!(
            "value: median; ratio: value / baseline, both from this run; cpu: of all threads at work, for an operation; {load}\n"
        );
        if !self.link.is_none() {
            text += "baselines that have no rack in them are not held back by the link's profile\n";
        }
        let link_late = link_late();
        if let Some(late) = link_late {
            let late = output::time(late);
            text += &format!(
                "frames of this process left {late} later than the link's profile wants, on average\n"
            );
        }
        for row in &rows {
            match (&row.why, row.value) {
                (Some(why), None) => text += &format!("{} was not measured: {why}\n", row.id),
                (Some(why), Some(_)) => text += &format!("{}: {why}\n", row.id),
                (None, _) => {}
            }
        }
        self.write(&text);
        self.bar.finish_and_clear();
        if self.json {
            let link = self.link.to_string();
            output::print_json(&Results { bench: self.bench, machine: self.machine, link, link_late, rows });
        }
        if wrong > 0 {
            output::note(&format!("farmem: {} answers were wrong", output::count(wrong)));
            return Ok(End::Violation);
        }
        Ok(End::Fine)
    }

    /// Writes a part of the table, without disturbing the status line on stderr.
    fn write(&self, text: &str) {
        if !self.json {
            self.bar.suspend(|| output::write_out(text));
        }
    }
}

const HEADING: [&str; COLUMNS] = ["id", "value", "baseline", "ratio", "p99", "cpu", "n"];
const RULE: [&str; COLUMNS] = ["---"; COLUMNS];
const COLUMNS: usize = 7;
/// Width of each column. Rows are printed before the widest one is known, and a wider cell shifts the
/// following cells.
const WIDTHS: [usize; COLUMNS] = [60, 16, 16, 8, 10, 9, 11];

fn line<S: AsRef<str>>(cells: &[S; COLUMNS]) -> String {
    let mut text = String::from("|");
    for (n, (cell, width)) in cells.iter().zip(WIDTHS).enumerate() {
        let cell = cell.as_ref();
        text += &if n == 0 { format!(" {cell:<width$} |") } else { format!(" {cell:>width$} |") };
    }
    text + "\n"
}

fn cells(row: &Row) -> [String; COLUMNS] {
    let show = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |f| in_unit(f, row.unit));
    [
        row.id.clone(),
        show(row.value),
        show(row.baseline),
        row.ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}")),
        show(row.p99),
        row.cpu.map_or_else(|| "-".to_owned(), output::time),
        output::count(row.n),
    ]
}

fn in_unit(figure: f64, unit: &str) -> String {
    match unit {
        "ns" => output::time(figure),
        "1/s" => output::rate(figure),
        _ => format!("{figure:.2} {unit}"),
    }
}
