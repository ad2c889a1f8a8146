//! Tests of a rack by `farmem doctor --rack`, from the machine on which it runs.
//!
//! Most failures in a rack look like "no answer". Causes are packets that exceed the MTU, a firewall, another
//! token, another build, or too little memory. Each cause has a finding of its own.

use crate::config::roles::is_of_this_machine;
use crate::config::terms::Transport;
use crate::config::{NodeConfig, RackConfig};
use crate::error::Error;
use crate::link::{BUILD, api_client};
use crate::rack::Rack;
use farmem_api::ApiCallError;
use farmem_control::api::{ErrorCode, NodeInfo, Overview, RackOverview, RackUsage, Usage};
use farmem_link::doctor::{Finding, Support, available_memory, is_refused, path_mtu};
use farmem_wire::message::PAGE_LEN;
use farmem_wire::{NodeId, Pmtu, UDP_PORT};
use std::fs;
use std::net::IpAddr;

/// Maximum number of characters of a machine's name within the name of the trial domain.
const MACHINE_MAX: usize = 40;

/// Number of bytes around the payload of the largest packet: UDP, BTH, RETH or DETH with the request's
/// header, ICRC.
const AROUND_PAYLOAD: usize = 8 + 12 + 16 + 4;

impl RackConfig {
    /// Returns findings for each role: whether the rack's largest packets fit the path to it, and whether its
    /// port is refused. Empty for shared memory.
    #[must_use]
    pub fn examine_links(&self) -> Vec<Finding> {
        if self.transport != Transport::Udp {
            return Vec::new();
        }
        let mut findings = Vec::new();
        for role in self.roles() {
            let (name, address) = (role.name, role.address);
            findings.push(self.examine_mtu(&name, address));
            if !is_of_this_machine(address) {
                findings.push(examine_port(&name, address));
            }
        }
        findings
    }

    fn examine_mtu(&self, name: &str, address: IpAddr) -> Finding {
        let name = format!("MTU to {name}");
        let around = AROUND_PAYLOAD + if address.is_ipv4() { 20 } else { 40 };
        let (pmtu, need) = (self.pmtu.bytes(), self.pmtu.bytes() + around);
        let (state, detail, remedy) = match path_mtu(address) {
            Ok(mtu) if need <= mtu => {
                (Support::Ok, format!("{address}: {mtu}, and packets of {need} bytes at most"), String::new())
            }
            Ok(mtu) => {
                let all = [Pmtu::B4096, Pmtu::B2048, Pmtu::B1024, Pmtu::B512, Pmtu::B256];
                let fits = all.into_iter().find(|fits| fits.bytes() + around <= mtu);
                let smaller = fits
                    .map_or_else(String::new, |fits| format!("`pmtu = {}` in rack.toml, or ", fits.bytes()));
                (
                    Support::Missing,
                    format!(
                        "{address}: {mtu}, and `pmtu = {pmtu}` makes packets of {need} bytes, which cannot be sent"
                    ),
                    format!(
                        "{smaller}a larger MTU of every link on the path: `ip link set dev LINK mtu {need}`"
                    ),
                )
            }
            Err(why) => {
                (Support::Missing, format!("{address}: no route: {why}"), "look at `ip route get`".into())
            }
        };
        Finding { name, state, detail, remedy }
    }

    /// Returns findings on the rack's service. The rack must answer to this token and build, its nodes must
    /// have the described memory, and reads must return written bytes. Allocates a page at each node and
    /// frees it. If no role answers, there is one finding.
    #[must_use]
    pub fn examine_service(&self) -> Vec<Finding> {
        let mut findings = vec![self.examine_memory()];
        let mut foreign = false;
        let overview = api_client(self).and_then(|mut api| {
            api.call(Overview {}).map_err(|error| {
                foreign = matches!(error, ApiCallError::Foreign { .. });
                error.into()
            })
        });
        findings.push(self.examine_api(&overview, foreign));
        let Ok(overview) = overview else { return findings };
        let usage = api_client(self).and_then(|mut api| Ok(api.call(Usage {})?));
        findings.push(examine_builds(usage, &overview));
        findings.extend(self.nodes.iter().map(|node| self.examine_node(node, &overview)));
        let nodes = overview.nodes.iter().filter(|node| node.card == 0);
        findings.extend(self.try_nodes(nodes));
        findings
    }

