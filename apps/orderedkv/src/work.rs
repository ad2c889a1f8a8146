//! YCSB's workloads A to F on a store of numbers, as tasks, with every answer checked.
//!
//! Look-ups run in parallel; writes and scans run exclusively ([`farmem::task`]), so the expected result of
//! each look-up is known exactly.

use crate::keys::KeyKind;
use crate::model::{Model, len_of, value_of};
use crate::store::{Access, Store, StoreError, emit};
use farmem::blink_tree::{Extent, IndexAgent};
use farmem::{BLinkTree, Client, Completed, Error, FarMemory, Layout, Next, OpQueue, RecordTree, Task};
use farmem_workload::ycsb::{self, Workload, hash};
use farmem_workload::{Failure, Keys, Load, Plan, Progress, Report, measure, on_rack};
use std::cell::RefCell;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::rc::Rc;

/// The YCSB workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
#[value(rename_all = "UPPER")]
pub enum Mix {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % reads of the most recently inserted records, 5 % inserts.
    D,
    /// 95 % scans of 1 to 100 records, 5 % inserts.
    E,
    /// Half reads, half reads followed by an update.
    F,
}

impl Mix {
    const fn workload(self) -> Workload {
        match self {
            Self::A => Workload::A,
            Self::B => Workload::B,
            Self::C => Workload::C,
            Self::D => Workload::D,
            Self::E => Workload::E,
            Self::F => Workload::F,
        }
    }
}

/// The command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Options of every application.
    #[command(flatten)]
    pub plan: Plan,
    /// Number of loaded records.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..1 << 32))]
    pub records: u64,
    /// YCSB workload.
    #[arg(long, value_enum, ignore_case = true, default_value_t = Mix::B)]
    pub workload: Mix,
    /// Bytes of a value; the default is YCSB's ten fields of a hundred bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    pub value_len: usize,
    /// Use values of random lengths up to that.
    #[arg(long)]
    pub mixed: bool,
    /// Distribution of the requested records; workload D requests the most recently inserted ones.
    #[arg(long, value_enum, default_value_t = Keys::Zipfian)]
    pub keys: Keys,
    /// Do not publish the tree's index in the switch.
    #[arg(long)]
    pub no_index: bool,
}

/// The size of the store and its workload.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of loaded records.
    pub records: u64,
    /// YCSB's workload.
    pub mix: Mix,
    /// Bound on the bytes of a value.
    pub value_len: usize,
    /// True when values have random lengths up to that bound.
    pub mixed: bool,
    /// Distribution of the requested records.
    pub keys: Keys,
    /// True when the tree's index is published in the switch.
    pub index: bool,
}

/// Keys per loaded leaf: as full as leaves are after random insertions.
const FILL: usize = 10;
/// Returns a unique name for the store that a workload creates and destroys, so that it never destroys
/// another store.
fn fresh_name() -> String {
    // The hasher's keys are the system's random numbers.
    format!("orderedkv-{:016x}", RandomState::new().build_hasher().finish())
}

/// The store and its expected contents, shared by the operations.
struct State {
    store: Store,
    model: Model,
    settings: Settings,
    check: bool,
    wrong: u64,
    /// True while look-ups may be in flight, which hold pointers.
    is_pinned: bool,
}

impl State {
    fn new(store: Store, settings: &Settings, check: bool) -> Self {
        Self { store, model: Model::default(), settings: *settings, check, wrong: 0, is_pinned: false }
    }

    fn pin(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.store.heap.pin(memory)?;
        self.is_pinned = true;
        Ok(())
    }

    /// Runs also when the last pin was refused: the error of a lost rack must reach the caller at the end.
    fn unpin(&mut self) {
        if core::mem::take(&mut self.is_pinned) {
            self.store.heap.unpin();
        }
    }

    fn value(&self, key: u64, version: u32) -> Vec<u8> {
        let Settings { value_len, mixed, .. } = self.settings;
        value_of(key, version, len_of(key, version, value_len, mixed))
    }

    /// Compares the value found under `key` with the expected one.
    fn look_at(&mut self, key: u64, found: Option<&[u8]>) {
        if self.check {
            let expected = self.model.newest(key).map(|version| self.value(key, version));
            self.wrong += u64::from(found != expected.as_deref());
        }
    }

    fn write(&mut self, memory: &mut dyn FarMemory, key: u64) -> Result<(), Error> {
        let was_there = self.model.newest(key).is_some();
        let version = self.model.write(key);
        let value = self.value(key, version);
        let was = self.store.set(memory, key.to_string().as_bytes(), &value).map_err(far)?;
        self.wrong += u64::from(self.check && was != was_there);
        Ok(())
    }

