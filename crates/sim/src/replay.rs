//! A trace played over a rack of blades with the paper's latencies: how far programs scale, and what the directory costs (MIND 7.1 to 7.3).
//!
//! [`replay`] plays a [`Workload`] on the hosts of a [`Setup`] and answers with an [`Outcome`]. The roles' own step functions
//! decide what happens to pages: [`farmem_switch::directory`], [`farmem_host::agent::Agent`], [`farmem_memnode::page_states::PageStates`],
//! [`farmem_control::splitting::Splitting`] and [`farmem_control::reset::Reset`]. Around them stand a clock, links that take time and can be
//! full, and threads that wait for their pages. Nothing is lost here; [`crate::pages`] is for that.
//!
//! Pages have no bytes, and processors no caches: an access that needs no page takes [`Profile::local`], whatever it is.

mod cores;
mod directory;
mod hosts;
mod links;
mod profile;
mod rack;
mod tables;
#[cfg(test)]
mod tests;
mod workload;

pub use profile::{MATCH_ACTION_RULES_MAX, Profile};
pub use tables::Tables;
pub use workload::Workload;

pub use farmem_machine::Duration;
use farmem_wire::message::CACHING_HOSTS_MAX;

/// The systems that are compared (MIND 7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum System {
    /// Directory in the switch; stores wait for their page, as on x86.
    Mind,
    /// The same, where a store does not wait, and a load of a page with a store before it does (partial store order).
    MindPso,
    /// The same with as many slots as there are pages, so that each page is a region of its own.
    MindPsoPlus,
    /// A software DSM: the directory of each page is at the blade that is its home, and every access passes a library. Partial store order.
    Gam,
    /// Remote memory as swap space of one blade: no directory, and nothing is shared between blades.
    Swap,
}

impl System {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Mind, Self::MindPso, Self::MindPsoPlus, Self::Gam, Self::Swap];

    /// As it is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mind => "mind",
            Self::MindPso => "mind-pso",
            Self::MindPsoPlus => "mind-pso+",
            Self::Gam => "gam",
            Self::Swap => "swap",
        }
    }

    /// The system of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|system| system.name() == name)
    }

    /// True when several blades can share pages with it.
    #[must_use]
    pub const fn shares(self) -> bool {
        !matches!(self, Self::Swap)
    }

    const fn is_pso(self) -> bool {
        matches!(self, Self::MindPso | Self::MindPsoPlus | Self::Gam)
    }
}

/// How large the directory's regions are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Regions {
    /// Bounded splitting within so many slots, an epoch of this length.
    Bounded {
        /// Slots.
        slots: usize,
        /// Bytes of a region at first; more when else not all pages had an entry within 95 % of the slots: entries are made when memory is
        /// allocated (MIND 6.3).
        initial: u64,
        /// The epoch.
        epoch: Duration,
    },
    /// Always 2^order pages, and slots for all.
    Fixed {
        /// The order, up to [`farmem_wire::message::REGION_ORDER_MAX`].
        order: u8,
    },
}

/// What is replayed on what.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The system.
    pub system: System,
    /// Compute blades: 1 to [`CACHING_HOSTS_MAX`]; 1 for [`System::Swap`].
    pub hosts: u16,
    /// Threads that run at once on each.
    pub threads: u16,
    /// Pages that a blade's cache holds.
    pub local_pages: usize,
    /// The directory; not for those systems that have another.
    pub regions: Regions,
    /// What things take.
    pub profile: Profile,
    /// The seed of the jitter of retries.
    pub seed: u64,
}

impl Setup {
    /// The paper's relations for a workload of another size: local memory for a quarter of its pages, and 30,000 slots for 2 GiB of them (MIND 7).
    /// Beside those there is a slot for each block of 2 MiB it touches: that many entries it needs whatever it does, for stacks above all, which do
    /// not shrink with the workload.
    #[must_use]
    pub fn in_proportion(system: System, hosts: u16, workload: &Workload) -> Self {
        let profile = Profile::MIND;
        let pages = workload.pages();
        let blocks = workload.regions(farmem_wire::message::REGION_ORDER_MAX);
        let slots = (profile.slots * pages).div_ceil(profile.footprint_pages) + blocks;
        let regions = Regions::Bounded { slots, initial: profile.region_initial, epoch: profile.epoch };
        let local_pages = (pages * profile.cache_pages).div_ceil(profile.footprint_pages).max(1);
        Self { system, hosts, threads: profile.threads, local_pages, regions, profile, seed: 1 }
    }

    /// The directory that the system really has.
    const fn directory(&self) -> Regions {
        match self.system {
            System::MindPsoPlus | System::Gam => Regions::Fixed { order: 0 },
            _ => self.regions,
        }
    }
}

/// What came of it.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Outcome {
    /// Until the last thread was through.
    pub runtime: Duration,
    /// Visits of pages.
    pub visits: u64,
    /// Accesses in all.
    pub accesses: u64,
    /// Visits that needed a page or a right that the blade did not have.
    pub faults: u64,
    /// Pages sent to blades.
    pub fetches: u64,
    /// Pages, or rights to write them, taken from blades for others.
    pub invalidations: u64,
    /// Those of them that no blade had asked for.
    pub false_invalidations: u64,
    /// Pages written back.
    pub write_backs: u64,
    /// Requests that were told to come again.
    pub busy: u64,
    /// Directory entries reset because their slot was needed.
    pub resets: u64,
    /// Regions split.
    pub splits: u64,
    /// Regions merged.
    pub merges: u64,
    /// Bytes that the links of blades and memory nodes carried.
    pub bytes: u64,
    /// Slots in use, at the end of each epoch.
    pub slots: Vec<(Duration, usize)>,
    /// The most slots in use at any time.
    pub slots_max: usize,
}

impl Outcome {
    /// Accesses a second, of all threads together.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
    pub fn throughput(&self) -> f64 {
        self.accesses as f64 / (self.runtime.as_nanos() as f64 / 1e9)
    }
}

/// Plays the workload. `progress` is told how many visits were made, now and then.
///
/// # Panics
/// When the setup has values that its fields rule out, or a role breaks an invariant of its own.
pub fn replay(workload: &Workload, setup: &Setup, progress: &mut dyn FnMut(u64)) -> Outcome {
    assert!(
        (1..=CACHING_HOSTS_MAX).contains(&setup.hosts) && setup.threads > 0 && setup.local_pages > 0,
        "a rack with blades"
    );
    assert!(setup.system.shares() || setup.hosts == 1, "only one blade swaps");
    rack::Rack::new(workload, setup).run(progress)
}
