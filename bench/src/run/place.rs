//! `run.place.*`: random reads of far pages by one, two and four threads, by the placement of program and
//! pager.
//!
//! Key function: [`measure`]. The placements alternate in each round. The default placement (`auto`) is compared
//! with the better of two others: the kernel places both sides freely, or one CPU has both.

use super::work::{Kind, READERS};
use super::{MemoryLocation, PART, Program, start};
use crate::cpu::on_its_own;
use crate::samples::median;
use crate::{CpuTime, Row, Sheet, to_f64};
use farmem_link::affinity::allowed_cpus;
use farmem_link::pin_to_cpu;

/// A placement, with the CPUs of pager and program where they are bound.
#[derive(Clone, Copy, Debug)]
struct Placement {
    name: &'static str,
    text: &'static str,
    /// The value of `--placement`.
    option: &'static str,
    /// Indices into the CPUs that this process may use: the pager's and the program's.
    cpus: Option<[usize; 2]>,
}

const AUTO: &str = "auto";

const PLACEMENTS: [Placement; 4] = [
    Placement { name: "auto", text: "the default of `farmem run`", option: AUTO, cpus: None },
    Placement { name: "free", text: "the kernel places program and pager", option: "free", cpus: None },
    Placement { name: "one", text: "program and pager on one CPU", option: "free", cpus: Some([0, 0]) },
    Placement { name: "apart", text: "program and pager on a CPU each", option: "free", cpus: Some([0, 1]) },
];

/// The times of one placement.
#[derive(Default)]
struct Times {
    each: Vec<f64>,
    cpu: CpuTime,
}

/// Measures the rows of a program with `bytes` of memory.
pub(super) fn measure(bytes: u64, rounds: usize, has: impl Fn(&str) -> bool, sheet: &mut Sheet<'_>) {
    let id = |placement: &Placement, threads: u8| format!("run.place.{}.{threads}", placement.name);
    for threads in READERS {
        if !PLACEMENTS.iter().any(|placement| has(&id(placement, threads))) {
            continue;
        }
        sheet.begins(&id(&PLACEMENTS[0], threads));
        match rows(bytes, rounds, threads, sheet) {
            Ok(rows) => sheet.add(rows.into_iter().filter(|row| has(&row.id))),
            Err(why) => {
                sheet.add(PLACEMENTS.iter().map(|p| Row::absent(id(p, threads), "ns", why.clone())));
            }
        }
    }
}

fn rows(bytes: u64, rounds: usize, threads: u8, sheet: &mut Sheet<'_>) -> Result<Vec<Row>, String> {
    let cpus = allowed_cpus().unwrap_or_default();
    let kind = Kind::RandomReads(threads);
    let right = start(Program::Work(kind), bytes, &MemoryLocation::Native)?.sum;
    let mut all: [Times; PLACEMENTS.len()] = Default::default();
    for _ in 0..rounds {
        for (placement, times) in PLACEMENTS.iter().zip(&mut all) {
            let on = match placement.cpus.map(|on| on.map(|at| cpus.get(at).copied())) {
                None => None,
                Some([Some(pager), Some(program)]) => Some([pager, program]),
                Some(_) => return Err("this process may use one CPU".into()),
            };
            let far = MemoryLocation::Far { local: bytes / PART, placement: placement.option };
            let report = on_its_own(|| {
                let Some([pager, program]) = on else { return start(Program::Work(kind), bytes, &far) };
                // The child inherits the binding.
                pin_to_cpu(pager).map_err(|error| format!("CPU {pager}: {error}"))?;
                start(Program::On(kind, program), bytes, &far)
            })?;
            sheet.add_wrong(u64::from(report.sum != right));
            times.each.push(to_f64(report.nanos) / to_f64(kind.reads(bytes)));
            times.cpu.add(report.cpu, kind.reads(bytes));
        }
    }
    let medians: Vec<f64> = all.iter_mut().map(|times| median(&mut times.each)).collect();
    let better = medians[1].min(medians[2]);
    let row = |((placement, times), &value): ((&Placement, &Times), &f64)| {
        let id = format!("run.place.{}.{threads}", placement.name);
        let row = Row::figure(id, "ns", value, rounds as u64).with_cpu(times.cpu.per_operation());
        let baseline = if placement.option == AUTO { "; baseline: the better of free and one" } else { "" };
        let why = format!("a read by {threads} threads, most are far; {}{baseline}", placement.text);
        Row { why: Some(why), ..row.beside((placement.option == AUTO).then_some(better)) }
    };
    Ok(PLACEMENTS.iter().zip(&all).zip(&medians).map(row).collect())
}
