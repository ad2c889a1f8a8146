//! Counts of a prefetcher's work for one program.

use crate::mirror::MirrorStats;
use crate::tap::TapStats;
use farmem_dpu::prefetcher::Stats;
use farmem_paging::Account;

/// What a DPU did for a program.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Prefetched {
    /// What was fetched, and what became of it.
    pub account: Account,
    /// What the prefetcher did beside that.
    pub stats: Stats,
    /// What the DPU's end of the tap saw, what came by a mirror included.
    pub seen: TapStats,
    /// What the mirrors saw that the program asked a DPU that is a process for (`AtDpu::mirror`).
    pub mirror: MirrorStats,
    /// Keys on their way.
    pub flying: u64,
}
