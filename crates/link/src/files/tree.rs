//! A directory of files, in which names lead only to regular files of this directory (PROTOCOL 20.1 to 20.5).

use farmem_memnode::FileOutcome;
use farmem_wire::message::{FileCause, FileFault};
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat, fsync, openat,
    renameat, statat, unlinkat,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Prefix of a new file's name until the file is complete and renamed.
const NEW: &str = ".farmem-";

/// The directory, with its open files.
#[derive(Debug)]
pub(super) struct Tree {
    root: OwnedFd,
    open: BTreeMap<u64, Open>,
}

#[derive(Debug)]
enum Open {
    /// A file that is read, with its state at the opening.
    Read { file: OwnedFd, length: u64, stamp: u64 },
    /// A new file.
    New(New),
}

/// A new file, locked while it is open. A drop removes the file unless it was renamed to its name.
#[derive(Debug)]
struct New {
    file: OwnedFd,
    directory: OwnedFd,
    own: String,
    name: String,
    /// Length so far.
    length: u64,
    named: bool,
}

impl Drop for New {
    fn drop(&mut self) {
        if !self.named {
            // If the removal fails, the next new file in this directory removes it.
            let _removed = unlinkat(&self.directory, &self.own, AtFlags::empty());
        }
    }
}

/// The cause of a failure, and its offset in the file.
type Failed = (FileCause, Option<Errno>, u64);

fn of_system(errno: Errno, at: u64) -> Failed {
    let cause = match errno {
        Errno::NOENT => FileCause::Missing,
        Errno::LOOP | Errno::NOTDIR | Errno::ISDIR | Errno::NXIO => FileCause::Kind,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => FileCause::Denied,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => FileCause::Full,
        _ => FileCause::System,
    };
    (cause, Some(errno), at)
}

fn at_start(errno: Errno) -> Failed {
    of_system(errno, 0)
}

fn told(result: Result<FileOutcome, Failed>) -> FileOutcome {
    result.unwrap_or_else(|(cause, errno, at)| {
        let errno = errno.map_or(0, |errno| errno.raw_os_error().unsigned_abs());
        FileOutcome::Failed(FileFault { cause, errno, at })
    })
}

/// Returns the stamp of a file's current content, never 0 (PROTOCOL 20.3): FNV-1a over identity and times,
/// the same in any build.
fn stamp(stat: &Stat) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let times = [
        i128::from(stat.st_mtime),
        i128::from(stat.st_mtime_nsec),
        i128::from(stat.st_ctime),
        i128::from(stat.st_ctime_nsec),
    ];
    let numbers = [i128::from(stat.st_ino), i128::from(stat.st_size)].into_iter().chain(times);
    let bytes = numbers.flat_map(i128::to_le_bytes);
    bytes.fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME)).max(1)
}

