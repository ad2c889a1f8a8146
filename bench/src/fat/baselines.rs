//! Alternative uses of the index's bytes in the switch that also shorten the path to a key, on the same tree
//! of the same rack:
//!
//! - [`NodeCache`]: the client caches upper nodes and continues by READs. The highest two levels stay, and
//!   the nodes above leaves are cached as long as they are used (Sherman, SIGMOD 2022, 4.2.3). Each node
//!   found is checked against its bounds, and a node that led astray is dropped.
//! - [`hottest_keys`]: the switch holds the hottest keys with their leaves (NetCache, SOSP 2017). The section
//!   has the tables of the index and no more bytes, so both use the same path: a hot key begins at its leaf,
//!   any other key at the root. NetCache answers from the switch, with values of at most 128 B. The values
//!   here have 1,000 B and lie on the memory node.

use super::store::{LookupPath, Popularity, ReadPath, Store};
use super::{drift, union};
use crate::{Plan, Row, Samples, rate_row, to_f64};
use farmem::blink_tree::Extent;
use farmem::{Error, FarMemory, Rack, VirtAddr};
use farmem_index::blink::{NODE_LEN, NextStep, Node, State, Tree};
use farmem_index::{BRANCHES, Child, Range, SET_NODES_MAX, SetNode, TreeSection};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Bound on the nodes read by one look-up.
const READS_MAX: u32 = 256;

/// A client's cache of a tree's upper nodes.
#[derive(Debug)]
pub(super) struct NodeCache {
    tree: Tree,
    bytes_max: usize,
    /// The root and its children.
    top: BTreeMap<VirtAddr, Node>,
    /// Nodes above leaves by their first key, each with its last use.
    parents: BTreeMap<u64, (Node, u64)>,
    /// First keys by last use.
    used: BTreeMap<u64, u64>,
    now: u64,
    /// Look-ups that began at a leaf, and all look-ups.
    hits: (u64, u64),
    /// READs of nodes.
    reads: u64,
}

impl NodeCache {
    /// Creates an empty cache for this many bytes of nodes.
    pub(super) fn new(tree: Tree, bytes_max: usize) -> Self {
        let (top, parents, used) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { tree, bytes_max, top, parents, used, now: 0, hits: (0, 0), reads: 0 }
    }

    /// Returns a key's leaf and its value.
    pub(super) fn find(
        &mut self,
        memory: &mut dyn FarMemory,
        key: u64,
    ) -> Result<(VirtAddr, Option<u64>), Error> {
        let known = self.parent_of(key);
        self.hits.1 += 1;
        let mut at = known.unwrap_or(self.tree.root);
        let mut began_here = known.is_some();
        for _ in 0..READS_MAX {
            let node = match self.top.get(&at) {
                Some(node) if !began_here => node.clone(),
                _ => {
                    self.reads += 1;
                    read(memory, at)?
                }
            };
            let is_ours = node.tag == self.tree.tag && (!began_here || node.level == 0);
            match node.next_step(key) {
                NextStep::Leaf if is_ours => {
                    self.hits.0 += u64::from(began_here);
                    return Ok((at, node.value(key)));
                }
                NextStep::To(to) if is_ours => {
                    if began_here || node.state == State::Dead || key > node.last {
                        // The node that led here is out of date.
                        self.forget(at, key);
                        began_here = false;
                    } else {
                        self.keep(at, &node);
                    }
                    at = to;
                }
                _ => {
                    self.forget(at, key);
                    self.top.clear();
                    (at, began_here) = (self.tree.root, false);
                }
            }
        }
        Err(Error::Broken { addr: at, what: "a tree that leads to no leaf" })
    }

    /// Returns the leaf of a key according to the cached node above it.
    fn parent_of(&mut self, key: u64) -> Option<VirtAddr> {
        let (&first, (node, used)) = self.parents.range_mut(..=key).next_back()?;
        let NextStep::To(leaf) = node.next_step(key) else { return None };
        if key > node.last {
            return None;
        }
        self.now += 1;
        self.used.remove(used);
        *used = self.now;
        self.used.insert(self.now, first);
        Some(leaf)
    }

