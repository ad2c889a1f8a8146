//! Requests that write and were sent before their memory node joined: they may have been executed by an earlier incarnation of it, which
//! remembered them, and this one does not (PROTOCOL 6.26).
//!
//! [`Outdated`] keeps the newest such request of each host and, for each node, which that was when the node joined. So a copy that was
//! captured on its way, and is sent again after the node started again, is told from what the host sent since.

use alloc::collections::BTreeMap;
use farmem_wire::{Body, HostId, Message, NodeId, RequestId};

/// The newest requests that write, and those that were the newest when a node joined.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Outdated {
    newest: BTreeMap<HostId, RequestId>,
    joined: BTreeMap<NodeId, BTreeMap<HostId, RequestId>>,
}

impl Outdated {
    /// A host's own request goes to a node.
    pub(crate) fn sent(&mut self, message: &Message<'_>) {
        let Some(last) = last_written(message) else { return };
        let newest = self.newest.entry(last.host()).or_insert(last);
        *newest = (*newest).max(last);
    }

    /// The node is another incarnation from here on, or new.
    pub(crate) fn joined(&mut self, node: NodeId) {
        self.joined.insert(node, self.newest.clone());
    }

    /// The node is no more.
    pub(crate) fn node_gone(&mut self, node: NodeId) {
        self.joined.remove(&node);
    }

    /// The host is no more: its sessions are gone, over which its requests came. One that has its number later has a later generation.
    pub(crate) fn host_gone(&mut self, host: HostId) {
        self.newest.remove(&host);
        self.joined.values_mut().for_each(|hosts| _ = hosts.remove(&host));
    }

    /// True of a request that writes and may have been executed by an earlier incarnation of the node.
    pub(crate) fn is_outdated(&self, node: NodeId, message: &Message<'_>) -> bool {
        let Some(last) = last_written(message) else { return false };
        let newest = self.joined.get(&node).and_then(|hosts| hosts.get(&last.host()));
        newest.is_some_and(|newest| *newest >= last)
    }
}

/// True of a request that writes: a region write, a traversal or batch of a program that stores.
pub(crate) fn writes(message: &Message<'_>) -> bool {
    last_written(message).is_some()
}

/// The newest request of a message, if it writes: of a batch all were sent at once.
fn last_written(message: &Message<'_>) -> Option<RequestId> {
    let request = message.header.request;
    match &message.body {
        Body::RegionWrite { .. } => Some(request),
        Body::Traverse(traverse) => traverse.program.stores().then_some(request),
        Body::Batch(batch) if batch.program().stores() => {
            batch.pairs().map(|pair| request.with_counter(pair.counter)).max()
        }
        Body::Batch(_) | Body::RegionRead { .. } | Body::Update(_) => None,
    }
}
