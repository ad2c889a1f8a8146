//! One buffer for all objects of a program: the position of each object in the window, and the chunk of each
//! page (SODA III).
//!
//! Key types: [`Object`], an object that a program has open; [`Laid`], the positions of all objects. The page
//! cache counts in *chunks*, the unit of fetches, evictions and write-backs: 64 KiB in the paper. The objects
//! are in one window, one after the other, each at the start of a chunk. The last chunk of an object may be
//! short.

use super::Memory;
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

/// Default length of a buffer's chunk in bytes (SODA V).
pub const CHUNK: u32 = 64 << 10;
/// Minimum length of a chunk in bytes: a page.
pub const CHUNK_MIN: u32 = 4 << 10;
/// Maximum length of a chunk in bytes.
pub const CHUNK_MAX: u32 = 256 << 10;
const _: () = assert!(CHUNK_MIN as usize == PAGE_LEN, "a chunk has whole pages");

/// Maximum number of objects of one buffer.
pub const OBJECTS_MAX: usize = 4096;

/// An object for a program's buffer.
#[derive(Clone, Debug)]
pub struct Object {
    pub(super) vma: Vma,
    pub(super) read_only: bool,
}

impl Object {
    /// Creates an object from an allocation that the program reads and writes. Only one buffer at a time may
    /// write it.
    #[must_use]
    pub fn new(vma: &Vma) -> Self {
        Self { vma: *vma, read_only: false }
    }

    /// Makes this object read-only: a store to it is a SIGBUS, and the buffer ends with [`Error::ReadOnly`].
    #[must_use]
    pub const fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// Creates an object from named memory, in the mode in which it is open (PROTOCOL 8.53). Memory that is
    /// open to read becomes a read-only object.
    ///
    /// # Errors
    /// [`Error::Open`] for memory that is open as shared, because no buffer may cache it.
    pub fn named(named: &OpenNamed) -> Result<Self, Error> {
        match named.mode() {
            OpenMode::Write => Ok(Self::new(named.vma())),
            OpenMode::Read => Ok(Self::new(named.vma()).read_only()),
            mode @ OpenMode::Shared => {
                let remedy = "open it to read or to write: other hosts may write shared memory".into();
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

/// Ranges of chunks with the program's advice, which the cache has not received yet.
pub(super) type Hints = Mutex<VecDeque<(Range<u64>, Advice)>>;

/// Maximum number of queued hints.
const HINTS_MAX: usize = 4096;

impl<'w> Objects<'w> {
    pub(super) const fn new(ring: &'w Ring<'w>, laid: &'w Laid, hints: &'w Hints) -> Self {
        Self { ring, laid, hints }
    }

    /// Returns the number of objects.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.laid.extents.len()
    }

    /// Returns false: a buffer has at least one object.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Returns the object with this number, in the order in which they were given.
    ///
    /// # Panics
    /// Panics if there is no such object.
    #[must_use]
    pub fn get(&self, number: usize) -> Memory<'w> {
        let extent = &self.laid.extents[number];
        self.ring.window().memory().part(small(extent.at), small(extent.bytes))
    }

    /// Returns all objects as one memory, in the order in which they were given. `None` if there are gaps,
    /// because an object other than the last ends within a chunk.
    #[must_use]
    pub fn joined(&self) -> Option<Memory<'w>> {
        let ends = |pair: &[Extent]| pair[0].at + pair[0].bytes == pair[1].at;
        let last = self.laid.extents.last().expect("a buffer has an object");
        let whole = self.laid.extents.windows(2).all(ends);
        whole.then(|| self.ring.window().memory().part(0, small(last.at + last.bytes)))
    }
}

impl Objects<'_> {
    /// Advises how the program uses bytes of an object, or will use them, as madvise(2) does; their content
    /// does not change.
    ///
    /// The call returns when the thread that serves the window has received the advice; the effects take
    /// their time. Advice applies to whole chunks. [`Advice::Cold`] and [`Advice::DontNeed`] apply to chunks
    /// within the range, other advice to all chunks that overlap it. Ranges beyond the limit count in
    /// [`WindowStats::unadvised`](super::WindowStats::unadvised).
    ///
    /// # Errors
    /// [`Error::Open`] if the object does not exist or does not contain the bytes, or if too much advice is
    /// queued.
    ///
    /// # Panics
    /// Panics if a thread panicked while it gave advice.
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

/// The position of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    /// Address of the first byte in far memory.
    pub(super) base: VirtAddr,
    pub(super) bytes: u64,
    /// Offset of the first byte in the window, where a chunk begins.
    pub(super) at: u64,
    pub(super) read_only: bool,
}

