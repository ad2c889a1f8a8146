//! Checks what the pages state about the code. Links have targets, and each linked file contains the
//! functions that the link names. Each row of a table names an existing test. A newcomer finds the deciding
//! lines.

use crate::source::{File, code_only, files, read, root};
use std::path::{Component, Path, PathBuf};

/// Page and section to which the README sends a newcomer.
const PAGE: &str = "docs/architecture.md";
const SECTION: &str = "Where it is decided";

/// Questions of a newcomer. A row of the section's table begins with each question.
const QUESTIONS: [&str; 4] = [
    "Where does a faulted page come from?",
    "Which node does a traversal go to next?",
    "Why is a WRITE refused?",
    "Where does `farmem kv` execute a GET?",
];

/// Link of a page: `[text](path#anchor)`.
#[derive(Debug, PartialEq, Eq)]
struct Link {
    text: String,
    path: String,
    anchor: Option<String>,
}

impl Link {
    /// Returns the functions that the text of a link to Rust source names: `` [`Type::name`,
    /// `other`](file.rs) ``.
    fn functions(&self) -> Vec<&str> {
        if self.path.ends_with(".rs") { names(&self.text).collect() } else { Vec::new() }
    }
}

/// Returns the parts of a text that stand in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the quoted parts that have the form of a function name, with or without a type in front.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let last = quoted(text).map(|name| name.rsplit("::").next().unwrap_or(name));
    last.filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(is_of_a_word))
}

#[test]
fn every_link_of_a_page_leads_somewhere() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for page in pages() {
        for link in links(&page.text()) {
            seen += 1;
            let target = target(&page.path, &link.path);
            if !root().join(&target).exists() {
                wrong.push(format!("{} links to {}, which is not there", page.path, link.path));
                continue;
            }
            let Some(anchor) = link.anchor else { continue };
            let text = read(&target).unwrap_or_default();
            if !headings(&text).any(|heading| slug(heading) == anchor) {
                wrong
                    .push(format!("{} links to #{anchor} of {target}, which has no such heading", page.path));
            }
        }
    }
    assert!(seen > 50, "the pages have links");
    assert_none(&wrong, "broken links");
}

#[test]
fn every_function_that_a_page_names_is_there() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for page in pages() {
        for link in links(&page.text()) {
            let file = target(&page.path, &link.path);
            for name in link.functions() {
                seen += 1;
                if !defines(&read(&file).unwrap_or_default(), name) {
                    wrong.push(format!("{} names the function {name}, which is not in {file}", page.path));
                }
            }
        }
    }
    assert!(seen > 200, "pages name functions: {seen}");
    assert_none(&wrong, "functions that are not where a page says");
}

/// Each row of a table whose last column is headed `test` names a function, or a file of testdata, that
/// exists.
#[test]
fn every_test_that_a_table_names_is_there() {
    let all: Vec<(String, String)> =
        files().filter(|file| file.path.ends_with(".rs")).map(|file| (file.text(), file.path)).collect();
    let is_defined = |name: &str| {
        let head = format!("fn {name}");
        let of_crates =
            all.iter().filter(|(_, path)| ["crates/", "apps/"].iter().any(|at| path.starts_with(at)));
        of_crates.filter(|(text, _)| text.contains(&head)).any(|(text, _)| defines(text, name))
    };
    let paths: Vec<String> = files().map(|file| file.path).collect();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for page in pages() {
        let text = page.text();
        for row in columns(&text, "test") {
            if quoted(row).next().is_none() && row != "the same two" {
                wrong.push(format!("{} has a row without a test: {row:?}", page.path));
            }
            for name in names(row) {
                seen += 1;
                if !is_defined(name) {
                    wrong.push(format!("{} names the test {name}, which is nowhere", page.path));
                }
            }
            let files = quoted(row).filter(|name| name.contains('/') && !name.contains('*'));
            for name in files {
                if !paths.iter().any(|path| path.ends_with(&format!("/{name}"))) {
                    wrong.push(format!("{} names the file {name}, which is nowhere", page.path));
                }
            }
        }
    }
    assert!(seen > 25, "docs/run.md and docs/iterators.md have such tables: {seen}");
    assert_none(&wrong, "tests that are not there");
}

