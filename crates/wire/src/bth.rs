//! The base transport header: the first 12 bytes of every frame (PROTOCOL 2.2).

use crate::{Psn, Qpn, WireError};
use alloc::vec::Vec;

/// Offsets of the fields; named only here.
mod field {
    use core::ops::Range;
    pub(super) const OPCODE: usize = 0;
    /// SE 1, M 1, PadCnt 2, TVer 4.
    pub(super) const FLAGS: usize = 1;
    pub(super) const P_KEY: Range<usize> = 2..4;
    /// FECN 1, BECN 1, reserved 6.
    pub(super) const CONGESTION: usize = 4;
    pub(super) const DEST_QP: Range<usize> = 5..8;
    /// A 1, reserved 7.
    pub(super) const ACK_REQ: usize = 8;
    pub(super) const PSN: Range<usize> = 9..12;
}

/// Bytes of a BTH.
pub const LEN: usize = 12;
/// The default partition, the only one farmem and Soft-RoCE accept (PROTOCOL 2.2).
pub const P_KEY_DEFAULT: u16 = 0xffff;

/// The byte that the network may change (FECN, BECN and six reserved bits). The ICRC counts it as ones.
pub(crate) const CONGESTION: usize = field::CONGESTION;

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const PAD_SHIFT: u8 = 4;
const TVER_MASK: u8 = 0x0f;
const ACK_REQ: u8 = 0x80;

/// The kind of a packet (PROTOCOL 2.3). All opcodes that are not listed are refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the specification's")]
pub enum Opcode {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImm = 0x03,
    SendOnly = 0x04,
    SendOnlyImm = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImm = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImm = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAck = 0x12,
    CmpSwap = 0x13,
    FetchAdd = 0x14,
    UdSendOnly = 0x64,
    UdSendOnlyImm = 0x65,
    /// A READ request for several pieces, in the opcodes that IBA leaves to manufacturers (PROTOCOL 4.30).
    GatherRequest = 0xcc,
}

impl Opcode {
    /// Returns the opcode with this number, if farmem supports it.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0x00 => Self::SendFirst,
            0x01 => Self::SendMiddle,
            0x02 => Self::SendLast,
            0x03 => Self::SendLastImm,
            0x04 => Self::SendOnly,
            0x05 => Self::SendOnlyImm,
            0x06 => Self::WriteFirst,
            0x07 => Self::WriteMiddle,
            0x08 => Self::WriteLast,
            0x09 => Self::WriteLastImm,
            0x0a => Self::WriteOnly,
            0x0b => Self::WriteOnlyImm,
            0x0c => Self::ReadRequest,
            0x0d => Self::ReadResponseFirst,
            0x0e => Self::ReadResponseMiddle,
            0x0f => Self::ReadResponseLast,
            0x10 => Self::ReadResponseOnly,
            0x11 => Self::Acknowledge,
            0x12 => Self::AtomicAck,
            0x13 => Self::CmpSwap,
            0x14 => Self::FetchAdd,
            0x64 => Self::UdSendOnly,
            0x65 => Self::UdSendOnlyImm,
            0xcc => Self::GatherRequest,
            _ => return None,
        })
    }

    /// Returns true for the responses of an RC connection: 0x0d to 0x12 (PROTOCOL 2.3).
    #[must_use]
    pub const fn is_rc_response(self) -> bool {
        matches!(self as u8, 0x0d..=0x12)
    }

    /// Returns true for an unreliable datagram.
    #[must_use]
    pub const fn is_ud(self) -> bool {
        matches!(self, Self::UdSendOnly | Self::UdSendOnlyImm)
    }
}

/// A BTH as a value, without its pad count: the packet that carries the payload knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// Kind of the packet.
    pub opcode: Opcode,
    /// Solicited event: the receiver wakes its consumer.
    pub solicited: bool,
    /// The receiving queue pair.
    pub dest_qp: Qpn,
    /// The sender asks for an acknowledgement.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Creates a BTH with no flag set.
    #[must_use]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self { opcode, solicited: false, dest_qp, ack_req: false, psn }
    }

    /// Reads the header at the front of a frame; also returns the number of pad bytes at the frame's end.
    ///
    /// # Errors
    /// [`WireError`] naming the field, as [`View::new_checked`] and [`View::opcode`].
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(Self, u8), WireError> {
        let Some(bytes) = frame.first_chunk::<LEN>() else { return Err(short(frame)) };
        let view = View::new_checked(bytes)?;
        let opcode = view.opcode()?;
        let value = Self {
            opcode,
            solicited: view.solicited(),
            dest_qp: view.dest_qp(),
            ack_req: view.ack_req(),
            psn: view.psn(),
        };
        Ok((value, view.pad()))
    }

    /// Appends the 12 bytes. MigReq is sent as 1, as hardware does, and ignored on arrival (PROTOCOL 2.2).
    ///
    /// # Panics
    /// If `pad` is more than 3.
    #[inline]
    pub fn emit(&self, pad: u8, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes(pad));
    }

    /// Returns the 12 bytes that [`Bth::emit`] appends.
    #[inline]
    pub(crate) fn bytes(&self, pad: u8) -> [u8; LEN] {
        assert!(pad <= 3, "a pad has at most 3 bytes");
        let mut bytes = [0; LEN];
        bytes[field::OPCODE] = self.opcode as u8;
        bytes[field::FLAGS] = if self.solicited { SOLICITED } else { 0 } | MIG_REQ | pad << PAD_SHIFT;
        bytes[field::P_KEY].copy_from_slice(&P_KEY_DEFAULT.to_be_bytes());
        bytes[field::ACK_REQ] = if self.ack_req { ACK_REQ } else { 0 };
        let mut view = View(bytes);
        view.set_dest_qp(self.dest_qp);
        view.set_psn(self.psn);
        view.0
    }
}

