//! Fetches and write-backs in flight, their ends, and their retries.

use crate::cache::Cache;
use crate::frames::{Busy, Frames, Page};
use crate::recency::Frame;
use crate::{Action, Cause, Layout, Op, Outcome};
use alloc::vec::Vec;
use farmem_wire::message::Access;

impl Busy {
    /// Returns true if `op` is the operation in flight.
    pub(crate) const fn is_of(self, op: Op) -> bool {
        matches!(self.op(), Some(of) if of == op)
    }

    pub(crate) const fn is_fetch(self) -> bool {
        matches!(self, Self::Fetching { .. } | Self::Upgrading { .. })
    }

    /// Returns the operation in flight.
    pub(crate) const fn op(self) -> Option<Op> {
        match self {
            Self::No => None,
            Self::Fetching { op, .. }
            | Self::Writing { op, .. }
            | Self::Upgrading { op }
            | Self::Settling { op, .. }
            | Self::Leaving { op, .. } => Some(op),
        }
    }
}

#[derive(Clone, Debug)]
struct Operation {
    /// The frames of its pages. Other pages may occupy them by now.
    frames: Vec<Frame>,
    tries: u32,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Fetch(Access),
    WriteBack,
}

/// All operations in flight.
#[derive(Default, Debug)]
pub(crate) struct Operations {
    /// Sorted by number, because operations begin in that order. Few are in flight, and adding one does not
    /// allocate.
    all: Vec<(Op, Operation)>,
    fetching: usize,
    next: Op,
}

impl Operations {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) const fn fetching(&self) -> usize {
        self.fetching
    }

    pub(crate) fn writing(&self) -> usize {
        self.all.len() - self.fetching
    }

    /// Returns the number of the next operation.
    pub(crate) const fn next(&self) -> Op {
        self.next
    }

    pub(crate) fn begin_fetch(&mut self, frames: Vec<Frame>, access: Access) -> Op {
        self.fetching += 1;
        self.begin(Operation { frames, tries: 1, kind: Kind::Fetch(access) })
    }

    /// Begins a write-back of one page that is leaving or became read-only.
    pub(crate) fn begin_write_back(&mut self, frame: Frame) -> Op {
        self.begin(Operation { frames: alloc::vec![frame], tries: 1, kind: Kind::WriteBack })
    }

    fn begin(&mut self, operation: Operation) -> Op {
        let op = self.next;
        self.next += 1;
        self.all.push((op, operation));
        op
    }

    /// Forgets all operations; no end will be reported.
    pub(crate) fn forget(&mut self) {
        self.all.clear();
        self.fetching = 0;
    }

    fn end(&mut self, op: Op) -> Operation {
        let at = self.at(op).expect("an operation ends once");
        let (_, ended) = self.all.remove(at);
        self.fetching -= usize::from(ended.kind != Kind::WriteBack);
        ended
    }

    pub(crate) fn frames_of(&self, op: Op) -> &[Frame] {
        self.at(op).map_or(&[], |at| &self.all[at].1.frames)
    }

    fn at(&self, op: Op) -> Option<usize> {
        self.all.binary_search_by_key(&op, |&(op, _)| op).ok()
    }

    pub(crate) fn check(&self, frames: &Frames) {
        for (frame, page) in frames.all() {
            let Some(op) = page.busy.op() else { continue };
            assert!(self.frames_of(op).contains(&frame), "{page:?}: what is under way for it is known");
        }
    }
}

impl Cache {
    /// Begins write-backs of inactive pages, up to the limit.
    pub(crate) fn send(&mut self, layout: &impl Layout, out: &mut Vec<Action>) {
        if self.frames.is_coherent() {
            return self.give_back_unsent(out);
        }
        let mut without_slot = Vec::new();
        while self.operations.writing() < self.config.writing_max && !self.failed {
            let Some((frame, page)) = self.next_unsent() else { break };
            let Some(home) = layout.home(page.key) else {
                without_slot.push(frame);
                continue;
            };
            let (mut frames, mut last) = (alloc::vec![frame], home);
            while frames.len() < self.config.batch_max {
                let Some((frame, page)) = self.next_unsent() else { break };
                if layout.home(page.key) != last.checked_add(1) {
                    self.unsent.push_front(frame);
                    break;
                }
                frames.push(frame);
                last += 1;
            }
            self.stats.write_backs += 1;
            self.stats.pages_sent += frames.len() as u64;
            let operation = Operation { frames: frames.clone(), tries: 1, kind: Kind::WriteBack };
            let op = self.operations.begin(operation);
            for frame in frames {
                self.frames.change(frame, false, |page| page.busy = Busy::Writing { op, again: false });
            }
            out.push(Action::WriteBack { op });
        }
        without_slot.into_iter().rev().for_each(|frame| self.unsent.push_front(frame));
    }

