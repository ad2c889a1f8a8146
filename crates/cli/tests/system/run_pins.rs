//! `farmem run`: memory that is written to while it moves. No write is lost.

use crate::process::{Dir, run_command};
use crate::run::{MIB, far, may_run, program, stats};

/// Threads add to words of memory that another moves, within far memory and out of it: no increment is lost.
#[test]
fn memory_that_moves_while_threads_write() {
    if !may_run("moves") {
        return;
    }
    let dir = Dir::new("run-moves");
    let binary = program(&dir, "moves", &[]);
    for local in [MIB / 2, 8 * MIB] {
        let ended = run_command(far(local, &[&binary]));
        let expected = "between two places: 0 lost\nout: 0 lost\n";
        assert_eq!((ended.stdout.as_str(), ended.code), (expected, Some(0)), "{ended:?}");
        stats(&ended, local);
    }
}
