//! The rows of `soda.share` and `soda.fail`: programs side by side on one DPU (SODA VI-B, figure 8), and what a program notices of a DPU's end.

use super::far::{Placed, Run, node_memory};
use super::subject::Subject;
use super::system::{self, System};
use super::work::App;
use super::{Sizes, settings};
use crate::pulse::Racks;
use crate::{Plan, Row, Samples, Sheet, to_f64};
use farmem::window::{Memory, WindowOptions, with_window};
use farmem::{Error, PAGE_LEN, Rack};
use farmem_graph::generate::RATIOS;
use rustix::process::{Pid, Signal, kill_process};
use std::thread;
use std::time::{Duration, Instant};

/// The ratio of edges to vertices of the graph: the paper's friendster.
const GRAPH: usize = 1;
/// Programs beside the one that is measured; the first is always there.
const BESIDE: [App; 3] = [App::Bfs, App::Radii, App::Components];
/// Bytes that a program writes while its DPU fails.
const WRITTEN: usize = 4 << 20;

/// Measures what `plan` wants of them.
pub(super) fn rows<R: Racks>(
    plan: &Plan,
    sizes: &Sizes,
    racks: &mut R,
    sheet: &mut Sheet<'_>,
) -> Result<(), R::Failure> {
    if plan.wants("soda.share.") {
        sheet.begins("a graph for several programs");
        let subject = Subject::make(RATIOS[GRAPH], sizes.scales[GRAPH], sizes.pagerank)?;
        let dpu = system::process(subject.image, sizes.pages, "");
        let rack = racks.start_over(farmem::LinkProfile::NONE, 1, node_memory(subject.image), &dpu)?;
        let mut owner = rack.as_ref().client("soda")?;
        let mut placed = Placed::new(&mut owner, &subject)?;
        for programs in [2, 4] {
            for app in App::COUNTED {
                if plan.wants(&format!("soda.share.{programs}.{}.", app.name())) {
                    shared(rack.as_ref(), &mut placed, &subject, (programs, app), sizes, sheet)?;
                }
            }
        }
    }
    for signal in [Signal::KILL, Signal::STOP] {
        let name = if signal == Signal::KILL { "kill" } else { "stop" };
        if plan.wants(&format!("soda.fail.fallback.{name}")) {
            sheet.begins(&format!("a DPU that ends by {name}"));
            let dpu = system::process(WRITTEN as u64, sizes.pages, "");
            let rack = racks.start_over(farmem::LinkProfile::NONE, 1, node_memory(WRITTEN as u64), &dpu)?;
            let process = racks.role(&rack, "dpu");
            failed(rack.as_ref(), process, signal, name, sizes, sheet)?;
        }
    }
    Ok(())
}

/// What some programs that ran at once moved, and what the measured one took.
#[derive(Clone, Copy)]
struct Moved {
    bytes: u64,
    time: Duration,
    wrong: u64,
}

