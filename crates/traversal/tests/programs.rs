//! The programs of `testdata/programs` against plain Rust over the same random structures.
//!
//! Each structure is laid out in a `Vec<u8>` as in far memory, its nodes in random order. Every lookup also
//! runs in pieces of random length, as a traversal that reaches its iteration limit or crosses memory nodes.
//! Both runs must end with the same state (PROTOCOL 10.1; PULSE 3, 5).

use farmem_traversal::{End, Outcome, Program, State, WindowAccess, run, run_storing};
use farmem_wire::VirtAddr;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const BASE: u64 = 0x7f00_0000_0000;
const LIMIT: u32 = 10_000;

fn program(text: &str) -> Program {
    Program::assemble(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Far memory from [`BASE`] on, in equal slots that are allocated in a shuffled order.
struct Memory {
    bytes: Vec<u8>,
    slot_len: usize,
    free: Vec<usize>,
}

impl Memory {
    fn new(slots: usize, slot_len: usize, seed: u64) -> Self {
        let mut free: Vec<_> = (0..slots).collect();
        let mut state = seed | 1;
        for left in (1..slots).rev() {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            free.swap(left, usize::try_from(state >> 33).expect("31 bits") % (left + 1));
        }
        Self { bytes: vec![0; slots * slot_len], slot_len, free }
    }

    fn node(&mut self) -> u64 {
        let slot = self.free.pop().expect("slots for every node");
        BASE + u64::try_from(slot * self.slot_len).expect("small")
    }

    fn put(&mut self, addr: u64, offset: usize, words: &[u64]) {
        let start = usize::try_from(addr - BASE).expect("small") + offset;
        for (number, word) in words.iter().enumerate() {
            self.bytes[start + 8 * number..][..8].copy_from_slice(&word.to_le_bytes());
        }
    }

    fn load(&self, addr: VirtAddr, window: &mut [u8]) -> Result<(), VirtAddr> {
        let start = addr.0.checked_sub(BASE).and_then(|start| usize::try_from(start).ok()).ok_or(addr)?;
        let bytes = self.bytes.get(start..).and_then(|rest| rest.get(..window.len())).ok_or(addr)?;
        window.copy_from_slice(bytes);
        Ok(())
    }

    fn serve(&mut self, addr: VirtAddr, access: WindowAccess<'_>) -> Result<(), VirtAddr> {
        match access {
            WindowAccess::Load(window) => self.load(addr, window),
            WindowAccess::Store(window) => {
                let start = usize::try_from(addr.0 - BASE).expect("it was loaded from there");
                self.bytes[start..start + window.len()].copy_from_slice(window);
                Ok(())
            }
        }
    }

    /// Runs to the end in one piece, and again in pieces; both must agree.
    fn traverse(
        &self,
        program: &Program,
        start: u64,
        scratch: &[u64],
        pieces: &[u32],
    ) -> (Outcome<VirtAddr>, State) {
        let scratch: Vec<u8> = scratch.iter().flat_map(|word| word.to_le_bytes()).collect();
        let begin = State { cur_ptr: VirtAddr(start), scratch };
        let mut fetch = |addr, window: &mut [u8]| self.load(addr, window);
        let mut whole = begin.clone();
        let outcome = run(program, &mut fetch, &mut whole, LIMIT);

        let (mut cut, mut iterations) = (begin, 0);
        for piece in pieces.iter().cycle() {
            let part = run(program, &mut fetch, &mut cut, *piece);
            iterations += part.iterations;
            if part.end != End::IterationLimit {
                assert_eq!(
                    (part.end, iterations),
                    (outcome.end, outcome.iterations),
                    "in pieces of {pieces:?}"
                );
                break;
            }
            assert_eq!(part.iterations, *piece);
            assert!(iterations < LIMIT, "in pieces it does not end");
        }
        assert_eq!(cut, whole, "in pieces of {pieces:?}");
        (outcome, whole)
    }
}

fn words(state: &State) -> Vec<u64> {
    state.scratch.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("words"))).collect()
}

fn pieces() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(1..5_u32, 1..6)
}

