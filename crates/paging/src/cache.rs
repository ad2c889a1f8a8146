//! The cache's decisions: what a fault needs, which pages are evicted for it, and when.
//!
//! Circle of files: `advice` and `operations` define state of [`Cache`], and also its methods on their topics, which
//! evict and fetch pages by the methods here.

use crate::account::Account;
use crate::advice::Advised;
use crate::ahead::{Ahead, Fault, Prefetch};
use crate::frames::{Busy, Frames, Page};
use crate::operations::Operations;
use crate::recency::Frame;
use crate::{Action, Cause, Key, Layout, Op, Source};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::ops::Range;
use farmem_wire::message::Access;

/// The configuration of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Maximum number of resident pages, including those in flight; at least 2.
    pub frames: usize,
    /// Maximum number of inactive pages; at least 1 and fewer than `frames`.
    pub inactive_max: usize,
    /// True if inactive pages lie in separate memory of [`Config::inactive_max`] pages and active pages have
    /// the other frames. If false, all pages share all frames.
    pub inactive_apart: bool,
    /// Maximum number of pages of a fetch, at least 1.
    pub run_max: u64,
    /// Maximum number of pages that one step deactivates, and of a write-back; at least 1.
    pub batch_max: usize,
    /// Maximum number of concurrent write-backs; at least 1.
    pub writing_max: usize,
    /// Maximum number of attempts of a fetch or a write-back; at least 1.
    pub tries_max: u32,
    /// The prefetch policy.
    pub ahead: Ahead,
    /// True if pages prefetched beside a page to be written come writable too, so that a stream of writes
    /// takes one fault per run.
    pub stream_writes: bool,
}

/// Counters of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Faults reported.
    pub faults: u64,
    /// Faults at pages in far memory.
    pub missing: u64,
    /// Faults at pages of zeros.
    pub zeros: u64,
    /// Faults at pages with a local copy.
    pub near: u64,
    /// Faults at inactive pages.
    pub reactivated: u64,
    /// First writes to a readable page.
    pub upgrades: u64,
    /// Faults that found no room and waited for an eviction.
    pub waited: u64,
    /// Fetches; a retry does not count again.
    pub fetches: u64,
    /// Pages fetched.
    pub pages_fetched: u64,
    /// Pages evicted to make room.
    pub evictions: u64,
    /// Write-backs; a retry does not count again.
    pub write_backs: u64,
    /// Pages in write-backs at their begin.
    pub pages_sent: u64,
    /// Pages that write-backs carried.
    pub pages_written_back: u64,
    /// Pages revoked by other hosts.
    pub revoked: u64,
    /// Peak number of resident pages.
    pub frames_max: u64,
    /// The account of prefetches.
    pub ahead: Account,
}

/// A page cache.
#[derive(Debug)]
pub struct Cache {
    pub(crate) config: Config,
    pub(crate) frames: Frames,
    pub(crate) operations: Operations,
    pub(crate) ahead: BTreeMap<u32, Box<dyn Prefetch<Fault, Proposal = Range<u64>>>>,
    pub(crate) advised: Advised,
    /// Faults whose pages have no frame yet, and whether the thread writes.
    pub(crate) waiting: VecDeque<(Key, bool)>,
    /// Inactive pages queued for write-back, in order of arrival. Some entries are obsolete.
    pub(crate) unsent: VecDeque<Frame>,
    /// True once the backing accepts nothing any more.
    pub(crate) failed: bool,
    /// True once some bytes are lost: from then on every fetch is for one page.
    pub(crate) one_by_one: bool,
    pub(crate) stats: Stats,
    pub(crate) victims: Vec<(Key, Frame)>,
    /// Maximum number of concurrent fetches.
    pub(crate) fetching_max: usize,
    /// See [`Cache::is_short`].
    pub(crate) short: bool,
    /// The latest fault of a stream whose next run may be fetched early, and whether the thread writes.
    pub(crate) early: Option<(Key, bool)>,
}

