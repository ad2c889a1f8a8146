//! Graphs in far memory. The arrays lie in one allocation, or in several where no memory node has room for
//! all of them. Each array begins at a page. A window maps them.
//!
//! Key items: [`Source`], the origin of a graph; [`place`], which loads it block by block; [`with_graph`],
//! which runs a program on it.

use crate::load::binary::{self, Extent, Header, Section, Sink};
use crate::load::{self, At, FileFrom, Format, LoadError};
use crate::{Adjacency, Csr, Far, Graph, Shape};
use farmem::api::ErrorCode;
use farmem::window::{
    Ahead, CHUNK_MAX, Numbers, OBJECTS_MAX, Object, WindowOptions, WindowStats, with_objects,
};
use farmem::{Client, Error, FarMemory, OpenNamed, PAGE_LEN, VirtAddr, Vma};
use farmem_workload::{Failure, Progress, load_or_free, stopped};
use std::borrow::Cow;
use std::cell::RefCell;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The origin of a graph. A file is opened once, so loading, comparing and resuming use the same graph even
/// if the name is reused.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    from: Backing,
}

#[derive(Debug)]
enum Backing {
    /// A file in farmem's own format, streamed into far memory.
    File(File, Header),
    /// Arrays in local memory.
    Local(Csr),
    /// An object that a memory node has loaded, and its arrays in local memory if they were read.
    Object(Header, Option<Csr>),
}

impl Source {
    /// Opens the graph in a file of any [`Format`].
    ///
    /// # Errors
    /// [`Failure`] with the file and the position in it.
    pub fn open(path: &Path, shape: Shape) -> Result<Self, Failure> {
        if Format::of(path) == Format::Binary && shape == Shape::default() {
            let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()), "");
            let file = File::open(path).map_err(failed)?;
            let len = file.metadata().map_err(failed)?.len();
            let header = Header::read(&mut FileFrom { file: &file, at: 0 }, len);
            let header = header.map_err(|error| refused(path, &error))?;
            return Ok(Self { path: path.into(), from: Backing::File(file, header) });
        }
        Ok(Self { path: path.into(), from: Backing::Local(read(path, shape)?) })
    }

    /// Opens the graph in an object by file that its node has loaded. With `local`, all of it is read into
    /// local memory and checked. With `trust`, only the header is read. Otherwise everything is read and
    /// checked.
    ///
    /// # Errors
    /// [`Failure`] with the byte, when the object is not in farmem's own format or is malformed; [`Error`]
    /// when its node does not have it.
    pub fn object(
        client: &mut Client,
        name: &str,
        named: &OpenNamed,
        (local, trust): (bool, bool),
    ) -> Result<Self, Failure> {
        let path = PathBuf::from(format!("object {name}"));
        let client = RefCell::new(client);
        let from = |at| FarReader { client: &client, base: named.vma().base, at, end: named.length() };
        let failed = |error: LoadError| refused(&path, &error);
        let header = Header::read(&mut from(0), named.length()).map_err(failed)?;
        if !Image::of_file(&header.extent).is_aligned() {
            let what = format!(
                "{}: byte 24: {} edges: of a directed graph without weights an odd number is not used where it lies",
                path.display(),
                header.extent.edges
            );
            return Err(Failure::new(
                what,
                "take a graph with one edge more or less, or convert it with --symmetrize",
            ));
        }
        let mut progress = Progress::new("checking the graph");
        let mut watch = |done, total| {
            progress.set(done, total);
            !stopped()
        };
        let here = match (local, trust) {
            (true, _) => Some(binary::arrays(&header, from, &mut watch).map_err(failed)?),
            (false, true) => None,
            (false, false) => {
                binary::stream(&header, from, &mut watch, &mut |_, _, _| Ok(())).map_err(failed)?;
                None
            }
        };
        Ok(Self { path, from: Backing::Object(header, here) })
    }

    /// Returns the graph's size.
    #[must_use]
    pub const fn extent(&self) -> Extent {
        match &self.from {
            Backing::File(_, header) | Backing::Object(header, _) => header.extent,
            Backing::Local(csr) => Extent::of(csr),
        }
    }

    /// Returns the graph's identity. For a graph in local memory, all of it is read to compute it.
    #[must_use]
    pub fn header(&self) -> Header {
        match &self.from {
            Backing::File(_, header) | Backing::Object(header, _) => *header,
            Backing::Local(csr) => Header::of(csr),
        }
    }

    /// Returns all arrays in local memory.
    ///
    /// # Errors
    /// [`Failure`] with the file and the position in it.
    pub fn local(&self) -> Result<Cow<'_, Csr>, Failure> {
        match &self.from {
            Backing::Local(csr) | Backing::Object(_, Some(csr)) => Ok(Cow::Borrowed(csr)),
            Backing::Object(_, None) => {
                let what = format!("{} was not read into local memory", self.path.display());
                Err(Failure::new(what, ""))
            }
            Backing::File(file, header) => {
                let mut progress = Progress::new("reading the graph");
                let read = binary::arrays(header, |at| FileFrom { file, at }, &mut |done, total| {
                    progress.set(done, total);
                    !stopped()
                });
                read.map(Cow::Owned).map_err(|error| refused(&self.path, &error))
            }
        }
    }

    /// Passes all arrays to `sink`, block by block.
    fn blocks(&self, sink: &mut Sink<'_, Error>) -> Result<(), Failure> {
        match &self.from {
            Backing::Local(csr) | Backing::Object(_, Some(csr)) => Ok(binary::sections(csr, sink)?),
            // The object is in far memory already and was checked if requested.
            Backing::Object(_, None) => Ok(()),
            Backing::File(file, header) => {
                let mut failed = None;
                let mut progress = Progress::new("loading the graph");
                let mut told = |done, total| {
                    progress.set(done, total);
                    true
                };
                let read = binary::stream(
                    header,
                    |at| FileFrom { file, at },
                    &mut told,
                    &mut |incoming, section, block| {
                        sink(incoming, section, block).map_err(|error| {
                            failed = Some(error);
                            LoadError::new(At::Whole, "far memory did not take it")
                        })
                    },
                );
                match (failed, read) {
                    (Some(error), _) => Err(error.into()),
                    (None, Err(error)) => Err(refused(&self.path, &error)),
                    (None, Ok(())) => Ok(()),
                }
            }
        }
    }
}

