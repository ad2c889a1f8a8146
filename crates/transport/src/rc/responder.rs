//! The responder half.
use super::{Note, ResponderConfig};
use crate::Memory;
use farmem_machine::{Outbox, Port};
use farmem_wire::Packet;

/// The responder half of one connection.
#[derive(Debug)]
pub struct Responder {}

#[expect(unused_variables, clippy::unimplemented, reason = "being written")]
impl Responder {
    /// A connection that expects its first request.
    pub fn new(config: ResponderConfig) -> Self { unimplemented!() }
    /// Takes a request packet (dest QPN already matched), touches `memory`, answers. ACKs that may wait are kept for [`Responder::flush`].
    pub fn on_packet<M: Memory, O, N: From<Note>>(&mut self, port: Port, packet: &Packet<'_>, memory: &mut M, out: &mut Outbox<O, N>) { unimplemented!() }
    /// Sends the ACK that was held back, if any. The role calls it after every event, or after a batch of events.
    pub fn flush<O, N: From<Note>>(&mut self, out: &mut Outbox<O, N>) { unimplemented!() }
    /// Asserts every invariant.
    pub fn check(&self) { unimplemented!() }
}
