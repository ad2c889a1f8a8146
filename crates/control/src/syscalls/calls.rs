//! Planning of each call: the errors of its manual page, then a plan.

use crate::addresses::{PAGE, VA_END, vma_size};
use crate::syscalls::{AREAS_MAX, Edit, Errno, Prot, Space};
use alloc::vec::Vec;

/// A memory system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// Anonymous, zeroed memory. `flags` has MAP_FIXED, MAP_FIXED_NOREPLACE or neither; without either,
    /// `addr` is a hint.
    Mmap {
        addr: u64,
        len: u64,
        prot: u32,
        flags: u32,
    },
    Munmap {
        addr: u64,
        len: u64,
    },
    Mprotect {
        addr: u64,
        len: u64,
        prot: u32,
    },
    /// Moves the end of the heap. Returns where the end is afterwards, moved or not, as the kernel does.
    Brk {
        addr: u64,
    },
}

/// MAP_FIXED.
pub(crate) const FIXED: u32 = 0x10;

/// MAP_FIXED_NOREPLACE.
pub(crate) const FIXED_NOREPLACE: u32 = 0x10_0000;

/// MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE, MAP_POPULATE, MAP_STACK: nothing here depends on
/// them.
const IGNORED: u32 = 0x1 | 0x2 | 0x20 | 0x4000 | 0x8000 | 0x2_0000;

/// View of the rack's memory as a call needs it.
pub(crate) trait Allocator {
    /// Returns the place of a vma of `size` bytes, a power of two, or `None` if no node has room.
    fn fit(&self, size: u64) -> Option<u64>;
    /// Returns true if a vma of `size` bytes at `base` would be inside one node's memory and overlap no
    /// other.
    fn is_free(&self, base: u64, size: u64) -> bool;
}

/// Result of planning a call: the edits in order, and the caller's answer. A call may fail and still change
/// something, as `mprotect` does up to a hole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(crate) edits: Vec<Edit>,
    pub(crate) answer: Result<u64, Errno>,
}

impl Plan {
    /// Returns the result of the call as the kernel gives it: a value, or a negative error number.
    pub(crate) fn value(&self) -> i64 {
        match self.answer {
            Ok(value) => i64::try_from(value).unwrap_or(i64::MAX),
            Err(errno) => -i64::from(errno as u8),
        }
    }

    /// Returns the bytes of the vmas that the plan creates.
    pub(crate) fn more(&self) -> u64 {
        let made = |edit: &Edit| match edit {
            Edit::Reserve { size, .. } => *size,
            _ => 0,
        };
        self.edits.iter().map(made).sum()
    }

    /// Creates a plan that changes nothing.
    pub(crate) const fn nothing(answer: Result<u64, Errno>) -> Self {
        Self { edits: Vec::new(), answer }
    }
}

/// A plan in the making, and the space as it would be after it.
struct Draft {
    after: Space,
    edits: Vec<Edit>,
}

impl Space {
    /// Plans a call.
    pub(crate) fn call(&self, call: &Call, allocator: &impl Allocator) -> Plan {
        let planned = match *call {
            Call::Mmap { addr, len, prot, flags } => self.mmap(addr, len, prot, flags, allocator),
            Call::Munmap { addr, len } => self.munmap(addr, len),
            Call::Mprotect { addr, len, prot } => self.mprotect(addr, len, prot),
            Call::Brk { addr } => Ok(self.brk(addr)),
        };
        let plan = planned.unwrap_or_else(|errno| Plan::nothing(Err(errno)));
        let mut after = self.clone();
        plan.edits.iter().for_each(|edit| after.apply(edit));
        if after.pages.len() > AREAS_MAX { Plan::nothing(Err(Errno::NoMemory)) } else { plan }
    }

