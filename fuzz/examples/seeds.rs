//! Generates the seeds in `fuzz/corpus`: `cargo run --release -p farmem-fuzz --example seeds [TARGET]`.
//!
//! For an event target, the example tries random inputs. It keeps a near-minimal set that reaches every mark
//! that the random inputs reached. For the traversal target, the example assembles the programs in
//! `testdata/programs`. Inputs that a fuzzer found have other names in the same folder, and stay.
//!
//! The seeds of `wire_parse` are the vectors in `testdata/vectors`. The seeds of `resp_parse`, `kv_commands`,
//! `kv_memcached`, `pd3_parse` and `parse_*` are written by hand.

use farmem_fuzz::{Run, TARGETS, Target};
use farmem_machine::Rng;
use farmem_traversal::Program;
use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Number of random inputs tried for each target.
const STORIES: u32 = 60_000;
/// Maximum length of a random input, in bytes.
const LEN_MAX: u32 = 600;
const SEED: u64 = 4791;

fn main() -> Result<(), Box<dyn Error>> {
    let only = std::env::args().nth(1);
    for target in TARGETS.iter().filter(|target| only.as_ref().is_none_or(|name| name == target.name)) {
        match target.name {
            "wire_parse" | "resp_parse" | "pd3_parse" | "kv_commands" | "kv_memcached" => {}
            name if name.starts_with("parse_") => {}
            "traversal_verify_run" => keep(target, &programs()?)?,
            _ => keep(target, &stories(target))?,
        }
    }
    Ok(())
}

/// Returns a near-minimal set of random inputs that reaches every mark that all tried inputs reach. Each step
/// takes the input that adds the most marks.
fn stories(target: &Target) -> Vec<Vec<u8>> {
    let mut rng = Rng::from_number(SEED);
    let mut tried: Vec<(Vec<u8>, BTreeSet<String>)> = Vec::new();
    for _ in 0..STORIES {
        let len = 1 + rng.below(LEN_MAX);
        let story: Vec<u8> = (0..len).map(|_| rng.next_u32().to_le_bytes()[0]).collect();
        let mut run = Run::marking();
        (target.feed)(&story, &mut run);
        tried.push((story, run.marks()));
    }
    let mut kept = Vec::new();
    loop {
        let best = tried.iter().max_by_key(|(_, marks)| marks.len());
        let Some((story, reached)) = best.filter(|(_, marks)| !marks.is_empty()).cloned() else {
            return kept;
        };
        kept.push(story);
        tried.iter_mut().for_each(|(_, marks)| marks.retain(|mark| !reached.contains(mark)));
    }
}

fn programs() -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/programs");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_, Box<dyn Error>>>()?;
    paths.sort();
    let encoded = |path: &PathBuf| {
        let program =
            Program::assemble(&fs::read_to_string(path)?).map_err(|error| format!("{path:?}: {error}"))?;
        Ok(program.encoded().to_vec())
    };
    paths.iter().filter(|path| path.extension().is_some_and(|e| e == "pulse")).map(encoded).collect()
}

/// Replaces the earlier seeds with `seeds`.
fn keep(target: &Target, seeds: &[Vec<u8>]) -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    fs::create_dir_all(&folder)?;
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("seed-")) {
            fs::remove_file(path)?;
        }
    }
    let mut run = Run::marking();
    for (number, seed) in (1..).zip(seeds) {
        fs::write(folder.join(format!("seed-{number:02}")), seed)?;
        (target.feed)(seed, &mut run);
    }
    let (name, marks) = (target.name, run.marks());
    eprintln!("{name}: {} seeds reach {} marks: {marks:?}", seeds.len(), marks.len());
    Ok(())
}
