//! A DPU between processes and a memory node, with every order of events and every failure. A read must
//! return the node's contents at some moment between the read's beginning and its end, whichever path served
//! it.

use farmem_dpu::{
    Action, Asker, Caching, Config, Dpu, Evidence, Neighbours, Object, PageId, Policy, Read, Stats,
    TableConfig, Write,
};
use farmem_machine::{Duration, Instant, Rng};
use farmem_paging::Cause;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;

const PAGE: u32 = 4096;
const ENTRY_PAGES: u32 = 4;
const SLOTS: u32 = 3;
/// Number of open objects. The first is written, by process 0.
const OBJECTS: u32 = 3;
const WRITTEN: u32 = 1;
const FIXED_MAX: u64 = 8;
const PAGES: u64 = 21;
const ASKERS: u32 = 3;
/// Length in bytes of an object's last page.
const TAIL: u64 = 100;

/// A page's contents: the number of the write that made them, 0 at first. A partial write counts as a whole
/// one, except for `whole`.
type Content = u64;

#[derive(Clone, Debug)]
enum Transfer {
    Read(u64),
    Load { first: PageId, count: u32, slot: u32, within: u32 },
    Fix { first: PageId, count: u32 },
    Write(u64),
}

/// A transfer that the node has executed or failed, with its result.
#[derive(Debug)]
struct Ended {
    op: u64,
    transfer: Transfer,
    content: Result<Vec<Content>, Cause>,
}

#[derive(Debug)]
enum Request {
    Read { read: Read, begun: u64 },
    Write { write: Write, content: Content },
}

struct World {
    dpu: Dpu,
    rng: Rng,
    now: u64,
    /// The node's contents, with the times from which they held, the latest last.
    node: BTreeMap<PageId, Vec<(u64, Content)>>,
    /// WRITEs that were given up and may still execute.
    ghosts: Vec<(PageId, Content)>,
    slots: BTreeMap<(u32, u32), Content>,
    /// The entry that each slot was last assigned to, and whether bytes of it arrived.
    given: BTreeMap<u32, (u32, u64, bool)>,
    /// Static memory, and the pages in flight to it.
    fixed: BTreeMap<PageId, Content>,
    fixing: BTreeSet<PageId>,
    /// The open objects, by number; the first is [`WRITTEN`].
    open: Vec<u32>,
    requests: BTreeMap<u64, Request>,
    /// Transfers by connection, in the order of sending.
    sent: BTreeMap<Asker, VecDeque<(u64, Transfer)>>,
    ended: Vec<Ended>,
    copying: Vec<(u64, u32, u32)>,
    /// Bytes of writes that delayed threads will put into slots.
    storing: Vec<(u64, u32, u32, Content)>,
    next: u64,
    failures: u32,
    counts: Counts,
}

#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    read: u64,
    written: u64,
    refused: u64,
    failed: u64,
    puts: u64,
    ghosts: u64,
    fixes: u64,
    closed: u64,
}

fn config(caching: Caching) -> Config {
    Config {
        page_len: NonZeroU32::new(PAGE).unwrap(),
        table: TableConfig { slots: NonZeroU32::new(SLOTS).unwrap(), entry_pages: ENTRY_PAGES },
        caching,
        traffic_cap: 1400,
        prefetches_max: 4,
        fixed_pages_max: FIXED_MAX,
    }
}

fn object(writer: Option<Asker>, seed: u64) -> Object {
    let policy: Box<dyn Policy> =
        if seed.is_multiple_of(2) { Box::new(Neighbours) } else { Box::new(Evidence) };
    Object { bytes: (PAGES - 1) * u64::from(PAGE) + TAIL, writer, policy }
}

impl World {
    fn new(caching: Caching, seed: u64, failures: u32) -> Self {
        let mut dpu = Dpu::new(config(caching), Rng::from_number(seed ^ 0x5eed));
        for number in 1..=OBJECTS {
            dpu.open(number, object((number == 1).then_some(Asker(0)), seed));
        }
        Self {
            dpu,
            rng: Rng::from_number(seed),
            now: 0,
            node: BTreeMap::new(),
            ghosts: Vec::new(),
            slots: BTreeMap::new(),
            given: BTreeMap::new(),
            fixed: BTreeMap::new(),
            fixing: BTreeSet::new(),
            open: (1..=OBJECTS).collect(),
            requests: BTreeMap::new(),
            sent: BTreeMap::new(),
            ended: Vec::new(),
            copying: Vec::new(),
            storing: Vec::new(),
            next: 1,
            failures,
            counts: Counts::default(),
        }
    }

