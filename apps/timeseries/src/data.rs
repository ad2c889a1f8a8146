//! Sources of points: a CSV or Parquet file, the recording of `scripts/sensor-data`, or a generated
//! recording.

use farmem::Rng;
use farmem::series::{Columns, Point, VALUE_MAX, load_csv};
use farmem_workload::{Failure, other_encoding};
use parquet::basic::{Compression, LogicalType, TimeUnit};
use parquet::data_type::Decimal;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

/// Points and their origin.
#[derive(Clone, Debug)]
pub struct Source {
    /// The origin's name for reports.
    pub name: String,
    /// The points, ascending in time.
    pub points: Vec<Point>,
}

/// The recording from `scripts/sensor-data`, in the user's cache folder.
const FETCHED: &str = "farmem/sensor-data/BW.KW1.EHZ.csv";
/// Points per second of a generated recording, as in phasor measurement units.
const GENERATED_RATE: u64 = 120;
/// Bound on the points of a generated recording: 50 minutes.
const GENERATED_MAX: u64 = 360_000;

impl Source {
    /// Returns the first `most` points of `file`; without a file, of the fetched recording; else generated
    /// points, as the name then states.
    ///
    /// # Errors
    /// [`Failure`] when the file cannot be read or has no points.
    pub fn find(file: Option<&Path>, columns: &Columns, most: u64) -> Result<Self, Failure> {
        let usual = Columns { time: "time".into(), value: "value".into(), ..columns.clone() };
        let fetched = fetched().filter(|path| path.exists());
        let (path, columns) = match (file, &fetched) {
            (Some(file), _) => (file, columns),
            (None, Some(fetched)) => (fetched.as_path(), &usual),
            (None, None) => {
                let name = "a generated recording (scripts/sensor-data fetches a real one)".into();
                return Ok(Self { name, points: generate(most.min(GENERATED_MAX)) });
            }
        };
        let mut points = read(path, columns)?;
        points.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        if points.is_empty() {
            return Err(Failure::new(format!("{} has no points", path.display()), "name another file"));
        }
        Ok(Self { name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(), points })
    }
}

fn fetched() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    Some(cache.or_else(home)?.join(FETCHED))
}

/// Reads a `.csv` or `.parquet` file, sorts the points, and keeps the last one of each time.
///
/// # Errors
/// [`Failure`] with the position of the first error.
pub fn read(path: &Path, columns: &Columns) -> Result<Vec<Point>, Failure> {
    let shown = path.display();
    let failure = |error: &dyn core::fmt::Display| {
        Failure::new(
            format!("{shown}: {error}"),
            "see --time, --value and --value-decimals, or name another file",
        )
    };
    let mut file = File::open(path).map_err(|error| failure(&error))?;
    let mut first = Vec::new();
    let looked_at = (&mut file).take(4).read_to_end(&mut first).and_then(|_| file.rewind());
    looked_at.map_err(|error| failure(&error))?;
    if let Some(encoding) = other_encoding(&first) {
        let message = format!("{shown}: the file is {} text: expected UTF-8", encoding.name);
        return Err(Failure::new(message, encoding.remedy));
    }
    let mut points = match path.extension().and_then(|extension| extension.to_str()) {
        Some("csv") => load_csv(file, columns).map_err(|error| failure(&error))?,
        Some("parquet") => load_parquet(file, columns).map_err(|error| failure(&error))?,
        _ => return Err(failure(&"neither .csv nor .parquet")),
    };
    points.sort_by_key(|point| point.time);
    points.reverse();
    points.dedup_by_key(|point| point.time); // keeps the first, which was the last
    points.reverse();
    Ok(points)
}

/// Reads points from a Parquet file in file order. A row whose time or value is null has no point. Other
/// columns are ignored.
///
/// Timestamps are converted to microseconds from any unit; other numbers are scaled as [`Columns`] says.
///
/// # Errors
/// A message with the column or row of the first error, or for a damaged file, about which the panic handler
/// may have printed more.
pub fn load_parquet(file: File, columns: &Columns) -> Result<Vec<Point>, String> {
    // The library panics on some damaged files; nothing of the file is used afterwards.
    let loaded = std::panic::catch_unwind(AssertUnwindSafe(|| rows(file, columns)));
    loaded.unwrap_or_else(|_| Err("the file is damaged".into()))
}

fn rows(file: File, columns: &Columns) -> Result<Vec<Point>, String> {
    let reader = SerializedFileReader::new(file).map_err(|error| error.to_string())?;
    let (wanted, nanoseconds) = wanted(reader.metadata(), columns)?;
    let rows = reader.get_row_iter(Some(wanted)).map_err(|error| error.to_string())?;
    let mut points = Vec::new();
    for (number, row) in rows.enumerate() {
        let row = row.map_err(|error| format!("row {number}: {error}"))?;
        let time = field(&row, &columns.time, columns.time_decimals, Some(nanoseconds));
        let value = field(&row, &columns.value, columns.value_decimals, None);
        let at = |why: String| format!("row {number}: {why}");
        let (Some(time), Some(value)) = (time.map_err(at)?, value.map_err(at)?) else { continue };
        let time = u64::try_from(time).ok().filter(|&time| time < u64::MAX);
        let value =
            i64::try_from(value).ok().filter(|value| value.unsigned_abs() <= VALUE_MAX.unsigned_abs());
        let (time, value) = time.zip(value).ok_or_else(|| at("time or value is out of range".into()))?;
        points.push(Point { time, value });
    }
    Ok(points)
}

