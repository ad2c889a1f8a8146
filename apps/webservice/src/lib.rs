//! A web service whose users and their objects are in far memory (PULSE 6, "WebService").
//!
//! A request looks up a user's id in a chained hash table, a traversal of 48 hops as in PULSE's table 3. It
//! then reads the 8 KiB object whose number it found, compresses and encrypts the object, and returns the
//! response. By default 64 users share an object, as in the service that PULSE adopts: 128 million keys for
//! two million objects (AIFM 8.1). An update looks up its user's object and writes a new version in a free
//! place. Requests are YCSB's A, B or C, on zipfian keys as in PULSE, or on uniform ones.
//!
//! # Guarantees of a request
//!
//! A request sees an object as of one moment between its start and its end, whole. An object is never changed
//! in place, and its place is reused only when every request that began before the replacement has ended.
//! Updates of one object run one after the other ([`farmem::task`]). The service is the only writer: it holds
//! the table's lock from [`Service::load`] to [`Service::destroy`], and knows each object's place, like an
//! array of pointers.

mod objects;
mod request;
mod response;

pub use objects::OBJECT_LEN;
pub use request::{Request, Requests};

use clap::builder::RangedU64ValueParser;
use farmem::hash_table::{HashTable, Key, Spread};
use farmem::{Client, Error, FarMemory, VirtAddr};
use farmem_workload::ycsb::{self, Workload};
use farmem_workload::{Failure, Load, Plan, Progress, Report, load_or_free, measure, on_rack};
pub use farmem_workload::{Keys, Mix};
use objects::Objects;
use request::entry;
use response::Responder;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// The command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Options of every application.
    #[command(flatten)]
    pub plan: Plan,
    /// Number of users.
    #[arg(long, value_name = "N", default_value_t = 194_560, value_parser = clap::value_parser!(u64).range(1..1 << 32))]
    pub records: u64,
    /// Number of shared objects of 8 KiB [default: one for 64 users].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..1 << 32))]
    pub objects: Option<u64>,
    /// Average hops to a user through its chain; PULSE's has 48.
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = RangedU64ValueParser::<u64>::new().range(1..=10_000))]
    pub hops: u64,
    /// YCSB workload: A has half updates, B 5 %, C none.
    #[arg(long, value_enum, ignore_case = true, default_value_t = Mix::C)]
    pub workload: Mix,
    /// Distribution of the requested users: YCSB's zipfian, or uniform.
    #[arg(long, value_enum, default_value_t = Keys::Zipfian)]
    pub keys: Keys,
}

/// The size of the service.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of users.
    pub records: u64,
    /// Number of shared objects.
    pub objects: u64,
    /// Average hops to a user through its chain.
    pub hops: u64,
    /// Bound on the requests in flight; as many extra object places are allocated.
    pub in_flight: usize,
    /// Distribution of the requested users.
    pub keys: Keys,
    /// True when every answer is checked.
    pub check: bool,
}

/// Returns the command's settings, with all answers checked.
impl Default for Settings {
    fn default() -> Self {
        let records = 194_560;
        let objects = records / USERS_PER_OBJECT;
        Self { records, objects, hops: 48, in_flight: 32, keys: Keys::Zipfian, check: true }
    }
}

/// Users per object by default.
pub const USERS_PER_OBJECT: u64 = 64;

/// One in this many responses is decrypted when answers are checked; objects are always compared. Decryption
/// tests only this process, and takes longer than making the response.
const OPENED: u64 = 64;

/// The state of an object: its place, the version that every reader must see, and the newest that a reader
/// may see.
#[derive(Clone, Copy, Debug)]
struct ObjectState {
    place: VirtAddr,
    settled: u64,
    begun: u64,
}

/// The service's state, shared by its requests.
struct State {
    table: HashTable,
    objects: Objects,
    responder: Responder,
    users: u64,
    keys: Keys,
    known: Vec<ObjectState>,
    check: bool,
    wrong: u64,
    response_bytes: u64,
    responses: u64,
    responding: Duration,
}

/// A loaded service.
pub struct Service(Rc<RefCell<State>>);

impl core::fmt::Debug for Service {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Service").field("users", &self.0.borrow().users).finish_non_exhaustive()
    }
}

/// Returns the key of a user.
fn key(user: u64) -> Key {
    Key::of(&ycsb::hash(user).to_le_bytes())
}

