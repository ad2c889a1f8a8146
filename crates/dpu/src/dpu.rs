//! The handling of reads, writes, and ends of transfers.

mod prefetch;

use crate::break_even::{Budget, Line, PrefetchSwitch};
use crate::fixed::Fixed;
use crate::policy::Policy;
use crate::requests::{Action, Asker, Caching, Config, Object, Read, Stats, Write};
use crate::table::{Dropped, Found, Slot, Table};
use crate::{EntryId, PageId, Recent};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use farmem_machine::{Instant, Rng};
use farmem_paging::Cause;

/// Maximum number of ranges of one object with policies of their own.
pub const ADVISED_MAX: usize = 64;

#[derive(Debug)]
struct ObjectState {
    object: Object,
    /// Policies of page ranges, the latest advice first.
    advised: Vec<(Range<u64>, Box<dyn Policy>)>,
    /// True after a write with unknown result, which may still execute: the object is no longer cached.
    unsure: bool,
}

impl ObjectState {
    /// Returns the policy for a page.
    fn policy(&mut self, page: u64) -> &mut dyn Policy {
        let of_range = self.advised.iter_mut().find(|(pages, _)| pages.contains(&page));
        of_range.map_or(&mut self.object.policy, |(_, policy)| policy).as_mut()
    }
}

#[derive(Debug)]
enum Transfer {
    Read {
        read: Read,
        begun: Instant,
        alone: bool,
    },
    /// A run of an entry.
    Load {
        entry: EntryId,
        first: PageId,
        count: u32,
        bytes: u64,
    },
    Fix {
        object: u32,
        pages: Range<u64>,
    },
    Write {
        write: Write,
    },
}

/// An entry in flight.
#[derive(Debug)]
struct Loading {
    slot: Slot,
    runs: u32,
    /// Reads that wait for a page of the entry.
    waiting: Vec<Read>,
}

/// WRITEs of one page that are in flight, or whose last bytes are being put into a slot.
#[derive(Debug, Default)]
struct Writing {
    /// Number of WRITEs in flight to far memory.
    count: u32,
    latest: u64,
    /// True if a WRITE failed or covered only a part of the page: the bytes in far memory differ from those
    /// here.
    partial: bool,
    /// Reads of the page. The reads continue once far memory has the page, and the slot too if the slot receives it.
    waiting: Vec<Read>,
}

/// Bytes of a write that are being put into a slot.
#[derive(Clone, Copy, Debug)]
struct PendingStore {
    slot: Slot,
    page: PageId,
    /// The WRITE that far memory has executed.
    op: u64,
}

/// The decisions of a DPU.
#[derive(Debug)]
pub struct Dpu {
    config: Config,
    rng: Rng,
    objects: BTreeMap<u32, ObjectState>,
    table: Table,
    /// The table of a hypothetical cache that prefetches, while this one does not.
    shadow: Option<Table>,
    recent: Recent,
    fixed: Fixed,
    under_way: BTreeMap<u64, Transfer>,
    loading: BTreeMap<EntryId, Loading>,
    writing: BTreeMap<PageId, Writing>,
    copying: BTreeMap<u64, (Slot, Instant, bool)>,
    /// Slots that receive bytes of writes, by ticket. Such a slot must not go to another entry before the
    /// bytes are in it.
    storing: BTreeMap<u64, PendingStore>,
    loads: u32,
    next_op: u64,
    network: Line,
    intra: Line,
    budget: Budget,
    switched: PrefetchSwitch,
    stats: Stats,
}

impl Dpu {
    /// Returns a DPU without objects. `rng` chooses the victims of evictions.
    #[must_use]
    pub fn new(config: Config, rng: Rng) -> Self {
        let cap = (config.caching == Caching::Adaptive).then_some(config.traffic_cap);
        Self {
            config,
            rng,
            objects: BTreeMap::new(),
            table: Table::new(config.table),
            shadow: None,
            recent: Recent::default(),
            fixed: Fixed::default(),
            under_way: BTreeMap::new(),
            loading: BTreeMap::new(),
            writing: BTreeMap::new(),
            copying: BTreeMap::new(),
            storing: BTreeMap::new(),
            loads: 0,
            next_op: 0,
            network: Line::default(),
            intra: Line::default(),
            budget: Budget::new(cap),
            switched: PrefetchSwitch::default(),
            stats: Stats::default(),
        }
    }

