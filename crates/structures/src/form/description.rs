//! The description of a structure, with the checks of its values.

use farmem_client::api::{ApiError, ErrorCode};
use farmem_client::{Error, FarMemory, NodeId, VirtAddr, Vma};
use serde::{Deserialize, Serialize};

/// The description of a structure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Form {
    /// An open-addressing hash map ([`FlatMap::form`](crate::FlatMap::form)).
    FlatMap {
        /// The map's allocations, one on each of its memory nodes.
        shards: Vec<Shard>,
        /// Slots of a shard that are homes.
        homes: u64,
        /// Bytes of a value.
        value_len: u64,
        /// The secret that determines the homes of keys.
        secret: [u64; 2],
    },
    /// A chained hash table of values of 40 bytes ([`HashTable::form`](crate::HashTable::form)).
    HashTable {
        /// The table's allocations, one on each of its memory nodes.
        shards: Vec<Shard>,
        /// The number of buckets: a power of two.
        buckets: u64,
    },
    /// Pages by number ([`PageStore::form`](crate::PageStore::form)).
    PageStore {
        /// The store's allocations, one on each of its memory nodes.
        shards: Vec<Shard>,
        /// The number of pages.
        pages: u64,
    },
    /// A table of records in a heap ([`Table::form`](crate::Table::form)). Its reader is a member of the
    /// heap.
    Table {
        /// The heap's name.
        heap: String,
        /// The table's name in it.
        table: String,
    },
}

/// One allocation of a structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// The address of the first byte.
    pub base: u64,
    /// The size in bytes.
    pub size: u64,
    /// The memory node that holds the allocation.
    pub node: u16,
}

impl From<Vma> for Shard {
    fn from(vma: Vma) -> Self {
        Self { base: vma.base.0, size: vma.size, node: vma.node.0 }
    }
}

/// Returns the error for an invalid value in a form.
pub(crate) fn refused(what: impl Into<String>) -> Error {
    Error::Refused(ApiError {
        code: ErrorCode::BadRequest,
        message: format!("a structure's form: {}", what.into()),
        remedy: "send the form that the structure returns (`FlatMap::form`, `HashTable::form`, `PageStore::form`, `Table::form`)"
            .into(),
    })
}

/// Checks that a value is in a range.
pub(crate) fn within(what: &str, have: u64, least: u64, most: u64) -> Result<usize, Error> {
    match usize::try_from(have) {
        Ok(good) if (least..=most).contains(&have) => Ok(good),
        _ => Err(refused(format!("{what} is {have}, and may be {least} to {most}"))),
    }
}

/// Returns the allocations of shards that have at least `need` bytes each.
pub(crate) fn allocations(
    shards: &[Shard],
    need: u64,
    memory: &(impl FarMemory + ?Sized),
) -> Result<Vec<Vma>, Error> {
    within("the number of shards", shards.len() as u64, 1, memory.nodes().len() as u64)?;
    let mut known = Vec::with_capacity(shards.len());
    for (n, &Shard { base, size, node }) in shards.iter().enumerate() {
        if !memory.nodes().iter().any(|one| one.node == node) {
            return Err(refused(format!(
                "shard {n} is on memory node {node}, and the rack has none of this number"
            )));
        }
        if base.checked_add(size).is_none() {
            return Err(refused(format!(
                "shard {n} has {size} bytes from {base:#x} on, which leave all memory"
            )));
        }
        if size < need {
            return Err(refused(format!(
                "shard {n} has a size of {size} bytes, and what it is said to hold takes {need}"
            )));
        }
        known.push(Vma { base: VirtAddr(base), size, node: NodeId(node) });
    }
    Ok(known)
}
