//! A trace played over a rack of blades with the paper's latencies: how far programs scale, and the cost of
//! the directory (MIND 7.1 to 7.3).
//!
//! [`replay`] plays a [`Workload`] on the hosts of a [`Setup`] and returns an [`Outcome`]. The roles' own
//! step functions decide about pages: [`farmem_switch::directory`], [`farmem_host::agent::Agent`],
//! [`farmem_memnode::page_states::PageStates`], [`farmem_control::splitting::Splitting`] and
//! [`farmem_control::reset::Reset`]. Around them are a clock, links with latency and bandwidth, and threads
//! that wait for their pages. Nothing is lost here; [`crate::pages`] is for that.
//!
//! Pages have no bytes, and processors no caches: every access that needs no page takes [`Profile::local`].

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

/// The compared systems (MIND 7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum System {
    /// Directory in the switch; stores wait for their page, as on x86.
    Mind,
    /// [`System::Mind`] with partial store order: a store does not wait, and a load of a page waits for
    /// earlier stores to it.
    MindPso,
    /// [`System::MindPso`] with as many slots as pages, so that each page is a region of its own.
    MindPsoPlus,
    /// A software DSM: the directory of each page is at its home blade, and every access passes a library.
    /// Partial store order.
    Gam,
    /// Remote memory as swap space of one blade: no directory, and no sharing between blades.
    Swap,
}

impl System {
    /// All systems.
    pub const ALL: [Self; 5] = [Self::Mind, Self::MindPso, Self::MindPsoPlus, Self::Gam, Self::Swap];

    /// Returns the system's printed name.
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

    /// Returns the system with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|system| system.name() == name)
    }

    /// Returns true if several blades can share pages.
    #[must_use]
    pub const fn shares(self) -> bool {
        !matches!(self, Self::Swap)
    }

    const fn is_pso(self) -> bool {
        matches!(self, Self::MindPso | Self::MindPsoPlus | Self::Gam)
    }
}

/// The sizes of the directory's regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Regions {
    /// Bounded splitting with a limit of slots.
    Bounded {
        /// Number of slots.
        slots: usize,
        /// Initial region length in bytes. Regions begin larger if otherwise not all pages had an entry
        /// within 95 % of the slots: entries are made at allocation (MIND 6.3).
        initial: u64,
        /// Length of an epoch.
        epoch: Duration,
    },
    /// Regions of 2^order pages, and slots for all.
    Fixed {
        /// The order, up to [`farmem_wire::message::REGION_ORDER_MAX`].
        order: u8,
    },
}

/// The parameters of a replay.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The system.
    pub system: System,
    /// Number of compute blades: 1 to [`CACHING_HOSTS_MAX`]; 1 for [`System::Swap`].
    pub hosts: u16,
    /// Number of concurrent threads on each blade.
    pub threads: u16,
    /// Capacity of a blade's cache in pages.
    pub local_pages: usize,
    /// The directory's regions; ignored by systems with a directory of their own.
    pub regions: Regions,
    /// The hardware.
    pub profile: Profile,
    /// The seed of the retry jitter.
    pub seed: u64,
}

impl Setup {
    /// Returns the paper's proportions for a workload of another size: local memory for a quarter of its
    /// pages, and 30,000 slots per 2 GiB (MIND 7). In addition there is a slot for each block of 2 MiB it
    /// touches: the workload always needs that many entries, mainly for stacks, which do not shrink with it.
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

    /// Returns the system's actual directory.
    const fn directory(&self) -> Regions {
        match self.system {
            System::MindPsoPlus | System::Gam => Regions::Fixed { order: 0 },
            _ => self.regions,
        }
    }
}

/// The result of a replay.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Outcome {
    /// Time until the last thread ended.
    pub runtime: Duration,
    /// Number of page visits.
    pub visits: u64,
    /// Number of accesses.
    pub accesses: u64,
    /// Number of visits that needed a page or a right that the blade did not have.
    pub faults: u64,
    /// Number of pages sent to blades.
    pub fetches: u64,
    /// Number of pages, or write rights, revoked for other blades.
    pub invalidations: u64,
    /// Number of invalidated pages that no blade had requested.
    pub false_invalidations: u64,
    /// Number of pages written back.
    pub write_backs: u64,
    /// Number of requests answered with `Busy`.
    pub busy: u64,
    /// Number of directory entries reset because their slot was needed.
    pub resets: u64,
    /// Number of region splits.
    pub splits: u64,
    /// Number of region merges.
    pub merges: u64,
    /// Number of bytes on the links of blades and memory nodes.
    pub bytes: u64,
    /// Slots in use at the end of each epoch.
    pub slots: Vec<(Duration, usize)>,
    /// Maximum number of slots in use.
    pub slots_max: usize,
}

impl Outcome {
    /// Returns the accesses per second of all threads together.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
    pub fn throughput(&self) -> f64 {
        self.accesses as f64 / (self.runtime.as_nanos() as f64 / 1e9)
    }
}

/// Plays the workload. Calls `progress` from time to time with the number of visits made.
///
/// # Panics
///
/// If the setup has values that its fields rule out, or a role violates an invariant of its own.
pub fn replay(workload: &Workload, setup: &Setup, progress: &mut dyn FnMut(u64)) -> Outcome {
    assert!(
        (1..=CACHING_HOSTS_MAX).contains(&setup.hosts) && setup.threads > 0 && setup.local_pages > 0,
        "a rack with blades"
    );
    assert!(setup.system.shares() || setup.hosts == 1, "only one blade swaps");
    rack::Rack::new(workload, setup).run(progress)
}
