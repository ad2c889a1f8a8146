//! The cost of an index in a switch, stage by stage, against a budget (Fat-B+Tree III-A, IV-A).
//!
//! Each match-action stage of a switch has a number of tables and of blocks of ternary memory (TCAM) and
//! exact memory (SRAM). The parts of an index take six stages each, in the paper's order: the fat root, then
//! the sets. So a switch of 12 stages has a fat root and a set, or two sets.
//!
//! # Layout of the stages
//!
//! The paper lists the tables and says that six stages suffice. The assignment of tables to stages is this
//! project's.
//!
//! | stage | of a fat root | of a set |
//! |---|---|---|
//! | 1 | range tables of key\[63:48\] | `get_pivot` 0 to 3 |
//! | 2 | of key\[47:32\] | `get_pivot` 4 to 7, `cal_result` 0 to 3 |
//! | 3 | of key\[31:16\] | `get_pivot` 8 to 11, `cal_result` 4 to 7 |
//! | 4 | of key\[15:0\] | `get_pivot` 12 to 14, `cal_result` 8 to 11 |
//! | 5 | number of a range to its child | `cal_result` 12 to 14 |
//! | 6 | free: the packet's output port is found here | `get_child_address` |
//!
//! # Known numbers and assumptions
//!
//! [`Budget::TOFINO`] is one pipeline of a Tofino 1 as in its published compiler (p4c, `backends/tofino`: 12
//! stages, 16 tables a stage, 8 of them ternary, 8 x 10 SRAM blocks of 1024 words of 128 bits, 12 x 2 TCAM
//! blocks of 512 words of 44 bits). Assumptions:
//!
//! - Tables do not share blocks. Hashing, versions, parity and crossbars cost nothing.
//! - A range of 16 bits is matched by nibbles: 8 bits of a TCAM word match any set of values of a nibble
//!   (p4c's `dirtcam_4b`). A range takes up to seven words, counted exactly, each with the number of the
//!   table in front.
//! - A far-memory address has [`ADDR_BITS`] bits, as in the paper's prototype. Programs map far memory at the
//!   same addresses, and Linux gives them 47 bits. With 64, an entry of `get_child_address` exceeds a word of
//!   SRAM, and a set of 4,096 nodes exceeds a stage.
//! - Each entry that names a child has a counter of [`COUNTER_BITS`] in the SRAM of its stage
//!   ([`crate::Branch`]), four to a word. With 64 bits a set of 4,096 nodes no longer fits.
//! - Other work of the switch in the same stages (translation, protection, directory) is not counted.

use crate::ranges::STAGES;
use crate::{Entry, NodeSet, PIVOTS, RangeTables};
use alloc::vec::Vec;
use core::fmt;

/// Stages of a fat root or a set (Fat-B+Tree IV-A).
pub const PART_STAGES: usize = 6;
/// Bits of a far-memory address in a switch.
pub const ADDR_BITS: u32 = 48;
/// Bits of a counter of a branch.
pub const COUNTER_BITS: u32 = 32;
/// Pivots that are compared in one stage.
const STAGE_PIVOTS: usize = 4;
/// Bits of TCAM for a range of 16 bits: 8 a nibble.
const RANGE_BITS: u32 = 32;
/// Entries of `cal_result`, and the bits that it matches: `sub[63:32]` and two more.
const COMPARATOR: (usize, u32) = (4, 34);
/// Bits that a range table's entry assigns: the number of a range, the next table, and whether there is one.
/// A default result has the same size.
const RESULT_BITS: u32 = 32;
/// Bits of a node's level.
const LEVEL_BITS: u32 = 8;
const KEY_BITS: u32 = 64;

/// One kind of memory of a stage: blocks of words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Blocks in a stage.
    pub blocks: u64,
    /// Words of a block.
    pub words: u64,
    /// Bits of a word.
    pub word_bits: u32,
}

impl Memory {
    /// Bits of a block.
    #[must_use]
    pub const fn block_bits(&self) -> u64 {
        self.words.saturating_mul(self.word_bits as u64)
    }

    /// Bits of a stage.
    #[must_use]
    pub const fn bits(&self) -> u64 {
        self.blocks.saturating_mul(self.block_bits())
    }

    /// Returns the blocks of a table with `entries` of `bits` each. If `shared`, several entries fit a word.
    /// Without word bits, more blocks than exist.
    fn blocks_of(&self, entries: usize, bits: u32, shared: bool) -> u64 {
        if entries == 0 {
            return 0;
        }
        if self.word_bits == 0 || self.words == 0 {
            return u64::MAX;
        }
        let wide = u64::from(bits.div_ceil(self.word_bits).max(1));
        let in_a_word = if shared { u64::from(self.word_bits / bits.max(1)).max(1) } else { 1 };
        (entries as u64).div_ceil(in_a_word).div_ceil(self.words).saturating_mul(wide)
    }
}

