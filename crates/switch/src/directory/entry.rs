//! One slot of the directory: what a region's entry remembers, and one step of it.

use super::table::{Phase, Row, Set, TABLE, Trigger, send};
use alloc::vec::Vec;
use farmem_wire::message::{
    Access, CACHING_HOSTS_MAX, Done, FetchId, Get, Grant, HostSet, Page, Read, Recall, RecallAck, Refusal,
    Region, Seq,
};
use farmem_wire::{HostId, Status};

/// What the directory knows of a region: 56 bytes, as a slot of a switch's SRAM would hold them.
///
/// Reads while nobody writes, and the owner's own fetches, leave no record here. One register serves for sharers and for missing
/// acknowledgements, since no phase needs both.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// Grows at every change of the writer and at every page handed out to be written.
    seq: Seq,
    /// Shared: who shares. Recalling: who has still to answer. Otherwise empty.
    set: HostSet,
    /// The request of the transaction that runs.
    id: FetchId,
    /// Pages given up needlessly since the control plane last looked (MIND 5); stays at its largest value.
    false_invalidations: u16,
    /// The page of the transaction that runs, as its index in the region.
    page: u16,
    phase: Phase,
    /// Modified, and from there on: who owns. Upgrading and AwaitDone: the requester.
    owner: u8,
    /// Busy: who asked.
    requester: u8,
}

const _: () = assert!(size_of::<Entry>() == 56);

/// What reaches an entry. Who sent it was established from the session, not from the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A host's request.
    Get(HostId, Get),
    /// A host, or a memory node in its name, answers a recall.
    Ack(HostId, RecallAck),
    /// The same, before it is due to count: this host's last write-back, of this page, goes to its node with that answer.
    Passing(HostId, Page, RecallAck),
    /// A host is done.
    Done(HostId, Done),
    /// A memory node refused a traversal this page.
    Refused(Page),
    /// The control plane resets the region; these hosts live.
    Reset(HostSet),
    /// The control plane's timer, while it resets the region.
    Repeat,
    /// The control plane has seen to the memory nodes, under this number.
    Swept(Seq),
    /// This host is fenced: nothing of it counts any more. These hosts live.
    Fence(HostId, HostSet),
}

/// What a step has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// To these hosts, by multicast (MIND 4.3.2).
    Recall(HostSet, Recall),
    /// To the page's memory node.
    Read(Read),
    /// To the host.
    Grant(HostId, Grant),
    /// To the host.
    Busy(HostId, Refusal),
    /// The traversal goes on to the page's node, which learns that no host has it from before this number.
    Resume(Page, Seq),
    /// The traversal goes back to its host, to come again.
    Delay(Page),
    /// To the control plane: every host has given the region up under this number.
    Report(Region, Seq),
}

/// The most actions of one step.
pub const ACTIONS_MAX: usize = 2;

/// What came of an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    /// It took the entry from this phase by this trigger.
    Stepped(Phase, Trigger),
    /// It is late, repeated, or was never due, and changed nothing.
    Stale,
    /// The sharer that was fenced is no sharer any more; nothing else changed.
    Forgotten,
}

impl Entry {
    /// An entry of a region that nobody caches. `seq` is at least that of any entry its pages ever had.
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

    /// What it is doing.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// The region's number.
    #[must_use]
    pub const fn seq(&self) -> Seq {
        self.seq
    }

    /// Shared: who shares. Recalling: who has still to answer.
    #[must_use]
    pub const fn set(&self) -> HostSet {
        self.set
    }

    /// Who owns the region, from the moment when nobody else may be given a page of it.
    #[must_use]
    pub const fn owner(&self) -> Option<HostId> {
        match self.phase {
            Phase::Invalid | Phase::Shared | Phase::Resetting | Phase::Collected => None,
            _ => Some(HostId(self.owner as u16)),
        }
    }

    /// The request that the transaction is about: host, id and page index.
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

    /// Pages given up needlessly since the last call.
    pub const fn take_false_invalidations(&mut self) -> u16 {
        core::mem::replace(&mut self.false_invalidations, 0)
    }

    /// Takes one event and writes what follows from it to `out`, at most [`ACTIONS_MAX`] actions, in order. `region` is the entry's
    /// own, and every page named in the event lies in it.
    pub fn step(&mut self, region: Region, event: Event, out: &mut Vec<Action>) -> Outcome {
        let Some(trigger) = self.trigger(region, &event) else {
            return self.without_row(event);
        };
        let phase = self.phase;
        let row = TABLE[phase as usize][trigger as usize].expect("what has no row is stale");
        let asked = match event {
            Event::Get(host, get) if trigger != Trigger::Meanwhile => Some(Asked { host, get }),
            _ => self.running(region),
        };
        self.apply(&row, region, &event);
        self.send(&row, region, &event, asked, out);
        self.assert_invariants();
        Outcome::Stepped(phase, trigger)
    }

