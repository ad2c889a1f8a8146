//! `fat.server.*`: four memory nodes as the servers of the paper's client-server mode (Fat-B+Tree V-C, figure
//! 10). A server executes a look-up as a traversal from the node that the switch found; the baseline starts
//! at the root. Both go through the switch. Updates begin at the root, like all traversals that store.
//!
//! One and two clients are measured as threads of this process; up to sixteen are simulated in virtual time
//! ([`played`]). Values have 64 bytes, nine of ten operations read, and keys are zipfian with a skew of 0.99,
//! unless the row's id says otherwise.

use super::alternation::Budget;
use crate::{Row, Sheet, rate_row, to_f64};
use farmem::blink_tree::{Extent, publish};
use farmem::heap::{Heap, HeapOptions};
use farmem::{Client, Error, Layout, Policy, Rack, RecordTree, Rng};
use farmem_workload::ycsb::{self, Zipfian, zeta};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

mod lazy;
mod played;

pub(super) use lazy::rows as lazy_rows;
pub use lazy::{Lazy, lazy};

/// Memory nodes.
pub(super) const SERVERS: u8 = 4;
/// Bytes of a value (Fat-B+Tree V-C).
const VALUE_LEN: usize = 64;
/// Bytes of far memory per key with its value and its share of the nodes, rounded up. Updates temporarily
/// take more.
pub(super) const KEY_BYTES: u64 = 320;
/// Percentage of reads (Fat-B+Tree V-C).
const READS: u32 = 90;
/// Skew, in hundredths.
const SKEW: u32 = 99;
const DRAWN: usize = 1 << 16;
const DOMAIN: &str = "bench-fat";
const FILL: usize = 14;
const SEED: u64 = 41;

/// The measured tree sizes and mixes.
pub(super) struct Sizes {
    /// Key counts of figure 10 (a); the first tree serves all other measurements.
    pub(super) scales: &'static [u64],
    /// Percentages of reads, figure 10 (c).
    pub(super) mixes: &'static [u32],
}

const fn key(n: u64, keys: u64) -> u64 {
    n * (u64::MAX / keys)
}

fn value(n: u64) -> [u8; VALUE_LEN] {
    let mut value = [0; VALUE_LEN];
    for (word, at) in value.chunks_exact_mut(8).zip(0..) {
        word.copy_from_slice(&(ycsb::hash(n) ^ at).to_le_bytes());
    }
    value
}

/// An order to a client.
struct ClientOrder {
    slice: Duration,
    reads: u32,
    draw: Arc<Vec<u64>>,
}

/// A client's report.
#[derive(Clone, Copy, Default, Debug)]
struct ClientReport {
    operations: u64,
    look_ups: u64,
    /// Visits of look-ups.
    visits: u64,
    seconds: f64,
    wrong: u64,
}

/// A client of the service.
struct ServiceClient {
    client: Client,
    heap: Heap,
    tree: RecordTree,
    keys: u64,
    rng: Rng,
}

impl ServiceClient {
    fn open(mut client: Client, keys: u64, seed: u64) -> Result<Self, Error> {
        let mut heap = Heap::open(&mut client, "server", HeapOptions::default())?;
        let mut tree = RecordTree::open(&mut client, &mut heap, "tree", Layout::Partitioned)?;
        tree.set_policy(Policy::Offload);
        Ok(Self { client, heap, tree, keys, rng: Rng::from_number(seed) })
    }

    fn load(mut client: Client, keys: u64) -> Result<Self, Error> {
        let mut heap = Heap::create(&mut client, "server", HeapOptions::default())?;
        let mut tree = RecordTree::create(&mut client, &mut heap, "tree", Layout::Partitioned)?;
        let numbers = 0..usize::try_from(keys).expect("fewer than memory has");
        let pairs = numbers.map(|n| (key(n as u64, keys), value(n as u64)));
        tree.load(&mut client, &mut heap, pairs, FILL)?;
        tree.set_policy(Policy::Offload);
        Ok(Self { client, heap, tree, keys, rng: Rng::from_number(SEED) })
    }

