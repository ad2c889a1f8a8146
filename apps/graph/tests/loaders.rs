//! Files of each format: read back after writing; malformed, truncated or hostile files are refused with the
//! position.

use farmem_graph::far::Source;
use farmem_graph::generate::{Kind, generate};
use farmem_graph::load::binary::Extent;
use farmem_graph::load::{At, LoadError, binary, read, read_edge_list, read_gapbs, read_matrix_market};
use farmem_graph::{Csr, Edges, Shape};
use proptest::prelude::*;
use std::sync::Arc;

const GO_ON: fn(u64, u64) -> bool = |_, _| true;

fn graph(symmetric: bool, weighted: bool) -> Csr {
    let edges = generate(Kind::Kronecker, 5, 3, 8, weighted);
    edges.build(Shape { symmetric, simple: false }).unwrap()
}

fn in_binary(csr: &Csr) -> Vec<u8> {
    let mut bytes = Vec::new();
    binary::write(csr, &mut bytes).unwrap();
    bytes
}

fn from_binary(bytes: &[u8]) -> Result<Csr, LoadError> {
    let from = |at: u64| bytes.get(usize::try_from(at).unwrap()..).unwrap_or_default();
    binary::read(from, bytes.len() as u64, &mut { GO_ON })
}

/// Encodes like GAPBS's `WriteSerializedGraph`.
fn in_gapbs(csr: &Csr) -> Vec<u8> {
    let mut bytes = vec![u8::from(!csr.symmetric)];
    bytes.extend((csr.out.targets.len() as u64).to_le_bytes());
    bytes.extend(csr.vertices().to_le_bytes());
    for rows in [Some(&csr.out), csr.incoming.as_ref()].into_iter().flatten() {
        bytes.extend(rows.offsets.iter().flat_map(|offset| offset.to_le_bytes()));
        for (at, target) in rows.targets.iter().enumerate() {
            bytes.extend(target.to_le_bytes());
            bytes.extend(rows.weights.iter().flat_map(|weights| weights[at].to_le_bytes()));
        }
    }
    bytes
}

fn from_gapbs(mut bytes: &[u8], weighted: bool) -> Result<Csr, LoadError> {
    let len = bytes.len() as u64;
    read_gapbs(&mut bytes, len, weighted)
}

fn line(error: &LoadError) -> u64 {
    let At::Line(line) = error.at else { panic!("a line: {error}") };
    line
}

#[test]
fn what_is_written_is_read() {
    for (symmetric, weighted) in [(false, false), (false, true), (true, false), (true, true)] {
        let csr = graph(symmetric, weighted);
        assert_eq!(from_binary(&in_binary(&csr)).unwrap(), csr);
        assert_eq!(from_gapbs(&in_gapbs(&csr), weighted).unwrap(), csr);
        for empty in [Edges::default(), Edges { vertices: 3, ..Edges::default() }] {
            let weights = weighted.then(Vec::new);
            let empty = Edges { weights, ..empty }.build(Shape { symmetric, simple: false }).unwrap();
            assert_eq!(from_binary(&in_binary(&empty)).unwrap(), empty);
            assert_eq!(from_gapbs(&in_gapbs(&empty), weighted).unwrap(), empty);
        }
    }
}

/// More than a block of each array, so that block boundaries are crossed.
#[test]
fn a_graph_of_many_blocks_is_read() {
    let csr = generate(Kind::Kronecker, 14, 4, 3, true).build(Shape::default()).unwrap();
    assert_eq!(from_binary(&in_binary(&csr)).unwrap(), csr);
}

#[test]
fn edge_lists_have_comments_and_weights() {
    let text = "# SNAP\n# FromNodeId\tToNodeId\n0\t1\n\n 3 , 2 \n% more\n1 1\n";
    let edges = read_edge_list(text.as_bytes()).unwrap();
    assert_eq!(edges, Edges { vertices: 4, list: vec![(0, 1), (3, 2), (1, 1)], weights: None });
    let weighted = read_edge_list("0 1 7\n1 0 0".as_bytes()).unwrap();
    assert_eq!(weighted, Edges { vertices: 2, list: vec![(0, 1), (1, 0)], weights: Some(vec![7, 0]) });
    assert_eq!(read_edge_list("# nothing\n".as_bytes()).unwrap(), Edges::default());
    let behind = read_edge_list("0 1 # one\n1 2% two\n   # none\n".as_bytes()).unwrap();
    assert_eq!((behind.vertices, &behind.list[..]), (3, &[(0, 1), (1, 2)][..]));
    for (text, at, says) in [
        ("0 1\n1\n", 2, "the vertex to is missing"),
        ("0 1\nx 1\n", 2, "\"x\", expected a whole number"),
        ("0 -1\n", 1, "\"-1\""),
        ("0 4294967295\n", 1, "4294967294"),
        ("0 1\n\n1 0 3\n", 3, "some edges have a weight"),
        ("0 1 3\n1 0\n", 2, "some edges have a weight"),
        ("0 1 3 4\n", 1, "more than"),
        ("0 1 4294967296\n", 1, "the weight"),
        // Offsets alone would take 32 GiB.
        ("1 0\n4294967294 0\n1 1\n", 2, "without large gaps"),
    ] {
        let error = read_edge_list(text.as_bytes()).unwrap_err();
        assert!(line(&error) == at && error.to_string().contains(says), "{text:?}: {error}");
    }
    let long = "1".repeat(5000);
    assert_eq!(line(&read_edge_list(long.as_bytes()).unwrap_err()), 1);
    assert!(read_edge_list(&b"0 1\n\xff\xff\n"[..]).unwrap_err().to_string().contains("line 2: is no text"));
}

