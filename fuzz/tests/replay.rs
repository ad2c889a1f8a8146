//! Every fuzz target under plain `cargo test`: its committed corpus, then seeded mutations of it.
//!
//! `FARMEM_FUZZ_CASES` mutations per target (200,000), from `FARMEM_FUZZ_SEED` (4791). Same seed, same inputs. An input
//! that breaks a promise is written to a file; it belongs into the corpus, with the fix.

mod mutate;

use farmem_fuzz::{TARGETS, Target};
use farmem_machine::Rng;
use mutate::Mutator;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

const CASES: u64 = 200_000;
const SEED: u64 = 4791;

#[test]
fn no_corpus_file_and_no_mutation_of_one_breaks_a_promise() {
    let (cases, seed) = (number("FARMEM_FUZZ_CASES", CASES), number("FARMEM_FUZZ_SEED", SEED));
    let broken: Vec<String> = std::thread::scope(|scope| {
        let runs: Vec<_> =
            TARGETS.iter().map(|target| scope.spawn(move || run(target, cases, seed))).collect();
        runs.into_iter()
            .filter_map(|run| run.join().expect("the harness itself does not panic").err())
            .collect()
    });
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// A target that no one wrapped for cargo-fuzz is only half a target.
#[test]
fn each_target_has_its_wrapper() {
    for (name, _) in TARGETS {
        let wrapper = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fuzz_targets/{name}.rs"));
        assert!(wrapper.exists(), "{} is missing", wrapper.display());
    }
}

#[test]
fn the_same_seed_gives_the_same_inputs() {
    let corpus = [b"a first input".to_vec(), b"another".to_vec()];
    let inputs = |seed| {
        let mut mutator = Mutator::new(&corpus, Rng::from_number(seed));
        (0..1000).map(|_| mutator.next_input().to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(inputs(1), inputs(1));
    assert_ne!(inputs(1), inputs(2));
}

/// A harness that cannot fail proves nothing: this target breaks its promise on one byte value at one place.
#[test]
fn a_broken_promise_is_found_and_written_down() {
    let fragile: Target = ("fragile", |data| assert_ne!(data.get(3), Some(&0x80), "the promise"));
    let told = feed(&fragile, &[vec![0; 8]], CASES, SEED).expect_err("the byte comes up");
    let path = told.split('`').nth(1).expect("the file's name");
    let input = std::fs::read(path).unwrap();
    assert_eq!(input[3], 0x80);
}

fn run(target: &Target, cases: u64, seed: u64) -> Result<(), String> {
    let corpus = corpus(target.0)?;
    feed(target, &corpus, cases, seed)
}

fn feed(target: &Target, corpus: &[Vec<u8>], cases: u64, seed: u64) -> Result<(), String> {
    for input in corpus {
        one(target, input, "the corpus")?;
    }
    let mut mutator = Mutator::new(corpus, Rng::from_number(seed));
    for case in 0..cases {
        one(target, mutator.next_input(), &format!("seed {seed}, case {case}"))?;
    }
    Ok(())
}

fn one(&(name, target): &Target, input: &[u8], origin: &str) -> Result<(), String> {
    if catch_unwind(|| target(input)).is_ok() {
        return Ok(());
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.broken"));
    std::fs::write(&path, input).expect("the target directory is writable");
    Err(format!("{name} broke on {origin}: copy `{}` to fuzz/corpus/{name}/ with the fix", path.display()))
}

/// The committed inputs of a target, in the order of their names.
fn corpus(name: &str) -> Result<Vec<Vec<u8>>, String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries =
        std::fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.sort();
    if files.is_empty() {
        return Err(format!("{} is empty", directory.display()));
    }
    Ok(files.iter().map(|file| std::fs::read(file).expect("a readable file")).collect())
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("the variable holds a number"))
}
