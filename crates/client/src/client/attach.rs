//! Setup of a client's sessions and connections, and their renewal after a connection broke or the request
//! ids ran out.

use crate::answers::{gid, wrong_answer};
use crate::client::Client;
use crate::client::connections::ConnParams;
use crate::error::Error;
use crate::host_settings::{SILENCE_MAX, endpoint, machine};
use crate::opened::lost_open;
use crate::renewals::Renewal;
use farmem_control::api::{
    Connect, ConnectionInfo, Disconnect, ErrorCode, HostJoined, JoinHost, Locate, LocatedVma, MovedInfo,
    NodeInfo, OpenSession, Overview, Response,
};
use farmem_host::{Connection, ControlRequest, ControlRequestKind, HostRequest, Located, Piece, Reply};
use farmem_machine::Port;
use farmem_transport::{rc, ud};
use farmem_wire::{NodeId, Pmtu, Psn, Qkey, Qpn, Rkey, VirtAddr};
use std::io;
use std::io::Write as _;

impl Client {
    /// Sets whether later allocations stay when its domain has no user (PROTOCOL 8.62).
    pub(crate) const fn allocates_durably(&mut self, durable: bool) {
        self.durable = durable;
    }

    /// Sets how long operations wait for nodes that do not answer.
    pub(crate) fn waits_for_nodes(&mut self, patience: std::time::Duration) {
        self.patience = patience;
        self.conn_params = ConnParams::patient(machine(patience).max(SILENCE_MAX));
    }

    /// Sets the thread that renews the host's lease from now on.
    pub(crate) fn stays_by(&mut self, renewal: Renewal) {
        self.renewal = Some(renewal);
    }

    /// Opens the session through the switch, or finds the existing one.
    pub(super) fn open_session(&mut self) -> Result<(), Error> {
        let request = OpenSession { host: self.host, domain: self.domain.0 };
        let switch = self.path.call(request)?.switch;
        let port = Port(switch.port);
        self.path.set_peer(port, gid(&switch.gid)?)?;
        self.switch = switch.gid;
        let endpoint = ud::Endpoint { qpn: Qpn::new(switch.qpn), qkey: Qkey(switch.qkey) };
        self.path.submit(HostRequest::Session { domain: self.domain, switch: ud::Peer { port, endpoint } })
    }

    /// Joins again as the next generation of the same host, which has all its request ids (PROTOCOL 11.8).
    /// All pending operations complete first.
    pub(super) fn join_again(&mut self) -> Result<(), Error> {
        self.joining = true;
        let joined = self.end_all().and_then(|()| self.join());
        self.joining = false;
        joined
    }

    fn end_all(&mut self) -> Result<(), Error> {
        while let Some(done) = self.poll_done(true)? {
            let completed = self.completed(done);
            self.ready.push_back(completed);
        }
        Ok(())
    }

    fn join(&mut self) -> Result<(), Error> {
        self.reached.clear();
        let hosts = self.path.call(Overview {})?.hosts;
        // Another host may have the number meanwhile.
        let own = hosts.into_iter().find(|host| (host.host, host.generation) == (self.host, self.generation));
        let Some(own) = own else {
            self.fenced = true;
            return Err(self.fenced_error());
        };
        let request = JoinHost::new(own.name, own.gid);
        let HostJoined { host, generation, home, nodes, cards, .. } = self.path.call(request)?;
        if host != self.host {
            return Err(wrong_answer("join_host"));
        }
        self.generation = generation;
        self.renewal.iter().for_each(|renewal| renewal.joined_again(generation));
        self.path.submit(HostRequest::Joined { generation, home: endpoint(&home) })?;
        for info in &nodes {
            self.name_node(info)?;
        }
        self.nodes = nodes;
        self.cards = cards;
        self.name_cards()?;
        self.open_session()?;
        // Only the control plane knows whether other hosts have opened these objects meanwhile (PROTOCOL
        // 8.34).
        self.hold_again().map_err(|why| {
            let lost = lost_open(&why);
            self.lost_open = Some(lost.clone());
            Error::Refused(lost)
        })
    }