impl Service {
    /// Loads users and objects. Calls `progress` with the objects loaded and the total.
    ///
    /// # Errors
    /// [`Error`] when far memory has no room or does not answer.
    pub fn load(
        memory: &mut (impl FarMemory + ?Sized),
        settings: &Settings,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Error> {
        let &Settings { records, objects: count, hops, in_flight, keys, check } = settings;
        // In a chain of n, the average user is n / 2 + 1/2 hops away. The bucket count is the nearest power
        // of two.
        let wanted = (records / (2 * hops).saturating_sub(1).max(1)).max(1);
        let above = wanted.next_power_of_two();
        let buckets = if above - wanted > wanted - above / 2 { above / 2 } else { above };
        let mut objects = Objects::create(memory, count, in_flight)?;
        let mut table = HashTable::create(memory, records, buckets.max(1), Spread::Partitioned)?;
        assert!(table.lock().try_lock(memory)?, "no other client knows this table");
        let places = objects.load(memory, count, progress)?;
        let entries = (0..records).map(|user| (key(user), entry(user % count, user)));
        table.load(memory, entries, &mut |_, _| {})?;
        let known = places.into_iter().map(|place| ObjectState { place, settled: 0, begun: 0 }).collect();
        let state = State {
            table,
            objects,
            responder: Responder::new(),
            users: records,
            keys,
            known,
            check,
            wrong: 0,
            response_bytes: 0,
            responses: 0,
            responding: Duration::ZERO,
        };
        Ok(Self(Rc::new(RefCell::new(state))))
    }

    /// Returns `count` requests of a workload; equal seeds give equal sequences.
    #[must_use]
    pub fn requests(&self, workload: Workload, count: u64, seed: u64) -> Requests {
        let (records, keys) = (self.0.borrow().users, self.0.borrow().keys.distribution());
        Requests::new(Rc::clone(&self.0), workload.operations(records, count, seed).with_keys(keys))
    }

    /// Returns the number of wrong answers so far, if they are checked.
    #[must_use]
    pub fn wrong_answers(&self) -> u64 {
        self.0.borrow().wrong
    }

    /// Returns the average bytes of a response so far.
    #[must_use]
    pub fn response_len(&self) -> u64 {
        let state = self.0.borrow();
        state.response_bytes / state.responses.max(1)
    }

    /// Returns the average time of making a response: compression and encryption.
    #[must_use]
    pub fn response_time(&self) -> Duration {
        let state = self.0.borrow();
        state.responding.div_f64(state.responses.max(1) as f64)
    }

    /// Frees the service's far memory.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    ///
    /// # Panics
    /// Panics when requests still exist.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        let state = Rc::into_inner(self.0).expect("its requests have ended").into_inner();
        state.objects.destroy(memory)?;
        state.table.destroy(memory)
    }
}

/// Loads the service, runs its workload and destroys the service, on the rack of `client`.
///
/// # Errors
/// [`Error`] when far memory has no room or does not answer.
pub fn serve(
    client: &mut Client,
    transport: &'static str,
    settings: &Settings,
    mix: Mix,
    load: &Load,
) -> Result<Report, Error> {
    let mut progress = Progress::new("webservice: load");
    let service = load_or_free(client, |memory| {
        Service::load(memory, settings, &mut |done, total| progress.set(done, total))
    })?;
    drop(progress);
    let before = client.packets();
    let requests = service.requests(mix.workload(), load.operations, load.seed);
    let measured = measure(client, requests, load, "webservice: requests", Request::kind);
    let after = client.packets();
    let wrong_answers = service.wrong_answers();
    let (len, time) = (service.response_len(), service.response_time());
    let remark =
        format!("responses of {len} bytes, {:.1} us to compress and encrypt each", time.as_secs_f64() * 1e6);
    // Also after a failure: other programs may keep using the rack.
    let destroyed = service.destroy(client);
    let measured = measured?;
    destroyed?;
    let workload = format!(
        "YCSB {mix:?} on {} users with {} objects of {OBJECT_LEN} bytes, {} hops to each, {}",
        settings.records,
        settings.objects,
        settings.hops,
        settings.keys.name()
    );
    let packets = after.0 + after.1 - before.0 - before.1;
    let report = Report::new("webservice", client, transport, load, measured);
    Ok(Report { workload, packets, wrong_answers, remark, ..report })
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] when no rack is available, has room or answers.
pub fn run(args: &Args) -> Result<Report, Failure> {
    let load = args.plan.load();
    let (records, hops, in_flight, check) = (args.records, args.hops, load.in_flight, load.check);
    let objects = args.objects.unwrap_or(records / USERS_PER_OBJECT).max(1);
    let settings = Settings { records, objects, hops, in_flight, keys: args.keys, check };
    let bytes = (objects + 4 * objects::spare(in_flight)) * OBJECT_LEN as u64 + records * 256;
    on_rack(&args.plan, "webservice", bytes, |client, transport| {
        Ok(serve(client, transport, &settings, args.workload, &load)?)
    })
}
