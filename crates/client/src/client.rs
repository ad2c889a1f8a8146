//! A client: access of one program on one machine to far memory.

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
/// Every operation has two forms: one that waits (`read`, `write`, ...), and [`Client::submit`] with
/// [`Client::poll`] for many operations in flight. The client works on the caller's thread, inside these
/// calls. The only other thread asks the control plane for more connections, if several are allowed
/// ([`ClientOptions::connections`](crate::ClientOptions::connections)).
pub struct Client {
    path: Box<dyn Path>,
    host: u16,
    generation: u16,
    domain: Domain,
    conn_params: ConnParams,
    nodes: Vec<NodeInfo>,
    /// RoCE cards whose memory the rack has, in all domains.
    cards: Vec<NodeInfo>,
    allocations: Allocations,
    opened: Opened,
    /// Pending control-plane requests of the host role, each with the host's generation. No caller waits for
    /// these.
    aside: Vec<(ControlRequest, u16)>,
    /// The error if an object that the client had open was lost; nothing is submitted from then on.
    lost_open: Option<ApiError>,
    /// Connections through the switch, indexed by [`Through`].
    lanes: Vec<Option<Lane>>,
    slots: Slots,
    /// Completions that arrived while the caller waited for another operation.
    ready: VecDeque<Completed>,
    /// True while the client joins the rack again: requests of the join itself must not start a second join.
    joining: bool,
    /// Buffers for reuse.
    pool: Vec<Vec<u8>>,
    tally: Tally,
    /// The DPU of the rack on this machine.
    dpu: Option<DpuSection>,
    /// The thread that renews the host's lease; `None` for a rack within this process.
    renewal: Option<Renewal>,
    /// True if the client's host was fenced.
    fenced: bool,
    /// Address of the switch of the client's session.
    switch: String,
    /// True if new allocations stay when the domain has no user.
    durable: bool,
    /// Longest time that operations wait for nodes that do not answer; zero for a rack within this process.
    patience: Duration,
    /// Nodes for which a warning was printed that operations wait for them.
    awaited: BTreeSet<u16>,
    /// Nodes to which a connection was set up since the client joined.
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

/// Maximum number of buffers kept for reuse.
const POOL_MAX: usize = 64;

impl Client {
    /// Attaches a host that has just joined to the rack: opens a domain, and a session through the switch.
    /// Connections to memory nodes are set up on first use, so a node that is down fails only the operations
    /// that need it.
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
            fenced: false,
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

    /// Allocates at least `size` zeroed bytes on the node with the fewest allocated bytes.
    ///
    /// # Errors
    /// [`Error::Refused`] if no node has enough free memory.
    pub fn allocate(&mut self, size: u64) -> Result<Vma, Error> {
        self.allocate_at(size, None)
    }

    /// Allocates at least `size` zeroed bytes on `node`.
    ///
    /// # Errors
    /// [`Error::Refused`] if the node does not exist or has too little free memory.
    pub fn allocate_on(&mut self, size: u64, node: NodeId) -> Result<Vma, Error> {
        self.allocate_at(size, Some(node.0))
    }

    fn allocate_at(&mut self, size: u64, node: Option<u16>) -> Result<Vma, Error> {
        let vma = self.path.call(Allocate { domain: self.domain.0, size, node, durable: self.durable })?;
        self.allocations.made(&vma);
        // Allocated memory must stay usable without the control plane, so the connection is set up now.
        if !self.reached.contains(&vma.node)
            && let Err(error) = self.connect(vma.node)
        {
            // The caller gets only the first error. If this free fails too, the memory is freed with the
            // domain.
            let _freed = self.free(VirtAddr(vma.base));
            return Err(error);
        }
        // An older route of these addresses belongs to freed memory. If the allocation starts outside the
        // node's own address range, one node has all of it, unless it is too long.
        let at_home = |known: &NodeInfo| vma.base.wrapping_sub(known.base) < known.capacity;
        let away = self.nodes.iter().find(|known| at_home(known)).is_some_and(|home| home.node != vma.node);
        let node = (away && vma.size <= MIGRATE_LEN_MAX).then_some(NodeId(vma.node));
        self.path.submit(HostRequest::Route { base: VirtAddr(vma.base), len: vma.size, node })?;
        Ok(Vma { base: VirtAddr(vma.base), size: vma.size, node: NodeId(vma.node) })
    }

