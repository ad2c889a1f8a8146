//! Reads and in-place writes of records: the validated read, and the lock in a record's first word.

use super::record::{Class, encode, image_len};
use super::{Decoded, HEADER_LEN, Header, Heap, LINE_LEN, RECORD_LEN_MAX, Record, Tag, decode};
use farmem_client::{Error, FarMemory};
use farmem_wire::VirtAddr;

/// Reads of a record that is always being written, before the read fails.
pub const READ_TRIES: u32 = 64;
/// Reads of a locked record, before the write fails with the lock's holder.
pub const LOCK_TRIES: u32 = 64;
/// Bound on the records read together.
const READ_MANY: usize = 64;

impl Heap {
    /// Reads a record: kind and content of one write. The read takes one round trip if the record has at most
    /// the bytes that `record` says and no writer is active. A caller that read the address elsewhere must
    /// have held a pin since then; otherwise another record may have the address by now.
    ///
    /// # Errors
    /// [`Error::Torn`] when the record was being written during each of [`READ_TRIES`] reads;
    /// [`Error::Locked`] when its writer does not finish; [`Error::Broken`] when there is no record;
    /// [`Error::LeaseExpired`].
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
                // The record is shorter than its caller believed, and the last one of its chunk. One line
                // always exists.
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

    /// Reads several records at once: one round trip for those that have at most the bytes they state, one
    /// more for the others.
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
                self.confirm_membership(memory)?;
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
            // Records that are being written are read one by one.
            for (record, found) in wanted.into_iter().zip(found) {
                all.push(found.map_or_else(|| self.read(memory, record), Ok)?);
            }
        }
        Ok(all)
    }

    /// Overwrites a record in place, with at most as many bytes as its block holds: the original length,
    /// rounded up. Readers see the old or the new content. This takes four round trips. Replacing a record by
    /// a new one takes two, if a single word refers to it.
    ///
    /// A record whose writer died has neither content until the next write. Reads of it fail. A write takes
    /// over the lock once the other writer's lease has surely ended.
    ///
    /// # Errors
    /// [`Error::Locked`] when another program's write does not end within [`LOCK_TRIES`] looks;
    /// [`Error::TooLong`] when the block is too small; [`Error::Broken`] when there is no record;
    /// [`Error::LeaseExpired`]; [`Error`] when far memory does not answer. Then the record stays locked until this
    /// program leaves or writes it again.
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
        // The record stays locked until all bytes are written. Compare-and-swap unlocks it, because a WRITE
        // on a broken connection may be executed twice.
        let image = encode(tag.locked(), kind, class, content);
        memory.write(addr, &image)?;
        self.confirm_membership(memory)?;
        if memory.compare_swap(addr, tag.locked().0, tag.0)? != tag.locked().0 {
            return Err(self.evicted());
        }
        let len = u32::try_from(content.len()).expect("a record's length fits");
        Ok(Record { at: addr, len })
    }

    /// Takes the lock of the record at `addr`. Returns its block's class.
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
                self.confirm_membership(memory)?;
                return Ok(header.class);
            }
        }
        let holder = self.holder(memory, seen)?;
        Err(Error::Locked { addr, holder, tries: LOCK_TRIES })
    }

    /// Describes the holder of a record's lock.
    fn holder(&mut self, memory: &mut (impl FarMemory + ?Sized), tag: Tag) -> Result<String, Error> {
        let (slot, generation) = tag.writer();
        let gone = self.member.is_gone(memory, (slot, generation))?;
        let state = if gone { ", which is gone: write the record to take it over" } else { "" };
        Ok(format!("the program in slot {slot}.{generation} of {}{state}", self.title()))
    }
}
