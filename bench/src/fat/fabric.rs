//! `fat.fabric.*`: the cost of a look-up through a FatTree of index switches (Fat-B+Tree IV-A), compared with
//! the rack's switch alone with equally large tables. Counted exactly, on a rack in this process: a core, two
//! pods and four edges, the tree partitioned by key over four servers.

use super::union::Counts;
use crate::{Row, to_f64};
use farmem::blink_tree::{Extent, publish, publish_fabric, withdraw_fabric};
use farmem::{BLinkTree, Client, Error, Layout, Policy, Rack};
use farmem_workload::ycsb;

const PODS: u16 = 2;
const EDGES: u16 = 2;
/// Bytes of a key in far memory: its part of a full leaf and of the levels above, rounded up.
const KEY_BYTES: u64 = 32;
/// Entries per loaded node: full, as in the paper.
const FILL: usize = 14;
/// Number of counted look-ups.
const LOOK_UPS: u64 = 2_000;

/// Counts the same look-ups in a tree of `keys` keys through the FatTree, through the rack's switch alone,
/// and from the root. The rack's switch has one set beside the fat root, because its stages hold no more.
///
/// # Errors
/// [`Error`] when there is not enough memory.
///
/// # Panics
/// Panics when an answer is wrong.
pub fn count_fabric(keys: u64, extent: Extent) -> Result<[Counts; 3], Error> {
    let servers = u64::from(PODS * EDGES);
    let memory = (keys * KEY_BYTES).next_power_of_two().max(32 << 20) * 2 / servers;
    let rack = Rack::embedded_fat_tree(PODS, EDGES, memory)?;
    let mut client = rack.client(super::store::DOMAIN)?;
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned)?;
    let numbers = 0..usize::try_from(keys).expect("fewer than memory has");
    tree.load(&mut client, numbers.map(|n| (n as u64 * 2, n as u64)), FILL)?;
    tree.set_policy(Policy::Offload);
    let count = |client: &mut Client, look_ups: u64| {
        let before = (client.tally(), rack.frames().unwrap_or_default());
        for n in (0..look_ups).map(|n| ycsb::hash(n) % keys) {
            assert_eq!(tree.get(client, 2 * n)?, Some(n), "every key has its value");
        }
        let after = (client.tally(), rack.frames().unwrap_or_default());
        Ok::<Counts, Error>(Counts {
            round_trips: after.0.requests - before.0.requests,
            packets: after.1 - before.1,
            visits: after.0.iterations - before.0.iterations,
        })
    };
    // The nodes learn the program.
    count(&mut client, 200)?;
    let root = count(&mut client, LOOK_UPS)?;
    let overview = client.overview()?;
    let parts = tree.fabric_sections(&mut client, &overview, extent)?;
    publish_fabric(&mut client, &parts)?;
    let fabric = count(&mut client, LOOK_UPS)?;
    withdraw_fabric(&mut client, tree.tree().root)?;
    let section = tree.section(&mut client, Extent { sets: 1, ..extent })?;
    publish(&mut client, &[section])?;
    let alone = count(&mut client, LOOK_UPS)?;
    Ok([fabric, alone, root])
}

/// Returns the rows: through the FatTree, compared with the rack's switch alone.
pub(super) fn measure(keys: u64, extent: Extent) -> Result<Vec<Row>, Error> {
    let [fabric, alone, root] = count_fabric(keys, extent)?;
    let each = |counts: &Counts, of: fn(&Counts) -> u64| to_f64(of(counts)) / to_f64(LOOK_UPS);
    let row = |what: &str, of: fn(&Counts) -> u64| {
        let id = format!("fat.fabric.{what}");
        Row::figure(id, "per operation", each(&fabric, of), LOOK_UPS).beside(Some(each(&alone, of)))
    };
    Ok(vec![
        row("round_trips", |counts| counts.round_trips),
        row("packets", |counts| counts.packets),
        row("visits", |counts| counts.visits),
        Row::figure(
            "fat.fabric.visits.root".to_owned(),
            "per operation",
            each(&root, |counts| counts.visits),
            LOOK_UPS,
        ),
    ])
}
