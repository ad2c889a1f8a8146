//! `farmem index plan --pods`: the cost of an index for the switches of a FatTree, tier by tier (Fat-B+Tree
//! IV-A).

use super::{
    Account, Allowed, Stage, Tree, allowed, budget_of, count, internal, reads, remedy, stage, tree_of,
};
use crate::args::IndexPlan;
use crate::outcome::{End, Failure};
use crate::output::{self, Report};
use farmem::{NodeId, VirtAddr};
use farmem_index::{
    Extent, FabricSwitch, NodeSet, Plan, RangeTables, SetNode, TreeSection, TreeView, divide,
};
use serde::Serialize;

/// Maximum number of servers: the maximum number of memory nodes in a rack.
const SERVERS_MAX: usize = 1_024;

/// Contents and cost of each tier.
#[derive(Serialize)]
struct FabricAccount {
    tree: Tree,
    servers: usize,
    tiers: Vec<Tier>,
    /// READs of a look-up from the root of the tree, including its leaf. `reads_with` counts from where the
    /// switches lead. `None` without look-ups.
    reads_without: Option<f64>,
    reads_with: Option<f64>,
    /// Budget of each switch.
    budget: Allowed,
    excess: Vec<String>,
    fits: bool,
}

#[derive(Serialize)]
struct Tier {
    tier: &'static str,
    switches: usize,
    /// Number of nodes in all switches of the tier. `nodes_most` counts the fullest switch.
    nodes: usize,
    ranges: usize,
    nodes_most: usize,
    /// Stages of the fullest switch.
    stages: Vec<Stage>,
    fits: bool,
}

impl Report for FabricAccount {
    fn text(&self) -> String {
        let Tree { keys, levels, inner_nodes, accesses } = &self.tree;
        let mut text = format!(
            "tree: {} keys on {} servers, {} inner nodes in {levels} levels, {} look-ups\n",
            count(*keys),
            self.servers,
            count(*inner_nodes),
            output::count(*accesses),
        );
        if let (Some(without), Some(with)) = (self.reads_without, self.reads_with) {
            text += &format!("READs of a look-up: {without:.2} without the index, {with:.2} with it\n");
        }
        for Tier { tier, switches, nodes, ranges, nodes_most, stages, .. } in &self.tiers {
            text += &format!("{tier}: {switches} switches, {} nodes", count(*nodes));
            text += &match ranges {
                0 => format!("; the fullest has {}:\n", count(*nodes_most)),
                _ => format!("; {ranges} ranges:\n"),
            };
            text += &Account::table(stages, &self.budget);
        }
        self.excess.iter().for_each(|line| text += &format!("{line}\n"));
        text + if self.fits { "It fits.\n" } else { "It does not fit.\n" }
    }
}

/// Returns the requested FatTree: a core, and `pods` aggregation switches with `edges` edge switches each.
/// Each edge switch has `servers` servers.
fn fat_tree(pods: u16, edges: u16, servers: u16) -> FabricSwitch {
    let edge = |n: u16| FabricSwitch {
        index: 1 + pods + n,
        servers: ((n - 1) * servers + 1..=n * servers).map(NodeId).collect(),
        below: Vec::new(),
    };
    let over = |index: u16, below: Vec<FabricSwitch>| FabricSwitch {
        index,
        servers: below.iter().flat_map(|switch| switch.servers.clone()).collect(),
        below,
    };
    let pod = |n: u16| over(1 + n, ((n - 1) * edges + 1..=n * edges).map(edge).collect());
    over(1, (1..=pods).map(pod).collect())
}

/// Returns the server that holds a node of a tree with `leaves` leaves. The leaves are divided evenly, in
/// order. An inner node is with its first leaf.
fn server_of(tree: &TreeView, leaves: usize, servers: usize, mut addr: VirtAddr) -> Option<NodeId> {
    while let Some(&first) = tree.node(addr).and_then(|node| node.children.first()) {
        addr = first;
    }
    // A bulk load numbers the leaves from 1, in nodes of 256 bytes.
    let leaf = usize::try_from(addr.0 / 256).ok()?.checked_sub(1)?;
    u16::try_from(1 + leaf * servers / leaves).ok().map(NodeId)
}

