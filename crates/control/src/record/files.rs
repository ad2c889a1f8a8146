//! Rows of objects by file: the objects, their next stage, and the results of loads and saves (PROTOCOL
//! 20.14).

use crate::api::FileStage;
use alloc::string::String;
use serde::{Deserialize, Serialize};

/// An object by file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct FileRow {
    pub(crate) node: u16,
    /// The first byte of the object's vma.
    pub(crate) base: u64,
    /// Length of the file in bytes.
    pub(crate) length: u64,
    /// Name of the file at the node.
    pub(crate) file: String,
    pub(crate) stage: FileStage,
    /// The latest load or save: the number of its change.
    pub(crate) task: u64,
    /// The file's stamp when it was loaded or saved, or 0 if any stamp will do.
    pub(crate) stamp: u64,
    /// Why the latest load or save failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fault: Option<FaultRow>,
}

/// The next stage of an object by file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum FileTurn {
    /// Open to write, at this host.
    Write { host: u16 },
    /// Loaded anew.
    Load,
    /// Saved.
    Save,
}

/// Result of a load or a save.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum FileEnd {
    /// The task succeeded, and the file has this stamp.
    Done { stamp: u64 },
    /// The task failed.
    Failed(FaultRow),
}

/// Why a load or a save failed, in numbers of PROTOCOL 20.8.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct FaultRow {
    pub(crate) cause: u8,
    pub(crate) errno: u32,
    pub(crate) at: u64,
}
