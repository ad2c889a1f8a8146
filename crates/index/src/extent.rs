//! The size of the part of a tree that a switch holds.

use crate::{RANGES_DEFAULT, RANGES_MAX, SET_NODES_MAX, SETS_MAX};

/// The part of a tree in a switch's tables. In a FatTree the core has the ranges, and each switch below has
/// the sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Ranges of the fat root: 1 to [`RANGES_MAX`].
    pub ranges: usize,
    /// Node sets: at most [`SETS_MAX`].
    pub sets: usize,
    /// Nodes of each set: at most [`SET_NODES_MAX`].
    pub nodes: usize,
}

/// A parameter of an [`Extent`] that is out of its bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentFault {
    /// The counted items.
    pub what: &'static str,
    /// The given number.
    pub have: usize,
    /// The minimum.
    pub least: usize,
    /// The maximum.
    pub most: usize,
}

impl Extent {
    /// The paper's FatTree: 600 ranges, and two sets of 3,600 nodes in each switch below the core (Fat-B+Tree IV-A, V-B).
    pub const FAT_TREE: Self = Self { ranges: RANGES_DEFAULT, sets: 2, nodes: 3_600 };

    /// Returns the first parameter that is out of its bounds.
    #[must_use]
    pub fn fault(&self) -> Option<ExtentFault> {
        [
            ("ranges of a fat root", self.ranges, 1, RANGES_MAX),
            ("node sets of a tree", self.sets, 0, SETS_MAX),
            ("nodes of a set", self.nodes, 0, SET_NODES_MAX),
        ]
        .into_iter()
        .map(|(what, have, least, most)| ExtentFault { what, have, least, most })
        .find(|fault| !(fault.least..=fault.most).contains(&fault.have))
    }
}

impl Default for Extent {
    /// Returns the paper's extent: 600 ranges and three sets of 3,600 nodes (Fat-B+Tree V-B).
    fn default() -> Self {
        Self { sets: 3, ..Self::FAT_TREE }
    }
}
