//! A heap of records in far memory that programs on any host of a rack open by its name.
//!
//! Key types: [`Heap`], a program's handle of a heap; [`Record`], an allocation in it. A record has a header
//! and 1 byte to 128 KiB, and its address alone identifies it. [`Heap::put`] creates a record, [`Heap::read`]
//! reads it in one round trip and detects a concurrent writer, [`Heap::write`] overwrites it in place.
//! [`Heap::free`] frees a record that any program created.
//!
//! Memory that other programs may still read is not reused. A program that has a heap open holds a *lease*
//! and with each renewal states that it holds no older pointers (except during [`Heap::pin`]). A dead program
//! delays the others for a few leases at most. Roots are names for records, by which programs find structures
//! ([`Heap::root`]).
//!
//! Reasons and rejected alternatives: [the decision](../../../docs/decisions/2026-11-23-far-heap.md).
//!
//! # Limits
//!
//! Freed memory serves records of the same class, and returns to the rack only by [`Heap::destroy`]. Memory
//! nodes do not check leases. An evicted member whose WRITE stays in flight for more than two leases
//! ([`HeapOptions::lease`]) could therefore write into reused memory.

use crate::words;
use farmem_client::{Client, Error, FarMemory, NodeId};
use farmem_wire::VirtAddr;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

mod access;
mod arena;
mod closing;
mod epoch;
mod layout;
mod lines;
mod member;
mod record;
mod room;
mod roots;

pub use access::{LOCK_TRIES, READ_TRIES};
pub use layout::{CHUNKS_MAX, ROOTS_MAX};
#[cfg(test)]
pub(crate) use lines::LINES_MAX;
pub(crate) use lines::{copy_lines, copy_window, lines_in};
pub(crate) use record::{Decoded, Header, decode};
pub use record::{HEADER_LEN, LINE_LEN, RECORD_LEN_MAX, Record, Tag};
pub use room::FREED_PROGRAM;
pub(crate) use room::{node_of, room_from};
pub use roots::ROOT_NAME_MAX;

use arena::Arena;
use epoch::EpochWord;
use layout::{IDENTITY_AT, LEASE_AT, MAGIC, ROOT_LEN, Root, VERSION, VERSION_AT, epoch_at};
use member::Member;
use record::{Class, encode};

/// Bound on the freed records not yet marked in far memory. A dying program loses at most these, besides the
/// record it was creating.
pub const UNMARKED_MAX: usize = 32;
/// The shortest lease: renewals are a round trip.
pub const LEASE_MIN: Duration = Duration::from_millis(10);

/// The time source of a heap: a clock that keeps running while the machine is suspended.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// Returns the machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self::new(|| Duration::from_nanos(farmem_client::Clock::boot_time_ns()))
    }

    /// Returns a clock that calls `now`, which must never go back.
    #[must_use]
    pub fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    fn now(&self) -> Duration {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// The options of a heap.
#[derive(Clone, Debug)]
pub struct HeapOptions {
    /// The silence after which a program counts as dead; at least [`LEASE_MIN`]. The creator of the heap sets
    /// the lease.
    pub lease: Duration,
    /// The time source of this program.
    pub clock: Clock,
}

impl Default for HeapOptions {
    fn default() -> Self {
        Self { lease: Duration::from_secs(10), clock: Clock::system() }
    }
}

/// A program's handle of a heap.
pub struct Heap {
    name: String,
    base: VirtAddr,
    options: HeapOptions,
    member: Member,
    arena: Arena,
    /// Pins not yet released.
    pins: u32,
    /// True after an eviction, until the program joins again.
    is_evicted: bool,
    /// Index of the memory node that receives the next record.
    turn: usize,
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("name", &self.name).field("base", &self.base).finish_non_exhaustive()
    }
}

