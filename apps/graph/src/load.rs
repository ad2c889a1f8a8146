//! Graphs from files, and into them.
//!
//! Key items: [`read`], which goes by a file's name; [`LoadError`], with the file, the place in it and what was expected there. A reader allocates what the file has shown
//! to be there, never what it says: sizes are held against the file's length, or grow with what was read.

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
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Where in a file something is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// A line, from 1 on.
    Line(u64),
    /// A byte, from 0 on.
    Byte(u64),
    /// A row of a table, from 0 on.
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

/// Why a file is no graph.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{at}{what}")]
pub struct LoadError {
    /// Where.
    pub at: At,
    /// What is there, and what was expected.
    pub what: String,
    /// Whether nothing is wrong, and who was told of the progress ended the reading.
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

/// The reading was ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("stopped before all of it was read")]
struct Stopped;

impl From<Malformed> for LoadError {
    fn from(malformed: Malformed) -> Self {
        Self::new(At::Whole, malformed.to_string())
    }
}

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// An edge a line, as SNAP's.
    Text,
    /// Matrix Market, coordinates.
    MatrixMarket,
    /// A table of edges.
    Parquet,
    /// GAPBS's serialized graph; with weights or without.
    Gapbs {
        /// Whether each edge has one.
        weighted: bool,
    },
    /// farmem's arrays ([`binary`]).
    Binary,
}

impl Format {
    /// By the ending of the file's name; any other is text.
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

/// Told how much of how much is read, in bytes, of a table in rows; false ends the reading.
pub type Progress<'a> = dyn FnMut(u64, u64) -> bool + 'a;

/// Reads a graph in any [`Format`] into local memory. `shape` is what is made of edges; where the file says that its edges have no direction, they have none.
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

/// A graph that was read as arrays, as it is wanted.
fn shaped(csr: Csr, shape: Shape) -> Result<Csr, LoadError> {
    if (!shape.symmetric || csr.symmetric) && !shape.simple {
        return Ok(csr);
    }
    let symmetric = shape.symmetric || csr.symmetric;
    Ok(csr.into_edges().build(Shape { symmetric, ..shape })?)
}

/// Counts what is read.
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

/// A file from a byte on. Several of one file do not disturb each other, and none opens it anew.
#[derive(Clone, Copy, Debug)]
pub struct FileFrom<'a> {
    /// The file.
    pub file: &'a File,
    /// The byte that is read next.
    pub at: u64,
}

impl Read for FileFrom<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(into, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Lines of a text, of which none is long.
struct Lines<R> {
    reader: R,
    line: Vec<u8>,
    number: u64,
}

/// Bytes of a line at most.
const LINE_MAX: u64 = 4096;

impl<R: BufRead> Lines<R> {
    const fn new(reader: R) -> Self {
        Self { reader, line: Vec::new(), number: 0 }
    }

    const fn at(&self) -> At {
        At::Line(self.number)
    }

    /// The next line without spaces around it.
    fn next(&mut self) -> Result<Option<&str>, LoadError> {
        self.line.clear();
        self.number += 1;
        let at = self.at();
        let read = (&mut self.reader).take(LINE_MAX + 1).read_until(b'\n', &mut self.line);
        if read.map_err(|error| LoadError::io(at, &error))? == 0 {
            return Ok(None);
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

/// A number of a line.
fn number(word: Option<&str>, what: &str, most: u64, at: At) -> Result<u64, LoadError> {
    let Some(word) = word else { return Err(LoadError::new(at, format!("{what} is missing"))) };
    word.parse().ok().filter(|&number| number <= most).ok_or_else(|| {
        LoadError::new(at, format!("{what} is {word:?}, expected a whole number from 0 to {most}"))
    })
}

/// Vertices for each edge at most, beyond a number that costs nothing: a graph with fewer edges has wrong numbers in it, and its arrays would be
/// larger than anything the file shows.
const VERTICES_PER_EDGE: u64 = 64;
const VERTICES_FREE: u64 = 1 << 20;

/// The number of vertices, where the edges make it likely.
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
