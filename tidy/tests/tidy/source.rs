//! Files of the tree, and Rust source without comments and string literals.

use std::path::{Path, PathBuf};

/// Folders that hold no files of the project.
const SKIPPED: &[&str] = &["target", ".git", ".venv", "__pycache__", "rack-state"];

/// Extensions of handwritten source files. Scripts have no extension, and begin with `#!`.
const SOURCES: &[&str] = &["rs", "py", "sh", "c", "h", "cpp", "hpp"];
const TEXTS: &[&str] = &["md", "toml", "txt"];

/// File of the tree.
pub(crate) struct File {
    /// Path from the root, with `/`.
    pub(crate) path: String,
}

impl File {
    pub(crate) fn text(&self) -> String {
        read(&self.path).unwrap_or_else(|| panic!("{} is readable text", self.path))
    }

    pub(crate) fn is_source(&self) -> bool {
        !TEXTS.contains(&ending(&self.path))
    }
}

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the text of a file, by its path from the root.
pub(crate) fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(root().join(path)).ok()
}

/// Returns every source and text file of the tree.
pub(crate) fn files() -> impl Iterator<Item = File> {
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

/// Returns `source` without comments, string literals and character literals. Lifetimes stay.
pub(crate) fn code_only(source: &str) -> String {
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

/// Returns the length of the comment at the start of `rest`, in bytes. Block comments nest.
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

/// Returns the length of the raw string at the start of `rest`, in bytes: `r"..."`, `r#"..."#`. A quote never
/// follows a name that ends in r.
fn raw_text(rest: &str) -> Option<usize> {
    let marks = rest.strip_prefix('r')?;
    let hashes = marks.len() - marks.trim_start_matches('#').len();
    marks[hashes..].strip_prefix('"')?;
    let start = 2 + hashes;
    let close = format!("\"{}", "#".repeat(hashes));
    Some(rest[start..].find(&close).map_or(rest.len(), |at| start + at + close.len()))
}

/// Returns the length of the string at the start of `rest`, in bytes.
fn text(rest: &str) -> Option<usize> {
    rest.strip_prefix('"')?;
    closing(rest, b'"')
}

/// Returns the length of the character literal at the start of `rest`, in bytes. A lifetime is no character
/// literal.
fn character(rest: &str) -> Option<usize> {
    let inside = rest.strip_prefix('\'')?;
    let first = inside.chars().next()?;
    if first == '\\' {
        return closing(rest, b'\'');
    }
    inside[first.len_utf8()..].starts_with('\'').then(|| first.len_utf8() + 2)
}

/// Returns the number of bytes up to and including the next unescaped `quote` after the first byte.
fn closing(rest: &str, quote: u8) -> Option<usize> {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    Some((at + 1).min(rest.len()))
}
