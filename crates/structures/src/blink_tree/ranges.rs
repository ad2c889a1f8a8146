//! Parallel range queries (Fat-B+Tree IV-C). A query cuts a range into consecutive sub-ranges, requests them
//! in parallel, and returns the pairs in order.
//!
//! Key types: [`RangeQuery`], [`Separators`]. Each sub-range costs one more descent: a visit or two with an
//! index in the switch, the height of the tree without. The paper divides ranges for this reason (18 % and 59
//! % more accesses, `crates/structures/tests/structures/ranges.rs`). The requests of a round leave together, in batches if
//! they go to one node (PROTOCOL 3.13, 11.13).
//!
//! The cut positions affect only the balance, never the result. An *even cut by keys* needs no knowledge, but
//! dense keys end up in one sub-range. A cut at *separators*, the keys between the children of inner nodes,
//! gives sub-ranges about equal numbers of nodes. A host takes separators from the published index, or reads
//! them once and keeps them. Old separators give the same result as new ones.

use super::part::{PadOutcome, Part};
use super::{BLinkTree, ends, programs};
use crate::RecordTree;
use crate::heap::{Heap, Record};
use farmem_client::task::{Concurrent, run_tasks};
use farmem_client::{Answer, Completed, Error, FarMemory, Next, OpQueue, Task};
use farmem_index::TreeSection;
use farmem_index::blink::{NODE_LEN, Node};
use farmem_wire::VirtAddr;
use std::collections::VecDeque;
use std::ops::{RangeBounds, RangeInclusive};

/// Bound on the sub-ranges of a range.
pub const PARTS_MAX: usize = 256;
/// Default bound on the pairs that a query keeps for its caller: a quarter of a mebibyte.
pub const AHEAD_DEFAULT: usize = 16 << 10;
/// Bound on the inner nodes read for separators.
const SEPARATOR_NODES_MAX: usize = 4_096;

/// A range query in pieces, like [`Cursor`](super::Cursor), with up to [`PARTS_MAX`] parallel sub-ranges.
///
/// A query holds keys and no node of the tree. Splits and merges meanwhile do no harm: each stable key is
/// found once, in order. A range whose first key exceeds its last is empty and sends no request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeQuery {
    /// The sub-ranges in key order. The caller receives pairs of the first one only.
    parts: VecDeque<Part>,
    /// Number of parallel sub-ranges.
    width: usize,
    /// The separators inside the range, ascending.
    separators: Vec<u64>,
    ahead: usize,
}

impl RangeQuery {
    /// Creates a query of `range`, in one part.
    #[must_use]
    pub fn new(range: impl RangeBounds<u64>) -> Self {
        let parts = ends(&range).map(|ends| Part::new(Some(ends)));
        Self { parts: parts.into_iter().collect(), width: 1, separators: Vec::new(), ahead: AHEAD_DEFAULT }
    }

    /// Divides the query into `n` sub-ranges of about equal key counts, or into one per key if there are
    /// fewer keys.
    ///
    /// # Errors
    /// [`Error::Count`] for 0 and for more than [`PARTS_MAX`].
    pub fn parallel(self, n: usize) -> Result<Self, Error> {
        self.parallel_at(n, &Separators::default())
    }

    /// Divides the query into `n` sub-ranges that begin at separators, with about as many separators in each.
    /// If the range has too few separators, the pieces between them are cut evenly by keys.
    ///
    /// # Errors
    /// As [`RangeQuery::parallel`].
    pub fn parallel_at(mut self, n: usize, separators: &Separators) -> Result<Self, Error> {
        if !(1..=PARTS_MAX).contains(&n) {
            return Err(Error::Count { what: "sub-ranges of a range", have: n, least: 1, most: PARTS_MAX });
        }
        self.width = n;
        if let Some((first, last)) = self.bounds() {
            self.separators = separators.inside(first, last).to_vec();
            self.parts = cut(first, last, n, &self.separators);
        }
        Ok(self)
    }

    /// Keeps at most `pairs` of 16 bytes for the caller, besides the pairs of one request per sub-range. A
    /// sub-range that has its share waits. When all others wait for the first sub-range, the rest of the
    /// first one is divided again.
    #[must_use]
    pub const fn ahead(mut self, pairs: usize) -> Self {
        self.ahead = pairs;
        self
    }

    /// Returns the sub-ranges that are not exhausted.
    pub fn parts(&self) -> impl Iterator<Item = RangeInclusive<u64>> {
        self.parts.iter().filter_map(|part| part.left).map(|(first, last)| first..=last)
    }

