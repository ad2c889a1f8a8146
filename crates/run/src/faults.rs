//! A fault, and how its page comes: as zeros, from the pool, from another process, or from far memory.

use super::frames::{Held, Owner, Pooled, Resting};
use super::slots::{Home, Slot};
use super::spans::Kind;
use super::table::{Entry, Here};
use super::{AHEAD_MAX, Pager, Purpose, TRIES_MAX};
use farmem_client::Error;
use farmem_client::{Completed, Ticket};
use farmem_host::Op;
use farmem_io::pages::Fault;
use farmem_io::pages::remote::call::CONTROL_PAGES;
use farmem_io::pages::remote::{Lost, Remote};
use farmem_paging::{ReadAhead as _, Streams};
use farmem_wire::message::{Access, PAGE_LEN};
use std::ops::Range;

impl Pager {
    /// Serves a thread that waits; false when there is no room for its page yet.
    pub(super) fn fault(&mut self, key: u32, page: u64, fault: Fault) -> bool {
        let Some(process) = self.processes.get_mut(&key) else { return true };
        if page < CONTROL_PAGES as u64 {
            self.rang(key, page, fault.thread);
            return true;
        }
        if process.forking.is_some_and(|thread| thread != fault.thread) {
            process.deferred.push((page, fault));
            return true;
        }
        let span = match process.spans.at(page) {
            Some((span, Kind::Far { .. })) => span,
            // It is woken when the page is unmapped.
            Some((_, Kind::Moved)) => return true,
            Some((_, Kind::Elsewhere)) | None => {
                // Unmapped since: the thread finds that out.
                self.served(key, page, |remote| remote.wake(page..page + 1));
                return true;
            }
        };
        let entry = process.table.get(page);
        match (entry.here, entry.slot) {
            (Here::Frame(frame), _) => self.at_frame(key, page, frame, fault.write),
            (Here::Pool(_), _) => self.out_of_pool(key, page, fault.write),
            (Here::No, None) => self.zeros(key, page, span, fault.write),
            (Here::No, Some(slot)) => match self.slots.home(slot) {
                Home::Far => self.fetch(key, page, span, fault.write),
                Home::Frame(_) | Home::Pool(_) => self.copy(key, page, fault.write),
            },
        }
    }

    /// The page is in the program, or on its way.
    fn at_frame(&mut self, key: u32, page: u64, frame: u32, write: bool) -> bool {
        let (_, held) = self.frames.at(frame);
        let next = match held {
            Held::Fetching { ticket, write: before } => {
                self.frames.set(frame, Held::Fetching { ticket, write: before || write });
                return true;
            }
            Held::Dirty => Held::Dirty,
            Held::Clean | Held::Owed if !write => held,
            Held::Clean => {
                self.own(key, page);
                Held::Dirty
            }
            Held::Owed => {
                if !self.disown(key, page, frame) {
                    return false;
                }
                Held::Dirty
            }
        };
        self.stats.upgrades += u64::from(next != held);
        self.frames.set(frame, next);
        let access = if next == Held::Dirty { Access::Modified } else { Access::Shared };
        self.served(key, page, |remote| remote.mend(page, access));
        true
    }

    /// The page is about to be written: it gets a slot of its own when others have its slot too.
    fn own(&mut self, key: u32, page: u64) {
        let entry = self.entry(key, page);
        let Some(slot) = entry.slot else { return };
        if self.slots.owners(slot) > 1 {
            self.leave(slot);
            self.set_entry(key, page, Entry { slot: None, ..entry });
        } else {
            self.drop_unsent(slot);
        }
    }

    /// As [`Pager::own`], of a page whose frame has what the slot is to have: other owners find that in the pool. False without room.
    fn disown(&mut self, key: u32, page: u64, frame: u32) -> bool {
        let entry = self.entry(key, page);
        let slot = entry.slot.expect("an owed page has a slot");
        assert_eq!(self.slots.home(slot), Home::Frame(frame), "the frame is the slot's home");
        if self.slots.owners(slot) == 1 {
            self.slots.set_home(slot, Home::Far);
            return true;
        }
        self.look_for_the_gone();
        if !self.processes.contains_key(&key) {
            return true;
        }
        if self.slots.owners(slot) == 1 {
            self.slots.set_home(slot, Home::Far);
            return true;
        }
        let Some(place) = self.place() else { return false };
        self.processes[&key].remote.read(page, self.pool.bytes_mut(place));
        self.fill_pool(place, slot, None);
        self.leave(slot);
        self.set_entry(key, page, Entry { slot: None, ..entry });
        true
    }

