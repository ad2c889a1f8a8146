//! `farmem migrate`: the places of a running rack's memory, and the move of memory to another node while
//! programs use it.

use crate::args::Migrate;
use crate::output::{self, Report};
use crate::{End, Failure};
use farmem::api::RackOverview;
use farmem::{NodeId, RackConfig};
use serde::Serialize;

#[derive(Serialize)]
struct Moves {
    moved: Vec<Move>,
    bytes: u64,
}

#[derive(Serialize)]
struct Move {
    base: String,
    bytes: u64,
    from: u16,
    to: u16,
}

impl Report for Moves {
    fn text(&self) -> String {
        let rows: Vec<_> = self
            .moved
            .iter()
            .map(|m| vec![m.base.clone(), m.bytes.to_string(), m.from.to_string(), m.to.to_string()])
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
    /// Parts of the allocation on other nodes.
    moved: Vec<Part>,
}

#[derive(Serialize)]
struct Part {
    base: String,
    bytes: u64,
    node: u16,
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
            let row = |first: String, bytes: u64, node: u16| {
                vec![first, bytes.to_string(), vma.domain.clone(), node.to_string()]
            };
            rows.push(row(vma.base.clone(), vma.bytes, vma.node));
            rows.extend(vma.moved.iter().map(|part| row(format!("  {}", part.base), part.bytes, part.node)));
        }
        output::table(&["node", "bytes", "allocated"], &nodes)
            + &output::table(&["first byte", "bytes", "domain", "on node"], &rows)
    }
}

pub(crate) fn run(args: &Migrate) -> Result<End, Failure> {
    let config = RackConfig::load(&args.rack)?;
    let (Some(base), Some(node)) = (args.base, args.node) else {
        output::print(&whereabouts(&config)?, args.json);
        return Ok(End::Fine);
    };
    let mut moved = Vec::new();
    let result = farmem::migrate(&config, base, args.len, NodeId(node), &mut |m| {
        moved.push(Move { base: hex(m.base), bytes: m.size, from: m.from.0, to: m.to.0 });
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
            moved: inside.map(|m| Part { base: hex(m.base), bytes: m.size, node: m.node }).collect(),
        }
    });
    Ok(Whereabouts { nodes: nodes.collect(), allocations: allocations.collect() })
}

fn hex(addr: u64) -> String {
    format!("{addr:#x}")
}
