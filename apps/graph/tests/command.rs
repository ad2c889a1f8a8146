//! The command line on a rack in this process: every result compared with local memory, exact limits,
//! checkpoints, refusals.

use clap::Parser as _;
use farmem::window::{Addressing, WindowOptions, with_window};
use farmem::{Error, Rack};
use farmem_graph::algorithms::{Components, PageRank, bfs};
use farmem_graph::far::{Source, place, with_graph};
use farmem_graph::load::binary::Header;
use farmem_graph::load::read;
use farmem_graph::{Answer, Command, CommandReport, Csr, RunReport, Shape, checkpoint, run};
use farmem_workload::Failure;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

fn typed(words: &str) -> Result<CommandReport, Failure> {
    let line = Line::try_parse_from(["graph"].into_iter().chain(words.split_whitespace())).unwrap();
    run(&line.command)
}

fn ran(words: &str) -> RunReport {
    match typed(words) {
        Ok(CommandReport::Run(ran)) => *ran,
        Ok(said) => panic!("{words}: {said:?}"),
        Err(failure) => panic!("{words}: {failure:?}"),
    }
}

fn refused(words: &str) -> String {
    let Failure { message, remedy } = typed(words).unwrap_err();
    format!("{message}; {remedy}")
}

/// Returns false, with the reason on stderr, where this process may not serve faults.
fn windows() -> bool {
    let rack = Rack::embedded_with(1, 1 << 20).unwrap();
    let mut client = rack.client("probe").unwrap();
    let vma = client.allocate(4096).unwrap();
    let options = WindowOptions { place: Addressing::Anywhere, ..WindowOptions::new(64 << 10) };
    match with_window(&mut client, &vma, options, |_| ()) {
        Err(Error::Open(refused)) => {
            eprintln!("skipped: {refused}");
            false
        }
        other => other.is_ok(),
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn file(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

/// Generates a graph of 1.2 MB; of 2.4 MB with weights.
fn generated(folder: &TempDir, flags: &str) -> String {
    let path = file(folder, "g.fmg");
    let said = typed(&format!("generate kronecker {path} --scale 12 --ratio 35 {flags}")).unwrap();
    let CommandReport::File(wrote) = said else { panic!("{said:?}") };
    assert_eq!((wrote.vertices, wrote.bytes), (4096, fs::metadata(&path).unwrap().len()));
    path
}

fn local(path: &str) -> Csr {
    read(Path::new(path), Shape::default(), &mut |_, _| true).unwrap()
}

/// Results through a DPU are the same. Statically cached vertex data is read once, so PageRank's rounds move
/// that much less. The DPU's requests match the far-memory requests and hits.
/// asked of the DPU was asked of far memory, or came from there.
#[test]
fn by_way_of_a_dpu_the_answers_are_the_same() {
    let folder = folder();
    if !windows() {
        return;
    }
    let path = generated(&folder, "");
    let dpu = |words: &str| {
        let ran = ran(words);
        assert_eq!((ran.wrong_answers, ran.checked), (0, true), "{words}");
        ran.traffic.dpu.unwrap()
    };
    for algorithm in ["pagerank", "bfs", "bc", "radii", "components"] {
        dpu(&format!("{algorithm} {path} --local 64KiB --dpu own --check --threads 1"));
    }
    let words = format!("pagerank {path} --local 64KiB --check --threads 1 --rounds 5 --dpu own");
    let (without, with) = (dpu(&words), dpu(&format!("{words} --static")));
    assert_eq!(without.fixed, 0);
    assert!(with.fixed > 0, "{with:?}");
    assert!(
        with.on_demand + with.background < without.on_demand + without.background,
        "{with:?} {without:?}"
    );
    let refused = refused(&format!("bfs {path} --dpu beside"));
    assert!(refused.contains("[dpu]"), "{refused}");
    assert!(Line::try_parse_from(["graph", "bfs", &path, "--static"]).is_err(), "of which DPU?");
}

/// A graph too large for any memory node is stored on several, in consecutive pieces. Results match local
/// memory, and nothing is left behind. If all nodes together have too little room, the error says so, and
/// nothing is left either.
/// nodes together have too little room, that is said, and nothing is left either.
#[test]
fn a_graph_larger_than_a_node_is_on_several() {
    let folder = folder();
    if !windows() {
        return;
    }
    let path = generated(&folder, "--weighted");
    let source = Source::open(Path::new(&path), Shape::default()).unwrap();
    let here = source.local().unwrap();
    let here = here.graph().unwrap();
    let far = |nodes: u16| {
        let rack = Rack::embedded_with(nodes, 1 << 20).unwrap();
        let mut client = rack.client("graph").unwrap();
        let placed = place(&mut client, &source);
        let ran = placed.map(|(pieces, image)| {
            let options = WindowOptions {
                place: Addressing::Anywhere,
                read_only: true,
                ..WindowOptions::new(image.len() / 8)
            };
            let program = |graph: farmem_graph::Graph<farmem_graph::Far<'_>>| {
                let levels = bfs(&graph, 7, &mut |_, _| true).unwrap().levels;
                let mut ranks = PageRank::new(graph.vertices());
                (0..3).for_each(|_| ranks.round(&graph).unwrap());
                (levels, ranks.ranks().to_vec())
            };
            let (found, stats) = with_graph(&mut client, &pieces, &image, options, program).unwrap();
            assert!(stats.bytes_here_max <= image.len() / 8, "{stats:?}");
            pieces.iter().for_each(|piece| client.free(piece.base).unwrap());
            let nodes: BTreeSet<_> = pieces.iter().map(|piece| piece.node).collect();
            (found, nodes.len(), pieces.iter().map(|piece| piece.size).collect::<Vec<_>>())
        });
        // All of each node is free again.
        let vmas: Vec<_> = (0..nodes).map(|_| client.allocate(1 << 20).unwrap()).collect();
        assert_eq!(vmas.len(), usize::from(nodes));
        ran
    };
    let (found, nodes, sizes) = far(4).unwrap();
    assert_eq!((nodes, sizes[0], sizes[1]), (3, 1 << 20, 1 << 20), "{sizes:?}");
    let mut ranks = PageRank::new(here.vertices());
    (0..3).for_each(|_| ranks.round(&here).unwrap());
    assert_eq!(found, (bfs(&here, 7, &mut |_, _| true).unwrap().levels, ranks.ranks().to_vec()));
    let refused = far(2).unwrap_err();
    assert!(refused.message.contains("free bytes in one piece"), "{refused:?}");
}

#[test]
fn every_algorithm_answers_as_in_local_memory_with_an_eighth_of_the_graph_here() {
    let folder = folder();
    if !windows() {
        return;
    }
    let directed = generated(&folder, "--weighted");
    let both = file(&folder, "both.fmg");
    typed(&format!("convert {directed} {both} --symmetrize --simple")).unwrap();
    for (words, path) in [
        ("pagerank --tolerance 1e-4", &directed),
        ("bfs --source 7", &directed),
        ("radii --sample 64", &directed),
        ("bc --sample 3", &directed),
        ("components", &directed),
        ("sssp --source 7", &directed),
        ("triangles", &both),
        ("components", &both),
    ] {
        let (name, flags) = words.split_once(' ').unwrap_or((words, ""));
        let found = ran(&format!("{name} {path} {flags} --local 12% --check"));
        assert_eq!((found.checked, found.wrong_answers, found.stopped), (true, 0, false), "{words}");
        assert!(found.local_limit == found.far_bytes / 100 * 12 + found.far_bytes % 100 * 12 / 100);
        assert!(found.traffic.bytes_here_max <= found.local_limit, "{words}: {:?}", found.traffic);
        assert!(found.traffic.evictions > 0, "{words}: not all of it fits: {:?}", found.traffic);
        let other = ran(&format!("{name} {path} {flags} --local 16MiB --threads 3"));
        assert_eq!((other.answer, other.sum), (found.answer, found.sum), "{words}");
        assert_eq!((other.traffic.evictions, other.threads), (0, 3), "{words}");
        assert!(
            other.traffic.bytes_fetched <= other.far_bytes.next_power_of_two(),
            "{words}: each page once"
        );
    }
}

#[test]
fn a_checkpoint_is_resumed_and_no_other() {
    let folder = folder();
    if !windows() {
        return;
    }
    let path = generated(&folder, "");
    let csr = local(&path);
    let (graph, header) = (csr.graph().unwrap(), Header::of(&csr));
    let (mut ranks, mut labels) = (PageRank::new(4096), Components::new(4096));
    for _ in 0..2 {
        ranks.round(&graph).unwrap();
        labels.round(&graph).unwrap();
    }
    let saved = PathBuf::from(file(&folder, "checkpoint"));
    let shown = saved.display();
    for (words, bytes) in [
        (format!("pagerank {path}"), checkpoint::bytes(&header, &ranks)),
        (format!("components {path}"), checkpoint::bytes(&header, &labels)),
    ] {
        let whole = ran(&words);
        assert_eq!(whole.resumed_from, None);
        fs::write(&saved, &bytes).unwrap();
        let resumed = ran(&format!("{words} --checkpoint {shown}"));
        assert_eq!((resumed.resumed_from, resumed.sum), (Some(2), whole.sum));
        assert_eq!(resumed.answer, whole.answer, "rounds before the checkpoint count");
        assert!(!saved.exists(), "it has served");
        // The state of an interrupted run: here after the first round.
        let first = ran(&format!("{words} --checkpoint {shown}"));
        assert_eq!((first.resumed_from, first.sum), (None, whole.sum));
    }
    // The checkpoint has more rounds than requested: the result is theirs, and the comparison runs as many.
    fs::write(&saved, checkpoint::bytes(&header, &ranks)).unwrap();
    let fewer = ran(&format!("pagerank {path} --rounds 1 --checkpoint {shown} --check"));
    assert_eq!((fewer.resumed_from, fewer.checked, fewer.wrong_answers), (Some(2), true, 0));
    let bytes = checkpoint::bytes(&header, &ranks);
    let tell = |bytes: &[u8], words: &str| {
        fs::write(&saved, bytes).unwrap();
        let said = refused(&format!("{words} --checkpoint {shown}"));
        assert!(saved.exists() && said.contains("remove this one to start again"), "{said}");
        said
    };
    let other = file(&folder, "other.fmg");
    typed(&format!("generate uniform {other} --scale 12 --ratio 35")).unwrap();
    assert!(tell(&bytes, &format!("pagerank {other}")).contains("another graph"));
    assert!(tell(&bytes, &format!("components {path}")).contains("another algorithm"));
    assert!(tell(&bytes[..bytes.len() / 2], &format!("pagerank {path}")).contains("damaged"));
    assert!(tell(b"FARM", &format!("pagerank {path}")).contains("cut short"));
    // The previous version.
    let mut old = bytes[..bytes.len() - 4].to_vec();
    old[8] = 1;
    let sum = crc32fast::hash(&old);
    old.extend(sum.to_le_bytes());
    assert!(tell(&old, &format!("pagerank {path}")).contains("version 1, expected 2"));
}

/// A run that ended but could not write its answer has not lost it: the checkpoint exists, and the next run
/// takes no further round.
#[test]
fn a_checkpoint_stays_until_the_answer_is_written() {
    let folder = folder();
    if !windows() {
        return;
    }
    let path = generated(&folder, "");
    let saved = PathBuf::from(file(&folder, "checkpoint"));
    let (shown, nowhere) = (saved.display(), file(&folder, "absent/found"));
    for name in ["pagerank", "components"] {
        let whole = ran(&format!("{name} {path}"));
        let said = refused(&format!("{name} {path} --checkpoint {shown} --output {nowhere}"));
        assert!(said.contains("absent/found cannot be written"), "{said}");
        assert!(saved.exists(), "{name}");
        let again = ran(&format!("{name} {path} --checkpoint {shown} --check"));
        assert_eq!((&again.answer, again.sum, again.wrong_answers), (&whole.answer, whole.sum, 0));
        let (Answer::Pagerank { rounds, .. } | Answer::Components { rounds, .. }) = whole.answer else {
            panic!("{whole:?}")
        };
        assert_eq!(again.resumed_from, Some(rounds), "{name}: no round was left");
        assert!(!saved.exists(), "{name}");
    }
}

/// Written files have the permissions that the umask gives, like any other program's.
#[test]
fn the_umask_says_who_may_read_what_is_written() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = folder();
    let plain = file(&folder, "plain");
    fs::write(&plain, "").unwrap();
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode();
    let (path, expected) = (generated(&folder, ""), mode(&plain));
    assert_eq!(mode(&path), expected);
    if windows() {
        let out = file(&folder, "found");
        ran(&format!("bfs {path} --output {out}"));
        assert_eq!(mode(&out), expected);
    }
}

/// The checksum covers every byte of a checkpoint, and an invalid state with a right checksum is refused.
#[test]
fn a_damaged_checkpoint_is_refused() {
    let folder = folder();
    let text = file(&folder, "g.txt");
    fs::write(&text, "0 1\n1 2\n4 3\n").unwrap();
    let csr = local(&text);
    let header = Header::of(&csr);
    let mut labels = Components::new(5);
    labels.round(&csr.graph().unwrap()).unwrap();
    let good = checkpoint::bytes(&header, &labels);
    let back: Components = checkpoint::resume(&good, &header).unwrap();
    assert_eq!((back.labels(), back.rounds()), (labels.labels(), 1));
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(checkpoint::resume::<Components>(&bytes, &header).is_err(), "bit {bit}");
    }
    for len in 0..good.len() {
        assert!(checkpoint::resume::<Components>(&good[..len], &header).is_err(), "cut at {len}");
    }
    let lies = |at: usize, byte: u8| {
        let mut bytes = good[..good.len() - 4].to_vec();
        bytes[at] = byte;
        let sum = crc32fast::hash(&bytes);
        bytes.extend(sum.to_le_bytes());
        checkpoint::resume::<Components>(&bytes, &header).err()
    };
    assert!(lies(64, 1).unwrap().contains("no state"), "a label above its vertex");
    assert!(lies(good.len() - 5, 1).unwrap().contains("no state"), "a bit behind the vertices");
    assert!(lies(8, 9).unwrap().contains("version 9"));
    // The movement of ranks: a number, infinite only before the first round.
    let mut ranks = PageRank::new(5);
    let begun = checkpoint::bytes(&header, &ranks);
    assert_eq!(checkpoint::resume::<PageRank>(&begun, &header).unwrap(), ranks);
    ranks.round(&csr.graph().unwrap()).unwrap();
    assert_eq!(checkpoint::resume::<PageRank>(&checkpoint::bytes(&header, &ranks), &header).unwrap(), ranks);
    for moved in [f64::NAN, f64::INFINITY, -1.0] {
        let lie = PageRank::resumed(ranks.ranks().to_vec(), moved, 1);
        let refused = checkpoint::resume::<PageRank>(&checkpoint::bytes(&header, &lie), &header);
        assert!(refused.unwrap_err().contains("no state"), "{moved}");
    }
}

