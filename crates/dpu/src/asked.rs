//! What a driver tells a [`Dpu`](crate::Dpu), and what it is told to do.

use crate::PageId;
use crate::policy::Policy;
use crate::table::{Slot, TableConfig};
use alloc::boxed::Box;
use core::num::NonZeroU32;
use farmem_paging::{Account, Cause};

/// Whose request it is: a process, by the driver's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Asker(pub u32);

/// Whether the DPU has a cache table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// It forwards: SODA's base.
    Off,
    /// It prefetches whatever its policy proposes: SODA's dynamic caching.
    Dynamic,
    /// It prefetches while the hit rate is above the break-even (SODA equation 3), within [`Config::traffic_cap`].
    Adaptive,
}

/// How a DPU works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Bytes of a page: what a process asks for at once, at most. 64 KiB in the paper.
    pub page_len: NonZeroU32,
    /// The cache table.
    pub table: TableConfig,
    /// What it is used for.
    pub caching: Caching,
    /// With [`Caching::Adaptive`], 1,024ths of the bytes asked for that may move over the network: 1,075 is 1.05.
    pub traffic_cap: u32,
    /// READs of prefetches under way at once.
    pub prefetches_max: u32,
    /// Pages of static caching, at most.
    pub fixed_pages_max: u64,
}

impl Config {
    /// The paper's: pages of 64 KiB, 1 GiB of entries of 1 MiB (SODA V). A third as much again may be fixed.
    #[must_use]
    pub const fn new(caching: Caching) -> Self {
        let (Some(page_len), Some(slots)) = (NonZeroU32::new(64 << 10), NonZeroU32::new(1024)) else {
            unreachable!()
        };
        Self {
            page_len,
            table: TableConfig { slots, entry_pages: 16 },
            caching,
            traffic_cap: 1075,
            prefetches_max: 16,
            fixed_pages_max: 5461,
        }
    }
}

/// An object as the DPU has to know it.
#[derive(Debug)]
pub struct Object {
    /// Its bytes, at least 1.
    pub bytes: u64,
    /// The only process that may write it, and then no other may read it; `None` of one that all may read and none may write.
    pub writer: Option<Asker>,
    /// What is prefetched for it.
    pub policy: Box<dyn Policy>,
}

/// A process asks for a page, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// The driver's name for the request, never used twice; the request ends by one [`Action::Copy`], [`Action::CopyFixed`] or [`Action::Answer`] with it.
    pub ticket: u64,
    /// Whose it is.
    pub asker: Asker,
    /// The page.
    pub page: PageId,
    /// Bytes of it that are asked for.
    pub bytes: u32,
    /// The driver knows at this moment that the asker may read the object. Else the node decides, as it is asked in the asker's name.
    pub granted: bool,
}

/// A process writes a page, or a part of one. The driver keeps the bytes until the request ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// As in [`Read::ticket`].
    pub ticket: u64,
    /// Whose it is.
    pub asker: Asker,
    /// The page.
    pub page: PageId,
    /// Bytes of it that are written.
    pub bytes: u32,
    /// All of it is written.
    pub whole: bool,
}

/// What the driver is to do, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Copy the page from the slot to the asker, tell the asker, then say [`Dpu::copied`](crate::Dpu::copied).
    Copy {
        /// The request; it ends with this.
        ticket: u64,
        /// Where the page is.
        slot: Slot,
        /// Which page of the slot.
        within: u32,
    },
    /// Copy the page from static memory to the asker and tell the asker.
    CopyFixed {
        /// The request; it ends with this.
        ticket: u64,
        /// The page.
        page: PageId,
    },
    /// READ the page in the asker's name, straight to where the asker wants it; [`Dpu::fetched`](crate::Dpu::fetched) tells what came of it.
    Read {
        /// The transfer.
        op: u64,
        /// For which request.
        ticket: u64,
    },
    /// READ pages in the asker's name into a slot; [`Dpu::fetched`](crate::Dpu::fetched) tells what came of it. No process waits for it, or none did when it was begun.
    Load {
        /// The transfer.
        op: u64,
        /// In whose name.
        asker: Asker,
        /// The first page.
        first: PageId,
        /// Pages; the last one of an object may be shorter.
        count: u32,
        /// Where to.
        slot: Slot,
        /// The first page's place in the slot.
        within: u32,
    },
    /// READ pages in the asker's name into static memory; [`Dpu::fetched`](crate::Dpu::fetched) tells what came of it.
    Fix {
        /// The transfer.
        op: u64,
        /// In whose name.
        asker: Asker,
        /// The first page.
        first: PageId,
        /// Pages.
        count: u32,
    },
    /// WRITE the request's bytes in its asker's name; [`Dpu::written`](crate::Dpu::written) tells what came of it. WRITEs of one page are sent in this order.
    Write {
        /// The transfer.
        op: u64,
        /// For which request.
        ticket: u64,
    },
    /// Copy the bytes of a request that ended well into a slot, then say [`Dpu::stored`](crate::Dpu::stored).
    Put {
        /// The request. Its bytes are not needed behind this.
        ticket: u64,
        /// Where to.
        slot: Slot,
        /// Which page of the slot.
        within: u32,
    },
    /// The request ended.
    Answer {
        /// The request.
        ticket: u64,
        /// Far memory has what was written, or the asker has what was read; or why not.
        ended: Result<(), Cause>,
    },
}

/// What a DPU did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Reads.
    pub reads: u64,
    /// Of those, what was in the cache table.
    pub hits: u64,
    /// Of those, what was on its way into it.
    pub late: u64,
    /// Of those, what was in static memory.
    pub fixed: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes that processes asked for.
    pub asked: u64,
    /// Bytes asked of far memory while a process waited (SODA figure 9: on demand).
    pub on_demand: u64,
    /// Bytes asked of far memory before (background).
    pub background: u64,
    /// Bytes written to far memory.
    pub written: u64,
    /// Pages that were prefetched, and what became of them.
    pub ahead: Account,
}
