//! What this process takes of the machine's memory.

use std::io;

/// Resident bytes.
pub(crate) fn bytes() -> io::Result<usize> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib =
        line.and_then(|line| line.trim().strip_suffix("kB")).and_then(|kib| kib.trim().parse::<usize>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other("/proc/self/status has no VmRSS"))
}
