//! The memory that holds the pages of simulated programs: the programs, the pool, far memory, and transfers
//! in flight.
//!
//! Key type: [`Machine`].

use super::super::TRACE_MAX;
use super::{GROUP, PART, Process};
use crate::campaign::Verdict;
use crate::digest::Digest;
use farmem_machine::Rng;
use farmem_paging::private::{Allocated, CopySource, PoolPlace, Programs};
use farmem_paging::{Cause, Key, Op};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// The memory that holds all pages.
pub(super) struct Machine {
    pub(super) rng: Rng,
    pub(super) processes: BTreeMap<u32, Process>,
    /// The programs' view: bytes and access. Rejected pages are absent.
    pub(super) view: BTreeMap<Key, (u64, Option<Access>)>,
    pub(super) pool: Vec<u64>,
    /// Maximum number of pages in programs.
    pub(super) here_max: usize,
    /// Contents by page of far memory.
    pub(super) far: BTreeMap<u64, u64>,
    pub(super) lost: BTreeSet<u64>,
    pub(super) pins: BTreeSet<Key>,
    /// Pages served by the kernel: a touch gets zeros.
    pub(super) plain: BTreeSet<Key>,
    /// Number of pages that appeared this way.
    pub(super) unseen: u64,
    pub(super) under_way: Vec<UnderWay>,
    /// The contents that the ended fetch brought.
    pub(super) arrived: BTreeMap<u64, u64>,
    /// Waiting threads.
    pub(super) blocked: Vec<(Key, bool)>,
    pub(super) woken: Vec<Key>,
    /// A process in which nothing may be stored.
    pub(super) still: Option<u32>,
    /// Rate per 256 of installs that a program rejects.
    pub(super) refuses: u32,
    pub(super) refusals: u64,
    /// The last operation without an answer: the first page's space, its pages, and the number of attempts.
    pub(super) again: Option<(u32, Range<u64>, u32)>,
    /// Bytes that may still be allocated.
    pub(super) budget: u64,
    pub(super) allocated: u64,
    pub(super) refused: bool,
    pub(super) failed: bool,
    pub(super) zeros: u64,
    pub(super) kept: u64,
    /// Errors to threads: page lost, far memory failed, far memory full.
    pub(super) told: [u64; 3],
    pub(super) stores: u64,
    pub(super) accesses: u64,
    pub(super) wrong: Option<(Verdict, String)>,
    pub(super) digest: Digest,
    pub(super) trace: Option<VecDeque<String>>,
}

pub(super) struct UnderWay {
    pub(super) op: Op,
    pub(super) first: Key,
    /// Pages of far memory.
    pub(super) pages: Range<u64>,
    pub(super) bytes: Option<Vec<u64>>,
    /// Number of attempts without an answer.
    pub(super) tries: u32,
}

impl Machine {
    pub(super) fn event(&mut self, what: &'static str, key: Key, number: u64) {
        self.digest.number(u64::from(key.space) << 32 ^ key.page << 8 ^ number ^ what.len() as u64);
        let Some(trace) = &mut self.trace else { return };
        if trace.len() == TRACE_MAX {
            trace.pop_front();
        }
        trace.push_back(format!("{what} {}.{} {number}", key.space, key.page));
    }

    pub(super) fn hold(&mut self, holds: bool, why: impl FnOnce() -> String) {
        if !holds {
            self.wrong.get_or_insert_with(|| (Verdict::Unsafe, why()));
        }
    }

    /// Asserts at every moment that no more pages are in programs than allowed.
    pub(super) fn hold_limit(&mut self) {
        let (here, most) = (self.view.len(), self.here_max);
        self.hold(here <= most, || format!("{here} pages are in programs, and {most} may be"));
    }

    /// Returns the number of unanswered attempts of the operation that begins at this page.
    pub(super) fn tries(&self, first: Key) -> u32 {
        let same = |(space, pages, _): &&(u32, Range<u64>, u32)| {
            *space == first.space && pages.contains(&first.page)
        };
        self.again.as_ref().filter(same).map_or(0, |(_, _, tries)| *tries)
    }

    pub(super) fn is_elsewhere(&self, key: Key) -> bool {
        self.processes.get(&key.space).is_none_or(|process| process.elsewhere.contains(&key.page))
    }

    /// Returns true if the program rejects a page.
    pub(super) fn refuses(&mut self) -> bool {
        let refuses = self.rng.chance(self.refuses, 256);
        self.refusals += u64::from(refuses);
        refuses
    }

