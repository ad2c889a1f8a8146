//! Memory management of a heap member in far memory: allocating blocks, slabs and chunks, marking freed
//! records, and taking over chunks of dead members.

use super::arena::{CHUNK_MIN, Chunk, Freed};
use super::epoch::EPOCHS_TO_REUSE;
use super::layout::{CHUNKS_AT, CHUNKS_MAX, ChunkRow, Owner, ROW_BASE, ROW_FREED, ROW_LEN, row_at};
use super::record::{Class, HEADER_LEN, Header, LINK_AT};
use super::{Heap, UNMARKED_MAX};
use crate::assembled;
use crate::words;
use farmem_client::{Error, FarMemory, NodeId, Policy};
use farmem_wire::VirtAddr;
use farmem_wire::message::PAGE_LEN;
use std::collections::BTreeMap;

/// Bit of a freed record's stamp: the record is in the list of its chunk's row and nowhere else.
const LISTED: u64 = 1 << 32;
/// Attempts to change a word that other programs change.
const TRIES: u32 = 100;
/// READs prepared together when a chunk is taken over.
const READS_MAX: usize = 64;
/// Blocks up to this size are examined by READs of their slab, larger ones by their headers.
const SLAB_READ_MAX: usize = 1024;
/// Bound on the records that one traversal of a list of freed records returns.
const LISTED_MAX: usize = 48;

/// The program that copies a list of freed records into the scratch pad.
pub const FREED_PROGRAM: &str = "
; Walks a list of freed records. Scratch pad: 0 bytes of records so far; from 8 on, 16 bytes a record: its address, its class and stamp.
.window 32
.scratch 8 + 48*16
.def CLASS 14
.def LINK  16
.def STAMP 24
    ld8 r2, scratch[0]
    st8 scratch[r2 + 8], r1
    ld4 r3, window[STAMP]
    ld1 r4, window[CLASS]
    shl r4, 32
    or r3, r4
    st8 scratch[r2 + 16], r3
    add r2, 16
    st8 scratch[0], r2
    ld8 r5, window[LINK]
    jeq r5, 0, end
    jge r2, 48*16, end
    next r5
end:
    ret
";

impl Heap {
    /// Allocates a block of `class` on `node`.
    pub(super) fn take(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        node: NodeId,
        class: Class,
    ) -> Result<VirtAddr, Error> {
        if let Some(at) = self.arena.pop(node, class) {
            return Ok(at);
        }
        self.arena.collect(self.member.epoch());
        if let Some(at) = self.arena.pop(node, class) {
            return Ok(at);
        }
        if !self.cut(memory, node, class)? {
            self.reclaim_blocks(memory, false)?;
        }
        loop {
            // Recovered memory or a taken-over chunk may have free blocks but no room for a slab.
            if let Some(at) = self.arena.pop(node, class) {
                return Ok(at);
            }
            if self.cut(memory, node, class)? {
                continue;
            }
            if !self.grow(memory, node)? {
                return Err(self.full(node, class));
            }
        }
    }

    fn full(&self, node: NodeId, class: Class) -> Error {
        let (size, waiting) = (class.size(), self.waiting());
        let what = format!(
            "{} on memory node {}, asked for a block of {size} bytes ({waiting} freed records may still be read),",
            self.title(),
            node.0
        );
        Error::Full { what }
    }

    /// Ensures that a record of `len` bytes can be created on `node` while a pin is held. Freed memory is
    /// recovered only while no pin is held.
    pub(crate) fn reserve(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        node: NodeId,
        len: usize,
    ) -> Result<(), Error> {
        self.enter(memory)?;
        let class = Class::of(len)?;
        let at = self.take(memory, node, class)?;
        self.arena.push(node, class, at);
        Ok(())
    }

    /// Cuts a slab for `class`. Returns false when no chunk has room for one.
    fn cut(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        node: NodeId,
        class: Class,
    ) -> Result<bool, Error> {
        let Some((chunk, page)) = self.arena.cut(node, class) else { return Ok(false) };
        memory.write(chunk.map_at(page), &[class.number() + 1])?;
        let slab = chunk.page_at(page);
        for offset in class.blocks().rev() {
            self.arena.push(node, class, VirtAddr(slab.0 + offset));
        }
        Ok(true)
    }

