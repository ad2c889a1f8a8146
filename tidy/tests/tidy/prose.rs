//! The writing rules that a program can check: doc lines, names of types and files, the README's length, the book's contents, the glossary and
//! commit subjects. Each rule has a test that it can fail.

use crate::source::{File, files, read, root};
use std::collections::BTreeSet;
use std::process::Command;

/// Words that no doc line begins with: each hides the subject of its sentence.
const BANNED_STARTS: &[&str] =
    &["It", "They", "Of", "The same", "Who", "What", "Those", "That", "Whoever", "Nobody", "Somebody"];

/// Words in s that begin no sentence with a verb.
const NOT_VERBS: &[&str] = &[
    "As", "Bytes", "Items", "Its", "Keys", "Lines", "Nodes", "Others", "Pages", "Programs", "Rows", "This",
    "Words",
];

/// Names that say nothing about a type.
const BANNED_TYPES: &[&str] = &[
    "Apart", "Asked", "Beside", "Came", "Clerk", "Crew", "Ends", "Errand", "Gone", "Guest", "Here", "Kept",
    "Known", "Landed", "Landing", "Left", "Mail", "Met", "Origin", "Place", "Said", "Shown", "Sides", "Spot",
    "Stretch", "Taken", "Talk", "There", "Told", "Unsuited", "Visitor", "Wanted", "Way", "What", "Who",
    "Why", "Wishes", "With",
];

/// Names that say nothing about a file.
const BANNED_FILES: &[&str] = &[
    "apart", "clerk", "lost", "mail", "own", "said", "sides", "talk", "told", "visitor", "ways", "with",
    "words",
];

/// Folders that were written before these rules and are not rewritten yet, with the rule that they break. A folder that keeps the rule must leave
/// the list.
const UNFINISHED: &[(&str, Rule)] = &[];

/// Words of the README at most: one screen.
const README_WORDS_MAX: usize = 600;
/// Words of a cell of the README's tables at most.
const CELL_WORDS_MAX: usize = 20;
/// Terms of the glossary at most.
const GLOSSARY_TERMS_MAX: usize = 60;
/// Characters of a commit subject at most.
const SUBJECT_LEN_MAX: usize = 65;
/// The last commit before the rule for subjects.
const SUBJECTS_SINCE: &str = "0b962360";

/// A rule that folders of [`UNFINISHED`] may break.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    DocLines,
    FunctionDocs,
    TypeNames,
    FileNames,
}

#[test]
fn no_doc_line_hides_its_subject() {
    check(Rule::DocLines, |file| {
        let text = file.text();
        let lines = text.lines().enumerate().filter(|(_, line)| hides_subject(line));
        lines.map(|(number, line)| format!("{}:{}: {}", file.path, number + 1, line.trim())).collect()
    });
}

#[test]
fn docs_of_functions_begin_with_a_verb() {
    check(Rule::FunctionDocs, |file| {
        if is_test(&file.path) {
            return Vec::new();
        }
        let text = file.text();
        let docs = function_docs(&text).into_iter().filter(|(_, doc)| !begins_with_verb(doc));
        docs.map(|(number, doc)| format!("{}:{number}: {doc}", file.path)).collect()
    });
}

#[test]
fn no_type_has_a_name_that_says_nothing() {
    check(Rule::TypeNames, |file| {
        let text = file.text();
        let names = text.lines().filter_map(defined_type).filter(|name| BANNED_TYPES.contains(name));
        names.map(|name| format!("{}: the type {name}", file.path)).collect()
    });
}

#[test]
fn no_file_has_a_name_that_says_nothing() {
    check(Rule::FileNames, |file| {
        let name = file.path.rsplit('/').next().unwrap_or(&file.path);
        let stem = name.strip_suffix(".rs").unwrap_or(name);
        if BANNED_FILES.contains(&stem) { vec![file.path.clone()] } else { Vec::new() }
    });
}

#[test]
fn the_readme_fits_one_screen() {
    let readme = read("README.md").expect("README.md is there");
    let words = readme.split_whitespace().count();
    assert!(words <= README_WORDS_MAX, "README.md has {words} words, {README_WORDS_MAX} at most");
    let long: Vec<String> = cells(&readme)
        .filter(|cell| cell.split_whitespace().count() > CELL_WORDS_MAX)
        .map(str::to_owned)
        .collect();
    assert!(long.is_empty(), "README.md has table cells of more than {CELL_WORDS_MAX} words: {long:?}");
}

