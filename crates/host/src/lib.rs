//! The host role: one-sided verbs over reliable connections, and requests through the switch, for the programs of one machine.
//!
//! [`Host`] owns a connection per (domain, memory node) and a session per domain. Each [`HostRequest::Submit`] ends in exactly one
//! [`Out::Done`]. Traversals are continued here: after an iteration or hop limit, and with the code when a node does not know the
//! program (PULSE 3, 4.1). Caches and the decision what to offload come with their own modules; membership and memory are the
//! control plane's. Where an operation cannot go on without the control plane (its memory moved, its connection broke) the host says what it
//! [wants](Out::Want) of it.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod agent;
mod batches;
pub mod caching;
mod connections;
mod following;
mod lines;
mod op;
pub mod paged;
mod requests;
mod routes;
mod sides;
mod split_ops;
#[cfg(test)]
mod tests;
mod through;
mod walk;
mod wants;
mod writes;

use alloc::vec::Vec;
use connections::Connections;
use farmem_machine::{Duration, Event, Instant, Machine, Outbox, Port, Run};
use farmem_transport::{rc, ud};
use farmem_wire::{Domain, Extension, HostId, NodeId, Packet, Pmtu, Qpn, Status, VirtAddr, WireError};
use requests::Requests;
use through::Through;

pub use batches::BATCHES_OPEN_MAX;
pub use following::MOVES_MAX;
pub use lines::QUEUED_MAX;
pub use op::Op;
pub use requests::{ASTRAY_MAX, REGION_DATA_MAX, TRAVERSALS_CONTINUED_MAX};
pub use routes::ROUTES_MAX;
pub use wants::{Located, Piece, Reply, Want, Wish};
pub use writes::REGION_WRITES_MAX;

/// Bounds and times of a host.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The host's number.
    pub id: HostId,
    /// How often the host started; part of its request ids.
    pub generation: u16,
    /// The host's own UD endpoint, where answers come.
    pub home: ud::Endpoint,
    /// Path MTU of its datagrams: no request it sends is longer.
    pub pmtu: Pmtu,
    /// UD requests outstanding at once.
    pub requests_max: usize,
    /// Time without an answer after which a UD request is sent again; more than zero.
    pub request_timeout: Duration,
    /// Times a UD request is sent again before it is given up.
    pub request_retries_max: u32,
    /// Times a request may be routed to a memory node before it comes back.
    pub hops_max: u8,
    /// Connections and sessions, each.
    pub connections_max: usize,
    /// Request ids of one generation (PROTOCOL 5.1, 11.8).
    pub ids_max: u32,
    /// Connections of a domain to a memory node: those beyond the first carry READs, where many requests are under way (PROTOCOL 11.16).
    pub connections_each: usize,
    /// Traversals that share one datagram at most (PROTOCOL 11.13); with 1 each goes alone, at once.
    pub pairs_max: u16,
}

impl Config {
    /// A host with the usual bounds, on links that carry the largest datagrams (loopback, shared memory, jumbo frames).
    #[must_use]
    pub const fn new(id: HostId, generation: u16, home: ud::Endpoint) -> Self {
        Self {
            id,
            generation,
            home,
            pmtu: Pmtu::B4096,
            requests_max: 1024,
            request_timeout: Duration::from_millis(40),
            request_retries_max: 7,
            hops_max: 64,
            connections_max: 1024,
            ids_max: u32::MAX,
            connections_each: 1,
            pairs_max: 1,
        }
    }
}

/// A connection to a memory node, as the control plane set it up.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The memory node.
    pub node: NodeId,
    /// The domain of everything sent over it.
    pub domain: Domain,
    /// First address of the node's range.
    pub base: VirtAddr,
    /// Bytes of the node's range.
    pub len: u64,
    /// The node takes gather READs (PROTOCOL 4.30), as all but cards do.
    pub gathers: bool,
    /// The queue pair. Values that [`rc::RequesterConfig`] rules out are the driver's broken invariant and panic.
    pub rc: rc::RequesterConfig,
}

