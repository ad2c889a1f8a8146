//! Decisions about requests: an immediate answer, or a change to begin (PROTOCOL 8.10 to 8.14).

use crate::allocate::{Placement, VA_END, vma_size};
use crate::api::{
    self, Allocate, ApiError, Connect, CreateDomain, Disconnect, DomainInfo, ErrorCode, Free, Grant, Mmap,
    Mprotect, Munmap, OpenSession, PermName, Request, Response,
};
use crate::card_numbers::check_psn;
use crate::errors::{LISTED, bad, bound, error, not_found};
use crate::grants;
use crate::members::name_allowed;
use crate::record::{ChangeKind, ConnectionRow, Key, Line, Role, SessionRow, Span, ThroughRow, VmaRow};
use crate::soft::SoftRequest;
use crate::syscalls::Call;
use crate::updates::Reach;
use crate::{Actions, Control, Pending, builds, reply};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use farmem_index::NODE_ALIGN;
use farmem_wire::{Psn, Qpn};

/// The decision about a request.
pub(crate) enum Decision<A> {
    /// Answer.
    Reply(A),
    /// Keep this line, then answer.
    Keep(Line, A),
    /// Begin this change. The answer comes with its end.
    Begin(ChangeKind),
    /// Answer when this switch has reported on its image.
    Soft(Role, SoftRequest),
    /// Answer when this node has looked at this file.
    Look { node: u16, file: String },
}

/// The decision about a request of this type, or why it is refused.
pub(crate) type Decided<C> = Result<Decision<<C as api::Call>::Answer>, ApiError>;

/// Converts the decision about a request of one type to one about any request.
fn any<C: api::Call>(_: &C, decided: Decided<C>) -> Decided<Request>
where
    Response: From<C::Answer>,
{
    decided.map(|decision| match decision {
        Decision::Reply(answer) => Decision::Reply(answer.into()),
        Decision::Keep(line, answer) => Decision::Keep(line, answer.into()),
        Decision::Begin(what) => Decision::Begin(what),
        Decision::Soft(role, want) => Decision::Soft(role, want),
        Decision::Look { node, file } => Decision::Look { node, file },
    })
}

/// Draws within which a free queue pair number must have come up: one in 2^24 is taken for each one in use.
const DRAWS_MAX: u32 = 1 << 16;

impl Control {
    pub(crate) fn decide(&mut self, request: &Request) -> Decided<Request> {
        match request {
            Request::JoinSwitch(call) => any(call, self.join_switch(&call.gid)),
            Request::JoinIndex(call) => any(call, self.join_index(call)),
            Request::JoinNode(call) => any(call, self.join_node(call)),
            Request::JoinHost(call) => any(call, self.join_host(call)),
            Request::Stay(call) => any(call, self.stay(call)),
            Request::Leave(call) => any(call, self.leave(call.port, call.generation)),
            Request::ActFor(call) => any(call, self.act_for(call)),
            Request::CreateDomain(call) => any(call, self.create_domain(&call.name)),
            Request::OpenSession(call) => any(call, self.open_session(call.host, call.domain)),
            Request::Connect(call) => any(call, self.connect(call)),
            Request::Disconnect(call) => any(call, self.disconnect(call.host, call.qpn)),
            Request::Allocate(call) => any(call, self.allocate(call)),
            Request::Free(call) => any(call, self.free(call.domain, call.base, call.id)),
            Request::Grant(call) => any(call, self.grant(call)),
            Request::ProcessStart(call) => any(call, self.process_start(call.domain, call.heap)),
            Request::ProcessExit(call) => any(call, self.process_exit(call.process)),
            Request::Mmap(call) => {
                let &Mmap { process, addr, len, prot, flags } = call;
                any(call, self.memory_call(process, &Call::Mmap { addr, len, prot, flags }))
            }
            Request::Munmap(call) => {
                let &Munmap { process, addr, len } = call;
                any(call, self.memory_call(process, &Call::Munmap { addr, len }))
            }
            Request::Mprotect(call) => {
                let &Mprotect { process, addr, len, prot } = call;
                any(call, self.memory_call(process, &Call::Mprotect { addr, len, prot }))
            }
            Request::Brk(call) => any(call, self.memory_call(call.process, &Call::Brk { addr: call.addr })),
            Request::Renew(call) => {
                any(call, self.renew(call.host, call.generation, (call.flushed, call.qkey)))
            }
            Request::Recover(call) => any(call, self.recover(call.host, call.page)),
            Request::AcceptLost(call) => any(call, self.accept_lost(call.domain, call.base, call.len)),
            Request::OpenObject(call) => any(call, self.open_object(call)),
            Request::HoldObject(call) => any(call, self.hold_object(call)),
            Request::ResizeObject(call) => any(call, self.resize_object(call.host, call.object, call.length)),
            Request::UnlinkObject(call) => any(call, self.unlink_object(call.domain, &call.name)),
            Request::DropObject(call) => any(call, self.drop_object(call.host, call.object)),
            Request::LookFile(call) => any(call, self.look_file(call)),
            Request::LoadObject(call) => any(call, self.load_object(call)),
            Request::SaveObject(call) => any(call, self.save_object(call)),
            Request::ListObjects(call) => any(call, self.list_objects(call)),
            Request::Migrate(call) => any(call, self.migrate(call.domain, call.base, call.len, call.node)),
            Request::ShowObject(call) => any(call, self.show_object(call.domain, &call.name)),
            Request::Locate(call) => any(call, self.locate(call.addr)),
            Request::SoftLoad(call) => any(call, self.soft_load(call)),
            Request::SoftRead(call) => any(call, self.soft_read(call)),
            Request::SoftCounts(call) => any(call, self.soft_counts(call)),
            Request::SoftShow(call) => any(call, self.soft_show(call.switch)),
            Request::SoftClear(call) => any(call, self.soft_clear(call)),
            Request::Usage(call) => any(call, Ok(Decision::Reply(self.usage()))),
            Request::Overview(call) => any(call, Ok(Decision::Reply(self.overview()))),
        }
    }

