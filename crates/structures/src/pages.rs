//! Numbered pages of 4 KiB in far memory, each with the number of the change that wrote it: the store of
//! PD3's page server (8.1).
//!
//! Key type: [`PageStore`], the description of the pages' location. Clones describe the same store, and other
//! clients of the domain read the store beside its writer.
//!
//! ```text
//!   a page's record: 17 lines of 256 bytes, each | version | 248 bytes of the page |
//! ```
//!
//! At the smallest path MTU a line is one packet. Each line begins with the version, which no other change
//! has (PROTOCOL 19.1). Lines of one version therefore belong to one write, in whatever order they were
//! written and read. A page that is being written is read again. Version 0: the page was never written.
//!
//! The store does not order several writers and does not grow.

use crate::form::{Form, Shard, allocations, within};
use farmem_client::{Client, Completed, Error, FarMemory, Lines, LookUp, LookedUp, Op, Vma};
use farmem_wire::{NodeId, VirtAddr};
use std::ops::Range;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of a page's record.
pub const RECORD_LEN: usize = LINES * LINE;
const LINE: usize = 256;
const VERSION: usize = 8;
const LINES: usize = PAGE.div_ceil(LINE - VERSION);
/// Attempts to read a page that is being written.
const TRIES: u32 = 64;
/// Bound on the pages of one gather READ: their addresses fit into a packet of the smallest path MTU.
const TOGETHER: usize = 32;
/// Records that [`PageStore::load`] writes at once.
const LOAD_RECORDS: usize = 64;

/// The location of the pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageStore {
    /// One shard on each memory node; pages alternate between the shards.
    shards: Vec<Vma>,
    pages: u64,
}

/// The consistency of a record that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whole {
    /// All lines belong to this change; 0 when the page was never written.
    Version(u64),
    /// A write of the record is in progress.
    Torn,
}

impl PageStore {
    /// Creates `pages` unwritten pages, spread over all memory nodes.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is no room.
    pub fn create(memory: &mut (impl FarMemory + ?Sized), pages: u64) -> Result<Self, Error> {
        let nodes: Vec<NodeId> = memory.nodes().iter().map(|node| NodeId(node.node)).collect();
        let each = pages.max(1).div_ceil(nodes.len() as u64) * RECORD_LEN as u64;
        let mut shards = Vec::new();
        for node in nodes {
            match memory.allocate_on(each, node) {
                Ok(vma) => shards.push(vma),
                Err(error) => {
                    // Memory that cannot be freed now is freed with its domain.
                    shards.iter().for_each(|shard: &Vma| drop(memory.free(shard.base)));
                    return Err(error);
                }
            }
        }
        Ok(Self { shards, pages })
    }

    /// Returns the form from which another process opens this store ([`crate::form`]).
    #[must_use]
    pub fn form(&self) -> Form {
        Form::PageStore { shards: self.shards.iter().copied().map(Shard::from).collect(), pages: self.pages }
    }

    /// Opens the store that a received form describes.
    pub(crate) fn of(
        memory: &(impl FarMemory + ?Sized),
        shards: &[Shard],
        pages: u64,
    ) -> Result<Self, Error> {
        within("pages", pages, 1, u64::MAX / RECORD_LEN as u64)?;
        let need = pages.div_ceil(shards.len().max(1) as u64) * RECORD_LEN as u64;
        Ok(Self { shards: allocations(shards, need, memory)?, pages })
    }

