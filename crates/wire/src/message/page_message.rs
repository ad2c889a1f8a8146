//! Encoding of coherence messages (PROTOCOL 12.5, 12.37).
//!
//! Coherence messages have the header of all messages and kinds of their own. They are not requests and
//! responses with a status, so they have a type of their own. A receiver calls [`PageMessage::is`] first.
//!
//! The two messages that carry page bytes fit a whole page in a frame of 4168 bytes, which an Ethernet MTU of
//! 4200 carries.

use super::coherence::{
    Data, Done, Get, Grant, Part, Read, Recall, RecallAck, Refusal, WriteBack, WriteBackAck,
};
use super::{Access, FetchId, Header, HostSet, OVERHEAD, PAGE_LEN, Page, Region, Seq, Status, VERSION};
use crate::reader::{Put, Reader};
use crate::{Domain, HostId, VirtAddr, WireError};
use alloc::vec::Vec;

/// The body of a coherence message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageBody<'a> {
    /// Host to switch: a page request.
    Get(Get),
    /// Switch to memory node: send a page to a host.
    Read(Read),
    /// Memory node to host: the bytes of a part; none if the page is lost.
    Data(Data, &'a [u8]),
    /// Switch to host: the right to use a page.
    Grant(Grant),
    /// Host to switch: a page was installed.
    Done(Done),
    /// Switch to hosts: recalls a region. Hosts outside the set may receive the message and ignore it (MIND
    /// 4.3.2).
    Recall(HostSet, Recall),
    /// Host to switch, or memory node on behalf of the host: the recall was obeyed.
    RecallAck(RecallAck),
    /// Host to memory node, through the switch: the bytes of a part.
    WriteBack(WriteBack, Part, &'a [u8]),
    /// Memory node to host: acknowledges a write-back.
    WriteBackAck(WriteBackAck),
    /// Switch to host: refuses a page request.
    Refusal(Refusal),
}

/// A coherence message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageMessage<'a> {
    /// The protection domain. Hosts send 0; the switch writes it from the session.
    pub domain: Domain,
    /// The host concerned. Hosts send 0; the switch writes it from the session.
    pub origin: HostId,
    /// The rest.
    pub body: PageBody<'a>,
}

/// The first kind (PROTOCOL 3.4).
const FIRST_KIND: u8 = 0x30;
/// The last kind.
const LAST_KIND: u8 = 0x39;

/// Flags (PROTOCOL 12.38).
const ACCESS_BITS: u8 = 3;
const CLEAN: u8 = 1 << 2;
const GRANTED: u8 = 1 << 3;
const DONE_DUE: u8 = 1 << 4;
const LOST: u8 = 1 << 5;
const BEHIND: u8 = 1 << 6;
const KEEP: u8 = 1;
/// A region order that stands for "no acknowledgement" in a write-back.
const NO_ACK: u8 = 0xff;
/// A page index that stands for "no request" in a recall.
const NO_PAGE: u16 = 0xffff;
/// Bytes of a body before a part of a page.
const BEFORE_PART: usize = 28;

impl<'a> PageMessage<'a> {
    /// Bytes of the longest frame, BTH to pad: a whole page and the headers before it (PROTOCOL 12.39).
    pub const FRAME_LEN_MAX: usize = OVERHEAD + BEFORE_PART + PAGE_LEN;

    /// Returns true if the payload is a coherence message of this version.
    #[must_use]
    pub const fn is(payload: &[u8]) -> bool {
        matches!(payload, [VERSION, FIRST_KIND..=LAST_KIND, ..])
    }