/// `make docs` shows a page only if the summary links to it.
#[test]
fn the_book_contains_every_page() {
    let summary = read("docs/SUMMARY.md").expect("docs/SUMMARY.md is there");
    let absent: Vec<String> = files()
        .filter_map(|file| file.path.strip_prefix("docs/").map(str::to_owned))
        .filter(|page| page.ends_with(".md") && page != "SUMMARY.md")
        .filter(|page| !summary.contains(&format!("({page})")))
        .collect();
    assert!(absent.is_empty(), "pages that docs/SUMMARY.md does not link to: {absent:?}");
}

#[test]
fn the_glossary_is_short_and_defines_each_term_once() {
    let page = read("docs/glossary.md").expect("docs/glossary.md is there");
    let terms: Vec<&str> = terms(&page).collect();
    assert!(!terms.is_empty(), "docs/glossary.md has rows that begin with a term in bold");
    assert!(
        terms.len() <= GLOSSARY_TERMS_MAX,
        "docs/glossary.md has {} terms, {GLOSSARY_TERMS_MAX} at most",
        terms.len()
    );
    let mut seen = BTreeSet::new();
    let twice: Vec<&str> = terms.into_iter().filter(|term| !seen.insert(term.to_lowercase())).collect();
    assert!(twice.is_empty(), "terms that docs/glossary.md defines twice: {twice:?}");
}

#[test]
#[expect(clippy::print_stderr, reason = "a test says what it skips")]
fn commit_subjects_say_what_changed() {
    let range = format!("{SUBJECTS_SINCE}..HEAD");
    let log =
        Command::new("git").args(["log", "--no-merges", "--format=%s", &range]).current_dir(root()).output();
    let Some(log) = log.ok().filter(|log| log.status.success()) else {
        eprintln!("skipped: commit subjects: this tree has no history back to {SUBJECTS_SINCE}");
        return;
    };
    let subjects = String::from_utf8_lossy(&log.stdout).into_owned();
    let wrong: Vec<&str> = subjects.lines().filter(|subject| !is_subject(subject)).collect();
    assert!(
        wrong.is_empty(),
        "commit subjects need `area: verb and object` in {SUBJECT_LEN_MAX} characters: {wrong:#?}"
    );
}

/// Runs `faults` over every Rust file and reports what it finds outside [`UNFINISHED`]; also reports finished folders that the list still has.
fn check(rule: Rule, faults: impl Fn(&File) -> Vec<String>) {
    let mut wrong = Vec::new();
    let mut finished: BTreeSet<&str> =
        UNFINISHED.iter().filter(|(_, listed)| *listed == rule).map(|(folder, _)| *folder).collect();
    let excused = finished.clone();
    for file in files().filter(|file| file.path.ends_with(".rs")) {
        let found = faults(&file);
        match excused.iter().find(|folder| file.path.starts_with(**folder)) {
            Some(folder) if !found.is_empty() => {
                finished.remove(folder);
            }
            Some(_) => {}
            None => wrong.extend(found),
        }
    }
    assert!(wrong.is_empty(), "{rule:?}, see CONTRIBUTING.md:\n  {}", wrong.join("\n  "));
    assert!(finished.is_empty(), "{rule:?}: finished folders that UNFINISHED still lists: {finished:?}");
}

/// Returns true for a doc line that begins with one of [`BANNED_STARTS`].
fn hides_subject(line: &str) -> bool {
    let line = line.trim_start();
    let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else { return false };
    let text = text.strip_prefix(' ').unwrap_or(text);
    BANNED_STARTS.iter().any(|start| {
        text.strip_prefix(start)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    })
}

/// Returns true for a file of tests.
fn is_test(path: &str) -> bool {
    path.contains("tests/") || path.ends_with("tests.rs")
}

/// Returns number and text of the first doc line of each function, without the tests at a file's end.
fn function_docs(text: &str) -> Vec<(usize, &str)> {
    let (mut docs, mut doc, mut in_attribute) = (Vec::new(), None, false);
    let mut lines = text.lines().map(str::trim).enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        let next = lines.peek().map_or("", |(_, next)| next);
        if line == "#[cfg(test)]" && next.starts_with("mod ") && next.ends_with('{') {
            break;
        }
        if in_attribute || line.starts_with("#[") {
            in_attribute = !line.ends_with(']');
            if line == "#[test]" {
                doc = None;
            }
        } else if let Some(first) = line.strip_prefix("///") {
            doc.get_or_insert_with(|| (index + 1, first.trim()));
        } else {
            docs.extend(doc.take().filter(|_| is_function(line)));
        }
    }
    docs
}