#[test]
fn matrix_market_is_read_and_refused() {
    let general = "%%MatrixMarket matrix coordinate real general\n% c\n3 3 2\n1 2 4.0\n3 1 1e2\n";
    let edges = Edges { vertices: 3, list: vec![(0, 1), (2, 0)], weights: Some(vec![4, 100]) };
    assert_eq!(read_matrix_market(general.as_bytes()), Ok((edges, false)));
    let half = "%%matrixmarket MATRIX coordinate pattern symmetric\n2 2 1\n2 1\n";
    let edges = Edges { vertices: 2, list: vec![(1, 0)], weights: None };
    assert_eq!(read_matrix_market(half.as_bytes()), Ok((edges, true)));
    let pattern = |rest: &str| format!("%%MatrixMarket matrix coordinate pattern general\n{rest}");
    for (text, at, says) in [
        (String::new(), 1, "expected %%MatrixMarket"),
        ("%%MatrixMarket matrix array real general\n".into(), 1, "expected coordinate"),
        ("%%MatrixMarket matrix coordinate complex general\n".into(), 1, "complex"),
        ("%%MatrixMarket matrix coordinate real skew-symmetric\n".into(), 1, "skew-symmetric"),
        (pattern("% only\n"), 3, "cut short"),
        (pattern("2 3 1\n1 1\n"), 2, "2 rows and 3 columns"),
        (pattern("2 2 2\n1 1\n"), 4, "1 entries, expected 2"),
        (pattern("2 2 1\n1 1\n1 2\n"), 4, "more entries"),
        (pattern("2 2 1\n0 1\n"), 3, "the row is 0"),
        (pattern("2 2 1\n1 3\n"), 3, "from 0 to 2"),
        (pattern("2 2 1\n1 1 1\n"), 3, "more words"),
        (pattern("4294967295 4294967295 1\n1 1\n"), 2, "without large gaps"),
        (pattern("2 2 18446744073709551615\n1 1\n"), 4, "1 entries, expected 18446744073709551615"),
        (general.replace("4.0", "4.5"), 4, "scale the weights"),
        (general.replace("4.0", "-1"), 4, "\"-1\""),
        (general.replace("4.0", "nan"), 4, "nan"),
    ] {
        let error = read_matrix_market(text.as_bytes()).unwrap_err();
        assert!(line(&error) == at && error.to_string().contains(says), "{text:?}: {error}");
    }
}

