//! The benchmarks by name, and the one function that runs any of them.

use crate::plots::{self, draw};
use crate::{
    NodeKind, Outcome, Plan, Progress, Racks, Sheet, fat, kv, mind, net, pd3, pulse, run as programs, soda,
};
use farmem::{Error, Rack};

/// A benchmark of `farmem bench`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bench {
    /// Verbs and traversals over each transport.
    Net,
    /// Traversal offload (PULSE).
    Pulse,
    /// Coherent far memory (MIND).
    Mind,
    /// The in-network index (Fat-B+Tree).
    Fat,
    /// Graphs through a DPU (SODA).
    Soda,
    /// The key-value server.
    Kv,
    /// Prefetching (PD3).
    Pd3,
    /// Unmodified programs.
    Run,
}

impl Bench {
    /// Returns the name, with which the ids of all rows begin.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Net => "net",
            Self::Pulse => "pulse",
            Self::Mind => "mind",
            Self::Fat => "fat",
            Self::Soda => "soda",
            Self::Kv => "kv",
            Self::Pd3 => "pd3",
            Self::Run => "run",
        }
    }
}

/// Measures what `plan` selects, reports progress, and draws the figures.
///
/// Benchmarks start this program again with other arguments. The program must call [`farmem::worker::begin`]
/// with Native-KVS's entries and [`mind::ENTRIES`], and the functions that the documentation of
/// [`mind::CALLS`], [`mind::SQUEEZED`], [`soda::ALONE`] and [`programs::WORK`] names.
///
/// # Errors
/// An error when a rack does not start, far memory does not answer, or a figure cannot be written. A
/// measurement that this machine forbids is a row with the reason.
pub fn run_bench<R: Racks>(
    bench: Bench,
    plan: &Plan,
    racks: &mut R,
    mut tell: impl FnMut(Progress<'_>),
) -> Result<Outcome, R::Failure> {
    let mut sheet = Sheet::new(&plan.only, &mut tell);
    let figures = match bench {
        Bench::Net => net::measure(plan, racks, &mut sheet).map(|()| Vec::new())?,
        Bench::Mind => mind::measure(plan, racks, &mut sheet).map(|()| Vec::new())?,
        Bench::Run => return Ok(programs::run(plan, &mut tell)),
        Bench::Pulse => {
            let crossings = pulse::measure(plan, racks, &mut sheet)?;
            plots::pulse(sheet.rows(), &crossings)
        }
        Bench::Fat => {
            fat::measure(plan, racks, &mut sheet)?;
            plots::fat(sheet.rows())
        }
        Bench::Soda => {
            soda::measure(plan, racks, &mut sheet)?;
            plots::soda(sheet.rows())
        }
        Bench::Kv => {
            let mut start = |memory| {
                let rack =
                    racks.start(1, NodeKind::Offload, memory).map_err(|failure| failure.to_string())?;
                Ok(Box::new(rack) as Box<dyn AsRef<Rack>>)
            };
            kv::measure(plan, &mut start, &mut sheet)
                .map_err(|source| Error::System { what: "cannot produce the load".into(), source })?;
            plots::kv(sheet.rows())
        }
        Bench::Pd3 => {
            pd3::measure(plan, racks, &mut sheet)?;
            plots::pd3(sheet.rows())
        }
    };
    if let Some(directory) = &plan.plots {
        sheet.begins("plots");
        let what = || format!("cannot draw into {}", directory.display());
        draw(directory, &figures).map_err(|source| Error::System { what: what(), source })?;
    }
    Ok(sheet.end())
}
