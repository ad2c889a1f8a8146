//! The control plane's updates: ranges, grants and peers of a node.

use crate::files::Out;
use crate::moves::MovePeer;
use crate::node::{MemNode, Outbox};
use crate::note::{DropReason, Note};
use crate::programs::Compile;
use crate::store::Store;
use farmem_machine::{Instant, Port};
use farmem_transport::{PeerChange, rc, ud};
use farmem_wire::message::{Update, Updates};
use farmem_wire::{Body, Domain, Header, HostId, Message, Qpn, Status};

impl<S: Store, C: Compile> MemNode<S, C> {
    /// Applies a batch in order and answers it (PROTOCOL 7.5).
    pub(crate) fn on_updates(
        &mut self,
        now: Instant,
        header: &Header,
        updates: &Updates<'_>,
        out: &mut Outbox,
    ) {
        let (status, refused) = match self.inbox.decide(updates) {
            ud::BatchAction::Apply => {
                let (status, refused) = self.apply_all(now, updates, out);
                self.inbox.applied(updates, status, refused);
                out.note(if status == Status::Ok { Note::Updated } else { Note::UpdateRefused(status) });
                (status, refused)
            }
            ud::BatchAction::Again(status, refused) => {
                out.note(Note::UpdateRepeated);
                (status, refused)
            }
            ud::BatchAction::Halt => return out.note(Note::UpdateChanged),
            ud::BatchAction::Ignore => return self.drop_frame(DropReason::OutOfTurn, out),
        };
        let Some(control) = self.peers.get(Port::CONTROL) else {
            return self.drop_frame(DropReason::UnknownPeer, out);
        };
        let body = Body::Update(Updates::response(updates.seq, refused));
        self.peers.send(control, &Message { header: header.answer(status), body }, out);
    }

    /// Applies the updates in order up to the first refused one; returns its status and index.
    fn apply_all(&mut self, now: Instant, updates: &Updates<'_>, out: &mut Outbox) -> (Status, u16) {
        for (index, update) in (0..).zip(updates.iter()) {
            if let Err(status) = self.apply(now, &update, out) {
                return (status, index);
            }
            self.stats.updates = self.stats.updates.wrapping_add(1);
        }
        (Status::Ok, 0)
    }

    fn apply(&mut self, now: Instant, update: &Update, out: &mut Outbox) -> Result<(), Status> {
        match *update {
            Update::Peer { port, gid, qpn, qkey } => {
                let port = Port(port);
                self.peers.add(port, ud::Endpoint { qpn, qkey })?;
                out.local(Out::Peer(PeerChange { port, gid: Some(gid) }));
            }
            Update::PeerGone { port } => {
                let port = Port(port);
                self.peers.remove(port)?;
                port.as_host().into_iter().for_each(|host| self.dedup.host_left(HostId(host)));
                out.local(Out::Peer(PeerChange { port, gid: None }));
            }
            Update::Protect { domain, base, len, perm, vma_log2 } => {
                self.regions.protect(domain, base, len, perm, vma_log2)?
            }
            Update::Range { base, len, offset } => self.regions.add_range(base, len, offset)?,
            Update::RangeGone { base, len } => self.regions.remove_range(base, len)?,
            Update::Clear { base, len } => {
                self.regions.clear(base, len, &mut self.store)?;
                self.renew_pages(base, len);
                self.end_file_tasks(base, len, out);
            }
            Update::QueuePair { qpn, peer_qpn, peer_port, expected_psn, rkey, domain, pmtu } => {
                let port = Port(peer_port);
                let config = rc::ResponderConfig { qpn, peer_qpn, port, expected_psn, rkey, domain, pmtu };
                self.connect(&config)?;
            }
            Update::QueuePairGone { qpn } => {
                self.queue_pairs.remove(&qpn);
            }
            Update::Anew { host } => {
                if self.peers.host(host).is_some() {
                    return Err(Status::Malformed);
                }
                self.dedup.restart_generations(host);
            }
            Update::AcceptLost { base, len } => self.accept_lost(base, len),
            Update::Lose { base, len } => self.lose(base, len),
            Update::Arrive { base, size_log2, offset, number, port, gid, qpn, qkey } => {
                let peer = ud::Peer { port: Port(port), endpoint: ud::Endpoint { qpn, qkey } };
                self.arrive(number, base, 1 << size_log2, offset, MovePeer { peer, gid }, out)?;
            }
            Update::Leave { base, size_log2, number, port, gid, qpn, qkey } => {
                let peer = ud::Peer { port: Port(port), endpoint: ud::Endpoint { qpn, qkey } };
                self.leave(now, number, base, 1 << size_log2, MovePeer { peer, gid }, out)?;
            }
            Update::Place { base, size_log2, offset } => {
                self.regions.map_at(base, 1 << size_log2, offset)?;
                self.end_moves(base, 1 << size_log2, out);
            }
            Update::Away { base, size_log2 } => {
                self.regions.mark_away(base, 1 << size_log2)?;
                self.end_moves(base, 1 << size_log2, out);
            }
            Update::Unplace { base, size_log2 } => {
                self.regions.unplace(base, 1 << size_log2)?;
                self.end_moves(base, 1 << size_log2, out);
            }
            Update::Directory { .. }
            | Update::Live { .. }
            | Update::Fence { .. }
            | Update::Drain { .. }
            | Update::Connection(_)
            | Update::ConnectionGone { .. }
            | Update::Translate { .. }
            | Update::Untranslate { .. }
            | Update::Session { .. }
            | Update::SessionGone { .. } => return Err(Status::Unsupported),
        }
        Ok(())
    }

    /// Opens a connection, or reopens it (PROTOCOL 7.7).
    fn connect(&mut self, config: &rc::ResponderConfig) -> Result<(), Status> {
        let reserved = config.qpn.get() < Qpn::FIRST_FREE || config.qpn == self.config.home.endpoint.qpn;
        if reserved || config.domain == Domain(0) || config.port == Port::UNKNOWN {
            return Err(Status::Malformed);
        }
        let full = self.queue_pairs.len() >= self.config.budget.queue_pairs;
        if full && !self.queue_pairs.contains_key(&config.qpn) {
            return Err(Status::TableFull);
        }
        self.queue_pairs.insert(config.qpn, rc::Responder::new(*config));
        Ok(())
    }
}
