//! Removal of a store: frees its far memory, also by a program that created none of it.
//!
//! Key type: [`Dropped`].

use super::{Access, Store, StoreError, heap_name, lock_name, locked};
use farmem::{Client, Error, VirtAddr};
use serde::Serialize;
use std::collections::BTreeSet;

/// The result of removing a store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Dropped {
    /// Number of freed allocations of its trees; the heap and the names come on top.
    pub trees: usize,
    /// The reason why some memory was not found, if memory of the store was lost. Such memory stays allocated
    /// to the domain.
    pub lost: Option<String>,
}

impl Store {
    /// Frees the store called `name` with all its keys, and its names. For a store with lost memory, this
    /// frees the names and the memory reachable by them.
    ///
    /// # Errors
    /// [`StoreError::Far`] with [`Error::Missing`] when there is no store of that name, with
    /// [`Error::Broken`] when the name belongs to something else; [`StoreError::InUse`] while another program
    /// has the store open; [`StoreError::Locked`] while another program writes texts to it, unless `access`
    /// takes over. Nothing is freed then.
    pub fn drop_named(client: &mut Client, name: &str, access: Access) -> Result<Dropped, StoreError> {
        client.open_named(name)?;
        let lock = locked(client, &lock_name(name), access)?;
        let dropped = match Self::free_all(client, name) {
            Ok(trees) => Dropped { trees, lost: None },
            Err(StoreError::Far(error @ Error::MemoryLost { .. })) => {
                // Lost memory of this name may belong to something else: a store has a heap of its own.
                client.open_named(&heap_name(name))?;
                Dropped { trees: 0, lost: Some(error.to_string()) }
            }
            Err(StoreError::Far(error @ Error::Locked { .. })) => {
                let hosts = client.others_with_named(name)?;
                let hosts: Vec<String> =
                    hosts.iter().map(|info| format!("{} (host {})", info.name, info.host)).collect();
                // Without a host, the program that had the store open has died, and its membership goes later.
                return Err(if hosts.is_empty() { error.into() } else { StoreError::InUse(hosts) });
            }
            Err(error) => return Err(error),
        };
        for named in [heap_name(name), name.to_owned(), lock_name(name)] {
            match client.unlink_named(&named) {
                // The name went with the heap, or was never created.
                Ok(()) | Err(Error::Missing { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        drop(lock);
        Ok(dropped)
    }

    /// Frees the trees and the heap. Returns the number of tree allocations.
    fn free_all(client: &mut Client, name: &str) -> Result<usize, StoreError> {
        let mut store = Self::open(client, name, None, Access::Read)?;
        let bases = match store.tree_memory(client) {
            Ok(bases) => bases,
            Err(error) => {
                store.close(client)?;
                return Err(error.into());
            }
        };
        for &base in &bases {
            client.free(base)?;
        }
        store.heap.destroy(client)?;
        Ok(bases.len())
    }

    /// Returns the allocations with nodes of the store's trees, if no other program has the store open.
    fn tree_memory(&mut self, client: &mut Client) -> Result<BTreeSet<VirtAddr>, Error> {
        self.heap.check_exclusive(client)?;
        self.layers(client, &mut Vec::new(), &mut Vec::new())?;
        let domain = client.domain();
        let mut vmas = client.overview()?.vmas;
        vmas.retain(|vma| vma.domain == domain);
        vmas.sort_unstable_by_key(|vma| vma.base);
        let mut bases = BTreeSet::new();
        for tree in self.trees.values() {
            let addresses = tree.tree().addresses(client)?;
            bases.extend(addresses.into_iter().filter_map(|at| {
                let behind = vmas.partition_point(|vma| vma.base <= at.0);
                let vma = &vmas[behind.checked_sub(1)?];
                (at.0 - vma.base < vma.size).then_some(VirtAddr(vma.base))
            }));
        }
        Ok(bases)
    }
}
