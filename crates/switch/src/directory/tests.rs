use super::*;
use alloc::vec::Vec;
use farmem_wire::message::{
    Access, Done, FetchId, Get, Grant, HostSet, PAGE_SHIFT, Page, Read, Recall, RecallAck, Refusal, Region,
    Seq,
};
use farmem_wire::{HostId, Status, VirtAddr};

const A: HostId = HostId(1);
const B: HostId = HostId(2);
const C: HostId = HostId(3);
const ID: FetchId = FetchId(7);

fn page(number: u64) -> Page {
    Page::of(VirtAddr(number << PAGE_SHIFT))
}

fn region() -> Region {
    Region::around(page(8), 2)
}

fn get(host: HostId, access: Access) -> Event {
    Event::Get(host, Get { page: page(9), access, id: ID })
}

fn ack(host: HostId, seq: u64) -> Event {
    Event::Ack(host, RecallAck { region: region(), seq: Seq(seq), false_invalidations: 2 })
}

fn done(host: HostId, seq: u64) -> Event {
    Event::Done(host, Done { page: page(9), seq: Seq(seq) })
}

/// Returns an entry after these events.
fn after(events: &[Event]) -> Entry {
    let mut entry = Entry::new(Seq(0));
    for &event in events {
        let outcome = entry.step(region(), event, &mut Vec::new());
        assert!(matches!(outcome, Outcome::Stepped(..)), "{event:?} is {outcome:?}");
    }
    entry
}

fn shared() -> Entry {
    after(&[get(A, Access::Shared), get(B, Access::Shared)])
}

fn owned_by_a() -> Entry {
    after(&[get(A, Access::Modified), done(A, 1)])
}

/// Returns the actions of one event.
fn sent(entry: &mut Entry, event: Event) -> Vec<Action> {
    let mut out = Vec::new();
    let _ = entry.step(region(), event, &mut out);
    assert!(out.len() <= ACTIONS_MAX, "{out:?}");
    out
}

fn read(host: HostId, access: Access, seq: u64, [clean, granted, done_due]: [bool; 3]) -> Action {
    let (page, seq) = (page(9), Seq(seq));
    Action::Read(Read { page, access, host, id: ID, seq, clean, behind: false, granted, done_due })
}

/// Returns the read with its `behind` flag set.
fn behind(read: Action) -> Action {
    let Action::Read(read) = read else { panic!("{read:?}") };
    Action::Read(Read { behind: true, ..read })
}

/// Returns A's passing write-back of this page, with its acknowledgement.
fn passing(number: u64, seq: u64) -> Event {
    let Event::Ack(host, ack) = ack(A, seq) else { unreachable!() };
    Event::Passing(host, page(number), ack)
}

fn recall(to: HostSet, seq: u64, keep: bool) -> Action {
    Action::Recall(to, Recall { region: region(), seq: Seq(seq), keep, wanted: Some(1) })
}

/// I to S, S to S: no number grows, and no request waits (MIND 7.2: one round trip).
#[test]
fn readers_do_not_wait_for_each_other() {
    let mut entry = Entry::new(Seq(4));
    for host in [A, B] {
        assert_eq!(
            sent(&mut entry, get(host, Access::Shared)),
            [read(host, Access::Shared, 4, [true, true, false])]
        );
    }
    assert_eq!((entry.phase(), entry.set().len()), (Phase::Shared, 2));
}

