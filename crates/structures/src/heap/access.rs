//! Reading and overwriting records where they are: the validated read, and the lock in a record's first word.

use super::record::{Class, encode, image_len};
use super::{Decoded, HEADER_LEN, Header, Heap, LINE_LEN, RECORD_LEN_MAX, Record, Tag, decode};
use farmem_client::{Error, FarMemory};
use farmem_wire::VirtAddr;

/// Reads of a record after which its reader is told that it is being written all the time.
pub const READ_TRIES: u32 = 64;
/// Looks at a locked record after which a writer is told the lock's holder.
pub const LOCK_TRIES: u32 = 64;
/// Records that are read together at most.
const READ_MANY: usize = 64;

impl Heap {
    /// Reads a record: its kind and content, all of one write. One round trip, when it has at most the bytes that `record` says and no writer is at it. A caller
    /// that read its address somewhere holds a pin from before that; else the address may be another record's by now.
    ///
    /// # Errors
    /// [`Error::Torn`] when it was being written in each of [`READ_TRIES`] reads; [`Error::Locked`] when its writer does not go on; [`Error::Broken`] when there
    /// is no record; [`Error::Evicted`].
    pub fn read(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        record: Record,
    ) -> Result<(u8, Vec<u8>), Error> {
        self.enter(memory)?;
        let mut want = image_len((record.len as usize).clamp(1, RECORD_LEN_MAX)).max(HEADER_LEN);
        let mut last = None;
        for _ in 0..READ_TRIES {
            let mut image = memory.buffer(want);
            match memory.read(record.at, &mut image) {
                // It is shorter than its holder believed, and the last one of its chunk. A line is always there.
                Err(Error::OutOfBounds { .. }) if want > LINE_LEN => {
                    want = LINE_LEN;
                    continue;
                }
                other => other?,
            }
            let decoded = decode(&image);
            memory.recycle(image);
            if !self.holds_on(memory)? {
                continue;
            }
            match decoded {
                Decoded::Whole { kind, content } => return Ok((kind, content)),
                Decoded::Longer(len) => want = len,
                Decoded::Torn(tag) => last = Some(tag),
                Decoded::Not => return Err(Error::Broken { addr: record.at, what: "a record" }),
            }
        }
        let (addr, tries) = (record.at, READ_TRIES);
        match last.filter(|tag| tag.is_locked()) {
            Some(tag) => Err(Error::Locked { addr, holder: self.holder(memory, tag)?, tries }),
            None => Err(Error::Torn { addr, tries }),
        }
    }

    /// Reads several records at once: one round trip for those that have at most the bytes that they say, one more for the others.
    ///
    /// # Errors
    /// As [`Heap::read`].
    pub fn read_all(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        records: &[Record],
    ) -> Result<Vec<(u8, Vec<u8>)>, Error> {
        let mut all = Vec::with_capacity(records.len());
        for together in records.chunks(READ_MANY) {
            let mut wanted: Vec<Record> = together.to_vec();
            let mut found: Vec<Option<(u8, Vec<u8>)>> = vec![None; together.len()];
            for _ in 0..2 {
                self.enter(memory)?;
                let missing: Vec<usize> = (0..found.len()).filter(|&n| found[n].is_none()).collect();
                let mut images: Vec<Vec<u8>> = missing
                    .iter()
                    .map(|&n| vec![0; image_len(wanted[n].len as usize).max(HEADER_LEN)])
                    .collect();
                let reads = missing.iter().zip(&mut images);
                let mut reads: Vec<(VirtAddr, &mut [u8])> =
                    reads.map(|(&n, image)| (wanted[n].at, image.as_mut_slice())).collect();
                memory.read_many(&mut reads)?;
                self.still(memory)?;
                for (n, image) in missing.into_iter().zip(&images) {
                    match decode(image) {
                        Decoded::Whole { kind, content } => found[n] = Some((kind, content)),
                        _ => {
                            wanted[n].len = Header::parse(image)
                                .map_or(1, |header| u32::try_from(header.len).unwrap_or(1))
                        }
                    }
                }
            }
            // Those that are being written.
            for (record, found) in wanted.into_iter().zip(found) {
                all.push(found.map_or_else(|| self.read(memory, record), Ok)?);
            }
        }
        Ok(all)
    }

    /// Overwrites a record in place, with as many bytes as its block has room for: its first length, rounded up. Readers get the old or the new
    /// content. Four round trips; replacing a record by another one takes two, when there is one word that names it.
    ///
    /// A record whose writer died has neither content until the next write: reads of it fail, and a write takes the lock over, once the lease of the other
    /// writer has surely ended.
    ///
    /// # Errors
    /// [`Error::Locked`] when another program's write does not end in [`LOCK_TRIES`] looks; [`Error::TooLong`] when the block has no room for it; [`Error::Broken`] when there is no
    /// record; [`Error::Evicted`]; [`Error`] when far memory does not answer: then the record stays locked until this program leaves, or writes it again.
    pub fn write(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        record: Record,
        kind: u8,
        content: &[u8],
    ) -> Result<Record, Error> {
        self.enter(memory)?;
        let addr = record.at;
        Class::of(content.len())?;
        let tag = self.tag(memory)?;
        let class = self.take_lock(memory, addr, tag, content.len())?;
        // Locked until all of it is there; then by compare-and-swap, since a WRITE whose connection breaks may be carried out twice.
        let image = encode(tag.locked(), kind, class, content);
        memory.write(addr, &image)?;
        self.still(memory)?;
        if memory.compare_swap(addr, tag.locked().0, tag.0)? != tag.locked().0 {
            return Err(self.evicted());
        }
        let len = u32::try_from(content.len()).expect("a record's length fits");
        Ok(Record { at: addr, len })
    }

    /// Takes the lock of the record at `addr`; answers its block's class.
    fn take_lock(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        addr: VirtAddr,
        tag: Tag,
        len: usize,
    ) -> Result<Class, Error> {
        let mut seen = Tag::default();
        for _ in 0..LOCK_TRIES {
            let mut bytes = [0; HEADER_LEN];
            memory.read(addr, &mut bytes)?;
            let header = Header::parse(&bytes).filter(|header| header.stamp == 0);
            let header = header.ok_or(Error::Broken { addr, what: "a record" })?;
            if image_len(len) > header.class.size() {
                return Err(Error::TooLong { len, max: header.class.room().min(RECORD_LEN_MAX) });
            }
            seen = header.tag;
            let own = (self.member.slot, self.member.generation());
            let may_take =
                !seen.is_locked() || seen.writer() == own || self.member.is_gone(memory, seen.writer())?;
            if may_take && memory.compare_swap(addr, seen.0, tag.locked().0)? == seen.0 {
                self.still(memory)?;
                return Ok(header.class);
            }
        }
        let holder = self.holder(memory, seen)?;
        Err(Error::Locked { addr, holder, tries: LOCK_TRIES })
    }

    /// The holder of a record's lock, in words.
    fn holder(&mut self, memory: &mut (impl FarMemory + ?Sized), tag: Tag) -> Result<String, Error> {
        let (slot, generation) = tag.writer();
        let gone = self.member.is_gone(memory, (slot, generation))?;
        let state = if gone { ", which is gone: write the record to take it over" } else { "" };
        Ok(format!("the program in slot {slot}.{generation} of {}{state}", self.title()))
    }
}
