//! Encodings of keys other than 64-bit numbers, as bytes in the same order: text, byte strings, signed
//! numbers, and tuples of them.
//!
//! An index compares 64 bits. A key of another kind is encoded here ([`KeyBytes`]); the first eight bytes are
//! the number that orders the tree ([`prefix`]). Keys with the same first eight bytes have the same number:
//! the caller stores the rest beside the value, and compares it.
//!
//! A number is encoded from high to low, with the sign bit of a signed one inverted. Text and byte strings
//! end with two zero bytes, and a zero byte inside is followed by a one. So no encoding is a prefix of
//! another, and later parts do not change the order.
//!
//! Existing crates do not fit: they need the standard library (storekey 0.11 writes to `std::io`,
//! memcomparable 0.2 to `bytes` through serde), and they encode whole types, while the first eight bytes are
//! laid out by hand here.

use alloc::vec::Vec;

/// Follows a zero byte inside a text.
const INSIDE: u8 = 1;
/// Terminator of a text.
const END: [u8; 2] = [0, 0];

/// A key of several parts. Keys with the same kinds of parts are ordered by their parts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct KeyBytes(Vec<u8>);

impl KeyBytes {
    /// Creates a key without parts.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends a number of eight bytes.
    #[must_use]
    pub fn u64(self, part: u64) -> Self {
        self.with(&part.to_be_bytes())
    }

    /// Appends a signed number of eight bytes.
    #[must_use]
    pub fn i64(self, part: i64) -> Self {
        self.u64(part.cast_unsigned() ^ 1 << 63)
    }

    /// Appends a byte string.
    #[must_use]
    pub fn bytes(mut self, part: &[u8]) -> Self {
        for &byte in part {
            self.0.push(byte);
            if byte == 0 {
                self.0.push(INSIDE);
            }
        }
        self.with(&END)
    }

    fn with(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the number that an index compares: [`prefix`] of the bytes.
    #[must_use]
    pub fn prefix(&self) -> u64 {
        prefix(&self.0)
    }
}

/// Returns the first eight bytes as a number, padded with zeros. The number is monotonic in the byte strings.
///
/// 2^64 - 1, of eight bytes ff, is no key of the trees in `crates/structures`. Text never begins with ff.
#[must_use]
pub fn prefix(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_be_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn bytes_are_as_documented() {
        let key = KeyBytes::new().bytes(b"a\0b").u64(0x102);
        assert_eq!(key.as_bytes(), [b'a', 0, 1, b'b', 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(key.prefix(), u64::from_be_bytes([b'a', 0, 1, b'b', 0, 0, 0, 0]));
        assert_eq!(KeyBytes::new().i64(-1).as_bytes(), [0x7f, 255, 255, 255, 255, 255, 255, 255]);
        assert_eq!((prefix(&[]), prefix(&[1]), prefix(&[255; 9])), (0, 1 << 56, u64::MAX));
        assert_eq!(KeyBytes::new().u64(0x59a4).prefix(), 0x59a4);
    }

    /// Generates texts that are prefixes of each other, with zeros and with escaped zeros.
    fn part() -> impl Strategy<Value = Vec<u8>> {
        vec(prop_oneof![4 => 0..3_u8, 1 => Just(255), 1 => any::<u8>()], 0..6)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]
        #[test]
        fn the_order_is_that_of_the_parts(
            a in (part(), any::<i64>(), part(), any::<u64>()),
            b in (part(), any::<i64>(), part(), any::<u64>()),
            same in 0..4_usize,
        ) {
            // Often equal up to some part.
            let b = (
                if same > 0 { a.0.clone() } else { b.0 },
                if same > 1 { a.1 } else { b.1 },
                if same > 2 { a.2.clone() } else { b.2 },
                b.3,
            );
            let key = |(text, number, bytes, last): &(Vec<u8>, i64, Vec<u8>, u64)| {
                KeyBytes::new().bytes(text).i64(*number).bytes(bytes).u64(*last)
            };
            let (first, second) = (key(&a), key(&b));
            prop_assert_eq!(first.cmp(&second), a.cmp(&b));
            let prefixes = first.prefix().cmp(&second.prefix());
            prop_assert!(prefixes.is_eq() || prefixes == a.cmp(&b));
        }
    }
}
