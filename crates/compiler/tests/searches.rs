//! RANK and MATCH of signed and unsigned numbers: C on this machine, the compiled program interpreted, and
//! plain numbers agree, for numbers of 1, 2, 4 and 8 bytes and keys of each type (PROTOCOL 10.22). The tests
//! of `farmem compile` compare the memory node's machine code with them.

mod clangs;
mod objects;
#[path = "searches/mod.rs"]
mod searches;

use farmem_compiler::Compiled;
use farmem_traversal::Step;
use farmem_wire::VirtAddr;
use objects::folder;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use searches::{Case, TYPES, case};
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Returns the iterators of an object, in the order of [`TYPES`].
fn programs(object: &[u8]) -> Vec<Compiled> {
    let compile = |name: String| {
        farmem_compiler::compile(object, Some(&name)).unwrap_or_else(|error| panic!("{error}"))
    };
    TYPES.iter().map(|of| compile(format!("search_{}", of.name))).collect()
}

/// Returns every form: the object in testdata, and each clang's object of the source as C and as C++.
fn compiled() -> Vec<(String, Vec<Compiled>)> {
    let source = folder().join("signed_search.c");
    let object = fs::read(source.with_extension("o")).expect("the source has its object");
    let mut all = vec![("the object in testdata".to_owned(), programs(&object))];
    let scratch = tempfile::tempdir().expect("a folder");
    let plus_plus = scratch.path().join("signed_search.cpp");
    fs::write(&plus_plus, format!("#include \"{}\"\n", source.display())).expect("written");
    for clang in clangs::all() {
        for source in [&source, &plus_plus] {
            let object = clang.compile(source).unwrap_or_else(|error| panic!("{}: {error}", clang.command));
            assert_eq!(object.warnings, "", "{}", clang.command);
            all.push((format!("{} {}", clang.command, source.display()), programs(&object.bytes)));
        }
    }
    all
}

/// Negative numbers are smaller than positive ones, and a negative key is found, by C's own comparison.
#[test]
fn signed_and_unsigned_arrays_are_searched_as_c_compares() {
    let compiled = compiled();
    let settings = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) };
    proptest!(settings, |(case in case())| {
        let (node, expected) = (case.node(), case.expected());
        for (by, programs) in &compiled {
            let program = &programs[case.numbers].program;
            let mut scratch = case.scratch();
            let step = program.step(&node[..program.window_len()], &mut VirtAddr(0x1000), &mut scratch);
            prop_assert_eq!(step, Step::Return);
            prop_assert_eq!(&scratch[8..], &expected, "{}: numbers of {:?}", by, TYPES[case.numbers]);
        }
    });
}

/// Compiled as ordinary functions of this machine, the source agrees with plain numbers.
#[test]
fn c_on_this_machine_finds_the_same() {
    if Command::new("cc").arg("--version").output().is_err() {
        eprintln!("skipped: cc absent: searches are not compared with C on this machine");
        return;
    }
    let build = tempfile::tempdir().expect("a folder");
    let program = build.path().join("signed_search");
    let built = Command::new("cc")
        .args([
            "-std=gnu11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Wno-sign-compare",
            "-Werror",
            "-fno-strict-aliasing",
            "-I",
        ])
        .arg(folder().join("../../cpp/include"))
        .arg(folder().join("host/signed_search.c"))
        .arg("-o")
        .arg(&program)
        .output()
        .expect("cc starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut runner = TestRunner::deterministic();
    let cases: Vec<Case> =
        (0..4000).map(|_| case().new_tree(&mut runner).expect("a case").current()).collect();
    let asked: Vec<u8> = cases
        .iter()
        .flat_map(|case| {
            [&(case.numbers as u64).to_le_bytes()[..], &case.node(), &case.key.to_le_bytes()].concat()
        })
        .collect();
    let mut child =
        Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    let writer = std::thread::spawn(move || stdin.write_all(&asked));
    let ran = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic").expect("all cases are taken");
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(ran.stdout.len(), cases.len() * 256);
    for (case, found) in cases.iter().zip(ran.stdout.chunks(256)) {
        let (plain, iterator) = found.split_at(128);
        assert_eq!(plain, case.expected(), "plain loops: {case:?}");
        assert_eq!(iterator, case.expected(), "the iterator: {case:?}");
    }
}