    /// Passes the addresses of a node and of its memory to the host role. The role requests a connection when
    /// an operation needs the node.
    pub(super) fn name_node(&mut self, info: &NodeInfo) -> Result<(), Error> {
        self.path.set_peer(Port(info.port), gid(&info.gid)?)?;
        let (node, base, len) = (NodeId(info.node), VirtAddr(info.base), info.capacity);
        self.path.submit(HostRequest::Node { domain: self.domain, node, base, len })
    }

    /// Names the cards whose memory belongs to this domain. A card may have fewer queue pairs than there are
    /// clients, so no connection is set up yet.
    pub(crate) fn name_cards(&mut self) -> Result<(), Error> {
        let own: Vec<NodeInfo> =
            self.cards.iter().filter(|card| card.card == self.domain.0).cloned().collect();
        own.iter().try_for_each(|card| self.name_node(card))
    }

    /// Sets up the first connection to `node`.
    pub(crate) fn connect(&mut self, node: u16) -> Result<(), Error> {
        let connection = self.connection(node)?;
        self.reached.insert(node);
        self.path.submit(HostRequest::Connect(connection))
    }

    /// Sends a request of the host role to the control plane. [`Client::take_told`] takes the answer, because
    /// this thread must serve other operations while the control plane does not answer.
    pub(super) fn fulfil(&mut self, question: ControlRequest) -> Result<(), Error> {
        let request = match question.kind {
            ControlRequestKind::Connect { node, .. } | ControlRequestKind::ConnectExtra { node, .. } => {
                Connect::new(self.host, node.0, self.domain.0).into()
            }
            ControlRequestKind::NodeGeneration { node } => {
                self.say_waiting(node.0);
                Overview {}.into()
            }
            ControlRequestKind::Locate { addr } => Locate { addr: addr.0 }.into(),
            ControlRequestKind::Disconnect { qpn } | ControlRequestKind::DisconnectExtra { qpn } => {
                Disconnect { host: self.host, qpn: qpn.get() }.into()
            }
        };
        if self.path.ask_aside(question.number, request).is_err() {
            return self
                .path
                .submit(HostRequest::Reply { number: question.number, reply: Reply::Unavailable });
        }
        self.aside.push((question, self.generation));
        Ok(())
    }

    /// Takes the control plane's answers to requests of the host role.
    #[inline]
    pub(super) fn take_told(&mut self) -> Result<(), Error> {
        if self.aside.is_empty() { Ok(()) } else { self.take_all_told() }
    }

    fn take_all_told(&mut self) -> Result<(), Error> {
        while let Some((number, told)) = self.path.told() {
            let asked = self.aside.iter().position(|(question, _)| question.number == number);
            let Some((question, generation)) = asked.map(|at| self.aside.swap_remove(at)) else { continue };
            // Connections of an earlier generation are closed, and other hosts may have their queue pairs.
            if generation != self.generation {
                continue;
            }
            let ask = self.answered(question, told);
            self.path.submit(ask)?;
        }
        Ok(())
    }

    /// Translates the control plane's answer for the host role.
    fn answered(&mut self, question: ControlRequest, told: Result<Response, Error>) -> HostRequest {
        let ControlRequest { number, kind } = question;
        let reply = match (kind, told) {
            (ControlRequestKind::Connect { node, .. }, told) => {
                let params = self.conn_params;
                let told = told.and_then(|told| match told {
                    Response::Connection(told) => self.connected(told, &params),
                    _ => Err(wrong_answer("connect")),
                });
                match told {
                    Ok(connection) => {
                        self.awaited.remove(&node.0);
                        self.reached.insert(node.0);
                        return HostRequest::Connect(connection);
                    }
                    Err(error) => self.no_connection(node.0, &error),
                }
            }
            (ControlRequestKind::ConnectExtra { .. }, Ok(Response::Connection(told))) => {
                match self.connected(told, &ConnParams::default()) {
                    Ok(connection) => return HostRequest::ConnectExtra { number, connection },
                    Err(error) => refused(&error),
                }
            }
            (ControlRequestKind::NodeGeneration { node }, Ok(Response::Overview(seen))) => {
                let known = seen.nodes.iter().find(|known| known.node == node.0);
                known.map_or(Reply::NotFound, |known| Reply::NodeGeneration(known.generation))
            }
            (ControlRequestKind::Locate { .. }, Ok(Response::Located(found))) => {
                Reply::Located(located(found))
            }
            (_, Ok(_)) => Reply::Disconnected,
            (_, Err(error)) => refused(&error),
        };
        HostRequest::Reply { number, reply }
    }

