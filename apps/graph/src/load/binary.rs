//! farmem's own graph file (`.fmg`): the in-memory arrays, so that they can be streamed into far memory block
//! by block.
//!
//! All numbers are little-endian:
//!
//! ```text
//!   0  8  "FARMGRAF"
//!   8  4  version: 1
//!  12  4  1 each edge stands at both of its ends, 2 edges have weights; else 0
//!  16  8  vertices, n
//!  24  8  edges, m
//!  32  4  CRC-32 of everything behind the header
//!  36  4  CRC-32 of the 36 bytes before
//!  40     offsets of edges out of vertices, (n + 1) x 8; targets, m x 4, ascending for each vertex; weights, m x 4, if they have;
//!         unless each stands at both ends, the same of edges into vertices
//! ```
//!
//! All data is checked while it is read: lengths, both checksums, offsets, targets and their order. Incoming
//! edges are compared with outgoing ones by a sum over all edges; weights are not compared.

use super::{At, LoadError, Progress};
use crate::csr::{Check, VERTICES_MAX};
use crate::{Csr, Edges, Rows};
use crc32fast::Hasher;
use std::io::{self, BufReader, Read, Write};

/// Bytes of the header.
pub const HEADER: u64 = HEADER_LEN as u64;
const HEADER_LEN: usize = 40;
const MAGIC: [u8; 8] = *b"FARMGRAF";
const VERSION: u32 = 1;
const SYMMETRIC: u32 = 1;
const WEIGHTED: u32 = 2;
/// Bytes read at once; a multiple of 8.
const BLOCK: usize = 1 << 16;

/// The size and kind of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// True when each edge exists in both directions.
    pub symmetric: bool,
    /// True when edges have weights.
    pub weighted: bool,
    /// Number of vertices.
    pub vertices: u64,
    /// Number of edges.
    pub edges: u64,
}

/// The contents of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The size of the graph.
    pub extent: Extent,
    /// CRC-32 of all arrays.
    pub sum: u32,
}

/// An array of a graph.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Section {
    /// The start of each vertex's edges.
    Offsets,
    /// The targets of the edges.
    Targets,
    /// The weights of the edges.
    Weights,
}

impl Extent {
    /// Returns the size of a graph in local memory.
    #[must_use]
    pub const fn of(csr: &Csr) -> Self {
        Self {
            symmetric: csr.symmetric,
            weighted: csr.out.weights.is_some(),
            vertices: csr.vertices(),
            edges: csr.out.targets.len() as u64,
        }
    }

    /// Returns the length of the graph's file in bytes.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        let arrays = self.sections().fold(0, |sum: u64, section| sum.saturating_add(section.2));
        HEADER.saturating_add(arrays)
    }

    /// Returns the arrays in file order, with their bytes; `true` marks those of incoming edges.
    pub fn sections(&self) -> impl Iterator<Item = (bool, Section, u64)> + use<> {
        let Self { symmetric, weighted, vertices, edges } = *self;
        [false, true].into_iter().filter(move |&incoming| !(incoming && symmetric)).flat_map(
            move |incoming| {
                let all = [
                    (incoming, Section::Offsets, (vertices + 1) * 8),
                    (incoming, Section::Targets, edges * 4),
                    (incoming, Section::Weights, edges * 4),
                ];
                all.into_iter().filter(move |section| weighted || section.1 != Section::Weights)
            },
        )
    }
}

impl Header {
    /// Returns the header of a graph in local memory; reads all of it for the checksum.
    #[must_use]
    pub fn of(csr: &Csr) -> Self {
        let mut sum = Hasher::new();
        let all: Result<(), std::convert::Infallible> = sections(csr, &mut |_, _, bytes| {
            sum.update(bytes);
            Ok(())
        });
        let Ok(()) = all;
        Self { extent: Extent::of(csr), sum: sum.finalize() }
    }

