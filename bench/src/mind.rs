//! `farmem bench mind`: coherent far memory (MIND 7): the cost of a fault, the cost of a page-state change,
//! and scaling.
//!
//! Key function: `measure`. The rack's roles are threads of this process, all on one CPU with the program. So
//! are the two hosts that share memory. Each host has its own link, page cache and threads, like a process of
//! its own.

mod fault;
mod filter;
mod processes;
mod replay;
mod scaling;
mod tables;
mod transition;
mod zram;

pub use filter::{CALLS, calls};
pub use processes::ENTRIES;
#[cfg(test)]
pub(crate) use zram::ZramProbe;
pub use zram::{SQUEEZED, squeezed};

use crate::cpu::on_its_own;
use crate::roles::Roles;
use crate::{Plan, Racks, Row, Samples, Shape, Sheet};
use farmem::serve::pin_to_cpu;
use farmem::window::{Addressing, FaultMode, WindowOptions};
use farmem::{Error, Placement, Rack, RackConfig, ShareOptions, SharedSpace, Transport, Vma, Waiting};
use farmem_link::affinity::allowed_cpus;
use fault::{Cpus, Faulting};

/// Bytes of a page.
const PAGE: usize = farmem::PAGE_LEN;
/// The domain of all measurements.
const DOMAIN: &str = "bench-mind";

impl Plan {
    /// Returns the number of allocations visited once each.
    const fn rounds(&self) -> usize {
        if self.quick { 12 } else { 96 }
    }
}

/// Bytes of an allocation: 64 regions of 16 KiB, each touched on one page. There are so few regions that the
/// control plane, which merges quiet regions ten times a second, rarely interferes.
const VMA_LEN: u64 = 1 << 20;

/// Measures what `plan` selects and reports progress. Workers are this program again. The program must call
/// [`farmem::worker::begin`] with Native-KVS's entries and [`ENTRIES`], [`squeezed`] when its first argument
/// is [`SQUEEZED`], and [`calls`] when it is [`CALLS`].
///
/// # Errors
/// An error when a rack does not start or fails. A measurement that this machine forbids is a row with the
/// reason.
pub(crate) fn measure<R: Racks>(plan: &Plan, racks: &mut R, sheet: &mut Sheet<'_>) -> Result<(), R::Failure> {
    let cpus = allowed_cpus().unwrap_or_default();
    // Measurements on all CPUs come first: threads of this process are bound to one CPU from then on.
    for transport in BOTH {
        let name = transport.name();
        if !["a", "c"].iter().any(|mix| plan.wants(&format!("mind.scaling.nativekvs.{mix}.{name}."))) {
            continue;
        }
        sheet.begins(&format!("native-kvs over {name}"));
        let rack = racks.describe(shape(1, transport, Placement::Free))?;
        let measured = scaled(plan, rack.as_ref(), sheet).map(|()| Vec::new());
        sheet.add(allowed(&format!("mind.scaling.nativekvs.{name}"), "1/s", measured)?);
    }
    for transport in BOTH {
        coherence(plan, transport, racks, sheet)?;
        let prefix = format!("mind.fault.{}.apart", transport.name());
        if plan.wants(&prefix) {
            sheet.begins(&format!("faults across CPUs over {}", transport.name()));
            let rack = racks.describe(shape(1, transport, Placement::SameCpu))?;
            sheet.add(allowed(&prefix, "ns", apart(plan, rack.as_ref(), &cpus))?);
        }
    }
    if plan.wants("mind.fault.zram") {
        sheet.begins("zram");
        sheet.add([zram::row(if plan.quick { 1 } else { 16 })]);
    }
    if plan.wants("mind.filter.") {
        sheet.begins("the filter of system calls");
        sheet.add(filter::rows(|id| plan.wants(id), if plan.quick { 100 } else { 4000 }));
    }
    for sequence in &tables::SEQUENCES {
        if !["entries", "jain"].iter().any(|kind| plan.wants(&format!("mind.directory.{kind}."))) {
            continue;
        }
        sheet.begins("allocations");
        let rack = racks.describe(shape(tables::NODES, Transport::Shm, Placement::SameCpu))?;
        let _roles = Roles::start(rack.as_ref())?;
        sheet.add(tables::measure(sequence, rack.as_ref())?);
    }
    replay::measure(plan, sheet);
    Ok(())
}

const BOTH: [Transport; 2] = [Transport::Shm, Transport::Udp];

/// Returns the shape of a rack with memory nodes of 1 GiB and blocking waits.
const fn shape(nodes: u8, transport: Transport, placement: Placement) -> Shape {
    Shape { nodes, memory: 1 << 30, transport, waiting: Waiting::Block, placement }
}

