//! Pages that are shared with others: rights are asked for, and taken away.
//!
//! The *authority* says who may use a page, and how: the coherence agent. Its states and the cache's are the same, page by page, whenever
//! everything was told that happened and everything was done that [`Action`]s say:
//!
//! ```text
//!   authority            cache
//!   asked for            Fetching, or Upgrading when it may be read already
//!   Shared               here, clean: it goes by Discard
//!   Modified             here, dirty: it goes by WriteBack
//!   Shared, and written  Settling: the right to write was taken, the bytes are on their way
//!   written              Leaving: no program may use it; its frame is free when the bytes have arrived
//! ```
//!
//! What the cache does to mappings beside that (it deactivates pages) the authority need not know.

use crate::cache::{Cache, Config};
use crate::frames::{Busy, Page};
use crate::recency::Frame;
use crate::{Action, Key, Op, Outcome};
use alloc::vec::Vec;
use core::ops::Range;
use farmem_wire::message::Access;

/// What others took of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// The right to write it. It may be read on; its bytes are on their way to far memory, until [`Cache::written_back`].
    Write,
    /// All rights; its bytes are on their way to far memory, until [`Cache::written_back`].
    Away,
    /// All rights; far memory has its bytes.
    Gone,
}

impl Cache {
    /// An empty cache of pages that are shared with others. What else is to be known of it:
    ///
    /// - Each page is a fetch and a write-back of its own; a fetch of a page that is here asks for the right to write it.
    /// - A fetch ends with [`Outcome::Granted`], [`Outcome::Lost`], [`Outcome::Refused`], [`Outcome::Void`] or [`Outcome::Later`], a write-back with
    ///   [`Outcome::Done`] or [`Outcome::Later`].
    /// - A page that was written is deactivated as any other, and is written back when it goes: then no program may use it any more.
    /// - What others take is told by [`Cache::taken`], at any time.
    /// - Nothing is done for others at the end of an operation: [`Cache::turn`] is to be called behind it.
    ///
    /// At most `fetching_max` fetches are under way at once.
    ///
    /// # Panics
    /// When `config` has values that its fields rule out, inactive pages lie apart, or nothing may be fetched.
    #[must_use]
    pub fn coherent(config: Config, fetching_max: usize) -> Self {
        assert!(
            !config.inactive_apart && fetching_max > 0,
            "inactive pages stay where they are, and some are fetched"
        );
        let mut cache = Self::new(config);
        cache.frames.set_coherent();
        cache.fetching_max = fetching_max;
        cache
    }

    /// The fetch that is under way for a page.
    #[must_use]
    pub fn fetch_of(&self, key: Key) -> Option<Op> {
        self.busy(key).filter(|busy| busy.is_fetch())?.op()
    }

    /// The write-back that is under way for a page.
    #[must_use]
    pub fn write_back_of(&self, key: Key) -> Option<Op> {
        self.busy(key).filter(|busy| !busy.is_fetch())?.op()
    }

    fn busy(&self, key: Key) -> Option<Busy> {
        self.frames.find(key).map(|frame| self.frames.at(frame).busy)
    }

    /// What a program may do with a page, whether it is mapped or not.
    #[must_use]
    pub fn right(&self, key: Key) -> Option<Access> {
        let page = self.frames.find(key).map(|frame| self.frames.at(frame))?;
        (!page.is_coming_or_going()).then_some(page.right)
    }

    /// A thread waits for what is under way for the page.
    #[must_use]
    pub fn is_awaited_at(&self, key: Key) -> bool {
        matches!(
            self.busy(key),
            Some(
                Busy::Fetching { waited: true, .. }
                    | Busy::Upgrading { .. }
                    | Busy::Settling { wanted: true, .. }
                    | Busy::Leaving { wanted: Some(_), .. }
            )
        )
    }

    /// Pages that have a frame, whatever becomes of them.
    pub fn pages(&self) -> impl Iterator<Item = Key> {
        self.frames.all().map(|(_, page)| page.key)
    }

    /// Pages that far memory is behind of.
    pub fn behind(&self) -> impl Iterator<Item = Key> {
        let is_behind =
            |page: &Page| page.dirty || matches!(page.busy, Busy::Settling { .. } | Busy::Leaving { .. });
        self.frames.all().map(|(_, page)| page).filter(is_behind).map(|page| page.key)
    }

