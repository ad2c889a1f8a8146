//! A graph in far memory: its arrays in one allocation, or in several where no memory node has room for all of it, each array from a page's beginning on; and a window
//! on them.
//!
//! Key items: [`Source`], where a graph comes from; [`place`], which loads it block by block; [`with_graph`], which has it used.

use crate::load::binary::{self, Extent, Header, Section, Sink};
use crate::load::{self, At, FileFrom, Format, LoadError};
use crate::{Adjacency, Csr, Far, Graph, Shape};
use farmem::api::ErrorCode;
use farmem::raw::MappedFile;
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

/// Where a graph comes from. A file is opened once: what is behind its name may change, what is loaded, compared and resumed is one graph.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    from: Origin,
}

#[derive(Debug)]
enum Origin {
    /// A file in farmem's own form: it goes into far memory as it is read.
    File(File, Header),
    /// Local memory.
    Here(Csr),
    /// An object that a memory node has loaded, and what was read of it into local memory.
    Object(Header, Option<Csr>),
}

impl Source {
    /// The graph in a file of any [`Format`].
    ///
    /// # Errors
    /// [`Failure`] with the file and the place in it.
    pub fn open(path: &Path, shape: Shape) -> Result<Self, Failure> {
        if Format::of(path) == Format::Binary && shape == Shape::default() {
            let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()), "");
            let file = File::open(path).map_err(failed)?;
            let len = file.metadata().map_err(failed)?.len();
            let header = Header::read(&mut FileFrom { file: &file, at: 0 }, len);
            let header = header.map_err(|error| refused(path, &error))?;
            return Ok(Self { path: path.into(), from: Origin::File(file, header) });
        }
        Ok(Self { path: path.into(), from: Origin::Here(read(path, shape)?) })
    }

    /// The graph in an object by file, which its node has loaded. With `local` all of it is read into local memory, and so checked; with `trust` nothing but the header is
    /// read; else everything is read, and checked.
    ///
    /// # Errors
    /// [`Failure`] with the byte, when it is no file in farmem's own form, or malformed; [`Error`] when its node does not have it.
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
        Ok(Self { path, from: Origin::Object(header, here) })
    }

    /// How large it is.
    #[must_use]
    pub const fn extent(&self) -> Extent {
        match &self.from {
            Origin::File(_, header) | Origin::Object(header, _) => header.extent,
            Origin::Here(csr) => Extent::of(csr),
        }
    }

    /// What tells it from others. Of a graph in local memory all is read for that.
    #[must_use]
    pub fn header(&self) -> Header {
        match &self.from {
            Origin::File(_, header) | Origin::Object(header, _) => *header,
            Origin::Here(csr) => Header::of(csr),
        }
    }

    /// All of it in local memory.
    ///
    /// # Errors
    /// [`Failure`] with the file and the place in it.
    pub fn local(&self) -> Result<Cow<'_, Csr>, Failure> {
        match &self.from {
            Origin::Here(csr) | Origin::Object(_, Some(csr)) => Ok(Cow::Borrowed(csr)),
            Origin::Object(_, None) => {
                let what = format!("{} was not read into local memory", self.path.display());
                Err(Failure::new(what, ""))
            }
            Origin::File(file, header) => {
                let mut progress = Progress::new("reading the graph");
                let read = binary::arrays(header, |at| FileFrom { file, at }, &mut |done, total| {
                    progress.set(done, total);
                    !stopped()
                });
                read.map(Cow::Owned).map_err(|error| refused(&self.path, &error))
            }
        }
    }

    /// Gives all of it to `sink`, block by block.
    fn blocks(&self, sink: &mut Sink<'_, Error>) -> Result<(), Failure> {
        match &self.from {
            Origin::Here(csr) | Origin::Object(_, Some(csr)) => Ok(binary::sections(csr, sink)?),
            // It is in far memory, and was read from there if it was.
            Origin::Object(_, None) => Ok(()),
            Origin::File(file, header) => {
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

/// Reads far memory from a byte of an object on, to its end.
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

/// The graph in a file, in local memory.
///
/// # Errors
/// [`Failure`] with the file and the place in it.
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

/// Where each array lies.
#[derive(Clone, Debug)]
pub struct Image {
    extent: Extent,
    /// Of each array its first byte.
    sections: Vec<((bool, Section), u64)>,
    len: u64,
}

impl Image {
    /// Of such a graph.
    #[must_use]
    pub fn of(extent: &Extent) -> Self {
        let mut len = 0;
        let mut sections = Vec::new();
        // What belongs to vertices first, so that one range of bytes has all of it.
        let (of_vertices, of_edges): (Vec<_>, Vec<_>) =
            extent.sections().partition(|(_, section, _)| *section == Section::Offsets);
        for (incoming, section, bytes) in of_vertices.into_iter().chain(of_edges) {
            sections.push(((incoming, section), len));
            len += bytes.next_multiple_of(PAGE_LEN as u64);
        }
        Self { extent: *extent, sections, len }
    }

    /// The bytes that belong to vertices, as the first one and how many: where the edges of each begin. Small, and wanted all the time: what is cached
    /// statically (SODA V).
    #[must_use]
    pub fn of_vertices(&self) -> (u64, u64) {
        let offsets = self.sections.iter().filter(|((_, section), _)| *section == Section::Offsets);
        let last = offsets.map(|(_, start)| *start).max().unwrap_or(0);
        (0, last + (self.extent.vertices + 1) * 8)
    }

    /// How large the graph is.
    #[must_use]
    pub const fn extent(&self) -> Extent {
        self.extent
    }

    /// Bytes of far memory that it takes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// False: even a graph without vertices has an offset.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Of a file in farmem's own form: one array behind the other.
    #[must_use]
    pub fn of_file(extent: &Extent) -> Self {
        let (mut len, mut sections) = (binary::HEADER, Vec::new());
        for (incoming, section, bytes) in extent.sections() {
            sections.push(((incoming, section), len));
            len += bytes;
        }
        Self { extent: *extent, sections, len }
    }

    /// Each array begins where its numbers are aligned.
    fn is_aligned(&self) -> bool {
        let mut offsets = self.sections.iter().filter(|((_, section), _)| *section == Section::Offsets);
        offsets.all(|(_, start)| start.is_multiple_of(8))
    }

    fn start(&self, incoming: bool, section: Section) -> u64 {
        let found = self.sections.iter().find(|(name, _)| *name == (incoming, section));
        found.expect("an array of this graph").1
    }

    /// The graph whose arrays `offsets` and `numbers` have, by their first byte and length. They were checked before.
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

/// Bytes of a piece at least: no memory node that has less room is asked for some of a graph.
pub const PIECE_MIN: u64 = 1 << 20;

const _: () = assert!(PIECE_MIN >= CHUNK_MAX as u64, "pieces lie together in a window");

/// Loads a graph into far memory, and frees what it took when that fails. Where no memory node has room for all of it, it is cut into pieces, on several: one lies behind
/// the other.
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

/// Allocations that have `len` bytes together, as few as there is room for; all but the last one are full.
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
                // The largest power of two below: an allocation is one.
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

/// Writes bytes of the image, which may be of several pieces.
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

/// Chunks of 64 KiB: what a DPU has as its pages. Straight from the memory nodes they are faster, too, than single pages of which a stream has more each
/// time, although they are more bytes (`server` and `server.ahead` of `farmem bench soda`).
pub const AHEAD: Ahead = Ahead::Group(16);

/// Has `program` use the graph whose pieces [`place`] made, through a window with at most `local` bytes of it here.
///
/// # Errors
/// What [`with_objects`] says.
///
/// # Panics
/// When these are other allocations, and do not lie together.
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

/// The graph in a file in farmem's own form that is mapped. Its arrays are not checked: that would read all of them.
///
/// # Errors
/// [`Failure`] when the header is malformed, or the arrays are not where their numbers are aligned: with an odd number of edges.
pub fn mapped_graph<'m>(path: &Path, file: &File, mapped: &'m MappedFile) -> Result<Graph<Far<'m>>, Failure> {
    let len = file.metadata().map_err(|error| refused(path, &LoadError::whole(&error)))?.len();
    let header = Header::read(&mut FileFrom { file, at: 0 }, len).map_err(|error| refused(path, &error))?;
    let extent = header.extent;
    if !Image::of_file(&extent).is_aligned() {
        let what = format!("{}: {} edges: an odd number cannot be mapped", path.display(), extent.edges);
        return Err(Failure::new(what, "take a graph with one edge more or less"));
    }
    let long = |at, count| mapped.numbers(at, count);
    Ok(Image::of_file(&extent).graph(long, |at, count| mapped.numbers(at, count)))
}
