//! Source memory for WRITEs without a buffer: payloads are read from there as packets are made.
//!
//! Key types: [`PayloadSource`], the memory; [`SourcePart`], the part of it that a WRITE carries. A retransmitted
//! packet is made from the source again, so the bytes must stay in place until the WRITE completes. If the
//! bytes change meanwhile, each packet may carry the old or the new bytes.

use super::part::Part;
use core::fmt::Debug;

/// Memory that WRITE payloads are copied from as packets leave.
pub trait PayloadSource: Debug + Send + Sync {
    /// Fills `pieces`, one behind the other, with the bytes from `offset` on: the payloads of consecutive
    /// packets. Returns false on failure.
    fn fill(&self, offset: u64, pieces: &mut [&mut [u8]]) -> bool;
}

/// A part of a [`PayloadSource`].
pub type SourcePart = Part<dyn PayloadSource>;

impl SourcePart {
    /// Fills `pieces`, one behind the other, with the bytes from `offset` of the part on; returns false on
    /// failure.
    ///
    /// # Panics
    /// With debug assertions, if the part has fewer bytes.
    pub fn fill(&self, offset: usize, pieces: &mut [&mut [u8]]) -> bool {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        self.memory.fill(self.place(offset, len), pieces)
    }
}
