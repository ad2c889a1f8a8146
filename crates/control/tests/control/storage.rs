//! A log that cannot be kept, and one that grows: changes are refused and everything else goes on, and the
//! log stays short (PROTOCOL 8.48, 8.49, 8.50).

use crate::rack::disk::Disk;
use crate::rack::{Rack, text};
use farmem_control::api::*;
use farmem_control::{COMPACT_LINES_MIN, COMPACT_RATIO, DropReason, LEASE, Note, STALL_RETRY};
use farmem_machine::{Duration, Port};

const MIB: u64 = 1 << 20;

/// Creates a switch, a node, a host with a lease and a domain with a vma. The log is on a disk.
fn rack_on_disk(seed: u64) -> (Rack, Disk) {
    let mut rack = Rack::new(seed);
    let disk = rack.lend_disk();
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    rack.join_host(1);
    let domain = rack.domain("one");
    rack.allocate(domain, 8192);
    (rack, disk)
}

fn code<C: Call>(rack: &mut Rack, call: C) -> Result<C::Answer, ErrorCode> {
    let ticket = rack.ask(call);
    let answer = rack.wait(ticket).map_err(|error| {
        assert!(!error.message.is_empty() && !error.remedy.is_empty(), "{error:?}");
        error.code
    })?;
    Ok(C::Answer::try_from(answer).ok().expect("the answer to this request"))
}

/// While the disk is full every request that needs a line is refused with `storage`, at once, and the state
/// stays as it is. Requests that need none are answered as usual: reads and renewals, also for longer than a
/// lease. With room again changes are made without a restart (PROTOCOL 8.48).
#[test]
fn a_full_disk_refuses_changes_and_serves_the_rest() {
    let (mut rack, disk) = rack_on_disk(90);
    let vma = rack.vmas()[0].clone();
    let renew = || Renew { host: 1, generation: 1, flushed: 0, qkey: 0 };
    code(&mut rack, renew()).unwrap();
    let rows = rack.control.compact();
    disk.fill(true);
    let changes: [Request; 10] = [
        CreateDomain { name: "two".into() }.into(),
        Allocate { domain: 1, size: 4096, node: None, durable: false }.into(),
        Free { domain: 1, base: vma.base, id: vma.id }.into(),
        JoinHost::new("h2".into(), text(102)).into(),
        JoinNode::new("n2".into(), text(12), MIB).into(),
        JoinSwitch { gid: text(3) }.into(),
        Leave::new(Port::host(1).0).into(),
        OpenSession { host: 1, domain: 1 }.into(),
        ProcessStart { domain: 1, heap: 0 }.into(),
        OpenObject { create: true, ..OpenObject::new(1, 1, "o".into()) }.into(),
    ];
    for change in changes {
        assert_eq!(code(&mut rack, change.clone()), Err(ErrorCode::Storage), "{change:?}");
        assert_eq!(rack.control.compact(), rows, "{change:?}");
        // The next request tries the disk again.
        rack.pass(STALL_RETRY);
        code(&mut rack, renew()).unwrap();
    }
    let tenths = Duration::from_nanos(LEASE.as_nanos() / 10);
    for _ in 0..30 {
        rack.pass(tenths);
        code(&mut rack, Overview {}).unwrap();
        code(&mut rack, Locate { addr: vma.base }).unwrap();
        assert!(code(&mut rack, renew()).unwrap().lease_ms > 0);
    }
    assert!(rack.noted(Note::Listed) > 0, "the directory is listed on");
    assert_eq!(rack.control.compact(), rows, "no host is fenced, and nothing has changed");
    assert_eq!((rack.noted(Note::Stalled), rack.noted(Note::KeepsAgain)), (1, 0));

    disk.fill(false);
    rack.pass(STALL_RETRY);
    rack.domain("two");
    rack.allocate(1, 4096);
    assert_eq!((rack.noted(Note::Stalled), rack.noted(Note::KeepsAgain)), (1, 1));
    rack.check_log();
}

/// The disk is full when a role answers: the answer does not count, the role is asked again and again, and
/// does not become silent by that. The caller is told at once. An allocation is rolled back and a free
/// completed as soon as there is room (PROTOCOL 8.49).
#[test]
fn changes_in_flight_do_not_wait_for_the_disk() {
    let (mut rack, disk) = rack_on_disk(91);
    let before = rack.vmas();
    let allocate = rack.ask(Allocate { domain: 1, size: 4096, node: None, durable: false });
    let free = rack.ask(Free { domain: 1, base: before[0].base, id: before[0].id });
    disk.fill(true);
    let (allocated, freed) = (rack.wait(allocate).unwrap_err(), rack.wait(free).unwrap_err());
    assert_eq!((allocated.code, freed.code), (ErrorCode::Storage, ErrorCode::Storage));
    assert!(allocated.message.ends_with("the change is rolled back"), "{allocated:?}");
    assert!(freed.message.ends_with("if its roles accept it then"), "{freed:?}");
    // A request about the same vma does not wait either.
    let again = Free { domain: 1, base: before[0].base, id: before[0].id };
    assert_eq!(code(&mut rack, again), Err(ErrorCode::Storage));
    rack.pass(Duration::from_secs(60));
    assert!(rack.noted(Note::Dropped(DropReason::NotKept)) > 100, "the node answers each time");
    assert_eq!(rack.noted(Note::Silent(farmem_control::Role::Node(1))), 0);

    disk.fill(false);
    rack.settle();
    assert_eq!(rack.vmas(), []);
    rack.check_log();
    rack.check_tables(Port::node(1));
    rack.check_tables(Port::SWITCH);
}

