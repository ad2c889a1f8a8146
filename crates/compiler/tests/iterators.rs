//! The iterators of testdata against plain Rust: random structures in far memory. The compiled program and a
//! `BTreeMap` or a loop answer every query. If there is an equivalent hand-written program, both must agree
//! to the last byte of the scratch pad.

mod clangs;
mod memory;
mod objects;

use farmem_compiler::{Accelerator, Compiled, Eta, explain};
use farmem_traversal::Program;
use memory::{Memory, traverse, traverse_storing, words};
use objects::folder;
use proptest::prelude::*;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(count) }
}

/// Generates small numbers, for both hits and misses, and some large ones.
fn keys() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![9 => 0..200_u64, 1 => any::<u64>()], 0..120)
}

/// Returns every key, its neighbours, and the ends of the number range.
fn queries(keys: &[u64]) -> Vec<u64> {
    let near = keys.iter().flat_map(|key| [key.wrapping_sub(1), *key, key.wrapping_add(1)]);
    near.chain([0, 1, u64::MAX - 1, u64::MAX]).collect()
}

fn hand_written(name: &str) -> Program {
    let path = folder().join("../programs").join(name);
    Program::assemble(&fs::read_to_string(path).expect("testdata is there")).expect("it assembles")
}

/// Returns an iterator in every available form, each with the name of its compiler.
fn compiled(source: &str) -> Vec<(String, Compiled)> {
    let mut all = vec![("the object in testdata".to_owned(), from_object(source))];
    for clang in clangs::all() {
        let object = clang
            .compile(&folder().join(source))
            .unwrap_or_else(|error| panic!("{}: {error}", clang.command));
        assert_eq!(object.warnings, "", "{}", clang.command);
        all.push((clang.command, translate(&object.bytes)));
    }
    all
}

/// Compiles the object beside a source.
fn from_object(source: &str) -> Compiled {
    translate(&fs::read(folder().join(source).with_extension("o")).expect("each source has its object"))
}

