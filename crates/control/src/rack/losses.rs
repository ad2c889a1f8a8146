//! Loss reports for the operator: the bytes of each domain that are out of reach or lost with a failed node.

use crate::api::LossCounts;
use crate::messages::Held;
use crate::rack::Rack;
use crate::record::Role;
use crate::updates::Reach;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString as _};
use farmem_machine::Port;

impl Rack {
    /// Returns the name of the member at a port, also of a host that has left.
    pub(crate) fn name_of(&self, port: Port) -> String {
        let host = port.as_host().and_then(|host| self.state.hosts.get(&host));
        let node = port.as_node().and_then(|node| self.state.nodes.get(&node));
        let index = port.as_index().and_then(|index| self.state.index.get(&index));
        match (host, node, index) {
            (Some(host), ..) => host.name.clone(),
            (_, Some(node), _) => format!("memory node {}", node.name),
            (_, _, Some(index)) => format!("index switch {}", index.name),
            _ if port == Port::SWITCH => "the switch".to_string(),
            _ => match (port.as_host(), port.as_node(), port.as_index()) {
                (Some(host), ..) => format!("host {host}"),
                (_, Some(node), _) => format!("memory node {node}"),
                (_, _, Some(index)) => format!("index switch {index}"),
                _ => format!("port {}", port.0),
            },
        }
    }

    /// Returns the bytes allocated at a node, by domain.
    pub(crate) fn held_by(&self, node: u16) -> Held {
        let vmas = self.state.vmas.iter().filter(|(_, vma)| vma.pending.is_none());
        self.sum_parts(vmas.flat_map(|(&base, vma)| self.state.parts_at(node, base, vma.size)))
    }

    /// Returns the bytes lost with earlier incarnations of a node and not accepted since.
    pub(crate) fn lost_with(&self, node: u16) -> Held {
        self.sum_parts(self.state.lost_at(node).into_iter())
    }

    fn sum_parts(&self, parts: impl Iterator<Item = (u64, u64)>) -> Held {
        let (mut bytes, mut domains) = (0, BTreeSet::new());
        for (base, len) in parts {
            bytes += len;
            domains.extend(self.state.vma_at(base).map(|(_, vma)| vma.domain));
        }
        let name =
            |domain: u32| self.state.domains.get(&domain).cloned().unwrap_or_else(|| domain.to_string());
        Held { bytes, domains: domains.into_iter().map(name).collect() }
    }

    /// Returns true if a role has joined and answers, as far as is known.
    pub(crate) fn answers(&self, role: Role) -> bool {
        matches!(self.state.reach(role), Some(Reach::Ready | Reach::Held))
    }

    /// Counts a role that fell silent.
    pub(crate) fn count_silence(&mut self, role: Role) {
        if matches!(role, Role::Node(_)) {
            self.losses.nodes_silent += 1;
        }
    }

    /// Counts a node that joined again, with empty memory.
    pub(crate) fn count_rejoin(&mut self, node: u16) {
        self.losses.nodes_emptied += 1;
        self.losses.bytes_lost += self.lost_with(node).bytes;
    }

    pub(crate) const fn losses(&self) -> LossCounts {
        self.losses
    }
}
