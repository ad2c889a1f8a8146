//! A heap of records in far memory, which programs on any host of a rack open by its name.
//!
//! Key types: [`Heap`], a program's hold of one; [`Record`], what it hands out. A record has a header and 1 byte to 128 KiB, and is found by its
//! address alone. [`Heap::put`] makes one, [`Heap::read`] reads it in one round trip and notices a writer, [`Heap::write`] overwrites it in place,
//! [`Heap::free`] frees it, also when another program made it. Memory that other programs may still read is not used again: a program that has a heap open
//! holds a *lease*, and says with each renewal that it holds no older pointers ([`Heap::pin`] while it does). A program that died holds the others up for no
//! longer than a few leases. Roots are names for records: programs find structures by them ([`Heap::root`]).
//!
//! Reasons and rejected alternatives: [the decision](../../../docs/decisions/2026-11-23-far-heap.md).
//!
//! # What it does not do
//!
//! Memory goes from records to records of the same class, and back to the rack with [`Heap::destroy`] only. A member that was evicted and had a WRITE on its way all the
//! time, for longer than [`HeapOptions::lease`] twice, could write into memory that is another's by then: nothing at a memory node looks at leases.

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
pub(crate) use lines::{bring_lines, copy_window, lines_in};
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

/// Freed records that are not marked in far memory yet: what a program that dies loses at most, beside what it had just made.
pub const UNMARKED_MAX: usize = 32;
/// The shortest lease: renewals are a round trip.
pub const LEASE_MIN: Duration = Duration::from_millis(10);

/// Where a heap has the time from: a clock that runs on while the machine is suspended.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// The machine's.
    #[must_use]
    pub fn system() -> Self {
        Self::new(|| Duration::from_nanos(farmem_client::Clock::boot_time_ns()))
    }

    /// Any that never goes back.
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

/// What may be set of a heap.
#[derive(Clone, Debug)]
pub struct HeapOptions {
    /// How long a program may be silent before it counts as gone; at least [`LEASE_MIN`]. The creator of the heap sets it.
    pub lease: Duration,
    /// Where this program has the time from.
    pub clock: Clock,
}

impl Default for HeapOptions {
    fn default() -> Self {
        Self { lease: Duration::from_secs(10), clock: Clock::system() }
    }
}

/// A program's hold of a heap.
pub struct Heap {
    name: String,
    base: VirtAddr,
    options: HeapOptions,
    member: Member,
    arena: Arena,
    /// Pins that were not given back.
    pins: u32,
    /// It was evicted, and has not joined again since.
    is_out: bool,
    /// The memory node whose turn it is.
    turn: usize,
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("name", &self.name).field("base", &self.base).finish_non_exhaustive()
    }
}

impl Heap {
    /// Makes a heap called `name` in the client's domain, and opens it.
    ///
    /// # Errors
    /// [`Error::Exists`] when there is one; [`Error::Refused`] for a name that is none, or no room.
    ///
    /// # Panics
    /// When the lease is shorter than [`LEASE_MIN`].
    pub fn create(client: &mut Client, name: &str, options: HeapOptions) -> Result<Self, Error> {
        assert!(options.lease >= LEASE_MIN, "a heap's lease is at least {LEASE_MIN:?}");
        let base = client.create_named(name, ROOT_LEN)?.base;
        let exists = || Error::Exists { what: format!("a heap called {name:?}") };
        if room::read_word(client, base)? != 0 {
            return Err(exists());
        }
        // Each word by compare-and-swap: another program that makes the heap at the same time finds what is written, or all of it made.
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

    /// Opens the heap called `name`. Its lease is the one that it was made with.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is none, or another program destroys it; [`Error::Broken`] when the memory of that name is no heap, or of another version; [`Error::Full`] when
    /// 64 programs have it open.
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
        Ok(Self { name: name.into(), base, options, member, arena, pins: 0, is_out: false, turn: 0 })
    }