/// What the host's user asks.
#[derive(Debug)]
pub enum HostRequest {
    /// Requests of `domain` that go through the switch use this session. Replaces the one before; what was sent over that stays with
    /// it.
    Session {
        /// The domain.
        domain: Domain,
        /// The switch's endpoint.
        switch: ud::Peer,
    },
    /// Requests of its domain to its addresses use this connection. Replaces those before to its node or to one of these addresses,
    /// whose requests are flushed. Also the answer to [`Wish::Connect`].
    Connect(Connection),
    /// Another connection of its domain to its node, beside the one that there is: the answer to [`Wish::Beside`].
    Beside {
        /// The number of the question.
        number: u64,
        /// The connection.
        connection: Connection,
    },
    /// A connection through the switch, for operations that name it ([`Op::Through`]). In the place of one with its queue pair, whose operations are flushed.
    Open {
        /// The domain of everything sent over it.
        domain: Domain,
        /// The queue pair; its peer is the switch's. Values that [`rc::RequesterConfig`] rules out are the driver's broken invariant and panic.
        rc: rc::RequesterConfig,
    },
    /// A connection through the switch is given up; what is under way on it ends as flushed.
    Close {
        /// The host's queue pair.
        qpn: Qpn,
    },
    /// A node has these addresses. The first operation of the domain that needs a connection to it has it set up.
    Node {
        /// The domain.
        domain: Domain,
        /// The node.
        node: NodeId,
        /// First address of its range.
        base: VirtAddr,
        /// Bytes of its range.
        len: u64,
    },
    /// The answer to a [`Want`] that is no connection.
    Reply {
        /// The number of the want.
        number: u64,
        /// What the control plane says.
        reply: Reply,
    },
    /// These addresses are at this node from now on, or with none where the ranges of nodes have them. What was said before of any of them is
    /// forgotten, as a whole.
    Route {
        /// First address.
        base: VirtAddr,
        /// How many.
        len: u64,
        /// Where they are.
        node: Option<NodeId>,
    },
    /// The host joined the rack again: from now on its requests carry the new generation, with ids from 1 on, and answers come to
    /// the new endpoint. What is under way is given up, sessions and connections are gone: the control plane ended them (PROTOCOL 8.8).
    Joined {
        /// The generation.
        generation: u16,
        /// The host's own UD endpoint.
        home: ud::Endpoint,
    },
    /// Carries out an operation.
    Submit {
        /// The caller's name for it, below 2^63; in the [`Done`] that ends it.
        ticket: u64,
        /// In whose name.
        domain: Domain,
        /// What.
        op: Op,
    },
}

/// What a host says to those around it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Out {
    /// To its user: an operation ended.
    Done(Done),
    /// To its driver: the control plane is to be asked for something.
    Want(Want),
}

/// How an operation ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Done {
    /// The caller's name for it.
    pub ticket: u64,
    /// What came of it.
    pub result: Result<Answer, Failure>,
    /// The buffer of a read or write, or the scratch pad of a traversal (its last known state when it failed).
    pub buf: Vec<u8>,
}

/// What a successful operation answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// A verb was carried out.
    Done {
        /// What an atomic found; 0 for a read or write.
        old: u64,
    },
    /// A traversal came to its end.
    Traversed(Traversed),
}

/// The outcome of a traversal that was not refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traversed {
    /// True after RETURN; false when the iteration limit was reached, and the state continues it.
    pub returned: bool,
    /// The last pointer.
    pub cur_ptr: VirtAddr,
    /// Iterations in all.
    pub iterations: u32,
    /// Requests it took: one, and one more for each continuation by this host.
    pub requests: u32,
}

/// Why an operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No connection of this domain leads to a node that owns the address.
    NotConnected {
        /// The address.
        addr: VirtAddr,
    },
    /// The domain has no session through the switch.
    NoSession,
    /// The range leaves its node or the address space.
    OutOfBounds {
        /// First byte.
        addr: VirtAddr,
    },
    /// The word of an atomic is not at a multiple of 8.
    Misaligned {
        /// The address.
        addr: VirtAddr,
    },
    /// The program's scratch pad is longer than a datagram of this rack's PMTU carries.
    ScratchTooLong {
        /// Bytes it carries.
        max: usize,
    },
    /// The buffer, or the program's code, is longer than this kind of operation carries.
    TooLong {
        /// Bytes it carries.
        max: usize,
    },
    /// The scratch pad does not have the program's length.
    ScratchLen {
        /// The program's length.
        need: usize,
    },
    /// Too much is outstanding ([`Config::requests_max`], [`REGION_WRITES_MAX`], the connection's queue); wait for completions.
    QueueFull,
    /// All request ids of this generation are used up ([`Config::ids_max`]); joining again gives the next one ([`HostRequest::Joined`]).
    IdsUsedUp,
    /// The connection refused or lost it.
    Connection(rc::Failure),
    /// No connection to its node can be set up, or the control plane does not say where it is. It was not executed, but for parts of a WRITE.
    Unreachable {
        /// First byte.
        addr: VirtAddr,
    },
    /// These of its bytes were lost with an earlier incarnation of their node (PROTOCOL 7.43).
    Lost {
        /// The first of them.
        addr: VirtAddr,
        /// How many, as far as they go together.
        len: u64,
    },
    /// Switch or node refused it.
    Refused {
        /// Why.
        status: Status,
        /// The address at fault.
        addr: VirtAddr,
    },
    /// No answer, after all retransmissions.
    NoAnswer,
    /// The traversal made no progress from one continuation to the next, or was continued too often.
    Stalled {
        /// Where it stands.
        addr: VirtAddr,
    },
}

