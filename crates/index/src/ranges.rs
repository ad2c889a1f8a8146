//! The fat root as range tables: 64-bit ranges matched by four stages of 16-bit tables (Fat-B+Tree III-B,
//! algorithm 1).
//!
//! The first stage has one table, for the key's high 16 bits. An entry either has the range of all its keys,
//! or, if several ranges share them, names a table of the next stage for the next 16 bits. In a switch, all
//! tables of a stage are one table, with the table's number in front of the 16 bits.
//!
//! # Size
//!
//! For n ranges, a stage has at most n - 1 tables (the first: one). The paper claims at most 2n entries a
//! stage. This does not hold for its tables: if every boundary is in a table of its own, each table of stages
//! 2 and 3 has three entries (the range before, the table with the boundary, the range behind). The bound
//! there is 3 (n - 1).
//!
//! The claim holds with *default results* ([`RangeTables::with_default_results`]). Each table omits one
//! entry, and the entry that names the table has the omitted result as its action data. The result applies
//! where the table has no entry. Then a stage has at most 2 (n - 1) entries. Tests measure both.

mod encode;
mod printed;
#[cfg(test)]
mod tests;

use crate::{Child, RANGES_MAX, Range};
use alloc::vec::Vec;
use core::fmt;
use encode::{Shape, Stage};

/// Stages of a fat root's range tables.
pub const STAGES: usize = 4;

/// A key has 64 bits, 16 per stage.
const SHAPE: Shape = Shape { stages: STAGES, bits: 16 };

/// The size of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StageCount {
    /// Number of tables of 16 bits.
    pub tables: usize,
    /// Number of entries of all tables.
    pub entries: usize,
}

/// An entry of a stage: it matches 16 bits of a key in `first..=last` in a table of the stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The table, counted from 0 in its stage.
    pub table: u16,
    /// The smallest 16 bits that match.
    pub first: u16,
    /// The largest 16 bits that match.
    pub last: u16,
    /// Result of the match.
    pub next: Next,
}

impl Entry {
    /// Returns the number of TCAM words, where a word matches any set of values of each nibble of the 16
    /// bits: 1 to 7.
    #[must_use]
    pub fn words(&self) -> usize {
        range_words(self.first, self.last, 4)
    }
}

/// The result of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The key is in the range with this number.
    Range(u16),
    /// The next 16 bits are looked up in this table of the next stage.
    Table(u16),
}

/// The reason why ranges are not a valid fat root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeError {
    /// There are no ranges.
    Empty,
    /// There are more ranges than [`RANGES_MAX`].
    TooMany {
        /// Number of ranges.
        have: usize,
    },
    /// The first key of a range is behind its last.
    Inverted {
        /// Index of the range.
        at: usize,
    },
    /// A range begins before the previous one has ended.
    Overlap {
        /// Index of the range.
        at: usize,
    },
    /// Keys between a range and the previous one, before the first, or behind the last range are in none.
    Gap {
        /// Index of the range behind the gap; the number of ranges for a gap behind the last.
        at: usize,
    },
}

/// The range tables of a fat root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeTables {
    stages: Vec<Stage>,
    children: Vec<Child>,
}

impl RangeTables {
    /// Creates the tables of `ranges`, in time linear in the number of ranges.
    ///
    /// # Errors
    /// [`RangeError`] if the ranges do not ascend, overlap, leave gaps, or are none or too many.
    pub fn new(ranges: &[Range]) -> Result<Self, RangeError> {
        Self::made_by(encode::encode, ranges)
    }

    /// Creates the same tables by algorithm 1 as printed, which visits each of the 2^16 values of each table:
    /// for comparison.
    ///
    /// # Errors
    /// As [`RangeTables::new`].
    pub fn as_printed(ranges: &[Range]) -> Result<Self, RangeError> {
        Self::made_by(printed::encode, ranges)
    }

    fn made_by(encode: fn(&[u64], Shape) -> Vec<Stage>, ranges: &[Range]) -> Result<Self, RangeError> {
        check(ranges)?;
        let lasts: Vec<u64> = ranges.iter().map(|range| range.last).collect();
        let children = ranges.iter().map(|range| range.child).collect();
        Ok(Self { stages: encode(&lasts, SHAPE), children })
    }