/// Generates few distinct halves, so that keys agree in one half and differ in the other; zeros included.
fn half_key() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..6_u64, 1 => any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// PROTOCOL 10.21: the scratch pad, word by word, and the final `cur_ptr`.
    #[test]
    fn hash_find(
        entries in proptest::collection::btree_map((half_key(), half_key()), any::<[u64; 5]>(), 0..40),
        buckets in 1..8_usize,
        gaps in proptest::collection::vec(any::<bool>(), 40),
        wanted in proptest::collection::vec((half_key(), half_key()), 1..10),
        seed in any::<u64>(),
        pieces in pieces(),
    ) {
        let program = program(include_str!("../../../testdata/programs/hash_find.pulse"));
        prop_assert_eq!((program.window_len(), program.scratch_len()), (64, 56));
        let mut memory = Memory::new(buckets + 80, 64, seed);
        let bucket_of = |(lo, hi): (u64, u64)| usize::try_from((lo ^ hi.rotate_left(7)) % buckets as u64).expect("small");

        // Each chain begins with its bucket; a gap is an empty node in it, a bucket or another one.
        let mut chains: Vec<Vec<(u64, u64, [u64; 5])>> = vec![Vec::new(); buckets];
        for ((key, value), gap) in entries.iter().zip(gaps) {
            let chain = &mut chains[bucket_of(*key)];
            if gap {
                chain.push((0, 0, [0xbad; 5]));
            }
            if *key != (0, 0) {
                chain.push((key.0, key.1, *value));
            }
        }
        let mut heads = Vec::new();
        let mut places = BTreeMap::new();
        let mut ends = Vec::new();
        for chain in &mut chains {
            if chain.is_empty() {
                chain.push((0, 0, [0xbad; 5]));
            }
            let addrs: Vec<_> = chain.iter().map(|_| memory.node()).collect();
            for (depth, (lo, hi, value)) in chain.iter().enumerate() {
                let next = addrs.get(depth + 1).copied().unwrap_or(0);
                memory.put(addrs[depth], 0, &[*lo, *hi, next]);
                memory.put(addrs[depth], 24, value);
                places.insert((*lo, *hi), (addrs[depth], depth + 1));
            }
            heads.push(addrs[0]);
            ends.push((addrs[addrs.len() - 1], addrs.len()));
        }

        for key in entries.keys().copied().chain(wanted).chain([(0, 0)]) {
            let mut scratch = [key.0, key.1, 7, 7, 7, 7, 7];
            let (outcome, state) = memory.traverse(&program, heads[bucket_of(key)], &scratch, &pieces);
            let found = entries.get(&key).filter(|_| key != (0, 0));
            let (place, depth) = if found.is_some() { places[&key] } else { ends[bucket_of(key)] };
            scratch[0] = u64::from(found.is_some());
            if let Some(value) = found {
                scratch[2..].copy_from_slice(value);
            }
            prop_assert_eq!(outcome, Outcome { iterations: u32::try_from(depth).expect("few"), end: End::Return });
            prop_assert_eq!((words(&state), state.cur_ptr), (scratch.to_vec(), VirtAddr(place)), "{:?}", key);
        }
    }

    #[test]
    fn list_sum(values in proptest::collection::vec(any::<u64>(), 1..60), seed in any::<u64>(), pieces in pieces()) {
        let program = program(include_str!("../../../testdata/programs/list_sum.pulse"));
        prop_assert_eq!((program.window_len(), program.scratch_len()), (16, 16));
        let mut memory = Memory::new(values.len(), 16, seed);
        let addrs: Vec<_> = values.iter().map(|_| memory.node()).collect();
        for (number, value) in values.iter().enumerate() {
            memory.put(addrs[number], 0, &[*value, addrs.get(number + 1).copied().unwrap_or(0)]);
        }
        let (outcome, state) = memory.traverse(&program, addrs[0], &[5, 100], &pieces);
        prop_assert_eq!(outcome.end, End::Return);
        let sum = values.iter().fold(5_u64, |sum, value| sum.wrapping_add(*value));
        prop_assert_eq!(words(&state), [sum, 100 + values.len() as u64]);
    }

    #[test]
    fn lower_bound(
        entries in proptest::collection::vec((prop_oneof![0..60_u64, any::<u64>()], any::<u64>()), 1..60),
        wanted in proptest::collection::vec(prop_oneof![0..60_u64, any::<u64>()], 1..10),
        seed in any::<u64>(),
        pieces in pieces(),
    ) {
        let program = program(include_str!("../../../testdata/programs/lower_bound.pulse"));
        prop_assert_eq!((program.window_len(), program.scratch_len()), (32, 32));
        let mut memory = Memory::new(entries.len(), 32, seed);
        let mut model = BTreeMap::new();
        let mut root = None;
        // Inserted in the given order, without balance: the tree's shape is random.
        let mut children: BTreeMap<u64, [Option<u64>; 2]> = BTreeMap::new();
        for (key, value) in &entries {
            if model.contains_key(key) {
                continue;
            }
            let addr = memory.node();
            model.insert(*key, (addr, *value));
            children.insert(*key, [None, None]);
            let Some(mut at) = root else {
                root = Some(*key);
                continue;
            };
            loop {
                let side = usize::from(*key > at);
                match children.get_mut(&at).expect("in the tree")[side].replace(*key) {
                    None => break,
                    Some(child) => {
                        children.get_mut(&at).expect("in the tree")[side] = Some(child);
                        at = child;
                    }
                }
            }
        }
        for (key, sides) in &children {
            let [left, right] = sides.map(|child| child.map_or(0, |child| model[&child].0));
            let (addr, value) = model[key];
            memory.put(addr, 0, &[*key, left, right, value]);
        }
        let root = model[&root.expect("not empty")].0;
        for key in wanted.into_iter().chain(model.keys().copied()).chain([0, u64::MAX]) {
            let (outcome, state) = memory.traverse(&program, root, &[key, 0, 0, 0], &pieces);
            prop_assert_eq!(outcome.end, End::Return);
            let best = model.range(key..).next().map_or([0; 3], |(best, (addr, value))| [*addr, *best, *value]);
            prop_assert_eq!(words(&state), [&[key][..], &best].concat(), "{}", key);
        }
    }

    /// Every node once, whole or in pieces: a piece continues where the one before stopped. Memory beside the
    /// values is unchanged.
    #[test]
    fn list_add(values in proptest::collection::vec(any::<u64>(), 1..60), add in any::<u64>(), seed in any::<u64>(), pieces in pieces()) {
        let program = program(include_str!("../../../testdata/programs/list_add.pulse"));
        prop_assert!(program.stores());
        let mut memory = Memory::new(values.len(), 16, seed);
        let addrs: Vec<_> = values.iter().map(|_| memory.node()).collect();
        let lay_out = |memory: &mut Memory, add: u64| {
            for (number, value) in values.iter().enumerate() {
                let next = addrs.get(number + 1).copied().unwrap_or(0);
                memory.put(addrs[number], 0, &[value.wrapping_add(add), next]);
            }
        };
        lay_out(&mut memory, add);
        let expected = memory.bytes.clone();
        lay_out(&mut memory, 0);
        let scratch = [add, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut state = State { cur_ptr: VirtAddr(addrs[0]), scratch };
        let mut serve = |addr, access: WindowAccess<'_>| memory.serve(addr, access);
        let mut ends = pieces.iter().cycle().map(|piece| run_storing(&program, &mut serve, &mut state, *piece).end);
        prop_assert_eq!(ends.find(|end| *end != End::IterationLimit), Some(End::Return));
        prop_assert_eq!((words(&state)[1], state.cur_ptr.0), (values.len() as u64, *addrs.last().expect("one")));
        prop_assert_eq!(&memory.bytes, &expected);
    }

    /// The head, then a node for each value; `cur_ptr` ends at the first with the wanted value.
    #[test]
    fn list_find(values in proptest::collection::vec(0..20_u64, 0..40), seed in any::<u64>(), pieces in pieces()) {
        let program = program(include_str!("../../../testdata/programs/list_find.pulse"));
        let mut memory = Memory::new(values.len() + 1, 16, seed);
        let addrs: Vec<_> = (0..=values.len()).map(|_| memory.node()).collect();
        for (number, addr) in addrs.iter().enumerate() {
            let value = if number == 0 { 7 } else { values[number - 1] };
            memory.put(*addr, 0, &[value, addrs.get(number + 1).copied().unwrap_or(0)]);
        }
        for wanted in 0..21 {
            let (outcome, state) = memory.traverse(&program, addrs[0], &[addrs[0], wanted, 0], &pieces);
            prop_assert_eq!(outcome.end, End::Return);
            let place = values.iter().position(|value| *value == wanted);
            prop_assert_eq!(words(&state)[2], u64::from(place.is_some()));
            let end = place.map_or(addrs[values.len()], |place| addrs[place + 1]);
            prop_assert_eq!(state.cur_ptr, VirtAddr(end), "{}", wanted);
        }
    }

    /// The pairs of a key range in order, as many as fit, and the continuation.
    #[test]
    fn btree_scan(
        keys in proptest::collection::btree_set(prop_oneof![0..300_u64, 0..u64::MAX], 1..200),
        fill in proptest::collection::vec(1..=15_usize, 1..8),
        ranges in proptest::collection::vec((0..320_u64, 0..320_u64, 0..=14_u64), 1..8),
        seed in any::<u64>(),
        pieces in pieces(),
    ) {
        let program = program(include_str!("../../../testdata/programs/btree_scan.pulse"));
        let mut memory = Memory::new(2 * keys.len() + 8, 256, seed);
        let (root, _) = lay_out_btree(&mut memory, &keys, &fill);
        for (from, to, pairs) in ranges.into_iter().chain([(0, u64::MAX, 14), (u64::MAX, u64::MAX, 14)]) {
            let mut scratch = vec![0; program.scratch_len() / 8];
            scratch[..3].copy_from_slice(&[from, to, pairs * 16]);
            let (outcome, state) = memory.traverse(&program, root, &scratch, &pieces);
            prop_assert_eq!(outcome.end, End::Return);
            let in_range = keys.iter().filter(|key| **key >= from && **key < to).take(usize::try_from(pairs).expect("few"));
            let expected: Vec<u64> = in_range.flat_map(|key| [*key, !*key]).collect();
            let got = words(&state);
            prop_assert_eq!(got[3], expected.len() as u64 * 8, "{}..{}", from, to);
            prop_assert_eq!(&got[4..4 + expected.len()], &expected[..]);
        }
    }

    /// Sum, minimum, maximum and number of the values in a key range, and of points with signed values.
    #[test]
    fn btree_aggregate_and_series_window(
        keys in proptest::collection::btree_set(prop_oneof![0..300_u64, 0..1_u64 << 50], 1..200),
        fill in proptest::collection::vec(1..=14_usize, 1..8),
        ranges in proptest::collection::vec((0..320_u64, 0..320_u64), 1..8),
        seed in any::<u64>(),
        pieces in pieces(),
    ) {
        let aggregate = program(include_str!("../../../testdata/programs/btree_aggregate.pulse"));
        let series = program(include_str!("../../../testdata/programs/series_window.pulse"));
        let mut memory = Memory::new(2 * keys.len() + 8, 256, seed);
        let (root, _) = lay_out_btree(&mut memory, &keys, &fill);
        for (from, to) in ranges.into_iter().chain([(0, u64::MAX), (5, 5)]) {
            let values = || keys.iter().filter(|key| **key >= from && **key < to).map(|key| !*key);
            let count = values().count() as u64;
            let sum = values().map(u128::from).sum::<u128>();
            let (outcome, state) = memory.traverse(&aggregate, root, &[from, to, 0, 0, u64::MAX, 0, 0], &pieces);
            prop_assert_eq!(outcome.end, End::Return);
            let (least, most) = (values().min().unwrap_or(u64::MAX), values().max().unwrap_or(0));
            let halves = [u64::try_from(sum & u128::from(u64::MAX)).expect("cut"), u64::try_from(sum >> 64).expect("cut")];
            prop_assert_eq!(&words(&state)[2..], &[halves[0], halves[1], least, most, count]);

            // Keys below 2^50 have complements that are small negative numbers, as points may.
            let points = || values().map(u64::cast_signed);
            let begin = [from, to, 0, 0, i64::MAX.cast_unsigned(), i64::MIN.cast_unsigned(), 0];
            let (outcome, state) = memory.traverse(&series, root, &begin, &pieces);
            prop_assert_eq!(outcome.end, End::Return);
            let sum = points().map(i128::from).sum::<i128>().cast_unsigned();
            let (least, most) = (points().min().unwrap_or(i64::MAX), points().max().unwrap_or(i64::MIN));
            let halves = [u64::try_from(sum & u128::from(u64::MAX)).expect("cut"), u64::try_from(sum >> 64).expect("cut")];
            let expected = [halves[0], halves[1], least.cast_unsigned(), most.cast_unsigned(), count];
            prop_assert_eq!(&words(&state)[2..], &expected);
        }
    }

    /// The two programs that find a key, one by bisection and one by RANK, return the same in the same number
    /// of iterations.
    #[test]
    fn btree_find(
        keys in proptest::collection::btree_set(prop_oneof![0..2_000_u64, 0..u64::MAX, Just(u64::MAX - 1)], 1..600),
        fill in proptest::collection::vec(1..=15_usize, 1..8),
        wanted in proptest::collection::vec(0..2_000_u64, 1..20),
        seed in any::<u64>(),
        pieces in pieces(),
    ) {
        let programs = [
            program(include_str!("../../../testdata/programs/btree_find.pulse")),
            program(include_str!("../../../testdata/programs/btree_find_rank.pulse")),
        ];
        let mut memory = Memory::new(2 * keys.len() + 8, 256, seed);
        let (root, depth) = lay_out_btree(&mut memory, &keys, &fill);
        let keys_to_find = || keys.iter().copied().chain(wanted.iter().copied()).chain([0, u64::MAX]);
        for (key, program) in keys_to_find().flat_map(|key| programs.iter().map(move |program| (key, program))) {
            prop_assert_eq!((program.window_len(), program.scratch_len()), (256, 24));
            let (outcome, state) = memory.traverse(program, root, &[key, 9, 9], &pieces);
            prop_assert_eq!(outcome.end, End::Return);
            prop_assert!(outcome.iterations == depth || key == u64::MAX, "one iteration a level");
            let expected = if keys.contains(&key) { [key, 1, !key] } else { [key, 0, 9] };
            prop_assert_eq!(words(&state), expected, "{}", key);
        }
    }
}

