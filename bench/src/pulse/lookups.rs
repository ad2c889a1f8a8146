//! Look-ups alone: chains of a hash table with 48 nodes on the way to a key, each anywhere. What is left of an application when all
//! that it does with what it finds is taken away, so an upper bound of what offload can bring it.

use super::compare::{Laid, Scenario};
use super::station::App;
use farmem::hash_table::{Key, Spread};
use farmem::{Client, Completed, Error, Exchange, HashTable, Next, Task, ycsb};
use std::rc::Rc;

/// Keys of a chain: a look-up passes half of them, 48, as PULSE's WebService does (PULSE 6, table 3).
const CHAIN: u64 = 95;
/// Keys that are drawn before they begin anew.
const DRAWN: u64 = 1 << 16;

/// The scenario.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookups {
    buckets: u64,
}

impl Lookups {
    pub(super) const fn new(quick: bool) -> Self {
        Self { buckets: if quick { 1 << 10 } else { 1 << 13 } }
    }

    const fn keys(self) -> u64 {
        self.buckets * CHAIN
    }
}

impl Scenario for Lookups {
    type Laid = Table;

    fn name(&self) -> &'static str {
        "lookups"
    }

    /// Keys drawn alike, and keys drawn as YCSB does.
    fn mixes(&self) -> &'static [&'static str] {
        &["zipfian", "uniform"]
    }

    fn lay(&self, client: &mut Client) -> Result<Table, Error> {
        let keys = self.keys();
        let mut table = HashTable::create(client, keys, self.buckets, Spread::Scattered)?;
        table.load(client, (0..keys).map(|n| (key(n), value(n))), &mut |_, _| {})?;
        Ok(Table { table: Rc::new(table), keys })
    }
}

/// The table on a rack.
pub(super) struct Table {
    table: Rc<HashTable>,
    keys: u64,
}

impl Laid for Table {
    type App = Finder;

    fn bytes(&self) -> u64 {
        self.keys * farmem::hash_table::NODE_LEN as u64
    }

    fn app(&self, mix: &'static str, number: u64) -> Finder {
        let draw: Vec<u64> = match mix {
            "uniform" => (0..DRAWN).map(|n| ycsb::hash(n ^ number << 32) % self.keys).collect(),
            _ => ycsb::Workload::C.operations(self.keys, DRAWN, number).map(|op| op.record()).collect(),
        };
        Finder { table: Rc::clone(&self.table), draw, at: 0 }
    }

    fn destroy(self, client: &mut Client) -> Result<(), Error> {
        match Rc::try_unwrap(self.table) {
            Ok(table) => table.destroy(client),
            Err(_) => unreachable!("stations have left before their data goes"),
        }
    }
}

/// Draws keys.
pub(super) struct Finder {
    table: Rc<HashTable>,
    draw: Vec<u64>,
    at: usize,
}

impl App for Finder {
    type Task = Find;

    fn next(&mut self) -> Find {
        self.at = (self.at + 1) % self.draw.len();
        Find { table: Rc::clone(&self.table), number: self.draw[self.at], ended: None }
    }

    fn check(&mut self, task: Find) -> bool {
        task.ended.is_some_and(|ended| HashTable::found(&ended) == Some(value(task.number)))
    }
}

/// One look-up.
pub(super) struct Find {
    table: Rc<HashTable>,
    number: u64,
    ended: Option<Completed>,
}

impl Task for Find {
    fn next(&mut self, exchange: &mut Exchange) -> Result<Next, Error> {
        if let Some(ended) = exchange.take() {
            self.ended = Some(ended);
            return Ok(Next::Done);
        }
        let buf = exchange.buffer();
        exchange.need(self.table.find_op(key(self.number), buf));
        Ok(Next::Need)
    }
}

fn key(n: u64) -> Key {
    Key::of(&n.to_le_bytes())
}

/// What stands under key number `n`.
fn value(n: u64) -> [u8; 40] {
    let mut value = [0; 40];
    value[..8].copy_from_slice(&ycsb::hash(n).to_le_bytes());
    value
}
