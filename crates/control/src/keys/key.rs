//! The key of a host, memory node, switch or domain, and its text.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Number of digits of a key's text.
const DIGITS: usize = 32;

/// The key of a host, memory node, switch or domain: 128 bits, 32 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub(super) u128);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Omits the key: printed text may be stored where others read it.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// The error for text that is no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoKey;

impl fmt::Display for NoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected a key of {DIGITS} hexadecimal digits")
    }
}

impl FromStr for Key {
    type Err = NoKey;

    fn from_str(text: &str) -> Result<Self, NoKey> {
        if text.len() != DIGITS || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(NoKey);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| NoKey)
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