/// Each row of docs/security.md names a test, states that it is open, or states that nothing can hold it
/// (`-`).
#[test]
fn every_attack_has_a_test_or_is_open() {
    const SECURITY: &str = "docs/security.md";
    let page = read(SECURITY).expect("the page is there");
    let rows: Vec<&str> = columns(&page, "held by").collect();
    let holds = |row: &&str| {
        ["open", "-"].contains(row) || links(row).iter().any(|link| !link.functions().is_empty())
    };
    let wrong: Vec<String> = rows.iter().filter(|row| !holds(row)).map(|row| format!("{row:?}")).collect();
    assert!(rows.len() > 60, "{SECURITY} has tables: {}", rows.len());
    assert_none(&wrong, "rows that nothing holds");
}

/// A newcomer finds the answer to each of the three questions in three steps: README, section, file and
/// function. The function contains the line that the page quotes.
#[test]
fn a_newcomer_finds_the_lines_that_decide() {
    let readme = read("README.md").expect("README.md is there");
    let door = |link: &Link| link.path == PAGE && link.anchor == Some(slug(SECTION));
    assert!(links(&readme).iter().any(door), "README.md links to {PAGE}#{}", slug(SECTION));
    let page = read(PAGE).expect("the page is there");
    let rows: Vec<Vec<&str>> = rows(section(&page, SECTION)).collect();
    for question in QUESTIONS {
        let is_asked = rows.iter().any(|row| row[0] == question);
        assert!(is_asked, "the table of {PAGE} asks: {question}");
    }
    let mut wrong = Vec::new();
    for row in &rows {
        let link =
            links(row[1]).into_iter().next().unwrap_or_else(|| panic!("a row links to a file: {row:?}"));
        let [name] = link.functions()[..] else { panic!("a row names a function: {row:?}") };
        let file = target(PAGE, &link.path);
        let line = row[2].trim_matches('`');
        let text = read(&file).unwrap_or_default();
        if !bodies(&text, name).any(|body| body.contains(line)) {
            wrong.push(format!("{} is answered by `{line}`, which is not in {name} of {file}", row[0]));
        }
    }
    assert_none(&wrong, "answers that are not where the page says");
}

/// Returns the Markdown pages of the tree.
fn pages() -> impl Iterator<Item = File> {
    files().filter(|file| !file.is_source() && file.path.ends_with(".md"))
}

fn assert_none(wrong: &[String], what: &str) {
    assert!(wrong.is_empty(), "{what}:\n  {}", wrong.join("\n  "));
}

const fn is_of_a_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Returns the links of a text within the tree, without the links in fenced blocks.
fn links(text: &str) -> Vec<Link> {
    let prose = text.split("```").step_by(2).collect::<String>();
    let mut found = Vec::new();
    let mut rest = prose.as_str();
    while let Some(at) = rest.find("](") {
        let (before, after) = (&rest[..at], &rest[at + 2..]);
        let (Some(start), Some(end)) = (before.rfind('['), after.find(')')) else { break };
        let (path, anchor) = match after[..end].split_once('#') {
            Some((path, anchor)) => (path, Some(anchor.to_owned())),
            None => (&after[..end], None),
        };
        if !path.contains("://") {
            found.push(Link { text: before[start + 1..].to_owned(), path: path.to_owned(), anchor });
        }
        rest = &after[end..];
    }
    found
}

/// Returns the path of a link from the root. For a link within the page, returns the page's own path.
fn target(page: &str, path: &str) -> String {
    if path.is_empty() {
        return page.to_owned();
    }
    let mut target = PathBuf::new();
    for part in Path::new(page).parent().unwrap_or_else(|| Path::new("")).join(path).components() {
        match part {
            Component::ParentDir => drop(target.pop()),
            Component::CurDir => {}
            part => target.push(part),
        }
    }
    target.to_string_lossy().into_owned()
}

fn headings(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim())
}

/// Returns the anchor of a heading.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|&c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// Returns the text of a section, up to the next heading.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let start = format!("\n## {heading}\n");
    let rest = page.split(&start).nth(1).unwrap_or_else(|| panic!("the page has the section {heading}"));
    rest.split("\n## ").next().unwrap_or(rest)
}

