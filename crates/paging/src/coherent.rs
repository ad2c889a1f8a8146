//! Pages shared with other hosts: the cache requests access rights, and other hosts revoke them.
//!
//! The *authority*, the coherence agent, decides which host may access a page, and how. Its states and the cache's agree page by
//! page once the cache has handled every event and the driver has carried out every [`Action`]:
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
//! The authority need not know the cache's own changes of mappings: it deactivates pages.

use crate::cache::{Cache, Config};
use crate::frames::{Busy, Page};
use crate::recency::Frame;
use crate::{Action, Key, Op, Outcome};
use alloc::vec::Vec;
use core::ops::Range;
use farmem_wire::message::Access;

/// The rights that another host revoked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Revocation {
    /// The right to write. The page stays readable; its bytes are in flight to far memory until
    /// [`Cache::written_back`].
    Write,
    /// All rights. The page's bytes are in flight to far memory until [`Cache::written_back`].
    AllDirty,
    /// All rights. Far memory has the page's bytes.
    AllClean,
}

impl Cache {
    /// Returns an empty cache of pages shared with other hosts. It differs from other caches as follows:
    ///
    /// - Each page is a fetch and a write-back of its own; a fetch of a resident page requests the right to write.
    /// - A fetch ends with [`Outcome::Granted`], [`Outcome::Lost`], [`Outcome::Refused`], [`Outcome::Void`] or [`Outcome::Later`], a
    ///   write-back with [`Outcome::Done`] or [`Outcome::Later`].
    /// - A dirty page is deactivated like any other, and is written back at its eviction; then no program may access it.
    /// - The driver reports revocations with [`Cache::revoke`], at any time.
    /// - The end of an operation triggers no other work: the driver calls [`Cache::turn`] afterwards.
    ///
    /// At most `fetching_max` fetches are in flight.
    ///
    /// # Panics
    ///
    /// If `config` has values that its fields rule out, inactive pages have separate memory, or `fetching_max` is 0.
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

    /// Returns the fetch in flight for a page.
    #[must_use]
    pub fn fetch_of(&self, key: Key) -> Option<Op> {
        self.busy(key).filter(|busy| busy.is_fetch())?.op()
    }

    /// Returns the write-back in flight for a page.
    #[must_use]
    pub fn write_back_of(&self, key: Key) -> Option<Op> {
        self.busy(key).filter(|busy| !busy.is_fetch())?.op()
    }

    fn busy(&self, key: Key) -> Option<Busy> {
        self.frames.find(key).map(|frame| self.frames.at(frame).busy)
    }

    /// Returns the access that programs may have to a page, mapped or not.
    #[must_use]
    pub fn right(&self, key: Key) -> Option<Access> {
        let page = self.frames.find(key).map(|frame| self.frames.at(frame))?;
        (!page.is_coming_or_going()).then_some(page.right)
    }

    /// Returns true if a thread waits for the operation in flight for the page.
    #[must_use]
    pub fn is_awaited_at(&self, key: Key) -> bool {
        matches!(
            self.busy(key),
            Some(
                Busy::Fetching { waited: true, .. }
                    | Busy::Upgrading { .. }
                    | Busy::Settling { awaited: true, .. }
                    | Busy::Leaving { awaited: Some(_), .. }
            )
        )
    }

    /// Returns the pages that have a frame, in whatever state.
    pub fn pages(&self) -> impl Iterator<Item = Key> {
        self.frames.all().map(|(_, page)| page.key)
    }

    /// Returns the pages whose bytes in far memory are out of date.
    pub fn behind(&self) -> impl Iterator<Item = Key> {
        let is_behind =
            |page: &Page| page.dirty || matches!(page.busy, Busy::Settling { .. } | Busy::Leaving { .. });
        self.frames.all().map(|(_, page)| page).filter(is_behind).map(|page| page.key)
    }

    /// Records that another host revoked a page, or the right to write it. Takes effect at once, whatever
    /// operation is in flight. Returns true if the state changed.
    pub fn revoke(&mut self, key: Key, revocation: Revocation) -> bool {
        let Some(frame) = self.frames.find(key) else { return false };
        let Page { busy, ahead, .. } = self.frames.at(frame);
        let busy = match (revocation, busy) {
            // The page is not here, or is being evicted anyway.
            (_, Busy::Fetching { .. } | Busy::Leaving { .. }) => return false,
            // A thread that waits to write the page now waits for its bytes too.
            (Revocation::AllClean, Busy::Upgrading { op }) => {
                Busy::Fetching { op, write: true, waited: true }
            }
            (Revocation::AllClean, _) => {
                self.frames.remove(frame);
                self.stats.ahead.wasted += u64::from(ahead);
                self.stats.revoked += 1;
                return true;
            }
            (Revocation::Write, Busy::Settling { .. } | Busy::Upgrading { .. }) => return false,
            (Revocation::Write, _) => Busy::Settling { op: self.begin_revoked(frame), awaited: false },
            (Revocation::AllDirty, Busy::Settling { op, awaited }) => {
                Busy::Leaving { op, awaited: awaited.then_some(true) }
            }
            (Revocation::AllDirty, _) => Busy::Leaving { op: self.begin_revoked(frame), awaited: None },
        };
        self.stats.revoked += u64::from(revocation != Revocation::Write);
        self.stats.ahead.wasted += u64::from(ahead && revocation != Revocation::Write);
        self.frames.change(frame, false, |page| {
            page.mapped = page.mapped.filter(|_| revocation == Revocation::Write).map(|_| Access::Shared);
            page.ahead &= revocation == Revocation::Write;
            (page.right, page.dirty, page.busy) = (Access::Shared, false, busy);
        });
        true
    }

