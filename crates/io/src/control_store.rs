//! The control plane's log on disk: its lines in order, in a redb file, each in a transaction of its own.
//!
//! The file belongs to one process at a time. What the lines mean is the control plane's business; here they are JSON under growing
//! numbers. [`ControlStore::rewrite`] puts a shorter, equal log in the place of the whole, in one transaction.

use crate::{OpenError, private_file, private_state};
use farmem_control::Record;
use redb::{Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The log: line number to JSON.
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// The file in the state directory.
const FILE: &str = "control.redb";

/// The log of one control plane.
pub struct ControlStore {
    database: Database,
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
    /// Opens the log in `directory`, which is made when it is not there, and gives its lines.
    ///
    /// # Errors
    /// [`OpenError::InUse`] when another control plane has it, [`OpenError::Foreign`] when the file or a line of it is not a log.
    pub fn open(directory: &Path) -> Result<(Self, Vec<Record>), OpenError> {
        let file = private(directory)?;
        let database = Database::create(&file).map_err(|error| open_error(&file, error))?;
        let mut store = Self { database, file, next: 0 };
        let lines = store.load()?;
        Ok((store, lines))
    }

    /// Keeps a line. When this returns, it survives a crash of the machine.
    ///
    /// # Errors
    /// When the disk does not take it: then the control plane must stop, for nobody was told yet.
    pub fn append(&mut self, record: &Record) -> io::Result<()> {
        let next = self.next;
        self.write(|table| {
            table.insert(next, encode(record)?.as_slice()).map(drop).map_err(io::Error::other)
        })?;
        self.next += 1;
        Ok(())
    }

    /// Puts `records` in the place of all lines, at once.
    ///
    /// # Errors
    /// When the disk does not take it; the old lines are still there.
    pub fn rewrite(&mut self, records: &[Record]) -> io::Result<()> {
        self.write(|table| {
            table.retain(|_, _| false).map_err(io::Error::other)?;
            for (number, record) in (0..).zip(records) {
                table.insert(number, encode(record)?.as_slice()).map_err(io::Error::other)?;
            }
            Ok(())
        })?;
        self.next = records.len() as u64;
        Ok(())
    }

    /// Lines kept.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.next
    }

    /// True when no line is kept.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.next == 0
    }

    fn write(
        &self,
        change: impl FnOnce(&mut redb::Table<'_, u64, &[u8]>) -> io::Result<()>,
    ) -> io::Result<()> {
        let transaction = self.database.begin_write().map_err(io::Error::other)?;
        {
            let mut table = transaction.open_table(LOG).map_err(io::Error::other)?;
            change(&mut table)?;
        }
        transaction.commit().map_err(io::Error::other)
    }

    fn load(&mut self) -> Result<Vec<Record>, OpenError> {
        // Makes the table in a new file, so that reading finds one.
        self.write(|_| Ok(())).map_err(|e| self.foreign(format!("cannot be written: {e}")))?;
        let transaction = self.database.begin_read().map_err(|e| self.foreign(e.to_string()))?;
        let table = transaction.open_table(LOG).map_err(|e| self.foreign(e.to_string()))?;
        let mut records = Vec::new();
        for entry in table.iter().map_err(|e| self.foreign(e.to_string()))? {
            let (number, line) = entry.map_err(|e| self.foreign(e.to_string()))?;
            let number = number.value();
            if number != records.len() as u64 {
                return Err(self.foreign(format!("has no line {} before line {number}", records.len())));
            }
            let record = serde_json::from_slice(line.value());
            records.push(
                record.map_err(|e| self.foreign(format!("has a line {number} that is no record: {e}")))?,
            );
        }
        self.next = records.len() as u64;
        Ok(records)
    }

    fn foreign(&self, why: String) -> OpenError {
        OpenError::Foreign { path: self.file.clone(), why }
    }
}

/// The log's file in the state directory, which only this user may get at: it holds every key of the rack.
fn private(directory: &Path) -> Result<PathBuf, OpenError> {
    let file = private_state(directory)?.join(FILE);
    drop(private_file(&file)?);
    Ok(file)
}

fn encode(record: &Record) -> io::Result<Vec<u8>> {
    serde_json::to_vec(record).map_err(io::Error::other)
}

fn open_error(file: &Path, error: DatabaseError) -> OpenError {
    match error {
        DatabaseError::DatabaseAlreadyOpen => {
            OpenError::InUse { address: format!("the state in {}", file.display()) }
        }
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
    use farmem_control::api::Request;
    use farmem_control::{Ask, Config, Control, Out};
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

    /// The lines that a new control plane keeps when it makes two domains.
    fn lines() -> Vec<Record> {
        let mut control = Control::new(Config::new(Gid::from_v4([127, 0, 0, 1])), Rng::from_number(1));
        let mut out = Outbox::new();
        for (ticket, name) in [(1, "red"), (2, "blue")] {
            let request = Request::CreateDomain { name: name.into() };
            control.handle(Instant::ZERO, Event::Local(Ask { ticket, request }), &mut out);
        }
        let mut lines = Vec::new();
        out.drain(|action| {
            if let Action::Local(Out::Persist(record)) = action {
                lines.push(record);
            }
        });
        lines
    }

    /// What was kept is there after a restart, in order, and goes on growing; a rewritten log is shorter and as whole.
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

    /// A second control plane on the same state is told so, and the first one's lines are untouched.
    #[test]
    fn the_state_has_one_owner() {
        let directory = directory("owner");
        let (first, _) = ControlStore::open(&directory).unwrap();
        assert!(matches!(ControlStore::open(&directory), Err(OpenError::InUse { .. })));
        drop(first);
        fs::remove_dir_all(directory).unwrap();
    }

    /// A file of something else is named and left alone; so is a line that is no record.
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
        let (store, _) = ControlStore::open(&directory).unwrap();
        store.write(|table| table.insert(0, b"{}".as_slice()).map(drop).map_err(io::Error::other)).unwrap();
        drop(store);
        let error = ControlStore::open(&directory).unwrap_err().to_string();
        assert!(error.contains("line 0"), "{error}");
        fs::remove_dir_all(directory).unwrap();
    }

    /// The log holds every key of the rack. Others who could read the one that was made before, or the directory, are not kept silent about.
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
