//! De-duplication at the server: a request that writes is executed at most once.
//!
//! Key type: [`Dedup`]. It stores answers as opaque bytes. Requests that only read bypass it: they are
//! executed again.
//!
//! A request may visit a server more than once, for example a traversal that crosses memory nodes. Each visit
//! has fewer hops left than the one before. Only the outcome of the last visit is stored, because a later
//! visit proves that the earlier ones were answered.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Ordering;
use farmem_wire::{HostId, RequestId};

/// The stored answers of the last writing requests of each host (PROTOCOL 5.5 to 5.8).
#[derive(Debug)]
pub struct Dedup {
    hosts_max: usize,
    depth: usize,
    room: AnswerBudget,
    /// Bytes of all stored answers.
    taken: usize,
    hosts: BTreeMap<HostId, Host>,
    /// Number of stored answers so far: the clock that finds the host that was silent longest.
    remembered: u64,
}

/// Limits for the memory of stored answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnswerBudget {
    /// Bytes of all hosts' answers, beyond which hosts that exceed their share lose answers.
    pub all: usize,
    /// Bytes that the answers of each host may always take.
    pub share: usize,
}

impl AnswerBudget {
    /// No limit.
    pub const UNBOUNDED: Self = Self { all: usize::MAX, share: usize::MAX };
}

/// The state of one host's current generation.
#[derive(Debug)]
struct Host {
    generation: u16,
    /// Answers sorted by counter, at most `depth`.
    answers: VecDeque<Answer>,
    /// The highest counter whose answer was dropped. Requests up to it may have been executed.
    floor: Option<u32>,
    heard: u64,
    /// Bytes of this host's answers.
    taken: usize,
}

#[derive(Debug)]
struct Answer {
    counter: u32,
    /// Hops left in the last visit.
    hops: u8,
    /// True while that visit is in progress.
    under_way: bool,
    /// The lowest and the highest address at which a visit began. A copy of any visit may still arrive at the
    /// node that holds its address by then, so requests are found by address range.
    places: (u64, u64),
    bytes: Vec<u8>,
}

/// The server's knowledge of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestState<'a> {
    /// Never seen. Execute it, then [`Dedup::remember`]; or [`Dedup::begin`], execute, [`Dedup::finish`].
    New,
    /// Executed before. Repeat this answer.
    Answered(&'a [u8]),
    /// Execution in progress. Drop the copy; an answer will follow.
    UnderWay,
    /// Too old: the answer was dropped. Drop the copy.
    Forgotten,
}

impl Dedup {
    /// Creates a store of up to `depth` answers for each of up to `hosts_max` hosts. When a further host
    /// arrives, the host silent longest is forgotten. Beyond `room`, the host being answered loses its
    /// earliest answers.
    ///
    /// # Panics
    /// If one of the numbers is zero.
    #[must_use]
    pub fn new(hosts_max: usize, depth: usize, room: AnswerBudget) -> Self {
        assert!(hosts_max > 0 && depth > 0, "room for one answer of one host at least");
        Self { hosts_max, depth, room, taken: 0, hosts: BTreeMap::new(), remembered: 0 }
    }

    /// Returns the bytes of all stored answers.
    #[must_use]
    pub const fn taken(&self) -> usize {
        self.taken
    }

