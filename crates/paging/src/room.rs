//! Eviction: which pages, how many at once, and when. Before a fault that finds no room, and in the
//! background for later faults.

use crate::cache::Cache;
use crate::frames::Page;
use crate::recency::Frame;
use crate::{Action, Key, Layout};
use alloc::vec::Vec;

/// The number of pages evicted at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// As many as one step allows: a thread waits for room, and the next ones should not.
    Batch,
    /// Adjacent pages only: no thread waits, and a thread that comes to wait should not wait long.
    Run,
}

/// The result of an attempt to make room.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvictionResult {
    /// There is more room, or a page that can be dropped at once.
    Freed,
    /// There will be room once a write-back ends.
    Begun,
    /// No page may be evicted.
    Nothing,
}

impl Cache {
    /// Returns the number of frames to keep free for later faults: a sixteenth, limited so that a burst does
    /// not flush the cache.
    pub(crate) fn reserve(&self) -> usize {
        const RESERVE_MAX: usize = 64;
        (self.frames.len() / 16).min(RESERVE_MAX)
    }

    /// Takes one step towards the reserve of free frames: a thread that faults meanwhile waits for one step
    /// at most. The reserve suffices for the longest run, and for threads that fault during evictions for it.
    pub(crate) fn make_room_ahead(&mut self, layout: &impl Layout, out: &mut Vec<Action>) {
        const AHEAD_MAX: usize = 128;
        let ahead = (self.frames.len() / 16).min(AHEAD_MAX);
        let is_short = |cache: &Self| cache.free() < ahead;
        self.short =
            is_short(self) && self.evict(Step::Run, layout, out) == EvictionResult::Freed && is_short(self);
    }

    /// Writes the next pages to be evicted back ahead of need, above a load threshold (SODA III), if active
    /// and inactive pages share all frames. Enough of them are cleaned that a fault finds room while WRITEs
    /// are in flight. Clean pages stay mapped: their eviction takes no time.
    pub(crate) fn clean_ahead(&mut self, layout: &impl Layout, out: &mut Vec<Action>) {
        const CLEAN_MAX: usize = 1024;
        let ahead = self.config.inactive_max.min(CLEAN_MAX);
        let ready = self.frames.free() + self.frames.inactive();
        if ready >= ahead || self.frames.written() == 0 || self.failed {
            return;
        }
        let may_go = self.frames.mapped().saturating_sub(self.active_min());
        let next = self.frames.oldest_mapped_first().take((ahead - ready).min(may_go));
        let written = next.filter(|(_, page)| page.is_written() && !layout.stays(page.key));
        let mut victims = core::mem::take(&mut self.victims);
        victims.clear();
        victims.extend(written.map(|(frame, page)| (page.key, frame)));
        self.victims = victims;
        self.deactivate(out);
    }

    /// Returns the number of frames to free before the next fault, less those that WRITEs in flight will
    /// free.
    pub(crate) fn reserve_left(&self) -> usize {
        let sending = if self.frames.is_coherent() || self.failed { 0 } else { self.frames.sending() };
        self.reserve().saturating_sub(sending)
    }

    /// Returns the number of youngest pages that stay active, so that an instruction that faults on several
    /// pages can execute.
    fn active_min(&self) -> usize {
        const ACTIVE_MIN: usize = 8;
        let apart = if self.config.inactive_apart { self.config.inactive_max } else { 0 };
        ACTIVE_MIN.min((self.config.frames - apart) / 2)
    }

    /// Returns the number of frames available for pages to be mapped.
    pub(crate) fn free(&self) -> usize {
        let free = self.frames.free();
        if !self.config.inactive_apart {
            return free;
        }
        free.min(self.config.frames - self.config.inactive_max - self.frames.active())
    }

