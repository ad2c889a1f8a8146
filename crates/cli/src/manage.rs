//! `farmem status`, `farmem free`, `farmem leave`: the hosts and domains of a running rack, and the release
//! of unused memory.

use crate::args::{Free, Leave, Status};
use crate::outcome::{End, Failure};
use crate::output::{self, Report, count};
use farmem::RackConfig;
use farmem::api::{
    DomainUse, HostUse, LossCounts, NodeInfo, ProofCounts, RackOverview, RackUsage, VmaInfo, VmaUse,
};
use farmem::manage;
use serde::Serialize;
use std::io::{self, BufRead as _, IsTerminal as _};

#[derive(Serialize)]
struct Everything {
    switch: Switch,
    index: Vec<Switch>,
    nodes: Vec<NodeInfo>,
    #[serde(flatten)]
    usage: RackUsage,
}

/// The rack's switch, or one of the index.
#[derive(Serialize)]
struct Switch {
    name: String,
    answers: bool,
}

impl Report for Everything {
    fn text(&self) -> String {
        let Self { switch, index, nodes, usage } = self;
        let RackUsage { hosts, domains, vmas, losses, proofs, .. } = usage;
        let state = |answers: bool| String::from(if answers { "up" } else { "down" });
        let switches = [switch].into_iter().chain(index);
        let switches = switches.map(|switch| {
            let nothing = String::new;
            vec![switch.name.clone(), state(switch.answers), nothing(), nothing(), nothing()]
        });
        let nodes = nodes.iter().map(|node| {
            let name = format!("{} {}", node.node, node.name);
            vec![name, state(node.answers), count(node.capacity), count(node.allocated), count(node.lost)]
        });
        let roles: Vec<_> = switches.chain(nodes).collect();
        let hosts: Vec<_> = hosts.iter().map(host_row).collect();
        let domain_rows: Vec<_> = domains.iter().map(domain_row).collect();
        let name = |domain: u32| {
            let found = domains.iter().find(|row| row.domain == domain);
            found.map_or_else(|| domain.to_string(), |row| row.name.clone())
        };
        let vma_row = |vma: &VmaUse| {
            let to: Vec<String> = vma.granted_to.iter().map(|&to| name(to)).collect();
            let stays = if vma.durable { "durable" } else { "" };
            let base = format!("{:#x}", vma.base);
            vec![vma.id.to_string(), base, count(vma.size), name(vma.domain), stays.into(), to.join(" ")]
        };
        let vma_rows: Vec<_> = vmas.iter().map(vma_row).collect();
        let LossCounts { nodes_silent, nodes_emptied, bytes_lost } = losses;
        let ProofCounts { cookies, wrong, proven } = proofs;
        let failures = format!(
            "since the control plane started: {nodes_silent} times a memory node stopped answering, {nodes_emptied} times one joined again with empty memory, {} bytes lost\n\
             addresses of joining members: {proven} proven, {cookies} cookies sent, {wrong} wrong cookies shown\n",
            count(*bytes_lost)
        );
        output::table(&["role", "state", "bytes", "allocated", "lost"], &roles)
            + &failures
            + &output::table(
                &["host", "generation", "caches", "lease left", "domains", "connections", "objects open"],
                &hosts,
            )
            + &output::table(
                &[
                    "domain",
                    "hosts",
                    "processes",
                    "allocations",
                    "bytes",
                    "durable bytes",
                    "lost bytes",
                    "objects",
                    "goes in",
                ],
                &domain_rows,
            )
            + &output::table(
                &["allocation", "first byte", "bytes", "domain", "stays", "granted to"],
                &vma_rows,
            )
    }
}

fn host_row(host: &HostUse) -> Vec<String> {
    vec![
        format!("{} {}", host.host, host.name),
        host.generation.to_string(),
        if host.caches { "yes".into() } else { String::new() },
        seconds(host.lease_left_ms),
        host.domains.len().to_string(),
        host.connections.to_string(),
        host.objects.to_string(),
    ]
}

fn domain_row(row: &DomainUse) -> Vec<String> {
    let goes = if row.hosts.is_empty() && row.bytes == row.durable_bytes && row.durable_bytes > 0 {
        String::from("stays")
    } else {
        seconds(row.idle_left_ms)
    };
    vec![
        format!("{} {}", row.domain, row.name),
        row.hosts.len().to_string(),
        row.processes.to_string(),
        row.vmas.to_string(),
        count(row.bytes),
        count(row.durable_bytes),
        count(row.lost),
        row.objects.to_string(),
        goes,
    ]
}

fn seconds(millis: Option<u64>) -> String {
    millis.map_or_else(String::new, |millis| format!("{} s", millis.div_ceil(1000)))
}

