//! Private memory of programs that fork. Pure.
//!
//! The module tracks which slot of far memory each page of each process has, which processes share a slot,
//! and where the latest bytes are. Key types: [`Private`], which has a [`Cache`] of its own; [`Programs`],
//! the interface for its actions. An evicted page first becomes inactive, in a place of the pager's *pool*,
//! and then gets a *slot* of far memory if it has none.
//!
//! A fork is a snapshot: the child's table names the parent's slots, which then have two owners; an owner
//! that writes takes another slot. Pages that are not in far memory at the fork stay where they are,
//! read-only, and the slot records the location (its *home*), so a fork followed by an exec copies nothing.
//! When such a page is written or evicted while others own its slot, its bytes stay inactive under the slot's
//! own key until they are written back.
//!
//! The module does not copy bytes, does not know which addresses a program uses, and does not wait.

mod check;
mod deactivate;
mod forks;
mod plain;
mod pool;
mod programs;
mod slots;
mod table;

pub use plain::PlainStats;
pub use programs::{Allocated, CopySource, PoolPlace, Programs};
pub use table::Table;

use crate::{Action, Cache, Config, Key, Layout, Op, Outcome, Refaults, Source, Stats};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem;
use core::ops::Range;
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN};
use plain::Plain;
use pool::Pool;
use slots::{GROUP, Location, Slot, Slots};
use table::{Entry, LocalCopy};

/// The space whose pages are slots, for bytes that only a slot needs. Processes have other numbers.
const SLOTS: u32 = 0;
/// Slot groups of the first allocation of far memory. Each further allocation is as large as all before, up
/// to the next limit.
const GROUPS_MIN: u32 = 16;
const GROUPS_MAX: u32 = 1024;
/// Number of slots allocated ahead.
const SLOTS_AHEAD: u32 = 256;
/// If fewer slots are left and no more can be allocated, pages without a slot stay mapped. More than one step
/// deactivates.
const SLOTS_LAST: u32 = 64;

/// The memory of all processes of a program.
#[derive(Debug)]
pub struct Private {
    cache: Cache,
    book: Book,
    /// The slots of each write-back.
    writes: BTreeMap<Op, Vec<Slot>>,
    /// Inactive pages without a slot. Some entries are obsolete.
    without_slot: Vec<Key>,
    /// True if pages got slots since the cache was last asked for write-backs.
    to_send: bool,
    /// Number of pages evicted to make room.
    evictions: u64,
    refaults: Refaults,
    stats_plain: PlainStats,
    /// The number of zero pages after which memory becomes plain, if enabled.
    single_pages: Option<u32>,
    /// True once plain memory had to give frames up.
    was_pressed: bool,
    bytes_far: u64,
    actions: Vec<Action>,
}

/// The locations of all pages.
#[derive(Debug)]
struct Book {
    slots: Slots,
    tables: BTreeMap<u32, Table>,
    pool: Pool,
    plain: Plain,
}

impl Book {
    fn find(&self, key: Key) -> Option<Entry> {
        self.tables.get(&key.space).map(|table| table.get(key.page))
    }

    /// Returns the entry of a page, of a process that is served.
    fn entry(&self, key: Key) -> Entry {
        self.find(key).unwrap_or(Entry::NOWHERE)
    }

    fn set(&mut self, key: Key, entry: Entry) {
        self.tables.get_mut(&key.space).expect("a process that is served").set(key.page, entry);
    }

    fn set_here(&mut self, key: Key, here: LocalCopy) {
        let entry = self.entry(key);
        self.set(key, Entry { here, ..entry });
    }

    /// Returns the pool place of the bytes kept under the slot's own key.
    fn kept_place(&self, slot: Slot) -> Option<PoolPlace> {
        match self.slots.location(slot) {
            Location::Pool(place) if self.pool.at(place).space == SLOTS => Some(place),
            _ => None,
        }
    }

    /// Returns true if the page holds its slot's latest bytes.
    fn is_latest(&self, key: Key, slot: Slot) -> bool {
        match self.slots.location(slot) {
            Location::Far => false,
            Location::Page(of) => of == key,
            Location::Pool(place) => self.pool.at(place) == key,
        }
    }
}

const fn kept_key(slot: Slot) -> Key {
    Key { space: SLOTS, page: slot.0 as u64 }
}

