//! The interposed functions for mappings. Calls that do not touch far memory go to the kernel unchanged.

use crate::area::{self, address};
use crate::gate;
use crate::local_reason;
use crate::mailbox::call;
use crate::shared;
use crate::signals::Blocked;
use crate::warnings;
use farmem_preload_abi::NOT_FAR;
use farmem_preload_abi::call::{Call, ELSEWHERE, NO_MORE, TARGET_ELSEWHERE, resize};
use farmem_preload_abi::place::LOW;
use farmem_preload_abi::{Advised, advised, advised_shared};
use farmem_wire::message::PAGE_LEN;
use libc::{MAP_FAILED, off_t, size_t};
use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The latest mapping that is not at its hint, and whether its hint was below far memory.
static NOT_AS_HINTED: AtomicUsize = AtomicUsize::new(0);
static HINTED_LOW: AtomicBool = AtomicBool::new(false);
/// Number of such mappings that the program gave back at once, to try the next address. From [`REFUSALS_MAX`] on,
/// the program requires its hints, and further hints get local memory.
static REFUSALS: AtomicUsize = AtomicUsize::new(0);
/// Go gives up its hints after 128 and takes any address. ZGC goes on. LuaJIT needs addresses below 2 GiB and
/// gives up after 30, so one refusal of those is enough.
const REFUSALS_MAX: usize = 160;

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// `mmap(2)`
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == libc::MAP_FIXED;
    if !offset.cast_unsigned().is_multiple_of(PAGE_LEN as u64)
        || (fixed && !addr.addr().is_multiple_of(PAGE_LEN))
    {
        return failed(Errno::INVAL, MAP_FAILED);
    }
    if flags & libc::MAP_ANONYMOUS == 0
        && let Some(mapped) = shared::map(addr, len, protection, flags, fd, offset)
    {
        return mapped.map_or_else(|errno| failed(errno, MAP_FAILED), address);
    }
    let anonymous = flags & libc::MAP_ANONYMOUS != 0 && flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    let executable = protection & libc::PROT_EXEC != 0;
    // Memory for data may be executable as well. Memory for code alone stays local.
    let code = executable && protection & libc::PROT_WRITE == 0;
    let hint = if flags & NOT_FAR == 0 { addr.addr() } else { 0 };
    let far = anonymous
        && !code
        && flags & NOT_FAR == 0
        && area::is_ready()
        && len >= area::threshold()
        && (hint == 0 || area::has(hint) || REFUSALS.load(Ordering::Relaxed) < REFUSALS_MAX);
    if far {
        match map(len, protection, hint, flags & libc::MAP_NORESERVE != 0) {
            Ok(start) => {
                HINTED_LOW.store(hint < LOW, Ordering::Relaxed);
                NOT_AS_HINTED.store(if hint != 0 && start != hint { start } else { 0 }, Ordering::Relaxed);
                return address(start);
            }
            Err(NO_MORE) => return failed(Errno::NOMEM, MAP_FAILED),
            // Without free addresses the program gets local memory.
            Err(_) => {}
        }
    }
    if fixed && shared::part(addr.addr(), len).is_some() {
        area::say(&["farmem: refused: another mapping where shared memory is\n"]);
        return failed(Errno::OPNOTSUPP, MAP_FAILED);
    }
    if fixed && let Some((start, part)) = area::part(addr.addr(), len) {
        let plain = anonymous && !executable && flags & (libc::MAP_GROWSDOWN | libc::MAP_HUGETLB) == 0;
        let whole = start == addr.addr() && part == len.next_multiple_of(PAGE_LEN);
        if plain && whole {
            match renew(start, part, protection, flags & libc::MAP_NORESERVE != 0) {
                Ok(()) => return addr,
                Err(NO_MORE) => return failed(Errno::NOMEM, MAP_FAILED),
                // The program has mapped something else there.
                Err(_) => {}
            }
        }
        // If the kernel refuses the mapping, the old one must stay.
        if let Err(errno) = try_mapping(len, protection, flags, fd, offset) {
            return failed(errno, MAP_FAILED);
        }
        replace(Some(addr), len);
    }
    local_reason::count(len, flags, fd, code, far);
    // SAFETY: guaranteed by the caller.
    let result = unsafe { system_mmap(addr, len, protection, flags, fd, offset) };
    result.unwrap_or_else(|errno| failed(errno, MAP_FAILED))
}

/// `mmap64(2)`, an alias of `mmap(2)`.
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: guaranteed by the caller.
    unsafe { mmap(addr, len, protection, flags, fd, offset) }
}