/// Measures the cost of one page: faults, and changes between two hosts of this process and between two
/// processes.
fn coherence<R: Racks>(
    plan: &Plan,
    transport: Transport,
    racks: &mut R,
    sheet: &mut Sheet<'_>,
) -> Result<(), R::Failure> {
    let name = transport.name();
    let of_change = |kind: &str, end: &str| {
        transition::NAMES.iter().any(|change| plan.wants(&format!("mind.{kind}.{change}.{name}{end}")))
    };
    let fault = format!("mind.fault.{name}");
    if plan.wants(&fault) || of_change("transition", "") || of_change("packets", "") {
        sheet.begins(&format!("faults and changes over {name}"));
        let rack = racks.describe(shape(1, transport, Placement::SameCpu))?;
        sheet.add(allowed(&fault, "ns", over(plan, rack.as_ref()))?);
    }
    if of_change("transition", ".processes") {
        sheet.begins(&format!("changes between processes over {name}"));
        let rack = racks.describe(shape(1, transport, Placement::SameCpu))?;
        let _roles = Roles::start(rack.as_ref())?;
        let measured = processes::measure(rack.as_ref(), plan.rounds());
        sheet.add(allowed(&format!("mind.transition.{name}.processes"), "ns", measured)?);
    }
    Ok(())
}

/// Turns missing permission to serve faults into a row without a figure.
fn allowed(id: &str, unit: &'static str, measured: Result<Vec<Row>, Error>) -> Result<Vec<Row>, Error> {
    match measured {
        Err(Error::Open(refused)) => Ok(vec![Row::absent(id, unit, refused.to_string())]),
        other => other,
    }
}

fn scaled(plan: &Plan, config: &RackConfig, sheet: &mut Sheet<'_>) -> Result<(), Error> {
    let _roles = Roles::start(config)?;
    scaling::measure(config, plan.quick, sheet)
}

fn over(plan: &Plan, config: &RackConfig) -> Result<Vec<Row>, Error> {
    let _roles = Roles::start(config)?;
    let rack = Rack::running(config.clone());
    let (one, other) = (space(&rack, FaultMode::Handler)?, space(&rack, FaultMode::Handler)?);
    let by_signal = space(&rack, FaultMode::Signal)?;
    let mut rows = Vec::new();
    let warm = vmas(&one, 1)?;
    transition::measure(&one, &other, &warm)?;
    let hosts = faulting(plan, [&one, &by_signal])?;
    rows.extend(fault::measure(config, &hosts, Cpus::One)?.rows(config.transport));
    rows.extend(transition::measure(&one, &other, &vmas(&one, plan.rounds())?)?.rows(config.transport));
    Ok(rows)
}

/// Measures a fault when the program has its own CPU, and all roles another one.
fn apart(plan: &Plan, config: &RackConfig, cpus: &[usize]) -> Result<Vec<Row>, Error> {
    let &[own, theirs, ..] = cpus else {
        let id = format!("mind.fault.{}.apart", config.transport.name());
        return Ok(vec![Row::absent(&id, "ns", "this process may use one CPU")]);
    };
    let config = RackConfig { cpu: Some(theirs), ..config.clone() };
    let _roles = Roles::start(&RackConfig { waiting: Waiting::Spin, ..config.clone() })?;
    // Hosts bind the joining thread, and their own threads with it, to the roles' CPU.
    let join = || {
        let rack = Rack::running(config.clone());
        Ok::<_, Error>([space(&rack, FaultMode::Handler)?, space(&rack, FaultMode::Signal)?])
    };
    let spaces = on_its_own(join)?;
    let [by_handler, by_signal] = &spaces;
    let hosts = faulting(plan, [by_handler, by_signal])?;
    on_its_own(|| {
        pin_to_cpu(own).map_err(io_error("cannot run on one CPU"))?;
        Ok(fault::measure(&config, &hosts, Cpus::Separate(theirs))?.rows(config.transport).collect())
    })
}

/// Creates fresh allocations for each host.
fn faulting<'a>(plan: &Plan, spaces: [&'a SharedSpace; 2]) -> Result<Vec<Faulting<'a>>, Error> {
    let host = |space| Ok(Faulting { space, fresh: vmas(space, plan.rounds())? });
    spaces.into_iter().map(host).collect()
}

/// Joins a host with room for everything and a timeout long enough that a busy machine causes no
/// retransmission.
fn space(rack: &Rack, faults: FaultMode) -> Result<SharedSpace, Error> {
    let usual = ShareOptions::new(1 << 30);
    let window = WindowOptions { place: Addressing::Anywhere, inactive_eighths: 0, faults, ..usual.window };
    SharedSpace::join(rack, DOMAIN, ShareOptions { window, ..usual })
}

fn vmas(space: &SharedSpace, count: usize) -> Result<Vec<Vma>, Error> {
    (0..count).map(|_| space.allocate(VMA_LEN)).collect()
}

fn io_error(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::System { what: what.into(), source }
}
