//! The rows of `soda.share` and `soda.fail`: parallel programs on one DPU (SODA VI-B, figure 8), and a
//! program's view of a DPU failure.

use super::far::{Placed, node_memory};
use super::subject::{Subject, named};
use super::system::{self, System};
use super::work::{App, Work};
use super::{Sizes, one_thread, settings};
use crate::Racks;
use crate::{Plan, Row, Samples, Sheet, to_f64};
use farmem::window::{Memory, WindowOptions, with_window};
use farmem::{Error, PAGE_LEN, Rack};
use farmem_graph::generate::RATIOS;
use farmem_graph::{Far, Graph, Values};
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// The graph's ratio of edges to vertices: the paper's friendster.
const GRAPH: usize = 1;
/// Programs beside the measured one; the first is always present.
const BESIDE: [App; 3] = [App::Bfs, App::Radii, App::Components];
/// Bytes that a program writes while its DPU fails.
const WRITTEN: usize = 4 << 20;

/// Measures the rows that `plan` selects.
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
    for (name, signal) in [("kill", Signal::KILL), ("stop", Signal::STOP), ("restart", Signal::KILL)] {
        if plan.wants(&format!("soda.fail.fallback.{name}")) {
            sheet.begins(&format!("a DPU that ends by {name}"));
            let dpu = system::process(WRITTEN as u64, sizes.pages, "");
            let mut rack =
                racks.start_over(farmem::LinkProfile::NONE, 1, node_memory(WRITTEN as u64), &dpu)?;
            let running = Rack::running(rack.as_ref().config().expect("a rack of processes").clone());
            let (mut again, restarts) = (Ok(()), name == "restart");
            let fail = || {
                let pid = racks.role(&rack, "dpu").and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
                // A DPU that has ended already has failed as well.
                let _gone = kill_process(pid.expect("the rack has a DPU"), signal);
                if restarts {
                    again = racks.begin_again(&mut rack, "dpu");
                }
            };
            failed(&running, name, fail, sizes, sheet)?;
            again?;
        }
    }
    Ok(())
}

/// The traffic of parallel programs, and the time of the measured one.
#[derive(Clone, Copy)]
struct Moved {
    /// Bytes of far memory.
    bytes: u64,
    /// Bytes that the programs requested.
    asked: u64,
    time: Duration,
    wrong: u64,
}

/// Runs `app` beside others: with direct connections, and through one DPU that forwards with the vertex data
/// in static memory, or is adaptive.
fn shared(
    rack: &Rack,
    placed: &mut Placed<'_>,
    subject: &Subject,
    (programs, app): (usize, App),
    sizes: &Sizes,
    sheet: &mut Sheet<'_>,
) -> Result<(), Error> {
    let id = format!("soda.share.{programs}.{}", app.name());
    // Local memory is examined before any clock runs.
    let works = std::iter::once(app).chain(BESIDE).take(programs).map(|app| subject.work(app));
    let works = works.collect::<Result<Vec<_>, Error>>()?;
    let systems = [System::Server, System::ProcessStatic, System::ProcessAdaptive];
    let mut all = systems.map(|system| (system, Samples::new(), [Vec::new(), Vec::new()]));
    for _ in 0..sizes.rounds {
        for (system, times, [bytes, asked]) in &mut all {
            sheet.begins(&format!("{id} in {}", system.name()));
            match side_by_side(rack, placed, subject, &works, *system, sizes) {
                Ok(moved) => {
                    times.record(moved.time);
                    bytes.push(to_f64(moved.bytes));
                    asked.push(to_f64(moved.asked));
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
    let bytes = all.each_mut().map(|(_, _, bytes)| bytes.each_mut().map(|of| crate::samples::median(of)));
    for ((system, times, _), [moved, asked]) in all.iter().zip(bytes) {
        let (how, name) = (settings(rack, *system), system.name());
        let row = Row::figure(format!("{id}.{name}.bytes"), "bytes", moved, times.len());
        sheet.add([
            Row { why: how.clone(), ..row.beside(Some(asked)) },
            Row { why: how, ..times.row(&format!("{id}.{name}.time"), Some(&all[0].1)) },
        ]);
    }
    Ok(())
}

/// Runs the measured program once, beginning when all windows are open. The others repeat their work until it
/// has ended. Its time is taken like a lone program's.
fn side_by_side(
    rack: &Rack,
    placed: &mut Placed<'_>,
    subject: &Subject,
    works: &[(Work, Values)],
    system: System,
    sizes: &Sizes,
) -> Result<Moved, Error> {
    let config = rack.config().expect("a rack of processes");
    let options =
        |system: System| system.options(subject.image, subject.vertices, sizes.pages).expect("a window");
    let before = placed.by_dpu(options(system))?;
    let (pieces, image) = placed.parts();
    // Static memory requested by one program serves all.
    let of = |at: usize| if at > 0 && system == System::ProcessStatic { System::Process } else { system };
    let start = Start::new(works.len());
    let run = |at: usize| -> Result<(Duration, u64, bool), Error> {
        // A program whose window fails to open must not block the others, and the measured one's end, in any
        // form, ends all.
        let arrived = start.arriving(at == 0);
        let (work, right) = &works[at];
        let threads = one_thread().map_err(named)?;
        let mut client = Rack::running(config.clone()).client("soda")?;
        let mut mine = Placed::of(&mut client, pieces.to_vec(), image.clone());
        let program = |graph: Graph<Far<'_>>| {
            arrived.wait();
            let begin = Instant::now();
            let mut found = threads.install(|| work.run(&graph));
            let time = begin.elapsed();
            let mut is_right = found.as_ref() == Ok(right);
            if at == 0 {
                start.has_ended.store(true, Ordering::Relaxed);
            }
            while !start.has_ended.load(Ordering::Relaxed) {
                found = threads.install(|| work.run(&graph));
                is_right &= found.as_ref() == Ok(right);
            }
            (time, is_right)
        };
        let ((time, is_right), stats) = mine.with(options(of(at)), program)?;
        Ok((time, stats.bytes_fetched, is_right))
    };
    let all = thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..works.len()).map(|at| scope.spawn(move || run(at))).collect();
        let ended = threads.into_iter().map(|thread| thread.join().expect("no program panics"));
        ended.collect::<Result<Vec<_>, Error>>()
    })?;
    let asked = all.iter().map(|(_, bytes, _)| bytes).sum();
    let wrong = all.iter().filter(|(.., is_right)| !is_right).count() as u64;
    let after = placed.by_dpu(options(system))?;
    let bytes = before.zip(after).map_or(asked, |(before, after)| after - before);
    Ok(Moved { bytes, asked, time: all[0].0, wrong })
}

