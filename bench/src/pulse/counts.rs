//! The exact cost of traversals on a rack in this process: requests, packets, iterations, and crossings
//! between memory nodes. No times are measured, so the counts are the same on every machine.
//!
//! Three structures represent PULSE's applications (PULSE 6, table 3): chains for its WebService, a B+tree
//! with keys inserted in random order for WiredTiger, a B+tree with keys in time order for BTrDB.

use farmem::hash_table::{Key, Spread};
use farmem::series::Point;
use farmem::{BTree, Client, ClientOptions, Error, HashTable, Layout, Op, Policy, Rack, Series};
use farmem_workload::ycsb;
use std::num::NonZero;

/// A structure, and the placement of its nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// Look-ups in chains of a hash table, 48 nodes on average.
    Chains(Spread),
    /// Aggregates over 300 neighbouring keys of a tree whose keys were inserted in random order.
    Tree(Layout),
    /// Windows of 500 points of a series.
    Series(Layout),
}

/// Entries per chain: a look-up passes half of them.
const CHAIN: u64 = 95;
/// Neighbouring keys of an aggregate: about 25 leaves of the tree.
const RANGE: u64 = 300;
/// Points of a window: about 38 leaves of the series.
const WINDOW: u64 = 500;
/// Records of the scattered tree are inserted one by one; of a hundred thousand, two have equal keys.
const KEY_SPAN: u64 = u64::MAX / 4;

/// The cost of a number of operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counted {
    /// Operations; each is one traversal.
    pub operations: u64,
    /// Visited nodes of the structure.
    pub iterations: u64,
    /// Requests of the host, each a round trip.
    pub requests: u64,
    /// Packets that the host sent or received.
    pub host_packets: u64,
    /// All packets between host, switch and memory nodes.
    pub packets: u64,
    /// Requests of each operation beyond the first: under PULSE-ACC, its crossings. Ascending.
    pub crossings: Vec<u64>,
}

impl Counted {
    /// Returns the number of operations with at least `times` crossings.
    #[must_use]
    pub fn crossed(&self, times: u64) -> u64 {
        self.crossings.iter().filter(|&&crossings| crossings >= times).count() as u64
    }
}

/// A rack in this process with a structure on it.
pub struct Fixture {
    rack: Rack,
    /// The client that keeps the structure; others run the operations.
    owner: Client,
    built: Built,
    records: u64,
}

enum Built {
    Chains(HashTable),
    Tree { tree: BTree, keys: Vec<u64> },
    Series(Series),
}

impl core::fmt::Debug for Fixture {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Fixture").field("records", &self.records).finish_non_exhaustive()
    }
}

/// The domain that all clients share.
const DOMAIN: &str = "counts";

impl Fixture {
    /// Creates a rack of `nodes` memory nodes of `memory` bytes with `records` keys or points. For chains,
    /// the number is rounded to whole chains.
    ///
    /// # Errors
    /// [`Error`] when there is no memory or no room.
    pub fn new(subject: Subject, nodes: u16, memory: u64, mut records: u64) -> Result<Self, Error> {
        let rack = Rack::embedded_with(nodes, memory)?;
        let mut owner = rack.client(DOMAIN)?;
        let built = match subject {
            Subject::Chains(spread) => {
                // A power of two of buckets, as tables have, gives chains their exact length.
                let buckets = 1 << (records / CHAIN).max(1).ilog2();
                records = buckets * CHAIN;
                let mut table = HashTable::create(&mut owner, records, buckets, spread)?;
                table.load(&mut owner, (0..records).map(|n| (key(n), [0; 40])), &mut |_, _| {})?;
                Built::Chains(table)
            }
            Subject::Tree(layout) => {
                let mut tree = BTree::create(&mut owner, layout)?;
                let mut keys: Vec<u64> = (0..records).map(|n| ycsb::hash(n) % KEY_SPAN).collect();
                for (n, key) in (0..).zip(&keys) {
                    tree.insert(&mut owner, *key, n)?;
                }
                keys.sort_unstable();
                Built::Tree { tree, keys }
            }
            Subject::Series(layout) => {
                let mut series = Series::create(&mut owner, layout)?;
                let points: Vec<Point> = (0..records).map(|time| Point { time, value: 1 }).collect();
                series.load(&mut owner, &points)?;
                Built::Series(series)
            }
        };
        Ok(Self { rack, owner, built, records })
    }

