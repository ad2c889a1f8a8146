//! Every state of a small rack: the coherence protocol's own step functions, walked through all that loss, copies, any order, eviction,
//! crashes and restarts can make of them.
//!
//! [`explore`] takes a [`Config`] (how many hosts and pages, how much may go wrong) and visits, breadth first, each state that can be
//! reached, once. It checks in each that there is one writer or many readers, that readers have the latest bytes, that nothing is
//! lost in silence, and (when `live`) that the rack comes to rest once nothing goes wrong any more. When a promise is
//! broken it tells the shortest way there. [`Guards`] take what the protocol does for safety away, piece by piece: the explorer must
//! find each.
//!
//! The roles here are [`farmem_switch::directory::Entry`], [`farmem_host::agent::Agent`], [`farmem_memnode::page_states::PageStates`] and
//! [`farmem_control::reset::Reset`], as they are. Time is not in it: a timer may fire whenever nothing is under way, and as often
//! early as the configuration says.

mod canonical;
mod claims;
mod configs;
mod control;
mod guards;
mod message;
mod model;
mod moves;
mod search;
#[cfg(test)]
mod tests;

pub use configs::{CONFIGS, GATE, without};
pub use guards::{Guard, Guards};

use search::Search;

/// How often something may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget(u8);

impl Budget {
    /// As often as it may.
    pub const UNLIMITED: Self = Self(7);

    /// So many times, at most 6.
    ///
    /// # Panics
    /// For more.
    #[must_use]
    pub const fn of(times: u8) -> Self {
        assert!(times < Self::UNLIMITED.0, "a budget is small or unlimited");
        Self(times)
    }

    /// True when it may happen.
    #[must_use]
    pub const fn is_any(self) -> bool {
        self.0 > 0
    }

    /// True when there is no limit.
    #[must_use]
    pub const fn is_unlimited(self) -> bool {
        self.0 == Self::UNLIMITED.0
    }

    fn left(self) -> usize {
        self.0.into()
    }

    fn spent(self) -> Self {
        assert!(self.is_any(), "what may not happen does not");
        if self.is_unlimited() { self } else { Self(self.0 - 1) }
    }
}

/// How much may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// Page requests, of each host.
    pub requests: [Budget; 3],
    /// Messages lost.
    pub losses: Budget,
    /// Messages that arrive and stay, to arrive again at any time.
    pub copies: Budget,
    /// Timers that fire while something is under way.
    pub early: Budget,
    /// Hosts that die.
    pub crashes: Budget,
    /// Restarts of the switch.
    pub restarts: Budget,
    /// Resets that a host or the control plane asks for.
    pub resets: Budget,
    /// Traversals.
    pub visits: Budget,
    /// Regions split.
    pub splits: Budget,
    /// Regions merged.
    pub merges: Budget,
}

/// A rack to explore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Its name among the others.
    pub number: u8,
    /// Hosts: 2 or 3.
    pub hosts: u8,
    /// Pages: 1 or 2.
    pub pages: u8,
    /// Two pages begin as two regions, not as one.
    pub apart: bool,
    /// How much may happen.
    pub left: Left,
    /// Messages in flight at once; what would lead to more is not looked at.
    pub flight_max: usize,
    /// Whether each state must come to rest.
    pub live: bool,
    /// Guards taken away.
    pub without: Guards,
    /// States after which to stop.
    pub states_max: u64,
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every state was seen, and all is well.
    Fine,
    /// A promise can be broken.
    Unsafe,
    /// A state can be reached from which there is no rest.
    Stuck,
    /// All is well as far as the walk went: [`Config::states_max`] was reached.
    TooMany,
}

/// The shortest way to something wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What is wrong there.
    pub what: String,
    /// It does not get on, though nothing is broken.
    pub stuck: bool,
    /// What has to happen, in order.
    pub trace: Vec<String>,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// What was explored.
    pub config: Config,
    /// How it ended.
    pub verdict: Verdict,
    /// Different states.
    pub states: u64,
    /// Steps from one to another.
    pub transitions: u64,
    /// Steps of the longest of the shortest ways to a state.
    pub depth: u32,
    /// The most steps to rest that were walked at once.
    pub rest_steps: usize,
    /// What is wrong, if anything.
    pub finding: Option<Finding>,
}

impl Verdict {
    /// As it is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Unsafe => "unsafe",
            Self::Stuck => "stuck",
            Self::TooMany => "too many",
        }
    }
}

/// Visits every state of a rack. `progress` is told how many there are so far, now and then.
///
/// # Panics
/// When the configuration has more hosts or pages than it may, or a role breaks an invariant of its own.
pub fn explore(config: Config, progress: &mut dyn FnMut(u64)) -> Report {
    assert!((2..=3).contains(&config.hosts) && (1..=2).contains(&config.pages), "a small rack");
    Search::new(config).run(progress)
}