fn length(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

impl Tree {
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let root = openat(CWD, directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { root, open: BTreeMap::new() })
    }

    pub(super) fn look(&self, name: &str) -> FileOutcome {
        told(
            self.regular(name)
                .map(|(_, stat)| FileOutcome::Opened { length: length(&stat), stamp: stamp(&stat) }),
        )
    }

    pub(super) fn load(&mut self, id: u64, name: &str) -> FileOutcome {
        told(self.regular(name).map(|(file, stat)| {
            let (length, stamp) = (length(&stat), stamp(&stat));
            self.open.insert(id, Open::Read { file, length, stamp });
            FileOutcome::Opened { length, stamp }
        }))
    }

    pub(super) fn save(&mut self, id: u64, name: &str) -> FileOutcome {
        told(self.begin(id, name).map(|new| {
            self.open.insert(id, Open::New(new));
            FileOutcome::Opened { length: 0, stamp: 0 }
        }))
    }

    pub(super) fn read(&mut self, id: u64, offset: u64, len: u32) -> FileOutcome {
        let Some(Open::Read { file, .. }) = self.open.get(&id) else {
            unreachable!("the role reads files that it has open to be read")
        };
        let mut bytes = vec![0; len as usize];
        let mut done = 0;
        let result = loop {
            match rustix::io::pread(file, &mut bytes[done..], offset + done as u64) {
                _ if done == bytes.len() => break Ok(FileOutcome::Read { offset, bytes }),
                Ok(0) => break Err((FileCause::Short, None, offset + done as u64)),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => break Err(of_system(errno, offset + done as u64)),
            }
        };
        self.or_forget(id, result)
    }

    pub(super) fn write(&mut self, id: u64, offset: u64, bytes: &[u8]) -> FileOutcome {
        let Some(Open::New(new)) = self.open.get_mut(&id) else {
            unreachable!("the role writes files that it has begun")
        };
        let mut done = 0;
        let result = loop {
            if done == bytes.len() {
                new.length = new.length.max(offset + done as u64);
                break Ok(FileOutcome::Written { offset });
            }
            match rustix::io::pwrite(&new.file, &bytes[done..], offset + done as u64) {
                Ok(0) => break Err((FileCause::Full, None, offset + done as u64)),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => break Err(of_system(errno, offset + done as u64)),
            }
        };
        self.or_forget(id, result)
    }

    pub(super) fn finish(&mut self, id: u64) -> FileOutcome {
        let result = match self.open.remove(&id) {
            Some(Open::Read { file, length: had, stamp: was }) => unchanged(&file, had, was),
            Some(Open::New(new)) => new.finish(),
            None => unreachable!("the role finishes files that it has open"),
        };
        told(result)
    }

    pub(super) fn forget(&mut self, id: u64) {
        self.open.remove(&id);
    }

    fn or_forget(&mut self, id: u64, result: Result<FileOutcome, Failed>) -> FileOutcome {
        if result.is_err() {
            self.forget(id);
        }
        told(result)
    }

    /// Returns the directory of a name, and the name's last part. Each directory is opened from its parent,
    /// and none may be a symbolic link.
    fn parent<'a>(&self, name: &'a str) -> Result<(OwnedFd, &'a str), Failed> {
        let (way, last) = name.rsplit_once('/').map_or((None, name), |(way, last)| (Some(way), last));
        let mut directory = self
            .root
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| at_start(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        for part in way.into_iter().flat_map(|way| way.split('/')) {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            directory = openat(&directory, part, flags, Mode::empty()).map_err(at_start)?;
        }
        Ok((directory, last))
    }

    /// Opens the regular file of a name for reading. The call does not wait for a FIFO.
    fn regular(&self, name: &str) -> Result<(OwnedFd, Stat), Failed> {
        let (directory, last) = self.parent(name)?;
        let seen = statat(&directory, last, AtFlags::SYMLINK_NOFOLLOW).map_err(at_start)?;
        if !is_regular(&seen) {
            return Err((FileCause::Kind, None, 0));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&directory, last, flags, Mode::empty()).map_err(at_start)?;
        let stat = fstat(&file).map_err(at_start)?;
        if !is_regular(&stat) {
            return Err((FileCause::Kind, None, 0));
        }
        if length(&stat) == 0 {
            return Err((FileCause::Length, None, 0));
        }
        Ok((file, stat))
    }

    /// Creates a new file in the same directory as the file of this name, with its permissions.
    fn begin(&self, id: u64, name: &str) -> Result<New, Failed> {
        let (directory, last) = self.parent(name)?;
        let old = match statat(&directory, last, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(old) if !is_regular(&old) => return Err((FileCause::Kind, None, 0)),
            Ok(old) => Some(old),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(at_start(errno)),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(&directory, ".", flags, Mode::empty()).map_err(at_start)?;
        remove_left(&directory);
        let own = format!("{NEW}{}-{id}", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = openat(&directory, &own, flags, mode).map_err(at_start)?;
        let new = New { file, directory, own, name: last.to_owned(), length: 0, named: false };
        flock(&new.file, FlockOperation::NonBlockingLockExclusive).map_err(at_start)?;
        if let Some(old) = old {
            fchmod(&new.file, Mode::from_raw_mode(old.st_mode)).map_err(at_start)?;
        }
        Ok(new)
    }
}

/// Checks that a file has not changed since it was opened.
fn unchanged(file: &OwnedFd, had: u64, was: u64) -> Result<FileOutcome, Failed> {
    let stat = fstat(file).map_err(|errno| of_system(errno, had))?;
    let (has, is) = (length(&stat), stamp(&stat));
    if (has, is) == (had, was) {
        Ok(FileOutcome::Finished { stamp: is })
    } else {
        Err((FileCause::Changed, None, has))
    }
}

impl New {
    fn finish(mut self) -> Result<FileOutcome, Failed> {
        let at = self.length;
        let failed = |errno| of_system(errno, at);
        fsync(&self.file).map_err(failed)?;
        renameat(&self.directory, &self.own, &self.directory, &self.name).map_err(failed)?;
        self.named = true;
        fsync(&self.directory).map_err(failed)?;
        let stat = fstat(&self.file).map_err(failed)?;
        Ok(FileOutcome::Finished { stamp: stamp(&stat) })
    }
}

/// Removes unfinished files of nodes that have ended: no process holds their locks.
fn remove_left(directory: &OwnedFd) {
    let Ok(entries) = Dir::read_from(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.to_bytes().starts_with(NEW.as_bytes()) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let left = openat(directory, name, flags, Mode::empty());
        let free = left.is_ok_and(|left| flock(&left, FlockOperation::NonBlockingLockExclusive).is_ok());
        if free {
            // A file that cannot be removed does no harm.
            let _removed = unlinkat(directory, name, AtFlags::empty());
        }
    }
}
