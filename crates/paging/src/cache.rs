//! The cache's decisions: what a fault wants, what goes to make room for it, and when.

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

/// How a cache works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Pages that may be here at once, those on their way included; at least 2.
    pub frames: usize,
    /// Of these, pages that may be inactive; at least 1, and fewer than all.
    pub inactive_max: usize,
    /// Inactive pages lie in memory of their own, of [`Config::inactive_max`] pages: active pages have the other frames. Otherwise all share all.
    pub inactive_apart: bool,
    /// Pages of a fetch at most, at least 1.
    pub run_max: u64,
    /// Pages that one step deactivates, and pages of a write-back, at most; at least 1.
    pub batch_max: usize,
    /// Write-backs under way at once; at least 1.
    pub writing_max: usize,
    /// Times a fetch or a write-back is tried; at least 1.
    pub tries_max: u32,
    /// What is fetched beside a page that a thread waits for.
    pub ahead: Ahead,
    /// Pages that are fetched beside one that is to be written come writable too: a stream of writes goes on as one.
    pub stream_writes: bool,
}

/// What a cache did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Faults reported.
    pub faults: u64,
    /// Of those, at pages that were far.
    pub missing: u64,
    /// Of those, at pages of zeros.
    pub zeros: u64,
    /// Of those, at pages that were near.
    pub near: u64,
    /// Of those, at inactive pages.
    pub reactivated: u64,
    /// Of those, first writes to a page that could be read.
    pub upgrades: u64,
    /// Of those, the ones that found no room, and waited until a page had gone.
    pub waited: u64,
    /// Fetches; one that is tried again counts once.
    pub fetches: u64,
    /// Pages they brought.
    pub pages_fetched: u64,
    /// Pages that went, to make room.
    pub evictions: u64,
    /// Write-backs; one that is tried again counts once.
    pub write_backs: u64,
    /// Pages they were begun with.
    pub pages_sent: u64,
    /// Pages they carried.
    pub pages_written_back: u64,
    /// Pages that went because others took them.
    pub taken: u64,
    /// The most pages that were here at once.
    pub frames_max: u64,
    /// What was fetched ahead, and what became of it.
    pub ahead: Account,
}

/// A page cache.
#[derive(Debug)]
pub struct Cache {
    pub(crate) config: Config,
    pub(crate) frames: Frames,
    pub(crate) operations: Operations,
    pub(crate) ahead: BTreeMap<u32, Box<dyn Prefetch<Fault, Wanted = Range<u64>>>>,
    pub(crate) advised: Advised,
    /// Threads for whose pages there is no frame yet.
    pub(crate) waiting: VecDeque<(Key, bool)>,
    /// Inactive pages that are to be written back, in the order in which they came. Some are not any more.
    pub(crate) unsent: VecDeque<Frame>,
    /// The backing takes nothing any more.
    pub(crate) failed: bool,
    /// Some bytes are lost: no fetch is for several pages any more.
    pub(crate) one_by_one: bool,
    pub(crate) stats: Stats,
    pub(crate) victims: Vec<(Key, Frame)>,
    /// Fetches under way at once.
    pub(crate) fetching_max: usize,
    /// See [`Cache::is_short`].
    pub(crate) short: bool,
    /// The latest fault of a stream that may have its next run fetched before it asks, and whether to write.
    pub(crate) early: Option<(Key, bool)>,
}

/// No bytes of the page are under way that are its latest.
const fn is_steady(busy: Busy) -> bool {
    matches!(busy, Busy::No | Busy::Writing { again: true, .. })
}

#[cfg(test)]
impl Config {
    /// A cache as `farmem run` has it, for runs of up to so many pages.
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
    /// An empty cache.
    ///
    /// # Panics
    /// When `config` has values that its fields rule out.
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

    /// What it did so far.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// Pages that are here, or on their way.
    #[must_use]
    pub const fn used(&self) -> usize {
        self.frames.used()
    }