pub(crate) fn status(args: &Status) -> Result<End, Failure> {
    let config = RackConfig::load(&args.rack)?;
    let RackOverview { nodes, index, switch_answers, .. } = farmem::serve::overview(&config)?;
    let switch = Switch { name: "switch".into(), answers: switch_answers };
    let index = index.into_iter().map(|info| Switch { name: info.name, answers: info.answers }).collect();
    output::print(&Everything { switch, index, nodes, usage: manage::usage(&config)? }, args.json);
    Ok(End::Fine)
}

/// Report of freed and kept memory.
#[derive(Serialize)]
struct Freed {
    domain: String,
    allocations: u64,
    bytes: u64,
    objects: Vec<String>,
    /// Number of processes in the domain. Their memory is freed with them.
    processes: u64,
}

impl Report for Freed {
    fn text(&self) -> String {
        let Self { domain, allocations, bytes, objects, processes } = self;
        let mut text = format!("domain {domain}: {allocations} allocations of {} bytes freed", count(*bytes));
        text += &format!(", {} objects without a name now\n", objects.len());
        if *processes > 0 {
            text += &format!("{processes} processes have their memory until they end\n");
        }
        text
    }
}

pub(crate) fn free(args: &Free) -> Result<End, Failure> {
    let config = RackConfig::load(&args.rack)?;
    let usage = manage::usage(&config)?;
    let number = args.domain.parse::<u32>().ok();
    let named = usage.domains.iter().find(|row| row.name == args.domain);
    let domain = named.or_else(|| usage.domains.iter().find(|row| Some(row.domain) == number));
    let Some(domain) = domain else { return Err(no_domain(&config, &args.domain)) };
    let wanted = |vma: &&VmaUse| {
        vma.domain == domain.domain && args.allocation.is_none_or(|allocation| allocation == vma.id)
    };
    let vmas: Vec<&VmaUse> = usage.vmas.iter().filter(wanted).collect();
    if let (Some(allocation), true) = (args.allocation, vmas.is_empty()) {
        let message = format!("domain {} has no allocation {allocation}", domain.name);
        return Err(Failure::environment(message, "`farmem status` lists those that can be freed so"));
    }
    let readers = vmas.iter().filter(|vma| !vma.granted_to.is_empty()).count();
    let in_use = match (domain.hosts.len(), readers) {
        (0, 0) => None,
        (0, readers) => Some(format!("{readers} of its allocations are granted to other domains")),
        (hosts, _) => Some(format!("{hosts} hosts use it")),
    };
    refuse_in_use("domain", &domain.name, in_use, args.force)?;
    let bytes = vmas.iter().map(|vma| vma.size).sum();
    let with_objects = args.allocation.is_none() && domain.objects > 0;
    let objects =
        if with_objects { format!(" and the names of {} objects", domain.objects) } else { String::new() };
    let lost = format!(
        "domain {}: {} allocations of {} bytes{objects} would be lost",
        domain.name,
        vmas.len(),
        count(bytes)
    );
    confirm(&lost, args.yes)?;
    for &vma in &vmas {
        manage::free(&config, vma)?;
    }
    let objects = if with_objects { manage::unlink_objects(&config, domain.domain)? } else { Vec::new() };
    let freed = Freed {
        domain: domain.name.clone(),
        allocations: vmas.len() as u64,
        bytes,
        objects,
        processes: domain.processes,
    };
    output::print(&freed, args.json);
    Ok(End::Fine)
}

/// Report of a removed host.
#[derive(Serialize)]
struct RemovedHost {
    host: u16,
    name: String,
    generation: u16,
    domains: u64,
    connections: u64,
}

impl Report for RemovedHost {
    fn text(&self) -> String {
        let Self { host, name, generation, domains, connections } = self;
        format!(
            "host {host} ({name}, generation {generation}) is fenced; {connections} connections and its sessions in {domains} domains are closed\n"
        )
    }
}

pub(crate) fn leave(args: &Leave) -> Result<End, Failure> {
    let config = RackConfig::load(&args.rack)?;
    let usage = manage::usage(&config)?;
    let number = args.member.parse::<u16>().ok();
    let named = usage.hosts.iter().find(|row| row.name == args.member);
    let host = named.or_else(|| usage.hosts.iter().find(|row| Some(row.host) == number));
    let Some(host) = host else {
        let overview = farmem::serve::overview(&config)?;
        let node = overview.nodes.iter().find(|node| node.name == args.member);
        let node = node.ok_or_else(|| unknown("host or memory node", &args.member))?;
        return leave_node(args, &config, &overview, node);
    };
    let uses = host.domains.len() as u64;
    let in_use = (uses > 0 || host.connections > 0).then(|| {
        let left = host.lease_left_ms.map_or_else(String::new, |left| {
            format!("; it is fenced in {} s unless it renews its lease", left.div_ceil(1000))
        });
        format!("it has sessions in {uses} domains and {} connections{left}", host.connections)
    });
    refuse_in_use("host", &host.name, in_use, args.force)?;
    let loses = if host.caches { ", and pages that it has not written back" } else { "" };
    let lost = format!(
        "host {} ({}): sessions in {uses} domains, {} connections, {} open objects{loses} would be lost",
        host.host, host.name, host.connections, host.objects
    );
    confirm(&lost, args.yes)?;
    manage::fence_host(&config, host.host, host.generation)?;
    let left = RemovedHost {
        host: host.host,
        name: host.name.clone(),
        generation: host.generation,
        domains: uses,
        connections: host.connections,
    };
    output::print(&left, args.json);
    Ok(End::Fine)
}