    /// Encodes the header.
    #[must_use]
    pub fn bytes(&self) -> [u8; HEADER_LEN] {
        let Extent { symmetric, weighted, vertices, edges } = self.extent;
        let flags = if symmetric { SYMMETRIC } else { 0 } | if weighted { WEIGHTED } else { 0 };
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&flags.to_le_bytes());
        bytes[16..24].copy_from_slice(&vertices.to_le_bytes());
        bytes[24..32].copy_from_slice(&edges.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.sum.to_le_bytes());
        let sum = crc32fast::hash(&bytes[..36]);
        bytes[36..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads the header of a file of `len` bytes.
    ///
    /// # Errors
    /// [`LoadError`] with the byte; also when the file's length does not match the header.
    pub fn read(reader: &mut impl Read, len: u64) -> Result<Self, LoadError> {
        let mut bytes = [0; HEADER_LEN];
        reader.read_exact(&mut bytes).map_err(|error| LoadError::io(At::Byte(0), &error))?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let wrong = |at, what: String| Err(LoadError::new(At::Byte(at), what));
        if bytes[..8] != MAGIC {
            return wrong(0, "no FARMGRAF: this is no graph of farmem's".into());
        }
        if word(36) != crc32fast::hash(&bytes[..36]) {
            return wrong(36, "the header's sum is wrong: the file is damaged".into());
        }
        if word(8) != VERSION {
            return wrong(8, format!("version {}, expected {VERSION}", word(8)));
        }
        let flags = word(12);
        if flags & !(SYMMETRIC | WEIGHTED) != 0 {
            return wrong(12, format!("flags {flags:#x}, expected {:#x} at most", SYMMETRIC | WEIGHTED));
        }
        let (symmetric, weighted) = (flags & SYMMETRIC != 0, flags & WEIGHTED != 0);
        let (vertices, edges) = (long(16), long(24));
        if vertices > VERTICES_MAX {
            return wrong(16, format!("{vertices} vertices, expected {VERTICES_MAX} at most"));
        }
        // No file has more edges than bytes, so nothing below overflows.
        let extent = Extent { symmetric, weighted, vertices, edges };
        if edges > len || extent.file_len() != len {
            return wrong(
                16,
                format!("{vertices} vertices and {edges} edges do not make the {len} bytes of the file"),
            );
        }
        Ok(Self { extent, sum: word(32) })
    }
}

/// A consumer of the arrays, block by block: whether the edges are incoming, the array, and whole numbers of
/// it.
pub type Sink<'a, E> = dyn FnMut(bool, Section, &[u8]) -> Result<(), E> + 'a;

/// Passes all arrays of a graph in local memory to `sink`, block by block, in file order.
///
/// # Errors
/// The errors of `sink`.
pub fn sections<E>(csr: &Csr, sink: &mut Sink<'_, E>) -> Result<(), E> {
    let mut block = Vec::with_capacity(BLOCK);
    for (incoming, rows) in [(false, Some(&csr.out)), (true, csr.incoming.as_ref())] {
        let Some(rows) = rows.filter(|_| !(incoming && csr.symmetric)) else { continue };
        for numbers in rows.offsets.chunks(BLOCK / 8) {
            block.clear();
            block.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            sink(incoming, Section::Offsets, &block)?;
        }
        let weights = rows.weights.iter().map(|weights| (Section::Weights, weights));
        for (section, numbers) in [(Section::Targets, &rows.targets)].into_iter().chain(weights) {
            for numbers in numbers.chunks(BLOCK / 4) {
                block.clear();
                block.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
                sink(incoming, section, &block)?;
            }
        }
    }
    Ok(())
}

/// Writes a graph and returns its header.
///
/// # Errors
/// The errors of `out`.
pub fn write(csr: &Csr, out: &mut impl Write) -> io::Result<Header> {
    let header = Header::of(csr);
    out.write_all(&header.bytes())?;
    sections(csr, &mut |_, _, bytes| out.write_all(bytes))?;
    Ok(header)
}

/// Reads a graph of `len` bytes into local memory. `from` returns a reader from a byte on; the file is read
/// at two positions at once.
///
/// # Errors
/// [`LoadError`] with the byte.
pub fn read<R: Read>(
    from: impl Fn(u64) -> R,
    len: u64,
    progress: &mut Progress<'_>,
) -> Result<Csr, LoadError> {
    arrays(&Header::read(&mut from(0), len)?, from, progress)
}

/// Reads the arrays after a header into local memory, as [`read()`].
///
/// # Errors
/// [`LoadError`] with the byte.
pub fn arrays<R: Read>(
    header: &Header,
    from: impl Fn(u64) -> R,
    progress: &mut Progress<'_>,
) -> Result<Csr, LoadError> {
    let mut csr = Csr::default();
    stream(header, from, progress, &mut |incoming, section, bytes| {
        let rows = if incoming { csr.incoming.get_or_insert_default() } else { &mut csr.out };
        let narrow = || bytes.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes));
        match section {
            Section::Offsets => {
                rows.offsets.extend(bytes.as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes)));
            }
            Section::Targets => rows.targets.extend(narrow()),
            Section::Weights => rows.weights.get_or_insert_default().extend(narrow()),
        }
        Ok(())
    })?;
    csr.symmetric = header.extent.symmetric;
    if header.extent.weighted {
        csr.out.weights.get_or_insert_default();
        csr.incoming.as_mut().map(|rows| rows.weights.get_or_insert_default());
    }
    Ok(csr)
}

