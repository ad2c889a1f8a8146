//! Generator of inputs near the corpus: a few small changes each, sometimes only noise.

use farmem_machine::Rng;

/// Maximum length of an input, in bytes: more than a jumbo frame.
const LEN_MAX: usize = 8192;
/// Maximum number of changes to one input.
const CHANGES_MAX: u32 = 6;
/// Boundary values of formats.
const SEAMS: [u64; 10] = [0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, u64::MAX];

/// Generator of a sequence of inputs.
pub(crate) struct Mutator<'a> {
    corpus: &'a [Vec<u8>],
    rng: Rng,
    input: Vec<u8>,
}

impl<'a> Mutator<'a> {
    /// Returns a generator of mutations of `corpus`, which must not be empty.
    pub(crate) fn new(corpus: &'a [Vec<u8>], rng: Rng) -> Self {
        Self { corpus, rng, input: Vec::new() }
    }

    /// Returns the next input.
    pub(crate) fn next_input(&mut self) -> &[u8] {
        self.input.clear();
        if self.rng.chance(1, 16) {
            let len = self.below(256);
            self.noise(len);
        } else {
            let base = self.pick();
            self.input.extend_from_slice(base);
        }
        for _ in 0..=self.rng.below(CHANGES_MAX) {
            self.change();
        }
        self.input.truncate(LEN_MAX);
        &self.input
    }

    fn change(&mut self) {
        let at = self.below(self.input.len() + 1);
        match self.rng.below(8) {
            0 | 1 => {
                let bit = 1 << self.rng.below(8);
                if let Some(byte) = self.input.get_mut(at) {
                    *byte ^= bit;
                }
            }
            2 => {
                let [value, ..] = self.rng.next_u32().to_le_bytes();
                if let Some(byte) = self.input.get_mut(at) {
                    *byte = value;
                }
            }
            3 => self.seam(at),
            4 => self.input.truncate(at),
            5 => {
                let len = self.below(16);
                self.noise(len);
            }
            6 => {
                let end = self.input.len().min(at + self.below(16));
                self.input.drain(at..end);
            }
            _ => {
                let other = self.pick();
                let from = self.below(other.len() + 1);
                self.input.truncate(at);
                self.input.extend_from_slice(&other[from..]);
            }
        }
    }

    /// Overwrites bytes with a big-endian boundary value of 1, 2, 4 or 8 bytes.
    fn seam(&mut self, at: usize) {
        let value = SEAMS[self.below(SEAMS.len())].to_be_bytes();
        let size = 1 << self.rng.below(4);
        if let Some(field) = self.input.get_mut(at..at + size) {
            field.copy_from_slice(&value[8 - size..]);
        }
    }

    fn noise(&mut self, len: usize) {
        for _ in 0..len {
            let [byte, ..] = self.rng.next_u32().to_le_bytes();
            self.input.push(byte);
        }
    }

    fn pick(&mut self) -> &'a [u8] {
        let index = self.below(self.corpus.len());
        &self.corpus[index]
    }

    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(u32::try_from(bound).expect("inputs are short")) as usize
    }
}
