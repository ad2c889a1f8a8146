//! Which allocations of far memory fail, and what the operator and the clients learn of it.
//!
//! Key type: [`Health`]. An allocation has a [`Fault`] from the first operation that fails on it to the next one that succeeds.

use super::{CHUNK, Far, TOGETHER};
use crate::world;
use farmem::api::ErrorCode;
use farmem::{Error, Op, Ticket, VirtAddr, Vma};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Allocations that are probed at once while one has a fault.
const PROBES_MAX: usize = 32;
/// A request to the control plane that failed is repeated after so many times as long as it took: meanwhile clients are served.
const PAUSE_TIMES: u32 = 10;
/// Length of a request that failed at once, as the pause counts it.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Why the operations on an allocation fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The bytes are lost. Operations answer that at once.
    Lost,
    /// No answer came. The text names the role that was asked.
    Silent(String),
}

/// Bytes of which the state has changed since the last notice, and an error for one of them.
#[derive(Default, Debug)]
struct Changed {
    bytes: usize,
    error: String,
}

/// Counts and notices about allocations that fail.
#[derive(Debug)]
pub(crate) struct Health {
    /// Operations that nothing waits for, and their allocations.
    probes: BTreeMap<Ticket, u64>,
    /// The allocation that was probed last.
    probed: u64,
    /// When the control plane may be asked for memory again.
    asks_again: Option<Instant>,
    /// Why the control plane was not asked, or did not answer, the last time.
    refusal: String,
    lost: Changed,
    silent: Changed,
    back: Changed,
    /// READs, WRITEs and allocations that failed.
    pub(crate) errors: u64,
    /// Bytes of chunks that were lost with their memory nodes.
    pub(crate) lost_bytes: u64,
}

impl Health {
    pub(super) const fn new() -> Self {
        Self {
            probes: BTreeMap::new(),
            probed: 0,
            asks_again: None,
            refusal: String::new(),
            lost: Changed { bytes: 0, error: String::new() },
            silent: Changed { bytes: 0, error: String::new() },
            back: Changed { bytes: 0, error: String::new() },
            errors: 0,
            lost_bytes: 0,
        }
    }

    /// Makes a probe of an operation on an allocation that has not ended in time.
    pub(super) fn goes_on(&mut self, ticket: Ticket, slab: u64) {
        self.probes.insert(ticket, slab);
    }

    /// Returns the allocation that an operation probed, if it was a probe.
    pub(super) fn probed(&mut self, ticket: Ticket) -> Option<u64> {
        self.probes.remove(&ticket)
    }

    /// Returns whether the control plane did not answer a moment ago.
    fn is_paused(&self) -> bool {
        self.asks_again.is_some_and(|again| world::now() < again)
    }

    /// Notes how a request to the control plane ended that began then.
    fn note_answer(&mut self, begun: Instant, error: Option<&Error>) {
        self.asks_again = None;
        let Some(error) = error.filter(|error| is_withheld(error)) else { return };
        self.errors += 1;
        self.refusal = match error {
            Error::Unreachable { what } => what.clone(),
            other => other.to_string(),
        };
        let now = world::now();
        self.asks_again = Some(now + now.duration_since(begun).max(PAUSE_MIN) * PAUSE_TIMES);
    }

    /// Returns lines for the operator about what changed since the last call.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        let take = |changed: &mut Changed| Some(std::mem::take(changed)).filter(|changed| changed.bytes > 0);
        let lost = take(&mut self.lost).map(|Changed { bytes, error }| {
            format!(
                "{} MiB of this server's far memory are lost: {error}; keys there answer FARMEMORY until they are written anew, deleted, or dropped with DEBUG DROP-LOST",
                bytes >> 20
            )
        });
        let silent = take(&mut self.silent).map(|Changed { bytes, error }| {
            format!(
                "{} MiB of this server's far memory do not answer: {error}; keys there answer FARMEMORY until it does",
                bytes >> 20
            )
        });
        let back = take(&mut self.back);
        let back = back.map(|changed| format!("{} MiB of far memory answer again", changed.bytes >> 20));
        lost.into_iter().chain(silent).chain(back).collect()
    }
}

/// Returns whether an error says that the network or a role withholds far memory, and not that there is no more of it.
pub(crate) fn is_withheld(error: &Error) -> bool {
    match error {
        Error::Refused(refusal) => {
            matches!(refusal.code, ErrorCode::Unavailable | ErrorCode::TooSlow | ErrorCode::Storage)
        }
        Error::Full { .. } | Error::QueueFull => false,
        _ => true,
    }
}

impl Far {
    /// Refuses an operation on an allocation that does not answer.
    pub(super) fn check(&self, slab: u64) -> Result<(), Error> {
        match self.slabs.get(&slab).and_then(|slab| slab.fault.as_ref()) {
            Some(Fault::Silent(what)) => Err(Error::Unreachable { what: what.clone() }),
            Some(Fault::Lost) | None => Ok(()),
        }
    }

