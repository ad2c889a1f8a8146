//! A table whose index and values are in far memory (PULSE 6, "WiredTiger"): keys of 8 bytes in a B+tree, values of 240 bytes, YCSB's E.
//!
//! A scan of up to 100 records takes pairs of key and place out of the tree by traversals along the leaves, as many to a request as a
//! scratch pad holds ([`farmem::btree::SCAN_PAIRS_MAX`]); the READs of the values of one request are under way together with the next
//! request, and values that lie side by side are one READ. An insert writes the value while it looks for the leaf, and then the leaf.
//!
//! # What a scan sees
//!
//! Every record that was there when it began, and of those that are inserted meanwhile any part; each with its own value, since a value is
//! complete before its key is in the tree. Inserts take turns, and the few that cut a leaf run alone, so that no scan meets a cut
//! ([`farmem::btree`] says what one would see). The store is the only writer: it holds the tree's lock from [`Store::load`] to
//! [`Store::destroy`].

mod model;
mod operation;
mod values;

pub use operation::{Operation, Operations};
pub use values::{Order, VALUE_LEN};

use farmem::btree::{BTree, KEYS_MAX};
use farmem::ycsb::{Workload, hash};
use farmem::{Client, Error, FarMemory, Layout};
use farmem_workload::{Failure, Load, Plan, Progress, Report, measure, on_rack};
use model::Model;
use std::cell::RefCell;
use std::rc::Rc;
use values::Values;

/// What the command can be told.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What every application can be told.
    #[command(flatten)]
    pub plan: Plan,
    /// Records that are loaded.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..1 << 32))]
    pub records: u64,
    /// How loaded values lie in far memory.
    #[arg(long, value_enum, default_value_t = Order::Insertion)]
    pub values: Order,
}

/// How large the store is, and how it lies in far memory.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Records that are loaded.
    pub records: u64,
    /// Operations that may follow: as many records may be inserted.
    pub operations: u64,
    /// How loaded values lie.
    pub values: Order,
    /// How the tree's nodes lie.
    pub layout: Layout,
    /// Whether every answer is checked.
    pub check: bool,
}

/// Keys of a leaf when it is loaded: as full as leaves are after inserts of keys in any order.
const FILL: usize = KEYS_MAX * 7 / 10;

/// The store. Its operations share it.
struct State {
    tree: BTree,
    values: Values,
    model: Model,
    /// Inserts so far that cut a leaf.
    cuts: u64,
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
    /// Loads the records. `progress` hears records loaded and records in all.
    ///
    /// # Errors
    /// [`Error`] when far memory has no room or does not answer.
    pub fn load(
        memory: &mut (impl FarMemory + ?Sized),
        settings: &Settings,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Error> {
        let &Settings { records, operations, values: order, layout, check } = settings;
        // Keys by number, then in order; two numbers with one hash are one record, as a table has it.
        let mut keys: Vec<(u64, u64)> = (0..records).map(|number| (hash(number), number)).collect();
        keys.sort_unstable();
        keys.dedup_by_key(|pair| pair.0);
        let mut values = Values::create(memory, records + operations)?;
        let places = values.load(memory, &keys, records, order, progress)?;
        let mut tree = BTree::create(memory, layout)?;
        assert!(tree.lock().try_lock(memory)?, "nobody else knows this tree");
        tree.load(memory, keys.iter().zip(&places).map(|(pair, place)| (pair.0, place.0)), FILL)?;
        let model = Model::new(keys.iter().map(|pair| pair.0));
        Ok(Self(Rc::new(RefCell::new(State { tree, values, model, cuts: 0, check, wrong: 0 }))))
    }

    /// `count` operations of YCSB's E on the records that were loaded; one seed gives one sequence.
    #[must_use]
    pub fn operations(&self, records: u64, count: u64, seed: u64) -> Operations {
        Operations::new(Rc::clone(&self.0), Workload::E.operations(records, count, seed))
    }

    /// Answers that were wrong so far, when they are checked.
    #[must_use]
    pub fn wrong_answers(&self) -> u64 {
        self.0.borrow().wrong
    }

    /// Inserts that cut a leaf so far, and ran alone.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.0.borrow().cuts
    }

    /// Frees what it has in far memory.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    ///
    /// # Panics
    /// When operations of it are still there.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        let state = Rc::into_inner(self.0).expect("its operations have ended").into_inner();
        state.values.destroy(memory)?;
        state.tree.destroy(memory)
    }
}

/// Loads the store, carries out its workload and destroys it again, on the rack of `client`.
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
    let store = Store::load(client, settings, &mut |done, total| progress.set(done, total))?;
    drop(progress);
    let before = client.packets();
    let operations = store.operations(settings.records, load.operations, load.seed);
    let measured = measure(client, operations, load, "tablestore: operations", Operation::kind);
    let after = client.packets();
    let wrong_answers = store.wrong_answers();
    let remark = format!("{} inserts cut a leaf", store.cuts());
    // Also when that failed: the rack may be somebody's who goes on using it.
    let destroyed = store.destroy(client);
    let measured = measured?;
    destroyed?;
    let workload = format!(
        "YCSB E on {} records of 8 and {VALUE_LEN} bytes, values {}",
        settings.records,
        settings.values.name()
    );
    let packets = after.0 + after.1 - before.0 - before.1;
    let report = Report::new("tablestore", client, transport, load, measured);
    Ok(Report { workload, packets, wrong_answers, remark, ..report })
}

/// The command.
///
/// # Errors
/// [`Failure`] when there is no rack, or it has no room or does not answer.
pub fn run(args: &Args) -> Result<Report, Failure> {
    let load = args.plan.load();
    let settings = Settings {
        records: args.records,
        operations: load.operations,
        values: args.values,
        layout: Layout::Partitioned,
        check: load.check,
    };
    let bytes = (args.records + load.operations) * (VALUE_LEN as u64 + 128);
    on_rack(&args.plan, "tablestore", bytes, |client, transport| {
        Ok(serve(client, transport, &settings, &load)?)
    })
}
