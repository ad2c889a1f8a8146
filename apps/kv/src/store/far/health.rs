//! Which allocations of far memory fail, and what the operator and the clients learn of it.
//!
//! Key type: [`Health`]. An allocation has a [`Fault`] from the first operation that fails on it to the next one that
//! succeeds.

use farmem::api::ErrorCode;
use farmem::{Error, Ticket};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A failed request to the control plane is repeated after this many times its duration: meanwhile clients are
/// served.
const PAUSE_TIMES: u32 = 10;
/// Minimum duration of a failed request, for this pause.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Why the operations on an allocation fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The bytes are lost. Operations return that error at once.
    Lost,
    /// No answer came. The text names the silent role.
    Silent(String),
}

/// Bytes of which the state has changed since the last notice, and an error for one of them.
#[derive(Default, Debug)]
pub(super) struct Changed {
    pub(super) bytes: usize,
    pub(super) error: String,
}

/// Counts and notices about allocations that fail.
#[derive(Debug)]
pub(crate) struct Health {
    /// Operations that nothing waits for, and their allocations.
    pub(super) probes: BTreeMap<Ticket, u64>,
    /// The allocation that was probed last.
    pub(super) probed: u64,
    /// The time from which the control plane may be asked for memory again.
    pub(super) asks_again: Option<Instant>,
    /// Why the control plane was not asked, or did not answer, the last time.
    pub(super) refusal: String,
    pub(super) lost: Changed,
    pub(super) silent: Changed,
    pub(super) back: Changed,
    /// READs, WRITEs and allocations that failed.
    pub(crate) errors: u64,
    /// Bytes of chunks that were lost with their memory nodes.
    pub(crate) lost_bytes: u64,
}

impl Health {
    pub(super) const fn new() -> Self {
        Self {
            probes: BTreeMap::new(),
            probed: 0,
            asks_again: None,
            refusal: String::new(),
            lost: Changed { bytes: 0, error: String::new() },
            silent: Changed { bytes: 0, error: String::new() },
            back: Changed { bytes: 0, error: String::new() },
            errors: 0,
            lost_bytes: 0,
        }
    }

    /// Makes a probe of an operation on an allocation that has not ended in time.
    pub(super) fn goes_on(&mut self, ticket: Ticket, slab: u64) {
        self.probes.insert(ticket, slab);
    }

    /// Returns the allocation that an operation probed, if it was a probe.
    pub(super) fn probed(&mut self, ticket: Ticket) -> Option<u64> {
        self.probes.remove(&ticket)
    }

    /// Returns whether the control plane did not answer a moment ago.
    pub(super) fn is_paused(&self) -> bool {
        self.asks_again.is_some_and(|again| Instant::now() < again)
    }

    /// Notes the result of a request to the control plane that began at `begun`.
    pub(super) fn note_answer(&mut self, begun: Instant, error: Option<&Error>) {
        self.asks_again = None;
        let Some(error) = error.filter(|error| is_withheld(error)) else { return };
        self.errors += 1;
        self.refusal = match error {
            Error::Unreachable { what } => what.clone(),
            other => other.to_string(),
        };
        let now = Instant::now();
        self.asks_again = Some(now + now.duration_since(begun).max(PAUSE_MIN) * PAUSE_TIMES);
    }

    /// Returns lines for the operator about changes since the last call.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        let take = |changed: &mut Changed| Some(std::mem::take(changed)).filter(|changed| changed.bytes > 0);
        let lost = take(&mut self.lost).map(|Changed { bytes, error }| {
            format!(
                "{} MiB of this server's far memory are lost: {error}; keys there answer FARMEMORY until they are written anew, deleted, or dropped with DEBUG DROP-LOST",
                bytes >> 20
            )
        });
        let silent = take(&mut self.silent).map(|Changed { bytes, error }| {
            format!(
                "{} MiB of this server's far memory do not answer: {error}; keys there answer FARMEMORY until it does",
                bytes >> 20
            )
        });
        let back = take(&mut self.back);
        let back = back.map(|changed| format!("{} MiB of far memory answer again", changed.bytes >> 20));
        lost.into_iter().chain(silent).chain(back).collect()
    }
}

/// Returns whether an error means that the network or a role withholds far memory, as opposed to a lack of it.
pub(crate) fn is_withheld(error: &Error) -> bool {
    match error {
        Error::Refused(refusal) => {
            matches!(refusal.code, ErrorCode::Unavailable | ErrorCode::TooSlow | ErrorCode::Storage)
        }
        Error::Full { .. } | Error::QueueFull => false,
        _ => true,
    }
}
