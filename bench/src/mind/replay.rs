//! MIND's evaluation on a simulated rack, with the paper's latencies and the directory's real steps (MIND 7.1
//! to 7.3; [`farmem_sim::replay`]).
//!
//! `scripts/record-traces` records the programs; without their traces the rows say so. The recordings are
//! about a thousandth of the paper's runs, which take a minute and more. Epochs are therefore a hundredth of
//! the paper's 100 ms: the paper finds no difference from 1 to 100 ms.

use crate::{Plan, Row, Sheet, to_f64};
use farmem_sim::replay::{Duration, Outcome, Regions, Setup, System, Workload, replay};
use farmem_sim::trace::Reader;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// The traces of scripts/record-traces, and their counterparts in the paper.
const TRACES: [(&str, &str); 4] = [("train", "TF"), ("pagerank", "GC"), ("kvs-a", "M_A"), ("kvs-c", "M_C")];
const EPOCH: Duration = Duration::from_millis(1);
/// Visits of a trace in a short run.
const QUICK_VISITS: usize = 20_000;
/// Pages of the paper's working set under random accesses (MIND 7.2). Ours is smaller by a factor.
const RANDOM_PAGES: u32 = 400_000;
const RANDOM_HOSTS: u16 = 8;

/// Measures everything.
pub(super) fn measure(plan: &Plan, sheet: &mut Sheet<'_>) {
    let kinds = ["scaling.blades", "scaling.threads", "directory.slots", "directory.false"];
    let wanted = |name: &str| kinds.iter().any(|kind| plan.wants(&format!("mind.{kind}.{name}.")));
    for (name, paper) in TRACES.into_iter().filter(|(name, _)| wanted(name)) {
        sheet.begins(&format!("replay of {name}"));
        match read(&folder().join(format!("{name}.trace")), plan) {
            Ok(workload) => of_trace(name, paper, &workload, plan, sheet),
            Err(why) => {
                let absent = |kind| Row::absent(format!("mind.{kind}.{name}"), "times", why.clone());
                sheet.add(kinds.map(absent));
            }
        }
    }
    if plan.wants("mind.scaling.random.") {
        random(plan, sheet);
    }
}

fn folder() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    cache.or_else(home).unwrap_or_default().join("farmem/traces")
}

fn read(file: &Path, plan: &Plan) -> Result<Workload, String> {
    let why =
        |error: &dyn std::fmt::Display| format!("{}: {error}; run scripts/record-traces", file.display());
    let input = File::open(file).map_err(|error| why(&error))?;
    let reader = Reader::new(BufReader::new(input)).map_err(|error| why(&error))?;
    // The program's work before it has workers is no part of a short run.
    let visits = reader.collect::<Result<Vec<_>, _>>().map_err(|error| why(&error))?;
    let first = visits.iter().position(|visit| visit.thread > 0).unwrap_or(0);
    let most = if plan.quick { QUICK_VISITS } else { usize::MAX };
    let last = first.saturating_add(most).min(visits.len());
    Ok(Workload::new(&visits[first..last]))
}

fn of_trace(name: &str, paper: &str, workload: &Workload, plan: &Plan, sheet: &mut Sheet<'_>) {
    let play = |setup: &Setup| replay(workload, setup, &mut |_| {});
    let blades: &[u16] = if plan.quick { &[1, 8] } else { &[1, 2, 4, 8] };
    let one = play(&setup(System::Mind, 1, workload)).runtime;
    for system in System::ALL.into_iter().filter(|system| system.shares()) {
        for &hosts in blades {
            let setup = setup(system, hosts, workload);
            let outcome = play(&setup);
            if system == System::Mind && hosts == 8 {
                sheet.add([slots(name, &setup, &outcome)]);
            }
            let id = format!("mind.scaling.blades.{name}.{}.{hosts}", system.name());
            let published = published(name, system, hosts);
            let row = Row::figure(id, "times", ratio(one, outcome.runtime), outcome.visits).beside(published);
            sheet.add([Row { why: Some(counts(paper, &outcome)), ..row }]);
        }
    }
    let single = play(&Setup { threads: 1, ..setup(System::Mind, 1, workload) }).runtime;
    let threads: &[u16] = if plan.quick { &[1, 10] } else { &[1, 2, 4, 10] };
    for system in [System::Mind, System::Gam, System::Swap] {
        for &threads in threads {
            let outcome = play(&Setup { threads, ..setup(system, 1, workload) });
            let id = format!("mind.scaling.threads.{name}.{}.{threads}", system.name());
            let row = Row::figure(id, "times", ratio(single, outcome.runtime), outcome.visits);
            sheet.add([Row { why: Some(counts(paper, &outcome)), ..row }]);
        }
    }
    splitting(name, workload, sheet);
}

fn setup(system: System, hosts: u16, workload: &Workload) -> Setup {
    let mut setup = Setup::in_proportion(system, hosts, workload);
    if let Regions::Bounded { epoch, .. } = &mut setup.regions {
        *epoch = EPOCH;
    }
    setup
}

