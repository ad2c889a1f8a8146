//! The protocol's safety measures. Each guard can be disabled, and then the explorer must find a violation.
//!
//! The step functions stay unchanged. A guard is disabled at their edge: a message is changed in flight, or
//! an answer is forged. Key types: [`Guard`], [`Guards`].

use super::message::Message;
use farmem_host::agent::Agent;
use farmem_switch::directory::{self, Entry, Phase};
use farmem_wire::message::{Access, Data, Done, Get, Read, Recall, RecallAck, Region, Seq};

/// A safety measure of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Guard {
    /// A recall voids messages that were sent to open requests before it (PROTOCOL 12.20).
    Floors,
    /// An owner reports completion before the next owner is served (PROTOCOL 12.13).
    Done,
    /// An acknowledgement counts only for the recall it answers (PROTOCOL 12.14).
    AckSeq,
    /// The switch waits until all sharers have acknowledged (PROTOCOL 12.10).
    AckCount,
    /// A done message is sent for granted data only, and accepted once all sharers have acknowledged
    /// (PROTOCOL 12.13, 12.19).
    DoneGranted,
    /// During a write-back the host sends no acknowledgement and no request (PROTOCOL 12.17, 12.21).
    WriteBackFirst,
    /// A late recall does not touch later pages, and dirty pages are written back (PROTOCOL 12.20).
    RecallSeq,
    /// An owner's own fetch does not imply that the owner has nothing to write back (PROTOCOL 12.12).
    OwnerNotClean,
    /// A write-back counts only if its grant is not below min_seq (PROTOCOL 12.27).
    WriteBackGrant,
    /// A late write-back does not end a later loan (PROTOCOL 12.28).
    LentMark,
    /// Data counts only for the request it answers (PROTOCOL 12.18).
    DataId,
    /// A busy region is not split (PROTOCOL 12.16).
    SplitIdle,
    /// A sweep voids write-backs that are still in flight (PROTOCOL 12.30).
    SweepFloor,
    /// A request for a busy region makes the switch retransmit messages that may be lost (PROTOCOL 12.15).
    Poke,
    /// A read that was sent behind a write-back is not answered before the write-back has arrived (PROTOCOL
    /// 12.26).
    Behind,
    /// The switch waits for every write-back except that of the wanted page (PROTOCOL 12.11).
    PassingPage,
}

impl Guard {
    /// All guards with their command-line names.
    pub const ALL: [(Self, &'static str); 16] = [
        (Self::Floors, "floors"),
        (Self::Done, "done"),
        (Self::AckSeq, "ack-seq"),
        (Self::AckCount, "ack-count"),
        (Self::DoneGranted, "done-granted"),
        (Self::WriteBackFirst, "write-back-first"),
        (Self::RecallSeq, "recall-seq"),
        (Self::OwnerNotClean, "owner-not-clean"),
        (Self::WriteBackGrant, "write-back-grant"),
        (Self::LentMark, "lent-mark"),
        (Self::DataId, "data-id"),
        (Self::SplitIdle, "split-idle"),
        (Self::SweepFloor, "sweep-floor"),
        (Self::Poke, "poke"),
        (Self::Behind, "behind"),
        (Self::PassingPage, "passing-page"),
    ];

    /// Returns the guard with that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|&(guard, _)| guard)
    }
}

/// The set of disabled guards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Guards(u16);

impl Guards {
    /// No guard is disabled.
    pub const NONE_MISSING: Self = Self(0);

    /// Disables one more guard.
    #[must_use]
    pub const fn without(self, guard: Guard) -> Self {
        Self(self.0 | 1 << guard as u8)
    }

    /// Returns true if a guard is disabled.
    #[must_use]
    pub const fn any_missing(self) -> bool {
        self.0 != 0
    }

    pub(super) const fn lacks(self, guard: Guard) -> bool {
        self.0 >> guard as u8 & 1 == 1
    }

    pub(super) const fn on_send(self, message: Message) -> Message {
        match message {
            Message::Read(read) if self.lacks(Guard::OwnerNotClean) => {
                Message::Read(Read { clean: true, ..read })
            }
            Message::Read(read) if self.lacks(Guard::Behind) => Message::Read(Read { behind: false, ..read }),
            _ => message,
        }
    }