    /// Reads a message. Checks every length, number and reserved field.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn parse(payload: &'a [u8]) -> Result<Self, WireError> {
        let mut r = Reader::new("page message", payload);
        let [version, kind, status, flags] = r.array()?;
        if version != VERSION {
            return Err(WireError::Unknown { what: "message.version", value: version.into() });
        }
        if flags != 0 {
            return Err(WireError::Reserved { what: "message.flags" });
        }
        let domain = Domain(r.u32()?);
        r.zero::<8>("message.request")?;
        let origin = HostId(r.u16()?);
        r.zero::<6>("message.reserved")?;
        let Some(status) = Status::from_bits(status) else {
            return Err(WireError::Unknown { what: "message.status", value: status.into() });
        };
        if status != Status::Ok && kind != LAST_KIND {
            return Err(WireError::Unknown { what: "message.status", value: status as u64 });
        }
        let body = body(&mut r, kind, status, origin)?;
        r.end()?;
        Ok(Self { domain, origin, body })
    }

    /// Appends the message.
    ///
    /// # Panics
    /// If the bytes of a part have the wrong length, or a write-back's page is not in the region of its
    /// acknowledgement.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let status = if let PageBody::Refusal(refusal) = self.body { refusal.status } else { Status::Ok };
        out.extend_from_slice(&[VERSION, self.kind(), status as u8, 0]);
        out.put_u32(self.domain.0);
        out.put_u64(0);
        out.put_u16(self.origin.0);
        out.extend_from_slice(&[0; 6]);
        emit(&self.body, out);
    }

    /// Returns the number of bytes that [`PageMessage::emit`] appends.
    #[must_use]
    pub const fn len(&self) -> usize {
        Header::LEN
            + match self.body {
                PageBody::Get(_) | PageBody::Done(_) | PageBody::Refusal(_) => 20,
                PageBody::Read(_) | PageBody::Grant(_) => 28,
                PageBody::Data(_, bytes) | PageBody::WriteBack(_, _, bytes) => BEFORE_PART + bytes.len(),
                PageBody::Recall(..) => 20 + HostSet::LEN,
                PageBody::RecallAck(_) => 20,
                PageBody::WriteBackAck(_) => 28,
            }
    }

    /// Returns false: a message is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    const fn kind(&self) -> u8 {
        FIRST_KIND
            + match self.body {
                PageBody::Get(_) => 0,
                PageBody::Read(_) => 1,
                PageBody::Data(..) => 2,
                PageBody::Grant(_) => 3,
                PageBody::Done(_) => 4,
                PageBody::Recall(..) => 5,
                PageBody::RecallAck(_) => 6,
                PageBody::WriteBack(..) => 7,
                PageBody::WriteBackAck(_) => 8,
                PageBody::Refusal(_) => 9,
            }
    }
}

fn body<'a>(r: &mut Reader<'a>, kind: u8, status: Status, host: HostId) -> Result<PageBody<'a>, WireError> {
    Ok(match kind {
        0x30 => {
            let (page, id) = (page(r)?, FetchId(r.u64()?));
            let access = flags(r, 0)?.0;
            r.zero::<3>("get.reserved")?;
            PageBody::Get(Get { page, access, id })
        }
        0x31 => {
            let (page, id, seq) = (page(r)?, FetchId(r.u64()?), Seq(r.u64()?));
            let (access, flags) = flags(r, CLEAN | GRANTED | DONE_DUE | BEHIND)?;
            r.zero::<3>("read.reserved")?;
            let [clean, behind, granted, done_due] =
                [CLEAN, BEHIND, GRANTED, DONE_DUE].map(|flag| flags & flag != 0);
            PageBody::Read(Read { page, access, host, id, seq, clean, behind, granted, done_due })
        }
        0x32 => {
            let (page, id, seq) = (page(r)?, FetchId(r.u64()?), Seq(r.u64()?));
            let (access, flags) = flags(r, GRANTED | DONE_DUE | LOST)?;
            let [granted, done_due, lost] = [GRANTED, DONE_DUE, LOST].map(|flag| flags & flag != 0);
            let part = part(r)?;
            r.zero::<2>("data.reserved")?;
            let bytes = r.take(if lost { 0 } else { part.range().len() })?;
            PageBody::Data(Data { page, access, id, seq, granted, done_due, lost, part }, bytes)
        }
        0x33 => {
            let grant = Grant { page: page(r)?, id: FetchId(r.u64()?), seq: Seq(r.u64()?) };
            r.zero::<4>("grant.reserved")?;
            PageBody::Grant(grant)
        }
        0x34 => {
            let done = Done { page: page(r)?, seq: Seq(r.u64()?) };
            r.zero::<4>("done.reserved")?;
            PageBody::Done(done)
        }
        0x35 => recall(r)?,
        0x36 => {
            let (base, seq) = (page(r)?, Seq(r.u64()?));
            let (false_invalidations, order) = (r.u16()?, r.u8()?);
            r.zero::<1>("recall ack.reserved")?;
            PageBody::RecallAck(RecallAck { region: region(base, order)?, seq, false_invalidations })
        }
        0x37 => {
            let (page, grant, ack) = written(r)?;
            let part = part(r)?;
            PageBody::WriteBack(WriteBack { page, grant, ack }, part, r.take(part.range().len())?)
        }
        0x38 => {
            let (page, grant, ack) = written(r)?;
            r.zero::<1>("write-back ack.reserved")?;
            PageBody::WriteBackAck(WriteBackAck { page, grant, ack })
        }
        0x39 => {
            let refusal = Refusal { page: page(r)?, id: FetchId(r.u64()?), status };
            r.zero::<4>("refusal.reserved")?;
            PageBody::Refusal(refusal)
        }
        _ => return Err(WireError::Unknown { what: "message.kind", value: kind.into() }),
    })
}