/// `munmap(2)`
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn munmap(addr: *mut c_void, len: size_t) -> c_int {
    let start = addr.addr();
    let in_shared = shared::part(start, len);
    let Some((far, part)) = area::part(start, len).or(in_shared) else {
        // SAFETY: guaranteed by the caller.
        return done(unsafe { system_munmap(addr.addr(), len) });
    };
    if !start.is_multiple_of(PAGE_LEN) {
        return failed(Errno::INVAL, -1);
    }
    if in_shared.is_some() && (far, part) != (start, len) {
        area::say(&["farmem: refused: to unmap shared memory together with other memory\n"]);
        return failed(Errno::INVAL, -1);
    }
    if in_shared.is_some() {
        return done(shared::unmap(far, part));
    }
    if start == NOT_AS_HINTED.swap(0, Ordering::Relaxed) {
        let count = if HINTED_LOW.load(Ordering::Relaxed) { REFUSALS_MAX } else { 1 };
        REFUSALS.fetch_add(count, Ordering::Relaxed);
    }
    // The parts before and behind far memory are ordinary mappings.
    let (before, end) = (far - start, start + len);
    if before > 0 {
        // SAFETY: guaranteed by the caller.
        let _ = unsafe { system_munmap(start, before) };
    }
    if end > far + part {
        // SAFETY: guaranteed by the caller.
        let _ = unsafe { system_munmap(far + part, end - far - part) };
    }
    unmap(far, part);
    0
}

/// `mprotect(2)`
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mprotect(addr: *mut c_void, len: size_t, protection: c_int) -> c_int {
    if let Some((start, part)) = shared::part(addr.addr(), len) {
        let whole = addr.addr().is_multiple_of(PAGE_LEN) && (start, part) == (addr.addr(), len);
        return done(if whole { shared::protect(start, part, protection) } else { Err(Errno::INVAL) });
    }
    let Some((start, part)) = area::part(addr.addr(), len).filter(|_| addr.addr().is_multiple_of(PAGE_LEN))
    else {
        // SAFETY: guaranteed by the caller.
        return done(unsafe { system_mprotect(addr.addr(), len, protection) });
    };
    if protection & !KNOWN_RIGHTS != 0 {
        return failed(Errno::INVAL, -1);
    }
    // A fork's child needs the rights too. The kernel knows the reserved addresses, and the pager those in use.
    let asked = Call::Protect {
        start: start as u64,
        len: part as u64,
        protection: u64::from(protection.unsigned_abs()),
    };
    let part = part.next_multiple_of(PAGE_LEN);
    let used = match call(asked) {
        Err(NO_MORE) => {
            warnings::no_more();
            return failed(Errno::NOMEM, -1);
        }
        used => used.ok().and_then(|used| usize::try_from(used).ok()).unwrap_or(part),
    };
    let until = if used < part { start + used } else { addr.addr() + len };
    if until > addr.addr() {
        // SAFETY: guaranteed by the caller.
        let result = unsafe { system_mprotect(addr.addr(), until - addr.addr(), protection) };
        if used == part || result.is_err() {
            return done(result);
        }
    }
    failed(Errno::NOMEM, -1)
}

/// Access rights that `mprotect` accepts for anonymous memory.
const KNOWN_RIGHTS: c_int = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC | PROT_SEM;
/// The right to use atomics, on architectures that need it.
const PROT_SEM: c_int = 8;

