//! Memory that moves to another node while it is used, as a client sees it: it notices by a refusal, looks where the memory is now, and asks
//! again there (PROTOCOL 11.10).
//!
//! Only what was surely not executed is asked again: what was refused with NAK 0x62, and what was flushed behind it (PROTOCOL 4.27). Of a
//! connection that ended with NAK 0x63, because the bytes of a READ that came twice are not there any more, nobody knows what was executed:
//! READs are asked again all the same. So are READs that were flushed and not asked again with what they were flushed behind: one whose bytes
//! are on two nodes can go on at one of them and be flushed at the other.

use super::{Client, Vma, wrong_answer};
use crate::Error;
use crate::migrate::plan;
use crate::slots::{Meta, Refused, Verb};
use farmem_control::api::{LostInfo, Request, Response};
use farmem_host::{Ask, Done, Failure, Op};
use farmem_transport::rc;
use farmem_wire::message::PAGE_LEN;
use farmem_wire::{NodeId, VirtAddr};
use std::collections::BTreeSet;

/// Times that one operation follows its bytes before it is given up: nobody moves them so often while it is under way.
const MOVES_MAX: u8 = 64;

/// What the control plane says of an operation that a node refused.
struct Found {
    /// Its bytes are not where they were thought to be.
    learned: bool,
    /// It is refused wherever they are.
    refused: Option<Refused>,
}

