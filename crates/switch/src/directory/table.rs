//! The state-transition table of the directory, materialised (MIND 6.3): for each phase of an entry and each trigger one row.
//!
//! [`row`] is the protocol, to be read; [`TABLE`] is the same as data, computed by the compiler: what a match-action unit of a
//! switch, or a map of its fast path, holds. Rules: PROTOCOL 12.8 to 12.16.

use Phase::{
    AwaitDone, Collected, Downgrading, Invalid, Modified, MtoMData, MtoMRecall, MtoSData, Probe, Resetting,
    Shared, Upgrading,
};
use Set::{Live, Others, OwnerAlone, OwnerAndRequester, Requester, Sender};
use Trigger::{
    Ack, Again, AloneToWrite, Done, LastAck, Meanwhile, OwnerToRead, OwnerToWrite, Passing, Refused, Repeat,
    Reset, Swept, ToRead, ToWrite,
};

/// What an entry is doing. The first three are idle; in the others a transaction runs, and everybody else waits for his turn.
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
    /// Nobody caches anything.
    Invalid,
    /// The hosts of the set may read.
    Shared,
    /// The owner may read and write.
    Modified,
    /// Shared to Modified: sharers have still to give up; the page is on its way to the requester and waits there for a grant.
    Upgrading,
    /// Modified to Modified: the owner has still to give up.
    MtoMRecall,
    /// The requester, owner already, has all it needs and has still to say that it is done.
    AwaitDone,
    /// Modified to Shared: the owner has still to stop writing.
    Downgrading,
    /// The same, for a traversal.
    Probe,
    /// All hosts have still to give up.
    Resetting,
    /// They did; the control plane sees to the memory nodes.
    Collected,
    /// MtoMRecall, and the page is on its way: the owner's last write-back passed, with the read for the requester right behind it.
    MtoMData,
    /// Downgrading, likewise.
    MtoSData,
}

impl Phase {
    /// How many there are.
    pub const COUNT: usize = 12;

    /// Each, by number.
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

    /// True when no transaction runs.
    #[must_use]
    pub const fn is_idle(self) -> bool {
        matches!(self, Invalid | Shared | Modified)
    }

    /// True when the set is of those who have still to acknowledge a recall.
    #[must_use]
    pub const fn is_recalling(self) -> bool {
        matches!(self, Upgrading | MtoMRecall | MtoMData | Downgrading | MtoSData | Probe | Resetting)
    }

    /// True when the acknowledgement that is due has been seen, and counted, as it passed.
    #[must_use]
    pub const fn is_passed(self) -> bool {
        matches!(self, MtoMData | MtoSData)
    }

    /// True when the recall lets the pages stay Shared.
    #[must_use]
    pub const fn keeps(self) -> bool {
        matches!(self, Downgrading | MtoSData | Probe)
    }
}

/// What came, as seen from the entry. A message that fits none of these is stale, and dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Trigger {
    /// Idle: a host wants a page Shared.
    ToRead,
    /// Idle: a host wants a page Modified.
    ToWrite,
    /// The same, and nobody else shares the region.
    AloneToWrite,
    /// Modified: the owner wants a page of its own region Shared.
    OwnerToRead,
    /// The same, Modified.
    OwnerToWrite,
    /// Busy: the request that the transaction is about, once more.
    Again,
    /// Busy: any other request.
    Meanwhile,
    /// An acknowledgement that is due, and is not the last one.
    Ack,
    /// The last acknowledgement that was due.
    LastAck,
    /// The requester is done.
    Done,
    /// A memory node refused a traversal a page that is lent.
    Refused,
    /// The control plane resets the region.
    Reset,
    /// The control plane's timer: recall again from those who did not answer.
    Repeat,
    /// The control plane has seen to the memory nodes.
    Swept,
    /// The owner's write-back of the page that is asked for passes by, with the acknowledgement that is due.
    Passing,
}

impl Trigger {
    /// How many there are.
    pub const COUNT: usize = 15;

