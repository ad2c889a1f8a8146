//! Conflicts of requests: each request claims some resources, and waits while an earlier one changes one of
//! them (PROTOCOL 8.18).

use crate::api::{
    AcceptLost, Brk, Disconnect, DropObject, Free, Grant, HoldObject, JoinHost, JoinIndex, JoinNode,
    LoadObject, LookFile, Migrate, Mmap, Mprotect, Munmap, OpenObject, ProcessExit, Request, ResizeObject,
    SaveObject,
};
use crate::bounds::NODE_END;
use crate::record::{ChangeKind, VmaRow};
use crate::state::State;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use farmem_machine::Port;

/// A resource that one change at a time may claim.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Claim {
    /// A member that joins or leaves. Mere users of the member do not claim it: a join does not wait for
    /// them, it ends them.
    Member(u32),
    /// A vma.
    Vma(u64),
    /// A session of a host in a domain.
    Session(u16, u32),
    /// The cached pages of a host.
    Cache(u16),
    /// The directory of the switch.
    Directory,
    /// A named object.
    Object(u64),
    /// The address space of a domain, with all its vmas.
    Space(u32),
}

/// The relation of a request to a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// The request changes the resource: later requests that need it wait.
    Changes(Claim),
    /// The request needs the resource unchanged.
    Uses(Claim),
}

impl Need {
    pub(crate) const fn claim(self) -> Claim {
        match self {
            Self::Changes(claim) | Self::Uses(claim) => claim,
        }
    }
}

impl State {
    /// Returns the resources claimed by changes in flight.
    pub(crate) fn claims(&self) -> BTreeSet<Claim> {
        self.changes.values().filter_map(|change| claim(&change.what)).collect()
    }

    /// Returns the resources that must be free before a request can begin.
    pub(crate) fn needs(&self, request: &Request) -> Vec<Need> {
        let uses_node = |node: u16| (node < NODE_END).then(|| Need::Uses(Claim::Member(Port::node(node).0)));
        let uses_host = |host: u16| Need::Uses(Claim::Member(Port::host(host).0));
        let changes = |port: Port| Need::Changes(Claim::Member(port.0));
        match request {
            Request::JoinSwitch(_) => Vec::from([changes(Port::SWITCH)]),
            Request::JoinNode(JoinNode { name, .. }) => {
                let known = self.nodes.iter().filter(|(_, row)| row.name == *name);
                known.map(|(&node, _)| changes(Port::node(node))).collect()
            }
            Request::JoinIndex(JoinIndex { name, .. }) => {
                let known = self.index.iter().filter(|(_, row)| row.name == *name);
                known.map(|(&index, _)| changes(Port::index(index))).collect()
            }
            Request::JoinHost(JoinHost { name, .. }) => {
                let known = self.hosts.iter().filter(|(_, row)| row.name == *name);
                known.map(|(&host, _)| changes(Port::host(host))).collect()
            }
            Request::Leave(call) => Vec::from([changes(Port(call.port))]),
            Request::ActFor(call) => Vec::from([uses_host(call.host), uses_host(call.of_host)]),
            Request::OpenSession(call) => {
                Vec::from([uses_host(call.host), Need::Changes(Claim::Session(call.host, call.domain))])
            }
            Request::Connect(call) => {
                uses_node(call.node).into_iter().chain([uses_host(call.host)]).collect()
            }
            Request::Disconnect(Disconnect { host, .. }) => Vec::from([uses_host(*host)]),
            Request::OpenObject(OpenObject { host, domain, name, .. }) => {
                // Opening an object in a file may be a change.
                let known = self.object_named(*domain, name).map(|(object, _)| object);
                let by_file = known.filter(|object| self.files.contains_key(object));
                let changes = by_file.map(|object| Need::Changes(Claim::Object(object)));
                [uses_host(*host)].into_iter().chain(changes).collect()
            }
            Request::LookFile(LookFile { node, .. }) => uses_node(*node).into_iter().collect(),
            Request::LoadObject(LoadObject { host, object, node, .. }) => {
                let changes = [uses_host(*host), Need::Changes(Claim::Object(*object))];
                changes.into_iter().chain(uses_node(*node)).collect()
            }
            Request::SaveObject(SaveObject { host, object }) => {
                let node = self.files.get(object).and_then(|row| uses_node(row.node));
                let changes = [uses_host(*host), Need::Changes(Claim::Object(*object))];
                changes.into_iter().chain(node).collect()
            }
            Request::Allocate(call) => call.node.and_then(uses_node).into_iter().collect(),
            Request::Free(Free { base, .. })
            | Request::Grant(Grant { base, .. })
            | Request::AcceptLost(AcceptLost { base, .. }) => {
                let found = self.vma_at(*base);
                let needs = found.map(|(base, vma)| {
                    let space = Need::Uses(Claim::Space(vma.domain));
                    [Some(Need::Changes(Claim::Vma(base))), Some(space), uses_node(vma.node)]
                });
                needs.into_iter().flatten().flatten().collect()
            }
            Request::Migrate(Migrate { base, node, .. }) => {
                let found = self.vma_at(*base);
                let its = |(base, vma): (u64, &VmaRow)| {
                    let nodes = self.nodes_of_vma(base).into_iter().filter_map(uses_node);
                    let mut needs: Vec<Need> = nodes.collect();
                    needs.extend([Need::Changes(Claim::Vma(base)), Need::Uses(Claim::Space(vma.domain))]);
                    needs
                };
                found.map(its).unwrap_or_default().into_iter().chain(uses_node(*node)).collect()
            }
            Request::ProcessStart(call) => self.needs_of_space(Some(call.domain)),
            Request::ProcessExit(ProcessExit { process })
            | Request::Mmap(Mmap { process, .. })
            | Request::Munmap(Munmap { process, .. })
            | Request::Mprotect(Mprotect { process, .. })
            | Request::Brk(Brk { process, .. }) => self.needs_of_space(self.processes.get(process).copied()),
            Request::Renew(call) => Vec::from([uses_host(call.host), Need::Changes(Claim::Cache(call.host))]),
            Request::HoldObject(HoldObject { host, object, .. })
            | Request::ResizeObject(ResizeObject { host, object, .. })
            | Request::DropObject(DropObject { host, object }) => {
                Vec::from([uses_host(*host), Need::Changes(Claim::Object(*object))])
            }
            Request::UnlinkObject(_)
            | Request::ListObjects(_)
            | Request::Stay(_)
            | Request::Usage(_)
            | Request::CreateDomain(_)
            | Request::Recover(_)
            | Request::ShowObject(_)
            | Request::Locate(_)
            | Request::SoftLoad(_)
            | Request::SoftShow(_)
            | Request::SoftRead(_)
            | Request::SoftCounts(_)
            | Request::SoftClear(_)
            | Request::Overview(_) => Vec::new(),
        }
    }
}

