//! A keyed READ between switches: a READ REQUEST with a temporary header behind its RETH (PROTOCOL 15.11; Fat-B+Tree III-D).
//!
//! ```text
//!   BTH 12 | RETH 16 | key 8 | domain 4 | node 2 | hops 1 | reserved 1 | rkey 4 | queue pair 4 |
//! ```
//!
//! The first switch on the way puts the header in, because the address that it found takes the place of the key in the RETH, and because it alone knows the connection; the
//! last one takes it out. Hosts and nodes never see one: to [`Packet::parse`](crate::Packet::parse) it is a READ REQUEST with bytes behind it, and refused.

use crate::reader::{Put, Reader};
use crate::{Bth, Domain, Extension, NodeId, Opcode, Packet, Qpn, Reth, Rkey, WireError, bth};
use alloc::vec::Vec;

/// Bytes of a READ REQUEST.
const READ_LEN: usize = bth::LEN + Reth::LEN;

/// The temporary header (PROTOCOL 15.11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keyed {
    /// The key that the host asked for, which was the RETH's address.
    pub key: u64,
    /// The connection's domain, whose trees the switches on the way go by.
    pub domain: Domain,
    /// The memory node that the connection leads to.
    pub node: NodeId,
    /// Switches that it may still come to; at most [`Keyed::HOPS_MAX`].
    pub hops: u8,
    /// What the node is to be shown: the connection's.
    pub rkey: Rkey,
    /// The connection's queue pair at the node.
    pub node_qpn: Qpn,
}

impl Keyed {
    /// Bytes of the header.
    pub const LEN: usize = 24;
    /// Switches that a keyed READ may come by behind the first one: more than any path of a FatTree has, and an end to a loop.
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
    /// The frame without the header: a READ REQUEST, as it goes to the node once address and rkey are in it.
    pub read: &'a [u8; READ_LEN],
    /// Its BTH.
    pub bth: Bth,
    /// Its RETH: the address that the switches so far found, rkey 0, the length.
    pub reth: Reth,
    /// The header.
    pub keyed: Keyed,
}

impl<'a> KeyedFrame<'a> {
    /// Bytes of a READ REQUEST.
    pub const READ_LEN: usize = READ_LEN;
    /// Bytes of one with the header.
    pub const LEN: usize = Self::READ_LEN + Keyed::LEN;

    /// True for a frame that can be nothing else: none that [`Packet::parse`] takes.
    #[must_use]
    pub fn is(frame: &[u8]) -> bool {
        frame.len() == Self::LEN && frame[0] == Opcode::ReadRequest as u8
    }

    /// Reads a frame that [is one](Self::is).
    ///
    /// # Errors
    /// As [`Packet::parse`] for what stands in front of the header; [`WireError`] naming what is wrong in the header, for another opcode or length, for an
    /// rkey that is not 0, and for a READ of no bytes: those are no keyed READs (PROTOCOL 15.4).
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
        let keyed = Keyed::read(&mut r)?;
        r.end()?;
        Ok(Self { read, bth, reth, keyed })
    }

    /// Appends a READ REQUEST with the header behind it. What the network may have changed in the BTH stays as it is.
    ///
    /// # Panics
    /// When `keyed.hops` is above [`Keyed::HOPS_MAX`].
    pub fn emit(read: &[u8; READ_LEN], keyed: &Keyed, out: &mut Vec<u8>) {
        out.extend_from_slice(read);
        keyed.emit(out);
    }
}

#[cfg(test)]
mod tests;
