//! Messages between the control plane and switch or memory nodes about the directory (PROTOCOL 12.41).
//!
//! ```text
//!              Reset, End, List, Resize                    Sweep
//!     control --------------------------> switch   control -------> node
//!        ^  <--- Collected, Unknown, ----'  |  ^      ^               |
//!        |  Ended, Listing, Full, Awaiting  |  |      `--- Swept -----'
//!                                 Clean     |  | Visit
//!                                 node <----'  `---- node
//!     control -- Moving --> node -- Moved --> control
//! ```
//!
//! These messages are no table updates: each may be lost, duplicated and delayed, and repeated delivery has
//! no effect. The requester retransmits its request. The token matches a response to its request; unsolicited
//! messages have the token 0.

use super::{CACHING_HOSTS_MAX, Header, HostSet, Page, Region, Seq, VERSION, put_numbered, read_numbered};
use crate::reader::{Put, Reader};
use crate::{RequestId, VirtAddr, WireError};
use alloc::vec::Vec;

/// Most rows of a [`DirectoryBody::Listing`] and of a [`DirectoryBody::Resize`]: those that fit a PMTU of
/// 1024.
pub const ROWS_MAX: usize = 79;

/// The body of a message about the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectoryBody<'a> {
    /// Control to switch: recall the region that holds the page from all hosts; repeat the recall to hosts
    /// that did not answer.
    Reset(Page),
    /// Switch to control: all hosts gave up the region's pages granted before this number.
    Collected(Region, Seq),
    /// Switch to control: no region holds the page, so no host caches it.
    Unknown(Page),
    /// Control to node: mark the pages of fenced hosts as lost.
    Sweep(Sweep),
    /// Node to control: the sweep is done; the number counts the pages that it lost.
    Swept(Sweep, u32),
    /// Control to switch: the region's nodes are swept under this number; end the reset.
    End(Region, Seq),
    /// Switch to control: the reset of the region under this number is over.
    Ended(Region, Seq),
    /// Control to switch: list the regions from this page on.
    List(Page),
    /// Switch to control: a part of the list.
    Listing(Listing<'a>),
    /// Control to switch: split and merge these regions, as far as they are idle.
    Resize(RegionRows<'a>),
    /// Switch to control: no free slot for the region of this page.
    Full(Page),
    /// Node to switch: a traversal or a READ accesses the page, whose latest bytes may be at a host.
    Visit(Page),
    /// Switch to node: no host has, or will write back, the page from before this number.
    Clean(Page, Seq),
    /// Control to node: how much of the move with this number remains?
    Moving(u64),
    /// Node to control: the remaining pages and records of the move; [`UNKNOWN_MOVE`] if the node does not
    /// know the move.
    Moved(u64, u32),
    /// Switch to control: the region is being reset under this number; these hosts were asked again and have
    /// not given it up.
    Awaiting(Region, Seq, HostSet),
}

/// The remainder of a move that the node does not know.
pub const UNKNOWN_MOVE: u32 = u32::MAX;

/// A sweep of the pages from `first` to `last`. Pages that were granted for writing before `seq` to a host of
/// `fenced`, and not written back, become lost. Write-backs of earlier grants become void.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Sweep {
    /// The first page.
    pub first: Page,
    /// The last page, not before the first.
    pub last: Page,
    /// The number of the sweep.
    pub seq: Seq,
    /// The fenced hosts.
    pub fenced: HostSet,
    /// True if the sweep covers the node's whole memory: from now on, the node serves pages under the numbers
    /// of this epoch.
    pub opens: bool,
}

/// A part of the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listing<'a> {
    /// The first page of the request.
    pub from: Page,
    /// The page to continue from, if there are more regions.
    pub next: Option<Page>,
    /// Slots in use.
    pub used: u32,
    /// Total number of slots.
    pub slots: u32,
    /// The regions, by address.
    pub rows: RegionRows<'a>,
}

/// A region in a list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RegionRow {
    /// The region. For a split, the region to split; for a merge, the region that results.
    pub region: Region,
    /// State of the region, or the change requested of it.
    pub kind: RegionRowKind,
    /// In a listing: false invalidations since the last listing.
    pub false_invalidations: u16,
}

/// The state of a listed region, or the requested change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RegionRowKind {
    /// The region exists.
    Listed,
    /// The region is being reset.
    Resetting,
    /// Split the region.
    Split,
    /// Merge the region's halves.
    Merge,
}

