//! Whole racks whose hosts cache pages, through ends of leases, resets of regions and restarts of roles, with
//! the real control plane (PROTOCOL 12.32 to 12.36).

mod leases;
mod rack;

use farmem_control::api::*;
use farmem_host::caching::{CacheDone, CacheRequest};
use farmem_machine::Duration;
use farmem_sim::RoleId;
use farmem_wire::message::Access;
use farmem_wire::{Domain, Status, VirtAddr};
use rack::Rack;

/// Two hosts that cache a vma of 16 pages on node 1.
fn pair(seed: u64) -> (Rack, u16, u16, u64) {
    let mut rack = Rack::new(seed);
    let (a, b) = (rack.start_host(1), rack.start_host(2));
    let vma = rack.allocate(16, 1);
    rack.map(a, &vma);
    rack.map(b, &vma);
    (rack, a, b, vma.base)
}

#[test]
fn hosts_share_pages_under_the_control_plane() {
    let (mut rack, a, b, base) = pair(1);
    assert!(rack.directory().open);
    assert!(rack.store(a, base, 7));
    assert_eq!(rack.load(b, base), Some(7));
    assert!(rack.store(b, base, 8));
    assert_eq!(rack.load(a, base), Some(8));
}

/// Two hundred hosts read one page, then one of them writes it: all others give it up, the last as well as
/// the first, and read the new value. The result does not change if one frame in five is lost, or if the
/// writer has the highest number.
#[test]
fn two_hundred_hosts_share_a_page_and_one_writes_it() {
    const MANY: u16 = 200;
    for (seed, loss_ppm, writer) in [(40, 0, 1), (41, 0, MANY), (42, 200_000, 100)] {
        let mut rack = Rack::with_hosts(seed, MANY);
        let hosts: Vec<u16> = (1..=MANY).map(|host| rack.start_host(host)).collect();
        let vma = rack.allocate(4, 1);
        hosts.iter().for_each(|&host| rack.map(host, &vma));
        rack.lose(loss_ppm);
        for round in 1..3 {
            assert!(rack.store(writer, vma.base, round));
            for &host in hosts.iter().filter(|&&host| host != writer) {
                assert_eq!(rack.load(host, vma.base), Some(round), "host {host} in round {round}");
            }
            assert_eq!(rack.sharers(vma.base), hosts, "all of them, in the directory");
            hosts.iter().for_each(|&host| assert!(rack.renew(host)));
        }
        assert!(rack.store(writer, vma.base, 3));
        for &host in &hosts {
            let may = (host == writer).then_some(Access::Modified);
            assert_eq!(rack.may(host, vma.base), may, "host {host} of seed {seed}");
        }
        assert_eq!(rack.sharers(vma.base), [], "no host has the page");
        assert_eq!(rack.directory().lost_pages, 0);
    }
}

/// A host that never had a lease gets no page.
#[test]
fn without_a_lease_there_is_no_page() {
    let (mut rack, _, _, base) = pair(2);
    let c = rack.join_host(3);
    let vma = rack.allocate(1, 2);
    rack.map(c, &vma);
    assert_eq!(rack.load(c, vma.base), None);
    assert!(rack.renew(c));
    assert_eq!(rack.load(c, vma.base), Some(0));
    assert!(base != vma.base);
}

/// A host crashes with a Modified page: once its lease has surely ended the page is lost, and reads fail
/// until the owner accepts the old bytes. A page that it had written back before is intact.
#[test]
fn what_died_with_a_host_is_seen_to_be_lost() {
    let (mut rack, a, b, base) = pair(3);
    assert!(rack.store(a, base, 7));
    assert_eq!(rack.load(b, base), Some(7));
    assert!(rack.store(a, base, 8));
    assert!(rack.store(a, base + (8 << 12), 9));
    assert_eq!(rack.load(b, base + (8 << 12)), Some(9));
    rack.stop(a);
    rack.fault(b, base, Access::Shared);
    rack.pass(1_000, &[b]);
    assert_eq!(rack.may(b, base), None, "the lease of the dead host may still run");
    rack.pass(2_000, &[b]);
    assert_eq!(rack.load(b, base), None, "8 died with the host, and 7 is not read in its place");
    assert_eq!(rack.load(b, base + (8 << 12)), Some(9));
    let info = rack.directory();
    assert_eq!((info.fences, info.lost_pages), (1, 1));
    let refused = rack.call(AcceptLost { domain: 1, base: base + 1, len: 4096 });
    assert_eq!(refused.expect_err("not a page").code, ErrorCode::BadRequest);
    rack.call(AcceptLost { domain: 1, base, len: 4096 }).expect("the owner may");
    assert_eq!(rack.load(b, base), Some(7));
    assert!(rack.store(b, base, 10));
}