/// S to M: the page is sent while the sharers give up; a grant follows (MIND 7.2: one round trip).
#[test]
fn a_writer_waits_for_every_sharer() {
    let mut entry = shared();
    let sharers = HostSet::only(A).with(B);
    assert_eq!(
        sent(&mut entry, get(C, Access::Modified)),
        [recall(sharers, 1, false), read(C, Access::Modified, 1, [true, false, true])]
    );
    assert_eq!(sent(&mut entry, ack(A, 1)), []);
    assert_eq!(sent(&mut entry, ack(A, 1)), [], "once is enough");
    assert_eq!(entry.phase(), Phase::Upgrading);
    assert_eq!(sent(&mut entry, ack(B, 1)), [Action::Grant(C, Grant { page: page(9), id: ID, seq: Seq(1) })]);
    assert_eq!(sent(&mut entry, done(B, 1)), [], "another transaction's");
    assert_eq!(entry.phase(), Phase::AwaitDone);
    assert_eq!(sent(&mut entry, done(C, 1)), []);
    assert_eq!((entry.phase(), entry.owner()), (Phase::Modified, Some(C)));
    assert_eq!(entry.take_false_invalidations(), 4, "two of each sharer");
}

/// M to S, M to M: the owner first (MIND 7.2: two round trips). This includes a write-back without an
/// acknowledgement.
#[test]
fn an_owner_gives_back_before_the_next_is_served() {
    let mut entry = owned_by_a();
    assert_eq!(sent(&mut entry, get(B, Access::Shared)), [recall(HostSet::only(A), 2, true)]);
    assert_eq!(sent(&mut entry, ack(A, 2)), [read(B, Access::Shared, 2, [true, true, false])]);
    assert_eq!((entry.phase(), entry.set()), (Phase::Shared, HostSet::only(A).with(B)));

    let mut entry = owned_by_a();
    assert_eq!(sent(&mut entry, get(B, Access::Modified)), [recall(HostSet::only(A), 2, false)]);
    assert_eq!(sent(&mut entry, ack(A, 2)), [read(B, Access::Modified, 2, [true, true, true])]);
    assert_eq!((entry.phase(), entry.owner()), (Phase::AwaitDone, Some(B)));
}

/// If the write-back is of the requested page and acknowledges, the read follows it to the node; the
/// acknowledgement ends the transaction.
#[test]
fn a_read_follows_the_write_back_that_goes_by() {
    let mut entry = owned_by_a();
    sent(&mut entry, get(B, Access::Shared));
    assert_eq!(sent(&mut entry, passing(10, 2)), [], "of another page");
    assert_eq!(sent(&mut entry, passing(9, 1)), [], "of an earlier recall");
    let shares = read(B, Access::Shared, 2, [true, true, false]);
    assert_eq!(sent(&mut entry, passing(9, 2)), [behind(shares)]);
    assert_eq!(sent(&mut entry, passing(9, 2)), [], "once");
    assert_eq!((entry.phase(), entry.owner()), (Phase::MtoSData, Some(A)), "the node may not have it yet");
    assert_eq!(
        sent(&mut entry, get(B, Access::Shared)),
        [recall(HostSet::only(A), 2, true), behind(shares)],
        "either may be lost"
    );
    assert_eq!(sent(&mut entry, ack(A, 2)), []);
    assert_eq!((entry.phase(), entry.set()), (Phase::Shared, HostSet::only(A).with(B)));
    assert_eq!(entry.take_false_invalidations(), 2, "counted once");

    let takes = read(B, Access::Modified, 2, [true, true, true]);
    let mut entry = owned_by_a();
    sent(&mut entry, get(B, Access::Modified));
    assert_eq!(sent(&mut entry, passing(9, 2)), [behind(takes)]);
    let mut settles = entry;
    assert_eq!(sent(&mut settles, ack(A, 2)), []);
    assert_eq!((settles.phase(), settles.owner()), (Phase::AwaitDone, Some(B)));
    assert_eq!(sent(&mut settles, done(B, 2)), []);
    // Or the requester is faster than the acknowledgement, which is then late.
    assert_eq!(sent(&mut entry, done(B, 2)), []);
    assert_eq!((entry.phase(), entry.owner()), (Phase::Modified, Some(B)));
    assert_eq!(sent(&mut entry, ack(A, 2)), []);
    assert_eq!((entry.phase(), entry.owner()), (Phase::Modified, Some(B)));
}

