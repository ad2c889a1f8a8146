//! A traversal between switches, with the temporary header of Fat-B+Tree III-D: which tree it is of, and which server it goes to (PROTOCOL 16.5).
//!
//! The first hop attaches it, index switches on the way read and write it, the last hop takes it off. What a memory node gets is the traversal.

use super::{Header, Message, Traverse};
use crate::reader::{Put, Reader};
use crate::{Body, NodeId, VirtAddr, WireError};
use alloc::vec::Vec;

/// Index switches that a traversal may pass at most: more than a FatTree has tiers, and an end for rows that lead in a circle.
pub const SWITCHES_MAX: u8 = 8;

/// The kind on the wire.
const KIND: u8 = 0x12;

/// A traversal on its way through index switches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lead<'a> {
    /// The request's, with what the first hop wrote there.
    pub header: Header,
    /// The tree's root: where the traversal would begin without an index.
    pub root: VirtAddr,
    /// The memory node whose tree has the key; none until a switch knows (Fat-B+Tree IV-A: the memory server ID).
    pub server: Option<NodeId>,
    /// Index switches that it may still pass.
    pub switches: u8,
    /// The traversal; its pointer is the deepest node that was found so far.
    pub traverse: Traverse<'a>,
}

impl<'a> Lead<'a> {
    /// Bytes of the temporary header.
    pub const LEN: usize = 16;

    /// True when the payload's kind is this one.
    #[must_use]
    pub fn is(payload: &[u8]) -> bool {
        payload.get(1) == Some(&KIND)
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`WireError`] naming what is wrong; a response is none.
    pub fn parse(payload: &'a [u8]) -> Result<Self, WireError> {
        let mut r = Reader::new("lead", payload);
        let (header, ()) = Header::read_of(&mut r, |kind| (kind == KIND).then_some(()))?;
        if header.response {
            return Err(WireError::Reserved { what: "lead.response" });
        }
        let root = VirtAddr(r.u64()?);
        let server = Some(NodeId(r.u16()?)).filter(|server| *server != NodeId(0));
        let switches = r.u8()?;
        r.zero::<5>("lead.reserved")?;
        let traverse = Traverse::read(&mut r, false)?;
        r.end()?;
        Ok(Self { header, root, server, switches, traverse })
    }

    /// Appends it.
    ///
    /// # Panics
    /// As [`Message::emit`], and when the header is a response's.
    pub fn emit(&self, out: &mut Vec<u8>) {
        assert!(!self.header.response, "only requests are led");
        out.extend_from_slice(&self.header.bytes_of(KIND));
        out.put_u64(self.root.0);
        out.put_u16(self.server.map_or(0, |server| server.0));
        out.put_u8(self.switches);
        out.extend_from_slice(&[0; 5]);
        out.extend_from_slice(&self.traverse.fixed(false));
        self.traverse.emit_rest(out);
    }

    /// Bytes that [`Lead::emit`] appends.
    #[must_use]
    pub const fn len(&self) -> usize {
        Header::LEN + Self::LEN + self.traverse.len()
    }

    /// It is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The request without the temporary header: what a memory node gets.
    #[must_use]
    pub const fn message(&self) -> Message<'a> {
        Message { header: self.header, body: Body::Traverse(self.traverse) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostId, ProgramHash, RequestId};
    use proptest::prelude::*;

    fn lead() -> Lead<'static> {
        let traverse = Traverse {
            program: ProgramHash([7; 16]),
            cur_ptr: VirtAddr(0x1100),
            iterations: 3,
            limit: 9,
            scratch: b"pad",
            code: b"code",
        };
        let header = Header::request(RequestId::new(HostId(2), 1, 5), 4);
        Lead { header, root: VirtAddr(0x2200), server: Some(NodeId(3)), switches: 7, traverse }
    }

    fn bytes(lead: &Lead<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        lead.emit(&mut bytes);
        assert_eq!(bytes.len(), lead.len());
        bytes
    }

    /// PROTOCOL 16.5: the message of the traversal, with 16 bytes behind its header.
    #[test]
    fn the_temporary_header_stands_between_header_and_traversal() {
        let lead = lead();
        let with = bytes(&lead);
        let mut without = Vec::new();
        lead.message().emit(&mut without);
        without[1] = KIND;
        let temporary = [0, 0, 0, 0, 0, 0, 0x22, 0, 0, 3, 7, 0, 0, 0, 0, 0];
        assert_eq!(with, [&without[..24], &temporary, &without[24..]].concat());
        assert_eq!(Lead::parse(&with), Ok(lead));
        let unknown = Lead { server: None, header: Header { again: true, ..lead.header }, ..lead };
        assert_eq!(Lead::parse(&bytes(&unknown)), Ok(unknown));
        assert!(Message::parse(&with).is_err(), "of another kind");
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        let whole = bytes(&lead());
        for cut in 0..whole.len() {
            assert!(Lead::parse(&whole[..cut]).is_err(), "{cut} bytes");
        }
        assert!(Lead::parse(&[&whole[..], &[0]].concat()).is_err());
        for (at, value) in [(0, 2), (1, 0x10), (3, 1), (3, 4), (19, 1), (35, 1), (39, 1)] {
            let mut other = whole.clone();
            other[at] = value;
            assert!(Lead::parse(&other).is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_one_or_none(at in 0..83_usize, value in any::<u8>()) {
            let mut other = bytes(&lead());
            other[at] = value;
            if let Ok(read) = Lead::parse(&other) {
                prop_assert_eq!(bytes(&read), other);
            }
        }
    }
}
