//! Which members may hold pointers, and when memory may be used again: the rules of the epochs, without far memory.
//!
//! The heap has an epoch, a number that only grows. Each *member*, a program that has the heap open, has a word that says which epoch it *stands in*:
//! it holds no pointer that it read while the heap was in an earlier one. A member moves its word between two operations. The heap's epoch goes on from
//! n to n + 1 when all members stand in n. So while a member stands in n, the heap is in n or n + 1, and
//!
//! - what a member frees while it stands in n may be held by members that stand in n + 1 at most;
//! - when the heap is in n + 3 all members have left n + 1: then the memory is used again.
//!
//! A member that waits for a word that does not change for [`SILENT_LEASES`] leases takes it back (its member is *evicted*), so that a program that died
//! stops no other. The evicted member learns that by its next change of the word, and does not use what it read later than one lease after the last
//! change.

use std::time::Duration;

/// Slots for members.
pub(crate) const MEMBERS_MAX: usize = 64;
/// Leases without a change of its word after which a member is evicted. It uses nothing after one.
pub(crate) const SILENT_LEASES: u32 = 3;
/// Epochs from a free to the next use.
pub(crate) const EPOCHS_TO_REUSE: u32 = 3;

/// A member's word: generation of the slot (16 bits), epoch (32), beat (16). Epoch 0: the slot is free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    pub(crate) const fn generation(self) -> u16 {
        (self.0 >> 48) as u16
    }

    pub(crate) const fn epoch(self) -> u32 {
        (self.0 >> 16 & 0xffff_ffff) as u32
    }

    pub(crate) const fn is_free(self) -> bool {
        self.epoch() == 0
    }

    /// A free slot that is taken by a member, which stands in `epoch`.
    pub(crate) const fn joined(self, epoch: u32) -> Self {
        Self((self.generation().wrapping_add(1) as u64) << 48 | (epoch as u64) << 16)
    }

    /// The member is still there, and stands in `epoch`.
    pub(crate) const fn moved(self, epoch: u32) -> Self {
        Self(self.0 & 0xffff << 48 | (epoch as u64) << 16 | self.0.wrapping_add(1) & 0xffff)
    }

    /// The member is there no more.
    pub(crate) const fn left(self) -> Self {
        Self(self.0 & 0xffff << 48)
    }
}

/// The word of the heap's epoch: the epoch (32 bits); who closes the heap or has destroyed it, as generation (16) and number (14) of the slot; and in the
/// two bits above, which of the two it is. An epoch is never 0, and so is no such word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct EpochWord(u64);

const CLOSING: u64 = 1 << 62;
const DESTROYED: u64 = 1 << 63;

impl EpochWord {
    /// Of a heap that programs may open.
    pub(crate) const fn open(epoch: u32) -> Self {
        Self(epoch as u64)
    }

    /// In the same epoch, the member in `slot` closes the heap.
    pub(crate) const fn closing(self, slot: usize, generation: u16) -> Self {
        Self(CLOSING | (slot as u64) << 48 | (generation as u64) << 32 | self.epoch() as u64)
    }

    /// The member that closes it has destroyed it.
    pub(crate) const fn destroyed(self) -> Self {
        Self(self.0 & !CLOSING | DESTROYED)
    }

    /// `None` of a word that is none.
    pub(crate) const fn parse(word: u64) -> Option<Self> {
        let is_whole = match word & (CLOSING | DESTROYED) {
            0 => word >> 32 == 0,
            both => both != CLOSING | DESTROYED,
        };
        if is_whole && Self(word).epoch() != 0 { Some(Self(word)) } else { None }
    }

    pub(crate) const fn word(self) -> u64 {
        self.0
    }

    pub(crate) const fn epoch(self) -> u32 {
        (self.0 & 0xffff_ffff) as u32
    }

    pub(crate) const fn is_open(self) -> bool {
        self.0 & (CLOSING | DESTROYED) == 0
    }

    pub(crate) const fn is_destroyed(self) -> bool {
        self.0 & DESTROYED != 0
    }
}

/// The stamp of what a member frees that stands in `own`: the epoch of the heap in which it may be used again.
pub(crate) const fn stamp(own: u32) -> u32 {
    own.saturating_add(EPOCHS_TO_REUSE)
}

/// True when the epoch may go on from `epoch`: all members stand in it. Asked by a member that stood in it before it read the others' words.
pub(crate) fn may_advance(epoch: u32, words: &[Word]) -> bool {
    epoch < u32::MAX && words.iter().all(|word| word.is_free() || word.epoch() == epoch)
}

/// What a member has seen of another one's word, and since when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    word: Word,
    since: Duration,
}

impl Watch {
    pub(crate) const fn begin(word: Word, now: Duration) -> Self {
        Self { word, since: now }
    }

    /// Looks again; true when the member is to be evicted. `asked` is from before the word was read, `now` from behind it.
    pub(crate) fn look(&mut self, word: Word, asked: Duration, now: Duration, lease: Duration) -> bool {
        let silent = asked.saturating_sub(self.since);
        let is_same = word == self.word;
        // A member that looks rarely could meet the same beat of a later round.
        if !is_same || silent > lease * SILENT_LEASES * 4 {
            *self = Self::begin(word, now);
            return false;
        }
        silent >= lease * SILENT_LEASES
    }
}

#[cfg(test)]
mod tests;