    fn keep(&mut self, at: VirtAddr, node: &Node) {
        let root = self.top.get(&self.tree.root).map_or(u8::MAX, |root| root.level);
        if at == self.tree.root || node.level > 1 && node.level + 1 == root {
            self.top.insert(at, node.clone());
        }
        if node.level != 1 {
            return;
        }
        self.now += 1;
        if let Some((_, used)) = self.parents.insert(node.first, (node.clone(), self.now)) {
            self.used.remove(&used);
        }
        self.used.insert(self.now, node.first);
        while NODE_LEN * (self.top.len() + self.parents.len()) > self.bytes_max
            && let Some((_, oldest)) = self.used.pop_first()
        {
            self.parents.remove(&oldest);
        }
    }

    fn forget(&mut self, at: VirtAddr, key: u64) {
        self.top.remove(&at);
        if let Some((&first, _)) = self.parents.range(..=key).next_back()
            && let Some((_, used)) = self.parents.remove(&first)
        {
            self.used.remove(&used);
        }
    }
}

fn read(memory: &mut dyn FarMemory, at: VirtAddr) -> Result<Node, Error> {
    let mut bytes = [0; NODE_LEN];
    memory.read(at, &mut bytes)?;
    Node::parse(&bytes).map_err(|error| Error::Broken { addr: at, what: error.0 })
}

/// Builds the section with as many of `hot` (keys with their leaves, hottest first) as fit into `bytes`.
/// Returns the section and the number of keys. `like` is the index of the same tree.
pub(super) fn hottest_keys(
    like: &TreeSection,
    hot: &[(u64, VirtAddr)],
    bytes: usize,
) -> (TreeSection, usize) {
    // A key takes at most two branches of a node, and a node takes a fifteenth of a node above it.
    let (mut few, mut many) = (0, hot.len());
    let section = |count: usize| keys_section(like, &hot[..count]);
    while few < many {
        let half = (few + many).div_ceil(2);
        match section(half).filter(|section| section.emit().len() <= bytes) {
            Some(_) => few = half,
            None => many = half - 1,
        }
    }
    (section(few).expect("no key always has room"), few)
}

/// Address of nodes that exist only in the switch: before all far memory.
const NOWHERE: u64 = NODE_LEN as u64;

/// Builds a search tree of these keys in the form of a section; keys between two of them lead to the root.
/// Returns `None` when the tree exceeds the room of the sets.
fn keys_section(like: &TreeSection, hot: &[(u64, VirtAddr)]) -> Option<TreeSection> {
    let root = Child { addr: like.root, level: u8::MAX };
    let sorted: BTreeMap<u64, VirtAddr> = hot.iter().copied().collect();
    let mut branches: BTreeMap<u64, Child> = BTreeMap::from([(0, root)]);
    for (&key, &addr) in &sorted {
        branches.insert(key, Child { addr, level: 0 });
        if let Some(next) = key.checked_add(1).filter(|next| !sorted.contains_key(next)) {
            branches.insert(next, root);
        }
    }
    let mut level: Vec<(u64, Child)> = branches.into_iter().collect();
    let (mut sets, mut next) = (Vec::new(), NOWHERE);
    while level.len() > 1 && sets.len() < like.sets.len().max(1) {
        let mut above = Vec::new();
        let mut set = Vec::new();
        for branches in level.chunks(BRANCHES) {
            let addr = VirtAddr(next);
            next += NODE_LEN as u64;
            let pivots = branches[1..].iter().map(|(first, _)| *first).collect();
            set.push(SetNode { addr, pivots, children: branches.iter().map(|(_, child)| *child).collect() });
            above.push((branches[0].0, Child { addr, level: u8::MAX }));
        }
        if set.len() > SET_NODES_MAX {
            return None;
        }
        sets.insert(0, set);
        level = above;
    }
    if level.len() > farmem_index::RANGES_MAX {
        return None;
    }
    let lasts = level[1..].iter().map(|(first, _)| first - 1).chain([u64::MAX]);
    let ranges = level.iter().zip(lasts).map(|(&(first, child), last)| Range { first, last, child });
    Some(TreeSection { root: like.root, programs: like.programs.clone(), ranges: ranges.collect(), sets })
}