    /// Returns the host role's reply for a failed connection. Waiting helps only if a role does not answer.
    fn no_connection(&mut self, node: u16, error: &Error) -> Reply {
        match error.code() {
            Some(ErrorCode::NotFound | ErrorCode::NotOwner) => {
                self.check_fenced();
                Reply::NotFound
            }
            Some(ErrorCode::BadRequest | ErrorCode::Conflict | ErrorCode::TableFull) => Reply::NotFound,
            _ => {
                self.say_waiting(node);
                Reply::Unavailable
            }
        }
    }

    /// Prints a warning that operations wait for a node, once until there is a connection to it again.
    fn say_waiting(&mut self, node: u16) {
        if self.patience.is_zero() || !self.awaited.insert(node) {
            return;
        }
        let known = self.nodes.iter().find(|known| known.node == node);
        let name =
            known.map_or_else(|| format!("node {node}"), |known| format!("{} at {}", known.name, known.gid));
        // A closed stderr is no fault.
        drop(writeln!(
            io::stderr(),
            "farmem: waiting for memory node {name}, which does not answer, for up to {} s",
            self.patience.as_secs()
        ));
    }

    /// Requests a connection to `node`.
    fn connection(&mut self, node: u16) -> Result<Connection, Error> {
        let told = self.path.call(Connect::new(self.host, node, self.domain.0))?;
        let params = self.conn_params;
        self.connected(told, &params)
    }

    /// Returns a connection that the control plane has set up.
    fn connected(&mut self, told: ConnectionInfo, params: &ConnParams) -> Result<Connection, Error> {
        let port = Port(told.node.port);
        self.path.set_peer(port, gid(&told.node.gid)?)?;
        let rc = requester(&told, port, params)?;
        let info = told.node;
        let connection = Connection {
            node: NodeId(info.node),
            domain: self.domain,
            base: VirtAddr(info.base),
            len: info.capacity,
            gathers: info.card == 0,
            generation: info.generation,
            rc,
        };
        let known = if info.card == 0 { &mut self.nodes } else { &mut self.cards };
        match known.iter_mut().find(|n| n.node == info.node) {
            Some(known) => *known = info,
            None => known.push(info),
        }
        Ok(connection)
    }
}

/// Returns the requester's half of a connection, whose packets go to `port`.
pub(super) fn requester(
    told: &ConnectionInfo,
    port: Port,
    params: &ConnParams,
) -> Result<rc::RequesterConfig, Error> {
    let Some(pmtu) = Pmtu::from_bytes(usize::from(told.pmtu)) else { return Err(wrong_answer("connect")) };
    Ok(rc::RequesterConfig {
        qpn: Qpn::new(told.qpn),
        peer_qpn: Qpn::new(told.peer_qpn),
        port,
        first_psn: Psn::new(told.first_psn),
        rkey: Rkey(told.rkey),
        pmtu,
        window_psns: params.window_psns,
        depth: params.depth,
        queue_max: params.queue_max,
        timeout: params.timeout,
        retries_max: params.retries_max,
        rnr_retries_max: params.retries_max,
    })
}

/// Returns the location of a vma in the form of the host role.
pub(super) fn located(LocatedVma { vma, moved, lost }: LocatedVma) -> Located {
    let piece =
        |moved: &MovedInfo| Piece { base: VirtAddr(moved.base), len: moved.size, node: NodeId(moved.node) };
    Located {
        base: VirtAddr(vma.base),
        len: vma.size,
        pieces: moved.iter().map(piece).collect(),
        lost: lost.iter().map(|lost| (VirtAddr(lost.base), lost.len)).collect(),
    }
}

/// Returns the host role's reply for a refusal.
fn refused(error: &Error) -> Reply {
    if error.code() == Some(ErrorCode::NotFound) { Reply::NotFound } else { Reply::Unavailable }
}