    /// Begins the change that a request asks for. The request is answered when the change ends.
    pub(crate) fn begin_request(&mut self, pending: Pending, what: ChangeKind, out: &mut Actions) {
        let change = self.state.next_change;
        let (ticket, build, port) =
            (pending.ask.ticket, pending.ask.shown.build.clone(), builds::joining(&what));
        self.asked.insert(change, pending);
        if self.keep(Line::Began { change, what }, out).is_err() {
            self.asked.remove(&change);
            return reply(ticket, Err(self.stall_error("nothing was changed")), out);
        }
        if let Some(port) = port {
            self.joined_as(port, build, out);
        }
    }

    fn create_domain(&mut self, name: &str) -> Decided<CreateDomain> {
        name_allowed("domain", name)?;
        if let Some((&domain, _)) = self.state.domains.iter().find(|(_, known)| *known == name) {
            self.idle.named(domain, self.now);
            return Ok(Decision::Reply(DomainInfo { domain, key: self.domain_key(domain) }));
        }
        let most = self.config.bounds.domains_max;
        if self.state.domains.len() >= most {
            return Err(bound("domains", most));
        }
        let domain = self.state.free_domain();
        let info = DomainInfo { domain, key: self.domain_key(domain) };
        Ok(Decision::Keep(Line::Domain { domain, name: String::from(name) }, info))
    }

    fn open_session(&mut self, host: u16, domain: u32) -> Decided<OpenSession> {
        self.host_present(host)?;
        self.domain_known(domain)?;
        self.switch_joined()?;
        let open = self.state.sessions.values().find(|row| (row.host, row.domain) == (host, domain));
        if let Some(row) = open {
            return Ok(Decision::Reply(self.session(row)));
        }
        let most = self.config.bounds.sessions_max;
        if self.state.sessions.len() + self.in_flight(|what| matches!(what, ChangeKind::OpenSession(_)))
            >= most
        {
            return Err(bound("sessions", most));
        }
        Ok(Decision::Begin(ChangeKind::OpenSession(SessionRow { key: self.draw_key(), host, domain })))
    }

