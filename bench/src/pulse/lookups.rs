//! Look-ups alone: chains of a hash table with 48 scattered nodes on the path to a key. The application does
//! nothing with the results, so the rows are an upper bound of the benefit of offload.

use super::compare::Scenario;
use super::contender::App;
use farmem::hash_table::{Key, NODE_LEN, Spread};
use farmem::{Client, Completed, Error, HashTable, Next, OpQueue, Task};
use farmem_workload::ycsb;
use std::rc::Rc;

/// Keys per chain: a look-up passes half of them, 48, as PULSE's WebService does (PULSE 6, table 3).
const CHAIN: u64 = 95;
/// Keys per chain where messages dominate: 2.5 nodes per look-up.
const SHORT_CHAIN: u64 = 4;
/// Drawn keys, after which the sequence repeats.
const DRAWN: u64 = 1 << 16;
/// Every system draws the same keys.
const SEED: u64 = 1;

/// The scenario.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookups {
    buckets: u64,
    chain: u64,
}

impl Lookups {
    pub(super) const fn new(quick: bool) -> Self {
        Self { buckets: if quick { 1 << 9 } else { 1 << 12 }, chain: CHAIN }
    }

    /// Returns a scenario with as much data in short chains.
    pub(super) const fn short(quick: bool) -> Self {
        Self { buckets: if quick { 1 << 14 } else { 1 << 17 }, chain: SHORT_CHAIN }
    }

    const fn keys(self) -> u64 {
        self.buckets * self.chain
    }
}

impl Scenario for Lookups {
    type App = Finder;

    fn name(&self) -> &'static str {
        "lookups"
    }

    /// Returns the names of the key distributions: YCSB's, and the uniform one.
    fn mixes(&self) -> &'static [&'static str] {
        &["zipfian", "uniform"]
    }

    fn lay(&self, mix: &'static str, _: bool, client: &mut Client) -> Result<Finder, Error> {
        let keys = self.keys();
        let mut table = HashTable::create(client, keys, self.buckets, Spread::Scattered)?;
        table.load(client, (0..keys).map(|n| (key(n), value(n))), &mut |_, _| {})?;
        let draw: Vec<u64> = match mix {
            "uniform" => (0..DRAWN).map(|n| ycsb::hash(n) % keys).collect(),
            _ => ycsb::Workload::C.operations(keys, DRAWN, SEED).map(|op| op.record()).collect(),
        };
        Ok(Finder { table: Rc::new(table), keys, draw, at: 0, wrong: 0 })
    }
}

/// Draws keys and looks them up.
pub(super) struct Finder {
    table: Rc<HashTable>,
    keys: u64,
    draw: Vec<u64>,
    at: usize,
    wrong: u64,
}

impl App for Finder {
    type Task = Find;

    fn working_set(&self) -> u64 {
        self.keys * NODE_LEN as u64
    }

    fn next(&mut self) -> Find {
        self.at = (self.at + 1) % self.draw.len();
        Find { table: Rc::clone(&self.table), number: self.draw[self.at], ended: None }
    }

    fn ended(&mut self, task: Find) {
        let found = task.ended.as_ref().and_then(HashTable::found);
        self.wrong += u64::from(found != Some(value(task.number)));
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }

    fn destroy(self, client: &mut Client) -> Result<(), Error> {
        Rc::into_inner(self.table).expect("all look-ups have ended").destroy(client)
    }
}

/// One look-up.
pub(super) struct Find {
    table: Rc<HashTable>,
    number: u64,
    ended: Option<Completed>,
}

impl Task for Find {
    fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
        if let Some(ended) = queue.take() {
            self.ended = Some(ended);
            return Ok(Next::Done);
        }
        let buf = queue.buffer();
        queue.need(self.table.find_op(key(self.number), buf));
        Ok(Next::Need)
    }
}

fn key(n: u64) -> Key {
    Key::of(&n.to_le_bytes())
}

/// Returns the value of key number `n`.
fn value(n: u64) -> [u8; 40] {
    let mut value = [0; 40];
    value[..8].copy_from_slice(&ycsb::hash(n).to_le_bytes());
    value
}
