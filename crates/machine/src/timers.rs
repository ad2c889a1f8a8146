//! Timers as rows in a table indexed by an enum, one row per purpose.

use crate::Instant;

/// The key of a timer: an enum whose variants document the purpose of each timer.
pub trait TimerKey: Copy {
    /// Number of timers.
    const COUNT: usize;
    /// Returns this timer's row, below [`TimerKey::COUNT`].
    fn row(self) -> usize;
}

/// A table of `N` timers. `N` is the key's [`TimerKey::COUNT`].
#[derive(Clone, Debug)]
pub struct Timers<const N: usize>([Option<Instant>; N]);

impl<const N: usize> Default for Timers<N> {
    fn default() -> Self {
        Self([None; N])
    }
}

impl<const N: usize> Timers<N> {
    /// Starts timer `key`, or changes its time.
    pub fn set<K: TimerKey>(&mut self, key: K, at: Instant) {
        const { assert!(K::COUNT == N) };
        self.0[key.row()] = Some(at);
    }

    /// Stops timer `key`.
    pub fn stop<K: TimerKey>(&mut self, key: K) {
        self.0[key.row()] = None;
    }

    /// Returns the time of timer `key`, if it runs.
    #[must_use]
    pub fn get<K: TimerKey>(&self, key: K) -> Option<Instant> {
        self.0[key.row()]
    }

    /// Stops timer `key` if it is due at `now`; returns true if it was.
    pub fn take_due<K: TimerKey>(&mut self, key: K, now: Instant) -> bool {
        let due = self.0[key.row()].is_some_and(|at| at <= now);
        if due {
            self.0[key.row()] = None;
        }
        due
    }

    /// Returns the time of the earliest running timer.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.0.iter().flatten().min().copied()
    }
}