    fn next_unsent(&mut self) -> Option<(Frame, Page)> {
        while let Some(frame) = self.unsent.pop_front() {
            if let Some(page) = self.frames.get(frame).filter(Page::is_to_send) {
                return Some((frame, page));
            }
        }
        None
    }

    /// Handles the end of a fetch. With [`Outcome::Done`] the driver holds the bytes while it carries out the
    /// resulting actions.
    ///
    /// # Panics
    ///
    /// If no such fetch is in flight.
    pub fn fetched(&mut self, op: Op, outcome: Outcome, layout: &impl Layout, out: &mut Vec<Action>) {
        let mut ended = self.operations.end(op);
        let Kind::Fetch(access) = ended.kind else { panic!("{op} is a write-back") };
        ended.frames.retain(|&frame| self.frames.get(frame).is_some_and(|page| page.busy.is_of(op)));
        match outcome {
            Outcome::Done => self.arrived(op, &ended.frames, out),
            Outcome::Lost => self.lost(&ended.frames, out),
            Outcome::Granted(access) => self.granted(op, &ended.frames, access, out),
            Outcome::Refused => self.give_up(&ended.frames, Cause::Refused, out),
            Outcome::Void => self.void(&ended.frames, out),
            Outcome::Later => self.retry_later(&ended.frames),
            Outcome::Failed if ended.frames.is_empty() => {}
            Outcome::Failed if ended.tries < self.config.tries_max && !self.failed => {
                self.fetch_again(ended, access, out);
            }
            Outcome::Failed => {
                self.failed = true;
                self.give_up(&ended.frames, Cause::Failed, out);
            }
        }
        self.turn_behind(layout, out);
    }

    /// Runs a turn after the end of an operation. In a coherent cache the driver reports the end during a
    /// step, and calls [`Cache::turn`] later.
    fn turn_behind(&mut self, layout: &impl Layout, out: &mut Vec<Action>) {
        if !self.frames.is_coherent() {
            self.turn(layout, out);
        }
    }

    /// Fetches the pages that are still needed again: one fetch for each remaining run.
    fn fetch_again(&mut self, ended: Operation, access: Access, out: &mut Vec<Action>) {
        let key = |frame: Frame, frames: &Frames| frames.at(frame).key;
        let runs: Vec<Vec<Frame>> = ended
            .frames
            .chunk_by(|&a, &b| {
                let (a, b) = (key(a, &self.frames), key(b, &self.frames));
                a.space == b.space && a.page + 1 == b.page
            })
            .map(<[Frame]>::to_vec)
            .collect();
        for run in runs {
            let (first, count) =
                (key(run[0], &self.frames), u32::try_from(run.len()).expect("at most run_max"));
            let op = self.operations.begin_fetch(run.clone(), access);
            self.operations.all.last_mut().expect("begun a moment ago").1.tries = ended.tries + 1;
            for frame in run {
                self.frames.change(frame, false, |page| {
                    if let Busy::Fetching { op: of, .. } = &mut page.busy {
                        *of = op;
                    }
                });
            }
            out.push(Action::Fetch { op, first, count, access });
        }
    }

    /// Installs fetched pages: as one run if they are adjacent and have one access.
    fn arrived(&mut self, op: Op, frames: &[Frame], out: &mut Vec<Action>) {
        let wanted = |page: &Page| matches!(page.busy, Busy::Fetching { write: true, .. });
        let mut at = 0;
        while at < frames.len() {
            let first = self.frames.at(frames[at]);
            let runs_on = |n: u64, page: &Page| {
                page.key.space == first.key.space && page.key.page == first.key.page + n
            };
            let run = (0..).zip(&frames[at..]).take_while(|&(n, &frame)| runs_on(n, &self.frames.at(frame)));
            let count = run.count();
            let run = &frames[at..at + count];
            at += count;
            let all = run.iter().all(|&frame| wanted(&self.frames.at(frame)));
            let access = if all { Access::Modified } else { Access::Shared };
            self.stats.pages_fetched += count as u64;
            out.push(Action::Install {
                op,
                first: first.key,
                count: u32::try_from(count).expect("at most run_max"),
                access,
            });
            for &frame in run {
                let write = wanted(&self.frames.at(frame));
                let access = if write { Access::Modified } else { Access::Shared };
                let page = self.frames.change(frame, true, |page| {
                    (page.busy, page.mapped, page.dirty) = (Busy::No, Some(access), write);
                });
                if write && !all {
                    out.push(Action::Map { key: page.key, access });
                }
            }
        }
    }

