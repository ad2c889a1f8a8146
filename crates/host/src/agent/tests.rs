use super::*;
use farmem_wire::VirtAddr;
use farmem_wire::message::{PAGE_SHIFT, Region};
use std::vec;

fn page(number: u64) -> Page {
    Page::of(VirtAddr(number << PAGE_SHIFT))
}

fn region() -> Region {
    Region::around(page(8), 2)
}

fn agent() -> Agent {
    Agent::new(Bounds { pages: 4, requests: 3, evictions: 2, pending_acks: 1 }, FetchId(1))
}

/// Runs one event and returns its outcome and actions.
fn step(agent: &mut Agent, event: Event) -> (Outcome, Vec<Action>) {
    let mut out = Vec::new();
    let outcome = agent.step(event, &mut out);
    agent.assert_invariants();
    (outcome, out)
}

fn get(at: Page, access: Access, id: u64) -> Action {
    Action::Get(Get { page: at, access, id: FetchId(id) })
}

fn data(at: Page, access: Access, id: u64, seq: u64, [granted, done_due]: [bool; 2]) -> Data {
    let part = Part::WHOLE;
    Data { page: at, access, id: FetchId(id), seq: Seq(seq), granted, done_due, lost: false, part }
}

fn recall(seq: u64, keep: bool) -> Event {
    Event::Recall(Recall { region: region(), seq: Seq(seq), keep, wanted: Some(0) })
}

fn ack(seq: u64, false_invalidations: u16) -> RecallAck {
    RecallAck { region: region(), seq: Seq(seq), false_invalidations }
}

fn write_back(at: Page, grant: u64, ack: Option<RecallAck>) -> Action {
    Action::WriteBack(WriteBack { page: at, grant: Seq(grant), ack })
}

fn written(at: Page, grant: u64, ack: Option<RecallAck>) -> Event {
    Event::WriteBackAck(WriteBackAck { page: at, grant: Seq(grant), ack })
}

/// An agent that caches these pages, each under its number.
fn having(pages: &[(u64, Access, u64)]) -> Agent {
    let mut agent = agent();
    for (&(number, access, seq), id) in pages.iter().zip(1..) {
        let (outcome, actions) = step(&mut agent, Event::Fault(page(number), access));
        assert_eq!((outcome, actions), (Outcome::Done, vec![get(page(number), access, id)]));
        let (_, actions) = step(&mut agent, Event::Data(data(page(number), access, id, seq, [true, false])));
        assert_eq!(actions, [Action::Keep(page(number), Part::WHOLE), Action::Install(page(number), access)]);
    }
    agent
}

use Access::{Modified, Shared};

/// A fault sends one request. A second thread waits with the first; a thread whose access is already granted
/// is woken.
#[test]
fn a_fault_asks_once() {
    let mut agent = agent();
    assert_eq!(step(&mut agent, Event::Fault(page(8), Shared)).1, [get(page(8), Shared, 1)]);
    assert_eq!(step(&mut agent, Event::Fault(page(8), Shared)), (Outcome::Present, vec![]));
    assert_eq!(step(&mut agent, Event::Retry(page(8))).1, [get(page(8), Shared, 1)], "the same id again");
    let mut agent = having(&[(8, Modified, 1)]);
    assert_eq!(
        step(&mut agent, Event::Fault(page(8), Shared)),
        (Outcome::Present, vec![Action::Wake(page(8))])
    );
    assert_eq!(step(&mut agent, Event::Retry(page(8))), (Outcome::Stale, vec![]));
}

/// Shared to Modified: bytes and grant arrive in any order, and count only together, under one number.
#[test]
fn data_waits_for_its_grant() {
    let grant = |seq| Event::Grant(Grant { page: page(8), id: FetchId(2), seq: Seq(seq) });
    let bytes = |seq| Event::Data(data(page(8), Modified, 2, seq, [false, true]));
    let done = |seq| Action::Done(Done { page: page(8), seq: Seq(seq) });
    for order in [[bytes(4), grant(4)], [grant(4), bytes(4)]] {
        let mut agent = having(&[(8, Shared, 3)]);
        let _ = step(&mut agent, Event::Fault(page(8), Modified));
        assert_eq!(step(&mut agent, grant(3)).0, Outcome::Done, "an earlier one");
        let mut actions = step(&mut agent, order[0]).1;
        assert_eq!(agent.access(page(8)), Some(Shared));
        actions.extend(step(&mut agent, order[1]).1);
        assert_eq!(
            actions,
            [Action::Keep(page(8), Part::WHOLE), Action::Install(page(8), Modified), done(4)]
        );
        assert_eq!(step(&mut agent, grant(4)), (Outcome::Stale, vec![done(4)]), "the done was lost");
        assert_eq!(step(&mut agent, bytes(4)), (Outcome::Stale, vec![]), "no done for what is not granted");
    }
}

