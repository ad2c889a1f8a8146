//! One access through the cache, as far as cached pages permit.

use super::resident::PageTable;
use crate::native::{Native, NativeLogic};
use farmem::serve::Logic as _;
use farmem::{Answer, Error, Op, TraversalStop, Traversed, VirtAddr};
use farmem_traversal::{Step, WINDOW_LEN_MAX};
use farmem_wire::message::{PAGE_LEN, Page};

/// Bytes of the word of an atomic.
const WORD_LEN: usize = 8;

/// The reason why an access cannot continue.
#[derive(Debug)]
pub(super) enum Blocked {
    /// The access faults at page `first`, and needs the pages up to `last` as well.
    Pages { first: Page, last: Page, write: bool },
    /// The access can never succeed.
    Never(Error),
}

/// An access and its progress.
#[derive(Debug)]
pub(super) struct Access {
    operation: Operation,
    /// Bytes copied so far; for a traversal, of this iteration's window.
    done: usize,
}

#[derive(Debug)]
enum Operation {
    Read { addr: VirtAddr, buf: Vec<u8> },
    Write { addr: VirtAddr, buf: Vec<u8> },
    Swap { addr: VirtAddr, compare: u64, swap: u64, old: u64 },
    Add { addr: VirtAddr, add: u64, old: u64 },
    Traverse(Box<Walk>),
}

/// A traversal that runs at this host.
#[derive(Debug)]
struct Walk {
    logic: NativeLogic,
    window_len: usize,
    scratch_len: usize,
    cur_ptr: VirtAddr,
    scratch: Vec<u8>,
    limit: u32,
    iterations: u32,
    returned: bool,
    window: [u8; WINDOW_LEN_MAX],
}

impl Access {
    /// Creates an access that runs traversals as `native` code.
    pub(super) fn of(op: Op, native: &Native) -> Self {
        let operation = match op {
            Op::Read { addr, buf } | Op::RegionRead { addr, buf } => Operation::Read { addr, buf },
            Op::Write { addr, buf } | Op::RegionWrite { addr, buf } => Operation::Write { addr, buf },
            Op::CompareSwap { addr, compare, swap } => Operation::Swap { addr, compare, swap, old: 0 },
            Op::FetchAdd { addr, add } => Operation::Add { addr, add, old: 0 },
            Op::Through { .. } | Op::ReadTo { .. } | Op::WriteFrom { .. } | Op::Gather { .. } => {
                unreachable!("pages are come by without a connection that is named, and into buffers")
            }
            Op::Traverse { program, cur_ptr, scratch, limit } => {
                let window = [0; WINDOW_LEN_MAX];
                Operation::Traverse(Box::new(Walk {
                    logic: native.logic(&program),
                    window_len: program.window_len(),
                    scratch_len: program.scratch_len(),
                    cur_ptr,
                    scratch,
                    limit,
                    iterations: 0,
                    returned: false,
                    window,
                }))
            }
        };
        Self { operation, done: 0 }
    }

    /// Continues to the end, or to the first fault.
    pub(super) fn advance(&mut self, pages: &mut PageTable) -> Result<(), Blocked> {
        let done = &mut self.done;
        match &mut self.operation {
            Operation::Read { addr, buf } => copy(pages, *addr, buf, done, read, false),
            Operation::Write { addr, buf } => copy(pages, *addr, buf, done, write, true),
            Operation::Swap { addr, compare, swap, old } => {
                *old = exchange(pages, *addr, |word| if word == *compare { *swap } else { word })?;
                Ok(())
            }
            Operation::Add { addr, add, old } => {
                *old = exchange(pages, *addr, |word| word.wrapping_add(*add))?;
                Ok(())
            }
            Operation::Traverse(walk) => walk.advance(pages, done),
        }
    }

    /// Returns the previous value that an atomic found.
    pub(super) const fn old(&self) -> u64 {
        match self.operation {
            Operation::Swap { old, .. } | Operation::Add { old, .. } => old,
            _ => 0,
        }
    }

