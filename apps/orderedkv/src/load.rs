//! Loads a store from a file: CSV or Parquet, with keys from one column, and values from another or the rows'
//! numbers.
//!
//! Key types: [`Source`], the file and its interpretation; [`load`]; [`Loaded`]. The file is read twice, row
//! by row. The first pass checks everything, so that nothing is written of a file with a bad last row. The
//! second pass writes. Ascending numbers go into an empty store as a bulk load, which is all or nothing and
//! keeps 16 bytes per row in memory. Other keys are inserted one by one, and the last row of a key wins. Rows
//! are not sorted first: an insertion costs one WRITE and one traversal in any order, but an external sort
//! would need the file's size on a disk.
//!
//! *Resuming*: a load by insertion records its progress in the store every 1,024 rows, with a hash of all
//! rows. Repeating the command for the same rows resumes there. An interrupted bulk load leaves the store
//! empty and starts again.

use crate::keys::{KeyKind, KeyType, slice};
use crate::store::{Access, Store, StoreError, VALUE_LEN_MAX, emit};
use farmem::Client;
use farmem_workload::Failure;
use serde::Serialize;
use std::path::PathBuf;

mod rows;

pub use rows::{Column, Fault, FilePosition, Format, Row, RowError, Rows};

/// Rows between two progress records in the store.
const NOTE_EVERY: u64 = 1_024;
/// Keys per leaf after a bulk load: as full as leaves are after random insertions.
const FILL: usize = 10;
/// Rows between two progress reports.
const TELL_EVERY: u64 = 256;

/// A file, and its interpretation.
#[derive(Clone, Debug)]
pub struct Source {
    /// The path.
    pub file: PathBuf,
    /// The format.
    pub format: Format,
    /// The column of the keys.
    pub key: Column,
    /// The column of the values; without it, values are row numbers from 1 on, in decimal.
    pub value: Option<Column>,
    /// The type of the keys.
    pub key_type: KeyType,
    /// True when the first line of a CSV file has names.
    pub header: bool,
    /// The field separator of a CSV file.
    pub delimiter: u8,
    /// The value of a row whose value in a Parquet file is null.
    pub null: Vec<u8>,
}

impl Source {
    fn failure(&self, error: &RowError) -> Failure {
        let remedy = match error.fault {
            Fault::Key(_) | Fault::KeyLength(_) => {
                "--key-type says what keys are, --key which column has them"
            }
            Fault::NoColumn { .. } => "--key and --value take a name, or a number from 1 on",
            Fault::NamedTwice { .. } => "say which by its number",
            Fault::Quote => "close the quote; a quote within a quoted field is written twice",
            Fault::Encoding(encoding) => encoding.remedy,
            Fault::File(_) => "name another file",
            _ => "",
        };
        Failure::new(format!("{}: {error}", self.file.display()), remedy)
    }

    /// Returns the rows from the first one on.
    ///
    /// # Errors
    /// [`Failure`] when the file cannot be read or lacks the columns.
    pub fn rows(&self) -> Result<Rows, Failure> {
        Rows::open(self).map_err(|error| self.failure(&error))
    }
}

/// The stage of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The file is being checked; its number of rows is not known yet.
    Check,
    /// Rows are being written.
    Write,
}

/// The result of a load.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Loaded {
    /// Number of rows in the file.
    pub rows: u64,
    /// True when the keys ascend.
    pub ascending: bool,
    /// True when the rows were bulk-loaded into an empty store.
    pub bulk: bool,
    /// Number of rows that an earlier load had written.
    pub resumed_at: u64,
    /// Number of rows whose key existed already.
    pub replaced: u64,
    /// True when the load was stopped before its end.
    pub stopped: bool,
}

/// Loads a file into the store called `name`, which is created if necessary. Calls `progress` with the work
/// done and the total, and checks `stop` between rows.
///
/// # Errors
/// [`Failure`] with the file, the position in it and the expectation; or the store's refusal.
pub fn load(
    client: &mut Client,
    name: &str,
    access: Access,
    source: &Source,
    progress: &mut dyn FnMut(Stage, u64, u64),
    stop: &dyn Fn() -> bool,
) -> Result<Loaded, Failure> {
    let checked = check(source, &mut |rows| progress(Stage::Check, rows, 0), stop)?;
    let mut loaded = Loaded {
        rows: checked.rows,
        ascending: checked.ascending,
        bulk: false,
        resumed_at: 0,
        replaced: 0,
        stopped: checked.stopped,
    };
    if checked.stopped {
        return Ok(loaded);
    }
    let mut store = Store::create(client, name, source.key_type.kind(), access).map_err(failed)?;
    let written = write(client, &mut store, source, &checked, &mut loaded, progress, stop);
    // Also after a failure: the lock must be free for the next program.
    let closed = store.close(client);
    written?;
    closed?;
    Ok(loaded)
}

fn failed(error: StoreError) -> Failure {
    Failure::new(error.to_string(), error.remedy())
}

/// The result of checking a file.
struct FileCheck {
    rows: u64,
    ascending: bool,
    /// A hash of all keys and values.
    hash: u64,
    stopped: bool,
}