/// Returns true for a line that begins a function.
fn is_function(line: &str) -> bool {
    let is_qualifier = |word: &&str| {
        word.starts_with("pub") || ["const", "async", "unsafe", "extern", "\"C\""].contains(word)
    };
    line.split_whitespace().find(|word| !is_qualifier(word)) == Some("fn")
}

/// Returns true for a doc line that begins with a third-person verb, an adverb before it, or a page of the manual.
fn begins_with_verb(doc: &str) -> bool {
    if doc.starts_with('`') && ["(2)`", "(3)`"].iter().any(|page| doc.contains(page)) {
        return true;
    }
    let mut words = doc.split(|c: char| !c.is_alphanumeric() && c != '-');
    let word = words.find(|word| !word.ends_with("ly")).unwrap_or_default();
    word.ends_with('s') && word.chars().all(|c| c.is_alphabetic() || c == '-') && !NOT_VERBS.contains(&word)
}

/// Returns the name of the type that a line defines.
fn defined_type(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    if !["struct", "enum", "trait", "type", "union"].contains(&words.next()?) {
        return None;
    }
    let name = words.next()?;
    Some(&name[..name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len())])
}

/// Returns the cells of all tables of a page.
fn cells(page: &str) -> impl Iterator<Item = &str> {
    let rows = page.lines().filter(|line| line.starts_with('|'));
    rows.flat_map(|row| row.trim_matches('|').split('|')).map(str::trim)
}

/// Returns the terms that a glossary defines: the bold first cell of each row.
fn terms(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter_map(|line| line.strip_prefix("| **")?.split("**").next())
}

/// Returns true for `area: verb and object` of at most [`SUBJECT_LEN_MAX`] characters.
fn is_subject(subject: &str) -> bool {
    let Some((area, rest)) = subject.split_once(": ") else { return false };
    let is_area = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || " ,-_".contains(c);
    subject.chars().count() <= SUBJECT_LEN_MAX
        && !area.is_empty()
        && area.chars().all(is_area)
        && rest.starts_with(|c: char| c.is_ascii_lowercase())
}

mod finds {
    use super::*;

    #[test]
    fn doc_lines_without_a_subject() {
        for line in ["/// It was asked for.", "    //! What came of it.", "///Of a page.", "/// The same."] {
            assert!(hides_subject(line), "{line}");
        }
        for line in
            ["/// Its owner.", "/// Theory.", "// It is no doc comment.", "/// Offset.", "let it = 1;"]
        {
            assert!(!hides_subject(line), "{line}");
        }
    }

    #[test]
    fn docs_of_functions() {
        let text = "/// Returns it.\n/// More.\n#[expect(\n    lint,\n    reason = \"why\"\n)]\npub(crate) const fn f() {}\n\
                    /// A type.\nstruct T;\n/// A test.\n#[test]\nfn t() {}\n/// Bytes.\nunsafe extern \"C\" fn g();\n\
                    #[cfg(test)]\nmod tests {\n/// A helper.\nfn h() {}\n}\n";
        assert_eq!(function_docs(text), [(1, "Returns it."), (13, "Bytes.")]);
    }

    #[test]
    fn verbs() {
        for doc in
            ["Returns it.", "Reads, then writes.", "Atomically adds.", "`mmap(2)`", "Write-protects a page."]
        {
            assert!(begins_with_verb(doc), "{doc}");
        }
        for doc in ["Bytes.", "True when it is.", "`word`s.", "The result.", "# Errors", "This is.", ""] {
            assert!(!begins_with_verb(doc), "{doc}");
        }
    }

    #[test]
    fn names_of_types() {
        assert_eq!(defined_type("    pub(crate) enum Came<'a> {"), Some("Came"));
        assert_eq!(defined_type("type Said = Vec<u8>;"), Some("Said"));
        assert_eq!(defined_type("pub struct Taken(u8);"), Some("Taken"));
        assert_eq!(defined_type("let kind = Kind::Told;"), None);
    }

    #[test]
    fn cells_and_terms() {
        assert_eq!(cells("| a | b c |\ntext\n").collect::<Vec<_>>(), ["a", "b c"]);
        assert_eq!(terms("| **epoch** | x |\n| y | z |\n").collect::<Vec<_>>(), ["epoch"]);
    }

    #[test]
    fn subjects() {
        assert!(is_subject("kv, run: execute requests that arrive behind large replies"));
        for wrong in ["results", "kv: Who waits is told", "Kv: fix", &format!("kv: {}", "a".repeat(62))] {
            assert!(!is_subject(wrong), "{wrong}");
        }
    }
}
