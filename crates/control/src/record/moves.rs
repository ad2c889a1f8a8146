//! The rows of changes that move memory: a migration, and a memory system call that was planned.

use crate::syscalls::Edit;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A part of a vma moves to another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Migration {
    /// That of its change: what its messages have.
    pub(crate) number: u64,
    pub(crate) vma: u64,
    pub(crate) base: u64,
    /// A power of two.
    pub(crate) size: u64,
    pub(crate) from: u16,
    /// Whose memory it has there, as addresses of that node.
    pub(crate) from_place: u64,
    pub(crate) to: u16,
    /// Whose memory it gets, as addresses of that node.
    pub(crate) place: u64,
    pub(crate) step: MigrationStep,
}

/// How far a migration is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum MigrationStep {
    /// The new node gets ready, the switch drains the addresses (`Drain`), and hosts give up what they have of them.
    #[serde(rename = "Vacating")] // as in logs that were written before
    Draining,
    /// The old node pushes.
    Pushing,
    /// The new node serves, and the switch sends there. From here on it is not taken back.
    Turning,
    /// The old node forgets.
    Leaving,
}

/// A change of an address space: a memory system call that was planned, or the begin or end of a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Remap {
    pub(crate) domain: u32,
    pub(crate) edits: Vec<Edit>,
    /// What the caller gets.
    pub(crate) value: i64,
    /// The process that begins with it.
    pub(crate) starts: Option<u32>,
    /// The process that ends with it.
    pub(crate) ends: Option<u32>,
}

impl Remap {
    /// First byte and size of the vmas it takes.
    pub(crate) fn reserved(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.edits.iter().filter_map(|edit| match edit {
            Edit::Reserve { base, size } => Some((*base, *size)),
            _ => None,
        })
    }

    /// True when it only gives memory back.
    pub(crate) fn only_releases(&self) -> bool {
        self.edits.iter().all(|edit| matches!(edit, Edit::Release { .. }))
    }
}
