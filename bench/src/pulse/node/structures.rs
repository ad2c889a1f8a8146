//! The two structures: a chained hash table and a B+tree, with freely placed nodes, in eight ranges.

use super::Chance;
use farmem_memnode::Store;

/// Ranges as which the store is mapped. Addresses and store are in different orders, so nearly every hop
/// crosses ranges.
const RANGES: u64 = 8;
/// The distance between the start addresses of two ranges.
const STRIDE: u64 = 1 << 40;

/// Addresses `base..base + len`, whose bytes lie in the store from `offset` on.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) offset: u64,
}

/// The placement of nodes: a bijection from numbers to pseudo-random places, and from places to addresses.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    node_len: u64,
    /// The number of nodes is 2^bits.
    bits: u32,
}

impl Layout {
    fn new(store: &impl Store, node_len: u64) -> Self {
        Self { node_len, bits: (store.len() / node_len).ilog2() }
    }

    fn nodes(&self) -> u64 {
        1 << self.bits
    }

    fn place(&self, number: u64) -> u64 {
        let mask = self.nodes() - 1;
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
        let mixed = (mixed ^ mixed >> (self.bits / 2)).wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask;
        mixed ^ mixed >> (self.bits / 2)
    }

    /// Writes the node's words.
    fn write(&self, store: &mut impl Store, number: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        store.write(self.place(number) * self.node_len, &bytes);
    }

    /// Returns the node's address.
    fn addr(&self, number: u64) -> u64 {
        let (per_range, place) = (self.nodes() / RANGES, self.place(number));
        let of_store = place / per_range;
        let of_addresses = (of_store * 5 + 3) % RANGES;
        (of_addresses + 1) * STRIDE + place % per_range * self.node_len
    }

    pub(super) fn ranges(&self) -> [Range; 8] {
        let len = self.nodes() / RANGES * self.node_len;
        let at = |n: u64| Range { base: ((n * 5 + 3) % RANGES + 1) * STRIDE, len, offset: n * len };
        [0, 1, 2, 3, 4, 5, 6, 7].map(at)
    }
}

/// A look-up and its expected answer.
#[derive(Clone, Copy)]
pub(super) struct Query {
    pub(super) cur_ptr: u64,
    pub(super) wanted: [u64; 2],
    pub(super) value: u64,
    pub(super) iterations: u32,
}

/// `testdata/programs/hash_find.pulse`: chains of nodes of 64 bytes.
#[derive(Clone, Copy)]
pub(super) struct Hash {
    pub(super) layout: Layout,
    chain: u64,
}

impl Hash {
    fn key(number: u64) -> [u64; 2] {
        [number.wrapping_mul(0x94d0_49bb_1331_11eb), number + 1]
    }

    /// Fills a store with chains of `chain` nodes, a power of two.
    pub(super) fn fill(store: &mut impl Store, chain: u64) -> Self {
        let layout = Layout::new(store, 64);
        for number in 0..layout.nodes() {
            let next = if number % chain == chain - 1 { 0 } else { layout.addr(number + 1) };
            let [low, high] = Self::key(number);
            layout.write(store, number, &[low, high, next, !number]);
        }
        Self { layout, chain }
    }

    /// Draws an existing key among the first `depth` of its chain.
    pub(super) fn query(&self, depth: u64, chance: &mut Chance) -> Query {
        let number = chance.below(self.layout.nodes() / self.chain) * self.chain + chance.below(depth);
        let hops = number % self.chain;
        Query {
            cur_ptr: self.layout.addr(number - hops),
            wanted: Self::key(number),
            value: !number,
            iterations: u32::try_from(hops + 1).expect("a chain is short"),
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

    pub(super) fn fill(store: &mut impl Store) -> Self {
        let layout = Layout::new(store, 256);
        // As many leaves as leave room for the levels above.
        let mut levels = vec![layout.nodes() / 16 * 15 - 64];
        while levels[levels.len() - 1] > 1 {
            levels.push(levels[levels.len() - 1].div_ceil(CHILDREN));
        }
        assert!(levels.iter().sum::<u64>() <= layout.nodes(), "all levels fit");
        let (mut first, mut leaves_below) = (0, 1);
        for (level, &nodes) in levels.iter().enumerate() {
            for n in 0..nodes {
                let mut node = [0; 32];
                node[0] = u64::from(level == 0);
                for i in 0..KEYS {
                    // In a leaf the key itself; above, the first key of the child to its right.
                    let right = n * CHILDREN + i + 1;
                    node[1 + index(i)] = match level {
                        0 => Self::key(n * KEYS + i),
                        _ if right < levels[level - 1] => Self::key(right * leaves_below * KEYS),
                        _ => u64::MAX,
                    };
                }
                for i in 0..CHILDREN {
                    node[16 + index(i)] = match level {
                        0 if i < KEYS => !(n * KEYS + i),
                        0 if n + 1 < nodes => layout.addr(n + 1),
                        0 => 0,
                        _ if n * CHILDREN + i < levels[level - 1] => {
                            layout.addr(first - levels[level - 1] + n * CHILDREN + i)
                        }
                        _ => 0,
                    };
                }
                layout.write(store, first + n, &node);
            }
            first += nodes;
            leaves_below *= if level == 0 { 1 } else { CHILDREN };
        }
        let root = layout.addr(first - 1);
        Self { layout, levels, root }
    }

    fn keys(&self) -> u64 {
        self.levels[0] * KEYS
    }

    /// Draws an existing key.
    pub(super) fn query(&self, chance: &mut Chance) -> Query {
        let number = chance.below(self.keys());
        let wanted = [Self::key(number), 0];
        let iterations = u32::try_from(self.levels.len()).expect("few levels");
        Query { cur_ptr: self.root, wanted, value: !number, iterations }
    }
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("below the number of children")
}
