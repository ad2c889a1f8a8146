//! The structures' programs as hand-written Rust functions: the work of an RPC server beside the data, in
//! place of traversals (PULSE 6: RPC).
//!
//! Key type: [`Native`], which a memory node uses instead of a compiler. Requests, crossings and replies stay
//! the same, so only the execution differs. Tests compare each function with its program, to the byte.

use farmem::serve::{Compile, Logic};
use farmem::{Program, VirtAddr, btree, hash_table, series};
use farmem_traversal::{SCRATCH_LEN_MAX, Step};
use std::time::{Duration, Instant};

/// One iteration in Rust.
type Function = fn(&[u8], &mut VirtAddr, &mut [u8]) -> Step;

/// The functions, with the text of the programs they replace.
const FUNCTIONS: [(&str, Function); 5] = [
    (hash_table::FIND_PROGRAM, hash_find),
    (btree::FIND_PROGRAM, btree_find),
    (btree::SCAN_PROGRAM, btree_scan),
    (btree::AGGREGATE_PROGRAM, btree_aggregate),
    (series::WINDOW_PROGRAM, series_window),
];

/// The length of the records that [`btree_records`] copies: those of the table store.
const RECORD: usize = farmem_tablestore::VALUE_LEN;

/// Runs known programs as native functions, and interprets all others.
#[derive(Clone, Debug)]
pub struct Native {
    functions: Vec<(Program, Function)>,
    stretch: Duration,
}

impl Native {
    /// Creates functions without extra delay.
    #[must_use]
    pub fn new() -> Self {
        let function = |(text, function)| {
            let program = Program::assemble(text).expect("the structures' tests assemble their programs");
            (program, function)
        };
        let records = btree::records_program(RECORD, SCRATCH_LEN_MAX);
        let all = FUNCTIONS.into_iter().chain([(records.as_str(), btree_records as Function)]);
        Self { functions: all.map(function).collect(), stretch: Duration::ZERO }
    }

    /// Creates functions with `stretch` added to every iteration, like a slower processor with slower memory.
    #[must_use]
    pub fn stretched(stretch: Duration) -> Self {
        Self { stretch, ..Self::new() }
    }
}

impl Native {
    /// Returns the executor of `program`.
    #[must_use]
    pub fn logic(&self, program: &Program) -> NativeLogic {
        let known = self.functions.iter().find(|(known, _)| known.hash() == program.hash());
        let way =
            known.map_or_else(|| Code::Interpreted(program.clone()), |(_, function)| Code::Native(*function));
        NativeLogic { way, stretch: self.stretch }
    }
}

impl Default for Native {
    fn default() -> Self {
        Self::new()
    }
}

impl Compile for Native {
    type Logic = NativeLogic;

    fn compile(&mut self, program: &Program) -> NativeLogic {
        self.logic(program)
    }
}

/// The executor of one program.
#[derive(Debug)]
pub struct NativeLogic {
    way: Code,
    stretch: Duration,
}

#[derive(Debug)]
enum Code {
    Native(Function),
    Interpreted(Program),
}

impl Logic for NativeLogic {
    fn step(&self, window: &[u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        let step = match &self.way {
            Code::Native(function) => function(window, cur_ptr, scratch),
            Code::Interpreted(program) => program.step(window, cur_ptr, scratch),
        };
        self.stretch();
        step
    }

    fn step_storing(&self, window: &mut [u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        match &self.way {
            // None of these programs stores.
            Code::Native(_) => self.step(window, cur_ptr, scratch),
            Code::Interpreted(program) => {
                let step = program.step_storing(window, cur_ptr, scratch);
                self.stretch();
                step
            }
        }
    }
}

impl NativeLogic {
    fn stretch(&self) {
        if !self.stretch.is_zero() {
            let begin = Instant::now();
            while begin.elapsed() < self.stretch {
                std::hint::spin_loop();
            }
        }
    }
}

/// Keys per B+tree node.
const KEYS: usize = 15;
/// The word index of the first key; a node begins with its kind.
const FIRST_KEY: usize = 1;
/// The word index of the first slot: values or children.
const FIRST_SLOT: usize = 16;
/// The mark of an unused key.
const UNUSED: u64 = u64::MAX;
/// Points per leaf of a series.
const POINTS: usize = series::LEAF_POINTS_MAX;

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes.as_chunks().0[at])
}

