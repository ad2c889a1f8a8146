//! Measurement of round trips over a link, compared with raw exchanges of the same sizes over the same kind
//! of link.

use super::operations::{ALL, Fixture, Operation};
use super::roles::Roles;
use super::{Budget, rates};
use crate::Failure;
use crate::rack_file::{RackFile, Shape};
use farmem::serve::{Stop, pin_to_cpu};
use farmem::{Client, LinkProfile, Placement, Rack, RackConfig, Transport, Waiting};
use farmem_bench::raw::{Onward, RawRing, RawSocket};
use farmem_bench::{CpuMeter, Row, Samples};
use std::net::{IpAddr, SocketAddr};
use std::thread::{Scope, scope};

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

pub(super) fn measure(
    transport: Transport,
    waiting: Waiting,
    suffix: &str,
    effort: Budget,
    link: LinkProfile,
) -> Result<Vec<Row>, Failure> {
    let node_cpu = if waiting == Waiting::Spin { AWAY_CPU } else { HOME_CPU };
    pin(HOME_CPU)?;
    // This function places the threads of the roles itself, regardless of the rack's description.
    let shape = Shape {
        nodes: 1,
        memory: NODE_MEMORY,
        transport,
        waiting,
        placement: Placement::Free,
        prefetch: farmem::Prefetch::Bursts,
        link,
    };
    let file = RackFile::new("bench", shape)?;
    let mut roles = Roles::start(file.config(), HOME_CPU, node_cpu)?;
    let mut client = Rack::running(file.config().clone()).client("bench")?;
    let mut bed = Fixture::new(&mut client)?;
    roles.end_control()?;
    let away = RawConfig { config: file.config(), transport, waiting, node_cpu };
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
    roles.end_switch()?;
    for operation in direct {
        let id = id(transport, operation, suffix);
        rows.insert(rows.len() - 1, away.round_trips(&mut client, &mut bed, operation, &id, effort)?);
    }
    if waiting == Waiting::Block {
        rows.extend(rates::measure(&away, &mut client, bed.vma().base, effort)?);
    }
    drop(client);
    drop(roles);
    if transport == Transport::Shm {
        let rings = file.config().rings();
        std::fs::remove_dir_all(&rings).map_err(|e| {
            Failure::environment(format!("cannot remove {}: {e}", rings.display()), "remove it by hand")
        })?;
    }
    Ok(rows)
}

/// Configuration of the raw exchange.
#[derive(Clone, Copy)]
pub(super) struct RawConfig<'a> {
    pub(super) config: &'a RackConfig,
    pub(super) transport: Transport,
    waiting: Waiting,
    pub(super) node_cpu: usize,
}

impl RawConfig<'_> {
    fn round_trips(
        &self,
        client: &mut Client,
        bed: &mut Fixture,
        operation: Operation,
        id: &str,
        effort: Budget,
    ) -> Result<Row, Failure> {
        let mut work = || Ok::<(), Failure>(bed.once(client, operation)?);
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
        work: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<(Samples, Samples), Failure> {
        let (request, answer) = operation.sizes();
        let mut pinger = self.socket()?;
        let home = address(&pinger)?;
        let mut node = self.socket()?;
        let mut switch = self.socket()?;
        let (node_at, switch_at) = (address(&node)?, address(&switch)?);
        let stop = Stop::new();
        scope(|threads| {
            let _ends = Ends(&stop);
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
        work: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<(Samples, Samples), Failure> {
        let (request, answer) = operation.sizes();
        let dir = self.config.rings().with_extension("raw");
        let (own, peer) = (self.config.control.address, self.config.switch.address);
        let mut pinger = RawRing::open(&dir, own, peer, self.link_waiting()).map_err(farmem::Error::from)?;
        let mut node = RawRing::open(&dir, peer, own, self.link_waiting()).map_err(farmem::Error::from)?;
        let stop = Stop::new();
        let result = scope(|threads| {
            let _ends = Ends(&stop);
            // Frames over rings carry no ICRC, which saves 4 bytes in each direction.
            self.serve(threads, move |stop| node.serve(answer, stop), &stop);
            interleave(effort, work, &mut || pinger.exchange(request))
        });
        std::fs::remove_dir_all(&dir).map_err(|e| {
            Failure::environment(format!("cannot remove {}: {e}", dir.display()), "remove it by hand")
        })?;
        result
    }

    pub(super) fn socket(&self) -> Result<RawSocket, Failure> {
        let ip: IpAddr = self.config.control.address;
        Ok(RawSocket::open(ip, self.link_waiting()).map_err(farmem::Error::from)?)
    }

    /// Starts a raw server in the node's place.
    pub(super) fn serve<'scope>(
        &self,
        threads: &'scope Scope<'scope, '_>,
        serve: impl FnOnce(&Stop) -> std::io::Result<()> + Send + 'scope,
        stop: &'scope Stop,
    ) {
        let cpu = self.node_cpu;
        threads.spawn(move || {
            if let Err(error) = pin_to_cpu(cpu).and_then(|()| serve(stop)) {
                eprintln!("farmem: a raw server ended: {error}");
            }
        });
    }

    const fn link_waiting(&self) -> farmem_bench::raw::Waiting {
        match self.waiting {
            Waiting::Block => farmem_bench::raw::Waiting::Block,
            Waiting::Spin => farmem_bench::raw::Waiting::Spin,
        }
    }
}

/// Guard that stops the raw server at the end of a measurement, also after an error. Otherwise the thread
/// scope would wait for the server forever.
pub(super) struct Ends<'a>(pub(super) &'a Stop);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.set();
    }
}

fn pin(cpu: usize) -> Result<(), Failure> {
    pin_to_cpu(cpu)
        .map_err(|e| Failure::environment(format!("cannot run on CPU {cpu}: {e}"), "run without taskset"))
}

pub(super) fn address(socket: &RawSocket) -> Result<SocketAddr, Failure> {
    socket.address().map_err(|e| Failure::environment(format!("a raw socket has no address: {e}"), ""))
}

/// Alternates rounds of both kinds. A lost raw exchange is repeated and not counted.
fn interleave(
    effort: Budget,
    work: &mut dyn FnMut() -> Result<(), Failure>,
    raw: &mut dyn FnMut() -> std::io::Result<bool>,
) -> Result<(Samples, Samples), Failure> {
    let lost = |e: std::io::Error| Failure::environment(format!("the raw exchange failed: {e}"), "");
    let (mut samples, mut baseline) = (Samples::new(), Samples::new());
    for _ in 0..effort.per_round / 10 {
        raw().map_err(lost)?; // warms caches and neighbours
        work()?;
    }
    for _ in 0..effort.rounds {
        for _ in 0..effort.per_round {
            baseline.time_if(|| raw().map_err(lost))?;
        }
        round(&mut samples, effort.per_round, work)?;
    }
    Ok((samples, baseline))
}

fn alone(id: &str, effort: Budget, work: &mut dyn FnMut() -> Result<(), Failure>) -> Result<Row, Failure> {
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
    work: &mut dyn FnMut() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let own = CpuMeter::own();
    let cpu = own.begin();
    for _ in 0..operations {
        samples.time(&mut *work)?;
    }
    samples.spent(cpu.end(), operations.into());
    Ok(())
}
