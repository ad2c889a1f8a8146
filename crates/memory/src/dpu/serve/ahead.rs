//! What processes ask the door of a DPU to be prefetched for (PROTOCOL 19.15): they hand over memory, piece by piece, and then say from which structure.

use super::super::mirroring::Wanted;
use super::super::prefetching::{Job, Order, PROGRAMS_MAX, Parts, Prefetching};
use super::super::words::{Said, refusal};
use super::questions::Answered;
use super::{Door, SAME, busy};
use crate::prefetch::{Change, MirrorConfig, PrefetchHow};
use farmem_client::api::ErrorCode;
use farmem_io::dpu::Submissions;
use farmem_io::dpu::zone::{ZoneProducer, ZoneSize};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes of an item in the lists of what is in a zone; they may be half empty.
const ITEM_LEN: u64 = 128;

/// A part is handed over once.
fn twice(what: &str) -> Said {
    let message = format!("this process has handed over {what}");
    refusal(ErrorCode::Conflict, message, "hand over each part once, or come again by another socket")
}

fn wrong(message: impl Into<String>) -> Said {
    refusal(ErrorCode::BadRequest, message, SAME)
}

impl Door {
    /// A process hands over one of the two rings.
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
        let guest = self.guest(number)?;
        let part = which(&mut guest.parts);
        if part.is_some() || guest.prefetching.is_some() {
            return Err(twice("this ring"));
        }
        *part = Some(ring);
        guest.ahead = guest.ahead.saturating_add(bytes as u64);
        Ok(Some(Said::Done {}))
    }

    /// A process hands over its zone.
    pub(super) fn take_zone(&mut self, number: u32, size: ZoneSize, file: Option<OwnedFd>) -> Answered {
        let file = file.ok_or_else(|| wrong("a zone comes without its memory"))?;
        let bytes = size.bytes().map_err(|error| wrong(error.to_string()))? as u64;
        let bytes = bytes + size.items as u64 * ITEM_LEN;
        self.may_fill(bytes)?;
        let zone = ZoneProducer::of(&file, size).map_err(|error| wrong(error.to_string()))?;
        let guest = self.guest(number)?;
        if guest.parts.zone.is_some() || guest.prefetching.is_some() {
            return Err(twice("a zone"));
        }
        guest.parts.zone = Some(zone);
        guest.ahead = guest.ahead.saturating_add(bytes);
        Ok(Some(Said::Done {}))
    }

    /// A process has handed over all, and wants to be prefetched for. A thread does that, which answers.
    pub(super) fn prefetch(
        &mut self,
        number: u32,
        structure: serde_json::Value,
        how: PrefetchHow,
        through: u64,
    ) -> Answered {
        let (config, keys) = how.checked().map_err(|why| {
            refusal(ErrorCode::BadRequest, format!("prefetch: {why}"), "choose a value in these bounds")
        })?;
        let many = self.guests.values().filter(|guest| guest.prefetching.is_some()).count();
        if many + self.aheads.len() >= PROGRAMS_MAX {
            let message = format!("this DPU prefetches for {PROGRAMS_MAX} programs");
            return Err(refusal(ErrorCode::TableFull, message, "wait until one ends"));
        }
        self.may_fill(how.bytes())?;
        let guest = self.guest(number)?;
        if guest.prefetching.is_some() {
            return Err(twice("all, and is prefetched for"));
        }
        let parts = guest.parts.take()?;
        guest.ahead = guest.ahead.saturating_add(how.bytes());
        let (domain, gone) = (guest.domain, Arc::clone(&guest.gone));
        let question = self.later(number, busy())?;
        if let Some(asked) = &mut self.guest(number)?.asked {
            asked.begins = true;
        }
        let (ground, mail, make) = (self.ground.clone(), self.mail.clone(), self.make);
        let through = Change(through);
        let job = Job { ground, domain, make, parts, structure, config, keys, through, mail, question, gone };
        let begun = Prefetching::begin(job).map_err(|error| {
            let message = format!("no thread for a program: {error}");
            refusal(ErrorCode::Unavailable, message, "try again")
        });
        let guest = self.guest(number)?;
        match begun {
            Ok(begun) => guest.prefetching = Some(begun),
            Err(refused) => {
                guest.ahead = 0;
                return Err(refused);
            }
        }
        Ok(None)
    }

    /// The thread of a process could not begin, or not in time, and has ended, or will at once. The process may hand over all again; what was promised to it for this is given back.
    pub(super) fn prefetches_no_more(&mut self, number: u32) {
        let Some(guest) = self.guests.get_mut(&number) else { return };
        (guest.ahead, guest.mirror) = (0, 0);
        let ended = guest.prefetching.take();
        self.aheads.extend(ended.map(Prefetching::let_go));
    }

    /// A process asks what was prefetched for it.
    pub(super) fn prefetched(&mut self, number: u32) -> Answered {
        self.ask_ahead(number, Order::Tell)
    }

    /// A process that is prefetched for wants the DPU to see what its clients send. It has what the rack's description says, and nothing else: the DPU may listen where its processes may not.
    pub(super) fn mirror(&mut self, number: u32, wanted: Wanted) -> Answered {
        let MirrorConfig { interface, server, .. } = &wanted.packets;
        if !self.ground.section.may_mirror(interface, *server) {
            let message = format!("this DPU may not mirror what {interface:?} receives for {server}");
            let remedy = format!(
                "put {:?} into mirror of [dpu] in rack.toml, if it is this program's, and start the DPU again; or hand the bytes over by a tap",
                format!("{interface} {server}")
            );
            return Err(refusal(ErrorCode::NotOwner, message, remedy));
        }
        wanted.packets.check().map_err(|error| wrong(error.to_string()))?;
        // One at a time: what it has already is that of one that is over, or that this one finds there.
        let (bytes, has) = (wanted.bytes(), self.guest(number)?.mirror);
        self.may_fill(bytes.saturating_sub(has))?;
        let asked = self.ask_ahead(number, Order::Mirror(wanted))?;
        // Until the answer says what it takes.
        let guest = self.guest(number)?;
        guest.mirror = guest.mirror.max(bytes);
        Ok(asked)
    }

    /// Asks the thread of a process that is prefetched for.
    fn ask_ahead(&mut self, number: u32, order: Order) -> Answered {
        let question = self.later(number, busy())?;
        let reply = self.mail.reply(question);
        let guest = self.guest(number)?;
        match guest.prefetching.as_ref().map(|prefetching| prefetching.ask(order, reply)) {
            Some(true) => Ok(None),
            Some(false) => Err(busy()),
            None => Err(refusal(
                ErrorCode::Conflict,
                "nothing is prefetched for this process",
                "hand over tap, beside and zone, and say prefetch, before",
            )),
        }
    }
}
