//! Windows on a rack in this process: exact counts, right answers, files, and the detection of a wrong
//! answer.

use farmem::series::{Columns, LEAF_POINTS_MAX, Point, load_csv};
use farmem::{Layout, Policy, Rack};
use farmem_timeseries::{Recording, Source, generate, load_parquet, read, serve};
use farmem_workload::{Load, RunAt};
use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::data_type::{DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn load(policy: RunAt) -> Load {
    Load { operations: 1000, in_flight: 16, policy, seed: 3, check: true }
}

/// A window of any width is one round trip at the memory nodes; at the host, a READ per visited node. A
/// second has 120 points, on nine leaves.
#[test]
fn a_window_is_one_round_trip() {
    let source = Source { name: "generated".into(), points: generate(20_000) };
    for policy in [RunAt::Offload, RunAt::Auto, RunAt::Host] {
        let mut client = Rack::embedded_with(2, 64 << 20).unwrap().client("windows").unwrap();
        serve(
            &mut client,
            "here",
            &source,
            1,
            &Load { operations: 20, in_flight: 1, ..load(RunAt::Offload) },
        )
        .unwrap();
        let report = serve(&mut client, "here", &source, 3, &load(policy)).unwrap();
        assert_eq!(report.wrong_answers, 0);
        let names: Vec<_> = report.rows.iter().map(|row| row.operation).collect();
        assert_eq!(names, ["1 s window", "2 s window", "4 s window", "8 s window"]);
        for (row, seconds) in report.rows.iter().zip([1, 2, 4, 8]) {
            let n = row.operations;
            let leaves = 120 * seconds / LEAF_POINTS_MAX as u64;
            // Down through three levels, along the leaves, and one more at either end.
            assert!((n * (leaves + 2)..n * (leaves + 6)).contains(&row.iterations), "{row:?}");
            let trips = if policy == RunAt::Host { row.iterations } else { n };
            assert_eq!((row.round_trips, row.requests), (trips, trips), "{row:?}");
        }
    }
}

/// Ten points make five channels of two when six are requested: the report says so.
#[test]
fn few_points_make_few_channels() {
    let source = Source { name: "few".into(), points: generate(10) };
    let mut client = Rack::embedded_with(1, 64 << 20).unwrap().client("few").unwrap();
    let report = serve(&mut client, "here", &source, 6, &load(RunAt::Offload)).unwrap();
    assert_eq!(report.wrong_answers, 0);
    assert!(report.workload.ends_with("10 points of few, as 5 channels"), "{}", report.workload);
}

/// A recording in far memory that differs from the reference points.
#[test]
fn a_wrong_window_is_found() {
    let mut client = Rack::embedded_with(1, 64 << 20).unwrap().client("wrong").unwrap();
    let points = generate(5000);
    let recording = Recording::load(&mut client, &points, 1, Layout::Partitioned, true).unwrap();
    let vmas = client.overview().unwrap().vmas;
    // The header has its own page, and each piece for nodes is larger than the previous one. The first leaf
    // is the first node.
    let nodes = vmas.iter().filter(|vma| vma.size > 4096).min_by_key(|vma| vma.size).unwrap();
    client.write(farmem::VirtAddr(nodes.base + 128), &1_u64.to_le_bytes()).unwrap();
    let first = recording.window(0, 0, 1_000_000, "first");
    client
        .run_tasks([first].into_iter(), 1, &Policy::Offload, |ask, _| assert!(ask.answer().is_some()))
        .unwrap();
    assert_eq!(recording.wrong_answers(), 1);
    let later = recording.window(0, 30_000_000, 1_000_000, "later");
    client.run_tasks([later].into_iter(), 1, &Policy::Offload, |_, _| {}).unwrap();
    assert_eq!(recording.wrong_answers(), 1);
    recording.destroy(&mut client).unwrap();
}

fn columns() -> Columns {
    Columns { time: "utc".into(), time_decimals: 6, value: "volt".into(), value_decimals: 3 }
}

/// Writes a file with a column of times and one of decimals with three digits after the point, -1.235 and
/// 7000. Returns the path and the bytes.
fn decimals(folder: &Path, compression: Compression) -> (PathBuf, Vec<u8>) {
    let path = folder.join("decimals.parquet");
    let schema = "message m { required int64 utc; required int64 volt (DECIMAL(12,3)); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
    let mut writer = SerializedFileWriter::new(File::create(&path).unwrap(), schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for numbers in [[1, 2], [-1235, 7_000_000]] {
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&numbers, None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    (path, bytes)
}

/// Files with every compression are read.
#[test]
fn compressed_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let ways = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
    ];
    for way in ways {
        let (path, _) = decimals(folder.path(), way);
        let points = read(&path, &columns()).unwrap_or_else(|why| panic!("{way}: {why:?}"));
        assert_eq!(points.iter().map(|point| point.value).collect::<Vec<_>>(), [-1235, 7_000_000], "{way}");
    }
}

/// Any change of a byte of a Parquet file gives a result or an error.
#[test]
fn damaged_files_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bytes) = decimals(folder.path(), Compression::SNAPPY);
    let points = |kept| read(&path, &Columns { value_decimals: kept, ..columns() }).unwrap();
    assert_eq!(points(3).iter().map(|point| point.value).collect::<Vec<_>>(), [-1235, 7_000_000]);
    assert_eq!(points(2).iter().map(|point| point.value).collect::<Vec<_>>(), [-124, 700_000]);
    assert_eq!(points(0).iter().map(|point| point.value).collect::<Vec<_>>(), [-1, 7000]);
    let mut refused = 0;
    for at in 0..bytes.len() {
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] = byte;
            std::fs::write(&path, damaged).unwrap();
            refused += u32::from(read(&path, &columns()).is_err());
        }
        std::fs::write(&path, &bytes[..at]).unwrap();
        assert!(read(&path, &columns()).is_err(), "cut off at {at}");
    }
    assert!(refused > 100, "{refused} of {}", bytes.len() * 5);
}

