//! A host's statements in `renew`, true or not, and the counts of ended leases (PROTOCOL 12.35, 12.36, 12.48,
//! 12.50).

use super::{Rack, pair};
use farmem_control::api::{ErrorCode, GIVEN_UP, LeaseInfo, Renew};
use farmem_sim::RoleId;
use farmem_wire::message::{PAGE_LEN, Seq};

fn renew(rack: &mut Rack, host: u16, flushed: u64) -> Result<LeaseInfo, ErrorCode> {
    let qkey = rack.qkey(host);
    renew_with(rack, host, flushed, qkey)
}

fn renew_with(rack: &mut Rack, host: u16, flushed: u64, qkey: u32) -> Result<LeaseInfo, ErrorCode> {
    let generation = rack.generation(host);
    rack.call(Renew { host, generation, flushed, qkey }).map_err(|error| error.code)
}

/// A caller with the rack's token claims that a host has given everything up for good, or has obeyed its
/// order, while the host has the only copy of a counter. If the claim counted, other hosts would continue
/// from the old value, and no page would be reported lost.
#[test]
fn only_the_host_itself_says_what_it_has_flushed() {
    let (mut rack, a, b, base) = pair(33);
    assert!(rack.store(b, base, 1));
    assert!(rack.store(a, base, 5127));
    rack.start_switch();
    rack.pass(400, &[b]);
    let order = Seq::of_epoch(2).0;
    for flushed in [GIVEN_UP, order] {
        for qkey in [0, rack.qkey(b), !rack.qkey(a)] {
            assert_eq!(renew_with(&mut rack, a, flushed, qkey), Err(ErrorCode::BadRequest), "{flushed:#x}");
        }
    }
    rack.pass(400, &[b]);
    assert!(!rack.directory().open, "host {a} has not flushed");
    rack.pass(400, &[a, b]);
    rack.pass(1, &[]);
    assert_eq!(rack.load(b, base), Some(5127), "the counter goes on from where it was");
}

/// A caller claims, before a switch restarts, that a host has obeyed an order which was never given. If the
/// claim counted for the next switch's order, the directory would open while the host still has the only copy
/// of a counter. Others would continue from the old value, and the host's later write-back would be dropped.
#[test]
fn an_order_that_was_never_given_counts_as_not_obeyed() {
    for number in [1, Seq::of_epoch(2).0, Seq::of_epoch(3).0, GIVEN_UP - 1] {
        let (mut rack, a, b, base) = pair(31);
        assert!(rack.store(b, base, 1));
        assert!(rack.store(a, base, 5127));
        assert_eq!(renew(&mut rack, a, number), Err(ErrorCode::BadRequest), "order {number}");
        rack.start_switch();
        rack.pass(400, &[b]);
        assert!(!rack.directory().open, "host {a} has not flushed");
        rack.pass(400, &[a, b]);
        rack.pass(1, &[]);
        assert_eq!(rack.load(b, base), Some(5127), "the counter goes on from where it was");
    }
}

/// The number of a switch's order can be guessed. Until the order was given to the host it counts as not
/// obeyed; that very answer gives it.
#[test]
fn an_order_that_was_guessed_counts_when_it_was_given() {
    let (mut rack, a, b, base) = pair(32);
    assert!(rack.store(b, base, 1));
    assert!(rack.store(a, base, 5127));
    rack.start_switch();
    let order = Seq::of_epoch(2).0;
    rack.pass(400, &[b]);
    let answer = renew(&mut rack, a, order).expect("a lease");
    assert_eq!(answer.flush, order);
    rack.pass(200, &[b]);
    assert!(!rack.directory().open, "host {a} was given the order after it said that");
    rack.pass(400, &[a, b]);
    rack.pass(1, &[]);
    assert!(rack.directory().open);
    assert_eq!(rack.load(b, base), Some(5127));
}

/// A restarted control plane does not know which orders it had given: it gives them again, and no host is
/// refused for having obeyed before.
#[test]
fn an_order_from_before_a_restart_is_given_again() {
    let (mut rack, a, b, base) = pair(33);
    assert!(rack.store(a, base, 7));
    rack.start_switch();
    rack.pass(400, &[a]);
    rack.restart_control();
    rack.pass(800, &[a, b]);
    rack.pass(1, &[]);
    assert!(rack.directory().open);
    assert_eq!(rack.load(b, base), Some(7));
}

/// A host claims that it gave everything up, and continues to use pages. Its lease ends at once, and the
/// switch ignores it. It gets no other lease in this incarnation, with which it would use pages that others
/// have by then.
#[test]
fn a_host_that_gave_up_and_goes_on_hurts_nobody() {
    let (mut rack, a, b, base) = pair(34);
    assert!(rack.store(a, base, 7));
    assert_eq!(rack.load(a, base + PAGE_LEN as u64), Some(0));
    assert_eq!(renew(&mut rack, a, GIVEN_UP), Ok(LeaseInfo { lease_ms: 0, flush: 0 }));
    assert_eq!(renew(&mut rack, a, 0), Err(ErrorCode::Conflict), "while it is being fenced");
    rack.pass(400, &[b]);
    assert_eq!(renew(&mut rack, a, 0), Err(ErrorCode::Conflict), "and when nothing of it is left");
    rack.restart_control();
    assert_eq!(renew(&mut rack, a, 0), Err(ErrorCode::Conflict), "and by a control plane that started again");
    assert_eq!(renew(&mut rack, a, GIVEN_UP), Ok(LeaseInfo { lease_ms: 0, flush: 0 }), "said twice");
    // The switch ignores its requests and write-backs.
    rack.fault(a, base + 2 * PAGE_LEN as u64, farmem_wire::message::Access::Modified);
    assert!(rack.store(b, base, 8));
    assert!(rack.store(b, base + PAGE_LEN as u64, 9));
    rack.pass(400, &[b]);
    assert_eq!(rack.may(a, base + 2 * PAGE_LEN as u64), None);
    assert_eq!((rack.load(b, base), rack.load(b, base + PAGE_LEN as u64)), (Some(8), Some(9)));
    rack.stop(a);
    let again = rack.join_host(1);
    assert!(rack.renew(again), "its next life is another matter");
}

/// Lapsed and given-up leases are counted separately; fences count both.
#[test]
fn lapses_and_leaves_are_counted_apart() {
    let (mut rack, a, b, base) = pair(35);
    let c = rack.start_host(3);
    assert!(rack.store(a, base, 7));
    assert!(renew(&mut rack, c, GIVEN_UP).is_ok());
    rack.pass(400, &[a, b]);
    let info = rack.directory();
    assert_eq!((info.fences, info.lapses, info.leaves, info.lost_pages), (1, 0, 1, 0));
    rack.cut_off(RoleId::Host(a));
    rack.pass(4_000, &[b]);
    let info = rack.directory();
    assert_eq!((info.fences, info.lapses, info.leaves, info.lost_pages), (2, 1, 1, 1));
}