/// The resources of a switch for an index, per stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Number of stages.
    pub stages: usize,
    /// Tables of both kinds together.
    pub tables: usize,
    /// Tables in ternary memory.
    pub ternary_tables: usize,
    /// Ternary memory (TCAM).
    pub tcam: Memory,
    /// Exact memory (SRAM).
    pub sram: Memory,
}

impl Budget {
    /// One pipeline of a Tofino 1 (see the module docs).
    pub const TOFINO: Self = Self {
        stages: 12,
        tables: 16,
        ternary_tables: 8,
        tcam: Memory { blocks: 24, words: 512, word_bits: 44 },
        sram: Memory { blocks: 80, words: 1024, word_bits: 128 },
    };
}

impl Default for Budget {
    fn default() -> Self {
        Self::TOFINO
    }
}

/// A part of an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The fat root.
    Root,
    /// The set with this number, from 1.
    Set(usize),
}

/// The task of a stage within its part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Matches range tables, of 16 bits of the key.
    Ranges {
        /// The lowest of these bits.
        low_bit: u32,
        /// Number of tables in algorithm 1; a switch has them as one.
        encoded: usize,
    },
    /// Maps the number of a range to its child.
    Child,
    /// No table of the index.
    Free,
    /// Fetches pivots, and compares those of the stage before.
    Pivots,
    /// Maps comparison results to a child.
    ChildAddress,
}

/// The resources that a stage uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StageUse {
    /// The part of the index.
    pub part: Part,
    /// The task.
    pub step: Step,
    /// Tables in exact memory.
    pub exact_tables: usize,
    /// Tables in ternary memory.
    pub ternary_tables: usize,
    /// Entries of all tables. A range of several words counts as one.
    pub entries: usize,
    /// Blocks of ternary memory; [`Memory::block_bits`] is the size of one.
    pub tcam_blocks: u64,
    /// Blocks of exact memory.
    pub sram_blocks: u64,
}

impl StageUse {
    /// Tables of both kinds.
    #[must_use]
    pub const fn tables(&self) -> usize {
        self.exact_tables + self.ternary_tables
    }
}

/// The reason why an index does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Excess {
    /// The switches have too few stages.
    Stages {
        /// Number of stages needed.
        need: usize,
        /// Number of stages available for parts: a part is not divided between switches.
        have: usize,
    },
    /// A stage has too many tables, of both kinds.
    Tables {
        /// Index of the stage in the plan.
        stage: usize,
    },
    /// A stage has too many tables in ternary memory.
    TernaryTables {
        /// Index of the stage in the plan.
        stage: usize,
    },
    /// A stage needs too much ternary memory.
    Tcam {
        /// Index of the stage in the plan.
        stage: usize,
    },
    /// A stage needs too much exact memory.
    Sram {
        /// Index of the stage in the plan.
        stage: usize,
    },
}

/// An index laid out in stages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    budget: Budget,
    switches: usize,
    stages: Vec<StageUse>,
}

impl Plan {
    /// Lays out an index over `switches` of one budget, with addresses of `addr_bits`. Each part is in one
    /// switch; a fat root comes first.
    #[must_use]
    pub fn new(
        root: Option<&RangeTables>,
        sets: &[NodeSet],
        budget: Budget,
        switches: usize,
        addr_bits: u32,
    ) -> Self {
        let layout = Layout { budget: &budget, addr_bits };
        let mut stages: Vec<StageUse> = root.into_iter().flat_map(|root| layout.root(root)).collect();
        stages.extend(sets.iter().enumerate().flat_map(|(n, set)| layout.set(n + 1, set)));
        Self { budget, switches, stages }
    }

    /// Returns the stages, part by part.
    #[must_use]
    pub fn stages(&self) -> &[StageUse] {
        &self.stages
    }

    /// Returns the budget of each switch.
    #[must_use]
    pub const fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Returns the number of stages for whole parts in all switches.
    #[must_use]
    pub const fn room(&self) -> usize {
        (self.budget.stages / PART_STAGES).saturating_mul(PART_STAGES).saturating_mul(self.switches)
    }

    /// Returns every exceeded limit; empty if the index fits.
    #[must_use]
    pub fn excess(&self) -> Vec<Excess> {
        let (need, have) = (self.stages.len(), self.room());
        let stages = (need > have).then_some(Excess::Stages { need, have });
        let budget = &self.budget;
        let each = self.stages.iter().enumerate().flat_map(|(stage, used)| {
            [
                (used.tables() > budget.tables).then_some(Excess::Tables { stage }),
                (used.ternary_tables > budget.ternary_tables).then_some(Excess::TernaryTables { stage }),
                (used.tcam_blocks > budget.tcam.blocks).then_some(Excess::Tcam { stage }),
                (used.sram_blocks > budget.sram.blocks).then_some(Excess::Sram { stage }),
            ]
        });
        stages.into_iter().chain(each.flatten()).collect()
    }

