//! Table updates from the control plane to a role: numbered, applied in order, each exactly once (PROTOCOL 3.9, 3.10).

mod fields;
mod relayed;

use super::{Header, PAGE_LEN, Seq};
use crate::reader::{Put, Reader};
use crate::{Domain, Gid, HostId, NodeId, Perm, Pmtu, Psn, Qkey, Qpn, Rkey, VirtAddr, WireError};
use alloc::vec::Vec;
use fields::{caching_host, inside, pages, pmtu, prefix, put_end, put_pages, put_span, qpn, span};
pub use relayed::Relayed;

/// One change to a role's tables. A role refuses the ones that are not for its kind with `Unsupported`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    /// Any role: where `port` is, and what its UD endpoint wants to see.
    Peer {
        /// The rack-wide port number.
        port: u32,
        /// Its address.
        gid: Gid,
        /// Its UD queue pair.
        qpn: Qpn,
        /// Its UD queue key.
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
    /// Switch: takes a translation back.
    Untranslate {
        /// As it was given.
        base: VirtAddr,
        /// As it was given.
        size_log2: u8,
    },
    /// Switch and node: `domain` may use these bytes so (MIND 4.2). Any range; the switch splits it into powers of two.
    Protect {
        /// The domain.
        domain: Domain,
        /// First byte.
        base: VirtAddr,
        /// Bytes, at least 1.
        len: u64,
        /// The permission class; replaces the one before. `None` takes the grant back.
        perm: Perm,
        /// Log2 of the bytes of the vma that these are a part of, at most 64: no access goes from one vma into the next (PROTOCOL 7.45).
        /// A vma begins at a multiple of its size; 64 stands for all addresses.
        vma_log2: u8,
    },
    /// Switch: UD messages to `qpn` with `qkey` from `host` belong to `domain`.
    Session {
        /// The switch's queue pair for this session.
        qpn: Qpn,
        /// Its queue key.
        qkey: Qkey,
        /// The host that may use it.
        host: HostId,
        /// The host's generation, which all ids of its requests must have (PROTOCOL 6.5).
        generation: u16,
        /// The domain all its requests are in.
        domain: Domain,
    },
    /// Switch: the session is over.
    SessionGone {
        /// Its queue pair.
        qpn: Qpn,
    },
    /// Node: these addresses are its bytes from `offset` on (PULSE 4.2: range-based translation at the node).
    Range {
        /// First address.
        base: VirtAddr,
        /// Bytes.
        len: u64,
        /// First byte in the node's memory; `offset + len` stays below 2^64.
        offset: u64,
    },
    /// Node: the range is no longer here.
    RangeGone {
        /// As it was given.
        base: VirtAddr,
        /// As it was given.
        len: u64,
    },
    /// Node: these bytes become zero, before they are handed out again.
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
        /// The key one-sided requests must show.
        rkey: Rkey,
        /// The domain all its requests are in.
        domain: Domain,
        /// The path MTU of both ends.
        pmtu: Pmtu,
    },
    /// Node: the connection is over.
    QueuePairGone {
        /// The node's queue pair.
        qpn: Qpn,
    },
    /// Switch: the directory opens, empty. No page was ever handed out under a number above `newest` (PROTOCOL 12.36).
    Directory {
        /// What the numbers of regions begin with.
        newest: Seq,
    },
    /// Switch: the host holds a lease and may cache pages (PROTOCOL 12.35).
    Live {
        /// The host; below [`super::CACHING_HOSTS_MAX`].
        host: HostId,
        /// How often it started, for diagnosis.
        generation: u16,
    },
    /// Switch: the host's lease surely ended; what it had is taken back without it (PROTOCOL 12.35).
    Fence {
        /// The host; below [`super::CACHING_HOSTS_MAX`].
        host: HostId,
    },
    /// Node: the owner takes the bytes of lost pages as they are here, for good (PROTOCOL 7.44, 12.31).
    AcceptLost {
        /// First byte.
        base: VirtAddr,
        /// Bytes.
        len: u64,
    },
    /// Node: what was written to these bytes was lost with an earlier incarnation of the node (PROTOCOL 7.42).
    Lose {
        /// First byte, at a page.
        base: VirtAddr,
        /// Bytes: whole pages.
        len: u64,
    },
    /// Node: another node pushes what is at these addresses here. No access uses them here before [`Update::Place`] or [`Update::Unplace`]
    /// (PROTOCOL 7.37).
    Arrive {
        /// First address; a multiple of `2^size_log2`.
        base: VirtAddr,
        /// Log2 of the bytes, at least those of a page.
        size_log2: u8,
        /// First byte in the node's memory; `offset` and size together stay below 2^64.
        offset: u64,
        /// The number of the move, never used again.
        number: u64,
        /// The port of the node that pushes.
        port: u32,
        /// Its address.
        gid: Gid,
        /// Its UD queue pair.
        qpn: Qpn,
        /// Its UD queue key.
        qkey: Qkey,
    },
    /// Node: no access uses these addresses here from now on, and what is there is pushed to another node (PROTOCOL 7.38).
    Leave {
        /// First address; a multiple of `2^size_log2`.
        base: VirtAddr,
        /// Log2 of the bytes, at least those of a page.
        size_log2: u8,
        /// The number of the move.
        number: u64,
        /// The port of the node that it is pushed to.
        port: u32,
        /// Its address.
        gid: Gid,
        /// Its UD queue pair.
        qpn: Qpn,
        /// Its UD queue key.
        qkey: Qkey,
    },
    /// Node: these addresses are here, at this place of its memory, wherever its range would have them (PROTOCOL 7.39).
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
    /// Node: whatever was said of these addresses by the four updates before is so no longer: they are where the range has them, or nowhere.
    Unplace {
        /// As it was given.
        base: VirtAddr,
        /// As it was given.
        size_log2: u8,
    },
    /// Switch: no page of this prefix, which is in the translation table, is handed out any more, and those that hosts have are taken back,
    /// until the prefix is translated anew, or no more (PROTOCOL 6.24).
    Drain {
        /// As it was given.
        base: VirtAddr,
        /// As it was given.
        size_log2: u8,
    },
    /// Switch: a connection goes through it (PROTOCOL 15.1).
    Connection(Relayed),
    /// Switch: the connection is over.
    ConnectionGone {
        /// The queue pair of the switch that its host sends to.
        to_node: Qpn,
    },
    /// Node: the generations of this number begin anew. All that there were are long over (PROTOCOL 8.8).
    Anew {
        /// The number. No host has it now.
        host: HostId,
    },
}

