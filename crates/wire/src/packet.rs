//! One frame as a value: BTH, the extension headers that its opcode requires, payload.

use crate::headers::{Aeth, AtomicEth, Deth, Reth};
use crate::reader::{Put, Reader};
use crate::{Bth, Opcode, Qpn, WireError, bth};
use alloc::vec::Vec;

/// The extension headers of a packet. The opcode determines which one a packet has (PROTOCOL 2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extension {
    /// None: SEND, WRITE middle and last, READ response middle.
    None,
    /// ImmDt: SEND and WRITE last with immediate.
    Imm(u32),
    /// RETH: WRITE first and only, READ request, gather READ request.
    Reth(Reth),
    /// RETH and ImmDt: WRITE only with immediate.
    RethImm(Reth, u32),
    /// AtomicETH: CMP_SWAP, FETCH_ADD.
    AtomicEth(AtomicEth),
    /// AETH: ACKNOWLEDGE, READ response first, last, only.
    Aeth(Aeth),
    /// AETH and AtomicAckETH: the value that was there before the atomic.
    AtomicAck(Aeth, u64),
    /// DETH: UD SEND.
    Deth(Deth),
    /// DETH and ImmDt: UD SEND with immediate.
    DethImm(Deth, u32),
}

/// One frame: BTH to the end of the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// The base header.
    pub bth: Bth,
    /// The headers between the BTH and the payload.
    pub ext: Extension,
    /// The payload, pad removed.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a frame. Checks every length and reserved field, and the pad bytes.
    ///
    /// The valid payload lengths of an opcode depend on the connection's PMTU, and a wrong length is answered
    /// with a NAK. So the transport checks them (PROTOCOL 2.6).
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<Self, WireError> {
        let (bth, pad) = Bth::parse(frame)?;
        let mut r = Reader::new("packet", frame);
        r.fixed::<{ bth::LEN }>()?;
        let ext = Extension::read(bth.opcode, &mut r)?;
        let payload = without_pad(r.rest(), pad)?;
        if !payload.is_empty() && !has_payload(bth.opcode) {
            return Err(WireError::Long { what: "payload of this opcode", most: 0, have: payload.len() });
        }
        Ok(Self { bth, ext, payload })
    }

    /// Appends the frame, padded.
    ///
    /// # Panics
    /// If `ext` does not fit the opcode, or there is a payload and the opcode has none.
    pub fn emit(&self, out: &mut Vec<u8>) {
        Self::emit_with(&self.bth, &self.ext, self.payload.len(), out, |out| {
            out.extend_from_slice(self.payload)
        });
    }

    /// Appends a frame whose payload of exactly `len` bytes `fill` appends, without a copy in between.
    ///
    /// # Panics
    /// If `ext` does not fit the opcode, `len` is not 0 and the opcode has no payload, or `fill` does not
    /// append `len` bytes.
    #[inline]
    pub fn emit_with(
        bth: &Bth,
        ext: &Extension,
        len: usize,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>),
    ) {
        let open = OpenFrame::begin(bth, ext, len, out);
        fill(out);
        open.end(out);
    }
}

/// A frame whose headers are written, and whose payload the caller appends next.
#[derive(Debug)]
#[must_use = "a frame ends with its pad"]
pub struct OpenFrame {
    start: usize,
    len: usize,
    pad: u8,
}

impl OpenFrame {
    /// Appends the headers of a frame with a payload of exactly `len` bytes.
    ///
    /// # Panics
    /// If `ext` does not fit the opcode, or `len` is not 0 and the opcode has no payload.
    #[inline(always)]
    pub fn begin(bth: &Bth, ext: &Extension, len: usize, out: &mut Vec<u8>) -> Self {
        assert!(ext.fits(bth.opcode), "{:?} does not carry {ext:?}", bth.opcode);
        assert!(len == 0 || has_payload(bth.opcode), "{:?} has no payload", bth.opcode);
        let pad = pad_of(len);
        out.reserve(len + HEADERS_MAX);
        if let Extension::Deth(deth) = ext {
            // A datagram's headers in one piece.
            let mut bytes = [0; DATAGRAM_LEN];
            bytes[..bth::LEN].copy_from_slice(&bth.bytes(pad));
            bytes[bth::LEN..].copy_from_slice(&deth.bytes());
            out.extend_from_slice(&bytes);
        } else {
            bth.emit(pad, out);
            ext.emit(out);
        }
        Self { start: out.len(), len, pad }
    }

    /// Appends the pad. The payload must have been appended.
    ///
    /// # Panics
    /// If the caller appended another number of bytes than announced.
    #[inline(always)]
    pub fn end(self, out: &mut Vec<u8>) {
        assert_eq!(out.len() - self.start, self.len, "the payload has the length it was announced with");
        if self.pad > 0 {
            out.extend_from_slice(&[0; 3][..usize::from(self.pad)]);
        }
    }
}

/// A UD SEND without immediate, with the fields that a role needs. Parses as [`Packet::parse`], for receivers
/// of datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram<'a> {
    /// The receiving queue pair.
    pub dest_qp: Qpn,
    /// Datagram header with the keys.
    pub deth: Deth,
    /// The payload, pad removed.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Returns true if the frame has the opcode of a datagram.
    #[must_use]
    #[inline(always)]
    pub fn is(frame: &[u8]) -> bool {
        frame.first() == Some(&(Opcode::UdSendOnly as u8))
    }

    /// Reads a frame for which [`Datagram::is`] is true.
    ///
    /// # Errors
    /// The errors of [`Packet::parse`]; [`WireError::Unknown`] for another opcode.
    #[inline(always)]
    pub fn parse(frame: &'a [u8]) -> Result<Self, WireError> {
        let Some((headers, rest)) = frame.split_first_chunk::<DATAGRAM_LEN>() else {
            return Err(Self::short(frame));
        };
        let bth = bth::View::new_checked(headers)?;
        if !Self::is(frame) {
            return Err(WireError::Unknown { what: "opcode of a datagram", value: u64::from(frame[0]) });
        }
        let mut r = Reader::new("packet", bth.after());
        Ok(Self { dest_qp: bth.dest_qp(), deth: Deth::read(&mut r)?, payload: without_pad(rest, bth.pad())? })
    }

    /// Returns the error of [`Packet::parse`] for a frame that ends within its headers.
    #[cold]
    fn short(frame: &[u8]) -> WireError {
        Packet::parse(frame).err().unwrap_or(WireError::Short {
            what: "packet",
            need: DATAGRAM_LEN,
            have: frame.len(),
        })
    }
}

