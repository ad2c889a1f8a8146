//! Files that outlive this process: snapshots, and a log of the changes since.
//!
//! Key type: [`Durable`], a directory. `snapshot-N` has the data before `log-N` begins; a start reads the
//! newest snapshot and all logs from its number on. A snapshot gets its name when it is on the disk; only
//! then are older files removed. Both consist of frames with a checksum ([`frame`]).
//!
//! The log has requests, and the time at which each ran. A start runs them at the same times, so keys expire
//! as they did. A frame has all requests of one command or transaction, so a torn frame drops all of them or
//! none.
//!
//! *Room is reserved ahead.* If the disk has no room for a command that writes, the command is refused before its
//! first change (`MISCONF`, as in Redis). So memory and log never differ.

pub(crate) mod frame;
mod saving;

use frame::{HEADER_LEN, MAGIC_LOG};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// The time at which the log is on the disk (`appendfsync`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sync {
    /// Before the reply.
    Always,
    /// A second later at most.
    EverySecond,
    /// When the system writes it.
    No,
}

impl Sync {
    pub(crate) const ALL: [(&str, Self); 3] =
        [("always", Self::Always), ("everysec", Self::EverySecond), ("no", Self::No)];
}

/// Bytes that one reservation takes.
const RESERVE: u64 = 4 << 20;
/// Bytes of an empty buffer that are kept for the next turn.
const KEPT: usize = 256 << 10;
/// Interval of syncs with [`Sync::EverySecond`].
const SECOND: Duration = Duration::from_secs(1);

/// The log that is being written.
#[derive(Debug)]
struct Log {
    file: Arc<File>,
    /// Bytes that are written.
    len: u64,
    /// Bytes that the disk has room for.
    reserved: u64,
    /// Bytes were written and not synced.
    unsynced: Arc<AtomicBool>,
    /// A sync failed: bytes that were written may be lost.
    broken: Arc<AtomicBool>,
}

/// A snapshot under way. The file gets its name when a thread has synced it.
#[derive(Debug)]
pub(crate) struct Saving {
    file: Option<File>,
    path: PathBuf,
    number: u64,
    /// The changes that the snapshot has.
    covers: u64,
    ended: Option<Receiver<io::Result<()>>>,
}

/// The phase of a snapshot.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Its keys are being written.
    Writing,
    /// Its file is being synced.
    Syncing,
}

impl Saving {
    pub(crate) const fn phase(&self) -> Phase {
        if self.ended.is_some() { Phase::Syncing } else { Phase::Writing }
    }
}

/// A directory with snapshots and a log, or none.
#[derive(Debug)]
pub(crate) struct Durable {
    dir: Option<PathBuf>,
    /// The lock of the directory, held while this process has it.
    _lock: Option<File>,
    log: Option<Log>,
    pub(crate) sync: Sync,
    /// Requests of the command that runs.
    entries: Vec<u8>,
    /// Frames that are not written yet.
    frames: Vec<u8>,
    /// The number of the current log, or of the next one.
    pub(crate) number: u64,
    pub(crate) saving: Option<Saving>,
    /// A snapshot begins as soon as none is under way.
    pub(crate) save_is_due: bool,
    /// The time of the last complete snapshot, in seconds since 1970.
    pub(crate) last_save: i64,
    pub(crate) last_save_failed: Option<String>,
    /// Changes that no snapshot has.
    pub(crate) unsaved: u64,
    /// The log is being replayed, so nothing is appended.
    pub(crate) replaying: bool,
    wants_log: bool,
    /// The error of a failed write. Nothing is appended until a restart.
    failed: Option<String>,
    /// The time of the last failed snapshot, in seconds since 1970.
    pub(crate) failed_at: i64,
    /// A thread syncs the log each second.
    every_second: bool,
}

