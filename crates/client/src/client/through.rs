//! Connections through the switch: a client opens them, names one in each operation, and reads by key over
//! them (PROTOCOL 15; Fat-B+Tree III-D).

use crate::answers::{gid, wrong_answer};
use crate::client::Client;
use crate::client::attach::requester;
use crate::client::connections::{ConnParams, Lane};
use crate::error::Error;
use crate::far_memory::FarMemory;
use crate::forward_far_memory;
use crate::operation::{Completed, Ticket};
use farmem_control::api::{Connect, ConnectionInfo, Disconnect, ErrorCode};
use farmem_host::{Answer, HostRequest, Op};
use farmem_machine::Port;
use farmem_transport::rc::Work;
use farmem_wire::{NodeId, Qpn, VirtAddr};

/// A client's connection to one memory node through the switch. The value is valid until
/// [`Client::close_through`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Through(usize);

/// Far memory that uses a connection through the switch for its node, and the client's own connections for
/// other nodes. Programs run at the host, by READs.
#[derive(Debug)]
pub struct ThroughMemory<'a> {
    client: &'a mut Client,
    over: Through,
}

impl ThroughMemory<'_> {
    fn word(&mut self, work: Work) -> Result<u64, Error> {
        let ticket = self.client.submit_through(self.over, work)?;
        match self.client.wait(ticket)?.result? {
            Answer::Done { old } => Ok(old),
            other @ Answer::Traversed(_) => unreachable!("an atomic does not answer {other:?}"),
        }
    }
}

impl FarMemory for ThroughMemory<'_> {
    forward_far_memory!(client: allocate, allocate_on, free, nodes, buffer, recycle);

    fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error> {
        if !self.client.is_through(self.over, addr) {
            return self.client.read(addr, into);
        }
        self.client.read_through(self.over, addr, into)
    }

    fn write(&mut self, addr: VirtAddr, data: &[u8]) -> Result<(), Error> {
        if !self.client.is_through(self.over, addr) {
            return self.client.write(addr, data);
        }
        let mut buf = self.client.buffer(0);
        buf.extend_from_slice(data);
        let buf = self.client.carry_out_through(self.over, Work::Write { addr, buf })?;
        self.client.recycle(buf);
        Ok(())
    }

    fn compare_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> Result<u64, Error> {
        if !self.client.is_through(self.over, addr) {
            return self.client.compare_swap(addr, compare, swap);
        }
        self.word(Work::CmpSwap { addr, compare, swap })
    }

    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> Result<u64, Error> {
        if !self.client.is_through(self.over, addr) {
            return self.client.fetch_add(addr, add);
        }
        self.word(Work::FetchAdd { addr, add })
    }
}

