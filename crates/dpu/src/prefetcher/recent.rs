//! What happened to keys last: why the host had to ask for one, and which of two crossing events was the later one.
//!
//! A table without chains: a key takes the place of another one that falls on it. What is forgotten costs a cause, or speed.

use crate::accesses::Position;
use crate::view::{KeyId, mixed};
use alloc::boxed::Box;
use core::num::NonZeroU32;

/// What happened to a key last.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum What {
    /// Nothing that is remembered.
    #[default]
    Nothing,
    /// A request for it came, and the view had it.
    Held,
    /// A request that writes it came.
    Written,
    /// A request that deletes it came.
    Deleted,
    /// It was asked for.
    Sent,
    /// Its item was put into the zone.
    Placed,
    /// Its item left the zone, and was not taken.
    Unread,
    /// The zone had no room for its item.
    Full,
    /// Too many were on their way.
    Bounded,
    /// Far memory did not answer.
    Failed,
    /// Far memory had nothing, or a request deleted it.
    Absent,
    /// A request for it came, the view had it, and the host gave it up then.
    Left,
    /// It was asked for, or in the zone, and changed then.
    Overtaken,
}

#[derive(Clone, Copy, Debug)]
struct Memory {
    key: KeyId,
    what: What,
    /// The last request that writes it.
    written: Position,
    /// The last request that deletes it.
    deleted: Position,
    /// How far the host was when it gave it up last.
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
    /// A power of two.
    slots: Box<[Memory]>,
}

/// Keys that are remembered at most: 32 GiB of them.
const KEYS_MAX: u32 = 1 << 30;

impl Recent {
    pub(super) fn new(keys: NonZeroU32) -> Self {
        let len = keys.get().min(KEYS_MAX).next_power_of_two();
        Self { slots: (0..len).map(|_| Memory::of(KeyId(0))).collect() }
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill(Memory::of(KeyId(0)));
    }

    /// Reads what there is of all these keys, so that their lines come from memory together and not one after the other.
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

    /// Notes it of a key that no request has written or deleted since it was asked for.
    pub(super) fn note_unless_changed(&mut self, key: KeyId, what: What) {
        let memory = self.memory(key);
        if !matches!(memory.what, What::Written | What::Deleted) {
            memory.what = what;
        }
    }

    /// A request writes it; false, and nothing noted, when the host carried that out before it gave the key up.
    pub(super) fn written(&mut self, key: KeyId, position: Position) -> bool {
        let memory = self.memory(key);
        if position.is_over(memory.gone) {
            return false;
        }
        (memory.what, memory.written) = (What::Written, position);
        true
    }

    /// A request deletes it.
    pub(super) fn deleted(&mut self, key: KeyId, position: Position) {
        let memory = self.memory(key);
        (memory.what, memory.deleted) = (What::Deleted, position);
    }

    /// The host dropped it unchanged when it had carried out all up to `seen`: a request behind that which deletes it is still to come. False as [`Recent::given_up`].
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

    /// The host gave it up when it had carried out all up to `seen`; false when a request behind that writes it.
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
            // Why it was not fetched is still why.
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
