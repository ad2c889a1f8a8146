//! Memory of programs that `--local` does not limit, because it is not far: how much there is, and why.

use crate::output;
use farmem_run::PagerStats;
use serde::Serialize;

/// Bytes of mappings of memory that stayed local.
#[derive(Serialize)]
pub(super) struct MappedLocal {
    chosen_address: u64,
    executable: u64,
    fixed: u64,
    other_kind: u64,
    below_threshold: u64,
    no_room: u64,
    shared: u64,
}

impl MappedLocal {
    /// Converts the pager's counts, in the order of the reasons.
    pub(super) const fn of(
        [chosen_address, executable, fixed, other_kind, below_threshold, no_room, shared]: [u64; 7],
    ) -> Self {
        Self { chosen_address, executable, fixed, other_kind, below_threshold, no_room, shared }
    }

    /// Returns the name of each reason and its bytes.
    pub(super) fn rows(&self) -> [(&'static str, u64); 7] {
        [
            ("at an address of its choice", self.chosen_address),
            ("code", self.executable),
            ("at a fixed address outside", self.fixed),
            ("a stack, or of another kind", self.other_kind),
            ("below --threshold", self.below_threshold),
            ("no addresses left", self.no_room),
            (SHARED, self.shared),
        ]
    }

    /// Returns the reason of most of what is resident. The counts are of mappings, so they decide only within a kind.
    /// The library does not count mappings by raw system calls.
    fn main_reason(&self, stats: &PagerStats) -> &'static str {
        if 2 * stats.local_shared > stats.local_resident {
            return SHARED;
        }
        let private = self.rows().into_iter().filter(|(why, _)| *why != SHARED);
        let resident = stats.local_resident - stats.local_shared;
        match private.clone().map(|(_, bytes)| bytes).sum::<u64>() {
            counted if 2 * counted < resident => PAST_LIBC,
            _ => private.max_by_key(|(_, bytes)| *bytes).map_or("", |(why, _)| why),
        }
    }
}

/// The reason for shared mappings.
const SHARED: &str = "shared mappings of memory";

/// The reason for mappings that the library does not see.
const PAST_LIBC: &str = "by system calls past libc";

/// Programs have as much as this outside far memory, whatever they do.
const LOCAL_TOLD_MIN: u64 = 16 << 20;

/// Prints one line at the end if a process had more than the local limit outside far memory. `has_library` is false for a
/// program whose system calls the pager answers; such mappings are not counted.
pub(super) fn report(limit: u64, has_library: bool, stats: &PagerStats) {
    if stats.local_resident <= limit.max(LOCAL_TOLD_MIN) {
        return;
    }
    let mib = stats.local_resident >> 20;
    let (why, remedy) = match MappedLocal::of(stats.mapped_local).main_reason(stats) {
        PAST_LIBC if !has_library => ("its data, stacks and code, or what is at fixed addresses", ""),
        PAST_LIBC if cfg!(target_arch = "x86_64") => {
            (PAST_LIBC, ". `--intercept syscalls` makes such memory far")
        }
        SHARED => (SHARED, ", as ZGC's heap is. With -XX:+UseG1GC a JVM's heap is far"),
        why => (why, ""),
    };
    output::note(&format!(
        "farmem: the program had {mib} MiB in one process outside far memory, which --local does not limit. Most that it mapped there: {why}{remedy}"
    ));
}
