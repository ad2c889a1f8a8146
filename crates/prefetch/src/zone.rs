//! The place for prefetched items, in which the program looks first.
//!
//! Key types: [`Zone`], the interface for a driver; [`SharedZone`], PD3's zone (PROTOCOL 18.8), from which threads
//! take items by a [`Taker`] without a lock.

use super::reporter::Reporter;
use crate::loading_zone::{Fate, Finding, Found, Item as Put, Placed, ZoneProducer, ZoneReader, make_zone};
pub use crate::loading_zone::{ZoneCounts, ZoneSize};
pub use farmem_client::Lines;
use farmem_dpu::changes::Change;
use farmem_link::OpenError;

/// An item to be put into a zone.
#[derive(Clone, Copy, Debug)]
pub struct Placing<'a> {
    /// The number of the item.
    pub item: u64,
    /// The key of the item.
    pub key: &'a [u8],
    /// The stamp, which decides whether the item may be taken.
    pub stamp: Change,
    /// The item.
    pub value: &'a [u8],
    /// The layout of the item in `value`, if `value` has more.
    pub lines: Option<Lines>,
}

/// A loading zone from its only producer's point of view (PD3 7.2).
pub trait Zone {
    /// Puts an item into the zone. Returns false if there is no room. `gone` gets the numbers of items that made
    /// room, and true for those that were taken.
    fn put(&mut self, placing: &Placing<'_>, gone: &mut dyn FnMut(u64, bool)) -> bool;

    /// Prefetches the lines of memory for items of these keys, which will be put in this order. The zone does not
    /// change.
    fn look_ahead<'k>(&self, keys: impl Iterator<Item = &'k [u8]>);

    /// Makes the items visible to the program.
    fn publish(&mut self);

    /// Frees the places of taken items, and reports them to `gone`.
    fn clean(&mut self, gone: &mut dyn FnMut(u64, bool));

    /// Drops all items without a report, because the program has restarted.
    fn empty(&mut self);
}

/// The producer's end of a loading zone in memory that threads and processes share (PD3 7).
#[derive(Debug)]
pub struct SharedZone {
    producer: ZoneProducer,
}

impl SharedZone {
    /// Creates an empty zone of this size, and a first reader for [`Taker::new`].
    ///
    /// # Errors
    /// [`OpenError::Setting`] for an invalid size, [`OpenError::System`] if the system has no memory for the zone.
    pub fn make(size: ZoneSize) -> Result<(Self, ZoneReader), OpenError> {
        let file = make_zone(size)?;
        let producer = ZoneProducer::of(&file, size)?;
        Ok((Self { producer }, ZoneReader::of(&file, size, Finding::Index)?))
    }

    /// Creates the producer's end of a zone that another process made.
    #[must_use]
    pub const fn of(producer: ZoneProducer) -> Self {
        Self { producer }
    }
}

impl Zone for SharedZone {
    fn put(&mut self, placing: &Placing<'_>, gone: &mut dyn FnMut(u64, bool)) -> bool {
        let &Placing { item: tag, key, stamp: Change(version), value: data, lines } = placing;
        let item = Put { tag, id: 0, key, version, data, lines };
        self.producer.put(&item, |tag, fate| gone(tag, fate == Fate::Taken)) == Placed::There
    }

    fn look_ahead<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        self.producer.look_ahead(keys);
    }

    fn publish(&mut self) {
        self.producer.publish();
    }

    fn clean(&mut self, gone: &mut dyn FnMut(u64, bool)) {
        self.producer.clean(|tag, fate| gone(tag, fate == Fate::Taken));
    }

    fn empty(&mut self) {
        self.producer.empty(|_, _| {});
    }
}

/// A thread's access to items of a [`SharedZone`]. Each thread has one of its own.
#[derive(Debug)]
pub struct Taker {
    reader: ZoneReader,
    beside: Reporter,
}

impl Taker {
    /// Creates the access of the calling thread to the zone of `reader`, for the program of `beside`.
    #[must_use]
    pub fn new(reader: &ZoneReader, beside: &Reporter) -> Self {
        Self { reader: reader.for_thread(Finding::Index), beside: beside.clone() }
    }

    /// Takes the item of a key, if the zone has one that is not older than the key's last change (PD3 7.1,
    /// `CheckAndReturn`; PROTOCOL 19.5).
    ///
    /// Returns the length; `into` has the item and nothing else. Without an item, the content of `into` is arbitrary.
    /// Call this after the program has looked into its own memory. The call never waits, and takes nothing if the DPU
    /// process has ended.
    pub fn take(&mut self, key: &[u8], into: &mut Vec<u8>) -> Option<usize> {
        let beside = &self.beside;
        if !beside.is_heard() {
            return None;
        }
        self.reader.check_and_return(key, |version| beside.good(key, Change(version)), into)
    }

    /// Prefetches the lines that takes of these keys will read ([`ZoneReader::look_ahead`]).
    pub fn look_ahead<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        self.reader.look_ahead(keys);
    }

    /// Returns the counts of this thread's look-ups.
    #[must_use]
    pub const fn found(&self) -> Found {
        self.reader.found()
    }
}
