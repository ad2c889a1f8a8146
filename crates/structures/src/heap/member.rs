//! A program's membership of a heap: its slot, lease and epoch, and the eviction of silent members.
//!
//! Key type: [`Member`]. A member changes its word at least once per lease, between operations. It then moves
//! on to the heap's epoch if the program holds no pointers. Reclamation costs a reader nothing else: no
//! operation needs a message of its own.

use super::epoch::{EpochWord, MEMBERS_MAX, Watch, Word, may_advance, stamp};
use super::layout::{HEAD_WORDS, MAGIC, Root, STANDING_LEN, VERSION, epoch_at, member_at};
use super::record::Tag;
use super::{Clock, HeapOptions};
use crate::words;
use farmem_client::{Error, FarMemory};
use std::collections::BTreeMap;
use std::time::Duration;

/// Renewals per lease.
const RENEWALS: u32 = 8;
/// Attempts to take a slot while other programs join.
pub(super) const JOIN_TRIES: u32 = 64;

/// The heap's epoch and its members' words.
pub(crate) struct Standing {
    /// The epoch word of a heap that is not destroyed.
    pub(crate) word: EpochWord,
    pub(crate) words: Vec<Word>,
}

pub(crate) struct Member {
    pub(super) root: Root,
    pub(crate) slot: usize,
    pub(crate) word: Word,
    lease: Duration,
    clock: Clock,
    /// The time at which the last change of the word was requested.
    renewed: Duration,
    /// Number of writes so far.
    writes: u64,
    /// Observations of other members' words, by slot.
    watched: BTreeMap<usize, Watch>,
}

/// Reads the heap's epoch and its members' words in one READ, from a root that belongs to this heap and is
/// not destroyed.
///
/// # Errors
/// [`Error::Missing`] when the heap was destroyed, or other data lies at its root.
fn standing(memory: &mut (impl FarMemory + ?Sized), root: Root) -> Result<Standing, Error> {
    let mut bytes = [0; STANDING_LEN];
    memory.read(root.base, &mut bytes)?;
    let all = words(&bytes);
    let (head, members) = all.split_at(HEAD_WORDS);
    let [magic, version, _lease, identity, epoch] = head else { unreachable!("so many words come first") };
    if (*magic, *version, *identity) != (MAGIC, VERSION, root.identity) {
        return Err(root.gone());
    }
    let broken = Error::Broken { addr: root.base, what: "a heap's root" };
    let word = EpochWord::parse(*epoch).ok_or(broken)?;
    if word.is_destroyed() {
        return Err(root.gone());
    }
    Ok(Standing { word, words: members.iter().map(|&word| Word(word)).collect() })
}

impl Member {
    /// Takes a slot of this root's heap, then checks that the heap still exists ([`super::closing`] has the
    /// argument).
    ///
    /// A program that comes after the destruction writes nothing, because the READ of the slot's word
    /// identifies the root. One race remains. Between that READ and the compare-and-swap of the slot's word,
    /// the root may be freed and given to another structure of the domain, with an equal word there, such as
    /// 0. The following check then finds no heap, and the old word is restored.
    ///
    /// # Errors
    /// [`Error::Missing`] when the heap was destroyed; [`Error::Full`].
    pub(crate) fn join(
        memory: &mut (impl FarMemory + ?Sized),
        root: Root,
        options: &HeapOptions,
    ) -> Result<Self, Error> {
        let mut member = Self {
            root,
            slot: 0,
            word: Word::default(),
            lease: options.lease,
            clock: options.clock.clone(),
            renewed: options.clock.now(),
            writes: 0,
            watched: BTreeMap::new(),
        };
        for _ in 0..JOIN_TRIES {
            let asked = member.clock.now();
            let standing = member.standing(memory)?;
            let Some(slot) = standing.words.iter().position(|word| word.is_free()) else {
                member.evict_silent(memory, &standing, asked)?;
                continue;
            };
            let (free, taken) = (standing.words[slot], standing.words[slot].joined(standing.word.epoch()));
            member.renewed = member.clock.now();
            let at = member_at(root.base, slot);
            if memory.compare_swap(at, free.0, taken.0)? != free.0 {
                continue;
            }
            (member.slot, member.word) = (slot, taken);
            // The epoch may have advanced by more than one before the slot was taken. Nothing was read yet,
            // so moving on loses nothing.
            let stands = member.catch_up(memory);
            if matches!(stands, Err(Error::Missing { .. })) {
                // Restores the word, since the memory may belong to another structure by now. If this fails,
                // no program uses the word.
                let _as_it_was = memory.compare_swap(at, member.word.0, free.0);
            }
            return stands.map(|()| member);
        }
        Err(Error::Full { what: format!("the list of programs that have a heap open, {MEMBERS_MAX},") })
    }

    /// Reads the heap's epoch and its members' words; see [`standing`].
    pub(crate) fn standing(&self, memory: &mut (impl FarMemory + ?Sized)) -> Result<Standing, Error> {
        standing(memory, self.root)
    }

    /// Moves on until the heap is open in the member's epoch, as seen after the member stood there.
    fn catch_up(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        for _ in 0..JOIN_TRIES {
            let word = self.standing(memory)?.word;
            if !word.is_open() {
                self.reopen(memory, word)?;
                continue;
            }
            if word.epoch() == self.word.epoch() {
                return Ok(());
            }
            if !self.change(memory, word.epoch())? {
                break;
            }
        }
        Err(Error::Contended { what: "the epoch of the heap".into(), tries: JOIN_TRIES })
    }