    /// Retires an unlinked record of this class, which other programs may still read.
    pub(super) fn retire(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        at: VirtAddr,
        class: Class,
    ) -> Result<(), Error> {
        self.arena.unmarked.push(Freed { at, class });
        if self.arena.unmarked.len() >= UNMARKED_MAX { self.mark(memory) } else { Ok(()) }
    }

    /// Marks freed records in far memory, so that they survive this program's death. Records in other
    /// members' chunks go to the owners' lists.
    pub(super) fn mark(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        let (stamp, mut listed) = (self.member.stamp(), BTreeMap::<usize, Vec<Freed>>::new());
        let mut own = Vec::new();
        for freed in core::mem::take(&mut self.arena.unmarked) {
            match self.arena.own_at(freed.at) {
                Some(_) => own.push(freed),
                None => listed.entry(self.row_of(memory, freed.at)?).or_default().push(freed),
            }
        }
        mark_own(memory, &own, stamp)?;
        for freed in own {
            self.arena.retire(stamp, freed);
        }
        for (row, freed) in listed {
            self.hand_over(memory, row, &freed, stamp)?;
        }
        Ok(())
    }

    /// Prepends records to the list of their chunk's row.
    fn hand_over(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        row: usize,
        freed: &[Freed],
        stamp: u32,
    ) -> Result<(), Error> {
        let head = VirtAddr(row_at(self.base, row).0 + ROW_FREED);
        let mut first = read_word(memory, head)?;
        let marks = |first: u64| -> Vec<(VirtAddr, [u8; 16])> {
            let next = freed[1..].iter().map(|next| next.at.0).chain([first]);
            freed
                .iter()
                .zip(next)
                .map(|(freed, next)| mark_of(freed, next, u64::from(stamp) | LISTED))
                .collect()
        };
        let mut writes = marks(first);
        for _ in 0..TRIES {
            write_marks(memory, &writes)?;
            let was = memory.compare_swap(head, first, freed[0].at.0)?;
            if was == first {
                return Ok(());
            }
            first = was;
            writes = marks(first).split_off(freed.len() - 1);
        }
        Err(Error::Contended {
            what: format!("the freed records of chunk {row} of {}", self.title()),
            tries: TRIES,
        })
    }

    /// Recovers all memory it can: records that others freed here, and records that no member can read any
    /// more. With `helps`, the member moves on even when it waits for nothing itself.
    pub(super) fn reclaim_blocks(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        helps: bool,
    ) -> Result<(), Error> {
        self.mark(memory)?;
        for chunk in self.arena.own.clone() {
            self.drain(memory, &chunk)?;
        }
        for _ in 0..EPOCHS_TO_REUSE {
            if !helps && (!self.arena.has_retired() || self.arena.is_ripe(self.member.epoch())) {
                break;
            }
            if !self.member.advance(memory, self.pins == 0)? {
                return Err(self.evicted());
            }
        }
        self.arena.collect(self.member.epoch());
        Ok(())
    }

    /// Takes the list of the records that other members freed in a chunk.
    fn drain(&mut self, memory: &mut (impl FarMemory + ?Sized), chunk: &Chunk) -> Result<(), Error> {
        let head = VirtAddr(row_at(self.base, chunk.row).0 + ROW_FREED);
        let mut seen = read_word(memory, head)?;
        let mut first = 0;
        for _ in 0..TRIES {
            if seen == 0 {
                return Ok(());
            }
            let was = memory.compare_swap(head, seen, 0)?;
            if was == seen {
                first = seen;
                break;
            }
            seen = was;
        }
        let program = assembled(FREED_PROGRAM);
        while first != 0 {
            let pad = vec![0; program.scratch_len()];
            let limit = u32::try_from(LISTED_MAX).expect("a small number");
            let done = memory.dispatch(&program, VirtAddr(first), pad, limit, &Policy::default())?;
            let pad = words(&done.scratch);
            let count = usize::try_from(pad[0] / 16).unwrap_or(usize::MAX).min(LISTED_MAX);
            let mut found = Vec::with_capacity(count);
            for pair in pad[1..].chunks_exact(2).take(count) {
                let at = VirtAddr(pair[0]);
                let class = u8::try_from(pair[1] >> 32).ok().and_then(Class::numbered);
                let broken = Error::Broken { addr: at, what: "a freed record" };
                let class = class.filter(|_| self.arena.own_at(at).is_some()).ok_or(broken)?;
                found.push((u32::try_from(pair[1] & 0xffff_ffff).expect("32 bits"), Freed { at, class }));
            }
            let last = found.last().map_or(VirtAddr(first), |(_, freed)| freed.at);
            first = read_word(memory, VirtAddr(last.0 + LINK_AT))?;
            let marks: Vec<_> =
                found.iter().map(|(stamp, freed)| mark_of(freed, 0, u64::from(*stamp))).collect();
            write_marks(memory, &marks)?;
            for (stamp, freed) in found {
                self.arena.retire(stamp, freed);
            }
        }
        Ok(())
    }

