//! Where the bytes of a READ go straight from the packets that bring them.
//!
//! Key types: [`Landing`], memory that takes them; [`Spot`], the part of one that a READ fills; [`Arrivals`], the bytes of packets that came together, on their way there. A READ with a spot has no
//! buffer: nothing is copied between the buffer that the link received a packet in and the memory that the bytes are for.

use super::part::Part;
use core::fmt::Debug;
use farmem_machine::Lender;
use smallvec::SmallVec;

/// Memory that takes bytes as they come.
pub trait Landing: Debug + Send + Sync {
    /// Takes bytes from the `offset`-th on, which are in so many pieces, one behind the other: those of packets in a row that came together. Those of a packet that was sent again may come twice, and those
    /// of a READ that fails may have come.
    fn put(&self, offset: u64, pieces: &[&[u8]]);

    /// As [`Landing::put`], with who lends the memory that the pieces lie in: who has them lent may put them when this has returned, and on another thread.
    fn put_from(&self, offset: u64, pieces: &[&[u8]], _lender: &dyn Lender) {
        self.put(offset, pieces);
    }
}

/// A part of a [`Landing`].
pub type Spot = Part<dyn Landing>;

impl Spot {
    /// Puts bytes there, from its `offset`-th on: so many pieces, one behind the other, in memory that `lender` may lend.
    ///
    /// # Panics
    /// In a build with debug assertions, when they leave it.
    pub fn put(&self, offset: usize, pieces: &[&[u8]], lender: &dyn Lender) {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        self.memory.put_from(self.place(offset, len), pieces, lender);
    }
}

/// Pieces that are put at once, at most: a READ's answer of 64 KiB twice over.
const PIECES_MAX: usize = 32;

/// Bytes of packets that came together, which a requester took and which are to be put: those that are in a row go by one [`Landing::put`]. All are put when this is dropped, so before anybody hears that their
/// READ has ended.
#[derive(Debug)]
pub struct Arrivals<'p> {
    /// Where the first piece goes, and where the next one would.
    to: Option<(Spot, usize, usize)>,
    /// Never more than there is room for here. A requester has one of these for each datagram, of which most bring nothing for a spot: so the places are not written before they are used.
    pieces: SmallVec<[&'p [u8]; PIECES_MAX]>,
    /// Who has the memory of all of them.
    lender: &'p dyn Lender,
}

impl<'p> Arrivals<'p> {
    /// Nothing has come yet; what comes lies in memory that this one may lend.
    #[must_use]
    pub fn new(lender: &'p dyn Lender) -> Self {
        Self { to: None, pieces: SmallVec::new(), lender }
    }

    /// Bytes go to a spot, from its `offset`-th on.
    pub(super) fn add(&mut self, spot: &Spot, offset: usize, bytes: &'p [u8]) {
        let goes_on = |(to, _, end): &(Spot, usize, usize)| *end == offset && to == spot;
        if self.pieces.len() == PIECES_MAX || !self.to.as_ref().is_some_and(goes_on) {
            self.put();
            self.to = Some((spot.clone(), offset, offset));
        }
        self.pieces.push(bytes);
        if let Some((.., end)) = &mut self.to {
            *end += bytes.len();
        }
    }

    fn put(&mut self) {
        if let Some((spot, offset, _)) = self.to.take() {
            spot.put(offset, &self.pieces, self.lender);
        }
        self.pieces.clear();
    }
}

impl Drop for Arrivals<'_> {
    fn drop(&mut self) {
        self.put();
    }
}
