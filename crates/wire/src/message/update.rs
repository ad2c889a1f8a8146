//! Table updates from the control plane to a role: numbered, applied in order, each exactly once (PROTOCOL
//! 3.9, 3.10).

mod fields;
mod relayed;

use super::{Header, PAGE_LEN, Seq};
use crate::reader::{Put, Reader};
use crate::{Domain, Gid, HostId, NodeId, Perm, Pmtu, Psn, Qkey, Qpn, Rkey, VirtAddr, WireError};
use alloc::vec::Vec;
use fields::{caching_host, inside, pages, pmtu, prefix, put_end, put_pages, put_span, qpn, span};
pub use relayed::Relayed;

/// A change to a role's tables. A role refuses updates for other kinds of roles with `Unsupported`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    /// Any role: the address of `port` and the keys of its UD endpoint.
    Peer {
        /// The rack-wide port number.
        port: u32,
        /// Network address of the port.
        gid: Gid,
        /// UD queue pair of the port.
        qpn: Qpn,
        /// UD queue key of the port.
        qkey: Qkey,
    },
    /// Any role: `port` left.
    PeerGone {
        /// The rack-wide port number.
        port: u32,
    },
    /// Switch: addresses with this prefix are on `node`. A longer prefix wins (MIND 4.1).
    Translate {
        /// First address; a multiple of `2^size_log2`.
        base: VirtAddr,
        /// Log2 of the bytes covered, at most 63.
        size_log2: u8,
        /// The memory node.
        node: NodeId,
    },
    /// Switch: removes a translation.
    Untranslate {
        /// First address of the translation.
        base: VirtAddr,
        /// Size of the translation.
        size_log2: u8,
    },
    /// Switch and node: the access of `domain` to these bytes (MIND 4.2). Any range; the switch splits it
    /// into powers of two.
    Protect {
        /// The domain.
        domain: Domain,
        /// First byte.
        base: VirtAddr,
        /// Bytes, at least 1.
        len: u64,
        /// The permission class; replaces the earlier one. `None` revokes the grant.
        perm: Perm,
        /// Log2 of the size of the vma that contains these bytes, at most 64. No access crosses from one vma
        /// into the next (PROTOCOL 7.45). A vma begins at a multiple of its size; 64 stands for all
        /// addresses.
        vma_log2: u8,
    },
    /// Switch: UD messages to `qpn` with `qkey` from `host` belong to `domain`.
    Session {
        /// The switch's queue pair for this session.
        qpn: Qpn,
        /// Queue key of the session.
        qkey: Qkey,
        /// The host that may use it.
        host: HostId,
        /// The host's generation, which all ids of its requests must have (PROTOCOL 6.5).
        generation: u16,
        /// The domain of all its requests.
        domain: Domain,
    },
    /// Switch: the session is over.
    SessionGone {
        /// Queue pair of the session.
        qpn: Qpn,
    },
    /// Node: maps these addresses to the node's bytes from `offset` on (PULSE 4.2: range-based translation at
    /// the node).
    Range {
        /// First address.
        base: VirtAddr,
        /// Bytes.
        len: u64,
        /// First byte in the node's memory; `offset + len` stays below 2^64.
        offset: u64,
    },
    /// Node: removes a range.
    RangeGone {
        /// First address of the range.
        base: VirtAddr,
        /// Length of the range.
        len: u64,
    },
    /// Node: sets these bytes to zero, before they are allocated again.
    Clear {
        /// First byte.
        base: VirtAddr,
        /// Bytes.
        len: u64,
    },
    /// Node: an RC connection's responder half.
    QueuePair {
        /// The node's queue pair.
        qpn: Qpn,
        /// The peer's queue pair.
        peer_qpn: Qpn,
        /// The peer's port.
        peer_port: u32,
        /// The first PSN the peer will send.
        expected_psn: Psn,
        /// The key that one-sided requests must show.
        rkey: Rkey,
        /// The domain of all its requests.
        domain: Domain,
        /// The path MTU of both ends.
        pmtu: Pmtu,
    },
    /// Node: the connection is over.
    QueuePairGone {
        /// The node's queue pair.
        qpn: Qpn,
    },
    /// Switch: opens the directory, empty. No page was ever granted under a number above `newest` (PROTOCOL
    /// 12.36).
    Directory {
        /// The start of the regions' numbers.
        newest: Seq,
    },
    /// Switch: the host holds a lease and may cache pages (PROTOCOL 12.35).
    Live {
        /// The host; below [`super::CACHING_HOSTS_MAX`].
        host: HostId,
        /// Number of starts of the host, for diagnosis.
        generation: u16,
    },
    /// Switch: the host's lease ended for certain; the switch takes its pages back without its help (PROTOCOL
    /// 12.35).
    Fence {
        /// The host; below [`super::CACHING_HOSTS_MAX`].
        host: HostId,
    },
    /// Node: accepts the bytes of lost pages as they are at the node, for good; sent for the owner (PROTOCOL
    /// 7.44, 12.31).
    AcceptLost {
        /// First byte.
        base: VirtAddr,
        /// Bytes.
        len: u64,
    },
    /// Node: earlier writes to these bytes were lost with an earlier incarnation of the node (PROTOCOL 7.42).
    Lose {
        /// First byte, at a page.
        base: VirtAddr,
        /// Bytes: whole pages.
        len: u64,
    },
    /// Node: another node pushes the contents of these addresses to this node. No access uses them here
    /// before [`Update::Place`] or [`Update::Unplace`] (PROTOCOL 7.37).
    Arrive {
        /// First address; a multiple of `2^size_log2`.
        base: VirtAddr,
        /// Log2 of the bytes, at least those of a page.
        size_log2: u8,
        /// First byte in the node's memory; `offset` and size together stay below 2^64.
        offset: u64,
        /// The number of the move, never reused.
        number: u64,
        /// The port of the node that pushes.
        port: u32,
        /// Network address of the pushing node.
        gid: Gid,
        /// UD queue pair of the pushing node.
        qpn: Qpn,
        /// UD queue key of the pushing node.
        qkey: Qkey,
    },
    /// Node: ends all access to these addresses here and pushes their contents to another node (PROTOCOL
    /// 7.38).
    Leave {
        /// First address; a multiple of `2^size_log2`.
        base: VirtAddr,
        /// Log2 of the bytes, at least those of a page.
        size_log2: u8,
        /// The number of the move.
        number: u64,
        /// The port of the receiving node.
        port: u32,
        /// Network address of the receiving node.
        gid: Gid,
        /// UD queue pair of the receiving node.
        qpn: Qpn,
        /// UD queue key of the receiving node.
        qkey: Qkey,
    },
    /// Node: maps these addresses to this offset of its memory, regardless of its range (PROTOCOL 7.39).
    Place {
        /// First address; a multiple of `2^size_log2`.
        base: VirtAddr,
        /// Log2 of the bytes, at least those of a page.
        size_log2: u8,
        /// First byte in the node's memory; `offset` and size together stay below 2^64.
        offset: u64,
    },
    /// Node: these addresses of its range are at another node.
    Away {
        /// First address; a multiple of `2^size_log2`.
        base: VirtAddr,
        /// Log2 of the bytes, at least those of a page.
        size_log2: u8,
    },
    /// Node: undoes the four updates above for these addresses. The addresses are again where the range maps
    /// them, or nowhere.
    Unplace {
        /// First address of the earlier update.
        base: VirtAddr,
        /// Size of the earlier update.
        size_log2: u8,
    },
    /// Switch: hands out no more pages of this translated prefix, and recalls those that hosts have, until
    /// the prefix is translated anew or removed (PROTOCOL 6.24).
    Drain {
        /// First address of the translation.
        base: VirtAddr,
        /// Size of the translation.
        size_log2: u8,
    },
    /// Switch: relays a connection (PROTOCOL 15.1).
    Connection(Relayed),
    /// Switch: the connection is over.
    ConnectionGone {
        /// The switch's queue pair that the connection's host sends to.
        to_node: Qpn,
    },
    /// Node: restarts the generations of this host number. All earlier ones ended long ago (PROTOCOL 8.8).
    Anew {
        /// The host number. No host has it now.
        host: HostId,
    },
}