    /// Discards all resident pages, dirty ones too, and fails all waiting threads. No page is available from
    /// here on.
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
                out.push(Action::Poison { key, cause: crate::Cause::Failed });
            }
        }
        let waiting = self.waiting.drain(..);
        out.extend(waiting.map(|(key, _)| Action::Poison { key, cause: crate::Cause::Failed }));
        self.unsent.clear();
    }

    fn begin_revoked(&mut self, frame: Frame) -> Op {
        self.stats.write_backs += 1;
        self.stats.pages_sent += 1;
        self.operations.begin_write_back(frame)
    }

    /// Returns the number of fetches that may begin.
    pub(crate) fn fetches_left(&self) -> usize {
        self.fetching_max.saturating_sub(self.operations.fetching())
    }

    /// Serves a fault at a resident or leaving page as far as rights decide. Returns `None` if the caller
    /// decides, and `Some(false)` if the fault must wait for its turn.
    pub(crate) fn at_right(&mut self, frame: Frame, write: bool, out: &mut Vec<Action>) -> Option<bool> {
        let Page { right, busy, .. } = self.frames.at(frame);
        let busy = match busy {
            Busy::Leaving { op, awaited } => {
                Busy::Leaving { op, awaited: Some(awaited.unwrap_or(false) || write) }
            }
            _ if !write || right == Access::Modified => return None,
            Busy::Settling { op, .. } => Busy::Settling { op, awaited: true },
            Busy::Upgrading { .. } => return Some(true),
            _ => return Some(self.upgrade(frame, out)),
        };
        self.frames.change(frame, false, |page| page.busy = busy);
        Some(true)
    }

    /// Requests the right to write a readable page.
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

    /// Fetches the pages of a run one by one, beginning with the page that a thread waits for.
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

    /// Handles the arrival of a page or of the right to write it.
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
            // A thread came to write the page while the fetch for reading was in flight.
            if matches!(busy, Busy::Fetching { write: true, .. })
                && access == Access::Shared
                && !self.upgrade(frame, out)
            {
                self.waiting.push_back((key, true));
            }
        }
    }

    /// Handles a void fetch: the waiting threads fault again.
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

    /// Handles a fetch that did not begin: queues it again.
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

    /// Evicts a dirty page: no program may access it from here on. Returns false if too many write-backs are
    /// in flight.
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
            page.busy = Busy::Leaving { op, awaited: None };
        });
        out.push(Action::WriteBack { op });
        true
    }

    /// Evicts the pages that a flush found, as far as the limit of write-backs allows.
    pub(crate) fn give_back_unsent(&mut self, out: &mut Vec<Action>) {
        while let Some(frame) = self.unsent.pop_front() {
            let is_written = |page: &Page| page.dirty && page.busy == Busy::No && page.pins == 0;
            if self.frames.get(frame).is_some_and(|page| is_written(&page)) && !self.give_back(frame, out) {
                return self.unsent.push_front(frame);
            }
        }
    }

    /// Handles the end of a write-back of a page that is leaving or became read-only.
    pub(crate) fn given_back(&mut self, frames: &[Frame], op: Op, outcome: Outcome, out: &mut Vec<Action>) {
        let is_of = |page: &Page| page.busy.is_of(op);
        for &frame in frames {
            let Some(page) = self.frames.get(frame).filter(is_of) else { continue };
            match page.busy {
                // The write-back did not begin: the page stays as it was, and is evicted later.
                Busy::Leaving { awaited, .. } if outcome != Outcome::Done => {
                    self.unsent.push_back(frame);
                    self.frames.change(frame, false, |page| {
                        (page.busy, page.right, page.dirty) = (Busy::No, Access::Modified, true);
                    });
                    self.waiting.extend(awaited.map(|write| (page.key, write)));
                }
                Busy::Leaving { awaited, .. } => {
                    self.stats.pages_written_back += 1;
                    self.frames.remove(frame);
                    self.waiting.extend(awaited.map(|write| (page.key, write)));
                }
                Busy::Settling { awaited, .. } => {
                    self.stats.pages_written_back += 1;
                    self.frames.change(frame, false, |page| page.busy = Busy::No);
                    if awaited && !self.upgrade(frame, out) {
                        self.waiting.push_back((page.key, true));
                    }
                }
                _ => {}
            }
        }
    }
}
