//! Rows of CSV and Parquet files, one at a time, each with its position.

use super::{KeyType, Source};
use farmem_workload::{OtherEncoding, other_encoding};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

mod parquet;

/// The format of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
#[value(rename_all = "lower")]
pub enum Format {
    /// Lines of fields (CSV).
    Csv,
    /// Columns in row groups (Parquet).
    Parquet,
}

impl Format {
    /// Returns the format for a file name's extension.
    #[must_use]
    pub fn of(file: &Path) -> Option<Self> {
        match file.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "csv" | "tsv" | "txt" => Some(Self::Csv),
            "parquet" | "pq" => Some(Self::Parquet),
            _ => None,
        }
    }
}

/// A column, by its name or by its number from 1 on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Column {
    /// The column of this name.
    Name(String),
    /// The column of this number.
    Number(usize),
}

impl std::str::FromStr for Column {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(0) => Err("columns are numbered from 1 on".into()),
            Ok(number) => Ok(Self::Number(number)),
            Err(_) if text.is_empty() => Err("a column has a name, or a number from 1 on".into()),
            Err(_) => Ok(Self::Name(text.into())),
        }
    }
}

impl Column {
    /// Returns the column's index among these names.
    fn among(&self, names: &[&str], place: FilePosition) -> Result<usize, RowError> {
        let found = match self {
            Self::Name(name) => {
                let mut all =
                    names.iter().zip(1..).filter(|(other, _)| *other == name).map(|(_, number)| number);
                let first: Option<usize> = all.next();
                if let (Some(first), Some(second)) = (first, all.next()) {
                    let fault = Fault::NamedTwice { column: self.to_string(), first, second };
                    return Err(RowError { place, fault });
                }
                first.map(|number| number - 1)
            }
            Self::Number(number) => (*number <= names.len()).then(|| number - 1),
        };
        let there = || names.iter().take(20).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| RowError {
            place,
            fault: Fault::NoColumn { column: self.to_string(), there: there() },
        })
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "column {name:?}"),
            Self::Number(number) => write!(f, "column {number}"),
        }
    }
}

/// A key in the clients' form, and its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The key; numbers in decimal.
    pub key: Vec<u8>,
    /// The value as in the file; numbers of a Parquet file in decimal.
    pub value: Vec<u8>,
}

/// A position in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilePosition {
    /// A line, counted from 1.
    Line(u64),
    /// A row, counted from 1.
    Row(u64),
    /// The file as a whole.
    File,
}

/// A fault and its position.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}{fault}", match place { FilePosition::Line(n) => format!("line {n}: "), FilePosition::Row(n) => format!("row {n}: "), FilePosition::File => String::new() })]
pub struct RowError {
    /// The position.
    pub place: FilePosition,
    /// The fault.
    pub fault: Fault,
}

/// A fault of a file or of one of its rows.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// The file cannot be read, or has another format.
    #[error("{0}")]
    File(String),
    /// The column does not exist.
    #[error("there is no {column}; there are {there}")]
    NoColumn {
        /// The requested column.
        column: String,
        /// The existing columns.
        there: String,
    },
    /// Two columns have this name.
    #[error("there are two of {column}: columns {first} and {second}")]
    NamedTwice {
        /// The column.
        column: String,
        /// The number of the first, from 1 on.
        first: usize,
        /// The number of the second.
        second: usize,
    },
    /// The file has no line.
    #[error("the file is empty: expected {0}")]
    Empty(&'static str),
    /// A quote is never closed, so the rest of the file is one field.
    #[error("a quote opens a field here and is never closed: expected a second one behind the field")]
    Quote,
    /// The key has another form than expected.
    #[error("{0}")]
    Key(String),
    /// The key exceeds a store's limits.
    #[error("{0}")]
    KeyLength(String),
    /// The row has no key.
    #[error("no key: expected one in every row")]
    NoKey,
    /// The file's text has another encoding than expected.
    #[error("the file is {} text: expected UTF-8", .0.name)]
    Encoding(OtherEncoding),
    /// The value is too long.
    #[error("a value of {0} bytes: expected at most 65536")]
    ValueLength(usize),
    /// The column's values are not text, bytes or numbers.
    #[error("column {0:?} is no text and no number: expected a flat column of these")]
    Nested(String),
    /// A date outside the calendar.
    #[error("a date {0} days from 1970-01-01: expected a year of -9999 to 9999")]
    Date(i32),
    /// The store refused the row.
    #[error("{0}")]
    Store(String),
}

