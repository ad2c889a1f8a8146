//! The execution of `farmem graph`.

use crate::algorithms::{
    Components, NONE, PageRank, UNREACHED, UnsuitableGraph, betweenness, bfs, exists, radii, sample, sssp,
    triangles,
};
use crate::checkpoint::{self, Resumable};
use crate::command::{Command, ConvertArgs, Dpu, GenerateArgs, PageRankArgs, RunArgs};
use crate::far::{self, Image, Source};
use crate::generate::{generate, memory};
use crate::load::binary::{self, Extent, Header};
use crate::report::{Answer, CommandReport, FileReport, RunReport, RunResult, Traffic, Values};
use crate::{Csr, Graph, Store};
use farmem::api::OpenMode;
use farmem::window::{AccessPath, Addressing, AtLoss, Caching, DpuConfig, WindowOptions};
use farmem::{Client, NodeId};
use farmem_workload::{Failure, Progress, on_rack_of, stopped};
use procfs_core::{FromRead as _, Meminfo};
use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Instant;

/// Runs the command.
///
/// # Errors
/// [`Failure`] when the graph cannot be read or does not suit the algorithm, or when no rack is available,
/// has room or answers.
pub fn run(command: &Command) -> Result<CommandReport, Failure> {
    match command {
        Command::Convert(args) => convert(args).map(CommandReport::File),
        Command::Generate(args) => make(args).map(CommandReport::File),
        Command::Pagerank(args) => on_graph(command, &args.run),
        Command::Components(args) => on_graph(command, &args.run),
        Command::Bfs(args) | Command::Sssp(args) => on_graph(command, &args.run),
        Command::Radii(args) | Command::Bc(args) => on_graph(command, &args.run),
        Command::Triangles(args) => on_graph(command, args),
    }
}

fn convert(args: &ConvertArgs) -> Result<FileReport, Failure> {
    let csr = far::read(&args.from, args.write.shape())?;
    wrote(&csr, &args.write.to)
}

fn make(args: &GenerateArgs) -> Result<FileReport, Failure> {
    fits(args)?;
    let edges = generate(args.kind, args.scale, args.ratio, args.seed, args.weighted);
    let built = edges.build(args.write.shape());
    wrote(&built.map_err(|error| Failure::new(error.to_string(), ""))?, &args.write.to)
}

/// Refuses a graph that exceeds this machine's memory.
fn fits(args: &GenerateArgs) -> Result<(), Failure> {
    let GenerateArgs { scale, ratio, weighted, .. } = *args;
    let needed = memory(scale, ratio, weighted, args.write.shape());
    let Ok(Meminfo { mem_available: Some(free), .. }) = Meminfo::from_file("/proc/meminfo") else {
        return Ok(());
    };
    if needed <= free {
        return Ok(());
    }
    let (vertices, edges) = (1_u64 << scale, ratio << scale);
    let (needed, free) = (needed.div_ceil(1 << 20), free >> 20);
    let what = format!(
        "{vertices} vertices and {edges} edges take {needed} MiB of memory while they are generated, and {free} MiB are free here"
    );
    Err(Failure::new(what, "take fewer: a smaller --scale or --ratio"))
}

fn wrote(csr: &Csr, to: &Path) -> Result<FileReport, Failure> {
    let written = checkpoint::replace(to, |mut out| binary::write(csr, &mut out));
    let Header { extent, .. } = written.map_err(|error| cannot_write(to, &error))?;
    let (bytes, Extent { vertices, edges, symmetric, weighted }) = (extent.file_len(), extent);
    Ok(FileReport { file: to.display().to_string(), vertices, edges, symmetric, weighted, bytes })
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::new(
        format!("{} cannot be written: {error}", path.display()),
        "name a file in a folder that may be written to",
    )
}

fn on_graph(command: &Command, args: &RunArgs) -> Result<CommandReport, Failure> {
    let threads = rayon::ThreadPoolBuilder::new().num_threads(args.threads.unwrap_or(0)).build();
    let threads = threads
        .map_err(|error| Failure::new(format!("no threads: {error}"), "choose fewer with --threads"))?;
    match (&args.file, &args.object) {
        (Some(file), _) => on_file(command, args, file, &threads),
        (None, Some(name)) => on_object(command, args, name, &threads),
        (None, None) => Err(Failure::new("no graph is named", "name a file, or an object: --object")),
    }
}

