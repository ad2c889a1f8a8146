//! Images of the switch's soft state: the wanted image, the image that the switch has, and the messages
//! between (PROTOCOL 13.8 to 13.12).
//!
//! ```text
//! Asking --Shown: not active--> Loading --Loaded: all of it--> Flipping --active--> Active
//!   ^  `--Shown: already active ----------------------------------------------^  |
//!   `--- the switch rejoined ----------------------------------------------------'
//! ```
//!
//! Nothing here is in the log: a restarted control plane wants no image, and the switch keeps what it has. A
//! timer repeats one message, [`SoftBody::Show`]. Its answer says what the switch has, and so what is to be
//! sent, whatever was lost.

mod burst;
mod counting;
mod counts;
mod publishing;
pub(crate) mod sections;
mod target_image;
mod targets;

pub use burst::{SOFT_BURST, SOFT_PACE, SOFT_WINDOW};
pub use counting::COUNTS_ANEW_MAX;

use crate::api::{ApiError, ErrorCode, SoftShow, SoftShown};
use crate::decision::{Decided, Decision};
use crate::errors::{bad, error, not_found};
use crate::messages::{Actions, reply};
use crate::note::{DropReason, Note};
use crate::rack::Rack;
use crate::record::Role;
use crate::soft::burst::Burst;
use crate::soft::counting::Counting;
use crate::soft::sections::{Caller, Sections, SoftRequest};
use crate::soft::target_image::{Progress, Stage, TargetImage};
use crate::updates::Reach;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::ToString as _;
use alloc::vec::Vec;
use core::mem;
use farmem_machine::Instant;
use farmem_transport::ud;
use farmem_transport::ud::Peer;
use farmem_wire::message::{
    ImageRule, ImageStatus, Load, SOFT_PART_MAX, Seq, SoftBody, SoftMessage, Verdict,
};
use farmem_wire::{HostId, RequestId};

/// How often an image may be found damaged before it is abandoned.
pub const DAMAGED_MAX: u32 = 3;

/// Number of answers with the same first missing byte after which that byte is sent again.
const NAMED_MAX: u32 = 3;

/// Bytes of an image in a message.
#[expect(clippy::cast_possible_truncation, reason = "less than a datagram")]
const PART: u32 = SOFT_PART_MAX as u32;

/// The wanted soft state of a switch. A restart need not know it.
#[derive(Debug)]
pub(crate) struct Soft {
    /// The switch.
    target: Role,
    /// The sections that the domains have published.
    sections: Sections,
    /// How often the sections have changed.
    revision: u64,
    /// The newest image whose load has begun.
    wanted: Option<TargetImage>,
    /// The image that was active before another was wanted, kept until that one is active.
    previous_image: Option<TargetImage>,
    /// The active image as the switch last reported it: its epoch and sections.
    active: Option<(u64, Sections)>,
    /// Callers that wait for their sections to become active.
    callers: Vec<Caller>,
    /// Length of the longest image that the switch accepts in this incarnation, once the switch has reported
    /// it.
    room: Option<u32>,
    /// Tickets that are answered with the next Shown.
    waiting_shows: Vec<u64>,
    /// Tickets of requests that came after the pending query was sent.
    deferred_shows: Vec<u64>,
    /// The newest Show that is not answered yet.
    pending_query: Option<RequestId>,
    /// The newest Flip, until it is answered.
    flip: Option<RequestId>,
    /// The greatest epoch that was assigned to an image.
    given: u64,
    /// The number before the first question of this incarnation of the control plane, and the newest number.
    /// The first one is random, so that no late answer to an earlier control plane counts as one to this.
    questions: Option<(u32, u32)>,
    /// The incarnation of the switch to which all of this belongs.
    life: u16,
    /// Timeouts since the last progress.
    idle: u32,
    due: Option<Instant>,
    burst: Burst,
    /// True if the event at hand asked or reported something about this state.
    touched: bool,
}

impl Default for Soft {
    fn default() -> Self {
        Self::of(Role::Switch)
    }
}

impl Soft {
    /// Creates the state for a switch of which nothing is wanted.
    pub(crate) const fn of(target: Role) -> Self {
        Self {
            target,
            sections: Sections::new(),
            revision: 0,
            wanted: None,
            previous_image: None,
            active: None,
            callers: Vec::new(),
            room: None,
            waiting_shows: Vec::new(),
            deferred_shows: Vec::new(),
            pending_query: None,
            flip: None,
            given: 0,
            questions: None,
            life: 0,
            idle: 0,
            due: None,
            burst: Burst { left: 0, next: None, waits: false },
            touched: false,
        }
    }

