//! Checks the conventions of the tree: file sizes, pure crates, places of `unsafe`, citations of the protocol
//! and its index, the Rust version, and ignored tests.

use crate::source::{File, code_only, files, read};
use std::collections::BTreeSet;

/// Maximum number of lines of a source file, so that a file can be read in an hour.
const LINES_MAX: usize = 600;

/// Crates without access to the operating system: the base crates, the instruction set, the index and the
/// roles.
const PURE: &[&str] = &[
    "wire",
    "machine",
    "transport",
    "traversal",
    "index",
    "protocols",
    "switch",
    "memnode",
    "host",
    "dpu",
    "control",
];

/// Folders and files that may contain `unsafe`.
const UNSAFE: &[&str] = &[
    "bench/src/raw",
    "crates/engine/",
    "crates/link/",
    "crates/uffd/",
    "crates/prefetch/",
    // The pager continues on another thread while its own waits.
    "crates/run/src/beside.rs",
    "crates/preload/",
    "crates/preload-abi/",
];

/// Index of the protocol. `SECTIONS` is the folder with a file for each section.
const PROTOCOL: &str = "docs/protocol.md";
const SECTIONS: &str = "docs/protocol/";

#[test]
fn no_source_file_is_longer_than_an_hour() {
    let long: Vec<String> = files()
        .filter(File::is_source)
        .map(|file| (file.text().lines().count(), file))
        .filter(|(lines, _)| *lines > LINES_MAX)
        .map(|(lines, file)| format!("{} has {lines} lines", file.path))
        .collect();
    assert_none(&long, "files of more than 600 lines");
}

/// Each pure crate that exists forbids `std` and `unsafe` itself, so that the compiler enforces the rule.
#[test]
fn pure_crates_are_pure() {
    let mut wrong = Vec::new();
    let mut found = 0;
    for name in PURE {
        let path = format!("crates/{name}/src/lib.rs");
        let Some(text) = read(&path) else { continue };
        found += 1;
        for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
            if !text.lines().any(|line| line == attribute) {
                wrong.push(format!("{path} has no {attribute}"));
            }
        }
    }
    assert!(found >= 8, "the ground, the parts and four roles are there");
    assert_none(&wrong, "impure crates");
}

#[test]
fn unsafe_lives_where_it_may() {
    let wrong: Vec<String> = files()
        .filter(|file| file.path.ends_with(".rs"))
        .filter(|file| !UNSAFE.iter().any(|place| file.path.starts_with(place)))
        .filter(|file| words(&code_only(&file.text())).any(|word| word == "unsafe"))
        .map(|file| file.path)
        .collect();
    assert_none(&wrong, "unsafe outside of the folders of UNSAFE");
}

#[test]
fn an_ignored_test_says_why() {
    let wrong: Vec<String> = files()
        .filter(|file| file.path.ends_with(".rs"))
        .filter(|file| code_only(&file.text()).contains("#[ignore]"))
        .map(|file| file.path)
        .collect();
    assert_none(&wrong, "#[ignore] without a reason");
}

#[test]
fn every_citation_of_the_protocol_exists() {
    let paragraphs: BTreeSet<String> = sections().flat_map(|file| paragraphs(&file.text())).collect();
    let mut dangling = BTreeSet::new();
    let mut cited = 0;
    for file in files().filter(|file| file.path != PROTOCOL && !file.path.starts_with(SECTIONS)) {
        for citation in citations(&file.text()) {
            cited += 1;
            if !paragraphs.contains(&citation) {
                dangling.insert(format!("{} cites PROTOCOL {citation}", file.path));
            }
        }
    }
    assert!(cited > 0, "the code cites {PROTOCOL}");
    assert_none(&dangling, "dangling citations");
}

