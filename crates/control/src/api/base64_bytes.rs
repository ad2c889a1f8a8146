//! Bytes in JSON: base64 with the standard alphabet and padding (RFC 4648, section 4).

use alloc::string::String;
use alloc::vec::Vec;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use core::fmt;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bytes that travel as text in base64.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Base64(pub Vec<u8>);

impl fmt::Debug for Base64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64_STANDARD
            .decode(text)
            .map(Self)
            .map_err(|why| de::Error::custom(format_args!("no base64: {why}")))
    }
}