impl State {
    /// Returns the needs of a call that changes the space and may change each of its vmas, on any node.
    fn needs_of_space(&self, domain: Option<u32>) -> Vec<Need> {
        let Some(domain) = domain else { return Vec::new() };
        let space = self.spaces.get(&domain);
        let vmas = space.into_iter().flat_map(|space| space.vmas());
        let mut needs = Vec::from([Need::Changes(Claim::Space(domain))]);
        for (base, _) in vmas {
            needs.push(Need::Uses(Claim::Vma(base)));
            let node = self.vmas.get(&base).map(|vma| Claim::Member(Port::node(vma.node).0));
            needs.extend(node.map(Need::Uses));
        }
        needs
    }
}

/// Returns the resource that a change in flight claims.
pub(crate) fn claim(what: &ChangeKind) -> Option<Claim> {
    match what {
        ChangeKind::JoinSwitch { .. } => Some(Claim::Member(Port::SWITCH.0)),
        ChangeKind::JoinNode { node, .. } | ChangeKind::LeaveNode { node, .. } => {
            Some(Claim::Member(Port::node(*node).0))
        }
        ChangeKind::JoinIndex { index, .. } | ChangeKind::LeaveIndex { index } => {
            Some(Claim::Member(Port::index(*index).0))
        }
        ChangeKind::JoinHost { host, .. } | ChangeKind::LeaveHost { host } => {
            Some(Claim::Member(Port::host(*host).0))
        }
        ChangeKind::OpenSession(row) => Some(Claim::Session(row.host, row.domain)),
        ChangeKind::OpenDirectory { .. } => Some(Claim::Directory),
        ChangeKind::Live { host, .. } | ChangeKind::Fence { host, .. } => Some(Claim::Cache(*host)),
        ChangeKind::Allocate { object: Some((object, _)), .. } | ChangeKind::TurnFile { object, .. } => {
            Some(Claim::Object(*object))
        }
        ChangeKind::Allocate { base, .. }
        | ChangeKind::Free { base }
        | ChangeKind::Grant { vma: base, .. }
        | ChangeKind::AcceptLost { vma: base, .. } => Some(Claim::Vma(*base)),
        ChangeKind::Migrate(migration) => Some(Claim::Vma(migration.vma)),
        ChangeKind::Remap(remap) => Some(Claim::Space(remap.domain)),
        ChangeKind::Connect(_) | ChangeKind::Disconnect(_) => None,
    }
}
