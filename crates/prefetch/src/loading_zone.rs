//! The loading zone: where a DPU puts what it prefetched, and from where a program's threads take it (PD3 7; PROTOCOL 18).
//!
//! Key types: [`ZoneProducer`], the DPU's one end; [`ZoneReader`], one for each thread of the program. They share one piece of memory ([`make_zone`]), as rings do.
//! [`ZoneReader::check_and_return`] never waits and writes to nothing but the item that it takes.
//!
//! An item is taken only when its reader says that its version is good, before it is claimed: what was prefetched before a newer write or flush is never taken. Each end
//! checks every length and number that the other may have written, each time, so that an end that writes nonsense makes items fail, and nothing else.
//!
//! The zone does not know which versions are good, wait, or wake: `steps` says what is written in which order, and why no value is torn or taken twice.

mod item;
mod steps;
#[cfg(test)]
mod tests;

pub use item::Item;
pub use steps::{Fate, Finding, Found, KEY_MAX, Placed, VALUE_MAX, ZoneCounts};

/// The atomics of a zone; `tests/zone_loom.rs` puts loom's in their place.
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
}

use crate::mix;
use farmem_link::dpu::shared;
use farmem_link::huge::{prefetch, prefetch_to_write};
use farmem_link::shm::Mapping;
use farmem_link::shm::{self as ring, WORD};
use farmem_link::{OpenError, os_seed};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use steps::{Consumer, Producer, Shape};

const MAGIC: u64 = u64::from_le_bytes(*b"FarmZone");
const VERSION: u64 = 1;
/// The word of the identity that has what keys are hashed with.
const SECRET: usize = 4;
/// Items of a zone.
const ITEMS: RangeInclusive<usize> = 2..=1 << 24;
/// Bytes of a zone's data.
const DATA: RangeInclusive<usize> = 1 << 12..=1 << 30;

/// Keys whose lines are asked for together.
const TOGETHER: usize = 16;

/// How large a loading zone is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZoneSize {
    /// Items at once: a power of two, 2 to 2^24. Each takes 96 bytes, which hold a key and value of together 24 bytes, each rounded up to a multiple of 8.
    pub items: usize,
    /// Bytes for longer keys and values: a power of two, 4 KiB to 1 GiB.
    pub data: usize,
}

impl ZoneSize {
    /// Its shape, when it can be.
    fn shape(self, secret: u64) -> Result<Shape, OpenError> {
        let Self { items, data } = self;
        if items.is_power_of_two() && ITEMS.contains(&items) && data.is_power_of_two() && DATA.contains(&data)
        {
            return Ok(Shape { items, data: data / WORD, secret });
        }
        Err(OpenError::Setting {
            setting: "the loading zone",
            value: format!("{self:?}"),
            remedy: "items are a power of two from 2 to 2^24, data one from 4 KiB to 1 GiB".into(),
        })
    }

    /// Bytes of memory that it takes.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a size that cannot be.
    pub fn bytes(self) -> Result<usize, OpenError> {
        Ok(self.shape(0)?.words() * WORD)
    }

    const fn identity(self) -> [u64; SECRET] {
        [MAGIC, VERSION, self.items as u64, self.data as u64]
    }
}

/// Makes the memory of an empty zone, for a process that will hand it to its DPU.
///
/// # Errors
/// [`OpenError::Setting`] for a size that cannot be, [`OpenError::System`] when the system has no memory for it.
pub fn make_zone(size: ZoneSize) -> Result<OwnedFd, OpenError> {
    let words = size.shape(0)?.words();
    let seed = os_seed().map_err(OpenError::system("get a seed for the loading zone"))?;
    let secret = u64::from_le_bytes(*seed.first_chunk().expect("32 bytes"));
    let [magic, version, items, data] = size.identity();
    shared::make(words, &[magic, version, items, data, secret])
}

/// Where a word lies, for hints.
fn line(word: &AtomicU64) -> *const u8 {
    std::ptr::from_ref(word).cast()
}

fn map(file: &OwnedFd, size: ZoneSize) -> Result<(Mapping, Shape), OpenError> {
    let memory = shared::map_huge(file, size.shape(0)?.words(), &size.identity())?;
    let shape = size.shape(memory.words()[SECRET].load(Ordering::Relaxed))?;
    Ok((memory, shape))
}

/// The end of the DPU: the only one that puts items there.
#[derive(Debug)]
pub struct ZoneProducer {
    memory: Mapping,
    steps: Producer,
}

impl ZoneProducer {
    /// Goes on in a zone. Items that another producer left can not be taken from now on, and it must not put more there.
    ///
    /// # Errors
    /// [`OpenError`] when the file is none that [`make_zone`] made of this size.
    pub fn of(file: &OwnedFd, size: ZoneSize) -> Result<Self, OpenError> {
        let (memory, shape) = map(file, size)?;
        let steps = Producer::attach(shape, memory.words())
            .map_err(|_| shared::foreign("has numbers that no producer writes"))?;
        Ok(Self { memory, steps })
    }

