//! Traversals on their way out that share a datagram (PROTOCOL 11.13).
//!
//! Key type: [`Batches`]. Those of one program, whose pointers are at one node, wait for each other until the host is woken, which it asks for
//! at once: so what its user asks for without waiting in between goes together. Each is a request of its own beside: what is sent
//! again is sent alone.

use alloc::vec::Vec;
use farmem_machine::Instant;
use farmem_transport::ud;
use farmem_traversal::Program;
use farmem_wire::message::{Batch, PAIRS_MAX, Pair, PairBuf};
use farmem_wire::{Body, Header, Message, NodeId, Pmtu, RequestId};

/// Batches that are filled at a time: of so many programs and nodes; for one more the one begun first leaves.
pub const BATCHES_OPEN_MAX: usize = 16;

/// What traversals of one batch share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared<P> {
    /// The session they go over.
    pub(crate) switch: ud::Peer,
    /// Where their pointers are, as far as the host knows.
    pub(crate) node: NodeId,
    /// The program, or a reference to one.
    pub(crate) program: P,
    /// They bring the code along.
    pub(crate) with_code: bool,
}

impl Shared<&Program> {
    /// True when both are said of one batch. Of programs that is their names, as on the wire.
    fn is(&self, other: &Shared<Program>) -> bool {
        self.node == other.node
            && self.with_code == other.with_code
            && self.switch == other.switch
            && self.program.hash() == other.program.hash()
    }

    /// Bytes for pairs beside the code, if that goes along.
    fn room(&self, pmtu: Pmtu) -> usize {
        let code = if self.with_code { self.program.encoded().len() } else { 0 };
        Batch::room(pmtu).saturating_sub(code)
    }

    /// As it is kept with a batch that is begun.
    fn kept(&self) -> Shared<Program> {
        let Self { switch, node, program, with_code } = *self;
        Shared { switch, node, program: program.clone(), with_code }
    }
}

/// A batch that was begun.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) shared: Shared<Program>,
    pub(crate) first: RequestId,
    pairs: PairBuf,
}

impl Open {
    /// The request, with a header of the first pair's id.
    pub(crate) fn message(&self, header: Header) -> Message<'_> {
        let Self { shared, pairs, .. } = self;
        let code = if shared.with_code { shared.program.encoded() } else { &[] };
        Message { header, body: Body::Batch(Batch::of(&header, shared.program.hash(), code, pairs)) }
    }

    /// Traversals in it, at least 1.
    pub(crate) const fn count(&self) -> u16 {
        self.pairs.count()
    }
}

/// Batches that were begun and have not left.
#[derive(Debug)]
pub(crate) struct Batches {
    pairs_max: u16,
    pmtu: Pmtu,
    open: Vec<Open>,
    /// When they leave.
    due: Instant,
    /// Memory of those that left.
    spare: Vec<PairBuf>,
}

impl Batches {
    /// Of at most `pairs_max` traversals each, and [`PAIRS_MAX`].
    pub(crate) fn new(pairs_max: u16, pmtu: Pmtu) -> Self {
        let pairs_max = pairs_max.min(PAIRS_MAX);
        Self { pairs_max, pmtu, open: Vec::new(), due: Instant::ZERO, spare: Vec::new() }
    }

    /// True when traversals are to share datagrams at all.
    pub(crate) const fn are_wanted(&self) -> bool {
        self.pairs_max > 1
    }

    /// True when a batch of this one alone fits a datagram.
    pub(crate) fn fits(&self, shared: &Shared<&Program>, pair: &Pair<'_>) -> bool {
        pair.len() <= shared.room(self.pmtu)
    }

    /// Takes a request in. Answers the batch that must leave now, if one must: it has no room for this one, or there are too many.
    ///
    /// # Panics
    /// When it does not fit ([`Batches::fits`]).
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

    /// The next batch that leaves when the host is woken.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Open> {
        (self.due <= now && !self.open.is_empty()).then(|| self.open.remove(0))
    }

    /// A batch left: its memory is used again.
    pub(crate) fn left(&mut self, mut open: Open) {
        open.pairs.clear();
        self.spare.push(open.pairs);
    }

    /// When those that were begun leave.
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