    /// Returns when the next action is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due.into_iter().chain(self.burst.due()).min()
    }

    /// Returns the number of unanswered requests.
    pub(crate) fn waiting(&self) -> usize {
        self.callers.len() + self.waiting_shows.len() + self.deferred_shows.len()
    }

    /// Discards answers to the questions asked so far.
    fn forget_questions(&mut self) {
        (self.pending_query, self.flip, self.idle) = (None, None, 0);
        self.waiting_shows.append(&mut self.deferred_shows);
    }

    /// Returns true for a query of this incarnation of the control plane.
    fn has_asked(&self, token: RequestId) -> bool {
        self.questions.is_some_and(|(before, newest)| {
            let number = token.counter().wrapping_sub(before);
            number != 0 && number <= newest.wrapping_sub(before)
        })
    }

    /// Returns true if the switch has not done everything that is wanted.
    fn has_work(&self) -> bool {
        let is_active = |wanted: &TargetImage| wanted.stage == Stage::Active;
        !self.waiting_shows.is_empty() || !self.wanted.as_ref().is_none_or(is_active)
    }

    /// Returns true if the state of the switch has to be known before anything else is done.
    fn is_asking(&self) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| matches!(wanted.stage, Stage::Asking | Stage::Active))
    }

    /// Returns true if a query is due that was not sent.
    fn must_query(&self) -> bool {
        let asks = |wanted: &TargetImage| wanted.stage == Stage::Asking;
        self.pending_query.is_none()
            && (!self.waiting_shows.is_empty() || self.wanted.as_ref().is_some_and(asks))
    }

    /// Asserts that everything is within its bounds.
    pub(crate) fn check(&self) {
        assert!(self.callers.is_empty() || self.wanted.is_some(), "a waiting caller waits for an image");
        assert!(
            self.deferred_shows.is_empty() || self.pending_query.is_some(),
            "a later request waits for the pending query"
        );
        let Some(wanted) = &self.wanted else { return };
        assert!(
            wanted.stage != Stage::Active || self.callers.is_empty(),
            "an active image has no waiting callers"
        );
        if let Stage::Loading(Progress { next, sent, .. }) = wanted.stage {
            assert!(next <= sent && sent <= wanted.image.len(), "what is sent is of the image");
            assert!(sent - next <= SOFT_WINDOW * PART, "no more is under way than the window");
        }
    }
}

// Requests.
impl Images {
    pub(crate) fn soft_show(&self, rack: &Rack, switch: Option<u16>) -> Decided<SoftShow> {
        Ok(Decision::Soft(self.soft_target(rack, switch)?, SoftRequest::Show))
    }

    /// Returns the switch of a request if it can be asked. None means the rack's switch.
    fn soft_target(&self, rack: &Rack, switch: Option<u16>) -> Result<Role, ApiError> {
        let Some(index) = switch else {
            return rack.switch_joined().map(|()| Role::Switch);
        };
        let role = Role::Index(index);
        if !rack.state.index.contains_key(&index) {
            let message = format!("there is no index switch {index}");
            return Err(not_found(message, "GET /v1/overview lists those there are"));
        }
        match rack.state.reach(role) {
            None => Err(rack.state.unavailable(role, "refused its tables and must join again")),
            Some(Reach::Silent) => Err(rack.state.unavailable(role, "does not answer")),
            Some(Reach::Ready | Reach::Held) => Ok(role),
        }
    }

    /// Queues a request until the switch has reported on its image.
    pub(crate) fn soft_wait(&mut self, ticket: u64, want: SoftRequest, out: &mut Actions) {
        let soft = &mut self.soft;
        match want {
            // The pending query may have been answered before this was asked.
            SoftRequest::Show if soft.pending_query.is_some() => soft.deferred_shows.push(ticket),
            SoftRequest::Show => soft.waiting_shows.push(ticket),
            SoftRequest::Publish(edit) => self.edit_sections(ticket, edit, out),
            SoftRequest::Counts(key) => self.count_wait(ticket, key),
        }
    }
}

