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
pub(super) enum What {
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
    Left,
    /// The key was in flight or in the loading zone when a write arrived.
    Overtaken,
}

#[derive(Clone, Copy, Debug)]
struct Memory {
    key: KeyId,
    what: What,
    /// The last request that writes the key.
    written: Position,
    /// The last request that deletes the key.
    deleted: Position,
    /// The host's position when it last gave the key up.
    gone: Position,
}

impl Memory {
    const fn of(key: KeyId) -> Self {
        let (written, deleted, gone) = (Position::UNKNOWN, Position::UNKNOWN, Position::UNKNOWN);
        Self { key, what: What::Nothing, written, deleted, gone }
    }
}

#[derive(Debug)]
pub(super) struct Recent {
    /// The slots; their number is a power of two.
    slots: Box<[Memory]>,
}

/// Maximum number of remembered keys: 32 GiB.
const KEYS_MAX: u32 = 1 << 30;

impl Recent {
    pub(super) fn new(keys: NonZeroU32) -> Self {
        let len = keys.get().min(KEYS_MAX).next_power_of_two();
        Self { slots: (0..len).map(|_| Memory::of(KeyId(0))).collect() }
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill(Memory::of(KeyId(0)));
    }

    /// Touches the slots of all these keys, so that their cache lines are loaded in parallel.
    pub(super) fn look_ahead(&self, keys: impl Iterator<Item = KeyId>) {
        let each = keys.map(|key| self.slots[self.slot(key)].key.0);
        core::hint::black_box(each.fold(0, |all, key| all ^ key));
    }

    pub(super) fn what(&self, key: KeyId) -> What {
        let memory = &self.slots[self.slot(key)];
        if memory.key == key { memory.what } else { What::Nothing }
    }

    pub(super) fn note(&mut self, key: KeyId, what: What) {
        self.memory(key).what = what;
    }

    /// Records an event, unless a request has written or deleted the key since it was requested.
    pub(super) fn note_unless_changed(&mut self, key: KeyId, what: What) {
        let memory = self.memory(key);
        if !matches!(memory.what, What::Written | What::Deleted) {
            memory.what = what;
        }
    }

    /// Records a request that writes the key. Returns false without effect if the host executed it before it
    /// gave the key up.
    pub(super) fn written(&mut self, key: KeyId, position: Position) -> bool {
        let memory = self.memory(key);
        if position.is_over(memory.gone) {
            return false;
        }
        (memory.what, memory.written) = (What::Written, position);
        true
    }

    /// Records a request that deletes the key.
    pub(super) fn deleted(&mut self, key: KeyId, position: Position) {
        let memory = self.memory(key);
        (memory.what, memory.deleted) = (What::Deleted, position);
    }

    /// Records that the host, at position `seen`, dropped the key unchanged. A later request that deletes it
    /// is still to come. Returns false as [`Recent::given_up`] does.
    pub(super) fn dropped(&mut self, key: KeyId, seen: Position) -> bool {
        let memory = self.memory(key);
        let known = memory.deleted != Position::UNKNOWN && seen != Position::UNKNOWN;
        let is_to_be_deleted = memory.what == What::Deleted && known && !memory.deleted.is_over(seen);
        let gone = self.given_up(key, seen);
        if is_to_be_deleted && gone {
            self.memory(key).what = What::Deleted;
        }
        gone
    }

    /// Records that the host, at position `seen`, gave the key up. Returns false if a later request writes
    /// it.
    pub(super) fn given_up(&mut self, key: KeyId, seen: Position) -> bool {
        let memory = self.memory(key);
        memory.gone = memory.gone.max(seen);
        let known = memory.written != Position::UNKNOWN && seen != Position::UNKNOWN;
        if known && !memory.written.is_over(seen) {
            return false;
        }
        memory.what = match memory.what {
            What::Held | What::Written | What::Left => What::Left,
            What::Sent | What::Placed | What::Unread | What::Overtaken => What::Overtaken,
            What::Deleted => What::Absent,
            // The earlier cause still holds.
            other => other,
        };
        true
    }

    fn memory(&mut self, key: KeyId) -> &mut Memory {
        let slot = self.slot(key);
        let memory = &mut self.slots[slot];
        if memory.key != key {
            *memory = Memory::of(key);
        }
        memory
    }

    fn slot(&self, key: KeyId) -> usize {
        usize::try_from(mixed(key.0) & (self.slots.len() as u64 - 1)).expect("a place in memory")
    }
}