/// Maximum number of allocations that an error names.
const ALLOCATIONS_NAMED_MAX: usize = 8;

/// Takes a memory node out that has no bytes and no addresses of any allocation.
fn leave_node(
    args: &Leave,
    config: &RackConfig,
    overview: &RackOverview,
    node: &NodeInfo,
) -> Result<End, Failure> {
    let NodeInfo { node: number, name, allocated, .. } = node;
    let rack = args.rack.display();
    if *allocated > 0 {
        let message = format!("memory node {name} has {} bytes allocated", count(*allocated));
        let remedy = format!(
            "`farmem migrate --rack {rack}` lists them, and with `--base ADDRESS --node NODE` moves them to another node; then take {name} out"
        );
        return Err(Failure::environment(message, remedy));
    }
    let homed: Vec<&VmaInfo> = overview.vmas.iter().filter(|vma| vma.node == *number).collect();
    if !homed.is_empty() {
        let domain = |vma: &VmaInfo| {
            let named = overview.domains.iter().find(|(domain, _)| *domain == vma.domain);
            named.map_or_else(|| vma.domain.to_string(), |(_, name)| name.clone())
        };
        let shown = homed.iter().take(ALLOCATIONS_NAMED_MAX);
        let shown = shown.map(|vma| format!("{} of domain {} at {:#x}", vma.id, domain(vma), vma.base));
        let mut named = shown.collect::<Vec<_>>().join(", ");
        if let more @ 1.. = homed.len().saturating_sub(ALLOCATIONS_NAMED_MAX) {
            named += &format!(" and {more} more");
        }
        let message = format!(
            "memory node {name} has no bytes any more, and {} allocations whose bytes have moved keep their addresses there: {named}",
            homed.len()
        );
        let remedy = format!(
            "programs find the moved bytes by way of {name}, so keep its role running until the allocations are freed: by their programs, or by `farmem free --rack {rack} DOMAIN --allocation ID` when their contents are not needed (`farmem status --rack {rack}` lists them)"
        );
        return Err(Failure::environment(message, remedy));
    }
    confirm(&format!("memory node {name} would be no part of the rack any more"), args.yes)?;
    manage::remove_node(config, *number)?;
    output::print(&NodeLeft { node: *number, name: name.clone() }, args.json);
    Ok(End::Fine)
}

/// A memory node that was removed.
#[derive(Serialize)]
struct NodeLeft {
    node: u16,
    name: String,
}

impl Report for NodeLeft {
    fn text(&self) -> String {
        let Self { node, name } = self;
        format!(
            "memory node {name} (number {node}) is removed from the rack: end its role, which joins again when it starts\n"
        )
    }
}

fn unknown(what: &str, named: &str) -> Failure {
    Failure::environment(format!("there is no {what} {named:?}"), "`farmem status` lists those there are")
}

/// Returns the failure of `farmem free` for a name of no domain. The name of a memory node has another command.
fn no_domain(config: &RackConfig, named: &str) -> Failure {
    let overview = farmem::serve::overview(config);
    if overview.is_ok_and(|overview| overview.nodes.iter().any(|node| node.name == named)) {
        let remedy = format!(
            "name a domain (`farmem status` lists them); `farmem migrate` moves memory off {named}, and `farmem leave` takes it out"
        );
        return Failure::environment(format!("{named:?} is a memory node and no domain"), remedy);
    }
    unknown("domain", named)
}

fn refuse_in_use(what: &str, name: &str, why: Option<String>, force: bool) -> Result<(), Failure> {
    match why.filter(|_| !force) {
        None => Ok(()),
        Some(why) => {
            let remedy = "end its programs first; `--force` takes it from them, and they fail";
            Err(Failure::environment(format!("{what} {name} is in use: {why}"), remedy))
        }
    }
}

/// Prints the effects of the command, and asks for a confirmation.
fn confirm(lost: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::environment(lost, "nothing was done: say `--yes` if that is meant"));
    }
    output::note(&format!("{lost}; go on? [y/N]"));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(Failure::environment("nothing was done", ""))
}
