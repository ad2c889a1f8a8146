//! Counts of a prefetcher's work for one program.

use crate::mirror::MirrorStats;
use crate::tap::TapStats;
use farmem_dpu::prefetcher::Stats;
use farmem_paging::Account;

/// Counts of a DPU for a program.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Prefetched {
    /// Prefetched records, and their use.
    pub account: Account,
    /// Further counts of the prefetcher.
    pub stats: Stats,
    /// Counts of the DPU's end of the tap, those of a mirror included.
    pub seen: TapStats,
    /// Counts of the mirrors that the program requested from a DPU process (`AtDpu::mirror`).
    pub mirror: MirrorStats,
    /// Keys in flight.
    pub flying: u64,
}
