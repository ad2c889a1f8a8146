//! Memory that moves to another node while it is used, as a client sees it: it notices by a refusal, looks where the memory is now, and asks
//! again there (PROTOCOL 11.10).
//!
//! Only what was surely not executed is asked again: what was refused with NAK 0x62, and what was flushed behind it (PROTOCOL 4.27).

use super::{Client, Vma, wrong_answer};
use crate::Error;
use crate::migrate::plan;
use crate::slots::{Meta, Verb};
use farmem_control::api::{Request, Response};
use farmem_host::{Ask, Done, Failure, Op};
use farmem_transport::rc;
use farmem_wire::{NodeId, VirtAddr};
use std::collections::BTreeSet;

/// Times that one operation follows its bytes before it is given up: nobody moves them so often while it is under way.
const MOVES_MAX: u8 = 64;

impl Client {
    /// Moves `len` bytes from `base` on, whole pages of one allocation of this domain, to another node, while whoever uses them goes on. They
    /// move in parts, each a power of two and where it was moved to before with its bounds then; a part moves wholly or not at all.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is no such node, it has no room, or a node does not answer.
    pub fn migrate(&mut self, base: VirtAddr, len: u64, to: NodeId) -> Result<(), Error> {
        let located = self.path.ask(Request::Locate { addr: base.0 })?;
        for (base, len) in plan(&located, base.0, Some(len))? {
            let request = Request::Migrate { domain: Some(self.domain.0), base, len, node: to.0 };
            self.path.ask(request)?;
        }
        Ok(())
    }

    /// The parts of the allocation that holds `addr`, with the node that each is on; ascending.
    ///
    /// # Errors
    /// [`Error::Refused`] when no allocation holds it.
    pub fn locate(&mut self, addr: VirtAddr) -> Result<Vec<Vma>, Error> {
        let Response::Located { vma, moved } = self.path.ask(Request::Locate { addr: addr.0 })? else {
            return Err(wrong_answer("locate"));
        };
        let part = |base: u64, size: u64, node: u16| Vma { base: VirtAddr(base), size, node: NodeId(node) };
        let (mut parts, mut at) = (Vec::new(), vma.base);
        for piece in moved {
            if at < piece.base {
                parts.push(part(at, piece.base - at, vma.node));
            }
            parts.push(part(piece.base, piece.size, piece.node));
            at = piece.base + piece.size;
        }
        if at < vma.base + vma.size {
            parts.push(part(at, vma.base + vma.size - at, vma.node));
        }
        Ok(parts)
    }

    /// Where these addresses are, if not at the node of their range.
    pub(super) fn route(&mut self, base: u64, len: u64, node: Option<u16>) -> Result<(), Error> {
        if self.routes.is_empty() && node.is_none() {
            return Ok(());
        }
        let end = base.saturating_add(len);
        self.routes.retain(|&at, &mut (len, _)| at + len <= base || end <= at);
        if let Some(node) = node {
            self.routes.insert(base, (len, node));
        }
        self.path.submit(Ask::Route { base: VirtAddr(base), len, node: node.map(NodeId) })
    }

    /// Asks again what a node refused because it has not got the bytes any more, with all that was flushed behind it, where they are now.
    /// Answers what is over all the same.
    pub(super) fn move_along(&mut self, head: Done) -> Option<Done> {
        let meta = *self.slots.meta_mut(head.ticket);
        let refused = head.result == Err(Failure::Connection(rc::Failure::RemoteAccess));
        if !refused || meta.verb.is_none() || meta.moves == MOVES_MAX {
            return Some(head);
        }
        let from = self.node_of(meta.addr);
        let before = self.nodes_at(meta);
        let (behind, others) = self.flushed_with(&before);
        let moved = self.look_where(meta.addr).is_ok() && self.nodes_at(meta) != before;
        let mut again: Vec<Done> = Vec::new();
        let head = if moved && self.reconnect(from, meta).is_ok() {
            again.push(head);
            again.extend(behind);
            None
        } else {
            // It was refused for another reason, or nobody answers there: what was flushed ends as it would have without us.
            for done in behind {
                let completed = self.concluded(done);
                self.ready.push_back(completed);
            }
            Some(head)
        };
        for done in again {
            if let Err(done) = self.ask_again(done) {
                let completed = self.concluded(done);
                self.ready.push_back(completed);
            }
        }
        for done in others {
            let completed = self.completed(done);
            self.ready.extend(completed);
        }
        head
    }

