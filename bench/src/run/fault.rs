//! The cost of a far page for a program under `farmem run`, by the CPUs of program and pager, and its lower
//! bound in two designs.
//!
//! Key function: [`measure`]. The lower bound is a fault with local bytes that another thread resolves. One
//! design reports it by userfaultfd, on which `farmem run` is built. The other uses a signal: the faulting
//! thread leaves its request in a slot and polls for its page (docs/decisions, "signal mode"). Both run in
//! one process; between two processes on one CPU, each switch costs more.

use super::work::Kind;
use super::{ChildReport, MemoryLocation, PART, Program, start};
use crate::cpu::on_its_own;
use crate::raw::{self, Server, Waiting};
use crate::samples::median;
use crate::touch::touch;
use crate::{CpuMeter, CpuTime, Row, Samples, Sheet, to_f64};
use farmem::PAGE_LEN;
use farmem::window::FaultMode;
use farmem_link::affinity::allowed_cpus;
use farmem_link::pin_to_cpu;
use farmem_uffd::{Handler, HandlerCpu};

/// Pages touched in one round.
const PAGES: usize = 2048;

/// The CPUs of program and pager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CpuPlacement {
    /// Placed by the system.
    Free,
    /// On one CPU.
    One,
    /// Each on its own CPU.
    Separate,
}

/// All placements.
const PLACEMENTS: [CpuPlacement; 3] = [CpuPlacement::Free, CpuPlacement::One, CpuPlacement::Separate];

/// Returns the row ids of one placement: under `farmem run`, and of a fault as a signal.
fn ids(places: CpuPlacement) -> [String; 2] {
    let name = match places {
        CpuPlacement::Free => "free",
        CpuPlacement::One => "one",
        CpuPlacement::Separate => "apart",
    };
    [format!("run.fault.{name}"), format!("run.fault.{name}.signal")]
}

/// The measurements of one placement, in alternating rounds.
struct Times {
    reported: Samples,
    signalled: Samples,
    /// Medians of a round each.
    far: Vec<f64>,
    cpu: CpuTime,
    wrong: u64,
}

/// Measures the rows of a program with `bytes` of memory, at each placement with a wanted row.
pub(super) fn measure(bytes: u64, rounds: usize, wants: impl Fn(&str) -> bool, sheet: &mut Sheet<'_>) {
    let cpus = allowed_cpus().unwrap_or_default();
    for places in PLACEMENTS {
        let [far, signal] = ids(places);
        if !wants(&far) && !wants(&signal) {
            continue;
        }
        sheet.begins(&far);
        let on = match (places, &cpus[..]) {
            (CpuPlacement::Free, _) => Ok(None),
            (CpuPlacement::One, &[cpu, ..]) => Ok(Some([cpu, cpu])),
            (CpuPlacement::Separate, &[pager, program, ..]) => Ok(Some([pager, program])),
            _ => Err("this process may use one CPU".to_owned()),
        };
        let times = on.and_then(|on| on_its_own(|| turns(on, bytes, rounds)));
        match times {
            Ok(times) => {
                sheet.add_wrong(times.wrong);
                sheet.add(times.rows(far, signal, places));
            }
            Err(why) => sheet.add([far, signal].map(|id| Row::absent(id, "ns", why.clone()))),
        }
    }
}

/// Measures on these CPUs: the pager's, and the program's.
fn turns(on: Option<[usize; 2]>, bytes: u64, rounds: usize) -> Result<Times, String> {
    let mut times = Times {
        reported: Samples::new(),
        signalled: Samples::new(),
        far: Vec::new(),
        cpu: CpuTime::default(),
        wrong: 0,
    };
    let program = |place: &MemoryLocation<'_>| {
        let program = on.map_or(Program::Work(Kind::Fault), |[_, cpu]| Program::On(Kind::Fault, cpu));
        start(program, bytes, place)
    };
    let ChildReport { sum: right, .. } = program(&MemoryLocation::Native)?;
    if let Some([pager, _]) = on {
        // Child processes and threads inherit the binding.
        pin_to_cpu(pager).map_err(|error| format!("CPU {pager}: {error}"))?;
    }
    for _ in 0..rounds {
        at_hand(FaultMode::Handler, on, &mut times.reported)?;
        at_hand(FaultMode::Signal, on, &mut times.signalled)?;
        let far = program(&MemoryLocation::far(bytes / PART))?;
        times.far.push(to_f64(far.nanos));
        times.cpu.add(far.cpu, 1);
        times.wrong += u64::from(far.sum != right);
    }
    Ok(times)
}

/// Measures faults with local bytes.
fn at_hand(mode: FaultMode, on: Option<[usize; 2]>, times: &mut Samples) -> Result<(), String> {
    let cpu = on.map_or(HandlerCpu::Any, |[pager, _]| HandlerCpu::Fixed(pager));
    // A spinning server saves wake-ups, if it has its own CPU.
    let looks = mode == FaultMode::Signal && on.is_none_or(|[pager, program]| pager != program);
    let waiting = if looks { Waiting::Spin } else { Waiting::Block };
    let own = CpuMeter::own();
    let cpu_time = own.begin();
    let touched = raw::faults(mode, Server::Alone(Handler { cpu, waiting }), PAGES, |memory| {
        on.map_or(Ok(()), |[_, program]| pin_to_cpu(program))?;
        touch(memory, 1, times);
        Ok::<(), std::io::Error>(())
    });
    times.spent(cpu_time.end(), PAGES as u64);
    touched.map_err(|refused| refused.to_string())?.map_err(|error| format!("the program's CPU: {error}"))
}

impl Times {
    fn rows(mut self, far: String, signal: String, places: CpuPlacement) -> [Row; 2] {
        let how = match places {
            CpuPlacement::Free => "where the system puts program and pager",
            CpuPlacement::One => "program and pager on one CPU",
            CpuPlacement::Separate => "program and pager on a CPU each",
        };
        let (n, least) = (self.far.len() as u64, self.reported.quantile(0.5));
        let of_run = Row::figure(far, "ns", median(&mut self.far), n)
            .with_cpu(self.cpu.per_operation())
            .beside(Some(least));
        let touched = (PAGES * PAGE_LEN) >> 10;
        let by_signal = self.signalled.row(&signal, Some(&self.reported));
        let base = "a fault that the userfaultfd reports to a thread that sleeps";
        let looks = if places == CpuPlacement::One { "sleeps" } else { "looks all the time" };
        [
            Row {
                why: Some(format!("a read of which most are far; {how}; baseline: {base}, the page at hand")),
                ..of_run
            },
            Row {
                why: Some(format!(
                    "{touched} KiB, each page at hand: a signal, and a slot at a thread that {looks}; {how}; baseline: {base}"
                )),
                ..by_signal
            },
        ]
    }
}