    /// Puts an item there. Readers find it by the index at once, and by a scan after [`ZoneProducer::publish`]. `gone` hears of items whose places are free again, each
    /// once, by their tags.
    pub fn put(&mut self, item: &Item<'_>, mut gone: impl FnMut(u64, Fate)) -> Placed {
        self.steps.put(self.memory.words(), item, &mut gone)
    }

    /// Asks the caches for what puts of items with these keys will write, in this order: consumers had it last, and each line of theirs would be waited for by itself.
    pub fn look_ahead<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let (zone, shape) = (self.memory.words(), self.steps.shape());
        for (number, key) in (self.steps.next()..).zip(keys) {
            prefetch_to_write(line(&shape.desc(zone, number)[steps::CLAIM]));
            prefetch_to_write(line(&shape.buckets(zone, mix::hash_bytes(shape.secret, key))[0][0]));
        }
    }

    /// Lets readers see what was put there.
    pub fn publish(&mut self) {
        self.steps.publish(self.memory.words());
    }

    /// Frees the places of the oldest items, as far as they were claimed; `gone` hears of them.
    pub fn clean(&mut self, mut gone: impl FnMut(u64, Fate)) {
        self.steps.clean(self.memory.words(), &mut gone);
    }

    /// Gives up all items that no reader has taken, as when the program starts again; `gone` hears of them.
    pub fn empty(&mut self, mut gone: impl FnMut(u64, Fate)) {
        self.steps.empty(self.memory.words(), &mut gone);
    }

    /// Counts of all items whose places are free again, by fate, and of those that were refused.
    #[must_use]
    pub const fn counts(&self) -> ZoneCounts {
        self.steps.counts()
    }

    /// Items whose place is not free yet.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.steps.len()
    }

    /// True when all places are free.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An end of the program: a thread's way to take items. Each thread has a clone.
#[derive(Clone, Debug)]
pub struct ZoneReader {
    memory: Arc<Mapping>,
    steps: Consumer,
}

impl ZoneReader {
    /// A reader of a zone.
    ///
    /// # Errors
    /// [`OpenError`] when the file is none that [`make_zone`] made of this size.
    pub fn of(file: &OwnedFd, size: ZoneSize, finding: Finding) -> Result<Self, OpenError> {
        let (memory, shape) = map(file, size)?;
        Ok(Self { memory: Arc::new(memory), steps: Consumer::new(shape, finding) })
    }

    /// A reader of this zone for another thread, whose items are found in this way and which has found nothing yet.
    #[must_use]
    pub fn for_thread(&self, finding: Finding) -> Self {
        let mut steps = self.steps.clone();
        (steps.finding, steps.found) = (finding, Found::default());
        Self { memory: Arc::clone(&self.memory), steps }
    }

    /// Takes the item of a key (PD3 7.1, `CheckAndReturn`): its value is in `buf`, which has no more, and its size is the answer. `None`, with anything in `buf`, when none
    /// is there; it does not wait for one that is on its way. Two threads that ask at once never both get it.
    ///
    /// `good` says of a version whether a value of it may be used. One that is not good never will be: the item is given up. It may also be asked of a version that no item has, when an
    /// item goes while it is looked at; then the answer does not matter.
    pub fn check_and_return(
        &mut self,
        key: &[u8],
        good: impl FnMut(u64) -> bool,
        buf: &mut Vec<u8>,
    ) -> Option<usize> {
        self.steps.check_and_return(self.memory.words(), key, good, buf)
    }

    /// Asks the caches for what [`ZoneReader::check_and_return`] will read of these keys, several at once: for a thread that knows them, where the zone is larger than its caches, or
    /// another core has just written it. It changes nothing, and promises nothing.
    pub fn look_ahead<'k>(&self, mut keys: impl Iterator<Item = &'k [u8]>) {
        let (zone, shape) = (self.memory.words(), self.steps.shape);
        loop {
            let (mut hashes, mut count) = ([0; TOGETHER], 0);
            for (hash, key) in hashes.iter_mut().zip(&mut keys) {
                *hash = mix::hash_bytes(shape.secret, key);
                prefetch(line(&shape.buckets(zone, *hash)[0][0]));
                count += 1;
            }
            for &hash in &hashes[..count] {
                let entries = shape.buckets(zone, hash)[0].iter().map(|word| word.load(Ordering::Relaxed));
                for entry in entries.filter(|entry| (entry ^ hash) & steps::TAG == 0) {
                    // Its claim will be exchanged.
                    prefetch_to_write(line(&shape.desc(zone, entry >> steps::TAG_BITS)[steps::CLAIM]));
                }
            }
            if count < TOGETHER {
                return;
            }
        }
    }

    /// Counts of this reader so far.
    #[must_use]
    pub const fn found(&self) -> Found {
        self.steps.found
    }
}