/// Parts of one number make a page. Parts of a newer number start over; parts of an older one are dropped.
#[test]
fn parts_of_one_number_make_a_page() {
    let part = |index, count, seq| {
        Event::Data(Data { part: Part { index, count }, ..data(page(8), Shared, 1, seq, [true, false]) })
    };
    let mut agent = agent();
    let _ = step(&mut agent, Event::Fault(page(8), Shared));
    for (event, outcome) in [
        (part(0, 4, 5), Outcome::Done),
        (part(1, 4, 5), Outcome::Done),
        (part(2, 4, 6), Outcome::Done),
        (part(3, 4, 5), Outcome::Stale),
        (part(4, 4, 6), Outcome::Stale),
        (part(0, 17, 6), Outcome::Stale),
        (part(0, 4, 6), Outcome::Done),
        (part(0, 4, 6), Outcome::Done),
        (part(3, 4, 6), Outcome::Done),
    ] {
        assert_eq!(step(&mut agent, event).0, outcome, "{event:?}");
        assert_eq!(agent.access(page(8)), None);
    }
    let last = Action::Keep(page(8), Part { index: 1, count: 4 });
    assert_eq!(step(&mut agent, part(1, 4, 6)).1, [last, Action::Install(page(8), Shared)]);
}

/// Messages sent before a recall are void (C1 of the protocol's counterexamples, see the scripts).
#[test]
fn a_recall_voids_what_is_on_its_way() {
    let mut agent = agent();
    let _ = step(&mut agent, Event::Fault(page(8), Shared));
    assert_eq!(step(&mut agent, recall(4, false)).1, [Action::RecallAck(ack(4, 0))]);
    let old = data(page(8), Shared, 1, 3, [true, false]);
    assert_eq!(step(&mut agent, Event::Data(old)), (Outcome::Void, vec![]));
    let new = Data { seq: Seq(4), ..old };
    assert_eq!(step(&mut agent, Event::Data(new)).0, Outcome::Done);
    assert_eq!(agent.access(page(8)), Some(Shared));
}

/// One page written: the page is unmapped before its bytes are sent, and the node acknowledges for the host.
#[test]
fn the_last_write_back_carries_the_acknowledgement() {
    let mut agent = having(&[(8, Modified, 3), (9, Shared, 3), (12, Modified, 3)]);
    let carried = Some(ack(4, 1));
    assert_eq!(
        step(&mut agent, recall(4, false)).1,
        [
            Action::WriteProtect(page(8)),
            Action::Unmap(page(8)),
            Action::Discard(page(9)),
            write_back(page(8), 3, carried)
        ]
    );
    assert_eq!(agent.access(page(12)), Some(Modified), "another region");
    assert_eq!(step(&mut agent, Event::RetryWriteBack(page(8))).1, [write_back(page(8), 3, carried)]);
    assert_eq!(step(&mut agent, written(page(8), 2, None)).0, Outcome::Stale, "an earlier write-back");
    assert_eq!(
        step(&mut agent, written(page(8), 3, carried)).1,
        [Action::Release(page(8))],
        "the node said it"
    );
    assert_eq!(agent.pending_acks(), []);
    assert_eq!(
        step(&mut agent, recall(4, false)).1,
        [Action::RecallAck(ack(4, 0))],
        "again, for it may be lost"
    );
}

/// Several pages written: the acknowledgement waits for the last write-back, and a later recall replaces the
/// earlier one.
#[test]
fn an_acknowledgement_waits_for_all_write_backs() {
    let mut agent = having(&[(8, Modified, 3), (9, Modified, 3)]);
    assert_eq!(
        step(&mut agent, recall(4, true)).1,
        [
            Action::WriteProtect(page(8)),
            Action::WriteProtect(page(9)),
            write_back(page(8), 3, None),
            write_back(page(9), 3, None)
        ]
    );
    assert_eq!((agent.access(page(8)), agent.access(page(9))), (Some(Shared), Some(Shared)));
    let actions = step(&mut agent, recall(5, false)).1;
    assert_eq!(
        actions,
        [Action::Unmap(page(8)), Action::Unmap(page(9))],
        "their bytes are still on their way"
    );
    assert_eq!(step(&mut agent, written(page(9), 3, None)).1, [Action::Release(page(9))]);
    assert_eq!(
        step(&mut agent, written(page(8), 3, None)).1,
        [Action::Release(page(8)), Action::RecallAck(ack(5, 2))]
    );
    assert_eq!(agent.frames(), 0);
}

/// A late recall does not touch pages that were handed out after it (C7).
#[test]
fn a_late_recall_touches_nothing() {
    let mut agent = having(&[(8, Modified, 5)]);
    assert_eq!(step(&mut agent, recall(4, false)).1, [Action::RecallAck(ack(4, 0))]);
    assert_eq!(agent.access(page(8)), Some(Modified));
}