    /// Opens an object under a number that was never used before; otherwise transfers of the earlier object
    /// could end as this one's.
    ///
    /// # Panics
    ///
    /// If an open object has this number, or the object has no bytes.
    pub fn open(&mut self, number: u32, object: Object) {
        assert!(object.bytes > 0, "object {number} has no bytes");
        let known = ObjectState { object, advised: Vec::new(), unsure: false };
        assert!(self.objects.insert(number, known).is_none(), "object {number} is opened twice");
    }

    /// Closes an object, or prepares it for another writer: the DPU serves nothing of it from its memory any
    /// more. Requests in flight end normally; the driver keeps static memory until the copies from it are
    /// done.
    pub fn close(&mut self, number: u32) {
        self.objects.remove(&number);
        self.fixed.forget(number);
        let left = self.table.forget(number);
        self.left(left);
    }

    /// Replaces the object's policy, and those of its ranges, by an application's own. Returns false if there
    /// is no such object.
    pub fn set_policy(&mut self, number: u32, policy: Box<dyn Policy>) -> bool {
        let Some(known) = self.objects.get_mut(&number) else { return false };
        known.object.policy = policy;
        known.advised.clear();
        true
    }

    /// Sets an application's own policy for some pages of an object; the latest policy for a page counts. Its
    /// proposals may lie outside the range.
    ///
    /// Returns false without effect if there is no such object, the object has no such pages, or it has
    /// policies for [`ADVISED_MAX`] ranges.
    pub fn advise(&mut self, number: u32, pages: Range<u64>, policy: Box<dyn Policy>) -> bool {
        let Some(all) = self.objects.get(&number).map(|known| self.pages(&known.object)) else {
            return false;
        };
        if pages.is_empty() || pages.end > all {
            return false;
        }
        if pages == (0..all) {
            return self.set_policy(number, policy);
        }
        let known = self.objects.get_mut(&number).expect("it was found");
        let is_left = |other: &Range<u64>| other.start < pages.start || other.end > pages.end;
        if known.advised.iter().filter(|(other, _)| is_left(other)).count() >= ADVISED_MAX {
            return false;
        }
        known.advised.retain(|(other, _)| is_left(other));
        known.advised.insert(0, (pages, policy));
        true
    }

    /// Loads pages of an object into static memory, in the asker's name, in runs of an entry's pages. Returns
    /// `false` without effect if there is no room, the object is writable, or it has no such pages.
    pub fn fix(&mut self, asker: Asker, number: u32, pages: Range<u64>, out: &mut Vec<Action>) -> bool {
        let Some(known) = self.objects.get(&number).filter(|known| known.object.writer.is_none()) else {
            return false;
        };
        let coming = self.under_way.values().any(|transfer| {
            matches!(transfer, Transfer::Fix { object, pages: others }
                if *object == number && others.start < pages.end && pages.start < others.end)
        });
        let count = pages.end.saturating_sub(pages.start);
        let fits =
            self.fixed.taken().checked_add(count).is_some_and(|all| all <= self.config.fixed_pages_max);
        if pages.is_empty()
            || pages.end > self.pages(&known.object)
            || coming
            || self.fixed.overlaps(number, &pages)
            || !fits
        {
            return false;
        }
        self.fixed.take(count);
        let mut first = pages.start;
        while first < pages.end {
            let count = u64::from(self.config.table.entry_pages).min(pages.end - first);
            let run = first..first + count;
            self.stats.background += self.bytes(number, &run);
            let op = self.begin(Transfer::Fix { object: number, pages: run });
            let count = u32::try_from(count).expect("pages of an entry at most");
            out.push(Action::Fix { op, asker, first: PageId { object: number, page: first }, count });
            first += u64::from(count);
        }
        true
    }

