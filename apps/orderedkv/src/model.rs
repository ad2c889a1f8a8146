//! A plain model of a store's contents: keys, with the number of writes of each.

use farmem_workload::ycsb::hash;
use std::collections::BTreeMap;

/// The existing keys, each with the number of its newest value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model(BTreeMap<u64, u32>);

impl Model {
    /// Counts a write of `key` and returns the number of its value.
    pub(crate) fn write(&mut self, key: u64) -> u32 {
        let version = self.0.entry(key).or_default();
        *version += 1;
        *version
    }

    /// Returns the number of the newest value of `key`.
    pub(crate) fn newest(&self, key: u64) -> Option<u32> {
        self.0.get(&key).copied()
    }

    /// Returns the first keys from `from` on, each with the number of its value.
    pub(crate) fn from(&self, from: u64, most: usize) -> impl Iterator<Item = (u64, u32)> {
        self.0.range(from..).take(most).map(|(&key, &version)| (key, version))
    }
}

/// Returns the length of a value: between 1 and `most` when lengths are mixed, else `most`.
pub(crate) fn len_of(key: u64, version: u32, most: usize, mixed: bool) -> usize {
    let number = usize::try_from(hash(key ^ u64::from(version)) >> 8).unwrap_or(usize::MAX);
    if mixed { 1 + number % most } else { most }
}

/// Returns the bytes of a value, derived from its key and its number.
pub(crate) fn value_of(key: u64, version: u32, len: usize) -> Vec<u8> {
    let word = |at: usize| hash(key.rotate_left(17) ^ u64::from(version) ^ (at as u64) << 40).to_le_bytes();
    (0..len.div_ceil(8)).flat_map(word).take(len).collect()
}