/// The layout that the cache queries.
struct View<'a, P> {
    book: &'a Book,
    programs: &'a P,
}

impl<P: Programs> Layout for View<'_, P> {
    fn source(&self, key: Key) -> Source {
        let entry = self.book.entry(key);
        match entry.slot {
            _ if self.programs.around(key).is_none() || self.book.plain.has(key) => Source::Elsewhere,
            None => Source::Zeros,
            Some(slot) if self.book.slots.location(slot) == Location::Far => {
                Source::Far(self.book.slots.far(slot))
            }
            Some(_) => Source::Near,
        }
    }

    fn home(&self, key: Key) -> Option<u64> {
        let slot = if key.space == SLOTS { Some(slot_of(key)) } else { self.book.entry(key).slot };
        slot.map(|slot| self.book.slots.far(slot))
    }

    fn stays(&self, key: Key) -> bool {
        let no_slot = || self.book.slots.free() < SLOTS_LAST && !self.programs.may_allocate();
        self.programs.stays(key) || (self.book.entry(key).slot.is_none() && no_slot())
    }

    fn successor(&self, key: Key) -> Option<Key> {
        let slot = self.book.entry(key).slot?;
        (self.book.slots.owners(slot) > 1).then(|| kept_key(slot))
    }

    fn around(&self, key: Key) -> Range<u64> {
        self.programs.around(key).map_or(key.page..key.page + 1, |around| self.book.plain.cut(key, around))
    }
}

fn slot_of(kept: Key) -> Slot {
    Slot(u32::try_from(kept.page).expect("a slot's number"))
}

impl Private {
    /// Returns the memory of no process yet. The pool has [`Config::inactive_max`] of [`Config::frames`].
    ///
    /// # Panics
    ///
    /// As [`Cache::new`], and if inactive pages have no separate memory.
    #[must_use]
    pub fn new(config: Config) -> Self {
        assert!(config.inactive_apart, "pages of other processes cannot rest in place");
        Self {
            cache: Cache::new(config),
            book: Book {
                slots: Slots::default(),
                tables: BTreeMap::new(),
                pool: Pool::new(config.inactive_max),
                plain: Plain::default(),
            },
            writes: BTreeMap::new(),
            without_slot: Vec::new(),
            to_send: false,
            evictions: 0,
            refaults: Refaults::new(config.frames),
            stats_plain: PlainStats::default(),
            single_pages: None,
            was_pressed: false,
            bytes_far: 0,
            actions: Vec::new(),
        }
    }

    /// Returns the cache's counters.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Returns the number of pages evicted to make room.
    #[must_use]
    pub const fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Returns the refault statistics.
    #[must_use]
    pub const fn refaults(&self) -> &Refaults {
        &self.refaults
    }

    /// Returns the number of allocated pages of far memory that are not in use.
    #[must_use]
    pub fn free_slots(&self) -> u64 {
        u64::from(self.book.slots.free())
    }

    /// Returns the number of allocated bytes of far memory.
    #[must_use]
    pub const fn bytes_far(&self) -> u64 {
        self.bytes_far
    }

    /// Returns the allocations of far memory.
    pub fn allocations(&self) -> impl Iterator<Item = VirtAddr> {
        self.book.slots.bases()
    }

    /// Returns the cache.
    #[must_use]
    pub const fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Adds a process with an empty table, or with a copy of its parent's.
    pub fn open(&mut self, space: u32, table: Table) {
        assert!(space != SLOTS, "processes have numbers from 1 on");
        assert!(self.book.tables.insert(space, table).is_none(), "a process comes in once");
    }

    /// Returns true if a write to the page must copy it first, because others own its slot.
    #[must_use]
    pub fn is_needed(&self, key: Key) -> bool {
        let shared = self.book.entry(key).slot.is_some_and(|slot| self.book.slots.owners(slot) > 1);
        shared && self.cache.is_dirty(key)
    }

    /// Handles a fault of a thread.
    pub fn fault(&mut self, key: Key, write: bool, programs: &mut impl Programs) {
        self.press(programs);
        let before = self.cache.stats();
        let view = View { book: &self.book, programs };
        self.cache.fault(key, write, &view, &mut self.actions);
        self.carry_out(programs);
        let now = self.cache.stats();
        if now.zeros > before.zeros {
            self.touched_zeros(key, now.ahead.wanted == before.ahead.wanted, programs);
        }
    }

