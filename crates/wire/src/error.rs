//! Parse errors of frames and messages: facts to count and answer by, not prose.

use core::fmt;

/// The reason why bytes are not a valid frame or message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// The named part needs more bytes than there are.
    Short {
        /// Name of the part.
        what: &'static str,
        /// Bytes that the part needs.
        need: usize,
        /// Bytes that are present.
        have: usize,
    },
    /// The named part has more bytes than it can have.
    Long {
        /// Name of the part.
        what: &'static str,
        /// Bytes that the part may have.
        most: usize,
        /// Bytes that are present.
        have: usize,
    },
    /// A field has a value without a meaning.
    Unknown {
        /// Name of the field.
        what: &'static str,
        /// Value of the field.
        value: u64,
    },
    /// A reserved field or a pad byte is not zero.
    Reserved {
        /// Name of the field.
        what: &'static str,
    },
    /// The ICRC does not match the packet.
    Icrc,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short { what, need, have } => write!(f, "{what} needs {need} bytes, only {have} are there"),
            Self::Long { what, most, have } => write!(f, "{what} may have {most} bytes, {have} are there"),
            Self::Unknown { what, value } => write!(f, "{what} has the unknown value {value:#x}"),
            Self::Reserved { what } => write!(f, "{what} is reserved and must be zero"),
            Self::Icrc => f.write_str("the ICRC does not match"),
        }
    }
}

impl core::error::Error for WireError {}
