//! Loads of CSV and Parquet files: the contents, the method, and the errors.

use farmem::{Client, Rack};
use farmem_orderedkv::load::{Column, Format, Loaded, Source, load};
use farmem_orderedkv::{Access, KeyKind, KeyType, Store};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

fn client() -> Client {
    Rack::embedded_with(2, 64 << 20).unwrap().client("load").unwrap()
}

fn source(file: PathBuf, key_type: KeyType) -> Source {
    let format = Format::of(&file).unwrap();
    let (key, value) = (Column::Number(1), Some(Column::Number(2)));
    Source { file, format, key, value, key_type, header: true, delimiter: b',', null: Vec::new() }
}

fn file(dir: &TempDir, name: &str, content: &str) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, content).unwrap();
    path
}

fn loaded(client: &mut Client, source: &Source) -> Result<Loaded, String> {
    let done = load(client, "store", Access::Write, source, &mut |_, _, _| {}, &|| false);
    done.map_err(|failure| format!("{} | {}", failure.message, failure.remedy))
}

fn all(client: &mut Client) -> Vec<(String, String)> {
    let mut store = Store::open(client, "store", None, Access::Read).unwrap();
    let all = store.range(client, None, None, usize::MAX).unwrap();
    store.close(client).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    all.into_iter().map(|(key, value)| (text(key), text(value))).collect()
}

/// Ascending numbers are bulk-loaded, others inserted one by one; the last row of a key wins.
#[test]
fn numbers_from_csv() {
    let dir = tempfile::tempdir().unwrap();
    let mut client = client();
    let rows: String = (0..3_000).map(|n| format!("{},value {n}\n", 7 * n)).collect();
    let ascending = file(&dir, "ascending.csv", &format!("id,what\n{rows}"));
    let first = loaded(&mut client, &source(ascending.clone(), KeyType::U64)).unwrap();
    assert_eq!((first.rows, first.ascending, first.bulk, first.replaced), (3_000, true, true, 0));
    assert_eq!(all(&mut client).len(), 3_000);
    // The store is no longer empty.
    let again = loaded(&mut client, &source(ascending, KeyType::U64)).unwrap();
    assert_eq!((again.bulk, again.replaced, again.resumed_at), (false, 3_000, 0));
    let others =
        file(&dir, "others.csv", "id;what\n18446744073709551615;last\n1;\"one; two\"\n7;anew\n1;one\n");
    let others = Source { delimiter: b';', key: Column::Name("id".into()), ..source(others, KeyType::U64) };
    let second = loaded(&mut client, &others).unwrap();
    assert_eq!((second.rows, second.ascending, second.replaced), (4, false, 2));
    let all = all(&mut client);
    assert_eq!(all.len(), 3_002);
    assert_eq!(all[1..3], [("1".into(), "one".into()), ("7".into(), "anew".into())]);
    assert_eq!(all[3_001].0, u64::MAX.to_string());
}

/// Row numbers as values, negative keys, texts, and times.
#[test]
fn keys_of_all_kinds() {
    let dir = tempfile::tempdir().unwrap();
    let with = |content: &str, key_type, header| {
        let mut client = client();
        let path = file(&dir, "keys.csv", content);
        let source = Source { value: None, header, ..source(path, key_type) };
        let loaded = loaded(&mut client, &source).unwrap();
        (loaded.bulk, all(&mut client).into_iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>())
    };
    assert_eq!(
        with("-5\n3\n-1\n", KeyType::I64, false),
        (false, vec!["-5=1".into(), "-1=3".into(), "3=2".into()])
    );
    assert_eq!(with("k\nb\n\na\nab\n", KeyType::Text, true).1, ["a=2", "ab=3", "b=1"]);
    let times = "at\n1969-12-31T23:59:59.5Z\n1970-01-01T01:00:00+01:00\n1970-01-01 00:00:02\n1970-01-02T23:59:00+23:59\n1970-01-03\n";
    assert_eq!(
        with(times, KeyType::Timestamp, true),
        (
            true,
            ["-500000=1", "0=2", "2000000=3", "86400000000=4", "172800000000=5"].map(String::from).to_vec()
        )
    );
    // A quote inside an unquoted field is a character, and a quote closed by the end of the file is closed.
    assert_eq!(with("k\n5\" disk\n\"a\nb\"", KeyType::Text, true).1, ["5\" disk=1", "a\nb=2"]);
}

