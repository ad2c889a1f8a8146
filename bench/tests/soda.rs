//! What the applications of SODA move, exactly, with a third of a small graph here.

use farmem::Error;
use farmem_bench::soda::{App, Counts, System, count};

/// Twice the same program on a graph of 2^`scale` vertices moves the same bytes and finds what local memory finds. `None` where this process may not serve faults.
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

/// A DPU that forwards moves what the window alone moves. One that caches moves the same pages or fewer, but for what it prefetched; adaptively that stays within its cap
/// (SODA III-A, VI). What is there at once leaves no time in which the window makes room, so nearly the same pages go, and not quite.
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

/// Two rounds of PageRank read the edges into all vertices twice, of which about two thirds may be here. The second round begins where the first one ended, and finds that: less moves than 1.7
/// times what belongs to edges in one direction. Begun anew at the first vertex it found nothing, and all of it moved twice.
#[test]
fn a_round_finds_what_the_one_before_left() {
    let Some(server) = counted_of(14, App::Pagerank, System::Server) else { return };
    let edges = (35 << 14) * 4;
    assert!((edges..edges * 17 / 10).contains(&server.bytes), "{server:?} of {edges}");
}

/// What is in local memory, on a disk or on zram moves nothing over a network.
#[test]
fn other_systems_have_no_window() {
    for system in [System::Local, System::Disk, System::Zram] {
        assert_eq!(count(4, 3, App::Bfs, system).unwrap(), None, "{system:?}");
    }
}