fn page(r: &mut Reader<'_>) -> Result<Page, WireError> {
    let addr = VirtAddr(r.u64()?);
    let page = Page::of(addr);
    if page.addr() == addr { Ok(page) } else { Err(WireError::Unknown { what: "page", value: addr.0 }) }
}

fn region(base: Page, order: u8) -> Result<Region, WireError> {
    Region::new(base, order).ok_or_else(|| WireError::Unknown { what: "region.order", value: order.into() })
}

/// Reads access and flags; only the flags in `known` may be set.
fn flags(r: &mut Reader<'_>, known: u8) -> Result<(Access, u8), WireError> {
    let bits = r.u8()?;
    let access = match bits & ACCESS_BITS {
        1 => Access::Shared,
        2 => Access::Modified,
        other => return Err(WireError::Unknown { what: "access", value: other.into() }),
    };
    if bits & !ACCESS_BITS & !known != 0 {
        return Err(WireError::Reserved { what: "flags" });
    }
    Ok((access, bits & known))
}

/// Reads a part: the index in the high bits, the number of the last part in the low bits.
pub(super) fn part(r: &mut Reader<'_>) -> Result<Part, WireError> {
    let bits = r.u8()?;
    let part = Part { index: bits >> 4, count: (bits & 15) + 1 };
    if part.index >= part.count || !part.count.is_power_of_two() {
        return Err(WireError::Unknown { what: "part", value: bits.into() });
    }
    Ok(part)
}

fn recall<'a>(r: &mut Reader<'a>) -> Result<PageBody<'a>, WireError> {
    let (base, seq, to) = (page(r)?, Seq(r.u64()?), HostSet::take(r)?);
    let (wanted, order, flags) = (r.u16()?, r.u8()?, r.u8()?);
    let region = region(base, order)?;
    if flags & !KEEP != 0 {
        return Err(WireError::Reserved { what: "recall.flags" });
    }
    if wanted != NO_PAGE && u64::from(wanted) >= region.len() {
        return Err(WireError::Unknown { what: "recall.wanted", value: wanted.into() });
    }
    let wanted = (wanted != NO_PAGE).then_some(wanted);
    Ok(PageBody::Recall(to, Recall { region, seq, keep: flags & KEEP != 0, wanted }))
}

/// Reads the common fields of a write-back and its acknowledgement: page, grant, and the recall
/// acknowledgement for a region around the page.
fn written(r: &mut Reader<'_>) -> Result<(Page, Seq, Option<RecallAck>), WireError> {
    let (page, grant, seq) = (page(r)?, Seq(r.u64()?), Seq(r.u64()?));
    let (false_invalidations, order) = (r.u16()?, r.u8()?);
    if order == NO_ACK {
        let clear = seq == Seq(0) && false_invalidations == 0;
        return if clear { Ok((page, grant, None)) } else { Err(WireError::Reserved { what: "ack" }) };
    }
    let around = Page::of(VirtAddr(page.addr().0 & !(region_len(order) - 1)));
    Ok((page, grant, Some(RecallAck { region: region(around, order)?, seq, false_invalidations })))
}