impl Durable {
    /// Returns no directory: the data end with the process.
    pub(crate) const fn none() -> Self {
        Self {
            dir: None,
            _lock: None,
            log: None,
            sync: Sync::EverySecond,
            entries: Vec::new(),
            frames: Vec::new(),
            number: 0,
            saving: None,
            save_is_due: false,
            last_save: 0,
            last_save_failed: None,
            unsaved: 0,
            replaying: false,
            wants_log: false,
            failed: None,
            failed_at: i64::MIN,
            every_second: false,
        }
    }

    /// Opens a directory. [`crate::recovery`] reads its files, and [`Durable::begin`] begins to write.
    pub(crate) fn open(dir: &Path, wants_log: bool, sync: Sync) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(dir.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other(
                    "another server has this directory; stop it, or give another --dir",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let every_second = wants_log && sync == Sync::EverySecond;
        Ok(Self {
            dir: Some(dir.to_owned()),
            _lock: Some(lock),
            sync,
            wants_log,
            every_second,
            ..Self::none()
        })
    }

    /// Returns the protection domain of this directory's server. Each directory has its own, so that a start
    /// frees the far memory of the process before it and nothing else.
    pub(crate) fn domain(&self, name: &str) -> Option<io::Result<String>> {
        let path = self.dir.as_ref()?.join("domain");
        let known =
            std::fs::read_to_string(&path).ok().and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        let number = known.map_or_else(
            || {
                let number = chance()?;
                std::fs::write(&path, format!("{number:016x}\n"))?;
                Ok(number)
            },
            Ok,
        );
        Some(number.map(|number| format!("{name}-{number:016x}")))
    }

    pub(crate) fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Returns whether a thread syncs the log each second. Only then may that be the policy.
    pub(crate) const fn syncs_each_second(&self) -> bool {
        self.every_second
    }

    pub(crate) const fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Returns the bytes that wait to be written in this turn, and of the buffers for them.
    pub(crate) const fn buffered(&self) -> usize {
        self.frames.capacity() + self.entries.capacity()
    }

    pub(crate) fn log_len(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.len)
    }

    /// Begins a log with this number, if logging is enabled. The earlier log stays.
    pub(crate) fn begin(&mut self, number: u64) -> io::Result<()> {
        let (Some(dir), true) = (&self.dir, self.wants_log) else {
            self.number = number;
            return Ok(());
        };
        if let Some(log) = &mut self.log {
            // Reserved room behind the end is freed.
            log.reserved = log.len;
            log.file.set_len(log.len)?;
            log.file.sync_data()?;
        }
        let path = dir.join(log_name(number));
        let (file, len) = open_log(dir, &path).inspect_err(|_| {
            // A log without a head would prevent the next start.
            if std::fs::metadata(&path).is_ok_and(|known| known.len() < HEADER_LEN as u64) {
                let _the_next_start_takes_it_for_empty = std::fs::remove_file(&path);
            }
        })?;
        self.number = number;
        let log = Log {
            file: Arc::new(file),
            len,
            reserved: len,
            unsynced: Arc::default(),
            broken: Arc::default(),
        };
        if self.every_second {
            let (file, unsynced, broken) =
                (Arc::downgrade(&log.file), Arc::clone(&log.unsynced), Arc::clone(&log.broken));
            std::thread::spawn(move || {
                while let Some(file) = file.upgrade() {
                    if unsynced.swap(false, Ordering::AcqRel) && file.sync_data().is_err() {
                        broken.store(true, Ordering::Release);
                    }
                    drop(file);
                    std::thread::sleep(SECOND);
                }
            });
        }
        self.log = Some(log);
        Ok(())
    }

