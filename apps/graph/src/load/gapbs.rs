//! The GAP benchmark suite's serialized graphs (`.sg`, and `.wsg` with weights), little-endian. The file has
//! a byte for directed graphs, the numbers of edges and vertices in 64 bits, the start of each vertex's
//! edges, and the edges. A directed graph repeats the last two for incoming edges.

use super::{At, LoadError};
use crate::csr::Check;
use crate::{Csr, Edges, Shape};
use std::io::Read;

const HEADER: u64 = 17;

/// Reads a graph of `len` bytes. Incoming edges are rebuilt from the outgoing ones.
///
/// # Errors
/// [`LoadError`] with the byte.
pub fn read_gapbs(reader: &mut impl Read, len: u64, weighted: bool) -> Result<Csr, LoadError> {
    let mut reader = Numbers { reader, at: 0 };
    let directed = match reader.bytes::<1>()? {
        [0] => false,
        [1] => true,
        [other] => {
            return Err(LoadError::new(At::Byte(0), format!("{other}, expected 0 (no direction) or 1")));
        }
    };
    let (edges, vertices) =
        (reader.bytes().map(u64::from_le_bytes)?, reader.bytes().map(u64::from_le_bytes)?);
    let width = if weighted { 8 } else { 4 };
    let offsets = vertices.checked_add(1);
    let one = offsets.and_then(|offsets| offsets.checked_mul(8)?.checked_add(edges.checked_mul(width)?));
    let expected = one.and_then(|one| one.checked_mul(1 + u64::from(directed))?.checked_add(HEADER));
    if expected != Some(len) {
        let expected = expected.map_or_else(|| "more than 2^64".into(), |bytes| bytes.to_string());
        let what =
            format!("{vertices} vertices and {edges} edges make {expected} bytes, but the file has {len}");
        return Err(LoadError::new(At::Byte(1), what));
    }
    let count = usize::try_from(edges).map_err(|_| LoadError::new(At::Byte(1), "too many edges"))?;
    let mut check = Check::new(vertices + 1, count)?;
    let mut ends = Vec::new();
    for _ in 0..=vertices {
        let at = At::Byte(reader.at);
        let offset = reader.bytes().map(u64::from_le_bytes)?;
        check.offset(offset).map_err(|malformed| LoadError::new(at, malformed.to_string()))?;
        ends.push(offset);
    }
    check
        .last_offset()
        .map_err(|malformed| LoadError::new(At::Byte(reader.at - 8), malformed.to_string()))?;
    let mut read = Edges { vertices: u32::try_from(vertices).expect("checked"), ..Edges::default() };
    let mut weights = Vec::new();
    for (from, pair) in (0..).zip(ends.windows(2)) {
        for _ in pair[0]..pair[1] {
            let at = At::Byte(reader.at);
            let to = reader.bytes().map(u32::from_le_bytes)?;
            check.target(to).map_err(|malformed| LoadError::new(at, malformed.to_string()))?;
            read.list.push((from, to));
            if weighted {
                let weight = reader.bytes().map(i32::from_le_bytes)?;
                let weight = u32::try_from(weight).map_err(|_| {
                    LoadError::new(
                        At::Byte(reader.at - 4),
                        format!("a weight of {weight}, expected 0 or more"),
                    )
                })?;
                weights.push(weight);
            }
        }
    }
    read.weights = weighted.then_some(weights);
    let mut csr = read.build(Shape::default())?;
    if !directed {
        if csr.incoming.as_ref() != Some(&csr.out) {
            let what =
                "0, which says that edges have no direction, but an edge does not stand at both of its ends";
            return Err(LoadError::new(At::Byte(0), what));
        }
        (csr.incoming, csr.symmetric) = (None, true);
    }
    Ok(csr)
}

struct Numbers<'a, R> {
    reader: &'a mut R,
    at: u64,
}

impl<R: Read> Numbers<'_, R> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|error| LoadError::io(At::Byte(self.at), &error))?;
        self.at += N as u64;
        Ok(bytes)
    }
}