    /// Makes room for `wanted` pages. Returns the number of pages with room, at most `wanted`.
    pub(crate) fn make_room(&mut self, wanted: usize, layout: &impl Layout, out: &mut Vec<Action>) -> usize {
        let mut begun = 0;
        // Pages in write-back make room by themselves.
        while self.free() + self.frames.leaving() < wanted && begun < self.config.batch_max {
            match self.evict(Step::Batch, layout, out) {
                EvictionResult::Freed => {}
                EvictionResult::Begun => begun += 1,
                EvictionResult::Nothing => break,
            }
        }
        self.free().min(wanted)
    }

    /// Makes room for an inactive page that is touched: if inactive pages have separate memory, it needs
    /// another frame.
    pub(crate) fn room_to_map(&mut self, layout: &impl Layout, out: &mut Vec<Action>) -> bool {
        !self.config.inactive_apart || self.make_room(1, layout, out) > 0
    }

    /// Evicts the least recently used pages.
    fn evict(&mut self, step: Step, layout: &impl Layout, out: &mut Vec<Action>) -> EvictionResult {
        if !self.config.inactive_apart
            && let Some(frame) = self.frames.oldest_inactive()
        {
            return self.drop_page(frame, out);
        }
        self.victims.clear();
        let (free, before) = (self.free(), self.frames.inactive());
        let mut candidates = self.frames.mapped().saturating_sub(self.active_min());
        while self.victims.len() < self.config.batch_max && candidates > 0 {
            let Some(frame) = self.frames.oldest_mapped() else { break };
            candidates -= 1;
            let key = self.frames.at(frame).key;
            if step == Step::Run && !self.goes_with_victims(key) {
                break;
            }
            if layout.stays(key) {
                self.frames.change(frame, true, |_| {});
                continue;
            }
            if self.frames.inactive() >= self.config.inactive_max {
                let oldest = self.frames.oldest_inactive();
                let is_victim = |oldest: &Frame| self.victims.iter().any(|(_, frame)| frame == oldest);
                let Some(oldest) = oldest.filter(|oldest| !is_victim(oldest)) else { break };
                if self.drop_page(oldest, out) == EvictionResult::Nothing {
                    break;
                }
            }
            let page = self.frames.change(frame, false, |page| page.mapped = None);
            self.victims.push((page.key, frame));
        }
        self.deactivate(out);
        match () {
            () if self.free() > free => EvictionResult::Freed,
            // Otherwise the waiting threads would be told that no page can be evicted.
            () if !self.config.inactive_apart && self.frames.oldest_inactive().is_some() => {
                EvictionResult::Freed
            }
            () if self.frames.inactive() > before => EvictionResult::Begun,
            () => EvictionResult::Nothing,
        }
    }

    /// Returns true if the page may be evicted in the same step: it is adjacent to the last victim, or there
    /// are few victims.
    fn goes_with_victims(&self, key: Key) -> bool {
        const APART_MAX: usize = 2;
        let Some((last, _)) = self.victims.last() else { return true };
        let beside = key.space == last.space && key.page.abs_diff(last.page) == 1;
        beside || self.victims.len() < APART_MAX
    }

    /// Deactivates the victims, in adjacent runs.
    pub(crate) fn deactivate(&mut self, out: &mut Vec<Action>) {
        let mut victims = core::mem::take(&mut self.victims);
        victims.sort_unstable();
        for run in victims.chunk_by(|(a, _), (b, _)| a.space == b.space && a.page + 1 == b.page) {
            let count = u32::try_from(run.len()).expect("as many as there are frames");
            out.push(Action::Deactivate { first: run[0].0, count });
        }
        for &(_, frame) in &victims {
            self.frames.change(frame, false, |page| page.mapped = None);
            self.queue(frame);
        }
        self.victims = victims;
    }

    /// Queues a dirty inactive page for write-back.
    pub(crate) fn queue(&mut self, frame: Frame) {
        if !self.frames.is_coherent() && self.frames.at(frame).is_to_send() {
            self.unsent.push_back(frame);
        }
    }