    /// Frees an allocation. Later accesses to its addresses fail. A repeated call after an error never frees
    /// a later allocation at the same address.
    ///
    /// # Errors
    /// [`Error::Refused`] if this domain does not own an allocation that starts at `base`.
    pub fn free(&mut self, base: VirtAddr) -> Result<(), Error> {
        self.allocations.free(self.domain.0, base, |request| self.path.call(request))
    }

    /// Grants the domain called `to` access to `len` bytes at `base`, which this domain owns.
    ///
    /// # Errors
    /// [`Error::Refused`] if the bytes are not within one allocation of this domain.
    pub fn grant(&mut self, base: VirtAddr, len: u64, to: &str, perm: PermName) -> Result<(), Error> {
        let to = number_of_domain(to, |request| self.path.call(request))?;
        self.path.call(Grant { domain: self.domain.0, base: base.0, len, to, perm })
    }

    /// Reads `into.len()` bytes at `addr`.
    ///
    /// # Errors
    /// [`Error`] if the address is invalid or the node does not answer.
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
    /// [`Error`] if the address is invalid or the node does not answer.
    pub fn write(&mut self, addr: VirtAddr, data: &[u8]) -> Result<(), Error> {
        let mut buf = self.buffer(0);
        buf.extend_from_slice(data);
        let (_, buf) = self.carry_out(Op::Write { addr, buf })?;
        self.recycle(buf);
        Ok(())
    }

    /// Atomically replaces the little-endian word at `addr` by `swap` if the word equals `compare`. Returns
    /// the previous word.
    ///
    /// # Errors
    /// [`Error`] if the address is invalid or the node does not answer.
    pub fn compare_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> Result<u64, Error> {
        self.carry_out(Op::CompareSwap { addr, compare, swap }).map(|(answer, _)| old_value(answer))
    }

    /// Atomically adds `add` to the little-endian word at `addr`, with wrap-around. Returns the previous
    /// word.
    ///
    /// # Errors
    /// [`Error`] if the address is invalid or the node does not answer.
    pub fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> Result<u64, Error> {
        self.carry_out(Op::FetchAdd { addr, add }).map(|(answer, _)| old_value(answer))
    }

    /// Runs `program` at the memory nodes, beginning at `start`, for at most `limit` iterations.
    ///
    /// # Errors
    /// [`Error::Traversal`] with the pointer at which the program stopped, or [`Error::Unreachable`].
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

