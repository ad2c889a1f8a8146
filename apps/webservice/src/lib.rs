//! A web service whose users and their objects are in far memory (PULSE 6, "WebService").
//!
//! A request looks a user's id up in a chained hash table, a traversal of 48 hops as PULSE's table 3 has it; reads the 8 KiB object whose
//! number it finds there; and makes the response: the object compressed, then encrypted. There are many more users than objects, 64 to one
//! unless told otherwise, as in the service that PULSE takes over: 128 million keys before two million objects (AIFM 8.1). An update
//! looks its user's object up and writes it anew, in a free place. Requests are YCSB's A, B or C, on zipfian keys as
//! PULSE has them, or on uniform ones.
//!
//! # What a request sees
//!
//! An object as it was at one moment between the request's start and its end, whole: an object is never changed in place, and its place
//! is used again only when every request that began before it was replaced has ended. Updates of one object take turns
//! ([`farmem::task`]). The service is the only writer: it holds the table's lock from [`Service::load`] to [`Service::destroy`], and knows
//! where each object is, as an array of pointers does.

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

/// What the command can be told.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What every application can be told.
    #[command(flatten)]
    pub plan: Plan,
    /// Users.
    #[arg(long, value_name = "N", default_value_t = 194_560, value_parser = clap::value_parser!(u64).range(1..1 << 32))]
    pub records: u64,
    /// Objects of 8 KiB that users share [default: one for 64 users].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..1 << 32))]
    pub objects: Option<u64>,
    /// The average way to a user through its chain; PULSE's has 48.
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = RangedU64ValueParser::<u64>::new().range(1..=10_000))]
    pub hops: u64,
    /// YCSB's workload: A has half updates, B 5 %, C none.
    #[arg(long, value_enum, ignore_case = true, default_value_t = Mix::C)]
    pub workload: Mix,
    /// How often each user is asked for: as YCSB's zipfian distribution has it, or all alike.
    #[arg(long, value_enum, default_value_t = Keys::Zipfian)]
    pub keys: Keys,
}

/// How large the service is.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Users.
    pub records: u64,
    /// Objects that they share.
    pub objects: u64,
    /// The average way to a user through its chain.
    pub hops: u64,
    /// Requests under way at once at most: there are places for that many objects more.
    pub in_flight: usize,
    /// How often each user is asked for.
    pub keys: Keys,
    /// Whether every answer is checked.
    pub check: bool,
}

/// The command's, all answers checked.
impl Default for Settings {
    fn default() -> Self {
        let records = 194_560;
        let objects = records / USERS_PER_OBJECT;
        Self { records, objects, hops: 48, in_flight: 32, keys: Keys::Zipfian, check: true }
    }
}

/// Users that share an object, unless told otherwise.
pub const USERS_PER_OBJECT: u64 = 64;

/// One of this many responses is opened again when answers are checked. Objects are compared each time. Whether a response opens depends on
/// this process alone, and opening one takes longer than making it.
const OPENED: u64 = 64;

/// What is known of an object: where it is, the version that every reader must see, and the newest that a reader may see.
#[derive(Clone, Copy, Debug)]
struct Known {
    place: VirtAddr,
    settled: u64,
    begun: u64,
}

/// The service. Its requests share it.
struct State {
    table: HashTable,
    objects: Objects,
    responder: Responder,
    users: u64,
    keys: Keys,
    known: Vec<Known>,
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

/// The key of a user.
fn key(user: u64) -> Key {
    Key::of(&ycsb::hash(user).to_le_bytes())
}

impl Service {
    /// Loads users and objects. `progress` hears objects loaded and objects in all.
    ///
    /// # Errors
    /// [`Error`] when far memory has no room or does not answer.
    pub fn load(
        memory: &mut (impl FarMemory + ?Sized),
        settings: &Settings,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Error> {
        let &Settings { records, objects: count, hops, in_flight, keys, check } = settings;
        // A chain of n has its users n / 2 + 1/2 hops away on average. The number of buckets is a power of two: the nearest.
        let wanted = (records / (2 * hops).saturating_sub(1).max(1)).max(1);
        let above = wanted.next_power_of_two();
        let buckets = if above - wanted > wanted - above / 2 { above / 2 } else { above };
        let mut objects = Objects::create(memory, count, in_flight)?;
        let mut table = HashTable::create(memory, records, buckets.max(1), Spread::Partitioned)?;
        assert!(table.lock().try_lock(memory)?, "no other client knows this table");
        let places = objects.load(memory, count, progress)?;
        let entries = (0..records).map(|user| (key(user), entry(user % count, user)));
        table.load(memory, entries, &mut |_, _| {})?;
        let known = places.into_iter().map(|place| Known { place, settled: 0, begun: 0 }).collect();
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

    /// `count` requests of a workload; one seed gives one sequence.
    #[must_use]
    pub fn requests(&self, workload: Workload, count: u64, seed: u64) -> Requests {
        let (records, keys) = (self.0.borrow().users, self.0.borrow().keys.distribution());
        Requests::new(Rc::clone(&self.0), workload.operations(records, count, seed).with_keys(keys))
    }

    /// Answers that were wrong so far, when they are checked.
    #[must_use]
    pub fn wrong_answers(&self) -> u64 {
        self.0.borrow().wrong
    }

    /// Bytes of an average response so far.
    #[must_use]
    pub fn response_len(&self) -> u64 {
        let state = self.0.borrow();
        state.response_bytes / state.responses.max(1)
    }

    /// The time that making an average response took: compression and encryption.
    #[must_use]
    pub fn response_time(&self) -> Duration {
        let state = self.0.borrow();
        state.responding.div_f64(state.responses.max(1) as f64)
    }

    /// Frees what it has in far memory.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    ///
    /// # Panics
    /// When requests of it are still there.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        let state = Rc::into_inner(self.0).expect("its requests have ended").into_inner();
        state.objects.destroy(memory)?;
        state.table.destroy(memory)
    }
}

/// Loads the service, carries out its workload and destroys it again, on the rack of `client`.
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
    // Also when that failed: other programs may go on using the rack.
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

/// The command.
///
/// # Errors
/// [`Failure`] when there is no rack, or it has no room or does not answer.
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
