//! Named shared memory (`shm_open`) in a run that shares. Objects belong to the rack, and have the same
//! addresses in every process of every host that shares them.
//!
//! All addresses of the rack's shared memory are mapped once, without access rights, and served like far
//! memory. Mapping an object grants access to its addresses, and unmapping revokes the access. The program's
//! descriptor of an object is a *token* (`token`). If a program maps a token past this library, the kernel
//! refuses it, instead of mapping memory of this host.

mod pieces;
mod token;

use crate::area::{self, address};
use crate::gate;
use crate::lock::Lock;
use crate::mailbox;
use crate::maps::{failed, system_madvise};
use crate::signals::Blocked;
use farmem_preload_abi::call::{Call, TEXT_MAX, VALUES};
use farmem_preload_abi::userfaultfd::{Faulting, Userfaultfd};
use farmem_wire::message::PAGE_LEN;
use libc::{mode_t, off_t};
use pieces::{List, MAPPINGS_MAX, Piece};
use rustix::fd::{BorrowedFd, IntoRawFd as _, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, ftruncate, open, openat, unlinkat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use token::{Token, identify, token};

static BASE: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);

/// The lock of the list of mappings, also held during a fork.
pub(crate) static LOCK: Lock = Lock::new();
static MAPPINGS: Mappings = Mappings(UnsafeCell::new(List { count: 0, all: [Piece::NONE; MAPPINGS_MAX] }));

struct Mappings(UnsafeCell<List>);

// SAFETY: used only under LOCK.
unsafe impl Sync for Mappings {}

/// A snapshot of an object's attributes.
#[derive(Clone, Copy, Debug)]
struct Object {
    number: u64,
    length: u64,
    /// Address of the first byte; 0 before the object has a length.
    base: usize,
    /// Number of bytes reserved for the object from `base` on.
    size: usize,
}

impl Object {
    fn of(values: [u64; VALUES]) -> Self {
        let [number, length, base, size] = values;
        let place = |n: u64| usize::try_from(n).unwrap_or(0);
        Self { number, length, base: place(base), size: place(size) }
    }
}

/// Maps the rack's addresses and registers them. A process does so once, and a fork's child again.
pub(crate) fn begin(file: &OwnedFd, base: u64, len: u64, uffd: &Userfaultfd) -> Result<(), Errno> {
    let place = |n: u64| usize::try_from(n).map_err(|_| Errno::NOMEM);
    let (base, len) = (place(base)?, place(len)?);
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: a new mapping, which replaces nothing.
    let start = unsafe { mmap(address(base), len, ProtFlags::empty(), flags, file, 0) }?;
    let served = serve(start, len, uffd);
    if served.is_err() {
        // SAFETY: the range was just mapped, and no other thread knows it yet.
        let _ = unsafe { gate::call(libc::SYS_munmap, [start.addr(), len, 0, 0, 0, 0]) };
        return served;
    }
    BASE.store(base, Ordering::Relaxed);
    LEN.store(len, Ordering::Relaxed);
    Ok(())
}

fn serve(start: *mut c_void, len: usize, uffd: &Userfaultfd) -> Result<(), Errno> {
    // SAFETY: the mapping was just made.
    unsafe { area::keep_from_others(start, len) }?;
    let faulting = Faulting::MISSING.and(Faulting::MINOR).and(Faulting::WRITE_PROTECTED);
    // SAFETY: the mapping was just made; threads that access it wait for the pager.
    unsafe { uffd.register(start.expose_provenance(), len, faulting) }
}

/// Restores the access rights of the parent's mappings in a fork's child, which has the addresses again.
pub(crate) fn restore() -> Result<(), Errno> {
    // The forking thread holds the lock until the next handler, and the child has no other thread.
    // SAFETY: no other thread uses the list, as explained.
    let list = unsafe { &*MAPPINGS.0.get() };
    list.all[..list.count].iter().try_for_each(|piece| list.protect(piece.start, piece.end))
}

