//! What the protocol does to be safe, and what happens without: each guard can be taken away, and then the explorer must find out.
//!
//! The step functions stay as they are. A guard is taken away at their edge: a message is changed on its way, or an answer is
//! made up. Key types: [`Guard`], [`Guards`].

use super::message::Message;
use super::model::World;
use farmem_host::agent::Agent;
use farmem_switch::directory::{self, Entry, Phase};
use farmem_wire::message::{Access, Data, Done, Get, Page, Read, Recall, RecallAck, Region, Seq};

/// Something without which the protocol would be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Guard {
    /// A recall voids what was sent to open requests before it (PROTOCOL 12.20).
    Floors,
    /// An owner says that it is done before the next one has its turn (PROTOCOL 12.13).
    Done,
    /// An acknowledgement counts only for the recall it answers (PROTOCOL 12.14).
    AckSeq,
    /// The switch waits until all sharers have acknowledged (PROTOCOL 12.10).
    AckCount,
    /// Done is said of what was granted, and heard when all have acknowledged (PROTOCOL 12.13, 12.19).
    DoneGranted,
    /// Nothing is acknowledged or asked for while a write-back is under way (PROTOCOL 12.17, 12.21).
    WriteBackFirst,
    /// A late recall does not touch later pages, and what was written is written back (PROTOCOL 12.20).
    RecallSeq,
    /// An owner's own fetch says nothing about what the owner may still write back (PROTOCOL 12.12).
    OwnerNotClean,
    /// A write-back counts only when its grant is not below min_seq (PROTOCOL 12.27).
    WriteBackGrant,
    /// A late write-back does not end a later loan (PROTOCOL 12.28).
    LentMark,
    /// Data counts only for the request it answers (PROTOCOL 12.18).
    DataId,
    /// A busy region is not split (PROTOCOL 12.16).
    SplitIdle,
    /// A sweep voids write-backs that are still under way (PROTOCOL 12.30).
    SweepFloor,
    /// A request for a busy region makes the switch send again what may be lost (PROTOCOL 12.15).
    Poke,
    /// A read that was sent behind a write-back is not answered before that has come (PROTOCOL 12.26).
    Behind,
    /// The switch waits for every write-back but that of the wanted page (PROTOCOL 12.11).
    PassingPage,
}

impl Guard {
    /// Each, with the name a user gives it.
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

    /// The guard of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|&(guard, _)| guard)
    }
}

/// The guards that are taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Guards(u16);

impl Guards {
    /// All guards are there.
    pub const NONE_MISSING: Self = Self(0);

    /// One more is taken away.
    #[must_use]
    pub const fn without(self, guard: Guard) -> Self {
        Self(self.0 | 1 << guard as u8)
    }

    /// True when something is taken away.
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

    pub(super) fn on_delivery(self, world: &World, message: Message) -> Message {
        match message {
            Message::Data(host, mut data, latest) => {
                let request = world.host(host).agent.requests().find(|(page, _)| *page == data.page);
                if let Some((_, request)) = request {
                    if self.lacks(Guard::DataId) {
                        (data.id, data.access) = (request.id, request.access);
                    }
                    if self.lacks(Guard::Floors) {
                        data.seq = data.seq.max(request.min_seq);
                    }
                }
                Message::Data(host, data, latest)
            }
            Message::Grant(host, mut grant) if self.lacks(Guard::Floors) => {
                let request = world.host(host).agent.requests().find(|(page, _)| *page == grant.page);
                grant.seq = grant.seq.max(request.map_or(Seq(0), |(_, request)| request.min_seq));
                Message::Grant(host, grant)
            }
            Message::Ack(host, ack) if self.lacks(Guard::AckSeq) => {
                let (region, entry) = &world.entries[world.at(ack.region.base())];
                Message::Ack(host, RecallAck { region: *region, seq: entry.seq(), ..ack })
            }
            _ => message,
        }
    }

    /// One step of an entry.
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

    /// The recall as a host that tests no numbers takes it, when it hits a page it may write.
    pub(super) fn recalls_later_grants(self, agent: &Agent, recall: &Recall) -> Option<Recall> {
        let later = |page| recall.region.contains(page);
        let hit = agent.cached().any(|(page, cached)| later(page) && cached.grant >= recall.seq);
        let all = Recall { seq: Seq(u64::MAX >> 1), ..*recall };
        (self.lacks(Guard::RecallSeq) && !recall.keep && hit).then_some(all)
    }

    pub(super) const fn forgets_write_backs(self) -> bool {
        self.lacks(Guard::WriteBackFirst)
    }

    /// The grant that a write-back is taken for.
    pub(super) fn grant_of_write_back(self, grant: Seq, min_seq: Seq) -> Seq {
        if self.lacks(Guard::WriteBackGrant) { grant.max(min_seq) } else { grant }
    }

    pub(super) const fn late_write_back_ends_loan(self) -> bool {
        self.lacks(Guard::LentMark)
    }

    /// The page for which the directory takes a write-back that goes by.
    pub(super) fn page_that_passes(self, world: &World, page: Page) -> Page {
        let (region, entry) = &world.entries[world.at(page)];
        match entry.transaction() {
            Some((.., index)) if self.lacks(Guard::PassingPage) => region.page(index),
            _ => page,
        }
    }

    pub(super) const fn sweep_min_seq(self, seq: Seq) -> Seq {
        if self.lacks(Guard::SweepFloor) { Seq(0) } else { seq }
    }

    /// Both halves of the entry, when it may be split.
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

/// The half with the page goes on with the transaction; the other one is where the transaction leads to.
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
