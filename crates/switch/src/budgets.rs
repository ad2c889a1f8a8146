//! Sizes and occupancy of the tables.

use crate::directory::SLOTS_DEFAULT;
use farmem_wire::Status;
use farmem_wire::message::{ImageStatus, SOFT_IMAGE_MAX};

/// The most entries of each table. Surplus entries are refused with [`Status::TableFull`], never dropped
/// silently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budgets {
    /// Prefixes in the translation table: one per memory node, and the outliers.
    pub translation_entries: usize,
    /// Power-of-two entries in the protection table.
    pub protection_entries: usize,
    /// Vmas below 2 MiB, whose borders no region of the directory crosses.
    pub vmas: usize,
    /// Sessions, one per host and domain.
    pub sessions: usize,
    /// Relayed connections.
    pub connections: usize,
    /// Peers: nodes and hosts. The control plane is always known and not counted.
    pub peers: usize,
    /// Slots of the directory, one for each region with cached pages.
    pub directory_slots: usize,
    /// Bytes of an image of soft state, at most [`SOFT_IMAGE_MAX`]. Two fit: the active and the loading
    /// one.
    pub soft_bytes: u32,
}

impl Default for Budgets {
    /// Returns the capacity of one switch ASIC (MIND 7.2): about 45,000 match-action rules for translation
    /// and protection together. A tenth of them is for translation, because vmas by far outnumber nodes and
    /// outliers. Small vmas (9 bytes each: page number, size, granted bytes), sessions, connections and peers
    /// are exact matches in SRAM, of which an ASIC has more.
    fn default() -> Self {
        Self {
            translation_entries: 4_096,
            protection_entries: 40_960,
            vmas: 262_144,
            sessions: 16_384,
            connections: 16_384,
            peers: 8_192,
            directory_slots: SLOTS_DEFAULT,
            soft_bytes: SOFT_IMAGE_MAX,
        }
    }
}

/// The occupancy of one table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Entries in use.
    pub used: usize,
    /// Most entries.
    pub budget: usize,
}

/// The occupancy of all tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Occupancy {
    /// The translation table.
    pub translation: Usage,
    /// The protection table.
    pub protection: Usage,
    /// Vmas below 2 MiB.
    pub vmas: Usage,
    /// Sessions.
    pub sessions: Usage,
    /// Relayed connections.
    pub connections: Usage,
    /// Peers.
    pub peers: Usage,
    /// The active image, and the progress of the loading one.
    pub soft: ImageStatus,
    /// Bytes of memory for images.
    pub soft_bytes: Usage,
    /// Bytes of memory for tables that are made of images.
    pub soft_tables: Usage,
}

/// The reason why a table refuses a change. The table is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableError {
    /// The table would exceed its budget.
    Full,
    /// The change is invalid: a misaligned prefix, an empty range, a reserved number.
    Malformed,
    /// The switch has no such table.
    Unsupported,
}

impl From<TableError> for Status {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Full => Self::TableFull,
            TableError::Malformed => Self::Malformed,
            TableError::Unsupported => Self::Unsupported,
        }
    }
}