    /// Starts an operation. [`Client::poll`] or [`Client::wait`] returns its completion, with any error of
    /// the rack.
    ///
    /// # Errors
    /// - [`Error::TooLong`] if the operation does not fit one message.
    /// - [`Error::System`] if the link failed.
    /// - [`Error::Fenced`] if this client's host was fenced.
    /// - [`Error::Refused`] if the client joined again for lack of request ids, and one of its open objects was
    ///   meanwhile opened by others or freed.
    pub fn submit(&mut self, op: Op) -> Result<Ticket, Error> {
        let meta = Meta::of(&op);
        if meta.len > MESSAGE_MAX as u64 {
            return Err(Error::TooLong {
                len: usize::try_from(meta.len).unwrap_or(usize::MAX),
                max: MESSAGE_MAX,
            });
        }
        if self.is_fenced() {
            return Err(self.fenced_error());
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

    /// Returns the next completed operation, if any; does not wait.
    ///
    /// # Errors
    /// [`Error::System`] if the link failed.
    pub fn poll(&mut self) -> Result<Option<Completed>, Error> {
        self.next(false)
    }

    /// Returns the next operation that has already completed, without polling the network. Use this method to
    /// drain a batch of completions before submitting more operations.
    pub fn poll_ended(&mut self) -> Option<Completed> {
        self.ready.pop_front().or_else(|| self.pop_ended())
    }

    /// Returns the next completed operation among those that the client has not taken from its path.
    pub(super) fn pop_ended(&mut self) -> Option<Completed> {
        loop {
            self.take_told().ok()?;
            match self.path.pop()? {
                Out::Done(done) => return Some(self.completed(done)),
                Out::Control(request) => self.fulfil(request).ok()?,
            }
        }
    }

    /// Waits for the next completed operation and returns it; `None` if no operation is pending.
    ///
    /// # Errors
    /// [`Error::System`] if the link failed.
    pub fn next_completed(&mut self) -> Result<Option<Completed>, Error> {
        self.next(true)
    }

    /// Waits until `ticket` completes. Other completions are kept for [`Client::poll`].
    ///
    /// # Errors
    /// [`Error::System`] if the link failed.
    ///
    /// # Panics
    /// Panics if `ticket` is not pending: it was never issued, or its completion was already returned.
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

    /// Returns a buffer of `len` bytes with arbitrary content; reuses one of an earlier operation if
    /// possible.
    pub fn buffer(&mut self, len: usize) -> Vec<u8> {
        let mut buf = self.pool.pop().unwrap_or_default();
        buf.resize(len, 0);
        buf
    }

    /// Returns a buffer to the pool for reuse.
    pub fn recycle(&mut self, buf: Vec<u8>) {
        if self.pool.len() < POOL_MAX && buf.capacity() > 0 {
            self.pool.push(buf);
        }
    }

    /// Returns the profile of the network that the link imitates; none for a rack within this process.
    #[must_use]
    pub fn link_profile(&self) -> LinkProfile {
        self.path.link_profile()
    }

    /// Returns the number of open connections to memory nodes in addition to the first to each
    /// ([`ClientOptions::connections`](crate::ClientOptions::connections)).
    #[must_use]
    pub fn extra_connections(&self) -> usize {
        self.path.extra_connections_up()
    }

    /// Returns the memory nodes that this client knows.
    #[must_use]
    pub fn nodes(&self) -> &[NodeInfo] {
        &self.nodes
    }

    /// Returns the RoCE cards whose memory the rack has, in all domains ([`NodeInfo::card`]). Only verbs
    /// reach this memory; allocate it with [`Client::allocate_on`] (PROTOCOL 14.16).
    #[must_use]
    pub fn cards(&self) -> &[NodeInfo] {
        &self.cards
    }

    /// Returns the length in bytes of the longest scratch pad that a datagram of this rack carries: 64 bytes
    /// less than the path MTU. A traversal with a longer scratch pad runs at this host.
    #[must_use]
    pub fn scratch_len_max(&self) -> usize {
        self.path.traverse_room()
    }

    /// Returns the numbers of packets that this client has sent and received. For a rack within this process,
    /// these are the frames between the roles.
    #[must_use]
    pub fn packets(&self) -> (u64, u64) {
        self.path.packets()
    }

    /// Returns the accumulated costs of the traversals of [`Client::dispatch`].
    #[must_use]
    pub const fn tally(&self) -> Tally {
        self.tally
    }

    pub(crate) fn count(&mut self, site: Site, end: &Traversed) {
        self.tally.count(site, end);
    }

    /// Takes the completions that arrived while the caller waited for another operation. [`Client::poll`]
    /// then returns only later completions.
    pub fn take_ready(&mut self) -> VecDeque<Completed> {
        core::mem::take(&mut self.ready)
    }

    /// Returns completions that [`Client::take_ready`] took to the queue.
    pub fn put_ready(&mut self, ready: VecDeque<Completed>) {
        self.ready.extend(ready);
    }

    /// Fetches the control plane's view of the rack.
    ///
    /// # Errors
    /// [`Error::Api`] if the control plane cannot be reached.
    pub fn overview(&mut self) -> Result<RackOverview, Error> {
        self.path.call(Overview {})
    }

    /// Returns the number and generation of the client's host, for [`Client::fence`].
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

    /// Sends a request to the control plane and waits for the answer.
    pub(crate) fn call<C: Call>(&mut self, request: C) -> Result<C::Answer, Error> {
        self.path.call(request)
    }

    /// Passes a request to the host role.
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
                // An answer of the control plane is still pending, and operations wait for it.
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

    /// Returns the name of the memory node that holds `addr`, as far as this client knows.
    pub fn name_of_node_at(&self, addr: VirtAddr) -> Option<String> {
        let node = self.path.node_of(self.domain, addr)?;
        self.nodes.iter().find(|known| known.node == node.0).map(|known| known.name.clone())
    }
}

/// Leaves the rack: sessions and connections end. Allocations of the domain stay while another client uses
/// it; durable ones ([`ClientOptions::durable`](crate::ClientOptions::durable)) stay until they are freed.
impl Drop for Client {
    fn drop(&mut self) {
        // A stopped rack has no state of this host. Without the generation, the number could name another
        // host.
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