/// `madvise(2)`
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    if shared::part(addr.addr(), len).is_some() {
        return if advised_shared(advice) == Advised::Nothing { 0 } else { failed(Errno::INVAL, -1) };
    }
    let Some((start, part)) = area::part(addr.addr(), len) else {
        // SAFETY: guaranteed by the caller.
        return done(unsafe { system_madvise(addr, len, advice) });
    };
    match advised(advice) {
        Advised::Drop { lazily } => {
            let whole = (start, part) == (addr.addr(), len);
            if !addr.addr().is_multiple_of(PAGE_LEN) || (lazily && !whole) {
                return failed(Errno::INVAL, -1);
            }
            // The range reads as zeros, or the call fails because the kernel has pages of its own there.
            let dropped = call(Call::Drop { start: start as u64, len: part as u64, lazily });
            if lazily {
                return match dropped {
                    Ok(_) => 0,
                    // SAFETY: guaranteed by the caller.
                    Err(ELSEWHERE) => done(unsafe { system_madvise(addr, len, advice) }),
                    Err(status) => failed(errno_of(status), -1),
                };
            }
            if part < len || dropped == Err(ELSEWHERE) {
                // SAFETY: guaranteed by the caller.
                let _ = unsafe { system_madvise(addr, len, libc::MADV_DONTNEED) };
            }
            match dropped {
                Ok(_) | Err(ELSEWHERE) => 0,
                Err(_) => failed(Errno::NOMEM, -1),
            }
        }
        Advised::Inherit { inherited } => {
            let whole = (start, part) == (addr.addr(), len);
            if !addr.addr().is_multiple_of(PAGE_LEN) || (inherited && !whole) {
                return failed(Errno::INVAL, -1);
            }
            match call(Call::Inherit { start: start as u64, len: part as u64, inherited }) {
                Ok(_) if whole => 0,
                // The kernel handles the rest; MADV_DONTFORK changes nothing in far memory.
                // SAFETY: guaranteed by the caller.
                Ok(_) | Err(ELSEWHERE) => done(unsafe { system_madvise(addr, len, advice) }),
                Err(status) => failed(errno_of(status), -1),
            }
        }
        Advised::Nothing => 0,
        // SAFETY: guaranteed by the caller.
        Advised::System => done(unsafe { system_madvise(addr, len, advice) }),
        Advised::Refused => failed(Errno::INVAL, -1),
    }
}

/// `posix_madvise(3)`, whose advice never changes the memory's contents.
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED || area::part(addr.addr(), len).is_some() {
        return 0;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { system_madvise(addr, len, advice) }.map_or_else(Errno::raw_os_error, |()| 0)
}

/// `mremap(2)`. The last argument is present only when the flags require it.
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let fixed = flags & libc::MREMAP_FIXED != 0;
    if let Some((start, _)) = shared::part(old.addr(), old_len.max(1)) {
        let (old_len, new_len) = (old_len.next_multiple_of(PAGE_LEN), new_len.next_multiple_of(PAGE_LEN));
        if fixed || start != old.addr() || new_len == 0 || new_len > old_len {
            return failed(Errno::NOMEM, MAP_FAILED);
        }
        let shrunk =
            if new_len < old_len { shared::unmap(start + new_len, old_len - new_len) } else { Ok(()) };
        return shrunk.map_or_else(|errno| failed(errno, MAP_FAILED), |()| old);
    }
    if fixed && shared::part(new.addr(), new_len).is_some() {
        return failed(Errno::OPNOTSUPP, MAP_FAILED);
    }
    if area::part(old.addr(), old_len.max(1)).is_some() {
        let target = if fixed { Some(new) } else { None };
        let moved = remap(old, old_len, new_len, flags, target);
        return moved.unwrap_or_else(|errno| failed(errno, MAP_FAILED));
    }
    let aligned = [old, new].iter().all(|at| at.addr().is_multiple_of(PAGE_LEN));
    if fixed && aligned && flags & libc::MREMAP_MAYMOVE != 0 {
        replace(Some(new), new_len);
    }
    // SAFETY: guaranteed by the caller.
    let result = unsafe { system_mremap(old, old_len, new_len, flags, new) };
    result.unwrap_or_else(|errno| failed(errno, MAP_FAILED))
}

/// Maps `len` bytes of zeros in far memory. The error is a status: [`NO_MORE`], or another one without free
/// addresses.
pub(crate) fn map(len: usize, protection: c_int, hint: usize, unreserved: bool) -> Result<usize, u64> {
    let protection_word = u64::from(protection.unsigned_abs());
    let asked = Call::Map { len: len as u64, protection: protection_word, hint: hint as u64, unreserved };
    let answer = call(asked);
    match answer {
        Err(NO_MORE) => warnings::no_more(),
        Err(_) => warnings::no_addresses(),
        Ok(_) => {}
    }
    let no_memory = u64::from(libc::ENOMEM.unsigned_abs());
    let start = usize::try_from(answer?).ok().filter(|&start| start > 0).ok_or(no_memory)?;
    let len = len.next_multiple_of(PAGE_LEN);
    // SAFETY: the pager guarantees that no other mapping has these addresses.
    if unsafe { system_mprotect(start, len, protection) }.is_err() {
        unmap(start, len);
        return Err(no_memory);
    }
    Ok(start)
}

/// Maps far memory for reading and writing; returns `None` without free addresses or far memory.
pub(crate) fn map_heap(len: usize) -> Option<usize> {
    map(len, READ_WRITE, 0, false).ok()
}

