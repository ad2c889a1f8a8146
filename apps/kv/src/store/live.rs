//! Collections in use, and large values: values that are not single records.

use super::index::Name;
use super::place::LocationWord;
use super::value::{Text, Value};

/// A value that is not a single record.
#[derive(Debug)]
pub(super) enum LiveValue {
    Collection(Value),
    /// The numbers of a long value's pieces, and its length.
    Pieces(Vec<usize>, usize),
}

/// A value in use.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) value: LiveValue,
    pub(super) key: Text,
    pub(super) space: u8,
    pub(super) name: Name,
    /// Bytes in local memory, as counted last.
    pub(super) bytes: usize,
    /// The bytes and the number of elements at the last full count. Additions since then are added to
    /// `bytes`.
    counted: (usize, usize),
    /// The place of a record with the same value, if there is one.
    pub(super) clean: Option<LocationWord>,
    /// The value was used since the search for idle collections passed.
    pub(super) used: bool,
    /// Its database was flushed. No entry of the index leads here.
    pub(super) is_flushed: bool,
}

impl Live {
    pub(super) fn new(value: LiveValue, key: &[u8], space: u8, name: Name) -> Self {
        let mut live = Self {
            value,
            key: key.into(),
            space,
            name,
            bytes: 0,
            counted: (0, 0),
            clean: None,
            used: true,
            is_flushed: false,
        };
        live.count();
        live
    }

    /// Notes that all keys of a space were flushed: the collection waits to be freed.
    pub(super) fn flush(&mut self, space: u8) {
        self.is_flushed |= self.space == space;
    }

    pub(super) fn count(&mut self) {
        let (bytes, len) = match &self.value {
            LiveValue::Collection(value) => (value.bytes(), value.len()),
            LiveValue::Pieces(pieces, _) => (pieces.len() * 8, 0),
        };
        self.bytes = bytes + self.key.len() + 96;
        self.counted = (self.bytes, len);
    }

    /// Counts a change that added at most `added` bytes. Counts all elements if they are few, or if much was
    /// added. So the count is never too small, except after removals.
    pub(super) fn count_change(&mut self, added: usize) {
        let LiveValue::Collection(value) = &self.value else { return };
        self.bytes += added;
        let (bytes, len) = self.counted;
        if value.len() <= 16 || self.bytes > bytes + bytes / 4 || value.len().abs_diff(len) > len / 4 {
            self.count();
        }
    }
}