    /// Leaves the heap, in order: nothing that this program freed is lost, and others use at once what it had. A heap that is dropped is left as by a program
    /// that died.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn close(mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.leave(memory)
    }

    /// As [`Heap::close`], for a holder that is kept: its next operation joins anew.
    pub(crate) fn leave(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.enter(memory)?;
        self.mark(memory)?;
        self.member.leave(memory)?;
        self.drop_out();
        Ok(())
    }

    /// Frees the heap with all its records, and its name. No other program may have it open. Tables and trees in it have memory of their own: destroy them
    /// before.
    ///
    /// A program that opens the heap at the same moment keeps it from being destroyed, or is told that there is none. So is one that was evicted since it was silent ([`Heap::alone`]) and goes on: its next
    /// operation fails, and changes nothing, unless it stood still in the middle of one for longer than two leases.
    ///
    /// # Errors
    /// [`Error::Locked`] when another program has it open: nothing is freed then, and this program leaves it as by [`Heap::close`]. One that died has it open until it was evicted: ask [`Heap::alone`] before
    /// until it was. [`Error`] when far memory does not answer: nothing is freed then either. [`Error`] when the control plane does not answer: then no program opens the heap any more, and what could not be freed
    /// goes with the domain; where its name is left, [`Client::unlink_named`] takes it away.
    pub fn destroy(mut self, client: &mut Client) -> Result<(), Error> {
        if let Err(error) = self.shut(client) {
            return self.close(client).and(Err(error));
        }
        // Nobody can come again for what one of them leaves, so all are tried.
        let chunks = self.arena.rows.iter().filter(|row| row.base != 0);
        let freed = chunks.map(|row| client.free(VirtAddr(row.base))).fold(Ok(()), Result::and);
        let unlinked = client.unlink_named(&self.name);
        freed.and(unlinked)
    }

    /// Looks whether any other program has the heap open: who is to free what is in it asks before.
    ///
    /// A program that died has it open until somebody evicts it, and looking does: this program must have seen it silent for three leases ([`HeapOptions::lease`]), by two looks through one `Heap` that are so
    /// far apart, and no more than twelve. So asked again and again it says for three leases at most that one has it open which died. A program that lives and says nothing for so long counts as dead, too
    /// ([`Heap::keep`]).
    ///
    /// # Errors
    /// [`Error::Locked`] with one that has; [`Error::Evicted`] when this one was evicted meanwhile; [`Error`] when far memory does not answer.
    pub fn alone(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.enter(memory)?;
        self.look_for_others(memory)
    }

    fn look_for_others(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
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

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Records that were freed and are kept because a member may still read them, as far as this program knows.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.arena.retired() + self.arena.unmarked.len()
    }

    /// Makes a record of `content`, on any memory node: one round trip, when a block is at hand. `kind` is the caller's, and comes back with each read.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::TooLong`] over [`RECORD_LEN_MAX`]; [`Error::Full`] when there is no room; [`Error`] when far memory does not answer: then no
    /// program has the record, and its block is lost until this program leaves.
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

    /// As [`Heap::put`], on the memory node `node`.
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
        self.still(memory)?;
        Ok(fresh.record)
    }

    /// A record that is not written yet: structures write several at once.
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

    /// Gives back records that were prepared and whose addresses no other program has.
    pub(crate) fn drop_fresh(&mut self, fresh: &[Fresh]) {
        for Fresh { record, .. } in fresh {
            let class = Class::of(record.len as usize).expect("a block was taken for it");
            if let Some(node) = self.arena.own_at(record.at).map(|chunk| chunk.node) {
                self.arena.push(node, class, record.at);
            }
        }
    }

    /// Frees a record that nothing leads to any more, once; any program may have made it. Its memory is used again when no member can be reading it.
    ///
    /// # Errors
    /// [`Error::Broken`] when there is no record, or it was freed already by this program, or by another one that has marked it; [`Error`] when far memory does
    /// not answer.
    pub fn free(&mut self, memory: &mut (impl FarMemory + ?Sized), record: Record) -> Result<(), Error> {
        self.enter(memory)?;
        let mut bytes = [0; HEADER_LEN];
        memory.read(record.at, &mut bytes)?;
        let is_pending = self.arena.unmarked.iter().any(|freed| freed.at == record.at);
        let header = Header::parse(&bytes).filter(|header| header.stamp == 0 && !is_pending);
        let header = header.ok_or(Error::Broken { addr: record.at, what: "a record in use" })?;
        self.retire(memory, record.at, header.class)
    }

    /// Frees what a structure took out, of which it knows that it is a record of `len` bytes.
    pub(crate) fn retire_record(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        at: VirtAddr,
        len: usize,
    ) -> Result<(), Error> {
        let class = Class::of(len)?;
        self.retire(memory, at, class)
    }

    /// From now on this program may hold pointers that it read here, until it gives the pin back. Nothing that is freed meanwhile is used again.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn pin(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.enter(memory)?;
        self.pins += 1;
        Ok(())
    }

    /// Gives a pin back.
    ///
    /// # Panics
    /// When none was taken.
    pub const fn unpin(&mut self) {
        self.pins = self.pins.checked_sub(1).expect("a pin that is given back was taken");
    }

    /// Says that this program is there, when it is time to: for programs that compute for long. Every operation does it, too.
    ///
    /// # Errors
    /// [`Error::Evicted`] when it was silent for too long, and holds a pin; [`Error`] when far memory does not answer.
    pub fn keep(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.enter(memory)
    }

    /// Gets back what was freed and no member can be reading, and helps others to get theirs. The heap does so when room is short; this is for programs that
    /// want it before that.
    ///
    /// # Errors
    /// As [`Heap::keep`].
    pub fn reclaim(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.enter(memory)?;
        self.get_back(memory, true)
    }

    /// Begins an operation: the lease runs. A member that was evicted and holds nothing joins anew.
    pub(crate) fn enter(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        if !self.is_out && self.member.is_due() && !self.member.renew(memory, self.pins == 0)? {
            self.drop_out();
        }
        if !self.is_out {
            return Ok(());
        }
        if self.pins > 0 {
            return Err(self.evicted_error());
        }
        self.member = Member::join(memory, self.member.root, &self.options)?;
        self.is_out = false;
        Ok(())
    }

    /// Goes on with an operation that has read or written something: it counts only if no member can have taken the memory meanwhile.
    ///
    /// # Errors
    /// [`Error::Evicted`] when a member may have.
    pub(crate) fn still(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        if self.is_out || !self.member.holds() && !self.member.renew(memory, false)? {
            return Err(self.evicted());
        }
        Ok(())
    }

    /// As [`Heap::still`] for a read that can be begun anew: false when it must be.
    fn holds_on(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<bool, Error> {
        match self.still(memory) {
            Ok(()) => Ok(true),
            Err(Error::Evicted { .. }) if self.pins == 0 => {
                self.enter(memory)?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// It was evicted: what it had is others'.
    pub(crate) fn evicted(&mut self) -> Error {
        self.drop_out();
        self.evicted_error()
    }

    fn drop_out(&mut self) {
        self.is_out = true;
        self.arena = Arena::default();
    }

    pub(crate) fn evicted_error(&self) -> Error {
        Error::Evicted { heap: self.title() }
    }

    /// A tag for a write.
    fn tag(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<Tag, Error> {
        if let Some(tag) = self.member.tag() {
            return Ok(tag);
        }
        // It has written 2^37 times: as another member it begins again.
        self.mark(memory)?;
        self.member.leave(memory)?;
        Err(self.evicted())
    }

    fn title(&self) -> String {
        format!("the heap {:?}", self.name)
    }
}

/// A number that no other heap has, by chance.
fn identity() -> u64 {
    RandomState::new().build_hasher().finish().max(1)
}

/// A record with its bytes, before they are written.
#[derive(Clone, Debug)]
pub(crate) struct Fresh {
    pub(crate) record: Record,
    pub(crate) image: Vec<u8>,
}

/// Writes several records at once: no other program has their addresses yet.
pub(crate) fn write_all(memory: &mut (impl FarMemory + ?Sized), fresh: &[Fresh]) -> Result<(), Error> {
    let writes: Vec<(VirtAddr, &[u8])> =
        fresh.iter().map(|fresh| (fresh.record.at, fresh.image.as_slice())).collect();
    memory.write_many(&writes)
}

#[cfg(test)]
mod tests;
