//! Tests of the library in this test's own process, without an invitation: it passes every call on.

use crate::{area, malloc, maps};
use farmem_wire::message::PAGE_LEN;
use std::hint::black_box;
use std::ptr;

#[test]
fn without_an_invitation_all_is_local() {
    assert!(!area::is_ready());
    let len = 1 << 20;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    let start = unsafe { maps::mmap(ptr::null_mut(), len, rights, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    assert!(!area::has(start.addr()));
    assert_eq!(area::part(start.addr(), len), None);
    // SAFETY: the mapping was just made.
    let moved = unsafe { maps::mremap(start, len, 2 * len, libc::MREMAP_MAYMOVE, ptr::null_mut()) };
    assert_ne!(moved, libc::MAP_FAILED);
    // SAFETY: see above.
    assert_eq!(unsafe { maps::madvise(moved, len, libc::MADV_DONTNEED) }, 0);
    // SAFETY: see above.
    assert_eq!(unsafe { maps::mprotect(moved, PAGE_LEN, libc::PROT_READ) }, 0);
    // SAFETY: see above.
    assert_eq!(unsafe { maps::munmap(moved, 2 * len) }, 0);
    // SAFETY: the address is invalid.
    assert_eq!(unsafe { maps::munmap(ptr::without_provenance_mut(1), len) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
}

/// The library reads the length of libc's blocks from the word before them. This test checks this libc: a block
/// of every length can be filled to that length, keeps its bytes, and grows as libc's own do.
#[test]
fn blocks_of_libc_are_as_long_as_they_seem() {
    for size in [1, 24, 25, 100, 1000, 4096, 100_000, 1 << 20] {
        // The compiler knows these names, and assumes that an unused allocation succeeds.
        // SAFETY: every size is allowed.
        let block = unsafe { malloc::malloc(size) };
        // SAFETY: the block was just allocated.
        let usable = unsafe { malloc::malloc_usable_size(block) };
        assert!(usable >= size && usable < size + 2 * PAGE_LEN, "{usable} for {size}");
        // SAFETY: the block has so many bytes.
        unsafe { ptr::write_bytes(block.cast::<u8>(), 7, usable) };
        // SAFETY: a block in use.
        let block = unsafe { malloc::realloc(block, 3 * usable) };
        // SAFETY: the block has at least so many bytes, all initialized.
        let bytes = unsafe { std::slice::from_raw_parts(block.cast::<u8>(), usable) };
        assert!(bytes.iter().all(|&byte| byte == 7));
        // SAFETY: the block is in use, and is not used after this.
        unsafe { malloc::free(block) };
    }
}

#[test]
fn alignments_and_lengths_are_heeded() {
    for alignment in [16, 64, 4096, 1 << 20] {
        let mut block = ptr::null_mut();
        // SAFETY: a buffer for a pointer.
        assert_eq!(unsafe { malloc::posix_memalign(&raw mut block, alignment, 100) }, 0);
        assert_eq!(block.addr() % alignment, 0);
        // SAFETY: a block in use.
        unsafe { malloc::free(block) };
    }
    let mut block = ptr::null_mut();
    // SAFETY: a buffer for a pointer.
    assert_eq!(unsafe { malloc::posix_memalign(&raw mut block, 24, 100) }, libc::EINVAL);
    // SAFETY: every size is allowed.
    assert!(black_box(unsafe { malloc::calloc(usize::MAX, 2) }).is_null());
    // SAFETY: see above.
    assert!(black_box(unsafe { malloc::reallocarray(ptr::null_mut(), usize::MAX, 2) }).is_null());
}