/// A BTH in place. After [`View::new_checked`] no getter or setter panics.
#[derive(Clone, Copy, Debug)]
pub struct View<T>(T);

impl<T: AsRef<[u8]>> View<T> {
    /// Checks length, transport version, partition and reserved bits. The opcode may still be unknown.
    ///
    /// FECN, BECN and the six bits beside them are ignored, because the network may change them (PROTOCOL
    /// 2.7).
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, WireError> {
        let b = bytes.as_ref();
        if b.len() < LEN {
            return Err(short(b));
        }
        if b[field::FLAGS] & TVER_MASK != 0 {
            return Err(WireError::Unknown {
                what: "BTH.TVer",
                value: u64::from(b[field::FLAGS] & TVER_MASK),
            });
        }
        let p_key = u16::from_be_bytes([b[field::P_KEY.start], b[field::P_KEY.start + 1]]);
        if p_key != P_KEY_DEFAULT {
            return Err(WireError::Unknown { what: "BTH.P_Key", value: u64::from(p_key) });
        }
        if b[field::ACK_REQ] & !ACK_REQ != 0 {
            return Err(WireError::Reserved { what: "BTH.reserved7" });
        }
        Ok(Self(bytes))
    }

    /// Returns the opcode.
    ///
    /// # Errors
    /// [`WireError::Unknown`] for an opcode that farmem does not support.
    #[inline]
    pub fn opcode(&self) -> Result<Opcode, WireError> {
        let bits = self.0.as_ref()[field::OPCODE];
        Opcode::from_bits(bits)
            .ok_or_else(|| WireError::Unknown { what: "BTH.OpCode", value: u64::from(bits) })
    }

    /// Returns the solicited event bit: the receiver wakes its consumer.
    #[must_use]
    pub fn solicited(&self) -> bool {
        self.flags() & SOLICITED != 0
    }

    /// Returns the number of pad bytes behind the payload, 0 to 3.
    #[must_use]
    pub fn pad(&self) -> u8 {
        self.flags() >> PAD_SHIFT & 3
    }

    /// Returns the receiving queue pair.
    #[must_use]
    pub fn dest_qp(&self) -> Qpn {
        Qpn::new(be24(&self.0.as_ref()[field::DEST_QP]))
    }

    /// Returns true if the sender asks for an acknowledgement.
    #[must_use]
    pub fn ack_req(&self) -> bool {
        self.0.as_ref()[field::ACK_REQ] & ACK_REQ != 0
    }

    /// Returns the packet sequence number.
    #[must_use]
    pub fn psn(&self) -> Psn {
        Psn::new(be24(&self.0.as_ref()[field::PSN]))
    }

    /// Returns the bytes behind the BTH, for the views in [`crate::headers::view`].
    #[must_use]
    pub fn after(&self) -> &[u8] {
        self.0.as_ref().get(LEN..).unwrap_or_default()
    }

    fn flags(&self) -> u8 {
        self.0.as_ref()[field::FLAGS]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> View<T> {
    /// Rewrites the receiving queue pair.
    pub fn set_dest_qp(&mut self, qpn: Qpn) {
        self.0.as_mut()[field::DEST_QP].copy_from_slice(&qpn.get().to_be_bytes()[1..]);
    }

    /// Rewrites the packet sequence number.
    pub fn set_psn(&mut self, psn: Psn) {
        self.0.as_mut()[field::PSN].copy_from_slice(&psn.get().to_be_bytes()[1..]);
    }
}

impl<T: AsMut<[u8]>> View<T> {
    /// Returns the bytes behind the BTH, to rewrite them.
    pub fn after_mut(&mut self) -> &mut [u8] {
        self.0.as_mut().get_mut(LEN..).unwrap_or_default()
    }
}

#[cold]
fn short(bytes: &[u8]) -> WireError {
    WireError::Short { what: "BTH", need: LEN, have: bytes.len() }
}

fn be24(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}

#[cfg(test)]
mod tests;
