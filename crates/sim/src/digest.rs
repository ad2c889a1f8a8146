//! A running 64-bit hash of every event: the same seed must give the same digest.

/// The hash. Not cryptographic: it distinguishes two runs and resists no attacker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Adds a number.
    pub fn number(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    /// Adds bytes and their length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.number(u64::from_le_bytes(word.try_into().expect("chunks of eight")));
        }
        for &byte in words.remainder() {
            self.number(u64::from(byte));
        }
    }

    /// Returns the hash so far.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Digest;

    /// Runs that differ in one byte, in the split of the bytes, or in the order have different digests.
    #[test]
    fn small_differences_show() {
        let digest = |parts: &[&[u8]]| {
            let mut d = Digest::default();
            parts.iter().for_each(|part| d.bytes(part));
            d.get()
        };
        assert_eq!(digest(&[b"one", b"two"]), digest(&[b"one", b"two"]));
        assert_ne!(digest(&[b"one", b"two"]), digest(&[b"two", b"one"]));
        assert_ne!(digest(&[b"one", b"two"]), digest(&[b"on", b"etwo"]));
        assert_ne!(digest(&[b"0123456789"]), digest(&[b"0123456788"]));
    }
}
