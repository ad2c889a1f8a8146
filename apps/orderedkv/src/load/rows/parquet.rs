//! Rows of Parquet files: keys and values of the selected columns as text.
//!
//! Key type: [`Table`]. The library panics on some damaged files; a panic is reported as a damaged file.

use super::{Fault, FilePosition, Row, RowError, key_of};
use crate::load::{KeyType, Source};
use farmem_protocols::resp::double;
use jiff::civil::date;
use jiff::{Span, civil};
use parquet::basic::{Compression, LogicalType, TimeUnit};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The key and value columns of a Parquet file.
pub(super) struct Table {
    rows: RowIter<'static>,
    key: String,
    value: Option<String>,
    /// True when the keys are timestamps in nanoseconds, which rows do not show.
    nanoseconds: bool,
    /// The value of a row whose value is null.
    null: Vec<u8>,
}

impl Table {
    /// Opens the selected columns as a separate schema.
    pub(super) fn open(file: File, source: &Source) -> Result<Self, RowError> {
        let opened = catch_unwind(AssertUnwindSafe(|| Self::open_columns(file, source)));
        opened.unwrap_or_else(|_| Err(RowError { place: FilePosition::File, fault: damaged() }))
    }

    fn open_columns(file: File, source: &Source) -> Result<Self, RowError> {
        let whole = |error: String| RowError { place: FilePosition::File, fault: Fault::File(error) };
        let reader = SerializedFileReader::new(file).map_err(|error| whole(error.to_string()))?;
        let schema = reader.metadata().file_metadata().schema();
        let fields = schema.get_fields();
        let names: Vec<&str> = fields.iter().map(|field| field.name()).collect();
        let key = source.key.among(&names, FilePosition::File)?;
        let value =
            source.value.as_ref().map(|column| column.among(&names, FilePosition::File)).transpose()?;
        let mut wanted: Vec<usize> = [Some(key), value].into_iter().flatten().collect();
        wanted.sort_unstable();
        wanted.dedup();
        for &at in &wanted {
            let name = names[at];
            if !fields[at].is_primitive() {
                return Err(RowError { place: FilePosition::File, fault: Fault::Nested(name.to_owned()) });
            }
            let mut chunks = reader.metadata().row_groups().iter().flat_map(RowGroupMetaData::columns);
            if chunks.any(|c| c.column_path().string() == name && c.compression() == Compression::LZO) {
                return Err(whole(format!(
                    "column {name:?} is compressed as LZO: write the file with another codec, or without compression"
                )));
            }
        }
        let nanoseconds = matches!(
            fields[key].get_basic_info().logical_type_ref(),
            Some(LogicalType::Timestamp(stamp)) if stamp.unit == TimeUnit::NANOS
        );
        let (key, value) = (names[key].to_owned(), value.map(|at| names[at].to_owned()));
        let projected = Type::group_type_builder(schema.name())
            .with_fields(wanted.iter().map(|&at| fields[at].clone()).collect())
            .build()
            .map_err(|error| whole(error.to_string()))?;
        let rows = RowIter::from_file_into(Box::new(reader)).project(Some(projected));
        let rows = rows.map_err(|error| whole(error.to_string()))?;
        Ok(Self { rows, key, value, nanoseconds, null: source.null.clone() })
    }

    /// Returns the next row, which has this number, from 1 on. Returns `None` after the last row.
    pub(super) fn next(&mut self, number: u64, key_type: KeyType) -> Option<Result<Row, Fault>> {
        let Self { rows, key, value, nanoseconds, null } = self;
        let row = match catch_unwind(AssertUnwindSafe(|| rows.next())) {
            Ok(None) => return None,
            Ok(Some(Ok(row))) => row,
            Ok(Some(Err(error))) => return Some(Err(Fault::File(error.to_string()))),
            Err(_) => return Some(Err(damaged())),
        };
        let field = |name: &str| {
            row.get_column_iter().find(|(n, _)| *n == name).map_or(&Field::Null, |(_, field)| field)
        };
        let key = key_bytes(key, field(key), key_type, *nanoseconds);
        let value = match value {
            None => Ok(number.to_string().into_bytes()),
            Some(name) => text(name, field(name)).map(|text| text.unwrap_or_else(|| null.clone())),
        };
        Some(key.and_then(|key| Ok(Row { key, value: value? })))
    }
}

fn damaged() -> Fault {
    Fault::File("the file is damaged".into())
}

/// Converts a field to a key.
fn key_bytes(name: &str, field: &Field, key_type: KeyType, nanoseconds: bool) -> Result<Vec<u8>, Fault> {
    let microseconds = match (key_type, field) {
        (KeyType::Timestamp, Field::TimestampMillis(n)) => Some(n.saturating_mul(1000)),
        (KeyType::Timestamp, Field::TimestampMicros(n)) => Some(*n),
        (KeyType::Timestamp, Field::Long(n)) if nanoseconds => Some(n.div_euclid(1000)),
        _ => None,
    };
    match microseconds {
        Some(microseconds) => Ok(microseconds.to_string().into_bytes()),
        None => key_of(&text(name, field)?.ok_or(Fault::NoKey)?, key_type),
    }
}

/// Converts a field to text; `None` for null. A number has its shortest decimal form, and a decimal all digits
/// of its scale.
fn text(name: &str, field: &Field) -> Result<Option<Vec<u8>>, Fault> {
    Ok(Some(match field {
        Field::Null => return Ok(None),
        Field::Str(text) => text.clone().into_bytes(),
        Field::Bytes(bytes) => bytes.data().to_vec(),
        Field::Bool(is) => is.to_string().into_bytes(),
        Field::Byte(n) => n.to_string().into_bytes(),
        Field::Short(n) => n.to_string().into_bytes(),
        Field::Int(n) | Field::TimeMillis(n) => n.to_string().into_bytes(),
        Field::Long(n) | Field::TimeMicros(n) | Field::TimestampMillis(n) | Field::TimestampMicros(n) => {
            n.to_string().into_bytes()
        }
        Field::UByte(n) => n.to_string().into_bytes(),
        Field::UShort(n) => n.to_string().into_bytes(),
        Field::UInt(n) => n.to_string().into_bytes(),
        Field::ULong(n) => n.to_string().into_bytes(),
        Field::Double(n) => double(*n).into_bytes(),
        Field::Float(n) => shortest(&n.to_string()),
        Field::Float16(n) => shortest(&n.to_string()),
        // The library writes a decimal point also where no digit follows.
        Field::Decimal(_) => field.to_string().trim_end_matches('.').into(),
        Field::Date(days) => {
            let date: Option<civil::Date> =
                Span::new().try_days(*days).ok().and_then(|span| date(1970, 1, 1).checked_add(span).ok());
            date.ok_or(Fault::Date(*days))?.to_string().into_bytes()
        }
        Field::Group(_) | Field::ListInternal(_) | Field::MapInternal(_) => {
            return Err(Fault::Nested(name.to_owned()));
        }
    }))
}

/// Returns the form of [`double`] for the shortest digits of a number with fewer bits than a double.
fn shortest(digits: &str) -> Vec<u8> {
    double(digits.parse().expect("a number's own digits are a number")).into_bytes()
}
