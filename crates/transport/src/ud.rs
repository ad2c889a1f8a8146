//! Datagrams: request ids, the requester's timers and bounded retransmission, and de-duplication of requests
//! that write.

mod dedup;
mod inbox;
mod requester;
mod table;

pub use dedup::{AnswerBudget, Dedup, RequestState};
pub use inbox::{BatchAction, Inbox};
pub use requester::{Expired, Requester, retries_in};

use alloc::vec::Vec;
use farmem_machine::{Outbox, Port};
use farmem_wire::{Bth, Deth, Extension, Message, Opcode, Packet, Psn, Qkey, Qpn};

/// A UD endpoint: queue pair and key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// The queue pair.
    pub qpn: Qpn,
    /// Key that a datagram to the queue pair must show.
    pub qkey: Qkey,
}

/// The UD endpoint of a peer and its port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Port of the peer.
    pub port: Port,
    /// UD endpoint of the peer.
    pub endpoint: Endpoint,
}

/// The endpoints that a role knows at its start: its own, and that of the control plane, which alone may
/// change the role's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoleEndpoints {
    /// The role's own UD endpoint, handed out by the control plane at the join.
    pub endpoint: Endpoint,
    /// Endpoint of the control plane, for responses to its updates.
    pub control: Peer,
}

/// Sends `message` to `peer` from the queue pair `src_qp`. Receivers ignore a UD packet's `psn`; a counter
/// helps readers of traces.
pub fn send<O, N>(out: &mut Outbox<O, N>, peer: Peer, src_qp: Qpn, psn: Psn, message: &Message<'_>) {
    send_bytes(out, peer, src_qp, psn, message.len(), |bytes| message.emit(bytes));
}

/// Sends a message that `emit` appends, in `len` bytes.
pub fn send_bytes<O, N>(
    out: &mut Outbox<O, N>,
    peer: Peer,
    src_qp: Qpn,
    psn: Psn,
    len: usize,
    emit: impl FnOnce(&mut Vec<u8>),
) {
    let bth = Bth::new(Opcode::UdSendOnly, peer.endpoint.qpn, psn);
    let ext = Extension::Deth(Deth { qkey: peer.endpoint.qkey, src_qp });
    Packet::emit_with(&bth, &ext, len, out.frame(peer.port).bytes(), emit);
}