    fn examine_api(&self, overview: &Result<RackOverview, Error>, foreign: bool) -> Finding {
        let name = "API of the control plane".to_owned();
        let at = self.api_door().map(|(door, _)| door.to_string()).unwrap_or_default();
        let (state, detail, remedy) = match overview {
            Ok(overview) => {
                let switch = match (overview.switch, overview.switch_answers) {
                    (false, _) => "the switch has not joined",
                    (true, false) => "the switch does not answer",
                    (true, true) => "the switch has joined",
                };
                let detail = format!("{at}: answers; {} memory nodes, {switch}", overview.nodes.len());
                let is_well = overview.switch && overview.switch_answers;
                let state = if is_well { Support::Ok } else { Support::Missing };
                let remedy = if is_well { String::new() } else { self.look_at("the switch", "switch", "") };
                (state, detail, remedy)
            }
            Err(error) if error.code() == Some(ErrorCode::Unauthorized) => (
                Support::Missing,
                format!("{at}: refuses this token: {error}"),
                "copy the token of the rack: on the control plane's machine into its state directory, on another machine with the output of `farmem join --rack rack.toml`"
                    .into(),
            ),
            Err(error) if foreign => (
                Support::Missing,
                error.to_string(),
                format!("run one build of farmem everywhere; this one is {BUILD}"),
            ),
            Err(error @ (Error::Join { .. } | Error::Untrusted { .. })) => {
                (Support::Missing, error.to_string(), error.remedy())
            }
            Err(error) => {
                let port = self.control.listen.map(|listen| format!(", and let TCP port {} through", listen.port()));
                let remedy = self.look_at("the control plane", "control", "");
                (Support::Missing, error.to_string(), format!("{remedy}{}", port.unwrap_or_default()))
            }
        };
        Finding { name, state, detail, remedy }
    }

    /// Compares the memory that this machine's nodes need with the memory that is free.
    fn examine_memory(&self) -> Finding {
        let name = "memory for the nodes".to_owned();
        let here = self
            .nodes
            .iter()
            .filter(|node| self.transport == Transport::Shm || is_of_this_machine(node.address));
        let wanted: u64 = here.map(|node| node.memory).sum();
        let (wanted_mib, room) = (wanted >> 20, available_memory());
        let (state, detail, remedy) = match room {
            Some(room) if wanted > room => (
                Support::Degraded,
                format!(
                    "the nodes of this machine are to give {wanted_mib} MiB, and {} MiB are left",
                    room >> 20
                ),
                "set less `memory` in rack.toml, or use other machines: a node that uses more memory than the machine has is killed",
            ),
            Some(room) => (
                Support::Ok,
                format!(
                    "the nodes of this machine are to give {wanted_mib} MiB; {} MiB are left",
                    room >> 20
                ),
                "",
            ),
            None => {
                (Support::Degraded, "the free memory of this machine is unknown".to_owned(), "mount /proc")
            }
        };
        Finding { name, state, detail, remedy: remedy.to_owned() }
    }

    /// Allocates, writes, reads and frees a page at each node. These operations do not pass through the
    /// switch, unlike traversals and coherent pages. So this method reads the first intact page once more
    /// through the switch.
    fn try_nodes<'a>(&self, nodes: impl Iterator<Item = &'a NodeInfo>) -> Vec<Finding> {
        let missing = |name: String, error: &Error| Finding {
            name,
            state: Support::Missing,
            detail: error.to_string(),
            remedy: error.remedy(),
        };
        let mut client = match Rack::running(self.clone()).client(&trial_domain()) {
            Ok(client) => client,
            Err(error) => return vec![missing("a client of the rack".into(), &error)],
        };
        let (mut findings, mut by_switch) = (Vec::new(), None);
        let judged = |name: String, at: &str, how: &str, tried: Result<bool, Error>| match tried {
            Ok(true) => {
                Finding { name, state: Support::Ok, detail: format!("{at}: {how}"), remedy: String::new() }
            }
            Ok(false) => Finding {
                name,
                state: Support::Missing,
                detail: format!("{at}: a read did not return the written bytes"),
                remedy: "do not use this node, and report the fault".into(),
            },
            Err(error) => missing(name, &error),
        };
        for node in nodes {
            let name = format!("bytes of {}", node.name);
            let tried = client.allocate_on(PAGE_LEN as u64, NodeId(node.node)).and_then(|vma| {
                let mut word = [0; 8];
                let tried =
                    client.write(vma.base, b"farmem?!").and_then(|()| client.read(vma.base, &mut word));
                let tried = tried.map(|()| word == *b"farmem?!");
                if by_switch.is_none() && matches!(tried, Ok(true)) {
                    let mut word = [0; 8];
                    let read = client.region_read(vma.base, &mut word);
                    by_switch = Some((read.map(|()| word == *b"farmem?!"), node.name.clone()));
                }
                client.free(vma.base)?;
                tried
            });
            findings.push(judged(name, &node.gid, "written and read", tried));
        }
        let name = "bytes by way of the switch".to_owned();
        findings.push(match by_switch {
            Some((tried, node)) => judged(name, &format!("those of {node}"), "read", tried),
            None => Finding {
                name,
                state: Support::Degraded,
                detail: "not tested, because no memory node returns its bytes".into(),
                remedy: "see the findings of the memory nodes".into(),
            },
        });
        findings
    }
}

