//! The model of far memory, by the word: every answer of a rack is compared with it.
//!
//! Memory is cut into *slots* that only one operation touches at a time, so most words have one right value.
//! If an operation failed with unknown execution (PROTOCOL 9.5), a word has several possible values until a
//! later write settles it. A node that crashes loses its memory: no operation succeeds there until the owner
//! accepts the loss, and only then its words are zero (PROTOCOL 9.19). Memory moves from node to node. If one
//! of the two crashes during a move, the loss is unknown: the memory is unchanged or refused.

use farmem_machine::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// The contents of a slot, by number; 0 is all zeros.
pub(crate) type Version = u64;

/// A slot: consecutive bytes of one vma.
#[derive(Clone, Debug)]
struct Slot {
    /// The possible contents, word by word.
    allowed: BTreeSet<Version>,
    /// The possible contents before a loss: an answer to an operation that began before it may still return
    /// them.
    was: BTreeSet<Version>,
    /// True while an operation is in flight.
    busy: bool,
    /// True if the slot is part of a list and must not be written.
    pinned: bool,
}

/// The loss state of a piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loss {
    /// Not lost, or the owner has accepted the loss.
    None,
    /// Lost: operations that begin now must be refused.
    Sure,
    /// Unknown: the memory was moving when a node crashed, or its owner is accepting the loss. Operations
    /// succeed or are refused.
    Perhaps,
}

/// The location of a piece of memory, which moves as one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    /// The node that has it; during a move, the source.
    pub(crate) node: u16,
    /// The target of a requested move, until the answer arrives.
    pub(crate) to: Option<u16>,
    /// Number of requested moves.
    pub(crate) moves: u32,
    /// The end of the last move.
    settled: Option<Instant>,
    /// Number of node crashes that lost it, or may have.
    pub(crate) losses: u32,
    pub(crate) loss: Loss,
    /// True while the owner is accepting the loss, until the answer arrives.
    pub(crate) accepting: bool,
    /// The time at which the last loss was accepted.
    accepted: Option<Instant>,
}

impl Home {
    pub(crate) const fn at(node: u16) -> Self {
        let (loss, accepting, accepted) = (Loss::None, false, None);
        Self { node, to: None, moves: 0, settled: None, losses: 0, loss, accepting, accepted }
    }

    /// Records that the owner requests to accept the loss.
    pub(crate) const fn accept(&mut self) {
        self.loss = Loss::Perhaps;
        self.accepting = true;
    }

    /// Records the answer to an acceptance. `losses` is the count at the time of the request.
    pub(crate) fn accepted(&mut self, well: bool, losses: u32, now: Instant) {
        self.accepting = false;
        self.accepted = Some(now);
        if well && self.losses == losses {
            self.loss = Loss::None;
        }
    }

    /// Returns true if an operation that began at `since` may be refused as lost.
    pub(crate) fn lost_since(&self, since: Instant) -> bool {
        self.loss != Loss::None || self.accepted.is_some_and(|accepted| accepted >= since)
    }

    /// Records the request of a move.
    pub(crate) const fn leave(&mut self, to: u16) {
        self.to = Some(to);
        self.moves += 1;
    }

    /// Records the end of a move.
    pub(crate) fn settle(&mut self, moved: bool, now: Instant) {
        let to = self.to.take().expect("it was asked to move");
        self.settled = Some(now);
        if moved {
            self.node = to;
        }
    }

    /// Returns true if the node has the piece, or may have it.
    pub(crate) fn may_be_at(&self, node: u16) -> bool {
        self.node == node || self.to == Some(node)
    }

    /// Returns true if the piece was moving at any time since `since`.
    pub(crate) fn moved_since(&self, since: Instant) -> bool {
        self.to.is_some() || self.settled.is_some_and(|settled| settled >= since)
    }

