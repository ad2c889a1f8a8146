//! The answers to one process: its ring, and the answers that have no room there yet. The thread of its domain and
//! the completion threads share this state.

use farmem_link::dpu::Answers;
use farmem_machine::{Duration, Instant};
use farmem_wire::soda::Answer;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Locks the answers. A thread that panicked with the lock ends the DPU.
pub(super) fn lock(answering: &Mutex<Answering>) -> MutexGuard<'_, Answering> {
    answering.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers to one process.
#[derive(Debug)]
pub(super) struct Answering {
    pub(super) answers: Answers,
    /// Answers for which the ring has no room.
    unsent: VecDeque<Vec<u8>>,
    /// Sum of the bytes of unsent answers.
    kept: usize,
    /// Time since which the process has taken no answer.
    full_since: Option<Instant>,
    /// Set when the process must be disconnected.
    gone: Arc<AtomicBool>,
    record: Vec<u8>,
}

impl Answering {
    pub(super) fn new(answers: Answers, gone: Arc<AtomicBool>) -> Self {
        let (unsent, record) = (VecDeque::new(), Vec::new());
        Self { answers, unsent, kept: 0, full_since: None, gone, record }
    }

    /// Returns the bytes of unsent answers.
    pub(super) const fn kept(&self) -> usize {
        self.kept
    }

    /// Returns true if all answers are in the ring.
    pub(super) fn is_sent(&self) -> bool {
        self.unsent.is_empty()
    }

    pub(super) fn push(&mut self, answer: Answer<'_>) {
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        answer.emit(&mut record);
        self.record = self.send(record).unwrap_or_default();
    }

    /// Writes an answer into the ring if it has room. Returns the buffer if it is free again.
    pub(super) fn send(&mut self, record: Vec<u8>) -> Option<Vec<u8>> {
        if self.gone.load(Ordering::Acquire) {
            return Some(record);
        }
        if self.unsent.is_empty() {
            match self.answers.push(&record) {
                Ok(true) => return Some(record),
                Ok(false) => {}
                Err(_) => self.send_away(),
            }
        }
        self.kept += record.len();
        self.unsent.push_back(record);
        None
    }

    /// Writes as many answers as the ring has room for. If the process takes none for longer than `patience`, the DPU
    /// disconnects it, because processes share the buffers.
    pub(super) fn send_unsent(&mut self, now: Instant, patience: Duration) {
        while let Some(record) = self.unsent.front() {
            match self.answers.push(record) {
                Ok(true) => {
                    self.kept -= record.len();
                    (self.full_since, _) = (None, self.unsent.pop_front());
                }
                Ok(false) => {
                    self.publish();
                    let since = *self.full_since.get_or_insert(now);
                    if now.since(since) > patience {
                        self.send_away();
                    }
                    return;
                }
                Err(_) => return self.send_away(),
            }
        }
        self.full_since = None;
    }

    /// Makes the answers visible to the process. If the ring is full, this wakes the process.
    pub(super) fn publish(&mut self) {
        if self.unsent.is_empty() {
            self.answers.publish();
        } else {
            self.answers.publish_full();
        }
    }

    fn send_away(&self) {
        self.gone.store(true, Ordering::Release);
    }
}
