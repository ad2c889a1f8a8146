//! `pd3.hostview.*`: the keys per second that one core looks up in a set of all keys that the host holds
//! (PD3, figure 4).
//!
//! Keys are pseudo-random 64-bit numbers, 80 % of the slots are in use, and look-ups are of held keys, drawn
//! uniformly, in batches of [`BATCH`]. The general-purpose sets are Rust's: `std` with its own hasher, and
//! `hashbrown` with its own, the port of the paper's Abseil set. The cuckoo set follows, with one more
//! optimisation per step. All alternate, beside reads of lines of an equally large store.

use crate::pulse::node::lines;
use crate::rates::{Chance, Measured, Rates, Variant, cpu_time, measure as in_turns};
use crate::{Row, Sheet};
use farmem_dpu::view::{HostView, KeyId};
use farmem_link::{MappedStore, OpenError, PageSize};
use farmem_memnode::Store as _;
use farmem_prefetch::keys::{Compare, HostKeys, KeyShards, KeysConfig, Lookup, Order};
use procfs_core::{FromRead as _, Meminfo};
use std::cell::Cell;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::Duration;

/// Keys per batch: a quarter of a parser's maximum. The first lines of a batch arrive while nothing is
/// compared, so short batches cost more.
const BATCH: usize = 1024;
/// Look-ups per measurement.
const LOOKUPS: usize = 1 << 21;
/// Slots in use, in percent.
const LOAD_PERCENT: u32 = 80;
/// Bytes of all sets together per key, plus the keys to look up.
const BYTES_A_KEY: u64 = 64;

/// The extent of the measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) keys: usize,
    pub(super) rounds: usize,
}

const LINES: &str = "pd3.hostview.lines";
/// The row ids, in the order of the ladder.
pub(super) const IDS: [&str; 10] = [
    LINES,
    "pd3.hostview.std",
    "pd3.hostview.hashbrown",
    "pd3.hostview.cuckoo",
    "pd3.hostview.huge",
    "pd3.hostview.batch",
    "pd3.hostview.simd",
    "pd3.hostview.delayed",
    "pd3.hostview.absent",
    "pd3.hostview.shards2",
];

#[expect(clippy::disallowed_types, reason = "it is what is measured; its order is not looked at")]
type StdSet = std::collections::HashSet<u64>;

/// The compared sets, all with the same keys.
struct Subject {
    keys: u64,
    store: MappedStore,
    std: StdSet,
    hashbrown: hashbrown::HashSet<u64>,
    small: HostKeys,
    huge: HostKeys,
    shards: KeyShards,
    /// Number of wrong answers.
    wrong: Cell<u64>,
}

