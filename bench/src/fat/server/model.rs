//! More clients than this machine has room for, in virtual time (Fat-B+Tree V-C, figure 10 (b)).
//!
//! What is modelled: clients that each have one operation under way; four servers with one core each, where requests wait in the order in which they come; the way there and back. How many nodes a
//! look-up visits, with the index and without, is what was counted on the real tree in this run, and which server has a key is as it is there. What is not: loss, the switch's own time
//! (it forwards at line rate, as the paper's do), and caches of processors.

use super::{READS, SERVERS, VALUE_LEN};
use crate::{Row, to_f64};
use farmem::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// From a client to a server, or back, with the client's own work: 10 us a round trip, as a network of 40 Gb/s has it between two pods.
const WAY_NS: u64 = 5_000;
/// Of a server for a request, without visits: receive, answer (`pulse.node.*` in docs/results.md, rounded).
const REQUEST_NS: u64 = 1_500;
/// Of a server for a visit: a node from memory, and its instructions.
const VISIT_NS: u64 = 400;
/// Of a server for each byte of a value.
const BYTE_PS: u64 = 100;
/// Operations that are played.
const OPERATIONS: u64 = 200_000;
const SEED: u64 = 17;

/// Virtual time, in nanoseconds, of `OPERATIONS` by so many clients, whose look-ups visit so many nodes on average.
fn play(clients: u64, visits: f64, from_the_root: f64, draw: &[u64], keys: u64) -> u64 {
    let mut rng = Rng::from_number(SEED);
    // When each client's next request comes to its server.
    let mut coming: BinaryHeap<Reverse<(u64, u64)>> =
        (0..clients).map(|client| Reverse((WAY_NS + client, client))).collect();
    let mut free = [0_u64; SERVERS as usize];
    let mut last = 0;
    for operation in 0..OPERATIONS {
        let Reverse((now, client)) = coming.pop().expect("each client has a request under way");
        let record = draw[usize::try_from(operation).unwrap_or(0) % draw.len()];
        let server = usize::try_from(record * u64::from(SERVERS) / keys).expect("a server's number");
        // What stores begins at the root, with the index and without; it writes the value first.
        let (visits, requests) = if rng.chance(READS, 100) { (visits, 1) } else { (from_the_root, 2) };
        // To a thousandth: a look-up has no fraction of a visit, its average has.
        let thousandths = (0..).take_while(|n| to_f64(*n) < visits * 1e3).last().unwrap_or(0);
        let works =
            requests * REQUEST_NS + thousandths * VISIT_NS / 1_000 + VALUE_LEN as u64 * BYTE_PS / 1_000;
        free[server] = free[server].max(now) + works;
        let answered = free[server] + WAY_NS;
        last = last.max(answered);
        coming.push(Reverse((answered + WAY_NS, client)));
    }
    last
}

/// The rows.
pub(super) fn rows([index, root]: [f64; 2], draw: &[u64], keys: u64) -> Vec<Row> {
    let rate = |clients, visits| to_f64(OPERATIONS) / (to_f64(play(clients, visits, root, draw, keys)) / 1e9);
    let row = |clients: u64| {
        let id = format!("fat.server.sim.clients.{clients}.throughput");
        let row = Row::figure(id, "1/s", rate(clients, index), OPERATIONS).beside(Some(rate(clients, root)));
        let why = "played in virtual time: one core a server, 1.5 us a request, 0.4 us a visit, 10 us a round trip; visits as counted";
        Row { why: Some(why.into()), ..row }
    };
    [1, 2, 4, 8, 16].map(row).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One client has an operation at a time: a round trip and the work. Many have as many as the busiest server carries out; fewer visits are more of them.
    #[test]
    fn clients_add_up_to_what_servers_carry_out() {
        let keys = 1_000;
        let draw: Vec<u64> = (0..1_000).collect();
        let alone = play(1, 2.0, 2.0, &draw, keys) / OPERATIONS;
        let works = REQUEST_NS + 2 * VISIT_NS;
        assert!((2 * WAY_NS + works..2 * WAY_NS + works + REQUEST_NS).contains(&alone), "{alone} ns");
        let many = play(256, 2.0, 2.0, &draw, keys) / OPERATIONS;
        assert!((works / 4..works / 2).contains(&many), "{many} ns by four servers");
        let times: Vec<u64> = [1, 2, 4, 8, 16].map(|clients| play(clients, 2.0, 6.0, &draw, keys)).into();
        assert!(times.is_sorted_by(|a, b| a > b), "{times:?}");
        for clients in [1, 4, 16] {
            assert!(play(clients, 2.0, 6.0, &draw, keys) < play(clients, 6.0, 6.0, &draw, keys));
        }
    }
}
