//! Forks. The pager keeps a snapshot of the parent's memory, from the parent's call until the child attaches.

use super::spans::Spans;
use super::{Pager, errno};
use farmem_paging::private::Table;
use farmem_uffd::remote::call::ELSEWHERE;
use farmem_uffd::{Cause, Fault};
use std::collections::BTreeSet;
use std::ops::Range;

/// A snapshot of a process's memory at its fork. The snapshot owns its slots.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) pages: u64,
    pub(super) spans: Spans,
    pub(super) table: Table,
    pub(super) objects: BTreeSet<u64>,
}

/// Maximum number of snapshots whose children have not attached yet. Further ones belong to failed forks.
const SNAPSHOTS_MAX: usize = 256;

impl Pager {
    /// Takes a snapshot for the child of a thread that is about to fork. Returns the snapshot's number.
    pub(super) fn snapshot(&mut self, key: u32, thread: u32) -> Result<u64, u64> {
        self.reap_dead_processes();
        let process = self.processes.get(&key).ok_or(errno::FAULT)?;
        let pages = process.remote.pages();
        let (mut spans, objects) = (process.spans.clone(), process.objects.clone());
        let not_inherited = spans.all().filter_map(|(span, kind)| Some((span, kind.instead()?)));
        let not_inherited: Vec<_> = not_inherited.collect();
        for (span, instead) in &not_inherited {
            spans.set(span.clone(), Some(*instead));
        }
        let not: Vec<Range<u64>> = not_inherited.into_iter().map(|(span, _)| span).collect();
        let (private, mut outside) = self.parts();
        let table = private.fork(key, &not, &mut outside).ok_or(errno::NOMEM)?;
        let held = private.take_waiting(key);
        self.carried_out();
        if self.gone.contains(&key) {
            self.private.release(table);
            return Err(errno::FAULT);
        }
        let snapshot = Snapshot { pages, spans, table, objects };
        let process = self.processes.get_mut(&key).expect("it called a moment ago");
        process.forking = Some(thread);
        process.deferred.extend(held.into_iter().map(|(page, write)| (page.page, write)));
        if self.snapshots.len() == SNAPSHOTS_MAX
            && let Some((_, oldest)) = self.snapshots.pop_first()
        {
            self.release(oldest);
        }
        self.forks += 1;
        self.snapshots.insert(self.forks, snapshot);
        Ok(self.forks)
    }

    /// Sets whether children of forks get the pages' bytes (MADV_DOFORK, MADV_DONTFORK). Children without the
    /// bytes keep the addresses reserved, without access. Otherwise the child's allocator could reuse addresses
    /// that another part of the program still knows.
    pub(super) fn leave_to_children(
        &mut self,
        key: u32,
        pages: Range<u64>,
        inherited: bool,
    ) -> Result<(), u64> {
        let elsewhere = self.is_elsewhere(key, pages.clone());
        if inherited && elsewhere && !self.is_all_elsewhere(key, pages.clone()) {
            // The kernel would apply the advice to far pages too, and children would get far memory twice.
            return Err(errno::INVAL);
        }
        self.change_far(key, pages.clone(), |kind| kind.with_inherited(inherited));
        if elsewhere {
            return Err(ELSEWHERE);
        }
        if self.used(key, pages.clone()) < pages.end { Err(errno::NOMEM) } else { Ok(()) }
    }

    /// Ends a fork, done or failed: other threads' faults are served again.
    pub(super) fn forked(&mut self, key: u32) {
        let Some(process) = self.processes.get_mut(&key) else { return };
        process.forking = None;
        for (page, write) in std::mem::take(&mut process.deferred) {
            self.fault(key, page, Fault { addr: 0, cause: Cause::Missing, write, thread: 0 });
        }
    }

    /// Releases a snapshot whose child will not attach.
    pub(super) fn release(&mut self, snapshot: Snapshot) {
        self.private.release(snapshot.table);
        self.close_unused(snapshot.objects);
    }
}
