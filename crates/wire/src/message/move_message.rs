//! Messages between two memory nodes while pages migrate (PROTOCOL 7.40).
//!
//! ```text
//!     old node -- Page, Record --> new node
//!              <-- PageAck, RecordAck --
//! ```
//!
//! Each message is retransmitted until it is answered; a duplicate has no effect. All messages of a move have
//! its number.

use super::page_message::{part, part_bits};
use super::{Header, PAGE_LEN, Page, Part, Seq, VERSION, put_numbered, read_numbered};
use crate::reader::{Put, Reader};
use crate::{HostId, RequestId, VirtAddr, WireError};
use alloc::vec::Vec;

/// A node's state of a page, without the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageState {
    /// The minimum valid grant number: write-backs of smaller grants are void.
    pub min_seq: Seq,
    /// The largest number under which the page was granted for writing.
    pub lent: Seq,
    /// The host that holds the grant with this number.
    pub holder: HostId,
    /// True if the latest bytes were lost with a host.
    pub lost: bool,
    /// True if the page was handed out coherently since it was last cleared.
    pub coherent: bool,
}

/// The body of a message between memory nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveBody<'a> {
    /// A part of a page with the page's state; no part for a page of zeros.
    Page(Page, PageState, Option<(Part, &'a [u8])>),
    /// The receiver has all of the page.
    PageAck(Page),
    /// The outcome of an executed request that writes, with the hops left in that visit. None: all requests
    /// of the host up to this id are forgotten.
    Record(RequestId, u8, Option<&'a [u8]>),
    /// The receiver has the record.
    RecordAck(RequestId, u8),
}

/// A message between memory nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoveMessage<'a> {
    /// Number of the move.
    pub number: u64,
    /// The rest.
    pub body: MoveBody<'a>,
}

/// The first kind (PROTOCOL 3.4).
const FIRST_KIND: u8 = 0x50;
/// The last kind.
const LAST_KIND: u8 = 0x53;

const LOST: u8 = 1;
const COHERENT: u8 = 2;
const ZERO: u8 = 4;

impl<'a> MoveMessage<'a> {
    /// Returns true if the payload is a message between memory nodes, of this version.
    #[must_use]
    pub const fn is(payload: &[u8]) -> bool {
        matches!(payload, [VERSION, FIRST_KIND..=LAST_KIND, ..])
    }

    /// Reads a message. Checks every length, number and reserved field.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn parse(payload: &'a [u8]) -> Result<Self, WireError> {
        let (kind, number, mut r) = read_numbered("move message", payload)?;
        let body = match kind {
            0x50 => page_and_state(&mut r)?,
            0x51 => MoveBody::PageAck(page(&mut r)?),
            0x52 => {
                let (request, hops, kept) = (RequestId(r.u64()?), r.u8()?, r.u8()?);
                r.zero::<2>("move message.reserved")?;
                let bytes = r.rest();
                match (kept, bytes.len()) {
                    (1, _) => MoveBody::Record(request, hops, Some(bytes)),
                    (0, 0) => MoveBody::Record(request, hops, None),
                    _ => return Err(WireError::Unknown { what: "move message.kept", value: kept.into() }),
                }
            }
            0x53 => {
                let (request, hops) = (RequestId(r.u64()?), r.u8()?);
                r.zero::<3>("move message.reserved")?;
                MoveBody::RecordAck(request, hops)
            }
            _ => return Err(WireError::Unknown { what: "message.kind", value: kind.into() }),
        };
        r.end()?;
        Ok(Self { number, body })
    }

    /// Appends the message.
    ///
    /// # Panics
    /// If the bytes of a part have the wrong length.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let kind = match self.body {
            MoveBody::Page(..) => 0x50,
            MoveBody::PageAck(_) => 0x51,
            MoveBody::Record(..) => 0x52,
            MoveBody::RecordAck(..) => 0x53,
        };
        put_numbered(out, kind, self.number);
        match self.body {
            MoveBody::Page(page, state, part) => put_page(page, state, part, out),
            MoveBody::PageAck(page) => out.put_u64(page.addr().0),
            MoveBody::Record(request, hops, bytes) => {
                out.put_u64(request.0);
                out.extend_from_slice(&[hops, u8::from(bytes.is_some()), 0, 0]);
                out.extend_from_slice(bytes.unwrap_or_default());
            }
            MoveBody::RecordAck(request, hops) => {
                out.put_u64(request.0);
                out.extend_from_slice(&[hops, 0, 0, 0]);
            }
        }
    }

    /// Returns the number of bytes that [`MoveMessage::emit`] appends.
    #[must_use]
    pub const fn len(&self) -> usize {
        Header::LEN
            + match self.body {
                MoveBody::Page(.., None) => STATE_LEN,
                MoveBody::Page(.., Some((_, bytes))) => STATE_LEN + bytes.len(),
                MoveBody::PageAck(_) => 8,
                MoveBody::Record(.., None) | MoveBody::RecordAck(..) => 12,
                MoveBody::Record(.., Some(bytes)) => 12 + bytes.len(),
            }
    }

    /// Returns false: a message is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// Bytes of a page's address and state.