/// Lays out a B+tree of `keys`, its leaves in a chain, each value the complement of its key, `fill` entries
/// per node. Returns its root and its levels.
fn lay_out_btree(memory: &mut Memory, keys: &BTreeSet<u64>, fill: &[usize]) -> (u64, u32) {
    let mut fill = fill.iter().cycle();
    // A level: the smallest key below each node, and the node.
    let mut level: Vec<(u64, u64)> = Vec::new();
    let keys: Vec<_> = keys.iter().copied().collect();
    let mut rest = &keys[..];
    let mut last_leaf = None;
    while !rest.is_empty() {
        let (taken, behind) = rest.split_at((*fill.next().expect("cycles")).min(rest.len()));
        let mut padded = [u64::MAX; 15];
        padded[..taken.len()].copy_from_slice(taken);
        let addr = memory.node();
        memory.put(addr, 0, &[1]);
        memory.put(addr, 8, &padded);
        memory.put(addr, 128, &taken.iter().map(|key| !key).collect::<Vec<_>>());
        // The last slot of a leaf leads to the next one.
        memory.put(addr, 248, &[0]);
        if let Some(before) = last_leaf.replace(addr) {
            memory.put(before, 248, &[addr]);
        }
        level.push((taken[0], addr));
        rest = behind;
    }
    let mut depth = 1;
    while level.len() > 1 {
        let mut above = Vec::new();
        let mut rest = &level[..];
        while !rest.is_empty() {
            let (taken, behind) = rest.split_at((*fill.next().expect("cycles") + 1).min(rest.len()));
            let mut padded = [u64::MAX; 15];
            for (key, (least, _)) in padded.iter_mut().zip(&taken[1..]) {
                *key = *least;
            }
            let addr = memory.node();
            memory.put(addr, 0, &[0]);
            memory.put(addr, 8, &padded);
            memory.put(addr, 128, &taken.iter().map(|(_, child)| *child).collect::<Vec<_>>());
            above.push((taken[0].0, addr));
            rest = behind;
        }
        level = above;
        depth += 1;
    }
    (level[0].1, depth)
}