    /// Returns the answer, and the buffer or scratch pad.
    pub(super) fn into_answer(self) -> (Answer, Vec<u8>) {
        let old = self.old();
        match self.operation {
            Operation::Read { buf, .. } | Operation::Write { buf, .. } => (Answer::Done { old }, buf),
            Operation::Swap { .. } | Operation::Add { .. } => (Answer::Done { old }, Vec::new()),
            Operation::Traverse(walk) => {
                let Walk { returned, cur_ptr, iterations, scratch, .. } = *walk;
                (
                    Answer::Traversed(Traversed { returned, cur_ptr, iterations, requests: iterations }),
                    scratch,
                )
            }
        }
    }
}

impl Walk {
    fn advance(&mut self, pages: &mut PageTable, done: &mut usize) -> Result<(), Blocked> {
        let (have, need) = (self.scratch.len(), self.scratch_len);
        if have != need {
            return Err(Blocked::Never(Error::ScratchLen { have, need }));
        }
        while self.iterations < self.limit {
            let window = &mut self.window[..self.window_len];
            copy(pages, self.cur_ptr, window, done, read, false)?;
            *done = 0;
            self.iterations += 1;
            match self.logic.step(window, &mut self.cur_ptr, &mut self.scratch) {
                Step::Next => {}
                Step::Return => {
                    self.returned = true;
                    return Ok(());
                }
                Step::Fault => {
                    let (addr, reason) = (self.cur_ptr, TraversalStop::ProgramFault);
                    return Err(Blocked::Never(Error::Traversal { addr, reason }));
                }
            }
        }
        Ok(())
    }
}

/// Copies between `buf` and the pages at `addr`, page by page, after the first `done` bytes.
fn copy(
    pages: &mut PageTable,
    addr: VirtAddr,
    buf: &mut [u8],
    done: &mut usize,
    piece: impl Fn(&mut PageTable, Page, usize, &mut [u8]) -> Option<()>,
    write: bool,
) -> Result<(), Blocked> {
    let len = buf.len();
    while *done < len {
        let at = checked(addr, *done, 1)?;
        let (page, offset) = place(at);
        let end = len.min(*done + PAGE_LEN - offset);
        if piece(pages, page, offset, &mut buf[*done..end]).is_none() {
            let (last, _) = place(checked(addr, len - 1, 1)?);
            return Err(Blocked::Pages { first: page, last, write });
        }
        *done = end;
    }
    Ok(())
}

fn read(pages: &mut PageTable, page: Page, offset: usize, into: &mut [u8]) -> Option<()> {
    into.copy_from_slice(&pages.get(page)?[offset..offset + into.len()]);
    Some(())
}

fn write(pages: &mut PageTable, page: Page, offset: usize, from: &mut [u8]) -> Option<()> {
    pages.get_mut(page)?[offset..offset + from.len()].copy_from_slice(from);
    Some(())
}

/// Replaces the word at `addr` by `change` of it. Returns the previous value.
fn exchange(pages: &mut PageTable, addr: VirtAddr, change: impl FnOnce(u64) -> u64) -> Result<u64, Blocked> {
    if !addr.0.is_multiple_of(WORD_LEN as u64) {
        return Err(Blocked::Never(Error::Misaligned { addr }));
    }
    let (page, offset) = place(addr);
    let bytes = pages.get_mut(page).ok_or(Blocked::Pages { first: page, last: page, write: true })?;
    let word: &mut [u8; WORD_LEN] =
        bytes[offset..].first_chunk_mut().expect("a page is a whole number of words");
    let old = u64::from_le_bytes(*word);
    *word = change(old).to_le_bytes();
    Ok(old)
}

/// Returns `addr` plus `by`, if that is a valid address for `len` bytes.
fn checked(addr: VirtAddr, by: usize, len: u64) -> Result<VirtAddr, Blocked> {
    addr.checked_add(by as u64).ok_or(Blocked::Never(Error::OutOfBounds { addr, len }))
}

/// Returns the page of `addr`, and the offset in it.
pub(super) const fn place(addr: VirtAddr) -> (Page, usize) {
    #[expect(clippy::cast_possible_truncation, reason = "less than a page")]
    let offset = (addr.0 % PAGE_LEN as u64) as usize;
    (Page::of(addr), offset)
}
