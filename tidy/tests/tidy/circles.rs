//! Checks the circles of files inside each crate: files that use each other, directly or through others.
//!
//! A file uses another if it names an item there, by `use` or by a path. Test modules do not count. Neither does
//! the use of a module by a module that contains it: a module and its children are one unit, so a child may use
//! its parent.

use crate::source;
use std::collections::{BTreeMap, BTreeSet};

/// The most circles of files in the whole workspace. The limit only ever goes down.
const CIRCLES_MAX: usize = 7;

/// The beginning of the sentence in the module docs of a circle's main file that gives the reason of the circle.
const REASON: &str = "//! Circle of files: ";

/// A file of a crate, as the path of its module: empty for `lib.rs` and `main.rs`.
type Module = Vec<String>;

/// The files of one crate, and the names that each module makes visible or imports.
#[derive(Default)]
struct Crate {
    code: BTreeMap<Module, String>,
    names: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
}

impl Crate {
    /// Reads the files of a crate: paths below `src`, with their text.
    fn of<'a>(files: impl Iterator<Item = (&'a str, String)>) -> Self {
        let is_test = |path: &str| path.ends_with("tests.rs") || path.contains("tests/");
        let code = files
            .filter(|(path, _)| !is_test(path))
            .map(|(path, text)| (module(path), without_tests(&source::code_only(&text))))
            .collect();
        let mut all = Self { code, names: BTreeMap::new() };
        for (module, code) in &all.code {
            let imports = statements(code).into_iter().flat_map(paths);
            let named = imports.filter_map(|path| Some((path.last()?.clone(), all.absolute(module, &path)?)));
            all.names.insert(module.clone(), named.collect());
        }
        all
    }

    /// Returns a path from the root of the crate, if it leads into the crate.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Vec<String>> {
        let ups = path.iter().take_while(|part| *part == "super").count();
        let first = path.first()?;
        if first == "crate" {
            return Some(path[1..].to_vec());
        }
        let base = &module[..module.len().checked_sub(ups)?];
        let rest = &path[if first == "self" { 1 } else { ups }..];
        let is_child = || self.code.contains_key(&[module.as_slice(), &path[..1]].concat());
        (ups > 0 || first == "self" || is_child()).then(|| [base, rest].concat())
    }

    /// Returns the file that defines what a path from the root names.
    fn home(&self, path: &[String], hops: usize) -> Module {
        let len = (0..=path.len()).rev().find(|&len| self.code.contains_key(&path[..len]));
        let (module, rest) = path.split_at(len.unwrap_or(0));
        let known = self.names.get(module).zip(rest.first());
        match known.and_then(|(names, first)| names.get(first)) {
            Some(further) if hops > 0 && further != path => {
                self.home(&[further.as_slice(), &rest[1..]].concat(), hops - 1)
            }
            _ => module.to_vec(),
        }
    }

    /// Returns the files that each file uses.
    fn arrows(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let mut arrows = BTreeMap::new();
        for (module, code) in &self.code {
            let mut used = BTreeSet::new();
            let mut rest = code.clone();
            for tree in statements(code) {
                rest = rest.replacen(tree, "", 1);
                let into = paths(tree).into_iter().filter_map(|path| self.absolute(module, &path));
                used.extend(into.map(|path| self.home(&path, 8)));
            }
            let is_path = |word: &&str| word.contains("::");
            for word in rest.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).filter(is_path) {
                let path: Vec<String> = word.split("::").map(str::to_owned).collect();
                used.extend(self.absolute(module, &path).map(|path| self.home(&path, 8)));
            }
            used.retain(|to| !to.starts_with(module));
            arrows.insert(module, used);
        }
        arrows
    }

    /// Returns the circles: sets of at least two files, each of which leads to all others of its set.
    fn circles(&self) -> Vec<Vec<String>> {
        let arrows = self.arrows();
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            arrows.keys().map(|&from| (from, reachable(from, &arrows))).collect();
        let mut circles = BTreeSet::new();
        for (&from, beyond) in &reached {
            let back = beyond.iter().filter(|&&to| to != from && reached[to].contains(from));
            let mut circle: Vec<String> = back.map(|to| to.join("::")).collect();
            if !circle.is_empty() {
                circle.push(from.join("::"));
                circle.sort();
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }
}

fn reachable<'a>(
    from: &'a Module,
    arrows: &'a BTreeMap<&'a Module, BTreeSet<Module>>,
) -> BTreeSet<&'a Module> {
    let (mut seen, mut open) = (BTreeSet::new(), Vec::from([from]));
    while let Some(next) = open.pop() {
        let used = arrows.get(next).into_iter().flatten();
        open.extend(used.filter(|&to| seen.insert(to)));
    }
    seen
}

