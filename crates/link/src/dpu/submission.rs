//! The ring through which all threads of a program ask its DPU for far memory, without a lock (PD3 6.1; PROTOCOL 18.4).
//!
//! Key types: [`SubmissionSender`], which threads share; [`Submissions`], the DPU's end. The memory is a file as that of a pair of rings is ([`make_submissions`]); a record is what
//! [`farmem_wire::pd3`] makes of a request, and the DPU copies it out before it looks at it. What a program hands over to be prefetched for goes through such rings, too (PROTOCOL 19.15).

use super::pair::Broken;
use super::shared;
use crate::shm::doorbell::{self, BELL_WORDS};
use crate::shm::many::{self, Consumer};
use crate::shm::mapping::Mapping;
use crate::shm::ring::{HEADER_WORDS, WORD};
use crate::{OpenError, OutsideWaker};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"FarmMany");
const VERSION: u64 = 2;
/// A word that the program raises, and never lowers: how far it is.
const MARK: usize = 8;
/// Where the DPU's doorbell is, in words.
const BELL: usize = 64;
/// The DPU's beat.
const BEAT: usize = BELL + 48;
const RING: usize = BELL + BELL_WORDS;
/// Bytes of the ring's data.
const BYTES: RangeInclusive<usize> = 1 << 12..=1 << 28;

fn words(bytes: usize) -> Result<usize, OpenError> {
    if bytes.is_power_of_two() && BYTES.contains(&bytes) {
        return Ok(RING + HEADER_WORDS + bytes / WORD);
    }
    Err(OpenError::Setting {
        setting: "the ring of requests to the DPU",
        value: format!("{bytes} bytes"),
        remedy: "choose a power of two from 4 KiB to 256 MiB".into(),
    })
}

const fn identity(bytes: usize) -> [u64; 3] {
    [MAGIC, VERSION, bytes as u64]
}

/// Makes the memory of an empty ring with so many bytes of data, for a process that will hand it to its DPU.
///
/// # Errors
/// [`OpenError::Setting`] for a size that cannot be, [`OpenError::System`] when the system has no memory for it.
pub fn make_submissions(bytes: usize) -> Result<OwnedFd, OpenError> {
    shared::make(words(bytes)?, &identity(bytes))
}

fn map(file: &OwnedFd, bytes: usize) -> Result<Mapping, OpenError> {
    shared::map(file, words(bytes)?, &identity(bytes))
}

fn ring(memory: &Mapping) -> &[AtomicU64] {
    &memory.words()[RING..]
}

fn bell(memory: &Mapping) -> &[AtomicU64] {
    &memory.words()[BELL..][..BELL_WORDS]
}

/// The program's end. Threads share it.
#[derive(Debug)]
pub struct SubmissionSender {
    memory: Mapping,
    dpu: OutsideWaker,
}

impl SubmissionSender {
    /// The end of the process that made `file`; `dpu` wakes the DPU.
    ///
    /// # Errors
    /// [`OpenError`] when the file is none that [`make_submissions`] made of this size.
    pub fn of(file: &OwnedFd, bytes: usize, dpu: OutsideWaker) -> Result<Self, OpenError> {
        Ok(Self { memory: map(file, bytes)?, dpu })
    }

    /// Writes a record, and wakes the DPU if it sleeps; `false` when the ring has no room.
    ///
    /// # Errors
    /// [`Broken`] when the DPU wrote nonsense.
    pub fn push(&self, record: &[u8]) -> Result<bool, Broken> {
        let has_room = self.push_quietly(record)?;
        if has_room && doorbell::must_wake(bell(&self.memory)) {
            self.dpu.wake();
        }
        Ok(has_room)
    }

    /// As [`SubmissionSender::push`], without waking the DPU, which finds the record when it looks next.
    ///
    /// # Errors
    /// As [`SubmissionSender::push`].
    pub fn push_quietly(&self, record: &[u8]) -> Result<bool, Broken> {
        Ok(many::push(ring(&self.memory), record)?)
    }

    /// Raises the word that says how far the program is; what is not more changes nothing.
    pub fn raise_mark(&self, to: u64) {
        self.memory.words()[MARK].fetch_max(to, Ordering::Release);
    }

    /// How far the program said that it is.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.memory.words()[MARK].load(Ordering::Acquire)
    }

    /// The beat that the DPU counted last ([`Submissions::beat`]).
    #[must_use]
    pub fn beat(&self) -> u64 {
        self.memory.words()[BEAT].load(Ordering::Relaxed)
    }
}

/// The DPU's end.
#[derive(Debug)]
pub struct Submissions {
    memory: Mapping,
    consumer: Consumer,
}

/// A record that the DPU has taken, where it lies in the ring: until [`Submissions::release`] its bytes may be copied to where they are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Submitted(many::Record);

impl Submitted {
    /// Its bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len
    }

    /// True when there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.len == 0
    }
}

impl Submissions {
    /// The DPU's end of memory that a process handed over.
    ///
    /// # Errors
    /// [`OpenError`] when it is not what the process says, or not sealed.
    pub fn of(file: &OwnedFd, bytes: usize) -> Result<Self, OpenError> {
        let memory = map(file, bytes)?;
        let consumer = Consumer::attach(ring(&memory));
        Ok(Self { memory, consumer })
    }

    /// Copies the next record to the front of `buf`, and says its length.
    ///
    /// # Errors
    /// [`Broken`] when the process wrote nonsense, or a record longer than `buf`.
    pub fn pop(&mut self, buf: &mut [u8]) -> Result<Option<usize>, Broken> {
        let Some(record) = self.next(buf.len())? else { return Ok(None) };
        self.copy(record, 0, &mut buf[..record.len()]);
        Ok(Some(record.len()))
    }

    /// Takes the next record, of at most so many bytes, and copies nothing of it.
    ///
    /// # Errors
    /// As [`Submissions::pop`].
    pub fn next(&mut self, most: usize) -> Result<Option<Submitted>, Broken> {
        Ok(self.consumer.next(ring(&self.memory), most)?.map(Submitted))
    }

    /// Copies bytes of a record that was not released, from `from` on. The process may write there meanwhile, so each is copied before it is looked at, and looked at once (PROTOCOL 18.6).
    ///
    /// # Panics
    /// When the record has no such bytes.
    pub fn copy(&self, record: Submitted, from: usize, into: &mut [u8]) {
        many::copy(ring(&self.memory), record.0, from, into);
    }

    /// Gives the room of what was read back to the process.
    pub fn release(&mut self) {
        self.consumer.release(ring(&self.memory));
    }

    /// The program's own progress mark. The program may write any value there.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.memory.words()[MARK].load(Ordering::Acquire)
    }

    /// Counts the DPU's beat.
    pub fn beat(&self) {
        let word = &self.memory.words()[BEAT];
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// From here on the process wakes the DPU when it asks for something, unless it has asked already; true when it has not.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        doorbell::fall_asleep(bell(&self.memory));
        !self.consumer.has_more(ring(&self.memory))
    }

    /// The process need not wake the DPU.
    pub fn stays_awake(&self) {
        doorbell::wake_up(bell(&self.memory));
    }
}
