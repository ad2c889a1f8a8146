//! The hosts: requests to them, their outputs, and the drivers' part in their requests to the control plane.

use super::joins::CARD_QPN;
use super::{PendingRequest, World};
use crate::HostMachine;
use crate::sim_node::RoleId;
use farmem_control::api::{
    ApiError, Connect, Disconnect, ErrorCode, Locate, LocatedVma, MovedInfo, Overview, Request, Response,
};
use farmem_host::{
    ControlRequest, ControlRequestKind, Done, Host, HostRequest, Located, Op, Out, Piece, Reply,
};
use farmem_machine::Event;
use farmem_wire::{Domain, NodeId, VirtAddr};

impl<H: HostMachine> World<H> {
    /// Sends a request to a host. Returns false if it is down.
    pub fn tell_host(&mut self, host: u16, ask: HostRequest) -> bool {
        self.tell_host_machine(host, H::ask(ask))
    }

    /// Submits an operation to a host under a ticket of the caller. Returns false if the host is down.
    /// [`World::take_done`] returns the end.
    pub fn submit(&mut self, host: u16, ticket: u64, domain: u32, op: Op) -> bool {
        self.tell_host(host, HostRequest::Submit { ticket, domain: Domain(domain), op })
    }

    /// Sends a request to a host's machine. Returns false if it is down.
    pub fn tell_host_machine(&mut self, host: u16, ask: H::In) -> bool {
        let up = self.is_up(RoleId::Host(host));
        self.host_event(host, Event::Local(ask));
        self.carry_control_requests();
        up
    }

    pub(super) fn host_event(&mut self, host: u16, event: Event<'_, H::In>) {
        let Self { hosts, env, done, own, control_requests, .. } = self;
        let Some(sim_node) = hosts.get_mut(&host) else { return };
        sim_node.event(event, env, |out| match H::said(out) {
            Ok(Out::Done(end)) => done.push_back((host, end)),
            Ok(Out::Control(request_of_host)) => control_requests.push_back((host, request_of_host)),
            Err(said) => own.push_back((host, said)),
        });
    }

    /// Sends a request to the host role within the machine.
    pub(super) fn host_ask(&mut self, host: u16, ask: HostRequest) {
        self.host_event(host, Event::Local(H::ask(ask)));
    }

    /// Takes the next ended operation, with its host.
    pub fn take_done(&mut self) -> Option<(u16, Done)> {
        let (host, done) = self.done.pop_front()?;
        let now = self.env.now;
        self.env.journal.event(now, done.ticket, &done.buf);
        Some((host, done))
    }

    /// Takes the next output of a host's machine that is not one of the host role.
    pub fn take_own(&mut self) -> Option<(u16, H::Own)> {
        self.own.pop_front()
    }

    /// Returns true if the host's connection in `domain` to the node is down.
    #[must_use]
    pub fn is_down(&self, host: u16, domain: u32, node: u16) -> bool {
        self.role_of(host).is_some_and(|role| role.is_down(Domain(domain), NodeId(node)))
    }

    /// Returns the number of setups of the host's connection in `domain` to the node.
    #[must_use]
    pub fn connects(&self, host: u16, domain: u32, node: u16) -> u32 {
        self.connected.get(&(host, domain, node)).map_or(0, |connected| connected.count)
    }

    /// Returns true if the node has restarted since that connection was set up, and so does not know it.
    #[must_use]
    pub fn is_stale(&self, host: u16, domain: u32, node: u16) -> bool {
        let connected = self.connected.get(&(host, domain, node));
        connected.is_some_and(|connected| connected.starts != self.starts_of(RoleId::Node(node)))
    }

    /// Returns the memory node that has an address, as far as the host knows.
    #[must_use]
    pub fn node_of(&self, host: u16, domain: u32, addr: u64) -> Option<u16> {
        self.role_of(host)?.node_of(Domain(domain), VirtAddr(addr)).map(|node| node.0)
    }

    fn role_of(&self, host: u16) -> Option<&Host> {
        self.host_machine(host).map(H::host)
    }

    /// Returns the machine on a host, while it is up.
    #[must_use]
    pub fn host_machine(&self, host: u16) -> Option<&H> {
        self.hosts.get(&host)?.role.as_ref()
    }

    /// Returns the machine on a host, to examine its memory; requests go through [`World::tell_host_machine`].
    pub fn host_machine_mut(&mut self, host: u16) -> Option<&mut H> {
        self.hosts.get_mut(&host)?.role.as_mut()
    }

    /// Passes each request of the hosts to the control plane, as their drivers do.
    pub(super) fn carry_control_requests(&mut self) {
        while let Some((host, request_of_host)) = self.control_requests.pop_front() {
            let ControlRequest { number, kind } = request_of_host;
            self.env.journal.line(|| format!("  host {host} wants {kind:?}"));
            let request: Request = match kind {
                ControlRequestKind::Locate { addr } => Locate { addr: addr.0 }.into(),
                ControlRequestKind::Disconnect { qpn } | ControlRequestKind::DisconnectExtra { qpn } => {
                    Disconnect { host, qpn: qpn.get() }.into()
                }
                ControlRequestKind::NodeGeneration { .. } => Overview {}.into(),
                ControlRequestKind::Connect { domain, node }
                | ControlRequestKind::ConnectExtra { domain, node } => {
                    // Requests have unique numbers, so each connection of a host gets its own queue pair.
                    let own = || CARD_QPN + 1 + u32::try_from(number % 1_000_000).expect("small");
                    let qpn = self.layout.cards.then(own);
                    Connect { qpn, ..Connect::new(host, node.0, domain.0) }.into()
                }
            };
            self.ask_for(RoleId::Host(host), request, Some(request_of_host));
        }
    }

    /// Returns the answer to the host, unless it has restarted since.
    pub(super) fn answer_control_request(
        &mut self,
        pending: &PendingRequest,
        number: u64,
        result: Result<Response, ApiError>,
    ) {
        let RoleId::Host(host) = pending.by else { unreachable!("only hosts want anything") };
        if pending.start != self.starts_of(pending.by) {
            return;
        }
        let reply = match result {
            Ok(response @ Response::Connection(_)) => {
                self.env.journal.line(|| format!("host {host} has a connection"));
                return self.act_on(pending, &response);
            }
            Ok(Response::Located(LocatedVma { vma, moved, lost })) => {
                let piece = |piece: &MovedInfo| {
                    let (base, len, node) = (VirtAddr(piece.base), piece.size, NodeId(piece.node));
                    Piece { base, len, node }
                };
                Reply::Located(Located {
                    base: VirtAddr(vma.base),
                    len: vma.size,
                    pieces: moved.iter().map(piece).collect(),
                    lost: lost.iter().map(|lost| (VirtAddr(lost.base), lost.len)).collect(),
                })
            }
            Ok(Response::Overview(seen)) => {
                let Some(ControlRequest { kind: ControlRequestKind::NodeGeneration { node }, .. }) =
                    pending.request_of_host
                else {
                    unreachable!("nothing else asks for the overview")
                };
                let known = seen.nodes.iter().find(|known| known.node == node.0);
                known.map_or(Reply::NotFound, |known| Reply::NodeGeneration(known.generation))
            }
            Ok(_) => Reply::Disconnected,
            Err(error) if error.code == ErrorCode::NotFound => Reply::NotFound,
            Err(_) => Reply::Unavailable,
        };
        self.env.journal.line(|| format!("host {host} is told {reply:?}"));
        self.host_ask(host, HostRequest::Reply { number, reply });
    }
}
