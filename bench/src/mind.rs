//! `farmem bench mind`: coherent far memory (MIND 7): what a fault costs, what a change of a page's state costs, and how it scales.
//!
//! Key call: [`run`]. The roles of the rack are threads of this process, all on one CPU with the program, and so are the two hosts
//! that share memory: each has its own link, its own page cache and its own threads, as if they were two processes.

mod fault;
mod replay;
mod roles;
mod scaling;
mod transition;

use crate::{Row, Samples};
use farmem::window::{Place, WindowOptions};
use farmem::{Error, Placement, Rack, RackConfig, ShareOptions, SharedSpace, Transport, Vma};
use roles::Roles;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Domain of all that is measured.
const DOMAIN: &str = "bench-mind";

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// A short run.
    pub quick: bool,
}

impl Plan {
    /// Allocations that are gone through once.
    const fn rounds(self) -> usize {
        if self.quick { 12 } else { 96 }
    }
}

/// Bytes of an allocation: 64 regions of 16 KiB, of each of which one page is touched. So few that the control plane, which merges quiet
/// regions ten times a second, rarely does so in between.
const VMA_LEN: u64 = 1 << 20;

/// Makes descriptions of racks with addresses of their own.
pub trait Racks {
    /// One such rack, as long as it is needed.
    type Rack: AsRef<RackConfig>;
    /// Why there is none, or why a measurement failed.
    type Failure: From<Error>;

    /// A description of a rack over `transport` with one memory node, that blocks; all on one CPU, or wherever the system puts it.
    ///
    /// # Errors
    /// When no addresses are free.
    fn describe(&mut self, transport: Transport, placement: Placement) -> Result<Self::Rack, Self::Failure>;

    /// Says what is being measured.
    fn progress(&mut self, what: &str);
}

/// What came of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// The figures.
    pub rows: Vec<Row>,
    /// Answers that were wrong.
    pub wrong: u64,
}

/// Measures everything. Workers are this program again: it has to call [`farmem::worker::begin`] with Native-KVS's entries.
///
/// # Errors
/// When a rack does not start, or breaks. What this machine does not allow is a row that says why.
pub fn run<R: Racks>(plan: Plan, racks: &mut R) -> Result<Measured, R::Failure> {
    let mut all = Measured { rows: Vec::new(), wrong: 0 };
    // First what may run on all CPUs: threads of this process are bound to one from then on.
    for transport in [Transport::Shm, Transport::Udp] {
        racks.progress(&format!("native-kvs over {}", transport.name()));
        let rack = racks.describe(transport, Placement::Free)?;
        let measured = scaled(plan, rack.as_ref());
        let id = format!("mind.scaling.nativekvs.{}", transport.name());
        if let Some((rows, wrong)) = all.allowed(&id, "1/s", measured)? {
            all.rows.extend(rows);
            all.wrong += wrong;
        }
    }
    for transport in [Transport::Shm, Transport::Udp] {
        racks.progress(transport.name());
        let rack = racks.describe(transport, Placement::SameCpu)?;
        let measured = over(plan, rack.as_ref());
        let rows = all.allowed(&format!("mind.fault.{}", transport.name()), "ns", measured)?;
        all.rows.extend(rows.into_iter().flatten());
    }
    all.rows.extend(replay::rows(plan, |what| racks.progress(what)));
    Ok(all)
}

impl Measured {
    /// That this process may not serve faults is no failure, but a row without a figure.
    fn allowed<T>(
        &mut self,
        id: &str,
        unit: &'static str,
        measured: Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        match measured {
            Err(Error::Open(refused)) => {
                self.rows.push(Row::absent(id, unit, refused.to_string()));
                Ok(None)
            }
            other => other.map(Some),
        }
    }
}

fn scaled(plan: Plan, config: &RackConfig) -> Result<(Vec<Row>, u64), Error> {
    let _roles = Roles::start(config)?;
    scaling::measure(config, plan.quick)
}

fn over(plan: Plan, config: &RackConfig) -> Result<Vec<Row>, Error> {
    let _roles = Roles::start(config)?;
    let rack = Rack::running(config.clone());
    let (one, other) = (space(&rack)?, space(&rack)?);
    let mut rows = Vec::new();
    let warm = vmas(&one, 1)?;
    transition::measure(&one, &other, &warm)?;
    rows.push(fault::measure(config, &one, &vmas(&one, plan.rounds())?)?.row(config.transport, "one CPU"));
    rows.extend(transition::measure(&one, &other, &vmas(&one, plan.rounds())?)?.rows(config.transport));
    Ok(rows)
}

/// A host with room for everything, whose requests are not sent again while a busy machine makes it wait.
fn space(rack: &Rack) -> Result<SharedSpace, Error> {
    let usual = ShareOptions::new(1 << 30);
    let window = WindowOptions { place: Place::Anywhere, resting_eighths: 0, ..usual.window };
    rack.share(DOMAIN, ShareOptions { window, ..usual })
}

fn vmas(space: &SharedSpace, count: usize) -> Result<Vec<Vma>, Error> {
    (0..count).map(|_| space.allocate(VMA_LEN)).collect()
}

fn io_error(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::System { what: what.into(), source }
}
