//! The encoding of a far record: its header, its lines, and the check that all bytes read belong to one
//! write.
//!
//! A record consists of lines of 256 bytes, and each line begins with the record's *tag*. A tag names one
//! write: no two writes of any program have the same tag. Bytes whose tags are all equal therefore belong to
//! one write, regardless of packets, read times and order
//! ([decision](../../../../docs/decisions/2026-11-23-far-heap.md)). The proof needs no packet order.
//!
//! This module does not access far memory.

use farmem_client::Error;
use farmem_wire::VirtAddr;
use farmem_wire::message::PAGE_LEN;
use std::fmt;

/// Bytes of a line: the largest load window and the smallest path MTU. One packet or one load contains a
/// whole line.
pub const LINE_LEN: usize = 256;
/// Bytes of a record's header, at the start of its first line.
pub const HEADER_LEN: usize = 32;
/// Bytes of the longest record: room for a key and a value of 64 KiB each, plus a structure's overhead.
pub const RECORD_LEN_MAX: usize = (128 << 10) + 8;

/// Bytes of the tag at the start of a line.
const TAG_LEN: usize = 8;
/// Content bytes in the first line.
const FIRST_SHARE: usize = LINE_LEN - HEADER_LEN;
/// Content bytes in each further line.
const SHARE: usize = LINE_LEN - TAG_LEN;
/// The version of this layout.
const VERSION: u8 = 1;

/// The offsets in the header. The programs of structures use the same ones.
mod field {
    use core::ops::Range;
    pub(super) const TAG: Range<usize> = 0..8;
    pub(super) const LEN: Range<usize> = 8..12;
    pub(super) const VERSION: usize = 12;
    pub(super) const KIND: usize = 13;
    pub(super) const CLASS: usize = 14;
    pub(super) const LINK: Range<usize> = 16..24;
    pub(super) const STAMP: Range<usize> = 24..32;
}

/// Offset in a header of the free list's words: the link to the next free record, and the stamp after it.
pub(crate) const LINK_AT: u64 = field::LINK.start as u64;

/// The name of one write: its writer, and the writer's number of the write. Bit 0 is set while the write is
/// in progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tag(pub(crate) u64);

impl Tag {
    /// Bound on the writes of one member in one generation.
    pub(crate) const COUNT_MAX: u64 = (1 << 37) - 1;

    pub(crate) fn new(slot: usize, generation: u16, count: u64) -> Self {
        assert!(slot < 1 << 10 && count <= Self::COUNT_MAX, "a tag has room for its parts");
        Self((slot as u64) << 54 | u64::from(generation) << 38 | count << 1)
    }

    pub(crate) const fn locked(self) -> Self {
        Self(self.0 | 1)
    }

    const fn unlocked(self) -> Self {
        Self(self.0 & !1)
    }

    pub(crate) const fn is_locked(self) -> bool {
        self.0 & 1 == 1
    }

    /// Returns the member's slot and its generation.
    pub(crate) fn writer(self) -> (usize, u16) {
        let slot = usize::try_from(self.0 >> 54).expect("ten bits");
        (slot, u16::try_from(self.0 >> 38 & 0xffff).expect("sixteen bits"))
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slot, generation) = self.writer();
        let lock = if self.is_locked() { ", under way" } else { "" };
        write!(f, "Tag({slot}.{generation}, write {}{lock})", self.0 >> 1 & Self::COUNT_MAX)
    }
}

/// The address of a record, and its length as known to the caller: the extent of one READ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    /// Address of the record's first byte, a multiple of 32. The 256 bytes from there on lie in one page, so
    /// any program can load them.
    pub at: VirtAddr,
    /// Bytes of the record's content.
    pub len: u32,
}

impl Record {
    /// Returns a word for the record: the address, with the class of the block in the five low bits, which
    /// are 0 in the address, if the block has more than a line.
    pub(crate) fn packed(self) -> Result<u64, Error> {
        let class = usize::from(Class::of(self.len as usize)?.0);
        Ok(self.at.0 | class.saturating_sub(LINES_FROM - 1) as u64)
    }

    /// Returns the record of such a word. Its length is the block's capacity, so a READ of that length stays
    /// inside the block.
    pub(crate) fn unpacked(word: u64) -> Result<Self, Error> {
        let (at, class) = (VirtAddr(word & !31), usize::try_from(word & 31).expect("five bits"));
        let class = u8::try_from(LINES_FROM - 1 + class).ok().and_then(Class::numbered);
        let room = class.ok_or(Error::Broken { addr: at, what: "a record" })?.room();
        Ok(Self { at, len: u32::try_from(room).expect("a record's length fits") })
    }
}

/// The parsed header in a record's first line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) tag: Tag,
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) class: Class,
    /// The next record in a list of free records.
    pub(crate) link: u64,
    /// The epoch from which on a freed record may be reused; 0 for a record in use.
    pub(crate) stamp: u64,
}

impl Header {
    /// Parses the header in a first line; `None` for memory that never held a record.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let word = |at: core::ops::Range<usize>| u64::from_le_bytes(line[at].try_into().expect("8 bytes"));
        let len = u32::from_le_bytes(line[field::LEN].try_into().expect("4 bytes")) as usize;
        let class = Class::numbered(line[field::CLASS])?;
        let fits = line[field::VERSION] == VERSION && len > 0 && image_len(len) <= class.size();
        let (tag, kind) = (Tag(word(field::TAG)), line[field::KIND]);
        fits.then_some(Self { tag, len, kind, class, link: word(field::LINK), stamp: word(field::STAMP) })
    }
}