/// A path to a key's value under comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeyPath {
    /// The index as an agent selected it.
    Index,
    /// [`hottest_keys`].
    Keys,
    /// [`NodeCache`] with READs on this path.
    Nodes(ReadPath),
}

impl KeyPath {
    const ALL: [Self; 4] =
        [Self::Index, Self::Keys, Self::Nodes(ReadPath::Relayed), Self::Nodes(ReadPath::Direct)];

    const fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Keys => "netcache",
            Self::Nodes(ReadPath::Relayed) => "sherman",
            Self::Nodes(ReadPath::Direct) => "sherman.direct",
        }
    }
}

/// The state that each path has learned before a drift.
struct Contest<'a> {
    store: &'a mut Store,
    index: TreeSection,
    keys: TreeSection,
    /// The caches of the two READ paths.
    nodes: [NodeCache; 2],
    /// READs of records.
    records: u64,
}

impl<'a> Contest<'a> {
    /// Selects the sections and fills the caches from the same look-ups.
    fn new(store: &'a mut Store, keys: u64) -> Result<Self, Error> {
        let popularity = Popularity::usual(keys);
        let draw = popularity.draw();
        let index = drift::selected(store, Extent::default(), &draw, true)?;
        let bytes = index.emit().len();
        let mut finder = NodeCache::new(store.tree(), usize::MAX);
        // A key takes more than 16 bytes.
        let mut hot = Vec::new();
        for record in popularity.hottest(bytes / 16) {
            store.get_by(record, ReadPath::Direct, |memory, key| {
                let (leaf, word) = finder.find(memory, key)?;
                hot.push((key, leaf));
                Ok(word)
            })?;
        }
        let (keys, _) = hottest_keys(&index, &hot, bytes);
        let nodes = [(); 2].map(|()| NodeCache::new(store.tree(), bytes));
        let mut contest = Self { store, index, keys, nodes, records: 0 };
        for path in [ReadPath::Relayed, ReadPath::Direct] {
            draw.iter().take(WARM).try_for_each(|&n| contest.get(n, KeyPath::Nodes(path)))?;
        }
        Ok(contest)
    }

    /// Publishes this path's section in the switch.
    fn begin(&mut self, way: KeyPath) -> Result<(), Error> {
        match way {
            KeyPath::Index => self.store.publish_section(&self.index),
            KeyPath::Keys => self.store.publish_section(&self.keys),
            KeyPath::Nodes(_) => self.store.withdraw(),
        }
    }

    fn get(&mut self, n: u64, way: KeyPath) -> Result<(), Error> {
        match way {
            KeyPath::Index | KeyPath::Keys => self.store.get(n, LookupPath::Index),
            KeyPath::Nodes(path) => {
                self.records += 1;
                let cache = &mut self.nodes[usize::from(path == ReadPath::Direct)];
                self.store.get_by(n, path, |memory, key| cache.find(memory, key).map(|(_, word)| word))
            }
        }
    }
}

impl Contest<'_> {
    /// Returns the round trips so far: requests that run programs, and READs.
    fn round_trips(&self) -> u64 {
        let reads: u64 = self.nodes.iter().map(|cache| cache.reads).sum();
        self.store.client().tally().requests + reads + self.records
    }
}

/// Look-ups that fill a client's cache.
const WARM: usize = 30_000;
/// Number of counted look-ups.
const LOOK_UPS: usize = 2_000;

