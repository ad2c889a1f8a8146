//! Graph files: reading and writing.
//!
//! Key items: [`read`], which chooses the format by a file's name; [`LoadError`], with the file, the position
//! in it and the expectation. A reader allocates only what the file has proven to contain: stated sizes are
//! checked against the file's length, or memory grows with the data read.

pub mod binary;
mod gapbs;
mod matrix_market;
mod parquet;
mod text;

pub use gapbs::read_gapbs;
pub use matrix_market::read_matrix_market;
pub use parquet::read_parquet;
pub use text::read_edge_list;

use crate::{Csr, Edges, Malformed, Shape};
use farmem_workload::other_encoding;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// The position of an error in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// A line, counted from 1.
    Line(u64),
    /// A byte, counted from 0.
    Byte(u64),
    /// A row of a table, counted from 0.
    Row(u64),
    /// The file as a whole.
    Whole,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}: "),
            Self::Byte(byte) => write!(f, "byte {byte}: "),
            Self::Row(row) => write!(f, "row {row}: "),
            Self::Whole => Ok(()),
        }
    }
}

/// The reason why a file is no graph.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{at}{what}")]
pub struct LoadError {
    /// The position.
    pub at: At,
    /// The contents found, and the expected ones.
    pub what: String,
    /// True when nothing is wrong and the progress callback ended the reading.
    pub stopped: bool,
}

impl LoadError {
    pub(crate) fn new(at: At, what: impl Into<String>) -> Self {
        Self { at, what: what.into(), stopped: false }
    }

    pub(crate) fn stopped() -> Self {
        Self { stopped: true, ..Self::new(At::Whole, Stopped.to_string()) }
    }

    pub(crate) fn whole(error: &io::Error) -> Self {
        Self::io(At::Whole, error)
    }

    fn io(at: At, error: &io::Error) -> Self {
        if error.get_ref().is_some_and(|inner| inner.is::<Stopped>()) {
            return Self::stopped();
        }
        let what = match error.kind() {
            io::ErrorKind::UnexpectedEof => "the file is cut short here".into(),
            _ => format!("cannot be read: {error}"),
        };
        Self::new(at, what)
    }
}

/// The progress callback ended the reading.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("stopped before all of it was read")]
struct Stopped;

impl From<Malformed> for LoadError {
    fn from(malformed: Malformed) -> Self {
        Self::new(At::Whole, malformed.to_string())
    }
}

/// The format of a graph file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// One edge per line, like SNAP's files.
    Text,
    /// Matrix Market, coordinates.
    MatrixMarket,
    /// A table of edges.
    Parquet,
    /// GAPBS's serialized graph, with weights or without.
    Gapbs {
        /// True when each edge has a weight.
        weighted: bool,
    },
    /// farmem's own format ([`binary`]).
    Binary,
}

impl Format {
    /// Returns the format for a file name's extension; any other is text.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("mtx") => Self::MatrixMarket,
            Some("parquet") => Self::Parquet,
            Some("sg") => Self::Gapbs { weighted: false },
            Some("wsg") => Self::Gapbs { weighted: true },
            Some("fmg") => Self::Binary,
            _ => Self::Text,
        }
    }
}

/// A progress callback with the bytes (rows of a table) read and the total. Returning false ends the reading.
pub type Progress<'a> = dyn FnMut(u64, u64) -> bool + 'a;

/// Reads a graph in any [`Format`] into local memory. `shape` applies to the edges; a file may declare its
/// edges symmetric itself.
///
/// # Errors
/// [`LoadError`].
pub fn read(path: &Path, shape: Shape, progress: &mut Progress<'_>) -> Result<Csr, LoadError> {
    let whole = |error: io::Error| LoadError::whole(&error);
    let file = File::open(path).map_err(whole)?;
    let len = file.metadata().map_err(whole)?.len();
    if Format::of(path) == Format::Binary {
        let csr = binary::read(|at| FileFrom { file: &file, at }, len, progress)?;
        return shaped(csr, shape);
    }
    let mut counted = BufReader::with_capacity(1 << 16, Counted { inner: file, read: 0, len, progress });
    let csr = match Format::of(path) {
        Format::Text => read_edge_list(counted)?.build(shape)?,
        Format::MatrixMarket => {
            let (edges, symmetric) = read_matrix_market(counted)?;
            edges.build(Shape { symmetric: symmetric || shape.symmetric, ..shape })?
        }
        Format::Parquet => {
            let Counted { inner, progress, .. } = counted.into_inner();
            read_parquet(inner, progress)?.build(shape)?
        }
        Format::Gapbs { weighted } => return shaped(read_gapbs(&mut counted, len, weighted)?, shape),
        Format::Binary => unreachable!("read above"),
    };
    Ok(csr)
}