/// Checks every row.
fn check(
    source: &Source,
    progress: &mut dyn FnMut(u64),
    stop: &dyn Fn() -> bool,
) -> Result<FileCheck, Failure> {
    let mut checked = FileCheck { rows: 0, ascending: true, hash: 0xcbf2_9ce4_8422_2325, stopped: false };
    let (mut rows, mut before): (_, Option<Vec<u8>>) = (source.rows()?, None);
    while let Some(row) = rows.next() {
        let row = row.map_err(|error| source.failure(&error))?;
        let wrong = |fault| source.failure(&rows.wrong(fault));
        let key = source.key_type.kind().encode(&row.key);
        let key = key.map_err(|error| wrong(Fault::KeyLength(error.to_string())))?;
        if row.value.len() > VALUE_LEN_MAX {
            return Err(wrong(Fault::ValueLength(row.value.len())));
        }
        for bytes in [&row.key, &row.value] {
            // FNV-1a with the length first: different lists of fields give different bytes.
            let len = (bytes.len() as u64).to_le_bytes();
            for byte in len.iter().chain(bytes) {
                checked.hash = (checked.hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
        checked.ascending &= before.is_none_or(|before| before < key);
        before = Some(key);
        checked.rows += 1;
        if checked.rows.is_multiple_of(TELL_EVERY) {
            progress(checked.rows);
            if stop() {
                checked.stopped = true;
                break;
            }
        }
    }
    Ok(checked)
}

fn write(
    client: &mut Client,
    store: &mut Store,
    source: &Source,
    checked: &FileCheck,
    loaded: &mut Loaded,
    progress: &mut dyn FnMut(Stage, u64, u64),
    stop: &dyn Fn() -> bool,
) -> Result<(), Failure> {
    let is_empty = store.first().tree().scan(client, .., 1)?.is_empty();
    if is_empty && checked.ascending && store.kind() != KeyKind::Text {
        return bulk(client, store, source, loaded, progress);
    }
    let (file, noted) = store.load_mark(client)?;
    if file == checked.hash {
        loaded.resumed_at = noted;
    }
    let mut rows = source.rows()?;
    for number in 1..=checked.rows {
        let row = rows.next().ok_or_else(|| changed(source))?.map_err(|error| source.failure(&error))?;
        if number <= loaded.resumed_at {
            continue;
        }
        let was = store.set(client, &row.key, &row.value).map_err(|error| {
            let at = RowError { place: rows.place(), fault: Fault::Store(error.to_string()) };
            Failure::new(format!("{}: {at}", source.file.display()), error.remedy())
        })?;
        loaded.replaced += u64::from(was);
        if number.is_multiple_of(TELL_EVERY) {
            progress(Stage::Write, number, checked.rows);
        }
        let stopped = stop();
        if stopped || number.is_multiple_of(NOTE_EVERY) {
            store.mark_load(client, (checked.hash, number))?;
        }
        if stopped {
            loaded.stopped = true;
            return Ok(());
        }
    }
    // The next load of the same rows is a new one.
    Ok(store.mark_load(client, (0, 0))?)
}

fn changed(source: &Source) -> Failure {
    Failure::new(
        format!("{}: the file changed after it was checked", source.file.display()),
        "load it when nothing writes to it",
    )
}

fn bulk(
    client: &mut Client,
    store: &mut Store,
    source: &Source,
    loaded: &mut Loaded,
    progress: &mut dyn FnMut(Stage, u64, u64),
) -> Result<(), Failure> {
    loaded.bulk = true;
    let mut failure = None;
    let (kind, total) = (store.kind(), loaded.rows);
    let pairs = Exact {
        left: usize::try_from(total).map_err(|_| Failure::new("more rows than this machine counts", ""))?,
        rows: source.rows()?,
        total,
        kind,
        last: 0,
        progress,
        failure: &mut failure,
        source,
    };
    let (tree, heap) = store.first_mut();
    let written = tree.load(client, heap, pairs, FILL);
    if let Some(failure) = failure {
        return Err(failure);
    }
    Ok(written?)
}

/// An iterator of exactly as many rows as were counted. If rows are missing or have become invalid, a key
/// repeats, which ends the load.
struct Exact<'a> {
    rows: Rows,
    left: usize,
    total: u64,
    kind: KeyKind,
    last: u64,
    progress: &'a mut dyn FnMut(Stage, u64, u64),
    failure: &'a mut Option<Failure>,
    source: &'a Source,
}

impl Iterator for Exact<'_> {
    type Item = (u64, Vec<u8>);

    fn next(&mut self) -> Option<(u64, Vec<u8>)> {
        self.left = self.left.checked_sub(1)?;
        let done = self.total - self.left as u64;
        if done.is_multiple_of(TELL_EVERY) {
            (self.progress)(Stage::Write, done, self.total);
        }
        let row = match self.rows.next() {
            Some(Ok(row)) => self.kind.encode(&row.key).ok().map(|key| (slice(&key, 0), row.value)),
            _ => None,
        };
        match row.filter(|(key, _)| done == 1 || *key > self.last) {
            Some((key, value)) => {
                self.last = key;
                Some((key, emit(&[], &value)))
            }
            None => {
                self.failure.get_or_insert_with(|| changed(self.source));
                Some((self.last, emit(&[], b"")))
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Exact<'_> {}