impl Update {
    /// The most bytes one update takes.
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

    /// Appends the update. [`Updates::request`] checks that it makes sense.
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

/// A numbered batch. A role applies batch `seq` when it is the next one, answers an older one again, and is silent on a later one.
///
/// In a response `seq` is the batch answered and the first refused update, if any, is `refused`; the ones before it were applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Updates<'a> {
    /// The batch's number; the first after a join is 1.
    pub seq: u64,
    /// In a response with a status other than `Ok`: the index of the update that was refused. 0 otherwise.
    pub refused: u16,
    count: u16,
    bytes: &'a [u8],
}

impl<'a> Updates<'a> {
    const FIXED_LEN: usize = 12;
    /// The most bytes of updates in one batch, so that it fits a PMTU of 1024.
    pub const BYTES_MAX: usize = 1024 - super::OVERHEAD - Self::FIXED_LEN;

    /// A batch of updates that were appended to `bytes` with [`Update::emit`].
    ///
    /// # Errors
    /// [`WireError`] when `bytes` does not hold exactly `count` updates or is longer than [`Updates::BYTES_MAX`].
    pub fn request(seq: u64, count: u16, bytes: &'a [u8]) -> Result<Self, WireError> {
        let batch = Self { seq, refused: 0, count, bytes };
        batch.checked()
    }

    /// The answer to batch `seq`.
    #[must_use]
    pub const fn response(seq: u64, refused: u16) -> Self {
        Self { seq, refused, count: 0, bytes: &[] }
    }

    /// The updates as they travel, back to back.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The updates, in order.
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

/// Only a response that is not `Ok` names an update that was refused.
const fn names_refused(header: &Header) -> bool {
    header.response && !header.is_good_response()
}