    /// Counts `operations`, the same each time. With `returning`, each crossing returns to the host:
    /// PULSE-ACC.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    ///
    /// # Panics
    /// Panics when an answer is wrong.
    pub fn count(&mut self, operations: u64, returning: bool) -> Result<Counted, Error> {
        let hops_max = if returning { NonZero::<u8>::MIN } else { ClientOptions::default().hops_max };
        let mut client =
            self.rack.client_with(DOMAIN, ClientOptions { hops_max, ..ClientOptions::default() })?;
        self.set_policy();
        // Programs are sent with their code until a memory node knows them.
        for n in 0..operations {
            self.carry_out(&mut client, n)?;
        }
        let frames = |rack: &Rack| rack.frames().unwrap_or_default();
        let both = |client: &Client| client.packets().0 + client.packets().1;
        let before = (client.tally(), both(&client), frames(&self.rack));
        let mut crossings = Vec::new();
        for n in 0..operations {
            let requests = client.tally().requests;
            self.carry_out(&mut client, n)?;
            crossings.push(client.tally().requests - requests - 1);
        }
        crossings.sort_unstable();
        let tally = client.tally();
        assert_eq!(tally.at_host, 0, "everything runs at the memory nodes");
        Ok(Counted {
            operations: tally.offloaded - before.0.offloaded,
            iterations: tally.iterations - before.0.iterations,
            requests: tally.requests - before.0.requests,
            host_packets: both(&client) - before.1,
            packets: frames(&self.rack) - before.2,
            crossings,
        })
    }

    /// Returns the allocated bytes of far memory.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    pub fn allocated(&mut self) -> Result<u64, Error> {
        Ok(self.owner.overview()?.nodes.iter().map(|node| node.allocated).sum())
    }

    fn set_policy(&mut self) {
        match &mut self.built {
            Built::Chains(_) => {}
            Built::Tree { tree, .. } => tree.set_policy(Policy::Offload),
            Built::Series(series) => series.set_policy(Policy::Offload),
        }
    }

    /// Runs operation number `n` at a pseudo-random position.
    fn carry_out(&self, client: &mut Client, n: u64) -> Result<(), Error> {
        let somewhere = |end: u64| ycsb::hash(n) % end;
        match &self.built {
            Built::Chains(table) => {
                let op = table.find_op(key(somewhere(self.records)), client.buffer(0));
                let Op::Traverse { program, cur_ptr, scratch, limit } = op else {
                    unreachable!("a look-up is a traversal");
                };
                let found = client.dispatch(&program, cur_ptr, scratch, limit, &Policy::Offload)?;
                assert_eq!(found.scratch[0], 1, "every key is there");
                client.recycle(found.scratch);
            }
            Built::Tree { tree, keys } => {
                let first = somewhere(self.records - RANGE);
                let [from, to] = [first, first + RANGE].map(|at| keys[usize::try_from(at).unwrap_or(0)]);
                let count = tree.aggregate(client, from..to)?.map(|aggregate| aggregate.count);
                assert_eq!(count, Some(RANGE), "every key of the range is there once");
            }
            Built::Series(series) => {
                let first = somewhere(self.records - WINDOW);
                let window = series.window(client, first..first + WINDOW)?;
                assert_eq!(window.map(|w| (w.count, w.sum)), Some((WINDOW, i128::from(WINDOW))));
            }
        }
        Ok(())
    }
}

fn key(n: u64) -> Key {
    Key::of(&n.to_le_bytes())
}
