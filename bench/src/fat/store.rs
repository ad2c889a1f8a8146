//! A tree of records on a rack, and the paths to a value in it.

use farmem::blink_tree::{EpochReport, Extent, IndexAgent, publish};
use farmem::heap::{Heap, HeapOptions};
use farmem::{
    BLinkTree, Client, Completed, Error, FarMemory, Layout, Next, NodeId, Op, OpQueue, Policy,
    REGION_DATA_MAX, Rack, RecordTree, Task, Through, VirtAddr, forward_far_memory,
};
use farmem_index::TreeSection;
use farmem_index::blink::Tree;
use farmem_machine::Rng;
use farmem_workload::ycsb::{self, Zipfian, zeta};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Bytes of a value (Fat-B+Tree V-B).
pub(super) const VALUE_LEN: usize = 1000;
/// Bytes of far memory per key with its value, its leaf's share and the levels above, rounded up.
pub(super) const KEY_BYTES: u64 = 1400;
/// Entries per loaded node: full, as in the paper.
const FILL: usize = 14;
pub(super) const DOMAIN: &str = "bench-fat";

/// A path to a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookupPath {
    /// One request through the switch, which starts it at the deepest published node. The request returns the
    /// value.
    Index,
    /// One request from the root: PULSE.
    Root,
    /// A READ per node from the root to the leaf, and one for the value, through the switch: the paper's
    /// baseline on the path of its index.
    Relayed,
    /// A READ per node and one for the value, over the direct connection to the node, bypassing the switch.
    Direct,
    /// A keyed READ over a reliable connection through the switch, and READs of that connection for the nodes
    /// below the returned one and for the value.
    Keyed,
    /// READs of that connection from the root to the leaf, and for the value: the paper's own baseline, on
    /// the path of keyed READs.
    Through,
}

/// Drawn look-ups, after which the sequence repeats.
const DRAWN: usize = 1 << 16;
const SEED: u64 = 13;

/// The popularity of records: YCSB's workload C, spread over the tree, with a skew in hundredths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Popularity {
    pub(super) keys: u64,
    pub(super) skew: u32,
    /// Percentage of look-ups that move to other records: a drift.
    pub(super) changed: u32,
}

impl Popularity {
    /// Returns YCSB's popularity.
    pub(super) const fn usual(keys: u64) -> Self {
        Self { keys, skew: 99, changed: 0 }
    }

    /// Returns the record of popularity rank `rank`, before or after a drift.
    fn record(&self, rank: u64, is_changed: bool) -> u64 {
        let salt = if is_changed { 1 << 40 } else { 0 };
        ycsb::hash(rank | salt) % self.keys
    }

    /// Draws the records to look up.
    pub(super) fn draw(&self) -> Vec<u64> {
        let skew = f64::from(self.skew) / 100.0;
        let mut chooser = Zipfian::with(self.keys, skew, zeta(0, self.keys, skew, 0.0));
        let mut rng = Rng::from_number(SEED);
        let mut record = || {
            let rank = chooser.next(&mut rng);
            let is_changed = rng.below(100) < self.changed;
            self.record(rank, is_changed)
        };
        (0..DRAWN).map(|_| record()).collect()
    }

    /// Returns the `most` most popular records before a drift, the most popular one first.
    pub(super) fn hottest(&self, most: usize) -> Vec<u64> {
        let mut seen = BTreeSet::new();
        let records = (0..self.keys).map(|rank| self.record(rank, false));
        records.filter(|&record| seen.insert(record)).take(most).collect()
    }
}

/// The path of READs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadPath {
    /// Through the switch.
    Relayed,
    /// Bypassing the switch.
    Direct,
}

/// A tree of records and its client.
pub(super) struct Store {
    client: Client,
    heap: Heap,
    tree: Rc<RecordTree>,
    keys: u64,
    /// A connection through the switch with the tree's root.
    over: Option<Through>,
    is_published: bool,
    /// Number of wrong answers.
    pub(super) wrong: u64,
}