/// Returns key `n`; all keys differ.
const fn key(n: u64) -> u64 {
    let z = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl Subject {
    fn fill(count: usize) -> Result<Self, OpenError> {
        const PIECE: usize = 1 << 12;
        let config = |pages| KeysConfig { keys_max: count, load_percent: LOAD_PERCENT, pages };
        let mut huge = HostKeys::new(config(PageSize::Huge))?;
        let mut small = HostKeys::new(config(PageSize::Small))?;
        let two = NonZeroUsize::new(2).expect("two");
        let mut shards = KeyShards::new(two, config(PageSize::Huge))?;
        let no_room = |e: std::io::Error| OpenError::NoRoom {
            doing: format!("read lines: {e}"),
            remedy: "choose fewer keys".into(),
        };
        let mut store = MappedStore::new(huge.bytes() as u64).map_err(no_room)?;
        // Unwritten pages would all share one zero page.
        (0..store.len()).step_by(4096).for_each(|at| store.write(at, &[1]));
        let keys = count as u64;
        let pieces = || {
            (0..keys).step_by(PIECE).map(|first| {
                (first..keys.min(first + PIECE as u64)).map(|n| KeyId(key(n))).collect::<Vec<_>>()
            })
        };
        // The general-purpose sets are filled on the other core: together they take as long as the rest.
        let ((std, hashbrown), refused) = std::thread::scope(|threads| {
            let others = threads.spawn(|| {
                let (mut std, mut hashbrown) =
                    (StdSet::with_capacity(count), hashbrown::HashSet::with_capacity(count));
                for piece in pieces() {
                    std.extend(piece.iter().map(|key| key.0));
                    hashbrown.extend(piece.iter().map(|key| key.0));
                }
                (std, hashbrown)
            });
            let mut refused = 0;
            for piece in pieces() {
                refused += huge.insert_all(&piece) + small.insert_all(&piece);
                let (of_first, of_second): (Vec<KeyId>, Vec<KeyId>) =
                    piece.iter().partition(|key| shards.shard_of(**key) == 0);
                let [first, second] = shards.shards_mut() else { unreachable!("two were made") };
                refused += first.insert_all(&of_first) + second.insert_all(&of_second);
            }
            (others.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), refused)
        });
        Ok(Self { keys, store, std, hashbrown, small, huge, shards, wrong: Cell::new(refused as u64) })
    }

    /// Draws keys to look up: held ones, or only others.
    fn wanted(&self, chance: &mut Chance, held: bool) -> Vec<KeyId> {
        let from = if held { 0 } else { self.keys };
        (0..LOOKUPS).map(|_| KeyId(key(from + chance.below(self.keys)))).collect()
    }

    /// Times `find`, which returns how many of the keys it found.
    fn timed(&self, keys: &[KeyId], held: bool, find: impl FnOnce(&[KeyId]) -> usize) -> Measured {
        let begin = cpu_time();
        let found = black_box(find(keys));
        let time = cpu_time() - begin;
        let right = if held { keys.len() } else { 0 };
        self.wrong.set(self.wrong.get() + found.abs_diff(right) as u64);
        Measured { units: keys.len() as u64, time }
    }
}

/// Looks up all keys in batches. Returns the number of held ones.
fn count(view: &impl HostView, keys: &[KeyId]) -> usize {
    let mut held = [false; BATCH];
    let of_batch = |keys: &[KeyId]| {
        let held = &mut held[..keys.len()];
        view.contains(keys, held);
        held.iter().filter(|held| **held).count()
    };
    keys.chunks(BATCH).map(of_batch).sum()
}

/// Returns a step of the ladder.
fn step(name: &'static str, pages: PageSize, lookup: Lookup, held: bool) -> Variant<'static, Subject> {
    Variant::new(name, move |subject: &mut Subject, chance| {
        let set = if pages == PageSize::Huge { &mut subject.huge } else { &mut subject.small };
        set.look_up_by(lookup).expect("what this CPU has");
        let keys = subject.wanted(chance, held);
        subject.timed(&keys, held, |keys| {
            count(if pages == PageSize::Huge { &subject.huge } else { &subject.small }, keys)
        })
    })
}

/// Runs both shards at once, each on its own thread. Returns their total over the time of the slower one.
fn shards(subject: &mut Subject, chance: &mut Chance) -> Measured {
    let keys = subject.wanted(chance, true);
    let mut split = [Vec::with_capacity(LOOKUPS), Vec::with_capacity(LOOKUPS)];
    for &key in &keys {
        split[subject.shards.shard_of(key)].push(key);
    }
    let of_shard = |(shard, keys): (&mut HostKeys, &Vec<KeyId>)| -> (usize, Duration) {
        let begin = cpu_time();
        let found = black_box(count(shard, keys));
        (found, cpu_time() - begin)
    };
    let both: Vec<_> = std::thread::scope(|threads| {
        let parts = subject.shards.shards_mut().iter_mut().zip(&split);
        let running: Vec<_> = parts.map(|part| threads.spawn(move || of_shard(part))).collect();
        running.into_iter().map(|thread| thread.join().expect("it looks up")).collect()
    });
    let found: usize = both.iter().map(|(found, _)| found).sum();
    subject.wrong.set(subject.wrong.get() + keys.len().abs_diff(found) as u64);
    let time = both.iter().map(|(_, time)| *time).max().unwrap_or_default();
    Measured { units: keys.len() as u64, time }
}

fn ways() -> Vec<Variant<'static, Subject>> {
    let scalar = |order| Lookup { order, compare: Compare::Scalar };
    let fast = |order| Lookup { order, compare: Compare::best() };
    let mut ways = lines::limits(|subject: &Subject| &subject.store);
    ways.extend([
        Variant::new(IDS[1], |subject: &mut Subject, chance| {
            let keys = subject.wanted(chance, true);
            subject.timed(&keys, true, |keys| keys.iter().filter(|key| subject.std.contains(&key.0)).count())
        }),
        Variant::new(IDS[2], |subject: &mut Subject, chance| {
            let keys = subject.wanted(chance, true);
            subject.timed(&keys, true, |keys| {
                keys.iter().filter(|key| subject.hashbrown.contains(&key.0)).count()
            })
        }),
        step(IDS[3], PageSize::Small, scalar(Order::OneByOne), true),
        step(IDS[4], PageSize::Huge, scalar(Order::OneByOne), true),
        step(IDS[5], PageSize::Huge, scalar(Order::Both), true),
        step(IDS[6], PageSize::Huge, fast(Order::Both), true),
        step(IDS[7], PageSize::Huge, fast(Order::best()), true),
        step(IDS[8], PageSize::Huge, fast(Order::best()), false),
        Variant::new(IDS[9], shards),
    ]);
    ways
}