/// Each false value in a header or array, with right checksums, is refused at its byte.
#[test]
fn binary_files_that_lie_are_refused() {
    let csr = graph(false, true);
    let good = in_binary(&csr);
    let altered = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        let sum = crc32fast::hash(&bytes[40..]);
        bytes[32..36].copy_from_slice(&sum.to_le_bytes());
        let sum = crc32fast::hash(&bytes[..36]);
        bytes[36..40].copy_from_slice(&sum.to_le_bytes());
        from_binary(&bytes).unwrap_err()
    };
    let (n, m) = (usize::try_from(csr.vertices()).unwrap(), csr.out.targets.len());
    let targets = 40 + (n + 1) * 8;
    let incoming = targets + m * 8 + (n + 1) * 8;
    let put = |at: usize, with: Vec<u8>| {
        move |bytes: &mut Vec<u8>| bytes[at..at + with.len()].copy_from_slice(&with)
    };
    let row = csr.out.offsets.windows(2).position(|pair| pair[1] > pair[0] + 1).unwrap();
    let first = targets + 4 * usize::try_from(csr.out.offsets[row]).unwrap();
    let last = u32::try_from(n - 1).unwrap().to_le_bytes().to_vec();
    for (at, says, change) in [
        (0, "no FARMGRAF", put(0, b"GRAFFARM".to_vec())),
        (8, "version 2", put(8, 2_u32.to_le_bytes().to_vec())),
        (12, "flags 0x4", put(12, 4_u32.to_le_bytes().to_vec())),
        (16, "do not make", put(16, 31_u64.to_le_bytes().to_vec())),
        (16, "4294967295 at most", put(16, u64::MAX.to_le_bytes().to_vec())),
        (16, "do not make", put(24, u64::MAX.to_le_bytes().to_vec())),
        (40, "expected 0", put(40, 1_u64.to_le_bytes().to_vec())),
        (48, "there are", put(48, 1000_u64.to_le_bytes().to_vec())),
        (targets - 8, "the last", put(targets - 8, csr.out.offsets[n - 1].to_le_bytes().to_vec())),
        (targets, "there are only 32 vertices", put(targets, 32_u32.to_le_bytes().to_vec())),
    ] {
        let error = altered(&change);
        assert!(error.to_string().contains(says), "{says}: {error}");
        if says != "the last" {
            assert_eq!(error.at, At::Byte(at as u64), "{error}");
        }
    }
    let mut bytes = good.clone();
    bytes[first..first + 4].copy_from_slice(&last);
    if csr.out.targets[usize::try_from(csr.out.offsets[row]).unwrap() + 1] < u32::try_from(n - 1).unwrap() {
        let error = altered(&put(first, last));
        assert_eq!(error.at, At::Byte(first as u64 + 4), "{error}");
    }
    // An incoming edge without an outgoing one.
    let into = usize::try_from(csr.incoming.as_ref().unwrap().offsets[1]).unwrap();
    let zero = 0_u32.to_le_bytes().to_vec();
    let error = altered(&put(incoming + 4 * into, zero));
    assert!(error.to_string().contains("edges into vertices are not those out of them"), "{error}");
    // The symmetric flag.
    let half = Csr { incoming: None, symmetric: true, ..csr };
    assert!(from_binary(&in_binary(&half)).unwrap_err().to_string().contains("not those out of them"));
    assert!(from_gapbs(&in_gapbs(&half), true).unwrap_err().to_string().contains("both of its ends"));
}

#[test]
fn every_cut_and_every_flipped_bit_is_found() {
    let good = in_binary(&graph(false, true));
    for len in 0..good.len() {
        assert!(from_binary(&good[..len]).is_err(), "cut at {len}");
    }
    let mut bytes = good.clone();
    for bit in 0..good.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(from_binary(&bytes).is_err(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    let gapbs = in_gapbs(&graph(false, false));
    for len in 0..gapbs.len() {
        assert!(from_gapbs(&gapbs[..len], false).is_err(), "cut at {len}");
    }
    let mut hostile = gapbs.clone();
    hostile[9..17].copy_from_slice(&(u64::MAX / 16).to_le_bytes());
    assert_eq!(from_gapbs(&hostile, false).unwrap_err().at, At::Byte(1));
    hostile[1..9].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(from_gapbs(&hostile, false).unwrap_err().to_string().contains("more than 2^64"));
    let mut negative = in_gapbs(&graph(false, true));
    let at = negative.len() / 2 - 1;
    negative[at - 15] = 0xff; // the highest byte of some number: a vertex or weight below zero
    assert!(from_gapbs(&negative, true).is_err());
}

/// Asserts that a successful read is a valid graph.
fn sound(read: Result<Csr, LoadError>) {
    if let Ok(csr) = read {
        let graph = csr.graph().unwrap();
        assert!(graph.out().is_sorted());
        assert!(csr.vertices() <= 1 << 20, "more than the file shows");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, rng_seed: proptest::test_runner::RngSeed::Fixed(41), failure_persistence: None, ..ProptestConfig::default() })]

    /// Random byte changes with right checksums, so that the change is examined; and random bytes.
    #[test]
    fn mutated_bytes_are_a_graph_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        symmetric in any::<bool>(), weighted in any::<bool>(), any in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let csr = graph(symmetric, weighted);
        let changed = |mut bytes: Vec<u8>| {
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            bytes
        };
        let mut bytes = changed(in_binary(&csr));
        let sum = crc32fast::hash(&bytes[40..]);
        bytes[32..36].copy_from_slice(&sum.to_le_bytes());
        let sum = crc32fast::hash(&bytes[..36]);
        bytes[36..40].copy_from_slice(&sum.to_le_bytes());
        sound(from_binary(&bytes));
        sound(from_gapbs(&changed(in_gapbs(&csr)), weighted));
        let text = changed(b"# a\n0 1 2\n3 4 5\n6 7 8\n9 10 11\n".to_vec());
        sound(read_edge_list(text.as_slice()).map(|edges| edges.build(Shape::default()).unwrap()));
        let market = changed(b"%%MatrixMarket matrix coordinate integer general\n4 4 3\n1 2 3\n4 4 1\n2 2 2\n".to_vec());
        sound(read_matrix_market(market.as_slice()).map(|(edges, _)| edges.build(Shape::default()).unwrap()));
        sound(from_binary(&any));
        sound(from_gapbs(&any, weighted));
        sound(read_edge_list(any.as_slice()).map(|edges| edges.build(Shape::default()).unwrap()));
    }
}

