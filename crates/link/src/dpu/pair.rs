//! The memory that a process and its DPU share.
//!
//! ```text
//!   words 0..64     magic, version, words of each ring's data, bytes of registered memory
//!   64..128         the DPU's doorbell: whether it sleeps; its beat, which it counts up as long as it serves
//!   128..192        the process's doorbell, with how many answers it wants before it is woken
//!   192..           the ring of requests, the ring of answers
//!   at a page       registered memory
//! ```

use super::shared;
use crate::shm::doorbell::{self, BELL_WORDS, SLEEPING};
use crate::shm::futex;
use crate::shm::mapping::Mapping;
use crate::shm::ring::{self, Consumer, HEADER_WORDS, Producer, WORD};
use crate::{OpenError, OutsideWaker};
use farmem_machine::Duration;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The error of a ring whose other end wrote invalid data: the rings cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the other end of the rings wrote invalid data")]
pub struct Broken;

impl From<ring::Broken> for Broken {
    fn from(_: ring::Broken) -> Self {
        Self
    }
}

const MAGIC: u64 = u64::from_le_bytes(*b"FarmPair");
const VERSION: u64 = 2;
const PAGE_WORDS: usize = 4096 / WORD;
const DPU_BELL: usize = 64;
const PROCESS_BELL: usize = DPU_BELL + BELL_WORDS;
const RINGS: usize = PROCESS_BELL + BELL_WORDS;
/// Index of the heartbeat in the DPU's doorbell.
const BEAT: usize = 48;
/// Range of a ring's size in bytes.
const RING_BYTES: Range<usize> = 1 << 12..(1 << 28) + 1;
/// Maximum size of registered memory in bytes.
const REGISTERED_MAX: usize = 1 << 30;

/// The size of the memory that a process shares with its DPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairSize {
    /// Size of the ring of requests in bytes: a power of two, 4 KiB to 256 MiB.
    pub requests: usize,
    /// Size of the ring of answers in bytes, with the same range.
    pub answers: usize,
    /// Size of registered memory in bytes: whole pages of 4096, at most 1 GiB.
    pub registered: usize,
}

/// The layout of the memory, in words.
#[derive(Clone, Debug)]
struct Layout {
    requests: Range<usize>,
    answers: Range<usize>,
    registered: Range<usize>,
}

impl PairSize {
    /// Returns the total size in bytes, without the header.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        (self.requests as u64).saturating_add(self.answers as u64).saturating_add(self.registered as u64)
    }

    fn layout(self) -> Option<Layout> {
        let is_ring = |bytes: usize| bytes.is_power_of_two() && RING_BYTES.contains(&bytes);
        let is_right = is_ring(self.requests)
            && is_ring(self.answers)
            && self.registered.is_multiple_of(PAGE_WORDS * WORD)
            && self.registered <= REGISTERED_MAX;
        is_right.then(|| {
            let requests = RINGS..RINGS + HEADER_WORDS + self.requests / WORD;
            let answers = requests.end..requests.end + HEADER_WORDS + self.answers / WORD;
            let from = answers.end.next_multiple_of(PAGE_WORDS);
            Layout { requests, answers, registered: from..from + self.registered / WORD }
        })
    }

    fn setting(self) -> OpenError {
        OpenError::Setting {
            setting: "memory shared with the DPU",
            value: format!("{self:?}"),
            remedy:
                "rings are powers of two from 4 KiB to 256 MiB, registered memory whole pages up to 1 GiB"
                    .into(),
        }
    }
}

/// Creates the memory, for a process that passes it to its DPU.
///
/// # Errors
/// [`OpenError::Setting`] for an invalid size, [`OpenError::System`] if the system has too little memory.
pub fn make_pair(size: PairSize) -> Result<OwnedFd, OpenError> {
    let layout = size.layout().ok_or_else(|| size.setting())?;
    shared::make(layout.registered.end, &identity(size))
}

