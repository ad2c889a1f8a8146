//! Requests for counters, and the reading in progress (PROTOCOL 13.17, 13.18).

use crate::soft::burst::SOFT_WINDOW;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use farmem_machine::Instant;
use farmem_transport::image::SectionKey;
use farmem_wire::RequestId;
use farmem_wire::message::SOFT_COUNTS_MAX;

/// How often a reading may restart because another image became active.
pub const COUNTS_ANEW_MAX: u32 = 8;

/// Requests for counters, and the reading in progress.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    /// Requests in order. The first is being read.
    pub(super) asked: VecDeque<(u64, SectionKey)>,
    pub(super) reading: Option<Reading>,
    pub(super) due: Option<Instant>,
}

/// Counters that are being read.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Incarnation of the switch, epoch of the image and edition of the section.
    pub(super) of: Option<(u16, u64, u64)>,
    pub(super) bytes: Vec<u8>,
    /// Parts that have not arrived.
    pub(super) missing: usize,
    /// The first part that was not requested.
    pub(super) next: usize,
    /// Open questions, and the part of each.
    pub(super) open: BTreeMap<RequestId, usize>,
    /// Timeouts since the last part.
    pub(super) idle: u32,
    /// How often the reading restarted.
    pub(super) anew: u32,
}

impl Counting {
    pub(crate) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the number of unanswered requests.
    pub(crate) fn waiting(&self) -> usize {
        self.asked.len()
    }

    pub(crate) fn check(&self) {
        assert!(self.reading.is_none() || !self.asked.is_empty(), "a reading has a request");
        let Some(reading) = &self.reading else { return };
        assert!(reading.open.len() <= SOFT_WINDOW as usize, "no more is asked for than the window");
        assert!(reading.missing >= reading.open.len(), "what is asked for has not come");
    }
}

impl Reading {
    pub(super) fn parts(&self) -> usize {
        (self.bytes.len() / 4).div_ceil(SOFT_COUNTS_MAX)
    }

    /// Returns the bytes of a part.
    pub(super) fn part(&mut self, part: usize) -> &mut [u8] {
        let first = (4 * SOFT_COUNTS_MAX * part).min(self.bytes.len());
        let end = (first + 4 * SOFT_COUNTS_MAX).min(self.bytes.len());
        &mut self.bytes[first..end]
    }
}
