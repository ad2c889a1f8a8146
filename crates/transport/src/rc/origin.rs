//! Source memory for WRITEs without a buffer: payloads are read from there as packets are made.
//!
//! Key types: [`Origin`], the memory; [`Stretch`], the part of it that a WRITE carries. A retransmitted
//! packet is made from the origin again, so the bytes must stay in place until the WRITE completes. If the
//! bytes change meanwhile, each packet may carry the old or the new bytes.

use super::part::Part;
use core::fmt::Debug;

/// Memory that WRITE payloads are copied from as packets leave.
pub trait Origin: Debug + Send + Sync {
    /// Fills `pieces`, one behind the other, with the bytes from `offset` on: the payloads of consecutive
    /// packets. Returns false on failure.
    fn take(&self, offset: u64, pieces: &mut [&mut [u8]]) -> bool;
}

/// A part of an [`Origin`].
pub type Stretch = Part<dyn Origin>;

impl Stretch {
    /// Fills `pieces`, one behind the other, with the bytes from `offset` of the part on; returns false on
    /// failure.
    ///
    /// # Panics
    /// With debug assertions, if the part has fewer bytes.
    pub fn take(&self, offset: usize, pieces: &mut [&mut [u8]]) -> bool {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        self.memory.take(self.place(offset, len), pieces)
    }
}
