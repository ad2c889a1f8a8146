//! The rules of epoch-based reclamation, without far memory: which members may hold pointers, and when memory
//! may be reused.
//!
//! The heap has an epoch, a number that only grows. Each *member*, a program that has the heap open, has a
//! word with the epoch in which it *stands*: the member holds no pointer that it read in an earlier epoch. A
//! member moves its word between two operations. The heap's epoch advances from n to n + 1 when all members
//! stand in n. So while a member stands in n, the heap is in n or n + 1, and
//!
//! - memory that a member frees while it stands in n may be held by members that stand in n + 1 at most;
//! - when the heap is in n + 3 all members have left n + 1, and the memory is reused.
//!
//! A word that does not change for [`SILENT_LEASES`] leases is reset by another member, and its member is
//! *evicted*. A dead program therefore blocks no other. The evicted member learns of it at its next change of
//! the word. A member uses nothing that it read more than one lease after its last change.

use std::time::Duration;

/// Slots for members.
pub(crate) const MEMBERS_MAX: usize = 64;
/// Leases without a change of its word after which a member is evicted. A member stops using its reads after
/// one.
pub(crate) const SILENT_LEASES: u32 = 3;
/// Epochs from a free to the next use.
pub(crate) const EPOCHS_TO_REUSE: u32 = 3;

/// A member's word: generation of the slot (16 bits), epoch (32), beat (16). Epoch 0 marks a free slot.
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

    /// Returns the word of a member that takes this free slot and stands in `epoch`.
    pub(crate) const fn joined(self, epoch: u32) -> Self {
        Self((self.generation().wrapping_add(1) as u64) << 48 | (epoch as u64) << 16)
    }

    /// Returns the word after a renewal that stands in `epoch`.
    pub(crate) const fn moved(self, epoch: u32) -> Self {
        Self(self.0 & 0xffff << 48 | (epoch as u64) << 16 | self.0.wrapping_add(1) & 0xffff)
    }

    /// Returns the word after the member has left.
    pub(crate) const fn left(self) -> Self {
        Self(self.0 & 0xffff << 48)
    }
}

/// The heap's epoch word: the epoch (32 bits); generation (16) and slot (14) of the member that closes or has
/// destroyed the heap; and two top bits that tell which of the two. Neither an epoch nor such a word is ever
/// 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct EpochWord(u64);

const CLOSING: u64 = 1 << 62;
const DESTROYED: u64 = 1 << 63;

impl EpochWord {
    /// Returns the word of an open heap.
    pub(crate) const fn open(epoch: u32) -> Self {
        Self(epoch as u64)
    }

    /// Returns the word by which the member in `slot` closes the heap, in the same epoch.
    pub(crate) const fn closing(self, slot: usize, generation: u16) -> Self {
        Self(CLOSING | (slot as u64) << 48 | (generation as u64) << 32 | self.epoch() as u64)
    }

    /// Returns the word by which the closing member marks the heap destroyed.
    pub(crate) const fn destroyed(self) -> Self {
        Self(self.0 & !CLOSING | DESTROYED)
    }

    /// Parses a word; `None` for an invalid one.
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

/// Returns the stamp of memory freed by a member that stands in `own`: the epoch in which the memory may be
/// reused.
pub(crate) const fn stamp(own: u32) -> u32 {
    own.saturating_add(EPOCHS_TO_REUSE)
}

/// Returns true when the epoch may advance from `epoch`: all members stand in it. The caller stood in `epoch`
/// before it read the others' words.
pub(crate) fn may_advance(epoch: u32, words: &[Word]) -> bool {
    epoch < u32::MAX && words.iter().all(|word| word.is_free() || word.epoch() == epoch)
}

/// The last observation of another member's word, and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    word: Word,
    since: Duration,
}

impl Watch {
    pub(crate) const fn begin(word: Word, now: Duration) -> Self {
        Self { word, since: now }
    }

    /// Observes the word again. Returns true when the member is to be evicted. `asked` is a time before the
    /// word was read, `now` one after it.
    pub(crate) fn look(&mut self, word: Word, asked: Duration, now: Duration, lease: Duration) -> bool {
        let silent = asked.saturating_sub(self.since);
        let is_same = word == self.word;
        // A rare observer could see the same beat of a later round.
        if !is_same || silent > lease * SILENT_LEASES * 4 {
            *self = Self::begin(word, now);
            return false;
        }
        silent >= lease * SILENT_LEASES
    }
}

#[cfg(test)]
mod tests;
