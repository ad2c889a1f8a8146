//! A keyed READ between switches: a READ REQUEST with a temporary header behind its RETH (PROTOCOL 15.11;
//! Fat-B+Tree III-D).
//!
//! ```text
//!   BTH 12 | RETH 16 | key 8 | domain 4 | node 2 | hops 1 | reserved 1 | rkey 4 | queue pair 4 |
//! ```
//!
//! The first switch inserts the header, for two reasons: the address that it found replaces the key in the
//! RETH, and only this switch knows the connection. The last switch removes the header. Hosts and nodes never
//! see one: [`Packet::parse`](crate::Packet::parse) refuses a READ REQUEST with bytes behind it.

use crate::reader::{Put, Reader};
use crate::{Bth, Domain, Extension, NodeId, Opcode, Packet, Qpn, Reth, Rkey, WireError, bth};
use alloc::vec::Vec;

/// Bytes of a READ REQUEST.
const READ_LEN: usize = bth::LEN + Reth::LEN;

/// The temporary header (PROTOCOL 15.11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyedHeader {
    /// The key that the host asked for, in place of the RETH's address.
    pub key: u64,
    /// The connection's domain, which selects the trees on the path.
    pub domain: Domain,
    /// The memory node at the other end of the connection.
    pub node: NodeId,
    /// Remaining switches on the path; at most [`KeyedHeader::HOPS_MAX`].
    pub hops: u8,
    /// The connection's rkey at the node.
    pub rkey: Rkey,
    /// The connection's queue pair at the node.
    pub node_qpn: Qpn,
}

impl KeyedHeader {
    /// Bytes of the header.
    pub const LEN: usize = 24;
    /// Switches that a keyed READ may pass behind the first one: more than any path of a FatTree has. Bounds
    /// a loop.
    pub const HOPS_MAX: u8 = 15;

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (key, domain, node, hops) = (r.u64()?, Domain(r.u32()?), NodeId(r.u16()?), r.u8()?);
        if hops > Self::HOPS_MAX {
            return Err(WireError::Unknown { what: "keyed.hops", value: u64::from(hops) });
        }
        r.zero::<1>("keyed.reserved")?;
        let (rkey, node_qpn) = (Rkey(r.u32()?), r.u32()?);
        if node_qpn > Qpn::MAX {
            return Err(WireError::Unknown { what: "keyed.node_qpn", value: u64::from(node_qpn) });
        }
        Ok(Self { key, domain, node, hops, rkey, node_qpn: Qpn::new(node_qpn) })
    }

    fn emit(&self, out: &mut Vec<u8>) {
        assert!(self.hops <= Self::HOPS_MAX, "a keyed READ comes by few switches");
        out.put_u64(self.key);
        out.put_u32(self.domain.0);
        out.put_u16(self.node.0);
        out.put_u8(self.hops);
        out.put_u8(0);
        out.put_u32(self.rkey.0);
        out.put_u32(self.node_qpn.get());
    }
}

/// A frame with a temporary header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyedFrame<'a> {
    /// The frame without the header: the READ REQUEST for the node, except for address and rkey.
    pub read: &'a [u8; READ_LEN],
    /// BTH of the frame.
    pub bth: Bth,
    /// RETH of the frame: the address that the switches found so far, rkey 0, the length.
    pub reth: Reth,
    /// The temporary header.
    pub keyed: KeyedHeader,
}

impl<'a> KeyedFrame<'a> {
    /// Bytes of a READ REQUEST.
    pub const READ_LEN: usize = READ_LEN;
    /// Bytes of a READ REQUEST with the header.
    pub const LEN: usize = Self::READ_LEN + KeyedHeader::LEN;

    /// Returns true if the frame has the opcode and length of a keyed READ. [`Packet::parse`] accepts no such
    /// frame.
    #[must_use]
    pub fn is(frame: &[u8]) -> bool {
        frame.len() == Self::LEN && frame[0] == Opcode::ReadRequest as u8
    }

    /// Reads a frame for which [`KeyedFrame::is`] is true.
    ///
    /// # Errors
    /// The errors of [`Packet::parse`] for the bytes in front of the header, and [`WireError`] naming the
    /// field of the header. An rkey other than 0 and a READ of no bytes are errors, because no keyed READ has
    /// them (PROTOCOL 15.4).
    pub fn parse(frame: &'a [u8]) -> Result<Self, WireError> {
        let mut r = Reader::new("keyed READ", frame);
        let read = r.fixed::<READ_LEN>()?;
        let Packet { bth, ext, .. } = Packet::parse(read)?;
        let (Opcode::ReadRequest, Extension::Reth(reth)) = (bth.opcode, ext) else {
            return Err(WireError::Unknown { what: "opcode of a keyed READ", value: bth.opcode as u64 });
        };
        if reth.rkey != Rkey(0) {
            return Err(WireError::Unknown {
                what: "RETH.rkey of a keyed READ",
                value: u64::from(reth.rkey.0),
            });
        }
        if reth.dma_len == 0 {
            return Err(WireError::Unknown { what: "RETH.DMALen of a keyed READ", value: 0 });
        }
        let keyed = KeyedHeader::read(&mut r)?;
        r.end()?;
        Ok(Self { read, bth, reth, keyed })
    }

    /// Appends a READ REQUEST with the header behind it. BTH bits that the network changed stay as they are.
    ///
    /// # Panics
    /// If `keyed.hops` is above [`KeyedHeader::HOPS_MAX`].
    pub fn emit(read: &[u8; READ_LEN], keyed: &KeyedHeader, out: &mut Vec<u8>) {
        out.extend_from_slice(read);
        keyed.emit(out);
    }
}

#[cfg(test)]
mod tests;