/// A restarted host gets a lease only when nothing of its earlier incarnation is left.
#[test]
fn a_host_that_joins_again_waits_for_its_earlier_life_to_end() {
    let (mut rack, a, b, base) = pair(4);
    assert!(rack.store(a, base, 7));
    rack.stop(a);
    let again = rack.join_host(1);
    assert_eq!(again, a);
    assert!(!rack.renew(a), "its earlier life may still read");
    rack.pass(3_000, &[b]);
    assert!(rack.renew(a));
    assert_eq!(rack.load(b, base), None, "lost with the earlier life");
    assert!(rack.store(b, base + 4096, 1));
}

/// A host that gave everything up and left loses nothing and delays no other host.
#[test]
fn a_host_may_leave() {
    let (mut rack, a, b, base) = pair(5);
    assert!(rack.store(a, base, 7));
    rack.give(a, CacheRequest::Flush { order: u64::MAX });
    rack.until("a flush", |rack| matches!(rack.told(a).last(), Some(CacheDone::Flushed { .. })));
    let port = farmem_machine::Port::host(a).0;
    rack.call(Leave::new(port)).expect("a host may leave");
    rack.stop(a);
    assert_eq!(rack.load(b, base), Some(7));
    assert_eq!(rack.directory().lost_pages, 0);
    let again = rack.join_host(1);
    rack.pass(400, &[b]);
    assert!(rack.renew(again), "nothing of it is left");
}

/// A partitioned host unmaps all its pages when its lease ends; then others may write.
#[test]
fn a_lease_that_ends_takes_everything() {
    let (mut rack, a, b, base) = pair(6);
    assert!(rack.store(a, base, 7));
    assert_eq!(rack.load(a, base + (4 << 12)), Some(0));
    rack.cut_off(RoleId::Host(a));
    rack.pass(2_100, &[b]);
    assert_eq!((rack.may(a, base), rack.may(a, base + (4 << 12))), (None, None));
    assert_eq!(rack.told(a).last(), Some(&CacheDone::LeaseEnded));
    rack.pass(1_000, &[b]);
    assert!(rack.store(b, base + (4 << 12), 9));
    rack.reconnect();
    assert!(rack.renew(a), "it comes back in the same life");
    assert_eq!(rack.load(a, base + (4 << 12)), Some(9));
    assert_eq!(rack.load(a, base), None, "what it had written came too late, and it learns it");
}

/// A switch restarts: hosts flush as they renew, and then the directory opens. Nothing is lost.
#[test]
fn a_switch_starts_again() {
    let (mut rack, a, b, base) = pair(7);
    assert!(rack.store(a, base, 7));
    assert_eq!(rack.load(b, base + (4 << 12)), Some(0));
    rack.start_switch();
    assert!(!rack.directory().open, "hosts may still have pages from before");
    assert!(rack.renew(a));
    rack.pass(400, &[a]);
    assert!(!rack.directory().open, "the other host did not flush yet");
    rack.pass(401, &[a, b]);
    rack.pass(1, &[]);
    assert!(rack.directory().open);
    assert_eq!((rack.may(a, base), rack.may(b, base + (4 << 12))), (None, None));
    assert_eq!(rack.load(b, base), Some(7));
    assert!(rack.store(b, base, 8));
    assert_eq!(rack.load(a, base), Some(8));
}

/// A switch restarts after a host crashed: the directory opens once the host's lease has ended, and the
/// host's page is lost.
#[test]
fn a_switch_starts_again_and_a_host_does_not() {
    let (mut rack, a, b, base) = pair(8);
    assert!(rack.store(a, base, 7));
    rack.stop(a);
    rack.start_switch();
    rack.pass(1_000, &[b]);
    assert!(!rack.directory().open);
    rack.pass(2_000, &[b]);
    assert!(rack.directory().open);
    assert_eq!(rack.load(b, base), None);
    assert_eq!(rack.directory().lost_pages, 1);
    let again = rack.join_host(1);
    rack.pass(400, &[b]);
    assert!(rack.renew(again));
}