/// The programs' starting barrier, and the flag that the measured one has ended.
struct Start {
    all: Barrier,
    has_ended: AtomicBool,
}

/// One of the awaited programs.
struct Arriving<'a> {
    start: &'a Start,
    is_here: AtomicBool,
    is_first: bool,
}

impl Start {
    fn new(programs: usize) -> Self {
        Self { all: Barrier::new(programs), has_ended: AtomicBool::new(false) }
    }

    const fn arriving(&self, is_first: bool) -> Arriving<'_> {
        Arriving { start: self, is_here: AtomicBool::new(false), is_first }
    }
}

impl Arriving<'_> {
    /// Waits until all have arrived.
    fn wait(&self) {
        if !self.is_here.swap(true, Ordering::Relaxed) {
            self.start.all.wait();
        }
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        if self.is_first {
            self.start.has_ended.store(true, Ordering::Relaxed);
        }
        self.wait();
    }
}

/// Runs a program that writes while its DPU fails. Measures its longest pause, and counts the words missing
/// in far memory afterwards. The DPU fails in the middle of the last round, so the acknowledged half is never
/// written again; a client with direct connections checks it.
fn failed(
    rack: &Rack,
    name: &str,
    mut fail: impl FnMut(),
    sizes: &Sizes,
    sheet: &mut Sheet<'_>,
) -> Result<(), Error> {
    let id = format!("soda.fail.fallback.{name}");
    let config = rack.config().expect("a rack of processes");
    let section = config.dpu.as_ref().expect("the rack has a DPU");
    let mut straight = rack.client("soda")?;
    let vma = straight.allocate(WRITTEN as u64)?;
    let options = System::Process.options(WRITTEN as u64, (0, 1), sizes.pages).expect("a window");
    let options = WindowOptions { inactive_eighths: 1, read_only: false, ..options };
    let (half_written, at_half) = channel();
    let program = move |memory: Memory<'_>| {
        let (mut longest, mut last) = (Duration::ZERO, Instant::now());
        for round in 1..=ROUNDS {
            for at in (0..WRITTEN).step_by(PAGE_LEN) {
                if round == ROUNDS && at == WRITTEN / 2 {
                    let (failed, when_failed) = channel();
                    // The failing thread lives as long as this scope.
                    let _told = half_written.send(failed);
                    let _failed = when_failed.recv();
                    last = Instant::now();
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
    let ran = thread::scope(|scope| {
        let window = scope.spawn(|| {
            let mut client = Rack::running(config.clone()).client("soda")?;
            with_window(&mut client, &vma, options, program)
        });
        if let Ok(failed) = at_half.recv() {
            fail();
            let _told = failed.send(());
        }
        window.join().expect("no program panics")
    });
    match ran {
        Ok((longest, stats)) => {
            let mut far = vec![0; WRITTEN];
            straight.read(vma.base, &mut far)?;
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

/// Number of times that a program writes each word.
const ROUNDS: u64 = 2;
