//! Points from CSV text: two columns of decimals, scaled to integers without binary rounding.

use super::{Point, VALUE_MAX};
use std::io::Read;

/// The columns to read, by the names in the first line, and the number of decimals to keep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Columns {
    /// The name of the time column.
    pub time: String,
    /// Decimals of the time to keep: 6 turns seconds into microseconds.
    pub time_decimals: u32,
    /// The name of the value column.
    pub value: String,
    /// Decimals of the value to keep.
    pub value_decimals: u32,
}

impl Default for Columns {
    /// Returns the columns `time` in whole units and `value` with six decimals.
    fn default() -> Self {
        Self { time: "time".into(), time_decimals: 0, value: "value".into(), value_decimals: 6 }
    }
}

/// An error in a CSV text, with its position.
#[derive(Debug, thiserror::Error)]
#[error("line {line}, column {column}: {fault}")]
pub struct CsvError {
    /// The line, counted from 1.
    pub line: u64,
    /// The column of the table, counted from 1; 0 for the line as a whole.
    pub column: usize,
    /// The cause.
    pub fault: CsvFault,
}

/// The cause of a [`CsvError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CsvFault {
    /// The first line lacks a column.
    #[error("no column is called {0:?}")]
    NoColumn(String),
    /// Not a decimal number such as -12.5 or 3e-4.
    #[error("{0:?} is not a decimal number")]
    NotANumber(String),
    /// The number, scaled, does not fit.
    #[error(
        "{0:?} is out of range: a time is 0 to 2^64 - 2, a value less than 2^59 in magnitude, both after scaling"
    )]
    OutOfRange(String),
    /// The table is malformed or could not be read.
    #[error(transparent)]
    Table(#[from] csv::Error),
}

/// Bound on the decimals to keep.
const DECIMALS_MAX: u32 = 18;
/// The first byte of a comment line.
const COMMENT: u8 = b'#';

/// Reads points in the order of the text, without sorting. A line with an empty value has no point.
///
/// Decimals beyond those kept are rounded half away from zero. The whole text is held in memory, so that
/// errors can state their line.
///
/// # Errors
/// [`CsvError`] with line and column of the first error.
///
/// # Panics
/// Panics when more than 18 decimals are requested.
pub fn load_csv(mut reader: impl Read, columns: &Columns) -> Result<Vec<Point>, CsvError> {
    assert!(
        columns.time_decimals.max(columns.value_decimals) <= DECIMALS_MAX,
        "at most {DECIMALS_MAX} digits"
    );
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(|error| broken(error.into(), &bytes))?;
    let mut table =
        csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(COMMENT)).from_reader(bytes.as_slice());
    let names = table.headers().map_err(|error| broken(error, &bytes))?.clone();
    let place = |name: &str| {
        let found = names.iter().position(|n| n == name);
        let line = line_of(names.position(), &bytes);
        found.ok_or_else(|| CsvError { line, column: 0, fault: CsvFault::NoColumn(name.into()) })
    };
    let (time, value) = (place(&columns.time)?, place(&columns.value)?);
    let mut points = Vec::new();
    for record in table.records() {
        let record = record.map_err(|error| broken(error, &bytes))?;
        let number = |place: usize, decimals, fits: &dyn Fn(i128) -> bool| {
            let text = record.get(place).unwrap_or_default();
            let at = |fault: fn(String) -> CsvFault| CsvError {
                line: line_of(record.position(), &bytes),
                column: place + 1,
                fault: fault(text.into()),
            };
            let scaled = decimal(text, decimals).ok_or_else(|| at(CsvFault::NotANumber))?;
            scaled.filter(|&n| fits(n)).ok_or_else(|| at(CsvFault::OutOfRange))
        };
        if record.get(value).is_some_and(str::is_empty) {
            continue;
        }
        let time = number(time, columns.time_decimals, &|n| (0..i128::from(u64::MAX)).contains(&n))?;
        let value = number(value, columns.value_decimals, &|n| n.abs() <= i128::from(VALUE_MAX))?;
        points.push(Point {
            time: u64::try_from(time).expect("checked to be a time"),
            value: i64::try_from(value).expect("checked to be a value"),
        });
    }
    Ok(points)
}

fn broken(error: csv::Error, bytes: &[u8]) -> CsvError {
    CsvError { line: line_of(error.position(), bytes), column: 0, fault: CsvFault::Table(error) }
}