/// Returns the cells of each row of a table, without its head.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = text.lines().filter(|line| line.starts_with('|')).skip(2);
    lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
}

/// Returns the last cells of all rows in the tables whose last column has this head.
fn columns<'a>(text: &'a str, head: &'a str) -> impl Iterator<Item = &'a str> {
    let tables = text.split("\n\n").filter(|part| part.starts_with('|'));
    let last = |line: &'a str| line.trim().trim_matches('|').rsplit(" | ").next().unwrap_or(line).trim();
    let headed = tables.filter(move |table| table.lines().next().is_some_and(|line| last(line) == head));
    headed.flat_map(move |table| table.lines().skip(2).map(last))
}

/// Returns true when the source defines a function of this name.
fn defines(source: &str, name: &str) -> bool {
    let code = code_only(source);
    let words: Vec<&str> = code.split(|c: char| !is_of_a_word(c)).filter(|word| !word.is_empty()).collect();
    words.windows(2).any(|pair| pair == ["fn", name])
}

/// Returns the bodies of the functions of this name: from the `fn` line to the closing brace with the same
/// indentation.
fn bodies<'a>(source: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let head = format!("fn {name}");
    let starts = source.match_indices(&head).map(|(at, _)| at).collect::<Vec<_>>();
    starts.into_iter().filter_map(move |at| {
        let line = source[..at].rfind('\n').map_or(0, |end| end + 1);
        let indent = &source[line..][..source[line..].len() - source[line..].trim_start_matches(' ').len()];
        let close = format!("\n{indent}}}");
        let is_whole = !source[at + head.len()..].starts_with(is_of_a_word);
        let end = source[at..].find(&close)?;
        is_whole.then(|| &source[at..at + end])
    })
}

/// Tests of the checks: each helper finds what it looks for, and nothing else.
mod finds {
    use super::*;

    #[test]
    fn links_of_a_page() {
        let page = "See [a](b.md#c d), [web](https://x.y/z) and [`Type::name`](../src/f.rs).\n```\n[no](link)\n```\n";
        let link = |text: &str, path: &str, anchor: Option<&str>| Link {
            text: text.into(),
            path: path.into(),
            anchor: anchor.map(str::to_owned),
        };
        let found = links(page);
        assert_eq!(found, [link("a", "b.md", Some("c d")), link("`Type::name`", "../src/f.rs", None)]);
        assert_eq!((found[0].functions(), found[1].functions()), (vec![], vec!["name"]));
        let several = links("[`one`, `A::two` and `Not`, `not so`](f.rs), [`three`](f.md)");
        assert_eq!((several[0].functions(), several[1].functions()), (vec!["one", "two"], vec![]));
        assert_eq!(target("docs/page.md", "../src/f.rs"), "src/f.rs");
        assert_eq!(
            slug("A page fault of `farmem run`, step by step"),
            "a-page-fault-of-farmem-run-step-by-step"
        );
    }

    #[test]
    fn cells_of_a_column() {
        let page = "text\n\n| a | test |\n| --- | --- |\n| x | `one`, `a/b.c` |\n| y | - |\n\n| a | other |\n|---|---|\n| z | `two` |\n";
        assert_eq!(columns(page, "test").collect::<Vec<_>>(), ["`one`, `a/b.c`", "-"]);
        assert_eq!(names("`one`, `a/b.c`").collect::<Vec<_>>(), ["one"]);
        assert_eq!(quoted("`one`, `a/b.c`").collect::<Vec<_>>(), ["one", "a/b.c"]);
    }

    #[test]
    fn functions_by_name() {
        let source = "// fn comment\nimpl A {\n    fn one(&self) {\n        first();\n    }\n\n    fn one_more() {\n        second();\n    }\n}\n";
        assert!(defines(source, "one") && defines(source, "one_more"));
        assert!(!defines(source, "comment") && !defines(source, "on"));
        let bodies: Vec<&str> = bodies(source, "one").collect();
        assert_eq!(bodies.len(), 1);
        assert!(bodies[0].contains("first()") && !bodies[0].contains("second()"));
    }
}
