//! The state-transition table of the directory, materialised (MIND 6.3): one row for each phase of an entry
//! and each trigger.
//!
//! [`row`] is the protocol in readable form. [`TABLE`] is the same as data, computed by the compiler, for a
//! match-action unit of a switch or a map of its fast path. Rules: PROTOCOL 12.8 to 12.16.

use Phase::{
    AwaitDone, Collected, Downgrading, Invalid, Modified, MtoMData, MtoMRecall, MtoSData, Probe, Resetting,
    Shared, Upgrading,
};
use SetChange::{AddRequester, AllLive, OnlyOwner, OwnerAndRequester, RemoveRequester, RemoveSender};
use Trigger::{
    Ack, Again, Done, LastAck, OtherRequest, OwnerToRead, OwnerToWrite, Passing, Refused, Repeat, Reset,
    SoleToWrite, Swept, ToRead, ToWrite,
};

/// The phase of an entry. The first three are idle; in the others a transaction runs, and other requests are
/// refused as busy.
///
/// ```text
///              to read                    to write, no sharer left
///   Invalid ------------> Shared ------------------------------------------.
///                          ^  | to write            last ack               v    done
///                          |  `---------> Upgrading ---------------> AwaitDone -----> Modified
///                          |                                              ^              | | |
///                          |                 last ack                     |   to write   | | |
///                          |                MtoMRecall -------------------'<-------------' | |
///                          |                                                    to read    | |
///                          +------------ Downgrading <-------------------------------------' |
///                          |  last ack                               a traversal is refused  |
///                          `------------ Probe <---------------------------------------------'
///
///   MtoMRecall  --write-back passes--> MtoMData --last ack--> AwaitDone, or --done--> Modified
///   Downgrading --write-back passes--> MtoSData --last ack--> Shared
///
///   any --reset--> Resetting --last ack--> Collected --swept--> Invalid
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Phase {
    /// No host caches a page.
    Invalid,
    /// The hosts of the set may read.
    Shared,
    /// The owner may read and write.
    Modified,
    /// Shared to Modified: sharers have not given up yet; the page is on its way to the requester, where it
    /// waits for a grant.
    Upgrading,
    /// Modified to Modified: the owner has not given up yet.
    MtoMRecall,
    /// The requester is the owner and has everything it needs; its done is outstanding.
    AwaitDone,
    /// Modified to Shared: the owner has not stopped writing yet.
    Downgrading,
    /// Modified to Shared for a traversal: the owner has not stopped writing yet.
    Probe,
    /// The control plane resets the region: hosts have not given up yet.
    Resetting,
    /// All hosts gave up; the control plane sweeps the memory nodes.
    Collected,
    /// MtoMRecall after the owner's last write-back passed: the page is on its way, because the read for the
    /// requester followed the write-back.
    MtoMData,
    /// Downgrading after the owner's last write-back passed, as [`MtoMData`].
    MtoSData,
}

impl Phase {
    /// Number of phases.
    pub const COUNT: usize = 12;

    /// All phases, by number.
    pub const ALL: [Self; Self::COUNT] = [
        Invalid,
        Shared,
        Modified,
        Upgrading,
        MtoMRecall,
        AwaitDone,
        Downgrading,
        Probe,
        Resetting,
        Collected,
        MtoMData,
        MtoSData,
    ];

    /// Returns true if no transaction runs.
    #[must_use]
    pub const fn is_idle(self) -> bool {
        matches!(self, Invalid | Shared | Modified)
    }

    /// Returns true if the set has the hosts with an outstanding acknowledgement.
    #[must_use]
    pub const fn is_recalling(self) -> bool {
        matches!(self, Upgrading | MtoMRecall | MtoMData | Downgrading | MtoSData | Probe | Resetting)
    }

    /// Returns true if the outstanding acknowledgement was seen and counted as it passed.
    #[must_use]
    pub const fn is_passed(self) -> bool {
        matches!(self, MtoMData | MtoSData)
    }

    /// Returns true if the recall lets the pages stay Shared.
    #[must_use]
    pub const fn keeps(self) -> bool {
        matches!(self, Downgrading | MtoSData | Probe)
    }
}