    /// Notes how an operation on an allocation ended.
    pub(super) fn note(&mut self, slab: u64, error: Option<&Error>) {
        self.health.errors += u64::from(error.is_some());
        let Some(known) = self.slabs.get_mut(&slab) else { return };
        let fault = match error {
            None => None,
            Some(Error::MemoryLost { .. }) => Some(Fault::Lost),
            Some(Error::Unreachable { what }) => Some(Fault::Silent(what.clone())),
            // The next operation may succeed.
            Some(_) => return,
        };
        let kind = |fault: &Option<Fault>| fault.as_ref().map(std::mem::discriminant);
        if kind(&fault) == kind(&known.fault) {
            return;
        }
        let bytes = known.used * CHUNK;
        let (changed, what) = match &fault {
            Some(Fault::Lost) => {
                self.health.lost_bytes += bytes as u64;
                (&mut self.health.lost, error)
            }
            Some(Fault::Silent(_)) => (&mut self.health.silent, error),
            None => (&mut self.health.back, None),
        };
        changed.bytes += bytes;
        if let Some(error) = what {
            changed.error = error.to_string();
        }
        known.fault = fault;
    }

    /// Notes that the memory node of an allocation did not answer in time, for all allocations on that node. Returns the error.
    pub(super) fn note_silence(&mut self, slab: u64) -> Error {
        let name = |far: &Self, slab: u64| far.client.name_of_node_at(VirtAddr(slab));
        let node = name(self, slab);
        let what =
            node.as_ref().map_or_else(|| "far memory".to_owned(), |node| format!("memory node {node}"));
        let error = Error::Unreachable { what };
        let same: Vec<u64> =
            self.slabs.keys().copied().filter(|&other| other == slab || name(self, other) == node).collect();
        for same in same {
            self.note(same, Some(&error));
            self.abandon(same);
        }
        error
    }

    /// Returns the bytes stored in allocations whose last operation got no answer.
    pub(crate) fn silent_bytes(&self) -> usize {
        let silent = self.slabs.values().filter(|slab| matches!(slab.fault, Some(Fault::Silent(_))));
        silent.map(|slab| slab.used * CHUNK).sum()
    }

    /// Reads a word of one allocation, and of many while one has a fault; nothing waits for the answers.
    pub(crate) fn probe(&mut self) {
        self.take_in();
        let has_fault = self.slabs.values().any(|slab| slab.fault.is_some());
        let most = if has_fault { PROBES_MAX } else { 1 };
        let from = self.health.probed + 1;
        let next = self.slabs.range(from..).chain(self.slabs.range(..from));
        let next = next.filter(|(base, slab)| {
            let is_under_way = self.health.probes.values().any(|probed| probed == *base);
            // Lost memory stays lost.
            slab.used > 0 && slab.fault != Some(Fault::Lost) && !is_under_way
        });
        let next: Vec<u64> =
            next.map(|(&base, _)| base).take(most - self.health.probes.len().min(most)).collect();
        for base in next {
            self.health.probed = base;
            let buf = self.client.buffer(size_of::<u64>());
            match self.client.submit(Op::Read { addr: VirtAddr(base), buf }) {
                Ok(ticket) => _ = self.health.probes.insert(ticket, base),
                Err(error) => self.note(base, Some(&error)),
            }
        }
        self.take_in();
    }

    /// Asks the control plane for memory, unless it did not answer a moment ago.
    pub(super) fn allocate(&mut self) -> Result<Vma, Error> {
        if self.health.is_paused() {
            return Err(Error::Unreachable { what: self.health.refusal.clone() });
        }
        let begun = world::now();
        let allocated = loop {
            let allocated = self.client.allocate((TOGETHER * CHUNK) as u64);
            match &allocated {
                Err(error) if !is_withheld(error) && self.has_unwanted() => self.free_one(),
                _ => break allocated,
            }
        };
        self.health.note_answer(begun, allocated.as_ref().err());
        allocated
    }

    /// Returns whether an allocation is to be freed, and the control plane may be asked.
    pub(crate) fn has_unwanted(&self) -> bool {
        !self.unwanted.is_empty() && !self.health.is_paused()
    }

    /// Frees one allocation of those that are not wanted any more.
    pub(crate) fn free_one(&mut self) {
        if !self.has_unwanted() {
            return;
        }
        let Some(slab) = self.unwanted.pop() else { return };
        let begun = world::now();
        // An allocation that is refused went with its node.
        let freed = self.client.free(VirtAddr(slab));
        self.health.note_answer(begun, freed.as_ref().err());
        if self.health.is_paused() {
            self.unwanted.push(slab);
        }
    }
}
