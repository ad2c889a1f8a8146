//! Refused sources and their messages: testdata/iterators/refused. Each file opens with lines `// refused:
//! TEXT`, all of which the message must contain.
//!
//! Each installed clang compiles the sources. The objects beside them are clang-19's, for sources that clang
//! accepts. So the compiler's own refusals are tested on every machine.

mod clangs;
mod objects;

use farmem_compiler::clang::ClangError;
use objects::folder;
use std::fs;
use std::path::{Path, PathBuf};

/// Sources that clang or the header refuses.
const REFUSED_BY_CLANG: [&str; 11] = [
    "atomic_load.c",
    "floating_point.c",
    "fraction.c",
    "huge_stack.c",
    "large_node.c",
    "large_scratch.c",
    "memcmp.c",
    "product_of_loop.c",
    "signed_division.c",
    "signed_rank.c",
    "standard_header.cpp",
];

fn sources() -> Vec<PathBuf> {
    let mut sources: Vec<_> = fs::read_dir(folder().join("refused"))
        .expect("testdata is there")
        .map(|entry| entry.expect("a readable entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "c" || ending == "cpp"))
        .collect();
    sources.sort();
    sources
}

fn name(source: &Path) -> &str {
    source.file_name().and_then(|name| name.to_str()).expect("a name")
}

/// Returns the texts that the message must contain.
fn expected(source: &Path) -> Vec<String> {
    let text = fs::read_to_string(source).expect("readable");
    let lines = text.lines().map_while(|line| line.strip_prefix("// refused: ").map(str::to_owned));
    let expected: Vec<_> = lines.collect();
    assert!(!expected.is_empty(), "{} says what is expected", name(source));
    expected
}

fn check(source: &Path, by: &str, told: &str) {
    for text in expected(source) {
        assert!(told.contains(&text), "{} by {by}: expected\n{text}\nin\n{told}", name(source));
    }
}

fn compiles_to(object: &[u8]) -> String {
    match farmem_compiler::compile(object, None) {
        Ok(compiled) => panic!("it is accepted:\n{}", compiled.text()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_clang_and_the_compiler_refuse_them_with_the_reason() {
    for clang in clangs::all() {
        for source in sources() {
            let (by_clang, told) = match clang.compile(&source) {
                Ok(object) => (false, compiles_to(&object.bytes)),
                Err(ClangError::Refused(said)) => (true, said),
                Err(error) => panic!("{}: {error}", clang.command),
            };
            check(&source, &clang.command, &told);
            assert_eq!(
                by_clang,
                REFUSED_BY_CLANG.contains(&name(&source)),
                "{} by {}",
                name(&source),
                clang.command
            );
        }
    }
}

#[test]
fn objects_that_clang_let_pass_are_refused_with_the_line() {
    let mut checked = 0;
    for source in sources().iter().filter(|source| !REFUSED_BY_CLANG.contains(&name(source))) {
        let object = fs::read(source.with_extension("o")).expect("each has its object");
        check(source, "the compiler", &compiles_to(&object));
        checked += 1;
    }
    assert!(checked >= 12, "only {checked} objects");
}