/// Compares false invalidations and entries of fixed regions and of bounded splitting (MIND 7.3, figure 8
/// left).
fn splitting(name: &str, workload: &Workload, sheet: &mut Sheet<'_>) {
    let bounded = setup(System::Mind, 8, workload);
    let kinds = [
        ("16k", Regions::Fixed { order: 2 }),
        ("2m", Regions::Fixed { order: 9 }),
        ("bounded", bounded.regions),
    ];
    let outcomes =
        kinds.map(|(_, regions)| replay(workload, &Setup { regions, ..bounded.clone() }, &mut |_| {}));
    let large = to_f64(outcomes[1].false_invalidations);
    for ((kind, _), outcome) in kinds.into_iter().zip(&outcomes) {
        let falsely = to_f64(outcome.false_invalidations);
        let id = format!("mind.directory.false.{name}.{kind}");
        let why = format!("beside regions of 2 MiB; {} entries at most", outcome.slots_max);
        let row = Row::figure(id, "pages", falsely, outcome.invalidations).beside(Some(large));
        sheet.add([Row { why: Some(why), ..row }]);
    }
}

/// Returns the most slots in use, compared with the capacity (MIND 7.2, figure 7 left).
fn slots(name: &str, setup: &Setup, outcome: &Outcome) -> Row {
    let Regions::Bounded { slots, .. } = setup.regions else { unreachable!("MIND splits") };
    let count = |n: usize| to_f64(u64::try_from(n).unwrap_or(u64::MAX));
    let mut used: Vec<usize> = outcome.slots.iter().map(|&(_, used)| used).collect();
    used.sort_unstable();
    let middle = used.get(used.len() / 2).copied().map(count);
    let id = format!("mind.directory.slots.{name}");
    let row = Row::figure(id, "slots", count(outcome.slots_max), u64::try_from(used.len()).unwrap_or(0));
    let why = format!(
        "{} split, {} merged, {} reset for their slots",
        outcome.splits, outcome.merges, outcome.resets
    );
    Row { p50: middle, why: Some(why), ..row.beside(Some(count(slots))) }
}

/// Measures random accesses of eight blades with a thread each (MIND 7.2, figure 6 right): reads and sharing
/// from none to all.
fn random(plan: &Plan, sheet: &mut Sheet<'_>) {
    let smaller: u32 = if plan.quick { 64 } else { 8 };
    let pages = RANDOM_PAGES / smaller;
    let grid: &[u32] = if plan.quick { &[0, 100] } else { &[0, 25, 50, 75, 100] };
    for &reads in grid {
        sheet.begins(&format!("random accesses, {reads} % reads"));
        for &shared in grid {
            let visits = usize::try_from(pages).expect("few") * 12;
            let play = |visits| {
                let workload = Workload::uniform(RANDOM_HOSTS, pages, reads, shared, visits, 1);
                let mut setup = setup(System::Mind, RANDOM_HOSTS, &workload);
                let of = |what: usize| what * workload.pages() / usize::try_from(RANDOM_PAGES).expect("many");
                setup.threads = 1;
                setup.local_pages = of(setup.profile.cache_pages);
                let slots = of(setup.profile.slots);
                let initial = setup.profile.region_initial;
                setup.regions = Regions::Bounded { slots, initial, epoch: EPOCH };
                replay(&workload, &setup, &mut |_| {})
            };
            // The second half of the accesses counts: the first fills the caches.
            let (half, whole) = (play(visits / 2), play(visits));
            let accesses = whole.accesses - half.accesses;
            let time = to_f64(whole.runtime.as_nanos() - half.runtime.as_nanos()) / 1e9;
            let id = format!("mind.scaling.random.read{reads}.shared{shared}");
            let why = format!(
                "a working set of {pages} pages; the paper: 1 to 2 million a second where all is read, about a tenth of that where all is shared and written"
            );
            let row = Row::figure(id, "1/s", to_f64(accesses) / time, accesses);
            sheet.add([Row { why: Some(why), ..row }]);
        }
    }
}

fn ratio(one: Duration, other: Duration) -> f64 {
    to_f64(one.as_nanos()) / to_f64(other.as_nanos())
}

fn counts(paper: &str, outcome: &Outcome) -> String {
    format!(
        "{paper} in the paper; {} faults, {} pages invalidated, {} of them falsely",
        outcome.faults, outcome.invalidations, outcome.false_invalidations
    )
}

/// Returns the speed-up over MIND on one blade in the paper's text: TensorFlow gains about 1.67 times with
/// each doubling (MIND 7.1).
fn published(name: &str, system: System, hosts: u16) -> Option<f64> {
    let doubled = i32::try_from(hosts.ilog2()).ok()?;
    (name == "train" && system == System::Mind).then(|| 1.67_f64.powi(doubled))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without recordings the rows say what to do.
    #[test]
    fn without_a_trace_there_is_a_reason() {
        let why = read(Path::new("/nowhere/a.trace"), &Plan { quick: true, ..Plan::default() })
            .expect_err("no such file");
        assert!(why.contains("scripts/record-traces"), "{why}");
    }
}
