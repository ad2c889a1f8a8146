//! The blocks of `malloc` and its family (`malloc`). Small blocks are dlmalloc's, in far memory; large ones are mappings of their own, which are
//! kept for a while when they are freed (`kept`).
//!
//! Two kinds stay with libc's own `malloc`: what is allocated before there is far memory, and small blocks that libc allocates for
//! itself. Those must: in a fork's child libc walks its list of open files before any handler runs, and the child's far memory is
//! only there after ours. Which is which is told by the address.
//!
//! A signal handler that interrupted its thread in dlmalloc cannot enter it: its small blocks are libc's, and what it frees is freed
//! when dlmalloc is left. So `malloc` in a handler, or in a child that it forks, never waits for the thread that it interrupted.
//!
//! ```text
//!   large block:  | ... | offset | length of mapping | bytes ...         the length's low bits are 0; dlmalloc's blocks have
//!   dlmalloc's:         | before | length and bits   | bytes ...         one of the two lowest set while they are in use
//! ```

use crate::area;
use crate::kept::{Block, Kept};
use crate::lock::{Busy, Lock};
use crate::maps::{failed, map_heap, resize_heap, unmap};
use crate::other;
use dlmalloc::{Allocator, Dlmalloc};
use farmem_wire::message::PAGE_LEN;
use libc::size_t;
use rustix::io::Errno;
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Held by the thread that is in dlmalloc, and over a fork.
pub(crate) static LOCK: Lock = Lock::new();

/// Blocks of so many bytes are mappings of their own.
const LARGE: usize = 128 << 10;
/// Blocks of libc's own below this stay with it.
const LIBC_MAX: usize = 64 << 10;
/// What dlmalloc asks for at a time.
const GRANULARITY: usize = 1 << 20;
/// Every block is a multiple of this.
const ALIGNMENT: usize = 16;
/// The bits of dlmalloc's that say who is in use.
const IN_USE: usize = 3;
const FLAGS: usize = 7;

static HEAP: Heap = Heap(UnsafeCell::new(heap()));
static KEPT: KeptBlocks = KeptBlocks(UnsafeCell::new(Kept::new()));

struct Heap(UnsafeCell<Dlmalloc<Far>>);

// SAFETY: used under LOCK alone.
unsafe impl Sync for Heap {}

/// Large blocks for which there is no use at present.
struct KeptBlocks(UnsafeCell<Kept>);

// SAFETY: used under LOCK alone.
unsafe impl Sync for KeptBlocks {}

const fn heap() -> Dlmalloc<Far> {
    let mut heap = Dlmalloc::new_with_allocator(Far);
    assert!(heap.set_granularity(GRANULARITY));
    heap
}

/// Where dlmalloc has its memory from.
struct Far;

// SAFETY: regions of far memory are the caller's alone until they are freed.
unsafe impl Allocator for Far {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let start = map_heap(size).map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut);
        (start, size, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, start: *mut u8, old: usize, new: usize) -> bool {
        unmap(start.addr() + new, old - new);
        true
    }

    fn free(&self, start: *mut u8, size: usize) -> bool {
        unmap(start.addr(), size);
        true
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE_LEN
    }
}

unsafe extern "C" {
    fn __libc_malloc(size: size_t) -> *mut c_void;
    fn __libc_calloc(count: size_t, size: size_t) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, size: size_t) -> *mut c_void;
    fn __libc_memalign(alignment: size_t, size: size_t) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
}

/// Frees a block.
///
/// # Safety
/// As `free(3)`.
pub(crate) unsafe fn free(block: *mut c_void) {
    if !area::has(block.addr()) {
        // SAFETY: a block of libc's, or none.
        return unsafe { __libc_free(block) };
    }
    // SAFETY: a block of ours, by the caller's promise.
    match unsafe { large(block) } {
        Some(Large { start, len, .. }) => {
            if with_kept(|kept| kept.put(Block { start, len }, |block| unmap(block.start, block.len)))
                .is_err()
            {
                unmap(start, len);
            }
        }
        None => {
            // SAFETY: as above.
            if with_heap(|heap| unsafe { heap.c_free(block.cast()) }).is_err() {
                // SAFETY: as above.
                unsafe { free_later(block) };
            }
        }
    }
}