    fn scan(&mut self, memory: &mut dyn FarMemory, from: u64, most: usize) -> Result<(), Error> {
        let found = self.store.range(memory, Some(from.to_string().as_bytes()), None, most).map_err(far)?;
        if self.check {
            let expected = self
                .model
                .from(from, most)
                .map(|(key, version)| (key.to_string().into_bytes(), self.value(key, version)));
            self.wrong += u64::from(!expected.eq(found));
        }
        Ok(())
    }
}

/// Extracts the far-memory error: keys and values of a workload are always valid.
fn far(error: StoreError) -> Error {
    match error {
        StoreError::Far(error) => error,
        other => unreachable!("a workload writes keys and values that a store can have: {other}"),
    }
}

/// One of a workload's operations.
pub struct Operation {
    state: Rc<RefCell<State>>,
    what: ycsb::Operation,
    /// True while a look-up is in flight.
    looks: bool,
    alone: bool,
}

impl core::fmt::Debug for Operation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Operation").field("what", &self.what).finish_non_exhaustive()
    }
}

impl Operation {
    /// Returns the kind of the operation.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self.what {
            ycsb::Operation::Read { .. } => "read",
            ycsb::Operation::Update { .. } => "update",
            ycsb::Operation::Insert { .. } => "insert",
            ycsb::Operation::Scan { .. } => "scan",
            ycsb::Operation::ReadModifyWrite { .. } => "read-modify-write",
        }
    }
}

impl Task for Operation {
    fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
        let mut state = self.state.borrow_mut();
        let key = self.what.key();
        if self.alone {
            return Ok(Next::Done);
        }
        if !matches!(self.what, ycsb::Operation::Read { .. }) {
            self.alone = true;
            return Ok(Next::Alone);
        }
        if !self.looks {
            self.looks = true;
            let op = state.store.first().get_op(key, queue.buffer());
            queue.need(op);
            return Ok(Next::Need);
        }
        let completed = queue.one();
        let brought = RecordTree::fetched(&completed);
        let Completed { result, buf, .. } = completed;
        result?;
        queue.recycle(buf);
        if let Some(content) = brought
            && let Some(value) = content.strip_prefix(&emit(&[], b"")[..])
        {
            state.look_at(key, Some(value));
            return Ok(Next::Done);
        }
        // The key is missing, or its value is too long for the traversal.
        self.alone = true;
        Ok(Next::Alone)
    }

    fn alone(&mut self, memory: &mut dyn FarMemory) -> Result<(), Error> {
        let mut state = self.state.borrow_mut();
        // No look-up is in flight, so nothing holds older pointers.
        state.unpin();
        let key = self.what.key();
        let done = match self.what {
            ycsb::Operation::Read { .. } => read(&mut state, memory, key),
            ycsb::Operation::Update { .. } | ycsb::Operation::Insert { .. } => state.write(memory, key),
            ycsb::Operation::Scan { len, .. } => {
                state.scan(memory, key, usize::try_from(len).expect("at most a hundred"))
            }
            ycsb::Operation::ReadModifyWrite { .. } => {
                read(&mut state, memory, key).and_then(|()| state.write(memory, key))
            }
        };
        state.pin(memory)?;
        done
    }
}

fn read(state: &mut State, memory: &mut dyn FarMemory, key: u64) -> Result<(), Error> {
    let found = state.store.get(memory, key.to_string().as_bytes()).map_err(far)?;
    state.look_at(key, found.as_deref());
    Ok(())
}

/// Loads a store, runs a workload and destroys the store, on the rack of `client`.
///
/// # Errors
/// [`Failure`] when far memory has no room or does not answer.
///
/// Panics when an operation outlives the run.
/// When an operation outlives the run.
pub fn serve(
    client: &mut Client,
    transport: &'static str,
    settings: &Settings,
    load: &Load,
) -> Result<Report, Failure> {
    let store = Store::create(client, &fresh_name(), KeyKind::U64, Access::Write)
        .map_err(|error| Failure::new(error.to_string(), error.remedy()))?;
    let check = load.check;
    let state = Rc::new(RefCell::new(State::new(store, settings, check)));
    let worked = carry_out(client, transport, &state, load);
    let store = Rc::into_inner(state).expect("its operations have ended").into_inner().store;
    // Also after a failure: other programs may keep using the rack.
    let destroyed = store.destroy(client);
    let report = worked?;
    destroyed.map_err(|error| Failure::new(error.to_string(), error.remedy()))?;
    Ok(report)
}