/// Returns the part of a range that is in the rack's addresses, as address and length; whole pages if the range
/// is of whole pages.
pub(crate) fn part(addr: usize, len: usize) -> Option<(usize, usize)> {
    let (base, all) = (BASE.load(Ordering::Relaxed), LEN.load(Ordering::Relaxed));
    let (start, end) = (addr.max(base), addr.saturating_add(len).min(base + all));
    (all > 0 && start < end).then(|| (start, end - start))
}

/// Maps a descriptor's object; returns `None` when the descriptor is no token.
pub(crate) fn map(
    addr: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> Option<Result<usize, Errno>> {
    if !area::shares() {
        return None;
    }
    let token = identify(fd)?;
    Some(map_object(token, (addr.addr(), len), protection, flags, offset))
}

fn map_object(
    token: Token,
    (addr, len): (usize, usize),
    protection: c_int,
    flags: c_int,
    offset: off_t,
) -> Result<usize, Errno> {
    let kind = flags & libc::MAP_TYPE;
    if kind != libc::MAP_SHARED && kind != libc::MAP_SHARED_VALIDATE {
        return Err(refused("a private mapping of shared memory", Errno::OPNOTSUPP));
    }
    if protection & libc::PROT_EXEC != 0 || (token.read_only && protection & libc::PROT_WRITE != 0) {
        return Err(Errno::ACCESS);
    }
    let offset = usize::try_from(offset).ok().filter(|offset| offset.is_multiple_of(PAGE_LEN));
    let (Some(offset), true) = (offset, len > 0) else { return Err(Errno::INVAL) };
    let object = call(Call::Hold { object: token.object })?;
    let len = len.checked_next_multiple_of(PAGE_LEN).ok_or(Errno::NOMEM)?;
    let end = offset.checked_add(len).ok_or(Errno::OVERFLOW)?;
    if object.base == 0 {
        return Err(refused("shared memory without a length (ftruncate)", Errno::INVAL));
    }
    if end > object.size {
        return Err(refused("more bytes of shared memory than it has", Errno::INVAL));
    }
    if part(object.base, object.size) != Some((object.base, object.size)) {
        return Err(refused("shared memory on a memory node that joined after this run began", Errno::NOMEM));
    }
    let start = object.base + offset;
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 && addr != start {
        return Err(refused("shared memory at another address than all processes have it", Errno::OPNOTSUPP));
    }
    with_list(|list| list.add(Piece { start, end: object.base + end, protection }))?;
    Ok(start)
}

/// Unmaps a range of the rack's addresses.
pub(crate) fn unmap(start: usize, len: usize) -> Result<(), Errno> {
    let (start, end) = (start, (start + len).next_multiple_of(PAGE_LEN));
    with_list(|list| {
        list.remove(start, end)?;
        list.protect(start, end)
    })?;
    // The remaining mappings find their pages again. A page whose fetch failed is fetched anew after the next
    // mapping.
    // SAFETY: the bytes are in the pages' file, which stays.
    let _ = unsafe { system_madvise(address(start), end - start, libc::MADV_DONTNEED) };
    Ok(())
}

/// Changes access rights. The kernel reports invalid ones.
pub(crate) fn protect(start: usize, len: usize, protection: c_int) -> Result<(), Errno> {
    let end = (start + len).next_multiple_of(PAGE_LEN);
    with_list(|list| {
        let covered = |at: usize| (0..list.count).any(|n| list.all[n].start <= at && at < list.all[n].end);
        if (start..end).step_by(PAGE_LEN).any(|at| !covered(at)) {
            return Err(Errno::NOMEM);
        }
        list.cut_all(start, end, Some(protection))?;
        list.protect(start, end)
    })
}

fn with_list<T>(f: impl FnOnce(&mut List) -> T) -> T {
    let _no_handler_comes = Blocked::new();
    let _held = LOCK.take().expect("no handler interrupts its thread in here");
    // SAFETY: the lock is held, so no other thread uses the list, and `f` does not re-enter this function.
    f(unsafe { &mut *MAPPINGS.0.get() })
}

/// `shm_open(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shm_open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: a C string, guaranteed by the caller.
    let name = unsafe { CStr::from_ptr(name) };
    let opened = if area::shares() { open_object(name, flags) } else { open_local(name, flags, mode) };
    opened.map_or_else(|errno| failed(errno, -1), |file| file.into_raw_fd())
}

