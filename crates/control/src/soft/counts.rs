//! Counters of the tables of a section, read from the switch part by part (PROTOCOL 13.17, 13.18).
//!
//! One section is read at a time. The first part names the image of the counters and their number. The other
//! parts are requested for that image, a window at once, and each question is repeated until it is answered.
//! When another image becomes active meanwhile, the reading restarts: counters of two images are never
//! combined.

use crate::api::{ApiError, Base64, ErrorCode, SoftCounted, SoftCounts};
use crate::decision::{Decided, Decision};
use crate::errors::{error, not_found};
use crate::messages::{Actions, reply};
use crate::note::Note;
use crate::rack::Rack;
use crate::soft::Images;
use crate::soft::burst::SOFT_WINDOW;
use crate::soft::counting::{COUNTS_ANEW_MAX, Reading};
use crate::soft::sections::SoftRequest;
use crate::updates::Reach;
use alloc::vec::Vec;
use alloc::{format, vec};
use farmem_transport::image::SectionKey;
use farmem_wire::message::{Count, Counts, SOFT_COUNTS_MAX, SoftBody};
use farmem_wire::{Domain, RequestId};

impl Images {
    pub(crate) fn soft_counts(&self, rack: &Rack, call: &SoftCounts) -> Decided<SoftCounts> {
        rack.domain_known(call.domain)?;
        let target = self.soft_target(rack, call.switch)?;
        let key = SectionKey { domain: Domain(call.domain), kind: call.kind, id: call.id };
        Ok(Decision::Soft(target, SoftRequest::Counts(key)))
    }

    pub(super) fn count_wait(&mut self, ticket: u64, key: SectionKey) {
        self.counting.asked.push_back((ticket, key));
    }

    /// Requests the due parts, and repeats unanswered requests.
    pub(super) fn update_counts(&mut self, rack: &mut Rack, out: &mut Actions) {
        if self.counting.asked.is_empty() {
            self.counting.due = None;
            return;
        }
        match rack.state.reach(self.soft.target) {
            Some(Reach::Ready | Reach::Silent) => {}
            // A joining switch is asked after its join.
            Some(Reach::Held) => {
                self.counting.due = None;
                return;
            }
            None => return self.give_up_counting(rack, "must join again", out),
        }
        let is_due = self.counting.due.is_none_or(|due| due <= rack.now);
        match self.counting.reading.take() {
            None => self.begin_counting(rack, 0, out),
            // A restarted switch has lost the counters that were read.
            Some(reading)
                if reading.of.is_some_and(|(life, ..)| life != rack.state.generation(self.soft.target)) =>
            {
                self.begin_counting(rack, reading.anew, out);
            }
            Some(reading) if !is_due => self.counting.reading = Some(reading),
            Some(reading) if reading.idle >= rack.config.retries_max => {
                self.counting.reading = Some(reading);
                self.give_up_counting(rack, "does not answer", out);
            }
            Some(mut reading) => {
                out.note(Note::Retransmitted(self.soft.target));
                reading.idle += 1;
                let parts: Vec<usize> = core::mem::take(&mut reading.open).into_values().collect();
                parts.into_iter().for_each(|part| self.ask_for_counters(rack, &mut reading, part, out));
                self.go_on_counting(rack, reading);
            }
        }
    }

    fn begin_counting(&mut self, rack: &mut Rack, anew: u32, out: &mut Actions) {
        let mut reading = Reading { missing: 1, next: 1, anew, ..Reading::default() };
        self.ask_for_counters(rack, &mut reading, 0, out);
        self.go_on_counting(rack, reading);
    }

    fn go_on_counting(&mut self, rack: &mut Rack, reading: Reading) {
        self.counting.due = Some(rack.now + rack.wait(reading.idle));
        self.counting.reading = Some(reading);
    }

    fn ask_for_counters(&mut self, rack: &mut Rack, reading: &mut Reading, part: usize, out: &mut Actions) {
        let Some(&(_, SectionKey { domain, kind, id })) = self.counting.asked.front() else { return };
        let epoch = reading.of.map_or(0, |(_, epoch, _)| epoch);
        let from = u32::try_from(part * SOFT_COUNTS_MAX).expect("a section has few counters");
        let token = self.tell_switch(rack, SoftBody::Count(Count { epoch, domain, kind, id, from }), out);
        reading.open.insert(token, part);
    }

    /// Handles the switch's answer. Returns true if it was asked for.
    pub(super) fn counts(
        &mut self,
        rack: &mut Rack,
        token: RequestId,
        counts: &Counts<'_>,
        out: &mut Actions,
    ) -> bool {
        let Some(mut reading) = self.counting.reading.take() else { return false };
        let Some(part) = reading.open.remove(&token) else {
            self.counting.reading = Some(reading);
            return false;
        };
        let of = (token.generation(), counts.epoch, counts.edition);
        if reading.of.is_none() && counts.total > 0 {
            reading.bytes = vec![0; 4 * counts.total as usize];
            (reading.of, reading.missing) = (Some(of), reading.parts());
        }
        let is_other =
            reading.of.is_some_and(|known| known != of) || reading.bytes.len() != 4 * counts.total as usize;
        if is_other {
            if reading.anew < COUNTS_ANEW_MAX {
                self.begin_counting(rack, reading.anew + 1, out);
            } else {
                let message = "another image became active during each reading of the counters";
                self.counted(Err(error(ErrorCode::Unavailable, message, "ask again in a moment")), out);
            }
            return true;
        }
        if counts.total == 0 {
            self.counted(Err(self.nothing_counted(counts.epoch)), out);
            return true;
        }
        let first = part * SOFT_COUNTS_MAX;
        let into = reading.part(part);
        if counts.from as usize != first || counts.counters.len() != into.len() {
            // The part is requested again when it is due.
            reading.open.insert(token, part);
            self.counting.reading = Some(reading);
            return false;
        }
        into.copy_from_slice(counts.counters);
        (reading.missing, reading.idle) = (reading.missing - 1, 0);
        if reading.missing == 0 {
            let (life, epoch, edition) = of;
            let counts = Base64(reading.bytes);
            self.counted(Ok(SoftCounted { epoch, life, edition, counts }), out);
            return true;
        }
        while reading.next < reading.parts() && reading.open.len() < SOFT_WINDOW as usize {
            let part = reading.next;
            reading.next += 1;
            self.ask_for_counters(rack, &mut reading, part, out);
        }
        self.go_on_counting(rack, reading);
        true
    }

    fn nothing_counted(&self, epoch: u64) -> ApiError {
        let (domain, id) = self.counting.asked.front().map_or((0, 0), |(_, key)| (key.domain.0, key.id));
        let message = match epoch {
            0 => format!("the switch has no active image, so no section {id:#x} of domain {domain} counts"),
            _ => format!(
                "section {id:#x} of domain {domain} is not in the active image ({epoch}) of the switch, or does not count"
            ),
        };
        not_found(message, "publish it: `farmem index agent` does")
    }

    /// Answers the first request and moves on to the next.
    fn counted(&mut self, result: Result<SoftCounted, ApiError>, out: &mut Actions) {
        (self.counting.reading, self.counting.due) = (None, None);
        if let Some((ticket, _)) = self.counting.asked.pop_front() {
            reply(ticket, result.map(Into::into), out);
        }
    }

    pub(super) fn give_up_counting(&mut self, rack: &mut Rack, because: &str, out: &mut Actions) {
        let gone = rack.state.unavailable(self.soft.target, because);
        while !self.counting.asked.is_empty() {
            self.counted(Err(gone.clone()), out);
        }
    }
}