/// Returns the line of the record at `position`. The position is the end of the previous record: empty lines
/// and comments may follow it.
fn line_of(position: Option<&csv::Position>, bytes: &[u8]) -> u64 {
    let Some(position) = position else { return 1 };
    let start = usize::try_from(position.byte()).unwrap_or(usize::MAX);
    let rest = bytes.get(start..).unwrap_or_default();
    let lines = rest.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
    let passed = lines.take_while(|line| matches!(line, [b'\n'] | [b'\r', b'\n'] | [COMMENT, ..]));
    position.line() + passed.count() as u64
}

/// Parses `text`, times 10^`decimals`, rounded half away from zero. Returns `None` when the text is not a
/// number, and `Some(None)` when the number exceeds 10^36.
#[expect(clippy::option_option, reason = "not a number and too large a number are different errors")]
fn decimal(text: &str, decimals: u32) -> Option<Option<i128>> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (negative, digits) = match mantissa.as_bytes().first()? {
        b'-' => (true, &mantissa[1..]),
        b'+' => (false, &mantissa[1..]),
        _ => (false, mantissa),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = || whole.bytes().chain(fraction.bytes());
    if all().next().is_none() || !all().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Digits up to here stay in the number; the next digit rounds it.
    let fraction_len = i64::try_from(fraction.len()).ok()?;
    let shift = i64::from(exponent) + i64::from(decimals) - fraction_len;
    let mut number = 0_i128;
    let significant: Vec<u8> = all().skip_while(|&byte| byte == b'0').collect();
    let kept = i64::try_from(significant.len()).ok()? + shift.min(0);
    if significant.is_empty() || kept < 0 {
        return Some(Some(0));
    }
    if kept + shift.max(0) > 36 {
        return Some(None);
    }
    let kept = usize::try_from(kept).ok()?;
    for byte in &significant[..kept] {
        number = number * 10 + i128::from(byte - b'0');
    }
    for _ in 0..shift {
        number *= 10;
    }
    if significant.get(kept).is_some_and(|&byte| byte >= b'5') {
        number += 1;
    }
    Some(Some(if negative { -number } else { number }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_scaled_exactly() {
        for (text, decimals, expected) in [
            ("0", 0, 0),
            ("-12.5", 1, -125),
            ("12.5", 0, 13),
            ("-12.5", 0, -13),
            ("12.49", 0, 12),
            ("0.000001", 6, 1),
            ("0.0000005", 6, 1),
            ("0.00000049", 6, 0),
            (".5", 2, 50),
            ("5.", 2, 500),
            ("+3e-4", 6, 300),
            ("1.5E3", 0, 1500),
            ("1e-40", 6, 0),
            ("1690000000.123456", 6, 1_690_000_000_123_456),
            ("0.1", 18, 100_000_000_000_000_000),
        ] {
            assert_eq!(decimal(text, decimals), Some(Some(expected)), "{text} to {decimals}");
        }
        assert_eq!(decimal("1e40", 0), Some(None));
        for text in ["", "-", ".", "1.2.3", "1e", "0x10", "nan", "1,5", "--1", "e5"] {
            assert_eq!(decimal(text, 2), None, "{text:?}");
        }
    }

    #[test]
    fn a_table_becomes_points() {
        let text = "# a sensor\nid, value ,time\n1,0.25,10\n2,,11\n3,-1e-3,12.6\n";
        let points = load_csv(text.as_bytes(), &Columns { value_decimals: 3, ..Columns::default() }).unwrap();
        assert_eq!(points, [Point { time: 10, value: 250 }, Point { time: 13, value: -1 }]);
        assert_eq!(load_csv("time,value\n".as_bytes(), &Columns::default()).unwrap(), []);
    }

    #[test]
    fn faults_have_their_place() {
        for (text, expected) in [
            ("", "line 1, column 0: no column is called"),
            ("time,volt\n", "line 1, column 0: no column is called \"value\""),
            ("time,value\n1,2\n3,four\n", "line 3, column 2: \"four\" is not a decimal number"),
            ("time,value\n-1,2\n", "line 2, column 1: \"-1\" is out of range"),
            ("time,value\n18446744073709551615,2\n", "line 2, column 1: "),
            ("time,value\n\n\n1,1e12\n", "line 4, column 2: \"1e12\" is out of range"),
            ("time,value\r\n\r\n# x\r\n1,1\r\n#\r\nx,1", "line 6, column 1: \"x\" is not"),
            ("\n#\ntime,volt\n", "line 3, column 0: no column"),
            ("time,value\n1,2\n\n1,2,3\n", "line 4, column 0: "),
        ] {
            let error = load_csv(text.as_bytes(), &Columns::default()).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error} is not {expected:?}");
        }
    }
}