/// Each paragraph number names one paragraph.
#[test]
fn paragraphs_of_the_protocol_are_numbered_once() {
    let mut seen = BTreeSet::new();
    let all: Vec<String> = sections().flat_map(|file| numbers(&file.text()).collect::<Vec<_>>()).collect();
    assert!(all.len() > 200, "{SECTIONS} has the paragraphs");
    let twice: Vec<String> = all.into_iter().filter(|number| !seen.insert(number.clone())).collect();
    assert_none(&twice, "paragraph numbers used twice");
}

/// The file of section n has the name `0n-name.md` and holds only the paragraphs n.m. The index has a row
/// that links to the file and states the range of its paragraphs.
#[test]
fn the_index_of_the_protocol_names_every_section() {
    let index = read(PROTOCOL).unwrap_or_else(|| panic!("{PROTOCOL} is missing"));
    let mut wrong = Vec::new();
    for file in sections() {
        let text = file.text();
        let name = file.path.strip_prefix(SECTIONS).expect("a file of that folder");
        let section: u32 =
            digits(name).parse().unwrap_or_else(|_| panic!("{} begins with its number", file.path));
        let count = numbers(&text).count();
        let expected: BTreeSet<String> =
            (1..=count).map(|paragraph| format!("{section}.{paragraph}")).collect();
        if paragraphs(&text) != expected {
            wrong
                .push(format!("{} does not hold the paragraphs {section}.1 to {section}.{count}", file.path));
        }
        let heading =
            text.lines().next().and_then(|line| line.strip_prefix(&format!("# {section}. "))).unwrap_or("");
        let row = format!("| [{section} {heading}](protocol/{name}) | {section}.1 to {section}.{count} |");
        if !index.lines().any(|line| line.starts_with(&row)) {
            wrong.push(format!("{PROTOCOL} has no row that begins {row}"));
        }
    }
    assert_none(&wrong, "sections and index of the protocol");
}

/// Every crate uses the lint table of the workspace. A crate that does not use it has no lints.
#[test]
fn every_crate_keeps_the_lints() {
    let manifests =
        files().filter(|file| file.path.ends_with("/Cargo.toml") && !file.path.starts_with("fuzz/"));
    let wrong: Vec<String> = manifests
        .filter(|file| !file.text().contains("[lints]\nworkspace = true"))
        .map(|file| file.path)
        .collect();
    assert_none(&wrong, "manifests without `[lints] workspace = true`");
}

/// `Cargo.toml`, the toolchain file and the docs state the same Rust version.
#[test]
fn one_rust_version() {
    let manifest = read("Cargo.toml").expect("Cargo.toml is there");
    let version = value(&manifest, "rust-version").expect("Cargo.toml says rust-version");
    let toolchain = read("rust-toolchain.toml").expect("rust-toolchain.toml is there");
    let channel = value(&toolchain, "channel").expect("rust-toolchain.toml says channel");
    assert!(channel == version || channel.starts_with(&format!("{version}.")), "{channel} is not {version}");
    let readme = read("README.md").expect("README.md is there");
    assert!(rust_versions(&readme).next().is_some(), "README.md says which Rust it needs: Rust {version}");
    for page in ["README.md", "CONTRIBUTING.md"] {
        let text = read(page).unwrap_or_default();
        let wrong: Vec<String> = rust_versions(&text).filter(|named| *named != version).collect();
        assert_none(&wrong, &format!("Rust versions in {page} that are not {version}"));
    }
}

/// Returns the files of the protocol's sections.
fn sections() -> impl Iterator<Item = File> {
    files().filter(|file| file.path.starts_with(SECTIONS))
}

fn assert_none<'a>(wrong: impl IntoIterator<Item = &'a String>, what: &str) {
    let wrong: Vec<&str> = wrong.into_iter().map(String::as_str).collect();
    assert!(wrong.is_empty(), "{what}:\n  {}", wrong.join("\n  "));
}

/// Returns the value of `key = "value"`.
fn value(toml: &str, key: &str) -> Option<String> {
    let line = toml.lines().find(|line| line.split('=').next().is_some_and(|left| left.trim() == key))?;
    line.split('"').nth(1).map(str::to_owned)
}

