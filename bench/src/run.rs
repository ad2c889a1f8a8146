//! `farmem run` compared with the same program without it: with all of its memory local, and with a quarter
//! local, beside swap. Also the cost of one page, by the CPUs of program and pager (`fault`, `place`), and programs
//! with heaps of their own (`managed`).
//!
//! Key function: [`run`]. The program is this one, started again ([`work`]), and Python for NumPy's
//! temporaries. Native and far runs alternate, so that disturbances affect both. Under swap the program is in
//! a memory cgroup whose limit is the far program's local limit.

mod fault;
mod managed;
mod place;
mod work;

pub use work::{WORK, work};

use crate::child::{ChildReport, run_child};
use crate::swap::{Group, SwapFile, Zram};
use crate::{CpuTime, Outcome, Plan, Progress, Row, Sheet, to_f64};
use std::process::Command;
use work::Kind;

/// 3,000 temporaries of 1.2 MB at the full size.
const NUMPY: &str = "import sys, time\n\
    import numpy as np\n\
    sys.stdin.readline()\n\
    count = int(sys.argv[1]) * 3000 // (128 << 20)\n\
    a = np.arange(150_000, dtype=np.float64)\n\
    begin, total = time.perf_counter_ns(), 0.0\n\
    for n in range(count):\n\
    \x20   total += float((a + n)[n])\n\
    print(time.perf_counter_ns() - begin, int(total))\n";

/// The local share of the memory is one in this many, where not all of it is local.
const PART: u64 = 4;

/// Works that fit.
const FIT: [(&str, Program); 6] = [
    ("malloc", Program::Work(Kind::Malloc)),
    ("numpy", Program::NumPy),
    ("small", Program::Work(Kind::Small)),
    ("realloc", Program::Work(Kind::Realloc)),
    ("fill", Program::Work(Kind::Fill)),
    ("scan", Program::Work(Kind::Scan)),
];

/// Works that do not fit.
const OVER: [Kind; 6] =
    [Kind::Fill, Kind::Seq, Kind::RandomRead, Kind::RandomWrite, Kind::Sort, Kind::PageRank];

#[derive(Clone, Copy, Debug)]
enum Program {
    Work(Kind),
    /// A kind of work on one CPU.
    On(Kind, usize),
    NumPy,
}

/// The location of a program's memory.
enum MemoryLocation<'a> {
    Native,
    /// Under `farmem run`, with this many local bytes and this `--placement`.
    Far {
        local: u64,
        placement: &'static str,
    },
    /// In a cgroup.
    Limited(&'a Group),
}

impl MemoryLocation<'_> {
    /// Returns the location under `farmem run` with its default placement.
    const fn far(local: u64) -> Self {
        Self::Far { local, placement: "auto" }
    }
}

