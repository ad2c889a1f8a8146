//! The page cache: decides which pages of far memory are resident, which are in flight, and which are
//! evicted. Pure.
//!
//! Key type: [`Cache`]. The driver reports events (a thread faulted, a fetch ended), and the cache returns actions ([`Action`]), in
//! order. The cache sees no byte, no mapping and no network: the driver applies the actions to the memory that holds the pages and
//! to the *backing* they come from (READs and WRITEs of a client, or the coherence agent). The end of a fetch or a write-back is an
//! event with an [`Outcome`].
//!
//! ```text
//!             fetched             oldest is unmapped           written back         dropped
//!   far -----------------> mapped -----------------> inactive -------------> clean --------> far
//!             zeros          ^                          |  |                   |
//!   nowhere ---------------->'---------- touched -------'--'-------------------'
//! ```
//!
//! If pages are shared with other hosts, the cache requests access rights, and other hosts revoke them: see [`Cache::coherent`].
//!
//! The cache does not see accesses to mapped pages. So it unmaps the pages that were touched longest ago and puts them on the
//! *inactive list*. A touch of an inactive page costs a fault and no fetch; an untouched one is evicted next. Dirty pages are
//! written back while inactive.
//!
//! The cache does not fetch, copy or map, does not know the owner of a page, and does not wait.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod account;
mod advice;
mod ahead;
mod cache;
mod coherent;
mod early_fetch;
#[cfg(test)]
mod far;
mod frames;
mod operations;
pub mod private;
mod recency;
mod refaults;
mod room;
mod successors;
mod unmanaged;
mod zeros;

pub use account::{Account, Miss, Waste};
pub use advice::{ADVISED_MAX, Advice, TooManyRanges};
pub use ahead::{Ahead, Fault, Groups, Prefetch, STREAMS, Streams};
pub use cache::{Cache, Config, Stats};
pub use coherent::Revocation;
pub use recency::Frame;
pub use refaults::Refaults;
pub use zeros::ZEROS_MAX;

use core::ops::Range;
use farmem_wire::message::Access;

/// The key of a page, as programs address it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// The address space: a window or a process.
    pub space: u32,
    /// The page's number in the space.
    pub page: u64,
}

impl Key {
    const fn with(self, page: u64) -> Self {
        Self { page, ..self }
    }
}

/// The number of a fetch or a write-back. A cache uses each number once.
pub type Op = u64;

/// The location of the bytes of a page without a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// In far memory, at this page of it. Pages adjacent both there and in the program are fetched together.
    Far(u64),
    /// The page is all zeros and stored nowhere.
    Zeros,
    /// In a local copy that the cache does not track: a copy of another page.
    Near,
    /// The page is no longer part of this memory. The thread that touched it finds out.
    Elsewhere,
}

/// The locations of bytes, known by the driver and queried by the cache.
pub trait Layout {
    /// Returns the location of the bytes of a page without a frame.
    fn source(&self, key: Key) -> Source;

    /// Returns the page of far memory for a page's bytes; `None` if far memory has no room.
    fn home(&self, key: Key) -> Option<u64>;

    /// Returns true if the page must stay mapped: it is in use, or could not be reactivated from the inactive
    /// list.
    fn stays(&self, key: Key) -> bool {
        let _ = key;
        false
    }

    /// Returns the key under which a page's bytes are kept after a write or removal, because other pages need
    /// them and far memory does not have them yet. No resident page with that key is dirty.
    fn successor(&self, key: Key) -> Option<Key> {
        let _ = key;
        None
    }

    /// Returns the range of pages that may be fetched together with this one, including it.
    fn around(&self, key: Key) -> Range<u64> {
        let _ = key;
        0..u64::MAX
    }
}

/// An action for the driver, carried out in order. Actions cannot fail for the cache: a driver that finds a
/// program gone calls [`Cache::remove`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Fetches these pages with this access from the backing. [`Cache::fetched`] reports the end.
    Fetch {
        /// The operation's number.
        op: Op,
        /// The first page.
        first: Key,
        /// Number of pages.
        count: u32,
        /// The requested access.
        access: Access,
    },
    /// Writes the pages of [`Cache::pages_of`], which are adjacent in far memory, to the backing.
    /// [`Cache::written_back`] reports the end. If the bytes of a page change meanwhile, the cache writes the
    /// page back again.
    WriteBack {
        /// The operation's number.
        op: Op,
    },
    /// Maps fetched pages and wakes the threads that wait for them.
    Install {
        /// The fetch.
        op: Op,
        /// The first page of the run. Other pages of the fetch may have been removed.
        first: Key,
        /// Number of pages.
        count: u32,
        /// The access.
        access: Access,
    },
    /// Maps pages of zeros, writable.
    Zeros {
        /// The first page.
        first: Key,
        /// Number of pages.
        count: u32,
    },
    /// Maps a page whose bytes the driver has ([`Source::Near`]).
    Copy {
        /// The page.
        key: Key,
        /// The access.
        access: Access,
    },
    /// Maps a resident page, or changes its access, and wakes the threads that wait for it.
    Map {
        /// The page.
        key: Key,
        /// The access.
        access: Access,
    },
    /// Makes readable pages writable and wakes the threads that wait for them. A page whose mapping is gone
    /// faults again.
    Allow {
        /// The first page.
        first: Key,
        /// Number of pages.
        count: u32,
    },
    /// Unmaps pages and keeps their bytes. After this action no store to them is pending.
    Deactivate {
        /// The first page.
        first: Key,
        /// Number of pages.
        count: u32,
    },
    /// Drops the bytes of a page, which is inactive or mapped.
    Discard {
        /// The page.
        key: Key,
    },
    /// Keeps the present bytes of a page under another key, [`Layout::successor`], as an inactive page. The page
    /// itself is about to be written or is gone.
    Keep {
        /// The page.
        key: Key,
        /// The other key.
        successor: Key,
    },
    /// Wakes the threads that wait for a page; they fault again.
    Wake {
        /// The page.
        key: Key,
    },
    /// Fails a page: a thread that touches it gets an error with this cause.
    Poison {
        /// The page.
        key: Key,
        /// The cause.
        cause: Cause,
    },
}

/// The reason for which a page is not available.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The backing failed [`Config::tries_max`] times.
    Failed,
    /// The page's bytes are lost.
    Lost,
    /// The program lacks the access right, or there is no such page.
    Refused,
    /// There is no room for the page, and none will become free: far memory accepts nothing.
    Full,
}

/// The outcome of a fetch or a write-back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Success.
    Done,
    /// Failure or unknown result. The cache retries, up to [`Config::tries_max`] times.
    Failed,
    /// Some or all of the bytes are permanently lost.
    Lost,
    /// A fetch of a coherent cache succeeded with this access, which may differ from the requested one.
    Granted(Access),
    /// A fetch of a coherent cache was refused: no program here may access the page this way.
    Refused,
    /// A fetch of a coherent cache is void; the waiting threads fault again.
    Void,
    /// An operation of a coherent cache did not begin for lack of room. The cache retries at the next turn.
    Later,
}
