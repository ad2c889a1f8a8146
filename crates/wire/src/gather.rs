//! The payload of a gather READ request: the pieces that it asks for, behind its RETH (PROTOCOL 4.30).
//!
//! Key type: [`Gather`], a view of the payload that was checked against the RETH. The RETH has the address of
//! the first requested byte and the total length. The payload has the length of a piece, the bytes of the
//! first piece to skip, and the addresses of the other pieces.

use crate::headers::Reth;
use crate::reader::{Put, Reader};
use crate::{VirtAddr, WireError};
use alloc::vec::Vec;

/// Pieces of a gather READ at most.
pub const PIECES_MAX: usize = 64;

const ADDR_LEN: usize = 8;
const WHAT: &str = "gather READ request";

/// The payload of a gather READ request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gather<'a> {
    each: u32,
    skip: u32,
    /// Address of the first piece.
    first: VirtAddr,
    /// Encoded addresses of the other pieces.
    others: &'a [u8],
}

impl<'a> Gather<'a> {
    /// Bytes before the addresses.
    pub const FIXED_LEN: usize = 8;

    /// Returns the payload length for `pieces`.
    #[must_use]
    pub const fn len_for(pieces: usize) -> usize {
        Self::FIXED_LEN + pieces.saturating_sub(1) * ADDR_LEN
    }

    /// Reads the payload that came with `reth`. Together they name one piece to [`PIECES_MAX`], each with a
    /// requested byte.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn parse(reth: &Reth, payload: &'a [u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(WHAT, payload);
        let (each, skip) = (r.u32()?, r.u32()?);
        let others = r.rest();
        let pieces = 1 + others.len() / ADDR_LEN;
        if !others.len().is_multiple_of(ADDR_LEN) || pieces > PIECES_MAX {
            let most = Self::len_for(PIECES_MAX);
            return Err(WireError::Long { what: WHAT, most, have: payload.len() });
        }
        let asked = u64::from(skip) + u64::from(reth.dma_len);
        let room = u64::from(each) * pieces as u64;
        if skip >= each || reth.dma_len == 0 || asked > room || asked <= room - u64::from(each) {
            return Err(WireError::Unknown { what: "bytes of a gather READ", value: asked });
        }
        Ok(Self { each, skip, first: VirtAddr(reth.va.0.wrapping_sub(skip.into())), others })
    }

    /// Appends the payload of a request for pieces of `each` bytes. The first `skip` bytes of the first piece
    /// are not requested; the other pieces begin at `others`.
    pub fn emit(each: u32, skip: u32, others: &[VirtAddr], out: &mut Vec<u8>) {
        out.put_u32(each);
        out.put_u32(skip);
        others.iter().for_each(|addr| out.put_u64(addr.0));
    }

    /// Returns an address and a length for each piece of the range `offset..offset + len` of the requested
    /// bytes. The range must be within the length in the RETH.
    pub fn places(&self, offset: u32, len: u32) -> impl Iterator<Item = (VirtAddr, u32)> + use<'a> {
        let Self { each, skip, first, others } = *self;
        let (mut at, end) =
            (u64::from(skip) + u64::from(offset), u64::from(skip) + u64::from(offset) + u64::from(len));
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (piece, within) = (at / u64::from(each), at % u64::from(each));
            let base = match usize::try_from(piece).ok()?.checked_sub(1) {
                None => first,
                Some(other) => {
                    let bytes = others.get(other * ADDR_LEN..)?.first_chunk()?;
                    VirtAddr(u64::from_be_bytes(*bytes))
                }
            };
            let len = (u64::from(each) - within).min(end - at);
            at += len;
            Some((VirtAddr(base.0.wrapping_add(within)), u32::try_from(len).ok()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rkey;
    use alloc::vec;

    fn parse(va: u64, dma_len: u32, payload: &[u8]) -> Result<Vec<(u64, u32)>, WireError> {
        let reth = Reth { va: VirtAddr(va), rkey: Rkey(1), dma_len };
        let gather = Gather::parse(&reth, payload)?;
        Ok(gather.places(0, dma_len).map(|(addr, len)| (addr.0, len)).collect())
    }

    /// PROTOCOL 4.30: the requested bytes are those of the pieces, from within the first piece to within the
    /// last one. Every sub-range is found.
    #[test]
    fn places_are_those_of_the_pieces() {
        let mut payload = Vec::new();
        Gather::emit(100, 30, &[VirtAddr(5000), VirtAddr(u64::MAX - 19)], &mut payload);
        assert_eq!(payload.len(), Gather::len_for(3));
        assert_eq!(parse(1030, 190, &payload).unwrap(), [(1030, 70), (5000, 100), (u64::MAX - 19, 20)]);
        let reth = Reth { va: VirtAddr(1030), rkey: Rkey(1), dma_len: 190 };
        let gather = Gather::parse(&reth, &payload).unwrap();
        let bytes = |offset, len| -> Vec<u64> {
            let places = gather.places(offset, len);
            places.flat_map(|(addr, len)| (0..len).map(move |n| addr.0 + u64::from(n))).collect()
        };
        let all = bytes(0, 190);
        for offset in 0..190 {
            for len in 0..190 - offset {
                assert_eq!(bytes(offset, len), all[offset as usize..][..len as usize], "{len} at {offset}");
            }
        }
    }

    /// PROTOCOL 4.30: a request is refused if a piece has no requested byte or no byte at all, if there are
    /// too many pieces, and if an address is cut off.
    #[test]
    fn what_makes_no_sense_is_refused() {
        let of = |each, skip, others: usize| {
            let mut payload = Vec::new();
            Gather::emit(each, skip, &vec![VirtAddr(1 << 20); others], &mut payload);
            payload
        };
        for (dma_len, payload) in [
            (0, of(8, 0, 0)),
            (1, of(0, 0, 0)),
            (1, of(8, 8, 0)),
            (9, of(8, 0, 0)),
            (5, of(8, 4, 0)),
            (8, of(8, 0, 1)),
            (4, of(8, 4, 1)),
            (8, of(8, 0, PIECES_MAX)),
            (u32::MAX, of(u32::MAX, u32::MAX - 1, 0)),
        ] {
            assert!(parse(0, dma_len, &payload).is_err(), "{dma_len} of {payload:?}");
        }
        for len in 0..Gather::len_for(2) {
            assert!(parse(0, 9, &of(8, 0, 1)[..len]).is_err(), "{len}");
        }
        let most = of(8, 0, PIECES_MAX - 1);
        assert_eq!(parse(0, 8 * 64, &most).unwrap().len(), PIECES_MAX);
        assert!(parse(0, 9, &of(8, 0, 1)).is_ok() && parse(0, 4, &of(8, 4, 0)).is_ok());
    }
}
