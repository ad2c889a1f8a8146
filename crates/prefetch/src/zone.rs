//! Where items are put, and where the program looks for them.
//!
//! Key types: [`Zone`], what a driver asks of one; [`SharedZone`], PD3's (PROTOCOL 18.8), from which threads take items by a [`Taker`] without a lock.

use super::beside::Beside;
use crate::loading_zone::{Fate, Finding, Found, Item as Put, Placed, ZoneProducer, ZoneReader, make_zone};
pub use crate::loading_zone::{ZoneCounts, ZoneSize};
pub use farmem_client::Lines;
use farmem_dpu::changes::Change;
use farmem_link::OpenError;

/// An item on its way into a zone.
#[derive(Clone, Copy, Debug)]
pub struct Placing<'a> {
    /// Its number.
    pub item: u64,
    /// Its key.
    pub key: &'a [u8],
    /// The stamp that decides whether it may be taken.
    pub stamp: Change,
    /// The item.
    pub value: &'a [u8],
    /// How it lies in `value`, where that has more.
    pub lines: Option<Lines>,
}

/// A loading zone, as its only producer sees it (PD3 7.2).
pub trait Zone {
    /// Puts an item there; false when there is no room. `gone` hears of items that went for it: their numbers, and whether they were taken.
    fn put(&mut self, placing: &Placing<'_>, gone: &mut dyn FnMut(u64, bool)) -> bool;

    /// Items of these keys will be put there, in this order: so that lines of memory come together and not one after the other. It changes nothing.
    fn look_ahead<'k>(&self, keys: impl Iterator<Item = &'k [u8]>);

    /// Lets the program see what was put there.
    fn publish(&mut self);

    /// Frees what was taken; `gone` hears of it.
    fn clean(&mut self, gone: &mut dyn FnMut(u64, bool));

    /// Gives up all that is there: the program started again, and nothing hears of it.
    fn empty(&mut self);
}

/// The producer's end of a loading zone in memory that threads and processes share (PD3 7).
#[derive(Debug)]
pub struct SharedZone {
    producer: ZoneProducer,
}

impl SharedZone {
    /// An empty zone of this size, and a first reader of it for [`Taker::new`].
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a size that cannot be, [`OpenError::System`] when the system has no memory for it.
    pub fn make(size: ZoneSize) -> Result<(Self, ZoneReader), OpenError> {
        let file = make_zone(size)?;
        let producer = ZoneProducer::of(&file, size)?;
        Ok((Self { producer }, ZoneReader::of(&file, size, Finding::Index)?))
    }

    /// The producer's end of a zone that another process made.
    #[must_use]
    pub const fn of(producer: ZoneProducer) -> Self {
        Self { producer }
    }

    /// Fates of its items.
    #[must_use]
    pub const fn counts(&self) -> ZoneCounts {
        self.producer.counts()
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

/// A thread's way to items of a [`SharedZone`]. Each thread has one of its own.
#[derive(Debug)]
pub struct Taker {
    reader: ZoneReader,
    beside: Beside,
}

impl Taker {
    /// For the calling thread, of the zone that `reader` reads and the program that `beside` speaks for.
    #[must_use]
    pub fn new(reader: &ZoneReader, beside: &Beside) -> Self {
        Self { reader: reader.for_thread(Finding::Index), beside: beside.clone() }
    }

    /// Takes the item of a key if one is there that is not older than the key's last change (PD3 7.1, `CheckAndReturn`; PROTOCOL 19.5): it is in `into` then, which has no
    /// more; else anything is. For after the program has looked into its own memory. It never waits. From a DPU that is a process, and that does not serve any more, it takes nothing.
    pub fn take(&mut self, key: &[u8], into: &mut Vec<u8>) -> Option<usize> {
        let beside = &self.beside;
        if !beside.is_heard() {
            return None;
        }
        self.reader.check_and_return(key, |version| beside.good(key, Change(version)), into)
    }

    /// Asks the caches for what takes of these keys will read ([`ZoneReader::look_ahead`]).
    pub fn look_ahead<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        self.reader.look_ahead(keys);
    }

    /// Counts of this thread's look-ups.
    #[must_use]
    pub const fn found(&self) -> Found {
        self.reader.found()
    }
}
