//! Where items are put, and where the program looks for them.
//!
//! Key types: [`Zone`], what a driver asks of one; [`SharedZone`], PD3's (PROTOCOL 18.8), from which threads take items by a [`Taker`] without a lock; [`LocalZone`], the
//! plain one, a list behind a lock.

use super::beside::Beside;
use crate::loading_zone::{Fate, Finding, Found, Item as Put, Placed, ZoneProducer, ZoneReader, make_zone};
pub use crate::loading_zone::{ZoneCounts, ZoneSize};
pub use farmem_client::Lines;
use farmem_dpu::changes::Change;
use farmem_link::OpenError;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

#[derive(Debug)]
struct Item {
    number: u64,
    key: Box<[u8]>,
    stamp: Change,
    /// None once it was taken.
    value: Option<Box<[u8]>>,
}

/// A zone of a process: a list under a lock, the oldest item first. A full one replaces its oldest item (PD3 8.5).
#[derive(Clone, Debug)]
pub struct LocalZone {
    items: Arc<Mutex<VecDeque<Item>>>,
    items_max: usize,
}

impl LocalZone {
    /// Room for so many items. Clones are the same zone.
    #[must_use]
    pub fn new(items_max: usize) -> Self {
        Self { items: Arc::default(), items_max }
    }

    /// Takes the item of a key whose stamp is good (PD3 7.1, `CheckAndReturn`). One that is not good is left for the producer.
    #[must_use]
    pub fn take(&self, key: &[u8], good: impl Fn(Change) -> bool) -> Option<Box<[u8]>> {
        let mut items = self.lock();
        let found =
            items.iter_mut().find(|item| *item.key == *key && item.value.is_some() && good(item.stamp));
        found.and_then(|item| item.value.take())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Item>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Zone for LocalZone {
    fn put(&mut self, placing: &Placing<'_>, gone: &mut dyn FnMut(u64, bool)) -> bool {
        self.clean(gone);
        let mut items = self.lock();
        if items.len() >= self.items_max
            && let Some(oldest) = items.pop_front()
        {
            gone(oldest.number, oldest.value.is_none());
        }
        let fits = items.len() < self.items_max;
        if fits {
            let &Placing { item: number, key, stamp, value, lines } = placing;
            let value = match lines {
                None => value.into(),
                Some(lines) => lines.parts(value).collect::<Vec<_>>().concat().into(),
            };
            items.push_back(Item { number, key: key.into(), stamp, value: Some(value) });
        }
        fits
    }

    fn look_ahead<'k>(&self, _keys: impl Iterator<Item = &'k [u8]>) {}

    fn publish(&mut self) {}

    fn clean(&mut self, gone: &mut dyn FnMut(u64, bool)) {
        let mut items = self.lock();
        while let Some(taken) = items.pop_front_if(|item| item.value.is_none()) {
            gone(taken.number, true);
        }
    }

    fn empty(&mut self) {
        self.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Items are taken once, and only when they are good; a full zone replaces its oldest, and says what became of it.
    #[test]
    fn items_are_taken_once_and_replaced_in_order() {
        let mut zone = LocalZone::new(2);
        let reader = zone.clone();
        let mut all = Vec::new();
        for item in 0..4_u64 {
            let key = [b'k', b'0' + u8::try_from(item).unwrap()];
            let placing = Placing { item, key: &key, stamp: Change(item), value: &[7], lines: None };
            assert!(zone.put(&placing, &mut |number, taken| all.push((number, taken))));
            if item == 1 {
                assert_eq!(reader.take(b"k1", |stamp| stamp > Change(1)), None);
                assert_eq!(reader.take(b"k0", |_| true).as_deref(), Some(&[7][..]));
                assert_eq!(reader.take(b"k0", |_| true), None);
            }
        }
        assert_eq!(all, [(0, true), (1, false)]);
        zone.empty();
        assert_eq!(reader.take(b"k3", |_| true), None);
        assert!(!LocalZone::new(0).put(
            &Placing { item: 9, key: b"k", stamp: Change(0), value: &[], lines: None },
            &mut |_, _| panic!("there was nothing")
        ));
    }
}