const STATE_LEN: usize = 28;

fn page(r: &mut Reader<'_>) -> Result<Page, WireError> {
    let addr = r.u64()?;
    let page = Page::of(VirtAddr(addr));
    if page.addr().0 == addr { Ok(page) } else { Err(WireError::Unknown { what: "page", value: addr }) }
}

fn page_and_state<'a>(r: &mut Reader<'a>) -> Result<MoveBody<'a>, WireError> {
    let page = page(r)?;
    let (min_seq, lent, holder) = (Seq(r.u64()?), Seq(r.u64()?), HostId(r.u16()?));
    let flags = r.u8()?;
    if flags > LOST | COHERENT | ZERO {
        return Err(WireError::Reserved { what: "move message.flags" });
    }
    let state = PageState { min_seq, lent, holder, lost: flags & LOST != 0, coherent: flags & COHERENT != 0 };
    if flags & ZERO != 0 {
        r.zero::<1>("move message.part")?;
        return Ok(MoveBody::Page(page, state, None));
    }
    let part = part(r)?;
    let bytes = r.take(part.range().len())?;
    Ok(MoveBody::Page(page, state, Some((part, bytes))))
}

fn put_page(page: Page, state: PageState, part: Option<(Part, &[u8])>, out: &mut Vec<u8>) {
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    out.put_u64(page.addr().0);
    out.put_u64(state.min_seq.0);
    out.put_u64(state.lent.0);
    out.put_u16(state.holder.0);
    out.put_u8(flag(state.lost, LOST) | flag(state.coherent, COHERENT) | flag(part.is_none(), ZERO));
    out.put_u8(part.map_or(0, |(part, _)| part_bits(part)));
    if let Some((part, bytes)) = part {
        assert_eq!(bytes.len(), part.range().len(), "a part has its length");
        out.extend_from_slice(bytes);
    }
}

const _: () =
    assert!(super::OVERHEAD + STATE_LEN + PAGE_LEN <= 4200, "a page in one part fits a frame of 4200 bytes");

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn page_of() -> impl Strategy<Value = Page> {
        any::<u64>().prop_map(|addr| Page::of(VirtAddr(addr)))
    }

    fn state_of() -> impl Strategy<Value = PageState> {
        any::<(u64, u64, u16, bool, bool)>().prop_map(|(min_seq, lent, holder, lost, coherent)| PageState {
            min_seq: Seq(min_seq),
            lent: Seq(lent),
            holder: HostId(holder),
            lost,
            coherent,
        })
    }

    fn comes_back(number: u64, body: MoveBody<'_>) {
        let message = MoveMessage { number, body };
        let mut bytes = vec![];
        message.emit(&mut bytes);
        assert_eq!(bytes.len(), message.len(), "{body:?}");
        assert!(MoveMessage::is(&bytes) && !message.is_empty());
        assert_eq!(MoveMessage::parse(&bytes), Ok(message));
        if !matches!(body, MoveBody::Record(.., Some(_))) {
            (0..bytes.len())
                .for_each(|have| assert!(MoveMessage::parse(&bytes[..have]).is_err(), "{have} bytes"));
        }
    }

    proptest! {
        #[test]
        fn what_is_said_is_what_is_heard(
            number in any::<u64>(), page in page_of(), state in state_of(), log2 in 0..=4_u8, index in 0..16_u8, fill in any::<u8>(),
            request in any::<u64>(), hops in any::<u8>(), kept in prop::collection::vec(any::<u8>(), 0..400)
        ) {
            let count = 1 << log2;
            let part = Part { index: index % count, count };
            let bytes = vec![fill; part.range().len()];
            let request = RequestId(request);
            for body in [
                MoveBody::Page(page, state, Some((part, &bytes))),
                MoveBody::Page(page, state, None),
                MoveBody::PageAck(page),
                MoveBody::Record(request, hops, Some(&kept)),
                MoveBody::Record(request, hops, None),
                MoveBody::RecordAck(request, hops),
            ] {
                comes_back(number, body);
            }
        }

        #[test]
        fn hostile_bytes_are_read_or_refused(kind in 0x50..=0x54_u8, rest in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut bytes = vec![VERSION, kind];
            bytes.extend([0; 22]);
            bytes.extend(rest);
            if let Ok(message) = MoveMessage::parse(&bytes) {
                let mut again = vec![];
                message.emit(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
