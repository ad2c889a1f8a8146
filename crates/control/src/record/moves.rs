//! Rows of changes that move memory: a migration, and a planned memory system call.

use crate::syscalls::Edit;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A part of a vma moves to another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Migration {
    /// Number of the change, which its messages carry.
    pub(crate) number: u64,
    pub(crate) vma: u64,
    pub(crate) base: u64,
    /// Size in bytes, a power of two.
    pub(crate) size: u64,
    pub(crate) from: u16,
    /// The memory that the part has at the old node, as addresses of that node.
    pub(crate) from_place: u64,
    pub(crate) to: u16,
    /// The memory that the part gets at the new node, as addresses of that node.
    pub(crate) place: u64,
    pub(crate) step: MigrationStep,
}

/// Progress of a migration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum MigrationStep {
    /// The new node prepares, the switch drains the addresses (`Drain`), and hosts give up their pages of
    /// them.
    #[serde(rename = "Vacating")] // as in logs that were written before
    Draining,
    /// The old node pushes.
    Pushing,
    /// The new node serves, and the switch sends there. From here on the migration is not rolled back.
    Turning,
    /// The old node forgets.
    Leaving,
}

/// A change of an address space: a planned memory system call, or the begin or end of a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Remap {
    pub(crate) domain: u32,
    pub(crate) edits: Vec<Edit>,
    /// The caller's result.
    pub(crate) value: i64,
    /// The process that begins with the change.
    pub(crate) starts: Option<u32>,
    /// The process that ends with the change.
    pub(crate) ends: Option<u32>,
}

impl Remap {
    /// Iterates over the vmas that the change takes: first byte and size.
    pub(crate) fn reserved(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.edits.iter().filter_map(|edit| match edit {
            Edit::Reserve { base, size } => Some((*base, *size)),
            _ => None,
        })
    }

    /// Returns true if the change only gives memory back.
    pub(crate) fn only_releases(&self) -> bool {
        self.edits.iter().all(|edit| matches!(edit, Edit::Release { .. }))
    }
}
