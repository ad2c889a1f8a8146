//! Page faults. The pager's cache decides how the page comes, and [`Outside`] carries the decision out.
//!
//! Key type: [`Outside`], which connects the cache to the programs' userfaultfds, the pool, and far memory.

use super::far::{Far, Purpose, bytes};
use super::pins::Pins;
use super::raw_calls::Doubt;
use super::spans::Kind;
use super::{Pager, Process};
use farmem_client::Error;
use farmem_host::Op;
use farmem_paging::private::{Allocated, CopySource, PoolPlace, Private, Programs};
use farmem_paging::{Cause, Key, Op as Number};
use farmem_uffd::Fault;
use farmem_uffd::remote::call::CONTROL_PAGES;
use farmem_uffd::remote::{Lost, Remote};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN};
use std::collections::BTreeMap;
use std::ops::Range;

impl Pager {
    /// Handles the fault of a waiting thread.
    pub(super) fn fault(&mut self, key: u32, page: u64, fault: Fault) {
        let Some(process) = self.processes.get_mut(&key) else { return };
        if page < CONTROL_PAGES as u64 {
            return self.doorbell_rung(key, page, fault.thread);
        }
        if process.forking.is_some_and(|thread| thread != fault.thread) {
            return process.deferred.push((page, fault.write));
        }
        match process.spans.at(page) {
            Some((_, Kind::Far { .. })) => self.far_fault(Key { space: key, page }, fault.write),
            // The thread wakes when the page is unmapped.
            Some((_, Kind::Moved)) => {}
            // The page was unmapped meanwhile; the thread's retry gets the result of that.
            Some((_, Kind::Elsewhere)) | None => {
                self.served(key, page, |remote| remote.wake(page..page + 1));
            }
        }
    }

    pub(super) fn far_fault(&mut self, page: Key, write: bool) {
        if write && self.private.is_needed(page) {
            // The process that shares the page may be gone: a fork that is followed by an exec copies nothing.
            self.reap_dead_processes();
            if !self.processes.contains_key(&page.space) {
                return;
            }
        }
        let (private, mut outside) = self.parts();
        private.fault(page, write, &mut outside);
        self.carried_out();
    }

    /// Splits the pager into the cache, which decides, and the interface that carries the decisions out.
    pub(super) fn parts(&mut self) -> (&mut Private, Outside<'_>) {
        let Self { private, far, processes, pins, pool, zeros, gone, .. } = self;
        (private, Outside { far, processes, pins, pool, zeros, gone })
    }

    /// Resumes a waiting thread.
    pub(super) fn served(&mut self, key: u32, page: u64, how: impl FnOnce(&Remote) -> Result<(), Lost>) {
        self.parts().1.served(Key { space: key, page }, how);
    }
}

/// The cache's interface to programs and far memory.
pub(super) struct Outside<'a> {
    far: &'a mut Far,
    processes: &'a BTreeMap<u32, Process>,
    pins: &'a Pins,
    pool: &'a mut [u8],
    zeros: &'a [u8],
    gone: &'a mut Vec<u32>,
}

impl Outside<'_> {
    /// Resumes a waiting thread.
    fn served(&mut self, Key { space, page }: Key, how: impl FnOnce(&Remote) -> Result<(), Lost>) {
        let Some(process) = self.processes.get(&space) else { return };
        match how(&process.remote) {
            Err(Lost::Exited) => self.gone.push(space),
            // A mapping that has replaced the page does not wait for the pager.
            Err(Lost::Remapped(_)) => drop(process.remote.wake(page..page + 1)),
            Ok(()) => {}
        }
    }

    /// Applies `how` to all pages together. Where the kernel stops, because a page is something else by now,
    /// the pages follow one by one.
    fn all_or_each(
        &mut self,
        space: u32,
        pages: Range<u64>,
        how: impl Fn(&Remote, Range<u64>) -> Result<(), Lost>,
    ) {
        let Some(Process { remote, .. }) = self.processes.get(&space) else { return };
        let done = match how(remote, pages.clone()) {
            Err(Lost::Remapped(_)) => pages
                .map(|page| how(remote, page..page + 1))
                .find(|done| *done == Err(Lost::Exited))
                .unwrap_or(Ok(())),
            other => other,
        };
        if done == Err(Lost::Exited) {
            self.gone.push(space);
        }
    }

    fn place(&self, place: PoolPlace) -> &[u8] {
        &self.pool[place as usize * PAGE_LEN..][..PAGE_LEN]
    }

    /// Installs one page as [`put`] does. The caller has the only copy of its bytes.
    fn put_or_keep(&mut self, key: Key, bytes: &[u8], access: Access) {
        let Some(process) = self.processes.get(&key.space) else { return };
        if put(&process.remote, key.page, bytes, access, self.gone, key.space) == 0
            && !process.remote.keep(key.page, bytes)
        {
            self.served(key, |remote| remote.poison(key.page));
        }
    }
}