    /// Reserves room for a request of this many bytes. Returns the reason for a refusal, in Redis's words.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), String> {
        let Some(log) = &mut self.log else { return Ok(()) };
        if log.broken.load(Ordering::Acquire) {
            return Err(
                "MISCONF Errors writing to the AOF file: it could not be put on the disk; restart the server"
                    .into(),
            );
        }
        // A frame's head, and each word's length.
        let wanted = log.len + (self.frames.len() + self.entries.len() + 2 * bytes + 256) as u64;
        if wanted <= log.reserved {
            return Ok(());
        }
        // The usual reservation, or what this request takes.
        let mut reserve = |to: u64| {
            let reserved = fallocate(&*log.file, FallocateFlags::KEEP_SIZE, log.len, to - log.len);
            reserved.inspect(|()| log.reserved = to)
        };
        match reserve(wanted + RESERVE).or_else(|_| reserve(wanted)) {
            Ok(()) => {}
            // The file system cannot reserve. The write will fail if there is no room.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => log.reserved = u64::MAX,
            Err(error) => {
                let error = io::Error::from(error);
                return Err(format!("MISCONF Errors writing to the AOF file: {error}"));
            }
        }
        Ok(())
    }

    /// Appends a request that changed something.
    pub(crate) fn append<'a>(&mut self, db: u8, args: impl ExactSizeIterator<Item = &'a [u8]>) {
        self.unsaved += 1;
        if self.log.is_none() || self.replaying {
            return;
        }
        frame::entry(&mut self.entries, db, args);
    }

    /// Ends a frame: all requests of one command, which ran at `now`.
    pub(crate) fn end_frame(&mut self, now: i64) {
        if !self.entries.is_empty() {
            frame::emit(&mut self.frames, now, &self.entries);
            self.entries.clear();
            self.entries.shrink_to(KEPT);
        }
    }

    /// Writes the frames, and syncs them if replies wait for that.
    ///
    /// # Errors
    ///
    /// The system's error. Then the frames do not count, and no further frame is appended.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(log) = &mut self.log else { return Ok(()) };
        // Every caller gets the error: replies of this turn may wait for frames of an earlier attempt.
        if let Some(why) = &self.failed {
            self.frames.clear();
            return Err(io::Error::other(why.clone()));
        }
        if self.frames.is_empty() {
            return Ok(());
        }
        let written = (&*log.file).write_all(&self.frames).and_then(|()| match self.sync {
            Sync::Always => log.file.sync_data(),
            Sync::EverySecond | Sync::No => {
                log.unsynced.store(true, Ordering::Release);
                Ok(())
            }
        });
        let len = self.frames.len() as u64;
        self.frames.clear();
        self.frames.shrink_to(KEPT);
        if let Err(error) = &written {
            self.failed = Some(error.to_string());
            log.broken.store(true, Ordering::Release);
            // The bytes that arrived would be taken for acknowledged requests.
            let _the_next_start_finds_a_torn_end = log.file.set_len(log.len);
        } else {
            log.len += len;
        }
        written
    }

    /// Syncs the written frames.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        self.flush()?;
        if let Some(log) = &mut self.log {
            log.reserved = log.len;
            if log.broken.load(Ordering::Acquire) {
                return Err(io::Error::other("the log could not be put on the disk"));
            }
            log.file.set_len(log.len)?;
            log.file.sync_all()?;
        }
        Ok(())
    }
}

/// Returns a number that cannot be guessed.
pub(crate) fn chance() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Opens a log for appending, and returns its length.
fn open_log(dir: &Path, path: &Path) -> io::Result<(File, u64)> {
    let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    let len = file.seek(SeekFrom::End(0))?;
    if len >= HEADER_LEN as u64 {
        return Ok((file, len));
    }
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&frame::head(MAGIC_LOG))?;
    file.sync_all()?;
    File::open(dir)?.sync_all()?;
    Ok((file, HEADER_LEN as u64))
}

/// Returns the name of a log.
pub(crate) fn log_name(number: u64) -> String {
    format!("log-{number:016x}")
}

/// Returns the name of a snapshot.
pub(crate) fn snapshot_name(number: u64) -> String {
    format!("snapshot-{number:016x}")
}

/// Returns the number of a file whose name has this prefix.
pub(crate) fn number_of(name: &str, kind: &str) -> Option<u64> {
    let digits = name.strip_prefix(kind)?.strip_prefix('-')?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}