    /// Returns true if no limit is exceeded.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.excess().is_empty()
    }
}

/// The layout in progress.
struct Layout<'a> {
    budget: &'a Budget,
    addr_bits: u32,
}

impl<'a> Layout<'a> {
    const fn stage(&self, part: Part, step: Step) -> Filling<'a> {
        let used = StageUse {
            part,
            step,
            exact_tables: 0,
            ternary_tables: 0,
            entries: 0,
            tcam_blocks: 0,
            sram_blocks: 0,
        };
        Filling { budget: self.budget, used }
    }

    fn root(&self, root: &RangeTables) -> Vec<StageUse> {
        let mut stages: Vec<StageUse> = (0..STAGES).map(|stage| self.ranges(root, stage)).collect();
        let children = root.children().len();
        let bits = number_bits(children).saturating_add(self.addr_bits).saturating_add(LEVEL_BITS);
        stages.push(
            self.stage(Part::Root, Step::Child).exact(children, bits).results(children, COUNTER_BITS).used,
        );
        stages.push(self.stage(Part::Root, Step::Free).used);
        stages
    }

    fn ranges(&self, root: &RangeTables, stage: usize) -> StageUse {
        let behind = u32::try_from(STAGES - 1 - stage).expect("four stages");
        let (count, entries) = (root.stages()[stage], root.entries(stage));
        let step = Step::Ranges { low_bit: 16 * behind, encoded: count.tables };
        let words = entries.iter().map(Entry::words).sum();
        let filled = self.stage(Part::Root, step).ternary(
            entries.len(),
            words,
            number_bits(count.tables) + RANGE_BITS,
        );
        filled.results(words, RESULT_BITS).used
    }

    fn set(&self, number: usize, set: &NodeSet) -> Vec<StageUse> {
        let part = Part::Set(number);
        let group = |n: usize| (n * STAGE_PIVOTS).min(PIVOTS)..((n + 1) * STAGE_PIVOTS).min(PIVOTS);
        let with_pivot = |i: usize| set.nodes().iter().filter(|node| node.pivots.len() > i).count();
        let mut stages: Vec<StageUse> = (0..=PIVOTS.div_ceil(STAGE_PIVOTS))
            .map(|n| {
                let bits = self.addr_bits.saturating_add(KEY_BITS);
                let stage = self.stage(part, Step::Pivots);
                let stage = group(n).fold(stage, |stage, i| stage.exact(with_pivot(i), bits));
                let before = n.checked_sub(1).map_or(0..0, group);
                before.fold(stage, |stage, _| stage.ternary(COMPARATOR.0, COMPARATOR.0, COMPARATOR.1)).used
            })
            .collect();
        let children = set.nodes().iter().map(|node| node.children.len()).sum();
        let results = u32::try_from(PIVOTS).expect("a few pivots");
        let bits = self.addr_bits.saturating_mul(2).saturating_add(results + LEVEL_BITS);
        stages.push(
            self.stage(part, Step::ChildAddress).exact(children, bits).results(children, COUNTER_BITS).used,
        );
        stages
    }
}

/// A stage that is being filled with tables.
struct Filling<'a> {
    budget: &'a Budget,
    used: StageUse,
}

impl Filling<'_> {
    /// Adds a table in exact memory; an entry matches and assigns `bits` together.
    fn exact(mut self, entries: usize, bits: u32) -> Self {
        self.used.exact_tables += 1;
        self.used.entries += entries;
        self.results(entries, bits)
    }

    /// Adds a table in ternary memory whose entries take `words` in total, of `bits` to match each.
    fn ternary(mut self, entries: usize, words: usize, bits: u32) -> Self {
        self.used.ternary_tables += 1;
        self.used.entries += entries;
        let blocks = self.budget.tcam.blocks_of(words, bits, false);
        self.used.tcam_blocks = self.used.tcam_blocks.saturating_add(blocks);
        self
    }

    /// Adds exact memory for the assigned bits of ternary entries.
    fn results(mut self, entries: usize, bits: u32) -> Self {
        let blocks = self.budget.sram.blocks_of(entries, bits, true);
        self.used.sram_blocks = self.used.sram_blocks.saturating_add(blocks);
        self
    }
}

/// Returns the number of bits that distinguish `count` values.
const fn number_bits(count: usize) -> u32 {
    if count <= 1 { 0 } else { usize::BITS - (count - 1).leading_zeros() }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Stages { need, have } => write!(f, "{need} stages are needed, {have} are there"),
            Self::Tables { stage } => write!(f, "stage {} has too many tables", stage + 1),
            Self::TernaryTables { stage } => write!(f, "stage {} has too many ternary tables", stage + 1),
            Self::Tcam { stage } => write!(f, "stage {} needs too much TCAM", stage + 1),
            Self::Sram { stage } => write!(f, "stage {} needs too much SRAM", stage + 1),
        }
    }
}

#[cfg(test)]
mod tests;