fn translate(object: &[u8]) -> Compiled {
    farmem_compiler::compile(object, None).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_chained_hash_table() {
    let programs = compiled("hash_find.c");
    let by_hand = hand_written("hash_find.pulse");
    proptest!(cases(32), |(keys in keys(), buckets in 1..8_u64)| {
        let key = |low: u64| [low, low % 3];
        let mut memory = Memory::new();
        let heads: Vec<u64> = (0..buckets).map(|_| memory.put(&[0; 8])).collect();
        let mut model = BTreeMap::new();
        for (n, &low) in (0_u64..).zip(&keys) {
            let head = heads[usize::try_from(low % buckets).expect("few buckets")];
            let value: [u64; 5] = std::array::from_fn(|word| n * 10 + word as u64);
            let [k0, k1] = key(low);
            if key(low) == [0, 0] || model.contains_key(&key(low)) {
                continue;
            }
            model.insert(key(low), value);
            let next = memory.word(head + 16);
            let node = memory.put(&[k0, k1, next, value[0], value[1], value[2], value[3], value[4]]);
            memory.set(head + 16, node);
        }
        for query in queries(&keys) {
            let [low, high] = key(query);
            let head = heads[usize::try_from(low % buckets).expect("few buckets")];
            let scratch = words(&[low, high, 7, 7, 7, 7, 7]);
            let expected = traverse(&by_hand, &memory, head, &scratch);
            let answer = model.get(&[low, high]).map_or([0, high, 7, 7, 7, 7, 7], |v| [1, high, v[0], v[1], v[2], v[3], v[4]]);
            prop_assert_eq!(&expected.scratch, &words(&answer));
            for (by, compiled) in &programs {
                prop_assert_eq!(&traverse(&compiled.program, &memory, head, &scratch), &expected, "{} {}", by, query);
            }
        }
    });
}

#[test]
fn a_linked_list() {
    let programs = compiled("list_find.c");
    proptest!(cases(32), |(keys in keys())| {
        let mut memory = Memory::new();
        let mut head = 0;
        for (n, &key) in keys.iter().enumerate().rev() {
            head = memory.put(&[key, head, n as u64]);
        }
        for query in queries(&keys) {
            // The first of equal keys.
            let expected = keys.iter().position(|&key| key == query);
            let answer = expected.map_or([query, 0, 0], |at| [query, 1, at as u64]);
            for (by, compiled) in programs.iter().filter(|_| head != 0) {
                let end = traverse(&compiled.program, &memory, head, &words(&[query, 0, 0]));
                prop_assert_eq!(end.scratch, words(&answer), "{} {}", by, query);
            }
        }
    });
}

/// Keys of up to 35 bytes with shared prefixes, so that a comparison may end anywhere. There are few hash
/// values, so chains have many keys of each.
#[test]
fn a_chain_of_names() {
    let programs = compiled("names_find.c");
    let hash = |name: &str| u32::try_from(name.len() % 3).expect("one of three");
    // Two words of numbers, then 35 bytes of name behind hash and length; one byte follows in the scratch
    // pad.
    let words_of = |name: &str, behind: u8| {
        let mut bytes = hash(name).to_le_bytes().to_vec();
        bytes.push(u8::try_from(name.len()).expect("at most 35"));
        bytes.extend(name.bytes().chain(std::iter::repeat(b'?')).take(35));
        bytes.extend([behind; 8]);
        let words: Vec<u64> = memory::as_words::<6>(&bytes[..48]).to_vec();
        words
    };
    proptest!(cases(32), |(names in prop::collection::vec("[ab]{0,35}", 1..40), others in prop::collection::vec("[ab]{0,8}", 10))| {
        let mut memory = Memory::new();
        let mut head = 0;
        for (n, name) in names.iter().enumerate().rev() {
            head = memory.put(&[&[head], &words_of(name, 0)[..5], &[n as u64]].concat());
        }
        for wanted in names.iter().chain(&others) {
            // The first of equal names.
            let expected = names.iter().position(|name| name == wanted);
            for (by, compiled) in &programs {
                let start = words(&[&[77], &words_of(wanted, 0)[..]].concat());
                let end = traverse(&compiled.program, &memory, head, &start);
                let [value, .., found] = memory::as_words::<7>(&end.scratch);
                prop_assert_eq!((found, value), expected.map_or((0, 77), |at| (1, at as u64)), "{} {}", by, wanted);
            }
        }
    });
}

/// A flexible array is read beyond the declared node, and both lengths are reported.
#[test]
fn an_array_at_the_end_of_a_node() {
    for (by, compiled) in compiled("tail_sum.c") {
        assert_eq!((compiled.node_bytes, compiled.program.window_len()), (Some(8), 40), "{by}");
        let mut memory = Memory::new();
        let last = memory.put(&[0, 1, 2, 3, 4]);
        let first = memory.put(&[last, 10, 20, 30, 40]);
        assert_eq!(traverse(&compiled.program, &memory, first, &words(&[0])).scratch, words(&[110]), "{by}");
    }
}

/// Node or scratch pad, depending on data: each access has its own area, whatever code clang generated.
#[test]
fn values_from_either_side() {
    let programs = compiled("pick_either.c");
    proptest!(cases(64), |(nodes in prop::collection::vec(any::<[u64; 6]>(), 1..20), start in any::<[u64; 8]>(), by_node in any::<bool>())| {
        let mut memory = Memory::new();
        let mut next = 0;
        for [key, weight, values @ ..] in nodes.iter().rev() {
            next = memory.put(&[&[*key, *weight, next, next], &values[..]].concat());
        }
        let [_, own_key, mut sum, mut place, own_values @ ..] = start;
        let at = |values: &[u64; 4], place: u64| values[usize::from(place.to_le_bytes()[0] % 4)];
        for [key, weight, values @ ..] in &nodes {
            let picked = if by_node { *key } else { own_key };
            sum = sum.wrapping_add(picked);
            sum ^= if weight & 1 == 1 { at(values, place) } else { at(&own_values, *key) };
            let from = if weight & 2 == 2 { values } else { &own_values };
            place = place.wrapping_add(from[0]).wrapping_add(at(from, picked));
        }
        let pad = |sum, place| words(&[&[u64::from(by_node), own_key, sum, place], &own_values[..]].concat());
        for (by, compiled) in &programs {
            let end = traverse(&compiled.program, &memory, next, &pad(start[2], start[3]));
            prop_assert_eq!(end.scratch, pad(sum, place), "{}", by);
        }
    });
}

#[test]
fn a_list_of_matrices() {
    let programs = compiled("matrix_walk.c");
    proptest!(cases(32), |(matrices in prop::collection::vec(prop::collection::vec(any::<u16>(), 36), 1..20))| {
        let mut memory = Memory::new();
        let (mut head, mut expected) = (0, [0_u32; 4]);
        for cells in matrices.iter().rev() {
            let packed = cells.chunks(4).map(|four| four.iter().rev().fold(0, |word, &cell| word << 16 | u64::from(cell)));
            head = memory.put(&std::iter::once(head).chain(packed).collect::<Vec<_>>());
            for (row, cells) in cells.chunks(6).enumerate() {
                for (column, &cell) in cells.iter().enumerate() {
                    let place = match column.cmp(&row) { Ordering::Greater => 0, Ordering::Less => 1, Ordering::Equal => 2 };
                    expected[place] += u32::from(cell);
                }
                expected[3] = expected[3].max(cells.iter().copied().map(u32::from).sum());
            }
        }
        for (by, compiled) in &programs {
            let end = traverse(&compiled.program, &memory, head, &[0; 16]);
            prop_assert_eq!(end.scratch, expected.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>(), "{}", by);
        }
    });
}

/// Inserts a node of libstdc++: colour, parent, left, right, key, value.
fn insert(memory: &mut Memory, root: &mut u64, key: u64, value: u64) {
    let (mut parent, mut link) = (0, None);
    let mut at = *root;
    while at != 0 {
        let side = if key < memory.word(at + 32) { 16 } else { 24 };
        (parent, link) = (at, Some(at + side));
        at = memory.word(at + side);
    }
    let node = memory.put(&[1, parent, 0, 0, key, value]);
    match link {
        Some(link) => memory.set(link, node),
        None => *root = node,
    }
}

#[test]
fn a_std_map() {
    let programs = compiled("map_lower_bound.cpp");
    proptest!(cases(32), |(keys in keys())| {
        let mut memory = Memory::new();
        let (mut root, mut model) = (0, BTreeMap::new());
        for (n, &key) in (0_u64..).zip(&keys) {
            if model.insert(key, n).is_none() {
                insert(&mut memory, &mut root, key, n);
            }
        }
        for query in queries(&keys) {
            let expected = model.range(query..).next();
            for (by, compiled) in programs.iter().filter(|_| root != 0) {
                let end = traverse(&compiled.program, &memory, root, &words(&[query, 0, 0, 0]));
                let [_, node, key, value] = memory::as_words(&end.scratch);
                let found = (node != 0).then_some(key);
                prop_assert_eq!(found, expected.map(|(key, _)| *key), "{} {}", by, query);
                if node != 0 {
                    prop_assert_eq!((memory.word(node + 32), memory.word(node + 40)), (key, value));
                }
            }
        }
    });
}

/// The source compiled for this machine over real `std::map` nodes, with libstdc++'s layout.
#[test]
fn a_std_map_of_the_host() {
    if Command::new("c++").arg("--version").output().is_err() {
        eprintln!("skipped: c++ absent: the layout of std::map's nodes is not compared with libstdc++");
        return;
    }
    let build = tempfile::tempdir().expect("a folder");
    let program = build.path().join("std_map");
    let built = Command::new("c++")
        .args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(folder().join("../../cpp/include"))
        .arg(folder().join("host/std_map.cpp"))
        .arg("-o")
        .arg(&program)
        .output()
        .expect("c++ starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(&program).output().expect("it starts");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}

/// Builds a B+tree of 15 keys per node with the squares of the keys as values; returns the root, and whether
/// there is one.
fn btree(memory: &mut Memory, keys: &BTreeMap<u64, u64>) -> u64 {
    // Each entry: the smallest key below it, and its address.
    let entries: Vec<_> = keys.iter().collect();
    let mut level: Vec<(u64, u64)> = Vec::new();
    for leaf in entries.chunks(15) {
        let mut node = [u64::MAX; 32];
        node[0] = 1;
        node[16..].fill(0);
        for (n, (key, value)) in leaf.iter().enumerate() {
            (node[1 + n], node[16 + n]) = (**key, **value);
        }
        level.push((*leaf[0].0, memory.put(&node)));
    }
    while level.len() > 1 {
        let above = level.chunks(16).map(|children| {
            let mut node = [u64::MAX; 32];
            node[0] = 0;
            node[16..].fill(0);
            for (n, (smallest, child)) in children.iter().enumerate() {
                node[16 + n] = *child;
                if n > 0 {
                    node[n] = *smallest;
                }
            }
            (children[0].0, memory.put(&node))
        });
        level = above.collect();
    }
    level.first().map_or(0, |(_, root)| *root)
}

#[test]
fn a_btree() {
    // One program searches, the other counts key by key with spilled pointers: the same node, the same
    // answers.
    let mut programs = compiled("btree_find.c");
    programs.extend(compiled("btree_count.c"));
    programs.extend(compiled("btree_rank.c"));
    let by_hand = hand_written("btree_find.pulse");
    let by_rank = hand_written("btree_find_rank.pulse");
    let keys = prop::collection::vec(prop_oneof![9 => 0..2_000_u64, 1 => 0..u64::MAX], 1..700);
    proptest!(cases(12), |(keys in keys)| {
        let mut memory = Memory::new();
        let model: BTreeMap<u64, u64> = keys.iter().map(|&key| (key, key.wrapping_mul(key))).collect();
        let root = btree(&mut memory, &model);
        for query in queries(&keys) {
            let answer = model.get(&query).map_or([query, 0, 9], |value| [query, 1, *value]);
            let expected = traverse(&by_hand, &memory, root, &words(&[query, 8, 9]));
            prop_assert_eq!(&expected.scratch, &words(&answer));
            prop_assert_eq!(&traverse(&by_rank, &memory, root, &words(&[query, 8, 9])), &expected);
            for (by, compiled) in &programs {
                let end = traverse(&compiled.program, &memory, root, &words(&[query, 8, 9]));
                prop_assert_eq!(&end, &expected, "{} {}", by, query);
            }
        }
    });
}

/// An iterator that stores, and the hand-written program: both leave the same memory.
#[test]
fn a_list_that_is_added_to() {
    let programs = compiled("list_add.c");
    let by_hand = hand_written("list_add.pulse");
    proptest!(cases(32), |(values in prop::collection::vec(any::<u64>(), 1..60), add in any::<u64>())| {
        let programs = programs.iter().map(|(by, compiled)| (by.as_str(), &compiled.program));
        for (by, program) in programs.chain([("by hand", &by_hand)]) {
            prop_assert!(program.stores(), "{}", by);
            let mut memory = Memory::new();
            let (mut head, mut nodes) = (0, Vec::new());
            for &value in values.iter().rev() {
                head = memory.put(&[value, head]);
                nodes.push((head, value.wrapping_add(add)));
            }
            let end = traverse_storing(program, &mut memory, head, &words(&[add, 0]));
            prop_assert_eq!(memory::as_words::<2>(&end.scratch), [add, values.len() as u64], "{}", by);
            for (node, expected) in nodes {
                prop_assert_eq!(memory.word(node), expected, "{}", by);
            }
        }
    });
}

#[test]
fn a_time_window() {
    let programs = compiled("window_aggregate.c");
    let points = prop::collection::vec((0..500_u64, any::<u64>()), 1..150);
    proptest!(cases(24), |(mut points in points, fill in 1..15_usize, windows in prop::collection::vec((0..520_u64, 0..520_u64), 20))| {
        points.sort_unstable();
        let mut memory = Memory::new();
        let mut leaves = Vec::new();
        let mut next = 0;
        for leaf in points.chunks(fill).rev() {
            let mut node = vec![leaf.last().expect("chunks are not empty").0, next];
            node.extend(leaf.iter().flat_map(|&(time, value)| [time, value]));
            node.extend([u64::MAX, 0].repeat(14 - leaf.len()));
            next = memory.put(&node);
            leaves.push(next);
        }
        for (from, until) in windows {
            let inside = || points.iter().filter(|(time, _)| (from..until).contains(time)).map(|(_, value)| *value);
            let expected = [
                from,
                until,
                inside().fold(0, u64::wrapping_add),
                inside().min().unwrap_or(u64::MAX),
                inside().max().unwrap_or(0),
                inside().count() as u64,
            ];
            for (by, compiled) in &programs {
                let start = words(&[from, until, 0, u64::MAX, 0, 0]);
                let end = traverse(&compiled.program, &memory, next, &start);
                prop_assert_eq!(memory::as_words::<6>(&end.scratch), expected, "{} {}..{}", by, from, until);
            }
        }
    });
}

/// Loops with a `break` at a length, whether or not clang knows that the length is less than the rounds
/// (FARMEM_LOOP).
#[test]
fn loops_to_a_length() {
    let programs = compiled("loop_to_length.c");
    let node = (0..20_u64, prop::array::uniform14(prop_oneof![0..2000_u64, any::<u64>()]));
    proptest!(cases(64), |(nodes in prop::collection::vec(node, 1..20))| {
        let mut memory = Memory::new();
        let (mut head, mut expected) = (0, [0_u64; 4]);
        for (length, values) in &nodes {
            head = memory.put(&[&[head, *length], &values[..]].concat());
            let masked = usize::try_from(length & 7).expect("less than 8");
            let upto = usize::try_from(*length).expect("small").min(14);
            let sum = |values: &[u64]| values.iter().fold(0_u64, |sum, value| sum.wrapping_add(*value));
            expected[0] = expected[0].wrapping_add(sum(&values[..upto]));
            expected[1] = expected[1].wrapping_add(sum(&values[..masked]));
            let backwards = (masked..14).map(|i| values[i].wrapping_mul(i as u64 + 1));
            expected[2] = backwards.fold(expected[2], |all, value| all ^ value);
            expected[3] += values[..upto].iter().take_while(|value| **value <= 1000).count() as u64;
        }
        for (by, compiled) in &programs {
            let end = traverse(&compiled.program, &memory, head, &[0; 32]);
            prop_assert_eq!(memory::as_words::<4>(&end.scratch), expected, "{}", by);
        }
    });
}

/// `__builtin_ctz`, `ffs`, `popcount`, `clz` and `bswap` have the same results as on this machine.
#[test]
fn bits_are_counted_and_bytes_turned_around() {
    let programs = compiled("bits_and_bytes.c");
    let word = prop_oneof![
        any::<u64>(),
        (0..64_u32).prop_map(|bit| 1 << bit),
        any::<u64>().prop_map(|word| word << 33)
    ];
    proptest!(cases(256), |(word in word.prop_filter("ctz of 0 is undefined", |word| *word != 0))| {
        let mut memory = Memory::new();
        let node = memory.put(&[0, word]);
        let low = u32::try_from(word & 0xffff_ffff).expect("masked");
        let first = |zeros: u32, word: u64| if word == 0 { 0 } else { u64::from(zeros) + 1 };
        let expected = [
            u64::from(word.trailing_zeros()),
            u64::from((low | 1 << 31).trailing_zeros()),
            first(word.trailing_zeros(), word),
            first(low.trailing_zeros(), low.into()),
            u64::from(word.count_ones()),
            u64::from(word.leading_zeros()),
            word.swap_bytes(),
            u64::from(low.swap_bytes()),
            word.swap_bytes() >> 48,
        ];
        for (by, compiled) in &programs {
            let end = traverse(&compiled.program, &memory, node, &[0; 72]);
            prop_assert_eq!(memory::as_words::<9>(&end.scratch), expected, "{}: {:#x}", by, word);
        }
    });
}

/// A pointer that may be NULL, pointers in an array, and sums that clang writes as `or`.
#[test]
fn pointers_within_a_node() {
    let programs = compiled("pointers_within.c");
    let node = (any::<u64>(), prop::array::uniform8(0..12_u64), prop::array::uniform12(any::<u32>()));
    proptest!(cases(64), |(nodes in prop::collection::vec(node, 1..20), key in 0..12_u64)| {
        let mut memory = Memory::new();
        let (mut head, mut expected) = (0, [key, 0_u64, 0, 0]);
        for (kind, entries, numbers) in &nodes {
            let pairs: Vec<u64> = numbers.chunks(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32).collect();
            head = memory.put(&[&[head, *kind], &entries[..], &pairs].concat());
            let found = entries.chunks(2).rfind(|entry| entry[0] == key);
            expected[1] += found.map_or(0, |entry| entry[1]);
            let (array, at) = ([8, 0, 4][usize::try_from(kind % 3).expect("small")], usize::try_from(kind & 3).expect("small"));
            expected[2] += u64::from(numbers[array + at]);
            expected[3] ^= entries[at * 2] * (at as u64 + 1);
        }
        for (by, compiled) in &programs {
            let end = traverse(&compiled.program, &memory, head, &words(&[key, 0, 0, 0]));
            prop_assert_eq!(memory::as_words::<4>(&end.scratch), expected, "{}", by);
        }
    });
}

/// The report for an author. The objects are fixed, and so are the numbers; a better compiler lowers them.
#[test]
fn what_iterations_cost() {
    let board = Accelerator { instruction_ps: 4_000, load_ps: 132_000, line_ps: 4_000 };
    let of = |source: &str| {
        let compiled = from_object(source);
        let account = explain(&compiled, &board, Eta::PULSE);
        (
            account.window_bytes,
            account.scratch_bytes,
            account.longest_path,
            account.code_bytes,
            account.offload,
        )
    };
    assert_eq!(of("hash_find.c"), (64, 56, 20, 208, true));
    assert_eq!(of("list_find.c"), (24, 24, 7, 96, true));
    assert_eq!(of("map_lower_bound.cpp"), (48, 32, 12, 112, true));
    assert_eq!(of("btree_find.c"), (256, 24, 38, 360, false));
    assert_eq!(of("btree_rank.c"), (256, 24, 22, 168, true));
    assert_eq!(of("list_add.c"), (16, 16, 10, 96, true));
    assert_eq!(of("btree_count.c"), (256, 24, 103, 896, false));
    assert_eq!(of("window_aggregate.c"), (240, 48, 231, 1864, false));
}

/// The report for an author, for stores and searches.
#[test]
fn what_iterations_do_besides() {
    let board = Accelerator { instruction_ps: 4_000, load_ps: 132_000, line_ps: 4_000 };
    let of = |source: &str| {
        let account = explain(&from_object(source), &board, Eta::PULSE);
        (account.stores, account.searches)
    };
    assert_eq!(of("list_find.c"), (None, 0));
    assert_eq!(of("list_add.c"), (Some(1), 0));
    assert_eq!(of("btree_rank.c"), (None, 2));
}

/// The cost of an iteration: the line with the most instructions of the longest path, spills, and free slots.
#[test]
fn what_is_dearest_in_an_iteration() {
    let board = Accelerator { instruction_ps: 4_000, load_ps: 132_000, line_ps: 4_000 };
    let of = |source: &str| {
        let account = explain(&from_object(source), &board, Eta::PULSE);
        let line = account.dearest_line.expect("the object has lines");
        (line.file, line.line, line.instructions, account.spills, account.slots_left)
    };
    for (source, expected) in [
        ("list_find.c", (17, 3, 0, 501)),
        ("bits_and_bytes.c", (20, 36, 0, 312)),
        ("btree_count.c", (32, 67, 18, 401)),
        ("window_aggregate.c", (36, 42, 0, 280)),
    ] {
        let (file, line, instructions, spills, left) = of(source);
        assert_eq!((line, instructions, spills, left), expected, "{source}");
        assert_eq!(file, source);
    }
}

/// The text with its comments assembles to the program.
#[test]
fn the_text_assembles_to_the_same_program() {
    for source in [
        "hash_find.c",
        "map_lower_bound.cpp",
        "btree_find.c",
        "window_aggregate.c",
        "list_add.c",
        "btree_rank.c",
    ] {
        let compiled = from_object(source);
        assert_eq!(Program::assemble(&compiled.text()).as_ref(), Ok(&compiled.program), "{source}");
        let line = compiled.lines[0].as_ref().expect("the object has lines");
        assert!(line.file.ends_with(source), "{line}");
    }
}
