//! Where a read's bytes go, from the very buffers that the link received them in (SODA IV-B: one buffer on the DPU for the network and the host).
//!
//! Key type: [`Landed`], of one read. Its bytes are put as they come, or, where another thread is to complete it, kept as loans of the link's slots until it has ended: a read that has not ended belongs to the receiving thread alone,
//! so of a read that failed nothing is put after it was answered.

use super::answering::{Answering, lock};
use farmem_client::{Landing, Lender, Loan};
use farmem_link::dpu::Registered;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Where the bytes of a read go.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Into memory behind the rings.
    Shared(u64),
    /// Into registered memory.
    Registered(Arc<Registered>, u64),
}

impl Place {
    /// Puts bytes there, from the `offset`-th on, out of so many pieces; false when there is no room for them.
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

/// A read's place, and what has come for it.
#[derive(Debug)]
pub(super) struct Landed {
    place: Place,
    answering: Arc<Mutex<Answering>>,
    /// Loans that another thread will put; `None` of a read that none completes.
    kept: Option<Mutex<Vec<Row>>>,
    /// Some had no room.
    is_refused: AtomicBool,
}

/// Bytes that are one behind the other, in memory that is lent.
#[derive(Debug)]
struct Row {
    offset: u64,
    end: u64,
    pieces: Vec<Loan>,
}

impl Landed {
    /// Nothing has come yet. `passed` says that another thread may complete it.
    pub(super) fn new(place: Place, answering: &Arc<Mutex<Answering>>, passed: bool) -> Arc<Self> {
        let kept = passed.then(Mutex::default);
        Arc::new(Self { place, answering: Arc::clone(answering), kept, is_refused: AtomicBool::new(false) })
    }

    /// The way of its answer.
    pub(super) const fn answering(&self) -> &Arc<Mutex<Answering>> {
        &self.answering
    }

    /// Another thread is to complete it: there is something to put. `has_landed` says that its bytes have come here, and from nowhere else.
    pub(super) fn is_for_others(&self, has_landed: bool) -> bool {
        self.kept.as_ref().is_some_and(|kept| !has_landed || !rows(kept).is_empty())
    }

    /// Drops the loans of a failed read: they are put nowhere.
    pub(super) fn let_go(&self) {
        drop(self.take_kept());
    }

    /// Completes a successful read: puts the kept loans, and all of its bytes where they come from elsewhere, else none. False when some had no room.
    pub(super) fn complete(&self, bytes: &[u8]) -> bool {
        self.put_kept();
        if !bytes.is_empty() {
            self.put_now(0, &[bytes]);
        }
        !self.is_refused.load(Ordering::Acquire)
    }

    fn take_kept(&self) -> Vec<Row> {
        self.kept.as_ref().map(|kept| std::mem::take(&mut *rows(kept))).unwrap_or_default()
    }

    fn put_kept(&self) {
        for Row { offset, pieces, .. } in self.take_kept() {
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

impl Landing for Landed {
    /// Behind what was kept, so that of bytes that come twice the later ones stay.
    fn put(&self, offset: u64, pieces: &[&[u8]]) {
        self.put_kept();
        self.put_now(offset, pieces);
    }

    fn put_from(&self, offset: u64, pieces: &[&[u8]], lender: &dyn Lender) {
        let Some(kept) = &self.kept else { return self.put(offset, pieces) };
        // All of them or none.
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
            None => rows.push(Row { offset, end, pieces: loans }),
        }
    }
}

/// Locks the rows. A thread that panicked with the lock ends the DPU.
fn rows(kept: &Mutex<Vec<Row>>) -> std::sync::MutexGuard<'_, Vec<Row>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}