fn set(bytes: &mut [u8], at: usize, value: u64) {
    bytes.as_chunks_mut().0[at] = value.to_le_bytes();
}

fn next(cur_ptr: &mut VirtAddr, pointer: u64) -> Step {
    *cur_ptr = VirtAddr(pointer);
    Step::Next
}

/// Runs an iteration of `hash_find.pulse`.
fn hash_find(node: &[u8], cur_ptr: &mut VirtAddr, pad: &mut [u8]) -> Step {
    let wanted = [word(pad, 0), word(pad, 1)];
    if [word(node, 0), word(node, 1)] == wanted && wanted != [0, 0] {
        pad[16..56].copy_from_slice(&node[24..64]);
        set(pad, 0, 1);
        return Step::Return;
    }
    match word(node, 2) {
        0 => {
            set(pad, 0, 0);
            Step::Return
        }
        pointer => next(cur_ptr, pointer),
    }
}

fn key(node: &[u8], n: usize) -> u64 {
    word(node, FIRST_KEY + n)
}

fn slot(node: &[u8], n: usize) -> u64 {
    word(node, FIRST_SLOT + n)
}

/// Returns the number of a node's keys that are not greater.
fn rank(node: &[u8], wanted: u64) -> usize {
    let mut rank = 0;
    for half in [8, 4, 2, 1] {
        if wanted >= key(node, rank + half - 1) {
            rank += half;
        }
    }
    rank
}

/// Runs an iteration of `btree_find.pulse`.
fn btree_find(node: &[u8], cur_ptr: &mut VirtAddr, pad: &mut [u8]) -> Step {
    let wanted = word(pad, 0);
    if wanted != UNUSED {
        let rank = rank(node, wanted);
        if word(node, 0) == 0 {
            return next(cur_ptr, slot(node, rank));
        }
        if rank > 0 && key(node, rank - 1) == wanted {
            set(pad, 2, slot(node, rank - 1));
            set(pad, 1, 1);
            return Step::Return;
        }
    }
    set(pad, 1, 0);
    Step::Return
}

/// Follows a leaf's link to the next one after all of the leaf was visited.
fn onward(leaf: &[u8], cur_ptr: &mut VirtAddr) -> Step {
    match slot(leaf, KEYS) {
        0 => Step::Return,
        pointer => next(cur_ptr, pointer),
    }
}

/// The word index of a scan's byte count of pairs in its pad.
const FILL: usize = 3;

/// The result of a scan at a node.
enum Leaf {
    /// The node was no leaf, or the pad is invalid.
    Above(Step),
    /// The next leaf may have more pairs.
    More,
    /// No more pairs, or no more room.
    Over,
}

/// Copies a leaf's pairs into a pad from byte `at` on, or finds the child.
fn pairs(node: &[u8], cur_ptr: &mut VirtAddr, pad: &mut [u8], at: usize) -> Leaf {
    let [from, to, room, mut fill] = [0, 1, 2, FILL].map(|at| word(pad, at));
    if from == UNUSED {
        return Leaf::Above(Step::Return);
    }
    if word(node, 0) == 0 {
        return Leaf::Above(next(cur_ptr, slot(node, rank(node, from))));
    }
    let mut done = false;
    for n in 0..KEYS {
        let key = key(node, n);
        if key < from {
            continue;
        }
        if key >= to {
            done = key != UNUSED;
            break;
        }
        if fill >= room {
            done = true;
            break;
        }
        let place = usize::try_from(fill).ok().and_then(|fill| pad.get_mut(at + fill..at + fill + 16));
        let Some(pair) = place else { return Leaf::Above(Step::Fault) };
        set(pair, 0, key);
        set(pair, 1, slot(node, n));
        fill += 16;
    }
    set(pad, FILL, fill);
    if done || fill >= room { Leaf::Over } else { Leaf::More }
}

