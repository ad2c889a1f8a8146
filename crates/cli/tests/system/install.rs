//! Tests of scripts/install and scripts/package: the files that they produce from the binaries under test.

use crate::process::{Dir, run_command};
use crate::run::may_run;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The highest exposure that `systemd-analyze security` may report for a unit, in tenths.
const EXPOSURE_MAX: u32 = 30;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn script(name: &str) -> Command {
    let mut command = Command::new(root().join("scripts").join(name));
    let binary = Path::new(env!("CARGO_BIN_EXE_farmem"));
    command.arg("--built").arg(binary.parent().expect("the binary is in a directory"));
    command
}

/// The installed command works where it was installed: it has its man pages and completions, and `farmem run` finds its library.
#[test]
fn an_installed_command_finds_its_library() {
    let dir = Dir::new("install");
    let mut install = script("install");
    install.args(["--prefix", dir.path().to_str().expect("UTF-8")]);
    let ended = run_command(install);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for file in [
        "lib/farmem/libfarmem_preload.so",
        "share/man/man1/farmem.1",
        "share/man/man1/farmem-run.1",
        "share/bash-completion/completions/farmem",
        "lib/systemd/system/farmem@.service",
    ] {
        assert!(dir.path().join(file).exists(), "{file} is installed");
    }
    if may_run("an_installed_command_finds_its_library") {
        let mut command = Command::new(dir.path().join("bin/farmem"));
        command.args(["run", "--local", "1MiB", "--", "true"]).env_remove("FARMEM_PRELOAD");
        let ended = run_command(command);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    }
}

/// The Debian package holds the same files, and its units are as closed as they claim.
#[test]
fn the_debian_package_is_whole() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        return skip("the Debian package: dpkg-deb absent");
    }
    let dir = Dir::new("package");
    let mut package = script("package");
    package.env("CARGO_TARGET_DIR", dir.path());
    let ended = run_command(package);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut list = Command::new("dpkg-deb");
    list.args(["--contents", ended.stdout.trim()]);
    let contents = run_command(list).stdout;
    for file in
        ["./usr/bin/farmem", "./usr/lib/farmem/libfarmem_preload.so", "./usr/share/man/man1/farmem-kv.1.gz"]
    {
        assert!(contents.contains(file), "{file} is not in:\n{contents}");
    }
}

#[test]
fn the_units_are_hardened() {
    for unit in ["farmem@.service", "farmem-node@.service"] {
        let file = root().join("packaging/systemd").join(unit);
        let analysis = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--no-pager"])
            .arg(&file)
            .output();
        let Ok(analysis) = analysis else { return skip("hardened units: systemd-analyze absent") };
        let report = String::from_utf8_lossy(&analysis.stdout).into_owned();
        let Some(level) = report.split("Overall exposure level for").nth(1) else {
            return skip("hardened units: this systemd-analyze does not analyse files");
        };
        let number = level.split_whitespace().nth(1).unwrap_or_default();
        let tenths: u32 = number.replace('.', "").parse().unwrap_or(u32::MAX);
        assert!(tenths <= EXPOSURE_MAX, "{unit}: exposure {number}");
    }
}

fn skip(what: &str) {
    writeln!(std::io::stderr(), "skipped: {what}").expect("standard error is open");
}