    /// Moves one entry of each table into its default result: the one with the most TCAM words
    /// ([`Entry::words`]); on a tie, the widest.
    #[must_use]
    pub fn with_default_results(mut self) -> Self {
        self.stages.iter_mut().for_each(Stage::take_defaults);
        self
    }

    /// Returns the child that leads to `key`.
    #[must_use]
    pub fn find(&self, key: u64) -> Child {
        self.children[usize::from(self.range(key))]
    }

    /// Returns the number of the range of `key`.
    #[must_use]
    pub fn range(&self, key: u64) -> u16 {
        encode::find(&self.stages, SHAPE, key)
    }

    /// Returns the size of each stage.
    #[must_use]
    pub fn stages(&self) -> [StageCount; STAGES] {
        core::array::from_fn(|stage| self.stages[stage].count())
    }

    /// Returns the entries of a stage (counted from 0), by table and ascending; none for a stage that does
    /// not exist.
    #[must_use]
    pub fn entries(&self, stage: usize) -> &[Entry] {
        self.stages.get(stage).map_or(&[], Stage::entries)
    }

    /// Returns the default result of a table of a stage, if it has one.
    #[must_use]
    pub fn default_result(&self, stage: usize, table: u16) -> Option<Next> {
        self.stages.get(stage)?.default_result(table)
    }

    /// Returns the children of the ranges, in the order of [`Next::Range`].
    #[must_use]
    pub fn children(&self) -> &[Child] {
        &self.children
    }
}

/// Checks that the ranges cover every key once.
fn check(ranges: &[Range]) -> Result<(), RangeError> {
    if ranges.len() > RANGES_MAX {
        return Err(RangeError::TooMany { have: ranges.len() });
    }
    // The first key behind all ranges so far; `None` behind 2^64 - 1.
    let mut expected = Some(0);
    for (at, range) in ranges.iter().enumerate() {
        if range.first > range.last {
            return Err(RangeError::Inverted { at });
        }
        match expected {
            Some(key) if range.first == key => {}
            Some(key) if range.first > key => return Err(RangeError::Gap { at }),
            _ => return Err(RangeError::Overlap { at }),
        }
        expected = range.last.checked_add(1);
    }
    match expected {
        _ if ranges.is_empty() => Err(RangeError::Empty),
        Some(_) => Err(RangeError::Gap { at: ranges.len() }),
        None => Ok(()),
    }
}

/// Returns the TCAM words that match the pieces `first..=last` of `nibbles` nibbles, where a word matches any
/// set of values of each nibble. One word for the part that is whole from some nibble on, and one on either
/// side for each nibble behind it.
fn range_words(first: u16, last: u16, nibbles: u32) -> usize {
    if nibbles <= 1 {
        return 1;
    }
    let shift = 4 * (nibbles - 1);
    let mask = (1 << shift) - 1;
    let (low, high) = (first >> shift, last >> shift);
    let (from, to) = (first & mask, last & mask);
    if low == high {
        return if (from, to) == (0, mask) { 1 } else { range_words(from, to, nibbles - 1) };
    }
    let left = if from == 0 { 0 } else { range_words(from, mask, nibbles - 1) };
    let right = if to == mask { 0 } else { range_words(0, to, nibbles - 1) };
    // Values of this nibble that are whole.
    let whole = high + u16::from(right == 0) > low + u16::from(left > 0);
    left + right + usize::from(whole)
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => f.write_str("the fat root has no range; an empty tree has one, to its root"),
            Self::TooMany { have } => {
                write!(f, "the fat root has {have} ranges, more than {RANGES_MAX}")
            }
            Self::Inverted { at } => write!(f, "range {at} begins behind its end"),
            Self::Overlap { at } => write!(f, "range {at} overlaps the previous one"),
            Self::Gap { at } => write!(f, "the keys before range {at} are in no range"),
        }
    }
}

impl core::error::Error for RangeError {}
