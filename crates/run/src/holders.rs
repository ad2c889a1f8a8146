//! Which process has an address space, and which address space a process has.
//!
//! A pid alone says neither (`farmem_uffd::remote::AddressSpace`): a child by `clone` with CLONE_VM has its parent's address space, and
//! keeps it when the parent ends or runs another program. So a number is looked up by the memfd that is mapped there.

use super::Pager;
use super::Watch;
use farmem_uffd::remote::AddressSpace;
use farmem_uffd::remote::raw::{Seen, process_of};
use std::io;

impl Pager {
    /// The key of the address space that a process or thread has, by its number here; `None` when it has no far memory.
    ///
    /// # Errors
    /// When the system does not let the pager look at the process, and its number is none that came in.
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

    /// The process by whose number an address space was known has ended, or runs another program. Another process may have the address space:
    /// then it is known by that one from now on. Otherwise its memory is freed.
    pub(super) fn holder_left(&mut self, key: u32) {
        if !self.hand_over(key) {
            self.bury(key);
        }
    }

    /// Has an address space be known by another process that has it. False when there is none.
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

    /// What the system has of an address space's far memory; `None` when that cannot be seen.
    pub(super) fn seen(&mut self, key: u32) -> Option<Vec<Seen>> {
        let process = self.processes.get(&key)?;
        let seen = process.remote.seen(process.pid);
        // Of a process that has the address space the mailboxes are seen; one that runs another program has other mappings.
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
