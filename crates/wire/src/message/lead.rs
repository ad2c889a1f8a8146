//! Traversals between switches, with the temporary header of Fat-B+Tree III-D: the tree and the destination
//! server (PROTOCOL 16.5).
//!
//! The first hop attaches the header, index switches on the path read and rewrite it, and the last hop
//! removes it. A memory node gets only the traversal, or the batch.

use super::{Batch, Header, Message, Traverse};
use crate::reader::{Put, Reader};
use crate::{Body, NodeId, ProgramHash, VirtAddr, WireError};
use alloc::vec::Vec;

/// Index switches that a traversal may pass at most: more than the tiers of a FatTree. Bounds a loop of table
/// rows.
pub const SWITCHES_MAX: u8 = 8;

/// Kinds on the wire: of one traversal, and of a batch.
const KIND: u8 = 0x12;
const KIND_BATCH: u8 = 0x13;

/// Traversals on the path through index switches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lead<'a> {
    /// Header of the request, with the fields that the first hop wrote.
    pub header: Header,
    /// Root of the tree: where the traversals would begin without an index.
    pub root: VirtAddr,
    /// The memory node whose tree holds the key; none until a switch knows it (Fat-B+Tree IV-A: the memory
    /// server ID).
    pub server: Option<NodeId>,
    /// Index switches that the message may still pass.
    pub switches: u8,
    /// The traversals; each pointer is the deepest node found so far.
    pub led: LeadBody<'a>,
}

/// The traversals of a [`Lead`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeadBody<'a> {
    /// One traversal.
    One(Traverse<'a>),
    /// Several of one program.
    Batch(Batch<'a>),
}

impl LeadBody<'_> {
    /// Returns the program that all traversals run.
    #[must_use]
    pub const fn program(&self) -> ProgramHash {
        match self {
            Self::One(traverse) => traverse.program,
            Self::Batch(batch) => batch.program(),
        }
    }
}

impl<'a> Lead<'a> {
    /// Bytes of the temporary header.
    pub const LEN: usize = 16;

    /// Returns true if the payload has one of the two kinds.
    #[must_use]
    pub fn is(payload: &[u8]) -> bool {
        matches!(payload.get(1), Some(&(KIND | KIND_BATCH)))
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`WireError`] naming the field; also for a response.
    pub fn parse(payload: &'a [u8]) -> Result<Self, WireError> {
        let mut r = Reader::new("lead", payload);
        let (header, kind) =
            Header::read_of(&mut r, |kind| matches!(kind, KIND | KIND_BATCH).then_some(kind))?;
        if header.response {
            return Err(WireError::Reserved { what: "lead.response" });
        }
        let root = VirtAddr(r.u64()?);
        let server = Some(NodeId(r.u16()?)).filter(|server| *server != NodeId(0));
        let switches = r.u8()?;
        r.zero::<5>("lead.reserved")?;
        let led = if kind == KIND_BATCH {
            LeadBody::Batch(Batch::read(&mut r, &header)?)
        } else {
            LeadBody::One(Traverse::read(&mut r, false)?)
        };
        r.end()?;
        Ok(Self { header, root, server, switches, led })
    }

    /// Appends the message.
    ///
    /// # Panics
    /// If [`Message::emit`] panics, and if the header is a response's.
    pub fn emit(&self, out: &mut Vec<u8>) {
        assert!(!self.header.response, "only requests are led");
        let kind = if matches!(self.led, LeadBody::Batch(_)) { KIND_BATCH } else { KIND };
        out.extend_from_slice(&self.header.bytes_of(kind));
        out.put_u64(self.root.0);
        out.put_u16(self.server.map_or(0, |server| server.0));
        out.put_u8(self.switches);
        out.extend_from_slice(&[0; 5]);
        match &self.led {
            LeadBody::One(traverse) => {
                out.extend_from_slice(&traverse.fixed(false));
                traverse.emit_rest(out);
            }
            LeadBody::Batch(batch) => batch.emit(&self.header, out),
        }
    }

    /// Returns the number of bytes that [`Lead::emit`] appends.
    #[must_use]
    pub const fn len(&self) -> usize {
        let body = match &self.led {
            LeadBody::One(traverse) => traverse.len(),
            LeadBody::Batch(batch) => batch.len(),
        };
        Header::LEN + Self::LEN + body
    }

    /// Returns false: a message is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Returns the request without the temporary header, as a memory node gets it.
    #[must_use]
    pub const fn message(&self) -> Message<'a> {
        let body = match self.led {
            LeadBody::One(traverse) => Body::Traverse(traverse),
            LeadBody::Batch(batch) => Body::Batch(batch),
        };
        Message { header: self.header, body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Pair, PairBuf};
    use crate::{HostId, RequestId, Status};
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
        Lead {
            header,
            root: VirtAddr(0x2200),
            server: Some(NodeId(3)),
            switches: 7,
            led: LeadBody::One(traverse),
        }
    }

    /// Returns a [`Lead`] with a batch of two traversals.
    fn lead_of_batch(pairs: &mut PairBuf) -> Lead<'_> {
        let lead = lead();
        for counter in [5, 9] {
            let (status, cur_ptr, scratch) = (Status::Ok, VirtAddr(0x1100), &b"pad"[..]);
            pairs.push(&Pair { counter, status, cur_ptr, iterations: 0, limit: 9, scratch });
        }
        Lead { led: LeadBody::Batch(Batch::of(&lead.header, lead.led.program(), b"code", pairs)), ..lead }
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

    /// A batch is encoded the same way, with another kind. The two kinds do not mix.
    #[test]
    fn a_batch_is_led_likewise() {
        let mut pairs = PairBuf::default();
        let lead = lead_of_batch(&mut pairs);
        let with = bytes(&lead);
        let mut without = Vec::new();
        lead.message().emit(&mut without);
        without[1] = KIND_BATCH;
        assert_eq!((&with[..24], &with[40..]), (&without[..24], &without[24..]));
        assert_eq!(Lead::parse(&with), Ok(lead));
        let mut other = with.clone();
        other[1] = KIND;
        assert!(Lead::is(&with) && Lead::parse(&other).is_err());
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        let (whole, mut pairs) = (bytes(&lead()), PairBuf::default());
        for whole in [&whole, &bytes(&lead_of_batch(&mut pairs))] {
            for cut in 0..whole.len() {
                assert!(Lead::parse(&whole[..cut]).is_err(), "{cut} bytes");
            }
            assert!(Lead::parse(&[&whole[..], &[0]].concat()).is_err());
        }
        for (at, value) in [(0, 2), (1, 0x10), (3, 1), (3, 4), (19, 1), (35, 1), (39, 1)] {
            let mut other = whole.clone();
            other[at] = value;
            assert!(Lead::parse(&other).is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_one_or_none(at in 0..83_usize, value in any::<u8>()) {
            let mut pairs = PairBuf::default();
            for mut other in [bytes(&lead()), bytes(&lead_of_batch(&mut pairs))] {
                other[at] = value;
                if let Ok(read) = Lead::parse(&other) {
                    prop_assert_eq!(bytes(&read), other);
                }
            }
        }
    }
}