/// Returns the lines of a value's record, which a look-up visits one by one.
pub(super) const fn value_lines() -> u64 {
    (farmem::heap::HEADER_LEN + VALUE_LEN).div_ceil(farmem::heap::LINE_LEN) as u64
}

/// Returns the key of record number `n` of `keys`. Keys are spread over all 64 bits, so that ranges have
/// equal shares.
const fn key(n: u64, keys: u64) -> u64 {
    n * (u64::MAX / keys)
}

/// Returns the value of record number `n`.
pub(super) fn value(n: u64) -> [u8; VALUE_LEN] {
    let mut value = [0; VALUE_LEN];
    for (word, at) in value.chunks_exact_mut(8).zip(0..) {
        word.copy_from_slice(&(ycsb::hash(n) ^ at).to_le_bytes());
    }
    value
}

impl Store {
    /// Loads a tree of `keys` records over the rack's memory nodes.
    pub(super) fn load(rack: &Rack, keys: u64, layout: Layout) -> Result<Self, Error> {
        let mut client = rack.client(DOMAIN)?;
        let mut heap = Heap::create(&mut client, "fat", HeapOptions::default())?;
        let mut tree = RecordTree::create(&mut client, &mut heap, "tree", layout)?;
        let numbers = 0..usize::try_from(keys).expect("fewer than memory has");
        let pairs = numbers.map(|n| (key(n as u64, keys), value(n as u64)));
        tree.load(&mut client, &mut heap, pairs, FILL)?;
        tree.set_policy(Policy::Offload);
        Ok(Self { client, heap, tree: Rc::new(tree), keys, over: None, is_published: false, wrong: 0 })
    }

    /// Selects a section of the tree for the switch.
    pub(super) fn section(&mut self, extent: Extent) -> Result<TreeSection, Error> {
        self.tree.section(&mut self.client, extent)
    }

    /// Selects and publishes a section of this extent.
    pub(super) fn publish(&mut self, extent: Extent) -> Result<(), Error> {
        let section = self.section(extent)?;
        self.publish_section(&section)
    }

    /// Publishes this section.
    pub(super) fn publish_section(&mut self, section: &TreeSection) -> Result<(), Error> {
        publish(&mut self.client, core::slice::from_ref(section))?;
        self.is_published = true;
        Ok(())
    }

    /// Creates an agent of the tree, which has published nothing yet.
    pub(super) fn agent(&mut self, extent: Extent) -> Result<IndexAgent, Error> {
        let tree = BLinkTree::open(&mut self.client, self.tree.tree().address(), Layout::Partitioned)?;
        IndexAgent::new(tree, extent)
    }

    /// Runs one epoch of an agent.
    pub(super) fn step(&mut self, agent: &mut IndexAgent) -> Result<EpochReport, Error> {
        self.is_published = true;
        agent.step(&mut self.client)
    }

    /// Returns the root, the tag and the entries per node.
    pub(super) fn tree(&self) -> Tree {
        self.tree.tree().tree()
    }

    /// Reads record number `n` by the word that `find` returns for its key, and checks the value.
    pub(super) fn get_by(
        &mut self,
        n: u64,
        path: ReadPath,
        find: impl FnOnce(&mut dyn FarMemory, u64) -> Result<Option<u64>, Error>,
    ) -> Result<(), Error> {
        let key = key(n, self.keys);
        let Self { client, heap, tree, .. } = self;
        let mut relayed;
        let memory: &mut dyn FarMemory = match path {
            ReadPath::Relayed => {
                relayed = Relayed { client };
                &mut relayed
            }
            ReadPath::Direct => client,
        };
        heap.pin(memory)?;
        let found =
            find(memory, key).and_then(|word| word.map(|word| tree.value_of(memory, heap, word)).transpose());
        heap.unpin();
        self.wrong += u64::from(found?.is_none_or(|found| found != value(n)));
        Ok(())
    }