impl Programs for Outside<'_> {
    fn around(&self, key: Key) -> Option<Range<u64>> {
        match self.processes.get(&key.space)?.spans.at(key.page)? {
            (span, Kind::Far { .. }) => Some(span),
            (_, Kind::Elsewhere | Kind::Moved) => None,
        }
    }

    fn stays(&self, key: Key) -> bool {
        self.pins.has(key)
    }

    fn unwatch(&mut self, space: u32, pages: Range<u64>) -> bool {
        // During a fork, other threads store nothing. Pages in doubt may have been remapped by a call past
        // libc.
        let is_steady = |process: &&Process| {
            process.forking.is_none() && !process.doubts.iter().any(Doubt::is_of_contents)
        };
        self.processes
            .get(&space)
            .filter(is_steady)
            .is_some_and(|process| process.remote.unwatch(pages).is_ok())
    }

    fn watch(&mut self, space: u32, pages: Range<u64>) -> bool {
        let Some(Process { remote, .. }) = self.processes.get(&space) else { return false };
        match remote.watch(pages) {
            Ok(()) => return true,
            Err(Lost::Exited) => self.gone.push(space),
            Err(Lost::Remapped(errno)) => {
                // Unwatched pages would stay in memory for good, and the pager could not count them.
                let what = "the pages of a program cannot be watched".into();
                self.far.fail(Error::System { what, source: errno.into() });
            }
        }
        false
    }

    fn populated(&mut self, space: u32, pages: Range<u64>) -> Vec<Range<u64>> {
        self.processes.get(&space).map_or_else(Vec::new, |process| process.remote.populated(pages))
    }

    fn write_protect(&mut self, space: u32, pages: Range<u64>) {
        // A process that is gone stores nothing. A page that is something else by now gets no store.
        self.all_or_each(space, pages, Remote::write_protect);
    }

    fn allow(&mut self, space: u32, pages: Range<u64>) {
        // A mapping that has replaced the page does not wait for the pager.
        self.all_or_each(space, pages, |remote, pages| match remote.allow(pages.clone()) {
            Err(Lost::Remapped(_)) if pages.end - pages.start == 1 => remote.wake(pages),
            other => other,
        });
    }

    fn save(&mut self, space: u32, pages: Range<u64>, first: PoolPlace) {
        let into = &mut self.pool[first as usize * PAGE_LEN..][..len(&pages)];
        self.processes[&space].remote.read(pages.start, into);
    }

    fn is_zero(&self, place: PoolPlace) -> bool {
        let (words, rest) = self.place(place).as_chunks::<16>();
        rest.is_empty() && words.iter().all(|word| u128::from_le_bytes(*word) == 0)
    }

    fn discard(&mut self, space: u32, pages: Range<u64>) {
        if let Some(process) = self.processes.get(&space).filter(|_| !pages.is_empty()) {
            process.remote.discard(pages);
        }
    }

    fn zeros(&mut self, space: u32, pages: Range<u64>) -> u64 {
        let Some(process) = self.processes.get(&space) else { return 0 };
        let zeros = &self.zeros[..len(&pages)];
        put(&process.remote, pages.start, zeros, Access::Modified, self.gone, space)
    }

    fn install(&mut self, _op: Number, space: u32, pages: Range<u64>, access: Access) -> u64 {
        let Some(process) = self.processes.get(&space) else { return 0 };
        let (first, arrived) = &self.far.arrived;
        let arrived = &arrived[len(&(*first..pages.start))..][..len(&pages)];
        put(&process.remote, pages.start, arrived, access, self.gone, space)
    }

    fn copy(&mut self, key: Key, from: CopySource, access: Access) -> bool {
        let mut bytes = [0; PAGE_LEN];
        match from {
            CopySource::Pool(place) => bytes.copy_from_slice(self.place(place)),
            CopySource::Program(of) => self.processes[&of.space].remote.read(of.page, &mut bytes),
        }
        let Some(process) = self.processes.get(&key.space) else { return false };
        put(&process.remote, key.page, &bytes, access, self.gone, key.space) == 1
    }

    fn restore(&mut self, key: Key, place: PoolPlace, access: Access) {
        let mut bytes = [0; PAGE_LEN];
        bytes.copy_from_slice(self.place(place));
        self.put_or_keep(key, &bytes, access);
    }

    fn map(&mut self, key: Key, access: Access) {
        self.served(key, |remote| remote.remap(key.page, access));
    }

    fn relocate(&mut self, key: Key, to: Key, access: Access) {
        let mut bytes = [0; PAGE_LEN];
        let remote = &self.processes[&key.space].remote;
        remote.read(key.page, &mut bytes);
        remote.discard(key.page..key.page + 1);
        self.put_or_keep(to, &bytes, access);
    }

    fn wake(&mut self, space: u32, pages: Range<u64>) {
        if let Some(process) = self.processes.get(&space)
            && process.remote.wake(pages) == Err(Lost::Exited)
        {
            self.gone.push(space);
        }
    }

    fn poison(&mut self, key: Key, why: Cause) {
        self.far.told(why);
        if let Some(process) = self.processes.get(&key.space)
            && process.remote.poison(key.page) == Err(Lost::Exited)
        {
            self.gone.push(key.space);
        }
    }

    fn fetch(&mut self, op: Number, first: Key, addr: VirtAddr, count: u32) {
        let buf = self.far.client.buffer(count as usize * PAGE_LEN);
        self.far.submit(Op::Read { addr, buf }, Purpose::Fetch { op, first: first.page });
    }

    fn write_back(&mut self, op: Number, addr: VirtAddr, pages: &[CopySource]) {
        let mut buf = self.far.client.buffer(0);
        for &page in pages {
            match page {
                CopySource::Pool(place) => buf.extend_from_slice(self.place(place)),
                CopySource::Program(of) => {
                    let start = buf.len();
                    buf.resize(start + PAGE_LEN, 0);
                    self.processes[&of.space].remote.read(of.page, &mut buf[start..]);
                }
            }
        }
        let purpose = Purpose::WriteBack { op, addr, len: bytes(pages.len() as u64) };
        self.far.submit(Op::Write { addr, buf }, purpose);
    }

    fn may_allocate(&self) -> bool {
        self.far.no_more.is_none() && self.far.failed.is_none()
    }

    fn allocate(&mut self, bytes: u64) -> Allocated {
        match self.far.client.allocate(bytes) {
            Ok(vma) => {
                self.far.no_more = None;
                Allocated::At(vma.base)
            }
            Err(error @ Error::Refused(_)) => {
                self.far.no_more = Some(error);
                Allocated::Refused
            }
            Err(error) => {
                self.far.fail(error);
                Allocated::Failed
            }
        }
    }
}

/// Installs a run of pages in the program, and returns how many. The program's mappings may differ from the
/// pager's view: two mappings are about to merge, or another one is in between. Then only the first page is
/// installed, or none, and a waiting thread retries its access.
fn put(remote: &Remote, first: u64, bytes: &[u8], access: Access, gone: &mut Vec<u32>, key: u32) -> u64 {
    let mut count = bytes.len() / PAGE_LEN;
    loop {
        match remote.install(first, &bytes[..count * PAGE_LEN], access) {
            Ok(()) => return count as u64,
            Err(Lost::Exited) => {
                gone.push(key);
                return 0;
            }
            Err(Lost::Remapped(_)) => {
                // Pages of a partial install do not count, so they must not stay.
                remote.discard(first..first + count as u64);
                if count == 1 {
                    // A failure means that the process is gone; the pager notices that elsewhere.
                    let _ = remote.wake(first..first + 1);
                    return 0;
                }
                count = 1;
            }
        }
    }
}

/// Returns the length in bytes of a run of pages.
fn len(pages: &Range<u64>) -> usize {
    usize::try_from(bytes(pages.end - pages.start)).expect("pages of one operation")
}
