//! `farmem trace replay`: traces on simulated racks with the latencies of MIND's paper.

use crate::args::TraceReplay;
use crate::outcome::{End, Failure};
use crate::{output, progress, trace};
use farmem_sim::replay::{self, Duration, Outcome, Regions, Setup, System, Workload};
use farmem_sim::trace::Reader;
use serde::Serialize;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Report of all replays.
#[derive(Serialize)]
struct Replays {
    replays: Vec<Replayed>,
}

#[derive(Serialize)]
struct Replayed {
    file: PathBuf,
    system: &'static str,
    hosts: u16,
    threads_per_host: u16,
    local_pages: usize,
    /// Number of slots of the directory. `None` when the directory has a slot for each page.
    slots: Option<usize>,
    visits: u64,
    accesses: u64,
    runtime_s: f64,
    /// Performance relative to the first replay of this file.
    performance: f64,
    accesses_per_s: f64,
    faults: u64,
    fetches: u64,
    invalidations: u64,
    false_invalidations: u64,
    write_backs: u64,
    busy: u64,
    slot_resets: u64,
    splits: u64,
    merges: u64,
    bytes: u64,
    slots_used_max: usize,
    /// Time in seconds and slots in use, at the end of each epoch.
    slots_used: Vec<(f64, usize)>,
}

impl output::Report for Replays {
    fn text(&self) -> String {
        let row = |r: &Replayed| {
            vec![
                r.file.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
                r.system.to_owned(),
                r.hosts.to_string(),
                format!("{:.1}", r.runtime_s * 1e3),
                format!("{:.2}", r.performance),
                output::count(r.faults),
                output::count(r.invalidations),
                output::count(r.false_invalidations),
                output::count(r.slots_used_max.try_into().unwrap_or(u64::MAX)),
            ]
        };
        let rows: Vec<_> = self.replays.iter().map(row).collect();
        let heads = [
            "trace",
            "system",
            "hosts",
            "ms",
            "performance",
            "faults",
            "pages invalidated",
            "falsely",
            "slots",
        ];
        output::table(&heads, &rows)
    }
}

/// Runs the command.
pub(crate) fn run(args: &TraceReplay) -> Result<End, Failure> {
    let systems: Vec<System> = match &args.system[..] {
        [] => System::ALL.to_vec(),
        names => names.iter().map(|name| system(name)).collect::<Result<_, _>>()?,
    };
    if !args.system.is_empty()
        && let Some(alone) = systems.iter().find(|system| !system.shares() && !args.hosts.contains(&1))
    {
        let message = format!("{} shares nothing: it is replayed on one host", alone.name());
        return Err(Failure::environment(message, "give --hosts 1 among others, or other systems"));
    }
    let mut replays = Vec::new();
    for file in &args.files {
        let workload = read(file)?;
        let mut first = None;
        for &system in &systems {
            for &hosts in &args.hosts {
                if !system.shares() && hosts > 1 {
                    continue;
                }
                let setup = setup(args, system, hosts, &workload);
                let bar = progress::bar("visits", workload.visits().try_into().unwrap_or(u64::MAX));
                let outcome = replay::replay(&workload, &setup, &mut |visits| bar.set_position(visits));
                bar.finish_and_clear();
                let seconds = seconds(outcome.runtime);
                let performance = *first.get_or_insert(seconds) / seconds;
                replays.push(replayed(file, &setup, outcome, performance));
            }
        }
    }
    output::print(&Replays { replays }, args.json);
    Ok(End::Fine)
}

fn system(name: &str) -> Result<System, Failure> {
    System::named(name).ok_or_else(|| {
        let names: Vec<&str> = System::ALL.iter().map(|system| system.name()).collect();
        let message = format!("there is no system {name:?}");
        Failure::environment(message, format!("the systems are: {}", names.join(", ")))
    })
}

fn setup(args: &TraceReplay, system: System, hosts: u16, workload: &Workload) -> Setup {
    let mut setup = Setup::in_proportion(system, hosts, workload);
    setup.threads = args.threads;
    if let Some(pages) = args.local_pages {
        setup.local_pages = pages;
    }
    if let Regions::Bounded { slots, epoch, .. } = &mut setup.regions {
        *slots = args.slots.unwrap_or(*slots);
        *epoch = args.epoch_us.map_or(*epoch, Duration::from_micros);
    }
    setup
}

fn read(file: &Path) -> Result<Workload, Failure> {
    let input = File::open(file).map_err(|error| trace::at(file, &error))?;
    let reader = Reader::new(BufReader::new(input)).map_err(|error| trace::in_trace(file, &error))?;
    let visits: Vec<_> = reader.collect::<Result<_, _>>().map_err(|error| trace::in_trace(file, &error))?;
    if visits.is_empty() {
        let message = format!("{}: no page is visited", file.display());
        return Err(Failure::environment(message, "record a program that uses memory"));
    }
    Ok(Workload::new(&visits))
}

#[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
fn seconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e9
}

fn replayed(file: &Path, setup: &Setup, outcome: Outcome, performance: f64) -> Replayed {
    let bounded = !matches!(setup.system, System::MindPsoPlus | System::Gam | System::Swap);
    let slots = match setup.regions {
        Regions::Bounded { slots, .. } if bounded => Some(slots),
        _ => None,
    };
    Replayed {
        file: file.to_owned(),
        system: setup.system.name(),
        hosts: setup.hosts,
        threads_per_host: setup.threads,
        local_pages: setup.local_pages,
        slots,
        visits: outcome.visits,
        accesses: outcome.accesses,
        runtime_s: seconds(outcome.runtime),
        performance,
        accesses_per_s: outcome.throughput(),
        faults: outcome.faults,
        fetches: outcome.fetches,
        invalidations: outcome.invalidations,
        false_invalidations: outcome.false_invalidations,
        write_backs: outcome.write_backs,
        busy: outcome.busy,
        slot_resets: outcome.resets,
        splits: outcome.splits,
        merges: outcome.merges,
        bytes: outcome.bytes,
        slots_used_max: outcome.slots_max,
        slots_used: outcome.slots.into_iter().map(|(at, used)| (seconds(at), used)).collect(),
    }
}
