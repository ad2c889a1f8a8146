//! The control plane's log on disk: its lines in order, in a redb file, each in its own transaction.
//!
//! Only one process at a time uses the file. The store keeps lines as JSON under increasing numbers; their
//! meaning belongs to the control plane. [`Log::rewrite`] replaces the log by a shorter, equivalent one, in
//! one transaction.
//!
//! A failed write (a full disk, a device with errors) leaves the log unchanged. The file is closed, and
//! opened again before the next line. Any part of a failed line in the file is removed with that line
//! (docs/decisions/2026-11-22-full-disk.md).

use farmem_control::{Log, NotKept, Record};
use farmem_link::{OpenError, private_file, private_state};
use redb::{Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, TableDefinition, TableError};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// The log: line number to JSON.
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// Name of the file in the state directory.
const FILE: &str = "control.redb";
/// Free space in bytes to request from an operator whose disk is full: it suffices for several hundred lines.
/// In a measurement, the next line after a failure took 16 to 32 KiB, and two hundred short lines took 12 KiB
/// more. A log of 3000 lines had 220 KiB. A new log is a file of 300 KiB, mostly holes if the file system
/// supports them.
const ROOM: u64 = 512 << 10;

/// A function that opens the file, called for each opening.
type Opener = Box<dyn FnMut(&Path) -> Result<Database, DatabaseError> + Send>;

/// The log of one control plane.
pub struct ControlStore {
    /// The database; `None` after a failed write, because redb accepts no more writes until the file is
    /// opened again.
    database: Option<Database>,
    opener: Opener,
    file: PathBuf,
    /// The number of the next line.
    next: u64,
}

impl fmt::Debug for ControlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlStore")
            .field("file", &self.file)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl ControlStore {
    /// Opens the log in `directory`, which is created if necessary, and returns its lines.
    ///
    /// # Errors
    /// [`OpenError::InUse`] if another control plane uses the log. [`OpenError::Foreign`] if the file or one
    /// of its lines is not a log. [`OpenError::NoRoom`] if the disk has no space for a new log.
    pub fn open(directory: &Path) -> Result<(Self, Vec<Record>), OpenError> {
        Self::open_by(directory, |file| Database::create(file))
    }

    /// Opens a log as [`ControlStore::open`] does, with a file that `opener` opens, now and after each failed
    /// write. For example, `opener` can use another [`StorageBackend`](redb::StorageBackend) than a file.
    ///
    /// # Errors
    /// The errors of [`ControlStore::open`].
    pub fn open_by(
        directory: &Path,
        mut opener: impl FnMut(&Path) -> Result<Database, DatabaseError> + Send + 'static,
    ) -> Result<(Self, Vec<Record>), OpenError> {
        let file = private(directory)?;
        let path = file.clone();
        // The library asserts some properties of a file instead of returning an error.
        let opened = catch_unwind(AssertUnwindSafe(move || {
            let database = opener(&file).map_err(|error| open_error(&file, error))?;
            let mut store = Self { database: Some(database), opener: Box::new(opener), file, next: 0 };
            let lines = store.load()?;
            Ok((store, lines))
        }));
        let why =
            "is damaged, so the rack's state is unknown; use another state directory, or restore a backup"
                .into();
        opened.unwrap_or_else(|_| Err(OpenError::Foreign { path, why }))
    }

    /// Returns the number of lines.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.next
    }

    /// Returns true if the log has no lines.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.next == 0
    }

    /// Changes the log in one transaction. After an error the log is unchanged, and the file is closed.
    fn write(
        &mut self,
        change: impl FnOnce(&mut redb::Table<'_, u64, &[u8]>) -> Result<(), redb::Error>,
    ) -> Result<(), redb::Error> {
        let next = self.next;
        let (database, reopened) = match self.database.take() {
            Some(database) => (database, false),
            None => ((self.opener)(&self.file)?, true),
        };
        let transaction = database.begin_write()?;
        {
            let mut table = transaction.open_table(LOG)?;
            if reopened {
                // The line of a transaction that failed at its very end may be in the file; its caller got an
                // error (PROTOCOL 8.48).
                table.retain_in(next.., |_, _| false)?;
                let last = table.last()?.map(|(number, _)| number.value());
                if last != next.checked_sub(1) {
                    let why = format!("has {last:?} for its last line, not {next} - 1: it was replaced");
                    return Err(redb::Error::Corrupted(why));
                }
            }
            change(&mut table)?;
        }
        transaction.commit()?;
        self.database = Some(database);
        Ok(())
    }

    fn load(&mut self) -> Result<Vec<Record>, OpenError> {
        if !self.has_table()? {
            self.write(|_| Ok(())).map_err(|error| self.not_made(error))?;
        }
        let Some(database) = &self.database else { return Err(self.foreign("was closed".into())) };
        let transaction = database.begin_read().map_err(|e| self.foreign(e.to_string()))?;
        let table = transaction.open_table(LOG).map_err(|e| self.foreign(e.to_string()))?;
        let mut records = Vec::new();
        for entry in table.iter().map_err(|e| self.foreign(e.to_string()))? {
            let (number, line) = entry.map_err(|e| self.foreign(e.to_string()))?;
            let number = number.value();
            if number != records.len() as u64 {
                return Err(self.foreign(format!("has no line {} before line {number}", records.len())));
            }
            let record = serde_json::from_slice(line.value());
            records.push(record.map_err(|e| self.foreign(format!("has the invalid line {number}: {e}")))?);
        }
        self.next = records.len() as u64;
        Ok(records)
    }

    /// Returns false for a new file. This method does not write, because the disk of an existing file may be
    /// full.
    fn has_table(&self) -> Result<bool, OpenError> {
        let Some(database) = &self.database else { return Ok(false) };
        let transaction = database.begin_read().map_err(|e| self.foreign(e.to_string()))?;
        match transaction.open_table(LOG) {
            Ok(_) => Ok(true),
            Err(TableError::TableDoesNotExist(_)) => Ok(false),
            Err(error) => Err(self.foreign(error.to_string())),
        }
    }

    fn not_made(&self, error: redb::Error) -> OpenError {
        match error {
            redb::Error::Io(source) if is_full(&source) => no_room(&self.file),
            other => self.foreign(format!("cannot be written: {other}")),
        }
    }

    fn foreign(&self, why: String) -> OpenError {
        OpenError::Foreign { path: self.file.clone(), why }
    }
}