/// PROTOCOL 10.14, 10.21. The invalid pointer is reported with its address, and the state allows a
/// continuation.
#[test]
fn a_broken_chain_ends_at_the_pointer_that_is_broken() {
    let program = program(include_str!("../../../testdata/programs/hash_find.pulse"));
    let mut memory = Memory::new(2, 64, 1);
    let (bucket, next) = (memory.node(), memory.node());
    memory.put(bucket, 0, &[1, 1, next]);
    memory.put(next, 0, &[2, 2, 0xdead_beef]);
    let (outcome, state) = memory.traverse(&program, bucket, &[3, 3, 0, 0, 0, 0, 0], &[1]);
    assert_eq!(outcome, Outcome { iterations: 2, end: End::Fetch(VirtAddr(0xdead_beef)) });
    assert_eq!((words(&state), state.cur_ptr), (vec![3, 3, 0, 0, 0, 0, 0], VirtAddr(0xdead_beef)));
}

/// A circular chain is stopped by the limit.
#[test]
fn a_cycle_ends_at_the_limit() {
    let program = program(include_str!("../../../testdata/programs/hash_find.pulse"));
    let mut memory = Memory::new(1, 64, 1);
    let bucket = memory.node();
    memory.put(bucket, 0, &[1, 1, bucket]);
    let scratch = [3_u64, 3, 0, 0, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut state = State { cur_ptr: VirtAddr(bucket), scratch };
    let outcome = run(&program, &mut |addr, window: &mut [u8]| memory.load(addr, window), &mut state, LIMIT);
    assert_eq!(outcome, Outcome { iterations: LIMIT, end: End::IterationLimit });
}

/// The sizes and costs of the programs: a change here changes their cost, their name, and their
/// documentation.
#[test]
fn the_programs_have_these_sizes() {
    let programs = [
        ("hash_find", include_str!("../../../testdata/programs/hash_find.pulse"), (25, 20, 1)),
        ("list_sum", include_str!("../../../testdata/programs/list_sum.pulse"), (11, 10, 1)),
        ("lower_bound", include_str!("../../../testdata/programs/lower_bound.pulse"), (13, 11, 1)),
        ("btree_find", include_str!("../../../testdata/programs/btree_find.pulse"), (27, 23, 4)),
        ("btree_find_rank", include_str!("../../../testdata/programs/btree_find_rank.pulse"), (17, 20, 4)),
        ("btree_scan", include_str!("../../../testdata/programs/btree_scan.pulse"), (150, 133, 4)),
        ("btree_aggregate", include_str!("../../../testdata/programs/btree_aggregate.pulse"), (215, 200, 4)),
        ("series_window", include_str!("../../../testdata/programs/series_window.pulse"), (180, 165, 4)),
        ("list_find", include_str!("../../../testdata/programs/list_find.pulse"), (10, 8, 1)),
        ("list_add", include_str!("../../../testdata/programs/list_add.pulse"), (11, 10, 1)),
    ];
    let sizes = programs.map(|(name, text, _)| {
        let program = program(text);
        (name, ((program.encoded().len() - 8) / 8, program.longest_path(), program.lines()))
    });
    assert_eq!(sizes, programs.map(|(name, _, expected)| (name, expected)));
}

/// The C programs of `testdata/roce` have the bytes of `list_sum.pulse` in a header. To regenerate it:
/// `LIST_SUM_H=write`.
#[test]
fn the_card_programs_have_this_list_sum() {
    let list_sum = program(include_str!("../../../testdata/programs/list_sum.pulse"));
    let array = |name: &str, bytes: &[u8]| {
        let rows =
            bytes.chunks(16).map(|row| row.iter().map(|byte| format!("{byte:#04x}, ")).collect::<String>());
        let rows: String = rows.map(|row| format!("    {}\n", row.trim_end())).collect();
        format!("static const uint8_t {name}[] = {{\n{rows}}};\n")
    };
    let header = format!(
        "/* testdata/programs/list_sum.pulse as the bytes that travel, and its name (PROTOCOL 10.3, 10.17). Made and checked by\n \
         * crates/traversal/tests/programs.rs. */\n{}{}",
        array("list_sum", list_sum.encoded()),
        array("list_sum_hash", &list_sum.hash().0)
    );
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/roce/list_sum.h");
    if std::env::var("LIST_SUM_H").is_ok() {
        std::fs::write(path, &header).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), header);
}
