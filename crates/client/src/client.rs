//! A client: far memory as a program on one machine uses it.

mod attach;
mod beside;
mod connections;
mod explain;
mod far_memory;
mod places;
mod soft;
mod through;
pub use through::{Through, ThroughMemory};

use crate::allocations::Allocations;
use crate::client::connections::{ConnParams, IDS_RESERVE, Lane, takes_id};
use crate::config::DpuSection;
use crate::error::Error;
use crate::link::number_of_domain;
use crate::opened::Opened;
use crate::operation::{Completed, MESSAGE_MAX, Ticket, Traversal, Vma};
use crate::path::{Asker, Path};
use crate::policy::{Site, Tally};
use crate::renewals::Renewal;
use crate::slots::{Meta, Slots};
use farmem_control::MIGRATE_LEN_MAX;
use farmem_control::api::{
    Allocate, ApiError, Call, CreateDomain, Grant, HostJoined, Leave, NodeInfo, Overview, PermName,
    RackOverview,
};
use farmem_host::{Answer, ControlRequest, Done, HostRequest, Op, Out, Traversed};
use farmem_link::LinkProfile;
use farmem_machine::Port;
use farmem_traversal::Program;
use farmem_wire::{Domain, NodeId, VirtAddr};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

#[cfg(test)]
mod tests;

/// A program's access to far memory, in one protection domain.
///
/// Every operation has two forms: one that waits (`read`, `write`, ...), and [`Client::submit`] with [`Client::poll`] for
/// many at once. Work is done on the caller's thread, inside these calls; no thread runs behind it, but for one that asks the control plane for
/// more connections, where there may be several ([`ClientOptions::connections`](crate::ClientOptions::connections)).
pub struct Client {
    path: Box<dyn Path>,
    host: u16,
    generation: u16,
    domain: Domain,
    conn_params: ConnParams,
    nodes: Vec<NodeInfo>,
    /// Memory that cards registered, of whatever domain.
    cards: Vec<NodeInfo>,
    allocations: Allocations,
    opened: Opened,
    /// Control-plane requests of the host role that no caller waits for, each with the generation of its host.
    aside: Vec<(ControlRequest, u16)>,
    /// Something that it had open is not its any more: nothing is submitted again.
    lost_open: Option<ApiError>,
    /// Connections through the switch, by what names them.
    lanes: Vec<Option<Lane>>,
    slots: Slots,
    /// Completions that came while another one was waited for.
    ready: VecDeque<Completed>,
    /// True while it joins the rack again; requests of the join itself do not make it join once more.
    joining: bool,
    /// Buffers for reuse.
    pool: Vec<Vec<u8>>,
    tally: Tally,
    /// The DPU of its rack on this machine.
    dpu: Option<DpuSection>,
    /// Says that its host is there; none where the rack ends with this process.
    renewal: Option<Renewal>,
    /// The rack does not have its host any more.
    taken_out: bool,
    /// Where the switch of its session is.
    switch: String,
    /// Its allocations stay when its domain has no user.
    durable: bool,
    /// How long its operations wait for nodes that do not answer; zero within one process.
    patience: Duration,
    /// Nodes of which it was said that they are waited for.
    awaited: BTreeSet<u16>,
    /// Nodes that a connection was set up to since the client joined.
    reached: BTreeSet<u16>,
}

impl core::fmt::Debug for Client {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Client")
            .field("host", &self.host)
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

/// Buffers kept for reuse.
const POOL_MAX: usize = 64;

impl Client {
    /// Attaches a host that has just joined to the rack: a domain, and a session through the switch. Connections to memory nodes are set up on
    /// first use, so a node that is down fails only the operations that need it.
    pub(crate) fn attach(mut path: Box<dyn Path>, domain: &str, joined: HostJoined) -> Result<Self, Error> {
        let HostJoined { host, generation, nodes, cards, .. } = joined;
        let domain = path.call(CreateDomain { name: domain.into() })?.domain;
        let pool = Vec::with_capacity(POOL_MAX);
        let mut client = Self {
            path,
            host,
            generation,
            domain: Domain(domain),
            conn_params: ConnParams::default(),
            nodes,
            cards,
            allocations: Allocations::default(),
            opened: Opened::default(),
            aside: Vec::new(),
            lost_open: None,
            lanes: Vec::new(),
            slots: Slots::default(),
            ready: VecDeque::new(),
            joining: false,
            pool,
            tally: Tally::default(),
            dpu: None,
            renewal: None,
            taken_out: false,
            switch: String::new(),
            durable: false,
            patience: Duration::ZERO,
            awaited: BTreeSet::new(),
            reached: BTreeSet::new(),
        };
        client.open_session()?;
        client.name_cards()?;
        for node in client.nodes.clone() {
            client.name_node(&node)?;
        }
        Ok(client)
    }

