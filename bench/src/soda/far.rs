//! An application in a window on a graph in far memory: results, time and traffic.
//!
//! Key function: [`count`], the exact traffic of an application in one of the systems, on a rack in this
//! process, with one working thread.

use super::subject::{Subject, failed, named};
use super::system::{Pages, System};
use super::work::{App, Work};
use super::{PAGERANK_QUICK, pool};
use farmem::window::{WindowOptions, WindowStats, with_window};
use farmem::{Client, Error, Rack, Vma};
use farmem_graph::far::{Image, Source, place, with_graph};
use farmem_graph::{Far, Graph, Shape, Values};
use std::time::{Duration, Instant};

/// The traffic of an application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Bytes requested from far memory.
    pub bytes: u64,
    /// The part of these bytes that no thread waited for: prefetches of a DPU.
    pub background: u64,
    /// Page requests to a DPU; without a DPU, READs sent.
    pub reads: u64,
    /// The part of the requests that hit the DPU's cache or static memory.
    pub hits: u64,
    /// Bytes that the window requested.
    pub asked: u64,
}

impl Counts {
    /// Returns true when an adaptive DPU moved at most 1.05 times the requested bytes (1,075 1,024ths,
    /// [`farmem::window::DpuConfig::traffic_cap`]).
    #[must_use]
    pub const fn is_within_cap(&self) -> bool {
        self.bytes * 1024 <= self.asked * 1075
    }
}

/// A run of an application in a window.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) values: Values,
    pub(super) time: Duration,
    pub(super) stats: WindowStats,
}

impl Run {
    pub(super) const fn counts(&self) -> Counts {
        let WindowStats { bytes_fetched, fetches, dpu, .. } = self.stats;
        match dpu {
            None => {
                let (bytes, asked) = (bytes_fetched, bytes_fetched);
                Counts { bytes, background: 0, reads: fetches, hits: 0, asked }
            }
            Some(dpu) => Counts {
                bytes: dpu.on_demand + dpu.background,
                background: dpu.background,
                reads: dpu.reads,
                hits: dpu.hits + dpu.fixed,
                asked: bytes_fetched,
            },
        }
    }
}

/// A graph in the far memory of a client.
pub(super) struct Placed<'c> {
    client: &'c mut Client,
    pieces: Vec<Vma>,
    image: Image,
}

impl<'c> Placed<'c> {
    pub(super) fn new(client: &'c mut Client, subject: &Subject) -> Result<Self, Error> {
        let source = Source::open(&subject.path, Shape::default()).map_err(failed)?;
        let (pieces, image) = place(client, &source).map_err(failed)?;
        Ok(Self { client, pieces, image })
    }

    /// Returns the graph as seen by another client.
    pub(super) const fn of(client: &'c mut Client, pieces: Vec<Vma>, image: Image) -> Self {
        Self { client, pieces, image }
    }

    /// Returns the graph's allocations and layout.
    pub(super) fn parts(&self) -> (&[Vma], &Image) {
        (&self.pieces, &self.image)
    }

    /// Returns the bytes that a DPU beside the host has requested from far memory so far, for all programs;
    /// `None` without a DPU.
    pub(super) fn by_dpu(&mut self, options: WindowOptions) -> Result<Option<u64>, Error> {
        // This window only queries the DPU.
        let asked = WindowOptions { fixed: None, ..options };
        let ((), stats) = with_window(self.client, &self.pieces[0], asked, |_| ())?;
        Ok(stats.dpu.map(|dpu| dpu.on_demand + dpu.background))
    }

    /// Runs `work` once, through a window with these options.
    pub(super) fn run(&mut self, options: WindowOptions, work: &Work) -> Result<Run, Error> {
        self.run_on(1, options, work)
    }

    /// Works as [`Placed::run`], on this many threads.
    pub(super) fn run_on(
        &mut self,
        threads: usize,
        options: WindowOptions,
        work: &Work,
    ) -> Result<Run, Error> {
        let threads = pool(threads).map_err(named)?;
        let program = |graph: Graph<Far<'_>>| {
            let begin = Instant::now();
            let found = threads.install(|| work.run(&graph));
            (found, begin.elapsed())
        };
        let ((found, time), stats) = self.with(options, program)?;
        Ok(Run { values: found.map_err(named)?, time, stats })
    }

    /// Runs `program` on the graph, through a window with these options.
    pub(super) fn with<R: Send>(
        &mut self,
        options: WindowOptions,
        program: impl FnOnce(Graph<Far<'_>>) -> R + Send,
    ) -> Result<(R, WindowStats), Error> {
        with_graph(self.client, &self.pieces, &self.image, options, program)
    }
}

/// Returns the bytes of a memory node with room for exactly one image: a short run then fills its nodes as a
/// full one does.
pub(super) const fn node_memory(image: u64) -> u64 {
    let needed = image.next_power_of_two();
    if needed < NODE_MIN { NODE_MIN } else { needed }
}

const NODE_MIN: u64 = 1 << 20;

/// Counts the traffic of `app` on a Kronecker graph of 2^`scale` vertices with `ratio` edges each, in each of
/// two runs, and the answers that differ from local memory. Returns `None` for a system without a window, or
/// one that needs a rack of processes.
///
/// # Errors
/// [`Error::Open`] where this process may not serve faults.
pub fn count(scale: u32, ratio: u64, app: App, system: System) -> Result<Option<([Counts; 2], u64)>, Error> {
    let subject = Subject::make(ratio, scale, PAGERANK_QUICK)?;
    let Some(options) =
        system.options(subject.image, subject.vertices, Pages::QUICK).filter(|_| !system.has_process())
    else {
        return Ok(None);
    };
    let rack = Rack::embedded_with(1, node_memory(subject.image))?;
    let mut client = rack.client("soda")?;
    let mut placed = Placed::new(&mut client, &subject)?;
    let (work, right) = subject.work(app)?;
    let [first, second] = [placed.run(options, &work)?, placed.run(options, &work)?];
    let wrong = [&first, &second].into_iter().filter(|run| run.values != right).count() as u64;
    Ok(Some(([first.counts(), second.counts()], wrong)))
}