/// What happened at a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// On a connection.
    Rc(rc::Note),
    /// Bytes that are no frame.
    Malformed(WireError),
    /// A frame for a queue pair that is not here, with a wrong key, or from a port that has nothing to answer.
    NotForUs,
    /// A session or connection was not taken; nothing changed.
    NotTaken(SetupFault),
    /// An answer to a request that is not outstanding: late, repeated or forged.
    LateAnswer,
    /// An answer that does not fit its request.
    WrongAnswer,
    /// A traversal was sent again with its code.
    SentCode,
    /// A traversal was continued from the state in an answer.
    Continued(Status),
    /// A request was given up.
    GivenUp,
    /// A request met a page whose latest bytes a host had, and is asked again.
    Waits,
    /// A node refused what is elsewhere now; it is asked again there.
    Followed,
    /// A node refused what is there as far as the host and the control plane know; it is asked again, once.
    Insisted,
    /// A node refused it, and that is all there is to know.
    Believed,
    /// A connection could not be set up; what waited for it is over.
    Unmended,
    /// So many traversals left in one datagram.
    Batch(u16),
}

/// Why a session or connection was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SetupFault {
    /// There are [`Config::connections_max`] already.
    Full,
    /// Its queue pair number is that of another connection, or of the host's datagrams.
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
    /// A host with no session and no connection.
    ///
    /// # Panics
    /// When [`Config::request_timeout`] is zero.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            connections: Connections::new(config.connections_max, config.connections_each),
            through: Through::new(config.connections_max),
            requests: Requests::new(&config),
        }
    }

    /// The host's bounds and identity.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Operations submitted and not ended.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.connections.outstanding() + self.through.outstanding() + self.requests.outstanding()
    }

    /// True when this connection through the switch is open and has not broken.
    #[must_use]
    pub fn is_open(&self, qpn: Qpn) -> bool {
        self.through.is_up(qpn)
    }

    /// True when the connection of `domain` to `node` is down: the next operation has it set up.
    #[must_use]
    pub fn is_down(&self, domain: Domain, node: NodeId) -> bool {
        self.connections.is_down(domain, node)
    }

    /// Connections beside the first ones that are up (PROTOCOL 11.16).
    #[must_use]
    pub fn beside_up(&self) -> usize {
        self.connections.sides.up()
    }

    /// The memory node that has `addr`, as far as this host knows from its connections of `domain` and from what moved.
    #[must_use]
    pub fn node_of(&self, domain: Domain, addr: VirtAddr) -> Option<NodeId> {
        self.connections.node_of(domain, addr)
    }

    /// Request ids that this generation has left.
    #[must_use]
    pub const fn ids_left(&self) -> u32 {
        self.requests.ids_left()
    }

    /// Bytes of the longest scratch pad that a datagram carries, and of the longest program (PROTOCOL 11.4).
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
            return out.note(Note::NotTaken(SetupFault::QueuePairTaken));
        }
        self.connections.sides.is_given(config.qpn);
        self.through.open(domain, config, out);
    }

    fn connect(&mut self, now: Instant, connection: &Connection, out: &mut Sink) {
        if connection.rc.qpn == self.config.home.qpn || self.through.has(connection.rc.qpn) {
            return self.connections.not_taken(connection, SetupFault::QueuePairTaken, out);
        }
        self.connections.add(now, connection, out);
    }

    fn beside(&mut self, now: Instant, number: u64, connection: &Connection, out: &mut Sink) {
        let qpn = connection.rc.qpn;
        let is_taken = qpn == self.config.home.qpn || self.through.has(qpn);
        self.connections.add_beside(now, number, connection, is_taken, out);
    }
}

/// The switch and the memory nodes answer hosts (PROTOCOL 11.1). A node that the driver has no address for yet is [`Port::UNKNOWN`]: then key and id
/// alone must do.
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
            Event::Local(HostRequest::Beside { number, connection }) => {
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
        self.connections.look_again(now, out);
    }

    fn handle_run(&mut self, now: Instant, run: &Run<'_>, out: &mut Sink) {
        let mut arrivals = rc::Arrivals::new(run.lender);
        for bytes in run.frames {
            self.frame(now, run.port, bytes, &mut arrivals, out);
        }
        self.connections.look_again(now, out);
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
