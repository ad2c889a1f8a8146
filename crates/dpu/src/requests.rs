//! The inputs and outputs of a [`Dpu`](crate::Dpu).

use crate::PageId;
use crate::policy::Policy;
use crate::table::{Slot, TableConfig};
use alloc::boxed::Box;
use core::num::NonZeroU32;
use farmem_paging::{Account, Cause};

/// A process that sends requests, by the driver's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Asker(pub u32);

/// The caching mode of a DPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// No cache: the DPU forwards requests. SODA's baseline.
    Off,
    /// The DPU prefetches each proposal of its policy: SODA's dynamic caching.
    Dynamic,
    /// The DPU prefetches while the hit rate is above the break-even (SODA equation 3), within
    /// [`Config::traffic_cap`].
    Adaptive,
}

/// The configuration of a DPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Page length in bytes: the largest request of a process. 64 KiB in the paper.
    pub page_len: NonZeroU32,
    /// The cache table.
    pub table: TableConfig,
    /// The caching mode.
    pub caching: Caching,
    /// Maximum network traffic with [`Caching::Adaptive`], in 1,024ths of the requested bytes: 1,075 is 1.05.
    pub traffic_cap: u32,
    /// Maximum number of concurrent READs of prefetches.
    pub prefetches_max: u32,
    /// Maximum number of pages in static memory.
    pub fixed_pages_max: u64,
}

impl Config {
    /// Returns the paper's configuration: pages of 64 KiB, 1 GiB of entries of 1 MiB (SODA V), and static
    /// memory of a third as much again.
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

/// An object, as the DPU knows it.
#[derive(Debug)]
pub struct Object {
    /// Length in bytes, at least 1.
    pub bytes: u64,
    /// The only process that may write the object; no other process may read it then. `None` if all may read
    /// and none may write.
    pub writer: Option<Asker>,
    /// The prefetch policy.
    pub policy: Box<dyn Policy>,
}

/// A process reads a page, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// The driver's id of the request, unique. The request ends with one [`Action::Copy`],
    /// [`Action::CopyFixed`] or [`Action::Answer`] with this id.
    pub ticket: u64,
    /// The process that sent it.
    pub asker: Asker,
    /// The page.
    pub page: PageId,
    /// Number of requested bytes.
    pub bytes: u32,
    /// True if the driver has checked that the asker may read the object. Otherwise the node decides, because
    /// the READ goes in the asker's name.
    pub granted: bool,
}

/// A process writes a page, or a part of one. The driver keeps the bytes until the request ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// As in [`Read::ticket`].
    pub ticket: u64,
    /// The process that sent it.
    pub asker: Asker,
    /// The page.
    pub page: PageId,
    /// Number of written bytes.
    pub bytes: u32,
    /// True if the whole page is written.
    pub whole: bool,
}

/// An action for the driver, carried out in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Copies the page from the slot to the asker and completes the request. The driver then calls
    /// [`Dpu::copied`](crate::Dpu::copied).
    Copy {
        /// The request, which ends with this action.
        ticket: u64,
        /// The slot that holds the page.
        slot: Slot,
        /// The page's index in the slot.
        within: u32,
    },
    /// Copies the page from static memory to the asker and completes the request.
    CopyFixed {
        /// The request, which ends with this action.
        ticket: u64,
        /// The page.
        page: PageId,
    },
    /// READs the page in the asker's name, straight into the asker's buffer.
    /// [`Dpu::fetched`](crate::Dpu::fetched) reports the end.
    Read {
        /// The transfer.
        op: u64,
        /// The request.
        ticket: u64,
    },
    /// READs pages in the asker's name into a slot. [`Dpu::fetched`](crate::Dpu::fetched) reports the end. No
    /// process waits for it when it begins.
    Load {
        /// The transfer.
        op: u64,
        /// The process in whose name the READ goes.
        asker: Asker,
        /// The first page.
        first: PageId,
        /// Number of pages; the last page of an object may be shorter.
        count: u32,
        /// The destination.
        slot: Slot,
        /// The first page's index in the slot.
        within: u32,
    },
    /// READs pages in the asker's name into static memory. [`Dpu::fetched`](crate::Dpu::fetched) reports the
    /// end.
    Fix {
        /// The transfer.
        op: u64,
        /// The process in whose name the READ goes.
        asker: Asker,
        /// The first page.
        first: PageId,
        /// Number of pages.
        count: u32,
    },
    /// WRITEs the request's bytes in its asker's name. [`Dpu::written`](crate::Dpu::written) reports the end.
    /// WRITEs of one page are sent in this order.
    Write {
        /// The transfer.
        op: u64,
        /// The request.
        ticket: u64,
    },
    /// Copies the bytes of a successful write into a slot. The driver then calls
    /// [`Dpu::stored`](crate::Dpu::stored).
    Put {
        /// The request. Its bytes are not needed afterwards.
        ticket: u64,
        /// The destination.
        slot: Slot,
        /// The page's index in the slot.
        within: u32,
    },
    /// Completes a request.
    Answer {
        /// The request.
        ticket: u64,
        /// The result: far memory has the written bytes, or the asker has the requested ones; otherwise the
        /// cause of the failure.
        ended: Result<(), Cause>,
    },
}

/// Counters of a DPU.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Reads.
    pub reads: u64,
    /// Reads served from the cache table.
    pub hits: u64,
    /// Reads of pages in flight to the cache table.
    pub late: u64,
    /// Reads served from static memory.
    pub fixed: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes that processes requested.
    pub asked: u64,
    /// Bytes fetched while a process waited (SODA figure 9: on demand).
    pub on_demand: u64,
    /// Bytes prefetched (SODA figure 9: background).
    pub background: u64,
    /// Bytes written to far memory.
    pub written: u64,
    /// The account of prefetched pages.
    pub ahead: Account,
}