/// Returns true unless an operation in flight carries the page's latest bytes.
const fn is_steady(busy: Busy) -> bool {
    matches!(busy, Busy::No | Busy::Writing { again: true, .. })
}

#[cfg(test)]
impl Config {
    /// Returns the configuration of `farmem run`, for runs of up to `run_max` pages.
    pub(crate) fn of_streams(frames: usize, run_max: u64) -> Self {
        Self {
            frames,
            inactive_max: frames / 8,
            inactive_apart: true,
            run_max,
            batch_max: usize::try_from(run_max).expect("a short run"),
            writing_max: 4,
            tries_max: 1,
            ahead: Ahead::Stream(run_max),
            stream_writes: true,
        }
    }
}

impl Cache {
    /// Returns an empty cache.
    ///
    /// # Panics
    ///
    /// If `config` has values that its fields rule out.
    #[must_use]
    pub fn new(config: Config) -> Self {
        assert!(config.inactive_max >= 1 && config.inactive_max < config.frames, "some are inactive");
        assert!(config.run_max >= 1 && config.batch_max >= 1, "runs of a page");
        assert!(config.writing_max >= 1 && config.tries_max >= 1, "everything is tried once");
        Self {
            config,
            frames: Frames::new(config.frames),
            operations: Operations::default(),
            ahead: BTreeMap::new(),
            advised: Advised::default(),
            waiting: VecDeque::new(),
            unsent: VecDeque::new(),
            failed: false,
            one_by_one: false,
            stats: Stats::default(),
            victims: Vec::new(),
            fetching_max: usize::MAX,
            short: false,
            early: None,
        }
    }

    /// Returns the counters.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns the number of pages that are resident or in flight.
    #[must_use]
    pub const fn used(&self) -> usize {
        self.frames.used()
    }

