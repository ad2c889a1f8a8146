//! What happens to a read, a write, and what comes back.

mod prefetch;

use crate::asked::{Action, Asker, Caching, Config, Object, Read, Stats, Write};
use crate::fixed::Fixed;
use crate::pays::{Budget, Line, Switched};
use crate::policy::Policy;
use crate::table::{Found, Left, Slot, Table};
use crate::{EntryId, PageId, Recent};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use farmem_machine::{Instant, Rng};
use farmem_paging::Cause;

/// Ranges of one object that have policies of their own, at most.
pub const ADVISED_MAX: usize = 64;

#[derive(Debug)]
struct Known {
    object: Object,
    /// What is to be prefetched of some of its pages, the latest advice first.
    advised: Vec<(Range<u64>, Box<dyn Policy>)>,
    /// A write ended without it being known whether it was carried out, or will be: nothing of the object is cached any more.
    unsure: bool,
}

impl Known {
    /// What says what is prefetched when this page is asked for.
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

/// An entry that is on its way.
#[derive(Debug)]
struct Loading {
    slot: Slot,
    runs: u32,
    /// Those that wait for a page of it.
    waiting: Vec<Read>,
}

/// WRITEs of one page that are on their way, or of which the bytes of the last one are on theirs into a slot.
#[derive(Debug, Default)]
struct Writing {
    /// On their way to far memory.
    count: u32,
    latest: u64,
    /// One of them failed, or was of a part of the page: what far memory has is not what is here.
    partial: bool,
    /// Reads of the page, which go on when far memory has it, and the slot too where it is to have it.
    waiting: Vec<Read>,
}

/// Bytes of a write that are put into a slot.
#[derive(Clone, Copy, Debug)]
struct Storing {
    slot: Slot,
    page: PageId,
    /// The WRITE that far memory has carried out.
    op: u64,
}

/// The decisions of a DPU.
#[derive(Debug)]
pub struct Dpu {
    config: Config,
    rng: Rng,
    objects: BTreeMap<u32, Known>,
    table: Table,
    /// What a cache that prefetches would have while this one does not.
    shadow: Option<Table>,
    recent: Recent,
    fixed: Fixed,
    under_way: BTreeMap<u64, Transfer>,
    loading: BTreeMap<EntryId, Loading>,
    writing: BTreeMap<PageId, Writing>,
    copying: BTreeMap<u64, (Slot, Instant, bool)>,
    /// Slots into which bytes of writes are put, by ticket: a slot must not be another entry's before they are there.
    storing: BTreeMap<u64, Storing>,
    loads: u32,
    next_op: u64,
    network: Line,
    intra: Line,
    budget: Budget,
    switched: Switched,
    stats: Stats,
}

impl Dpu {
    /// A DPU that knows no object. `rng` chooses what is evicted.
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
            switched: Switched::default(),
            stats: Stats::default(),
        }
    }

    /// An object is there. Its number was never used before: transfers of another could end as this one's.
    ///
    /// # Panics
    /// When an object has this number, or has no bytes.
    pub fn open(&mut self, number: u32, object: Object) {
        assert!(object.bytes > 0, "object {number} has no bytes");
        let known = Known { object, advised: Vec::new(), unsure: false };
        assert!(self.objects.insert(number, known).is_none(), "object {number} is opened twice");
    }

    /// An object is closed, or is about to have another writer: nothing of it is served from here any more. Requests that are under way end as they would; the
    /// driver keeps static memory until the copies from it are done.
    pub fn close(&mut self, number: u32) {
        self.objects.remove(&number);
        self.fixed.forget(number);
        let left = self.table.forget(number);
        self.left(left);
    }

    /// An application's own policy takes the place of the object's, and of all that was said of parts of it, from now on. False when there is no such object.
    pub fn set_policy(&mut self, number: u32, policy: Box<dyn Policy>) -> bool {
        let Some(known) = self.objects.get_mut(&number) else { return false };
        known.object.policy = policy;
        known.advised.clear();
        true
    }

    /// An application's own policy for some pages of an object, from now on: of what was said of a page, the latest counts. What it proposes may lie beyond them. False, and
    /// nothing is changed, when there is no such object, it has no such pages, or policies for [`ADVISED_MAX`] ranges of it are there.
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

    /// Keeps pages of an object in static memory; `false`, and nothing is done, when there is no room for them, the object can be written, or it has no such
    /// pages. They are read in the asker's name, in runs of an entry's pages.
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

    /// True when a page is in static memory: the driver has its bytes there as long as this is so.
    #[must_use]
    pub fn is_fixed(&self, page: PageId) -> bool {
        self.fixed.has(page.object, page.page)
    }

    /// A process asks for a page.
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
            // A READ could come to the node before the WRITE.
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

    /// A process writes a page.
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

    /// What came of a READ.
    ///
    /// # Panics
    /// When no such READ is under way.
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

    /// What came of a WRITE.
    ///
    /// # Panics
    /// When no such WRITE is under way.
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
            // It may be carried out yet, behind a READ that finds what was there before.
            known.unsure = true;
            let left = self.table.forget(page.object);
            self.left(left);
        }
        let writing = &self.writing[&page];
        if writing.count == 0 {
            // Whatever came into the slot since the write began is older, and the page is not good there: no answer has it.
            let kept = writing.latest == op && !writing.partial && self.is_sure(page.object);
            match self.table.room_for(page).filter(|_| kept) {
                Some(slot) => {
                    let (_, within) = self.table.entry_of(page);
                    self.table.keep(slot);
                    self.storing.insert(write.ticket, Storing { slot, page, op });
                    out.push(Action::Put { ticket: write.ticket, slot, within });
                }
                None => self.is_written(now, page, out),
            }
        }
        out.push(Action::Answer { ticket: write.ticket, ended });
    }

    /// No write of a page is on its way any more: reads that waited go on.
    fn is_written(&mut self, now: Instant, page: PageId, out: &mut Vec<Action>) {
        let writing = self.writing.remove(&page).expect("it was on its way");
        for read in writing.waiting {
            self.again(now, read, out);
        }
    }

    /// The object is open, and what far memory has of it is known.
    fn is_sure(&self, object: u32) -> bool {
        self.objects.get(&object).is_some_and(|known| !known.unsure)
    }

    /// The driver has copied a page from a slot ([`Action::Copy`]).
    ///
    /// # Panics
    /// When it was not asked to.
    pub fn copied(&mut self, now: Instant, ticket: u64, bytes: u32) {
        let (slot, begun, alone) = self.copying.remove(&ticket).expect("a copy that was asked for");
        self.table.unpin(slot);
        if alone {
            self.intra.record(bytes, now.since(begun));
        }
    }

    /// A copy from a slot ([`Action::Copy`]) is not made: whoever asked is gone.
    ///
    /// # Panics
    /// When it was not asked for.
    pub fn dropped(&mut self, ticket: u64) {
        let (slot, ..) = self.copying.remove(&ticket).expect("a copy that was asked for");
        self.table.unpin(slot);
    }

    /// The driver has put the bytes of a write into a slot ([`Action::Put`]), or could not. From here on the page is served from there when they are, unless it was written again meanwhile.
    ///
    /// # Panics
    /// When it was not asked to.
    pub fn stored(&mut self, now: Instant, ticket: u64, are_there: bool, out: &mut Vec<Action>) {
        let Storing { slot, page, op } =
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

    /// What it did so far.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The network, and the way from the DPU's memory to processes, as measured.
    #[must_use]
    pub const fn links(&self) -> (&Line, &Line) {
        (&self.network, &self.intra)
    }

    /// Whether it prefetches at present, and the hit rate of the last epoch.
    #[must_use]
    pub const fn switched(&self) -> &Switched {
        &self.switched
    }

    /// Every invariant; O(everything).
    ///
    /// # Panics
    /// When one is broken.
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

    fn object_of(&self, page: PageId) -> Option<&Known> {
        self.objects.get(&page.object).filter(|known| page.page < self.pages(&known.object))
    }

    fn pages(&self, object: &Object) -> u64 {
        object.bytes.div_ceil(u64::from(self.config.page_len.get()))
    }

    /// Bytes of pages of an object; what is beyond its end, or of an object that is closed, has none.
    fn bytes(&self, object: u32, pages: &Range<u64>) -> u64 {
        let len = u64::from(self.config.page_len.get());
        let Some(known) = self.objects.get(&object) else { return 0 };
        let end = |page: u64| page.saturating_mul(len).min(known.object.bytes);
        end(pages.end) - end(pages.start)
    }

    /// Reads a page at the node. The budget has it already.
    fn ask(&mut self, now: Instant, read: Read, out: &mut Vec<Action>) {
        self.stats.on_demand += u64::from(read.bytes);
        let alone = self.under_way.is_empty();
        let op = self.begin(Transfer::Read { read, begun: now, alone });
        out.push(Action::Read { op, ticket: read.ticket });
    }

    /// Serves a read that may be served from the table; tells where it was.
    fn look_up(&mut self, now: Instant, read: Read, out: &mut Vec<Action>) -> Found {
        let found = self.table.find(read.page);
        if !matches!(found, Found::Here(_)) {
            self.budget.moved(read.bytes.into());
        }
        match found {
            Found::Here(_) => {
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

    /// A read that waited goes on: it was counted, and the budget has its bytes.
    fn again(&mut self, now: Instant, read: Read, out: &mut Vec<Action>) {
        if read.granted && matches!(self.table.find(read.page), Found::Here(_)) {
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

    /// A run of an entry ended; when it was the last, those that wait go on.
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

    fn left(&mut self, left: Left) {
        self.stats.ahead.used += u64::from(left.used);
        self.stats.ahead.wasted += u64::from(left.wasted);
    }
}
