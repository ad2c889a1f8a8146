//! What hosts, switch and memory nodes say to each other about pages (PROTOCOL 12.5).
//!
//! ```text
//!           Get, Done, RecallAck            Read
//!     host ----------------------> switch ----------> memory node
//!      |  <---- Grant, Recall, Busy         RecallAck   |   |
//!      |                               <----------------'   |
//!      |  WriteBack ----------------------------------->    |
//!      `--<--------- Data, WriteBackAck --------------------'
//! ```
//!
//! Each may be lost, come twice, late, and in any order; what a receiver does about that is said where it is received.

use super::{Access, FetchId, Page, Region, Seq};
use crate::HostId;

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
    /// Who asks.
    pub host: HostId,
    /// Its request.
    pub id: FetchId,
    /// The region's number when this was decided.
    pub seq: Seq,
    /// No host has, or will write back, a page granted before `seq`.
    pub clean: bool,
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
    /// Which, from 0.
    pub index: u8,
    /// Of how many; 1 to [`Part::COUNT_MAX`].
    pub count: u8,
}

impl Part {
    /// Pieces of a page on a path with the smallest MTU.
    pub const COUNT_MAX: u8 = 16;
    /// All of a page.
    pub const WHOLE: Self = Self { index: 0, count: 1 };
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
    /// The page somebody asked for, as its index in the region; what else is given up is given up for nothing. None in a reset.
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
    pub needless: u16,
}

/// Host to memory node: the bytes of a page, which do not change until this is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WriteBack {
    /// The page.
    pub page: Page,
    /// The number under which the host had it to write.
    pub grant: Seq,
    /// With these bytes at the node, this is so: the node is to tell the switch.
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

/// Switch to host: somebody else has his turn at the region; ask again soon.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Busy {
    /// The page.
    pub page: Page,
    /// The request.
    pub id: FetchId,
}
