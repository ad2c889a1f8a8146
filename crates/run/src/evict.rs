//! How pages go: from the program to the pool, from there to far memory, and then away.

use super::frames::{Held, Owner, Pooled, Resting};
use super::lost::is_lost;
use super::slots::{GROUP, Home, Slot};
use super::table::{Entry, Here};
use super::{Pager, Purpose, TRIES_MAX};
use farmem_client::Completed;
use farmem_client::Error;
use farmem_host::Op;
use farmem_io::pages::remote::Lost;
use farmem_wire::message::PAGE_LEN;
use std::ops::Range;

/// Pages that go in one step, and pages of one WRITE, at most.
pub(super) const BATCH: usize = 16;
/// WRITEs under way at once.
const WRITING_MAX: usize = 64;
/// Groups of slots of the first allocation of far memory; each further one is as large as all before, up to the next bound.
const GROUPS_MIN: u32 = 16;
const GROUPS_MAX: u32 = 1024;
/// Slots that are allocated ahead.
const SLOTS_AHEAD: u32 = 256;

impl Pager {
    /// Makes room for `wanted` frames; answers how many there are, at most so many.
    pub(super) fn room(&mut self, wanted: usize) -> usize {
        while self.frames.free() < wanted && self.evict() > 0 {}
        self.frames.free().min(wanted)
    }

    /// Keeps some frames free for the next faults.
    pub(super) fn look_ahead(&mut self) {
        while self.frames.free() < self.frames.reserve() && self.evict() > 0 {}
    }

    /// Takes up to [`BATCH`] pages from programs, those that came first; answers how many frames that freed.
    fn evict(&mut self) -> usize {
        self.grow();
        let mut going: [(Owner, u32); BATCH] = [(Owner { process: 0, page: 0 }, 0); BATCH];
        let (mut count, mut pinned) = (0, Vec::new());
        while count < BATCH {
            let Some(frame) = self.frames.pop_oldest() else { break };
            let (owner, _) = self.frames.at(frame);
            if self.pins.has(owner) {
                pinned.push(frame);
                continue;
            }
            going[count] = (owner, frame);
            count += 1;
        }
        pinned.into_iter().for_each(|frame| self.frames.keep(frame));
        let going = &mut going[..count];
        going.sort_unstable();
        let mut freed = 0;
        for run in going.chunk_by(|(a, _), (b, _)| a.process == b.process && a.page + 1 == b.page) {
            freed += self.evict_run(run);
        }
        freed
    }

    /// Pages that lie together in one process.
    fn evict_run(&mut self, run: &[(Owner, u32)]) -> usize {
        let Owner { process: key, page: first } = run[0].0;
        let pages = first..first + run.len() as u64;
        let dirty = run.iter().any(|&(_, frame)| self.frames.at(frame).1 == Held::Dirty);
        // From here on no store reaches them. Addresses that are mapped to something else now have no store to reach them either.
        if dirty && self.freeze(key, pages.clone()) == Err(Lost::Gone) {
            self.gone.push(key);
            run.iter().for_each(|&(_, frame)| self.frames.keep(frame));
            return 0;
        }
        let mut freed = 0;
        for &(owner, frame) in run {
            if !self.pool_page(owner, frame) {
                break;
            }
            freed += 1;
        }
        for &(owner, frame) in &run[freed..] {
            // It stays, and may have been frozen: the next write finds that out.
            self.frames.keep(frame);
            if self.frames.at(frame).1 == Held::Dirty {
                self.served(key, owner.page, |remote| remote.allow(owner.page));
            }
        }
        if freed > 0 {
            self.processes[&key].remote.discard(pages.start..pages.start + freed as u64);
            self.stats.evictions += freed as u64;
        }
        freed
    }

    /// Moves a frozen page's bytes from its frame to the pool, or nowhere when they are zeros. False without room.
    fn pool_page(&mut self, owner: Owner, frame: u32) -> bool {
        let Some(place) = self.place() else { return false };
        let Owner { process: key, page } = owner;
        self.processes[&key].remote.read(page, self.pool.bytes_mut(place));
        let (_, held) = self.frames.at(frame);
        let entry = self.entry(key, page);
        let here = match (held, entry.slot) {
            (Held::Fetching { .. }, _) => unreachable!("a page that is on its way does not go"),
            (Held::Dirty, slot) if is_zero(self.pool.bytes(place)) => {
                if let Some(slot) = slot {
                    self.leave(slot);
                }
                self.set_entry(key, page, Entry { slot: None, here: Here::No });
                self.frames.remove(frame);
                return true;
            }
            (Held::Clean, slot) => {
                let slot = slot.expect("what is clean is so beside a slot");
                if self.slots.home(slot) == Home::Far {
                    self.pool.put(place, Resting { slot, owner: Some(owner), state: Pooled::Clean });
                    Here::Pool(place)
                } else {
                    Here::No // its bytes are at home, here
                }
            }
            (Held::Dirty | Held::Owed, slot) => {
                let Some(slot) = slot.or_else(|| self.take_slot(owner)) else { return false };
                self.set_entry(key, page, Entry { slot: Some(slot), ..entry });
                self.fill_pool(place, slot, Some(owner));
                Here::Pool(place)
            }
        };
        let entry = self.entry(key, page);
        self.set_entry(key, page, Entry { here, ..entry });
        self.frames.remove(frame);
        true
    }