    /// Runs one step of an entry.
    pub(super) fn step(
        self,
        region: Region,
        entry: &mut Entry,
        event: directory::Event,
        out: &mut Vec<directory::Action>,
    ) {
        let busy = !entry.phase().is_idle();
        if self.lacks(Guard::Poke) && busy && matches!(event, directory::Event::Get(..)) {
            return;
        }
        if let directory::Event::Done(_, done) = event
            && self.lacks(Guard::DoneGranted)
            && done.seq == entry.seq()
        {
            acknowledge_for_all(region, entry, out);
        }
        let _ = entry.step(region, event, out);
        if self.lacks(Guard::AckCount) && entry.phase() != Phase::Resetting {
            acknowledge_for_all(region, entry, out);
        }
        if self.lacks(Guard::Done) && entry.phase() == Phase::AwaitDone {
            let (host, _, index) = entry.transaction().expect("a settling entry has a requester");
            let done = Done { page: region.page(index), seq: entry.seq() };
            let _ = entry.step(region, directory::Event::Done(host, done), out);
        }
    }

    pub(super) const fn answers_ungranted(self, data: &Data) -> bool {
        self.lacks(Guard::DoneGranted) && !data.granted && data.done_due
    }

    /// Returns the recall as a host that compares no numbers handles it, if it hits a page that the host may
    /// write.
    pub(super) fn recalls_later_grants(self, agent: &Agent, recall: &Recall) -> Option<Recall> {
        let later = |page| recall.region.contains(page);
        let hit = agent.cached().any(|(page, cached)| later(page) && cached.grant >= recall.seq);
        let all = Recall { seq: Seq(u64::MAX >> 1), ..*recall };
        (self.lacks(Guard::RecallSeq) && !recall.keep && hit).then_some(all)
    }

    pub(super) const fn forgets_write_backs(self) -> bool {
        self.lacks(Guard::WriteBackFirst)
    }

    /// Returns the grant for which a write-back counts.
    pub(super) fn grant_of_write_back(self, grant: Seq, min_seq: Seq) -> Seq {
        if self.lacks(Guard::WriteBackGrant) { grant.max(min_seq) } else { grant }
    }

    pub(super) const fn late_write_back_ends_loan(self) -> bool {
        self.lacks(Guard::LentMark)
    }

    pub(super) const fn sweep_min_seq(self, seq: Seq) -> Seq {
        if self.lacks(Guard::SweepFloor) { Seq(0) } else { seq }
    }

    /// Returns both halves of the entry, if it may be split.
    pub(super) fn split(self, region: Region, entry: &Entry) -> Option<[Entry; 2]> {
        if !self.lacks(Guard::SplitIdle) {
            return entry.split();
        }
        entry.split().or_else(|| split_busy(region, entry))
    }
}

fn acknowledge_for_all(region: Region, entry: &mut Entry, out: &mut Vec<directory::Action>) {
    for host in entry.set().iter() {
        if entry.phase().is_recalling() {
            let ack = RecallAck { region, seq: entry.seq(), false_invalidations: 0 };
            let _ = entry.step(region, directory::Event::Ack(host, ack), out);
        }
    }
}

/// Splits a busy entry: the half with the page continues the transaction, the other half gets the
/// transaction's final state.
fn split_busy(region: Region, entry: &Entry) -> Option<[Entry; 2]> {
    let (requester, id, index) = entry.transaction()?;
    let (low, high) = region.halves()?;
    let half = |half: Region| {
        let mut fresh = Entry::new(Seq(entry.seq().0 - 1));
        let (page, mut out) = (half.base(), Vec::new());
        let get = Get { page, access: Access::Modified, id };
        let _ = fresh.step(half, directory::Event::Get(requester, get), &mut out);
        if !half.contains(region.page(index)) {
            let done = Done { page, seq: entry.seq() };
            let _ = fresh.step(half, directory::Event::Done(requester, done), &mut out);
        }
        fresh
    };
    Some([half(low), half(high)])
}
