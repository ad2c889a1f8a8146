//! Memory of programs that `--local` does not limit, because it is not far: how much there is, and why.

use crate::output;
use farmem_run::PagerStats;
use serde::Serialize;

/// Bytes of private anonymous mappings that stayed local.
#[derive(Serialize)]
pub(super) struct MappedLocal {
    chosen_address: u64,
    executable: u64,
    fixed: u64,
    other_kind: u64,
    below_threshold: u64,
    no_room: u64,
}

impl MappedLocal {
    /// From the pager's counts, in the order of the reasons.
    pub(super) const fn of(
        [chosen_address, executable, fixed, other_kind, below_threshold, no_room]: [u64; 6],
    ) -> Self {
        Self { chosen_address, executable, fixed, other_kind, below_threshold, no_room }
    }

    /// Returns the name of each reason and its bytes.
    pub(super) fn rows(&self) -> [(&'static str, u64); 6] {
        [
            ("at an address of its choice", self.chosen_address),
            ("executable", self.executable),
            ("at a fixed address outside", self.fixed),
            ("a stack, or of another kind", self.other_kind),
            ("below --threshold", self.below_threshold),
            ("no addresses left", self.no_room),
        ]
    }

    /// The reason of most of it.
    fn main_reason(&self) -> &'static str {
        self.rows().into_iter().max_by_key(|(_, bytes)| *bytes).map_or("", |(why, _)| why)
    }
}

/// Programs have as much as this outside far memory, whatever they do.
const LOCAL_TOLD_MIN: u64 = 16 << 20;

/// One line at the end where a process had more than the local limit outside far memory.
pub(super) fn report(limit: u64, stats: &PagerStats) {
    if stats.local_resident <= limit.max(LOCAL_TOLD_MIN) {
        return;
    }
    let (mib, why) = (stats.local_resident >> 20, MappedLocal::of(stats.mapped_local).main_reason());
    output::note(&format!(
        "farmem: the program had {mib} MiB in one process outside far memory, which --local does not limit. Most that it mapped there: {why}"
    ));
}
