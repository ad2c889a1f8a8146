//! The three applications as measured: their data, their mixes, and the transition between operations.

use super::compare::Scenario;
use super::contender::App;
use farmem::btree::Bring;
use farmem::series::Columns;
use farmem::{Client, Error, Layout, Rng};
use farmem_tablestore::{Operation, Operations, Order, Store, VALUE_LEN};
use farmem_timeseries::{CHANNELS, Query, Recording, Source, generate};
use farmem_webservice::{Keys, OBJECT_LEN, Request, Requests, Service, USERS_PER_OBJECT};
use farmem_workload::ycsb::Workload;
use std::cell::OnceCell;
use std::rc::Rc;
use std::time::Duration;

/// The average path to a user (PULSE 6, table 3).
const HOPS: u64 = 48;
/// Every system gets the same operations.
const SEED: u64 = 1;
/// Bytes of a node of the hash table.
const HASH_NODE: u64 = 64;
const TREE_NODE: u64 = 256;
const INNER: f64 = 1.0 / 15.0;

/// PULSE's WebService: YCSB C, B and A, on users that share objects, and C with uniformly drawn users.
#[derive(Clone, Copy, Debug)]
pub(super) struct WebService {
    pub(super) records: u64,
    pub(super) in_flight: usize,
}

impl Scenario for WebService {
    type App = Serving;

    fn name(&self) -> &'static str {
        "webservice"
    }

    fn mixes(&self) -> &'static [&'static str] {
        &["c", "b", "a", "uniform"]
    }

    fn lay(&self, mix: &'static str, _: bool, client: &mut Client) -> Result<Serving, Error> {
        let &Self { records, in_flight } = self;
        let objects = (records / USERS_PER_OBJECT).max(1);
        let keys = if mix == "uniform" { Keys::Uniform } else { Keys::Zipfian };
        let settings =
            farmem_webservice::Settings { records, objects, hops: HOPS, in_flight, keys, check: true };
        let service = Service::load(client, &settings, &mut |_, _| {})?;
        let workload = match mix {
            "a" => Workload::A,
            "b" => Workload::B,
            _ => Workload::C,
        };
        let requests = service.requests(workload, u64::MAX, SEED);
        let bytes = records * HASH_NODE + objects * OBJECT_LEN as u64;
        Ok(Serving { service, requests, bytes })
    }
}

/// The running web service.
pub(super) struct Serving {
    service: Service,
    requests: Requests,
    bytes: u64,
}

impl App for Serving {
    type Task = Request;

    fn working_set(&self) -> u64 {
        self.bytes
    }

    fn own_time(&self) -> Option<Duration> {
        Some(self.service.response_time())
    }

    fn next(&mut self) -> Request {
        self.requests.next().expect("there is no end of requests")
    }

    fn ended(&mut self, task: Request) {
        drop(task); // the service counts wrong answers itself
    }

    fn wrong(&self) -> u64 {
        self.service.wrong_answers()
    }

    fn destroy(self, client: &mut Client) -> Result<(), Error> {
        drop(self.requests);
        self.service.destroy(client)
    }
}

/// PULSE's WiredTiger: YCSB E, with values in insertion order, with values in key order, and with uniformly
/// drawn scan starts. Systems with traversals at the host get values by READs, the cheapest way there.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableStore {
    pub(super) records: u64,
    /// Room for this many operations: one in twenty inserts a record.
    pub(super) operations: u64,
}

impl Scenario for TableStore {
    type App = Storing;

    fn name(&self) -> &'static str {
        "tablestore"
    }

    fn mixes(&self) -> &'static [&'static str] {
        &["e", "e_clustered", "uniform"]
    }

    fn lay(&self, mix: &'static str, offloads: bool, client: &mut Client) -> Result<Storing, Error> {
        let &Self { records, operations } = self;
        let values = if mix == "e_clustered" { Order::Clustered } else { Order::Insertion };
        let keys = if mix == "uniform" { Keys::Uniform } else { Keys::Zipfian };
        let bring = if offloads { Bring::Traversals } else { Bring::Reads };
        let layout = Layout::Partitioned;
        let settings =
            farmem_tablestore::Settings { records, operations, values, layout, bring, keys, check: true };
        let store = Store::load(client, &settings, &mut |_, _| {})?;
        let operations = store.operations(records, operations, SEED);
        Ok(Storing { store, operations, records })
    }
}