    /// Allocates at least `size` bytes on the node with the least allocated; zeroed.
    ///
    /// # Errors
    /// [`Error::Refused`] when no node has room.
    pub fn allocate(&mut self, size: u64) -> Result<Vma, Error> {
        self.allocate_at(size, None)
    }

    /// Allocates at least `size` bytes on `node`; zeroed.
    ///
    /// # Errors
    /// [`Error::Refused`] when the node does not exist or has no room.
    pub fn allocate_on(&mut self, size: u64, node: NodeId) -> Result<Vma, Error> {
        self.allocate_at(size, Some(node.0))
    }

    fn allocate_at(&mut self, size: u64, node: Option<u16>) -> Result<Vma, Error> {
        let vma = self.path.call(Allocate { domain: self.domain.0, size, node, durable: self.durable })?;
        self.allocations.made(&vma);
        // Memory that a client has allocated stays usable without the control plane, so the connection is made now.
        if !self.reached.contains(&vma.node)
            && let Err(error) = self.connect(vma.node)
        {
            // The caller is not told. Memory that the control plane does not take back goes with the domain.
            let _freed = self.free(VirtAddr(vma.base));
            return Err(error);
        }
        // An older route of these addresses belongs to memory that was freed. One that begins away from its addresses is at one node, unless it is too long.
        let at_home = |known: &NodeInfo| vma.base.wrapping_sub(known.base) < known.capacity;
        let away = self.nodes.iter().find(|known| at_home(known)).is_some_and(|home| home.node != vma.node);
        let node = (away && vma.size <= MIGRATE_LEN_MAX).then_some(NodeId(vma.node));
        self.path.submit(HostRequest::Route { base: VirtAddr(vma.base), len: vma.size, node })?;
        Ok(Vma { base: VirtAddr(vma.base), size: vma.size, node: NodeId(vma.node) })
    }

    /// Frees an allocation. Its addresses are refused from then on. Repeated after an error, it frees this allocation and no later one.
    ///
    /// # Errors
    /// [`Error::Refused`] when this domain does not own an allocation that starts at `base`.
    pub fn free(&mut self, base: VirtAddr) -> Result<(), Error> {
        self.allocations.free(self.domain.0, base, |request| self.path.call(request))
    }

    /// Lets the domain called `to` use `len` bytes at `base`, which this domain owns.
    ///
    /// # Errors
    /// [`Error::Refused`] when they are not in one allocation of this domain.
    pub fn grant(&mut self, base: VirtAddr, len: u64, to: &str, perm: PermName) -> Result<(), Error> {
        let to = number_of_domain(to, |request| self.path.call(request))?;
        self.path.call(Grant { domain: self.domain.0, base: base.0, len, to, perm })
    }

    /// Reads `into.len()` bytes at `addr`.
    ///
    /// # Errors
    /// [`Error`] saying what was wrong with the address, or that the node does not answer.
    pub fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error> {
        let buf = self.buffer(into.len());
        let (_, buf) = self.carry_out(Op::Read { addr, buf })?;
        into.copy_from_slice(&buf);
        self.recycle(buf);
        Ok(())
    }

    /// Writes `data` at `addr`.
    ///
    /// # Errors
    /// [`Error`] saying what was wrong with the address, or that the node does not answer.
    pub fn write(&mut self, addr: VirtAddr, data: &[u8]) -> Result<(), Error> {
        let mut buf = self.buffer(0);
        buf.extend_from_slice(data);
        let (_, buf) = self.carry_out(Op::Write { addr, buf })?;
        self.recycle(buf);
        Ok(())
    }

    /// Atomically replaces the little-endian word at `addr` by `swap` if it equals `compare`; answers what was there.
    ///
    /// # Errors
    /// [`Error`] saying what was wrong with the address, or that the node does not answer.
    pub fn compare_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> Result<u64, Error> {
        self.carry_out(Op::CompareSwap { addr, compare, swap }).map(|(answer, _)| old_value(answer))
    }

    /// Atomically adds to the little-endian word at `addr`, wrapping; answers what was there.
    ///
    /// # Errors
    /// [`Error`] saying what was wrong with the address, or that the node does not answer.
    pub fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> Result<u64, Error> {
        self.carry_out(Op::FetchAdd { addr, add }).map(|(answer, _)| old_value(answer))
    }

    /// Runs `program` at the memory nodes from `start` on, for at most `limit` iterations.
    ///
    /// # Errors
    /// [`Error::Traversal`] with the pointer it stopped at, or [`Error::Unreachable`].
    pub fn traverse(
        &mut self,
        program: &Program,
        start: VirtAddr,
        scratch: Vec<u8>,
        limit: u32,
    ) -> Result<Traversal, Error> {
        let op = Op::Traverse { program: program.clone(), cur_ptr: start, scratch, limit };
        match self.carry_out(op)? {
            (Answer::Traversed(end), scratch) => Ok(Traversal { end, scratch }),
            (other @ Answer::Done { .. }, _) => unreachable!("a traversal does not answer {other:?}"),
        }
    }