const fn identity(size: PairSize) -> [u64; 5] {
    [MAGIC, VERSION, size.requests as u64, size.answers as u64, size.registered as u64]
}

/// Maps memory that this end or the other end has created.
fn map(file: &OwnedFd, size: PairSize) -> Result<(Arc<Mapping>, Layout), OpenError> {
    let layout = size.layout().ok_or_else(|| size.setting())?;
    let memory = shared::map(file, layout.registered.end, &identity(size))?;
    Ok((Arc::new(memory), layout))
}

fn broken(_: ring::Broken) -> OpenError {
    shared::foreign("has inconsistent indexes")
}

/// The process's end.
#[derive(Debug)]
pub struct ProcessEnd {
    memory: Arc<Mapping>,
    layout: Layout,
    requests: Producer,
    answers: Consumer,
    /// Number of answers read.
    taken: u64,
    dpu: OutsideWaker,
}

impl ProcessEnd {
    /// Opens the end of the process that created `file`; `dpu` wakes the DPU.
    ///
    /// # Errors
    /// [`OpenError`] if [`make_pair`] did not create the file with this size.
    pub fn of(file: &OwnedFd, size: PairSize, dpu: OutsideWaker) -> Result<Self, OpenError> {
        let (memory, layout) = map(file, size)?;
        let words = memory.words();
        let requests = Producer::attach(&words[layout.requests.clone()]).map_err(broken)?;
        let answers = Consumer::attach(&words[layout.answers.clone()]).map_err(broken)?;
        Ok(Self { memory, layout, requests, answers, taken: 0, dpu })
    }

    /// Writes a request; returns false if the ring is full. The DPU sees the request after
    /// [`ProcessEnd::publish`].
    ///
    /// # Errors
    /// [`Broken`] if the DPU wrote invalid data.
    pub fn push(&mut self, record: &[u8]) -> Result<bool, Broken> {
        Ok(self.requests.push(&self.memory.words()[self.layout.requests.clone()], record)?)
    }

    /// Publishes the written requests, and wakes the DPU if it sleeps. Returns true if the DPU was woken.
    pub fn publish(&mut self) -> bool {
        let words = self.memory.words();
        let wakes = self.requests.publish(&words[self.layout.requests.clone()])
            && doorbell::must_wake(&words[DPU_BELL..][..BELL_WORDS]);
        if wakes {
            self.dpu.wake();
        }
        wakes
    }

    /// Copies the next answer to the front of `buf`, and returns its length. The length of `buf` is a
    /// multiple of 8.
    ///
    /// # Errors
    /// [`Broken`] if the DPU wrote invalid data, or a record longer than `buf`.
    pub fn pop(&mut self, buf: &mut [u8]) -> Result<Option<usize>, Broken> {
        let ring = &self.memory.words()[self.layout.answers.clone()];
        let popped = self.answers.pop(ring, buf)?;
        match popped {
            Some(_) => self.taken += 1,
            None => self.answers.release(ring),
        }
        Ok(popped)
    }

    /// Sleeps until the DPU has published `answers` answers, at most for `most`. Does not sleep if an answer
    /// is already available. A process that waits for several answers is woken once (PROTOCOL 17.6).
    pub fn wait(&self, answers: u64, most: Duration) {
        let words = self.memory.words();
        let bell = &words[PROCESS_BELL..][..BELL_WORDS];
        doorbell::fall_asleep_until(bell, self.taken.wrapping_add(answers));
        if !self.answers.has_more(&words[self.layout.answers.clone()]) {
            // If the wait on the futex fails, the caller checks the rings again at once.
            drop(futex::wait(&bell[SLEEPING], 1, most));
        }
        doorbell::wake_up(bell);
    }

