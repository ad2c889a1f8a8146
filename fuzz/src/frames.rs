//! Frames of the roles around the tested role, and faults on the way.

use crate::input::Input;
use farmem_machine::Port;
use farmem_transport::ud;
use farmem_wire::message::{Batch, Pair, Update, Updates};
use farmem_wire::{
    Body, Bth, Deth, Extension, Header, Message, Opcode, Packet, Psn, Qkey, Qpn, RequestId, Status,
};

/// Frame and the port where it arrives.
pub(crate) type ReceivedFrame = (Port, Vec<u8>);

/// Senders: all roles of a rack, and unknown ports.
const PORTS: [Port; 10] = [
    Port::CONTROL,
    Port::SWITCH,
    Port::node(1),
    Port::node(2),
    Port::host(1),
    Port::host(2),
    Port::node(9),
    Port::host(9),
    Port::UNKNOWN,
    Port(0x0fff),
];

/// Boundary values of formats.
const SEAMS: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];

/// Number of frames kept for repetition.
const KEPT_MAX: usize = 8;

/// Returns the UD endpoint that `number` selects.
pub(crate) const fn endpoint(number: u32) -> ud::Endpoint {
    ud::Endpoint { qpn: Qpn::new(number.wrapping_add(0x1000)), qkey: Qkey(number.wrapping_add(0xbeef_0000)) }
}

/// Returns a datagram with this message.
pub(crate) fn datagram(to: ud::Endpoint, message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.emit(&mut bytes);
    enclosed(to, &bytes)
}

/// Returns a datagram with the bytes of a message.
pub(crate) fn enclosed(to: ud::Endpoint, message: &[u8]) -> Vec<u8> {
    let bth = Bth::new(Opcode::UdSendOnly, to.qpn, Psn::new(0));
    packet(bth, Extension::Deth(Deth { qkey: to.qkey, src_qp: Qpn::new(0x77) }), message)
}

/// Returns a packet of a reliable connection.
pub(crate) fn packet(bth: Bth, ext: Extension, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    Packet { bth, ext, payload }.emit(&mut frame);
    frame
}

/// Returns a batch of updates. A batch that no control plane can send is replaced with an empty batch.
pub(crate) fn batch(to: ud::Endpoint, seq: u64, updates: &[Update]) -> Vec<u8> {
    let mut bytes = Vec::new();
    updates.iter().for_each(|update| update.emit(&mut bytes));
    let count = u16::try_from(updates.len()).expect("few updates");
    let updates = Updates::request(seq, count, &bytes).or_else(|_| Updates::request(seq, 0, &[]));
    let body = Body::Update(updates.expect("an empty batch fits"));
    datagram(to, &Message { header: Header::request(RequestId(seq), 0), body })
}

/// Returns the receiver and the message of a datagram that a role sent.
///
/// # Panics
/// Panics when the frame cannot be parsed: everything that a role sends can be parsed.
pub(crate) fn sent(frame: &[u8]) -> (ud::Endpoint, Message<'_>) {
    let packet = Packet::parse(frame).expect("a role sends frames");
    let Extension::Deth(deth) = packet.ext else { panic!("a datagram, not {:?}", packet.ext) };
    let message = Message::parse(packet.payload).expect("a role sends messages");
    (ud::Endpoint { qpn: packet.bth.dest_qp, qkey: deth.qkey }, message)
}

/// Returns the traversals of a batch as separate messages (PROTOCOL 3.13). Any other message is returned
/// unchanged.
pub(crate) fn each<'a>(message: &Message<'a>) -> Vec<Message<'a>> {
    let Body::Batch(batch) = message.body else { return vec![*message] };
    let header = message.header;
    let alone = |pair: Pair<'a>| {
        let status = if header.status == Status::Ok { pair.status } else { header.status };
        let request = header.request.with_counter(pair.counter);
        Message { header: Header { status, request, ..header }, body: Body::Traverse(batch.traverse(&pair)) }
    };
    batch.pairs().map(alone).collect()
}

