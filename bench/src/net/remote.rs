//! Measurement of round trips over a link, compared with raw exchanges of the same sizes over the same kind
//! of link.

use super::exchange::{RAW_FAILED, RawConfig, StopGuard, system};
use super::operations::{ALL, Fixture, Operation};
use super::{Budget, rates};
use crate::raw::{Onward, RawRing, RawSocket};
use crate::roles::Roles;
use crate::{CpuMeter, Racks, Row, Samples, Shape};
use farmem::serve::{Stop, pin_to_cpu};
use farmem::{Client, Error, Placement, Rack, RackConfig, Transport, Waiting};
use std::io;
use std::thread::scope;

/// CPU of the client, and of every other thread when all threads block.
const HOME_CPU: usize = 0;
/// CPU of the other party when both spin.
const AWAY_CPU: usize = 1;
/// Memory of the only node, in bytes.
const NODE_MEMORY: u64 = 64 << 20;

/// Returns the row id of a round trip.
pub(super) fn id(transport: Transport, operation: Operation, suffix: &str) -> String {
    format!("net.{}.{}.rtt{suffix}", transport.name(), operation.name())
}

/// Measures all operations on a rack of one memory node, with all threads placed here.
pub(super) fn measure<R: Racks>(
    racks: &mut R,
    transport: Transport,
    waiting: Waiting,
    suffix: &str,
    effort: Budget,
) -> Result<Vec<Row>, R::Failure> {
    let placement = Placement::Free;
    let rack = racks.describe(Shape { nodes: 1, memory: NODE_MEMORY, transport, waiting, placement })?;
    Ok(on_rack(rack.as_ref(), transport, waiting, suffix, effort)?)
}

fn on_rack(
    config: &RackConfig,
    transport: Transport,
    waiting: Waiting,
    suffix: &str,
    effort: Budget,
) -> Result<Vec<Row>, Error> {
    let node_cpu = if waiting == Waiting::Spin { AWAY_CPU } else { HOME_CPU };
    pin_to_cpu(HOME_CPU).map_err(system("cannot run on the first CPU"))?;
    let mut roles = Roles::start_on(config, Some([HOME_CPU, node_cpu]))?;
    let mut client = Rack::running(config.clone()).client("bench")?;
    let mut bed = Fixture::new(&mut client)?;
    roles.end_control();
    let away = RawConfig { config, transport, waiting, node_cpu };
    let mut rows = Vec::new();
    let (triangles, direct): (Vec<Operation>, Vec<Operation>) =
        ALL.into_iter().partition(|op| op.is_triangle());
    for operation in triangles {
        let id = id(transport, operation, suffix);
        rows.push(match waiting {
            Waiting::Spin => Row::absent(id, "ns", "host, switch and node, all spinning, need three CPUs"),
            Waiting::Block => away.round_trips(&mut client, &mut bed, operation, &id, effort)?,
        });
    }
    roles.end_switch();
    for operation in direct {
        let id = id(transport, operation, suffix);
        rows.insert(rows.len() - 1, away.round_trips(&mut client, &mut bed, operation, &id, effort)?);
    }
    if waiting == Waiting::Block {
        rows.extend(rates::measure(&away, &mut client, bed.vma().base, effort)?);
    }
    Ok(rows)
}

impl RawConfig<'_> {
    fn round_trips(
        &self,
        client: &mut Client,
        bed: &mut Fixture,
        operation: Operation,
        id: &str,
        effort: Budget,
    ) -> Result<Row, Error> {
        let mut work = || bed.once(client, operation);
        let (samples, baseline) = match (self.transport, operation.is_triangle()) {
            (Transport::Udp, triangle) => self.beside_datagrams(operation, triangle, effort, &mut work)?,
            (Transport::Shm, false) => self.beside_rings(operation, effort, &mut work)?,
            // A triangle over rings has no raw form: its baseline would consist of two exchanges.
            (Transport::Shm, true) => return alone(id, effort, &mut work),
        };
        Ok(samples.row(id, Some(&baseline)))
    }

    fn beside_datagrams(
        &self,
        operation: Operation,
        triangle: bool,
        effort: Budget,
        work: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(Samples, Samples), Error> {
        let (request, answer) = operation.sizes();
        let mut pinger = self.socket()?;
        let (mut node, mut switch) = (self.socket()?, self.socket()?);
        let address = |socket: &RawSocket| socket.address().map_err(system("a raw socket has no address"));
        let (home, node_at, switch_at) = (address(&pinger)?, address(&node)?, address(&switch)?);
        let stop = Stop::new();
        scope(|threads| {
            let _ends = StopGuard(&stop);
            self.serve(threads, move |stop| node.serve(Onward::To(home), answer, stop), &stop);
            if triangle {
                self.serve(threads, move |stop| switch.serve(Onward::To(node_at), request, stop), &stop);
            }
            let first = if triangle { switch_at } else { node_at };
            interleave(effort, work, &mut || pinger.exchange(first, request))
        })
    }

    fn beside_rings(
        &self,
        operation: Operation,
        effort: Budget,
        work: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(Samples, Samples), Error> {
        let (request, answer) = operation.sizes();
        let dir = self.config.rings().with_extension("raw");
        let (own, peer) = (self.config.control.address, self.config.switch.address);
        let mut pinger = RawRing::open(&dir, own, peer, self.link_waiting())?;
        let mut node = RawRing::open(&dir, peer, own, self.link_waiting())?;
        let stop = Stop::new();
        let result = scope(|threads| {
            let _ends = StopGuard(&stop);
            // Frames over rings carry no ICRC, which saves 4 bytes in each direction.
            self.serve(threads, move |stop| node.serve(answer, stop), &stop);
            interleave(effort, work, &mut || pinger.exchange(request))
        });
        std::fs::remove_dir_all(&dir).map_err(|source| {
            let what = format!("cannot remove {}", dir.display());
            Error::System { what, source }
        })?;
        result
    }
}

/// Alternates rounds of both kinds. A lost raw exchange is repeated and not counted.
fn interleave(
    effort: Budget,
    work: &mut dyn FnMut() -> Result<(), Error>,
    raw: &mut dyn FnMut() -> io::Result<bool>,
) -> Result<(Samples, Samples), Error> {
    let (mut samples, mut baseline) = (Samples::new(), Samples::new());
    for _ in 0..effort.per_round / 10 {
        raw().map_err(system(RAW_FAILED))?; // warms caches and neighbours
        work()?;
    }
    for _ in 0..effort.rounds {
        for _ in 0..effort.per_round {
            baseline.time_if(|| raw().map_err(system(RAW_FAILED)))?;
        }
        round(&mut samples, effort.per_round, work)?;
    }
    Ok((samples, baseline))
}

fn alone(id: &str, effort: Budget, work: &mut dyn FnMut() -> Result<(), Error>) -> Result<Row, Error> {
    let mut samples = Samples::new();
    for _ in 0..effort.rounds {
        round(&mut samples, effort.per_round, work)?;
    }
    Ok(samples.row(id, None))
}

/// Performs operations one after the other, and measures the CPU time of this process, which contains all
/// parties.
fn round(
    samples: &mut Samples,
    operations: u32,
    work: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    let own = CpuMeter::own();
    let cpu = own.begin();
    for _ in 0..operations {
        samples.time(&mut *work)?;
    }
    samples.spent(cpu.end(), operations.into());
    Ok(())
}
