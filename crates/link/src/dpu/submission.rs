//! The ring by which all threads of a program request far memory from its DPU, without a lock (PD3 6.1;
//! PROTOCOL 18.4).
//!
//! Key types: [`SubmissionSender`], which threads share; [`Submissions`], the DPU's end. The memory is a
//! file, as for a pair of rings ([`make_submissions`]). A record is an encoded request of
//! [`farmem_wire::pd3`], which the DPU copies before it reads it. Messages for which a program requests
//! prefetching go through such rings, too (PROTOCOL 19.15).

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
/// Index of the program's progress mark, which never decreases.
const MARK: usize = 8;
/// Index of the DPU's doorbell, in words.
const BELL: usize = 64;
/// Index of the DPU's heartbeat.
const BEAT: usize = BELL + 48;
const RING: usize = BELL + BELL_WORDS;
/// Range of the ring's size in bytes.
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

/// Creates the memory of an empty ring with `bytes` bytes of data, for a process that passes it to its DPU.
///
/// # Errors
/// [`OpenError::Setting`] for an invalid size, [`OpenError::System`] if the system has too little memory.
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

/// The program's end, which threads share.
#[derive(Debug)]
pub struct SubmissionSender {
    memory: Mapping,
    dpu: OutsideWaker,
}

impl SubmissionSender {
    /// Opens the end of the process that created `file`; `dpu` wakes the DPU.
    ///
    /// # Errors
    /// [`OpenError`] if [`make_submissions`] did not create the file with this size.
    pub fn of(file: &OwnedFd, bytes: usize, dpu: OutsideWaker) -> Result<Self, OpenError> {
        Ok(Self { memory: map(file, bytes)?, dpu })
    }

    /// Writes a record, and wakes the DPU if it sleeps. Returns false if the ring is full.
    ///
    /// # Errors
    /// [`Broken`] if the DPU wrote invalid data.
    pub fn push(&self, record: &[u8]) -> Result<bool, Broken> {
        let has_room = self.push_quietly(record)?;
        if has_room && doorbell::must_wake(bell(&self.memory)) {
            self.dpu.wake();
        }
        Ok(has_room)
    }

    /// Writes a record as [`SubmissionSender::push`] does, without waking the DPU, which finds the record at
    /// its next check.
    ///
    /// # Errors
    /// The errors of [`SubmissionSender::push`].
    pub fn push_quietly(&self, record: &[u8]) -> Result<bool, Broken> {
        Ok(many::push(ring(&self.memory), record)?)
    }

    /// Raises the program's progress mark to `to`; a smaller value has no effect.
    pub fn raise_mark(&self, to: u64) {
        self.memory.words()[MARK].fetch_max(to, Ordering::Release);
    }

    /// Returns the program's progress mark.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.memory.words()[MARK].load(Ordering::Acquire)
    }

    /// Returns the DPU's heartbeat ([`Submissions::beat`]).
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

/// A record that the DPU has taken, at its place in the ring. Its bytes may be copied until
/// [`Submissions::release`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Submitted(many::Record);

impl Submitted {
    /// Returns the length of the record in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len
    }

    /// Returns true if the record is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.len == 0
    }
}

impl Submissions {
    /// Opens the DPU's end of memory that a process passed.
    ///
    /// # Errors
    /// [`OpenError`] if the memory is not what the process described, or is not sealed.
    pub fn of(file: &OwnedFd, bytes: usize) -> Result<Self, OpenError> {
        let memory = map(file, bytes)?;
        let consumer = Consumer::attach(ring(&memory));
        Ok(Self { memory, consumer })
    }

    /// Copies the next record to the front of `buf`, and returns its length.
    ///
    /// # Errors
    /// [`Broken`] if the process wrote invalid data, or a record longer than `buf`.
    pub fn pop(&mut self, buf: &mut [u8]) -> Result<Option<usize>, Broken> {
        let Some(record) = self.next(buf.len())? else { return Ok(None) };
        self.copy(record, 0, &mut buf[..record.len()]);
        Ok(Some(record.len()))
    }

    /// Takes the next record, of at most `most` bytes, without copying it.
    ///
    /// # Errors
    /// The errors of [`Submissions::pop`].
    pub fn next(&mut self, most: usize) -> Result<Option<Submitted>, Broken> {
        Ok(self.consumer.next(ring(&self.memory), most)?.map(Submitted))
    }

    /// Copies bytes of a record, starting at `from`, before its release. The process may write there
    /// concurrently, so each byte is copied once and checked only in the copy (PROTOCOL 18.6).
    ///
    /// # Panics
    /// Panics if the record does not contain these bytes.
    pub fn copy(&self, record: Submitted, from: usize, into: &mut [u8]) {
        many::copy(ring(&self.memory), record.0, from, into);
    }

    /// Releases the space of the taken records to the process.
    pub fn release(&mut self) {
        self.consumer.release(ring(&self.memory));
    }

    /// Returns the program's progress mark. The program may write any value there.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.memory.words()[MARK].load(Ordering::Acquire)
    }

    /// Increments the DPU's heartbeat.
    pub fn beat(&self) {
        let word = &self.memory.words()[BEAT];
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Announces sleep: from here on, the process wakes the DPU with its next request. Returns true if no
    /// request is available.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        doorbell::fall_asleep(bell(&self.memory));
        !self.consumer.has_more(ring(&self.memory))
    }

    /// Announces that the DPU is awake, so the process need not wake it.
    pub fn stays_awake(&self) {
        doorbell::wake_up(bell(&self.memory));
    }
}
