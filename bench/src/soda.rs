//! `farmem bench soda`: Ligra's applications on graphs in far memory, through a DPU and without, compared
//! with local memory, disk and zram (SODA V, VI).
//!
//! Graphs have the paper's ratios of edges to vertices, and come from a seed. In each round all systems
//! alternate ([`System`]), with a third of the graph local. Every answer is checked against one thread in
//! local memory. Times are measured on a rack of processes. Bytes are counted on a rack in this process,
//! where one program moves the same each time: each is counted twice.

mod alone;
mod far;
mod files;
mod link;
mod paper;
mod processes;
mod share;
mod slice;
mod subject;
mod system;
mod work;

pub use alone::{ALONE, alone};
pub use far::{Counts, count};
pub use system::System;
pub use work::App;

use crate::{NodeKind, Plan, Racks, Row, Samples, Sheet, to_f64};
use alone::Squeezed;
use far::{Placed, Run, node_memory};
use farmem::window::{Memory, WindowOptions, with_window};
use farmem::{Error, Rack};
use farmem_graph::Values;
use farmem_graph::generate::RATIOS;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::time::{Duration, Instant};
use subject::{Subject, named};
use system::{Pages, local};
use work::Work;

/// Rounds of [`App::Pagerank`].
const PAGERANK: u64 = 10;
/// Rounds of [`App::Pagerank`] in a short run.
const PAGERANK_QUICK: u64 = 2;

/// The extent of the measurements.
struct Sizes {
    /// Log2 of the vertices of the graph of each ratio.
    scales: [u32; RATIOS.len()],
    rounds: usize,
    pagerank: u64,
    pages: Pages,
    /// Bytes written through a window.
    written: u64,
    /// Bytes of a file.
    file: u64,
}

impl Plan {
    const fn soda(&self) -> Sizes {
        if self.quick {
            let (scales, pages) = ([11, 10, 9], Pages::QUICK);
            Sizes { scales, rounds: 1, pagerank: PAGERANK_QUICK, pages, written: 2 << 20, file: 2 << 20 }
        } else {
            let (scales, pages) = ([17, 16, 14], Pages::FULL);
            Sizes { scales, rounds: 3, pagerank: PAGERANK, pages, written: 32 << 20, file: 256 << 20 }
        }
    }
}

/// Returns a pool of one thread for the application: its traffic is then the same each time, and the service
/// has the other CPU.
fn one_thread() -> Result<ThreadPool, ThreadPoolBuildError> {
    pool(1)
}

fn pool(threads: usize) -> Result<ThreadPool, ThreadPoolBuildError> {
    ThreadPoolBuilder::new().num_threads(threads).build()
}

/// Measures what `plan` selects.
///
/// # Errors
/// An error when a rack does not start, or far memory does not answer. A measurement that this machine
/// forbids is a row that says so.
pub(crate) fn measure<R: Racks>(plan: &Plan, racks: &mut R, sheet: &mut Sheet<'_>) -> Result<(), R::Failure> {
    let sizes = plan.soda();
    for (ratio, scale) in RATIOS.into_iter().zip(sizes.scales) {
        let wanted = |part: &str| {
            let of = |app: &App| plan.wants(&format!("soda.{part}.r{ratio}.{}.", app.name()));
            App::COUNTED.into_iter().filter(of).collect::<Vec<App>>()
        };
        let (mut timed, mut apart, counted) = (wanted("run"), wanted("host_cpu"), wanted("traffic"));
        for apps in [&mut timed, &mut apart] {
            apps.retain(|app| App::ALL.contains(app));
        }
        let disk = plan.wants("soda.disk.rate") && ratio == RATIOS[0];
        if timed.is_empty() && apart.is_empty() && counted.is_empty() && !disk {
            continue;
        }
        sheet.begins(&format!("a graph of {ratio} edges a vertex"));
        let subject = Subject::make(ratio, scale, sizes.pagerank)?;
        if disk {
            sheet.add([alone::disk_rate(&subject.path, sizes.rounds)]);
        }
        if !counted.is_empty() {
            traffic((&subject, ratio), &counted, sizes.pages, sheet)?;
        }
        if !timed.is_empty() || !apart.is_empty() {
            let dpu = system::process(subject.image, sizes.pages, "");
            let rack = racks.start_with(1, NodeKind::Offload, node_memory(subject.image), &dpu)?;
            // Placed once, because the node has room for one graph.
            let mut client = rack.as_ref().client("soda")?;
            let mut placed = Placed::new(&mut client, &subject)?;
            times((rack.as_ref(), &mut placed), &subject, &timed, &sizes, sheet)?;
            host_cpu((rack.as_ref(), &mut placed), &subject, &apart, &sizes, sheet)?;
        }
    }
    files::rows(plan, &sizes, racks, sheet)?;
    link::rows(plan, racks, sheet)?;
    processes::rows(plan, &sizes, racks, sheet)?;
    share::rows(plan, &sizes, racks, sheet)?;
    slice::rows(plan, &sizes, sheet)?;
    if plan.wants("soda.evict.waited") {
        sheet.begins("pages that are written");
        let rack = racks.start(1, NodeKind::Offload, node_memory(sizes.written))?;
        evicted(rack.as_ref(), &sizes, sheet)?;
    }
    Ok(())
}

