//! Filling a store from a file: CSV or Parquet, keys of one column, values of another or the rows' numbers.
//!
//! Key types: [`Source`], what is read and how; [`load`]; [`Loaded`]. The file is read twice, row by row: first all of it is looked at, so that nothing is written
//! of a file whose last row is wrong; then it is written. Numbers in ascending order go into an empty store as a bulk load, which is all or nothing and keeps 16 bytes of each row
//! meanwhile. Anything else is put key by key, the last row of a key last. No order is made first: each insertion is one WRITE and one traversal whatever the order, where runs that were
//! sorted and merged would need the file's size on a disk.
//!
//! *Going on*: a load that is put key by key notes in the store, every 1,024 rows, how far it is, with a hash of all rows. The same command for the same rows goes on there. A
//! bulk load that ended early has left the store empty, and begins anew.

use crate::keys::{KeyKind, slice};
use crate::store::{Access, Store, StoreError, VALUE_LEN_MAX, emit};
use farmem::Client;
use farmem_workload::Failure;
use serde::Serialize;
use std::path::PathBuf;

mod rows;

pub use rows::{Column, Fault, Format, Place, Row, RowError, Rows};

/// Rows between two notes of how far a load is.
const NOTE_EVERY: u64 = 1_024;
/// Keys of a leaf after a bulk load: as full as leaves are after insertions in any order.
const FILL: usize = 10;
/// Rows between two tellings of progress.
const TELL_EVERY: u64 = 256;

/// What a key's column has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
#[value(rename_all = "lower")]
pub enum KeyType {
    /// Whole numbers of 0 to 2^64 - 1.
    U64,
    /// Whole numbers of -2^63 to 2^63 - 1.
    I64,
    /// Text, or any bytes.
    String,
    /// Times: RFC 3339, without a zone UTC, a date alone its first moment; or a Parquet timestamp. Keys are microseconds since 1970 in UTC.
    Timestamp,
}

impl KeyType {
    /// The keys of a store of them.
    #[must_use]
    pub const fn kind(self) -> KeyKind {
        match self {
            Self::U64 => KeyKind::U64,
            Self::I64 | Self::Timestamp => KeyKind::I64,
            Self::String => KeyKind::Text,
        }
    }
}

/// A file, and what of it is read.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where it is.
    pub file: PathBuf,
    /// What it is.
    pub format: Format,
    /// The keys' column.
    pub key: Column,
    /// The values' column; without one the values are row numbers from 1 on, in decimal.
    pub value: Option<Column>,
    /// What the keys are.
    pub key_type: KeyType,
    /// Whether the first line of a CSV file has names.
    pub header: bool,
    /// What is between two fields of a CSV file.
    pub delimiter: u8,
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
            Fault::File(_) => "name another file",
            _ => "",
        };
        Failure::new(format!("{}: {error}", self.file.display()), remedy)
    }

    /// The rows from the first one on.
    ///
    /// # Errors
    /// [`Failure`] when the file cannot be read or has no such columns.
    pub fn rows(&self) -> Result<Rows, Failure> {
        Rows::open(self).map_err(|error| self.failure(&error))
    }
}

/// What a load is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The file is looked at; how many rows it has is not known yet.
    Check,
    /// Rows are written.
    Write,
}

/// What became of a load.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Loaded {
    /// Rows of the file.
    pub rows: u64,
    /// Whether their keys ascend.
    pub ascending: bool,
    /// Whether they went into the empty store together.
    pub bulk: bool,
    /// Rows that an earlier load had written.
    pub resumed_at: u64,
    /// Rows whose key was there already.
    pub replaced: u64,
    /// Whether it was asked to stop, and did before its end.
    pub stopped: bool,
}

/// Loads a file into the store called `name`, which is made when there is none. `progress` hears what is done of what there is; `stop` is asked between rows.
///
/// # Errors
/// [`Failure`] with the file, the place in it, and what was expected there; or why the store took no more.
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
    // Also when that failed: the lock is to be free for the next one.
    let closed = store.close(client);
    written?;
    closed?;
    Ok(loaded)
}

fn failed(error: StoreError) -> Failure {
    Failure::new(error.to_string(), error.remedy())
}

/// What a whole file is.
struct Checked {
    rows: u64,
    ascending: bool,
    /// Of all keys and values.
    hash: u64,
    stopped: bool,
}

/// Looks at every row.
fn check(
    source: &Source,
    progress: &mut dyn FnMut(u64),
    stop: &dyn Fn() -> bool,
) -> Result<Checked, Failure> {
    let mut checked = Checked { rows: 0, ascending: true, hash: 0xcbf2_9ce4_8422_2325, stopped: false };
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
            // FNV-1a, with the length first: no two lists of fields are the same bytes.
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
    checked: &Checked,
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
    // The next load of the same rows is another one.
    Ok(store.mark_load(client, (0, 0))?)
}

fn changed(source: &Source) -> Failure {
    Failure::new(
        format!("{}: it is not what it was when it was looked at", source.file.display()),
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

/// Exactly as many rows as were counted. When there are fewer, or one is wrong by now, a key comes twice, which ends the load.
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
