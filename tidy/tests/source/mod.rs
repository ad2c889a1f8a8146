//! The files of the tree, and Rust source with comments and texts taken out.

use std::path::{Path, PathBuf};

/// Folders with nothing of ours in them.
const SKIPPED: &[&str] = &["target", ".git", ".venv", "__pycache__", "rack-state"];

/// Endings of what is written by hand and read by people. Scripts have none, and begin with `#!`.
const SOURCES: &[&str] = &["rs", "py", "sh", "c", "h", "cpp", "hpp"];
const TEXTS: &[&str] = &["md", "toml", "txt"];

/// A file of the tree.
pub(super) struct File {
    /// From the root, with `/`.
    pub(super) path: String,
}

impl File {
    pub(super) fn text(&self) -> String {
        read(&self.path).unwrap_or_else(|| panic!("{} is readable text", self.path))
    }

    pub(super) fn is_source(&self) -> bool {
        !TEXTS.contains(&ending(&self.path))
    }
}

/// The repository.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The text of a file, by its path from the root.
pub(super) fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(root().join(path)).ok()
}

/// Every source and text of the tree.
pub(super) fn files() -> impl Iterator<Item = File> {
    let mut paths = Vec::new();
    walk(&root(), "", &mut paths);
    paths.sort();
    paths.into_iter().map(|path| File { path })
}

fn walk(folder: &Path, prefix: &str, paths: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a readable folder") {
        let entry = entry.expect("a readable entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().expect("an entry has a type");
        let path = format!("{prefix}{name}");
        if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
            walk(&entry.path(), &format!("{path}/"), paths);
        } else if kind.is_file() && is_ours(&name, &entry.path()) {
            paths.push(path);
        }
    }
}

fn is_ours(name: &str, file: &Path) -> bool {
    let ending = ending(name);
    let is_script = || std::fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"#!"));
    SOURCES.contains(&ending) || TEXTS.contains(&ending) || (ending.is_empty() && is_script())
}

fn ending(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.trim_start_matches('.').rsplit_once('.').map_or("", |(_, ending)| ending)
}

/// `source` without its comments, texts and characters; lifetimes stay.
pub(super) fn code_only(source: &str) -> String {
    let mut code = String::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let skip =
            comment(rest).or_else(|| raw_text(rest)).or_else(|| text(rest)).or_else(|| character(rest));
        match skip {
            Some(len) => {
                code.push(' ');
                rest = &rest[len..];
            }
            None => {
                code.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    code
}

/// Bytes of the comment that `rest` begins with; block comments nest.
fn comment(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if !rest.starts_with("/*") {
        return None;
    }
    let (mut at, mut depth) = (2, 1);
    while depth > 0 && at < rest.len() {
        let here = &rest.as_bytes()[at..];
        depth = match here {
            [b'/', b'*', ..] => depth + 1,
            [b'*', b'/', ..] => depth - 1,
            _ => depth,
        };
        at += if here.starts_with(b"/*") || here.starts_with(b"*/") { 2 } else { 1 };
    }
    Some(at)
}

/// Bytes of the raw text that `rest` begins with: `r"..."`, `r#"..."#`. (A name that ends in r is not followed by a quote.)
fn raw_text(rest: &str) -> Option<usize> {
    let marks = rest.strip_prefix('r')?;
    let hashes = marks.len() - marks.trim_start_matches('#').len();
    marks[hashes..].strip_prefix('"')?;
    let start = 2 + hashes;
    let close = format!("\"{}", "#".repeat(hashes));
    Some(rest[start..].find(&close).map_or(rest.len(), |at| start + at + close.len()))
}

/// Bytes of the text that `rest` begins with.
fn text(rest: &str) -> Option<usize> {
    rest.strip_prefix('"')?;
    closing(rest, b'"')
}

/// Bytes of the character that `rest` begins with; a lifetime is none.
fn character(rest: &str) -> Option<usize> {
    let inside = rest.strip_prefix('\'')?;
    let first = inside.chars().next()?;
    if first == '\\' {
        return closing(rest, b'\'');
    }
    inside[first.len_utf8()..].starts_with('\'').then(|| first.len_utf8() + 2)
}

/// Bytes up to and with the next `quote` behind the first byte that no backslash stands before.
fn closing(rest: &str, quote: u8) -> Option<usize> {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    Some((at + 1).min(rest.len()))
}