    fn connect(&mut self, call: &Connect) -> Decided<Connect> {
        let &Connect { host, node, domain, qpn, first_psn, through, root } = call;
        self.host_present(host)?;
        self.domain_known(domain)?;
        self.node_answers(node)?;
        let most = self.config.bounds.connections_max;
        if self.state.connections.len() + self.in_flight(|what| matches!(what, ChangeKind::Connect(_)))
            >= most
        {
            return Err(bound("connections", most));
        }
        qpn.map_or(Ok(()), |qpn| self.check_card_qpn(host, qpn))?;
        first_psn.map_or(Ok(()), check_psn)?;
        let through = self.through_switch(through, root)?;
        let card = self.card_takes(node, domain)?;
        if through.is_some() && card.is_some() {
            let remedy =
                "leave `through` out: a card's queue pair is set up for the host, and knows no switch";
            return Err(bad(format!("node {node} is memory that a card registered"), remedy));
        }
        let qpn = qpn.unwrap_or_else(|| self.draw_qpn(&[]));
        let (peer_qpn, rkey) = match card {
            Some(given) => given,
            None => (self.draw_qpn(&[qpn]), self.draw_secret()),
        };
        let through = through.map(|root| {
            let to_node = self.draw_qpn(&[qpn, peer_qpn]);
            ThroughRow { to_node, to_host: self.draw_qpn(&[qpn, peer_qpn, to_node]), root }
        });
        let row = ConnectionRow {
            host,
            node,
            domain,
            qpn,
            peer_qpn,
            first_psn: first_psn.unwrap_or_else(|| Psn::new(self.rng.next_u32()).get()),
            rkey,
            pmtu: self.config.pmtu as u16,
            through,
        };
        Ok(Decision::Begin(ChangeKind::Connect(row)))
    }

    /// Returns the root of the tree of a connection through the switch, 0 for none (PROTOCOL 15.12).
    fn through_switch(&self, through: bool, root: Option<u64>) -> Result<Option<u64>, ApiError> {
        match root {
            Some(_) if !through => {
                let remedy = "give `through` true, or no root: without a switch on the way no READ has a key";
                return Err(bad("a root for a connection that does not go through the switch", remedy));
            }
            Some(root) if root == 0 || !root.is_multiple_of(NODE_ALIGN) => {
                let remedy = "give the address of the tree's root, or no root";
                return Err(bad(
                    format!("{root:#x} is no root: not a multiple of {NODE_ALIGN}, or 0"),
                    remedy,
                ));
            }
            _ if !through => return Ok(None),
            _ => {}
        }
        self.switch_joined()?;
        Ok(Some(root.unwrap_or(0)))
    }

    fn disconnect(&self, host: u16, qpn: u32) -> Decided<Disconnect> {
        self.host_present(host)?;
        let row = self.state.connections.get(&(host, qpn));
        let unknown = || {
            let message = format!("host {host} has no connection with queue pair {qpn}");
            not_found(message, "connections end when the host or the node starts again: connect anew")
        };
        Ok(Decision::Begin(ChangeKind::Disconnect(row.ok_or_else(unknown)?.clone())))
    }

    pub(crate) fn allocate(&self, &Allocate { domain, size, node, durable }: &Allocate) -> Decided<Allocate> {
        self.domain_known(domain)?;
        if size == 0 {
            return Err(bad("size is 0", "ask for at least 1 byte"));
        }
        self.switch_answers()?;
        let most = self.config.bounds.vmas_max;
        if self.state.vmas.len() >= most {
            return Err(bound("vmas", most));
        }
        let mut nodes: Vec<u16> = match node {
            Some(node) => {
                self.node_answers(node)?;
                self.card_is_of(node, domain)?;
                Vec::from([node])
            }
            None => {
                let ready = |node: &u16| self.state.reach(Role::Node(*node)) == Some(Reach::Ready);
                self.state
                    .nodes
                    .keys()
                    .copied()
                    .filter(ready)
                    .filter(|&node| !self.state.is_card(node))
                    .collect()
            }
        };
        if nodes.is_empty() {
            let message = "no memory node has joined and answers";
            return Err(error(ErrorCode::Unavailable, message, "start a memory node, then ask again"));
        }
        // MIND 4.1: the least allocated node comes first. The sort is stable, so that among equals the lowest
        // number comes first.
        nodes.sort_by_cached_key(|&node| self.state.allocated(node, true));
        let vma = vma_size(size).filter(|&size| size < VA_END);
        let placed = vma.and_then(|size| Some((size, self.state.place_vma(&nodes, size)?)));
        match placed {
            Some((size, _)) if self.room_of(domain) < size => Err(self.over_its_limit(domain, size)),
            Some((size, Placement { base, node, pieces })) => {
                self.room_for_pieces(pieces.len())?;
                let (object, file) = (None, None);
                Ok(Decision::Begin(ChangeKind::Allocate {
                    base,
                    size,
                    node,
                    domain,
                    durable,
                    object,
                    file,
                    pieces,
                }))
            }
            None => Err(self.out_of_memory(size, vma, &nodes)),
        }
    }

