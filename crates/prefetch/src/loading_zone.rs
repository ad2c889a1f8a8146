//! The loading zone: the DPU puts prefetched items here, and the program's threads take them (PD3 7; PROTOCOL 18).
//!
//! Key types: [`ZoneProducer`], the DPU's only end; [`ZoneReader`], one per thread of the program. Both share one
//! piece of memory ([`make_zone`]). [`ZoneReader::check_and_return`] never waits, and writes only to the item that it
//! takes.
//!
//! A reader checks the version of an item before it claims the item. So an item that was prefetched before a newer
//! write or flush is never taken. Each end checks every length and number that the other may have written, each time.
//! So invalid data makes items fail, and nothing else.
//!
//! The zone does not know which versions are good, and does not wait or wake. `steps` has the order of the writes,
//! and the reason why no value is torn or taken twice.

mod item;
mod steps;
#[cfg(test)]
mod tests;

pub use item::Item;
pub use steps::{Fate, Finding, Found, KEY_MAX, Placed, VALUE_MAX, ZoneCounts};

/// The atomics of a zone; `tests/zone_loom.rs` replaces them by loom's.
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
/// Index of the identity's word with the secret of the keys' hashes.
const SECRET: usize = 4;
/// Possible numbers of items.
const ITEMS: RangeInclusive<usize> = 2..=1 << 24;
/// Possible lengths of a zone's data in bytes.
const DATA: RangeInclusive<usize> = 1 << 12..=1 << 30;

/// Number of keys whose lines are prefetched together.
const TOGETHER: usize = 16;

/// The size of a loading zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZoneSize {
    /// Maximum number of items: a power of two, 2 to 2^24. Each takes 96 bytes, with room for a key and a value of 24
    /// bytes together, both rounded up to a multiple of 8.
    pub items: usize,
    /// Bytes for longer keys and values: a power of two, 4 KiB to 1 GiB.
    pub data: usize,
}

impl ZoneSize {
    /// Returns the shape of a valid size.
    fn shape(self, secret: u64) -> Result<Shape, OpenError> {
        let Self { items, data } = self;
        if items.is_power_of_two() && ITEMS.contains(&items) && data.is_power_of_two() && DATA.contains(&data)
        {
            return Ok(Shape { items, data: data / WORD, secret });
        }
        Err(OpenError::Setting {
            setting: "the loading zone",
            value: format!("{self:?}"),
            remedy: "use a power of two for both: 2 to 2^24 items, and 4 KiB to 1 GiB of data".into(),
        })
    }

    /// Returns the memory of a zone in bytes.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for an invalid size.
    pub fn bytes(self) -> Result<usize, OpenError> {
        Ok(self.shape(0)?.words() * WORD)
    }

    const fn identity(self) -> [u64; SECRET] {
        [MAGIC, VERSION, self.items as u64, self.data as u64]
    }
}

/// Makes the memory of an empty zone, for a process that passes it to its DPU.
///
/// # Errors
/// [`OpenError::Setting`] for an invalid size, [`OpenError::System`] if the system has no memory for the zone.
pub fn make_zone(size: ZoneSize) -> Result<OwnedFd, OpenError> {
    let words = size.shape(0)?.words();
    let seed = os_seed().map_err(OpenError::system("get a seed for the loading zone"))?;
    let secret = u64::from_le_bytes(*seed.first_chunk().expect("32 bytes"));
    let [magic, version, items, data] = size.identity();
    shared::make(words, &[magic, version, items, data, secret])
}

/// Returns the address of a word, for prefetch hints.
fn line(word: &AtomicU64) -> *const u8 {
    std::ptr::from_ref(word).cast()
}

fn map(file: &OwnedFd, size: ZoneSize) -> Result<(Mapping, Shape), OpenError> {
    let memory = shared::map_huge(file, size.shape(0)?.words(), &size.identity())?;
    let shape = size.shape(memory.words()[SECRET].load(Ordering::Relaxed))?;
    Ok((memory, shape))
}

/// The DPU's end, the only one that puts items into the zone.
#[derive(Debug)]
pub struct ZoneProducer {
    memory: Mapping,
    steps: Producer,
}

impl ZoneProducer {
    /// Attaches to a zone. Items of an earlier producer cannot be taken from now on, and that producer must not put
    /// more.
    ///
    /// # Errors
    /// [`OpenError`] if [`make_zone`] did not make the file with this size.
    pub fn of(file: &OwnedFd, size: ZoneSize) -> Result<Self, OpenError> {
        let (memory, shape) = map(file, size)?;
        let steps = Producer::attach(shape, memory.words())
            .map_err(|_| shared::foreign("has numbers that no producer writes"))?;
        Ok(Self { memory, steps })
    }

