//! Requests of processes for prefetching (PROTOCOL 19.15): they hand over memory piece by piece, and then name the
//! structure.

use super::super::messages::{DpuMessage, refusal};
use super::super::mirroring::MirrorRequest;
use super::super::prefetching::{Job, Order, PROGRAMS_MAX, Parts, Prefetching};
use super::questions::Answered;
use super::{Door, SAME, busy};
use crate::prefetch_messages::PrefetchHow;
use farmem_client::api::ErrorCode;
use farmem_link::dpu::Submissions;
use farmem_prefetch::loading_zone::{ZoneProducer, ZoneSize};
use farmem_prefetch::{Change, MirrorConfig};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes of an item in the lists of a zone's contents; the lists may be half empty.
const ITEM_LEN: u64 = 128;

/// Bytes promised to a process for a mirror. A process has one mirror at a time. Its size is final when its thread
/// has answered or ended.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Promise {
    /// Bytes in use, by the last notice.
    taken: u64,
    /// The last unanswered request for a mirror, and the largest size of all unanswered ones.
    asked: Option<(u64, u64)>,
}

impl Promise {
    /// Returns the promised bytes. A new request may reuse the bytes of an ended mirror.
    pub(super) fn bytes(&self) -> u64 {
        self.asked.map_or(self.taken, |(_, wanted)| wanted.max(self.taken))
    }

    fn asks(&mut self, question: u64, bytes: u64) {
        let wanted = self.asked.map_or(bytes, |(_, wanted)| wanted.max(bytes));
        self.asked = Some((question, wanted));
    }

    /// Records the bytes in use by the mirror of this question. The end of an earlier mirror frees nothing of a
    /// pending request.
    pub(super) fn hears(&mut self, question: u64, bytes: u64) {
        self.taken = bytes;
        self.asked.take_if(|(last, _)| *last == question);
    }
}

/// Returns the refusal for a part that was handed over before.
fn twice(what: &str) -> DpuMessage {
    let message = format!("this process has already handed over {what}");
    refusal(ErrorCode::Conflict, message, "hand over each part once, or make another connection to the DPU")
}

fn wrong(message: impl Into<String>) -> DpuMessage {
    refusal(ErrorCode::BadRequest, message, SAME)
}

impl Door {
    /// Accepts one of the two rings of a process.
    pub(super) fn take_ring(
        &mut self,
        number: u32,
        bytes: usize,
        file: Option<OwnedFd>,
        which: impl Fn(&mut Parts) -> &mut Option<Submissions>,
    ) -> Answered {
        let file = file.ok_or_else(|| wrong("a ring comes without its memory"))?;
        let ring = Submissions::of(&file, bytes).map_err(|error| wrong(error.to_string()))?;
        self.may_fill(bytes as u64)?;
        let session = self.session(number)?;
        let part = which(&mut session.parts);
        if part.is_some() || session.prefetching.is_some() {
            return Err(twice("this ring"));
        }
        *part = Some(ring);
        session.ahead = session.ahead.saturating_add(bytes as u64);
        Ok(Some(DpuMessage::Done {}))
    }

    /// Accepts the zone of a process.
    pub(super) fn take_zone(&mut self, number: u32, size: ZoneSize, file: Option<OwnedFd>) -> Answered {
        let file = file.ok_or_else(|| wrong("a zone comes without its memory"))?;
        let bytes = size.bytes().map_err(|error| wrong(error.to_string()))? as u64;
        let bytes = bytes + size.items as u64 * ITEM_LEN;
        self.may_fill(bytes)?;
        let zone = ZoneProducer::of(&file, size).map_err(|error| wrong(error.to_string()))?;
        let session = self.session(number)?;
        if session.parts.zone.is_some() || session.prefetching.is_some() {
            return Err(twice("a zone"));
        }
        session.parts.zone = Some(zone);
        session.ahead = session.ahead.saturating_add(bytes);
        Ok(Some(DpuMessage::Done {}))
    }

