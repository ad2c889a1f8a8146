//! Where the bytes of a WRITE are taken from as the packets that carry them are made.
//!
//! Key types: [`Origin`], memory that gives them; [`Stretch`], the part of one that a WRITE carries. A WRITE with a stretch has no buffer: a packet that is lost is made again from there, so whoever posts one leaves
//! the bytes where they are until it has ended. What changes there meanwhile may be written or not, packet by packet.

use super::part::Part;
use core::fmt::Debug;

/// Memory that gives bytes when they leave.
pub trait Origin: Debug + Send + Sync {
    /// Fills `pieces`, one behind the other, with the bytes from the `offset`-th on: those of packets in a row. False when it cannot.
    fn take(&self, offset: u64, pieces: &mut [&mut [u8]]) -> bool;
}

/// A part of an [`Origin`].
pub type Stretch = Part<dyn Origin>;

impl Stretch {
    /// Fills `pieces`, one behind the other, with its bytes from the `offset`-th on; false when they cannot be had.
    ///
    /// # Panics
    /// In a build with debug assertions, when it has fewer.
    pub fn take(&self, offset: usize, pieces: &mut [&mut [u8]]) -> bool {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        self.memory.take(self.place(offset, len), pieces)
    }
}