/// A view of encoded rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionRows<'a>(&'a [u8]);

impl<'a> RegionRows<'a> {
    /// Bytes of a row.
    pub const ROW_LEN: usize = 12;

    /// Creates a view of rows that were appended to `bytes` with [`RegionRow::emit`].
    ///
    /// # Errors
    /// [`WireError`] if the bytes are not a whole number of valid rows, or more than [`ROWS_MAX`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, WireError> {
        let most = ROWS_MAX * Self::ROW_LEN;
        if bytes.len() > most {
            return Err(WireError::Long { what: "rows", most, have: bytes.len() });
        }
        let mut r = Reader::new("rows", bytes);
        for _ in 0..bytes.len().div_ceil(Self::ROW_LEN) {
            RegionRow::read(&mut r)?;
        }
        Ok(Self(bytes))
    }

    /// Returns the rows, in order.
    pub fn iter(&self) -> impl Iterator<Item = RegionRow> + use<'a> {
        let mut r = Reader::new("rows", self.0);
        (0..self.0.len() / Self::ROW_LEN).map_while(move |_| RegionRow::read(&mut r).ok())
    }
}

impl RegionRow {
    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (region, bits) = (region(r)?, r.u8()?);
        let kind = match bits {
            0 => RegionRowKind::Listed,
            1 => RegionRowKind::Resetting,
            2 => RegionRowKind::Split,
            3 => RegionRowKind::Merge,
            _ => return Err(WireError::Unknown { what: "row", value: bits.into() }),
        };
        Ok(Self { region, kind, false_invalidations: r.u16()? })
    }

    /// Appends the row.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_region(out, self.region);
        out.put_u8(self.kind as u8);
        out.put_u16(self.false_invalidations);
    }
}

/// A message about the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryMessage<'a> {
    /// Number of the request; the response has the same.
    pub token: RequestId,
    /// The rest.
    pub body: DirectoryBody<'a>,
}

/// The first kind (PROTOCOL 3.4).
const FIRST_KIND: u8 = 0x40;
/// The last kind.
const LAST_KIND: u8 = 0x4f;
/// An address at which no page begins, for "no page".
const NO_PAGE: u64 = u64::MAX;

impl<'a> DirectoryMessage<'a> {
    /// Returns true if the payload is a message about the directory, of this version.
    #[must_use]
    pub const fn is(payload: &[u8]) -> bool {
        matches!(payload, [VERSION, FIRST_KIND..=LAST_KIND, ..])
    }

    /// Reads a message. Checks every length, number and reserved field.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn parse(payload: &'a [u8]) -> Result<Self, WireError> {
        let (kind, token, mut r) = read_numbered("directory message", payload)?;
        let body = read(&mut r, kind)?;
        r.end()?;
        Ok(Self { token: RequestId(token), body })
    }

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_numbered(out, self.kind(), self.token.0);
        emit(&self.body, out);
    }

    /// Returns the number of bytes that [`DirectoryMessage::emit`] appends.
    #[must_use]
    pub const fn len(&self) -> usize {
        Header::LEN
            + match self.body {
                DirectoryBody::Reset(_)
                | DirectoryBody::Unknown(_)
                | DirectoryBody::List(_)
                | DirectoryBody::Full(_)
                | DirectoryBody::Visit(_)
                | DirectoryBody::Moving(_) => 8,
                DirectoryBody::Moved(..) => 12,
                DirectoryBody::Clean(..) => 16,
                DirectoryBody::Collected(..) | DirectoryBody::End(..) | DirectoryBody::Ended(..) => 20,
                DirectoryBody::Awaiting(..) => 20 + HostSet::LEN,
                DirectoryBody::Sweep(_) => 28 + HostSet::LEN,
                DirectoryBody::Swept(..) => 32 + HostSet::LEN,
                DirectoryBody::Listing(listing) => 24 + listing.rows.0.len(),
                DirectoryBody::Resize(rows) => rows.0.len(),
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
                DirectoryBody::Reset(_) => 0,
                DirectoryBody::Collected(..) => 1,
                DirectoryBody::Unknown(_) => 2,
                DirectoryBody::Sweep(_) => 3,
                DirectoryBody::Swept(..) => 4,
                DirectoryBody::End(..) => 5,
                DirectoryBody::Ended(..) => 6,
                DirectoryBody::List(_) => 7,
                DirectoryBody::Listing(_) => 8,
                DirectoryBody::Resize(_) => 9,
                DirectoryBody::Full(_) => 10,
                DirectoryBody::Visit(_) => 11,
                DirectoryBody::Clean(..) => 12,
                DirectoryBody::Moving(_) => 13,
                DirectoryBody::Moved(..) => 14,
                DirectoryBody::Awaiting(..) => 15,
            }
    }
}