    /// Handles the end of a fetch. The programs hold its bytes until this returns.
    pub fn fetched(&mut self, op: Op, outcome: Outcome, programs: &mut impl Programs) {
        let view = View { book: &self.book, programs };
        self.cache.fetched(op, outcome, &view, &mut self.actions);
        self.carry_out(programs);
    }

    /// Handles the end of a write-back.
    pub fn written_back(&mut self, op: Op, outcome: Outcome, programs: &mut impl Programs) {
        for slot in self.writes.remove(&op).expect("a write-back ends once") {
            // Bytes of an abandoned WRITE may arrive at any time, so no other page gets their slot.
            if outcome == Outcome::Done || self.book.slots.owners(slot) > 0 {
                self.book.slots.sent(slot);
            }
        }
        let carried: Vec<Key> = match outcome {
            Outcome::Done => self.cache.carried(op).collect(),
            _ => Vec::new(),
        };
        let view = View { book: &self.book, programs };
        self.cache.written_back(op, outcome, &view, &mut self.actions);
        for key in carried {
            if key.space == SLOTS {
                self.drop_kept(slot_of(key));
            } else if let Some(slot) = self.book.entry(key).slot
                && self.book.is_latest(key, slot)
            {
                self.book.slots.set_location(slot, Location::Far);
            }
        }
        self.carry_out(programs);
    }

    /// Does background work. The driver calls this after faults and ends of operations.
    pub fn turn(&mut self, programs: &mut impl Programs) {
        self.assign_slots(programs);
        loop {
            let view = View { book: &self.book, programs };
            self.cache.turn(&view, &mut self.actions);
            self.carry_out(programs);
            if !mem::take(&mut self.to_send) {
                return;
            }
        }
    }

    /// Fails all operations in flight permanently, because none will ever end.
    pub fn abandon(&mut self, programs: &mut impl Programs) {
        self.writes.clear();
        let view = View { book: &self.book, programs };
        self.cache.abandon(&view, &mut self.actions);
        self.carry_out(programs);
    }

    fn carry_out(&mut self, programs: &mut impl Programs) {
        while !self.actions.is_empty() {
            let mut actions = mem::take(&mut self.actions);
            actions.drain(..).for_each(|action| self.act(action, programs));
            actions.append(&mut self.actions);
            self.actions = actions;
        }
    }

    fn act(&mut self, action: Action, programs: &mut impl Programs) {
        let run = |first: Key, count: u32| first.page..first.page + u64::from(count);
        match action {
            Action::Fetch { op, first, count, .. } => {
                let slot = self.book.entry(first).slot.expect("what is far has a slot");
                self.refaults.fetched(first.space, run(first, count));
                programs.fetch(op, first, self.book.slots.addr(slot), count);
            }
            Action::WriteBack { op } => self.write_back(op, programs),
            Action::Install { op, first, count, access } => {
                let pages = run(first, count);
                let mapped = programs.install(op, first.space, pages.clone(), access);
                self.mapped(first.space, &pages, mapped, access, programs);
            }
            Action::Zeros { first, count } => {
                let pages = run(first, count);
                let mapped = programs.zeros(first.space, pages.clone());
                self.mapped(first.space, &pages, mapped, Access::Modified, programs);
            }
            Action::Copy { key, access } => self.copy(key, access, programs),
            Action::Map { key, access } => self.map(key, access, programs),
            Action::Allow { first, count } => self.allow(first.space, run(first, count), programs),
            Action::Deactivate { first, count } => self.deactivate(first.space, run(first, count), programs),
            Action::Discard { key } if key.space == SLOTS => self.drop_kept(slot_of(key)),
            Action::Discard { key } => {
                if let LocalCopy::Pool(place) = self.book.entry(key).here {
                    self.book.pool.remove(place);
                    self.book.set_here(key, LocalCopy::No);
                    self.refaults.evicted(key);
                }
            }
            Action::Keep { key, successor } => self.keep(key, successor, programs),
            Action::Wake { key } => programs.wake(key.space, key.page..key.page + 1),
            Action::Poison { key, cause } => programs.poison(key, cause),
        }
    }

