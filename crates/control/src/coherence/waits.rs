//! Volatile rows of the coherence machine: what each reset, listing and change still waits for.
//!
//! None of this is in the log.

use crate::record::MigrationStep;
use crate::reset::Reset;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use farmem_machine::Instant;
use farmem_wire::message::{HostSet, Page, Region, RegionRow, Seq};
use farmem_wire::{RequestId, VirtAddr};

/// Maximum number of concurrent resets. The switch may begin more, which are handled when they are listed.
pub const RESETS_MAX: usize = 4096;

/// A reset whose hosts have given up the region.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) reset: Reset,
    /// Nodes that have not reported their sweep yet.
    pub(super) nodes: BTreeSet<u16>,
    pub(super) due: Instant,
}

impl Running {
    pub(super) const fn due(&self) -> Instant {
        self.due
    }
}

/// A listing in progress.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) number: u64,
    pub(super) began: Instant,
    /// The first page of the requested part.
    pub(super) from: Page,
    pub(super) token: RequestId,
    pub(super) due: Instant,
    pub(super) rows: Vec<RegionRow>,
}

impl Round {
    pub(super) const fn due(&self) -> Instant {
        self.due
    }
}

/// The present step of a migration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moving {
    pub(super) step: MigrationStep,
    pub(super) due: Instant,
    /// The time at which the migration is given up.
    pub(super) end: Instant,
    /// In step Draining: the listing that shows whether its regions are being reset.
    pub(super) look: Option<DirectoryScan>,
    /// In step Pushing: number of questions to the old node without progress, and the remaining bytes.
    pub(super) asked: u32,
    pub(super) left: u32,
    /// True once the condition holds.
    pub(super) over: bool,
}

impl Moving {
    pub(super) const fn due(&self) -> Instant {
        self.due
    }
}

/// A change that completes when no host holds its pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draining {
    pub(super) due: Instant,
    pub(super) look: Option<DirectoryScan>,
    pub(super) over: bool,
}

impl Draining {
    pub(super) const fn due(&self) -> Instant {
        self.due
    }
}

/// A listing of a part of the directory, to see whether any of its regions is being reset.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectoryScan {
    pub(super) token: RequestId,
    /// The first page of the next part.
    pub(super) from: Page,
    pub(super) resetting: bool,
}

/// The state of resets that wait for hosts.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    /// By the first page of the region; bounded by the resets that the switch is asked about.
    pub(super) resets: BTreeMap<Page, Awaited>,
    /// Memory nodes with pages of such regions.
    pub(super) nodes: BTreeMap<u16, PresenceQuestion>,
}

/// A reset that waits for hosts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    pub(super) region: Region,
    pub(super) seq: Seq,
    pub(super) hosts: HostSet,
    pub(super) since: Instant,
}

/// The time of the last question to a node, and of its last answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PresenceQuestion {
    pub(super) asked: Instant,
    pub(super) answered: Instant,
}

impl Stalls {
    /// Forgets resets of the region: it is not being reset any more, or under another number.
    pub(super) fn forget(&mut self, region: Region) {
        let overlaps = |other: Region| region.contains(other.base()) || other.contains(region.base());
        self.resets.retain(|_, awaited| !overlaps(awaited.region));
        if self.resets.is_empty() {
            self.nodes.clear();
        }
    }

    /// Returns the number of resets being timed.
    pub(super) fn len(&self) -> usize {
        self.resets.len()
    }
}

/// Returns the page of an address.
pub(super) const fn page_at(addr: u64) -> Page {
    Page::of(VirtAddr(addr))
}
