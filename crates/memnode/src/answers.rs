//! Batching of the answers to pairs of batches (PROTOCOL 7.48).
//!
//! Key type: [`Answers`]. Answers that are known at the end of one event leave together, in as few datagrams
//! as possible. They do not wait for pairs that are still in progress.

use crate::node::Outbox;
use crate::peers::Peers;
use alloc::vec::Vec;
use farmem_transport::ud;
use farmem_wire::message::{Batch, PAIRS_MAX, Pair, PairBuf, Traverse};
use farmem_wire::{Body, Header, Message, Pmtu, ProgramHash, Status};

/// Most batches of answers that are open at once. One more sends the one that was opened first.
pub const ANSWERS_OPEN_MAX: usize = 16;

/// The way out for answers: the path MTU, the peers, and the outbox of the current event.
pub(crate) struct AnswerSink<'a> {
    pub(crate) pmtu: Pmtu,
    pub(crate) peers: &'a mut Peers,
    pub(crate) out: &'a mut Outbox,
}

/// Answers that are not sent yet.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    open: Vec<Open>,
    /// Buffers of sent batches, for reuse.
    spare: Vec<PairBuf>,
}

#[derive(Debug)]
struct Open {
    to: ud::Peer,
    /// Header of the first pair's answer.
    header: Header,
    program: ProgramHash,
    pairs: PairBuf,
}

impl Open {
    /// Returns true if an answer with this header and program can join the batch: only its pair may differ.
    fn takes(&self, header: &Header, program: ProgramHash) -> bool {
        let mine = &self.header;
        let same_host = mine.request.0 >> 32 == header.request.0 >> 32;
        same_host
            && (mine.domain, mine.origin, mine.hops) == (header.domain, header.origin, header.hops)
            && self.program == program
    }

    fn has_room(&self, len: usize, pmtu: Pmtu) -> bool {
        self.pairs.count() < PAIRS_MAX && self.pairs.bytes_len() + len <= Batch::room(pmtu)
    }
}

impl Answers {
    /// Adds the answer to a pair; `header` is the request's. An answer that fits no batch is sent separately.
    #[inline]
    pub(crate) fn add(
        &mut self,
        to: ud::Peer,
        header: &Header,
        status: Status,
        state: &Traverse<'_>,
        sink: AnswerSink<'_>,
    ) {
        let pair = Pair::of(header.request, status, state);
        // Nearly always the batch of the answer before.
        if let Some(open) = self.open.last_mut()
            && open.takes(header, state.program)
            && open.has_room(pair.len(), sink.pmtu)
        {
            return open.pairs.push(&pair);
        }
        self.add_to_other_batch(to, header, &pair, state, sink);
    }

    /// Adds an answer for which the last batch has no room.
    fn add_to_other_batch(
        &mut self,
        to: ud::Peer,
        header: &Header,
        pair: &Pair<'_>,
        state: &Traverse<'_>,
        sink: AnswerSink<'_>,
    ) {
        let AnswerSink { pmtu, peers, out } = sink;
        let status = pair.status;
        if pair.len() > Batch::room(pmtu) {
            let body = Body::Traverse(Traverse { code: &[], ..*state });
            return peers.send(to, &Message { header: header.answer(status), body }, out);
        }
        let same = self.open.iter().position(|open| open.takes(header, state.program));
        let mut at = same.unwrap_or(self.open.len());
        if same.is_some_and(|at| !self.open[at].has_room(pair.len(), pmtu)) {
            self.leave(at, peers, out);
            at = self.open.len();
        }
        if at == ANSWERS_OPEN_MAX {
            self.leave(0, peers, out);
            at = self.open.len();
        }
        if at == self.open.len() {
            let (header, pairs) = (header.answer(Status::Ok), self.spare.pop().unwrap_or_default());
            self.open.push(Open { to, header, program: state.program, pairs });
        }
        self.open[at].pairs.push(pair);
    }

    /// Sends all open batches.
    pub(crate) fn flush(&mut self, peers: &mut Peers, out: &mut Outbox) {
        while !self.open.is_empty() {
            self.leave(self.open.len() - 1, peers, out);
        }
    }

    /// Asserts the bounds.
    pub(crate) fn check(&self) {
        assert!(self.open.is_empty(), "every answer leaves with the event that it comes of");
        assert!(self.spare.len() <= ANSWERS_OPEN_MAX, "as much memory as there ever were answers at once");
    }

    fn leave(&mut self, at: usize, peers: &mut Peers, out: &mut Outbox) {
        let Open { to, header, program, mut pairs } = self.open.swap_remove(at);
        let body = Body::Batch(Batch::of(&header, program, &[], &pairs));
        peers.send(to, &Message { header, body }, out);
        pairs.clear();
        self.spare.push(pairs);
    }
}
