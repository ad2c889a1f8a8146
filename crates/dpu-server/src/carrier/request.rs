//! Requests that a carrier took, from when they are taken until they have ended: where their bytes are, and where they go.

use super::Memory;
use super::moving::Source;
use farmem_client::{Error, Landing, Stretch};
use farmem_dpu::Slot;
use farmem_paging::Cause;
use farmem_wire::VirtAddr;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

/// A request that a carrier took.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) addr: VirtAddr,
    /// Where it begins in its page, and its bytes.
    pub(super) offset: usize,
    pub(super) len: usize,
    /// The bytes of a write; of a read a buffer, or none yet.
    pub(super) buf: Vec<u8>,
    /// For a read: the place where far memory's bytes go straight from the packets that bring them, instead of a buffer.
    pub(super) landing: Option<Arc<dyn Landing>>,
    /// For a write: the place where its bytes are taken from as they leave, instead of a buffer.
    pub(super) from: Option<Stretch>,
    /// The bytes are there.
    pub(super) landed: bool,
    pub(super) write: bool,
    pub(super) error: Option<Error>,
    /// Times that its bytes were put into a slot.
    pub(super) put: u64,
}

impl core::fmt::Debug for Memory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Memory").field("page_len", &self.page_len).finish_non_exhaustive()
    }
}

impl Memory {
    /// Stores a write's bytes in a slot; false when they cannot be had any more.
    pub(super) fn store(&self, slot: Slot, at: usize, asked: &PendingRequest) -> bool {
        let Some(from) = &asked.from else {
            self.put(slot, at, &[&asked.buf]);
            return true;
        };
        let mut slot = self.slot(slot).write().unwrap_or_else(PoisonError::into_inner);
        slot.resize(self.entry_len, 0);
        from.take(0, &mut [&mut slot[at..at + from.len()]])
    }
}

impl PendingRequest {
    /// One that was taken a moment ago: `at` is where its bytes are in its page.
    pub(super) const fn new(
        addr: VirtAddr,
        at: &Range<usize>,
        buf: Vec<u8>,
        landing: Option<Arc<dyn Landing>>,
    ) -> Self {
        let (offset, len) = (at.start, at.end - at.start);
        Self { addr, offset, len, buf, landing, from: None, landed: false, write: false, error: None, put: 0 }
    }
}

/// A place in a slot: what is read ahead goes there from the very packets.
#[derive(Debug)]
pub(super) struct SlotAt {
    pub(super) memory: Arc<Memory>,
    pub(super) slot: Slot,
    pub(super) at: usize,
}

impl Landing for SlotAt {
    fn put(&self, offset: u64, pieces: &[&[u8]]) {
        let offset = usize::try_from(offset).expect("inside an entry");
        self.memory.put(self.slot, self.at + offset, pieces);
    }
}

/// A request ended. [`Carrier::finish`](super::Carrier::finish) or [`Carrier::collect`](super::Carrier::collect) takes it.
#[derive(Debug)]
pub struct AskEnded {
    /// The ticket that the request was given.
    pub ticket: u64,
    /// How it ended.
    pub result: Result<(), Failed>,
    pub(super) buf: Vec<u8>,
    pub(super) source: Source,
    pub(super) write: bool,
    /// Times that its bytes were put into a slot.
    pub(super) put: u64,
}

impl AskEnded {
    /// Copies of its bytes within the DPU, between the buffer that the link received them in and where the process has them: into a buffer of the client, or into a slot or
    /// static memory from which a read is answered; of a write, into a slot in which it is to be seen.
    pub fn copies(&self) -> u64 {
        match self.source {
            Source::Landed => 0,
            Source::Buffer if self.write || self.result.is_err() => self.put,
            Source::Buffer | Source::Slot { .. } | Source::Fixed { .. } => 1,
        }
    }

    /// The bytes of a read that went well are where they go: no one is left to move them ([`Carrier::read_to`](super::Carrier::read_to)).
    pub const fn has_landed(&self) -> bool {
        matches!(self.source, Source::Landed)
    }

    /// True when the request failed, and not because far memory said so.
    pub fn has_failed(&self) -> bool {
        matches!(self.result, Err(Failed { cause: Cause::Failed, .. }))
    }
}

/// Why a request failed: for the protocol of rings, and for people.
#[derive(Debug)]
pub struct Failed {
    /// For the protocol.
    pub cause: Cause,
    /// The client's error; `None` when the client was not asked.
    pub error: Option<Error>,
}