/// Applies `shape` to a graph that was read as arrays.
fn shaped(csr: Csr, shape: Shape) -> Result<Csr, LoadError> {
    if (!shape.symmetric || csr.symmetric) && !shape.simple {
        return Ok(csr);
    }
    let symmetric = shape.symmetric || csr.symmetric;
    Ok(csr.into_edges().build(Shape { symmetric, ..shape })?)
}

/// A reader that counts and reports the bytes read.
struct Counted<'a, 'p> {
    inner: File,
    read: u64,
    len: u64,
    progress: &'a mut Progress<'p>,
}

impl Read for Counted<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.read += count as u64;
        if (self.progress)(self.read, self.len) {
            return Ok(count);
        }
        Err(io::Error::other(Stopped))
    }
}

/// A reader of a file from a byte on. Several readers of one file are independent and do not reopen it.
#[derive(Clone, Copy, Debug)]
pub struct FileFrom<'a> {
    /// The file.
    pub file: &'a File,
    /// The next byte to read.
    pub at: u64,
}

impl Read for FileFrom<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(into, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Lines of a text, with bounded length.
struct Lines<R> {
    reader: R,
    line: Vec<u8>,
    number: u64,
}

/// The mark with which some programs begin a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Bound on the bytes of a line.
const LINE_MAX: u64 = 4096;

impl<R: BufRead> Lines<R> {
    const fn new(reader: R) -> Self {
        Self { reader, line: Vec::new(), number: 0 }
    }

    const fn at(&self) -> At {
        At::Line(self.number)
    }

    /// Returns the next line without surrounding spaces.
    fn next(&mut self) -> Result<Option<&str>, LoadError> {
        self.line.clear();
        self.number += 1;
        let at = self.at();
        let read = (&mut self.reader).take(LINE_MAX + 1).read_until(b'\n', &mut self.line);
        if read.map_err(|error| LoadError::io(at, &error))? == 0 {
            return Ok(None);
        }
        if self.number == 1 {
            if let Some(encoding) = other_encoding(&self.line) {
                let what = format!("the file is {} text, expected UTF-8: {}", encoding.name, encoding.remedy);
                return Err(LoadError::new(At::Whole, what));
            }
            if self.line.starts_with(BYTE_ORDER_MARK) {
                self.line.drain(..BYTE_ORDER_MARK.len());
            }
        }
        if self.line.len() as u64 > LINE_MAX {
            return Err(LoadError::new(
                at,
                format!("longer than {LINE_MAX} bytes: this is no list of edges"),
            ));
        }
        let text = std::str::from_utf8(&self.line).map_err(|_| LoadError::new(at, "is no text"))?;
        Ok(Some(text.trim()))
    }
}

/// Parses a number of a line.
fn number(word: Option<&str>, what: &str, most: u64, at: At) -> Result<u64, LoadError> {
    let Some(word) = word else { return Err(LoadError::new(at, format!("{what} is missing"))) };
    word.parse().ok().filter(|&number| number <= most).ok_or_else(|| {
        LoadError::new(at, format!("{what} is {word:?}, expected a whole number from 0 to {most}"))
    })
}

/// Bound on the vertices per edge, beyond a free minimum: a graph with fewer edges has invalid numbers, and
/// its arrays would exceed the file's evidence.
const VERTICES_PER_EDGE: u64 = 64;
const VERTICES_FREE: u64 = 1 << 20;

/// Checks the number of vertices against the edges.
fn vertices(count: u64, edges: &Edges, at: At) -> Result<u32, LoadError> {
    let most = VERTICES_FREE.max((edges.list.len() as u64).saturating_mul(VERTICES_PER_EDGE));
    let few = u32::try_from(count).ok().filter(|_| count <= most);
    few.ok_or_else(|| {
        let edges = edges.list.len();
        let what = format!(
            "{count} vertices for {edges} edges, expected at most {most}: number the vertices from 0 on without large gaps"
        );
        LoadError::new(at, what)
    })
}