    /// Returns true while a page is in static memory: the driver holds its bytes for as long.
    #[must_use]
    pub fn is_fixed(&self, page: PageId) -> bool {
        self.fixed.has(page.object, page.page)
    }

    /// Handles a read of a process.
    pub fn read(&mut self, now: Instant, read: Read, out: &mut Vec<Action>) {
        let page = read.page;
        let Some(known) = self.object_of(page) else {
            return out.push(Action::Answer { ticket: read.ticket, ended: Err(Cause::Refused) });
        };
        let cached = self.config.caching != Caching::Off
            && read.granted
            && !known.unsure
            && known.object.writer.is_none_or(|writer| writer == read.asker);
        let bytes = u64::from(read.bytes);
        self.stats.reads += 1;
        self.stats.asked += bytes;
        self.budget.asked(bytes);
        if self.is_fixed(page) && read.granted {
            self.stats.fixed += 1;
            return out.push(Action::CopyFixed { ticket: read.ticket, page });
        }
        if let Some(writing) = self.writing.get_mut(&page) {
            // A READ could reach the node before the WRITE.
            self.budget.moved(bytes);
            return writing.waiting.push(read);
        }
        if !cached {
            self.budget.moved(bytes);
            return self.ask(now, read, out);
        }
        let found = self.look_up(now, read, out);
        self.prefetch(read, found, out);
        self.recent.push(page);
    }

    /// Handles a write of a process.
    pub fn write(&mut self, write: Write, out: &mut Vec<Action>) {
        let writer = self.object_of(write.page).and_then(|known| known.object.writer);
        if writer != Some(write.asker) {
            return out.push(Action::Answer { ticket: write.ticket, ended: Err(Cause::Refused) });
        }
        self.stats.writes += 1;
        self.stats.written += u64::from(write.bytes);
        self.table.spoil(write.page);
        let op = self.begin(Transfer::Write { write });
        let writing = self.writing.entry(write.page).or_default();
        writing.count += 1;
        writing.latest = op;
        writing.partial = !write.whole;
        out.push(Action::Write { op, ticket: write.ticket });
    }

    /// Handles the end of a READ.
    ///
    /// # Panics
    ///
    /// If no such READ is in flight.
    pub fn fetched(&mut self, now: Instant, op: u64, ended: Result<(), Cause>, out: &mut Vec<Action>) {
        match self.under_way.remove(&op).expect("a READ under way ended") {
            Transfer::Read { read, begun, alone } => {
                if ended.is_ok() && alone {
                    self.network.record(read.bytes, now.since(begun));
                }
                out.push(Action::Answer { ticket: read.ticket, ended });
            }
            Transfer::Fix { object, pages } => {
                if ended.is_ok() && self.objects.contains_key(&object) {
                    self.fixed.came(object, pages);
                } else {
                    self.fixed.give_back(pages.end - pages.start);
                }
            }
            Transfer::Load { entry, first, count, bytes } => {
                if ended.is_err() {
                    let pages = first.page..first.page + u64::from(count);
                    self.budget.give_back(bytes);
                    for page in pages {
                        self.table.spoil(PageId { page, ..first });
                    }
                }
                self.loaded(now, entry, out);
            }
            Transfer::Write { .. } => panic!("a WRITE ended as a READ"),
        }
    }

    /// Handles the end of a WRITE.
    ///
    /// # Panics
    ///
    /// If no such WRITE is in flight.
    pub fn written(&mut self, now: Instant, op: u64, ended: Result<(), Cause>, out: &mut Vec<Action>) {
        let Some(Transfer::Write { write }) = self.under_way.remove(&op) else {
            panic!("a WRITE under way ended")
        };
        let page = write.page;
        let writing = self.writing.get_mut(&page).expect("it was on its way");
        writing.count -= 1;
        writing.partial |= ended.is_err();
        if ended.is_err()
            && let Some(known) = self.objects.get_mut(&page.object)
        {
            // The WRITE may still execute, behind a READ that returns the older bytes.
            known.unsure = true;
            let left = self.table.forget(page.object);
            self.left(left);
        }
        let writing = &self.writing[&page];
        if writing.count == 0 {
            // Bytes that came into the slot since the write began are older. The page is not valid there, so no
            // request was served from it.
            let kept = writing.latest == op && !writing.partial && self.is_sure(page.object);
            match self.table.room_for(page).filter(|_| kept) {
                Some(slot) => {
                    let (_, within) = self.table.entry_of(page);
                    self.table.keep(slot);
                    self.storing.insert(write.ticket, PendingStore { slot, page, op });
                    out.push(Action::Put { ticket: write.ticket, slot, within });
                }
                None => self.is_written(now, page, out),
            }
        }
        out.push(Action::Answer { ticket: write.ticket, ended });
    }