/// Reads the arrays after a header and passes them to `sink`, checked, block by block. The total matches
/// `header`, even if the file has changed since. The data must not be used before all of it was read. `from`
/// returns a reader from a byte on.
///
/// # Errors
/// [`LoadError`] with the byte, and the errors of `sink`.
pub fn stream<R: Read>(
    header: &Header,
    from: impl Fn(u64) -> R,
    progress: &mut Progress<'_>,
    sink: &mut Sink<'_, LoadError>,
) -> Result<(), LoadError> {
    let Header { extent, .. } = header;
    let (len, mut reader) = (extent.file_len(), from(HEADER));
    let (mut at, mut sum, mut ways) = (HEADER, Hasher::new(), [0_u64; 2]);
    let (mut rows, mut block) = (None, vec![0; BLOCK]);
    let edges = usize::try_from(extent.edges).expect("fewer than bytes of the file");
    let mut check = Check::new(extent.vertices + 1, edges)?;
    for (incoming, section, bytes) in extent.sections() {
        if section == Section::Offsets {
            check = Check::new(extent.vertices + 1, edges)?;
            let ends = BufReader::with_capacity(BLOCK, from(at + 8));
            rows = Some(Places { ends, row: 0, end: 0, next: 0, before: 0 });
        }
        let end = at + bytes;
        while at < end {
            let count = usize::try_from(end - at).map_or(BLOCK, |left| left.min(BLOCK));
            let block = &mut block[..count];
            reader.read_exact(block).map_err(|error| LoadError::io(At::Byte(at), &error))?;
            sum.update(block);
            match (section, &mut rows) {
                (Section::Offsets, _) => offsets(block, at, &mut check)?,
                (Section::Targets, Some(rows)) => {
                    let first = rows.next == 0;
                    if first {
                        check.last_offset().map_err(|m| LoadError::new(At::Byte(at - 8), m.to_string()))?;
                    }
                    targets(block, at, &mut check, rows, |row, target| {
                        // The edge in both forms: as outgoing and as reversed.
                        let (from, to) = if incoming { (target, row) } else { (row, target) };
                        let (this, other) = if incoming { (1, 0) } else { (0, 1) };
                        ways[this] = ways[this].wrapping_add(mixed(from, to));
                        if extent.symmetric {
                            ways[other] = ways[other].wrapping_add(mixed(to, from));
                        }
                    })?;
                }
                _ => {}
            }
            sink(incoming, section, block)?;
            at += count as u64;
            if !progress(at, len) {
                return Err(LoadError::stopped());
            }
        }
        if section == Section::Offsets && extent.edges == 0 {
            check.last_offset().map_err(|m| LoadError::new(At::Byte(at - 8), m.to_string()))?;
        }
    }
    if sum.finalize() != header.sum {
        return Err(LoadError::new(At::Byte(32), "the sum of the arrays is wrong: the file is damaged"));
    }
    if ways[0] != ways[1] {
        let what = "edges into vertices are not those out of them";
        return Err(LoadError::new(At::Byte(HEADER), what));
    }
    Ok(())
}

fn offsets(block: &[u8], at: u64, check: &mut Check) -> Result<(), LoadError> {
    for (at, bytes) in (at..).step_by(8).zip(block.as_chunks().0) {
        let checked = check.offset(u64::from_le_bytes(*bytes));
        checked.map_err(|malformed| LoadError::new(At::Byte(at), malformed.to_string()))?;
    }
    Ok(())
}

/// The position of the next edge.
struct Places<R> {
    ends: R,
    row: u32,
    /// The end of this row.
    end: u64,
    next: u64,
    before: u32,
}

fn targets(
    block: &[u8],
    at: u64,
    check: &mut Check,
    rows: &mut Places<impl Read>,
    mut edge: impl FnMut(u32, u32),
) -> Result<(), LoadError> {
    for (at, bytes) in (at..).step_by(4).zip(block.as_chunks().0) {
        let target = u32::from_le_bytes(*bytes);
        check.target(target).map_err(|malformed| LoadError::new(At::Byte(at), malformed.to_string()))?;
        while rows.next == rows.end {
            // The first row's end is the second offset. The file was read up to here, so the offsets exist
            // and ascend.
            let mut end = [0; 8];
            rows.ends.read_exact(&mut end).map_err(|error| LoadError::io(At::Byte(at), &error))?;
            rows.end = u64::from_le_bytes(end);
            rows.row = rows.row.wrapping_add(1);
            rows.before = 0;
        }
        if target < rows.before {
            let what = format!("edge to {target} behind one to {}: edges of a vertex ascend", rows.before);
            return Err(LoadError::new(At::Byte(at), what));
        }
        rows.before = target;
        rows.next += 1;
        edge(rows.row.wrapping_sub(1), target);
    }
    Ok(())
}

/// Returns a hash that identifies the edge (SplitMix64).
const fn mixed(from: u32, to: u32) -> u64 {
    let mut z = ((from as u64) << 32 | to as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl Csr {
    /// Returns the outgoing edges as a list.
    #[must_use]
    pub fn into_edges(self) -> Edges {
        let Rows { offsets, targets, weights } = self.out;
        let mut list = Vec::with_capacity(targets.len());
        let mut left = targets.into_iter();
        for (from, pair) in (0_u32..).zip(offsets.windows(2)) {
            let degree = usize::try_from(pair[1] - pair[0]).expect("edges in memory");
            list.extend(left.by_ref().take(degree).map(|to| (from, to)));
        }
        Edges { vertices: u32::try_from(offsets.len().saturating_sub(1)).expect("32 bits"), list, weights }
    }
}
