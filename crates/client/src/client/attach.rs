//! How a client comes to its sessions and connections, and how it comes to new ones: a connection that broke, request ids that run out.

use super::{Client, gid, wrong_answer};
use crate::Error;
use crate::rack::endpoint;
use farmem_control::api::{Request, Response};
use farmem_host::{Ask, Connection, Op};
use farmem_machine::Port;
use farmem_transport::{rc, ud};
use farmem_wire::{NodeId, Pmtu, Psn, Qkey, Qpn, Rkey, VirtAddr};

/// Request ids that are left when a client joins again: traversals under way take more of them, one for each continuation.
pub(super) const IDS_RESERVE: u32 = 1 << 24;

/// True for what goes through the switch, under an id of its own.
pub(super) const fn takes_id(op: &Op) -> bool {
    matches!(op, Op::RegionRead { .. } | Op::RegionWrite { .. } | Op::Traverse { .. })
}

impl Client {
    /// Opens the session through the switch, or finds the one there is.
    pub(super) fn open_session(&mut self) -> Result<(), Error> {
        let request = Request::OpenSession { host: self.host, domain: self.domain.0 };
        let Response::Session { switch, .. } = self.path.ask(request)? else {
            return Err(wrong_answer("open_session"));
        };
        let port = Port(switch.port);
        self.path.set_peer(port, gid(&switch.gid)?)?;
        let endpoint = ud::Endpoint { qpn: Qpn::new(switch.qpn), qkey: Qkey(switch.qkey) };
        self.path.submit(Ask::Session { domain: self.domain, switch: ud::Peer { port, endpoint } })
    }

    /// Joins again, as the next generation of the same host, which has its request ids still before it (PROTOCOL 11.8). Whatever is
    /// under way ends first, as it would have ended anyway.
    pub(super) fn join_again(&mut self) -> Result<(), Error> {
        self.joining = true;
        let joined = self.end_all().and_then(|()| self.join());
        self.joining = false;
        joined
    }

    fn end_all(&mut self) -> Result<(), Error> {
        while let Some(done) = self.poll_done(true)? {
            let completed = self.completed(done);
            self.ready.extend(completed);
        }
        Ok(())
    }

    fn join(&mut self) -> Result<(), Error> {
        let Response::Overview { hosts, .. } = self.path.ask(Request::Overview)? else {
            return Err(wrong_answer("overview"));
        };
        let own = hosts.into_iter().find(|host| host.host == self.host);
        let own = own.ok_or_else(|| Error::Unreachable {
            what: "the switch: this client has left the rack meanwhile".into(),
        })?;
        let request = Request::JoinHost { name: own.name, gid: own.gid };
        let Response::HostJoined { host, generation, home, nodes } = self.path.ask(request)? else {
            return Err(wrong_answer("join_host"));
        };
        if host != self.host {
            return Err(wrong_answer("join_host"));
        }
        self.path.submit(Ask::Joined { generation, home: endpoint(&home) })?;
        self.qpns.clear();
        self.nodes = nodes;
        self.open_session()?;
        for node in self.nodes.clone() {
            // One that does not answer now is asked again by the first operation that needs it.
            let _later = self.connect(node.node);
        }
        Ok(())
    }

    /// No connection leads to `addr`. When its node is known it did not answer when this client joined again; perhaps it does now.
    pub(super) fn connect_late(&mut self, addr: VirtAddr) -> Error {
        match self.node_of(addr).filter(|node| !self.qpns.contains_key(node)) {
            None => Error::NotMapped { addr },
            Some(node) => self.connect(node).err().unwrap_or(Error::Interrupted),
        }
    }

    /// Sets up the connection to `node`, or sets it up again.
    pub(super) fn connect(&mut self, node: u16) -> Result<(), Error> {
        if let Some(qpn) = self.qpns.remove(&node) {
            // A late WRITE of the old connection must find no responder, or it would be carried out after newer ones (PROTOCOL 9.6).
            // A node that joined again has dropped it already; then there is nothing to take down.
            let _gone = self.path.ask(Request::Disconnect { host: self.host, qpn });
        }
        let request = Request::Connect { host: self.host, node, domain: self.domain.0 };
        let Response::Connection { node: info, qpn, peer_qpn, first_psn, rkey, pmtu } =
            self.path.ask(request)?
        else {
            return Err(wrong_answer("connect"));
        };
        let Some(pmtu) = Pmtu::from_bytes(usize::from(pmtu)) else { return Err(wrong_answer("connect")) };
        let port = Port(info.port);
        self.path.set_peer(port, gid(&info.gid)?)?;
        let connection = Connection {
            node: NodeId(info.node),
            domain: self.domain,
            base: VirtAddr(info.base),
            len: info.capacity,
            rc: rc::RequesterConfig {
                qpn: Qpn::new(qpn),
                peer_qpn: Qpn::new(peer_qpn),
                port,
                first_psn: Psn::new(first_psn),
                rkey: Rkey(rkey),
                pmtu,
                window_psns: self.pace.window_psns,
                depth: self.pace.depth,
                queue_max: self.pace.queue_max,
                timeout: self.pace.timeout,
                retries_max: self.pace.retries_max,
                rnr_retries_max: self.pace.retries_max,
            },
        };
        self.qpns.insert(node, qpn);
        match self.nodes.iter_mut().find(|n| n.node == info.node) {
            Some(known) => *known = info,
            None => self.nodes.push(info),
        }
        self.path.submit(Ask::Connect(connection))
    }
}
