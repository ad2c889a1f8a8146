//! Files of shared words: created atomically, checked before use, and mapped until the owner's drop.

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
/// Number of words that identify a file.
const IDENTITY_WORDS: usize = 3;

/// The purpose of a file of words, in its first word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(super) enum Kind {
    Ring = u64::from_le_bytes(*b"FarmRing"),
    Doorbell = u64::from_le_bytes(*b"FarmBell"),
}

/// The shared words of a file.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<AtomicU64>,
    len: usize,
    /// The address space of an aligned mapping for huge pages, which unmaps the words.
    reserved: Option<HugeMemory>,
}

// SAFETY: the words are atomics, which threads may share; only the last owner's drop unmaps them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// An opened file of words.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) mapping: Mapping,
    pub(super) file: File,
    /// True if the file did not exist before.
    pub(super) is_new: bool,
}

/// Number of times that a file may vanish between its discovery and its opening.
const OPEN_TRIES_MAX: u32 = 8;

/// Opens the file, or creates it with `words` words. An existing file keeps its size.
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
    Err(OpenError::Foreign { path: path.into(), why: "appears and vanishes repeatedly".into() })
}

/// Opens an existing file.
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

/// Creates the file without a name, complete and with allocated memory, then names it, so no process sees an
/// incomplete file. Returns `None` if another process was first.
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
    // SAFETY: a system call on a descriptor that `file` keeps open; it accesses no memory of this process.
    let refusal = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) };
    if refusal == libc::ENOSPC {
        let remedy =
            format!("free {bytes} bytes there, or mount a larger one (`mount -o remount,size=1G /dev/shm`)");
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
    // SAFETY: both paths are NUL-terminated strings that outlive the call.
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
        return Err(foreign(format!("has {} bytes, which is too short", about.len())));
    };
    let mapping = Mapping::of(file, words).map_err(OpenError::system(format!("map {}", path.display())))?;
    let found: [u64; IDENTITY_WORDS] = std::array::from_fn(|i| mapping.words()[i].load(Ordering::Relaxed));
    let wanted = identity(kind, words);
    if found != wanted {
        return Err(foreign(format!(
            "starts with {found:x?} instead of {wanted:x?}: another version, or corrupt"
        )));
    }
    Ok(mapping)
}

impl Mapping {
    /// Maps the first `words` words of `file`, which must have them.
    pub fn of(file: &impl AsRawFd, words: usize) -> io::Result<Self> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice replaces no existing one.
        let start = unsafe { libc::mmap(ptr::null_mut(), words * WORD, prot, flags, file.as_raw_fd(), 0) };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => {
                Ok(Self { start: start.cast(), len: words, reserved: None })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Maps words as [`Mapping::of`] does, for random access. Huge pages are used as far as the file fills
    /// them and the system provides them, otherwise small pages.
    pub fn huge(file: &impl AsRawFd, words: usize) -> io::Result<Self> {
        let len = words * WORD;
        if len < HUGE {
            return Self::of(file, words);
        }
        let reserved = HugeMemory::new(len, PageSize::Small)?;
        let start = reserved.start();
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        let (fixed, fd) = (flags | libc::MAP_FIXED, file.as_raw_fd());
        // SAFETY: the mapping replaces untouched pages of this reservation, and lies within it.
        let mapped = unsafe { libc::mmap(start.as_ptr().cast(), len, prot, fixed, fd, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // An older kernel, or a file system without huge pages, refuses.
        // SAFETY: whole huge pages of the new mapping; their bytes do not change.
        let _small_pages_serve_too =
            unsafe { libc::madvise(start.as_ptr().cast(), len / HUGE * HUGE, libc::MADV_COLLAPSE) };
        Ok(Self { start: start.cast(), len: words, reserved: Some(reserved) })
    }

    /// Returns the words. Another process may change them at any moment, as with all atomics.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `start` is page-aligned and mapped read-write for `len` words until the drop. All accesses
        // to these words, here and in other processes of the same user, are atomic; any bit pattern is a
        // valid u64. Truncation of the file would end this process by SIGBUS; the directory's mode 0700 keeps
        // other users from that.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The reservation unmaps its whole range. A second unmap is not allowed, because another thread may
        // map a free address a moment later.
        if self.reserved.is_some() {
            return;
        }
        // SAFETY: exactly the range that `of` mapped; `words` borrows self, so no reference into it is left.
        let _ = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len * WORD) };
    }
}