    /// Handles lost bytes. A thread that waits for one of several pages fetches its page again, alone.
    fn lost(&mut self, frames: &[Frame], out: &mut Vec<Action>) {
        let alone = frames.len() == 1;
        if alone && self.frames.is_coherent() {
            return self.give_up(frames, Cause::Lost, out);
        }
        self.one_by_one = true;
        for &frame in frames {
            let page = self.frames.remove(frame);
            self.stats.ahead.wasted += u64::from(page.ahead);
            let Busy::Fetching { write, waited, .. } = page.busy else { continue };
            if alone {
                out.push(Action::Poison { key: page.key, cause: Cause::Lost });
            } else if waited {
                self.waiting.push_back((page.key, write));
            }
        }
    }

    fn give_up(&mut self, frames: &[Frame], cause: Cause, out: &mut Vec<Action>) {
        for &frame in frames {
            let page = self.frames.remove(frame);
            self.stats.ahead.wasted += u64::from(page.ahead);
            if matches!(page.busy, Busy::Fetching { waited: true, .. }) {
                out.push(Action::Poison { key: page.key, cause });
            }
        }
    }

    /// Fails all operations in flight permanently, because none will ever end.
    pub fn abandon(&mut self, layout: &impl Layout, out: &mut Vec<Action>) {
        self.failed = true;
        while let Some(&(op, ref operation)) = self.operations.all.first() {
            match operation.kind {
                Kind::Fetch(_) => self.fetched(op, Outcome::Failed, layout, out),
                Kind::WriteBack => self.written_back(op, Outcome::Failed, layout, out),
            }
        }
    }

    /// Handles the end of a write-back.
    ///
    /// # Panics
    ///
    /// If no such write-back is in flight.
    pub fn written_back(&mut self, op: Op, outcome: Outcome, layout: &impl Layout, out: &mut Vec<Action>) {
        let mut ended = self.operations.end(op);
        assert_eq!(ended.kind, Kind::WriteBack, "{op} is a fetch");
        if self.frames.is_coherent() {
            return self.given_back(&ended.frames, op, outcome, out);
        }
        let carried = ended.frames.len() as u64;
        ended.frames.retain(|&frame| self.frames.get(frame).is_some_and(|page| page.busy.is_of(op)));
        // A page that was written meanwhile is written back again.
        ended.frames.retain(|&frame| {
            let again = matches!(self.frames.at(frame).busy, Busy::Writing { again: true, .. });
            if again {
                self.frames.change(frame, false, |page| page.busy = Busy::No);
                self.queue(frame);
            }
            !again
        });
        match outcome {
            Outcome::Done => {
                self.stats.pages_written_back += carried;
                for &frame in &ended.frames {
                    self.frames.change(frame, false, |page| (page.busy, page.dirty) = (Busy::No, false));
                }
            }
            Outcome::Failed if ended.frames.is_empty() => {}
            Outcome::Failed if ended.tries < self.config.tries_max && !self.failed => {
                self.write_back_again(ended, layout, out);
            }
            _ => {
                self.failed = true;
                for &frame in &ended.frames {
                    self.frames.change(frame, false, |page| page.busy = Busy::No);
                    self.queue(frame);
                }
            }
        }
        self.turn(layout, out);
    }

    /// Splits a write-back that has not begun, because some of its pages are gone or have no home any more.
    /// The other pages are written back in adjacent runs.
    ///
    /// # Panics
    ///
    /// If there is no such write-back.
    pub fn split(&mut self, op: Op, layout: &impl Layout, out: &mut Vec<Action>) {
        let mut ended = self.operations.end(op);
        assert_eq!(ended.kind, Kind::WriteBack, "{op} is a fetch");
        ended.frames.retain(|&frame| self.frames.get(frame).is_some_and(|page| page.busy.is_of(op)));
        ended.frames.retain(|&frame| {
            let has_home = layout.home(self.frames.at(frame).key).is_some();
            if !has_home {
                self.frames.change(frame, false, |page| page.busy = Busy::No);
                self.queue(frame);
            }
            has_home
        });
        ended.tries -= 1;
        self.write_back_again(ended, layout, out);
    }

    fn write_back_again(&mut self, ended: Operation, layout: &impl Layout, out: &mut Vec<Action>) {
        let home = |frame: Frame, frames: &Frames| layout.home(frames.at(frame).key);
        let runs: Vec<Vec<Frame>> = ended
            .frames
            .chunk_by(|&a, &b| {
                home(a, &self.frames).and_then(|at| at.checked_add(1)) == home(b, &self.frames)
            })
            .map(<[Frame]>::to_vec)
            .collect();
        for frames in runs {
            let operation =
                Operation { frames: frames.clone(), tries: ended.tries + 1, kind: Kind::WriteBack };
            let op = self.operations.begin(operation);
            for frame in frames {
                self.frames.change(frame, false, |page| page.busy = Busy::Writing { op, again: false });
            }
            out.push(Action::WriteBack { op });
        }
    }
}
