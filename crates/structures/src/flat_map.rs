//! An open-addressing hash map in far memory: keys of eight bytes, values of one length, and one READ per
//! look-up.
//!
//! Key type: [`FlatMap`], the description of a map's location and layout. Clones describe the same map, and
//! other clients of the domain read the map beside its writer. The design is PD3's hash map (8.1): each
//! record carries the number of the change that wrote it (PROTOCOL 19.2).
//!
//! ```text
//!   home of a key = hash modulo the slots; the record lies in one of the WINDOW slots from there on, and one READ brings them all
//!
//!   slot:   | version | key | value ... |     a power of two of bytes, 32 to 256; version 0: the slot is empty
//! ```
//!
//! One packet writes a slot and one packet reads it, so a reader sees the slot before or after a write. When
//! the window is full, records move to later slots of their own windows, as in hopscotch hashing. A record is
//! written to its new slot before its old slot is reused. A writer that dies in between leaves the record in
//! both slots. The record with the later version counts, and a removal empties both.
//!
//! A window may arrive in several packets, so a reader beside an insert may miss a record in the middle of a
//! move. For a DPU this costs only speed. The program's own threads must order look-ups of a key against
//! inserts that may move it.
//!
//! A prefetcher looks up several keys by one traversal ([`LookUp::op_for`]), which returns their records
//! without the windows.
//!
//! The map does not grow, does not order several writers, and supports only keys of eight bytes.

mod slot_programs;

use crate::form::{Form, Shard, allocations, within};
use farmem_client::{Answer, Client, Completed, Error, FarMemory, LookUp, LookedUp, Op, Vma};
use farmem_wire::{NodeId, VirtAddr};
use siphasher::sip::SipHasher13;
use slot_programs::SlotPrograms;
use std::hash::Hasher as _;
use std::ops::Range;
use std::sync::Arc;

/// Slots in which a key's record may lie.
pub const WINDOW: usize = 16;
/// Largest value, in bytes: a slot fits into one packet at the smallest path MTU.
pub const VALUE_LEN_MAX: usize = SLOT_LEN_MAX - HEAD;
/// Slots per hundred records: with fewer, windows of [`WINDOW`] slots fill up.
const SLOTS_PERCENT: u64 = 200;
/// Slots searched for an empty one.
const REACH: usize = 128;
/// Bytes before a value in a slot.
const HEAD: usize = 16;
const SLOT_LEN_MIN: usize = 32;
const SLOT_LEN_MAX: usize = 256;
/// Bound on the homes of a shard in a received form: the bytes of all shards' slots fit into a word.
const HOMES_MAX: u64 = 1 << 40;
/// Bytes of a WRITE of [`FlatMap::load`].
const LOAD_LEN: usize = 1 << 20;

/// A key.
pub type Key = [u8; 8];

/// The location and layout of a map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlatMap {
    /// One shard on each memory node; homes are spread over the shards.
    shards: Vec<Vma>,
    /// Slots of a shard that are homes; [`REACH`] more slots follow.
    homes: usize,
    value_len: usize,
    slot_len: usize,
    secret: [u64; 2],
    programs: Arc<SlotPrograms>,
}

/// A record in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found<'a> {
    /// The number of the change that wrote the record.
    pub version: u64,
    /// The record's value.
    pub value: &'a [u8],
}

/// Returns version and key of the record in a slot; `None` for an empty slot.
fn record(slot: &[u8]) -> Option<(u64, Key)> {
    let version = u64::from_le_bytes(*slot.first_chunk().expect("a slot has a version"));
    (version != 0).then(|| (version, slot[8..HEAD].try_into().expect("8 bytes")))
}

