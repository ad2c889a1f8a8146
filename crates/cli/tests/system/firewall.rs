//! Tests of racks whose packets are blocked, and of the reports: a firewall on UDP port 4791, and a `pmtu`
//! above the MTU of a link. Each rack has its own network namespace, with its roles and clients.

use crate::process::{Ended, Running, is_root, run_command, signal};
use crate::rack::{Description, text};
use farmem_testkit::Namespaces;
use serde_json::Value;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Debian's path of nft, which is not in the PATH of an ordinary user.
const NFT: &str = "/usr/sbin/nft";

/// Network namespace with a rack in it.
struct Walled {
    namespaces: Namespaces,
    description: Description,
    up: Option<Running>,
}

impl Walled {
    /// Returns `None`, with a note, without nft or network namespaces.
    fn new(test: &'static str, more: &'static str) -> Option<Self> {
        if !is_root() || Command::new(NFT).arg("--version").output().is_err() {
            // Written directly to standard error, because the test harness hides the output of passing tests.
            writeln!(std::io::stderr(), "skipped: {test}: only root may, with {NFT} (scripts/setup)")
                .expect("standard error is open");
            return None;
        }
        let namespaces = Namespaces::new(test, &["wall"])?;
        namespaces.ip("wall", "link set lo up");
        let description = Description::new(test, "udp").with(more);
        let mut walled = Self { namespaces, description, up: None };
        let mut up = Running::start(walled.farmem(&["up", &walled.description.file(), "--json"]));
        assert!(!up.line().is_empty(), "the rack did not come up: {:?}", up.ended());
        walled.up = Some(up);
        Some(walled)
    }

    /// Returns a command in the rack's network namespace.
    fn inside(&self, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespaces.full("wall")]).args(words).stdin(Stdio::null());
        command
    }

    fn farmem(&self, words: &[&str]) -> Command {
        self.inside(&[&[env!("CARGO_BIN_EXE_farmem")], words].concat())
    }

    /// Adds a firewall rule for packets of clients to UDP port 4791 of an address.
    fn wall(&self, to: &str, verdict: &str) {
        let first = self.description.address(100);
        let rules = format!(
            "table inet wall {{ chain in {{ type filter hook input priority 0; \
             ip saddr {first}-{} ip daddr {to} udp dport 4791 {verdict}; }}; }}",
            self.description.address(120)
        );
        let ended = run_command(self.inside(&[NFT, &rules]));
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }

    /// The firewall is gone.
    fn unwall(&self) {
        let ended = run_command(self.inside(&[NFT, "delete table inet wall"]));
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }

    fn findings(&self) -> Vec<Value> {
        let words = ["doctor", "--json", "--rack", &self.description.file()];
        run_command(self.farmem(&words)).report()["findings"].as_array().expect("a list").clone()
    }

    /// Runs a program that reads, writes and traverses.
    fn program(&self) -> Ended {
        let file = self.description.file();
        let words = ["webservice", "--records", "95", "--operations", "100", "--json", "--rack", &file];
        run_command(self.farmem(&words))
    }

    fn stop(mut self) {
        let mut up = self.up.take().expect("it runs");
        signal(up.pid(), "INT");
        assert_eq!(up.ended().code, Some(0));
    }
}

/// Returns the state of a finding, and its message with the remedy.
fn of(findings: &[Value], name: &str) -> (String, String) {
    let found: Vec<_> = findings.iter().filter(|f| f["name"] == name).collect();
    assert_eq!(found.len(), 1, "{name} in {findings:?}");
    (text(&found[0]["state"]), format!("{} {}", text(&found[0]["detail"]), text(&found[0]["remedy"])))
}

/// A firewall drops or rejects the packets of clients to a memory node. `farmem doctor --rack` and a program
/// name the node, its address and the port, and suggest checks, including the firewall. The other node is
/// healthy.
#[test]
fn a_firewall_before_a_node_is_told() {
    for verdict in ["drop", "reject"] {
        let Some(walled) = Walled::new("wall-node", "") else { return };
        assert_eq!(walled.program().code, Some(0));
        let address = walled.description.address(11).to_string();
        walled.wall(&address, verdict);
        let findings = walled.findings();
        let (state, says) = of(&findings, "bytes of node1");
        assert_eq!(state, "missing", "{says}");
        for word in ["memory node node1", &*address, "UDP port 4791", "firewall"] {
            assert!(says.contains(word), "{word} in {says}");
        }
        assert_eq!(
            ["bytes of node2", "bytes by way of the switch"].map(|name| of(&findings, name).0),
            ["ok", "ok"]
        );
        walled.program().refuses(&["memory node node1", &address, "UDP port 4791", "firewall"]);
        walled.stop();
    }
}

/// The network between hosts and memory nodes is cut for 24 s. A program that begins meanwhile waits, says for what, and ends well when the network is
/// back: before, it failed after 8 s.
#[test]
fn a_cut_of_the_network_is_survived() {
    let Some(walled) = Walled::new("cut", "patience = \"60s\"") else { return };
    let nodes = format!("{}-{}", walled.description.address(11), walled.description.address(12));
    walled.wall(&nodes, "drop");
    let file = walled.description.file();
    let words = ["webservice", "--records", "95", "--operations", "100", "--json", "--rack", &file];
    let mut program = Running::start(walled.farmem(&words));
    std::thread::sleep(Duration::from_secs(24));
    assert!(program.is_alive(), "it waits: {:?}", program.ended());
    walled.unwall();
    let ended = program.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("waiting for memory node node"), "{ended:?}");
    walled.stop();
}

/// A firewall in front of the switch, which carries traversals and one READ of the doctor. The memory nodes
/// are healthy.
#[test]
fn a_firewall_before_the_switch_is_told() {
    const NAME: &str = "bytes by way of the switch";
    let Some(walled) = Walled::new("wall-switch", "") else { return };
    assert_eq!(of(&walled.findings(), NAME).0, "ok");
    let address = walled.description.address(2).to_string();
    walled.wall(&address, "drop");
    let words = ["the switch at", &address, "UDP port 4791", "firewall"];
    let findings = walled.findings();
    let (state, says) = of(&findings, NAME);
    assert_eq!(state, "missing", "{says}");
    for word in words {
        assert!(says.contains(word), "{word} in {says}");
    }
    assert_eq!(["bytes of node1", "bytes of node2"].map(|name| of(&findings, name).0), ["ok", "ok"]);
    walled.program().refuses(&words);
    walled.stop();
}

/// The MTU of the link falls below the rack's packets. `farmem doctor --rack` names the address of each role
/// and the difference. READs of a program that fit continue. An oversized packet leads to an error with the
/// node, its address, the port and `pmtu`.
#[test]
fn a_link_that_is_too_narrow_is_told() {
    let Some(walled) = Walled::new("wall-mtu", "pmtu = 4096") else { return };
    assert_eq!(walled.program().code, Some(0));
    walled.namespaces.ip("wall", "link set lo mtu 1500");
    let findings = walled.findings();
    for (role, last) in [("switch", 2), ("memory node node1", 11), ("memory node node2", 12)] {
        let (state, says) = of(&findings, &format!("MTU to {role}"));
        assert_eq!(state, "missing", "{says}");
        for word in [&*walled.description.address(last).to_string(), "1500", "`pmtu = 1024` in rack.toml"] {
            assert!(says.contains(word), "{word} in {says}");
        }
    }
    walled.program().refuses(&["UDP port 4791", "127.", "`pmtu` in rack.toml"]);
    walled.stop();
}
