//! The fat root as range tables: 64-bit ranges matched by four stages of tables that match 16 bits (Fat-B+Tree III-B, algorithm 1).
//!
//! The first stage has one table, for the key's high 16 bits. An entry of it either knows the range that all its keys are in, or names a table of the
//! next stage for the next 16 bits, where several ranges share them. Tables of a stage are one table in a switch, with the number of the table in
//! front of the 16 bits.
//!
//! # How large it gets
//!
//! For n ranges, a stage has at most n - 1 tables (the first: one). The paper says at most 2n entries a stage. That does not hold for the tables as it
//! builds them: where every boundary is in a table of its own, each table of stages 2 and 3 has three entries (the range before, the table where the
//! two meet, the range behind), so that 3 (n - 1) is what holds there. It holds when each table has a *default result*
//! ([`RangeTables::with_default_results`]): one entry a table is left out, and what it said comes with the entry that names the table, as that
//! one's action data, and is the answer where the table has no entry. Then a stage has at most 2 (n - 1) entries. Tests measure both.

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

/// 64 bits, 16 a stage.
const SHAPE: Shape = Shape { stages: STAGES, bits: 16 };

/// What a stage holds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StageCount {
    /// Tables of 16 bits.
    pub tables: usize,
    /// Entries of all of them.
    pub entries: usize,
}

/// An entry of a stage: 16 bits of a key in `first..=last` in a table of that stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The table, counted from 0 in its stage.
    pub table: u16,
    /// The smallest 16 bits that match.
    pub first: u16,
    /// The largest.
    pub last: u16,
    /// What follows.
    pub next: Next,
}

impl Entry {
    /// Words of ternary memory that it takes, where a word matches any set of values of each nibble of the 16 bits: 1 to 7.
    #[must_use]
    pub fn words(&self) -> usize {
        range_words(self.first, self.last, 4)
    }
}

/// What an entry leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The key is in the range of this number.
    Range(u16),
    /// The next 16 bits are looked up in this table of the next stage.
    Table(u16),
}

/// Why ranges are no fat root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeError {
    /// There is none.
    Empty,
    /// There are more than [`RANGES_MAX`].
    TooMany {
        /// So many.
        have: usize,
    },
    /// The first key of a range is behind its last.
    Inverted {
        /// The range's place.
        at: usize,
    },
    /// A range begins before the one in front of it has ended.
    Overlap {
        /// The range's place.
        at: usize,
    },
    /// Keys between a range and the one in front of it, or before the first, or behind the last, are in none.
    Gap {
        /// The place of the range behind the gap; the number of ranges for a gap behind the last.
        at: usize,
    },
}

/// A fat root as a switch holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeTables {
    stages: Vec<Stage>,
    children: Vec<Child>,
}

impl RangeTables {
    /// The tables of `ranges`, in time that grows with the number of ranges.
    ///
    /// # Errors
    /// [`RangeError`] when they do not ascend, overlap, leave keys out, are none or too many.
    pub fn new(ranges: &[Range]) -> Result<Self, RangeError> {
        Self::made_by(encode::encode, ranges)
    }

    /// The same tables by algorithm 1 as it is printed, which looks at each of the 2^16 values of each table: for comparison.
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

    /// The same fat root with an entry less in each table: the one that takes the most words of ternary memory ([`Entry::words`]), of equals
    /// the widest, becomes the table's default result.
    #[must_use]
    pub fn with_default_results(mut self) -> Self {
        self.stages.iter_mut().for_each(Stage::take_defaults);
        self
    }

    /// The node below which `key` is.
    #[must_use]
    pub fn find(&self, key: u64) -> Child {
        self.children[usize::from(self.range(key))]
    }

    /// The number of the range that `key` is in.
    #[must_use]
    pub fn range(&self, key: u64) -> u16 {
        encode::find(&self.stages, SHAPE, key)
    }

    /// What the stages hold.
    #[must_use]
    pub fn stages(&self) -> [StageCount; STAGES] {
        core::array::from_fn(|stage| self.stages[stage].count())
    }

    /// The entries of a stage (counted from 0), by table and in ascending order; none of a stage that does not exist.
    #[must_use]
    pub fn entries(&self, stage: usize) -> &[Entry] {
        self.stages.get(stage).map_or(&[], Stage::entries)
    }

    /// The default result of a table of a stage, if it has one.
    #[must_use]
    pub fn default_result(&self, stage: usize, table: u16) -> Option<Next> {
        self.stages.get(stage)?.default_result(table)
    }

    /// The nodes that the ranges lead to, in the order of [`Next::Range`].
    #[must_use]
    pub fn children(&self) -> &[Child] {
        &self.children
    }
}

/// The ranges cover every key once.
fn check(ranges: &[Range]) -> Result<(), RangeError> {
    if ranges.len() > RANGES_MAX {
        return Err(RangeError::TooMany { have: ranges.len() });
    }
    // The first key that no range in front has; `None` behind 2^64 - 1.
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

/// Words of ternary memory that match the pieces `first..=last` of `nibbles` nibbles, when a word matches any set of values of each nibble: one for
/// what is whole from some nibble on, and on either side one for each nibble behind that.
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
            Self::Empty => f.write_str("there is no range; an empty tree has one, with its root"),
            Self::TooMany { have } => {
                write!(f, "{have} ranges are too many, a fat root has at most {RANGES_MAX}")
            }
            Self::Inverted { at } => write!(f, "range {at} begins behind its end"),
            Self::Overlap { at } => write!(f, "range {at} overlaps the one in front of it"),
            Self::Gap { at } => write!(f, "the keys in front of range {at} are in no range"),
        }
    }
}

impl core::error::Error for RangeError {}
