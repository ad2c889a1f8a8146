//! The dependency arrows of docs/architecture.md: ground, parts, roles, two worlds, what a user sees. A wrong arrow fails here.
//!
//! It reads `cargo metadata`, so it sees what cargo sees. A crate that is not in the picture fails too: draw it in first.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

const GROUND: &[&str] = &["wire", "machine"];
const PARTS: &[&str] = &["transport", "traversal", "index", "paging"];
const APPS: &[&str] = &["webservice", "tablestore", "timeseries", "nativekvs"];
const ROLES: &[&str] = &["switch", "memnode", "host", "dpu", "control"];

/// What each crate may import of ours, by folder name. Dev-dependencies are held to the same arrows: a test that needs another
/// role belongs into a world that has both.
fn picture() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let set = |lists: &[&[&'static str]]| -> BTreeSet<&'static str> {
        lists.iter().copied().flatten().copied().collect()
    };
    let mut picture = BTreeMap::from([
        ("wire", set(&[])),
        ("machine", set(&[])),
        ("transport", set(&[GROUND])),
        ("traversal", set(&[&["wire"]])),
        ("index", set(&[&["wire"]])),
        ("paging", set(&[GROUND])),
        ("engine", set(&[&["wire", "traversal"]])),
        ("compiler", set(&[&["wire", "traversal"]])),
        ("sim", set(&[GROUND, PARTS, ROLES])),
        ("io", set(&[GROUND, PARTS, ROLES, &["engine"]])),
        ("farmem", set(&[GROUND, PARTS, ROLES, &["engine", "io"]])),
        ("capi", set(&[&["farmem"]])),
        ("workload", set(&[&["farmem"]])),
        (
            "bench",
            set(&[GROUND, &["transport", "traversal", "memnode", "io", "sim", "farmem", "workload"], APPS]),
        ),
        ("cli", set(&[&["bench", "capi", "farmem", "sim", "compiler", "workload"], APPS])),
        ("fuzz", set(&[GROUND, PARTS, ROLES])),
        ("tidy", set(&[])),
    ]);
    for role in ROLES {
        picture.insert(role, set(&[GROUND, PARTS]));
    }
    picture
}

/// An application imports what a user imports, and how its workload is carried out and reported.
fn allowed<'a>(
    picture: &'a BTreeMap<&str, BTreeSet<&'static str>>,
    package: &Package,
) -> Option<BTreeSet<&'a str>> {
    if package.in_apps {
        return Some(BTreeSet::from(["farmem", "workload"]));
    }
    picture.get(package.name.as_str()).map(|allowed| allowed.iter().copied().collect())
}

struct Package {
    /// Without the `farmem-` in front.
    name: String,
    in_apps: bool,
    /// Packages of ours, of any kind of dependency.
    imports: BTreeSet<String>,
}

/// The packages of this workspace.
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

/// What is wrong with the imports of `packages`, one line each.
fn wrong_arrows(packages: &[Package]) -> Vec<String> {
    let picture = picture();
    let mut wrong = Vec::new();
    for package in packages {
        let name = &package.name;
        let Some(allowed) = allowed(&picture, package) else {
            wrong.push(format!(
                "{name} is not in the picture: docs/architecture.md, and tidy/tests/arrows.rs"
            ));
            continue;
        };
        let bad = package.imports.iter().filter(|import| !allowed.contains(import.as_str()));
        wrong.extend(bad.map(|import| format!("{name} must not import {import}")));
    }
    wrong
}

#[test]
fn every_arrow_points_down() {
    let packages = packages();
    assert!(packages.len() > 10, "cargo metadata lists the workspace");
    let wrong = wrong_arrows(&packages);
    assert!(wrong.is_empty(), "wrong dependency arrows:\n  {}", wrong.join("\n  "));
}

/// The test above can fail: two roles, two worlds, an application that reaches around the front door, a room nobody drew.
#[test]
fn a_wrong_arrow_is_found() {
    let package = |name: &str, in_apps: bool, imports: &[&str]| Package {
        name: name.into(),
        in_apps,
        imports: imports.iter().map(|&import| import.into()).collect(),
    };
    let wrong = wrong_arrows(&[
        package("switch", false, &["wire", "memnode"]),
        package("io", false, &["wire", "sim"]),
        package("kv", true, &["farmem", "wire"]),
        package("util", false, &[]),
        package("cli", false, &["farmem", "sim", "webservice"]),
    ]);
    assert_eq!(wrong.len(), 4, "{wrong:?}");
    assert_eq!(
        wrong[..3],
        ["switch must not import memnode", "io must not import sim", "kv must not import wire"]
    );
}