    /// Frees the store's memory. No reader may use the store any more.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.shards.iter().try_for_each(|shard| memory.free(shard.base))
    }

    /// Writes a page. A page may have only one writer at a time.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is no such page; [`Error`] when far memory does not answer.
    ///
    /// # Panics
    /// When the version is 0 or the page has another length.
    pub fn write(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        page: u64,
        version: u64,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let mut record = Vec::with_capacity(RECORD_LEN);
        emit(version, bytes, &mut record);
        memory.write(self.addr(page).ok_or_else(|| self.missing(page))?, &record)
    }

    /// Writes all pages with one change, many at a time. `fill` writes page n into the given bytes.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn load(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        version: u64,
        mut fill: impl FnMut(u64, &mut [u8]),
    ) -> Result<(), Error> {
        let mut bytes = vec![0; PAGE];
        for (n, shard) in (0..).zip(&self.shards) {
            let mut records = Vec::with_capacity(LOAD_RECORDS * RECORD_LEN);
            let mut at = shard.base.0;
            for page in (n..self.pages).step_by(self.shards.len()) {
                fill(page, &mut bytes);
                emit(version, &bytes, &mut records);
                if records.len() == LOAD_RECORDS * RECORD_LEN {
                    memory.write(VirtAddr(at), &records)?;
                    at += records.len() as u64;
                    records.clear();
                }
            }
            if !records.is_empty() {
                memory.write(VirtAddr(at), &records)?;
            }
        }
        Ok(())
    }

    /// Reads a page into `into` and returns the change that wrote it; `None` when the page was never written.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is no such page; [`Error::Torn`] when the page was being written during
    /// every attempt; [`Error`] when far memory does not answer.
    pub fn read(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        page: u64,
        into: &mut Vec<u8>,
    ) -> Result<Option<u64>, Error> {
        let addr = self.addr(page).ok_or_else(|| self.missing(page))?;
        let mut record = memory.buffer(RECORD_LEN);
        for _ in 0..TRIES {
            memory.read(addr, &mut record)?;
            if let Whole::Version(version) = whole(&record) {
                into.clear();
                if version != 0 {
                    content(&record, into);
                }
                memory.recycle(record);
                return Ok((version != 0).then_some(version));
            }
        }
        Err(Error::Torn { addr, tries: TRIES })
    }

    /// Returns the READ that brings a page's record into `buf`; `None` when there is no such page.
    #[must_use]
    pub fn read_op(&self, page: u64, mut buf: Vec<u8>) -> Option<Op> {
        let addr = self.addr(page)?;
        buf.resize(RECORD_LEN, 0);
        Some(Op::Read { addr, buf })
    }

    /// Returns the gather READ that brings the records of several pages into `buf`, concatenated; `None` when
    /// one of the pages does not exist.
    #[must_use]
    pub fn gather_op(&self, pages: impl IntoIterator<Item = u64>, mut buf: Vec<u8>) -> Option<Op> {
        let addrs = pages.into_iter().map(|page| self.addr(page)).collect::<Option<Vec<VirtAddr>>>()?;
        buf.resize(addrs.len() * RECORD_LEN, 0);
        Some(Op::Gather { addrs, buf })
    }

    /// Returns the bytes of far memory that the store occupies.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.size).sum()
    }

    fn addr(&self, page: u64) -> Option<VirtAddr> {
        let shards = self.shards.len() as u64;
        let shard = usize::try_from(page % shards).expect("one of the shards");
        (page < self.pages).then(|| VirtAddr(self.shards[shard].base.0 + page / shards * RECORD_LEN as u64))
    }

    fn missing(&self, page: u64) -> Error {
        Error::Missing { what: format!("page {page} in a store of {}", self.pages) }
    }
}

/// Appends a page's record.
fn emit(version: u64, bytes: &[u8], record: &mut Vec<u8>) {
    assert!(version != 0, "changes are numbered from 1 (PROTOCOL 19.1)");
    assert_eq!(bytes.len(), PAGE, "a page's length");
    let end = record.len() + RECORD_LEN;
    for share in bytes.chunks(LINE - VERSION) {
        record.extend_from_slice(&version.to_le_bytes());
        record.extend_from_slice(share);
    }
    record.resize(end, 0);
}

