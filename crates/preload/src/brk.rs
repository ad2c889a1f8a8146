//! `sbrk(2)` and `brk(2)` for programs and allocators (tcmalloc): a contiguous range of far memory.
//!
//! libc's own `malloc` gets its break from the kernel by internal calls, which no library can interpose.

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

/// Addresses reserved for the break to grow, in bytes.
const RESERVED: usize = 64 << 30;

static LOCK: Lock = Lock::new();
static BREAK: Break = Break(UnsafeCell::new(None));
static SBRK: Next = Next::new(c"sbrk");
static BRK: Next = Next::new(c"brk");

struct Break(UnsafeCell<Option<Far>>);

// SAFETY: used only under LOCK.
unsafe impl Sync for Break {}

/// The program break in far memory.
#[derive(Clone, Copy)]
struct Far {
    start: usize,
    now: usize,
}

/// `sbrk(2)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sbrk(by: intptr_t) -> *mut c_void {
    match with_far(|far| {
        let to = far.now.checked_add_signed(by).ok_or(Errno::NOMEM)?;
        Ok(std::mem::replace(far, far.moved(to)?).now)
    }) {
        Some(before) => before.map_or_else(|errno| failed(errno, address(usize::MAX)), address),
        None => {
            // SAFETY: the symbol is libc's function of this name, which has this type.
            let function: unsafe extern "C" fn(intptr_t) -> *mut c_void = unsafe { transmute(SBRK.known()) };
            // SAFETY: guaranteed by the caller.
            unsafe { function(by) }
        }
    }
}

/// `brk(2)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn brk(to: *mut c_void) -> c_int {
    match with_far(|far| {
        *far = far.moved(to.addr())?;
        Ok(())
    }) {
        Some(done) => maps::done(done),
        None => {
            // SAFETY: the symbol is libc's function of this name, which has this type.
            let function: unsafe extern "C" fn(*mut c_void) -> c_int = unsafe { transmute(BRK.known()) };
            // SAFETY: guaranteed by the caller.
            unsafe { function(to) }
        }
    }
}

/// Runs `what` on the break; returns `None` when this process has no far memory, or no addresses for a break.
fn with_far<T>(what: impl FnOnce(&mut Far) -> Result<T, Errno>) -> Option<Result<T, Errno>> {
    if !area::is_ready() {
        return None;
    }
    // `Busy` means that this is a signal handler, which has interrupted its own thread here.
    let Ok(_held) = LOCK.take() else { return Some(Err(Errno::NOMEM)) };
    // SAFETY: the lock is held, and nothing called here re-enters this function.
    let place = unsafe { &mut *BREAK.0.get() };
    if place.is_none() {
        let start = maps::map(RESERVED, libc::PROT_NONE, 0, true).ok()?;
        *place = Some(Far { start, now: start });
    }
    place.as_mut().map(what)
}

impl Far {
    /// Moves the break to `to`: pages before it become usable, and pages behind it are released.
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

/// Allows reads and writes of the pages.
fn allow(start: usize, len: usize) -> Result<(), Errno> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range is not in use yet.
    if unsafe { maps::mprotect(address(start), len, rights) } == 0 { Ok(()) } else { Err(Errno::NOMEM) }
}

/// Discards the pages and forbids access to them.
fn retract(start: usize, len: usize) {
    // SAFETY: the owner of the range gives it up.
    let _ = unsafe { maps::madvise(address(start), len, libc::MADV_DONTNEED) };
    // SAFETY: see above.
    let _ = unsafe { maps::mprotect(address(start), len, libc::PROT_NONE) };
}