    /// Returns true if no operation is in flight, no thread waits, and all queued pages are written back.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.operations.is_empty() && self.waiting.is_empty() && (self.failed || self.unsent.is_empty())
    }

    /// Returns true if a fetch is in flight or a thread waits for room.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.operations.fetching() > 0 || !self.waiting.is_empty()
    }

    /// Returns true if no frame is free and no inactive page can be dropped at once. If active and inactive
    /// pages share all frames, a fault may then have to wait for an operation in flight.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        self.frames.free() == 0 && self.frames.oldest_inactive().is_none()
    }

    /// Returns true if a fetch is in flight.
    #[must_use]
    pub const fn is_fetching(&self) -> bool {
        self.operations.fetching() > 0
    }

    /// Returns true once the backing has failed: an operation failed on its last attempt, or was abandoned.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns true if the page's bytes are here.
    #[must_use]
    pub fn has(&self, key: Key) -> bool {
        self.frames.find(key).is_some_and(|frame| !self.frames.at(frame).is_coming_or_going())
    }

    /// Handles a fault of a thread.
    pub fn fault(&mut self, key: Key, write: bool, layout: &impl Layout, out: &mut Vec<Action>) {
        self.stats.faults += 1;
        // A signal makes a waiting thread fault again.
        if let Some(before) = self.waiting.iter_mut().find(|(of, _)| *of == key) {
            before.1 |= write;
            return;
        }
        if !self.serve_fault(key, write, layout, out) {
            self.stats.waited += 1;
            self.waiting.push_back((key, write));
        }
    }

    /// Does background work: keeps frames free for later faults, and begins queued write-backs. The driver
    /// calls this after faults and ends of operations, and again while [`Cache::is_short`] and no thread
    /// waits.
    pub fn turn(&mut self, layout: &impl Layout, out: &mut Vec<Action>) {
        self.admit_waiting(layout, out);
        self.fetch_early(layout, out);
        if self.config.inactive_apart && !self.frames.is_coherent() {
            self.make_room_ahead(layout, out);
        } else {
            // This also runs while no fetch is in flight: the frames of a fetch that just ended are replaced
            // before the next fault.
            if !self.frames.is_coherent() {
                self.clean_ahead(layout, out);
            }
            if self.operations.fetching() > 0 || self.frames.is_coherent() {
                // If other hosts may wait for the bytes of a page, evict it in time.
                self.make_room(self.reserve_left(), layout, out);
            }
        }
        self.send(layout, out);
        self.give_up_waiting(out);
    }

    /// Returns true if too few frames are free for later faults and the next turn will free more.
    #[must_use]
    pub const fn is_short(&self) -> bool {
        self.short
    }

    /// Queues every dirty page for write-back, even without need of room.
    pub fn flush(&mut self, layout: &impl Layout, out: &mut Vec<Action>) {
        if self.frames.is_coherent() {
            self.unsent.extend(self.frames.all().filter(|(_, page)| page.dirty).map(|(frame, _)| frame));
            return self.give_back_unsent(out);
        }
        self.victims.clear();
        let dirty = self.frames.all().filter(|(_, page)| page.dirty && page.mapped.is_some());
        self.victims.extend(dirty.map(|(frame, page)| (page.key, frame)));
        self.deactivate(out);
        self.send(layout, out);
    }

    /// Pins the page until an equal number of calls of [`Cache::unpin`]. Returns false if no program has the
    /// page mapped: the caller touches it first.
    pub fn pin(&mut self, key: Key) -> bool {
        let mapped = |frame: &Frame| self.frames.at(*frame).mapped.is_some();
        let Some(frame) = self.frames.find(key).filter(mapped) else { return false };
        self.frames.change(frame, false, |page| page.pins += 1);
        true
    }

    /// Unpins the page; see [`Cache::pin`].
    ///
    /// # Panics
    ///
    /// If the page is not pinned.
    pub fn unpin(&mut self, key: Key) {
        let frame = self.frames.find(key).expect("a page that is pinned is here");
        let was = self.frames.at(frame);
        assert!(was.pins > 0, "{key:?} is pinned");
        self.frames.change(frame, true, |page| page.pins -= 1);
        self.queue(frame);
    }

    /// Removes pages of a space: their frames are free, and no action follows. Operations in flight for them
    /// end without effect.
    pub fn remove(&mut self, space: u32, pages: Range<u64>) {
        let mut from = Key { space, page: pages.start };
        while let Some((frame, key)) = self.frames.next(from, pages.end) {
            self.frames.remove(frame);
            from = key.with(key.page + 1);
        }
        self.waiting.retain(|(key, _)| key.space != space || !pages.contains(&key.page));
    }

    /// Removes a space.
    pub fn remove_space(&mut self, space: u32) {
        self.remove(space, 0..u64::MAX);
        self.ahead.remove(&space);
    }

    /// Asserts every invariant.
    ///
    /// # Panics
    ///
    /// If an invariant is broken.
    pub fn check(&self) {
        self.frames.check();
        assert!(self.frames.taken() <= self.config.frames, "the limit holds");
        if self.config.inactive_apart {
            assert!(self.frames.inactive() <= self.config.inactive_max, "inactive pages fit their memory");
            assert!(
                self.frames.active() <= self.config.frames - self.config.inactive_max,
                "active pages fit theirs"
            );
        }
        self.operations.check(&self.frames);
        let open = self.frames.all().filter(|(_, page)| page.ahead).count() as u64;
        assert!(open <= self.stats.ahead.open(), "what came ahead is in the account once");
    }

    /// Serves a fault: finds the source of the page's bytes (a frame, zeros, near or far memory) and starts the
    /// work. Returns false if there is no room for its page yet.
    fn serve_fault(&mut self, key: Key, write: bool, layout: &impl Layout, out: &mut Vec<Action>) -> bool {
        if let Some(frame) = self.frames.find(key) {
            return self.at_frame(frame, write, layout, out);
        }
        match layout.source(key) {
            Source::Elsewhere => out.push(Action::Wake { key }),
            Source::Far(_) if self.failed => out.push(Action::Poison { key, cause: Cause::Failed }),
            Source::Far(at) => return self.fetch(key, at, write, layout, out),
            Source::Zeros => return self.zeros(key, layout, out),
            Source::Near => return self.near(key, write, layout, out),
        }
        true
    }

    /// Serves a fault at a page that has a frame.
    fn at_frame(&mut self, frame: Frame, write: bool, layout: &impl Layout, out: &mut Vec<Action>) -> bool {
        let Page { key, dirty, busy, mapped, ahead, .. } = self.frames.at(frame);
        if let Busy::Fetching { op, write: before, .. } = busy {
            self.stats.ahead.late += u64::from(ahead);
            let busy = Busy::Fetching { op, write: before || write, waited: true };
            self.frames.change(frame, false, |page| (page.busy, page.ahead) = (busy, false));
            return true;
        }
        if let Some(served) = self.at_right(frame, write, out) {
            return served;
        }
        if write && mapped == Some(Access::Shared) && !dirty {
            self.allow_run(key, layout, out);
            return true;
        }
        let successor = if dirty && mapped != Some(Access::Modified) { layout.successor(key) } else { None };
        if let (Some(successor), true) = (successor, write) {
            return self.write_shared(frame, successor, layout, out);
        }
        let reactivated = mapped.is_none();
        if reactivated && !self.room_to_map(layout, out) {
            return false;
        }
        // Making room may have evicted the page.
        if self.frames.get(frame).is_none_or(|page| page.key != key) {
            return false;
        }
        self.stats.ahead.used += u64::from(ahead);
        self.stats.reactivated += u64::from(reactivated);
        // A page whose bytes are in flight must not change unnoticed.
        let writable = write || dirty && is_steady(busy) && successor.is_none();
        let access = if writable { Access::Modified } else { Access::Shared };
        self.stats.upgrades += u64::from(write && mapped == Some(Access::Shared));
        self.frames.change(frame, true, |page| {
            page.mapped = Some(page.mapped.map_or(access, |mapped| mapped.max(access)));
            page.ahead = false;
            page.dirty |= writable;
            // The bytes in flight are not the latest.
            if let (Busy::Writing { again, .. }, true) = (&mut page.busy, write) {
                *again = true;
            }
        });
        out.push(Action::Map { key, access });
        true
    }

    /// Begins the fetch of a page, with neighbours that the policy proposes.
    fn fetch(&mut self, key: Key, at: u64, write: bool, layout: &impl Layout, out: &mut Vec<Action>) -> bool {
        let proposed = self.proposal(key, layout);
        let lies = |page: u64| {
            let there = at.checked_add_signed(page.wrapping_sub(key.page).cast_signed());
            layout.source(key.with(page)) == there.map_or(Source::Elsewhere, Source::Far)
        };
        let is_longest = self.is_longest(key, &proposed);
        let Some(run) = self.run(key, proposed, lies, layout, out) else { return false };
        self.stats.missing += 1;
        if self.frames.is_coherent() {
            self.fetch_each(key, run, write, out);
            return true;
        }
        self.begin_fetch(key, run, write, out);
        self.early = (is_longest && self.config.inactive_apart).then_some((key, write));
        true
    }

    /// Fetches a run of pages. A thread waits for `key`, if the run contains it.
    pub(crate) fn begin_fetch(&mut self, key: Key, run: Range<u64>, write: bool, out: &mut Vec<Action>) {
        self.stats.fetches += 1;
        let access = if write { Access::Modified } else { Access::Shared };
        let op = self.operations.next();
        let mut frames = Vec::with_capacity(usize::try_from(run.end - run.start).unwrap_or(1));
        for page in run.clone() {
            let waited = page == key.page;
            // A thread that writes to one page need not write to its neighbours.
            let busy = Busy::Fetching { op, write: write && (waited || self.config.stream_writes), waited };
            frames.push(self.insert(key.with(page), None, !waited, busy));
        }
        let (first, count) = (key.with(run.start), u32::try_from(frames.len()).expect("at most run_max"));
        let begun = self.operations.begin_fetch(frames, access);
        assert_eq!(begun, op, "numbers are given in order");
        out.push(Action::Fetch { op, first, count, access });
    }

    fn near(&mut self, key: Key, write: bool, layout: &impl Layout, out: &mut Vec<Action>) -> bool {
        if self.make_room(1, layout, out) == 0 {
            return false;
        }
        self.stats.near += 1;
        let access = if write { Access::Modified } else { Access::Shared };
        self.insert(key, Some(access), false, Busy::No);
        out.push(Action::Copy { key, access });
        true
    }

    pub(crate) fn insert(&mut self, key: Key, mapped: Option<Access>, ahead: bool, busy: Busy) -> Frame {
        let dirty = mapped == Some(Access::Modified);
        let right = if self.frames.is_coherent() { Access::Shared } else { Access::Modified };
        let page = Page { key, right, mapped, dirty, pins: 0, ahead, busy };
        let frame = self.frames.insert(page);
        self.stats.frames_max = self.stats.frames_max.max(self.frames.taken() as u64);
        frame
    }

    /// Returns the proposed pages around `key` that satisfy `is`, have no frame, and fit into the room.
    /// Returns `None` if there is no room for `key` itself.
    pub(crate) fn run(
        &mut self,
        key: Key,
        proposed: Range<u64>,
        is: impl Fn(u64) -> bool,
        layout: &impl Layout,
        out: &mut Vec<Action>,
    ) -> Option<Range<u64>> {
        let frames = &self.frames;
        let fits = |page: &u64| frames.find(key.with(*page)).is_none() && is(*page);
        let behind = (key.page + 1..proposed.end).take_while(fits).count();
        let before = (proposed.start..key.page).rev().take_while(fits).count();
        let room = self.make_room(before + 1 + behind, layout, out).min(self.fetches_left()) as u64;
        // A stream has one direction; for a group, the pages before `key` come first.
        let before = (before as u64).min(room.saturating_sub(1));
        let behind = (behind as u64).min(room.saturating_sub(1 + before));
        let run = key.page - before..if room == 0 { key.page } else { key.page + 1 + behind };
        if let Some(policy) = self.ahead.get_mut(&key.space).filter(|_| !self.advised.has(key)) {
            let here = if run.is_empty() {
                run.clone()
            } else {
                let below = run.start.checked_sub(1);
                let below = below.and_then(|below| self.frames.last_without(key.with(below)));
                below.map_or(0, |page| page + 1)..self.frames.first_without(key.with(run.end))
            };
            policy.fetched(&run, &here);
        }
        self.stats.ahead.wanted += (run.end - run.start).saturating_sub(1);
        (room > 0).then_some(run)
    }

    /// Returns the run to fetch with a page: at most [`Config::run_max`] pages, including the page.
    pub(crate) fn proposal(&mut self, key: Key, layout: &impl Layout) -> Range<u64> {
        let Config { ahead, run_max, .. } = self.config;
        if let Some(advised) = self.advised(key).filter(|_| !self.one_by_one) {
            let around = layout.around(key);
            let run = advised.start.max(around.start)..advised.end.min(around.end).max(key.page + 1);
            if run.end - run.start > 1 {
                self.was_used(key, true);
            }
            return run;
        }
        if self.one_by_one || ahead == Ahead::None {
            return key.page..key.page + 1;
        }
        let policy = self.ahead.entry(key.space).or_insert_with(|| ahead.policy(run_max));
        let proposed = policy.propose(&Fault { page: key.page });
        if let Some((pages, through)) = policy.behind()
            && through > self.frames.len() as u64
        {
            // If a stream is longer than all frames, its first pages are kept: its last pages would evict all
            // others, and would be evicted themselves before the stream begins again.
            pages.for_each(|page| self.frames.retire(key.with(page)));
        }
        let around = layout.around(key);
        let start =
            proposed.start.max(around.start).max((key.page + 1).saturating_sub(run_max)).min(key.page);
        let end = proposed.end.min(around.end).min(start.saturating_add(run_max)).max(key.page + 1);
        if end - start > 1 {
            self.was_used(key, start == key.page);
        }
        start..end
    }

    /// Counts the pages prefetched up to this page as used, because a stream continues here.
    fn was_used(&mut self, key: Key, up: bool) {
        let step = if up { u64::wrapping_sub } else { u64::wrapping_add };
        let mut page = step(key.page, 1);
        while let Some(frame) = self.frames.find(key.with(page)).filter(|&frame| self.frames.at(frame).ahead)
        {
            self.frames.change(frame, false, |page| page.ahead = false);
            self.stats.ahead.used += 1;
            page = step(page, 1);
        }
    }

    /// Serves waiting faults in order, as far as there is room.
    pub(crate) fn admit_waiting(&mut self, layout: &impl Layout, out: &mut Vec<Action>) {
        for _ in 0..self.waiting.len() {
            let Some((key, write)) = self.waiting.pop_front() else { return };
            if !self.serve_fault(key, write, layout, out) {
                return self.waiting.push_front((key, write));
            }
        }
    }

    /// Fails waiting faults if nothing will make room any more.
    fn give_up_waiting(&mut self, out: &mut Vec<Action>) {
        // Pages deactivated just now may turn out to be zeros, or get a slot in far memory.
        if out.iter().any(|action| matches!(action, Action::Deactivate { .. })) {
            return;
        }
        while self.operations.is_empty()
            && let Some((key, _)) = self.waiting.pop_front()
        {
            let cause = if self.failed { Cause::Failed } else { Cause::Full };
            out.push(Action::Poison { key, cause });
        }
    }

    /// Returns the pages of a fetch, or those that a write-back still has to carry, in the order of far
    /// memory.
    pub fn pages_of(&self, op: Op) -> impl Iterator<Item = Key> {
        self.operations.frames_of(op).iter().filter_map(move |&frame| {
            self.frames.get(frame).filter(|page| page.busy.is_of(op)).map(|page| page.key)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;

    struct Zeros;

    impl Layout for Zeros {
        fn source(&self, _: Key) -> Source {
            Source::Zeros
        }

        fn home(&self, key: Key) -> Option<u64> {
            Some(key.page)
        }
    }

    /// All frames hold dirty pages: the next fault waits, and counts once, until a write-back ends. Earlier
    /// faults did not wait.
    #[test]
    fn a_fault_without_room_waits_and_counts() {
        let mut cache =
            Cache::new(Config { inactive_max: 2, inactive_apart: false, ..Config::of_streams(4, 1) });
        let (key, mut out) = (|page| Key { space: 0, page }, Vec::new());
        (0..4).for_each(|page| cache.fault(key(page), true, &Zeros, &mut out));
        assert_eq!((cache.stats().waited, cache.used()), (0, 4));
        (0..2).for_each(|_| cache.fault(key(4), true, &Zeros, &mut out)); // a signal has it fault again
        assert_eq!((cache.stats().waited, cache.has(key(4))), (1, false));
        for _ in 0..2 {
            cache.turn(&Zeros, &mut out);
            for action in core::mem::take(&mut out) {
                if let Action::WriteBack { op } = action {
                    cache.written_back(op, Outcome::Done, &Zeros, &mut out);
                }
            }
        }
        assert_eq!((cache.stats().waited, cache.has(key(4))), (1, true));
        cache.check();
    }
}
