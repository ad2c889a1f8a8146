//! The extension headers behind the BTH, as values (PROTOCOL 2.4). [`view`] has views that rewrite in place.

use crate::reader::Reader;
use crate::{Psn, Qkey, Qpn, Rkey, VirtAddr, WireError};
use alloc::vec::Vec;

pub mod view;

/// The largest DMA length of a READ or WRITE (PROTOCOL 2.4).
pub const DMA_LEN_MAX: u32 = 1 << 31;

/// RETH: the memory that a READ or WRITE accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// Address of the first byte.
    pub va: VirtAddr,
    /// Key of the memory.
    pub rkey: Rkey,
    /// Bytes of the whole message, pad not counted; at most [`DMA_LEN_MAX`].
    pub dma_len: u32,
}

impl Reth {
    /// Bytes of a RETH.
    pub const LEN: usize = 16;

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let view = view::Reth::new_checked(r.take(Self::LEN)?)?;
        Ok(Self { va: view.va(), rkey: view.rkey(), dma_len: view.dma_len() })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        assert!(self.dma_len <= DMA_LEN_MAX, "a message has at most 2^31 bytes");
        let mut view = view::Reth([0; Self::LEN]);
        view.set_va(self.va);
        view.set_rkey(self.rkey);
        view.set_dma_len(self.dma_len);
        out.extend_from_slice(&view.0);
    }
}

/// AtomicETH: an atomic on 8 bytes. FETCH_ADD ignores `compare`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// Address of the word, aligned to 8 (the responder checks).
    pub va: VirtAddr,
    /// Key of the memory.
    pub rkey: Rkey,
    /// The value to swap in, or to add.
    pub swap_or_add: u64,
    /// The value that must be there for the swap.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes of an AtomicETH.
    pub const LEN: usize = 28;

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let view = view::AtomicEth::new_checked(r.take(Self::LEN)?)?;
        Ok(Self {
            va: view.va(),
            rkey: view.rkey(),
            swap_or_add: view.swap_or_add(),
            compare: view.compare(),
        })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        let mut view = view::AtomicEth([0; Self::LEN]);
        view.set_va(self.va);
        view.set_rkey(self.rkey);
        view.set_swap_or_add(self.swap_or_add);
        view.set_compare(self.compare);
        out.extend_from_slice(&view.0);
    }
}

/// The reason of a negative acknowledgement (PROTOCOL 2.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Nak {
    /// 0x60: a packet before this one is missing; the requester goes back to the PSN in the NAK.
    PsnSequence = 0x60,
    /// 0x61: opcode out of order, wrong length, misaligned atomic, or an operation that this queue pair does
    /// not support.
    InvalidRequest = 0x61,
    /// 0x62: wrong rkey, bounds or permission.
    RemoteAccess = 0x62,
    /// 0x63: the responder could not carry out the operation.
    RemoteOperational = 0x63,
}

/// The syndrome of an AETH (PROTOCOL 2.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// Success. farmem sends no credits (0x1f) and ignores those it receives.
    Ack,
    /// Receiver not ready. The requester retries after the time that this 5-bit code stands for.
    Rnr(u8),
    /// Refusal, with its reason.
    Nak(Nak),
}

impl Syndrome {
    /// Returns the byte on the wire.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Ack => 0x1f,
            Self::Rnr(code) => 0x20 | code & 0x1f,
            Self::Nak(nak) => nak as u8,
        }
    }

    /// Returns the syndrome with this byte.
    ///
    /// # Errors
    /// [`WireError::Unknown`] for a reserved type or an unknown NAK.
    pub const fn from_bits(bits: u8) -> Result<Self, WireError> {
        Ok(match bits {
            0x00..=0x1f => Self::Ack,
            0x20..=0x3f => Self::Rnr(bits & 0x1f),
            0x60 => Self::Nak(Nak::PsnSequence),
            0x61 => Self::Nak(Nak::InvalidRequest),
            0x62 => Self::Nak(Nak::RemoteAccess),
            0x63 => Self::Nak(Nak::RemoteOperational),
            _ => return Err(WireError::Unknown { what: "AETH.Syndrome", value: bits as u64 }),
        })
    }
}

/// AETH: an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// Success, receiver not ready, or refusal.
    pub syndrome: Syndrome,
    /// Messages completed by the responder, modulo 2^24.
    pub msn: Psn,
}

impl Aeth {
    /// Bytes of an AETH.
    pub const LEN: usize = 4;

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let view = view::Aeth::new_checked(r.take(Self::LEN)?)?;
        Ok(Self { syndrome: view.syndrome()?, msn: view.msn() })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        let mut view = view::Aeth([0; Self::LEN]);
        view.set_syndrome(self.syndrome);
        view.set_msn(self.msn);
        out.extend_from_slice(&view.0);
    }
}

/// DETH: the datagram header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// Key of the receiving queue pair.
    pub qkey: Qkey,
    /// The sending queue pair.
    pub src_qp: Qpn,
}

impl Deth {
    /// Bytes of a DETH.
    pub const LEN: usize = 8;

    #[inline]
    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let view = view::Deth::new_checked(r.fixed::<{ Self::LEN }>()?)?;
        Ok(Self { qkey: view.qkey(), src_qp: view.src_qp() })
    }

    #[inline]
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }

    #[inline]
    pub(crate) fn bytes(&self) -> [u8; Self::LEN] {
        let mut view = view::Deth([0; Self::LEN]);
        view.set_qkey(self.qkey);
        view.set_src_qp(self.src_qp);
        view.0
    }
}
