//! The exact cost of traversals: packets, round trips and iterations of every kind of operation on two and
//! four memory nodes, with the switch's forwarding and without (PULSE-ACC), compared with
//! testdata/golden/pulse-distributed.txt.
//!
//! A difference is a change of the packets on the wire. If it is intended, `UPDATE_GOLDEN=1 cargo test -p
//! farmem-bench --test golden` rewrites the table; review the difference before committing it.

use farmem_bench::pulse::{Fixture, SUBJECTS};
use std::fmt::Write as _;
use std::path::Path;

const RECORDS: u64 = 4_000;
const OPERATIONS: u64 = 100;
const MEMORY: u64 = 8 << 20;

fn table() -> String {
    let mut text = format!(
        "# {OPERATIONS} operations on {RECORDS} records: what each of PULSE and PULSE-ACC took in all.\n\
         # packets: between host, switch and memory nodes; host: those that the host sent or received.\n\
         # crossed: operations that went from one memory node to another at all.\n"
    );
    let (structure, nodes) = ("structure", "nodes");
    writeln!(
        text,
        "{structure:<20}{nodes:>6}  {:<10}{:>11}{:>12}{:>9}{:>9}{:>9}",
        "variant", "iterations", "round_trips", "host", "packets", "crossed"
    )
    .unwrap();
    for (name, subject) in SUBJECTS {
        for nodes in [1, 2, 4] {
            let mut bed = Fixture::new(subject, nodes, MEMORY, RECORDS).unwrap();
            let acc = bed.count(OPERATIONS, true).unwrap();
            let pulse = bed.count(OPERATIONS, false).unwrap();
            assert_eq!(pulse.iterations, acc.iterations, "{name}: the same traversals, whatever the way");
            assert_eq!(pulse.operations, OPERATIONS);
            for (variant, counted) in [("pulse", &pulse), ("pulse-acc", &acc)] {
                writeln!(
                    text,
                    "{name:<20}{nodes:>6}  {variant:<10}{:>11}{:>12}{:>9}{:>9}{:>9}",
                    counted.iterations,
                    counted.requests,
                    counted.host_packets,
                    counted.packets,
                    acc.crossed(1)
                )
                .unwrap();
            }
        }
    }
    text
}

#[test]
fn operations_cost_what_the_table_says() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/golden/pulse-distributed.txt");
    let counted = table();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, &counted).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&file).unwrap();
    for (line, (expected, counted)) in golden.lines().zip(counted.lines()).enumerate() {
        assert_eq!(counted, expected, "line {} of {}", line + 1, file.display());
    }
    assert_eq!(counted.lines().count(), golden.lines().count());
}

/// The table confirms PULSE: a traversal is one round trip with any number of crossings, and PULSE-ACC takes
/// one more per crossing (PULSE 5, 6.2). Without crossings the two are equal.
#[test]
fn a_crossing_costs_pulse_acc_a_round_trip() {
    for (_, subject) in SUBJECTS {
        let mut bed = Fixture::new(subject, 2, MEMORY, RECORDS).unwrap();
        let [pulse, acc] = [false, true].map(|returning| bed.count(OPERATIONS, returning).unwrap());
        let crossings: u64 = acc.crossings.iter().sum();
        assert_eq!(pulse.requests, OPERATIONS, "{subject:?}");
        assert_eq!(acc.requests, OPERATIONS + crossings, "{subject:?}");
        // Host to switch to node, and node to host. A crossing is node to switch to node, or node to host to
        // switch to node.
        assert_eq!(pulse.packets, 3 * OPERATIONS + 2 * crossings, "{subject:?}");
        assert_eq!(acc.packets, 3 * OPERATIONS + 3 * crossings, "{subject:?}");
        assert_eq!((pulse.host_packets, acc.host_packets), (2 * OPERATIONS, 2 * (OPERATIONS + crossings)));
    }
}