    /// Returns the number of pairs received and not yet taken.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.parts.iter().map(|part| part.pairs.len()).sum()
    }

    /// Returns true when nothing is left. A query that has requested all keys may learn only later that none
    /// remained.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.parts.iter().all(|part| part.left.is_none() && part.pairs.is_empty())
    }

    /// Returns the next `most` pairs of a tree in order, fewer at its end. Each sub-range brings at most its
    /// share at once.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or the tree is broken. The query then keeps its position.
    pub fn next(
        &mut self,
        tree: &BLinkTree,
        memory: &mut impl Concurrent,
        most: usize,
    ) -> Result<Vec<(u64, u64)>, Error> {
        let mut out = VecDeque::new();
        while out.len() < most {
            let Some(head) = self.parts.front_mut() else { break };
            if head.pairs.is_empty() && head.left.is_none() {
                self.parts.pop_front();
            } else if head.pairs.is_empty() {
                if let Err(error) = self.fetch(tree, memory, most - out.len()) {
                    self.parts.push_front(Part::of(out));
                    return Err(error);
                }
            } else {
                let count = head.pairs.len().min(most - out.len());
                out.extend(head.pairs.drain(..count));
            }
        }
        Ok(out.into())
    }

    /// Returns the next `most` keys of a tree of records with their values, in order, fewer at its end. The
    /// values are read in parallel.
    ///
    /// The next call requests untaken pairs again, because between two calls records may be freed and reused.
    ///
    /// # Errors
    /// As [`RangeQuery::next`]; and as [`RecordTree::scan`].
    pub fn next_records(
        &mut self,
        tree: &RecordTree,
        memory: &mut impl Concurrent,
        heap: &mut Heap,
        most: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        self.forget();
        let before = self.clone();
        heap.pin(memory)?;
        let pairs = self.next(tree.tree(), memory, most).and_then(|pairs| {
            let records = pairs.iter().map(|(_, word)| Record::unpacked(*word));
            let records = records.collect::<Result<Vec<Record>, Error>>()?;
            let values = heap.read_all(memory, &records)?.into_iter().map(|(_, value)| value);
            Ok(pairs.into_iter().map(|(key, _)| key).zip(values).collect())
        });
        heap.unpin();
        if pairs.is_err() {
            *self = before;
        }
        self.forget();
        pairs
    }

    /// Discards untaken pairs; their keys are requested again.
    fn forget(&mut self) {
        for part in &mut self.parts {
            if let Some((first, _)) = part.pairs.front() {
                let last = part.left.map_or_else(|| part.pairs[part.pairs.len() - 1].0, |(_, last)| last);
                *part = Part::new(Some((*first, last)));
            }
        }
    }

    /// Returns the first and the last key not yet taken.
    fn bounds(&self) -> Option<(u64, u64)> {
        let first = self.parts.front()?.left?.0;
        Some((first, self.parts.back()?.left?.1))
    }

    /// Requests pairs for every sub-range that has none, at least one of them, within the wanted number and
    /// the free room.
    fn fetch(&mut self, tree: &BLinkTree, memory: &mut impl Concurrent, wanted: usize) -> Result<(), Error> {
        let room = self.ahead.saturating_sub(self.waiting());
        let hungry = |part: &Part| part.left.is_some() && part.pairs.is_empty();
        if self.parts.iter().filter(|part| hungry(part)).count() == 1
            && room >= self.width.saturating_mul(programs::PAIRS_MAX)
        {
            self.divide_first();
        }
        let count = self.parts.iter().filter(|part| hungry(part)).count();
        let share = (room.min(wanted) / count).max(1);
        let scans = self.parts.iter_mut().filter(|part| hungry(part)).map(|part| Scan { tree, part, share });
        run_tasks(memory, scans, self.width.max(1), tree.policy(), |_, _| {})?;
        // The first part stays; the caller removes it.
        let mut at = 0;
        self.parts.retain(|part| {
            at += 1;
            at == 1 || part.left.is_some() || !part.pairs.is_empty()
        });
        Ok(())
    }

    /// Divides the rest of the first sub-range again, once all others have their share.
    fn divide_first(&mut self) {
        let first = self.parts.pop_front().expect("there is a first one");
        let (from, last) = first.left.expect("it has keys left");
        let inside = &self.separators[within(&self.separators, from, last)];
        for part in cut(from, last, self.width, inside).into_iter().rev() {
            self.parts.push_front(part);
        }
    }
}

/// The requests of a sub-range until it has its share.
struct Scan<'a> {
    tree: &'a BLinkTree,
    part: &'a mut Part,
    share: usize,
}

impl Task for Scan<'_> {
    fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
        if let Some(Completed { result, buf, .. }) = queue.take() {
            let Answer::Traversed(end) = result? else { unreachable!("a traversal ends as one") };
            let took = self.part.ended(&end, &buf)?;
            queue.recycle(buf);
            if took == PadOutcome::Lost {
                return Ok(Next::Alone);
            }
        }
        if !self.part.wants(self.share) {
            return Ok(Next::Done);
        }
        let op = self.part.op(self.tree, self.share, queue.buffer());
        queue.need(op);
        Ok(Next::Need)
    }

    fn alone(&mut self, memory: &mut dyn FarMemory) -> Result<(), Error> {
        self.part.leaf_at_host(self.tree, memory)
    }
}

