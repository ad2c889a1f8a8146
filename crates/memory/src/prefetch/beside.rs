//! What a program says to the DPU beside it: what it holds no more, reads itself, and changes.
//!
//! Key type: [`Beside`], from any thread of the program. It numbers the changes and knows which items may be taken (PROTOCOL 19.1 to 19.5); that needs no DPU that listens.
//! What it says goes into a list that the DPU empties, and what has no room there costs speed only.

use super::tap::Tap;
use farmem_dpu::accesses::Position;
use farmem_dpu::changes::{Change, Changes};
use farmem_dpu::prefetcher::Copy;
use farmem_dpu::view::{KeyId, KeySecret};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a program has said and its DPU has not heard, at most.
pub const TOLD_MAX: usize = 1 << 16;

/// What a program says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    /// It reads a record itself.
    Asks(KeyId),
    /// It is about to have what it read.
    Reads { key: KeyId, found: bool },
    /// A record changes.
    Changes { key: KeyId, copy: Copy, seen: Position },
    /// Far memory has a change.
    Acknowledged(Change),
    /// It dropped an item.
    Drops { key: KeyId, seen: Position },
}

/// The list between a program and its DPU.
#[derive(Debug, Default)]
pub(super) struct List {
    told: Mutex<(Vec<Told>, u64)>,
}

impl List {
    fn lock(&self) -> MutexGuard<'_, (Vec<Told>, u64)> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, told: Told) {
        self.say_all([told]);
    }

    fn say_all(&self, all: impl IntoIterator<Item = Told>) {
        let mut list = self.lock();
        for told in all {
            if list.0.len() < TOLD_MAX {
                list.0.push(told);
            } else {
                list.1 += 1;
            }
        }
    }

    /// All that was said, into an empty list; how much had no room so far.
    pub(super) fn take(&self, into: &mut Vec<Told>) -> u64 {
        let mut list = self.lock();
        std::mem::swap(&mut list.0, into);
        list.1
    }
}

/// A program's side. Clones are the same program's.
#[derive(Clone, Debug)]
pub struct Beside {
    changes: Arc<Changes>,
    list: Arc<List>,
    tap: Tap,
    secret: KeySecret,
}

impl Beside {
    /// A program with so many floors, whose changes go on behind `after`: 0, or what is above all versions that records of an earlier run carry.
    #[must_use]
    pub fn new(tap: Tap, secret: KeySecret, floors: NonZeroU32, after: Change) -> Self {
        Self { changes: Arc::new(Changes::new(floors, after)), list: Arc::default(), tap, secret }
    }

    /// A record will change, or be removed. The number goes into the record ([`Change::onto`]). For before the program gives up its own copy, and before it sends.
    #[must_use = "the record carries it, and its end is told by `acknowledged`"]
    pub fn change(&self, key: &[u8], copy: Copy) -> Change {
        let key = self.secret.id(key);
        let change = self.changes.change(key);
        self.list.say(Told::Changes { key, copy, seen: self.tap.executed_through() });
        change
    }

    /// Far memory has the change; or it will never have it, as when it was refused.
    pub fn acknowledged(&self, change: Change) {
        self.list.say(Told::Acknowledged(change));
    }

    /// The program reads a record itself: it was not in the zone.
    pub fn asks(&self, key: &[u8]) {
        self.list.say(Told::Asks(self.secret.id(key)));
    }

    /// It has what it asked for; for before it uses it.
    pub fn reads(&self, key: &[u8], found: bool) {
        self.list.say(Told::Reads { key: self.secret.id(key), found });
    }

    /// It dropped an item that far memory has as it is.
    pub fn drops(&self, key: &[u8]) {
        let seen = self.tap.executed_through();
        self.list.say(Told::Drops { key: self.secret.id(key), seen });
    }

    /// It dropped several such items, at once: what each costs is less. For before the program says that it carried out what it dropped them for.
    pub fn drops_all<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) {
        let seen = self.tap.executed_through();
        self.list.say_all(keys.into_iter().map(|key| Told::Drops { key: self.secret.id(key), seen }));
    }

    /// Whether an item of this key with this stamp may be taken. For after the program has looked for it in its own memory.
    #[must_use]
    pub fn good(&self, key: &[u8], stamp: Change) -> bool {
        stamp >= self.changes.floor(self.secret.id(key))
    }

    /// The latest change.
    #[must_use]
    pub fn last(&self) -> Change {
        self.changes.last()
    }

    pub(super) fn list(&self) -> Arc<List> {
        Arc::clone(&self.list)
    }
}
