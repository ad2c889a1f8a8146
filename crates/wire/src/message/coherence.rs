//! What hosts, switch and memory nodes say to each other about pages (PROTOCOL 12.5).
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
//! Each may be lost, come twice, late, and in any order; what a receiver does about that is said where it is received.

use super::{Access, FetchId, PAGE_LEN, Page, Region, Seq, Status};
use crate::HostId;
use core::ops::Range;

/// Host to switch: this host wants a page. Sent again, unchanged, until the page is there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Get {
    /// The page.
    pub page: Page,
    /// What for.
    pub access: Access,
    /// The request.
    pub id: FetchId,
}

/// Switch to memory node: send this page to this host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Read {
    /// The page.
    pub page: Page,
    /// What it is asked for.
    pub access: Access,
    /// The host that asks.
    pub host: HostId,
    /// Its request.
    pub id: FetchId,
    /// The region's number when this was decided.
    pub seq: Seq,
    /// No host has, or will write back, a page granted before `seq`.
    pub clean: bool,
    /// A write-back of the page went before it: while the page is lent that has not come, and nothing is sent.
    pub behind: bool,
    /// The host may use the page when it has the bytes; otherwise it also waits for a [`Grant`] with the same `seq`.
    pub granted: bool,
    /// The switch waits for a [`Done`].
    pub done_due: bool,
}

/// Memory node to host: a part of a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Data {
    /// The page.
    pub page: Page,
    /// What it was asked for.
    pub access: Access,
    /// The request.
    pub id: FetchId,
    /// As in the [`Read`].
    pub seq: Seq,
    /// As in the [`Read`].
    pub granted: bool,
    /// As in the [`Read`].
    pub done_due: bool,
    /// The latest bytes died with a host; no bytes follow.
    pub lost: bool,
    /// Which part of the page.
    pub part: Part,
}

/// One of the pieces, each but the last as long as the path MTU, that a page travels in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Part {
    /// Which part, from 0.
    pub index: u8,
    /// The number of parts; 1 to [`Part::COUNT_MAX`].
    pub count: u8,
}

impl Part {
    /// Pieces of a page on a path with the smallest MTU.
    pub const COUNT_MAX: u8 = 16;
    /// All of a page.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// The parts of a page, in order, on a path that carries `bytes` of it in one message.
    ///
    /// # Panics
    /// When that is no path MTU.
    pub fn all(bytes: usize) -> impl Iterator<Item = Self> {
        let count = u8::try_from(PAGE_LEN.div_ceil(bytes)).ok().filter(|count| *count <= Self::COUNT_MAX);
        let count = count.expect("a page travels in few parts");
        (0..count).map(move |index| Self { index, count })
    }

    /// Whether no other part comes behind it.
    #[must_use]
    pub const fn is_last(self) -> bool {
        self.index + 1 == self.count
    }

    /// Which of the page's bytes it is.
    ///
    /// # Panics
    /// When the count is 0 or the index is not below it.
    #[must_use]
    pub fn range(self) -> Range<usize> {
        assert!(self.index < self.count, "a part is one of those there are");
        let len = PAGE_LEN.div_ceil(self.count.into());
        let start = len * usize::from(self.index);
        start.min(PAGE_LEN)..(start + len).min(PAGE_LEN)
    }
}

/// Switch to host: all others have given the page up; use the bytes with this `seq`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Grant {
    /// The page.
    pub page: Page,
    /// The request.
    pub id: FetchId,
    /// The number its [`Data`] has.
    pub seq: Seq,
}

/// Host to switch: a page was installed for writing; others may have their turn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Done {
    /// The page.
    pub page: Page,
    /// As in the [`Data`] or [`Grant`].
    pub seq: Seq,
}

/// Switch to hosts: give up the region's pages that were granted before `seq`, or the right to write them (MIND 4.3.2, invalidation).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Recall {
    /// Which pages.
    pub region: Region,
    /// Granted before this.
    pub seq: Seq,
    /// They stay Shared: only writing ends.
    pub keep: bool,
    /// The page that a host asked for, as its index in the region; what else is given up is given up for nothing. None in a reset.
    pub wanted: Option<u16>,
}

/// Host to switch, or memory node to switch in the host's name: done, and what was written is at the memory node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecallAck {
    /// As in the [`Recall`].
    pub region: Region,
    /// As in the [`Recall`].
    pub seq: Seq,
    /// Pages that were given up beside the one that was asked for (MIND 4.3.1, false invalidation).
    pub false_invalidations: u16,
}

/// Host to memory node: the bytes of a page, which do not change until this is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WriteBack {
    /// The page.
    pub page: Page,
    /// The number under which the host had it to write.
    pub grant: Seq,
    /// What holds once these bytes are at the node: the node tells the switch.
    pub ack: Option<RecallAck>,
}

/// Memory node to host: the bytes arrived, or were not wanted any more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WriteBackAck {
    /// The page.
    pub page: Page,
    /// As in the [`WriteBack`].
    pub grant: Seq,
    /// The node told the switch this.
    pub ack: Option<RecallAck>,
}

/// Switch to host: not now, or not at all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Refusal {
    /// The page.
    pub page: Page,
    /// The request.
    pub id: FetchId,
    /// [`Status::Busy`]: another host has its turn at the region, ask again soon. Anything else is final.
    pub status: Status,
}
