//! The fetch of a page for reading, compared with its parts: a fault resolved with local bytes, and an
//! exchange of as many bytes over the same path, host to switch to memory node to host.

use super::{PAGE, Samples, io_error};
use crate::raw::{self, Onward, RawRing, RawSocket, Server, Waiting};
use crate::touch::touch;
use crate::{CpuMeter, Row};
use farmem::serve::{Stop, pin_to_cpu};
use farmem::window::FaultMode;
use farmem::{Error, RackConfig, SharedSpace, Transport, Vma};
use std::net::IpAddr;
use std::thread::{Scope, scope};

/// Bytes of a page request on its way to the switch: headers and body.
const REQUEST_LEN: usize = 72;
/// Bytes of a page and its headers.
const ANSWER_LEN: usize = 4096 + 64;
/// Pages of a region: one of each is touched, so that no region is visited twice.
pub(super) const REGION: usize = 4;

/// The CPUs of the measured threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cpus {
    /// Everything runs on this thread's CPU, and waiting threads sleep.
    One,
    /// The servers spin on this CPU; the program runs on another.
    Separate(usize),
}

/// A host that faults, and allocations not yet touched.
pub(super) struct Faulting<'a> {
    pub(super) space: &'a SharedSpace,
    pub(super) fresh: Vec<Vma>,
}

/// Times of one host's faults, and of faults in the same mode with local bytes.
struct Times {
    mode: FaultMode,
    fetch: Samples,
    resolve: Samples,
}

/// Times of each host, and of the baseline.
pub(super) struct Faults {
    hosts: Vec<Times>,
    exchange: Samples,
    cpus: Cpus,
}

/// Measures in alternation: local faults, exchanges and fetches, for each host.
pub(super) fn measure(config: &RackConfig, hosts: &[Faulting<'_>], cpus: Cpus) -> Result<Faults, Error> {
    let mut path = Path::open(config, cpus)?;
    let mut exchange = Samples::new();
    let mode = |host: &Faulting<'_>| host.space.options().window.faults;
    let times = |host| Times { mode: mode(host), fetch: Samples::new(), resolve: Samples::new() };
    let mut times: Vec<Times> = hosts.iter().map(times).collect();
    let rounds = hosts.iter().map(|host| host.fresh.len()).min().unwrap_or(0);
    let stop = Stop::new();
    scope(|threads| {
        let _ends = StopGuard(&stop);
        let mut ping = path.serve(threads, &stop, cpus);
        for round in 0..rounds {
            for (host, times) in hosts.iter().zip(&mut times) {
                let memory = host.space.memory(&host.fresh[round]);
                let count = memory.len() / (REGION * PAGE);
                raw::faults(times.mode, Server::Shared, count, |memory| {
                    touch(memory, 1, &mut times.resolve);
                })?;
                for _ in 0..count {
                    exchange.time_if(|| ping().map_err(io_error("the raw exchange failed")))?;
                }
                // Counts the roles' threads and the pager.
                let own = CpuMeter::own();
                let cpu = own.begin();
                touch(memory, REGION, &mut times.fetch);
                times.fetch.spent(cpu.end(), count as u64);
            }
        }
        Ok(Faults { hosts: times, exchange, cpus })
    })
}

impl Faults {
    /// Returns the rows, with their parts in words.
    pub(super) fn rows(&self, transport: Transport) -> impl Iterator<Item = Row> {
        self.hosts.iter().map(move |times| {
            let (resolve, exchange) = (times.resolve.quantile(0.5), self.exchange.quantile(0.5));
            let (place, how) = match self.cpus {
                Cpus::One => ("", "one CPU"),
                Cpus::Separate(_) => (".apart", "two CPUs: the roles spin on the other one"),
            };
            let (mode, server) = match times.mode {
                FaultMode::Handler => ("", "a thread serves faults"),
                FaultMode::Signal => (".signal", "the thread that faults serves itself"),
            };
            let row = times.fetch.row(&format!("mind.fault.{}{place}{mode}", transport.name()), None);
            let parts = format!(
                "baseline: a fault with its page at hand {resolve:.0} ns (p99 {:.0}), an exchange {exchange:.0} ns (p99 {:.0}); {how}; {server}",
                times.resolve.quantile(0.99),
                self.exchange.quantile(0.99)
            );
            Row { why: Some(parts), ..row.beside(Some(resolve + exchange)) }
        })
    }
}

/// The raw servers in place of switch and memory node.
enum Path {
    Datagrams {
        pinger: RawSocket,
        switch: RawSocket,
        node: RawSocket,
    },
    /// The rings of the pinger, the switch and the node.
    Rings {
        rings: Box<[RawRing; 3]>,
        dir: std::path::PathBuf,
    },
}

impl Path {
    fn open(config: &RackConfig, cpus: Cpus) -> Result<Self, Error> {
        let [own, switch, node]: [IpAddr; 3] =
            [config.control.address, config.switch.address, config.nodes[0].address];
        let waiting = if cpus == Cpus::One { Waiting::Block } else { Waiting::Spin };
        Ok(match config.transport {
            Transport::Udp => Self::Datagrams {
                pinger: RawSocket::open(own, waiting)?,
                switch: RawSocket::open(switch, waiting)?,
                node: RawSocket::open(node, waiting)?,
            },
            Transport::Shm => {
                let dir = config.rings().with_extension("raw");
                let rings = Box::new([
                    RawRing::open(&dir, own, switch, waiting)?,
                    RawRing::open(&dir, switch, node, waiting)?,
                    RawRing::open(&dir, node, own, waiting)?,
                ]);
                Self::Rings { rings, dir }
            }
        })
    }

    /// Starts the servers. The returned function makes one exchange and returns false when it was lost.
    fn serve<'s>(
        &'s mut self,
        threads: &'s Scope<'s, '_>,
        stop: &'s Stop,
        cpus: Cpus,
    ) -> Box<dyn FnMut() -> std::io::Result<bool> + 's> {
        match self {
            Self::Datagrams { pinger, switch, node } => {
                let address = |socket: &RawSocket| socket.address().expect("a bound socket has an address");
                let (home, node_at, switch_at) = (address(pinger), address(node), address(switch));
                begin(threads, cpus, move || node.serve(Onward::To(home), ANSWER_LEN, stop));
                begin(threads, cpus, move || switch.serve(Onward::To(node_at), REQUEST_LEN, stop));
                Box::new(move || pinger.exchange(switch_at, REQUEST_LEN))
            }
            Self::Rings { rings, .. } => {
                let [pinger, switch, node] = &mut **rings;
                begin(threads, cpus, move || node.serve(ANSWER_LEN, stop));
                begin(threads, cpus, move || switch.serve(REQUEST_LEN, stop));
                Box::new(move || pinger.exchange(REQUEST_LEN))
            }
        }
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        if let Self::Rings { dir, .. } = self {
            // A private directory in memory; leftovers do no harm.
            let _left = std::fs::remove_dir_all(dir);
        }
    }
}

/// Starts a raw server on the roles' CPU, which this thread's binding passes on, or apart.
fn begin<'s>(
    threads: &'s Scope<'s, '_>,
    cpus: Cpus,
    serve: impl FnOnce() -> std::io::Result<()> + Send + 's,
) {
    threads.spawn(move || {
        if let Cpus::Separate(cpu) = cpus {
            pin_to_cpu(cpu).expect("the roles run there");
        }
        serve().expect("a raw server works as long as it is asked");
    });
}

/// Sets the stop flag at the end of a measurement, also on failure: a scope waits for its threads.
struct StopGuard<'a>(&'a Stop);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.set();
    }
}