/// One recording as CSV and as Parquet, with the time in seconds and as a timestamp.
#[test]
fn files_hold_the_same_points() {
    let folder = std::env::temp_dir().join(format!("farmem-timeseries-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let rows = [(1.5, 230.25), (0.25, -1.125), (1.5, 7.0)];
    let csv: String = rows.iter().map(|(time, value)| format!("{time},{value}\n")).collect();
    let csv_path = folder.join("points.csv");
    std::fs::write(&csv_path, format!("utc,volt\n{csv}")).unwrap();
    let expected = [Point { time: 250_000, value: -1125 }, Point { time: 1_500_000, value: 7000 }];
    assert_eq!(read(&csv_path, &columns()).unwrap(), expected, "in order, the last of each instant");
    for (kind, schema) in [
        ("seconds", "message m { required double utc; required double volt; }"),
        ("stamps", "message m { required int64 utc (TIMESTAMP_MICROS); required double volt; }"),
        // The default of pandas.
        ("fine", "message m { required int64 utc (TIMESTAMP(NANOS,false)); required double volt; }"),
    ] {
        let path = folder.join(format!("{kind}.parquet"));
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let properties = Arc::new(WriterProperties::builder().build());
        let mut writer = SerializedFileWriter::new(File::create(&path).unwrap(), schema, properties).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        if kind == "seconds" {
            column.typed::<DoubleType>().write_batch(&rows.map(|row| row.0), None, None).unwrap();
        } else {
            let tick = if kind == "fine" { 1000 } else { 1 };
            let stamps = [1_500_000, 250_000, 1_500_000].map(|stamp| stamp * tick);
            column.typed::<Int64Type>().write_batch(&stamps, None, None).unwrap();
        }
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<DoubleType>().write_batch(&rows.map(|row| row.1), None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        assert_eq!(read(&path, &columns()).unwrap(), expected, "{kind}");
        let wrong = Columns { value: "watt".into(), ..columns() };
        let error = load_parquet(File::open(&path).unwrap(), &wrong).unwrap_err();
        assert_eq!(error, "no column is called \"watt\"");
    }
    let broken = folder.join("broken.parquet");
    std::fs::write(&broken, "PAR1 is how such a file begins").unwrap();
    assert!(read(&broken, &columns()).unwrap_err().message.contains("broken.parquet"));
    assert!(read(&folder.join("points.txt"), &columns()).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(load_csv("utc,volt\n1,2\n".as_bytes(), &columns()).is_ok());
}