/// # Safety
/// As `malloc`.
pub(crate) unsafe fn malloc(size: usize, caller: usize) -> *mut c_void {
    if is_local(size, caller) {
        // SAFETY: the caller's promise.
        return unsafe { __libc_malloc(size) };
    }
    or_no_memory(allocate(size))
}

/// # Safety
/// As `calloc`.
pub(crate) unsafe fn calloc(count: usize, size: usize, caller: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return failed(Errno::NOMEM, ptr::null_mut()) };
    if is_local(bytes, caller) {
        // SAFETY: the caller's promise.
        return unsafe { __libc_calloc(count, size) };
    }
    let (block, zeroed) = match bytes {
        LARGE.. => map_large(bytes, ALIGNMENT),
        _ => (allocate(bytes), false),
    };
    if !block.is_null() && !zeroed {
        // SAFETY: a block of at least so many bytes.
        unsafe { ptr::write_bytes(block.cast::<u8>(), 0, bytes) };
    }
    or_no_memory(block)
}

/// # Safety
/// As `realloc`.
pub(crate) unsafe fn realloc(block: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    if block.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { malloc(size, caller) };
    }
    let ours = area::has(block.addr());
    if size == 0 {
        // SAFETY: the caller's promise.
        unsafe { free(block) };
        return ptr::null_mut();
    }
    if !ours && (size < LARGE || !area::is_ready()) {
        // SAFETY: a block of libc's.
        return unsafe { __libc_realloc(block, size) };
    }
    if ours {
        // SAFETY: a block of ours, by the caller's promise.
        let kept = unsafe { resize(block, size) };
        if let Some(kept) = kept {
            return kept;
        }
    }
    let new = allocate(size);
    if new.is_null() {
        return or_no_memory(new);
    }
    // SAFETY: the caller's promise.
    let old_len = unsafe { usable(block) };
    // SAFETY: two blocks, of at least so many bytes each.
    unsafe { ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast::<u8>(), old_len.min(size)) };
    // SAFETY: the caller's promise.
    unsafe { free(block) };
    new
}

/// A block of ours with another length, where that is the same kind of block. `None` when it is to be copied.
///
/// # Safety
/// The block is ours and in use.
unsafe fn resize(block: *mut c_void, size: usize) -> Option<*mut c_void> {
    // SAFETY: the caller's promise.
    let Some(Large { start, len, offset }) = (unsafe { large(block) }) else {
        if size >= LARGE {
            return None;
        }
        // SAFETY: the caller's promise.
        let resized = with_heap(|heap| unsafe { heap.c_realloc(block.cast(), size) }).ok()?;
        return Some(or_no_memory(resized.cast()));
    };
    let new_len = size.checked_add(offset)?.checked_next_multiple_of(PAGE_LEN)?;
    if new_len == len && size >= LARGE {
        return Some(block);
    }
    if size < LARGE || offset != ALIGNMENT {
        return None;
    }
    let moved = resize_heap(start, len, new_len)?;
    // SAFETY: a mapping of at least a page.
    Some(unsafe { mark(moved, new_len, offset) })
}

/// A new block, or null.
fn allocate(size: usize) -> *mut c_void {
    if size >= LARGE {
        return map_large(size, ALIGNMENT).0;
    }
    // SAFETY: any length will do.
    let block = with_heap(|heap| unsafe { heap.c_malloc(size) });
    // SAFETY: as above.
    block.map_or_else(|Busy| unsafe { __libc_malloc(size) }, <*mut u8>::cast)
}

/// A block at a multiple of the alignment, a power of two; or null.
pub(crate) fn aligned(alignment: usize, size: usize) -> *mut c_void {
    if !area::is_ready() {
        // SAFETY: a power of two.
        return unsafe { __libc_memalign(alignment, size) };
    }
    if size >= LARGE || alignment >= LARGE {
        return map_large(size, alignment.max(ALIGNMENT)).0;
    }
    // SAFETY: a power of two.
    let block = with_heap(|heap| unsafe { heap.c_memalign(alignment, size) });
    // SAFETY: as above.
    block.map_or_else(|Busy| unsafe { __libc_memalign(alignment, size) }, <*mut u8>::cast)
}