/// Counts round trips and packets of a look-up by each path, before and right after a drift, exactly, on a
/// rack in this process.
pub(super) fn counted(keys: u64) -> Result<Vec<Row>, Error> {
    let rack = Rack::embedded_with(union::NODES.into(), union::memory_of(keys))?;
    let mut store = Store::load(&rack, keys, union::PIECES)?;
    let mut contest = Contest::new(&mut store, keys)?;
    let mut rows = Vec::new();
    for changed in [0, 100] {
        let draw = Popularity { changed, ..Popularity::usual(keys) }.draw();
        let mut each = Vec::new();
        for way in KeyPath::ALL {
            contest.begin(way)?;
            // All paths use equal records; the memory nodes know the programs.
            let before = (contest.round_trips(), rack.frames().unwrap_or_default());
            draw.iter().rev().take(LOOK_UPS).try_for_each(|&n| contest.get(n, way))?;
            let after = (contest.round_trips(), rack.frames().unwrap_or_default());
            each.push((after.0 - before.0, after.1 - before.1));
        }
        let [index, others @ ..] = each.as_slice() else { unreachable!("all ways were counted") };
        for (way, other) in KeyPath::ALL[1..].iter().zip(others) {
            let per = |count: u64| to_f64(count) / to_f64(LOOK_UPS as u64);
            for (what, own, theirs) in [("round_trips", index.0, other.0), ("packets", index.1, other.1)] {
                let id = format!("fat.union.{}{}.{what}", way.name(), after_drift(changed));
                rows.push(
                    Row::figure(id, "per operation", per(own), LOOK_UPS as u64).beside(Some(per(theirs))),
                );
            }
        }
    }
    assert_eq!(store.wrong, 0, "every key has its value");
    Ok(rows)
}

const fn after_drift(changed: u32) -> &'static str {
    if changed == 0 { "" } else { ".drift" }
}