    pub(super) fn try_access(&mut self, key: Key, write: bool) -> bool {
        if self.plain.contains(&key) && !self.is_elsewhere(key) && !self.view.contains_key(&key) {
            self.unseen += 1;
            self.view.insert(key, (0, Some(Access::Modified)));
            self.hold_limit();
        }
        let Some((bytes, Some(access))) = self.view.get_mut(&key) else { return false };
        if write && *access != Access::Modified {
            return false;
        }
        let process = self.processes.get_mut(&key.space).expect("a process that is there");
        let truth = process.truth.entry(key.page).or_insert(0);
        let (read, stored) = (*bytes, *truth);
        if write {
            self.stores += 1;
            // Some pages become zeros again.
            let value = if self.stores.is_multiple_of(4) { 0 } else { self.stores };
            (*bytes, *truth) = (value, value);
        }
        if write {
            self.event("store", key, self.stores);
        }
        let still = write && self.still == Some(key.space);
        self.hold(read == stored, || format!("{key:?} reads {read}, and {stored} was stored last"));
        self.hold(!still, || format!("{key:?} is stored to while its process forks"));
        true
    }

    pub(super) fn give(&mut self, key: Key, bytes: u64, access: Access) {
        let plain = self.plain.contains(&key);
        self.hold(!plain, || format!("{key:?} is given to its program, and it is plain"));
        let before = self.view.insert(key, (bytes, Some(access)));
        assert_eq!(before, None, "{key:?} was not here");
        self.hold_limit();
        self.woken.push(key);
    }

    /// Returns the contents of a page that its program does not write to.
    pub(super) fn steady(&mut self, key: Key) -> u64 {
        let (bytes, access) = self.view[&key];
        self.hold(access != Some(Access::Modified), || format!("{key:?} changes while it is read"));
        bytes
    }

    pub(super) fn of(&mut self, from: CopySource) -> u64 {
        match from {
            CopySource::Pool(place) => self.pool[place as usize],
            CopySource::Program(key) => self.steady(key),
        }
    }
}

pub(super) fn keys(space: u32, pages: Range<u64>) -> impl Iterator<Item = Key> {
    pages.map(move |page| Key { space, page })
}

pub(super) fn far_page(addr: VirtAddr) -> u64 {
    addr.0 / PAGE_LEN as u64
}

impl Programs for Machine {
    fn around(&self, key: Key) -> Option<Range<u64>> {
        let start = key.page - key.page % PART;
        (!self.is_elsewhere(key)).then_some(start..start + PART)
    }

    fn stays(&self, key: Key) -> bool {
        self.pins.contains(&key)
    }

    fn unwatch(&mut self, space: u32, pages: Range<u64>) -> bool {
        self.event("unwatch", Key { space, page: pages.start }, pages.end);
        if self.refuses() {
            return false;
        }
        for key in keys(space, pages) {
            if let Some((_, access)) = self.view.get_mut(&key) {
                *access = Some(Access::Modified);
            }
            let is_new = self.plain.insert(key);
            self.hold(is_new, || format!("{key:?} becomes plain twice"));
        }
        true
    }

    fn watch(&mut self, space: u32, pages: Range<u64>) -> bool {
        self.event("watch", Key { space, page: pages.start }, pages.end);
        // A thread touches a page at the last moment.
        for key in keys(space, pages.clone()) {
            if self.rng.chance(1, 8) && self.still != Some(space) {
                self.accesses += u64::from(self.try_access(key, true));
            }
        }
        for key in keys(space, pages) {
            let was = self.plain.remove(&key);
            self.hold(was, || format!("{key:?} is watched, and was not plain"));
        }
        true
    }