    /// Handles the end of the last write of a page: waiting reads continue.
    fn is_written(&mut self, now: Instant, page: PageId, out: &mut Vec<Action>) {
        let writing = self.writing.remove(&page).expect("it was on its way");
        for read in writing.waiting {
            self.again(now, read, out);
        }
    }

    /// Returns true if the object is open and its contents in far memory are known.
    fn is_sure(&self, object: u32) -> bool {
        self.objects.get(&object).is_some_and(|known| !known.unsure)
    }

    /// Records that the driver has copied a page from a slot ([`Action::Copy`]).
    ///
    /// # Panics
    ///
    /// If no such copy was requested.
    pub fn copied(&mut self, now: Instant, ticket: u64, bytes: u32) {
        let (slot, begun, alone) = self.copying.remove(&ticket).expect("a copy that was asked for");
        self.table.unpin(slot);
        if alone {
            self.intra.record(bytes, now.since(begun));
        }
    }

    /// Cancels a copy from a slot ([`Action::Copy`]) because the asker is gone.
    ///
    /// # Panics
    ///
    /// If no such copy was requested.
    pub fn dropped(&mut self, ticket: u64) {
        let (slot, ..) = self.copying.remove(&ticket).expect("a copy that was asked for");
        self.table.unpin(slot);
    }

    /// Records that the driver has put the bytes of a write into a slot ([`Action::Put`]), or could not. With
    /// `are_there` the page is served from the slot from here on, unless it was written again meanwhile.
    ///
    /// # Panics
    ///
    /// If no such put was requested.
    pub fn stored(&mut self, now: Instant, ticket: u64, are_there: bool, out: &mut Vec<Action>) {
        let PendingStore { slot, page, op } =
            self.storing.remove(&ticket).expect("bytes that were to be put into a slot");
        self.table.unpin(slot);
        if self.writing.get(&page).is_none_or(|writing| writing.count > 0 || writing.latest != op) {
            return;
        }
        if are_there && self.is_sure(page.object) {
            self.table.renewed(page);
        }
        self.is_written(now, page, out);
    }

    /// Returns the counters.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Asserts every invariant; O(everything).
    ///
    /// # Panics
    ///
    /// If an invariant is broken.
    pub fn check(&self) {
        self.table.check();
        let moving = self.copying.len() + self.storing.len();
        assert_eq!(self.table.pins(), moving as u64, "each pin is a copy from a slot or to one");
        let loads =
            self.under_way.values().filter(|transfer| matches!(transfer, Transfer::Load { .. })).count();
        assert_eq!(loads, self.loads as usize, "each load is counted");
        assert_eq!(loads, self.loading.values().map(|loading| loading.runs as usize).sum::<usize>());
        let fixing = self.under_way.values().filter_map(|transfer| match transfer {
            Transfer::Fix { object, pages } => Some((*object, pages)),
            _ => None,
        });
        let coming: u64 = fixing.clone().map(|(_, pages)| pages.end - pages.start).sum();
        assert_eq!(self.fixed.taken(), self.fixed.here() + coming, "each page of static memory is counted");
        assert!(self.fixed.taken() <= self.config.fixed_pages_max);
        for (object, pages) in fixing {
            assert!(!self.fixed.overlaps(object, pages), "{pages:?} of object {object} come twice");
        }
        for page in self.writing.keys() {
            let found = self.table.find(*page);
            assert!(matches!(found, Found::Bad | Found::Absent), "{page:?} is being written and {found:?}");
        }
        if self.config.caching == Caching::Adaptive {
            let (asked, moved) = self.budget.so_far();
            assert!(
                moved * 1024 <= asked * u64::from(self.config.traffic_cap.max(1024)),
                "{moved} of {asked}"
            );
        }
    }