/// A restarted memory node has lost its memory: no host continues with a page from before, and none reads
/// zeros before the owner accepts the loss (PROTOCOL 9.19).
#[test]
fn a_node_starts_again() {
    let (mut rack, a, b, base) = pair(9);
    assert!(rack.store(a, base, 7));
    assert_eq!(rack.load(b, base + (4 << 12)), Some(0));
    rack.start_node(1);
    rack.pass(400, &[a, b]);
    assert_eq!((rack.may(a, base), rack.may(b, base + (4 << 12))), (None, None));
    assert_eq!((rack.load(a, base), rack.load(b, base)), (None, None));
    assert!(!rack.store(a, base, 8), "nor does anybody count on from 0");
    rack.call(AcceptLost { domain: 1, base, len: 4096 }).expect("the owner may");
    assert_eq!((rack.load(a, base), rack.load(b, base)), (Some(0), Some(0)));
    assert!(rack.store(a, base, 8));
    assert_eq!(rack.load(b, base), Some(8));
}

/// A region is reset at a host's request while others use it; nothing is lost.
#[test]
fn a_region_is_reset() {
    let (mut rack, a, b, base) = pair(10);
    assert!(rack.store(a, base, 7));
    rack.call(Recover { host: b, page: base }).expect("it holds a lease");
    rack.pass(50, &[]);
    assert_eq!(rack.may(a, base), None);
    assert_eq!(rack.regions(), [], "its slot is free");
    assert_eq!(rack.load(b, base), Some(7));
    assert_eq!(rack.directory().resets, 1);
}

/// A request without an answer is reported as stuck, repeatedly; it ends when a role answers.
#[test]
fn a_request_without_an_answer_is_complained_about() {
    let (mut rack, a, b, base) = pair(18);
    rack.cut_off(RoleId::Node(1));
    rack.fault(a, base, Access::Shared);
    rack.pass(3_500, &[a, b]);
    let page = farmem_wire::message::Page::of(VirtAddr(base));
    let stuck = rack.told(a).iter().filter(|&told| *told == CacheDone::Stuck { page }).count();
    assert_eq!(stuck, 3, "once in each second");
    rack.call(Recover { host: a, page: base }).expect("it holds a lease");
    rack.reconnect();
    rack.pass(500, &[a, b]);
    assert_eq!(rack.load(a, base), Some(0));
    assert_eq!(rack.directory().resets, 1);
}

/// A freed vma has no owner: a host that cached it has no access to its next allocation.
#[test]
fn a_freed_vma_is_taken_from_hosts() {
    let (mut rack, a, b, base) = pair(11);
    assert!(rack.store(a, base, 7));
    let id = rack.id_at(base);
    rack.call(Free { domain: 1, base, id }).expect("the owner frees");
    assert_eq!(rack.may(a, base), None, "no host has the page when the answer arrives");
    let next = rack.allocate(16, 1);
    assert_eq!(next.base, base);
    assert_eq!((rack.load(a, base), rack.load(b, base)), (Some(0), Some(0)));
}

/// A crashed host keeps its cached pages for as long as its lease may run: for that time a free is not
/// complete.
#[test]
fn a_freed_vma_waits_for_a_dead_host() {
    let (mut rack, a, b, base) = pair(18);
    assert!(rack.store(a, base, 7));
    rack.stop(a);
    let asked = rack.now();
    let id = rack.id_at(base);
    rack.call(Free { domain: 1, base, id }).expect("the owner frees");
    assert!(rack.now().since(asked) >= Duration::from_secs(1), "not before its lease surely ended");
    assert_eq!(rack.allocate(16, 1).base, base);
    rack.pass(400, &[b]);
    assert_eq!(rack.load(b, base), Some(0));
}