/// The class of an event, from the entry's view. A message that fits none of these is stale, and dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Trigger {
    /// Idle: a host requests a page Shared.
    ToRead,
    /// Idle: a host requests a page Modified.
    ToWrite,
    /// Idle: the only sharer, or any host if there is none, requests a page Modified.
    SoleToWrite,
    /// Modified: the owner requests a page of its own region Shared.
    OwnerToRead,
    /// Modified: the owner requests a page of its own region Modified.
    OwnerToWrite,
    /// Busy: the transaction's own request, repeated.
    Again,
    /// Busy: any other request.
    OtherRequest,
    /// An acknowledgement that is due, but not the last one.
    Ack,
    /// The last acknowledgement that is due.
    LastAck,
    /// The requester has installed its page.
    Done,
    /// A memory node refused a lent page to a traversal.
    Refused,
    /// The control plane resets the region.
    Reset,
    /// The control plane's timer: recall again from hosts that did not answer.
    Repeat,
    /// The control plane has swept the memory nodes.
    Swept,
    /// The owner's write-back of the requested page passes, with the acknowledgement that is due.
    Passing,
}

impl Trigger {
    /// Number of triggers.
    pub const COUNT: usize = 15;

    /// All triggers, by number.
    pub const ALL: [Self; Self::COUNT] = [
        ToRead,
        ToWrite,
        SoleToWrite,
        OwnerToRead,
        OwnerToWrite,
        Again,
        OtherRequest,
        Ack,
        LastAck,
        Done,
        Refused,
        Reset,
        Repeat,
        Swept,
        Passing,
    ];
}

/// The change of the set: the sharers when idle, the hosts with an outstanding answer when busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetChange {
    /// Unchanged.
    Keep,
    /// Empty.
    Clear,
    /// Add the requester.
    AddRequester,
    /// Remove the requester.
    RemoveRequester,
    /// Remove the sender.
    RemoveSender,
    /// Only the owner.
    OnlyOwner,
    /// The owner and the requester.
    OwnerAndRequester,
    /// All live hosts.
    AllLive,
}

/// One row: the next phase, changes of the entry, messages to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transition {
    /// The next phase.
    pub next: Phase,
    /// True if the region's number grows.
    pub grows: bool,
    /// True if this request becomes the running transaction.
    pub begins: bool,
    /// True if the requester becomes the owner.
    pub owns: bool,
    /// Change of the set.
    pub set: SetChange,
    /// Messages to send: the bits of [`send`].
    pub sends: u16,
}

/// The messages of a row, in this order.
pub mod send {
    /// A recall to the set; the next phase determines its kind.
    pub const RECALL: u16 = 1;
    /// A read to the memory node.
    pub const READ: u16 = 1 << 1;
    /// Flag of the read: no host has, or will write back, earlier grants.
    pub const CLEAN: u16 = 1 << 2;
    /// Flag of the read: no further condition.
    pub const GRANTED: u16 = 1 << 3;
    /// Flag of the read: a done is due.
    pub const DONE_DUE: u16 = 1 << 4;
    /// A grant to the requester.
    pub const GRANT: u16 = 1 << 5;
    /// A refusal to the sender: retry.
    pub const BUSY: u16 = 1 << 6;
    /// The traversal continues to its node, with the notice that the page is clean.
    pub const RESUME: u16 = 1 << 7;
    /// The traversal returns to its host, which retries.
    pub const DELAY: u16 = 1 << 8;
    /// A report to the control plane: all hosts have given up.
    pub const REPORT: u16 = 1 << 9;
    /// Flag of the read: a write-back of the page was forwarded before it.
    pub const BEHIND: u16 = 1 << 10;
}
use send::{BEHIND, BUSY, CLEAN, DELAY, DONE_DUE, GRANT, GRANTED, READ, RECALL, REPORT, RESUME};

/// The reads for a host that writes a page, and for one that shares it.
const TAKE: u16 = READ | CLEAN | GRANTED | DONE_DUE;
const SHARE: u16 = READ | CLEAN | GRANTED;

/// Returns a row that only changes the phase.
const fn to(next: Phase) -> Transition {
    Transition { next, grows: false, begins: false, owns: false, set: SetChange::Keep, sends: 0 }
}

impl Transition {
    const fn grow(self) -> Self {
        Self { grows: true, ..self }
    }
    const fn begin(self) -> Self {
        Self { begins: true, ..self }
    }
    const fn own(self) -> Self {
        Self { owns: true, ..self }
    }
    const fn set(self, set: SetChange) -> Self {
        Self { set, ..self }
    }
    const fn send(self, sends: u16) -> Self {
        Self { sends, ..self }
    }
}