    fn begin(&mut self, transfer: Transfer) -> u64 {
        let op = self.next_op;
        self.next_op += 1;
        self.under_way.insert(op, transfer);
        op
    }

    fn object_of(&self, page: PageId) -> Option<&ObjectState> {
        self.objects.get(&page.object).filter(|known| page.page < self.pages(&known.object))
    }

    fn pages(&self, object: &Object) -> u64 {
        object.bytes.div_ceil(u64::from(self.config.page_len.get()))
    }

    /// Returns the bytes of pages of an object. Pages beyond its end, or of a closed object, have none.
    fn bytes(&self, object: u32, pages: &Range<u64>) -> u64 {
        let len = u64::from(self.config.page_len.get());
        let Some(known) = self.objects.get(&object) else { return 0 };
        let end = |page: u64| page.saturating_mul(len).min(known.object.bytes);
        end(pages.end) - end(pages.start)
    }

    /// Sends a READ of a page to the node. The budget already counts it.
    fn ask(&mut self, now: Instant, read: Read, out: &mut Vec<Action>) {
        self.stats.on_demand += u64::from(read.bytes);
        let alone = self.under_way.is_empty();
        let op = self.begin(Transfer::Read { read, begun: now, alone });
        out.push(Action::Read { op, ticket: read.ticket });
    }

    /// Serves a read from the table if possible. Returns the page's location.
    fn look_up(&mut self, now: Instant, read: Read, out: &mut Vec<Action>) -> Found {
        let found = self.table.find(read.page);
        if !matches!(found, Found::Cached(_)) {
            self.budget.moved(read.bytes.into());
        }
        match found {
            Found::Cached(_) => {
                self.stats.hits += 1;
                self.copy(now, read, out);
            }
            Found::Loading => {
                self.stats.late += 1;
                let (entry, _) = self.table.entry_of(read.page);
                self.loading.get_mut(&entry).expect("what is loading is known").waiting.push(read);
            }
            Found::Bad | Found::Absent => self.ask(now, read, out),
        }
        found
    }

    /// Continues a read that waited; the counters and the budget already include it.
    fn again(&mut self, now: Instant, read: Read, out: &mut Vec<Action>) {
        if read.granted && matches!(self.table.find(read.page), Found::Cached(_)) {
            self.budget.give_back(read.bytes.into());
            return self.copy(now, read, out);
        }
        self.ask(now, read, out);
    }

    fn copy(&mut self, now: Instant, read: Read, out: &mut Vec<Action>) {
        let slot = self.table.pin(read.page);
        let (_, within) = self.table.entry_of(read.page);
        let alone = self.copying.is_empty();
        self.copying.insert(read.ticket, (slot, now, alone));
        out.push(Action::Copy { ticket: read.ticket, slot, within });
    }

    /// Handles the end of a run of an entry. After the last run the waiting reads continue.
    fn loaded(&mut self, now: Instant, entry: EntryId, out: &mut Vec<Action>) {
        self.loads -= 1;
        let loading = self.loading.get_mut(&entry).expect("an entry on its way");
        loading.runs -= 1;
        if loading.runs > 0 {
            return;
        }
        let loading = self.loading.remove(&entry).expect("an entry on its way");
        self.table.loaded(loading.slot);
        for read in loading.waiting {
            match self.writing.get_mut(&read.page) {
                Some(writing) => writing.waiting.push(read),
                None => self.again(now, read, out),
            }
        }
    }

    fn left(&mut self, left: Dropped) {
        self.stats.ahead.used += u64::from(left.used);
        self.stats.ahead.wasted += u64::from(left.wasted);
    }
}
