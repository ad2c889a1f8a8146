//! Files of shared words: made whole or not at all, checked before use, mapped for as long as an owner holds them.

use super::atomic::{AtomicU64, Ordering};
use super::ring::WORD;
use crate::OpenError;
use crate::huge::{HUGE, HugeMemory, PageSize};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::{ffi::CString, slice};

/// Version of the layout of rings and doorbells.
const VERSION: u64 = 1;
/// The words that say what a file is.
const IDENTITY_WORDS: usize = 3;

/// The purpose of a file of words; its first word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(super) enum Kind {
    Ring = u64::from_le_bytes(*b"FarmRing"),
    Doorbell = u64::from_le_bytes(*b"FarmBell"),
}

/// Shared words of a file.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<AtomicU64>,
    len: usize,
    /// The address space that it lies in, where that is aligned for huge pages: it unmaps them.
    reserved: Option<HugeMemory>,
}

// SAFETY: the words are atomics, made to be shared; the mapping is only unmapped when the last owner drops it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// An opened file of words.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) mapping: Mapping,
    pub(super) file: File,
    /// True when it was not there before.
    pub(super) is_new: bool,
}

/// Times that a file may vanish between finding it there and opening it.
const OPEN_TRIES_MAX: u32 = 8;

/// Opens the file, or makes it with `words` words. A file that is there keeps its own size.
pub(super) fn open_or_create(path: &Path, kind: Kind, words: usize) -> Result<Opened, OpenError> {
    for _ in 0..OPEN_TRIES_MAX {
        match OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path) {
            Ok(file) => {
                let mapping = check_and_map(path, &file, kind)?;
                return Ok(Opened { mapping, file, is_new: false });
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(refused(path, e)),
        }
        if let Some(file) = create(path, kind, words)? {
            let mapping = check_and_map(path, &file, kind)?;
            return Ok(Opened { mapping, file, is_new: true });
        }
    }
    Err(OpenError::Foreign { path: path.into(), why: "appears and vanishes again and again".into() })
}

/// Opens a file that is there.
#[cfg(test)]
pub(super) fn open(path: &Path, kind: Kind) -> Result<Mapping, OpenError> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    check_and_map(path, &file.map_err(|e| refused(path, e))?, kind)
}

fn refused(path: &Path, e: io::Error) -> OpenError {
    let doing = format!("open {}", path.display());
    match e.raw_os_error() {
        Some(libc::EACCES) => {
            OpenError::NotPermitted { doing, remedy: "run all roles of a rack as one user".into() }
        }
        Some(libc::ELOOP) => OpenError::Foreign { path: path.into(), why: "is a symbolic link".into() },
        _ => OpenError::System { doing, source: e },
    }
}

/// Makes the file nameless, whole and with all its memory, then names it: no process ever sees half a file. `None` when
/// another process was first.
fn create(path: &Path, kind: Kind, words: usize) -> Result<Option<File>, OpenError> {
    let dir = path.parent().unwrap_or_else(|| Path::new("."));
    let doing = || format!("make {}", path.display());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE)
        .open(dir)
        .map_err(OpenError::system(doing()))?;
    let bytes = words * WORD;
    let len = libc::off_t::try_from(bytes).expect("a file's size fits");
    // SAFETY: a system call on a descriptor that `file` keeps open; it touches no memory of ours.
    let refusal = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) };
    if refusal == libc::ENOSPC {
        let remedy =
            format!("free {bytes} bytes there, or mount it larger (`mount -o remount,size=1G /dev/shm`)");
        return Err(OpenError::NoRoom { doing: doing(), remedy });
    }
    if refusal != 0 {
        return Err(OpenError::System { doing: doing(), source: io::Error::from_raw_os_error(refusal) });
    }
    for (place, word) in (0..).step_by(WORD).zip(identity(kind, words)) {
        file.write_all_at(&word.to_le_bytes(), place).map_err(OpenError::system(doing()))?;
    }
    match link(file.as_raw_fd(), path) {
        Ok(()) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(e) => Err(OpenError::System { doing: doing(), source: e }),
    }
}