/// A reader of an object in far memory, from one byte to the end.
struct FarReader<'c> {
    client: &'c RefCell<&'c mut Client>,
    base: VirtAddr,
    at: u64,
    end: u64,
}

impl Read for FarReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let count = into.len().min(left);
        if count > 0 {
            let read = self.client.borrow_mut().read(VirtAddr(self.base.0 + self.at), &mut into[..count]);
            read.map_err(std::io::Error::other)?;
        }
        self.at += count as u64;
        Ok(count)
    }
}

/// Reads the graph in a file into local memory.
///
/// # Errors
/// [`Failure`] with the file and the position in it.
pub fn read(path: &Path, shape: Shape) -> Result<Csr, Failure> {
    let mut progress = Progress::new("reading the graph");
    let read = load::read(path, shape, &mut |done, total| {
        progress.set(done, total);
        !stopped()
    });
    read.map_err(|error| refused(path, &error))
}

fn refused(path: &Path, error: &LoadError) -> Failure {
    let remedy = match error.stopped {
        true => "",
        false => "docs/graph.md says which files are graphs; a file's name says what it is",
    };
    Failure::new(format!("{}: {error}", path.display()), remedy)
}

/// The layout of a graph's arrays.
#[derive(Clone, Debug)]
pub struct Image {
    extent: Extent,
    /// The first byte of each array.
    sections: Vec<((bool, Section), u64)>,
    len: u64,
}

impl Image {
    /// Returns the layout of a graph of this size.
    #[must_use]
    pub fn of(extent: &Extent) -> Self {
        let mut len = 0;
        let mut sections = Vec::new();
        // The vertex arrays come first, so that one byte range covers them.
        let (of_vertices, of_edges): (Vec<_>, Vec<_>) =
            extent.sections().partition(|(_, section, _)| *section == Section::Offsets);
        for (incoming, section, bytes) in of_vertices.into_iter().chain(of_edges) {
            sections.push(((incoming, section), len));
            len += bytes.next_multiple_of(PAGE_LEN as u64);
        }
        Self { extent: *extent, sections, len }
    }