/// Plans how to make room for a record. Returns the moves from slot to slot, in order, and the slot that is
/// then empty; `None` when nothing in reach can move. `home_of` returns the home of a slot's record, or
/// `None` for an empty slot.
fn make_room(
    home: usize,
    end: usize,
    home_of: impl Fn(usize) -> Option<usize>,
) -> Option<(Vec<(usize, usize)>, usize)> {
    let mut hole = (home..end).find(|&at| home_of(at).is_none())?;
    let mut moves = Vec::new();
    while hole >= home + WINDOW {
        let may_move = |at: &usize| home_of(*at).is_some_and(|its| its + WINDOW > hole);
        let from = (hole + 1 - WINDOW..hole).find(may_move)?;
        moves.push((from, hole));
        hole = from;
    }
    Some((moves, hole))
}

impl FlatMap {
    /// Creates an empty map for `records` records with values of `value_len` bytes, spread over all memory
    /// nodes. Keys come from clients, so their positions depend on `secret`.
    ///
    /// # Errors
    /// [`Error::Count`] for values of zero bytes or of more than [`VALUE_LEN_MAX`]; [`Error::Refused`] when
    /// there is no room.
    pub fn create(
        memory: &mut (impl FarMemory + ?Sized),
        records: u64,
        value_len: usize,
        secret: [u64; 2],
    ) -> Result<Self, Error> {
        if !(1..=VALUE_LEN_MAX).contains(&value_len) {
            let (what, least) = ("bytes of a flat map's values", 1);
            return Err(Error::Count { what, have: value_len, least, most: VALUE_LEN_MAX });
        }
        let nodes: Vec<NodeId> = memory.nodes().iter().map(|node| NodeId(node.node)).collect();
        let slots = (records.max(1) * SLOTS_PERCENT).div_ceil(100 * nodes.len() as u64);
        let homes = usize::try_from(slots).expect("farmem runs on 64-bit machines");
        let slot_len = (HEAD + value_len).next_power_of_two().max(SLOT_LEN_MIN);
        let len = (homes + REACH) * slot_len;
        let mut shards = Vec::new();
        for node in nodes {
            match memory.allocate_on(len as u64, node) {
                Ok(vma) => shards.push(vma),
                Err(error) => {
                    // Memory that cannot be freed now is freed with its domain.
                    shards.iter().for_each(|shard: &Vma| drop(memory.free(shard.base)));
                    return Err(error);
                }
            }
        }
        let programs = Arc::new(SlotPrograms::of(memory, slot_len, value_len));
        Ok(Self { shards, homes, value_len, slot_len, secret, programs })
    }

    /// Returns the form from which another process opens this map ([`crate::form`]).
    #[must_use]
    pub fn form(&self) -> Form {
        let shards = self.shards.iter().copied().map(Shard::from).collect();
        let (homes, value_len) = (self.homes as u64, self.value_len as u64);
        Form::FlatMap { shards, homes, value_len, secret: self.secret }
    }

    /// Opens the map that a received form describes.
    pub(crate) fn of(
        memory: &(impl FarMemory + ?Sized),
        shards: &[Shard],
        (homes, value_len): (u64, u64),
        secret: [u64; 2],
    ) -> Result<Self, Error> {
        let value_len = within("value_len", value_len, 1, VALUE_LEN_MAX as u64)?;
        let slot_len = (HEAD + value_len).next_power_of_two().max(SLOT_LEN_MIN);
        let homes = within("homes", homes, 1, HOMES_MAX)?;
        let shards = allocations(shards, ((homes + REACH) * slot_len) as u64, memory)?;
        let programs = Arc::new(SlotPrograms::of(memory, slot_len, value_len));
        Ok(Self { shards, homes, value_len, slot_len, secret, programs })
    }