/// Runs the measurements and reports each row.
pub fn run(plan: &Plan, tell: &mut dyn FnMut(Progress<'_>)) -> Outcome {
    let mut sheet = Sheet::new(&plan.only, tell);
    let (bytes, rounds) = if plan.quick { (16 << 20, 1) } else { (128 << 20, 5) };
    for (name, program) in FIT {
        let id = format!("run.fit.{name}");
        if !plan.wants(&id) {
            continue;
        }
        sheet.begins(&id);
        fit(&id, program, bytes, rounds, &mut sheet);
    }
    fault::measure(bytes, rounds, |id| plan.has(id), &mut sheet);
    place::measure(bytes, rounds, |id| plan.has(id), &mut sheet);
    managed::measure(bytes, rounds.min(3), |id| plan.has(id), &mut sheet);
    let swaps = ["", ".zram"].map(|end| move |kind: Kind| format!("run.over4.{}{end}", kind.name()));
    for (which, id) in swaps.into_iter().enumerate() {
        let wanted: Vec<Kind> = OVER.into_iter().filter(|&kind| plan.has(&id(kind))).collect();
        if wanted.is_empty() {
            continue;
        }
        sheet.begins(&id(wanted[0]));
        match Swap::begin(which == 1, 2 * bytes) {
            Ok(swap) => {
                for kind in wanted {
                    sheet.begins(&id(kind));
                    over(&id(kind), kind, bytes, rounds.min(3), &swap, &mut sheet);
                }
            }
            Err(why) => sheet.add(wanted.into_iter().map(|kind| Row::absent(id(kind), "ns", why.clone()))),
        }
    }
    sheet.end()
}

/// The swap target, while this lives.
enum Swap {
    File(SwapFile),
    Zram(Zram),
}

impl Swap {
    fn begin(compressed: bool, len: u64) -> Result<Self, String> {
        if compressed { Zram::begin(len).map(Self::Zram) } else { SwapFile::begin(len).map(Self::File) }
    }

    fn name(&self) -> String {
        match self {
            Self::File(file) => format!("a swap file ({})", file.path()),
            Self::Zram(zram) => format!("zram ({})", zram.path()),
        }
    }
}

/// Measures a program whose local limit is twice its memory.
fn fit(id: &str, program: Program, bytes: u64, rounds: usize, sheet: &mut Sheet<'_>) {
    let pair = || {
        let native = start(program, bytes, &MemoryLocation::Native)?;
        Ok((native, start(program, bytes, &MemoryLocation::far(2 * bytes))?))
    };
    if let Some(row) = compare(id, rounds, sheet, pair) {
        let why = format!("{} MiB, all of it here; beside native", bytes >> 20);
        sheet.add([Row { why: Some(why), ..row }]);
    }
}

fn over(id: &str, kind: Kind, bytes: u64, rounds: usize, swap: &Swap, sheet: &mut Sheet<'_>) {
    let (local, program) = (bytes / PART, Program::Work(kind));
    let mut limits = String::new();
    let pair = || {
        let far = start(program, bytes, &MemoryLocation::far(local))?;
        let group = Group::begin(local)?;
        limits = format!("cgroup {}", group.version());
        Ok((start(program, bytes, &MemoryLocation::Limited(&group))?, far))
    };
    if let Some(row) = compare(id, rounds, sheet, pair) {
        let (all, here, swap) = (bytes >> 20, local >> 20, swap.name());
        let why = format!("{all} MiB, {here} MiB of it here; beside {swap} under {limits}");
        sheet.add([Row { why: Some(why), ..row }]);
    }
}

/// Compares the median time of far runs with that of their baselines, from pairs (baseline, far). Returns
/// `None` when a run failed; the sheet then has the reason.
fn compare(
    id: &str,
    rounds: usize,
    sheet: &mut Sheet<'_>,
    mut pair: impl FnMut() -> Result<(ChildReport, ChildReport), String>,
) -> Option<Row> {
    let (mut baselines, mut fars, mut cpu) = (Vec::new(), Vec::new(), CpuTime::default());
    for _ in 0..rounds {
        match pair() {
            Ok((baseline, far)) => {
                sheet.add_wrong(u64::from(baseline.sum != far.sum));
                baselines.push(baseline.nanos);
                fars.push(far.nanos);
                cpu.add(far.cpu, 1);
            }
            Err(why) => {
                sheet.add([Row::absent(id, "ns", why)]);
                return None;
            }
        }
    }
    let n = fars.len() as u64;
    let [value, baseline] = [fars, baselines].map(median_of);
    Some(Row::figure(id, "ns", value, n).beside(Some(baseline)).with_cpu(cpu.per_operation()))
}

fn median_of(mut times: Vec<u64>) -> f64 {
    times.sort_unstable();
    to_f64(times[times.len() / 2])
}

/// Starts a program, commands it to work, and waits for its end.
fn start(program: Program, bytes: u64, place: &MemoryLocation<'_>) -> Result<ChildReport, String> {
    let itself = std::env::current_exe().map_err(|error| format!("this program itself: {error}"))?;
    let mut command = match place {
        MemoryLocation::Far { local, placement } => {
            let mut command = Command::new(&itself);
            let (local, far) = (local.to_string(), (4 * bytes).to_string());
            command.args(["run", "--placement", placement, "--local", &local, "--far", &far, "--"]);
            command.arg(if matches!(program, Program::NumPy) {
                "python3".as_ref()
            } else {
                itself.as_os_str()
            });
            command
        }
        MemoryLocation::Native | MemoryLocation::Limited(_) => match program {
            Program::NumPy => Command::new("python3"),
            Program::Work(_) | Program::On(..) => Command::new(&itself),
        },
    };
    match program {
        Program::Work(kind) => command.args([WORK, kind.name(), &bytes.to_string()]),
        Program::On(kind, cpu) => command.args([WORK, kind.name(), &bytes.to_string(), &cpu.to_string()]),
        Program::NumPy => command.args(["-c", NUMPY, &bytes.to_string()]),
    };
    let group = if let MemoryLocation::Limited(group) = place { Some(*group) } else { None };
    run_child(command, group)
}