/// Writes a file of `count` rows in groups of 100: a time in microseconds, and a text; row number `null_at`
/// has no text.
fn parquet_file(dir: &TempDir, count: i64, null_at: i64) -> PathBuf {
    let schema = "message rows { required int64 at (TIMESTAMP(MICROS, true)); optional binary what (UTF8); required int64 id; }";
    let path = dir.path().join(format!("{count}-{null_at}.parquet"));
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(fs::File::create(&path).unwrap(), schema, properties).unwrap();
    for first in (0..count).step_by(100) {
        let numbers: Vec<i64> = (first..(first + 100).min(count)).collect();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&numbers, None, None).unwrap();
        column.close().unwrap();
        let texts: Vec<ByteArray> = numbers
            .iter()
            .filter(|n| **n != null_at)
            .map(|n| ByteArray::from(format!("text {n}").as_str()))
            .collect();
        let levels: Vec<i16> = numbers.iter().map(|n| i16::from(*n != null_at)).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&texts, Some(&levels), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let ids: Vec<i64> = numbers.iter().map(|n| 1_000 - n).collect();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    path
}

#[test]
fn parquet_columns() {
    let dir = tempfile::tempdir().unwrap();
    let path = parquet_file(&dir, 350, -1);
    let mut one = client();
    let times = loaded(&mut one, &source(path.clone(), KeyType::Timestamp)).unwrap();
    assert_eq!((times.rows, times.bulk), (350, true));
    let expected: Vec<_> = (0..350).map(|n| (n.to_string(), format!("text {n}"))).collect();
    assert_eq!(all(&mut one), expected);
    let mut two = client();
    let ids = Source {
        key: Column::Name("id".into()),
        value: Some(Column::Name("at".into())),
        ..source(path.clone(), KeyType::I64)
    };
    let ids = loaded(&mut two, &ids).unwrap();
    assert_eq!((ids.rows, ids.ascending), (350, false));
    assert_eq!(all(&mut two)[..2], [("651".into(), "349".into()), ("652".into(), "348".into())]);
    let mut three = client();
    let texts = Source { key: Column::Name("what".into()), value: None, ..source(path, KeyType::Text) };
    assert_eq!(loaded(&mut three, &texts).unwrap().rows, 350);
    assert_eq!(
        all(&mut three)[..3],
        [("text 0", "1"), ("text 1", "2"), ("text 10", "11")].map(|(k, v)| (k.into(), v.into()))
    );
}

/// Errors name the file, the line or row, and the expectation; nothing is written then.
#[test]
fn what_is_wrong_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let made = Cell::new(0);
    let csv = |content: &str| {
        made.set(made.get() + 1);
        file(&dir, &format!("wrong-{}.csv", made.get()), content)
    };
    let long = format!("id,what\n1,a\n2,{}\n", "x".repeat(65_537));
    let cases = [
        (
            source(csv("id,what\n1,a\nx2,b\n"), KeyType::U64),
            "line 3: key \"x2\": expected a whole number of 0 to 2^64 - 1",
        ),
        (source(csv("id,what\n1,a\n\n\n-2,b\n"), KeyType::U64), "line 5: key \"-2\""),
        (source(csv("id,what\n1,a\n2\n"), KeyType::U64), "line 3: 1 fields: expected 2"),
        (source(csv("id,what\nnow,a\n"), KeyType::Timestamp), "line 2: key \"now\": expected a time such as"),
        (source(csv(&long), KeyType::U64), "line 3: a value of 65537 bytes: expected at most 65536"),
        (
            source(csv(&format!("id,what\n{},a\n", "k".repeat(513))), KeyType::Text),
            "line 2: a key of 513 bytes",
        ),
        (
            Source { key: Column::Name("nr".into()), ..source(csv("id,what\n"), KeyType::U64) },
            "there is no column \"nr\"; there are \"id\", \"what\"",
        ),
        (
            Source { value: Some(Column::Number(3)), ..source(csv("id,what\n"), KeyType::U64) },
            "there is no column 3",
        ),
        (
            source(csv(""), KeyType::U64),
            ".csv: the file is empty: expected a first line with the columns' names",
        ),
        (
            Source { header: false, ..source(csv(""), KeyType::U64) },
            ".csv: the file is empty: expected a row",
        ),
        (
            Source { key: Column::Name("id".into()), ..source(csv("id,what,id\n1,a,2\n"), KeyType::U64) },
            "line 1: there are two of column \"id\": columns 1 and 3 | say which by its number",
        ),
        // An unclosed quote swallows the rest of the file, which parses as a normal row, as one with too few
        // fields, as a key, or as a long value.
        (
            source(csv("id,what\n1,a\n2,\"b\n3,c\n"), KeyType::U64),
            "line 3: a quote opens a field here and is never closed",
        ),
        (source(csv("id,what\n1,a\n\n2,\"b"), KeyType::U64), "line 4: a quote opens"),
        (source(csv("id,what\n1,\"a\nb\"\n\"2,b\n3,c\n"), KeyType::U64), "line 4: a quote opens"),
        (source(csv("id,what\n\"1\n\n\",\"a\"\"\n2,b\n"), KeyType::Text), "line 4: a quote opens"),
        (source(csv("id,\"what\n1,a\n"), KeyType::U64), "line 1: a quote opens"),
        (
            source(csv(&format!("id,what\n1,\"a\n{}", "2,b\n".repeat(20_000))), KeyType::U64),
            "line 2: a quote opens",
        ),
        (
            source(csv("id,what\n2026-11-23T00:00:00+25:00,a\n"), KeyType::Timestamp),
            "line 2: key \"2026-11-23T00:00:00+25:00\"",
        ),
        (source(dir.path().join("none.csv"), KeyType::U64), "No such file"),
        (source(file(&dir, "no.parquet", "PAR1 and no more"), KeyType::U64), "no.parquet: "),
        (
            Source {
                key: Column::Name("what".into()),
                ..source(parquet_file(&dir, 250, 203), KeyType::Text)
            },
            "row 204: no key: expected one in every row",
        ),
    ];
    for (source, words) in cases {
        let mut client = client();
        let wrong = loaded(&mut client, &source).unwrap_err();
        assert!(
            wrong.contains(words) && wrong.contains(&*source.file.to_string_lossy()),
            "{words:?} is not in {wrong}"
        );
        assert_eq!(client.overview().unwrap().vmas.len(), 0, "nothing was made");
    }
    assert!("0".parse::<Column>().is_err() && "".parse::<Column>().is_err());
}