// Timers.
impl Images {
    /// Updates the image of the switch at hand after time has passed or the switch rejoined.
    pub(super) fn update_soft(&mut self, rack: &mut Rack, out: &mut Actions) {
        let target = self.soft.target;
        self.withdraw_orphans(rack, out);
        if self.soft.wanted.is_none() && self.soft.waiting() == 0 {
            (self.soft.due, self.soft.burst.waits) = (None, false);
            return;
        }
        let hears = matches!(rack.state.reach(target), Some(Reach::Ready | Reach::Silent));
        let life = rack.state.generation(target);
        if !hears {
            // A joining switch is asked after its join. A switch that must rejoin may do so at any time or
            // never.
            (self.soft.due, self.soft.burst.waits) = (None, false);
            if rack.state.reach(target).is_none() {
                let gone = rack.state.unavailable(target, "must rejoin; the image is loaded when it has");
                self.give_up_waiting(&gone, out);
            }
            return;
        }
        if life != self.soft.life {
            // Everything that the switch had is lost.
            (self.soft.life, self.soft.room, self.soft.active) = (life, None, None);
            rack.routes_due = true;
            self.soft.forget_questions();
            if let Some(wanted) = &mut self.soft.wanted {
                wanted.stage = Stage::Asking;
                self.begin_image();
            }
        }
        if self.soft.burst.due().is_some_and(|due| due <= rack.now) {
            let due = self.soft.due;
            self.send_parts(rack, out);
            // The turn of a burst is no sign of the switch. A burst without anything to send waits for no
            // turn.
            self.soft.due = due;
            self.soft.burst.waits &= self.soft.burst.next.is_none_or(|next| next > rack.now);
        }
        if !self.soft.has_work() {
            self.soft.due = None;
        } else if self.soft.must_query() {
            let due = self.soft.due.filter(|_| !self.soft.is_asking());
            self.ask_switch(rack, out);
            // A loading image has its own timer.
            self.soft.due = due.or(self.soft.due);
        } else if self.soft.due.is_none_or(|due| due <= rack.now) {
            self.soft_timer(rack, out);
        }
    }

    /// Asks the switch for its state after nothing was heard of it.
    fn soft_timer(&mut self, rack: &mut Rack, out: &mut Actions) {
        self.soft.idle = self.soft.idle.saturating_add(1);
        out.note(Note::Retransmitted(self.soft.target));
        if self.soft.idle > rack.config.retries_max && self.soft.waiting() > 0 {
            let because = "does not answer; the requested image is loaded when it does";
            let silent = rack.state.unavailable(self.soft.target, because);
            self.give_up_waiting(&silent, out);
        }
        if self.soft.has_work() {
            self.ask_switch(rack, out);
        } else {
            (self.soft.pending_query, self.soft.due) = (None, None);
        }
    }

    fn give_up_waiting(&mut self, why: &ApiError, out: &mut Actions) {
        self.tell_callers(&Err(why.clone()), out);
        let shows = mem::take(&mut self.soft.waiting_shows)
            .into_iter()
            .chain(mem::take(&mut self.soft.deferred_shows));
        for ticket in shows {
            reply(ticket, Err(why.clone()), out);
        }
    }

    fn ask_switch(&mut self, rack: &mut Rack, out: &mut Actions) {
        self.soft.pending_query = Some(self.tell_switch(rack, SoftBody::Show, out));
        self.soft.due = Some(rack.now + rack.wait(self.soft.idle));
    }

    /// Sends a message about images.
    fn tell_switch(&mut self, rack: &mut Rack, body: SoftBody<'_>, out: &mut Actions) -> RequestId {
        let token = self.soft_token(rack);
        let message = SoftMessage { token, body };
        if let Some((peer, from)) = self.route_to_switch(rack) {
            ud::send_bytes(out, peer, from, rack.psn, message.len(), |bytes| message.emit(bytes));
            rack.psn = rack.psn.plus(1);
        }
        token
    }

    fn soft_token(&mut self, rack: &mut Rack) -> RequestId {
        let rng = &mut rack.rng;
        let (_, newest) = self.soft.questions.get_or_insert_with(|| {
            let before = rng.next_u32();
            (before, before)
        });
        *newest = newest.wrapping_add(1).max(1);
        let question = *newest;
        RequestId::new(HostId(0), rack.state.generation(self.soft.target), question)
    }

    fn route_to_switch(&self, rack: &Rack) -> Option<(Peer, farmem_wire::Qpn)> {
        let (switch, own) = (rack.state.home_of(self.soft.target)?, rack.state.home?);
        Some((Peer { port: self.soft.target.port(), endpoint: switch.endpoint() }, own.endpoint().qpn))
    }
}