/// The result of a validated read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Decoded {
    /// The content, all of one write.
    Whole { kind: u8, content: Vec<u8> },
    /// The record is longer: this many bytes must be read.
    Longer(usize),
    /// A write was in progress or came in between.
    Torn(Tag),
    /// No record.
    Not,
}

/// Decodes the bytes from a record's start on. The slice may be longer than the record.
pub(crate) fn decode(image: &[u8]) -> Decoded {
    if image.len() < HEADER_LEN {
        return Decoded::Longer(HEADER_LEN);
    }
    let tag = Tag(u64::from_le_bytes(image[field::TAG].try_into().expect("8 bytes")));
    // Header and tag share a line, so the header belongs to the tag's write.
    if tag.is_locked() {
        return Decoded::Torn(tag);
    }
    let Some(header) = Header::parse(image) else { return Decoded::Not };
    let end = image_len(header.len);
    if image.len() < end {
        return Decoded::Longer(end);
    }
    let mut content = Vec::with_capacity(header.len);
    content.extend_from_slice(&image[HEADER_LEN..end.min(LINE_LEN)]);
    for line in image[..end].chunks(LINE_LEN).skip(1) {
        if line[..TAG_LEN] != image[field::TAG] {
            return Decoded::Torn(tag);
        }
        content.extend_from_slice(&line[TAG_LEN..]);
    }
    Decoded::Whole { kind: header.kind, content }
}

/// Encodes the record of `content`. With a locked tag, the record is unreadable until the tag is unlocked.
pub(crate) fn encode(tag: Tag, kind: u8, class: Class, content: &[u8]) -> Vec<u8> {
    assert!(!content.is_empty() && image_len(content.len()) <= class.size(), "the content fits its block");
    let mut image = Vec::with_capacity(image_len(content.len()));
    image.extend_from_slice(&tag.0.to_le_bytes());
    let len = u32::try_from(content.len()).expect("a record's length fits its field");
    image.extend_from_slice(&len.to_le_bytes());
    image.extend_from_slice(&[VERSION, kind, class.0, 0]);
    image.resize(HEADER_LEN, 0);
    let (first, rest) = content.split_at(content.len().min(FIRST_SHARE));
    image.extend_from_slice(first);
    for share in rest.chunks(SHARE) {
        // Only the first line carries the lock bit.
        image.extend_from_slice(&tag.unlocked().0.to_le_bytes());
        image.extend_from_slice(share);
    }
    image
}

/// Returns the bytes that a record of `len` content bytes occupies.
pub(crate) const fn image_len(len: usize) -> usize {
    match len.saturating_sub(FIRST_SHARE) {
        0 => HEADER_LEN + len,
        rest => LINE_LEN + rest + rest.div_ceil(SHARE) * TAG_LEN,
    }
}

/// A block size class. Blocks up to a line are multiples of 32 bytes and begin at least 256 bytes before the
/// end of their page. Larger blocks are multiples of a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Class(u8);

/// The block sizes: steps of 32 bytes up to a line, then four per doubling.
const SIZES: [usize; 38] = [
    64, 96, 128, 160, 192, 224, 256, 512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120,
    6144, 7168, 8192, 10240, 12288, 14336, 16384, 20480, 24576, 28672, 32768, 40960, 49152, 57344, 65536,
    81920, 98304, 114_688, 139_264,
];
/// The number of the first class with more than a line.
const LINES_FROM: usize = 7;
const _: () = assert!(SIZES[LINES_FROM - 1] == LINE_LEN && SIZES.len() - LINES_FROM < 32);
const _: () = assert!(image_len(RECORD_LEN_MAX) <= SIZES[SIZES.len() - 1]);

impl Class {
    /// Returns the smallest class that holds a record of `len` bytes.
    ///
    /// # Errors
    /// [`Error::TooLong`] for more than [`RECORD_LEN_MAX`]; [`Error::Empty`] for none.
    pub(crate) fn of(len: usize) -> Result<Self, Error> {
        if len == 0 {
            return Err(Error::Empty { what: "a record" });
        }
        if len > RECORD_LEN_MAX {
            return Err(Error::TooLong { len, max: RECORD_LEN_MAX });
        }
        let number = SIZES.partition_point(|&size| size < image_len(len));
        Ok(Self(u8::try_from(number).expect("there are fewer than 256 classes")))
    }

    pub(crate) fn numbered(number: u8) -> Option<Self> {
        (usize::from(number) < SIZES.len()).then_some(Self(number))
    }

    pub(crate) const fn number(self) -> u8 {
        self.0
    }

    /// Returns the bytes of a block.
    pub(crate) fn size(self) -> usize {
        SIZES[usize::from(self.0)]
    }

    /// Returns the content bytes that a block holds.
    pub(crate) fn room(self) -> usize {
        let size = self.size();
        if size <= LINE_LEN { size - HEADER_LEN } else { FIRST_SHARE + (size / LINE_LEN - 1) * SHARE }
    }

    /// Returns the pages of a slab: adjacent blocks of one class.
    pub(crate) fn slab_pages(self) -> usize {
        match self.size() {
            ..=LINE_LEN => 1,
            size if size <= PAGE_LEN => 4,
            // The fewest pages that blocks tile. Sizes are small multiples of powers of two.
            size => (1..).find(|pages| (pages * PAGE_LEN).is_multiple_of(size)).expect("size pages do"),
        }
    }

    /// Returns the offsets of the blocks in a slab.
    pub(crate) fn blocks(self) -> impl DoubleEndedIterator<Item = u64> {
        let (size, slab) = (self.size(), self.slab_pages() * PAGE_LEN);
        let count = if size <= LINE_LEN { (PAGE_LEN - LINE_LEN) / size + 1 } else { slab / size };
        (0..count).map(move |n| (n * size) as u64)
    }
}

#[cfg(test)]
mod tests;