    fn out_of_memory(&self, size: u64, vma: Option<u64>, nodes: &[u16]) -> ApiError {
        let free = |node: &u16| {
            let capacity = self.state.nodes.get(node).map_or(0, |row| row.capacity);
            capacity - self.state.allocated(*node, true)
        };
        let most = nodes.iter().map(free).max().unwrap_or(0);
        let message = match vma {
            Some(rounded) => format!(
                "an allocation of {size} bytes needs {rounded} free bytes in one piece; of {} nodes asked, none has that (most free: {most})",
                nodes.len()
            ),
            None => format!("an allocation of {size} bytes is longer than the addresses of a rack"),
        };
        error(ErrorCode::OutOfMemory, message, "ask for less, free vmas, or add a memory node")
    }

    /// Frees the named allocation, and no other that has its addresses by now (PROTOCOL 8.47).
    pub(crate) fn free(&self, domain: u32, base: u64, id: u64) -> Decided<Free> {
        self.domain_known(domain)?;
        let present = self.state.vma_at(base).filter(|(_, vma)| vma.pending.is_none());
        if let Some((first, vma)) = present.filter(|(_, vma)| vma.id != id) {
            let message = format!(
                "allocation {id} is not at {base:#x}: allocation {} is, with {} bytes from {first:#x}",
                vma.id, vma.size
            );
            return Err(not_found(message, format!("it was freed if it ever was there; {LISTED}")));
        }
        let (first, vma) = self.owned(domain, base)?;
        if first != base {
            let message = format!(
                "{base:#x} is inside the vma of {} bytes at {first:#x}, not its first byte",
                vma.size
            );
            return Err(bad(message, format!("free {first:#x}")));
        }
        if self.state.space_of(base).is_some() {
            let message = format!("the vma at {base:#x} is part of the address space of domain {domain}");
            return Err(error(ErrorCode::Conflict, message, "use `munmap`, or end its processes"));
        }
        if self.state.object_at(base).is_some() {
            let message = format!("the vma at {base:#x} is the memory of a named object");
            return Err(error(
                ErrorCode::Conflict,
                message,
                "use `unlink_object`: it goes with its last user",
            ));
        }
        self.switch_answers()?;
        Ok(Decision::Begin(ChangeKind::Free { base }))
    }

    fn grant(&self, &Grant { domain, base, len, to, perm }: &Grant) -> Decided<Grant> {
        self.domain_known(domain)?;
        self.domain_known(to)?;
        let (first, vma) = self.owned(domain, base)?;
        let end = first + vma.size;
        if len == 0 || base.checked_add(len).is_none_or(|last| last > end) {
            let message =
                format!("{len} bytes from {base:#x} are not a part of the vma {first:#x}..{end:#x}");
            return Err(bad(message, format!("give 1 to {} bytes", end - base)));
        }
        if to == domain {
            return Err(bad(
                format!("domain {to} owns the vma"),
                "an owner may read and write; grant it to another domain",
            ));
        }
        let old = self.state.grants_of(first, to);
        let new = grants::overlay(old, Span { base, len, perm });
        if new == old {
            return Ok(Decision::Reply(()));
        }
        let all =
            self.state.vmas.values().flat_map(|vma| &vma.grants).map(|(_, spans)| spans.len()).sum::<usize>();
        // A grant inside a span of another class makes two more spans.
        let coming = 2 * self.in_flight(|what| matches!(what, ChangeKind::Grant { .. }));
        let most = self.config.bounds.grants_max;
        if perm != PermName::None && all + coming + new.len() > most + old.len() {
            return Err(bound("grants", most));
        }
        self.no_card(vma.node, "granted to other domains")?;
        if perm == PermName::ReadWrite {
            self.no_file(first, "granted to be written")?;
        }
        self.node_answers(vma.node)?;
        self.switch_answers()?;
        Ok(Decision::Begin(ChangeKind::Grant { vma: first, base, len, to, perm }))
    }