impl Client {
    /// Returns this client's far memory over a connection through the switch.
    pub const fn through(&mut self, over: Through) -> ThroughMemory<'_> {
        ThroughMemory { client: self, over }
    }

    /// Sets up a connection to `node` whose packets go through the switch. Keyed READs of the tree at `root`
    /// use this connection.
    ///
    /// The connection reaches only this node's memory: an access to memory that moved to another node is
    /// refused. If the connection breaks, the next operation sets up a new one.
    ///
    /// # Errors
    /// [`Error::Refused`] if the node does not exist, or if the switch has no free connection or does not
    /// answer.
    pub fn open_through(&mut self, node: NodeId, root: Option<VirtAddr>) -> Result<Through, Error> {
        let lane = self.lane(node, root)?;
        let free = self.lanes.iter().position(Option::is_none);
        let place = free.unwrap_or(self.lanes.len());
        if free.is_none() {
            self.lanes.push(None);
        }
        self.lanes[place] = Some(lane);
        Ok(Through(place))
    }

    /// Closes a connection. Pending operations on it complete with [`Error::Interrupted`].
    ///
    /// # Errors
    /// [`Error::Missing`] if the connection was closed before; [`Error::Api`] if the control plane does not
    /// answer.
    pub fn close_through(&mut self, over: Through) -> Result<(), Error> {
        let lane = self.lane_of(over)?;
        self.lanes[over.0] = None;
        self.take_down(&lane)
    }

    /// Reads `into.len()` bytes, 1 to one path MTU, from a node of the tree. This node is the deepest one on
    /// the path to `key` that the switch knows and that the connection's memory node has. A RoCE card sends
    /// the same READ, with the key in place of the address. The bytes themselves must identify the node of
    /// the tree.
    ///
    /// # Errors
    /// - [`Error::Missing`] for a connection without a tree.
    /// - [`Error::Empty`] or [`Error::TooLong`] for an invalid length.
    /// - [`Error::Key`] if the memory node has neither the root nor a known node below it that the domain may
    ///   read.
    /// - [`Error::Unreachable`] or [`Error::Interrupted`] if the connection fails.
    pub fn keyed_read(&mut self, over: Through, key: u64, into: &mut [u8]) -> Result<(), Error> {
        let buf = self.buffer(into.len());
        let buf = self.carry_out_through(over, Work::KeyedRead { key, buf })?;
        into.copy_from_slice(&buf);
        self.recycle(buf);
        Ok(())
    }

    /// Reads `into.len()` bytes at `addr`, which the connection's node must hold.
    ///
    /// # Errors
    /// [`Error`] if the address is invalid or the node does not answer.
    pub fn read_through(&mut self, over: Through, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error> {
        let buf = self.buffer(into.len());
        let buf = self.carry_out_through(over, Work::Read { addr, buf })?;
        into.copy_from_slice(&buf);
        self.recycle(buf);
        Ok(())
    }

    /// Starts a verb over a connection through the switch. [`Client::poll`] or [`Client::wait`] returns its
    /// completion. Verbs over one connection are executed in order.
    ///
    /// # Errors
    /// The errors of [`Client::keyed_read`] for an invalid verb, and [`Error::Refused`] if the connection
    /// broke and cannot be set up again.
    pub fn submit_through(&mut self, over: Through, work: Work) -> Result<Ticket, Error> {
        let lane = self.lane_of(over)?;
        if let Work::KeyedRead { buf, .. } = &work {
            let max = lane.pmtu.bytes();
            match (lane.root, buf.len()) {
                (None, _) => {
                    let what =
                        "tree that keyed READs over this connection mean: it was opened without a root"
                            .into();
                    return Err(Error::Missing { what });
                }
                (Some(_), 0) => return Err(Error::Empty { what: "a keyed READ" }),
                (Some(_), len) if len > max => return Err(Error::TooLong { len, max }),
                _ => {}
            }
        }
        let over = if self.path.is_open(lane.qpn) { lane.qpn } else { self.mend(over, &lane)? };
        self.submit(Op::Through { over, work })
    }

    /// Returns true if `addr` is on the connection's node, as far as this client knows.
    #[must_use]
    pub fn is_through(&self, over: Through, addr: VirtAddr) -> bool {
        self.lane_of(over).is_ok_and(|lane| self.path.node_of(self.domain, addr) == Some(lane.node))
    }

    fn carry_out_through(&mut self, over: Through, work: Work) -> Result<Vec<u8>, Error> {
        let ticket = self.submit_through(over, work)?;
        let Completed { result, buf, .. } = self.wait(ticket)?;
        match result? {
            Answer::Done { .. } => Ok(buf),
            other @ Answer::Traversed(_) => unreachable!("a verb does not answer {other:?}"),
        }
    }

    fn lane_of(&self, over: Through) -> Result<Lane, Error> {
        let lane = self.lanes.get(over.0).copied().flatten();
        lane.ok_or_else(|| Error::Missing { what: "connection through the switch: it was closed".into() })
    }

    /// Sets up a broken connection again, after the old one has certainly ended (PROTOCOL 9.6).
    fn mend(&mut self, over: Through, lane: &Lane) -> Result<Qpn, Error> {
        self.take_down(lane)?;
        let lane = self.lane(lane.node, lane.root)?;
        self.lanes[over.0] = Some(lane);
        Ok(lane.qpn)
    }

    fn take_down(&mut self, lane: &Lane) -> Result<(), Error> {
        self.path.submit(HostRequest::Close { qpn: lane.qpn })?;
        match self.path.call(Disconnect { host: self.host, qpn: lane.qpn.get() }) {
            // The connection ended with an earlier incarnation of the node or of this host.
            Err(error) if error.code() == Some(ErrorCode::NotFound) => Ok(()),
            result => result,
        }
    }

    fn lane(&mut self, node: NodeId, root: Option<VirtAddr>) -> Result<Lane, Error> {
        let direct = Connect::new(self.host, node.0, self.domain.0);
        let request = Connect { through: true, root: root.map(|root| root.0), ..direct };
        let info: ConnectionInfo = self.path.call(request)?;
        let Some(place) = &info.through else { return Err(wrong_answer("connect")) };
        let port = Port(place.port);
        self.path.set_peer(port, gid(&place.gid)?)?;
        let rc = requester(&info, port, &ConnParams::default())?;
        self.path.submit(HostRequest::Open { domain: self.domain, rc })?;
        Ok(Lane { node, root, pmtu: rc.pmtu, qpn: rc.qpn })
    }
}
