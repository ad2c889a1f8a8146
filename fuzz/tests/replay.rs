//! Runs every fuzz target under plain `cargo test`: first the committed corpus, then seeded mutations of it.
//!
//! Environment variables:
//!
//! - `FARMEM_FUZZ_CASES`: number of cases per target. By default, each target has its own small number.
//! - `FARMEM_FUZZ_TARGET`: name of the only target to run. By default, all targets run.
//! - `FARMEM_FUZZ_SEED`: seed of the mutations, by default 4791. The same seed produces the same inputs.
//!
//! A case is a frame for a role, or an input for a parser. The test writes an input that breaks a promise to
//! a file. Add this input to the corpus together with the fix.
//!
//! A campaign prints its number of cases and its duration:
//!
//! `FARMEM_FUZZ_CASES=10000000 cargo test --release -p farmem-fuzz --test replay -- --nocapture`

mod mutate;

use farmem_fuzz::{Run, TARGETS, Target};
use farmem_machine::Rng;
use mutate::Mutator;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

const SEED: u64 = 4791;

#[test]
fn no_corpus_file_and_no_mutation_of_one_breaks_a_promise() {
    let cases = number("FARMEM_FUZZ_CASES");
    let seed = number("FARMEM_FUZZ_SEED").unwrap_or(SEED);
    let only = std::env::var("FARMEM_FUZZ_TARGET").ok();
    let chosen: Vec<&Target> =
        TARGETS.iter().filter(|target| only.as_ref().is_none_or(|name| name == target.name)).collect();
    assert!(!chosen.is_empty(), "no target is called {only:?}");
    let told: Vec<Result<String, String>> = std::thread::scope(|scope| {
        let runs: Vec<_> = chosen
            .into_iter()
            .map(|target| scope.spawn(move || replay(target, cases.unwrap_or(target.cases), seed)))
            .collect();
        runs.into_iter().map(|run| run.join().expect("the harness itself does not panic")).collect()
    });
    told.iter().flatten().for_each(|line| eprintln!("{line}"));
    let broken: Vec<String> = told.into_iter().filter_map(Result::err).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Each corpus must reach most of the notes of its role. Frames that all fail the first check find no fault.
#[test]
fn each_corpus_reaches_far() {
    for target in TARGETS {
        let mut run = Run::marking();
        corpus(target.name).unwrap().iter().for_each(|input| (target.feed)(input, &mut run));
        let marks = run.marks();
        assert!(marks.len() >= target.marks, "{} reaches only {}: {marks:?}", target.name, marks.len());
    }
}

/// Each target has a wrapper for cargo-fuzz.
#[test]
fn each_target_has_its_wrapper() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let bins = std::fs::read_to_string(manifest.join("Cargo.toml")).unwrap();
    for Target { name, .. } in TARGETS {
        let wrapper = manifest.join(format!("fuzz_targets/{name}.rs"));
        assert!(wrapper.exists(), "{} is missing", wrapper.display());
        assert!(bins.contains(&format!("[[bin]]\nname = \"{name}\"\n")), "{name} has no [[bin]]");
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

/// The replay finds a broken promise and writes the input to a file. The target of this test fails on one
/// byte value at one place.
#[test]
fn a_broken_promise_is_found_and_written_down() {
    fn fragile(data: &[u8], _: &mut Run) {
        assert_ne!(data.get(3), Some(&0x80), "the promise");
    }
    let target = Target { name: "fragile", feed: fragile, cases: 200_000, marks: 0 };
    let told = feed(&target, &[vec![0; 8]], target.cases, SEED).expect_err("the byte comes up");
    let path = told.split('`').nth(1).expect("the file's name");
    let input = std::fs::read(path).unwrap();
    assert_eq!(input[3], 0x80);
}

fn replay(target: &Target, cases: u64, seed: u64) -> Result<String, String> {
    let corpus = corpus(target.name)?;
    feed(target, &corpus, cases, seed)
}

/// Runs the corpus and `cases` mutations of it. Returns one line with the counts and the duration.
fn feed(target: &Target, corpus: &[Vec<u8>], cases: u64, seed: u64) -> Result<String, String> {
    let start = Instant::now();
    let mut run = Run::new();
    for input in corpus {
        one(target, input, &mut run, "the corpus")?;
    }
    let (replayed, mut inputs) = (run.cases, 0);
    let mut mutator = Mutator::new(corpus, Rng::from_number(seed));
    while run.cases - replayed < cases {
        let before = run.cases;
        one(target, mutator.next_input(), &mut run, &format!("seed {seed}, input {inputs}"))?;
        inputs += 1;
        // An input without a frame counts as a case, so that the loop ends.
        run.cases = run.cases.max(before + 1);
    }
    let (made, seconds) = (run.cases - replayed, start.elapsed().as_secs_f64());
    Ok(format!(
        "{}: {} inputs of the corpus with {replayed} cases, {inputs} made with {made} cases, {seconds:.1} s",
        target.name,
        corpus.len()
    ))
}

fn one(target: &Target, input: &[u8], run: &mut Run, origin: &str) -> Result<(), String> {
    if catch_unwind(AssertUnwindSafe(|| (target.feed)(input, run))).is_ok() {
        return Ok(());
    }
    let name = target.name;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.broken"));
    std::fs::write(&path, input).expect("the target directory is writable");
    Err(format!("{name} broke on {origin}: copy `{}` to fuzz/corpus/{name}/ with the fix", path.display()))
}

/// Returns the committed inputs of a target, ordered by name.
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

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("the variable holds a number"))
}