/// Checks whether all lines of a page's record belong to one change.
#[must_use]
pub fn whole(record: &[u8]) -> Whole {
    let mut versions = record.chunks_exact(LINE).map(|line| *line.first_chunk().expect("a line is longer"));
    let Some(first) = versions.next() else { return Whole::Torn };
    let is_whole = record.len() == RECORD_LEN && versions.all(|version: [u8; VERSION]| version == first);
    if is_whole { Whole::Version(u64::from_le_bytes(first)) } else { Whole::Torn }
}

/// Appends the page in a record to `into`.
pub fn content(record: &[u8], into: &mut Vec<u8>) {
    let end = into.len() + PAGE;
    record.chunks_exact(LINE).for_each(|line| into.extend_from_slice(&line[VERSION..]));
    into.truncate(end);
}

impl LookUp for PageStore {
    /// Does nothing: a record shows whether it is whole.
    fn begin(&mut self, _: &mut Client) -> Result<(), Error> {
        Ok(())
    }

    /// Takes a page's number as its key, big-endian (PROTOCOL 19.14).
    fn op(&self, key: &[u8], scratch: Vec<u8>) -> Option<Op> {
        self.read_op(u64::from_be_bytes(key.try_into().ok()?), scratch)
    }

    fn together(&self) -> usize {
        TOGETHER
    }

    /// Returns the memory node that holds the page.
    fn place(&self, key: &[u8]) -> Option<usize> {
        let page = u64::from_be_bytes(key.try_into().ok()?);
        let node = usize::try_from(page % self.shards.len() as u64).ok()?;
        self.addr(page).map(|_| node)
    }

    fn op_for(&self, keys: &mut dyn Iterator<Item = &[u8]>, scratch: Vec<u8>) -> Option<Op> {
        // Invalid keys have no page and are skipped.
        let pages = keys.filter_map(|key| Some(u64::from_be_bytes(key.try_into().ok()?)));
        self.gather_op(pages, scratch)
    }

    fn in_place(&self, at: usize, _: &[u8], completed: &Completed) -> Option<(u64, Range<usize>)> {
        let record = at * RECORD_LEN..(at + 1) * RECORD_LEN;
        match (&completed.result, whole(completed.buf.get(record.clone())?)) {
            (Ok(_), Whole::Version(version)) if version != 0 => Some((version, record)),
            _ => None,
        }
    }

    fn lines(&self) -> Option<Lines> {
        Some(Lines { line: LINE, head: VERSION, len: PAGE })
    }

    fn looked_up(&self, at: usize, _: &[u8], completed: &Completed, into: &mut Vec<u8>) -> LookedUp {
        if completed.result.is_err() {
            return LookedUp::Elsewhere;
        }
        let record = completed.buf.get(at * RECORD_LEN..).and_then(|records| records.get(..RECORD_LEN));
        let Some(record) = record else { return LookedUp::Elsewhere };
        match whole(record) {
            Whole::Torn => LookedUp::Elsewhere,
            Whole::Version(0) => LookedUp::Absent,
            Whole::Version(version) => {
                into.reserve(VERSION + LINES * (LINE - VERSION));
                into.extend_from_slice(&version.to_le_bytes());
                content(record, into);
                LookedUp::Value
            }
        }
    }

    fn end(&mut self, _: &mut Client) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record gives back its page. A record with any line of another change is not whole.
    #[test]
    fn lines_of_two_changes_are_no_page() {
        let page: Vec<u8> = (0..=250).cycle().take(PAGE).collect();
        let mut record = Vec::new();
        emit(7, &page, &mut record);
        assert_eq!((record.len(), whole(&record)), (RECORD_LEN, Whole::Version(7)));
        let mut back = vec![9];
        content(&record, &mut back);
        assert_eq!((back[0], &back[1..]), (9, &page[..]));
        for line in 0..LINES {
            let mut torn = record.clone();
            torn[line * LINE] = 8;
            assert_eq!(whole(&torn), Whole::Torn, "line {line}");
        }
        assert_eq!(whole(&record[..RECORD_LEN - LINE]), Whole::Torn);
        assert_eq!(whole(&vec![0; RECORD_LEN]), Whole::Version(0));
    }
}