/// Returns the log's file in the state directory, which only this user may access, because it contains every
/// key of the rack.
fn private(directory: &Path) -> Result<PathBuf, OpenError> {
    let file = private_state(directory)?.join(FILE);
    drop(private_file(&file)?);
    Ok(file)
}

impl Log for ControlStore {
    fn append(&mut self, line: &Record) -> Result<(), NotKept> {
        let (next, line) = (self.next, encode(line));
        let kept = self.write(|table| Ok(table.insert(next, line.as_slice()).map(drop)?));
        kept.map_err(|error| self.not_kept(&error))?;
        self.next += 1;
        Ok(())
    }

    fn rewrite(&mut self, lines: &[Record]) -> Result<(), NotKept> {
        let written = self.write(|table| {
            table.retain(|_, _| false)?;
            for (number, line) in (0..).zip(lines) {
                table.insert(number, encode(line).as_slice())?;
            }
            Ok(())
        });
        written.map_err(|error| self.not_kept(&error))?;
        self.next = lines.len() as u64;
        Ok(())
    }

    fn lines(&self) -> u64 {
        self.next
    }
}

impl ControlStore {
    /// Returns the error for people: the file, the cause, the free space, and the remedy.
    fn not_kept(&self, error: &redb::Error) -> NotKept {
        let (file, free) = (self.file.display(), free_bytes(&self.file));
        let space = free.map_or(String::new(), |free| format!("; its file system has {free} bytes free"));
        let message = format!("the control plane cannot keep its log {file}: {error}{space}");
        let full = matches!(error, redb::Error::Io(source) if is_full(source));
        let remedy = if full || free.is_some_and(|free| free < ROOM) {
            format!(
                "make room on the file system of {file}, {ROOM} bytes or more; changes are taken again at once, without a restart"
            )
        } else {
            format!("see to the file system of {file}; changes are taken again as soon as it takes writes")
        };
        NotKept { message, remedy }
    }
}

/// Returns the number of bytes that this user may still write to the file system of `file`.
fn free_bytes(file: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(file).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Returns true if the disk, or this user's quota, is full.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn no_room(file: &Path) -> OpenError {
    OpenError::NoRoom {
        doing: format!("make the control plane's log {}", file.display()),
        remedy: format!("free {ROOM} bytes or more there, or choose another state directory"),
    }
}

fn encode(record: &Record) -> Vec<u8> {
    serde_json::to_vec(record).expect("a line has only strings for keys")
}

