//! The switch's table entry of a relayed connection.

use super::fields::{pmtu, qpn};
use crate::reader::{Put, Reader};
use crate::{Domain, HostId, NodeId, Pmtu, Qpn, Rkey, VirtAddr, WireError};
use alloc::vec::Vec;

/// A connection through the switch: each end sends to a *virtual queue pair*, and the switch forwards
/// (PROTOCOL 15.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Relayed {
    /// The virtual queue pair that the host sends to.
    pub to_node: Qpn,
    /// The virtual queue pair that the node sends to.
    pub to_host: Qpn,
    /// The host.
    pub host: HostId,
    /// The host's own queue pair.
    pub host_qpn: Qpn,
    /// The memory node.
    pub node: NodeId,
    /// The node's own queue pair.
    pub node_qpn: Qpn,
    /// The key that the node accepts; not 0.
    pub rkey: Rkey,
    /// The domain of all requests.
    pub domain: Domain,
    /// The path MTU of both ends.
    pub pmtu: Pmtu,
    /// The root of the tree that keyed READs search; null if the connection allows none.
    pub root: VirtAddr,
}

impl Relayed {
    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            to_node: qpn(r)?,
            to_host: qpn(r)?,
            host: HostId(r.u16()?),
            host_qpn: qpn(r)?,
            node: NodeId(r.u16()?),
            node_qpn: qpn(r)?,
            rkey: Rkey(r.u32()?),
            domain: Domain(r.u32()?),
            pmtu: pmtu(r)?,
            root: VirtAddr(r.u64()?),
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.put_u32(self.to_node.get());
        out.put_u32(self.to_host.get());
        out.put_u16(self.host.0);
        out.put_u32(self.host_qpn.get());
        out.put_u16(self.node.0);
        out.put_u32(self.node_qpn.get());
        out.put_u32(self.rkey.0);
        out.put_u32(self.domain.0);
        out.put_u16(self.pmtu as u16);
        out.put_u64(self.root.0);
    }
}
