//! The bytes of a successful read on their way to the requester: in a buffer, in a pinned slot, or in static memory.

use super::Memory;
use farmem_dpu::Slot;
use farmem_machine::Instant;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

/// The location of a successful read's bytes.
#[derive(Debug)]
pub(super) enum Source {
    Buffer,
    /// The bytes have reached their destination.
    ReadDelivery,
    Slot {
        slot: Slot,
        at: Range<usize>,
    },
    Fixed {
        page: Arc<[u8]>,
        at: Range<usize>,
    },
}

/// The bytes of a successful read, which any thread can move.
#[derive(Debug)]
pub struct Moving {
    pub(super) ticket: u64,
    pub(super) buf: Vec<u8>,
    pub(super) source: Source,
    pub(super) memory: Arc<Memory>,
}

impl Moving {
    /// Passes the bytes to `each`, ends the request and returns its buffer. `has` is the time at which the process
    /// receives the bytes, if they arrive later than the copy.
    pub fn finish(self, has: Option<Instant>, each: impl FnOnce(&[u8])) -> Vec<u8> {
        let Self { ticket, buf, source, memory } = self;
        match source {
            Source::Buffer => each(&buf),
            Source::ReadDelivery => each(&[]),
            Source::Slot { slot, at } => {
                let bytes = u32::try_from(at.len()).expect("a part of a page");
                each(&memory.slot(slot).read().unwrap_or_else(PoisonError::into_inner)[at]);
                let now = has.unwrap_or_else(|| memory.now());
                memory.decisions().copied(now, ticket, bytes);
            }
            Source::Fixed { page, at } => each(&page[at]),
        }
        buf
    }
}