fn open_error(file: &Path, error: DatabaseError) -> OpenError {
    match error {
        DatabaseError::DatabaseAlreadyOpen => {
            OpenError::InUse { address: format!("the state in {}", file.display()) }
        }
        DatabaseError::Storage(redb::StorageError::Io(source)) if is_full(&source) => no_room(file),
        DatabaseError::Storage(redb::StorageError::Io(source))
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            OpenError::NotPermitted {
                doing: format!("open {}", file.display()),
                remedy: "run as its owner, or choose another state directory".into(),
            }
        }
        other => OpenError::Foreign {
            path: file.to_owned(),
            why: format!("is not a control plane's log: {other}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_control::api::CreateDomain;
    use farmem_control::{Config, Control, Out, Submitted};
    use farmem_machine::{Action, Event, Instant, Machine as _, Outbox, Rng};
    use farmem_wire::Gid;
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("farmem-store-{name}-{}", std::process::id()));
        if path.exists() {
            fs::remove_dir_all(&path).unwrap();
        }
        path
    }

    /// Returns the lines that a new control plane writes when it creates two domains.
    fn lines() -> Vec<Record> {
        let mut control = Control::new(Config::new(Gid::from_v4([127, 0, 0, 1])), Rng::from_number(1));
        let mut out = Outbox::new();
        for (ticket, name) in [(1, "red"), (2, "blue")] {
            let request = CreateDomain { name: name.into() }.into();
            control.handle(Instant::ZERO, Event::Local(Submitted::new(ticket, request)), &mut out);
        }
        let mut lines = Vec::new();
        out.drain(|action| {
            if let Action::Local(Out::Persist(record)) = action {
                lines.push(record);
            }
        });
        lines
    }

    /// Lines survive a restart, in order, and the log continues to grow. A rewritten log is shorter and
    /// complete.
    #[test]
    fn lines_survive() {
        let (directory, lines) = (directory("survive"), lines());
        assert!(lines.len() >= 3, "an endpoint and two domains");
        let (mut store, found) = ControlStore::open(&directory).unwrap();
        assert!(found.is_empty() && store.is_empty());
        lines.iter().for_each(|line| store.append(line).unwrap());
        drop(store);
        let (mut store, found) = ControlStore::open(&directory).unwrap();
        assert_eq!(found, lines);
        store.rewrite(&lines[..2]).unwrap();
        store.append(&lines[2]).unwrap();
        drop(store);
        let (store, found) = ControlStore::open(&directory).unwrap();
        assert_eq!((found.as_slice(), store.len()), (&lines[..3], 3));
        drop(store);
        fs::remove_dir_all(directory).unwrap();
    }

    /// If the disk has changed any bytes, the log is refused, or is complete nevertheless.
    #[test]
    fn damaged_files_are_refused() {
        let (directory, lines) = (directory("damaged"), lines());
        let (mut store, _) = ControlStore::open(&directory).unwrap();
        lines.iter().for_each(|line| store.append(line).unwrap());
        drop(store);
        let file = directory.join(FILE);
        let whole = fs::read(&file).unwrap();
        let mut refused = 0;
        for (start, step) in [(4096, 97), (4096, 4001), (0, 97), (64, 8), (8192, 64)] {
            let mut bytes = whole.clone();
            bytes.iter_mut().skip(start).step_by(step).for_each(|byte| *byte ^= 1);
            fs::write(&file, &bytes).unwrap();
            match ControlStore::open(&directory) {
                Ok((_, found)) => assert_eq!(found, lines, "from {start}, each {step}"),
                Err(error) => {
                    assert!(matches!(error, OpenError::Foreign { .. }), "from {start}, each {step}: {error}");
                    refused += 1;
                }
            }
        }
        assert!(refused >= 3, "{refused} of 5");
        fs::remove_dir_all(directory).unwrap();
    }

    /// A second control plane on the same state is refused, and the first one's lines are unchanged.
    #[test]
    fn the_state_has_one_owner() {
        let directory = directory("owner");
        let (first, _) = ControlStore::open(&directory).unwrap();
        assert!(matches!(ControlStore::open(&directory), Err(OpenError::InUse { .. })));
        drop(first);
        fs::remove_dir_all(directory).unwrap();
    }

    /// A file of another program is named and not changed; the same holds for a line that is not a record.
    #[test]
    fn foreign_files_are_named() {
        let directory = directory("foreign");
        private_state(&directory).unwrap();
        drop(private_file(&directory.join(FILE)).unwrap());
        fs::write(directory.join(FILE), b"a shopping list, long enough to be read as the head of a file")
            .unwrap();
        let error = ControlStore::open(&directory).unwrap_err().to_string();
        assert!(error.contains(FILE), "{error}");
        fs::remove_file(directory.join(FILE)).unwrap();
        let (mut store, _) = ControlStore::open(&directory).unwrap();
        store.write(|table| Ok(table.insert(0, b"{}".as_slice()).map(drop)?)).unwrap();
        drop(store);
        let error = ControlStore::open(&directory).unwrap_err().to_string();
        assert!(error.contains("line 0"), "{error}");
        fs::remove_dir_all(directory).unwrap();
    }

    /// The log contains every key of the rack. A log or directory that others could read is refused with a
    /// message.
    #[test]
    fn a_state_that_others_may_read_is_refused() {
        let directory = directory("open");
        drop(ControlStore::open(&directory).unwrap());
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let file = directory.join(FILE);
        assert_eq!(
            [&directory, &file].map(|path| fs::metadata(path).unwrap().mode() & 0o777),
            [0o700, 0o600]
        );
        for (path, wide, narrow) in [(&directory, 0o755, 0o700), (&file, 0o644, 0o600)] {
            mode(path, wide);
            let text = ControlStore::open(&directory).unwrap_err().to_string();
            let expected = [
                format!("{} is not a", path.display()),
                format!("it has mode {wide:04o}"),
                format!("chmod {narrow:o} {}", path.display()),
            ];
            assert!(expected.iter().all(|part| text.contains(part)), "{text}");
            mode(path, narrow);
        }
        drop(ControlStore::open(&directory).unwrap());
        fs::remove_dir_all(directory).unwrap();
    }
}