impl Update {
    /// Bytes of the longest update.
    pub const LEN_MAX: usize = 54;

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let tag = r.u8()?;
        Ok(match tag {
            1 => Self::Peer { port: r.u32()?, gid: Gid(r.array()?), qpn: qpn(r)?, qkey: Qkey(r.u32()?) },
            2 => Self::PeerGone { port: r.u32()? },
            3 => {
                let (base, size_log2) = prefix(r)?;
                Self::Translate { base, size_log2, node: NodeId(r.u16()?) }
            }
            4 => {
                let (base, size_log2) = prefix(r)?;
                Self::Untranslate { base, size_log2 }
            }
            5 => {
                let (domain, (base, len)) = (Domain(r.u32()?), span(r)?);
                let bits = r.u8()?;
                let Some(perm) = Perm::from_bits(bits) else {
                    return Err(WireError::Unknown { what: "update.perm", value: u64::from(bits) });
                };
                let vma_log2 = r.u8()?;
                // The first and the last byte differ in no bit above those of one vma.
                let differ = base.0 ^ (base.0 + (len - 1));
                if vma_log2 > 64 || differ.checked_shr(u32::from(vma_log2)).is_some_and(|above| above != 0) {
                    return Err(WireError::Unknown { what: "update.vma_log2", value: u64::from(vma_log2) });
                }
                Self::Protect { domain, base, len, perm, vma_log2 }
            }
            6 => Self::Session {
                qpn: qpn(r)?,
                qkey: Qkey(r.u32()?),
                host: HostId(r.u16()?),
                generation: r.u16()?,
                domain: Domain(r.u32()?),
            },
            7 => Self::SessionGone { qpn: qpn(r)? },
            8 => {
                let ((base, len), offset) = (span(r)?, r.u64()?);
                if offset.checked_add(len).is_none() {
                    return Err(WireError::Unknown { what: "update.offset", value: offset });
                }
                Self::Range { base, len, offset }
            }
            9 => {
                let (base, len) = span(r)?;
                Self::RangeGone { base, len }
            }
            10 => {
                let (base, len) = span(r)?;
                Self::Clear { base, len }
            }
            11 => Self::QueuePair {
                qpn: qpn(r)?,
                peer_qpn: qpn(r)?,
                peer_port: r.u32()?,
                expected_psn: Psn::new(qpn(r)?.get()),
                rkey: Rkey(r.u32()?),
                domain: Domain(r.u32()?),
                pmtu: pmtu(r)?,
            },
            12 => Self::QueuePairGone { qpn: qpn(r)? },
            13 => Self::Directory { newest: Seq(r.u64()?) },
            14 => Self::Live { host: caching_host(r)?, generation: r.u16()? },
            15 => Self::Fence { host: caching_host(r)? },
            16 => {
                let (base, len) = span(r)?;
                Self::AcceptLost { base, len }
            }
            17 => {
                let ((base, size_log2), offset, number) = (pages(r)?, r.u64()?, r.u64()?);
                let (port, gid) = (r.u32()?, Gid(r.array()?));
                let (qpn, qkey) = (qpn(r)?, Qkey(r.u32()?));
                let offset = inside(offset, size_log2)?;
                Self::Arrive { base, size_log2, offset, number, port, gid, qpn, qkey }
            }
            18 => {
                let ((base, size_log2), number) = (pages(r)?, r.u64()?);
                let (port, gid) = (r.u32()?, Gid(r.array()?));
                Self::Leave { base, size_log2, number, port, gid, qpn: qpn(r)?, qkey: Qkey(r.u32()?) }
            }
            19 => {
                let ((base, size_log2), offset) = (pages(r)?, r.u64()?);
                Self::Place { base, size_log2, offset: inside(offset, size_log2)? }
            }
            20 => {
                let (base, size_log2) = pages(r)?;
                Self::Away { base, size_log2 }
            }
            21 => {
                let (base, size_log2) = pages(r)?;
                Self::Unplace { base, size_log2 }
            }
            22 => {
                let (base, size_log2) = pages(r)?;
                Self::Drain { base, size_log2 }
            }
            23 => {
                let (base, len) = span(r)?;
                if !base.0.is_multiple_of(PAGE_LEN as u64) || !len.is_multiple_of(PAGE_LEN as u64) {
                    return Err(WireError::Unknown { what: "update.len of whole pages", value: len });
                }
                Self::Lose { base, len }
            }
            24 => Self::Connection(Relayed::read(r)?),
            25 => Self::ConnectionGone { to_node: qpn(r)? },
            26 => Self::Anew { host: HostId(r.u16()?) },
            _ => return Err(WireError::Unknown { what: "update.tag", value: u64::from(tag) }),
        })
    }

    /// Appends the update. [`Updates::request`] validates it.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Peer { port, gid, qpn, qkey } => {
                out.put_u8(1);
                out.put_u32(port);
                out.extend_from_slice(&gid.0);
                out.put_u32(qpn.get());
                out.put_u32(qkey.0);
            }
            Self::PeerGone { port } => {
                out.put_u8(2);
                out.put_u32(port);
            }
            Self::Translate { base, size_log2, node } => {
                out.put_u8(3);
                out.put_u64(base.0);
                out.put_u8(size_log2);
                out.put_u16(node.0);
            }
            Self::Untranslate { base, size_log2 } => {
                out.put_u8(4);
                out.put_u64(base.0);
                out.put_u8(size_log2);
            }
            Self::Protect { domain, base, len, perm, vma_log2 } => {
                out.put_u8(5);
                out.put_u32(domain.0);
                put_span(base, len, out);
                out.put_u8(perm as u8);
                out.put_u8(vma_log2);
            }
            Self::Session { qpn, qkey, host, generation, domain } => {
                out.put_u8(6);
                out.put_u32(qpn.get());
                out.put_u32(qkey.0);
                out.put_u16(host.0);
                out.put_u16(generation);
                out.put_u32(domain.0);
            }
            Self::SessionGone { qpn } => {
                out.put_u8(7);
                out.put_u32(qpn.get());
            }
            Self::Range { base, len, offset } => {
                out.put_u8(8);
                put_span(base, len, out);
                out.put_u64(offset);
            }
            Self::RangeGone { base, len } => {
                out.put_u8(9);
                put_span(base, len, out);
            }
            Self::Clear { base, len } => {
                out.put_u8(10);
                put_span(base, len, out);
            }
            Self::QueuePair { qpn, peer_qpn, peer_port, expected_psn, rkey, domain, pmtu } => {
                out.put_u8(11);
                out.put_u32(qpn.get());
                out.put_u32(peer_qpn.get());
                out.put_u32(peer_port);
                out.put_u32(expected_psn.get());
                out.put_u32(rkey.0);
                out.put_u32(domain.0);
                out.put_u16(pmtu as u16);
            }
            Self::QueuePairGone { qpn } => {
                out.put_u8(12);
                out.put_u32(qpn.get());
            }
            Self::Directory { newest } => {
                out.put_u8(13);
                out.put_u64(newest.0);
            }
            Self::Live { host, generation } => {
                out.put_u8(14);
                out.put_u16(host.0);
                out.put_u16(generation);
            }
            Self::Fence { host } => {
                out.put_u8(15);
                out.put_u16(host.0);
            }
            Self::AcceptLost { base, len } => {
                out.put_u8(16);
                put_span(base, len, out);
            }
            Self::Arrive { base, size_log2, offset, number, port, gid, qpn, qkey } => {
                put_pages(17, base, size_log2, out);
                out.put_u64(offset);
                out.put_u64(number);
                put_end(port, gid, qpn, qkey, out);
            }
            Self::Leave { base, size_log2, number, port, gid, qpn, qkey } => {
                put_pages(18, base, size_log2, out);
                out.put_u64(number);
                put_end(port, gid, qpn, qkey, out);
            }
            Self::Place { base, size_log2, offset } => {
                put_pages(19, base, size_log2, out);
                out.put_u64(offset);
            }
            Self::Away { base, size_log2 } => put_pages(20, base, size_log2, out),
            Self::Unplace { base, size_log2 } => put_pages(21, base, size_log2, out),
            Self::Drain { base, size_log2 } => put_pages(22, base, size_log2, out),
            Self::Lose { base, len } => {
                out.put_u8(23);
                put_span(base, len, out);
            }
            Self::Connection(relayed) => {
                out.put_u8(24);
                relayed.emit(out);
            }
            Self::ConnectionGone { to_node } => {
                out.put_u8(25);
                out.put_u32(to_node.get());
            }
            Self::Anew { host } => {
                out.put_u8(26);
                out.put_u16(host.0);
            }
        }
    }
}