    /// Starts an operation; [`Client::poll`] or [`Client::wait`] gives its end.
    ///
    /// # Errors
    /// [`Error::TooLong`] for more than one message carries; [`Error::System`] when the link failed; [`Error::Refused`] when this client joined again, as it does when
    /// it has no request ids left, and something that it had open had been opened by others or freed; [`Error::TakenOut`] once the rack is known not to have this
    /// client's host any more. What the rack says comes with the end.
    pub fn submit(&mut self, op: Op) -> Result<Ticket, Error> {
        let meta = Meta::of(&op);
        if meta.len > MESSAGE_MAX as u64 {
            return Err(Error::TooLong {
                len: usize::try_from(meta.len).unwrap_or(usize::MAX),
                max: MESSAGE_MAX,
            });
        }
        if self.is_taken_out() {
            return Err(self.taken_out_error());
        }
        if takes_id(&op) && self.path.ids_left() <= IDS_RESERVE && !self.joining {
            self.join_again()?;
        }
        if let Some(lost) = &self.lost_open {
            return Err(Error::Refused(lost.clone()));
        }
        let ticket = self.slots.take(meta);
        self.path.submit(HostRequest::Submit { ticket, domain: self.domain, op })?;
        Ok(Ticket(ticket))
    }

    /// The next operation that ended, if one has.
    ///
    /// # Errors
    /// [`Error::System`] when the link failed.
    pub fn poll(&mut self) -> Result<Option<Completed>, Error> {
        self.next(false)
    }

    /// The next operation that has ended already, without a look at the network: for taking a whole batch of ends before submitting more.
    pub fn poll_ended(&mut self) -> Option<Completed> {
        self.ready.pop_front().or_else(|| self.pop_ended())
    }

    /// The next operation that has ended, of those that this client has not taken from its path yet.
    pub(super) fn pop_ended(&mut self) -> Option<Completed> {
        loop {
            self.take_told().ok()?;
            match self.path.pop()? {
                Out::Done(done) => return Some(self.completed(done)),
                Out::Control(request) => self.fulfil(request).ok()?,
            }
        }
    }

    /// The next operation that ends; waits for it. `None` when nothing is outstanding.
    ///
    /// # Errors
    /// [`Error::System`] when the link failed.
    pub fn next_completed(&mut self) -> Result<Option<Completed>, Error> {
        self.next(true)
    }

    /// Waits until `ticket` ends. Others that end meanwhile are kept for [`Client::poll`].
    ///
    /// # Errors
    /// [`Error::System`] when the link failed.
    ///
    /// # Panics
    /// When `ticket` is not outstanding: it was never given out, or its end was taken already.
    pub fn wait(&mut self, ticket: Ticket) -> Result<Completed, Error> {
        loop {
            if let Some(at) = self.ready.iter().position(|c| c.ticket == ticket) {
                return Ok(self.ready.remove(at).expect("the position was found a moment ago"));
            }
            assert!(self.slots.holds(ticket.0), "{ticket:?} is not outstanding");
            let done = self.poll_done(true)?.expect("an outstanding operation ends");
            let completed = self.completed(done);
            if completed.ticket == ticket {
                return Ok(completed);
            }
            self.ready.push_back(completed);
        }
    }

    /// A buffer of `len` bytes, from an earlier operation when there is one; its content is arbitrary.
    pub fn buffer(&mut self, len: usize) -> Vec<u8> {
        let mut buf = self.pool.pop().unwrap_or_default();
        buf.resize(len, 0);
        buf
    }

    /// A buffer of any length, from an earlier operation when there is one; its content is arbitrary.
    pub fn any_buffer(&mut self) -> Vec<u8> {
        self.pool.pop().unwrap_or_default()
    }

    /// Gives a buffer back for reuse.
    pub fn recycle(&mut self, buf: Vec<u8>) {
        if self.pool.len() < POOL_MAX && buf.capacity() > 0 {
            self.pool.push(buf);
        }
    }

    /// The network that its link stands for; none within one process.
    #[must_use]
    pub fn link_profile(&self) -> LinkProfile {
        self.path.link_profile()
    }

    /// Connections to memory nodes beside the first to each that it has now ([`ClientOptions::connections`](crate::ClientOptions::connections)).
    #[must_use]
    pub fn connections_beside(&self) -> usize {
        self.path.extra_connections_up()
    }

    /// The memory nodes this client knows.
    #[must_use]
    pub fn nodes(&self) -> &[NodeInfo] {
        &self.nodes
    }