    fn instant(&self) -> Instant {
        Instant::ZERO + Duration::from_nanos(self.now * 1000)
    }

    fn step(&mut self) {
        self.now += 1;
        let mut out = Vec::new();
        match self.rng.below(16) {
            0..=4 if self.requests.len() < 12 => self.ask(&mut out),
            5 if self.rng.below(16) == 0 => self.fix(&mut out),
            6 if self.rng.below(64) == 0 => self.close(),
            7 if self.rng.below(8) == 0 && !self.ghosts.is_empty() => {
                let at = self.rng.below(u32::try_from(self.ghosts.len()).unwrap()) as usize;
                let (page, content) = self.ghosts.swap_remove(at);
                self.store(page, content);
            }
            5..=9 => self.carry_out(),
            10..=12 => self.end(&mut out),
            13 => self.put(&mut out),
            _ => self.copy(),
        }
        self.act(out);
        if self.now.is_multiple_of(16) {
            self.dpu.check();
        }
    }

    /// Requests a range in static memory for a process. The request must succeed exactly if all of the range exists,
    /// none of it is resident or in flight, and there is room. The object must also have no writer.
    fn fix(&mut self, out: &mut Vec<Action>) {
        let number = if self.rng.chance(1, 16) { WRITTEN } else { self.some_object() };
        let asker = Asker(self.rng.below(ASKERS));
        let from = u64::from(self.rng.below(21));
        let pages = from..from + u64::from(self.rng.below(7));
        let each: Vec<_> = pages.clone().map(|page| PageId { object: number, page }).collect();
        let taken = self.fixed.len() + self.fixing.len();
        let may = number != WRITTEN
            && self.open.contains(&number)
            && !each.is_empty()
            && pages.end <= PAGES
            && taken as u64 + (pages.end - pages.start) <= FIXED_MAX
            && each.iter().all(|page| !self.fixed.contains_key(page) && !self.fixing.contains(page));
        assert_eq!(self.dpu.fix(asker, number, pages.clone(), out), may, "{pages:?} of object {number}");
        let asked: Vec<_> = out
            .iter()
            .flat_map(|action| match *action {
                Action::Fix { asker: whose, first, count, .. } => {
                    assert!(count <= ENTRY_PAGES && whose == asker, "{action:?}");
                    (0..u64::from(count)).map(move |n| PageId { page: first.page + n, ..first })
                }
                other => panic!("{other:?} fixes nothing"),
            })
            .collect();
        assert_eq!(asked, if may { each } else { Vec::new() });
        self.fixing.extend(asked);
        self.counts.fixes += u64::from(may);
    }

    /// Closes a read-only object and opens another.
    fn close(&mut self) {
        let at = 1 + self.rng.below(OBJECTS - 1) as usize;
        let next = self.open.iter().max().unwrap() + 1;
        let number = std::mem::replace(&mut self.open[at], next);
        self.dpu.close(number);
        self.dpu.open(next, object(None, next.into()));
        self.fixed.retain(|page, _| page.object != number);
        assert!(!self.dpu.set_policy(number, Box::new(Neighbours)), "object {number} is closed");
        assert!(self.dpu.set_policy(next, Box::new(Evidence)), "object {next} is open");
        self.counts.closed += 1;
    }

    /// Returns an open object, or rarely a closed one.
    fn some_object(&mut self) -> u32 {
        let highest = *self.open.iter().max().unwrap();
        if self.rng.chance(1, 64) {
            return 1 + self.rng.below(highest);
        }
        self.open[self.rng.below(OBJECTS) as usize]
    }

