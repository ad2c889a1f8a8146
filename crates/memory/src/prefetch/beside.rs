//! What a program says to the DPU beside it: what it holds no more, reads itself, and changes.
//!
//! Key type: [`Beside`], from any thread of the program. It numbers the changes and knows which items may be taken (PROTOCOL 19.1 to 19.5); that needs no DPU that listens.
//! What it says goes into a list that the DPU empties, and what has no room there costs speed only.

use super::tap::Tap;
use farmem_dpu::accesses::Position;
use farmem_dpu::changes::{Change, ChangeSet, Changes};
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
    /// It dropped so many items, the next of [`Talk::dropped`].
    Drops { count: usize, seen: Position },
}

/// What a program said, in order. Keys of what it dropped lie beside: of them there are most, and they cost a word each.
#[derive(Debug, Default)]
pub(super) struct Talk {
    pub(super) said: Vec<Told>,
    pub(super) dropped: Vec<KeyId>,
    /// What there was no room for.
    unheard: u64,
}

impl Talk {
    fn say(&mut self, told: Told) {
        if self.said.len() + self.dropped.len() < TOLD_MAX {
            self.said.push(told);
        } else {
            self.unheard += 1;
        }
    }

    fn drops(&mut self, keys: impl Iterator<Item = KeyId>, seen: Position) {
        let before = self.dropped.len();
        let room = TOLD_MAX.saturating_sub(self.said.len() + before + 1);
        let mut keys = keys.fuse();
        self.dropped.extend(keys.by_ref().take(room));
        self.unheard += keys.count() as u64;
        let count = self.dropped.len() - before;
        match self.said.last_mut() {
            Some(Told::Drops { count: more, seen: of }) if *of == seen => *more += count,
            _ if count > 0 => self.said.push(Told::Drops { count, seen }),
            _ => {}
        }
    }
}

/// The list between a program and its DPU.
#[derive(Debug, Default)]
pub(super) struct List {
    told: Mutex<Talk>,
    /// Changes that far memory has. None is left out, however much is said: a change that is missing keeps items of changed records from being taken.
    acknowledged: Mutex<ChangeSet>,
}

impl List {
    fn lock(&self) -> MutexGuard<'_, Talk> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, told: Told) {
        self.lock().say(told);
    }

    /// All that was said, into empty lists; how much had no room so far.
    pub(super) fn take(&self, into: &mut Talk) -> u64 {
        let mut list = self.lock();
        std::mem::swap(&mut list.said, &mut into.said);
        std::mem::swap(&mut list.dropped, &mut into.dropped);
        list.unheard
    }

    fn acknowledge(&self, change: Change) {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).add(change);
    }

    /// Changes that far memory has, since this was asked last.
    pub(super) fn take_acknowledged(&self) -> ChangeSet {
        std::mem::take(&mut *self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner))
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
        self.list.acknowledge(change);
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
        self.drops_all([key]);
    }

    /// It dropped several such items, at once: what each costs is less. For before the program says that it carried out what it dropped them for.
    pub fn drops_all<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) {
        let seen = self.tap.executed_through();
        self.list.lock().drops(keys.into_iter().map(|key| self.secret.id(key)), seen);
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

#[cfg(test)]
mod tests {
    use super::super::tap::tap;
    use super::*;
    use farmem_dpu::changes::FLOORS;

    /// Drops keep their place among all that was said; what has no room is counted, whichever it is, and what comes after the list was taken has room again.
    #[test]
    fn what_is_said_comes_in_order_and_is_bounded() {
        let secret = KeySecret([1, 2]);
        let (tap, _watch) = tap(1 << 10, secret);
        let beside = Beside::new(tap, secret, FLOORS, Change(0));
        let key = |n: usize| (n as u64).to_le_bytes();
        let keys: Vec<[u8; 8]> = (0..TOLD_MAX).map(key).collect();
        let seen = Position::UNKNOWN;
        beside.drops_all(keys[..2].iter().map(|key| &key[..]));
        beside.drops(&keys[2]);
        beside.asks(&keys[3]);
        beside.drops(&keys[4]);
        let (list, mut talk) = (beside.list(), Talk::default());
        assert_eq!(list.take(&mut talk), 0);
        let asks = Told::Asks(KeyId(3));
        assert_eq!(talk.said, [Told::Drops { count: 3, seen }, asks, Told::Drops { count: 1, seen }]);
        assert_eq!(talk.dropped, [0, 1, 2, 4].map(KeyId));
        talk = Talk::default();
        beside.drops_all(keys.iter().map(|key| &key[..]));
        beside.asks(&keys[3]);
        beside.drops_all([]);
        assert_eq!(list.take(&mut talk), 2);
        assert_eq!((talk.said.len(), talk.dropped.len()), (1, TOLD_MAX - 1));
        talk = Talk::default();
        beside.asks(&keys[3]);
        assert_eq!((list.take(&mut talk), talk.said), (2, vec![asks]));
    }
}