    /// Returns the row of the chunk that contains the address.
    fn row_of(&mut self, memory: &mut (impl FarMemory + ?Sized), at: VirtAddr) -> Result<usize, Error> {
        if let Some(row) = self.arena.rows.iter().position(|row| row.has(at)) {
            return Ok(row);
        }
        self.read_rows(memory)?;
        let found = self.arena.rows.iter().position(|row| row.has(at));
        found.ok_or(Error::Broken { addr: at, what: "a record of this heap" })
    }

    pub(super) fn read_rows(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        let mut bytes = vec![0; ROW_LEN * CHUNKS_MAX];
        memory.read(VirtAddr(self.base.0 + CHUNKS_AT), &mut bytes)?;
        self.arena.rows = bytes.chunks_exact(ROW_LEN).map(ChunkRow::parse).collect();
        Ok(())
    }

    /// Adds a chunk on `node`: an abandoned one if possible, else a new one. Returns false when neither
    /// exists.
    fn grow(&mut self, memory: &mut (impl FarMemory + ?Sized), node: NodeId) -> Result<bool, Error> {
        self.read_rows(memory)?;
        let seen = self.member.standing(memory)?;
        let me = Owner::new(self.member.slot, self.member.generation());
        let is_left = |owner: Owner| match owner.member() {
            None => owner.0 == 0,
            Some((slot, generation)) => {
                seen.words[slot].is_free() || seen.words[slot].generation() != generation
            }
        };
        // A row that this member claimed without getting a chunk counts as unowned.
        let is_ours = |row: &ChunkRow| is_left(row.owner) || row.owner == me && row.base == 0;
        let rows = self.arena.rows.iter().copied().enumerate();
        let left: Vec<(usize, ChunkRow)> = rows.filter(|(_, row)| is_ours(row)).collect();
        for &(number, row) in left.iter().filter(|(_, row)| row.base != 0) {
            if node_of(memory, row.base) != Some(node) {
                continue;
            }
            let at = row_at(self.base, number);
            if memory.compare_swap(at, row.owner.0, me.0)? != row.owner.0 {
                continue;
            }
            self.take_over(memory, Chunk::fresh(number, node, row.base, row.size))?;
            return Ok(true);
        }
        for &(number, row) in left.iter().filter(|(_, row)| row.base == 0) {
            let at = row_at(self.base, number);
            if memory.compare_swap(at, row.owner.0, me.0)? != row.owner.0 {
                continue;
            }
            let Some(vma) = allocate(memory, node, self.arena.next_size(node))? else { return Ok(false) };
            // Compare-and-swap, because an evicted member that claimed this row before may write late.
            let (base, size) = (vma.base.0, vma.size);
            if memory.compare_swap(VirtAddr(at.0 + ROW_BASE), 0, ChunkRow::base_word(base, size))? != 0 {
                memory.free(vma.base)?;
                continue;
            }
            self.arena.rows[number] = ChunkRow { owner: me, base, size };
            self.arena.own.push(Chunk::fresh(number, node, base, size));
            return Ok(true);
        }
        Ok(false)
    }