/// Bytes written with permission are kept when the page becomes read-only, and no host writes any more once
/// that change is answered. This also holds when the control plane restarts meanwhile.
#[test]
fn rights_are_taken_from_pages_that_are_cached_and_nothing_is_lost() {
    let (mut rack, a, b, _) = pair(19);
    let start = ProcessStart { domain: 1, heap: 0 };
    let process = rack.call(start).unwrap().process;
    let returned = |rack: &mut Rack, call: Request| {
        let returned = Returned::try_from(rack.call(call).unwrap()).unwrap();
        u64::try_from(returned.value).expect("it is done")
    };
    let len = 4 << 12;
    let base = returned(&mut rack, Mmap { process, addr: 0, len, prot: 3, flags: 0x22 }.into());
    for host in [a, b] {
        rack.give(host, CacheRequest::Map { base: VirtAddr(base), len, domain: Domain(1) });
    }
    assert!(rack.store(a, base, 7));
    returned(&mut rack, Mprotect { process, addr: base, len, prot: 1 }.into());
    assert_eq!(rack.may(a, base), None);
    assert_eq!((rack.load(b, base), rack.load(a, base)), (Some(7), Some(7)));
    assert!(!rack.store(a, base, 8) && !rack.store(b, base, 8));
    returned(&mut rack, Mprotect { process, addr: base, len, prot: 3 }.into());
    assert!(rack.store(a, base, 9));
    returned(&mut rack, Mprotect { process, addr: base, len, prot: 0 }.into());
    assert_eq!((rack.may(a, base), rack.load(b, base)), (None, None));
    rack.restart_control();
    returned(&mut rack, Mprotect { process, addr: base, len, prot: 1 }.into());
    assert_eq!(rack.load(b, base), Some(9), "no host could read the page, and its bytes were kept");
}

/// The control plane restarts in the middle of a fence, and completes it.
#[test]
fn the_control_plane_starts_again() {
    let (mut rack, a, b, base) = pair(12);
    assert!(rack.store(a, base, 7));
    rack.stop(a);
    rack.pass(1_000, &[b]);
    rack.restart_control();
    rack.pass(3_000, &[b]);
    assert_eq!(rack.load(b, base), None);
    let again = rack.join_host(1);
    rack.pass(400, &[b]);
    assert!(rack.renew(again));
}

/// A host crashes while the switch is unreachable: its fence waits for the switch, and the host for its
/// fence.
#[test]
fn a_fence_reaches_a_switch_that_was_silent() {
    let (mut rack, a, b, base) = pair(17);
    assert!(rack.store(a, base, 7));
    rack.stop(a);
    rack.cut_off(RoleId::Switch);
    rack.pass(8_000, &[b]);
    let again = rack.join_host_only(1);
    assert!(!rack.renew_only(again), "the switch does not know of its end yet");
    rack.reconnect();
    rack.pass(2_000, &[b]);
    assert_eq!(rack.load(b, base), None, "lost, and known to be");
    assert_eq!(rack.directory().lost_pages, 1);
}

/// All of these over links that lose one frame in five.
#[test]
fn nothing_of_it_depends_on_luck() {
    for seed in 20..26 {
        let (mut rack, a, b, base) = pair(seed);
        rack.lose(200_000);
        assert!(rack.store(a, base, 7));
        assert!(rack.store(b, base + (4 << 12), 8));
        rack.call(Recover { host: b, page: base }).expect("it holds a lease");
        rack.pass(300, &[a, b]);
        assert_eq!(rack.load(b, base), Some(7));
        rack.start_switch();
        rack.pass(1_500, &[a, b]);
        assert_eq!((rack.load(a, base + (4 << 12)), rack.load(b, base)), (Some(8), Some(7)));
        assert!(rack.store(a, base, 9));
        rack.stop(a);
        rack.pass(4_000, &[b]);
        assert_eq!(rack.load(b, base), None, "seed {seed}: lost, and known to be");
        rack.start_node(1);
        rack.pass(1_000, &[b]);
        assert_eq!(rack.load(b, base), None, "seed {seed}: lost with its node as well");
        rack.call(AcceptLost { domain: 1, base, len: 4096 }).expect("the owner may");
        assert_eq!(rack.load(b, base), Some(0), "seed {seed}");
    }
}