/// Returns the rows; all absent when there is not enough memory.
pub(super) fn measure(budget: Budget, sheet: &mut Sheet<'_>) {
    let need = budget.keys as u64 * BYTES_A_KEY;
    let have = Meminfo::from_file("/proc/meminfo").ok().and_then(|info| info.mem_available);
    let absent = |why: String| IDS.map(|id| Row::absent(id, "1/s", why.clone()));
    if let Some(have) = have.filter(|have| *have < need) {
        let why = format!(
            "{} keys need {} MiB in all sets, and {} MiB are free: choose fewer by --keys",
            budget.keys,
            need >> 20,
            have >> 20
        );
        return sheet.add(absent(why));
    }
    sheet.begins(&format!("sets of {} keys", budget.keys));
    let mut subject = match Subject::fill(budget.keys) {
        Ok(subject) => subject,
        Err(error) => return sheet.add(absent(error.to_string())),
    };
    sheet.begins("look-ups in turns");
    let mut rates = in_turns(&mut subject, ways(), budget.rounds);
    rates.push(lines::limit(&rates, LINES));
    sheet.add(IDS.map(|id| row(id, &rates, &subject)));
    sheet.add_wrong(subject.wrong.get());
}

/// Returns a row compared with the line-read limit; two shards are compared with one core.
fn row(id: &'static str, rates: &[Rates], subject: &Subject) -> Row {
    let of = |name: &str| rates.iter().find(|rates| rates.name == name).expect("every way is measured");
    let way = of(id);
    let per_second = |rates: &Rates| rates.p50() * 1e6;
    let baseline = match id {
        LINES => None,
        "pd3.hostview.shards2" => Some(of(IDS[7])),
        _ => Some(of(LINES)),
    };
    let slowest = way.millions_per_s.iter().copied().fold(f64::INFINITY, f64::min) * 1e6;
    let why = (id == IDS[4]).then(|| {
        let huge = subject
            .huge
            .huge_len()
            .map_or_else(|| "an unknown part".to_owned(), |len| format!("{} MiB", len >> 20));
        format!(
            "{huge} of {} MiB lie in huge pages; {:?} compares from simd on",
            subject.huge.bytes() >> 20,
            Compare::best()
        )
    });
    let why =
        why.or_else(|| (id == IDS[7]).then(|| format!("the order of this processor: {:?}", Order::best())));
    let cores = if id == IDS[9] { 2.0 } else { 1.0 };
    Row {
        baseline: baseline.map(per_second),
        ratio: baseline.map(|baseline| way.times(baseline)),
        p50: Some(per_second(way)),
        p99: Some(slowest),
        // Rates are by CPU time.
        cpu: Some(cores * 1e9 / per_second(way)),
        why,
        ..Row::figure(id, "1/s", per_second(way), way.millions_per_s.len() as u64)
    }
}
