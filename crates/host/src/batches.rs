//! Outgoing traversals that share a datagram (PROTOCOL 11.13).
//!
//! Key type: [`Batches`]. Traversals of one program whose pointers are at one node wait for each other until
//! the host's next wake, which the host requests at once. So operations that the user submits back to back
//! leave together. Each traversal is also a request of its own: a retransmission goes alone.

use alloc::vec::Vec;
use farmem_machine::Instant;
use farmem_transport::ud;
use farmem_traversal::Program;
use farmem_wire::message::{Batch, PAIRS_MAX, Pair, PairBuf};
use farmem_wire::{Body, Header, Message, NodeId, Pmtu, RequestId};

/// Maximum number of open batches, each for one program and node. If another one is needed, the oldest
/// leaves.
pub const BATCHES_OPEN_MAX: usize = 16;

/// The properties that all traversals of a batch share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared<P> {
    /// The session that carries the traversals.
    pub(crate) switch: ud::Peer,
    /// The node that holds their pointers, as far as the host knows.
    pub(crate) node: NodeId,
    /// The program, or a reference to one.
    pub(crate) program: P,
    /// True if the request carries the code.
    pub(crate) with_code: bool,
}

impl Shared<&Program> {
    /// Returns true if both describe one batch. Programs are compared by hash, as on the wire.
    fn is(&self, other: &Shared<Program>) -> bool {
        self.node == other.node
            && self.with_code == other.with_code
            && self.switch == other.switch
            && self.program.hash() == other.program.hash()
    }

    /// Returns the bytes available for pairs beside the code, if the code goes along.
    fn room(&self, pmtu: Pmtu) -> usize {
        let code = if self.with_code { self.program.encoded().len() } else { 0 };
        Batch::room(pmtu).saturating_sub(code)
    }

    /// Returns an owned copy for a new batch.
    fn kept(&self) -> Shared<Program> {
        let Self { switch, node, program, with_code } = *self;
        Shared { switch, node, program: program.clone(), with_code }
    }
}

/// A batch that still accepts traversals.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) shared: Shared<Program>,
    pub(crate) first: RequestId,
    pairs: PairBuf,
}

impl Open {
    /// Returns the request, with a header that carries the first pair's id.
    pub(crate) fn message(&self, header: Header) -> Message<'_> {
        let Self { shared, pairs, .. } = self;
        let code = if shared.with_code { shared.program.encoded() } else { &[] };
        Message { header, body: Body::Batch(Batch::of(&header, shared.program.hash(), code, pairs)) }
    }

    /// Returns the number of traversals in the batch, at least 1.
    pub(crate) const fn count(&self) -> u16 {
        self.pairs.count()
    }
}

/// The batches that have not left yet.
#[derive(Debug)]
pub(crate) struct Batches {
    pairs_max: u16,
    pmtu: Pmtu,
    open: Vec<Open>,
    /// The time at which the batches leave.
    due: Instant,
    /// Buffers of batches that left, for reuse.
    spare: Vec<PairBuf>,
}

impl Batches {
    /// Returns batches of at most `pairs_max` traversals each, and at most [`PAIRS_MAX`].
    pub(crate) fn new(pairs_max: u16, pmtu: Pmtu) -> Self {
        let pairs_max = pairs_max.min(PAIRS_MAX);
        Self { pairs_max, pmtu, open: Vec::new(), due: Instant::ZERO, spare: Vec::new() }
    }

    /// Returns true if traversals may share datagrams.
    pub(crate) const fn are_enabled(&self) -> bool {
        self.pairs_max > 1
    }

    /// Returns true if a batch of this traversal alone fits a datagram.
    pub(crate) fn fits(&self, shared: &Shared<&Program>, pair: &Pair<'_>) -> bool {
        pair.len() <= shared.room(self.pmtu)
    }

    /// Adds a request. Returns the batch that must leave now, if any: the batch has no room for this request,
    /// or too many batches are open.
    ///
    /// # Panics
    ///
    /// If the request does not fit ([`Batches::fits`]).
    pub(crate) fn add(
        &mut self,
        now: Instant,
        shared: &Shared<&Program>,
        first: RequestId,
        pair: &Pair<'_>,
    ) -> Option<Open> {
        let room = shared.room(self.pmtu);
        assert!(pair.len() <= room, "a pair that fits no batch goes alone");
        if self.open.is_empty() {
            self.due = now;
        }
        let has_room =
            |open: &Open| open.count() < self.pairs_max && open.pairs.bytes_len() + pair.len() <= room;
        let mut leaves = None;
        match self.open.iter().position(|open| shared.is(&open.shared)) {
            Some(at) if has_room(&self.open[at]) => {
                self.open[at].pairs.push(pair);
                return None;
            }
            Some(at) => leaves = Some(self.open.remove(at)),
            None if self.open.len() == BATCHES_OPEN_MAX => leaves = Some(self.open.remove(0)),
            None => {}
        }
        let mut pairs = self.spare.pop().unwrap_or_default();
        pairs.push(pair);
        self.open.push(Open { shared: shared.kept(), first, pairs });
        leaves
    }

    /// Removes the next batch that leaves at the host's wake.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Open> {
        (self.due <= now && !self.open.is_empty()).then(|| self.open.remove(0))
    }

    /// Takes back the buffer of a batch that left, for reuse.
    pub(crate) fn left(&mut self, mut open: Open) {
        open.pairs.clear();
        self.spare.push(open.pairs);
    }

    /// Returns the time at which the open batches leave.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        (!self.open.is_empty()).then_some(self.due)
    }

    pub(crate) fn check(&self) {
        assert!(self.open.len() <= BATCHES_OPEN_MAX, "more batches than the bound");
        assert!(self.open.len() + self.spare.len() <= BATCHES_OPEN_MAX + 1, "memory is used again");
        assert!(
            self.open.iter().all(|open| (1..=self.pairs_max).contains(&open.count())),
            "a batch has pairs"
        );
    }
}