/// Measures latency and rate of each path, one look-up at a time, in alternating rounds. Clients' caches keep
/// learning after a drift; the switch's sections stay.
pub(super) fn measure(store: &mut Store, keys: u64, changed: u32, plan: &Plan) -> Result<Vec<Row>, Error> {
    let mut contest = Contest::new(store, keys)?;
    let draw = Popularity { changed, ..Popularity::usual(keys) }.draw();
    let mut numbers = draw.iter().copied().cycle();
    let effort = plan.effort();
    let mut all = KeyPath::ALL.map(|_| (Samples::new(), Vec::new()));
    for _ in 0..effort.rounds {
        for (way, (latency, rates)) in KeyPath::ALL.into_iter().zip(&mut all) {
            contest.begin(way)?;
            let (mut busy, mut count) = (Duration::ZERO, 0);
            while busy < effort.slice {
                let number = numbers.next().expect("a cycle has no end");
                let begin = Instant::now();
                contest.get(number, way)?;
                let took = begin.elapsed();
                latency.record(took);
                busy += took;
                count += 1;
            }
            rates.push(to_f64(count) / busy.as_secs_f64());
        }
    }
    contest.store.withdraw()?;
    let [index, others @ ..] = &all;
    let rows = KeyPath::ALL[1..].iter().zip(others).flat_map(|(way, other)| {
        let id = |what: &str| format!("fat.union.{}{}.{what}", way.name(), after_drift(changed));
        let n = index.0.len();
        let p99 = |samples: &Samples| samples.quantile(0.99);
        [
            index.0.row(&id("latency"), Some(&other.0)),
            Row::figure(id("p99"), "ns", p99(&index.0), n).beside(Some(p99(&other.0))),
            rate_row(&id("throughput"), &mut index.1.clone(), &mut other.1.clone(), n),
        ]
    });
    Ok(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem::{BLinkTree, Layout};
    use farmem_index::TreeTables;

    /// With the index and with hot keys in the switch, a look-up is one round trip. With cached nodes it is
    /// at least a READ of the leaf and one of the record. Every path returns every value.
    /// value by each way.
    #[test]
    fn round_trips_of_each_way() {
        let rows = counted(20_000).unwrap();
        let of = |id: &str| {
            let row = rows.iter().find(|row| row.id == format!("fat.union.{id}")).expect(id);
            (row.value.unwrap(), row.baseline.unwrap())
        };
        assert_eq!(of("netcache.round_trips"), (1.0, 1.0));
        assert_eq!(of("netcache.drift.round_trips"), (1.0, 1.0));
        let (index, nodes) = of("sherman.round_trips");
        assert_eq!(index, 1.0);
        assert!((2.0..2.2).contains(&nodes), "{nodes}");
        assert!(of("sherman.drift.round_trips").1 >= nodes, "{rows:?}");
        // A key outside the section is searched from the root, over several memory nodes.
        let (before, behind) = (of("netcache.packets").1, of("netcache.drift.packets").1);
        assert!(before < behind, "{before} {behind}");
    }

    /// Cached nodes are older than the tree: leaves split, merge and die below them, and each key is found.
    #[test]
    fn old_nodes_at_a_client_lead_to_every_key() {
        let mut client = Rack::embedded_with(2, 64 << 20).unwrap().client("cache").unwrap();
        let mut tree = BLinkTree::create_with(&mut client, Layout::Partitioned, 4).unwrap();
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        let mut caches = [20, 100, 10_000].map(|nodes| NodeCache::new(tree.tree(), nodes * NODE_LEN));
        for round in 0..3_000_u64 {
            let key = round * 7_919 % 1_000;
            let (was, is) = if round / 700 % 2 == 0 {
                (model.insert(key, round), tree.insert(&mut client, key, round).unwrap())
            } else {
                (model.remove(&key), tree.remove(&mut client, key).unwrap())
            };
            assert_eq!(was, is);
            let key = round * 104_729 % 1_000;
            for cache in &mut caches {
                let (_, found) = cache.find(&mut client, key).unwrap();
                assert_eq!(found, model.get(&key).copied(), "{key} in round {round}");
                assert!(
                    NODE_LEN * (cache.top.len() + cache.parents.len()) <= cache.bytes_max.max(16 * NODE_LEN)
                );
                assert_eq!(cache.parents.len(), cache.used.len());
            }
        }
        assert!(caches.iter().is_sorted_by_key(|cache| cache.hits.0), "more room, more hits: {caches:?}");
    }

    /// Each hot key leads to its leaf, its neighbours to the root, for all keys. The section stays within its
    /// bytes.
    #[test]
    fn hot_keys_lead_to_their_leaves() {
        let root = VirtAddr(1 << 40);
        let like = TreeSection { root, programs: vec![], ranges: vec![], sets: vec![vec![]; 3] };
        let keys = [0, 1, 2, 7, 9, 1 << 40, u64::MAX - 1, u64::MAX];
        let many = (0..9_000_u64).map(|n| 1_000 + 3 * n);
        let hot: Vec<(u64, VirtAddr)> =
            keys.into_iter().chain(many).map(|key| (key, VirtAddr((1 << 41) + 256 * (key % 999)))).collect();
        for bytes in [200, 10_000, 1 << 20] {
            let (section, count) = hottest_keys(&like, &hot, bytes);
            let emitted = section.emit();
            assert!(emitted.len() <= bytes, "{} of {bytes}", emitted.len());
            assert!(count == hot.len() || emitted.len() + 3 * 8 * BRANCHES > bytes, "{count} in {bytes}");
            let tables = TreeTables::parse(&emitted).unwrap();
            let cached: BTreeMap<u64, VirtAddr> = hot[..count].iter().copied().collect();
            for key in hot.iter().flat_map(|(key, _)| [key.saturating_sub(1), *key, key.saturating_add(1)]) {
                assert_eq!(tables.deepest(key).addr, *cached.get(&key).unwrap_or(&root), "{key}");
            }
        }
    }
}