    /// Frees the map's memory. No reader may use the map any more.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.shards.iter().try_for_each(|shard| memory.free(shard.base))
    }

    /// Fills an empty map with records of one change, a megabyte at a time.
    ///
    /// # Errors
    /// [`Error::Full`] when no slot is free for a record; [`Error`] when far memory does not answer.
    ///
    /// # Panics
    /// Panics when the version is 0 or a value has another length.
    pub fn load<'v>(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        version: u64,
        records: impl Iterator<Item = (Key, &'v [u8])>,
    ) -> Result<(), Error> {
        let len = (self.homes + REACH) * self.slot_len;
        let mut images = vec![vec![0_u8; len]; self.shards.len()];
        for (key, value) in records {
            let (shard, home) = self.home(&key);
            let image = &mut images[shard];
            let end = home + REACH;
            let there = (home..home + WINDOW)
                .find(|&at| record(self.slot(image, at)).is_some_and(|(_, found)| found == key));
            let at = match there {
                Some(at) => at,
                None => {
                    let (moves, hole) = make_room(home, end, |at| {
                        record(self.slot(image, at)).map(|(_, key)| self.home(&key).1)
                    })
                    .ok_or_else(|| self.is_full())?;
                    for (from, to) in moves {
                        let from = from * self.slot_len;
                        image.copy_within(from..from + self.slot_len, to * self.slot_len);
                    }
                    hole
                }
            };
            let slot = self.emit(&key, version, value);
            image[at * self.slot_len..][..self.slot_len].copy_from_slice(&slot);
        }
        for (shard, image) in self.shards.iter().zip(&images) {
            for (at, piece) in image.chunks(LOAD_LEN).enumerate() {
                memory.write(VirtAddr(shard.base.0 + (at * LOAD_LEN) as u64), piece)?;
            }
        }
        Ok(())
    }

    /// Writes a new record, or replaces the record of the same key. Only one writer may run at a time.
    ///
    /// # Errors
    /// [`Error::Full`] when no slot is free for the record; [`Error`] when far memory does not answer.
    ///
    /// # Panics
    /// Panics when the version is 0 or the value has another length.
    pub fn insert(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        key: &Key,
        version: u64,
        value: &[u8],
    ) -> Result<(), Error> {
        let new = self.emit(key, version, value);
        let (shard, home) = self.home(key);
        let mut slots = memory.buffer(WINDOW * self.slot_len);
        memory.read(self.addr(shard, home), &mut slots)?;
        let holds = |slots: &[u8], at: usize| record(self.slot(slots, at));
        let there: Vec<usize> =
            (0..WINDOW).filter(|&at| holds(&slots, at).is_some_and(|(_, found)| found == *key)).collect();
        let to = if let [first, rest @ ..] = &there[..] {
            // A second copy was left by a writer that died in the middle of a move.
            for &at in rest {
                memory.write(self.addr(shard, home + at), &vec![0; self.slot_len])?;
            }
            *first
        } else {
            slots.resize(REACH * self.slot_len, 0);
            memory.read(self.addr(shard, home), &mut slots)?;
            // Positions count from this home. A record with an earlier home is near its window's end and does
            // not move.
            let from_here = |key: Key| self.home(&key).1.saturating_sub(home);
            let moved = make_room(0, REACH, |at| holds(&slots, at).map(|(_, key)| from_here(key)));
            let (moves, hole) = moved.ok_or_else(|| self.is_full())?;
            for (from, to) in moves {
                memory.write(self.addr(shard, home + to), self.slot(&slots, from))?;
            }
            hole
        };
        memory.write(self.addr(shard, home + to), &new)?;
        memory.recycle(slots);
        Ok(())
    }

    /// Reads the record of a key: puts its value at the front of `into` and returns the change that wrote it.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn get(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        key: &Key,
        into: &mut Vec<u8>,
    ) -> Result<Option<u64>, Error> {
        let mut slots = memory.buffer(WINDOW * self.slot_len);
        let (shard, home) = self.home(key);
        memory.read(self.addr(shard, home), &mut slots)?;
        let found = self.found(key, &slots).map(|found| {
            into.clear();
            into.extend_from_slice(found.value);
            found.version
        });
        memory.recycle(slots);
        Ok(found)
    }

    /// Removes the record of a key. Returns false when there is none.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn remove(&self, memory: &mut (impl FarMemory + ?Sized), key: &Key) -> Result<bool, Error> {
        let mut slots = memory.buffer(WINDOW * self.slot_len);
        let (shard, home) = self.home(key);
        memory.read(self.addr(shard, home), &mut slots)?;
        let mut was_there = false;
        for at in 0..WINDOW {
            if record(self.slot(&slots, at)).is_some_and(|(_, found)| found == *key) {
                memory.write(self.addr(shard, home + at), &vec![0; self.slot_len])?;
                was_there = true;
            }
        }
        memory.recycle(slots);
        Ok(was_there)
    }

    /// Returns the READ that brings the record of a key, if there is one, into `buf`.
    #[must_use]
    pub fn read_op(&self, key: &Key, mut buf: Vec<u8>) -> Op {
        let (shard, home) = self.home(key);
        buf.resize(WINDOW * self.slot_len, 0);
        Op::Read { addr: self.addr(shard, home), buf }
    }

    /// Finds the record of a key in the bytes of its READ.
    #[must_use]
    pub fn found<'s>(&self, key: &Key, slots: &'s [u8]) -> Option<Found<'s>> {
        self.latest(key, slots).map(|(version, value)| Found { version, value: &slots[value] })
    }

    /// Returns the version of a key's record in the bytes of its READ, and the range of its value.
    fn latest(&self, key: &Key, slots: &[u8]) -> Option<(u64, Range<usize>)> {
        let each = slots.chunks_exact(self.slot_len).take(WINDOW).enumerate();
        let its = each.filter_map(|(at, slot)| match record(slot) {
            Some((version, of)) if of == *key => Some((version, at * self.slot_len + HEAD)),
            _ => None,
        });
        let latest = its.max_by_key(|(version, _)| *version);
        latest.map(|(version, value)| (version, value..value + self.value_len))
    }

    /// Returns the number of slots, counted from 0 over all memory nodes, for callers that read a whole map
    /// or remember a record's slot.
    #[must_use]
    pub const fn slots(&self) -> u64 {
        self.shards.len() as u64 * self.shard_slots()
    }

    /// Returns the bytes of a slot.
    #[must_use]
    pub const fn slot_len(&self) -> usize {
        self.slot_len
    }

    /// Returns the first slot that may hold the record of a key.
    #[must_use]
    pub fn home_slot(&self, key: &Key) -> u64 {
        let (shard, home) = self.home(key);
        shard as u64 * self.shard_slots() + home as u64
    }

    /// Returns the READ that brings `count` slots into `buf`, fewer where the memory node of the first slot
    /// has no more; `None` when there is no such slot.
    #[must_use]
    pub fn slots_op(&self, first: u64, count: usize, mut buf: Vec<u8>) -> Option<Op> {
        let shard = usize::try_from(first / self.shard_slots()).ok().filter(|&at| at < self.shards.len())?;
        let slot = usize::try_from(first % self.shard_slots()).ok()?;
        let count = count.min(self.homes + REACH - slot);
        buf.resize(count * self.slot_len, 0);
        Some(Op::Read { addr: self.addr(shard, slot), buf })
    }

    /// Returns the records in the bytes of such a READ, each with its slot and key. A record that moves
    /// meanwhile may appear twice or not at all.
    pub fn records<'s>(&self, slots: &'s [u8]) -> impl Iterator<Item = (usize, Key, Found<'s>)> {
        slots.chunks_exact(self.slot_len).enumerate().filter_map(|(at, slot)| {
            let (version, key) = record(slot)?;
            Some((at, key, Found { version, value: &slot[HEAD..HEAD + self.value_len] }))
        })
    }

    const fn shard_slots(&self) -> u64 {
        (self.homes + REACH) as u64
    }

    /// Returns the shard of a key, and the first slot there that may hold its record.
    fn home(&self, key: &Key) -> (usize, usize) {
        let mut hasher = SipHasher13::new_with_keys(self.secret[0], self.secret[1]);
        hasher.write(key);
        let all = (self.homes * self.shards.len()) as u128;
        let at = (u128::from(hasher.finish()) * all) >> 64;
        let at = usize::try_from(at).expect("a slot of the map");
        (at / self.homes, at % self.homes)
    }

    fn addr(&self, shard: usize, slot: usize) -> VirtAddr {
        VirtAddr(self.shards[shard].base.0 + (slot * self.slot_len) as u64)
    }

    fn slot<'s>(&self, slots: &'s [u8], at: usize) -> &'s [u8] {
        &slots[at * self.slot_len..][..self.slot_len]
    }

    fn emit(&self, key: &Key, version: u64, value: &[u8]) -> Vec<u8> {
        assert!(version != 0, "changes are numbered from 1 (PROTOCOL 19.1)");
        assert_eq!(value.len(), self.value_len, "all values of a flat map have one length");
        let mut slot = Vec::with_capacity(self.slot_len);
        slot.extend_from_slice(&version.to_le_bytes());
        slot.extend_from_slice(key);
        slot.extend_from_slice(value);
        slot.resize(self.slot_len, 0);
        slot
    }

    fn is_full(&self) -> Error {
        let slots = self.homes * self.shards.len();
        Error::Full { what: format!("the window of a key in a flat map of {slots} slots") }
    }
}

