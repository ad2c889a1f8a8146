//! `sbrk(2)` and `brk(2)` as programs call them, and allocators (tcmalloc): addresses of far memory that follow each other.
//!
//! libc's own `malloc` has its break from the system, by a way that no library stands before.

use crate::area::{self, address};
use crate::lock::Lock;
use crate::maps::{self, failed};
use crate::next::Next;
use farmem_wire::message::PAGE_LEN;
use libc::intptr_t;
use rustix::io::Errno;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::transmute;

/// Addresses that a break may grow to.
const RESERVED: usize = 64 << 30;

static LOCK: Lock = Lock::new();
static BREAK: Break = Break(UnsafeCell::new(None));
static SBRK: Next = Next::new(c"sbrk");
static BRK: Next = Next::new(c"brk");

struct Break(UnsafeCell<Option<Far>>);

// SAFETY: used under LOCK alone.
unsafe impl Sync for Break {}

/// A break in far memory.
#[derive(Clone, Copy)]
struct Far {
    start: usize,
    now: usize,
}

/// `sbrk(2)`
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sbrk(by: intptr_t) -> *mut c_void {
    match with_far(|far| {
        let to = far.now.checked_add_signed(by).ok_or(Errno::NOMEM)?;
        Ok(std::mem::replace(far, far.moved(to)?).now)
    }) {
        Some(before) => before.map_or_else(|errno| failed(errno, address(usize::MAX)), address),
        None => {
            // SAFETY: libc's function of this name, which has this type.
            let function: unsafe extern "C" fn(intptr_t) -> *mut c_void = unsafe { transmute(SBRK.known()) };
            // SAFETY: the caller's promise.
            unsafe { function(by) }
        }
    }
}

/// `brk(2)`
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn brk(to: *mut c_void) -> c_int {
    match with_far(|far| {
        *far = far.moved(to.addr())?;
        Ok(())
    }) {
        Some(done) => maps::done(done),
        None => {
            // SAFETY: libc's function of this name, which has this type.
            let function: unsafe extern "C" fn(*mut c_void) -> c_int = unsafe { transmute(BRK.known()) };
            // SAFETY: the caller's promise.
            unsafe { function(to) }
        }
    }
}

/// Does something with the break; `None` where this process has no far memory, or no addresses for it.
fn with_far<T>(what: impl FnOnce(&mut Far) -> Result<T, Errno>) -> Option<Result<T, Errno>> {
    if !area::is_ready() {
        return None;
    }
    // A handler that interrupted its thread here.
    let Ok(_held) = LOCK.take() else { return Some(Err(Errno::NOMEM)) };
    // SAFETY: the lock is held, and nothing that is called here comes back.
    let place = unsafe { &mut *BREAK.0.get() };
    if place.is_none() {
        let start = maps::map(RESERVED, libc::PROT_NONE, 0, true).ok()?;
        *place = Some(Far { start, now: start });
    }
    place.as_mut().map(what)
}

impl Far {
    /// The break at another address: pages up to there may be used, and those behind it are free.
    fn moved(self, to: usize) -> Result<Self, Errno> {
        if !(self.start..=self.start + RESERVED).contains(&to) {
            return Err(Errno::NOMEM);
        }
        let [before, after] = [self.now, to].map(|at| at.next_multiple_of(PAGE_LEN));
        if after > before {
            allow(before, after - before)?;
        } else if after < before {
            retract(after, before - after);
        }
        Ok(Self { now: to, ..self })
    }
}

/// The pages may be read and written from now on.
fn allow(start: usize, len: usize) -> Result<(), Errno> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a range that nothing uses yet.
    if unsafe { maps::mprotect(address(start), len, rights) } == 0 { Ok(()) } else { Err(Errno::NOMEM) }
}

/// The pages are not used any more, and their bytes are not needed.
fn retract(start: usize, len: usize) {
    // SAFETY: a range that its owner gives up.
    let _ = unsafe { maps::madvise(address(start), len, libc::MADV_DONTNEED) };
    // SAFETY: as above.
    let _ = unsafe { maps::mprotect(address(start), len, libc::PROT_NONE) };
}
