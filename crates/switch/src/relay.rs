//! Packets of reliable connections through the switch: their receivers and their rewritten fields (PROTOCOL
//! 15.2, 15.5). Also keyed READs through a FatTree (PROTOCOL 16.10 to 16.13).

use crate::connections::RelayDirection;
use crate::keyed::{self, KeyedRead, KeyedRefusal};
use crate::note::Outbox;
use crate::{Note, Reason, Switch};
use farmem_machine::{Instant, Port};
use farmem_wire::headers::view;
use farmem_wire::message::Relayed;
use farmem_wire::{Extension, KeyedFrame, KeyedHeader, Opcode, Packet, Perm, Qpn, Reth, Rkey, VirtAddr, bth};

impl Switch {
    /// Forwards a packet, whose bytes are `frame`, to the other end of its connection.
    pub(crate) fn relay(
        &mut self,
        now: Instant,
        port: Port,
        frame: &[u8],
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Note {
        let Some(onward) = self.tables.connections.find(packet.bth.dest_qp) else {
            return Note::Dropped(Reason::NoConnection);
        };
        let (from, to, qpn) = onward.ports();
        if port != from {
            return Note::Dropped(Reason::NotItsEnd);
        }
        if !self.tables.has_peer(to) {
            return Note::Dropped(Reason::NodeGone);
        }
        let (mut read, mut note) = (None, Note::Relayed);
        if let (RelayDirection::ToNode(connection), Opcode::ReadRequest, Extension::Reth(reth)) =
            (&onward, packet.bth.opcode, &packet.ext)
            && keyed::is_keyed(reth)
        {
            if let Some(note) = self.keyed_up(now, connection, frame, packet, out) {
                return note;
            }
            let (led, what) = self.keyed_read(connection, reth);
            (read, note) = (Some(led), what);
        }
        send_on(frame, to, qpn, read, out);
        note
    }

    /// Looks up a host's keyed READ whose whole path is this switch (PROTOCOL 15.5 to 15.7).
    fn keyed_read(&mut self, connection: &Relayed, reth: &Reth) -> (Reth, Note) {
        let refused = |why: KeyedRefusal| (keyed::refuse(reth, why), Note::KeyedRefused(why));
        let mut read = match keyed::begin(connection, reth) {
            Ok(read) => read,
            Err(why) => return refused(why),
        };
        read.lead_on(self.soft.index(), |at| self.tables.translation.lookup(at));
        self.finish(connection, reth, &read)
    }

    /// Completes a keyed READ for its node.
    fn finish(&mut self, connection: &Relayed, asked: &Reth, read: &KeyedRead) -> (Reth, Note) {
        match read.finish(connection, &self.tables.translation, &self.tables.protection) {
            Ok(led) => {
                if let Some(descent) = &read.descent {
                    self.soft.count(descent);
                }
                (led, Note::Keyed { node: connection.node, indexed: read.descent.is_some() })
            }
            Err(why) => (keyed::refuse(asked, why), Note::KeyedRefused(why)),
        }
    }

    /// Sends a host's keyed READ up, if the fabric leads it (PROTOCOL 16.11, 16.12). None: the caller handles
    /// it as without a fabric.
    fn keyed_up(
        &mut self,
        now: Instant,
        connection: &Relayed,
        frame: &[u8],
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Option<Note> {
        let core = Port(self.soft.routes().up_of(connection.domain, connection.root)?);
        let index = core.as_index().filter(|_| self.tables.has_peer(core))?;
        let Extension::Reth(reth) = &packet.ext else { return None };
        // Every READ REQUEST has this length; the temporary header follows it.
        let frame: &[u8; KeyedFrame::READ_LEN] = frame.try_into().ok()?;
        // A READ that would be refused is refused here, or by the node.
        let read = keyed::begin(connection, reth).ok()?;
        self.tables.protection.check(connection.domain, read.at, read.len, Perm::Read).ok()?;
        let request = (connection.to_node, packet.bth.psn);
        if self.keyed_fabric.watches(now, request) {
            self.keyed_fabric.repeated(request);
            return None;
        }
        if !self.keyed_fabric.goes_up(now, request) {
            return None;
        }
        emit_led(frame, read.at, &read.keyed, core, out);
        Some(Note::KeyedUp { index })
    }

    /// Handles a keyed READ from another switch (PROTOCOL 16.13). If there is no next hop, it returns to the
    /// rack's switch, which sends it to its node.
    pub(crate) fn keyed(&mut self, port: Port, bytes: &[u8], out: &mut Outbox) -> Note {
        let Ok(KeyedFrame { read: frame, bth, reth, keyed }) = KeyedFrame::parse(bytes) else {
            return Note::Dropped(Reason::Frame);
        };
        if !port.is_switch() || !self.tables.has_peer(port) {
            return Note::Dropped(Reason::WrongPort);
        }
        let mut read = KeyedRead::arrived(keyed, &reth);
        let Some(onward) = read.onward() else { return Note::Dropped(Reason::TooManySwitches) };
        // The rack's switch has the connection: the READ returned to it.
        if let Some(RelayDirection::ToNode(connection)) = self.tables.connections.find(bth.dest_qp) {
            return self.keyed_returned(&connection, frame, &read, out);
        }
        let owner = |at| self.soft.routes().server_of(at);
        read.lead_on(self.soft.index(), owner);
        let left = read.leave(owner);
        let next = self.next_hop(keyed.node).map(|next| next.port);
        let note = match (next, next.and_then(Port::as_index)) {
            (Some(next), Some(index)) => {
                emit_led(frame, read.at, &onward, next, out);
                Note::KeyedDown { index }
            }
            (Some(next), None) if next == Port::node(keyed.node.0) => {
                let asked = Reth { rkey: Rkey(0), ..reth };
                let led = left.unwrap_or_else(|why| keyed::refuse(&asked, why));
                send_on(frame, next, keyed.node_qpn, Some(led), out);
                if let Err(why) = left {
                    return Note::KeyedRefused(why);
                }
                Note::KeyedOut { node: keyed.node }
            }
            _ if self.tables.has_peer(Port::SWITCH) => {
                emit_led(frame, read.at, &onward, Port::SWITCH, out);
                return Note::KeyedBack;
            }
            _ => return Note::Dropped(Reason::NoRoute),
        };
        if let Some(descent) = &read.descent {
            self.soft.count(descent);
        }
        note
    }

    /// Handles a keyed READ that index switches returned.
    fn keyed_returned(
        &mut self,
        connection: &Relayed,
        frame: &[u8; KeyedFrame::READ_LEN],
        read: &KeyedRead,
        out: &mut Outbox,
    ) -> Note {
        let node = Port::node(connection.node.0);
        if !self.tables.has_peer(node) {
            return Note::Dropped(Reason::NodeGone);
        }
        let asked = Reth { va: VirtAddr(read.keyed.key), rkey: Rkey(0), dma_len: read.len };
        let (led, note) = self.finish(connection, &asked, read);
        send_on(frame, node, connection.node_qpn, Some(led), out);
        note
    }
}

/// Sends a READ REQUEST with a temporary header to another switch; the node found so far replaces the
/// address.
fn emit_led(
    frame: &[u8; KeyedFrame::READ_LEN],
    at: VirtAddr,
    keyed: &KeyedHeader,
    to: Port,
    out: &mut Outbox,
) {
    let mut read = *frame;
    let mut head = bth::View::new_checked(&mut read[..]).expect("the frame was read");
    view::Reth::new_checked(head.after_mut()).expect("the frame was read").set_va(at);
    KeyedFrame::emit(&read, keyed, out.frame(to).bytes());
}

/// Sends the frame with another destination and, if `read` is given, another RETH.
fn send_on(frame: &[u8], to: Port, qpn: Qpn, read: Option<Reth>, out: &mut Outbox) {
    let mut writer = out.frame(to);
    let bytes = writer.bytes();
    let start = bytes.len();
    bytes.extend_from_slice(frame);
    let mut head = bth::View::new_checked(&mut bytes[start..]).expect("the frame was read");
    head.set_dest_qp(qpn);
    if let Some(Reth { va, rkey, dma_len }) = read {
        let mut reth = view::Reth::new_checked(head.after_mut()).expect("the frame was read");
        reth.set_va(va);
        reth.set_rkey(rkey);
        reth.set_dma_len(dma_len);
    }
}
