//! The blocks of `malloc` and its family (`malloc`). dlmalloc serves small blocks from far memory. Each large
//! block is a mapping of its own, which is cached for a while when it is freed (`block_cache`).
//!
//! libc's own `malloc` serves two kinds: allocations before there is far memory, and small blocks that libc
//! allocates for itself. The second kind is necessary. In a fork's child, libc walks its list of open files
//! before any handler runs, and the child's far memory exists only after this library's handler. The address
//! tells which allocator a block belongs to.
//!
//! A signal handler that has interrupted its thread in dlmalloc cannot enter dlmalloc. libc serves its small
//! blocks, and blocks that it frees are freed when the thread leaves dlmalloc. So `malloc` in a handler, or in
//! a child that the handler forks, never waits for the interrupted thread.
//!
//! ```text
//!   large block:  | ... | offset | length of mapping | bytes ...         the length's low bits are 0; dlmalloc's blocks have
//!   dlmalloc's:         | before | length and bits   | bytes ...         one of the two lowest set while they are in use
//! ```

use crate::area;
use crate::block_cache::{Block, BlockCache};
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

/// The lock of dlmalloc and of the cached blocks, also held during a fork.
pub(crate) static LOCK: Lock = Lock::new();

/// Minimum size of a block that is a mapping of its own.
const LARGE: usize = 128 << 10;
/// Below this size, libc's own `malloc` serves blocks for libc.
const LIBC_MAX: usize = 64 << 10;
/// Size of the regions that dlmalloc requests.
const GRANULARITY: usize = 1 << 20;
/// Alignment of all blocks.
const ALIGNMENT: usize = 16;
/// dlmalloc's header bits that tell whether a chunk and its predecessor are in use.
const IN_USE: usize = 3;
const FLAGS: usize = 7;

static HEAP: Heap = Heap(UnsafeCell::new(heap()));
static CACHE: SharedCache = SharedCache(UnsafeCell::new(BlockCache::new()));

struct Heap(UnsafeCell<Dlmalloc<Far>>);

// SAFETY: used only under LOCK.
unsafe impl Sync for Heap {}

/// Freed large blocks, cached for reuse.
struct SharedCache(UnsafeCell<BlockCache>);

// SAFETY: used only under LOCK.
unsafe impl Sync for SharedCache {}

const fn heap() -> Dlmalloc<Far> {
    let mut heap = Dlmalloc::new_with_allocator(Far);
    assert!(heap.set_granularity(GRANULARITY));
    heap
}

/// The source of dlmalloc's memory.
struct Far;

// SAFETY: a region of far memory belongs to the caller alone until it is freed.
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
/// The contract of `free(3)` applies.
pub(crate) unsafe fn free(block: *mut c_void) {
    if !area::has(block.addr()) {
        // SAFETY: a block of libc, or null.
        return unsafe { __libc_free(block) };
    }
    // SAFETY: a block of this heap, guaranteed by the caller.
    match unsafe { large(block) } {
        Some(Large { start, len, .. }) => {
            if with_cache(|cache| cache.put(Block { start, len }, |block| unmap(block.start, block.len)))
                .is_err()
            {
                unmap(start, len);
            }
        }
        None => {
            // SAFETY: see above.
            if with_heap(|heap| unsafe { heap.c_free(block.cast()) }).is_err() {
                // SAFETY: see above.
                unsafe { free_later(block) };
            }
        }
    }
}

/// Allocates a block for `caller`, the return address of the call.
///
/// # Safety
/// The contract of `malloc(3)` applies.
pub(crate) unsafe fn malloc(size: usize, caller: usize) -> *mut c_void {
    if is_local(size, caller) {
        // SAFETY: guaranteed by the caller.
        return unsafe { __libc_malloc(size) };
    }
    or_no_memory(allocate(size))
}

/// Allocates a block of zeros for `caller`, the return address of the call.
///
/// # Safety
/// The contract of `calloc(3)` applies.
pub(crate) unsafe fn calloc(count: usize, size: usize, caller: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return failed(Errno::NOMEM, ptr::null_mut()) };
    if is_local(bytes, caller) {
        // SAFETY: guaranteed by the caller.
        return unsafe { __libc_calloc(count, size) };
    }
    let (block, zeroed) = match bytes {
        LARGE.. => map_large(bytes, ALIGNMENT),
        _ => (allocate(bytes), false),
    };
    if !block.is_null() && !zeroed {
        // SAFETY: the block has at least so many bytes.
        unsafe { ptr::write_bytes(block.cast::<u8>(), 0, bytes) };
    }
    or_no_memory(block)
}