/// Returns a batch of the same program from the message of a traversal: this traversal, and `others` more
/// with the next ids.
pub(crate) fn with_others(message: &Message<'_>, others: u8) -> Vec<u8> {
    let Body::Traverse(state) = message.body else { panic!("a traversal") };
    let header = message.header;
    let ended = if header.response { header.status } else { Status::Ok };
    let header = if header.response { header.answer(Status::Ok) } else { header };
    let mut pairs = Vec::new();
    for n in 0..=u32::from(others) {
        let request = header.request.with_counter(header.request.counter().wrapping_add(n));
        Pair::of(request, ended, &state).emit(&mut pairs);
    }
    let batch = Batch::new(&header, state.program, state.code, u16::from(others) + 1, &pairs);
    let mut bytes = Vec::new();
    Message { header, body: Body::Batch(batch.expect("a few pairs")) }.emit(&mut bytes);
    bytes
}

/// Returns the receiver and the message of a datagram that a role receives. Returns `None` when the frame is
/// no valid datagram.
pub(crate) fn heard(frame: &[u8]) -> Option<(ud::Endpoint, Message<'_>)> {
    let packet = Packet::parse(frame).ok()?;
    let Extension::Deth(deth) = packet.ext else { return None };
    let message = Message::parse(packet.payload).ok()?;
    Some((ud::Endpoint { qpn: packet.bth.dest_qp, qkey: deth.qkey }, message))
}

/// Faulty path to the role: frames are damaged, repeated, or arrive from another port.
#[derive(Debug, Default)]
pub(crate) struct FaultyLink {
    kept: Vec<ReceivedFrame>,
    next: usize,
}

impl FaultyLink {
    /// Returns the frame that arrives in place of the sent frame.
    pub(crate) fn arrival(
        &mut self,
        (port, mut frame): ReceivedFrame,
        input: &mut Input<'_>,
    ) -> ReceivedFrame {
        let fate = input.u8();
        let port = if fate & 0x0f == 0x0f { input.pick(&PORTS) } else { port };
        if fate & 0xc0 == 0xc0 {
            for _ in 0..=input.below(3) {
                damage(&mut frame, input);
            }
        }
        let arrival = (port, frame);
        if self.kept.len() < KEPT_MAX {
            self.kept.push(arrival.clone());
        } else {
            self.kept[self.next].clone_from(&arrival);
            self.next = (self.next + 1) % KEPT_MAX;
        }
        arrival
    }

    /// Returns an earlier frame: the newest one or any other. Returns noise when no earlier frame exists.
    pub(crate) fn again(&self, input: &mut Input<'_>) -> ReceivedFrame {
        let newest = (self.next + KEPT_MAX - 1) % KEPT_MAX;
        let chosen = if input.one_in(2) { usize::from(input.u8()) % KEPT_MAX } else { newest };
        self.kept.get(chosen).or_else(|| self.kept.last()).cloned().unwrap_or_else(|| noise(input))
    }
}

/// Returns arbitrary bytes from an arbitrary port.
pub(crate) fn noise(input: &mut Input<'_>) -> ReceivedFrame {
    (input.pick(&PORTS), input.bytes().to_vec())
}

fn damage(frame: &mut Vec<u8>, input: &mut Input<'_>) {
    let kind = input.below(8);
    let at = usize::from(input.u16()) % frame.len().max(1);
    let Some(byte) = frame.get_mut(at) else { return };
    match kind {
        0..=2 => *byte ^= 1 << input.below(8),
        3 => *byte = input.pick(&SEAMS),
        4 => *byte = input.u8(),
        5 => {
            let number = input.u32().to_be_bytes();
            frame.iter_mut().skip(at).zip(number).for_each(|(old, new)| *old = new);
        }
        6 => frame.truncate(at),
        _ => frame.extend_from_slice(input.bytes()),
    }
}