/// A large block, or null; and whether its bytes are zeros: those of one that was kept are what its last user left there.
fn map_large(size: usize, alignment: usize) -> (*mut c_void, bool) {
    let slack = if alignment == ALIGNMENT { 0 } else { alignment };
    let len = size.checked_add(ALIGNMENT + slack).and_then(|len| len.checked_next_multiple_of(PAGE_LEN));
    let Some(len) = len else { return (ptr::null_mut(), false) };
    let kept = with_kept(|kept| kept.take(len)).ok().flatten();
    let zeroed = kept.is_none();
    let Some(Block { start, len }) = kept.or_else(|| map_heap(len).map(|start| Block { start, len })) else {
        return (ptr::null_mut(), false);
    };
    let offset = (start + ALIGNMENT).next_multiple_of(alignment) - start;
    // SAFETY: a mapping of our own, in which the offset and `size` bytes behind it lie.
    (unsafe { mark(start, len, offset) }, zeroed)
}

/// A block that is a mapping.
struct Large {
    start: usize,
    len: usize,
    /// From its start to the block's bytes.
    offset: usize,
}

/// Writes what a large block is before its bytes, and answers where they are.
///
/// # Safety
/// The mapping is ours, and the offset at least 16.
unsafe fn mark(start: usize, len: usize, offset: usize) -> *mut c_void {
    let block = area::address(start + offset);
    // SAFETY: a word before the block's first byte, in its mapping.
    let before = unsafe { block.cast::<usize>().sub(1) };
    // SAFETY: as above.
    let first = unsafe { block.cast::<usize>().sub(2) };
    // SAFETY: as above, and aligned.
    unsafe { before.write(len) };
    // SAFETY: as above.
    unsafe { first.write(offset) };
    block
}

/// # Safety
/// The block is ours and in use.
unsafe fn large(block: *mut c_void) -> Option<Large> {
    // SAFETY: every block has a word before it.
    let len = unsafe { header(block) };
    if len & IN_USE != 0 {
        return None;
    }
    // SAFETY: a large block has two.
    let first = unsafe { block.cast::<usize>().sub(2) };
    // SAFETY: as above; `mark` wrote it.
    let offset = unsafe { first.read() };
    Some(Large { start: block.addr() - offset, len, offset })
}

/// Bytes of a block, ours or libc's. Both descend from one allocator: the word before a block is the length of the chunk, which begins
/// there or 8 bytes earlier, with bits.
///
/// # Safety
/// The block is in use.
pub(crate) unsafe fn usable(block: *mut c_void) -> usize {
    const WORD: usize = size_of::<usize>();
    /// Of libc's: the chunk is a mapping of its own.
    const LIBC_MAPPED: usize = 2;
    // SAFETY: the caller's promise.
    let header = unsafe { header(block) };
    if !area::has(block.addr()) {
        let overhead = if header & LIBC_MAPPED != 0 { 2 * WORD } else { WORD };
        return (header & !FLAGS) - overhead;
    }
    // SAFETY: the caller's promise.
    match unsafe { large(block) } {
        Some(Large { len, offset, .. }) => len - offset,
        None => (header & !FLAGS) - WORD,
    }
}

/// # Safety
/// The block is in use.
unsafe fn header(block: *mut c_void) -> usize {
    // SAFETY: the caller's promise: there is a word before it.
    let before = unsafe { block.cast::<usize>().sub(1) };
    // SAFETY: that word is its chunk's length.
    unsafe { before.read() }
}

/// True for blocks that libc's own `malloc` is to give.
fn is_local(size: usize, caller: usize) -> bool {
    !area::is_ready() || (size < LIBC_MAX && is_libc(caller))
}

/// With the blocks that are kept; not from a handler that interrupted its thread there.
fn with_kept<T>(what: impl FnOnce(&mut Kept) -> T) -> Result<T, Busy> {
    let _held = LOCK.take()?;
    // SAFETY: the lock is held; and what is done with them does not come back here.
    Ok(what(unsafe { &mut *KEPT.0.get() }))
}