/// Resizes a block for `caller`, the return address of the call.
///
/// # Safety
/// The contract of `realloc(3)` applies.
pub(crate) unsafe fn realloc(block: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    if block.is_null() {
        // SAFETY: guaranteed by the caller.
        return unsafe { malloc(size, caller) };
    }
    let ours = area::has(block.addr());
    if size == 0 {
        // SAFETY: guaranteed by the caller.
        unsafe { free(block) };
        return ptr::null_mut();
    }
    if !ours && (size < LARGE || !area::is_ready()) {
        // SAFETY: a block of libc.
        return unsafe { __libc_realloc(block, size) };
    }
    if ours {
        // SAFETY: a block of this heap, guaranteed by the caller.
        let kept = unsafe { resize(block, size) };
        if let Some(kept) = kept {
            return kept;
        }
    }
    let new = allocate(size);
    if new.is_null() {
        return or_no_memory(new);
    }
    // SAFETY: guaranteed by the caller.
    let old_len = unsafe { usable(block) };
    // SAFETY: both blocks have at least so many bytes.
    unsafe { ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast::<u8>(), old_len.min(size)) };
    // SAFETY: guaranteed by the caller.
    unsafe { free(block) };
    new
}

/// Resizes a block of this heap if it stays of the same kind. Returns `None` when the caller must copy it.
///
/// # Safety
/// The block belongs to this heap and is in use.
unsafe fn resize(block: *mut c_void, size: usize) -> Option<*mut c_void> {
    // SAFETY: guaranteed by the caller.
    let Some(Large { start, len, offset }) = (unsafe { large(block) }) else {
        if size >= LARGE {
            return None;
        }
        // SAFETY: guaranteed by the caller.
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
    // SAFETY: the mapping has at least one page.
    Some(unsafe { mark(moved, new_len, offset) })
}

/// Allocates a block; returns null without memory.
fn allocate(size: usize) -> *mut c_void {
    if size >= LARGE {
        return map_large(size, ALIGNMENT).0;
    }
    // SAFETY: every size is allowed.
    let block = with_heap(|heap| unsafe { heap.c_malloc(size) });
    // SAFETY: see above.
    block.map_or_else(|Busy| unsafe { __libc_malloc(size) }, <*mut u8>::cast)
}

/// Allocates a block at a multiple of `alignment`, a power of two; returns null without memory.
pub(crate) fn aligned(alignment: usize, size: usize) -> *mut c_void {
    if !area::is_ready() {
        // SAFETY: the alignment is a power of two.
        return unsafe { __libc_memalign(alignment, size) };
    }
    if size >= LARGE || alignment >= LARGE {
        return map_large(size, alignment.max(ALIGNMENT)).0;
    }
    // SAFETY: the alignment is a power of two.
    let block = with_heap(|heap| unsafe { heap.c_memalign(alignment, size) });
    // SAFETY: see above.
    block.map_or_else(|Busy| unsafe { __libc_memalign(alignment, size) }, <*mut u8>::cast)
}

/// Allocates a large block; returns null without memory. The flag is true when the bytes are zeros; a cached
/// block still has the bytes of its last use.
fn map_large(size: usize, alignment: usize) -> (*mut c_void, bool) {
    let slack = if alignment == ALIGNMENT { 0 } else { alignment };
    let len = size.checked_add(ALIGNMENT + slack).and_then(|len| len.checked_next_multiple_of(PAGE_LEN));
    let Some(len) = len else { return (ptr::null_mut(), false) };
    let cached = with_cache(|cache| cache.take(len)).ok().flatten();
    let zeroed = cached.is_none();
    let Some(Block { start, len }) = cached.or_else(|| map_heap(len).map(|start| Block { start, len }))
    else {
        return (ptr::null_mut(), false);
    };
    let offset = (start + ALIGNMENT).next_multiple_of(alignment) - start;
    // SAFETY: a mapping of this heap, which contains the offset and `size` bytes behind it.
    (unsafe { mark(start, len, offset) }, zeroed)
}

/// A block that is a mapping.
struct Large {
    start: usize,
    len: usize,
    /// Distance from the mapping's start to the block's bytes.
    offset: usize,
}

/// Writes the header of a large block and returns the address of its bytes.
///
/// # Safety
/// The mapping belongs to this heap, and the offset is at least 16.
unsafe fn mark(start: usize, len: usize, offset: usize) -> *mut c_void {
    let block = area::address(start + offset);
    // SAFETY: a word before the block's first byte, in its mapping.
    let before = unsafe { block.cast::<usize>().sub(1) };
    // SAFETY: see above.
    let first = unsafe { block.cast::<usize>().sub(2) };
    // SAFETY: see above; the address is aligned.
    unsafe { before.write(len) };
    // SAFETY: see above.
    unsafe { first.write(offset) };
    block
}

/// Reads the header of a large block; returns `None` for a block of dlmalloc.
///
/// # Safety
/// The block belongs to this heap and is in use.
unsafe fn large(block: *mut c_void) -> Option<Large> {
    // SAFETY: every block has a word before it.
    let len = unsafe { header(block) };
    if len & IN_USE != 0 {
        return None;
    }
    // SAFETY: a large block has two words before it.
    let first = unsafe { block.cast::<usize>().sub(2) };
    // SAFETY: see above; `mark` wrote the word.
    let offset = unsafe { first.read() };
    Some(Large { start: block.addr() - offset, len, offset })
}

/// Returns the usable size of a block, of this heap or of libc. Both allocators descend from one design: the
/// word before a block is the length of its chunk, with flag bits. The chunk begins at that word or 8 bytes
/// earlier.
///
/// # Safety
/// The block is in use.
pub(crate) unsafe fn usable(block: *mut c_void) -> usize {
    const WORD: usize = size_of::<usize>();
    /// libc's flag of a chunk that is a mapping of its own.
    const LIBC_MAPPED: usize = 2;
    // SAFETY: guaranteed by the caller.
    let header = unsafe { header(block) };
    if !area::has(block.addr()) {
        let overhead = if header & LIBC_MAPPED != 0 { 2 * WORD } else { WORD };
        return (header & !FLAGS) - overhead;
    }
    // SAFETY: guaranteed by the caller.
    match unsafe { large(block) } {
        Some(Large { len, offset, .. }) => len - offset,
        None => (header & !FLAGS) - WORD,
    }
}

/// Returns the word before a block.
///
/// # Safety
/// The block is in use.
unsafe fn header(block: *mut c_void) -> usize {
    // SAFETY: guaranteed by the caller: a word is before the block.
    let before = unsafe { block.cast::<usize>().sub(1) };
    // SAFETY: the word is the length of the block's chunk.
    unsafe { before.read() }
}

/// Returns true for blocks that libc's own `malloc` must serve.
fn is_local(size: usize, caller: usize) -> bool {
    !area::is_ready() || (size < LIBC_MAX && is_libc(caller))
}

/// Runs `what` on the cached blocks; fails in a handler that has interrupted its own thread there.
fn with_cache<T>(what: impl FnOnce(&mut BlockCache) -> T) -> Result<T, Busy> {
    let _held = LOCK.take()?;
    // SAFETY: the lock is held, and `what` does not re-enter this function.
    Ok(what(unsafe { &mut *CACHE.0.get() }))
}

/// Runs `what` on dlmalloc; fails in a handler that has interrupted its own thread there.
fn with_heap<T>(what: impl FnOnce(&mut Dlmalloc<Far>) -> T) -> Result<T, Busy> {
    let _held = LOCK.take()?;
    // SAFETY: the lock is held, and dlmalloc calls nothing that re-enters this function.
    let heap = unsafe { &mut *HEAP.0.get() };
    let result = what(heap);
    // Only handlers of this thread add blocks, so a plain load is enough to check.
    let some = LATER.load(Ordering::Relaxed) != 0;
    let mut later = if some { LATER.swap(0, Ordering::Acquire) } else { 0 };
    while later != 0 {
        let block: *mut u8 = area::address(later).cast();
        // SAFETY: `free_later` stored the next block's address there.
        later = unsafe { block.cast::<usize>().read() };
        // SAFETY: the owner has freed the block.
        unsafe { heap.c_free(block) };
    }
    Ok(result)
}

/// Blocks that handlers freed while their threads were in dlmalloc: a list whose links are in the blocks. 0
/// when it is empty.
static LATER: AtomicUsize = AtomicUsize::new(0);

/// Adds a block to the list of blocks to free later.
///
/// # Safety
/// The block belongs to dlmalloc, and its owner has freed it.
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

/// Lets libc's `malloc` initialize. At its first block it requests random numbers from the kernel. Without far
/// memory, that first block is allocated at the start of the program. In a run it may come much later, when the
/// program's seccomp filter kills callers of that system call.
pub(crate) fn begin() {
    if other::is_there() {
        return; // it may be asking for its memory at this moment, and hold a lock
    }
    // SAFETY: every size is allowed.
    let block = unsafe { __libc_malloc(1) };
    // SAFETY: the block was just allocated, or is null.
    unsafe { __libc_free(block) };
}

/// Sets ENOMEM for a null block, and returns the block.
pub(crate) fn or_no_memory(block: *mut c_void) -> *mut c_void {
    if block.is_null() { failed(Errno::NOMEM, block) } else { block }
}

/// Address and length of libc's code in this process; 0 before the look-up.
static LIBC: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// Returns true when the address is in libc's code.
pub(crate) fn is_libc(addr: usize) -> bool {
    if LIBC[1].load(Ordering::Acquire) == 0 {
        // SAFETY: the callback reads only its arguments, and ends the walk.
        let _ = unsafe { libc::dl_iterate_phdr(Some(find_libc), ptr::null_mut()) };
    }
    let (start, len) = (LIBC[0].load(Ordering::Relaxed), LIBC[1].load(Ordering::Acquire));
    addr.wrapping_sub(start) < len
}

/// Stores the address range of libc and ends the walk. The test is for a function that only libc defines: other
/// allocators (mimalloc, tcmalloc) define even `__libc_malloc`.
unsafe extern "C" fn find_libc(info: *mut libc::dl_phdr_info, _: size_t, _: *mut c_void) -> c_int {
    let wanted = (libc::gnu_get_libc_version as unsafe extern "C" fn() -> *const c_char) as usize;
    // SAFETY: the record is the walk's own.
    let info = unsafe { &*info };
    for n in 0..usize::from(info.dlpi_phnum) {
        // SAFETY: the index is less than the record's number of headers.
        let header = unsafe { info.dlpi_phdr.add(n) };
        // SAFETY: see above.
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