/// A numbered batch of updates. A role applies the batch with the next number, repeats its response to an
/// older one, and ignores a later one.
///
/// In a response, `seq` is the number of the batch and `refused` is the index of the first refused update, if
/// any. The updates before that one were applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Updates<'a> {
    /// The batch's number; the first after a join is 1.
    pub seq: u64,
    /// Index of the refused update in a response with a status other than `Ok`; otherwise 0.
    pub refused: u16,
    count: u16,
    bytes: &'a [u8],
}

impl<'a> Updates<'a> {
    const FIXED_LEN: usize = 12;
    /// Most bytes of updates in one batch, so that it fits a PMTU of 1024.
    pub const BYTES_MAX: usize = 1024 - super::OVERHEAD - Self::FIXED_LEN;

    /// Creates a batch of updates that were appended to `bytes` with [`Update::emit`].
    ///
    /// # Errors
    /// [`WireError`] if `bytes` does not hold exactly `count` updates or is longer than
    /// [`Updates::BYTES_MAX`].
    pub fn request(seq: u64, count: u16, bytes: &'a [u8]) -> Result<Self, WireError> {
        let batch = Self { seq, refused: 0, count, bytes };
        batch.checked()
    }

    /// Creates the response to batch `seq`.
    #[must_use]
    pub const fn response(seq: u64, refused: u16) -> Self {
        Self { seq, refused, count: 0, bytes: &[] }
    }

