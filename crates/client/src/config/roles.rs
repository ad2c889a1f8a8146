//! The roles of a rack by name, and those that this machine runs: the list of `farmem doctor --rack`.

use crate::config::RackConfig;
use crate::config::terms::Transport;
use farmem_control::api::Tier;
use farmem_link::doctor::{Finding, Support, held_addresses};
use farmem_link::{gid_of, shm};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, UdpSocket};

/// A role in the rack's description.
pub(super) struct ConfiguredRole {
    /// The kind of the role, and its name if there are several of the kind.
    pub(super) name: String,
    pub(super) address: IpAddr,
    /// Position of an index switch in the FatTree; empty for other roles.
    position: String,
}

impl RackConfig {
    /// Returns a finding for each role of the description: its address, and whether it runs on this machine.
    /// If other roles of the rack run here, an absent role is reported as missing. The method changes
    /// nothing.
    #[must_use]
    pub fn examine_roles(&self) -> Vec<Finding> {
        let held = self.held();
        let roles = self.roles();
        let is_up = held.as_ref().is_ok_and(|held| roles.iter().any(|role| held.contains(&role.address)));
        let finding = |ConfiguredRole { name, address, position }: ConfiguredRole| {
            let where_to = format!("{address}{position}");
            let (state, detail, remedy) = match &held {
                Err(why) => {
                    let detail = format!("{where_to}: cannot check whether it runs: {why}");
                    (Support::Degraded, detail, "mount /proc: `mount -t proc proc /proc`".into())
                }
                Ok(held) if held.contains(&address) => {
                    (Support::Ok, format!("{where_to}: runs"), String::new())
                }
                Ok(_) if self.transport == Transport::Udp && !is_of_this_machine(address) => {
                    (Support::Ok, format!("{where_to}: not an address of this machine"), String::new())
                }
                Ok(_) if is_up => {
                    let (role, own_name) = match name.rsplit_once(' ') {
                        Some(("memory node", own_name)) => ("node", own_name),
                        Some(("index switch", own_name)) => ("index", own_name),
                        Some(_) => ("control", ""),
                        None => (name.as_str(), ""),
                    };
                    let remedy = self.look_at(&name, role, own_name);
                    (Support::Missing, format!("{where_to}: does not run, and other roles do"), remedy)
                }
                Ok(_) => (Support::Ok, format!("{where_to}: does not run, and no role does"), String::new()),
            };
            Finding { name, state, detail, remedy }
        };
        roles.into_iter().map(finding).collect()
    }

    /// Returns true if all roles are on one machine, as in a rack that `farmem up` starts.
    pub(crate) fn is_of_one_machine(&self) -> bool {
        let roles = self.roles();
        self.transport == Transport::Shm
            || roles.iter().all(|role| role.address.is_loopback())
            || roles.iter().all(|role| is_of_this_machine(role.address))
    }

    /// Returns the roles of this rack.
    pub(super) fn roles(&self) -> Vec<ConfiguredRole> {
        let role = |name: String, address| ConfiguredRole { name, address, position: String::new() };
        let first =
            [role("control plane".into(), self.control.address), role("switch".into(), self.switch.address)];
        let nodes = self.nodes.iter().map(|node| role(format!("memory node {}", node.name), node.address));
        let index = self.index.iter().map(|switch| {
            let tier = match switch.tier {
                Tier::Core => "core",
                Tier::Aggregation => "aggregation",
                Tier::Edge => "edge",
            };
            let position = format!(", {tier}, leads to {}", switch.below.join(", "));
            ConfiguredRole { position, ..role(format!("index switch {}", switch.name), switch.address) }
        });
        first.into_iter().chain(nodes).chain(index).collect()
    }

    /// Returns those addresses of this rack's roles that a process of this machine has bound now.
    fn held(&self) -> io::Result<BTreeSet<IpAddr>> {
        if self.transport == Transport::Udp {
            return held_addresses();
        }
        let live = shm::live_endpoints(&self.rings());
        let addresses = self.roles().into_iter().map(|role| role.address);
        Ok(addresses.filter(|&address| live.contains(&format!("{:?}", gid_of(address)))).collect())
    }
}

/// Returns true if a socket of this machine can bind `address`.
pub(super) fn is_of_this_machine(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}
