//! A B-link tree on all memory nodes, with its inner nodes in the switch: look-ups and a range.

use super::{ActOutcome, to_f64};
use crate::outcome::Failure;
use crate::output;
use farmem::blink_tree::{Extent, publish, withdraw};
use farmem::{BLinkTree, Client, Error, Layout, Policy, Rack, RackConfig};
use std::time::Instant;

/// Number of keys: every third number.
const KEYS: u64 = 50_000;
const STEP: u64 = 3;
/// Pairs of a leaf after loading, of 15 at most.
const FILL: usize = 14;
/// Number of look-ups.
const LOOK_UPS: u64 = 2_000;
/// Number of keys in the range.
const RANGE: u64 = 1_000;

pub(super) fn play(config: &RackConfig) -> Result<ActOutcome, Failure> {
    let mut client = Rack::running(config.clone()).client("tour")?;
    let mut tree = BLinkTree::create(&mut client, Layout::Scattered { granularity: 4 << 10 })?;
    tree.set_policy(Policy::Offload);
    let shown = on_tree(&mut client, &mut tree);
    withdraw(&mut client, tree.tree().root)?;
    tree.destroy(&mut client)?;
    shown
}

fn on_tree(client: &mut Client, tree: &mut BLinkTree) -> Result<ActOutcome, Failure> {
    let pairs = (0..usize::try_from(KEYS).expect("a few")).map(|n| (n as u64 * STEP, n as u64));
    tree.load(client, pairs, FILL)?;
    // The nodes learn the program.
    look_ups(client, tree, 100)?;
    let root = look_ups(client, tree, LOOK_UPS)?;
    let section = tree.section(client, Extent::default())?;
    let nodes = section.ranges.len() + section.sets.iter().map(Vec::len).sum::<usize>();
    publish(client, &[section])?;
    let index = look_ups(client, tree, LOOK_UPS)?;
    let first = KEYS / 2;
    let begin = Instant::now();
    let found = tree.scan(client, first * STEP..=(first + RANGE - 1) * STEP, usize::MAX)?;
    let range = begin.elapsed();
    let expected = (first..first + RANGE).map(|n| (n * STEP, n));
    let nanos = |time: std::time::Duration| output::time(time.as_secs_f64() * 1e9);
    Ok(ActOutcome {
        figures: format!(
            "from the root: {:.1} nodes a look-up; through the index: {:.1}; a range of {} keys: {}",
            to_f64(root.visits) / to_f64(LOOK_UPS),
            to_f64(index.visits) / to_f64(LOOK_UPS),
            output::count(RANGE),
            nanos(range)
        ),
        sentence: format!(
            "The switch led each look-up past the nodes above its leaf, for {} nodes of the tree in its tables.",
            output::count(nodes as u64)
        ),
        wrong_answers: root.wrong + index.wrong + u64::from(!found.into_iter().eq(expected)),
    })
}

/// Counts of look-ups.
struct LookUps {
    /// Number of visited nodes.
    visits: u64,
    wrong: u64,
}

fn look_ups(client: &mut Client, tree: &BLinkTree, count: u64) -> Result<LookUps, Error> {
    let before = client.tally().iterations;
    let mut wrong = 0;
    for n in (0..count).map(|n| n * (KEYS / LOOK_UPS)) {
        wrong += u64::from(tree.get(client, n * STEP)? != Some(n));
    }
    Ok(LookUps { visits: client.tally().iterations - before, wrong })
}
