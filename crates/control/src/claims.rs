//! Which requests must not overlap: each is about some things, and waits while an earlier one changes one of them.

use crate::api::Request;
use crate::record::What;
use crate::state::State;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use farmem_machine::Port;

/// A thing that one change at a time may be about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Claim {
    /// A member that joins or leaves. What merely uses the member does not claim it: a join does not wait for that, it ends it.
    Member(u32),
    /// A vma.
    Vma(u64),
    /// A session of a host in a domain.
    Session(u16, u32),
}

impl State {
    /// What the changes in flight are about.
    pub(crate) fn claims(&self) -> BTreeSet<Claim> {
        self.changes.values().filter_map(|change| claim(&change.what)).collect()
    }

    /// What must be free before a request can begin.
    pub(crate) fn needs(&self, request: &Request) -> Vec<Claim> {
        let node =
            |node: u16| (node < crate::invariants::NODE_END).then(|| Claim::Member(Port::node(node).0));
        let host = |host: u16| Claim::Member(Port::host(host).0);
        let vma = |addr: u64| {
            let (base, vma) = self.vma_at(addr)?;
            Some([Some(Claim::Vma(base)), node(vma.node)])
        };
        match request {
            Request::JoinSwitch { .. } => Vec::from([Claim::Member(Port::SWITCH.0)]),
            Request::JoinNode { name, .. } => self
                .nodes
                .iter()
                .filter(|(_, row)| row.name == *name)
                .filter_map(|(&number, _)| node(number))
                .collect(),
            Request::JoinHost { name, .. } => self
                .hosts
                .iter()
                .filter(|(_, row)| row.name == *name)
                .map(|(&number, _)| host(number))
                .collect(),
            Request::Leave { port } => Vec::from([Claim::Member(*port)]),
            Request::OpenSession { host: number, domain } => {
                Vec::from([host(*number), Claim::Session(*number, *domain)])
            }
            Request::Connect { host: number, node: to, .. } => {
                node(*to).into_iter().chain([host(*number)]).collect()
            }
            Request::Disconnect { host: number, .. } => Vec::from([host(*number)]),
            Request::Allocate { node: on, .. } => on.and_then(node).into_iter().collect(),
            Request::Free { base, .. } | Request::Grant { base, .. } => {
                vma(*base).into_iter().flatten().flatten().collect()
            }
            Request::CreateDomain { .. } | Request::Overview => Vec::new(),
        }
    }
}

fn claim(what: &What) -> Option<Claim> {
    match what {
        What::JoinSwitch { .. } => Some(Claim::Member(Port::SWITCH.0)),
        What::JoinNode { node, .. } | What::LeaveNode { node, .. } => {
            Some(Claim::Member(Port::node(*node).0))
        }
        What::JoinHost { host, .. } | What::LeaveHost { host } => Some(Claim::Member(Port::host(*host).0)),
        What::OpenSession(row) => Some(Claim::Session(row.host, row.domain)),
        What::Allocate { base, .. } | What::Free { base } | What::Grant { vma: base, .. } => {
            Some(Claim::Vma(*base))
        }
        What::Connect(_) | What::Disconnect(_) => None,
    }
}