/// `shm_unlink(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shm_unlink(name: *const c_char) -> c_int {
    // SAFETY: a C string, guaranteed by the caller.
    let name = unsafe { CStr::from_ptr(name) };
    let done = if area::shares() { unlink_object(name) } else { unlink_local(name) };
    done.map_or_else(|errno| failed(errno, -1), |()| 0)
}

/// `ftruncate64(2)`
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ftruncate64(fd: c_int, length: off_t) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { ftruncate_of(fd, length) }.map_or_else(|errno| failed(errno, -1), |()| 0)
}

/// `ftruncate(2)`
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(export_name = "ftruncate")]
pub(crate) unsafe extern "C" fn ftruncate32(fd: c_int, length: off_t) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { ftruncate64(fd, length) }
}

/// `posix_fallocate64(3)`, which returns its error.
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_fallocate64(fd: c_int, offset: off_t, len: off_t) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { allocate(fd, offset, len) }.map_or_else(Errno::raw_os_error, |()| 0)
}

/// `posix_fallocate(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_fallocate(fd: c_int, offset: off_t, len: off_t) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { posix_fallocate64(fd, offset, len) }
}

/// `fstat(2)`
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fstat(fd: c_int, stat: *mut libc::stat) -> c_int {
    // SAFETY: guaranteed by the caller; this library does not interpose libc's `syscall`.
    let result = unsafe { libc::syscall(libc::SYS_fstat, fd, stat) };
    if result != 0 {
        return -1;
    }
    // Files in memory have no link in a directory.
    // SAFETY: the system call just filled the struct.
    let nameless = unsafe { (*stat).st_nlink } == 0;
    if nameless
        && area::shares()
        && let Some(token) = identify(fd)
        && let Ok(object) = call(Call::Hold { object: token.object })
    {
        // SAFETY: see above.
        unsafe { (*stat).st_size = off_t::try_from(object.length).unwrap_or(off_t::MAX) };
    }
    0
}

/// `fstat64(2)`, an alias of `fstat(2)`.
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fstat64(fd: c_int, stat: *mut libc::stat) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { fstat(fd, stat) }
}

/// Sets the length of an object or a file.
///
/// # Safety
/// The contract of `ftruncate(2)` applies.
unsafe fn ftruncate_of(fd: c_int, length: off_t) -> Result<(), Errno> {
    let length = u64::try_from(length).map_err(|_| Errno::INVAL)?;
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: borrowed for this call; a closed descriptor gives an error.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let token = area::shares().then(|| identify(fd)).flatten();
    if let Some(Token { object, read_only }) = token {
        if read_only {
            return Err(Errno::INVAL);
        }
        call(Call::Truncate { object, length })?;
    }
    // The token's own length is for programs that query it past this library.
    ftruncate(file, length)
}

/// Extends an object or a file.
///
/// # Safety
/// The contract of `posix_fallocate(3)` applies.
unsafe fn allocate(fd: c_int, offset: off_t, len: off_t) -> Result<(), Errno> {
    let token = area::shares().then(|| identify(fd)).flatten();
    let Some(token) = token else {
        // SAFETY: guaranteed by the caller; this library does not interpose libc's `syscall`.
        let result = unsafe { libc::syscall(libc::SYS_fallocate, fd, 0, offset, len) };
        return crate::maps::of_syscall(result).map(drop);
    };
    let end = offset.checked_add(len).and_then(|end| u64::try_from(end).ok());
    let Some(end) = end.filter(|_| offset >= 0 && len > 0) else { return Err(Errno::INVAL) };
    let object = call(Call::Hold { object: token.object })?;
    if end <= object.length {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    unsafe { ftruncate_of(fd, off_t::try_from(end).map_err(|_| Errno::FBIG)?) }
}

fn open_object(name: &CStr, flags: c_int) -> Result<OwnedFd, Errno> {
    let name = plain(name)?;
    let read_only = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => true,
        libc::O_RDWR => false,
        _ => return Err(Errno::INVAL),
    };
    let (create, exclusive) = (flags & libc::O_CREAT != 0, flags & libc::O_EXCL != 0);
    let object = named(name, |len| Call::Open { len, create, exclusive })?;
    if flags & libc::O_TRUNC != 0 && object.length > 0 {
        return Err(refused("to cut shared memory to nothing (O_TRUNC): unlink it first", Errno::OPNOTSUPP));
    }
    token(&object, read_only)
}

