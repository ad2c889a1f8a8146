//! The host role: one-sided verbs over reliable connections, and requests through the switch, for the
//! programs of one machine.
//!
//! [`Host`] owns a connection per (domain, memory node) and a session per domain. Each
//! [`HostRequest::Submit`] ends in exactly one [`Out::Done`]. The host continues traversals after an
//! iteration or hop limit, and sends the code when a node does not know the program (PULSE 3, 4.1). Caches
//! and the offload decision are modules of their own; membership and memory belong to the control plane. If
//! an operation needs the control plane (its memory moved, its connection broke), the host emits a
//! [request](Out::Control) for it.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod agent;
mod batches;
pub mod caching;
mod config;
mod connections;
mod control;
mod extra_connections;
mod following;
mod node_connection;
mod op;
pub mod paged;
mod requests;
mod routes;
mod split_ops;
#[cfg(test)]
mod tests;
mod through;
mod traversal;
mod writes;

use alloc::vec::Vec;
use connections::Connections;
use farmem_machine::{Event, Instant, Machine, Outbox, Port, Run};
use farmem_transport::{rc, ud};
use farmem_wire::{Domain, Extension, NodeId, Packet, Qpn, Status, VirtAddr, WireError};
use requests::Requests;
use through::Through;

pub use batches::BATCHES_OPEN_MAX;
pub use config::Config;
pub use control::{ControlRequest, ControlRequestKind, Located, Piece, Reply};
pub use following::MOVES_MAX;
pub use node_connection::QUEUED_MAX;
pub use op::Op;
pub use requests::{HOP_RETRIES_MAX, REGION_DATA_MAX, TRAVERSALS_CONTINUED_MAX};
pub use routes::ROUTES_MAX;
pub use writes::REGION_WRITES_MAX;

/// A connection to a memory node, as the control plane set it up.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The memory node.
    pub node: NodeId,
    /// The domain of all its requests.
    pub domain: Domain,
    /// First address of the node's range.
    pub base: VirtAddr,
    /// Bytes of the node's range.
    pub len: u64,
    /// True if the node accepts gather READs (PROTOCOL 4.30). All nodes except cards do.
    pub gathers: bool,
    /// The generation of the node when the connection was set up. In another generation the node has forgotten
    /// the connection.
    pub generation: u16,
    /// The queue pair. The host panics on values that [`rc::RequesterConfig`] rules out: the driver's
    /// invariant is broken.
    pub rc: rc::RequesterConfig,
}

/// A request of the host's user or driver.
#[derive(Debug)]
pub enum HostRequest {
    /// Sets the session for requests of `domain` through the switch. Replaces the previous session; requests
    /// sent over it stay with it.
    Session {
        /// The domain.
        domain: Domain,
        /// The switch's endpoint.
        switch: ud::Peer,
    },
    /// Adds the connection for requests of its domain to its addresses. Replaces connections to the same node
    /// or to one of these addresses and flushes their requests. Also the answer to [`ControlRequestKind::Connect`].
    Connect(Connection),
    /// Adds a connection beside the existing one of its domain to its node: the answer to [`ControlRequestKind::ConnectExtra`].
    ConnectExtra {
        /// The number of the question.
        number: u64,
        /// The connection.
        connection: Connection,
    },
    /// Opens a connection through the switch, for operations that name it ([`Op::Through`]). Replaces a
    /// connection with the same queue pair, whose operations are flushed.
    Open {
        /// The domain of all its requests.
        domain: Domain,
        /// The queue pair; its peer is the switch. The host panics on values that [`rc::RequesterConfig`]
        /// rules out: the driver's invariant is broken.
        rc: rc::RequesterConfig,
    },
    /// Closes a connection through the switch. Operations in flight on it end as flushed.
    Close {
        /// The host's queue pair.
        qpn: Qpn,
    },
    /// Records that a node has these addresses. The first operation of the domain that needs a connection
    /// sets it up.
    Node {
        /// The domain.
        domain: Domain,
        /// The node.
        node: NodeId,
        /// First address of the node's range.
        base: VirtAddr,
        /// Bytes of the node's range.
        len: u64,
    },
    /// The answer to a [`ControlRequest`], unless the answer is a connection.
    Reply {
        /// The number of the question.
        number: u64,
        /// The control plane's answer.
        reply: Reply,
    },
    /// Routes these addresses to this node, or with `None` to the node of their range. Replaces every earlier
    /// route that overlaps, as a whole.
    Route {
        /// First address.
        base: VirtAddr,
        /// Number of addresses.
        len: u64,
        /// The node that holds them.
        node: Option<NodeId>,
    },
    /// Reports that the host rejoined the rack. From now on requests carry the new generation, with ids from
    /// 1 on, and answers come to the new endpoint. Operations in flight end; the control plane has ended all
    /// sessions and connections (PROTOCOL 8.8).
    Joined {
        /// The generation.
        generation: u16,
        /// The host's own UD endpoint.
        home: ud::Endpoint,
    },
    /// Submits an operation.
    Submit {
        /// The caller's id for the operation, below 2^63. The [`Done`] that ends the operation carries it.
        ticket: u64,
        /// The domain that the operation acts for.
        domain: Domain,
        /// The operation.
        op: Op,
    },
}

