//! A link with a profile: frames leave at the profile's rate and arrive after its delay.
//!
//! Key type: [`PacedLink`], a wrapper of either other link. The sender holds frames back, so both directions
//! are paced if both ends have the profile. A link without a profile has no wrapper, and therefore no cost.
//!
//! While a paced link waits for frames, it wakes when the first held frame is due. A sleeping link uses the
//! system's finest timers ([`Waiting::Precise`]), whose wake-up takes tens of microseconds on many machines.
//! A polling link wakes at once. Frames are never early; their lateness is counted ([`held_back`]).

use crate::profile::LinkProfile;
use crate::shaper::{Shaped, Shaper};
use crate::{Clock, EachRun, FRAME_MAX, Link, LinkCounters, Parcel, Sleeper, Wait, Waiting, WakeAt, Waker};
use farmem_machine::{Duration, Instant, Port, Rng};
use farmem_wire::{Gid, bth};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// A link whose frames follow a [`LinkProfile`].
///
/// A drop sends all held frames at once.
#[derive(Debug)]
pub struct PacedLink<L: Link> {
    link: L,
    waiting: Waiting,
    clock: Clock,
    shaper: Shaper,
    /// The waker of the thread that sleeps at the link, for frames of other threads.
    waker: Waker,
    counters: LinkCounters,
}

impl<L: Link> PacedLink<L> {
    /// Adds a profile to `link`, which was opened with `waiting`; `seed` determines the lost frames.
    ///
    /// # Errors
    /// The system's error if it has no free file descriptors.
    pub fn new(link: L, waiting: Waiting, profile: LinkProfile, seed: [u8; 32]) -> io::Result<Self> {
        let (waker, shaper) = (link.waker()?, Shaper::new(profile, Rng::from_seed(seed)));
        Ok(Self { link, waiting, clock: Clock::start(), shaper, waker, counters: LinkCounters::default() })
    }

    /// Sends the due frames, without a flush.
    fn release(&mut self) {
        if self.shaper.next().is_none() {
            return;
        }
        let now = self.clock.now();
        let Self { link, shaper, counters, .. } = self;
        let before = (counters.paced, counters.late_ns);
        shaper.release(now, |due, port, frame| {
            counters.paced += 1;
            counters.late_ns += now.since(due).as_nanos();
            link.send(port, frame);
        });
        if counters.paced > before.0 {
            FRAMES.fetch_add(counters.paced - before.0, Ordering::Relaxed);
            LATE_NS.fetch_add(counters.late_ns - before.1, Ordering::Relaxed);
        }
    }

    /// Polls link and clock in turn until frames arrive or the first held frame is due, which is soon. A
    /// polling link alone reads the clock too rarely.
    fn spin(&mut self, most: Duration, each: &mut EachRun<'_>) -> io::Result<usize> {
        let until = self.clock.after(most);
        loop {
            let received = self.link.receive_runs(Wait::No, each)?;
            if received > 0 || self.clock.now() >= until {
                return Ok(received);
            }
            std::hint::spin_loop();
        }
    }
}

/// Longest time before a frame is due for which the link polls the clock.
const SOON: Duration = Duration::from_micros(20);

/// Number of frames that all paced links of this process have held back, and their total lateness in
/// nanoseconds.
static FRAMES: AtomicU64 = AtomicU64::new(0);
static LATE_NS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of frames that this process's paced links have held back, and their total lateness
/// beyond the profile in nanoseconds. This is the machine's part in a measurement over such a link.
#[must_use]
pub fn held_back() -> (u64, u64) {
    (FRAMES.load(Ordering::Relaxed), LATE_NS.load(Ordering::Relaxed))
}

impl<L: Link> Drop for PacedLink<L> {
    fn drop(&mut self) {
        let Self { link, shaper, .. } = self;
        shaper.release(Instant::from_nanos(u64::MAX), |_, port, frame| link.send(port, frame));
        // The link ends in any case.
        drop(link.flush());
    }
}

/// Due frames of a [`PacedLink`], and the wake-up for held frames.
#[derive(Debug)]
pub struct PacedParcel<P> {
    due: P,
    waker: Option<Waker>,
}

impl<P: Default> Default for PacedParcel<P> {
    fn default() -> Self {
        Self { due: P::default(), waker: None }
    }
}

impl<P: Parcel> Parcel for PacedParcel<P> {
    fn hand_over(&mut self) {
        self.due.hand_over();
        // The thread that sleeps at the link does not know of newly held frames yet.
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl<L: Link> Link for PacedLink<L> {
    type Parcel = PacedParcel<L::Parcel>;

    fn set_peer(&mut self, port: Port, gid: Option<Gid>) -> io::Result<()> {
        self.link.set_peer(port, gid)
    }

    fn send(&mut self, port: Port, frame: &[u8]) {
        // The wrapped link counts invalid frames.
        if !(bth::LEN..=FRAME_MAX).contains(&frame.len()) {
            return self.link.send(port, frame);
        }
        match self.shaper.send(self.clock.now(), port, frame) {
            Shaped::Delayed(_) => {}
            Shaped::Lost => self.counters.lost_by_profile += 1,
            Shaped::Full => self.counters.full += 1,
        }
    }

    /// Sends the frame without a delay: when it was due, another member might have its port.
    fn send_to(&mut self, gid: Gid, frame: &[u8]) {
        self.link.send_to(gid, frame);
    }

    fn flush(&mut self) -> io::Result<()> {
        self.release();
        self.link.flush()
    }

    fn flush_into(&mut self, parcel: &mut Self::Parcel) {
        self.release();
        self.link.flush_into(&mut parcel.due);
        parcel.waker = self.shaper.next().is_some().then(|| self.waker.clone());
    }

    fn receive(&mut self, wait: Wait, each: &mut dyn FnMut(Port, &[u8])) -> io::Result<usize> {
        self.receive_runs(wait, &mut |run| run.frames.iter().for_each(|frame| each(run.port, frame)))
    }

    fn receive_runs(&mut self, wait: Wait, each: &mut EachRun<'_>) -> io::Result<usize> {
        self.flush()?;
        let wait = match (wait, self.next_wake()) {
            (Wait::AtMost(most), Some(due)) => Wait::AtMost(most.min(due)),
            _ => wait,
        };
        let received = match wait {
            Wait::AtMost(most) if self.waiting == Waiting::Spin && most <= SOON => self.spin(most, each),
            _ => self.link.receive_runs(wait, each),
        };
        self.flush()?;
        received
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.counters;
        counters.add(self.link.counters());
        counters
    }

    fn waker(&self) -> io::Result<Waker> {
        Ok(self.waker.clone())
    }

    fn wake_at(&self) -> WakeAt {
        self.link.wake_at()
    }

    fn sleeper(&self) -> io::Result<Sleeper> {
        self.link.sleeper()
    }

    fn may_sleep(&mut self) -> bool {
        self.next_wake().is_none_or(|due| due > Duration::default()) && self.link.may_sleep()
    }

    fn profile(&self) -> LinkProfile {
        self.shaper.profile()
    }

    fn next_wake(&self) -> Option<Duration> {
        let inner = self.link.next_wake();
        let own = self.shaper.next().map(|due| due.since(self.clock.now()));
        match (inner, own) {
            (Some(inner), Some(own)) => Some(inner.min(own)),
            (inner, own) => inner.or(own),
        }
    }
}

#[cfg(test)]
mod tests;
