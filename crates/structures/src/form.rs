//! Structures in a form that goes to another process: where they lie and how they are made, so that a DPU looks keys up for a program (PROTOCOL 19.15).
//!
//! Key types: [`Form`], what is said; [`look_up`], which makes a structure of it. Whoever says a form may be hostile: every value is checked against what memory nodes have, and the first one
//! that cannot be is named. What a form leads to is read in the reader's own domain, so it opens nothing that the domain has not: a table is opened by its name there, as by any program of the domain.
//!
//! What it does not do: say what lies there. A form of memory that is no such structure finds nothing, or nonsense, for whoever said it.

use crate::table::Ahead;
use crate::{FlatMap, HashTable, PageStore};
use farmem_client::api::{ApiError, ErrorCode};
use farmem_client::{Client, Error, FarMemory, LookUp, NodeId, VirtAddr, Vma};
use serde::{Deserialize, Serialize};

/// A structure, as it is said.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Form {
    /// An open-addressing hash map ([`FlatMap::form`]).
    FlatMap {
        /// Where it lies: an allocation on each of its memory nodes.
        shards: Vec<Shard>,
        /// Slots of a shard that are homes.
        homes: u64,
        /// Bytes of a value.
        value_len: u64,
        /// What homes of keys depend on.
        secret: [u64; 2],
    },
    /// A chained hash table of values of 40 bytes ([`HashTable::form`]).
    HashTable {
        /// Where it lies, likewise.
        shards: Vec<Shard>,
        /// How many buckets it has: a power of two.
        buckets: u64,
    },
    /// Pages by number ([`PageStore::form`]).
    PageStore {
        /// Where they lie, likewise.
        shards: Vec<Shard>,
        /// How many there are.
        pages: u64,
    },
    /// A table of records in a heap ([`Table::form`](crate::Table::form)). Who reads it is a member of the heap.
    Table {
        /// The heap's name.
        heap: String,
        /// The table's name in it.
        table: String,
    },
}

/// A part of a structure: an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// Its first byte.
    pub base: u64,
    /// Its bytes.
    pub size: u64,
    /// The memory node that it is on.
    pub node: u16,
}

impl From<Vma> for Shard {
    fn from(vma: Vma) -> Self {
        Self { base: vma.base.0, size: vma.size, node: vma.node.0 }
    }
}

/// A value that cannot be.
pub(crate) fn refused(what: impl Into<String>) -> Error {
    Error::Refused(ApiError {
        code: ErrorCode::BadRequest,
        message: format!("a structure's form: {}", what.into()),
        remedy: "say the form that the structure gives (`FlatMap::form`, `HashTable::form`, `PageStore::form`, `Table::form`)"
            .into(),
    })
}

/// A value that must be in some range.
pub(crate) fn within(what: &str, have: u64, least: u64, most: u64) -> Result<usize, Error> {
    match usize::try_from(have) {
        Ok(good) if (least..=most).contains(&have) => Ok(good),
        _ => Err(refused(format!("{what} is {have}, and may be {least} to {most}"))),
    }
}

/// The allocations of shards that have so many bytes each, or more.
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

/// Makes the structure of a form, for the client that reads it: what a DPU that is a process is started with.
///
/// # Errors
/// [`Error::Refused`] with the first value that cannot be; of a table what [`Heap::open`](crate::Heap::open) and [`Table::open`](crate::Table::open) say.
pub fn look_up(form: &serde_json::Value, client: &mut Client) -> Result<Box<dyn LookUp + Send>, Error> {
    match Form::deserialize(form).map_err(|error| refused(error.to_string()))? {
        Form::FlatMap { shards, homes, value_len, secret } => {
            Ok(Box::new(FlatMap::of(&*client, &shards, (homes, value_len), secret)?))
        }
        Form::HashTable { shards, buckets } => Ok(Box::new(HashTable::of(&*client, &shards, buckets)?)),
        Form::PageStore { shards, pages } => Ok(Box::new(PageStore::of(&*client, &shards, pages)?)),
        Form::Table { heap, table } => Ok(Box::new(Ahead::open(client, &heap, &table)?)),
    }
}
