//! The latest event of each key: for the cause of a miss, and for the order of two crossing events.
//!
//! A direct-mapped table: a key replaces another one that maps to its slot. A forgotten key costs a cause, or
//! time.

use crate::accesses::Position;
use crate::view::{KeyId, mixed};
use alloc::boxed::Box;
use core::num::NonZeroU32;

/// The latest event of a key.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum KeyEvent {
    /// No remembered event.
    #[default]
    Nothing,
    /// A request for the key came, and the view had it.
    Held,
    /// A request that writes the key came.
    Written,
    /// A request that deletes the key came.
    Deleted,
    /// The item was requested from far memory.
    Sent,
    /// The item was put into the zone.
    Placed,
    /// The item left the zone untaken.
    Unread,
    /// The zone had no room for the item.
    Full,
    /// Too many keys were in flight.
    Bounded,
    /// Far memory did not answer.
    Failed,
    /// Far memory had no such item, or a request deleted it.
    Absent,
    /// A request for the key came, the view had it, and then the host gave it up.
    GivenUp,
    /// The key was in flight or in the loading zone when a write arrived.
    Overtaken,
}

#[derive(Clone, Copy, Debug)]
struct KeyHistory {
    key: KeyId,
    event: KeyEvent,
    /// The last request that writes the key.
    written: Position,
    /// The last request that deletes the key.
    deleted: Position,
    /// The host's position when it last gave the key up.
    gone: Position,
}

impl KeyHistory {
    const fn of(key: KeyId) -> Self {
        let (written, deleted, gone) = (Position::UNKNOWN, Position::UNKNOWN, Position::UNKNOWN);
        Self { key, event: KeyEvent::Nothing, written, deleted, gone }
    }
}

#[derive(Debug)]
pub(super) struct History {
    /// The slots; their number is a power of two.
    slots: Box<[KeyHistory]>,
}

/// Maximum number of remembered keys: 32 GiB.
const KEYS_MAX: u32 = 1 << 30;

impl History {
    pub(super) fn new(keys: NonZeroU32) -> Self {
        let len = keys.get().min(KEYS_MAX).next_power_of_two();
        Self { slots: (0..len).map(|_| KeyHistory::of(KeyId(0))).collect() }
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill(KeyHistory::of(KeyId(0)));
    }

    /// Touches the slots of all these keys, so that their cache lines are loaded in parallel.
    pub(super) fn look_ahead(&self, keys: impl Iterator<Item = KeyId>) {
        let each = keys.map(|key| self.slots[self.slot(key)].key.0);
        core::hint::black_box(each.fold(0, |all, key| all ^ key));
    }

    pub(super) fn latest(&self, key: KeyId) -> KeyEvent {
        let history = &self.slots[self.slot(key)];
        if history.key == key { history.event } else { KeyEvent::Nothing }
    }

    pub(super) fn note(&mut self, key: KeyId, event: KeyEvent) {
        self.history(key).event = event;
    }

    /// Records an event, unless a request has written or deleted the key since it was requested.
    pub(super) fn note_unless_changed(&mut self, key: KeyId, event: KeyEvent) {
        let history = self.history(key);
        if !matches!(history.event, KeyEvent::Written | KeyEvent::Deleted) {
            history.event = event;
        }
    }

    /// Records a request that writes the key. Returns false without effect if the host executed it before it
    /// gave the key up.
    pub(super) fn written(&mut self, key: KeyId, position: Position) -> bool {
        let history = self.history(key);
        if position.is_over(history.gone) {
            return false;
        }
        (history.event, history.written) = (KeyEvent::Written, position);
        true
    }

    /// Records a request that deletes the key.
    pub(super) fn deleted(&mut self, key: KeyId, position: Position) {
        let history = self.history(key);
        (history.event, history.deleted) = (KeyEvent::Deleted, position);
    }

    /// Records that the host, at position `seen`, dropped the key unchanged. A later request that deletes it
    /// is still to come. Returns false as [`History::given_up`] does.
    pub(super) fn dropped(&mut self, key: KeyId, seen: Position) -> bool {
        let history = self.history(key);
        let known = history.deleted != Position::UNKNOWN && seen != Position::UNKNOWN;
        let is_to_be_deleted = history.event == KeyEvent::Deleted && known && !history.deleted.is_over(seen);
        let gone = self.given_up(key, seen);
        if is_to_be_deleted && gone {
            self.history(key).event = KeyEvent::Deleted;
        }
        gone
    }

    /// Records that the host, at position `seen`, gave the key up. Returns false if a later request writes
    /// it.
    pub(super) fn given_up(&mut self, key: KeyId, seen: Position) -> bool {
        let history = self.history(key);
        history.gone = history.gone.max(seen);
        let known = history.written != Position::UNKNOWN && seen != Position::UNKNOWN;
        if known && !history.written.is_over(seen) {
            return false;
        }
        history.event = match history.event {
            KeyEvent::Held | KeyEvent::Written | KeyEvent::GivenUp => KeyEvent::GivenUp,
            KeyEvent::Sent | KeyEvent::Placed | KeyEvent::Unread | KeyEvent::Overtaken => KeyEvent::Overtaken,
            KeyEvent::Deleted => KeyEvent::Absent,
            // The earlier cause still holds.
            other => other,
        };
        true
    }

    fn history(&mut self, key: KeyId) -> &mut KeyHistory {
        let slot = self.slot(key);
        let history = &mut self.slots[slot];
        if history.key != key {
            *history = KeyHistory::of(key);
        }
        history
    }

    fn slot(&self, key: KeyId) -> usize {
        usize::try_from(mixed(key.0) & (self.slots.len() as u64 - 1)).expect("a place in memory")
    }
}