/// Returns the time and value columns as a separate schema, and whether the time is in nanoseconds, which
/// rows do not show.
fn wanted(file: &ParquetMetaData, columns: &Columns) -> Result<(Type, bool), String> {
    let schema = file.file_metadata().schema();
    let column = |name: &str| {
        let found = schema.get_fields().iter().find(|field| field.name() == name);
        found.cloned().ok_or_else(|| format!("no column is called {name:?}"))
    };
    let (time, value) = (column(&columns.time)?, column(&columns.value)?);
    for chunk in file.row_groups().iter().flat_map(RowGroupMetaData::columns) {
        let (name, how) = (chunk.column_path().string(), chunk.compression());
        if [time.name(), value.name()].contains(&name.as_str()) && how == Compression::LZO {
            return Err(format!(
                "column {name:?} is compressed as LZO: write the file with another codec, or without compression"
            ));
        }
    }
    let nanoseconds = matches!(
        time.get_basic_info().logical_type_ref(),
        Some(LogicalType::Timestamp(stamp)) if stamp.unit == TimeUnit::NANOS
    );
    let mut fields = vec![time, value];
    fields.dedup();
    let wanted = Type::group_type_builder(schema.name()).with_fields(fields).build();
    Ok((wanted.map_err(|error| error.to_string())?, nanoseconds))
}

/// Returns a column's number in whole units; `None` for null. `time` is set for the time column, and true if
/// its timestamps are nanoseconds that look like numbers.
fn field(row: &Row, name: &str, decimals: u32, time: Option<bool>) -> Result<Option<i128>, String> {
    let (_, field) = row
        .get_column_iter()
        .find(|(n, _)| *n == name)
        .ok_or_else(|| format!("no column is called {name:?}"))?;
    let whole = |n: i128| Ok(Some(n * 10_i128.pow(decimals)));
    match *field {
        Field::Null => Ok(None),
        Field::Byte(n) => whole(n.into()),
        Field::Short(n) => whole(n.into()),
        Field::Int(n) => whole(n.into()),
        Field::Long(n) if time == Some(true) => Ok(Some(n.div_euclid(1000).into())),
        Field::Long(n) => whole(n.into()),
        Field::UByte(n) => whole(n.into()),
        Field::UShort(n) => whole(n.into()),
        Field::UInt(n) => whole(n.into()),
        Field::ULong(n) => whole(n.into()),
        Field::TimestampMillis(n) if time.is_some() => Ok(Some(i128::from(n) * 1000)),
        Field::TimestampMicros(n) if time.is_some() => Ok(Some(n.into())),
        Field::Float16(x) => scaled(x.into(), decimals).map(Some),
        Field::Float(x) => scaled(x.into(), decimals).map(Some),
        Field::Double(x) => scaled(x, decimals).map(Some),
        Field::Decimal(ref n) => {
            decimal(n, decimals).map(Some).ok_or_else(|| format!("{field} is out of range"))
        }
        ref other => Err(format!("{other} in column {name:?} is not a number")),
    }
}

/// Converts a decimal to whole units, rounded half away from zero; `None` when it has too many digits.
fn decimal(n: &Decimal, decimals: u32) -> Option<i128> {
    let bytes = n.data();
    let first = *bytes.first()?;
    let unscaled = bytes[1..].iter().try_fold(i128::from(first.cast_signed()), |high, &byte| {
        Some(high.checked_mul(256)? | i128::from(byte))
    })?;
    let shift = i64::from(decimals) - i64::from(n.scale());
    let factor = 10_i128.checked_pow(u32::try_from(shift.unsigned_abs()).ok()?)?;
    if shift >= 0 {
        return unscaled.checked_mul(factor);
    }
    let (whole, rest) = (unscaled / factor, unscaled % factor);
    let up = rest.unsigned_abs() >= factor.unsigned_abs().div_ceil(2);
    Some(whole + i128::from(up) * unscaled.signum())
}

/// The largest double up to which every integer is exact.
const EXACT_MAX: f64 = 9e15;

#[expect(clippy::cast_possible_truncation, reason = "checked to be a whole number that a word holds")]
fn scaled(x: f64, decimals: u32) -> Result<i128, String> {
    let scaled = (x * 10_f64.powi(decimals.cast_signed())).round();
    if scaled.abs() <= EXACT_MAX {
        Ok(i128::from(scaled as i64))
    } else {
        Err(format!("{x} is out of range"))
    }
}

/// Returns a recording of `count` points of a mains voltage in microvolts, 120 per second: a wandering sine
/// with noise. Deterministic.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "microvolts of a mains voltage"
)]
pub fn generate(count: u64) -> Vec<Point> {
    let mut rng = Rng::from_number(120);
    let mut drift = 0.0_f64;
    let point = |n: u64| {
        drift += f64::from(rng.below(2001)) - 1000.0;
        let noise = f64::from(rng.below(200_001)) - 100_000.0;
        let swing = (n as f64 * 0.013).sin() * 1.5e6;
        Point { time: n * 1_000_000 / GENERATED_RATE, value: (2.3e8 + swing + drift + noise) as i64 }
    };
    (0..count).map(point).collect()
}
