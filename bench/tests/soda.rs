//! The exact traffic of SODA's applications, with a third of a small graph local.

use farmem::Error;
use farmem_bench::soda::{App, Counts, System, count};

/// Runs the same program twice on a graph of 2^`scale` vertices; both move the same bytes and match local
/// memory. Returns `None` where this process may not serve faults.
fn counted_of(scale: u32, app: App, system: System) -> Option<Counts> {
    let ([first, second], wrong) = match count(scale, 35, app, system) {
        Ok(counted) => counted.expect("a system with a window"),
        Err(Error::Open(refused)) => {
            eprintln!("skipped: {refused}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(wrong, 0, "{app:?} {system:?}");
    if system.is_exact() {
        assert_eq!(first, second, "{app:?} {system:?}");
    }
    Some(first)
}

/// A forwarding DPU moves as much as the window alone. A caching DPU moves the same pages or fewer, besides
/// its prefetches; an adaptive one stays within its cap (SODA III-A, VI). Pages that arrive at once leave the
/// window no time to make room, so nearly, not exactly, the same pages move.
#[test]
fn a_dpu_moves_what_was_asked_for_and_what_it_prefetched() {
    for app in App::ALL {
        let counted = |system| counted_of(12, app, system);
        let near = |one: Counts, other: Counts| one.reads.abs_diff(other.reads) <= other.reads / 8;
        let Some(server) = counted(System::Server) else { return };
        assert!(server.bytes > 0 && server.background == 0, "{app:?} {server:?}");
        let Some(forwarded) = counted(System::Dpu) else { return };
        assert_eq!((forwarded.bytes, forwarded.hits, forwarded.background), (server.bytes, 0, 0), "{app:?}");
        let Some(dynamic) = counted(System::Dynamic) else { return };
        assert!(dynamic.hits > 0 && dynamic.background > 0, "{app:?} {dynamic:?}");
        assert!(near(dynamic, forwarded), "{app:?}: the window asks for the same: {dynamic:?} {forwarded:?}");
        assert!(dynamic.bytes - dynamic.background < server.bytes, "{app:?}: fewer are waited for");
        let Some(fixed) = counted(System::Static) else { return };
        assert!(fixed.hits > 0 && fixed.background > 0, "{app:?} {fixed:?}");
        assert!(near(fixed, forwarded), "{app:?}: the window asks for the same: {fixed:?} {forwarded:?}");
        let Some(adaptive) = counted(System::Adaptive) else { return };
        assert!(
            near(adaptive, forwarded),
            "{app:?}: the window asks for the same: {adaptive:?} {forwarded:?}"
        );
        assert!(adaptive.is_within_cap(), "{app:?} {adaptive:?} {server:?}");
    }
}

/// Two rounds of PageRank read the edges into all vertices twice, of which about two thirds may be local. The
/// second round begins where the first one ended and hits: the traffic is less than 1.7 times the edges in
/// one direction. A restart at the first vertex would miss everything and move all of it twice.
#[test]
fn a_round_finds_what_the_one_before_left() {
    let Some(server) = counted_of(14, App::Pagerank, System::Server) else { return };
    let edges = (35 << 14) * 4;
    assert!((edges..edges * 17 / 10).contains(&server.bytes), "{server:?} of {edges}");
}

/// Local memory, disk and zram move nothing over the network.
#[test]
fn other_systems_have_no_window() {
    for system in [System::Local, System::Disk, System::Zram] {
        assert_eq!(count(4, 3, App::Bfs, system).unwrap(), None, "{system:?}");
    }
}
