//! A table whose index and values are in far memory (PULSE 6, "WiredTiger"): keys of 8 bytes in a B+tree,
//! values of 240 bytes, YCSB's E.
//!
//! A scan of up to 100 records gets keys and values in the scratch pads of traversals, in two round trips
//! ([`farmem::btree::Records`]). A host that runs traversals itself gets the values by READs, one per run of
//! adjacent values. An insert writes the value while it looks for the leaf, and then the leaf.
//!
//! # Guarantees of a scan
//!
//! A scan sees every record that existed when it began, and any subset of the records inserted meanwhile.
//! Each has its own value, because a value is complete before its key is in the tree. Inserts run one after
//! the other. The few that split a leaf run exclusively, so that no scan meets a split ([`farmem::btree`]
//! explains the effects). The store is the only writer: it holds the tree's lock from [`Store::load`] to
//! [`Store::destroy`].

mod model;
mod operation;
mod values;

pub use operation::{Operation, Operations};
pub use values::{Order, VALUE_LEN};

use farmem::btree::{BTree, Bring, KEYS_MAX, Records};
use farmem::{Client, Error, FarMemory, Layout};
pub use farmem_workload::Keys;
use farmem_workload::ycsb::{Workload, hash};
use farmem_workload::{Failure, Load, Plan, Progress, Report, RunAt, load_or_free, measure, on_rack};
use model::Model;
use std::cell::RefCell;
use std::rc::Rc;
use values::Values;

/// The command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Options of every application.
    #[command(flatten)]
    pub plan: Plan,
    /// Number of loaded records.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..1 << 32))]
    pub records: u64,
    /// Placement of the loaded values in far memory.
    #[arg(long, value_enum, default_value_t = Order::Insertion)]
    pub values: Order,
    /// Distribution of the first record of a scan: YCSB's zipfian, or uniform.
    #[arg(long, value_enum, default_value_t = Keys::Zipfian)]
    pub keys: Keys,
}

/// The size of the store, and its layout in far memory.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of loaded records.
    pub records: u64,
    /// Bound on the operations, and so on the inserted records.
    pub operations: u64,
    /// Placement of the loaded values.
    pub values: Order,
    /// Layout of the tree's nodes.
    pub layout: Layout,
    /// The way scans fetch values.
    pub bring: Bring,
    /// Distribution of the first record of a scan.
    pub keys: Keys,
    /// True when every answer is checked.
    pub check: bool,
}

/// Returns the command's settings for a tenth of its operations, with all answers checked.
impl Default for Settings {
    fn default() -> Self {
        Self {
            records: 100_000,
            operations: 10_000,
            values: Order::Insertion,
            layout: Layout::Partitioned,
            bring: Bring::Traversals,
            keys: Keys::Zipfian,
            check: true,
        }
    }
}

/// Keys per loaded leaf: as full as leaves are after random inserts.
const FILL: usize = KEYS_MAX * 7 / 10;

/// The store's state, shared by its operations.
struct State {
    tree: BTree,
    records: Records,
    values: Values,
    model: Model,
    /// Number of inserts so far that split a leaf.
    cuts: u64,
    keys: Keys,
    check: bool,
    wrong: u64,
}

/// A loaded store.
pub struct Store(Rc<RefCell<State>>);

impl core::fmt::Debug for Store {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Store").field("tree", &self.0.borrow().tree.address()).finish_non_exhaustive()
    }
}

impl Store {
    /// Loads the records. Calls `progress` with the records loaded and the total.
    ///
    /// # Errors
    /// [`Error`] when far memory has no room or does not answer.
    pub fn load(
        memory: &mut (impl FarMemory + ?Sized),
        settings: &Settings,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Error> {
        let &Settings { records, operations, values: order, layout, bring, keys, check } = settings;
        // Keys by number, then sorted; two numbers with one hash are one record, as in a table.
        let mut numbered: Vec<(u64, u64)> = (0..records).map(|number| (hash(number), number)).collect();
        numbered.sort_unstable();
        numbered.dedup_by_key(|pair| pair.0);
        let mut values = Values::create(memory, records.saturating_add(operations))?;
        let places = values.load(memory, &numbered, records, order, progress)?;
        let mut tree = BTree::create(memory, layout)?;
        assert!(tree.lock().try_lock(memory)?, "no other client knows this tree");
        tree.load(memory, numbered.iter().zip(&places).map(|(pair, place)| (pair.0, place.0)), FILL)?;
        let model = Model::new(numbered.iter().map(|pair| pair.0));
        let records = tree.records(memory, VALUE_LEN, bring)?;
        let state = State { tree, records, values, model, cuts: 0, keys, check, wrong: 0 };
        Ok(Self(Rc::new(RefCell::new(state))))
    }

    /// Returns `count` operations of YCSB's E on the loaded records; equal seeds give equal sequences.
    #[must_use]
    pub fn operations(&self, records: u64, count: u64, seed: u64) -> Operations {
        let keys = self.0.borrow().keys.distribution();
        Operations::new(Rc::clone(&self.0), Workload::E.operations(records, count, seed).with_keys(keys))
    }

    /// Returns the number of wrong answers so far, if they are checked.
    #[must_use]
    pub fn wrong_answers(&self) -> u64 {
        self.0.borrow().wrong
    }

    /// Returns the number of inserts so far that split a leaf and ran exclusively.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.0.borrow().cuts
    }

    /// Frees the store's far memory.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    ///
    /// # Panics
    /// Panics when operations still exist.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        let state = Rc::into_inner(self.0).expect("its operations have ended").into_inner();
        state.values.destroy(memory)?;
        state.tree.destroy(memory)
    }
}

/// Loads the store, runs its workload and destroys the store, on the rack of `client`.
///
/// # Errors
/// [`Error`] when far memory has no room or does not answer.
pub fn serve(
    client: &mut Client,
    transport: &'static str,
    settings: &Settings,
    load: &Load,
) -> Result<Report, Error> {
    let mut progress = Progress::new("tablestore: load");
    let store = load_or_free(client, |memory| {
        Store::load(memory, settings, &mut |done, total| progress.set(done, total))
    })?;
    drop(progress);
    let before = client.packets();
    let operations = store.operations(settings.records, load.operations, load.seed);
    let measured = measure(client, operations, load, "tablestore: operations", Operation::kind);
    let after = client.packets();
    let wrong_answers = store.wrong_answers();
    let remark = format!("{} inserts cut a leaf", store.cuts());
    // Also after a failure: other programs may keep using the rack.
    let destroyed = store.destroy(client);
    let measured = measured?;
    destroyed?;
    let workload = format!(
        "YCSB E on {} records of 8 and {VALUE_LEN} bytes, values {}, {}",
        settings.records,
        settings.values.name(),
        settings.keys.name()
    );
    let packets = after.0 + after.1 - before.0 - before.1;
    let report = Report::new("tablestore", client, transport, load, measured);
    Ok(Report { workload, packets, wrong_answers, remark, ..report })
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] when no rack is available, has room or answers.
pub fn run(args: &Args) -> Result<Report, Failure> {
    let load = args.plan.load();
    let settings = Settings {
        records: args.records,
        operations: load.operations,
        values: args.values,
        layout: Layout::Partitioned,
        bring: if load.policy == RunAt::Host { Bring::Reads } else { Bring::Traversals },
        keys: args.keys,
        check: load.check,
    };
    let bytes = args.records.saturating_add(load.operations).saturating_mul(VALUE_LEN as u64 + 128);
    on_rack(&args.plan, "tablestore", bytes, |client, transport| {
        Ok(serve(client, transport, &settings, &load)?)
    })
}
