//! Keys of a store: the client's form, the order-preserving encoding, and its slices of eight bytes.
//!
//! Key type: [`KeyKind`]. All keys of a store have one kind. A number is one slice. A text has one slice for
//! every eight bytes of its encoding, including its end. The tree of first slices leads to a tree of second
//! slices where texts share the first, and so on ([`crate::Store`]).

use farmem_index::{KeyBytes, prefix};

/// Bound on the bytes of a text key.
pub const KEY_LEN_MAX: usize = 512;
/// Bytes of a slice: the sort key of one tree.
pub(crate) const SLICE: usize = 8;

/// The type of keys in a file and on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
#[value(rename_all = "lower")]
pub enum KeyType {
    /// Text, or any bytes.
    #[value(alias = "string")]
    Text,
    /// Whole numbers of 0 to 2^64 - 1.
    U64,
    /// Whole numbers of -2^63 to 2^63 - 1.
    I64,
    /// Times. Keys are microseconds since 1970 in UTC. Files have RFC 3339 (UTC without a zone, a date alone
    /// for its first moment) or Parquet timestamps.
    Timestamp,
}

impl KeyType {
    /// Returns the kind of a store's keys for this type.
    #[must_use]
    pub const fn kind(self) -> KeyKind {
        match self {
            Self::Text => KeyKind::Text,
            Self::U64 => KeyKind::U64,
            Self::I64 | Self::Timestamp => KeyKind::I64,
        }
    }
}

/// The kind of a store's keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyKind {
    /// Any bytes, 0 to 512 of them, ordered byte by byte.
    Text,
    /// Numbers of 0 to 2^64 - 1, written in decimal.
    U64,
    /// Numbers of -2^63 to 2^63 - 1, written in decimal. Times are microseconds since 1970 in UTC.
    I64,
}

/// The error for an invalid key, with the expectation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// More bytes than a key may have.
    #[error("a key of {0} bytes: keys have at most {KEY_LEN_MAX}")]
    TooLong(usize),
    /// The key is no number of the store's kind.
    #[error("{text:?} is no key of this store: its keys are {expected}")]
    NoNumber {
        /// The beginning of the key.
        text: String,
        /// The kind of key expected.
        expected: &'static str,
    },
}

impl KeyKind {
    /// Returns the number that identifies the kind in a store.
    pub(crate) const fn number(self) -> u64 {
        match self {
            Self::Text => 1,
            Self::U64 => 2,
            Self::I64 => 3,
        }
    }

    pub(crate) fn numbered(number: u64) -> Option<Self> {
        [Self::Text, Self::U64, Self::I64].into_iter().find(|kind| kind.number() == number)
    }

    /// Returns the kind's description for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text of up to 512 bytes",
            Self::U64 => "whole numbers of 0 to 2^64 - 1, in decimal",
            Self::I64 => "whole numbers of -2^63 to 2^63 - 1, in decimal",
        }
    }

    /// Encodes a key so that the bytes sort like the keys.
    ///
    /// # Errors
    /// [`KeyError`] when it is no key of this kind.
    pub fn encode(self, key: &[u8]) -> Result<Vec<u8>, KeyError> {
        let no_number = || KeyError::NoNumber {
            text: String::from_utf8_lossy(&key[..key.len().min(40)]).into_owned(),
            expected: self.name(),
        };
        let text = || std::str::from_utf8(key).ok();
        match self {
            Self::Text if key.len() > KEY_LEN_MAX => Err(KeyError::TooLong(key.len())),
            Self::Text => Ok(KeyBytes::new().bytes(key).as_bytes().to_vec()),
            Self::U64 => {
                let number = text().and_then(|text| text.parse().ok()).ok_or_else(no_number)?;
                Ok(KeyBytes::new().u64(number).as_bytes().to_vec())
            }
            Self::I64 => {
                let number = text().and_then(|text| text.parse().ok()).ok_or_else(no_number)?;
                Ok(KeyBytes::new().i64(number).as_bytes().to_vec())
            }
        }
    }

    /// Returns a key in the form in which a store returns it: a number without a plus or leading zeros.
    ///
    /// # Errors
    /// As [`KeyKind::encode`].
    pub(crate) fn canonical(self, key: &[u8]) -> Result<Vec<u8>, KeyError> {
        Ok(self.decode(&self.encode(key)?))
    }

    /// Decodes a key; zeros may follow its bytes.
    pub(crate) fn decode(self, encoded: &[u8]) -> Vec<u8> {
        match self {
            Self::U64 => prefix(encoded).to_string().into_bytes(),
            Self::I64 => (prefix(encoded) ^ 1 << 63).cast_signed().to_string().into_bytes(),
            Self::Text => {
                let (mut key, mut rest) = (Vec::new(), encoded);
                while let [byte, behind @ ..] = rest {
                    rest = behind;
                    // A zero of the text is followed by a one; two zeros end the text.
                    match (byte, rest.first()) {
                        (0, Some(1)) => rest = &rest[1..],
                        (0, _) => break,
                        _ => {}
                    }
                    key.push(*byte);
                }
                key
            }
        }
    }
}

/// Returns slice number `at` of a key's bytes, as the number by which a tree sorts.
pub(crate) fn slice(encoded: &[u8], at: usize) -> u64 {
    prefix(encoded.get(SLICE * at..).unwrap_or_default())
}

/// Returns the bytes after slice number `at`.
pub(crate) fn behind(encoded: &[u8], at: usize) -> &[u8] {
    encoded.get(SLICE * (at + 1)..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_decimal() {
        assert_eq!(KeyKind::U64.encode(b"258").unwrap(), [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(KeyKind::I64.encode(b"-1").unwrap(), [0x7f, 255, 255, 255, 255, 255, 255, 255]);
        for (kind, wrong) in [
            (KeyKind::U64, "-1"),
            (KeyKind::U64, "18446744073709551616"),
            (KeyKind::I64, "1.5"),
            (KeyKind::I64, ""),
        ] {
            let refused = kind.encode(wrong.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(&format!("{wrong:?}")) && refused.contains("2^6"), "{refused}");
        }
        assert!(KeyKind::U64.encode(&[0xff; 80]).is_err(), "no text");
        assert_eq!(KeyKind::Text.encode(&[0; 513]), Err(KeyError::TooLong(513)));
    }

    proptest! {
        /// Keys survive a round trip, sort like their bytes, and no two of them have the same slices.
        #[test]
        fn texts_and_numbers_come_back(a in vec(prop_oneof![0..3_u8, any::<u8>()], 0..40), b in vec(prop_oneof![0..3_u8, any::<u8>()], 0..40), n: i64) {
            let [first, second] = [&a, &b].map(|key| KeyKind::Text.encode(key).unwrap());
            prop_assert_eq!(KeyKind::Text.decode(&first), a.clone());
            let padded: Vec<u8> = (0..9).flat_map(|at| slice(&first, at).to_be_bytes()).collect();
            prop_assert_eq!(KeyKind::Text.decode(&padded), a.clone());
            prop_assert_eq!(first.cmp(&second), a.cmp(&b));
            let slices = |encoded: &[u8]| (0..12).map(|at| slice(encoded, at)).collect::<Vec<_>>();
            prop_assert_eq!(slices(&first).cmp(&slices(&second)), a.cmp(&b));
            let number = n.to_string().into_bytes();
            prop_assert_eq!(KeyKind::I64.decode(&KeyKind::I64.encode(&number).unwrap()), number);
        }
    }
}
