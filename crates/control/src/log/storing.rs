//! Lines on their way into the log: stored before they are applied, or refused (PROTOCOL 8.48 to 8.50).

use crate::api::{ApiError, ErrorCode};
use crate::errors::error;
use crate::log::{COMPACT_LINES_MIN, COMPACT_RATIO, STALL_RETRY, Stalled};
use crate::messages::{Actions, reply};
use crate::note::Note;
use crate::rack::Rack;
use crate::record::{Line, Record};
use alloc::format;
use alloc::string::String;
use core::mem;

impl Rack {
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