/// Enters dlmalloc; not from a handler that interrupted its thread there.
fn with_heap<T>(what: impl FnOnce(&mut Dlmalloc<Far>) -> T) -> Result<T, Busy> {
    let _held = LOCK.take()?;
    // SAFETY: the lock is held; and nothing that dlmalloc calls comes back here.
    let heap = unsafe { &mut *HEAP.0.get() };
    let result = what(heap);
    // A handler of this thread puts blocks there, so it is enough to look.
    let some = LATER.load(Ordering::Relaxed) != 0;
    let mut later = if some { LATER.swap(0, Ordering::Acquire) } else { 0 };
    while later != 0 {
        let block: *mut u8 = area::address(later).cast();
        // SAFETY: `free_later` left the next one's address there.
        later = unsafe { block.cast::<usize>().read() };
        // SAFETY: a block that its owner has freed.
        unsafe { heap.c_free(block) };
    }
    Ok(result)
}

/// Blocks that handlers freed while their threads were in dlmalloc; each has the address of the next. 0 when there is none.
static LATER: AtomicUsize = AtomicUsize::new(0);

/// # Safety
/// A block of dlmalloc's, which its owner has freed.
unsafe fn free_later(block: *mut c_void) {
    let mut next = LATER.load(Ordering::Relaxed);
    loop {
        // SAFETY: every block has room for an address.
        unsafe { block.cast::<usize>().write(next) };
        match LATER.compare_exchange(next, block.addr(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => next = other,
        }
    }
}

/// At the beginning: libc's `malloc` asks for random numbers at its first block. Without far memory that is the program's first block. Here libc
/// may want its first one much later, when a filter of the program's ends who makes that system call.
pub(crate) fn begin() {
    if other::is_there() {
        return; // it may be asking for its memory at this moment, and hold a lock
    }
    // SAFETY: any length will do.
    let block = unsafe { __libc_malloc(1) };
    // SAFETY: the block of a moment ago, or none.
    unsafe { __libc_free(block) };
}

/// Leaves the error of a block that there is no memory for.
pub(crate) fn or_no_memory(block: *mut c_void) -> *mut c_void {
    if block.is_null() { failed(Errno::NOMEM, block) } else { block }
}

/// Where libc lies in this process: first address and bytes; 0 until it was looked for.
static LIBC: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// True when the address is in libc's code.
pub(crate) fn is_libc(addr: usize) -> bool {
    if LIBC[1].load(Ordering::Acquire) == 0 {
        // SAFETY: the callback reads what it is given, and ends the walk.
        let _ = unsafe { libc::dl_iterate_phdr(Some(find_libc), ptr::null_mut()) };
    }
    let (start, len) = (LIBC[0].load(Ordering::Relaxed), LIBC[1].load(Ordering::Acquire));
    addr.wrapping_sub(start) < len
}

/// Ends with 1 at the object that has a function which only libc defines. Other allocators define even `__libc_malloc` (mimalloc, tcmalloc).
unsafe extern "C" fn find_libc(info: *mut libc::dl_phdr_info, _: size_t, _: *mut c_void) -> c_int {
    let wanted = (libc::gnu_get_libc_version as unsafe extern "C" fn() -> *const c_char) as usize;
    // SAFETY: the walk's own record.
    let info = unsafe { &*info };
    for n in 0..usize::from(info.dlpi_phnum) {
        // SAFETY: as many headers as it says.
        let header = unsafe { info.dlpi_phdr.add(n) };
        // SAFETY: as above.
        let header = unsafe { &*header };
        let (start, len) =
            (usize::try_from(info.dlpi_addr + header.p_vaddr), usize::try_from(header.p_memsz));
        let (Ok(start), Ok(len)) = (start, len) else { continue };
        if header.p_type == libc::PT_LOAD && wanted.wrapping_sub(start) < len {
            LIBC[0].store(start, Ordering::Relaxed);
            LIBC[1].store(len, Ordering::Release);
            return 1;
        }
    }
    0
}