    /// Others took a page, or the right to write it: from here on it is so, whatever was under way. True when that was news.
    pub fn taken(&mut self, key: Key, taken: Taken) -> bool {
        let Some(frame) = self.frames.find(key) else { return false };
        let Page { busy, ahead, .. } = self.frames.at(frame);
        let busy = match (taken, busy) {
            // It is not here, or goes anyway.
            (_, Busy::Fetching { .. } | Busy::Leaving { .. }) => return false,
            // A thread that waits to write it waits for all of it.
            (Taken::Gone, Busy::Upgrading { op }) => Busy::Fetching { op, write: true, waited: true },
            (Taken::Gone, _) => {
                self.frames.remove(frame);
                self.stats.ahead.wasted += u64::from(ahead);
                self.stats.taken += 1;
                return true;
            }
            (Taken::Write, Busy::Settling { .. } | Busy::Upgrading { .. }) => return false,
            (Taken::Write, _) => Busy::Settling { op: self.begin_taken(frame), wanted: false },
            (Taken::Away, Busy::Settling { op, wanted }) => {
                Busy::Leaving { op, wanted: wanted.then_some(true) }
            }
            (Taken::Away, _) => Busy::Leaving { op: self.begin_taken(frame), wanted: None },
        };
        self.stats.taken += u64::from(taken != Taken::Write);
        self.stats.ahead.wasted += u64::from(ahead && taken != Taken::Write);
        self.frames.change(frame, false, |page| {
            page.mapped = page.mapped.filter(|_| taken == Taken::Write).map(|_| Access::Shared);
            page.ahead &= taken == Taken::Write;
            (page.right, page.dirty, page.busy) = (Access::Shared, false, busy);
        });
        true
    }

    /// No page may be used any more, and none can be had: discards what is here, whatever its bytes, and tells the threads that wait.
    pub fn discard_all(&mut self, out: &mut Vec<Action>) {
        self.failed = true;
        self.operations.forget();
        let all: Vec<(Frame, Page)> = self.frames.all().collect();
        for (frame, page) in all {
            self.frames.remove(frame);
            let key = page.key;
            if !matches!(page.busy, Busy::Fetching { .. }) {
                out.push(Action::Discard { key });
            }
            if page.busy.op().is_some() {
                out.push(Action::Poison { key, why: crate::Cause::Failed });
            }
        }
        let waiting = self.waiting.drain(..);
        out.extend(waiting.map(|(key, _)| Action::Poison { key, why: crate::Cause::Failed }));
        self.unsent.clear();
    }

    fn begin_taken(&mut self, frame: Frame) -> Op {
        self.stats.write_backs += 1;
        self.stats.pages_sent += 1;
        self.operations.begin_write_back(frame)
    }

    /// Fetches that may begin.
    pub(crate) fn fetches_left(&self) -> usize {
        self.fetching_max.saturating_sub(self.operations.fetching())
    }

    /// Serves a thread at a page that is here or on its way out, as far as rights have a say in it; else the caller does. False when it has to wait for
    /// its turn.
    pub(crate) fn at_right(&mut self, frame: Frame, write: bool, out: &mut Vec<Action>) -> Option<bool> {
        let Page { right, busy, .. } = self.frames.at(frame);
        let busy = match busy {
            Busy::Leaving { op, wanted } => {
                Busy::Leaving { op, wanted: Some(wanted.unwrap_or(false) || write) }
            }
            _ if !write || right == Access::Modified => return None,
            Busy::Settling { op, .. } => Busy::Settling { op, wanted: true },
            Busy::Upgrading { .. } => return Some(true),
            _ => return Some(self.upgrade(frame, out)),
        };
        self.frames.change(frame, false, |page| page.busy = busy);
        Some(true)
    }

    /// Asks for the right to write a page that may be read.
    fn upgrade(&mut self, frame: Frame, out: &mut Vec<Action>) -> bool {
        if self.fetches_left() == 0 {
            return false;
        }
        let access = Access::Modified;
        let op = self.operations.begin_fetch(alloc::vec![frame], access);
        self.stats.fetches += 1;
        let ahead = self.frames.at(frame).ahead;
        self.stats.ahead.used += u64::from(ahead);
        let page =
            self.frames.change(frame, true, |page| (page.busy, page.ahead) = (Busy::Upgrading { op }, false));
        out.push(Action::Fetch { op, first: page.key, count: 1, access });
        true
    }

    /// Fetches the pages of a run, each by itself, and first the one that a thread waits for.
    pub(crate) fn fetch_each(&mut self, key: Key, run: Range<u64>, write: bool, out: &mut Vec<Action>) {
        let others = run.filter(|&page| page != key.page);
        for page in core::iter::once(key.page).chain(others) {
            let waited = page == key.page;
            let write = write && waited;
            let access = if write { Access::Modified } else { Access::Shared };
            let op = self.operations.next();
            let first = Key { page, ..key };
            let frame = self.insert(first, None, !waited, Busy::Fetching { op, write, waited });
            let begun = self.operations.begin_fetch(alloc::vec![frame], access);
            assert_eq!(begun, op, "numbers are given in order");
            self.stats.fetches += 1;
            out.push(Action::Fetch { op, first, count: 1, access });
        }
    }