    /// Plans a heap of at most `size` bytes for a new space.
    pub(crate) fn begin(size: u64, allocator: &impl Allocator) -> Plan {
        if size == 0 {
            return Plan::nothing(Ok(0));
        }
        let placed =
            vma_size(size).filter(|&size| size < VA_END).and_then(|size| Some((allocator.fit(size)?, size)));
        let Some((start, size)) = placed else { return Plan::nothing(Err(Errno::NoMemory)) };
        let edits = Vec::from([Edit::Reserve { base: start, size }, Edit::Heap { start, size }]);
        Plan { edits, answer: Ok(start) }
    }

    /// Plans the end of a space.
    pub(crate) fn end(&self) -> Plan {
        let edits = self.vmas.keys().map(|&base| Edit::Release { base }).collect();
        Plan { edits, answer: Ok(0) }
    }

    fn mmap(
        &self,
        addr: u64,
        len: u64,
        prot: u32,
        flags: u32,
        allocator: &impl Allocator,
    ) -> Result<Plan, Errno> {
        if len == 0 || flags & !(FIXED | FIXED_NOREPLACE | IGNORED) != 0 {
            return Err(Errno::Invalid);
        }
        let prot = Prot::from_bits(prot)?;
        let len = whole_pages(len).ok_or(Errno::NoMemory)?;
        if flags & (FIXED | FIXED_NOREPLACE) != 0 {
            let end = fixed_end(addr, len)?;
            if flags & FIXED_NOREPLACE != 0 && self.mapped(addr, end).next().is_some() {
                return Err(Errno::Exists);
            }
            return self.map_at(addr, end, prot, allocator).ok_or(Errno::NoMemory);
        }
        let wish = addr.checked_next_multiple_of(PAGE).filter(|&addr| addr > 0);
        let wish = wish.and_then(|addr| Some((addr, fixed_end(addr, len).ok()?)));
        let wish = wish.filter(|&(addr, end)| self.mapped(addr, end).next().is_none());
        if let Some(plan) = wish.and_then(|(addr, end)| self.map_at(addr, end, prot, allocator)) {
            return Ok(plan);
        }
        let size = vma_size(len).filter(|&size| size < VA_END).ok_or(Errno::NoMemory)?;
        let base = allocator.fit(size).ok_or(Errno::NoMemory)?;
        let edits = Vec::from([Edit::Reserve { base, size }, Edit::Map { base, len, prot }]);
        Ok(Plan { edits, answer: Ok(base) })
    }

    /// Maps exactly these pages, in the space's own vmas and, where there are none, in new ones. Returns
    /// `None` if another space or no memory is there.
    fn map_at(&self, base: u64, end: u64, prot: Prot, allocator: &impl Allocator) -> Option<Plan> {
        let mut draft = self.draft();
        let mut at = base;
        for (from, to) in self.pieces(base, end) {
            draft.reserve(at, from, allocator)?;
            draft.edit(Edit::Clear { base: from, len: to - from });
            at = to;
        }
        draft.reserve(at, end, allocator)?;
        let pieces: Vec<(u64, u64)> = draft.after.pieces(base, end).collect();
        for (from, to) in pieces {
            draft.edit(Edit::Map { base: from, len: to - from, prot });
        }
        Some(draft.plan(Ok(base)))
    }

    fn munmap(&self, addr: u64, len: u64) -> Result<Plan, Errno> {
        let end = whole_pages(len).and_then(|len| addr.checked_add(len)).filter(|&end| end <= VA_END);
        let Some(end) = end.filter(|_| addr.is_multiple_of(PAGE) && len > 0) else {
            return Err(Errno::Invalid);
        };
        let mut draft = self.draft();
        draft.unmap(addr, end);
        Ok(draft.plan(Ok(0)))
    }