impl Heap {
    /// Creates a heap called `name` in the client's domain, and opens it.
    ///
    /// # Errors
    /// [`Error::Exists`] when the heap exists; [`Error::Refused`] for an invalid name, or when there is no
    /// room.
    ///
    /// # Panics
    /// Panics when the lease is shorter than [`LEASE_MIN`].
    pub fn create(client: &mut Client, name: &str, options: HeapOptions) -> Result<Self, Error> {
        assert!(options.lease >= LEASE_MIN, "a heap's lease is at least {LEASE_MIN:?}");
        let base = client.create_named(name, ROOT_LEN)?.base;
        let exists = || Error::Exists { what: format!("a heap called {name:?}") };
        if room::read_word(client, base)? != 0 {
            return Err(exists());
        }
        // Each word is written by compare-and-swap: a program that creates the heap concurrently finds the
        // same words, or the finished heap.
        client.compare_swap(epoch_at(base), 0, EpochWord::open(1).word())?;
        client.compare_swap(VirtAddr(base.0 + IDENTITY_AT), 0, identity())?;
        let lease = u64::try_from(options.lease.as_nanos()).unwrap_or(u64::MAX);
        client.compare_swap(VirtAddr(base.0 + LEASE_AT), 0, lease)?;
        client.compare_swap(VirtAddr(base.0 + VERSION_AT), 0, VERSION)?;
        if client.compare_swap(base, 0, MAGIC)? != 0 {
            return Err(exists());
        }
        Self::open(client, name, options)
    }

    /// Opens the heap called `name`. The heap keeps the lease of its creation.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is no such heap, or another program is destroying it; [`Error::Broken`]
    /// when the memory of that name is no heap, or has another version; [`Error::Full`] when 64 programs have
    /// the heap open.
    pub fn open(client: &mut Client, name: &str, options: HeapOptions) -> Result<Self, Error> {
        let named = match client.open_named(name) {
            Err(Error::Missing { .. }) => {
                return Err(Error::Missing { what: format!("heap called {name:?}") });
            }
            other => other?,
        };
        let base = named.base;
        let mut bytes = [0; 32];
        client.read(base, &mut bytes)?;
        let words = words(&bytes);
        if words[0] != MAGIC || words[1] != VERSION || named.length != ROOT_LEN {
            return Err(Error::Broken { addr: base, what: "a heap of this version" });
        }
        let options = HeapOptions { lease: Duration::from_nanos(words[2]), ..options };
        let member = Member::join(client, Root { base, identity: words[3] }, &options)?;
        let arena = Arena::default();
        Ok(Self { name: name.into(), base, options, member, arena, pins: 0, is_evicted: false, turn: 0 })
    }

