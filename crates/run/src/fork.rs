//! Forks: what a child will have, kept from its parent's call until it comes in.

use super::frames::{Held, Owner};
use super::slots::Home;
use super::spans::{Kind, Spans};
use super::table::{Entry, Here, Table};
use super::{Pager, errno};
use farmem_io::pages::remote::Lost;
use farmem_io::pages::remote::call::{CONTROL_PAGES, ELSEWHERE};
use std::collections::BTreeSet;
use std::ops::Range;

/// The memory of a process as it was when it forked. Its slots are owned.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) pages: u64,
    pub(super) spans: Spans,
    pub(super) table: Table,
    pub(super) objects: BTreeSet<u64>,
}

/// Forks whose children may be on their way at once. More than that are forks that failed.
const SNAPSHOTS_MAX: usize = 256;

impl Pager {
    /// A thread is about to fork: what it has now is what the child will have. Answers the snapshot's number.
    pub(super) fn snapshot(&mut self, key: u32, thread: u32) -> Result<u64, u64> {
        self.look_for_the_gone();
        self.freeze_dirty(key)?;
        let process = &self.processes[&key];
        let pages = process.remote.pages();
        let (mut spans, objects) = (process.spans.clone(), process.objects.clone());
        let not_inherited = spans.all().filter_map(|(span, kind)| Some((span, kind.instead()?)));
        let not_inherited: Vec<_> = not_inherited.collect();
        for (span, instead) in &not_inherited {
            spans.set(span.clone(), Some(*instead));
        }
        let mut snapshot = Snapshot { pages, spans, table: Table::new(pages), objects };
        let mut at = CONTROL_PAGES as u64;
        while let Some(page) = self.processes[&key].table.next(at..pages) {
            at = page + 1;
            if !not_inherited.is_empty()
                && let Some((span, kind)) = snapshot.spans.at(page)
                && kind.instead().is_some()
            {
                at = span.end;
                continue;
            }
            if let Some(slot) = self.entry(key, page).slot {
                self.slots.share(slot);
                snapshot.table.set(page, Entry { slot: Some(slot), here: Here::No });
            }
        }
        self.processes.get_mut(&key).expect("it called a moment ago").forking = Some(thread);
        if self.snapshots.len() == SNAPSHOTS_MAX
            && let Some((_, oldest)) = self.snapshots.pop_first()
        {
            self.release(oldest);
        }
        self.forks += 1;
        self.snapshots.insert(self.forks, snapshot);
        Ok(self.forks)
    }

    /// Whether the children of forks have what is in the pages (MADV_DOFORK, MADV_DONTFORK). Those who do not keep the addresses, and may not
    /// touch them: the part of a program that asked for it is not the one that allocates, and would be given them once more.
    pub(super) fn leave_to_children(
        &mut self,
        key: u32,
        pages: Range<u64>,
        inherited: bool,
    ) -> Result<(), u64> {
        let elsewhere = self.is_elsewhere(key, pages.clone());
        if inherited && elsewhere && !self.is_all_elsewhere(key, pages.clone()) {
            // The system would do it to the rest as well, and children come to have far memory twice.
            return Err(errno::INVAL);
        }
        self.change_far(key, pages.clone(), |protection, _| Kind::Far { protection, inherited });
        if elsewhere {
            return Err(ELSEWHERE);
        }
        if self.used(key, pages.clone()) < pages.end { Err(errno::NOMEM) } else { Ok(()) }
    }

    /// Dirty pages become owed: no store changes them unseen, and each has a slot, which they are the home of.
    fn freeze_dirty(&mut self, key: u32) -> Result<(), u64> {
        let mut rest = CONTROL_PAGES as u64..self.processes[&key].remote.pages();
        while let Some(run) = self.freeze_next(key, &mut rest)? {
            for page in run {
                self.owe(key, page)?;
            }
        }
        Ok(())
    }

    /// Freezes the first dirty pages of `rest` that lie together; no store reaches them from then on. `rest` is what is behind them.
    pub(super) fn freeze_next(&mut self, key: u32, rest: &mut Range<u64>) -> Result<Option<Range<u64>>, u64> {
        while let Some(first) = self.processes[&key].table.next(rest.clone()) {
            let mut end = first;
            while end < rest.end && self.is_dirty(key, end) {
                end += 1;
            }
            rest.start = end.max(first + 1);
            if end == first {
                continue;
            }
            if self.freeze(key, first..end) == Err(Lost::Gone) {
                self.gone.push(key);
                return Err(errno::FAULT);
            }
            return Ok(Some(first..end));
        }
        Ok(None)
    }

    fn is_dirty(&self, key: u32, page: u64) -> bool {
        match self.entry(key, page).here {
            Here::Frame(frame) => self.frames.at(frame).1 == Held::Dirty,
            _ => false,
        }
    }

    fn owe(&mut self, key: u32, page: u64) -> Result<(), u64> {
        let entry = self.entry(key, page);
        let Here::Frame(frame) = entry.here else { unreachable!("a dirty page has a frame") };
        let slot = entry.slot.or_else(|| self.take_slot(Owner { process: key, page })).ok_or(errno::NOMEM)?;
        self.set_entry(key, page, Entry { slot: Some(slot), ..entry });
        self.frames.set(frame, Held::Owed);
        self.slots.set_home(slot, Home::Frame(frame));
        Ok(())
    }

    /// The fork is done, or failed: other threads' faults are served again.
    pub(super) fn forked(&mut self, key: u32) {
        let Some(process) = self.processes.get_mut(&key) else { return };
        process.forking = None;
        for (page, fault) in std::mem::take(&mut process.deferred) {
            self.waiting.push_back((key, page, fault));
        }
    }

    /// Nobody will come for it.
    pub(super) fn release(&mut self, snapshot: Snapshot) {
        let mut at = 0;
        while let Some(page) = snapshot.table.next(at..snapshot.pages) {
            if let Some(slot) = snapshot.table.get(page).slot {
                self.leave(slot);
            }
            at = page + 1;
        }
        self.close_unused(snapshot.objects);
    }
}