    pub(crate) fn drop_page(&mut self, frame: Frame, out: &mut Vec<Action>) -> EvictionResult {
        let Page { key, dirty, ahead, .. } = self.frames.at(frame);
        if dirty {
            let begun = self.give_back(frame, out);
            self.stats.evictions += u64::from(begun);
            return if begun { EvictionResult::Begun } else { EvictionResult::Nothing };
        }
        self.frames.remove(frame);
        self.stats.evictions += 1;
        self.stats.ahead.wasted += u64::from(ahead);
        out.push(Action::Discard { key });
        EvictionResult::Freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::far::ALL_FAR;
    use crate::{Ahead, Config, Op, Outcome};
    use alloc::collections::VecDeque;

    /// A window's cache, and the operations in flight to a memory node that answers in order.
    struct Window {
        cache: Cache,
        under_way: VecDeque<(Op, bool)>,
        out: Vec<Action>,
        /// Number of WRITEs whose answers are delayed.
        late: usize,
    }

    impl Window {
        fn new(frames: usize, group: u64, late: usize) -> Self {
            let usual = Config::of_streams(frames, 64);
            let ahead = Ahead::Group(group);
            let cache = Cache::new(Config {
                inactive_apart: false,
                writing_max: 64,
                ahead,
                stream_writes: false,
                ..usual
            });
            Self { cache, under_way: VecDeque::new(), out: Vec::new(), late }
        }

        fn take_actions(&mut self) {
            for action in core::mem::take(&mut self.out) {
                match action {
                    Action::Fetch { op, .. } => self.under_way.push_back((op, true)),
                    Action::WriteBack { op } => self.under_way.push_back((op, false)),
                    _ => {}
                }
            }
        }

        fn end(&mut self, op: Op, fetch: bool) {
            if fetch {
                self.cache.fetched(op, Outcome::Done, &ALL_FAR, &mut self.out);
            } else {
                self.cache.written_back(op, Outcome::Done, &ALL_FAR, &mut self.out);
            }
            self.take_actions();
        }

        /// Touches a page as a thread does, which continues when the page is mapped. READs are answered at once;
        /// a WRITE is answered after enough later ones, or if there is nothing else to wait for.
        fn touch(&mut self, page: u64, write: bool) {
            let key = Key { space: 0, page };
            let is_there = |cache: &Cache| {
                let access = cache.access(key);
                access == Some(farmem_wire::message::Access::Modified) || access.is_some() && !write
            };
            while !is_there(&self.cache) {
                self.cache.fault(key, write, &ALL_FAR, &mut self.out);
                self.take_actions();
                self.cache.turn(&ALL_FAR, &mut self.out);
                self.take_actions();
                while let Some(at) = self.under_way.iter().position(|&(_, fetch)| fetch) {
                    let (op, fetch) = self.under_way.remove(at).expect("it was found");
                    self.end(op, fetch);
                }
                let waits = !is_there(&self.cache);
                while self.under_way.len() > self.late || waits && !self.under_way.is_empty() {
                    let (op, fetch) = self.under_way.pop_front().expect("something is under way");
                    self.end(op, fetch);
                }
            }
            if page.is_multiple_of(64) {
                self.cache.check();
            }
        }
    }

    /// A program reads and then writes each page of a window three times larger than the frames, while some
    /// WRITEs always wait for answers. No fault waits for one of them, because the next pages to be evicted
    /// were written back before.
    #[test]
    fn no_fault_waits_for_a_write_back() {
        let shapes = [(2730, 16, 16), (680, 16, 4), (680, 16, 1), (256, 1, 8), (170, 1, 8), (16, 1, 1)];
        for (frames, group, late) in shapes {
            let mut window = Window::new(frames, group, late);
            for page in (0..2_u32).flat_map(|_| 0..3 * frames as u64) {
                window.touch(page, false);
                window.touch(page, true);
            }
            let stats = window.cache.stats();
            assert!(stats.pages_written_back > 4 * frames as u64, "{stats:?}");
            assert_eq!(stats.waited, 0, "{frames} frames, {late} WRITEs under way: {stats:?}");
        }
    }
}
