//! Checks the dependencies between crates against the table in docs/architecture.md.
//!
//! The test reads the table and the output of `cargo metadata`. A crate that the table does not list fails
//! the test. Add a new crate to the table first.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

const TABLE: &str = include_str!("../../../docs/architecture.md");
const HEAD: &str = "| crate | what it holds | imports |";
const ROLES: &[&str] = &["switch", "memnode", "host", "control"];

/// Returns the crates of the workspace that each crate may import, by folder name, as the table states. The
/// rule covers dev-dependencies too. A test that needs another role belongs in a crate that may import both.
fn picture(page: &str, apps: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
    let table = page.split(HEAD).nth(1).expect("the page has the table");
    let mut picture = BTreeMap::new();
    for line in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [crates, .., imports] = cells[..] else { panic!("a row has three cells: {line}") };
        let imports: BTreeSet<String> = imports
            .split_whitespace()
            .filter(|&word| word != "-")
            .flat_map(|word| match word {
                "roles" => ROLES.iter().map(|&role| role.into()).collect(),
                "apps" => apps.iter().cloned().collect(),
                name => vec![name.to_owned()],
            })
            .collect();
        // Names stand in backquotes.
        let names = crates.split('`').skip(1).step_by(2);
        picture.extend(names.map(|name| (name.to_owned(), imports.clone())));
    }
    picture
}

struct Package {
    /// Name without the prefix `farmem-`.
    name: String,
    in_apps: bool,
    /// Imported packages of the workspace, of every kind of dependency.
    imports: BTreeSet<String>,
}

/// Returns the packages of this workspace.
fn packages() -> Vec<Package> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let root = metadata["workspace_root"].as_str().expect("a path").to_owned();
    array(&metadata["packages"])
        .map(|package| Package {
            name: short(text(&package["name"])),
            in_apps: text(&package["manifest_path"]).starts_with(&format!("{root}/apps/")),
            imports: array(&package["dependencies"])
                .filter(|dependency| dependency["path"].is_string())
                .map(|dependency| short(text(&dependency["name"])))
                .collect(),
        })
        .collect()
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().expect("a list").iter()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn short(name: &str) -> String {
    name.strip_prefix("farmem-").unwrap_or(name).to_owned()
}

/// Returns the forbidden imports of `packages`, one line each.
fn wrong_arrows(packages: &[Package]) -> Vec<String> {
    let apps =
        packages.iter().filter(|package| package.in_apps).map(|package| package.name.clone()).collect();
    let picture = picture(TABLE, &apps);
    let mut wrong = Vec::new();
    for package in packages {
        let name = &package.name;
        let Some(allowed) = picture.get(name) else {
            wrong.push(format!("{name} is not in the table of docs/architecture.md"));
            continue;
        };
        let bad = package.imports.iter().filter(|import| !allowed.contains(*import));
        wrong.extend(bad.map(|import| format!("{name} must not import {import}")));
    }
    wrong
}

#[test]
fn every_arrow_points_down() {
    let packages = packages();
    assert!(packages.len() > 10, "cargo metadata lists the workspace");
    let wrong = wrong_arrows(&packages);
    let names: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    for drawn in picture(TABLE, &BTreeSet::new()).keys() {
        assert!(
            names.contains(drawn.as_str()),
            "{drawn} is in the table of docs/architecture.md, and nowhere else"
        );
    }
    assert!(wrong.is_empty(), "wrong dependency arrows:\n  {}", wrong.join("\n  "));
}

/// The check finds forbidden imports: between two roles, between two worlds, and from an application past the
/// public API. The check also finds a crate that is missing in the table.
#[test]
fn a_wrong_arrow_is_found() {
    let package = |name: &str, in_apps: bool, imports: &[&str]| Package {
        name: name.into(),
        in_apps,
        imports: imports.iter().map(|&import| import.into()).collect(),
    };
    let wrong = wrong_arrows(&[
        package("switch", false, &["wire", "memnode"]),
        package("link", false, &["wire", "sim"]),
        package("webservice", true, &["farmem", "wire"]),
        package("util", false, &[]),
        package("cli", false, &["farmem", "sim", "webservice"]),
    ]);
    assert_eq!(wrong.len(), 4, "{wrong:?}");
    assert_eq!(
        wrong[..3],
        ["switch must not import memnode", "link must not import sim", "webservice must not import wire"]
    );
}