impl LookUp for FlatMap {
    /// Does nothing: records are whole, and their versions identify them.
    fn begin(&mut self, _: &mut Client) -> Result<(), Error> {
        Ok(())
    }

    fn op(&self, key: &[u8], scratch: Vec<u8>) -> Option<Op> {
        Some(self.read_op(key.try_into().ok()?, scratch))
    }

    fn together(&self) -> usize {
        self.programs.keys_max()
    }

    fn place(&self, key: &[u8]) -> Option<usize> {
        let key = key.try_into().ok()?;
        // A single shard has all keys, whatever their hash.
        Some(if self.shards.len() == 1 { 0 } else { self.home(key).0 })
    }

    fn op_for(&self, keys: &mut dyn Iterator<Item = &[u8]>, scratch: Vec<u8>) -> Option<Op> {
        if self.programs.keys_max() == 1 {
            return self.op(keys.next()?, scratch);
        }
        self.programs.op(self, keys.filter_map(|key| key.try_into().ok()), scratch)
    }

    fn in_place(&self, at: usize, key: &[u8], completed: &Completed) -> Option<(u64, Range<usize>)> {
        let key = key.try_into().ok()?;
        match &completed.result {
            Ok(Answer::Traversed(end)) if end.returned => {
                self.programs.found(at, &completed.buf, self.value_len)
            }
            Ok(Answer::Done { .. }) => self.latest(key, &completed.buf),
            Ok(_) | Err(_) => None,
        }
    }

