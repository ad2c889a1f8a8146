//! Pages whose bytes other pages need: programs that forked, and pages that go by other names.

use crate::cache::Cache;
use crate::frames::{Busy, Page};
use crate::recency::Frame;
use crate::room::Evicted;
use crate::{Action, Key, Layout, Op};
use alloc::vec::Vec;
use farmem_wire::message::Access;

impl Cache {
    /// How programs have the page.
    #[must_use]
    pub fn access(&self, key: Key) -> Option<Access> {
        self.frames.find(key).and_then(|frame| self.frames.at(frame).mapped)
    }

    /// The page is here, and far memory is behind.
    #[must_use]
    pub fn is_dirty(&self, key: Key) -> bool {
        self.frames.find(key).is_some_and(|frame| self.frames.at(frame).dirty)
    }

    /// Pages that far memory has when this write-back was done: they were not written to since it began.
    pub fn carried(&self, op: Op) -> impl Iterator<Item = Key> {
        let latest = move |frame: &Frame| match self.frames.get(*frame)?.busy {
            Busy::Writing { op: of, again: false } if of == op => Some(self.frames.at(*frame).key),
            _ => None,
        };
        self.operations.frames_of(op).iter().filter_map(latest)
    }

    /// A page is not written any more without a fault; the driver has seen to it that no store is on its way. Without effect when it could not be.
    /// True when it is here, and far memory is behind.
    pub fn protect(&mut self, key: Key) -> bool {
        let Some(frame) = self.frames.find(key) else { return false };
        self.frames.change(frame, false, |page| page.mapped = page.mapped.map(|_| Access::Shared)).dirty
    }

    /// A page goes by another name of the same space from now on, as it is. Without effect, but for threads that wait for it, when it is not here; one
    /// that is on its way is removed. Nothing is here under the new name.
    pub fn rename(&mut self, key: Key, to: Key) {
        let Some(frame) = self.frames.find(key).filter(|_| self.has(key)) else {
            return self.remove(key.space, key.page..key.page + 1);
        };
        self.frames.rename(frame, to);
        self.waiting.retain(|(of, _)| *of != key);
    }

    /// An inactive page turns out to be zeros, and is nowhere: its frame is free. Threads that wait for it wait on.
    pub fn vanish(&mut self, key: Key) {
        if let Some(frame) = self.frames.find(key) {
            self.frames.remove(frame);
        }
    }

    /// The program gave the page up. Where others need its bytes its heir keeps them, inactive ([`Action::Keep`]); false, and nothing is done, when
    /// there is no room for that before something is written back.
    pub fn leave(&mut self, key: Key, layout: &impl Layout, out: &mut Vec<Action>) -> bool {
        if let Some(frame) = self.frames.find(key)
            && let page = self.frames.at(frame)
            && page.dirty
            && page.mapped != Some(Access::Modified)
            && let Some(heir) = layout.heir(key)
        {
            if page.mapped.is_some() && !self.room_to_rest(out) {
                return false;
            }
            self.bequeath(frame, heir, out);
        }
        self.remove(key.space, key.page..key.page + 1);
        true
    }

    /// Threads of a space that wait for room wait no more; answers for which pages, and whether to write. What is on its way comes to be read
    /// only: a thread that waits to write it faults again.
    pub fn hold_back(&mut self, space: u32) -> Vec<(Key, bool)> {
        let (held, others) = core::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<Vec<_>, _>(|(key, _)| key.space == space);
        self.waiting = others.into();
        self.early = self.early.filter(|(key, _)| key.space != space);
        let writes = |page: &Page| page.key.space == space && matches!(page.busy, Busy::Fetching { .. });
        let frames: Vec<Frame> =
            self.frames.all().filter(|(_, page)| writes(page)).map(|(frame, _)| frame).collect();
        for frame in frames {
            self.frames.change(frame, false, |page| {
                if let Busy::Fetching { write, .. } = &mut page.busy {
                    *write = false;
                }
            });
        }
        held
    }

    /// A page that others need as it is, is about to be written: they find its bytes under the heir's name. False when there is no room for both.
    pub(crate) fn write_shared(
        &mut self,
        frame: Frame,
        heir: Key,
        layout: &impl Layout,
        out: &mut Vec<Action>,
    ) -> bool {
        let before = self.frames.at(frame);
        let key = before.key;
        let reactivated = before.mapped.is_none();
        let moves = reactivated || !self.config.inactive_apart;
        if if moves { self.make_room(1, layout, out) == 0 } else { !self.room_to_rest(out) } {
            return false;
        }
        // Making room may have deactivated it.
        if self.frames.get(frame).is_none_or(|page| page.key != key || page.mapped.is_none() != reactivated) {
            return false;
        }
        self.stats.ahead.used += u64::from(before.ahead);
        self.stats.reactivated += u64::from(reactivated);
        self.stats.upgrades += u64::from(!reactivated);
        self.bequeath(frame, heir, out);
        let access = Access::Modified;
        self.insert(key, Some(access), false, Busy::No);
        out.push(if reactivated { Action::Copy { key, access } } else { Action::Map { key, access } });
        true
    }