/// The times of a system in all rounds, or the reason for their absence.
struct SystemTimes {
    system: System,
    times: Samples,
    /// A remark needed to read the times.
    how: Option<String>,
    why: Option<String>,
}

/// Measures the rows of `soda.run`.
fn times(
    (rack, placed): (&Rack, &mut Placed<'_>),
    subject: &Subject,
    apps: &[App],
    sizes: &Sizes,
    sheet: &mut Sheet<'_>,
) -> Result<(), Error> {
    let here = local(subject.image);
    let begin = |system| Squeezed::begin(system, &subject.path, subject.csr.vertices(), here);
    let alone = [System::Disk, System::Zram].map(|system| (system, begin(system)));
    for &app in apps {
        let (work, right) = subject.work(app)?;
        let mut all = System::ALL.map(|system| {
            let how = settings(rack, system).or_else(|| in_this_process(subject, sizes, system));
            SystemTimes { system, times: Samples::new(), how, why: None }
        });
        for _ in 0..sizes.rounds {
            for taken in all.iter_mut().filter(|taken| taken.why.is_none()) {
                let system = taken.system;
                sheet.begins(&format!("{} of {} in {}", app.name(), subject.name, system.name()));
                let options = system.options(subject.image, subject.vertices, sizes.pages);
                let squeezed = alone.iter().find(|(of, _)| *of == system).map(|(_, alone)| alone);
                let is_right = match (options, squeezed) {
                    (Some(options), _) => taken.in_window(placed, options, &work, &right)?,
                    (None, Some(alone)) => taken.alone(alone.as_ref(), &work, &right),
                    (None, None) => taken.locally(subject, &work, &right)?,
                };
                sheet.add_wrong(u64::from(!is_right));
            }
        }
        sheet.add(rows(&format!("{}.{}", subject.name, app.name()), &all));
    }
    Ok(())
}

/// Runs once more and checks the result. A forbidden measurement has no result and is not retried.
impl SystemTimes {
    fn in_window(
        &mut self,
        placed: &mut Placed<'_>,
        options: WindowOptions,
        work: &Work,
        right: &Values,
    ) -> Result<bool, Error> {
        match placed.run(options, work) {
            Ok(Run { values, time, .. }) => {
                self.times.record(time);
                Ok(values == *right)
            }
            Err(Error::Open(refused)) => {
                self.why = Some(format!("skipped: {refused}"));
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    fn alone(&mut self, alone: Result<&Squeezed, &String>, work: &Work, right: &Values) -> bool {
        let ran = alone.map_err(Clone::clone).and_then(|alone| Ok((alone, alone.run(work)?)));
        match ran {
            Ok((alone, said)) => {
                self.times.record(Duration::from_nanos(said.nanos));
                self.how = said.major_faults.map(|faults| alone.how(faults));
                said.sum == u64::from(right.sum())
            }
            Err(why) => {
                self.why = Some(format!("skipped: {why}"));
                true
            }
        }
    }

    fn locally(&mut self, subject: &Subject, work: &Work, right: &Values) -> Result<bool, Error> {
        let threads = one_thread().map_err(named)?;
        let graph = subject.csr.graph().map_err(named)?;
        let begin = Instant::now();
        let values = threads.install(|| work.run(&graph)).map_err(named)?;
        self.times.record(begin.elapsed());
        Ok(values == *right)
    }
}

/// Returns the rows of an application on a graph: each system compared with the window without a DPU, and
/// with local memory.
fn rows(name: &str, all: &[SystemTimes]) -> Vec<Row> {
    let of = |wanted| all.iter().find(|taken| taken.system == wanted).filter(|taken| !taken.times.is_empty());
    let (server, local) = (of(System::Server), of(System::Local));
    let mut rows = Vec::new();
    for SystemTimes { system, times, how, why } in all {
        let id = format!("soda.run.{name}.{}", system.name());
        if let Some(why) = why {
            rows.push(Row::absent(id, "ns", why.clone()));
            continue;
        }
        rows.push(Row { why: how.clone(), ..times.row(&id, server.map(|taken| &taken.times)) });
        if *system != System::Local {
            rows.push(times.row(&format!("{id}.over_local"), local.map(|taken| &taken.times)));
        }
    }
    rows
}

/// Returns the settings of a DPU process, without which its figures say nothing.
fn settings(rack: &Rack, system: System) -> Option<String> {
    let section = rack.config().and_then(|config| config.dpu.as_ref())?;
    system.has_process().then(|| format!("DPU: {section}"))
}

/// Returns the settings of a DPU in this process.
fn in_this_process(subject: &Subject, sizes: &Sizes, system: System) -> Option<String> {
    system::in_this_process(&system.options(subject.image, subject.vertices, sizes.pages)?)
}

/// Measures the rows of `soda.host_cpu`: CPU time of the thread that serves the window, data movement and
/// fault handling apart.
fn host_cpu(
    (rack, placed): (&Rack, &mut Placed<'_>),
    subject: &Subject,
    apps: &[App],
    sizes: &Sizes,
    sheet: &mut Sheet<'_>,
) -> Result<(), Error> {
    for &app in apps {
        let (work, right) = subject.work(app)?;
        let mut all = System::HOST_CPU.map(|system| (system, [Samples::new(), Samples::new()]));
        let turns = (0..sizes.rounds).flat_map(|_| System::HOST_CPU.into_iter().zip(0..));
        for (system, at) in turns {
            sheet.begins(&format!("{} of {}, CPU time in {}", app.name(), subject.name, system.name()));
            let options = system.options(subject.image, subject.vertices, sizes.pages).expect("a window");
            let run = match placed.run(WindowOptions { told_apart: true, ..options }, &work) {
                Err(Error::Open(refused)) => {
                    let id = format!("soda.host_cpu.{}.{}", subject.name, app.name());
                    sheet.add([Row::absent(id, "ns", format!("skipped: {refused}"))]);
                    return Ok(());
                }
                ran => ran?,
            };
            sheet.add_wrong(u64::from(run.values != right));
            let cpu = run.stats.cpu.expect("it was asked for");
            for (samples, time) in all[at].1.iter_mut().zip([cpu.moving, cpu.faults]) {
                samples.record(Duration::from_nanos(time.as_nanos()));
            }
        }
        for (system, samples) in &all {
            let id = format!("soda.host_cpu.{}.{}.{}", subject.name, app.name(), system.name());
            let own = || {
                let own = in_this_process(subject, sizes, *system)?;
                Some(format!("the DPU is in this process: its work is the host's here; {own}"))
            };
            let how = settings(rack, *system).or_else(own);
            let names = ["moving", "faults"];
            for ((name, samples), server) in names.iter().zip(samples).zip(&all[0].1) {
                sheet.add([Row { why: how.clone(), ..samples.row(&format!("{id}.{name}"), Some(server)) }]);
            }
        }
    }
    Ok(())
}

/// Measures the rows of `soda.traffic`: the bytes moved, counted twice, compared with the paper's text for a
/// graph with this ratio of edges to vertices.
fn traffic(
    (subject, ratio): (&Subject, u64),
    apps: &[App],
    pages: Pages,
    sheet: &mut Sheet<'_>,
) -> Result<(), Error> {
    let rack = Rack::embedded_with(1, node_memory(subject.image))?;
    let mut client = rack.client("soda")?;
    let mut placed = Placed::new(&mut client, subject)?;
    for &app in apps {
        let (work, right) = subject.work(app)?;
        let mut server = None;
        for system in System::ALL {
            let options = system.options(subject.image, subject.vertices, pages);
            let Some(options) = options.filter(|_| !system.has_process()) else { continue };
            sheet.begins(&format!("what {} of {} moves in {}", app.name(), subject.name, system.name()));
            let id = format!("soda.traffic.{}.{}.{}", subject.name, app.name(), system.name());
            let ran = placed.run(options, &work).and_then(|first| Ok([first, placed.run(options, &work)?]));
            let runs = match ran {
                Err(Error::Open(refused)) => {
                    sheet.add([Row::absent(format!("{id}.bytes"), "bytes", format!("skipped: {refused}"))]);
                    continue;
                }
                other => other?,
            };
            let wrong = runs.iter().filter(|run| run.values != right).count() as u64;
            let [counts, again] = runs.each_ref().map(Run::counts);
            let differ = counts != again;
            let beyond = system == System::Adaptive && !(counts.is_within_cap() && again.is_within_cap());
            sheet.add_wrong(wrong + u64::from(differ && system.is_exact()) + u64::from(beyond));
            server = server.or(Some(counts.bytes));
            let differ = differ.then(|| {
                let exact = if system.is_exact() { "WRONG: " } else { "by times that are measured: " };
                format!("{exact}the other run had {} bytes, {} hits", again.bytes, again.hits)
            });
            let beyond = beyond.then(|| format!("WRONG: more than 1.05 of {} asked for", counts.asked));
            let known = [differ, beyond, system::in_this_process(&options)];
            let why = |paper: Option<&str>| {
                let paper = paper.map(|paper| format!("the paper's: {paper}"));
                let all: Vec<String> = known.iter().flatten().cloned().chain(paper).collect();
                (!all.is_empty()).then(|| all.join("; "))
            };
            let figure = |what: &str, unit, value, beside: Option<u64>, paper| Row {
                why: why(paper),
                ..Row::figure(format!("{id}.{what}"), unit, to_f64(value), runs.len() as u64)
                    .beside(beside.map(to_f64))
            };
            let of_bytes = paper::bytes(ratio, app, system);
            sheet.add([figure("bytes", "bytes", counts.bytes, server, of_bytes)]);
            if system != System::Server {
                let Counts { bytes, background, reads, hits, .. } = counts;
                let (of_hits, of_background) =
                    (paper::hits(ratio, app, system), paper::background(ratio, system));
                sheet.add([figure("hits", "reads", hits, Some(reads), of_hits)]);
                sheet.add([figure("background", "bytes", background, Some(bytes), of_background)]);
            }
        }
    }
    Ok(())
}

/// Measures the row of `soda.evict.waited`: faults that found no room, of a program that writes three times
/// the local limit, twice.
fn evicted(rack: &Rack, sizes: &Sizes, sheet: &mut Sheet<'_>) -> Result<(), Error> {
    const PAGE: usize = farmem::PAGE_LEN;
    let id = "soda.evict.waited";
    let mut client = rack.client("soda")?;
    let vma = client.allocate(sizes.written)?;
    let options = System::Server.options(sizes.written, (0, 1), sizes.pages).expect("a window");
    let options = WindowOptions { inactive_eighths: 1, read_only: false, ..options };
    let pages = usize::try_from(sizes.written).expect("a window's bytes have addresses here") / PAGE;
    let byte = |page: usize, round: u8| u8::try_from(page % 251).expect("less than 251") ^ round;
    let program = |memory: Memory<'_>| {
        let mut wrong = 0;
        for round in 1..3 {
            for page in 0..pages {
                let mut before = [0];
                memory.read(page * PAGE, &mut before);
                let expected = if round == 1 { 0 } else { byte(page, round - 1) };
                wrong += u64::from(before != [expected]);
                memory.write(page * PAGE, &[byte(page, round)]);
            }
        }
        wrong
    };
    let row = match with_window(&mut client, &vma, options, program) {
        Ok((wrong, stats)) => {
            sheet.add_wrong(wrong);
            let why = format!(
                "{} pages evicted; {} written back, with those at the end",
                stats.evictions,
                stats.bytes_written_back / PAGE as u64
            );
            let row = Row::figure(id, "faults", to_f64(stats.waited), 1).beside(Some(to_f64(stats.faults)));
            Row { why: Some(why), ..row }
        }
        Err(Error::Open(refused)) => Row::absent(id, "faults", format!("skipped: {refused}")),
        Err(error) => return Err(error),
    };
    sheet.add([row]);
    Ok(())
}
