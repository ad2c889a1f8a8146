//! One buffer for all objects of a program: where each object is in the window, and which chunk of it a page is in (SODA III).
//!
//! Key types: [`Object`], what a program has open; [`Laid`], where all of them are. The page cache counts in *chunks*: what is fetched, evicted and written back at
//! once, 64 KiB in the paper. The objects lie in one window, one behind the other, each from the beginning of a chunk on; the last chunk of an object may be short.

use super::{Memory, WindowOptions};
use farmem_client::api::OpenMode;
use farmem_client::{Error, OpenNamed, Vma};
use farmem_link::OpenError;
use farmem_paging::{Advice, Key, Layout, Source};
use farmem_uffd::Ring;
use farmem_wire::VirtAddr;
use farmem_wire::message::PAGE_LEN;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;

/// Bytes of a chunk that a buffer has unless it is told otherwise (SODA V).
pub const CHUNK: u32 = 64 << 10;
/// Bytes of a chunk at least: a page.
pub const CHUNK_MIN: u32 = 4 << 10;
/// Bytes of a chunk at most.
pub const CHUNK_MAX: u32 = 256 << 10;
const _: () = assert!(CHUNK_MIN as usize == PAGE_LEN, "a chunk has whole pages");

/// Objects of one buffer at most.
pub const OBJECTS_MAX: usize = 4096;

/// An object that a program is to have in its buffer.
#[derive(Clone, Debug)]
pub struct Object {
    pub(super) vma: Vma,
    pub(super) read_only: bool,
}

impl Object {
    /// An allocation that the program reads and writes. One buffer at a time may write it.
    #[must_use]
    pub fn new(vma: &Vma) -> Self {
        Self { vma: *vma, read_only: false }
    }

    /// This object, read-only to the program: a store to it is a SIGBUS, and the buffer ends with [`Error::ReadOnly`].
    #[must_use]
    pub const fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// Memory with a name, in the mode in which it is open (PROTOCOL 8.53): what is open to read is only read.
    ///
    /// # Errors
    /// [`Error::Open`] for what is open as memory that is shared, which no buffer may cache.
    pub fn named(named: &OpenNamed) -> Result<Self, Error> {
        match named.mode() {
            OpenMode::Write => Ok(Self::new(named.vma())),
            OpenMode::Read => Ok(Self::new(named.vma()).read_only()),
            mode @ OpenMode::Shared => {
                let remedy = "open it to read or to write: what is shared others may write meanwhile".into();
                Err(OpenError::Setting { setting: "mode of an object", value: mode.to_string(), remedy }
                    .into())
            }
        }
    }
}

/// A program's view of its objects.
#[derive(Clone, Copy, Debug)]
pub struct Objects<'w> {
    ring: &'w Ring<'w>,
    laid: &'w Laid,
    hints: &'w Hints,
}

/// Ranges of chunks that a program has said something of, and the cache was not told yet.
pub(super) type Hints = Mutex<VecDeque<(Range<u64>, Advice)>>;

/// Hints that are kept, at most.
const HINTS_MAX: usize = 4096;

impl<'w> Objects<'w> {
    pub(super) const fn new(ring: &'w Ring<'w>, laid: &'w Laid, hints: &'w Hints) -> Self {
        Self { ring, laid, hints }
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.laid.extents.len()
    }

    /// False: a buffer has an object.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The object of this number, in the order in which they were given.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn get(&self, number: usize) -> Memory<'w> {
        let extent = &self.laid.extents[number];
        self.ring.window().memory().part(small(extent.at), small(extent.bytes))
    }

    /// All of them as one, in the order in which they were given; `None` when there are gaps, since one that is not the last ends within a chunk.
    #[must_use]
    pub fn joined(&self) -> Option<Memory<'w>> {
        let ends = |pair: &[Extent]| pair[0].at + pair[0].bytes == pair[1].at;
        let last = self.laid.extents.last().expect("a buffer has an object");
        let whole = self.laid.extents.windows(2).all(ends);
        whole.then(|| self.ring.window().memory().part(0, small(last.at + last.bytes)))
    }
}