/// A damaged Parquet file ends the load with an error, wherever the damage is, and never the process.
#[test]
fn damaged_files_end_in_errors() {
    let dir = tempfile::tempdir().unwrap();
    let whole = fs::read(parquet_file(&dir, 150, -1)).unwrap();
    let mut refused = 0;
    for at in (0..whole.len()).step_by(7) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x5a;
        let path = dir.path().join("damaged.parquet");
        fs::write(&path, bytes).unwrap();
        let Ok(mut rows) = source(path, KeyType::Timestamp).rows() else {
            refused += 1;
            continue;
        };
        // An error ends the iteration: the library promises nothing about further rows.
        if rows.by_ref().take(1_000).any(|row| row.is_err()) {
            refused += 1;
        }
    }
    assert!(refused > 20, "{refused} of {} damages were noticed", whole.len() / 7);
}

/// A stopped load resumes after its recorded progress; a load of other rows starts anew.
#[test]
fn a_load_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut client = client();
    // Descending keys are inserted one by one.
    let rows: String = (0..2_000).rev().map(|n| format!("{n},{n}\n")).collect();
    let source = source(file(&dir, "rows.csv", &format!("id,what\n{rows}")), KeyType::U64);
    let written = Cell::new(0);
    let stop = || {
        written.set(written.get() + 1);
        // The check asks every 256 rows.
        written.get() >= 7 + 1_500
    };
    let first = load(&mut client, "store", Access::Write, &source, &mut |_, _, _| {}, &stop).unwrap();
    assert!(first.stopped && !first.bulk);
    let there = all(&mut client).len();
    assert_eq!(there, 1_500);
    // A program changes existing data; rows already written are not written again.
    let mut store = Store::create(&mut client, "store", KeyKind::U64, Access::Write).unwrap();
    store.set(&mut client, b"1999", b"changed").unwrap();
    store.close(&mut client).unwrap();
    let second = loaded(&mut client, &source).unwrap();
    assert_eq!((second.resumed_at, second.replaced, second.stopped), (1_500, 0, false));
    let now = all(&mut client);
    assert_eq!((now.len(), &now[0].1, &now[1_999].1), (2_000, &"0".to_owned(), &"changed".to_owned()));
    // The load is complete: loading the same rows again starts anew.
    assert_eq!(loaded(&mut client, &source).unwrap().resumed_at, 0);
    assert_eq!(all(&mut client)[1_999].1, "1999");
}