    /// The bytes in a free place of the pool are what the slot is to have.
    pub(super) fn fill_pool(&mut self, place: u32, slot: Slot, owner: Option<Owner>) {
        self.pool.put(place, Resting { slot, owner, state: Pooled::Unsent });
        self.slots.set_home(slot, Home::Pool(place));
        self.unsent.push_back(place);
    }

    /// A free place in the pool; for it, the page that rests longest goes.
    pub(super) fn place(&mut self) -> Option<u32> {
        if let Some(place) = self.pool.place() {
            return Some(place);
        }
        let place = self.pool.victim()?;
        if let Some(Owner { process, page }) = self.pool.at(place).owner {
            let entry = self.entry(process, page);
            self.set_entry(process, page, Entry { here: Here::No, ..entry });
        }
        self.pool.remove(place);
        self.pool.place()
    }

    /// As [`Pager::place`]; waits for one. `None` when far memory takes nothing any more.
    pub(super) fn place_in_time(&mut self) -> Option<u32> {
        loop {
            if let Some(place) = self.place() {
                return Some(place);
            }
            self.send();
            if self.under_way.is_empty() {
                return None;
            }
            self.wait();
        }
    }

    /// A slot for a page, beside its neighbours'.
    pub(super) fn take_slot(&mut self, owner: Owner) -> Option<Slot> {
        if self.slots.free() == 0 {
            self.grow();
        }
        let Owner { process, page } = owner;
        let before = self.entry(process, page - 1).slot.and_then(|slot| self.slots.behind(slot));
        let near = before.or_else(|| {
            let behind = self.find(process, page + 1)?.slot?;
            self.slots.before(behind)
        });
        self.slots.take(page, near)
    }

    /// Allocates far memory before it is needed; without effect when the rack has no more.
    fn grow(&mut self) {
        if self.slots.free() >= SLOTS_AHEAD || self.failed.is_some() || self.refused.is_some() {
            return;
        }
        let have = u32::try_from(self.slots.len()).expect("slots have numbers") / GROUP;
        let mut groups = have.clamp(GROUPS_MIN, GROUPS_MAX);
        loop {
            let bytes = u64::from(groups * GROUP) * PAGE_LEN as u64;
            match self.client.allocate(bytes) {
                Ok(vma) => {
                    self.slots.extend(vma.base, groups);
                    self.stats.bytes_far += bytes;
                    return;
                }
                Err(Error::Refused(_)) if groups > 1 => groups /= 2,
                Err(error @ Error::Refused(_)) => return self.refused = Some(error),
                Err(error) => return self.fail(error),
            }
        }
    }

    /// Sends what is to be written, as far as it may be under way at once.
    pub(super) fn send(&mut self) {
        while self.under_way.len() - self.fetching < WRITING_MAX && self.failed.is_none() {
            let Some((first, slot)) = self.next_unsent() else { return };
            let mut places = [first; BATCH];
            let (mut count, mut last) = (1, slot);
            while count < BATCH {
                let Some(&place) = self.unsent.front() else { break };
                let next =
                    self.pool.find(place).filter(|page| page.state == Pooled::Unsent).map(|page| page.slot);
                if next.is_none() || next != self.slots.behind(last) {
                    break;
                }
                self.unsent.pop_front();
                places[count] = place;
                last = next.expect("checked a moment ago");
                count += 1;
            }
            self.write(places, count, slot);
        }
    }

    fn next_unsent(&mut self) -> Option<(u32, Slot)> {
        while let Some(place) = self.unsent.pop_front() {
            if let Some(Resting { slot, state: Pooled::Unsent, .. }) = self.pool.find(place) {
                return Some((place, slot));
            }
        }
        None
    }

    fn write(&mut self, places: [u32; BATCH], count: usize, slot: Slot) {
        let mut buf = self.client.buffer(0);
        for &place in &places[..count] {
            buf.extend_from_slice(self.pool.bytes(place));
            let page = self.pool.at(place);
            self.pool.set(place, Resting { state: Pooled::Sent, ..page });
            self.slots.send(page.slot);
        }
        self.stats.write_backs += 1;
        self.stats.bytes_written_back += buf.len() as u64;
        self.submit_write(places, count, slot, buf, 0);
    }