    /// The heir keeps what is in the frame, inactive.
    fn bequeath(&mut self, frame: Frame, heir: Key, out: &mut Vec<Action>) {
        let key = self.frames.at(frame).key;
        self.frames.rename(frame, heir);
        self.frames.change(frame, true, |page| (page.mapped, page.ahead, page.pins) = (None, false, 0));
        self.queue(frame);
        out.push(Action::Keep { key, heir });
    }

    /// Room for one more inactive page.
    fn room_to_rest(&mut self, out: &mut Vec<Action>) -> bool {
        if self.frames.inactive() < self.config.inactive_max || !self.config.inactive_apart {
            return true;
        }
        let Some(oldest) = self.frames.oldest_inactive() else { return false };
        self.drop_page(oldest, out) != Evicted::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ahead, Cause, Config, Outcome, Source};
    use alloc::vec;

    /// All pages of space 1 are zeros at first. Page 0 has an heir, page 1 stays, and nothing has a home but heirs, in space 9.
    struct Plain;

    const HEIR: Key = Key { space: 9, page: 0 };

    fn page(page: u64) -> Key {
        Key { space: 1, page }
    }

    impl Layout for Plain {
        fn source(&self, _key: Key) -> Source {
            Source::Zeros
        }

        fn home(&self, key: Key) -> Option<u64> {
            (key == HEIR).then_some(7)
        }

        fn stays(&self, key: Key) -> bool {
            key == page(1)
        }

        fn heir(&self, key: Key) -> Option<Key> {
            (key == page(0)).then_some(HEIR)
        }
    }

    fn cache() -> Cache {
        Cache::new(Config {
            frames: 6,
            inactive_max: 2,
            inactive_apart: true,
            run_max: 1,
            batch_max: 1,
            writing_max: 1,
            tries_max: 1,
            ahead: Ahead::None,
            stream_writes: false,
        })
    }

    fn fault(cache: &mut Cache, key: Key) -> Vec<Action> {
        let mut out = Vec::new();
        cache.fault(key, true, &Plain, &mut out);
        cache.check();
        out
    }

    /// What others need is kept before it is written to, is written back under the other name, and goes.
    #[test]
    fn a_page_that_others_need_is_kept() {
        let mut cache = cache();
        fault(&mut cache, page(0));
        assert!(cache.protect(page(0)), "it was written");
        let access = Access::Modified;
        let expected = vec![Action::Keep { key: page(0), heir: HEIR }, Action::Map { key: page(0), access }];
        assert_eq!(fault(&mut cache, page(0)), expected);
        assert!(cache.has(HEIR) && cache.access(page(0)) == Some(access));
        let mut out = Vec::new();
        cache.turn(&Plain, &mut out);
        assert_eq!(out, [Action::WriteBack { op: 0 }]);
        assert_eq!(cache.carried(0).collect::<Vec<_>>(), [HEIR]);
        cache.written_back(0, Outcome::Done, &Plain, &mut out);
        assert!(!cache.is_dirty(HEIR));
    }

    /// A page that its program gave up leaves its bytes where its relatives find them; a page that no relative needs leaves nothing.
    #[test]
    fn a_page_leaves_its_bytes_to_its_heir() {
        let mut cache = cache();
        fault(&mut cache, page(0));
        fault(&mut cache, page(2));
        cache.protect(page(0));
        let mut out = Vec::new();
        assert!(cache.leave(page(0), &Plain, &mut out) && cache.leave(page(2), &Plain, &mut out));
        assert_eq!(out, [Action::Keep { key: page(0), heir: HEIR }]);
        assert!(cache.is_dirty(HEIR) && cache.used() == 1);
        cache.check();
    }

    /// The oldest go, but those that are to stay; a thread that waits for room is told when nothing more can go.
    #[test]
    fn a_page_that_stays_is_passed_by() {
        let mut cache = cache();
        for number in 1..5 {
            fault(&mut cache, page(number));
        }
        let deactivate = |number| Action::Deactivate { first: page(number), count: 1 };
        assert_eq!(fault(&mut cache, page(5))[0], deactivate(2));
        assert_eq!(fault(&mut cache, page(6))[0], deactivate(3));
        assert_eq!(fault(&mut cache, page(7)), [], "no inactive page has a home");
        let mut out = Vec::new();
        cache.turn(&Plain, &mut out);
        assert_eq!(out, [Action::Poison { key: page(7), why: Cause::Full }]);
    }

    /// A page goes by another name with all that is known of it; threads of a space that are held back are told of once.
    #[test]
    fn pages_are_renamed_and_threads_held_back() {
        let mut cache = cache();
        fault(&mut cache, page(3));
        cache.rename(page(3), page(8));
        assert!(!cache.has(page(3)) && cache.access(page(8)) == Some(Access::Modified));
        for number in [1, 4, 5, 6, 7, 2] {
            fault(&mut cache, page(number));
        }
        assert_eq!(cache.hold_back(2), []);
        assert_eq!(cache.hold_back(1), [(page(2), true)]);
        assert_eq!(cache.hold_back(1), []);
        cache.check();
    }
}
