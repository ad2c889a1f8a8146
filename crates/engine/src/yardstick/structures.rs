//! The two structures: a chained hash table and a B+tree, every node at a place of its own choice, in eight ranges.

use super::Chance;
use super::table::Table;
use crate::{Range, Ranges};

/// Ranges that the table is mapped as: addresses and store are in different orders, so that every lookup crosses them.
const RANGES: usize = 8;
/// From one range's first address to the next's.
const STRIDE: u64 = 1 << 40;

/// Where nodes lie: a bijection from numbers to places that look like chance, and from places to addresses.
pub(super) struct Layout {
    node_len: u64,
    /// The number of nodes is 2^bits.
    bits: u32,
}

impl Layout {
    pub(super) fn new(table_len: usize, node_len: u64) -> Self {
        Self { node_len, bits: (table_len as u64 / node_len).ilog2() }
    }

    pub(super) fn nodes(&self) -> u64 {
        1 << self.bits
    }

    fn place(&self, number: u64) -> u64 {
        let mask = self.nodes() - 1;
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
        let mixed = (mixed ^ mixed >> (self.bits / 2)).wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask;
        mixed ^ mixed >> (self.bits / 2)
    }

    /// The number of the node's first word in the store.
    fn word(&self, number: u64) -> usize {
        (self.place(number) * self.node_len / 8) as usize
    }

    /// The node's address.
    pub(super) fn addr(&self, number: u64) -> u64 {
        let (per_range, place) = (self.nodes() / RANGES as u64, self.place(number));
        let of_store = place / per_range;
        let of_addresses = (of_store * 5 + 3) % RANGES as u64;
        (of_addresses + 1) * STRIDE + place % per_range * self.node_len
    }

    pub(super) fn ranges(&self) -> Ranges {
        let len = self.nodes() / RANGES as u64 * self.node_len;
        let mut ranges: Vec<_> = (0..RANGES as u64)
            .map(|n| Range { base: ((n * 5 + 3) % RANGES as u64 + 1) * STRIDE, len, offset: n * len })
            .collect();
        ranges.sort_by_key(|range| range.base);
        Ranges::new(&ranges).expect("a table")
    }
}

/// What a lookup asks for, and what its answer must be.
#[derive(Clone, Copy)]
pub(super) struct Query {
    pub(super) cur_ptr: u64,
    pub(super) wanted: [u64; 2],
    pub(super) value: u64,
    pub(super) iterations: u32,
}

/// `testdata/programs/hash_find.pulse`: chains of four nodes of 64 bytes.
pub(super) struct Hash(pub(super) Layout);

const CHAIN: u64 = 4;

impl Hash {
    fn key(number: u64) -> [u64; 2] {
        [number.wrapping_mul(0x94d0_49bb_1331_11eb), number + 1]
    }

    pub(super) fn fill(table: &mut Table) -> Self {
        let words = table.words_mut();
        let layout = Layout::new(size_of_val(words), 64);
        for number in 0..layout.nodes() {
            let next = if number % CHAIN == CHAIN - 1 { 0 } else { layout.addr(number + 1) };
            let [low, high] = Self::key(number);
            let node = &mut words[layout.word(number)..][..8];
            node.copy_from_slice(&[low, high, next, !number, 0, 0, 0, 0]);
        }
        Self(layout)
    }

    pub(super) fn query(&self, chance: &mut Chance) -> Query {
        let number = chance.below(self.0.nodes() as usize) as u64;
        let hops = number % CHAIN;
        Query {
            cur_ptr: self.0.addr(number - hops),
            wanted: Self::key(number),
            value: !number,
            iterations: hops as u32 + 1,
        }
    }
}

/// `testdata/programs/btree_find.pulse`: 15 keys and 16 children in nodes of 256 bytes.
pub(super) struct Btree {
    pub(super) layout: Layout,
    /// Nodes by level, leaves first.
    levels: Vec<u64>,
    root: u64,
}

const KEYS: u64 = 15;
const CHILDREN: u64 = 16;

impl Btree {
    fn key(number: u64) -> u64 {
        (number + 1) << 20
    }

    pub(super) fn fill(table: &mut Table) -> Self {
        let words = table.words_mut();
        let layout = Layout::new(size_of_val(words), 256);
        let mut levels = vec![layout.nodes() / 16 * 15 - 64];
        while levels[levels.len() - 1] > 1 {
            levels.push(levels[levels.len() - 1].div_ceil(CHILDREN));
        }
        assert!(levels.iter().sum::<u64>() <= layout.nodes(), "all levels fit");
        let (mut first, mut leaves_below) = (0, 1);
        for (level, &nodes) in levels.iter().enumerate() {
            for n in 0..nodes {
                let node = &mut words[layout.word(first + n)..][..32];
                node.fill(0);
                node[0] = u64::from(level == 0);
                for i in 0..KEYS {
                    // In a leaf the key itself; above, the first key of the child to its right.
                    let right = n * CHILDREN + i + 1;
                    node[1 + i as usize] = match level {
                        0 => Self::key(n * KEYS + i),
                        _ if right < levels[level - 1] => Self::key(right * leaves_below * KEYS),
                        _ => u64::MAX,
                    };
                }
                for i in 0..CHILDREN {
                    node[16 + i as usize] = match level {
                        0 if i < KEYS => !(n * KEYS + i),
                        0 if n + 1 < nodes => layout.addr(n + 1),
                        0 => 0,
                        _ if n * CHILDREN + i < levels[level - 1] => {
                            layout.addr(first - levels[level - 1] + n * CHILDREN + i)
                        }
                        _ => 0,
                    };
                }
            }
            first += nodes;
            leaves_below *= if level == 0 { 1 } else { CHILDREN };
        }
        let root = layout.addr(first - 1);
        Self { layout, levels, root }
    }

    pub(super) fn keys(&self) -> u64 {
        self.levels[0] * KEYS
    }

    pub(super) fn depth(&self) -> usize {
        self.levels.len()
    }

    pub(super) fn query(&self, chance: &mut Chance) -> Query {
        let number = chance.below(self.keys() as usize) as u64;
        let wanted = [Self::key(number), 0];
        Query { cur_ptr: self.root, wanted, value: !number, iterations: self.depth() as u32 }
    }
}