    /// A page that rests, or waits to be written.
    fn out_of_pool(&mut self, key: u32, page: u64, write: bool) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        // Making room may have let it go.
        let entry = self.entry(key, page);
        let Here::Pool(place) = entry.here else { return self.again(key, page, write) };
        let Resting { slot, state, .. } = self.pool.at(place);
        let access = if write { Access::Modified } else { Access::Shared };
        let Some(process) = self.processes.get(&key) else { return true };
        if put(&process.remote, page, self.pool.bytes(place), access, &mut self.gone, key) == 0 {
            return true;
        }
        self.stats.near += 1;
        let alone = self.slots.owners(slot) == 1;
        let (held, keeps) = match (state, write) {
            (Pooled::Clean, false) => (Held::Clean, false),
            (Pooled::Clean, true) => (Held::Dirty, false),
            (Pooled::Unsent, false) => (Held::Owed, false),
            (Pooled::Unsent, true) => (Held::Dirty, !alone),
            (Pooled::Sent, false) => (Held::Clean, true),
            (Pooled::Sent, true) => (Held::Dirty, true),
        };
        let frame = self.frames.insert(Owner { process: key, page }, held);
        self.set_entry(key, page, Entry { here: Here::Frame(frame), ..entry });
        if keeps {
            self.pool.set(place, Resting { slot, owner: None, state });
        } else {
            self.pool.remove(place);
        }
        match held {
            Held::Owed => self.slots.set_home(slot, Home::Frame(frame)),
            _ if state == Pooled::Unsent && !keeps => self.slots.set_home(slot, Home::Far),
            _ => {}
        }
        if write {
            self.own(key, page);
        }
        true
    }

    /// A page nobody has written to yet, with those beside it that a stream is about to reach.
    fn zeros(&mut self, key: u32, page: u64, span: Range<u64>, write: bool) -> bool {
        let process = self.processes.get_mut(&key).expect("it was there a moment ago");
        let proposed = proposal(&mut process.streams, page, &span);
        let nowhere = |page: &u64| process.table.next(*page..*page + 1).is_none();
        let behind = (page + 1..proposed.end).take_while(nowhere).count();
        let before = (proposed.start..page).rev().take_while(nowhere).count();
        let count = self.room(before + 1 + behind);
        // A stream goes one way.
        let first = if before > 0 && count > 0 { page + 1 - count as u64 } else { page };
        let Some(process) = self.processes.get_mut(&key) else { return true };
        process.streams.fetched(&(first..first + count as u64));
        if count == 0 {
            return false;
        }
        let zeros = &self.zeros[..count * PAGE_LEN];
        let count = put(&process.remote, first, zeros, Access::Modified, &mut self.gone, key);
        for page in first..first + count as u64 {
            let frame = self.frames.insert(Owner { process: key, page }, Held::Dirty);
            self.set_entry(key, page, Entry { slot: None, here: Here::Frame(frame) });
        }
        if first < page && first + count as u64 <= page {
            // The one that is waited for did not come.
            return self.again(key, page, write);
        }
        self.stats.zeros += 1;
        true
    }

    /// A page whose bytes another process has here, or the pool for it.
    fn copy(&mut self, key: u32, page: u64, write: bool) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        let entry = self.entry(key, page);
        let (Here::No, Some(slot)) = (entry.here, entry.slot) else { return self.again(key, page, write) };
        let mut bytes = [0; PAGE_LEN];
        match self.slots.home(slot) {
            Home::Far => return self.again(key, page, write),
            Home::Pool(place) => bytes.copy_from_slice(self.pool.bytes(place)),
            Home::Frame(frame) => {
                let (owner, _) = self.frames.at(frame);
                self.processes[&owner.process].remote.read(owner.page, &mut bytes);
            }
        }
        let access = if write { Access::Modified } else { Access::Shared };
        let Some(process) = self.processes.get(&key) else { return true };
        if put(&process.remote, page, &bytes, access, &mut self.gone, key) == 1 {
            let held = if write { Held::Dirty } else { Held::Clean };
            let frame = self.frames.insert(Owner { process: key, page }, held);
            self.set_entry(key, page, Entry { here: Here::Frame(frame), ..entry });
            if write {
                self.own(key, page);
            }
            self.stats.near += 1;
        }
        true
    }

    /// Starts a READ for a page, with those beside it that a stream is about to reach and that lie beside it in far memory.
    fn fetch(&mut self, key: u32, page: u64, span: Range<u64>, write: bool) -> bool {
        if self.failed.is_some() {
            self.poison(key, page);
            return true;
        }
        let process = self.processes.get_mut(&key).expect("it was there a moment ago");
        let proposed =
            if self.one_by_one { page..page + 1 } else { proposal(&mut process.streams, page, &span) };
        let wanted = self.run(key, page, &proposed);
        let count = self.room(usize::try_from(wanted.end - wanted.start).expect("at most AHEAD_MAX"));
        // Making room may have changed what is far.
        let far = matches!(self.find(key, page), Some(Entry { here: Here::No, slot: Some(_) }));
        if count == 0 || !far {
            if let Some(process) = self.processes.get_mut(&key) {
                process.streams.fetched(&(page..page));
            }
            return count > 0 && self.again(key, page, write);
        }
        // A stream goes one way.
        let most = count as u64;
        let fits = if wanted.start < page {
            wanted.start.max((page + 1).saturating_sub(most))..page + 1
        } else {
            page..wanted.end.min(page + most)
        };
        let Range { start, end } = self.run(key, page, &fits);
        let Some(slot) = self.entry(key, start).slot else { unreachable!("what is far has a slot") };
        if let Some(process) = self.processes.get_mut(&key) {
            process.streams.fetched(&(start..end));
        }
        self.stats.missing += 1;
        self.read(key, start, end - start, slot, write, 0);
        true
    }

    /// Pages around `page`, among those proposed, that are far and lie together there.
    fn run(&self, key: u32, page: u64, proposed: &Range<u64>) -> Range<u64> {
        let far = |page: u64, slot: Option<Slot>| {
            let entry = self.entry(key, page);
            let there = entry.here == Here::No && entry.slot.is_some() && entry.slot == slot;
            there && slot.is_some_and(|slot| self.slots.home(slot) == Home::Far)
        };
        let mut run = page..page + 1;
        let mut slot = self.entry(key, page).slot;
        while run.end < proposed.end {
            slot = slot.and_then(|slot| self.slots.behind(slot));
            if !far(run.end, slot) {
                break;
            }
            run.end += 1;
        }
        let mut slot = self.entry(key, page).slot;
        while run.start > proposed.start {
            slot = slot.and_then(|slot| self.slots.before(slot));
            if !far(run.start - 1, slot) {
                break;
            }
            run.start -= 1;
        }
        run
    }

    fn read(&mut self, key: u32, page: u64, count: u64, slot: Slot, write: bool, tries: u32) {
        let len = usize::try_from(count).expect("at most AHEAD_MAX") * PAGE_LEN;
        let buf = self.client.buffer(len);
        let ticket = match self.client.submit(Op::Read { addr: self.slots.addr(slot), buf }) {
            Ok(ticket) => ticket,
            Err(error) => {
                self.fail(error);
                return self.poison(key, page);
            }
        };
        self.stats.fetches += u64::from(tries == 0);
        for page in page..page + count {
            // A stream of writes goes on as one: pages beside the one that faulted come writable too.
            let held = Held::Fetching { ticket, write };
            let frame = self.frames.insert(Owner { process: key, page }, held);
            let entry = self.entry(key, page);
            self.set_entry(key, page, Entry { here: Here::Frame(frame), ..entry });
        }
        self.under_way.push((ticket, Purpose::Fetch { process: key, page, count, slot, tries }));
        self.fetching += 1;
    }

    /// A READ has ended: its pages come into the program, but for those that it has given up meanwhile.
    pub(super) fn fetched(
        &mut self,
        ticket: Ticket,
        (key, first, count): (u32, u64, u64),
        (slot, tries): (Slot, u32),
        completed: Completed,
    ) {
        let Completed { result, buf, .. } = completed;
        if let Err(error @ Error::MemoryLost { .. }) = result {
            self.client.recycle(buf);
            return self.lost_on_the_way(ticket, (key, first, count), error);
        }
        if let Err(error) = result {
            self.client.recycle(buf);
            let wanted = self.not_fetched_yet(ticket, key, first, count);
            if tries + 1 < TRIES_MAX && wanted.len() as u64 == count {
                let write = self.give_up_frames(key, &wanted);
                return self.read(key, first, count, slot, write, tries + 1);
            }
            self.fail(error);
            return self.not_fetched(ticket, key, first, count);
        }
        self.stats.bytes_fetched += buf.len() as u64;
        let wanted = self.not_fetched_yet(ticket, key, first, count);
        for run in wanted.chunk_by(|a, b| a.0 + 1 == b.0) {
            let writes = run.iter().filter(|(_, _, write)| *write).count();
            let all = writes == run.len();
            let access = if all { Access::Modified } else { Access::Shared };
            let (start, end) = (run[0].0 - first, run[run.len() - 1].0 + 1 - first);
            let bytes = &buf[place(start) * PAGE_LEN..place(end) * PAGE_LEN];
            let Some(process) = self.processes.get(&key) else { break };
            let count = put(&process.remote, run[0].0, bytes, access, &mut self.gone, key);
            self.give_up_frames(key, &run[count..]);
            for &(page, _, _) in &run[count..] {
                // Who came to wait for it meanwhile asks again.
                self.served(key, page, |remote| remote.wake(page..page + 1));
            }
            for &(page, frame, write) in &run[..count] {
                self.frames.set(frame, if write { Held::Dirty } else { Held::Clean });
                if write {
                    self.own(key, page);
                }
                if write && !all {
                    self.served(key, page, |remote| remote.allow(page));
                }
            }
        }
        self.client.recycle(buf);
    }

    /// Pages that wait for this READ: number, frame, and whether somebody wants to write.
    pub(super) fn not_fetched_yet(
        &self,
        ticket: Ticket,
        key: u32,
        first: u64,
        count: u64,
    ) -> Vec<(u64, u32, bool)> {
        let waits = |page: u64| match self.find(key, page)?.here {
            Here::Frame(frame) => match self.frames.at(frame).1 {
                Held::Fetching { ticket: of, write } if of == ticket => Some((page, frame, write)),
                _ => None,
            },
            _ => None,
        };
        (first..first + count).filter_map(waits).collect()
    }

    pub(super) fn give_up_frames(&mut self, key: u32, pages: &[(u64, u32, bool)]) -> bool {
        for &(page, frame, _) in pages {
            self.frames.remove(frame);
            let entry = self.entry(key, page);
            self.set_entry(key, page, Entry { here: Here::No, ..entry });
        }
        pages.iter().any(|(_, _, write)| *write)
    }

    pub(super) fn not_fetched(&mut self, ticket: Ticket, key: u32, first: u64, count: u64) {
        let wanted = self.not_fetched_yet(ticket, key, first, count);
        self.give_up_frames(key, &wanted);
        for (page, _, _) in wanted {
            self.poison(key, page);
        }
    }

    /// What was to be done has changed while room was made.
    fn again(&mut self, key: u32, page: u64, write: bool) -> bool {
        let cause = farmem_io::pages::Cause::Missing;
        self.fault(key, page, Fault { addr: 0, cause, write, thread: self.forker(key) })
    }

    /// The thread that forks, or 0.
    fn forker(&self, key: u32) -> u32 {
        self.processes.get(&key).and_then(|process| process.forking).unwrap_or(0)
    }

    pub(super) fn find(&self, key: u32, page: u64) -> Option<Entry> {
        self.processes.get(&key).map(|process| process.table.get(page))
    }

    pub(super) fn entry(&self, key: u32, page: u64) -> Entry {
        self.processes[&key].table.get(page)
    }

    pub(super) fn set_entry(&mut self, key: u32, page: u64, entry: Entry) {
        self.processes.get_mut(&key).expect("a process that is served").table.set(page, entry);
    }

    /// Lets a thread go on.
    pub(super) fn served(&mut self, key: u32, page: u64, how: impl FnOnce(&Remote) -> Result<(), Lost>) {
        let Some(process) = self.processes.get(&key) else { return };
        match how(&process.remote) {
            Err(Lost::Gone) => self.gone.push(key),
            // Whatever is there now does not wait for us.
            Err(Lost::Remapped(_)) => drop(process.remote.wake(page..page + 1)),
            Ok(()) => {}
        }
    }
}