fn unlink_object(name: &CStr) -> Result<(), Errno> {
    named(plain(name)?, |len| Call::Unlink { len }).map(drop)
}

/// Returns a name without its leading slashes.
fn plain(name: &CStr) -> Result<&[u8], Errno> {
    let name = name.to_bytes();
    let start = name.iter().position(|&byte| byte != b'/').unwrap_or(name.len());
    let name = &name[start..];
    match name.len() {
        0 => Err(Errno::INVAL),
        256.. => Err(Errno::NAMETOOLONG),
        _ if name.contains(&b'/') => Err(Errno::INVAL),
        _ => Ok(name),
    }
}

/// Makes a call with a name.
fn named(name: &[u8], what: impl FnOnce(u64) -> Call) -> Result<Object, Errno> {
    const { assert!(TEXT_MAX >= 255) };
    reached()?;
    mailbox::call_with(name, what(name.len() as u64)).map(Object::of).map_err(errno_of)
}

fn call(call: Call) -> Result<Object, Errno> {
    reached()?;
    mailbox::call_with(&[], call).map(Object::of).map_err(errno_of)
}

/// Returns an error in a process without access to shared memory. Falling back to memory of this host would be
/// wrong.
fn reached() -> Result<(), Errno> {
    if area::is_ready() && LEN.load(Ordering::Relaxed) > 0 {
        return Ok(());
    }
    Err(refused("shared memory: this process has no far memory", Errno::NOSYS))
}

fn errno_of(status: u64) -> Errno {
    Errno::from_raw_os_error(i32::try_from(status).unwrap_or(libc::EIO))
}

fn refused(what: &str, errno: Errno) -> Errno {
    area::say(&["farmem: refused: ", what, "\n"]);
    errno
}

/// Opens an object as libc does, for runs that do not share.
fn open_local(name: &CStr, flags: c_int, mode: mode_t) -> Result<OwnedFd, Errno> {
    let (directory, mut room) = (shm_directory()?, [0; 256]);
    let flags = OFlags::from_bits_retain(flags.cast_unsigned()) | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(&directory, in_directory(plain(name)?, &mut room)?, flags, Mode::from_bits_retain(mode))
        .map_err(|errno| if errno == Errno::ISDIR { Errno::INVAL } else { errno })
}

fn unlink_local(name: &CStr) -> Result<(), Errno> {
    let (directory, mut room) = (shm_directory()?, [0; 256]);
    let result = unlinkat(&directory, in_directory(plain(name)?, &mut room)?, AtFlags::empty());
    result.map_err(|errno| if errno == Errno::PERM { Errno::ACCESS } else { errno })
}

fn shm_directory() -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(c"/dev/shm", flags, Mode::empty()).map_err(|_| Errno::NOSYS)
}

fn in_directory<'a>(name: &[u8], room: &'a mut [u8; 256]) -> Result<&'a CStr, Errno> {
    room[..name.len()].copy_from_slice(name);
    CStr::from_bytes_until_nul(room).map_err(|_| Errno::NAMETOOLONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_as_by_libc() {
        assert_eq!(plain(c"/name"), Ok(&b"name"[..]));
        assert_eq!(plain(c"name"), Ok(&b"name"[..]));
        assert_eq!(plain(c"/"), Err(Errno::INVAL));
        assert_eq!(plain(c"/a/b"), Err(Errno::INVAL));
        let long = std::ffi::CString::new(vec![b'x'; 256]).unwrap();
        assert_eq!(plain(&long), Err(Errno::NAMETOOLONG));
    }
}
