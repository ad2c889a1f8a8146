//! Tests of far memory that fails: the notices for the operator and the errors for clients.

use super::super::encoded::no_room;
use super::super::log::Full;
use super::store;
use crate::store::NewExpiry;
use farmem::api::{ApiError, ErrorCode};
use farmem::{Error, NodeId, Rack};

/// A memory node restarts without its memory. A client finds one key lost, and the server finds the rest by itself.
/// The lines for the operator report the lost amount once, and counters have it. Other keys are unchanged.
#[test]
fn lost_memory_is_reported_once_and_counted() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let mut store = store(&rack);
    for number in 0..6_000_u32 {
        store.set(0, &number.to_le_bytes(), &[b'v'; 10_000], NewExpiry::Never).unwrap();
        store.settle();
    }
    let health = |store: &crate::store::Store| {
        let health = &store.log_ref().far_ref().health;
        (health.errors, health.lost_bytes)
    };
    (0..100).for_each(|_| assert!(store.probe_far().is_empty()));
    assert_eq!(health(&store), (0, 0));
    rack.restart_node(NodeId(1)).unwrap();
    // Time does not advance in a rack of one process unless a call waits.
    let lost = (0..100_u32).filter(|number| store.string(0, &number.to_le_bytes()).is_err()).count();
    assert!(lost > 0);
    let lines: Vec<String> = (0..1_000).flat_map(|_| store.probe_far()).collect();
    let lost = lines.iter().filter(|line| line.contains("MiB of this server's far memory are lost")).count();
    assert!((1..=4).contains(&lost), "{lines:?}");
    let (errors, bytes) = health(&store);
    assert!(errors > 0 && bytes > 8 << 20 && bytes < 60 << 20, "{errors} errors, {bytes} bytes");
    assert!((0..6_000_u32).any(|number| store.string(0, &number.to_le_bytes()).is_ok()));
    let more: Vec<String> = (0..100).flat_map(|_| store.probe_far()).collect();
    assert!(more.is_empty() && health(&store).1 == bytes, "reported twice: {more:?}");
}

/// A rack that is full is answered with `OOM`; one that does not answer, or whose roles cannot, with `FARMEMORY`.
#[test]
fn withheld_memory_is_not_reported_as_full() {
    let refused = |code| Error::Refused(ApiError { code, message: "no".into(), remedy: "do".into() });
    let cases = [
        (refused(ErrorCode::OutOfMemory), "OOM "),
        (refused(ErrorCode::TableFull), "OOM "),
        (refused(ErrorCode::Unavailable), "FARMEMORY "),
        (refused(ErrorCode::Storage), "FARMEMORY "),
        (Error::Unreachable { what: "the control plane".into() }, "FARMEMORY "),
        (Error::Interrupted, "FARMEMORY "),
    ];
    for (error, kind) in cases {
        let failure = no_room(&Full::Far(error));
        assert!(failure.reply().starts_with(kind), "{}", failure.reply());
    }
}
