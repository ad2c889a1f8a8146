//! The values: their contents and their placement.

use farmem::btree::RECORD_ROOM;
use farmem::{Error, FarMemory, NodeId, VirtAddr, Vma};

/// Bytes of a value.
pub const VALUE_LEN: usize = 240;

/// The placement of loaded values in far memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Order {
    /// In YCSB's insertion order, alternating between the memory nodes: neighbours in the index are
    /// scattered.
    Insertion,
    /// In index order, one range per memory node: neighbours take one READ.
    Clustered,
}

impl Order {
    /// Returns the order's description for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Insertion => "in order of insertion",
            Self::Clustered => "clustered",
        }
    }
}

/// Appends the value of `key`, words derived from the key, to `into`.
pub(crate) fn compose(key: u64, into: &mut Vec<u8>) {
    let mut word = key;
    for _ in 0..VALUE_LEN / 8 {
        into.extend_from_slice(&word.to_le_bytes());
        word = word.wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(29) ^ key;
    }
}

/// Values per WRITE of the load.
const BULK: usize = 256;
/// WRITEs sent together.
const BULKS_MAX: usize = 16;

/// The placement of values.
pub(crate) struct Values {
    regions: Vec<Vma>,
    /// Used positions, by memory node.
    taken: Vec<u64>,
    each: u64,
    /// Index of the memory node that receives the next value.
    turn: usize,
}

impl Values {
    pub(crate) fn create(memory: &mut (impl FarMemory + ?Sized), count: u64) -> Result<Self, Error> {
        let nodes: Vec<NodeId> = memory.nodes().iter().map(|node| NodeId(node.node)).collect();
        let each = count.div_ceil(nodes.len() as u64);
        let mut regions = Vec::with_capacity(nodes.len());
        for node in nodes {
            // Room after the last value for a whole load window.
            let bytes =
                each.saturating_mul(VALUE_LEN as u64).saturating_add((RECORD_ROOM - VALUE_LEN) as u64);
            regions.push(memory.allocate_on(bytes, node)?);
        }
        Ok(Self { taken: vec![0; regions.len()], regions, each, turn: 0 })
    }

    /// Writes the values of `keys`, which are sorted and carry their numbers below `records`. Returns the
    /// addresses.
    pub(crate) fn load(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        keys: &[(u64, u64)],
        records: u64,
        order: Order,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<VirtAddr>, Error> {
        let nodes = self.regions.len() as u64;
        // The memory node and the position of each value.
        let mut by_place: Vec<Vec<(u64, usize)>> = vec![Vec::new(); self.regions.len()];
        for (rank, &(_, number)) in keys.iter().enumerate() {
            let (node, place) = match order {
                Order::Insertion => (number % nodes, number / nodes),
                Order::Clustered => {
                    let share = records.div_ceil(nodes);
                    (rank as u64 / share, rank as u64 % share)
                }
            };
            by_place[index(node)].push((place, rank));
        }
        let mut places = vec![VirtAddr(0); keys.len()];
        let mut done = 0;
        for (node, ranks) in by_place.iter_mut().enumerate() {
            ranks.sort_unstable();
            for (n, &(_, rank)) in ranks.iter().enumerate() {
                places[rank] = self.place(node, n as u64);
            }
            self.taken[node] = ranks.len() as u64;
            for together in ranks.chunks(BULK * BULKS_MAX) {
                let images: Vec<(VirtAddr, Vec<u8>)> = together
                    .chunks(BULK)
                    .map(|bulk| {
                        let mut image = Vec::with_capacity(BULK * VALUE_LEN);
                        bulk.iter().for_each(|&(_, rank)| compose(keys[rank].0, &mut image));
                        (places[bulk[0].1], image)
                    })
                    .collect();
                let writes: Vec<(VirtAddr, &[u8])> =
                    images.iter().map(|(place, image)| (*place, image.as_slice())).collect();
                memory.write_many(&writes)?;
                done += together.len() as u64;
                progress(done, keys.len() as u64);
            }
        }
        Ok(places)
    }

    /// Allocates a position for a new value, alternating between the memory nodes.
    ///
    /// # Errors
    /// [`Error::Full`] when there is none.
    pub(crate) fn take(&mut self) -> Result<VirtAddr, Error> {
        for _ in 0..self.regions.len() {
            let node = self.turn;
            self.turn = (self.turn + 1) % self.regions.len();
            if self.taken[node] < self.each {
                self.taken[node] += 1;
                return Ok(self.place(node, self.taken[node] - 1));
            }
        }
        Err(Error::Full { what: "the room for values".into() })
    }

    pub(crate) fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.regions.iter().try_for_each(|region| memory.free(region.base))
    }

    fn place(&self, node: usize, n: u64) -> VirtAddr {
        VirtAddr(self.regions[node].base.0 + n * VALUE_LEN as u64)
    }
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("farmem runs on 64-bit machines")
}