/// Runs an iteration of `btree_scan.pulse`.
fn btree_scan(node: &[u8], cur_ptr: &mut VirtAddr, pad: &mut [u8]) -> Step {
    match pairs(node, cur_ptr, pad, 32) {
        Leaf::Above(step) => step,
        Leaf::Over => Step::Return,
        Leaf::More => onward(node, cur_ptr),
    }
}

/// Runs an iteration of [`btree::records_program`].
fn btree_records(node: &[u8], cur_ptr: &mut VirtAddr, pad: &mut [u8]) -> Step {
    const TAKEN: usize = 4;
    const PLACE: usize = 5;
    const LEAF: usize = 6;
    const ALONG: usize = 7;
    const PAIRS: usize = 64;
    const LAST: u64 = (SCRATCH_LEN_MAX - RECORD) as u64;
    let place = word(pad, PLACE);
    if place != 0 {
        let range = usize::try_from(place).ok().and_then(|at| pad.get_mut(at..));
        let Some(rest) = range else { return Step::Fault };
        // Word by word, up to the first that does not fit.
        let len = RECORD.min(rest.len() / 8 * 8);
        rest[..len].copy_from_slice(&node[..len]);
        if len < RECORD {
            return Step::Fault;
        }
        let (place, taken) = (place + RECORD as u64, word(pad, TAKEN).wrapping_add(16));
        set(pad, PLACE, place);
        set(pad, TAKEN, taken);
        if taken >= word(pad, FILL) || place > LAST {
            return Step::Return;
        }
        let at = usize::try_from(taken).ok().and_then(|taken| taken.checked_add(PAIRS + 8));
        let addr = at.and_then(|at| pad.get(at..at.checked_add(8)?));
        return addr.map_or(Step::Fault, |addr| next(cur_ptr, word(addr, 0)));
    }
    match pairs(node, cur_ptr, pad, PAIRS) {
        Leaf::Above(step) => return step,
        Leaf::More if slot(node, KEYS) != 0 => return next(cur_ptr, slot(node, KEYS)),
        Leaf::More | Leaf::Over => {}
    }
    set(pad, LEAF, cur_ptr.0);
    let first = word(pad, FILL).wrapping_add(PAIRS as u64);
    if word(pad, ALONG) == 0 || word(pad, FILL) == 0 || first > LAST {
        return Step::Return;
    }
    set(pad, PLACE, first);
    next(cur_ptr, word(pad, PAIRS / 8 + 1))
}

/// Returns true when all keys of the range up to this leaf were visited and none follow.
const fn is_over(last: u64, to: u64) -> bool {
    last >= to && last != UNUSED
}

/// Runs an iteration of `btree_aggregate.pulse`.
fn btree_aggregate(node: &[u8], cur_ptr: &mut VirtAddr, pad: &mut [u8]) -> Step {
    let [from, to] = [0, 1].map(|at| word(pad, at));
    if from == UNUSED {
        return Step::Return;
    }
    if word(node, 0) == 0 {
        return next(cur_ptr, slot(node, rank(node, from)));
    }
    let [low, high, mut min, mut max, mut count] = [2, 3, 4, 5, 6].map(|at| word(pad, at));
    let mut sum = u128::from(high) << 64 | u128::from(low);
    let mut last = 0;
    for n in 0..KEYS {
        last = key(node, n);
        if last < from {
            continue;
        }
        if last >= to {
            break;
        }
        let value = slot(node, n);
        count = count.wrapping_add(1);
        sum = sum.wrapping_add(u128::from(value));
        min = min.min(value);
        max = max.max(value);
    }
    let (low, high) = halves(sum);
    for (at, value) in (2..).zip([low, high, min, max, count]) {
        set(pad, at, value);
    }
    if is_over(last, to) { Step::Return } else { onward(node, cur_ptr) }
}