/// The host does not request a page whose write-back is in flight (C6).
#[test]
fn a_fault_waits_for_the_write_back() {
    let mut agent = having(&[(8, Modified, 3)]);
    assert_eq!(
        step(&mut agent, Event::Evict(page(8))).1,
        [Action::WriteProtect(page(8)), Action::Unmap(page(8)), write_back(page(8), 3, None)]
    );
    assert_eq!(step(&mut agent, Event::Fault(page(8), Shared)), (Outcome::Waits, vec![]));
    assert_eq!(step(&mut agent, Event::Fault(page(8), Modified)), (Outcome::Waits, vec![]));
    assert_eq!(
        step(&mut agent, written(page(8), 3, None)).1,
        [Action::Release(page(8)), get(page(8), Modified, 2)]
    );
}

/// Limits: no fault beyond the frames or the requests, no eviction beyond its limit, no recall that cannot be
/// recorded.
#[test]
fn bounds_hold() {
    let mut agent = having(&[(8, Modified, 1), (9, Modified, 1), (10, Modified, 1), (12, Modified, 1)]);
    assert_eq!(step(&mut agent, Event::Fault(page(20), Shared)), (Outcome::Full, vec![]));
    assert_eq!(step(&mut agent, recall(2, true)).0, Outcome::Done);
    let other = Recall { region: Region::around(page(12), 0), seq: Seq(2), keep: true, wanted: None };
    assert_eq!(step(&mut agent, Event::Recall(other)), (Outcome::Full, vec![]), "as if it were lost");
    assert_eq!(agent.access(page(12)), Some(Modified));
    assert_eq!(step(&mut agent, Event::Evict(page(12))).0, Outcome::Full);
    assert_eq!(step(&mut agent, Event::Evict(page(8))).1, [Action::Unmap(page(8))], "written back already");
    assert_eq!(step(&mut agent, Event::Fault(page(9), Modified)).0, Outcome::Waits);
    assert_eq!(agent.frames(), 4);
}

/// Bytes that died with their host end in an error, never in old bytes. A permanent refusal ends the request
/// too.
#[test]
fn what_is_lost_or_refused_ends_the_request() {
    let mut agent = agent();
    let _ = step(&mut agent, Event::Fault(page(8), Modified));
    let lost = Data { lost: true, ..data(page(8), Modified, 1, 3, [true, true]) };
    let done = Action::Done(Done { page: page(8), seq: Seq(3) });
    assert_eq!(step(&mut agent, Event::Data(lost)).1, [Action::Poison(page(8)), done]);
    assert_eq!((agent.frames(), agent.access(page(8))), (0, None));
    let _ = step(&mut agent, Event::Fault(page(8), Modified));
    let refusal = |status| Event::Refusal(Refusal { page: page(8), id: FetchId(2), status });
    assert_eq!(step(&mut agent, refusal(Status::Busy)), (Outcome::Busy, vec![]));
    let denied = Status::NoPermission;
    assert_eq!(step(&mut agent, refusal(denied)), (Outcome::Done, vec![Action::Refuse(page(8))]));
    assert_eq!(step(&mut agent, refusal(denied)).0, Outcome::Stale);
    assert_eq!(agent.frames(), 0);
}

/// A page that stays Shared is reported clean after its write-back. If an upgrade finds the page lost or
/// refused, the page is taken from the program first.
#[test]
fn what_is_known_of_a_page_that_stays_is_said() {
    let mut agent = having(&[(8, Modified, 3)]);
    let carried = Some(ack(4, 0));
    assert_eq!(
        step(&mut agent, recall(4, true)).1,
        [Action::WriteProtect(page(8)), write_back(page(8), 3, carried)]
    );
    assert_eq!(step(&mut agent, written(page(8), 3, carried)).1, [Action::Clean(page(8))]);
    assert_eq!((agent.access(page(8)), agent.frames()), (Some(Shared), 1));
    let _ = step(&mut agent, Event::Fault(page(8), Modified));
    let lost = Data { lost: true, ..data(page(8), Modified, 2, 5, [true, false]) };
    let taken = [Action::Discard(page(8)), Action::Poison(page(8))];
    assert_eq!(step(&mut agent, Event::Data(lost)).1, taken);
    let mut agent = having(&[(8, Shared, 3)]);
    let _ = step(&mut agent, Event::Fault(page(8), Modified));
    let refusal = Refusal { page: page(8), id: FetchId(2), status: Status::NoPermission };
    let taken = [Action::Discard(page(8)), Action::Refuse(page(8))];
    assert_eq!(step(&mut agent, Event::Refusal(refusal)).1, taken);
    assert_eq!(agent.frames(), 0);
}

/// Ids are never reused: when all ids are used up, the host must rejoin.
#[test]
fn ids_end() {
    let mut agent = Agent::new(Bounds::default(), FetchId(FetchId::first(1).0 - 1));
    assert_eq!(step(&mut agent, Event::Fault(page(8), Shared)).0, Outcome::Done);
    assert_eq!(step(&mut agent, Event::Fault(page(9), Shared)), (Outcome::IdsUsedUp, vec![]));
}
