//! Items to be put into a zone, and the layout of their values.

use super::atomic::AtomicU64;
use super::ring::{WORD, store_at};
use farmem_client::Lines;

/// An item to be put into the zone (PD3 6.2, with the record's version).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item<'a> {
    /// The producer's name for the item, by which it reports the item's fate. No consumer sees it.
    pub tag: u64,
    /// Operation and number of the request that fetched it, 2 and 14 bits, unchanged.
    pub id: u16,
    /// The key, 1 to [`KEY_MAX`](super::KEY_MAX) bytes.
    pub key: &'a [u8],
    /// The stamp (PROTOCOL 19.4), which decides whether consumers may use `data`.
    pub version: u64,
    /// The value, at most [`VALUE_MAX`](super::VALUE_MAX) bytes.
    pub data: &'a [u8],
    /// The layout of the value in `data`, if `data` has more than the value.
    pub lines: Option<Lines>,
}

impl Item<'_> {
    /// Returns the length of the value in bytes.
    pub(crate) fn size(&self) -> usize {
        self.lines.map_or(self.data.len(), |lines| lines.len)
    }

    /// Returns true if `data` has the whole value in parts of whole words.
    pub(crate) fn is_right(&self) -> bool {
        self.lines.is_none_or(|lines| lines.is_right(self.data))
    }

    /// Stores the value into words from `at` on, with wrap-around.
    pub(crate) fn store_value(&self, words: &[AtomicU64], mut at: u64) {
        let Some(lines) = self.lines else { return store_at(words, at, self.data) };
        // All parts except the last are whole words.
        for part in lines.parts(self.data) {
            store_at(words, at, part);
            at = at.wrapping_add(part.len().div_ceil(WORD) as u64);
        }
    }
}
