//! Extension headers in place, for a switch that reads and rewrites them (PROTOCOL 2.4).
//!
//! A view's bytes start where its header starts; in a frame, [`crate::bth::View::after`] returns them. Bytes
//! behind the header stay as they are. After `new_checked`, no getter or setter panics. The offsets here are
//! the only ones: the values in [`super`] read and write through these views.

use crate::{Psn, Qkey, Qpn, Rkey, Syndrome, VirtAddr, WireError};
use core::ops::Range;

/// Offsets of the fields; named only here.
mod field {
    pub(super) mod reth {
        use core::ops::Range;
        pub(in super::super) const VA: Range<usize> = 0..8;
        pub(in super::super) const RKEY: Range<usize> = 8..12;
        pub(in super::super) const DMA_LEN: Range<usize> = 12..16;
    }
    pub(super) mod atomic {
        use core::ops::Range;
        pub(in super::super) const VA: Range<usize> = 0..8;
        pub(in super::super) const RKEY: Range<usize> = 8..12;
        pub(in super::super) const SWAP_OR_ADD: Range<usize> = 12..20;
        pub(in super::super) const COMPARE: Range<usize> = 20..28;
    }
    pub(super) mod aeth {
        use core::ops::Range;
        pub(in super::super) const SYNDROME: usize = 0;
        pub(in super::super) const MSN: Range<usize> = 1..4;
    }
    pub(super) mod deth {
        use core::ops::Range;
        pub(in super::super) const QKEY: Range<usize> = 0..4;
        pub(in super::super) const RESERVED: usize = 4;
        pub(in super::super) const SRC_QP: Range<usize> = 5..8;
    }
}

/// A RETH in place.
#[derive(Clone, Copy, Debug)]
pub struct Reth<T>(pub(super) T);

impl<T: AsRef<[u8]>> Reth<T> {
    /// Checks length and DMA length.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn new_checked(bytes: T) -> Result<Self, WireError> {
        long_enough("RETH", super::Reth::LEN, bytes.as_ref())?;
        let view = Self(bytes);
        if view.dma_len() > super::DMA_LEN_MAX {
            return Err(WireError::Unknown { what: "RETH.DMALen", value: u64::from(view.dma_len()) });
        }
        Ok(view)
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn va(&self) -> VirtAddr {
        VirtAddr(get64(self.0.as_ref(), field::reth::VA))
    }