    /// Records that a node lost its memory. Returns true if the piece was surely in it.
    fn lost(&mut self) -> bool {
        self.losses += 1;
        // An acceptance in progress may be carried out before or after this loss.
        let surely = (self.to.is_none() || self.loss == Loss::Sure) && !self.accepting;
        self.loss = if surely { Loss::Sure } else { Loss::Perhaps };
        self.to.is_none()
    }
}

/// One allocation.
#[derive(Clone, Debug)]
pub(crate) struct Vma {
    /// The allocation's number in the model; its addresses are reused.
    pub(crate) number: u64,
    /// The allocation's id at the control plane (PROTOCOL 8.47).
    pub(crate) id: u64,
    pub(crate) size: u64,
    /// The node whose address range contains it.
    pub(crate) node: u16,
    pub(crate) domain: u32,
    /// The client that allocated it.
    pub(crate) owner: usize,
    pub(crate) slot_len: usize,
    /// True if the other domain may read it: the grant is answered, and no revocation is in progress.
    pub(crate) lent: bool,
    /// True while it is being freed, granted or revoked.
    pub(crate) changing: bool,
    /// Length of the pieces that move together; `None` if it does not move.
    pub(crate) piece_len: Option<u64>,
    homes: Vec<Home>,
    slots: Vec<Slot>,
}

impl Vma {
    /// Returns zeroed memory on a node.
    pub(crate) fn new(number: u64, size: u64, node: u16, domain: u32, owner: usize, slot_len: usize) -> Self {
        let (allowed, was) = (BTreeSet::from([0]), BTreeSet::new());
        let slot = Slot { allowed, was, busy: false, pinned: false };
        let slots = vec![slot; usize::try_from(size).expect("a small rack") / slot_len];
        let homes = vec![Home::at(node)];
        let (lent, changing, piece_len) = (false, false, None);
        Self { number, id: 0, size, node, domain, owner, slot_len, lent, changing, piece_len, homes, slots }
    }

    /// Splits the memory into pieces of `piece_len` bytes, which move separately.
    pub(crate) fn in_pieces(mut self, piece_len: u64) -> Self {
        assert!(self.slot_len as u64 <= piece_len && piece_len <= self.size, "no slot is in two pieces");
        self.piece_len = Some(piece_len);
        self.homes = vec![self.homes[0]; usize::try_from(self.size / piece_len).expect("a small rack")];
        self
    }

    /// Marks the memory as possibly lost: its node may have crashed before the program learnt of the
    /// allocation.
    pub(crate) fn lost_perhaps(&mut self) {
        self.homes.iter_mut().for_each(|home| home.loss = Loss::Perhaps);
    }

    /// Returns the pieces, each with its offset in the vma.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u64, &Home)> {
        let len = self.piece_len.unwrap_or(self.size);
        self.homes.iter().enumerate().map(move |(index, home)| (index as u64 * len, home))
    }

    fn piece(&self, offset: u64) -> usize {
        usize::try_from(offset / self.piece_len.unwrap_or(self.size)).expect("a small rack")
    }

    pub(crate) fn home(&self, offset: u64) -> &Home {
        &self.homes[self.piece(offset)]
    }

    pub(crate) fn home_mut(&mut self, offset: u64) -> &mut Home {
        let piece = self.piece(offset);
        &mut self.homes[piece]
    }

    /// Returns true if no operation is in flight in the vma and no list lies in it.
    pub(crate) fn is_idle(&self) -> bool {
        !self.changing && self.slots.iter().all(|slot| !slot.busy && !slot.pinned)
    }

    pub(crate) const fn slots(&self) -> usize {
        self.slots.len()
    }
}

/// The place of a slot: the first byte of its vma, and its index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SlotId {
    pub(crate) base: u64,
    pub(crate) slot: usize,
}

/// The model of all far memory.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) vmas: BTreeMap<u64, Vma>,
    /// Contents that are not derived from their version: nodes of lists.
    special: BTreeMap<Version, Vec<u64>>,
    last_version: Version,
}

