//! Notes that some world must reach: a rule that no seed exercises is not tested here.
//!
//! Notes are named as a [`Journal`](crate::Journal) counts them. A mark stands for every note that begins
//! with it. When a role gets a new note, the matches in the tests below stop compiling until the note is in
//! one of the two lists.

use crate::{Campaign, Plan, Report, Verdict, pages, pair, rack};
use std::collections::BTreeMap;

/// Marks that the worlds of [`run`] must reach.
pub const REACHED: &[&str] = &[
    "control.Dropped(Port)",
    "control.Dropped(Stale)",
    "control.Refused",
    "control.Retransmitted",
    "control.TakenBack",
    "control.Waits",
    "host.Abandoned",
    "host.Batch",
    "host.Continued",
    "host.Followed",
    "host.LateAnswer",
    "host.Malformed",
    "host.NotForUs",
    "host.Rc(Broken(InvalidRequest))",
    "host.Rc(Broken(RemoteAccess))",
    "host.Rc(Broken(RetriesExceeded))",
    "host.ReconnectFailed",
    "host.RefusedAgain",
    "host.RetriedInPlace",
    "host.SentCode",
    "host.WrongAnswer",
    "node.Answered(Batch",
    "node.Answered(RegionRead",
    "node.Answered(RegionWrite",
    "node.Answered(Traverse",
    "node.Connection(InvalidRequest)",
    "node.Connection(Dropped(WrongPort))",
    "node.Connection(NotReady)",
    "node.Connection(Refused(Misaligned",
    "node.Connection(Refused(NotMapped",
    "node.Connection(Refused(OutOfBounds",
    "node.Connection(Refused(WrongKey",
    "node.Continued",
    "node.Dropped(Malformed)",
    "node.Dropped(NoQueuePair)",
    "node.Dropped(OutOfTurn)",
    "node.Dropped(WrongKey)",
    "node.Dropped(WrongPort)",
    "node.DuplicateTraversal",
    "node.DuplicateWrite",
    "node.PageServed",
    "node.PageTooEarly",
    "node.PageWritten(No)",
    "node.PageWritten(NotYet)",
    "node.PageWritten(Yes)",
    "node.ProgramForgotten",
    "node.ProgramLearned",
    "node.UpdateRepeated",
    "node.Updated",
    "rc.Broken",
    "rc.Dropped(AfterGap)",
    "rc.Dropped(Broken)",
    "rc.Dropped(Unexpected)",
    "rc.DuplicateAtomic",
    "rc.DuplicateForgotten",
    "rc.DuplicateRead",
    "rc.DuplicateWrite",
    "rc.ImpliedNak",
    "rc.NakSequence",
    "rc.Refused",
    "rc.RnrWait",
    "rc.TimedOut",
    "rc.WentBack",
    "switch.Continued",
    "switch.Dropped(NoConnection)",
    "switch.Dropped(Frame)",
    "switch.Dropped(Message)",
    "switch.Dropped(Sequence)",
    "switch.Dropped(UnknownQueuePair)",
    "switch.Dropped(WrongKey)",
    "switch.Dropped(WrongPort)",
    "switch.Forwarded",
    "switch.Page(Stale)",
    "switch.Page(Stepped(Downgrading, Passing))",
    "switch.Page(Stepped(MtoMData, LastAck))",
    "switch.Page(Stepped(MtoSData, LastAck))",
    "switch.Page(Stepped(MtoMRecall, Passing))",
    "switch.PageForwarded",
    "switch.Refused",
    "switch.UpdateRefused",
    "switch.UpdateRepeated",
    "switch.Updated",
];