    fn looked_up(&self, at: usize, key: &[u8], completed: &Completed, into: &mut Vec<u8>) -> LookedUp {
        let has_come = match &completed.result {
            Ok(Answer::Traversed(end)) => end.returned,
            Ok(Answer::Done { .. }) => true,
            Err(_) => false,
        };
        match self.in_place(at, key, completed) {
            Some((version, value)) => {
                into.extend_from_slice(&version.to_le_bytes());
                into.extend_from_slice(&completed.buf[value]);
                LookedUp::Value
            }
            None if has_come || key.len() != size_of::<Key>() => LookedUp::Absent,
            None => LookedUp::Elsewhere,
        }
    }

    fn end(&mut self, _: &mut Client) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{WINDOW, make_room};

    /// Records move to later slots of their own windows until a slot of the wanted window is empty. If no
    /// record can move, there is no room.
    #[test]
    fn records_move_within_their_windows() {
        let at_home = |at: usize| (at < 40).then_some(at);
        assert_eq!(make_room(5, 64, at_home), Some((vec![(25, 40), (10, 25)], 10)));
        assert_eq!(make_room(40, 64, at_home), Some((vec![], 40)));
        let at_the_end = |at: usize| (at < 40).then(|| at.saturating_sub(WINDOW - 1));
        assert_eq!(make_room(5, 64, at_the_end), None);
        assert_eq!(make_room(5, 40, at_home), None);
    }
}