/// An output of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Out {
    /// An operation ended. For the user.
    Done(Done),
    /// A request to the control plane. For the driver.
    Control(ControlRequest),
}

/// The outcome of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Done {
    /// The caller's id for the operation.
    pub ticket: u64,
    /// The result.
    pub result: Result<Answer, Failure>,
    /// The buffer of a read or write, or the scratch pad of a traversal (after a failure, its last known
    /// state).
    pub buf: Vec<u8>,
}

/// The result of a successful operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// A verb was executed.
    Done {
        /// The previous value of an atomic's word; 0 for a read or write.
        old: u64,
    },
    /// A traversal ended.
    Traversed(Traversed),
}

/// The outcome of a traversal that was not refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traversed {
    /// True after RETURN. False at the iteration limit; the state can continue the traversal.
    pub returned: bool,
    /// The last pointer.
    pub cur_ptr: VirtAddr,
    /// Total iterations.
    pub iterations: u32,
    /// Number of requests sent: one, and one more for each continuation by this host.
    pub requests: u32,
}

/// The reason for which an operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No connection of this domain leads to a node that owns the address.
    NotConnected {
        /// The address.
        addr: VirtAddr,
    },
    /// The domain has no session through the switch.
    NoSession,
    /// The address range leaves its node or the address space.
    OutOfBounds {
        /// First byte.
        addr: VirtAddr,
    },
    /// The word of an atomic is not 8-byte aligned.
    Misaligned {
        /// The address.
        addr: VirtAddr,
    },
    /// The program's scratch pad does not fit a datagram of this rack's PMTU.
    ScratchTooLong {
        /// Maximum number of bytes.
        max: usize,
    },
    /// The buffer, or the program's code, exceeds the maximum of this kind of operation.
    TooLong {
        /// Maximum number of bytes.
        max: usize,
    },
    /// The length of the scratch pad differs from the program's.
    ScratchLen {
        /// The program's scratch pad length.
        need: usize,
    },
    /// Too many operations are outstanding ([`Config::requests_max`], [`REGION_WRITES_MAX`], the connection's
    /// queue). Wait for completions.
    QueueFull,
    /// All request ids of this generation are used up ([`Config::ids_max`]). Rejoining gives the next
    /// generation ([`HostRequest::Joined`]).
    IdsUsedUp,
    /// The connection refused or lost the operation.
    Connection(rc::Failure),
    /// No connection to the node can be set up, or the control plane does not know the location. The
    /// operation was not executed, except perhaps parts of a WRITE.
    Unreachable {
        /// First byte.
        addr: VirtAddr,
    },
    /// These bytes were lost with an earlier incarnation of their node (PROTOCOL 7.43).
    Lost {
        /// The first lost byte.
        addr: VirtAddr,
        /// Number of contiguous lost bytes.
        len: u64,
    },
    /// The switch or a node refused the request.
    Refused {
        /// The reason.
        status: Status,
        /// The address at fault.
        addr: VirtAddr,
    },
    /// No answer arrived after all retransmissions.
    NoAnswer,
    /// The traversal made no progress between two continuations, or exceeded the maximum number of
    /// continuations.
    Stalled {
        /// The current pointer.
        addr: VirtAddr,
    },
}