    /// Looks up `request`, which visits a server once.
    #[must_use]
    pub fn lookup(&self, request: RequestId) -> RequestState<'_> {
        self.lookup_visit(request, 0)
    }

    /// Looks up the visit of `request` with `hops` left, or a later one.
    #[must_use]
    pub fn lookup_visit(&self, request: RequestId, hops: u8) -> RequestState<'_> {
        let Some(host) = self.hosts.get(&request.host()) else { return RequestState::New };
        match age(host.generation, request) {
            GenerationOrder::Earlier => RequestState::Forgotten,
            GenerationOrder::Later => RequestState::New,
            GenerationOrder::Current(counter) => match host.find(counter) {
                Ok(at) => host.answers[at].seen(hops),
                Err(_) if host.floor.is_some_and(|floor| counter <= floor) => RequestState::Forgotten,
                Err(_) => RequestState::New,
            },
        }
    }

    /// Stores that `request`, which began at `place`, was executed, with its answer.
    ///
    /// # Panics
    /// If [`Dedup::lookup`] does not return [`RequestState::New`]: the request would have been executed twice.
    pub fn remember(&mut self, request: RequestId, place: u64, answer: &[u8]) {
        self.begin(request, 0, place);
        self.finish(request, 0, answer);
    }

    /// Stores that the visit of `request` with `hops` left has begun, at `place`.
    ///
    /// # Panics
    /// If [`Dedup::lookup_visit`] does not return [`RequestState::New`]: the request would be executed twice.
    pub fn begin(&mut self, request: RequestId, hops: u8, place: u64) {
        assert_eq!(
            self.lookup_visit(request, hops),
            RequestState::New,
            "a request that writes is executed once"
        );
        self.remembered += 1;
        let id = request.host();
        if !self.hosts.contains_key(&id) && self.hosts.len() == self.hosts_max {
            let silent = self.hosts.iter().min_by_key(|(_, host)| host.heard).map(|(&id, _)| id);
            let silent = silent.and_then(|id| self.hosts.remove(&id));
            self.taken -= silent.map_or(0, |host| host.taken);
        }
        let generation = generation_of(request);
        let host = self.hosts.entry(id).or_insert_with(|| Host::new(generation));
        if host.generation != generation {
            self.taken -= host.taken;
            *host = Host::new(generation);
        }
        host.heard = self.remembered;
        host.insert(counter_of(request), hops, place, self.depth);
    }

    /// Stores the outcome of a visit that was begun. If the visit was already forgotten, it stays forgotten.
    pub fn finish(&mut self, request: RequestId, hops: u8, answer: &[u8]) {
        let Some(host) = self.hosts.get_mut(&request.host()) else { return };
        if host.generation != generation_of(request) {
            return;
        }
        let Ok(at) = host.find(counter_of(request)) else { return };
        let entry = &mut host.answers[at];
        if entry.hops != hops || !entry.under_way {
            return;
        }
        entry.under_way = false;
        let had = entry.bytes.capacity();
        entry.bytes.extend_from_slice(answer);
        let more = entry.bytes.capacity() - had;
        host.taken += more;
        self.taken += more;
        // Only a host above its share drops answers; those of other hosts stay.
        for _ in 0..at {
            if self.taken <= self.room.all || host.taken <= self.room.share {
                return;
            }
            let freed = host.forget_lowest().map_or(0, |bytes| bytes.capacity());
            host.taken -= freed;
            self.taken -= freed;
        }
    }

    /// Marks that the host left. Its earlier requests may have been executed, and get no answer any more. Its
    /// next life has another generation.
    pub fn host_left(&mut self, host: HostId) {
        if let Some(row) = self.hosts.get_mut(&host) {
            row.answers = VecDeque::new();
            row.floor = Some(u32::MAX);
            self.taken -= core::mem::take(&mut row.taken);
        }
    }

    /// Forgets the host, because the control plane restarts its generations. None of its requests is in the
    /// network any more.
    pub fn restart_generations(&mut self, host: HostId) {
        self.taken -= self.hosts.remove(&host).map_or(0, |row| row.taken);
    }

    /// Returns the requests of which a visit may have begun from `first` to `last`, with the hops of their
    /// last visit. The outcome of the last visit answers copies of all visits.
    pub fn begun_in(&self, first: u64, last: u64) -> impl Iterator<Item = (RequestId, u8)> + '_ {
        self.hosts.iter().flat_map(move |(&host, row)| {
            let meets = move |(lowest, highest): (u64, u64)| lowest <= last && highest >= first;
            let begun = row.answers.iter().filter(move |answer| meets(answer.places));
            begun.map(move |answer| (RequestId::new(host, row.generation, answer.counter), answer.hops))
        })
    }

    /// Returns the last forgotten request of each host that has one.
    pub fn forgotten(&self) -> impl Iterator<Item = RequestId> + '_ {
        let last = |(&host, row): (&HostId, &Host)| Some(RequestId::new(host, row.generation, row.floor?));
        self.hosts.iter().filter_map(last)
    }

    /// Imports another server's record of an executed visit and its answer. A local record takes precedence.
    pub fn import(&mut self, request: RequestId, hops: u8, place: u64, answer: &[u8]) {
        if self.lookup_visit(request, hops) == RequestState::New {
            self.begin(request, hops, place);
            self.finish(request, hops, answer);
            return;
        }
        let host =
            self.hosts.get_mut(&request.host()).filter(|host| host.generation == generation_of(request));
        if let Some(host) = host
            && let Ok(at) = host.find(counter_of(request))
        {
            host.answers[at].began_at(place);
        }
    }

    /// Imports another server's record that all requests of the host up to `request` are forgotten.
    pub fn import_forgotten(&mut self, request: RequestId) {
        let generation = generation_of(request);
        let full = self.hosts.len() == self.hosts_max;
        match self.hosts.get_mut(&request.host()) {
            None if full => {}
            None => {
                let floor = Some(counter_of(request));
                let host = Host { floor, heard: self.remembered, ..Host::new(generation) };
                self.hosts.insert(request.host(), host);
            }
            Some(host) => match age(host.generation, request) {
                GenerationOrder::Earlier => {}
                GenerationOrder::Later => {
                    let floor = Some(counter_of(request));
                    self.taken -= host.taken;
                    *host = Host { floor, heard: host.heard, ..Host::new(generation) };
                }
                GenerationOrder::Current(counter) => host.floor = host.floor.max(Some(counter)),
            },
        }
    }
}

