//! How big the tables may become, and how big they are.

use crate::directory::SLOTS_DEFAULT;
use farmem_wire::Status;
use farmem_wire::message::{SOFT_IMAGE_MAX, Shown};

/// How many entries each table may hold. What does not fit is refused with [`Status::TableFull`], never dropped silently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budgets {
    /// Prefixes in the translation table: one per memory node, and the outliers.
    pub translation_entries: usize,
    /// Power-of-two entries in the protection table.
    pub protection_entries: usize,
    /// Vmas below 2 MiB, whose ends no region of the directory crosses.
    pub vmas: usize,
    /// Sessions, one per host and domain.
    pub sessions: usize,
    /// Connections through the switch.
    pub connections: usize,
    /// Peers: nodes and hosts. The control plane is known from the start and not counted.
    pub peers: usize,
    /// Slots of the directory, one for each region of which hosts cache pages.
    pub directory_slots: usize,
    /// Bytes of an image of soft state, at most [`SOFT_IMAGE_MAX`]. Two fit: the one that stands and the one that is loading.
    pub soft_bytes: u32,
}

impl Default for Budgets {
    /// What one switch ASIC holds (the directory: MIND 7.2): about 45,000 match-action rules for translation and protection together (MIND 7.2), a
    /// tenth of them for translation, because vmas by far outnumber nodes and outliers. Small vmas (9 bytes each: a page's number, a size, how much is granted), sessions,
    /// connections and peers are exact matches in SRAM, of which an ASIC has more.
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

/// How full one table is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Entries in use.
    pub used: usize,
    /// Entries there may be.
    pub budget: usize,
}

/// How full every table is.
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
    /// Connections through the switch.
    pub connections: Usage,
    /// Peers.
    pub peers: Usage,
    /// The image that stands, and how much of the next one is there.
    pub soft: Shown,
    /// Bytes of memory that images take.
    pub soft_bytes: Usage,
    /// Bytes of memory that the tables take that are made of images.
    pub soft_tables: Usage,
}

/// Why a table refuses a change. The table is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableError {
    /// It would need more entries than its budget.
    Full,
    /// The change makes no sense: a misaligned prefix, an empty range, a reserved number.
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