/// The file is opened once: another file under its name, or new contents written into it, is not mistaken for
/// the examined one.
#[test]
fn a_file_that_changes_while_it_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let (path, beside) = (folder.path().join("g.fmg"), folder.path().join("beside.fmg"));
    let csr = graph(false, true);
    let other = generate(Kind::Uniform, 9, 3, 8, false).build(Shape::default()).unwrap();
    std::fs::write(&path, in_binary(&csr)).unwrap();
    std::fs::write(&beside, in_binary(&other)).unwrap();
    let source = Source::open(&path, Shape::default()).unwrap();
    std::fs::rename(&beside, &path).unwrap();
    assert_eq!(source.extent(), Extent::of(&csr));
    assert_eq!(*source.local().unwrap(), csr);
    let source = Source::open(&path, Shape::default()).unwrap();
    let mut grown = in_binary(&generate(Kind::Uniform, 10, 3, 8, false).build(Shape::default()).unwrap());
    std::fs::write(&path, &grown).unwrap();
    assert!(source.local().unwrap_err().message.contains("g.fmg: byte "));
    grown.truncate(grown.len() / 4);
    std::fs::write(&path, &grown).unwrap();
    assert!(source.local().unwrap_err().message.contains("g.fmg: byte "));
}

/// Files are read by extension; tables of edges need certain columns.
#[test]
fn files_are_read_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let csr = graph(false, true);
    let edges = csr.clone().into_edges();
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let weights = edges.weights.as_ref().unwrap();
    let lines: String = edges
        .list
        .iter()
        .zip(weights)
        .map(|((from, to), weight)| format!("{from} {to} {weight}\n"))
        .collect();
    let table = folder.path().join("g.parquet");
    write_parquet(&table, &["source", "target", "weight"], &edges);
    let files = [
        put("g.fmg", &in_binary(&csr)),
        put("g.wsg", &in_gapbs(&csr)),
        put("g.txt", lines.as_bytes()),
        table,
    ];
    for file in &files {
        let mut told = 0;
        let mut progress = |done, total| {
            assert!(done <= total);
            told = done;
            true
        };
        let found = read(file, Shape::default(), &mut progress).unwrap();
        // A list does not show vertices after the last edge.
        assert_eq!(
            (found.out.targets, found.out.weights),
            (csr.out.targets.clone(), csr.out.weights.clone()),
            "{}",
            file.display()
        );
        let both = read(file, Shape { symmetric: true, simple: true }, &mut { GO_ON }).unwrap();
        assert!(both.symmetric && both.incoming.is_none());
        assert!(both.out.targets.len() < 2 * csr.out.targets.len(), "loops and repetitions are gone");
    }
    for file in &files {
        let stopped = read(file, Shape::default(), &mut |_, _| false).unwrap_err();
        let says = stopped.to_string();
        assert!(stopped.stopped && says == "stopped before all of it was read", "{}: {says}", file.display());
    }
    let wrong = folder.path().join("w.parquet");
    write_parquet(&wrong, &["from", "to", "weight"], &edges);
    let error = read(&wrong, Shape::default(), &mut { GO_ON }).unwrap_err().to_string();
    assert!(error.contains("no column is called \"source\""), "{error}");
    let mut bytes = std::fs::read(&files[3]).unwrap();
    bytes.truncate(bytes.len() / 2);
    assert!(read(&put("cut.parquet", &bytes), Shape::default(), &mut { GO_ON }).is_err());
    assert!(read(&folder.path().join("absent.txt"), Shape::default(), &mut { GO_ON }).is_err());
}

fn write_parquet(path: &std::path::Path, names: &[&str; 3], edges: &Edges) {
    use parquet::data_type::Int64Type;
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    let [from, to, weight] = names;
    let schema =
        format!("message edges {{ REQUIRED INT64 {from}; REQUIRED INT64 {to}; REQUIRED INT64 {weight}; }}");
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let file = std::fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(WriterProperties::default())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let columns: [Vec<i64>; 3] = [
        edges.list.iter().map(|edge| edge.0.into()).collect(),
        edges.list.iter().map(|edge| edge.1.into()).collect(),
        edges.weights.iter().flatten().map(|&weight| weight.into()).collect(),
    ];
    for values in columns {
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&values, None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}