impl Answer {
    fn began_at(&mut self, place: u64) {
        self.places = (self.places.0.min(place), self.places.1.max(place));
    }

    fn seen(&self, hops: u8) -> RequestState<'_> {
        if hops < self.hops {
            RequestState::New
        } else if self.under_way {
            RequestState::UnderWay
        } else {
            RequestState::Answered(&self.bytes)
        }
    }
}

impl Host {
    fn new(generation: u16) -> Self {
        Self { generation, answers: VecDeque::new(), floor: None, heard: 0, taken: 0 }
    }

    /// Drops the answer with the lowest counter, if there is one. Returns its memory, which still counts.
    fn forget_lowest(&mut self) -> Option<Vec<u8>> {
        let lowest = self.answers.pop_front()?;
        self.floor = self.floor.max(Some(lowest.counter));
        Some(lowest.bytes)
    }

    fn find(&self, counter: u32) -> Result<usize, usize> {
        self.answers.binary_search_by_key(&counter, |answer| answer.counter)
    }

    /// Stores a visit that begins. Replaces the request's earlier visit, or drops the lowest counter to make
    /// room and reuses its memory.
    fn insert(&mut self, counter: u32, hops: u8, place: u64, depth: usize) {
        if let Ok(at) = self.find(counter) {
            let entry = &mut self.answers[at];
            entry.bytes.clear();
            (entry.hops, entry.under_way) = (hops, true);
            entry.began_at(place);
            return;
        }
        let mut bytes = Vec::new();
        if self.answers.len() == depth {
            if self.answers.front().is_some_and(|lowest| counter < lowest.counter) {
                self.floor = self.floor.max(Some(counter));
                return;
            }
            bytes = self.forget_lowest().unwrap_or(bytes);
        }
        bytes.clear();
        if let Err(at) = self.find(counter) {
            self.answers.insert(at, Answer { counter, hops, under_way: true, places: (place, place), bytes });
        }
    }
}

/// The generation of a request, relative to the last known generation of its host.
enum GenerationOrder {
    Earlier,
    Current(u32),
    Later,
}

/// Compares the generation of a request with `current`. Generations only grow: the control plane never issues
/// an earlier one (PROTOCOL 8.8). So a host that did not write in many thousand lives is accepted too.
fn age(current: u16, request: RequestId) -> GenerationOrder {
    match generation_of(request).cmp(&current) {
        Ordering::Equal => GenerationOrder::Current(counter_of(request)),
        Ordering::Greater => GenerationOrder::Later,
        Ordering::Less => GenerationOrder::Earlier,
    }
}

fn generation_of(request: RequestId) -> u16 {
    #[expect(clippy::cast_possible_truncation, reason = "bits 32 to 47 of the id are the generation")]
    let generation = (request.0 >> 32) as u16;
    generation
}

fn counter_of(request: RequestId) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the low half of the id is the counter")]
    let counter = request.0 as u32;
    counter
}