/// Returns the row of the protocol. None for an impossible combination: [`super::Entry`] treats such a
/// message as stale.
#[must_use]
pub const fn row(phase: Phase, trigger: Trigger) -> Option<Transition> {
    Some(match (phase, trigger) {
        // A read without a writer records only the sharer: reads run in parallel.
        (Invalid | Shared, ToRead) => to(Shared).set(AddRequester).send(SHARE),

        // A write: the number grows, so that earlier decisions are older. The page is sent while the sharers
        // give up.
        (Invalid, ToWrite | SoleToWrite) | (Shared, SoleToWrite) => {
            to(AwaitDone).grow().begin().own().set(SetChange::Clear).send(TAKE)
        }
        (Shared, ToWrite) => {
            to(Upgrading).grow().begin().own().set(RemoveRequester).send(RECALL | READ | CLEAN | DONE_DUE)
        }
        (Upgrading, LastAck) => to(AwaitDone).set(RemoveSender).send(GRANT),

        // From an owner to another host: first the owner writes back.
        (Modified, ToWrite) => to(MtoMRecall).grow().begin().set(OnlyOwner).send(RECALL),
        (MtoMRecall, LastAck) => to(AwaitDone).own().set(RemoveSender).send(TAKE),
        (Modified, ToRead) => to(Downgrading).grow().begin().set(OnlyOwner).send(RECALL),
        (Downgrading, LastAck) => to(Shared).set(OwnerAndRequester).send(SHARE),
        (Modified, Refused) => to(Probe).grow().begin().set(OnlyOwner).send(RECALL | DELAY),
        (Probe, LastAck) => to(Shared).set(OnlyOwner),

        // The read does not wait for the acknowledgement. It follows the write-back to the node, which sends
        // nothing before the write-back has arrived. A requester that is done has the page, so the owner has
        // given up: its acknowledgement can only be late.
        (MtoMRecall, Passing) => to(MtoMData).send(TAKE | BEHIND),
        (MtoMData, LastAck) => to(AwaitDone).own().set(RemoveSender),
        (MtoMData, Done) => to(Modified).own().set(SetChange::Clear),
        (Downgrading, Passing) => to(MtoSData).send(SHARE | BEHIND),
        (MtoSData, LastAck) => to(Shared).set(OwnerAndRequester),

        // The owner fetches other pages of the region. The owner may have this one, written: so not clean. A
        // page granted for writing gets its own number, for its write-back.
        (Modified, OwnerToRead) => to(Modified).send(READ | GRANTED),
        (Modified, OwnerToWrite) => to(Modified).grow().send(READ | GRANTED),

        (AwaitDone, Done) => to(Modified),
        (_, Ack) if phase.is_recalling() => to(phase).set(RemoveSender),

        // A request for a busy region retransmits what its transaction may have lost. This is the switch's
        // only defence against loss; it has no timer.
        (Upgrading, Again) => to(Upgrading).send(RECALL | READ | CLEAN | DONE_DUE),
        (MtoMRecall | Downgrading, Again) => to(phase).send(RECALL),
        (MtoMData, Again) => to(MtoMData).send(RECALL | TAKE | BEHIND),
        (MtoSData, Again) => to(MtoSData).send(RECALL | SHARE | BEHIND),
        (AwaitDone, Again) => to(AwaitDone).send(TAKE),
        (Upgrading | MtoMRecall | MtoMData | Downgrading | MtoSData | Probe, OtherRequest) => {
            to(phase).send(RECALL | BUSY)
        }
        (AwaitDone, OtherRequest) => to(AwaitDone).send(GRANT | BUSY),
        (Upgrading | MtoMRecall | MtoMData | Downgrading | MtoSData | Probe, Refused) => {
            to(phase).send(RECALL | DELAY)
        }
        (AwaitDone, Refused) => to(AwaitDone).send(GRANT | DELAY),

        // A traversal met a lent page that no host has: the node's state was old.
        (Invalid | Shared, Refused) => to(phase).send(RESUME),

        // A reset interrupts any transaction. The control plane repeats it.
        (_, Reset) => to(Resetting).grow().set(AllLive).send(RECALL),
        (Resetting, Repeat) => to(Resetting).send(RECALL),
        (Resetting, LastAck) => to(Collected).set(RemoveSender).send(REPORT),
        (Collected, Repeat) => to(Collected).send(REPORT),
        (Collected, Swept) => to(Invalid),
        (Resetting | Collected, OtherRequest) => to(phase).send(BUSY),
        (Resetting | Collected, Refused) => to(phase).send(DELAY),

        _ => return None,
    })
}

/// All rows, by phase and trigger.
pub static TABLE: [[Option<Transition>; Trigger::COUNT]; Phase::COUNT] = {
    let mut table = [[None; Trigger::COUNT]; Phase::COUNT];
    let mut phase = 0;
    while phase < Phase::COUNT {
        let mut trigger = 0;
        while trigger < Trigger::COUNT {
            table[phase][trigger] = row(Phase::ALL[phase], Trigger::ALL[trigger]);
            trigger += 1;
        }
        phase += 1;
    }
    table
};