/// Marks that those worlds need not reach, each with the reason and the test that does.
pub const ELSEWHERE: &[(&str, &str)] = &[
    (
        "control.BegunAnew",
        "needs a role that starts again while a change waits for it: one seed in twenty, tests of control",
    ),
    ("control.Back", "needs a role that is cut off for long and does not crash: one seed in a hundred"),
    ("control.Dropped(Endpoint)", "needs a switch or node with a wrong key: tests of control"),
    ("control.Dropped(Kind)", "needs a switch or node that sends something else: tests of control"),
    ("control.Dropped(Malformed)", "needs a switch or node that sends no messages: tests of control"),
    (
        "control.MustRejoin",
        "needs tables that outgrow the switch while a change is taken back: one seed in hundreds",
    ),
    (
        "control.Silent",
        "needs a machine that is down for long while an operation needs it: a few seeds in a hundred",
    ),
    ("host.Rejected", "the control plane of these worlds hands out no queue pair twice: tests of host"),
    ("host.Rc(Dropped(Misshapen))", "needs a node that answers wrongly: tests of transport"),
    ("host.Rc(Dropped(Opcode))", "needs a node that sends requests: tests of transport"),
    ("node.Dropped(Forgotten)", "a host keeps its writes within what nodes remember: tests of memnode"),
    ("node.Dropped(NotHere)", "the tables of these racks agree about where a page is: tests of memnode"),
    ("node.Dropped(Opcode)", "one rogue frame in thousands: tests of memnode"),
    ("node.Dropped(Response)", "needs a switch that sends answers to nodes: tests of memnode"),
    ("node.Dropped(UnknownPeer)", "a node hears of its hosts before it is heard of: tests of memnode"),
    ("node.Dropped(UnderWay)", "needs a copy that comes within a microsecond: tests of memnode"),
    ("node.ProgramInterpreted", "needs a machine without a compiler: tests of memnode"),
    ("node.UpdateChanged", "needs two senders with the control plane's keys: tests of memnode and farmem"),
    ("node.UpdateRefused", "the tables of these nodes are large: tests of memnode"),
    ("switch.Dropped(Immediate)", "one rogue frame in thousands: tests of switch"),
    (
        "switch.Dropped(NodeGone)",
        "needs a node that joins again, in two batches: one seed in a thousand, tests of switch",
    ),
    ("switch.Dropped(NotContinuation)", "needs a node that sends something else: tests of switch"),
    ("switch.Dropped(Response)", "one rogue frame in thousands: tests of switch"),
    ("switch.Dropped(UnknownOrigin)", "needs a node that makes a host up: tests of switch"),
    ("switch.Page(Forgotten)", "needs a host that is fenced: tests of switch, and the explorer"),
    ("host.Deferred", "needs pages that hosts cache: tests of host and sim"),
    ("rc.NotReady", "needs pages that hosts cache: tests of transport, memnode and sim"),
    ("switch.UpdateChanged", "needs two senders with the control plane's keys: tests of switch"),
    ("switch.Listed", "needs a control plane beside hosts that cache: tests of sim"),
    ("switch.Resized", "needs a control plane beside hosts that cache: tests of sim"),
    ("switch.Soft", "no image is loaded in these worlds: tests of switch, and of images in sim"),
    ("switch.Indexed", "likewise: tests of switch, and of blink_tree in farmem"),
    (
        "switch.Relayed",
        "no connection of these worlds goes through the switch: tests of switch, and of keyed in sim",
    ),
    ("switch.Keyed", "likewise"),
    ("switch.Dropped(NotItsEnd)", "likewise"),
    ("rc.DuplicateElsewhere", "needs a keyed READ: tests of transport, and of keyed in sim"),
    (
        "switch.Routed",
        "these worlds have no switches of the index: tests of switch, and tree_worlds in farmem",
    ),
    ("switch.BatchSplit", "likewise"),
    ("switch.PageRefused", "all hosts of these worlds may have all pages: tests of switch"),
];

/// Number of operations of each world of [`run`].
const OPERATIONS: u64 = 800;

/// Runs every plan on whole racks, on pairs and on hosts that share pages, `seeds` worlds each. Returns the
/// reports and the marks that no world reached.
pub fn run(seeds: u64, progress: &mut dyn FnMut(u64)) -> (Vec<Report>, Vec<&'static str>) {
    let mut reports = Vec::new();
    let mut notes = BTreeMap::new();
    let mut done = 0;
    for plan in Plan::ALL {
        let campaign = Campaign { operations: seeds * OPERATIONS, seeds, first_seed: 0, plan };
        for play in [rack::campaign, pair::rc_campaign, pages::campaign] {
            let report = play(&campaign, &mut |_| {});
            for (note, count) in &report.total.notes {
                *notes.entry(note.clone()).or_default() += count;
            }
            reports.push(report);
        }
        done += 1;
        progress(done);
    }
    let missing = missing(&notes);
    (reports, missing)
}

/// Returns the marks that none of these notes reaches.
#[must_use]
pub fn missing(notes: &BTreeMap<String, u64>) -> Vec<&'static str> {
    let reached = |mark: &&&str| notes.keys().any(|note| note.starts_with(**mark));
    REACHED.iter().filter(|mark| !reached(mark)).copied().collect()
}

/// Returns true if every report is fine.
#[must_use]
pub fn all_fine(reports: &[Report]) -> bool {
    reports.iter().all(|report| report.verdict == Verdict::Fine)
}

#[cfg(test)]
mod tests {
    use super::{ELSEWHERE, REACHED, missing};
    use farmem_transport::rc;
    use farmem_wire::{NodeId, Status, WireError};
    use std::collections::BTreeMap;

    fn is_listed(mark: &str) -> bool {
        let begins = |with: &str| mark.starts_with(with);
        REACHED.iter().any(|with| begins(with)) || ELSEWHERE.iter().any(|(with, _)| begins(with))
    }

