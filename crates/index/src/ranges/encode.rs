//! Algorithm 1 of Fat-B+Tree, by iterating over ranges instead of values: a table costs its entries, all
//! tables O(n).

use super::{Entry, Next, StageCount};
use alloc::vec;
use alloc::vec::Vec;

/// The division of a key into pieces, one per stage: 4 of 16 bits; in the paper's figure 3 of 2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) stages: usize,
    /// Bits of a piece, at most 16.
    pub(super) bits: u32,
}

impl Shape {
    /// Returns the number of bits behind the piece of `stage`.
    pub(super) fn shift(self, stage: usize) -> u32 {
        let behind = u32::try_from(self.stages - 1 - stage).expect("a few stages");
        behind * self.bits
    }

    /// Returns the largest piece.
    pub(super) const fn piece_max(self) -> u16 {
        u16::MAX >> (16 - self.bits)
    }

    /// Returns the piece of `key` that `stage` matches.
    #[expect(clippy::cast_possible_truncation, reason = "the mask leaves 16 bits at most")]
    fn piece(self, key: u64, stage: usize) -> u16 {
        (key >> self.shift(stage)) as u16 & self.piece_max()
    }

    /// Returns the last key with the same pieces as `key` up to and including that of `stage`.
    pub(super) fn slot_last(self, key: u64, stage: usize) -> u64 {
        key | ((1 << self.shift(stage)) - 1)
    }

    /// Returns the last key of the table of `stage` in which `key` is looked up.
    fn table_last(self, key: u64, stage: usize) -> u64 {
        self.slot_last(key, stage) | u64::from(self.piece_max()) << self.shift(stage)
    }
}

/// A table: the end of its entries among those of its stage, and its default result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Table {
    end: usize,
    default: Option<Next>,
}

/// The tables of a stage.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Stage {
    tables: Vec<Table>,
    entries: Vec<Entry>,
}

impl Stage {
    /// Returns the number of the next table.
    pub(super) fn next_table(&self) -> u16 {
        u16::try_from(self.tables.len())
            .expect("a stage has fewer tables than there are ranges, which are few")
    }

    pub(super) fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Closes a table of the entries pushed since the last call.
    pub(super) fn close_table(&mut self) {
        self.tables.push(Table { end: self.entries.len(), default: None });
    }

    pub(super) const fn count(&self) -> StageCount {
        StageCount { tables: self.tables.len(), entries: self.entries.len() }
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn default_result(&self, table: u16) -> Option<Next> {
        self.tables.get(usize::from(table))?.default
    }

    fn entries_of(&self, table: usize) -> &[Entry] {
        let start = table.checked_sub(1).map_or(0, |before| self.tables[before].end);
        &self.entries[start..self.tables[table].end]
    }

    /// Moves the costliest entry of each table without a default result into it; on a tie the widest, then
    /// the first.
    pub(super) fn take_defaults(&mut self) {
        let mut kept = Vec::with_capacity(self.entries.len());
        let mut tables = self.tables.clone();
        for (number, table) in tables.iter_mut().enumerate() {
            let entries = self.entries_of(number);
            let cost = |&at: &usize| (entries[at].words(), entries[at].last - entries[at].first);
            let taken = match table.default {
                Some(_) => None,
                None => (0..entries.len()).rev().max_by_key(cost),
            };
            table.default = taken.map_or(table.default, |at| Some(entries[at].next));
            kept.extend(
                entries.iter().enumerate().filter(|&(at, _)| Some(at) != taken).map(|(_, entry)| entry),
            );
            table.end = kept.len();
        }
        *self = Self { tables, entries: kept };
    }

    fn find(&self, table: u16, piece: u16) -> Option<Next> {
        let entries = self.entries_of(usize::from(table));
        let entry = entries.get(entries.partition_point(|entry| entry.last < piece));
        match entry {
            Some(entry) if entry.first <= piece => Some(entry.next),
            _ => self.default_result(table),
        }
    }
}

/// Returns the number of the range of `key`.
pub(super) fn find(stages: &[Stage], shape: Shape, key: u64) -> u16 {
    let mut table = 0;
    for (number, stage) in stages.iter().enumerate() {
        match stage.find(table, shape.piece(key, number)) {
            Some(Next::Range(range)) => return range,
            Some(Next::Table(next)) => table = next,
            None => break,
        }
    }
    unreachable!(
        "a table has an entry or a default result for every piece, and the last stage names no table"
    )
}

/// Builds the tables for ranges that end with the keys `lasts`, which ascend and end with the largest key.
pub(super) fn encode(lasts: &[u64], shape: Shape) -> Vec<Stage> {
    let mut stages = vec![Stage::default(); shape.stages];
    // The first key of each table of a stage, and the number of its range.
    let mut tables = vec![(0, 0)];
    for number in 0..shape.stages {
        let mut below = Vec::new();
        for (first, range) in tables {
            table(lasts, shape, (number, first, range), &mut stages[number], &mut below);
        }
        tables = below;
    }
    stages
}

/// Builds one table: an entry from each open slot to the end of its range, or a table below if the range ends
/// inside the slot.
fn table(
    lasts: &[u64],
    shape: Shape,
    (number, first, mut range): (usize, u64, usize),
    stage: &mut Stage,
    below: &mut Vec<(u64, usize)>,
) {
    let (shift, end) = (shape.shift(number), shape.table_last(first, number));
    let table = stage.next_table();
    // The first key without an entry; it begins a slot.
    let mut key = first;
    loop {
        let slot_last = shape.slot_last(key, number);
        let (next, last);
        if lasts[range] >= slot_last {
            // The last slot that only this range has.
            let whole = if lasts[range] >= end { end } else { slots_down(lasts[range], shift) };
            (next, last) = (Next::Range(number_of(range)), whole);
        } else {
            (next, last) = (Next::Table(number_of(below.len())), slot_last);
            below.push((key, range));
            while lasts[range] < slot_last {
                range += 1;
            }
        }
        stage.push(Entry { table, first: shape.piece(key, number), last: shape.piece(last, number), next });
        if last == end {
            break;
        }
        if lasts[range] == last {
            range += 1;
        }
        key = last + 1;
    }
    stage.close_table();
}

/// Returns the last key, at most `key`, that ends a slot. There is one: the caller's slot ends at or before
/// `key`.
const fn slots_down(key: u64, shift: u32) -> u64 {
    let mask = (1 << shift) - 1;
    if key & mask == mask { key } else { (key & !mask) - 1 }
}

pub(super) fn number_of(at: usize) -> u16 {
    u16::try_from(at).expect("ranges are few, and tables of a stage fewer")
}
