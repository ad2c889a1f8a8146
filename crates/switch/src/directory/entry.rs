//! A directory entry: the state of a region, and its step function.

use super::table::{Phase, SetChange, TABLE, Transition, Trigger, send};
use alloc::vec::Vec;
use farmem_wire::message::{
    Access, CACHING_HOSTS_MAX, Done, FetchId, Get, Grant, HostSet, Page, Read, Recall, RecallAck, Refusal,
    Region, Seq,
};
use farmem_wire::{HostId, Status};

/// The directory's state of a region: 56 bytes, as in a slot of a switch's SRAM.
///
/// Reads without a writer, and the owner's own fetches, leave no record here. One register serves for sharers
/// and for missing acknowledgements, since no phase needs both.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// The region's number. Grows at every change of the writer and at every page granted for writing.
    seq: Seq,
    /// Shared: the sharers. Recalling: hosts with an outstanding answer. Otherwise empty.
    set: HostSet,
    /// The request of the running transaction.
    id: FetchId,
    /// False invalidations since the control plane last read them (MIND 5); saturates.
    false_invalidations: u16,
    /// The page of the running transaction, as its index in the region.
    page: u16,
    phase: Phase,
    /// Modified and later phases: the owner. Upgrading and AwaitDone: the requester.
    owner: u8,
    /// Busy phases: the requester.
    requester: u8,
}

const _: () = assert!(size_of::<Entry>() == 56);

/// An event for an entry. The session, not the message, determines the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A host requests a page.
    Get(HostId, Get),
    /// A host, or a memory node on its behalf, answers a recall.
    Ack(HostId, RecallAck),
    /// A host's last write-back, of this page, is forwarded to its node together with this answer, before the
    /// answer counts.
    Passing(HostId, Page, RecallAck),
    /// A host has installed its page.
    Done(HostId, Done),
    /// A memory node refused this page to a traversal.
    Refused(Page),
    /// The control plane resets the region; the set has the live hosts.
    Reset(HostSet),
    /// The control plane's timer expired during a reset.
    Repeat,
    /// The control plane has swept the memory nodes under this number.
    Swept(Seq),
    /// A host is fenced, and its messages no longer count; the set has the live hosts.
    Fence(HostId, HostSet),
}

/// An output of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A recall to these hosts, by multicast (MIND 4.3.2).
    Recall(HostSet, Recall),
    /// A read to the page's memory node.
    Read(Read),
    /// A grant to the host.
    Grant(HostId, Grant),
    /// A refusal to the host.
    Busy(HostId, Refusal),
    /// The traversal continues to the page's node, which learns that no host has the page from before this
    /// number.
    Resume(Page, Seq),
    /// The traversal returns to its host, which retries.
    Delay(Page),
    /// A report to the control plane: every host has given the region up under this number.
    Report(Region, Seq),
}

/// Most actions of one step.
pub const ACTIONS_MAX: usize = 2;

/// The effect of an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    /// The event caused a transition from this phase by this trigger.
    Stepped(Phase, Trigger),
    /// The event is late, repeated, or was never due, and changed nothing.
    Stale,
    /// A fenced sharer was removed; nothing else changed.
    Forgotten,
}

impl Entry {
    /// Creates an entry of a region without cached pages. `seq` is at least that of any entry its pages ever
    /// had.
    #[must_use]
    pub const fn new(seq: Seq) -> Self {
        Self {
            seq,
            set: HostSet::EMPTY,
            id: FetchId(0),
            false_invalidations: 0,
            page: 0,
            phase: Phase::Invalid,
            owner: 0,
            requester: 0,
        }
    }

    /// Returns the phase.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the region's number.
    #[must_use]
    pub const fn seq(&self) -> Seq {
        self.seq
    }

    /// Returns the set. Shared: the sharers. Recalling: hosts with an outstanding answer.
    #[must_use]
    pub const fn set(&self) -> HostSet {
        self.set
    }

    /// Returns the owner of the region, from the moment when no other host may get a page of it.
    #[must_use]
    pub const fn owner(&self) -> Option<HostId> {
        match self.phase {
            Phase::Invalid | Phase::Shared | Phase::Resetting | Phase::Collected => None,
            _ => Some(HostId(self.owner as u16)),
        }
    }