/// Cuts `first` to `last` into `n` parts at these separators.
fn cut(first: u64, last: u64, n: usize, separators: &[u64]) -> VecDeque<Part> {
    let pieces = separators.len() + 1;
    let mut parts = VecDeque::with_capacity(n);
    // With more pieces than parts, each part takes consecutive pieces. With fewer, each piece is cut into
    // several parts.
    let groups = pieces.min(n);
    let begin_of = |group: usize| match group * pieces / groups {
        0 => first,
        piece => separators[piece - 1],
    };
    for group in 0..groups {
        let from = begin_of(group);
        let to = if group + 1 < groups { begin_of(group + 1) - 1 } else { last };
        let share = (group + 1) * n / groups - group * n / groups;
        parts.extend(evenly(from, to, share).map(|ends| Part::new(Some(ends))));
    }
    parts
}

/// Cuts `first` to `last` into `n` pieces of equal key counts, or into one per key.
fn evenly(first: u64, last: u64, n: usize) -> impl Iterator<Item = (u64, u64)> {
    let keys = u128::from(last - first) + 1;
    let n = u128::try_from(n).unwrap_or(1).clamp(1, keys);
    let begin = move |piece: u128| {
        first + u64::try_from(piece * keys / n).expect("a place inside of a range of 64-bit keys")
    };
    (0..n).map(move |piece| (begin(piece), if piece + 1 < n { begin(piece + 1) - 1 } else { last }))
}

/// Keys at which a tree's nodes began at some time. Separators are good cut positions for ranges.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Separators(Vec<u64>);

impl Separators {
    /// Returns the separators of a published index: the ranges of the fat root and the pivots of the sets.
    #[must_use]
    pub fn published(section: &TreeSection) -> Self {
        let ranges = section.ranges.iter().map(|range| range.first);
        let sets = section.sets.iter().flatten().flat_map(|node| node.pivots.iter().copied());
        Self::of(ranges.chain(sets))
    }

    /// Creates separators from any keys.
    #[must_use]
    pub fn of(keys: impl IntoIterator<Item = u64>) -> Self {
        let mut keys: Vec<u64> = keys.into_iter().collect();
        keys.sort_unstable();
        keys.dedup();
        Self(keys)
    }

    /// Returns the number of separators.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true when there are none. Ranges are then cut evenly by keys.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the separators that may begin a sub-range of this range, excluding its first key.
    fn inside(&self, first: u64, last: u64) -> &[u64] {
        &self.0[within(&self.0, first, last)]
    }
}

/// Returns the positions of the keys above `first` and not above `last`.
fn within(keys: &[u64], first: u64, last: u64) -> std::ops::Range<usize> {
    keys.partition_point(|key| *key <= first)..keys.partition_point(|key| *key <= last)
}

impl BLinkTree {
    /// Creates a query of `range`, which [`RangeQuery::parallel`] can divide.
    #[must_use]
    pub fn range(&self, range: impl RangeBounds<u64>) -> RangeQuery {
        RangeQuery::new(range)
    }

    /// Reads at least `least` separators in `range`, if the tree has so many, from the highest level that has
    /// them. The cost is one round trip per level, and one READ per inner node in the range, at most 4,096.
    /// Nodes that other writers are changing are skipped.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn separators(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        range: impl RangeBounds<u64>,
        least: usize,
    ) -> Result<Separators, Error> {
        let Some((first, last)) = ends(&range) else { return Ok(Separators::default()) };
        let (mut found, mut level) = (Vec::new(), vec![self.tree.root]);
        let mut read = 0;
        while !level.is_empty() && found.len() < least && read + level.len() <= SEPARATOR_NODES_MAX {
            read += level.len();
            let mut bytes = vec![[0; NODE_LEN]; level.len()];
            let mut reads: Vec<_> =
                level.iter().zip(&mut bytes).map(|(at, bytes)| (*at, &mut bytes[..])).collect();
            memory.read_many(&mut reads)?;
            level = Vec::new();
            for node in bytes.iter().filter_map(|bytes| Node::parse(bytes).ok()) {
                if node.level == 0 || node.tag != self.tree.tag || !node.state.is_readable() {
                    continue;
                }
                let keys = node.entries.iter().map(|(key, _)| *key);
                found.extend(keys.filter(|key| *key > first && *key <= last));
                if node.level > 1 {
                    let ends = node.entries[1..].iter().map(|(key, _)| key - 1).chain([node.last]);
                    let children = node.entries.iter().zip(ends);
                    let inside = children.filter(|((from, _), to)| *from <= last && *to >= first);
                    level.extend(inside.map(|((_, at), _)| VirtAddr(*at)));
                }
            }
        }
        Ok(Separators::of(found))
    }
}

impl RecordTree {
    /// Creates a query of `range`, which can be divided: [`RangeQuery::parallel`],
    /// [`RangeQuery::next_records`].
    #[must_use]
    pub fn range(&self, range: impl RangeBounds<u64>) -> RangeQuery {
        RangeQuery::new(range)
    }
}