fn read<'a>(r: &mut Reader<'a>, kind: u8) -> Result<DirectoryBody<'a>, WireError> {
    Ok(match kind {
        0x40 => DirectoryBody::Reset(page(r)?),
        0x41 => under(r).map(|(region, seq)| DirectoryBody::Collected(region, seq))?,
        0x42 => DirectoryBody::Unknown(page(r)?),
        0x43 => DirectoryBody::Sweep(sweep(r)?),
        0x44 => DirectoryBody::Swept(sweep(r)?, r.u32()?),
        0x45 => under(r).map(|(region, seq)| DirectoryBody::End(region, seq))?,
        0x46 => under(r).map(|(region, seq)| DirectoryBody::Ended(region, seq))?,
        0x47 => DirectoryBody::List(page(r)?),
        0x48 => {
            let (from, next) = (page(r)?, r.u64()?);
            let next = if next == NO_PAGE { None } else { Some(whole(next)?) };
            let (used, slots) = (r.u32()?, r.u32()?);
            let rows = RegionRows::new(r.rest())?;
            DirectoryBody::Listing(Listing { from, next, used, slots, rows })
        }
        0x49 => DirectoryBody::Resize(RegionRows::new(r.rest())?),
        0x4a => DirectoryBody::Full(page(r)?),
        0x4b => DirectoryBody::Visit(page(r)?),
        0x4c => DirectoryBody::Clean(page(r)?, Seq(r.u64()?)),
        0x4d => DirectoryBody::Moving(r.u64()?),
        0x4e => DirectoryBody::Moved(r.u64()?, r.u32()?),
        0x4f => {
            let (region, seq) = under(r)?;
            DirectoryBody::Awaiting(region, seq, HostSet::take(r)?)
        }
        _ => return Err(WireError::Unknown { what: "message.kind", value: kind.into() }),
    })
}

fn emit(body: &DirectoryBody<'_>, out: &mut Vec<u8>) {
    match *body {
        DirectoryBody::Reset(page)
        | DirectoryBody::Unknown(page)
        | DirectoryBody::List(page)
        | DirectoryBody::Full(page)
        | DirectoryBody::Visit(page) => out.put_u64(page.addr().0),
        DirectoryBody::Clean(page, seq) => {
            out.put_u64(page.addr().0);
            out.put_u64(seq.0);
        }
        DirectoryBody::Collected(region, seq)
        | DirectoryBody::End(region, seq)
        | DirectoryBody::Ended(region, seq) => put_under(out, region, seq),
        DirectoryBody::Awaiting(region, seq, hosts) => {
            put_under(out, region, seq);
            hosts.put(out);
        }
        DirectoryBody::Sweep(sweep) => put_sweep(out, sweep),
        DirectoryBody::Swept(sweep, lost) => {
            put_sweep(out, sweep);
            out.put_u32(lost);
        }
        DirectoryBody::Listing(Listing { from, next, used, slots, rows }) => {
            out.put_u64(from.addr().0);
            out.put_u64(next.map_or(NO_PAGE, |page| page.addr().0));
            out.put_u32(used);
            out.put_u32(slots);
            out.extend_from_slice(rows.0);
        }
        DirectoryBody::Resize(rows) => out.extend_from_slice(rows.0),
        DirectoryBody::Moving(number) => out.put_u64(number),
        DirectoryBody::Moved(number, left) => {
            out.put_u64(number);
            out.put_u32(left);
        }
    }
}

fn put_under(out: &mut Vec<u8>, region: Region, seq: Seq) {
    put_region(out, region);
    out.extend_from_slice(&[0; 3]);
    out.put_u64(seq.0);
}

fn whole(addr: u64) -> Result<Page, WireError> {
    let page = Page::of(VirtAddr(addr));
    if page.addr().0 == addr { Ok(page) } else { Err(WireError::Unknown { what: "page", value: addr }) }
}