/// Runs on a graph in an object that its memory node has loaded, and leaves it there.
fn on_object(
    command: &Command,
    args: &RunArgs,
    name: &str,
    threads: &rayon::ThreadPool,
) -> Result<CommandReport, Failure> {
    let (ran, source) = on_rack_of(args.rack.as_deref(), "graph", 0, |client, transport| {
        let begun = Instant::now();
        let named = client.open_named_as(name, OpenMode::Read)?;
        let mut progress = Progress::new("its node loads the graph");
        client.wait_for_file(&named, &mut |file| {
            progress.set(file.done, named.length());
            !stopped()
        })?;
        drop(progress);
        let source = Source::object(client, name, &named, (args.check, args.trust))?;
        suits(command, &source.extent())?;
        let image = Image::of_file(&source.extent());
        let loaded = begun.elapsed().as_secs_f64();
        let begin = begin(command, &source);
        let pieces = [*named.vma()];
        let local = args.local.of(image.len());
        let placed = Placed { pieces: &pieces, image: &image, local, dpu: args.dpu, fixed: false };
        let ran = in_window(client, &placed, &begin, threads)?;
        let ran = report(command, args, (client, transport), (threads, &placed), loaded, ran);
        named.close()?;
        Ok((ran, source))
    })?;
    let begin = begin(command, &source);
    finish(args, &source, &begin, threads, ran)
}

fn begin<'a>(command: &'a Command, source: &Source) -> RunStart<'a> {
    let kept = checkpoint_of(command).map(|path| CheckpointFile { path, header: source.header() });
    RunStart { command, kept }
}

fn on_file(
    command: &Command,
    args: &RunArgs,
    file: &Path,
    threads: &rayon::ThreadPool,
) -> Result<CommandReport, Failure> {
    let source = Source::open(file, args.shape())?;
    let extent = source.extent();
    suits(command, &extent)?;
    let begin = begin(command, &source);
    let image = Image::of(&extent);
    let local = args.local.of(image.len());
    // An allocation is a power of two on one of the four nodes of an embedded rack.
    let room = image.len().checked_next_power_of_two().and_then(|bytes| bytes.checked_mul(4));
    let room = room.ok_or_else(|| Failure::new("the graph fits no rack", "take a smaller one"))?;
    let ran = on_rack_of(args.rack.as_deref(), "graph", room, |client, transport| {
        let begun = Instant::now();
        let (pieces, image) = far::place(client, &source)?;
        let loaded = begun.elapsed().as_secs_f64();
        let placed = Placed { pieces: &pieces, image: &image, local, dpu: args.dpu, fixed: args.fixed };
        let ran = in_window(client, &placed, &begin, threads);
        // Also after a failure: other programs may keep using the rack.
        let freed: Result<Vec<()>, _> = pieces.iter().map(|piece| client.free(piece.base)).collect();
        let ran = ran?;
        freed?;
        Ok(report(command, args, (client, transport), (threads, &placed), loaded, ran))
    })?;
    finish(args, &source, &begin, threads, ran)
}