impl Model {
    /// Adds an allocated vma, zeroed.
    pub(crate) fn add(&mut self, base: u64, vma: Vma) {
        let end = base + vma.size;
        assert!(
            self.vmas.range(..end).next_back().is_none_or(|(&other, vma)| other + vma.size <= base),
            "vma {base:#x} lies over another"
        );
        self.vmas.insert(base, vma);
    }

    /// Returns an unused version and its bytes.
    pub(crate) fn fresh(&mut self, len: usize) -> (Version, Vec<u8>) {
        self.last_version += 1;
        (self.last_version, self.bytes(self.last_version, len))
    }

    /// Returns a version whose first words are `words` and the rest zero.
    pub(crate) fn fresh_special(&mut self, words: Vec<u64>) -> Version {
        self.last_version += 1;
        self.special.insert(self.last_version, words);
        self.last_version
    }

    /// Returns the bytes of a version.
    pub(crate) fn bytes(&self, version: Version, len: usize) -> Vec<u8> {
        (0..len / 8).flat_map(|i| self.word(version, i).to_le_bytes()).collect()
    }

    /// Returns the address and length of a slot.
    pub(crate) fn span(&self, place: SlotId) -> (u64, usize) {
        let slot_len = self.vmas[&place.base].slot_len;
        (place.base + (place.slot * slot_len) as u64, slot_len)
    }

    /// Returns the location of a slot.
    pub(crate) fn home(&self, place: SlotId) -> &Home {
        let vma = &self.vmas[&place.base];
        vma.home((place.slot * vma.slot_len) as u64)
    }

    pub(crate) fn is_free(&self, place: SlotId) -> bool {
        let vma = &self.vmas[&place.base];
        !vma.changing && !vma.slots[place.slot].busy
    }

    pub(crate) fn is_pinned(&self, place: SlotId) -> bool {
        self.vmas[&place.base].slots[place.slot].pinned
    }

    pub(crate) fn pin(&mut self, place: SlotId, pinned: bool) {
        self.slot(place).pinned = pinned;
    }

    /// Marks the slot as busy: an operation begins.
    pub(crate) fn take(&mut self, place: SlotId) {
        let slot = self.slot(place);
        assert!(!slot.busy, "one operation at a time, at {place:?}");
        slot.busy = true;
    }

    /// Ends an operation without a write.
    pub(crate) fn release(&mut self, place: SlotId) {
        self.slot(place).busy = false;
    }

    /// Adds `version` to the possible contents.
    pub(crate) fn may_hold(&mut self, place: SlotId, version: Version) {
        self.slot(place).allowed.insert(version);
    }

    /// Records a successful write without a loss meanwhile: the slot holds `version` only.
    pub(crate) fn holds(&mut self, place: SlotId, version: Version) {
        self.slot(place).allowed = BTreeSet::from([version]);
    }

    /// Records that a write was not executed and never will be.
    pub(crate) fn cannot_hold(&mut self, place: SlotId, version: Version) {
        self.slot(place).allowed.remove(&version);
    }

    /// Records that a node lost its memory. `still` are the versions whose write may still execute.
    pub(crate) fn node_lost(&mut self, node: u16, still: &BTreeMap<SlotId, Version>) {
        for (&base, vma) in &mut self.vmas {
            let lost: Vec<Option<bool>> =
                vma.homes.iter_mut().map(|home| home.may_be_at(node).then(|| home.lost())).collect();
            let accepting: Vec<bool> = vma.homes.iter().map(|home| home.accepting).collect();
            for slot in 0..vma.slots.len() {
                let piece = vma.piece((slot * vma.slot_len) as u64);
                let Some(surely) = lost[piece] else { continue };
                let state = &mut vma.slots[slot];
                if !state.busy {
                    state.was.clear();
                }
                state.was.extend(&state.allowed);
                if surely {
                    state.allowed.clear();
                }
                state.allowed.extend(accepting[piece].then_some(0));
                // Such a write executes if it is repeated until the loss is accepted.
                state.allowed.extend(still.get(&SlotId { base, slot }));
            }
        }
    }

