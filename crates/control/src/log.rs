//! Where lines are kept, and what the control plane does when they cannot be (PROTOCOL 8.23, 8.48 to 8.50).
//!
//! A driver whose store can refuse a line lends it to the role ([`Control::with_log`]). Then a line is kept before it is applied, and one
//! that cannot be kept is not applied: nothing has to be taken back, and what needs no line goes on. The role does not know what a disk is.
//! A role that was lent no log gives its lines to the driver through the outbox, which must keep each or stop.

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

/// Time after a line that could not be kept until the log is asked again.
pub const STALL_RETRY: Duration = Duration::from_millis(250);
/// A log this many times as long as it could be is written anew.
pub const COMPACT_RATIO: u64 = 4;
/// A log of fewer lines than this is not written anew.
pub const COMPACT_LINES_MIN: u64 = 4096;

/// The store of the lines. Lines are numbered from 0, without a gap.
pub trait Log: fmt::Debug + Send {
    /// Keeps a line behind all others: when this answers, the line survives a crash.
    ///
    /// # Errors
    /// [`NotKept`]: then the line is not in the log, and the next one has its number.
    fn append(&mut self, line: &Record) -> Result<(), NotKept>;

    /// Puts `lines` in the place of all lines, at once.
    ///
    /// # Errors
    /// [`NotKept`]: then all lines are as they were.
    fn rewrite(&mut self, lines: &[Record]) -> Result<(), NotKept>;

    /// Lines kept.
    fn lines(&self) -> u64;
}

/// A line could not be kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotKept {
    /// What is wrong, with the file and its space.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

/// A line was not kept, and so not applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stalled;

/// The log, and whether it takes lines.
#[derive(Debug, Default)]
pub(crate) struct LogState {
    lent: Option<Box<dyn Log>>,
    /// Set since the last line could not be kept: why, and when the log is asked again.
    stalled: Option<(NotKept, Instant)>,
    /// Those who asked for the changes in flight are gone, or were told so. The log does not say it yet.
    pub(crate) abandoned: bool,
    /// The log is looked at when it has so many lines.
    look_at: u64,
}

impl LogState {
    /// The log takes no lines.
    pub(crate) const fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    /// When the log is asked again, if something waits for that.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.stalled.as_ref().map(|(_, until)| *until)
    }
}

impl Control {
    /// The same role, which keeps its lines in `log` from now on. What was kept so far must be in it.
    #[must_use]
    pub fn with_log(mut self, log: Box<dyn Log>) -> Self {
        self.log.lent = Some(log);
        self
    }

    /// Has the log that was lent keep a line, before it is applied.
    pub(crate) fn append(&mut self, record: &Record, out: &mut Actions) -> Result<(), Stalled> {
        let Some(log) = &mut self.log.lent else { return Ok(()) };
        if self.log.stalled.as_ref().is_some_and(|(_, until)| self.now < *until) {
            return Err(Stalled);
        }
        // What is decided counts on the changes in flight: the first line that is kept says which of them are taken back (PROTOCOL 8.49).
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

    /// True when lines are kept here, and not by the driver.
    pub(crate) const fn has_log(&self) -> bool {
        self.log.lent.is_some()
    }

    /// Has the log say that those who asked for the changes in flight are gone, as soon as it takes a line (PROTOCOL 8.25, 8.49).
    pub(crate) fn abandon(&mut self, out: &mut Actions) {
        if self.log.abandoned && self.keep(Line::Restarted, out).is_ok() {
            self.log.abandoned = false;
        }
    }

    /// Tells all callers that wait for a line that it is not kept: no request waits for a disk (PROTOCOL 8.49).
    pub(crate) fn refuse_stalled(&mut self, out: &mut Actions) {
        if !self.log.is_stalled() {
            return;
        }
        self.log.abandoned |= !self.state.changes.is_empty();
        for (change, pending) in mem::take(&mut self.asked) {
            let taken_back = self.state.changes.get(&change).is_none_or(|change| change.what.is_revocable());
            let becomes = if taken_back {
                "the change is taken back"
            } else {
                "the change was begun, and is completed when that is over, if its roles take it then"
            };
            reply(pending.ask.ticket, Err(self.stall_error(becomes)), out);
        }
        for pending in mem::take(&mut self.waiting) {
            reply(pending.ask.ticket, Err(self.stall_error("nothing was changed")), out);
        }
    }

    /// The answer to a request that needs a line.
    pub(crate) fn stall_error(&self, becomes: &str) -> ApiError {
        let (message, remedy) = match &self.log.stalled {
            Some((why, _)) => (format!("{}; {becomes}", why.message), why.remedy.clone()),
            None => (format!("the control plane's log takes no lines; {becomes}"), String::from("ask again")),
        };
        error(ErrorCode::Storage, message, remedy)
    }

    /// Has the log written anew when it is much longer than it could be (PROTOCOL 8.26, 8.50).
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
                    // All lines are as they were. The next line says whether the log takes any; then this is tried again.
                    Err(_) => next = lines + COMPACT_LINES_MIN,
                }
            }
        }
        self.log.look_at = next;
    }
}
