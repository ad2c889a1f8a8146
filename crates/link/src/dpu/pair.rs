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

/// The other end wrote invalid data: the rings cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the other end of the rings wrote nonsense")]
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
/// Where the beat is in the DPU's doorbell.
const BEAT: usize = 48;
/// Bytes of a ring.
const RING_BYTES: Range<usize> = 1 << 12..(1 << 28) + 1;
/// Most bytes of registered memory.
const REGISTERED_MAX: usize = 1 << 30;

/// How large the memory that a process shares with its DPU is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairSize {
    /// Bytes of the ring of requests: a power of two, 4 KiB to 256 MiB.
    pub requests: usize,
    /// Bytes of the ring of answers, likewise.
    pub answers: usize,
    /// Bytes of registered memory: whole pages of 4096, at most 1 GiB.
    pub registered: usize,
}

/// Where everything is, in words.
#[derive(Clone, Debug)]
struct Layout {
    requests: Range<usize>,
    answers: Range<usize>,
    registered: Range<usize>,
}

impl PairSize {
    /// Bytes of all of it, but for what says how it is laid out.
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

/// Makes the memory, for a process that will hand it to its DPU.
///
/// # Errors
/// [`OpenError::Setting`] for a size that cannot be, [`OpenError::System`] when the system has no memory for it.
pub fn make_pair(size: PairSize) -> Result<OwnedFd, OpenError> {
    let layout = size.layout().ok_or_else(|| size.setting())?;
    shared::make(layout.registered.end, &identity(size))
}

const fn identity(size: PairSize) -> [u64; 5] {
    [MAGIC, VERSION, size.requests as u64, size.answers as u64, size.registered as u64]
}

/// Maps what the other end made, or is to use.
fn map(file: &OwnedFd, size: PairSize) -> Result<(Arc<Mapping>, Layout), OpenError> {
    let layout = size.layout().ok_or_else(|| size.setting())?;
    let memory = shared::map(file, layout.registered.end, &identity(size))?;
    Ok((Arc::new(memory), layout))
}

fn broken(_: ring::Broken) -> OpenError {
    shared::foreign("has indices that do not belong together")
}

/// The process's end.
#[derive(Debug)]
pub struct ProcessEnd {
    memory: Arc<Mapping>,
    layout: Layout,
    requests: Producer,
    answers: Consumer,
    /// Answers that were read.
    taken: u64,
    dpu: OutsideWaker,
}

impl ProcessEnd {
    /// The end of the process that made `file`; `dpu` wakes the DPU.
    ///
    /// # Errors
    /// [`OpenError`] when the file is none that [`make_pair`] made of this size.
    pub fn of(file: &OwnedFd, size: PairSize, dpu: OutsideWaker) -> Result<Self, OpenError> {
        let (memory, layout) = map(file, size)?;
        let words = memory.words();
        let requests = Producer::attach(&words[layout.requests.clone()]).map_err(broken)?;
        let answers = Consumer::attach(&words[layout.answers.clone()]).map_err(broken)?;
        Ok(Self { memory, layout, requests, answers, taken: 0, dpu })
    }

    /// Writes a request; `false` when the ring has no room. The DPU sees it after [`ProcessEnd::publish`].
    ///
    /// # Errors
    /// [`Broken`] when the DPU wrote nonsense.
    pub fn push(&mut self, record: &[u8]) -> Result<bool, Broken> {
        Ok(self.requests.push(&self.memory.words()[self.layout.requests.clone()], record)?)
    }

    /// Lets the DPU see what was written, and wakes it if it sleeps; true when it did.
    pub fn publish(&mut self) -> bool {
        let words = self.memory.words();
        let wakes = self.requests.publish(&words[self.layout.requests.clone()])
            && doorbell::must_wake(&words[DPU_BELL..][..BELL_WORDS]);
        if wakes {
            self.dpu.wake();
        }
        wakes
    }

    /// Copies the next answer to the front of `buf`, and says its length. `buf` is a whole number of words.
    ///
    /// # Errors
    /// [`Broken`] when the DPU wrote nonsense, or a record longer than `buf`.
    pub fn pop(&mut self, buf: &mut [u8]) -> Result<Option<usize>, Broken> {
        let ring = &self.memory.words()[self.layout.answers.clone()];
        let popped = self.answers.pop(ring, buf)?;
        match popped {
            Some(_) => self.taken += 1,
            None => self.answers.release(ring),
        }
        Ok(popped)
    }

    /// Sleeps until the DPU has published so many answers, at most `most`; not when one is there. A process that waits for several asks to be woken once (PROTOCOL 17.6).
    pub fn wait(&self, answers: u64, most: Duration) {
        let words = self.memory.words();
        let bell = &words[PROCESS_BELL..][..BELL_WORDS];
        doorbell::fall_asleep_until(bell, self.taken.wrapping_add(answers));
        if !self.answers.has_more(&words[self.layout.answers.clone()]) {
            // A futex that cannot be waited on is looked at again at once.
            drop(futex::wait(&bell[SLEEPING], 1, most));
        }
        doorbell::wake_up(bell);
    }

    /// As [`ProcessEnd::wait`] begins: true when nothing is there to keep it from sleeping.
    #[cfg(test)]
    pub(super) fn falls_asleep(&self, answers: u64) -> bool {
        let words = self.memory.words();
        doorbell::fall_asleep_until(&words[PROCESS_BELL..][..BELL_WORDS], self.taken + answers);
        !self.answers.has_more(&words[self.layout.answers.clone()])
    }

    /// How often the DPU has looked at its rings: it counts on as long as the DPU serves.
    #[must_use]
    pub fn beat(&self) -> u64 {
        self.memory.words()[DPU_BELL + BEAT].load(Ordering::Relaxed)
    }