fn page(r: &mut Reader<'_>) -> Result<Page, WireError> {
    whole(r.u64()?)
}

fn region(r: &mut Reader<'_>) -> Result<Region, WireError> {
    let (base, order) = (page(r)?, r.u8()?);
    Region::new(base, order).ok_or_else(|| WireError::Unknown { what: "region.order", value: order.into() })
}

fn put_region(out: &mut Vec<u8>, region: Region) {
    out.put_u64(region.base().addr().0);
    out.put_u8(region.order());
}

fn under(r: &mut Reader<'_>) -> Result<(Region, Seq), WireError> {
    let region = region(r)?;
    r.zero::<3>("directory message.reserved")?;
    Ok((region, Seq(r.u64()?)))
}

fn sweep(r: &mut Reader<'_>) -> Result<Sweep, WireError> {
    let (first, last) = (page(r)?, page(r)?);
    let (seq, fenced, opens) = (Seq(r.u64()?), HostSet::take(r)?, r.u8()?);
    r.zero::<3>("sweep.reserved")?;
    if last < first {
        return Err(WireError::Unknown { what: "sweep.last", value: last.addr().0 });
    }
    if opens > 1 {
        return Err(WireError::Reserved { what: "sweep.flags" });
    }
    Ok(Sweep { first, last, seq, fenced, opens: opens == 1 })
}

fn put_sweep(out: &mut Vec<u8>, sweep: Sweep) {
    out.put_u64(sweep.first.addr().0);
    out.put_u64(sweep.last.addr().0);
    out.put_u64(sweep.seq.0);
    sweep.fenced.put(out);
    out.extend_from_slice(&[u8::from(sweep.opens), 0, 0, 0]);
}