/// Builds the report: load time, run time and network traffic.
fn report(
    command: &Command,
    args: &RunArgs,
    (client, transport): (&Client, &'static str),
    (threads, placed): (&rayon::ThreadPool, &Placed<'_>),
    load_seconds: f64,
    WindowRun { found, seconds, traffic }: WindowRun,
) -> RunReport {
    let Extent { vertices, edges, symmetric, weighted } = placed.image.extent();
    let graph_nodes: BTreeSet<NodeId> = placed.pieces.iter().map(|piece| piece.node).collect();
    let file = args.file.as_ref().map(|file| file.display().to_string());
    RunReport {
        algorithm: name(command),
        file: file.or_else(|| args.object.clone()).unwrap_or_default(),
        vertices,
        edges,
        symmetric,
        weighted,
        memory_nodes: client.nodes().len(),
        graph_nodes: graph_nodes.len(),
        transport,
        link: client.link_profile().to_string(),
        threads: threads.current_num_threads(),
        far_bytes: placed.image.len(),
        local_limit: placed.local,
        load_seconds,
        seconds,
        traffic,
        resumed_from: found.resumed_from,
        answer: found.answer,
        sum: found.values.sum(),
        checked: args.check,
        wrong_answers: 0,
        stopped: found.stopped,
        check_stopped: false,
        values: found.values,
    }
}

/// Checks that the algorithm suits the graph before anything is loaded.
fn suits(command: &Command, extent: &Extent) -> Result<(), Failure> {
    match command {
        Command::Triangles(_) if !extent.symmetric => Err(Failure::new(
            UnsuitableGraph::Directed.to_string(),
            "--symmetrize puts each edge at both of its ends",
        )),
        Command::Bfs(args) | Command::Sssp(args) => {
            let vertices = u32::try_from(extent.vertices).expect("checked as it was read");
            exists(args.source, vertices).map_err(unsuited)
        }
        _ => Ok(()),
    }
}

/// Writes the output and compares the result. Then removes the checkpoint, unless the results differ. A
/// stopped run has no result and leaves the output file unchanged.
fn finish(
    args: &RunArgs,
    source: &Source,
    begin: &RunStart<'_>,
    threads: &rayon::ThreadPool,
    mut ran: RunReport,
) -> Result<CommandReport, Failure> {
    match &args.output {
        // stderr may be closed.
        Some(path) if ran.stopped => drop(writeln!(
            io::stderr(),
            "farmem: stopped before there was an answer: {} is as it was",
            path.display()
        )),
        Some(path) => {
            let written = checkpoint::replace(path, |out| ran.values.write(out));
            written.map_err(|error| cannot_write(path, &error))?;
        }
        None => {}
    }
    if args.check && !ran.stopped {
        match threads.install(|| locally(source, &as_far_as(begin.command, &ran.answer))) {
            Ok(here) if !here.stopped => {
                ran.wrong_answers = u64::from(!same(begin.command, &ran, &here));
            }
            Err(failure) if !stopped() => return Err(failure),
            // The result stands, and nothing contradicts it.
            Ok(_) | Err(_) => (ran.checked, ran.check_stopped) = (false, true),
        }
    }
    if !ran.stopped && !ran.check_stopped && ran.wrong_answers == 0 {
        done(begin)?;
    }
    Ok(CommandReport::Run(Box::new(ran)))
}

/// Returns the command limited to the rounds of an answer: a resumed run may have more than this command
/// requests.
fn as_far_as(command: &Command, answer: &Answer) -> Command {
    match (command, answer) {
        (Command::Pagerank(args), &Answer::Pagerank { rounds, .. }) => {
            Command::Pagerank(PageRankArgs { rounds, tolerance: 0.0, ..args.clone() })
        }
        _ => command.clone(),
    }
}

/// Runs the same algorithm in local memory.
fn locally(source: &Source, command: &Command) -> Result<RunResult, Failure> {
    let csr = source.local()?;
    let graph = csr.graph().map_err(|error| Failure::new(error.to_string(), ""))?;
    algorithm(&graph, &RunStart { command, kept: None })
}

/// Relative tolerance for numbers whose parts were added in a different order.
const ROUNDING: f64 = 1e-9;

fn same(command: &Command, ran: &RunReport, here: &RunResult) -> bool {
    if let (Command::Bc(_), Values::Real(far), Values::Real(here)) = (command, &ran.values, &here.values) {
        let close = |(far, here): (&f64, &f64)| (far - here).abs() <= ROUNDING * here.abs();
        return far.len() == here.len() && far.iter().zip(here).all(close);
    }
    here.answer == ran.answer && here.values.sum() == ran.sum
}

const fn name(command: &Command) -> &'static str {
    match command {
        Command::Pagerank(_) => "pagerank",
        Command::Bfs(_) => "bfs",
        Command::Radii(_) => "radii",
        Command::Bc(_) => "bc",
        Command::Components(_) => "components",
        Command::Sssp(_) => "sssp",
        Command::Triangles(_) => "triangles",
        Command::Convert(_) => "convert",
        Command::Generate(_) => "generate",
    }
}

/// A graph in far memory, and its local limit.
struct Placed<'a> {
    pieces: &'a [farmem::Vma],
    image: &'a Image,
    local: u64,
    dpu: Option<Dpu>,
    fixed: bool,
}