/// Runs an iteration of `series_window.pulse`.
fn series_window(node: &[u8], cur_ptr: &mut VirtAddr, pad: &mut [u8]) -> Step {
    let [from, to] = [0, 1].map(|at| word(pad, at));
    if from == UNUSED {
        return Step::Return;
    }
    if word(node, 0) == 0 {
        return next(cur_ptr, slot(node, rank(node, from)));
    }
    let [low, high, min, max, mut count] = [2, 3, 4, 5, 6].map(|at| word(pad, at));
    let (mut min, mut max) = (min.cast_signed(), max.cast_signed());
    let (mut of_leaf, mut last) = (0_i64, 0);
    for n in 0..POINTS {
        last = key(node, n);
        if last < from {
            continue;
        }
        if last >= to {
            break;
        }
        let value = slot(node, n).cast_signed();
        count = count.wrapping_add(1);
        of_leaf = of_leaf.wrapping_add(value);
        min = min.min(value);
        max = max.max(value);
    }
    let sum = u128::from(high) << 64 | u128::from(low);
    let (low, high) = halves(sum.wrapping_add(i128::from(of_leaf).cast_unsigned()));
    for (at, value) in (2..).zip([low, high, min.cast_unsigned(), max.cast_unsigned(), count]) {
        set(pad, at, value);
    }
    if is_over(last, to) { Step::Return } else { onward(node, cur_ptr) }
}

fn halves(sum: u128) -> (u64, u64) {
    let low = (sum & u128::from(u64::MAX)).try_into().expect("the low half");
    (low, (sum >> 64).try_into().expect("the high half"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Generates words as in nodes: small numbers that collide, marks, and random ones.
    fn words(len: usize) -> impl Strategy<Value = Vec<u64>> {
        let word = prop_oneof![4 => 0..40_u64, 1 => Just(UNUSED), 1 => any::<u64>()];
        prop::collection::vec(word, len)
    }

    /// Generates a B+tree node: kind, sorted keys with unused ones last, slots.
    fn tree_node() -> impl Strategy<Value = Vec<u64>> {
        (0..2_u64, words(KEYS), words(16)).prop_map(|(kind, mut keys, slots)| {
            keys.sort_unstable();
            [vec![kind], keys, slots].concat()
        })
    }

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Checks that the function and its program make the same step, from the same bytes to the same bytes.
    fn agree(number: usize, node: &[u64], pad: &[u64]) -> Result<(), TestCaseError> {
        let (program, function) = &Native::new().functions[number];
        let (node, mut pad) = (bytes(node), bytes(pad));
        pad.resize(program.scratch_len(), 0x5a);
        let mut expected_pad = pad.clone();
        let (mut cur_ptr, mut expected_ptr) = (VirtAddr(7), VirtAddr(7));
        let expected = program.step(&node, &mut expected_ptr, &mut expected_pad);
        let step = function(&node, &mut cur_ptr, &mut pad);
        prop_assert_eq!((step, cur_ptr, pad), (expected, expected_ptr, expected_pad));
        Ok(())
    }

    proptest! {
        #[test]
        fn hash_look_ups_agree(node in words(8), pad in words(7)) {
            agree(0, &node, &pad)?;
        }

        #[test]
        fn tree_look_ups_agree(node in tree_node(), pad in words(3)) {
            agree(1, &node, &pad)?;
        }

        #[test]
        fn scans_agree(node in tree_node(), [from, to] in [0..50_u64, 0..60_u64], room in 0..15_u64, fill in 0..15_u64) {
            agree(2, &node, &[from, to, room * 16, fill * 16])?;
            agree(2, &node, &[from, UNUSED, room * 16, fill * 16])?;
        }

        /// Pairs first, with and without records to follow, then records, up to the last that fits.
        #[test]
        fn records_agree(
            node in tree_node(), [from, to] in [0..50_u64, 0..60_u64], room in 0..15_u64, [fill, taken] in [0..16_u64, 0..16_u64],
            place in prop_oneof![3 => Just(0), 2 => 64..4032_u64, 1 => any::<u64>()], along in 0..2_u64,
        ) {
            agree(5, &node, &[from, to, room * 16, fill * 16, taken * 16, place, 0, along])?;
            agree(5, &node, &[from, UNUSED, room * 16, fill * 16, taken * 16, place, 0, along])?;
        }

        #[test]
        fn aggregates_agree(node in tree_node(), pad in words(7)) {
            agree(3, &node, &pad)?;
        }

        #[test]
        fn windows_agree(node in tree_node(), pad in words(7)) {
            agree(4, &node, &pad)?;
        }
    }
}