/// Returns the name of the domain for trial allocations. Each machine always uses the same name, and has a
/// domain of its own, because a domain has a key.
fn trial_domain() -> String {
    let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let known = |letter: &char| letter.is_ascii_alphanumeric() || "._-".contains(*letter);
    format!("farmem-doctor-{}", machine.chars().filter(known).take(MACHINE_MAX).collect::<String>())
}

/// Checks that all members of the rack run this build.
fn examine_builds(usage: Result<RackUsage, Error>, overview: &RackOverview) -> Finding {
    let name = "builds of the rack".to_owned();
    let builds = match usage {
        Ok(usage) => usage.builds,
        Err(error) => {
            let (state, remedy) = (Support::Missing, error.remedy());
            return Finding { name, state, detail: error.to_string(), remedy };
        }
    };
    // The lists of the overview contain neither the control plane nor the switch.
    let roles = 1 + usize::from(overview.switch);
    let all = roles + overview.nodes.len() + overview.index.len() + overview.hosts.len();
    let said: usize = builds.iter().map(|build| build.members.len()).sum();
    let silent = match all.saturating_sub(said) {
        0 => String::new(),
        silent => format!("; {silent} members report no build, for example cards"),
    };
    let others: Vec<String> = builds
        .iter()
        .filter(|its| its.build != BUILD)
        .map(|its| format!("{}: {}", its.build, its.members.join(", ")))
        .collect();
    if others.is_empty() {
        let detail = format!("{BUILD}, as this command's: {said} members{silent}");
        return Finding { name, state: Support::Ok, detail, remedy: String::new() };
    }
    Finding {
        name,
        state: Support::Missing,
        detail: format!("this command is {BUILD}; of other builds are {}{silent}", others.join("; ")),
        remedy: "run one build of farmem on all machines, because different builds are incompatible: stop the named members, and start them from the build of the others"
            .into(),
    }
}

impl RackConfig {
    /// Checks that a node has joined and contributes the described memory.
    fn examine_node(&self, node: &NodeConfig, overview: &RackOverview) -> Finding {
        let joined = overview.nodes.iter().find(|joined| joined.name == node.name);
        let title = format!("memory node {}", node.name);
        let gone = match joined {
            None => "has not joined",
            Some(joined) if !joined.answers => "does not answer",
            Some(joined) => return examine_size(node, joined),
        };
        let remedy = self.look_at(&title, "node", &node.name);
        Finding {
            name: format!("memory of {}", node.name),
            state: Support::Missing,
            detail: gone.into(),
            remedy,
        }
    }

    /// Returns the remedy for an absent role: check its unit, or `farmem up` on a rack of one machine.
    pub(super) fn look_at(&self, title: &str, role: &str, name: &str) -> String {
        if self.is_of_one_machine() {
            return format!(
                "see the output of `farmem up` about {title}; if the rack does not run, start it"
            );
        }
        let unit = if name.is_empty() { format!("farmem@{role}") } else { format!("farmem-{role}@{name}") };
        format!("check on its machine that {title} runs (`systemctl status {unit}`, docs/operate.md)")
    }
}

/// Checks that a node contributes the described memory.
fn examine_size(node: &NodeConfig, joined: &NodeInfo) -> Finding {
    let name = format!("memory of {}", node.name);
    let (state, detail, remedy) = match joined {
        joined if joined.capacity != node.memory => (
            Support::Degraded,
            format!("gives {} MiB, and {} MiB in rack.toml", joined.capacity >> 20, node.memory >> 20),
            "the node was started from another description: restart it to change that, which loses its memory",
        ),
        joined => (
            Support::Ok,
            format!("{} MiB, {} MiB of them allocated", joined.capacity >> 20, joined.allocated >> 20),
            "",
        ),
    };
    Finding { name, state, detail, remedy: remedy.to_owned() }
}

fn examine_port(name: &str, address: IpAddr) -> Finding {
    let name = format!("UDP port {UDP_PORT} of {name}");
    let (state, detail, remedy) = match is_refused(address, UDP_PORT) {
        Ok(true) => (
            Support::Missing,
            format!("{address}: its machine reports that the port is closed"),
            format!(
                "start the role; if a firewall there rejects UDP port {UDP_PORT}, allow it in both directions"
            ),
        ),
        Ok(false) => (
            Support::Ok,
            format!("{address}: not refused; a firewall that drops packets silently looks the same"),
            String::new(),
        ),
        Err(why) => (
            Support::Missing,
            format!("{address}: cannot be reached: {why}"),
            "look at `ip route get`".into(),
        ),
    };
    Finding { name, state, detail, remedy }
}
