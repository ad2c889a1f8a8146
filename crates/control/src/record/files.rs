//! Of objects by file: what they are, what they are to be, and what came of that (PROTOCOL 20.14).

use crate::api::FileStage;
use alloc::string::String;
use serde::{Deserialize, Serialize};

/// An object by file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct FileRow {
    pub(crate) node: u16,
    /// The first byte of its vma.
    pub(crate) base: u64,
    /// Bytes of the file.
    pub(crate) length: u64,
    /// Its name at the node.
    pub(crate) file: String,
    pub(crate) stage: FileStage,
    /// The latest load or save: the number of the change that led to it.
    pub(crate) task: u64,
    /// The file's, when it was loaded or saved; 0: any will do.
    pub(crate) stamp: u64,
    /// Why the latest load or save failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fault: Option<FaultRow>,
}

/// What an object by file is to be next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum FileTurn {
    /// Open to write, at this host.
    Write { host: u16 },
    /// Loaded anew.
    Load,
    /// Saved.
    Save,
}

/// What came of a load or a save.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum FileEnd {
    /// It is done, and the file has this stamp.
    Done { stamp: u64 },
    /// It failed.
    Failed(FaultRow),
}

/// Why a load or a save failed, in numbers of PROTOCOL 20.8.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct FaultRow {
    pub(crate) cause: u8,
    pub(crate) errno: u32,
    pub(crate) at: u64,
}