    fn submit_write(&mut self, places: [u32; BATCH], count: usize, slot: Slot, buf: Vec<u8>, tries: u32) {
        match self.client.submit(Op::Write { addr: self.slots.addr(slot), buf }) {
            Ok(ticket) => self.under_way.push((ticket, Purpose::WriteBack { places, count, tries })),
            Err(error) => {
                self.fail(error);
                self.not_written(&places[..count]);
            }
        }
    }

    /// A WRITE has ended: its pages rest, or are not needed any more.
    pub(super) fn written(&mut self, places: [u32; BATCH], count: usize, tries: u32, completed: Completed) {
        let lost = is_lost(&completed);
        let Completed { result, buf, .. } = completed;
        if let Err(error) = result {
            let again = !lost || self.gave_up_old_bytes(places, count);
            if again && tries + 1 < TRIES_MAX && self.failed.is_none() {
                let slot = self.pool.at(places[0]).slot;
                return self.submit_write(places, count, slot, buf, tries + 1);
            }
            self.fail(error);
            self.client.recycle(buf);
            return self.not_written(&places[..count]);
        }
        self.client.recycle(buf);
        for &place in &places[..count] {
            let page = self.pool.at(place);
            if self.slots.home(page.slot) == Home::Pool(place) {
                self.slots.set_home(page.slot, Home::Far);
            }
            if page.owner.is_some() {
                self.pool.set(place, Resting { state: Pooled::Clean, ..page });
            } else {
                self.pool.remove(place);
            }
            self.slots.sent(page.slot);
        }
    }

    /// The bytes stay here for good: far memory does not take them.
    pub(super) fn not_written(&mut self, places: &[u32]) {
        for &place in places {
            let page = self.pool.at(place);
            self.pool.set(place, Resting { state: Pooled::Unsent, ..page });
            self.slots.sent(page.slot);
        }
    }

    /// The pages are zeros from now on, wherever they were. What the program sees of them is the caller's to discard.
    pub(super) fn forget(&mut self, key: u32, pages: Range<u64>) {
        let mut at = pages.start;
        while let Some(page) = self.processes[&key].table.next(at..pages.end) {
            self.forget_page(key, page);
            self.set_entry(key, page, Entry { slot: None, here: Here::No });
            at = page + 1;
        }
    }

    fn forget_page(&mut self, key: u32, page: u64) {
        let entry = self.entry(key, page);
        let shared = entry.slot.is_some_and(|slot| self.slots.owners(slot) > 1);
        match entry.here {
            Here::No => {}
            Here::Frame(frame) => {
                let (_, held) = self.frames.at(frame);
                if held == Held::Owed {
                    self.inherit(key, page, entry.slot.expect("an owed page has a slot"), shared);
                }
                self.frames.remove(frame);
            }
            Here::Pool(place) => {
                let resting = self.pool.at(place);
                let needed = match resting.state {
                    Pooled::Clean => false,
                    Pooled::Unsent => shared,
                    Pooled::Sent => true,
                };
                if needed {
                    self.pool.set(place, Resting { owner: None, ..resting });
                } else {
                    self.pool.remove(place);
                    if self.slots.home(resting.slot) == Home::Pool(place) {
                        self.slots.set_home(resting.slot, Home::Far);
                    }
                }
            }
        }
        if let Some(slot) = entry.slot {
            self.leave(slot);
        }
    }

    /// One owner less.
    pub(super) fn leave(&mut self, slot: Slot) {
        if self.slots.owners(slot) == 1 {
            self.drop_unsent(slot);
        }
        self.slots.leave(slot);
    }

    /// Bytes that wait in the pool for a slot, and for nobody but an owner that does not want them any more, are nobody's: sent
    /// later, they could come behind newer ones.
    pub(super) fn drop_unsent(&mut self, slot: Slot) {
        if let Home::Pool(place) = self.slots.home(slot)
            && let Resting { owner: None, state: Pooled::Unsent, .. } = self.pool.at(place)
        {
            self.pool.remove(place);
            self.slots.set_home(slot, Home::Far);
        }
    }

    /// What a frame owes its slot is needed by other owners of it: the pool has it from now on.
    fn inherit(&mut self, key: u32, page: u64, slot: Slot, shared: bool) {
        if !shared {
            return self.slots.set_home(slot, Home::Far);
        }
        match self.place_in_time() {
            Some(place) => {
                self.processes[&key].remote.read(page, self.pool.bytes_mut(place));
                self.fill_pool(place, slot, None);
            }
            // The owners find far memory's old bytes; but it has failed, so they are not given them.
            None => self.slots.set_home(slot, Home::Far),
        }
    }
}

fn is_zero(page: &[u8]) -> bool {
    let (words, rest) = page.as_chunks::<16>();
    rest.is_empty() && words.iter().all(|word| u128::from_le_bytes(*word) == 0)
}