/// The owner's own requests block no other host, and promise nothing about later write-backs (PROTOCOL
/// 12.12).
#[test]
fn an_owner_fetches_on() {
    let mut entry = owned_by_a();
    assert_eq!(sent(&mut entry, get(A, Access::Shared)), [read(A, Access::Shared, 1, [false, true, false])]);
    assert_eq!(
        sent(&mut entry, get(A, Access::Modified)),
        [read(A, Access::Modified, 2, [false, true, false])]
    );
    assert_eq!(entry.phase(), Phase::Modified);
}

/// A request for a busy region retransmits what may be lost, and is answered with Busy (PROTOCOL 12.15).
#[test]
fn a_poke_sends_again_what_may_be_lost() {
    let busy = |host| Action::Busy(host, Refusal { page: page(9), id: FetchId(8), status: Status::Busy });
    let other = Event::Get(B, Get { page: page(9), access: Access::Shared, id: FetchId(8) });
    let mut entry = shared();
    let _ = sent(&mut entry, get(C, Access::Modified));
    let _ = sent(&mut entry, ack(A, 1));
    let missing = recall(HostSet::only(B), 1, false);
    assert_eq!(sent(&mut entry, other), [missing, busy(B)]);
    assert_eq!(
        sent(&mut entry, get(C, Access::Modified)),
        [missing, read(C, Access::Modified, 1, [true, false, true])]
    );
    let _ = sent(&mut entry, ack(B, 1));
    let grant = Action::Grant(C, Grant { page: page(9), id: ID, seq: Seq(1) });
    assert_eq!(sent(&mut entry, other), [grant, busy(B)], "the grant's answer is a done");
    assert_eq!(
        sent(&mut entry, get(C, Access::Modified)),
        [read(C, Access::Modified, 1, [true, true, true])]
    );
}

/// A reset interrupts everything, and ends only under its own number.
#[test]
fn a_reset_takes_everything_back() {
    let live = HostSet::only(A).with(B);
    for mut entry in [Entry::new(Seq(0)), shared(), owned_by_a()] {
        let seq = entry.seq().0 + 1;
        let all = Recall { region: region(), seq: Seq(seq), keep: false, wanted: None };
        assert_eq!(sent(&mut entry, Event::Reset(live)), [Action::Recall(live, all)]);
        assert_eq!(sent(&mut entry, ack(A, seq)), []);
        assert_eq!(sent(&mut entry, Event::Repeat), [Action::Recall(HostSet::only(B), all)]);
        assert_eq!(sent(&mut entry, Event::Swept(Seq(seq))), [], "not yet");
        assert_eq!(sent(&mut entry, Event::Fence(B, HostSet::only(A))), [Action::Report(region(), Seq(seq))]);
        assert_eq!(sent(&mut entry, Event::Swept(Seq(seq - 1))), [], "an earlier sweep");
        let _ = entry.step(region(), Event::Swept(Seq(seq)), &mut Vec::new());
        let _ = entry.take_false_invalidations();
        assert_eq!(entry, Entry::new(Seq(seq)));
    }
    let mut entry = Entry::new(Seq(0));
    assert_eq!(
        sent(&mut entry, Event::Reset(HostSet::EMPTY)),
        [Action::Report(region(), Seq(1))],
        "no host to ask"
    );
}

/// A fenced host: regions that depend on it are reset, in others it is only removed (PROTOCOL 12.35).
#[test]
fn a_fenced_host_is_forgotten_or_reset() {
    let live = HostSet::only(B);
    let mut entry = shared();
    assert_eq!(entry.step(region(), Event::Fence(A, live), &mut Vec::new()), Outcome::Forgotten);
    assert_eq!((entry.phase(), entry.set()), (Phase::Shared, live));
    assert_eq!(entry.step(region(), Event::Fence(A, live), &mut Vec::new()), Outcome::Stale);
    let mut entry = owned_by_a();
    let _ = entry.step(region(), Event::Fence(A, live), &mut Vec::new());
    assert_eq!((entry.phase(), entry.set()), (Phase::Resetting, live));
}