/// `app` beside others, straight to the memory node and by way of one DPU, forwarding with what belongs to vertices in static memory or adaptive.
fn shared(
    rack: &Rack,
    placed: &mut Placed<'_>,
    subject: &Subject,
    (programs, app): (usize, App),
    sizes: &Sizes,
    sheet: &mut Sheet<'_>,
) -> Result<(), Error> {
    let id = format!("soda.share.{programs}.{}", app.name());
    let systems = [System::Server, System::ProcessStatic, System::ProcessAdaptive];
    let mut all = systems.map(|system| (system, Samples::new(), Vec::new()));
    for _ in 0..sizes.rounds {
        for (system, times, bytes) in &mut all {
            sheet.begins(&format!("{id} in {}", system.name()));
            let apps: Vec<App> = std::iter::once(app).chain(BESIDE).take(programs).collect();
            match side_by_side(rack, placed, subject, &apps, *system, sizes) {
                Ok(moved) => {
                    times.record(moved.time);
                    bytes.push(to_f64(moved.bytes));
                    sheet.add_wrong(moved.wrong);
                }
                Err(Error::Open(refused)) => {
                    sheet.add([Row::absent(id, "bytes", format!("skipped: {refused}"))]);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }
    let bytes = all.each_mut().map(|(_, _, bytes)| crate::samples::median(bytes));
    for ((system, times, _), moved) in all.iter().zip(bytes) {
        let (how, name) = (settings(rack, *system), system.name());
        let row = Row::figure(format!("{id}.{name}.bytes"), "bytes", moved, times.len());
        sheet.add([
            Row { why: how.clone(), ..row.beside(Some(bytes[0])) },
            Row { why: how, ..times.row(&format!("{id}.{name}.time"), Some(&all[0].1)) },
        ]);
    }
    Ok(())
}

/// One run of each, begun together; the first is the one whose time counts.
fn side_by_side(
    rack: &Rack,
    placed: &mut Placed<'_>,
    subject: &Subject,
    apps: &[App],
    system: System,
    sizes: &Sizes,
) -> Result<Moved, Error> {
    let config = rack.config().expect("a rack of processes");
    let options =
        |system: System| system.options(subject.image, subject.vertices, sizes.pages).expect("a window");
    let before = placed.by_dpu(options(system))?;
    let (pieces, image) = placed.parts();
    // What one of them has the DPU keep in static memory is there for all.
    let of = |at: usize| if at > 0 && system == System::ProcessStatic { System::Process } else { system };
    let run = |at: usize, app: App| -> Result<(Run, Duration, bool), Error> {
        let (work, right) = subject.work(app)?;
        let mut client = Rack::running(config.clone()).client("soda")?;
        let begin = Instant::now();
        let run = Placed::of(&mut client, pieces.to_vec(), image.clone()).run(options(of(at)), &work)?;
        let is_right = run.values == right;
        Ok((run, begin.elapsed(), is_right))
    };
    let all = thread::scope(|scope| {
        let threads: Vec<_> =
            apps.iter().enumerate().map(|(at, &app)| scope.spawn(move || run(at, app))).collect();
        let ended = threads.into_iter().map(|thread| thread.join().expect("no program panics"));
        ended.collect::<Result<Vec<_>, Error>>()
    })?;
    let asked = all.iter().map(|(run, ..)| run.stats.bytes_fetched).sum();
    let wrong = all.iter().filter(|(.., is_right)| !is_right).count() as u64;
    let after = placed.by_dpu(options(system))?;
    let bytes = before.zip(after).map_or(asked, |(before, after)| after - before);
    Ok(Moved { bytes, time: all[0].1, wrong })
}

/// A program that writes while its DPU gets a signal: the longest that it stood still, and words that are not in far memory afterwards.
fn failed(
    rack: &Rack,
    process: Option<u32>,
    signal: Signal,
    name: &str,
    sizes: &Sizes,
    sheet: &mut Sheet<'_>,
) -> Result<(), Error> {
    let id = format!("soda.fail.fallback.{name}");
    let pid = process.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let pid = pid.expect("the rack has a DPU");
    let section = rack.config().and_then(|config| config.dpu.clone()).expect("the rack has a DPU");
    let mut client = rack.client("soda")?;
    let vma = client.allocate(WRITTEN as u64)?;
    let options = System::Process.options(WRITTEN as u64, (0, 1), sizes.pages).expect("a window");
    let options = WindowOptions { inactive_eighths: 1, read_only: false, ..options };
    let program = |memory: Memory<'_>| {
        let (mut longest, mut last) = (Duration::ZERO, Instant::now());
        for round in 1..=ROUNDS {
            for at in (0..WRITTEN).step_by(PAGE_LEN) {
                if round == 2 && at == WRITTEN / 2 {
                    // One that has ended already has failed as well.
                    let _gone = kill_process(pid, signal);
                }
                for word in (at..at + PAGE_LEN).step_by(8) {
                    memory.write(word, &(word as u64 * round).to_le_bytes());
                }
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
        }
        longest
    };
    match with_window(&mut client, &vma, options, program) {
        Ok((longest, stats)) => {
            let mut far = vec![0; WRITTEN];
            client.read(vma.base, &mut far)?;
            let words = far.chunks_exact(8).zip((0_u64..).step_by(8));
            let lost = words.filter(|(word, at)| **word != (at * ROUNDS).to_le_bytes()).count() as u64;
            sheet.add_wrong(lost + u64::from(!stats.dpu_fenced));
            let mut times = Samples::new();
            times.record(longest);
            let lease = to_f64(section.lease.as_nanos());
            let row = Row { why: Some(format!("DPU: {section}")), ..times.row(&id, None) };
            let lost = Row::figure(format!("{id}.lost"), "bytes", to_f64(8 * lost), WRITTEN as u64);
            sheet.add([row.beside(Some(lease)), lost]);
        }
        Err(Error::Open(refused)) => sheet.add([Row::absent(id, "ns", format!("skipped: {refused}"))]),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// How often a program writes each word.
const ROUNDS: u64 = 3;