    /// Puts an item into the zone. Readers find it by the index at once, and by a scan after
    /// [`ZoneProducer::publish`]. `gone` gets the tags of items whose places are free again, each once.
    pub fn put(&mut self, item: &Item<'_>, mut gone: impl FnMut(u64, Fate)) -> Placed {
        self.steps.put(self.memory.words(), item, &mut gone)
    }

    /// Prefetches the lines that puts of items with these keys will write, in this order. Consumers had these lines
    /// last, and each would cost a separate wait.
    pub fn look_ahead<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let (zone, shape) = (self.memory.words(), self.steps.shape());
        for (number, key) in (self.steps.next()..).zip(keys) {
            prefetch_to_write(line(&shape.desc(zone, number)[steps::CLAIM]));
            prefetch_to_write(line(&shape.buckets(zone, mix::hash_bytes(shape.secret, key))[0][0]));
        }
    }

    /// Makes the items visible to readers that scan.
    pub fn publish(&mut self) {
        self.steps.publish(self.memory.words());
    }

    /// Frees the places of the oldest items, up to the first that is not claimed, and reports them to `gone`.
    pub fn clean(&mut self, mut gone: impl FnMut(u64, Fate)) {
        self.steps.clean(self.memory.words(), &mut gone);
    }

    /// Drops all items that no reader has taken, for example when the program restarts, and reports them to `gone`.
    pub fn empty(&mut self, mut gone: impl FnMut(u64, Fate)) {
        self.steps.empty(self.memory.words(), &mut gone);
    }

    /// Returns the numbers of items whose places are free again, by fate, and of refused items.
    #[must_use]
    pub const fn counts(&self) -> ZoneCounts {
        self.steps.counts()
    }

    /// Returns the number of items whose place is not free yet.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.steps.len()
    }

    /// Returns true if all places are free.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A thread's end for taking items. Each thread has a clone.
#[derive(Clone, Debug)]
pub struct ZoneReader {
    memory: Arc<Mapping>,
    steps: Consumer,
}

impl ZoneReader {
    /// Creates a reader of a zone.
    ///
    /// # Errors
    /// [`OpenError`] if [`make_zone`] did not make the file with this size.
    pub fn of(file: &OwnedFd, size: ZoneSize, finding: Finding) -> Result<Self, OpenError> {
        let (memory, shape) = map(file, size)?;
        Ok(Self { memory: Arc::new(memory), steps: Consumer::new(shape, finding) })
    }

    /// Creates a reader of this zone for another thread, with this way of finding items and with empty counts.
    #[must_use]
    pub fn for_thread(&self, finding: Finding) -> Self {
        let mut steps = self.steps.clone();
        (steps.finding, steps.found) = (finding, Found::default());
        Self { memory: Arc::clone(&self.memory), steps }
    }

    /// Takes the item of a key (PD3 7.1, `CheckAndReturn`). Returns the length of its value; `buf` has the value and
    /// nothing else.
    ///
    /// Returns `None`, with arbitrary content in `buf`, if there is no item; the call does not wait for an item in
    /// flight. Of two threads that call this at once, at most one gets the item.
    ///
    /// `good` decides whether a value of a version may be used. A version that is not good never will be, so its item
    /// is dropped. `good` may also be called with a version of no item, if an item disappears meanwhile; the result
    /// is then ignored.
    pub fn check_and_return(
        &mut self,
        key: &[u8],
        good: impl FnMut(u64) -> bool,
        buf: &mut Vec<u8>,
    ) -> Option<usize> {
        self.steps.check_and_return(self.memory.words(), key, good, buf)
    }

    /// Prefetches the lines that [`ZoneReader::check_and_return`] will read for these keys. Use this for several keys
    /// at once, if the zone is larger than the caches or another core has just written the items. The zone does not
    /// change.
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
                    // The take will exchange the claim.
                    prefetch_to_write(line(&shape.desc(zone, entry >> steps::TAG_BITS)[steps::CLAIM]));
                }
            }
            if count < TOGETHER {
                return;
            }
        }
    }

    /// Returns the counts of this reader so far.
    #[must_use]
    pub const fn found(&self) -> Found {
        self.steps.found
    }
}