    /// Returns the first byte and the length of the vertex arrays: the start offsets of each vertex's edges.
    /// The arrays are small and in constant use, so they suit static caching (SODA V).
    #[must_use]
    pub fn of_vertices(&self) -> (u64, u64) {
        let offsets = self.sections.iter().filter(|((_, section), _)| *section == Section::Offsets);
        let last = offsets.map(|(_, start)| *start).max().unwrap_or(0);
        (0, last + (self.extent.vertices + 1) * 8)
    }

    /// Returns the graph's size.
    #[must_use]
    pub const fn extent(&self) -> Extent {
        self.extent
    }

    /// Returns the bytes of far memory that the arrays occupy.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns false: even a graph without vertices has an offset.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Returns the layout of a file in farmem's own format, with adjacent arrays.
    #[must_use]
    pub fn of_file(extent: &Extent) -> Self {
        let (mut len, mut sections) = (binary::HEADER, Vec::new());
        for (incoming, section, bytes) in extent.sections() {
            sections.push(((incoming, section), len));
            len += bytes;
        }
        Self { extent: *extent, sections, len }
    }

    /// Returns true when each array is aligned for its numbers.
    fn is_aligned(&self) -> bool {
        let mut offsets = self.sections.iter().filter(|((_, section), _)| *section == Section::Offsets);
        offsets.all(|(_, start)| start.is_multiple_of(8))
    }

    fn start(&self, incoming: bool, section: Section) -> u64 {
        let found = self.sections.iter().find(|(name, _)| *name == (incoming, section));
        found.expect("an array of this graph").1
    }

    /// Creates the graph from `long` and `short`, which return the arrays by first byte and length. The
    /// arrays were checked before.
    fn graph<'w>(
        &self,
        long: impl Fn(usize, usize) -> Numbers<'w, u64>,
        short: impl Fn(usize, usize) -> Numbers<'w, u32>,
    ) -> Graph<Far<'w>> {
        let small = |n: u64| usize::try_from(n).expect("its arrays have addresses in this process");
        let Extent { symmetric, weighted, vertices, edges } = self.extent;
        let edges = small(edges);
        let rows = |incoming| {
            let start = |section| small(self.start(incoming, section));
            let weights = weighted.then(|| short(start(Section::Weights), edges));
            let offsets = long(start(Section::Offsets), small(vertices + 1));
            let targets = short(start(Section::Targets), edges);
            Adjacency::checked(offsets, targets, weights, true).expect("lengths of one header")
        };
        if symmetric {
            return Graph::symmetric(rows(false));
        }
        Graph::directed(rows(false), Some(rows(true))).expect("lengths of one header")
    }
}

/// Smallest piece: a memory node with less room is not used for a graph.
pub const PIECE_MIN: u64 = 1 << 20;

const _: () = assert!(PIECE_MIN >= CHUNK_MAX as u64, "pieces lie together in a window");

/// Loads a graph into far memory, and frees the memory again on failure. If no memory node has room for all
/// of it, the graph is cut into consecutive pieces on several nodes.
///
/// # Errors
/// [`Failure`] when the file is malformed, or the rack has no room or does not answer.
pub fn place(client: &mut Client, source: &Source) -> Result<(Vec<Vma>, Image), Failure> {
    let image = Image::of(&source.extent());
    let mut why = None;
    let placed = load_or_free(client, |memory| {
        let pieces = allocate(memory, image.len())?;
        write(memory, &pieces, &image, source).map_err(|failure| {
            why = Some(failure);
            Error::System {
                what: "the graph was not loaded".into(),
                source: std::io::ErrorKind::InvalidData.into(),
            }
        })?;
        Ok(pieces)
    });
    match (placed, why) {
        (Ok(pieces), _) => Ok((pieces, image)),
        (Err(_), Some(why)) => Err(why),
        (Err(error), None) => Err(error.into()),
    }
}

