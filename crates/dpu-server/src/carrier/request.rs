//! Requests of a carrier, from acceptance to completion: sources and destinations of their bytes.

use super::Memory;
use super::moving::Source;
use farmem_client::{Error, PayloadSink, SourcePart};
use farmem_dpu::Slot;
use farmem_paging::Cause;
use farmem_wire::VirtAddr;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

/// A pending request of a carrier.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) addr: VirtAddr,
    /// Offset of the first byte in its page.
    pub(super) offset: usize,
    pub(super) len: usize,
    /// The bytes of a write, or the buffer of a read. Empty until necessary.
    pub(super) buf: Vec<u8>,
    /// The destination of a read's bytes, straight from the packets and without a buffer.
    pub(super) landing: Option<Arc<dyn PayloadSink>>,
    /// The source of a write's bytes, taken when they are sent and without a buffer.
    pub(super) from: Option<SourcePart>,
    /// True if the bytes have reached `landing`.
    pub(super) landed: bool,
    pub(super) write: bool,
    pub(super) error: Option<Error>,
    /// Number of times that the request's bytes were put into a slot.
    pub(super) put: u64,
}

impl core::fmt::Debug for Memory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Memory").field("page_len", &self.page_len).finish_non_exhaustive()
    }
}

impl Memory {
    /// Stores a write's bytes in a slot. Returns false if the source no longer has the bytes.
    pub(super) fn store(&self, slot: Slot, at: usize, asked: &PendingRequest) -> bool {
        let Some(from) = &asked.from else {
            self.put(slot, at, &[&asked.buf]);
            return true;
        };
        let mut slot = self.slot(slot).write().unwrap_or_else(PoisonError::into_inner);
        slot.resize(self.entry_len, 0);
        from.fill(0, &mut [&mut slot[at..at + from.len()]])
    }
}

impl PendingRequest {
    /// Creates a request for the bytes `at` of a page.
    pub(super) const fn new(
        addr: VirtAddr,
        at: &Range<usize>,
        buf: Vec<u8>,
        landing: Option<Arc<dyn PayloadSink>>,
    ) -> Self {
        let (offset, len) = (at.start, at.end - at.start);
        Self { addr, offset, len, buf, landing, from: None, landed: false, write: false, error: None, put: 0 }
    }
}

/// A position in a slot. Bytes that are read ahead go there straight from the packets.
#[derive(Debug)]
pub(super) struct SlotAt {
    pub(super) memory: Arc<Memory>,
    pub(super) slot: Slot,
    pub(super) at: usize,
}

impl PayloadSink for SlotAt {
    fn put(&self, offset: u64, pieces: &[&[u8]]) {
        let offset = usize::try_from(offset).expect("inside an entry");
        self.memory.put(self.slot, self.at + offset, pieces);
    }
}

/// A request that has ended. Pass it to [`Carrier::finish`](super::Carrier::finish) or
/// [`Carrier::collect`](super::Carrier::collect).
#[derive(Debug)]
pub struct AskEnded {
    /// The ticket of the request.
    pub ticket: u64,
    /// The result of the request.
    pub result: Result<(), Failed>,
    pub(super) buf: Vec<u8>,
    pub(super) source: Source,
    pub(super) write: bool,
    /// Number of times that the request's bytes were put into a slot.
    pub(super) put: u64,
}

impl AskEnded {
    /// Returns the number of copies of the request's bytes within the DPU.
    ///
    /// A read is copied into a client buffer, or answered from a slot or static memory. A write is copied into a slot
    /// that later reads use. The receive buffer of the link and the memory of the process do not count.
    pub fn copies(&self) -> u64 {
        match self.source {
            Source::ReadDelivery => 0,
            Source::Buffer if self.write || self.result.is_err() => self.put,
            Source::Buffer | Source::Slot { .. } | Source::Fixed { .. } => 1,
        }
    }

    /// Returns true if the bytes of a successful read have reached their destination
    /// ([`Carrier::read_to`](super::Carrier::read_to)).
    pub const fn has_landed(&self) -> bool {
        matches!(self.source, Source::ReadDelivery)
    }

    /// Returns true if the request failed for a reason other than far memory's answer.
    pub fn has_failed(&self) -> bool {
        matches!(self.result, Err(Failed { cause: Cause::Failed, .. }))
    }
}

/// The cause of a failed request: for the protocol of rings, and for users.
#[derive(Debug)]
pub struct Failed {
    /// The cause in terms of the protocol.
    pub cause: Cause,
    /// The client's error; `None` if the client had no part in the request.
    pub error: Option<Error>,
}
