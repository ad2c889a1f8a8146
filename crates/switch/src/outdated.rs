//! Detection of writing requests that were sent before their memory node joined. An earlier incarnation of
//! the node, which remembered them, may have executed them; this one does not know (PROTOCOL 6.26).
//!
//! [`WriteHistory`] keeps the newest writing request of each host and, for each node, a copy of these from when
//! the node joined. So a captured copy that is sent again after the node restarted is told from later
//! requests.

use alloc::collections::BTreeMap;
use farmem_wire::{Body, HostId, Message, NodeId, RequestId};

/// The newest writing requests, now and at each node's join.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct WriteHistory {
    newest: BTreeMap<HostId, RequestId>,
    joined: BTreeMap<NodeId, BTreeMap<HostId, RequestId>>,
}

impl WriteHistory {
    /// Records a host's own request to a node.
    pub(crate) fn sent(&mut self, message: &Message<'_>) {
        let Some(last) = last_written(message) else { return };
        let newest = self.newest.entry(last.host()).or_insert(last);
        *newest = (*newest).max(last);
    }

    /// Records that a new incarnation of the node joined.
    pub(crate) fn joined(&mut self, node: NodeId) {
        self.joined.insert(node, self.newest.clone());
    }

    /// Removes a node.
    pub(crate) fn node_gone(&mut self, node: NodeId) {
        self.joined.remove(&node);
    }

    /// Removes a host whose sessions are gone. A later host with its number has a later generation.
    pub(crate) fn host_gone(&mut self, host: HostId) {
        self.newest.remove(&host);
        self.joined.values_mut().for_each(|hosts| _ = hosts.remove(&host));
    }

    /// Returns true for a writing request that an earlier incarnation of the node may have executed.
    pub(crate) fn is_outdated(&self, node: NodeId, message: &Message<'_>) -> bool {
        let Some(last) = last_written(message) else { return false };
        let newest = self.joined.get(&node).and_then(|hosts| hosts.get(&last.host()));
        newest.is_some_and(|newest| *newest >= last)
    }
}

/// Returns true for a writing request: a region write, or a storing traversal or batch.
pub(crate) fn writes(message: &Message<'_>) -> bool {
    last_written(message).is_some()
}

/// Returns the newest request of a writing message; all pairs of a batch were sent at once.
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