/// Allocates `len` bytes in as few pieces as possible; all but the last one are full.
fn allocate(memory: &mut dyn FarMemory, len: u64) -> Result<Vec<Vma>, Error> {
    let (mut pieces, mut left, mut most) = (Vec::new(), len, u64::MAX);
    while left > 0 {
        let wanted = left.min(most);
        match memory.allocate(wanted) {
            Ok(vma) => {
                left = left.saturating_sub(vma.size);
                pieces.push(vma);
            }
            Err(error) if error.code() == Some(ErrorCode::OutOfMemory) => {
                // An allocation is a power of two, so try the next smaller one.
                let smaller = 1 << (wanted - 1).ilog2();
                if smaller < PIECE_MIN || left.div_ceil(smaller) > (OBJECTS_MAX - pieces.len()) as u64 {
                    return Err(error);
                }
                most = smaller;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(pieces)
}

fn write(memory: &mut dyn FarMemory, pieces: &[Vma], image: &Image, source: &Source) -> Result<(), Failure> {
    let mut next: Option<((bool, Section), u64)> = None;
    source.blocks(&mut |incoming, section, block| {
        let same = next.filter(|(name, _)| *name == (incoming, section));
        let at = same.map_or_else(|| image.start(incoming, section), |(_, at)| at);
        next = Some(((incoming, section), at + block.len() as u64));
        write_at(memory, pieces, at, block)
    })
}

/// Writes bytes of the image, which may span several pieces.
fn write_at(memory: &mut dyn FarMemory, pieces: &[Vma], at: u64, mut block: &[u8]) -> Result<(), Error> {
    let mut skip = at;
    for piece in pieces {
        let Some(room) = piece.size.checked_sub(skip).filter(|&room| room > 0) else {
            skip -= piece.size;
            continue;
        };
        let count = block.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let (here, rest) = block.split_at(count);
        memory.write(VirtAddr(piece.base.0 + skip), here)?;
        (block, skip) = (rest, 0);
        if block.is_empty() {
            break;
        }
    }
    assert!(block.is_empty(), "the pieces have all of the image");
    Ok(())
}

/// Chunks of 64 KiB, the page size of a DPU. Without a DPU, chunks are also faster than growing streams of
/// single pages, although they transfer more bytes (`server` and `server.ahead` of `farmem bench soda`).
pub const AHEAD: Ahead = Ahead::Group(16);

/// Runs `program` on the graph in the pieces from [`place`], through a window with at most `local` bytes in
/// local memory.
///
/// # Errors
/// The errors of [`with_objects`].
///
/// # Panics
/// Panics when the pieces are other allocations and not adjacent.
pub fn with_graph<R: Send>(
    client: &mut Client,
    pieces: &[Vma],
    image: &Image,
    options: WindowOptions,
    program: impl FnOnce(Graph<Far<'_>>) -> R + Send,
) -> Result<(R, WindowStats), Error> {
    let objects: Vec<Object> = pieces.iter().map(Object::new).collect();
    with_objects(client, &objects, options, |objects| {
        let memory = objects.joined().expect("all pieces but the last one are whole chunks");
        let long = |at, count| memory.numbers(at, count);
        program(image.graph(long, |at, count| memory.numbers(at, count)))
    })
}

/// Opens the graph in a mapped file in farmem's own format. `long` and `short` give that many numbers from a
/// byte of the mapping on. The arrays are not checked, because that would read all of them.
///
/// # Errors
/// [`Failure`] when the header is malformed, or the arrays are not aligned, as with an odd number of edges.
pub fn mapped_graph<'m>(
    path: &Path,
    file: &File,
    long: impl Fn(usize, usize) -> Numbers<'m, u64>,
    short: impl Fn(usize, usize) -> Numbers<'m, u32>,
) -> Result<Graph<Far<'m>>, Failure> {
    let len = file.metadata().map_err(|error| refused(path, &LoadError::whole(&error)))?.len();
    let header = Header::read(&mut FileFrom { file, at: 0 }, len).map_err(|error| refused(path, &error))?;
    let extent = header.extent;
    if !Image::of_file(&extent).is_aligned() {
        let what = format!("{}: {} edges: an odd number cannot be mapped", path.display(), extent.edges);
        return Err(Failure::new(what, "take a graph with one edge more or less"));
    }
    Ok(Image::of_file(&extent).graph(long, short))
}