    /// No mark is in both lists, or twice in one.
    #[test]
    fn each_mark_has_one_place() {
        let mut all: Vec<&str> =
            REACHED.iter().chain(ELSEWHERE.iter().map(|(mark, _)| mark)).copied().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    /// Missing marks are reported.
    #[test]
    fn a_mark_that_is_never_reached_is_told() {
        let mut notes: BTreeMap<String, u64> = REACHED.iter().map(|mark| ((*mark).to_owned(), 1)).collect();
        assert_eq!(missing(&notes), Vec::<&str>::new());
        notes.remove("switch.Forwarded");
        assert_eq!(missing(&notes), ["switch.Forwarded"]);
    }

    /// A note outside both matches does not compile here; one whose mark is in no list fails.
    #[test]
    fn every_note_has_its_place() {
        let (node, status, seq) = (NodeId(1), Status::Ok, 1);
        use farmem_switch::Note as Switch;
        let all = [
            Switch::Forwarded { node },
            Switch::Continued { node },
            Switch::Indexed { node },
            Switch::Refused(status),
            Switch::Updated { seq },
            Switch::UpdateRefused { seq, status },
            Switch::UpdateRepeated { seq },
            Switch::UpdateChanged { seq },
            Switch::PageRefused(status),
            Switch::PageForwarded { node },
            Switch::Listed,
            Switch::Resized { done: 1, refused: 0 },
            Switch::SoftLoaded,
            Switch::SoftNotTaken,
            Switch::SoftFlipped,
            Switch::SoftShown,
            Switch::SoftCounted,
            Switch::Relayed,
            Switch::Keyed { node, indexed: true },
            Switch::KeyedRefused(farmem_switch::keyed::KeyedRefusal::NoRoot),
        ];
        for note in all {
            let name = match note {
                Switch::Forwarded { .. } => "Forwarded",
                Switch::Continued { .. } => "Continued",
                Switch::Indexed { .. } => "Indexed",
                Switch::RoutedUp { .. } => "RoutedUp",
                Switch::RoutedDown { .. } => "RoutedDown",
                Switch::RoutedOut { .. } => "RoutedOut",
                Switch::BatchSplit { .. } => "BatchSplit",
                Switch::RoutedBack => "RoutedBack",
                Switch::KeyedUp { .. } => "KeyedUp",
                Switch::KeyedDown { .. } => "KeyedDown",
                Switch::KeyedOut { .. } => "KeyedOut",
                Switch::KeyedBack => "KeyedBack",
                Switch::Refused(_) => "Refused",
                Switch::Updated { .. } => "Updated",
                Switch::UpdateRefused { .. } => "UpdateRefused",
                Switch::UpdateRepeated { .. } => "UpdateRepeated",
                Switch::UpdateChanged { .. } => "UpdateChanged",
                Switch::Page(_) => "Page(Stepped(MtoMRecall, Passing))",
                Switch::PageRefused(_) => "PageRefused",
                Switch::PageForwarded { .. } => "PageForwarded",
                Switch::Listed => "Listed",
                Switch::Resized { .. } => "Resized",
                Switch::SoftLoaded => "SoftLoaded",
                Switch::SoftNotTaken => "SoftNotTaken",
                Switch::SoftFlipped => "SoftFlipped",
                Switch::SoftRefused(_) => "SoftRefused",
                Switch::SoftShown => "SoftShown",
                Switch::SoftCounted => "SoftCounted",
                Switch::Relayed => "Relayed",
                Switch::Keyed { .. } => "Keyed",
                Switch::KeyedRefused(_) => "KeyedRefused",
                Switch::Dropped(_) => "Dropped",
            };
            assert!(is_listed(&format!("switch.{name}")), "{name}");
        }
        use farmem_host::Note as Host;
        for note in [Host::NotForUs, Host::LateAnswer, Host::Malformed(WireError::Icrc)] {
            let name = match note {
                Host::Rc(_) => "Rc",
                Host::Malformed(_) => "Malformed",
                Host::NotForUs => "NotForUs",
                Host::Rejected(_) => "Rejected",
                Host::LateAnswer => "LateAnswer",
                Host::WrongAnswer => "WrongAnswer",
                Host::SentCode => "SentCode",
                Host::Continued(_) => "Continued",
                Host::Abandoned => "Abandoned",
                Host::Deferred => "Deferred",
                Host::Followed => "Followed",
                Host::RetriedInPlace => "RetriedInPlace",
                Host::RefusedAgain => "RefusedAgain",
                Host::ReconnectFailed => "ReconnectFailed",
                Host::Batch(_) => "Batch",
            };
            assert!(is_listed(&format!("host.{name}")), "{name}");
        }
        use rc::Note as Rc;
        for note in
            [Rc::DuplicateElsewhere, Rc::TimedOut, Rc::WentBack, Rc::ImpliedNak, Rc::RnrWait, Rc::NakSequence]
        {
            let name = match note {
                Rc::Dropped(_) => "Dropped",
                Rc::TimedOut => "TimedOut",
                Rc::WentBack => "WentBack",
                Rc::ImpliedNak => "ImpliedNak",
                Rc::RnrWait => "RnrWait",
                Rc::Broken(_) => "Broken",
                Rc::NakSequence => "NakSequence",
                Rc::Refused(_) => "Refused",
                Rc::InvalidRequest => "InvalidRequest",
                Rc::DuplicateWrite => "DuplicateWrite",
                Rc::DuplicateRead => "DuplicateRead",
                Rc::DuplicateElsewhere => "DuplicateElsewhere",
                Rc::DuplicateAtomic => "DuplicateAtomic",
                Rc::DuplicateForgotten => "DuplicateForgotten",
                Rc::NotReady => "NotReady",
            };
            assert!(is_listed(&format!("rc.{name}")), "{name}");
        }
    }
}