    /// A page came, or the right to write it.
    pub(crate) fn granted(&mut self, op: Op, frames: &[Frame], access: Access, out: &mut Vec<Action>) {
        for &frame in frames {
            let Page { key, busy, .. } = self.frames.at(frame);
            let upgraded = matches!(busy, Busy::Upgrading { .. });
            if upgraded && access == Access::Shared {
                self.frames.change(frame, true, |page| page.busy = Busy::No);
                out.push(Action::Wake { key });
                continue;
            }
            self.frames.change(frame, true, |page| {
                (page.busy, page.right, page.mapped) = (Busy::No, access, Some(access));
                page.dirty = access == Access::Modified;
            });
            if upgraded {
                self.stats.upgrades += 1;
                out.push(Action::Map { key, access });
                continue;
            }
            self.stats.pages_fetched += 1;
            out.push(Action::Install { op, first: key, count: 1, access });
            // A thread came to write it while it was asked for to be read.
            if matches!(busy, Busy::Fetching { write: true, .. })
                && access == Access::Shared
                && !self.upgrade(frame, out)
            {
                self.waiting.push_back((key, true));
            }
        }
    }

    /// Nothing comes of a fetch: the threads that wait ask again.
    pub(crate) fn void(&mut self, frames: &[Frame], out: &mut Vec<Action>) {
        for &frame in frames {
            let page = self.frames.at(frame);
            match page.busy {
                Busy::Upgrading { .. } => _ = self.frames.change(frame, false, |page| page.busy = Busy::No),
                _ => {
                    self.frames.remove(frame);
                    self.stats.ahead.wasted += u64::from(page.ahead);
                }
            }
            if !page.ahead {
                out.push(Action::Wake { key: page.key });
            }
        }
    }

    /// A fetch was not begun: it comes again.
    pub(crate) fn retry_later(&mut self, frames: &[Frame]) {
        for &frame in frames {
            let page = self.frames.at(frame);
            match page.busy {
                Busy::Upgrading { .. } => {
                    self.frames.change(frame, false, |page| page.busy = Busy::No);
                    self.waiting.push_back((page.key, true));
                }
                Busy::Fetching { write, waited, .. } => {
                    self.frames.remove(frame);
                    self.stats.ahead.wasted += u64::from(page.ahead);
                    if waited {
                        self.waiting.push_back((page.key, write));
                    }
                }
                _ => {}
            }
        }
    }

    /// Gives a page up that was written: no program may use it from here on. False when too many are on their way.
    pub(crate) fn give_back(&mut self, frame: Frame, out: &mut Vec<Action>) -> bool {
        if self.operations.writing() >= self.config.writing_max {
            return false;
        }
        let op = self.operations.begin_write_back(frame);
        self.stats.write_backs += 1;
        self.stats.pages_sent += 1;
        self.stats.ahead.wasted += u64::from(self.frames.at(frame).ahead);
        self.frames.change(frame, false, |page| {
            (page.mapped, page.dirty, page.ahead) = (None, false, false);
            page.busy = Busy::Leaving { op, wanted: None };
        });
        out.push(Action::WriteBack { op });
        true
    }

    /// Gives up what a flush has found, as far as that may be under way at once.
    pub(crate) fn give_back_unsent(&mut self, out: &mut Vec<Action>) {
        while let Some(frame) = self.unsent.pop_front() {
            let is_written = |page: &Page| page.dirty && page.busy == Busy::No && page.pins == 0;
            if self.frames.get(frame).is_some_and(|page| is_written(&page)) && !self.give_back(frame, out) {
                return self.unsent.push_front(frame);
            }
        }
    }

    /// A write-back ended of a page that goes, or that may not be written any more.
    pub(crate) fn given_back(&mut self, frames: &[Frame], op: Op, outcome: Outcome, out: &mut Vec<Action>) {
        let is_of = |page: &Page| page.busy.is_of(op);
        for &frame in frames {
            let Some(page) = self.frames.get(frame).filter(is_of) else { continue };
            match page.busy {
                // It was not begun: the page is here as it was, and goes later.
                Busy::Leaving { wanted, .. } if outcome != Outcome::Done => {
                    self.unsent.push_back(frame);
                    self.frames.change(frame, false, |page| {
                        (page.busy, page.right, page.dirty) = (Busy::No, Access::Modified, true);
                    });
                    self.waiting.extend(wanted.map(|write| (page.key, write)));
                }
                Busy::Leaving { wanted, .. } => {
                    self.stats.pages_written_back += 1;
                    self.frames.remove(frame);
                    self.waiting.extend(wanted.map(|write| (page.key, write)));
                }
                Busy::Settling { wanted, .. } => {
                    self.stats.pages_written_back += 1;
                    self.frames.change(frame, false, |page| page.busy = Busy::No);
                    if wanted && !self.upgrade(frame, out) {
                        self.waiting.push_back((page.key, true));
                    }
                }
                _ => {}
            }
        }
    }
}