    /// The cards this client knows whose memory its rack has, of whatever domain ([`NodeInfo::card`]); only verbs reach it, by
    /// [`Client::allocate_on`] (PROTOCOL 14.16).
    #[must_use]
    pub fn cards(&self) -> &[NodeInfo] {
        &self.cards
    }

    /// Bytes of the longest scratch pad that a datagram of this rack carries: 64 less than its path MTU. What is longer runs at this host.
    #[must_use]
    pub fn scratch_len_max(&self) -> usize {
        self.path.traverse_room()
    }

    /// Packets sent and received by this client so far; in a rack in one process, the frames that would be packets.
    #[must_use]
    pub fn packets(&self) -> (u64, u64) {
        self.path.packets()
    }

    /// Costs of the traversals of [`Client::dispatch`] so far.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        self.tally
    }

    pub(crate) fn count(&mut self, site: Site, end: &Traversed) {
        self.tally.count(site, end);
    }

    /// Takes the completions that came while another operation was waited for, so that [`Client::poll`] answers none but later ones.
    pub fn take_ready(&mut self) -> VecDeque<Completed> {
        core::mem::take(&mut self.ready)
    }

    /// Gives completions back that [`Client::take_ready`] took.
    pub fn put_ready(&mut self, ready: VecDeque<Completed>) {
        self.ready.extend(ready);
    }

    /// The control plane's view of the rack.
    ///
    /// # Errors
    /// [`Error::Api`] when it cannot be reached.
    pub fn overview(&mut self) -> Result<RackOverview, Error> {
        self.path.call(Overview {})
    }

    /// Its host's number and generation, by which others may take it out of the rack ([`Client::fence`]).
    #[must_use]
    pub const fn life(&self) -> (u16, u16) {
        (self.host, self.generation)
    }

    pub(crate) const fn host(&self) -> u16 {
        self.host
    }

    pub(crate) const fn opened(&self) -> &Opened {
        &self.opened
    }

    pub(crate) fn asker(&self) -> Asker {
        self.path.asker().clone()
    }

    pub(crate) const fn domain_number(&self) -> u32 {
        self.domain.0
    }

    /// Asks the control plane.
    pub(crate) fn call<C: Call>(&mut self, request: C) -> Result<C::Answer, Error> {
        self.path.call(request)
    }

    /// Tells the host role.
    pub(crate) fn tell(&mut self, request: HostRequest) -> Result<(), Error> {
        self.path.submit(request)
    }

    fn next(&mut self, wait: bool) -> Result<Option<Completed>, Error> {
        if let Some(completed) = self.ready.pop_front() {
            return Ok(Some(completed));
        }
        Ok(self.poll_done(wait)?.map(|done| self.completed(done)))
    }

    fn carry_out(&mut self, op: Op) -> Result<(Answer, Vec<u8>), Error> {
        let ticket = self.submit(op)?;
        let completed = self.wait(ticket)?;
        completed.result.map(|answer| (answer, completed.buf))
    }

    fn poll_done(&mut self, wait: bool) -> Result<Option<Done>, Error> {
        loop {
            self.take_told()?;
            match self.path.poll(wait)? {
                Some(Out::Done(done)) => return Ok(Some(done)),
                Some(Out::Control(request)) => self.fulfil(request)?,
                // An answer of the control plane is still to come, and operations wait for it.
                None if wait && !self.aside.is_empty() && !self.slots.is_empty() => {}
                None => return Ok(None),
            }
        }
    }

    fn completed(&mut self, done: Done) -> Completed {
        let meta = self.slots.give_back(done.ticket);
        let result = match done.result {
            Ok(answer) => Ok(answer),
            Err(failure) => Err(self.explain(failure, meta, done.buf.len())),
        };
        Completed { ticket: Ticket(done.ticket), result, buf: done.buf }
    }

    /// The name of the memory node that has the address, as far as this client knows.
    pub fn name_of_node_at(&self, addr: VirtAddr) -> Option<String> {
        let node = self.path.node_of(self.domain, addr)?;
        self.nodes.iter().find(|known| known.node == node.0).map(|known| known.name.clone())
    }
}

/// A client that goes leaves the rack: its sessions and connections end. What its domain allocated stays as long as the domain has another user, and if it is
/// durable ([`ClientOptions::durable`](crate::ClientOptions::durable)) until it is freed.
impl Drop for Client {
    fn drop(&mut self) {
        // A rack that is gone has forgotten this host too. Its number may be another's by now.
        let _gone =
            self.path.call_now(Leave { port: Port::host(self.host).0, generation: Some(self.generation) });
        self.opened.borrow_mut().clear();
    }
}

fn old_value(answer: Answer) -> u64 {
    match answer {
        Answer::Done { old } => old,
        other @ Answer::Traversed(_) => unreachable!("an atomic does not answer {other:?}"),
    }
}