/// Puts a run of pages into the program; answers how many. Where the program's mappings are not what they seem from here (two that
/// are about to be one, or something else mapped in between), it is the first alone, or none: who waits then finds out itself.
fn put(remote: &Remote, first: u64, bytes: &[u8], access: Access, gone: &mut Vec<u32>, key: u32) -> usize {
    let mut count = bytes.len() / PAGE_LEN;
    loop {
        match remote.install(first, &bytes[..count * PAGE_LEN], access) {
            Ok(()) => return count,
            Err(Lost::Gone) => {
                gone.push(key);
                return 0;
            }
            Err(Lost::Remapped(_)) => {
                // Whatever of it came is not counted here, so it must not be there.
                remote.discard(first..first + count as u64);
                if count == 1 {
                    // One that is gone since is buried when that is noticed.
                    let _ = remote.wake(first..first + 1);
                    return 0;
                }
                count = 1;
            }
        }
    }
}

/// What a stream proposes to fetch with a page, of its span.
fn proposal(streams: &mut Streams, page: u64, span: &Range<u64>) -> Range<u64> {
    let proposed = streams.propose(page);
    let start = proposed.start.max(span.start).max((page + 1).saturating_sub(AHEAD_MAX)).min(page);
    start..proposed.end.min(span.end).min(page + AHEAD_MAX).max(page + 1)
}

fn place(n: u64) -> usize {
    usize::try_from(n).expect("pages of one READ")
}