const _: () = {
    assert!(super::OVERHEAD + 24 + ROWS_MAX * RegionRows::ROW_LEN <= 1024, "a listing fits a PMTU of 1024");
    assert!(super::OVERHEAD + 32 + HostSet::LEN <= 256, "what names hosts fits the smallest PMTU");
    assert!(HostSet::LEN * 8 == CACHING_HOSTS_MAX as usize, "a set of hosts has a bit for each");
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostId;
    use alloc::vec;
    use proptest::prelude::*;

    fn page_of() -> impl Strategy<Value = Page> {
        any::<u64>().prop_map(|addr| Page::of(VirtAddr(addr)))
    }

    fn region_of() -> impl Strategy<Value = Region> {
        (page_of(), 0..=9_u8).prop_map(|(page, order)| Region::around(page, order))
    }

    fn sweep_of() -> impl Strategy<Value = Sweep> {
        (page_of(), page_of(), any::<(u64, [u64; 4], bool)>()).prop_map(
            |(one, other, (seq, hosts, opens))| Sweep {
                first: one.min(other),
                last: one.max(other),
                seq: Seq(seq),
                fenced: HostSet::from_words(hosts),
                opens,
            },
        )
    }

    fn row_of() -> impl Strategy<Value = RegionRow> {
        let what =
            vec![RegionRowKind::Listed, RegionRowKind::Resetting, RegionRowKind::Split, RegionRowKind::Merge];
        (region_of(), prop::sample::select(what), any::<u16>())
            .prop_map(|(region, kind, false_invalidations)| RegionRow { region, kind, false_invalidations })
    }

    fn bodies() -> impl Strategy<Value = DirectoryBody<'static>> {
        let seq = || any::<u64>().prop_map(Seq);
        let under = || (region_of(), seq());
        prop_oneof![
            page_of().prop_map(DirectoryBody::Reset),
            under().prop_map(|(region, seq)| DirectoryBody::Collected(region, seq)),
            page_of().prop_map(DirectoryBody::Unknown),
            sweep_of().prop_map(DirectoryBody::Sweep),
            (sweep_of(), any::<u32>()).prop_map(|(sweep, lost)| DirectoryBody::Swept(sweep, lost)),
            under().prop_map(|(region, seq)| DirectoryBody::End(region, seq)),
            under().prop_map(|(region, seq)| DirectoryBody::Ended(region, seq)),
            page_of().prop_map(DirectoryBody::List),
            page_of().prop_map(DirectoryBody::Full),
            page_of().prop_map(DirectoryBody::Visit),
            (page_of(), seq()).prop_map(|(page, seq)| DirectoryBody::Clean(page, seq)),
            any::<u64>().prop_map(DirectoryBody::Moving),
            any::<(u64, u32)>().prop_map(|(number, left)| DirectoryBody::Moved(number, left)),
            (under(), any::<[u64; 4]>()).prop_map(|((region, seq), hosts)| DirectoryBody::Awaiting(
                region,
                seq,
                HostSet::from_words(hosts)
            )),
        ]
    }

    fn emitted(body: DirectoryBody<'_>, token: u64) -> Vec<u8> {
        let message = DirectoryMessage { token: RequestId(token), body };
        let mut bytes = vec![];
        message.emit(&mut bytes);
        assert_eq!(bytes.len(), message.len(), "{body:?}");
        bytes
    }

    proptest! {
        #[test]
        fn what_is_said_is_what_is_heard(body in bodies(), token in any::<u64>()) {
            let bytes = emitted(body, token);
            prop_assert!(DirectoryMessage::is(&bytes));
            prop_assert_eq!(DirectoryMessage::parse(&bytes), Ok(DirectoryMessage { token: RequestId(token), body }));
            for have in 0..bytes.len() {
                prop_assert!(DirectoryMessage::parse(&bytes[..have]).is_err(), "{} bytes", have);
            }
        }

        #[test]
        fn lists_hold_their_rows(
            rows in prop::collection::vec(row_of(), 0..=ROWS_MAX), next in prop::option::of(page_of()), used in any::<u32>()
        ) {
            let mut bytes = vec![];
            rows.iter().for_each(|row| row.emit(&mut bytes));
            let list = RegionRows::new(&bytes).unwrap();
            prop_assert_eq!(list.iter().collect::<Vec<_>>(), rows);
            // The last page cannot be where a list continues: its address stands for the end.
            let next = next.filter(|&page| page != Page::LAST);
            let listing = Listing { from: Page::FIRST, next, used, slots: 7, rows: list };
            for body in [DirectoryBody::Listing(listing), DirectoryBody::Resize(list)] {
                let bytes = emitted(body, 1);
                prop_assert_eq!(DirectoryMessage::parse(&bytes).map(|message| message.body), Ok(body));
            }
        }

        #[test]
        fn hostile_bytes_are_read_or_refused(kind in 0x40..=0x4f_u8, rest in prop::collection::vec(any::<u8>(), 0..120)) {
            let mut bytes = vec![VERSION, kind];
            bytes.extend([0; 22]);
            bytes.extend(rest);
            if let Ok(message) = DirectoryMessage::parse(&bytes) {
                let mut again = vec![];
                message.emit(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    /// Offsets of the hosts of a Sweep and of an Awaiting (PROTOCOL 12.41).
    #[test]
    fn hosts_are_four_words() {
        let hosts = [1, 63, 64, 130, 255].map(HostId).into_iter().fold(HostSet::EMPTY, HostSet::with);
        let (first, last) = (Page::of(VirtAddr(0x10_0000)), Page::of(VirtAddr(0x10_3000)));
        let sweep = Sweep { first, last, seq: Seq(11), fenced: hosts, opens: true };
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>();
        let set = words(&[1 << 63 | 2, 1, 4, 1 << 63]);
        let body = |body| emitted(body, 1)[Header::LEN..].to_vec();
        let begins = words(&[0x10_0000, 0x10_3000, 11]);
        assert_eq!(body(DirectoryBody::Sweep(sweep)), [&begins[..], &set, &[1, 0, 0, 0]].concat());
        let swept = body(DirectoryBody::Swept(sweep, 5));
        assert_eq!(swept, [&begins[..], &set, &[1, 0, 0, 0, 0, 0, 0, 5]].concat());
        let region = Region::around(first, 2);
        let begins = [&words(&[0x10_0000])[..], &[2, 0, 0, 0], &words(&[11])].concat();
        assert_eq!(body(DirectoryBody::Awaiting(region, Seq(11), hosts)), [begins, set].concat());
    }

    #[test]
    fn too_many_rows_are_refused() {
        let bytes = vec![0; (ROWS_MAX + 1) * RegionRows::ROW_LEN];
        assert!(RegionRows::new(&bytes).is_err());
        assert!(RegionRows::new(&bytes[..13]).is_err(), "a part of a row");
    }
}