    /// Sends a request of a process. Most requests continue near the last ones, so that policies find a pattern.
    fn ask(&mut self, out: &mut Vec<Action>) {
        let ticket = self.next;
        self.next += 1;
        let number = self.some_object();
        let near = if self.rng.chance(3, 4) { self.now / 97 % PAGES } else { 0 };
        // The range includes one page beyond the end.
        let page = PageId { object: number, page: (near + u64::from(self.rng.below(6))) % (PAGES + 1) };
        let asker = Asker(self.rng.below(ASKERS));
        if number == WRITTEN && self.rng.chance(1, 2) {
            let asker = if self.rng.chance(1, 16) { asker } else { Asker(0) };
            let write = Write { ticket, asker, page, bytes: PAGE, whole: self.rng.chance(7, 8) };
            self.requests.insert(ticket, Request::Write { write, content: ticket });
            self.dpu.write(write, out);
        } else {
            let read = Read { ticket, asker, page, bytes: PAGE, granted: self.rng.chance(15, 16) };
            self.requests.insert(ticket, Request::Read { read, begun: self.now });
            self.dpu.read(self.instant(), read, out);
            let fixed = Action::CopyFixed { ticket, page };
            let expected = read.granted && self.fixed.contains_key(&page);
            assert_eq!(*out == [fixed], expected, "{read:?}: {out:?}, static memory has {:?}", self.fixed);
        }
    }

    fn content(&self, page: PageId) -> Content {
        self.node.get(&page).and_then(|held| held.last()).map_or(0, |(_, content)| *content)
    }

    fn store(&mut self, page: PageId, content: Content) {
        self.node.entry(page).or_default().push((self.now, content));
    }

    /// Executes the first transfer of a connection at the node, or loses the transfer or its answer.
    fn carry_out(&mut self) {
        let connections: Vec<Asker> =
            self.sent.iter().filter(|(_, queue)| !queue.is_empty()).map(|(asker, _)| *asker).collect();
        if connections.is_empty() {
            return;
        }
        let asker = connections[self.rng.below(u32::try_from(connections.len()).unwrap()) as usize];
        let (op, transfer) = self.sent.get_mut(&asker).unwrap().pop_front().unwrap();
        let fails = self.rng.below(1000) < self.failures;
        let pages = |first: PageId, count: u32| {
            (0..u64::from(count)).map(move |n| PageId { page: first.page + n, ..first })
        };
        let content = match &transfer {
            _ if fails && !matches!(transfer, Transfer::Write(_)) => Err(Cause::Failed),
            Transfer::Read(ticket) => {
                let Request::Read { read, .. } = &self.requests[ticket] else { panic!("a read") };
                Ok(vec![self.content(read.page)])
            }
            Transfer::Load { first, count, .. } | Transfer::Fix { first, count } => {
                Ok(pages(*first, *count).map(|page| self.content(page)).collect())
            }
            Transfer::Write(ticket) => {
                let Request::Write { write, content } = &self.requests[ticket] else { panic!("a write") };
                let (page, content) = (write.page, *content);
                if !fails || self.rng.chance(1, 3) {
                    self.store(page, content);
                } else if self.rng.chance(1, 2) {
                    self.ghosts.push((page, content));
                    self.counts.ghosts += 1;
                }
                if fails { Err(Cause::Failed) } else { Ok(Vec::new()) }
            }
        };
        self.ended.push(Ended { op, transfer, content });
    }

    /// Reports an ended transfer to the DPU, in any order.
    fn end(&mut self, out: &mut Vec<Action>) {
        if self.ended.is_empty() {
            return;
        }
        let at = self.rng.below(u32::try_from(self.ended.len()).unwrap()) as usize;
        let Ended { op, transfer, content } = self.ended.swap_remove(at);
        let ended = content.as_ref().map(|_| ()).map_err(|cause| *cause);
        let content = content.unwrap_or_default();
        match transfer {
            Transfer::Read(ticket) => {
                if ended.is_ok() {
                    self.arrived(ticket, content[0]);
                }
            }
            Transfer::Load { slot, within, .. } => {
                self.given.get_mut(&slot).unwrap().2 |= ended.is_ok();
                for (n, content) in (within..).zip(content) {
                    self.slots.insert((slot, n), content);
                }
            }
            Transfer::Fix { first, count } => {
                let open = self.open.contains(&first.object);
                for page in first.page..first.page + u64::from(count) {
                    let page = PageId { page, ..first };
                    assert!(self.fixing.remove(&page), "{page:?} was on its way");
                }
                for (page, content) in (first.page..).zip(content).filter(|_| open) {
                    self.fixed.insert(PageId { page, ..first }, content);
                }
            }
            Transfer::Write(_) => return self.dpu.written(self.instant(), op, ended, out),
        }
        self.dpu.fetched(self.instant(), op, ended, out);
    }