/// A completed run of an algorithm in a window.
struct WindowRun {
    found: RunResult,
    seconds: f64,
    traffic: Traffic,
}

fn in_window(
    client: &mut Client,
    far: &Placed<'_>,
    begin: &RunStart<'_>,
    threads: &rayon::ThreadPool,
) -> Result<WindowRun, Failure> {
    let way = match far.dpu {
        None => AccessPath::Direct,
        Some(Dpu::Own) => AccessPath::Own(DpuConfig::new(Caching::Adaptive)),
        Some(Dpu::Beside) => AccessPath::DpuProcess,
    };
    let options = WindowOptions {
        place: Addressing::Anywhere,
        ahead: far::AHEAD,
        way,
        read_only: true,
        fixed: far.fixed.then(|| far.image.of_vertices()),
        at_loss: AtLoss::Exit,
        ..WindowOptions::new(far.local)
    };
    let begun = Instant::now();
    let (found, stats) = far::with_graph(client, far.pieces, far.image, options, |graph| {
        threads.install(|| algorithm(&graph, begin))
    })?;
    Ok(WindowRun { found: found?, seconds: begun.elapsed().as_secs_f64(), traffic: Traffic::of(&stats) })
}

/// The start of an algorithm.
struct RunStart<'a> {
    command: &'a Command,
    /// The checkpoint.
    kept: Option<CheckpointFile<'a>>,
}

/// The file of a checkpoint, and the identity of its graph.
struct CheckpointFile<'a> {
    path: &'a Path,
    header: Header,
}

fn checkpoint_of(command: &Command) -> Option<&Path> {
    match command {
        Command::Pagerank(args) => args.checkpoint.as_deref(),
        Command::Components(args) => args.checkpoint.as_deref(),
        _ => None,
    }
}

fn algorithm<S: Store>(graph: &Graph<S>, begin: &RunStart<'_>) -> Result<RunResult, Failure> {
    let mut progress = Progress::new(name(begin.command));
    let mut watch = |done, total| {
        progress.set(done, total);
        !stopped()
    };
    let watch = &mut watch;
    let found = match begin.command {
        Command::Pagerank(args) => {
            return pagerank(graph, begin, (args.rounds, args.tolerance), watch);
        }
        Command::Components(_) => return components(graph, begin, watch),
        Command::Bfs(args) => bfs(graph, args.source, watch).map(|found| {
            let depth = found.levels.iter().copied().filter(|&level| level != NONE).max().unwrap_or(0);
            let answer = Answer::Bfs { source: args.source, reached: found.reached, depth };
            RunResult::new(answer, Values::Pairs(found.levels, found.parents))
        }),
        Command::Sssp(args) => sssp(graph, args.source, watch).map(|found| {
            let reached = found.distances.iter().copied().filter(|&distance| distance != UNREACHED);
            let farthest = reached.max().unwrap_or(0);
            let answer =
                Answer::Sssp { source: args.source, reached: found.reached, farthest, rounds: found.rounds };
            RunResult::new(answer, Values::Long(found.distances))
        }),
        Command::Radii(args) => {
            let sources = sample(graph, args.sample, args.seed);
            radii(graph, &sources, watch).map(|found| {
                let largest = found.radii.iter().copied().filter(|&radius| radius != NONE).max().unwrap_or(0);
                let answer = Answer::Radii { sources: sources.len(), reached: found.reached, largest };
                RunResult::new(answer, Values::Short(found.radii))
            })
        }
        Command::Bc(args) => {
            let sources = sample(graph, args.sample, args.seed);
            betweenness(graph, &sources, watch).map(|sums| {
                let answer = Answer::Bc { sources: sources.len(), top: top(&sums) };
                RunResult::new(answer, Values::Real(sums))
            })
        }
        Command::Triangles(_) => triangles(graph, watch)
            .map(|triangles| RunResult::new(Answer::Triangles { triangles }, Values::None)),
        Command::Convert(_) | Command::Generate(_) => unreachable!("these run no algorithm"),
    };
    found.map_err(unsuited)
}

