//! Protection of pages, and the error numbers of memory system calls.

use serde::{Deserialize, Serialize};

/// A Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub(crate) enum Errno {
    /// There is no room, or nothing is mapped there (ENOMEM).
    NoMemory = 12,
    /// The protection is not allowed (EACCES).
    Access = 13,
    /// A mapping is there already (EEXIST).
    Exists = 17,
    /// An argument is invalid (EINVAL).
    Invalid = 22,
}

/// Permission of loads and stores for a page. A page that may be written may be read too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Prot {
    None,
    Read,
    ReadWrite,
}

impl Prot {
    /// Decodes the bits of `mmap` and `mprotect`: PROT_READ 1, PROT_WRITE 2, PROT_EXEC 4. Far memory holds
    /// data only.
    pub(crate) const fn from_bits(bits: u32) -> Result<Self, Errno> {
        match bits {
            0 => Ok(Self::None),
            1 => Ok(Self::Read),
            2 | 3 => Ok(Self::ReadWrite),
            4..8 => Err(Errno::Access),
            _ => Err(Errno::Invalid),
        }
    }
}