    fn write_back(&mut self, op: Op, programs: &mut impl Programs) {
        let slot = |key: Key| if key.space == SLOTS { Some(slot_of(key)) } else { self.book.entry(key).slot };
        let slots: Vec<Slot> = self.cache.pages_of(op).map_while(slot).collect();
        let all = slots.len() == self.cache.pages_of(op).count();
        // Some pages may not be needed any more, or may have left a slot that they shared.
        if !all || slots.is_empty() || !slots.is_sorted_by(|&a, &b| self.book.slots.behind(a) == Some(b)) {
            let view = View { book: &self.book, programs };
            return self.cache.split(op, &view, &mut self.actions);
        }
        let mut pages = Vec::with_capacity(slots.len());
        for &slot in &slots {
            pages.push(match self.book.slots.location(slot) {
                Location::Pool(place) => CopySource::Pool(place),
                Location::Page(of) => CopySource::Program(of),
                Location::Far => unreachable!("{slot:?} is written back, and far memory is not behind"),
            });
        }
        slots.iter().for_each(|&slot| self.book.slots.send(slot));
        let addr = self.book.slots.addr(slots[0]);
        self.writes.insert(op, slots);
        programs.write_back(op, addr, &pages);
    }

    /// Records that the first `mapped` of these pages are mapped.
    fn mapped(
        &mut self,
        space: u32,
        pages: &Range<u64>,
        mapped: u64,
        access: Access,
        programs: &mut impl Programs,
    ) {
        let until = pages.start + mapped;
        for page in pages.start..until {
            let key = Key { space, page };
            self.book.set_here(key, LocalCopy::Program);
            if access == Access::Modified {
                self.own(key);
            }
        }
        self.not_mapped(space, until..pages.end, programs);
    }

    /// Handles pages that were not mapped: the waiting threads fault again.
    fn not_mapped(&mut self, space: u32, pages: Range<u64>, programs: &mut impl Programs) {
        if !pages.is_empty() {
            self.cache.remove(space, pages.clone());
            programs.wake(space, pages);
        }
    }

    fn copy(&mut self, key: Key, access: Access, programs: &mut impl Programs) {
        let home = self.book.entry(key).slot.map(|slot| self.book.slots.location(slot));
        let mapped = match home {
            Some(Location::Pool(place)) => programs.copy(key, CopySource::Pool(place), access),
            Some(Location::Page(of)) => programs.copy(key, CopySource::Program(of), access),
            // The page moved meanwhile.
            Some(Location::Far) | None => false,
        };
        self.mapped(key.space, &(key.page..key.page + 1), u64::from(mapped), access, programs);
    }

    fn map(&mut self, key: Key, access: Access, programs: &mut impl Programs) {
        let entry = self.book.entry(key);
        match entry.here {
            LocalCopy::No => return self.not_mapped(key.space, key.page..key.page + 1, programs),
            LocalCopy::Program => programs.map(key, access),
            LocalCopy::Pool(place) => {
                let is_latest = entry.slot.is_some_and(|slot| self.book.is_latest(key, slot));
                programs.restore(key, place, access);
                self.book.set_here(key, LocalCopy::Program);
                if let (true, Some(slot)) = (is_latest, entry.slot) {
                    self.book.slots.set_location(slot, Location::Page(key));
                }
                self.book.pool.remove(place);
            }
        }
        if access == Access::Modified {
            self.own(key);
        }
    }

    /// Makes mapped pages writable.
    fn allow(&mut self, space: u32, pages: Range<u64>, programs: &mut impl Programs) {
        for page in pages.clone() {
            let key = Key { space, page };
            match self.book.entry(key).here {
                LocalCopy::Program => self.own(key),
                LocalCopy::No | LocalCopy::Pool(_) => self.not_mapped(space, page..page + 1, programs),
            }
        }
        programs.allow(space, pages);
    }

    /// Removes the page's slot; its bytes are nowhere.
    fn forget_slot(&mut self, key: Key) {
        let entry = self.book.entry(key);
        self.book.set(key, Entry::NOWHERE);
        let Some(slot) = entry.slot else { return };
        if self.book.slots.location(slot) == Location::Page(key) {
            self.book.slots.set_location(slot, Location::Far);
        }
        self.leave(slot);
    }

