//! The destination of a read's bytes, which come straight from the link's receive buffers (SODA IV-B: one buffer on
//! the DPU for network and host).
//!
//! Key type: [`ReadDelivery`], one per read. Its bytes are written to their destination as they arrive. If another thread
//! completes the read, the bytes stay in the link's slots as loans until the read has ended. Only the receiving
//! thread touches a read that has not ended, so a failed read writes nothing after its answer.

use super::answering::{Answering, lock};
use farmem_client::{Lender, Loan, PayloadSink};
use farmem_link::dpu::Registered;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The destination of a read's bytes.
#[derive(Clone, Debug)]
pub(super) enum AnswerTarget {
    /// Memory behind the rings.
    Shared(u64),
    /// Registered memory.
    Registered(Arc<Registered>, u64),
}

impl AnswerTarget {
    /// Writes the pieces to the destination, from the `offset`-th byte on. Returns false if the destination is too
    /// small.
    pub(super) fn put(&self, offset: u64, answering: &Mutex<Answering>, pieces: &[&[u8]]) -> bool {
        let at = |addr: &u64| addr.checked_add(offset);
        match self {
            Self::Shared(addr) => at(addr).is_some_and(|addr| {
                let line = lock(answering);
                let mut next = addr;
                pieces.iter().all(|piece| {
                    let at = next;
                    next = next.saturating_add(piece.len() as u64);
                    line.answers.put(at, piece)
                })
            }),
            Self::Registered(memory, addr) => at(addr).is_some_and(|addr| memory.put(addr, pieces)),
        }
    }
}

/// A read's destination, and the loans that have arrived for it.
#[derive(Debug)]
pub(super) struct ReadDelivery {
    place: AnswerTarget,
    answering: Arc<Mutex<Answering>>,
    /// Loans for another thread to write; `None` if the receiving thread completes the read.
    kept: Option<Mutex<Vec<LentRun>>>,
    /// True if the destination was too small.
    is_refused: AtomicBool,
}

/// Contiguous bytes in lent memory.
#[derive(Debug)]
struct LentRun {
    offset: u64,
    end: u64,
    pieces: Vec<Loan>,
}

impl ReadDelivery {
    /// Creates the destination of a read without bytes. `passed` is true if another thread may complete the read.
    pub(super) fn new(place: AnswerTarget, answering: &Arc<Mutex<Answering>>, passed: bool) -> Arc<Self> {
        let kept = passed.then(Mutex::default);
        Arc::new(Self { place, answering: Arc::clone(answering), kept, is_refused: AtomicBool::new(false) })
    }

    /// Returns the answers of the read's process.
    pub(super) const fn answering(&self) -> &Arc<Mutex<Answering>> {
        &self.answering
    }

    /// Returns true if another thread must complete the read, because there are bytes to write. `has_landed` is true
    /// if all bytes came through here.
    pub(super) fn is_for_others(&self, has_landed: bool) -> bool {
        self.kept.as_ref().is_some_and(|kept| !has_landed || !rows(kept).is_empty())
    }

    /// Drops the loans of a failed read without writing them.
    pub(super) fn let_go(&self) {
        drop(self.take_kept());
    }

    /// Completes a successful read: writes the loans, then `bytes`, which is empty if all bytes came through here.
    /// Returns false if the destination was too small.
    pub(super) fn complete(&self, bytes: &[u8]) -> bool {
        self.put_kept();
        if !bytes.is_empty() {
            self.put_now(0, &[bytes]);
        }
        !self.is_refused.load(Ordering::Acquire)
    }

    fn take_kept(&self) -> Vec<LentRun> {
        self.kept.as_ref().map(|kept| std::mem::take(&mut *rows(kept))).unwrap_or_default()
    }

    fn put_kept(&self) {
        for LentRun { offset, pieces, .. } in self.take_kept() {
            let pieces: Vec<&[u8]> = pieces.iter().map(|piece| &**piece).collect();
            self.put_now(offset, &pieces);
        }
    }

    fn put_now(&self, offset: u64, pieces: &[&[u8]]) {
        if !self.place.put(offset, &self.answering, pieces) {
            self.is_refused.store(true, Ordering::Release);
        }
    }
}

impl PayloadSink for ReadDelivery {
    /// Writes loans first, so that the later of two copies stays.
    fn put(&self, offset: u64, pieces: &[&[u8]]) {
        self.put_kept();
        self.put_now(offset, pieces);
    }

    fn put_from(&self, offset: u64, pieces: &[&[u8]], lender: &dyn Lender) {
        let Some(kept) = &self.kept else { return self.put(offset, pieces) };
        // All pieces are lent, or none is.
        let Some(mut loans) = pieces.iter().map(|piece| lender.lend(piece)).collect::<Option<Vec<_>>>()
        else {
            return self.put(offset, pieces);
        };
        let end = offset + pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let mut rows = rows(kept);
        match rows.last_mut().filter(|row| row.end == offset) {
            Some(row) => {
                row.pieces.append(&mut loans);
                row.end = end;
            }
            None => rows.push(LentRun { offset, end, pieces: loans }),
        }
    }
}

/// Locks the rows. A thread that panicked with the lock ends the DPU.
fn rows(kept: &Mutex<Vec<LentRun>>) -> std::sync::MutexGuard<'_, Vec<LentRun>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}