/// Plans an index. The command ends with 1 when the part of any switch does not fit.
pub(super) fn plan(args: &IndexPlan, pods: u16) -> Result<End, Failure> {
    let servers = usize::from(pods) * usize::from(args.edges) * usize::from(args.servers);
    if servers > SERVERS_MAX {
        let message = format!("{servers} servers are more than the {SERVERS_MAX} memory nodes of a rack");
        return Err(Failure::environment(message, "choose smaller values of --pods, --edges or --servers"));
    }
    let (tree, about) = tree_of(args)?;
    let leaves = about.keys.div_ceil(args.fill).max(1);
    let extent = Extent { ranges: args.ranges, sets: args.sets, nodes: args.nodes };
    if let Some(fault) = extent.fault() {
        let (have, what) = (fault.have, fault.what);
        let remedy = format!("choose {} to {}", fault.least, fault.most);
        return Err(Failure::environment(format!("{have} {what} are out of bounds"), remedy));
    }
    let core = fat_tree(pods, args.edges, args.servers);
    let root = tree.root().unwrap_or(VirtAddr(256));
    let parts = divide(&tree, (root, &[]), &core, extent, &|addr| server_of(&tree, leaves, servers, addr));
    let sets: Vec<Vec<SetNode>> = parts.iter().flat_map(|(_, part)| part.sets.clone()).collect();
    let of_core = parts.last().map_or(&[][..], |(_, part)| &part.ranges);
    let (without, with) = reads(&tree, of_core, &sets, about.accesses);
    let tier = |tier, first: u16, switches: u16| tier_of(args, tier, &parts, first..first + switches);
    let tiers =
        [tier("core", 1, 1)?, tier("aggregation", 2, pods)?, tier("edge", 2 + pods, pods * args.edges)?];
    let excess: Vec<String> = tiers.iter().flat_map(|(_, excess)| excess.clone()).collect();
    let account = FabricAccount {
        tree: about,
        servers,
        tiers: tiers.into_iter().map(|(tier, _)| tier).collect(),
        reads_without: without,
        reads_with: with,
        budget: allowed(args, 1),
        fits: excess.is_empty(),
        excess,
    };
    output::print(&account, args.json);
    Ok(if account.fits { End::Fine } else { End::Violation })
}

/// Returns a tier with its fullest switch, and the parts that do not fit.
fn tier_of(
    args: &IndexPlan,
    tier: &'static str,
    parts: &[(u16, TreeSection)],
    numbers: std::ops::Range<u16>,
) -> Result<(Tier, Vec<String>), Failure> {
    let nodes = |part: &TreeSection| part.sets.iter().map(Vec::len).sum::<usize>();
    let its: Vec<&TreeSection> =
        parts.iter().filter(|(index, _)| numbers.contains(index)).map(|(_, part)| part).collect();
    let fullest = its.iter().copied().max_by_key(|part| nodes(part));
    let is_core = tier == "core";
    let ranges = fullest.filter(|_| is_core).map(|part| RangeTables::new(&part.ranges)).transpose();
    let ranges = ranges.map_err(|error| internal(&error))?;
    let ranges =
        ranges.map(|tables| if args.default_results { tables.with_default_results() } else { tables });
    let sets: Result<Vec<NodeSet>, _> =
        fullest.iter().flat_map(|part| part.sets.clone()).map(NodeSet::new).collect();
    let sets = sets.map_err(|error| internal(&error))?;
    let plan = Plan::new(ranges.as_ref(), &sets, budget_of(args), 1, args.addr_bits);
    let excess = plan.excess();
    let stages = plan.stages().iter().enumerate().map(|(at, used)| stage(&plan, &excess, at, used)).collect();
    let said = excess.iter().map(|excess| format!("{tier}: {excess}: {}", remedy(excess))).collect();
    let of_tier = Tier {
        tier,
        switches: its.len(),
        nodes: its.iter().map(|part| nodes(part)).sum(),
        ranges: fullest.filter(|_| is_core).map_or(0, |part| part.ranges.len()),
        nodes_most: fullest.map_or(0, nodes),
        stages,
        fits: excess.is_empty(),
    };
    Ok((of_tier, said))
}
