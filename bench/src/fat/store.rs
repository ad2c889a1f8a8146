//! A tree of records on a rack, and the paths to a value in it.

use farmem::blink_tree::{Extent, publish};
use farmem::heap::{Heap, HeapOptions};
use farmem::{
    Client, Completed, Error, FarMemory, Layout, Next, Op, OpQueue, Policy, REGION_DATA_MAX, Rack,
    RecordTree, Task, VirtAddr, forward_far_memory,
};
use farmem_index::TreeSection;
use farmem_workload::ycsb;
use std::rc::Rc;

/// Bytes of a value (Fat-B+Tree V-B).
pub(super) const VALUE_LEN: usize = 1000;
/// Bytes of far memory that a key takes with its value, its leaf's share and what is above, rounded up.
pub(super) const KEY_BYTES: u64 = 1400;
/// Entries of a node that is loaded: full, as the paper's are.
const FILL: usize = 14;
pub(super) const DOMAIN: &str = "bench-fat";

/// A path to a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookupPath {
    /// One request through the switch, which has it begin at the deepest node that it knows; it brings the value.
    Index,
    /// The same from the root: PULSE.
    Root,
    /// A READ for each node from the root to the leaf, and for the value, through the switch: the paper's baseline on the path of its index.
    Relayed,
    /// The same over the connection to the node, past the switch.
    Direct,
}

/// A tree of records and who uses it.
pub(super) struct Store {
    client: Client,
    heap: Heap,
    tree: Rc<RecordTree>,
    keys: u64,
    is_published: bool,
    /// Answers that were wrong.
    pub(super) wrong: u64,
}

/// The key of record number `n` of `keys`: all over the 64 bits, so that ranges have all of them.
const fn key(n: u64, keys: u64) -> u64 {
    n * (u64::MAX / keys)
}

/// The value of record number `n`.
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
        Ok(Self { client, heap, tree: Rc::new(tree), keys, is_published: false, wrong: 0 })
    }

    /// What the switch is told of the tree.
    pub(super) fn section(&mut self, extent: Extent) -> Result<TreeSection, Error> {
        self.tree.section(&mut self.client, extent)
    }

    /// Has the switch know so much of the tree.
    pub(super) fn publish(&mut self, extent: Extent) -> Result<(), Error> {
        let section = self.section(extent)?;
        publish(&mut self.client, &[section])?;
        self.is_published = true;
        Ok(())
    }

    /// Has the switch know nothing of it.
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

    /// The value of record number `n`, and whether it is right.
    pub(super) fn get(&mut self, n: u64, path: LookupPath) -> Result<(), Error> {
        let key = key(n, self.keys);
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
        };
        self.wrong += u64::from(found.is_none_or(|found| found != value(n)));
        Ok(())
    }

    /// Look-ups of `numbers` with up to `depth` under way.
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

/// One look-up of many.
struct Find {
    tree: Rc<RecordTree>,
    key: u64,
    number: u64,
    found: Option<Vec<u8>>,
}

impl Task for Find {
    fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
        if let Some(ended) = queue.take() {
            self.found = RecordTree::brought(&ended);
            let Completed { result, buf, .. } = ended;
            queue.recycle(buf);
            return result.map(|_| Next::Done);
        }
        let op = self.tree.get_op(self.key, queue.buffer());
        queue.need(op);
        Ok(Next::Need)
    }
}

/// Far memory whose READs go through the switch. What is longer than a message goes in several, side by side.
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