    fn carry_out(&mut self, ClientOrder { slice, reads, draw }: &ClientOrder) -> Result<ClientReport, Error> {
        let Self { client, heap, tree, keys, rng } = self;
        let mut told = ClientReport::default();
        let mut at = rng.below(1 << 16) as usize;
        let begin = Instant::now();
        while begin.elapsed() < *slice {
            let n = draw[at % draw.len()];
            at += 1;
            if rng.chance(*reads, 100) {
                let before = client.tally().iterations;
                let found = tree.get(client, heap, key(n, *keys))?;
                told.visits += client.tally().iterations - before;
                told.look_ups += 1;
                told.wrong += u64::from(found.is_none_or(|found| found != value(n)));
            } else {
                told.wrong += u64::from(!tree.insert(client, heap, key(n, *keys), &value(n))?);
            }
            told.operations += 1;
        }
        told.seconds = begin.elapsed().as_secs_f64();
        Ok(told)
    }

    fn work(mut self, orders: &Receiver<ClientOrder>, told: &Sender<ClientReport>) -> Result<(), Error> {
        for order in orders {
            let done = self.carry_out(&order)?;
            // The measurement has ended.
            if told.send(done).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// Draws records with a skew in hundredths; the popular ones are spread over the tree.
fn draw(keys: u64, skew: u32) -> Arc<Vec<u64>> {
    let skew = f64::from(skew) / 100.0;
    let mut chooser = Zipfian::with(keys, skew, zeta(0, keys, skew, 0.0));
    let mut rng = Rng::from_number(SEED);
    Arc::new((0..DRAWN).map(|_| ycsb::hash(chooser.next(&mut rng)) % keys).collect())
}

/// The results of both paths for one setting.
#[derive(Default)]
struct PathResults {
    /// Operations per second by round: through the index, from the root.
    rates: [Vec<f64>; 2],
    told: [ClientReport; 2],
}

impl PathResults {
    /// Returns the visits of an average look-up by each path.
    fn visits(&self) -> [f64; 2] {
        self.told.map(|told| to_f64(told.visits) / to_f64(told.look_ups.max(1)))
    }

    fn rows(&mut self, id: &str) -> Vec<Row> {
        let [index, root] = self.visits();
        let [mut ours, mut theirs] = self.rates.clone();
        let (operations, look_ups) = (self.told[0].operations, self.told[0].look_ups);
        let visits = Row::figure(format!("{id}.visits"), "per look-up", index, look_ups);
        vec![
            rate_row(&format!("{id}.throughput"), &mut ours, &mut theirs, operations),
            visits.beside(Some(root)),
        ]
    }
}

/// A service with two clients and a publisher.
struct Service {
    main: ServiceClient,
    workers: Vec<(Sender<ClientOrder>, Receiver<ClientReport>)>,
}

impl Service {
    /// Measures both paths in alternating rounds with this many clients.
    fn compare(
        &mut self,
        effort: Budget,
        clients: usize,
        reads: u32,
        draw: &Arc<Vec<u64>>,
    ) -> Result<PathResults, Error> {
        let mut both = PathResults::default();
        let section = self.main.tree.section(&mut self.main.client, Extent::default())?;
        for round in 0..=effort.rounds {
            for way in 0..2 {
                match way {
                    0 => _ = publish(&mut self.main.client, std::slice::from_ref(&section))?,
                    _ => self.main.client.clear_soft_state(Vec::new())?,
                }
                let workers = &self.workers[..clients];
                for (orders, _) in workers {
                    let order = ClientOrder { slice: effort.slice, reads, draw: Arc::clone(draw) };
                    orders.send(order).expect("a client waits for orders");
                }
                let told: Option<Vec<ClientReport>> =
                    workers.iter().map(|(_, told)| told.recv().ok()).collect();
                let Some(told) = told else {
                    return Err(Error::Unreachable { what: "a client of the service ended early".into() });
                };
                let rate = told.iter().map(|told| to_f64(told.operations) / told.seconds).sum();
                // The first round warms up: nodes learn programs, leases begin.
                if round > 0 {
                    both.rates[way].push(rate);
                    let sum = &mut both.told[way];
                    for one in told {
                        sum.operations += one.operations;
                        sum.look_ups += one.look_ups;
                        sum.visits += one.visits;
                        sum.wrong += one.wrong;
                    }
                }
            }
        }
        self.main.client.clear_soft_state(Vec::new())?;
        Ok(both)
    }
}

/// Returns the rows of a tree of `keys` keys: everything if `all`, else only the effect of its size.
pub(super) fn measure(
    rack: &Rack,
    keys: u64,
    all: bool,
    sizes: &Sizes,
    effort: Budget,
    wants: &dyn Fn(&str) -> bool,
    sheet: &mut Sheet<'_>,
) -> Result<(), Error> {
    let main = ServiceClient::load(rack.client(DOMAIN)?, keys)?;
    let config = rack.config().expect("a rack of processes has a description");
    thread::scope(|scope| {
        let mut service = Service { main, workers: Vec::new() };
        let mut threads = Vec::new();
        for seed in 1..=2 {
            let ((orders, take), (tell, told)) = (channel(), channel());
            threads.push(scope.spawn(move || {
                let client = Rack::running(config.clone()).client(DOMAIN)?;
                ServiceClient::open(client, keys, SEED + seed)?.work(&take, &tell)
            }));
            service.workers.push((orders, told));
        }
        let measured = each(&mut service, keys, all, sizes, effort, wants, sheet);
        drop(service);
        // A client's own error says more than the loss of its channel.
        for thread in threads {
            thread.join().expect("a client does not panic")?;
        }
        measured
    })
}

/// Returns the rows of clients in virtual time, on a tree of `keys` keys.
pub(super) fn played(keys: u64, operations: u64, sheet: &mut Sheet<'_>) -> Result<(), Error> {
    sheet.begins("up to sixteen clients, in virtual time");
    sheet.add(played::rows(keys, operations, &draw(keys, SKEW), |n| key(n, keys))?);
    Ok(())
}

fn each(
    service: &mut Service,
    keys: u64,
    all: bool,
    sizes: &Sizes,
    effort: Budget,
    wants: &dyn Fn(&str) -> bool,
    sheet: &mut Sheet<'_>,
) -> Result<(), Error> {
    let usual = draw(keys, SKEW);
    let add = |sheet: &mut Sheet<'_>, id: &str, mut both: PathResults| {
        sheet.add(both.rows(id));
        sheet.add_wrong(both.told.iter().map(|told| told.wrong).sum());
    };
    let id = format!("fat.server.scale.{keys}");
    if wants(&id) {
        sheet.begins(&id);
        let both = service.compare(effort, 2, READS, &usual)?;
        add(sheet, &id, both);
    }
    if !all {
        return Ok(());
    }
    for clients in 1..=2 {
        let id = format!("fat.server.clients.{clients}");
        if wants(&id) {
            sheet.begins(&id);
            let both = service.compare(effort, clients, READS, &usual)?;
            add(sheet, &id, both);
        }
    }
    for &reads in sizes.mixes {
        let id = format!("fat.server.mixed.{reads}");
        if wants(&id) {
            sheet.begins(&id);
            let both = service.compare(effort, 2, reads, &usual)?;
            add(sheet, &id, both);
        }
    }
    for skew in [90, 95, SKEW] {
        let id = format!("fat.server.zipf.{skew}");
        if wants(&id) {
            sheet.begins(&id);
            let both = service.compare(effort, 2, READS, &draw(keys, skew))?;
            add(sheet, &id, both);
        }
    }
    Ok(())
}
