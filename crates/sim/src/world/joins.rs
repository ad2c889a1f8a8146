//! Joins: how machines enter the rack, and the drivers' handling of the control plane's answers.

use super::{Connected, JOIN_AGAIN, Layout, PendingRequest, World};
use crate::HostMachine;
use crate::sim_node::RoleId;
use farmem_control::api::{
    ApiError, Connect, ConnectionInfo, Endpoint, HostJoined, IndexJoined, JoinHost, JoinNode, JoinSwitch,
    NodeInfo, NodeJoined, Request, Response, SessionInfo, SwitchJoined,
};
use farmem_control::keys::Secret;
use farmem_control::{Config as ControlConfig, Control, Out, Submitted as ControlAsk};
use farmem_host::{Config as HostConfig, Connection, ControlRequest, ControlRequestKind, HostRequest};
use farmem_machine::{Event, Port, Rng};
use farmem_memnode::{Budget, Config as NodeConfig, MemNode, VecStore};
use farmem_switch::Switch;
use farmem_transport::{rc, ud};
use farmem_wire::{Domain, Gid, HostId, NodeId, Pmtu, Psn, Qkey, Qpn, Rkey, VirtAddr};
use std::num::NonZero;

/// The first queue pair of each host that numbers them itself, for its datagrams.
pub(super) const CARD_QPN: u32 = 2;
/// The Q_Key of that queue pair.
const CARD_QKEY: u32 = 0x77;

/// Window in PSNs of each connection if there are several.
const FEW_PSNS: u32 = 3;

impl<H: HostMachine> World<H> {
    /// Starts a machine: the control plane from its log, the others with a join request. Has no effect on one
    /// that is up or joining.
    ///
    /// # Panics
    ///
    /// If the control plane rejects its own log.
    pub fn start(&mut self, role_id: RoleId) {
        if self.is_up(role_id)
            || self.pending.values().any(|pending| pending.by == role_id && joins(&pending.request))
        {
            return;
        }
        self.env.journal.line(|| format!("{role_id:?} starts"));
        let gid = format!("{:?}", role_id.gid());
        let request: Request = match role_id {
            RoleId::Control => return self.start_control(),
            RoleId::Switch => JoinSwitch { gid }.into(),
            RoleId::Node(n) => JoinNode::new(format!("node{n}"), gid, self.layout.capacity).into(),
            RoleId::Host(n) => {
                let (qpn, qkey) =
                    if self.layout.cards { (Some(CARD_QPN), Some(CARD_QKEY)) } else { (None, None) };
                JoinHost { qpn, qkey, ..JoinHost::new(format!("host{n}"), gid) }.into()
            }
            RoleId::Index(n) => self.layout.index_join(n).into(),
        };
        self.ask(role_id, request);
    }

    fn start_control(&mut self) {
        let Layout { pmtu, timeout, retries_max, lease, host_lease, epoch, .. } = self.layout;
        let usual = ControlConfig::new(RoleId::Control.gid());
        let secret = Some(Secret::new(&[0x5e; 32]));
        let config = ControlConfig { pmtu, timeout, retries_max, lease, host_lease, epoch, secret, ..usual };
        let rng = Rng::from_number(self.rng.next_u64());
        let role = Control::restore(config, rng, self.log.iter().cloned());
        self.control.start(role.expect("the log is the control plane's own"), []);
    }

    pub(super) fn control_event(&mut self, event: Event<'_, ControlAsk>) {
        let mut outs = Vec::new();
        self.control.event(event, &mut self.env, |out| outs.push(out));
        self.control_outs(outs);
    }

    pub(super) fn control_outs(&mut self, outs: Vec<Out>) {
        for out in outs {
            match out {
                Out::Persist(record) => self.log.push(record),
                Out::Reply { ticket, result } => self.answer(ticket, result),
                Out::Peer(_) | Out::Challenge { .. } => {}
            }
        }
    }

    /// Ends a call: its driver acts on the answer, then the caller may take it.
    pub(super) fn answer(&mut self, ticket: u64, result: Result<Response, ApiError>) {
        let pending = self.pending.remove(&ticket);
        if pending.as_ref().is_none_or(|pending| pending.request_of_host.is_none()) {
            self.env.journal.line(|| match &result {
                Ok(response) => format!("answer {ticket}: {response:?}"),
                Err(error) => format!("answer {ticket}: {:?}: {}", error.code, error.message),
            });
        }
        if let (Some(pending), Ok(response)) = (&pending, &result) {
            self.ring.learn(&pending.request, response);
        }
        let Some(pending) = pending else {
            self.replies.insert(ticket, result);
            return;
        };
        if let Some(request_of_host) = pending.request_of_host {
            return self.answer_control_request(&pending, request_of_host.number, result);
        }
        if pending.start == self.starts_of(pending.by) {
            match &result {
                Ok(response) => self.act_on(&pending, response),
                Err(_) if joins(&pending.request) => self.start_later(pending.by, JOIN_AGAIN),
                Err(_) => {}
            }
        }
        if !joins(&pending.request) {
            self.replies.insert(ticket, result);
        }
    }

