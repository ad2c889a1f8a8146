//! The link between host and DPU, where it stands for another one than shared memory: PCIe of some rate, with some delay.
//!
//! Both directions have the profile. What is answered is held back until it would have arrived; so is what is asked. All processes share the link.

use farmem_link::{LinkProfile, Shaper};
use farmem_machine::{Instant, Rng};
use std::sync::{Mutex, PoisonError};

/// Both directions of the link.
#[derive(Debug)]
pub(super) struct Intra {
    to_dpu: Mutex<Shaper>,
    to_host: Mutex<Shaper>,
}

impl Intra {
    /// `None` where shared memory is the link.
    pub(super) fn new(profile: LinkProfile) -> Option<Self> {
        // None of its frames is lost, so nothing is left to chance.
        let shaper = || Mutex::new(Shaper::new(profile, Rng::from_number(0)));
        (!profile.is_none()).then(|| Self { to_dpu: shaper(), to_host: shaper() })
    }

    /// When the DPU has `bytes` that a process wrote at `now`.
    pub(super) fn reach_dpu(&self, now: Instant, bytes: usize) -> Instant {
        arrives(&self.to_dpu, now, bytes)
    }

    /// When a process has `bytes` that the DPU wrote at `now`.
    pub(super) fn reach_host(&self, now: Instant, bytes: usize) -> Instant {
        arrives(&self.to_host, now, bytes)
    }
}

fn arrives(way: &Mutex<Shaper>, now: Instant, bytes: usize) -> Instant {
    way.lock().unwrap_or_else(PoisonError::into_inner).arrives(now, bytes as u64)
}