    /// Announces a sleep as [`ProcessEnd::wait`] does; returns true if no answer prevents the sleep.
    #[cfg(test)]
    pub(super) fn falls_asleep(&self, answers: u64) -> bool {
        let words = self.memory.words();
        doorbell::fall_asleep_until(&words[PROCESS_BELL..][..BELL_WORDS], self.taken + answers);
        !self.answers.has_more(&words[self.layout.answers.clone()])
    }

    /// Returns the DPU's heartbeat: the number of its checks of the rings, which grows while the DPU serves.
    #[must_use]
    pub fn beat(&self) -> u64 {
        self.memory.words()[DPU_BELL + BEAT].load(Ordering::Relaxed)
    }

    /// Stores a word of registered memory, before a request that directs its answer there. `addr` is a
    /// multiple of 8, within bounds.
    ///
    /// # Panics
    /// Panics if `addr` is invalid, because the process itself chooses it.
    pub fn set_word(&self, addr: usize, word: u64) {
        self.registered_word(addr).store(word, Ordering::Relaxed);
    }

    /// Returns a word of registered memory. Bytes that the DPU stored before this word are visible afterwards
    /// ([`Answers::put_last`]).
    ///
    /// # Panics
    /// Panics as [`ProcessEnd::set_word`] does.
    #[must_use]
    pub fn word(&self, addr: usize) -> u64 {
        self.registered_word(addr).load(Ordering::Acquire)
    }

    fn registered_word(&self, addr: usize) -> &AtomicU64 {
        assert!(addr.is_multiple_of(WORD), "registered memory is used by words");
        &self.memory.words()[self.layout.registered.clone()][addr / WORD]
    }

    /// Copies bytes from registered memory. `addr` and the length are multiples of 8, within bounds.
    ///
    /// # Panics
    /// Panics if `addr` or the length is invalid, because the process itself chooses them.
    pub fn take(&self, addr: usize, into: &mut [u8]) {
        let registered = &self.memory.words()[self.layout.registered.clone()];
        assert!(addr.is_multiple_of(WORD), "registered memory is used by words");
        let from = &registered[addr / WORD..][..into.len().div_ceil(WORD)];
        ring::load(from, into);
    }
}

/// The DPU's end of one process's requests.
#[derive(Debug)]
pub struct Requests {
    memory: Arc<Mapping>,
    layout: Layout,
    consumer: Consumer,
}

/// The DPU's end of one process's answers.
#[derive(Debug)]
pub struct Answers {
    memory: Arc<Mapping>,
    layout: Layout,
    producer: Producer,
    /// Number of answers written.
    said: u64,
}

impl Requests {
    /// Opens the DPU's ends of memory that a process passed.
    ///
    /// # Errors
    /// [`OpenError`] if the memory is not what the process described, or is not sealed.
    pub fn of(file: &OwnedFd, size: PairSize) -> Result<(Self, Answers), OpenError> {
        let (memory, layout) = map(file, size)?;
        let words = memory.words();
        let consumer = Consumer::attach(&words[layout.requests.clone()]).map_err(broken)?;
        let producer = Producer::attach(&words[layout.answers.clone()]).map_err(broken)?;
        let answers = Answers { memory: Arc::clone(&memory), layout: layout.clone(), producer, said: 0 };
        Ok((Self { memory, layout, consumer }, answers))
    }

    fn bell(&self) -> &[AtomicU64] {
        &self.memory.words()[DPU_BELL..][..BELL_WORDS]
    }

    /// Copies the next request to the front of `buf`, and returns its length. The length of `buf` is a
    /// multiple of 8.
    ///
    /// # Errors
    /// [`Broken`] if the process wrote invalid data, or a record longer than `buf`.
    pub fn pop(&mut self, buf: &mut [u8]) -> Result<Option<usize>, Broken> {
        Ok(self.consumer.pop(&self.memory.words()[self.layout.requests.clone()], buf)?)
    }

    /// Releases the space of the read requests to the process.
    pub fn release(&mut self) {
        self.consumer.release(&self.memory.words()[self.layout.requests.clone()]);
    }