// Messages of the switch.
impl Images {
    /// Handles a message about images.
    pub(crate) fn on_soft(&mut self, rack: &mut Rack, role: Role, payload: &[u8], out: &mut Actions) {
        let Ok(SoftMessage { token, body }) = SoftMessage::parse(payload) else {
            return out.note(Note::Dropped(DropReason::Malformed));
        };
        if role != self.soft.target || !rack.is_from_this_life(role, token) {
            return out.note(Note::Dropped(DropReason::Stale));
        }
        let heard = match body {
            SoftBody::Counts(counts) => self.counts(rack, token, &counts, out),
            // An earlier control plane may have sent another image under the epoch of this one.
            _ if self.soft.life != token.generation() || !self.soft.has_asked(token) => false,
            SoftBody::Shown(shown) => self.shown(rack, token, &shown, out),
            SoftBody::Loaded { epoch, next } => self.loaded(rack, token, epoch, next, out),
            SoftBody::Flipped { epoch, verdict } => self.flipped(rack, token, epoch, verdict, out),
            SoftBody::Load(_) | SoftBody::Flip(_) | SoftBody::Show | SoftBody::Count(_) => false,
        };
        if !heard {
            out.note(Note::Dropped(DropReason::Stale));
        }
    }

    /// Derives from the state of the switch what is to be sent (PROTOCOL 13.8, 13.9).
    fn shown(&mut self, rack: &mut Rack, token: RequestId, shown: &ImageStatus, out: &mut Actions) -> bool {
        // A late flip is answered in the same way. The query is still pending then.
        if self.soft.flip == Some(token) {
            self.soft.flip = None;
        } else if self.soft.pending_query == Some(token) {
            self.soft.pending_query = None;
            self.answer_shows(shown, out);
        } else {
            return false;
        }
        self.go_on_from(rack, shown, out);
        true
    }

    fn answer_shows(&mut self, shown: &ImageStatus, out: &mut Actions) {
        let ImageStatus { active, loading } = shown;
        let digest = if active.epoch == 0 { alloc::string::String::new() } else { active.digest.to_string() };
        let answer = SoftShown {
            epoch: active.epoch,
            bytes: active.len,
            digest,
            loading_epoch: loading.epoch,
            loading_bytes: loading.len,
            loaded: loading.next,
        };
        let later = mem::take(&mut self.soft.deferred_shows);
        for ticket in mem::replace(&mut self.soft.waiting_shows, later) {
            reply(ticket, Ok(answer.clone().into()), out);
        }
    }

    fn go_on_from(&mut self, rack: &mut Rack, shown: &ImageStatus, out: &mut Actions) {
        let floor = self.soft.given.max(Seq::of_epoch(rack.state.epoch).0);
        let Some(wanted) = &mut self.soft.wanted else { return };
        let ImageStatus { active, loading } = shown;
        let len = wanted.image.len();
        // The flip of a loading image may be in flight.
        let is_there = (active.len, active.digest) == (len, wanted.image.digest()) && loading.epoch == 0;
        if active.epoch != 0 && is_there {
            wanted.epoch = active.epoch;
            return self.mark_active(rack, out);
        }
        let is_ours = (loading.epoch, loading.len) == (wanted.epoch, len);
        let taken = if is_ours { active.epoch } else { active.epoch.max(loading.epoch) };
        if wanted.epoch <= taken {
            wanted.epoch = taken.max(floor).saturating_add(1);
            self.soft.given = wanted.epoch;
        }
        let next = if is_ours { loading.next } else { 0 };
        let before = match wanted.stage {
            Stage::Loading(progress) if is_ours && progress.next <= next => Some(progress),
            _ => None,
        };
        // Bytes in flight need not be sent again, unless nothing was heard of them.
        let under_way = before.filter(|_| self.soft.idle == 0);
        let sent = under_way.map_or(next, |progress| progress.sent.max(next));
        if before.is_some_and(|progress| progress.next < next) {
            self.soft.idle = 0;
        }
        wanted.stage = Stage::Loading(Progress { next, sent, named: 0 });
        self.send_parts(rack, out);
    }

    /// Records that the switch has all bytes before `next`.
    fn loaded(
        &mut self,
        rack: &mut Rack,
        token: RequestId,
        epoch: u64,
        next: u32,
        out: &mut Actions,
    ) -> bool {
        let Some(wanted) = self.soft.wanted.as_mut().filter(|wanted| wanted.epoch == epoch) else {
            return false;
        };
        let len = wanted.image.len();
        match &mut wanted.stage {
            // The flip found bytes missing.
            Stage::Flipping if self.soft.flip == Some(token) && next < len => {
                wanted.stage = Stage::Loading(Progress { next, sent: next, named: 0 });
                self.soft.flip = None;
            }
            Stage::Loading(progress) if next > progress.next && next <= len => {
                *progress = Progress { next, sent: progress.sent.max(next), named: 0 };
                self.soft.idle = 0;
            }
            Stage::Loading(progress) if next == progress.next => {
                progress.named = progress.named.saturating_add(1);
                if progress.named != NAMED_MAX {
                    return true;
                }
                // Bytes were lost before those that arrived.
                progress.sent = next;
                out.note(Note::Retransmitted(self.soft.target));
            }
            _ => return false,
        }
        self.send_parts(rack, out);
        true
    }

