//! The `malloc` of another library (jemalloc, mimalloc, tcmalloc) that the program is linked with, or that is preloaded behind this one.
//!
//! Such a library has more functions that allocate and free than the family that this library stands before: C++'s `operator new` and
//! `operator delete`, `mallocx`, `sdallocx`. Each may take a block that another one gave. So the whole family is left to that library.
//! Its blocks are far all the same, because it gets its memory by `mmap` and `sbrk`.

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

/// The other library's function of this name; `None` where `malloc` is libc's. The first block asks, before a second thread begins.
pub(crate) fn function(next: &Next) -> Option<*mut c_void> {
    is_there().then(|| next.known())
}

/// True when `malloc` is another library's.
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
        // Now, since a look-up in the middle of an allocation could allocate.
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
        // Before the library asks for memory the first time, maybe with a lock held that its allocations take.
        let _without_it_all_is_local = area::is_ready();
    }
    other
}
