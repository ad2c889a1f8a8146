//! What the applications of SODA move, exactly, with a third of a small graph here.

use farmem::Error;
use farmem_bench::soda::{App, Counts, System, count};

/// Twice the same program moves the same bytes and finds what local memory finds. `None` where this process may not serve faults.
fn counted(app: App, system: System) -> Option<Counts> {
    let ([first, second], wrong) = match count(10, 35, app, system) {
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
/// (SODA III-A, VI).
#[test]
fn a_dpu_moves_what_was_asked_for_and_what_it_prefetched() {
    for app in App::ALL {
        let Some(server) = counted(app, System::Server) else { return };
        assert!(server.bytes > 0 && server.background == 0, "{app:?} {server:?}");
        let Some(forwarded) = counted(app, System::Dpu) else { return };
        assert_eq!((forwarded.bytes, forwarded.hits, forwarded.background), (server.bytes, 0, 0), "{app:?}");
        let Some(dynamic) = counted(app, System::Dynamic) else { return };
        assert!(dynamic.hits > 0 && dynamic.background > 0, "{app:?} {dynamic:?}");
        assert_eq!(dynamic.reads, forwarded.reads, "{app:?}: the window asks for the same");
        assert!(dynamic.bytes - dynamic.background < server.bytes, "{app:?}: fewer are waited for");
        let Some(fixed) = counted(app, System::Static) else { return };
        assert!(fixed.hits > 0 && fixed.background > 0, "{app:?} {fixed:?}");
        assert_eq!(fixed.reads, forwarded.reads, "{app:?}: the window asks for the same");
        let Some(adaptive) = counted(app, System::Adaptive) else { return };
        assert!(adaptive.bytes * 1024 <= server.bytes * 1075, "{app:?} {adaptive:?} {server:?}");
    }
}

/// What is in local memory, on a disk or on zram moves nothing over a network.
#[test]
fn other_systems_have_no_window() {
    for system in [System::Local, System::Disk, System::Zram] {
        assert_eq!(count(4, 3, App::Bfs, system).unwrap(), None, "{system:?}");
    }
}
