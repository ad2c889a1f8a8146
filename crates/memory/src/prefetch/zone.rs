//! Where items are put, and where the program looks for them.
//!
//! Key types: [`Zone`], what a driver asks of one; [`LocalZone`], the plain one for a program that has its DPU in its own process.

use farmem_dpu::changes::Change;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An item on its way into a zone.
#[derive(Clone, Copy, Debug)]
pub struct Placing<'a> {
    /// Its number.
    pub item: u64,
    /// Its key.
    pub key: &'a [u8],
    /// What it is compared by when it is taken.
    pub stamp: Change,
    /// The item.
    pub value: &'a [u8],
}

/// A loading zone, as its only producer sees it (PD3 7.2).
pub trait Zone {
    /// Puts an item there; false when there is no room. `gone` hears of items that went for it: their numbers, and whether they were taken.
    fn put(&mut self, placing: &Placing<'_>, gone: &mut dyn FnMut(u64, bool)) -> bool;

    /// Lets the program see what was put there.
    fn publish(&mut self);

    /// Frees what was taken; `gone` hears of it.
    fn clean(&mut self, gone: &mut dyn FnMut(u64, bool));

    /// Gives up all that is there: the program started again, and nothing hears of it.
    fn empty(&mut self);
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
            let &Placing { item: number, key, stamp, value } = placing;
            items.push_back(Item { number, key: key.into(), stamp, value: Some(value.into()) });
        }
        fits
    }

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
            let placing = Placing { item, key: &key, stamp: Change(item), value: &[7] };
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
        assert!(
            !LocalZone::new(0)
                .put(&Placing { item: 9, key: b"k", stamp: Change(0), value: &[] }, &mut |_, _| panic!(
                    "there was nothing"
                ))
        );
    }
}