    /// Records that the owner accepts the loss of the piece at `offset`: it may be zeros from now on.
    pub(crate) fn accept(&mut self, base: u64, offset: u64) {
        let Some(vma) = self.vmas.get_mut(&base) else { return };
        let piece = vma.piece(offset);
        for slot in 0..vma.slots.len() {
            if vma.piece((slot * vma.slot_len) as u64) == piece {
                vma.slots[slot].allowed.insert(0);
            }
        }
        vma.homes[piece].accept();
    }

    /// Checks the bytes of a read that began before a loss: they must match the contents before it, or
    /// accepted ones.
    pub(crate) fn check_before(&self, place: SlotId, bytes: &[u8]) -> Result<(), String> {
        let slot = &self.vmas[&place.base].slots[place.slot];
        self.check_versions(place, bytes, &slot.was.union(&slot.allowed).copied().collect())
    }

    /// Checks the bytes of a read of a slot.
    pub(crate) fn check(&self, place: SlotId, bytes: &[u8]) -> Result<(), String> {
        if self.home(place).loss == Loss::Sure {
            return Err(format!("{:#x} was lost, and that was not told", self.span(place).0));
        }
        self.check_versions(place, bytes, &self.vmas[&place.base].slots[place.slot].allowed)
    }

    fn check_versions(&self, place: SlotId, bytes: &[u8], allowed: &BTreeSet<Version>) -> Result<(), String> {
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            if !allowed.iter().any(|&version| self.word(version, i) == word) {
                let addr = self.span(place).0 + i as u64 * 8;
                return Err(format!("{addr:#x} holds {word:#x}, but no version of {allowed:?} does"));
            }
        }
        Ok(())
    }

    fn word(&self, version: Version, i: usize) -> u64 {
        match (version, self.special.get(&version)) {
            (0, _) => 0,
            (_, Some(words)) => words.get(i).copied().unwrap_or(0),
            _ => mix(version.wrapping_mul(0x1_0000).wrapping_add(i as u64)),
        }
    }

    fn slot(&mut self, place: SlotId) -> &mut Slot {
        let vma = self.vmas.get_mut(&place.base).expect("a vma in use is not freed");
        &mut vma.slots[place.slot]
    }
}

/// A word that all hosts increment: atomics must linearise.
///
/// All additions are of one. So no two find the same value; one that began after `n` had ended finds at least
/// `n`; and none finds as much as had begun.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) addr: u64,
    /// The node whose address range contains the word.
    pub(crate) range_node: u16,
    pub(crate) home: Home,
    /// Number of additions that succeeded.
    ended: u64,
    /// Number of additions that began.
    begun: u64,
    found: BTreeSet<u64>,
    /// True once the word may have been lost: then every value is accepted.
    lost_perhaps: bool,
}

impl Counter {
    pub(crate) const fn new(addr: u64, node: u16) -> Self {
        let (range_node, home) = (node, Home::at(node));
        Self { addr, range_node, home, ended: 0, begun: 0, found: BTreeSet::new(), lost_perhaps: false }
    }

    /// Returns the number of successful additions so far: the minimum that a later one must find.
    pub(crate) const fn floor(&self) -> u64 {
        self.ended
    }

    /// Records the begin of an addition, or of a swap that may become one.
    pub(crate) const fn begin(&mut self) {
        self.begun += 1;
    }

    /// Records that a swap failed to match and added nothing.
    pub(crate) const fn missed(&mut self) {
        self.begun -= 1;
    }

    /// Records an addition that found `old`.
    pub(crate) fn added(&mut self, old: u64, floor: u64) -> Result<(), String> {
        self.is_there()?;
        self.ended += 1;
        if !self.found.insert(old) && !self.lost_perhaps {
            return Err(format!("two additions to {:#x} found {old}", self.addr));
        }
        self.seen(old, floor, self.begun - 1)
    }

    /// Fails if the word is surely lost: an operation that began after the loss found it.
    pub(crate) fn is_there(&self) -> Result<(), String> {
        if self.home.loss == Loss::Sure {
            return Err(format!("{:#x} was lost, and that was not told", self.addr));
        }
        Ok(())
    }