fn fill(client: &mut Client, state: &mut State) -> Result<(), Error> {
    let mut progress = Progress::new("orderedkv: load");
    let records = state.settings.records;
    let mut keys: Vec<u64> = (0..records).map(hash).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.iter().for_each(|key| _ = state.model.write(*key));
    let Settings { value_len, mixed, .. } = state.settings;
    let pairs = keys.iter().enumerate().map(|(n, &key)| {
        progress.set(n as u64, records);
        (key, emit(&[], &value_of(key, 1, len_of(key, 1, value_len, mixed))))
    });
    let (tree, heap) = state.store.first_mut();
    tree.load(client, heap, pairs, FILL)
}

fn carry_out(
    client: &mut Client,
    transport: &'static str,
    shared: &Rc<RefCell<State>>,
    load: &Load,
) -> Result<Report, Failure> {
    let mut state = shared.borrow_mut();
    let settings = state.settings;
    fill(client, &mut state)?;
    state.store.first_mut().0.set_policy(load.policy.policy());
    let mut agent = None;
    let mut remark = "the switch knows nothing of the tree".to_owned();
    if settings.index {
        let address = state.store.first().tree().address();
        let tree = BLinkTree::open(client, address, Layout::Partitioned)?;
        let agent = agent.insert(IndexAgent::new(tree, Extent::default())?);
        let stepped = agent.step(client)?;
        remark = format!("the switch has {} ranges and {:?} nodes of the tree", stepped.ranges, stepped.sets);
    }
    let Settings { records, mix, value_len, mixed, keys, .. } = settings;
    let operations = mix.workload().operations(records, load.operations, load.seed);
    let operations = operations.with_keys(keys.distribution());
    let tasks =
        operations.map(|what| Operation { state: Rc::clone(shared), what, looks: false, alone: false });
    let before = client.packets();
    state.pin(client)?;
    drop(state);
    let measured = measure(client, tasks, load, "orderedkv: operations", Operation::kind);
    let mut state = shared.borrow_mut();
    state.unpin();
    let after = client.packets();
    if let Some(agent) = &mut agent {
        agent.withdraw(client)?;
    }
    let up_to = if mixed { "1 to " } else { "" };
    let workload =
        format!("YCSB {mix:?} on {records} records of {up_to}{value_len} bytes in order, {}", keys.name());
    let packets = after.0 + after.1 - before.0 - before.1;
    let wrong_answers = state.wrong;
    let report = Report::new("orderedkv", client, transport, load, measured?);
    Ok(Report { workload, packets, wrong_answers, remark, ..report })
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] when no rack is available, has room or answers.
pub fn run(args: &Args) -> Result<Report, Failure> {
    let load = args.plan.load();
    let Args { records, workload: mix, value_len, mixed, keys, no_index, .. } = *args;
    let settings = Settings { records, mix, value_len, mixed, keys, index: !no_index };
    let bytes = room_for(records, load.operations, value_len);
    on_rack(&args.plan, "orderedkv", bytes, |client, transport| serve(client, transport, &settings, &load))
}

/// Returns the bytes of far memory: per record a value, its lines, and its share of the nodes; and as much
/// again for updates.
const fn room_for(records: u64, operations: u64, value_len: usize) -> u64 {
    records.saturating_add(operations).saturating_mul(value_len as u64 * 5 / 4 + 320)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A refused pin is not released: the refusal is reported, without a panic.
    #[test]
    fn only_a_pin_that_was_taken_is_given_back() {
        let mut client = farmem::Rack::embedded_with(1, 64 << 20).unwrap().client("pins").unwrap();
        let store = Store::create(&mut client, "pins", KeyKind::U64, Access::Write).unwrap();
        let (mix, keys) = (Mix::A, Keys::Zipfian);
        let settings = Settings { records: 1, mix, value_len: 1, mixed: false, keys, index: false };
        let mut state = State::new(store, &settings, true);
        state.unpin();
        for _ in 0..2 {
            state.pin(&mut client).unwrap();
            state.unpin();
            state.unpin();
        }
        state.store.destroy(&mut client).unwrap();
    }

    /// Overflow saturates and does not wrap to a small number.
    #[test]
    fn room_does_not_wrap() {
        assert_eq!(room_for(2, 1, 1_000), 3 * 1_570);
        assert_eq!(room_for(1 << 32, u64::MAX, 1), u64::MAX);
        assert_eq!(room_for(1, u64::MAX / 400, 1_000), u64::MAX);
    }
}