    /// Leaves the heap in order: no freed record is lost, and other programs can use this program's chunks at
    /// once. Dropping a heap without this call leaves it like a dead program does.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn close(mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.leave(memory)
    }

    /// Works as [`Heap::close`], for a handle that is kept. The next operation joins again.
    pub(crate) fn leave(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.enter(memory)?;
        self.mark(memory)?;
        self.member.leave(memory)?;
        self.mark_evicted();
        Ok(())
    }

    /// Frees the heap with all its records, and its name. No other program may have the heap open. Tables and
    /// trees in the heap own separate memory; destroy them first.
    ///
    /// A program that opens the heap at the same moment either prevents the destruction or learns that the
    /// heap is gone. The same holds for a program that was evicted for silence ([`Heap::check_exclusive`]) and
    /// continues. Its next operation fails and changes nothing, unless the program paused inside one for more
    /// than two leases.
    ///
    /// # Errors
    /// [`Error::Locked`] when another program has the heap open. Nothing is freed then, and this program
    /// leaves the heap as by [`Heap::close`]. A dead program has the heap open until its eviction, so call
    /// [`Heap::check_exclusive`] first until it succeeds.
    ///
    /// [`Error`] when far memory does not answer; nothing is freed then either. [`Error`] when the control
    /// plane does not answer. No program can open the heap then, and memory that could not be freed goes with
    /// the domain. [`Client::unlink_named`] removes a name that is left.
    pub fn destroy(mut self, client: &mut Client) -> Result<(), Error> {
        if let Err(error) = self.shut(client) {
            return self.close(client).and(Err(error));
        }
        // No later call can free what one of these leaves, so all are tried.
        let chunks = self.arena.rows.iter().filter(|row| row.base != 0);
        let freed = chunks.map(|row| client.free(VirtAddr(row.base))).fold(Ok(()), Result::and);
        let unlinked = client.unlink_named(&self.name);
        freed.and(unlinked)
    }

    /// Checks that no other program has the heap open. Call this before you free what is in the heap.
    ///
    /// A dead program has the heap open until its eviction, and this call evicts. This program must observe
    /// the silence for three leases ([`HeapOptions::lease`]), by two calls on one `Heap` that far apart, and
    /// no more than twelve leases apart. Repeated calls therefore report a dead program for three leases at
    /// most. A live program that is silent for so long counts as dead, too ([`Heap::keep`]).
    ///
    /// # Errors
    /// [`Error::Locked`] with a program that has the heap open; [`Error::LeaseExpired`] when this program was
    /// evicted meanwhile; [`Error`] when far memory does not answer.
    pub fn check_exclusive(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.enter(memory)?;
        self.check_no_other_program(memory)
    }

    fn check_no_other_program(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        let Some(others) = self.member.others(memory)? else { return Err(self.evicted()) };
        others.first().map_or(Ok(()), |(slot, word)| {
            let generation = word.generation();
            let holder = format!("the program in slot {slot}.{generation}, which has {} open", self.title());
            Err(self.held_by(holder))
        })
    }

    fn held_by(&self, holder: String) -> Error {
        Error::Locked { addr: self.base, holder, tries: 1 }
    }

    /// Returns the heap's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of freed records that a member may still read, as far as this program knows.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.arena.retired() + self.arena.unmarked.len()
    }

    /// Creates a record of `content` on any memory node: one round trip if a free block is at hand. `kind`
    /// belongs to the caller and is returned by each read.
    ///
    /// # Errors
    /// [`Error::Empty`]; [`Error::TooLong`] above [`RECORD_LEN_MAX`]; [`Error::Full`] when there is no room;
    /// [`Error`] when far memory does not answer. Then no program has the record, and its block is lost until
    /// this program leaves.
    pub fn put(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        kind: u8,
        content: &[u8],
    ) -> Result<Record, Error> {
        self.turn = (self.turn + 1) % memory.nodes().len().max(1);
        let nodes = memory.nodes();
        let node =
            nodes.get(self.turn).ok_or_else(|| Error::Full { what: "a rack without memory nodes".into() })?;
        let node = NodeId(node.node);
        self.put_on(memory, node, kind, content)
    }

    /// Works as [`Heap::put`], on the memory node `node`.
    ///
    /// # Errors
    /// As [`Heap::put`].
    pub fn put_on(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        node: NodeId,
        kind: u8,
        content: &[u8],
    ) -> Result<Record, Error> {
        self.enter(memory)?;
        let fresh = self.prepare(memory, node, kind, content)?;
        memory.write(fresh.record.at, &fresh.image)?;
        self.confirm_membership(memory)?;
        Ok(fresh.record)
    }

    /// Prepares a record without writing it, so that structures can write several at once.
    pub(crate) fn prepare(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        node: NodeId,
        kind: u8,
        content: &[u8],
    ) -> Result<Fresh, Error> {
        let class = Class::of(content.len())?;
        let at = self.take(memory, node, class)?;
        let tag = self.tag(memory)?;
        let len = u32::try_from(content.len()).expect("a record's length fits");
        Ok(Fresh { record: Record { at, len }, image: encode(tag, kind, class, content) })
    }

    /// Releases prepared records whose addresses no other program has.
    pub(crate) fn drop_fresh(&mut self, fresh: &[Fresh]) {
        for Fresh { record, .. } in fresh {
            let class = Class::of(record.len as usize).expect("a block was taken for it");
            if let Some(node) = self.arena.own_at(record.at).map(|chunk| chunk.node) {
                self.arena.push(node, class, record.at);
            }
        }
    }

    /// Frees an unreferenced record, once. Any program may have created it. The memory is reused when no
    /// member can be reading it.
    ///
    /// # Errors
    /// [`Error::Broken`] when there is no record at the address, or the record was already freed by this
    /// program, or by another program that has marked it; [`Error`] when far memory does not answer.
    pub fn free(&mut self, memory: &mut (impl FarMemory + ?Sized), record: Record) -> Result<(), Error> {
        self.enter(memory)?;
        let mut bytes = [0; HEADER_LEN];
        memory.read(record.at, &mut bytes)?;
        let is_pending = self.arena.unmarked.iter().any(|freed| freed.at == record.at);
        let header = Header::parse(&bytes).filter(|header| header.stamp == 0 && !is_pending);
        let header = header.ok_or(Error::Broken { addr: record.at, what: "a record in use" })?;
        self.retire(memory, record.at, header.class)
    }

    /// Frees a record of `len` bytes that a structure has removed.
    pub(crate) fn retire_record(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        at: VirtAddr,
        len: usize,
    ) -> Result<(), Error> {
        let class = Class::of(len)?;
        self.retire(memory, at, class)
    }

    /// Announces that this program may hold pointers that it read here, until [`Heap::unpin`]. Memory freed
    /// meanwhile is not reused.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn pin(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.enter(memory)?;
        self.pins += 1;
        Ok(())
    }

    /// Releases a pin.
    ///
    /// # Panics
    /// Panics when no pin is held.
    pub const fn unpin(&mut self) {
        self.pins = self.pins.checked_sub(1).expect("a pin that is given back was taken");
    }

    /// Renews the lease when it is due, for programs with long computations. Every operation renews the
    /// lease, too.
    ///
    /// # Errors
    /// [`Error::LeaseExpired`] when the program was silent for too long and holds a pin; [`Error`] when far memory
    /// does not answer.
    pub fn keep(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.enter(memory)
    }

    /// Recovers freed records that no member can be reading, and helps other members to recover theirs. The
    /// heap does this when room is short; call it to recover memory earlier.
    ///
    /// # Errors
    /// As [`Heap::keep`].
    pub fn reclaim(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.enter(memory)?;
        self.reclaim_blocks(memory, true)
    }

    /// Begins an operation with a running lease. An evicted member without pins joins again.
    pub(crate) fn enter(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        if !self.is_evicted && self.member.is_due() && !self.member.renew(memory, self.pins == 0)? {
            self.mark_evicted();
        }
        if !self.is_evicted {
            return Ok(());
        }
        if self.pins > 0 {
            return Err(self.evicted_error());
        }
        self.member = Member::join(memory, self.member.root, &self.options)?;
        self.is_evicted = false;
        Ok(())
    }

    /// Confirms that an operation's reads and writes count: no member can have taken the memory meanwhile.
    ///
    /// # Errors
    /// [`Error::LeaseExpired`] when a member may have taken it.
    pub(crate) fn confirm_membership(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        if self.is_evicted || !self.member.holds() && !self.member.renew(memory, false)? {
            return Err(self.evicted());
        }
        Ok(())
    }

    /// Works as [`Heap::confirm_membership`], for a read that can restart. Returns false when it must restart.
    fn holds_on(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<bool, Error> {
        match self.confirm_membership(memory) {
            Ok(()) => Ok(true),
            Err(Error::LeaseExpired { .. }) if self.pins == 0 => {
                self.enter(memory)?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Handles an eviction: what this member owned now belongs to others.
    pub(crate) fn evicted(&mut self) -> Error {
        self.mark_evicted();
        self.evicted_error()
    }

    fn mark_evicted(&mut self) {
        self.is_evicted = true;
        self.arena = Arena::default();
    }

    pub(crate) fn evicted_error(&self) -> Error {
        Error::LeaseExpired { heap: self.title() }
    }

    /// Returns a tag for a write.
    fn tag(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<Tag, Error> {
        if let Some(tag) = self.member.tag() {
            return Ok(tag);
        }
        // This member has written 2^37 times. It starts again as another member.
        self.mark(memory)?;
        self.member.leave(memory)?;
        Err(self.evicted())
    }

    fn title(&self) -> String {
        format!("the heap {:?}", self.name)
    }
}

/// Returns a random number that identifies the heap.
fn identity() -> u64 {
    RandomState::new().build_hasher().finish().max(1)
}

/// A record with its bytes, not yet written.
#[derive(Clone, Debug)]
pub(crate) struct Fresh {
    pub(crate) record: Record,
    pub(crate) image: Vec<u8>,
}

/// Writes several records at once. No other program has their addresses yet.
pub(crate) fn write_all(memory: &mut (impl FarMemory + ?Sized), fresh: &[Fresh]) -> Result<(), Error> {
    let writes: Vec<(VirtAddr, &[u8])> =
        fresh.iter().map(|fresh| (fresh.record.at, fresh.image.as_slice())).collect();
    memory.write_many(&writes)
}

#[cfg(test)]
mod tests;