impl Objects<'_> {
    /// Says how the program uses bytes of an object, or will, as madvise(2) does; what they hold stays the same. Returns when the thread that serves the window has
    /// heard; what follows takes its time. Advice is for whole chunks: [`Advice::Cold`] and [`Advice::DontNeed`] are for those that lie in the range, all other advice
    /// for those that have a byte of it. Ranges beyond as many as are kept count in [`WindowStats::unadvised`](super::WindowStats::unadvised).
    ///
    /// # Errors
    /// [`Error::Open`] for bytes that are not the object's, an object that there is not, or when the thread that serves is far behind.
    ///
    /// # Panics
    /// When a thread panicked while it gave advice.
    pub fn advise(&self, object: usize, bytes: Range<u64>, advice: Advice) -> Result<(), Error> {
        let wrong = |value: String, remedy: String| {
            Err(OpenError::Setting { setting: "advice", value, remedy }.into())
        };
        let Some(extent) = self.laid.extents.get(object) else {
            return wrong(format!("for object {object}"), format!("there are {}, from 0 on", self.len()));
        };
        if bytes.start > bytes.end || bytes.end > extent.bytes {
            let remedy = format!("the object has {} bytes", extent.bytes);
            return wrong(format!("for bytes {}..{}", bytes.start, bytes.end), remedy);
        }
        let chunks = self.laid.chunks_of(extent, &bytes, matches!(advice, Advice::Cold | Advice::DontNeed));
        if chunks.is_empty() {
            return Ok(());
        }
        {
            let mut hints = self.hints.lock().expect("no thread panics with it");
            if hints.len() >= HINTS_MAX {
                let remedy = "give less advice, for longer ranges".into();
                return wrong(format!("{HINTS_MAX} ranges at once"), remedy);
            }
            hints.push_back((chunks, advice));
        }
        self.ring.nudge();
        Ok(())
    }
}

/// Where an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    /// Its first byte in far memory.
    pub(super) base: VirtAddr,
    pub(super) bytes: u64,
    /// Its first byte in the window, where a chunk begins.
    pub(super) at: u64,
    pub(super) read_only: bool,
}

/// Where all objects of a buffer are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Laid {
    pub(super) chunk_len: u64,
    /// In order of [`Extent::at`].
    extents: Vec<Extent>,
    /// Their numbers, in order of [`Extent::base`].
    by_base: Vec<usize>,
}

impl Laid {
    /// # Errors
    /// [`Error::Open`] for chunks that cannot be, and for no objects or too many.
    pub(super) fn of(objects: &[Object], options: &WindowOptions) -> Result<Self, Error> {
        let wrong = |setting, value: String, remedy: String| {
            Error::from(OpenError::Setting { setting, value, remedy })
        };
        let chunk = options.chunk;
        if !chunk.is_power_of_two() || !(CHUNK_MIN..=CHUNK_MAX).contains(&chunk) {
            let remedy = format!("a chunk is a power of two of {CHUNK_MIN} to {CHUNK_MAX} bytes");
            return Err(wrong("chunk", format!("{chunk} bytes"), remedy));
        }
        if !(1..=OBJECTS_MAX).contains(&objects.len()) {
            let remedy = format!("a buffer has 1 to {OBJECTS_MAX} objects");
            return Err(wrong("objects", objects.len().to_string(), remedy));
        }
        let chunk_len = u64::from(chunk);
        let mut at: u64 = 0;
        let mut extents = Vec::with_capacity(objects.len());
        for Object { vma, read_only } in objects {
            let read_only = *read_only || options.read_only;
            extents.push(Extent { base: vma.base, bytes: vma.size, at, read_only });
            let end = at.checked_add(vma.size).and_then(|end| end.checked_next_multiple_of(chunk_len));
            let too_long =
                || wrong("objects", "more than 2^64 bytes".into(), "map fewer of them at once".into());
            at = end.ok_or_else(too_long)?;
        }
        let mut by_base: Vec<usize> = (0..extents.len()).collect();
        by_base.sort_unstable_by_key(|&number| extents[number].base);
        Ok(Self { chunk_len, extents, by_base })
    }

