//! Files that pyarrow and polars wrote, where `scripts/setup` installed them: each codec, type and null, and
//! texts in other encodings.

use farmem::{Client, Rack};
use farmem_orderedkv::load::{Column, Format, Source, load};
use farmem_orderedkv::{Access, KeyType, Store};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes the files of `files.py` into a folder; `None`, with the reason on stderr, where its libraries are
/// absent.
fn files() -> Option<tempfile::TempDir> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = here.join("../../.venv/bin/python");
    let dir = tempfile::tempdir().unwrap();
    let written = Command::new(python).arg(here.join("tests/files.py")).arg(dir.path()).status();
    match written.map(|status| status.code()) {
        Ok(Some(0)) => Some(dir),
        Ok(Some(3)) | Err(_) => {
            eprintln!("skipped: pyarrow and polars absent in .venv (scripts/setup installs them)");
            None
        }
        other => panic!("{other:?}"),
    }
}

fn source(file: PathBuf, key: &str, key_type: KeyType) -> Source {
    let format = Format::of(&file).unwrap();
    let key = Column::Name(key.into());
    Source { file, format, key, value: None, key_type, header: true, delimiter: b',', null: Vec::new() }
}

fn loaded(source: &Source) -> Result<Vec<(String, String)>, String> {
    let mut client: Client = Rack::embedded_with(2, 64 << 20).unwrap().client("load").unwrap();
    load(&mut client, "store", Access::Write, source, &mut |_, _, _| {}, &|| false)
        .map_err(|failure| format!("{} | {}", failure.message, failure.remedy))?;
    let mut store = Store::open(&mut client, "store", None, Access::Read).unwrap();
    let all = store.range(&mut client, None, None, usize::MAX).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ok(all.into_iter().map(|(key, value)| (text(key), text(value))).collect())
}

fn values(file: &Path, column: &str) -> Vec<String> {
    let value = Some(Column::Name(column.into()));
    let source = Source { value, ..source(file.to_owned(), "id", KeyType::U64) };
    let rows = loaded(&source).unwrap_or_else(|why| panic!("{} {column}: {why}", file.display()));
    assert_eq!(rows.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["1", "2", "3", "4"]);
    rows.into_iter().map(|(_, value)| value).collect()
}

/// Values have the text that a person would write: numbers their shortest digits, decimals the digits of their
/// scale, nulls nothing. Whole numbers of any type are keys.
#[test]
fn parquet_of_every_codec() {
    let Some(dir) = files() else { return };
    let expected: [(&str, [&str; 4]); 8] = [
        ("double", ["-2.5", "0", "1e+300", "0.1"]),
        ("float", ["-2.5", "0", "16777216", "0.1"]),
        ("whole", ["7", "-70", "0", "1234567890"]),
        ("price", ["7.50", "-0.05", "0.00", "12345678.90"]),
        ("day", ["2026-11-29", "1969-12-31", "1970-01-01", "0001-01-01"]),
        ("is", ["true", "false", "true", "false"]),
        ("text", ["a,b", "", "", "\u{e9}"]),
        ("count", ["1", "255", "", "0"]),
    ];
    for library in ["pyarrow", "polars"] {
        for codec in ["none", "snappy", "gzip", "brotli", "zstd", "lz4"] {
            let file = dir.path().join(format!("{library}-{codec}.parquet"));
            for (column, values_of_column) in &expected {
                assert_eq!(values(&file, column), values_of_column, "{library} {codec} {column}");
            }
        }
        let file = dir.path().join(format!("{library}-zstd.parquet"));
        let null = Source {
            value: Some(Column::Name("count".into())),
            null: b"NULL".to_vec(),
            ..source(file.clone(), "id", KeyType::U64)
        };
        assert_eq!(loaded(&null).unwrap()[2], ("3".into(), "NULL".into()));
        for (column, keys) in [("whole", ["-70", "0", "7", "1234567890"]), ("places", ["-4", "-3", "0", "9"])]
        {
            let rows = loaded(&source(file.clone(), column, KeyType::I64)).unwrap();
            assert_eq!(rows.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), keys, "{library} {column}");
        }
        let half = loaded(&source(file.clone(), "double", KeyType::I64)).unwrap_err();
        assert!(half.contains("row 1: key \"-2.5\": expected a whole number"), "{half}");
        let null = loaded(&source(file, "count", KeyType::I64)).unwrap_err();
        assert!(null.contains("row 3: no key: expected one in every row"), "{null}");
    }
}

/// The byte order mark of UTF-8 is no part of the first name or key. Other encodings are named, and a command
/// that converts them.
#[test]
fn texts_of_other_encodings_are_named() {
    let Some(dir) = files() else { return };
    let bom = source(dir.path().join("bom.csv"), "id", KeyType::U64);
    let rows = [("1".to_owned(), "1".to_owned()), ("2".to_owned(), "2".to_owned())];
    assert_eq!(loaded(&bom).unwrap(), rows);
    let bare = source(dir.path().join("bare-bom.csv"), "id", KeyType::U64);
    assert_eq!(loaded(&Source { key: Column::Number(1), header: false, ..bare }).unwrap(), rows);
    for (name, encoding, from) in [
        ("utf-16.csv", "UTF-16", "-f UTF-16 "),
        ("utf-16-le.csv", "UTF-16", "-f UTF-16LE "),
        ("utf-16-be.csv", "UTF-16", "-f UTF-16BE "),
        ("utf-32.csv", "UTF-32", "-f UTF-32 "),
    ] {
        let refused = loaded(&source(dir.path().join(name), "id", KeyType::U64)).unwrap_err();
        let said =
            format!("{name}: the file is {encoding} text: expected UTF-8 | convert it first: iconv {from}");
        assert!(refused.contains(&said), "{said}: {refused}");
    }
}
