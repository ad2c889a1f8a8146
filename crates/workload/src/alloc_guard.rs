//! Loading into a shared rack, all or nothing.

use crate::stop;
use farmem::{Client, Error, FarMemory, NodeId, VirtAddr, Vma, forward_far_memory};
use std::io::ErrorKind;

/// Lets `load` allocate and fill far memory. If it fails, or the process is asked to stop meanwhile, all its
/// allocations are freed.
///
/// # Errors
/// The error of `load`.
pub fn load_or_free<R>(
    client: &mut Client,
    load: impl FnOnce(&mut dyn FarMemory) -> Result<R, Error>,
) -> Result<R, Error> {
    let mut guard = AllocGuard { client, held: Vec::new() };
    let loaded = load(&mut guard);
    if loaded.is_err() {
        for base in guard.held {
            // If the rack does not answer here, it did not answer `load` either, whose error says more.
            let _did_not_answer = guard.client.free(base);
        }
    }
    loaded
}

/// A client, and the allocations made through it.
struct AllocGuard<'a> {
    client: &'a mut Client,
    held: Vec<VirtAddr>,
}

impl AllocGuard<'_> {
    fn hold(&mut self, vma: Vma) -> Vma {
        self.held.push(vma.base);
        vma
    }

    fn go_on(_: &mut Self) -> Result<(), Error> {
        let asked = || Error::System { what: "asked to stop".into(), source: ErrorKind::Interrupted.into() };
        if stop::asked() { Err(asked()) } else { Ok(()) }
    }
}

impl FarMemory for AllocGuard<'_> {
    forward_far_memory!(client: compare_swap, fetch_add, nodes, scratch_len_max, buffer, recycle);
    forward_far_memory!(client, Self::go_on: read, write, dispatch, write_many, read_many);

    fn allocate(&mut self, size: u64) -> Result<Vma, Error> {
        Self::go_on(self)?;
        let vma = self.client.allocate(size)?;
        Ok(self.hold(vma))
    }

    fn allocate_on(&mut self, size: u64, node: NodeId) -> Result<Vma, Error> {
        Self::go_on(self)?;
        let vma = self.client.allocate_on(size, node)?;
        Ok(self.hold(vma))
    }

    fn free(&mut self, base: VirtAddr) -> Result<(), Error> {
        self.client.free(base)?;
        self.held.retain(|&held| held != base);
        Ok(())
    }
}
