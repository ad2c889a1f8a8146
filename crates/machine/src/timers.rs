//! Timers as rows in a table indexed by an enum, each row one purpose.

use crate::Instant;

/// A timer's name: an enum whose variants say what each timer is for.
pub trait TimerKey: Copy {
    /// How many timers there are.
    const COUNT: usize;
    /// This timer's row, below [`TimerKey::COUNT`].
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
    /// Starts `key`, or moves it.
    pub fn set<K: TimerKey>(&mut self, key: K, at: Instant) {
        const { assert!(K::COUNT == N) };
        self.0[key.row()] = Some(at);
    }

    /// Stops `key`.
    pub fn stop<K: TimerKey>(&mut self, key: K) {
        self.0[key.row()] = None;
    }

    /// When `key` is due, if it runs.
    #[must_use]
    pub fn get<K: TimerKey>(&self, key: K) -> Option<Instant> {
        self.0[key.row()]
    }

    /// Stops `key` and answers true when it was due at `now`.
    pub fn take_due<K: TimerKey>(&mut self, key: K, now: Instant) -> bool {
        let due = self.0[key.row()].is_some_and(|at| at <= now);
        if due {
            self.0[key.row()] = None;
        }
        due
    }

    /// The earliest timer that runs.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.0.iter().flatten().min().copied()
    }
}
