//! The bytes under a memory node's regions, by offset.
//!
//! [`Store`] has two implementations: [`VecStore`] here, pure, for simulations and racks in one process; and
//! a mapped one with real atomics in the driver crate. A store has no addresses, domains or permissions. The
//! regions check every access first, so an access beyond the store is a broken invariant and panics.

use alloc::vec;
use alloc::vec::Vec;

/// Bytes of an atomic's word; also its alignment.
pub const WORD_LEN: u64 = 8;

/// A flat run of bytes with two atomics, initially zero.
///
/// Words are little-endian in memory, as on every host that farmem supports: atomics from the network and
/// atomics of a local reader agree on the value.
pub trait Store {
    /// Returns the length in bytes. The length never changes.
    fn len(&self) -> u64;

    /// Returns true if there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the `len` bytes from `offset` to `out`.
    ///
    /// # Panics
    /// If the range exceeds the store.
    fn read(&self, offset: u64, len: u32, out: &mut Vec<u8>);

    /// Fills `window` with the bytes from `offset`.
    ///
    /// # Panics
    /// If the range exceeds the store.
    fn load(&self, offset: u64, window: &mut [u8]);

    /// Returns the `len` bytes from `offset` in place: no write happens while the store is borrowed.
    ///
    /// # Panics
    /// If the range exceeds the store.
    fn window(&self, offset: u64, len: u32) -> &[u8];

    /// Hints that the `len` bytes from `offset` will be loaded soon. Has no visible effect.
    fn prefetch(&self, offset: u64, len: u32) {
        let _ = (offset, len);
    }

    /// Replaces the bytes from `offset` by `data`.
    ///
    /// # Panics
    /// If the range exceeds the store.
    fn write(&mut self, offset: u64, data: &[u8]);

    /// Replaces the word at `offset` by `swap` if it equals `compare`, atomically; returns the old value.
    ///
    /// # Panics
    /// If the word exceeds the store or `offset` is not a multiple of [`WORD_LEN`].
    fn cmp_swap(&mut self, offset: u64, compare: u64, swap: u64) -> u64;

    /// Adds `add` to the word at `offset`, atomically and wrapping; returns the old value.
    ///
    /// # Panics
    /// If the word exceeds the store or `offset` is not a multiple of [`WORD_LEN`].
    fn fetch_add(&mut self, offset: u64, add: u64) -> u64;

    /// Sets the `len` bytes from `offset` to zero, and returns their memory to the system where possible.
    ///
    /// # Panics
    /// If the range exceeds the store.
    fn discard(&mut self, offset: u64, len: u64);
}

/// A store in a plain vector. Only its owner accesses the bytes, so every access is atomic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VecStore {
    bytes: Vec<u8>,
}

impl VecStore {
    /// Creates a store of `len` zero bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { bytes: vec![0; len] }
    }

    /// Returns all bytes, for checkers.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn span(&self, offset: u64, len: u64) -> core::ops::Range<usize> {
        let end = offset.checked_add(len).expect("an access inside the store");
        assert!(end <= self.len(), "{len} bytes at {offset} leave a store of {} bytes", self.len());
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most the length of a vector, by the assertion"
        )]
        let span = offset as usize..end as usize;
        span
    }

    /// Replaces the word at `offset` by the result of `change`; returns the old value.
    fn exchange(&mut self, offset: u64, change: impl FnOnce(u64) -> u64) -> u64 {
        assert!(offset.is_multiple_of(WORD_LEN), "a word's offset is a multiple of {WORD_LEN}, not {offset}");
        let span = self.span(offset, WORD_LEN);
        let bytes = &mut self.bytes[span];
        let old = u64::from_le_bytes(bytes.try_into().expect("a word has 8 bytes"));
        bytes.copy_from_slice(&change(old).to_le_bytes());
        old
    }
}

impl Store for VecStore {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, offset: u64, len: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes[self.span(offset, u64::from(len))]);
    }

    fn load(&self, offset: u64, window: &mut [u8]) {
        window.copy_from_slice(&self.bytes[self.span(offset, window.len() as u64)]);
    }

    fn window(&self, offset: u64, len: u32) -> &[u8] {
        &self.bytes[self.span(offset, u64::from(len))]
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let span = self.span(offset, data.len() as u64);
        self.bytes[span].copy_from_slice(data);
    }

    fn cmp_swap(&mut self, offset: u64, compare: u64, swap: u64) -> u64 {
        self.exchange(offset, |old| if old == compare { swap } else { old })
    }

    fn fetch_add(&mut self, offset: u64, add: u64) -> u64 {
        self.exchange(offset, |old| old.wrapping_add(add))
    }

    fn discard(&mut self, offset: u64, len: u64) {
        let span = self.span(offset, len);
        self.bytes[span].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written bytes are read back by every way of reading, and the bytes around them stay zero.
    #[test]
    fn a_write_is_read_back_and_touches_nothing_else() {
        let mut store = VecStore::new(32);
        store.write(8, &[1, 2, 3]);
        let mut out = vec![0xaa];
        store.read(7, 5, &mut out);
        assert_eq!(out, [0xaa, 0, 1, 2, 3, 0], "read appends");
        let mut window = [0xff; 5];
        store.load(7, &mut window);
        assert_eq!(window, [0, 1, 2, 3, 0]);
        assert_eq!(store.window(7, 5), window);
        assert_eq!(store.bytes().iter().filter(|&&b| b != 0).count(), 3);
    }

    /// A swap happens only if the word has the expected value; the old word is returned either way.
    #[test]
    fn compare_and_swap_swaps_only_on_a_match() {
        let mut store = VecStore::new(16);
        assert_eq!(store.cmp_swap(8, 0, 7), 0);
        assert_eq!(store.cmp_swap(8, 0, 9), 7, "no match");
        assert_eq!(store.cmp_swap(8, 7, 9), 7);
        assert_eq!(store.bytes()[8..], 9_u64.to_le_bytes());
    }

    /// Words are little-endian and additions wrap without a carry into the neighbour.
    #[test]
    fn fetch_and_add_wraps_inside_its_word() {
        let mut store = VecStore::new(24);
        store.write(8, &u64::MAX.to_le_bytes());
        assert_eq!(store.fetch_add(8, 2), u64::MAX);
        assert_eq!(store.bytes()[8..16], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(store.bytes()[16..], [0; 8]);
    }

    /// A discarded run is zero; its neighbours are not.
    #[test]
    fn discard_makes_exactly_its_bytes_zero() {
        let mut store = VecStore::new(16);
        store.write(0, &[0xff; 16]);
        store.discard(3, 9);
        assert_eq!(store.bytes()[..3], [0xff; 3]);
        assert_eq!(store.bytes()[3..12], [0; 9]);
        assert_eq!(store.bytes()[12..], [0xff; 4]);
    }

    /// The regions must never pass such an access; if they do, the failure must not be silent.
    #[test]
    #[should_panic(expected = "leave a store of 16 bytes")]
    fn an_access_past_the_end_is_a_broken_invariant() {
        VecStore::new(16).write(15, &[1, 2]);
    }

    /// A misaligned atomic must not be silent either.
    #[test]
    #[should_panic(expected = "a multiple of 8")]
    fn a_misaligned_atomic_is_a_broken_invariant() {
        let _ = VecStore::new(16).fetch_add(4, 1);
    }
}