    /// Returns the request of the running transaction: host, id and page index.
    #[must_use]
    pub const fn transaction(&self) -> Option<(HostId, FetchId, u16)> {
        match self.phase {
            Phase::Upgrading
            | Phase::MtoMRecall
            | Phase::MtoMData
            | Phase::AwaitDone
            | Phase::Downgrading
            | Phase::MtoSData => Some((HostId(self.requester as u16), self.id, self.page)),
            _ => None,
        }
    }

    /// Returns the false invalidations since the last call.
    pub const fn take_false_invalidations(&mut self) -> u16 {
        core::mem::replace(&mut self.false_invalidations, 0)
    }

    /// Handles one event and appends its actions, at most [`ACTIONS_MAX`], in order, to `out`. `region` is
    /// the entry's own, and holds every page in the event.
    pub fn step(&mut self, region: Region, event: Event, out: &mut Vec<Action>) -> Outcome {
        let Some(trigger) = self.trigger(region, &event) else {
            return self.without_row(event);
        };
        let phase = self.phase;
        let row = TABLE[phase as usize][trigger as usize].expect("what has no row is stale");
        let asked = match event {
            Event::Get(host, get) if trigger != Trigger::OtherRequest => Some(RunningRequest { host, get }),
            _ => self.running(region),
        };
        self.apply(&row, region, &event);
        self.send(&row, region, &event, asked, out);
        self.assert_invariants();
        Outcome::Stepped(phase, trigger)
    }

    /// Classifies the event; none if it has no meaning for this entry.
    fn trigger(&self, region: Region, event: &Event) -> Option<Trigger> {
        match *event {
            Event::Get(host, _) if host.0 >= CACHING_HOSTS_MAX => None,
            Event::Get(host, get) => self.request(host, &get),
            Event::Ack(host, ack) => {
                let due = self.phase.is_recalling() && self.answers(region, &ack);
                due.then(|| self.acknowledged(host)).flatten()
            }
            Event::Passing(host, page, ack) => {
                let due = matches!(self.phase, Phase::MtoMRecall | Phase::Downgrading)
                    && self.answers(region, &ack);
                (due && host == self.owner_id() && region.index(page) == self.page)
                    .then_some(Trigger::Passing)
            }
            Event::Done(host, done) => {
                let waits = matches!(self.phase, Phase::AwaitDone | Phase::MtoMData);
                let due = waits && done.seq == self.seq;
                (due && host == self.requester_id()).then_some(Trigger::Done)
            }
            Event::Refused(_) => Some(Trigger::Refused),
            Event::Reset(_) => Some(Trigger::Reset),
            Event::Repeat => {
                matches!(self.phase, Phase::Resetting | Phase::Collected).then_some(Trigger::Repeat)
            }
            Event::Swept(seq) => {
                let due = self.phase == Phase::Collected && seq == self.seq;
                due.then_some(Trigger::Swept)
            }
            Event::Fence(host, _) => match self.phase {
                Phase::Resetting => self.acknowledged(host),
                _ => self.depends_on(host).then_some(Trigger::Reset),
            },
        }
    }

    fn request(&self, host: HostId, get: &Get) -> Option<Trigger> {
        let writes = get.access == Access::Modified;
        Some(match self.phase {
            Phase::Invalid if writes => Trigger::SoleToWrite,
            Phase::Shared if writes && self.set.without(host).is_empty() => Trigger::SoleToWrite,
            Phase::Modified if host == self.owner_id() && writes => Trigger::OwnerToWrite,
            Phase::Modified if host == self.owner_id() => Trigger::OwnerToRead,
            phase if phase.is_idle() && writes => Trigger::ToWrite,
            phase if phase.is_idle() => Trigger::ToRead,
            _ => match self.transaction() {
                Some((requester, id, _)) if (requester, id) == (host, get.id) => Trigger::Again,
                _ => Trigger::OtherRequest,
            },
        })
    }

    /// Returns true if the acknowledgement answers the last recall.
    fn answers(&self, region: Region, ack: &RecallAck) -> bool {
        ack.region == region && ack.seq == self.seq
    }

    fn acknowledged(&self, host: HostId) -> Option<Trigger> {
        if !self.set.contains(host) {
            return None;
        }
        Some(if self.set.len() == 1 { Trigger::LastAck } else { Trigger::Ack })
    }

