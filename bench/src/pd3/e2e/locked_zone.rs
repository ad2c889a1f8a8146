//! The baseline of the loading zone: a list of items behind a lock.

use farmem::prefetch::{Change, Placing, Zone};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An item of the list.
#[derive(Debug)]
struct Item {
    number: u64,
    key: Box<[u8]>,
    stamp: Change,
    /// The item; `None` after it was taken.
    value: Option<Box<[u8]>>,
}

/// A list under a lock, the oldest item first. A full one replaces its oldest item (PD3 8.5).
#[derive(Clone, Debug)]
pub(super) struct LockedZone {
    items: Arc<Mutex<VecDeque<Item>>>,
    items_max: usize,
}

impl LockedZone {
    /// Returns a zone with room for this many items. Clones are the same zone.
    pub(super) fn new(items_max: usize) -> Self {
        Self { items: Arc::default(), items_max }
    }

    /// Takes the item of a key if its stamp is good (PD3 7.1, `CheckAndReturn`). Other items stay for the producer.
    pub(super) fn take(&self, key: &[u8], good: impl Fn(Change) -> bool) -> Option<Box<[u8]>> {
        let mut items = self.lock();
        let found =
            items.iter_mut().find(|item| *item.key == *key && item.value.is_some() && good(item.stamp));
        found.and_then(|item| item.value.take())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Item>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Zone for LockedZone {
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