    /// Each, by number.
    pub const ALL: [Self; Self::COUNT] = [
        ToRead,
        ToWrite,
        AloneToWrite,
        OwnerToRead,
        OwnerToWrite,
        Again,
        Meanwhile,
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

/// What becomes of the set: those who share when idle, those who have still to answer when busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Set {
    /// As it was.
    Keep,
    /// Nobody.
    Nobody,
    /// The requester too.
    Requester,
    /// All but the requester.
    Others,
    /// Less who sent this.
    Sender,
    /// The owner.
    OwnerAlone,
    /// The owner and the requester.
    OwnerAndRequester,
    /// All hosts that live.
    Live,
}

/// One row: the next phase, what changes in the entry, what is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The phase after it.
    pub next: Phase,
    /// The region's number grows.
    pub grows: bool,
    /// What this asks for is the transaction from here on.
    pub begins: bool,
    /// The requester is the owner from here on.
    pub owns: bool,
    /// What becomes of the set.
    pub set: Set,
    /// What is sent: the bits of [`send`].
    pub sends: u16,
}

/// What a row has sent, in this order.
pub mod send {
    /// A recall to the set; the next phase says of which kind.
    pub const RECALL: u16 = 1;
    /// A read to the memory node.
    pub const READ: u16 = 1 << 1;
    /// In the read: nobody has or writes back what was granted before.
    pub const CLEAN: u16 = 1 << 2;
    /// In the read: no further condition.
    pub const GRANTED: u16 = 1 << 3;
    /// In the read: a done is due.
    pub const DONE_DUE: u16 = 1 << 4;
    /// A grant to the requester.
    pub const GRANT: u16 = 1 << 5;
    /// To the sender: ask again.
    pub const BUSY: u16 = 1 << 6;
    /// The traversal goes on to its node, with the news that the page is clean.
    pub const RESUME: u16 = 1 << 7;
    /// The traversal goes back to its host, to come again.
    pub const DELAY: u16 = 1 << 8;
    /// To the control plane: all hosts have given up.
    pub const REPORT: u16 = 1 << 9;
    /// In the read: a write-back of the page goes before it.
    pub const BEHIND: u16 = 1 << 10;
}
use send::{BEHIND, BUSY, CLEAN, DELAY, DONE_DUE, GRANT, GRANTED, READ, RECALL, REPORT, RESUME};

/// The read for who takes a page to write it, and for who shares it.
const TAKE: u16 = READ | CLEAN | GRANTED | DONE_DUE;
const SHARE: u16 = READ | CLEAN | GRANTED;

/// A row that only changes the phase, to be refined.
const fn to(next: Phase) -> Row {
    Row { next, grows: false, begins: false, owns: false, set: Set::Keep, sends: 0 }
}

impl Row {
    const fn grow(self) -> Self {
        Self { grows: true, ..self }
    }
    const fn begin(self) -> Self {
        Self { begins: true, ..self }
    }
    const fn own(self) -> Self {
        Self { owns: true, ..self }
    }
    const fn set(self, set: Set) -> Self {
        Self { set, ..self }
    }
    const fn send(self, sends: u16) -> Self {
        Self { sends, ..self }
    }
}