    fn mprotect(&self, addr: u64, len: u64, prot: u32) -> Result<Plan, Errno> {
        if !addr.is_multiple_of(PAGE) {
            return Err(Errno::Invalid);
        }
        if len == 0 {
            return Ok(Plan::nothing(Ok(0)));
        }
        let end = whole_pages(len).and_then(|len| addr.checked_add(len)).ok_or(Errno::NoMemory)?;
        let prot = Prot::from_bits(prot)?;
        let until = self.pages.mapped_until(addr, end);
        let mut draft = self.draft();
        for (from, to) in self.pieces(addr, until) {
            draft.edit(Edit::Map { base: from, len: to - from, prot });
        }
        Ok(draft.plan(if until == end { Ok(0) } else { Err(Errno::NoMemory) }))
    }

    fn brk(&self, addr: u64) -> Plan {
        let Some(heap) = self.heap else { return Plan::nothing(Ok(0)) };
        let stay = Plan::nothing(Ok(heap.at));
        if addr < heap.start || addr > heap.end {
            return stay;
        }
        let pages = |at: u64| at.next_multiple_of(PAGE);
        let (old, new) = (pages(heap.at), pages(addr));
        let mut draft = self.draft();
        if new > old {
            if self.mapped(old, new).next().is_some() {
                return stay;
            }
            draft.edit(Edit::Clear { base: old, len: new - old });
            draft.edit(Edit::Map { base: old, len: new - old, prot: Prot::ReadWrite });
        } else {
            draft.unmap(new, old);
        }
        draft.edit(Edit::Break { at: addr });
        draft.plan(Ok(addr))
    }

    fn draft(&self) -> Draft {
        Draft { after: self.clone(), edits: Vec::new() }
    }
}

impl Draft {
    fn edit(&mut self, edit: Edit) {
        self.after.apply(&edit);
        self.edits.push(edit);
    }

    fn plan(self, answer: Result<u64, Errno>) -> Plan {
        Plan { edits: self.edits, answer }
    }

    /// Reserves the largest vmas that fit for a range that has none.
    fn reserve(&mut self, base: u64, end: u64, allocator: &impl Allocator) -> Option<()> {
        let mut at = base;
        while at < end {
            let fits = |size: &u64| *size <= end - at && allocator.is_free(at, *size);
            let most = 1 << at.trailing_zeros().min(VA_END.ilog2());
            let halves = core::iter::successors(Some(most), |&size| (size > PAGE).then_some(size / 2));
            let size = halves.into_iter().find(fits)?;
            self.edit(Edit::Reserve { base: at, size });
            at += size;
        }
        Some(())
    }

    /// Unmaps the range, and gives back the vmas in which nothing is mapped any more. The heap's vma stays as
    /// long as the space.
    fn unmap(&mut self, base: u64, end: u64) {
        let heap = self.after.heap.map(|heap| heap.start);
        let pieces: Vec<(u64, u64)> = self.after.pieces(base, end).collect();
        for (from, to) in pieces {
            let mapped = self.after.mapped(from, to).fold(None, |all: Option<(u64, u64)>, (from, to, _)| {
                Some((all.map_or(from, |(first, _)| first), to))
            });
            let Some((first, last)) = mapped else { continue };
            let Some((vma, size)) = self.after.vmas.range(..=from).next_back().map(|(&at, &size)| (at, size))
            else {
                continue;
            };
            let mut rest = self.after.mapped(vma, first).chain(self.after.mapped(last, vma + size));
            if rest.next().is_none() && heap != Some(vma) {
                drop(rest);
                self.edit(Edit::Release { base: vma });
            } else {
                drop(rest);
                self.edit(Edit::Unmap { base: first, len: last - first });
            }
        }
    }
}

/// Rounds `len` up to whole pages.
fn whole_pages(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(PAGE)
}

/// Returns the end of a range whose first byte the caller fixed.
fn fixed_end(addr: u64, len: u64) -> Result<u64, Errno> {
    if !addr.is_multiple_of(PAGE) || addr == 0 {
        return Err(Errno::Invalid);
    }
    addr.checked_add(len).filter(|&end| end <= VA_END).ok_or(Errno::NoMemory)
}