#[test]
fn what_was_found_of_each_vertex_is_written() {
    let folder = folder();
    if !windows() {
        return;
    }
    let (text, out) = (file(&folder, "g.txt"), file(&folder, "found"));
    fs::write(&text, "# two parts\n0 1 5\n1 2 5\n0 2 20\n4 3 1\n").unwrap();
    let lines = |words: &str| {
        let found = ran(&format!("{words} --output {out} --check"));
        assert_eq!(found.wrong_answers, 0);
        (found.answer, fs::read_to_string(&out).unwrap())
    };
    let (answer, found) = lines(&format!("bfs {text}"));
    assert_eq!(answer, Answer::Bfs { source: 0, reached: 3, depth: 1 });
    assert_eq!(found, "0 0 0\n1 1 0\n2 1 0\n3 - -\n4 - -\n");
    assert_eq!(lines(&format!("sssp {text}")).1, "0 0\n1 5\n2 10\n3 -\n4 -\n");
    let (answer, found) = lines(&format!("components {text}"));
    assert!(matches!(answer, Answer::Components { components: 2, largest: 3, .. }), "{answer:?}");
    assert_eq!(found, "0 0\n1 0\n2 0\n3 3\n4 3\n");
    assert_eq!(lines(&format!("triangles {text} --symmetrize")).0, Answer::Triangles { triangles: 1 });
    assert_eq!(lines(&format!("bc {text} --sample 5")).1.lines().count(), 5);
}