/// Returns each `1.x` that follows the word Rust.
fn rust_versions(text: &str) -> impl Iterator<Item = String> {
    text.split("Rust 1.").skip(1).map(|rest| format!("1.{}", digits(rest)))
}

fn digits(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())]
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

fn paragraphs(protocol: &str) -> BTreeSet<String> {
    numbers(protocol).collect()
}

/// Returns the numbers `n.m` at the start of lines.
fn numbers(protocol: &str) -> impl Iterator<Item = String> {
    protocol.lines().filter_map(|line| {
        let (number, rest) = number(line.trim_start_matches('*'))?;
        rest.starts_with([' ', '*', '.']).then_some(number)
    })
}

/// Returns every paragraph that `text` cites: `PROTOCOL 6.2`, `PROTOCOL 6.2, 6.10`, `PROTOCOL 6.6 to 6.8`
/// (both ends).
fn citations(text: &str) -> Vec<String> {
    let mut cited = Vec::new();
    for rest in text.split("PROTOCOL ").skip(1) {
        let mut rest = rest;
        while let Some((found, after)) = number(rest) {
            cited.push(found);
            let joined =
                [", ", " and ", " to ", " or ", "-"].iter().find_map(|joint| after.strip_prefix(joint));
            let Some(next) = joined else { break };
            rest = next;
        }
    }
    cited
}

/// Returns the number `n.m` at the start of `text`, and the rest.
fn number(text: &str) -> Option<(String, &str)> {
    let section = digits(text);
    let rest = text[section.len()..].strip_prefix('.')?;
    let paragraph = digits(rest);
    let named = !section.is_empty() && !paragraph.is_empty();
    named.then(|| (format!("{section}.{paragraph}"), &rest[paragraph.len()..]))
}

/// Tests of the checks: each helper finds what it looks for, and nothing else.
mod finds {
    use super::*;

    #[test]
    fn citations_in_every_form() {
        let cite = "PROTOCOL ";
        let text = format!("({cite}6.2, 6.10; MIND 4.1) {cite}3.1 to 3.4. {cite}paragraphs {cite}12.3-12.5");
        assert_eq!(citations(&text), ["6.2", "6.10", "3.1", "3.4", "12.3", "12.5"]);
    }

    #[test]
    fn paragraphs_at_the_start_of_a_line() {
        let text = "## 6. The switch\n\n6.1 A\nsee 6.9\n**6.2** B\n6.3. C\n1.5x\n65536\n";
        assert_eq!(paragraphs(text), BTreeSet::from(["6.1".into(), "6.2".into(), "6.3".into()]));
    }

    #[test]
    fn unsafe_as_a_word_of_code() {
        let is_unsafe = |code: &str| words(&code_only(code)).any(|word| word == "unsafe");
        let block = format!("let a = {} {{ *p }};", "unsafe");
        assert!(is_unsafe(&block));
        assert!(is_unsafe(&format!("let q = '\"'; {block}")), "a quote in a character");
        assert!(is_unsafe(&format!("let s = \"//\"; {block}")), "a comment in a text");
        assert!(is_unsafe(&format!("let s = r#\"a\"b\"#; {block}")), "a raw text");
        assert!(is_unsafe(&format!("fn f<'a>(x: &'a u8) {{ {block} }}")), "a lifetime");
        assert!(!is_unsafe("#![forbid(unsafe_code)]"));
        assert!(!is_unsafe(
            "// unsafe\n/* unsafe /* unsafe */ unsafe */ \"unsafe \\\" unsafe\" r#\"unsafe\"#"
        ));
    }

    #[test]
    fn versions_in_prose() {
        assert_eq!(
            rust_versions("needs Rust 1.95 or later, not Rust 1.8.").collect::<Vec<_>>(),
            ["1.95", "1.8"]
        );
        assert_eq!(value("a = 1\nrust-version = \"1.95\"\n", "rust-version").as_deref(), Some("1.95"));
    }
}