    /// The operations that were flushed on the way to one of these nodes, and the others that have ended.
    fn flushed_with(&mut self, nodes: &BTreeSet<u16>) -> (Vec<Done>, Vec<Done>) {
        let (mut behind, mut others) = (Vec::new(), Vec::new());
        while let Some(done) = self.path.pop() {
            let meta = *self.slots.meta_mut(done.ticket);
            let flushed = done.result == Err(Failure::Connection(rc::Failure::Flushed));
            if flushed && meta.verb.is_some() && !self.nodes_at(meta).is_disjoint(nodes) {
                behind.push(done);
            } else {
                others.push(done);
            }
        }
        (behind, others)
    }

    /// Learns where the parts of the allocation are that holds the address.
    fn look_where(&mut self, addr: VirtAddr) -> Result<(), Error> {
        let Response::Located { vma, moved } = self.path.ask(Request::Locate { addr: addr.0 })? else {
            return Err(wrong_answer("locate"));
        };
        self.route(vma.base, vma.size, None)?;
        moved.iter().try_for_each(|piece| self.route(piece.base, piece.size, Some(piece.node)))
    }

    /// Connections to wherever the bytes are now, and the one that broke.
    fn reconnect(&mut self, broken: Option<u16>, meta: Meta) -> Result<(), Error> {
        let mut nodes = self.nodes_at(meta);
        nodes.extend(broken);
        for node in nodes {
            let broken = self.path.is_node_broken(self.domain, NodeId(node));
            if broken || !self.qpns.contains_key(&node) {
                self.connect(node)?;
            }
        }
        Ok(())
    }

    /// Hands an operation to the host role once more, under the same name.
    fn ask_again(&mut self, done: Done) -> Result<(), Done> {
        let meta = self.slots.meta_mut(done.ticket);
        meta.moves += 1;
        let (ticket, addr) = (done.ticket, meta.addr);
        let Some(verb) = meta.verb else { return Err(done) };
        let op = match verb {
            Verb::Read => Op::Read { addr, buf: done.buf },
            Verb::Write => Op::Write { addr, buf: done.buf },
            Verb::CompareSwap { compare, swap } => Op::CompareSwap { addr, compare, swap },
            Verb::FetchAdd { add } => Op::FetchAdd { addr, add },
        };
        let submitted = self.path.submit(Ask::Submit { ticket, domain: self.domain, op });
        submitted.map_err(|_| Done { ticket, result: done.result, buf: Vec::new() })
    }

    /// The nodes that have what an operation is about.
    fn nodes_at(&self, meta: Meta) -> BTreeSet<u16> {
        let last = meta.addr.0.saturating_add(meta.len.max(1) - 1);
        let routes = self.routes.range(..=last).rev();
        let routes = routes.take_while(|(base, (len, _))| **base + len > meta.addr.0);
        let mut nodes: BTreeSet<u16> = routes.clone().map(|(_, &(_, node))| node).collect();
        let moved: u64 = routes
            .map(|(&base, &(len, _))| (base + len).min(last.saturating_add(1)) - base.max(meta.addr.0))
            .sum();
        if moved < meta.len.max(1) {
            let home = self.nodes.iter().find(|n| meta.addr.0.wrapping_sub(n.base) < n.capacity);
            nodes.extend(home.map(|n| n.node));
        }
        nodes
    }
}