    /// Increments the heartbeat.
    pub fn beat(&self) {
        let word = &self.bell()[BEAT];
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Announces sleep: from here on, the process wakes the DPU with its next request. Returns true if no
    /// request is available.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        doorbell::fall_asleep(self.bell());
        !self.consumer.has_more(&self.memory.words()[self.layout.requests.clone()])
    }

    /// Announces that the DPU is awake, so the process need not wake it.
    pub fn stays_awake(&self) {
        doorbell::wake_up(self.bell());
    }
}

impl Answers {
    /// Returns true if the empty ring has space for an answer of `len` bytes.
    #[must_use]
    pub const fn fits(&self, len: usize) -> bool {
        let words = self.layout.answers.end - self.layout.answers.start - HEADER_WORDS;
        len.div_ceil(WORD) < words
    }

    /// Writes an answer; returns false if the ring is full. The process sees the answer after
    /// [`Answers::publish`].
    ///
    /// # Errors
    /// [`Broken`] if the process wrote invalid data.
    pub fn push(&mut self, record: &[u8]) -> Result<bool, Broken> {
        let has_room = self.producer.push(&self.memory.words()[self.layout.answers.clone()], record)?;
        self.said += u64::from(has_room);
        Ok(has_room)
    }

    /// Copies bytes to the process's registered memory, and fills with zeros up to the next multiple of 8.
    /// Returns false if the range is not within registered memory, or if `addr` is not a multiple of 8.
    #[must_use]
    pub fn put(&self, addr: u64, bytes: &[u8]) -> bool {
        let registered = &self.memory.words()[self.layout.registered.clone()];
        let words = bytes.len().div_ceil(WORD);
        let from =
            usize::try_from(addr).ok().filter(|addr| addr.is_multiple_of(WORD)).map(|addr| addr / WORD);
        let to = from.and_then(|from| registered.get(from..from.checked_add(words)?));
        to.map(|to| ring::store(to, bytes)).is_some()
    }

    /// Returns true if registered memory contains `len` bytes at `addr`, and `addr` is a multiple of 8.
    #[must_use]
    pub fn has_place(&self, addr: u64, len: usize) -> bool {
        let registered = (self.layout.registered.len() * WORD) as u64;
        addr.is_multiple_of(WORD as u64) && addr.checked_add(len as u64).is_some_and(|end| end <= registered)
    }

    /// Stores a word after all bytes that were stored before; returns false as [`Answers::put`] does.
    #[must_use]
    pub fn put_last(&self, addr: u64, word: u64) -> bool {
        let registered = &self.memory.words()[self.layout.registered.clone()];
        let at = usize::try_from(addr / WORD as u64).ok().filter(|_| self.has_place(addr, WORD));
        at.and_then(|at| registered.get(at)).map(|to| to.store(word, Ordering::Release)).is_some()
    }

    /// Publishes the written answers, and wakes the process if it sleeps and waits for no more answers.
    /// Returns true if the process was woken.
    pub fn publish(&mut self) -> bool {
        let said = self.said;
        self.producer.publish(&self.memory.words()[self.layout.answers.clone()])
            && self.wake_if(|bell| doorbell::must_wake_at(bell, said))
    }

    /// Publishes answers as [`Answers::publish`] does, but wakes the process regardless of how many answers
    /// it waits for, because the ring is full.
    pub fn publish_full(&mut self) -> bool {
        self.producer.publish(&self.memory.words()[self.layout.answers.clone()]);
        self.wake_if(doorbell::must_wake)
    }

    fn wake_if(&self, must_wake: impl FnOnce(&[AtomicU64]) -> bool) -> bool {
        let bell = &self.memory.words()[PROCESS_BELL..][..BELL_WORDS];
        let wakes = must_wake(bell);
        if wakes {
            futex::wake(&bell[SLEEPING]);
        }
        wakes
    }
}
