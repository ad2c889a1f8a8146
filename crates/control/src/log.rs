//! Storage of log lines, and the behaviour when they cannot be stored (PROTOCOL 8.23, 8.48 to 8.50).
//!
//! A driver whose store can refuse a line lends it to the role ([`Control::with_log`]). Then a line is stored
//! before it is applied, and a refused line is not applied: nothing must be rolled back, and requests without
//! a line continue. The role does not know what a disk is. A role without a log passes its lines to the
//! driver through the outbox; the driver must store each or stop.

use crate::api::{ApiError, ErrorCode};
use crate::errors::error;
use crate::record::{Line, Record};
use crate::{Actions, Control, Note, reply};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::fmt;
use core::mem;
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
    /// Returns true if the log accepts no lines.
    pub(crate) const fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    /// Returns the time of the next attempt, if the log is stalled.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.stalled.as_ref().map(|(_, until)| *until)
    }
}

impl Control {
    /// Returns the role with `log` as its store. The earlier lines must be in it.
    #[must_use]
    pub fn with_log(mut self, log: Box<dyn Log>) -> Self {
        self.log.lent = Some(log);
        self
    }

    /// Stores a line in the lent log, before it is applied.
    pub(crate) fn append(&mut self, record: &Record, out: &mut Actions) -> Result<(), Stalled> {
        let Some(log) = &mut self.log.lent else { return Ok(()) };
        if self.log.stalled.as_ref().is_some_and(|(_, until)| self.now < *until) {
            return Err(Stalled);
        }
        // Decisions depend on the changes in flight: the first stored line tells which of them are rolled
        // back (PROTOCOL 8.49).
        assert!(!self.log.abandoned || record.0 == Line::Restarted, "each event tries that line first");
        if let Err(why) = log.append(record) {
            if !self.log.is_stalled() {
                out.note(Note::Stalled);
            }
            self.log.stalled = Some((why, self.now + STALL_RETRY));
            return Err(Stalled);
        }
        if self.log.stalled.take().is_some() {
            out.note(Note::KeepsAgain);
        }
        Ok(())
    }

    /// Returns true if the role stores its lines itself.
    pub(crate) const fn has_log(&self) -> bool {
        self.log.lent.is_some()
    }

    /// Records in the log that the callers of the changes in flight are gone, as soon as it accepts a line
    /// (PROTOCOL 8.25, 8.49).
    pub(crate) fn abandon(&mut self, out: &mut Actions) {
        if self.log.abandoned && self.keep(Line::Restarted, out).is_ok() {
            self.log.abandoned = false;
        }
    }

    /// Refuses all requests that wait for a line that is not stored: no request waits for a disk (PROTOCOL
    /// 8.49).
    pub(crate) fn refuse_stalled(&mut self, out: &mut Actions) {
        if !self.log.is_stalled() {
            return;
        }
        self.log.abandoned |= !self.state.changes.is_empty();
        for (change, pending) in mem::take(&mut self.asked) {
            let taken_back = self.state.changes.get(&change).is_none_or(|change| change.what.is_revocable());
            let becomes = if taken_back {
                "the change is rolled back"
            } else {
                "the change has begun, and is completed once lines are kept again, if its roles accept it then"
            };
            reply(pending.ask.ticket, Err(self.stall_error(becomes)), out);
        }
        for pending in mem::take(&mut self.waiting) {
            reply(pending.ask.ticket, Err(self.stall_error("nothing was changed")), out);
        }
    }

    /// Returns the error for a request that needs a line.
    pub(crate) fn stall_error(&self, becomes: &str) -> ApiError {
        let (message, remedy) = match &self.log.stalled {
            Some((why, _)) => (format!("{}; {becomes}", why.message), why.remedy.clone()),
            None => (format!("the control plane's log takes no lines; {becomes}"), String::from("ask again")),
        };
        error(ErrorCode::Storage, message, remedy)
    }

    /// Rewrites the log if it is much longer than necessary (PROTOCOL 8.26, 8.50).
    pub(crate) fn shorten(&mut self, out: &mut Actions) {
        let Some(log) = self.log.lent.as_mut().filter(|log| log.lines() >= self.log.look_at) else { return };
        if self.log.stalled.is_some() {
            return;
        }
        let lines = log.lines();
        let mut next = COMPACT_LINES_MIN;
        if lines >= COMPACT_LINES_MIN {
            let rows = self.state.rows();
            let shortest = rows.len() as u64;
            let long = lines > shortest.saturating_mul(COMPACT_RATIO);
            next = next.max(shortest.saturating_mul(COMPACT_RATIO) + 1);
            if long {
                match log.rewrite(&rows) {
                    Ok(()) => out.note(Note::Shortened),
                    // All lines are unchanged. The next line shows whether the log accepts any; then this is
                    // tried again.
                    Err(_) => next = lines + COMPACT_LINES_MIN,
                }
            }
        }
        self.log.look_at = next;
    }
}