    /// Releases the slot.
    pub(crate) fn leave(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        memory.compare_swap(member_at(self.root.base, self.slot), self.word.0, self.word.left().0).map(|_| ())
    }

    pub(crate) const fn generation(&self) -> u16 {
        self.word.generation()
    }

    /// Returns the epoch in which the member stands.
    pub(crate) const fn epoch(&self) -> u32 {
        self.word.epoch()
    }

    /// Returns the stamp of memory that the member frees now.
    pub(crate) const fn stamp(&self) -> u32 {
        stamp(self.epoch())
    }

    /// Returns a tag that no other write has; `None` when this member has used all of its tags and must join
    /// again.
    pub(crate) fn tag(&mut self) -> Option<Tag> {
        self.writes += 1;
        (self.writes <= Tag::COUNT_MAX).then(|| Tag::new(self.slot, self.generation(), self.writes))
    }

    /// Returns true while no other member can have evicted this one.
    pub(crate) fn holds(&self) -> bool {
        self.clock.now().saturating_sub(self.renewed) < self.lease
    }

    /// Returns true when it is time to change the word.
    pub(crate) fn is_due(&self) -> bool {
        self.clock.now().saturating_sub(self.renewed) >= self.lease / RENEWALS
    }

    /// Renews the lease, standing in `epoch`. Returns false when the member was evicted.
    fn change(&mut self, memory: &mut (impl FarMemory + ?Sized), epoch: u32) -> Result<bool, Error> {
        let (asked, next) = (self.clock.now(), self.word.moved(epoch));
        let at = member_at(self.root.base, self.slot);
        let seen = memory.compare_swap(at, self.word.0, next.0)?;
        // The word is `next` already if an earlier change was executed but its reply was lost.
        if seen != self.word.0 && seen != next.0 {
            return Ok(false);
        }
        self.word = next;
        self.renewed = asked;
        Ok(true)
    }

    /// Renews the lease. Returns false when the member was evicted. With `moves` the member moves to the
    /// heap's epoch; it must hold no pointers then.
    pub(crate) fn renew(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        moves: bool,
    ) -> Result<bool, Error> {
        let epoch = if moves { self.standing(memory)?.word.epoch() } else { self.epoch() };
        self.change(memory, epoch)
    }

    /// Advances the heap's epoch if all members stand in it, and evicts silent members. Returns false when
    /// this member was evicted.
    pub(crate) fn advance(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        moves: bool,
    ) -> Result<bool, Error> {
        let asked = self.clock.now();
        let seen = self.standing(memory)?;
        if seen.words[self.slot] != self.word {
            return Ok(false);
        }
        let epoch = seen.word.epoch();
        if self.epoch() != epoch {
            // This member must have stood in the epoch before it read the others' words, because they are not
            // all read at one moment.
            return Ok(!moves || self.change(memory, epoch)?);
        }
        if may_advance(epoch, &seen.words) {
            // A member that closes the heap meanwhile is not alone, and the heap is then open
            // ([`super::closing`]).
            let (was, next) = (seen.word.word(), EpochWord::open(epoch + 1).word());
            let moved = memory.compare_swap(epoch_at(self.root.base), was, next)? == was;
            return Ok(!moves || self.change(memory, if moved { epoch + 1 } else { epoch })?);
        }
        self.evict_silent(memory, &seen, asked)?;
        Ok(true)
    }

    /// Evicts silent members and returns the other members with their words; `None` when this member was
    /// evicted.
    pub(crate) fn others(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
    ) -> Result<Option<Vec<(usize, Word)>>, Error> {
        let asked = self.clock.now();
        let seen = self.standing(memory)?;
        if seen.words[self.slot] != self.word {
            return Ok(None);
        }
        self.evict_silent(memory, &seen, asked).map(Some)
    }

    /// Evicts the members whose words did not change for too long. Returns the other remaining members.
    fn evict_silent(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        seen: &Standing,
        asked: Duration,
    ) -> Result<Vec<(usize, Word)>, Error> {
        let mut left = Vec::new();
        for (slot, &word) in seen.words.iter().enumerate() {
            if !self.evict_if_silent(memory, slot, word, asked)? && !word.is_free() && !self.is_own(slot) {
                left.push((slot, word));
            }
        }
        Ok(left)
    }

    /// Returns true for the member's own slot.
    const fn is_own(&self, slot: usize) -> bool {
        slot == self.slot && !self.word.is_free()
    }

    fn evict_if_silent(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        slot: usize,
        word: Word,
        asked: Duration,
    ) -> Result<bool, Error> {
        if word.is_free() || self.is_own(slot) {
            self.watched.remove(&slot);
            return Ok(false);
        }
        let now = self.clock.now();
        let watch = self.watched.entry(slot).or_insert_with(|| Watch::begin(word, now));
        if !watch.look(word, asked, now, self.lease) {
            return Ok(false);
        }
        self.watched.remove(&slot);
        Ok(memory.compare_swap(member_at(self.root.base, slot), word.0, word.left().0)? == word.0)
    }

    /// Returns true when the member of this slot and generation is gone: it left or was evicted. This call
    /// evicts the member when it is time.
    pub(crate) fn is_gone(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        (slot, generation): (usize, u16),
    ) -> Result<bool, Error> {
        if slot >= MEMBERS_MAX {
            return Ok(true);
        }
        let asked = self.clock.now();
        let mut bytes = [0; 8];
        memory.read(member_at(self.root.base, slot), &mut bytes)?;
        let word = Word(u64::from_le_bytes(bytes));
        let is_other = word.is_free() || word.generation() != generation;
        Ok(is_other || self.evict_if_silent(memory, slot, word, asked)?)
    }
}