/// Returns the bytes of a region of this order, or of the largest region if the order is invalid.
const fn region_len(order: u8) -> u64 {
    let order = if order > super::REGION_ORDER_MAX { super::REGION_ORDER_MAX } else { order };
    1 << (order as u32 + super::PAGE_SHIFT)
}

fn emit(body: &PageBody<'_>, out: &mut Vec<u8>) {
    match *body {
        PageBody::Get(Get { page, access, id }) => {
            put(out, page, &[id.0]);
            out.extend_from_slice(&[access as u8, 0, 0, 0]);
        }
        PageBody::Read(Read { page, access, id, seq, clean, behind, granted, done_due, .. }) => {
            put(out, page, &[id.0, seq.0]);
            let flags =
                bit(clean, CLEAN) | bit(behind, BEHIND) | bit(granted, GRANTED) | bit(done_due, DONE_DUE);
            out.extend_from_slice(&[access as u8 | flags, 0, 0, 0]);
        }
        PageBody::Data(Data { page, access, id, seq, granted, done_due, lost, part }, bytes) => {
            put(out, page, &[id.0, seq.0]);
            let flags = bit(granted, GRANTED) | bit(done_due, DONE_DUE) | bit(lost, LOST);
            out.extend_from_slice(&[access as u8 | flags, part_bits(part), 0, 0]);
            put_bytes(out, bytes, if lost { 0 } else { part.range().len() });
        }
        PageBody::Grant(Grant { page, id, seq }) => {
            put(out, page, &[id.0, seq.0]);
            out.put_u32(0);
        }
        PageBody::Done(Done { page, seq }) => {
            put(out, page, &[seq.0]);
            out.put_u32(0);
        }
        PageBody::Recall(to, Recall { region, seq, keep, wanted }) => {
            put(out, region.base(), &[seq.0]);
            to.put(out);
            out.put_u16(wanted.unwrap_or(NO_PAGE));
            out.extend_from_slice(&[region.order(), bit(keep, KEEP)]);
        }
        PageBody::RecallAck(RecallAck { region, seq, false_invalidations }) => {
            put(out, region.base(), &[seq.0]);
            out.put_u16(false_invalidations);
            out.extend_from_slice(&[region.order(), 0]);
        }
        PageBody::WriteBack(WriteBack { page, grant, ack }, part, bytes) => {
            put_written(out, page, grant, ack);
            out.put_u8(part_bits(part));
            put_bytes(out, bytes, part.range().len());
        }
        PageBody::WriteBackAck(WriteBackAck { page, grant, ack }) => {
            put_written(out, page, grant, ack);
            out.put_u8(0);
        }
        PageBody::Refusal(Refusal { page, id, .. }) => {
            put(out, page, &[id.0]);
            out.put_u32(0);
        }
    }
}

const fn bit(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

pub(super) fn part_bits(part: Part) -> u8 {
    assert!(
        part.count.is_power_of_two() && part.count <= Part::COUNT_MAX,
        "a page has 1, 2, 4, 8 or 16 parts"
    );
    part.index << 4 | (part.count - 1)
}

fn put(out: &mut Vec<u8>, page: Page, numbers: &[u64]) {
    out.put_u64(page.addr().0);
    for &number in numbers {
        out.put_u64(number);
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8], due: usize) {
    assert_eq!(bytes.len(), due, "a part comes with exactly its bytes");
    out.extend_from_slice(bytes);
}

fn put_written(out: &mut Vec<u8>, page: Page, grant: Seq, ack: Option<RecallAck>) {
    let (seq, false_invalidations, order) = match ack {
        Some(ack) => {
            assert!(ack.region.contains(page), "a write-back acknowledges for its own region");
            (ack.seq.0, ack.false_invalidations, ack.region.order())
        }
        None => (0, 0, NO_ACK),
    };
    put(out, page, &[grant.0, seq]);
    out.put_u16(false_invalidations);
    out.put_u8(order);
}

#[cfg(test)]
mod tests;
