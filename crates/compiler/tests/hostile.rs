//! Hostile object files: whatever the bytes, the compiler returns, without a panic, a hang or unbounded
//! memory.

mod objects;

use objects::folder;
use proptest::prelude::*;
use proptest::sample::Index;
use std::fs;

fn all() -> Vec<Vec<u8>> {
    let folders = [folder(), folder().join("refused")];
    let paths = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("testdata is there"));
    let mut paths: Vec<_> = paths.map(|entry| entry.expect("a readable entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "o"));
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("readable")).collect()
}

/// Compiles an object; any result is fine.
fn answer(object: &[u8]) -> Option<usize> {
    let names = farmem_compiler::iterators(object).unwrap_or_default();
    let answers = names.iter().map(|name| farmem_compiler::compile(object, Some(name)));
    let programs = answers.chain([farmem_compiler::compile(object, None)]).filter_map(Result::ok);
    // The text uses the lines of the debug sections.
    programs.map(|compiled| compiled.text().len()).max()
}

#[test]
fn objects_cut_off_anywhere() {
    for object in all() {
        for len in (0..object.len()).step_by(7) {
            answer(&object[..len]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn objects_with_wrong_bytes(which in any::<Index>(), spoilt in prop::collection::vec((any::<Index>(), any::<u8>()), 1..12)) {
        thread_local!(static OBJECTS: Vec<Vec<u8>> = all());
        let mut object = OBJECTS.with(|objects| which.get(objects).clone());
        let len = object.len();
        for (at, value) in spoilt {
            object[at.index(len)] = value;
        }
        answer(&object);
    }

    #[test]
    fn bytes_that_are_no_object(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(answer(&bytes), None);
    }
}

/// A valid object of another machine, and one without an iterator.
#[test]
fn objects_of_something_else() {
    let object = fs::read(folder().join("list_find.o")).expect("testdata is there");
    let mut other = object.clone();
    other[18] = 62; // e_machine: x86-64
    let error = farmem_compiler::compile(&other, None).expect_err("it is for another machine").to_string();
    assert_eq!(error, "not a little-endian BPF object: it is for X86_64");

    let error = farmem_compiler::compile(&object, Some("hash_find")).expect_err("not in it").to_string();
    assert_eq!(error, "no iterator hash_find in this object, only list_find");

    let mut other = object.clone();
    for at in object.windows(16).enumerate().filter(|(_, name)| name == b"farmem/list_find").map(|(at, _)| at)
    {
        other[at] = b'F';
    }
    let error = farmem_compiler::compile(&other, None).expect_err("no iterator").to_string();
    assert_eq!(error, "no iterator in this object: declare one with FARMEM_ITERATOR of farmem/iterator.h");
}