    /// Continues a copy from a slot, with the bytes that are there now.
    fn copy(&mut self) {
        if self.copying.is_empty() {
            return;
        }
        let at = self.rng.below(u32::try_from(self.copying.len()).unwrap()) as usize;
        let (ticket, slot, within) = self.copying.swap_remove(at);
        let content = self.slots[&(slot, within)];
        self.arrived(ticket, content);
        self.requests.remove(&ticket);
        self.dpu.copied(self.instant(), ticket, PAGE);
    }

    /// Puts the bytes of a write into a slot.
    fn put(&mut self, out: &mut Vec<Action>) {
        if self.storing.is_empty() {
            return;
        }
        let at = self.rng.below(u32::try_from(self.storing.len()).unwrap()) as usize;
        let (ticket, slot, within, content) = self.storing.swap_remove(at);
        let from_there = |(_, from, page): &(u64, u32, u32)| (*from, *page) == (slot, within);
        assert!(!self.copying.iter().any(from_there), "nothing is copied from there");
        self.slots.insert((slot, within), content);
        self.dpu.stored(self.instant(), ticket, true, out);
        self.counts.puts += 1;
    }

    /// Checks the bytes of a read: the node had them at some moment since the read began.
    fn arrived(&mut self, ticket: u64, content: Content) {
        let Request::Read { read, begun } = &self.requests[&ticket] else { panic!("a read") };
        let held = self.node.get(&read.page).map_or(&[][..], Vec::as_slice);
        // The contents at the beginning of the read are from the last store before.
        let before = held.iter().rev().find(|(when, _)| when <= begun).map_or(0, |(_, content)| *content);
        let since = held.iter().filter(|(when, _)| when > begun).any(|(_, later)| *later == content);
        assert!(
            content == before || since,
            "{read:?} from {begun} brought {content} of {held:?} at {}",
            self.now
        );
        self.counts.read += 1;
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Copy { ticket, slot, within } => {
                    let Request::Read { read, .. } = &self.requests[&ticket] else { panic!("a read") };
                    self.is_of(slot.0, within, read.page);
                    self.copying.push((ticket, slot.0, within));
                }
                Action::CopyFixed { ticket, page } => {
                    let content = self.fixed[&page];
                    self.arrived(ticket, content);
                    self.requests.remove(&ticket);
                }
                Action::Read { op, ticket } => {
                    let Request::Read { read, .. } = &self.requests[&ticket] else { panic!("a read") };
                    self.sent.entry(read.asker).or_default().push_back((op, Transfer::Read(ticket)));
                }
                Action::Load { op, asker, first, count, slot, within } => {
                    assert!(within + count <= ENTRY_PAGES && first.page + u64::from(count) <= PAGES);
                    let given = self.given.entry(slot.0).or_default();
                    if (given.0, given.1) != (first.object, first.page / u64::from(ENTRY_PAGES)) {
                        *given = (first.object, first.page / u64::from(ENTRY_PAGES), false);
                    }
                    let load = Transfer::Load { first, count, slot: slot.0, within };
                    self.sent.entry(asker).or_default().push_back((op, load));
                }
                Action::Fix { op, asker, first, count } => {
                    self.sent.entry(asker).or_default().push_back((op, Transfer::Fix { first, count }));
                }
                Action::Write { op, ticket } => {
                    let Request::Write { write, .. } = &self.requests[&ticket] else { panic!("a write") };
                    self.sent.entry(write.asker).or_default().push_back((op, Transfer::Write(ticket)));
                }
                Action::Put { ticket, slot, within } => {
                    let Request::Write { write, content } = &self.requests[&ticket] else {
                        panic!("a write")
                    };
                    self.is_of(slot.0, within, write.page);
                    self.storing.push((ticket, slot.0, within, *content));
                }
                Action::Answer { ticket, ended } => match (self.requests.remove(&ticket), ended) {
                    (Some(Request::Write { .. }), Ok(())) => self.counts.written += 1,
                    (Some(Request::Read { .. }), Ok(())) => {}
                    (Some(Request::Read { read: Read { page, .. }, .. }), Err(Cause::Refused)) => {
                        let there = page.page < PAGES && self.open.contains(&page.object);
                        assert!(!there, "only what is not there is refused, not {page:?}");
                        self.counts.refused += 1;
                    }
                    (Some(Request::Write { write, .. }), Err(Cause::Refused)) => {
                        assert!(write.page.page == PAGES || write.asker != Asker(0), "{write:?} was refused");
                        self.counts.refused += 1;
                    }
                    (Some(_), Err(_)) => self.counts.failed += 1,
                    (None, _) => panic!("request {ticket} ended twice"),
                },
            }
        }
    }

    /// Asserts that the slot was last assigned to the entry of this page and received bytes of it, so the
    /// driver has memory there.
    fn is_of(&self, slot: u32, within: u32, page: PageId) {
        let pages = u64::from(ENTRY_PAGES);
        assert_eq!(self.given[&slot], (page.object, page.page / pages, true), "slot {slot}, {page:?}");
        assert_eq!(u64::from(within), page.page % pages);
    }

    /// Runs everything to its end.
    fn settle(&mut self) {
        while !self.requests.is_empty()
            || self.sent.values().any(|queue| !queue.is_empty())
            || !self.ended.is_empty()
            || !self.storing.is_empty()
        {
            self.now += 1;
            let mut out = Vec::new();
            self.carry_out();
            self.end(&mut out);
            self.copy();
            self.put(&mut out);
            self.act(out);
        }
        self.dpu.check();
    }
}