#[test]
fn what_cannot_be_done_is_refused_with_what_to_do() {
    let folder = folder();
    let (text, cut) = (file(&folder, "g.txt"), file(&folder, "cut.fmg"));
    fs::write(&text, "0 1\n1 zwei\n").unwrap();
    assert!(refused(&format!("bfs {text}")).contains("g.txt: line 2: the vertex to is \"zwei\""));
    assert!(refused("bfs absent.txt").contains("absent.txt"));
    fs::write(&text, "0 1\n").unwrap();
    assert!(refused(&format!("triangles {text}")).contains("--symmetrize"));
    let path = generated(&folder, "");
    let mut bytes = fs::read(&path).unwrap();
    bytes.truncate(bytes.len() - 1);
    fs::write(&cut, &bytes).unwrap();
    assert!(refused(&format!("bfs {cut}")).contains("cut.fmg: byte 16:"));
    // Only the arrays' checksum shows the error: the file is read to its end, and nothing of it is used.
    bytes.push(!fs::read(&path).unwrap()[bytes.len()]);
    fs::write(&cut, &bytes).unwrap();
    let said = refused(&format!("bfs {cut}"));
    assert!(said.contains("cut.fmg: byte "), "{said}");
    // Detected before anything is loaded: the arrays belong to another graph than the header.
    let (mut late, header) = (fs::read(&path).unwrap(), 40);
    late[header..].fill(0xff);
    fs::write(&cut, &late).unwrap();
    for name in ["bfs", "sssp"] {
        let said = refused(&format!("{name} {cut} --source 4096"));
        assert!(said.contains("there is no vertex 4096: the graph has 4096"), "{said}");
    }
    let large = file(&folder, "large.fmg");
    let said = refused(&format!("generate uniform {large} --scale 31 --ratio 65536 --symmetrize"));
    assert!(
        said.contains("2147483648 vertices and 140737488355328 edges take ") && said.contains("--ratio"),
        "{said}"
    );
    assert!(!Path::new(&large).exists());
    let chain: String = (0..600).map(|from| format!("{from} {}\n", from + 1).repeat(4)).collect();
    let many = file(&folder, "many.txt");
    fs::write(&many, chain).unwrap();
    if windows() {
        let said = refused(&format!("bc {many}"));
        assert!(
            said.contains("more than 2^1024 shortest paths") && said.contains("convert --simple"),
            "{said}"
        );
    }
    assert!(refused(&format!("bfs {path} --local 4KiB")).contains("local limit"));
    for wrong in [
        "bfs g --local 0%",
        "bfs g --local 101%",
        "bfs g --local much",
        "pagerank g --tolerance nan",
        "pagerank g --tolerance -1",
        "radii g --sample 65",
        "generate kronecker g.txt",
        "generate uniform g.fmg --scale 32",
    ] {
        let parsed = Line::try_parse_from(["graph"].into_iter().chain(wrong.split(' ')));
        assert!(parsed.is_err(), "{wrong}");
    }
}
