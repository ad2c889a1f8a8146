//! `farmem bench pd3`: what preventive prefetching is made of, each part beside its baselines (PD3 5 to 8).
//!
//! `pd3.hostview.*` is the ladder of the paper's figure 4, beside the rate at which a core reads lines of a store of the same size: `hostview`. `pd3.zone.*` is the loading
//! zone, beside rings whose consumers share a head (figure 8): `zone`. `pd3.transfer.*` is how requests of many threads come to the DPU: `transfer`. `pd3.e2e.*` are whole
//! applications, and `pd3.path.*` what the DPU does for them: `e2e`.

mod e2e;
mod hostview;
mod rings;
mod transfer;
mod zone;

use crate::pulse::Racks;
use crate::{Outcome, Plan, Progress, Sheet};

/// Keys of the host view, unless the caller says otherwise: the paper's.
pub const KEYS: usize = 100_000_000;
/// The same of a short run.
const KEYS_QUICK: usize = 1_000_000;
/// Fewest keys that are measured.
pub const KEYS_MIN: usize = 1_000;

/// Measures what `plan` says, and tells it as it comes. `keys` are those of the host view.
///
/// # Errors
/// What keeps racks from starting, or far memory from answering.
pub fn run<R: Racks>(
    plan: &Plan,
    keys: Option<usize>,
    racks: &mut R,
    mut tell: impl FnMut(Progress<'_>),
) -> Result<Outcome, R::Failure> {
    let mut sheet = Sheet::new(&plan.only, &mut tell);
    let usual = if plan.quick { KEYS_QUICK } else { KEYS };
    let keys = keys.unwrap_or(usual).max(KEYS_MIN);
    if plan.wants("pd3.hostview.") {
        let rounds = if plan.quick { 2 } else { 9 };
        hostview::measure(hostview::Budget { keys, rounds }, &mut sheet);
    }
    zone::measure(plan, &mut sheet);
    transfer::measure(plan, &mut sheet);
    e2e::measure(plan, racks, &mut sheet)?;
    Ok(sheet.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mind::roles::Roles;
    use crate::pulse::NodeKind;
    use farmem::{Error, LinkProfile, Rack, RackConfig};
    use std::net::UdpSocket;

    /// Racks of threads of this process, over rings.
    struct Threads;

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
        type Rack = Running;
        type Failure = Error;

        fn start_with(&mut self, _: u8, _: NodeKind, memory: u64, _: &str) -> Result<Running, Error> {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("rack.toml");
            let [_, _, b, c] = std::process::id().to_be_bytes();
            let is_free = |net: &String| UdpSocket::bind((format!("{net}.1"), farmem::UDP_PORT)).is_ok();
            let mut nets = (1..=u8::MAX).map(|net| format!("127.{}.{}", 64 + b % 64, c ^ net));
            let net = nets.find(is_free).unwrap();
            let name = format!("pd3-{}", std::process::id());
            let text = format!(
                "name = \"{name}\"\ntransport = \"shm\"\nwaiting = \"block\"\nplacement = \"free\"\n\
                 [control]\naddress = \"{net}.1\"\nstate = \"state\"\n\
                 [switch]\naddress = \"{net}.2\"\n[hosts]\nfirst = \"{net}.200\"\ncount = 20\n\
                 [[node]]\nname = \"node1\"\naddress = \"{net}.11\"\nmemory = \"{memory} B\"\n"
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

        fn processes(&self, _: &Running) -> Vec<u32> {
            Vec::new()
        }
    }

    /// Every row is there with a figure, in a short run on a few keys, and no answer was wrong.
    #[test]
    fn every_row_is_there() {
        let plan = Plan { quick: true, ..Plan::default() };
        let outcome = run(&plan, Some(20_000), &mut Threads, |_| {}).unwrap();
        assert_eq!(outcome.wrong, 0);
        let ids: Vec<&str> = outcome.rows.iter().map(|row| &*row.id).collect();
        let of_applications = e2e::ids();
        let expected = hostview::IDS
            .into_iter()
            .chain(zone::IDS)
            .chain(transfer::IDS_OF_ROWS)
            .chain(of_applications.iter().map(String::as_str))
            .collect::<Vec<_>>();
        assert_eq!(ids, expected);
        for row in &outcome.rows {
            assert!(row.value.is_some_and(f64::is_finite), "{row:?}");
        }
    }
}
