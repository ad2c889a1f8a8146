//! Computes the identifier of this build (`BUILD` in `src/link.rs`): the version, and a hash of the sources
//! of all crates of a rack's processes. Cargo runs this script again whenever a source changes.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The folders of those crates, relative to the parent folder of this crate.
const PARTS: [&str; 11] = [
    "machine",
    "wire",
    "transport",
    "traversal",
    "switch",
    "memnode",
    "host",
    "control",
    "link",
    "uffd",
    "api",
];

fn main() {
    let own = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where this is"));
    let mut files = Vec::new();
    for part in PARTS.iter().map(|part| own.join("..").join(part)).chain([own.clone()]) {
        let sources = part.join("src");
        println!("cargo::rerun-if-changed={}", sources.display());
        gather(&sources, &mut files);
    }
    // Sorting by the names below the crates' folder gives the same order on each machine.
    files.sort();
    let hash = files.iter().fold(BASIS, |hash, file| {
        let name = file.strip_prefix(&own).unwrap_or(file);
        let bytes = fs::read(file).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
        mix(mix(hash, name.to_string_lossy().as_bytes()), &bytes)
    });
    let version = env::var("CARGO_PKG_VERSION").expect("cargo says the version");
    println!("cargo::rustc-env=FARMEM_BUILD={version}+{hash:016x}");
}

/// Collects the Rust files of a folder and its subfolders, without tests.
///
/// # Panics
/// Panics if the folder cannot be read: a moved crate must not silently leave the hash.
fn gather(folder: &Path, into: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
        if path.is_dir() && !is_test {
            gather(&path, into);
        } else if !is_test && path.extension().is_some_and(|kind| kind == "rs") {
            into.push(path);
        }
    }
}

const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Returns FNV-1a of the bytes and their length. The hash tells builds apart; it does not resist an adversary.
fn mix(hash: u64, bytes: &[u8]) -> u64 {
    let length = (bytes.len() as u64).to_le_bytes();
    bytes.iter().chain(&length).fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}