/// Unmaps far memory.
pub(crate) fn unmap(start: usize, len: usize) {
    // First no thread can access the range; then the pager may reuse the addresses.
    // SAFETY: the owner of the range of far memory gives it up.
    let _ = unsafe { system_mprotect(start, len, libc::PROT_NONE) };
    if call(Call::Unmap { start: start as u64, len: len as u64 }) == Err(ELSEWHERE) {
        // SAFETY: the program mapped something else there itself.
        let _ = unsafe { system_munmap(start, len) };
    }
}

/// Resizes far memory, in whole pages; moves it when there is no room.
pub(crate) fn resize_heap(start: usize, len: usize, new_len: usize) -> Option<usize> {
    if new_len < len {
        shrink(start, len, new_len);
        return Some(start);
    }
    resized(start, len, new_len, resize::MAY_MOVE).ok()
}

fn shrink(start: usize, len: usize, new_len: usize) {
    if new_len < len {
        unmap(start + new_len, len - new_len);
    }
}

/// Replaces a range by zeros, for a fixed anonymous mapping. The error is the status of the call.
fn renew(start: usize, len: usize, protection: c_int, unreserved: bool) -> Result<(), u64> {
    let asked = Call::Renew {
        start: start as u64,
        len: len as u64,
        protection: u64::from(protection.unsigned_abs()),
        unreserved,
    };
    call(asked).inspect_err(|status| {
        if *status == NO_MORE {
            warnings::no_more();
        }
    })?;
    // SAFETY: the caller maps the range anew.
    unsafe { system_mprotect(start, len, protection) }
        .map_err(|errno| u64::from(errno.raw_os_error().unsigned_abs()))
}

/// Checks that the kernel accepts this mapping at some address.
fn try_mapping(len: usize, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> Result<(), Errno> {
    let flags = flags & !(libc::MAP_FIXED | libc::MAP_POPULATE | libc::MAP_LOCKED);
    // SAFETY: a new mapping, which replaces nothing.
    let there = unsafe { system_mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) }?;
    // SAFETY: the mapping was just made, and no other thread knows it.
    unsafe { system_munmap(there.addr(), len) }
}

/// Tells the pager that something else is about to be mapped at a fixed address.
fn replace(target: Option<*mut c_void>, len: usize) {
    if let Some((start, part)) = target.and_then(|target| area::part(target.addr(), len)) {
        let _told = call(Call::Replace { start: start as u64, len: part as u64 });
    }
}

fn remap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    target: Option<*mut c_void>,
) -> Result<*mut c_void, Errno> {
    const KNOWN: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let aligned = old.addr().is_multiple_of(PAGE_LEN);
    if flags & !KNOWN != 0 || old_len == 0 || new_len == 0 || !aligned {
        return Err(Errno::INVAL);
    }
    let how = match target {
        Some(new) if area::has(new.addr()) => new.addr() as u64,
        Some(new) => return move_out(old, old_len, new_len, new),
        None if new_len.next_multiple_of(PAGE_LEN) <= old_len.next_multiple_of(PAGE_LEN) => {
            shrink(old.addr(), old_len.next_multiple_of(PAGE_LEN), new_len.next_multiple_of(PAGE_LEN));
            return Ok(old);
        }
        None if flags & libc::MREMAP_MAYMOVE != 0 => resize::MAY_MOVE,
        None => resize::IN_PLACE,
    };
    match resized(old.addr(), old_len, new_len, how) {
        Ok(start) => Ok(address(start)),
        Err(ELSEWHERE) => {
            replace(target, new_len);
            // SAFETY: the program mapped something else there itself.
            unsafe { system_mremap(old, old_len, new_len, flags, target.unwrap_or(old)) }
        }
        Err(TARGET_ELSEWHERE) => move_out(old, old_len, new_len, target.unwrap_or(old)),
        Err(status) => Err(errno_of(status)),
    }
}

/// Converts the status of a call to an error.
fn errno_of(status: u64) -> Errno {
    Errno::from_raw_os_error(i32::try_from(status).unwrap_or(libc::ENOMEM))
}

