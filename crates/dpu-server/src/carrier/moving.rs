//! Bytes of a successful read on their way to the requester: in a buffer, in a slot that stays until they are moved, or in static memory.

use super::Memory;
use farmem_dpu::Slot;
use farmem_machine::Instant;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

/// Where the bytes of a read that went well are.
#[derive(Debug)]
pub(super) enum Source {
    Buffer,
    /// Where they go: nothing is left to move.
    Landed,
    Slot {
        slot: Slot,
        at: Range<usize>,
    },
    Fixed {
        page: Arc<[u8]>,
        at: Range<usize>,
    },
}

/// The bytes, for any thread to move.
#[derive(Debug)]
pub struct Moving {
    pub(super) ticket: u64,
    pub(super) buf: Vec<u8>,
    pub(super) source: Source,
    pub(super) memory: Arc<Memory>,
}

impl Moving {
    /// Shows the bytes to `each`, where they are, and is done with the request; gives its buffer back. `has` says when the process has them, where that is not as soon as
    /// they are copied.
    pub fn finish(self, has: Option<Instant>, each: impl FnOnce(&[u8])) -> Vec<u8> {
        let Self { ticket, buf, source, memory } = self;
        match source {
            Source::Buffer => each(&buf),
            Source::Landed => each(&[]),
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