    /// Withdraws the tree from the switch.
    pub(super) fn withdraw(&mut self) -> Result<(), Error> {
        if self.is_published {
            self.client.clear_soft_state(Vec::new())?;
            self.is_published = false;
        }
        Ok(())
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Reads record number `n` by this path and checks the value.
    pub(super) fn get(&mut self, n: u64, path: LookupPath) -> Result<(), Error> {
        let key = key(n, self.keys);
        let over = match path {
            LookupPath::Keyed | LookupPath::Through => Some(self.over()?),
            _ => None,
        };
        let by = || over.ok_or_else(|| Error::Missing { what: "connection through the switch".into() });
        let Self { client, heap, tree, .. } = self;
        let tree = Rc::get_mut(tree).expect("no look-up of a run is left");
        let found = match path {
            LookupPath::Index | LookupPath::Root => {
                tree.set_policy(Policy::Offload);
                tree.get(client, heap, key)?
            }
            LookupPath::Direct => {
                tree.set_policy(Policy::Host);
                tree.get(client, heap, key)?
            }
            LookupPath::Relayed => {
                tree.set_policy(Policy::Host);
                tree.get(&mut Relayed { client }, heap, key)?
            }
            LookupPath::Keyed => tree.get_through(client, heap, by()?, key)?,
            LookupPath::Through => {
                tree.set_policy(Policy::Host);
                tree.get(&mut client.through(by()?), heap, key)?
            }
        };
        self.wrong += u64::from(found.is_none_or(|found| found != value(n)));
        Ok(())
    }

    /// Returns the connection through the switch to the first memory node, opened at the first call.
    fn over(&mut self) -> Result<Through, Error> {
        if let Some(over) = self.over {
            return Ok(over);
        }
        let over = self.client.open_through(NodeId(1), Some(self.tree.root()))?;
        self.over = Some(over);
        Ok(over)
    }

    /// Looks up `numbers` with up to `depth` in flight.
    pub(super) fn get_many(
        &mut self,
        numbers: impl Iterator<Item = u64>,
        depth: usize,
    ) -> Result<u64, Error> {
        let (mut done, mut wrong) = (0, 0);
        let Self { client, heap, tree, keys, .. } = self;
        heap.pin(client)?;
        let tasks =
            numbers.map(|n| Find { tree: Rc::clone(tree), key: key(n, *keys), number: n, found: None });
        let ended = client.run_tasks(tasks, depth, &Policy::Offload, |task: Find, _| {
            done += 1;
            wrong += u64::from(task.found.is_none_or(|found| found != value(task.number)));
        });
        heap.unpin();
        ended?;
        self.wrong += wrong;
        Ok(done)
    }
}

/// One of several parallel look-ups.
struct Find {
    tree: Rc<RecordTree>,
    key: u64,
    number: u64,
    found: Option<Vec<u8>>,
}

impl Task for Find {
    fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
        if let Some(ended) = queue.take() {
            self.found = RecordTree::fetched(&ended);
            let Completed { result, buf, .. } = ended;
            queue.recycle(buf);
            return result.map(|_| Next::Done);
        }
        let op = self.tree.get_op(self.key, queue.buffer());
        queue.need(op);
        Ok(Next::Need)
    }
}

/// Far memory whose READs go through the switch. Reads longer than a message go in several, in parallel.
struct Relayed<'a> {
    client: &'a mut Client,
}

impl FarMemory for Relayed<'_> {
    forward_far_memory!(client: write, compare_swap, fetch_add, allocate, allocate_on, free);
    forward_far_memory!(client: nodes, buffer, recycle);

    fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error> {
        let pieces = into.chunks_mut(REGION_DATA_MAX).zip((addr.0..).step_by(REGION_DATA_MAX));
        let mut tickets = Vec::new();
        for (piece, at) in pieces {
            let buf = self.client.buffer(piece.len());
            tickets.push((self.client.submit(Op::RegionRead { addr: VirtAddr(at), buf })?, piece));
        }
        for (ticket, piece) in tickets {
            let Completed { result, buf, .. } = self.client.wait(ticket)?;
            result?;
            piece.copy_from_slice(&buf);
            self.client.recycle(buf);
        }
        Ok(())
    }
}