fn resized(start: usize, len: usize, new_len: usize, how: u64) -> Result<usize, u64> {
    let (len, new_len) = (len.next_multiple_of(PAGE_LEN), new_len.next_multiple_of(PAGE_LEN));
    let asked = Call::Resize { start: start as u64, len: len as u64, new_len: new_len as u64, how };
    // Threads that access the old addresses wait until the unmap; a signal handler of this thread would wait
    // forever.
    let (_whole, answer) = loop {
        let whole = Blocked::new();
        match call(asked) {
            // The kernel is writing to pinned pages of the range right now.
            Err(AGAIN) => {
                drop(whole);
                rustix::thread::sched_yield();
            }
            Err(NO_MORE) => {
                warnings::no_more();
                return Err(NO_MORE);
            }
            answer => break (whole, answer?),
        }
    };
    let answer = usize::try_from(answer).map_err(|_| 0_u64)?;
    let (moved, rights) = (answer & !(PAGE_LEN - 1), answer & (PAGE_LEN - 1));
    let rights = c_int::try_from(rights).unwrap_or(READ_WRITE);
    if moved != start {
        unmap(start, len);
    }
    // SAFETY: the addresses belong to this mapping.
    unsafe { system_mprotect(moved, new_len, rights) }.map_err(|_| u64::from(libc::ENOMEM.unsigned_abs()))?;
    Ok(moved)
}

/// Status of a call that may be repeated.
const AGAIN: u64 = libc::EAGAIN.unsigned_abs() as u64;

/// Moves a mapping to an address outside far memory: its bytes become local.
fn move_out(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    new: *mut c_void,
) -> Result<*mut c_void, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // From now on no thread can write to bytes that have been copied.
    // SAFETY: the caller of `mremap` gives the old mapping up.
    unsafe { system_mprotect(old.addr(), old_len.next_multiple_of(PAGE_LEN), libc::PROT_READ) }?;
    replace(Some(new), new_len);
    // SAFETY: the caller of `mremap` wants the target replaced.
    let there = unsafe { system_mmap(new, new_len, READ_WRITE, flags, -1, 0) }?;
    let count = old_len.min(new_len);
    // SAFETY: the old mapping is readable, and the new one is writable.
    unsafe { std::ptr::copy_nonoverlapping(old.cast::<u8>(), there.cast::<u8>(), count) };
    unmap(old.addr(), old_len.next_multiple_of(PAGE_LEN));
    Ok(there)
}

/// Calls the kernel's `mmap(2)`.
///
/// # Safety
/// The contract of `mmap(2)` applies.
unsafe fn system_mmap(
    addr: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> Result<*mut c_void, Errno> {
    let offset = usize::try_from(offset.cast_unsigned()).expect("offsets of 64 bits");
    let arguments = [addr.addr(), len, word(protection), word(flags), word(fd), offset];
    // SAFETY: guaranteed by the caller.
    unsafe { gate::call(libc::SYS_mmap, arguments) }.map(address)
}

/// Calls the kernel's `munmap(2)`.
///
/// # Safety
/// The contract of `munmap(2)` applies.
unsafe fn system_munmap(start: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { gate::call(libc::SYS_munmap, [start, len, 0, 0, 0, 0]) }.map(drop)
}

/// Calls the kernel's `mprotect(2)`.
///
/// # Safety
/// The contract of `mprotect(2)` applies.
pub(crate) unsafe fn system_mprotect(start: usize, len: usize, protection: c_int) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { gate::call(libc::SYS_mprotect, [start, len, word(protection), 0, 0, 0]) }.map(drop)
}

/// Calls the kernel's `madvise(2)`.
///
/// # Safety
/// The contract of `madvise(2)` applies.
pub(crate) unsafe fn system_madvise(addr: *mut c_void, len: usize, advice: c_int) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { gate::call(libc::SYS_madvise, [addr.addr(), len, word(advice), 0, 0, 0]) }.map(drop)
}

/// Calls the kernel's `mremap(2)`.
///
/// # Safety
/// The contract of `mremap(2)` applies.
unsafe fn system_mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> Result<*mut c_void, Errno> {
    let arguments = [old.addr(), old_len, new_len, word(flags), new.addr(), 0];
    // SAFETY: guaranteed by the caller.
    unsafe { gate::call(libc::SYS_mremap, arguments) }.map(address)
}

/// Converts a number to a register's word.
fn word(number: c_int) -> usize {
    usize::try_from(i64::from(number).cast_unsigned()).expect("words of 64 bits")
}

pub(crate) fn of_syscall(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result != -1 {
        return Ok(result);
    }
    // SAFETY: the function returns the address of the calling thread's errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: see above.
    let errno = unsafe { *place };
    Err(Errno::from_raw_os_error(errno))
}

pub(crate) fn done(result: Result<(), Errno>) -> c_int {
    result.map_or_else(|errno| failed(errno, -1), |()| 0)
}

/// Sets errno and returns `value`.
pub(crate) fn failed<T>(errno: Errno, value: T) -> T {
    // SAFETY: the function returns the address of the calling thread's errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: see above.
    unsafe { *place = errno.raw_os_error() };
    value
}