/// The positions of all objects of a buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Laid {
    pub(super) chunk_len: u64,
    /// Positions, in order of [`Extent::at`].
    extents: Vec<Extent>,
    /// Numbers of the objects, in order of [`Extent::base`].
    by_base: Vec<usize>,
}

impl Laid {
    /// Computes the positions of all objects.
    ///
    /// # Errors
    /// [`Error::Open`] for an invalid length of chunks, and for no objects or too many.
    pub(super) fn of(objects: &[Object], chunk: u32, read_only: bool) -> Result<Self, Error> {
        let wrong = |setting, value: String, remedy: String| {
            Error::from(OpenError::Setting { setting, value, remedy })
        };
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
        for object in objects {
            let vma = object.vma;
            let read_only = object.read_only || read_only;
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

    /// Returns all positions, in order of the window.
    pub(super) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Returns the object, with its number, that contains an address of far memory.
    ///
    /// # Panics
    /// Panics if no object contains the address.
    pub(super) fn object_at(&self, addr: VirtAddr) -> (usize, &Extent) {
        let behind = self.by_base.partition_point(|&number| self.extents[number].base <= addr);
        let number = self.by_base[behind.checked_sub(1).expect("a byte of an object")];
        let extent = &self.extents[number];
        assert!(addr.0 - extent.base.0 < extent.bytes, "{addr} is of an object");
        (number, extent)
    }

    /// Splits a part of the window, given as offset and length, by objects. Each item has the object's
    /// number, the offset in the object and the length.
    pub(super) fn of_objects(&self, (from, len): (u64, u64)) -> impl Iterator<Item = (usize, u64, u64)> {
        let to = from.saturating_add(len);
        self.extents.iter().enumerate().filter_map(move |(number, extent)| {
            let (first, end) = (from.max(extent.at), to.min(extent.at + extent.bytes));
            (first < end).then(|| (number, first - extent.at, end - first))
        })
    }

    /// Returns the length of the window in bytes.
    pub(super) fn len(&self) -> u64 {
        let last = self.extents.last().expect("a buffer has an object");
        last.at + last.bytes
    }

    pub(super) fn chunks(&self) -> u64 {
        self.len().div_ceil(self.chunk_len)
    }

    /// Returns the object, with its number, at an offset of the window.
    pub(super) fn extent_of(&self, offset: u64) -> Option<(u64, &Extent)> {
        let number = self.extents.partition_point(|extent| extent.at <= offset).checked_sub(1)?;
        let extent = &self.extents[number];
        (offset - extent.at < extent.bytes).then_some((number as u64, extent))
    }

    fn of_chunk(&self, chunk: u64) -> Option<(u64, &Extent)> {
        self.extent_of(chunk.checked_mul(self.chunk_len)?)
    }

    /// Returns the chunks of a range of an object: those within the range if `inside`, otherwise all that
    /// overlap it.
    fn chunks_of(&self, extent: &Extent, bytes: &Range<u64>, inside: bool) -> Range<u64> {
        if bytes.is_empty() {
            return 0..0;
        }
        let (start, end) = (extent.at + bytes.start, extent.at + bytes.end);
        // The last chunk of an object ends with the object.
        let end = if bytes.end == extent.bytes { end.next_multiple_of(self.chunk_len) } else { end };
        if inside {
            start.div_ceil(self.chunk_len)..end / self.chunk_len
        } else {
            start / self.chunk_len..end.div_ceil(self.chunk_len)
        }
    }

    /// Returns the address in far memory and the length of adjacent chunks of one object.
    pub(super) fn far(&self, first: u64, count: u64) -> (VirtAddr, u64) {
        let (_, extent) = self.of_chunk(first).expect("a chunk of an object");
        let from = first * self.chunk_len - extent.at;
        let to = (first + count) * self.chunk_len - extent.at;
        assert!(to < extent.bytes + self.chunk_len, "{count} chunks from {first} are of one object");
        (VirtAddr(extent.base.0 + from), to.min(extent.bytes) - from)
    }

    /// Splits adjacent chunks of the window by objects. Each item has the first chunk of a part and the
    /// number of its chunks.
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
        // The numbers leave a gap, so chunks of two objects are never adjacent in far memory.
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