/// The protocol. None: this cannot be, for [`super::Entry`] takes such a message for stale.
#[must_use]
pub const fn row(phase: Phase, trigger: Trigger) -> Option<Row> {
    Some(match (phase, trigger) {
        // Reading what nobody writes leaves no record but the sharer: many may read at once.
        (Invalid | Shared, ToRead) => to(Shared).set(Requester).send(SHARE),

        // Writing: the number grows, so that all that was decided before is older. The page travels while the sharers give up.
        (Invalid, ToWrite | AloneToWrite) | (Shared, AloneToWrite) => {
            to(AwaitDone).grow().begin().own().set(Set::Nobody).send(TAKE)
        }
        (Shared, ToWrite) => {
            to(Upgrading).grow().begin().own().set(Others).send(RECALL | READ | CLEAN | DONE_DUE)
        }
        (Upgrading, LastAck) => to(AwaitDone).set(Sender).send(GRANT),

        // From an owner to somebody else: first the owner writes back.
        (Modified, ToWrite) => to(MtoMRecall).grow().begin().set(OwnerAlone).send(RECALL),
        (MtoMRecall, LastAck) => to(AwaitDone).own().set(Sender).send(TAKE),
        (Modified, ToRead) => to(Downgrading).grow().begin().set(OwnerAlone).send(RECALL),
        (Downgrading, LastAck) => to(Shared).set(OwnerAndRequester).send(SHARE),
        (Modified, Refused) => to(Probe).grow().begin().set(OwnerAlone).send(RECALL | DELAY),
        (Probe, LastAck) => to(Shared).set(OwnerAlone),

        // The read does not wait for the acknowledgement: it follows the write-back to the node, which sends nothing while that has not
        // come. Who is done has the page, so that the owner has given up: his acknowledgement can only be late.
        (MtoMRecall, Passing) => to(MtoMData).send(TAKE | BEHIND),
        (MtoMData, LastAck) => to(AwaitDone).own().set(Sender),
        (MtoMData, Done) => to(Modified).own().set(Set::Nobody),
        (Downgrading, Passing) => to(MtoSData).send(SHARE | BEHIND),
        (MtoSData, LastAck) => to(Shared).set(OwnerAndRequester),

        // The owner fetches the region's other pages. It may have this one, written: so not clean. A page that it may write gets a
        // number of its own, for its write-back.
        (Modified, OwnerToRead) => to(Modified).send(READ | GRANTED),
        (Modified, OwnerToWrite) => to(Modified).grow().send(READ | GRANTED),

        (AwaitDone, Done) => to(Modified),
        (_, Ack) if phase.is_recalling() => to(phase).set(Sender),

        // Whoever asks for a busy region pokes its transaction: what may have been lost is sent again. That is all the switch does
        // against loss; it has no timer.
        (Upgrading, Again) => to(Upgrading).send(RECALL | READ | CLEAN | DONE_DUE),
        (MtoMRecall | Downgrading, Again) => to(phase).send(RECALL),
        (MtoMData, Again) => to(MtoMData).send(RECALL | TAKE | BEHIND),
        (MtoSData, Again) => to(MtoSData).send(RECALL | SHARE | BEHIND),
        (AwaitDone, Again) => to(AwaitDone).send(TAKE),
        (Upgrading | MtoMRecall | MtoMData | Downgrading | MtoSData | Probe, Meanwhile) => {
            to(phase).send(RECALL | BUSY)
        }
        (AwaitDone, Meanwhile) => to(AwaitDone).send(GRANT | BUSY),
        (Upgrading | MtoMRecall | MtoMData | Downgrading | MtoSData | Probe, Refused) => {
            to(phase).send(RECALL | DELAY)
        }
        (AwaitDone, Refused) => to(AwaitDone).send(GRANT | DELAY),

        // A traversal that met a lent page where nobody has it: the node did not know better.
        (Invalid | Shared, Refused) => to(phase).send(RESUME),

        // A reset breaks into whatever runs. It is the control plane's, who repeats it.
        (_, Reset) => to(Resetting).grow().set(Live).send(RECALL),
        (Resetting, Repeat) => to(Resetting).send(RECALL),
        (Resetting, LastAck) => to(Collected).set(Sender).send(REPORT),
        (Collected, Repeat) => to(Collected).send(REPORT),
        (Collected, Swept) => to(Invalid),
        (Resetting | Collected, Meanwhile) => to(phase).send(BUSY),
        (Resetting | Collected, Refused) => to(phase).send(DELAY),

        _ => return None,
    })
}

/// All rows, by phase and trigger.
pub static TABLE: [[Option<Row>; Trigger::COUNT]; Phase::COUNT] = {
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
