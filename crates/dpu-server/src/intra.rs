//! The emulated link between host and DPU, for example PCIe with a rate and a delay.
//!
//! Both directions have the profile, and all processes share the link. Requests and answers are held back until they
//! would have arrived.

use farmem_link::{LinkProfile, Shaper};
use farmem_machine::{Instant, Rng};
use std::sync::{Mutex, PoisonError};

/// Both directions of the emulated link.
#[derive(Debug)]
pub(super) struct Intra {
    to_dpu: Mutex<Shaper>,
    to_host: Mutex<Shaper>,
}

impl Intra {
    /// Creates the link; `None` if the profile is that of plain shared memory.
    pub(super) fn new(profile: LinkProfile) -> Option<Self> {
        // The profile loses no frame, so the random numbers are not used.
        let shaper = || Mutex::new(Shaper::new(profile, Rng::from_number(0)));
        (!profile.is_none()).then(|| Self { to_dpu: shaper(), to_host: shaper() })
    }

    /// Returns the time at which the DPU has `bytes` that a process wrote at `now`.
    pub(super) fn reach_dpu(&self, now: Instant, bytes: usize) -> Instant {
        arrives(&self.to_dpu, now, bytes)
    }

    /// Returns the time at which a process has `bytes` that the DPU wrote at `now`.
    pub(super) fn reach_host(&self, now: Instant, bytes: usize) -> Instant {
        arrives(&self.to_host, now, bytes)
    }
}

fn arrives(way: &Mutex<Shaper>, now: Instant, bytes: usize) -> Instant {
    way.lock().unwrap_or_else(PoisonError::into_inner).arrives(now, bytes as u64)
}
