//! `fat.server.lazy.*`: the cost of an index that is older than its tree (Fat-B+Tree IV-B). The tree's nodes
//! keep their places and link to the right. An old index thus costs a few more steps and is never wrong; an
//! agent's next epoch renews it. Counted exactly, on a rack in this process.

use crate::{Row, to_f64};
use farmem::blink_tree::{Extent, IndexAgent};
use farmem::{BLinkTree, Error, Layout, Policy, Rack, Rng};
use std::collections::BTreeMap;

/// Entries of the fat root and nodes of the sets: all inner nodes of the published tree.
const EXTENT: Extent = Extent { ranges: 600, sets: 3, nodes: 3_600 };
const SEED: u64 = 53;
/// Look-ups by which each state is counted.
const LOOK_UPS: u64 = 2_000;

/// Visits of the same look-ups in four states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lazy {
    /// Number of look-ups.
    pub look_ups: u64,
    /// With the index published before the changes: the leaf, and steps to the right.
    pub old: u64,
    /// After one epoch of the agent.
    pub followed: u64,
    /// From the root.
    pub root: u64,
    /// Look-ups during the changes, through the ageing index, and their visits.
    pub during: (u64, u64),
    /// Keys inserted and keys removed.
    pub changes: (u64, u64),
}

/// Executes `operations` on a published tree of `keys` keys and checks all answers against a map. `reads` per
/// cent are look-ups; two of three others insert, and one removes.
///
/// # Errors
/// [`Error`] when there is not enough memory.
///
/// # Panics
/// Panics when an answer is wrong.
pub fn lazy(keys: u32, operations: u64, reads: u32) -> Result<Lazy, Error> {
    let rack = Rack::embedded_with(super::SERVERS.into(), 256 << 20)?;
    let mut client = rack.client("lazy")?;
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned)?;
    let mut model: BTreeMap<u64, u64> = (0..keys).map(|n| (u64::from(n) << 32, n.into())).collect();
    tree.load(&mut client, (0..keys).map(|n| (u64::from(n) << 32, n.into())), 14)?;
    tree.set_policy(Policy::Offload);
    let mut agent =
        IndexAgent::new(BLinkTree::open(&mut client, tree.address(), Layout::Partitioned)?, EXTENT)?;
    agent.step(&mut client)?;
    let mut rng = Rng::from_number(SEED);
    let mut any = |model: &BTreeMap<u64, u64>| {
        let near = u64::from(rng.below(keys)) << 32 | u64::from(rng.next_u32());
        let below = model.range(..=near).next_back().or_else(|| model.iter().next());
        (below.map(|(key, value)| (*key, *value)).expect("the tree is not empty"), near, rng.below(300))
    };
    let (mut during, mut changes) = ((0, 0), (0, 0));
    for operation in 0..operations {
        let ((key, value), near, chance) = any(&model);
        let before = client.tally().iterations;
        if chance < 3 * reads {
            assert_eq!(tree.get(&mut client, key)?, Some(value), "every key is found by an old index");
            during = (during.0 + 1, during.1 + client.tally().iterations - before);
        } else if chance % 3 < 2 {
            assert_eq!(tree.insert(&mut client, near, operation)?, model.insert(near, operation));
            changes.0 += 1;
        } else {
            assert_eq!(tree.remove(&mut client, key)?, model.remove(&key));
            changes.1 += 1;
        }
    }
    let wanted: Vec<(u64, u64)> = (0..LOOK_UPS).map(|_| any(&model).0).collect();
    let count = |client: &mut farmem::Client| -> Result<u64, Error> {
        let before = client.tally().iterations;
        for (key, value) in &wanted {
            assert_eq!(tree.get(client, *key)?, Some(*value));
        }
        Ok(client.tally().iterations - before)
    };
    let old = count(&mut client)?;
    // The first epoch sees the look-ups and publishes if that saves enough.
    agent.step(&mut client)?;
    let followed = count(&mut client)?;
    agent.withdraw(&mut client)?;
    let root = count(&mut client)?;
    Ok(Lazy { look_ups: LOOK_UPS, old, followed, root, during, changes })
}

/// Returns the rows: the index ages under these percentages of reads.
pub(in crate::fat) fn rows(quick: bool) -> Result<Vec<Row>, Error> {
    let (keys, operations) = if quick { (5_000, 5_000) } else { (50_000, 50_000) };
    let mut rows = Vec::new();
    for reads in [50, 75, 95] {
        let lazy = lazy(keys, operations, reads)?;
        let each = |visits: u64| to_f64(visits) / to_f64(lazy.look_ups);
        let row = |what: &str, visits: u64| {
            Row::figure(format!("fat.server.lazy.{reads}.{what}"), "per look-up", each(visits), lazy.look_ups)
        };
        rows.push(row("visits", lazy.old).beside(Some(each(lazy.root))));
        rows.push(row("extra", lazy.old.saturating_sub(lazy.followed)));
        rows.push(row("followed.visits", lazy.followed).beside(Some(each(lazy.root))));
        let (count, visits) = lazy.during;
        let during = Row::figure(
            format!("fat.server.lazy.{reads}.during.visits"),
            "per look-up",
            to_f64(visits) / to_f64(count),
            count,
        );
        rows.push(during.beside(Some(each(lazy.root))));
    }
    Ok(rows)
}
