//! The tables of an image's trees, built while the image loads (PROTOCOL 13.7, 13.13).
//!
//! The bytes of a Load are parsed at once and never again. So a Load costs work for its own bytes, and a Flip
//! none: neither delays requests, however long the image is.

use farmem_index::{IndexTables, SECTION_KIND, TreeReader};
use farmem_transport::image::{SectionKey, arriving};
use farmem_wire::message::{ImageFault, ImageRule};

/// The progress of the tables.
#[derive(Clone, Default, Debug)]
pub(super) struct Indexing {
    index: IndexTables,
    /// Number of sections that were read completely.
    row: usize,
    /// The section being read.
    open: Option<Open>,
    /// End of the previous section, once there is one.
    end: Option<usize>,
    /// The fault of the first invalid tree section.
    fault: Option<ImageFault>,
}

/// A partially read section of a tree.
#[derive(Clone, Debug)]
struct Open {
    key: SectionKey,
    reader: TreeReader,
    at: usize,
    end: usize,
}

impl Indexing {
    /// Returns the memory of the tables so far, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.index.memory() + self.open.as_ref().map_or(0, |open| open.reader.memory())
    }

    /// Reads the bytes that arrived since the last call; `bytes` is a prefix of the image.
    pub(super) fn go_on(&mut self, bytes: &[u8]) {
        while self.fault.is_none() {
            if let Some(open) = &mut self.open {
                let there = open.end.min(bytes.len());
                let (words, _) = bytes[open.at..there].as_chunks::<8>();
                open.at += 8 * words.len();
                let mut words = words.iter().map(|word| u64::from_be_bytes(*word));
                let is_good = words.try_for_each(|word| open.reader.take(word)).is_ok();
                if is_good && there < open.end {
                    return;
                }
                self.close(is_good);
            } else if !self.open_next(bytes) {
                return;
            }
        }
    }

    /// Opens the next row; returns false if there is none, or if it has not arrived.
    fn open_next(&mut self, bytes: &[u8]) -> bool {
        let Some((key, section)) = arriving(bytes, self.row) else { return false };
        // A section elsewhere is refused with the image: otherwise the same bytes could be read for each row.
        if self.end.is_some_and(|end| end != section.start) || section.start > bytes.len() {
            return false;
        }
        if key.kind == SECTION_KIND {
            let reader = TreeReader::default();
            self.open = Some(Open { key, reader, at: section.start, end: section.end });
        } else {
            self.row += 1;
        }
        self.end = Some(section.end);
        true
    }

    fn close(&mut self, is_good: bool) {
        let Some(Open { key, reader, at, end }) = self.open.take() else { return };
        let tables = if is_good && at == end { reader.finish().ok() } else { None };
        let put = tables.and_then(|tables| self.index.put(key.domain, key.id, tables).ok());
        match put {
            Some(()) => self.row += 1,
            None => {
                let row = u32::try_from(self.row).unwrap_or(u32::MAX);
                self.fault = Some(ImageFault { rule: ImageRule::Content, row });
            }
        }
    }

    /// Returns the tables of a valid, complete image with this many sections.
    ///
    /// # Errors
    /// [`ImageRule::Content`] for the first invalid tree section.
    pub(super) fn finish(self, sections: usize) -> Result<IndexTables, ImageFault> {
        match self.fault {
            Some(fault) => Err(fault),
            None => {
                assert!(self.open.is_none() && self.row == sections, "the sections of an image end with it");
                Ok(self.index)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use farmem_index::{Child, Range, SetNode, TreeSection};
    use farmem_transport::image::Image;
    use farmem_wire::message::SOFT_PART_MAX;
    use farmem_wire::{Domain, ProgramHash, VirtAddr};

    /// Creates an image of two trees with this many nodes, and of sections of other kinds before, between and
    /// behind them.
    fn image(nodes: u64) -> Image {
        let child = |addr| Child { addr: VirtAddr(addr), level: 0 };
        let node = |n: u64| SetNode {
            addr: VirtAddr(0x10000 * (1 + n)),
            pivots: (1..16).collect(),
            children: (0..16).map(|i| child(0x10000 * (1 + n) + 0x100 * i)).collect(),
        };
        let section = |root| TreeSection {
            root: VirtAddr(root),
            programs: Vec::from([ProgramHash([6; 16])]),
            ranges: Vec::from([Range { first: 0, last: u64::MAX, child: child(0x10000) }]),
            sets: Vec::from([(0..nodes).map(node).collect()]),
        };
        let (one, other) = (section(0x100).emit(), section(0x200).emit());
        let key = |domain, kind, id| SectionKey { domain: Domain(domain), kind, id };
        let sections = [
            (key(1, 3, 1), &[1; 5][..]),
            (key(1, SECTION_KIND, 0x100), &one[..]),
            (key(1, SECTION_KIND + 1, 1), &[]),
            (key(2, SECTION_KIND, 0x200), &other[..]),
            (key(3, 3, 1), &[7; 2000]),
        ];
        Image::of(&sections).expect("a short image")
    }

    /// PROTOCOL 13.7: after each part, at most an incomplete word is unread, whatever the sizes of the parts;
    /// at the end nothing is.
    #[test]
    fn each_part_is_read_when_it_comes() {
        let image = image(40);
        for part in [1, 7, 8, 333, SOFT_PART_MAX, image.bytes().len()] {
            let mut indexing = Indexing::default();
            let mut come = 0;
            while come < image.bytes().len() {
                come = (come + part).min(image.bytes().len());
                indexing.go_on(&image.bytes()[..come]);
                if let Some(Open { at, end, .. }) = indexing.open {
                    assert!(come - at < 8 && at <= end, "{at} of {come} bytes are read");
                }
            }
            let index = indexing.finish(5).expect("two trees");
            assert_eq!(index.len(), 2);
            for (domain, root) in [(1, 0x100), (2, 0x200)] {
                let tables = index.tables(Domain(domain), VirtAddr(root)).expect("it was published");
                assert_eq!((tables.deepest(3).addr.0, tables.counters_len()), (0x10300, 1 + 40 * 16));
            }
        }
    }

    /// Rows that claim the same bytes are not read for each of them: the image is refused by the rule of
    /// 13.3.
    #[test]
    fn bytes_are_read_once_whatever_the_rows_say() {
        let mut bytes = image(40).bytes().to_vec();
        // The second tree's row (PROTOCOL 13.3) gets the bytes of the first.
        let row = |n: usize| 8 + 24 * n;
        let first: Vec<u8> = bytes[row(1) + 16..row(1) + 24].to_vec();
        bytes[row(3) + 16..row(3) + 24].copy_from_slice(&first);
        let mut indexing = Indexing::default();
        indexing.go_on(&bytes);
        assert_eq!((indexing.row, indexing.index.len(), indexing.fault), (3, 1, None));
        assert!(Image::parse(bytes).is_err());
    }
}
