//! The part of `--local` that only a measurement shows: the process itself, and memory that the allocator keeps.
//!
//! Key type: [`Meter`]. The limit is for the resident memory of the whole process, so the process is measured
//! repeatedly. The store and the buffers of connections account for their bytes; the rest counts as overhead.

use std::io;

/// The part of local memory by which accounted bytes may grow before the process is measured again.
pub(crate) const GROWTH_SHARE: usize = 128;
/// The part of local memory by which the overhead may grow before the allocator returns freed memory.
pub(crate) const TRIM_SHARE: usize = 32;
/// Assumed bytes of a process without data, if it cannot be measured.
pub(crate) const PROCESS_BYTES: usize = 8 << 20;

/// The last measurements of this process.
#[derive(Default, Debug)]
pub(crate) struct Meter {
    /// True if the resident memory is this server's own. Memory nodes in the same process cannot be distinguished
    /// from it.
    pub(crate) measures: bool,
    /// Bytes that were accounted for at the last measurement.
    pub(crate) accounted: usize,
    /// The overhead when the allocator gave back last, or the least since.
    pub(crate) trimmed: usize,
}

/// Returns the resident bytes of this process.
pub(crate) fn resident_bytes() -> io::Result<usize> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib =
        line.and_then(|line| line.trim().strip_suffix("kB")).and_then(|kib| kib.trim().parse::<usize>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other("/proc/self/status has no VmRSS"))
}
