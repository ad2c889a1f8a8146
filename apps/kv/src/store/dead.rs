//! Which records of a far chunk are not wanted any more, in a few bits: who compacts the chunk looks up the others alone.
//!
//! Key type: [`Dead`]. A bit stands for a stretch of the chunk in which one record begins at most. Where records are so short that the bits would be many there are none, and each record is
//! looked up.

/// Bytes of the shortest record of a chunk that has bits: with 2,048 of them at most, a thousandth of its bytes.
const LEN_MIN: usize = 128;

/// Bits of one chunk.
#[derive(Clone, Default, Debug)]
pub(super) struct Dead {
    bits: Box<[u64]>,
    shift: u32,
}

impl Dead {
    /// No record of a chunk of `len` bytes is known to be unwanted; the shortest one has `least` bytes.
    pub(super) fn new(len: usize, least: usize) -> Self {
        if least < LEN_MIN {
            return Self::default();
        }
        let shift = least.ilog2();
        let words = (len >> shift) / 64 + 1;
        Self { bits: vec![0; words].into(), shift }
    }

    /// The record that begins at `offset` is not wanted any more.
    pub(super) fn note(&mut self, offset: usize) {
        let bit = offset >> self.shift;
        if let Some(word) = self.bits.get_mut(bit / 64) {
            *word |= 1 << (bit % 64);
        }
    }

    /// True of a record that is known to be unwanted.
    pub(super) fn has(&self, offset: usize) -> bool {
        let bit = offset >> self.shift;
        self.bits.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::CHUNK;

    /// Records of 128 to 400 bytes: each has a bit of its own, and all of them a thousandth of the chunk. Of shorter ones nothing is known.
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
