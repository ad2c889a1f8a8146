//! Coherence messages between hosts, switch and memory nodes, about pages (PROTOCOL 12.5).
//!
//! ```text
//!           Get, Done, RecallAck            Read
//!     host ----------------------> switch ----------> memory node
//!      |  <---- Grant, Recall, Refusal      RecallAck   |   |
//!      |                               <----------------'   |
//!      |  WriteBack ----------------------------------->    |
//!      `--<--------- Data, WriteBackAck --------------------'
//! ```
//!
//! Each message may be lost, duplicated, delayed and reordered. The code of each receiver describes how it
//! copes with that.

use super::{Access, FetchId, PAGE_LEN, Page, Region, Seq, Status};
use crate::HostId;
use core::ops::Range;

/// Host to switch: a request for a page. The host repeats it unchanged until the page arrives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Get {
    /// The page.
    pub page: Page,
    /// Requested access.
    pub access: Access,
    /// Id of the request.
    pub id: FetchId,
}

/// Switch to memory node: send this page to this host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Read {
    /// The page.
    pub page: Page,
    /// Requested access.
    pub access: Access,
    /// The host that requested the page.
    pub host: HostId,
    /// Id of the host's request.
    pub id: FetchId,
    /// The region's number at the time of the decision.
    pub seq: Seq,
    /// True if no host has, or will write back, a page granted before `seq`.
    pub clean: bool,
    /// True if a write-back of the page was forwarded just before. If the page is still lent, the write-back
    /// has not arrived, and the node drops this message.
    pub behind: bool,
    /// True if the host may use the page as soon as it has the bytes. Otherwise the host also waits for a
    /// [`Grant`] with the same `seq`.
    pub granted: bool,
    /// True if the switch waits for a [`Done`].
    pub done_due: bool,
}

/// Memory node to host: a part of a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Data {
    /// The page.
    pub page: Page,
    /// Access of the request.
    pub access: Access,
    /// Id of the request.
    pub id: FetchId,
    /// Number of the [`Read`].
    pub seq: Seq,
    /// Flag of the [`Read`].
    pub granted: bool,
    /// Flag of the [`Read`].
    pub done_due: bool,
    /// True if the latest bytes were lost with a host; the message then has no bytes.
    pub lost: bool,
    /// The part of the page in this message.
    pub part: Part,
}

/// One of the parts in which a page is sent. Each part but the last is as long as the path MTU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Part {
    /// Index of the part, from 0.
    pub index: u8,
    /// The number of parts; 1 to [`Part::COUNT_MAX`].
    pub count: u8,
}

impl Part {
    /// Most parts of a page: those on a path with the smallest MTU.
    pub const COUNT_MAX: u8 = 16;
    /// All of a page.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Returns the parts of a page, in order, on a path that carries `bytes` of it in one message.
    ///
    /// # Panics
    /// If `bytes` is no path MTU.
    pub fn all(bytes: usize) -> impl Iterator<Item = Self> {
        let count = u8::try_from(PAGE_LEN.div_ceil(bytes)).ok().filter(|count| *count <= Self::COUNT_MAX);
        let count = count.expect("a page travels in few parts");
        (0..count).map(move |index| Self { index, count })
    }

    /// Returns true for the last part of the page.
    #[must_use]
    pub const fn is_last(self) -> bool {
        self.index + 1 == self.count
    }

    /// Returns the range of the page's bytes in this part.
    ///
    /// # Panics
    /// If the count is 0 or the index is not below it.
    #[must_use]
    pub fn range(self) -> Range<usize> {
        assert!(self.index < self.count, "a part is one of those there are");
        let len = PAGE_LEN.div_ceil(self.count.into());
        let start = len * usize::from(self.index);
        start.min(PAGE_LEN)..(start + len).min(PAGE_LEN)
    }
}

/// Switch to host: all other hosts gave the page up; the host may use the bytes with this `seq`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Grant {
    /// The page.
    pub page: Page,
    /// Id of the request.
    pub id: FetchId,
    /// The number of the matching [`Data`].
    pub seq: Seq,
}

/// Host to switch: a page was installed for writing; the switch may serve other hosts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Done {
    /// The page.
    pub page: Page,
    /// The number of the [`Data`] or [`Grant`].
    pub seq: Seq,
}

/// Switch to hosts: give up the region's pages that were granted before `seq`, or the right to write them
/// (MIND 4.3.2, invalidation).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Recall {
    /// The region whose pages are recalled.
    pub region: Region,
    /// Only pages granted before this number are recalled.
    pub seq: Seq,
    /// True if the pages stay Shared: only the right to write ends.
    pub keep: bool,
    /// Index in the region of the page that a host asked for; all other pages are false invalidations. None
    /// in a reset.
    pub wanted: Option<u16>,
}

/// Host to switch, or memory node to switch on behalf of the host: the pages are given up, and their changes
/// are at the memory node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecallAck {
    /// The region of the [`Recall`].
    pub region: Region,
    /// The number of the [`Recall`].
    pub seq: Seq,
    /// Number of pages that were given up in addition to the requested one (MIND 4.3.1, false invalidation).
    pub false_invalidations: u16,
}

/// Host to memory node: the bytes of a page. The bytes do not change until the node acknowledges them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WriteBack {
    /// The page.
    pub page: Page,
    /// The number under which the page was granted for writing.
    pub grant: Seq,
    /// The acknowledgement that holds once these bytes are at the node; the node forwards it to the switch.
    pub ack: Option<RecallAck>,
}

/// Memory node to host: the bytes arrived, or a later write-back made them void.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WriteBackAck {
    /// The page.
    pub page: Page,
    /// The number of the [`WriteBack`].
    pub grant: Seq,
    /// The acknowledgement that the node forwarded to the switch.
    pub ack: Option<RecallAck>,
}

/// Switch to host: the refusal of a page request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Refusal {
    /// The page.
    pub page: Page,
    /// Id of the request.
    pub id: FetchId,
    /// [`Status::Busy`] if the region serves another host; the host retries soon. All other statuses are
    /// final.
    pub status: Status,
}