    pub(crate) fn in_flight(&self, kind: impl Fn(&ChangeKind) -> bool) -> usize {
        self.state.changes.values().filter(|change| kind(&change.what)).count()
    }

    /// Returns the vma that holds `addr`, if it belongs to the domain.
    pub(crate) fn owned(&self, domain: u32, addr: u64) -> Result<(u64, &VmaRow), ApiError> {
        let found = self.state.vma_at(addr).filter(|(_, vma)| vma.pending.is_none());
        let Some((base, vma)) = found else {
            return Err(not_found(
                format!("no vma holds {addr:#x}"),
                format!("it may have been freed; {LISTED}"),
            ));
        };
        if vma.domain != domain {
            let message = format!("the vma at {base:#x} does not belong to domain {domain}");
            return Err(error(ErrorCode::NotOwner, message, "ask as the domain that allocated it"));
        }
        Ok((base, vma))
    }

    pub(crate) fn domain_known(&self, domain: u32) -> Result<(), ApiError> {
        if self.state.domains.contains_key(&domain) {
            return Ok(());
        }
        Err(not_found(format!("there is no domain {domain}"), "make one with `create_domain`"))
    }

    pub(crate) fn host_present(&self, host: u16) -> Result<(), ApiError> {
        if self.state.hosts.get(&host).is_some_and(|row| row.present) {
            return Ok(());
        }
        Err(not_found(format!("there is no host {host}"), "join with `join_host`; its answer has the number"))
    }

    /// Refuses a request if the switch has not joined or cannot be updated.
    pub(crate) fn switch_joined(&self) -> Result<(), ApiError> {
        if self.state.switch.is_none() {
            return Err(self.state.unavailable(Role::Switch, "has not joined"));
        }
        self.switch_answers()
    }

    /// Refuses a request if the switch has joined but cannot be updated.
    pub(crate) fn switch_answers(&self) -> Result<(), ApiError> {
        match (&self.state.switch, self.state.reach(Role::Switch)) {
            (None, _) | (_, Some(Reach::Ready | Reach::Held)) => Ok(()),
            (_, Some(Reach::Silent)) => Err(self.state.unavailable(Role::Switch, "does not answer")),
            (_, None) => Err(self.state.unavailable(Role::Switch, "refused its tables and must join again")),
        }
    }

    pub(crate) fn node_answers(&self, node: u16) -> Result<(), ApiError> {
        if !self.state.nodes.contains_key(&node) {
            return Err(not_found(format!("there is no node {node}"), LISTED));
        }
        let role = Role::Node(node);
        match self.state.reach(role) {
            Some(Reach::Ready | Reach::Held) => Ok(()),
            Some(Reach::Silent) => Err(self.state.unavailable(role, "does not answer")),
            None => Err(self.state.unavailable(role, "must join again")),
        }
    }

    /// Draws a new, unguessable endpoint.
    pub(crate) fn draw_key(&mut self) -> Key {
        Key { qpn: self.draw_qpn(&[]), qkey: self.draw_qkey() }
    }

    /// Draws a queue pair number that is free and none of `others`.
    fn draw_qpn(&mut self, others: &[u32]) -> u32 {
        for _ in 0..DRAWS_MAX {
            let qpn = Qpn::FIRST_FREE + self.rng.below(Qpn::MAX + 1 - Qpn::FIRST_FREE);
            if !others.contains(&qpn) && !self.state.uses_qpn(qpn) {
                return qpn;
            }
        }
        unreachable!("the bounds leave most queue pair numbers free")
    }

    /// Draws an rkey other than zero, which means a keyed READ.
    fn draw_secret(&mut self) -> u32 {
        self.rng.next_u32().max(1)
    }

    /// Draws a Q_Key that a card can send. With the top bit set the card would send its own queue pair's key
    /// instead (PROTOCOL 14.4), and zero means none.
    fn draw_qkey(&mut self) -> u32 {
        (self.rng.next_u32() >> 1).max(1)
    }
}
