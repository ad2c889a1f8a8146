//! Pages whose bytes other pages need: programs that forked, and pages that go by other names.

use crate::cache::Cache;
use crate::frames::{Busy, Page};
use crate::recency::Frame;
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

    /// A page that rests turns out to be zeros, and is nowhere: its frame is free. Threads that wait for it wait on.
    pub fn vanish(&mut self, key: Key) {
        if let Some(frame) = self.frames.find(key) {
            self.frames.remove(frame);
        }
    }

    /// The page is its program's no more. Where others need its bytes they rest as its heir's ([`Action::Keep`]); false, and nothing is done, when
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
    /// only: who waits to write it faults again.
    pub fn hold_back(&mut self, space: u32) -> Vec<(Key, bool)> {
        let (held, others) = core::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<Vec<_>, _>(|(key, _)| key.space == space);
        self.waiting = others.into();
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
        let rested = before.mapped.is_none();
        let moves = rested || !self.config.rest_apart;
        if if moves { self.make_room(1, layout, out) == 0 } else { !self.room_to_rest(out) } {
            return false;
        }
        // Making room may have laid it to rest.
        if self.frames.get(frame).is_none_or(|page| page.key != key || page.mapped.is_none() != rested) {
            return false;
        }
        self.stats.ahead.used += u64::from(before.ahead);
        self.stats.rested += u64::from(rested);
        self.stats.upgrades += u64::from(!rested);
        self.bequeath(frame, heir, out);
        let access = Access::Modified;
        self.insert(key, Some(access), false, Busy::No);
        out.push(if rested { Action::Copy { key, access } } else { Action::Map { key, access } });
        true
    }

    /// What is in the frame rests there as the heir's.
    fn bequeath(&mut self, frame: Frame, heir: Key, out: &mut Vec<Action>) {
        let key = self.frames.at(frame).key;
        self.frames.rename(frame, heir);
        self.frames.change(frame, true, |page| (page.mapped, page.ahead, page.pins) = (None, false, 0));
        self.queue(frame);
        out.push(Action::Keep { key, heir });
    }

    /// Room for one page more that rests.
    fn room_to_rest(&mut self, out: &mut Vec<Action>) -> bool {
        if self.frames.resting() < self.config.resting_max || !self.config.rest_apart {
            return true;
        }
        let Some(oldest) = self.frames.oldest_resting() else { return false };
        self.drop_page(oldest, out);
        true
    }
}
