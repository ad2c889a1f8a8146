//! The page cache: which pages of far memory are here, which are on their way, and which go. Pure.
//!
//! Key type: [`Cache`]. Its driver tells it what happened (a thread faulted, a fetch ended), and it says what to do ([`Action`]), in order. It sees
//! no byte, no mapping and no network: the driver does what it says, to whatever the pages lie in and from wherever they come (the *backing*:
//! READs and WRITEs of a client, the coherence agent). What came of a fetch or a write-back is an event with its [`Outcome`].
//!
//! ```text
//!             fetched             oldest is unmapped           written back         dropped
//!   far -----------------> mapped -----------------> inactive -------------> clean --------> far
//!             zeros          ^                          |  |                   |
//!   nowhere ---------------->'---------- touched -------'--'-------------------'
//! ```
//!
//! Where pages are shared with others the right to use one is asked for, and taken away again: see [`Cache::coherent`].
//!
//! The cache does not see how a mapped page is used. So it unmaps the pages that came or were touched longest ago and puts them on the
//! *inactive list*: a touch of one costs a fault and no fetch; a page that no thread touches goes next. What was written is written back while it is inactive.
//!
//! What it does not do: fetch, copy or map; know whose a page is; wait.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod account;
mod advice;
mod ahead;
mod aside;
mod cache;
mod coherent;
mod early;
#[cfg(test)]
mod far;
mod frames;
mod kin;
mod operations;
pub mod private;
mod recency;
mod refaults;
mod room;
mod zeros;

pub use account::{Account, Miss, Waste};
pub use advice::{ADVISED_MAX, Advice, TooManyRanges};
pub use ahead::{Ahead, Fault, Groups, Prefetch, STREAMS, Streams};
pub use cache::{Cache, Config, Stats};
pub use coherent::Taken;
pub use recency::Frame;
pub use refaults::Refaults;
pub use zeros::ZEROS_MAX;

use core::ops::Range;
use farmem_wire::message::Access;

/// A page as programs know it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// The address space: a window, a process.
    pub space: u32,
    /// The page's number in it.
    pub page: u64,
}

impl Key {
    const fn with(self, page: u64) -> Self {
        Self { page, ..self }
    }
}

/// A fetch or a write-back: its number, never used twice by one cache.
pub type Op = u64;

/// Where the bytes of a page are that has no frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// In far memory, at this page of it. What lies side by side there, and in the program, is fetched together.
    Far(u64),
    /// Nowhere: they are zeros.
    Zeros,
    /// Here, in something that the cache does not know: a copy of another page.
    Near,
    /// The page is not of this memory any more; the thread that touched it finds out.
    Elsewhere,
}

/// Where bytes are, and are to go: what the driver knows and the cache asks for.
pub trait Layout {
    /// Where the bytes of a page are that has no frame.
    fn source(&self, key: Key) -> Source;

    /// The page of far memory that takes a page's bytes; `None` when far memory has no room for it.
    fn home(&self, key: Key) -> Option<u64>;

    /// The page is to stay where programs have it: something holds it, or it could not go on from the inactive list.
    fn stays(&self, key: Key) -> bool {
        let _ = key;
        false
    }

    /// The name under which the bytes of a page are kept when it is written to or gone, as far memory has not got them yet and other pages need
    /// them. No page has that name already that differs from far memory.
    fn heir(&self, key: Key) -> Option<Key> {
        let _ = key;
        None
    }

    /// Pages that may come together with this one; it is among them.
    fn around(&self, key: Key) -> Range<u64> {
        let _ = key;
        0..u64::MAX
    }
}

/// What the driver is to do, in order. None of it fails for the cache: a driver that finds a program gone calls [`Cache::remove`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Get these pages with this access from the backing; [`Cache::fetched`] tells what came of it.
    Fetch {
        /// The number.
        op: Op,
        /// The first page.
        first: Key,
        /// Pages.
        count: u32,
        /// What they are to be used for.
        access: Access,
    },
    /// Give the backing the bytes of the pages of [`Cache::pages_of`]; they lie side by side in far memory. [`Cache::written_back`] tells
    /// what came of it. The bytes of a page do not change under it, or it is told again.
    WriteBack {
        /// The number.
        op: Op,
    },
    /// Pages that a fetch brought become visible, and the threads that wait for them go on.
    Install {
        /// The fetch.
        op: Op,
        /// The first page of the run; other pages of the fetch may have been removed.
        first: Key,
        /// Pages.
        count: u32,
        /// How they may be used.
        access: Access,
    },
    /// Pages of zeros become visible, to be written.
    Zeros {
        /// The first.
        first: Key,
        /// Pages.
        count: u32,
    },
    /// A page becomes visible whose bytes the driver has ([`Source::Near`]).
    Copy {
        /// The page.
        key: Key,
        /// How it may be used.
        access: Access,
    },
    /// A page that is here becomes visible, or may be used so; the threads that wait for it go on.
    Map {
        /// The page.
        key: Key,
        /// How it may be used.
        access: Access,
    },
    /// Pages that programs have to be read may be written; the threads that wait for one go on. One whose mapping is gone faults again.
    Allow {
        /// The first.
        first: Key,
        /// Pages.
        count: u32,
    },
    /// Pages are taken from programs, and their bytes stay. When it is done no store is on its way to them.
    Deactivate {
        /// The first.
        first: Key,
        /// Pages.
        count: u32,
    },
    /// The bytes of a page are not needed here any more: it is inactive, or mapped.
    Discard {
        /// The page.
        key: Key,
    },
    /// The bytes that a page has now are kept under another name, [`Layout::heir`], and are inactive there; the page itself is about to be written,
    /// or is gone.
    Keep {
        /// The page.
        key: Key,
        /// The other name.
        heir: Key,
    },
    /// The threads that wait for a page look again.
    Wake {
        /// The page.
        key: Key,
    },
    /// The page cannot be had: a thread that touches it is told so, and why.
    Poison {
        /// The page.
        key: Key,
        /// Why.
        why: Cause,
    },
}

/// Why a page cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The backing does not answer, [`Config::tries_max`] times.
    Failed,
    /// Its bytes are lost.
    Lost,
    /// This program may not use it so, or there is no such page.
    Refused,
    /// There is no room for it here, and nothing will make room: far memory takes nothing.
    Full,
}

/// What came of a fetch or a write-back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was done.
    Done,
    /// It was not, or that is not known; it is tried again, up to [`Config::tries_max`] times.
    Failed,
    /// The bytes, or some of them, are lost for good.
    Lost,
    /// Of a fetch, where rights are asked for: it was done, and the page may be used so. That may be more or less than was asked for.
    Granted(Access),
    /// Of a fetch, where rights are asked for: no program here may use the page so.
    Refused,
    /// Of a fetch, where rights are asked for: what comes of it does not count any more; the threads that wait ask again.
    Void,
    /// Where rights are asked for: it was not begun, since there was no room for it. It is tried again at the next turn.
    Later,
}