    fn populated(&mut self, space: u32, pages: Range<u64>) -> Vec<Range<u64>> {
        let there: Vec<u64> = pages.filter(|&page| self.view.contains_key(&Key { space, page })).collect();
        there.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[0] + run.len() as u64).collect()
    }

    fn write_protect(&mut self, space: u32, pages: Range<u64>) {
        for key in keys(space, pages) {
            if let Some((_, Some(access))) = self.view.get_mut(&key) {
                *access = Access::Shared;
            }
        }
    }

    fn save(&mut self, space: u32, pages: Range<u64>, first: PoolPlace) {
        for (key, place) in keys(space, pages).zip(first..) {
            self.event("save", key, place.into());
            let pinned = self.pins.contains(&key);
            self.pool[place as usize] = self.steady(key);
            self.kept += u64::from(pinned);
        }
    }

    fn is_zero(&self, place: PoolPlace) -> bool {
        self.pool[place as usize] == 0
    }

    fn discard(&mut self, space: u32, pages: Range<u64>) {
        for key in keys(space, pages) {
            let pinned = self.pins.contains(&key);
            self.hold(!pinned, || format!("{key:?} goes, and was to stay"));
            self.view.remove(&key);
        }
    }

    fn zeros(&mut self, space: u32, pages: Range<u64>) -> u64 {
        let pages_start = pages.start;
        let came = if self.refuses() { pages_start..pages_start } else { pages };
        self.event("zeros", Key { space, page: pages_start }, came.end - came.start);
        keys(space, came.clone()).for_each(|key| self.give(key, 0, Access::Modified));
        self.zeros += came.end - came.start;
        came.end - came.start
    }

    fn install(&mut self, _op: Op, space: u32, pages: Range<u64>, access: Access) -> u64 {
        self.event("install", Key { space, page: pages.start }, pages.end - pages.start);
        let end = if self.refuses() { pages.start + 1 } else { pages.end };
        for key in keys(space, pages.start..end) {
            let bytes = self.arrived[&key.page];
            self.give(key, bytes, access);
        }
        end - pages.start
    }

    fn copy(&mut self, key: Key, from: CopySource, access: Access) -> bool {
        self.event("copy", key, 0);
        if self.refuses() {
            return false;
        }
        let bytes = self.of(from);
        self.give(key, bytes, access);
        true
    }

    fn restore(&mut self, key: Key, place: PoolPlace, access: Access) {
        self.event("restore", key, place.into());
        let bytes = self.pool[place as usize];
        self.give(key, bytes, access);
        if self.refuses() {
            self.view.insert(key, (bytes, None));
        }
    }

    fn map(&mut self, key: Key, access: Access) {
        self.view.get_mut(&key).expect("a page that is here").1 = Some(access);
        self.woken.push(key);
    }

    fn allow(&mut self, space: u32, pages: Range<u64>) {
        self.event("allow", Key { space, page: pages.start }, pages.end - pages.start);
        for key in keys(space, pages) {
            if let Some((_, Some(access))) = self.view.get_mut(&key) {
                *access = Access::Modified;
            }
            self.woken.push(key);
        }
    }

    fn relocate(&mut self, key: Key, to: Key, access: Access) {
        self.event("relocate", key, to.page);
        let bytes = self.steady(key);
        self.view.remove(&key);
        self.give(to, bytes, access);
    }

    fn wake(&mut self, space: u32, pages: Range<u64>) {
        self.woken.extend(keys(space, pages));
    }

    fn poison(&mut self, key: Key, why: Cause) {
        self.event("poison", key, 0);
        let (is_lost, is_full) = (!self.lost.is_empty(), self.refused);
        let due = match why {
            Cause::Lost => is_lost,
            Cause::Failed => self.failed,
            Cause::Full => is_full,
            Cause::Refused => false,
        };
        self.hold(due, || format!("{key:?} is refused ({why:?}), and need not be"));
        let told = match why {
            Cause::Lost => 0,
            Cause::Failed => 1,
            Cause::Full | Cause::Refused => 2,
        };
        self.told[told] += 1;
        self.blocked.retain(|(of, _)| *of != key);
    }

    fn fetch(&mut self, op: Op, first: Key, addr: VirtAddr, count: u32) {
        self.event("fetch", first, count.into());
        let start = far_page(addr);
        self.under_way.push(UnderWay {
            op,
            first,
            pages: start..start + u64::from(count),
            bytes: None,
            tries: self.tries(first),
        });
    }

    fn write_back(&mut self, op: Op, addr: VirtAddr, pages: &[CopySource]) {
        let start = far_page(addr);
        let pages_far = start..start + pages.len() as u64;
        let first = Key { space: 0, page: start };
        self.event("write back", first, pages.len() as u64);
        let meets = |other: &UnderWay| {
            other.bytes.is_some() && other.pages.start < pages_far.end && pages_far.start < other.pages.end
        };
        assert!(!self.under_way.iter().any(meets), "one write-back to a page of far memory at a time");
        let bytes = pages.iter().map(|&from| self.of(from)).collect();
        self.under_way.push(UnderWay {
            op,
            first,
            pages: pages_far,
            bytes: Some(bytes),
            tries: self.tries(first),
        });
    }

    fn may_allocate(&self) -> bool {
        !self.refused
    }

    fn allocate(&mut self, bytes: u64) -> Allocated {
        if bytes > self.budget {
            self.refused |= bytes == GROUP;
            return Allocated::Refused;
        }
        self.budget -= bytes;
        self.allocated += 1;
        Allocated::At(VirtAddr(self.allocated << 40))
    }
}