    /// Returns true if the region cannot progress without this host, or may have lost bytes with it.
    #[must_use]
    pub fn depends_on(&self, host: HostId) -> bool {
        let requester = self.transaction().is_some_and(|(requester, ..)| requester == host);
        let asked = self.phase.is_recalling() && self.set.contains(host);
        requester || asked || self.owner() == Some(host)
    }

    /// Handles an event without a row: removes a fenced host that only shares; all other events are stale.
    fn without_row(&mut self, event: Event) -> Outcome {
        match event {
            Event::Fence(host, _) if self.phase == Phase::Shared && self.set.contains(host) => {
                self.set = self.set.without(host);
                if self.set.is_empty() {
                    self.phase = Phase::Invalid;
                }
                Outcome::Forgotten
            }
            _ => Outcome::Stale,
        }
    }

    /// Returns both halves of an idle entry. None during a transaction, whose set says nothing about the
    /// other half.
    #[must_use]
    pub const fn split(&self) -> Option<[Self; 2]> {
        if !self.phase.is_idle() {
            return None;
        }
        let half = Self { false_invalidations: 0, ..*self };
        Some([half, half])
    }

    /// Returns one entry for both halves. None during a transaction, or if a host would get more access to
    /// the whole than to its halves.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Option<Self> {
        if !self.phase.is_idle() || !other.phase.is_idle() {
            return None;
        }
        let (less, more) = if self.phase <= other.phase { (self, other) } else { (other, self) };
        let set = match (less.phase, more.phase) {
            (Phase::Invalid, _) => more.set,
            (Phase::Shared, Phase::Shared) => less.set.union(more.set),
            (Phase::Shared, Phase::Modified) if less.set == HostSet::only(more.owner_id()) => HostSet::EMPTY,
            (Phase::Modified, Phase::Modified) if less.owner == more.owner => HostSet::EMPTY,
            _ => return None,
        };
        let false_invalidations = less.false_invalidations.saturating_add(more.false_invalidations);
        Some(Self { seq: less.seq.max(more.seq), set, false_invalidations, ..*more })
    }

    fn apply(&mut self, row: &Transition, region: Region, event: &Event) {
        let counted = match *event {
            // The acknowledgement was counted when it passed.
            Event::Ack(..) if self.phase.is_passed() => 0,
            Event::Ack(_, ack) | Event::Passing(_, _, ack) => ack.false_invalidations,
            _ => 0,
        };
        self.false_invalidations = self.false_invalidations.saturating_add(counted);
        if row.grows {
            self.seq = self.seq.next();
        }
        match (row.begins, *event) {
            (true, Event::Get(host, get)) => {
                (self.requester, self.id, self.page) = (number(host), get.id, region.index(get.page));
            }
            (true, Event::Refused(page)) => self.page = region.index(page),
            _ => {}
        }
        self.set = self.set_after(row.set, event);
        if row.owns {
            self.owner = self.requester;
        }
        self.phase = row.next;
        if self.phase == Phase::Resetting && self.set.is_empty() {
            self.phase = Phase::Collected;
        }
        self.forget();
    }

    fn set_after(&self, rule: SetChange, event: &Event) -> HostSet {
        match (rule, *event) {
            (SetChange::Keep, _) => self.set,
            (SetChange::AddRequester, Event::Get(host, _)) => self.set.with(host),
            (SetChange::RemoveRequester, Event::Get(host, _)) => self.set.without(host),
            (SetChange::RemoveSender, Event::Ack(host, _) | Event::Fence(host, _)) => self.set.without(host),
            (SetChange::OnlyOwner, _) => HostSet::only(self.owner_id()),
            (SetChange::OwnerAndRequester, _) => HostSet::only(self.owner_id()).with(self.requester_id()),
            (SetChange::AllLive, Event::Reset(live)) => live,
            (SetChange::AllLive, Event::Fence(host, live)) => live.without(host),
            (
                SetChange::Clear
                | SetChange::AddRequester
                | SetChange::RemoveRequester
                | SetChange::RemoveSender
                | SetChange::AllLive,
                _,
            ) => HostSet::EMPTY,
        }
    }

    /// Clears fields that the phase does not use, so that equivalent entries are equal.
    const fn forget(&mut self) {
        if self.transaction().is_none() {
            (self.requester, self.id) = (0, FetchId(0));
            if !matches!(self.phase, Phase::Probe) {
                self.page = 0;
            }
        }
        if self.owner().is_none() {
            self.owner = 0;
        }
    }

    fn send(
        &self,
        row: &Transition,
        region: Region,
        event: &Event,
        asked: Option<RunningRequest>,
        out: &mut Vec<Action>,
    ) {
        let sends = |what: u16| row.sends & what != 0;
        if sends(send::RECALL) {
            out.push(self.recall(region));
        }
        if let Some(RunningRequest { host, get: Get { page, access, id } }) = asked {
            let seq = self.seq;
            if sends(send::READ) {
                let [clean, behind, granted, done_due] =
                    [send::CLEAN, send::BEHIND, send::GRANTED, send::DONE_DUE].map(sends);
                out.push(Action::Read(Read {
                    page,
                    access,
                    host,
                    id,
                    seq,
                    clean,
                    behind,
                    granted,
                    done_due,
                }));
            }
            if sends(send::GRANT) {
                out.push(Action::Grant(host, Grant { page, id, seq }));
            }
        }
        match *event {
            Event::Get(host, Get { page, id, .. }) if sends(send::BUSY) => {
                out.push(Action::Busy(host, Refusal { page, id, status: Status::Busy }));
            }
            Event::Refused(page) if sends(send::RESUME) => out.push(Action::Resume(page, self.seq)),
            Event::Refused(page) if sends(send::DELAY) => out.push(Action::Delay(page)),
            _ => {}
        }
        if sends(send::REPORT) {
            out.push(Action::Report(region, self.seq));
        }
    }

    /// Returns the recall to hosts with an outstanding answer. If a reset finds none, returns the report that
    /// no host is left.
    fn recall(&self, region: Region) -> Action {
        if self.set.is_empty() {
            return Action::Report(region, self.seq);
        }
        let wanted = (self.phase != Phase::Resetting).then_some(self.page);
        Action::Recall(self.set, Recall { region, seq: self.seq, keep: self.phase.keeps(), wanted })
    }

    /// Returns the request of the running transaction.
    fn running(&self, region: Region) -> Option<RunningRequest> {
        let (host, id, index) = self.transaction()?;
        let reads = matches!(self.phase, Phase::Downgrading | Phase::MtoSData);
        let access = if reads { Access::Shared } else { Access::Modified };
        Some(RunningRequest { host, get: Get { page: region.page(index), access, id } })
    }

    const fn owner_id(&self) -> HostId {
        HostId(self.owner as u16)
    }

    const fn requester_id(&self) -> HostId {
        HostId(self.requester as u16)
    }

    /// Asserts the invariants between any two steps.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn assert_invariants(&self) {
        let has_set = self.phase == Phase::Shared || self.phase.is_recalling();
        assert_eq!(has_set, !self.set.is_empty(), "the set is in use or empty: {self:?}");
        match self.phase {
            Phase::MtoMRecall | Phase::MtoMData | Phase::Downgrading | Phase::MtoSData => {
                assert_eq!(self.set, HostSet::only(self.owner_id()), "the owner is asked: {self:?}");
                assert_ne!(
                    self.owner, self.requester,
                    "an owner's request does not wait for itself: {self:?}"
                );
            }
            Phase::Probe => {
                assert_eq!(self.set, HostSet::only(self.owner_id()), "the owner is asked: {self:?}")
            }
            Phase::Upgrading | Phase::AwaitDone => {
                assert_eq!(self.owner, self.requester, "the next owner asked: {self:?}");
                assert!(
                    !self.set.contains(self.requester_id()),
                    "a requester does not wait for itself: {self:?}"
                );
            }
            _ => {}
        }
    }
}

/// A request with its host.
#[derive(Clone, Copy)]
struct RunningRequest {
    host: HostId,
    get: Get,
}

/// Returns a host's number in the width of an entry's field.
///
/// # Panics
/// If the host's number is too large; [`Entry::step`] treats events of such a host as stale.
fn number(host: HostId) -> u8 {
    u8::try_from(host.0).expect("a host that takes part has a small number")
}
