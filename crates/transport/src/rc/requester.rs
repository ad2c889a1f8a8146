//! The requester half.
use super::{Completion, Note, RequesterConfig, Work};
use farmem_machine::{Instant, Outbox, Port};
use farmem_wire::Packet;

/// The requester half of one connection.
#[derive(Debug)]
pub struct Requester {}

#[expect(unused_variables, clippy::unimplemented, reason = "being written")]
impl Requester {
    /// A connection with nothing outstanding.
    pub fn new(config: RequesterConfig) -> Self { unimplemented!() }
    /// Queues a request under `id`; gives it back when the queue is full. Nothing is sent before [`Requester::pump`].
    pub fn post(&mut self, id: u64, work: Work) -> Result<(), Work> { unimplemented!() }
    /// Sends what the window allows.
    pub fn pump<O, N: From<Note>>(&mut self, now: Instant, out: &mut Outbox<O, N>) { unimplemented!() }
    /// Takes a response packet (dest QPN already matched), then pumps.
    pub fn on_packet<O, N: From<Note>>(&mut self, now: Instant, port: Port, packet: &Packet<'_>, out: &mut Outbox<O, N>) { unimplemented!() }
    /// Time has come (or not): retransmits, gives up.
    pub fn on_wake<O, N: From<Note>>(&mut self, now: Instant, out: &mut Outbox<O, N>) { unimplemented!() }
    /// When [`Requester::on_wake`] is due.
    pub fn next_wake(&self) -> Option<Instant> { unimplemented!() }
    /// Takes the next finished request, oldest first.
    pub fn pop_completion(&mut self) -> Option<Completion> { unimplemented!() }
    /// Requests posted and not finished.
    pub fn outstanding(&self) -> usize { unimplemented!() }
    /// True when the connection is in error; every further post is flushed.
    pub fn is_broken(&self) -> bool { unimplemented!() }
    /// Asserts every invariant.
    pub fn check(&self) { unimplemented!() }
}