/// A counted event of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// A note of a connection.
    Rc(rc::Note),
    /// Received bytes are not a valid frame.
    Malformed(WireError),
    /// A frame names a queue pair that is not here, carries a wrong key, or came from a port that may not
    /// answer.
    NotForUs,
    /// A session or connection was rejected; the state is unchanged.
    Rejected(SetupFault),
    /// The answer names no outstanding request: it is late, repeated or forged.
    LateAnswer,
    /// The answer does not fit its request.
    WrongAnswer,
    /// A traversal was sent again with its code.
    SentCode,
    /// A traversal was continued from the state in an answer.
    Continued(Status),
    /// A request was given up.
    Abandoned,
    /// A request met a page whose latest bytes a host holds, and will be sent again.
    Deferred,
    /// A node refused an operation whose memory has moved; the operation is sent to the new node.
    Followed,
    /// A node refused an operation although the host and the control plane agree on the location; the
    /// operation is sent again once.
    RetriedInPlace,
    /// A node refused an operation for the second time, and the operation ends.
    RefusedAgain,
    /// A connection could not be set up; the operations that waited for it ended.
    ReconnectFailed,
    /// This number of traversals left in one datagram.
    Batch(u16),
}

/// The reason for which a session or connection was rejected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SetupFault {
    /// The limit [`Config::connections_max`] is reached.
    Full,
    /// Another connection, or the host's UD endpoint, has the same queue pair number.
    QueuePairTaken,
}

impl From<rc::Note> for Note {
    fn from(note: rc::Note) -> Self {
        Self::Rc(note)
    }
}

/// The host role.
#[derive(Debug)]
pub struct Host {
    config: Config,
    connections: Connections,
    through: Through,
    requests: Requests,
}

type Sink = Outbox<Out, Note>;

impl Host {
    /// Returns a host with no session and no connection.
    ///
    /// # Panics
    ///
    /// If [`Config::request_timeout`] is zero.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            connections: Connections::new(config.connections_max, config.connections_each, config.patience),
            through: Through::new(config.connections_max),
            requests: Requests::new(&config),
        }
    }

    /// Returns the host's limits and identity.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the number of operations in flight.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.connections.outstanding() + self.through.outstanding() + self.requests.outstanding()
    }

    /// Returns true if this connection through the switch is open and not broken.
    #[must_use]
    pub fn is_open(&self, qpn: Qpn) -> bool {
        self.through.is_up(qpn)
    }

    /// Returns true if the connection of `domain` to `node` is down. The next operation sets it up.
    #[must_use]
    pub fn is_down(&self, domain: Domain, node: NodeId) -> bool {
        self.connections.is_down(domain, node)
    }

    /// Returns the number of additional connections that are up (PROTOCOL 11.16).
    #[must_use]
    pub fn extra_connections_up(&self) -> usize {
        self.connections.extra.up()
    }

    /// Returns the memory node that holds `addr`, as far as this host knows from the connections of `domain`
    /// and its routes.
    #[must_use]
    pub fn node_of(&self, domain: Domain, addr: VirtAddr) -> Option<NodeId> {
        self.connections.node_of(domain, addr)
    }

    /// Returns the number of request ids left in this generation.
    #[must_use]
    pub const fn ids_left(&self) -> u32 {
        self.requests.ids_left()
    }

    /// Returns the maximum length in bytes of a scratch pad and of a program's code in one datagram (PROTOCOL
    /// 11.4).
    #[must_use]
    pub const fn traverse_room(&self) -> usize {
        self.requests.traverse_room()
    }

    fn joined(&mut self, generation: u16, home: ud::Endpoint, out: &mut Sink) {
        self.connections.end_all(out);
        self.through.end_all(out);
        self.requests.end_all(out);
        self.config = Config { generation, home, ..self.config };
        self.requests = Requests::new(&self.config);
    }

    fn submit(&mut self, now: Instant, ticket: u64, domain: Domain, op: Op, out: &mut Sink) {
        let work = match op {
            Op::Read { addr, buf } => rc::Work::Read { addr, buf },
            Op::ReadTo { addr, to } => rc::Work::ReadTo { addr, to },
            Op::Write { addr, buf } => rc::Work::Write { addr, buf },
            Op::WriteFrom { addr, from } => rc::Work::WriteFrom { addr, from },
            Op::CompareSwap { addr, compare, swap } => rc::Work::CmpSwap { addr, compare, swap },
            Op::FetchAdd { addr, add } => rc::Work::FetchAdd { addr, add },
            Op::Gather { addrs, buf } => {
                return self.connections.gather(now, ticket, domain, addrs, buf, out);
            }
            Op::Through { over, work } => {
                return self.through.post(now, ticket, domain, over, work, out);
            }
            Op::Traverse { cur_ptr, .. } if self.config.pairs_max > 1 => {
                let node = self.connections.node_of(domain, cur_ptr);
                return self.requests.submit(now, ticket, domain, op, node, out);
            }
            Op::RegionRead { .. } | Op::RegionWrite { .. } | Op::Traverse { .. } => {
                return self.requests.submit(now, ticket, domain, op, None, out);
            }
        };
        self.connections.post(now, ticket, domain, work, out);
    }

    fn frame<'p>(
        &mut self,
        now: Instant,
        port: Port,
        bytes: &'p [u8],
        arrivals: &mut rc::Arrivals<'p>,
        out: &mut Sink,
    ) {
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => return out.note(Note::Malformed(error)),
        };
        let home = self.config.home;
        match packet.ext {
            Extension::Deth(deth) if packet.bth.dest_qp == home.qpn => {
                if deth.qkey == home.qkey && answers_hosts(port) {
                    self.requests.answer(now, packet.payload, out);
                } else {
                    out.note(Note::NotForUs);
                }
            }
            _ if self.through.has(packet.bth.dest_qp) => self.through.packet(now, port, &packet, out),
            _ => self.connections.packet(now, port, &packet, arrivals, out),
        }
    }

    fn open(&mut self, domain: Domain, config: &rc::RequesterConfig, out: &mut Sink) {
        if config.qpn == self.config.home.qpn || self.connections.has(config.qpn) {
            return out.note(Note::Rejected(SetupFault::QueuePairTaken));
        }
        self.connections.extra.forget_ending(config.qpn);
        self.through.open(domain, config, out);
    }

    fn connect(&mut self, now: Instant, connection: &Connection, out: &mut Sink) {
        if connection.rc.qpn == self.config.home.qpn || self.through.has(connection.rc.qpn) {
            return self.connections.reject(now, connection, SetupFault::QueuePairTaken, out);
        }
        self.connections.add(now, connection, out);
    }

    fn beside(&mut self, now: Instant, number: u64, connection: &Connection, out: &mut Sink) {
        let qpn = connection.rc.qpn;
        let is_taken = qpn == self.config.home.qpn || self.through.has(qpn);
        self.connections.add_extra(now, number, connection, is_taken, out);
    }
}

