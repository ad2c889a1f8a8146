//! `fat.union.*`: PULSE's forwarding and Fat-B+Tree's index together. A look-up of a tree scattered over four
//! memory nodes, started further down by the switch, compared with one from the root. Counted exactly, on a
//! rack in this process.

use super::store::{KEY_BYTES, LookupPath, Store};
use crate::{Row, to_f64};
use farmem::blink_tree::Extent;
use farmem::{Error, Layout, Rack};
use farmem_workload::ycsb;

pub(super) const NODES: u8 = 4;
/// The tree's nodes lie in pieces of a page, on the memory nodes in turn.
pub(super) const PIECES: Layout = Layout::Scattered { granularity: 4 << 10 };
/// Number of counted look-ups.
const LOOK_UPS: u64 = 2_000;

/// Returns the bytes of each memory node for a tree of `keys` keys.
pub(super) fn memory_of(keys: u64) -> u64 {
    (keys * KEY_BYTES).next_power_of_two().max(32 << 20) * 2 / u64::from(NODES)
}

/// The total cost of some look-ups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Round trips of the host.
    pub round_trips: u64,
    /// Packets between host, switch and memory nodes.
    pub packets: u64,
    /// Visited nodes and lines.
    pub visits: u64,
}

/// Counts the same look-ups through the index and from the root, on a tree of `keys` keys.
///
/// # Errors
/// [`Error`] when there is not enough memory.
///
/// # Panics
/// Panics when an answer is wrong.
pub fn count(keys: u64) -> Result<[Counts; 2], Error> {
    let rack = Rack::embedded_with(NODES.into(), memory_of(keys))?;
    let mut store = Store::load(&rack, keys, PIECES)?;
    let numbers = || (0..LOOK_UPS).map(|n| ycsb::hash(n) % keys);
    // The nodes learn the program.
    for n in numbers().take(200) {
        store.get(n, LookupPath::Root)?;
    }
    let counted = |store: &mut Store, path| {
        let seen = |store: &Store| (store.client().tally(), rack.frames().unwrap_or_default());
        let before = seen(store);
        for n in numbers() {
            store.get(n, path)?;
        }
        let after = seen(store);
        Ok::<Counts, Error>(Counts {
            round_trips: after.0.requests - before.0.requests,
            packets: after.1 - before.1,
            visits: after.0.iterations - before.0.iterations,
        })
    };
    let root = counted(&mut store, LookupPath::Root)?;
    store.publish(Extent::default())?;
    let index = counted(&mut store, LookupPath::Index)?;
    assert_eq!(store.wrong, 0, "every key has its value");
    Ok([index, root])
}

/// Returns the rows of a tree of `keys` keys, with ids that begin with `group`.
pub(super) fn measure(keys: u64, group: &str) -> Result<Vec<Row>, Error> {
    let [index, root] = count(keys)?;
    let row = |what: &str, of: fn(&Counts) -> u64| {
        let each = |counts: &Counts| to_f64(of(counts)) / to_f64(LOOK_UPS);
        let id = format!("{group}.{what}");
        Row::figure(id, "per operation", each(&index), LOOK_UPS).beside(Some(each(&root)))
    };
    Ok(vec![
        row("round_trips", |counts| counts.round_trips),
        row("packets", |counts| counts.packets),
        row("visits", |counts| counts.visits),
    ])
}
