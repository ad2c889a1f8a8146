//! Edge lists: two numbers per line, source and target, or three with a weight, like SNAP's files. `#` and
//! `%` begin a comment, also after an edge.

use super::{At, Lines, LoadError, number, vertices};
use crate::{Edges, VERTICES_MAX};
use std::io::BufRead;

/// Reads an edge list. Vertices keep the file's numbers; the largest determines their count.
///
/// # Errors
/// [`LoadError`] with the line.
pub fn read_edge_list(reader: impl BufRead) -> Result<Edges, LoadError> {
    let mut lines = Lines::new(reader);
    let (mut edges, mut weights) = (Edges::default(), Vec::new());
    let (mut largest, mut largest_at) = (None, At::Whole);
    loop {
        let at = At::Line(lines.number + 1);
        let Some(line) = lines.next()? else { break };
        let line = line.split(['#', '%']).next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let mut words =
            line.split(|c: char| c.is_ascii_whitespace() || c == ',').filter(|word| !word.is_empty());
        let mut vertex = |what| number(words.next(), what, VERTICES_MAX - 1, at);
        let (from, to) = (vertex("the vertex from")?, vertex("the vertex to")?);
        let weight =
            words.next().map(|word| number(Some(word), "the weight", u32::MAX.into(), at)).transpose()?;
        if words.next().is_some() {
            return Err(LoadError::new(at, "more than from, to and weight"));
        }
        if !edges.list.is_empty() && weight.is_some() == weights.is_empty() {
            return Err(LoadError::new(at, "some edges have a weight and others have none"));
        }
        weights.extend(weight.map(narrow));
        edges.list.push((narrow(from), narrow(to)));
        if largest < Some(from.max(to)) {
            (largest, largest_at) = (Some(from.max(to)), at);
        }
    }
    edges.vertices = vertices(largest.map_or(0, |largest| largest + 1), &edges, largest_at)?;
    edges.weights = (!weights.is_empty()).then_some(weights);
    Ok(edges)
}

#[expect(clippy::cast_possible_truncation, reason = "checked as it was read")]
const fn narrow(number: u64) -> u32 {
    number as u32
}
