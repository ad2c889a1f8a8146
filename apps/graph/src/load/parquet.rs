//! A table of edges in a Parquet file: columns `source` and `target`, and `weight` for weighted edges.

use super::{At, LoadError, Progress, vertices};
use crate::{Edges, VERTICES_MAX};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use std::fs::File;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

const COLUMNS: [&str; 3] = ["source", "target", "weight"];

/// Rows between two progress reports.
const ROWS: u64 = 1 << 12;

/// Reads a table and reports the rows to `progress`. Other columns are ignored.
///
/// # Errors
/// [`LoadError`] with the row, or for a damaged file, about which the panic handler may have printed more.
pub fn read_parquet(file: File, progress: &mut Progress<'_>) -> Result<Edges, LoadError> {
    // The library panics on some damaged files; nothing of the file is used afterwards.
    let read = std::panic::catch_unwind(AssertUnwindSafe(|| rows(file, progress)));
    read.unwrap_or_else(|_| Err(LoadError::new(At::Whole, "the file is damaged")))
}

fn rows(file: File, progress: &mut Progress<'_>) -> Result<Edges, LoadError> {
    let whole = |error: parquet::errors::ParquetError| LoadError::new(At::Whole, error.to_string());
    let reader = SerializedFileReader::new(file).map_err(whole)?;
    let schema = reader.metadata().file_metadata().schema();
    let column = |name: &str| schema.get_fields().iter().find(|field| field.name() == name).cloned();
    let needed = |name: &str| {
        column(name).ok_or_else(|| {
            LoadError::new(
                At::Whole,
                format!("no column is called {name:?}: expected source, target and perhaps weight"),
            )
        })
    };
    let mut wanted: Vec<Arc<Type>> = vec![needed(COLUMNS[0])?, needed(COLUMNS[1])?];
    wanted.extend(column(COLUMNS[2]));
    let weighted = wanted.len() == COLUMNS.len();
    let projection = Type::group_type_builder(schema.name()).with_fields(wanted).build().map_err(whole)?;
    let (mut edges, mut weights, mut most) = (Edges::default(), Vec::new(), None);
    let all = u64::try_from(reader.metadata().file_metadata().num_rows()).unwrap_or(0);
    for (row, values) in (0..).zip(reader.get_row_iter(Some(projection)).map_err(whole)?) {
        let at = At::Row(row);
        if row % ROWS == 0 && !progress(row, all.max(row)) {
            return Err(LoadError::stopped());
        }
        let values = values.map_err(|error| LoadError::new(at, error.to_string()))?;
        let [from, to] = [0, 1].map(|column| value(&values, column, VERTICES_MAX - 1, at));
        let (from, to) = (from?, to?);
        edges.list.push((from, to));
        if weighted {
            weights.push(value(&values, 2, u32::MAX.into(), at)?);
        }
        most = most.max(Some(from.max(to)));
    }
    edges.vertices = vertices(most.map_or(0, |most| u64::from(most) + 1), &edges, At::Whole)?;
    edges.weights = weighted.then_some(weights);
    Ok(edges)
}

fn value(row: &Row, column: usize, most: u64, at: At) -> Result<u32, LoadError> {
    let name = COLUMNS[column];
    let field = row.get_column_iter().find(|(found, _)| *found == name).map(|(_, field)| field);
    let number: Option<i128> = match field {
        Some(&Field::Byte(n)) => Some(n.into()),
        Some(&Field::Short(n)) => Some(n.into()),
        Some(&Field::Int(n)) => Some(n.into()),
        Some(&Field::Long(n)) => Some(n.into()),
        Some(&Field::UByte(n)) => Some(n.into()),
        Some(&Field::UShort(n)) => Some(n.into()),
        Some(&Field::UInt(n)) => Some(n.into()),
        Some(&Field::ULong(n)) => Some(n.into()),
        _ => None,
    };
    let narrow = number.and_then(|n| u32::try_from(n).ok()).filter(|&n| u64::from(n) <= most);
    narrow.ok_or_else(|| {
        let found = field.map_or_else(|| "nothing".to_owned(), ToString::to_string);
        LoadError::new(at, format!("{name} is {found}, expected a whole number from 0 to {most}"))
    })
}