/// The rows of a file.
pub struct Rows {
    reader: Reader,
    key_type: KeyType,
    place: FilePosition,
    number: u64,
}

enum Reader {
    Csv {
        file: PathBuf,
        reader: Box<csv::Reader<BufReader<File>>>,
        key: usize,
        value: Option<usize>,
        delimiter: u8,
        record: csv::ByteRecord,
        /// The start of the newest record, or of the unreadable one.
        begin: csv::Position,
    },
    Parquet(Box<parquet::Table>),
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Rows {
    pub(super) fn open(source: &Source) -> Result<Self, RowError> {
        let whole = |error: String| RowError { place: FilePosition::File, fault: Fault::File(error) };
        let file = File::open(&source.file).map_err(|error| whole(error.to_string()))?;
        let (reader, place) = match source.format {
            Format::Csv => (open_csv(file, source)?, FilePosition::Line(1)),
            Format::Parquet => {
                (Reader::Parquet(Box::new(parquet::Table::open(file, source)?)), FilePosition::Row(0))
            }
        };
        Ok(Self { reader, key_type: source.key_type, place, number: 0 })
    }

    /// Returns the position of the last row. For a CSV file, this searches the file, for error messages only.
    #[must_use]
    pub fn place(&self) -> FilePosition {
        match &self.reader {
            Reader::Csv { file, record, .. } if self.place == FilePosition::Line(0) => {
                FilePosition::Line(line_of(file, record.position()))
            }
            _ => self.place,
        }
    }

    /// Returns the error for the last row, or for the unreadable one. An unclosed quote takes precedence.
    pub(super) fn wrong(&self, fault: Fault) -> RowError {
        match self.open_quote() {
            Some(line) => RowError { place: FilePosition::Line(line), fault: Fault::Quote },
            None => RowError { place: self.place(), fault },
        }
    }

    /// Returns the line of a quote that the end of a CSV file leaves open, if the newest record has one.
    fn open_quote(&self) -> Option<u64> {
        let Reader::Csv { file, delimiter, begin, .. } = &self.reader else { return None };
        open_quote(file, *delimiter, begin)
    }

    fn read(&mut self) -> Option<Result<Row, Fault>> {
        self.number += 1;
        let Self { reader, key_type, place, number } = self;
        match reader {
            Reader::Csv { file, reader, key, value, delimiter, record, begin } => {
                match reader.read_byte_record(record) {
                    Ok(false) => return open_quote(file, *delimiter, begin).map(|_| Err(Fault::Quote)),
                    Ok(true) => {
                        *place = FilePosition::Line(0);
                        *begin = record.position().cloned().unwrap_or_else(csv::Position::new);
                    }
                    Err(error) => {
                        *begin = error.position().cloned().unwrap_or_else(csv::Position::new);
                        *place = FilePosition::Line(line_of(file, error.position()));
                        return Some(Err(Fault::File(csv_fault(&error))));
                    }
                }
                let field = |at: usize| record.get(at).unwrap_or_default();
                let made = key_of(field(*key), *key_type);
                let value = value.map_or_else(|| number.to_string().into_bytes(), |at| field(at).to_vec());
                Some(made.map(|key| Row { key, value }))
            }
            Reader::Parquet(table) => {
                *place = FilePosition::Row(*number);
                table.next(*number, *key_type)
            }
        }
    }
}

impl Iterator for Rows {
    type Item = Result<Row, RowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.read()?;
        Some(row.map_err(|fault| self.wrong(fault)))
    }
}

fn open_csv(mut file: File, source: &Source) -> Result<Reader, RowError> {
    let whole = |fault| RowError { place: FilePosition::File, fault };
    let mut first = Vec::new();
    let looked_at = (&mut file).take(4).read_to_end(&mut first).and_then(|_| file.rewind());
    looked_at.map_err(|error| whole(Fault::File(error.to_string())))?;
    if let Some(encoding) = other_encoding(&first) {
        return Err(whole(Fault::Encoding(encoding)));
    }
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(source.header)
        .delimiter(source.delimiter)
        .from_reader(BufReader::with_capacity(1 << 18, file));
    let place = FilePosition::Line(1);
    let first =
        reader.byte_headers().map_err(|error| RowError { place, fault: Fault::File(csv_fault(&error)) })?;
    if first.is_empty() {
        let expected = if source.header { "a first line with the columns' names" } else { "a row" };
        return Err(RowError { place: FilePosition::File, fault: Fault::Empty(expected) });
    }
    let names: Vec<String> = match source.header {
        true => first.iter().map(|name| String::from_utf8_lossy(name).trim().to_owned()).collect(),
        false => vec![String::new(); first.len()],
    };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let key = source.key.among(&names, place)?;
    let value = source.value.as_ref().map(|column| column.among(&names, place)).transpose()?;
    let (file, record) = (source.file.clone(), csv::ByteRecord::new());
    let (delimiter, begin) = (source.delimiter, csv::Position::new());
    Ok(Reader::Csv { file, reader: Box::new(reader), key, value, delimiter, record, begin })
}