/// The first lost bytes among `len` from `addr` on, as far as they go together.
pub(super) fn first_lost(lost: &[LostInfo], addr: u64, len: u64) -> Option<(u64, u64)> {
    let cut = |lost: &LostInfo| {
        let (from, to) = (lost.base.max(addr), (lost.base + lost.len).min(addr.saturating_add(len)));
        (from < to).then(|| (from, to - from))
    };
    lost.iter().find_map(cut)
}

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
        let Response::Located { vma, moved, .. } = self.path.ask(Request::Locate { addr: addr.0 })? else {
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
        if node.is_none() {
            self.moved.retain(|&at, &mut size| at + size <= base || end <= at);
        }
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
        let again: fn(Verb) -> bool = match head.result {
            Err(Failure::Connection(rc::Failure::RemoteAccess)) => |_| true,
            Err(Failure::Connection(rc::Failure::RemoteOperational | rc::Failure::Flushed)) => {
                |verb| matches!(verb, Verb::Read)
            }
            _ => return Some(head),
        };
        if !meta.verb.is_some_and(again) || meta.moves == MOVES_MAX {
            return Some(head);
        }
        let flushed = head.result == Err(Failure::Connection(rc::Failure::Flushed));
        let own: Vec<u16> = meta.ways.into_iter().flatten().filter(|_| !flushed).collect();
        let unknown = head.result == Err(Failure::Connection(rc::Failure::RemoteOperational));
        let behind = self.flushed_behind(&own, if flushed { |_| true } else { again }, !unknown);
        // Another operation may have found out since this one was sent.
        let mut moved = flushed || meta.known != self.known;
        let mut refused = None;
        if !moved && let Ok(found) = self.look_where(&meta) {
            refused = found.refused;
            // They may have gone, and come back before the refusal was here.
            moved = found.learned || !meta.insisted || refused.is_some();
            let meta = self.slots.meta_mut(head.ticket);
            (meta.insisted, meta.refused) = (!found.learned, refused);
        }
        let mut again = moved && self.reconnect(meta).is_ok();
        for done in &behind {
            let meta = *self.slots.meta_mut(done.ticket);
            again = again && self.reconnect(meta).is_ok();
        }
        if !again {
            // It was refused for another reason, or nobody answers there: what was flushed ends as it would have without us.
            let mut others = Vec::new();
            for done in behind {
                let ways = self.slots.meta_mut(done.ticket).ways;
                if ways.into_iter().flatten().any(|node| own.contains(&node)) {
                    let completed = self.concluded(done);
                    self.ready.push_back(completed);
                } else {
                    others.push(done);
                }
            }
            others.into_iter().rev().for_each(|done| self.backlog.push_front(done));
            return Some(head);
        }
        // What was refused for good is over. What was flushed behind it was not executed, and has done nothing wrong.
        let (over, head) = if refused.is_some() { (Some(head), None) } else { (None, Some(head)) };
        for done in head.into_iter().chain(behind) {
            if let Err(done) = self.ask_again(done) {
                let completed = self.concluded(done);
                self.ready.push_back(completed);
            }
        }
        over
    }

    /// The operations to be asked `again` that were flushed behind one that was refused over a connection to one of `own`, in order; all others
    /// that have ended wait in the backlog. With `all`, also what another connection refused, and what was flushed behind that: when both are
    /// set up anew, nobody sees any more which operations belong together. What was flushed
    /// on a way that broke by itself is not among them: of that nobody knows whether it was executed.
    fn flushed_behind(&mut self, own: &[u16], again: fn(Verb) -> bool, all: bool) -> Vec<Done> {
        let mut behind = Vec::new();
        let mut rest = core::mem::take(&mut self.backlog);
        while let Some(done) = self.path.pop() {
            rest.push_back(done);
        }
        let by_itself =
            |failure: rc::Failure| !matches!(failure, rc::Failure::Flushed | rc::Failure::RemoteAccess);
        let refusal = Err(Failure::Connection(rc::Failure::RemoteAccess));
        let (mut open, mut refusing) = (BTreeSet::new(), own.to_vec());
        for done in &rest {
            let ways = self.slots.meta_mut(done.ticket).ways.into_iter().flatten();
            match done.result {
                Err(Failure::Connection(failure)) if by_itself(failure) => open.extend(ways),
                result if all && result == refusal => refusing.extend(ways),
                _ => {}
            }
        }
        let broken =
            |node: &u16| self.path.is_node_broken(self.domain, NodeId(*node)) && !open.contains(node);
        let refused: BTreeSet<u16> = refusing.into_iter().filter(broken).collect();
        for done in rest {
            let meta = *self.slots.meta_mut(done.ticket);
            let flushed = done.result == Err(Failure::Connection(rc::Failure::Flushed))
                || all && done.result == refusal && meta.moves < MOVES_MAX;
            let there = meta.ways.iter().flatten().any(|node| refused.contains(node));
            if flushed && meta.verb.is_some_and(again) && there {
                behind.push(done);
            } else {
                self.backlog.push_back(done);
            }
        }
        behind
    }

    /// Learns where the parts of the allocation are that an operation is about, and whether it can be carried out at all.
    fn look_where(&mut self, meta: &Meta) -> Result<Found, Error> {
        let Response::Located { vma, moved, lost } = self.path.ask(Request::Locate { addr: meta.addr.0 })?
        else {
            return Err(wrong_answer("locate"));
        };
        let leaves = meta.len > vma.base + vma.size - meta.addr.0;
        let refused = if leaves {
            Some(Refused::OutOfBounds)
        } else {
            first_lost(&lost, meta.addr.0, meta.len).map(|(base, len)| Refused::Lost { base, len })
        };
        let known =
            self.routes.range(vma.base..vma.base + vma.size).map(|(&base, &(len, node))| (base, len, node));
        if known.eq(moved.iter().map(|piece| (piece.base, piece.size, piece.node))) {
            return Ok(Found { learned: false, refused });
        }
        self.known += 1;
        self.route(vma.base, vma.size, None)?;
        if !moved.is_empty() {
            self.moved.insert(vma.base, vma.size);
        }
        moved.iter().try_for_each(|piece| self.route(piece.base, piece.size, Some(piece.node)))?;
        Ok(Found { learned: true, refused })
    }

    /// True for what goes over connections to several nodes, each of which allows its part, and leaves the allocation it starts in: no node
    /// can see that (PROTOCOL 7.45).
    pub(super) fn leaves_allocation(&mut self, meta: &Meta) -> Result<bool, Error> {
        if self.routes.is_empty() || meta.verb.is_none() || meta.len == 0 {
            return Ok(false);
        }
        let (first, end) = (meta.addr.0, meta.addr.0.saturating_add(meta.len));
        let parts = self.routes.range(..end).rev().take_while(|&(base, (len, _))| base + len > first);
        let Some(base) = parts.map(|(&base, _)| base).last() else { return Ok(false) };
        let known = self.moved.range(..=base).next_back();
        if known.is_some_and(|(&base, &size)| base <= first && end <= base + size) {
            return Ok(false);
        }
        // What is known may be of an allocation that is no more.
        match self.path.ask(Request::Locate { addr: first }) {
            Ok(Response::Located { vma, .. }) => Ok(meta.len > vma.base + vma.size - first),
            // The node says what is wrong.
            Ok(_) | Err(Error::Refused(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The owner takes what was lost of `len` bytes from `base` on as it is now: zeros where the memory node was started again, the bytes of before
    /// where a host had changed them and stopped. Whole pages are accepted, and whatever was lost of them by the time this is carried out; what
    /// was not lost stays as it is.
    ///
    /// # Errors
    /// [`Error::Refused`] when they are no part of an allocation of this domain, their node does not answer, or it was started again meanwhile.
    pub fn accept_lost(&mut self, base: VirtAddr, len: u64) -> Result<(), Error> {
        let skip = base.0 % PAGE_LEN as u64;
        let (first, len) = (base.0 - skip, len.saturating_add(skip));
        self.path.ask(Request::AcceptLost { domain: self.domain.0, base: first, len }).map(|_| ())
    }

    /// Connections to wherever the bytes are now, and those that broke.
    fn reconnect(&mut self, meta: Meta) -> Result<(), Error> {
        let mut nodes = self.nodes_at(meta);
        nodes.extend(meta.ways.into_iter().flatten());
        for node in nodes {
            let broken = self.path.is_node_broken(self.domain, NodeId(node));
            if broken || !self.qpns.contains_key(&node) {
                self.connect(node)?;
            }
        }
        Ok(())
    }

    /// The nodes of an operation's first and last byte.
    pub(super) fn ways(&self, meta: &Meta) -> [Option<u16>; 2] {
        let last = meta.addr.0.saturating_add(meta.len.max(1) - 1);
        [self.node_of(meta.addr), self.node_of(VirtAddr(last))]
    }

    /// Hands an operation to the host role once more, under the same name.
    fn ask_again(&mut self, done: Done) -> Result<(), Done> {
        let asked = *self.slots.meta_mut(done.ticket);
        let (ways, known, addr) = (self.ways(&asked), self.known, asked.addr);
        let meta = self.slots.meta_mut(done.ticket);
        meta.moves += 1;
        (meta.ways, meta.known) = (ways, known);
        let ticket = done.ticket;
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
