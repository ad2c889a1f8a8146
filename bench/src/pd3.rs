//! `farmem bench pd3`: the parts of preventive prefetching, each compared with its baselines (PD3 5 to 8).
//!
//! `pd3.hostview.*` is the ladder of the paper's figure 4, compared with the rate at which a core reads lines
//! of an equally large store: `hostview`. `pd3.zone.*` is the loading zone, compared with rings whose
//! consumers share a head (figure 8): `zone`. `pd3.transfer.*` measures the request path of many threads to
//! the DPU, `transfer`, and its effect, `far`. `pd3.shortest.*` is the path of a key, direct and through the
//! host: `shortest`. `pd3.e2e.*` are whole applications, and `pd3.path.*` the DPU's work for them: `e2e`.

mod e2e;
mod far;
mod hostview;
mod rings;
mod shortest;
mod transfer;
mod zone;

use crate::{Plan, Racks, Sheet};

/// The domain of all measurements.
const DOMAIN: &str = "pd3";

/// The configuration of a DPU process that caches nothing.
const DPU: &str = "[dpu]\nsocket = \"dpu/socket\"\ncaching = \"off\"\n";

/// Keys of the host view by default: the paper's.
pub const KEYS: usize = 100_000_000;
/// Keys of the host view in a short run.
const KEYS_QUICK: usize = 1_000_000;
/// Smallest number of keys.
pub const KEYS_MIN: usize = 1_000;

/// Measures what `plan` selects.
///
/// # Errors
/// An error when a rack does not start or far memory does not answer.
pub(crate) fn measure<R: Racks>(plan: &Plan, racks: &mut R, sheet: &mut Sheet<'_>) -> Result<(), R::Failure> {
    let usual = if plan.quick { KEYS_QUICK } else { KEYS };
    let keys = plan.keys.unwrap_or(usual).max(KEYS_MIN);
    if plan.wants("pd3.hostview.") {
        let rounds = if plan.quick { 2 } else { 9 };
        hostview::measure(hostview::Budget { keys, rounds }, sheet);
    }
    zone::measure(plan, sheet);
    transfer::measure(plan, sheet);
    far::measure(plan, racks, sheet)?;
    shortest::measure(plan, racks, sheet)?;
    e2e::measure(plan, racks, sheet)?;
    Ok(())
}

/// Returns the row ids of a full run, in order.
#[cfg(test)]
pub(crate) fn ids() -> Vec<String> {
    let of_parts = hostview::IDS
        .into_iter()
        .chain(zone::IDS)
        .chain(transfer::IDS_OF_ROWS)
        .chain(far::IDS)
        .chain(shortest::IDS);
    of_parts.map(str::to_owned).chain(e2e::ids()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::Roles;
    use crate::{Bench, NodeKind, Shape};
    use farmem::{Error, LinkProfile, Rack, RackConfig};
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicU8, Ordering};

    /// Racks of threads of this process, over rings.
    struct Threads;

    /// The number of racks so far.
    static RACKS: AtomicU8 = AtomicU8::new(0);

    struct Running {
        rack: Rack,
        _roles: Roles,
        _directory: tempfile::TempDir,
    }

    impl AsRef<Rack> for Running {
        fn as_ref(&self) -> &Rack {
            &self.rack
        }
    }

    impl Racks for Threads {
        type Description = Box<RackConfig>;
        type Rack = Running;
        type Failure = Error;

        fn describe(&mut self, shape: Shape) -> Result<Box<RackConfig>, Error> {
            unreachable!("PD3 is measured on racks that run, and {shape:?} was asked for")
        }

        fn start_with(&mut self, _: u8, _: NodeKind, memory: u64, more: &str) -> Result<Running, Error> {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("rack.toml");
            let [_, _, b, c] = std::process::id().to_be_bytes();
            let is_free = |net: &String| UdpSocket::bind((format!("{net}.1"), farmem::UDP_PORT)).is_ok();
            // Tests run in parallel: each rack starts its search for a free network at another one.
            let number = RACKS.fetch_add(1, Ordering::Relaxed);
            let nets = (1..=u8::MAX).map(|net| c ^ net.wrapping_add(number.wrapping_mul(16)));
            let mut nets = nets.map(|net| format!("127.{}.{net}", 64 + b % 64));
            let net = nets.find(is_free).unwrap();
            let name = format!("pd3-{}-{number}", std::process::id());
            let text = format!(
                "name = \"{name}\"\ntransport = \"shm\"\nwaiting = \"block\"\nplacement = \"free\"\n\
                 [control]\naddress = \"{net}.1\"\nstate = \"state\"\n\
                 [switch]\naddress = \"{net}.2\"\n[hosts]\nfirst = \"{net}.200\"\ncount = 20\n\
                 [[node]]\nname = \"node1\"\naddress = \"{net}.11\"\nmemory = \"{memory} B\"\n{more}"
            );
            std::fs::write(&file, text).unwrap();
            let config = RackConfig::load(&file)?;
            let roles = Roles::start(&config)?;
            Ok(Running { rack: Rack::running(config), _roles: roles, _directory: directory })
        }

        fn start_over(
            &mut self,
            _: LinkProfile,
            nodes: u8,
            memory: u64,
            more: &str,
        ) -> Result<Running, Error> {
            self.start_with(nodes, NodeKind::Offload, memory, more)
        }

        fn role(&self, _: &Running, _: &str) -> Option<u32> {
            None
        }

        fn begin_again(&mut self, _: &mut Running, name: &str) -> Result<(), Error> {
            unreachable!("{name} is a thread and does not die")
        }

        fn processes(&self, _: &Running) -> Vec<u32> {
            Vec::new()
        }
    }

    /// Every row has a figure in a short run with few keys, no answer was wrong, and the DPU copied no byte
    /// of the requests (PROTOCOL 18.28).
    #[test]
    fn every_row_is_there() {
        let plots = tempfile::tempdir().unwrap();
        let keys = Some(20_000);
        let plan = Plan { quick: true, keys, plots: Some(plots.path().into()), ..Plan::default() };
        let outcome = crate::run_bench(Bench::Pd3, &plan, &mut Threads, |_| {}).unwrap();
        assert_eq!(outcome.wrong, 0);
        let found: Vec<&str> = outcome.rows.iter().map(|row| &*row.id).collect();
        assert_eq!(found, ids());
        for row in &outcome.rows {
            assert!(row.value.is_some_and(f64::is_finite), "{row:?}");
        }
        let copies = outcome.rows.iter().find(|row| row.id == "pd3.transfer.copies").unwrap();
        assert!(copies.value == Some(0.0) && copies.n > 1_000, "{copies:?}");
        // All figures but 20, which has no rows, and those of 1 to 9 that are no pictures of machines.
        let drawn = std::fs::read_dir(plots.path()).unwrap().count();
        assert_eq!(drawn, 3 + 14);
    }

    /// Leap reads a sequence ahead, a window of eight pages at each miss after the first few; of random
    /// requests it reads nothing ahead (PD3 8.1).
    #[test]
    fn leap_reads_sequences_ahead() {
        let rack = Threads.start_with(1, NodeKind::Offload, 32 << 20, "").unwrap();
        let [(in_turn, ahead), (by_chance, ahead_by_chance)] =
            e2e::by_leap(rack.as_ref().config().unwrap().clone()).unwrap();
        assert!(in_turn < 400 / 6 && ahead > 300, "{in_turn} missed, {ahead} read ahead");
        assert_eq!(ahead_by_chance, 0);
        assert!((300..=400).contains(&by_chance), "{by_chance}");
    }
}