    /// All of them, in order of their places in the window.
    pub(super) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The object that a byte of far memory is of, by number.
    ///
    /// # Panics
    /// When it is of none.
    pub(super) fn object_at(&self, addr: VirtAddr) -> (usize, &Extent) {
        let behind = self.by_base.partition_point(|&number| self.extents[number].base <= addr);
        let number = self.by_base[behind.checked_sub(1).expect("a byte of an object")];
        let extent = &self.extents[number];
        assert!(addr.0 - extent.base.0 < extent.bytes, "{addr} is of an object");
        (number, extent)
    }

    /// A part of the window, as its first byte and how many: the parts of objects that it has, by object, first byte in it and bytes.
    pub(super) fn of_objects(&self, (from, len): (u64, u64)) -> impl Iterator<Item = (usize, u64, u64)> {
        let to = from.saturating_add(len);
        self.extents.iter().enumerate().filter_map(move |(number, extent)| {
            let (first, end) = (from.max(extent.at), to.min(extent.at + extent.bytes));
            (first < end).then(|| (number, first - extent.at, end - first))
        })
    }

    /// Bytes of the window.
    pub(super) fn len(&self) -> u64 {
        let last = self.extents.last().expect("a buffer has an object");
        last.at + last.bytes
    }

    pub(super) fn chunks(&self) -> u64 {
        self.len().div_ceil(self.chunk_len)
    }

    /// The object that a byte of the window is of.
    pub(super) fn extent_of(&self, offset: u64) -> Option<(u64, &Extent)> {
        let number = self.extents.partition_point(|extent| extent.at <= offset).checked_sub(1)?;
        let extent = &self.extents[number];
        (offset - extent.at < extent.bytes).then_some((number as u64, extent))
    }

    fn of_chunk(&self, chunk: u64) -> Option<(u64, &Extent)> {
        self.extent_of(chunk.checked_mul(self.chunk_len)?)
    }

    /// The chunks of a part of an object: those that lie in it, or all that have a byte of it.
    fn chunks_of(&self, extent: &Extent, bytes: &Range<u64>, inside: bool) -> Range<u64> {
        if bytes.is_empty() {
            return 0..0;
        }
        let (start, end) = (extent.at + bytes.start, extent.at + bytes.end);
        // The last chunk of an object ends with it.
        let end = if bytes.end == extent.bytes { end.next_multiple_of(self.chunk_len) } else { end };
        if inside {
            start.div_ceil(self.chunk_len)..end / self.chunk_len
        } else {
            start / self.chunk_len..end.div_ceil(self.chunk_len)
        }
    }

    /// Where the bytes of chunks of one object that lie together are in far memory, and how many there are.
    pub(super) fn far(&self, first: u64, count: u64) -> (VirtAddr, u64) {
        let (_, extent) = self.of_chunk(first).expect("a chunk of an object");
        let from = first * self.chunk_len - extent.at;
        let to = (first + count) * self.chunk_len - extent.at;
        assert!(to < extent.bytes + self.chunk_len, "{count} chunks from {first} are of one object");
        (VirtAddr(extent.base.0 + from), to.min(extent.bytes) - from)
    }

    /// Chunks that lie together in the window, cut where one object ends and the next begins: the first of each part, and how many it has.
    pub(super) fn parts(&self, first: u64, count: u64) -> impl Iterator<Item = (u64, u64)> {
        let (mut at, end) = (first, first + count);
        core::iter::from_fn(move || {
            let from = at;
            at = self.around(Key { space: 0, page: from }).end.min(end);
            (from < end).then_some((from, at - from))
        })
    }
}

impl Layout for Laid {
    fn source(&self, key: Key) -> Source {
        // Chunks of two objects never follow each other in far memory.
        self.of_chunk(key.page).map_or(Source::Elsewhere, |(number, _)| Source::Far(key.page + number))
    }

    fn home(&self, key: Key) -> Option<u64> {
        self.of_chunk(key.page).map(|(number, _)| key.page + number)
    }

    fn around(&self, key: Key) -> Range<u64> {
        self.of_chunk(key.page).map_or(key.page..key.page + 1, |(_, extent)| {
            extent.at / self.chunk_len..(extent.at + extent.bytes).div_ceil(self.chunk_len)
        })
    }
}

fn small(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a window's bytes have addresses here")
}

#[cfg(test)]
mod tests;
