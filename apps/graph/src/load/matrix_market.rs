//! Matrix Market: coordinates of a square matrix, counted from 1, each with a number or without.

use super::{At, Lines, LoadError, number, vertices};
use crate::{Edges, VERTICES_MAX};
use std::io::BufRead;

/// The contents of the first line.
struct Header {
    field: Field,
    symmetric: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Pattern,
    Integer,
    Real,
}

/// Reads a matrix: an edge from each row to each column with an entry. The second result is true when the
/// file has one half of a symmetric matrix, so that each edge goes both ways.
///
/// # Errors
/// [`LoadError`] with the line.
pub fn read_matrix_market(reader: impl BufRead) -> Result<(Edges, bool), LoadError> {
    let mut lines = Lines::new(reader);
    let header = header(lines.next()?)?;
    let (size, entries) = sizes(&mut lines)?;
    let sizes_at = lines.at();
    let (mut edges, mut weights) = (Edges::default(), Vec::new());
    loop {
        let at = At::Line(lines.number + 1);
        let Some(line) = lines.next()? else { break };
        if line.is_empty() || line.starts_with('%') {
            continue;
        }
        if edges.list.len() as u64 == entries {
            return Err(LoadError::new(at, format!("more entries than the {entries} that {sizes_at}says")));
        }
        let mut words = line.split_ascii_whitespace();
        let mut place = |what| {
            let place = number(words.next(), what, size, at)?.checked_sub(1);
            let narrow = place.and_then(|place| u32::try_from(place).ok());
            narrow.ok_or_else(|| LoadError::new(at, format!("{what} is 0, expected 1 to {size}")))
        };
        let edge = (place("the row")?, place("the column")?);
        if header.field != Field::Pattern {
            weights.push(weight(words.next(), header.field, at)?);
        }
        if words.next().is_some() {
            return Err(LoadError::new(at, "more words than an entry has"));
        }
        edges.list.push(edge);
    }
    if (edges.list.len() as u64) < entries {
        let what = format!("the file is cut short: {} entries, expected {entries}", edges.list.len());
        return Err(LoadError::new(lines.at(), what));
    }
    edges.vertices = vertices(size, &edges, sizes_at)?;
    edges.weights = (header.field != Field::Pattern).then_some(weights);
    Ok((edges, header.symmetric))
}

fn header(line: Option<&str>) -> Result<Header, LoadError> {
    let wrong = |what: String| LoadError::new(At::Line(1), what);
    let words: Vec<String> =
        line.unwrap_or("").split_ascii_whitespace().map(str::to_ascii_lowercase).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ["%%matrixmarket", "matrix", form, field, symmetry] = words[..] else {
        return Err(wrong("expected %%MatrixMarket matrix coordinate ...".into()));
    };
    if form != "coordinate" {
        return Err(wrong(format!("a matrix in the form {form}, expected coordinate")));
    }
    let field = match field {
        "pattern" => Field::Pattern,
        "integer" => Field::Integer,
        "real" => Field::Real,
        other => return Err(wrong(format!("entries are {other}, expected pattern, integer or real"))),
    };
    match symmetry {
        "general" | "symmetric" => Ok(Header { field, symmetric: symmetry == "symmetric" }),
        other => Err(wrong(format!("a matrix that is {other}, expected general or symmetric"))),
    }
}

/// Reads the number of rows, which equals the number of columns, and of entries.
fn sizes(lines: &mut Lines<impl BufRead>) -> Result<(u64, u64), LoadError> {
    loop {
        let at = At::Line(lines.number + 1);
        let Some(line) = lines.next()? else {
            return Err(LoadError::new(at, "the file is cut short: expected rows, columns and entries"));
        };
        if line.is_empty() || line.starts_with('%') {
            continue;
        }
        let mut words = line.split_ascii_whitespace();
        let rows = number(words.next(), "the number of rows", VERTICES_MAX, at)?;
        let columns = number(words.next(), "the number of columns", VERTICES_MAX, at)?;
        let entries = number(words.next(), "the number of entries", u64::MAX, at)?;
        if rows != columns {
            return Err(LoadError::new(at, format!("{rows} rows and {columns} columns, expected as many")));
        }
        return Ok((rows, entries));
    }
}

fn weight(word: Option<&str>, field: Field, at: At) -> Result<u32, LoadError> {
    let most = u64::from(u32::MAX);
    let whole = match (word, field) {
        (Some(word), Field::Real) => {
            let real: Option<f64> = word.parse().ok();
            let whole = real.filter(|real| (0.0..=f64::from(u32::MAX)).contains(real) && real.fract() == 0.0);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
            whole.map(|real| real as u32)
        }
        _ => {
            return number(word, "the weight", most, at)
                .map(|weight| u32::try_from(weight).expect("in range"));
        }
    };
    whole.ok_or_else(|| {
        let word = word.unwrap_or("");
        LoadError::new(at, format!("the weight is {word:?}, expected a whole number from 0 to {most}: scale the weights, or leave them out (pattern)"))
    })
}
