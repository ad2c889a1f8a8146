//! What can be wrong with bytes from the network: facts to count and answer by, not prose.

use core::fmt;

/// Why bytes are not a valid frame or message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// Fewer bytes than the part named needs.
    Short {
        /// The part.
        what: &'static str,
        /// Bytes it needs.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
    /// More bytes than the part named can have.
    Long {
        /// The part.
        what: &'static str,
        /// Bytes it may have.
        most: usize,
        /// Bytes there are.
        have: usize,
    },
    /// A field has a value that means nothing.
    Unknown {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// A reserved field or a pad byte is not zero.
    Reserved {
        /// The field.
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
