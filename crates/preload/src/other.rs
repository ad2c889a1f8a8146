//! The `malloc` of another library (jemalloc, mimalloc, tcmalloc) that the program links with, or that is
//! preloaded behind this one.
//!
//! Such a library has more allocation functions than the interposed family: C++'s `operator new` and `operator
//! delete`, `mallocx`, `sdallocx`. Each may get a block from any other one. So that library keeps the whole
//! family. Its blocks are in far memory anyway, because it gets its memory by `mmap` and `sbrk`.

use crate::area;
use crate::heap::is_libc;
use crate::next::Next;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU8, Ordering};

pub(crate) static MALLOC: Next = Next::new(c"malloc");
pub(crate) static CALLOC: Next = Next::new(c"calloc");
pub(crate) static REALLOC: Next = Next::new(c"realloc");
pub(crate) static REALLOCARRAY: Next = Next::new(c"reallocarray");
pub(crate) static FREE: Next = Next::new(c"free");
pub(crate) static MEMALIGN: Next = Next::new(c"memalign");
pub(crate) static ALIGNED_ALLOC: Next = Next::new(c"aligned_alloc");
pub(crate) static POSIX_MEMALIGN: Next = Next::new(c"posix_memalign");
pub(crate) static VALLOC: Next = Next::new(c"valloc");
pub(crate) static PVALLOC: Next = Next::new(c"pvalloc");
pub(crate) static MALLOC_USABLE_SIZE: Next = Next::new(c"malloc_usable_size");

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const LOOKING: u8 = 1;
const LIBC: u8 = 2;
const OTHER: u8 = 3;

/// Returns the other library's function; `None` where `malloc` is libc's. The first block triggers the look-up,
/// before a second thread begins.
pub(crate) fn function(next: &Next) -> Option<*mut c_void> {
    is_there().then(|| next.known())
}

/// Returns true when another library provides `malloc`.
pub(crate) fn is_there() -> bool {
    match STATE.load(Ordering::Acquire) {
        LIBC => false,
        OTHER => true,
        _ => look(),
    }
}

fn look() -> bool {
    if STATE.compare_exchange(UNKNOWN, LOOKING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return false; // what is allocated to find it out is libc's
    }
    let other = !is_libc(MALLOC.known().addr());
    if other {
        // The look-ups happen now, because a look-up during an allocation could allocate.
        let all = [
            &CALLOC,
            &REALLOC,
            &REALLOCARRAY,
            &FREE,
            &MEMALIGN,
            &ALIGNED_ALLOC,
            &POSIX_MEMALIGN,
            &VALLOC,
            &PVALLOC,
            &MALLOC_USABLE_SIZE,
        ];
        all.into_iter().for_each(Next::prepare);
    }
    STATE.store(if other { OTHER } else { LIBC }, Ordering::Release);
    if other {
        // Far memory must exist before the library's first request for memory, which may hold a lock that its
        // allocations take.
        let _without_it_all_is_local = area::is_ready();
    }
    other
}
