//! `farmem migrate`: the places of a running rack's memory, and the move of memory to another node while
//! programs use it.

use crate::args::Migrate;
use crate::outcome::{End, Failure};
use crate::output::{self, Report};
use farmem::api::{NodeInfo, RackOverview};
use farmem::{NodeId, RackConfig};
use serde::Serialize;

#[derive(Serialize)]
struct Moves {
    moved: Vec<RegionMove>,
    bytes: u64,
}

#[derive(Serialize)]
struct RegionMove {
    base: String,
    bytes: u64,
    from: u16,
    from_name: String,
    to: u16,
    to_name: String,
}

impl Report for Moves {
    fn text(&self) -> String {
        let rows: Vec<_> = self
            .moved
            .iter()
            .map(|m| {
                let (from, to) = (format!("{} {}", m.from, m.from_name), format!("{} {}", m.to, m.to_name));
                vec![m.base.clone(), m.bytes.to_string(), from, to]
            })
            .collect();
        output::table(&["first byte", "bytes", "from node", "to node"], &rows)
    }
}

#[derive(Serialize)]
struct Whereabouts {
    nodes: Vec<Node>,
    allocations: Vec<Allocation>,
}

#[derive(Serialize)]
struct Node {
    node: u16,
    name: String,
    bytes: u64,
    allocated: u64,
}

#[derive(Serialize)]
struct Allocation {
    base: String,
    bytes: u64,
    domain: String,
    node: u16,
    node_name: String,
    /// Parts of the allocation on other nodes.
    moved: Vec<Part>,
}

#[derive(Serialize)]
struct Part {
    base: String,
    bytes: u64,
    node: u16,
    node_name: String,
}

impl Report for Whereabouts {
    fn text(&self) -> String {
        let nodes: Vec<_> = self
            .nodes
            .iter()
            .map(|n| vec![format!("{} {}", n.node, n.name), n.bytes.to_string(), n.allocated.to_string()])
            .collect();
        let mut rows = Vec::new();
        for vma in &self.allocations {
            let row = |first: String, bytes: u64, node: u16, name: &str| {
                vec![first, bytes.to_string(), vma.domain.clone(), format!("{node} {name}")]
            };
            rows.push(row(vma.base.clone(), vma.bytes, vma.node, &vma.node_name));
            let parts = vma.moved.iter();
            rows.extend(
                parts.map(|part| row(format!("  {}", part.base), part.bytes, part.node, &part.node_name)),
            );
        }
        output::table(&["node", "bytes", "allocated"], &nodes)
            + &output::table(&["first byte", "bytes", "domain", "on node"], &rows)
    }
}

pub(crate) fn run(args: &Migrate) -> Result<End, Failure> {
    let config = RackConfig::load(&args.rack)?;
    let (Some(base), Some(node)) = (args.base, &args.node) else {
        output::print(&whereabouts(&config)?, args.json);
        return Ok(End::Fine);
    };
    let nodes = farmem::serve::overview(&config)?.nodes;
    let node = find_node(&nodes, node)?.node;
    let mut moved = Vec::new();
    let result = farmem::migrate(&config, base, args.len, NodeId(node), &mut |m| {
        let (from, to) = (m.from.0, m.to.0);
        let (from_name, to_name) = (name_of(&nodes, from), name_of(&nodes, to));
        moved.push(RegionMove { base: hex(m.base), bytes: m.size, from, from_name, to, to_name });
    });
    let bytes = moved.iter().map(|m| m.bytes).sum();
    if !moved.is_empty() || result.is_ok() {
        output::print(&Moves { moved, bytes }, args.json);
    }
    result?;
    Ok(End::Fine)
}

fn whereabouts(config: &RackConfig) -> Result<Whereabouts, Failure> {
    let RackOverview { nodes, vmas, moved, domains, .. } = farmem::serve::overview(config)?;
    let known = nodes.clone();
    let nodes = nodes.into_iter().map(|n| Node {
        node: n.node,
        name: n.name,
        bytes: n.capacity,
        allocated: n.allocated,
    });
    let allocations = vmas.iter().map(|vma| {
        let name = domains.iter().find(|(domain, _)| *domain == vma.domain).map(|(_, name)| name.clone());
        let inside = moved.iter().filter(|part| part.base.wrapping_sub(vma.base) < vma.size);
        Allocation {
            base: hex(vma.base),
            bytes: vma.size,
            domain: name.unwrap_or_else(|| vma.domain.to_string()),
            node: vma.node,
            node_name: name_of(&known, vma.node),
            moved: inside
                .map(|m| {
                    let node_name = name_of(&known, m.node);
                    Part { base: hex(m.base), bytes: m.size, node: m.node, node_name }
                })
                .collect(),
        }
    });
    Ok(Whereabouts { nodes: nodes.collect(), allocations: allocations.collect() })
}

/// Returns the node of this name or number.
pub(crate) fn find_node<'a>(nodes: &'a [NodeInfo], named: &str) -> Result<&'a NodeInfo, Failure> {
    let number = named.parse::<u16>().ok();
    let found = nodes.iter().find(|node| node.name == named);
    found.or_else(|| nodes.iter().find(|node| Some(node.node) == number)).ok_or_else(|| {
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let message = format!("there is no memory node {named:?}");
        Failure::environment(message, format!("the rack's memory nodes are: {}", names.join(", ")))
    })
}

fn name_of(nodes: &[NodeInfo], node: u16) -> String {
    nodes.iter().find(|known| known.node == node).map(|known| known.name.clone()).unwrap_or_default()
}

fn hex(addr: u64) -> String {
    format!("{addr:#x}")
}
