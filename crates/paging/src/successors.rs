//! Pages whose bytes other pages need: after a fork, and after a change of addresses.

use crate::cache::Cache;
use crate::frames::{Busy, Page};
use crate::recency::Frame;
use crate::room::EvictionResult;
use crate::{Action, Key, Layout, Op};
use alloc::vec::Vec;
use farmem_wire::message::Access;

impl Cache {
    /// Returns the access with which programs have the page mapped.
    #[must_use]
    pub fn access(&self, key: Key) -> Option<Access> {
        self.frames.find(key).and_then(|frame| self.frames.at(frame).mapped)
    }

    /// Returns true if the page is resident and dirty.
    #[must_use]
    pub fn is_dirty(&self, key: Key) -> bool {
        self.frames.find(key).is_some_and(|frame| self.frames.at(frame).dirty)
    }

    /// Returns the pages that were not written since this write-back began: far memory has their latest bytes
    /// at its end.
    pub fn carried(&self, op: Op) -> impl Iterator<Item = Key> {
        let latest = move |frame: &Frame| match self.frames.get(*frame)?.busy {
            Busy::Writing { op: of, again: false } if of == op => Some(self.frames.at(*frame).key),
            _ => None,
        };
        self.operations.frames_of(op).iter().filter_map(latest)
    }

    /// Makes a page read-only; the driver has ensured that no store is pending. Has no effect on a page that
    /// was read-only. Returns true if the page is resident and dirty.
    pub fn protect(&mut self, key: Key) -> bool {
        let Some(frame) = self.frames.find(key) else { return false };
        self.frames.change(frame, false, |page| page.mapped = page.mapped.map(|_| Access::Shared)).dirty
    }

    /// Changes the key of a page within its space. If the page is not resident, only its waiting threads are
    /// forgotten; a page in flight is removed. No page may be resident under the new key.
    pub fn rename(&mut self, key: Key, to: Key) {
        let Some(frame) = self.frames.find(key).filter(|_| self.has(key)) else {
            return self.remove(key.space, key.page..key.page + 1);
        };
        self.frames.rename(frame, to);
        self.waiting.retain(|(of, _)| *of != key);
    }

    /// Frees the frame of an inactive page that turned out to be all zeros. Threads that wait for the page
    /// keep waiting.
    pub fn vanish(&mut self, key: Key) {
        if let Some(frame) = self.frames.find(key) {
            self.frames.remove(frame);
        }
    }

    /// Removes a page that the program gave up. If other pages need its bytes, its successor keeps them, inactive
    /// ([`Action::Keep`]). Returns false without effect if that needs room that only a write-back can make.
    pub fn leave(&mut self, key: Key, layout: &impl Layout, out: &mut Vec<Action>) -> bool {
        if let Some(frame) = self.frames.find(key)
            && let page = self.frames.at(frame)
            && page.dirty
            && page.mapped != Some(Access::Modified)
            && let Some(successor) = layout.successor(key)
        {
            if page.mapped.is_some() && !self.room_to_rest(out) {
                return false;
            }
            self.pass_to_successor(frame, successor, out);
        }
        self.remove(key.space, key.page..key.page + 1);
        true
    }

