//! Storage of log lines, and the behaviour when they cannot be stored (PROTOCOL 8.23, 8.48 to 8.50).
//!
//! A driver whose store can refuse a line lends it to the role ([`Control::with_log`]). Then a line is stored
//! before it is applied, and a refused line is not applied: nothing must be rolled back, and requests without
//! a line continue. The role does not know what a disk is. A role without a log passes its lines to the
//! driver through the outbox; the driver must store each or stop.

mod storing;

use crate::record::Record;
use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;
use farmem_machine::{Duration, Instant};

/// Time after a refused line until the log is tried again.
pub const STALL_RETRY: Duration = Duration::from_millis(250);

/// Ratio to its minimum length at which a log is rewritten.
pub const COMPACT_RATIO: u64 = 4;

/// Minimum number of lines of a log that is rewritten.
pub const COMPACT_LINES_MIN: u64 = 4096;

/// The store of the lines. Lines are numbered from 0, without a gap.
pub trait Log: fmt::Debug + Send {
    /// Appends a line. When this returns, the line survives a crash.
    ///
    /// # Errors
    ///
    /// [`NotKept`]: the line is not in the log, and the next one has its number.
    fn append(&mut self, line: &Record) -> Result<(), NotKept>;

    /// Replaces all lines by `lines`, atomically.
    ///
    /// # Errors
    ///
    /// [`NotKept`]: all lines are unchanged.
    fn rewrite(&mut self, lines: &[Record]) -> Result<(), NotKept>;

    /// Returns the number of lines.
    fn lines(&self) -> u64;
}

/// The error for a line that could not be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotKept {
    /// The problem, with the file and its space.
    pub message: String,
    /// The recommended action.
    pub remedy: String,
}

/// The error for a line that was not stored, and so not applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stalled;

/// The log, and whether it accepts lines.
#[derive(Debug, Default)]
pub(crate) struct LogState {
    lent: Option<Box<dyn Log>>,
    /// The error of the last refused line, and the time of the next attempt; `None` while the log accepts
    /// lines.
    stalled: Option<(NotKept, Instant)>,
    /// True if the callers of the changes in flight are gone, or were told so, and the log does not record it
    /// yet.
    pub(crate) abandoned: bool,
    /// The number of lines at which the log's length is checked.
    look_at: u64,
}

impl LogState {
    /// Stores the lines in `log` from now on.
    pub(crate) fn lend(&mut self, log: Box<dyn Log>) {
        self.lent = Some(log);
    }

    /// Returns true if the log accepts no lines.
    pub(crate) const fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    /// Returns the time of the next attempt, if the log is stalled.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.stalled.as_ref().map(|(_, until)| *until)
    }
}