    /// Nothing is under way, no thread waits, and what is to be written back is.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.operations.is_empty() && self.waiting.is_empty() && (self.failed || self.unsent.is_empty())
    }

    /// Fetches are under way, or threads wait for room: something is to be waited for.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.operations.fetching() > 0 || !self.waiting.is_empty()
    }

    /// No frame is free, and no inactive page can go at once: where active and inactive pages share all frames, a fault may have to wait for what is under way.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        self.frames.free() == 0 && self.frames.oldest_inactive().is_none()
    }

    /// Fetches are under way.
    #[must_use]
    pub const fn is_fetching(&self) -> bool {
        self.operations.fetching() > 0
    }

    /// The backing takes and gives nothing any more: an operation failed as often as it may be tried, or was abandoned.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.failed
    }

    /// The page's bytes are here.
    #[must_use]
    pub fn has(&self, key: Key) -> bool {
        self.frames.find(key).is_some_and(|frame| !self.frames.at(frame).is_coming_or_going())
    }

    /// A thread waits for a page.
    pub fn fault(&mut self, key: Key, write: bool, layout: &impl Layout, out: &mut Vec<Action>) {
        self.stats.faults += 1;
        // A signal makes a thread fault again while it waits.
        if let Some(before) = self.waiting.iter_mut().find(|(of, _)| *of == key) {
            before.1 |= write;
            return;
        }
        if !self.serve(key, write, layout, out) {
            self.stats.waited += 1;
            self.waiting.push_back((key, write));
        }
    }

    /// Does what is not urgent: keeps frames free for faults to come, and has written back what waits for it. To be called behind faults and ends of
    /// operations, and again while [`Cache::is_short`] as long as no thread waits.
    pub fn turn(&mut self, layout: &impl Layout, out: &mut Vec<Action>) {
        self.admit_waiting(layout, out);
        self.fetch_early(layout, out);
        if self.config.inactive_apart && !self.frames.is_coherent() {
            self.make_room_ahead(layout, out);
        } else {
            // Not only while others wait: what a fetch that has just ended took is to be made good before the next fault.
            if !self.frames.is_coherent() {
                self.clean_ahead(layout, out);
            }
            if self.operations.fetching() > 0 || self.frames.is_coherent() {
                // Where others wait for the bytes of a page that goes, it goes in time.
                self.make_room(self.reserve_left(), layout, out);
            }
        }
        self.send(layout, out);
        self.give_up_waiting(out);
    }

    /// Fewer frames are free than are kept for faults to come, and the next turn will make more so.
    #[must_use]
    pub const fn is_short(&self) -> bool {
        self.short
    }

    /// Has everything written back that far memory does not have, without waiting for room to be wanted.
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

    /// The page stays where it is until [`Cache::unpin`] was called as often. False when no program has it mapped: touch it first.
    pub fn pin(&mut self, key: Key) -> bool {
        let mapped = |frame: &Frame| self.frames.at(*frame).mapped.is_some();
        let Some(frame) = self.frames.find(key).filter(mapped) else { return false };
        self.frames.change(frame, false, |page| page.pins += 1);
        true
    }

    /// See [`Cache::pin`].
    ///
    /// # Panics
    /// When the page is not pinned.
    pub fn unpin(&mut self, key: Key) {
        let frame = self.frames.find(key).expect("a page that is pinned is here");
        let was = self.frames.at(frame);
        assert!(was.pins > 0, "{key:?} is pinned");
        self.frames.change(frame, true, |page| page.pins -= 1);
        self.queue(frame);
    }

    /// Pages of a space are not of this memory any more: their frames are free, and nothing is done about them. What is under way for them ends without
    /// effect.
    pub fn remove(&mut self, space: u32, pages: Range<u64>) {
        let mut from = Key { space, page: pages.start };
        while let Some((frame, key)) = self.frames.next(from, pages.end) {
            self.frames.remove(frame);
            from = key.with(key.page + 1);
        }
        self.waiting.retain(|(key, _)| key.space != space || !pages.contains(&key.page));
    }

    /// A space is gone.
    pub fn remove_space(&mut self, space: u32) {
        self.remove(space, 0..u64::MAX);
        self.ahead.remove(&space);
    }

    /// Asserts every invariant.
    ///
    /// # Panics
    /// When one is broken.
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

    /// Serves a thread; false when there is no room for its page yet.
    fn serve(&mut self, key: Key, write: bool, layout: &impl Layout, out: &mut Vec<Action>) -> bool {
        if let Some(frame) = self.frames.find(key) {
            return self.at_frame(frame, write, layout, out);
        }
        match layout.source(key) {
            Source::Elsewhere => out.push(Action::Wake { key }),
            Source::Far(_) if self.failed => out.push(Action::Poison { key, why: Cause::Failed }),
            Source::Far(at) => return self.fetch(key, at, write, layout, out),
            Source::Zeros => return self.zeros(key, layout, out),
            Source::Near => return self.near(key, write, layout, out),
        }
        true
    }

    /// The page is here, or on its way.
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
        let heir = if dirty && mapped != Some(Access::Modified) { layout.heir(key) } else { None };
        if let (Some(heir), true) = (heir, write) {
            return self.write_shared(frame, heir, layout, out);
        }
        let reactivated = mapped.is_none();
        if reactivated && !self.room_to_map(layout, out) {
            return false;
        }
        // Making room may have let it go.
        if self.frames.get(frame).is_none_or(|page| page.key != key) {
            return false;
        }
        self.stats.ahead.used += u64::from(ahead);
        self.stats.reactivated += u64::from(reactivated);
        // Bytes that are under way do not change unseen.
        let writable = write || dirty && is_steady(busy) && heir.is_none();
        let access = if writable { Access::Modified } else { Access::Shared };
        self.stats.upgrades += u64::from(write && mapped == Some(Access::Shared));
        self.frames.change(frame, true, |page| {
            page.mapped = Some(page.mapped.map_or(access, |mapped| mapped.max(access)));
            page.ahead = false;
            page.dirty |= writable;
            // What is under way is not the latest.
            if let (Busy::Writing { again, .. }, true) = (&mut page.busy, write) {
                *again = true;
            }
        });
        out.push(Action::Map { key, access });
        true
    }

    /// Starts to fetch a page, with what is to be wanted soon and lies beside it.
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

    /// Fetches a run of pages; a thread waits for `key`, if that is among them.
    pub(crate) fn begin_fetch(&mut self, key: Key, run: Range<u64>, write: bool, out: &mut Vec<Action>) {
        self.stats.fetches += 1;
        let access = if write { Access::Modified } else { Access::Shared };
        let op = self.operations.next();
        let mut frames = Vec::with_capacity(usize::try_from(run.end - run.start).unwrap_or(1));
        for page in run.clone() {
            let waited = page == key.page;
            // A thread that writes to one page need not write to those beside it.
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

    /// The pages around `key` that are proposed, are as `is` says, have no frame, and for which there is room. `None` without room for the one.
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
        // A stream goes one way; of a group, what is before comes first.
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

    /// What is to come with a page, at most [`Config::run_max`] pages; it contains the page.
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
            // Of a stream that is longer than there are frames the first pages are kept: its last ones would make all others go, and be gone when
            // it begins again.
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

    /// A stream goes on at this page, upwards or downwards: what was fetched ahead of it up to here was used.
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

    /// Threads that had to wait have their turn, as many as there is room for.
    pub(crate) fn admit_waiting(&mut self, layout: &impl Layout, out: &mut Vec<Action>) {
        for _ in 0..self.waiting.len() {
            let Some((key, write)) = self.waiting.pop_front() else { return };
            if !self.serve(key, write, layout, out) {
                return self.waiting.push_front((key, write));
            }
        }
    }

    /// Nothing will make room any more.
    fn give_up_waiting(&mut self, out: &mut Vec<Action>) {
        // What has just been deactivated may turn out to be zeros, or get a place in far memory.
        if out.iter().any(|action| matches!(action, Action::Deactivate { .. })) {
            return;
        }
        while self.operations.is_empty()
            && let Some((key, _)) = self.waiting.pop_front()
        {
            let why = if self.failed { Cause::Failed } else { Cause::Full };
            out.push(Action::Poison { key, why });
        }
    }

    /// The pages that a fetch is for, or a write-back has yet to bring to far memory, in the order in which they lie there.
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

    /// All frames have pages that were written: the next fault waits, and counts once, until one of them is in far memory. Faults before it did not wait.
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
