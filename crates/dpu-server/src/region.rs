//! The allocations that processes of a DPU have open: one writer, or any number of readers (SODA III).

use super::carrier::{Extent, Memory};
use super::messages::{DpuMessage, refusal};
use farmem_client::VirtAddr;
use farmem_client::api::{ErrorCode, VmaInfo};
use farmem_dpu::{Asker, Evidence};
use std::collections::BTreeMap;

/// The open allocations, by their first byte.
#[derive(Debug, Default)]
pub(super) struct Objects {
    open: BTreeMap<u64, Open>,
    next: u32,
}

/// An open allocation.
#[derive(Debug)]
struct Open {
    object: u32,
    /// The allocation's id: its addresses may belong to another allocation later.
    id: u64,
    writes: bool,
    /// Processes that have it open, once for each region.
    by: Vec<Asker>,
}

impl Open {
    /// Returns true while a process has the allocation open. Otherwise drops its cached pages.
    fn is_still(&self, memory: &Memory) -> bool {
        if self.by.is_empty() {
            memory.close(self.object);
        }
        !self.by.is_empty()
    }
}

impl Objects {
    /// Opens an allocation for a process. Returns the object's number.
    ///
    /// # Errors
    /// The refusal for the process: another process writes the allocation, or this one wants to write an allocation
    /// that others have open. The process must try again while requests of a process that left are in flight.
    pub(super) fn open(
        &mut self,
        memory: &Memory,
        vma: &VmaInfo,
        asker: Asker,
        write: bool,
        is_leaving: impl Fn(Asker) -> bool,
    ) -> Result<u32, DpuMessage> {
        if let Some(open) = self.open.get_mut(&vma.base) {
            if open.by.iter().all(|&by| is_leaving(by)) {
                let message = format!(
                    "requests of a process that left are still in flight for the allocation at {:#x}",
                    vma.base
                );
                return Err(refusal(ErrorCode::Unavailable, message, "try again in a moment"));
            }
            if write || open.writes || open.id != vma.id {
                let how = if open.writes { "writes it" } else { "reads it" };
                let others = open.by.len();
                let message = format!(
                    "the allocation at {:#x} is open at this DPU: {others} region of a process {how}; a process may write an allocation only if no other process has it open",
                    vma.base
                );
                return Err(refusal(
                    ErrorCode::Conflict,
                    message,
                    "wait until the others close the allocation, or open it for reading in all processes",
                ));
            }
            open.by.push(asker);
            return Ok(open.object);
        }
        let object = self.next;
        self.next = object.checked_add(1).ok_or_else(|| {
            refusal(ErrorCode::TableFull, "this DPU has opened 2^32 objects", "start the DPU again")
        })?;
        let extent = Extent { base: VirtAddr(vma.base), bytes: vma.size };
        memory.open(object, extent, write.then_some(asker), Box::new(Evidence));
        self.open.insert(vma.base, Open { object, id: vma.id, writes: write, by: vec![asker] });
        Ok(object)
    }

    /// Closes a region of an object for a process. No request on the region is pending.
    pub(super) fn close_one(&mut self, memory: &Memory, asker: Asker, object: u32) {
        self.open.retain(|_, open| {
            if open.object == object
                && let Some(at) = open.by.iter().position(|&by| by == asker)
            {
                open.by.swap_remove(at);
            }
            open.is_still(memory)
        });
    }

    /// Closes all regions of a process that left and has no pending requests.
    pub(super) fn close(&mut self, memory: &Memory, asker: Asker) {
        self.open.retain(|_, open| {
            open.by.retain(|&by| by != asker);
            open.is_still(memory)
        });
    }
}