    /// Returns the key of the memory.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        Rkey(get32(self.0.as_ref(), field::reth::RKEY))
    }

    /// Returns the length of the whole message in bytes.
    #[must_use]
    pub fn dma_len(&self) -> u32 {
        get32(self.0.as_ref(), field::reth::DMA_LEN)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Reth<T> {
    /// Rewrites the address.
    pub fn set_va(&mut self, va: VirtAddr) {
        put(self.0.as_mut(), field::reth::VA, &va.0.to_be_bytes());
    }

    /// Rewrites the key.
    pub fn set_rkey(&mut self, rkey: Rkey) {
        put(self.0.as_mut(), field::reth::RKEY, &rkey.0.to_be_bytes());
    }

    /// Rewrites the length. Receivers refuse a header with more than [`super::DMA_LEN_MAX`].
    pub fn set_dma_len(&mut self, bytes: u32) {
        put(self.0.as_mut(), field::reth::DMA_LEN, &bytes.to_be_bytes());
    }
}

/// An AtomicETH in place.
#[derive(Clone, Copy, Debug)]
pub struct AtomicEth<T>(pub(super) T);

impl<T: AsRef<[u8]>> AtomicEth<T> {
    /// Checks the length.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn new_checked(bytes: T) -> Result<Self, WireError> {
        long_enough("AtomicETH", super::AtomicEth::LEN, bytes.as_ref())?;
        Ok(Self(bytes))
    }

    /// Returns the address of the word.
    #[must_use]
    pub fn va(&self) -> VirtAddr {
        VirtAddr(get64(self.0.as_ref(), field::atomic::VA))
    }

    /// Returns the key of the memory.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        Rkey(get32(self.0.as_ref(), field::atomic::RKEY))
    }

    /// Returns the value to swap in, or to add.
    #[must_use]
    pub fn swap_or_add(&self) -> u64 {
        get64(self.0.as_ref(), field::atomic::SWAP_OR_ADD)
    }

    /// Returns the value that must be there for the swap.
    #[must_use]
    pub fn compare(&self) -> u64 {
        get64(self.0.as_ref(), field::atomic::COMPARE)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> AtomicEth<T> {
    /// Rewrites the address.
    pub fn set_va(&mut self, va: VirtAddr) {
        put(self.0.as_mut(), field::atomic::VA, &va.0.to_be_bytes());
    }

    /// Rewrites the key.
    pub fn set_rkey(&mut self, rkey: Rkey) {
        put(self.0.as_mut(), field::atomic::RKEY, &rkey.0.to_be_bytes());
    }

    /// Rewrites the value to swap in, or to add.
    pub fn set_swap_or_add(&mut self, value: u64) {
        put(self.0.as_mut(), field::atomic::SWAP_OR_ADD, &value.to_be_bytes());
    }

    /// Rewrites the value that must be there.
    pub fn set_compare(&mut self, value: u64) {
        put(self.0.as_mut(), field::atomic::COMPARE, &value.to_be_bytes());
    }
}

/// An AETH in place.
#[derive(Clone, Copy, Debug)]
pub struct Aeth<T>(pub(super) T);

impl<T: AsRef<[u8]>> Aeth<T> {
    /// Checks the length. The syndrome may still be unknown.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn new_checked(bytes: T) -> Result<Self, WireError> {
        long_enough("AETH", super::Aeth::LEN, bytes.as_ref())?;
        Ok(Self(bytes))
    }

    /// Returns the syndrome.
    ///
    /// # Errors
    /// [`WireError::Unknown`] for a reserved type or an unknown NAK.
    pub fn syndrome(&self) -> Result<Syndrome, WireError> {
        Syndrome::from_bits(self.0.as_ref()[field::aeth::SYNDROME])
    }

    /// Returns the number of messages that the responder completed, modulo 2^24.
    #[must_use]
    pub fn msn(&self) -> Psn {
        Psn::new(get24(self.0.as_ref(), field::aeth::MSN))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Aeth<T> {
    /// Rewrites the syndrome.
    pub fn set_syndrome(&mut self, syndrome: Syndrome) {
        self.0.as_mut()[field::aeth::SYNDROME] = syndrome.bits();
    }

    /// Rewrites the message sequence number.
    pub fn set_msn(&mut self, msn: Psn) {
        put24(self.0.as_mut(), field::aeth::MSN, msn.get());
    }
}

/// A DETH in place.
#[derive(Clone, Copy, Debug)]
pub struct Deth<T>(pub(super) T);

impl<T: AsRef<[u8]>> Deth<T> {
    /// Checks length and reserved byte.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn new_checked(bytes: T) -> Result<Self, WireError> {
        long_enough("DETH", super::Deth::LEN, bytes.as_ref())?;
        if bytes.as_ref()[field::deth::RESERVED] != 0 {
            return Err(WireError::Reserved { what: "DETH.reserved8" });
        }
        Ok(Self(bytes))
    }

    /// Returns the key of the receiving queue pair.
    #[must_use]
    pub fn qkey(&self) -> Qkey {
        Qkey(get32(self.0.as_ref(), field::deth::QKEY))
    }

    /// Returns the sending queue pair.
    #[must_use]
    pub fn src_qp(&self) -> Qpn {
        Qpn::new(get24(self.0.as_ref(), field::deth::SRC_QP))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Deth<T> {
    /// Rewrites the key.
    pub fn set_qkey(&mut self, qkey: Qkey) {
        put(self.0.as_mut(), field::deth::QKEY, &qkey.0.to_be_bytes());
    }

    /// Rewrites the sending queue pair.
    pub fn set_src_qp(&mut self, qpn: Qpn) {
        put24(self.0.as_mut(), field::deth::SRC_QP, qpn.get());
    }
}

fn long_enough(what: &'static str, need: usize, bytes: &[u8]) -> Result<(), WireError> {
    if bytes.len() < need { Err(WireError::Short { what, need, have: bytes.len() }) } else { Ok(()) }
}

fn get64(bytes: &[u8], at: Range<usize>) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at]);
    u64::from_be_bytes(word)
}

fn get32(bytes: &[u8], at: Range<usize>) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at]);
    u32::from_be_bytes(word)
}

fn get24(bytes: &[u8], at: Range<usize>) -> u32 {
    let mut word = [0; 4];
    word[1..].copy_from_slice(&bytes[at]);
    u32::from_be_bytes(word)
}

fn put(bytes: &mut [u8], at: Range<usize>, field: &[u8]) {
    bytes[at].copy_from_slice(field);
}

fn put24(bytes: &mut [u8], at: Range<usize>, value: u32) {
    put(bytes, at, &value.to_be_bytes()[1..]);
}

#[cfg(test)]
mod tests;