    /// Returns the encoded updates, back to back.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the updates, in order.
    pub fn iter(&self) -> impl Iterator<Item = Update> + use<'a> {
        let mut r = Reader::new("updates", self.bytes);
        (0..self.count).map_while(move |_| Update::read(&mut r).ok())
    }

    fn checked(self) -> Result<Self, WireError> {
        if self.bytes.len() > Self::BYTES_MAX {
            return Err(WireError::Long { what: "updates", most: Self::BYTES_MAX, have: self.bytes.len() });
        }
        let mut r = Reader::new("updates", self.bytes);
        for _ in 0..self.count {
            Update::read(&mut r)?;
        }
        r.end()?;
        Ok(self)
    }

    pub(super) fn read(r: &mut Reader<'a>, header: &Header) -> Result<Self, WireError> {
        let (seq, refused, count) = (r.u64()?, r.u16()?, r.u16()?);
        if refused != 0 && !names_refused(header) {
            return Err(WireError::Unknown { what: "update.refused", value: u64::from(refused) });
        }
        if count != 0 && header.response {
            return Err(WireError::Unknown { what: "update.count of a response", value: u64::from(count) });
        }
        Self { seq, refused, count, bytes: r.rest() }.checked()
    }

    pub(super) fn emit(&self, header: &Header, out: &mut Vec<u8>) {
        assert!(self.refused == 0 || names_refused(header), "only a refusal names a refused update");
        assert!(self.count == 0 || !header.response, "a response carries no updates");
        out.put_u64(self.seq);
        out.put_u16(self.refused);
        out.put_u16(self.count);
        out.extend_from_slice(self.bytes);
    }

    pub(super) const fn len(&self) -> usize {
        Self::FIXED_LEN + self.bytes.len()
    }
}

/// Returns true if the message can name a refused update: a response that is not `Ok`.
const fn names_refused(header: &Header) -> bool {
    header.response && !header.is_good_response()
}
