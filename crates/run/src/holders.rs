//! The relation between processes and address spaces.
//!
//! A pid alone does not identify an address space (`farmem_uffd::remote::AddressSpace`). A child by `clone`
//! with CLONE_VM has its parent's address space, and keeps it when the parent ends or runs another program. So
//! the look-up goes through the memfd that the process has mapped.

use super::spans::Spans;
use super::static_program::StaticProgram;
use super::{Pager, Watch};
use farmem_paging::private::Table;
use farmem_uffd::remote::call::MAILBOXES;
use farmem_uffd::remote::raw::{Seen, process_of};
use farmem_uffd::remote::{AddressSpace, Remote};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

impl Pager {
    /// Watches a process's faults and its end, also for the time after the pager's death. Returns true on success.
    pub(super) fn watch_process(&mut self, key: u32, remote: &Remote, ended: &OwnedFd) -> bool {
        if let Some(guard) = &self.guard
            && guard.keep(key, ended, remote, remote.file()).is_err()
        {
            self.guard = None; // it was killed; the programs go on unguarded
        }
        self.acceptor.watch(remote, Watch::Faults(key)).is_ok()
            && self.acceptor.watch(ended, Watch::Ended(key)).is_ok()
    }

    /// Adds a process, whose faults are served from now on.
    pub(super) fn add_process(
        &mut self,
        key: u32,
        (pid, remote, ended): (u32, Remote, OwnedFd),
        (spans, table, objects): (Spans, Table, BTreeSet<u64>),
        static_program: Option<StaticProgram>,
    ) {
        let process = super::Process {
            pid,
            remote,
            ended,
            inherited: spans.promised(),
            spans,
            objects,
            doubts: Vec::new(),
            called: [0; MAILBOXES],
            forking: None,
            deferred: Vec::new(),
            static_program,
        };
        self.processes.insert(key, process);
        self.private.open(key, table);
        self.stats.processes += 1;
    }

    /// Returns the key of a process's or thread's address space, by its number in the pager's PID namespace.
    /// `None` means that the process has no far memory.
    ///
    /// # Errors
    /// The system's error, when the pager may not inspect the process and no attached process has its number.
    pub(super) fn with_memory_of(&self, number: u32) -> io::Result<Option<u32>> {
        let Some(last) = self.processes.values().map(|process| process.remote.address(0)).max() else {
            return Ok(None);
        };
        let key = |is: &dyn Fn(&super::Process) -> bool| {
            self.processes.iter().find(|(_, process)| is(process)).map(|(&key, _)| key)
        };
        match AddressSpace::of(number, last) {
            Ok(space) => Ok(key(&|process| process.remote.is_in(&space))),
            Err(error) => {
                let leader = process_of(number).map_or(number, |(leader, _)| leader);
                key(&|process| process.pid == leader && !process.remote.is_gone()).map(Some).ok_or(error)
            }
        }
    }

    /// Handles the end or exec of the process that stands for an address space. If another process has the
    /// address space, that process stands for it from now on. Otherwise the memory is freed.
    pub(super) fn holder_left(&mut self, key: u32) {
        if !self.hand_over(key) {
            self.remove_process(key);
        }
    }

    /// Lets another process stand for the address space. Returns false when no other process has it.
    fn hand_over(&mut self, key: u32) -> bool {
        let Some(process) = self.processes.get_mut(&key) else { return false };
        if process.remote.is_gone() {
            return false;
        }
        let Some((pid, ended)) = process.remote.holders().into_iter().next() else { return false };
        self.acceptor.forget(&process.ended);
        (process.pid, process.ended) = (pid, ended);
        if let Some(guard) = &self.guard
            && guard.keep(key, &process.ended, &process.remote, process.remote.file()).is_err()
        {
            self.guard = None; // it was killed; the programs go on unguarded
        }
        self.acceptor.watch(&process.ended, Watch::Ended(key)).is_ok()
    }

    /// Returns the kernel's mappings of an address space's far memory; `None` when the pager cannot read them.
    pub(super) fn seen(&mut self, key: u32) -> Option<Vec<Seen>> {
        let process = self.processes.get(&key)?;
        let seen = process.remote.seen(process.pid);
        // The first mapping of a process with the address space is the mailboxes. A process that runs another
        // program has none.
        if seen.as_ref().is_ok_and(|seen| seen.first().is_some_and(|first| first.pages.start == 0)) {
            return seen.ok();
        }
        if !self.hand_over(key) {
            return None;
        }
        let process = self.processes.get(&key)?;
        process.remote.seen(process.pid).ok()
    }
}