/// Returns the module of a file below `src`.
fn module(path: &str) -> Module {
    let stem = path.trim_end_matches(".rs").trim_end_matches("/mod");
    let parts = stem.split('/').map(str::to_owned);
    parts.filter(|part| part != "lib" && part != "main").collect()
}

/// Returns code without its test module, which ends the file.
fn without_tests(code: &str) -> String {
    let tests = code
        .match_indices("#[cfg(test)]")
        .find(|(at, mark)| code[at + mark.len()..].trim_start().starts_with("mod tests {"));
    code[..tests.map_or(code.len(), |(at, _)| at)].to_owned()
}

/// Returns the trees of the `use` statements.
fn statements(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, word) in code.match_indices("use ") {
        let line = code[..at].rsplit('\n').next().unwrap_or("").trim();
        let is_statement = line.is_empty() || line.starts_with("pub");
        if let Some(end) = code[at..].find(';').filter(|_| is_statement) {
            found.push(&code[at + word.len()..at + end]);
        }
    }
    found
}

/// Returns the paths of a `use` tree.
fn paths(tree: &str) -> Vec<Vec<String>> {
    let parts = |text: &str| -> Vec<String> {
        let words = text.split("::").filter_map(|part| part.split_whitespace().next());
        words.filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let Some((head, body)) = tree.split_once('{') else { return Vec::from([parts(tree)]) };
    let body = body.rsplit_once('}').map_or(body, |(body, _)| body);
    let (mut depth, mut from, mut all) = (0, 0, Vec::new());
    for (at, c) in body.char_indices().chain([(body.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let branch = body[from..at].trim();
                from = (at + 1).min(body.len());
                let below = if branch.is_empty() { Vec::new() } else { paths(branch) };
                all.extend(below.into_iter().map(|path| [parts(head), path].concat()));
            }
            _ => {}
        }
    }
    all
}

/// The workspace has at most [`CIRCLES_MAX`] circles, and a file of each gives the reason.
#[test]
fn files_do_not_use_each_other_in_circles() {
    let mut crates: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for file in source::files().filter(|file| file.is_source() && file.path.ends_with(".rs")) {
        let Some((name, path)) = file.path.split_once("/src/") else { continue };
        crates.entry(name.to_owned()).or_default().push((path.to_owned(), file.text()));
    }
    assert!(crates.len() > 30, "the crates of the workspace are found");
    let (mut found, mut without_reason) = (Vec::new(), Vec::new());
    for (name, files) in crates {
        let has_reason =
            |(path, text): &(String, String)| text.contains(REASON).then(|| module(path).join("::"));
        let reasons: BTreeSet<String> = files.iter().filter_map(has_reason).collect();
        let files = files.iter().map(|(path, text)| (path.as_str(), text.clone()));
        for circle in Crate::of(files).circles() {
            let line = format!("{name}: {}", circle.join(", "));
            if !circle.iter().any(|file| reasons.contains(file)) {
                without_reason.push(line.clone());
            }
            found.push(line);
        }
    }
    let report = |lines: &[String]| lines.join("\n  ");
    assert!(
        found.len() <= CIRCLES_MAX,
        "{} circles, at most {CIRCLES_MAX}: move what two files share into a lower one:\n  {}",
        found.len(),
        report(&found)
    );
    assert!(
        without_reason.is_empty(),
        "write the reason into the module docs of one file, as `{REASON}...`:\n  {}",
        report(&without_reason)
    );
}

/// The check finds a circle through a third file, by an import, a path and a re-exported name. It does not
/// count a module's use of its child, and test modules.
#[test]
fn a_circle_of_files_is_found() {
    let files = [
        ("lib.rs", "mod a;\npub use a::{A, inner::Deep};\n"),
        (
            "a.rs",
            "mod inner;\npub(crate) use inner::Deep;\nuse crate::b::{\n    self,\n    B,\n};\nstruct A(B);\n",
        ),
        ("a/inner.rs", "use super::A;\nstruct Deep;\n"),
        ("b.rs", "struct B;\nfn f() { crate::c::g(); }\n"),
        ("c.rs", "// use crate::b::B;\nuse crate::A;\nfn g() {}\n"),
        ("d.rs", "struct D;\n#[cfg(test)]\nmod tests {\n    use crate::e::E;\n}\n"),
        ("e.rs", "use crate::d::D;\nstruct E;\n"),
    ];
    let circles = Crate::of(files.into_iter().map(|(path, text)| (path, text.to_owned()))).circles();
    assert_eq!(circles, [["a", "b", "c"]]);
}