/// The running table store.
pub(super) struct Storing {
    store: Store,
    operations: Operations,
    records: u64,
}

/// Keys per loaded leaf.
const LEAF: u64 = 10;

impl App for Storing {
    type Task = Operation;

    fn working_set(&self) -> u64 {
        self.records * VALUE_LEN as u64 + tree(self.records.div_ceil(LEAF))
    }

    fn next(&mut self) -> Operation {
        // A fast machine may use up its inserts, and then only scans.
        self.operations.next().unwrap_or_else(|| self.store.scan(0, 50))
    }

    fn ended(&mut self, task: Operation) {
        drop(task); // the store counts wrong answers itself
    }

    fn wrong(&self) -> u64 {
        self.store.wrong_answers()
    }

    fn destroy(self, client: &mut Client) -> Result<(), Error> {
        drop(self.operations);
        self.store.destroy(client)
    }
}

/// PULSE's BTrDB: windows of 1 to 8 s, and windows that visit as many nodes as the shortest and the longest
/// of its table 3.
#[derive(Clone, Debug)]
pub(super) struct TimeSeries {
    points: u64,
    /// The points; read at the first use.
    source: Rc<OnceCell<Source>>,
}

impl TimeSeries {
    /// Uses a real recording of up to `points` if there is one, else a generated one.
    pub(super) fn new(points: u64) -> Self {
        Self { points, source: Rc::default() }
    }

    fn source(&self) -> &Source {
        let (name, points) = ("a generated recording", self.points);
        let columns =
            Columns { time: "time".into(), time_decimals: 6, value: "value".into(), value_decimals: 6 };
        // An unreadable recording is the application's error; the measurement uses generated points.
        let generated = |_| Source { name: name.into(), points: generate(points) };
        self.source.get_or_init(|| Source::find(None, &columns, points).unwrap_or_else(generated))
    }
}

impl Scenario for TimeSeries {
    type App = Asking;

    fn name(&self) -> &'static str {
        "timeseries"
    }

    fn mixes(&self) -> &'static [&'static str] {
        &["8s", "1s", "2s", "4s", "38nodes", "227nodes"]
    }

    fn lay(&self, mix: &'static str, _: bool, client: &mut Client) -> Result<Asking, Error> {
        let points = &self.source().points;
        let span = points.first().zip(points.last()).map_or((0, 1), |(first, last)| (first.time, last.time));
        let per_point = (span.1 - span.0) / (points.len() as u64).max(1);
        // A window visits its leaves and three or four nodes above them.
        let of_leaves = |leaves: u64| leaves * farmem::series::LEAF_POINTS_MAX as u64 * per_point;
        let width = match mix {
            "1s" => SECOND,
            "2s" => 2 * SECOND,
            "4s" => 4 * SECOND,
            "38nodes" => of_leaves(34),
            "227nodes" => of_leaves(223),
            _ => 8 * SECOND,
        };
        let recording = Recording::load(client, points, CHANNELS, Layout::Partitioned, true)?;
        let bytes = tree(points.len().div_ceil(farmem::series::LEAF_POINTS_MAX) as u64);
        Ok(Asking { recording, rng: Rng::from_number(SEED), width, bytes, mix })
    }
}

/// A second in the recording's ticks.
const SECOND: u64 = 1_000_000;

/// The running series queries.
pub(super) struct Asking {
    recording: Recording,
    rng: Rng,
    width: u64,
    bytes: u64,
    mix: &'static str,
}

impl App for Asking {
    type Task = Query;

    fn working_set(&self) -> u64 {
        self.bytes
    }

    fn next(&mut self) -> Query {
        self.recording.random_window(&mut self.rng, self.width, self.mix)
    }

    fn ended(&mut self, task: Query) {
        drop(task); // the recording counts wrong answers itself
    }

    fn wrong(&self) -> u64 {
        self.recording.wrong_answers()
    }

    fn destroy(self, client: &mut Client) -> Result<(), Error> {
        self.recording.destroy(client)
    }
}

/// Returns the bytes of a tree with this many leaves.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a number of bytes, far below 2^52"
)]
fn tree(leaves: u64) -> u64 {
    let leaves = leaves * TREE_NODE;
    leaves + (leaves as f64 * INNER) as u64
}