    /// Gives inactive pages without a slot one, as far as slots are available.
    fn assign_slots(&mut self, programs: &mut impl Programs) {
        let mut without_slot = mem::take(&mut self.without_slot);
        without_slot.retain(|&key| {
            let Entry { slot: None, here: LocalCopy::Pool(place) } = self.book.entry(key) else {
                return false;
            };
            self.grow(programs);
            let Some(slot) = self.take_slot(key, programs) else { return true };
            self.book.set(key, Entry { slot: Some(slot), here: LocalCopy::Pool(place) });
            self.book.slots.set_location(slot, Location::Pool(place));
            self.to_send = true;
            false
        });
        self.without_slot = without_slot;
    }

    /// Allocates a slot for a page, next to its neighbours' if possible.
    fn take_slot(&mut self, key: Key, programs: &mut impl Programs) -> Option<Slot> {
        if self.book.slots.free() == 0 {
            self.grow(programs);
        }
        let of = |page: u64| self.book.entry(key.with(page)).slot;
        let before = key.page.checked_sub(1).and_then(of).and_then(|slot| self.book.slots.behind(slot));
        let near = before.or_else(|| of(key.page + 1).and_then(|slot| self.book.slots.before(slot)));
        self.book.slots.take(key.page, near)
    }

    /// Allocates far memory ahead of need. Has no effect if there is no more.
    fn grow(&mut self, programs: &mut impl Programs) {
        if self.book.slots.free() >= SLOTS_AHEAD || self.cache.has_failed() || !programs.may_allocate() {
            return;
        }
        let have = u32::try_from(self.book.slots.len()).expect("slots have numbers") / GROUP;
        // The rack allocates powers of two: the rest of any other size would stay unused.
        let mut groups = 1 << have.clamp(GROUPS_MIN, GROUPS_MAX).ilog2();
        loop {
            let bytes = u64::from(groups * GROUP) * PAGE_LEN as u64;
            match programs.allocate(bytes) {
                Allocated::At(base) => {
                    self.book.slots.extend(base, groups);
                    self.bytes_far += bytes;
                    return;
                }
                Allocated::Refused if groups > 1 => groups /= 2,
                Allocated::Refused | Allocated::Failed => return,
            }
        }
    }

    /// Prepares a page for writes: its slot becomes exclusive, or the page has none.
    fn own(&mut self, key: Key) {
        let entry = self.book.entry(key);
        let Some(slot) = entry.slot else { return };
        let is_kept = self.book.kept_place(slot).is_some();
        if self.book.slots.owners(slot) > 1 || (is_kept && self.book.slots.is_sent(slot)) {
            // The page was clean when this was decided, though written by now: far memory has the bytes that
            // others need.
            if self.book.is_latest(key, slot) {
                self.book.slots.set_location(slot, Location::Far);
            }
            self.book.set(key, Entry { slot: None, ..entry });
            return self.leave(slot);
        }
        self.drop_kept(slot);
        self.book.slots.set_location(slot, Location::Far);
    }

    /// Removes one owner of a slot.
    fn leave(&mut self, slot: Slot) {
        if self.book.slots.owners(slot) == 1 {
            self.drop_kept(slot);
        }
        self.book.slots.leave(slot);
    }

    /// Drops bytes kept under the slot's own key that no owner needs: a later WRITE of them could overtake
    /// newer bytes.
    fn drop_kept(&mut self, slot: Slot) {
        if let Some(place) = self.book.kept_place(slot) {
            let page = kept_key(slot).page;
            self.cache.remove(SLOTS, page..page + 1);
            self.book.pool.remove(place);
            self.book.slots.set_location(slot, Location::Far);
        }
    }

    fn keep(&mut self, key: Key, successor: Key, programs: &mut impl Programs) {
        let (entry, slot) = (self.book.entry(key), slot_of(successor));
        let place = match entry.here {
            // The bytes turned out not to be needed meanwhile.
            LocalCopy::No => return self.cache.remove(SLOTS, successor.page..successor.page + 1),
            LocalCopy::Pool(place) => {
                self.book.pool.rename(place, successor);
                self.book.set_here(key, LocalCopy::No);
                place
            }
            LocalCopy::Program => {
                let place = self.book.pool.put(successor);
                programs.save(key.space, key.page..key.page + 1, place);
                place
            }
        };
        self.book.slots.set_location(slot, Location::Pool(place));
    }
}