fn unsuited(error: UnsuitableGraph) -> Failure {
    let remedy = match error {
        UnsuitableGraph::Vertex { .. } => "name another: --source",
        UnsuitableGraph::Stopped => "what was loaded is freed",
        UnsuitableGraph::Paths { .. } => {
            "each of several edges with the same ends is a path: farmem graph convert --simple leaves one of them"
        }
        _ => "convert the graph: farmem graph convert",
    };
    Failure::new(error.to_string(), remedy)
}

fn pagerank<S: Store>(
    graph: &Graph<S>,
    begin: &RunStart<'_>,
    (rounds, tolerance): (u64, f64),
    watch: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<RunResult, Failure> {
    let (mut ranks, resumed_from) = start(begin, || PageRank::new(graph.vertices()))?;
    let is_left = |ranks: &PageRank| ranks.rounds() < rounds && ranks.moved() >= tolerance;
    let mut stopped = false;
    while is_left(&ranks) && !stopped {
        ranks.round(graph).map_err(unsuited)?;
        keep(begin, &ranks)?;
        stopped = !watch(ranks.rounds(), rounds) && is_left(&ranks);
    }
    let answer = Answer::Pagerank { rounds: ranks.rounds(), top: top(ranks.ranks()) };
    Ok(RunResult { resumed_from, stopped, ..RunResult::new(answer, Values::Real(ranks.ranks().to_vec())) })
}

fn components<S: Store>(
    graph: &Graph<S>,
    begin: &RunStart<'_>,
    watch: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<RunResult, Failure> {
    let (mut components, resumed_from) = start(begin, || Components::new(graph.vertices()))?;
    let mut stopped = false;
    while !components.changed().is_empty() && !stopped {
        components.round(graph).map_err(unsuited)?;
        keep(begin, &components)?;
        let still = graph.vertices() - u32::try_from(components.changed().len()).unwrap_or(0);
        stopped = !watch(still.into(), graph.vertices().into()) && !components.changed().is_empty();
    }
    let (count, largest) = components.sizes();
    let answer = Answer::Components { components: count, largest, rounds: components.rounds() };
    Ok(RunResult {
        resumed_from,
        stopped,
        ..RunResult::new(answer, Values::Short(components.labels().to_vec()))
    })
}

/// Resumes from the checkpoint if there is one, or starts anew.
fn start<T: Resumable>(begin: &RunStart<'_>, new: impl FnOnce() -> T) -> Result<(T, Option<u64>), Failure> {
    let Some(CheckpointFile { path, header }) = &begin.kept else { return Ok((new(), None)) };
    let failed = |what: String| {
        let remedy = "name another file with --checkpoint, or remove this one to start again";
        Failure::new(format!("{}: {what}", path.display()), remedy)
    };
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((new(), None)),
        Err(error) => Err(failed(error.to_string())),
        Ok(bytes) => {
            let state: T = checkpoint::resume(&bytes, header).map_err(failed)?;
            let rounds = state.rounds();
            Ok((state, Some(rounds)))
        }
    }
}

fn keep(begin: &RunStart<'_>, state: &impl Resumable) -> Result<(), Failure> {
    let Some(CheckpointFile { path, header }) = &begin.kept else { return Ok(()) };
    let bytes = checkpoint::bytes(header, state);
    checkpoint::replace(path, |out| out.write_all(&bytes)).map_err(|error| cannot_write(path, &error))
}

/// Removes the checkpoint after the result was delivered.
fn done(begin: &RunStart<'_>) -> Result<(), Failure> {
    let Some(CheckpointFile { path, .. }) = &begin.kept else { return Ok(()) };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot_write(path, &error)),
        _ => Ok(()),
    }
}

/// Number of vertices listed in a summary.
const TOP: usize = 5;

/// Returns the vertices with the largest values, largest first; among equals, the smallest vertex first.
fn top(values: &[f64]) -> Vec<(u32, f64)> {
    let mut all: Vec<(u32, f64)> = (0..).zip(values.iter().copied()).collect();
    let order = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if all.len() > TOP {
        all.select_nth_unstable_by(TOP, order);
        all.truncate(TOP);
    }
    all.sort_unstable_by(order);
    all
}