/// Runs worlds and returns the total counters.
fn run(caching: Caching, seeds: u64, failures: u32) -> (Stats, Counts) {
    let (mut stats, mut counts) = (Stats::default(), Counts::default());
    for seed in 0..seeds {
        let mut world = World::new(caching, seed, failures);
        for _ in 0..4000 {
            world.step();
        }
        world.settle();
        let (one, of) = (*world.dpu.stats(), world.counts);
        assert!(one.hits + one.late + one.fixed <= one.reads, "{one:?}");
        stats.hits += one.hits;
        stats.late += one.late;
        stats.fixed += one.fixed;
        stats.asked += one.asked;
        stats.on_demand += one.on_demand;
        stats.background += one.background;
        stats.ahead.used += one.ahead.used;
        stats.ahead.wasted += one.ahead.wasted;
        counts.read += of.read;
        counts.written += of.written;
        counts.refused += of.refused;
        counts.failed += of.failed;
        counts.puts += of.puts;
        counts.ghosts += of.ghosts;
        counts.fixes += of.fixes;
        counts.closed += of.closed;
    }
    (stats, counts)
}

/// Without failures every request succeeds or is refused with a reason, and every feature of caching is
/// exercised.
#[test]
fn what_is_read_is_what_the_node_has() {
    let (stats, counts) = run(Caching::Dynamic, 64, 0);
    assert_eq!(counts.failed, 0);
    assert!(counts.read > 10_000 && counts.written > 1_000 && counts.refused > 100 && counts.puts > 100);
    assert!(stats.hits > 1_000 && stats.late > 100 && stats.fixed > 1_000, "{stats:?}");
    assert!(counts.fixes > 100 && counts.closed > 100, "{counts:?}");
    assert!(stats.ahead.used > 1_000 && stats.ahead.wasted > 1_000);
}

/// READs fail, and so do WRITEs whose execution is unknown or happens later.
#[test]
fn what_fails_is_told_and_nothing_old_is_read() {
    let (stats, counts) = run(Caching::Dynamic, 64, 20);
    assert!(counts.failed > 100 && counts.ghosts > 50);
    assert!(stats.hits > 500 && counts.fixes > 100 && counts.closed > 100, "{stats:?} {counts:?}");
}

/// A DPU that caches adaptively never exceeds its traffic share; [`Dpu::check`] asserts that in each world.
#[test]
fn adaptive_caching_stays_within_its_traffic() {
    let (stats, counts) = run(Caching::Adaptive, 64, 20);
    assert!(counts.read > 10_000 && stats.hits > 100, "{stats:?}");
}

/// A DPU without a cache forwards each read and each write once.
#[test]
fn without_a_cache_each_read_goes_to_the_node() {
    let (stats, counts) = run(Caching::Off, 16, 0);
    assert_eq!((stats.hits, stats.late, stats.ahead.wasted), (0, 0, 0));
    assert!(counts.read > 2_000 && stats.on_demand > 0);
}
