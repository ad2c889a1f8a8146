//! Look-ups in long chains of a hash table on all memory nodes: the host follows each pointer by a READ, or
//! sends a traversal that follows them.

use super::{ActOutcome, NODES, to_f64};
use crate::demo::{MethodRow, Words, on_table};
use crate::outcome::Failure;
use crate::output;
use farmem::hash_table::{HashTable, Spread};
use farmem::{Rack, RackConfig};

/// Number of words in the table.
const WORDS: usize = 20_000;
/// Average number of words in the chain of a bucket.
const CHAIN_LEN: u64 = 16;

pub(super) fn play(config: &RackConfig) -> Result<ActOutcome, Failure> {
    let words = Words::generate(WORDS);
    let mut client = Rack::running(config.clone()).client("tour")?;
    let spread = Spread::Scattered;
    let mut table = HashTable::create(&mut client, WORDS as u64, WORDS as u64 / CHAIN_LEN, spread)?;
    let mut rows = Vec::new();
    let worked = on_table(&mut client, &mut table, &words, spread, &mut rows);
    table.destroy(&mut client)?;
    let wrong_answers = worked?;
    let [reads, traversals] = &rows[..] else { unreachable!("a row for each method") };
    let figure = |row: &MethodRow| {
        let (trips, time) = (row.round_trips_per_lookup, output::time(to_f64(row.latency_p50_ns)));
        format!("{trips:.2} round trips and {time} a look-up")
    };
    Ok(ActOutcome {
        figures: format!("READs: {}; traversals: {}", figure(reads), figure(traversals)),
        sentence: format!(
            "A traversal follows {:.1} pointers across {NODES} memory nodes for one round trip of the host, and costs the nodes the CPU time.",
            reads.nodes_visited_per_lookup
        ),
        wrong_answers,
    })
}
