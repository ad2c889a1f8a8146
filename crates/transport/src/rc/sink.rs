//! Destination memory for READs without a buffer: payloads go there straight from the packets.
//!
//! Key types: [`PayloadSink`], the memory; [`SinkPart`], the part of it that a READ fills; [`Arrivals`], the payloads
//! of packets that arrived together. The bytes are copied once, from the link's receive buffer to their
//! destination.

use super::part::Part;
use core::fmt::Debug;
use farmem_machine::Lender;
use smallvec::SmallVec;

/// Memory that READ payloads are copied to as they arrive.
pub trait PayloadSink: Debug + Send + Sync {
    /// Copies `pieces`, one behind the other, to `offset`. The pieces are payloads of consecutive packets
    /// that arrived together. Payloads of a retransmitted packet may come twice. Payloads of a READ that
    /// fails later may have been copied.
    fn put(&self, offset: u64, pieces: &[&[u8]]);

    /// Copies `pieces` as [`PayloadSink::put`]. `_lender` can lend the memory of the pieces; an implementation
    /// that borrows them may copy after this call returned, and on another thread.
    fn put_from(&self, offset: u64, pieces: &[&[u8]], _lender: &dyn Lender) {
        self.put(offset, pieces);
    }
}

/// A part of a [`PayloadSink`].
pub type SinkPart = Part<dyn PayloadSink>;

impl SinkPart {
    /// Copies `pieces`, one behind the other, to `offset` of the part. `lender` can lend their memory.
    ///
    /// # Panics
    /// With debug assertions, if the pieces exceed the part.
    pub fn put(&self, offset: usize, pieces: &[&[u8]], lender: &dyn Lender) {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        self.memory.put_from(self.place(offset, len), pieces, lender);
    }
}

/// Most pieces of one call: twice the packets of a READ response of 64 KiB.
const PIECES_MAX: usize = 32;

/// Payloads of packets that arrived together and are not copied yet. Payloads of consecutive packets share
/// one call of [`PayloadSink::put`]. Dropping this value copies all of them, so the bytes are in place before a
/// completion is reported.
#[derive(Debug)]
pub struct Arrivals<'p> {
    /// Destination of the first piece, its offset there, and the offset of the next piece.
    to: Option<(SinkPart, usize, usize)>,
    /// Bounded by the inline capacity. A requester creates one list per datagram, and most datagrams have no
    /// payload for a sink; so the elements stay uninitialized until used.
    pieces: SmallVec<[&'p [u8]; PIECES_MAX]>,
    /// Lender of the memory of all pieces.
    lender: &'p dyn Lender,
}

impl<'p> Arrivals<'p> {
    /// Creates an empty list for packets in memory that `lender` may lend.
    #[must_use]
    pub fn new(lender: &'p dyn Lender) -> Self {
        Self { to: None, pieces: SmallVec::new(), lender }
    }

    /// Adds bytes for `offset` of a part.
    pub(super) fn add(&mut self, part: &SinkPart, offset: usize, bytes: &'p [u8]) {
        let goes_on = |(to, _, end): &(SinkPart, usize, usize)| *end == offset && to == part;
        if self.pieces.len() == PIECES_MAX || !self.to.as_ref().is_some_and(goes_on) {
            self.put();
            self.to = Some((part.clone(), offset, offset));
        }
        self.pieces.push(bytes);
        if let Some((.., end)) = &mut self.to {
            *end += bytes.len();
        }
    }

    fn put(&mut self) {
        if let Some((part, offset, _)) = self.to.take() {
            part.put(offset, &self.pieces, self.lender);
        }
        self.pieces.clear();
    }
}

impl Drop for Arrivals<'_> {
    fn drop(&mut self) {
        self.put();
    }
}
