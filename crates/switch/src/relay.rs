//! Packets of reliable connections through the switch: to whom they go on, and what of them changes (PROTOCOL 15.2, 15.5).

use crate::connections::Onward;
use crate::keyed::{self, Refused};
use crate::switch::Outbox;
use crate::{Note, Reason, Switch};
use farmem_machine::Port;
use farmem_wire::headers::view;
use farmem_wire::message::Relayed;
use farmem_wire::{Extension, Opcode, Packet, Qpn, Reth, bth};

impl Switch {
    /// Sends a packet on to the other end of its connection. `frame` are its bytes.
    pub(crate) fn relay(&mut self, port: Port, frame: &[u8], packet: &Packet<'_>, out: &mut Outbox) -> Note {
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
        if let (Onward::ToNode(connection), Opcode::ReadRequest, Extension::Reth(reth)) =
            (&onward, packet.bth.opcode, &packet.ext)
            && keyed::is_keyed(reth)
        {
            let (led, what) = self.keyed_read(connection, reth);
            (read, note) = (Some(led), what);
        }
        send_on(frame, to, qpn, read, out);
        note
    }

    /// What a keyed READ of a host becomes, all of whose way is this switch (PROTOCOL 15.5 to 15.7).
    fn keyed_read(&mut self, connection: &Relayed, reth: &Reth) -> (Reth, Note) {
        let refused = |why: Refused| (keyed::refuse(reth, why), Note::KeyedRefused(why));
        let mut read = match keyed::begin(connection, reth) {
            Ok(read) => read,
            Err(why) => return refused(why),
        };
        let (translation, protection) = (&self.tables.translation, &self.tables.protection);
        read.lead_on(self.soft.index(), translation);
        match read.finish(connection, translation, protection) {
            Ok(led) => {
                if let Some(descent) = &read.descent {
                    self.soft.count(descent);
                }
                (led, Note::Keyed { node: connection.node, indexed: read.descent.is_some() })
            }
            Err(why) => refused(why),
        }
    }
}

/// The frame as it came, with another destination, and with another RETH where there is one.
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