/// Returns true if the port may answer a host: the switch and the memory nodes do (PROTOCOL 11.1). A node
/// whose address the driver does not know yet is [`Port::UNKNOWN`]; then key and id alone must suffice.
fn answers_hosts(port: Port) -> bool {
    port == Port::SWITCH || port == Port::UNKNOWN || port.as_node().is_some()
}

impl Machine for Host {
    type In = HostRequest;
    type Out = Out;
    type Note = Note;

    fn handle(&mut self, now: Instant, event: Event<'_, HostRequest>, out: &mut Sink) {
        match event {
            Event::Frame { port, bytes } => return self.handle_run(now, &Run::new(port, &[bytes]), out),
            Event::Wake => {
                self.connections.wake(now, out);
                self.through.wake(now, out);
                self.requests.wake(now, out);
            }
            Event::Local(HostRequest::Session { domain, switch }) => {
                self.requests.session(domain, switch, out)
            }
            Event::Local(HostRequest::Route { base, len, node }) => {
                self.connections.route(base, len, node, out)
            }
            Event::Local(HostRequest::Joined { generation, home }) => self.joined(generation, home, out),
            Event::Local(HostRequest::Connect(connection)) => self.connect(now, &connection, out),
            Event::Local(HostRequest::ConnectExtra { number, connection }) => {
                self.beside(now, number, &connection, out);
            }
            Event::Local(HostRequest::Open { domain, rc }) => self.open(domain, &rc, out),
            Event::Local(HostRequest::Close { qpn }) => self.through.close(qpn, out),
            Event::Local(HostRequest::Node { domain, node, base, len }) => {
                self.connections.know(domain, node, base, len, out);
            }
            Event::Local(HostRequest::Reply { number, reply }) => {
                self.connections.reply(now, number, &reply, out)
            }
            Event::Local(HostRequest::Submit { ticket, domain, op }) => {
                self.submit(now, ticket, domain, op, out)
            }
        }
        self.connections.dispatch_waiting(now, out);
    }

    fn handle_run(&mut self, now: Instant, run: &Run<'_>, out: &mut Sink) {
        let mut arrivals = rc::Arrivals::new(run.lender);
        for bytes in run.frames {
            self.frame(now, run.port, bytes, &mut arrivals, out);
        }
        self.connections.dispatch_waiting(now, out);
    }

    fn next_wake(&self) -> Option<Instant> {
        let wakes = [self.connections.next_wake(), self.through.next_wake(), self.requests.next_wake()];
        wakes.into_iter().flatten().min()
    }

    fn check(&self) {
        self.connections.check();
        self.through.check();
        self.requests.check();
    }
}