    pub(super) fn act_on(&mut self, pending: &PendingRequest, response: &Response) {
        match (pending.by, response) {
            (RoleId::Switch, Response::Joined(SwitchJoined { home, control, .. })) => {
                let life = NonZero::<u32>::MIN.saturating_add(self.starts_of(RoleId::Switch));
                let role = Switch::new(home_of(home, control), self.layout.budgets).in_life(life);
                self.switch.start(role, [place(control)]);
            }
            (RoleId::Index(n), Response::IndexJoined(IndexJoined { index, home, control, .. })) => {
                assert_eq!(*index, n, "machines join in the order of their numbers, and keep them");
                let role = Switch::new(home_of(home, control), self.layout.budgets);
                if let Some(sim_node) = self.index.get_mut(&n) {
                    sim_node.start(role, [place(control)]);
                }
            }
            (
                RoleId::Node(n),
                Response::NodeJoined(NodeJoined { node, home, control, base, capacity, .. }),
            ) => {
                self.bases.insert(n, *base);
                assert_eq!(*node, n, "machines join in the order of their numbers, and keep them");
                let bytes = usize::try_from(*capacity).expect("a small rack");
                let config = NodeConfig {
                    home: home_of(home, control),
                    pmtu: self.layout.pmtu,
                    budget: Budget::default(),
                };
                let role = MemNode::new(config, VecStore::new(bytes)).with_files();
                if let Some(sim_node) = self.nodes.get_mut(&n) {
                    sim_node.start(role, [place(control)]);
                }
            }
            (RoleId::Host(n), Response::HostJoined(HostJoined { host, generation, home, nodes, .. })) => {
                assert_eq!(*host, n, "machines join in the order of their numbers, and keep them");
                let config = HostConfig {
                    pmtu: self.layout.pmtu,
                    request_timeout: self.layout.timeout,
                    request_retries_max: self.layout.retries_max,
                    hops_max: self.layout.hops_max,
                    pairs_max: self.layout.pairs_max,
                    connections_each: self.layout.connections_each,
                    ..HostConfig::new(HostId(*host), *generation, endpoint(home))
                };
                if let Some(sim_node) = self.hosts.get_mut(&n) {
                    let role = (self.make)(config, &mut self.rng);
                    sim_node.start(role, nodes.iter().map(node_place));
                }
            }
            (RoleId::Host(n), Response::Session(SessionInfo { switch, domain })) => {
                let (port, gid) = place(switch);
                self.host_knows(n, port, gid);
                let switch = ud::Peer { port, endpoint: endpoint(switch) };
                let domain = Domain(*domain);
                self.host_ask(n, HostRequest::Session { domain, switch });
                for (node, base) in self.bases.clone() {
                    let (node, base, len) = (NodeId(node), VirtAddr(base), self.layout.capacity);
                    self.host_ask(n, HostRequest::Node { domain, node, base, len });
                }
            }
            (RoleId::Host(n), Response::Connection(told)) => {
                let ConnectionInfo { node, qpn, peer_qpn, first_psn, rkey, pmtu, through, .. } = told;
                let (port, gid) = match through {
                    Some(place) => (Port(place.port), gid(&place.gid)),
                    None => node_place(node),
                };
                self.host_knows(n, port, gid);
                let Request::Connect(Connect { domain, .. }) = pending.request else { return };
                let rc = rc::RequesterConfig {
                    qpn: Qpn::new(*qpn),
                    peer_qpn: Qpn::new(*peer_qpn),
                    port,
                    first_psn: Psn::new(*first_psn),
                    rkey: Rkey(*rkey),
                    pmtu: Pmtu::from_bytes(usize::from(*pmtu)).expect("the control plane's own"),
                    window_psns: if self.layout.connections_each > 1 { FEW_PSNS } else { 64 },
                    depth: rc::RESPONDER_DEPTH,
                    queue_max: 256,
                    timeout: self.layout.timeout,
                    retries_max: self.layout.retries_max,
                    rnr_retries_max: self.layout.retries_max,
                };
                if through.is_some() {
                    let domain = Domain(domain);
                    return self.host_ask(n, HostRequest::Open { domain, rc });
                }
                let (base, len) = (VirtAddr(node.base), node.capacity);
                let connection = Connection {
                    node: NodeId(node.node),
                    domain: Domain(domain),
                    base,
                    len,
                    gathers: true,
                    generation: node.generation,
                    rc,
                };
                if let Some(ControlRequest { kind: ControlRequestKind::ConnectExtra { .. }, number }) =
                    pending.request_of_host
                {
                    return self.host_ask(n, HostRequest::ConnectExtra { number, connection });
                }
                let starts = self.starts_of(RoleId::Node(node.node));
                let connected = self.connected.entry((n, domain, node.node));
                let connected = connected.or_insert(Connected { count: 0, starts });
                *connected = Connected { count: connected.count + 1, starts };
                self.host_ask(n, HostRequest::Connect(connection));
            }
            _ => {}
        }
    }

    fn host_knows(&mut self, host: u16, port: Port, gid: Gid) {
        if let Some(sim_node) = self.hosts.get_mut(&host) {
            sim_node.peer(port, gid);
        }
    }
}

const fn joins(request: &Request) -> bool {
    matches!(
        request,
        Request::JoinSwitch(_) | Request::JoinNode(_) | Request::JoinHost(_) | Request::JoinIndex(_)
    )
}

fn gid(text: &str) -> Gid {
    let octets: std::net::Ipv4Addr = text.parse().expect("addresses of a simulated rack are IPv4");
    Gid::from_v4(octets.octets())
}

fn place(endpoint: &Endpoint) -> (Port, Gid) {
    (Port(endpoint.port), gid(&endpoint.gid))
}

fn node_place(node: &NodeInfo) -> (Port, Gid) {
    (Port(node.port), gid(&node.gid))
}

fn endpoint(endpoint: &Endpoint) -> ud::Endpoint {
    ud::Endpoint { qpn: Qpn::new(endpoint.qpn), qkey: Qkey(endpoint.qkey) }
}

fn home_of(home: &Endpoint, control: &Endpoint) -> ud::RoleEndpoints {
    let control = ud::Peer { port: Port(control.port), endpoint: endpoint(control) };
    ud::RoleEndpoints { endpoint: endpoint(home), control }
}