/// The control plane crashes while its disk is full: it starts from the lines that were kept, serves, and
/// reports the fate of the changes in flight when it can.
#[test]
fn a_restart_on_a_full_disk_serves() {
    let (mut rack, disk) = rack_on_disk(92);
    let before = rack.vmas();
    let allocate = rack.ask(Allocate { domain: 1, size: 4096, node: None, durable: false });
    disk.fill(true);
    rack.restart();
    assert_eq!(rack.wait(allocate).unwrap_err().message, "cut off");
    code(&mut rack, Overview {}).unwrap();
    assert_eq!(code(&mut rack, CreateDomain { name: "two".into() }), Err(ErrorCode::Storage));
    rack.pass(Duration::from_secs(10));
    disk.fill(false);
    rack.settle();
    assert_eq!(rack.vmas(), before, "the allocation is taken back");
    rack.domain("two");
    rack.check_log();
}

/// A new rack on a full disk has no endpoint yet. It gets one, and accepts members, as soon as there is room.
#[test]
fn a_new_rack_waits_for_its_first_line() {
    let mut rack = Rack::new(93);
    let disk = rack.lend_disk();
    disk.fill(true);
    assert_eq!(code(&mut rack, JoinSwitch { gid: text(2) }), Err(ErrorCode::Storage));
    code(&mut rack, Overview {}).unwrap();
    disk.fill(false);
    rack.pass(STALL_RETRY);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    rack.check_log();
}

/// 100,000 allocations, each freed, write some 600,000 lines: the log is rewritten while it grows, is never
/// longer than its bound, and leads to the state of the control plane (PROTOCOL 8.50).
#[test]
fn a_log_that_grows_is_written_anew() {
    const PAIRS: u64 = 100_000;
    let (mut rack, disk) = rack_on_disk(94);
    rack.forgets = true;
    let rows = rack.control.compact().len() as u64;
    for _ in 0..PAIRS {
        let vma = rack.allocate(1, 4096);
        rack.call(Free { domain: 1, base: vma.base, id: vma.id }).unwrap();
    }
    let shortest = rack.control.compact().len() as u64;
    assert_eq!(shortest, rows, "nothing is left of them");
    {
        let content = disk.content();
        assert!(content.taken >= 4 * PAIRS, "{} lines", content.taken);
        // The last event before the rewrite may add a line for each role.
        let most = COMPACT_LINES_MIN.max(COMPACT_RATIO * (shortest + 16)) + 16;
        assert!(content.longest as u64 <= most, "{} lines, at most {most}", content.longest);
        let times = content.taken / COMPACT_LINES_MIN;
        assert!((times - 1..=times + 1).contains(&content.rewritten), "{} of {times}", content.rewritten);
        assert_eq!(rack.noted(Note::Shortened) as u64, content.rewritten);
    }
    rack.check_log();
}

/// A log that cannot be rewritten for lack of room stays as it was, and is rewritten later.
#[test]
fn a_log_that_cannot_be_written_anew_stays() {
    let (mut rack, disk) = rack_on_disk(95);
    let mut name = 0;
    let mut churn = |rack: &mut Rack, lines: u64| {
        for _ in 0..lines {
            name += 1;
            let object = OpenObject { create: true, ..OpenObject::new(1, 1, format!("o{}", name % 3)) };
            let object = rack.call(object).unwrap().object;
            rack.call(DropObject { host: 1, object }).unwrap();
        }
    };
    disk.content().no_rewrites = true;
    churn(&mut rack, COMPACT_LINES_MIN);
    assert_eq!(disk.content().rewritten, 0);
    assert!(disk.content().lines.len() as u64 >= 2 * COMPACT_LINES_MIN);
    rack.check_log();
    disk.content().no_rewrites = false;
    churn(&mut rack, COMPACT_LINES_MIN);
    assert!(disk.content().rewritten >= 1);
    assert!((disk.content().lines.len() as u64) < 2 * COMPACT_LINES_MIN);
    rack.check_log();
}
