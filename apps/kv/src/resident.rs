//! The part of `--local` that nothing but a measurement knows: the process itself, and what the allocator keeps.
//!
//! Key type: [`Meter`]. The limit is for the resident memory of the whole process, so the process is measured again and again; what the store
//! and the buffers of connections account for is subtracted, and the rest counts as overhead.

use crate::store::Store;
use crate::world::World;
use std::io;

/// The part of local memory by which what is here may grow before the process is measured again.
const GROWTH_SHARE: usize = 128;
/// The part of local memory by which the overhead may grow before the allocator gives back what was freed.
const TRIM_SHARE: usize = 32;
/// Bytes that a process takes without data, where it cannot be measured.
const PROCESS_BYTES: usize = 8 << 20;

/// The last measurements of this process.
#[derive(Default, Debug)]
pub(crate) struct Meter {
    /// The resident memory is this server's own. Where memory nodes run in the same process, theirs cannot be told from it.
    pub(crate) measures: bool,
    /// Bytes that were accounted for at the last measurement.
    accounted: usize,
    /// The overhead when the allocator gave back last, or the least since.
    trimmed: usize,
}

impl World {
    /// Returns the bytes of local memory that are accounted for.
    pub(crate) fn accounted(&self, store: &Store) -> usize {
        store.here_bytes() + self.buffers + self.durable.buffered()
    }

    /// Returns whether so much came since `before` bytes were accounted for that the limit is to be looked at.
    pub(crate) fn has_grown(&self, store: &Store, before: usize) -> bool {
        self.accounted(store) > before + store.memory.local / GROWTH_SHARE
    }

    /// Keeps what is here within the limit. Returns the bytes that are accounted for then.
    pub(crate) fn settle(&mut self, store: &mut Store) -> usize {
        if self.meter.measures && self.has_grown(store, self.meter.accounted) {
            self.measure(store);
        }
        store.memory.overhead = self.other + self.buffers + self.durable.buffered();
        store.settle();
        self.accounted(store)
    }

    /// Measures what this process takes, and what of it nothing accounts for. When that has grown, the allocator gives back what was freed.
    pub(crate) fn measure(&mut self, store: &Store) {
        let accounted = self.accounted(store);
        self.measure_beside(accounted);
        if self.other > self.meter.trimmed + store.memory.local / TRIM_SHARE
            && farmem::allocator::give_back_free()
        {
            self.measure_beside(accounted);
            self.meter.trimmed = self.other;
        }
        self.meter.trimmed = self.meter.trimmed.min(self.other);
        self.meter.accounted = accounted;
    }

    fn measure_beside(&mut self, accounted: usize) {
        let measured = if self.meter.measures { resident_bytes().ok() } else { None };
        self.resident = measured.unwrap_or(PROCESS_BYTES + accounted);
        self.other = self.resident.saturating_sub(accounted);
    }
}

/// Returns the resident bytes of this process.
fn resident_bytes() -> io::Result<usize> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib =
        line.and_then(|line| line.trim().strip_suffix("kB")).and_then(|kib| kib.trim().parse::<usize>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other("/proc/self/status has no VmRSS"))
}
