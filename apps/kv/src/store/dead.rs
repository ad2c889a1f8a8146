//! The dead records of a far chunk, in a few bits, so that compaction looks up only the others.
//!
//! Key type: [`Dead`]. A bit stands for a stretch of the chunk in which at most one record begins. A chunk of
//! very short records would need many bits, so it has none, and compaction looks up each of its records.

/// Bytes of the shortest record in a chunk that has bits. Such a chunk has 2,048 bits at most, a thousandth
/// of its bytes.
const LEN_MIN: usize = 128;

/// The bits of one chunk.
#[derive(Clone, Default, Debug)]
pub(super) struct Dead {
    bits: Box<[u64]>,
    shift: u32,
}

impl Dead {
    /// Returns the bits of a chunk of `len` bytes without dead records. Its shortest record has `least`
    /// bytes.
    pub(super) fn new(len: usize, least: usize) -> Self {
        if least < LEN_MIN {
            return Self::default();
        }
        let shift = least.ilog2();
        let words = (len >> shift) / 64 + 1;
        Self { bits: vec![0; words].into(), shift }
    }

    /// Marks the record at `offset` as dead.
    pub(super) fn note(&mut self, offset: usize) {
        let bit = offset >> self.shift;
        if let Some(word) = self.bits.get_mut(bit / 64) {
            *word |= 1 << (bit % 64);
        }
    }

    /// Returns whether the record at `offset` is known to be dead.
    pub(super) fn has(&self, offset: usize) -> bool {
        let bit = offset >> self.shift;
        self.bits.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::CHUNK;

    /// Records of 128 to 400 bytes each have a bit of their own, and all bits take a thousandth of the chunk.
    /// Shorter records have none.
    #[test]
    fn each_record_has_a_bit() {
        let offsets: Vec<usize> = (0..)
            .scan(0, |at, n: usize| Some(std::mem::replace(at, *at + 128 + 8 * (n % 34))))
            .take_while(|&at| at < CHUNK)
            .collect();
        let mut dead = Dead::new(CHUNK, 128);
        assert_eq!(dead.bits.len() * 8, 264);
        offsets.iter().step_by(3).for_each(|&offset| dead.note(offset));
        for (number, &offset) in offsets.iter().enumerate() {
            assert_eq!(dead.has(offset), number % 3 == 0, "{offset}");
        }
        let mut unknown = Dead::new(CHUNK, 120);
        unknown.note(0);
        assert!(!unknown.has(0));
    }
}
