//! Retry timers of requests and write-backs, by page and by time.

use alloc::collections::{BTreeMap, BTreeSet};
use farmem_machine::Instant;
use farmem_wire::message::Page;

/// The kind of a timer: for a page's request, or for its write-back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    Request,
    WriteBack,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RetryTimer {
    pub(super) at: Instant,
    pub(super) tries: u32,
    /// The time at which the request began or was last reported as stuck.
    pub(super) since: Instant,
}

/// The running timers, bounded by the agent's requests and write-backs.
#[derive(Debug, Default)]
pub(super) struct RetryTimers {
    by_page: BTreeMap<(Timer, Page), RetryTimer>,
    by_time: BTreeSet<(Instant, Timer, Page)>,
}

impl RetryTimers {
    pub(super) fn get(&self, timer: Timer, page: Page) -> Option<RetryTimer> {
        self.by_page.get(&(timer, page)).copied()
    }

    /// Returns the number of running timers.
    pub(super) fn count(&self) -> usize {
        self.by_page.len()
    }

    /// Starts or restarts a timer.
    pub(super) fn set(&mut self, timer: Timer, page: Page, retry: RetryTimer) {
        if let Some(before) = self.by_page.insert((timer, page), retry) {
            self.by_time.remove(&(before.at, timer, page));
        }
        self.by_time.insert((retry.at, timer, page));
    }

    /// Stops a timer if it runs.
    pub(super) fn stop(&mut self, timer: Timer, page: Page) {
        if let Some(retry) = self.by_page.remove(&(timer, page)) {
            self.by_time.remove(&(retry.at, timer, page));
        }
    }

    /// Stops all timers of one kind.
    pub(super) fn stop_all(&mut self, kind: Timer) {
        self.by_page.retain(|(timer, _), _| *timer != kind);
        self.by_time.retain(|(_, timer, _)| *timer != kind);
    }

    /// Returns the first timer that is due by `now`.
    pub(super) fn due(&self, now: Instant) -> Option<(Timer, Page)> {
        self.by_time.first().filter(|(at, ..)| *at <= now).map(|&(_, timer, page)| (timer, page))
    }

    /// Returns the time of the first timer.
    pub(super) fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, ..)| *at)
    }

    /// Asserts that both maps hold the same timers.
    pub(super) fn assert_invariants(&self) {
        assert_eq!(self.by_page.len(), self.by_time.len(), "as many by page as by time");
        for (&(timer, page), retry) in &self.by_page {
            assert!(self.by_time.contains(&(retry.at, timer, page)), "{timer:?} of {page:?} has its time");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_machine::Duration;
    use farmem_wire::VirtAddr;

    fn page(n: u64) -> Page {
        Page::of(VirtAddr(n * 4096))
    }

    fn after(nanos: u64) -> Instant {
        Instant::ZERO + Duration::from_nanos(nanos)
    }

    fn retry(nanos: u64) -> RetryTimer {
        RetryTimer { at: after(nanos), tries: 0, since: Instant::ZERO }
    }

    /// Timers expire in the order of their times, each as it was last set.
    #[test]
    fn the_first_that_is_due_comes_first() {
        let mut retry_timers = RetryTimers::default();
        retry_timers.set(Timer::Request, page(1), retry(30));
        retry_timers.set(Timer::WriteBack, page(1), retry(20));
        retry_timers.set(Timer::Request, page(2), retry(10));
        retry_timers.set(Timer::Request, page(2), retry(40));
        retry_timers.assert_invariants();
        assert_eq!((retry_timers.next(), retry_timers.due(after(19))), (Some(after(20)), None));
        assert_eq!(retry_timers.due(after(50)), Some((Timer::WriteBack, page(1))));
        retry_timers.stop(Timer::WriteBack, page(1));
        assert_eq!(retry_timers.due(after(50)), Some((Timer::Request, page(1))));
        retry_timers.stop_all(Timer::WriteBack);
        assert_eq!(retry_timers.next(), Some(after(30)));
        retry_timers.stop_all(Timer::Request);
        retry_timers.assert_invariants();
        assert_eq!((retry_timers.next(), retry_timers.get(Timer::Request, page(2)).is_none()), (None, true));
    }
}
