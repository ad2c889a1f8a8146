//! Exhaustive exploration of a small rack: all states that the step functions of the coherence protocol can
//! reach under loss, duplication, reordering, eviction, crashes and restarts.
//!
//! [`explore`] takes a [`Config`] (the number of hosts and pages, and the fault budget) and visits each
//! reachable state once, breadth first. In each state it checks that there is one writer or many readers,
//! that readers have the latest bytes, that nothing is lost in silence, and (if `live`) that the rack comes
//! to rest without further faults. On a violation it reports the shortest trace. [`Guards`] disable the
//! protocol's safety measures one by one: the explorer must detect each.
//!
//! The roles are [`farmem_switch::directory::Entry`], [`farmem_host::agent::Agent`],
//! [`farmem_memnode::page_states::PageStates`] and [`farmem_control::reset::Reset`], unchanged. Time is
//! abstract: a timer may fire whenever nothing is in flight, and early as often as the configuration allows.

mod canonical;
mod claims;
mod configs;
mod control;
mod enabled;
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

/// The number of times that an event may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget(u8);

impl Budget {
    /// No limit.
    pub const UNLIMITED: Self = Self(7);

    /// Returns a budget of `times`, at most 6.
    ///
    /// # Panics
    ///
    /// If `times` is larger.
    #[must_use]
    pub const fn of(times: u8) -> Self {
        assert!(times < Self::UNLIMITED.0, "a budget is small or unlimited");
        Self(times)
    }

    /// Returns true if the event may happen.
    #[must_use]
    pub const fn is_any(self) -> bool {
        self.0 > 0
    }

    /// Returns true if there is no limit.
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

/// The remaining budgets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remaining {
    /// Page requests of each host.
    pub requests: [Budget; 3],
    /// Lost messages.
    pub losses: Budget,
    /// Duplicated messages: delivered, and kept in flight.
    pub copies: Budget,
    /// Timers that fire while a message is in flight.
    pub early: Budget,
    /// Crashes of hosts.
    pub crashes: Budget,
    /// Restarts of the switch.
    pub restarts: Budget,
    /// Resets requested by a host or the control plane.
    pub resets: Budget,
    /// Traversals.
    pub visits: Budget,
    /// Regions split.
    pub splits: Budget,
    /// Regions merged.
    pub merges: Budget,
}

/// A configuration of a rack to explore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The configuration's number.
    pub number: u8,
    /// Hosts: 2 or 3.
    pub hosts: u8,
    /// Pages: 1 or 2.
    pub pages: u8,
    /// True if two pages begin as two regions.
    pub apart: bool,
    /// The budgets.
    pub left: Remaining,
    /// Maximum number of messages in flight; moves that exceed it are skipped.
    pub flight_max: usize,
    /// True if each state must come to rest.
    pub live: bool,
    /// The disabled guards.
    pub without: Guards,
    /// Maximum number of states.
    pub states_max: u64,
}

/// The verdict of an exploration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every state was visited, and no claim is violated.
    Fine,
    /// A claim can be violated.
    Unsafe,
    /// A state is reachable from which the rack does not come to rest.
    Stuck,
    /// No violation so far: [`Config::states_max`] was reached.
    TooMany,
}

/// The shortest trace to a violation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The violation.
    pub what: String,
    /// True if the rack makes no progress, without a violated claim.
    pub stuck: bool,
    /// The events, in order.
    pub trace: Vec<String>,
}

/// The result of an exploration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The configuration.
    pub config: Config,
    /// The verdict.
    pub verdict: Verdict,
    /// Number of distinct states.
    pub states: u64,
    /// Number of transitions.
    pub transitions: u64,
    /// Length of the longest shortest path to a state.
    pub depth: u32,
    /// Maximum number of steps to rest in one walk.
    pub rest_steps: usize,
    /// The violation, if any.
    pub finding: Option<Finding>,
}

impl Verdict {
    /// Returns the verdict as it is printed.
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

/// Visits every state of a rack. Calls `progress` from time to time with the number of states.
///
/// # Panics
///
/// If the configuration has too many hosts or pages, or a role violates an invariant of its own.
pub fn explore(config: Config, progress: &mut dyn FnMut(u64)) -> Report {
    assert!((2..=3).contains(&config.hosts) && (1..=2).contains(&config.pages), "a small rack");
    Search::new(config).run(progress)
}