/// A host whose number is too large changes nothing and breaks nothing.
#[test]
fn a_host_with_a_large_number_is_stale() {
    let mut entry = shared();
    for host in [256, u16::MAX].map(HostId) {
        let events =
            [get(host, Access::Modified), ack(host, 0), done(host, 0), Event::Fence(host, HostSet::EMPTY)];
        for event in events {
            assert_eq!(entry.step(region(), event, &mut Vec::new()), Outcome::Stale);
        }
    }
    assert_eq!(entry, shared());
}

/// The table as data has the rows of the table as text, and each phase can be left.
#[test]
fn the_table_is_whole() {
    for phase in Phase::ALL {
        for trigger in Trigger::ALL {
            assert_eq!(table::TABLE[phase as usize][trigger as usize], table::row(phase, trigger));
        }
        let leaves = |trigger: &Trigger| table::row(phase, *trigger).is_some_and(|row| row.next != phase);
        assert!(Trigger::ALL.iter().any(leaves), "{phase:?} has an end");
        assert_eq!(table::row(phase, Trigger::Reset).map(|row| row.next), Some(Phase::Resetting));
    }
}

#[test]
fn only_idle_entries_are_split_and_merged() {
    let (none, both, mine) = (Entry::new(Seq(9)), shared(), owned_by_a());
    assert_eq!(mine.split(), Some([mine, mine]));
    let mut busy = mine;
    let _ = sent(&mut busy, get(B, Access::Shared));
    assert_eq!((busy.split(), busy.merge(&none)), (None, None));
    let merged = mine.merge(&none).unwrap();
    assert_eq!((merged.phase(), merged.owner(), merged.seq()), (Phase::Modified, Some(A), Seq(9)));
    assert_eq!(merged, none.merge(&mine).unwrap());
    assert_eq!(both.merge(&mine), None, "B still reads");
    let only_a = after(&[get(A, Access::Shared)]);
    assert_eq!(only_a.merge(&mine).map(|entry| entry.phase()), Some(Phase::Modified));
    assert_eq!(only_a.merge(&both).map(|entry| entry.set().len()), Some(2));
}

/// Slots: a full table refuses, an overlapping region is refused, and a new region begins after all earlier
/// numbers.
#[test]
fn slots_are_few_and_are_used_again() {
    let mut slots = Slots::new(2, Seq(3));
    slots.add(region()).unwrap();
    for order in 0..=3 {
        assert_eq!(slots.add(Region::around(page(10), order)).err(), Some(SlotError::Overlaps));
    }
    let [low, high] = slots.split(region()).unwrap();
    assert_eq!(slots.split(low), Err(SlotError::Full));
    assert_eq!(slots.add(Region::around(page(64), 0)).err(), Some(SlotError::Full));
    let (found, entry) = slots.lookup(page(9)).unwrap();
    assert_eq!(found, low);
    let event = Event::Get(A, Get { page: page(9), access: Access::Modified, id: ID });
    let _ = entry.step(low, event, &mut Vec::new());
    assert_eq!(slots.merge(region()), Err(SlotError::NotNow));
    assert_eq!(slots.remove(low), Err(SlotError::NotNow));
    slots.remove(high).unwrap();
    assert_eq!(slots.remove(high), Err(SlotError::Unknown));
    assert!(slots.lookup(page(10)).is_none());
    let (_, entry) = slots.lookup(page(9)).unwrap();
    let _ = entry.step(low, Event::Reset(HostSet::EMPTY), &mut Vec::new());
    let _ = entry.step(low, Event::Swept(Seq(5)), &mut Vec::new());
    slots.remove(low).unwrap();
    assert_eq!(slots.add(region()).unwrap().seq(), Seq(5));
    assert_eq!((slots.used(), slots.budget()), (1, 2));
    slots.assert_invariants();
}