    /// Examines the contents of an abandoned chunk.
    fn take_over(&mut self, memory: &mut (impl FarMemory + ?Sized), mut chunk: Chunk) -> Result<(), Error> {
        let pages = usize::try_from(chunk.size / PAGE_LEN as u64).expect("a chunk has bounds");
        let mut map = vec![0; pages];
        memory.read(VirtAddr(chunk.base), &mut map)?;
        let slabs = chunk.slabs(&map);
        self.arena.own.push(chunk);
        let mut looks: Vec<(VirtAddr, usize, Class)> = Vec::new();
        for (slab, class) in slabs {
            if class.size() <= SLAB_READ_MAX {
                looks.push((slab, class.slab_pages() * PAGE_LEN, class));
            } else {
                looks.extend(class.blocks().map(|offset| (VirtAddr(slab.0 + offset), HEADER_LEN, class)));
            }
        }
        for together in looks.chunks(READS_MAX) {
            let mut bytes: Vec<Vec<u8>> = together.iter().map(|(_, len, _)| vec![0; *len]).collect();
            let mut reads: Vec<(VirtAddr, &mut [u8])> = together
                .iter()
                .zip(&mut bytes)
                .map(|((at, ..), bytes)| (*at, bytes.as_mut_slice()))
                .collect();
            memory.read_many(&mut reads)?;
            for (&(at, len, class), bytes) in together.iter().zip(&bytes) {
                let blocks = if len == HEADER_LEN { vec![0] } else { class.blocks().collect::<Vec<_>>() };
                for offset in blocks {
                    let header = usize::try_from(offset).expect("in a slab");
                    self.sort(
                        chunk.node,
                        class,
                        VirtAddr(at.0 + offset),
                        &bytes[header..header + HEADER_LEN],
                    );
                }
            }
        }
        Ok(())
    }

    /// Classifies a block by its header in `bytes`: free, freed, or in use.
    fn sort(&mut self, node: NodeId, class: Class, at: VirtAddr, bytes: &[u8]) {
        match Header::parse(bytes) {
            // Never written.
            None if bytes.iter().all(|&byte| byte == 0) => self.arena.push(node, class, at),
            // The freeing member has put the record into its row's list. If the member died before that, the
            // record is lost until the heap is destroyed.
            Some(header) if header.stamp & LISTED != 0 => {}
            Some(header) if header.stamp != 0 => {
                let stamp = u32::try_from(header.stamp & 0xffff_ffff).expect("32 bits");
                self.arena.retire(stamp, Freed { at, class });
            }
            Some(_) | None => {}
        }
    }
}

/// Encodes the mark of a freed record: the next one in a list, and its stamp.
fn mark_of(freed: &Freed, next: u64, stamp: u64) -> (VirtAddr, [u8; 16]) {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&next.to_le_bytes());
    bytes[8..].copy_from_slice(&stamp.to_le_bytes());
    (VirtAddr(freed.at.0 + LINK_AT), bytes)
}

fn write_marks(memory: &mut (impl FarMemory + ?Sized), marks: &[(VirtAddr, [u8; 16])]) -> Result<(), Error> {
    let writes: Vec<(VirtAddr, &[u8])> = marks.iter().map(|(at, bytes)| (*at, bytes.as_slice())).collect();
    memory.write_many(&writes)
}

fn mark_own(memory: &mut (impl FarMemory + ?Sized), own: &[Freed], stamp: u32) -> Result<(), Error> {
    let marks: Vec<_> = own.iter().map(|freed| mark_of(freed, 0, u64::from(stamp))).collect();
    write_marks(memory, &marks)
}

pub(super) fn read_word(memory: &mut (impl FarMemory + ?Sized), at: VirtAddr) -> Result<u64, Error> {
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Returns the memory node that holds an address.
pub(crate) fn node_of(memory: &(impl FarMemory + ?Sized), at: u64) -> Option<NodeId> {
    let owner = memory.nodes().iter().find(|node| at.wrapping_sub(node.base) < node.capacity);
    owner.map(|node| NodeId(node.node))
}

/// Returns the bytes from an address to the end of its memory node; 0 for an address outside all memory
/// nodes.
pub(crate) fn room_from(memory: &(impl FarMemory + ?Sized), at: u64) -> u64 {
    let rooms = memory.nodes().iter().map(|node| node.capacity.saturating_sub(at.wrapping_sub(node.base)));
    rooms.max().unwrap_or(0)
}

/// Allocates `size` bytes on `node`, or half, a quarter and so on; `None` when the smallest chunk does not
/// fit.
fn allocate(
    memory: &mut (impl FarMemory + ?Sized),
    node: NodeId,
    mut size: u64,
) -> Result<Option<farmem_client::Vma>, Error> {
    loop {
        match memory.allocate_on(size, node) {
            Ok(vma) => return Ok(Some(vma)),
            Err(Error::Refused(_)) if size > CHUNK_MIN => size /= 2,
            Err(Error::Refused(_)) => return Ok(None),
            Err(other) => return Err(other),
        }
    }
}