/// Checks pad length and pad bytes, and returns the payload.
#[inline(always)]
fn without_pad(rest: &[u8], pad: u8) -> Result<&[u8], WireError> {
    let Some(len) = rest.len().checked_sub(usize::from(pad)) else {
        return Err(WireError::Short { what: "pad", need: usize::from(pad), have: rest.len() });
    };
    let (payload, padding) = rest.split_at(len);
    if !rest.len().is_multiple_of(4) {
        return Err(WireError::Unknown { what: "payload and pad, modulo 4", value: rest.len() as u64 % 4 });
    }
    if pad > 0 && padding.iter().any(|&b| b != 0) {
        return Err(WireError::Reserved { what: "pad" });
    }
    Ok(payload)
}

impl Extension {
    #[inline]
    fn read(opcode: Opcode, r: &mut Reader<'_>) -> Result<Self, WireError> {
        use Opcode as O;
        Ok(match opcode {
            O::SendFirst | O::SendMiddle | O::SendLast | O::SendOnly => Self::None,
            O::WriteMiddle | O::WriteLast | O::ReadResponseMiddle => Self::None,
            O::SendLastImm | O::SendOnlyImm | O::WriteLastImm => Self::Imm(r.u32()?),
            O::WriteFirst | O::WriteOnly | O::ReadRequest | O::GatherRequest => Self::Reth(Reth::read(r)?),
            O::WriteOnlyImm => Self::RethImm(Reth::read(r)?, r.u32()?),
            O::CmpSwap | O::FetchAdd => Self::AtomicEth(AtomicEth::read(r)?),
            O::Acknowledge | O::ReadResponseFirst | O::ReadResponseLast | O::ReadResponseOnly => {
                Self::Aeth(Aeth::read(r)?)
            }
            O::AtomicAck => Self::AtomicAck(Aeth::read(r)?, r.u64()?),
            O::UdSendOnly => Self::Deth(Deth::read(r)?),
            O::UdSendOnlyImm => Self::DethImm(Deth::read(r)?, r.u32()?),
        })
    }

    /// Returns true if a packet with `opcode` carries this extension.
    #[must_use]
    pub const fn fits(&self, opcode: Opcode) -> bool {
        use Opcode as O;
        match opcode {
            O::SendFirst | O::SendMiddle | O::SendLast | O::SendOnly => matches!(self, Self::None),
            O::WriteMiddle | O::WriteLast | O::ReadResponseMiddle => matches!(self, Self::None),
            O::SendLastImm | O::SendOnlyImm | O::WriteLastImm => matches!(self, Self::Imm(_)),
            O::WriteFirst | O::WriteOnly | O::ReadRequest | O::GatherRequest => {
                matches!(self, Self::Reth(_))
            }
            O::WriteOnlyImm => matches!(self, Self::RethImm(..)),
            O::CmpSwap | O::FetchAdd => matches!(self, Self::AtomicEth(_)),
            O::Acknowledge | O::ReadResponseFirst | O::ReadResponseLast | O::ReadResponseOnly => {
                matches!(self, Self::Aeth(_))
            }
            O::AtomicAck => matches!(self, Self::AtomicAck(..)),
            O::UdSendOnly => matches!(self, Self::Deth(_)),
            O::UdSendOnlyImm => matches!(self, Self::DethImm(..)),
        }
    }

    #[inline]
    fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::None => {}
            Self::Imm(imm) => out.put_u32(*imm),
            Self::Reth(reth) => reth.emit(out),
            Self::RethImm(reth, imm) => {
                reth.emit(out);
                out.put_u32(*imm);
            }
            Self::AtomicEth(atomic) => atomic.emit(out),
            Self::Aeth(aeth) => aeth.emit(out),
            Self::AtomicAck(aeth, original) => {
                aeth.emit(out);
                out.put_u64(*original);
            }
            Self::Deth(deth) => deth.emit(out),
            Self::DethImm(deth, imm) => {
                deth.emit(out);
                out.put_u32(*imm);
            }
        }
    }
}

/// Bytes of BTH and DETH.
const DATAGRAM_LEN: usize = bth::LEN + Deth::LEN;

/// Bytes around a payload at most: headers and pad.
const HEADERS_MAX: usize = 64;

/// Returns the number of pad bytes that bring `len` to a multiple of 4 (PROTOCOL 2.6).
const fn pad_of(len: usize) -> u8 {
    #[expect(clippy::cast_possible_truncation, reason = "two bits")]
    let pad = (len.wrapping_neg() & 3) as u8;
    pad
}

/// Returns true if the opcode carries a payload: not READ requests, acknowledgements and atomics (PROTOCOL
/// 2.3).
const fn has_payload(opcode: Opcode) -> bool {
    use Opcode as O;
    !matches!(opcode, O::ReadRequest | O::Acknowledge | O::AtomicAck | O::CmpSwap | O::FetchAdd)
}

#[cfg(test)]
mod tests;