/// Two hosts that write different pages of a region in turn: the region is split until they do not disturb
/// each other, and merged when all is quiet.
#[test]
fn a_region_is_split_where_hosts_disturb_each_other() {
    let (mut rack, a, b, base) = pair(13);
    for turn in 0..400 {
        assert!(rack.store(a, base, turn));
        assert!(rack.store(b, base + (3 << 12), turn));
        rack.pass(2, &[]);
        if turn % 100 == 0 {
            assert!(rack.renew(a) && rack.renew(b));
        }
    }
    let info = rack.directory();
    assert!(info.splits >= 1 && info.false_invalidations > 0, "{info:?}");
    assert!(rack.regions().iter().all(|&(_, order)| order < 2), "{:?}", rack.regions());
    // Two hosts' written pages cannot be one region; pages that both read can.
    assert_eq!((rack.load(b, base), rack.load(a, base + (3 << 12))), (Some(399), Some(399)));
    rack.pass(3_000, &[a, b]);
    assert!(rack.directory().merges >= 1, "{:?}", rack.directory());
}

/// More regions than slots: undisturbed regions make room, repeatedly unless regions happen to be merged, and
/// no written byte is lost.
#[test]
fn regions_make_room_for_others() {
    let mut most = 0;
    for seed in 15..26 {
        let (mut rack, a, b, base) = pair(seed);
        rack.set_slots(3);
        rack.start_switch();
        rack.pass(800, &[a, b]);
        for turn in 1..4 {
            for page in 0..16 {
                let value = turn * 100 + page as u64;
                assert!(rack.store([a, b][page % 2], base + ((page as u64) << 12), value));
            }
            for page in 0..16 {
                let found = rack.load([b, a][page % 2], base + ((page as u64) << 12));
                assert_eq!(found, Some(turn * 100 + page as u64));
            }
            assert!(rack.renew(a) && rack.renew(b));
        }
        let info = rack.directory();
        assert!(info.slots == 3 && info.evictions >= 3 && info.resets >= 3, "seed {seed}: {info:?}");
        assert_eq!(info.lost_pages, 0);
        most = most.max(info.evictions.min(info.resets));
    }
    assert!(most > 10, "{most}");
}

/// A list of two nodes on pages that a host has written and not written back: a traversal offloaded by
/// another host sees the latest bytes, and the writer continues to read. A traversal that stores is refused,
/// because the pages are cached.
#[test]
fn a_traversal_sees_what_a_host_has_not_written_back() {
    let (mut rack, a, b, base) = pair(16);
    let sum = "
        .scratch 8
            ld8 r2, window[0]
            ld8 r3, scratch[0]
            add r3, r2
            st8 scratch[0], r3
            ld8 r4, window[8]
            jeq r4, 0, end
            next r4
        end:
            ret
    ";
    let far = base + (9 << 12);
    for round in 1..4 {
        for (at, value) in [(base, 10 * round), (base + 8, far), (far, 7), (far + 8, 0)] {
            assert!(rack.store(a, at, value));
        }
        assert_eq!(rack.traverse(b, sum, base), Ok(10 * round + 7));
        assert_eq!(rack.may(a, base), Some(Access::Shared), "recalled, and kept");
    }
    assert_eq!(rack.load(b, far), Some(7));
    assert_eq!(rack.traverse(b, sum, base), Ok(37), "what is shared is read as it is");
    let storing = ".stores\n .scratch 8\n ld8 r2, window[0]\n add r2, 1\n st8 window[0], r2\n ret\n";
    assert_eq!(rack.traverse(b, storing, base), Err(Status::Coherent));
    let fresh = rack.allocate(1, 2);
    assert_eq!(rack.traverse(b, storing, fresh.base), Ok(0), "a page that no host caches");
    rack.map(a, &fresh);
    assert_eq!(rack.load(a, fresh.base), Some(1));
    assert_eq!(rack.traverse(b, storing, fresh.base), Err(Status::Coherent));
}

/// The answer to an overview describes the directory.
#[test]
fn the_overview_shows_the_directory() {
    let (mut rack, a, _, base) = pair(14);
    assert!(rack.store(a, base, 7));
    rack.pass(300, &[a]);
    let info = rack.directory();
    assert!(info.open && info.slots > 0 && info.used == 1, "{info:?}");
    let answer = Response::from(rack.call(Overview {}).unwrap());
    assert!(format!("{answer:?}").contains("false_invalidations"));
}
