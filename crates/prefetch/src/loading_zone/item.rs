//! Items on their way into a zone, and how their values lie.

use super::atomic::AtomicU64;
use super::ring::{WORD, store_at};
use farmem_client::Lines;

/// An item on its way into the zone (PD3 6.2, with the record's version).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item<'a> {
    /// The producer's own name for the item, by which it reports the item's fate. No consumer sees it.
    pub tag: u64,
    /// Operation and number of the request that brought it, 2 and 14 bits, as they came.
    pub id: u16,
    /// Its key, 1 to [`KEY_MAX`](super::KEY_MAX) bytes.
    pub key: &'a [u8],
    /// Its stamp (PROTOCOL 19.4): by it consumers know whether `data` may be used.
    pub version: u64,
    /// Its value, at most [`VALUE_MAX`](super::VALUE_MAX) bytes.
    pub data: &'a [u8],
    /// How the value lies in `data`, where that has more than the value.
    pub lines: Option<Lines>,
}

impl Item<'_> {
    /// Bytes of its value.
    pub(crate) fn size(&self) -> usize {
        self.lines.map_or(self.data.len(), |lines| lines.len)
    }

    /// True when `data` has the whole value, and it can be put where it goes word by word.
    pub(crate) fn is_right(&self) -> bool {
        self.lines.is_none_or(|lines| lines.is_right(self.data))
    }

    /// Stores its value into words from `at` on, and goes on at the first where they end.
    pub(crate) fn store_value(&self, words: &[AtomicU64], mut at: u64) {
        let Some(lines) = self.lines else { return store_at(words, at, self.data) };
        // All parts but the last are whole words.
        for part in lines.parts(self.data) {
            store_at(words, at, part);
            at = at.wrapping_add(part.len().div_ceil(WORD) as u64);
        }
    }
}
