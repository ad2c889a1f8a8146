//! The UD endpoints of the peers, and sending to them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farmem_machine::{Outbox, Port};
use farmem_transport::ud;
use farmem_wire::message::{DirectoryBody, DirectoryMessage, Page, Traverse};
use farmem_wire::{
    Bth, Deth, Extension, Header, HostId, Message, Opcode, OpenFrame, Packet, Psn, RequestId, Status,
};

/// The peer table, and the node's own endpoint as the source of messages.
#[derive(Debug)]
pub(crate) struct Peers {
    home: ud::Endpoint,
    peers_max: usize,
    rows: BTreeMap<Port, ud::Endpoint>,
    /// The hosts among the peers, by number: looked up twice per answer.
    hosts: Vec<Option<ud::Endpoint>>,
    /// PSN of the next datagram. Receivers ignore it; it helps readers of traces.
    psn: Psn,
}

impl Peers {
    /// Creates a table with only the control plane.
    pub(crate) fn new(home: &ud::RoleEndpoints, peers_max: usize) -> Self {
        let rows = BTreeMap::from([(home.control.port, home.control.endpoint)]);
        Self { home: home.endpoint, peers_max, rows, hosts: Vec::new(), psn: Psn::default() }
    }

    /// Adds a peer or moves it.
    pub(crate) fn add(&mut self, port: Port, endpoint: ud::Endpoint) -> Result<(), Status> {
        if port == Port::UNKNOWN {
            return Err(Status::Malformed);
        }
        // The budget does not count the control plane's row.
        if !self.rows.contains_key(&port) && self.rows.len() > self.peers_max {
            return Err(Status::TableFull);
        }
        self.rows.insert(port, endpoint);
        if let Some(host) = port.as_host() {
            let at = usize::from(host);
            self.hosts.resize(self.hosts.len().max(at + 1), None);
            self.hosts[at] = Some(endpoint);
        }
        Ok(())
    }

    /// Removes a peer; refuses to remove the control plane, which gets the response.
    pub(crate) fn remove(&mut self, port: Port) -> Result<(), Status> {
        if port == Port::CONTROL {
            return Err(Status::Malformed);
        }
        self.rows.remove(&port);
        if let Some(row) = port.as_host().and_then(|host| self.hosts.get_mut(usize::from(host))) {
            *row = None;
        }
        Ok(())
    }

    /// Returns the endpoint of a host.
    #[inline]
    pub(crate) fn host(&self, host: HostId) -> Option<ud::Peer> {
        let endpoint = (*self.hosts.get(usize::from(host.0))?)?;
        Some(ud::Peer { port: Port::host(host.0), endpoint })
    }

    /// Returns the endpoint behind `port`.
    pub(crate) fn get(&self, port: Port) -> Option<ud::Peer> {
        self.rows.get(&port).map(|&endpoint| ud::Peer { port, endpoint })
    }

    /// Sends `message` to `peer`.
    #[inline(never)]
    pub(crate) fn send<O, N>(&mut self, peer: ud::Peer, message: &Message<'_>, out: &mut Outbox<O, N>) {
        self.emit(peer, message.len(), out, |bytes| message.emit(bytes));
    }

    /// Sends a traversal, as [`Peers::send`] would.
    #[inline(always)]
    pub(crate) fn send_traverse<O, N>(
        &mut self,
        peer: ud::Peer,
        header: &Header,
        traverse: &Traverse<'_>,
        out: &mut Outbox<O, N>,
    ) {
        let (bth, ext) = self.headers(&peer);
        let mut frame = out.frame(peer.port);
        let bytes = frame.bytes();
        let open = OpenFrame::begin(&bth, &ext, Header::LEN + traverse.len(), bytes);
        traverse.emit(header, bytes);
        open.end(bytes);
    }

    /// Sends a stored message.
    pub(crate) fn send_kept<O, N>(&mut self, peer: ud::Peer, message: &[u8], out: &mut Outbox<O, N>) {
        self.emit(peer, message.len(), out, |bytes| bytes.extend_from_slice(message));
    }

    /// Sends a message that `payload` appends, in `len` bytes.
    pub(crate) fn emit<O, N>(
        &mut self,
        peer: ud::Peer,
        len: usize,
        out: &mut Outbox<O, N>,
        payload: impl FnOnce(&mut Vec<u8>),
    ) {
        let (bth, ext) = self.headers(&peer);
        Packet::emit_with(&bth, &ext, len, out.frame(peer.port).bytes(), payload);
    }

    /// Returns the headers of the next datagram to a peer.
    #[inline(always)]
    fn headers(&mut self, peer: &ud::Peer) -> (Bth, Extension) {
        let bth = Bth::new(Opcode::UdSendOnly, peer.endpoint.qpn, self.psn);
        self.psn = self.psn.plus(1);
        (bth, Extension::Deth(Deth { qkey: peer.endpoint.qkey, src_qp: self.home.qpn }))
    }

    /// Asks the switch to make the page readable here (PROTOCOL 12.29). If the message is lost, the reader's
    /// retry repeats it.
    pub(crate) fn visit<O, N>(&mut self, page: Page, out: &mut Outbox<O, N>) {
        if let Some(switch) = self.get(Port::SWITCH) {
            let message = DirectoryMessage { token: RequestId(0), body: DirectoryBody::Visit(page) };
            self.emit(switch, message.len(), out, |bytes| message.emit(bytes));
        }
    }

    /// Asserts that the table is within its bound and has the control plane.
    pub(crate) fn check(&self) {
        assert!(self.rows.len() <= self.peers_max + 1, "more peers than the budget");
        assert!(self.rows.contains_key(&Port::CONTROL), "the control plane is always known");
        let rows = self.rows.iter().filter_map(|(port, endpoint)| Some((port.as_host()?, *endpoint)));
        let hosts = (0..=u16::MAX).zip(&self.hosts).filter_map(|(host, row)| Some((host, (*row)?)));
        assert!(rows.eq(hosts), "a host is found by its number");
    }
}