    /// Sends what the window has room for. When the switch has everything, it is asked to activate the image.
    fn send_parts(&mut self, rack: &mut Rack, out: &mut Actions) {
        let Some(wanted) = self.soft.wanted.take() else { return };
        let wanted = self.send_of(rack, wanted, out);
        self.soft.wanted = Some(wanted);
        self.soft.due = Some(rack.now + rack.wait(self.soft.idle));
    }

    fn send_of(&mut self, rack: &mut Rack, mut wanted: TargetImage, out: &mut Actions) -> TargetImage {
        let Stage::Loading(mut progress) = wanted.stage else { return wanted };
        let (epoch, len) = (wanted.epoch, wanted.image.len());
        if progress.next == len {
            wanted.stage = Stage::Flipping;
            self.soft.flip = Some(self.tell_switch(rack, SoftBody::Flip(wanted.id()), out));
            return wanted;
        }
        let end = progress.next.saturating_add(SOFT_WINDOW * PART).min(len);
        while progress.sent < end && self.soft.burst.takes(rack.now) {
            let offset = progress.sent;
            let behind = offset.saturating_add(PART).min(end);
            let bytes = &wanted.image.bytes()[offset as usize..behind as usize];
            self.tell_switch(rack, SoftBody::Load(Load { epoch, len, offset, bytes }), out);
            progress.sent = behind;
        }
        wanted.stage = Stage::Loading(progress);
        wanted
    }

    fn flipped(
        &mut self,
        rack: &mut Rack,
        token: RequestId,
        epoch: u64,
        verdict: Verdict,
        out: &mut Actions,
    ) -> bool {
        let Some(wanted) = self.soft.wanted.as_mut().filter(|wanted| wanted.epoch == epoch) else {
            return false;
        };
        let to_flip = self.soft.flip == Some(token);
        match (wanted.stage, verdict) {
            // A Load is answered in this way too. An image that fits is not too long: a switch that claims so
            // is not believed.
            (Stage::Loading(_) | Stage::Flipping, Verdict::TooLong(most)) if most < wanted.image.len() => {
                self.soft.room = Some(most);
                let message = format!(
                    "the image has {} bytes; the switch has room for one of {most}",
                    wanted.image.len()
                );
                let remedy = "publish less, or start the switch with more room for images";
                self.refused(rack, error(ErrorCode::TableFull, message, remedy), out);
            }
            (Stage::Flipping, Verdict::Active) if to_flip => self.mark_active(rack, out),
            (Stage::Flipping, Verdict::Fault(fault)) if to_flip => {
                let message = format!("the switch does not accept the image: {fault}");
                let remedy = match fault.rule {
                    ImageRule::Content => {
                        "publish what BLinkTree::section answers, once for each tree (PROTOCOL 13.13)"
                    }
                    _ => "run the switch and the control plane in the same version",
                };
                self.refused(rack, bad(message, remedy), out);
            }
            (Stage::Flipping, Verdict::Damaged) if to_flip => {
                wanted.damaged += 1;
                if wanted.damaged < DAMAGED_MAX {
                    wanted.epoch = wanted.epoch.max(self.soft.given).saturating_add(1);
                    self.soft.given = wanted.epoch;
                    wanted.stage = Stage::Loading(Progress { next: 0, sent: 0, named: 0 });
                    self.soft.flip = None;
                    self.send_parts(rack, out);
                } else {
                    let message = format!("the switch found the image damaged {DAMAGED_MAX} times");
                    let remedy = "look for a second control plane with the keys of this one, then ask again";
                    self.refused(rack, error(ErrorCode::Unavailable, message, remedy), out);
                }
            }
            _ => return false,
        }
        true
    }
}

/// The soft state of all switches. That of the rack's switch, or of one index switch, is at hand.
#[derive(Debug, Default)]
pub(crate) struct Images {
    soft: Soft,
    counting: Counting,
    /// Soft state of the index switches.
    index_soft: BTreeMap<u16, (Soft, Counting)>,
    /// The incarnation of each switch at the start of this control plane: the image of such a switch stays active until the next publication (PROTOCOL 16.4).
    pub(crate) restored: BTreeMap<Role, u16>,
}