    /// Removes the waiting faults of a space, and returns their pages and whether they write. Pages in flight
    /// come read-only: a thread that waits to write one faults again.
    pub fn take_waiting(&mut self, space: u32) -> Vec<(Key, bool)> {
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

    /// Serves a write to a page whose bytes other pages need: they keep the bytes under the successor's key.
    /// Returns false if there is no room for both.
    pub(crate) fn write_shared(
        &mut self,
        frame: Frame,
        successor: Key,
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
        // Making room may have deactivated the page.
        if self.frames.get(frame).is_none_or(|page| page.key != key || page.mapped.is_none() != reactivated) {
            return false;
        }
        self.stats.ahead.used += u64::from(before.ahead);
        self.stats.reactivated += u64::from(reactivated);
        self.stats.upgrades += u64::from(!reactivated);
        self.pass_to_successor(frame, successor, out);
        let access = Access::Modified;
        self.insert(key, Some(access), false, Busy::No);
        out.push(if reactivated { Action::Copy { key, access } } else { Action::Map { key, access } });
        true
    }

    /// Passes the frame's contents to the successor, inactive.
    fn pass_to_successor(&mut self, frame: Frame, successor: Key, out: &mut Vec<Action>) {
        let key = self.frames.at(frame).key;
        self.frames.rename(frame, successor);
        self.frames.change(frame, true, |page| (page.mapped, page.ahead, page.pins) = (None, false, 0));
        self.queue(frame);
        out.push(Action::Keep { key, successor });
    }

    /// Makes room for one more inactive page.
    fn room_to_rest(&mut self, out: &mut Vec<Action>) -> bool {
        if self.frames.inactive() < self.config.inactive_max || !self.config.inactive_apart {
            return true;
        }
        let Some(oldest) = self.frames.oldest_inactive() else { return false };
        self.drop_page(oldest, out) != EvictionResult::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ahead, Cause, Config, Outcome, Source};
    use alloc::vec;

    /// A layout in which all pages of space 1 are zeros at first. Page 0 has a successor, page 1 stays, and only
    /// successors, in space 9, have a home.
    struct Plain;

    const SUCCESSOR: Key = Key { space: 9, page: 0 };

    fn page(page: u64) -> Key {
        Key { space: 1, page }
    }

    impl Layout for Plain {
        fn source(&self, _key: Key) -> Source {
            Source::Zeros
        }

        fn home(&self, key: Key) -> Option<u64> {
            (key == SUCCESSOR).then_some(7)
        }

        fn stays(&self, key: Key) -> bool {
            key == page(1)
        }

        fn successor(&self, key: Key) -> Option<Key> {
            (key == page(0)).then_some(SUCCESSOR)
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

    /// Bytes that other pages need are kept before a write, written back under the successor's key, and evicted.
    #[test]
    fn a_page_that_others_need_is_kept() {
        let mut cache = cache();
        fault(&mut cache, page(0));
        assert!(cache.protect(page(0)), "it was written");
        let access = Access::Modified;
        let expected =
            vec![Action::Keep { key: page(0), successor: SUCCESSOR }, Action::Map { key: page(0), access }];
        assert_eq!(fault(&mut cache, page(0)), expected);
        assert!(cache.has(SUCCESSOR) && cache.access(page(0)) == Some(access));
        let mut out = Vec::new();
        cache.turn(&Plain, &mut out);
        assert_eq!(out, [Action::WriteBack { op: 0 }]);
        assert_eq!(cache.carried(0).collect::<Vec<_>>(), [SUCCESSOR]);
        cache.written_back(0, Outcome::Done, &Plain, &mut out);
        assert!(!cache.is_dirty(SUCCESSOR));
    }

    /// A page that its program gave up leaves its bytes to its successor; a page without an heir leaves nothing.
    #[test]
    fn a_page_leaves_its_bytes_to_its_heir() {
        let mut cache = cache();
        fault(&mut cache, page(0));
        fault(&mut cache, page(2));
        cache.protect(page(0));
        let mut out = Vec::new();
        assert!(cache.leave(page(0), &Plain, &mut out) && cache.leave(page(2), &Plain, &mut out));
        assert_eq!(out, [Action::Keep { key: page(0), successor: SUCCESSOR }]);
        assert!(cache.is_dirty(SUCCESSOR) && cache.used() == 1);
        cache.check();
    }

    /// The oldest pages are evicted, except for those that must stay. A waiting thread gets an error when no
    /// more can be evicted.
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
        assert_eq!(out, [Action::Poison { key: page(7), cause: Cause::Full }]);
    }

    /// A page keeps its state under a new key. Threads of a space that are held back are returned once.
    #[test]
    fn pages_are_renamed_and_threads_held_back() {
        let mut cache = cache();
        fault(&mut cache, page(3));
        cache.rename(page(3), page(8));
        assert!(!cache.has(page(3)) && cache.access(page(8)) == Some(Access::Modified));
        for number in [1, 4, 5, 6, 7, 2] {
            fault(&mut cache, page(number));
        }
        assert_eq!(cache.take_waiting(2), []);
        assert_eq!(cache.take_waiting(1), [(page(2), true)]);
        assert_eq!(cache.take_waiting(1), []);
        cache.check();
    }
}