    /// What the event is to this entry; none when it is nothing.
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
            Phase::Invalid if writes => Trigger::AloneToWrite,
            Phase::Shared if writes && self.set.without(host).is_empty() => Trigger::AloneToWrite,
            Phase::Modified if host == self.owner_id() && writes => Trigger::OwnerToWrite,
            Phase::Modified if host == self.owner_id() => Trigger::OwnerToRead,
            phase if phase.is_idle() && writes => Trigger::ToWrite,
            phase if phase.is_idle() => Trigger::ToRead,
            _ => match self.transaction() {
                Some((requester, id, _)) if (requester, id) == (host, get.id) => Trigger::Again,
                _ => Trigger::Meanwhile,
            },
        })
    }

    /// Whether it is of the recall that was sent last.
    fn answers(&self, region: Region, ack: &RecallAck) -> bool {
        ack.region == region && ack.seq == self.seq
    }

    fn acknowledged(&self, host: HostId) -> Option<Trigger> {
        if !self.set.contains(host) {
            return None;
        }
        Some(if self.set.len() == 1 { Trigger::LastAck } else { Trigger::Ack })
    }

    /// True when the region cannot get on without this host, or may have lost bytes with it.
    #[must_use]
    pub fn depends_on(&self, host: HostId) -> bool {
        let requester = self.transaction().is_some_and(|(requester, ..)| requester == host);
        let asked = self.phase.is_recalling() && self.set.contains(host);
        requester || asked || self.owner() == Some(host)
    }

    /// A fenced host that only shares is forgotten; everything else without a trigger is stale.
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

    /// Both halves of an idle entry; none while a transaction runs, whose set says nothing about the half it is not about.
    #[must_use]
    pub const fn split(&self) -> Option<[Self; 2]> {
        if !self.phase.is_idle() {
            return None;
        }
        let half = Self { false_invalidations: 0, ..*self };
        Some([half, half])
    }

    /// One entry for both; none while a transaction runs or when a host could do more with the whole than with its halves.
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

    fn apply(&mut self, row: &Row, region: Region, event: &Event) {
        let counted = match *event {
            // It counted when it passed.
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

    fn set_after(&self, rule: Set, event: &Event) -> HostSet {
        match (rule, *event) {
            (Set::Keep, _) => self.set,
            (Set::Requester, Event::Get(host, _)) => self.set.with(host),
            (Set::Others, Event::Get(host, _)) => self.set.without(host),
            (Set::Sender, Event::Ack(host, _) | Event::Fence(host, _)) => self.set.without(host),
            (Set::OwnerAlone, _) => HostSet::only(self.owner_id()),
            (Set::OwnerAndRequester, _) => HostSet::only(self.owner_id()).with(self.requester_id()),
            (Set::Live, Event::Reset(live)) => live,
            (Set::Live, Event::Fence(host, live)) => live.without(host),
            (Set::Nobody | Set::Requester | Set::Others | Set::Sender | Set::Live, _) => HostSet::EMPTY,
        }
    }

    /// What the phase has no use for is zero, so that entries that do the same are the same.
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

    fn send(&self, row: &Row, region: Region, event: &Event, asked: Option<Asked>, out: &mut Vec<Action>) {
        let sends = |what: u16| row.sends & what != 0;
        if sends(send::RECALL) {
            out.push(self.recall(region));
        }
        if let Some(Asked { host, get: Get { page, access, id } }) = asked {
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

    /// The recall to those who have still to answer; when a reset finds nobody to ask, the report that nobody is left.
    fn recall(&self, region: Region) -> Action {
        if self.set.is_empty() {
            return Action::Report(region, self.seq);
        }
        let wanted = (self.phase != Phase::Resetting).then_some(self.page);
        Action::Recall(self.set, Recall { region, seq: self.seq, keep: self.phase.keeps(), wanted })
    }

    /// The request that the transaction is about.
    fn running(&self, region: Region) -> Option<Asked> {
        let (host, id, index) = self.transaction()?;
        let reads = matches!(self.phase, Phase::Downgrading | Phase::MtoSData);
        let access = if reads { Access::Shared } else { Access::Modified };
        Some(Asked { host, get: Get { page: region.page(index), access, id } })
    }

    const fn owner_id(&self) -> HostId {
        HostId(self.owner as u16)
    }

    const fn requester_id(&self) -> HostId {
        HostId(self.requester as u16)
    }

    /// Asserts what holds between any two steps.
    ///
    /// # Panics
    /// When it does not.
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

/// A request and who made it.
#[derive(Clone, Copy)]
struct Asked {
    host: HostId,
    get: Get,
}

/// A host's number, in the bits an entry has for it.
///
/// # Panics
/// When the host cannot take part; [`Entry::step`] takes what such a host sends for stale.
fn number(host: HostId) -> u8 {
    u8::try_from(host.0).expect("a host that takes part has a small number")
}