    /// Stores a word of registered memory before a request is sent that says where its answer goes. `addr` is a multiple of 8, in bounds.
    ///
    /// # Panics
    /// When it is not: the process chooses it itself.
    pub fn set_word(&self, addr: usize, word: u64) {
        self.registered_word(addr).store(word, Ordering::Relaxed);
    }

    /// A word of registered memory; what the DPU put there before it is there then ([`Answers::put_last`]).
    ///
    /// # Panics
    /// As [`ProcessEnd::set_word`].
    #[must_use]
    pub fn word(&self, addr: usize) -> u64 {
        self.registered_word(addr).load(Ordering::Acquire)
    }

    fn registered_word(&self, addr: usize) -> &AtomicU64 {
        assert!(addr.is_multiple_of(WORD), "registered memory is used by words");
        &self.memory.words()[self.layout.registered.clone()][addr / WORD]
    }

    /// Copies from registered memory. `addr` and the length are multiples of 8 (bytes), in bounds.
    ///
    /// # Panics
    /// When they are not: the process chooses them itself.
    pub fn take(&self, addr: usize, into: &mut [u8]) {
        let registered = &self.memory.words()[self.layout.registered.clone()];
        assert!(addr.is_multiple_of(WORD), "registered memory is used by words");
        let from = &registered[addr / WORD..][..into.len().div_ceil(WORD)];
        ring::load(from, into);
    }
}

/// The DPU's end of the requests of one process.
#[derive(Debug)]
pub struct Requests {
    memory: Arc<Mapping>,
    layout: Layout,
    consumer: Consumer,
}

/// The DPU's end of the answers to one process.
#[derive(Debug)]
pub struct Answers {
    memory: Arc<Mapping>,
    layout: Layout,
    producer: Producer,
    /// Answers that were written.
    said: u64,
}

impl Requests {
    /// The DPU's ends of memory that a process handed over.
    ///
    /// # Errors
    /// [`OpenError`] when it is not what the process says, or not sealed.
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

    /// Copies the next request to the front of `buf`, a whole number of words, and says its length.
    ///
    /// # Errors
    /// [`Broken`] when the process wrote nonsense, or a record longer than `buf`.
    pub fn pop(&mut self, buf: &mut [u8]) -> Result<Option<usize>, Broken> {
        Ok(self.consumer.pop(&self.memory.words()[self.layout.requests.clone()], buf)?)
    }

    /// Gives the room of what was read back to the process.
    pub fn release(&mut self) {
        self.consumer.release(&self.memory.words()[self.layout.requests.clone()]);
    }

    /// Says that the DPU serves.
    pub fn beat(&self) {
        let word = &self.bell()[BEAT];
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// From here on the process wakes the DPU when it asks for something, unless it has asked already; true when it has not.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        doorbell::fall_asleep(self.bell());
        !self.consumer.has_more(&self.memory.words()[self.layout.requests.clone()])
    }

    /// The process need not wake the DPU.
    pub fn stays_awake(&self) {
        doorbell::wake_up(self.bell());
    }
}

impl Answers {
    /// Whether the ring, when it is empty, has room for an answer of so many bytes.
    #[must_use]
    pub const fn fits(&self, len: usize) -> bool {
        let words = self.layout.answers.end - self.layout.answers.start - HEADER_WORDS;
        len.div_ceil(WORD) < words
    }

    /// Writes an answer; `false` when the ring has no room. The process sees it after [`Answers::publish`].
    ///
    /// # Errors
    /// [`Broken`] when the process wrote nonsense.
    pub fn push(&mut self, record: &[u8]) -> Result<bool, Broken> {
        let has_room = self.producer.push(&self.memory.words()[self.layout.answers.clone()], record)?;
        self.said += u64::from(has_room);
        Ok(has_room)
    }

    /// Copies bytes to the process's registered memory; `false` when they would not lie in it, or `addr` is no multiple of 8. Up to the next multiple of 8 it
    /// writes zeros behind them.
    #[must_use]
    pub fn put(&self, addr: u64, bytes: &[u8]) -> bool {
        let registered = &self.memory.words()[self.layout.registered.clone()];
        let words = bytes.len().div_ceil(WORD);
        let from =
            usize::try_from(addr).ok().filter(|addr| addr.is_multiple_of(WORD)).map(|addr| addr / WORD);
        let to = from.and_then(|from| registered.get(from..from.checked_add(words)?));
        to.map(|to| ring::store(to, bytes)).is_some()
    }

    /// Whether registered memory has `len` bytes at `addr`, a multiple of 8.
    #[must_use]
    pub fn has_place(&self, addr: u64, len: usize) -> bool {
        let registered = (self.layout.registered.len() * WORD) as u64;
        addr.is_multiple_of(WORD as u64) && addr.checked_add(len as u64).is_some_and(|end| end <= registered)
    }

    /// Stores the word that says that what was put before is there; `false` as [`Answers::put`].
    #[must_use]
    pub fn put_last(&self, addr: u64, word: u64) -> bool {
        let registered = &self.memory.words()[self.layout.registered.clone()];
        let at = usize::try_from(addr / WORD as u64).ok().filter(|_| self.has_place(addr, WORD));
        at.and_then(|at| registered.get(at)).map(|to| to.store(word, Ordering::Release)).is_some()
    }

    /// Lets the process see what was written, and wakes it if it sleeps and wants no more answers before; true when it did.
    pub fn publish(&mut self) -> bool {
        let said = self.said;
        self.producer.publish(&self.memory.words()[self.layout.answers.clone()])
            && self.wake_if(|bell| doorbell::must_wake_at(bell, said))
    }

    /// As [`Answers::publish`], and wakes it however many answers it wants: the ring has no room for more.
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