    /// Checks a value read by an operation that began when `floor` additions had ended and that `begun`
    /// others may precede.
    pub(crate) fn seen(&self, value: u64, floor: u64, begun: u64) -> Result<(), String> {
        if self.lost_perhaps || (floor..=begun).contains(&value) {
            return Ok(());
        }
        Err(format!("{:#x} held {value}, but {floor} had ended and {begun} had begun", self.addr))
    }

    /// Checks the final value: at least the ended additions, at most the begun ones.
    pub(crate) fn check_end(&self, value: u64) -> Result<(), String> {
        self.is_there()?;
        self.seen(value, self.ended, self.begun)
    }

    /// Records that the word's node lost its memory, and every addition in flight with it.
    pub(crate) fn lost(&mut self) {
        let lost_perhaps = !self.home.lost() || self.lost_perhaps;
        *self = Self { home: self.home, lost_perhaps, ..Self::new(self.addr, self.range_node) };
    }
}

/// Mixes a number over 64 bits (splitmix64).
const fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::{Counter, Model, SlotId, Vma};
    use std::collections::BTreeMap;

    const PLACE: SlotId = SlotId { base: 0x1000, slot: 1 };

    fn model() -> Model {
        let mut model = Model::default();
        model.add(0x1000, Vma::new(1, 4096, 1, 1, 0, 64));
        model
    }

    /// A write of unknown execution leaves two right values for each word, a successful one only its own.
    #[test]
    fn an_unsure_write_leaves_two_values() {
        let mut model = model();
        assert_eq!(model.span(PLACE), (0x1040, 64));
        let (one, bytes) = model.fresh(64);
        assert!(model.check(PLACE, &bytes).is_err());
        model.may_hold(PLACE, one);
        let half = [&bytes[..32], &[0; 32]].concat();
        assert_eq!((model.check(PLACE, &bytes), model.check(PLACE, &half)), (Ok(()), Ok(())));
        model.holds(PLACE, one);
        assert!(model.check(PLACE, &half).is_err() && model.check(PLACE, &[0; 64]).is_err());
        let (two, _) = model.fresh(64);
        model.node_lost(1, &BTreeMap::from([(PLACE, two)]));
        assert!(model.check(PLACE, &bytes).is_err());
        assert!(model.check(PLACE, &[0; 64]).is_err(), "zeros are no answer");
        model.accept(PLACE.base, 64);
        assert!(model.check(PLACE, &bytes).is_err());
        assert_eq!(model.check(PLACE, &[0; 64]), Ok(()));
    }

    /// A read that began before a loss may return the contents before it, but no zeros.
    #[test]
    fn an_answer_from_before_a_loss_is_no_zeros() {
        let mut model = model();
        let (one, bytes) = model.fresh(64);
        model.holds(PLACE, one);
        model.node_lost(1, &BTreeMap::new());
        assert_eq!(model.check_before(PLACE, &bytes), Ok(()));
        assert!(model.check_before(PLACE, &[0; 64]).is_err());
    }

    /// A doubled addition, a lost one, and one that goes back in time are detected.
    #[test]
    fn additions_linearise() {
        let mut counter = Counter::new(0x1000, 1);
        (0..3).for_each(|_| counter.begin());
        assert_eq!(counter.added(0, 0), Ok(()));
        assert!(counter.added(0, 0).is_err(), "found twice");
        assert!(counter.added(3, 0).is_err(), "one more than had begun before it");
        counter.begin();
        assert!(counter.added(1, 2).is_err(), "two had ended before it began");
        assert!(counter.check_end(2).is_err() && counter.check_end(5).is_err());
        assert_eq!(counter.check_end(4), Ok(()));
    }

    /// Two vmas never share a byte.
    #[test]
    #[should_panic(expected = "lies over another")]
    fn overlapping_vmas_are_found() {
        model().add(0x1800, Vma::new(1, 4096, 1, 2, 0, 64));
    }
}