fn identity(kind: Kind, words: usize) -> [u64; IDENTITY_WORDS] {
    [kind as u64, VERSION, words as u64]
}

fn link(fd: RawFd, path: &Path) -> io::Result<()> {
    let from = CString::new(format!("/proc/self/fd/{fd}"))?;
    let to = CString::new(path.as_os_str().as_bytes())?;
    let (cwd, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both paths are strings with their NUL that outlive the call.
    let done = unsafe { libc::linkat(cwd, from.as_ptr(), cwd, to.as_ptr(), follow) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn check_and_map(path: &Path, file: &File, kind: Kind) -> Result<Mapping, OpenError> {
    let foreign = |why: String| OpenError::Foreign { path: path.into(), why };
    let about = file.metadata().map_err(OpenError::system(format!("look at {}", path.display())))?;
    let us = rustix::process::geteuid().as_raw();
    if !about.is_file() || about.uid() != us {
        return Err(foreign(format!("is not a file of user {us}")));
    }
    let Some(words) = usize::try_from(about.len()).ok().map(|len| len / WORD).filter(|&n| n > IDENTITY_WORDS)
    else {
        return Err(foreign(format!("has {} bytes, too few for what it should be", about.len())));
    };
    let mapping = Mapping::of(file, words).map_err(OpenError::system(format!("map {}", path.display())))?;
    let found: [u64; IDENTITY_WORDS] = std::array::from_fn(|i| mapping.words()[i].load(Ordering::Relaxed));
    let wanted = identity(kind, words);
    if found != wanted {
        return Err(foreign(format!(
            "starts with {found:x?} where {wanted:x?} belongs: another version, or corrupt"
        )));
    }
    Ok(mapping)
}

impl Mapping {
    /// Maps the first `words` words of `file`, which has them.
    pub fn of(file: &impl AsRawFd, words: usize) -> io::Result<Self> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces none of ours.
        let start = unsafe { libc::mmap(ptr::null_mut(), words * WORD, prot, flags, file.as_raw_fd(), 0) };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => {
                Ok(Self { start: start.cast(), len: words, reserved: None })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// As [`Mapping::of`], in huge pages as far as the file fills them and the system gives some, for words that are read in no order: small pages serve too.
    pub fn huge(file: &impl AsRawFd, words: usize) -> io::Result<Self> {
        let len = words * WORD;
        if len < HUGE {
            return Self::of(file, words);
        }
        let reserved = HugeMemory::new(len, PageSize::Small)?;
        let start = reserved.start();
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        let (fixed, fd) = (flags | libc::MAP_FIXED, file.as_raw_fd());
        // SAFETY: the mapping replaces untouched pages of a reservation of ours, and lies wholly within it.
        let mapped = unsafe { libc::mmap(start.as_ptr().cast(), len, prot, fixed, fd, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A kernel without it, or a file system without huge pages, refuses.
        // SAFETY: whole huge pages of what was mapped above; their bytes stay what they are.
        let _small_pages_serve_too =
            unsafe { libc::madvise(start.as_ptr().cast(), len / HUGE * HUGE, libc::MADV_COLLAPSE) };
        Ok(Self { start: start.cast(), len: words, reserved: Some(reserved) })
    }

    /// The words. Another process may change them at any moment, as atomics may.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `start` is page-aligned and mapped read-write for `len` words until drop. All accesses to these words, here and in
        // other processes of the same user, do so atomically; any bit pattern is a valid u64. A file cut short under us
        // would end this process by SIGBUS; the directory's mode 0700 keeps other users from doing that.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A reservation unmaps all that lies in it, and at once: a free address may be mapped by another thread a moment later.
        if self.reserved.is_some() {
            return;
        }
        // SAFETY: exactly the range that `of` mapped; `words` borrows self, so no reference into it is left.
        let _ = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len * WORD) };
    }
}