    /// Starts the prefetching thread of a process that has handed over all parts. The thread answers.
    pub(super) fn prefetch(
        &mut self,
        number: u32,
        structure: serde_json::Value,
        how: PrefetchHow,
        through: u64,
    ) -> Answered {
        let (config, keys) = how.checked().map_err(|why| {
            refusal(ErrorCode::BadRequest, format!("prefetch: {why}"), "choose a value within these bounds")
        })?;
        let many = self.sessions.values().filter(|session| session.prefetching.is_some()).count();
        if many + self.aheads.len() >= PROGRAMS_MAX {
            let message = format!("this DPU already prefetches for {PROGRAMS_MAX} programs");
            return Err(refusal(ErrorCode::TableFull, message, "wait until a program ends"));
        }
        self.may_fill(how.bytes())?;
        let session = self.session(number)?;
        if session.prefetching.is_some() {
            return Err(twice("all parts, and the DPU prefetches for it"));
        }
        let parts = session.parts.take()?;
        session.ahead = session.ahead.saturating_add(how.bytes());
        let (domain, gone) = (session.domain, Arc::clone(&session.gone));
        let question = self.later(number, busy())?;
        if let Some(asked) = &mut self.session(number)?.asked {
            asked.begins = true;
        }
        let (ground, mailbox, make) = (self.ground.clone(), self.mailbox.clone(), self.make);
        let through = Change(through);
        let job =
            Job { ground, domain, make, parts, structure, config, keys, through, mailbox, question, gone };
        let begun = Prefetching::begin(job).map_err(|error| {
            let message = format!("no thread for a program: {error}");
            refusal(ErrorCode::Unavailable, message, "try again")
        });
        let session = self.session(number)?;
        match begun {
            Ok(begun) => session.prefetching = Some(begun),
            Err(refused) => {
                session.ahead = 0;
                return Err(refused);
            }
        }
        Ok(None)
    }

    /// Releases the thread and budget of a process whose prefetching could not begin, or not in time. The process may
    /// hand over all parts again.
    pub(super) fn prefetches_no_more(&mut self, number: u32) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        (session.ahead, session.mirror) = (0, Promise::default());
        let ended = session.prefetching.take();
        self.aheads.extend(ended.map(Prefetching::let_go));
    }

    /// Asks the prefetching thread of a process for its counts.
    pub(super) fn prefetched(&mut self, number: u32) -> Answered {
        self.ask_ahead(number, Order::Tell)
    }

    /// Starts a mirror for a process, if the rack's description allows it. The DPU may capture packets that its
    /// processes may not.
    pub(super) fn mirror(&mut self, number: u32, wanted: MirrorRequest) -> Answered {
        let MirrorConfig { interface, server, .. } = &wanted.packets;
        if !self.ground.section.may_mirror(interface, *server) {
            let message = format!("this DPU may not mirror what {interface:?} receives for {server}");
            let remedy = format!(
                "if this is the program's own address, add {:?} to mirror of [dpu] in rack.toml and start the DPU again; or hand the bytes over by a tap",
                format!("{interface} {server}")
            );
            return Err(refusal(ErrorCode::NotOwner, message, remedy));
        }
        wanted.packets.check().map_err(|error| wrong(error.to_string()))?;
        let (bytes, has) = (wanted.bytes(), self.session(number)?.mirror.bytes());
        self.may_fill(bytes.saturating_sub(has))?;
        let asked = self.ask_ahead(number, Order::Mirror(wanted))?;
        let session = self.session(number)?;
        session.mirror.asks(session.questions, bytes);
        Ok(asked)
    }

    /// Sends an order to the prefetching thread of a process.
    fn ask_ahead(&mut self, number: u32, order: Order) -> Answered {
        let question = self.later(number, busy())?;
        let reply = self.mailbox.reply(question);
        let session = self.session(number)?;
        match session.prefetching.as_ref().map(|prefetching| prefetching.ask(order, reply)) {
            Some(true) => Ok(None),
            Some(false) => Err(busy()),
            None => Err(refusal(
                ErrorCode::Conflict,
                "the DPU does not prefetch for this process",
                "first hand over tap, beside and zone, and send `prefetch`",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Promise;

    /// A promise is freed when its mirror has ended. The notice of that end may come after the next request: the
    /// larger size stays promised until the last request is answered. Before the fix, an ended mirror kept its
    /// promise.
    #[test]
    fn the_promise_of_an_ended_mirror_is_freed() {
        let mut promise = Promise::default();
        let mut step = |does: &dyn Fn(&mut Promise)| {
            does(&mut promise);
            promise.bytes()
        };
        assert_eq!(step(&|promise| promise.asks(1, 50)), 50);
        assert_eq!(step(&|promise| promise.hears(1, 50)), 50);
        assert_eq!(step(&|promise| promise.asks(2, 30)), 50, "it has the first one");
        assert_eq!(step(&|promise| promise.hears(1, 0)), 30, "the first one is over");
        assert_eq!(step(&|promise| promise.hears(2, 30)), 30);
        assert_eq!(step(&|promise| promise.hears(2, 0)), 0, "and the second");
        // The program gets a timeout, and asks again.
        assert_eq!(step(&|promise| promise.asks(3, 70)), 70);
        assert_eq!(step(&|promise| promise.asks(4, 20)), 70);
        assert_eq!(step(&|promise| promise.hears(3, 0)), 70, "the first one was refused");
        assert_eq!(step(&|promise| promise.hears(4, 20)), 20);
        assert_eq!(step(&|promise| promise.hears(4, 0)), 0);
    }
}