/// Returns the line of a quote that the end of the file leaves open; `begin` is the start of the last record.
/// The library ends such a field at the end of the file. The record is therefore parsed again with one more
/// line: inside a quote, that line does not form a record of its own.
fn open_quote(file: &Path, delimiter: u8, begin: &csv::Position) -> Option<u64> {
    let mut tail = Vec::new();
    let mut reader = File::open(file).ok()?;
    reader.seek(SeekFrom::Start(begin.byte())).ok()?;
    reader.read_to_end(&mut tail).ok()?;
    let records = |tail: &[u8]| {
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(delimiter)
            .from_reader(tail);
        let (mut record, mut last, mut count) = (csv::ByteRecord::new(), Vec::new(), 0_u64);
        while reader.read_byte_record(&mut record).unwrap_or(false) {
            count += 1;
            last = record.iter().next_back().unwrap_or_default().to_vec();
        }
        (count, last)
    };
    let (count, field) = records(&tail);
    let (with_one_more, _) = records(&[&tail[..], b"\nx"].concat());
    // From the quote on, all lines belong to the field.
    let lines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
    (with_one_more == count).then(|| begin.line() + lines(&tail) - lines(&field))
}

/// Returns the line of the record at `position`, which is the end of the previous record: empty lines, and
/// the rest of a line end, may follow it.
fn line_of(file: &Path, position: Option<&csv::Position>) -> u64 {
    let Some(position) = position else { return 1 };
    let mut line = position.line();
    let bytes = File::open(file).and_then(|mut file| {
        file.seek(SeekFrom::Start(position.byte()))?;
        Ok(BufReader::new(file).bytes())
    });
    // A file that has disappeared has lost its lines, too.
    let ends = bytes.into_iter().flatten().map_while(Result::ok).take_while(|byte| b"\r\n".contains(byte));
    line += ends.filter(|byte| *byte == b'\n').count() as u64;
    line
}

fn csv_fault(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} fields: expected {expected_len}, as the first line has")
        }
        _ => error.to_string(),
    }
}

/// Parses the key of a text.
fn key_of(text: &[u8], key_type: KeyType) -> Result<Vec<u8>, Fault> {
    let shown = || String::from_utf8_lossy(&text[..text.len().min(40)]).into_owned();
    let trimmed = text.trim_ascii();
    let number = |expected: &str| Fault::Key(format!("key {:?}: expected {expected}", shown()));
    let said = std::str::from_utf8(trimmed).unwrap_or_default();
    match key_type {
        KeyType::Text => Ok(text.to_vec()),
        KeyType::U64 => {
            let parsed = said.parse::<u64>().map_err(|_| number("a whole number of 0 to 2^64 - 1"))?;
            Ok(parsed.to_string().into_bytes())
        }
        KeyType::I64 => {
            let parsed = said.parse::<i64>().map_err(|_| number("a whole number of -2^63 to 2^63 - 1"))?;
            Ok(parsed.to_string().into_bytes())
        }
        KeyType::Timestamp => {
            let zoned = said.parse::<Timestamp>().ok();
            let utc = || said.parse::<DateTime>().ok().and_then(|time| TimeZone::UTC.to_timestamp(time).ok());
            let time = zoned.or_else(utc);
            let time = time.filter(|_| has_a_real_offset(said));
            let time = time.ok_or_else(|| number("a time such as 2026-11-23T17:56:00Z"))?;
            Ok(time.as_microsecond().to_string().into_bytes())
        }
    }
}

/// Returns true if a time has an offset of less than 24 hours, as RFC 3339 requires; the library accepts more.
fn has_a_real_offset(time: &str) -> bool {
    let behind = time.find(['T', 't', ' ']).map_or("", |at| &time[at..]);
    let hours = behind.rfind(['+', '-']).and_then(|at| behind[at + 1..].get(..2)?.parse::<u8>().ok());
    hours.is_none_or(|hours| hours < 24)
}
